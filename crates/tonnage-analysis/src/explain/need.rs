// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the whole job needs, and by how much the GPU is too small.
//!
//! A job that runs out of memory is run a second time on a device without a limit.
//! What it needs is the smallest device on which a replay of that recording
//! completes: on a device without a limit nothing cached is ever given back, so
//! what it held there says too much. Where it cannot be replayed, the blocks alive
//! at once with the context are a lower bound.

use serde::Serialize;
use tonnage_trace::meta;

use super::case::Case;
use super::{Holder, Moment, OnDevice};
use crate::facts;
use crate::holdings::{CategoryBytes, Holdings, Recording, changes};
use crate::replay::{Alloc, Job};

/// The setting that is tried first.
pub(super) const EXPANDABLE: &str = "expandable_segments:True";

/// What the whole job needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Need {
    /// Bytes of the smallest device on which the whole job completes with the recorded setting, contexts and other
    /// processes included.
    pub bytes: u64,
    /// Whether that was replayed; otherwise it is what was alive at once, a lower bound.
    pub replayed: bool,
    /// The same with expandable segments, where they are not on already.
    pub expandable: Option<u64>,
    /// Bytes by which the device is too small; 0 if it is not.
    pub short: u64,
    /// Whether the second run came to its end; otherwise it needs at least this.
    pub complete: bool,
    /// Most bytes of blocks.
    pub allocated: u64,
    /// Most bytes in use on the device without a limit, with what was cached.
    pub used: u64,
    /// The moments at which what is alive exceeds the device.
    pub over: Option<Over>,
    /// The fullest moment.
    pub moment: Moment,
    /// What was on the device then.
    pub on_device: OnDevice,
    /// The bytes by kind then; categories without bytes are left out.
    pub categories: Vec<CategoryBytes>,
    /// Who held them, the largest first.
    pub holders: Vec<Holder>,
    /// Most that was seen of what is not counted and comes on top.
    pub uncounted: u64,
    /// The GPUs of the catalogue that hold the job, also with what is not counted, the smallest first.
    pub gpus: Vec<String>,
}

/// Moments at which what is alive exceeds the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Over {
    /// Requests made while more was alive than the device can hold.
    pub requests: u64,
    /// Requests of the job.
    pub of: u64,
    /// The row of the first such moment, from 0.
    pub first: u32,
    /// The row of the last.
    pub last: u32,
}

impl Need {
    /// Whether the job completes on the device when its blocks lie without holes.
    pub(super) fn fits_packed(&self) -> bool {
        let Some(capacity) = self.on_device.capacity else {
            return true;
        };
        self.expandable.unwrap_or(self.bytes).min(self.bytes) <= capacity
    }
}

/// The process and device of the whole job that a failed one became.
pub(super) fn same_track<'a>(whole: &'a Recording, failed: &Holdings) -> Option<&'a Holdings> {
    let key = |track: &&Holdings| {
        (track.process, track.device) == (failed.process, failed.device) && !track.blocks.is_empty()
    };
    whole.tracks.iter().find(key).or_else(|| whole.worst())
}

/// Whether a run came to its own end.
pub(super) fn is_complete(recording: &Recording) -> bool {
    let fact = |name: &str| meta::find(&recording.meta, facts::RUN, name);
    fact(facts::ENDING) == Some("exit 0") && fact(facts::STOPPED).is_none() && !recording.truncated
}

pub(super) fn find(
    case: &Case<'_>,
    moment: Moment,
    categories: Vec<CategoryBytes>,
    holders: Vec<Holder>,
) -> Need {
    let track = case.track;
    let others = case.on_device.others;
    let alive = track.peak_allocated.saturating_add(case.taken());
    let smallest = case.job.and_then(|job| smallest(job, track));
    let (recorded, expandable) = smallest.unwrap_or((None, None));
    let bytes = recorded.map_or(alive, |bytes| bytes.saturating_add(others));
    let capacity = case.on_device.capacity;
    Need {
        bytes,
        replayed: recorded.is_some(),
        expandable: expandable.map(|bytes| bytes.saturating_add(others)),
        short: capacity.map_or(0, |capacity| bytes.saturating_sub(capacity)),
        complete: is_complete(case.recording),
        allocated: track.peak_allocated,
        used: track
            .peak_charged
            .max(track.peak_reserved)
            .saturating_add(track.context)
            .saturating_add(others),
        over: capacity.and_then(|capacity| over(track, capacity.saturating_sub(case.taken()))),
        moment,
        on_device: case.on_device.clone(),
        categories,
        holders,
        uncounted: case.uncounted,
        gpus: Vec::new(),
    }
}

/// The smallest devices with the recorded setting and with expandable segments, if those are not on.
fn smallest(job: &Job, track: &Holdings) -> Option<(Option<u64>, Option<u64>)> {
    let allocs = [Alloc::Recorded, Alloc::expandable()];
    let report = job.replay_track(track.process, track.device, &allocs)?;
    let size = |at: usize| {
        let replayed = report.allocators.get(at)?;
        replayed.smallest.map(|smallest| smallest.bytes)
    };
    let recorded = report
        .allocators
        .first()
        .is_some_and(|first| first.recorded);
    Some(if recorded {
        (size(0), size(1))
    } else {
        (None, size(0))
    })
}

fn over(track: &Holdings, room: u64) -> Option<Over> {
    let lifetimes = track.blocks.iter().map(|b| (b.born, b.died, b.bytes));
    let mut over: Option<Over> = None;
    let mut sum = 0_i64;
    for (row, change) in changes(lifetimes) {
        sum += change;
        if change <= 0 || sum.max(0).cast_unsigned() <= room {
            continue;
        }
        let over = over.get_or_insert(Over {
            requests: 0,
            of: track.blocks.len() as u64,
            first: row,
            last: row,
        });
        over.requests += 1;
        over.last = row;
    }
    over
}
