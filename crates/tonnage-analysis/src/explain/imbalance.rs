// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN106: one rank, or one GPU of a process, takes more than the others, which decides the GPU for all of them.

use std::collections::BTreeMap;

use tonnage_text::bytes;

use super::Finding;
use super::case::{SHARE, at};
use super::codes::{Code, code};
use crate::holdings::{Category, Holdings, Known, Place, Recording, site};

/// Ranks that differ.
pub const IMBALANCE: Code = code(
    "TN106",
    "one rank takes more than the others",
    "The ranks of a job do not take the same memory. All GPUs are bought or booked as large as the fullest rank needs, so
what it has more than the others is paid for on each of them. The same holds for the GPUs of one process
(`nn.DataParallel` gathers outputs on the first, a model that is cut by hand may be cut unevenly).

Recognised by: the blocks of the fullest rank or GPU at its peak are at least 10 % more than those of the one in the
middle of the others. The line is the one that holds most of the difference at the two peaks.
Fix: other cuts of the model, so that the stages of a pipeline are alike (the first stage holds most activations
of its micro-batches, the last one the logits); logits and losses in pieces; shards of equal size.",
);

/// The fullest process of each rank.
fn by_rank(recording: &Recording) -> BTreeMap<u32, &Holdings> {
    let mut ranks: BTreeMap<u32, &Holdings> = BTreeMap::new();
    for track in recording.tracks.iter().filter(|track| track.is_shown()) {
        let Some(rank) = recording.rank(track.process) else {
            continue;
        };
        let fullest = ranks.entry(rank).or_insert(track);
        if track.peak_allocated > fullest.peak_allocated {
            *fullest = track;
        }
    }
    ranks
}

/// The GPUs of one process, where a job has no ranks.
fn by_gpu(recording: &Recording) -> BTreeMap<u32, &Holdings> {
    let shown = || recording.tracks.iter().filter(|track| track.is_shown());
    let Some(first) = shown().next() else {
        return BTreeMap::new();
    };
    if shown().any(|track| track.process != first.process) {
        return BTreeMap::new();
    }
    let number = |track: &Holdings| u32::try_from(track.device).ok();
    shown()
        .filter_map(|track| Some((number(track)?, track)))
        .collect()
}

/// The bytes of each category and line at a peak.
fn lines(recording: &Recording, track: &Holdings) -> BTreeMap<(Category, Option<Place>), u64> {
    let mut lines = BTreeMap::new();
    for block in &track.blocks {
        if block.alive_at(track.peak_row) {
            let key = (block.category, site(&recording.stacks, block.stack));
            *lines.entry(key).or_default() += block.bytes;
        }
    }
    lines
}

pub(super) fn find(recording: &Recording) -> Option<Finding> {
    let (ranks, one) = match by_rank(recording) {
        ranks if ranks.len() > 1 => (ranks, "rank"),
        _ => (by_gpu(recording), "GPU"),
    };
    // The first of equal ones.
    let (&rank, fullest) = ranks
        .iter()
        .rev()
        .max_by_key(|(_, track)| track.peak_allocated)?;
    let mut others: Vec<&Holdings> = ranks
        .iter()
        .filter(|(other, _)| **other != rank)
        .map(|(_, track)| *track)
        .collect();
    others.sort_by_key(|track| track.peak_allocated);
    let middle = *others.get(others.len() / 2)?;
    let more = fullest.peak_allocated - middle.peak_allocated;
    if (more as f64) < SHARE * fullest.peak_allocated as f64 {
        return None;
    }
    let (least, most) = (others.first()?, others.last()?);
    let named = |track: &Holdings| bytes(track.peak_allocated);
    let those = match others.as_slice() {
        [_] => format!("the other one {}", named(least)),
        _ if least.peak_allocated == most.peak_allocated => {
            format!("each of the other {} {}", others.len(), named(least))
        }
        _ => format!(
            "the other {} have {} to {}",
            others.len(),
            named(least),
            named(most)
        ),
    };
    let before = lines(recording, middle);
    let (category, place, gained) = lines(recording, fullest)
        .into_iter()
        .filter_map(|(key, held)| {
            let had = before.get(&key).copied().unwrap_or(0);
            Some((key.0, key.1, held.checked_sub(had)?))
        })
        .max_by_key(|(_, _, gained)| *gained)?;
    // A block without a kind is identified by its line alone.
    let kind = match category {
        Category::Other => String::new(),
        category => format!(" {}", category.name()),
    };
    let sentence = format!(
        "{one} {rank} has {} allocated at its peak, {those}; the largest difference is {} more{kind} {}",
        named(fullest),
        bytes(gained),
        match &place {
            Some(_) => format!("of {}", at(place.as_ref())),
            None => "without a Python line, as in a backward pass".to_owned(),
        }
    );
    Some(Finding {
        code: IMBALANCE,
        headline: Some(format!(
            "{one} {rank} has {} more than the others",
            bytes(more)
        )),
        sentence,
        bytes: more,
        place,
        known: Known::Exact,
        held_by: None,
    })
}
