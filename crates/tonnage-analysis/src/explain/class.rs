// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN101 to TN104: why the request failed.
//!
//! Only a job that fits otherwise is called fragmented: holes that would have
//! served the request, and, where the whole job is known, a replay without holes
//! that completes on this device. Everything else is a job that needs more than
//! the GPU has.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tonnage_text::bytes;

use super::case::{Case, at, counted};
use super::codes::{Code, code};
use super::need::Need;
use super::{Finding, graphs, growth, outside};
use crate::holdings::{HeldBy, Known, Place, site};

/// Too little memory.
pub const SHORT: Code = code(
    "TN101",
    "the job needs more than the GPU has",
    "The blocks that are alive at the fullest moment need more than the device has. No setting of the allocator can change
that: even placed without a single gap they would not fit.

Recognised by: alive bytes + request + context + memory outside PyTorch > capacity; or, where the whole job was
recorded on a device without a limit, a replay of it with expandable segments does not complete on this device.
Fix: fewer live bytes (the other findings name their holders), or a larger device. The smallest device on which
the whole job completes is found by replay; of a recording that stops at the failure, the smallest that gets past it.",
);

/// Holes.
pub const FRAGMENTED: Code = code(
    "TN102",
    "memory is fragmented",
    "Enough memory is free, but in pieces: gaps between live blocks, none large enough for the request. PyTorch cannot
give a segment back while one block in it lives.

Recognised by: alive bytes + request fit on the device, and the gaps in segments with live blocks, with what the
device has free, would have served the request. Where the whole job is known, it must also complete on this device
when it is replayed with expandable segments; where it is not, nothing that grows from step to step may hold more than
the gaps.
Fix: expandable_segments:True, which grows one segment instead of collecting many; other settings by
`tonnage replay --search`. Each is replayed on your recording before it is proposed.",
);

/// Another stream's memory.
pub const STRANDED: Code = code(
    "TN103",
    "memory is stranded in another stream",
    "PyTorch's allocator keeps the segments of each stream apart. Memory that was freed on one stream cannot serve a request
on another while a block in its segment lives.

Recognised by: alive bytes + request fit on the device, and most of what is held unused belongs to other streams.
Fix: allocate on one stream and use `record_stream` for the others; free the blocks that pin the other stream's
segments before the large request.",
);

/// The script's own limit.
pub const LIMIT: Code = code(
    "TN104",
    "the script limits its own memory",
    "PyTorch refused the request without querying the driver, which had room for it: the script allows itself only a part
of the GPU, by `torch.cuda.set_per_process_memory_fraction` or `per_process_memory_fraction` in
`PYTORCH_CUDA_ALLOC_CONF`.

Recognised by: the driver refused nothing, and had more free than was requested. Where the whole job was run once more
without a limit, the script's own is left out there as well, and the job does not need more than the GPU has.
Fix: a larger fraction, or none; or a job that needs less.",
);

/// Holes must come to this part of the request to be the reason.
const HOLES: u64 = 8;

/// Why the request failed.
pub(super) struct Class {
    pub(super) finding: Finding,
    /// The live blocks that keep free memory from being given back, by index, where that is the reason.
    pub(super) pinning: Vec<u32>,
}

impl Class {
    /// Memory that grows from step to step runs out with or without holes: where only the part before the failure is
    /// known, that is the reason, unless the holes hold more than what has piled up.
    pub(super) fn unless_it_grows(self, case: &Case<'_>, whole_job: bool) -> Self {
        if whole_job || self.finding.code != FRAGMENTED {
            return self;
        }
        let searches = [graphs::find, growth::find];
        let piled_up = searches.iter().filter_map(|search| search(case));
        let Some(grows) = piled_up
            .map(|found| found.finding.bytes)
            .max()
            .filter(|&grows| grows > case.slack.hard)
        else {
            return self;
        };
        let sentence = format!(
            "{} has piled up, and more comes with every iteration; {} in gaps would serve it only a little longer",
            bytes(grows),
            bytes(case.slack.hard),
        );
        Finding {
            code: SHORT,
            headline: None,
            sentence,
            bytes: 0,
            held_by: None,
            ..self.finding
        }
        .into()
    }
}

impl From<Finding> for Class {
    fn from(finding: Finding) -> Self {
        Self {
            finding,
            pinning: Vec::new(),
        }
    }
}

pub(super) fn find(case: &Case<'_>, need: Option<&Need>) -> Option<Class> {
    let failure = case.track.failure.filter(|_| case.failed)?;
    let short = case.short(failure.requested);
    let place = site(case.stacks(), failure.stack);
    let slack = &case.slack;
    // A shortage that only others cause is not the job's.
    if short > 0
        && let Some(found) = outside::find(case).filter(|found| found.bytes >= short)
    {
        return Some(found.into());
    }
    let found = |code: Code, bytes: u64, headline: Option<String>, sentence: String| Finding {
        code,
        headline,
        sentence,
        bytes,
        place: place.clone(),
        known: Known::Exact,
        held_by: None,
    };
    if failure.own_limit && need.is_none_or(|need| need.short == 0) {
        let sentence = format!(
            "PyTorch refused {} without querying the driver, which had {} free",
            bytes(failure.requested),
            bytes(failure.free),
        );
        return Some(found(LIMIT, 0, None, sentence).into());
    }
    if let Some(need) = need.filter(|need| need.short > 0) {
        let least = if need.is_at_least() { "at least " } else { "" };
        let sentence = format!(
            "the whole job needs {least}{}, {} more than the device has; no setting of the allocator changes that",
            bytes(need.bytes),
            bytes(need.short),
        );
        return Some(found(SHORT, need.short, None, sentence).into());
    }
    if short > 0 {
        let sentence = format!(
            "{} alive and {} requested is {} more than the device can hold; placed without a gap, it would not fit",
            bytes(case.on_device.allocated),
            bytes(failure.requested),
            bytes(short),
        );
        return Some(found(SHORT, short, None, sentence).into());
    }
    let serves = |holes: u64| {
        holes.saturating_add(failure.free) >= failure.requested
            && holes.saturating_mul(HOLES) >= failure.requested
    };
    if slack.stream > slack.hard && serves(slack.stream) {
        let pins = pins(case, |stream| stream != failure.stream);
        let headline = format!(
            "{} is free in segments of other streams",
            bytes(slack.stream)
        );
        let sentence = format!("{headline}, which a request on this one cannot use");
        let found = found(STRANDED, slack.stream, Some(headline), sentence);
        return Some(pinned(found, pins));
    }
    if serves(slack.hard) || need.is_some() {
        let pins = pins(case, |stream| stream == failure.stream);
        let headline = format!(
            "{} requested; {} free in all, the largest piece {}",
            bytes(failure.requested),
            bytes(slack.hard.saturating_add(failure.free)),
            bytes(slack.largest_hole.max(failure.free)),
        );
        let sentence = format!(
            "{} is free in {} between live blocks, the largest {}; {} was requested",
            bytes(slack.hard),
            counted(slack.holes as usize, "gap", "gaps"),
            bytes(slack.largest_hole),
            bytes(failure.requested),
        );
        let found = found(FRAGMENTED, slack.hard, Some(headline), sentence);
        return Some(pinned(found, pins));
    }
    let sentence = format!(
        "{} alive and {} requested would fit to the byte, but not in segments of the sizes that the allocator obtains",
        bytes(case.on_device.allocated),
        bytes(failure.requested),
    );
    Some(found(SHORT, 0, None, sentence).into())
}

/// The reason why memory is not given back: a line, and the holder of its blocks.
type Pin = (Option<Place>, Option<HeldBy>);

/// The blocks of one pin.
#[derive(Default)]
struct Pinning {
    /// Bytes of the blocks themselves.
    bytes: u64,
    /// Free bytes beside them that cannot be given back.
    free: u64,
    /// By index.
    blocks: Vec<u32>,
}

/// A finding with what keeps the free memory from being given back.
fn pinned(mut finding: Finding, pins: Option<(Pin, Pinning)>) -> Class {
    let Some(((made_at, held), Pinning { free, blocks, .. })) = pins else {
        return finding.into();
    };
    let pinning = blocks;
    let blocks = counted(pinning.len(), "block", "blocks");
    let made = at(made_at.as_ref());
    let by = match held.as_ref().filter(|held| !held.name.is_empty()) {
        Some(held) => format!(
            "{blocks} of {} ({}), made at {made},",
            held.describe_holder(),
            at(held.place.as_ref())
        ),
        None => format!("{blocks} made at {made}"),
    };
    let _ = write!(
        finding.sentence,
        "; {by} keep {} from being given back",
        bytes(free)
    );
    let place = held.as_ref().and_then(|held| held.place.clone());
    finding.place = place.or(made_at).or(finding.place);
    finding.held_by = held;
    Class { finding, pinning }
}

/// The blocks that keep most of the free bytes in segments of some streams from being given back, with their line and
/// holder.
fn pins(case: &Case<'_>, of: impl Fn(u64) -> bool) -> Option<(Pin, Pinning)> {
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    let alive: Vec<_> = case.alive().collect();
    for (at, block) in alive.iter().enumerate() {
        live.insert(block.block.address, at);
    }
    // Free bytes of each segment go to those that have blocks in it; of several, to the one with
    // the fewest bytes there: what is smallest is easiest to put elsewhere.
    let mut pinned: BTreeMap<Pin, Pinning> = BTreeMap::new();
    for span in &case.track.segments {
        if span.born > case.row || case.row >= span.died || !of(span.stream) {
            continue;
        }
        let end = span.address.saturating_add(span.bytes);
        let mut inside: BTreeMap<Pin, Pinning> = BTreeMap::new();
        let mut used = 0;
        for (_, &at) in live.range(span.address..end) {
            let block = alive[at].block;
            used += block.bytes;
            let pin = (case.site(block), alive[at].held.cloned());
            let sum = inside.entry(pin).or_default();
            sum.bytes += block.bytes;
            sum.blocks.push(alive[at].index);
        }
        let free = span.bytes.saturating_sub(used);
        let smallest = inside.into_iter().min_by_key(|(_, of)| of.bytes);
        if let Some((pin, of)) = smallest.filter(|_| free > 0) {
            let sum = pinned.entry(pin).or_default();
            sum.free += free;
            sum.blocks.extend(of.blocks);
        }
    }
    pinned.into_iter().max_by_key(|(_, of)| of.free)
}
