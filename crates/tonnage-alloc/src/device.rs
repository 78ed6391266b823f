// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contract between an allocator policy and whatever gives it memory.
//!
//! The verbs are those of the CUDA driver, because PyTorch's allocator is
//! written against them and must be able to run on this trait unchanged.
//! Everything a policy may know about a device is here; addresses are
//! integers, time does not exist, and order of calls is the only order.

use thiserror::Error;

/// An address in device memory. Never dereferenced by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddr(pub u64);

impl DeviceAddr {
    /// The address `bytes` further on.
    ///
    /// Saturates: an address past the end of the space belongs to nobody, which
    /// every lookup then says.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

/// A piece of physical memory made by [`Device::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalId(pub u64);

/// A stream, named by its raw handle; 0 is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A moment on a stream, made by [`Device::record_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// Why a device said no.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is not enough free memory, or no range of addresses for it.
    #[error("out of memory: {requested} bytes asked for, {free} bytes free")]
    OutOfMemory {
        /// Bytes the caller asked for, before rounding.
        requested: u64,
        /// Bytes that were free at that moment.
        free: u64,
    },
    /// The call contradicts the contract: a size of zero, a range that is not
    /// mapped, an address that is no allocation's first byte.
    #[error("invalid value: {0}")]
    Invalid(&'static str),
}

/// A source of device memory.
///
/// Three kinds exist: arithmetic ([`SimDevice`](crate::SimDevice)), the real
/// driver, and the real driver's calls answered by the stand-in. A policy that
/// behaves differently on two of them is broken.
pub trait Device {
    /// Bytes of memory the device has, as its driver reports them.
    fn total(&self) -> u64;

    /// Bytes nobody holds.
    fn free_bytes(&self) -> u64;

    /// Smallest unit of [`create`](Device::create) and [`map`](Device::map).
    fn granularity(&self) -> u64;

    /// Obtains `size` bytes (`cudaMalloc`).
    ///
    /// pre: `size > 0`. post: the range is disjoint from every other
    /// allocation, mapping and reservation, and aligned to at least 512 bytes.
    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError>;

    /// Returns an allocation (`cudaFree`).
    ///
    /// pre: `addr` was returned by [`malloc`](Device::malloc) and not yet freed.
    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError>;

    /// Reserves a range of addresses without memory (`cuMemAddressReserve`).
    ///
    /// pre: `size` is a positive multiple of the granularity.
    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError>;

    /// Returns a reservation (`cuMemAddressFree`).
    ///
    /// pre: exactly the range reserved, with nothing mapped in it.
    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError>;

    /// Obtains physical memory without an address (`cuMemCreate`).
    ///
    /// pre: `size` is a positive multiple of the granularity.
    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError>;

    /// Gives up the caller's hold on physical memory (`cuMemRelease`).
    ///
    /// post: the bytes are free once nothing maps them either.
    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError>;

    /// Puts all of `memory` at `addr` (`cuMemMap`).
    ///
    /// pre: the range lies in one reservation and nothing is mapped there.
    fn map(&mut self, addr: DeviceAddr, memory: PhysicalId) -> Result<(), DeviceError>;

    /// Takes away every mapping in the range (`cuMemUnmap`).
    ///
    /// pre: the range is made up of whole mappings.
    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError>;

    /// Marks this moment on `stream` (`cudaEventRecord`).
    fn record_event(&mut self, stream: StreamId) -> EventId;

    /// Whether everything before `event` has run (`cudaEventQuery`).
    fn event_done(&mut self, event: EventId) -> bool;

    /// Waits until [`event_done`](Device::event_done) would say yes.
    fn wait_event(&mut self, event: EventId);
}
