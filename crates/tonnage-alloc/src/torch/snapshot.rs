// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state as a torch snapshot shows it (specification 13.2), and the recount of the books.

use std::collections::BTreeSet;

use super::block::{Block, NONE};
use super::stats::Counter;
use super::{Action, Allocator, Event, PoolId, Sink};
use crate::{Device, DeviceAddr, StreamId};

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockState {
    /// Handed out.
    ActiveAllocated,
    /// Given back, but other streams may still use it.
    ActivePendingFree,
    /// Free.
    Inactive,
}

impl BlockState {
    /// The name torch uses for it in a snapshot.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// One block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// First byte.
    pub addr: DeviceAddr,
    /// Bytes, slack included.
    pub size: u64,
    /// Bytes the program requested; stale in free blocks, as in torch.
    pub requested_size: u64,
    /// Whether it is in use.
    pub state: BlockState,
}

/// One segment, or one run of pages with memory of an expandable segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// First byte.
    pub addr: DeviceAddr,
    /// Bytes.
    pub total_size: u64,
    /// Bytes handed out.
    pub allocated_size: u64,
    /// Bytes not free for reuse.
    pub active_size: u64,
    /// Bytes the program requested, of the active blocks.
    pub requested_size: u64,
    /// The stream it serves.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// Whether that is the pool of blocks up to 1 MiB.
    pub small: bool,
    /// Whether it is part of an expandable segment.
    pub expandable: bool,
    /// Its blocks, by address, without gaps.
    pub blocks: Vec<BlockInfo>,
}

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Every segment by address, and a `snapshot` event as torch records one.
    pub fn snapshot(&mut self) -> Vec<SegmentInfo> {
        let segments = self.segments();
        if S::WANTED {
            self.sink.record(Event {
                action: Action::Snapshot,
                addr: DeviceAddr(0),
                size: segments.iter().map(|segment| segment.active_size).sum(),
                stream: StreamId(0),
                pool: PoolId::DEFAULT,
            });
        }
        segments
    }

    /// Every segment by address, without an event.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let starts = |block: &Block| {
            block.is_mapped() && (block.prev == NONE || !self.blocks[block.prev].is_mapped())
        };
        let mut segments: Vec<SegmentInfo> = self
            .blocks
            .iter()
            .filter(|(_, block)| starts(block))
            .map(|(_, block)| self.segment(block))
            .collect();
        segments.sort_unstable_by_key(|segment| segment.addr);
        segments
    }

    fn segment(&self, head: &Block) -> SegmentInfo {
        let lane = &self.lanes[head.lane as usize];
        let mut segment = SegmentInfo {
            addr: DeviceAddr(head.addr),
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: lane.stream,
            pool: lane.pool_id,
            small: head.is_small(),
            expandable: head.is_expandable(),
            blocks: Vec::new(),
        };
        let mut block = head;
        loop {
            segment.total_size += block.size;
            let state = if block.is_allocated() {
                segment.allocated_size += block.size;
                BlockState::ActiveAllocated
            } else if block.is_busy() {
                BlockState::ActivePendingFree
            } else {
                BlockState::Inactive
            };
            if state != BlockState::Inactive {
                segment.active_size += block.size;
                segment.requested_size += block.requested;
            }
            segment.blocks.push(BlockInfo {
                addr: DeviceAddr(block.addr),
                size: block.size,
                requested_size: block.requested,
                state,
            });
            if block.next == NONE || !self.blocks[block.next].is_mapped() {
                return segment;
            }
            block = &self.blocks[block.next];
        }
    }

    /// Recounts the books; tests call it after every step.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub fn check(&self) -> Result<(), String> {
        let mut count = Recount::default();
        for (index, block) in self.blocks.iter() {
            self.check_block(index, block)?;
            count.add(block, self.blocks.uses(index));
        }
        count.compare(self)?;
        self.check_sets(count.idle)?;
        self.check_pending()?;
        let mut end = 0;
        for segment in self.segments() {
            if segment.addr.0 < end {
                return Err(format!("segments overlap at {:#x}", segment.addr.0));
            }
            end = segment.addr.0 + segment.total_size;
        }
        Ok(())
    }

    fn check_block(&self, index: u32, block: &Block) -> Result<(), String> {
        let at = format!("block {index} at {:#x}", block.addr);
        if block.size == 0 || !block.size.is_multiple_of(512) {
            return Err(format!("{at} has {} bytes", block.size));
        }
        if block.next != NONE {
            let next = &self.blocks[block.next];
            if next.is_vacant() || next.prev != index || next.addr != block.end() {
                return Err(format!("{at} does not touch its neighbour"));
            }
            if next.lane != block.lane || next.range != block.range {
                return Err(format!("{at} has a neighbour of another segment"));
            }
            let alike = next.is_mapped() == block.is_mapped();
            if alike && !next.is_busy() && !block.is_busy() {
                return Err(format!("{at} and its neighbour are both free"));
            }
        }
        if block.prev != NONE && self.blocks[block.prev].next != index {
            return Err(format!("{at} is not its neighbour's neighbour"));
        }
        if block.is_allocated() && self.live.get(block.addr) != Some(index) {
            return Err(format!("{at} is live but cannot be found"));
        }
        if !block.is_mapped() && (block.is_busy() || !block.is_expandable()) {
            return Err(format!("{at} is in use without memory"));
        }
        let lane = &self.lanes[block.lane as usize];
        if self.pools[lane.pool as usize].small != block.is_small() {
            return Err(format!("{at} is of the wrong pool"));
        }
        Ok(())
    }

    fn check_sets(&self, idle: usize) -> Result<(), String> {
        let mut seen = 0;
        for (index, lane) in (0_u32..).zip(&self.lanes) {
            lane.free.check(&self.blocks)?;
            for block in lane.free.iter(&self.blocks) {
                let block = &self.blocks[block];
                if block.is_vacant() || block.is_busy() || !block.is_mapped() || block.lane != index
                {
                    return Err(format!("{:#x} does not belong to the free", block.addr));
                }
                seen += 1;
            }
            for (&addr, &block) in &lane.unmapped {
                let block = &self.blocks[block];
                if block.is_vacant() || block.is_mapped() || block.addr != addr {
                    return Err(format!("{addr:#x} does not belong to the unmapped"));
                }
                seen += 1;
            }
        }
        if seen != idle {
            return Err(format!("{idle} blocks are idle but {seen} are in a set"));
        }
        Ok(())
    }

    fn check_pending(&self) -> Result<(), String> {
        let mut events = 0;
        for block in self.pending.blocks() {
            let block = &self.blocks[block];
            if block.is_vacant() || block.is_allocated() || block.events == 0 {
                return Err(format!("{:#x} waits for nothing", block.addr));
            }
            events += 1;
        }
        let counted: u64 = self
            .blocks
            .iter()
            .map(|(_, block)| u64::from(block.events))
            .sum();
        if counted != events {
            return Err(format!("{counted} events are counted but {events} exist"));
        }
        let deferred: BTreeSet<u32> = self.pending.deferred().iter().copied().collect();
        for (index, block) in self.blocks.iter() {
            let waits = !block.is_allocated() && block.uses != NONE;
            if waits != deferred.contains(&index) {
                return Err(format!("{:#x} is wrongly deferred", block.addr));
            }
        }
        Ok(())
    }
}

/// The sums of the blocks, for small pools and for large pools.
#[derive(Debug, Default)]
struct Recount {
    allocation: [i64; 2],
    allocated_bytes: [i64; 2],
    active: [i64; 2],
    active_bytes: [i64; 2],
    requested_bytes: [i64; 2],
    segment: [i64; 2],
    reserved_bytes: [i64; 2],
    inactive_split: [i64; 2],
    inactive_split_bytes: [i64; 2],
    idle: usize,
    bad_uses: bool,
}

impl Recount {
    fn add(&mut self, block: &Block, uses: usize) {
        let pool = usize::from(block.is_small());
        let size = block.size as i64;
        self.bad_uses |= (block.uses != NONE) != (uses > 0);
        if block.is_mapped() {
            self.reserved_bytes[pool] += size;
        }
        if !block.is_expandable() && block.prev == NONE {
            self.segment[pool] += 1;
        }
        if block.is_allocated() {
            self.allocation[pool] += 1;
            self.allocated_bytes[pool] += size;
        }
        if block.is_busy() {
            self.active[pool] += 1;
            self.active_bytes[pool] += size;
            self.requested_bytes[pool] += block.requested as i64;
        } else {
            self.idle += 1;
            if !block.is_expandable() && block.is_split() {
                self.inactive_split[pool] += 1;
                self.inactive_split_bytes[pool] += size;
            }
        }
    }

    fn compare<D: Device, S: Sink>(&self, allocator: &Allocator<D, S>) -> Result<(), String> {
        let counted = [
            (Counter::Allocation, self.allocation),
            (Counter::AllocatedBytes, self.allocated_bytes),
            (Counter::Active, self.active),
            (Counter::ActiveBytes, self.active_bytes),
            (Counter::RequestedBytes, self.requested_bytes),
            (Counter::Segment, self.segment),
            (Counter::ReservedBytes, self.reserved_bytes),
            (Counter::InactiveSplit, self.inactive_split),
            (Counter::InactiveSplitBytes, self.inactive_split_bytes),
        ];
        for (counter, values) in counted {
            for (small, value) in [false, true].into_iter().zip(values) {
                let booked = allocator.books.current(small, counter);
                if booked != value {
                    let pool = if small { "small" } else { "large" };
                    return Err(format!(
                        "{counter:?} of the {pool} pools is booked as {booked} but counts {value}"
                    ));
                }
            }
        }
        let held: i64 = self.reserved_bytes.iter().sum();
        if held != allocator.held as i64 {
            return Err(format!("{} held but blocks make {held}", allocator.held));
        }
        let live: i64 = self.allocation.iter().sum();
        if live != allocator.live.len() as i64 {
            return Err(format!(
                "{live} live blocks, {} known",
                allocator.live.len()
            ));
        }
        if self.bad_uses {
            return Err("a set of streams is empty but kept".to_owned());
        }
        Ok(())
    }
}
