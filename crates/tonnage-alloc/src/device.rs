// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contract between an allocator policy and whatever gives it memory.
//!
//! The verbs are those of the CUDA driver, because PyTorch's allocator is
//! written against them and must be able to run on this trait unchanged.
//! Everything a policy may know about a device is here; addresses are
//! integers, time does not exist, and order of calls is the only order.
//!
//! The trait has no access to bytes, because a policy never reads or writes them.

use thiserror::Error;

/// An address in device memory. Never dereferenced by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddr(pub u64);

impl DeviceAddr {
    /// The address `bytes` further on.
    ///
    /// Saturates: an address past the end of the space has no owner, which every lookup then reports.
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

/// An event made by [`Device::create_event`]: it marks a moment on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// Access rights of the device to a mapped range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Nothing. A range that was just mapped has this.
    #[default]
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

/// Why a device refused a call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is not enough free memory, or no range of addresses for it.
    #[error("out of memory: {requested} bytes requested, {free} bytes free")]
    OutOfMemory {
        /// Bytes the caller requested, before rounding.
        requested: u64,
        /// Bytes that were free at that moment.
        free: u64,
    },
    /// The call contradicts the contract: a size of zero, a range that is not mapped, an address that is not the first
    /// byte of an allocation.
    #[error("invalid value: {0}")]
    Invalid(&'static str),
    /// The driver failed for another reason: a lost device, an illegal access by earlier work, a limit of the system.
    #[error("{call} failed with code {code}")]
    Driver {
        /// The function of the driver or of the system.
        call: &'static str,
        /// Its return value.
        code: i32,
    },
}

/// A source of device memory.
///
/// Three kinds exist. [`SimDevice`](crate::SimDevice) computes its answers and
/// holds no bytes; `HostDevice` of the crate `tonnage-device-host` maps real
/// memory of the host; `CudaDevice` of the crate `tonnage-device-cuda` calls the
/// CUDA driver. The CUDA stand-in answers the driver's C functions from a
/// `SimDevice`; the tests of `CudaDevice` load it as the driver. A policy that
/// behaves differently on two devices is broken; the crate
/// `tonnage-conformance` tests that.
///
/// # Errors
///
/// A call that returns an error has changed nothing. Any call may return
/// [`DeviceError::Driver`]; [`DeviceError::OutOfMemory`] comes only from
/// [`malloc`](Self::malloc), [`reserve`](Self::reserve) and
/// [`create`](Self::create).
///
/// # Blocking, and graph capture
///
/// A runtime holds a lock while it calls a device, and it may be called while a stream of the program is captured into
/// a graph. Each verb therefore states its permissions here:
///
/// | verb | may block | while a stream is captured |
/// |---|---|---|
/// | `total`, `granularity` | no | allowed |
/// | `free_bytes` | for the driver's lock | allowed |
/// | `malloc`, `reserve`, `create`, `release`, `map`, `set_access` | for the driver's lock, never for work on a stream | allowed; the implementation sets the thread's capture mode to relaxed for the call |
/// | `free` | until all work on the device is done | forbidden |
/// | `unmap`, `unreserve` | for the driver's lock, not for work: the caller must know that nothing uses the range | forbidden |
/// | `create_event`, `destroy_event` | for the driver's lock | allowed |
/// | `record_event` | no | allowed on streams that are not captured |
/// | `query_event` | no | forbidden |
/// | `wait_event` | until the work before the event is done | forbidden |
///
/// "Forbidden" is the policy's duty: a driver would invalidate the capture.
///
/// # Threads
///
/// A device moves between threads with the policy that owns it, hence `Send`.
/// Calls are never made from two threads at once.
pub trait Device: Send {
    /// Bytes of memory the device has, as its driver reports them.
    fn total(&self) -> u64;

    /// Free bytes; 0 if the driver does not report them.
    fn free_bytes(&self) -> u64;

    /// Smallest unit of [`create`](Device::create) and [`map`](Device::map).
    fn granularity(&self) -> u64;

    /// Obtains `size` bytes (`cudaMalloc`).
    ///
    /// pre: `size > 0`. post: the range is disjoint from every other
    /// allocation, mapping and reservation, aligned to at least 512 bytes, and
    /// may be read and written.
    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError>;

    /// Returns an allocation (`cudaFree`).
    ///
    /// pre: `addr` was returned by [`malloc`](Device::malloc) and not yet freed.
    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError>;

    /// Reserves a range of addresses without memory (`cuMemAddressReserve`).
    ///
    /// pre: `size` is a positive multiple of the granularity. post: the range
    /// is disjoint from every other and starts at a multiple of the granularity.
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

    /// Puts all of `memory`, which has `size` bytes, at `addr` (`cuMemMap`).
    ///
    /// pre: the range lies in one reservation and nothing is mapped there; `addr`
    /// is a multiple of the granularity; `size` is what `memory` was created with.
    /// post: the range has [`Access::None`].
    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError>;

    /// Takes away every mapping in the range (`cuMemUnmap`).
    ///
    /// pre: the range is made up of whole mappings, and no work that is still to
    /// be done uses it.
    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError>;

    /// Says what the device may do with a range (`cuMemSetAccess`).
    ///
    /// pre: the range is made up of whole mappings.
    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError>;

    /// Makes an event that marks nothing yet (`cudaEventCreateWithFlags`).
    ///
    /// The creator destroys it.
    fn create_event(&mut self) -> Result<EventId, DeviceError>;

    /// Returns an event (`cudaEventDestroy`).
    ///
    /// pre: `event` was made by [`create_event`](Device::create_event) and not
    /// yet destroyed. It need not be done.
    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError>;

    /// Lets `event` mark this moment on `stream`, and no other moment any more
    /// (`cudaEventRecord`).
    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError>;

    /// Whether everything before the moment that `event` marks has run
    /// (`cudaEventQuery`). An event that marks nothing is done.
    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError>;

    /// Waits until [`query_event`](Device::query_event) would return true (`cudaEventSynchronize`).
    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError>;
}

/// A device whose bytes the host can copy, for callers that keep them while they have no memory on the device. Policies
/// do not.
///
/// All three calls may block until the work on the device is done, and are
/// forbidden while a stream is captured.
pub trait Contents: Device {
    /// Waits until all work on the device is done (`cuCtxSynchronize`).
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// Copies memory of the device to the host (`cuMemcpyDtoH`).
    ///
    /// pre: all of the range is mapped and may be read.
    fn download(&mut self, from: DeviceAddr, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies memory of the host to the device (`cuMemcpyHtoD`).
    ///
    /// pre: all of the range is mapped and may be written.
    fn upload(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), DeviceError>;
}
