// SPDX-License-Identifier: MIT OR Apache-2.0
//! PyTorch's allocator as a [`Policy`].

use super::stats::Counter;
use super::{Allocator, BlockState, Error, MIN_BLOCK, PoolId, Sink};
use crate::{Device, DeviceAddr, Policy, PolicyError, Request, StreamId};

impl From<Error> for PolicyError {
    #[cold]
    fn from(error: Error) -> Self {
        match error {
            Error::OutOfMemory(told) => Self::OutOfMemory {
                requested: told.requested,
                free: told.device_free,
            },
            Error::Rejected {
                segment_size,
                held,
                limit,
            } => Self::OutOfMemory {
                requested: segment_size,
                free: limit.saturating_sub(held),
            },
            Error::Device(error) => Self::Device(error),
            Error::UnknownAddress(addr) => Self::UnknownAddress(addr),
            Error::Undefined(what) => Self::Undefined(what),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Serves a request from a private pool, which is made if it is new.
    fn alloc_private(&mut self, request: Request) -> Result<DeviceAddr, Error> {
        let Request {
            bytes,
            stream,
            pool,
            ..
        } = request;
        // Only a capture allocates from a graph's own pool, and during one
        // nothing cached is given back.
        let capturing = pool.0 != 0;
        let was = self.private.capturing;
        if capturing {
            self.set_capturing(true);
        }
        let mut served = self.malloc_in(pool, bytes, stream);
        if matches!(served, Err(Error::Pool { .. })) && self.create_pool(pool).is_ok() {
            served = self.malloc_in(pool, bytes, stream);
        }
        self.set_capturing(was);
        served
    }
}

impl<D: Device, S: Sink> Policy for Allocator<D, S> {
    type Device = D;

    const ALIGNMENT: u64 = MIN_BLOCK;
    const STREAM_AWARE: bool = true;

    #[inline]
    fn alloc(&mut self, request: Request) -> Result<DeviceAddr, PolicyError> {
        Ok(if request.pool == PoolId::DEFAULT {
            self.malloc(request.bytes, request.stream)?
        } else {
            self.alloc_private(request)?
        })
    }

    #[inline]
    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        Ok(Self::free(self, addr)?)
    }

    fn record_stream(&mut self, addr: DeviceAddr, stream: StreamId) -> Result<(), PolicyError> {
        Ok(Self::record_stream(self, addr, stream)?)
    }

    fn process_events(&mut self) -> Result<(), PolicyError> {
        Ok(Self::process_events(self)?)
    }

    fn empty_cache(&mut self, pool: PoolId) -> Result<(), PolicyError> {
        let emptied = if pool == PoolId::DEFAULT {
            Self::empty_cache(self)
        } else {
            self.empty_cache_of(pool)
        };
        Ok(emptied?)
    }

    fn release_pool(&mut self, pool: PoolId) -> Result<(), PolicyError> {
        Ok(self.release_pool_use(pool)?)
    }

    fn close(&mut self) -> Result<(), PolicyError> {
        Ok(Self::close(self)?)
    }

    fn device(&self) -> &D {
        Self::device(self)
    }

    fn device_mut(&mut self) -> &mut D {
        Self::device_mut(self)
    }

    fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        Self::size_of(self, addr)
    }

    #[inline]
    fn reserved(&self) -> u64 {
        Self::reserved(self)
    }

    fn allocated(&self) -> u64 {
        self.books.total(Counter::AllocatedBytes) as u64
    }

    fn peak_allocated(&self) -> u64 {
        self.books.total_peak(Counter::AllocatedBytes) as u64
    }

    fn retries(&self) -> u64 {
        self.books.rest.alloc_retries
    }

    fn largest_free(&self) -> Option<u64> {
        let segments = self.segments();
        let free = segments
            .iter()
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Inactive)
            .map(|block| block.size);
        Some(free.max().unwrap_or(0))
    }

    fn undefined(&self) -> Vec<String> {
        let places = Self::undefined(self).iter();
        places.map(ToString::to_string).collect()
    }
}
