// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes [`Holdings`] of the rows of a recording, one after the other.
//!
//! The [`Account`] has what is alive, held and charged at each row, and keeps the number of each live
//! block; here lifetimes are made of it, with phases, modules and owners.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

use thiserror::Error;
use tonnage_recording::account::{self, ABSURD, BlockState, Change, Rounding, Segment};
use tonnage_recording::facts;
use tonnage_recording::{
    Account, DeviceAccount, Event, Kind, Meta, ReadError, Reader, StackTable, TextId, meta,
};

use super::held::{Census, HeldBy, HolderRow, LastResult, Model};
use super::sites::Hints;
use super::{
    Category, Failure, Holding, Holdings, Known, Phase, PhaseSpan, Recording, SegmentSpan, UsesOf,
    changes, is_own_limit,
};
use crate::unmodelled::UnmodelledCalls;

/// The account of a process and device, with the number of each live block.
type Track = DeviceAccount<Option<u32>>;

/// A block of it.
type Block = account::Block<Option<u32>>;

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
///
/// ```
/// use tonnage_analysis::{explain, holdings};
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
/// let recording = holdings::read(file.as_slice())?;
/// let track = recording.worst().expect("it has blocks");
/// assert_eq!(track.peak_allocated, 3_000_320);
/// assert_eq!(track.alive_at(track.peak_row).count(), 1);
///
/// let explanation = explain::explain(&recording, None, None).expect("it has blocks");
/// assert_eq!(explanation.device, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read<R: Read>(source: R) -> Result<Recording, HoldingsError> {
    read_from(Reader::new(source)?)
}

/// Reads all that a reader has: the first recording of a file, or one behind it.
pub fn read_from<R: Read>(mut reader: Reader<R>) -> Result<Recording, HoldingsError> {
    let mut account: Account<Option<u32>> = Account::new(Rounding::PyTorch);
    let mut tracks: BTreeMap<(u32, i32), Builder> = BTreeMap::new();
    let mut hints = Hints::default();
    let mut row = 0_u32;
    let mut first_time = None;
    let mut times = Vec::new();
    let mut unmodelled = UnmodelledCalls::default();
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
        unmodelled.add(&event, reader.stacks());
        if event.device >= 0 && event.kind != Kind::Unmodelled {
            let key = (event.process, event.device);
            let change = account.apply(&event, u64::from(row), reader.stacks());
            let builder = tracks
                .entry(key)
                .or_insert_with(|| Builder::new(key.0, key.1));
            if let Some(track) = account.get_mut(key.0, key.1) {
                builder.change(&event, change, track, row, reader.stacks(), &mut hints);
            }
            if matches!(event.kind, Kind::MarkStart | Kind::MarkEnd | Kind::Mark) {
                builder.mark(&event, row, reader.stacks());
            }
        }
        row += 1;
    }
    let truncated = reader
        .ending()
        .is_some_and(tonnage_recording::Ending::is_truncated);
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
        .map(|builder| {
            let track = account.get(builder.out.process, builder.out.device);
            builder.finish(track, row, &all)
        })
        .collect();
    Ok(Recording {
        tracks,
        stacks,
        meta: all,
        rows: row,
        truncated,
        unmodelled,
        times,
    })
}

/// A block that lives: its index, and the phase and stack that decide its category when it dies.
struct Builder {
    out: Holdings,
    /// The number of the span that is held at an address.
    segments: HashMap<u64, u32>,
    /// Whether the recording itself has phases.
    told: bool,
    phase: Phase,
    phase_from: u32,
    /// The phases that have begun and not ended, each with what was going on before: a forward pass
    /// within an optimizer's closure.
    open: Vec<(Phase, Phase)>,
    modules: Vec<TextId>,
    step: u32,
    /// Bytes of blocks and segments that were there before the first row.
    before: u64,
    /// Whether segments were there before the first row and became known later.
    unseen_segments: bool,
    /// How many phases have ended: distinguishes one forward pass from the next.
    span: u32,
    /// The spans in which each block was born and died, while they are collected.
    lives: Vec<(u32, u32)>,
    /// Each birth of a block, and each death with the block's index.
    changes: Vec<Option<u32>>,
    /// Bytes of other processes on the device, where rows have them.
    others: Option<u64>,
    /// The memory that the program obtained from the driver, for one that has no allocator in between.
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
            segments: HashMap::new(),
            told: false,
            phase: Phase::Load,
            phase_from: 0,
            open: Vec::new(),
            modules: Vec::new(),
            step: 0,
            before: 0,
            unseen_segments: false,
            span: 0,
            lives: Vec::new(),
            changes: Vec::new(),
            others: None,
            direct: Vec::new(),
            direct_live: HashMap::new(),
            direct_bytes: 0,
            refused: None,
        }
    }

    /// Takes what a row did to the account.
    fn change(
        &mut self,
        event: &Event,
        change: Change<Option<u32>>,
        track: &mut Track,
        row: u32,
        stacks: &StackTable,
        hints: &mut Hints,
    ) {
        match change {
            Change::Allocated { block, replaced } => {
                // A block where one is alive: the older one is taken as freed.
                self.end(replaced, row);
                self.alloc(&block, track, row, stacks, hints);
            }
            Change::Freed { block, .. } => {
                self.used(event, block.tag, row);
                if block.tag.is_some() {
                    self.end(Some(block), row);
                } else if block.born.is_none() {
                    // Its birth was not recorded: it was there from the start.
                    self.there_before(&block, (row, self.span));
                }
            }
            Change::Completed { block } => self.end(block, row),
            Change::Obtained {
                segment,
                gone,
                left,
            } => {
                self.cut(&gone, &left, row);
                self.segment(&segment, row);
                self.note_reserved(track, row);
            }
            Change::GivenBack { range, gone, left } => {
                if gone.is_empty() {
                    self.unseen_segments = true;
                    let span = self.before_span(&range, row);
                    self.out.segments.push(span);
                }
                self.cut(&gone, &left, row);
            }
            Change::OutOfMemory => self.failed(event, track, row),
            Change::Charged | Change::Refused => {
                self.charged(track);
                self.direct(event, row);
            }
            Change::InitialSegment {
                segment,
                gone,
                left,
            } => {
                self.cut(&gone, &left, 0);
                self.segment(&segment, 0);
                self.note_reserved(track, 0);
            }
            Change::InitialBlock { block, replaced } => {
                self.end(replaced, 0);
                if block.state == BlockState::Allocated {
                    self.born(&block, track, 0, Phase::Load, stacks, hints);
                }
            }
            // The state after the last row is looked at when all rows are known.
            Change::State | Change::Contradicted { .. } => {}
            Change::Nothing => match event.kind {
                Kind::Owner => self.owner(event, track, stacks),
                Kind::Holder => self.holder(event, track, row),
                Kind::Used => self.used(event, Self::live(track, event.address), row),
                _ => {}
            },
        }
    }

    /// Takes the uses of a block.
    fn used(&mut self, event: &Event, index: Option<u32>, row: u32) {
        if let Some((uses, index)) = event.uses.zip(index) {
            let block = &mut self.out.blocks[index as usize];
            let before = |rows: u32| row.checked_sub(rows).filter(|_| rows > 0);
            block.uses = Some(UsesOf {
                count: uses.count,
                first: block.born.saturating_add(uses.first).min(row),
                last: before(uses.last),
                next: before(uses.next),
            });
        }
    }

    fn charged(&mut self, track: &Track) {
        self.out.context = track.context();
        let charged = track.charged().saturating_sub(track.context());
        self.out.peak_charged = self.out.peak_charged.max(charged);
        let others = |all: u64| all.saturating_sub(track.charged());
        self.others = track.in_use().map(others).or(self.others);
    }

    fn failed(&mut self, event: &Event, track: &Track, row: u32) {
        self.out.failure = Some(Failure {
            row,
            requested: event.size.min(ABSURD),
            free: event.free.min(ABSURD),
            stack: event.stack,
            stream: event.stream,
            phase: self.phase,
            step: self.step,
            module: self.modules.last().copied(),
            allocated: track.allocated(),
            outside: track.outside(),
            others: self.others,
            last: true,
            own_limit: self.refused.is_none() && is_own_limit(event.size, event.free),
        });
        self.out.failures += 1;
    }

    /// Blocks of a program that allocates from the driver itself: with PyTorch these are segments, and are not looked
    /// at.
    fn direct(&mut self, event: &Event, row: u32) {
        match event.kind {
            _ if !self.out.blocks.is_empty() => {}
            Kind::DriverMalloc | Kind::PoolMalloc => {
                let bytes = event.size.min(ABSURD.saturating_sub(self.direct_bytes));
                self.direct_bytes += bytes;
                let index = self.direct.len() as u32;
                self.direct.push(Holding {
                    requested: event.requested.clamp(0, bytes),
                    stream: event.stream,
                    stack: event.stack,
                    ..Holding::new(row, Holding::ALIVE, event.address, bytes)
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
                    own_limit: false,
                });
            }
            _ => {}
        }
    }

    fn alloc(
        &mut self,
        block: &Block,
        track: &mut Track,
        row: u32,
        stacks: &StackTable,
        hints: &mut Hints,
    ) {
        if let Some(failure) = &mut self.out.failure {
            failure.last = false;
        }
        let hint = block.stack.map(|stack| hints.read_stack(stacks, stack));
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
        self.born(block, track, row, phase, stacks, hints);
        if track.allocated() > self.out.peak_allocated {
            self.out.peak_allocated = track.allocated();
            self.out.peak_row = row;
            self.out.outside_at_peak = track.outside();
            self.out.others_at_peak = self.others;
        }
    }

    fn born(
        &mut self,
        block: &Block,
        track: &mut Track,
        row: u32,
        phase: Phase,
        stacks: &StackTable,
        hints: &mut Hints,
    ) {
        let hint = block.stack.map(|stack| hints.read_stack(stacks, stack));
        let requested = match block.requested {
            0 => block.bytes,
            requested => requested.min(block.bytes),
        };
        track.tag(block.address, Some(self.out.blocks.len() as u32));
        self.out.blocks.push(Holding {
            requested,
            stream: block.stream,
            stack: block.stack,
            module: self.modules.last().copied(),
            step: self.step,
            category: hint.and_then(|hint| hint.category).unwrap_or_default(),
            phase,
            ..Holding::new(row, Holding::ALIVE, block.address, block.bytes)
        });
        self.lives.push((self.span, self.span));
        self.changes.push(None);
    }

    /// Ends the lifetime of a block that the program had until this row.
    fn end(&mut self, block: Option<Block>, row: u32) {
        let had = block.filter(|block| block.state == BlockState::Allocated);
        let Some(index) = had.and_then(|block| block.tag) else {
            return;
        };
        self.out.blocks[index as usize].died = row;
        self.lives[index as usize].1 = self.span;
        self.changes.push(Some(index));
    }

    /// Marks the blocks that died in the last changes: a collection of Python's garbage freed them.
    fn mark_collected(&mut self, changes: usize) {
        let from = self.changes.len().saturating_sub(changes);
        for &index in self.changes[from..].iter().flatten() {
            self.out.blocks[index as usize].is_collected = true;
        }
    }

    fn there_before(&mut self, block: &Block, died: (u32, u32)) {
        self.out.unseen_births += 1;
        // These are not among the allocated bytes, so they have a bound of their own.
        let bytes = block.bytes.min(ABSURD - self.before);
        self.before += bytes;
        self.out.blocks.push(Holding {
            requested: block.requested.min(bytes),
            stream: block.stream,
            stack: block.stack,
            ..Holding::new(0, died.0, block.address, bytes)
        });
        self.lives.push((0, died.1));
    }

    fn segment(&mut self, segment: &Segment, row: u32) {
        let index = self.out.segments.len() as u32;
        self.out.segments.push(SegmentSpan {
            born: row,
            died: Holding::ALIVE,
            address: segment.address,
            bytes: segment.bytes,
            stream: segment.stream,
            pool: segment.pool,
            stack: segment.stack,
        });
        self.segments.insert(segment.address, index);
    }

    fn note_reserved(&mut self, track: &Track, row: u32) {
        if track.reserved() > self.out.peak_reserved {
            self.out.peak_reserved = track.reserved();
            self.out.peak_reserved_row = row;
        }
    }

    /// Ends the spans that went back, whole or in part; what is left of them goes on.
    fn cut(&mut self, gone: &[Segment], left: &[Segment], row: u32) {
        for segment in gone {
            if let Some(index) = self.segments.remove(&segment.address) {
                self.out.segments[index as usize].died = row;
            }
        }
        for segment in left {
            self.segment(segment, row);
        }
    }

    /// A span that was there before the first row.
    fn before_span(&mut self, segment: &Segment, died: u32) -> SegmentSpan {
        let bytes = segment.bytes.min(ABSURD - self.before);
        self.before += bytes;
        SegmentSpan {
            born: 0,
            died,
            address: segment.address,
            bytes,
            stream: segment.stream,
            pool: segment.pool,
            stack: segment.stack,
        }
    }

    /// The number of the block that the program has at an address.
    fn live(track: &Track, address: u64) -> Option<u32> {
        let block = track.block(address)?;
        block.tag.filter(|_| block.state == BlockState::Allocated)
    }

    fn owner(&mut self, event: &Event, track: &Track, stacks: &StackTable) {
        let Some(index) = Self::live(track, event.address) else {
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

    fn holder(&mut self, event: &Event, track: &Track, row: u32) {
        let (Some(name), Some(text)) = (event.name, event.text) else {
            return;
        };
        if let Some(block) = Self::live(track, event.address) {
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
            ("collected", _) => self.mark_collected(stacks.text(name).parse().unwrap_or(0)),
            ("pass_end", _) => {
                if let Some(end) = self.out.pass_ends.last_mut() {
                    *end = row;
                }
            }
            ("grad_in_eval", _) => self.out.grad_in_eval.push(row),
            ("own_graph", _) => self.out.own_graphs.push((row, name)),
            ("called_model", _) => {
                let told = stacks.text(name).split_once(" = ");
                if let Some((model, variable)) = told
                    && let Some(held) = HeldBy::parse(variable, "module")
                {
                    self.out.called_models.insert(model.to_owned(), held);
                }
            }
            ("untrained_model", _) => {
                self.out.untrained.insert(name);
            }
            ("trained_model", _) => {
                self.out.untrained.remove(&name);
            }
            ("unstepped", _) => {
                self.out.unstepped.insert(name);
            }
            ("stepped", _) => {
                self.out.unstepped.remove(&name);
            }
            ("model", _) => {
                if let Some(model) = Model::parse(stacks.text(name)) {
                    self.out.models.retain(|known| known.name != model.name);
                    self.out.models.push(model);
                }
            }
            ("last_result", _) => {
                if let Some((held, result)) = LastResult::parse(stacks.text(name)) {
                    self.out.last_results.retain(|known| !known.is(&held));
                    self.out.last_results.extend(result);
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
            // other phases end at their own rows.
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

    fn finish(mut self, track: Option<&Track>, rows: u32, all: &[Meta]) -> Holdings {
        self.end_phase(rows);
        self.out.end = rows;
        if let Some(track) = track {
            self.adopt_final_state(track);
            self.out.sizes_unknown = track.sizes_unknown();
        }
        let direct = self.out.blocks.is_empty() && self.out.failure.is_none();
        if direct {
            self.out.blocks = std::mem::take(&mut self.direct);
            self.lives = vec![(0, 0); self.out.blocks.len()];
            self.out.failure = self.refused;
            self.out.outside_at_peak = 0;
            self.out.others_at_peak = self.others;
        }
        let charged = self.out.peak_charged > 0 && !direct;
        let told = track.filter(|track| charged && track.is_charge_told());
        self.out.fullest = told.map(Track::at_peak_used);
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
    fn adopt_final_state(&mut self, track: &Track) {
        let finally = track.final_state().iter().map(|state| state.segment);
        for segment in finally.filter(|segment| !track.holds_any(segment)) {
            self.unseen_segments = true;
            let span = self.before_span(&segment, Holding::ALIVE);
            self.out.segments.push(span);
        }
        for block in track.untouched() {
            let block = Block {
                address: block.address,
                bytes: block.bytes,
                requested: block.requested,
                stream: block.stream,
                stack: block.stack,
                ..Block::default()
            };
            self.there_before(&block, (Holding::ALIVE, 0));
        }
    }
}

/// The category of an unnamed block, from the phase it was born in and whether it died in it.
///
/// Where torch was queried, a block that outlives a backward pass or a step without a name is neither a
/// gradient nor optimizer state.
fn by_life(born_in: Phase, passing: bool, told: bool) -> Category {
    match born_in {
        Phase::Load => Category::Other,
        // A block made between passes is a batch, a metric, a copy: nothing that torch makes.
        _ if passing => Category::Temporaries,
        Phase::Forward => Category::Activations,
        Phase::Backward if !told => Category::Gradients,
        Phase::Step if !told => Category::OptimizerState,
        _ => Category::Other,
    }
}
