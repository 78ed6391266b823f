// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens when no free block fits, and how memory goes back.
//!
//! The search is repeated after every step that can make room: what streams have
//! done is shared, then pages are obtained or moved, then all work is waited for.
//! Only when that was done is a request refused.

use super::arena::Arena;
use super::blocks::NONE;
use super::streams::Patience;
use super::transfer::Failed;
use super::window::{PageRange, Window};
use super::{Allocator, Device};
use crate::{DeviceError, PhysicalId, PolicyError};

/// How it is known how much memory the device has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It said so. Nothing is obtained that would not suffice.
    Told,
    /// It is asked for the memory, before a request is refused: what a device says may be out of date.
    Asked,
}

/// The part of a plan's live bytes by which its pages may exceed them, if the plan is higher: with a page that is
/// begun it stays below 1 %.
const PLAN_SLACK: u64 = 125;

/// Memory for the pages of a window.
#[derive(Debug)]
struct Supply {
    memory: Vec<PhysicalId>,
    sources: Vec<PageRange>,
}

impl<D: Device> Allocator<D> {
    /// Serves a request that no free block can serve at once.
    #[cold]
    pub(super) fn obtain(
        &mut self,
        lane: u32,
        size: u64,
        requested: u64,
        capturing: bool,
    ) -> Result<u32, PolicyError> {
        self.counts.misses += 1;
        if !capturing {
            self.share_done(lane, Patience::Ask)?;
        }
        if let Some(block) = self.arena.take_any(lane, size, requested) {
            return Ok(block);
        }
        if self.is_tight()
            && let Some(block) = self.arena.take_planned(lane, size, requested)
        {
            return Ok(block);
        }
        if let Some(block) = self.enlarge(lane, size, requested, capturing, Room::Told)? {
            return Ok(block);
        }
        if capturing {
            return self.last_resort(lane, size, requested, true);
        }
        self.counts.retries += 1;
        self.complete_frees(Patience::Wait)?;
        self.share_done(lane, Patience::Wait)?;
        if let Some(block) = self.arena.take_any(lane, size, requested) {
            return Ok(block);
        }
        if let Some(block) = self.enlarge(lane, size, requested, false, Room::Told)? {
            return Ok(block);
        }
        self.last_resort(lane, size, requested, false)
    }

    /// What a plan keeps, and what the device gives although it said that it has not so much.
    fn last_resort(
        &mut self,
        lane: u32,
        size: u64,
        requested: u64,
        capturing: bool,
    ) -> Result<u32, PolicyError> {
        if let Some(block) = self.arena.take_planned(lane, size, requested) {
            return Ok(block);
        }
        let block = self.enlarge(lane, size, requested, capturing, Room::Asked)?;
        block.ok_or_else(|| self.out_of_memory(requested))
    }

    /// Shares the free blocks whose work is done, and forgets lanes without blocks, except one.
    pub(super) fn share_done(
        &mut self,
        except: u32,
        patience: Patience,
    ) -> Result<(), DeviceError> {
        self.streams.next_pass();
        for lane in self.lanes.all() {
            let state = &self.arena.lanes[lane as usize];
            if state.private {
                continue;
            }
            if state.free.len() + state.planned.len() > 0 {
                let (stream, newest) = (self.lanes.stream(lane), state.newest);
                self.streams
                    .reach(&mut self.device, stream, newest, patience)?;
                self.arena.share(lane, self.streams.done(stream));
            }
            if lane != except {
                self.forget_if_empty(lane);
            }
        }
        Ok(())
    }

    /// Brings memory to where a request then fits; `None` if there is not enough.
    fn enlarge(
        &mut self,
        lane: u32,
        size: u64,
        requested: u64,
        capturing: bool,
        room: Room,
    ) -> Result<Option<u32>, DeviceError> {
        if !capturing {
            self.mapper().unstick()?;
        }
        match self.arena.window(lane, size) {
            Some(window) => self.fill(&window, lane, requested, capturing, room),
            None => Ok(None),
        }
    }

    /// Brings memory to a window and makes it a used block; `None` if there is not enough.
    pub(super) fn fill(
        &mut self,
        window: &Window,
        lane: u32,
        requested: u64,
        capturing: bool,
        room: Room,
    ) -> Result<Option<u32>, DeviceError> {
        let targets = self.arena.missing_pages(window);
        // What is still mapped there, because undoing it failed, is used as it is.
        let stuck = self.pages.stuck.iter();
        let stuck = stuck.filter(|(page, _)| targets.binary_search(page).is_ok());
        let missing = window.missing - stuck.count() as u64;
        let Some(supply) = self.supply(window, missing, capturing, room)? else {
            return Ok(None);
        };
        let Supply { memory, sources } = supply;
        let done = self.mapper().run(&targets, &sources, memory);
        if let Err(Failed { error, lost }) = done {
            self.drain_all(&lost);
            self.note_reserved();
            return Err(error);
        }
        let block = self.arena.occupy(window, &sources, lane, requested);
        self.note_reserved();
        self.note_moves();
        Ok(Some(block))
    }

    /// Memory for pages that a window lacks: new memory while little of it is reserved, then pages from elsewhere,
    /// and new memory for the rest. `None` if all of that is not enough.
    fn supply(
        &mut self,
        window: &Window,
        missing: u64,
        capturing: bool,
        room: Room,
    ) -> Result<Option<Supply>, DeviceError> {
        let size = window.end - window.start;
        let spare = self.pages.spare.len() as u64;
        let kept = spare.min(missing);
        let wanted = missing - kept;
        let empty = |arena: &Arena, most: u64| {
            let most = if capturing { 0 } else { most };
            arena.empty_pages(most, Some(window))
        };
        let new = self.growth(size).min(wanted);
        let mut sources = empty(&self.arena, wanted - new);
        let new = wanted - count(&sources);
        let enough = match room {
            Room::Told => new <= self.room(),
            Room::Asked => new <= self.limit(),
        };
        if !enough {
            return Ok(None);
        }
        let kept = self.pages.spare.split_off((spare - kept) as usize);
        let memory = self.more(kept, new)?;
        // The device may have had less than it said.
        let lacking = missing - memory.len() as u64;
        if count(&sources) != lacking {
            sources = empty(&self.arena, lacking);
        }
        if count(&sources) < lacking {
            self.give_back(memory)?;
            return Ok(None);
        }
        Ok(Some(Supply { memory, sources }))
    }

    /// Adds up to `count` new pieces to those at hand, which are kept as spare if the device fails.
    fn more(
        &mut self,
        memory: Vec<PhysicalId>,
        count: u64,
    ) -> Result<Vec<PhysicalId>, DeviceError> {
        match self.mapper().create(count) {
            Ok(created) => Ok([memory, created].concat()),
            Err(error) => {
                self.pages.spare.extend(memory);
                self.note_reserved();
                Err(error)
            }
        }
    }

    /// Pages that may be obtained before any are moved for a request of `size` bytes.
    pub(super) fn growth(&self, size: u64) -> u64 {
        let live = self
            .counts
            .allocated
            .peak
            .max(self.counts.allocated.now + size);
        let pages = |live: u64, slack: u64| live.saturating_add(slack).div_ceil(self.arena.page);
        let wanted = pages(live, self.settings.slack_of(live, self.doublings));
        // A program that follows a plan will need what the plan needs.
        let planned = match &self.plan {
            Some(plan) if plan.is_trusted() => {
                let live = plan.live();
                pages(live, live / PLAN_SLACK).min(self.arena.planned_pages())
            }
            _ => 0,
        };
        let wanted = wanted.max(planned);
        wanted.saturating_sub(self.pages.held()).min(self.room())
    }

    /// Pages that the limit leaves.
    fn limit(&self) -> u64 {
        let limit = self.settings.limit.unwrap_or(u64::MAX) / self.arena.page;
        limit.saturating_sub(self.pages.held())
    }

    /// Allows more memory to a program that made every page move once: it would go on like that.
    fn note_moves(&mut self) {
        if self.pages.moved - self.moved_before >= self.pages.held() {
            self.moved_before = self.pages.moved;
            self.doublings += 1;
        }
    }

    /// Pages that the limit and the device leave.
    pub(super) fn room(&self) -> u64 {
        let limit = self.limit();
        // A device that says 0 may not know.
        match self.device.free_bytes() / self.arena.page {
            0 => limit,
            free => limit.min(free),
        }
    }

    /// Gives every empty page back, after all work is done.
    pub(super) fn trim(&mut self) -> Result<(), DeviceError> {
        if self.base.is_none() {
            return Ok(());
        }
        self.complete_frees(Patience::Wait)?;
        self.share_done(NONE, Patience::Wait)?;
        self.mapper().unstick()?;
        let spare = std::mem::take(&mut self.pages.spare);
        let mut result = self.give_back(spare);
        for range in self.arena.empty_pages(u64::MAX, None) {
            let mut memory = Vec::new();
            if result.is_ok() {
                result = self.mapper().unmap(&range, &mut memory);
            }
            if result.is_ok() {
                self.drain_all(&[range]);
                result = self.give_back(memory);
            }
        }
        result
    }

    fn give_back(&mut self, memory: Vec<PhysicalId>) -> Result<(), DeviceError> {
        let released = self.mapper().release(memory);
        self.note_reserved();
        released
    }

    /// Notes that ranges have no memory any more.
    fn drain_all(&mut self, ranges: &[PageRange]) {
        for range in ranges {
            let gap = self.arena.drain(range);
            self.arena.settle(gap, range);
        }
    }

    /// Gives everything back that no live block needs, the addresses too.
    pub(super) fn shut(&mut self) -> Result<(), DeviceError> {
        self.open_pools(None);
        self.trim()?;
        if self.arena.live() == 0
            && let Some(base) = self.base
        {
            debug_assert_eq!(self.arena.largest_free(), 0);
            self.device.unreserve(base, self.arena.span())?;
            self.base = None;
        }
        self.streams.destroy_events(&mut self.device)
    }
}

/// How many pages there are in ranges.
fn count(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.last - range.first).sum()
}
