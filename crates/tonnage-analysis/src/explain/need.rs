// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the whole job needs, and by how much the GPU is too small.
//!
//! A job that runs out of memory is run a second time on a device without a limit. How much it needs is found by the
//! rule of the verdict, so that the two cannot disagree; this module adds the holders and the moment.

use serde::Serialize;

use super::case::Case;
use super::{Holder, Moment, OnDevice};
use crate::holdings::{CategoryBytes, Holdings, Recording, changes};
use crate::replay::Job;
use crate::verdict::{Needed, Seen};

/// The setting that is tried first.
pub(super) const EXPANDABLE: &str = "expandable_segments:True";

/// The need of the whole job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Need {
    /// Bytes of the smallest device on which the whole job completes with the recorded setting, contexts and other
    /// processes included.
    pub bytes: u64,
    /// Whether that was replayed; otherwise it is what was alive at once, a lower bound: processes share the device, or
    /// the replay does not reproduce the recording.
    pub replayed: bool,
    /// The same with expandable segments, replayed; none where that is not less.
    pub expandable: Option<u64>,
    /// Bytes by which the device is too small; 0 if it is not, or if the job fits on it with expandable segments.
    pub short: u64,
    /// Whether the second run came to its end; otherwise it needs at least this.
    pub complete: bool,
    /// Whether it got as far as the first one, which failed; otherwise it shows only a part that fits.
    #[serde(skip)]
    pub(super) seen_to_failure: bool,
    /// Most bytes of blocks.
    pub allocated: u64,
    /// Most bytes in use on the device without a limit, with what was cached.
    pub used: u64,
    /// The moments at which what is alive exceeds the device.
    pub over: Option<Over>,
    /// The fullest moment.
    pub moment: Moment,
    /// The memory on the device then.
    pub on_device: OnDevice,
    /// The bytes by kind then; categories without bytes are left out.
    pub categories: Vec<CategoryBytes>,
    /// The holders, the largest first.
    pub holders: Vec<Holder>,
    /// Most that was seen of what is not counted and comes on top.
    pub uncounted: u64,
    /// The GPUs of the catalogue that hold the job, also with what is not counted, the smallest first.
    pub gpus: Vec<String>,
}

/// Moments at which what is alive exceeds the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
    /// Whether the second run showed no more than that the device is too small: `bytes` is its capacity then.
    pub fn is_unknown(&self) -> bool {
        !self.complete && self.short == 0 && self.on_device.capacity == Some(self.bytes)
    }

    /// Whether the job may need more than `bytes`.
    pub fn is_at_least(&self) -> bool {
        !self.complete || !self.replayed
    }
}

/// The process and device of the whole job that a failed one became.
pub(super) fn same_track<'a>(whole: &'a Recording, failed: &Holdings) -> Option<&'a Holdings> {
    let key = |track: &&Holdings| {
        (track.process, track.device) == (failed.process, failed.device) && !track.blocks.is_empty()
    };
    whole.tracks.iter().find(key).or_else(|| whole.worst())
}

pub(super) fn find(
    case: &Case<'_>,
    wanted: u64,
    moment: Moment,
    categories: Vec<CategoryBytes>,
    holders: Vec<Holder>,
) -> Need {
    let track = case.track;
    let others = case.on_device.others;
    let alive = track.peak_allocated.saturating_add(case.taken());
    let capacity = case.on_device.capacity;
    let complete = case.recording.is_complete();
    let job = case.job.filter(|job| is_replayed(case.recording, job));
    let seen = Seen::from_run(complete, track.peak_allocated, wanted);
    let needed = Needed::find(job, alive, capacity, seen);
    Need {
        seen_to_failure: seen != Seen::NotToTheFailure,
        bytes: needed.bytes,
        replayed: needed.known == "replayed",
        expandable: needed.expandable,
        short: needed.short,
        complete,
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

/// Whether a replay knows all that uses the devices: one process on each, with PyTorch's allocator.
fn is_replayed(recording: &Recording, job: &Job) -> bool {
    let tracks = recording.tracks.iter().filter(|track| track.device >= 0);
    let mut devices: Vec<i32> = tracks.map(|track| track.device).collect();
    let all = devices.len();
    devices.sort_unstable();
    devices.dedup();
    devices.len() == all && job.tracks.len() == all
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
