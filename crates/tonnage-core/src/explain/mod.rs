// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why does it need what it needs, and what would help?
//!
//! * `codes`: the findings, each with a stable code and a page;
//! * `cause`: what makes the peak, found in the lives of blocks;
//! * `fixes`: what would lower it. A setting of the allocator is replayed. Any
//!   other change is played on the recording: the blocks it would do away with
//!   are left out or made smaller, and the peak is found again. No number here
//!   is a rule of thumb.

pub mod codes;

mod cause;
mod fixes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use tonnage_trace::{StackId, StackTable, meta};

pub use codes::Code;
pub use fixes::{Fix, Measure, Proof};

use crate::facts;
use crate::holdings::{
    Category, CategoryBytes, Failure, Holding, Holdings, Known, Phase, Place, Recording, Slack,
    site,
};
use crate::replay::Job;
use crate::words::{bytes, count};

/// Version of the JSON that [`Explanation`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// How many holders are listed.
const HOLDERS: usize = 6;

/// How the recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A request failed and nothing was requested after it.
    OutOfMemory,
    /// It went on to its end, or to the end of the recording.
    Ran,
}

/// The moment that is explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moment {
    /// Its row, from 0.
    pub row: u32,
    /// Rows of the recording.
    pub rows: u32,
    /// What the program was doing.
    pub phase: Phase,
    /// Whether the recording says so itself.
    pub phase_known: Known,
    /// The step, from 0.
    pub step: u32,
    /// Nanoseconds since the first row with a time, to within a few rows.
    pub after_ns: Option<u64>,
    /// Where the request was made that reached the peak, or failed.
    pub place: Option<Place>,
    /// The module in whose forward pass it was.
    pub module: Option<String>,
}

/// The request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Request {
    /// Bytes, as the allocator rounded them.
    pub bytes: u64,
    /// Bytes the driver had left.
    pub free: u64,
    /// Bytes by which the device is too small for what was alive and this; 0 if it is not.
    pub short: u64,
}

/// What is on the device at the moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OnDevice {
    /// Bytes of the device, where they are known.
    pub capacity: Option<u64>,
    /// Bytes of blocks.
    pub allocated: u64,
    /// Bytes held by PyTorch and not handed out.
    pub cached: u64,
    /// Bytes of this process's context, where they are known.
    pub context: Option<u64>,
    /// Bytes this process obtained past PyTorch's allocator, where that is known.
    pub outside: Option<u64>,
    /// Most that other processes of the recording held on the device, their contexts included.
    pub others: u64,
}

/// Memory held by one line, for one purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Holder {
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// What for.
    pub category: Category,
    /// How that is known.
    pub known: Known,
    /// The user's line, or the innermost of Python.
    pub place: Option<Place>,
    /// The modules, with `*` for numbers: `layers.*.mlp`.
    pub module: Option<String>,
    /// A tensor of it, where torch named one.
    pub tensor: Option<String>,
    /// Its type and shape.
    pub shape: Option<String>,
}

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Its code.
    #[serde(flatten)]
    pub code: Code,
    /// What was found, in one sentence.
    pub sentence: String,
    /// Bytes it accounts for at the moment.
    pub bytes: u64,
    /// The line to look at.
    pub place: Option<Place>,
}

/// The largest sum of blocks in another phase than that of the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecondPeak {
    /// Bytes.
    pub bytes: u64,
    /// The phase.
    pub phase: Phase,
    /// The step.
    pub step: u32,
    /// The row.
    pub row: u32,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// How the recording ended.
    pub outcome: Outcome,
    /// The command, where it is known.
    pub command: Option<String>,
    /// The GPU, where it is known.
    pub gpu: Option<String>,
    /// Version of PyTorch, where it is known.
    pub torch: Option<String>,
    /// Number of the process.
    pub process: u32,
    /// Number of the device.
    pub device: i32,
    /// The moment: the failure, or the peak.
    pub moment: Moment,
    /// The request that failed.
    pub request: Option<Request>,
    /// What was on the device.
    pub on_device: OnDevice,
    /// Whose it was; categories without bytes are left out.
    pub categories: Vec<CategoryBytes>,
    /// What was held and not used.
    pub slack: Slack,
    /// Who held it, the largest first.
    pub holders: Vec<Holder>,
    /// The peak behind the peak.
    pub second_peak: Option<SecondPeak>,
    /// What was found, the class of a failure first, then by bytes.
    pub findings: Vec<Finding>,
    /// What would help, the cheapest first.
    pub fixes: Vec<Fix>,
    /// What the recording cannot say.
    pub unknown: Vec<String>,
}

/// What the analysis works on.
pub(crate) struct Case<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) track: &'a Holdings,
    pub(crate) row: u32,
    pub(crate) failed: bool,
    pub(crate) on_device: OnDevice,
    pub(crate) slack: Slack,
    /// The request that failed, as the block it would have been.
    pub(crate) wanted: Option<Holding>,
    /// Stacks of blocks that live at the moment since two passes or more.
    pub(crate) staying: HashSet<StackId>,
}

impl Case<'_> {
    pub(crate) fn stacks(&self) -> &StackTable {
        &self.recording.stacks
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = &Holding> {
        self.track.alive_at(self.row)
    }

    /// Bytes of the live blocks for which `of` says yes.
    pub(crate) fn held(&self, of: impl Fn(&Holding) -> bool) -> u64 {
        let blocks = self.alive().filter(|block| of(block));
        blocks.map(|block| block.bytes).sum()
    }

    pub(crate) fn phase(&self) -> Phase {
        if let Some(failure) = self.track.failure.filter(|_| self.failed) {
            return failure.phase;
        }
        self.track
            .phase_at(self.row)
            .map_or(Phase::Load, |span| span.phase)
    }
}

/// Explains the failure or the peak of a recording; none if it shows no block at all.
///
/// `job` is the same recording, ready to be replayed; without it no setting is proposed.
pub fn explain(recording: &Recording, job: Option<&Job>) -> Option<Explanation> {
    let track = recording.worst()?;
    let failure = track.failure.filter(|failure| failure.last);
    let row = track.moment();
    let stream = failure.map_or_else(
        || {
            let made = track.blocks.iter().find(|block| block.born == row);
            made.map_or(0, |block| block.stream)
        },
        |failure| failure.stream,
    );
    let slack = track.slack_at(row, stream);
    let case = Case {
        recording,
        track,
        row,
        failed: failure.is_some(),
        on_device: on_device(recording, track, row),
        slack,
        wanted: failure.map(|failure| wanted(track, failure)),
        staying: cause::staying(track, row),
    };
    let request = failure.map(|failure| Request {
        bytes: failure.requested,
        free: failure.free,
        short: cause::short(&case, failure.requested),
    });
    let findings = cause::find(&case);
    let fixes = fixes::find(&case, &findings, job);
    let made = track.blocks.iter().find(|block| block.born == row);
    let stack = failure.map_or_else(|| made.and_then(|block| block.stack), |f| f.stack);
    let module = failure.map_or_else(|| made.and_then(|block| block.module), |f| f.module);
    let span = track.phase_at(row);
    let fact = |name: &str| recording.fact(track.process, name).map(str::to_owned);
    Some(Explanation {
        schema_version: SCHEMA_VERSION,
        outcome: if failure.is_some() {
            Outcome::OutOfMemory
        } else {
            Outcome::Ran
        },
        command: fact(meta::COMMAND),
        gpu: fact(meta::GPU_NAME),
        torch: fact(meta::TORCH_VERSION),
        process: track.process,
        device: track.device,
        moment: Moment {
            row,
            rows: recording.rows,
            phase: case.phase(),
            phase_known: if track.phases_told {
                Known::Exact
            } else {
                Known::Inferred
            },
            step: failure.map_or_else(|| span.map_or(0, |span| span.step), |f| f.step),
            after_ns: after(recording, row),
            place: site(&recording.stacks, stack),
            module: module.map(|id| recording.stacks.text(id).to_owned()),
        },
        request,
        on_device: case.on_device.clone(),
        categories: track
            .categories_at(row)
            .into_iter()
            .filter(|part| part.blocks > 0)
            .collect(),
        slack,
        holders: holders(&case),
        second_peak: second_peak(&case),
        findings,
        fixes,
        unknown: unknown(recording, track),
    })
}

/// The block that a failed request would have become: of the sort of those that the same stack made.
fn wanted(track: &Holdings, failure: Failure) -> Holding {
    let mut before = track.blocks.iter().rev();
    let same = before.find(|block| block.stack == failure.stack && block.stack.is_some());
    Holding {
        born: failure.row,
        died: Holding::ALIVE,
        address: 0,
        bytes: failure.requested,
        requested: failure.requested,
        stream: failure.stream,
        stack: failure.stack,
        module: failure.module,
        name: None,
        shape: None,
        step: failure.step,
        category: same.map_or(Category::Other, |block| block.category),
        known: Known::Inferred,
        phase: failure.phase,
    }
}

fn after(recording: &Recording, row: u32) -> Option<u64> {
    let index = recording.times.partition_point(|&(at, _)| at <= row);
    Some(recording.times.get(index.checked_sub(1)?)?.1)
}

fn on_device(recording: &Recording, track: &Holdings, row: u32) -> OnDevice {
    let allocated = track.allocated_at(row);
    let reserved = track.reserved_at(row).max(allocated);
    let charged = match track.failure {
        Some(failure) if failure.last => failure.charged,
        _ => track.charged_at_peak,
    };
    let driver_seen = track.peak_charged > 0;
    let others = recording
        .tracks
        .iter()
        .filter(|other| other.device == track.device && other.process != track.process);
    OnDevice {
        capacity: track.capacity,
        allocated,
        cached: reserved - allocated,
        context: (track.context > 0).then_some(track.context),
        outside: driver_seen.then(|| charged.saturating_sub(reserved)),
        others: others.fold(0_u64, |sum, other| {
            // Bounded, as every sum of holdings is: a hostile recording may have many processes.
            sum.saturating_add(other.peak_charged + other.context)
                .min(1 << 60)
        }),
    }
}

/// A module's path with `*` for every number, so that layers are one.
pub(crate) fn pattern(path: &str) -> String {
    let parts = path.split('.').map(|part| {
        if part.chars().all(|c| c.is_ascii_digit()) {
            "*"
        } else {
            part
        }
    });
    parts.collect::<Vec<_>>().join(".")
}

fn holders(case: &Case<'_>) -> Vec<Holder> {
    type Key = (Category, Option<String>, Option<Place>);
    let mut groups: BTreeMap<Key, Holder> = BTreeMap::new();
    let stacks = case.stacks();
    for block in case.alive() {
        let module = block.module.map(|id| pattern(stacks.text(id)));
        let place = site(stacks, block.stack);
        let holder = groups
            .entry((block.category, module.clone(), place.clone()))
            .or_insert_with(|| Holder {
                bytes: 0,
                blocks: 0,
                category: block.category,
                known: Known::Exact,
                place,
                module,
                tensor: None,
                shape: None,
            });
        holder.bytes += block.bytes;
        holder.blocks += 1;
        holder.known = holder.known.max(block.known);
        if holder.tensor.is_none() {
            holder.tensor = block.name.map(|id| stacks.text(id).to_owned());
            let shape = block.shape.map(|id| stacks.text(id));
            holder.shape = shape.and_then(|text| Some(text.split_once(' ')?.1.to_owned()));
        }
    }
    let mut holders: Vec<Holder> = groups.into_values().collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders.truncate(HOLDERS);
    holders
}

fn second_peak(case: &Case<'_>) -> Option<SecondPeak> {
    let phase = case.phase();
    let peaks = case.track.phase_peaks().into_iter();
    let others = peaks.filter(|(span, bytes, row)| {
        // After a failure the recording shows unwinding, not the program.
        span.phase != phase && *bytes > 0 && (!case.failed || *row < case.row)
    });
    // The first of equals.
    let best = others.rev().max_by_key(|(_, bytes, _)| *bytes)?;
    Some(SecondPeak {
        bytes: best.1,
        phase: best.0.phase,
        step: best.0.step,
        row: best.2,
    })
}

fn unknown(recording: &Recording, track: &Holdings) -> Vec<String> {
    let mut unknown: Vec<String> = recording
        .meta
        .iter()
        .filter(|fact| fact.name.starts_with(meta::UNKNOWN))
        .filter(|fact| fact.process == track.process || fact.process == facts::RUN)
        .map(|fact| fact.text.clone())
        .collect();
    if track.unseen_births > 0 {
        let sum: u64 = track
            .blocks
            .iter()
            .filter(|block| block.born == 0 && block.stack.is_none())
            .map(|block| block.bytes)
            .sum();
        unknown.push(format!(
            "who made {} that were there before the recording began",
            bytes(sum)
        ));
    }
    if track.sizes_unknown > 0 {
        unknown.push(format!(
            "how far {} blocks were rounded beyond 512 bytes: at least so much is allocated",
            count(track.sizes_unknown)
        ));
    }
    if !track.phases_told {
        // What torch named is known all the same, and the others are marked where they stand.
        let is_exact = |block: &Holding| block.known == Known::Exact;
        if !track.blocks.iter().any(is_exact) {
            let gap = "categories and phases: they are inferred from stacks and lifetimes";
            unknown.push(gap.to_owned());
        } else if track.phases.len() > 1 {
            unknown.push("phases: they are inferred from stacks".to_owned());
        }
    }
    if track.capacity.is_none() && !unknown.iter().any(|gap| gap.contains("capacity")) {
        unknown.push("the capacity of the device".to_owned());
    }
    if recording.truncated {
        unknown.push("the end: the recording stops in the middle".to_owned());
    }
    unknown
}
