// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would lower the peak: how a proposal is proved.
//!
//! A setting is replayed. A change of the program is applied to the lifetimes of
//! the blocks: those it would do away with are left out, those it would make
//! smaller or end earlier are changed, and the largest sum of the rest is the new
//! peak. Where the recording does not show how long the program would still refer to
//! a block, the peak is computed for the shortest and the longest of what is possible,
//! and both are reported. A replay by PyTorch's allocator determines whether that fits: it serves
//! the changed requests with the longer lifetimes, and what a dry run does not count is held against what is then left,
//! as the verdict of a run does. A recording that stops at a failure shows no more than that the job gets past that
//! request, and the proposal states it.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use serde::Serialize;
use tonnage_text::bytes;

use super::case::{Bound, Case};
use crate::holdings::{Holding, changes};
use crate::replay::Changes;

/// How a proposal was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The recording was replayed with the setting.
    Replayed,
    /// The peak was computed from the recording, with the blocks as the change would leave them.
    Computed,
}

/// The outcome of a proposal on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FixOutcome {
    /// It fits, also with the most that was seen of what a dry run does not count.
    Fits,
    /// It fits if what is not counted takes less than `room`, and that was seen to take more.
    FitsOnlyIf,
    /// It does not fit.
    DoesNotFit,
    /// It cannot be determined, or nothing failed.
    Unknown,
}

/// The moments to which the peaks of a proposal belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Bytes of blocks, as `torch.cuda.max_memory_allocated` counts them.
    Allocated,
    /// Bytes of segments, as `torch.cuda.max_memory_reserved` counts them.
    Reserved,
    /// Bytes of the device, with contexts and other processes, as `nvidia-smi` counts them.
    Device,
}

/// A proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Fix {
    /// The finding it answers.
    pub code: &'static str,
    /// The action.
    pub advice: String,
    /// The line to paste, if there is one.
    pub paste: Option<String>,
    /// How it was proved.
    pub proof: Proof,
    /// The arithmetic, or what was replayed.
    pub shown: String,
    /// The moments to which the two peaks belong.
    pub measure: Measure,
    /// The peak today, with the request that failed.
    pub peak_before: u64,
    /// The peak with it: at most this.
    pub peak_after: u64,
    /// The peak with it: at least this. Equal to `peak_after` where the recording leaves no room for doubt.
    pub peak_after_least: u64,
    /// Whether it then fits on the device: by a replay of the changed requests, or, where they cannot be replayed, if
    /// the sum exceeds the device.
    pub outcome: FixOutcome,
    /// The bytes below which the overhead must stay for the change to fit, if it depends on that.
    pub room: Option<u64>,
    /// Whether this holds to the end of the job. Otherwise the recording stops at the request that failed: the job
    /// gets past that, and what follows is not known.
    pub whole_job: bool,
    /// Whether the program then computes something else.
    pub changes_result: bool,
    /// Whether the change would also do things that the recording cannot show, so that the figures are near and not
    /// bounds.
    pub estimate: bool,
}

impl Fix {
    /// Leaves open whether it fits, unless it is certain that it does not.
    pub(super) fn leave_open(&mut self) {
        if self.outcome != FixOutcome::DoesNotFit {
            self.outcome = FixOutcome::Unknown;
        }
        self.room = None;
    }
}

/// The outcome with so much room for what is not counted, or with none at all; and the room, where it matters.
pub(super) fn outcome(room: Option<u64>, uncounted: u64) -> (FixOutcome, Option<u64>) {
    match room {
        None => (FixOutcome::DoesNotFit, None),
        Some(room) if room < uncounted => (FixOutcome::FitsOnlyIf, Some(room)),
        Some(_) => (FixOutcome::Fits, None),
    }
}

/// How long a block is there after a change, and how large: lifetimes of the same row and of later ones.
pub(super) type Lifetimes = Vec<(u32, u32, u64)>;

/// The block as it is.
pub(super) fn unchanged(block: &Holding) -> Lifetimes {
    vec![(block.born, block.died, block.bytes)]
}

/// The block with other bytes.
pub(super) fn sized(block: &Holding, bytes: u64) -> Lifetimes {
    vec![(block.born, block.died, bytes)]
}

/// The block, gone at a row at the latest.
pub(super) fn until(block: &Holding, row: u32) -> Lifetimes {
    vec![(
        block.born,
        block.died.min(row.max(block.born + 1)),
        block.bytes,
    )]
}

/// A change of the program, as its lifetimes.
pub(super) struct Proposal {
    pub(super) code: &'static str,
    pub(super) advice: String,
    pub(super) paste: Option<String>,
    /// `of outputs kept on the device`.
    pub(super) what: String,
    pub(super) changes_result: bool,
    pub(super) estimate: bool,
    /// The bytes that it adds and the recording does not show, and their purpose.
    pub(super) adds: Option<(u64, &'static str)>,
}

impl Proposal {
    pub(super) fn new(code: &'static str, advice: String, what: &str) -> Self {
        Self {
            code,
            advice,
            paste: None,
            what: what.to_owned(),
            changes_result: false,
            estimate: false,
            adds: None,
        }
    }
}

/// The last row that counts.
fn end(case: &Case<'_>) -> u32 {
    if case.failed { case.row } else { u32::MAX - 1 }
}

/// The largest sum of blocks with the lifetimes that `change` gives them. Where the recording
/// ends in a failure: up to that, with the requested block.
pub(super) fn peak_with(
    case: &Case<'_>,
    mut change: impl FnMut(Option<u32>, &Holding) -> Lifetimes,
) -> u64 {
    let until = end(case);
    let blocks = (0..).map(Some).zip(&case.track.blocks);
    let blocks = blocks.chain(case.wanted.iter().map(|wanted| (None, wanted)));
    let lifetimes: Lifetimes = blocks
        .flat_map(|(index, block)| change(index, block))
        .collect();
    let (mut sum, mut peak) = (0_i64, 0_i64);
    let all = changes(lifetimes.into_iter()).into_iter();
    for (_, change) in all.take_while(|&(row, _)| row <= until) {
        sum += change;
        peak = peak.max(sum);
    }
    peak.max(0).cast_unsigned()
}

/// The peak as it was.
pub(super) fn peak_before(case: &Case<'_>) -> u64 {
    peak_with(case, |_, block| unchanged(block))
}

/// Proposes to do without some blocks, by index.
pub(super) fn without(case: &Case<'_>, proposal: Proposal, gone: &HashSet<u32>) -> Option<Fix> {
    computed(case, proposal, |index, block| {
        if index.is_some_and(|index| gone.contains(&index)) {
            sized(block, 0)
        } else {
            unchanged(block)
        }
    })
}

/// Proposes a change of the program that gives blocks other lifetimes; none if it saves nothing worth it.
pub(super) fn computed(
    case: &Case<'_>,
    proposal: Proposal,
    mut change: impl FnMut(Option<u32>, &Holding) -> Lifetimes,
) -> Option<Fix> {
    bounded(case, proposal, |_, index, block| change(index, block))
}

/// The same where lifetimes are known within bounds only.
pub(super) fn bounded(
    case: &Case<'_>,
    proposal: Proposal,
    mut change: impl FnMut(Bound, Option<u32>, &Holding) -> Lifetimes,
) -> Option<Fix> {
    let before = peak_before(case);
    let least = peak_with(case, |index, block| change(Bound::Least, index, block));
    let mut differ = Changes::new();
    let after = peak_with(case, |index, block| {
        let lifetimes = change(Bound::Most, index, block);
        if index.is_some() && lifetimes != unchanged(block) {
            // The allocator rounds again: give it the size that the program would request.
            let asked = |(from, to, bytes): &(u32, u32, u64)| {
                let share = *bytes as f64 / block.bytes.max(1) as f64;
                let asked = if bytes == &block.bytes {
                    block.requested
                } else {
                    (block.requested as f64 * share) as u64
                };
                (*from, *to, asked)
            };
            differ.insert(block.born, lifetimes.iter().map(asked).collect());
        }
        lifetimes
    });
    let added = proposal.adds.map_or(0, |(bytes, _)| bytes);
    let most = after.saturating_add(added);
    let mut fix = promise(case, proposal, before, least.min(after)..=most)?;
    if matches!(fix.outcome, FixOutcome::Fits | FixOutcome::FitsOnlyIf) {
        (fix.outcome, fix.room) = replayed(case, &differ, added);
    }
    Some(fix)
}

/// A proposal with its peaks, where they are known otherwise; its outcome follows from the sum.
pub(super) fn promise(
    case: &Case<'_>,
    proposal: Proposal,
    before: u64,
    after: RangeInclusive<u64>,
) -> Option<Fix> {
    let (least, most) = after.into_inner();
    let saved = before.checked_sub(most).filter(|&saved| saved > 0)?;
    // Below a hundredth it is not worth a change.
    if saved < before / 100 {
        return None;
    }
    // Peaks within half a hundredth of each other are one figure.
    let least = if (most - least) * 200 < most {
        most
    } else {
        least
    };
    let capacity = case.on_device.capacity.filter(|_| case.ran_out);
    let (outcome, room) = capacity.map_or((FixOutcome::Unknown, None), |capacity| {
        let room = |peak: u64| capacity.checked_sub(peak.saturating_add(case.taken()));
        match (room(least), room(most)) {
            (Some(_), None) => (FixOutcome::Unknown, None),
            (_, room) => outcome(room, case.uncounted),
        }
    });
    Some(Fix {
        code: proposal.code,
        advice: proposal.advice,
        paste: proposal.paste,
        proof: Proof::Computed,
        shown: sum(before, &proposal.what, proposal.adds, least, most),
        measure: Measure::Allocated,
        peak_before: before,
        peak_after: most,
        peak_after_least: least,
        outcome,
        room,
        whole_job: !case.failed,
        changes_result: proposal.changes_result,
        estimate: proposal.estimate,
    })
}

/// `8.00 GiB - 6.00 GiB of logits = 2.00 GiB`.
fn sum(before: u64, what: &str, adds: Option<(u64, &str)>, least: u64, most: u64) -> String {
    if let Some((added, whatfor)) = adds {
        return format!(
            "{} - {} {what} + {} {whatfor} = {}",
            bytes(before),
            bytes(before.saturating_add(added).saturating_sub(most)),
            bytes(added),
            bytes(most),
        );
    }
    let between = |low: u64, high: u64| {
        if low == high {
            bytes(high)
        } else {
            format!("{} to {}", bytes(low), bytes(high))
        }
    };
    format!(
        "{} - {} {what} = {}",
        bytes(before),
        between(before - most, before - least),
        between(least, most)
    )
}

/// Whether the changed requests are served on the device, and with which room, beside `added` bytes that the change
/// adds.
fn replayed(case: &Case<'_>, differ: &Changes, added: u64) -> (FixOutcome, Option<u64>) {
    let key = (case.track.process, case.track.device);
    let changed = case.job.and_then(|job| job.changed(key, differ));
    let Some((changed, alloc)) = changed else {
        return (FixOutcome::Unknown, None);
    };
    let taken = case.on_device.others.saturating_add(added);
    let room = changed.room(&alloc, taken, case.uncounted);
    outcome(room, case.uncounted)
}
