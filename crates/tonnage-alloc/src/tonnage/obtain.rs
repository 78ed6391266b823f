// SPDX-License-Identifier: MIT OR Apache-2.0
//! Obtains memory when no free block fits, and releases memory.
//!
//! The search is repeated after every step that can make room: what streams have
//! done is shared, then pages are obtained or moved, then all work is waited for.
//! Only when that was done is a request refused.

use super::arena::{Arena, Demand};
use super::blocks::{NONE, PageRange, Window};
use super::streams::Patience;
use super::transfer::{Failed, neighbours};
use super::window::{FEW, MANY};
use super::{Allocator, Device, EventKind, Observer, SearchStep};
use crate::{DeviceError, PhysicalId, PolicyError, StreamId};

/// How much memory may be obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The amount that the slack allows; the rest has to come from pages elsewhere.
    Slack,
    /// The free memory that the device reports. Nothing is obtained that would not suffice.
    Told,
    /// The memory is requested from the device before a request is refused: the report of a device may be out of date.
    Asked,
}

/// The part of a plan's live bytes by which its pages may exceed them, if the plan is higher: with a page that is
/// begun it stays below 1 %.
const PLAN_SLACK: u64 = 125;

/// Bytes by which the free memory of a device may exceed its report. An amount that is far from enough is not
/// requested, because other processes could not use it until it is released.
const OUT_OF_DATE: u64 = 64 << 20;

/// Memory for pages.
#[derive(Debug)]
pub(super) struct Supply {
    pub(super) memory: Vec<PhysicalId>,
    pub(super) sources: Vec<PageRange>,
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// Serves a request that no free block can serve at once.
    #[cold]
    pub(super) fn obtain(&mut self, demand: &Demand) -> Result<u32, PolicyError> {
        self.counts.misses += 1;
        if !demand.capturing {
            self.note(SearchStep::OtherStreams, demand);
            self.share_done(demand.lane, Patience::Ask)?;
        }
        if let Some(block) = self.arena.take_any(demand) {
            if !demand.capturing {
                self.counts
                    .search_steps
                    .add_helped(SearchStep::OtherStreams);
            }
            return Ok(block);
        }
        if self.is_tight()
            && let Some(block) = self.arena.take_planned(demand)
        {
            return Ok(block);
        }
        self.note(SearchStep::Pages, demand);
        if let Some(block) = self.enlarge(demand, Room::Told)? {
            return Ok(self.helped(SearchStep::Pages, block));
        }
        if demand.capturing {
            return self.last_resort(demand);
        }
        self.counts.retries += 1;
        self.note(SearchStep::Wait, demand);
        self.complete_frees(Patience::Wait)?;
        self.share_done(demand.lane, Patience::Wait)?;
        if let Some(block) = self.arena.take_any(demand) {
            return Ok(self.helped(SearchStep::Wait, block));
        }
        if let Some(block) = self.enlarge(demand, Room::Told)? {
            return Ok(self.helped(SearchStep::Wait, block));
        }
        self.last_resort(demand)
    }

    /// Counts that a step of the search led to a block.
    fn helped(&mut self, step: SearchStep, block: u32) -> u32 {
        self.counts.search_steps.add_helped(step);
        block
    }

    /// The memory that a plan keeps, and memory that the device gives beyond its report.
    fn last_resort(&mut self, demand: &Demand) -> Result<u32, PolicyError> {
        if self.arena.planned_pages() > 0 {
            self.note(SearchStep::Planned, demand);
        }
        if let Some(block) = self.arena.take_planned(demand) {
            return Ok(self.helped(SearchStep::Planned, block));
        }
        self.note(SearchStep::Device, demand);
        match self.enlarge(demand, Room::Asked)? {
            Some(block) => Ok(self.helped(SearchStep::Device, block)),
            None => Err(self.out_of_memory(demand.requested)),
        }
    }

    /// Tells of a step of the search.
    fn note(&mut self, step: SearchStep, demand: &Demand) {
        self.note_step(step, demand.requested, self.stream_of(demand.lane));
    }

    fn stream_of(&self, lane: u32) -> StreamId {
        self.streams.id(self.lanes.stream(lane))
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
    fn enlarge(&mut self, demand: &Demand, room: Room) -> Result<Option<u32>, DeviceError> {
        if !demand.capturing {
            self.mapper().unstick()?;
        }
        // A place that lacks fewer pages is worth a longer search only if memory has to grow for it.
        for (room, looked_at) in [(Room::Slack, FEW), (room, MANY)] {
            let window = self.arena.window(demand.lane, demand.size, looked_at);
            let filled = match window {
                Some(window) => self.fill(&window, demand, room)?,
                None => None,
            };
            if filled.is_some() {
                return Ok(filled);
            }
        }
        Ok(None)
    }

    /// Brings memory to a window and makes it a used block; `None` if there is not enough.
    pub(super) fn fill(
        &mut self,
        window: &Window,
        demand: &Demand,
        room: Room,
    ) -> Result<Option<u32>, DeviceError> {
        let targets = self.arena.missing_pages(window);
        // Memory that is still mapped there, because undoing failed, is used unchanged.
        let stuck = self.pages.stuck.iter();
        let stuck = stuck.filter(|(page, _)| targets.binary_search(page).is_ok());
        let missing = window.missing - stuck.count() as u64;
        let Some(supply) = self.supply(Some(window), missing, demand.capturing, room)? else {
            return Ok(None);
        };
        let Supply { memory, sources } = supply;
        let done = self.mapper().run(&targets, &sources, memory);
        if let Err(Failed { error, lost }) = done {
            self.drain_all(&lost);
            self.note_reserved();
            return Err(error);
        }
        let block = self.arena.occupy(window, &sources, demand);
        self.note_reserved();
        self.tell_transfer(&targets, &sources, self.stream_of(demand.lane));
        self.note_moves();
        Ok(Some(block))
    }

    /// Tells of memory that came to pages, some of it from elsewhere.
    fn tell_transfer(&mut self, targets: &[u64], sources: &[PageRange], stream: StreamId) {
        let page = self.arena.page;
        for source in sources {
            let bytes = (source.last - source.first) * page;
            self.tell(EventKind::Unmap, source.first * page, bytes, stream);
        }
        for (first, last) in neighbours(targets) {
            let bytes = (last - first) * page;
            self.tell(EventKind::Map, first * page, bytes, stream);
        }
        if let Some(first) = targets.first().filter(|_| !sources.is_empty()) {
            let bytes = count(sources) * page;
            self.tell(EventKind::Move, first * page, bytes, stream);
        }
    }

    /// Memory for pages that a window lacks, or that were paused: new memory while little of it is reserved, then pages
    /// from elsewhere, and new memory for the rest. `None` if all of that is not enough.
    pub(super) fn supply(
        &mut self,
        window: Option<&Window>,
        missing: u64,
        capturing: bool,
        room: Room,
    ) -> Result<Option<Supply>, DeviceError> {
        let size = window.map_or(0, |window| window.end - window.start);
        let spare = self.pages.spare.len() as u64;
        let kept = spare.min(missing);
        let wanted = missing - kept;
        let empty = |arena: &Arena, most: u64| {
            let most = if capturing { 0 } else { most };
            arena.empty_pages(most, window)
        };
        let allowed = self.growth(size).min(wanted);
        let mut sources = empty(&self.arena, wanted - allowed);
        let new = wanted - count(&sources);
        let enough = match room {
            Room::Slack => new <= allowed,
            Room::Told => new <= self.room(),
            Room::Asked => {
                new <= self.limit() && new <= self.room() + OUT_OF_DATE / self.arena.page
            }
        };
        if !enough {
            return Ok(None);
        }
        let kept = self.pages.spare.split_off((spare - kept) as usize);
        let memory = self.more(kept, new)?;
        // The device may have had less than it reported.
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
        let live = self.most_in_memory().max(self.in_memory() + size);
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
        wanted
            .saturating_sub(self.pages.count_held())
            .min(self.room())
    }

    /// Bytes of live blocks that are not paused.
    fn in_memory(&self) -> u64 {
        self.counts
            .allocated
            .now
            .saturating_sub(self.paused_bytes())
    }

    /// The most that was live and not paused.
    fn most_in_memory(&self) -> u64 {
        let since = self.counts.allocated.high();
        let since = since.saturating_sub(self.paused_bytes());
        self.counts.most_in_memory.max(since)
    }

    /// Puts the most that was live and not paused down, because what is paused changes or peaks begin anew.
    pub(super) fn note_in_memory(&mut self) {
        self.counts.most_in_memory = self.most_in_memory();
        self.counts.allocated.fold();
    }

    /// Pages that the limit leaves.
    fn limit(&self) -> u64 {
        let limit = self.settings.limit.unwrap_or(u64::MAX) / self.arena.page;
        limit.saturating_sub(self.pages.count_held())
    }

    /// Allows more memory to a program that made every page move once: it would go on like that.
    pub(super) fn note_moves(&mut self) {
        if self.pages.moved - self.moved_before >= self.pages.count_held() {
            self.moved_before = self.pages.moved;
            self.doublings += 1;
        }
    }

    /// Pages that the limit and the device leave.
    pub(super) fn room(&self) -> u64 {
        let limit = self.limit();
        // A device that reports 0 may not know.
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
    pub(super) fn drain_all(&mut self, ranges: &[PageRange]) {
        for range in ranges {
            let gap = self.arena.drain(range);
            self.arena.settle(gap, range);
            let page = self.arena.page;
            let bytes = (range.last - range.first) * page;
            self.tell(EventKind::Unmap, range.first * page, bytes, StreamId(0));
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
pub(super) fn count(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.last - range.first).sum()
}
