// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tonnage allocator as a [`Policy`].

use super::class::GRANULE;
use super::streams::Patience;
use super::{Allocator, Device, Observer};
use crate::torch::PoolId;
use crate::{DeviceAddr, Policy, PolicyError, Request, StreamId};

impl<D: Device, O: Observer> Policy for Allocator<D, O> {
    type Device = D;

    const ALIGNMENT: u64 = GRANULE;
    const STREAM_AWARE: bool = true;

    #[inline]
    fn alloc(&mut self, request: Request) -> Result<DeviceAddr, PolicyError> {
        let served = self.serve(request, false);
        if let Err(PolicyError::OutOfMemory { free, .. }) = served {
            self.note_refused(request, free);
        }
        served
    }

    #[inline]
    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        self.take_back(addr, false).map(drop)
    }

    fn record_stream(&mut self, addr: DeviceAddr, stream: StreamId) -> Result<(), PolicyError> {
        self.name(addr, stream, false)
    }

    fn begin_step(&mut self) {
        if let Some(plan) = &mut self.plan {
            plan.begin_step();
        }
    }

    fn process_events(&mut self) -> Result<(), PolicyError> {
        if self.capturing {
            return Ok(());
        }
        Ok(self.complete_frees(Patience::Ask)?)
    }

    fn empty_cache(&mut self, pool: PoolId) -> Result<(), PolicyError> {
        // The cache of a pool in use belongs to it alone, and stays. A capture forbids unmapping.
        if self.capturing || self.in_use(pool) {
            return Ok(());
        }
        Ok(self.trim()?)
    }

    fn release_pool(&mut self, pool: PoolId) -> Result<(), PolicyError> {
        if !self.in_use(pool) {
            let reason = format!("no graph uses a pool ({}, {})", pool.0, pool.1);
            return Err(PolicyError::Refused(reason));
        }
        self.open_pools(Some(pool));
        Ok(())
    }

    fn close(&mut self) -> Result<(), PolicyError> {
        if self.capturing {
            return Err(PolicyError::Captured);
        }
        Ok(self.shut()?)
    }

    fn device(&self) -> &D {
        &self.device
    }

    fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        let index = self.used(addr).ok()?;
        Some(self.arena.blocks[index].size)
    }

    #[inline]
    fn reserved(&self) -> u64 {
        self.counts.reserved.now
    }

    fn allocated(&self) -> u64 {
        self.counts.allocated.now
    }

    fn peak_allocated(&self) -> u64 {
        self.counts.allocated.peak()
    }

    fn retries(&self) -> u64 {
        self.counts.retries
    }

    fn largest_free(&self) -> Option<u64> {
        Some(self.arena.largest_free())
    }
}
