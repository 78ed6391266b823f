// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device made of arithmetic: it refuses and releases exactly like one.
//!
//! The model and its evidence:
//!
//! * physical memory comes in pieces of 2 MiB (CUDA documents this as the
//!   granularity of virtual memory management; `cudaMalloc` was seen to follow it);
//! * requests of up to 1 MiB share such a piece, 512 bytes apart (assumed: the
//!   driver packs small requests, its exact rule is not documented);
//! * the first use of a device charges its context once ([`SimDevice::open_context`]);
//! * physical memory is freed when its last holder, handle or mapping, is gone;
//! * managed memory has addresses, and is charged nothing: its pages go where they are used, so it may
//!   be more than the device has ([`SimDevice::malloc_managed`]);
//! * everything a stream was given to do has happened at once, so events are
//!   always done.
//!
//! **Invariant:** `charged` equals the context, the charges from outside and
//! the sum over live pieces; [`SimDevice::check`] recounts it.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::{AddressSpace, Chunks};
use crate::{
    Access, AddressOrder, Device, DeviceAddr, DeviceError, EventId, GRANULARITY, PhysicalId,
    Reservations, StreamId, round_up, rounded_request, whole_pieces,
};

/// Requests up to this size share a piece of physical memory.
const SHARED_LIMIT: u64 = 1 << 20;
/// Distance between requests that share a piece.
const SHARED_STEP: u64 = 512;

/// Properties of a simulated device.
///
/// ```
/// use tonnage_alloc::{Device, DeviceError, SimConfig, SimDevice};
///
/// let mut device = SimDevice::new(SimConfig {
///     context: 300 << 20,
///     ..SimConfig::with_total(1 << 30)
/// });
/// device.open_context()?;
/// let address = device.malloc(500 << 20)?;
/// let refused = device.malloc(500 << 20).unwrap_err();
/// assert_eq!(
///     refused,
///     DeviceError::OutOfMemory { requested: 500 << 20, free: 224 << 20 }
/// );
/// device.free(address)?;
/// assert_eq!(device.free_bytes(), 724 << 20);
/// # Ok::<(), DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Bytes of memory, as the driver reports them.
    pub total: u64,
    /// Bytes the context of one process takes.
    pub context: u64,
    /// In which order addresses are handed out.
    pub order: AddressOrder,
    /// First address of the device's range.
    pub base: u64,
    /// Length of that range; half is for allocations, half for reservations.
    pub span: u64,
}

impl SimConfig {
    /// A device of so many bytes, without a context: addresses from 16 TiB on,
    /// in the usual order, with room for many reservations.
    pub fn with_total(total: u64) -> Self {
        Self {
            total,
            context: 0,
            order: AddressOrder::default(),
            base: 1 << 44,
            span: 1 << 56,
        }
    }
}

/// The kind of object that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocationKind {
    /// `malloc`, with separate pieces.
    Own,
    /// `malloc`, sharing a piece with others.
    Shared,
    /// Physical memory mapped into a reservation.
    Mapped,
    /// Managed memory, which the device charges nothing for.
    Managed,
}

/// One live range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allocation {
    /// First byte.
    pub addr: DeviceAddr,
    /// Bytes, as requested (not rounded).
    pub size: u64,
    /// How it came about.
    pub kind: AllocationKind,
}

#[derive(Clone, Debug)]
struct Physical {
    size: u64,
    /// Handles the caller still holds plus mappings.
    holders: u32,
    held_by_caller: u32,
    /// Another process is charged for it.
    imported: bool,
}

/// Physical memory at an address.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    memory: PhysicalId,
    access: Access,
}

/// A device without a device.
#[derive(Clone, Debug)]
pub struct SimDevice {
    config: SimConfig,
    space: AddressSpace,
    reservable: AddressSpace,
    /// Charged bytes.
    charged: u64,
    peak_charged: u64,
    context_open: bool,
    /// Bytes charged by others than this process.
    outside: u64,
    /// Whether nothing is refused for want of memory.
    unlimited: bool,
    /// Bytes of managed memory, in whole pieces.
    managed: u64,
    allocations: BTreeMap<u64, (u64, AllocationKind)>,
    /// Pieces that small requests share.
    shared: Chunks,
    reservations: Reservations,
    mappings: BTreeMap<u64, Mapping>,
    physical: BTreeMap<PhysicalId, Physical>,
    next_physical: u64,
    /// Events that were made and not destroyed.
    events: BTreeSet<u64>,
    next_event: u64,
}

impl SimDevice {
    /// A device with nothing on it.
    pub fn new(config: SimConfig) -> Self {
        let half = config.span / 2 / GRANULARITY * GRANULARITY;
        Self {
            space: AddressSpace::new(config.order, config.base, half),
            reservable: AddressSpace::new(config.order, config.base.saturating_add(half), half),
            config,
            charged: 0,
            peak_charged: 0,
            context_open: false,
            outside: 0,
            unlimited: false,
            managed: 0,
            allocations: BTreeMap::new(),
            shared: Chunks::default(),
            reservations: Reservations::default(),
            mappings: BTreeMap::new(),
            physical: BTreeMap::new(),
            next_physical: 1,
            events: BTreeSet::new(),
            next_event: 1,
        }
    }

    /// The configuration of the device.
    pub fn config(&self) -> &SimConfig {
        &self.config
    }

    /// Charged bytes, the context and charges from outside included.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Bytes charged to this process alone, its context included.
    pub fn own_charged(&self) -> u64 {
        self.charged - self.outside
    }

    /// Bytes of managed memory, which is not charged.
    pub fn managed(&self) -> u64 {
        self.managed
    }

    /// Makes a device that reports its size and what is free as ever, but refuses nothing for want
    /// of memory: what a job needs shows on it.
    #[must_use]
    pub fn without_limit(mut self) -> Self {
        self.unlimited = true;
        self
    }

    /// The most that was ever charged.
    pub fn peak_charged(&self) -> u64 {
        self.peak_charged
    }

    /// Whether this process has used the device.
    pub fn context_open(&self) -> bool {
        self.context_open
    }

    /// First use of the device by this process: charges the context, once.
    ///
    /// Returns whether this was the first use.
    pub fn open_context(&mut self) -> Result<bool, DeviceError> {
        if self.context_open {
            return Ok(false);
        }
        self.charge(self.config.context)?;
        self.context_open = true;
        Ok(true)
    }

    /// Sets the bytes held by others than this process, e.g. by a second
    /// process on the same device. Not refused when it does not fit: the others
    /// have it already.
    pub fn set_outside(&mut self, bytes: u64) {
        self.charged = self.charged - self.outside + bytes;
        self.outside = bytes;
    }

    /// Obtains managed memory (`cudaMallocManaged`): addresses that host and device share, without a
    /// charge. It is given back by [`free`](Device::free).
    pub fn malloc_managed(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let rounded = rounded_request(self, size, GRANULARITY)?;
        let addr = self.space.take(rounded).ok_or(DeviceError::OutOfMemory {
            requested: size,
            free: self.free_bytes(),
        })?;
        self.managed += rounded;
        self.allocations
            .insert(addr, (size, AllocationKind::Managed));
        Ok(DeviceAddr(addr))
    }

    /// The live range that holds `addr`, if any.
    pub fn find(&self, addr: DeviceAddr) -> Option<Allocation> {
        let holds = |start: u64, size: u64| addr.0 - start < size;
        if let Some((&start, &(size, kind))) = self.allocations.range(..=addr.0).next_back()
            && holds(start, size)
        {
            return Some(Allocation {
                addr: DeviceAddr(start),
                size,
                kind,
            });
        }
        let (&start, mapping) = self.mappings.range(..=addr.0).next_back()?;
        let size = self.physical_size(mapping.memory)?;
        holds(start, size).then_some(Allocation {
            addr: DeviceAddr(start),
            size,
            kind: AllocationKind::Mapped,
        })
    }

    /// The reservation that holds `addr`, as start and length.
    pub fn find_reservation(&self, addr: DeviceAddr) -> Option<(DeviceAddr, u64)> {
        self.reservations.find(addr)
    }

    /// Bytes of physical memory behind `memory`.
    pub fn physical_size(&self, memory: PhysicalId) -> Option<u64> {
        self.physical.get(&memory).map(|physical| physical.size)
    }

    /// One more handle on `memory` held by the caller (`cuMemRetainAllocationHandle`).
    pub fn retain(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        let physical = self
            .physical
            .get_mut(&memory)
            .ok_or(DeviceError::Invalid("no such physical memory"))?;
        physical.holders += 1;
        physical.held_by_caller += 1;
        Ok(())
    }

    /// Physical memory of another process (`cuMemImportFromShareableHandle`): it can be mapped here, and stays charged
    /// to the process that made it.
    pub fn import(&mut self, size: u64) -> PhysicalId {
        self.add_physical(size, true)
    }

    /// Whether another process is charged for `memory`.
    pub fn is_imported(&self, memory: PhysicalId) -> bool {
        let physical = self.physical.get(&memory);
        physical.is_some_and(|physical| physical.imported)
    }

    /// Where `memory` is mapped.
    pub fn mappings_of(&self, memory: PhysicalId) -> impl Iterator<Item = DeviceAddr> + '_ {
        let mappings = self.mappings.iter();
        let of_it = mappings.filter(move |(_, mapping)| mapping.memory == memory);
        of_it.map(|(&start, _)| DeviceAddr(start))
    }

    /// The physical memory mapped at exactly `addr` or around it.
    pub fn mapped_at(&self, addr: DeviceAddr) -> Option<PhysicalId> {
        self.mapping_at(addr).map(|mapping| mapping.memory)
    }

    /// Access rights of the device at `addr`; `None` if nothing is mapped there.
    pub fn access_at(&self, addr: DeviceAddr) -> Option<Access> {
        self.mapping_at(addr).map(|mapping| mapping.access)
    }

    fn mapping_at(&self, addr: DeviceAddr) -> Option<Mapping> {
        let (&start, &mapping) = self.mappings.range(..=addr.0).next_back()?;
        (addr.0 - start < self.physical_size(mapping.memory)?).then_some(mapping)
    }

    /// Events that were made and not destroyed.
    pub fn live_events(&self) -> usize {
        self.events.len()
    }

    /// Recounts the books; tests call it after every step.
    ///
    /// # Errors
    /// A sentence that names the wrong sum.
    pub fn check(&self) -> Result<(), String> {
        let whole = |wanted: AllocationKind| -> u64 {
            self.allocations
                .values()
                .filter(|(_, kind)| *kind == wanted)
                .filter_map(|(size, _)| round_up(*size, GRANULARITY))
                .sum()
        };
        let own = whole(AllocationKind::Own);
        if whole(AllocationKind::Managed) != self.managed {
            return Err(format!("managed memory is not {}", self.managed));
        }
        let shared = self.shared.bytes();
        let own_physical = self.physical.values().filter(|physical| !physical.imported);
        let physical: u64 = own_physical.map(|physical| physical.size).sum();
        let context = if self.context_open {
            self.config.context
        } else {
            0
        };
        let sum = own + shared + physical + context + self.outside;
        if sum != self.charged {
            return Err(format!("charged {} but the parts make {sum}", self.charged));
        }
        let mut end = 0;
        for (&start, &(size, _)) in &self.allocations {
            if start < end {
                return Err(format!("allocations overlap at {start:#x}"));
            }
            end = start + size;
        }
        let mut end = 0;
        for (&start, mapping) in &self.mappings {
            if start < end {
                return Err(format!("mappings overlap at {start:#x}"));
            }
            let size = self.physical_size(mapping.memory);
            end = start + size.ok_or("a mapping of nothing")?;
        }
        Ok(())
    }

    fn charge(&mut self, bytes: u64) -> Result<(), DeviceError> {
        if bytes > self.room() {
            return Err(DeviceError::OutOfMemory {
                requested: bytes,
                free: self.free_bytes(),
            });
        }
        self.charged += bytes;
        self.peak_charged = self.peak_charged.max(self.charged);
        Ok(())
    }

    /// Bytes that can still be charged. Without a limit the addresses are one, so that no sum overflows.
    fn room(&self) -> u64 {
        if self.unlimited {
            self.config.span.saturating_sub(self.charged)
        } else {
            self.free_bytes()
        }
    }

    fn malloc_shared(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let rounded = size.next_multiple_of(SHARED_STEP);
        let addr = if let Some(addr) = self.shared.take(rounded) {
            addr
        } else {
            let piece = self.take_piece(GRANULARITY, size)?;
            self.shared.add(piece, GRANULARITY);
            self.shared.take(rounded).unwrap_or(piece)
        };
        self.allocations
            .insert(addr, (size, AllocationKind::Shared));
        Ok(DeviceAddr(addr))
    }

    fn free_shared(&mut self, addr: u64, size: u64) {
        let rounded = size.next_multiple_of(SHARED_STEP);
        if let Some((piece, length)) = self.shared.release_piece(addr, rounded) {
            self.shared.remove(piece);
            self.charged -= length;
            self.space.release_range(piece, length);
        }
    }

    /// Charges and places `rounded` bytes; the error reports the original size.
    fn take_piece(&mut self, rounded: u64, asked: u64) -> Result<u64, DeviceError> {
        let out_of_memory = DeviceError::OutOfMemory {
            requested: asked,
            free: self.free_bytes(),
        };
        if rounded > self.room() {
            return Err(out_of_memory);
        }
        let addr = self.space.take(rounded).ok_or(out_of_memory)?;
        self.charge(rounded)?;
        Ok(addr)
    }

    /// The starts of the mappings that make up a range.
    fn whole_mappings(&self, addr: DeviceAddr, size: u64) -> Result<Vec<u64>, DeviceError> {
        let end = addr
            .0
            .checked_add(size)
            .ok_or(DeviceError::Invalid("the range wraps around"))?;
        let mut starts = Vec::new();
        let mut next = addr.0;
        while next < end {
            let mapping = self
                .mappings
                .get(&next)
                .ok_or(DeviceError::Invalid("the range is not made of mappings"))?;
            starts.push(next);
            next += self
                .physical_size(mapping.memory)
                .ok_or(DeviceError::Invalid("a mapping of nothing"))?;
        }
        if next != end {
            return Err(DeviceError::Invalid("the range cuts a mapping"));
        }
        Ok(starts)
    }

    fn known_event(&self, event: EventId) -> Result<(), DeviceError> {
        if self.events.contains(&event.0) {
            Ok(())
        } else {
            Err(DeviceError::Invalid("no such event"))
        }
    }

    fn drop_holder(&mut self, memory: PhysicalId) {
        let Some(physical) = self.physical.get_mut(&memory) else {
            return;
        };
        physical.holders -= 1;
        if physical.holders == 0 {
            if !physical.imported {
                self.charged -= physical.size;
            }
            self.physical.remove(&memory);
        }
    }

    fn add_physical(&mut self, size: u64, imported: bool) -> PhysicalId {
        let memory = PhysicalId(self.next_physical);
        self.next_physical += 1;
        self.physical.insert(
            memory,
            Physical {
                size,
                holders: 1,
                held_by_caller: 1,
                imported,
            },
        );
        memory
    }
}

impl Device for SimDevice {
    fn total(&self) -> u64 {
        self.config.total
    }

    fn free_bytes(&self) -> u64 {
        self.config.total.saturating_sub(self.charged)
    }

    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        if size == 0 {
            return Err(DeviceError::Invalid("an allocation of zero bytes"));
        }
        if size <= SHARED_LIMIT {
            return self.malloc_shared(size);
        }
        let rounded = rounded_request(self, size, GRANULARITY)?;
        let addr = self.take_piece(rounded, size)?;
        self.allocations.insert(addr, (size, AllocationKind::Own));
        Ok(DeviceAddr(addr))
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        let (size, kind) = self
            .allocations
            .remove(&addr.0)
            .ok_or(DeviceError::Invalid("not the start of an allocation"))?;
        if kind == AllocationKind::Shared {
            self.free_shared(addr.0, size);
            return Ok(());
        }
        let rounded = size.next_multiple_of(GRANULARITY);
        if kind == AllocationKind::Managed {
            self.managed -= rounded;
        } else {
            self.charged -= rounded;
        }
        self.space.release_range(addr.0, rounded);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let free = self.free_bytes();
        self.reservations.reserve(&mut self.reservable, size, free)
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        let space = &mut self.reservable;
        self.reservations
            .unreserve(space, addr, size, &self.mappings)
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        let size = whole_pieces(size)?;
        self.charge(size)?;
        Ok(self.add_physical(size, false))
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        let physical = self
            .physical
            .get_mut(&memory)
            .filter(|physical| physical.held_by_caller > 0)
            .ok_or(DeviceError::Invalid("no such physical memory"))?;
        physical.held_by_caller -= 1;
        self.drop_holder(memory);
        Ok(())
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        let whole = self
            .physical_size(memory)
            .ok_or(DeviceError::Invalid("no such physical memory"))?;
        if size != whole {
            return Err(DeviceError::Invalid("not the size of the memory"));
        }
        if !self.reservations.holds(addr, size) {
            return Err(DeviceError::Invalid("the range is not reserved"));
        }
        let taken = self.mapped_at(addr).is_some()
            || self.mappings.range(addr.0..addr.0 + size).next().is_some();
        if taken {
            return Err(DeviceError::Invalid("the range is mapped already"));
        }
        let access = Access::None;
        self.mappings.insert(addr.0, Mapping { memory, access });
        if let Some(physical) = self.physical.get_mut(&memory) {
            physical.holders += 1;
        }
        Ok(())
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        for start in self.whole_mappings(addr, size)? {
            if let Some(mapping) = self.mappings.remove(&start) {
                self.drop_holder(mapping.memory);
            }
        }
        Ok(())
    }

    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError> {
        for start in self.whole_mappings(addr, size)? {
            if let Some(mapping) = self.mappings.get_mut(&start) {
                mapping.access = access;
            }
        }
        Ok(())
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let event = self.next_event;
        self.next_event += 1;
        self.events.insert(event);
        Ok(EventId(event))
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.known_event(event)?;
        self.events.remove(&event.0);
        Ok(())
    }

    fn record_event(&mut self, event: EventId, _stream: StreamId) -> Result<(), DeviceError> {
        self.known_event(event)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.known_event(event)?;
        Ok(true)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.known_event(event)
    }
}
