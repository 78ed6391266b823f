// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every block of a recording with its lifetime, its category, its holder and how each is known.
//!
//! A dry run queries torch itself, at moments when torch knows: which tensors are
//! parameters, gradients and optimizer state, when a module is entered, when a
//! backward pass begins. Its recording carries the answers as `owner`, `mark_start`
//! and `mark_end` rows, and blocks named by them are [`Known::Exact`]. For all
//! other blocks the category follows from the phase in which they were born and
//! died, or from their stack, and is [`Known::Inferred`].
//!
//! It also queries Python for the holder of each block, at an out-of-memory and near peaks: a
//! census. Its answers are `holder` rows; [`Holdings::holders_near`] finds the ones
//! that hold for a moment.
//!
//! Memory: one [`Holding`] for every block of the recording, about 80 bytes each.

mod held;
mod read;
mod sites;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::Serialize;
use tonnage_recording::account::Moment;
use tonnage_recording::{Meta, Pool, StackId, StackTable, TextId};

use crate::unmodelled::UnmodelledCalls;

pub use held::{Census, HeldBy, HolderRow, LastResult, Model, ModelState, Sort};
pub use read::{HoldingsError, read, read_from};
pub(crate) use sites::is_python;
pub use sites::{Place, is_generated, is_users, own_folder, pattern, site};

/// The purpose of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Category {
    /// Parameters of modules.
    Weights,
    /// Buffers of modules: running means, masks, position tables.
    Buffers,
    /// The gradients that the backward pass leaves in `.grad`.
    Gradients,
    /// The state that an optimizer keeps from step to step.
    OptimizerState,
    /// Made in the forward pass and kept for the backward pass.
    Activations,
    /// Made and given back within one phase.
    Temporaries,
    /// Scratch memory of libraries: cuBLAS, cuDNN.
    Workspaces,
    /// Keys and values kept from token to token.
    KvCache,
    /// Nothing above, or not known.
    #[default]
    Other,
}

impl Category {
    /// All of them, in the order of pictures and tables.
    pub const ALL: [Self; 9] = [
        Self::Weights,
        Self::Buffers,
        Self::Gradients,
        Self::OptimizerState,
        Self::Activations,
        Self::Temporaries,
        Self::Workspaces,
        Self::KvCache,
        Self::Other,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Buffers => "buffers",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activations => "activations",
            Self::Temporaries => "temporaries",
            Self::Workspaces => "workspaces",
            Self::KvCache => "KV cache",
            Self::Other => "other",
        }
    }

    /// The word for it in recordings and in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer_state",
            Self::KvCache => "kv_cache",
            _ => self.name(),
        }
    }

    /// The category with this key.
    pub fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.key() == key)
    }
}

/// How a category is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// Torch itself named the tensor in this block.
    Exact,
    /// From the phases in which the block was born and died, or from its stack.
    #[default]
    Inferred,
}

/// The activity of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Before anything else is known to have happened.
    #[default]
    Load,
    /// A forward pass with gradients.
    Forward,
    /// A backward pass.
    Backward,
    /// An optimizer's step.
    Step,
    /// A forward pass without gradients.
    Eval,
    /// Saving or loading a checkpoint.
    Save,
    /// Between passes: after a phase ended and before the next begins.
    Other,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Load,
        Self::Forward,
        Self::Backward,
        Self::Step,
        Self::Eval,
        Self::Save,
        Self::Other,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Step => "step",
            Self::Eval => "eval",
            Self::Save => "save",
            Self::Other => "other",
        }
    }

    /// The phase with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }
}

/// One block, from its birth to its death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The row that handed it out, from 0; 0 if it was there before the first row.
    pub born: u32,
    /// The row that took it back; [`Holding::ALIVE`] if none did.
    pub died: u32,
    /// First byte.
    pub address: u64,
    /// Bytes the block takes.
    pub bytes: u64,
    /// Bytes that the program requested.
    pub requested: u64,
    /// The stream it was requested on.
    pub stream: u64,
    /// Where it was requested.
    pub stack: Option<StackId>,
    /// The module in whose forward pass it was requested, by its path in the model.
    pub module: Option<TextId>,
    /// The tensor's name, where torch named it.
    pub name: Option<TextId>,
    /// Its type and shape, where torch reported them: `bfloat16[4096, 14336]`.
    pub shape: Option<TextId>,
    /// The step in which it was born, from 0.
    pub step: u32,
    /// The purpose.
    pub category: Category,
    /// How that is known.
    pub known: Known,
    /// The phase in which it was born.
    pub phase: Phase,
    /// When the device used it, where that is recorded.
    pub uses: Option<UsesOf>,
    /// Whether a collection of Python's garbage freed it: only a reference cycle kept it until then.
    pub is_collected: bool,
}

/// When the device used a block. A use comes after its row and before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsesOf {
    /// How many.
    pub count: u32,
    /// The row of the first; that of the block's birth if there is none.
    pub first: u32,
    /// The row of the last.
    pub last: Option<u32>,
    /// The row of the first after the peak of the track, of blocks that were alive then.
    pub next: Option<u32>,
}

impl Holding {
    /// The death of a block that was never taken back.
    pub const ALIVE: u32 = u32::MAX;

    /// A block of which nothing is known but its lifetime and its place.
    pub const fn new(born: u32, died: u32, address: u64, bytes: u64) -> Self {
        Self {
            born,
            died,
            address,
            bytes,
            requested: bytes,
            stream: 0,
            stack: None,
            module: None,
            name: None,
            shape: None,
            step: 0,
            category: Category::Other,
            known: Known::Inferred,
            phase: Phase::Load,
            uses: None,
            is_collected: false,
        }
    }

    /// Whether it is alive just after this row.
    pub const fn alive_at(&self, row: u32) -> bool {
        self.born <= row && row < self.died
    }
}

/// Memory that the allocator holds from the driver: a segment, or a mapped part of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// The row that obtained it; 0 if it was there before the first row.
    pub born: u32,
    /// The row that gave it back; [`Holding::ALIVE`] if none did.
    pub died: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// Its pool, if the recording shows it.
    pub pool: Option<Pool>,
    /// The stack that obtained it.
    pub stack: Option<StackId>,
}

/// A phase, from one row to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseSpan {
    /// Which.
    pub phase: Phase,
    /// Its first row.
    pub from: u32,
    /// The row after its last.
    pub to: u32,
    /// The step it belongs to, from 0.
    pub step: u32,
}

/// A request that PyTorch's allocator could not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The row.
    pub row: u32,
    /// Requested bytes, rounded by the allocator.
    pub requested: u64,
    /// Bytes the driver had left.
    pub free: u64,
    /// The place of the request.
    pub stack: Option<StackId>,
    /// The stream of the request.
    pub stream: u64,
    /// The phase of the request.
    pub phase: Phase,
    /// The step.
    pub step: u32,
    /// The module.
    pub module: Option<TextId>,
    /// Bytes of blocks that were handed out then.
    pub allocated: u64,
    /// Bytes this process had on the device outside PyTorch's allocator and the context, before the request.
    pub outside: u64,
    /// Bytes that other processes had on the device then, contexts included; `None` where the recording does not have
    /// it.
    pub others: Option<u64>,
    /// Whether nothing was requested after it.
    pub last: bool,
    /// Whether PyTorch refused it without a request to the driver, which had room: the script limits its own memory.
    pub own_limit: bool,
}

/// More than PyTorch rounds a request up before it calls the driver.
const ROUNDING: u64 = 32 << 20;

/// Whether a request that PyTorch refused, with so much free, was one that the driver had room for.
pub(crate) fn is_own_limit(requested: u64, free: u64) -> bool {
    free >= requested.saturating_add(ROUNDING)
}

/// The memory of one process on one device.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// Number of the process.
    pub process: u32,
    /// Number of the device.
    pub device: i32,
    /// Every block that ever lived, by birth.
    pub blocks: Vec<Holding>,
    /// The row after the last of the recording.
    pub end: u32,
    /// Everything that was held from the driver, by birth.
    pub segments: Vec<SegmentSpan>,
    /// The phases, one after the other without gaps.
    pub phases: Vec<PhaseSpan>,
    /// Whether the recording itself has phases; else they are inferred from stacks.
    pub phases_told: bool,
    /// The rows at which optimizer steps ended.
    pub steps: Vec<u32>,
    /// The rows at which forward passes began, with gradients or without.
    pub passes: Vec<u32>,
    /// The rows at which they ended, one for each; [`Holding::ALIVE`] where that is not known.
    pub pass_ends: Vec<u32>,
    /// The rows at which a model in evaluation mode was entered with gradients on.
    pub grad_in_eval: Vec<u32>,
    /// The rows at which a model was entered with gradients on, and nothing that it was given leads to another model;
    /// with a name for the model.
    pub own_graphs: Vec<(u32, TextId)>,
    /// The variables and attributes that these models are, by their names, where Python reported them.
    pub called_models: BTreeMap<String, HeldBy>,
    /// The subset of these models without a parameter in any optimizer, although one has parameters of another model.
    pub untrained: HashSet<TextId>,
    /// Names of parameters that have gradients and that no optimizer has, of models of which one has others.
    pub unstepped: HashSet<TextId>,
    /// The queries of Python for holders, in order.
    pub censuses: Vec<Census>,
    /// The answers, in order.
    pub holders: Vec<HolderRow>,
    /// The last answer about each model.
    pub models: Vec<Model>,
    /// Variables that keep a result that no code uses until they are assigned anew.
    pub last_results: Vec<LastResult>,
    /// The last request that could not be served.
    pub failure: Option<Failure>,
    /// How many could not.
    pub failures: u64,
    /// Bytes of the device, where they are known.
    pub capacity: Option<u64>,
    /// Bytes of the context, where one was recorded.
    pub context: u64,
    /// Largest sum of blocks.
    pub peak_allocated: u64,
    /// The row that reached it first.
    pub peak_row: u32,
    /// Bytes this process had on the device then outside PyTorch's allocator and the context.
    pub outside_at_peak: u64,
    /// Bytes that other processes had on the device then; `None` where the recording does not have it.
    pub others_at_peak: Option<u64>,
    /// Most that was held from the driver by the allocator.
    pub peak_reserved: u64,
    /// The row that reached it first.
    pub peak_reserved_row: u32,
    /// Most that the driver charged, without the context.
    pub peak_charged: u64,
    /// The moment at which most of the device was in use by this process, where PyTorch's blocks and the driver's
    /// charges are both recorded.
    pub fullest: Option<Moment>,
    /// Blocks of the final state whose birth the recording does not show.
    pub unseen_births: u64,
    /// Blocks of which only the request is known: their bytes are at least this figure.
    pub sizes_unknown: u64,
}

/// A recording with all its holdings.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Every process on every device, in order.
    pub tracks: Vec<Holdings>,
    /// Texts and stacks.
    pub stacks: StackTable,
    /// Facts.
    pub meta: Vec<Meta>,
    /// Rows.
    pub rows: u32,
    /// Whether its end is missing.
    pub truncated: bool,
    /// Functions that were called and are not modelled.
    pub unmodelled: UnmodelledCalls,
    /// Nanoseconds since the first row with a time, for every so many rows.
    pub times: Vec<(u32, u64)>,
}

impl Recording {
    /// How many rows there are to one of `times`.
    pub const ROWS_PER_TIME: u32 = 64;

    /// The process and device that failed, or the process with most on the fullest device; none if no block is shown.
    pub fn worst(&self) -> Option<&Holdings> {
        self.failed_or_most(|track| (self.in_use(track), track.peak_used(), track.peak_allocated))
    }

    /// The process and device that failed, or with the largest sum of blocks: budgets are about blocks.
    pub fn most_allocated(&self) -> Option<&Holdings> {
        self.failed_or_most(|track| track.peak_allocated)
    }

    /// The process and device that failed, or with most by some measure. The first of equal ones, so that rank 0 stands
    /// for all.
    fn failed_or_most<K: Ord>(&self, most: impl Fn(&Holdings) -> K) -> Option<&Holdings> {
        let failed = |track: &Holdings| track.failure.is_some_and(|failure| failure.last);
        let first = |track: &Holdings| Reverse(self.rank(track.process).unwrap_or(u32::MAX));
        let shown = self.tracks.iter().rev().filter(|track| track.is_shown());
        shown.max_by_key(|track| (failed(track), most(track), first(track)))
    }

    /// Most that all processes together had in use on the device of a process, where the recording has it.
    fn in_use(&self, track: &Holdings) -> u64 {
        let name = tonnage_recording::facts::peak_in_use(track.device);
        let told = tonnage_recording::meta::find(&self.meta, tonnage_recording::facts::RUN, &name);
        let told = told.and_then(|text| text.parse().ok());
        told.unwrap_or_else(|| track.peak_used())
    }

    /// How many processes used the device of a process, and most that they had in use there together; none if no other
    /// did.
    pub fn shared(&self, track: &Holdings) -> Option<(u64, u64)> {
        let processes = self
            .tracks
            .iter()
            .filter(|one| one.device == track.device)
            .count();
        (processes > 1).then(|| (processes as u64, self.in_use(track)))
    }

    /// The ranks whose memory is shown, in order.
    pub fn ranks(&self) -> Vec<u32> {
        let shown = self.tracks.iter().filter(|track| track.is_shown());
        let mut ranks: Vec<u32> = shown.filter_map(|track| self.rank(track.process)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// How many ranks the job has, if only some of them were run.
    pub fn world_size(&self) -> Option<u32> {
        let fact =
            |name| tonnage_recording::meta::find(&self.meta, tonnage_recording::facts::RUN, name);
        let size = fact(tonnage_recording::facts::WORLD_SIZE)?.parse().ok()?;
        let run = fact(tonnage_recording::facts::RANKS)?.split(',').count();
        (run < size as usize).then_some(size)
    }

    /// How many devices there are whose memory is shown.
    pub fn devices(&self) -> u64 {
        let shown = self.tracks.iter().filter(|track| track.is_shown());
        let devices: BTreeSet<i32> = shown.map(|track| track.device).collect();
        devices.len() as u64
    }

    /// The rank of a process, where it has one.
    pub fn rank(&self, process: u32) -> Option<u32> {
        let rank = tonnage_recording::meta::find(
            &self.meta,
            process,
            tonnage_recording::meta::PROCESS_RANK,
        );
        rank?.parse().ok()
    }

    /// Leaves out all processes but those of one rank.
    pub fn keep_rank(&mut self, rank: u32) {
        let mut tracks = std::mem::take(&mut self.tracks);
        tracks.retain(|track| self.rank(track.process) == Some(rank));
        self.tracks = tracks;
    }

    /// Whether the run came to its own end.
    pub fn is_complete(&self) -> bool {
        let ending = tonnage_recording::meta::find(
            &self.meta,
            tonnage_recording::facts::RUN,
            tonnage_recording::facts::ENDING,
        );
        ending == Some("exit 0")
            && tonnage_recording::facts::why_stopped(&self.meta).is_none()
            && !self.truncated
    }

    /// A fact about a process, or else about the run.
    pub fn fact(&self, process: u32, name: &str) -> Option<&str> {
        let own = tonnage_recording::meta::find(&self.meta, process, name);
        own.or_else(|| {
            tonnage_recording::meta::find(&self.meta, tonnage_recording::facts::RUN, name)
        })
    }
}

/// The births and ends of lifetimes with their bytes, in the order of rows; within a row the ends come first.
pub(crate) fn changes(lifetimes: impl Iterator<Item = (u32, u32, u64)>) -> Vec<(u32, i64)> {
    let mut changes = Vec::with_capacity(lifetimes.size_hint().0 * 2);
    for (born, died, bytes) in lifetimes {
        let bytes = bytes.cast_signed();
        changes.push((born, bytes));
        if died != Holding::ALIVE {
            changes.push((died, -bytes));
        }
    }
    changes.sort_unstable();
    changes
}

/// Bytes of one category at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CategoryBytes {
    /// Which.
    pub category: Category,
    /// Bytes that the program requested: the bytes of its tensors.
    pub bytes: u64,
    /// Bytes its blocks take, rounding included.
    pub block_bytes: u64,
    /// The part of `bytes` in blocks that torch itself named.
    pub exact_bytes: u64,
    /// How many blocks.
    pub blocks: u64,
}

/// The memory that is held from the driver at a moment and not in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Slack {
    /// Bytes by which blocks are larger than the request; part of the blocks.
    pub rounding: u64,
    /// Free bytes in segments that hold live blocks: they cannot go back to the driver.
    pub hard: u64,
    /// Bytes of segments that are wholly free: they go back when memory runs short.
    pub soft: u64,
    /// Free bytes in segments of other streams that hold live blocks: a request here cannot use them.
    pub stream: u64,
    /// How many holes there are among `hard`.
    pub holes: u64,
    /// The largest of them.
    pub largest_hole: u64,
}

impl Slack {
    /// Held from the driver and not handed out.
    pub fn cached(&self) -> u64 {
        self.hard + self.soft + self.stream
    }
}

impl Holdings {
    /// Whether the recording shows anything of it.
    pub(crate) fn is_shown(&self) -> bool {
        self.failure.is_some() || !self.blocks.is_empty()
    }

    /// Most that the device charged to the process; 0 where the recording does not show the driver's calls.
    fn peak_used(&self) -> u64 {
        match self.peak_charged {
            0 => 0,
            charged => charged.saturating_add(self.context),
        }
    }

    /// The moment that matters: the failure that ended it, or the peak.
    pub fn moment(&self) -> u32 {
        match self.failure {
            Some(failure) if failure.last => failure.row,
            _ => self.peak_row,
        }
    }

    /// The blocks alive just after a row.
    pub fn alive_at(&self, row: u32) -> impl Iterator<Item = &Holding> {
        let born = self.blocks.iter();
        born.filter(move |block| block.alive_at(row))
    }

    /// Bytes of blocks alive just after a row.
    pub fn allocated_at(&self, row: u32) -> u64 {
        self.alive_at(row).map(|block| block.bytes).sum()
    }

    /// Bytes held from the driver by the allocator just after a row.
    pub fn reserved_at(&self, row: u32) -> u64 {
        let alive = |span: &&SegmentSpan| span.born <= row && row < span.died;
        let spans = self.segments.iter().filter(alive);
        spans.map(|span| span.bytes).sum()
    }

    /// Bytes of each category alive just after a row; all nine, in order.
    pub fn categories_at(&self, row: u32) -> [CategoryBytes; 9] {
        let mut sums = Category::ALL.map(|category| CategoryBytes {
            category,
            bytes: 0,
            block_bytes: 0,
            exact_bytes: 0,
            blocks: 0,
        });
        for block in self.alive_at(row) {
            let sum = &mut sums[block.category as usize];
            sum.bytes += block.requested;
            sum.block_bytes += block.bytes;
            sum.blocks += 1;
            if block.known == Known::Exact {
                sum.exact_bytes += block.requested;
            }
        }
        sums
    }

    /// The memory that is held and not in use just after a row, as a request on `stream` sees it.
    pub fn slack_at(&self, row: u32, stream: u64) -> Slack {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let mut slack = Slack::default();
        for block in self.alive_at(row) {
            live.insert(block.address, block.bytes);
            slack.rounding += block.bytes.saturating_sub(block.requested);
        }
        for span in &self.segments {
            if span.born > row || row >= span.died {
                continue;
            }
            let end = span.address.saturating_add(span.bytes);
            let mut at = span.address;
            let mut used = 0;
            let mut holes = (0, 0);
            let mut hole = |from: u64, to: u64| {
                if to > from {
                    holes = (holes.0 + 1, holes.1.max(to - from));
                }
            };
            // A block may begin in the segment below, where segments are mapped side by side.
            if let Some((&address, &bytes)) = live.range(..span.address).next_back() {
                let stop = address.saturating_add(bytes).min(end);
                used = stop.saturating_sub(span.address);
                at = at.max(stop);
            }
            for (&address, &bytes) in live.range(span.address..end) {
                hole(at, address);
                let stop = address.saturating_add(bytes).min(end);
                used += stop - address;
                at = at.max(stop);
            }
            hole(at, end);
            let free = span.bytes - used.min(span.bytes);
            if used == 0 {
                slack.soft += free;
            } else if span.stream != stream {
                slack.stream += free;
            } else {
                slack.hard += free;
                slack.holes += holes.0;
                slack.largest_hole = slack.largest_hole.max(holes.1);
            }
        }
        slack
    }

    /// The phase a row is in.
    pub fn phase_at(&self, row: u32) -> Option<&PhaseSpan> {
        let after = self.phases.partition_point(|span| span.to <= row);
        self.phases.get(after)
    }

    /// The largest sum of blocks within each phase span, with its row.
    pub fn phase_peaks(&self) -> Vec<(PhaseSpan, u64, u32)> {
        let lives = self
            .blocks
            .iter()
            .map(|block| (block.born, block.died, block.bytes));
        let mut changes = changes(lives).into_iter().peekable();
        let mut sum = 0_i64;
        let mut peaks = Vec::with_capacity(self.phases.len());
        for span in &self.phases {
            let mut peak = (sum, span.from);
            while let Some((row, change)) = changes.next_if(|&(row, _)| row < span.to) {
                sum += change;
                if sum > peak.0 {
                    peak = (sum, row);
                }
            }
            peaks.push((*span, peak.0.max(0).cast_unsigned(), peak.1));
        }
        peaks
    }
}
