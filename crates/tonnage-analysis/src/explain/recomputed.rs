// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN220: one call of `checkpoint` covers many layers, which the backward pass computes again all at once.

use tonnage_text::bytes;

use super::activations::names;
use super::case::{Bound, Case, LARGE_SHARE, Live, at, counted, is_kept};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, bounded};
use super::{Found, repeats};
use crate::holdings::{Holding, Phase, Place, is_users};

/// Layers of one checkpoint.
pub const RECOMPUTED: Code = code(
    "TN220",
    "one checkpoint computes many layers again at once",
    "`torch.utils.checkpoint` keeps only what a function is given, and calls it again in the backward pass. Around a whole
model, the second call makes the activations of all layers before the first of them is used: the forward pass keeps
nothing, and the backward pass has as much as without checkpointing.

Recognised by: blocks that `torch.utils.checkpoint` made in a backward pass hold at least a quarter of the peak, and
belong to three or more repeated blocks of the model.
Fix: checkpoint each repeated block instead of the model. Then the forward pass keeps the outputs of the blocks,
and the backward pass computes one of them at a time. The remaining memory is computed from the recording.",
);

/// So many repeated blocks at once are many.
const MANY: usize = 3;

fn is_recomputed(case: &Case<'_>, block: &Holding) -> bool {
    block.phase == Phase::Backward && !is_kept(block) && case.is_recomputed(block.stack)
}

/// The rows at which backward passes themselves make something, in order.
fn taken_back(case: &Case<'_>) -> Vec<u32> {
    let made = case.track.blocks.iter();
    let own = |block: &&Holding| block.phase == Phase::Backward && !case.is_recomputed(block.stack);
    made.filter(own).map(|block| block.born).collect()
}

/// Whether what was computed again is there when the backward pass goes on, and no temporary memory of the computation.
fn is_kept_again(case: &Case<'_>, taken_back: &[u32], block: &Holding) -> bool {
    let next = taken_back.partition_point(|&row| row <= block.born);
    let next = taken_back.get(next);
    is_recomputed(case, block) && next.is_some_and(|&row| row < block.died)
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let blocks: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| is_recomputed(case, live.block))
        .collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, LARGE_SHARE) {
        return None;
    }
    let taken_back = taken_back(case);
    let units = repeats::find_among(case, |block| is_kept_again(case, &taken_back, block))?;
    let number = units.alive(case);
    if number < MANY || units.families.is_empty() {
        return None;
    }
    let place = called_at(case);
    let line = at(place.as_ref());
    let layers = counted(number, "repeated block", "repeated blocks");
    let which = names(&units.families);
    let headline = format!(
        "{} of {layers} are computed again at once, in one `checkpoint` at {line}",
        bytes(sum)
    );
    let all = number == units.in_pass(case);
    let rest = if all {
        ", as much as without checkpointing"
    } else {
        ""
    };
    let sentence = format!(
        "the `checkpoint` at {line} covers {layers} {which}: the backward pass has {} of them at once{rest}",
        bytes(sum)
    );
    Some(
        Found::exact(RECOMPUTED, sum, headline, sentence)
            .with_place(place)
            .with_fixes(each(case, &units, &line))
            .with_claims_of(&blocks),
    )
}

/// The user's line that calls `checkpoint`: the second call, in the backward pass, does not come from it.
fn called_at(case: &Case<'_>) -> Option<Place> {
    let made = case.track.blocks.iter().rev();
    let mut made = made.filter(|block| block.phase == Phase::Forward && block.born <= case.row);
    made.find_map(|block| {
        let frames: Vec<_> = case.stacks().frames(block.stack?).collect();
        let outermost = frames
            .iter()
            .rposition(|frame| frame.file.ends_with("torch/utils/checkpoint.py"))?;
        let frame = frames[outermost..]
            .iter()
            .find(|frame| is_users(frame.file))?;
        Some(Place {
            file: frame.file.to_owned(),
            line: frame.line,
            function: frame.function.to_owned(),
        })
    })
}

fn each(case: &Case<'_>, units: &repeats::Repeats, line: &str) -> Option<Fix> {
    let advice = format!(
        "checkpoint each of {} instead of all at once at {line}: \
         `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`",
        names(&units.families)
    );
    let mut proposal = Proposal::new(RECOMPUTED.code, advice, "computed one after the other");
    // The temporary memory of the second computation is not among the blocks that are kept.
    proposal.estimate = true;
    bounded(case, proposal, |bound, index, block| {
        // The outputs would be kept from the forward pass on.
        if bound == Bound::Most && units.is_output(index) {
            return vec![(case.pass_begin(block.born), block.died, block.bytes)];
        }
        let mut lifetimes = units.checkpointed(index, block);
        if bound == Bound::Least {
            lifetimes.truncate(1);
        }
        lifetimes
    })
}
