// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a replay begins: on an empty device, or with what a truncated recording began with.
//!
//! The state before the first row follows from the rows and the final state
//! (specification 14): a block that is freed without having been handed out was
//! there, and so was one that is alive at the end and was never handed out.
//! Under the recorded setting those segments are taken over as they were. Under
//! any other setting they would never have come about like this, so their blocks
//! are requested anew, by address, and the answer states it.

use std::collections::BTreeMap;

use tonnage_alloc::DeviceAddr;
use tonnage_alloc::torch::{BlockInfo, BlockState, SegmentInfo, Settings};
use tonnage_recording::{Event, Kind};

use super::requests::{InitialBlock, InitialSegment, Lane, Op, OpKind, Requests};

/// The largest slack that a block of a large segment carries uncut.
const SLACK: u64 = 1 << 20;

/// A segment to take over.
#[derive(Clone, Debug)]
pub(crate) struct AdoptedSegment {
    pub(crate) info: SegmentInfo,
    /// Slot, address and whether it is allocated (not pending), of its blocks.
    pub(crate) slots: Vec<(u32, u64, bool)>,
}

/// How a replay begins.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    Empty,
    Adopted(Vec<AdoptedSegment>),
    /// Operations to do first, with their lanes.
    Requested(Vec<(Op, Lane)>),
}

impl Start {
    /// The segments a device must hold already.
    pub(crate) fn held_segments(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Adopted(segments) => segments
                .iter()
                .map(|segment| (segment.info.addr.0, segment.info.total_size))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The blocks of the start, requested one after the other by address.
    pub(crate) fn requested(requests: &Requests) -> Self {
        if requests.initial.is_empty() {
            return Self::Empty;
        }
        let mut ops = Vec::new();
        for block in &requests.initial {
            let lane = requests.lanes[block.lane as usize];
            let mut push = |kind| {
                let op = Op {
                    bytes: block.requested,
                    slot: block.slot,
                    lane: block.lane,
                    kind,
                };
                ops.push((op, lane));
            };
            push(OpKind::Alloc);
            if block.state != BlockState::ActiveAllocated {
                push(OpKind::FreeLater);
            }
        }
        Self::Requested(ops)
    }

    /// The segments of the start as they were; `None` if the recording does not
    /// determine them. With it, how many blocks have an ambiguous size.
    pub(crate) fn adopted(requests: &Requests, settings: &Settings) -> Option<(Self, u64)> {
        if requests.initial.is_empty() && requests.segments.is_empty() {
            return Some((Self::Empty, 0));
        }
        if settings.expandable_segments || requests.segments.iter().any(|s| s.expandable) {
            return None;
        }
        let mut ambiguous = 0;
        let mut blocks = requests.initial.as_slice();
        let mut adopted = Vec::new();
        let mut end = 0;
        for segment in &requests.segments {
            if segment.addr < end || segment.size == 0 {
                return None;
            }
            end = segment.addr.checked_add(segment.size)?;
            if end > 1 << 60 {
                return None;
            }
            let inside = blocks.partition_point(|block| block.addr < end);
            let (mine, rest) = blocks.split_at(inside);
            blocks = rest;
            adopted.push(fill(segment, mine, requests, settings, &mut ambiguous)?);
        }
        // A block outside of every segment: the rows contradict each other.
        blocks
            .is_empty()
            .then_some((Self::Adopted(adopted), ambiguous))
    }
}

/// Learns how large blocks of the start are from where others are put beside them.
///
/// A request gets the low end of a free block. So the first block that is put
/// into the gap behind one that was there from the start begins where that ends,
/// slack included. If it is freed before anything is put there, its exact size
/// never mattered to a later choice but for the size of the gap itself.
#[derive(Debug)]
pub(crate) struct Learner {
    /// Gaps by their first possible byte: their end, and whose they are.
    gaps: BTreeMap<u64, (u64, usize)>,
    /// The gap of each block, by the block's address.
    behind: BTreeMap<u64, u64>,
    /// Whose, its least end, its end.
    learnt: Vec<(usize, u64, u64)>,
}

impl Learner {
    /// The observations of the start; `None` if there are none.
    pub(crate) fn new(requests: &Requests, settings: &Settings) -> Option<Self> {
        let mut learner = Self {
            gaps: BTreeMap::new(),
            behind: BTreeMap::new(),
            learnt: Vec::new(),
        };
        for segment in requests.segments.iter().filter(|segment| !segment.small) {
            let end = segment.addr.saturating_add(segment.size);
            let first = requests
                .initial
                .partition_point(|block| block.addr < segment.addr);
            let last = requests.initial.partition_point(|block| block.addr < end);
            for index in first..last {
                let block = &requests.initial[index];
                let next = requests.initial[..last].get(index + 1);
                let next = next.map_or(end, |next| next.addr);
                let least = block.addr.saturating_add(round(settings, block.requested));
                if block.size.is_none() && next > least.saturating_add(SLACK) {
                    learner.gaps.insert(least, (next, index));
                    learner.behind.insert(block.addr, least);
                }
            }
        }
        (!learner.gaps.is_empty()).then_some(learner)
    }

    /// Takes one row of the recording.
    pub(crate) fn row(&mut self, event: &Event) {
        match event.kind {
            Kind::Alloc => {
                let Some((&least, &(end, index))) = self.gaps.range(..=event.address).next_back()
                else {
                    return;
                };
                if event.address < end {
                    self.gaps.remove(&least);
                    self.learnt.push((index, least, event.address));
                }
            }
            Kind::FreeCompleted => {
                if let Some(least) = self.behind.remove(&event.address) {
                    self.gaps.remove(&least);
                }
            }
            _ => {}
        }
    }

    /// Writes down what was learnt.
    pub(crate) fn teach(self, requests: &mut Requests) {
        for (index, least, end) in self.learnt {
            // More than slack is something else: the block was put elsewhere in the gap.
            if end - least <= SLACK && end.is_multiple_of(512) {
                let block = &mut requests.initial[index];
                block.size = Some(end - block.addr);
            }
        }
    }
}

/// A segment with its blocks, the free ones implied by those in use.
fn fill(
    segment: &InitialSegment,
    blocks: &[InitialBlock],
    requests: &Requests,
    settings: &Settings,
    ambiguous: &mut u64,
) -> Option<AdoptedSegment> {
    let Lane { stream, pool } = requests.lanes[segment.lane as usize];
    let end = segment.addr + segment.size;
    let mut info = SegmentInfo {
        addr: DeviceAddr(segment.addr),
        total_size: segment.size,
        allocated_size: 0,
        active_size: 0,
        requested_size: 0,
        stream,
        pool,
        small: segment.small,
        expandable: false,
        blocks: Vec::new(),
    };
    let mut slots = Vec::new();
    let mut at = segment.addr;
    let mut put = |at: u64, size: u64, requested: u64, state: BlockState| {
        info.blocks.push(BlockInfo {
            addr: DeviceAddr(at),
            size,
            requested_size: requested,
            state,
        });
    };
    for (index, block) in blocks.iter().enumerate() {
        let next = blocks.get(index + 1).map_or(end, |next| next.addr);
        let room = next.checked_sub(block.addr).filter(|room| *room > 0)?;
        if block.addr < at {
            return None;
        }
        if block.addr > at {
            put(at, block.addr - at, 0, BlockState::Inactive);
        }
        let size = block.size.unwrap_or_else(|| {
            let rounded = round(settings, block.requested);
            let gap = room.saturating_sub(rounded);
            // No free block of a large segment can be that small: it is slack.
            let slack = !segment.small && gap > 0 && gap <= SLACK;
            *ambiguous += u64::from(!segment.small && gap > SLACK);
            if slack { room } else { rounded }
        });
        if size > room {
            return None;
        }
        put(block.addr, size, block.requested, block.state);
        let allocated = block.state == BlockState::ActiveAllocated;
        slots.push((block.slot, block.addr, allocated));
        at = block.addr + size;
    }
    if at < end {
        put(at, end - at, 0, BlockState::Inactive);
    }
    Some(AdoptedSegment { info, slots })
}

/// The size of a block for a request (specification 2).
fn round(settings: &Settings, requested: u64) -> u64 {
    let requested = requested.max(512);
    let power = requested.ilog2();
    let interval = (power.saturating_sub(20) as usize).min(15);
    let divisions = settings.roundup_power2_divisions[interval];
    if divisions > 1 && requested > 512_u64.saturating_mul(divisions) {
        return requested.next_multiple_of((1_u64 << power) >> divisions.ilog2());
    }
    requested.next_multiple_of(512)
}
