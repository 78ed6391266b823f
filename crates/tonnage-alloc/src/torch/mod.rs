// SPDX-License-Identifier: MIT OR Apache-2.0
//! PyTorch's native CUDA caching allocator, event for event, over any [`Device`].
//!
//! The policy of torch 2.15.0 as `docs/concepts/pytorch-allocator.md` specifies it; numbers in comments are sections of
//! that document. Every address, event, block and counter is that of the real allocator on a device that answers alike.
//! Differences of older releases are in [`Rules`]; where torch itself is undefined, the call fails with
//! [`Error::Undefined`] instead of guessing.
//!
//! ```text
//! request ─ round ─ pool ─ search ──────────────────────────┬─ split ─ hand out
//!                            └ none: collect, obtain, ──────┘
//!                              overflow pools, give back, retry, out of memory
//! ```
//!
//! * `mod` serves requests and frees;
//! * `obtain` is the way to the device when nothing cached fits;
//! * `expandable` grows and trims expandable segments;
//! * `release` gives memory back: garbage collection, retries, `empty_cache`;
//! * `streams` holds frees that other streams or a capture still delay;
//! * `private` has private pools, allocation scopes and captures;
//! * `snapshot` shows the state and recounts the books, `adopt` starts from one.
//!
//! One allocator stands for one device. It sees no pointer, clock or thread:
//! calls are served in the order they are made.
//!
//! **Invariant:** two free neighbours of a segment that both have memory, or both lack it, never coexist;
//! [`Allocator::check`] checks this.

mod adopt;
mod block;
mod error;
mod event;
mod expandable;
mod free_set;
mod live;
mod obtain;
mod policy;
mod private;
mod rank;
mod release;
mod rules;
mod settings;
mod size;
mod ska;
mod snapshot;
mod stats;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use block::{Block, Blocks, NONE};
use expandable::Range;
use free_set::{Cursor, FreeSet};
use live::Live;
use private::Privates;
use rank::Ranks;
use size::{MIN_BLOCK, SMALL_LIMIT, TOO_LARGE};
use stats::{Books, Counter};
use streams::Pending;

use crate::{Device, DeviceAddr, PhysicalId, StreamId};

pub use error::{Error, OutOfMemory, Undefined};
pub use event::{Action, Event, PoolId, Sink};
pub use private::Scope;
pub use rules::{CaptureRule, LimitRule, Rules, ScopeRule, TieBreak, Version};
pub use settings::{Backend, Reserve, Settings, SettingsError};
pub use snapshot::{BlockInfo, BlockState, SegmentInfo};
pub use stats::{PoolStat, Stat, Stats};

/// The default pool of small blocks; its index in `Allocator::pools`.
const SMALL_POOL: u32 = 0;
/// The default pool of large blocks.
const LARGE_POOL: u32 = 1;

/// Blocks that may serve the same requests: small or large, default or private.
#[derive(Clone, Debug)]
struct Pool {
    small: bool,
    id: PoolId,
    /// The private pool it is part of, or `NONE`.
    owner: u32,
    /// Whether memory comes from an allocator of the user, never expandable (8.6).
    custom: bool,
    no_split: bool,
    /// The lane of each stream, by stream.
    lanes: Vec<(StreamId, u32)>,
    /// Searches while garbage collection was armed (7.1).
    searches: u64,
}

/// The blocks of one pool and one stream, the only ones a request may get.
#[derive(Clone, Debug)]
struct Lane {
    stream: StreamId,
    pool: u32,
    pool_id: PoolId,
    free: FreeSet,
    /// Parts of expandable segments without memory, by address.
    unmapped: BTreeMap<u64, u32>,
}

/// PyTorch's caching allocator for one device.
///
/// ```
/// use tonnage_alloc::torch::{Allocator, Error, Settings};
/// use tonnage_alloc::{SimConfig, SimDevice, StreamId};
///
/// let settings: Settings = "max_split_size_mb:128".parse()?;
/// let device = SimDevice::new(SimConfig::with_total(1 << 30));
/// let mut allocator = Allocator::new(device, settings);
/// let block = allocator.malloc(3_000_000, StreamId(0))?;
/// // A block is a multiple of 512 bytes, in a segment of 20 MiB.
/// assert_eq!(allocator.size_of(block), Some(3_000_320));
/// assert_eq!(allocator.reserved(), 20 << 20);
/// // A freed block stays in the cache.
/// allocator.free(block)?;
/// assert_eq!(allocator.reserved(), 20 << 20);
/// allocator.empty_cache()?;
/// assert_eq!(allocator.reserved(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Allocator<D, S = ()> {
    device: D,
    sink: S,
    rules: Rules,
    settings: Settings,
    blocks: Blocks,
    live: Live,
    lanes: Vec<Lane>,
    vacant_lanes: Vec<u32>,
    pools: Vec<Pool>,
    vacant_pools: Vec<u32>,
    ranges: Vec<Option<Range>>,
    /// Memory that the device failed to take back.
    unreleased: Vec<PhysicalId>,
    private: Privates,
    pending: Pending,
    /// Bytes obtained from the device and not given back.
    held: u64,
    /// The limit of held memory, if a memory fraction sets one (9).
    allowed: Option<u64>,
    /// How much larger than a request an uncut block may be.
    non_split_rounding: u64,
    /// Whether requests are only rounded to whole blocks.
    plain_rounding: bool,
    /// Whether garbage collection may run: a limit and a threshold are set (7.1).
    armed: bool,
    /// `Pool::searches` when a block became free; empty until first armed.
    ages: Vec<u64>,
    ranks: Ranks,
    /// Classes of streams, which decide how much address space they reserve.
    reserve_classes: BTreeMap<StreamId, String>,
    books: Books,
    undefined: BTreeSet<Undefined>,
}

impl<D: Device> Allocator<D> {
    /// An allocator of torch 2.15 without a listener.
    pub fn new(device: D, settings: Settings) -> Self {
        Self::with(device, settings, Rules::default(), ())
    }
}

impl<D: Device, S: Sink> Allocator<D, S> {
    /// An allocator with the rules of a release and a listener.
    pub fn with(device: D, settings: Settings, rules: Rules, sink: S) -> Self {
        let pool = |small| Pool {
            small,
            id: PoolId::DEFAULT,
            owner: NONE,
            custom: false,
            no_split: false,
            lanes: Vec::new(),
            searches: 0,
        };
        let mut books = Books::default();
        books.rest.max_split_size = settings.max_split_size as i64;
        let fraction = settings.per_process_memory_fraction;
        let ranks = Ranks::new(rules.tie_break, device.total());
        let mut allocator = Self {
            device,
            sink,
            rules,
            settings,
            blocks: Blocks::default(),
            live: Live::default(),
            lanes: Vec::new(),
            vacant_lanes: Vec::new(),
            pools: vec![pool(true), pool(false)],
            vacant_pools: Vec::new(),
            ranges: Vec::new(),
            unreleased: Vec::new(),
            private: Privates::default(),
            pending: Pending::default(),
            held: 0,
            allowed: None,
            non_split_rounding: 0,
            plain_rounding: false,
            armed: false,
            ages: Vec::new(),
            ranks,
            reserve_classes: BTreeMap::new(),
            books,
            undefined: BTreeSet::new(),
        };
        // Up to 2.9 only a call set the limit, so without one there is none.
        if fraction < 1.0 {
            allocator.limit(fraction);
        }
        allocator.derive();
        allocator
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device below, to change what it simulates.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The listener.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// The listener, to take its events.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The rules in force.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// Where torch's behaviour was undefined or unknowable so far.
    ///
    /// Empty means that everything up to now is what torch would have done.
    pub fn undefined(&self) -> &BTreeSet<Undefined> {
        &self.undefined
    }

    /// Changes the settings as `torch._C._accelerator_setAllocatorSettings` does (9).
    pub fn update_settings(&mut self, text: &str) -> Result<(), SettingsError> {
        let result = self.settings.update(text);
        self.derive();
        result
    }

    /// Limits what is held to a fraction of the device's memory
    /// (`set_per_process_memory_fraction`).
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::Fraction);
        }
        self.limit(fraction);
        Ok(())
    }

    fn limit(&mut self, fraction: f64) {
        let bytes = fraction * self.device.total() as f64;
        self.allowed = match self.rules.limit {
            LimitRule::Truncated => Some(bytes as u64),
            LimitRule::Rounded if fraction < 1.0 => Some(bytes.round() as u64),
            LimitRule::Rounded => None,
        };
        self.derive();
    }

    /// Values that follow from the settings, the limit and the rules.
    fn derive(&mut self) {
        self.non_split_rounding = if self.rules.fixed_non_split_rounding {
            settings::LARGE_SEGMENT
        } else {
            self.settings.max_non_split_rounding
        };
        let divisions = &self.settings.roundup_power2_divisions;
        self.plain_rounding = divisions.iter().all(|&count| count <= 1);
        self.armed = self.allowed.is_some() && self.settings.garbage_collection_threshold > 0.0;
        if self.armed && self.ages.is_empty() {
            // Marks that ages are kept from now on; so far all are 0.
            self.ages.push(0);
        }
    }

    /// Bytes obtained from the device and not given back.
    pub fn reserved(&self) -> u64 {
        self.held
    }

    /// The most that was ever reserved, or since the last reset of peaks.
    pub fn peak_reserved(&self) -> u64 {
        self.books.total_peak(Counter::ReservedBytes) as u64
    }

    /// The counters of `memory_stats` (10).
    pub fn stats(&self) -> Stats {
        self.books.show()
    }

    /// Peaks become what is current (`reset_peak_memory_stats`).
    pub fn reset_peak_stats(&mut self) {
        self.books.reset_peak();
    }

    /// Sums become zero (`reset_accumulated_memory_stats`).
    pub fn reset_accumulated_stats(&mut self) {
        self.books.reset_accumulated();
    }

    /// Serves a request (3): the address of a block of at least `requested` bytes.
    pub fn malloc(&mut self, requested: u64, stream: StreamId) -> Result<DeviceAddr, Error> {
        let size = self.prepare(requested)?;
        let pool = self.route(size, stream)?;
        self.serve(pool, size, requested, stream)
    }

    /// Serves a request from the pool a recording names, whatever scopes are open.
    pub fn malloc_in(
        &mut self,
        pool: PoolId,
        requested: u64,
        stream: StreamId,
    ) -> Result<DeviceAddr, Error> {
        let size = self.prepare(requested)?;
        let pool = self.pool_of(pool, size)?;
        self.serve(pool, size, requested, stream)
    }

    /// Serves a request at an address of the caller's choice, if a free block of
    /// the right pool and stream spans it (8.5); `None` if there is none.
    pub fn malloc_at(
        &mut self,
        requested: u64,
        stream: StreamId,
        addr: DeviceAddr,
    ) -> Result<Option<DeviceAddr>, Error> {
        let size = self.prepare(requested)?;
        let pool = self.route(size, stream)?;
        let lane = self.lane(pool, stream);
        let spans =
            |block: &Block| block.addr <= addr.0 && addr.0.saturating_add(size) <= block.end();
        let free = &self.lanes[lane as usize].free;
        let found = free
            .iter(&self.blocks)
            .find(|&block| spans(&self.blocks[block]));
        let Some(mut block) = found.filter(|_| addr.0.is_multiple_of(MIN_BLOCK)) else {
            return Ok(None);
        };
        self.take_free(block);
        let expandable = self.uses_expandable(pool);
        let before = addr.0 - self.blocks[block].addr;
        let mut prefix = None;
        if before > 0 {
            let start = self.hand_out(block, before, before, true);
            // The rest was put back as free; it is the very object that was cut.
            self.take_free(block);
            prefix = Some(start);
        }
        let split = self.should_split(block, size, expandable);
        let served = self.hand_out(block, size, requested, split);
        if let Some(start) = prefix {
            block = self.live.remove(start.0).unwrap_or(NONE);
            self.request_back(block);
            self.complete(block);
        }
        Ok(Some(served))
    }

    /// Takes a block back (4).
    pub fn free(&mut self, addr: DeviceAddr) -> Result<(), Error> {
        let block = self
            .live
            .remove(addr.0)
            .ok_or(Error::UnknownAddress(addr))?;
        if self.blocks[block].uses != NONE {
            return self.free_used(addr, block);
        }
        self.request_back(block);
        self.complete(block);
        Ok(())
    }

    /// Takes a block back that other streams used; it stays live if that fails.
    #[cold]
    #[inline(never)]
    fn free_used(&mut self, addr: DeviceAddr, block: u32) -> Result<(), Error> {
        let given = self.give_back_used(block);
        if given.is_err() {
            self.live.insert(addr.0, block);
        }
        given
    }

    /// The bytes of the live block at `addr`, slack included.
    pub fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        Some(self.blocks[self.live.get(addr.0)?].size)
    }

    /// Marks a live block in the trace (`_annotate_tensor`).
    pub fn annotate(&mut self, addr: DeviceAddr) -> Result<(), Error> {
        let block = self.live.get(addr.0).ok_or(Error::UnknownAddress(addr))?;
        let Block {
            requested, lane, ..
        } = self.blocks[block];
        self.emit(Action::Annotate, addr.0, requested, lane);
        Ok(())
    }

    /// The first part of a request: reaping, and its rounded size.
    #[inline]
    fn prepare(&mut self, requested: u64) -> Result<u64, Error> {
        // Zero wraps around, so that one comparison finds both.
        if requested.wrapping_sub(1) >= TOO_LARGE - 1 {
            return Err(if requested == 0 {
                Error::Empty
            } else {
                Error::TooLarge(requested)
            });
        }
        if self.pending.any() {
            self.reap()?;
        }
        Ok(if self.plain_rounding {
            size::round_plainly(requested)
        } else {
            size::round(&self.settings, requested)
        })
    }

    #[inline]
    fn serve(
        &mut self,
        pool: u32,
        size: u64,
        requested: u64,
        stream: StreamId,
    ) -> Result<DeviceAddr, Error> {
        let lane = self.lane(pool, stream);
        let mut expandable = self.uses_expandable(pool);
        let block = if let Some(block) = self.search(lane, size, expandable) {
            block
        } else {
            let obtained = self.obtain(&obtain::Request {
                pool,
                lane,
                requested,
                size,
                segment: size::segment(&self.settings, size),
                expandable,
            })?;
            expandable = obtained.expandable;
            obtained.block
        };
        let split = self.should_split(block, size, expandable);
        Ok(self.hand_out(block, size, requested, split))
    }

    fn uses_expandable(&self, pool: u32) -> bool {
        self.settings.expandable_segments && !self.pools[pool as usize].custom
    }

    /// The lane of a stream in a pool, made if it is new.
    #[inline]
    fn lane(&mut self, pool: u32, stream: StreamId) -> u32 {
        let lanes = &self.pools[pool as usize].lanes;
        // Most programs use one stream, and it sorts first.
        if let Some(&(first, lane)) = lanes.first()
            && first == stream
        {
            return lane;
        }
        match lanes.binary_search_by_key(&stream, |&(stream, _)| stream) {
            Ok(place) => lanes[place].1,
            Err(place) => self.add_lane(pool, stream, place),
        }
    }

    #[cold]
    fn add_lane(&mut self, pool: u32, stream: StreamId, place: usize) -> u32 {
        let lane = Lane {
            stream,
            pool,
            pool_id: self.pools[pool as usize].id,
            free: FreeSet::default(),
            unmapped: BTreeMap::new(),
        };
        let index = if let Some(index) = self.vacant_lanes.pop() {
            self.lanes[index as usize] = lane;
            index
        } else {
            self.lanes.push(lane);
            (self.lanes.len() - 1) as u32
        };
        self.pools[pool as usize]
            .lanes
            .insert(place, (stream, index));
        index
    }

    /// Searches the free blocks of a lane and takes the one torch takes (3.2).
    #[expect(clippy::inline_always, reason = "on the path of every event, measured")]
    #[inline(always)]
    fn search(&mut self, lane: u32, size: u64, expandable: bool) -> Option<u32> {
        let lane = &mut self.lanes[lane as usize];
        if self.armed {
            self.pools[lane.pool as usize].searches += 1;
        }
        let blocks = &self.blocks;
        let mut cursor = lane.free.lower_bound(blocks, size)?;
        if blocks[cursor.block].is_expandable() {
            if expandable {
                // A block that can grow counts as large as it can become, so
                // that holes are filled first.
                let full = |cursor: Cursor| {
                    let block = &blocks[cursor.block];
                    match block.next {
                        NONE => block.size,
                        next if blocks[next].is_mapped() => block.size,
                        next => block.size + blocks[next].size,
                    }
                };
                while blocks[cursor.block].is_expandable()
                    && let Some(next) = lane.free.next(blocks, cursor)
                    && full(next) < full(cursor)
                {
                    cursor = next;
                }
            } else {
                cursor = lane.free.next(blocks, cursor)?;
                while blocks[cursor.block].is_expandable() {
                    cursor = lane.free.next(blocks, cursor)?;
                }
            }
        }
        let limit = self.settings.max_split_size;
        let found = blocks[cursor.block].size;
        let refused = if size < limit {
            found >= limit
        } else {
            found >= size.saturating_add(self.non_split_rounding)
        };
        (!refused).then(|| lane.free.take(blocks, cursor))
    }

    /// Whether the rest of a block becomes a separate free block (3.4).
    #[inline]
    fn should_split(&self, block: u32, size: u64, expandable: bool) -> bool {
        let block = &self.blocks[block];
        if self.private.any_no_split() {
            let pool = self.lanes[block.lane as usize].pool;
            if self.pools[pool as usize].no_split {
                return false;
            }
        }
        let rest = block.size - size;
        if block.is_small() || expandable {
            rest >= MIN_BLOCK
        } else {
            size < self.settings.max_split_size && rest > SMALL_LIMIT
        }
    }

    /// Hands out the low end of a block that is in no free set (3.5).
    #[inline]
    fn hand_out(&mut self, block: u32, size: u64, requested: u64, split: bool) -> DeviceAddr {
        let whole = &mut self.blocks[block];
        let was_split = whole.is_split();
        let plain = !whole.is_expandable();
        let small = whole.is_small();
        let (addr, lane) = (whole.addr, whole.lane);
        let mut index = block;
        let mut handed = whole.size;
        // The change of the free parts of segments, in number and bytes.
        let inactive;
        if split {
            // A new object takes the low end; the old one keeps the rest.
            let part = whole.cut(block, size, requested);
            let (prev, rest) = (part.prev, whole.size);
            index = self.blocks.add(part);
            self.blocks[block].prev = index;
            if prev != NONE {
                self.blocks[prev].next = index;
            }
            self.ranks.cut(&mut self.blocks, index, block, size);
            self.put_free(block);
            handed = size;
            inactive = if was_split {
                (0, -(size as i64))
            } else {
                (1, rest as i64)
            };
        } else {
            whole.set_allocated(true);
            whole.requested = requested;
            inactive = if was_split {
                (-1, -(handed as i64))
            } else {
                (0, 0)
            };
        }
        if plain {
            self.books.change_inactive(small, inactive.0, inactive.1);
        }
        let size = handed;
        self.emit(Action::Alloc, addr, requested, lane);
        self.books.hand_out(small, size, requested);
        if size >= self.settings.max_split_size {
            self.books.rest.change_oversize_allocations(1);
        }
        self.live.insert(addr, index);
        DeviceAddr(addr)
    }

    /// The first half of a free (4): the program is done with the block.
    #[inline]
    fn request_back(&mut self, index: u32) {
        let block = &mut self.blocks[index];
        block.set_allocated(false);
        let small = block.is_small();
        let (addr, size, requested, lane) = (block.addr, block.size, block.requested, block.lane);
        self.books.give_back(small, size);
        self.emit(Action::FreeRequested, addr, requested, lane);
        if size >= self.settings.max_split_size {
            self.books.rest.change_oversize_allocations(-1);
        }
    }

    /// The second half of a free (4): the block may be used again.
    #[expect(clippy::inline_always, reason = "on the path of every event, measured")]
    #[inline(always)]
    fn complete(&mut self, index: u32) {
        let block = &self.blocks[index];
        let (addr, requested, lane) = (block.addr, block.requested, block.lane);
        let (prev, next) = (block.prev, block.next);
        let small = block.is_small();
        let plain = !block.is_expandable();
        self.emit(Action::FreeCompleted, addr, requested, lane);
        let (mut count, mut bytes) = (0, 0);
        for neighbour in [prev, next] {
            let absorbed = self.absorb(index, neighbour);
            if absorbed > 0 {
                count -= 1;
                bytes -= absorbed as i64;
            }
        }
        self.put_free(index);
        if plain {
            let block = &self.blocks[index];
            if block.is_split() {
                count += 1;
                bytes += block.size as i64;
            }
            self.books.change_inactive(small, count, bytes);
        }
        self.books.complete(small, requested);
    }

    /// Merges a neighbour into a block that is in no set, if the neighbour is
    /// free and like it; answers with the bytes gained.
    #[expect(clippy::inline_always, reason = "on the path of every event, measured")]
    #[inline(always)]
    fn absorb(&mut self, index: u32, neighbour: u32) -> u64 {
        if neighbour == NONE {
            return 0;
        }
        let other = &self.blocks[neighbour];
        if other.is_busy() || other.is_mapped() != self.blocks[index].is_mapped() {
            return 0;
        }
        let (addr, size, rank) = (other.addr, other.size, other.rank);
        let (prev, next) = (other.prev, other.next);
        if other.is_mapped() {
            self.take_free(neighbour);
        } else {
            self.lanes[other.lane as usize].unmapped.remove(&addr);
        }
        let block = &mut self.blocks[index];
        block.size += size;
        if block.prev == neighbour {
            block.addr = addr;
            self.ranks.absorb(&mut block.rank, rank);
            block.prev = prev;
            if prev != NONE {
                self.blocks[prev].next = index;
            }
        } else {
            block.next = next;
            if next != NONE {
                self.blocks[next].prev = index;
            }
        }
        self.blocks.remove(neighbour);
        size
    }

    /// Puts a block into the free set of its lane; its age starts anew.
    #[expect(clippy::inline_always, reason = "on the path of every event, measured")]
    #[inline(always)]
    fn put_free(&mut self, index: u32) {
        let lane = &mut self.lanes[self.blocks[index].lane as usize];
        lane.free.insert(&self.blocks, index);
        if !self.ages.is_empty() {
            let searches = self.pools[lane.pool as usize].searches;
            let index = index as usize;
            if index >= self.ages.len() {
                self.ages.resize(index + 1, 0);
            }
            self.ages[index] = searches;
        }
    }

    #[inline]
    fn take_free(&mut self, index: u32) {
        let lane = &mut self.lanes[self.blocks[index].lane as usize];
        lane.free.remove(&self.blocks, index);
    }

    fn emit(&mut self, action: Action, addr: u64, size: u64, lane: u32) {
        if S::WANTED {
            let lane = &self.lanes[lane as usize];
            self.sink.record(Event {
                action,
                addr: DeviceAddr(addr),
                size,
                stream: lane.stream,
                pool: lane.pool_id,
            });
        }
    }

    /// Notes that torch is undefined here.
    fn flag(&mut self, what: Undefined) -> Error {
        self.undefined.insert(what);
        Error::Undefined(what)
    }
}
