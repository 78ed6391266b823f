// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocator policies, and the [`Device`] they run on.
//!
//! An allocator policy never sees a pointer, a clock or a thread. It sees a
//! [`Device`]: the calls of a driver, with a written contract. [`SimDevice`]
//! answers them by arithmetic alone, so the very same policy code runs against
//! a GPU that is not there. The CUDA stand-in keeps its accounts on a
//! `SimDevice` too, which is why a dry run and a replay cannot disagree about
//! what fits.
//!
//! [`Policy`] is what every policy can do. [`torch`] is PyTorch's caching
//! allocator, event for event; [`tonnage`] is our own; [`Bfc`] and [`StreamPool`] are approximations,
//! which [`StreamSafe`] makes policies of.
//!
//! # Vocabulary
//!
//! * **segment**: a range obtained from the device by one call;
//! * **block**: a part of a segment handed out by a policy;
//! * **request**: the bytes that the program requested, before rounding;
//! * **charged**: bytes of device memory in use by any holder;
//! * **reservation**: a range of addresses with no memory behind it;
//! * lifetimes and address ranges are half-open.
//!
//! **Invariant:** nothing in this crate does I/O, reads a clock, starts a
//! thread or depends on the order of a hash map. Same calls in, same answers out.
#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod address;
mod bfc;
mod device;
mod policy;
mod pool;
mod reservations;
mod sim;
mod stream_safe;
pub mod tonnage;
pub mod torch;

pub use address::{AddressOrder, AddressSpace};
pub use bfc::Bfc;
pub use device::{
    Access, Contents, Device, DeviceAddr, DeviceError, EventId, PhysicalId, StreamId,
};
pub use policy::{Policy, PolicyError, Request, Tag};
pub use pool::StreamPool;
pub use reservations::{Reservations, whole_pieces};
pub use sim::{Allocation, AllocationKind, SimConfig, SimDevice};
pub use stream_safe::{StreamSafe, Suballocator};

/// The granularity of the driver: physical memory comes in pieces of 2 MiB.
pub const GRANULARITY: u64 = 2 << 20;

/// The size of a request in an allocator with multiples of `step`, or the reason why it cannot be served: zero bytes,
/// or more than can be counted.
pub(crate) fn rounded_request(
    device: &impl Device,
    size: u64,
    step: u64,
) -> Result<u64, DeviceError> {
    if size == 0 {
        return Err(DeviceError::Invalid("an allocation of zero bytes"));
    }
    round_up(size, step).ok_or_else(|| DeviceError::OutOfMemory {
        requested: size,
        free: device.free_bytes(),
    })
}

/// Rounds `size` up to a multiple of `step`, or `None` if that does not fit in 64 bits.
pub fn round_up(size: u64, step: u64) -> Option<u64> {
    debug_assert!(step > 0);
    size.checked_next_multiple_of(step)
}
