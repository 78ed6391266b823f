// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the requests of a recording through one allocator.
//!
//! Three allocators behind one small trait: PyTorch's own, event for event, and
//! the approximations of the driver's stream-ordered pool and of best fit with
//! coalescing. The loop in [`run`] is all that a sweep repeats.

use std::collections::BTreeMap;

use tonnage_alloc::torch::{Allocator, BlockState, Error, PoolId, Rules, Settings, Sink};
use tonnage_alloc::{Bfc, Device as _, DeviceAddr, DeviceError, StreamPool};

use super::Fidelity;
use super::requests::{Lane, Op, OpKind, Requests};
use super::stage::Stage;
use super::start::Start;

/// No block: the request was not served, or is over.
pub(crate) const NOWHERE: u64 = u64::MAX;
/// A pool that no program can name.
const NO_POOL: PoolId = PoolId(u64::MAX, u64::MAX);

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was not enough memory; so many bytes were free.
    OutOfMemory { free: u64 },
    /// torch is undefined from here on, or the device failed: nothing after
    /// this says anything.
    Broken(String),
}

/// What an allocator must be able to do to be replayed.
pub(crate) trait Policy {
    /// How far its answers can be trusted.
    const FIDELITY: Fidelity;
    /// Serves a request into a slot.
    fn alloc(&mut self, slot: u32, lane: Lane, bytes: u64) -> Result<u64, Refusal>;
    /// Takes the block of a slot back.
    fn free(&mut self, slot: u32, addr: u64) -> Result<(), Refusal>;
    /// Takes it back, but it may not be used again before [`Policy::free_now`].
    fn free_later(&mut self, slot: u32, addr: u64) -> Result<(), Refusal>;
    /// Nothing delays the slot's free any more; it may be over already.
    fn free_now(&mut self, slot: u32) -> Result<(), Refusal>;
    /// `empty_cache`, or the end of a private pool.
    fn release(&mut self, pool: PoolId) -> Result<(), Refusal>;
    /// Nobody uses the pool any more.
    fn pool_done(&mut self, pool: PoolId) -> Result<(), Refusal>;
    /// The device below.
    fn stage_mut(&mut self) -> &mut Stage;
    /// Bytes held from the device.
    fn reserved(&self) -> u64;
    /// Bytes handed out.
    fn allocated(&self) -> u64;
    /// Most bytes that were ever handed out.
    fn peak_allocated(&self) -> u64;
    /// How often everything cached was given back to serve a request.
    fn retries(&self) -> u64;
    /// Bytes of the largest free block; `None` if it has no such blocks.
    fn largest_free(&self) -> Option<u64>;
    /// Where its behaviour is undefined or not known.
    fn undefined(&self) -> Vec<String>;
}

/// A request that could not be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Index of the operation.
    pub(crate) op: usize,
    pub(crate) bytes: u64,
    pub(crate) refusal: Refusal,
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) stop: Option<Stop>,
    pub(crate) peak_reserved: u64,
    /// Bytes handed out when the most was reserved.
    pub(crate) allocated_at_peak: u64,
    /// The operation of that moment; `None` if it was the start.
    pub(crate) peak_op: Option<usize>,
    /// Requests that failed when they were recorded and were served now.
    pub(crate) served_failures: u64,
}

/// Replays operations until one cannot be served, or until `last`.
///
/// The peak of what is reserved may last: `closely` finds the fullest moment of
/// it, which is what fragmentation is measured at, and costs a look at each request.
pub(crate) fn run<P: Policy>(
    policy: &mut P,
    requests: &Requests,
    addrs: &mut [u64],
    last: Option<usize>,
    closely: bool,
) -> Ran {
    let mut ran = Ran {
        peak_reserved: policy.reserved(),
        allocated_at_peak: policy.allocated(),
        ..Ran::default()
    };
    let count = last.map_or(requests.ops.len(), |last| last + 1);
    for (index, op) in requests.ops[..count].iter().enumerate() {
        let lane = requests.lanes[op.lane as usize];
        match step(policy, op, lane, addrs) {
            Ok(served) => ran.served_failures += u64::from(served),
            Err(refusal) => {
                ran.stop = Some(Stop {
                    op: index,
                    bytes: op.bytes,
                    refusal,
                });
                break;
            }
        }
        if matches!(op.kind, OpKind::Alloc | OpKind::FailedLast) {
            let reserved = policy.reserved();
            if reserved > ran.peak_reserved {
                ran.peak_reserved = reserved;
                ran.allocated_at_peak = policy.allocated();
                ran.peak_op = Some(index);
            } else if closely && reserved == ran.peak_reserved {
                let allocated = policy.allocated();
                if allocated > ran.allocated_at_peak {
                    ran.allocated_at_peak = allocated;
                    ran.peak_op = Some(index);
                }
            }
        }
    }
    ran
}

/// One operation; whether it served a request that had failed when it was recorded.
#[inline]
pub(crate) fn step<P: Policy>(
    policy: &mut P,
    op: &Op,
    lane: Lane,
    addrs: &mut [u64],
) -> Result<bool, Refusal> {
    let slot = op.slot as usize;
    match op.kind {
        OpKind::Alloc => addrs[slot] = policy.alloc(op.slot, lane, op.bytes)?,
        OpKind::Free => {
            let addr = std::mem::replace(&mut addrs[slot], NOWHERE);
            if addr != NOWHERE {
                policy.free(op.slot, addr)?;
            }
        }
        OpKind::FreeLater => {
            let addr = std::mem::replace(&mut addrs[slot], NOWHERE);
            if addr != NOWHERE {
                policy.free_later(op.slot, addr)?;
            }
        }
        OpKind::FreeNow => policy.free_now(op.slot)?,
        OpKind::Release | OpKind::MaybeRelease => policy.release(lane.pool)?,
        OpKind::PoolDone => policy.pool_done(lane.pool)?,
        OpKind::Outside => policy.stage_mut().set_outside(op.bytes),
        OpKind::Failed | OpKind::FailedLast => match policy.alloc(op.slot, lane, op.bytes) {
            Ok(addr) => {
                // What the program would have done with it is in no recording.
                policy.free(op.slot, addr)?;
                return Ok(true);
            }
            Err(Refusal::OutOfMemory { .. }) if op.kind == OpKind::Failed => {}
            Err(refusal) => return Err(refusal),
        },
        OpKind::Nothing => {}
    }
    Ok(false)
}

/// PyTorch's caching allocator.
#[derive(Clone, Debug)]
pub(crate) struct Torch<S> {
    pub(crate) torch: Allocator<Stage, S>,
    /// By slot: blocks that were pending before the recording began.
    adopted_pending: BTreeMap<u32, u64>,
}

impl<S: Sink> Torch<S> {
    /// An allocator on `stage`, with the start of the recording on it.
    ///
    /// # Errors
    /// Why the start cannot be set up.
    pub(crate) fn new(
        stage: Stage,
        settings: Settings,
        rules: Rules,
        sink: S,
        start: &Start,
        addrs: &mut [u64],
    ) -> Result<Self, Refusal> {
        let torch = Allocator::with(stage, settings, rules, sink);
        let mut policy = Self {
            torch,
            adopted_pending: BTreeMap::new(),
        };
        match start {
            Start::Empty => {}
            Start::Adopted(segments) => {
                for segment in segments {
                    if segment.info.pool != PoolId::DEFAULT {
                        policy.make_pool(segment.info.pool)?;
                    }
                    policy.torch.adopt(&segment.info).map_err(refusal)?;
                    for &(slot, addr, allocated) in &segment.slots {
                        if allocated {
                            addrs[slot as usize] = addr;
                        } else {
                            policy.adopted_pending.insert(slot, addr);
                        }
                    }
                }
            }
            Start::Requested(ops) => {
                for (op, lane) in ops {
                    step(&mut policy, op, *lane, addrs)?;
                }
            }
        }
        Ok(policy)
    }

    fn make_pool(&mut self, pool: PoolId) -> Result<(), Refusal> {
        match self.torch.create_pool(pool) {
            // Nobody can use it any more, says the allocator: a recording that
            // contradicts itself. The request then goes nowhere.
            Ok(()) | Err(Error::Pool { .. }) => Ok(()),
            Err(error) => Err(refusal(error)),
        }
    }

    fn in_private(&mut self, lane: Lane, bytes: u64) -> Result<DeviceAddr, Error> {
        // Only a capture allocates from a graph's own pool, and during one
        // nothing cached is given back.
        let capturing = lane.pool.0 != 0;
        if capturing {
            self.torch.set_capturing(true);
        }
        let mut served = self.torch.malloc_in(lane.pool, bytes, lane.stream);
        if matches!(served, Err(Error::Pool { .. })) && self.torch.create_pool(lane.pool).is_ok() {
            served = self.torch.malloc_in(lane.pool, bytes, lane.stream);
        }
        if capturing {
            self.torch.set_capturing(false);
        }
        served
    }
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::OutOfMemory(told) => Refusal::OutOfMemory {
            free: told.device_free,
        },
        Error::Rejected { held, limit, .. } => Refusal::OutOfMemory {
            free: limit.saturating_sub(held),
        },
        Error::Device(error) => broken(error),
        other => Refusal::Broken(other.to_string()),
    }
}

impl<S: Sink> Policy for Torch<S> {
    const FIDELITY: Fidelity = Fidelity::Exact;

    #[inline]
    fn alloc(&mut self, _slot: u32, lane: Lane, bytes: u64) -> Result<u64, Refusal> {
        let served = if lane.pool == PoolId::DEFAULT {
            self.torch.malloc(bytes, lane.stream)
        } else {
            self.in_private(lane, bytes)
        };
        match served {
            Ok(addr) => Ok(addr.0),
            Err(Error::Pool { .. } | Error::Empty | Error::TooLarge(_)) => Ok(NOWHERE),
            Err(error) => Err(refusal(error)),
        }
    }

    #[inline]
    fn free(&mut self, _slot: u32, addr: u64) -> Result<(), Refusal> {
        if addr == NOWHERE {
            return Ok(());
        }
        self.torch.free(DeviceAddr(addr)).map_err(refusal)
    }

    fn free_later(&mut self, slot: u32, addr: u64) -> Result<(), Refusal> {
        let addr = DeviceAddr(addr);
        let stream = Stage::pending_stream(slot);
        self.torch.record_stream(addr, stream).map_err(refusal)?;
        self.torch.free(addr).map_err(refusal)
    }

    fn free_now(&mut self, slot: u32) -> Result<(), Refusal> {
        if !self.adopted_pending.is_empty()
            && let Some(addr) = self.adopted_pending.remove(&slot)
        {
            return self.torch.complete_free(DeviceAddr(addr)).map_err(refusal);
        }
        self.torch.device_mut().finish(slot);
        // Every request first completes the frees that nothing delays any more,
        // and this one does only that: it names a pool that cannot exist.
        let _ = self.torch.malloc_in(NO_POOL, 1, tonnage_alloc::StreamId(0));
        Ok(())
    }

    fn release(&mut self, pool: PoolId) -> Result<(), Refusal> {
        if pool == PoolId::DEFAULT {
            self.torch.empty_cache().map_err(refusal)
        } else {
            self.torch.empty_cache_of(pool).map_err(refusal)
        }
    }

    fn pool_done(&mut self, pool: PoolId) -> Result<(), Refusal> {
        match self.torch.release_pool_use(pool) {
            Ok(()) | Err(Error::Pool { .. }) => Ok(()),
            Err(error) => Err(refusal(error)),
        }
    }

    fn stage_mut(&mut self) -> &mut Stage {
        self.torch.device_mut()
    }

    #[inline]
    fn reserved(&self) -> u64 {
        self.torch.reserved()
    }

    fn allocated(&self) -> u64 {
        self.torch.stats().allocated_bytes.all.current as u64
    }

    fn peak_allocated(&self) -> u64 {
        self.torch.stats().allocated_bytes.all.peak as u64
    }

    fn retries(&self) -> u64 {
        self.torch.stats().num_alloc_retries
    }

    fn largest_free(&self) -> Option<u64> {
        let segments = self.torch.segments();
        let free = segments
            .iter()
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Inactive)
            .map(|block| block.size);
        Some(free.max().unwrap_or(0))
    }

    fn undefined(&self) -> Vec<String> {
        let places = self.torch.undefined().iter();
        places.map(ToString::to_string).collect()
    }
}

/// What both approximations are made of: something that serves, and frees that wait.
#[derive(Clone, Debug)]
pub(crate) struct Approximation<A> {
    stage: Stage,
    pool: A,
    retries: u64,
    /// By slot: the block whose free is delayed.
    waiting: BTreeMap<u32, u64>,
}

/// An allocator that knows neither streams nor pools.
pub(crate) trait Plain: Default {
    fn malloc(&mut self, stage: &mut Stage, bytes: u64) -> Result<DeviceAddr, DeviceError>;
    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError>;
    /// Gives back what can be given back.
    fn trim(&mut self, stage: &mut Stage) -> Result<(), DeviceError>;
    fn reserved(&self) -> u64;
    fn used(&self) -> u64;
    fn peak_used(&self) -> u64;
    fn largest_free(&self) -> Option<u64>;
}

impl Plain for StreamPool {
    fn malloc(&mut self, stage: &mut Stage, bytes: u64) -> Result<DeviceAddr, DeviceError> {
        StreamPool::malloc(self, stage, bytes)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        StreamPool::free(self, addr)
    }

    fn trim(&mut self, stage: &mut Stage) -> Result<(), DeviceError> {
        StreamPool::trim(self, stage, 0)
    }

    fn reserved(&self) -> u64 {
        StreamPool::reserved(self)
    }

    fn used(&self) -> u64 {
        StreamPool::used(self)
    }

    fn peak_used(&self) -> u64 {
        StreamPool::peak_used(self)
    }

    fn largest_free(&self) -> Option<u64> {
        None
    }
}

impl Plain for Bfc {
    fn malloc(&mut self, stage: &mut Stage, bytes: u64) -> Result<DeviceAddr, DeviceError> {
        Bfc::malloc(self, stage, bytes)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        Bfc::free(self, addr)
    }

    fn trim(&mut self, _stage: &mut Stage) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reserved(&self) -> u64 {
        Bfc::reserved(self)
    }

    fn used(&self) -> u64 {
        Bfc::used(self)
    }

    fn peak_used(&self) -> u64 {
        Bfc::peak_used(self)
    }

    fn largest_free(&self) -> Option<u64> {
        Some(Bfc::largest_free(self))
    }
}

impl<A: Plain> Approximation<A> {
    /// An allocator on `stage`, with the start of the recording requested from it.
    pub(crate) fn new(stage: Stage, start: &Start, addrs: &mut [u64]) -> Result<Self, Refusal> {
        let mut policy = Self {
            stage,
            pool: A::default(),
            retries: 0,
            waiting: BTreeMap::new(),
        };
        if let Start::Requested(ops) = start {
            for (op, lane) in ops {
                step(&mut policy, op, *lane, addrs)?;
            }
        }
        Ok(policy)
    }

    fn settle_all(&mut self) -> Result<(), Refusal> {
        for addr in std::mem::take(&mut self.waiting).into_values() {
            self.pool.free(DeviceAddr(addr)).map_err(broken)?;
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used in map_err")]
fn broken(error: DeviceError) -> Refusal {
    Refusal::Broken(error.to_string())
}

impl<A: Plain> Policy for Approximation<A> {
    const FIDELITY: Fidelity = Fidelity::Approximation;

    fn alloc(&mut self, _slot: u32, _lane: Lane, bytes: u64) -> Result<u64, Refusal> {
        let mut served = self.pool.malloc(&mut self.stage, bytes);
        if matches!(served, Err(DeviceError::OutOfMemory { .. })) {
            self.retries += 1;
            self.settle_all()?;
            self.pool.trim(&mut self.stage).map_err(broken)?;
            served = self.pool.malloc(&mut self.stage, bytes);
        }
        match served {
            Ok(addr) => Ok(addr.0),
            Err(DeviceError::OutOfMemory { .. }) => Err(Refusal::OutOfMemory {
                free: self.stage.free_bytes(),
            }),
            Err(error) => Err(broken(error)),
        }
    }

    fn free(&mut self, _slot: u32, addr: u64) -> Result<(), Refusal> {
        self.pool.free(DeviceAddr(addr)).map_err(broken)
    }

    fn free_later(&mut self, slot: u32, addr: u64) -> Result<(), Refusal> {
        self.waiting.insert(slot, addr);
        Ok(())
    }

    fn free_now(&mut self, slot: u32) -> Result<(), Refusal> {
        match self.waiting.remove(&slot) {
            Some(addr) => self.pool.free(DeviceAddr(addr)).map_err(broken),
            None => Ok(()),
        }
    }

    fn release(&mut self, _pool: PoolId) -> Result<(), Refusal> {
        self.pool.trim(&mut self.stage).map_err(broken)
    }

    fn pool_done(&mut self, _pool: PoolId) -> Result<(), Refusal> {
        Ok(())
    }

    fn stage_mut(&mut self) -> &mut Stage {
        &mut self.stage
    }

    fn reserved(&self) -> u64 {
        self.pool.reserved()
    }

    fn allocated(&self) -> u64 {
        self.pool.used()
    }

    fn peak_allocated(&self) -> u64 {
        self.pool.peak_used()
    }

    fn retries(&self) -> u64 {
        self.retries
    }

    fn largest_free(&self) -> Option<u64> {
        self.pool.largest_free()
    }

    fn undefined(&self) -> Vec<String> {
        Vec::new()
    }
}
