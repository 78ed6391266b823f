// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does it fit, by how much, and who held the memory at the peak?
//!
//! Reads a recording twice: once to find the moment that matters (the largest
//! sum of blocks, or the moment of the failure), once to see what was alive
//! then. Memory grows with the blocks that live at the same time, not with the
//! length of the recording.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Serialize;
use thiserror::Error;
use tonnage_trace::{Event, Frame, Kind, ReadError, Reader, StackId, StackTable, meta};

use crate::facts;
pub use crate::holdings::Place;
use crate::holdings::is_users;

/// Version of the JSON that [`Verdict`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// How a run went, as far as memory is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran to its end.
    Fits,
    /// It ended for want of device memory.
    DoesNotFit,
    /// It ended early for another reason.
    Failed,
    /// It never used a device.
    NoDevice,
}

/// Memory held from one source line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many blocks.
    pub blocks: u64,
    /// The line of the user's code, or the innermost known; `None` if the
    /// recording has no stack for them.
    pub place: Option<Place>,
    /// The innermost line, where it is another.
    pub inside: Option<Place>,
}

/// What is on a device at one moment. The parts make up `used`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    /// Bytes of blocks PyTorch handed out.
    pub allocated: u64,
    /// Bytes PyTorch holds from the driver without having handed them out.
    pub cached: u64,
    /// Bytes of the context.
    pub context: u64,
    /// Bytes obtained from the driver by others than PyTorch's allocator.
    pub other: u64,
    /// The sum.
    pub used: u64,
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Number of the row, from 0.
    pub event: u64,
    /// Nanoseconds since the first event with a time.
    pub after_ns: u64,
}

/// The request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes the driver had left.
    pub free: u64,
    /// The line of the user's code.
    pub place: Option<Place>,
    /// The innermost line, where it is another.
    pub inside: Option<Place>,
}

/// What one process did to one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// Number of the process.
    pub process: u32,
    /// Its rank, where it has one.
    pub rank: Option<String>,
    /// Number of the device on the machine.
    pub device: i32,
    /// The moment of `at_peak`.
    pub peak: Moment,
    /// The device at the largest sum of blocks, or at the failure.
    pub at_peak: Breakdown,
    /// Largest sum of blocks.
    pub peak_allocated: u64,
    /// Most that PyTorch held from the driver, as far as its history shows.
    pub peak_reserved: u64,
    /// Whether that history is there and whole: without it cached and other memory cannot be told apart.
    pub reserved_known: bool,
    /// Most that was charged to the process.
    pub peak_used: u64,
    /// Who held the blocks at the peak, largest first.
    pub holders: Vec<Holder>,
    /// How often PyTorch's allocator ran out and told the program.
    pub ooms: u64,
    /// How often the driver refused.
    pub refusals: u64,
    /// The failure that ended the process, if it was one of this device.
    pub out_of_memory: Option<OutOfMemory>,
    /// Rows about this device.
    pub events: u64,
}

/// A function that was called and is not modelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmodelled {
    /// Its name.
    pub name: String,
    /// How often.
    pub calls: u64,
}

/// An exception that ended a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exception {
    /// Its type, with the module.
    pub kind: String,
    /// Its message.
    pub message: String,
    /// Where it was raised, by the user's line.
    pub place: Option<Place>,
}

/// A number and how it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KnownBytes {
    /// The number.
    pub bytes: u64,
    /// read, rounded, assumed or given.
    pub known: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The answer in a word.
    pub outcome: Outcome,
    /// The command that was run.
    pub command: String,
    /// How it ended: `exit 0`, `signal 9`.
    pub ending: String,
    /// The catalogue's name of the GPU.
    pub gpu: String,
    /// The driver's name of it.
    pub gpu_name: String,
    /// Devices of the machine.
    pub gpu_count: u32,
    /// Bytes of a device.
    pub capacity: KnownBytes,
    /// Bytes of a context.
    pub context: KnownBytes,
    /// Version of PyTorch.
    pub torch: String,
    /// Every process on every device it used, in order.
    pub devices: Vec<DeviceUse>,
    /// Exceptions that ended processes.
    pub exceptions: Vec<Exception>,
    /// Functions that were called and are not modelled.
    pub unmodelled: Vec<Unmodelled>,
    /// What the recording cannot say.
    pub unknown: Vec<String>,
    /// Rows of the recording.
    pub events: u64,
}

impl Verdict {
    /// The device and process with the most memory in use, or the one that failed.
    pub fn worst(&self) -> Option<&DeviceUse> {
        let rank = |device: &&DeviceUse| (device.out_of_memory.is_some(), device.peak_used);
        // The first of equals, so that rank 0 speaks for all.
        self.devices.iter().rev().max_by_key(rank)
    }

    /// Bytes that were never used on the fullest device, all processes on it taken together.
    pub fn spare(&self) -> u64 {
        let mut sums: BTreeMap<i32, u64> = BTreeMap::new();
        for device in &self.devices {
            *sums.entry(device.device).or_default() += device.peak_used;
        }
        let most = sums.into_values().max().unwrap_or(0);
        self.capacity.bytes.saturating_sub(most)
    }
}

/// How many holders are listed.
const HOLDERS: usize = 8;

/// Why a recording could not be judged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerdictError {
    /// It cannot be opened.
    #[error("the recording cannot be opened")]
    Open(#[from] std::io::Error),
    /// It cannot be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
}

/// Reads the recording that `open` opens, twice, and judges it.
pub fn verdict<R: Read>(open: impl Fn() -> std::io::Result<R>) -> Result<Verdict, VerdictError> {
    let mut reader = Reader::new(open()?)?;
    let mut states: BTreeMap<(u32, i32), State> = BTreeMap::new();
    let mut unmodelled: BTreeMap<String, u64> = BTreeMap::new();
    let mut first_time = None;
    let mut row = 0;
    while let Some(event) = reader.next().transpose()? {
        if event.kind == Kind::Unmodelled {
            let name = event.name.map_or("?", |name| reader.stacks().text(name));
            *unmodelled.entry(name.to_owned()).or_default() += event.size;
        } else if event.device >= 0 {
            first_time = first_time.or(event.time);
            let state = states.entry((event.process, event.device)).or_default();
            state.apply(&event, row);
        }
        row += 1;
    }
    let facts = Facts::read(&reader);
    let mut devices: Vec<DeviceUse> = states
        .iter()
        .filter(|(_, state)| state.context > 0 || state.events > 1)
        .map(|(&(process, device), state)| state.report(process, device, first_time, &facts))
        .collect();
    let exceptions = facts.exceptions();
    let failed = facts.ending != "exit 0";
    let oom_exception = exceptions
        .iter()
        .any(|exception| exception.kind.ends_with("OutOfMemoryError"));
    let oom_last = states.values().any(|state| state.oom_is_last);
    let outcome = match (devices.is_empty(), failed) {
        (true, false) => Outcome::NoDevice,
        (_, true) if oom_exception || (oom_last && exceptions.is_empty()) => Outcome::DoesNotFit,
        (_, true) => Outcome::Failed,
        _ => Outcome::Fits,
    };
    for device in &mut devices {
        let state = &states[&(device.process, device.device)];
        if outcome == Outcome::DoesNotFit && state.oom_is_last {
            device.peak = moment(state.oom_row, state.oom_time, first_time);
            device.at_peak = state.oom_breakdown;
        } else {
            device.out_of_memory = None;
        }
    }
    find_holders(open()?, &mut devices)?;
    Ok(Verdict {
        schema_version: SCHEMA_VERSION,
        outcome,
        command: facts.command.clone(),
        ending: facts.ending.clone(),
        gpu: facts.gpu.clone(),
        gpu_name: facts.gpu_name.clone(),
        gpu_count: facts.gpu_count,
        capacity: facts.capacity.clone(),
        context: facts.context.clone(),
        torch: facts.torch.clone(),
        devices,
        exceptions,
        unmodelled: unmodelled
            .into_iter()
            .map(|(name, calls)| Unmodelled { name, calls })
            .collect(),
        unknown: facts.unknown.clone(),
        events: row,
    })
}

fn moment(event: u64, time: Option<i64>, first: Option<i64>) -> Moment {
    let after = time
        .zip(first)
        .map_or(0, |(time, first)| time.saturating_sub(first));
    Moment {
        event,
        after_ns: after.max(0).cast_unsigned(),
    }
}

/// What is known of one process on one device while its rows go by.
#[derive(Default)]
struct State {
    live: BTreeMap<u64, u64>,
    allocated: u64,
    reserved: u64,
    context: u64,
    /// Charged by the driver, the context included.
    used: u64,
    peak_allocated: u64,
    peak_row: u64,
    peak_time: Option<i64>,
    peak_breakdown: Breakdown,
    peak_reserved: u64,
    peak_used: u64,
    ooms: u64,
    refusals: u64,
    oom: Option<(u64, u64, Option<StackId>)>,
    oom_row: u64,
    oom_time: Option<i64>,
    oom_breakdown: Breakdown,
    /// Whether nothing was allocated after the last out-of-memory.
    oom_is_last: bool,
    events: u64,
}

impl State {
    fn breakdown(&self) -> Breakdown {
        // Torch's own rows end at the last drain of a process that was killed;
        // what it has handed out since it must hold.
        let reserved = self.reserved.max(self.allocated);
        let used = self.used.max(self.context.saturating_add(reserved));
        Breakdown {
            allocated: self.allocated,
            cached: reserved - self.allocated,
            context: self.context,
            other: used.saturating_sub(self.context).saturating_sub(reserved),
            used,
        }
    }

    fn apply(&mut self, event: &Event, row: u64) {
        self.events += 1;
        match event.kind {
            Kind::Alloc => {
                let size = taken(event);
                self.live.insert(event.address, size);
                self.allocated = self.allocated.saturating_add(size);
                self.oom_is_last = false;
                if self.allocated > self.peak_allocated {
                    self.peak_allocated = self.allocated;
                    self.peak_row = row;
                    self.peak_time = event.time;
                    self.peak_breakdown = self.breakdown();
                }
            }
            Kind::FreeRequested => {
                let size = self.live.remove(&event.address).unwrap_or(0);
                self.allocated = self.allocated.saturating_sub(size);
            }
            Kind::SegmentAlloc | Kind::SegmentMap => {
                self.reserved = self.reserved.saturating_add(event.size);
                self.peak_reserved = self.peak_reserved.max(self.reserved);
            }
            Kind::SegmentFree | Kind::SegmentUnmap => {
                self.reserved = self.reserved.saturating_sub(event.size);
            }
            Kind::DriverContext => {
                self.context = self.context.saturating_add(event.size);
                self.charge(event.size);
            }
            Kind::DriverMalloc | Kind::DriverCreate | Kind::PoolMalloc => self.charge(event.size),
            Kind::DriverFree | Kind::DriverRelease | Kind::PoolFree => {
                self.used = self.used.saturating_sub(event.size);
            }
            Kind::DriverOom => self.refusals += 1,
            Kind::Oom => {
                self.ooms += 1;
                self.oom = Some((event.size, event.free, event.stack));
                self.oom_row = row;
                self.oom_time = event.time;
                self.oom_breakdown = self.breakdown();
                self.oom_is_last = true;
            }
            _ => {}
        }
    }

    fn charge(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
        self.peak_used = self.peak_used.max(self.used);
    }

    fn report(
        &self,
        process: u32,
        device: i32,
        first: Option<i64>,
        facts: &Facts<'_>,
    ) -> DeviceUse {
        DeviceUse {
            process,
            rank: facts.fact(process, meta::PROCESS_RANK).map(str::to_owned),
            device,
            peak: moment(self.peak_row, self.peak_time, first),
            at_peak: self.peak_breakdown,
            peak_allocated: self.peak_allocated,
            peak_reserved: self.peak_reserved,
            // Blocks lie in segments: less reserved than handed out means that segments were not seen.
            reserved_known: self.peak_reserved >= self.peak_allocated,
            peak_used: self.peak_used,
            holders: Vec::new(),
            ooms: self.ooms,
            refusals: self.refusals,
            out_of_memory: self.oom.map(|(requested, free, stack)| {
                let (place, inside) = places(facts.stacks, stack);
                OutOfMemory {
                    requested,
                    free,
                    place,
                    inside,
                }
            }),
            events: self.events,
        }
    }
}

/// Bytes a block takes: as recorded, or what was asked for where that is all there is.
fn taken(event: &Event) -> u64 {
    if event.size > 0 {
        event.size
    } else {
        event.requested
    }
}

/// The second reading: what is alive at the peak of each device, by line.
fn find_holders<R: Read>(source: R, devices: &mut [DeviceUse]) -> Result<(), ReadError> {
    let mut reader = Reader::new(source)?;
    let mut live: Vec<BTreeMap<u64, (u64, Option<StackId>)>> = vec![BTreeMap::new(); devices.len()];
    let last = devices.iter().map(|device| device.peak.event).max();
    let mut row = 0;
    while let Some(event) = reader.next().transpose()? {
        for (device, live) in devices.iter().zip(&mut live) {
            let ours = (device.process, device.device) == (event.process, event.device);
            if !ours || row > device.peak.event {
                continue;
            }
            match event.kind {
                Kind::Alloc => {
                    live.insert(event.address, (taken(&event), event.stack));
                }
                Kind::FreeRequested => {
                    live.remove(&event.address);
                }
                _ => {}
            }
        }
        if Some(row) == last {
            break;
        }
        row += 1;
    }
    for (device, live) in devices.iter_mut().zip(live) {
        device.holders = holders(reader.stacks(), live.into_values());
    }
    Ok(())
}

fn holders(
    stacks: &StackTable,
    blocks: impl Iterator<Item = (u64, Option<StackId>)>,
) -> Vec<Holder> {
    // Stacks are shared, so each is looked at once.
    let mut by_stack: BTreeMap<Option<StackId>, (u64, u64)> = BTreeMap::new();
    for (bytes, stack) in blocks {
        let sum = by_stack.entry(stack).or_default();
        sum.0 += bytes;
        sum.1 += 1;
    }
    let mut by_place: BTreeMap<(Option<Place>, Option<Place>), (u64, u64)> = BTreeMap::new();
    for (stack, (bytes, blocks)) in by_stack {
        let sum = by_place.entry(places(stacks, stack)).or_default();
        sum.0 += bytes;
        sum.1 += blocks;
    }
    let mut holders: Vec<Holder> = by_place
        .into_iter()
        .map(|((place, inside), (bytes, blocks))| Holder {
            bytes,
            blocks,
            place,
            inside,
        })
        .collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders.truncate(HOLDERS);
    holders
}

/// The innermost line of the user's code, and the innermost of all if it is another.
fn places(stacks: &StackTable, stack: Option<StackId>) -> (Option<Place>, Option<Place>) {
    let Some(stack) = stack else {
        return (None, None);
    };
    let place = |frame: Frame<'_>| Place {
        file: frame.file.to_owned(),
        line: frame.line,
        function: frame.function.to_owned(),
    };
    let inner = stacks.frames(stack).next().map(place);
    let users = stacks.frames(stack).find(|frame| is_users(frame.file));
    match users.map(place) {
        Some(users) if Some(&users) == inner.as_ref() => (Some(users), None),
        Some(users) => (Some(users), inner),
        None => (inner, None),
    }
}

/// What the recording says of the run.
struct Facts<'a> {
    all: &'a [meta::Meta],
    stacks: &'a StackTable,
    command: String,
    ending: String,
    gpu: String,
    gpu_name: String,
    gpu_count: u32,
    capacity: KnownBytes,
    context: KnownBytes,
    torch: String,
    unknown: Vec<String>,
}

impl<'a> Facts<'a> {
    fn read<R: Read>(reader: &'a Reader<R>) -> Self {
        let facts = reader.meta();
        let text = |name: &str| {
            meta::find(facts, crate::facts::RUN, name)
                .unwrap_or_default()
                .to_owned()
        };
        let any = |name: &str| facts.iter().find(|fact| fact.name == name);
        let bytes = |name: &str, known: &str| KnownBytes {
            bytes: text(name).parse().unwrap_or(0),
            known: text(known),
        };
        Self {
            all: facts,
            stacks: reader.stacks(),
            command: text(meta::COMMAND),
            ending: text(facts::ENDING),
            gpu: text(facts::GPU_ID),
            gpu_name: text(meta::GPU_NAME),
            gpu_count: text(facts::GPU_COUNT).parse().unwrap_or(1),
            capacity: bytes(meta::GPU_CAPACITY, facts::GPU_CAPACITY_KNOWN),
            context: bytes(meta::GPU_CONTEXT, facts::GPU_CONTEXT_KNOWN),
            torch: any(meta::TORCH_VERSION).map_or(String::new(), |fact| fact.text.clone()),
            unknown: facts
                .iter()
                .filter(|fact| fact.name.starts_with(meta::UNKNOWN))
                .map(|fact| fact.text.clone())
                .collect(),
        }
    }

    fn fact(&self, process: u32, name: &str) -> Option<&str> {
        meta::find(self.all, process, name)
    }

    fn exceptions(&self) -> Vec<Exception> {
        let found = self.all.iter().filter(|fact| fact.name == facts::EXCEPTION);
        found
            .filter_map(|fact| {
                let json: serde_json::Value = serde_json::from_str(&fact.text).ok()?;
                let frames = json["stack"].as_array().cloned().unwrap_or_default();
                let mut frames = frames.iter().filter_map(|frame| {
                    Some(Place {
                        function: frame[0].as_str()?.to_owned(),
                        file: frame[1].as_str()?.to_owned(),
                        line: frame[2].as_u64()?,
                    })
                });
                Some(Exception {
                    kind: json["type"].as_str()?.to_owned(),
                    message: json["message"].as_str().unwrap_or_default().to_owned(),
                    place: frames.find(|place| is_users(&place.file)),
                })
            })
            .collect()
    }
}
