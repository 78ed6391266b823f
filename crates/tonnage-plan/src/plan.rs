// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer: offsets, how good they are, and what is proved about them.

use crate::problem::BufferId;

/// The status of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// No plan has a lower peak, or costs less where there are several spaces: proved.
    Optimal,
    /// It fits; a lower peak was not requested, or not excluded.
    Fits,
    /// No plan fits into the capacity: proved. The offsets are those of the best plan that ignores the capacity.
    Infeasible,
    /// No plan that fits was found, and none was excluded. The offsets are the best that was found.
    Unknown,
}

/// Buffers that cannot live together, so that a capacity does not suffice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// In which space.
    pub space: usize,
    /// A moment when all of them live; `None` if there is none and only all of their places together do not fit.
    pub moment: Option<i64>,
    /// Which they are, largest first.
    pub buffers: Vec<BufferId>,
    /// The bytes that they need together at that moment, or at least.
    pub bytes: u64,
    /// Whether no smaller set is in conflict (at one moment), or no buffer can be left out (otherwise).
    pub smallest: bool,
}

/// The plan of one space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpacePlan {
    /// The highest byte in use, plus one.
    pub peak: u64,
    /// No plan of the buffers in this space has a lower peak.
    pub lower_bound: u64,
    /// A moment when that many bytes are needed.
    pub moment: Option<i64>,
    /// Its status.
    pub status: Status,
}

/// Where each buffer lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The offset of each buffer, by [`BufferId::index`].
    pub offsets: Vec<u64>,
    /// The space of each buffer, in the same order; empty if there is only one space.
    pub spaces: Vec<u16>,
    /// The plan of each space.
    pub parts: Vec<SpacePlan>,
    /// The cost of all buffers at their places.
    pub cost: u128,
    /// The status of the whole.
    pub status: Status,
    /// Why the capacity does not suffice, if that is proved.
    pub conflict: Option<Conflict>,
}

impl Plan {
    /// The offset of a buffer.
    ///
    /// # Panics
    /// If the planned problem has no such buffer.
    pub fn offset(&self, buffer: BufferId) -> u64 {
        self.offsets[buffer.index()]
    }

    /// The space that a buffer lies in.
    pub fn space(&self, buffer: BufferId) -> usize {
        self.spaces
            .get(buffer.index())
            .map_or(0, |space| usize::from(*space))
    }

    /// The peak of the first space.
    pub fn peak(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.peak)
    }

    /// The lower bound of the first space.
    pub fn lower_bound(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.lower_bound)
    }

    /// How far the peak is above the lower bound, as a share of the bound.
    pub fn gap(&self) -> f64 {
        let bound = self.lower_bound();
        if bound == 0 {
            return 0.0;
        }
        (self.peak() - bound) as f64 / bound as f64
    }
}
