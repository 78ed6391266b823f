// SPDX-License-Identifier: MIT OR Apache-2.0
//! Large-neighbourhood improvement: plans a window of time anew and leaves everything else where it is.
//!
//! A dive that misses its target misses it in few places, and starting over loses what was good elsewhere. Around an
//! item that lies too high what lives only there is taken out and planned again below the goal, among what crosses the
//! window and stays. The goal comes down in steps, so that every step is an answer; windows that do not help grow.

use crate::flexible::{Flexible, Piece, Shape};
use crate::options::Clock;
use crate::random::Random;
use crate::rigid::Item;

/// Items that a window may free: what the flexible engine plans in some milliseconds.
const MAX_FREE: usize = 160;

/// Items that may stay in a window; among more nothing can be moved.
const MAX_FIXED: usize = 2000;

/// Windows in a row that may fail before the neighbourhood is exhausted.
const MAX_FAILURES: u32 = 60;

/// Orders that are tried in a window.
const ORDERS: u64 = 24;

/// Lowers the peak of a plan towards the target; returns the new peak.
pub(crate) fn improve(
    items: &[Item],
    offsets: &mut [u64],
    target: u64,
    seed: u64,
    clock: &Clock<'_>,
    mut report: impl FnMut(u64),
) -> u64 {
    // Items are sorted by start; the longest lifetime bounds how far back one that reaches into a window can start.
    let top = |offsets: &[u64], index: usize| offsets[index] + items[index].size;
    let mut random = Random::new(seed);
    let mut peak = (0..items.len())
        .map(|index| top(offsets, index))
        .max()
        .unwrap_or(0);
    let mut failures = 0;
    while peak > target && failures < MAX_FAILURES {
        let goal = target + (peak - target) * 3 / 4;
        let mut too_high: Vec<usize> = (0..items.len())
            .filter(|index| top(offsets, *index) > goal)
            .collect();
        while !too_high.is_empty() && failures < MAX_FAILURES {
            if clock.is_over() {
                return peak;
            }
            let pick = (random.unit() * too_high.len() as f32) as usize;
            let index = too_high[pick.min(too_high.len() - 1)];
            let share = (MAX_FREE >> (random.unit() * 3.0) as u32).max(8);
            if window(items, offsets, index, goal, share, &mut random, clock) {
                failures = 0;
                too_high.retain(|index| top(offsets, *index) > goal);
            } else {
                failures += 1;
            }
        }
        if too_high.is_empty() {
            peak = (0..items.len())
                .map(|index| top(offsets, index))
                .max()
                .unwrap_or(0);
            report(peak);
        }
    }
    peak
}

/// Plans the surroundings of an item anew; whether everything there now lies below the goal.
fn window(
    items: &[Item],
    offsets: &mut [u64],
    index: usize,
    goal: u64,
    most: usize,
    random: &mut Random,
    clock: &Clock<'_>,
) -> bool {
    // Grow around the item, more to one side or the other, until enough would be free.
    let (mut from, mut to) = (items[index].start, items[index].end);
    let mut reach = 1 + (to - from) / 2;
    let inside = |from: u32, to: u32| {
        let first = items.partition_point(|item| item.start < from);
        let last = items.partition_point(|item| item.start < to);
        (first..last).filter(move |other| items[*other].end <= to)
    };
    loop {
        let left = (random.unit() * 2.0 * reach as f32) as u32;
        let right = (random.unit() * 2.0 * reach as f32) as u32;
        let wider = (from.saturating_sub(left), to.saturating_add(right));
        if inside(wider.0, wider.1).take(most + 1).count() > most || reach > 1 << 24 {
            break;
        }
        (from, to) = wider;
        reach *= 2;
    }
    let mut free: Vec<usize> = inside(from, to).collect();
    if free.len() > MAX_FREE {
        // More than can be moved live within the item's own lifetime: it and some of them move, the others stay.
        let at = free.partition_point(|other| *other < index);
        let first = at.saturating_sub((random.unit() * MAX_FREE as f32) as usize);
        let first = first.min(free.len() - MAX_FREE);
        free = free[first..first + MAX_FREE].to_vec();
    }
    let mut shapes: Vec<Shape> = Vec::with_capacity(free.len() * 2);
    let end = items[..]
        .iter()
        .map(|item| item.end)
        .max()
        .unwrap_or(0)
        .min(to);
    let piece = |item: &Item| Piece {
        start: item.start.max(from) - from,
        end: item.end.min(end) - from,
        size: item.size,
    };
    for &index in &free {
        shapes.push(Shape {
            pieces: vec![piece(&items[index])],
            alignment: 1,
            fixed: None,
        });
    }
    for (index, item) in items.iter().enumerate() {
        let stays = item.start < to && from < item.end && free.binary_search(&index).is_err();
        if stays {
            if offsets[index] + item.size > goal || shapes.len() > MAX_FIXED {
                return false;
            }
            shapes.push(Shape {
                pieces: vec![piece(item)],
                alignment: 1,
                fixed: Some(offsets[index]),
            });
        }
    }
    let flexible = Flexible {
        shapes: &shapes,
        sections: end - from,
        forbidden: &[],
    };
    let found = flexible.solve(goal, ORDERS, random.next(), false, true, clock);
    if found.peak > goal {
        return false;
    }
    for (&index, &offset) in free.iter().zip(&found.offsets) {
        offsets[index] = offset;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_window_cannot_free_stays_and_is_not_forgotten() {
        // Within the long lifetime are twice as many as a window frees.
        let count = 2 * MAX_FREE as u32;
        let item = |start, end, size| Item { start, end, size };
        let mut items = vec![item(0, count, 10)];
        items.extend((0..count).map(|start| item(start, start + 1, 5)));
        let mut offsets = vec![0; items.len()];
        offsets[0] = 1000;
        let peak = improve(&items, &mut offsets, 15, 1, &Clock::never(), |_| {});
        assert_eq!(peak, 15);
        let long = offsets[0]..offsets[0] + 10;
        for (item, offset) in items.iter().zip(&offsets).skip(1) {
            let clear = offset + item.size <= long.start || long.end <= *offset;
            assert!(
                clear,
                "{item:?} at {offset} lies on the long one at {long:?}"
            );
        }
    }
}
