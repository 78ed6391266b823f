// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much a job takes that does not fit: read off the same job on a device without a limit.
//!
//! The peak on such a device is more than the job needs, because nothing ever made PyTorch give its cache
//! back. The need is the smallest device on which a replay of the whole job is served. Where processes share a device,
//! which a replay does not know, it is at least what no allocator can avoid. [`Needed`] is that rule; `explain` uses it
//! too.

use std::io::{self, Read};

use serde::Serialize;
use tonnage_recording::account::Rounding;
use tonnage_recording::facts;
use tonnage_recording::{Account, DeviceAccount, Kind, Reader};

use super::{Costs, Facts, Rows, VerdictError, costs, margin};
use crate::replay::{Alloc, Job};
use crate::unknown::{HookFailure, Limitation};

/// The need of a job that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Need {
    /// The device of the machine that it is about: the one with the largest need.
    pub device: i32,
    /// Bytes of a device that is large enough, context included.
    pub bytes: u64,
    /// `replayed`: the smallest that was found. `at_least`: blocks, context and memory outside PyTorch alone take so
    /// much; PyTorch's cache comes on top. `unknown`: more than this, which is the capacity of the GPU.
    pub known: String,
    /// The most that was in use on a device without a limit, with all that PyTorch cached.
    pub most_in_use: u64,
    /// The same with expandable segments, replayed; none where that is not less.
    pub expandable: Option<u64>,
    /// Bytes below which no allocator can go: blocks, context and memory outside PyTorch at the fullest moment.
    pub least: u64,
    /// Largest sum of blocks.
    pub peak_allocated: u64,
    /// Bytes by which the GPU is too small; 0 if the job fits on it with expandable segments, which place blocks
    /// otherwise.
    pub short: u64,
    /// Whether the job was seen to its end; else it takes at least this much.
    pub complete: bool,
    /// How the run without a limit ended: `exit 0`, or why it was ended.
    pub ended: String,
    /// When it was above the capacity of the GPU.
    pub above: Above,
    /// Most that was seen of what is not counted and comes on top.
    pub uncounted: u64,
    /// GPUs of the catalogue that are large enough, also for what is not counted, the smallest first.
    pub gpus: Vec<String>,
}

/// When blocks, context and memory outside PyTorch were more than the GPU has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Above {
    /// How often it went above.
    pub times: u64,
    /// The first row above, from 0, in the recording of the whole job.
    pub first_event: u64,
    /// The last one.
    pub last_event: u64,
    /// Rows of that recording.
    pub events: u64,
}

/// How far a job that ran out of memory was seen on a device without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// To its end.
    ToItsEnd,
    /// Beyond the moment at which it ran out.
    BeyondTheFailure,
    /// Not so far: it was ended, or it took another way.
    NotToTheFailure,
}

impl Seen {
    /// The reach of a run in which at most so many bytes were allocated; the first failed when `wanted` were needed at
    /// once.
    pub(crate) fn from_run(complete: bool, allocated: u64, wanted: u64) -> Self {
        match complete {
            true => Self::ToItsEnd,
            false if allocated >= wanted => Self::BeyondTheFailure,
            false => Self::NotToTheFailure,
        }
    }
}

/// How much a job takes, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needed {
    /// [`Need::bytes`].
    pub(crate) bytes: u64,
    /// [`Need::known`].
    pub(crate) known: &'static str,
    /// [`Need::expandable`].
    pub(crate) expandable: Option<u64>,
    /// [`Need::short`].
    pub(crate) short: u64,
}

impl Needed {
    /// The need of the whole `job`, at least `least` with any allocator; without a job that can be
    /// replayed, that is all that is known. `seen` is how far the job was observed.
    pub(crate) fn find(job: Option<&Job>, least: u64, capacity: Option<u64>, seen: Seen) -> Self {
        // A part of the job that ends before the failure fits with any setting.
        let job = job.filter(|_| seen != Seen::NotToTheFailure);
        let complete = seen == Seen::ToItsEnd;
        // It ran out on this one.
        let refused = capacity;
        let smallest = job.and_then(|job| margin::smallest(job, &Alloc::Recorded, refused));
        let bytes = smallest.unwrap_or(least);
        let expandable = job
            .filter(|job| smallest.is_some() && job.takes_settings())
            .and_then(|job| margin::smallest(job, &Alloc::expandable(), refused))
            .filter(|&less| less < bytes);
        // A run that did not get beyond the failure shows only that more is needed.
        let (bytes, known) = match (capacity, smallest) {
            (Some(capacity), _) if !complete && bytes <= capacity => (capacity, "unknown"),
            (_, Some(_)) => (bytes, "replayed"),
            (_, None) => (bytes, "at_least"),
        };
        let capacity = capacity.unwrap_or(u64::MAX);
        Self {
            bytes,
            known,
            expandable,
            // Blocks that fit when they lie otherwise are not too many.
            short: match expandable {
                Some(less) if less <= capacity => 0,
                _ => bytes.saturating_sub(capacity),
            },
        }
    }
}

/// The memory of a job without a limit.
pub(super) struct Whole {
    pub(super) need: Option<Need>,
    pub(super) costs: Option<Costs>,
    /// Sizes that its need rests on and that are not certain, a sentence each.
    pub(super) unknown_sizes: Vec<String>,
    pub(super) limitations: Vec<Limitation>,
    pub(super) hook_failures: Vec<HookFailure>,
}

pub(super) fn find<R: Read>(
    open: &impl Fn() -> io::Result<R>,
    capacity: u64,
    wanted: u64,
) -> Result<Whole, VerdictError> {
    let rows = Rows::read(open()?)?;
    let facts = Facts::read(&rows.reader);
    Ok(Whole {
        need: need(&rows, &facts, open, (capacity, wanted))?,
        costs: costs::find(&facts),
        unknown_sizes: rows.unmodelled.unknown_sizes(),
        limitations: Limitation::all(facts.all),
        hook_failures: HookFailure::all(facts.all),
    })
}

fn need<R: Read>(
    rows: &Rows<R>,
    facts: &Facts<'_>,
    open: &impl Fn() -> io::Result<R>,
    (capacity, wanted): (u64, u64),
) -> Result<Option<Need>, VerdictError> {
    let totals = rows.totals(facts);
    let Some(fullest) = totals.iter().max_by_key(|total| total.most_in_use) else {
        return Ok(None);
    };
    let on_it = rows.tracks().filter(|((_, on), _)| *on == fullest.device);
    let largest = on_it.max_by_key(|(_, track)| track.at_peak_used().breakdown.used);
    let Some(((process, device), track)) = largest else {
        return Ok(None);
    };
    // As of a job that fits.
    let uses = rows.tracks().map(|((process, on), track)| {
        let peak = track.at_peak_used().breakdown;
        (process, on, peak.used.saturating_sub(peak.context))
    });
    let at_work = margin::OnDevice::count(uses, device, facts.all);
    let others = track.at_peak_used().breakdown.other_processes;
    let (least, above) = least(open()?, (process, device), capacity.saturating_sub(others))?;
    let least = least.saturating_add(others);
    let stopped = facts::why_stopped(facts.all);
    let complete = facts.ending == "exit 0" && stopped.is_none();
    let pairs: Vec<_> = rows.tracks().map(|(on, _)| on).collect();
    let job = margin::load(open, &totals, &pairs, facts.all);
    let peak_allocated = track.at_peak_allocated().breakdown.allocated;
    let seen = Seen::from_run(complete, peak_allocated, wanted);
    let needed = Needed::find(job.as_ref(), least, Some(capacity), seen);
    let need = Need {
        device,
        bytes: needed.bytes,
        known: needed.known.to_owned(),
        most_in_use: fullest.most_in_use,
        expandable: needed.expandable,
        least,
        peak_allocated,
        short: needed.short,
        complete,
        ended: stopped.unwrap_or_else(|| facts.ending.clone()),
        above,
        uncounted: margin::most_uncounted(facts.all, at_work),
        gpus: Vec::new(),
    };
    Ok(Some(need))
}

/// The largest use that no allocator can avoid, and when it was above `room`.
fn least<R: Read>(source: R, key: (u32, i32), room: u64) -> Result<(u64, Above), VerdictError> {
    let mut reader = Reader::new(source)?;
    let mut account: Account = Account::new(Rounding::PyTorch);
    let mut above = Above::default();
    let (mut least, mut was_above, mut row) = (0, false, 0);
    while let Some(event) = reader.next().transpose()? {
        account.apply(&event, row, reader.stacks());
        // Between the driver's row of a new segment and PyTorch's rows about it, it is not known whose it is.
        let is_settled = |track: &&DeviceAccount| {
            matches!(event.kind, Kind::Alloc | Kind::FreeRequested) || track.block_rows() == 0
        };
        let track = account.get(key.0, key.1).filter(is_settled);
        if let Some(track) = track.filter(|_| (event.process, event.device) == key) {
            let bytes = unavoidable(track);
            least = least.max(bytes);
            let is_above = bytes > room;
            if is_above {
                if !was_above {
                    above.times += 1;
                }
                if above.times == 1 && !was_above {
                    above.first_event = row;
                }
                above.last_event = row;
            }
            was_above = is_above;
        }
        row += 1;
    }
    above.events = row;
    Ok((least, above))
}

/// The memory on the device without PyTorch's cache.
fn unavoidable(track: &DeviceAccount) -> u64 {
    let now = track.breakdown();
    now.used.saturating_sub(now.cached)
}
