// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of replays, as plain structs.

use serde::Serialize;

use super::alloc::Fidelity;
use super::requests::Gaps;

/// Version of the JSON that [`Report`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 2;

/// Calls of the driver that move memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
        /// Requested bytes.
        requested: u64,
        /// Bytes the device had free.
        free: u64,
    },
    /// The allocator held so much that a request of another library could not be served.
    OthersOutOfMemory {
        /// The row of the driver's call, or of a row of the allocator that follows it, from 0.
        row: u64,
        /// How many requests the allocator had been given.
        request: u64,
        /// Bytes that the other library requested.
        requested: u64,
        /// Bytes the device had free.
        free: u64,
    },
    /// No row after this one describes the allocator.
    Undefined {
        /// The row, from 0.
        row: Option<u64>,
        /// Why.
        reason: String,
    },
}

/// The actions of one allocator on a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
    /// Its requests to the driver.
    pub driver: DriverCalls,
    /// How often everything cached was given back to serve a request.
    pub retries: u64,
    /// Requests that failed when they were recorded and are served here.
    pub served_failures: u64,
    /// The smallest device on which it completes, where it was looked for.
    pub smallest: Option<Smallest>,
    /// How it compares with the recording, for the recorded setting.
    pub comparison: Option<Comparison>,
    /// The counters of tonnage's own allocator.
    pub own: Option<OwnCounts>,
    /// Where PyTorch's behaviour is undefined or not known.
    pub undefined: Vec<String>,
}

impl Replayed {
    /// Whether every request was served.
    pub fn completes(&self) -> bool {
        self.outcome == Outcome::Completes
    }
}

/// The counters of tonnage's own allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OwnCounts {
    /// Requests that no free block could serve, so that memory was brought somewhere.
    pub misses: u64,
    /// Pages that were obtained.
    pub pages_created: u64,
    /// Pages that were moved from unused places to where they were needed.
    pub pages_moved: u64,
    /// How far the recording was as planned, if there was a plan.
    pub plan: Option<PlanFollowed>,
}

/// How far a recording was as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PlanFollowed {
    /// Requests.
    pub requests: u64,
    /// Requests that got a planned place.
    pub hits: u64,
    /// Requests that the plan does not have.
    pub unknown: u64,
    /// Requests whose place was taken.
    pub occupied: u64,
    /// Bytes the plan takes.
    pub height: u64,
    /// The first request that did not get a planned place.
    pub divergence: Option<Diverged>,
}

/// The first request that did not get a planned place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Diverged {
    /// Its number among the requests, from 1.
    pub request: u64,
    /// The step it is in; 0 before the first.
    pub step: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Whether the plan has a place for it and that was taken.
    pub occupied: bool,
}

/// One event, as recorded or as replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Seen {
    /// PyTorch's word for it.
    pub action: String,
    /// Where; in the addresses of the recording if it could be placed there.
    pub address: u64,
    /// Bytes, as PyTorch counts them for this action.
    pub size: u64,
    /// The stream.
    pub stream: u64,
}

/// The first place where a replay is not what was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Difference {
    /// Number of the row, from 0.
    pub row: u64,
    /// The recorded action; `None` if the recording has nothing there.
    pub recorded: Option<Seen>,
    /// The action of the replay; `None` if it did nothing there.
    pub replayed: Option<Seen>,
}

/// How a replay compares with the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Comparison {
    /// Events that were equal.
    pub equal: u64,
    /// Events of PyTorch's allocator in the recording.
    pub events: u64,
    /// The first difference.
    pub difference: Option<Difference>,
    /// Among the equal ones, those of which the recording has only address and size of the block.
    pub bare: u64,
    /// The row from which nothing could be compared, because requests are not known.
    pub incomparable_from: Option<u64>,
    /// Whether the replay ends with the recorded blocks, where the recording has them.
    pub final_state: Option<bool>,
    /// Bursts of segments given back that were calls of `empty_cache`.
    pub empty_caches: u64,
    /// Bursts that were the work of a request that found no memory.
    pub retries: u64,
}

impl Comparison {
    /// Whether every event was reproduced.
    pub fn exact(&self) -> bool {
        self.difference.is_none()
            && self.incomparable_from.is_none()
            && self.final_state != Some(false)
    }
}

/// The smallest device that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Smallest {
    /// Bytes of the device, context included.
    pub bytes: u64,
    /// How many devices were tried.
    pub tried: u64,
    /// Whether every smaller device that was tried was too small.
    pub monotone: bool,
}

/// The assumptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Assumption {
    /// The recording begins in the middle: so much was there already. Under the
    /// recorded setting its segments are taken over as they were, where `adopted`
    /// is set; otherwise its blocks are requested first, by address.
    Start {
        /// Blocks.
        blocks: u64,
        /// Bytes requested in them.
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
        /// The figures of the recording.
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
    /// The number of blocks of which only the size is known, not the request.
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
#[non_exhaustive]
pub struct TrackReport {
    /// Number of the process.
    pub process: u32,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
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
    /// The assumptions.
    pub assumptions: Vec<Assumption>,
    /// The rows that did not make sense and were passed over.
    pub gaps: Gaps,
    /// Each allocator's result.
    pub allocators: Vec<Replayed>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Report {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// Every process on every device, the one with the most alive first.
    pub tracks: Vec<TrackReport>,
}
