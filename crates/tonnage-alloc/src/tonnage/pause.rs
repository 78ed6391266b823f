// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks without memory: their pages go back to the device, their addresses stay.
//!
//! A program gives blocks a tag, and pauses and resumes all blocks of the tag. A page is paused if used blocks of that
//! one tag cover all of it; one that a block of something else, or free memory, shares is not, and its memory stays.
//! The content of a page is gone when it is resumed, unless the caller kept it.
//!
//! Both are transactions: if a call of the device fails, or there is not enough
//! memory to resume, everything is as it was. A block that is freed while it is
//! paused leaves addresses behind (`State::Left`), which become a gap page by
//! page as soon as no other block lies on them.

use std::collections::BTreeSet;

use super::arena::{Arena, SHARED};
use super::blocks::{Block, NONE, State};
use super::obtain::Room;
use super::streams::Patience;
use super::transfer::{Failed, neighbours};
use super::{Allocator, Device, EventKind, Observer, Tag};
use crate::{Access, DeviceAddr, DeviceError, PhysicalId, PolicyError, StreamId};

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Range {
    /// First byte.
    pub addr: DeviceAddr,
    /// Bytes, whole pages.
    pub bytes: u64,
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// The ranges whose memory [`pause`](Self::pause) would release, by address, for callers that keep their content.
    pub fn pausable(&self, tag: Tag) -> Vec<Range> {
        self.ranges(&self.pausable_pages(tag))
    }

    /// Bytes that are paused.
    pub(super) fn paused_bytes(&self) -> u64 {
        self.pages.paused.len() as u64 * self.arena.page
    }

    /// The paused ranges of a tag, by address.
    pub fn paused(&self, tag: Tag) -> Vec<Range> {
        self.ranges(&self.paused_pages(tag))
    }

    fn ranges(&self, pages: &[u64]) -> Vec<Range> {
        let base = self.base.unwrap_or(DeviceAddr(0));
        let page = self.arena.page;
        let ranges = neighbours(pages).map(|(first, last)| Range {
            addr: base.offset(first * page),
            bytes: (last - first) * page,
        });
        ranges.collect()
    }

    fn paused_pages(&self, tag: Tag) -> Vec<u64> {
        let paused = self.pages.paused.iter();
        let of_tag = paused.filter(|(_, paused)| **paused == tag);
        of_tag.map(|(page, _)| *page).collect()
    }

    /// Pages with memory that used blocks of a tag cover, by address.
    fn pausable_pages(&self, tag: Tag) -> Vec<u64> {
        let page = self.arena.page;
        let mut pages = Vec::new();
        // Blocks of the tag that touch.
        let (mut start, mut end) = (0, 0);
        let mut add = |start: u64, end: u64| pages.extend(start.div_ceil(page)..end / page);
        for (_, block) in self.arena.blocks.by_address() {
            if block.state != State::Used || block.tag != tag.0 {
                continue;
            }
            if block.offset != end {
                add(start, end);
                start = block.offset;
            }
            end = block.end();
        }
        add(start, end);
        pages.retain(|page| self.pages.get(*page).is_some());
        pages
    }

    /// Gives the memory of a tag's blocks back to the device, and keeps their addresses; answers with the bytes that
    /// were given back. Work on their streams, and on those that were named for them, is waited for; work of other
    /// streams that uses them must be done. Until [`resume`](Self::resume) the program must not touch them, and their
    /// content is lost.
    ///
    /// # Errors
    /// If a stream is captured, or if the device fails: nothing has changed then.
    pub fn pause(&mut self, tag: Tag) -> Result<u64, PolicyError> {
        self.refuse_while_capturing()?;
        if tag == Tag::NONE {
            let reason = "only what has a tag can be paused";
            return Err(PolicyError::Refused(reason.to_owned()));
        }
        self.wait_for(tag)?;
        let pages = self.pausable_pages(tag);
        let mut taken: Vec<(u64, PhysicalId)> = Vec::new();
        for (first, last) in neighbours(&pages) {
            if let Err(error) = self.unmap_pages(first, last, &mut taken) {
                self.remap(taken, tag);
                return Err(error.into());
            }
        }
        self.note_in_memory();
        let memory: Vec<PhysicalId> = taken.iter().map(|(_, memory)| *memory).collect();
        for (page, _) in taken {
            self.pages.paused.insert(page, tag);
        }
        let before = self.pages.released;
        // Memory that the device does not take back is kept for the next request, and is counted as reserved.
        let _ = self.mapper().release(memory);
        self.note_reserved();
        self.tell_pages(EventKind::Pause, &pages);
        Ok((self.pages.released - before) * self.arena.page)
    }

    fn refuse_while_capturing(&self) -> Result<(), PolicyError> {
        if self.capturing {
            return Err(PolicyError::Captured);
        }
        Ok(())
    }

    /// Waits for the streams that are known to use blocks of a tag.
    fn wait_for(&mut self, tag: Tag) -> Result<(), DeviceError> {
        let mut streams = BTreeSet::new();
        for (_, block) in self.arena.blocks.by_address() {
            if block.state == State::Used && block.tag == tag.0 {
                streams.insert(self.lanes.stream(block.lane));
                streams.extend(self.streams.named(block.uses));
            }
        }
        for stream in streams {
            let epoch = self.streams.open(stream);
            let device = &mut self.device;
            self.streams.reach(device, stream, epoch, Patience::Wait)?;
        }
        Ok(())
    }

    fn unmap_pages(
        &mut self,
        first: u64,
        last: u64,
        taken: &mut Vec<(u64, PhysicalId)>,
    ) -> Result<(), DeviceError> {
        let page = self.arena.page;
        let addr = self.base.unwrap_or(DeviceAddr(0)).offset(first * page);
        self.device.unmap(addr, (last - first) * page)?;
        let pages = &mut self.pages;
        taken.extend((first..last).filter_map(|page| Some((page, pages.take(page)?))));
        Ok(())
    }

    /// Undoes a pause: every piece of memory goes back to its page, with what is in it. A page for which that fails is
    /// paused, so that it can be resumed.
    fn remap(&mut self, taken: Vec<(u64, PhysicalId)>, tag: Tag) {
        let (base, size) = (self.base.unwrap_or(DeviceAddr(0)), self.arena.page);
        let mut lost = Vec::new();
        for (page, memory) in taken {
            let addr = base.offset(page * size);
            let mapped = self.device.map(addr, size, memory).is_ok();
            let access = Access::ReadWrite;
            if mapped && self.device.set_access(addr, size, access).is_ok() {
                self.pages.record_mapping(page, memory);
                continue;
            }
            if mapped && self.device.unmap(addr, size).is_err() {
                self.pages.stuck.push((page, memory));
            } else {
                self.pages.spare.push(memory);
            }
            self.pages.paused.insert(page, tag);
            lost.push(page);
        }
        self.note_reserved();
        self.tell_pages(EventKind::Pause, &lost);
    }

    fn tell_pages(&mut self, kind: EventKind, pages: &[u64]) {
        let page = self.arena.page;
        for (first, last) in neighbours(pages) {
            let bytes = (last - first) * page;
            self.tell(kind, first * page, bytes, StreamId(0));
        }
    }

    /// Brings memory to the paused ranges of a tag, at the same addresses; returns the ranges that have memory again.
    /// Memory comes from the device, and from unused pages elsewhere.
    ///
    /// # Errors
    /// [`PolicyError::OutOfMemory`] if there is not enough: everything stays paused, `requested` is what is needed and
    /// `free` is what there is for it. Or if a stream is captured, or if the device fails.
    pub fn resume(&mut self, tag: Tag) -> Result<Vec<Range>, PolicyError> {
        self.refuse_while_capturing()?;
        self.mapper().unstick()?;
        let mut targets = Vec::new();
        let mut supply = None;
        for (patience, room) in [(Patience::Ask, Room::Told), (Patience::Wait, Room::Asked)] {
            self.complete_frees(patience)?;
            self.share_done(NONE, patience)?;
            // Blocks that were freed while they were paused are gone by now.
            targets = self.paused_pages(tag);
            if targets.is_empty() {
                return Ok(Vec::new());
            }
            supply = self.supply(None, targets.len() as u64, false, room)?;
            if supply.is_some() {
                break;
            }
        }
        let Some(supply) = supply else {
            let page = self.arena.page;
            let empty = super::obtain::count(&self.arena.empty_pages(u64::MAX, None));
            let spare = self.pages.spare.len() as u64;
            let known = match self.device.free_bytes() / page {
                0 => 0,
                _ => self.room(),
            };
            return Err(PolicyError::OutOfMemory {
                requested: targets.len() as u64 * page,
                free: (empty + spare + known) * page,
            });
        };
        let moved = &supply.sources;
        let done = self.mapper().run(&targets, moved, supply.memory);
        if let Err(Failed { error, lost }) = done {
            self.drain_all(&lost);
            self.note_reserved();
            return Err(error.into());
        }
        self.note_in_memory();
        for page in &targets {
            self.pages.paused.remove(page);
        }
        self.drain_all(moved);
        self.note_reserved();
        self.note_moves();
        self.tell_pages(EventKind::Resume, &targets);
        let moved = super::obtain::count(moved) * self.arena.page;
        if moved > 0 {
            let first = targets.first().copied().unwrap_or(0) * self.arena.page;
            self.tell(EventKind::Move, first, moved, StreamId(0));
        }
        self.arena.free_left(&targets);
        Ok(self.ranges(&targets))
    }

    /// Whether a block lies on paused pages.
    pub(super) fn is_paused(&self, block: &Block) -> bool {
        let page = self.arena.page;
        let touched = block.offset / page..block.end().div_ceil(page);
        self.pages.paused.range(touched).next().is_some()
    }

    /// Takes a block back that lies on paused pages.
    #[cold]
    pub(super) fn give_paused(&mut self, index: u32, epoch: u64) {
        self.note_in_memory();
        let paused = &self.pages.paused;
        let is_paused = |page| paused.contains_key(&page);
        let gaps = self.arena.leave(index, epoch, is_paused);
        let page = self.arena.page;
        for (first, last) in gaps {
            self.pages
                .paused
                .retain(|page, _| !(first..last).contains(page));
            let bytes = (last - first) * page;
            self.tell(EventKind::Unmap, first * page, bytes, StreamId(0));
        }
    }
}

impl Arena {
    /// Takes a block back that lies on paused pages. The part on pages with memory is free. Whole pages without become
    /// gaps, which are the answer, as first and one past the last; the rest of them is left, a block for each page.
    fn leave(
        &mut self,
        index: u32,
        epoch: u64,
        is_paused: impl Fn(u64) -> bool,
    ) -> Vec<(u64, u64)> {
        self.forget(index);
        let (size, end) = (self.page, self.blocks[index].end());
        let mut gaps = Vec::new();
        let mut rest = index;
        loop {
            let offset = self.blocks[rest].offset;
            let first = offset / size;
            let paused = is_paused(first);
            let whole = offset.is_multiple_of(size) && end >= (first + 1) * size;
            let mut last = first + 1;
            let alike = |page: u64| {
                if paused {
                    whole && is_paused(page) && end >= (page + 1) * size
                } else {
                    !is_paused(page) && end > page * size
                }
            };
            while alike(last) {
                last += 1;
            }
            let next = (end > last * size).then(|| self.blocks.cut(rest, last * size));
            if !paused {
                let block = &mut self.blocks[rest];
                (block.state, block.epoch) = (State::Free, epoch);
                self.attach(rest);
            } else if whole {
                self.make_gap(rest);
                gaps.push((first, last));
            } else if self.join_left(rest) {
                gaps.push((first, last));
            }
            match next {
                Some(next) => rest = next,
                None => return gaps,
            }
        }
    }

    fn make_gap(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        (block.state, block.lane, block.epoch) = (State::Gap, NONE, 0);
        self.attach(index);
    }

    /// Leaves a part of a paused page behind; whether nothing else is on the page any more, which is a gap then.
    fn join_left(&mut self, index: u32) -> bool {
        let size = self.page;
        let page = self.blocks[index].offset / size;
        let block = &mut self.blocks[index];
        (block.state, block.lane) = (State::Left, NONE);
        let Block { prev, next, .. } = *block;
        let beside = |other: u32| {
            other != NONE && {
                let other = &self.blocks[other];
                other.state == State::Left && other.offset / size == page
            }
        };
        let (below, above) = (beside(prev), beside(next));
        if above {
            self.blocks.join(index, next);
        }
        let mut joined = index;
        if below {
            self.blocks.join(prev, index);
            joined = prev;
        }
        if self.blocks[joined].size < size {
            return false;
        }
        self.make_gap(joined);
        true
    }

    /// Frees what blocks left behind on pages that have memory again.
    fn free_left(&mut self, pages: &[u64]) {
        let left = self.blocks.by_address().filter(|(_, block)| {
            let page = block.offset / self.page;
            block.state == State::Left && pages.binary_search(&page).is_ok()
        });
        for index in left.map(|(index, _)| index).collect::<Vec<u32>>() {
            let block = &mut self.blocks[index];
            // Nobody could use it since all work on it was waited for.
            (block.state, block.lane, block.epoch) = (State::Free, SHARED, 0);
            self.attach(index);
        }
    }
}
