// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exact counts of what the allocator did.

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

impl Level {
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
        self.recent_peak = self.recent_peak.max(self.now);
    }

    #[inline]
    pub(super) fn subtract(&mut self, bytes: u64) {
        self.now -= bytes;
    }

    pub(super) fn set(&mut self, bytes: u64) {
        self.now = bytes;
        self.peak = self.peak.max(bytes);
        self.recent_peak = self.recent_peak.max(bytes);
    }
}

/// What the allocator has and what it did so far. Every number is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes of live blocks, as the program asked for them.
    pub requested: Level,
    /// Bytes of live blocks. A block whose free waits for a stream counts.
    pub allocated: Level,
    /// Bytes held from the device, all of it mapped.
    pub reserved: Level,
    /// Live blocks; those whose free waits count.
    pub blocks: u64,
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
    /// Pieces that were taken from where nobody used them and put where they were needed.
    pub pages_moved: u64,
    /// Events that were recorded to learn how far a stream is.
    pub events_recorded: u64,
    /// How often work of a stream was waited for.
    pub waits: u64,
    /// How often everything was waited for to serve a request.
    pub retries: u64,
    /// How far the program was as planned, if there is a plan.
    pub plan: Option<Followed>,
}
