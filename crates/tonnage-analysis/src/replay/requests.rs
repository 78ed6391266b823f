// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program asked of its allocator, whatever the allocator did about it.
//!
//! A recording shows requests, frees, and what PyTorch's allocator made of
//! them: segments obtained and given back. The first two belong to the program
//! and are kept; the rest is what a replay predicts. Between them stand the
//! program's own calls of `empty_cache`, which leave no row: a burst of segments
//! given back is one unless a request that found no memory explains it. Where
//! both are possible the burst is kept as [`OpKind::MaybeRelease`], and the
//! replay under the recorded setting decides (`check`).
//!
//! 20 bytes per operation, so that 100 million of them fit in 2 GiB: 16 that
//! every replay reads and 4, apart, that only reports do. Blocks are slots that
//! are used again, not addresses, because another allocator has other addresses.
//!
//! What is alive, obtained and charged at each row is added up by an [`Account`](tonnage_trace::Account), which keeps
//! the slot of each live block.
//!
//! **Invariant:** an operation on a slot follows the one that filled it, or the
//! slot is in `initial`. A hostile recording can make the counts in [`Gaps`]
//! large, but no operation that contradicts this.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use tonnage_alloc::StreamId;
use tonnage_alloc::torch::{BlockState, PoolId};
use tonnage_trace::account::{self, Change};
use tonnage_trace::{DeviceAccount, Event, Kind, StackTable};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum OpKind {
    /// Request `bytes` into the slot.
    Alloc,
    /// Free the slot; nothing delays it.
    Free,
    /// Free the slot, which other streams delay until [`OpKind::FreeNow`].
    FreeLater,
    /// Nothing delays the slot's free any more.
    FreeNow,
    /// The program calls `empty_cache`, or gives up the lane's pool if that is a private one.
    Release,
    /// The same, or the work of the request that follows.
    MaybeRelease,
    /// Nobody uses the lane's private pool from now on.
    PoolDone,
    /// A request that the recorded allocator could not serve; the program went on.
    Failed,
    /// A request that could not be served, after which nothing was requested.
    FailedLast,
    /// Others than the allocator hold `bytes` from now on.
    Outside,
    /// Nothing; what stood here was explained otherwise.
    Nothing,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) bytes: u64,
    pub(crate) slot: u32,
    /// Index into [`Requests::lanes`].
    pub(crate) lane: u16,
    pub(crate) kind: OpKind,
}

/// A stream and a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane {
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolId,
}

/// A block that was alive before the first row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialBlock {
    pub(crate) addr: u64,
    pub(crate) requested: u64,
    /// Bytes it takes, if the recording says.
    pub(crate) size: Option<u64>,
    pub(crate) lane: u16,
    pub(crate) slot: u32,
    pub(crate) state: BlockState,
}

/// A segment that existed before the first row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialSegment {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) lane: u16,
    pub(crate) small: bool,
    pub(crate) expandable: bool,
}

/// What did not make sense in a recording, and was passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gaps {
    /// Frees that were completed without having been requested.
    pub unknown_completions: u64,
    /// Blocks handed out where one was alive; the older one is taken as freed.
    pub overlapping: u64,
    /// Requests of no bytes, or of more than any allocator serves.
    pub impossible_requests: u64,
    /// Blocks whose request is not known; the size of the block was used.
    pub sizes_only: u64,
    /// Requests on more streams and pools than can be told apart.
    pub untold_streams: u64,
    /// Blocks of the final state that contradict the rows before it.
    pub contradicted_blocks: u64,
}

/// The requests of one process on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) process: u32,
    pub(crate) device: i32,
    pub(crate) ops: Vec<Op>,
    /// The row of each operation.
    pub(crate) rows: Vec<u32>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) slots: u32,
    pub(crate) initial: Vec<InitialBlock>,
    pub(crate) segments: Vec<InitialSegment>,
    pub(crate) gaps: Gaps,
    /// Rows of PyTorch's allocator.
    pub(crate) events: u64,
    /// Rows of requests among them.
    pub(crate) allocs: u64,
    /// Whether the recording shows segments at all.
    pub(crate) has_segments: bool,
    /// Most that was reserved, as the recording shows.
    pub(crate) peak_reserved: u64,
    /// Most bytes alive at once, each request rounded to 512: no allocator needs less.
    pub(crate) peak_live: u64,
    /// The same, with the request on which the recording ended: to complete, it must be served too.
    pub(crate) needed_live: u64,
    /// Most that others held.
    pub(crate) peak_outside: u64,
    /// The blocks of the final state, if the recording has one: address, size, state.
    pub(crate) finals: Option<Vec<(u64, u64, BlockState)>>,
    /// What the allocator could have held at most, as a refusal shows; the context is not in it.
    pub(crate) available: Option<u64>,
    /// The largest context that was opened.
    pub(crate) context: u64,
    /// Segment addresses that grew and that fell, to guess the driver's order.
    pub(crate) ascending: u64,
    pub(crate) descending: u64,
}

/// Requests from here on are refused by torch itself.
const TOO_LARGE: u64 = 1 << 60;

/// A block of the account, with its slot; none if its request could not have been served.
type Block = account::Block<Option<u32>>;

/// The account of the process and device.
pub(crate) type Track = DeviceAccount<Option<u32>>;

/// A run of segments given back.
#[derive(Clone, Debug, Default)]
struct Burst {
    row: u32,
    lanes: BTreeSet<u16>,
    default_pool: bool,
    refused: bool,
}

#[derive(Clone, Debug)]
struct FinalBlock {
    addr: u64,
    size: u64,
    requested: u64,
    lane: u16,
    state: BlockState,
}

/// Makes [`Requests`] of rows, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Builder {
    out: Requests,
    lane_of: HashMap<Lane, u16>,
    vacant: Vec<u32>,
    /// A free whose completion may be the next row.
    last_free: Option<(u64, usize)>,
    burst: Option<Burst>,
    /// Where `PoolDone` stands, by pool.
    done: BTreeMap<PoolId, usize>,
    finals: Vec<InitialSegment>,
    final_blocks: Vec<FinalBlock>,
    /// Bytes obtained minus bytes given back, and the extremes of that.
    net: i64,
    most: i64,
    least: i64,
    outside: u64,
    last_segment: u64,
    /// Bytes obtained since the start plus bytes free, at refusals.
    room: Option<i64>,
    /// Slots of blocks known from the driver's pools only, if torch told of none.
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
                _ => {}
            },
            Change::Nothing => {}
        }
    }

    fn push(&mut self, kind: OpKind, slot: u32, lane: u16, bytes: u64, row: u32) -> usize {
        self.out.ops.push(Op {
            bytes,
            slot,
            lane,
            kind,
        });
        self.out.rows.push(row);
        self.out.ops.len() - 1
    }

    fn lane(&mut self, event: &Event) -> u16 {
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
    fn fresh_slot(&mut self) -> u32 {
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
            // The row is one of a process that was killed, and nothing says when the free completed.
            self.vacant.push(slot);
            return None;
        }
        self.last_free = Some((event.address, op));
        Some(slot)
    }

    fn complete(&mut self, event: &Event, block: Option<Block>, row: u32) {
        self.out.events += 1;
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
    fn settle(&mut self, event: &Event, frees: bool, row: u32) {
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

    fn close_burst(&mut self, burst: &Burst, certain: bool, row: u32) {
        let mut private = None;
        let lanes = burst.lanes.iter().copied();
        for lane in lanes {
            let pool = self.out.lanes[lane as usize].pool;
            if pool == PoolId::DEFAULT {
                continue;
            }
            private = if private.is_none() { Some(lane) } else { None };
            if !self.done.contains_key(&pool) {
                let op = self.push(OpKind::PoolDone, 0, lane, 0, burst.row);
                self.done.insert(pool, op);
            }
        }
        let lane = match private {
            Some(lane) if !burst.default_pool => lane,
            _ => self.default_lane(),
        };
        let kind = if certain {
            OpKind::Release
        } else {
            OpKind::MaybeRelease
        };
        // The driver's refusal says who gave the segments back, for recordings
        // that cannot be replayed to find out.
        let bytes = u64::from(burst.refused);
        self.push(kind, 0, lane, bytes, burst.row.min(row));
    }

    fn default_lane(&mut self) -> u16 {
        self.lane(&Event::new(Kind::Alloc))
    }

    /// Notes how much is obtained and not given back.
    fn note_net(&mut self, track: &Track) {
        let before = i128::from(track.initial_reserved().unwrap_or(0));
        let net = before + track.reserved_change();
        self.net = i64::try_from(net.min(i128::from(i64::MAX))).unwrap_or(i64::MIN);
        self.most = self.most.max(self.net);
        self.least = self.least.min(self.net);
    }

    fn obtained(&mut self, event: &Event, track: &Track, row: u32) {
        self.out.events += 1;
        self.out.has_segments = true;
        self.settle(event, false, row);
        self.note_net(track);
        if event.kind == Kind::SegmentAlloc {
            if self.last_segment > 0 {
                self.out.ascending += u64::from(event.address > self.last_segment);
                self.out.descending += u64::from(event.address < self.last_segment);
            }
            self.last_segment = event.address;
        }
        // The driver's calls are complete up to here: what is charged and not PyTorch's belongs to others.
        let outside = track.outside();
        if track.driver_rows() > 0 && outside != self.outside {
            self.outside = outside;
            self.out.peak_outside = self.out.peak_outside.max(outside);
            let lane = self.default_lane();
            self.push(OpKind::Outside, 0, lane, outside, row);
        }
    }

    fn given_back(&mut self, event: &Event, is_unseen: bool, track: &Track, row: u32) {
        self.out.events += 1;
        self.out.has_segments = true;
        if let Some((_, op)) = self.last_free.take() {
            self.out.ops[op].kind = OpKind::FreeLater;
        }
        self.note_net(track);
        let lane = self.lane(event);
        let expandable = event.kind == Kind::SegmentUnmap;
        if !expandable && is_unseen {
            self.out.segments.push(InitialSegment {
                addr: event.address,
                size: event.size,
                lane,
                small: event.size == 2 << 20,
                expandable,
            });
        }
        let pool = self.out.lanes[lane as usize].pool;
        let default_pool = pool == PoolId::DEFAULT;
        // One call gives back the default pools first and private ones after
        // them, so anything else is a second call.
        let other = |lane: &u16| self.out.lanes[*lane as usize].pool != pool;
        let second = |burst: &Burst| {
            if default_pool {
                burst.lanes.iter().any(other)
            } else {
                !burst.default_pool && burst.lanes.iter().any(other)
            }
        };
        if let Some(burst) = self.burst.take_if(|burst| second(burst)) {
            self.close_burst(&burst, true, row);
        }
        let burst = self.burst.get_or_insert_default();
        burst.row = row;
        burst.lanes.insert(lane);
        burst.default_pool |= default_pool;
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

    /// The driver's own pools: requests, if torch's allocator does not tell of any.
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

    fn segment_state(&mut self, event: &Event, track: &Track, texts: &StackTable) {
        let small = event.name.is_some_and(|name| texts.text(name) == "small");
        let expandable = event
            .text
            .is_some_and(|text| texts.text(text) == "expandable");
        let lane = self.lane(event);
        self.out.has_segments = true;
        let segment = InitialSegment {
            addr: event.address,
            size: event.size,
            lane,
            small,
            expandable,
        };
        if event.kind == Kind::InitialSegment {
            self.note_net(track);
            self.out.segments.push(segment);
        } else {
            self.finals.push(segment);
        }
    }

    fn block_state(&mut self, event: &Event, track: &mut Track, texts: &StackTable) {
        let state = match event.name.map(|name| texts.text(name)) {
            Some("active_allocated") => BlockState::ActiveAllocated,
            Some("inactive") | None => BlockState::Inactive,
            Some(_) => BlockState::ActivePendingFree,
        };
        if event.kind == Kind::FinalBlock {
            let finals = self.out.finals.get_or_insert_default();
            finals.push((event.address, event.size, state));
        }
        if state == BlockState::Inactive {
            return;
        }
        let lane = self.lane(event);
        if event.kind == Kind::FinalBlock {
            self.final_blocks.push(FinalBlock {
                addr: event.address,
                size: event.size,
                requested: event.requested,
                lane,
                state,
            });
            return;
        }
        let slot = self.fresh_slot();
        self.add_initial(
            event.address,
            event.size,
            event.requested,
            lane,
            slot,
            state,
        );
        track.tag(event.address, Some(slot));
    }

    fn add_initial(
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

    /// The requests, when every row was taken.
    pub(crate) fn finish(mut self, track: &Track) -> Requests {
        if let Some((_, op)) = self.last_free.take()
            && self.out.ops.iter().any(|op| op.kind == OpKind::FreeNow)
        {
            self.out.ops[op].kind = OpKind::FreeLater;
        }
        if let Some(burst) = self.burst.take() {
            self.close_burst(&burst, true, burst.row);
        }
        let last = self
            .out
            .ops
            .iter_mut()
            .rev()
            .find(|op| matches!(op.kind, OpKind::Alloc | OpKind::Failed));
        if let Some(op) = last
            && op.kind == OpKind::Failed
        {
            op.kind = OpKind::FailedLast;
        }
        let had_finals = !self.finals.is_empty();
        let sizes = self.finals.iter().map(|segment| segment.size);
        let final_bytes = sizes.fold(0, u64::saturating_add);
        for segment in std::mem::take(&mut self.finals) {
            // Segments that rows obtained whole, or that were there from the start.
            let new = !track
                .segment(segment.addr)
                .is_some_and(|seen| !seen.is_expandable || seen.born.is_none());
            // What an expandable segment had mapped at the start does not follow
            // from what it has at the end.
            if new && (!segment.expandable || self.net < i64::try_from(final_bytes).unwrap_or(0)) {
                self.out.segments.push(segment);
            }
        }
        let since_start: Vec<FinalBlock> = std::mem::take(&mut self.final_blocks);
        for block in since_start {
            let live = track.block(block.addr).filter(|live| live.tag.is_some());
            let allocated = account::BlockState::Allocated;
            match live {
                Some(live)
                    if (live.state == allocated)
                        == (block.state == BlockState::ActiveAllocated) => {}
                Some(_) => self.out.gaps.contradicted_blocks += 1,
                None => {
                    let slot = self.fresh_slot();
                    let FinalBlock {
                        addr,
                        size,
                        requested,
                        lane,
                        state,
                    } = block;
                    self.add_initial(addr, size, requested, lane, slot, state);
                }
            }
        }
        let before = if had_finals {
            i64::try_from(final_bytes)
                .unwrap_or(i64::MAX)
                .saturating_sub(self.net)
        } else {
            self.least.saturating_neg()
        };
        self.out.peak_reserved =
            u64::try_from(before.max(0).saturating_add(self.most.max(0))).unwrap_or(0);
        self.out.available = self
            .room
            .and_then(|room| u64::try_from(room.saturating_add(before.max(0))).ok());
        self.out.initial.sort_by_key(|block| block.addr);
        self.out.segments.sort_by_key(|segment| segment.addr);
        self.raise_peak_live();
        self.out.ops.shrink_to_fit();
        self.out.rows.shrink_to_fit();
        self.out
    }

    /// Counts blocks that were there from the start, and the request that
    /// ended the recording, into the least any allocator needs.
    fn raise_peak_live(&mut self) {
        let mut needed = 0;
        let mut sizes = vec![0_u64; self.out.slots as usize];
        let mut live = 0_u64;
        for block in &self.out.initial {
            if block.state == BlockState::ActiveAllocated {
                sizes[block.slot as usize] = rounded(block.requested);
                live = live.saturating_add(rounded(block.requested));
            }
        }
        let mut most = live;
        for op in &self.out.ops {
            match op.kind {
                OpKind::Alloc => {
                    sizes[op.slot as usize] = rounded(op.bytes);
                    live = live.saturating_add(rounded(op.bytes));
                    most = most.max(live);
                }
                OpKind::Free | OpKind::FreeLater => {
                    live = live.saturating_sub(std::mem::take(&mut sizes[op.slot as usize]));
                }
                OpKind::FailedLast => needed = live.saturating_add(rounded(op.bytes)),
                _ => {}
            }
        }
        self.out.peak_live = most;
        self.out.needed_live = most.max(needed);
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(512).unwrap_or(u64::MAX)
}
