// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN225: captured CUDA graphs that have a private pool each.

use std::collections::BTreeMap;

use tonnage_recording::Pool;
use tonnage_text::bytes;

use super::Found;
use super::case::{Case, SHARE, at};
use super::codes::{Code, code};
use super::fixes::{Fix, FixOutcome, Measure, Proof};
use crate::holdings::{SegmentSpan, changes, site};

/// Pools that graphs could share.
pub const PRIVATE_POOLS: Code = code(
    "TN225",
    "CUDA graphs have a private pool each",
    "A captured CUDA graph keeps its memory in a private pool. It stays reserved for as long as the graph exists, also between
replays, and no other request can use it. Graphs that never run at the same time can share one pool.

Recognised by: the recording names the pool of each segment. All private pools but the largest hold at least a tenth of
the reserved memory.
Fix: `pool = torch.cuda.graph_pool_handle()` once, and `torch.cuda.graph(graph, pool=pool)` for each capture. A graph may
then overwrite the results of another, so copy results before another graph runs. The reserved memory with one pool is
computed from the recording.",
);

/// Whether a pool belongs to one capture: a pool that the program made has only a second number.
fn is_of_capture(pool: Option<Pool>) -> bool {
    pool.is_some_and(|pool| pool.first != 0)
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let track = case.track;
    let row = if case.failed {
        case.row
    } else {
        track.peak_reserved_row
    };
    let alive = |span: &&SegmentSpan| span.born <= row && row < span.died;
    let reserved: u64 = track
        .segments
        .iter()
        .filter(alive)
        .map(|span| span.bytes)
        .sum();
    let mut private: Vec<&SegmentSpan> = track
        .segments
        .iter()
        .filter(alive)
        .filter(|span| is_of_capture(span.pool))
        .collect();
    let mut pools: BTreeMap<Option<Pool>, u64> = BTreeMap::new();
    for span in &private {
        *pools.entry(span.pool).or_default() += span.bytes;
    }
    let sum: u64 = pools.values().sum();
    let (&largest, &most) = pools.iter().max_by_key(|(_, bytes)| **bytes)?;
    private.sort_by_key(|span| span.address);
    let shared = most.max(most_live(case, &private));
    let saved = sum.saturating_sub(shared);
    if pools.len() < 2 || (saved as f64) < SHARE * reserved as f64 {
        return None;
    }
    let made = private.iter().find(|span| span.pool == largest);
    let place = made.and_then(|span| site(case.stacks(), span.stack));
    let line = at(place.as_ref());
    let headline = format!("{} private pools hold {}", pools.len(), bytes(sum));
    let named = place
        .as_ref()
        .filter(|place| !place.function.starts_with('<'));
    let within = named.map_or_else(String::new, |place| format!(" in {}()", place.function));
    let sentence = format!(
        "{headline}, the largest of them {}; captured{within} at {line}",
        bytes(most)
    );
    let fix = Fix {
        code: PRIVATE_POOLS.code,
        advice: format!(
            "capture all of them with one pool, if each result is copied before another graph runs: `pool = \
             torch.cuda.graph_pool_handle()` once, and `torch.cuda.graph(graph, pool=pool)` at {line}"
        ),
        paste: None,
        proof: Proof::Computed,
        shown: format!(
            "{} reserved - {} of smaller pools = {}",
            bytes(reserved),
            bytes(saved),
            bytes(reserved - saved)
        ),
        measure: Measure::Reserved,
        peak_before: reserved,
        peak_after: reserved - saved,
        peak_after_least: reserved - saved,
        // The driver had other memory left at a failure, and more comes after it: a dry run of the change shows both.
        outcome: FixOutcome::Unknown,
        room: None,
        whole_job: !case.failed,
        changes_result: false,
        estimate: false,
    };
    Some(
        Found::exact(PRIVATE_POOLS, sum, headline, sentence)
            .with_place(place)
            .with_fixes(Some(fix))
            .into_mistake(),
    )
}

/// The most bytes of these segments, sorted by address, that are handed out at one moment: a shared pool holds them all.
fn most_live(case: &Case<'_>, segments: &[&SegmentSpan]) -> u64 {
    let is_inside = |address: u64, born: u32| {
        let after = segments.partition_point(|span| span.address <= address);
        after.checked_sub(1).is_some_and(|before| {
            let span = segments[before];
            address - span.address < span.bytes && born >= span.born
        })
    };
    let blocks = case.track.blocks.iter();
    let lives = blocks
        .filter(|block| is_inside(block.address, block.born))
        .map(|block| (block.born, block.died, block.bytes));
    let mut sum = 0_i64;
    let mut most = 0;
    for (_, change) in changes(lives) {
        sum += change;
        most = most.max(sum);
    }
    u64::try_from(most).unwrap_or(0)
}
