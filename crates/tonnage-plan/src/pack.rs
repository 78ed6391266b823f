// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing of rigid items: cuts them into parts and lets the engines work on each.
//!
//! Dives first, since most real graphs need no more; then, for parts small enough, the complete search with restarts
//! on all threads; for the others dives again, each with what lives where the last one failed moved up in the order.
//! These go one after the other: dives side by side, in rounds so that the plan does not depend on which is faster,
//! were tried on two threads and took longer by the clock. A part need not be better than the fullest of all parts
//! demands, so most parts of a long recording are done after one dive.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dive::{Dive, RULES, Rule};
use crate::exact;
use crate::improve::improve;
use crate::options::{Clock, Options, Progress};
use crate::random::Random;
use crate::rigid::{Item, Part, Rigid};

/// Items up to which the complete search is tried: its nodes cost more the more there are.
const MAX_EXACT: usize = 4000;

/// Items up to which the complete search comes after two dives only.
const SMALL: usize = 1000;

/// Dives under one rule before boosts start anew with the next: few until all rules were tried, since most of those
/// that lead to the goal lead there soon; then more.
const ROUNDS: [u64; 2] = [6, 12];

/// How much earlier, at most, what lives where a dive failed comes in the next: enough to pass what is half as large
/// again, so that a few dives change the order there.
const MAX_BOOST: f32 = 0.5;

/// Passes progress on to the caller.
#[derive(Debug)]
pub(crate) struct ProgressReporter<'a> {
    pub(crate) options: &'a Options<'a>,
    pub(crate) space: usize,
    /// The most attempts that were reported: parts count for themselves, each from 0.
    pub(crate) attempts: AtomicU64,
}

impl ProgressReporter<'_> {
    pub(crate) fn report(&self, peak: u64, lower_bound: u64, attempts: u64) {
        let before = self.attempts.fetch_max(attempts, Ordering::Relaxed);
        let attempts = attempts.max(before);
        if let Some(progress) = self.options.progress {
            progress(&Progress {
                space: self.space,
                peak,
                lower_bound,
                attempts,
            });
        }
    }
}

/// Packs all items and places the entries they stand for; returns what the peak cannot be below.
pub(crate) fn pack(
    mut rigid: Rigid,
    target: u64,
    mut place: impl FnMut(u32, u64),
    reporter: &ProgressReporter<'_>,
    clock: &Clock<'_>,
) -> u64 {
    let parts = rigid.cut(reporter.options.switches.decompose, &mut place);
    let mut goal = target;
    let mut bounds = Vec::with_capacity(parts.len());
    for part in &parts {
        let load = Rigid::load(&rigid.items[part.from..part.to], part.start, part.end);
        bounds.push(part.base + load.iter().max().copied().unwrap_or(0));
        goal = goal.max(bounds[bounds.len() - 1]);
    }
    let mut lower = bounds.iter().max().copied().unwrap_or(0);
    for part in &parts {
        for item in &mut rigid.items[part.from..part.to] {
            item.start -= part.start;
            item.end -= part.start;
        }
    }
    let job = |part: &Part, goal: u64, others| {
        let items = &rigid.items[part.from..part.to];
        Job {
            items,
            load: Rigid::load(items, 0, part.end - part.start),
            target: goal - part.base,
            reporter,
            clock,
            base: part.base,
            others,
        }
    };
    let mut put = |part: &Part, done: &Done| {
        for (&entry, &offset) in rigid.entries[part.from..part.to].iter().zip(&done.offsets) {
            place(entry, part.base + offset);
        }
    };
    // An answer for all of them before any is made better, so that a deadline finds one.
    let mut peaks = vec![u64::MAX; parts.len()];
    if parts.len() > 1 {
        for (part, peak) in parts.iter().zip(&mut peaks) {
            let done = job(part, goal, None).first();
            put(part, &done);
            *peak = part.base + done.peak;
        }
    }
    // The fullest part first: what it cannot reach, the others need not.
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|part| std::cmp::Reverse(bounds[*part]));
    let mut later: Vec<u64> = vec![0; order.len()];
    for place in (1..order.len()).rev() {
        later[place - 1] = later[place].max(peaks[order[place]]);
    }
    for (index, later) in order.into_iter().zip(later) {
        if peaks[index] > goal {
            let part = &parts[index];
            let done = job(part, goal, Some((later.max(goal), lower))).solve();
            put(part, &done);
            goal = goal.max(part.base + done.peak);
            lower = lower.max(part.base + done.lower);
        }
    }
    lower
}

/// A dive, and what it has learnt.
struct Diver<'a> {
    dive: Dive<'a>,
    /// How much earlier each item comes than by its rule; empty before anything has failed.
    boost: Vec<f32>,
    random: Random,
}

impl<'a> Diver<'a> {
    fn new(items: &'a [Item], load: &'a [u64], seed: u64) -> Self {
        Self {
            dive: Dive::new(items, load),
            boost: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// Dives; the peak, if it is below `give_up`.
    fn run(
        &mut self,
        target: u64,
        give_up: u64,
        rule: Rule,
        noise: f32,
        clock: &Clock<'_>,
    ) -> Option<u64> {
        let (boost, random) = (&self.boost, &mut self.random);
        let moved = |item: u32| {
            let boost = boost.get(item as usize).copied().unwrap_or(0.0);
            if noise > 0.0 {
                boost + noise * random.unit()
            } else {
                boost
            }
        };
        self.dive.run(target, give_up, rule, moved, clock)
    }

    /// Items that live where the dive failed come earlier in the next ones.
    fn boost_failed(&mut self, items: &[Item]) {
        let (start, end) = self.dive.failed_sections;
        for (item, boost) in items.iter().zip(&mut self.boost) {
            if item.start < end && start < item.end {
                *boost += MAX_BOOST * self.random.unit();
            }
        }
    }
}

/// One part and what is wanted of it.
struct Job<'a> {
    items: &'a [Item],
    load: Vec<u64>,
    /// A peak that is low enough.
    target: u64,
    reporter: &'a ProgressReporter<'a>,
    clock: &'a Clock<'a>,
    base: u64,
    /// Peak and bound of the other parts; `None` while nothing is reported about this one.
    others: Option<(u64, u64)>,
}

/// The result.
struct Done {
    offsets: Vec<u64>,
    peak: u64,
    lower: u64,
}

impl Job<'_> {
    /// One dive, completed even after the deadline: an answer is required.
    fn first(&self) -> Done {
        let mut done = self.nothing();
        if self.items.len() > 1 {
            let mut diver = Diver::new(self.items, &self.load, self.reporter.options.seed);
            self.dive(&mut diver, RULES[0], 0.0, &Clock::never(), &mut done, 1);
        }
        done
    }

    fn report(&self, peak: u64, lower: u64, attempts: u64) {
        if let Some((peaks, bounds)) = self.others {
            let (peak, lower) = (self.base + peak, self.base + lower);
            self.reporter
                .report(peak.max(peaks), lower.max(bounds), attempts);
        }
    }

    /// Nothing decided yet; of one alone there is nothing to decide, it lies at the bottom.
    fn nothing(&self) -> Done {
        Done {
            offsets: vec![0; self.items.len()],
            peak: match self.items {
                [alone] => alone.size,
                _ => u64::MAX,
            },
            lower: self.load.iter().max().copied().unwrap_or(0),
        }
    }

    fn solve(&self) -> Done {
        let options = self.reporter.options;
        let switches = options.switches;
        let mut done = self.nothing();
        if self.items.len() == 1 {
            return done;
        }
        let exact = switches.exact && self.items.len() <= MAX_EXACT;
        let mut rules: Vec<Rule> = RULES.to_vec();
        rules.retain(|rule| switches.tightest || !rule.tightest);
        let first = if !switches.dive {
            1
        } else if exact && self.items.len() <= SMALL {
            2
        } else {
            rules.len()
        };
        let mut diver = Diver::new(self.items, &self.load, options.seed);
        self.dive(&mut diver, rules[0], 0.0, &Clock::never(), &mut done, 1);
        for (rule, attempt) in rules[1..first].iter().zip(2..) {
            if done.peak <= self.target || self.clock.is_over() {
                break;
            }
            self.dive(&mut diver, *rule, 0.0, self.clock, &mut done, attempt);
        }
        if done.peak <= self.target {
            return done;
        }
        if exact {
            self.search(&mut done);
        }
        if switches.windows && done.peak > self.target && !self.clock.is_over() {
            self.improve(&mut done);
        }
        if exact {
            return done;
        }
        if switches.boost_failed && switches.dive {
            self.dive_with_boosts(&mut diver, &rules, &mut done);
        }
        done
    }

    /// Dives once more; keeps what it finds, and returns whether that is better.
    fn dive(
        &self,
        diver: &mut Diver<'_>,
        rule: Rule,
        noise: f32,
        clock: &Clock<'_>,
        done: &mut Done,
        attempt: u64,
    ) -> bool {
        let Some(peak) = diver.run(self.target, done.peak, rule, noise, clock) else {
            return false;
        };
        done.peak = peak;
        done.offsets.copy_from_slice(&diver.dive.offsets);
        self.report(done.peak, done.lower, attempt);
        true
    }

    /// The complete search, with restarts, on all threads.
    fn search(&self, done: &mut Done) {
        let options = self.reporter.options;
        let goal = exact::Goal {
            target: self.target,
            peak: done.peak,
            lower: done.lower,
        };
        let report = |peak: u64, lower: u64, attempts: u64| self.report(peak, lower, attempts);
        let found = exact::search(
            self.items,
            self.load.len(),
            goal,
            options,
            self.clock,
            &report,
        );
        done.lower = found.lower;
        if let Some(offsets) = found.offsets {
            done.offsets = offsets;
            done.peak = found.peak;
        }
    }

    /// Windows of time planned anew.
    fn improve(&self, done: &mut Done) {
        let seed = self.reporter.options.seed;
        let lower = done.lower;
        let report = |peak: u64| self.report(peak, lower, 0);
        done.peak = improve(
            self.items,
            &mut done.offsets,
            self.target,
            seed,
            self.clock,
            report,
        );
    }

    /// Dives again and again; what lives where one failed comes earlier in the next.
    fn dive_with_boosts(&self, diver: &mut Diver<'_>, rules: &[Rule], done: &mut Done) {
        let options = self.reporter.options;
        let switches = options.switches;
        let noise = if switches.noise { 0.05 } else { 0.0 };
        let (mut session, mut left) = (0, 0);
        for attempt in 0..options.attempts {
            if self.clock.is_over() || done.peak <= self.target {
                return;
            }
            if left == 0 {
                left = ROUNDS[(session / rules.len()).min(ROUNDS.len() - 1)];
                session += 1;
                diver.boost.clear();
                diver.boost.resize(self.items.len(), 0.0);
            }
            left -= 1;
            let rule = rules[(session - 1) % rules.len()];
            if !self.dive(diver, rule, noise, self.clock, done, attempt) {
                diver.boost_failed(self.items);
            } else if switches.windows {
                // A new plan has other windows.
                self.improve(done);
            }
        }
    }
}
