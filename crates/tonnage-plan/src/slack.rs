// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much each section may still waste: a tree of minima over sections.
//!
//! Placing an item on the floor moves bytes from "still to come" to "below" and leaves the slack as it is; only raising
//! a floor over nothing takes from it. The tree is therefore queried often and changed only where bytes are lost.

/// Minima of ranges, with additions that stay where they were made.
#[derive(Debug)]
pub(crate) struct Slack {
    /// Sections, rounded up to a power of two.
    width: usize,
    /// For each node the least slack below it, and what was added to all of it.
    nodes: Vec<(i64, i64)>,
}

impl Slack {
    pub(crate) fn new(slack: &[i64]) -> Self {
        let width = slack.len().next_power_of_two();
        let mut nodes = vec![(i64::MAX / 4, 0); 2 * width];
        for (node, slack) in nodes[width..].iter_mut().zip(slack) {
            node.0 = *slack;
        }
        for node in (1..width).rev() {
            nodes[node].0 = nodes[2 * node].0.min(nodes[2 * node + 1].0);
        }
        Self { width, nodes }
    }

    /// Takes `loss` from the sections in `from..to` and returns the least that is left there.
    pub(crate) fn lose(&mut self, from: usize, to: usize, loss: i64) -> i64 {
        self.change(1, 0, self.width, from, to, loss)
    }

    fn change(
        &mut self,
        node: usize,
        low: usize,
        high: usize,
        from: usize,
        to: usize,
        loss: i64,
    ) -> i64 {
        if from <= low && high <= to {
            self.nodes[node].0 -= loss;
            self.nodes[node].1 -= loss;
            return self.nodes[node].0;
        }
        let middle = low.midpoint(high);
        let mut least = i64::MAX / 4;
        if from < middle {
            least = least.min(self.change(2 * node, low, middle, from, to, loss));
        }
        if to > middle {
            least = least.min(self.change(2 * node + 1, middle, high, from, to, loss));
        }
        let added = self.nodes[node].1;
        self.nodes[node].0 = self.nodes[2 * node].0.min(self.nodes[2 * node + 1].0) + added;
        least + added
    }

    /// The section in `from..to` with the least slack; the first of several.
    pub(crate) fn tightest(&self, from: usize, to: usize) -> usize {
        let mut best = (i64::MAX, from);
        self.seek(1, 0, self.width, from, to, 0, &mut best);
        best.1
    }

    #[expect(clippy::too_many_arguments, reason = "the way down a tree")]
    fn seek(
        &self,
        node: usize,
        low: usize,
        high: usize,
        from: usize,
        to: usize,
        added: i64,
        best: &mut (i64, usize),
    ) {
        if self.nodes[node].0 + added >= best.0 {
            return;
        }
        if high - low == 1 {
            *best = (self.nodes[node].0 + added, low);
            return;
        }
        let middle = low.midpoint(high);
        let added = added + self.nodes[node].1;
        if from < middle {
            self.seek(2 * node, low, middle, from, to, added, best);
        }
        if to > middle {
            self.seek(2 * node + 1, middle, high, from, to, added, best);
        }
    }
}
