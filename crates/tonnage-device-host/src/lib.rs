// SPDX-License-Identifier: MIT OR Apache-2.0
//! A [`Device`] whose memory is real: memory of the host.
//!
//! Physical memory is a part of a file without a name (`memfd`), an address is
//! an address of this process, and mapping is mapping: what is written to a
//! block is there until the block is freed, also after other pages were mapped
//! and unmapped around it. So a policy can be tested with bytes, without a GPU.
//!
//! Work on a stream is a queue of the caller: [`HostDevice::enqueue_fill`] adds
//! to it, [`HostDevice::run_stream`] or a wait lets it happen. An event is done
//! when the work before it is; without work it is done at once.
//!
//! It does not have kernels, copies between devices, several processes, and small requests that share a piece. Each
//! allocation takes 2 MiB at least.
//!
//! ```
//! use tonnage_alloc::{Access, Device};
//! use tonnage_device_host::HostDevice;
//!
//! let mut device = HostDevice::new(64 << 20)?;
//! let page = device.granularity();
//! let range = device.reserve(2 * page)?;
//! let memory = device.create(page)?;
//! device.map(range, page, memory)?;
//! device.set_access(range, page, Access::ReadWrite)?;
//! device.write(range, b"here")?;
//!
//! // The same memory at another address.
//! device.unmap(range, page)?;
//! device.map(range.offset(page), page, memory)?;
//! device.set_access(range.offset(page), page, Access::Read)?;
//! let mut bytes = [0; 4];
//! device.read(range.offset(page), &mut bytes)?;
//! assert_eq!(&bytes, b"here");
//! assert!(device.read(range, &mut bytes).is_err(), "nothing is there any more");
//! # Ok::<(), tonnage_alloc::DeviceError>(())
//! ```

#[expect(unsafe_code, reason = "mmap, and bytes at addresses")]
mod memory;

use std::collections::{BTreeMap, VecDeque};

use memory::{Extent, Memory};
use tonnage_alloc::{
    Access, AddressOrder, AddressSpace, Contents, Device, DeviceAddr, DeviceError, EventId,
    GRANULARITY, PhysicalId, Reservations, StreamId, round_up, whole_pieces,
};

/// How many times its memory a device has addresses.
const ADDRESSES: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct Allocation {
    /// Bytes it takes, in whole pieces.
    size: u64,
    extent: Extent,
}

#[derive(Clone, Copy, Debug)]
struct Physical {
    size: u64,
    extent: Extent,
    held_by_caller: bool,
    mappings: u32,
}

/// Bytes to be written when their turn on the stream comes.
#[derive(Clone, Copy, Debug)]
struct Fill {
    addr: DeviceAddr,
    size: u64,
    byte: u8,
}

/// The work of a stream.
#[derive(Clone, Debug, Default)]
struct Queue {
    waiting: VecDeque<Fill>,
    /// How much work there ever was, and how much of it has run.
    submitted: u64,
    done: u64,
}

/// A device made of memory of the host.
#[derive(Debug)]
pub struct HostDevice {
    memory: Memory,
    space: AddressSpace,
    total: u64,
    charged: u64,
    allocations: BTreeMap<u64, Allocation>,
    reservations: Reservations,
    physical: BTreeMap<PhysicalId, Physical>,
    /// By address.
    mappings: BTreeMap<u64, PhysicalId>,
    next_physical: u64,
    streams: BTreeMap<StreamId, Queue>,
    /// The work that each event waits for: an amount of work of a stream.
    events: BTreeMap<EventId, Option<(StreamId, u64)>>,
    next_event: u64,
}

impl HostDevice {
    /// A device of `total` bytes. They are taken from the host when they are
    /// allocated, not before.
    pub fn new(total: u64) -> Result<Self, DeviceError> {
        let span = round_up(total, GRANULARITY).and_then(|total| total.checked_mul(ADDRESSES));
        let span = span.ok_or(DeviceError::Invalid("more addresses than a process has"))?;
        let memory = Memory::new(span, GRANULARITY)?;
        let space = AddressSpace::new(AddressOrder::Ascending, memory.base(), span);
        Ok(Self {
            memory,
            space,
            total,
            charged: 0,
            allocations: BTreeMap::new(),
            reservations: Reservations::default(),
            physical: BTreeMap::new(),
            mappings: BTreeMap::new(),
            next_physical: 1,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 1,
        })
    }

    /// Writes to device memory, now.
    ///
    /// # Errors
    /// If not all of the range is allocated, or mapped with the right to write.
    pub fn write(&mut self, addr: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        self.memory.write(addr.0, bytes)
    }

    /// Reads device memory, now.
    ///
    /// # Errors
    /// If not all of the range is allocated, or mapped with the right to read.
    pub fn read(&self, addr: DeviceAddr, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(addr.0, bytes)
    }

    /// Gives a stream work: to fill a range with a byte. It happens when the
    /// stream runs, and fails then if the range may not be written any more.
    pub fn enqueue_fill(&mut self, stream: StreamId, addr: DeviceAddr, size: u64, byte: u8) {
        let queue = self.streams.entry(stream).or_default();
        queue.submitted += 1;
        queue.waiting.push_back(Fill { addr, size, byte });
    }

    /// Lets all work of a stream happen.
    ///
    /// # Errors
    /// If work wrote where it must not; what came after it has still happened.
    pub fn run_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.run_until(stream, u64::MAX)
    }

    /// Events that were made and not destroyed.
    pub fn live_events(&self) -> usize {
        self.events.len()
    }

    fn run_until(&mut self, stream: StreamId, number: u64) -> Result<(), DeviceError> {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return Ok(());
        };
        let mut result = Ok(());
        while queue.done < number
            && let Some(Fill { addr, size, byte }) = queue.waiting.pop_front()
        {
            queue.done += 1;
            let bytes = vec![byte; size as usize];
            result = result.and(self.memory.write(addr.0, &bytes));
        }
        result
    }

    fn run_all(&mut self) -> Result<(), DeviceError> {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let run = |stream| self.run_until(stream, u64::MAX);
        streams.into_iter().map(run).fold(Ok(()), Result::and)
    }

    /// Obtains physical memory of whole pieces.
    fn obtain(&mut self, size: u64, asked: u64) -> Result<Extent, DeviceError> {
        if size > self.free_bytes() {
            return Err(DeviceError::OutOfMemory {
                requested: asked,
                free: self.free_bytes(),
            });
        }
        let extent = self.memory.obtain(size)?;
        self.charged += size;
        Ok(extent)
    }

    fn give_back(&mut self, extent: Extent, size: u64) -> Result<(), DeviceError> {
        self.memory.discard(extent)?;
        self.charged -= size;
        Ok(())
    }

    /// The mappings that make up a range, as address and memory.
    fn whole_mappings(
        &self,
        addr: DeviceAddr,
        size: u64,
    ) -> Result<Vec<(u64, PhysicalId)>, DeviceError> {
        let uneven = DeviceError::Invalid("the range is not made of whole mappings");
        let end = addr.0.checked_add(size).ok_or(uneven.clone())?;
        let mut found = Vec::new();
        let mut next = addr.0;
        while next < end {
            let memory = *self.mappings.get(&next).ok_or(uneven.clone())?;
            found.push((next, memory));
            next += self.physical[&memory].size;
        }
        if next == end { Ok(found) } else { Err(uneven) }
    }

    fn find_event(&self, event: EventId) -> Result<Option<(StreamId, u64)>, DeviceError> {
        let marked = self.events.get(&event).copied();
        marked.ok_or(DeviceError::Invalid("no such event"))
    }
}

impl Contents for HostDevice {
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.run_all()
    }

    fn download(&mut self, from: DeviceAddr, to: &mut [u8]) -> Result<(), DeviceError> {
        self.read(from, to)
    }

    fn upload(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), DeviceError> {
        self.write(to, from)
    }
}

impl Device for HostDevice {
    fn total(&self) -> u64 {
        self.total
    }

    fn free_bytes(&self) -> u64 {
        self.total.saturating_sub(self.charged)
    }

    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        if size == 0 {
            return Err(DeviceError::Invalid("an allocation of zero bytes"));
        }
        let out_of_memory = DeviceError::OutOfMemory {
            requested: size,
            free: self.free_bytes(),
        };
        let whole = round_up(size, GRANULARITY).ok_or(out_of_memory.clone())?;
        let extent = self.obtain(whole, size)?;
        let Some(addr) = self.space.take(whole) else {
            self.give_back(extent, whole)?;
            return Err(out_of_memory);
        };
        let mapped = self.memory.map(addr, extent);
        if let Err(error) = mapped.and_then(|()| self.memory.protect(addr, Access::ReadWrite)) {
            let _ = self.memory.unmap(addr);
            self.space.release_range(addr, whole);
            self.give_back(extent, whole)?;
            return Err(error);
        }
        let allocation = Allocation {
            size: whole,
            extent,
        };
        self.allocations.insert(addr, allocation);
        Ok(DeviceAddr(addr))
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        let unknown = DeviceError::Invalid("not the start of an allocation");
        let Allocation { size, extent } = *self.allocations.get(&addr.0).ok_or(unknown)?;
        self.run_all()?;
        self.memory.unmap(addr.0)?;
        self.allocations.remove(&addr.0);
        self.space.release_range(addr.0, size);
        self.give_back(extent, size)
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let free = self.free_bytes();
        self.reservations.reserve(&mut self.space, size, free)
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        let space = &mut self.space;
        self.reservations
            .unreserve(space, addr, size, &self.mappings)
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        let size = whole_pieces(size)?;
        let extent = self.obtain(size, size)?;
        let memory = PhysicalId(self.next_physical);
        self.next_physical += 1;
        let physical = Physical {
            size,
            extent,
            held_by_caller: true,
            mappings: 0,
        };
        self.physical.insert(memory, physical);
        Ok(memory)
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        let physical = self.physical.get_mut(&memory);
        let physical = physical.filter(|physical| physical.held_by_caller);
        let physical = physical.ok_or(DeviceError::Invalid("no such physical memory"))?;
        let Physical { size, extent, .. } = *physical;
        if physical.mappings > 0 {
            physical.held_by_caller = false;
            return Ok(());
        }
        self.give_back(extent, size)?;
        self.physical.remove(&memory);
        Ok(())
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        let physical = self.physical.get_mut(&memory);
        let physical = physical.filter(|physical| physical.held_by_caller);
        let physical = physical.ok_or(DeviceError::Invalid("no such physical memory"))?;
        if physical.size != size {
            return Err(DeviceError::Invalid("not the size of the memory"));
        }
        if !self.reservations.holds(addr, size) {
            return Err(DeviceError::Invalid("the range is not reserved"));
        }
        self.memory.map(addr.0, physical.extent)?;
        physical.mappings += 1;
        self.mappings.insert(addr.0, memory);
        Ok(())
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        for (start, memory) in self.whole_mappings(addr, size)? {
            self.memory.unmap(start)?;
            self.mappings.remove(&start);
            let Some(physical) = self.physical.get_mut(&memory) else {
                continue;
            };
            physical.mappings -= 1;
            let Physical { size, extent, .. } = *physical;
            if physical.mappings == 0 && !physical.held_by_caller {
                self.physical.remove(&memory);
                self.give_back(extent, size)?;
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
        for (start, _) in self.whole_mappings(addr, size)? {
            self.memory.protect(start, access)?;
        }
        Ok(())
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let event = EventId(self.next_event);
        self.next_event += 1;
        self.events.insert(event, None);
        Ok(event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.find_event(event)?;
        self.events.remove(&event);
        Ok(())
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.find_event(event)?;
        let submitted = self.streams.get(&stream).map_or(0, |queue| queue.submitted);
        self.events.insert(event, Some((stream, submitted)));
        Ok(())
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        Ok(self.find_event(event)?.is_none_or(|(stream, number)| {
            let queue = self.streams.get(&stream);
            queue.is_none_or(|queue| queue.done >= number)
        }))
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        match self.find_event(event)? {
            Some((stream, number)) => self.run_until(stream, number),
            None => Ok(()),
        }
    }
}
