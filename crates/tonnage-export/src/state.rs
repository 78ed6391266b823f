// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an allocator holds after the last event of one device.
//!
//! Taken from the recording's `final_segment` rows if it has them. Otherwise it follows from the events: segments
//! obtained and not given back, blocks handed out and not taken back. Blocks of which only the request is known take
//! the request as PyTorch rounds it. A recorder that knows no segments at all (RMM, a planner) leaves blocks without
//! a home, and PyTorch's viewer stops at such a block; segments are then laid around them.
//!
//! **Invariant:** the blocks of a derived segment fill it without gap or overlap.

use std::collections::BTreeMap;

use tonnage_trace::{Event, Kind, Pool, StackId, StackTable};

use crate::taken;

/// The size PyTorch's segments of small blocks have (`kSmallBuffer`); no segment of large blocks is that small.
const SMALL_SEGMENT: u64 = 2 << 20;

/// What a block is used for, in PyTorch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Allocated,
    Pending,
    Inactive,
}

impl Use {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::Pending => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }

    fn of(name: &str) -> Self {
        match name {
            "active_allocated" => Self::Allocated,
            "active_pending_free" => Self::Pending,
            _ => Self::Inactive,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) used: Use,
    pub(crate) stack: Option<StackId>,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) is_large: bool,
    pub(crate) is_expandable: bool,
    pub(crate) pool: Option<Pool>,
    pub(crate) stack: Option<StackId>,
    pub(crate) blocks: Vec<Block>,
}

impl Segment {
    fn of(event: &Event, is_large: bool, is_expandable: bool) -> Self {
        Self {
            address: event.address,
            size: event.size,
            requested: event.requested,
            stream: event.stream,
            is_large,
            is_expandable,
            pool: event.pool,
            stack: event.stack,
            blocks: Vec::new(),
        }
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// Whether `next` continues this mapped run of an expandable segment.
    fn continues_in(&self, next: &Self) -> bool {
        self.is_expandable
            && next.is_expandable
            && self.end() == next.address
            && (self.stream, self.pool, self.is_large) == (next.stream, next.pool, next.is_large)
    }

    /// Bytes of the blocks in use, and of those that are not waiting for another stream.
    pub(crate) fn active_and_allocated(&self) -> (u64, u64) {
        let sum = |wanted: &dyn Fn(Use) -> bool| {
            let blocks = self.blocks.iter().filter(|block| wanted(block.used));
            blocks.fold(0, |sum: u64, block| sum.saturating_add(block.size))
        };
        (
            sum(&|used| used != Use::Inactive),
            sum(&|used| used == Use::Allocated),
        )
    }
}

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
    pub(crate) homeless: u64,
}

impl Found {
    pub(crate) fn add(&mut self, other: Self) {
        self.derived += other.derived;
        self.laid_around += other.laid_around;
        self.rounded += other.rounded;
        self.homeless += other.homeless;
    }
}

/// The allocator of one device while its events go by.
#[derive(Default)]
pub(crate) struct State {
    recorded: Vec<Segment>,
    segments: BTreeMap<u64, Segment>,
    blocks: BTreeMap<u64, (Block, bool)>,
    /// Ranges of all blocks ever handed out, merged; kept while there is no segment.
    ranges: BTreeMap<u64, u64>,
    knows_segments: bool,
}

impl State {
    pub(crate) fn apply(&mut self, event: &Event, stacks: &StackTable) {
        let says = |word: &str| event.name.is_some_and(|name| stacks.text(name) == word);
        let used = || Use::of(event.name.map_or("", |name| stacks.text(name)));
        match event.kind {
            Kind::FinalSegment => {
                let segment = Segment::of(event, says("large"), event.text.is_some());
                self.recorded.push(segment);
            }
            Kind::FinalBlock => {
                if let Some(segment) = self.recorded.last_mut() {
                    segment.blocks.push(block(event, used()));
                }
            }
            Kind::InitialSegment => {
                self.obtain(Segment::of(event, says("large"), event.text.is_some()));
            }
            Kind::InitialBlock if used() != Use::Inactive => {
                let rounded = event.size == 0;
                self.blocks
                    .insert(event.address, (block(event, used()), rounded));
            }
            Kind::SegmentAlloc | Kind::SegmentMap => {
                let is_large = event.size != SMALL_SEGMENT;
                let mut segment = Segment::of(event, is_large, event.kind == Kind::SegmentMap);
                segment.requested = 0;
                self.obtain(segment);
            }
            Kind::SegmentFree => {
                self.segments.remove(&event.address);
            }
            Kind::SegmentUnmap => {
                self.unmap(event.address, event.address.saturating_add(event.size));
            }
            Kind::Alloc => {
                let block = block(event, Use::Allocated);
                if !self.knows_segments {
                    self.cover(block.address, block.address.saturating_add(block.size));
                }
                self.blocks.insert(event.address, (block, event.size == 0));
            }
            // Where only the blocks of a run are known, its end of waiting is not: none is assumed.
            Kind::FreeRequested if is_bare(event) => {
                self.blocks.remove(&event.address);
            }
            Kind::FreeRequested => {
                if let Some((block, _)) = self.blocks.get_mut(&event.address) {
                    block.used = Use::Pending;
                }
            }
            Kind::FreeCompleted => {
                self.blocks.remove(&event.address);
            }
            _ => {}
        }
    }

    /// Whether the recording has the state at the end.
    pub(crate) fn is_recorded(&self) -> bool {
        !self.recorded.is_empty()
    }

    fn obtain(&mut self, segment: Segment) {
        self.knows_segments = true;
        self.ranges.clear();
        self.segments.insert(segment.address, segment);
    }

    /// Takes `start..end` out of the mapped runs.
    fn unmap(&mut self, start: u64, end: u64) {
        while let Some((&address, segment)) = self.segments.range(..end).next_back() {
            let segment_end = segment.end();
            if segment_end <= start {
                break;
            }
            let Some(mut left) = self.segments.remove(&address) else {
                break;
            };
            if segment_end > end {
                let mut right = left.clone();
                (right.address, right.size) = (end, segment_end - end);
                self.segments.insert(end, right);
            }
            if address < start {
                left.size = start - address;
                self.segments.insert(address, left);
                break;
            }
        }
    }

    /// Adds `start..end` to the ranges in which blocks lay.
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

    /// The segments after the last event, by address. `recorded` says whether the process has its own word on it.
    pub(crate) fn finish(mut self, recorded: bool) -> (Vec<Segment>, Found) {
        if recorded {
            return (self.recorded, Found::default());
        }
        let mut found = Found::default();
        if !self.knows_segments {
            found.laid_around = self.ranges.len() as u64;
            for (start, end) in std::mem::take(&mut self.ranges) {
                let around = Event {
                    address: start,
                    size: end - start,
                    ..Event::new(Kind::SegmentAlloc)
                };
                self.segments
                    .insert(start, Segment::of(&around, true, false));
            }
        }
        let mut segments: Vec<Segment> = Vec::with_capacity(self.segments.len());
        for segment in self.segments.into_values() {
            match segments.last_mut() {
                Some(last) if last.continues_in(&segment) => last.size += segment.size,
                // Two segments at one place: an event was lost. The earlier one is as good as the later.
                Some(last) if last.end() > segment.address => {}
                _ => segments.push(segment),
            }
        }
        if self.knows_segments {
            found.derived = segments.len() as u64;
        }
        let mut homed = 0;
        for segment in &mut segments {
            homed += fill(segment, &self.blocks, &mut found.rounded);
        }
        found.homeless = self.blocks.len() as u64 - homed;
        (segments, found)
    }
}

/// Whether the row comes from a recorder that saw the block but not the request.
pub(crate) fn is_bare(event: &Event) -> bool {
    event.requested == 0 && event.size > 0
}

fn block(event: &Event, used: Use) -> Block {
    Block {
        address: event.address,
        size: taken(event),
        requested: event.requested,
        used,
        stack: event.stack,
    }
}

/// Puts the blocks of a segment into it, with free blocks between them; returns how many found room.
fn fill(segment: &mut Segment, blocks: &BTreeMap<u64, (Block, bool)>, rounded: &mut u64) -> u64 {
    let (mut next, end, mut homed) = (segment.address, segment.end(), 0);
    let gap = |from: u64, to: u64| Block {
        address: from,
        size: to - from,
        requested: 0,
        used: Use::Inactive,
        stack: None,
    };
    for (block, is_rounded) in blocks.range(segment.address..end).map(|(_, block)| block) {
        if block.address < next || block.size == 0 {
            continue;
        }
        if block.address > next {
            segment.blocks.push(gap(next, block.address));
        }
        let size = block.size.min(end - block.address);
        // A block of which the request is unknown is shown as asked for whole.
        let requested = if block.requested == 0 {
            size
        } else {
            block.requested.min(size)
        };
        segment.blocks.push(Block {
            size,
            requested,
            ..*block
        });
        segment.requested = segment.requested.saturating_add(requested);
        next = block.address + size;
        homed += 1;
        *rounded += u64::from(*is_rounded);
    }
    if next < end {
        segment.blocks.push(gap(next, end));
    }
    homed
}

#[cfg(test)]
mod tests {
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

    fn state(events: &[Event]) -> (Vec<Segment>, Found) {
        let (mut state, stacks) = (State::default(), StackTable::new());
        for event in events {
            state.apply(event, &stacks);
        }
        state.finish(false)
    }

    fn layout(segment: &Segment) -> Vec<(u64, u64, Use)> {
        let sum: u64 = segment.blocks.iter().map(|block| block.size).sum();
        assert_eq!(sum, segment.size);
        let blocks = segment.blocks.iter();
        blocks
            .map(|block| (block.address, block.size, block.used))
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
        assert!(!segments[0].is_large);
        assert_eq!(
            layout(&segments[0]),
            [
                (0x1000_0000, 512, Use::Inactive),
                (0x1000_0200, 1024, Use::Allocated),
                (0x1000_0600, 512, Use::Pending),
                (0x1000_0800, 2 * MIB - 2048, Use::Inactive),
            ]
        );
        assert_eq!(segments[0].active_and_allocated(), (1536, 1024));
        assert_eq!((found.rounded, found.homeless), (1, 0));
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
        let runs: Vec<_> = segments.iter().map(|s| (s.address, s.size)).collect();
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
            [(4096, 100, Use::Inactive), (4196, 100, Use::Allocated)]
        );
        assert_eq!(layout(&segments[1]), [(9000, 50, Use::Allocated)]);
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
        assert_eq!(segments.len(), 1);
        assert_eq!(found.homeless, 2);
    }
}
