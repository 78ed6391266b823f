// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reduction of plain buffers to rigid items, and decomposition into parts that do not touch.
//!
//! Time matters only where something starts after something has ended: between two such moments what lives only
//! grows and then only shrinks, and the fullest moment stands for all. These are the sections; two million buffers of
//! a compiler's run have 0.7 million. Where no item crosses from one section to the next the problem falls into
//! parts; an item that lives through a whole part can lie at its bottom without loss, and without it the part may
//! fall into smaller ones.

/// An item: the sections it covers, and how high it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) size: u64,
}

/// Items that share no moment with those of other parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its items, as a range of all.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Its sections.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The item below it.
    pub(crate) base: u64,
}

/// A problem of rigid items.
#[derive(Debug, Default)]
pub(crate) struct Rigid {
    /// The items, by start.
    pub(crate) items: Vec<Item>,
    /// The entry that each item stands for, by its place in the list that was given.
    pub(crate) entries: Vec<u32>,
    /// A moment of each section at which all of its items live.
    pub(crate) moments: Vec<i64>,
}

/// How often a part is cut again after something was laid aside. Real graphs need two or three cuts; a problem made
/// of shells would need one for each shell.
const CUTS: u32 = 24;

impl Rigid {
    /// Makes items of entries given by start, end and size. Sizes of 0 are to be left out.
    pub(crate) fn new(count: usize, entry: impl Fn(usize) -> (i64, i64, u64)) -> Self {
        let mut starts: Vec<(i64, u32)> = (0..count)
            .map(|index| (entry(index).0, index as u32))
            .collect();
        starts.sort_unstable();
        let mut ends: Vec<(i64, u32)> = (0..count)
            .map(|index| (entry(index).1, index as u32))
            .collect();
        ends.sort_unstable();
        let mut last = vec![0_u32; count];
        let mut rigid = Self {
            items: Vec::with_capacity(count),
            entries: Vec::with_capacity(count),
            moments: Vec::new(),
        };
        let mut ended = 0;
        let mut died = true;
        for &(start, index) in &starts {
            while ended < count && ends[ended].0 <= start {
                last[ends[ended].1 as usize] = rigid.moments.len() as u32;
                ended += 1;
                died = true;
            }
            if died {
                rigid.moments.push(start);
                died = false;
            } else if let Some(moment) = rigid.moments.last_mut() {
                // The fullest moment of a section is the last start in it.
                *moment = start;
            }
            let section = rigid.moments.len() as u32 - 1;
            // The end is not known yet; meanwhile the index stands for it.
            rigid.items.push(Item {
                start: section,
                end: index,
                size: entry(index as usize).2,
            });
            rigid.entries.push(index);
        }
        for &(_, index) in &ends[ended..] {
            last[index as usize] = rigid.moments.len() as u32;
        }
        for item in &mut rigid.items {
            item.end = last[item.end as usize];
        }
        rigid
    }

    /// The items that live in each section of `from..to`, counted from the first of them.
    pub(crate) fn load(items: &[Item], from: u32, to: u32) -> Vec<u64> {
        // Sums wrap on the way and come out right, since what is taken away was added before.
        let mut load = vec![0_u64; (to - from) as usize + 1];
        for item in items {
            let (start, end) = ((item.start - from) as usize, (item.end - from) as usize);
            load[start] = load[start].wrapping_add(item.size);
            load[end] = load[end].wrapping_sub(item.size);
        }
        let mut sum = 0_u64;
        for load in &mut load {
            sum = sum.wrapping_add(*load);
            *load = sum;
        }
        load.pop();
        load
    }

    /// Cuts into parts. `place` receives the offset of each item that was set aside.
    pub(crate) fn cut(&mut self, decompose: bool, mut place: impl FnMut(u32, u64)) -> Vec<Part> {
        let whole = Part {
            from: 0,
            to: self.items.len(),
            start: 0,
            end: self.moments.len() as u32,
            base: 0,
        };
        if !decompose {
            return vec![whole];
        }
        let mut parts = Vec::new();
        let mut waiting = vec![(whole, CUTS)];
        while let Some((part, cuts)) = waiting.pop() {
            let mut at = part.from;
            while at < part.to {
                let start = self.items[at].start;
                let (from, mut end) = (at, start);
                while at < part.to && (at == from || self.items[at].start < end) {
                    end = end.max(self.items[at].end);
                    at += 1;
                }
                // Items that live all the time go to the bottom and out of the list.
                let (mut kept, mut base) = (from, part.base);
                for index in from..at {
                    let item = self.items[index];
                    if item.start == start && item.end == end {
                        place(self.entries[index], base);
                        base += item.size;
                    } else {
                        self.items[kept] = item;
                        self.entries[kept] = self.entries[index];
                        kept += 1;
                    }
                }
                let piece = Part {
                    from,
                    to: kept,
                    start,
                    end,
                    base,
                };
                if kept == from {
                    continue;
                }
                if kept < at && cuts > 0 {
                    waiting.push((piece, cuts - 1));
                } else {
                    parts.push(piece);
                }
            }
        }
        parts.sort_unstable_by_key(|part| part.from);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rigid(lifetimes: &[(i64, i64, u64)]) -> Rigid {
        Rigid::new(lifetimes.len(), |index| lifetimes[index])
    }

    #[test]
    fn a_section_begins_where_something_starts_after_an_end() {
        let rigid = rigid(&[(0, 10, 1), (2, 4, 2), (3, 5, 3), (4, 8, 4), (20, 30, 5)]);
        assert_eq!(rigid.moments, [3, 4, 20]);
        let spans: Vec<_> = rigid
            .items
            .iter()
            .map(|item| (item.start, item.end, item.size))
            .collect();
        assert_eq!(
            spans,
            [(0, 2, 1), (0, 1, 2), (0, 2, 3), (1, 2, 4), (2, 3, 5)]
        );
        assert_eq!(Rigid::load(&rigid.items, 0, 3), [6, 8, 5]);
    }

    #[test]
    fn what_lives_all_the_time_is_laid_aside_and_the_rest_falls_apart() {
        // Two flights of stairs, over one that lives as long as both.
        let stairs = [(0, 3, 1), (2, 6, 2), (4, 8, 3), (7, 9, 4)];
        let shifted = stairs.map(|(start, end, size)| (start + 10, end + 10, size));
        let lifetimes = [&[(0, 20, 100)][..], &stairs, &shifted].concat();
        let mut rigid = rigid(&lifetimes);
        let mut aside = Vec::new();
        let parts = rigid.cut(true, |entry, offset| aside.push((entry, offset)));
        assert_eq!(aside, [(0, 0)]);
        let cut: Vec<_> = parts
            .iter()
            .map(|part| (&rigid.entries[part.from..part.to], part.base))
            .collect();
        assert_eq!(cut, [(&[1, 2, 3, 4][..], 100), (&[5, 6, 7, 8], 100)]);
    }
}
