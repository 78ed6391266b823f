// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing of rigid items: cuts them into parts and lets the engines work on each.
//!
//! Dives first, since most real graphs need no more; then, for parts small enough, the complete search with restarts
//! on all threads; for the others dives again, with blame. A part need not be better than the fullest of all parts
//! demands, so most parts of a long recording are done after one dive.

use crate::dive::{Dive, RULES, Rule};
use crate::exact;
use crate::improve::improve;
use crate::options::{Clock, Options, Progress};
use crate::random::Random;
use crate::rigid::{Item, Part, Rigid};

/// Items up to which the complete search is tried: its nodes cost more the more there are.
const MOST_EXACT: usize = 4000;

/// Items up to which the complete search comes after two dives only.
const SMALL: usize = 1000;

/// Dives under one rule before blame starts anew with the next.
const ROUNDS: u64 = 12;

/// How much earlier, at most, what lives where a dive gave up comes in the next: enough to pass what is half as large
/// again, so that a few dives change the order there.
const BLAME: f32 = 0.5;

/// Who is told of progress.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) options: &'a Options<'a>,
    pub(crate) space: usize,
}

impl Told<'_> {
    fn tell(&self, peak: u64, lower_bound: u64, attempts: u64) {
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

/// Packs all items; returns what the peak cannot be below.
pub(crate) fn pack(
    mut rigid: Rigid,
    target: u64,
    mut place: impl FnMut(u32, u64),
    told: &Told<'_>,
    clock: &Clock<'_>,
) -> u64 {
    let mut parts = rigid.cut(told.options.switches.decompose, &mut place);
    let mut goal = target;
    let mut bounds = Vec::with_capacity(parts.len());
    for part in &parts {
        let load = Rigid::load(&rigid.items[part.from..part.to], part.start, part.end);
        bounds.push(part.base + load.iter().max().copied().unwrap_or(0));
        goal = goal.max(bounds[bounds.len() - 1]);
    }
    let mut lower = bounds.iter().max().copied().unwrap_or(0);
    // The fullest part first: what it cannot reach, the others need not.
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|part| std::cmp::Reverse(bounds[*part]));
    for index in order {
        let part = &mut parts[index];
        let Part {
            from,
            to,
            start,
            end,
            base,
        } = *part;
        let items = &mut rigid.items[from..to];
        for item in &mut *items {
            item.start -= start;
            item.end -= start;
        }
        let load = Rigid::load(items, 0, end - start);
        let job = Job {
            items,
            load: &load,
            target: goal - base,
            told,
            clock,
            base,
        };
        let done = job.solve();
        goal = goal.max(base + done.peak);
        lower = lower.max(base + done.lower);
        for (&buffer, &offset) in rigid.buffers[from..to].iter().zip(&done.offsets) {
            place(buffer, base + offset);
        }
    }
    lower
}

/// One part and what is wanted of it.
struct Job<'a> {
    items: &'a [Item],
    load: &'a [u64],
    /// A peak that is low enough.
    target: u64,
    told: &'a Told<'a>,
    clock: &'a Clock<'a>,
    base: u64,
}

/// What came of it.
struct Done {
    offsets: Vec<u64>,
    peak: u64,
    lower: u64,
}

impl Job<'_> {
    fn solve(&self) -> Done {
        let options = self.told.options;
        let switches = options.switches;
        let lower = self.load.iter().max().copied().unwrap_or(0);
        let mut done = Done {
            offsets: vec![0; self.items.len()],
            peak: u64::MAX,
            lower,
        };
        if self.items.len() == 1 {
            done.peak = self.items[0].size;
            return done;
        }
        let mut dive = Dive::new(self.items, self.load);
        let exact = switches.exact && self.items.len() <= MOST_EXACT;
        let mut rules: Vec<Rule> = RULES.to_vec();
        rules.retain(|rule| switches.tightest || !rule.tightest);
        if !switches.dive {
            rules.truncate(1);
        } else if exact && self.items.len() <= SMALL {
            rules.truncate(2);
        }
        let never = Clock::never();
        for (rule, attempt) in rules.iter().zip(1..) {
            // The first dive is carried through whatever the clock says: an answer there must be.
            let clock = if attempt == 1 { &never } else { self.clock };
            if clock.is_over() {
                break;
            }
            if let Some(peak) = dive.run(self.target, done.peak, *rule, |_| 0.0, clock) {
                done.peak = peak;
                done.offsets.copy_from_slice(&dive.offsets);
                self.told.tell(self.base + peak, self.base + lower, attempt);
            }
            if done.peak <= self.target {
                return done;
            }
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
        if switches.blame && switches.dive {
            self.blame(&mut dive, &mut done);
        }
        done
    }

    /// The complete search, with restarts, on all threads.
    fn search(&self, done: &mut Done) {
        let options = self.told.options;
        let goal = exact::Goal {
            target: self.target,
            peak: done.peak,
            lower: done.lower,
        };
        let tell = |peak: u64, lower: u64, attempts: u64| {
            self.told
                .tell(self.base + peak, self.base + lower, attempts);
        };
        let found = exact::search(
            self.items,
            self.load.len(),
            goal,
            options,
            self.clock,
            &tell,
        );
        done.lower = found.lower;
        if let Some(offsets) = found.offsets {
            done.offsets = offsets;
            done.peak = found.peak;
        }
    }

    /// Windows of time planned anew.
    fn improve(&self, done: &mut Done) {
        let seed = self.told.options.seed;
        let lower = self.base + done.lower;
        let tell = |peak: u64| self.told.tell(self.base + peak, lower, 0);
        done.peak = improve(
            self.items,
            &mut done.offsets,
            self.target,
            seed,
            self.clock,
            tell,
        );
    }

    /// Dives again and again. What lives where a dive gave up comes earlier in the next ones.
    fn blame(&self, dive: &mut Dive<'_>, done: &mut Done) {
        let options = self.told.options;
        let switches = options.switches;
        let mut random = Random::new(options.seed);
        let mut boost = vec![0.0_f32; self.items.len()];
        let rules: Vec<Rule> = RULES
            .iter()
            .copied()
            .filter(|rule| switches.tightest || !rule.tightest)
            .collect();
        for attempt in 0..options.attempts {
            if self.clock.is_over() || done.peak <= self.target {
                return;
            }
            // A rule is kept for some rounds, so that blame can work on it.
            let rule = rules[(attempt / ROUNDS) as usize % rules.len()];
            if attempt % ROUNDS == 0 {
                boost.fill(0.0);
            }
            let noise = if switches.noise { 0.05 } else { 0.0 };
            let moved = |item: u32| boost[item as usize] + noise * random.unit();
            if let Some(peak) = dive.run(self.target, done.peak, rule, moved, self.clock) {
                done.peak = peak;
                done.offsets.copy_from_slice(&dive.offsets);
                let (peak, lower) = (self.base + peak, self.base + done.lower);
                self.told.tell(peak, lower, attempt);
                // A new plan has other windows.
                if switches.windows {
                    self.improve(done);
                }
                continue;
            }
            let (start, end) = dive.trouble;
            for (item, boost) in self.items.iter().zip(&mut boost) {
                if item.start < end && start < item.end {
                    *boost += BLAME * random.unit();
                }
            }
        }
    }
}
