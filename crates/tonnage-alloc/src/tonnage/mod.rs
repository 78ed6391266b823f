// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tonnage allocator: one address space for a device, pages that move.
//!
//! * All streams and pools share one reserved range of addresses. A free block
//!   belongs to the stream that freed it until that stream's work is done, and
//!   to everyone afterwards, so no memory stays with a stream.
//! * The tightest free block is found in constant time, and neighbours are
//!   joined at once. No call of the device is made unless no free block fits.
//! * Memory is mapped in pages of the device's granularity. Where a request needs pages, empty ones are moved there
//!   instead of obtaining more, so blocks of the right sizes in the wrong places do not cause an out-of-memory error.
//! * Order between streams comes from counters; an event is recorded only where the progress of a stream matters.
//!
//! The parts, from the bottom up: `class` and `lists` find free blocks by size, `blocks` and `index` by address;
//! `arena` and `window` assign ranges and need no device; `pages` and `transfer` bring memory there, as transactions,
//! and `pause` takes it away for a while; `streams` and `lanes` know the order of work; `obtain` gets memory when no
//! free block fits; `event` reports actions, and `ring` keeps the latest; `plan`, `follow` and `place` put blocks at
//! the places of a plan, as long as they are free. The documentation has a page on the design
//! (`docs/concepts/allocator-design.md`).

mod arena;
mod blocks;
mod class;
mod event;
mod follow;
mod index;
mod lanes;
mod lists;
mod obtain;
mod pages;
mod pause;
mod place;
mod plan;
mod policy;
mod ring;
mod settings;
mod shortage;
mod snapshot;
mod statistics;
mod streams;
mod transfer;
mod window;

pub use event::{Event, EventKind, Observer, SearchStep};
pub use follow::{Divergence, Followed};
pub use pause::Range;
pub use plan::{AllocatorPlan, PlanError, PlannedBlock};
pub use ring::{Events, Ring};
pub use settings::Settings;
pub use shortage::{Shortage, TagUse};
pub use snapshot::{BlockInfo, BlockState, Live};
pub use statistics::{Level, SearchSteps, Statistics};

use statistics::Counts;

use arena::{Arena, Demand};
use blocks::State;
use class::GRANULE;
use follow::Follower;
use lanes::Lanes;
use pages::Pages;
use streams::{Patience, Streams};
use transfer::Mapper;

use crate::torch::PoolId;
use crate::{Device, DeviceAddr, DeviceError, PolicyError, Request, StreamId, Tag, round_up};

/// The tonnage allocator on a device.
///
/// ```
/// use tonnage_alloc::tonnage::{Allocator, Settings};
/// use tonnage_alloc::{Policy, PolicyError, Request, SimConfig, SimDevice, StreamId};
///
/// let device = SimDevice::new(SimConfig::with_total(64 << 20));
/// let mut allocator = Allocator::new(device, Settings::default());
/// let request = |bytes| Request::new(bytes, StreamId(0));
///
/// // The device is full, and every other block is freed.
/// let blocks = (0..32).map(|_| allocator.alloc(request(2 << 20)));
/// let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
/// for &block in blocks.iter().step_by(2) {
///     allocator.free(block)?;
/// }
/// // No two of the free pages touch; they are moved.
/// let large = allocator.alloc(request(32 << 20))?;
/// let statistics = allocator.statistics();
/// assert_eq!(statistics.pages_moved, 16);
/// assert_eq!(statistics.reserved.now, 64 << 20);
/// # allocator.free(large)?;
/// # Ok::<(), PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Allocator<D: Device, O: Observer = ()> {
    device: D,
    settings: Settings,
    /// First address; none before the first request.
    base: Option<DeviceAddr>,
    arena: Arena,
    pages: Pages,
    lanes: Lanes,
    streams: Streams,
    /// How often the slack was doubled, and the pages that had been moved then.
    doublings: u32,
    moved_before: u64,
    /// The plan it follows.
    plan: Option<Box<Follower>>,
    /// Blocks whose free waits, in the order of their frees.
    pending: Vec<u32>,
    /// Whether a stream of the program is captured into a graph.
    capturing: bool,
    counts: Counts,
    /// Receives the events.
    observer: O,
    /// Whether nothing is given back when it is dropped.
    abandoned: bool,
}

/// Gives back what no live block and no pool in use needs, after waiting for its work. The memory of live blocks stays,
/// because work of the device may still use it, and that of pools, because graphs may; everything stays while a graph
/// is captured. A failure of the device is not reported here: call [`close`](crate::Policy::close) to see it.
impl<D: Device, O: Observer> Drop for Allocator<D, O> {
    fn drop(&mut self) {
        // A panic may have left the books in disorder.
        if self.abandoned || self.capturing || std::thread::panicking() {
            return;
        }
        let _ = if self.arena.lanes.iter().any(|lane| lane.private) {
            self.trim()
        } else {
            self.shut()
        };
    }
}

impl<D: Device> Allocator<D> {
    /// An allocator that holds nothing yet.
    pub fn new(device: D, settings: Settings) -> Self {
        Self::observed(device, settings, None, ())
    }

    /// The same, with a plan to follow. A plan that is not the program's costs time, and nothing else.
    ///
    /// ```
    /// use tonnage_alloc::tonnage::{Allocator, AllocatorPlan, PlannedBlock, Settings};
    /// use tonnage_alloc::{Policy, Request, SimConfig, SimDevice, StreamId};
    ///
    /// let plan = AllocatorPlan::new(vec![PlannedBlock::new(1 << 20, 0, 3 << 20)], vec![])?;
    /// let device = SimDevice::new(SimConfig::with_total(64 << 20));
    /// let mut allocator = Allocator::with_plan(device, Settings::default(), &plan);
    /// let request = Request::new(1 << 20, StreamId(0));
    /// let [planned, unplanned] = [allocator.alloc(request)?, allocator.alloc(request)?];
    /// assert_eq!(unplanned.0 - planned.0, 1 << 20);
    /// let followed = allocator.statistics().plan.unwrap();
    /// assert_eq!((followed.hits, followed.unknown), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_plan(device: D, settings: Settings, plan: &AllocatorPlan) -> Self {
        Self::observed(device, settings, Some(plan), ())
    }
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// The same, with a plan to follow if there is one, and an observer of every event.
    pub fn observed(
        device: D,
        settings: Settings,
        plan: Option<&AllocatorPlan>,
        observer: O,
    ) -> Self {
        let page = device.granularity();
        Self {
            device,
            settings,
            base: None,
            arena: Arena::new(page, page, 0),
            pages: Pages::default(),
            lanes: Lanes::default(),
            streams: Streams::new(),
            doublings: 0,
            moved_before: 0,
            plan: plan.map(|plan| Box::new(Follower::new(plan))),
            pending: Vec::new(),
            capturing: false,
            counts: Counts::default(),
            observer,
            abandoned: false,
        }
    }

    /// Gives nothing back when the allocator is dropped: for a caller that knows its books to be in disorder.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// The observer of events.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The observer of events.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// Tells of an event at an offset.
    #[inline]
    fn tell(&mut self, kind: EventKind, offset: u64, bytes: u64, stream: StreamId) {
        let addr = self.base.map_or(DeviceAddr(0), |base| base.offset(offset));
        self.observer.observe(Event::new(kind, addr, bytes, stream));
    }

    /// Its statistics.
    pub fn statistics(&self) -> Statistics {
        let counts = &self.counts;
        Statistics {
            requested: counts.requested.level(),
            allocated: counts.allocated.level(),
            reserved: counts.reserved.level(),
            served: counts.served,
            refused: counts.refused,
            misses: counts.misses,
            retries: counts.retries,
            search_steps: counts.search_steps,
            blocks: self.arena.live() as u64,
            blocks_recent_peak: counts.blocks.level().recent_peak,
            requested_ever: counts.requested_ever,
            allocated_ever: counts.allocated_ever,
            pending: self.pending.len() as u64,
            paused: self.paused_bytes(),
            pages_created: self.pages.created,
            pages_released: self.pages.released,
            pages_moved: self.pages.moved,
            events_recorded: self.streams.events_recorded,
            waits: self.streams.waits,
            plan: self.plan.as_ref().map(|plan| plan.followed),
        }
    }

    /// Sets whether some stream of the program is captured into a graph. During a capture, the allocator does not query
    /// or wait for work and does not unmap, for requests of any pool.
    pub fn set_capturing(&mut self, capturing: bool) {
        self.capturing = capturing;
    }

    /// Changes the limit of reserved memory. Memory that is already reserved stays.
    pub fn set_limit(&mut self, bytes: Option<u64>) {
        self.settings.limit = bytes;
    }

    /// Resets the peaks since the last reset. The peaks of all time, which decide when pages move, stay.
    pub fn reset_peaks(&mut self) {
        self.note_in_memory();
        let counts = &mut self.counts;
        counts.requested.reset();
        counts.allocated.reset();
        counts.reserved.reset();
        counts.blocks.reset();
    }

    /// Serves a request.
    #[inline]
    fn serve(&mut self, request: Request, owned: bool) -> Result<DeviceAddr, PolicyError> {
        let size = self.rounded(request)?;
        let base = match self.base {
            Some(base) => base,
            None => self.reserve()?,
        };
        let capturing = self.capturing || request.pool.0 != 0;
        if !self.pending.is_empty() && !capturing {
            self.complete_frees(Patience::Ask)?;
        }
        let demand = Demand {
            lane: self.lane(request),
            size,
            requested: request.bytes,
            capturing,
            // A graph uses its memory at any time.
            tag: if request.pool == PoolId::DEFAULT {
                request.tag
            } else {
                Tag::NONE
            },
            owned,
        };
        let block = match self.plan {
            None => self.find(&demand)?,
            Some(_) => self.find_planned(request, &demand)?,
        };
        self.counts.served += 1;
        self.counts.requested.add(request.bytes);
        self.counts.allocated.add(size);
        self.counts.requested_ever += request.bytes;
        self.counts.allocated_ever += size;
        self.counts.blocks.add(1);
        let addr = base.offset(self.arena.blocks[block].offset);
        let event = Event::new(EventKind::Alloc, addr, request.bytes, request.stream);
        self.observer.observe(event);
        Ok(addr)
    }

    /// Serves a request where there is room.
    #[inline]
    fn find(&mut self, demand: &Demand) -> Result<u32, PolicyError> {
        match self.arena.take(demand) {
            Some(block) => Ok(block),
            None => self.obtain(demand),
        }
    }

    /// The size of a request.
    #[inline]
    fn rounded(&self, Request { bytes, .. }: Request) -> Result<u64, PolicyError> {
        if bytes == 0 {
            let reason = "a request of zero bytes";
            return Err(PolicyError::Refused(reason.to_owned()));
        }
        // A request larger than the device fails without a search.
        match round_up(bytes, GRANULE).filter(|&size| size <= self.device.total()) {
            Some(size) => Ok(size),
            None => Err(self.out_of_memory(bytes)),
        }
    }

    #[cold]
    fn out_of_memory(&self, requested: u64) -> PolicyError {
        let free = self.device.free_bytes();
        PolicyError::OutOfMemory { requested, free }
    }

    /// Takes a block back; its bytes.
    #[inline]
    fn take_back(&mut self, addr: DeviceAddr, owned: bool) -> Result<u64, PolicyError> {
        let index = self.used_as(addr, owned)?;
        let block = self.arena.blocks[index];
        if block.uses != blocks::NONE {
            self.streams.close(block.uses);
            self.arena.blocks[index].state = State::Pending;
            self.pending.push(index);
            let stream = self.streams.id(self.lanes.stream(block.lane));
            let kind = EventKind::FreeRequested;
            self.tell(kind, block.offset, block.requested, stream);
            return Ok(block.size);
        }
        self.free_block(index, EventKind::Free);
        Ok(block.size)
    }

    /// Makes a used or pending block free.
    #[inline]
    fn free_block(&mut self, index: u32, kind: EventKind) {
        let block = self.arena.blocks[index];
        let stream = self.lanes.stream(block.lane);
        let epoch = self.streams.open(stream);
        let stream = self.streams.id(stream);
        self.counts.requested.subtract(block.requested);
        self.counts.allocated.subtract(block.size);
        self.counts.blocks.subtract(1);
        self.tell(kind, block.offset, block.requested, stream);
        if !self.pages.paused.is_empty() && self.is_paused(&block) {
            return self.give_paused(index, epoch);
        }
        self.arena.release_block(index, epoch);
    }

    /// The used block that starts at an address.
    #[inline]
    fn used(&self, addr: DeviceAddr) -> Result<u32, PolicyError> {
        let unknown = PolicyError::UnknownAddress(addr);
        let offset = self.base.and_then(|base| addr.0.checked_sub(base.0));
        let index = offset.and_then(|offset| self.arena.at(offset));
        let used = index.filter(|&index| self.arena.blocks[index].state == State::Used);
        used.ok_or(unknown)
    }

    /// The same, if it has a handle as the caller expects. An address may be kept and used again after the block was
    /// freed; a handle may not, so no address stands for one.
    #[inline]
    fn used_as(&self, addr: DeviceAddr, owned: bool) -> Result<u32, PolicyError> {
        let index = self.used(addr)?;
        if self.arena.blocks[index].owned == owned {
            return Ok(index);
        }
        Err(PolicyError::Owned(addr))
    }

    /// Says that a stream uses a live block too.
    fn name(&mut self, addr: DeviceAddr, stream: StreamId, owned: bool) -> Result<(), PolicyError> {
        let index = self.used_as(addr, owned)?;
        let block = &mut self.arena.blocks[index];
        // Work of the block's stream is in order anyway.
        if self.streams.id(self.lanes.stream(block.lane)) != stream {
            self.streams.name(&mut block.uses, stream);
        }
        Ok(())
    }

    /// Completes frees that no stream delays any more.
    fn complete_frees(&mut self, patience: Patience) -> Result<(), DeviceError> {
        self.streams.next_pass();
        let mut failure = Ok(());
        let mut kept = 0;
        for number in 0..self.pending.len() {
            let index = self.pending[number];
            let uses = &mut self.arena.blocks[index].uses;
            let over = match failure {
                Ok(()) => self.streams.over(&mut self.device, uses, patience),
                Err(_) => Ok(false),
            };
            if over == Ok(true) {
                self.free_block(index, EventKind::FreeCompleted);
                continue;
            }
            self.pending[kept] = index;
            kept += 1;
            failure = failure.and(over.map(|_| ()));
        }
        self.pending.truncate(kept);
        failure
    }

    /// Reserves addresses: as many as the settings request, or fewer if the device has not so many.
    #[cold]
    fn reserve(&mut self) -> Result<DeviceAddr, PolicyError> {
        let page = self.device.granularity();
        let total = self.device.total().next_multiple_of(page).max(page);
        let mut factor = self.settings.address_factor.max(1);
        loop {
            let span = total
                .saturating_mul(factor)
                .min(class::LARGEST / page * page);
            match self.device.reserve(span) {
                Ok(base) => {
                    self.base = Some(base);
                    // A plan that is for another device gets no addresses, and no place is free.
                    let height = self.plan.as_ref().map_or(0, |plan| plan.height());
                    let planned = height.div_ceil(page);
                    let planned = if planned <= span / page / 2 {
                        planned
                    } else {
                        0
                    };
                    self.arena = Arena::new(span, page, planned);
                    self.lanes = Lanes::default();
                    return Ok(base);
                }
                Err(DeviceError::OutOfMemory { .. }) if factor > 1 => factor /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes held from the device.
    fn held_bytes(&self) -> u64 {
        self.pages.count_held() * self.arena.page
    }

    fn note_reserved(&mut self) {
        let held = self.held_bytes();
        self.counts.reserved.set(held);
    }

    fn mapper(&mut self) -> Mapper<'_, D> {
        Mapper {
            device: &mut self.device,
            pages: &mut self.pages,
            base: self.base.unwrap_or(DeviceAddr(0)),
            page: self.arena.page,
        }
    }

    /// Recounts every structure; tests call it after every step.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub fn check(&self) -> Result<(), String> {
        self.arena.check()?;
        self.pages.check()?;
        let (mut requested, mut allocated) = (0, 0);
        for (index, block) in self.arena.blocks.by_address() {
            let page = self.arena.page;
            let mut pages = block.offset / page..block.end().div_ceil(page);
            match block.state {
                State::Gap => {
                    // The last gap is long; what was never mapped is not in the table.
                    if pages
                        .take(self.pages.len())
                        .any(|page| self.pages.get(page).is_some())
                    {
                        return Err(format!("gap {index} has memory"));
                    }
                    continue;
                }
                State::Left => {
                    if pages.any(|page| !self.pages.paused.contains_key(&page)) {
                        return Err(format!(
                            "block {index} left something on a page with memory"
                        ));
                    }
                    continue;
                }
                State::Free => {
                    if pages.clone().any(|page| self.pages.get(page).is_none()) {
                        return Err(format!("free block {index} has no memory"));
                    }
                }
                _ => {
                    requested += block.requested;
                    allocated += block.size;
                }
            }
            let has =
                |page| self.pages.get(page).is_some() || self.pages.paused.contains_key(&page);
            if !pages.all(has) {
                return Err(format!("block {index} has no memory"));
            }
        }
        if (requested, allocated) != (self.counts.requested.now, self.counts.allocated.now) {
            return Err("live bytes are not what was counted".to_owned());
        }
        if self.arena.live() as u64 != self.counts.blocks.now {
            return Err("live blocks are not what was counted".to_owned());
        }
        if self.held_bytes() != self.counts.reserved.now {
            return Err("reserved bytes are not what was counted".to_owned());
        }
        Ok(())
    }
}
