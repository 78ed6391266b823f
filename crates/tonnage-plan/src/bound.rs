// SPDX-License-Identifier: MIT OR Apache-2.0
//! What no plan can be below, and the smallest set of buffers that shows it.
//!
//! The bound is the fullest moment: everything that lives then needs bytes of its own. If the peak of a plan is as
//! low, the plan is optimal and the moment is the proof, which anyone can check by adding up. Alignment adds to it
//! what every buffer loses to its neighbour (all offsets are multiples of the common unit), except the topmost.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::family::View;
use crate::plan::Conflict;
use crate::problem::Space;

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
fn unit_among(unit: u64, space: &Space) -> u64 {
    let is_free = space.forbidden.iter().all(|range| range.start >= range.end);
    if is_free { unit } else { 1 }
}

/// Everything that lives, moment by moment.
fn sweep(view: &View<'_>, mut at: impl FnMut(i64, &[(u32, bool)])) {
    let mut events: Vec<(i64, bool, u32)> = Vec::new();
    for index in 0..view.len() {
        let head = view.head(index);
        let mut add = |start, end| {
            events.push((start, true, head));
            events.push((end, false, head));
        };
        view.each_piece(head, |start, end, _| add(start, end));
    }
    events.sort_unstable();
    let mut changes = Vec::new();
    let mut index = 0;
    while index < events.len() {
        let moment = events[index].0;
        changes.clear();
        while index < events.len() && events[index].0 == moment {
            changes.push((events[index].2, events[index].1));
            index += 1;
        }
        at(moment, &changes);
    }
}

/// The size of a head at a moment.
fn size_at(view: &View<'_>, head: u32, moment: i64) -> u64 {
    let mut found = 0;
    view.each_piece(head, |start, end, size| {
        if start <= moment && moment < end {
            found = size;
        }
    });
    found
}

/// The bound of shapes that are not all plain, or whose sizes are not all multiples of the unit.
pub(crate) fn bound(view: &View<'_>, space: &Space, unit: u64) -> Bound {
    let mut best = Bound::default();
    for index in 0..view.len() {
        let head = view.head(index);
        let top = view.fixed(head).unwrap_or(0) + view.hull(head).2;
        best.bytes = best.bytes.max(top);
    }
    let unit = unit_among(unit, space);
    let mut load = 0_u64;
    let mut now: BTreeMap<u32, u64> = BTreeMap::new();
    // What the topmost may keep: it needs no rounding.
    let mut spare: BTreeMap<u64, u32> = BTreeMap::new();
    sweep(view, |moment, changes| {
        // Ends come before starts in the order of events.
        for &(head, starts) in changes {
            if !starts && let Some(size) = now.remove(&head) {
                load -= size.next_multiple_of(unit);
                let over = size.next_multiple_of(unit) - size;
                if let Some(count) = spare.get_mut(&over) {
                    *count -= 1;
                    if *count == 0 {
                        spare.remove(&over);
                    }
                }
            }
        }
        for &(head, starts) in changes {
            if starts {
                let size = size_at(view, head, moment);
                now.insert(head, size);
                load += size.next_multiple_of(unit);
                *spare.entry(size.next_multiple_of(unit) - size).or_default() += 1;
            }
        }
        let most = spare.last_key_value().map_or(0, |(over, _)| *over);
        let needs = lift(load.saturating_sub(most), &space.forbidden);
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
/// A Fenwick tree over the buffers by size says at each moment how many of the largest are needed.
pub(crate) fn conflict(
    view: &View<'_>,
    number: usize,
    space: &Space,
    unit: u64,
) -> Option<Conflict> {
    let capacity = space.capacity?;
    let unit = unit_among(unit, space);
    let rounded = |size: u64| size.next_multiple_of(unit);
    let mut ranks: Vec<(u64, u32)> = (0..view.len())
        .map(|index| (view.hull(view.head(index)).2, view.head(index)))
        .collect();
    ranks.sort_unstable_by(|one, other| other.cmp(one));
    let rank: BTreeMap<u32, usize> = ranks
        .iter()
        .enumerate()
        .map(|(rank, entry)| (entry.1, rank))
        .collect();
    let mut sums = Sums::new(ranks.len());
    let mut now: BTreeMap<u32, u64> = BTreeMap::new();
    let mut best: Option<(usize, i64)> = None;
    let needs = |load: u64| lift(load.saturating_sub(unit - 1), &space.forbidden);
    sweep(view, |moment, changes| {
        for &(head, starts) in changes {
            if !starts && let Some(size) = now.remove(&head) {
                sums.add(rank[&head], rounded(size), false);
            }
        }
        for &(head, starts) in changes {
            if starts {
                let size = size_at(view, head, moment);
                now.insert(head, size);
                sums.add(rank[&head], rounded(size), true);
            }
        }
        if needs(sums.total) > capacity
            && let Some(count) = sums.first(|load| needs(load) > capacity)
            && best.is_none_or(|(least, _)| count < least)
        {
            best = Some((count, moment));
        }
    });
    let (count, moment) = best?;
    let mut live: Vec<(u64, u32)> = (0..view.len())
        .map(|index| view.head(index))
        .filter(|head| {
            let mut lives = false;
            view.each_piece(*head, |start, end, _| {
                lives |= start <= moment && moment < end;
            });
            lives
        })
        .map(|head| (size_at(view, head, moment), head))
        .collect();
    live.sort_unstable_by_key(|&(size, head)| {
        (
            std::cmp::Reverse(view.hull(head).2),
            std::cmp::Reverse(head),
            size,
        )
    });
    live.truncate(count);
    let load: u64 = live.iter().map(|(size, _)| rounded(*size)).sum();
    // Of a family the member that is as large then stands for all.
    let member = |size: u64, head: u32| {
        let family = view.families.get(&head);
        let members = family.map_or(std::slice::from_ref(&head), |family| {
            family.members.as_slice()
        });
        let found = members.iter().find(|member| {
            let buffer = view.problem.buffer(**member as usize);
            buffer.size == size && buffer.start <= moment && moment < buffer.end
        });
        *found.unwrap_or(&head) as usize
    };
    Some(Conflict {
        space: number,
        moment: Some(moment),
        buffers: live
            .iter()
            .map(|&(size, head)| member(size, head))
            .collect(),
        bytes: needs(load),
        smallest: view.is_plain(),
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
