// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes [`Holdings`] of the rows of a recording, one after the other.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

use thiserror::Error;
use tonnage_trace::{Event, Kind, Meta, ReadError, Reader, StackId, StackTable, TextId, meta};

use super::held::{Census, HolderRow, Model};
use super::sites::{Hint, Hints};
use super::{
    Category, Failure, Holding, Holdings, Known, Phase, PhaseSpan, Recording, SegmentSpan, changes,
};
use crate::facts;

/// No sum of blocks is larger: what a hostile recording claims beyond it is not counted, so that
/// no sum made of holdings can overflow.
const ABSURD: u64 = 1 << 60;

/// Why a recording could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HoldingsError {
    /// It cannot be opened.
    #[error("the recording cannot be opened")]
    Open(#[from] io::Error),
    /// It cannot be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
    /// It is longer than row numbers reach.
    #[error("the recording has more than {} rows", u32::MAX - 1)]
    TooLong,
}

/// Reads all of a recording.
pub fn read<R: Read>(source: R) -> Result<Recording, HoldingsError> {
    read_from(Reader::new(source)?)
}

/// Reads all that a reader has: the first recording of a file, or one behind it.
pub fn read_from<R: Read>(mut reader: Reader<R>) -> Result<Recording, HoldingsError> {
    let mut tracks: BTreeMap<(u32, i32), Builder> = BTreeMap::new();
    let mut hints = Hints::default();
    let mut row = 0_u32;
    let mut first_time = None;
    let mut times = Vec::new();
    while let Some(event) = reader.next().transpose()? {
        if row == u32::MAX - 1 {
            return Err(HoldingsError::TooLong);
        }
        if let Some(time) = event.time {
            let first = *first_time.get_or_insert(time);
            if row.is_multiple_of(Recording::ROWS_PER_TIME) {
                times.push((row, time.saturating_sub(first).max(0).cast_unsigned()));
            }
        }
        if event.device >= 0 && event.kind != Kind::Unmodelled {
            let key = (event.process, event.device);
            let builder = tracks
                .entry(key)
                .or_insert_with(|| Builder::new(key.0, key.1));
            builder.row(&event, row, reader.stacks(), &mut hints);
        }
        row += 1;
    }
    let truncated = reader
        .ending()
        .is_some_and(tonnage_trace::Ending::is_truncated);
    let all = reader.meta().to_vec();
    let stacks = reader.into_parts().0;
    let tracks = tracks
        .into_values()
        // A process that only opened a context holds memory too.
        .filter(|builder| {
            let out = &builder.out;
            let direct = builder.direct.is_empty() && builder.refused.is_none();
            !out.blocks.is_empty() || out.failure.is_some() || out.context > 0 || !direct
        })
        .map(|builder| builder.finish(row, &all))
        .collect();
    Ok(Recording {
        tracks,
        stacks,
        meta: all,
        rows: row,
        truncated,
        times,
    })
}

/// A block that lives: its index, and the phase and stack that decide its category when it dies.
struct Builder {
    out: Holdings,
    live: HashMap<u64, u32>,
    segments: BTreeMap<u64, u32>,
    /// Whether the recording tells phases itself.
    told: bool,
    phase: Phase,
    phase_from: u32,
    /// The phases that have begun and not ended, each with what was going on before: a forward pass
    /// within an optimizer's closure.
    open: Vec<(Phase, Phase)>,
    modules: Vec<TextId>,
    step: u32,
    allocated: u64,
    /// Bytes of blocks that were there before the first row.
    before: u64,
    /// Whether segments were there before the first row and became known later.
    unseen_segments: bool,
    /// How many phases have ended: tells one forward pass from the next.
    span: u32,
    /// The spans in which each block was born and died, while they are collected.
    lives: Vec<(u32, u32)>,
    final_segments: Vec<(u64, u64, u64)>,
    final_states: Vec<(u64, u64, u64, u64, Option<StackId>)>,
    /// Bytes beside the allocator and the context when the allocator last did something: what a
    /// request that fails has obtained and not yet told of is the allocator's.
    outside: u64,
    /// Bytes of other processes on the device, where rows say.
    others: Option<u64>,
    /// What the program obtained from the driver, for one that has no allocator in between.
    direct: Vec<Holding>,
    direct_live: HashMap<u64, u32>,
    direct_bytes: u64,
    refused: Option<Failure>,
}

impl Builder {
    fn new(process: u32, device: i32) -> Self {
        Self {
            out: Holdings {
                process,
                device,
                ..Holdings::default()
            },
            live: HashMap::new(),
            segments: BTreeMap::new(),
            told: false,
            phase: Phase::Load,
            phase_from: 0,
            open: Vec::new(),
            modules: Vec::new(),
            step: 0,
            allocated: 0,
            before: 0,
            unseen_segments: false,
            span: 0,
            lives: Vec::new(),
            final_segments: Vec::new(),
            final_states: Vec::new(),
            outside: 0,
            others: None,
            direct: Vec::new(),
            direct_live: HashMap::new(),
            direct_bytes: 0,
            refused: None,
        }
    }

    fn row(&mut self, event: &Event, row: u32, stacks: &StackTable, hints: &mut Hints) {
        if let (Some(charged), Some(in_use)) = (event.charged, event.in_use) {
            self.others = Some(in_use.saturating_sub(charged).min(ABSURD));
        }
        self.direct(event, row);
        match event.kind {
            Kind::Alloc => self.alloc(event, row, stacks, hints),
            Kind::FreeRequested => self.given_back(event, row),
            Kind::SegmentAlloc | Kind::SegmentMap => {
                self.segment(event.address, event.size, event.stream, row);
            }
            Kind::SegmentFree | Kind::SegmentUnmap => {
                self.segment_gone(event.address, event.size, event.stream, row);
            }
            // The final state stands in front of the rows that lead to it.
            Kind::FinalSegment => {
                self.final_segments
                    .push((event.address, event.size, event.stream));
            }
            Kind::InitialSegment => self.segment(event.address, event.size, event.stream, 0),
            Kind::InitialBlock => {
                let state = event.name.map_or("", |name| stacks.text(name));
                if state.starts_with("active_allocated") {
                    self.born(event, 0, Phase::Load, None, stacks, hints);
                }
            }
            Kind::FinalBlock => {
                let state = event.name.map_or("", |name| stacks.text(name));
                if state.starts_with("active_allocated") {
                    let size = event.size.max(event.requested);
                    let entry = (
                        event.address,
                        size,
                        event.requested,
                        event.stream,
                        event.stack,
                    );
                    self.final_states.push(entry);
                }
            }
            Kind::Owner => self.owner(event, stacks),
            Kind::Holder => self.holder(event, row),
            Kind::MarkStart | Kind::MarkEnd | Kind::Mark => self.mark(event, row, stacks),
            Kind::DriverContext => {
                self.out.context = self.out.context.saturating_add(event.size).min(ABSURD);
            }
            Kind::DriverMalloc | Kind::DriverCreate | Kind::PoolMalloc => {
                let derived = self.out.charged.saturating_add(event.size);
                self.charge(event, derived);
            }
            Kind::DriverFree | Kind::DriverRelease | Kind::PoolFree | Kind::PoolTrim => {
                let derived = self.out.charged.saturating_sub(event.size);
                self.charge(event, derived);
            }
            Kind::Oom => {
                self.out.failure = Some(Failure {
                    row,
                    requested: event.size.min(ABSURD),
                    free: event.free.min(ABSURD),
                    stack: event.stack,
                    stream: event.stream,
                    phase: self.phase,
                    step: self.step,
                    module: self.modules.last().copied(),
                    allocated: self.allocated,
                    outside: self.outside,
                    others: self.others,
                    last: true,
                });
                self.out.failures += 1;
            }
            _ => {}
        }
    }

    /// Blocks of a program that asks the driver itself: with PyTorch these are segments, and are not looked at.
    fn direct(&mut self, event: &Event, row: u32) {
        match event.kind {
            _ if !self.out.blocks.is_empty() => {}
            Kind::DriverMalloc | Kind::PoolMalloc => {
                let bytes = event.size.min(ABSURD.saturating_sub(self.direct_bytes));
                self.direct_bytes += bytes;
                let index = self.direct.len() as u32;
                self.direct.push(Holding {
                    born: row,
                    died: Holding::ALIVE,
                    address: event.address,
                    bytes,
                    requested: event.requested.clamp(0, bytes),
                    stream: event.stream,
                    stack: event.stack,
                    module: None,
                    name: None,
                    shape: None,
                    step: 0,
                    category: Category::Other,
                    known: Known::Inferred,
                    phase: Phase::Load,
                });
                self.direct_live.insert(event.address, index);
                self.refused = None;
            }
            Kind::DriverFree | Kind::PoolFree => {
                if let Some(index) = self.direct_live.remove(&event.address) {
                    let block = &mut self.direct[index as usize];
                    block.died = row;
                    self.direct_bytes = self.direct_bytes.saturating_sub(block.bytes);
                }
            }
            Kind::DriverOom => {
                self.refused = Some(Failure {
                    row,
                    requested: event.size.min(ABSURD),
                    free: event.free.min(ABSURD),
                    stack: event.stack,
                    stream: event.stream,
                    phase: Phase::Load,
                    step: 0,
                    module: None,
                    allocated: self.direct_bytes,
                    outside: 0,
                    others: self.others,
                    last: true,
                });
            }
            _ => {}
        }
    }

    /// What the driver has charged this process after a call, without the context: as recorded,
    /// or else what the sizes come to.
    fn charge(&mut self, event: &Event, derived: u64) {
        let recorded = event
            .charged
            .map(|charged| charged.saturating_sub(self.out.context));
        self.out.charged = recorded.unwrap_or(derived).min(ABSURD);
        self.out.peak_charged = self.out.peak_charged.max(self.out.charged);
    }

    fn note_outside(&mut self) {
        self.outside = self.out.charged.saturating_sub(self.out.reserved);
    }

    fn alloc(&mut self, event: &Event, row: u32, stacks: &StackTable, hints: &mut Hints) {
        self.note_outside();
        if let Some(failure) = &mut self.out.failure {
            failure.last = false;
        }
        let hint = event.stack.map(|stack| hints.of(stacks, stack));
        if !self.told
            && let Some(phase) = hint.and_then(|hint| hint.phase)
        {
            self.enter(phase, row);
        } else if !self.told && hint.is_none_or(|hint| hint.nowhere) {
            // A thread of torch without Python frames after a forward pass is its backward pass.
            if self.phase == Phase::Forward {
                self.enter(Phase::Backward, row);
            }
        }
        let phase = self.phase;
        self.born(event, row, phase, hint, stacks, hints);
        if self.allocated > self.out.peak_allocated {
            self.out.peak_allocated = self.allocated;
            self.out.peak_row = row;
            self.out.outside_at_peak = self.outside;
            self.out.others_at_peak = self.others;
        }
    }

    fn born(
        &mut self,
        event: &Event,
        row: u32,
        phase: Phase,
        hint: Option<Hint>,
        stacks: &StackTable,
        hints: &mut Hints,
    ) {
        // A block where one lives already: the older one is taken as freed.
        let _ = self.free(event.address, row);
        let hint = hint.or_else(|| event.stack.map(|stack| hints.of(stacks, stack)));
        let bytes = self.taken(event);
        let requested = if event.requested > 0 {
            event.requested.min(bytes)
        } else {
            bytes
        };
        let index = self.out.blocks.len() as u32;
        self.out.blocks.push(Holding {
            born: row,
            died: Holding::ALIVE,
            address: event.address,
            bytes,
            requested,
            stream: event.stream,
            stack: event.stack,
            module: self.modules.last().copied(),
            name: None,
            shape: None,
            step: self.step,
            category: hint.and_then(|hint| hint.category).unwrap_or_default(),
            known: Known::Inferred,
            phase,
        });
        self.lives.push((self.span, self.span));
        self.live.insert(event.address, index);
        self.allocated += bytes;
    }

    /// Bytes a block takes: as recorded, else the request rounded as PyTorch rounds at least.
    fn taken(&mut self, event: &Event) -> u64 {
        let room = ABSURD.saturating_sub(self.allocated);
        if event.size > 0 {
            return event.size.min(room);
        }
        self.out.sizes_unknown += 1;
        event
            .requested
            .checked_next_multiple_of(512)
            .unwrap_or(event.requested)
            .min(room)
    }

    /// Ends the life of the block at an address, if one lives there.
    fn free(&mut self, address: u64, row: u32) -> bool {
        let Some(index) = self.live.remove(&address) else {
            return false;
        };
        let block = &mut self.out.blocks[index as usize];
        block.died = row;
        self.lives[index as usize].1 = self.span;
        self.allocated = self.allocated.saturating_sub(block.bytes);
        true
    }

    /// A block that is given back and whose birth was not recorded was there from the start.
    fn given_back(&mut self, event: &Event, row: u32) {
        self.note_outside();
        if self.free(event.address, row) {
            return;
        }
        let bytes = self.taken(event);
        let died = (row, self.span);
        self.there_before(event.address, bytes, event.requested, event.stream, died);
    }

    fn there_before(
        &mut self,
        address: u64,
        bytes: u64,
        requested: u64,
        stream: u64,
        died: (u32, u32),
    ) {
        self.out.unseen_births += 1;
        // These are not among the allocated bytes, so they have a bound of their own.
        let bytes = bytes.min(ABSURD - self.before);
        self.before += bytes;
        let requested = requested.min(bytes);
        self.out.blocks.push(Holding {
            born: 0,
            died: died.0,
            address,
            bytes,
            requested,
            stream,
            stack: None,
            module: None,
            name: None,
            shape: None,
            step: 0,
            category: Category::Other,
            known: Known::Inferred,
            phase: Phase::Load,
        });
        self.lives.push((0, died.1));
    }

    fn segment(&mut self, address: u64, bytes: u64, stream: u64, row: u32) {
        let bytes = bytes.min(ABSURD.saturating_sub(self.out.reserved));
        let index = self.out.segments.len() as u32;
        self.out.segments.push(SegmentSpan {
            born: row,
            died: Holding::ALIVE,
            address,
            bytes,
            stream,
        });
        self.out.reserved += bytes;
        if self.out.reserved > self.out.peak_reserved {
            self.out.peak_reserved = self.out.reserved;
            self.out.peak_reserved_row = row;
        }
        self.segments.insert(address, index);
    }

    /// Ends the spans of a range that went back, which may be several or parts of some.
    fn segment_gone(&mut self, address: u64, bytes: u64, stream: u64, row: u32) {
        let end = address.saturating_add(bytes);
        let mut from = address;
        // The span before may reach into the range.
        if let Some((&start, &index)) = self.segments.range(..address).next_back()
            && start.saturating_add(self.out.segments[index as usize].bytes) > address
        {
            from = start;
        }
        let inside: Vec<u64> = self
            .segments
            .range(from..end)
            .map(|(&start, _)| start)
            .collect();
        if inside.is_empty() {
            self.unseen_segments = true;
            let bytes = bytes.min(ABSURD - self.before);
            self.before += bytes;
            self.out.segments.push(SegmentSpan {
                born: 0,
                died: row,
                address,
                bytes,
                stream,
            });
        }
        for start in inside {
            let Some(index) = self.segments.remove(&start) else {
                continue;
            };
            let span = self.out.segments[index as usize];
            let stop = span.address.saturating_add(span.bytes);
            self.out.segments[index as usize].died = row;
            self.out.reserved = self.out.reserved.saturating_sub(span.bytes);
            // What lies outside the range goes on.
            if span.address < address {
                self.segment(span.address, address - span.address, span.stream, row);
            }
            if stop > end {
                self.segment(end, stop - end, span.stream, row);
            }
        }
    }

    fn owner(&mut self, event: &Event, stacks: &StackTable) {
        let Some(&index) = self.live.get(&event.address) else {
            return;
        };
        let text = event.text.map_or("", |text| stacks.text(text));
        let (key, shape) = text.split_once(' ').unwrap_or((text, ""));
        let Some(category) = Category::from_key(key) else {
            return;
        };
        let block = &mut self.out.blocks[index as usize];
        // A gradient that views a bucket, a weight that is also a buffer: the first word stands.
        if block.known == Known::Exact && block.category <= category {
            return;
        }
        block.category = category;
        block.known = Known::Exact;
        block.name = event.name;
        block.shape = event.text.filter(|_| !shape.is_empty());
    }

    fn holder(&mut self, event: &Event, row: u32) {
        let (Some(name), Some(text)) = (event.name, event.text) else {
            return;
        };
        if let Some(&block) = self.live.get(&event.address) {
            self.out.holders.push(HolderRow {
                row,
                block,
                name,
                text,
            });
        }
    }

    fn mark(&mut self, event: &Event, row: u32, stacks: &StackTable) {
        let Some(sort) = event.text.map(|text| stacks.text(text)) else {
            return;
        };
        let Some(name) = event.name else { return };
        match (sort, event.kind) {
            ("module", Kind::MarkStart) => self.modules.push(name),
            ("module", Kind::MarkEnd) => {
                // An exception may have skipped the ends of inner modules.
                if let Some(at) = self.modules.iter().rposition(|&module| module == name) {
                    self.modules.truncate(at);
                }
            }
            ("phase", kind) => {
                let Some(phase) = Phase::from_name(stacks.text(name)) else {
                    return;
                };
                if !self.told {
                    self.told = true;
                    self.out.phases_told = true;
                }
                if kind == Kind::MarkStart {
                    self.start(phase, row);
                } else {
                    self.stop(phase, row);
                }
            }
            ("census", _) => self.out.censuses.push(Census { row, reason: name }),
            ("grad_in_eval", _) => self.out.grad_in_eval.push(row),
            ("model", _) => {
                if let Some(model) = Model::parse(stacks.text(name)) {
                    self.out.models.retain(|known| known.name != model.name);
                    self.out.models.push(model);
                }
            }
            ("step", _) => {
                self.step += 1;
                self.out.steps.push(row);
            }
            _ => {}
        }
    }

    fn start(&mut self, phase: Phase, row: u32) {
        let is_pass = |phase| matches!(phase, Phase::Forward | Phase::Eval);
        if is_pass(phase) {
            self.out.passes.push(row);
            self.out.pass_ends.push(Holding::ALIVE);
            self.span += 1;
        }
        // No step runs inside a step and no pass inside a pass: the end of that one was skipped
        // by an exception.
        let same =
            |(open, _): &(Phase, Phase)| *open == phase && (is_pass(phase) || phase == Phase::Step);
        if let Some(at) = self.open.iter().rposition(same) {
            self.open.truncate(at);
        }
        self.open.push((phase, self.phase));
        self.enter(phase, row);
    }

    fn stop(&mut self, phase: Phase, row: u32) {
        let Some(at) = self.open.iter().rposition(|(open, _)| *open == phase) else {
            return;
        };
        let before = self.open[at].1;
        self.open.truncate(at);
        if matches!(phase, Phase::Forward | Phase::Eval)
            && let Some(end) = self.out.pass_ends.last_mut()
        {
            *end = row;
        }
        if !self.open.is_empty() {
            self.enter(before, row);
        } else if phase != Phase::Forward {
            // A loss is computed after the model's forward pass has ended and belongs to it; all
            // other phases end when they say so.
            self.enter(Phase::Other, row);
        }
    }

    fn enter(&mut self, phase: Phase, row: u32) {
        if phase == self.phase {
            return;
        }
        if !self.told && self.phase == Phase::Step && phase != Phase::Step {
            self.step += 1;
            self.out.steps.push(row);
        }
        if !self.told && matches!(phase, Phase::Forward | Phase::Eval) {
            self.out.passes.push(row);
            self.out.pass_ends.push(Holding::ALIVE);
        }
        self.end_phase(row);
        self.span += 1;
        self.phase = phase;
        self.phase_from = row;
    }

    fn end_phase(&mut self, row: u32) {
        if row > self.phase_from {
            self.out.phases.push(PhaseSpan {
                phase: self.phase,
                from: self.phase_from,
                to: row,
                step: self.step,
            });
        }
    }

    fn finish(mut self, rows: u32, all: &[Meta]) -> Holdings {
        self.end_phase(rows);
        self.adopt_final_state();
        let direct = self.out.blocks.is_empty() && self.out.failure.is_none();
        if direct {
            self.out.blocks = std::mem::take(&mut self.direct);
            self.lives = vec![(0, 0); self.out.blocks.len()];
            self.out.failure = self.refused;
            self.out.outside_at_peak = 0;
            self.out.others_at_peak = self.others;
        }
        if self.out.unseen_births > 0 || direct {
            self.find_peak();
        }
        if self.unseen_segments {
            self.find_reserved_peak();
        }
        for (block, &(born, died)) in self.out.blocks.iter_mut().zip(&self.lives) {
            if block.known == Known::Inferred && block.category == Category::Other {
                let passing = block.died != Holding::ALIVE && born == died;
                block.category = by_life(block.phase, passing, self.told);
            }
        }
        let fact = |name: &str| {
            let own = meta::find(all, self.out.process, name);
            own.or_else(|| meta::find(all, facts::RUN, name))
        };
        let number = |name: &str| fact(name).and_then(|text| text.parse::<u64>().ok());
        self.out.capacity = number(meta::GPU_CAPACITY).filter(|&bytes| bytes > 0);
        self.out
    }

    /// Finds the peak anew, with what was there before the first row.
    fn find_peak(&mut self) {
        let spans = self.out.phase_peaks();
        // The first of equals.
        let peak = spans.iter().rev().max_by_key(|(_, bytes, _)| *bytes);
        if let Some(&(_, bytes, row)) = peak {
            self.out.peak_allocated = bytes;
            self.out.peak_row = row;
        }
    }

    /// The same for what is held from the driver.
    fn find_reserved_peak(&mut self) {
        let spans = self.out.segments.iter();
        let lives = spans.map(|span| (span.born, span.died, span.bytes));
        let (mut sum, mut peak) = (0_i64, (0_i64, 0));
        for (row, change) in changes(lives) {
            sum += change;
            if sum > peak.0 {
                peak = (sum, row);
            }
        }
        self.out.peak_reserved = peak.0.cast_unsigned();
        self.out.peak_reserved_row = peak.1;
    }

    /// Segments and blocks of the final state that no row obtained were there from the start.
    fn adopt_final_state(&mut self) {
        for (address, bytes, stream) in std::mem::take(&mut self.final_segments) {
            let end = address.saturating_add(bytes);
            if self.segments.range(address..end).next().is_none() {
                self.unseen_segments = true;
                self.segment(address, bytes, stream, 0);
            }
        }
        for (address, bytes, requested, stream, stack) in std::mem::take(&mut self.final_states) {
            if self.live.contains_key(&address) {
                continue;
            }
            let first = self.out.blocks.len();
            let died = (Holding::ALIVE, 0);
            self.there_before(address, bytes, requested, stream, died);
            self.out.blocks[first].stack = stack;
        }
    }
}

/// The category of a block that nobody named, from the phase it was born in and whether it died in it.
///
/// Where torch was asked, what outlives a backward pass or a step without a name is neither a
/// gradient nor optimizer state.
fn by_life(born_in: Phase, passing: bool, told: bool) -> Category {
    match born_in {
        Phase::Load => Category::Other,
        // What is made between passes is a batch, a metric, a copy: nothing that torch makes.
        _ if passing => Category::Temporaries,
        Phase::Forward => Category::Activations,
        Phase::Backward if !told => Category::Gradients,
        Phase::Step if !told => Category::OptimizerState,
        _ => Category::Other,
    }
}
