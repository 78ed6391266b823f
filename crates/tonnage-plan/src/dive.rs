// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constructive search: fills the valleys of the skyline from below, without ever going back.
//!
//! The skyline is the floor of each section: everything below it is decided. A valley is a run of sections on one level
//! between higher walls. The items that live within it can lie on its floor; the dive takes the best of these by a
//! rule, preferably one that covers the section with the least slack, and where there is none it raises the floor to
//! the lower wall, which wastes bytes. Work in one valley does not depend on the others until a wall between them
//! falls; so the dive always goes downhill from where it is, which keeps it in one part of memory, and a dive over ten
//! million items costs about as much for each as one over ten thousand.

use crate::options::Clock;
use crate::rigid::Item;
use crate::slack::Slack;
use crate::tree::{Area, Tree};

const NONE: u32 = u32::MAX;

/// Which item is taken first: the one with the greatest `size^size_power * lifetime^lifetime_power`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) size_power: f32,
    pub(crate) lifetime_power: f32,
    /// Whether items that cover the tightest section come first.
    pub(crate) tightest: bool,
}

const fn rule(size_power: f32, lifetime_power: f32, tightest: bool) -> Rule {
    Rule {
        size_power,
        lifetime_power,
        tightest,
    }
}

/// The rules, in the order in which they are tried.
pub(crate) const RULES: [Rule; 14] = [
    rule(1.0, 1.0, false),
    rule(1.0, 2.0, true),
    rule(2.0, 1.0, true),
    rule(1.0, 4.0, false),
    rule(4.0, 1.0, true),
    rule(1.0, 1.0, true),
    rule(1.0, 2.0, false),
    rule(1.0, 0.0, true),
    rule(0.0, 1.0, true),
    rule(1.0, 4.0, true),
    rule(4.0, 1.0, false),
    rule(1.0, 0.5, true),
    rule(0.5, 1.0, true),
    rule(1.0, 0.0, false),
];

/// A level part of the skyline.
#[derive(Clone, Copy, Debug)]
struct Step {
    start: u32,
    end: u32,
    floor: u64,
    left: u32,
    right: u32,
}

/// A dive that can be repeated under other rules.
#[derive(Debug)]
pub(crate) struct Dive<'a> {
    items: &'a [Item],
    load: &'a [u64],
    tree: Tree,
    steps: Vec<Step>,
    free: Vec<u32>,
    pub(crate) offsets: Vec<u64>,
    /// The sections in which the last dive failed.
    pub(crate) failed_sections: (u32, u32),
}

impl<'a> Dive<'a> {
    pub(crate) fn new(items: &'a [Item], load: &'a [u64]) -> Self {
        Self {
            items,
            load,
            tree: Tree::new(items),
            steps: Vec::new(),
            free: Vec::new(),
            offsets: vec![0; items.len()],
            failed_sections: (0, 0),
        }
    }

    /// Dives; the peak, unless it would not be below `give_up`.
    pub(crate) fn run(
        &mut self,
        target: u64,
        give_up: u64,
        rule: Rule,
        mut boost: impl FnMut(u32) -> f32,
        clock: &Clock<'_>,
    ) -> Option<u64> {
        let items = self.items;
        self.tree.fill(|item| {
            let it = &items[item as usize];
            let mut key = rule.size_power * (it.size as f32).ln()
                + rule.lifetime_power * ((it.end - it.start) as f32).ln();
            key += boost(item);
            key
        });
        let sections = self.load.len() as u32;
        let mut slack = rule.tightest.then(|| {
            let slack: Vec<i64> = self
                .load
                .iter()
                .map(|load| target as i64 - *load as i64)
                .collect();
            Slack::new(&slack)
        });
        let most_lost = (give_up - 1).min(i64::MAX as u64) as i64 - target as i64;
        self.steps.clear();
        self.free.clear();
        self.steps.push(Step {
            start: 0,
            end: sections,
            floor: 0,
            left: NONE,
            right: NONE,
        });
        let mut now = 0_u32;
        let mut peak = 0;
        let mut left_items = items.len();
        loop {
            let step = self.steps[now as usize];
            let left = self.floor(step.left);
            let right = self.floor(step.right);
            if left < step.floor {
                now = step.left;
                continue;
            }
            if right < step.floor {
                now = step.right;
                continue;
            }
            // A valley.
            let mut found = None;
            if let Some(slack) = &slack {
                let t = slack.tightest(step.start as usize, step.end as usize) as u32;
                found = self.tree.take(Area {
                    start: (step.start, t),
                    end: (t + 1, step.end),
                });
            }
            if found.is_none() {
                found = self.tree.take(Area {
                    start: (step.start, step.end),
                    end: (step.start, step.end),
                });
            }
            if let Some(item) = found {
                let it = &items[item as usize];
                self.offsets[item as usize] = step.floor;
                let top = step.floor + it.size;
                peak = peak.max(top);
                if peak >= give_up {
                    self.failed_sections = (it.start, it.end);
                    return None;
                }
                left_items -= 1;
                if left_items.is_multiple_of(4096) && clock.is_over() {
                    return None;
                }
                if left_items == 0 {
                    return Some(peak);
                }
                now = self.place(now, it.start, it.end, top);
                continue;
            }
            let wall = left.min(right);
            if wall == u64::MAX {
                return Some(peak);
            }
            if let Some(slack) = &mut slack {
                let lost = (wall - step.floor) as i64;
                if slack.lose(step.start as usize, step.end as usize, lost) < -most_lost {
                    self.failed_sections = (step.start, step.end);
                    return None;
                }
            }
            self.steps[now as usize].floor = wall;
            self.merge(now);
        }
    }

    fn floor(&self, step: u32) -> u64 {
        self.steps
            .get(step as usize)
            .map_or(u64::MAX, |step| step.floor)
    }

    fn make(&mut self, step: Step) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.steps[slot as usize] = step;
            return slot;
        }
        self.steps.push(step);
        self.steps.len() as u32 - 1
    }

    /// Joins a step with neighbours of the same level.
    fn merge(&mut self, now: u32) {
        let mut step = self.steps[now as usize];
        if self.floor(step.left) == step.floor {
            let gone = step.left;
            let other = self.steps[gone as usize];
            step.start = other.start;
            step.left = other.left;
            if other.left != NONE {
                self.steps[other.left as usize].right = now;
            }
            self.free.push(gone);
        }
        if self.floor(step.right) == step.floor {
            let gone = step.right;
            let other = self.steps[gone as usize];
            step.end = other.end;
            step.right = other.right;
            if other.right != NONE {
                self.steps[other.right as usize].left = now;
            }
            self.free.push(gone);
        }
        self.steps[now as usize] = step;
    }

    /// Puts a new level on part of a step; returns where to go on.
    fn place(&mut self, now: u32, start: u32, end: u32, top: u64) -> u32 {
        let step = self.steps[now as usize];
        let mut next = now;
        if end < step.end {
            let rest = self.make(Step {
                start: end,
                end: step.end,
                floor: step.floor,
                left: now,
                right: step.right,
            });
            if step.right != NONE {
                self.steps[step.right as usize].left = rest;
            }
            self.steps[now as usize].right = rest;
            self.steps[now as usize].end = end;
            next = rest;
        }
        if start > step.start {
            let rest = self.make(Step {
                start: step.start,
                end: start,
                floor: step.floor,
                left: step.left,
                right: now,
            });
            if step.left != NONE {
                self.steps[step.left as usize].right = rest;
            }
            self.steps[now as usize].left = rest;
            self.steps[now as usize].start = start;
            next = rest;
        }
        self.steps[now as usize].floor = top;
        self.merge(now);
        next
    }
}
