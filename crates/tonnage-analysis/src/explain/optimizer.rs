// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN204 and TN210: the optimizer's state and the copies of its step.

use std::collections::BTreeMap;

use tonnage_recording::StackId;
use tonnage_text::bytes;

use super::Found;
use super::case::{Case, SHARE, at, is_kept};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged};
use crate::holdings::{Category, Holding, Phase};

/// The optimizer.
pub const OPTIMIZER_STEP: Code = code(
    "TN204",
    "the optimizer makes the peak",
    "An optimizer makes its state at the first step, so that the second step starts higher than the first; and the default
implementation on lists of tensors makes temporary copies as large as all gradients.

Recognised by: the peak, or the failure, lies in the optimizer's step, or in the first pass after its state was made.
Only blocks made inside the step count as its copies.
Fix: `fused=True` or `foreach=False`, which make no temporary copies; an optimizer with a smaller state. The
peak without the temporary copies is computed from the recording.",
);

/// Checkpointing that cannot help.
pub const CHECKPOINTING: Code = code(
    "TN210",
    "gradient checkpointing cannot lower this peak",
    "Activations are recomputed already, and the peak lies elsewhere: in the optimizer's step, or in the loss.

Recognised by: blocks made inside `torch.utils.checkpoint`, and a peak in the optimizer's step.
Fix: as in the other findings; more checkpointing does not.",
);

/// Temporary blocks of an optimizer's step.
fn is_step_temporary(block: &Holding) -> bool {
    block.phase == Phase::Step && block.category != Category::OptimizerState && !is_kept(block)
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let state = case.sum_live(|block| block.category == Category::OptimizerState);
    let temporary = case.sum_live(is_step_temporary);
    let in_step = case.phase() == Phase::Step;
    let step = case.track.phase_at(case.row).map_or(0, |span| span.step);
    let first_after = case.failed && step == 1 && !in_step;
    let bytes_here = state + temporary;
    if !(in_step || first_after) || !case.is_large(bytes_here, SHARE) {
        return None;
    }
    let of =
        |block: &&Holding| is_step_temporary(block) || block.category == Category::OptimizerState;
    // State that was loaded was made elsewhere.
    let of_step = |block: &&Holding| block.phase == Phase::Step;
    let alive = case.alive().map(|live| live.block);
    let place = case
        .largest_place(alive.filter(of).filter(of_step))
        .or_else(|| case.largest_place(case.track.blocks.iter().filter(of_step)));
    let at_line = place
        .as_ref()
        .map_or_else(String::new, |place| format!(" at {}", at(Some(place))));
    let sentence = if in_step {
        let copies = match temporary {
            0 => String::new(),
            copies => format!(" and {} of temporary copies", bytes(copies)),
        };
        format!(
            "the optimizer's step{at_line} holds {} of state{copies}",
            bytes(state)
        )
    } else {
        format!(
            "the first step{at_line} left {} of optimizer state; the second starts that much higher",
            bytes(state),
        )
    };
    let headline = if temporary > 0 {
        format!(
            "{} of state and {} of copies",
            bytes(state),
            bytes(temporary)
        )
    } else {
        format!("{} of state", bytes(state))
    };
    let its_step = place.as_ref().map_or_else(String::new, |place| {
        format!(" (its step is at {})", at(Some(place)))
    });
    let found = Found::exact(OPTIMIZER_STEP, bytes_here, headline, sentence).with_place(place);
    let advice = format!("make the optimizer with `fused=True`{its_step}");
    let proposal = Proposal::new(
        OPTIMIZER_STEP.code,
        advice,
        "of temporary copies in the step",
    );
    let fix = computed(case, proposal, |_, block| {
        if is_step_temporary(block) && is_unfused(case, block) {
            sized(block, 0)
        } else {
            unchanged(block)
        }
    });
    let claims = case.alive().filter(|live| of(&live.block));
    Some(
        found
            .with_fixes(fix)
            .with_claims(claims.map(|live| live.index)),
    )
}

/// Whether an implementation of torch's own optimizers made the block that its fused one does not make.
fn is_unfused(case: &Case<'_>, block: &Holding) -> bool {
    block.stack.is_some_and(|stack| {
        case.stacks().frames(stack).any(|frame| {
            frame.file.contains("torch/optim/")
                && (frame.function.starts_with("_multi_tensor_")
                    || frame.function.starts_with("_single_tensor_"))
        })
    })
}

pub(super) fn checkpointing(case: &Case<'_>) -> Option<Found> {
    if case.phase() != Phase::Step {
        return None;
    }
    let mut seen: BTreeMap<Option<StackId>, bool> = BTreeMap::new();
    let mut recomputed = |stack: Option<StackId>| {
        *seen
            .entry(stack)
            .or_insert_with(|| case.is_recomputed(stack))
    };
    let mut blocks = case.track.blocks.iter();
    let block = blocks.find(|block| recomputed(block.stack))?;
    let activations = case.sum_live(|block| block.category == Category::Activations);
    let temporary = case.sum_live(is_step_temporary);
    let place = case.site(block);
    let alive = if activations == 0 {
        "none of them is".to_owned()
    } else {
        format!("only {} of them are", bytes(activations))
    };
    let sentence = format!(
        "activations are recomputed (from {}) and {alive} alive here: the peak is the optimizer's step",
        at(place.as_ref()),
    );
    // Ranked just behind the step itself, which is the cause.
    let mut found = Found::exact(CHECKPOINTING, temporary / 2, String::new(), sentence);
    found.finding.headline = None;
    Some(found.with_place(place))
}
