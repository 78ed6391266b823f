// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN222: large tensors of the program's own, for the whole run or for a step.

use std::collections::{BTreeMap, BTreeSet};

use tonnage_text::bytes;

use super::Found;
use super::case::{
    Case, LARGE_SHARE, Live, at, counted, describe_shape, is_kept, is_kept_by, listed,
};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, computed, sized, unchanged, without};
use crate::holdings::{Category, HeldBy, Holding, Phase, Place};

/// Tensors of the program's own.
pub const OWN_TENSORS: Code = code(
    "TN222",
    "large tensors of the program's own",
    "Besides models, gradients and optimizers, the script keeps large tensors on the GPU: a replay buffer, a dataset, a
table, a memory bank, a mask. This may be intended, but their bytes count in full.

Recognised by: blocks made before the first pass of a model, or between passes, that no model, optimizer or pass made, are
alive in more than one pass and to the end, and hold at least a quarter of the peak. Or one tensor of a variable, made
outside all modules for one step, holds that much.
Fix: keep them on the host, in pinned memory, and move what a step uses; or a smaller type, such as uint8 for
pictures. The peak without them is computed from the recording.",
);

/// The most lines and names that a sentence lists.
const LISTED: usize = 3;

/// Searches a large tensor of a variable that the program makes for each step.
pub(super) fn of_step(case: &Case<'_>) -> Option<Found> {
    let is_own = |live: &Live<'_>| {
        matches!(live.block.phase, Phase::Load | Phase::Other)
            && live.block.module.is_none()
            && !is_kept(live.block)
            && live
                .held
                .is_some_and(|held| held.is_named() && !held.in_library && !is_kept_by(Some(held)))
    };
    let largest = case.unexplained().filter(is_own);
    let largest = largest.max_by_key(|live| live.block.bytes)?;
    let held = largest
        .held
        .filter(|_| case.is_large(largest.block.bytes, LARGE_SHARE))?;
    let place = case.site(largest.block);
    let headline = format!(
        "{} holds {}",
        held.describe_holder(),
        bytes(largest.block.bytes)
    );
    let sentence = format!(
        "{headline} in one tensor{}, made at {}",
        describe_shape(&[largest], ""),
        at(place.as_ref())
    );
    Some(
        Found::exact(OWN_TENSORS, largest.block.bytes, headline, sentence)
            .with_place(place.clone())
            .with_holder(Some(held))
            .with_fixes(without_one(case, largest, held, place.as_ref()))
            .with_claims_of(&[largest]),
    )
}

/// Computes the peak without a tensor that the program makes for each step, as a bound of what a smaller one saves.
fn without_one(
    case: &Case<'_>,
    live: Live<'_>,
    held: &HeldBy,
    made: Option<&Place>,
) -> Option<Fix> {
    if let Some(fix) = in_float32(case, &[live]) {
        return Some(fix);
    }
    let advice = format!(
        "make {} smaller at {}: a view that broadcasts, a smaller type, or a part of it at a time",
        held.describe_holder(),
        at(made)
    );
    let mut proposal = Proposal::new(OWN_TENSORS.code, advice, "if all of it could go");
    proposal.estimate = true;
    let line = (live.block.stack, live.block.module, live.block.requested);
    let mut fix = computed(case, proposal, |_, block| {
        if (block.stack, block.module, block.requested) == line && !is_kept(block) {
            sized(block, 0)
        } else {
            unchanged(block)
        }
    })?;
    fix.leave_open();
    Some(fix)
}

/// Computes the peak with tensors in float32 that are float64, if all of the blocks are.
fn in_float32(case: &Case<'_>, blocks: &[Live<'_>]) -> Option<Fix> {
    let is_double = |live: &&Live<'_>| {
        let shape = live.held.and_then(|held| held.shape.as_ref());
        shape.is_some_and(|shape| shape.starts_with("float64["))
    };
    let doubles: Vec<Live<'_>> = blocks.iter().filter(is_double).copied().collect();
    let sum = |blocks: &[Live<'_>]| -> u64 { blocks.iter().map(|live| live.block.bytes).sum() };
    if sum(&doubles) * 10 < sum(blocks) * 9 {
        return None;
    }
    let names: BTreeSet<String> = doubles
        .iter()
        .filter_map(|live| live.held)
        .map(HeldBy::describe_holder)
        .collect();
    let names = listed(names.into_iter().take(LISTED));
    let advice =
        format!("convert {names} to float32 before the copy to the GPU, if float64 is not needed");
    let mut proposal = Proposal::new(OWN_TENSORS.code, advice, "of float64, a half of it");
    proposal.changes_result = true;
    let indices: BTreeSet<u32> = doubles.iter().map(|live| live.index).collect();
    computed(case, proposal, |index, block| {
        if index.is_some_and(|index| indices.contains(&index)) {
            sized(block, block.bytes / 2)
        } else {
            unchanged(block)
        }
    })
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    // Without a model, all tensors are the script's own.
    let last = *case.track.passes.last()?;
    let is_own = |live: &Live<'_>| {
        let block = live.block;
        matches!(block.phase, Phase::Load | Phase::Other)
            && matches!(block.category, Category::Other | Category::Activations)
            && !is_kept(block)
            && !is_kept_by(live.held)
            && block.born < last
            && (block.died == Holding::ALIVE || block.died > last)
            && case.next_pass(block.born) < case.row
    };
    let blocks: Vec<Live<'_>> = case.unexplained().filter(is_own).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, LARGE_SHARE) {
        return None;
    }
    let mut names: BTreeMap<&HeldBy, u64> = BTreeMap::new();
    let mut places: BTreeMap<Place, u64> = BTreeMap::new();
    for live in &blocks {
        if let Some(held) = live.held.filter(|held| held.is_named()) {
            *names.entry(held).or_default() += live.block.bytes;
        }
        if let Some(place) = case.site(live.block) {
            *places.entry(place).or_default() += live.block.bytes;
        }
    }
    let held = names.iter().max_by_key(|(_, sum)| **sum);
    let held = held.map(|(held, _)| *held);
    let lines: Vec<String> = places
        .keys()
        .take(LISTED)
        .map(|place| at(Some(place)))
        .collect();
    let made = if lines.is_empty() {
        String::new()
    } else {
        format!(" made at {}", listed(lines))
    };
    let said: BTreeSet<String> = names.keys().map(|held| held.describe_holder()).collect();
    let said = listed(said.into_iter().take(LISTED));
    let tensors = counted(blocks.len(), "tensor", "tensors");
    let hold = if blocks.len() == 1 { "holds" } else { "hold" };
    let by = if said.is_empty() {
        String::new()
    } else {
        format!(" ({said})")
    };
    let headline = format!("{tensors}{made} {hold} {}{by}", bytes(sum));
    let shape = describe_shape(&blocks, "the largest ");
    let sentence = format!("{headline} for the whole run{shape}");
    let what = if said.is_empty() {
        format!("the {tensors}{made}")
    } else {
        said
    };
    let advice =
        format!("keep {what} on the host and move what a step uses, or use a smaller type for it");
    let mut proposal = Proposal::new(OWN_TENSORS.code, advice, "that would be on the host");
    // The recording does not show which part a step uses.
    proposal.estimate = true;
    let mut fix = without(
        case,
        proposal,
        &blocks.iter().map(|live| live.index).collect(),
    );
    if let Some(fix) = &mut fix {
        fix.leave_open();
    }
    let fix = in_float32(case, &blocks).or(fix);
    let place = places.into_iter().max_by_key(|(_, sum)| *sum);
    Some(
        Found::exact(OWN_TENSORS, sum, headline, sentence)
            .inferred_unless(held.is_some())
            .with_place(place.map(|(place, _)| place))
            .with_holder(held)
            .with_fixes(fix)
            .with_claims_of(&blocks),
    )
}
