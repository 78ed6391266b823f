// SPDX-License-Identifier: MIT OR Apache-2.0
//! When no cached block fits: the attempts of specification 3.1, in order.

use super::block::Block;
use super::stats::Counter;
use super::{Action, Allocator, Error, OutOfMemory, Sink};
use crate::{Device, DeviceError};

/// A request that missed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) pool: u32,
    pub(super) lane: u32,
    pub(super) requested: u64,
    pub(super) size: u64,
    /// A request to the device.
    pub(super) segment: u64,
    pub(super) expandable: bool,
}

/// A block for a request, and whether it is to be split like an expandable one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Obtained {
    pub(super) block: u32,
    pub(super) expandable: bool,
}

impl<D: Device, S: Sink> Allocator<D, S> {
    #[cold]
    #[inline(never)]
    pub(super) fn obtain(&mut self, request: &Request) -> Result<Obtained, Error> {
        if self.armed {
            self.collect_garbage()?;
        }
        let obtained = |block| Obtained {
            block,
            expandable: request.expandable,
        };
        let mut rejected = None;
        if let Some(block) = self.attempt(request, &mut rejected)? {
            return Ok(obtained(block));
        }
        if let Some(rejection) = rejected {
            return Err(rejection);
        }
        if let Some(block) = self.search_overflow_pools(request)? {
            return Ok(Obtained {
                block,
                expandable: false,
            });
        }
        if self.release_available(request)?
            && let Some(block) = self.attempt(request, &mut rejected)?
        {
            return Ok(obtained(block));
        }
        if !self.in_capture() {
            self.release_cached(super::PoolId::DEFAULT)?;
            self.books.rest.alloc_retries += 1;
            if let Some(block) = self.attempt(request, &mut rejected)? {
                return Ok(obtained(block));
            }
        }
        Err(rejected.unwrap_or_else(|| self.out_of_memory(request)))
    }

    /// One attempt to get memory from the device (3.3); `None` if there is too little.
    fn attempt(
        &mut self,
        request: &Request,
        rejected: &mut Option<Error>,
    ) -> Result<Option<u32>, Error> {
        let wanted = self.held.saturating_add(request.segment);
        if self.allowed.is_some_and(|allowed| wanted > allowed) {
            return Ok(None);
        }
        if self.settings.throw_on_cudamalloc_oom {
            let fraction = self.settings.per_process_memory_fraction;
            let limit = (fraction * self.device.total() as f64) as u64;
            if wanted > limit {
                self.books.rest.oom_rejections += 1;
                *rejected = Some(Error::Rejected {
                    segment_size: request.segment,
                    held: self.held,
                    limit,
                });
                return Ok(None);
            }
        }
        if request.expandable {
            let block = self.grow(request.lane, request.size)?;
            if block.is_some() {
                self.count_private(request.pool);
            }
            return Ok(block);
        }
        let addr = match self.device.malloc(request.segment) {
            Ok(addr) => addr.0,
            Err(DeviceError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.count_private(request.pool);
        let pool = &self.pools[request.pool as usize];
        let (small, id) = (pool.small, pool.id);
        let mut block = Block::new(addr, request.segment, request.lane, small);
        block.rank = self.ranks.segment(addr);
        self.held += request.segment;
        self.books.change(small, Counter::Segment, 1);
        self.books
            .change_reserved(small, id, request.segment as i64);
        if request.segment >= self.settings.max_split_size {
            self.books.rest.change_oversize_segments(1);
        }
        self.books.rest.device_alloc += 1;
        self.emit(Action::SegmentAlloc, addr, request.segment, request.lane);
        Ok(Some(self.blocks.add(block)))
    }

    fn out_of_memory(&mut self, request: &Request) -> Error {
        let device_free = self.device.free_bytes();
        self.emit(Action::Oom, device_free, request.size, request.lane);
        self.books.rest.ooms += 1;
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested: request.requested,
            rounded: request.size,
            segment_size: request.segment,
            device_total: self.device.total(),
            device_free,
            allowed: self.allowed,
            allocated: self.books.total(Counter::AllocatedBytes) as u64,
            reserved: self.books.total(Counter::ReservedBytes) as u64,
            cached_in_private_pools: self.cached_in_private_pools(),
        }))
    }
}
