// SPDX-License-Identifier: MIT OR Apache-2.0
//! Large-neighbourhood improvement: plans a window of time anew and leaves everything else where it is.
//!
//! A dive that misses its target misses it in few places, and starting over loses what was good elsewhere. Around an
//! item that lies too high everything that lives only there is taken out and planned again below the goal, among what
//! crosses the window and stays. The goal comes down in steps, so that every step is an answer; windows that do not
//! help grow.

use crate::flexible::{Flexible, Piece, Shape};
use crate::options::Clock;
use crate::random::Random;
use crate::rigid::Item;

/// Items that a window may free: what the flexible engine plans in some milliseconds.
const MOST_FREE: usize = 160;

/// Items that may stay in a window; among more nothing can be moved.
const MOST_FIXED: usize = 2000;

/// Windows in a row that may fail before the neighbourhood is exhausted.
const MOST_FAILURES: u32 = 60;

/// Orders that are tried in a window.
const ORDERS: u64 = 24;

/// Lowers the peak of a plan towards the target; returns the new peak.
pub(crate) fn improve(
    items: &[Item],
    offsets: &mut [u64],
    target: u64,
    seed: u64,
    clock: &Clock<'_>,
    mut tell: impl FnMut(u64),
) -> u64 {
    // Items are sorted by start; the longest life bounds how far back one that reaches into a window can start.
    let top = |offsets: &[u64], index: usize| offsets[index] + items[index].size;
    let mut random = Random::new(seed);
    let mut peak = (0..items.len())
        .map(|index| top(offsets, index))
        .max()
        .unwrap_or(0);
    let mut failures = 0;
    while peak > target && failures < MOST_FAILURES {
        let goal = target + (peak - target) * 3 / 4;
        let mut too_high: Vec<usize> = (0..items.len())
            .filter(|index| top(offsets, *index) > goal)
            .collect();
        while !too_high.is_empty() && failures < MOST_FAILURES {
            if clock.is_over() {
                return peak;
            }
            let pick = (random.unit() * too_high.len() as f32) as usize;
            let index = too_high[pick.min(too_high.len() - 1)];
            let share = (MOST_FREE >> (random.unit() * 3.0) as u32).max(8);
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
            tell(peak);
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
    let free: Vec<usize> = inside(from, to).take(MOST_FREE).collect();
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
        let crosses = item.start < to && from < item.end && (item.start < from || item.end > to);
        if crosses {
            if offsets[index] + item.size > goal || shapes.len() > MOST_FIXED {
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
