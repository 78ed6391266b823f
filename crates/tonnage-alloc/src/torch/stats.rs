// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of `torch.cuda.memory_stats` (specification 10).
//!
//! Each has a current value, a peak and the sums of its increases and decreases,
//! for the small pools, the large pools and both. Counting happens at every
//! event, so only what cannot be derived is kept: for each pool the current
//! value, the peak and the increases, and the common peak. Decreases are
//! increases minus the current value; sums for both pools are sums; what is
//! active is what is allocated plus what waits.

use std::collections::BTreeMap;

use super::PoolId;

/// One counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// The most since the start or the last reset of peaks.
    pub peak: i64,
    /// Sum of increases since the start or the last reset of sums.
    pub allocated: i64,
    /// Sum of decreases since then.
    pub freed: i64,
}

impl Stat {
    fn change(&mut self, by: i64) {
        self.current += by;
        if by > 0 {
            self.allocated += by;
            self.peak = self.peak.max(self.current);
        } else {
            self.freed -= by;
        }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }
}

/// One counter, by pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStat {
    /// Both kinds of pools together.
    pub all: Stat,
    /// Pools of blocks up to 1 MiB.
    pub small_pool: Stat,
    /// Pools of larger blocks.
    pub large_pool: Stat,
}

impl PoolStat {
    #[inline]
    fn change(&mut self, small: bool, by: i64) {
        self.all.change(by);
        if small {
            self.small_pool.change(by);
        } else {
            self.large_pool.change(by);
        }
    }

    fn each(&mut self) -> [&mut Stat; 3] {
        [&mut self.all, &mut self.small_pool, &mut self.large_pool]
    }
}

/// Everything `memory_stats` shows, under the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks handed out and not given back.
    pub allocation: PoolStat,
    /// Segments obtained by `cudaMalloc`.
    pub segment: PoolStat,
    /// Blocks handed out and not yet free for reuse.
    pub active: PoolStat,
    /// Free parts of segments that are partly in use.
    pub inactive_split: PoolStat,
    /// Bytes of `allocation`.
    pub allocated_bytes: PoolStat,
    /// Bytes held from the device.
    pub reserved_bytes: PoolStat,
    /// Bytes of `active`.
    pub active_bytes: PoolStat,
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: PoolStat,
    /// Bytes the program requested, of `active`.
    pub requested_bytes: PoolStat,
    /// `reserved_bytes` of each private pool that ever held some.
    pub reserved_bytes_by_private_pools: BTreeMap<PoolId, PoolStat>,
    /// Blocks of at least the split limit handed out.
    pub oversize_allocations: Stat,
    /// Segments of at least the split limit.
    pub oversize_segments: Stat,
    /// Last attempts after everything cached was given back.
    pub num_alloc_retries: u64,
    /// Requests that could not be served.
    pub num_ooms: u64,
    /// Times everything pending was waited for.
    pub num_sync_all_streams: u64,
    /// Calls that obtained memory.
    pub num_device_alloc: u64,
    /// Calls that gave memory back.
    pub num_device_free: u64,
    /// Requests refused by `throw_on_cudamalloc_oom`.
    pub num_oom_rejections: u64,
    /// The split limit at the start, −1 for none.
    pub max_split_size: i64,
}

/// Index of a counter that is kept by pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Counter {
    // The first three change together, at every hand-out.
    Allocation,
    AllocatedBytes,
    RequestedBytes,
    Segment,
    ReservedBytes,
    InactiveSplit,
    InactiveSplitBytes,
    // The last two are not kept, but follow from those before and what waits.
    Active,
    ActiveBytes,
}

const KEPT: usize = 7;
const HANDED_OUT: usize = 3;
const DERIVED: [Counter; 2] = [Counter::Active, Counter::ActiveBytes];

/// The counters of one kind of pool.
#[derive(Clone, Debug, Default)]
struct Column {
    current: [i64; KEPT],
    peak: [i64; KEPT],
    /// Sum of increases since the start.
    raised: [i64; KEPT],
    /// Increases and decreases at the last reset of sums.
    forgotten: [(i64, i64); KEPT + DERIVED.len()],
    /// Blocks, and bytes of them, that were given back and wait to be free.
    waiting: [i64; DERIVED.len()],
    /// The maximum of active memory at an allocation while a free waited. Active memory is allocated memory and waiting
    /// memory. While nothing waits, the peak of the one is the peak of the other and is not tracked twice.
    peak_active: [i64; DERIVED.len()],
}

impl Column {
    fn current(&self, counter: Counter) -> i64 {
        match counter {
            Counter::Active => self.current[Counter::Allocation as usize] + self.waiting[0],
            Counter::ActiveBytes => {
                self.current[Counter::AllocatedBytes as usize] + self.waiting[1]
            }
            kept => self.current[kept as usize],
        }
    }

    fn peak(&self, counter: Counter) -> i64 {
        match counter {
            Counter::Active => self.peak_active[0].max(self.peak[Counter::Allocation as usize]),
            Counter::ActiveBytes => {
                self.peak_active[1].max(self.peak[Counter::AllocatedBytes as usize])
            }
            kept => self.peak[kept as usize],
        }
    }

    /// Allocated memory also became active, so one sum serves both.
    fn raised(&self, counter: Counter) -> i64 {
        self.raised[match counter {
            Counter::Active => Counter::Allocation as usize,
            Counter::ActiveBytes => Counter::AllocatedBytes as usize,
            kept => kept as usize,
        }]
    }

    fn stat(&self, counter: Counter) -> Stat {
        let (raised, lowered) = self.forgotten[counter as usize];
        let current = self.current(counter);
        Stat {
            current,
            peak: self.peak(counter),
            allocated: self.raised(counter) - raised,
            freed: self.raised(counter) - current - lowered,
        }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
        self.peak_active = DERIVED.map(|counter| self.current(counter));
    }

    fn reset_accumulated(&mut self) {
        for counter in ALL {
            let raised = self.raised(counter);
            self.forgotten[counter as usize] = (raised, raised - self.current(counter));
        }
    }
}

const ALL: [Counter; KEPT + DERIVED.len()] = [
    Counter::Allocation,
    Counter::AllocatedBytes,
    Counter::RequestedBytes,
    Counter::Segment,
    Counter::ReservedBytes,
    Counter::InactiveSplit,
    Counter::InactiveSplitBytes,
    Counter::Active,
    Counter::ActiveBytes,
];

/// The counters as they are kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    /// For the large pools, then for the small ones.
    columns: [Column; 2],
    /// Peaks of both kinds of pools together.
    peak: [i64; KEPT],
    peak_active: [i64; DERIVED.len()],
    by_private_pool: BTreeMap<PoolId, PoolStat>,
    pub(super) rest: Rest,
}

/// The counters that are not kept by pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    pub(super) oversize_allocations: Stat,
    pub(super) oversize_segments: Stat,
    pub(super) alloc_retries: u64,
    pub(super) ooms: u64,
    pub(super) sync_all_streams: u64,
    pub(super) device_alloc: u64,
    pub(super) device_free: u64,
    pub(super) oom_rejections: u64,
    pub(super) max_split_size: i64,
}

impl Rest {
    pub(super) fn change_oversize_allocations(&mut self, by: i64) {
        self.oversize_allocations.change(by);
    }

    pub(super) fn change_oversize_segments(&mut self, by: i64) {
        self.oversize_segments.change(by);
    }
}

impl Books {
    /// A block was handed out.
    #[inline]
    pub(super) fn hand_out(&mut self, small: bool, size: u64, requested: u64) {
        let Self {
            columns: [large, small_column],
            peak,
            ..
        } = self;
        let (column, other) = if small {
            (small_column, large)
        } else {
            (large, small_column)
        };
        let by: [i64; HANDED_OUT] = [1, size as i64, requested as i64];
        for counter in 0..HANDED_OUT {
            let current = column.current[counter] + by[counter];
            column.current[counter] = current;
            column.raised[counter] += by[counter];
            // New peaks are rare, so branches beat stores.
            if current > column.peak[counter] {
                column.peak[counter] = current;
            }
            let both = current + other.current[counter];
            if both > peak[counter] {
                peak[counter] = both;
            }
        }
        if column.waiting[0] + other.waiting[0] != 0 {
            self.watch_active(small);
        }
    }

    /// The free parts of segments changed, in number and in bytes.
    #[inline]
    pub(super) fn change_inactive(&mut self, small: bool, count: i64, bytes: i64) {
        let Self {
            columns: [large, small_column],
            peak,
            ..
        } = self;
        let (column, other) = if small {
            (small_column, large)
        } else {
            (large, small_column)
        };
        let counters = [Counter::InactiveSplit, Counter::InactiveSplitBytes];
        for (counter, by) in counters.into_iter().zip([count, bytes]) {
            let counter = counter as usize;
            let current = column.current[counter] + by;
            column.current[counter] = current;
            // The processor cannot predict whether something was added, so this is not a branch.
            column.raised[counter] += by.max(0);
            if current > column.peak[counter] {
                column.peak[counter] = current;
            }
            let both = current + other.current[counter];
            if both > peak[counter] {
                peak[counter] = both;
            }
        }
    }

    #[cold]
    fn watch_active(&mut self, small: bool) {
        for (place, counter) in DERIVED.into_iter().enumerate() {
            let total = self.total(counter);
            self.peak_active[place] = self.peak_active[place].max(total);
            let column = &mut self.columns[usize::from(small)];
            let current = column.current(counter);
            column.peak_active[place] = column.peak_active[place].max(current);
        }
    }

    /// The program gave a block back.
    #[inline]
    pub(super) fn give_back(&mut self, small: bool, size: u64) {
        let column = &mut self.columns[usize::from(small)];
        column.current[Counter::Allocation as usize] -= 1;
        column.current[Counter::AllocatedBytes as usize] -= size as i64;
    }

    /// A block that was given back must wait (`by` is 1) or has waited (−1).
    pub(super) fn change_waiting(&mut self, small: bool, by: i64, size: u64) {
        let column = &mut self.columns[usize::from(small)];
        column.waiting[0] += by;
        column.waiting[1] += by * size as i64;
    }

    /// A block became free for reuse.
    #[inline]
    pub(super) fn complete(&mut self, small: bool, requested: u64) {
        let column = &mut self.columns[usize::from(small)];
        column.current[Counter::RequestedBytes as usize] -= requested as i64;
    }

    /// One counter goes up or down; zero is not a change.
    #[inline]
    pub(super) fn change(&mut self, small: bool, counter: Counter, by: i64) {
        let counter = counter as usize;
        let other = self.columns[usize::from(!small)].current[counter];
        let column = &mut self.columns[usize::from(small)];
        let current = column.current[counter] + by;
        column.current[counter] = current;
        if by > 0 {
            column.raised[counter] += by;
            if current > column.peak[counter] {
                column.peak[counter] = current;
            }
            if current + other > self.peak[counter] {
                self.peak[counter] = current + other;
            }
        }
    }

    /// Memory was obtained from the device or given back.
    pub(super) fn change_reserved(&mut self, small: bool, pool: PoolId, by: i64) {
        self.change(small, Counter::ReservedBytes, by);
        if pool != PoolId::DEFAULT {
            let stat = self.by_private_pool.entry(pool).or_default();
            stat.change(small, by);
        }
    }

    /// The current value of a counter, for one kind of pool.
    pub(super) fn current(&self, small: bool, counter: Counter) -> i64 {
        self.columns[usize::from(small)].current(counter)
    }

    /// The current value of a counter, for both kinds of pools.
    pub(super) fn total(&self, counter: Counter) -> i64 {
        self.current(true, counter) + self.current(false, counter)
    }

    /// The largest value of a counter, for both kinds of pools.
    pub(super) fn total_peak(&self, counter: Counter) -> i64 {
        let kept = |counter: Counter| self.peak[counter as usize];
        match counter {
            Counter::Active => self.peak_active[0].max(kept(Counter::Allocation)),
            Counter::ActiveBytes => self.peak_active[1].max(kept(Counter::AllocatedBytes)),
            counter => kept(counter),
        }
    }

    pub(super) fn reset_peak(&mut self) {
        self.columns.iter_mut().for_each(Column::reset_peak);
        for counter in 0..KEPT {
            self.peak[counter] = self.columns.iter().map(|c| c.current[counter]).sum();
        }
        self.peak_active = DERIVED.map(|counter| self.total(counter));
        for stat in self.by_private_pool.values_mut().flat_map(PoolStat::each) {
            stat.reset_peak();
        }
        self.rest.oversize_allocations.reset_peak();
        self.rest.oversize_segments.reset_peak();
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.columns.iter_mut().for_each(Column::reset_accumulated);
        for stat in self.by_private_pool.values_mut().flat_map(PoolStat::each) {
            stat.reset_accumulated();
        }
        let mut rest = Rest {
            oversize_allocations: self.rest.oversize_allocations,
            oversize_segments: self.rest.oversize_segments,
            max_split_size: self.rest.max_split_size,
            ..Rest::default()
        };
        rest.oversize_allocations.reset_accumulated();
        rest.oversize_segments.reset_accumulated();
        self.rest = rest;
    }

    fn stat(&self, counter: Counter) -> PoolStat {
        let [large_pool, small_pool] = self.columns.each_ref().map(|c| c.stat(counter));
        PoolStat {
            all: Stat {
                current: small_pool.current + large_pool.current,
                peak: self.total_peak(counter),
                allocated: small_pool.allocated + large_pool.allocated,
                freed: small_pool.freed + large_pool.freed,
            },
            small_pool,
            large_pool,
        }
    }

    pub(super) fn show(&self) -> Stats {
        Stats {
            allocation: self.stat(Counter::Allocation),
            segment: self.stat(Counter::Segment),
            active: self.stat(Counter::Active),
            inactive_split: self.stat(Counter::InactiveSplit),
            allocated_bytes: self.stat(Counter::AllocatedBytes),
            reserved_bytes: self.stat(Counter::ReservedBytes),
            active_bytes: self.stat(Counter::ActiveBytes),
            inactive_split_bytes: self.stat(Counter::InactiveSplitBytes),
            requested_bytes: self.stat(Counter::RequestedBytes),
            reserved_bytes_by_private_pools: self.by_private_pool.clone(),
            oversize_allocations: self.rest.oversize_allocations,
            oversize_segments: self.rest.oversize_segments,
            num_alloc_retries: self.rest.alloc_retries,
            num_ooms: self.rest.ooms,
            num_sync_all_streams: self.rest.sync_all_streams,
            num_device_alloc: self.rest.device_alloc,
            num_device_free: self.rest.device_free,
            num_oom_rejections: self.rest.oom_rejections,
            max_split_size: self.rest.max_split_size,
        }
    }
}
