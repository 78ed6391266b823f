// SPDX-License-Identifier: MIT OR Apache-2.0
//! One step of a recording.
//!
//! A step is what lies between two marks of ended steps, where a recording has them: of all steps the one that needs
//! most, since that is what memory must suffice for. Without marks a step is found by what repeats: the places in the
//! program that request, or the sizes where the recording has no stacks.

use std::ops::Range;

use super::problems::{Name, Step};

/// Requests that a step has at least; less repeats in any program.
const MIN_STEP: usize = 8;

/// Start, end, size and name of a block; an end that is not known yet is [`i64::MAX`].
pub(super) type Block = (i64, i64, u64, Name);

/// The step between marks that needs most at once; the last of several, since first ones warm up.
pub(super) fn fullest_step(list: &[Block], marks: &[i64]) -> Option<Step> {
    let mut changes: Vec<(i64, bool, u64)> = Vec::with_capacity(2 * list.len());
    for &(start, end, size, _) in list {
        changes.push((start, true, size));
        changes.push((end, false, size));
    }
    // An ending block makes room for a block that starts then.
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let mut live = 0_u64;
    let mut pass_until = |row: i64| {
        let (mut most, mut requests) = (live, 0);
        while let Some((_, starts, size)) = changes.next_if(|(at, _, _)| *at < row) {
            live = if starts {
                live.saturating_add(size)
            } else {
                live.saturating_sub(size)
            };
            most = most.max(live);
            requests += usize::from(starts);
        }
        (most, requests)
    };
    pass_until(marks.first()? + 1);
    let mut fullest: Option<(u64, Step)> = None;
    for pair in marks.windows(2) {
        let (first_row, end_row) = (pair[0] + 1, pair[1] + 1);
        let (most, requests) = pass_until(end_row);
        if requests > 0 && fullest.is_none_or(|(known, _)| most >= known) {
            let step = Step {
                first_row,
                end_row,
                requests,
                of_marked: marks.len() - 1,
            };
            fullest = Some((most, step));
        }
    }
    fullest.map(|(_, step)| step)
}

/// The last stretch of requests that is the same as the one before it.
///
/// Requests after the last step spoil the end of a recording, so several ends are tried. From an end the requests
/// are read backwards: the shortest period of the longest such stretch with at least two rounds is the step.
pub(super) fn find_step(list: &[Block], sites: &[u64], end: i64) -> Option<Step> {
    let requests: Vec<(i64, u64)> = list
        .iter()
        .zip(sites)
        .filter(|(block, _)| !matches!(block.3, Name::Before(_)))
        .map(|(block, site)| (block.0, *site))
        .collect();
    let sites: Vec<u64> = requests.iter().map(|(_, site)| *site).collect();
    let (_, period, cut) = longest_repeat(&sites)?;
    let row = |index: usize| requests.get(index).map_or(end, |request| request.0);
    Some(Step {
        first_row: row(cut - period),
        end_row: row(cut),
        requests: period,
        of_marked: 0,
    })
}

/// The requests that repeat, whole rounds of them and one past the last, and how many a round has.
pub(crate) fn repeated(sites: &[u64]) -> Option<(Range<usize>, usize)> {
    let (length, period, cut) = longest_repeat(sites)?;
    Some((cut - length / period * period..cut + 1, period))
}

/// Length, period and end of the longest stretch that repeats.
fn longest_repeat(sites: &[u64]) -> Option<(usize, usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    for share in [100, 98, 95, 90, 85, 80, 70, 60, 50] {
        let cut = sites.len() * share / 100;
        let site = |index: usize| sites[cut - 1 - index];
        // The longest border of each prefix of the reversed sequence.
        let mut border = vec![0_usize; cut];
        for index in 1..cut {
            let mut length = border[index - 1];
            while length > 0 && site(index) != site(length) {
                length = border[length - 1];
            }
            border[index] = length + usize::from(site(index) == site(length));
        }
        for index in (2 * MIN_STEP - 1..cut).rev() {
            let (length, period) = (index + 1, index + 1 - border[index]);
            if period >= MIN_STEP && length >= 2 * period {
                if best.is_none_or(|(longest, _, _)| length > longest) {
                    best = Some((length, period, cut));
                }
                break;
            }
        }
    }
    best
}
