// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that watches how another one is used.

use std::collections::{BTreeMap, BTreeSet};

use tonnage_alloc::{
    Access, Contents, Device, DeviceAddr, DeviceError, EventId, PhysicalId, StreamId,
};

use crate::TestDevice;

/// The code of a failure on request.
const INJECTED: i32 = 999;

/// One call, with the address it was about as a distance from the first one
/// seen, so that runs at other addresses can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    name: &'static str,
    addr: Option<u64>,
    size: u64,
    ok: bool,
}

#[derive(Clone, Copy, Debug)]
struct Physical {
    size: u64,
    held: bool,
    mappings: u32,
}

/// A device under observation.
///
/// Every breach of the contract of [`Device`], on either side, is recorded and returned by [`Checked::problems`].
#[derive(Clone, Debug)]
pub struct Checked<D> {
    inner: D,
    allocations: BTreeMap<u64, u64>,
    reservations: BTreeMap<u64, u64>,
    physical: BTreeMap<PhysicalId, Physical>,
    mappings: BTreeMap<u64, (u64, PhysicalId)>,
    events: BTreeSet<EventId>,
    problems: Vec<String>,
    capturing: bool,
    first_addr: Option<u64>,
    calls: Vec<Call>,
    /// How many calls from now the one is that fails.
    fail_in: Option<u64>,
    /// How many calls after it fail as well.
    fail_more: u64,
    failed: u64,
}

impl<D: Device> Checked<D> {
    /// Watches an unused device.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            allocations: BTreeMap::new(),
            reservations: BTreeMap::new(),
            physical: BTreeMap::new(),
            mappings: BTreeMap::new(),
            events: BTreeSet::new(),
            problems: Vec::new(),
            capturing: false,
            first_addr: None,
            calls: Vec::new(),
            fail_in: None,
            fail_more: 0,
            failed: 0,
        }
    }

    /// The device that is watched.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The device that is watched.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// The breaches of the contract so far.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Bytes that were obtained and not given back, as they were requested.
    pub fn held_bytes(&self) -> u64 {
        let physical = self.physical.values().map(|physical| physical.size);
        self.allocations.values().sum::<u64>() + physical.sum::<u64>()
    }

    /// The remaining objects, in words; empty if everything was released.
    pub fn left(&self) -> String {
        let counts = [
            (self.allocations.len(), "allocations"),
            (self.reservations.len(), "reservations"),
            (self.physical.len(), "pieces of physical memory"),
            (self.mappings.len(), "mappings"),
            (self.events.len(), "events"),
        ];
        let left = counts.iter().filter(|(count, _)| *count > 0);
        let words: Vec<String> = left
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        words.join(", ")
    }

    /// Says whether a stream is being captured, which forbids calls.
    pub fn set_capturing(&mut self, capturing: bool) {
        self.capturing = capturing;
    }

    /// Lets the call fail that comes after `after` others.
    pub fn fail_after(&mut self, after: u64) {
        self.fail_times(after, 1);
    }

    /// Lets `times` calls in a row fail, which come after `after` others.
    pub fn fail_times(&mut self, after: u64, times: u64) {
        self.fail_in = Some(after);
        self.fail_more = times.saturating_sub(1);
    }

    /// The number of calls that failed on request.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Whether the requested failure is still to come.
    pub fn failure_is_due(&self) -> bool {
        self.fail_in.is_some()
    }

    pub(crate) fn calls(&self) -> &[Call] {
        &self.calls
    }

    fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    fn allowed(&mut self, name: &'static str) {
        if self.capturing {
            self.problem(format!("{name} while a stream is captured"));
        }
    }

    /// Makes one call of the device below.
    fn call<T>(
        &mut self,
        name: &'static str,
        addr: Option<DeviceAddr>,
        size: u64,
        act: impl FnOnce(&mut D) -> Result<T, DeviceError>,
        place: impl Fn(&T) -> Option<DeviceAddr>,
    ) -> Result<T, DeviceError> {
        let due = self.fail_in == Some(0);
        self.fail_in = self.fail_in.and_then(|left| left.checked_sub(1));
        self.failed += u64::from(due);
        if due && self.fail_more > 0 {
            self.fail_more -= 1;
            self.fail_in = Some(0);
        }
        let result = if due {
            let code = INJECTED;
            Err(DeviceError::Driver { call: name, code })
        } else {
            act(&mut self.inner)
        };
        let addr = addr.or_else(|| place(result.as_ref().ok()?));
        let first = self.first_addr.or(addr.map(|addr| addr.0));
        self.first_addr = first;
        let relative = |addr: DeviceAddr| addr.0.wrapping_sub(first.unwrap_or(0));
        self.calls.push(Call {
            name,
            addr: addr.map(relative),
            size,
            ok: result.is_ok(),
        });
        let memory = matches!(name, "malloc" | "reserve" | "create");
        if !memory && matches!(result, Err(DeviceError::OutOfMemory { .. })) {
            self.problem(format!("{name} ran out of memory"));
        }
        if let Err(DeviceError::Invalid(reason)) = &result {
            let reason = format!("{name}: {reason}");
            self.problem(reason);
        }
        result
    }

    /// Notes a range that overlaps one of those known.
    fn disjoint(&mut self, name: &str, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let ranges = self.allocations.iter().chain(&self.reservations);
        let clash = ranges
            .map(|(&at, &size)| (at, at + size))
            .find(|&(at, to)| at < end && start < to);
        if let Some((at, _)) = clash {
            self.problem(format!("{name} gave {start:#x}, which overlaps {at:#x}"));
        }
    }

    /// The starts of the mappings that make up a range exactly.
    fn whole(&mut self, name: &str, addr: DeviceAddr, size: u64) -> Vec<u64> {
        let mut starts = Vec::new();
        let mut next = addr.0;
        while let Some(&(length, _)) = self.mappings.get(&next)
            && next < addr.0 + size
        {
            starts.push(next);
            next += length;
        }
        if next != addr.0 + size {
            self.problem(format!("{name} of a range that is not whole mappings"));
        }
        starts
    }

    fn check_event(&mut self, name: &str, event: EventId) {
        if !self.events.contains(&event) {
            self.problem(format!("{name} of an event that does not exist"));
        }
    }
}

/// Objects without an address.
fn nowhere<T>(_: &T) -> Option<DeviceAddr> {
    None
}

impl<D: Device> Device for Checked<D> {
    fn total(&self) -> u64 {
        self.inner.total()
    }

    fn free_bytes(&self) -> u64 {
        self.inner.free_bytes()
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let addr = self.call("malloc", None, size, |d| d.malloc(size), |addr| Some(*addr))?;
        if !addr.0.is_multiple_of(512) {
            self.problem("malloc gave an address that is not aligned");
        }
        self.disjoint("malloc", addr.0, size);
        self.allocations.insert(addr.0, size);
        Ok(addr)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        self.allowed("free");
        let size = self.allocations.get(&addr.0).copied();
        if size.is_none() {
            self.problem("free of an unknown allocation");
        }
        let size = size.unwrap_or(0);
        self.call("free", Some(addr), size, |d| d.free(addr), nowhere)?;
        self.allocations.remove(&addr.0);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let page = self.granularity();
        if size == 0 || !size.is_multiple_of(page) {
            self.problem("reserve of a size that is not a multiple of the granularity");
        }
        let addr = self.call(
            "reserve",
            None,
            size,
            |d| d.reserve(size),
            |addr| Some(*addr),
        )?;
        if !addr.0.is_multiple_of(page) {
            self.problem("reserve gave an address that is not aligned");
        }
        self.disjoint("reserve", addr.0, size);
        self.reservations.insert(addr.0, size);
        Ok(addr)
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.allowed("unreserve");
        if self.reservations.get(&addr.0) != Some(&size) {
            self.problem("unreserve of an unknown reservation");
        }
        if self.mappings.range(addr.0..addr.0 + size).next().is_some() {
            self.problem("unreserve of a range with mappings");
        }
        self.call(
            "unreserve",
            Some(addr),
            size,
            |d| d.unreserve(addr, size),
            nowhere,
        )?;
        self.reservations.remove(&addr.0);
        Ok(())
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        if size == 0 || !size.is_multiple_of(self.granularity()) {
            self.problem("create of a size that is not a multiple of the granularity");
        }
        let memory = self.call("create", None, size, |d| d.create(size), nowhere)?;
        let physical = Physical {
            size,
            held: true,
            mappings: 0,
        };
        if self.physical.insert(memory, physical).is_some() {
            self.problem("create gave a handle that is in use");
        }
        Ok(memory)
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        let size = self.physical.get(&memory).map_or(0, |it| it.size);
        self.call("release", None, size, |d| d.release(memory), nowhere)?;
        match self.physical.get_mut(&memory) {
            Some(physical) if physical.held => {
                physical.held = false;
                if physical.mappings == 0 {
                    self.physical.remove(&memory);
                }
            }
            _ => self.problem("release of memory that is not held"),
        }
        Ok(())
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        if self.physical.get(&memory).is_none_or(|it| it.size != size) {
            self.problem("map of memory of another size");
        }
        let around = self.reservations.range(..=addr.0).next_back();
        if around.is_none_or(|(&start, &length)| addr.0 + size > start + length) {
            self.problem("map outside of a reservation");
        }
        let below = self.mappings.range(..addr.0 + size).next_back();
        if below.is_some_and(|(&start, &(length, _))| start + length > addr.0) {
            self.problem("map where something is mapped");
        }
        self.call(
            "map",
            Some(addr),
            size,
            |d| d.map(addr, size, memory),
            nowhere,
        )?;
        self.mappings.insert(addr.0, (size, memory));
        if let Some(physical) = self.physical.get_mut(&memory) {
            physical.mappings += 1;
        }
        Ok(())
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.allowed("unmap");
        let starts = self.whole("unmap", addr, size);
        self.call("unmap", Some(addr), size, |d| d.unmap(addr, size), nowhere)?;
        for start in starts {
            let Some((_, memory)) = self.mappings.remove(&start) else {
                continue;
            };
            if let Some(physical) = self.physical.get_mut(&memory) {
                physical.mappings -= 1;
                if physical.mappings == 0 && !physical.held {
                    self.physical.remove(&memory);
                }
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
        self.whole("set_access", addr, size);
        let act = |d: &mut D| d.set_access(addr, size, access);
        self.call("set_access", Some(addr), size, act, nowhere)
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let event = self.call("create_event", None, 0, D::create_event, nowhere)?;
        if !self.events.insert(event) {
            self.problem("create_event gave an event that exists");
        }
        Ok(event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.check_event("destroy_event", event);
        let act = |d: &mut D| d.destroy_event(event);
        self.call("destroy_event", None, 0, act, nowhere)?;
        self.events.remove(&event);
        Ok(())
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.check_event("record_event", event);
        let act = |d: &mut D| d.record_event(event, stream);
        self.call("record_event", None, stream.0, act, nowhere)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.allowed("query_event");
        self.check_event("query_event", event);
        self.call("query_event", None, 0, |d| d.query_event(event), nowhere)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.allowed("wait_event");
        self.check_event("wait_event", event);
        self.call("wait_event", None, 0, |d| d.wait_event(event), nowhere)
    }
}

impl<D: TestDevice> TestDevice for Checked<D> {
    fn write(&mut self, addr: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(addr, bytes)
    }

    fn read(&self, addr: DeviceAddr, bytes: &mut [u8]) -> Result<bool, DeviceError> {
        self.inner.read(addr, bytes)
    }

    fn enqueue_fill(&mut self, stream: StreamId, addr: DeviceAddr, size: u64, byte: u8) -> bool {
        self.inner.enqueue_fill(stream, addr, size, byte)
    }

    fn run_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.run_stream(stream)
    }
}

impl<D: Contents> Contents for Checked<D> {
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.allowed("synchronize");
        self.call("synchronize", None, 0, D::synchronize, nowhere)
    }

    fn download(&mut self, from: DeviceAddr, to: &mut [u8]) -> Result<(), DeviceError> {
        self.allowed("download");
        let size = to.len() as u64;
        self.call(
            "download",
            Some(from),
            size,
            |d| d.download(from, to),
            nowhere,
        )
    }

    fn upload(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), DeviceError> {
        self.allowed("upload");
        let size = from.len() as u64;
        self.call("upload", Some(to), size, |d| d.upload(to, from), nowhere)
    }
}
