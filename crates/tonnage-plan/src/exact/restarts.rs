// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restarts: which capacity is tried next, by which rules and for how long, on all threads.

use super::failures::FailureCache;
use super::height::Height;
use super::search::{Config, Item, Prefer, Search, Verdict};
use crate::family::gcd;
use crate::options::{Clock, Options};
use crate::rigid;

/// Rounds after which a bound counts as stalled.
const STALL_ROUNDS: u64 = 100;

/// The length of runs against a stalled bound, in the shortest ones; and the share of them that start without the
/// weights of earlier failures.
const STALLED_RUN_LENGTH: u64 = 2;
const STALLED_RESET_SHARE: f32 = 0.1;

/// Heights that the failure caches of all threads may hold together.
const MAX_ROOMS: usize = 1 << 24;

/// The goal: a peak of at most `target`, given that `peak` is possible and `lower` a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) target: u64,
    pub(crate) peak: u64,
    pub(crate) lower: u64,
}

/// The result.
#[derive(Debug)]
pub(crate) struct Found {
    /// Better than what was there before, if anything is.
    pub(crate) offsets: Option<Vec<u64>>,
    pub(crate) peak: u64,
    pub(crate) lower: u64,
}

/// Receives the peak, the bound and the number of attempts.
pub(crate) type Report<'a> = &'a (dyn Fn(u64, u64, u64) + Sync);

/// The stack of a searching thread: a level of the search for each item and each level of waste.
const STACK: usize = 1 << 28;

/// Searches with restarts until the target is met or excluded, or the attempts are used up.
pub(crate) fn search(
    items: &[rigid::Item],
    sections: usize,
    goal: Goal,
    options: &Options<'_>,
    clock: &Clock<'_>,
    report: Report<'_>,
) -> Found {
    // Offsets that matter are sums of sizes, so everything can be counted in what divides them all.
    let unit = items
        .iter()
        .fold(0, |unit, item| gcd(unit, item.size))
        .max(1);
    let search = || {
        // Below a quarter of the range, so that no sum of two heights overflows.
        if goal.peak / unit < 1 << 29 {
            Restarts::<i32>::new(items, sections, unit, goal, options, clock).run(report)
        } else {
            Restarts::<i64>::new(items, sections, unit, goal, options, clock).run(report)
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
struct Restarts<'a, H> {
    /// One for each thread.
    searches: Vec<Search<'a, H>>,
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
    /// Up to which capacity runs with limited branching have nothing left to try.
    limited_done: u64,
    found: Found,
}

impl<'a, H: Height> Restarts<'a, H> {
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
        let seed = |thread: usize| options.seed.wrapping_add((thread as u64) << 32);
        let threads = options.thread_count();
        let search = |thread| {
            let failures = FailureCache::new(MAX_ROOMS / threads);
            Search::new(scaled.clone(), sections, seed(thread), *clock, failures)
        };
        let low = goal.lower.div_ceil(unit);
        let load = rigid::Rigid::load(items, 0, sections as u32);
        let full = load.iter().filter(|load| **load >= goal.lower / 100 * 99);
        let is_loose = goal.target / unit <= low && full.count() * 10 < sections;
        let target = (goal.target / unit).max(low);
        Self {
            searches: (0..threads).map(search).collect(),
            order,
            unit,
            low,
            best: goal.peak / unit,
            target,
            is_capacity: target > low,
            options,
            clock,
            configs: configs(options, is_loose),
            limited_done: 0,
            found: Found {
                offsets: None,
                peak: goal.peak,
                lower: goal.lower,
            },
        }
    }

    fn run(mut self, report: Report<'_>) -> Found {
        let mut attempt = 0;
        // Without a capacity the target rises with what is proved.
        while self.best > self.target.max(self.low)
            && (self.low <= self.target || !self.is_capacity)
            && attempt < self.options.attempts
            && !self.clock.is_over()
        {
            let runs: Vec<(u64, u64, Config)> = (attempt..)
                .take(self.searches.len())
                .map(|attempt| self.attempt(attempt))
                .collect();
            attempt += runs.len() as u64;
            for (search, (verdict, (cap, _, config))) in
                self.verdicts(&runs).into_iter().zip(runs).enumerate()
            {
                match verdict {
                    Verdict::Infeasible if config.limited_branching => {
                        self.limited_done = self.limited_done.max(cap);
                        continue;
                    }
                    Verdict::Feasible if cap < self.best => self.keep(search),
                    Verdict::Infeasible if cap >= self.low => {
                        self.low = cap + 1;
                        self.found.lower = self.low * self.unit;
                    }
                    _ => continue,
                }
                report(self.found.peak, self.found.lower, attempt);
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
        let is_stalled = !self.is_capacity && gap > 1 && round >= STALL_ROUNDS;
        // The bound itself first and often, since where nothing may be wasted failures are found soonest.
        let mut cap = match round % 4 {
            _ if self.is_capacity => self.target,
            1 if gap > 1 => self.best - gap.div_ceil(4),
            3 if gap > 1 => self.low + gap / 2,
            _ => self.low,
        };
        let mut length = luby(round + 1);
        if is_stalled && !attempt.is_multiple_of(4) {
            cap = self.best - gap.div_ceil([4, 8, 3, 5][(round % 4) as usize]);
            length = STALLED_RUN_LENGTH;
            config.prefer = Prefer::Lifetime;
            (config.lowest, config.order_bound) = (false, false);
            config.failure_weights = self.options.switches.failure_weights;
            config.limited_branching = self.options.switches.limited_branching && attempt % 4 != 1;
            config.reset_share = STALLED_RESET_SHARE;
        }
        config.limited_branching &= cap > self.limited_done;
        (cap, (100 + self.order.len() as u64) * length, config)
    }

    /// Runs one attempt in each search.
    fn verdicts(&mut self, runs: &[(u64, u64, Config)]) -> Vec<Verdict> {
        fn run<H: Height>(
            search: &mut Search<'_, H>,
            &(cap, nodes, config): &(u64, u64, Config),
        ) -> Verdict {
            search.run(H::from_units(cap), nodes, config)
        }
        let mut pairs = self.searches.iter_mut().zip(runs);
        let Some((search, first)) = pairs.next() else {
            return Vec::new();
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = pairs
                .map(|(search, attempt)| {
                    let thread = std::thread::Builder::new().stack_size(STACK);
                    thread.spawn_scoped(scope, move || run(search, attempt))
                })
                .collect();
            let mut verdicts = vec![run(search, first)];
            // A thread that could not be started has found nothing.
            let joined = others
                .into_iter()
                .map(|thread| thread.ok().and_then(|thread| thread.join().ok()));
            verdicts.extend(joined.map(|verdict| verdict.unwrap_or(Verdict::Stopped)));
            verdicts
        })
    }

    /// Takes over what a search has found.
    fn keep(&mut self, number: usize) {
        let search = &self.searches[number];
        let tops = search
            .offset
            .iter()
            .zip(&search.items)
            .map(|(offset, item)| (*offset + item.size).units());
        self.best = tops.max().unwrap_or(0);
        self.found.peak = self.best * self.unit;
        let mut offsets = vec![0; self.order.len()];
        for (index, offset) in self.order.iter().zip(&search.offset) {
            offsets[*index as usize] = offset.units() * self.unit;
        }
        self.found.offsets = Some(offsets);
    }
}

/// The rules that attempts go through: preference, failure weights, lowest valley first, order bound, limited
/// branching.
///
/// Chosen on the published instances A to K: each of the first four alone solves nearly all of them; the others are
/// there for what these are blind to.
const CONFIGS: [(Prefer, bool, bool, bool, bool); 8] = [
    (Prefer::Size, true, false, false, true),
    (Prefer::Lifetime, true, false, false, false),
    (Prefer::Size, false, false, false, true),
    (Prefer::Lifetime, true, false, false, true),
    (Prefer::Area, false, true, true, true),
    (Prefer::Lifetime, true, false, false, false),
    (Prefer::Bulk, false, false, false, true),
    (Prefer::Size, true, false, false, true),
];

/// The rule among them that fills evenly.
const EVEN: usize = 4;

fn configs(options: &Options<'_>, is_loose: bool) -> Vec<Config> {
    let switches = options.switches;
    let config = |&(prefer, failure_weights, lowest, order_bound, limited_branching)| Config {
        prefer,
        noise: 0.0,
        failure_cache: switches.failure_cache,
        order_bound: order_bound && switches.order_bound,
        failure_weights: failure_weights && switches.failure_weights,
        lowest,
        limited_branching: limited_branching && switches.limited_branching,
        reset_share: 0.0,
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
