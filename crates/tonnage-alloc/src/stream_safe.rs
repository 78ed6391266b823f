// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a policy of an allocator that knows neither streams nor pools.
//!
//! All streams count as one: a freed block may be handed to any stream at once,
//! unless [`record_stream`](Policy::record_stream) named streams that still use
//! it. Then it waits for an event on each of them. A request that finds no
//! memory waits for all of them, gives back what can be given back, and tries
//! once more. Pools are ignored.

use std::collections::{BTreeMap, BTreeSet};

use crate::torch::PoolId;
use crate::{Device, DeviceAddr, DeviceError, EventId, Policy, PolicyError, Request, StreamId};

/// An allocator that knows neither streams nor pools, and does not own the device.
pub trait Suballocator: Default {
    /// Every block starts at a multiple of this.
    const ALIGNMENT: u64;

    /// Serves a request, growing on `device` if need be.
    fn malloc(&mut self, device: &mut impl Device, bytes: u64) -> Result<DeviceAddr, DeviceError>;

    /// Takes a block back.
    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError>;

    /// Gives back what this kind of allocator gives back while it lives.
    fn trim(&mut self, device: &mut impl Device) -> Result<(), DeviceError>;

    /// Gives back everything that no live block needs.
    fn close(&mut self, device: &mut impl Device) -> Result<(), DeviceError>;

    /// Bytes of the live block that starts at `addr`.
    fn size_of(&self, addr: DeviceAddr) -> Option<u64>;

    /// Bytes held from the device.
    fn reserved(&self) -> u64;

    /// Bytes of live blocks.
    fn used(&self) -> u64;

    /// The most that was ever used.
    fn peak_used(&self) -> u64;

    /// Bytes of the largest free block; `None` if it is not known.
    fn largest_free(&self) -> Option<u64>;
}

/// A block that was freed while streams used it.
#[derive(Clone, Debug)]
struct Waiting {
    addr: DeviceAddr,
    /// The events that it waits for.
    events: Vec<EventId>,
}

/// A [`Suballocator`] on a device, as a [`Policy`].
#[derive(Clone, Debug)]
pub struct StreamSafe<A, D> {
    device: D,
    blocks: A,
    retries: u64,
    /// The streams that were named for live blocks.
    uses: BTreeMap<DeviceAddr, BTreeSet<StreamId>>,
    /// In the order of their frees.
    waiting: Vec<Waiting>,
    /// Where they start.
    waiting_addrs: BTreeSet<DeviceAddr>,
    /// Events that can be recorded again.
    spare: Vec<EventId>,
}

impl<A: Suballocator, D: Device> StreamSafe<A, D> {
    /// An allocator that holds nothing yet.
    pub fn new(device: D) -> Self {
        Self {
            device,
            blocks: A::default(),
            retries: 0,
            uses: BTreeMap::new(),
            waiting: Vec::new(),
            waiting_addrs: BTreeSet::new(),
            spare: Vec::new(),
        }
    }

    /// Marks the present moment on each stream; on an error nothing has changed.
    fn mark(&mut self, streams: &BTreeSet<StreamId>) -> Result<Vec<EventId>, DeviceError> {
        let mut marked = Vec::new();
        for &stream in streams {
            let event = match self.spare.pop() {
                Some(event) => Ok(event),
                None => self.device.create_event(),
            };
            let recorded = event.and_then(|event| {
                marked.push(event);
                self.device.record_event(event, stream)
            });
            if let Err(error) = recorded {
                self.spare.append(&mut marked);
                return Err(error);
            }
        }
        Ok(marked)
    }

    /// Completes frees whose events are done according to `done`.
    fn complete(
        &mut self,
        done: impl Fn(&mut D, EventId) -> Result<bool, DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut failure = Ok(());
        let mut kept = Vec::new();
        for mut block in std::mem::take(&mut self.waiting) {
            while failure.is_ok()
                && let Some(&event) = block.events.last()
            {
                match done(&mut self.device, event) {
                    Ok(true) => {
                        block.events.pop();
                        self.spare.push(event);
                    }
                    Ok(false) => break,
                    Err(error) => failure = Err(error),
                }
            }
            if block.events.is_empty() {
                self.waiting_addrs.remove(&block.addr);
                let freed = self.blocks.free(block.addr);
                failure = failure.and(freed);
            } else {
                kept.push(block);
            }
        }
        self.waiting = kept;
        failure
    }

    fn wait_for_all(&mut self) -> Result<(), DeviceError> {
        self.complete(|device, event| device.wait_event(event).map(|()| true))
    }

    /// The size of a block that is live, not one that waits.
    fn live(&self, addr: DeviceAddr) -> Option<u64> {
        if self.waiting_addrs.contains(&addr) {
            return None;
        }
        self.blocks.size_of(addr)
    }
}

impl<A: Suballocator, D: Device> Policy for StreamSafe<A, D> {
    type Device = D;

    const ALIGNMENT: u64 = A::ALIGNMENT;
    const STREAM_AWARE: bool = false;

    fn alloc(&mut self, request: Request) -> Result<DeviceAddr, PolicyError> {
        let bytes = request.bytes;
        if bytes == 0 {
            let reason = "a request of zero bytes";
            return Err(PolicyError::Refused(reason.to_owned()));
        }
        if !self.waiting.is_empty() {
            self.complete(Device::query_event)?;
        }
        let mut served = self.blocks.malloc(&mut self.device, bytes);
        if matches!(served, Err(DeviceError::OutOfMemory { .. })) {
            self.retries += 1;
            self.wait_for_all()?;
            self.blocks.trim(&mut self.device)?;
            served = self.blocks.malloc(&mut self.device, bytes);
        }
        match served {
            Ok(addr) => Ok(addr),
            Err(DeviceError::OutOfMemory { .. }) => Err(PolicyError::OutOfMemory {
                requested: bytes,
                free: self.device.free_bytes(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        self.live(addr).ok_or(PolicyError::UnknownAddress(addr))?;
        let Some(streams) = self.uses.remove(&addr) else {
            return Ok(self.blocks.free(addr)?);
        };
        match self.mark(&streams) {
            Ok(events) => {
                self.waiting.push(Waiting { addr, events });
                self.waiting_addrs.insert(addr);
                Ok(())
            }
            Err(error) => {
                self.uses.insert(addr, streams);
                Err(error.into())
            }
        }
    }

    fn record_stream(&mut self, addr: DeviceAddr, stream: StreamId) -> Result<(), PolicyError> {
        self.live(addr).ok_or(PolicyError::UnknownAddress(addr))?;
        self.uses.entry(addr).or_default().insert(stream);
        Ok(())
    }

    fn process_events(&mut self) -> Result<(), PolicyError> {
        Ok(self.complete(Device::query_event)?)
    }

    fn empty_cache(&mut self, _pool: PoolId) -> Result<(), PolicyError> {
        Ok(self.blocks.trim(&mut self.device)?)
    }

    fn release_pool(&mut self, _pool: PoolId) -> Result<(), PolicyError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), PolicyError> {
        self.wait_for_all()?;
        self.blocks.close(&mut self.device)?;
        while let Some(&event) = self.spare.last() {
            self.device.destroy_event(event)?;
            self.spare.pop();
        }
        Ok(())
    }

    fn device(&self) -> &D {
        &self.device
    }

    fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        self.live(addr)
    }

    fn reserved(&self) -> u64 {
        self.blocks.reserved()
    }

    fn allocated(&self) -> u64 {
        self.blocks.used()
    }

    fn peak_allocated(&self) -> u64 {
        self.blocks.peak_used()
    }

    fn retries(&self) -> u64 {
        self.retries
    }

    fn largest_free(&self) -> Option<u64> {
        self.blocks.largest_free()
    }
}
