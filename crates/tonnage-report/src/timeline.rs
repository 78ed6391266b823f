// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes over time, in as many stretches as a picture needs.
//!
//! The highest and the lowest moment of a stretch are kept with all their parts: a stretch of a picture is then a real
//! moment of the recording and not a mean of many, and the true peak survives any number of stretches. Coarser levels
//! follow from finer ones by picking, which the page does as it zooms.

use tonnage_analysis::holdings::{Category, Holding, SegmentSpan};

/// Categories that are distinguished.
pub(crate) const CATEGORIES: usize = Category::ALL.len();

/// Bytes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// The row after which it was so.
    pub row: u32,
    /// Bytes alive by category, in the order of `Category::ALL`.
    pub by_category: [u64; CATEGORIES],
    /// Bytes of all blocks alive.
    pub allocated: u64,
    /// Bytes held from the driver, as far as the recording shows.
    pub reserved: u64,
}

impl Levels {
    /// Bytes held from the driver, which are at least those handed out.
    pub fn held_bytes(&self) -> u64 {
        self.reserved.max(self.allocated)
    }
}

/// Some rows, from `start` to the start of the next stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its first row.
    pub start: u32,
    /// The first moment with the most bytes alive.
    pub high: Levels,
    /// The first moment with the least.
    pub low: Levels,
    /// Most bytes held from the driver, at any moment of it.
    pub most_reserved: u64,
}

/// A block or segment that comes or goes.
#[derive(Clone, Copy)]
struct Change {
    row: u32,
    /// Number of the category, or `SEGMENT`.
    what: u8,
    /// Added modulo 2⁶⁴, so that impossible sizes of a hostile recording cannot overflow.
    bytes: u64,
}

const SEGMENT: u8 = u8::MAX;

/// Everything that comes and goes, in the order of rows.
pub(crate) struct Changes {
    changes: Vec<Change>,
    rows: u32,
}

impl Changes {
    pub(crate) fn from_blocks(blocks: &[Holding], segments: &[SegmentSpan], rows: u32) -> Self {
        let mut changes = Vec::with_capacity(2 * (blocks.len() + segments.len()));
        let mut put = |born: u32, died: u32, what: u8, bytes: u64| {
            if born >= died || born >= rows {
                return;
            }
            changes.push(Change {
                row: born,
                what,
                bytes,
            });
            if died < rows {
                changes.push(Change {
                    row: died,
                    what,
                    bytes: bytes.wrapping_neg(),
                });
            }
        };
        for block in blocks {
            put(block.born, block.died, block.category as u8, block.bytes);
        }
        for segment in segments {
            put(segment.born, segment.died, SEGMENT, segment.bytes);
        }
        changes.sort_unstable_by_key(|change| change.row);
        Self { changes, rows }
    }

    /// The stretches that begin at these rows, which must ascend; the last reaches to the end.
    pub(crate) fn stretches(&self, starts: &[u32]) -> Vec<Stretch> {
        let mut stretches: Vec<Stretch> = Vec::with_capacity(starts.len());
        let mut now = Levels::default();
        let mut next = 0;
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(self.rows);
            // The state just after the first row of the stretch.
            next = self.apply(next, start, &mut now);
            now.row = start;
            let mut stretch = Stretch {
                start,
                high: now,
                low: now,
                most_reserved: now.reserved,
            };
            while let Some(change) = self.changes.get(next).filter(|change| change.row < end) {
                let row = change.row;
                next = self.apply(next, row, &mut now);
                now.row = row;
                if now.allocated > stretch.high.allocated {
                    stretch.high = now;
                }
                if now.allocated < stretch.low.allocated {
                    stretch.low = now;
                }
                stretch.most_reserved = stretch.most_reserved.max(now.reserved);
            }
            stretches.push(stretch);
        }
        stretches
    }

    /// Applies the changes from `next` on that happen up to `row`, and returns where it stopped.
    fn apply(&self, mut next: usize, row: u32, now: &mut Levels) -> usize {
        while let Some(change) = self.changes.get(next).filter(|change| change.row <= row) {
            if change.what == SEGMENT {
                now.reserved = now.reserved.wrapping_add(change.bytes);
            } else {
                let sum = &mut now.by_category[usize::from(change.what)];
                *sum = sum.wrapping_add(change.bytes);
                now.allocated = now.allocated.wrapping_add(change.bytes);
            }
            next += 1;
        }
        next
    }
}

/// Rows at which to begin stretches: `even` of them at equal distances, and one for every row near a moment.
///
/// `near` lists moments with how many rows on each side are shown one by one.
pub(crate) fn starts(rows: u32, even: u32, near: &[(u32, u32)]) -> Vec<u32> {
    let even = even.clamp(1, rows.max(1));
    let mut starts: Vec<u32> = (0..even)
        .map(|index| (u64::from(index) * u64::from(rows) / u64::from(even)) as u32)
        .collect();
    for &(row, around) in near {
        let last = row
            .saturating_add(around)
            .saturating_add(1)
            .min(rows.saturating_sub(1));
        starts.extend(row.saturating_sub(around).min(last)..=last);
    }
    starts.sort_unstable();
    starts.dedup();
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(born: u32, died: u32, bytes: u64, category: Category) -> Holding {
        Holding {
            category,
            ..Holding::new(born, died, 0, bytes)
        }
    }

    /// By the definition of a live block, row for row.
    fn slowly(blocks: &[Holding], row: u32) -> u64 {
        blocks
            .iter()
            .filter(|block| block.alive_at(row))
            .map(|block| block.bytes)
            .sum()
    }

    #[test]
    fn extrema_are_those_of_the_rows() {
        let mut state = 7_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let rows = 400;
        let blocks: Vec<Holding> = (0..200)
            .map(|_| {
                let born = random(rows);
                let died = born + random(90);
                let category = Category::ALL[random(9) as usize];
                block(born, died, u64::from(random(1000)), category)
            })
            .collect();
        let changes = Changes::from_blocks(&blocks, &[], rows);
        for even in [1, 3, 50, 400] {
            let starts = starts(rows, even, &[(123, 2)]);
            let stretches = changes.stretches(&starts);
            for (index, stretch) in stretches.iter().enumerate() {
                let end = starts.get(index + 1).copied().unwrap_or(rows);
                let all: Vec<u64> = (stretch.start..end)
                    .map(|row| slowly(&blocks, row))
                    .collect();
                assert_eq!(stretch.high.allocated, *all.iter().max().unwrap());
                assert_eq!(stretch.low.allocated, *all.iter().min().unwrap());
                assert_eq!(stretch.high.allocated, slowly(&blocks, stretch.high.row));
                assert_eq!(
                    stretch.high.allocated,
                    stretch.high.by_category.iter().sum::<u64>()
                );
            }
        }
    }

    #[test]
    fn impossible_sizes_and_rows_are_survived() {
        let blocks = [
            block(0, 5, u64::MAX, Category::Other),
            block(1, 2, u64::MAX, Category::Other),
            block(9, 3, 1, Category::Other),
            block(u32::MAX, Holding::ALIVE, 1, Category::Other),
        ];
        let changes = Changes::from_blocks(&blocks, &[], 4);
        assert_eq!(changes.stretches(&starts(4, 9, &[(u32::MAX, 3)])).len(), 4);
        assert_eq!(
            Changes::from_blocks(&blocks, &[], 0)
                .stretches(&starts(0, 3, &[]))
                .len(),
            1
        );
    }
}
