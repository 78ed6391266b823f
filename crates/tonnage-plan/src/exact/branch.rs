// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branching: which section is decided next, and what is tried there.

use super::height::Height;
use super::search::{Part, Prefer, Search};

impl<H: Height> Search<'_, H> {
    /// The section to decide, and the level of its floor if nothing covers it there; pushes the items that could.
    pub(super) fn choose(&mut self, part: &Part<H>) -> Option<(usize, Option<H>)> {
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
                    if self.config.failure_weights {
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
        // An item that crosses a wall can support others too.
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
        if !self.config.limited_branching {
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
            let (size, lifetime) = (item.size.real(), (item.end - item.start) as f32);
            let mut score = match self.config.prefer {
                Prefer::Size => size,
                Prefer::Lifetime => lifetime,
                Prefer::Area => size * lifetime,
                Prefer::Bulk => size * size * lifetime,
            };
            if self.config.noise > 0.0 {
                score *= 1.0 + self.config.noise * self.random.unit();
            }
            self.options.push((score, index));
        }
        self.options[first..]
            .sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    }
}
