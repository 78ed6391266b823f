// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of one process on one device.

use std::collections::BTreeMap;

use super::driver::{Claim, Driver, Reservations};
use super::moment::{Figures, Level};
use super::{
    ABSURD, AfterOom, Block, BlockState, Breakdown, Change, FinalSegment, Moment, Peak, Refusal,
    Rounding, Segment,
};
use crate::{Event, Kind, StackTable};

/// The size PyTorch's segments of small blocks have; no segment of large blocks is that small.
const SMALL_SEGMENT: u64 = 2 << 20;

/// The memory of one process on one device, row by row.
#[derive(Clone, Debug)]
pub struct DeviceAccount<T = ()> {
    rounding: Rounding,
    blocks: BTreeMap<u64, Block<T>>,
    segments: BTreeMap<u64, Segment>,
    final_state: Vec<FinalSegment>,
    /// Sums of what the rows have shown to be there.
    allocated: u64,
    reserved: u64,
    /// Changes since the first row.
    allocated_level: Level,
    reserved_level: Level,
    /// Bytes there before the first row, by `initial_*` rows and by frees of what no row had handed out.
    initial_allocated: u64,
    initial_reserved: Option<u64>,
    unseen_allocated: u64,
    unseen_blocks: u64,
    sizes_unknown: u64,
    block_rows: u64,
    segment_rows: u64,
    exceeded_reserved: bool,
    context: u64,
    charged: u64,
    is_told: bool,
    /// The bytes of other processes after the last row that has them.
    others: Option<u64>,
    driver: Driver,
    driver_rows: u64,
    at_peak_used: Figures,
    at_peak_in_use: Figures,
    at_peak_allocated: Figures,
    at_peak_reserved: Figures,
    ooms: u64,
    oom: Option<(Refusal, Figures)>,
    after_oom: AfterOom,
    refusals: u64,
    refusal: Option<(Refusal, Figures)>,
    rows: u64,
}

impl<T: Copy + Default> DeviceAccount<T> {
    pub(super) fn new(rounding: Rounding) -> Self {
        Self {
            rounding,
            blocks: BTreeMap::new(),
            segments: BTreeMap::new(),
            final_state: Vec::new(),
            allocated: 0,
            reserved: 0,
            allocated_level: Level::default(),
            reserved_level: Level::default(),
            initial_allocated: 0,
            initial_reserved: None,
            unseen_allocated: 0,
            unseen_blocks: 0,
            sizes_unknown: 0,
            block_rows: 0,
            segment_rows: 0,
            exceeded_reserved: false,
            context: 0,
            charged: 0,
            is_told: false,
            others: None,
            driver: Driver::default(),
            driver_rows: 0,
            at_peak_used: Figures::default(),
            at_peak_in_use: Figures::default(),
            at_peak_allocated: Figures::default(),
            at_peak_reserved: Figures::default(),
            ooms: 0,
            oom: None,
            after_oom: AfterOom::default(),
            refusals: 0,
            refusal: None,
            rows: 0,
        }
    }

    /// Rows about this process and device.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The blocks that the program has, and those it freed and that are not free yet, by address.
    pub fn blocks(&self) -> impl Iterator<Item = &Block<T>> {
        self.blocks.values()
    }

    /// The block that begins at an address.
    pub fn block(&self, address: u64) -> Option<&Block<T>> {
        self.blocks.get(&address)
    }

    /// The blocks that begin in a range, by address.
    pub fn blocks_in(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = &Block<T>> {
        // An end before the start is not a range for a map.
        let range = range.start..range.end.max(range.start);
        self.blocks.range(range).map(|(_, block)| block)
    }

    /// Notes something down beside a live block.
    pub fn tag(&mut self, address: u64, tag: T) {
        if let Some(block) = self.blocks.get_mut(&address) {
            block.tag = tag;
        }
    }

    /// The segments PyTorch holds, by address: as its rows obtained them, minus what it gave back.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    /// The segment that begins at an address.
    pub fn segment(&self, address: u64) -> Option<&Segment> {
        self.segments.get(&address)
    }

    /// Whether a segment that is held begins in the range of this one.
    pub fn holds_any(&self, segment: &Segment) -> bool {
        let range = segment.address..segment.end();
        self.segments.range(range).next().is_some()
    }

    /// The segments with the mapped parts of expandable segments joined, as PyTorch shows them.
    pub fn merged_segments(&self) -> Vec<Segment> {
        let mut merged: Vec<Segment> = Vec::with_capacity(self.segments.len());
        for segment in self.segments.values() {
            match merged.last_mut() {
                Some(last) if last.continues_in(segment) => last.bytes += segment.bytes,
                _ => merged.push(*segment),
            }
        }
        merged
    }

    /// The state after the last row, if the recording has one.
    pub fn final_state(&self) -> &[FinalSegment] {
        &self.final_state
    }

    /// Bytes of blocks the program has, as far as rows have shown them.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Bytes of segments PyTorch holds, as far as its rows have shown them.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of contexts.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Bytes the device charges to the process after the last row of the driver, the context included.
    ///
    /// By the recording's own word if [`DeviceAccount::is_charge_told`], else the sum of what was requested.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether the recording reports what the device charged.
    pub fn is_charge_told(&self) -> bool {
        self.is_told
    }

    /// Bytes the device charges to all processes after the last row of the driver; `None` if no row has them.
    pub fn in_use(&self) -> Option<u64> {
        self.others
            .map(|others| others.saturating_add(self.charged))
    }

    /// Bytes of managed memory.
    pub fn managed(&self) -> u64 {
        self.driver.managed()
    }

    /// Bytes that others than PyTorch's allocator have from the driver now.
    pub fn outside(&self) -> u64 {
        self.breakdown().other
    }

    /// The memory on the device now.
    pub fn breakdown(&self) -> Breakdown {
        self.figures(None, 0, false).breakdown()
    }

    /// How often PyTorch ran out of memory.
    pub fn ooms(&self) -> u64 {
        self.ooms
    }

    /// The last time it did.
    pub fn last_oom(&self) -> Option<Refusal> {
        self.oom.map(with_moment)
    }

    /// The most there was after the last time it did and something was requested again, or what is there now; `None` if
    /// it never did.
    pub fn after_oom(&self) -> Option<AfterOom> {
        let now = AfterOom {
            in_use: self.in_use().unwrap_or(self.charged),
            allocated: self.allocated,
        };
        let after = self.after_oom;
        self.oom.map(|_| AfterOom {
            in_use: after.in_use.max(now.in_use),
            allocated: after.allocated.max(now.allocated),
        })
    }

    /// How often the driver refused.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// The last time it did.
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.refusal.map(with_moment)
    }

    /// The moment of the largest use; of equal ones the first with the most in blocks.
    pub fn at_peak_used(&self) -> Moment {
        self.at_peak_used.moment()
    }

    /// The moment at which all processes together used most of the device, as this one's rows show it; `None` if
    /// the recording does not have the use of other processes.
    pub fn at_peak_in_use(&self) -> Option<Moment> {
        self.others.map(|_| self.at_peak_in_use.moment())
    }

    /// The moment of the largest sum of blocks, as rows show it.
    pub fn at_peak_allocated(&self) -> Moment {
        self.at_peak_allocated.moment()
    }

    /// The moment of the largest sum of segments, as rows show it.
    pub fn at_peak_reserved(&self) -> Moment {
        self.at_peak_reserved.moment()
    }

    /// The largest sum of blocks, with those from before the first row. Complete after the last row.
    pub fn peak_allocated(&self) -> Peak {
        peak(self.start_allocated(), &self.allocated_level)
    }

    /// The largest sum of segments above `start`, what was held before the first row.
    pub fn peak_reserved(&self, start: u64) -> Peak {
        peak(start, &self.reserved_level)
    }

    /// Bytes in blocks before the first row, as far as all rows show.
    pub fn start_allocated(&self) -> u64 {
        let untouched = self.untouched();
        let untouched = untouched.fold(0_u64, |sum, block| sum.saturating_add(block.bytes));
        self.initial_allocated
            .saturating_add(self.unseen_allocated)
            .saturating_add(untouched)
            .min(ABSURD)
    }

    /// Blocks of the final state that are there and that no row handed out: they were there from the start.
    pub fn untouched(&self) -> impl Iterator<Item = &Block> {
        self.final_blocks()
            .filter(|block| !self.is_allocated(block.address))
    }

    /// Blocks of the final state that the program has.
    pub fn final_blocks(&self) -> impl Iterator<Item = &Block> {
        let blocks = self.final_state.iter().flat_map(|entry| &entry.blocks);
        blocks.filter(|block| block.state == BlockState::Allocated)
    }

    fn is_allocated(&self, address: u64) -> bool {
        let block = self.blocks.get(&address);
        block.is_some_and(|block| block.state == BlockState::Allocated)
    }

    /// Bytes of the segments before the first row, if the recording has that state.
    pub fn initial_reserved(&self) -> Option<u64> {
        self.initial_reserved
    }

    /// Bytes of the segments after the last row, if the recording has that state.
    pub fn final_reserved(&self) -> Option<u64> {
        let sizes = self.final_state.iter().map(|entry| entry.segment.bytes);
        (!self.final_state.is_empty()).then(|| sizes.fold(0, u64::saturating_add).min(ABSURD))
    }

    /// Bytes of blocks handed out by rows minus bytes freed; negative if they were there before the first row.
    pub fn allocated_change(&self) -> i128 {
        self.allocated_level.now
    }

    /// Bytes of segments obtained by rows minus bytes given back; negative if they were there before the first row.
    pub fn reserved_change(&self) -> i128 {
        self.reserved_level.now
    }

    /// Blocks that were freed without a row having handed them out.
    pub fn unseen_blocks(&self) -> u64 {
        self.unseen_blocks
    }

    /// Rows of blocks of which only the request is known.
    pub fn sizes_unknown(&self) -> u64 {
        self.sizes_unknown
    }

    /// Rows about blocks that the program has, final states included.
    pub fn block_rows(&self) -> u64 {
        self.block_rows
    }

    /// Rows about segments, states excluded.
    pub fn segment_rows(&self) -> u64 {
        self.segment_rows
    }

    /// Rows about what the driver gave or took, refusals included.
    pub fn driver_rows(&self) -> u64 {
        self.driver_rows
    }

    /// Whether blocks were once more than segments: some segment has no row.
    pub fn exceeded_reserved(&self) -> bool {
        self.exceeded_reserved
    }

    pub(super) fn apply(
        &mut self,
        event: &Event,
        row: u64,
        stacks: &StackTable,
        reservations: &mut Reservations,
    ) -> Change<T> {
        self.rows += 1;
        match event.kind {
            Kind::Alloc => self.allocate(event, row),
            Kind::FreeRequested => self.free(event),
            Kind::FreeCompleted => self.complete(event),
            Kind::SegmentAlloc | Kind::SegmentMap => self.obtain(event, row, reservations),
            Kind::SegmentFree | Kind::SegmentUnmap => self.give_back(event),
            Kind::InitialSegment | Kind::InitialBlock => self.initial(event, stacks),
            Kind::FinalSegment | Kind::FinalBlock => self.finally(event, stacks),
            Kind::Oom => {
                self.ooms += 1;
                self.oom = Some(self.refused(event, row, false));
                self.after_oom = AfterOom::default();
                Change::OutOfMemory
            }
            _ => self.driver_row(event, row, reservations),
        }
    }

    // Blocks.

    /// Bytes of the block behind a row, bounded by `sum` of what they are added to; and whether they are recorded.
    fn taken(&mut self, event: &Event, sum: u64) -> (u64, bool) {
        let (bytes, is_known) = self.rounding.taken(event.size, event.requested);
        self.sizes_unknown += u64::from(!is_known);
        (bytes.min(ABSURD - sum), is_known)
    }

    fn allocate(&mut self, event: &Event, row: u64) -> Change<T> {
        self.block_rows += 1;
        if let Some((oom, _)) = &mut self.oom {
            oom.is_last = false;
        }
        let replaced = self.blocks.remove(&event.address);
        if let Some(old) = replaced.filter(|old| old.state == BlockState::Allocated) {
            self.allocated -= old.bytes;
            self.allocated_level.subtract(old.bytes);
        }
        let (bytes, size_known) = self.taken(event, self.allocated);
        let block = Block {
            bytes,
            size_known,
            born: Some(row),
            ..block_of(event, BlockState::Allocated)
        };
        self.blocks.insert(event.address, block);
        self.allocated += bytes;
        let is_peak = self.allocated_level.add(bytes, row);
        self.exceeded_reserved |= self.allocated_level.now > self.reserved_level.now;
        self.driver.block(event.address);
        let figures = self.figures(event.time, row, false);
        if is_peak {
            self.at_peak_allocated = figures;
        }
        self.compare(figures, true);
        Change::Allocated { block, replaced }
    }

    fn free(&mut self, event: &Event) -> Change<T> {
        self.block_rows += 1;
        // A row without its request is of a process that was killed: no row shows when the free completed.
        let is_pending = event.requested > 0 || event.size == 0;
        let block = match self.blocks.get(&event.address) {
            Some(&block) if block.state != BlockState::Allocated => {
                return Change::Contradicted { block };
            }
            Some(&block) => {
                self.allocated -= block.bytes;
                block
            }
            None => {
                let (bytes, size_known) = self.taken(event, self.unseen_allocated);
                self.unseen_allocated += bytes;
                self.unseen_blocks += 1;
                Block {
                    bytes,
                    size_known,
                    stack: None,
                    ..block_of(event, BlockState::Allocated)
                }
            }
        };
        self.allocated_level.subtract(block.bytes);
        if is_pending {
            let state = BlockState::PendingFree;
            self.blocks.insert(event.address, Block { state, ..block });
        } else {
            self.blocks.remove(&event.address);
        }
        Change::Freed { block, is_pending }
    }

    fn complete(&mut self, event: &Event) -> Change<T> {
        let block = self.blocks.remove(&event.address);
        if let Some(block) = block.filter(|block| block.state == BlockState::Allocated) {
            self.allocated -= block.bytes;
            self.allocated_level.subtract(block.bytes);
        }
        Change::Completed { block }
    }

    // Segments.

    /// Adds a segment to those that are held; their ranges do not overlap.
    fn hold(&mut self, segment: Segment) -> Segment {
        let bytes = segment.bytes.min(ABSURD - self.reserved);
        let segment = Segment { bytes, ..segment };
        self.reserved += bytes;
        self.segments.insert(segment.address, segment);
        segment
    }

    /// Takes a range out of the segments: those that lay in it, whole, and what is left of them.
    fn cut(&mut self, start: u64, end: u64) -> (Vec<Segment>, Vec<Segment>) {
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        while let Some((&address, &segment)) = self.segments.range(..end).next_back() {
            if segment.end() <= start {
                break;
            }
            self.segments.remove(&address);
            self.reserved -= segment.bytes;
            gone.push(segment);
            if segment.end() > end {
                left.push(Segment {
                    address: end,
                    bytes: segment.end() - end,
                    ..segment
                });
            }
            if address < start {
                left.push(Segment {
                    bytes: start - address,
                    ..segment
                });
            }
        }
        for part in &left {
            self.hold(*part);
        }
        gone.reverse();
        left.reverse();
        (gone, left)
    }

    fn obtain(&mut self, event: &Event, row: u64, reservations: &mut Reservations) -> Change<T> {
        self.segment_rows += 1;
        let is_expandable = event.kind == Kind::SegmentMap;
        if is_expandable {
            for claim in self.driver.segment_mapped(event, reservations) {
                self.correct(claim);
            }
        } else if let Some(claim) = self.driver.segment(event) {
            self.correct(claim);
        }
        let end = event.address.saturating_add(event.size);
        let (gone, left) = self.cut(event.address, end);
        let segment = self.hold(Segment {
            requested: 0,
            is_large: event.size != SMALL_SEGMENT,
            is_expandable,
            born: Some(row),
            ..segment_of(event)
        });
        let is_peak = self.reserved_level.add(event.size.min(ABSURD), row);
        let figures = self.figures(event.time, row, false);
        if is_peak {
            self.at_peak_reserved = figures;
        }
        self.compare(figures, true);
        Change::Obtained {
            segment,
            gone,
            left,
        }
    }

    fn give_back(&mut self, event: &Event) -> Change<T> {
        self.segment_rows += 1;
        self.reserved_level.subtract(event.size.min(ABSURD));
        if event.kind == Kind::SegmentUnmap {
            self.driver.segment_unmapped(event);
        } else {
            self.driver.segment_left(event);
        }
        let range = Segment {
            is_large: event.size != SMALL_SEGMENT,
            is_expandable: event.kind == Kind::SegmentUnmap,
            ..segment_of(event)
        };
        let end = event.address.saturating_add(event.size);
        let (gone, left) = self.cut(event.address, end);
        Change::GivenBack { range, gone, left }
    }

    // States.

    fn initial(&mut self, event: &Event, stacks: &StackTable) -> Change<T> {
        let word = event.name.map_or("", |name| stacks.text(name));
        if event.kind == Kind::InitialSegment {
            let end = event.address.saturating_add(event.size);
            let (gone, left) = self.cut(event.address, end);
            let segment = self.hold(Segment {
                is_large: word == "large",
                is_expandable: event.text.is_some(),
                ..segment_of(event)
            });
            let sum = self.initial_reserved.get_or_insert(0);
            *sum = sum.saturating_add(segment.bytes).min(ABSURD);
            return Change::InitialSegment {
                segment,
                gone,
                left,
            };
        }
        let state = BlockState::from_name(word);
        if state == BlockState::Inactive {
            return Change::State;
        }
        let replaced = self.blocks.remove(&event.address);
        if let Some(old) = replaced.filter(|old| old.state == BlockState::Allocated) {
            self.allocated -= old.bytes;
        }
        let (bytes, size_known) = self.taken(event, self.allocated);
        let block = Block {
            bytes,
            size_known,
            ..block_of(event, state)
        };
        if state == BlockState::Allocated {
            self.block_rows += 1;
            self.allocated += bytes;
            self.initial_allocated = self.initial_allocated.saturating_add(bytes).min(ABSURD);
        }
        self.blocks.insert(event.address, block);
        Change::InitialBlock { block, replaced }
    }

    fn finally(&mut self, event: &Event, stacks: &StackTable) -> Change<T> {
        let word = event.name.map_or("", |name| stacks.text(name));
        if event.kind == Kind::FinalSegment {
            let segment = Segment {
                is_large: word == "large",
                is_expandable: event.text.is_some(),
                ..segment_of(event)
            };
            let blocks = Vec::new();
            self.final_state.push(FinalSegment { segment, blocks });
            return Change::State;
        }
        let state = BlockState::from_name(word);
        self.block_rows += u64::from(state == BlockState::Allocated);
        let (bytes, size_known) = self.rounding.taken(event.size, event.requested);
        if let Some(last) = self.final_state.last_mut() {
            last.blocks.push(Block {
                bytes,
                size_known,
                ..block_of(event, state)
            });
        }
        Change::State
    }

    // The driver.

    fn driver_row(
        &mut self,
        event: &Event,
        row: u64,
        reservations: &mut Reservations,
    ) -> Change<T> {
        let (mut more, mut less) = (0, 0);
        match event.kind {
            Kind::DriverContext => {
                self.context = self.context.saturating_add(event.size).min(ABSURD);
                more = event.size;
            }
            Kind::DriverMalloc => {
                self.driver.malloc(event, row);
                more = event.size;
            }
            Kind::DriverFree => less = self.driver.free(event).unwrap_or(event.size),
            Kind::DriverCreate => {
                self.driver.create(event, row, reservations);
                more = event.size;
            }
            Kind::DriverRelease => less = self.driver.release(event).unwrap_or(event.size),
            Kind::DriverMap => {
                if let Some(claim) = self.driver.map(event, reservations) {
                    self.correct(claim);
                }
            }
            Kind::DriverUnmap => self.driver.unmap(event),
            Kind::PoolMalloc => {
                self.driver.pool_malloc(event);
                more = event.size;
            }
            Kind::PoolFree => less = self.driver.pool_free(event).unwrap_or(event.size),
            Kind::ManagedAlloc => self.driver.managed_alloc(event),
            Kind::ManagedFree => self.driver.managed_free(event),
            Kind::PoolTrim | Kind::DriverOom | Kind::Measured => {}
            _ => return Change::Nothing,
        }
        self.driver_rows += 1;
        self.charge(event, more, less);
        let grants = matches!(
            event.kind,
            Kind::DriverMalloc | Kind::DriverCreate | Kind::PoolMalloc | Kind::ManagedAlloc
        );
        if let Some((refusal, _)) = self.refusal.as_mut().filter(|_| grants) {
            refusal.is_last = false;
        }
        let figures = self.figures(event.time, row, true);
        // Between two frees there is still what an out-of-memory error left, which was not requested since.
        let is_asked_for = grants || event.kind == Kind::Measured;
        self.compare(figures, is_asked_for);
        if event.kind == Kind::DriverOom {
            self.refusals += 1;
            self.refusal = Some(self.refused(event, row, true));
            return Change::Refused;
        }
        Change::Charged
    }

    fn charge(&mut self, event: &Event, more: u64, less: u64) {
        self.charged = if let Some(bytes) = event.charged {
            self.is_told = true;
            bytes.min(ABSURD)
        } else {
            let sum = self.charged.saturating_add(more).min(ABSURD);
            sum.saturating_sub(less)
        };
        if let Some(bytes) = event.in_use {
            self.others = Some(bytes.min(ABSURD).saturating_sub(self.charged));
        }
    }

    // Moments.

    /// The figures now. At rows of PyTorch's allocator the driver's rows may be late, see [`Driver::late`].
    fn figures(&self, time: Option<i64>, row: u64, is_driver_row: bool) -> Figures {
        let late = if is_driver_row { 0 } else { self.driver.late() };
        let charged = self.charged.saturating_sub(late);
        let without_context = self.charged.saturating_sub(self.context);
        let torch = self.driver.torch().saturating_sub(late);
        Figures {
            row,
            time,
            allocated: self.allocated,
            reserved: self.reserved,
            torch: torch.saturating_add(self.driver.torch_pools(without_context)),
            context: self.context,
            charged,
            is_told: self.is_told,
            managed: self.driver.managed(),
            others: self.others.unwrap_or(0),
        }
    }

    fn compare(&mut self, now: Figures, is_asked_for: bool) {
        let (used, most) = (now.used(), self.at_peak_used.used());
        let has_more = now.allocated > self.at_peak_used.allocated;
        if used > most || (used == most && has_more) {
            self.at_peak_used = now;
        }
        let in_use = if self.others.is_some() {
            now.in_use()
        } else {
            used
        };
        if is_asked_for {
            let after = &mut self.after_oom;
            after.in_use = after.in_use.max(in_use);
            after.allocated = after.allocated.max(now.allocated);
        }
        if self.others.is_none() {
            return;
        }
        let (used, most) = (now.in_use(), self.at_peak_in_use.in_use());
        let has_more = now.allocated > self.at_peak_in_use.allocated;
        if used > most || (used == most && has_more) {
            self.at_peak_in_use = now;
        }
    }

    fn refused(&self, event: &Event, row: u64, is_driver_row: bool) -> (Refusal, Figures) {
        let figures = self.figures(event.time, row, is_driver_row);
        let refusal = Refusal {
            requested: event.size.min(ABSURD),
            free: event.free.min(ABSURD),
            stack: event.stack,
            stream: event.stream,
            call: event.name.filter(|_| is_driver_row),
            moment: Moment::default(),
            is_last: true,
        };
        (refusal, figures)
    }

    /// Memory turned out to be PyTorch's: it was so at all moments since it was obtained.
    fn correct(&mut self, claim: Claim) {
        let moments = [
            &mut self.at_peak_used,
            &mut self.at_peak_in_use,
            &mut self.at_peak_allocated,
            &mut self.at_peak_reserved,
        ];
        let refusals = [&mut self.oom, &mut self.refusal];
        let refused = refusals.into_iter().flatten().map(|(_, figures)| figures);
        for figures in moments.into_iter().chain(refused) {
            if figures.row >= claim.since {
                figures.torch = figures.torch.saturating_add(claim.bytes).min(ABSURD);
            }
        }
    }
}

fn with_moment((refusal, figures): (Refusal, Figures)) -> Refusal {
    Refusal {
        moment: figures.moment(),
        ..refusal
    }
}

fn peak(start: u64, level: &Level) -> Peak {
    Peak {
        bytes: u64::try_from(i128::from(start) + level.most).unwrap_or(u64::MAX),
        row: level.most_row,
    }
}

fn block_of<T: Default>(event: &Event, state: BlockState) -> Block<T> {
    Block {
        address: event.address,
        bytes: 0,
        size_known: false,
        requested: event.requested,
        stream: event.stream,
        pool: event.pool,
        stack: event.stack,
        born: None,
        state,
        tag: T::default(),
    }
}

fn segment_of(event: &Event) -> Segment {
    Segment {
        address: event.address,
        bytes: event.size,
        requested: event.requested,
        stream: event.stream,
        pool: event.pool,
        stack: event.stack,
        is_large: true,
        is_expandable: false,
        born: None,
    }
}
