// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the findings are looked for in: one process on one device, at one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tonnage_recording::facts;
use tonnage_recording::{StackId, StackTable, TextId, meta};
use tonnage_text::{count, shortened};

use super::{OnDevice, Request};
use crate::holdings::{
    Category, Failure, HeldBy, Holding, Holdings, Known, ModelState, Phase, Place, Recording,
    Slack, Sort, is_generated, is_users, site,
};
use crate::replay::Job;
use crate::verdict;

/// A cause that holds less than this share of the live bytes is not reported.
pub(super) const SHARE: f64 = 0.10;
/// The share that caches, activations and single operations must hold.
pub(super) const LARGE_SHARE: f64 = 0.25;
/// Bytes of a single number.
const NUMBER: u64 = 8;
/// In how many passes a line or a name must leave blocks behind.
pub(super) const PASSES: usize = 3;

/// The file of torch that calls modules.
const MODULE_FILE: &str = "torch/nn/modules/module.py";

/// A block that is alive at the moment.
#[derive(Clone, Copy)]
pub(super) struct Live<'a> {
    /// Its index among the blocks of the track.
    pub(super) index: u32,
    pub(super) block: &'a Holding,
    /// The holder, where Python was queried.
    pub(super) held: Option<&'a HeldBy>,
}

/// A forward pass.
#[derive(Clone, Copy, Default)]
struct Pass {
    /// Its first row, and that of the next one.
    from: u32,
    to: u32,
    /// The row at which the model returned.
    end: u32,
    /// The row at which the next round begins, with its batch: the loss is computed by then, and assigned.
    over: u32,
    /// The backward pass that follows.
    back: Option<(u32, u32)>,
    /// Whether a backward pass, this one or a later one, takes back what it made.
    used: bool,
    /// Whether the model was in evaluation mode with gradients on.
    grad_in_eval: bool,
    /// Whether a pass before it has a backward pass.
    after_training: bool,
}

/// Which end of what is possible a change is computed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// Everything goes as early as it can.
    Least,
    /// Everything stays as long as it can.
    Most,
}

/// The input of the analysis.
pub(super) struct Case<'a> {
    pub(super) recording: &'a Recording,
    pub(super) track: &'a Holdings,
    /// The moment.
    pub(super) row: u32,
    /// Whether a request failed there and the recording ends with it.
    pub(super) failed: bool,
    /// Whether a request failed on the real device: in this recording, or in the one of which this is the whole job.
    pub(super) ran_out: bool,
    pub(super) on_device: OnDevice,
    pub(super) slack: Slack,
    /// The request that failed, as the block it would have been.
    pub(super) wanted: Option<Holding>,
    /// Most that was seen of what a dry run does not count, all processes on the device together.
    pub(super) uncounted: u64,
    /// The same recording, ready to be replayed.
    pub(super) job: Option<&'a Job>,
    holders: HashMap<u32, HeldBy>,
    /// Stacks of blocks alive at the moment since two passes or more.
    staying: HashSet<StackId>,
    /// Blocks that a finding has explained already.
    claimed: HashSet<u32>,
    /// Live blocks that the device provably never uses again; empty where uses are not recorded.
    unused: HashSet<u32>,
    passes: Vec<Pass>,
    /// Blocks of forward passes that backward passes free: the row, and the index of the block, by row.
    taken_back: Vec<(u32, u32)>,
    /// The models of passes, from 1, that began with gradients on and with inputs of their own.
    own_models: HashMap<usize, TextId>,
    /// Passes, from 1, whose gradients would end in a model that no optimizer trains, with that model.
    untrained: HashMap<usize, TextId>,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        recording: &'a Recording,
        track: &'a Holdings,
        row: u32,
        job: Option<&'a Job>,
        ran_out: bool,
    ) -> Self {
        let failure = track
            .failure
            .filter(|failure| failure.last && failure.row == row);
        let made = track.blocks.iter().find(|block| block.born == row);
        let stream = failure.map_or_else(
            || made.map_or(0, |block| block.stream),
            |failure| failure.stream,
        );
        Self {
            recording,
            track,
            row,
            failed: failure.is_some(),
            ran_out,
            on_device: on_device(recording, track, row, failure),
            slack: track.slack_at(row, stream),
            wanted: failure.map(|failure| wanted(track, failure)),
            uncounted: most_uncounted(recording, processes_on(recording, track.device)),
            job,
            holders: holders(recording, track, row),
            staying: staying(track, row),
            claimed: HashSet::new(),
            unused: HashSet::new(),
            passes: passes(recording, track),
            taken_back: taken_back(track),
            own_models: own_models(track),
            untrained: untrained(track),
        }
    }

    pub(super) fn stacks(&self) -> &'a StackTable {
        &self.recording.stacks
    }

    /// Everything that is alive at the moment.
    pub(super) fn alive(&self) -> impl Iterator<Item = Live<'_>> {
        let blocks = (0..).zip(&self.track.blocks);
        let alive = blocks.filter(|(_, block)| block.alive_at(self.row));
        alive.map(|(index, block)| Live {
            index,
            block,
            held: self.holders.get(&index),
        })
    }

    /// Live bytes that no finding has explained yet.
    pub(super) fn unexplained(&self) -> impl Iterator<Item = Live<'_>> {
        self.alive()
            .filter(|live| !self.claimed.contains(&live.index))
    }

    /// Bytes that graphs keep of some passes and that a finding has explained.
    pub(super) fn kept_graphs(&self, passes: &BTreeSet<usize>) -> Vec<Live<'_>> {
        let of = |live: &Live<'_>| {
            self.claimed.contains(&live.index)
                && live.held.is_some_and(|held| held.sort == Sort::Graph)
                && passes.contains(&self.pass_of(live.block.born))
        };
        self.alive().filter(of).collect()
    }

    pub(super) fn claim(&mut self, blocks: impl IntoIterator<Item = u32>) {
        self.claimed.extend(blocks);
    }

    pub(super) fn set_unused(&mut self, blocks: HashSet<u32>) {
        self.unused = blocks;
    }

    pub(super) fn is_unused(&self, index: u32) -> bool {
        self.unused.contains(&index)
    }

    pub(super) fn holder(&self, index: u32) -> Option<&HeldBy> {
        self.holders.get(&index)
    }

    /// Whether Python was queried for the holders.
    pub(super) fn asked(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Bytes of the live blocks for which `of` returns true.
    pub(super) fn sum_live(&self, of: impl Fn(&Holding) -> bool) -> u64 {
        let blocks = self.alive().filter(|live| of(live.block));
        blocks.map(|live| live.block.bytes).sum()
    }

    pub(super) fn is_large(&self, bytes: u64, share: f64) -> bool {
        bytes > 0 && bytes as f64 >= share * self.on_device.allocated as f64
    }

    pub(super) fn phase(&self) -> Phase {
        if let Some(failure) = self.track.failure.filter(|_| self.failed) {
            return failure.phase;
        }
        self.track
            .phase_at(self.row)
            .map_or(Phase::Load, |span| span.phase)
    }

    pub(super) fn site(&self, block: &Holding) -> Option<Place> {
        site(self.stacks(), block.stack)
    }

    /// Whether it is the scratch memory of cuBLAS: its size is a setting, whatever is multiplied, and PyTorch keeps it.
    pub(super) fn is_of_cublas(&self, block: &Holding) -> bool {
        let name = block.name.map(|name| self.stacks().text(name));
        block.category == Category::Workspaces
            && name.is_some_and(|name| name.starts_with("cuBLAS"))
    }

    /// The block of a forward pass for which a backward pass made a block that has no line, by the memory that it takes
    /// back next: a node of autograd frees what it has saved when it is done.
    pub(super) fn backward_of(&self, block: &Holding) -> Option<&'a Holding> {
        let stays = match block.category {
            // PyTorch keeps the one of cuBLAS. That of a convolution goes with its kernel.
            Category::Workspaces => self.is_of_cublas(block),
            _ => is_kept(block),
        };
        if block.phase != Phase::Backward || stays || self.site(block).is_some() {
            return None;
        }
        let span = self.track.phase_at(block.born)?;
        let after = self
            .taken_back
            .partition_point(|&(row, _)| row <= block.born);
        let (before, after) = self.taken_back.split_at(after);
        let after = after.iter().take_while(|(row, _)| *row < span.to);
        let before = before.iter().rev().take_while(|(row, _)| *row >= span.from);
        // A variable may keep the node's tensors; then the node before it is the nearest.
        let mut nearest = after.chain(before);
        nearest.find_map(|&(_, index)| {
            let block = &self.track.blocks[index as usize];
            self.site(block).is_some().then_some(block)
        })
    }

    /// The line with the most bytes among some blocks.
    pub(super) fn largest_place<'b>(
        &self,
        blocks: impl Iterator<Item = &'b Holding>,
    ) -> Option<Place> {
        let mut by_stack: BTreeMap<Option<StackId>, u64> = BTreeMap::new();
        for block in blocks {
            *by_stack.entry(block.stack).or_default() += block.bytes;
        }
        let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
        for (stack, bytes) in by_stack {
            if let Some(place) = site(self.stacks(), stack) {
                *sums.entry(place).or_default() += bytes;
            }
        }
        let largest = sums.into_iter().max_by_key(|(_, bytes)| *bytes);
        largest.map(|(place, _)| place)
    }

    /// The user's line that called the model in whose forward pass a block was made; else that of the block.
    pub(super) fn call_site(&self, block: &Holding) -> Option<Place> {
        let callers = block.stack.map(|stack| self.callers(stack));
        let caller = callers.and_then(|callers| callers.into_iter().next());
        caller.or_else(|| self.site(block))
    }

    /// The user's lines on the way to the call of the model in whose forward pass a stack is, the innermost first.
    pub(super) fn callers(&self, stack: StackId) -> Vec<Place> {
        let frames: Vec<_> = self.stacks().frames(stack).collect();
        let outermost = frames
            .iter()
            .rposition(|frame| frame.file.ends_with(MODULE_FILE));
        let outside = outermost.map_or(&[][..], |outermost| &frames[outermost..]);
        let users = outside.iter().filter(|frame| is_users(frame.file));
        let place = users.map(|frame| Place {
            file: frame.file.to_owned(),
            line: frame.line,
            function: frame.function.to_owned(),
        });
        place.collect()
    }

    pub(super) fn has_function(&self, stack: Option<StackId>, names: &[&str]) -> bool {
        stack.is_some_and(|stack| {
            let mut frames = self.stacks().frames(stack);
            frames.any(|frame| names.contains(&frame.function))
        })
    }

    /// Whether a block was made inside `torch.utils.checkpoint`.
    pub(super) fn is_recomputed(&self, stack: Option<StackId>) -> bool {
        stack.is_some_and(|stack| {
            let mut frames = self.stacks().frames(stack);
            frames.any(|frame| frame.file.ends_with("torch/utils/checkpoint.py"))
        })
    }

    /// Whether a block was made by code that `torch.compile` wrote.
    pub(super) fn is_compiled(&self, stack: StackId) -> bool {
        let mut frames = self.stacks().frames(stack);
        frames.any(|frame| is_generated(frame.file))
    }

    /// The number of the pass a row is in, from 1; 0 before the first.
    pub(super) fn pass_of(&self, row: u32) -> usize {
        pass_of(self.track, row)
    }

    /// The pass a row is in; none before the first.
    fn pass(&self, row: u32) -> Option<&Pass> {
        self.passes.get(self.pass_of(row).checked_sub(1)?)
    }

    /// The row at which the pass of `row` begins.
    pub(super) fn pass_begin(&self, row: u32) -> u32 {
        self.pass(row).map_or(row, |pass| pass.from)
    }

    /// The row at which the pass after that of `row` begins.
    pub(super) fn next_pass(&self, row: u32) -> u32 {
        let first = || self.passes.first().map(|pass| pass.from);
        let next = self.pass(row).map(|pass| pass.to).or_else(first);
        next.unwrap_or(Holding::ALIVE)
    }

    /// Whether a single number that a pass made, such as its loss, is alive when the next one begins: one made after
    /// the model returned, or the last that the model made. Intermediate ones do not count: attention keeps some.
    pub(super) fn leaves_number(&self, pass: usize) -> bool {
        let pass = pass.checked_sub(1).and_then(|at| self.passes.get(at));
        let Some(&Pass { from, end, to, .. }) = pass else {
            return false;
        };
        let born_before = |row: u32| self.track.blocks.partition_point(|block| block.born < row);
        let (first, returned, last) = (born_before(from), born_before(end), born_before(to));
        let candidates = &self.track.blocks[returned.saturating_sub(1).max(first)..last];
        let is_number = |block: &Holding| block.requested <= NUMBER && block.died > to;
        candidates.iter().any(is_number)
    }

    /// The model that a pass runs on its own inputs: no graph leads from them to another pass.
    pub(super) fn own_model(&self, pass: usize) -> Option<TextId> {
        self.own_models.get(&pass).copied()
    }

    /// Whether a backward pass goes through the result of a line that calls modules or runs inside one. Without its
    /// graph there, the parameters before it would get no gradients.
    pub(super) fn is_trained_through(&self, place: &Place) -> bool {
        let mut lines: HashMap<StackId, bool> = HashMap::new();
        let mut is_there = |stack: StackId| {
            *lines.entry(stack).or_insert_with(|| {
                let frames = || self.stacks().frames(stack);
                frames().any(|frame| frame.line == place.line && frame.file == place.file)
                    && frames().any(|frame| frame.file.ends_with(MODULE_FILE))
            })
        };
        self.track.blocks.iter().any(|block| {
            block.phase == Phase::Forward
                && !is_kept(block)
                && block.stack.is_some_and(&mut is_there)
                && self.goes_back(block.born)
        })
    }

    /// The row at which the model of the pass of `row` returned.
    pub(super) fn pass_end(&self, row: u32) -> u32 {
        self.pass(row).map_or(Holding::ALIVE, |pass| pass.end)
    }

    /// The row at which the round of the pass of `row` is over, or that of the pass after it.
    pub(super) fn round_end(&self, row: u32, next: bool) -> u32 {
        let at = self.pass_of(row) + usize::from(next);
        let pass = at.checked_sub(1).and_then(|at| self.passes.get(at));
        pass.map_or(Holding::ALIVE, |pass| pass.over)
    }

    /// When a block that the backward pass of the same pass needs is taken back, if nothing else keeps it. At the
    /// earliest when that pass begins, at the latest with what was made before it.
    pub(super) fn taken_back(&self, index: u32, block: &Holding, bound: Bound) -> Option<u32> {
        let pass = self.pass(block.born)?;
        let (from, to) = pass.back?;
        if bound == Bound::Least {
            return Some(from + 1);
        }
        // A backward pass with `retain_graph` takes nothing back.
        if !pass.used {
            return None;
        }
        // Blocks made before it are needed after it.
        let before = self.track.blocks[..index as usize].iter().rev();
        let before = before.take_while(|other| other.born >= pass.from);
        let same = |other: &&Holding| !is_kept(other) && other.died > from && other.died <= to;
        let mut before = before.filter(same);
        Some(before.next().map_or(to, |other| other.died))
    }

    /// The row at which the first of the passes ends that wait for the backward pass of `row`.
    pub(super) fn first_waiting(&self, row: u32) -> u32 {
        let Some(mut at) = self.pass_of(row).checked_sub(1) else {
            return row;
        };
        while at > 0 && self.passes[at - 1].back.is_none() {
            at -= 1;
        }
        self.passes[at].to.min(row)
    }

    /// The row at which the block after this one is made.
    pub(super) fn next_birth(&self, index: Option<u32>, block: &Holding) -> u32 {
        let next = index.and_then(|index| self.track.blocks.get(index as usize + 1));
        next.map_or(block.died, |next| next.born)
    }

    /// Whether the model makes something in the pass of a block after the block is gone; of a block that the loss
    /// makes, whether the loss does.
    pub(super) fn goes_on_after(&self, block: &Holding) -> bool {
        let end = self.pass(block.born).map_or(Holding::ALIVE, |pass| {
            let backward = pass.back.map_or(pass.to, |(from, _)| from);
            if block.born < pass.end {
                pass.end
            } else {
                backward
            }
        });
        let blocks = &self.track.blocks;
        let next = blocks.partition_point(|other| other.born <= block.died);
        blocks.get(next).is_some_and(|other| other.born < end)
    }

    /// Whether the pass of a row has its own backward pass, or a later one uses it: where several models are
    /// trained in turn, the passes of others come between.
    pub(super) fn goes_back(&self, row: u32) -> bool {
        self.pass(row)
            .is_some_and(|pass| pass.back.is_some() || pass.used)
    }

    /// The backward pass that follows the pass of a row, if it ran with `retain_graph`: it takes nothing
    /// back.
    pub(super) fn retaining(&self, row: u32) -> Option<(u32, u32)> {
        let pass = self.pass(row).filter(|pass| !pass.used)?;
        pass.back
    }

    /// Whether a job that was seen to its end has no backward pass at all.
    pub(super) fn never_goes_back(&self) -> bool {
        let phases = &self.track.phases;
        self.recording.is_complete()
            && self.track.phases_told
            && !phases.iter().any(|span| span.phase == Phase::Backward)
    }

    /// Whether a block outlives the pass after its own: what the name of the last result keeps does not.
    pub(super) fn outlives_next_pass(&self, block: &Holding) -> bool {
        block.died > self.round_end(block.born, true)
            && self.next_pass(block.born) != Holding::ALIVE
    }

    /// Whether the pass of a row runs a model in evaluation mode with gradients on.
    pub(super) fn grad_in_eval(&self, row: u32) -> bool {
        self.pass(row).is_some_and(|pass| pass.grad_in_eval)
    }

    /// Whether the gradients of the pass of a row would end in a model that no optimizer trains.
    pub(super) fn is_untrained(&self, row: u32) -> bool {
        self.untrained_model(row).is_some()
    }

    /// That model, of the pass of a row.
    pub(super) fn untrained_model(&self, row: u32) -> Option<TextId> {
        self.untrained.get(&self.pass_of(row)).copied()
    }

    /// Whether a pass before that of a row has its own backward pass.
    pub(super) fn after_training(&self, row: u32) -> bool {
        self.pass(row).is_some_and(|pass| pass.after_training)
    }

    /// Whether a backward pass begins and ends between two rows.
    pub(super) fn went_back_between(&self, from: u32, to: u32) -> bool {
        let after = self.track.phases.partition_point(|span| span.from < from);
        let spans = self.track.phases[after..].iter();
        spans
            .take_while(|span| span.to <= to)
            .any(|span| span.phase == Phase::Backward)
    }

    /// Blocks of earlier passes that are alive at the moment.
    ///
    /// A block made after the pass before began may be the batch of this one: it is left behind only
    /// if older ones of the same stack are.
    pub(super) fn is_left_behind(&self, block: &Holding) -> bool {
        if is_kept(block) {
            return false;
        }
        let born = self.pass_of(block.born);
        let here = self.pass_of(self.row);
        let stays = || {
            block
                .stack
                .is_some_and(|stack| self.staying.contains(&stack))
        };
        born > 0 && here > born && block.alive_at(self.row) && (here > born + 1 || stays())
    }

    /// The trainer of a model that holds a block, where one is certain.
    pub(super) fn model_of(&self, held: &HeldBy) -> Option<ModelState> {
        let same = |model: &&crate::holdings::Model| {
            model.name == held.name && model.function == held.function
        };
        self.track.models.iter().find(same).map(|model| model.state)
    }

    /// Bytes of the device that are not PyTorch's blocks and stay whatever the program does.
    pub(super) fn taken(&self) -> u64 {
        let device = &self.on_device;
        device.context.unwrap_or(0) + device.outside.unwrap_or(0) + device.others
    }

    pub(super) fn request(&self) -> Option<Request> {
        let failure = self.track.failure.filter(|_| self.failed)?;
        Some(Request {
            bytes: failure.requested,
            free: failure.free,
            short: self.short(failure.requested),
        })
    }

    /// Bytes by which the device is too small for what is alive and `request`; 0 if it is not.
    pub(super) fn short(&self, request: u64) -> u64 {
        let device = &self.on_device;
        let Some(failure) = self.track.failure else {
            return 0;
        };
        let room = match device.capacity {
            Some(capacity) => capacity.saturating_sub(self.taken()),
            // The memory that the driver had left, and all that could have been given back.
            None => failure.free + device.allocated + device.cached,
        };
        (device.allocated + request).saturating_sub(room)
    }
}

/// The holder of each block at a row: as Python reported, or, of blocks made after the last query, the holder of most
/// blocks that the same stack made before in the same module.
fn holders(recording: &Recording, track: &Holdings, row: u32) -> HashMap<u32, HeldBy> {
    let mut holders = track.holders_near(row, &recording.stacks);
    let mut by_line: HashMap<_, BTreeMap<HeldBy, u64>> = HashMap::new();
    for (index, block) in (0..).zip(&track.blocks) {
        if let (Some(held), Some(stack)) = (holders.get(&index), block.stack)
            && held.sort != Sort::Nothing
            && !held.name.is_empty()
        {
            let known = by_line.entry((stack, block.module)).or_default();
            *known.entry(held.clone()).or_default() += 1;
        }
    }
    let most = |known: &BTreeMap<HeldBy, u64>| {
        // Arguments of a call that was running do not describe blocks of other calls.
        let lasting = known.iter().filter(|(held, _)| held.sort != Sort::Variable);
        let most = lasting.max_by_key(|(_, count)| **count);
        most.map(|(held, _)| held.clone())
    };
    for (index, block) in (0..).zip(&track.blocks) {
        // Weights without a holder do not belong to the model that the same line made last.
        let asked = holders
            .get(&index)
            .is_some_and(|held| held.sort != Sort::Nothing || is_kept(block));
        if !asked
            && block.alive_at(row)
            && let Some(stack) = block.stack
            && let Some(known) = by_line.get(&(stack, block.module))
            && let Some(held) = most(known)
        {
            holders.insert(index, held);
        }
    }
    // A cycle that Python collects between two queries: the collection itself shows it.
    for (index, block) in (0..).zip(&track.blocks) {
        let is_garbage = block.is_collected
            && block.alive_at(row)
            && !is_kept(block)
            && pass_of(track, block.born) < pass_of(track, row)
            && block.uses.is_none_or(|uses| uses.last < Some(row));
        if is_garbage
            && holders
                .get(&index)
                .is_none_or(|held| held.sort == Sort::Nothing)
        {
            holders.insert(index, HeldBy::unknown_cycle());
        }
    }
    // A block that the running backward pass frees belongs to the graph: the variable that Python recorded in the
    // forward pass was one of a function that has returned.
    let backward = track
        .phase_at(row)
        .filter(|span| span.phase == Phase::Backward);
    if let Some(backward) = backward {
        for (index, block) in (0..).zip(&track.blocks) {
            let is_freed =
                block.born < backward.from && block.alive_at(row) && block.died < backward.to;
            if is_freed
                && let Some(held) = holders.get_mut(&index)
                && held.sort == Sort::Variable
            {
                held.sort = Sort::Graph;
            }
        }
    }
    holders
}

/// The number of the pass a row is in, from 1; 0 before the first.
pub(super) fn pass_of(track: &Holdings, row: u32) -> usize {
    track.passes.partition_point(|&from| from <= row)
}

/// The pass that a mark is about: it stands beside the beginning, on either side.
fn marked(track: &Holdings, row: u32) -> usize {
    pass_of(track, row.saturating_add(2))
}

fn taken_back(track: &Holdings) -> Vec<(u32, u32)> {
    // Without a module, the hook records no forward pass.
    let of_forward = |(_, block): &(u32, &Holding)| {
        matches!(block.phase, Phase::Forward | Phase::Load | Phase::Other)
            && !is_kept(block)
            && track
                .phase_at(block.died)
                .is_some_and(|span| span.phase == Phase::Backward)
    };
    let blocks = (0..).zip(&track.blocks).filter(of_forward);
    let mut rows: Vec<(u32, u32)> = blocks.map(|(index, block)| (block.died, index)).collect();
    rows.sort_unstable();
    rows
}

fn own_models(track: &Holdings) -> HashMap<usize, TextId> {
    let passes = track.own_graphs.iter();
    passes
        .map(|&(row, model)| (marked(track, row), model))
        .collect()
}

fn untrained(track: &Holdings) -> HashMap<usize, TextId> {
    let mut passes = own_models(track);
    passes.retain(|_, model| track.untrained.contains(model));
    passes
}

fn passes(recording: &Recording, track: &Holdings) -> Vec<Pass> {
    let ends = track.passes.iter().skip(1).copied();
    let ends = ends.chain(std::iter::once(Holding::ALIVE));
    let mut passes: Vec<Pass> = track
        .passes
        .iter()
        .zip(ends)
        .map(|(&from, to)| Pass {
            from,
            to,
            end: to,
            over: to,
            ..Pass::default()
        })
        .collect();
    for (pass, &end) in passes.iter_mut().zip(&track.pass_ends) {
        pass.end = end.min(pass.to);
    }
    for span in &track.phases {
        if span.phase == Phase::Backward
            && let Some(at) = pass_of(track, span.from).checked_sub(1)
        {
            let back = passes[at].back.get_or_insert((span.from, span.to));
            back.1 = span.to;
        }
    }
    for &row in &track.grad_in_eval {
        if let Some(at) = marked(track, row).checked_sub(1) {
            passes[at].grad_in_eval = true;
        }
    }
    for block in &track.blocks {
        if block.phase == Phase::Forward
            && !is_kept(block)
            && let Some(at) = pass_of(track, block.born).checked_sub(1)
            && !passes[at].used
        {
            let span = track.phase_at(block.died);
            passes[at].used = span.is_some_and(|span| span.phase == Phase::Backward);
        }
    }
    let mut trained = false;
    for pass in &mut passes {
        pass.after_training = trained;
        trained |= pass.back.is_some();
    }
    find_rounds(recording, track, &mut passes);
    passes
}

/// A round ends where something is made above the line that calls the model: the next batch.
fn find_rounds(recording: &Recording, track: &Holdings, passes: &mut [Pass]) {
    let mut lines: HashMap<StackId, Option<Place>> = HashMap::new();
    let mut outermost = |stack: Option<StackId>| {
        let place = lines.entry(stack?).or_insert_with(|| {
            let frames: Vec<_> = recording.stacks.frames(stack?).collect();
            let call = frames
                .iter()
                .rposition(|frame| frame.file.ends_with(MODULE_FILE));
            let mut outside = frames[call.unwrap_or(0)..].iter();
            let frame = outside.find(|frame| is_users(frame.file))?;
            Some(Place {
                file: frame.file.to_owned(),
                line: frame.line,
                function: frame.function.to_owned(),
            })
        });
        place.clone()
    };
    for pass in passes {
        let first = track.blocks.partition_point(|block| block.born < pass.from);
        let mut blocks = track.blocks[first..]
            .iter()
            .take_while(|block| block.born < pass.to);
        let Some(call) = blocks.find_map(|block| outermost(block.stack)) else {
            continue;
        };
        let after = blocks.filter(|block| block.born >= pass.end);
        for block in after {
            let above = outermost(block.stack).is_some_and(|place| {
                place.file == call.file && place.function == call.function && place.line < call.line
            });
            if above {
                pass.over = block.born;
                break;
            }
        }
    }
}

/// Whether a block is one that programs keep on purpose.
pub(super) fn is_kept(block: &Holding) -> bool {
    block.known == Known::Exact
        || matches!(
            block.category,
            Category::Weights | Category::OptimizerState | Category::Gradients | Category::KvCache
        )
}

/// Whether a holder is one that programs keep on purpose.
pub(super) fn is_kept_by(held: Option<&HeldBy>) -> bool {
    held.is_some_and(|held| matches!(held.sort, Sort::Module | Sort::Optimizer | Sort::Grad))
}

/// `train.py:31`.
pub(super) fn at(place: Option<&Place>) -> String {
    place.map_or_else(
        || "no Python line".to_owned(),
        |place| format!("{}:{}", shortened(&place.file), place.line),
    )
}

/// `a, b and c`.
pub(super) fn listed(parts: impl IntoIterator<Item = String>) -> String {
    let mut parts: Vec<String> = parts.into_iter().collect();
    match parts.pop() {
        Some(last) if !parts.is_empty() => format!("{} and {last}", parts.join(", ")),
        Some(only) => only,
        None => String::new(),
    }
}

/// `1 block`, `2 blocks`.
pub(super) fn counted(number: usize, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        count(number as u64),
        if number == 1 { one } else { many }
    )
}

/// Stacks of blocks alive at a row that were made at least two passes before.
fn staying(track: &Holdings, row: u32) -> HashSet<StackId> {
    let here = pass_of(track, row);
    let old = |block: &&Holding| {
        let born = pass_of(track, block.born);
        born > 0 && born + 1 < here
    };
    let old = track.alive_at(row).filter(old);
    old.filter_map(|block| block.stack).collect()
}

/// The block that a failed request would have become: of the sort of those that the same stack made.
fn wanted(track: &Holdings, failure: Failure) -> Holding {
    let mut before = track.blocks.iter().rev();
    let same = before.find(|block| block.stack == failure.stack && block.stack.is_some());
    Holding {
        stream: failure.stream,
        stack: failure.stack,
        module: failure.module,
        step: failure.step,
        category: same.map_or(Category::Other, |block| block.category),
        phase: failure.phase,
        ..Holding::new(failure.row, Holding::ALIVE, 0, failure.requested)
    }
}

fn on_device(
    recording: &Recording,
    track: &Holdings,
    row: u32,
    failure: Option<Failure>,
) -> OnDevice {
    let allocated = track.allocated_at(row);
    let reserved = track.reserved_at(row).max(allocated);
    let outside = failure.map_or(track.outside_at_peak, |failure| failure.outside);
    let others = failure.map_or(track.others_at_peak, |failure| failure.others);
    let driver_seen = track.peak_charged > 0;
    OnDevice {
        capacity: track.capacity,
        allocated,
        cached: reserved - allocated,
        own_allocator: meta::find(&recording.meta, track.process, facts::ALLOCATOR)
            == Some(facts::TONNAGE),
        context: (track.context > 0).then_some(track.context),
        outside: driver_seen.then_some(outside),
        others: others.unwrap_or_else(|| most_of_others(recording, track)),
    }
}

/// The processes that use a device.
fn processes_on(recording: &Recording, device: i32) -> verdict::OnDevice {
    let shown = recording.tracks.iter().filter(|track| track.is_shown());
    let uses = shown.map(|track| (track.process, track.device, track.peak_allocated));
    verdict::OnDevice::count(uses, device, &recording.meta)
}

/// Most that was seen of what is not counted in these processes; nothing on a real GPU, where the driver itself
/// reported what was left.
pub(super) fn most_uncounted(recording: &Recording, processes: verdict::OnDevice) -> u64 {
    let dry_run = meta::find(&recording.meta, facts::RUN, facts::GPU_ID).is_some();
    if dry_run {
        verdict::most_uncounted(&recording.meta, processes)
    } else {
        0
    }
}

/// Most that other processes of the recording held, where it does not record when they held how much.
fn most_of_others(recording: &Recording, track: &Holdings) -> u64 {
    let tracks = recording.tracks.iter();
    let others = tracks.filter(|o| o.device == track.device && o.process != track.process);
    others.fold(0_u64, |sum, other| {
        // Bounded, as every sum of holdings is: a hostile recording may have many processes.
        sum.saturating_add(other.peak_charged + other.context)
            .min(1 << 60)
    })
}

/// `, float32[8192, 4096]`: type and shape of the largest block of which they are known; of float64 with its price.
pub(super) fn describe_shape(blocks: &[Live<'_>], before: &str) -> String {
    let known = |live: &&Live<'_>| live.held.is_some_and(|held| held.shape.is_some());
    let largest = blocks
        .iter()
        .filter(known)
        .max_by_key(|live| live.block.bytes);
    let Some(shape) = largest.and_then(|live| live.held?.shape.as_ref()) else {
        return String::new();
    };
    let price = if shape.starts_with("float64[") {
        ", twice the size of float32"
    } else {
        ""
    };
    format!(", {before}{shape}{price}")
}

/// The named holder with the most bytes.
pub(super) fn most_named<'a>(blocks: &[Live<'a>]) -> Option<&'a HeldBy> {
    let mut sums: BTreeMap<&HeldBy, u64> = BTreeMap::new();
    for live in blocks {
        if let Some(held) = live
            .held
            .filter(|held| !held.name.is_empty() && !held.in_library)
        {
            *sums.entry(held).or_default() += live.block.bytes;
        }
    }
    let most = sums.into_iter().max_by_key(|(_, sum)| *sum);
    most.map(|(held, _)| held)
}
