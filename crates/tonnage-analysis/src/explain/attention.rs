// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN214: attention that is written out keeps a matrix of tokens times tokens for each head.
//!
//! The shape of a tensor decides, where Python recorded it: the last two sides are
//! equal. Otherwise the functions decide: the block is made inside one called
//! softmax or attention. Without a shape, the size decides: many times the
//! output of the layer. The last two are guesses.

use std::collections::{BTreeMap, HashSet};

use tonnage_text::bytes;

use super::Found;
use super::case::{Case, LARGE_SHARE, Live, at, counted, is_kept};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged};
use crate::holdings::{Category, Holding, Known, Phase};

/// Attention scores.
pub const ATTENTION: Code = code(
    "TN214",
    "attention scores make the peak",
    "Attention that is written out makes a matrix of tokens × tokens for each head and sample: scores, their softmax, the
mask applied to them. It grows with the square of the length, and each layer keeps several for the backward pass.

Recognised by: matrices whose last two sides are equal, or blocks made inside softmax or attention, hold at least a
quarter of the peak. Without a recorded shape, blocks that are many times as large as the output of their layer count
as well. The last two are inferred.
Fix: `torch.nn.functional.scaled_dot_product_attention`, which never makes the matrix. The peak without the
matrices is computed from the recording.",
);

/// A matrix of fewer bytes is not worth a word.
const MATRIX: u64 = 1 << 20;
/// How many times the output of its layer a matrix of scores is.
const TIMES: u64 = 12;

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let (sizes, known) = sizes(case)?;
    let of = |live: &Live<'_>| is_one(&sizes, live.block);
    let blocks: Vec<Live<'_>> = case.unexplained().filter(of).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, LARGE_SHARE) {
        return None;
    }
    let largest = blocks.iter().map(|live| live.block.bytes).max()?;
    let place = case.largest_place(blocks.iter().map(|live| live.block));
    let shape = blocks.iter().find_map(|live| live.held?.shape.clone());
    let shape = shape.map_or_else(String::new, |shape| format!(", e.g. {shape}"));
    let headline = format!(
        "{} in {} of tokens × tokens",
        bytes(sum),
        counted(blocks.len(), "matrix", "matrices")
    );
    let sentence = format!(
        "{headline}, the largest {}{shape}, most made at {}",
        bytes(largest),
        at(place.as_ref())
    );
    let advice = format!(
        "use `torch.nn.functional.scaled_dot_product_attention(q, k, v)` at {}",
        at(place.as_ref())
    );
    let mut proposal = Proposal::new(ATTENTION.code, advice, "of matrices that are not made");
    proposal.estimate = true;
    let fix = computed(case, proposal, |_, block| {
        if is_one(&sizes, block) {
            sized(block, 0)
        } else {
            unchanged(block)
        }
    });
    let found = Found::exact(ATTENTION, sum, headline, sentence)
        .inferred_unless(known == Known::Exact)
        .with_place(place);
    Some(found.with_fixes(fix).with_claims_of(&blocks))
}

/// Scores in either precision, and the masks of dropout.
fn is_one(sizes: &HashSet<u64>, block: &Holding) -> bool {
    let passes = matches!(block.phase, Phase::Forward | Phase::Backward | Phase::Eval);
    passes && !is_kept(block) && sizes.contains(&block.requested)
}

/// The bytes that such matrices have, and how that is known.
fn sizes(case: &Case<'_>) -> Option<(HashSet<u64>, Known)> {
    let around = |size: u64| [size / 4, size / 2, size, size * 2].into_iter();
    let square = case.alive().filter(|live| {
        let shape = live.held.and_then(|held| held.shape.as_deref());
        live.block.requested >= MATRIX && shape.is_some_and(is_square)
    });
    let mut square: HashSet<u64> = square.map(|live| live.block.requested).collect();
    // Square images have two equal sides as well.
    for block in &case.track.blocks {
        let is_near = |&each: &u64| around(each).any(|near| near == block.requested);
        if square.iter().any(is_near) && case.has_function(block.stack, &["_conv_forward"]) {
            square.retain(|each| !is_near(each));
        }
    }
    if !square.is_empty() {
        let sizes = square.into_iter().flat_map(around).collect();
        return Some((sizes, Known::Exact));
    }
    let activation = |live: &Live<'_>| {
        live.block.category == Category::Activations
            && live.block.requested >= MATRIX
            && !is_kept(live.block)
    };
    let mut by_size: BTreeMap<u64, u64> = BTreeMap::new();
    for live in case.alive().filter(activation) {
        if in_softmax(case, live.block) {
            *by_size.entry(live.block.requested).or_default() += live.block.bytes;
        }
    }
    let size = by_size.into_iter().max_by_key(|(_, bytes)| *bytes);
    // A recorded shape would have shown the matrices.
    let has_shape = |size: &u64| {
        case.alive().any(|live| {
            live.block.requested == *size && live.held.is_some_and(|held| held.shape.is_some())
        })
    };
    let by_ratio = || by_ratio(case, activation).filter(|size| !has_shape(size));
    let size = size.map(|(size, _)| size).or_else(by_ratio);
    Some((around(size?).collect(), Known::Inferred))
}

/// `float32[4, 16, 4096, 4096]`: the last two sides are equal.
fn is_square(shape: &str) -> bool {
    let Some((_, sides)) = shape.split_once('[') else {
        return false;
    };
    let sides: Vec<u64> = sides
        .trim_end_matches(']')
        .split(',')
        .filter_map(|side| side.trim().parse().ok())
        .collect();
    match sides.as_slice() {
        [.., _, rows, columns] => rows == columns && *rows >= 128,
        _ => false,
    }
}

fn in_softmax(case: &Case<'_>, block: &Holding) -> bool {
    let Some(stack) = block.stack else {
        return false;
    };
    let mut frames = case.stacks().frames(stack);
    let attention = case.stacks().frames(stack).any(|frame| {
        let name = frame.function.to_ascii_lowercase();
        name.contains("attention") || name.contains("attn") || name.contains("sdpa")
    });
    attention && frames.any(|frame| frame.function.to_ascii_lowercase().contains("softmax"))
}

/// The size of blocks of which each layer has several, and each is many times the layer's output.
fn by_ratio(case: &Case<'_>, of: impl Fn(&Live<'_>) -> bool) -> Option<u64> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for live in case.alive().filter(of) {
        *counts.entry(live.block.requested).or_default() += 1;
    }
    let (&size, &number) = counts.iter().max_by_key(|(size, count)| **size * **count)?;
    // The sizes that occur at least as often are those of the layer's other results.
    let others = counts
        .iter()
        .filter(|(other, count)| **other < size && **count * 2 >= number);
    let largest = others.map(|(other, _)| *other).max()?;
    (number >= 3 && size >= TIMES * largest).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::is_square;

    #[test]
    fn a_square_of_tokens_is_told_from_a_batch_of_rows() {
        assert!(is_square("float32[4, 16, 4096, 4096]"));
        assert!(!is_square("float32[4, 4096, 1024]"));
        assert!(!is_square("float32[4096, 4096]"));
        assert!(!is_square("float32"));
    }
}
