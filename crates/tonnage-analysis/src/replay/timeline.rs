// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of a recording as the blocks of a program that repeats.
//!
//! A recording begins with events that happen once, up to the end of its first step,
//! and goes on with steps. Steps that request the same blocks in the same order
//! are of one kind, and one of them stands for all. The time line that is planned
//! is the beginning and then one step of each kind; after the last kind comes the
//! first again.
//!
//! Most programs have blocks that outlive their step, such as gradients. One that
//! ends before the next step requests its like keeps one place in all steps, which
//! is free in between. One that ends later, such as an output that is overwritten,
//! needs two places in turn, so a single kind of step is then planned twice.
//!
//! One place in all steps holds whatever the order of the kinds is, but is harder
//! to pack. Where that costs memory, kinds can be planned in the order in which
//! they were recorded instead ([`Order::Recorded`]).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{StreamId, round_up};

use super::requests::{Lane, OpKind, Requests};
use crate::plan::repeated;

/// The alignment of the start of every block.
const GRANULE: u64 = 512;
/// Kinds of steps that are planned; of more the last ones.
const KINDS: usize = 64;
/// Streams and pools that are distinguished.
const LANES: usize = 64;

/// Which orders of the kinds of steps a plan holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Any.
    Any,
    /// The recorded one. In others some places are taken.
    Recorded,
}

/// A block that the recording requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) size: u64,
    /// Number of stream and pool, by the order of their first requests.
    pub(super) lane: u16,
    /// The operation that requests it; before the first for blocks that were there from the start.
    start: i64,
    /// The operation that ends it, if one does.
    end: Option<i64>,
}

/// A block of the time line.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) size: u64,
    pub(super) pool: PoolId,
    /// When it is in use.
    pub(super) times: Vec<Range<i64>>,
}

/// A request of the time line: its number among those of the recording, and its block; none if it gets no place.
pub(super) type Placed = (usize, Option<usize>);

/// A part of the time line: the beginning, or one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// When it happens in the recording, in operations.
    recorded: Range<i64>,
    /// When it begins in the plan.
    from: i64,
    pub(super) requests: Vec<Placed>,
}

impl Part {
    fn until(&self) -> i64 {
        self.from + (self.recorded.end - self.recorded.start)
    }

    /// When something happens in the plan that the recording has at an operation of this part.
    fn at(&self, operation: i64) -> i64 {
        self.from + (operation - self.recorded.start)
    }

    /// The first moments of the part, as many as these.
    fn first(&self, moments: i64) -> Range<i64> {
        self.from..(self.from + moments).min(self.until())
    }
}

/// The beginning of a program, and its kinds of steps.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) asked: Vec<Asked>,
    pub(super) once: Part,
    pub(super) steps: Vec<Part>,
    pub(super) blocks: Vec<Block>,
    /// How many steps the recording has, and whether the program itself marks where they begin.
    pub(super) recorded_steps: usize,
    pub(super) marked: bool,
    /// Whether there is one kind of step, planned twice.
    is_doubled: bool,
    /// The pool of each lane.
    pools: Vec<PoolId>,
    /// Where steps begin in the recording, and where the last one ends.
    bounds: Vec<i64>,
    /// One past the last operation.
    end: i64,
}

/// The key of a block that outlives its step: size, lane, and its order among equals.
type Name = (u64, u16, usize);

/// A block that outlives its part: its number, when it is requested, and how long it stays in the next one.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    request: usize,
    start: i64,
    stays: i64,
}

impl Timeline {
    pub(super) fn from_requests(requests: &Requests, order: Order) -> Self {
        let mut timeline = Self::default();
        timeline.read(requests);
        timeline.end = requests.ops.len() as i64;
        timeline.bounds = timeline.find_steps(requests);
        timeline.cut(requests.initial.len() as i64);
        timeline.fill(order);
        timeline
    }

    /// Reads the blocks and their ends.
    fn read(&mut self, requests: &Requests) {
        self.pools.push(PoolId::DEFAULT);
        let default = Lane {
            stream: StreamId::default(),
            pool: PoolId::DEFAULT,
        };
        let mut lanes = HashMap::from([(default, 0_u16)]);
        let mut live: HashMap<u32, usize> = HashMap::new();
        let initial = requests.initial.iter();
        let initial = initial.map(|block| (block.requested, block.lane, block.slot));
        for ((bytes, lane, slot), start) in initial.zip(-(requests.initial.len() as i64)..) {
            live.insert(slot, self.asked.len());
            self.ask(bytes, requests.lanes[lane as usize], start, &mut lanes);
        }
        for (op, moment) in requests.ops.iter().zip(0..) {
            match op.kind {
                OpKind::Alloc => {
                    live.insert(op.slot, self.asked.len());
                    self.ask(
                        op.bytes,
                        requests.lanes[op.lane as usize],
                        moment,
                        &mut lanes,
                    );
                }
                OpKind::Free | OpKind::FreeNow => {
                    if let Some(number) = live.remove(&op.slot) {
                        self.asked[number].end = Some(moment);
                    }
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, bytes: u64, lane: Lane, start: i64, lanes: &mut HashMap<Lane, u16>) {
        let new = self.pools.len() as u16;
        let number = *lanes.entry(lane).or_insert(new);
        if number == new {
            self.pools.push(lane.pool);
        }
        self.asked.push(Asked {
            // Requests that no device has are not in the list.
            size: round_up(bytes, GRANULE).unwrap_or(GRANULE),
            lane: number,
            start,
            end: None,
        });
    }

    /// Where steps begin, and where the last one ends.
    fn find_steps(&mut self, requests: &Requests) -> Vec<i64> {
        let after = |&mark: &u32| requests.rows.partition_point(|&row| row <= mark) as i64;
        let mut bounds: Vec<i64> = requests.marks.iter().map(after).collect();
        bounds.dedup();
        if bounds.len() >= 2 {
            self.marked = true;
            return bounds;
        }
        let made: Vec<&Asked> = self.asked.iter().filter(|asked| asked.start >= 0).collect();
        let sites: Vec<u64> = made.iter().map(|asked| asked.site()).collect();
        let Some((rounds, period)) = repeated(&sites) else {
            return Vec::new();
        };
        let moment = |index: usize| made.get(index).map_or(self.end, |asked| asked.start);
        rounds.step_by(period).map(moment).collect()
    }

    /// Chooses a step of each kind, and puts them one behind the other.
    fn cut(&mut self, initial: i64) {
        let pairs = self.bounds.windows(2);
        let steps: Vec<Range<i64>> = pairs.map(|pair| pair[0]..pair[1]).collect();
        self.recorded_steps = steps.len();
        self.once.recorded = -initial..self.bounds.first().copied().unwrap_or(self.end);
        self.once.from = -initial;
        // The last one of a kind stands for it, but not the last of all: what outlives it is not known to end.
        let mut kinds: HashMap<Vec<(u64, u16)>, usize> = HashMap::new();
        for (number, step) in steps.iter().enumerate() {
            let asked = self.within(step).map(|(_, asked)| (asked.size, asked.lane));
            let known = kinds.entry(asked.collect()).or_insert(number);
            if number + 1 < steps.len() {
                *known = number;
            }
        }
        let mut chosen: Vec<usize> = kinds.into_values().collect();
        chosen.sort_unstable();
        let dropped = chosen.len().saturating_sub(KINDS);
        for number in chosen.drain(..).skip(dropped) {
            self.steps.push(Part {
                recorded: steps[number].clone(),
                ..Part::default()
            });
        }
        if let [step] = self.steps.as_slice() {
            let apart = self.crossings(step);
            if apart.iter().any(|(_, crossing)| crossing.overtakes(step)) {
                self.is_doubled = true;
                self.steps.push(step.clone());
            }
        }
        let mut from = self.once.until();
        for step in &mut self.steps {
            step.from = from;
            from = step.until();
        }
    }

    /// The requests of a stretch of the recording.
    fn within(&self, stretch: &Range<i64>) -> impl Iterator<Item = (usize, &Asked)> + use<'_> {
        let first = self
            .asked
            .partition_point(|asked| asked.start < stretch.start);
        let last = self
            .asked
            .partition_point(|asked| asked.start < stretch.end);
        (first..last).zip(&self.asked[first..last])
    }

    /// The blocks that outlive a part and end in the next one.
    fn crossings(&self, part: &Part) -> Vec<(Name, Crossing)> {
        let next = self
            .bounds
            .partition_point(|&bound| bound <= part.recorded.end);
        let next = self.bounds.get(next).copied();
        let mut counts: HashMap<(u64, u16), usize> = HashMap::new();
        let mut all = Vec::new();
        for (request, asked) in self.within(&part.recorded) {
            let stays = match asked.end {
                Some(end) if end < part.recorded.end => continue,
                Some(end) if end < next.unwrap_or(self.end) => end - part.recorded.end,
                // The recording ends with the step, so nothing is known of it.
                None if next.is_none() && part.from > self.once.from => 0,
                _ => continue,
            };
            let count = counts.entry((asked.size, asked.lane)).or_default();
            let crossing = Crossing {
                request,
                start: asked.start,
                stays,
            };
            all.push(((asked.size, asked.lane, *count), crossing));
            *count += 1;
        }
        all
    }

    /// Gives every request its block.
    fn fill(&mut self, order: Order) {
        let end = self.steps.last().map_or(self.once.until(), Part::until);
        let mut blocks = Blocks {
            of: HashMap::new(),
            list: Vec::new(),
        };
        let parts = || std::iter::once(&self.once).chain(&self.steps);
        // Blocks that outlive their part, by name: the part, and how they do.
        let mut crossing: BTreeMap<Name, Vec<(usize, Crossing)>> = BTreeMap::new();
        for (number, part) in parts().enumerate() {
            for (name, one) in self.crossings(part) {
                // Without steps nothing comes after the beginning.
                if !self.steps.is_empty() {
                    crossing.entry(name).or_default().push((number, one));
                }
            }
        }
        for (name, ones) in &crossing {
            // One kind of step follows itself.
            let alone = order == Order::Any || self.steps.len() == 1 || self.is_doubled;
            self.place_crossing(*name, ones, alone, &mut blocks);
        }
        for (number, part) in parts().enumerate() {
            for (request, asked) in self.within(&part.recorded) {
                if blocks.of.contains_key(&(number, request)) {
                    continue;
                }
                let start = part.at(asked.start);
                let times = match asked.end.filter(|&end| end < part.recorded.end) {
                    Some(end) => start..part.at(end),
                    // It lives to the end of the recording.
                    None if number == 0 => start..end,
                    None if asked.end.is_none() => self.once.until()..end,
                    // It ends several steps later.
                    None => continue,
                };
                blocks.add(self.block(asked, vec![times]), [(number, request)]);
            }
        }
        let Blocks { of, list } = blocks;
        let requests = |number: usize, part: &Part| {
            let all = self.within(&part.recorded);
            let all = all.map(|(request, _)| (request, of.get(&(number, request)).copied()));
            all.collect::<Vec<Placed>>()
        };
        let all: Vec<Vec<Placed>> = parts()
            .enumerate()
            .map(|(number, part)| requests(number, part))
            .collect();
        let mut all = all.into_iter();
        self.once.requests = all.next().unwrap_or_default();
        for (step, requests) in self.steps.iter_mut().zip(all) {
            step.requests = requests;
        }
        self.blocks = list;
    }

    /// The blocks of one name that outlive their parts; at one place, if that is wanted and possible.
    fn place_crossing(
        &self,
        name: Name,
        ones: &[(usize, Crossing)],
        at_one_place: bool,
        blocks: &mut Blocks,
    ) {
        let part = |number: usize| match number {
            0 => &self.once,
            number => &self.steps[number - 1],
        };
        let stays = ones.iter().map(|(_, one)| one.stays).max().unwrap_or(0);
        let overtaken = |&(number, one): &(usize, Crossing)| {
            number > 0 && part(number).at(one.start) < part(number).from + stays
        };
        let asked = &self.asked[ones[0].1.request];
        debug_assert_eq!((asked.size, asked.lane), (name.0, name.1));
        if at_one_place && !ones.iter().any(overtaken) {
            // The same place in every part: the last one is gone before the next one is requested.
            let mut times: Vec<Range<i64>> = Vec::new();
            for &(number, one) in ones {
                times.push(part(number).at(one.start)..part(number).until());
            }
            times.extend(self.steps.iter().map(|step| step.first(stays)));
            let requests = ones.iter().map(|(number, one)| (*number, one.request));
            blocks.add(self.block(asked, times), requests);
            return;
        }
        // A place for each part, taken into the one after it. After the last kind of several any may come, and is not
        // planned for; of a kind that is planned twice, what happens once takes the place of the second.
        let last = self.steps.len();
        for &(number, one) in ones.iter().filter(|(number, _)| *number > 0) {
            let next = part(if number == last { 1 } else { number + 1 });
            let own = part(number).at(one.start)..part(number).until();
            let stays = if number < last || self.is_doubled {
                one.stays
            } else {
                0
            };
            let mut times = vec![own, next.first(stays)];
            let mut requests = vec![(number, one.request)];
            if let Some((_, before)) = ones
                .first()
                .filter(|(first, _)| (*first, number) == (0, last))
            {
                times.push(self.once.at(before.start)..self.once.until());
                times.push(next.first(before.stays));
                requests.push((0, before.request));
            }
            blocks.add(self.block(asked, times), requests);
        }
        if let Some((0, before)) = ones.first()
            && !blocks.of.contains_key(&(0, before.request))
        {
            let times = vec![
                self.once.at(before.start)..self.once.until(),
                part(1).first(before.stays),
            ];
            blocks.add(self.block(asked, times), [(0, before.request)]);
        }
    }

    fn block(&self, asked: &Asked, times: Vec<Range<i64>>) -> Block {
        let pools = &self.pools;
        Block {
            size: asked.size,
            pool: pools.get(asked.lane as usize).copied().unwrap_or_default(),
            times: joined(times),
        }
    }
}

impl Asked {
    /// Whether its lane is one of those that the allocator distinguishes.
    pub(super) fn is_told_apart(&self) -> bool {
        (self.lane as usize) < LANES
    }

    /// The key that is compared to find repeats.
    fn site(&self) -> u64 {
        self.size * LANES as u64 + u64::from(self.lane)
    }
}

impl Crossing {
    /// Whether it is still there when the next step requests its like.
    fn overtakes(&self, step: &Part) -> bool {
        self.start - step.recorded.start < self.stays
    }
}

/// Blocks, and which request of which part has which.
struct Blocks {
    of: HashMap<(usize, usize), usize>,
    list: Vec<Block>,
}

impl Blocks {
    fn add(&mut self, block: Block, requests: impl IntoIterator<Item = (usize, usize)>) {
        for request in requests {
            self.of.insert(request, self.list.len());
        }
        self.list.push(block);
    }
}

/// The same times without overlaps, by their beginnings; none of them empty.
fn joined(mut times: Vec<Range<i64>>) -> Vec<Range<i64>> {
    times.retain(|time| time.start < time.end);
    times.sort_unstable_by_key(|time| time.start);
    let mut all: Vec<Range<i64>> = Vec::with_capacity(times.len());
    for time in times {
        match all.last_mut().filter(|last| time.start <= last.end) {
            Some(last) => last.end = last.end.max(time.end),
            None => all.push(time),
        }
    }
    all
}
