// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of the complete search: its state, its parts, its nodes.

use super::failures::FailureCache;
use super::height::Height;
use crate::options::Clock;
use crate::random::Random;

/// A placed item: sections and height.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<H> {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) size: H,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Feasible,
    Infeasible,
    /// Out of nodes or time.
    Stopped,
}

/// Which item is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefer {
    Size,
    Lifetime,
    Area,
    /// Area, with more weight on the size.
    Bulk,
}

/// How a run searches.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each turns one idea on")]
pub(super) struct Config {
    pub(super) prefer: Prefer,
    pub(super) noise: f32,
    /// Whether failures are remembered.
    pub(super) failure_cache: bool,
    /// Whether each section is bounded by the order of what is left there.
    pub(super) order_bound: bool,
    /// Whether sections where the search failed come first.
    pub(super) failure_weights: bool,
    /// Whether the lowest valley comes first, whatever the options elsewhere.
    pub(super) lowest: bool,
    /// Whether floors go up only to what crosses a wall; then a failure proves nothing.
    pub(super) limited_branching: bool,
    /// The share of runs that start without the weights of earlier failures.
    pub(super) reset_share: f32,
}

/// Added to the keys of what failed with limited branching.
const LIMITED: u64 = 0x6672_7567_616c_2121;

/// A part of what is left: its sections, its capacity, and the sum of the keys of its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<H> {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) cap: H,
    pub(super) key: u64,
}

/// A search that can be run again and again, and what it has learnt.
pub(super) struct Search<'a, H> {
    clock: Clock<'a>,
    pub(super) random: Random,
    pub(super) config: Config,
    nodes: u64,
    limit: u64,

    /// Sorted by start, end and size, so that equal ones are neighbours.
    pub(super) items: Vec<Item<H>>,
    /// A random number for each kind of item.
    pub(super) keys: Vec<u64>,
    /// Where the items that start in a section begin.
    pub(super) starts: Vec<u32>,
    /// The items that cover a section, and where those of a section begin.
    pub(super) cover: Vec<u32>,
    pub(super) covers: Vec<u32>,

    pub(super) floor: Vec<H>,
    pub(super) load: Vec<H>,
    /// How many items that are left cover both a section and the one before it.
    cross: Vec<u32>,
    pub(super) support: Vec<H>,
    pub(super) offset: Vec<H>,
    /// Supports before they changed.
    pub(super) trail: Vec<(u32, H)>,
    /// Sections whose floor may have to rise.
    pub(super) dirty: Vec<u64>,
    /// An item of each section that may be what keeps its floor down.
    pub(super) witness: Vec<u32>,
    /// How often the search failed in a section.
    pub(super) weight: Vec<f32>,

    saved: Vec<H>,
    saved_cross: Vec<u32>,
    pub(super) options: Vec<(f32, u32)>,
    pub(super) count: Vec<u32>,
    pub(super) before: Vec<H>,
    pub(super) after: Vec<H>,
    pub(super) finish: Vec<H>,
    pub(super) sorted: Vec<(H, u32)>,

    failures: FailureCache<H>,
}

impl<'a, H: Height> Search<'a, H> {
    /// The items must be sorted by start, end and size.
    pub(super) fn new(
        items: Vec<Item<H>>,
        sections: usize,
        seed: u64,
        clock: Clock<'a>,
        failures: FailureCache<H>,
    ) -> Self {
        let count = items.len();
        // The same for every seed, so that the failures of one run serve the next.
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
                failure_cache: true,
                order_bound: true,
                failure_weights: true,
                lowest: false,
                limited_branching: false,
                reset_share: 0.0,
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
            failures,
            items,
        }
    }

    /// One run, from the start, of at most `limit` nodes.
    pub(super) fn run(&mut self, cap: H, limit: u64, config: Config) -> Verdict {
        let zero = H::default();
        self.config = config;
        if config.reset_share > 0.0 && self.random.unit() < config.reset_share {
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
        self.failures.clear_if_full();
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
        // One alone lies on its floor, which is at most as high as its load allows.
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

    /// Sets the failures of runs with limited branching apart, since they prove nothing.
    const fn failure_key(&self) -> u64 {
        if self.config.limited_branching {
            LIMITED
        } else {
            0
        }
    }

    fn failed_before(&self, part: &Part<H>) -> bool {
        let floors = &self.floor[part.from..part.to];
        let failed = |key| self.failures.contains(key, part.cap, floors);
        failed(part.key) || (self.config.limited_branching && failed(part.key ^ LIMITED))
    }

    /// Decides what covers one section at its floor, and goes on.
    fn node(&mut self, part: Part<H>) -> Verdict {
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(64) && self.clock.is_over()) {
            return Verdict::Stopped;
        }
        if self.config.failure_cache && self.failed_before(&part) {
            return Verdict::Infeasible;
        }
        if self.config.order_bound && !self.fits_in_order(&part) {
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
        // A problem that failed at once fails at once again.
        if verdict == Verdict::Infeasible && self.config.failure_cache && self.nodes - nodes >= 2 {
            let key = part.key ^ self.failure_key();
            let floors = &self.floor[part.from..part.to];
            self.failures.insert(key, part.cap, floors);
        }
        verdict
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_a_wall_can_be_stood_upon() {
        // Over floors of 8, 5, 0 and 0 only one plan fits: the second item on the 5, the others beside and on it at 8.
        let item = |start, end, size| Item { start, end, size };
        let items = vec![item(0, 2, 7), item(1, 3, 3), item(2, 4, 7)];
        let mut search = Search::<i32>::new(items, 4, 1, Clock::never(), FailureCache::new(100));
        search.floor = vec![8, 5, 0, 0];
        search.load = vec![7, 10, 10, 7];
        search.cross = vec![0, 1, 1, 1, 0];
        search.support = vec![8, 5, 0];
        search.limit = 1000;
        assert_eq!(search.split(0, 4, 15), Verdict::Feasible);
        assert_eq!(search.offset, [8, 5, 8]);
    }
}
