// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN207: keys and values that are kept from token to token.

use tonnage_text::bytes;

use super::Found;
use super::case::{Case, LARGE_SHARE, Live, at, counted, most_named};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged};
use crate::holdings::{Category, Holding};

/// The KV cache.
pub const KV_CACHE: Code = code(
    "TN207",
    "the KV cache makes the peak",
    "Keys and values of all tokens so far are kept. They grow with batch × length, or are allocated for the longest length
at once.

Recognised by: tensors in caches hold at least a quarter of the peak.
Fix: a shorter maximal length, fewer sequences at once, a smaller type. The peak with half of the cache is
computed from the recording.",
);

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let cached = |block: &Holding| block.category == Category::KvCache;
    let blocks: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| cached(live.block))
        .collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, LARGE_SHARE) {
        return None;
    }
    let place = case.largest_place(blocks.iter().map(|live| live.block));
    let line = at(place.as_ref());
    let held = most_named(&blocks);
    let by = held.map_or_else(String::new, |held| {
        format!(" in {}", held.describe_holder())
    });
    let sentence = format!(
        "{} in {}{by} is keys and values kept from token to token, made at {line}",
        bytes(sum),
        counted(blocks.len(), "block", "blocks"),
    );
    let advice = format!("halve the batch or the longest length of the cache made at {line}");
    let mut proposal = Proposal::new(KV_CACHE.code, advice, "of keys and values, a half of them");
    proposal.changes_result = true;
    let fix = computed(case, proposal, |_, block| {
        if cached(block) {
            sized(block, block.bytes / 2)
        } else {
            unchanged(block)
        }
    });
    let headline = format!("{} of keys and values{by}", bytes(sum));
    Some(
        Found::inferred(KV_CACHE, sum, headline, sentence)
            .with_place(place)
            .with_holder(held)
            .with_fixes(fix)
            .with_claims_of(&blocks),
    )
}
