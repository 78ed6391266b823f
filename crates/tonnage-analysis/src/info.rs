// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in a recording, and how well it is known.
//!
//! One pass, added up by an [`Account`]. A recording may start in the middle of a run: what was held before its first
//! event then follows from what was held after its last one and from the frees of blocks whose allocation it does not
//! have. Every figure is marked as exact or as a bound, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde::Serialize;
use tonnage_recording::account::Rounding;
use tonnage_recording::facts;
use tonnage_recording::{
    Account, Column, DeviceAccount, Ending, Event, Kind, Meta, Pool, ReadError, Reader, meta,
};

use crate::unknown;
use crate::unmodelled::UnmodelledCalls;
use crate::verdict::KnownBytes;

/// Version of the JSON that [`Info`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 2;

/// Pairs of process and device that are distinguished, and streams of one of them; no machine has so many.
const MOST: usize = 1 << 16;

/// Why figures are not exact.
const ASSUMED: &str = "sizes that are not known are assumed or left out";

/// How well a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// To the byte.
    Exact,
    /// Blocks have sizes that a GPU's libraries or values would have determined: they are assumed.
    Assumed,
    /// From readings of a real GPU, and what PyTorch obtained or gave back since.
    Computed,
    /// It was this much or more.
    AtLeast,
    /// It was this much or less.
    AtMost,
}

/// A number of bytes and how it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Figure {
    /// The number.
    pub bytes: u64,
    /// Whether it is exact.
    pub known: Known,
    /// Why it is not exact, or what it counts.
    pub how: &'static str,
}

/// Rows of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct KindCount {
    /// The kind.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
}

/// One process of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its number in the recording.
    pub process: u32,
    /// The operating system's number of it.
    pub id: Option<String>,
    /// Its rank in a distributed run.
    pub rank: Option<u32>,
    /// Its arguments.
    pub command: Option<String>,
}

/// One process on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Number of the process.
    pub process: u32,
    /// Number of the device; -1 is pinned host memory.
    pub device: i32,
    /// Events about it.
    pub events: u64,
    /// Streams that occur.
    pub streams: u64,
    /// Allocator pools that occur.
    pub pools: u64,
    /// How often PyTorch's allocator ran out.
    pub ooms: u64,
    /// Most in blocks handed out; `None` if the recording has no blocks.
    pub peak_allocated: Option<Figure>,
    /// Most in segments; `None` if the recording has no segments.
    pub peak_reserved: Option<Figure>,
    /// Most that the device charged to the process, its context included; `None` if the recording has no calls of
    /// the driver.
    pub peak_used: Option<Figure>,
    /// In blocks before the first event, as far as known.
    pub start_allocated: u64,
    /// In segments before the first event, as far as known.
    pub start_reserved: u64,
}

/// The memory that all processes together used of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DeviceTotal {
    /// Number of the device.
    pub device: i32,
    /// Processes that used it, at one time or another.
    pub processes: u64,
    /// Most that the device charged to all of them at one time.
    pub peak_used: Figure,
}

/// When a recording begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Span {
    /// Earliest time, in units of the clock.
    pub first: i64,
    /// Latest time.
    pub last: i64,
}

/// The properties and contents of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Info {
    /// The program that wrote the trace.
    pub producer: String,
    /// Version of the trace format.
    pub format_version: String,
    /// The format it was imported from; `None` for a recording of tonnage itself.
    pub source: Option<String>,
    /// Whether its end is there.
    pub complete: bool,
    /// From where on rows are missing because they could not be written down, and why.
    pub incomplete: Option<String>,
    /// Bytes at the end that could not be used.
    pub dropped_bytes: u64,
    /// The command that was run.
    pub command: Option<String>,
    /// How it ended: `exit 0`, `signal 9`.
    pub ending: Option<String>,
    /// Version of PyTorch, or the range it lies in.
    pub torch: Option<String>,
    /// CUDA's version.
    pub cuda: Option<String>,
    /// Python's version.
    pub python: Option<String>,
    /// Name of the GPU.
    pub gpu: Option<String>,
    /// How many of them the machine had.
    pub gpu_count: Option<u32>,
    /// Ranks of the job, if only some of them were run and the others were answered.
    pub world_size: Option<u32>,
    /// The ranks that were run, in order.
    pub ranks_run: Vec<u32>,
    /// Bytes of the GPU.
    pub capacity: Option<KnownBytes>,
    /// Bytes of a context.
    pub context: Option<KnownBytes>,
    /// The allocator's configuration as the user wrote it; empty if it is known that there was none.
    pub allocator_conf: Option<String>,
    /// The allocator that took the place of PyTorch's own: `tonnage`, or `plugged` for one that is not known.
    pub allocator: Option<String>,
    /// All settings of the allocator.
    pub allocator_settings: Option<serde_json::Value>,
    /// The zero point of times, if not nanoseconds since the Unix epoch.
    pub clock: Option<String>,
    /// Earliest and latest time; `None` without a clock.
    pub span: Option<Span>,
    /// Rows that are events or parts of a state.
    pub events: u64,
    /// The same by kind, in the order of the format.
    pub kinds: Vec<KindCount>,
    /// Rows of kinds that a later version added.
    pub unknown_rows: u64,
    /// Distinct stacks.
    pub stacks: u64,
    /// Events with a stack.
    pub events_with_stack: u64,
    /// Processes with events.
    pub processes: Vec<ProcessInfo>,
    /// Every process on every device it used.
    pub devices: Vec<DeviceInfo>,
    /// Every device with what was used of it; empty if the recording has no calls of the driver.
    pub totals: Vec<DeviceTotal>,
    /// Sizes that a library would have reported on a GPU and that are not certain, a sentence each. Figures with
    /// such blocks are assumed, not exact.
    pub unknown_sizes: Vec<String>,
    /// Facts that the recording does not contain.
    pub unknown: Vec<String>,
}

/// Reads a recording to its end and reports its contents.
///
/// ```
/// use tonnage_analysis::info::info;
/// use tonnage_recording::{Event, Kind, Trace};
///
/// // A recording in which a program requests 3 MB.
/// let mut trace = Trace::new("example 1.0");
/// trace.events.push(Event {
///     address: 0x7f00_0000_0000,
///     size: 3_000_320,
///     requested: 3_000_000,
///     ..Event::new(Kind::Alloc)
/// });
/// let file = trace.write(Vec::new())?;
///
/// let info = info(file.as_slice())?;
/// assert!(info.complete);
/// let peak = info.devices[0].peak_allocated.as_ref().expect("it has blocks");
/// assert_eq!(peak.bytes, 3_000_320);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn info<R: Read>(source: R) -> Result<Info, ReadError> {
    let mut reader = Reader::new(source)?;
    let mut kinds = vec![0_u64; Kind::ALL.len()];
    let mut account: Option<Account> = None;
    let mut counts: BTreeMap<(u32, i32), Counts> = BTreeMap::new();
    let mut processes = BTreeSet::new();
    let mut unmodelled = UnmodelledCalls::default();
    let mut span: Option<Span> = None;
    let (mut events, mut events_with_stack) = (0, 0);
    while let Some(event) = reader.next().transpose()? {
        events += 1;
        events_with_stack += u64::from(event.stack.is_some());
        kinds[event.kind as usize] += 1;
        if let Some(time) = event.time {
            let span = span.get_or_insert(Span {
                first: time,
                last: time,
            });
            span.first = span.first.min(time);
            span.last = span.last.max(time);
        }
        unmodelled.add(&event, reader.stacks());
        if processes.len() < MOST {
            processes.insert(event.process);
        }
        // An importer writes the source before the first event.
        let account = account.get_or_insert_with(|| {
            Account::new(Rounding::of_source(reader.fact(facts::RUN, meta::SOURCE)))
        });
        account.apply(&event, events - 1, reader.stacks());
        let key = (event.process, event.device);
        if account.get(key.0, key.1).is_some() && is_about_device(event.kind) {
            counts.entry(key).or_default().add(&event);
        }
    }
    let account = account.unwrap_or_default();
    let ending = reader.ending().unwrap_or(Ending::Truncated { dropped: 0 });
    let (major, minor) = reader.version();
    let (producer, unknown_rows) = (reader.producer().to_owned(), reader.unknown_rows());
    let (stacks, facts) = reader.into_parts();
    let facts = Facts(&facts);
    let incomplete = facts.any(facts::INCOMPLETE);
    let stops_early = ending.is_truncated() || incomplete.is_some();
    let mut origin = Origin::from_source(facts.run(meta::SOURCE).as_deref(), stops_early);
    let settings = facts.any(meta::ALLOCATOR_SETTINGS);
    let settings = settings.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    if settings.is_some_and(|settings| settings["paused"] == true) {
        let how = "tensors that were paused count as if they had their memory";
        origin.best = (Known::AtMost, how);
    }
    if facts.run(facts::GPU_CAPACITY_KNOWN).as_deref() == Some(facts::MEASURED) {
        let how = "readings of the device, and PyTorch's segments between two of them";
        origin.charged = (Known::Computed, how);
    }
    if unknown::is_assumed(facts.0, &unmodelled) {
        origin.best = (Known::Assumed, ASSUMED);
    }
    let recorded: BTreeSet<u32> = account
        .iter()
        .filter(|(_, track)| !track.final_state().is_empty())
        .map(|((process, _), _)| process)
        .collect();
    let devices = account
        .iter()
        .map(|(key, track)| {
            let report = Report {
                track,
                recorded: recorded.contains(&key.0),
                origin,
            };
            report.device(key, counts.get(&key).unwrap_or(&Counts::default()))
        })
        .collect();
    let conf = facts.any(meta::ALLOCATOR_CONF);
    Ok(Info {
        producer,
        format_version: format!("{major}.{minor}"),
        complete: !ending.is_truncated(),
        incomplete,
        dropped_bytes: match ending {
            Ending::Truncated { dropped } => dropped,
            Ending::Complete => 0,
        },
        command: facts.run(meta::COMMAND),
        ending: facts.run(facts::ENDING),
        torch: facts.any(meta::TORCH_VERSION),
        cuda: facts.any(facts::CUDA_VERSION),
        python: facts.any(facts::PYTHON_VERSION),
        gpu: facts.run(meta::GPU_NAME),
        world_size: facts
            .run(facts::WORLD_SIZE)
            .and_then(|text| text.parse().ok()),
        ranks_run: facts.run(facts::RANKS).map_or_else(Vec::new, |text| {
            text.split(',')
                .filter_map(|rank| rank.parse().ok())
                .collect()
        }),
        gpu_count: facts
            .run(facts::GPU_COUNT)
            .and_then(|count| count.parse().ok()),
        capacity: facts.bytes(meta::GPU_CAPACITY, facts::GPU_CAPACITY_KNOWN),
        context: facts.bytes(meta::GPU_CONTEXT, facts::GPU_CONTEXT_KNOWN),
        // A dry run writes the configuration down when there is one.
        allocator_conf: conf.or_else(|| (origin.is_own && !processes.is_empty()).then(String::new)),
        allocator: facts.any(facts::ALLOCATOR),
        allocator_settings: facts
            .any(meta::ALLOCATOR_SETTINGS)
            .and_then(|json| serde_json::from_str(&json).ok()),
        clock: facts.run("clock"),
        span,
        events,
        kinds: Kind::ALL
            .iter()
            .zip(kinds)
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| KindCount {
                kind: kind.name(),
                count,
            })
            .collect(),
        unknown_rows,
        stacks: stacks.len() as u64,
        events_with_stack,
        processes: processes
            .iter()
            .map(|process| facts.process(*process))
            .collect(),
        devices,
        totals: totals(&account, origin),
        unknown_sizes: unmodelled.unknown_sizes(),
        unknown: unknown::sentences(facts.0, &unmodelled),
        source: facts.run(meta::SOURCE),
    })
}

fn is_about_device(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Mark
            | Kind::MarkStart
            | Kind::MarkEnd
            | Kind::Unmodelled
            | Kind::DriverReserve
            | Kind::DriverUnreserve
    )
}

/// Where a recording comes from, as far as it decides what is exact.
#[derive(Clone, Copy)]
struct Origin {
    /// Recorded by tonnage from the start of the process.
    is_own: bool,
    /// Made by PyTorch's allocator, which rounds requests.
    is_pytorch: bool,
    is_truncated: bool,
    /// How the device's own word of what is in use is known.
    charged: (Known, &'static str),
    /// How a sum of whole rows is known, and why so if it is not exact.
    best: (Known, &'static str),
}

impl Origin {
    /// A figure; one that would be exact is known no better than sizes of blocks are.
    fn figure(self, bytes: u64, (known, how): (Known, &'static str)) -> Figure {
        let (known, how) = match (known, self.best) {
            (Known::Exact, best) if best.0 != Known::Exact => best,
            _ => (known, how),
        };
        Figure { bytes, known, how }
    }

    fn from_source(source: Option<&str>, stops_early: bool) -> Self {
        Self {
            is_own: source.is_none(),
            is_pytorch: Rounding::of_source(source) == Rounding::PyTorch,
            is_truncated: stops_early,
            charged: (Known::Exact, "as the device charged it"),
            best: (Known::Exact, ""),
        }
    }
}

struct Facts<'a>(&'a [Meta]);

impl Facts<'_> {
    fn run(&self, name: &str) -> Option<String> {
        self.fact_of(facts::RUN, name)
    }

    fn fact_of(&self, process: u32, name: &str) -> Option<String> {
        meta::find(self.0, process, name).map(str::to_owned)
    }

    /// The fact of the first process that has it.
    fn any(&self, name: &str) -> Option<String> {
        let first = self.0.iter().find(|fact| fact.name == name)?;
        self.fact_of(first.process, name)
    }

    fn bytes(&self, name: &str, known: &str) -> Option<KnownBytes> {
        Some(KnownBytes {
            bytes: self.run(name)?.parse().ok()?,
            known: self.run(known).unwrap_or_default(),
        })
    }

    fn process(&self, process: u32) -> ProcessInfo {
        ProcessInfo {
            process,
            id: self.fact_of(process, meta::PROCESS_ID),
            rank: self
                .fact_of(process, meta::PROCESS_RANK)
                .and_then(|rank| rank.parse().ok()),
            command: self.fact_of(process, facts::PROCESS_COMMAND),
        }
    }
}

/// The events in the rows of one process on one device.
#[derive(Default)]
struct Counts {
    events: u64,
    streams: BTreeSet<u64>,
    pools: BTreeSet<Pool>,
}

impl Counts {
    fn add(&mut self, event: &Event) {
        self.events += 1;
        if event.kind.columns().has(Column::Stream) && self.streams.len() < MOST {
            self.streams.insert(event.stream);
        }
        if let Some(pool) = event.pool.filter(|_| self.pools.len() < MOST) {
            self.pools.insert(pool);
        }
    }
}

/// The account of one process on one device, with what decides how well it is known.
struct Report<'a> {
    track: &'a DeviceAccount,
    /// Whether the recording has the state of the process after the last row.
    recorded: bool,
    origin: Origin,
}

impl Report<'_> {
    fn device(&self, (process, device): (u32, i32), counts: &Counts) -> DeviceInfo {
        let Self {
            track,
            recorded,
            origin,
        } = *self;
        let (start_reserved, reserved_known, reserved_how) = self.start_reserved();
        // Blocks at the end have their size, which may be more than their rounded request.
        let at_the_end = track
            .final_blocks()
            .fold(0_u64, |sum, block| sum.saturating_add(block.bytes));
        let peak_allocated = track.peak_allocated().bytes.max(at_the_end);
        let peak_reserved = track.peak_reserved(start_reserved).bytes;
        let knows_segments =
            track.segment_rows() > 0 || track.initial_reserved().is_some() || recorded;
        DeviceInfo {
            process,
            device,
            events: counts.events,
            streams: counts.streams.len() as u64,
            pools: counts.pools.len() as u64,
            ooms: track.ooms(),
            peak_allocated: (track.block_rows() > 0)
                .then(|| origin.figure(peak_allocated, self.allocated_known())),
            peak_reserved: knows_segments.then(|| {
                // Allocated memory was held, also where its segment is not recorded.
                let bytes = if track.exceeded_reserved() && origin.is_own {
                    peak_reserved.max(peak_allocated)
                } else {
                    peak_reserved
                };
                origin.figure(bytes, (reserved_known, reserved_how))
            }),
            peak_used: (track.driver_rows() > 0).then(|| {
                let bytes = track.at_peak_used().breakdown.used;
                origin.figure(bytes, used_known(track, origin))
            }),
            start_allocated: track.start_allocated(),
            start_reserved,
        }
    }

    fn allocated_known(&self) -> (Known, &'static str) {
        let rounded = self.track.sizes_unknown() > 0;
        let Origin {
            is_own,
            is_pytorch,
            is_truncated,
            ..
        } = self.origin;
        if is_truncated {
            (Known::AtLeast, "the recording stops early")
        } else if rounded && is_pytorch {
            (
                Known::AtLeast,
                "requests rounded up to 512 bytes; sizes of freed blocks are not recorded",
            )
        } else if rounded {
            (Known::Exact, "sum of the requests")
        } else if !is_own && is_pytorch && !self.recorded {
            (
                Known::AtLeast,
                "blocks from before the first event may be missing",
            )
        } else {
            (Known::Exact, "sum of the blocks")
        }
    }

    fn start_reserved(&self) -> (u64, Known, &'static str) {
        if self.origin.is_truncated {
            let start = self.track.initial_reserved().unwrap_or(0);
            return (start, Known::AtLeast, "the recording stops early");
        }
        if let Some(start) = self.track.initial_reserved() {
            return (start, Known::Exact, "from the state at the start");
        }
        if self.recorded {
            let end = self.track.final_reserved().unwrap_or(0);
            let start = i128::from(end) - self.track.reserved_change();
            return match u64::try_from(start) {
                Ok(start) => (
                    start,
                    Known::Exact,
                    "from the state at the end and the events",
                ),
                Err(_) => (
                    0,
                    Known::AtLeast,
                    "the events and the state at the end disagree",
                ),
            };
        }
        match (self.origin.is_own, self.track.exceeded_reserved()) {
            (true, false) => (0, Known::Exact, "sum of the segments"),
            (true, true) => (
                0,
                Known::AtLeast,
                "the last segments of the process are not recorded",
            ),
            (false, _) => (
                0,
                Known::AtLeast,
                "segments from before the first event may be missing",
            ),
        }
    }
}

fn used_known(track: &DeviceAccount, origin: Origin) -> (Known, &'static str) {
    if origin.is_truncated {
        (Known::AtLeast, "the recording stops early")
    } else if track.is_charge_told() {
        origin.charged
    } else {
        (
            Known::AtLeast,
            "sum of the requests; what the device charged is not recorded",
        )
    }
}

/// The memory that all processes used of each device.
fn totals(account: &Account, origin: Origin) -> Vec<DeviceTotal> {
    let mut processes: BTreeMap<i32, u64> = BTreeMap::new();
    for ((_, device), track) in account.iter() {
        if device >= 0 && track.driver_rows() > 0 {
            *processes.entry(device).or_default() += 1;
        }
    }
    let total = |(device, processes)| {
        let peak = account.peak_in_use(device)?;
        let (known, how) = if origin.is_truncated {
            (Known::AtLeast, "the recording stops early")
        } else if !peak.is_exact {
            (
                Known::AtMost,
                "the peaks of all processes together; which of them ran at the same time is not recorded",
            )
        } else {
            let one = account.get(peak.process, device)?;
            used_known(one, origin)
        };
        Some(DeviceTotal {
            device,
            processes,
            peak_used: origin.figure(peak.bytes, (known, how)),
        })
    };
    processes.into_iter().filter_map(total).collect()
}

#[cfg(test)]
mod tests {
    use tonnage_recording::account::ABSURD;
    use tonnage_recording::{TextId, Writer};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A recording with these facts and rows, `kind` at `address` with `size` and `requested`.
    fn recording(facts: &[(&str, &str)], rows: &[(Kind, u64, u64, u64)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
        for (name, text) in facts {
            writer.meta(0, name, text).unwrap();
        }
        let state = writer.stacks_mut().intern("active_allocated");
        for &(kind, address, size, requested) in rows {
            let name: Option<TextId> = (kind == Kind::FinalBlock).then_some(state);
            let event = Event {
                address,
                size,
                requested,
                name,
                ..Event::new(kind)
            };
            writer.event(&event).unwrap();
        }
        writer.finish().unwrap()
    }

    fn device(file: &[u8]) -> DeviceInfo {
        let mut devices = info(file).unwrap().devices;
        assert_eq!(devices.len(), 1);
        devices.remove(0)
    }

    fn bytes(figure: Option<&Figure>) -> Option<(u64, Known)> {
        figure.map(|figure| (figure.bytes, figure.known))
    }

    #[test]
    fn what_a_real_gpu_had_in_use_is_computed_between_readings() {
        let measured = |known: &str| {
            let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
            writer.meta(0, facts::GPU_CAPACITY_KNOWN, known).unwrap();
            let reading = Event {
                size: MIB,
                charged: Some(MIB),
                in_use: Some(MIB),
                ..Event::new(Kind::DriverContext)
            };
            writer.event(&reading).unwrap();
            bytes(device(&writer.finish().unwrap()).peak_used.as_ref())
        };
        assert_eq!(measured("read"), Some((MIB, Known::Exact)));
        assert_eq!(measured(facts::MEASURED), Some((MIB, Known::Computed)));
    }

    #[test]
    fn figures_with_sizes_that_nobody_told_are_assumed() {
        let rows = |name: &str| {
            let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
            let alloc = Event {
                address: 1 << 30,
                size: MIB,
                requested: MIB,
                ..Event::new(Kind::Alloc)
            };
            writer.event(&alloc).unwrap();
            let name = Some(writer.stacks_mut().intern(name));
            let unmodelled = Event {
                size: 1,
                name,
                ..Event::new(Kind::Unmodelled)
            };
            writer.event(&unmodelled).unwrap();
            writer.finish().unwrap()
        };
        let known = |file: &[u8]| bytes(device(file).peak_allocated.as_ref());
        let plain = rows("cudnnSetRNNDescriptor_v8");
        assert_eq!(known(&plain), Some((MIB, Known::Exact)));
        assert_eq!(info(plain.as_slice()).unwrap().unknown_sizes, [""; 0]);
        let asked = rows("cudnnGetRNNTempSpaceSizes");
        assert_eq!(known(&asked), Some((MIB, Known::Assumed)));
        let info = info(asked.as_slice()).unwrap();
        assert!(info.unknown[0].starts_with("what cuDNN reserves"));
        assert_eq!(info.unknown, info.unknown_sizes);
    }

    const PICKLE: &[(&str, &str)] = &[(meta::SOURCE, "pytorch-pickle")];

    #[test]
    fn a_dry_run_is_exact_and_its_peak_is_not_its_end() {
        let file = recording(
            &[(meta::GPU_CAPACITY, "1000"), ("gpu.capacity.known", "read")],
            &[
                (Kind::SegmentAlloc, MIB, 20 * MIB, 0),
                (Kind::Alloc, MIB, 2 * MIB, 2 * MIB - 1),
                (Kind::Alloc, 4 * MIB, 3 * MIB, 3 * MIB),
                (Kind::FreeRequested, MIB, 2 * MIB, 2 * MIB - 1),
                (Kind::Alloc, 8 * MIB, MIB, MIB),
            ],
        );
        let shown = info(file.as_slice()).unwrap();
        assert!(shown.complete);
        assert_eq!(shown.capacity.map(|capacity| capacity.bytes), Some(1000));
        assert_eq!((shown.events, shown.span), (5, None));
        // A dry run without a configuration is known to have had none.
        assert_eq!(shown.allocator_conf.as_deref(), Some(""));
        let device = device(&file);
        let allocated = bytes(device.peak_allocated.as_ref());
        assert_eq!(allocated, Some((5 * MIB, Known::Exact)));
        let reserved = bytes(device.peak_reserved.as_ref());
        assert_eq!(reserved, Some((20 * MIB, Known::Exact)));
    }

    #[test]
    fn a_recording_cut_short_is_a_lower_bound() {
        let file = recording(&[], &[(Kind::Alloc, MIB, MIB, MIB)]);
        let cut = &file[..file.len() - 8];
        assert!(!info(cut).unwrap().complete);
        let figure = device(cut).peak_allocated.unwrap();
        assert_eq!((figure.bytes, figure.known), (MIB, Known::AtLeast));
        assert_eq!(figure.how, "the recording stops early");
    }

    #[test]
    fn what_a_snapshot_began_with_follows_from_its_frees_and_its_end() {
        let file = recording(
            PICKLE,
            &[
                (Kind::FinalSegment, MIB, 20 * MIB, 0),
                // Never allocated in the recording, so it was there all the time.
                (Kind::FinalBlock, 2 * MIB, 4 * MIB, 4 * MIB),
                (Kind::SegmentFree, 64 * MIB, 2 * MIB, 0),
                // Freed without an allocation: it was there at the start.
                (Kind::FreeRequested, MIB, 0, 1000),
                (Kind::Alloc, MIB, 0, 513),
            ],
        );
        let device = device(&file);
        assert_eq!(device.start_allocated, 4 * MIB + 1024);
        assert_eq!(device.start_reserved, 22 * MIB);
        let reserved = bytes(device.peak_reserved.as_ref());
        assert_eq!(reserved, Some((22 * MIB, Known::Exact)));
        // Requests are rounded to 512 bytes, and the rest of the block is not known.
        let allocated = bytes(device.peak_allocated.as_ref());
        assert_eq!(allocated, Some((4 * MIB + 1024, Known::AtLeast)));
    }

    #[test]
    fn a_state_that_contradicts_the_events_is_no_exact_figure() {
        let file = recording(
            PICKLE,
            &[
                (Kind::FinalSegment, MIB, 2 * MIB, 0),
                (Kind::SegmentAlloc, 64 * MIB, 20 * MIB, 0),
            ],
        );
        let figure = device(&file).peak_reserved.unwrap();
        assert_eq!((figure.bytes, figure.known), (20 * MIB, Known::AtLeast));
        assert!(figure.how.contains("disagree"), "{}", figure.how);
    }

    #[test]
    fn sums_of_absurd_sizes_do_not_overflow() {
        let huge = u64::MAX - 1;
        let rows: Vec<_> = (0..4)
            .flat_map(|row| {
                [
                    (Kind::Alloc, row, huge, huge),
                    (Kind::FreeRequested, 100 + row, huge, huge),
                    (Kind::FinalSegment, row, huge, huge),
                    (Kind::FinalBlock, 200 + row, huge, huge),
                ]
            })
            .collect();
        let device = device(&recording(&[], &rows));
        assert_eq!(device.start_allocated, ABSURD);
    }

    /// Process, kind, size, and the memory that the device reports as charged to it and to all.
    type DriverRow = (u32, Kind, u64, Option<(u64, u64)>);

    fn driver(rows: &[DriverRow]) -> Info {
        let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
        for &(process, kind, size, told) in rows {
            let event = Event {
                process,
                address: MIB,
                size,
                charged: told.map(|(charged, _)| charged),
                in_use: told.map(|(_, in_use)| in_use),
                ..Event::new(kind)
            };
            writer.event(&event).unwrap();
        }
        info(writer.finish().unwrap().as_slice()).unwrap()
    }

    #[test]
    fn what_the_device_charged_is_shown_and_not_what_was_asked_for() {
        let told = driver(&[
            (
                0,
                Kind::DriverContext,
                100 * MIB,
                Some((100 * MIB, 100 * MIB)),
            ),
            (
                0,
                Kind::DriverMalloc,
                2 * MIB + 1,
                Some((104 * MIB, 104 * MIB)),
            ),
        ]);
        let used = bytes(told.devices[0].peak_used.as_ref());
        assert_eq!(used, Some((104 * MIB, Known::Exact)));
        let old = driver(&[(0, Kind::DriverMalloc, 2 * MIB + 1, None)]);
        let used = bytes(old.devices[0].peak_used.as_ref());
        assert_eq!(used, Some((2 * MIB + 1, Known::AtLeast)));
        // A snapshot knows nothing of the driver.
        let snapshot = recording(PICKLE, &[(Kind::SegmentAlloc, MIB, 20 * MIB, 0)]);
        assert_eq!(device(&snapshot).peak_used, None);
        assert_eq!(info(snapshot.as_slice()).unwrap().totals, []);
    }

    #[test]
    fn processes_one_after_the_other_do_not_add_up() {
        let run = |process| {
            let held = Some((10 * MIB, 10 * MIB));
            [
                (process, Kind::DriverMalloc, 10 * MIB, held),
                (process, Kind::DriverFree, 10 * MIB, Some((0, 0))),
            ]
        };
        let apart = driver(&[run(0), run(1), run(2)].concat());
        assert_eq!(apart.totals.len(), 1);
        let total = &apart.totals[0];
        assert_eq!((total.device, total.processes), (0, 3));
        assert_eq!(
            (total.peak_used.bytes, total.peak_used.known),
            (10 * MIB, Known::Exact)
        );
        let plain = |process| (process, Kind::DriverMalloc, 10 * MIB, None);
        let unknown = driver(&[plain(0), plain(1)]);
        let total = &unknown.totals[0].peak_used;
        assert_eq!((total.bytes, total.known), (20 * MIB, Known::AtMost));
    }
}
