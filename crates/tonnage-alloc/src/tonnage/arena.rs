// SPDX-License-Identifier: MIT OR Apache-2.0
//! One address space, cut into blocks: who has which range, and where there is room.
//!
//! Pure accounting. It knows which ranges have memory and which are gaps, but has no device. It decides which ranges to
//! map or unmap (`window.rs`); the allocator does so and updates the arena afterwards.
//!
//! A free block belongs to a *lane*, a stream within a pool, because only that stream may use it at once. Free blocks
//! whose work is done belong to [`SHARED`], and everyone may use them. Neighbors are joined as soon as they are free:
//! blocks of one lane, and shared ones with others, because the younger use then stands for both. Blocks of private
//! pools are joined with nothing else.
//!
//! With a plan, the addresses below its height are kept for it: free blocks there are in separate lists, in which
//! requests without a place do not search.

use super::blocks::{Block, Blocks, NONE, PageRange, State, Window};
use super::index::Index;
use super::lists::Lists;
use crate::Tag;

/// The lane of blocks that no stream uses any more.
pub(super) const SHARED: u32 = 0;

/// The properties of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) lane: u32,
    /// Bytes of the block.
    pub(super) size: u64,
    /// Bytes that the program requested.
    pub(super) requested: u64,
    /// Whether a stream is captured, so that the allocator must not query, wait, or unmap.
    pub(super) capturing: bool,
    pub(super) tag: Tag,
    /// Whether a handle will own the block.
    pub(super) owned: bool,
}

/// The free blocks of a stream within a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) free: Lists,
    /// Blocks below the height of the plan.
    pub(super) planned: Lists,
    /// Used and pending blocks.
    pub(super) live: u32,
    /// The newest epoch of its free blocks.
    pub(super) newest: u64,
    /// Whether its memory is for its pool alone.
    pub(super) private: bool,
}

/// The blocks of an address space.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    pub(super) blocks: Blocks,
    pub(super) gaps: Lists,
    /// Blocks below the height of the plan.
    planned_gaps: Lists,
    /// The height of the plan in whole pages; 0 without one.
    planned: u64,
    pub(super) lanes: Vec<Lane>,
    index: Index,
    pub(super) page: u64,
    span: u64,
}

impl Arena {
    /// A space of `span` bytes without memory, in pages of `page` bytes, of which `planned` pages are for a plan.
    pub(super) fn new(span: u64, page: u64, planned: u64) -> Self {
        let planned = planned * page;
        debug_assert!(planned < span);
        let mut arena = Self {
            blocks: Blocks::new(span, planned),
            gaps: Lists::default(),
            planned_gaps: Lists::default(),
            planned,
            lanes: vec![Lane::default()],
            index: Index::default(),
            page,
            span,
        };
        arena.list(Blocks::FIRST);
        let above = arena.blocks[Blocks::FIRST].next;
        if above != NONE {
            arena.list(above);
        }
        arena
    }

    /// Pages that are kept for a plan.
    pub(super) fn planned_pages(&self) -> u64 {
        self.planned / self.page
    }

    pub(super) fn span(&self) -> u64 {
        self.span
    }

    /// How many blocks are used or pending.
    pub(super) fn live(&self) -> usize {
        self.index.len()
    }

    /// The used or pending block at an offset.
    #[inline]
    pub(super) fn at(&self, offset: u64) -> Option<u32> {
        self.index.get(offset)
    }

    /// Hands out a block from free memory of the lane, or of all.
    #[inline]
    pub(super) fn take(&mut self, demand: &Demand) -> Option<u32> {
        let found = self.search(demand.lane, |lists, blocks| lists.find(blocks, demand.size))?;
        let start = self.start_in(found, demand.size);
        Some(self.hand_out(found, start, demand))
    }

    /// The same, overlooking nothing.
    pub(super) fn take_any(&mut self, demand: &Demand) -> Option<u32> {
        let find = |lists: &Lists, blocks: &Blocks| lists.find_any(blocks, demand.size);
        let found = self.search(demand.lane, find)?;
        let start = self.start_in(found, demand.size);
        Some(self.hand_out(found, start, demand))
    }

    /// The same, from memory that is kept for the plan.
    pub(super) fn take_planned(&mut self, demand: &Demand) -> Option<u32> {
        let find = |lane: u32| {
            let lists = &self.lanes[lane as usize].planned;
            lists.find_any(&self.blocks, demand.size)
        };
        let found = find(demand.lane).or_else(|| find(SHARED))?;
        let start = self.start_in(found, demand.size);
        Some(self.hand_out(found, start, demand))
    }

    /// Where a request lies in a free block that is larger: at the end at which it leaves more whole pages, of which
    /// other requests may have need.
    #[inline]
    fn start_in(&self, found: u32, size: u64) -> u64 {
        let block = &self.blocks[found];
        let (low, high) = (block.offset, block.end());
        if high - low < self.page {
            return low;
        }
        // A page is a power of two on every device there is; were it not, the choice would only be a worse one.
        let bits = self.page.trailing_zeros();
        let whole =
            |low: u64, high: u64| (high >> bits).saturating_sub((low + self.page - 1) >> bits);
        if whole(low, high - size) > whole(low + size, high) {
            high - size
        } else {
            low
        }
    }

    /// The tighter one of what is found in the lane and in what is shared.
    #[inline]
    fn search(&self, lane: u32, find: impl Fn(&Lists, &Blocks) -> Option<u32>) -> Option<u32> {
        let own = find(&self.lanes[lane as usize].free, &self.blocks);
        let shared = &self.lanes[SHARED as usize].free;
        if shared.len() == 0 {
            return own;
        }
        let shared = find(shared, &self.blocks);
        match (own, shared) {
            (Some(own), Some(shared)) if self.blocks[shared].size < self.blocks[own].size => {
                Some(shared)
            }
            _ => own.or(shared),
        }
    }

    /// Turns the requested range into a used block. It begins at `start`, which lies in a free block.
    #[inline]
    pub(super) fn hand_out(&mut self, found: u32, start: u64, demand: &Demand) -> u32 {
        let index = self.carve(found, start, start + demand.size);
        let block = &mut self.blocks[index];
        block.state = State::Used;
        block.lane = demand.lane;
        block.requested = demand.requested;
        block.uses = NONE;
        block.tag = demand.tag.0;
        block.owned = demand.owned;
        self.index.insert(start, index);
        self.lanes[demand.lane as usize].live += 1;
        index
    }

    /// Takes a used or pending block back; work up to `epoch` of its stream may still use it.
    #[inline]
    pub(super) fn release_block(&mut self, index: u32, epoch: u64) {
        let block = &mut self.blocks[index];
        block.state = State::Free;
        block.epoch = epoch;
        self.forget(index);
        self.attach(index);
    }

    /// A block is live no more.
    #[inline]
    pub(super) fn forget(&mut self, index: u32) {
        let Block { offset, lane, .. } = self.blocks[index];
        self.index.remove(offset);
        self.lanes[lane as usize].live -= 1;
    }

    /// Takes a free block or a gap out of its list.
    #[inline]
    pub(super) fn detach(&mut self, index: u32) {
        let Block {
            state,
            lane,
            offset,
            ..
        } = self.blocks[index];
        let lists = match (state, offset < self.planned) {
            (State::Gap, false) => &mut self.gaps,
            (State::Gap, true) => &mut self.planned_gaps,
            (_, false) => &mut self.lanes[lane as usize].free,
            (_, true) => &mut self.lanes[lane as usize].planned,
        };
        lists.remove(&mut self.blocks, index);
    }

    /// Puts a free block or a gap into its list as it is.
    #[inline]
    pub(super) fn list(&mut self, index: u32) {
        let Block {
            state,
            lane,
            epoch,
            offset,
            ..
        } = self.blocks[index];
        let planned = offset < self.planned;
        if state == State::Gap {
            let gaps = if planned {
                &mut self.planned_gaps
            } else {
                &mut self.gaps
            };
            gaps.insert(&mut self.blocks, index);
            return;
        }
        let lane = &mut self.lanes[lane as usize];
        lane.newest = lane.newest.max(epoch);
        let lists = if planned {
            &mut lane.planned
        } else {
            &mut lane.free
        };
        lists.insert(&mut self.blocks, index);
    }

    /// Joins a free block or a gap with its neighbours and puts what that makes into its list.
    #[inline]
    pub(super) fn attach(&mut self, index: u32) -> u32 {
        let mut index = index;
        // Behind a shared block there may be one of the same lane again.
        loop {
            let next = self.blocks[index].next;
            if next == NONE || !self.absorbs(index, next) {
                break;
            }
            self.detach(next);
            self.blocks[index].epoch = self.blocks[index].epoch.max(self.blocks[next].epoch);
            self.blocks.join(index, next);
        }
        loop {
            let prev = self.blocks[index].prev;
            if prev == NONE || !self.absorbs(index, prev) {
                break;
            }
            self.detach(prev);
            let Block { lane, epoch, .. } = self.blocks[index];
            let below = &mut self.blocks[prev];
            below.lane = lane;
            below.epoch = below.epoch.max(epoch);
            self.blocks.join(prev, index);
            index = prev;
        }
        self.list(index);
        index
    }

    /// Whether a neighbour becomes a part of a block that is put into its list.
    #[inline]
    fn absorbs(&self, index: u32, neighbour: u32) -> bool {
        let (block, other) = (&self.blocks[index], &self.blocks[neighbour]);
        if block.state != other.state || self.is_between_regions(block, other) {
            return false;
        }
        match block.state {
            State::Gap => true,
            State::Free => self.may_use(block.lane, other.lane),
            _ => false,
        }
    }

    /// Whether an address is kept for the plan.
    #[inline]
    pub(super) fn is_planned(&self, offset: u64) -> bool {
        offset < self.planned
    }

    /// Whether the height of the plan lies between two neighbours.
    #[inline]
    fn is_between_regions(&self, one: &Block, other: &Block) -> bool {
        self.is_planned(one.offset) != self.is_planned(other.offset)
    }

    /// Whether memory of one lane may become memory of another.
    #[inline]
    fn may_use(&self, lane: u32, other: u32) -> bool {
        lane == other || (other == SHARED && !self.lanes[lane as usize].private)
    }

    /// Shares the free blocks of a lane that only work up to `done` used.
    pub(super) fn share(&mut self, lane: u32, done: u64) {
        let mut newest = 0;
        let Lane { free, planned, .. } = &self.lanes[lane as usize];
        let all = free.largest_first(&self.blocks);
        let all = all.chain(planned.largest_first(&self.blocks));
        for index in all.collect::<Vec<u32>>() {
            let epoch = self.blocks[index].epoch;
            if epoch > done {
                newest = newest.max(epoch);
                continue;
            }
            self.share_block(index);
        }
        self.lanes[lane as usize].newest = newest;
    }

    /// Shares a free block.
    pub(super) fn share_block(&mut self, index: u32) {
        self.detach(index);
        self.blocks[index].lane = SHARED;
        self.blocks[index].epoch = 0;
        self.attach(index);
    }

    /// Notes that a window has memory now, taken from elsewhere or new, and makes it a used block.
    pub(super) fn occupy(&mut self, window: &Window, taken: &[PageRange], demand: &Demand) -> u32 {
        // The gaps they leave are joined at the end: until then the window's blocks stay as they are.
        let drained: Vec<u32> = taken.iter().map(|range| self.drain(range)).collect();
        let joined = self.gather(window, demand.lane);
        let found = self.attach(joined);
        let block = self.hand_out(found, window.start, demand);
        for (gap, range) in drained.into_iter().zip(taken) {
            self.settle(gap, range);
        }
        block
    }

    /// Makes one block, in no list, of what a window covers; whole pages where it covers gaps.
    fn gather(&mut self, window: &Window, lane: u32) -> u32 {
        let mut joined = NONE;
        let mut index = window.block;
        // Pages may have been taken from the same block, below the window.
        while self.blocks[index].end() <= window.start {
            index = self.blocks[index].next;
        }
        loop {
            let block = &self.blocks[index];
            let gap = block.state == State::Gap;
            let (mut start, mut end) =
                (block.offset.max(window.start), block.end().min(window.end));
            if gap {
                start -= start % self.page;
                end = end.next_multiple_of(self.page);
            }
            let part = self.carve(index, start, end);
            let block = &mut self.blocks[part];
            block.state = State::Free;
            block.lane = lane;
            if gap {
                block.epoch = 0;
            }
            let (end, epoch, next) = (block.end(), block.epoch, block.next);
            if joined == NONE {
                joined = part;
            } else {
                self.blocks[joined].epoch = self.blocks[joined].epoch.max(epoch);
                self.blocks.join(joined, part);
            }
            if end >= window.end {
                return joined;
            }
            index = next;
        }
    }

    /// Notes that whole pages of a free block have no memory any more. [`Self::settle`] follows.
    pub(super) fn drain(&mut self, range: &PageRange) -> u32 {
        let (start, end) = (range.first * self.page, range.last * self.page);
        let middle = self.carve(range.block, start, end);
        let block = &mut self.blocks[middle];
        block.state = State::Gap;
        block.lane = NONE;
        self.list(middle);
        middle
    }

    /// Joins the gap that a drained range left with its neighbours, unless one of them has done so.
    pub(super) fn settle(&mut self, gap: u32, range: &PageRange) {
        let Block { state, offset, .. } = self.blocks[gap];
        if state == State::Gap && offset == range.first * self.page {
            self.detach(gap);
            self.attach(gap);
        }
    }

    /// Cuts a range out of a listed block, whose other parts stay listed.
    #[inline]
    fn carve(&mut self, index: u32, start: u64, end: u64) -> u32 {
        self.detach(index);
        let mut middle = index;
        if self.blocks[index].offset < start {
            middle = self.blocks.cut(index, start);
            self.list(index);
        }
        if end < self.blocks[middle].end() {
            let rest = self.blocks.cut(middle, end);
            self.list(rest);
        }
        middle
    }

    /// Bytes of the largest free block.
    pub(super) fn largest_free(&self) -> u64 {
        let largest = |lists: &Lists| {
            let first = lists.largest_first(&self.blocks).next()?;
            let class = super::class::class_of(self.blocks[first].size);
            let of_class = lists.largest_first(&self.blocks);
            of_class
                .map(|index| self.blocks[index].size)
                .take_while(|&size| super::class::class_of(size) == class)
                .max()
        };
        let lists = self
            .lanes
            .iter()
            .flat_map(|lane| [&lane.free, &lane.planned]);
        lists.filter_map(largest).max().unwrap_or(0)
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub(super) fn check(&self) -> Result<(), String> {
        self.blocks.check(self.span)?;
        self.gaps.check(&self.blocks)?;
        self.planned_gaps.check(&self.blocks)?;
        let mut free = vec![0_u32; self.lanes.len()];
        let mut live = vec![0_u32; self.lanes.len()];
        let (mut gaps, mut before) = (0, None::<Block>);
        for (index, block) in self.blocks.by_address() {
            let joined = before.is_some_and(|before: Block| {
                let of_lane = before.lane == block.lane && !self.is_between_regions(&before, block);
                let idle = matches!(block.state, State::Free | State::Gap);
                idle && before.state == block.state && of_lane
            });
            if joined {
                return Err(format!("block {index} should be joined with the one below"));
            }
            match block.state {
                State::Used | State::Pending => {
                    if self.index.get(block.offset) != Some(index) {
                        return Err(format!("used block {index} is not found"));
                    }
                    live[block.lane as usize] += 1;
                }
                State::Free => {
                    let lane = &self.lanes[block.lane as usize];
                    if block.epoch > lane.newest {
                        return Err(format!("block {index} is newer than its lane allows"));
                    }
                    free[block.lane as usize] += 1;
                }
                State::Gap => {
                    if !block.offset.is_multiple_of(self.page)
                        || !block.size.is_multiple_of(self.page)
                    {
                        return Err(format!("gap {index} is not whole pages"));
                    }
                    gaps += 1;
                }
                State::Left => {
                    let page = block.offset / self.page;
                    if block.end() > (page + 1) * self.page || block.size == self.page {
                        return Err(format!("what is left in {index} is not a part of a page"));
                    }
                }
                State::Vacant => {}
            }
            before = Some(*block);
        }
        for (number, lane) in self.lanes.iter().enumerate() {
            lane.free.check(&self.blocks)?;
            lane.planned.check(&self.blocks)?;
            if (lane.free.len() + lane.planned.len(), lane.live) != (free[number], live[number]) {
                return Err(format!("lane {number} does not count its blocks"));
            }
        }
        let used: u32 = live.iter().sum();
        if gaps != self.gaps.len() + self.planned_gaps.len() || used as usize != self.index.len() {
            return Err("gaps or used blocks are not counted".to_owned());
        }
        Ok(())
    }
}
