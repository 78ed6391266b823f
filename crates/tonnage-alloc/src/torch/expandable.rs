// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expandable segments (specification 6): one reserved range of addresses, in
//! which pages get and lose memory while blocks live between them.

use super::block::{Block, NONE};
use super::size::SMALL_SEGMENT;
use super::{Action, Allocator, Error, Sink, Undefined};
use crate::{Access, Device, DeviceAddr, DeviceError, PhysicalId};

/// One expandable segment.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) size: u64,
    pub(super) page: u64,
    /// The memory behind each page, as far up as there ever was some.
    pub(super) pages: Vec<Option<PhysicalId>>,
}

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Says to which reserve class a stream belongs (9, `expandable_segments_reserve_by_class`).
    pub fn set_reserve_class(&mut self, stream: crate::StreamId, class: &str) {
        self.reserve_classes.insert(stream, class.to_owned());
    }

    /// Finds or makes room for `size` bytes and gives it memory; `None` if the
    /// device has too little. Parts mapped before a failure stay (15.8).
    pub(super) fn grow(&mut self, lane: u32, size: u64) -> Result<Option<u32>, Error> {
        let found = match self.find_room(lane, size) {
            Some(block) => Some(block),
            None => self.new_range(lane, size)?,
        };
        let Some(mut block) = found else {
            return Ok(None);
        };
        if !self.blocks[block].is_mapped() {
            let bytes = self.blocks[block].size.min(size);
            if !self.map(block, bytes)? {
                return Ok(None);
            }
        }
        while self.blocks[block].size < size {
            let next = self.blocks[block].next;
            let bytes = self.blocks[next].size.min(size - self.blocks[block].size);
            if !self.map(next, bytes)? {
                return Ok(None);
            }
            // The free block before it was merged into it.
            block = next;
        }
        self.take_free(block);
        Ok(Some(block))
    }

    /// The lowest run of free blocks, with memory or without, that spans `size` bytes.
    fn find_room(&self, lane: u32, size: u64) -> Option<u32> {
        let idle = |block: u32| block != NONE && !self.blocks[block].is_busy();
        let starts = self.lanes[lane as usize].unmapped.values().map(|&block| {
            let before = self.blocks[block].prev;
            if idle(before) { before } else { block }
        });
        starts.into_iter().find(|&start| {
            let mut bytes = 0;
            let mut block = start;
            while bytes < size && idle(block) {
                bytes += self.blocks[block].size;
                block = self.blocks[block].next;
            }
            bytes >= size
        })
    }

    /// Reserves a range; `None` if even that is smaller than the request.
    fn new_range(&mut self, lane: u32, size: u64) -> Result<Option<u32>, Error> {
        let pool = &self.pools[self.lanes[lane as usize].pool as usize];
        let small = pool.small;
        let page = if small {
            SMALL_SEGMENT
        } else {
            self.settings.large_segment_size
        };
        let length = self
            .reserve_for(lane)
            .checked_next_multiple_of(page)
            .ok_or(DeviceError::Invalid("a reservation beyond all addresses"))?;
        let base = self.device.reserve(length)?;
        if length < size {
            self.device.unreserve(base, length)?;
            return Ok(None);
        }
        let range = Range {
            base: base.0,
            size: length,
            page,
            pages: Vec::new(),
        };
        let index = self.ranges.iter().position(Option::is_none);
        let index = index.unwrap_or(self.ranges.len());
        if index == self.ranges.len() {
            self.ranges.push(None);
        }
        self.ranges[index] = Some(range);
        let mut block = Block::new(base.0, length, lane, small);
        block.set_mapped(false);
        block.range = index as u32;
        block.rank = self.ranks.segment(base.0);
        let block = self.blocks.add(block);
        self.lanes[lane as usize].unmapped.insert(base.0, block);
        Ok(Some(block))
    }

    /// How many bytes of addresses a range of this lane reserves: 9/8 of the
    /// device unless set smaller, so that one range can always hold it all.
    fn reserve_for(&self, lane: u32) -> u64 {
        let total = self.device.total();
        let full = total.saturating_add(total / 8);
        let stream = self.lanes[lane as usize].stream;
        let class = self.reserve_classes.get(&stream).map_or("", String::as_str);
        self.settings
            .expandable_segments_reserve_by_class
            .get(class)
            .copied()
            .or(self.settings.expandable_segments_reserve)
            .map_or(full, |reserve| reserve.bytes(total).min(full))
    }

    /// Gives memory to the first `bytes` of a block that has none, page by page;
    /// `false` if the device ran short, and then nothing changed.
    fn map(&mut self, index: u32, bytes: u64) -> Result<bool, Error> {
        let (addr, lane) = (self.blocks[index].addr, self.blocks[index].lane);
        let range_index = self.blocks[index].range as usize;
        let Some(range) = self.ranges[range_index].as_mut() else {
            return Err(DeviceError::Invalid("a block of no range").into());
        };
        let first = (addr - range.base) / range.page;
        let last = (addr - range.base + bytes).div_ceil(range.page);
        let length = (last - first) * range.page;
        let mut got = Vec::new();
        for _ in first..last {
            match self.device.create(range.page) {
                Ok(memory) => got.push(memory),
                Err(error) => {
                    for memory in got {
                        release(&mut self.device, memory, &mut self.unreleased)?;
                    }
                    return match error {
                        DeviceError::OutOfMemory { .. } => Ok(false),
                        other => Err(other.into()),
                    };
                }
            }
        }
        let start = DeviceAddr(range.base + first * range.page);
        if let Err(error) = map_pages(&mut self.device, start, range.page, &got) {
            for memory in got {
                // The first failure is the one to report.
                let _ = release(&mut self.device, memory, &mut self.unreleased);
            }
            return Err(error.into());
        }
        if range.pages.len() < last as usize {
            range.pages.resize(last as usize, None);
        }
        for (page, memory) in (first..last).zip(got) {
            range.pages[page as usize] = Some(memory);
        }
        self.lanes[lane as usize].unmapped.remove(&addr);
        self.blocks[index].set_mapped(true);
        if length < self.blocks[index].size {
            let mut rest = self.part(index, addr + length, self.blocks[index].size - length);
            rest.set_mapped(false);
            let (at, next) = (rest.addr, self.blocks[index].next);
            let rest = self.blocks.add(rest);
            self.blocks.link(rest, index, next);
            self.lanes[lane as usize].unmapped.insert(at, rest);
            self.blocks[index].size = length;
        }
        self.absorb(index, self.blocks[index].prev);
        self.absorb(index, self.blocks[index].next);
        self.put_free(index);
        self.change_held(lane, length as i64);
        self.books.rest.device_alloc += 1;
        self.emit(Action::SegmentMap, addr, length, lane);
        Ok(true)
    }

    /// Takes the memory away from the whole pages inside a free block.
    pub(super) fn unmap(&mut self, index: u32) -> Result<(), Error> {
        let (addr, size, lane) = {
            let block = &self.blocks[index];
            (block.addr, block.size, block.lane)
        };
        let range_index = self.blocks[index].range as usize;
        let Some(range) = self.ranges[range_index].as_mut() else {
            return Err(DeviceError::Invalid("a block of no range").into());
        };
        let first = (addr - range.base).div_ceil(range.page);
        let last = (addr + size - range.base) / range.page;
        if first >= last {
            return Ok(());
        }
        let pool = self.lanes[lane as usize].pool;
        if !self.private.may_uncount(self.pools[pool as usize].owner) {
            return Err(self.flag(Undefined::PoolCountUnderflow));
        }
        let mut done = first;
        let mut unmapped = Ok(());
        while unmapped.is_ok() && done < last {
            let at = DeviceAddr(range.base + done * range.page);
            unmapped = self.device.unmap(at, range.page);
            if unmapped.is_ok() {
                let memory = range.pages[done as usize].take();
                unmapped = memory.map_or(Ok(()), |memory| {
                    release(&mut self.device, memory, &mut self.unreleased)
                });
                done += 1;
            }
        }
        if first >= done {
            return Ok(unmapped?);
        }
        // If the device failed in between, the pages before have no memory any more.
        let start = range.base + first * range.page;
        let length = (done - first) * range.page;
        self.take_free(index);
        let before = start - addr;
        if before > 0 {
            let part = self.part(index, addr, before);
            let part = self.blocks.add(part);
            self.blocks.link(part, self.blocks[index].prev, index);
            self.put_free(part);
        }
        let after = size - before - length;
        if after > 0 {
            let part = self.part(index, start + length, after);
            let part = self.blocks.add(part);
            self.blocks.link(part, index, self.blocks[index].next);
            self.put_free(part);
        }
        let block = &mut self.blocks[index];
        block.addr = start;
        block.rank = self.ranks.moved(block.rank, before);
        block.size = length;
        block.set_mapped(false);
        self.absorb(index, self.blocks[index].prev);
        self.absorb(index, self.blocks[index].next);
        let at = self.blocks[index].addr;
        self.lanes[lane as usize].unmapped.insert(at, index);
        self.change_held(lane, -(length as i64));
        self.private.uncount(self.pools[pool as usize].owner);
        self.books.rest.device_free += 1;
        self.emit(Action::SegmentUnmap, start, length, lane);
        Ok(unmapped?)
    }

    /// Drops a range that is one block without memory again. No event (6).
    pub(super) fn drop_range(&mut self, index: u32) -> Result<(), Error> {
        let block = &self.blocks[index];
        let (addr, lane, range) = (block.addr, block.lane, block.range as usize);
        let Some(dropped) = &self.ranges[range] else {
            return Err(DeviceError::Invalid("a block of no range").into());
        };
        self.device
            .unreserve(DeviceAddr(dropped.base), dropped.size)?;
        self.ranges[range] = None;
        self.lanes[lane as usize].unmapped.remove(&addr);
        self.blocks.remove(index);
        Ok(())
    }

    /// Drops every range that has no memory, which torch does not do.
    pub(super) fn drop_empty_ranges(&mut self) -> Result<(), Error> {
        let whole: Vec<u32> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.is_expandable() && !block.is_mapped() && !block.is_split())
            .map(|(index, _)| index)
            .collect();
        for block in whole {
            self.drop_range(block)?;
        }
        Ok(())
    }

    /// A new block object for a part of `index`, not linked to anything yet.
    fn part(&mut self, index: u32, addr: u64, size: u64) -> Block {
        let whole = &self.blocks[index];
        let rank = self.ranks.part(whole.rank, addr - whole.addr);
        let mut part = Block::new(addr, size, whole.lane, whole.is_small());
        part.range = whole.range;
        part.rank = rank;
        part
    }

    fn change_held(&mut self, lane: u32, by: i64) {
        let lane = &self.lanes[lane as usize];
        self.held = self.held.wrapping_add_signed(by);
        let small = self.pools[lane.pool as usize].small;
        self.books.change_reserved(small, lane.pool_id, by);
    }
}

/// Releases memory; what the device fails for is kept for another try.
fn release(
    device: &mut impl Device,
    memory: PhysicalId,
    unreleased: &mut Vec<PhysicalId>,
) -> Result<(), DeviceError> {
    let released = device.release(memory);
    if released.is_err() {
        unreleased.push(memory);
    }
    released
}

/// Puts pages of memory side by side and makes them usable. If the device fails,
/// nothing is mapped.
fn map_pages(
    device: &mut impl Device,
    start: DeviceAddr,
    page: u64,
    memory: &[PhysicalId],
) -> Result<(), DeviceError> {
    let mut mapped = 0;
    let mut result = Ok(());
    for &memory in memory {
        result = device.map(start.offset(mapped), page, memory);
        if result.is_err() {
            break;
        }
        mapped += page;
    }
    if result.is_ok() {
        result = device.set_access(start, mapped, Access::ReadWrite);
    }
    if result.is_err() {
        // The first failure is the one to report; a device that also fails here
        // keeps what it holds.
        for at in (0..mapped).step_by(page as usize) {
            let _ = device.unmap(start.offset(at), page);
        }
    }
    result
}
