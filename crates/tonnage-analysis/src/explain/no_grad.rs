// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN212: a model is evaluated with gradients on, and keeps activations that no backward pass will use.

use std::fmt::Write as _;

use tonnage_text::bytes;

use super::case::{Bound, Case, Live, SHARE, at, is_kept, most_named};
use super::codes::{Code, code};
use super::fixes::{Proposal, bounded, unchanged, until};
use super::{Found, graphs, repeats};
use crate::holdings::{HeldBy, Holding, Phase, Sort};

/// Evaluation with graphs.
pub const NO_GRAD: Code = code(
    "TN212",
    "evaluation builds autograd graphs",
    "A model is evaluated without `torch.no_grad()` or `torch.inference_mode()`: every layer keeps its inputs for a
backward pass that never comes. `model.eval()` does not change that.

Recognised by: the model was entered in evaluation mode with gradients on; or no backward pass takes back what this pass
kept, in a job that trains elsewhere or that was seen to its end without any backward pass (then the finding is marked
as inferred).
Fix: `with torch.no_grad():` around the evaluation. The peak without the graphs is computed within bounds: a
result goes when the next one is made, or, at the latest, when the repeated block is done that made it, or was given it.",
);

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let blocks: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| is_kept_in_evaluation(case, live.block) && !is_held_otherwise(live.held))
        .collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let told = blocks.iter().any(|live| case.grad_in_eval(live.block.born));
    let largest = blocks
        .iter()
        .max_by_key(|live| (live.block.bytes, live.index))?;
    let place = case.call_site(largest.block);
    let line = at(place.as_ref());
    let headline = format!(
        "the call at {line} keeps {} for a backward pass that never comes",
        bytes(sum)
    );
    let mut sentence = headline.clone();
    if told {
        sentence += ": the model is in evaluation mode, with gradients on";
    }
    if let Some(held) = graph_holder(case, &blocks) {
        let _ = write!(
            sentence,
            "; {} keeps graphs of earlier passes",
            held.describe_holder()
        );
    }
    let found = Found::exact(NO_GRAD, sum, headline, sentence)
        .inferred_unless(told)
        .with_place(place);
    // With no backward pass after it, what a pass keeps need not look like activations.
    let units = repeats::find_among(case, |block| is_kept_in_evaluation(case, block));
    let advice = format!("evaluate under `with torch.no_grad():` at {line}");
    let mut proposal = Proposal::new(NO_GRAD.code, advice, "kept for a backward pass");
    proposal.paste = Some("with torch.no_grad():".to_owned());
    let fix = bounded(case, proposal, |bound, index, block| {
        let held = index.and_then(|index| case.holder(index));
        if !is_kept_in_evaluation(case, block) || is_held_otherwise(held) {
            return unchanged(block);
        }
        if bound == Bound::Least {
            return until(block, case.next_birth(index, block).saturating_add(1));
        }
        let units = units.as_ref();
        let lifetimes = units.and_then(|units| units.without_graph(index, block));
        lifetimes.unwrap_or_else(|| until(block, case.next_pass(block.born)))
    });
    Some(found.with_fixes(fix).with_claims_of(&blocks).into_mistake())
}

/// The variable or container whose graph keeps most of what earlier passes left, if there is one.
fn graph_holder<'a>(case: &Case<'_>, blocks: &[Live<'a>]) -> Option<&'a HeldBy> {
    let is_earlier = |live: &&Live<'_>| {
        live.held
            .is_some_and(|held| held.sort == Sort::Graph && held.is_named())
            && case.pass_of(live.block.born) < case.pass_of(case.row)
    };
    let earlier: Vec<Live<'a>> = blocks.iter().filter(is_earlier).copied().collect();
    most_named(&earlier)
}

/// Whether the program keeps a result itself, in a container, or the traceback of an exception does: without gradients
/// they still do.
fn is_held_otherwise(held: Option<&HeldBy>) -> bool {
    held.is_some_and(|held| held.sort.is_container() || held.sort == Sort::Traceback)
}

fn is_kept_in_evaluation(case: &Case<'_>, block: &Holding) -> bool {
    if block.phase != Phase::Forward || is_kept(block) || graphs::is_used_later(case, block) {
        return false;
    }
    // Seen to its end: this pass has no backward pass, and nothing carries its graph on.
    case.grad_in_eval(block.born)
        || (!case.failed && case.after_training(block.born) && !case.goes_back(block.born))
        || (!case.failed && case.never_goes_back() && !case.outlives_next_pass(block))
}
