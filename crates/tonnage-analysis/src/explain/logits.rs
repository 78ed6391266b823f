// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN203: logits, and the copies that the loss makes of them.

use tonnage_text::bytes;

use super::Found;
use super::case::{Case, Live, SHARE, at, counted, is_kept};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged};
use crate::holdings::{Category, Holding, Known, Phase};

/// Logits and loss.
pub const LOSS_SPIKE: Code = code(
    "TN203",
    "logits and loss make the peak",
    "The output of the last layer has one number for each token and each word of the vocabulary, and the loss makes several
copies of it: log-probabilities and their gradients, often in float32.

Recognised by: blocks made inside the loss functions of torch, and blocks of the same size made around them, hold at
least a tenth of the peak.
Fix: compute the loss in chunks of its rows, each under checkpointing, or use a fused loss that never makes
the logits. Without gradients, pass fewer rows at a time. The peak with chunks of an eighth is computed from the
recording, with the gradients that the chunks add up: of the last layer's weight, or of both factors where the logits are
a product of two results.",
);

/// Bytes of the gradients that each chunk makes beside the sum of those before: that of the last layer's weight; or,
/// where what is made of the gradient of the logits is of no parameter, those of both factors of the logits.
fn added(case: &Case<'_>, logits: u64) -> u64 {
    let blocks = &case.track.blocks;
    let is_backward = |block: &Holding| block.phase == Phase::Backward;
    let last = blocks.iter().rposition(|block| {
        is_backward(block) && block.requested >= logits / 2 && block.requested <= logits * 2
    });
    let after = last.map_or(&[][..], |last| &blocks[last + 1..]);
    let factors: Vec<&Holding> = after
        .iter()
        .take_while(|block| is_backward(block))
        .filter(|block| block.category != Category::Workspaces)
        .take(2)
        .collect();
    let gradients = blocks.iter();
    let gradients = gradients.filter(|block| block.category == Category::Gradients);
    if factors
        .iter()
        .any(|block| block.category == Category::Gradients)
    {
        return gradients.map(|block| block.bytes).max().unwrap_or(0);
    }
    let both = factors.iter().map(|block| block.bytes).sum();
    gradients
        .map(|block| block.bytes)
        .max()
        .unwrap_or(0)
        .max(both)
}

/// Functions of torch that compute a loss, or a part of one.
pub(super) const LOSSES: [&str; 6] = [
    "cross_entropy",
    "log_softmax",
    "nll_loss",
    "softmax",
    "logsumexp",
    "kl_div",
];

/// The largest block made inside a loss, or requested there.
fn largest(case: &Case<'_>) -> u64 {
    let made = case.track.blocks.iter().chain(&case.wanted);
    made.filter(|block| block.born <= case.row && is_inside(case, block))
        .map(|block| block.requested)
        .max()
        .unwrap_or(0)
}

fn is_inside(case: &Case<'_>, block: &Holding) -> bool {
    // A loss without gradients comes after the pass of the model.
    matches!(block.phase, Phase::Forward | Phase::Eval | Phase::Other)
        && case.has_function(block.stack, &LOSSES[..3])
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let size = largest(case);
    if size == 0 {
        return None;
    }
    // float32, and the halves of it that bfloat16 takes.
    let sizes = [size / 2, size, size * 2];
    let of = |live: &Live<'_>| {
        let block = live.block;
        !is_kept(block) && (sizes.contains(&block.requested) || is_inside(case, block))
    };
    let blocks: Vec<Live<'_>> = case.unexplained().filter(of).collect();
    let wanted = case.wanted.iter().find(|block| is_inside(case, block));
    let request = wanted.map_or(0, |block| block.bytes);
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum::<u64>() + request;
    let largest = blocks.iter().map(|live| live.block.bytes).max()?;
    // Predictions that a loop collects have the size of logits, and are not of the loss.
    let phase = case.track.phase_at(case.row).map(|span| span.phase);
    let between = !matches!(phase, Some(Phase::Forward | Phase::Backward | Phase::Eval));
    if between && wanted.is_none() && !blocks.iter().any(|live| is_inside(case, live.block)) {
        return None;
    }
    // A loss over few classes is not a spike, whatever else has its size.
    if !case.is_large(sum, SHARE) || !case.is_large(largest, SHARE / 4.0) {
        return None;
    }
    let made = case.track.blocks.iter().chain(&case.wanted);
    let place = made
        .filter(|block| block.born <= case.row && case.has_function(block.stack, &LOSSES))
        .max_by_key(|block| (block.bytes, block.born));
    let place = place.and_then(|block| case.site(block));
    let headline = format!(
        "{} of logits and what the loss at {} makes of them",
        bytes(sum),
        at(place.as_ref())
    );
    let largest_made = blocks
        .iter()
        .max_by_key(|live| live.block.bytes)
        .and_then(|live| case.site(live.block))
        .filter(|made| Some(made) != place.as_ref());
    let largest_made =
        largest_made.map_or_else(String::new, |made| format!(" made at {}", at(Some(&made))));
    let sentence = format!(
        "{} in {} is logits and what the loss at {} makes of them, the largest {}{largest_made}",
        bytes(sum),
        counted(
            blocks.len() + usize::from(wanted.is_some()),
            "block",
            "blocks"
        ),
        at(place.as_ref()),
        bytes(largest),
    );
    let found = Found::inferred(LOSS_SPIKE, sum, headline, sentence).with_place(place.clone());
    let mut in_loss = blocks.iter().map(|live| live.block).chain(wanted);
    let trains = !case.never_goes_back() && in_loss.any(|block| block.phase == Phase::Forward);
    // It is done already.
    let chunked = blocks
        .iter()
        .any(|live| case.is_recomputed(live.block.stack));
    let fix = (!chunked).then(|| {
        let line = at(place.as_ref());
        let advice = if trains {
            format!("compute the loss at {line} in 8 chunks of its rows, each checkpointed, or use a fused loss")
        } else {
            format!("pass an eighth of the rows at a time to the last layer and the loss at {line}")
        };
        let mut proposal = Proposal::new(LOSS_SPIKE.code, advice, "of logits and loss");
        let most = blocks.iter().map(|live| live.block.requested).max().unwrap_or(0);
        if trains {
            proposal.adds = Some((added(case, most), "for a gradient of each chunk"));
        }
        computed(case, proposal, |_, block| {
            let is_loss = block.requested >= most / 2 && block.requested <= most * 2 && !is_kept(block);
            if is_loss && block.known != Known::Exact {
                sized(block, block.bytes / 8)
            } else {
                unchanged(block)
            }
        })
    });
    Some(found.with_fixes(fix.flatten()).with_claims_of(&blocks))
}
