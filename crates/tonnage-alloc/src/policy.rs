// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of every allocator policy, independent of its rules.
//!
//! A policy owns a [`Device`] and cuts its memory into blocks. PyTorch's
//! caching allocator ([`torch::Allocator`](crate::torch::Allocator)) is one;
//! [`StreamSafe`](crate::StreamSafe) makes one of an allocator that knows no
//! streams. Replays, the conformance suite and a runtime are written against
//! this trait, so a new policy works with all of them.

use thiserror::Error;

use crate::tonnage::Live;
use crate::torch::{PoolId, Undefined};
use crate::{Device, DeviceAddr, DeviceError, StreamId};

/// A program's name for some of its blocks, as a number; policies that do not know tags ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// Not called anything.
    pub const NONE: Self = Self(0);
}

/// A request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Bytes that the program requests.
    pub bytes: u64,
    /// The stream that will use the block first.
    pub stream: StreamId,
    /// The pool it comes from.
    pub pool: PoolId,
    /// The program's name for it.
    pub tag: Tag,
}

impl Request {
    /// A request of a stream, from the default pool.
    #[inline]
    pub fn new(bytes: u64, stream: StreamId) -> Self {
        Self {
            bytes,
            stream,
            pool: PoolId::DEFAULT,
            tag: Tag::NONE,
        }
    }

    /// The same request, from another pool.
    #[inline]
    #[must_use]
    pub fn in_pool(self, pool: PoolId) -> Self {
        Self { pool, ..self }
    }

    /// The same request, with a tag.
    #[inline]
    #[must_use]
    pub fn tagged(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }
}

/// Why a policy refused a call.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// There is not enough memory, even after everything cached was given back.
    #[error("out of memory: {requested} bytes requested, {free} bytes free on the device")]
    OutOfMemory {
        /// Requested bytes.
        requested: u64,
        /// Bytes the device had free.
        free: u64,
    },
    /// The policy does not serve such a call at all: a request of zero bytes, one too large to count, an unused pool.
    #[error("{0}")]
    Refused(String),
    /// No live block starts at this address.
    #[error("no live block at {:#x}", .0.0)]
    UnknownAddress(DeviceAddr),
    /// A handle owns the block at this address, or another caller does. Only the owner frees it.
    #[error("the block at {:#x} has another owner; free it through the handle that was given for it", .0.0)]
    Owned(DeviceAddr),
    /// A stream is captured into a graph, which forbids the call.
    #[error("a stream is captured into a graph: do this before or after the capture")]
    Captured,
    /// Blocks are live that have to be freed first.
    #[error("{0}")]
    Live(Box<Live>),
    /// The device failed in a way that is not shortage of memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// PyTorch's own behavior is undefined here: later results do not apply to it.
    #[error("undefined in torch: {0}")]
    Undefined(Undefined),
}

/// An allocator policy on a device.
///
/// # Contract
///
/// * Live blocks never overlap. A block has at least the requested bytes and starts at a multiple of
///   [`ALIGNMENT`](Self::ALIGNMENT).
/// * [`reserved`](Self::reserved) is what the policy holds from the device.
/// * A call that returns an error leaves every live block as it was. A request
///   that ran out of memory may have given cached memory back, nothing else.
/// * The same calls on the same device give the same blocks.
/// * When every block is freed and [`close`](Self::close) was called, the device
///   holds nothing for the policy: no memory, no reservation, no event.
/// * While a stream is captured the policy makes no call that [`Device`] forbids
///   then. A request for a graph's own pool, whose name starts with a number
///   other than 0, is made during the capture of that graph.
///
/// Dropping a policy need not give anything back; tonnage's own allocator does.
///
/// ```
/// use tonnage_alloc::torch::{Allocator, Settings};
/// use tonnage_alloc::{Bfc, Policy, PolicyError, Request, SimConfig, SimDevice, StreamId, StreamSafe};
///
/// /// How many blocks of one size fit on the device of a policy.
/// fn capacity<P: Policy>(policy: &mut P, bytes: u64) -> Result<usize, PolicyError> {
///     let mut blocks = Vec::new();
///     loop {
///         match policy.alloc(Request::new(bytes, StreamId(0))) {
///             Ok(block) => blocks.push(block),
///             Err(PolicyError::OutOfMemory { .. }) => break,
///             Err(error) => return Err(error),
///         }
///     }
///     let count = blocks.len();
///     for block in blocks {
///         policy.free(block)?;
///     }
///     policy.close()?;
///     Ok(count)
/// }
///
/// let device = SimDevice::new(SimConfig::with_total(1 << 30));
/// let mut torch = Allocator::new(device.clone(), Settings::default());
/// let mut bfc = StreamSafe::<Bfc, _>::new(device);
/// // torch cuts three blocks from each segment of 20 MiB; 2 MiB are left over.
/// assert_eq!(capacity(&mut torch, 6 << 20)?, 153);
/// assert_eq!(capacity(&mut bfc, 6 << 20)?, 167);
/// # Ok::<(), PolicyError>(())
/// ```
pub trait Policy {
    /// The device it runs on.
    type Device: Device;

    /// Every block starts at a multiple of this.
    const ALIGNMENT: u64;

    /// Whether the policy knows streams and captures: a block that one stream freed goes to another only when the work
    /// of the first is done. A policy that returns `false` counts all streams as one, so its program must order them,
    /// and cannot serve requests while a stream is captured.
    const STREAM_AWARE: bool;

    /// Serves a request: the first byte of a block.
    fn alloc(&mut self, request: Request) -> Result<DeviceAddr, PolicyError>;

    /// Takes a block back. Its own stream may get it again at once; it waits for
    /// what other streams, named by [`record_stream`](Self::record_stream), were
    /// given to do so far.
    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError>;

    /// Says that another stream uses a live block too.
    fn record_stream(&mut self, addr: DeviceAddr, stream: StreamId) -> Result<(), PolicyError>;

    /// Says that the program begins a step of what it repeats, for policies that
    /// follow a plan. Nothing depends on it but speed.
    fn begin_step(&mut self) {}

    /// Completes the frees that no stream delays any more. Every request does
    /// that first.
    fn process_events(&mut self) -> Result<(), PolicyError>;

    /// Gives cached memory back: everything for [`PoolId::DEFAULT`], else that of one pool that is no longer used. May
    /// wait for streams that delay a free.
    fn empty_cache(&mut self, pool: PoolId) -> Result<(), PolicyError>;

    /// One user of a pool less; without users its memory may go back.
    fn release_pool(&mut self, pool: PoolId) -> Result<(), PolicyError>;

    /// Gives back everything that no live block needs, also what the policy
    /// otherwise keeps for as long as it lives.
    fn close(&mut self) -> Result<(), PolicyError>;

    /// The device below.
    fn device(&self) -> &Self::Device;

    /// The device below, to change what it simulates.
    fn device_mut(&mut self) -> &mut Self::Device;

    /// Bytes of the live block that starts at `addr`, slack included.
    fn size_of(&self, addr: DeviceAddr) -> Option<u64>;

    /// Bytes held from the device.
    fn reserved(&self) -> u64;

    /// Bytes of live blocks, slack included. Blocks whose free waits for a stream
    /// may count too.
    fn allocated(&self) -> u64;

    /// The most that was ever allocated.
    fn peak_allocated(&self) -> u64;

    /// How often everything cached was given back to serve a request.
    fn retries(&self) -> u64;

    /// Bytes of the largest free block; `None` if the policy has no such blocks.
    fn largest_free(&self) -> Option<u64>;

    /// Where the behaviour of the allocator it follows is undefined or not known.
    fn undefined(&self) -> Vec<String> {
        Vec::new()
    }
}
