// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device a replay runs on: a simulated one, with three things added.
//!
//! * Segments that existed before the recording began belong to it already.
//! * A pending free waits for its own event, which is done when the
//!   recording completes it; a retry, which waits for it, gets it at once.
//! * Calls are counted, because they are the cost of a setting.

use std::collections::BTreeMap;

use tonnage_alloc::{
    Access, AddressOrder, Device, DeviceAddr, DeviceError, EventId, PhysicalId, SimConfig,
    SimDevice, StreamId, round_up,
};

use super::report::DriverCalls;

/// Addresses start here unless the recording has its own segments.
const BASE: u64 = 1 << 44;
/// Half of it is for reservations, each of 9/8 of the device.
const SPAN: u64 = 1 << 62;
/// Streams that no program has: one for each slot whose free is pending.
const FIRST_PENDING: u64 = u64::MAX - (u32::MAX as u64);

/// The properties of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSpec {
    pub(crate) total: u64,
    pub(crate) context: u64,
    pub(crate) order: AddressOrder,
    /// Pages that may be mapped in all, so that a hostile recording ends.
    pub(crate) max_pages: u64,
}

/// A device for one replay.
#[derive(Clone, Debug)]
pub(crate) struct ReplayDevice {
    sim: SimDevice,
    /// Segments from before the recording, by address.
    adopted: BTreeMap<u64, u64>,
    adopted_bytes: u64,
    /// Bytes that others than the allocator hold.
    outside: u64,
    /// By slot: whether nothing delays its free any more.
    done: Vec<bool>,
    /// The slot that an event waits for; events of other streams are done.
    events: BTreeMap<EventId, usize>,
    max_pages: u64,
    pub(crate) calls: DriverCalls,
}

impl ReplayDevice {
    /// A device that holds nothing but the context.
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        Self::with(spec, &[])
    }

    /// A device that holds these segments, given as address and size.
    pub(crate) fn with(spec: DeviceSpec, segments: &[(u64, u64)]) -> Self {
        let mut base = BASE;
        let mut span = SPAN;
        if let (Some(low), Some(high)) = (
            segments.iter().map(|(start, _)| *start).min(),
            segments.iter().map(|(start, size)| start + size).max(),
        ) {
            match spec.order {
                AddressOrder::Ascending => {
                    base = round_up(high, 2 << 20).unwrap_or(BASE);
                    span = SPAN.min((u64::MAX - base) / 2);
                }
                AddressOrder::Descending => {
                    // New segments go below; nothing is reserved where segments are adopted.
                    let half = (low / 2) & !((2 << 20) - 1);
                    base = (low & !((2 << 20) - 1)).saturating_sub(half);
                    span = half * 2;
                }
            }
        }
        let mut sim = SimDevice::new(SimConfig {
            total: spec.total,
            context: spec.context,
            order: spec.order,
            base,
            span,
        });
        // A device smaller than its context refuses everything later, which is
        // the answer; opening it fails for the same reason.
        let _ = sim.open_context();
        let adopted_bytes = segments.iter().map(|(_, size)| size).sum();
        let mut device = Self {
            sim,
            adopted: segments.iter().copied().collect(),
            adopted_bytes,
            outside: 0,
            done: Vec::new(),
            events: BTreeMap::new(),
            max_pages: spec.max_pages,
            calls: DriverCalls::default(),
        };
        device.set_outside(0);
        device
    }

    /// Bytes that others hold.
    pub(crate) fn outside(&self) -> u64 {
        self.outside
    }

    /// Others hold so many bytes from now on.
    pub(crate) fn set_outside(&mut self, bytes: u64) {
        self.outside = bytes;
        let sum = bytes.saturating_add(self.adopted_bytes);
        // More than any device has is as good as infinity, and cannot overflow.
        self.sim.set_outside(sum.min(1 << 60));
    }

    /// Something delays the free of this slot from now on: answers with the stream that it waits for. Events of that
    /// stream are done at [`Self::finish`], whenever they were recorded.
    pub(crate) fn delay(&mut self, slot: u32) -> StreamId {
        let place = slot as usize;
        if place >= self.done.len() {
            self.done.resize(place + 1, true);
        }
        self.done[place] = false;
        StreamId(FIRST_PENDING + u64::from(slot))
    }

    /// Nothing delays the free of this slot any more.
    pub(crate) fn finish(&mut self, slot: u32) {
        if let Some(done) = self.done.get_mut(slot as usize) {
            *done = true;
        }
    }

    /// First byte of the reservation around `addr`.
    pub(crate) fn reservation(&self, addr: DeviceAddr) -> Option<u64> {
        self.sim.find_reservation(addr).map(|(start, _)| start.0)
    }
}

impl Device for ReplayDevice {
    fn total(&self) -> u64 {
        self.sim.total()
    }

    fn free_bytes(&self) -> u64 {
        self.sim.free_bytes()
    }

    fn granularity(&self) -> u64 {
        self.sim.granularity()
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let result = self.sim.malloc(size);
        self.calls.malloc += u64::from(result.is_ok());
        self.calls.refused += u64::from(result.is_err());
        result
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        self.calls.free += 1;
        if let Some(size) = self.adopted.remove(&addr.0) {
            self.adopted_bytes -= size;
            self.set_outside(self.outside);
            return Ok(());
        }
        self.sim.free(addr)
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        self.sim.reserve(size)
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.sim.unreserve(addr, size)
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        if self.calls.map >= self.max_pages {
            return Err(DeviceError::Invalid(
                "more pages mapped than a replay counts",
            ));
        }
        let result = self.sim.create(size);
        self.calls.refused += u64::from(result.is_err());
        result
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        self.sim.release(memory)
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        self.calls.map += 1;
        self.sim.map(addr, size, memory)
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.calls.unmap += 1;
        self.sim.unmap(addr, size)
    }

    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError> {
        self.sim.set_access(addr, size, access)
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.sim.create_event()
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.events.remove(&event);
        self.sim.destroy_event(event)
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.sim.record_event(event, stream)?;
        let Some(slot) = stream.0.checked_sub(FIRST_PENDING) else {
            self.events.remove(&event);
            return Ok(());
        };
        self.events.insert(event, slot as usize);
        Ok(())
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let slot = self.events.get(&event);
        let done = |&slot: &usize| self.done.get(slot).is_none_or(|done| *done);
        Ok(slot.is_none_or(done))
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        if let Some(&slot) = self.events.get(&event)
            && let Some(done) = self.done.get_mut(slot)
        {
            *done = true;
        }
        Ok(())
    }
}
