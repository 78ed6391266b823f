// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actions of the allocator as events, for an observer that stores them.
//!
//! The allocator reports events and stores none: the observer decides how many to keep, and whether they have times. An
//! event is reported after its action, in order, so the state of the allocator follows from the events.

use crate::{DeviceAddr, StreamId};

/// The event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out.
    Alloc,
    /// A block was taken back, and its stream may use it again.
    Free,
    /// The program gave a block up that another stream may still use.
    FreeRequested,
    /// Such a block was taken back.
    FreeCompleted,
    /// Memory was mapped.
    Map,
    /// Memory was unmapped: it was needed elsewhere, or went back to the device.
    Unmap,
    /// So many bytes of what was just unmapped are what was just mapped; `addr` is where the first of it is now.
    Move,
    /// The memory of live blocks went back to the device, and their addresses stay. If they are freed meanwhile, an
    /// `Unmap` follows.
    Pause,
    /// They have memory again.
    Resume,
    /// A step of the search for memory, for a request that no free block could serve.
    Search(SearchStep),
    /// A request was not served, because there is no memory. `addr` is not an address here, but the free bytes of the
    /// device.
    Refused,
}

/// A step of the search for memory, in the order in which they are taken. After each of them the search is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SearchStep {
    /// Blocks of other streams whose work is done were made anyone's.
    OtherStreams,
    /// Pages were obtained from the device or moved from unused places.
    Pages,
    /// All work was waited for that delays a free or the use of a free block.
    Wait,
    /// Memory that a plan keeps for its places was searched.
    Planned,
    /// Memory was requested from the device although it reported none.
    Device,
    /// Blocks that fronts of threads keep were taken back. This step and those after it are of a runtime.
    Fronts,
    /// A callback of the program was called to free memory.
    Callbacks,
    /// The contents of a tag's blocks were copied to the host and their memory was used.
    Spill,
    /// Unused memory was requested from other processes that share the device.
    Leases,
}

impl SearchStep {
    /// All steps, in their order.
    pub const ALL: [Self; 9] = [
        Self::OtherStreams,
        Self::Pages,
        Self::Wait,
        Self::Planned,
        Self::Device,
        Self::Fronts,
        Self::Callbacks,
        Self::Spill,
        Self::Leases,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::OtherStreams => "other_streams",
            Self::Pages => "pages",
            Self::Wait => "wait",
            Self::Planned => "planned",
            Self::Device => "device",
            Self::Fronts => "fronts",
            Self::Callbacks => "callbacks",
            Self::Spill => "spill",
            Self::Leases => "leases",
        }
    }
}

impl EventKind {
    /// All kinds. A place in this list is a number for the kind, where it has to be one.
    pub const ALL: [Self; 19] = [
        Self::Alloc,
        Self::Free,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::Map,
        Self::Unmap,
        Self::Move,
        Self::Pause,
        Self::Resume,
        Self::Search(SearchStep::OtherStreams),
        Self::Search(SearchStep::Pages),
        Self::Search(SearchStep::Wait),
        Self::Search(SearchStep::Planned),
        Self::Search(SearchStep::Device),
        Self::Search(SearchStep::Fronts),
        Self::Search(SearchStep::Callbacks),
        Self::Search(SearchStep::Spill),
        Self::Search(SearchStep::Leases),
        Self::Refused,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Move => "move",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Search(SearchStep::OtherStreams) => "search_other_streams",
            Self::Search(SearchStep::Pages) => "search_pages",
            Self::Search(SearchStep::Wait) => "search_wait",
            Self::Search(SearchStep::Planned) => "search_planned",
            Self::Search(SearchStep::Device) => "search_device",
            Self::Search(SearchStep::Fronts) => "search_fronts",
            Self::Search(SearchStep::Callbacks) => "search_callbacks",
            Self::Search(SearchStep::Spill) => "search_spill",
            Self::Search(SearchStep::Leases) => "search_leases",
            Self::Refused => "refused",
        }
    }
}

/// One event. It has no time: a policy knows no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The first byte it is about; 0 if it is about none.
    pub addr: DeviceAddr,
    /// Bytes: the requested ones of a block or a request, whole pages of memory.
    pub bytes: u64,
    /// The stream that a block was requested for, or that memory was mapped for.
    pub stream: StreamId,
    /// The event.
    pub kind: EventKind,
}

const _: () = assert!(size_of::<Event>() == 32, "two events fill a cache line");

impl Event {
    /// An event.
    #[inline]
    pub fn new(kind: EventKind, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Self {
        Self {
            addr,
            bytes,
            stream,
            kind,
        }
    }
}

/// Receives events. It is called in the middle of a request, and must be quick.
///
/// ```
/// use tonnage_alloc::tonnage::{Allocator, Event, EventKind, Observer, Settings};
/// use tonnage_alloc::{Policy, PolicyError, Request, SimConfig, SimDevice, StreamId};
///
/// #[derive(Default)]
/// struct Kept(Vec<Event>);
///
/// impl Observer for Kept {
///     fn observe(&mut self, event: Event) {
///         self.0.push(event);
///     }
/// }
///
/// let device = SimDevice::new(SimConfig::with_total(64 << 20));
/// let mut allocator = Allocator::observed(device, Settings::default(), None, Kept::default());
/// let block = allocator.alloc(Request::new(3000, StreamId(0)))?;
/// allocator.free(block)?;
/// let kinds: Vec<EventKind> = allocator.observer().0.iter().map(|event| event.kind).collect();
/// assert_eq!(kinds[kinds.len() - 3..], [EventKind::Map, EventKind::Alloc, EventKind::Free]);
/// # Ok::<(), PolicyError>(())
/// ```
pub trait Observer {
    /// Takes note of an event.
    fn observe(&mut self, event: Event);
}

/// Nobody.
impl Observer for () {
    #[inline]
    fn observe(&mut self, _event: Event) {}
}
