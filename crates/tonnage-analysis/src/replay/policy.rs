// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the requests of a recording through one allocator policy.
//!
//! PyTorch's and tonnage's own allocators are replayed event for event; the
//! driver's stream-ordered pool and best fit with coalescing are approximations. [`Replaying`] is one of them with what
//! a recording adds; the loop in [`run`] is all that a sweep repeats.

use std::collections::BTreeMap;

use tonnage_alloc::torch::{Allocator, Error, PoolId, Rules, Settings, Sink};
use tonnage_alloc::{Device as _, DeviceAddr, Policy, PolicyError, Request};

use super::device::ReplayDevice;
use super::requests::{Lane, Op, OpKind, Requests};
use super::start::Start;

/// No block: the request was not served, or is over.
pub(crate) const UNPLACED: u64 = u64::MAX;

/// PyTorch's caching allocator.
pub(crate) type Torch<S> = Replaying<Allocator<ReplayDevice, S>>;

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was not enough memory; so many bytes were free.
    OutOfMemory { free: u64 },
    /// There was not enough memory for another library, which requested so many bytes.
    OthersOutOfMemory { requested: u64, free: u64 },
    /// torch is undefined from here on, or the device failed: nothing after
    /// this is meaningful.
    Broken(String),
}

impl From<PolicyError> for Refusal {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::OutOfMemory { free, .. } => Self::OutOfMemory { free },
            other => Self::Broken(other.to_string()),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        PolicyError::from(error).into()
    }
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
pub(crate) struct RunSummary {
    pub(crate) stop: Option<Stop>,
    pub(crate) peak_reserved: u64,
    /// Bytes handed out when the most was reserved.
    pub(crate) allocated_at_peak: u64,
    /// The operation of that moment; `None` if it was the start.
    pub(crate) peak_op: Option<usize>,
    /// Requests that failed when they were recorded and were served now.
    pub(crate) served_failures: u64,
}

/// A policy that serves a recording.
#[derive(Clone, Debug)]
pub(crate) struct Replaying<P> {
    pub(crate) policy: P,
    /// By slot: blocks whose free was pending before the recording began.
    adopted_pending: BTreeMap<u32, DeviceAddr>,
    /// Completes the free of one of them.
    complete_adopted: fn(&mut P, DeviceAddr) -> Result<(), Refusal>,
}

impl<S: Sink> Torch<S> {
    /// An allocator on `device`, with the start of the recording on it.
    ///
    /// # Errors
    /// Why the start cannot be set up.
    pub(crate) fn new(
        device: ReplayDevice,
        settings: Settings,
        rules: Rules,
        sink: S,
        start: &Start,
        addrs: &mut [u64],
    ) -> Result<Self, Refusal> {
        let mut replaying = Self {
            policy: Allocator::with(device, settings, rules, sink),
            adopted_pending: BTreeMap::new(),
            complete_adopted: |torch, addr| Ok(torch.complete_free(addr)?),
        };
        let Start::Adopted(segments) = start else {
            replaying.request(start, addrs)?;
            return Ok(replaying);
        };
        for segment in segments {
            if segment.info.pool != PoolId::DEFAULT {
                replaying.make_pool(segment.info.pool)?;
            }
            replaying.policy.adopt(&segment.info)?;
            for &(slot, addr, allocated) in &segment.slots {
                if allocated {
                    addrs[slot as usize] = addr;
                } else {
                    let pending = &mut replaying.adopted_pending;
                    pending.insert(slot, DeviceAddr(addr));
                }
            }
        }
        Ok(replaying)
    }

    fn make_pool(&mut self, pool: PoolId) -> Result<(), Refusal> {
        match self.policy.create_pool(pool) {
            // The allocator reports that it is not in use any more: a recording that
            // contradicts itself. The request is then not placed.
            Ok(()) | Err(Error::Pool { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl<P: Policy<Device = ReplayDevice>> Replaying<P> {
    /// An allocator, with the start of the recording requested from it.
    ///
    /// # Errors
    /// Why the start cannot be set up.
    pub(crate) fn requested(policy: P, start: &Start, addrs: &mut [u64]) -> Result<Self, Refusal> {
        let mut replaying = Self {
            policy,
            adopted_pending: BTreeMap::new(),
            complete_adopted: |_, _| Ok(()),
        };
        replaying.request(start, addrs)?;
        Ok(replaying)
    }

    /// Requests what was alive when the recording began.
    fn request(&mut self, start: &Start, addrs: &mut [u64]) -> Result<(), Refusal> {
        if let Start::Requested(ops) = start {
            for (op, lane) in ops {
                self.step(op, *lane, addrs)?;
            }
        }
        Ok(())
    }

    /// One operation; whether it served a request that had failed when it was recorded.
    #[inline]
    pub(crate) fn step(&mut self, op: &Op, lane: Lane, addrs: &mut [u64]) -> Result<bool, Refusal> {
        let slot = op.slot as usize;
        match op.kind {
            OpKind::Alloc => addrs[slot] = self.alloc(lane, op.bytes)?,
            OpKind::Free => {
                let addr = std::mem::replace(&mut addrs[slot], UNPLACED);
                if addr != UNPLACED {
                    self.policy.free(DeviceAddr(addr))?;
                }
            }
            OpKind::FreeLater => {
                let addr = std::mem::replace(&mut addrs[slot], UNPLACED);
                if addr != UNPLACED {
                    let stream = self.policy.device_mut().delay(op.slot);
                    self.policy.record_stream(DeviceAddr(addr), stream)?;
                    self.policy.free(DeviceAddr(addr))?;
                }
            }
            OpKind::FreeNow => self.free_now(op.slot)?,
            OpKind::Release | OpKind::MaybeRelease => self.policy.empty_cache(lane.pool)?,
            OpKind::PoolDone => match self.policy.release_pool(lane.pool) {
                Ok(()) | Err(PolicyError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            },
            OpKind::Outside => self.set_outside(op.bytes)?,
            OpKind::Failed | OpKind::FailedLast => match self.alloc(lane, op.bytes) {
                Ok(addr) => {
                    // The program's use of it is in no recording.
                    if addr != UNPLACED {
                        self.policy.free(DeviceAddr(addr))?;
                    }
                    return Ok(true);
                }
                Err(Refusal::OutOfMemory { .. }) if op.kind == OpKind::Failed => {}
                Err(refusal) => return Err(refusal),
            },
            OpKind::Nothing => {}
        }
        Ok(false)
    }

    /// Others hold so many bytes from now on. Memory in the allocator's cache serves only the allocator.
    fn set_outside(&mut self, bytes: u64) -> Result<(), Refusal> {
        let device = self.policy.device_mut();
        let (requested, free) = (bytes.saturating_sub(device.outside()), device.free_bytes());
        device.set_outside(bytes);
        if requested > free {
            return Err(Refusal::OthersOutOfMemory { requested, free });
        }
        Ok(())
    }

    /// Serves a request; one that the policy does not serve at all is not placed.
    #[inline]
    fn alloc(&mut self, lane: Lane, bytes: u64) -> Result<u64, Refusal> {
        let request = Request::new(bytes, lane.stream).in_pool(lane.pool);
        match self.policy.alloc(request) {
            Ok(addr) => Ok(addr.0),
            Err(PolicyError::Refused(_)) => Ok(UNPLACED),
            Err(error) => Err(error.into()),
        }
    }

    /// Nothing delays the free of a slot any more; it may be over already.
    fn free_now(&mut self, slot: u32) -> Result<(), Refusal> {
        if !self.adopted_pending.is_empty()
            && let Some(addr) = self.adopted_pending.remove(&slot)
        {
            return (self.complete_adopted)(&mut self.policy, addr);
        }
        self.policy.device_mut().finish(slot);
        Ok(self.policy.process_events()?)
    }
}

/// Replays operations until one cannot be served, or until `last`.
///
/// The peak of what is reserved may last: `closely` finds the fullest moment of
/// it, which is what fragmentation is measured at, and costs a look at each request.
pub(crate) fn run<P: Policy<Device = ReplayDevice>>(
    replaying: &mut Replaying<P>,
    requests: &Requests,
    addrs: &mut [u64],
    last: Option<usize>,
    closely: bool,
) -> RunSummary {
    let mut summary = RunSummary {
        peak_reserved: replaying.policy.reserved(),
        allocated_at_peak: replaying.policy.allocated(),
        ..RunSummary::default()
    };
    let count = last.map_or(requests.ops.len(), |last| last + 1);
    let mut marks = requests.marks.iter().peekable();
    for (index, op) in requests.ops[..count].iter().enumerate() {
        while marks
            .next_if(|&&mark| mark < requests.rows[index])
            .is_some()
        {
            replaying.policy.begin_step();
        }
        let lane = requests.lanes[op.lane as usize];
        match replaying.step(op, lane, addrs) {
            Ok(served) => summary.served_failures += u64::from(served),
            Err(refusal) => {
                summary.stop = Some(Stop {
                    op: index,
                    bytes: op.bytes,
                    refusal,
                });
                break;
            }
        }
        if matches!(op.kind, OpKind::Alloc | OpKind::FailedLast) {
            let reserved = replaying.policy.reserved();
            if reserved > summary.peak_reserved {
                summary.peak_reserved = reserved;
                summary.allocated_at_peak = replaying.policy.allocated();
                summary.peak_op = Some(index);
            } else if closely && reserved == summary.peak_reserved {
                let allocated = replaying.policy.allocated();
                if allocated > summary.allocated_at_peak {
                    summary.allocated_at_peak = allocated;
                    summary.peak_op = Some(index);
                }
            }
        }
    }
    summary
}
