// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN218: a pipeline keeps the outputs of all micro-batches on its last stage, and joins them.
//!
//! Schedules of `torch.distributed.pipelining` return what the last stage computed unless an argument disables it.
//! Training needs the losses only.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use tonnage_recording::StackId;
use tonnage_text::bytes;

use super::Found;
use super::case::{Case, Live, SHARE, at, counted};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged, until};
use crate::holdings::Holding;

/// Outputs of a pipeline.
pub const OUTPUTS: Code = code(
    "TN218",
    "a pipeline keeps its outputs",
    "A schedule of `torch.distributed.pipelining` returns the outputs of the whole batch. The last stage keeps the output
of every micro-batch for that, and joins them at the end of the step: for a language model these are the logits of all
micro-batches, twice. Training needs the losses only.

Recognised by: blocks that the schedule joined, and outputs of micro-batches that are alive until then or that the stage
keeps.
Fix: `schedule.step(…, return_outputs=False)`, which newer versions of PyTorch have. The peak without what is
kept and joined is computed from the recording.",
);

/// The function that runs a micro-batch through a stage.
const RUNS: &str = "forward_one_chunk";
/// The function that joins the outputs.
const JOINS: &str = "merge_chunks";
/// Where the stage keeps them.
const KEPT: &str = "output_chunks";

/// Whether a block is of a micro-batch that a pipeline's stage runs: how many are in flight is the schedule's choice.
pub(super) fn is_in_flight(case: &Case<'_>, block: &Holding) -> bool {
    case.has_function(block.stack, &[RUNS])
}

/// Blocks by the stacks that made them.
struct Made {
    runs: HashSet<StackId>,
    joins: HashSet<StackId>,
}

impl Made {
    fn find(case: &Case<'_>) -> Self {
        let stacks: HashSet<StackId> = case
            .track
            .blocks
            .iter()
            .filter_map(|block| block.stack)
            .collect();
        let with = |name: &str| {
            let found = stacks.iter().copied();
            found
                .filter(|&stack| case.has_function(Some(stack), &[name]))
                .collect()
        };
        Self {
            runs: with(RUNS),
            joins: with(JOINS),
        }
    }

    fn runs(&self, block: &Holding) -> bool {
        block.stack.is_some_and(|stack| self.runs.contains(&stack))
    }

    fn joins(&self, block: &Holding) -> bool {
        block.stack.is_some_and(|stack| self.joins.contains(&stack))
    }
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let made = Made::find(case);
    let mut joined: Vec<u32> = case
        .track
        .blocks
        .iter()
        .filter(|block| made.joins(block))
        .map(|block| block.born)
        .collect();
    joined.sort_unstable();
    // Activations of a micro-batch are gone when the outputs are joined, after the last backward pass.
    let is_output = |block: &Holding| {
        let next = joined.get(joined.partition_point(|&row| row < block.born));
        made.runs(block) && next.is_some_and(|&row| block.alive_at(row))
    };
    let kept_by_stage = |live: &Live<'_>| live.held.is_some_and(|held| held.name.ends_with(KEPT));
    let (parts, outputs): (Vec<Live<'_>>, Vec<Live<'_>>) = case
        .unexplained()
        .filter(|live| made.joins(live.block) || is_output(live.block) || kept_by_stage(live))
        .partition(|live| made.joins(live.block));
    let sum_of = |blocks: &[Live<'_>]| blocks.iter().map(|live| live.block.bytes).sum::<u64>();
    let (kept, both) = (sum_of(&outputs), sum_of(&outputs) + sum_of(&parts));
    if outputs.is_empty() || !case.is_large(both, SHARE) {
        return None;
    }
    let place = case
        .largest_place(parts.iter().map(|live| live.block))
        .or_else(|| case.largest_place(outputs.iter().map(|live| live.block)));
    let mut sentence = format!(
        "the schedule keeps {} of the last stage, {}",
        counted(outputs.len(), "output", "outputs"),
        bytes(kept)
    );
    if !parts.is_empty() {
        let _ = write!(
            sentence,
            ", and joins them to {} at {}",
            bytes(sum_of(&parts)),
            at(place.as_ref())
        );
    }
    // A micro-batch keeps its output until its backward pass has taken back the rest of it.
    let mut over: BTreeMap<usize, u32> = BTreeMap::new();
    for block in &case.track.blocks {
        if made.runs(block) && block.died != Holding::ALIVE && !is_output(block) {
            let end = over.entry(case.pass_of(block.born)).or_default();
            *end = block.died.max(*end);
        }
    }
    let here: HashSet<u32> = outputs.iter().map(|live| live.index).collect();
    let advice = "call the schedule's `step` with `return_outputs=False`".to_owned();
    let proposal = Proposal::new(OUTPUTS.code, advice, "of outputs");
    let fix = computed(case, proposal, |index, block| {
        if made.joins(block) {
            return sized(block, 0);
        }
        if !is_output(block) && !index.is_some_and(|index| here.contains(&index)) {
            return unchanged(block);
        }
        let end = over.get(&case.pass_of(block.born)).copied();
        until(block, end.unwrap_or_else(|| case.pass_end(block.born)))
    });
    let headline = format!("{} of outputs of all micro-batches", bytes(both));
    Some(
        Found::exact(OUTPUTS, both, headline, sentence)
            .with_place(place)
            .with_holder(outputs.first().and_then(|live| live.held))
            .with_fixes(fix)
            .with_claims(outputs.iter().chain(&parts).map(|live| live.index))
            .into_mistake(),
    )
}
