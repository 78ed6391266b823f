// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN221: a variable still has the result of the iteration before, although no code reads it any more.

use std::collections::{BTreeMap, HashSet};

use tonnage_recording::{StackId, TextId};
use tonnage_text::bytes;

use super::Found;
use super::case::{Bound, Case, Live, SHARE, at, is_kept};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, bounded, unchanged, until};
use super::graphs::is_used_later;
use crate::holdings::{HeldBy, Holding, LastResult, Phase};

/// The result of the iteration before.
pub const LAST_RESULT: Code = code(
    "TN221",
    "a variable keeps the result of the round before",
    "Python keeps what a variable refers to until the variable is assigned anew. In `out = model(x)` that is after the model
has returned: while it runs, the outputs of the round before are still there, beside everything that it makes. The same
holds for outputs of the last batch while a validation runs.

Recognised by: Python was queried for the holder of each block; in the source of the loop nothing reads the variable
before it is assigned anew; and the program is in another round already.
Fix: `del out` after the line that reads it last, or a function for the body of the loop, whose variables go when it
returns. The peak without what is kept is computed from the recording.",
);

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let kept: Vec<(Live<'_>, &LastResult)> = case
        .unexplained()
        .filter_map(|live| Some((live, of_earlier_round(case, &live)?)))
        .collect();
    let mut sums: BTreeMap<&HeldBy, (u64, &LastResult)> = BTreeMap::new();
    for (live, result) in &kept {
        let sum = sums.entry(live.held?).or_insert((0, *result));
        sum.0 += live.block.bytes;
    }
    let (held, (sum, result)) = sums.into_iter().max_by_key(|(_, (sum, _))| *sum)?;
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let blocks: Vec<Live<'_>> = kept
        .iter()
        .filter(|(live, _)| live.held == Some(held))
        .map(|(live, _)| *live)
        .collect();
    let line = at(held.place.as_ref());
    let headline = format!(
        "{} still keeps {} of the round before",
        held.describe_holder(),
        bytes(sum)
    );
    let read = at(Some(&result.read_at));
    let sentence = format!("{headline} (assigned at {line}); nothing reads it after {read}");
    Some(
        Found::exact(LAST_RESULT, sum, headline, sentence)
            .with_place(held.place.clone())
            .with_holder(Some(held))
            .with_fixes(deleted(case, &blocks, result))
            .with_claims_of(&blocks)
            .into_mistake(),
    )
}

/// The variable that keeps a block which was made in a round before.
fn of_earlier_round<'a>(case: &'a Case<'_>, live: &Live<'_>) -> Option<&'a LastResult> {
    let (block, held) = (live.block, live.held?);
    let of_pass = matches!(block.phase, Phase::Forward | Phase::Eval | Phase::Other);
    if !of_pass
        || is_kept(block)
        || is_used_later(case, block)
        || case.pass_of(block.born) == case.pass_of(case.row)
    {
        return None;
    }
    let assigned = held.place.as_ref()?;
    let mut results = case.track.last_results.iter();
    let result = results.find(|result| result.is(held))?;
    // The line of its function that the program has come to since: above the assignment, or below the last use.
    let later = case.track.blocks.iter();
    let later = later.filter(|other| other.born > block.born && other.born <= case.row);
    let mut later = later.filter(|other| case.pass_of(other.born) > case.pass_of(block.born));
    let is_next_round = |other: &Holding| {
        let function = result.function.as_deref().unwrap_or("<module>");
        let frames = other.stack.map(|stack| case.stacks().frames(stack));
        let mut frames = frames.into_iter().flatten();
        let here = frames.find(|frame| frame.file == assigned.file && frame.function == function);
        here.is_some_and(|here| {
            here.line < assigned.line
                || here.line > result.read_at.line
                || (here.line == assigned.line && case.went_back_between(block.born, other.born))
        })
    };
    later.any(is_next_round).then_some(result)
}

/// Deleted after its last use: with the round at the latest.
fn deleted(case: &Case<'_>, kept: &[Live<'_>], result: &LastResult) -> Option<Fix> {
    let advice = format!(
        "`del {}` after {}, which reads it last",
        result.variables,
        at(Some(&result.read_at))
    );
    let mut proposal = Proposal::new(LAST_RESULT.code, advice, "of the round before");
    proposal.paste = Some(format!("del {}", result.variables));
    // The same line leaves as much behind in every round.
    let lines: HashSet<(Option<StackId>, Option<TextId>, u64)> = kept
        .iter()
        .map(|live| (live.block.stack, live.block.module, live.block.requested))
        .collect();
    bounded(case, proposal, |bound, _, block| {
        let same = lines.contains(&(block.stack, block.module, block.requested));
        let stays = block.died > case.round_end(block.born, false);
        if !same || is_kept(block) || !stays || is_used_later(case, block) {
            return unchanged(block);
        }
        match bound {
            Bound::Least => until(block, case.pass_end(block.born)),
            Bound::Most => until(block, case.round_end(block.born, false)),
        }
    })
}
