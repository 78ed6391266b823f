// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests from rows: blocks requested and freed.
//!
//! `segments` reads the facts about segments, and `state` the state at the start and at the end by `state`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tonnage_alloc::StreamId;
use tonnage_alloc::torch::{BlockState, PoolId};
use tonnage_recording::account::{self, Change};
use tonnage_recording::{DeviceAccount, Event, Kind, StackTable};

use super::model::{InitialBlock, InitialSegment, Lane, Op, OpKind, Requests};

/// Requests from here on are refused by torch itself.
const TOO_LARGE: u64 = 1 << 60;

/// A block of the account, with its slot; none if its request could not have been served.
type Block = account::Block<Option<u32>>;

/// The account of the process and device.
pub(crate) type Track = DeviceAccount<Option<u32>>;

/// A run of segments given back.
#[derive(Clone, Debug, Default)]
pub(super) struct Burst {
    pub(super) row: u32,
    pub(super) lanes: BTreeSet<u16>,
    pub(super) default_pool: bool,
    pub(super) refused: bool,
}

/// A block of the final state.
#[derive(Clone, Debug)]
pub(super) struct FinalBlock {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) lane: u16,
    pub(super) state: BlockState,
}

/// Makes [`Requests`] of rows, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    pub(super) out: Requests,
    lane_of: HashMap<Lane, u16>,
    vacant: Vec<u32>,
    /// A free whose completion may be the next row.
    pub(super) last_free: Option<(u64, usize)>,
    /// Whether any row records the completion of a free.
    pub(super) has_completions: bool,
    pub(super) burst: Option<Burst>,
    /// Where `PoolDone` stands, by pool.
    pub(super) done: BTreeMap<PoolId, usize>,
    pub(super) finals: Vec<InitialSegment>,
    pub(super) final_blocks: Vec<FinalBlock>,
    /// Bytes obtained minus bytes given back, and the extremes of that.
    pub(super) net: i64,
    pub(super) most: i64,
    pub(super) least: i64,
    /// Bytes that others hold.
    pub(super) outside: u64,
    /// How many rows of the driver there were when they were counted.
    pub(super) driver_rows: u64,
    /// The memory of others if the driver's last call was theirs, and its row.
    pub(super) taken: Option<(u64, u32)>,
    pub(super) last_segment: u64,
    /// Bytes obtained since the start plus bytes free, at refusals.
    pub(super) room: Option<i64>,
    /// Slots of blocks known from the driver's pools only, if torch reported none.
    pooled: HashMap<u64, u32>,
    pool_rows: bool,
}

impl Builder {
    pub(crate) fn new(process: u32, device: i32) -> Self {
        let mut builder = Self::default();
        builder.out.process = process;
        builder.out.device = device;
        builder
    }

    /// Takes one row of this process and device, and what it did to their account.
    pub(crate) fn row(
        &mut self,
        event: &Event,
        change: &Change<Option<u32>>,
        track: &mut Track,
        row: u32,
        texts: &StackTable,
    ) {
        match change {
            Change::Allocated { replaced, .. } => {
                // Others may have taken memory since, which no segment was obtained for.
                self.note_outside(track, row);
                let slot = self.alloc(event, *replaced, row);
                track.tag(event.address, slot);
            }
            Change::Freed { block, is_pending } => {
                let slot = self.free(event, block, *is_pending, row);
                track.tag(event.address, slot);
            }
            Change::Contradicted { .. } => {
                self.out.events += 1;
                self.settle(event, true, row);
                self.out.gaps.unknown_completions += 1;
            }
            Change::Completed { block } => self.complete(event, *block, row),
            Change::Obtained { .. } => self.obtained(event, track, row),
            Change::GivenBack { gone, .. } => self.given_back(event, gone.is_empty(), track, row),
            Change::OutOfMemory => self.failed(event, row),
            Change::Refused => {
                if let Some(burst) = &mut self.burst {
                    burst.refused = true;
                }
            }
            Change::InitialSegment { .. } => self.segment_state(event, track, texts),
            Change::InitialBlock { .. } => self.block_state(event, track, texts),
            Change::State => match event.kind {
                Kind::FinalSegment => self.segment_state(event, track, texts),
                _ => self.block_state(event, track, texts),
            },
            Change::Charged => match event.kind {
                Kind::DriverContext => self.out.context = self.out.context.max(event.size),
                Kind::PoolMalloc | Kind::PoolFree => self.pool_row(event, row),
                Kind::DriverMalloc | Kind::DriverCreate => self.note_taken(track, row),
                Kind::DriverFree | Kind::DriverRelease => self.settle_taken(),
                _ => {}
            },
            Change::Nothing => {}
        }
    }

    pub(super) fn push(
        &mut self,
        kind: OpKind,
        slot: u32,
        lane: u16,
        bytes: u64,
        row: u32,
    ) -> usize {
        self.out.ops.push(Op {
            bytes,
            slot,
            lane,
            kind,
        });
        self.out.rows.push(row);
        self.out.ops.len() - 1
    }

    pub(super) fn lane(&mut self, event: &Event) -> u16 {
        let pool = event.pool.unwrap_or_default();
        let lane = Lane {
            stream: StreamId(event.stream),
            pool: PoolId(u64::from(pool.first), u64::from(pool.second)),
        };
        if let Some(&index) = self.lane_of.get(&lane) {
            return index;
        }
        let Ok(index) = u16::try_from(self.out.lanes.len()) else {
            self.out.gaps.untold_streams += 1;
            return 0;
        };
        self.out.lanes.push(lane);
        self.lane_of.insert(lane, index);
        index
    }

    fn slot(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| self.fresh_slot())
    }

    /// A slot no operation has used yet.
    pub(super) fn fresh_slot(&mut self) -> u32 {
        self.out.slots = self.out.slots.saturating_add(1);
        self.out.slots - 1
    }

    /// Takes a request; the slot of its block, if any allocator could serve it.
    fn alloc(&mut self, event: &Event, replaced: Option<Block>, row: u32) -> Option<u32> {
        self.out.events += 1;
        self.settle(event, false, row);
        let old = replaced.and_then(|block| Some((block.tag?, block.state)));
        if let Some((slot, state)) = old {
            self.out.gaps.overlapping += 1;
            let kind = match state {
                account::BlockState::Allocated => OpKind::Free,
                _ => OpKind::FreeNow,
            };
            let lane = self.lane(event);
            self.push(kind, slot, lane, 0, row);
            self.vacant.push(slot);
        }
        let mut bytes = event.requested;
        if bytes == 0 {
            bytes = event.size;
            self.out.gaps.sizes_only += u64::from(bytes > 0);
        }
        if bytes == 0 || bytes >= TOO_LARGE {
            self.out.gaps.impossible_requests += 1;
            return None;
        }
        self.out.allocs += 1;
        let lane = self.lane(event);
        let pool = self.out.lanes[lane as usize].pool;
        if let Some(op) = self.done.remove(&pool) {
            // It was in use after all: the segment went for another reason.
            self.out.ops[op].kind = OpKind::Nothing;
        }
        let slot = self.slot();
        self.push(OpKind::Alloc, slot, lane, bytes, row);
        Some(slot)
    }

    /// Takes a free; the slot of its block while its completion is still to come.
    fn free(&mut self, event: &Event, block: &Block, is_pending: bool, row: u32) -> Option<u32> {
        self.out.events += 1;
        self.settle(event, true, row);
        let lane = self.lane(event);
        let slot = match (block.tag, block.born) {
            (Some(slot), _) => slot,
            (None, None) => self.alive_before(event, lane, BlockState::ActiveAllocated),
            // Its request was passed over.
            (None, Some(_)) => return None,
        };
        let op = self.push(OpKind::Free, slot, lane, 0, row);
        if !is_pending {
            // The row is one of a process that was killed, and no row records when the free completed.
            self.vacant.push(slot);
            return None;
        }
        self.last_free = Some((event.address, op));
        Some(slot)
    }

    fn complete(&mut self, event: &Event, block: Option<Block>, row: u32) {
        self.out.events += 1;
        self.has_completions = true;
        if self
            .last_free
            .take_if(|(addr, _)| *addr == event.address)
            .is_some()
        {
            self.vacant.extend(block.and_then(|block| block.tag));
            return;
        }
        self.settle(event, true, row);
        let lane = self.lane(event);
        let (kind, slot) = match block {
            Some(block) if block.state == account::BlockState::Allocated => {
                self.out.gaps.unknown_completions += 1;
                (OpKind::Free, block.tag)
            }
            Some(block) => (OpKind::FreeNow, block.tag),
            None => {
                let slot = self.alive_before(event, lane, BlockState::ActivePendingFree);
                (OpKind::FreeNow, Some(slot))
            }
        };
        if let Some(slot) = slot {
            self.push(kind, slot, lane, 0, row);
            self.vacant.push(slot);
        }
    }

    /// A block of which the recording shows only the end was there from the start.
    fn alive_before(&mut self, event: &Event, lane: u16, state: BlockState) -> u32 {
        let slot = self.fresh_slot();
        let (size, requested) = (event.size, event.requested);
        self.add_initial(event.address, size, requested, lane, slot, state);
        slot
    }

    /// Closes what the row before left open.
    pub(super) fn settle(&mut self, event: &Event, frees: bool, row: u32) {
        if let Some((_, op)) = self.last_free.take() {
            self.out.ops[op].kind = OpKind::FreeLater;
        }
        let obtains = matches!(
            event.kind,
            Kind::SegmentAlloc | Kind::SegmentMap | Kind::Oom
        );
        if let Some(burst) = self.burst.take() {
            self.close_burst(&burst, !obtains || frees, row);
        }
    }

    pub(super) fn default_lane(&mut self) -> u16 {
        self.lane(&Event::new(Kind::Alloc))
    }

    fn failed(&mut self, event: &Event, row: u32) {
        self.out.events += 1;
        self.settle(event, false, row);
        if event.size == 0 || event.size >= TOO_LARGE {
            self.out.gaps.impossible_requests += 1;
            return;
        }
        let room = self.net.saturating_add_unsigned(event.free);
        self.room = self.room.max(Some(room));
        let lane = self.lane(event);
        let slot = self.slot();
        self.push(OpKind::Failed, slot, lane, event.size, row);
        self.vacant.push(slot);
    }

    /// The driver's own pools: requests, if torch's allocator does not report any.
    fn pool_row(&mut self, event: &Event, row: u32) {
        if self.out.allocs > 0 && !self.pool_rows {
            return;
        }
        self.pool_rows = true;
        let as_torch = Event {
            requested: event.size,
            ..*event
        };
        let kind = |kind| Event { kind, ..as_torch };
        let block = |slot: Option<u32>| Block {
            tag: slot,
            ..Block::default()
        };
        let slot = self.pooled.remove(&event.address);
        if event.kind == Kind::PoolMalloc {
            let replaced = slot.map(|slot| block(Some(slot)));
            if let Some(slot) = self.alloc(&kind(Kind::Alloc), replaced, row) {
                self.pooled.insert(event.address, slot);
            }
        } else {
            let event = kind(Kind::FreeRequested);
            let freed = self.free(&event, &block(slot), true, row);
            self.complete(&kind(Kind::FreeCompleted), Some(block(freed)), row);
        }
    }

    pub(super) fn add_initial(
        &mut self,
        addr: u64,
        size: u64,
        requested: u64,
        lane: u16,
        slot: u32,
        state: BlockState,
    ) {
        let known = if requested > 0 { requested } else { size };
        self.out.initial.push(InitialBlock {
            addr,
            requested: known.clamp(1, TOO_LARGE - 1),
            size: (size > 0).then_some(size),
            lane,
            slot,
            state,
        });
    }
}
