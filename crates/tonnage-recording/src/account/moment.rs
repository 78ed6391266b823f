// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is on a device at one moment, and the moments that an account remembers.

use serde::Serialize;

use crate::{StackId, TextId};

/// The memory on a device at one moment. The parts make up `used`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Breakdown {
    /// Bytes of blocks PyTorch handed out.
    pub allocated: u64,
    /// Bytes PyTorch holds from the driver without having handed them out.
    pub cached: u64,
    /// Bytes of the context.
    pub context: u64,
    /// Bytes obtained from the driver by others than PyTorch's allocator.
    pub other: u64,
    /// The sum: what the device charges to this process.
    pub used: u64,
    /// Bytes of managed memory, which moves between host and device: no part of the sum.
    pub managed: u64,
    /// Bytes the device charges to other processes of the run: no part of the sum.
    pub other_processes: u64,
}

/// The most there was after a request that was refused, which the program went on without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AfterOom {
    /// Bytes the device charged to all processes, as far as the recording has them.
    pub in_use: u64,
    /// Bytes in blocks.
    pub allocated: u64,
}

/// A moment with what was on the device then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moment {
    /// The row after which it is, from 0.
    pub row: u64,
    /// The time of that row, if it has one.
    pub time: Option<i64>,
    /// The memory at that moment.
    pub breakdown: Breakdown,
    /// Bytes PyTorch held from the driver by its own rows.
    pub reserved: u64,
}

/// A request that was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Bytes requested.
    pub requested: u64,
    /// Bytes the driver had left.
    pub free: u64,
    /// Where it was requested.
    pub stack: Option<StackId>,
    /// The stream it was requested on.
    pub stream: u64,
    /// The call, in refusals of the driver.
    pub call: Option<TextId>,
    /// When.
    pub moment: Moment,
    /// Whether nothing was handed out to this process on this device since: by PyTorch for PyTorch's, by anyone for
    /// the driver's.
    pub is_last: bool,
}

/// A largest value and the row that reached it first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peak {
    /// Bytes.
    pub bytes: u64,
    /// The row.
    pub row: u64,
}

/// The figures of a moment, from which a [`Breakdown`] follows.
///
/// Kept instead of it because a later row may show that a piece of memory was PyTorch's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) row: u64,
    pub(super) time: Option<i64>,
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    /// PyTorch's by the driver's rows.
    pub(super) torch: u64,
    pub(super) context: u64,
    /// The charge of the device, and whether the recording itself reports it.
    pub(super) charged: u64,
    pub(super) is_told: bool,
    pub(super) managed: u64,
    pub(super) others: u64,
}

impl Figures {
    pub(super) fn used(&self) -> u64 {
        self.breakdown().used
    }

    pub(super) fn in_use(&self) -> u64 {
        self.used().saturating_add(self.others)
    }

    pub(super) fn breakdown(&self) -> Breakdown {
        // Allocated bytes are held, also where their segment is not recorded.
        let held = self.reserved.max(self.allocated).max(self.torch);
        let used = if self.is_told {
            self.charged
        } else {
            self.charged.max(self.context.saturating_add(held))
        };
        // Rows that contradict the device's own figure do not change it.
        let context = self.context.min(used);
        let held = held.min(used - context);
        let allocated = self.allocated.min(held);
        Breakdown {
            allocated,
            cached: held - allocated,
            context,
            other: used - context - held,
            managed: self.managed,
            used,
            other_processes: self.others,
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            row: self.row,
            time: self.time,
            breakdown: self.breakdown(),
            reserved: self.reserved,
        }
    }
}

/// A sum with an unknown start: its changes, and the most they added up to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    pub(super) now: i128,
    pub(super) most: i128,
    pub(super) most_row: u64,
}

impl Level {
    /// Adds bytes; whether it is higher than ever.
    pub(super) fn add(&mut self, bytes: u64, row: u64) -> bool {
        self.now += i128::from(bytes);
        let is_higher = self.now > self.most;
        if is_higher {
            self.most = self.now;
            self.most_row = row;
        }
        is_higher
    }

    pub(super) fn subtract(&mut self, bytes: u64) {
        self.now -= i128::from(bytes);
    }
}
