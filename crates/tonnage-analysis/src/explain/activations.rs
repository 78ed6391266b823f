// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN213: what the forward pass keeps for the backward pass makes the peak.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tonnage_text::bytes;

use super::case::{Bound, Case, LARGE_SHARE, Live, SHARE, at, counted, is_kept, listed};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, bounded, unchanged, until};
use super::{Found, graphs, repeats};
use crate::holdings::{Category, HeldBy, Phase, Place, Sort};

/// So many families of modules are named.
const NAMES: usize = 4;

/// Activations.
pub const ACTIVATIONS: Code = code(
    "TN213",
    "activations make the peak",
    "The forward pass keeps its intermediate results until the backward pass has used them. They grow with the batch and
the length, and with the number of layers.

Recognised by: blocks made in the forward pass and kept for the backward pass hold at least a quarter of the peak. A
tensor of a variable that no graph has saved is not one of them, such as the argument of `backward(gradient=…)`.
Fix: checkpoint each repeated block (`torch.utils.checkpoint`): its inner results are computed again in the
backward pass, for about a third more compute. The remaining memory is computed from the recording: the outputs of all
blocks, and everything of the one at work. If the losses of several micro-batches are summed before one `backward()`,
call it for each of them instead: the gradients are the same. That is proposed only if every pass runs the same model on
its own inputs and leaves a number behind, as a loss is. Two encoders whose outputs meet in one loss leave none, and
a layer that is given the result of another is a part of the same pass.",
);

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let is_activation = |live: &Live<'_>| {
        live.block.category == Category::Activations
            && !is_kept(live.block)
            && !is_collected(case, live)
            && !case.is_unused(live.index)
            && !live.held.is_some_and(|held| held.unsaved)
    };
    let blocks: Vec<Live<'_>> = case.unexplained().filter(is_activation).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, LARGE_SHARE) {
        return None;
    }
    let made = case.largest_place(blocks.iter().map(|live| live.block));
    let waiting = waiting(case, &blocks);
    let mut fixes = Vec::new();
    let mut headline = format!("{} kept for the backward pass", bytes(sum));
    let mut place = made.clone();
    if let Some((passes, held)) = &waiting {
        let of = counted(passes.len(), "forward pass", "forward passes");
        headline = format!("{headline}, of {of} at once");
        place = held.and_then(|held| held.place.clone()).or(place);
        let mut earlier = passes.iter().rev().skip(1);
        if earlier.all(|&pass| case.leaves_number(pass)) {
            fixes.extend(backward_each(case, place.as_ref()));
        }
    }
    let units = repeats::find(case);
    let mut sentence = format!(
        "{} in {} is kept for the backward pass, most made at {}",
        bytes(sum),
        counted(blocks.len(), "block", "blocks"),
        at(made.as_ref()),
    );
    let checkpoint = units
        .as_ref()
        .and_then(|units| checkpoint(case, units, made.as_ref()));
    // Parts that keep nothing but their outputs, such as the layers of a perceptron, are not blocks.
    if let Some(units) = units.as_ref().filter(|_| checkpoint.is_some()) {
        let number = units.alive(case);
        let number = counted(number, "repeated block", "repeated blocks");
        let _ = write!(sentence, " in {number}");
        if !units.families.is_empty() {
            let _ = write!(sentence, " {}", names(&units.families));
        }
    }
    if let Some((passes, _)) = &waiting {
        let _ = write!(
            sentence,
            "; they belong to {} at once",
            counted(passes.len(), "forward pass", "forward passes")
        );
    }
    fixes.extend(checkpoint);
    let found = Found::exact(ACTIVATIONS, sum, headline, sentence)
        .inferred_unless(case.track.phases_told)
        .with_place(place)
        .with_holder(waiting.and_then(|(_, held)| held));
    Some(found.with_fixes(fixes).with_claims_of(&blocks))
}

/// Whether the program made it after a pass and has it in a container, as batches that are loaded ahead: no backward
/// pass takes it back.
fn is_collected(case: &Case<'_>, live: &Live<'_>) -> bool {
    live.held.is_some_and(|held| held.sort.is_container())
        && live.block.born >= case.pass_end(live.block.born)
        && !graphs::is_used_later(case, live.block)
}

/// The passes of one model on different inputs of which results are kept for a backward pass, if several are, and what
/// holds them together.
fn waiting<'a>(
    case: &Case<'_>,
    blocks: &[Live<'a>],
) -> Option<(BTreeSet<usize>, Option<&'a HeldBy>)> {
    let used = |live: &&Live<'_>| graphs::is_used_later(case, live.block);
    let passes: BTreeSet<usize> = blocks
        .iter()
        .filter(used)
        .map(|live| case.pass_of(live.block.born))
        .collect();
    let models: BTreeSet<_> = passes.iter().map(|&pass| case.own_model(pass)).collect();
    if passes.len() < 2 || models.len() != 1 || models.contains(&None) {
        return None;
    }
    let bytes_of = |pass: usize| -> u64 {
        let of = blocks
            .iter()
            .filter(|live| case.pass_of(live.block.born) == pass);
        of.map(|live| live.block.bytes).sum()
    };
    let last = *passes.last()?;
    let earlier: u64 = passes
        .iter()
        .filter(|&&pass| pass != last)
        .map(|&pass| bytes_of(pass))
        .sum();
    let of_graph = |live: &&Live<'a>| live.held.is_some_and(|held| held.sort == Sort::Graph);
    let held = blocks.iter().find(of_graph).and_then(|live| live.held);
    case.is_large(earlier, SHARE).then_some((passes, held))
}

/// Each pass with its own backward pass: the blocks that it keeps go before the next one begins.
fn backward_each(case: &Case<'_>, place: Option<&Place>) -> Option<Fix> {
    let advice = format!(
        "call `backward()` for each micro-batch at {}, if none uses results of another: the gradients add up to the same",
        at(place)
    );
    let proposal = Proposal::new(ACTIVATIONS.code, advice, "of passes that wait");
    bounded(case, proposal, |bound, _, block| {
        let activation = block.category == Category::Activations && !is_kept(block);
        if activation && block.phase == Phase::Forward {
            return until(block, case.next_pass(block.born));
        }
        // The gradients of the passes before are there from the first one on.
        if bound == Bound::Most && block.category == Category::Gradients {
            return vec![(case.first_waiting(block.born), block.died, block.bytes)];
        }
        unchanged(block)
    })
}

/// `model[*].layers` of the family `*.layers`: the model itself is a sequence, and its parts have no names.
fn indexed(family: &str) -> String {
    let parts = family.split('.').take_while(|part| *part == "*").count();
    if parts == 0 {
        return family.to_owned();
    }
    format!("model{}{}", "[*]".repeat(parts), &family[2 * parts - 1..])
}

/// `` `layer3.*`, `layer2.*` and 2 more ``.
pub(super) fn names(families: &[String]) -> String {
    let names = families
        .iter()
        .take(NAMES)
        .map(|name| format!("`{}`", indexed(name)));
    let more = families.len().saturating_sub(NAMES);
    listed(names.chain((more > 0).then(|| format!("{more} more"))))
}

fn checkpoint(case: &Case<'_>, units: &repeats::Repeats, made: Option<&Place>) -> Option<Fix> {
    // It is done already.
    let mut stacks = case.track.blocks.iter().map(|block| block.stack);
    if stacks.any(|stack| case.is_recomputed(stack)) {
        return None;
    }
    let (inner, most, outputs) = units.at_moment(case);
    let number = units.alive(case);
    let which = if units.families.is_empty() {
        format!("each repeated block that {} runs", at(made))
    } else {
        format!("each of {}", names(&units.families))
    };
    let advice = format!(
        "checkpoint {which}: `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`"
    );
    let mut proposal = Proposal::new(ACTIVATIONS.code, advice, "computed again");
    // The temporary memory of the second computation is not among the blocks that are kept.
    proposal.estimate = true;
    let mut fix = bounded(case, proposal, |bound, index, block| {
        let mut lifetimes = units.checkpointed(index, block);
        // Recomputed blocks may come in parts, each gone before the next.
        if bound == Bound::Least {
            lifetimes.truncate(1);
        }
        lifetimes
    })?;
    fix.shown = format!(
        "{}; at this moment {} of {} would be computed again, leaving {} of outputs and at most {} of the one at work",
        fix.shown,
        bytes(inner),
        counted(number, "block", "blocks"),
        bytes(outputs),
        bytes(most),
    );
    Some(fix)
}

#[cfg(test)]
mod tests {
    use super::indexed;

    #[test]
    fn parts_of_a_sequence_are_named_by_their_index() {
        for (family, said) in [
            ("layers.*", "layers.*"),
            ("*", "model[*]"),
            ("*.*", "model[*][*]"),
            ("*.layers.*", "model[*].layers.*"),
        ] {
            assert_eq!(indexed(family), said);
        }
    }
}
