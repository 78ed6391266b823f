// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN205 as the `Trainer` of transformers has it: it joins the predictions of all batches on the device.

use std::collections::HashSet;

use tonnage_text::bytes;

use super::Found;
use super::case::{Case, Live, SHARE, at, is_kept};
use super::fixes::{Proposal, without};
use super::growth::EVALUATION;

/// The file in which the predictions are joined, and the function that joins those of one batch to the others.
const FILE: &str = "transformers/trainer_pt_utils.py";
const JOINS: &str = "torch_pad_and_concatenate";

/// Predictions that the trainer keeps until the evaluation is over, to hand them to `compute_metrics`.
pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let joined: HashSet<u32> = (0..)
        .zip(&case.track.blocks)
        .filter(|(_, block)| !is_kept(block) && is_joined(case, block.stack))
        .map(|(index, _)| index)
        .collect();
    let of = |live: &Live<'_>| joined.contains(&live.index);
    let blocks: Vec<Live<'_>> = case.unexplained().filter(of).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let place = case.largest_place(blocks.iter().map(|live| live.block));
    let headline = format!(
        "the `Trainer` keeps {} of predictions of the evaluation on the GPU",
        bytes(sum)
    );
    let sentence = format!(
        "{headline}, for `compute_metrics` ({}); they are there twice while those of a batch are joined to them",
        at(place.as_ref())
    );
    let advice = "have them moved to the host after each batch: `TrainingArguments(eval_accumulation_steps=1)`";
    let mut proposal = Proposal::new(EVALUATION.code, advice.to_owned(), "of joined predictions");
    proposal.paste = Some("eval_accumulation_steps=1".to_owned());
    Some(
        Found::exact(EVALUATION, sum, headline, sentence)
            .with_place(place)
            .with_fixes(without(case, proposal, &joined))
            .with_claims_of(&blocks)
            .into_mistake(),
    )
}

fn is_joined(case: &Case<'_>, stack: Option<tonnage_recording::StackId>) -> bool {
    stack.is_some_and(|stack| {
        let mut frames = case.stacks().frames(stack);
        frames.any(|frame| frame.function == JOINS && frame.file.ends_with(FILE))
    })
}
