// SPDX-License-Identifier: MIT OR Apache-2.0
//! One row of a recording, in memory.
//!
//! A flat `Copy` struct of some hundred bytes instead of an enum with a variant per kind: replay reads the
//! same five fields of nearly every row, and a reader can fill it without allocating. Fields a kind does not
//! use are zero; what may be unknown in any row is an `Option`. Texts and stacks are ids into a
//! [`StackTable`](crate::StackTable), so an event stays small however deep its stack is.

use crate::{Kind, StackId, TextId};

/// Id of an allocator pool: PyTorch's pair of numbers. `(0, 0)` is the default pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pool {
    /// First number: the graph capture that owns the pool.
    pub first: u32,
    /// Second number: the `MemPool` or pool handle the user made.
    pub second: u32,
}

/// When the device used a block: launches, copies and calls of libraries. Distances are in rows of the recording
/// without facts and frames; a use comes after its row and before the next of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uses {
    /// How many.
    pub count: u32,
    /// From the row that handed the block out to the first use.
    pub first: u32,
    /// From the last use to the row that has this; 0 if there is none.
    pub last: u32,
    /// From the first use after the moment at which the process had most allocated on the device, to the row that has
    /// this; 0 if there is none.
    pub next: u32,
}

/// One thing that happened, or one part of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub kind: Kind,
    /// Which process, numbered by the recorder from 0 (not the operating system's id; that is a `meta` fact).
    pub process: u32,
    /// Index of the GPU; -1 is pinned host memory.
    pub device: i32,
    /// Nanoseconds since the Unix epoch; `None` if the recording has no clock.
    pub time: Option<i64>,
    /// Handle of the stream, 0 for the default stream.
    pub stream: u64,
    /// First byte of the range.
    pub address: u64,
    /// Bytes (see the kind for which), or a count for [`Kind::Unmodelled`].
    pub size: u64,
    /// Bytes the program requested, in kinds that distinguish them from `size`.
    pub requested: u64,
    /// Bytes the driver had left, in [`Kind::Oom`] and [`Kind::DriverOom`].
    pub free: u64,
    /// The driver's handle of physical memory, in `driver_create`, `driver_release` and `driver_map`.
    pub handle: u64,
    /// Bytes the device has charged to this process after the call, in rows of the driver; `None` if not recorded.
    pub charged: Option<u64>,
    /// Bytes the device has charged to all processes after the call, in rows of the driver; `None` if not recorded.
    pub in_use: Option<u64>,
    /// When the device used the block, in rows that end it and in [`Kind::Used`]; `None` if not recorded.
    pub uses: Option<Uses>,
    /// The pool; `None` if the recording does not have it.
    pub pool: Option<Pool>,
    /// Where it happened, innermost frame.
    pub stack: Option<StackId>,
    /// A name: see the kind; in PyTorch's own events the compile context.
    pub name: Option<TextId>,
    /// A text: see the kind; in PyTorch's own events the user metadata.
    pub text: Option<TextId>,
}

impl Event {
    /// An event of this kind with every other field zero or unknown.
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            process: 0,
            device: 0,
            time: None,
            stream: 0,
            address: 0,
            size: 0,
            requested: 0,
            free: 0,
            handle: 0,
            charged: None,
            in_use: None,
            uses: None,
            pool: None,
            stack: None,
            name: None,
            text: None,
        }
    }
}
