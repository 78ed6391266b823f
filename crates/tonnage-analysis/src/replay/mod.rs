// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would have happened with another allocator, another setting, another device?
//!
//! A recording becomes a list of requests ([`Job::load`]); each allocator then
//! serves that list on a simulated device ([`Job::replay`]).
//!
//! * `requests` reads the program's requests out of a recording;
//! * `start` is what a truncated recording began with;
//! * `device` is the device it runs on;
//! * `policy` runs requests through one allocator;
//! * `changed` is the same program with other lifetimes of its blocks;
//! * `check` compares the replay under the recorded setting with the recording;
//! * `smallest` finds the smallest device on which a recording completes.
//!
//! PyTorch's allocator is exact; the others are approximations and say so in
//! every result.

mod changed;
mod check;
mod device;
mod facts;
mod offline;
mod policy;
mod requests;
mod smallest;
mod start;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;
use tonnage_alloc::torch::{Rules, Settings, SettingsError, Version};
use tonnage_alloc::{AddressOrder, Bfc, Policy, StreamPool, Suballocator};
use tonnage_trace::account::Rounding;
use tonnage_trace::{Account, Ending, Meta, ReadError, Reader, meta};

pub use changed::{Change, Changes};
pub use check::{Comparison, Difference, Seen};
pub use requests::Gaps;
pub use smallest::Smallest;

use check::Check;
use device::{DeviceSpec, ReplayDevice};
use facts::RecordedAs;
use policy::{Approximation, Refusal, Replaying, RunSummary, Torch, UNPLACED, run};
use requests::{Builder, OpKind, Requests};
use start::{Learner, Start};

/// Version of the JSON that [`Report`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// A device with more memory than anyone asks for, where the real one is not known.
const AMPLE: u64 = 1 << 40;
/// The largest device that is simulated: absurd requests must not map absurdly many pages.
const LARGEST: u64 = 1 << 42;

/// An allocator to replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alloc {
    /// The one of the recording, with its setting.
    Recorded,
    /// PyTorch's with this `PYTORCH_CUDA_ALLOC_CONF`.
    Torch(Box<TorchConf>),
    /// The driver's stream-ordered pools, as an approximation.
    CudaMallocAsync,
    /// Best fit with coalescing, as TensorFlow and JAX do, as an approximation.
    Bfc,
    /// No allocator: the placement of someone who knew all lives beforehand.
    Plan,
}

/// A value of `PYTORCH_CUDA_ALLOC_CONF` that PyTorch takes. Two are the same if they are written the same.
#[derive(Clone, Debug, Default)]
pub struct TorchConf {
    text: String,
    settings: Settings,
}

impl TorchConf {
    /// The text, as it can be pasted.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it sets.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl FromStr for TorchConf {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        Ok(Self {
            text: text.to_owned(),
            settings: text.parse()?,
        })
    }
}

impl PartialEq for TorchConf {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for TorchConf {}

impl Alloc {
    /// PyTorch's with these settings.
    pub fn torch(conf: &str) -> Result<Self, AllocError> {
        let parsed = conf.parse();
        let parsed = parsed.map_err(|source| AllocError::Settings {
            conf: conf.to_owned(),
            source,
        })?;
        Ok(Self::Torch(Box::new(parsed)))
    }

    /// PyTorch's with expandable segments.
    pub fn expandable() -> Self {
        let settings = Settings {
            expandable_segments: true,
            ..Settings::default()
        };
        Self::Torch(Box::new(TorchConf {
            text: "expandable_segments:True".to_owned(),
            settings,
        }))
    }

    /// How far what it computes can be trusted.
    pub fn fidelity(&self) -> Fidelity {
        match self {
            Self::Recorded | Self::Torch(_) => Fidelity::Exact,
            Self::CudaMallocAsync | Self::Bfc => Fidelity::Approximation,
            Self::Plan => Fidelity::Offline,
        }
    }

    /// What is replayed unless told otherwise.
    pub fn usual() -> Vec<Self> {
        vec![
            Self::Recorded,
            Self::Torch(Box::default()),
            Self::expandable(),
            Self::CudaMallocAsync,
            Self::Bfc,
        ]
    }
}

impl fmt::Display for Alloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded => f.write_str("recorded"),
            Self::Torch(conf) if conf.text.is_empty() => f.write_str("torch"),
            Self::Torch(conf) => write!(f, "torch:{}", conf.text),
            Self::CudaMallocAsync => f.write_str("cuda-malloc-async"),
            Self::Bfc => f.write_str("bfc"),
            Self::Plan => f.write_str("plan"),
        }
    }
}

/// Not an allocator.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AllocError {
    /// No such name.
    #[error(
        "no allocator is called `{0}`; say recorded, torch, torch:SETTINGS, cuda-malloc-async, bfc or plan"
    )]
    Unknown(String),
    /// PyTorch would refuse the settings.
    #[error("PyTorch refuses the settings `{conf}`: {source}")]
    Settings {
        /// What was given.
        conf: String,
        /// Why.
        source: SettingsError,
    },
}

impl FromStr for Alloc {
    type Err = AllocError;

    fn from_str(text: &str) -> Result<Self, AllocError> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("recorded", "") => Ok(Self::Recorded),
            ("cuda-malloc-async", "") => Ok(Self::CudaMallocAsync),
            ("bfc", "") => Ok(Self::Bfc),
            ("plan", "") => Ok(Self::Plan),
            ("torch", conf) => Self::torch(conf),
            _ => Err(AllocError::Unknown(text.to_owned())),
        }
    }
}

/// On what a recording is replayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes of the device; else those of the recording, else enough.
    pub capacity: Option<u64>,
    /// Bytes of a context; else those of the recording, else none.
    pub context: Option<u64>,
    /// The release of torch, as minor number of version 2; else that of the recording.
    pub torch_minor: Option<u16>,
}

/// Why a recording could not be replayed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It cannot be opened.
    #[error("the recording cannot be opened")]
    Open(#[from] io::Error),
    /// It cannot be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
    /// It is longer than row numbers reach.
    #[error("the recording has more than {} rows", u32::MAX)]
    TooLong,
    /// It shows no request for device memory.
    #[error("the recording shows no request for device memory")]
    NoRequests,
    /// The device that is asked for is too small for its own context.
    #[error("a context of {context} bytes does not fit on a device of {capacity} bytes")]
    NoRoom {
        /// Bytes of the context.
        context: u64,
        /// Bytes of the device.
        capacity: u64,
    },
}

/// How far a result can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fidelity {
    /// What PyTorch does, event for event.
    Exact,
    /// The rules of this allocator are not documented, or simplified here.
    Approximation,
    /// An offline placement: not a run of an allocator.
    Offline,
}

/// Calls of the driver that move memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DriverCalls {
    /// `cudaMalloc`, served.
    pub malloc: u64,
    /// `cudaFree`.
    pub free: u64,
    /// `cuMemMap`, page by page.
    pub map: u64,
    /// `cuMemUnmap`, page by page.
    pub unmap: u64,
    /// Requests the driver refused.
    pub refused: u64,
}

impl DriverCalls {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.malloc + self.free + self.map + self.unmap + self.refused
    }
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// Every request was served.
    Completes,
    /// A request could not be served.
    OutOfMemory {
        /// The row of the request, from 0; `None` if the start itself does not fit.
        row: Option<u64>,
        /// Its number among the requests, from 1.
        request: u64,
        /// Bytes asked for.
        requested: u64,
        /// Bytes the device had free.
        free: u64,
    },
    /// Nothing after this row says anything about the allocator.
    Undefined {
        /// The row, from 0.
        row: Option<u64>,
        /// Why.
        reason: String,
    },
}

/// What one allocator did with a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Replayed {
    /// The allocator, as it can be typed.
    pub allocator: String,
    /// Whether this is the recorded one.
    pub recorded: bool,
    /// How far to trust it.
    pub fidelity: Fidelity,
    /// How it ended.
    pub outcome: Outcome,
    /// Most that was handed out.
    pub peak_allocated: u64,
    /// Most that was held from the driver.
    pub peak_reserved: u64,
    /// Handed out at the fullest moment of it.
    pub allocated_at_peak: u64,
    /// Held and not handed out at that moment.
    pub cached_at_peak: u64,
    /// The largest free block at that moment, where it was looked for.
    pub largest_free_at_peak: Option<u64>,
    /// The row of that moment, from 0.
    pub peak_row: Option<u64>,
    /// What it asked of the driver.
    pub driver: DriverCalls,
    /// How often everything cached was given back to serve a request.
    pub retries: u64,
    /// Requests that failed when they were recorded and are served here.
    pub served_failures: u64,
    /// The smallest device on which it completes, where it was looked for.
    pub smallest: Option<Smallest>,
    /// How it compares with the recording, for the recorded setting.
    pub comparison: Option<Comparison>,
    /// Where PyTorch's behaviour is undefined or not known.
    pub undefined: Vec<String>,
}

impl Replayed {
    /// Whether every request was served.
    pub fn completes(&self) -> bool {
        self.outcome == Outcome::Completes
    }
}

/// What was taken for granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Assumption {
    /// The recording begins in the middle: so much was there already. Under the
    /// recorded setting its segments are taken over as they were, where `adopted`
    /// says so; otherwise its blocks are requested first, by address.
    Start {
        /// Blocks.
        blocks: u64,
        /// Bytes asked for in them.
        bytes: u64,
        /// Segments.
        segments: u64,
        /// Whether they could be taken over.
        adopted: bool,
        /// Blocks of which the recording does not determine the size.
        ambiguous: u64,
    },
    /// The capacity of the recorded device is not known.
    Capacity {
        /// Bytes that were assumed.
        bytes: u64,
    },
    /// The size of a context is not known; none is counted.
    NoContext,
    /// The release of torch is not known for certain.
    Torch {
        /// What the recording says.
        said: String,
        /// The minor number that was assumed.
        minor: u16,
    },
    /// The settings are not in the recording; defaults are assumed.
    Settings,
    /// The order of the driver's addresses was inferred from the recording.
    AddressOrder {
        /// Whether they ascend.
        ascending: bool,
    },
    /// So many bursts of segments given back are taken for calls of `empty_cache`.
    EmptyCache {
        /// How many.
        calls: u64,
    },
    /// Of so many blocks only the size is known, not the request.
    SizesOnly {
        /// How many.
        blocks: u64,
    },
    /// The recording stops without its end.
    CutOff,
    /// Other processes used the same device; their memory is not counted.
    SharedDevice {
        /// Processes on the device.
        processes: u64,
    },
}

/// One process on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrackReport {
    /// Number of the process.
    pub process: u32,
    /// Its rank, where it has one.
    pub rank: Option<String>,
    /// Number of the device.
    pub device: i32,
    /// Requests.
    pub requests: u64,
    /// Events of PyTorch's allocator.
    pub events: u64,
    /// Most that was reserved, as the recording shows.
    pub recorded_peak_reserved: u64,
    /// Most bytes alive at once: no allocator needs less.
    pub peak_live: u64,
    /// Most that others than the allocator held.
    pub peak_outside: u64,
    /// Bytes of the device it was replayed on.
    pub capacity: u64,
    /// Whether that is given or known, rather than assumed to be enough.
    pub capacity_known: bool,
    /// Bytes of the context.
    pub context: u64,
    /// What was taken for granted.
    pub assumptions: Vec<Assumption>,
    /// What did not make sense and was passed over.
    pub gaps: Gaps,
    /// Each allocator's result.
    pub allocators: Vec<Replayed>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// Every process on every device, the one with the most alive first.
    pub tracks: Vec<TrackReport>,
}

/// One process on one device, ready to be replayed.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    requests: Requests,
    rank: Option<String>,
    recorded: RecordedAs,
    pub(crate) version: Option<Version>,
    rules: Rules,
    order: AddressOrder,
    pub(crate) capacity: u64,
    pub(crate) capacity_known: bool,
    pub(crate) context: u64,
    assumptions: Vec<Assumption>,
    adopted: Option<Start>,
    comparison: Option<Comparison>,
}

/// A recording, ready to be replayed any number of times, by many threads at once.
#[derive(Debug)]
pub struct Job {
    pub(crate) tracks: Vec<Track>,
}

impl Job {
    /// Reads a recording and replays it once, as recorded, to see that it is understood.
    ///
    /// `open` opens the recording, as a trace, once for every reading of it.
    pub fn load<R: Read>(
        open: impl Fn() -> io::Result<R>,
        options: &Options,
    ) -> Result<Self, ReplayError> {
        let mut reader = Reader::new(open()?)?;
        let mut account: Account<Option<u32>> = Account::new(Rounding::PyTorch);
        let mut builders: BTreeMap<(u32, i32), Builder> = BTreeMap::new();
        let mut row = 0_u32;
        while let Some(event) = reader.next().transpose()? {
            // -1 is pinned host memory, which no allocator of the device serves.
            if event.device >= 0 {
                let key = (event.process, event.device);
                let change = account.apply(&event, u64::from(row), reader.stacks());
                if let Some(track) = account.get_mut(key.0, key.1) {
                    let builder = builders
                        .entry(key)
                        .or_insert_with(|| Builder::new(key.0, key.1));
                    builder.row(&event, &change, track, row, reader.stacks());
                }
            }
            row = row.checked_add(1).ok_or(ReplayError::TooLong)?;
        }
        let cut_off = reader.ending().is_some_and(Ending::is_truncated);
        let facts = reader.meta().to_vec();
        drop(reader);
        let mut tracks = Vec::new();
        for ((process, device), builder) in builders {
            let Some(track) = account.get(process, device) else {
                continue;
            };
            let requests = builder.finish(track);
            if requests.allocs > 0 {
                tracks.push(Track::prepare(&open, requests, &facts, options, cut_off)?);
            }
        }
        if tracks.is_empty() {
            return Err(ReplayError::NoRequests);
        }
        let mut sharing: BTreeMap<i32, u64> = BTreeMap::new();
        for track in &tracks {
            *sharing.entry(track.requests.device).or_default() += 1;
        }
        for track in &mut tracks {
            let processes = sharing[&track.requests.device];
            if processes > 1 {
                track
                    .assumptions
                    .push(Assumption::SharedDevice { processes });
            }
        }
        // Stable, so that rank 0 speaks for equals.
        tracks.sort_by_key(|track| std::cmp::Reverse(track.requests.peak_live));
        Ok(Self { tracks })
    }

    /// Replays every process with each allocator; `smallest` also looks for the smallest device.
    pub fn replay(&self, allocs: &[Alloc], smallest: bool) -> Report {
        self.replay_watched(allocs, smallest, &|_, _| {})
    }

    /// The same; `progress` is told how many replays are done, and how many there are.
    pub fn replay_watched(
        &self,
        allocs: &[Alloc],
        smallest: bool,
        progress: &dyn Fn(usize, usize),
    ) -> Report {
        let total = self.tracks.len() * allocs.len();
        let mut done = 0;
        let tracks = self.tracks.iter().map(|track| {
            track.report(allocs, smallest, &mut || {
                done += 1;
                progress(done, total);
            })
        });
        Report {
            schema_version: SCHEMA_VERSION,
            tracks: tracks.collect(),
        }
    }
}

impl Job {
    /// Replays one process on one device with each allocator, and looks for the smallest device; none if there is no
    /// such process.
    pub fn replay_track(&self, process: u32, device: i32, allocs: &[Alloc]) -> Option<TrackReport> {
        let track = self.track(process, device)?;
        Some(track.report(allocs, true, &mut || {}))
    }
}

impl Track {
    fn prepare<R: Read>(
        open: &impl Fn() -> io::Result<R>,
        requests: Requests,
        facts: &[Meta],
        options: &Options,
        cut_off: bool,
    ) -> Result<Self, ReplayError> {
        let process = requests.process;
        let recorded = RecordedAs::read(facts, process, &requests);
        let mut assumptions = Vec::new();
        let recorded_context = if requests.context > 0 {
            requests.context
        } else {
            recorded.context.unwrap_or(0)
        };
        // What the recording was made on, to reproduce it.
        let was = recorded.capacity.or_else(|| {
            let available = requests.available?;
            Some(available.saturating_add(recorded_context))
        });
        let was = was.map(|bytes| bytes.min(LARGEST));
        let ample = ample(requests.peak_live);
        let spec = DeviceSpec {
            // A device that refused nothing may have cached far more than was ever alive.
            total: if recorded.unlimited {
                LARGEST
            } else {
                was.unwrap_or(ample)
            },
            context: recorded_context,
            order: AddressOrder::Ascending,
            max_pages: max_pages(&requests),
        };
        let given = options.torch_minor.map(|minor| Version(2, minor));
        let versions = given.map_or_else(|| recorded.versions(), |version| vec![version]);
        let mut track = Self {
            rank: meta::find(facts, process, meta::PROCESS_RANK).map(str::to_owned),
            version: None,
            rules: Rules::of(versions[0]),
            order: recorded.orders(&requests)[0],
            capacity: 0,
            capacity_known: true,
            context: options.context.unwrap_or(recorded_context),
            assumptions: Vec::new(),
            adopted: None,
            comparison: None,
            requests,
            recorded,
        };
        let version = track.understand(open, spec, &versions)?;
        track.version = Some(version);
        let given_capacity = options.capacity.map(|bytes| bytes.min(LARGEST));
        track.capacity = given_capacity.or(was).unwrap_or_else(|| {
            track.capacity_known = false;
            assumptions.push(Assumption::Capacity { bytes: ample });
            ample
        });
        let asked = options.capacity.or(options.context).is_some();
        if asked && track.context > track.capacity {
            return Err(ReplayError::NoRoom {
                context: track.context,
                capacity: track.capacity,
            });
        }
        if track.context == 0 {
            assumptions.push(Assumption::NoContext);
        }
        track.assume(&mut assumptions, version, given.is_some(), cut_off);
        track.assumptions = assumptions;
        Ok(track)
    }

    /// Replays the recorded setting beside the recording, with each reading of
    /// what the recording leaves open, until one reproduces it.
    fn understand<R: Read>(
        &mut self,
        open: &impl Fn() -> io::Result<R>,
        spec: DeviceSpec,
        versions: &[Version],
    ) -> Result<Version, ReplayError> {
        let settings = self.recorded.settings.clone().unwrap_or_default();
        let comparable = self.requests.has_segments && self.recorded.settings.is_some();
        if let Some(mut learner) = Learner::new(&self.requests, &settings) {
            let key = (self.requests.process, self.requests.device);
            for event in Reader::new(open()?)? {
                let event = event?;
                if (event.process, event.device) == key {
                    learner.row(&event);
                }
            }
            learner.teach(&mut self.requests);
        }
        let start = Start::adopted(&self.requests, &settings);
        self.adopted = start.map(|(start, _)| start);
        let mut best: Option<(Requests, Comparison, Version, AddressOrder)> = None;
        for &version in versions {
            for order in self.recorded.orders(&self.requests) {
                if !comparable {
                    break;
                }
                let mut requests = self.requests.clone();
                let spec = DeviceSpec { order, ..spec };
                let rules = Rules::of(version);
                let found = self.compare(open, &mut requests, &settings, rules, spec)?;
                let better = best
                    .as_ref()
                    .is_none_or(|(_, best, ..)| found.equal > best.equal);
                let exact = found.exact();
                if better {
                    best = Some((requests, found, version, order));
                }
                if exact {
                    break;
                }
            }
            if best.as_ref().is_some_and(|(_, best, ..)| best.exact()) {
                break;
            }
        }
        if let Some((requests, comparison, version, order)) = best {
            self.requests = requests;
            self.comparison = Some(comparison);
            self.rules = Rules::of(version);
            self.order = order;
            return Ok(version);
        }
        for op in &mut self.requests.ops {
            if op.kind == OpKind::MaybeRelease {
                op.kind = OpKind::Release;
            }
        }
        Ok(versions[0])
    }

    fn compare<R: Read>(
        &self,
        open: &impl Fn() -> io::Result<R>,
        requests: &mut Requests,
        settings: &Settings,
        rules: Rules,
        spec: DeviceSpec,
    ) -> Result<Comparison, ReplayError> {
        let start = self.adopted.clone();
        let start = start.unwrap_or_else(|| Start::requested(requests));
        let held = start.held();
        let mut addrs = vec![UNPLACED; requests.slots as usize];
        let device = ReplayDevice::with(spec, &held);
        let made = Torch::new(
            device,
            settings.clone(),
            rules,
            Vec::new(),
            &start,
            &mut addrs,
        );
        let Ok(mut policy) = made else {
            return Ok(Comparison {
                events: requests.events,
                incomparable_from: Some(0),
                ..Comparison::default()
            });
        };
        // What the start told is not in the recording.
        policy.policy.sink_mut().clear();
        let key = (requests.process, requests.device);
        let mut check = Check::new(requests, policy, addrs, &held);
        for (row, event) in (0..).zip(Reader::new(open()?)?) {
            let event = event?;
            if (event.process, event.device) == key {
                check.row(&event, row);
            }
        }
        Ok(check.finish())
    }

    fn assume(
        &self,
        assumptions: &mut Vec<Assumption>,
        version: Version,
        given: bool,
        cut_off: bool,
    ) {
        let requests = &self.requests;
        if !requests.initial.is_empty() || !requests.segments.is_empty() {
            let settings = self.recorded.settings.clone().unwrap_or_default();
            let ambiguous = Start::adopted(requests, &settings).map_or(0, |(_, count)| count);
            let bytes = requests.initial.iter().map(|block| block.requested);
            assumptions.push(Assumption::Start {
                blocks: requests.initial.len() as u64,
                bytes: bytes.fold(0, u64::saturating_add),
                segments: requests.segments.len() as u64,
                adopted: self.adopted.is_some(),
                ambiguous,
            });
        }
        if self.recorded.is_torch && !self.recorded.settings_known {
            assumptions.push(Assumption::Settings);
        }
        if !given && self.recorded.versions().len() > 1 {
            assumptions.push(Assumption::Torch {
                said: self.recorded.version_text.clone(),
                minor: version.1,
            });
        }
        if self.recorded.order.is_none() && requests.has_segments {
            assumptions.push(Assumption::AddressOrder {
                ascending: self.order == AddressOrder::Ascending,
            });
        }
        let calls = requests
            .ops
            .iter()
            .filter(|op| op.kind == OpKind::Release)
            .count() as u64;
        if calls > 0 {
            assumptions.push(Assumption::EmptyCache { calls });
        }
        let blocks = requests.gaps.sizes_only;
        if blocks > 0 {
            assumptions.push(Assumption::SizesOnly { blocks });
        }
        if cut_off {
            assumptions.push(Assumption::CutOff);
        }
    }

    /// `replayed` is called after each allocator.
    fn report(&self, allocs: &[Alloc], smallest: bool, replayed: &mut dyn FnMut()) -> TrackReport {
        let mut allocators: Vec<Replayed> = Vec::new();
        for (number, alloc) in allocs.iter().enumerate() {
            if number > 0 {
                replayed();
            }
            let Some(alloc) = self.resolve(alloc) else {
                continue;
            };
            let mut result = self.replay(&alloc, self.capacity, true);
            if allocators
                .iter()
                .any(|other| other.allocator == result.allocator)
            {
                continue;
            }
            if smallest {
                result.smallest = match alloc {
                    Alloc::Plan => self.planned_smallest(&result),
                    _ => self.smallest(&alloc, &result),
                };
            }
            allocators.push(result);
        }
        if !allocs.is_empty() {
            replayed();
        }
        let requests = &self.requests;
        TrackReport {
            process: requests.process,
            rank: self.rank.clone(),
            device: requests.device,
            requests: requests.allocs,
            events: requests.events,
            recorded_peak_reserved: requests.peak_reserved,
            peak_live: requests.peak_live,
            peak_outside: requests.peak_outside,
            capacity: self.capacity,
            capacity_known: self.capacity_known,
            context: self.context,
            assumptions: self.assumptions.clone(),
            gaps: requests.gaps,
            allocators,
        }
    }

    /// The allocator that is meant; `None` if the recording has none.
    pub(crate) fn resolve(&self, alloc: &Alloc) -> Option<Alloc> {
        match alloc {
            Alloc::Recorded => self.recorded.alloc(),
            other => Some(other.clone()),
        }
    }

    pub(crate) fn ample(&self) -> u64 {
        ample(self.requests.peak_live)
    }

    pub(crate) fn needed_live(&self) -> u64 {
        self.requests.needed_live
    }

    pub(crate) fn peak_outside(&self) -> u64 {
        self.requests.peak_outside
    }

    /// How many requests there are.
    pub(crate) const fn asked(&self) -> u64 {
        self.requests.allocs
    }

    fn spec(&self, total: u64) -> DeviceSpec {
        DeviceSpec {
            total,
            context: self.context,
            order: self.order,
            max_pages: max_pages(&self.requests),
        }
    }

    fn is_recorded(&self, alloc: &Alloc) -> bool {
        self.recorded.alloc().as_ref() == Some(alloc)
    }

    /// One allocator on a device of so many bytes. `closely` also looks at the
    /// peak, and starts the recorded setting from the recorded segments.
    pub(crate) fn replay(&self, alloc: &Alloc, total: u64, closely: bool) -> Replayed {
        match alloc {
            Alloc::Recorded | Alloc::Torch(_) => self.replay_torch(alloc, total, closely),
            Alloc::CudaMallocAsync => self.approximate::<StreamPool>(alloc, total, closely),
            Alloc::Bfc => self.approximate::<Bfc>(alloc, total, closely),
            Alloc::Plan => self.planned(total),
        }
    }

    fn settings(&self, alloc: &Alloc) -> Settings {
        match alloc {
            // What a recording lists wins over the text that stands in it.
            Alloc::Torch(conf) if !self.is_recorded(alloc) => conf.settings.clone(),
            _ => self.recorded.settings.clone().unwrap_or_default(),
        }
    }

    fn replay_torch(&self, alloc: &Alloc, total: u64, closely: bool) -> Replayed {
        let recorded = self.is_recorded(alloc);
        let settings = self.settings(alloc);
        // Segments as they were belong to the recorded setting on a device that
        // holds them; a search compares settings and devices from the same start.
        let fits = |start: &Start| {
            let held = start.held().iter().map(|(_, size)| size).sum::<u64>();
            recorded && closely && held.saturating_add(self.context) <= total
        };
        let adopted = self.adopted.clone().filter(fits);
        let start = adopted.unwrap_or_else(|| Start::requested(&self.requests));
        self.serve(alloc, closely, |addrs| {
            let device = ReplayDevice::with(self.spec(total), &start.held());
            Torch::new(device, settings.clone(), self.rules, (), &start, addrs)
        })
    }

    fn approximate<A: Suballocator>(&self, alloc: &Alloc, total: u64, closely: bool) -> Replayed {
        let start = Start::requested(&self.requests);
        self.serve(alloc, closely, |addrs| {
            Approximation::<A>::new(ReplayDevice::new(self.spec(total)), &start, addrs)
        })
    }

    /// Serves the requests with the allocator that `begin` sets up; `closely`
    /// serves them again up to the peak, to look at what is free there.
    fn serve<P: Policy<Device = ReplayDevice>>(
        &self,
        alloc: &Alloc,
        closely: bool,
        begin: impl Fn(&mut [u64]) -> Result<Replaying<P>, Refusal>,
    ) -> Replayed {
        let mut result = self.result(alloc, alloc.fidelity());
        let mut addrs = vec![UNPLACED; self.requests.slots as usize];
        let mut replaying = match begin(&mut addrs) {
            Ok(replaying) => replaying,
            Err(refusal) => {
                result.outcome = self.outcome_of_start(refusal);
                return result;
            }
        };
        let summary = run(&mut replaying, &self.requests, &mut addrs, None, closely);
        self.fill(&mut result, &summary);
        let policy = &mut replaying.policy;
        result.peak_allocated = policy.peak_allocated();
        result.retries = policy.retries();
        result.undefined = policy.undefined();
        result.driver = policy.device_mut().calls;
        if result.recorded && result.fidelity == Fidelity::Exact {
            result.comparison.clone_from(&self.comparison);
        }
        if closely
            && let Some(peak) = summary.peak_op
            && policy.largest_free().is_some()
        {
            addrs.fill(UNPLACED);
            if let Ok(mut replaying) = begin(&mut addrs) {
                run(
                    &mut replaying,
                    &self.requests,
                    &mut addrs,
                    Some(peak),
                    false,
                );
                result.largest_free_at_peak = replaying.policy.largest_free();
            }
        }
        result
    }

    fn result(&self, alloc: &Alloc, fidelity: Fidelity) -> Replayed {
        Replayed {
            allocator: alloc.to_string(),
            recorded: self.is_recorded(alloc),
            fidelity,
            outcome: Outcome::Completes,
            peak_allocated: 0,
            peak_reserved: 0,
            allocated_at_peak: 0,
            cached_at_peak: 0,
            largest_free_at_peak: None,
            peak_row: None,
            driver: DriverCalls::default(),
            retries: 0,
            served_failures: 0,
            smallest: None,
            comparison: None,
            undefined: Vec::new(),
        }
    }

    fn fill(&self, result: &mut Replayed, summary: &RunSummary) {
        result.peak_reserved = summary.peak_reserved;
        result.allocated_at_peak = summary.allocated_at_peak;
        result.cached_at_peak = summary
            .peak_reserved
            .saturating_sub(summary.allocated_at_peak);
        let row = |op: usize| u64::from(self.requests.rows[op]);
        result.peak_row = summary.peak_op.map(row);
        result.served_failures = summary.served_failures;
        if let Some(stop) = &summary.stop {
            let requests = self.requests.ops[..=stop.op].iter();
            let is_request = |op: &&requests::Op| {
                matches!(op.kind, OpKind::Alloc | OpKind::Failed | OpKind::FailedLast)
            };
            result.outcome = match &stop.refusal {
                Refusal::OutOfMemory { free } => Outcome::OutOfMemory {
                    row: Some(row(stop.op)),
                    request: requests.filter(is_request).count() as u64,
                    requested: stop.bytes,
                    free: *free,
                },
                Refusal::Broken(reason) => Outcome::Undefined {
                    row: Some(row(stop.op)),
                    reason: reason.clone(),
                },
            };
        }
    }

    fn outcome_of_start(&self, refusal: Refusal) -> Outcome {
        let bytes = self.requests.initial.iter().map(|block| block.requested);
        match refusal {
            Refusal::OutOfMemory { free } => Outcome::OutOfMemory {
                row: None,
                request: 0,
                requested: bytes.fold(0, u64::saturating_add),
                free,
            },
            Refusal::Broken(reason) => Outcome::Undefined { row: None, reason },
        }
    }
}

/// How many pages a replay may map. A few rows can ask for terabytes in turn, and
/// a search replays them hundreds of times; no program that ran comes near.
fn max_pages(requests: &Requests) -> u64 {
    (1 << 20) + 64 * requests.allocs
}

/// Bytes of a device with room for everything, if so much is alive at once.
fn ample(peak_live: u64) -> u64 {
    AMPLE.max(peak_live.saturating_mul(4)).min(LARGEST)
}
