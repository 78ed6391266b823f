// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting in the middle: segments that existed before a recording begins.
//!
//! A truncated recording does not show how its first segments came about. The caller reconstructs them (specification
//! 14) and passes them one by one, in the order they were made as far as it is known, because that order breaks ties.
//! The counters are then as if the blocks had just been allocated.

use super::block::{Block, NONE};
use super::stats::Counter;
use super::{Allocator, BlockState, Error, SegmentInfo, Sink};
use crate::Device;

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Takes over a segment. No event is recorded and the device is not called: it must hold the segment already.
    /// Blocks that are pending are completed by [`complete_free`](Self::complete_free).
    ///
    /// Parts of expandable segments cannot be taken over: where their range of
    /// addresses begins is in no recording.
    ///
    /// # Errors
    /// [`Error::Segment`] if the blocks do not make up the segment; nothing is
    /// taken over then.
    pub fn adopt(&mut self, segment: &SegmentInfo) -> Result<(), Error> {
        self.fits(segment).map_err(Error::Segment)?;
        let size = if segment.small { 1 } else { u64::MAX };
        let pool = self.pool_of(segment.pool, size)?;
        let lane = self.lane(pool, segment.stream);
        let small = segment.small;
        let total = segment.total_size;
        let rank = self.ranks.segment(segment.addr.0);
        self.count_private(pool);
        self.held += total;
        self.books.change(small, Counter::Segment, 1);
        self.books
            .change_reserved(small, segment.pool, total as i64);
        if total >= self.settings.max_split_size {
            self.books.rest.change_oversize_segments(1);
        }
        let mut prev = NONE;
        for info in &segment.blocks {
            let mut block = Block::new(info.addr.0, info.size, lane, small);
            block.requested = info.requested_size;
            block.set_allocated(info.state == BlockState::ActiveAllocated);
            block.rank = self.ranks.part(rank, info.addr.0 - segment.addr.0);
            let index = self.blocks.add(block);
            self.blocks.link(index, prev, NONE);
            prev = index;
            self.adopt_block(index, info.state, segment.blocks.len() > 1);
        }
        Ok(())
    }

    /// Books a block that was just put into its segment.
    fn adopt_block(&mut self, index: u32, state: BlockState, split: bool) {
        let block = &mut self.blocks[index];
        let (addr, size, small) = (block.addr, block.size, block.is_small());
        if state == BlockState::Inactive {
            self.put_free(index);
            if split {
                self.books.change(small, Counter::InactiveSplit, 1);
                let by = size as i64;
                self.books.change(small, Counter::InactiveSplitBytes, by);
            }
            return;
        }
        self.books.hand_out(small, size, block.requested);
        if state == BlockState::ActiveAllocated {
            self.live.insert(addr, index);
            if size >= self.settings.max_split_size {
                self.books.rest.change_oversize_allocations(1);
            }
        } else {
            block.events = 1;
            self.books.give_back(small, size);
            self.start_waiting(index);
            self.pending.held_back.insert(addr, index);
        }
    }

    /// Whether a segment is whole and lies where nothing is.
    fn fits(&self, segment: &SegmentInfo) -> Result<(), &'static str> {
        let start = segment.addr.0;
        let end = start.checked_add(segment.total_size);
        let end = end.ok_or("it wraps around")?;
        if segment.expandable {
            return Err("it is part of an expandable segment");
        }
        let mut at = start;
        let mut free = false;
        for block in &segment.blocks {
            if block.addr.0 != at {
                return Err("its blocks do not touch");
            }
            if block.size == 0 || !block.size.is_multiple_of(super::MIN_BLOCK) {
                return Err("a block is not a multiple of 512 bytes");
            }
            if free && block.state == BlockState::Inactive {
                return Err("two free blocks touch");
            }
            free = block.state == BlockState::Inactive;
            at = at.checked_add(block.size).ok_or("it wraps around")?;
        }
        if at != end || segment.blocks.is_empty() {
            return Err("its blocks do not fill it");
        }
        let taken = |block: &Block| block.addr < end && start < block.end();
        if self.blocks.iter().any(|(_, block)| taken(block)) {
            return Err("another one lies there");
        }
        Ok(())
    }
}
