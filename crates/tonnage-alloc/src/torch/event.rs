// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace events of the allocator, and their listeners.
//!
//! The events are those of a torch memory snapshot (specification 11) without
//! what a policy cannot know: time, stacks and metadata.

use crate::{DeviceAddr, StreamId};

/// The name of a pool: `(0, 0)` is the default one, `(0, k)` a `MemPool` or a
/// shared graph pool, `(k, 0)` the pool of one graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The default pool.
    pub const DEFAULT: Self = Self(0, 0);
}

/// The event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program gave a block back.
    FreeRequested,
    /// A block became free for reuse.
    FreeCompleted,
    /// A segment was obtained from the device.
    SegmentAlloc,
    /// A segment was given back to the device.
    SegmentFree,
    /// Pages of an expandable segment got memory.
    SegmentMap,
    /// Pages of an expandable segment lost their memory.
    SegmentUnmap,
    /// A request could not be served.
    Oom,
    /// A snapshot was taken.
    Snapshot,
    /// A block was annotated.
    Annotate,
}

impl Action {
    /// The name torch uses for it in a snapshot.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Oom => "oom",
            Self::Snapshot => "snapshot",
            Self::Annotate => "annotate",
        }
    }
}

/// One entry of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event.
    pub action: Action,
    /// Where; for [`Action::Oom`] the bytes the device had free, as torch writes it.
    pub addr: DeviceAddr,
    /// Requested bytes for blocks, whole bytes for segments, rounded bytes for
    /// [`Action::Oom`], active bytes for [`Action::Snapshot`].
    pub size: u64,
    /// The stream of the block or of the request.
    pub stream: StreamId,
    /// The pool of the block or of the request.
    pub pool: PoolId,
}

/// Someone who listens to trace events.
///
/// `()` does not, and then no event is even built.
pub trait Sink {
    /// Whether events are wanted at all; decided at compile time.
    const WANTED: bool = true;

    /// Takes one event. Events arrive in the order torch records them.
    fn record(&mut self, event: Event);
}

impl Sink for () {
    const WANTED: bool = false;

    fn record(&mut self, _event: Event) {}
}

impl Sink for Vec<Event> {
    fn record(&mut self, event: Event) {
        self.push(event);
    }
}

impl<F: FnMut(Event)> Sink for F {
    fn record(&mut self, event: Event) {
        self(event);
    }
}
