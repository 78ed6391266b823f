// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lower bound of all plans, and the smallest set of buffers that proves it.
//!
//! The bound is the fullest moment: everything that lives then needs separate bytes. If the peak of a plan is as low,
//! the plan is optimal and the moment is the proof, which a sum can check. Alignment adds to it the bytes that every
//! buffer loses to its neighbor (all offsets are multiples of the common unit), except the topmost.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::normal::Selection;
use crate::plan::Conflict;

/// A lower bound and the moment that proves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) bytes: u64,
    pub(crate) moment: Option<i64>,
}

/// The least end of `load` bytes that lie outside of the forbidden ranges.
pub(crate) fn lift(load: u64, forbidden: &[Range<u64>]) -> u64 {
    let mut ranges: Vec<&Range<u64>> = forbidden
        .iter()
        .filter(|range| range.start < range.end)
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut end, mut at) = (load, 0);
    for range in ranges {
        if end <= range.start {
            break;
        }
        // Ranges may overlap; only what is new counts.
        end += range.end.saturating_sub(at.max(range.start));
        at = at.max(range.end);
    }
    end
}

/// Below a forbidden range a buffer loses nothing to rounding, so with any the bytes alone count.
fn unit_among(selection: &Selection<'_>) -> u64 {
    let mut forbidden = selection.space.forbidden.iter();
    let is_free = forbidden.all(|range| range.start >= range.end);
    if is_free { selection.unit } else { 1 }
}

/// An entry that comes to have a size, or has it no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    moment: i64,
    /// Ends come first, since lifetimes are half-open.
    starts: bool,
    /// The place of the entry.
    entry: u32,
    size: u64,
}

/// Everything that starts and ends, moment by moment.
fn sweep(selection: &Selection<'_>, mut at: impl FnMut(i64, &[Change])) {
    let mut changes: Vec<Change> = Vec::new();
    for (entry, place) in selection.iter().zip(0..) {
        for (start, end, size) in selection.pieces(&entry) {
            for (moment, starts) in [(start, true), (end, false)] {
                changes.push(Change {
                    moment,
                    starts,
                    entry: place,
                    size,
                });
            }
        }
    }
    changes.sort_unstable();
    for changes in changes.chunk_by(|one, other| one.moment == other.moment) {
        at(changes[0].moment, changes);
    }
}

/// The bound of entries that are not all plain, or whose sizes are not all multiples of the unit.
pub(crate) fn bound(selection: &Selection<'_>) -> Bound {
    let tops = selection
        .iter()
        .map(|entry| entry.fixed.unwrap_or(0) + entry.size);
    let mut best = Bound {
        bytes: tops.max().unwrap_or(0),
        moment: None,
    };
    let unit = unit_among(selection);
    let mut load = 0_u64;
    // The topmost buffer needs no rounding.
    let mut spare: BTreeMap<u64, u32> = BTreeMap::new();
    sweep(selection, |moment, changes| {
        for change in changes {
            let rounded = change.size.next_multiple_of(unit);
            let over = rounded - change.size;
            if change.starts {
                load += rounded;
                *spare.entry(over).or_default() += 1;
            } else {
                load -= rounded;
                if let Some(count) = spare.get_mut(&over) {
                    *count -= 1;
                    if *count == 0 {
                        spare.remove(&over);
                    }
                }
            }
        }
        let most = spare.last_key_value().map_or(0, |(over, _)| *over);
        let needs = lift(load.saturating_sub(most), &selection.space.forbidden);
        if needs > best.bytes && load > 0 {
            best = Bound {
                bytes: needs,
                moment: Some(moment),
            };
        }
    });
    best
}

/// The smallest set of buffers that live at one moment and need more than the capacity, by count.
///
/// A Fenwick tree over the entries by size gives the number of the largest that are needed at each moment.
pub(crate) fn conflict(selection: &Selection<'_>) -> Option<Conflict> {
    let capacity = selection.space.capacity?;
    let unit = unit_among(selection);
    let rounded = |size: u64| size.next_multiple_of(unit);
    let mut largest: Vec<(u64, u32)> = selection
        .iter()
        .zip(0..)
        .map(|(entry, place)| (entry.size, place))
        .collect();
    largest.sort_unstable_by_key(|entry| Reverse(*entry));
    let mut rank = vec![0; largest.len()];
    for (at, &(_, place)) in largest.iter().enumerate() {
        rank[place as usize] = at;
    }
    let mut sums = Sums::new(largest.len());
    let mut best: Option<(usize, i64)> = None;
    let needs = |load: u64| lift(load.saturating_sub(unit - 1), &selection.space.forbidden);
    sweep(selection, |moment, changes| {
        for change in changes {
            let rank = rank[change.entry as usize];
            sums.add(rank, rounded(change.size), change.starts);
        }
        if needs(sums.total) > capacity
            && let Some(count) = sums.first(|load| needs(load) > capacity)
            && best.is_none_or(|(least, _)| count < least)
        {
            best = Some((count, moment));
        }
    });
    let (count, moment) = best?;
    let live = largest.iter().filter_map(|&(_, place)| {
        let entry = selection.entry(place as usize);
        let mut pieces = selection.pieces(&entry);
        let (_, _, size) = pieces.find(|(start, end, _)| *start <= moment && moment < *end)?;
        Some((entry, size))
    });
    let mut load = 0_u64;
    let buffers = live.take(count).map(|(entry, size)| {
        load += rounded(size);
        selection.member_at(&entry, moment, size)
    });
    Some(Conflict {
        space: selection.number,
        moment: Some(moment),
        buffers: buffers.collect(),
        bytes: needs(load),
        smallest: selection.is_plain,
    })
}

/// Sums of prefixes, and how many entries they have.
struct Sums {
    sums: Vec<(u64, usize)>,
    total: u64,
}

impl Sums {
    fn new(len: usize) -> Self {
        Self {
            sums: vec![(0, 0); len + 1],
            total: 0,
        }
    }

    fn add(&mut self, rank: usize, size: u64, starts: bool) {
        self.total = if starts {
            self.total + size
        } else {
            self.total - size
        };
        let mut at = rank + 1;
        while at < self.sums.len() {
            let (sum, count) = &mut self.sums[at];
            if starts {
                *sum += size;
                *count += 1;
            } else {
                *sum -= size;
                *count -= 1;
            }
            at += at & at.wrapping_neg();
        }
    }

    /// How many of the first entries are enough.
    fn first(&self, enough: impl Fn(u64) -> bool) -> Option<usize> {
        let (mut at, mut sum, mut count) = (0, 0, 0);
        let mut step = self.sums.len().next_power_of_two();
        while step > 0 {
            if at + step < self.sums.len() && !enough(sum + self.sums[at + step].0) {
                at += step;
                sum += self.sums[at].0;
                count += self.sums[at].1;
            }
            step /= 2;
        }
        (at + 1 < self.sums.len()).then_some(count + 1)
    }
}
