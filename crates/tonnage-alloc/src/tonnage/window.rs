// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a request goes that no free block holds, and which pages can be taken
//! from elsewhere for it.
//!
//! Free blocks and gaps that touch make up a run. A request fits anywhere in a run that is long enough; it needs memory
//! only for the gaps it covers. Among the examined places, the one that needs the fewest pages wins, and the lowest of
//! equals. Both questions only read the arena.

use std::collections::BinaryHeap;

use super::arena::{Arena, Lane, SHARED};
use super::blocks::{NONE, PageRange, State, Window};

/// How many of the largest free blocks are looked at, of a lane and of what is shared.
pub(super) const FEW: usize = 16;
/// The same before more memory is obtained than the slack allows: as often as there are pages at most.
pub(super) const MANY: usize = 1024;
/// How many neighbours of a candidate are looked at in each direction.
const REACH: usize = 16;

/// The content of a range that a plan names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Vacancy {
    /// Nothing: the request may have it.
    Free(Window),
    /// A free block of another stream, whose work may not be done.
    OfOther(u32),
    /// Something that is in use.
    Taken,
}

/// A part of a run.
#[derive(Clone, Copy, Debug)]
struct Piece {
    block: u32,
    start: u64,
    end: u64,
    gap: bool,
}

impl Arena {
    /// The best place for `size` bytes of a lane, of those around so many blocks; none if there are not so many
    /// addresses.
    pub(super) fn window(&self, lane: u32, size: u64, looked_at: usize) -> Option<Window> {
        let blocks = &self.blocks;
        let own = self.lanes[lane as usize].free.largest_first(blocks);
        let shared = self.lanes[SHARED as usize].free.largest_first(blocks);
        let whole = size.next_multiple_of(self.page);
        let gap = self.gaps.find_any(blocks, whole);
        let candidates = own.take(looked_at).chain(shared.take(looked_at)).chain(gap);
        let windows = candidates.filter_map(|block| self.window_around(block, lane, size));
        windows.min()
    }

    /// The best place in the run around a block.
    fn window_around(&self, block: u32, lane: u32, size: u64) -> Option<Window> {
        let pieces = self.run(block, lane);
        let (first, last) = (pieces.first()?.start, pieces.last()?.end);
        let starts = pieces
            .iter()
            .flat_map(|piece| [Some(piece.start), piece.end.checked_sub(size)])
            .flatten();
        let fitting = starts.filter(|&start| start >= first && start + size <= last);
        let windows = fitting.filter_map(|start| {
            let end = start + size;
            let missing = pieces.iter().map(|piece| self.missing(piece, start, end));
            let holds = |piece: &&Piece| piece.start <= start && start < piece.end;
            Some(Window {
                missing: missing.sum(),
                start,
                end,
                block: pieces.iter().find(holds)?.block,
            })
        });
        windows.min()
    }

    /// Pages of a piece that a range needs and that have no memory.
    fn missing(&self, piece: &Piece, start: u64, end: u64) -> u64 {
        let (low, high) = (piece.start.max(start), piece.end.min(end));
        if !piece.gap || low >= high {
            return 0;
        }
        high.div_ceil(self.page) - low / self.page
    }

    /// The free blocks and gaps around a block that a lane may use, by address.
    fn run(&self, block: u32, lane: u32) -> Vec<Piece> {
        let mut first = block;
        for _ in 0..REACH {
            let prev = self.blocks[first].prev;
            if prev == NONE || !self.usable(prev, lane) {
                break;
            }
            first = prev;
        }
        let mut pieces = Vec::new();
        let mut index = first;
        while index != NONE && self.usable(index, lane) && pieces.len() <= 2 * REACH {
            let block = &self.blocks[index];
            pieces.push(Piece {
                block: index,
                start: block.offset,
                end: block.end(),
                gap: block.state == State::Gap,
            });
            index = block.next;
        }
        pieces
    }

    fn usable(&self, index: u32, lane: u32) -> bool {
        let block = &self.blocks[index];
        // A request without a place of the plan does not go where the plan does.
        !self.is_planned(block.offset)
            && match block.state {
                State::Gap => true,
                State::Free => block.lane == lane || block.lane == SHARED,
                _ => false,
            }
    }

    /// The content of a range that a plan names.
    pub(super) fn vacancy(&self, lane: u32, start: u64, end: u64) -> Vacancy {
        let Some(first) = self.blocks.containing(start) else {
            return Vacancy::Taken;
        };
        let mut missing = 0;
        let mut index = first;
        // The block above may have nothing to do with the plan.
        while index != NONE && self.is_planned(self.blocks[index].offset) {
            let block = &self.blocks[index];
            match block.state {
                State::Gap => {
                    let (low, high) = (block.offset.max(start), block.end().min(end));
                    missing += high.div_ceil(self.page) - low / self.page;
                }
                State::Free if block.lane == lane || block.lane == SHARED => {}
                State::Free if !self.lanes[block.lane as usize].private => {
                    return Vacancy::OfOther(index);
                }
                _ => return Vacancy::Taken,
            }
            if block.end() >= end {
                return Vacancy::Free(Window {
                    missing,
                    start,
                    end,
                    block: first,
                });
            }
            index = block.next;
        }
        Vacancy::Taken
    }

    /// The pages of a window that have no memory, by address.
    pub(super) fn missing_pages(&self, window: &Window) -> Vec<u64> {
        let mut pages = Vec::with_capacity(window.missing as usize);
        let mut index = window.block;
        while index != NONE && self.blocks[index].offset < window.end {
            let block = &self.blocks[index];
            if block.state == State::Gap {
                let low = block.offset.max(window.start) / self.page;
                let high = block.end().min(window.end).div_ceil(self.page);
                pages.extend(low..high);
            }
            index = block.next;
        }
        pages
    }

    /// Up to `most` whole pages of shared free blocks that a window does not touch, from the highest address down. So
    /// what is used gathers at low addresses, what is free is whole above it, and what is kept for a plan comes last.
    pub(super) fn empty_pages(&self, most: u64, window: Option<&Window>) -> Vec<PageRange> {
        let mut ranges = Vec::new();
        if most == 0 {
            return ranges;
        }
        let mut left = most;
        let Lane { free, planned, .. } = &self.lanes[SHARED as usize];
        let with_pages = [free, planned].map(|lists| lists.of_at_least(&self.blocks, self.page));
        let with_pages = with_pages.into_iter().flatten();
        // Few of them are needed, so they are not put in order.
        let mut by_address: BinaryHeap<(u64, u32)> = with_pages
            .map(|index| (self.blocks[index].offset, index))
            .collect();
        while left > 0
            && let Some((_, index)) = by_address.pop()
        {
            let block = &self.blocks[index];
            let first = block.offset.div_ceil(self.page);
            let last = block.end() / self.page;
            let (low, high) = window.map_or((last, last), |window| {
                (window.start / self.page, window.end.div_ceil(self.page))
            });
            for (first, last) in [(first.max(high), last), (first, last.min(low))] {
                let count = last.saturating_sub(first).min(left);
                if count > 0 {
                    ranges.push(PageRange {
                        block: index,
                        first: last - count,
                        last,
                    });
                    left -= count;
                }
            }
        }
        ranges
    }
}
