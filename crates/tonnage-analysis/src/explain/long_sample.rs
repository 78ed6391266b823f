// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN202: one pass needs much more than the others of its sort.

use std::collections::BTreeMap;

use tonnage_text::bytes;

use super::Found;
use super::case::{Case, PASSES, SHARE, at, is_kept, pass_of};
use super::codes::{Code, code};
use super::fixes::{Proposal, peak_before, promise};
use crate::holdings::{Category, Holding, Holdings, Phase};

/// One large sample or batch.
pub const LONG_SAMPLE: Code = code(
    "TN202",
    "one large sample or batch makes the peak",
    "One pass needs much more than the others, because its batch is larger or longer. Jobs then die after hours, at the
first such sample.

Recognised by: what one pass makes and holds at its own peak is at least 1.3 times the most that any other pass makes
which runs the same line, and so is what its forward pass alone makes: what only its backward pass makes more of is
not a larger batch.
Fix: cap or bucket lengths, batch by tokens, split the large batch. The peak of the other passes is in the
recording.",
);

/// How much more than any other a pass must make.
const LONG: f64 = 1.3;

/// The memory that a pass makes and holds at its own peak, without what programs keep: for each pass its
/// bytes and its peak.
fn passes(track: &Holdings, until: u32, of: impl Fn(&Holding) -> bool) -> Vec<(u64, u64)> {
    let mut changes: Vec<(u32, i64, bool)> = Vec::new();
    for block in track.blocks.iter().filter(|block| of(block)) {
        // A checkpoint that is written or read between two passes is not part of the one before it.
        let own = !is_kept(block)
            && !matches!(
                block.phase,
                Phase::Step | Phase::Load | Phase::Save | Phase::Other
            );
        changes.push((block.born, block.bytes.cast_signed(), own));
        if block.died != Holding::ALIVE {
            let died_in_pass = pass_of(track, block.died) == pass_of(track, block.born);
            changes.push((block.died, -block.bytes.cast_signed(), own && died_in_pass));
        }
    }
    changes.sort_unstable();
    let mut result = vec![(0, 0); track.passes.len()];
    let (mut all, mut own, mut pass) = (0_i64, 0_i64, 0);
    for (row, change, is_own) in changes {
        if row > until {
            break;
        }
        let now = pass_of(track, row);
        if now != pass {
            own = 0;
            pass = now;
        }
        all += change;
        if is_own {
            own += change;
        }
        if let Some(entry) = now.checked_sub(1).and_then(|index| result.get_mut(index)) {
            entry.0 = entry.0.max(own.max(0).cast_unsigned());
            entry.1 = entry.1.max(all.max(0).cast_unsigned());
        }
    }
    result
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let track = case.track;
    let here = case.pass_of(case.row).checked_sub(1)?;
    let phase = track.phase_at(*track.passes.get(here)?)?.phase;
    let until = if case.failed { case.row } else { u32::MAX - 1 };
    let all = passes(track, until, |_| true);
    let of_pass = |block: &&Holding| case.pass_of(block.born) == here + 1 && !is_kept(block);
    let place = case.largest_place(case.unexplained().map(|live| live.block).filter(of_pass))?;
    // Only passes of the same sort that run the same line can be compared: a decoder behind a
    // loop of another model is not a long sample of it.
    let mut runs_it = vec![false; all.len()];
    let mut seen = BTreeMap::new();
    for block in &track.blocks {
        let Some(index) = case.pass_of(block.born).checked_sub(1) else {
            continue;
        };
        runs_it[index] |= *seen
            .entry(block.stack)
            .or_insert_with(|| case.site(block).as_ref() == Some(&place));
    }
    // Nor is a pass whose backward pass makes the peak longer than those that have none.
    let back = case.phase() == Phase::Backward;
    let same = |index: &usize| {
        let from = track.passes[*index];
        runs_it[*index]
            && (!back || case.goes_back(from))
            && track.phase_at(from).is_some_and(|span| span.phase == phase)
    };
    let others: Vec<usize> = (0..all.len())
        .filter(|index| *index != here && all[*index].0 > 0)
        .filter(same)
        .collect();
    if others.len() + 1 < PASSES {
        return None;
    }
    let largest_of = |passes: &[(u64, u64)]| others.iter().map(|&index| passes[index].0).max();
    let is_long = |own: u64, largest: u64| own as f64 >= LONG * largest as f64;
    let (own, largest) = (all[here].0, largest_of(&all)?);
    let more = own.saturating_sub(largest);
    if !is_long(own, largest) || !case.is_large(more, SHARE) {
        return None;
    }
    // A gradient that is added to another one, for example, is made by the backward pass of a batch like all others.
    let forward = passes(track, until, |block| {
        matches!(block.phase, Phase::Forward | Phase::Eval)
    });
    if !is_long(forward[here].0, largest_of(&forward)?) {
        return None;
    }
    let times = own as f64 / largest.max(1) as f64;
    let headline = format!(
        "pass {} makes {}, {times:.1} times the most of any other",
        here + 1,
        bytes(own)
    );
    let sentence = format!(
        "pass {} makes {} itself, {times:.1} times the most of any of the {} others; most at {}",
        here + 1,
        bytes(own),
        others.len(),
        at(Some(&place)),
    );
    let found =
        Found::inferred(LONG_SAMPLE, more, headline, sentence).with_place(Some(place.clone()));
    let most_of_others = |passes: Vec<(u64, u64)>| {
        let others = passes.into_iter().enumerate();
        let others = others.filter(|(index, _)| *index != here);
        others.map(|(_, pass)| pass.1).max()
    };
    // A library may request less scratch memory where less is free.
    let is_workspace = |block: &Holding| block.category == Category::Workspaces;
    let least = most_of_others(passes(track, until, |block| !is_workspace(block)))?;
    let after = most_of_others(all)?;
    let advice = format!(
        "split or cap the large batch at {}, so that no pass makes more than the others",
        at(Some(&place))
    );
    let mut proposal = Proposal::new(
        LONG_SAMPLE.code,
        advice,
        "of the large pass above the others",
    );
    proposal.changes_result = true;
    let mut fix = promise(case, proposal, peak_before(case), least..=after);
    if let Some(fix) = &mut fix {
        // No replay of the other passes alone: only a sum that is too large is certain.
        fix.leave_open();
    }
    Some(found.with_fixes(fix).into_mistake())
}
