// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN206: the tensors of a checkpoint are on the device beside those of the model.

use tonnage_text::bytes;

use super::Found;
use super::case::{Case, Live, SHARE, at, is_kept, most_named};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged};
use crate::holdings::Phase;

/// Saving or loading.
pub const CHECKPOINT_FILE: Code = code(
    "TN206",
    "saving or loading makes the peak",
    "While a checkpoint is read or written, its tensors are on the device beside those of the model.

Recognised by: blocks made inside `torch.load` or `torch.save` hold at least a tenth of the peak.
Fix: `torch.load(..., map_location=\"cpu\")`, or `mmap=True`. The peak without these blocks is computed from the
recording.",
);

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let made = |live: &Live<'_>| live.block.phase == Phase::Save && !is_kept(live.block);
    let blocks: Vec<Live<'_>> = case.unexplained().filter(made).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let place = case.largest_place(blocks.iter().map(|live| live.block));
    let line = at(place.as_ref());
    let held = most_named(&blocks).filter(|held| held.is_named());
    let sentence = match held {
        Some(held) => format!(
            "{} ({}) still holds {} of a checkpoint that was read at {line}, beside the model's own tensors",
            held.describe_holder(),
            at(held.place.as_ref()),
            bytes(sum),
        ),
        None => format!(
            "{} was allocated while a checkpoint was read or written at {line}, beside the model's own tensors",
            bytes(sum),
        ),
    };
    let advice = format!("read the checkpoint at {line} with `map_location=\"cpu\"`");
    let proposal = Proposal::new(
        CHECKPOINT_FILE.code,
        advice,
        "made by reading or writing it",
    );
    let fix = computed(case, proposal, |_, block| {
        // A tensor that became part of the model, as a state of the optimizer does on the same device, is copied there
        // in its place.
        if block.phase == Phase::Save && !is_kept(block) {
            sized(block, 0)
        } else {
            unchanged(block)
        }
    });
    let headline = format!("{} of a checkpoint at {line}", bytes(sum));
    Some(
        Found::exact(CHECKPOINT_FILE, sum, headline, sentence)
            .with_place(place)
            .with_holder(held)
            .with_fixes(fix)
            .with_claims_of(&blocks),
    )
}
