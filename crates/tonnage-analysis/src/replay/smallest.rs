// SPDX-License-Identifier: MIT OR Apache-2.0
//! The smallest device on which a recording completes, by bisection.
//!
//! A larger device need not be better: a retry empties the cache, and what is
//! obtained afterwards may lie better than what was kept. So the answer is a
//! size that was replayed and completes while the next smaller one does not,
//! and sizes below it are tried as well, as many as the length of the recording
//! allows; if one completes, the search goes on below it, and the answer states
//! that the question has no single boundary.

use tonnage_alloc::GRANULARITY;

use super::alloc::Alloc;
use super::report::{Replayed, Smallest};
use super::track::{LARGEST, Track};

/// How many sizes below a boundary are tried at least and at most.
const PROBES: (u64, u64) = (3, 32);
/// Requests that may be replayed for these tries, in all.
const REQUESTS: u64 = 4_000_000;
/// How often the search goes on below a boundary.
const ROUNDS: u32 = 4;

impl Track {
    /// How much of the device the overhead may take while every request is still served, with `taken` bytes
    /// held by others; none if they are not served even without it. The search ends at `enough`.
    pub(crate) fn room(&self, alloc: &Alloc, taken: u64, enough: u64) -> Option<u64> {
        let total = self.capacity.saturating_sub(taken);
        let replayed = self.replay(alloc, total, false);
        if !replayed.completes() {
            return None;
        }
        let used = self
            .context
            .saturating_add(self.requests.peak_outside)
            .saturating_add(replayed.peak_reserved);
        let free = total.saturating_sub(used);
        if free >= enough {
            return Some(free);
        }
        // Cached memory is given back where it is needed.
        if self
            .replay(alloc, total.saturating_sub(enough), false)
            .completes()
        {
            return Some(enough);
        }
        let smallest = self.smallest(alloc, &replayed)?;
        Some(free.max(total.saturating_sub(smallest.bytes)))
    }

    /// The smallest device above one of `refused` bytes, on which the recording does not complete. There may be smaller
    /// ones on which it does; but after a failure the user requests more.
    pub(crate) fn smallest_above(&self, alloc: &Alloc, refused: u64) -> Option<u64> {
        let completes = |pieces: u64| self.replay(alloc, pieces * GRANULARITY, false).completes();
        let mut low = refused / GRANULARITY;
        let mut high = low + 1;
        while !completes(high) {
            if high > LARGEST / GRANULARITY {
                return None;
            }
            // By ever larger steps: the answer is seldom far.
            (low, high) = (high, high + 2 * (high - refused / GRANULARITY));
        }
        (_, high) = bisected(low, high, completes);
        Some(high * GRANULARITY)
    }

    /// Looks for the smallest device; `None` if it completes on none.
    pub(crate) fn smallest(&self, alloc: &Alloc, base: &Replayed) -> Option<Smallest> {
        let mut tried = 0;
        let mut completes = |pieces: u64| {
            tried += 1;
            self.replay(alloc, pieces * GRANULARITY, false).completes()
        };
        let pieces = |bytes: u64| bytes.div_ceil(GRANULARITY);
        // One piece less than this cannot hold what is alive.
        let least = pieces(self.context.saturating_add(self.requests.peak_live));
        let needed = self
            .context
            .saturating_add(self.requests.peak_outside)
            .saturating_add(base.peak_reserved);
        let mut high = pieces(needed).max(least);
        loop {
            if high > pieces(LARGEST) {
                return None;
            }
            if completes(high) {
                break;
            }
            high *= 2;
        }
        let mut low = least.saturating_sub(1);
        let mut monotone = true;
        let mut rounds = ROUNDS;
        let requests = self.requests.ops.len().max(1) as u64;
        let probes = (REQUESTS / requests).clamp(PROBES.0, PROBES.1);
        loop {
            (low, high) = bisected(low, high, &mut completes);
            let floor = least.saturating_sub(1);
            let gap = (high - floor) / (probes + 1);
            let lower = (1..=probes)
                .map(|step| floor + gap * step)
                .find(|&size| gap > 1 && size > floor && size < low && completes(size));
            match lower {
                Some(size) if rounds > 0 => {
                    monotone = false;
                    rounds -= 1;
                    (low, high) = (floor, size);
                }
                _ => break,
            }
        }
        Some(Smallest {
            bytes: high * GRANULARITY,
            tried,
            monotone,
        })
    }
}

/// Two neighbours between `low`, which does not complete, and `high`, which does.
fn bisected(mut low: u64, mut high: u64, mut completes: impl FnMut(u64) -> bool) -> (u64, u64) {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if completes(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    (low, high)
}
