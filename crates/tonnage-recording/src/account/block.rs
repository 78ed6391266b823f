// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks and segments as an account knows them, and what one row did to them.

use crate::{Pool, StackId};

/// No sum is larger: what a hostile recording claims beyond it is not counted, so that no sum of sums overflows.
pub const ABSURD: u64 = 1 << 60;

/// How a block's size follows from its request where the recording has only the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Up to a multiple of 512 bytes, the least PyTorch does.
    #[default]
    PyTorch,
    /// Not at all.
    Exact,
}

impl Rounding {
    /// The rounding of recordings with this [`meta::SOURCE`](crate::meta::SOURCE); none means tonnage itself.
    pub fn of_source(source: Option<&str>) -> Self {
        if source.is_none_or(|source| source.starts_with("pytorch")) {
            Self::PyTorch
        } else {
            Self::Exact
        }
    }

    /// Bytes a block takes, at least; and whether the recording has them.
    pub fn taken(self, size: u64, requested: u64) -> (u64, bool) {
        match self {
            _ if size > 0 => (size, true),
            Self::PyTorch => {
                let rounded = requested.checked_next_multiple_of(512);
                (rounded.unwrap_or(requested), false)
            }
            Self::Exact => (requested, false),
        }
    }
}

/// The use of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockState {
    /// The program has it.
    #[default]
    Allocated,
    /// The program freed it and another stream may still use it.
    PendingFree,
    /// Nobody uses it; only in a final state.
    Inactive,
}

impl BlockState {
    /// The state with PyTorch's name for it.
    pub fn from_name(name: &str) -> Self {
        match name {
            "active_allocated" => Self::Allocated,
            "" | "inactive" => Self::Inactive,
            _ => Self::PendingFree,
        }
    }

    /// PyTorch's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::PendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// A block of PyTorch's allocator. `T` is what the reader of the account notes down beside each live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block<T = ()> {
    /// First byte.
    pub address: u64,
    /// Bytes it takes: as recorded, else its request rounded.
    pub bytes: u64,
    /// Whether `bytes` is recorded.
    pub size_known: bool,
    /// Bytes the program requested; 0 if the recording does not have them.
    pub requested: u64,
    /// The stream it was requested on.
    pub stream: u64,
    /// Its pool, if the recording has it.
    pub pool: Option<Pool>,
    /// Where it was requested.
    pub stack: Option<StackId>,
    /// The row that handed it out; `None` if it was there before the first row.
    pub born: Option<u64>,
    /// Its use.
    pub state: BlockState,
    /// The reader's own note.
    pub tag: T,
}

/// Memory that PyTorch holds from the driver: a segment, or a mapped part of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of the requests in it, in states that were recorded whole; else 0.
    pub requested: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// Its pool, if the recording has it.
    pub pool: Option<Pool>,
    /// Where it was obtained.
    pub stack: Option<StackId>,
    /// Whether it is for large blocks.
    pub is_large: bool,
    /// Whether it is (part of) an expandable segment.
    pub is_expandable: bool,
    /// The row that obtained it; `None` if it was there before the first row.
    pub born: Option<u64>,
}

impl Segment {
    /// The byte after its last.
    pub const fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Whether `next` continues this mapped run of an expandable segment, as PyTorch shows it.
    pub fn continues_in(&self, next: &Self) -> bool {
        self.is_expandable
            && next.is_expandable
            && self.end() == next.address
            && (self.stream, self.pool, self.is_large) == (next.stream, next.pool, next.is_large)
    }
}

/// A segment of the state after the last row, with its blocks, as the recording has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalSegment {
    /// The segment.
    pub segment: Segment,
    /// Its blocks, free ones included, in the order of the recording.
    pub blocks: Vec<Block>,
}

/// The effect of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T = ()> {
    /// Nothing that an account keeps.
    Nothing,
    /// A block was handed out.
    Allocated {
        /// The block.
        block: Block<T>,
        /// The one that had this address: its free is not recorded, or had not completed.
        replaced: Option<Block<T>>,
    },
    /// The program freed a block; it counts no more.
    Freed {
        /// The block; its state is what it was before. If no row had handed it out, `born` is `None`.
        block: Block<T>,
        /// Whether it now waits for [`Change::Completed`].
        is_pending: bool,
    },
    /// A freed block became free.
    Completed {
        /// The block, in the state it had before: [`BlockState::Allocated`] if no row had freed it. `None` if no
        /// row had handed it out or freed it.
        block: Option<Block<T>>,
    },
    /// A row about a block that contradicts the rows before it: it was freed twice.
    Contradicted {
        /// The block.
        block: Block<T>,
    },
    /// A segment, or a part of an expandable one, was obtained.
    Obtained {
        /// The segment.
        segment: Segment,
        /// Segments that held its range, whole: rows of theirs are missing. Empty in a sound recording.
        gone: Vec<Segment>,
        /// The parts that are left of these segments.
        left: Vec<Segment>,
    },
    /// Segments were given back, or parts of them.
    GivenBack {
        /// The range, as the row has it.
        range: Segment,
        /// The segments in the range, whole, before the row; empty if no row had obtained it.
        gone: Vec<Segment>,
        /// The parts that are left of them.
        left: Vec<Segment>,
    },
    /// The device charged or gave back memory.
    Charged,
    /// PyTorch ran out of memory and raised an error in the program.
    OutOfMemory,
    /// The driver refused a request.
    Refused,
    /// A segment of the state before the first row.
    InitialSegment {
        /// The segment.
        segment: Segment,
        /// Segments that held its range, as in [`Change::Obtained`].
        gone: Vec<Segment>,
        /// The parts that are left of these segments.
        left: Vec<Segment>,
    },
    /// A block of the state before the first row that is in use.
    InitialBlock {
        /// The block.
        block: Block<T>,
        /// The one that had this address.
        replaced: Option<Block<T>>,
    },
    /// Part of the state after the last row, or a block before the first that is not in use.
    State,
}
