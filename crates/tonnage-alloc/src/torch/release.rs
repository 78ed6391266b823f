// SPDX-License-Identifier: MIT OR Apache-2.0
//! Giving memory back to the device (specification 7).

use super::obtain::Request;
use super::stats::Counter;
use super::{Action, Allocator, Error, LARGE_POOL, PoolId, SMALL_POOL, Sink, Undefined};
use crate::{Device, DeviceAddr};

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Gives back everything cached that can be given back (`empty_cache`).
    pub fn empty_cache(&mut self) -> Result<(), Error> {
        self.release_cached(PoolId::DEFAULT)
    }

    /// Gives back everything that no live block needs: what is cached, and what
    /// torch keeps for as long as the process lives, which is ranges of addresses
    /// without memory and events for reuse. Dropping the allocator gives nothing
    /// back.
    pub fn close(&mut self) -> Result<(), Error> {
        self.release_cached(PoolId::DEFAULT)?;
        self.drop_empty_ranges()?;
        self.destroy_spare_events()?;
        while let Some(&memory) = self.unreleased.last() {
            self.device.release(memory)?;
            self.unreleased.pop();
        }
        Ok(())
    }

    /// Gives back what one private pool caches, if the pool is no longer used.
    pub fn empty_cache_of(&mut self, pool: PoolId) -> Result<(), Error> {
        self.release_cached(pool)
    }

    /// Frees unused large segments of above-average age until enough is gone (7.1).
    pub(super) fn collect_garbage(&mut self) -> Result<(), Error> {
        let Some(allowed) = self.allowed else {
            return Ok(());
        };
        let threshold = (self.settings.garbage_collection_threshold * allowed as f64) as u64;
        if self.held <= threshold {
            return Ok(());
        }
        let target = self.held - threshold;
        let searches = self.pools[LARGE_POOL as usize].searches;
        let mut age = 0;
        let mut candidates: Vec<(u32, u64)> = self
            .free_blocks(LARGE_POOL)
            .into_iter()
            .filter(|&block| !self.blocks[block].is_split())
            .map(|block| (block, searches - self.age_base(block)))
            .inspect(|(_, years)| age += years)
            .collect();
        let mut count = candidates.len() as u64;
        // Expandable blocks count for the average but are not freed.
        candidates.retain(|&(block, _)| !self.blocks[block].is_expandable());
        let mut reclaimed = 0;
        let mut progress = true;
        while reclaimed < target && progress && count > 0 {
            let average = age as f64 / count as f64;
            progress = false;
            let mut kept = Vec::new();
            for (block, years) in candidates {
                if years as f64 >= average {
                    progress = true;
                    reclaimed += self.blocks[block].size;
                    age -= years;
                    count -= 1;
                    self.release_segment(block)?;
                } else {
                    kept.push((block, years));
                }
            }
            candidates = kept;
        }
        Ok(())
    }

    fn age_base(&self, block: u32) -> u64 {
        self.ages.get(block as usize).copied().unwrap_or(0)
    }

    /// Frees oversize blocks that would make room for the request (7.2);
    /// answers whether that was enough.
    pub(super) fn release_available(&mut self, request: &Request) -> Result<bool, Error> {
        let limit = self.settings.max_split_size;
        if limit == u64::MAX {
            return Ok(false);
        }
        let wanted = request.size.max(limit);
        let lane = request.lane as usize;
        let cursor = self.lanes[lane].free.lower_bound(&self.blocks, wanted);
        if let Some(cursor) = cursor {
            let block = cursor.block;
            if !self.blocks[block].is_expandable() {
                self.release_segment(block)?;
                return Ok(true);
            }
        }
        let free = &self.lanes[lane].free;
        let mut victims = Vec::new();
        let mut released = 0;
        let mut place = free.before(&self.blocks, cursor);
        while let Some(cursor) = place
            && released < wanted
            && self.blocks[cursor.block].size >= limit
        {
            let block = cursor.block;
            if !self.blocks[block].is_expandable() {
                released += self.blocks[block].size;
                victims.push(block);
            }
            place = free.before(&self.blocks, Some(cursor));
        }
        for block in victims {
            self.release_segment(block)?;
        }
        Ok(released >= wanted)
    }

    /// Gives back what is cached: everything for the default id, else one pool (7.3).
    pub(super) fn release_cached(&mut self, only: PoolId) -> Result<(), Error> {
        let everything = only == PoolId::DEFAULT;
        if everything && !self.in_capture() {
            self.synchronize(None)?;
            self.release_pool(LARGE_POOL)?;
            self.release_pool(SMALL_POOL)?;
        }
        let mut slot = 0;
        while let Some((at, id, owner)) = self.private.freeable_from(slot) {
            slot = at + 1;
            if !everything {
                if id != only {
                    continue;
                }
                if self.in_capture() {
                    return Err(Error::Pool {
                        pool: id,
                        reason: "cannot be released during a capture",
                    });
                }
                self.synchronize(Some(owner))?;
            }
            let (small, large) = self.private.pools(owner);
            self.release_pool(small)?;
            self.release_pool(large)?;
            if self.private.is_unused(owner) {
                slot = at;
                self.delete_private(at, owner)?;
            }
        }
        Ok(())
    }

    /// Whole segments first, in the order of the free set; then pages.
    fn release_pool(&mut self, pool: u32) -> Result<(), Error> {
        let (pages, segments): (Vec<_>, Vec<_>) = self
            .free_blocks(pool)
            .into_iter()
            .partition(|&block| self.blocks[block].is_expandable());
        for block in segments {
            if !self.blocks[block].is_split() {
                self.release_segment(block)?;
            }
        }
        for block in pages {
            self.unmap(block)?;
            if !self.blocks[block].is_split() {
                self.drop_range(block)?;
            }
        }
        Ok(())
    }

    /// Gives one whole segment back (`cudaFree`).
    fn release_segment(&mut self, index: u32) -> Result<(), Error> {
        if self.blocks[index].is_split() {
            return Err(self.flag(Undefined::SplitBlockReleased));
        }
        let (addr, size, lane) = {
            let block = &self.blocks[index];
            (block.addr, block.size, block.lane)
        };
        let pool = &self.pools[self.lanes[lane as usize].pool as usize];
        let (small, id, owner) = (pool.small, pool.id, pool.owner);
        if !self.private.may_uncount(owner) {
            return Err(self.flag(Undefined::PoolCountUnderflow));
        }
        self.device.free(DeviceAddr(addr))?;
        self.books.rest.device_free += 1;
        self.emit(Action::SegmentFree, addr, size, lane);
        self.held -= size;
        self.private.uncount(owner);
        self.books.change(small, Counter::Segment, -1);
        self.books.change_reserved(small, id, -(size as i64));
        if size >= self.settings.max_split_size {
            self.books.rest.change_oversize_segments(-1);
        }
        self.take_free(index);
        self.blocks.remove(index);
        Ok(())
    }

    /// Every free block of a pool, in the order of torch's free set.
    pub(super) fn free_blocks(&self, pool: u32) -> Vec<u32> {
        self.pools[pool as usize]
            .lanes
            .iter()
            .flat_map(|&(_, lane)| self.lanes[lane as usize].free.iter(&self.blocks))
            .collect()
    }
}
