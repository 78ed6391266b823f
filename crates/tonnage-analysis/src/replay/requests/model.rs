// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations, and the other facts of a recording.

use serde::Serialize;
use tonnage_alloc::StreamId;
use tonnage_alloc::torch::{BlockState, PoolId};

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum OpKind {
    /// Request `bytes` into the slot.
    Alloc,
    /// Free the slot; nothing delays it.
    Free,
    /// Free the slot, which other streams delay until [`OpKind::FreeNow`].
    FreeLater,
    /// Nothing delays the slot's free any more.
    FreeNow,
    /// The program calls `empty_cache`, or gives up the lane's pool if that is a private one.
    Release,
    /// The same, or the work of the request that follows.
    MaybeRelease,
    /// Nobody uses the lane's private pool from now on.
    PoolDone,
    /// A request that the recorded allocator could not serve; the program went on.
    Failed,
    /// A request that could not be served, after which nothing was requested.
    FailedLast,
    /// Others than the allocator hold `bytes` from now on.
    Outside,
    /// Nothing; what stood here was explained otherwise.
    Nothing,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) bytes: u64,
    pub(crate) slot: u32,
    /// Index into [`Requests::lanes`].
    pub(crate) lane: u16,
    pub(crate) kind: OpKind,
}

/// A stream and a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane {
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolId,
}

/// A block that was alive before the first row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialBlock {
    pub(crate) addr: u64,
    pub(crate) requested: u64,
    /// Bytes it uses, if the recording has them.
    pub(crate) size: Option<u64>,
    pub(crate) lane: u16,
    pub(crate) slot: u32,
    pub(crate) state: BlockState,
}

/// A segment that existed before the first row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialSegment {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) lane: u16,
    pub(crate) small: bool,
    pub(crate) expandable: bool,
}

/// The rows that did not make sense in a recording, and were passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Gaps {
    /// Frees that were completed without having been requested.
    pub unknown_completions: u64,
    /// Blocks handed out where one was alive; the older one is taken as freed.
    pub overlapping: u64,
    /// Requests of no bytes, or of more than any allocator serves.
    pub impossible_requests: u64,
    /// Blocks whose request is not known; the size of the block was used.
    pub sizes_only: u64,
    /// Requests on more streams and pools than can be distinguished.
    pub untold_streams: u64,
    /// Blocks of the final state that contradict the rows before it.
    pub contradicted_blocks: u64,
}

/// The requests of one process on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) process: u32,
    pub(crate) device: i32,
    pub(crate) ops: Vec<Op>,
    /// The row of each operation.
    pub(crate) rows: Vec<u32>,
    /// Rows after which the program begins a step.
    pub(crate) marks: Vec<u32>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) slots: u32,
    pub(crate) initial: Vec<InitialBlock>,
    pub(crate) segments: Vec<InitialSegment>,
    pub(crate) gaps: Gaps,
    /// Rows of PyTorch's allocator.
    pub(crate) events: u64,
    /// Rows of requests among them.
    pub(crate) allocs: u64,
    /// Whether the recording shows segments at all.
    pub(crate) has_segments: bool,
    /// Most that was reserved, as the recording shows.
    pub(crate) peak_reserved: u64,
    /// Most bytes alive at once, each request rounded to 512: no allocator needs less.
    pub(crate) peak_live: u64,
    /// The same, with the request on which the recording ended: to complete, it must be served too.
    pub(crate) needed_live: u64,
    /// Most that others held.
    pub(crate) peak_outside: u64,
    /// The blocks of the final state, if the recording has one: address, size, state.
    pub(crate) finals: Option<Vec<(u64, u64, BlockState)>>,
    /// The most that the allocator could have held, as a refusal shows; the context is not in it.
    pub(crate) available: Option<u64>,
    /// The largest context that was opened.
    pub(crate) context: u64,
    /// Segment addresses that grew and that fell, to guess the driver's order.
    pub(crate) ascending: u64,
    pub(crate) descending: u64,
}

impl Requests {
    /// Leaves out every operation of a kind.
    pub(crate) fn drop_all(&mut self, kind: OpKind) {
        let kept: Vec<bool> = self.ops.iter().map(|op| op.kind != kind).collect();
        let mut keep = kept.iter();
        self.ops.retain(|_| keep.next().copied().unwrap_or(true));
        let mut keep = kept.iter();
        self.rows.retain(|_| keep.next().copied().unwrap_or(true));
    }
}
