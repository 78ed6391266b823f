// SPDX-License-Identifier: MIT OR Apache-2.0
//! One of the two recordings, as far as it is compared.

use std::collections::BTreeMap;
use std::io::Read;

use tonnage_recording::account::Rounding;
use tonnage_recording::facts;
use tonnage_recording::{Account, Event, Kind, Meta, ReadError, Reader, StackId, StackTable, meta};

use crate::holdings::{Place, is_users};
use crate::unmodelled::UnmodelledCalls;

/// A request to PyTorch's allocator, or from it to the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    /// Bytes: what was requested of a block, what a segment has.
    pub(super) bytes: u64,
    /// Where a block lies: the number of its segment, and the distance from its first byte.
    pub(super) place: Option<(u32, u64)>,
    pub(super) stack: Option<StackId>,
    /// Number of the library whose workspace it is, plus one.
    pub(super) workspace: u32,
}

impl Step {
    /// The common part of two runs.
    pub(super) fn key(&self) -> (Kind, u64) {
        (self.kind, self.bytes)
    }
}

/// One process on one device.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) process: u32,
    pub(super) rank: Option<u32>,
    pub(super) device: i32,
    /// Its place among the processes of the device.
    order: usize,
    pub(super) events: Vec<Step>,
    pub(super) peak_allocated: u64,
    pub(super) peak_reserved: u64,
    pub(super) context: u64,
    /// Most that was in use outside PyTorch, with the context.
    pub(super) beside: u64,
    segments: BTreeMap<u64, (u32, u64)>,
    segment_count: u32,
    live: BTreeMap<u64, usize>,
}

impl Track {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self.rank, other.rank) {
            (Some(one), Some(two)) => one == two && self.device == other.device,
            (None, None) => self.device == other.device && self.order == other.order,
            _ => false,
        }
    }

    pub(super) fn name(&self) -> String {
        self.rank.map_or_else(
            || format!("process {} on GPU {}", self.process, self.device),
            |rank| format!("rank {rank} on GPU {}", self.device),
        )
    }

    /// Takes a row, if it is one that is compared.
    fn take(&mut self, event: &Event) {
        let mut step = Step {
            kind: event.kind,
            bytes: event.size,
            place: None,
            stack: event.stack,
            workspace: 0,
        };
        match event.kind {
            Kind::Alloc => {
                step.bytes = event.requested;
                let segment = self.segments.range(..=event.address).next_back();
                step.place = segment
                    .filter(|(start, (_, bytes))| event.address - **start < *bytes)
                    .map(|(start, (number, _))| (*number, event.address - start));
                self.live.insert(event.address, self.events.len());
            }
            Kind::FreeRequested => {
                step.bytes = event.requested;
                let index = self.live.remove(&event.address);
                let block = index.and_then(|index| self.events.get(index));
                step.workspace = block.map_or(0, |block| block.workspace);
            }
            Kind::SegmentAlloc => {
                let segment = (self.segment_count, event.size);
                self.segments.insert(event.address, segment);
                self.segment_count += 1;
            }
            Kind::SegmentFree => {
                self.segments.remove(&event.address);
            }
            Kind::SegmentMap | Kind::SegmentUnmap | Kind::Oom => {}
            _ => return,
        }
        self.events.push(step);
    }

    /// Rows that are only in the blocks file come when Python has ended; a real GPU has no such file.
    fn cut(&mut self) {
        let is_bare =
            |step: &Step| step.bytes == 0 && matches!(step.kind, Kind::Alloc | Kind::FreeRequested);
        let whole = self.events.iter().rposition(|step| !is_bare(step));
        self.events.truncate(whole.map_or(0, |last| last + 1));
    }
}

/// A recording.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) command: String,
    pub(super) gpu: String,
    pub(super) torch: String,
    pub(super) capacity: u64,
    pub(super) incomplete: Option<String>,
    pub(super) tracks: Vec<Track>,
    pub(super) facts: Vec<Meta>,
    pub(super) libraries: Vec<String>,
    pub(super) stacks: StackTable,
    pub(super) unmodelled: UnmodelledCalls,
}

impl Side {
    pub(super) fn read<R: Read>(source: R) -> Result<Self, ReadError> {
        let mut reader = Reader::new(source)?;
        let mut account = Account::<()>::new(Rounding::PyTorch);
        let mut tracks: BTreeMap<(u32, i32), Track> = BTreeMap::new();
        let mut libraries: Vec<String> = Vec::new();
        let mut unmodelled = UnmodelledCalls::default();
        let mut row = 0;
        while let Some(event) = reader.next().transpose()? {
            account.apply(&event, row, reader.stacks());
            row += 1;
            unmodelled.add(&event, reader.stacks());
            if event.device < 0 {
                continue;
            }
            let key = (event.process, event.device);
            if event.kind == Kind::Owner {
                let text = event.text.map_or("", |text| reader.stacks().text(text));
                if text.starts_with("workspaces") {
                    let name = event.name.map_or("", |name| reader.stacks().text(name));
                    let number = libraries.iter().position(|library| library == name);
                    let number = number.unwrap_or_else(|| {
                        libraries.push(name.to_owned());
                        libraries.len() - 1
                    });
                    let track = tracks.entry(key).or_default();
                    let index = track.live.get(&event.address).copied();
                    if let Some(step) = index.and_then(|index| track.events.get_mut(index)) {
                        step.workspace = number as u32 + 1;
                    }
                }
                continue;
            }
            let is_torchs = matches!(
                event.kind,
                Kind::Alloc
                    | Kind::FreeRequested
                    | Kind::SegmentAlloc
                    | Kind::SegmentFree
                    | Kind::SegmentMap
                    | Kind::SegmentUnmap
                    | Kind::Oom
            );
            if is_torchs {
                tracks.entry(key).or_default().take(&event);
            }
            if let Some(device) = account.get(event.process, event.device) {
                let beside = device.context().saturating_add(device.outside());
                // A segment of PyTorch's is known as such only after the driver's row.
                if is_torchs || event.kind == Kind::Measured {
                    let track = tracks.entry(key).or_default();
                    track.beside = track.beside.max(beside);
                }
            }
        }
        let mut order: BTreeMap<i32, usize> = BTreeMap::new();
        let (stacks, facts) = reader.into_parts();
        let mut side = Self {
            facts,
            libraries,
            stacks,
            unmodelled,
            ..Self::default()
        };
        for ((process, device), mut track) in tracks {
            let Some(account) = account.get(process, device) else {
                continue;
            };
            track.cut();
            if track.events.is_empty() {
                continue;
            }
            track.process = process;
            track.device = device;
            let rank = side.fact(process, meta::PROCESS_RANK);
            track.rank = rank.and_then(|rank| rank.parse().ok());
            track.peak_allocated = account.at_peak_allocated().breakdown.allocated;
            track.peak_reserved = account.at_peak_reserved().reserved;
            track.context = account.context();
            let order = order.entry(device).or_default();
            track.order = *order;
            *order += 1;
            side.tracks.push(track);
        }
        let text = |side: &Self, name: &str| {
            let text = side.fact(facts::RUN, name);
            text.unwrap_or_default().to_owned()
        };
        side.command = text(&side, meta::COMMAND);
        side.gpu = text(&side, meta::GPU_NAME);
        side.capacity = text(&side, meta::GPU_CAPACITY).parse().unwrap_or(0);
        side.incomplete = side.any(facts::INCOMPLETE);
        side.torch = side.any(meta::TORCH_VERSION).unwrap_or_default();
        Ok(side)
    }

    pub(super) fn fact(&self, process: u32, name: &str) -> Option<&str> {
        meta::find(&self.facts, process, name)
    }

    /// The fact of the first process that has it.
    fn any(&self, name: &str) -> Option<String> {
        let fact = self.facts.iter().find(|fact| fact.name == name);
        fact.map(|fact| fact.text.clone())
    }

    /// The line of the script that a stack leads to.
    pub(super) fn place(&self, stack: Option<StackId>) -> Option<Place> {
        let users = self
            .stacks
            .frames(stack?)
            .find(|frame| is_users(frame.file));
        users.map(|frame| Place {
            file: frame.file.to_owned(),
            line: frame.line,
            function: frame.function.to_owned(),
        })
    }
}
