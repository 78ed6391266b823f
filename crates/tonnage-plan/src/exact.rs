// SPDX-License-Identifier: MIT OR Apache-2.0
//! Complete search for rigid items: does everything fit below a capacity?
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Add, AddAssign, Sub, SubAssign};

use crate::family::gcd;
use crate::options::{Clock, Options};
use crate::random::Random;
use crate::rigid;

pub(crate) trait Height:
    Copy + Ord + Default + Add<Output = Self> + Sub<Output = Self> + AddAssign + SubAssign + std::fmt::Debug + Send + Sync
{
    const MAX: Self;
    fn real(self) -> f32;
    fn from_units(units: u64) -> Self;
    fn units(self) -> u64;
}
impl Height for i32 {
    const MAX: Self = i32::MAX;
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
impl Height for i64 {
    const MAX: Self = i64::MAX;
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<H> {
    pub start: u32,
    pub end: u32,
    pub size: H,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Feasible,
    Infeasible,
    Stopped,
}

#[derive(Default)]
pub(crate) struct PassThrough(u64);
impl Hasher for PassThrough {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub value: u8,
    pub select: u8,
    pub noise: f32,
    pub memo: bool,
    pub machine: bool,
    pub peel: bool,
    pub weights: bool,
}

pub(crate) struct Search<'a, H> {
    clock: Clock<'a>,
    items: Vec<Item<H>>,
    zobrist: Vec<u64>,
    twin: Vec<u32>,
    stamp: Vec<u64>,
    now: u64,
    /// Items by section: those that cover it, and where those that start in it begin.
    cover: Vec<u32>,
    cover_at: Vec<u32>,
    starting: Vec<u32>,
    starting_at: Vec<u32>,
    floor: Vec<H>,
    remaining: Vec<H>,
    cross: Vec<u32>,
    pub offset: Vec<H>,
    support: Vec<H>,
    trail: Vec<(u32, H)>,
    dirty: Vec<u64>,
    count: Vec<u32>,
    before: Vec<H>,
    after: Vec<H>,
    finish: Vec<H>,
    weight: Vec<f32>,
    pool: Vec<u32>,
    options: Vec<(f32, u32)>,
    saved: Vec<H>,
    saved_cross: Vec<u32>,
    memo: HashMap<u64, Vec<(u32, u32)>, BuildHasherDefault<PassThrough>>,
    rooms: Vec<H>,
    pub nodes: u64,
    pub limit: u64,
    pub config: Config,
    random: Random,
    pub hits: u64,
    sorted: Vec<(H, u32)>,
}

impl<'a, H: Height> Search<'a, H> {
    pub(crate) fn new(items: &[Item<H>], sections: u32, seed: u64, clock: Clock<'a>) -> Self {
        let n = items.len();
        let s = sections as usize;
        let random = Random::new(seed);
        let mut keys = Random::new(12345);
        let mut order: Vec<u32> = (0..n as u32).collect();
        let key = |i: u32| {
            let x = &items[i as usize];
            (x.start, x.end, x.size)
        };
        order.sort_by_key(|&i| key(i));
        let mut twin: Vec<u32> = (0..n as u32).collect();
        let mut zobrist: Vec<u64> = vec![0; n];
        let mut last = u32::MAX;
        let mut z = 0;
        for &i in &order {
            if last == u32::MAX || key(last) != key(i) {
                last = i;
                z = keys.next() | 1;
            }
            twin[i as usize] = last;
            zobrist[i as usize] = z;
        }
        let mut cover_at = vec![0_u32; s + 1];
        let mut starting_at = vec![0_u32; s + 2];
        for x in items {
            for t in x.start..x.end {
                cover_at[t as usize + 1] += 1;
            }
            starting_at[x.start as usize + 1] += 1;
        }
        for t in 0..s {
            cover_at[t + 1] += cover_at[t];
            starting_at[t + 1] += starting_at[t];
        }
        starting_at[s + 1] = starting_at[s];
        let mut cover = vec![0; cover_at[s] as usize];
        let mut fill = cover_at.clone();
        for &i in &order {
            let x = &items[i as usize];
            for t in x.start..x.end {
                cover[fill[t as usize] as usize] = i;
                fill[t as usize] += 1;
            }
        }
        let h0 = H::default();
        Self {
            clock,
            items: items.to_vec(),
            zobrist,
            twin,
            stamp: vec![0; n],
            now: 0,
            cover,
            cover_at,
            starting: order,
            starting_at,
            floor: vec![h0; s],
            remaining: vec![h0; s],
            cross: vec![0; s + 1],
            offset: vec![h0; n],
            support: vec![h0; n],
            trail: Vec::new(),
            dirty: vec![0; s / 64 + 1],
            count: vec![0; s],
            before: vec![h0; s + 1],
            after: vec![h0; s + 1],
            finish: vec![h0; s],
            weight: vec![1.0; s],
            pool: Vec::new(),
            options: Vec::new(),
            saved: Vec::new(),
            saved_cross: Vec::new(),
            memo: HashMap::default(),
            rooms: Vec::new(),
            nodes: 0,
            limit: 0,
            config: Config { value: 0, select: 0, noise: 0.0, memo: true, machine: true, peel: true, weights: true },
            random,
            hits: 0,
            sorted: Vec::new(),
        }
    }

    pub(crate) fn reset_weights(&mut self) {
        self.weight.fill(1.0);
    }

    /// One run with a budget of nodes.
    pub(crate) fn run(&mut self, capacity: H, limit: u64, config: Config) -> Verdict {
        self.config = config;
        self.limit = self.nodes + limit;
        self.floor.fill(H::default());
        self.remaining.fill(H::default());
        self.support.fill(H::default());
        self.cross.fill(0);
        for x in &self.items {
            for r in &mut self.remaining[x.start as usize..x.end as usize] {
                *r += x.size;
            }
            for c in &mut self.cross[x.start as usize + 1..x.end as usize] {
                *c += 1;
            }
        }
        if self.remaining.iter().any(|&r| r > capacity) {
            return Verdict::Infeasible;
        }
        self.pool.clear();
        self.saved.clear();
        self.saved_cross.clear();
        self.trail.clear();
        self.options.clear();
        let n = self.items.len();
        self.pool.extend(0..n as u32);
        let s = self.floor.len() as u32;
        self.split(0, n, 0, s, capacity)
    }

    /// Splits the items of `pool[from..to]`, all within sections `a..b`, into independent parts.
    fn split(&mut self, from: usize, to: usize, a: u32, b: u32, cap: H) -> Verdict {
        let zero = H::default();
        let mut t = a as usize;
        let b = b as usize;
        let mark = self.pool.len();
        while t < b {
            if self.remaining[t] == zero {
                t += 1;
                continue;
            }
            let mut e = t + 1;
            while e < b && self.cross[e] > 0 {
                e += 1;
            }
            for i in from..to {
                let x = self.pool[i];
                let it = &self.items[x as usize];
                if it.start as usize >= t && it.end as usize <= e {
                    self.pool.push(x);
                }
            }
            let end = self.pool.len();
            let v = self.part(mark, end, t as u32, e as u32, cap);
            self.pool.truncate(mark);
            if v != Verdict::Feasible {
                return v;
            }
            t = e;
        }
        Verdict::Feasible
    }

    /// A new part: spanning items go to its top.
    fn part(&mut self, from: usize, to: usize, a: u32, b: u32, mut cap: H) -> Verdict {
        if to - from == 1 {
            let x = self.pool[from] as usize;
            self.offset[x] = self.support[x];
            self.trail.push((x as u32, self.support[x]));
            self.support[x] = H::MAX;
            for r in &mut self.remaining[a as usize..b as usize] {
                *r = H::default();
            }
            return Verdict::Feasible;
        }
        let mut sum = H::default();
        let mut peeled = 0;
        if self.config.peel {
            let mut keep = from;
            for i in from..to {
                let x = self.pool[i];
                let it = self.items[x as usize];
                if it.start == a && it.end == b {
                    cap -= it.size;
                    sum += it.size;
                    peeled += 1;
                    self.offset[x as usize] = cap;
                    self.trail.push((x, self.support[x as usize]));
                    self.support[x as usize] = H::MAX;
                } else {
                    self.pool[keep] = x;
                    keep += 1;
                }
            }
            if peeled > 0 {
                let (ai, bi) = (a as usize, b as usize);
                for r in &mut self.remaining[ai..bi] {
                    *r -= sum;
                }
                for c in &mut self.cross[ai + 1..bi] {
                    *c -= peeled;
                }
                // what was peeled may have been all that some section had: its floor then does not matter
                for t in ai..bi {
                    if self.floor[t] > cap {
                        return Verdict::Infeasible;
                    }
                }
                return self.split(from, keep, a, b, cap);
            }
        }
        let mut key = u64::from(a).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for &x in &self.pool[from..to] {
            key = key.wrapping_add(self.zobrist[x as usize]);
        }
        self.node(from, to, a, b, cap, key)
    }

    fn mark_dirty(&mut self, y: u32, old: H) {
        let it = self.items[y as usize];
        for t in it.start as usize..it.end as usize {
            if self.floor[t] == old {
                self.dirty[t / 64] |= 1 << (t % 64);
            }
        }
    }

    fn lift(&mut self, y: u32, v: H) {
        let old = self.support[y as usize];
        if old < v {
            self.trail.push((y, old));
            self.support[y as usize] = v;
            self.mark_dirty(y, old);
        }
    }

    /// Raises floors until each is the least support of what is left above it.
    fn propagate(&mut self, cap: H) -> bool {
        let zero = H::default();
        loop {
            let mut any = false;
            for w in 0..self.dirty.len() {
                while self.dirty[w] != 0 {
                    any = true;
                    let t = w * 64 + self.dirty[w].trailing_zeros() as usize;
                    self.dirty[w] &= self.dirty[w] - 1;
                    if self.remaining[t] == zero {
                        continue;
                    }
                    let (from, to) = (self.cover_at[t] as usize, self.cover_at[t + 1] as usize);
                    let mut low = H::MAX;
                    for &y in &self.cover[from..to] {
                        low = low.min(self.support[y as usize]);
                    }
                    if low > self.floor[t] {
                        if low + self.remaining[t] > cap {
                            self.weight[t] += 1.0;
                            self.dirty.fill(0);
                            return false;
                        }
                        self.floor[t] = low;
                        for i in from..to {
                            let y = self.cover[i];
                            if self.support[y as usize] < low {
                                self.lift(y, low);
                            }
                        }
                    }
                }
            }
            if !any {
                return true;
            }
        }
    }

    fn machine(&mut self, from: usize, to: usize, a: usize, b: usize, cap: H) -> bool {
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        sorted.extend(self.pool[from..to].iter().map(|&x| (self.support[x as usize], x)));
        sorted.sort_unstable();
        self.finish[a..b].copy_from_slice(&self.floor[a..b]);
        for &(s, x) in &sorted {
            let it = &self.items[x as usize];
            for v in &mut self.finish[it.start as usize..it.end as usize] {
                *v = (*v).max(s) + it.size;
            }
        }
        self.sorted = sorted;
        for t in a..b {
            if self.finish[t] > cap {
                self.weight[t] += 1.0;
                return false;
            }
        }
        true
    }

    fn node(&mut self, from: usize, to: usize, a: u32, b: u32, cap: H, key: u64) -> Verdict {
        self.nodes += 1;
        if self.nodes > self.limit || (self.nodes.is_multiple_of(64) && self.clock.is_over()) {
            return Verdict::Stopped;
        }
        let (ai, bi) = (a as usize, b as usize);
        if self.config.memo {
            if let Some(list) = self.memo.get(&key) {
                for &(at, len) in list {
                    if len as usize != bi - ai {
                        continue;
                    }
                    let rooms = &self.rooms[at as usize..at as usize + len as usize];
                    if rooms.iter().zip(&self.floor[ai..bi]).all(|(&r, &f)| cap - f <= r) {
                        self.hits += 1;
                        return Verdict::Infeasible;
                    }
                }
            }
        }
        if self.config.machine && !self.machine(from, to, ai, bi, cap) {
            return Verdict::Infeasible;
        }
        let before = self.nodes;
        // candidates: those that lie on one level
        self.now += 1;
        self.count[ai..bi].fill(0);
        let mark = self.pool.len();
        for i in from..to {
            let x = self.pool[i];
            let it = self.items[x as usize];
            let s = self.support[x as usize];
            let (l, u) = (it.start as usize, it.end as usize);
            if s != self.floor[l] || s != self.floor[u - 1] {
                continue;
            }
            let twin = self.twin[x as usize] as usize;
            if self.stamp[twin] == self.now || self.floor[l..u].iter().any(|&f| f != s) {
                continue;
            }
            self.stamp[twin] = self.now;
            self.pool.push(x);
            for c in &mut self.count[l..u] {
                *c += 1;
            }
        }
        let cand_end = self.pool.len();
        let mut best_t = usize::MAX;
        let mut best_score = f32::MAX;
        let mut best_nothing = None;
        let mut t = ai;
        while t < bi {
            let f = self.floor[t];
            let mut e = t + 1;
            while e < bi && self.floor[e] == f {
                e += 1;
            }
            if (t == ai || self.floor[t - 1] > f) && (e == bi || self.floor[e] > f) {
                // least sizes of candidates that end before or start after a section
                self.before[t..=e].fill(H::MAX);
                self.after[t..=e].fill(H::MAX);
                for i in mark..cand_end {
                    let it = &self.items[self.pool[i] as usize];
                    let (l, u) = (it.start as usize, it.end as usize);
                    if l >= t && u <= e {
                        self.before[u] = self.before[u].min(it.size);
                        self.after[l] = self.after[l].min(it.size);
                    }
                }
                for k in t + 1..e {
                    self.before[k] = self.before[k].min(self.before[k - 1]);
                }
                for k in (t..e).rev() {
                    self.after[k] = self.after[k].min(self.after[k + 1]);
                }
                for k in t..e {
                    let room = cap - f - self.remaining[k];
                    let shape = |options: u32| match self.config.select {
                        0 => options as f32,
                        1 => options as f32 + f.real() * 1000.0,
                        2 => options as f32 + room.real() * 100.0,
                        _ => options as f32 * (1.0 + (e - t) as f32 * 0.05),
                    };
                    let mut scale = 1.0;
                    if self.config.weights {
                        scale /= self.weight[k];
                    }
                    if self.config.noise > 0.0 {
                        scale *= 1.0 + self.config.noise * 0.1 * self.random.unit();
                    }
                    if shape(self.count[k]) * scale >= best_score {
                        continue;
                    }
                    // nothing at the floor of k: the next level that something can have there
                    let (from, to) = (self.cover_at[k] as usize, self.cover_at[k + 1] as usize);
                    let mut next = H::MAX;
                    for &y in &self.cover[from..to] {
                        let s = self.support[y as usize];
                        if s > f {
                            next = next.min(s);
                        }
                    }
                    let other = self.before[k].min(self.after[k + 1]);
                    if other < H::MAX {
                        next = next.min(f + other);
                    }
                    let allowed = next < H::MAX && next + self.remaining[k] <= cap;
                    let options = self.count[k] + u32::from(allowed);
                    let score = shape(options) * scale + room.real() * 1e-6;
                    if score < best_score {
                        best_score = score;
                        best_t = k;
                        best_nothing = allowed.then_some(next);
                    }
                }
            }
            t = e;
        }
        if best_t == usize::MAX {
            // cannot be: every part has a lowest level, and something lies on it
            return Verdict::Stopped;
        }
        let f = self.floor[best_t];
        let first = self.options.len();
        for i in mark..cand_end {
            let x = self.pool[i];
            let it = self.items[x as usize];
            if it.start as usize <= best_t && best_t < it.end as usize {
                let width = (it.end - it.start) as f32;
                let size = it.size.real();
                let mut score = match self.config.value {
                    0 => size * width,
                    1 => size,
                    2 => width,
                    3 => size * size * width,
                    4 => width * width * size,
                    _ => 1.0,
                };
                if self.config.noise > 0.0 {
                    score *= 1.0 + self.config.noise * self.random.unit();
                }
                self.options.push((score, x));
            }
        }
        self.pool.truncate(mark);
        self.options[first..].sort_unstable_by(|p, q| q.0.total_cmp(&p.0).then(p.1.cmp(&q.1)));
        let last = self.options.len();
        let w = bi - ai;
        let save = self.saved.len();
        let save_cross = self.saved_cross.len();
        let trail = self.trail.len();
        self.saved.extend_from_slice(&self.floor[ai..bi]);
        self.saved.extend_from_slice(&self.remaining[ai..bi]);
        self.saved_cross.extend_from_slice(&self.cross[ai..bi]);
        let mut verdict = Verdict::Infeasible;
        for k in first..=last {
            if k == last {
                let Some(next) = best_nothing else { break };
                verdict = if self.raise(best_t, next, cap) {
                    self.node(from, to, a, b, cap, key)
                } else {
                    Verdict::Infeasible
                };
            } else {
                let x = self.options[k].1;
                verdict = self.place(x, f, from, to, a, b, cap, key);
            }
            if verdict == Verdict::Infeasible {
                self.floor[ai..bi].copy_from_slice(&self.saved[save..save + w]);
                self.remaining[ai..bi].copy_from_slice(&self.saved[save + w..save + 2 * w]);
                self.cross[ai..bi].copy_from_slice(&self.saved_cross[save_cross..save_cross + w]);
                while self.trail.len() > trail {
                    if let Some((y, s)) = self.trail.pop() {
                        self.support[y as usize] = s;
                    }
                }
            } else {
                break;
            }
        }
        self.saved.truncate(save);
        self.saved_cross.truncate(save_cross);
        self.options.truncate(first);
        if verdict == Verdict::Infeasible && self.config.memo && self.nodes - before >= 2 && self.rooms.len() < 50_000_000 {
            let at = self.rooms.len() as u32;
            for t in ai..bi {
                self.rooms.push(cap - self.floor[t]);
            }
            self.memo.entry(key).or_default().push((at, w as u32));
        }
        verdict
    }

    fn raise(&mut self, t: usize, v: H, cap: H) -> bool {
        self.floor[t] = v;
        for i in self.cover_at[t] as usize..self.cover_at[t + 1] as usize {
            let y = self.cover[i];
            self.lift(y, v);
        }
        self.propagate(cap)
    }

    #[allow(clippy::too_many_arguments)]
    fn place(&mut self, x: u32, f: H, from: usize, to: usize, a: u32, b: u32, cap: H, key: u64) -> Verdict {
        let it = self.items[x as usize];
        let (l, u) = (it.start as usize, it.end as usize);
        self.offset[x as usize] = f;
        let top = f + it.size;
        self.trail.push((x, self.support[x as usize]));
        self.support[x as usize] = H::MAX;
        for t in l..u {
            self.floor[t] = top;
            self.remaining[t] -= it.size;
            self.dirty[t / 64] |= 1 << (t % 64);
        }
        let mut parts = self.remaining[l] == H::default() || self.remaining[u - 1] == H::default();
        for t in l + 1..u {
            self.cross[t] -= 1;
            parts |= self.cross[t] == 0;
        }
        for i in self.cover_at[l] as usize..self.cover_at[l + 1] as usize {
            let y = self.cover[i];
            self.lift(y, top);
        }
        for i in self.starting_at[l + 1] as usize..self.starting_at[u] as usize {
            let y = self.starting[i];
            self.lift(y, top);
        }
        if !self.propagate(cap) {
            return Verdict::Infeasible;
        }
        // take it out of the list, in place
        let mut at = from;
        while self.pool[at] != x {
            at += 1;
        }
        self.pool.swap(at, to - 1);
        let v = if parts {
            self.split(from, to - 1, a, b, cap)
        } else {
            self.node(from, to - 1, a, b, cap, key.wrapping_sub(self.zobrist[x as usize]))
        };
        self.pool.swap(at, to - 1);
        v
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
    pub(crate) offsets: Option<Vec<u64>>,
    pub(crate) peak: u64,
    pub(crate) lower: u64,
}

/// The stack of a searching thread: a level of the search for each item and each level of waste.
const STACK: usize = 1 << 28;

/// Searches with restarts until the target is met, excluded, or the attempts are used up.
pub(crate) fn search(
    items: &[rigid::Item],
    load: &[u64],
    goal: Goal,
    options: &Options<'_>,
    threads: usize,
    clock: &Clock<'_>,
    tell: &(dyn Fn(u64, u64, u64) + Sync),
) -> Found {
    // Offsets that matter are sums of sizes, so everything can be counted in what divides them all.
    let unit = items.iter().fold(0, |unit, item| gcd(unit, item.size)).max(1);
    let most = goal.peak / unit;
    if most < 1 << 29 {
        lanes::<i32>(items, load.len() as u32, unit, goal, options, threads, clock, tell)
    } else {
        lanes::<i64>(items, load.len() as u32, unit, goal, options, threads, clock, tell)
    }
}

#[allow(clippy::too_many_arguments)]
fn lanes<H: Height>(
    items: &[rigid::Item],
    sections: u32,
    unit: u64,
    goal: Goal,
    options: &Options<'_>,
    threads: usize,
    clock: &Clock<'_>,
    tell: &(dyn Fn(u64, u64, u64) + Sync),
) -> Found {
    let scaled: Vec<Item<H>> = items
        .iter()
        .map(|item| Item { start: item.start, end: item.end, size: H::from_units(item.size / unit) })
        .collect();
    let mut lanes: Vec<Search<'_, H>> = (0..threads as u64)
        .map(|lane| Search::new(&scaled, sections, options.seed.wrapping_add(lane << 32), *clock))
        .collect();
    let mut found = Found { offsets: None, peak: goal.peak, lower: goal.lower };
    let (mut low, mut best) = (goal.lower.div_ceil(unit), goal.peak / unit);
    let target = (goal.target / unit).max(low);
    let capacity_given = target > low;
    let configs = configs(options);
    let n = items.len() as u64;
    let mut attempt = 0;
    while best > target.max(low) && low <= target.max(goal.lower.div_ceil(unit)).max(if capacity_given { 0 } else { u64::MAX }) && attempt < options.attempts && !clock.is_over() {
        let round = attempt / configs.len() as u64;
        let runs: Vec<(u64, u64, Config)> = (0..threads as u64)
            .map(|lane| {
                let index = attempt + lane;
                let config = configs[((index + options.seed) % configs.len() as u64) as usize];
                let config = Config { noise: if round == 0 || !options.switches.noise { 0.0 } else { 0.3 }, ..config };
                let cap = if capacity_given {
                    if round % 2 == 0 { target } else { low }
                } else if round % 4 == 3 && best > low + 1 {
                    low + (best - low) / 2
                } else if round % 4 == 1 && best > low + 1 {
                    best - 1
                } else {
                    low
                };
                (cap, (100 + n) * luby(round + 1), config)
            })
            .collect();
        let verdicts: Vec<Verdict> = std::thread::scope(|scope| {
            let handles: Vec<_> = lanes
                .iter_mut()
                .zip(&runs)
                .map(|(lane, &(cap, limit, config))| {
                    std::thread::Builder::new()
                        .stack_size(STACK)
                        .spawn_scoped(scope, move || lane.run(H::from_units(cap), limit, config))
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.ok().and_then(|handle| handle.join().ok()).unwrap_or(Verdict::Stopped))
                .collect()
        });
        attempt += threads as u64;
        for ((lane, verdict), (cap, _, _)) in lanes.iter().zip(verdicts).zip(runs) {
            match verdict {
                Verdict::Feasible if cap < best => {
                    let tops = lane.offset.iter().zip(&scaled).map(|(offset, item)| (*offset + item.size).units());
                    best = tops.max().unwrap_or(0);
                    found.peak = best * unit;
                    found.offsets = Some(lane.offset.iter().map(|offset| offset.units() * unit).collect());
                    tell(found.peak, found.lower, attempt);
                }
                Verdict::Infeasible if cap >= low => {
                    low = cap + 1;
                    found.lower = low * unit;
                    tell(found.peak, found.lower, attempt);
                }
                _ => {}
            }
        }
    }
    found
}

fn configs(options: &Options<'_>) -> Vec<Config> {
    let switches = options.switches;
    let mut configs = Vec::new();
    for weights in [false, true] {
        for machine in [false, true] {
            for value in [1, 2, 3] {
                if (weights && !switches.weights) || (machine && !switches.release) {
                    continue;
                }
                configs.push(Config { value, select: 0, noise: 0.0, memo: switches.memory, machine, peel: true, weights });
            }
        }
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
