// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of an allocator after the last event of one device.
//!
//! Taken from the recording's `final_segment` rows if it has them. Otherwise it follows from the events, which a
//! [`DeviceAccount`] has added up: segments obtained and not given back, blocks handed out and not taken back. Blocks
//! of which only the request is known take the request as PyTorch rounds it. A recorder that knows no segments at all
//! (RMM, a planner) leaves blocks without a segment, and PyTorch's viewer stops at such a block; segments are then
//! laid around them.
//!
//! **Invariant:** the blocks of a derived segment fill it without gap or overlap.

use std::collections::BTreeMap;

use tonnage_recording::account::{Block, BlockState, Change, FinalSegment, Segment};
use tonnage_recording::{DeviceAccount, Event};

/// How a state was found, for the notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Segments that follow from the events.
    pub(crate) derived: u64,
    /// Segments laid around blocks without one.
    pub(crate) laid_around: u64,
    /// Blocks whose size is the rounded request.
    pub(crate) rounded: u64,
    /// Blocks that lie in no segment, or in another block.
    pub(crate) unplaced: u64,
}

impl Found {
    pub(crate) fn add(&mut self, other: Self) {
        self.derived += other.derived;
        self.laid_around += other.laid_around;
        self.rounded += other.rounded;
        self.unplaced += other.unplaced;
    }
}

/// Bytes of the blocks in use, and of those that are not waiting for another stream.
pub(crate) fn active_and_allocated(segment: &FinalSegment) -> (u64, u64) {
    let sum = |wanted: &dyn Fn(BlockState) -> bool| {
        let blocks = segment.blocks.iter().filter(|block| wanted(block.state));
        blocks.fold(0, |sum: u64, block| sum.saturating_add(block.bytes))
    };
    (
        sum(&|state| state != BlockState::Inactive),
        sum(&|state| state == BlockState::Allocated),
    )
}

/// Ranges in which blocks lay, for recordings without segments.
#[derive(Default)]
pub(crate) struct Ranges {
    /// First byte to the byte after the last; they do not touch.
    ranges: BTreeMap<u64, u64>,
    knows_segments: bool,
}

impl Ranges {
    /// Takes what a row did to an account.
    pub(crate) fn note(&mut self, change: &Change) {
        match change {
            Change::Allocated { block, .. } if !self.knows_segments => {
                self.cover(block.address, block.address.saturating_add(block.bytes));
            }
            Change::Obtained { .. } | Change::InitialSegment { .. } => self.see_segments(),
            _ => {}
        }
    }

    /// Notes that the recording has segments.
    fn see_segments(&mut self) {
        self.knows_segments = true;
        self.ranges.clear();
    }

    /// Adds `start..end` to the ranges.
    fn cover(&mut self, mut start: u64, mut end: u64) {
        if start == end {
            return;
        }
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            start = start.min(from);
            end = end.max(to);
            self.ranges.remove(&from);
        }
        self.ranges.insert(start, end);
    }

    fn segments(&self) -> Vec<Segment> {
        let around = |(&start, &end)| Segment {
            address: start,
            bytes: end - start,
            requested: 0,
            stream: 0,
            pool: None,
            stack: None,
            is_large: true,
            is_expandable: false,
            born: None,
        };
        self.ranges.iter().map(around).collect()
    }
}

/// The segments after the last event, by address. `recorded` is whether the process recorded them itself.
pub(crate) fn at_the_end(
    account: &DeviceAccount,
    ranges: &Ranges,
    recorded: bool,
) -> (Vec<FinalSegment>, Found) {
    if recorded {
        return (account.final_state().to_vec(), Found::default());
    }
    let mut found = Found::default();
    let segments = if ranges.knows_segments {
        let segments = account.merged_segments();
        found.derived = segments.len() as u64;
        segments
    } else {
        let segments = ranges.segments();
        found.laid_around = segments.len() as u64;
        segments
    };
    let mut placed = 0;
    let mut filled = Vec::with_capacity(segments.len());
    for segment in segments {
        let (segment, count) = fill(segment, account, &mut found.rounded);
        filled.push(segment);
        placed += count;
    }
    found.unplaced = account.blocks().count() as u64 - placed;
    (filled, found)
}

/// Whether the row comes from a recorder that saw the block but not the request.
pub(crate) fn is_bare(event: &Event) -> bool {
    event.requested == 0 && event.size > 0
}

/// Puts the blocks of a segment into it, with free blocks between them; returns how many found room.
fn fill(mut segment: Segment, account: &DeviceAccount, rounded: &mut u64) -> (FinalSegment, u64) {
    let (mut next, end, mut placed) = (segment.address, segment.end(), 0);
    let gap = |from: u64, to: u64| Block {
        address: from,
        bytes: to - from,
        state: BlockState::Inactive,
        ..Block::default()
    };
    let mut blocks = Vec::new();
    segment.requested = 0;
    for block in account.blocks_in(segment.address..end) {
        if block.address < next || block.bytes == 0 {
            continue;
        }
        if block.address > next {
            blocks.push(gap(next, block.address));
        }
        let bytes = block.bytes.min(end - block.address);
        // A block with an unknown request is shown as requested in full.
        let requested = if block.requested == 0 {
            bytes
        } else {
            block.requested.min(bytes)
        };
        blocks.push(Block {
            bytes,
            requested,
            ..*block
        });
        segment.requested = segment.requested.saturating_add(requested);
        next = block.address + bytes;
        placed += 1;
        *rounded += u64::from(!block.size_known);
    }
    if next < end {
        blocks.push(gap(next, end));
    }
    (FinalSegment { segment, blocks }, placed)
}

#[cfg(test)]
mod tests {
    use tonnage_recording::account::Rounding;
    use tonnage_recording::{Account, Kind, StackTable};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn event(kind: Kind, address: u64, size: u64, requested: u64) -> Event {
        Event {
            address,
            size,
            requested,
            ..Event::new(kind)
        }
    }

    fn state(events: &[Event]) -> (Vec<FinalSegment>, Found) {
        let (mut account, stacks) = (Account::new(Rounding::PyTorch), StackTable::new());
        let mut ranges = Ranges::default();
        for (event, row) in events.iter().zip(0..) {
            ranges.note(&account.apply(event, row, &stacks));
        }
        at_the_end(account.get(0, 0).unwrap(), &ranges, false)
    }

    fn layout(segment: &FinalSegment) -> Vec<(u64, u64, BlockState)> {
        let sum: u64 = segment.blocks.iter().map(|block| block.bytes).sum();
        assert_eq!(sum, segment.segment.bytes);
        let blocks = segment.blocks.iter();
        blocks
            .map(|block| (block.address, block.bytes, block.state))
            .collect()
    }

    #[test]
    fn live_blocks_fill_the_segments_that_are_left() {
        let (segments, found) = state(&[
            event(Kind::SegmentAlloc, 0x1000_0000, 2 * MIB, 0),
            event(Kind::Alloc, 0x1000_0000, 0, 100),
            event(Kind::Alloc, 0x1000_0200, 1024, 1000),
            event(Kind::Alloc, 0x1000_0600, 0, 1),
            event(Kind::FreeRequested, 0x1000_0000, 0, 100),
            event(Kind::FreeCompleted, 0x1000_0000, 0, 100),
            event(Kind::FreeRequested, 0x1000_0600, 0, 1),
            event(Kind::SegmentAlloc, 0x2000_0000, 20 * MIB, 0),
            event(Kind::SegmentFree, 0x2000_0000, 20 * MIB, 0),
        ]);
        assert_eq!(segments.len(), 1);
        assert!(!segments[0].segment.is_large);
        assert_eq!(
            layout(&segments[0]),
            [
                (0x1000_0000, 512, BlockState::Inactive),
                (0x1000_0200, 1024, BlockState::Allocated),
                (0x1000_0600, 512, BlockState::PendingFree),
                (0x1000_0800, 2 * MIB - 2048, BlockState::Inactive),
            ]
        );
        assert_eq!(active_and_allocated(&segments[0]), (1536, 1024));
        assert_eq!((found.rounded, found.unplaced), (1, 0));
    }

    #[test]
    fn mapped_runs_merge_and_holes_split_them() {
        let map = |address| event(Kind::SegmentMap, address, 20 * MIB, 0);
        let (segments, found) = state(&[
            map(0),
            map(20 * MIB),
            map(40 * MIB),
            map(60 * MIB),
            event(Kind::SegmentUnmap, 30 * MIB, 20 * MIB, 0),
        ]);
        let runs: Vec<_> = segments
            .iter()
            .map(|s| (s.segment.address, s.segment.bytes))
            .collect();
        assert_eq!(runs, [(0, 30 * MIB), (50 * MIB, 30 * MIB)]);
        assert_eq!(found.derived, 2);
    }

    #[test]
    fn blocks_without_segments_get_some_laid_around_them() {
        let (segments, found) = state(&[
            event(Kind::Alloc, 4096, 100, 100),
            event(Kind::Alloc, 4196, 100, 100),
            event(Kind::FreeCompleted, 4096, 100, 100),
            event(Kind::Alloc, 9000, 50, 50),
        ]);
        assert_eq!(found.laid_around, 2);
        assert_eq!(
            layout(&segments[0]),
            [
                (4096, 100, BlockState::Inactive),
                (4196, 100, BlockState::Allocated)
            ]
        );
        assert_eq!(layout(&segments[1]), [(9000, 50, BlockState::Allocated)]);
    }

    #[test]
    fn events_that_contradict_each_other_do_no_harm() {
        let (segments, found) = state(&[
            event(Kind::SegmentAlloc, u64::MAX - 10, u64::MAX, 0),
            event(Kind::Alloc, u64::MAX - 5, u64::MAX, 7),
            event(Kind::Alloc, u64::MAX - 6, 4, 7),
            event(Kind::SegmentFree, 3, 3, 0),
            event(Kind::SegmentUnmap, 0, u64::MAX, 0),
            event(Kind::SegmentAlloc, 100, 50, 0),
            event(Kind::SegmentAlloc, 120, 50, 0),
            event(Kind::FreeCompleted, 1, 1, 1),
        ]);
        // If two segments overlap, the later one has the place, and the earlier one the rest of it.
        let runs: Vec<_> = segments
            .iter()
            .map(|s| (s.segment.address, s.segment.bytes))
            .collect();
        assert_eq!(runs, [(100, 20), (120, 50)]);
        assert_eq!(found.unplaced, 2);
    }
}
