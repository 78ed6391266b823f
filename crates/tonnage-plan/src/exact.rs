// SPDX-License-Identifier: MIT OR Apache-2.0
//! Complete search for rigid items: does everything fit below a capacity?
//!
//! For small hard instances, where the best greedy order leaves ten per cent and more.
//!
//! **State.** Each section has a floor, below which everything is decided, and a load, which is still to come. Each
//! item that is left has a support: the highest floor it covers, so the lowest offset it can still have.
//!
//! **Propagation.** The floor of a section rises to the least support of what is left there; supports rise with
//! floors; a floor plus a load above the capacity fails. What rises over nothing is wasted and never comes back, so a
//! tight section soon decides everything around it.
//!
//! **Branching.** In a section at the bottom of a valley: which of the items that fit the valley covers it at its
//! floor, or none, and then the floor goes up to the next level that anything could have there. Each plan is met by
//! exactly one branch; there are no permutations to break. The section with the fewest options comes first, and
//! among equals the one where the search failed most.
//!
//! **Frugality.** A floor that goes up because something stands on a neighbour is mostly a waste, and there is such a
//! choice at almost every node. Some runs leave it out: the floor goes up only to what crosses a wall. They reach
//! plans that complete runs drown before, but when they fail nothing is proved, so what they remember is kept apart
//! and complete runs go on beside them.
//!
//! **Parts.** When no item crosses between two sections, both sides are solved on their own, so a failure in one is
//! not repeated for every plan of the other. An item that lives through a whole part can lie at its top without
//! loss.
//!
//! **Memory.** Two ways to the same items left with the same room are the same problem. What failed is kept by the
//! set of items, and whatever has no more room anywhere than something that failed fails too. This holds for every
//! capacity, since only the room counts, so restarts and other capacities profit. Sets are told apart by a sum of
//! 64-bit numbers drawn for each kind of item, and by their sections. Two sets with one sum in the same sections would
//! be taken for each other: no plan is wrong by that, but one may be missed, and then what is called proved (a lower
//! bound, an optimum, that nothing fits) may be wrong. With 2^20 sets kept at a time the chance of one such pair is
//! about 2^-25, and it is accepted.
//!
//! **Restarts.** Running times have heavy tails: most runs end within some hundred nodes or not at all. Runs are
//! short, vary by rule and chance, and grow in Luby's sequence.
//!
//! **Siege.** A bound that resists for long may be out of reach. Then most runs try capacities between it and what is
//! known, stay short, and forget now and then where the search failed, since what they learnt in one corner keeps
//! them there.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Add, AddAssign, Sub, SubAssign};

use crate::family::gcd;
use crate::options::{Clock, Options};
use crate::random::Random;
use crate::rigid;

/// A number for heights: the narrower it is, the more of them are compared at once.
pub(crate) trait Height:
    Copy + Ord + Default + Add<Output = Self> + Sub<Output = Self> + AddAssign + SubAssign + Send + Sync
{
    /// Above everything; also the support of what is placed.
    const MAX: Self;
    fn real(self) -> f32;
    fn from_units(units: u64) -> Self;
    fn units(self) -> u64;
}

macro_rules! height {
    ($type:ty) => {
        impl Height for $type {
            const MAX: Self = Self::MAX;
            fn real(self) -> f32 {
                self as f32
            }
            fn from_units(units: u64) -> Self {
                units as Self
            }
            fn units(self) -> u64 {
                self as u64
            }
        }
    };
}
height!(i32);
height!(i64);

#[derive(Clone, Copy, Debug)]
struct Item<H> {
    start: u32,
    end: u32,
    size: H,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Feasible,
    Infeasible,
    /// Out of nodes or time.
    Stopped,
}

/// Keys are random already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// Which item is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefer {
    Size,
    Life,
    Area,
    /// Area, with more weight on the size.
    Bulk,
}

/// How a run searches.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each turns one idea on")]
struct Config {
    prefer: Prefer,
    noise: f32,
    memory: bool,
    release: bool,
    weights: bool,
    /// Whether the lowest valley comes first, whatever the options elsewhere.
    lowest: bool,
    /// Whether floors go up only to what crosses a wall; then a failure proves nothing.
    frugal: bool,
    /// The share of runs that forget where the search failed.
    forgets: f32,
}

/// Rounds after which the bound is besieged.
const PATIENCE: u64 = 100;

/// How long the runs of a siege are, in the shortest ones; and the share of them that forget where the search failed.
const SIEGE_LENGTH: u64 = 2;
const SIEGE_FORGETS: f32 = 0.1;

/// Heights that the failed states of all lanes may take together.
const MAX_ROOMS: usize = 1 << 24;

/// Sets the keys of what failed in frugal runs apart.
const FRUGAL: u64 = 0x6672_7567_616c_2121;

/// A part of what is left: its sections, its capacity, and the sum of the keys of its items.
#[derive(Clone, Copy, Debug)]
struct Part<H> {
    from: usize,
    to: usize,
    cap: H,
    key: u64,
}

struct Search<'a, H> {
    clock: Clock<'a>,
    random: Random,
    config: Config,
    nodes: u64,
    limit: u64,

    /// Sorted by start, end and size, so that equal ones are neighbours.
    items: Vec<Item<H>>,
    /// A random number for each kind of item.
    keys: Vec<u64>,
    /// Where the items that start in a section begin.
    starts: Vec<u32>,
    /// The items that cover a section, and where those of a section begin.
    cover: Vec<u32>,
    covers: Vec<u32>,

    floor: Vec<H>,
    load: Vec<H>,
    /// How many items that are left cover both a section and the one before it.
    cross: Vec<u32>,
    support: Vec<H>,
    offset: Vec<H>,
    /// Supports before they changed.
    trail: Vec<(u32, H)>,
    /// Sections whose floor may have to rise.
    dirty: Vec<u64>,
    /// An item of each section that may be what keeps its floor down.
    witness: Vec<u32>,
    /// How often the search failed in a section.
    weight: Vec<f32>,

    saved: Vec<H>,
    saved_cross: Vec<u32>,
    options: Vec<(f32, u32)>,
    count: Vec<u32>,
    before: Vec<H>,
    after: Vec<H>,
    finish: Vec<H>,
    sorted: Vec<(H, u32)>,

    /// Failed states by key: where their rooms are, and how many.
    memory: HashMap<u64, Vec<(u32, u32)>, BuildHasherDefault<AsIs>>,
    rooms: Vec<H>,
    most_rooms: usize,
}

impl<'a, H: Height> Search<'a, H> {
    /// The items must be sorted by start, end and size.
    fn new(items: Vec<Item<H>>, sections: usize, seed: u64, clock: Clock<'a>) -> Self {
        let count = items.len();
        // The same for every seed, so that the memory of one run serves the next.
        let mut draw = Random::new(0x746f_6e6e);
        let mut keys = Vec::with_capacity(count);
        for (index, item) in items.iter().enumerate() {
            let twin = index.checked_sub(1).map(|twin| &items[twin]);
            let same = twin.is_some_and(|twin| {
                (twin.start, twin.end, twin.size) == (item.start, item.end, item.size)
            });
            keys.push(if same { keys[index - 1] } else { draw.next() });
        }
        let mut starts = vec![0_u32; sections + 1];
        let mut covers = vec![0_u32; sections + 1];
        for item in &items {
            starts[item.start as usize + 1] += 1;
            for section in item.start..item.end {
                covers[section as usize + 1] += 1;
            }
        }
        for section in 0..sections {
            starts[section + 1] += starts[section];
            covers[section + 1] += covers[section];
        }
        let mut cover = vec![0; covers[sections] as usize];
        let mut next = covers.clone();
        for (item, index) in items.iter().zip(0..) {
            for section in item.start..item.end {
                cover[next[section as usize] as usize] = index;
                next[section as usize] += 1;
            }
        }
        let zero = H::default();
        Self {
            clock,
            random: Random::new(seed),
            config: Config {
                prefer: Prefer::Size,
                noise: 0.0,
                memory: true,
                release: true,
                weights: true,
                lowest: false,
                frugal: false,
                forgets: 0.0,
            },
            nodes: 0,
            limit: 0,
            keys,
            starts,
            cover,
            covers,
            floor: vec![zero; sections],
            load: vec![zero; sections],
            cross: vec![0; sections + 1],
            support: vec![zero; count],
            offset: vec![zero; count],
            trail: Vec::new(),
            dirty: vec![0; sections.div_ceil(64)],
            witness: vec![0; sections],
            weight: vec![1.0; sections],
            saved: Vec::new(),
            saved_cross: Vec::new(),
            options: Vec::new(),
            count: vec![0; sections],
            before: vec![zero; sections + 1],
            after: vec![zero; sections + 1],
            finish: vec![zero; sections],
            sorted: Vec::new(),
            memory: HashMap::default(),
            rooms: Vec::new(),
            most_rooms: MAX_ROOMS,
            items,
        }
    }

    /// One run, from the start, of at most `limit` nodes.
    fn run(&mut self, cap: H, limit: u64, config: Config) -> Verdict {
        let zero = H::default();
        self.config = config;
        if config.forgets > 0.0 && self.random.unit() < config.forgets {
            self.weight.fill(1.0);
        }
        self.limit = self.nodes + limit;
        self.floor.fill(zero);
        self.load.fill(zero);
        self.support.fill(zero);
        self.cross.fill(0);
        for item in &self.items {
            let (start, end) = (item.start as usize, item.end as usize);
            for load in &mut self.load[start..end] {
                *load += item.size;
            }
            for cross in &mut self.cross[start + 1..end] {
                *cross += 1;
            }
        }
        if self.load.iter().any(|load| *load > cap) {
            return Verdict::Infeasible;
        }
        // What is full learns nothing; what was learnt last is learnt again soonest.
        if self.rooms.len() >= self.most_rooms {
            self.memory.clear();
            self.rooms.clear();
        }
        self.saved.clear();
        self.saved_cross.clear();
        self.trail.clear();
        self.options.clear();
        self.dirty.fill(0);
        for (witness, &from) in self.witness.iter_mut().zip(&self.covers) {
            *witness = self.cover.get(from as usize).copied().unwrap_or(0);
        }
        self.split(0, self.floor.len(), cap)
    }

    /// Solves the sections `from..to`, part by part.
    fn split(&mut self, from: usize, to: usize, cap: H) -> Verdict {
        let mut at = from;
        while at < to {
            if self.load[at] == H::default() {
                at += 1;
                continue;
            }
            let mut end = at + 1;
            while end < to && self.cross[end] > 0 {
                end += 1;
            }
            let verdict = self.part(at, end, cap);
            if verdict != Verdict::Feasible {
                return verdict;
            }
            at = end;
        }
        Verdict::Feasible
    }

    /// Solves a part that has just come into being: what spans it goes to its top.
    fn part(&mut self, from: usize, to: usize, mut cap: H) -> Verdict {
        let mut part = Part {
            from,
            to,
            cap,
            key: (from as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        let (mut left, mut spanning) = (0, 0);
        for index in self.starts[from] as usize..self.starts[to] as usize {
            if self.support[index] == H::MAX {
                continue;
            }
            let item = self.items[index];
            left += 1;
            part.key = part.key.wrapping_add(self.keys[index]);
            spanning += u32::from(item.start as usize == from && item.end as usize == to);
        }
        if spanning == 0 {
            return self.node(part);
        }
        // One alone lies on its floor, which is no higher than its load allows.
        let alone = left == 1;
        for index in self.starts[from] as usize..self.starts[from + 1] as usize {
            let item = self.items[index];
            if self.support[index] == H::MAX || item.end as usize != to {
                continue;
            }
            cap -= item.size;
            self.offset[index] = if alone { self.support[index] } else { cap };
            self.trail.push((index as u32, self.support[index]));
            self.support[index] = H::MAX;
            for load in &mut self.load[from..to] {
                *load -= item.size;
            }
        }
        for cross in &mut self.cross[from + 1..to] {
            *cross -= spanning;
        }
        if self.floor[from..to].iter().any(|floor| *floor > cap) {
            return Verdict::Infeasible;
        }
        self.split(from, to, cap)
    }

    /// Raises the support of an item.
    fn lift(&mut self, index: u32, level: H) {
        let old = self.support[index as usize];
        if old < level {
            self.trail.push((index, old));
            self.support[index as usize] = level;
            let item = self.items[index as usize];
            // Only where it was the one that kept the floor down.
            for section in item.start as usize..item.end as usize {
                let witness = self.witness[section];
                if self.floor[section] == old
                    && (witness == index || self.support[witness as usize] > old)
                {
                    self.dirty[section / 64] |= 1 << (section % 64);
                }
            }
        }
    }

    /// Raises floors until each is the least support of what is left there.
    fn propagate(&mut self, cap: H) -> bool {
        loop {
            let mut changed = false;
            for word in 0..self.dirty.len() {
                while self.dirty[word] != 0 {
                    changed = true;
                    let section = word * 64 + self.dirty[word].trailing_zeros() as usize;
                    self.dirty[word] &= self.dirty[word] - 1;
                    if self.load[section] == H::default() {
                        continue;
                    }
                    let (from, to) = (
                        self.covers[section] as usize,
                        self.covers[section + 1] as usize,
                    );
                    let floor = self.floor[section];
                    let mut low = H::MAX;
                    for &index in &self.cover[from..to] {
                        let support = self.support[index as usize];
                        if support < low {
                            low = support;
                            self.witness[section] = index;
                            if low <= floor {
                                break;
                            }
                        }
                    }
                    if low <= floor {
                        continue;
                    }
                    if low + self.load[section] > cap {
                        self.weight[section] += 1.0;
                        self.dirty.fill(0);
                        return false;
                    }
                    // No support there is below it, so none has to rise.
                    self.floor[section] = low;
                }
            }
            if !changed {
                return true;
            }
        }
    }

    /// Whether in each section what is left can come to lie in the order of its supports.
    ///
    /// The lowest of those with at least some support lies no lower, and below it is only what has less; so the
    /// sections are machines, supports are release times, and the capacity is the deadline.
    fn releases(&mut self, part: &Part<H>) -> bool {
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        let all = self.starts[part.from]..self.starts[part.to];
        sorted.extend(
            all.map(|index| (self.support[index as usize], index))
                .filter(|entry| entry.0 != H::MAX),
        );
        sorted.sort_unstable();
        let sections = part.from..part.to;
        self.finish[sections.clone()].copy_from_slice(&self.floor[sections.clone()]);
        for &(support, index) in &sorted {
            let item = &self.items[index as usize];
            for finish in &mut self.finish[item.start as usize..item.end as usize] {
                *finish = (*finish).max(support) + item.size;
            }
        }
        self.sorted = sorted;
        for section in sections {
            if self.finish[section] > part.cap {
                self.weight[section] += 1.0;
                return false;
            }
        }
        true
    }

    fn failed_before(&self, part: &Part<H>) -> bool {
        let failed = |key| self.failed_with(key, part);
        failed(part.key) || (self.config.frugal && failed(part.key ^ FRUGAL))
    }

    fn failed_with(&self, key: u64, part: &Part<H>) -> bool {
        let floors = &self.floor[part.from..part.to];
        let known = self.memory.get(&key).into_iter().flatten();
        known
            .filter(|(_, len)| *len as usize == floors.len())
            .any(|&(at, len)| {
                let rooms = &self.rooms[at as usize..at as usize + len as usize];
                rooms
                    .iter()
                    .zip(floors)
                    .all(|(room, floor)| part.cap - *floor <= *room)
            })
    }

    fn remember_failure(&mut self, part: &Part<H>) {
        if self.rooms.len() < self.most_rooms {
            let entry = (self.rooms.len() as u32, (part.to - part.from) as u32);
            self.rooms.extend(
                self.floor[part.from..part.to]
                    .iter()
                    .map(|floor| part.cap - *floor),
            );
            let key = part.key ^ if self.config.frugal { FRUGAL } else { 0 };
            self.memory.entry(key).or_default().push(entry);
        }
    }

    /// Decides what covers one section at its floor, and goes on.
    fn node(&mut self, part: Part<H>) -> Verdict {
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(64) && self.clock.is_over()) {
            return Verdict::Stopped;
        }
        if self.config.memory && self.failed_before(&part) {
            return Verdict::Infeasible;
        }
        if self.config.release && !self.releases(&part) {
            return Verdict::Infeasible;
        }
        let nodes = self.nodes;
        let first = self.options.len();
        let Some((section, next)) = self.choose(&part) else {
            // Cannot be: every part has a lowest level, and something lies on it.
            return Verdict::Stopped;
        };
        let last = self.options.len();
        let floor = self.floor[section];
        let (range, width) = (part.from..part.to, part.to - part.from);
        let (saved, saved_cross, trail) =
            (self.saved.len(), self.saved_cross.len(), self.trail.len());
        self.saved.extend_from_slice(&self.floor[range.clone()]);
        self.saved.extend_from_slice(&self.load[range.clone()]);
        self.saved_cross
            .extend_from_slice(&self.cross[range.clone()]);
        let mut verdict = Verdict::Infeasible;
        for option in first..=last {
            if option < last {
                verdict = self.place(self.options[option].1, floor, &part);
            } else if let Some(next) = next {
                verdict = self.waste(section, next, &part);
            } else {
                break;
            }
            if verdict != Verdict::Infeasible {
                break;
            }
            self.floor[range.clone()].copy_from_slice(&self.saved[saved..saved + width]);
            self.load[range.clone()].copy_from_slice(&self.saved[saved + width..saved + 2 * width]);
            self.cross[range.clone()]
                .copy_from_slice(&self.saved_cross[saved_cross..saved_cross + width]);
            for (index, support) in self.trail.drain(trail..).rev() {
                self.support[index as usize] = support;
            }
        }
        self.saved.truncate(saved);
        self.saved_cross.truncate(saved_cross);
        self.options.truncate(first);
        // What failed at once fails at once again.
        if verdict == Verdict::Infeasible && self.config.memory && self.nodes - nodes >= 2 {
            self.remember_failure(&part);
        }
        verdict
    }

    /// The section to decide, and the level of its floor if nothing covers it there; pushes the items that could.
    fn choose(&mut self, part: &Part<H>) -> Option<(usize, Option<H>)> {
        let mut best: Option<(usize, Option<H>)> = None;
        let mut best_score = f32::MAX;
        let mut level = H::MAX;
        let mut from = part.from;
        while from < part.to {
            let floor = self.floor[from];
            let mut to = from + 1;
            while to < part.to && self.floor[to] == floor {
                to += 1;
            }
            let is_valley = (from == part.from || self.floor[from - 1] > floor)
                && (to == part.to || self.floor[to] > floor);
            if is_valley && (!self.config.lowest || floor <= level) {
                if self.config.lowest && floor < level {
                    level = floor;
                    best_score = f32::MAX;
                }
                self.survey(from, to, floor);
                for section in from..to {
                    let mut scale = 1.0;
                    if self.config.weights {
                        scale /= self.weight[section];
                    }
                    if self.config.noise > 0.0 {
                        scale *= 1.0 + self.config.noise * 0.1 * self.random.unit();
                    }
                    if self.count[section] as f32 * scale >= best_score {
                        continue;
                    }
                    let next = self.next_level(section, floor, part.cap);
                    let options = self.count[section] + u32::from(next.is_some());
                    let room = part.cap - floor - self.load[section];
                    let score = options as f32 * scale + room.real() * 1e-6;
                    if score < best_score {
                        best_score = score;
                        best = Some((section, next));
                    }
                }
            }
            from = to;
        }
        let (section, _) = best?;
        self.list(section);
        best
    }

    /// Counts for each section of a valley the items on its floor that cover it, and finds the least tops beside it.
    fn survey(&mut self, from: usize, to: usize, floor: H) {
        self.count[from..to].fill(0);
        self.before[from..=to].fill(H::MAX);
        self.after[from..=to].fill(H::MAX);
        // What crosses a wall can be stood upon too.
        for at in self.covers[from] as usize..self.covers[from + 1] as usize {
            let index = self.cover[at] as usize;
            let item = self.items[index];
            let end = item.end as usize;
            if (item.start as usize) < from && end < to && self.support[index] != H::MAX {
                self.before[end] = self.before[end].min(self.support[index] + item.size);
            }
        }
        let mut twin = u64::MAX;
        for index in self.starts[from] as usize..self.starts[to] as usize {
            let support = self.support[index];
            if support == H::MAX || self.keys[index] == twin {
                continue;
            }
            twin = self.keys[index];
            let item = self.items[index];
            let (start, end) = (item.start as usize, item.end as usize);
            if support == floor {
                for count in &mut self.count[start..end] {
                    *count += 1;
                }
            }
            let top = support + item.size;
            self.before[end.min(to)] = self.before[end.min(to)].min(top);
            self.after[start] = self.after[start].min(top);
        }
        for section in from + 1..to {
            self.before[section] = self.before[section].min(self.before[section - 1]);
        }
        for section in (from..to).rev() {
            self.after[section] = self.after[section].min(self.after[section + 1]);
        }
    }

    /// Where the floor of a section goes if nothing lies on it: something crosses a wall, or stands on a neighbour.
    fn next_level(&self, section: usize, floor: H, cap: H) -> Option<H> {
        let (from, to) = (
            self.covers[section] as usize,
            self.covers[section + 1] as usize,
        );
        let mut next = H::MAX;
        for &index in &self.cover[from..to] {
            let support = self.support[index as usize];
            if support > floor {
                next = next.min(support);
            }
        }
        if !self.config.frugal {
            next = next.min(self.before[section].min(self.after[section + 1]));
        }
        (next < H::MAX && next + self.load[section] <= cap).then_some(next)
    }

    /// Pushes the items that can cover the section at its floor, the preferred first.
    fn list(&mut self, section: usize) {
        let first = self.options.len();
        let floor = self.floor[section];
        let mut twin = u64::MAX;
        for at in self.covers[section] as usize..self.covers[section + 1] as usize {
            let index = self.cover[at];
            if self.support[index as usize] != floor || self.keys[index as usize] == twin {
                continue;
            }
            twin = self.keys[index as usize];
            let item = &self.items[index as usize];
            let (size, life) = (item.size.real(), (item.end - item.start) as f32);
            let mut score = match self.config.prefer {
                Prefer::Size => size,
                Prefer::Life => life,
                Prefer::Area => size * life,
                Prefer::Bulk => size * size * life,
            };
            if self.config.noise > 0.0 {
                score *= 1.0 + self.config.noise * self.random.unit();
            }
            self.options.push((score, index));
        }
        self.options[first..]
            .sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    }

    /// Nothing covers the section at its floor: it goes up.
    fn waste(&mut self, section: usize, level: H, part: &Part<H>) -> Verdict {
        self.floor[section] = level;
        for at in self.covers[section] as usize..self.covers[section + 1] as usize {
            self.lift(self.cover[at], level);
        }
        if !self.propagate(part.cap) {
            return Verdict::Infeasible;
        }
        self.node(*part)
    }

    /// The item lies on the floor.
    fn place(&mut self, index: u32, floor: H, part: &Part<H>) -> Verdict {
        let item = self.items[index as usize];
        let (from, to) = (item.start as usize, item.end as usize);
        let top = floor + item.size;
        self.offset[index as usize] = floor;
        self.trail.push((index, self.support[index as usize]));
        self.support[index as usize] = H::MAX;
        for section in from..to {
            self.floor[section] = top;
            self.load[section] -= item.size;
            self.dirty[section / 64] |= 1 << (section % 64);
        }
        let mut falls_apart = self.load[from] == H::default() || self.load[to - 1] == H::default();
        for cross in &mut self.cross[from + 1..to] {
            *cross -= 1;
            falls_apart |= *cross == 0;
        }
        for at in self.covers[from] as usize..self.covers[from + 1] as usize {
            self.lift(self.cover[at], top);
        }
        for other in self.starts[from + 1]..self.starts[to] {
            self.lift(other, top);
        }
        if !self.propagate(part.cap) {
            return Verdict::Infeasible;
        }
        if falls_apart {
            self.split(part.from, part.to, part.cap)
        } else {
            let key = part.key.wrapping_sub(self.keys[index as usize]);
            self.node(Part { key, ..*part })
        }
    }
}

/// What is wanted: a peak of at most `target`, knowing that `peak` is possible and `lower` a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) target: u64,
    pub(crate) peak: u64,
    pub(crate) lower: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Found {
    /// Better than what was there before, if anything is.
    pub(crate) offsets: Option<Vec<u64>>,
    pub(crate) peak: u64,
    pub(crate) lower: u64,
}

/// Who is told the peak, the bound and the number of attempts.
pub(crate) type Tell<'a> = &'a (dyn Fn(u64, u64, u64) + Sync);

/// The stack of a searching thread: a level of the search for each item and each level of waste.
const STACK: usize = 1 << 28;

/// Searches with restarts until the target is met or excluded, or the attempts are used up.
pub(crate) fn search(
    items: &[rigid::Item],
    sections: usize,
    goal: Goal,
    options: &Options<'_>,
    clock: &Clock<'_>,
    tell: Tell<'_>,
) -> Found {
    // Offsets that matter are sums of sizes, so everything can be counted in what divides them all.
    let unit = items
        .iter()
        .fold(0, |unit, item| gcd(unit, item.size))
        .max(1);
    let search = || {
        // Below a quarter of the range, so that no sum of two heights overflows.
        if goal.peak / unit < 1 << 29 {
            Race::<i32>::new(items, sections, unit, goal, options, clock).run(tell)
        } else {
            Race::<i64>::new(items, sections, unit, goal, options, clock).run(tell)
        }
    };
    let nothing = Found {
        offsets: None,
        peak: goal.peak,
        lower: goal.lower,
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, search);
        thread
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or(nothing)
    })
}

/// Several searches side by side, in rounds: what one finds the others know in the next, so that the result does not
/// depend on which thread is faster.
struct Race<'a, H> {
    lanes: Vec<Search<'a, H>>,
    /// The item of the caller for each item here.
    order: Vec<u32>,
    unit: u64,
    /// In units: what is proved, what is found, what is wanted.
    low: u64,
    best: u64,
    target: u64,
    /// Whether anything below the target is as good as the target.
    is_capacity: bool,
    options: &'a Options<'a>,
    clock: &'a Clock<'a>,
    configs: Vec<Config>,
    /// Up to which capacity frugal runs have nothing left to try.
    spent: u64,
    found: Found,
}

impl<'a, H: Height> Race<'a, H> {
    fn new(
        items: &[rigid::Item],
        sections: usize,
        unit: u64,
        goal: Goal,
        options: &'a Options<'a>,
        clock: &'a Clock<'a>,
    ) -> Self {
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_unstable_by_key(|index| {
            let item = &items[*index as usize];
            (item.start, item.end, item.size, *index)
        });
        let scaled = order
            .iter()
            .map(|index| &items[*index as usize])
            .map(|item| Item {
                start: item.start,
                end: item.end,
                size: H::from_units(item.size / unit),
            });
        let scaled: Vec<Item<H>> = scaled.collect();
        let seed = |lane: usize| options.seed.wrapping_add((lane as u64) << 32);
        let lanes = options.lanes();
        let lane = |lane| Search {
            most_rooms: MAX_ROOMS / lanes,
            ..Search::new(scaled.clone(), sections, seed(lane), *clock)
        };
        let low = goal.lower.div_ceil(unit);
        let load = rigid::Rigid::load(items, 0, sections as u32);
        let full = load.iter().filter(|load| **load >= goal.lower / 100 * 99);
        let is_loose = goal.target / unit <= low && full.count() * 10 < sections;
        let target = (goal.target / unit).max(low);
        Self {
            lanes: (0..lanes).map(lane).collect(),
            order,
            unit,
            low,
            best: goal.peak / unit,
            target,
            is_capacity: target > low,
            options,
            clock,
            configs: configs(options, is_loose),
            spent: 0,
            found: Found {
                offsets: None,
                peak: goal.peak,
                lower: goal.lower,
            },
        }
    }

    fn run(mut self, tell: Tell<'_>) -> Found {
        let mut attempt = 0;
        // Without a capacity the target rises with what is proved.
        while self.best > self.target.max(self.low)
            && (self.low <= self.target || !self.is_capacity)
            && attempt < self.options.attempts
            && !self.clock.is_over()
        {
            let runs: Vec<(u64, u64, Config)> = (attempt..)
                .take(self.lanes.len())
                .map(|attempt| self.attempt(attempt))
                .collect();
            attempt += runs.len() as u64;
            for (lane, (verdict, (cap, _, config))) in
                self.verdicts(&runs).into_iter().zip(runs).enumerate()
            {
                match verdict {
                    Verdict::Infeasible if config.frugal => {
                        self.spent = self.spent.max(cap);
                        continue;
                    }
                    Verdict::Feasible if cap < self.best => self.keep(lane),
                    Verdict::Infeasible if cap >= self.low => {
                        self.low = cap + 1;
                        self.found.lower = self.low * self.unit;
                    }
                    _ => continue,
                }
                tell(self.found.peak, self.found.lower, attempt);
            }
        }
        self.found
    }

    /// The capacity, the nodes and the rules of an attempt.
    fn attempt(&self, attempt: u64) -> (u64, u64, Config) {
        let count = self.configs.len() as u64;
        let round = attempt / count;
        let mut config = self.configs[(attempt.wrapping_add(self.options.seed) % count) as usize];
        if round > 0 && self.options.switches.noise {
            config.noise = 0.5;
        }
        let gap = self.best - self.low;
        let is_siege = !self.is_capacity && gap > 1 && round >= PATIENCE;
        // The bound itself first and often, since where nothing may be wasted failures are found soonest.
        let mut cap = match round % 4 {
            _ if self.is_capacity => self.target,
            1 if gap > 1 => self.best - gap.div_ceil(4),
            3 if gap > 1 => self.low + gap / 2,
            _ => self.low,
        };
        let mut length = luby(round + 1);
        if is_siege && !attempt.is_multiple_of(4) {
            cap = self.best - gap.div_ceil([4, 8, 3, 5][(round % 4) as usize]);
            length = SIEGE_LENGTH;
            config.prefer = Prefer::Life;
            (config.lowest, config.release) = (false, false);
            config.weights = self.options.switches.weights;
            config.frugal = self.options.switches.frugal && attempt % 4 != 1;
            config.forgets = SIEGE_FORGETS;
        }
        config.frugal &= cap > self.spent;
        (cap, (100 + self.order.len() as u64) * length, config)
    }

    /// Runs one attempt in each lane.
    fn verdicts(&mut self, runs: &[(u64, u64, Config)]) -> Vec<Verdict> {
        fn run<H: Height>(
            lane: &mut Search<'_, H>,
            &(cap, nodes, config): &(u64, u64, Config),
        ) -> Verdict {
            lane.run(H::from_units(cap), nodes, config)
        }
        let mut pairs = self.lanes.iter_mut().zip(runs);
        let Some((lane, first)) = pairs.next() else {
            return Vec::new();
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = pairs
                .map(|(lane, attempt)| {
                    let thread = std::thread::Builder::new().stack_size(STACK);
                    thread.spawn_scoped(scope, move || run(lane, attempt))
                })
                .collect();
            let mut verdicts = vec![run(lane, first)];
            // A thread that could not be started has found nothing.
            let joined = others
                .into_iter()
                .map(|thread| thread.ok().and_then(|thread| thread.join().ok()));
            verdicts.extend(joined.map(|verdict| verdict.unwrap_or(Verdict::Stopped)));
            verdicts
        })
    }

    /// Takes over what a lane has found.
    fn keep(&mut self, lane: usize) {
        let lane = &self.lanes[lane];
        let tops = lane
            .offset
            .iter()
            .zip(&lane.items)
            .map(|(offset, item)| (*offset + item.size).units());
        self.best = tops.max().unwrap_or(0);
        self.found.peak = self.best * self.unit;
        let mut offsets = vec![0; self.order.len()];
        for (index, offset) in self.order.iter().zip(&lane.offset) {
            offsets[*index as usize] = offset.units() * self.unit;
        }
        self.found.offsets = Some(offsets);
    }
}

/// The rules that attempts go through: preference, whether failures weigh, lowest valley first, releases, frugality.
///
/// Chosen on the published instances A to K: each of the first four alone solves nearly all of them; the others are
/// there for what these are blind to.
const CONFIGS: [(Prefer, bool, bool, bool, bool); 8] = [
    (Prefer::Size, true, false, false, true),
    (Prefer::Life, true, false, false, false),
    (Prefer::Size, false, false, false, true),
    (Prefer::Life, true, false, false, true),
    (Prefer::Area, false, true, true, true),
    (Prefer::Life, true, false, false, false),
    (Prefer::Bulk, false, false, false, true),
    (Prefer::Size, true, false, false, true),
];

/// The rule among them that fills evenly.
const EVEN: usize = 4;

fn configs(options: &Options<'_>, is_loose: bool) -> Vec<Config> {
    let switches = options.switches;
    let config = |&(prefer, weights, lowest, release, frugal)| Config {
        prefer,
        noise: 0.0,
        memory: switches.memory,
        release: release && switches.release,
        weights: weights && switches.weights,
        lowest,
        frugal: frugal && switches.frugal,
        forgets: 0.0,
    };
    let mut configs: Vec<Config> = CONFIGS.iter().map(config).collect();
    if is_loose {
        // Among few full moments and many that are not it pays to fill evenly.
        configs[2] = configs[EVEN];
        configs[7] = configs[EVEN];
    }
    configs
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, …: restarts that lose at most a constant factor, whatever the tails are.
const fn luby(mut index: u64) -> u64 {
    loop {
        let bits = 64 - index.leading_zeros() as u64;
        if index == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        index -= (1 << (bits - 1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_a_wall_can_be_stood_upon() {
        // Over floors of 8, 5, 0 and 0 only one plan fits: the second item on the 5, the others beside and on it at 8.
        let item = |start, end, size| Item { start, end, size };
        let items = vec![item(0, 2, 7), item(1, 3, 3), item(2, 4, 7)];
        let mut search = Search::<i32>::new(items, 4, 1, Clock::never());
        search.floor = vec![8, 5, 0, 0];
        search.load = vec![7, 10, 10, 7];
        search.cross = vec![0, 1, 1, 1, 0];
        search.support = vec![8, 5, 0];
        search.limit = 1000;
        assert_eq!(search.split(0, 4, 15), Verdict::Feasible);
        assert_eq!(search.offset, [8, 5, 8]);
    }
}
