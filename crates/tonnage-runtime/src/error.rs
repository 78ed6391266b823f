// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a call of a runtime failed.

use thiserror::Error;
use tonnage_alloc::tonnage::Live;
use tonnage_alloc::{DeviceAddr, DeviceError, PolicyError};

use crate::search::OutOfMemory;

/// Why a call of a runtime failed. Nothing has changed then, except where a function documents it.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// There is no memory, although everything was tried.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is larger than the device: nothing was tried, and nothing can help.
    #[error("{0}")]
    TooLarge(Box<OutOfMemory>),
    /// There is not enough memory to resume what is paused, which stays paused.
    #[error("out of memory: {needed} bytes are needed to resume, {free} bytes can be had")]
    Resume {
        /// Bytes that are paused.
        needed: u64,
        /// Bytes that can be had for them.
        free: u64,
    },
    /// A tenant would have more than its quota.
    #[error("{tenant} is above its quota: {requested} bytes requested, {used} of {quota} in use")]
    Quota {
        /// Its name.
        tenant: String,
        /// Requested bytes, rounded up.
        requested: u64,
        /// Bytes of its live blocks.
        used: u64,
        /// Bytes it may use.
        quota: u64,
    },
    /// A request of zero bytes.
    #[error("a request of zero bytes")]
    Zero,
    /// A part of a block was named that the block does not have.
    #[error("{bytes} bytes at {offset} are not in a block of {size}")]
    Bounds {
        /// First byte.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// Bytes of the block.
        size: u64,
    },
    /// A stream is captured into a graph, which forbids the call.
    #[error("a stream is captured into a graph: do this before or after the capture")]
    Capture,
    /// Blocks are live that have to be freed first.
    #[error("{0}")]
    Live(Box<Live>),
    /// The call was made inside of `with_device`, which has the lock.
    #[error(
        "the runtime was called inside of with_device, which has its lock: return from the closure first"
    )]
    Inside,
    /// A thread panicked inside of the allocator: a bug of the device, or of this crate. Nothing is served any more.
    #[error("the allocator is broken: a thread panicked inside of it")]
    Poisoned,
    /// No live block starts at this address.
    #[error("no live block at {:#x}", .0.0)]
    UnknownAddress(DeviceAddr),
    /// A [`Block`](crate::Block) owns the memory at this address, so it is not C's to free.
    #[error("the block at {:#x} has another owner; free it through the handle that was given for it", .0.0)]
    Owned(DeviceAddr),
    /// The device failed in a way that is not shortage of memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The runtime does not serve such a call.
    #[error("{0}")]
    Refused(String),
}

impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::OutOfMemory { requested, free } => Self::Resume {
                needed: requested,
                free,
            },
            PolicyError::Captured => Self::Capture,
            PolicyError::UnknownAddress(addr) => Self::UnknownAddress(addr),
            PolicyError::Owned(addr) => Self::Owned(addr),
            PolicyError::Live(live) => Self::Live(live),
            PolicyError::Device(error) => Self::Device(error),
            other => Self::Refused(other.to_string()),
        }
    }
}
