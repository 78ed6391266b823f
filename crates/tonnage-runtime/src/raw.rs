// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bare addresses, for callers that have nothing else: functions that C calls.
//!
//! An address is a number that anyone can copy. A block that is freed twice by its address may be another block by
//! then, so the caller of these functions keeps the promise that a [`Block`](crate::Block) keeps by itself. Blocks with
//! a handle are safe from them: they are not freed by an address.

use tonnage_alloc::tonnage::Allocator;
use tonnage_alloc::{Device, DeviceAddr, Policy, Request, StreamId};

use crate::{Error, Runtime, block};

/// A block that was handed out or taken back by its address, and the memory of the runtime at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawBlock {
    /// Its first byte.
    pub addr: DeviceAddr,
    /// Its bytes, slack included.
    pub size: u64,
    /// Bytes of all live blocks.
    pub allocated: u64,
    /// Bytes held from the device.
    pub reserved: u64,
}

impl<D: Device> Runtime<D> {
    /// Serves a request, as [`alloc`](Self::alloc) does: the address of a block, which
    /// [`free_raw`](Self::free_raw) takes back.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_raw(&self, request: Request) -> Result<DeviceAddr, Error> {
        self.0.serve(request, Allocator::attempt)
    }

    /// The same; a function gets the block and the totals before another thread can request anything. It runs with the
    /// lock held: it must not call the runtime.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_raw_with(
        &self,
        request: Request,
        then: impl Fn(RawBlock),
    ) -> Result<DeviceAddr, Error> {
        self.0.serve(request, |allocator, request| {
            let addr = allocator.attempt(request)?;
            then(RawBlock {
                addr,
                size: block::rounded::<D>(request.bytes),
                allocated: allocator.allocated(),
                reserved: allocator.reserved(),
            });
            Ok(addr)
        })
    }

    /// Takes a block of [`alloc_raw`](Self::alloc_raw) back. Its own stream may get it again at once, others when the
    /// work of that stream is done.
    ///
    /// # Safety
    /// `addr` was returned by [`alloc_raw`](Self::alloc_raw) of this runtime and was not freed since. No copy of the
    /// address is used afterwards.
    ///
    /// # Errors
    /// If no live block starts there, if a [`Block`](crate::Block) owns it, or if the runtime is broken.
    pub unsafe fn free_raw(&self, addr: DeviceAddr) -> Result<(), Error> {
        Ok(self.lock()?.allocator.free(addr)?)
    }

    /// The same; a function gets the block and the totals without it, before another thread can request anything. It
    /// runs with the lock held: it must not call the runtime.
    ///
    /// # Safety
    /// As [`free_raw`](Self::free_raw).
    ///
    /// # Errors
    /// As [`free_raw`](Self::free_raw).
    #[inline]
    pub unsafe fn free_raw_with(
        &self,
        addr: DeviceAddr,
        then: impl FnOnce(RawBlock),
    ) -> Result<(), Error> {
        let mut state = self.lock()?;
        let allocator = &mut state.allocator;
        let size = allocator.free_sized(addr)?;
        then(RawBlock {
            addr,
            size,
            allocated: allocator.allocated(),
            reserved: allocator.reserved(),
        });
        Ok(())
    }

    /// Reports that another stream uses a live block of [`alloc_raw`](Self::alloc_raw) too.
    ///
    /// # Errors
    /// If no live block starts there, or if a [`Block`](crate::Block) owns it.
    pub fn record_stream_raw(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), Error> {
        Ok(self.lock()?.allocator.record_stream(addr, stream)?)
    }

    /// Bytes of the live block that starts at an address, slack included; `None` if there is none.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn size_of(&self, addr: DeviceAddr) -> Result<Option<u64>, Error> {
        Ok(self.lock()?.allocator.size_of(addr))
    }

    /// Changes the device, while no thread is inside of the allocator; otherwise as
    /// [`with_device`](Self::with_device).
    ///
    /// # Safety
    /// The closure takes nothing away from the device that the allocator or a block holds, does not put another device
    /// in its place, and touches only memory that the caller owns.
    ///
    /// # Errors
    /// As [`with_device`](Self::with_device).
    pub unsafe fn with_device_mut<T>(&self, act: impl FnOnce(&mut D) -> T) -> Result<T, Error> {
        self.0.visit(act)
    }
}
