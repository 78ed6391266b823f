// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a call was not served, and where torch's own behaviour ends.

use std::fmt;

use thiserror::Error;

use super::PoolId;
use crate::{DeviceAddr, DeviceError};

/// The reason of a refusal.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Every attempt of specification 3.1 failed.
    #[error("out of memory")]
    OutOfMemory(Box<OutOfMemory>),
    /// `throw_on_cudamalloc_oom` refused before a call of the device.
    #[error("rejected: {held} bytes held and {segment_size} wanted, {limit} allowed")]
    Rejected {
        /// Bytes that would have been requested from the device.
        segment_size: u64,
        /// Bytes held from the device.
        held: u64,
        /// The configured limit.
        limit: u64,
    },
    /// The device failed in a way that is not shortage of memory.
    #[error("device call failed")]
    Device(#[from] DeviceError),
    /// No live block starts at this address.
    #[error("no live block at {:#x}", .0.0)]
    UnknownAddress(DeviceAddr),
    /// A request of zero bytes; torch answers those with a null pointer and no event.
    #[error("a request of zero bytes")]
    Empty,
    /// A request of 2^60 bytes or more; torch refuses those without event or counter.
    #[error("a request of {0} bytes, more than 1 EiB")]
    TooLarge(u64),
    /// The call contradicts what torch asserts about its pools.
    #[error("pool ({}, {}): {reason}", .pool.0, .pool.1)]
    Pool {
        /// The pool it was about.
        pool: PoolId,
        /// The violated condition.
        reason: &'static str,
    },
    /// torch aborts or corrupts its own memory here.
    #[error("undefined in torch: {0}")]
    Undefined(Undefined),
    /// A segment cannot be taken over.
    #[error("the segment cannot be taken over: {0}")]
    Segment(&'static str),
    /// A fraction outside of 0 to 1.
    #[error("a memory fraction must lie within [0, 1]")]
    Fraction,
}

/// Places where torch's behaviour is undefined or not a function of its input.
///
/// They are reported, never imitated: results after one do not apply to torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Undefined {
    /// A part of a segment would be given to `cudaFree` (specification 15.5).
    SplitBlockReleased,
    /// A private pool would give back more than it counted (specification 15.4);
    /// torch aborts.
    PoolCountUnderflow,
    /// A private pool counts down to nothing while blocks of it are alive;
    /// torch deletes it and later uses what it deleted.
    PoolDeletedInUse,
    /// Several frees were deferred by one capture; torch completes them in the
    /// order of heap addresses (specification 5.5), we in the order of the frees.
    DeferredOrder,
    /// `graph_capture_record_stream_reuse` depends on the shape of the graph,
    /// which no recording holds; the block stays pending until the capture ends.
    CaptureReuse,
    /// torch never forgets which streams used a block during a capture if the
    /// block is given back outside of one, and a later block that happens to
    /// lie at the same heap address inherits them: its free, if deferred, does
    /// not wait for those streams although it should.
    StaleCaptureUses,
}

impl fmt::Display for Undefined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SplitBlockReleased => "a part of a segment would be given back to the device",
            Self::PoolCountUnderflow => "a private pool would give back more than it counted",
            Self::PoolDeletedInUse => "a private pool would be deleted while it is in use",
            Self::DeferredOrder => "several deferred frees complete in an unknown order",
            Self::CaptureReuse => "reuse during capture depends on the shape of the graph",
            Self::StaleCaptureUses => "streams of an earlier block may be taken for a later one's",
        })
    }
}

/// The state of things when a request could not be served (specification 12).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes that the program requested.
    pub requested: u64,
    /// The same, rounded to a block.
    pub rounded: u64,
    /// Bytes that were requested from the device: the attempt in torch's message.
    pub segment_size: u64,
    /// Bytes of memory of the device.
    pub device_total: u64,
    /// Bytes the device had free.
    pub device_free: u64,
    /// The limit set by a memory fraction.
    pub allowed: Option<u64>,
    /// Bytes in live blocks.
    pub allocated: u64,
    /// Bytes held from the device.
    pub reserved: u64,
    /// Bytes in free blocks of private pools, which torch's message calls allocated.
    pub cached_in_private_pools: u64,
}

impl OutOfMemory {
    /// The first sentences of torch's message for GPU number `gpu`, without the
    /// lines about processes and without the advice.
    pub fn message(&self, gpu: u32) -> String {
        let allowed = self
            .allowed
            .map(|bytes| format!("{} allowed; ", readable(bytes)))
            .unwrap_or_default();
        let private = match self.cached_in_private_pools {
            0 => String::new(),
            bytes => format!(
                "with {} allocated in private pools (e.g., CUDA Graphs), ",
                readable(bytes)
            ),
        };
        let unallocated = self
            .reserved
            .wrapping_sub(self.allocated)
            .wrapping_sub(self.cached_in_private_pools);
        format!(
            "CUDA out of memory. Tried to allocate {}. GPU {gpu} has a total capacity of {} of \
             which {} is free. {allowed}Of the allocated memory {} is allocated by PyTorch, \
             {private}and {} is reserved by PyTorch but unallocated.",
            readable(self.segment_size),
            readable(self.device_total),
            readable(self.device_free),
            readable(self.allocated + self.cached_in_private_pools),
            readable(unallocated),
        )
    }
}

/// A size as torch prints it: a unit is left only above its own limit, so 1 GiB
/// is `1024.00 MiB`.
fn readable(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        1025..=1_048_576 => format!("{:.2} KiB", value / 1024.0),
        1_048_577..=1_073_741_824 => format!("{:.2} MiB", value / 1_048_576.0),
        _ => format!("{:.2} GiB", value / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_words_of_torch() {
        let told = OutOfMemory {
            requested: 734_003_203,
            rounded: 734_003_712,
            segment_size: 702 << 20,
            device_total: 1 << 30,
            device_free: 400,
            allowed: None,
            allocated: 3 << 20,
            reserved: 20 << 20,
            cached_in_private_pools: 2048,
        };
        assert_eq!(
            told.message(0),
            "CUDA out of memory. Tried to allocate 702.00 MiB. GPU 0 has a total capacity of \
             1024.00 MiB of which 400 bytes is free. Of the allocated memory 3.00 MiB is \
             allocated by PyTorch, with 2.00 KiB allocated in private pools (e.g., CUDA Graphs), \
             and 17.00 MiB is reserved by PyTorch but unallocated."
        );
    }
}
