// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exact counts of what the allocator did.

use super::event::SearchStep;
use super::follow::Followed;

/// A number of bytes, and the most it ever was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Level {
    /// Bytes now.
    pub now: u64,
    /// The most there ever were.
    pub peak: u64,
    /// The most there were since peaks were reset.
    pub recent_peak: u64,
}

/// A number of bytes that is being counted. Peaks are computed on request, so that counting is cheap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    pub(super) now: u64,
    /// The most since the last [`fold`](Self::fold).
    high: u64,
    /// The most before it, ever and since peaks were reset.
    peak: u64,
    recent_peak: u64,
}

impl Gauge {
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }

    #[inline]
    pub(super) fn subtract(&mut self, bytes: u64) {
        self.now -= bytes;
    }

    pub(super) fn set(&mut self, bytes: u64) {
        self.now = bytes;
        self.high = self.high.max(bytes);
    }

    /// The most since the last fold, which begins anew.
    pub(super) fn fold(&mut self) -> u64 {
        self.peak = self.peak();
        self.recent_peak = self.recent_peak.max(self.high);
        std::mem::replace(&mut self.high, self.now)
    }

    /// Begins the recent peak anew.
    pub(super) fn reset(&mut self) {
        self.fold();
        self.recent_peak = self.now;
    }

    /// The most since the last fold.
    pub(super) fn high(&self) -> u64 {
        self.high
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.max(self.high)
    }

    pub(super) fn level(&self) -> Level {
        Level {
            now: self.now,
            peak: self.peak(),
            recent_peak: self.recent_peak.max(self.high),
        }
    }
}

/// How often each step of the search for memory was taken, and how often the request was served after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchSteps {
    tried: [u64; SearchStep::ALL.len()],
    helped: [u64; SearchStep::ALL.len()],
}

impl SearchSteps {
    /// How often a step was taken.
    pub fn tried(&self, step: SearchStep) -> u64 {
        self.tried[step as usize]
    }

    /// How often a request was served after it.
    pub fn helped(&self, step: SearchStep) -> u64 {
        self.helped[step as usize]
    }

    pub(super) fn add(&mut self, step: SearchStep) {
        self.tried[step as usize] += 1;
    }

    pub(super) fn add_helped(&mut self, step: SearchStep) {
        self.helped[step as usize] += 1;
    }
}

/// The running counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) requested: Gauge,
    pub(super) allocated: Gauge,
    pub(super) reserved: Gauge,
    /// How many blocks are live.
    pub(super) blocks: Gauge,
    /// Bytes of all blocks ever allocated, as requested and as rounded.
    pub(super) requested_ever: u64,
    pub(super) allocated_ever: u64,
    /// The most that live blocks had in memory, until something was last paused or resumed.
    pub(super) most_in_memory: u64,
    pub(super) served: u64,
    pub(super) refused: u64,
    pub(super) misses: u64,
    pub(super) retries: u64,
    pub(super) search_steps: SearchSteps,
}

/// The state of the allocator and its work so far. Every number is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes of live blocks, as the program requested them.
    pub requested: Level,
    /// Bytes of live blocks. A block whose free waits for a stream counts.
    pub allocated: Level,
    /// Bytes held from the device, all of it mapped.
    pub reserved: Level,
    /// Bytes of live blocks that have no memory, because they are paused; they count as allocated.
    pub paused: u64,
    /// Live blocks; those whose free waits count.
    pub blocks: u64,
    /// The most there were since peaks were reset.
    pub blocks_recent_peak: u64,
    /// Bytes of all blocks ever allocated, as the program requested them.
    pub requested_ever: u64,
    /// Bytes of all blocks that were ever handed out.
    pub allocated_ever: u64,
    /// Blocks whose free waits for a stream.
    pub pending: u64,
    /// Requests that were served.
    pub served: u64,
    /// Requests that were not, because there was no memory.
    pub refused: u64,
    /// Requests that no free block could serve, so that the device was called.
    pub misses: u64,
    /// Pieces of physical memory that were obtained.
    pub pages_created: u64,
    /// Pieces that were given back.
    pub pages_released: u64,
    /// Pieces that were moved from unused places to where they were needed.
    pub pages_moved: u64,
    /// Events that were recorded to learn how far a stream is.
    pub events_recorded: u64,
    /// How often work of a stream was waited for.
    pub waits: u64,
    /// How often everything was waited for to serve a request.
    pub retries: u64,
    /// The steps of the search for memory.
    pub search_steps: SearchSteps,
    /// How far the program was as planned, if there is a plan.
    pub plan: Option<Followed>,
}
