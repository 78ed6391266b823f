// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tonnage allocator against a model that knows nothing but ranges: after
//! every step the structures agree with each other, with the device and with the
//! model, and a request is refused only where no allocator could serve it.
#![expect(clippy::unwrap_used, reason = "a call that fails fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tonnage_alloc::tonnage::{
    Allocator, AllocatorPlan, Event, EventKind, Observer, PlannedBlock, Range, SearchStep,
    Settings, Statistics,
};
use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{
    DeviceAddr, GRANULARITY, Policy, PolicyError, Request, SimConfig, SimDevice, StreamId, Tag,
};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 64 * MIB;

type Observed = Allocator<SimDevice, Books>;

fn allocator(settings: Settings) -> Observed {
    let device = SimDevice::new(SimConfig::with_total(TOTAL));
    Allocator::observed(device, settings, None, Books::default())
}

fn planned_allocator(plan: &AllocatorPlan) -> Observed {
    let device = SimDevice::new(SimConfig::with_total(TOTAL));
    Allocator::observed(device, Settings::default(), Some(plan), Books::default())
}

/// The state that follows from the events alone.
#[derive(Clone, Debug, Default)]
struct Books {
    /// Bytes of live blocks as requested, by address; blocks whose free waits count.
    live: BTreeMap<u64, u64>,
    waiting: BTreeSet<u64>,
    /// Pages with memory, by address.
    mapped: BTreeSet<u64>,
    paused: BTreeSet<u64>,
    moved: u64,
    refused: u64,
    search_steps: Vec<SearchStep>,
}

impl Observer for Books {
    fn observe(&mut self, event: Event) {
        let Event { addr, bytes, .. } = event;
        let pages = (addr.0..addr.0 + bytes).step_by(GRANULARITY as usize);
        match event.kind {
            EventKind::Alloc => assert_eq!(self.live.insert(addr.0, bytes), None),
            EventKind::Free => assert_eq!(self.live.remove(&addr.0), Some(bytes)),
            EventKind::FreeRequested => assert!(self.waiting.insert(addr.0)),
            EventKind::FreeCompleted => {
                assert!(self.waiting.remove(&addr.0), "no call requested that");
                assert_eq!(self.live.remove(&addr.0), Some(bytes));
            }
            EventKind::Map => {
                for page in pages {
                    assert!(self.mapped.insert(page), "mapped twice");
                }
            }
            EventKind::Unmap => {
                for page in pages {
                    let was_mapped = self.mapped.remove(&page);
                    assert!(was_mapped ^ self.paused.remove(&page), "nothing was there");
                }
            }
            EventKind::Pause => {
                for page in pages {
                    assert!(self.mapped.remove(&page) && self.paused.insert(page));
                }
            }
            EventKind::Resume => {
                for page in pages {
                    assert!(self.paused.remove(&page) && self.mapped.insert(page));
                }
            }
            EventKind::Move => self.moved += bytes / GRANULARITY,
            EventKind::Search(step) => self.search_steps.push(step),
            EventKind::Refused => self.refused += 1,
            other => panic!("{other:?}"),
        }
    }
}

impl Books {
    fn compare(&self, statistics: &Statistics) {
        assert_eq!(self.live.values().sum::<u64>(), statistics.requested.now);
        assert_eq!(self.live.len() as u64, statistics.blocks);
        assert_eq!(self.waiting.len() as u64, statistics.pending);
        let mapped = self.mapped.len() as u64 * GRANULARITY;
        assert_eq!(mapped, statistics.reserved.now);
        assert_eq!(self.paused.len() as u64 * GRANULARITY, statistics.paused);
        let counts = (statistics.pages_moved, statistics.refused);
        assert_eq!((self.moved, self.refused), counts);
        for (addr, bytes) in &self.live {
            let first = addr - addr % GRANULARITY;
            let mut pages = (first..addr + bytes).step_by(GRANULARITY as usize);
            let known = |page| self.mapped.contains(&page) || self.paused.contains(&page);
            assert!(pages.all(known));
        }
    }
}

fn ask(bytes: u64) -> Request {
    Request::new(bytes, StreamId(0))
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, u64),
    AllocTagged(u64, u16),
    Pause(u16),
    Resume(u16),
    Free(usize),
    FreeLater(usize, u64),
    Process,
    EmptyCache,
    Begin,
}

/// Sizes that occur in plans.
const PLANNED: [u64; 6] = [512, 40_448, MIB, 2 * MIB, 5 * MIB + 512, 18 * MIB];

/// Places at random, most of which cannot be granted together.
fn plans() -> impl Strategy<Value = AllocatorPlan> {
    let size = prop::sample::select(PLANNED.as_slice());
    let places = (
        size,
        0..3_u16,
        prop::option::weighted(0.9, 0..(70 * MIB / 512)),
    );
    let places = places.prop_map(|(size, lane, offset)| match offset {
        Some(offset) => PlannedBlock::new(size, lane, offset * 512),
        None => PlannedBlock::anywhere(size, lane),
    });
    let part = prop::collection::vec(places, 0..40);
    let steps = prop::collection::vec(part.clone(), 0..4);
    (part, steps).prop_map(|(once, steps)| AllocatorPlan::new(once, steps).unwrap())
}

/// Steps whose requests may be planned ones.
fn planned_steps() -> impl Strategy<Value = Vec<Step>> {
    steps().prop_map(|steps| {
        let planned = |(number, step)| match step {
            Step::Alloc(bytes, stream) if number % 4 > 0 => {
                Step::Alloc(PLANNED[(bytes % 6) as usize], stream)
            }
            Step::Process => Step::Begin,
            step => step,
        };
        steps.into_iter().enumerate().map(planned).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![
        3 => 1..4096_u64,
        3 => 1..(3 * MIB),
        2 => 1..(20 * MIB),
        1 => Just(GRANULARITY),
        1 => Just(TOTAL / 2),
    ];
    let step = prop_oneof![
        10 => (size, 0..3_u64).prop_map(|(size, stream)| Step::Alloc(size, stream)),
        7 => any::<usize>().prop_map(Step::Free),
        2 => (any::<usize>(), 0..3_u64).prop_map(|(which, stream)| Step::FreeLater(which, stream)),
        1 => Just(Step::Process),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 1..200)
}

/// Steps in which some blocks are paused now and then.
fn pausing_steps() -> impl Strategy<Value = Vec<Step>> {
    steps().prop_map(|steps| {
        let tagged = |(number, step)| match (number % 3, step) {
            (0 | 1, Step::Alloc(bytes, stream)) => Step::AllocTagged(bytes, stream as u16),
            (_, Step::Process) => Step::Pause(1 + (number % 2) as u16),
            (_, Step::EmptyCache) => Step::Resume(1 + (number % 2) as u16),
            (_, step) => step,
        };
        steps.into_iter().enumerate().map(tagged).collect()
    })
}

/// Live blocks as ranges, and nothing else.
#[derive(Default)]
struct Model {
    /// By address: bytes of the block and requested bytes.
    live: BTreeMap<u64, (u64, u64)>,
    tags: BTreeMap<u64, u16>,
}

impl Model {
    fn add(&mut self, addr: u64, size: u64, requested: u64) {
        let below = self.live.range(..addr + size).next_back();
        let overlaps = below.is_some_and(|(&at, &(size, _))| at + size > addr);
        assert!(!overlaps, "{addr:#x} overlaps {below:x?}");
        self.live.insert(addr, (size, requested));
    }

    fn pick(&mut self, which: usize) -> Option<u64> {
        let place = which.checked_rem(self.live.len())?;
        let addr = *self.live.keys().nth(place)?;
        self.live.remove(&addr);
        self.tags.remove(&addr);
        Some(addr)
    }

    /// Pages of which every byte is in live blocks of a tag.
    fn pages_of(&self, tag: u16) -> u64 {
        let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
        for (&addr, &(size, _)) in &self.live {
            if self.tags.get(&addr) != Some(&tag) {
                continue;
            }
            for page in addr / GRANULARITY..(addr + size).div_ceil(GRANULARITY) {
                let (start, end) = (page * GRANULARITY, (page + 1) * GRANULARITY);
                *covered.entry(page).or_default() += end.min(addr + size) - start.max(addr);
            }
        }
        covered
            .values()
            .filter(|&&bytes| bytes == GRANULARITY)
            .count() as u64
    }

    /// Pages that a live block lies on; the first address is a multiple of a page.
    fn pages(&self) -> u64 {
        let pages = self.live.iter().flat_map(|(&addr, &(size, _))| {
            addr / GRANULARITY..(addr + size).div_ceil(GRANULARITY)
        });
        pages.collect::<BTreeSet<u64>>().len() as u64
    }
}

fn compare(allocator: &Observed, model: &Model) {
    assert_eq!(allocator.check(), Ok(()));
    assert_eq!(allocator.device().check(), Ok(()));
    let statistics = allocator.statistics();
    allocator.observer().compare(&statistics);
    assert_eq!(statistics.reserved.now, allocator.device().charged());
    assert_eq!(statistics.reserved.now, allocator.reserved());
    let (mut size, mut requested) = (0, 0);
    for &(bytes, asked) in model.live.values() {
        (size, requested) = (size + bytes, requested + asked);
    }
    // A simulated stream has always done its work, so nothing is pending after a request.
    if statistics.pending == 0 {
        assert_eq!(statistics.allocated.now, size);
        assert_eq!(statistics.requested.now, requested);
        assert_eq!(statistics.blocks, model.live.len() as u64);
    }
}

fn within(inner: &Range, outer: &Range) -> bool {
    inner.addr >= outer.addr && inner.addr.0 + inner.bytes <= outer.addr.0 + outer.bytes
}

fn run(steps: Vec<Step>, settings: Settings) {
    let limit = settings.limit.unwrap_or(TOTAL).min(TOTAL) / GRANULARITY;
    run_with(steps, allocator(settings), limit);
}

fn run_with(steps: Vec<Step>, mut allocator: Observed, limit: u64) {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Alloc(bytes, stream) => {
                match allocator.alloc(Request::new(bytes, StreamId(stream))) {
                    Ok(addr) => {
                        let size = allocator.size_of(addr).unwrap();
                        assert_eq!(size, bytes.next_multiple_of(512));
                        model.add(addr.0, size, bytes);
                    }
                    Err(PolicyError::OutOfMemory { .. }) => {
                        let paused = allocator.statistics().paused / GRANULARITY;
                        let needed = model.pages() - paused + bytes.div_ceil(GRANULARITY);
                        assert!(
                            needed > limit,
                            "{bytes} bytes refused, {needed} of {limit} pages"
                        );
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::AllocTagged(bytes, tag) => {
                if let Ok(addr) = allocator.alloc(ask(bytes).tagged(Tag(tag))) {
                    model.add(addr.0, allocator.size_of(addr).unwrap(), bytes);
                    model.tags.insert(addr.0, tag);
                }
            }
            Step::Pause(tag) => {
                let before = allocator.statistics();
                let left = allocator
                    .paused(Tag(tag))
                    .iter()
                    .map(|range| range.bytes)
                    .sum::<u64>();
                let given = allocator.pause(Tag(tag)).unwrap();
                let after = allocator.statistics();
                assert_eq!(after.reserved.now, before.reserved.now - given);
                assert_eq!(after.paused, before.paused + given);
                // All that can be given back is; what was paused before may have been freed in part.
                let covered = model.pages_of(tag) * GRANULARITY;
                assert!(
                    given <= covered && covered <= given + left,
                    "{given} {left} {covered}"
                );
                assert_eq!(allocator.pausable(Tag(tag)), []);
            }
            Step::Resume(tag) => {
                let before = allocator.statistics();
                let ranges = allocator.paused(Tag(tag));
                let needed: u64 = ranges.iter().map(|range| range.bytes).sum();
                match allocator.resume(Tag(tag)) {
                    Ok(resumed) => {
                        let (paused, left) =
                            (allocator.statistics().paused, before.paused - needed);
                        // A freed block that was waited for is not restored, whatever its tag.
                        assert!(paused <= left, "{paused} of {left}");
                        if before.pending == 0 {
                            assert_eq!((resumed.as_slice(), paused), (ranges.as_slice(), left));
                        }
                        let had =
                            |resumed: &Range| ranges.iter().any(|range| within(resumed, range));
                        assert!(resumed.iter().all(had), "{resumed:?} {ranges:?}");
                        assert_eq!(allocator.paused(Tag(tag)), []);
                    }
                    Err(PolicyError::OutOfMemory { requested, free }) => {
                        let still = allocator.paused(Tag(tag));
                        let bytes: u64 = still.iter().map(|range| range.bytes).sum();
                        assert_eq!(requested, bytes);
                        assert!(free < requested, "{free} bytes are enough for {requested}");
                        if before.pending == 0 {
                            assert_eq!(still, ranges);
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Free(which) => {
                if let Some(addr) = model.pick(which) {
                    allocator.free(DeviceAddr(addr)).unwrap();
                }
            }
            Step::FreeLater(which, stream) => {
                if let Some(addr) = model.pick(which) {
                    let addr = DeviceAddr(addr);
                    allocator.record_stream(addr, StreamId(stream)).unwrap();
                    allocator.free(addr).unwrap();
                    assert_eq!(allocator.size_of(addr), None);
                }
            }
            Step::Process => allocator.process_events().unwrap(),
            Step::Begin => allocator.begin_step(),
            Step::EmptyCache => {
                allocator.empty_cache(PoolId::DEFAULT).unwrap();
                let paused = allocator.statistics().paused;
                assert_eq!(allocator.reserved(), model.pages() * GRANULARITY - paused);
            }
        }
        assert!(allocator.reserved() <= limit * GRANULARITY);
        compare(&allocator, &model);
    }
    while let Some(addr) = model.pick(0) {
        allocator.free(DeviceAddr(addr)).unwrap();
    }
    allocator.close().unwrap();
    assert_eq!(allocator.device().charged(), 0);
    assert_eq!(allocator.device().live_events(), 0);
    assert_eq!(allocator.reserved(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn it_agrees_with_the_model_and_refuses_nothing_that_fits(steps in steps()) {
        run(steps, Settings::default());
    }

    #[test]
    fn it_agrees_with_the_model_when_pages_move_only_where_they_must(steps in steps()) {
        run(steps, Settings::default().with_slack(1_000_000));
    }

    #[test]
    fn no_plan_makes_it_unsafe(steps in planned_steps(), plan in plans()) {
        run_with(steps, planned_allocator(&plan), TOTAL / GRANULARITY);
    }

    #[test]
    fn what_is_paused_keeps_its_addresses_and_gives_its_memory(steps in pausing_steps()) {
        run(steps, Settings::default());
    }

    #[test]
    fn what_is_paused_agrees_with_a_plan(steps in pausing_steps(), plan in plans()) {
        run_with(steps, planned_allocator(&plan), TOTAL / GRANULARITY);
    }

    #[test]
    fn it_keeps_to_its_limit(steps in steps()) {
        run(steps, Settings::default().with_limit(TOTAL / 2));
    }
}

#[test]
fn what_is_freed_while_it_is_paused_and_waited_for_gets_no_memory() {
    let mut allocator = allocator(Settings::default());
    let kept = allocator.alloc(ask(GRANULARITY).tagged(Tag(1))).unwrap();
    let freed = allocator.alloc(ask(GRANULARITY).tagged(Tag(1))).unwrap();
    assert_eq!(allocator.pause(Tag(1)), Ok(2 * GRANULARITY));
    allocator.record_stream(freed, StreamId(1)).unwrap();
    allocator.free(freed).unwrap();
    assert_eq!(allocator.statistics().pending, 1);
    let resumed = allocator.resume(Tag(1)).unwrap();
    assert_eq!(resumed.len(), 1, "{resumed:?}");
    assert_eq!((resumed[0].addr, resumed[0].bytes), (kept, GRANULARITY));
    assert_eq!(allocator.reserved(), GRANULARITY);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn the_tightest_block_is_used_and_neighbours_are_joined() {
    let mut allocator = allocator(Settings::default());
    let sizes = [3 * MIB, 512, MIB, 512, 2 * MIB, 512];
    let blocks = sizes.map(|bytes| allocator.alloc(ask(bytes)).unwrap());
    for place in [0, 2, 4] {
        allocator.free(blocks[place]).unwrap();
    }
    assert_eq!(allocator.alloc(ask(MIB)), Ok(blocks[2]), "the tightest");
    // The rest of the last page is a little smaller than the block of 2 MiB.
    let rest = blocks[5].offset(512);
    assert_eq!(allocator.alloc(ask(MIB + 512)), Ok(rest));
    assert_eq!(allocator.alloc(ask(2 * MIB)), Ok(blocks[4]));
    allocator.free(blocks[1]).unwrap();
    allocator.free(blocks[2]).unwrap();
    // The first three are one block now.
    assert_eq!(allocator.alloc(ask(4 * MIB + 512)), Ok(blocks[0]));
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn a_block_lies_where_it_leaves_whole_pages() {
    for sizes in [[3, 5, 2], [4, 5, 1]] {
        let mut allocator = allocator(Settings::default());
        let blocks = sizes.map(|size| allocator.alloc(ask(size * MIB)).unwrap());
        allocator.free(blocks[1]).unwrap();
        allocator.alloc(ask(MIB)).unwrap();
        // Two pages of the 5 MiB are whole, and the third is in use by a neighbour anyway.
        allocator.empty_cache(PoolId::DEFAULT).unwrap();
        let reserved = (10 - 2 * 2) * MIB;
        assert_eq!(allocator.statistics().reserved.now, reserved, "{sizes:?}");
    }
}

#[test]
fn before_memory_grows_small_blocks_beside_gaps_are_looked_at() {
    let mut allocator = allocator(Settings::default());
    let mut pieces = |size| allocator.alloc(ask(size)).unwrap();
    // Larger free blocks with nothing free around them, more than a quick look sees.
    let larger: Vec<_> = (0..17)
        .map(|_| (pieces(3 * MIB / 2), pieces(MIB / 2)).0)
        .collect();
    let [gap, _used, small] = [4 * MIB, MIB, MIB].map(pieces);
    allocator.free(gap).unwrap();
    allocator.empty_cache(PoolId::DEFAULT).unwrap();
    for block in larger.into_iter().chain([small]) {
        allocator.free(block).unwrap();
    }
    let limit = allocator.statistics().reserved.now + 2 * MIB;
    allocator.set_limit(Some(limit));
    // With the free mebibyte it takes one page, in the gap of the same size two.
    allocator.alloc(ask(3 * MIB)).unwrap();
    assert_eq!(allocator.statistics().reserved.now, limit);
    allocator.check().unwrap();
}

#[test]
fn a_program_that_repeats_itself_calls_the_device_no_more() {
    let mut allocator = allocator(Settings::default());
    let mut iteration = || {
        let blocks = [5 * MIB, 700, 3 * MIB, 9 * MIB, 40_000];
        let blocks = blocks.map(|bytes| allocator.alloc(ask(bytes)).unwrap());
        for block in blocks {
            allocator.free(block).unwrap();
        }
        let statistics = allocator.statistics();
        (statistics.misses, statistics.reserved.peak, blocks)
    };
    let first = iteration();
    let second = iteration();
    assert_eq!(iteration(), second);
    assert_eq!(first.1, second.1);
}

#[test]
fn memory_of_a_graph_stays_with_it_until_it_is_released() {
    let mut allocator = allocator(Settings::default());
    let graph = PoolId(1, 0);
    let bytes = 40 * MIB;
    let block = allocator.alloc(ask(bytes).in_pool(graph)).unwrap();
    allocator.free(block).unwrap();
    let refused = allocator.alloc(ask(bytes));
    assert!(
        matches!(refused, Err(PolicyError::OutOfMemory { .. })),
        "{refused:?}"
    );
    assert_eq!(allocator.alloc(ask(bytes).in_pool(graph)), Ok(block));
    allocator.free(block).unwrap();
    allocator.empty_cache(graph).unwrap();
    assert_eq!(
        allocator.reserved(),
        bytes,
        "a pool in use keeps its memory"
    );
    allocator.release_pool(graph).unwrap();
    assert!(allocator.alloc(ask(bytes)).is_ok());
    assert_eq!(allocator.reserved(), bytes);
    assert_eq!(allocator.check(), Ok(()));
    let twice = allocator.release_pool(graph);
    assert!(matches!(twice, Err(PolicyError::Refused(_))), "{twice:?}");
}

#[test]
fn frees_of_one_stream_need_no_event() {
    let mut allocator = allocator(Settings::default());
    let blocks: Vec<_> = (0..20)
        .map(|_| allocator.alloc(ask(MIB)).unwrap())
        .collect();
    let misses = allocator.statistics().misses;
    let events = allocator.statistics().events_recorded;
    for &block in &blocks {
        allocator.free(block).unwrap();
    }
    for _ in &blocks {
        allocator.alloc(ask(MIB)).unwrap();
    }
    let after = allocator.statistics();
    assert_eq!((after.misses, after.events_recorded), (misses, events));
}

#[test]
fn pages_are_taken_from_below_the_window_in_the_same_block() {
    let mut allocator = allocator(Settings::default());
    // The device is full: 20 MiB that are freed, and pages with a small block on each.
    let low = allocator.alloc(ask(20 * MIB)).unwrap();
    let mut small = Vec::new();
    for _ in 0..22 {
        small.push(allocator.alloc(ask(2 * MIB - 512)).unwrap());
        allocator.alloc(ask(512)).unwrap();
    }
    allocator.free(low).unwrap();
    for block in small {
        allocator.free(block).unwrap();
    }
    for bytes in [19 * MIB, 7 * MIB, 3 * MIB] {
        let block = allocator.alloc(ask(bytes)).unwrap();
        assert_eq!(allocator.check(), Ok(()));
        allocator.free(block).unwrap();
    }
}

/// A program of one weight, and steps whose output lives until the next step overwrites it.
fn planned() -> AllocatorPlan {
    let weight = PlannedBlock::new(4 * MIB, 0, 0);
    let scratch = PlannedBlock::new(6 * MIB, 0, 4 * MIB);
    let output = |offset| PlannedBlock::new(2 * MIB, 0, offset * MIB);
    let once = vec![weight, output(12), scratch];
    AllocatorPlan::new(
        once,
        vec![vec![output(10), scratch], vec![output(12), scratch]],
    )
    .unwrap()
}

#[test]
fn a_program_as_planned_gets_its_places_and_moves_no_page() {
    let mut allocator = planned_allocator(&planned());
    let weight = allocator.alloc(ask(4 * MIB)).unwrap();
    let mut before = allocator.alloc(ask(2 * MIB)).unwrap();
    for step in 0..10 {
        let scratch = allocator.alloc(ask(6 * MIB)).unwrap();
        assert_eq!(scratch, weight.offset(4 * MIB));
        allocator.free(scratch).unwrap();
        allocator.begin_step();
        let output = allocator.alloc(ask(2 * MIB)).unwrap();
        assert_eq!(output, weight.offset((10 + 2 * (step % 2)) * MIB));
        allocator
            .free(std::mem::replace(&mut before, output))
            .unwrap();
    }
    let statistics = allocator.statistics();
    let followed = statistics.plan.unwrap();
    assert_eq!((followed.hits, followed.steps), (22, 10));
    assert_eq!(followed.divergence, None);
    assert_eq!(statistics.pages_moved, 0);
    assert_eq!(statistics.reserved.peak, 14 * MIB);
}

#[test]
fn one_request_more_does_not_shift_the_others() {
    let mut allocator = planned_allocator(&planned());
    let weight = allocator.alloc(ask(4 * MIB)).unwrap();
    let extra = allocator.alloc(ask(MIB)).unwrap();
    assert!(extra.0 >= weight.0 + 14 * MIB, "not among the places");
    allocator.alloc(ask(2 * MIB)).unwrap();
    assert_eq!(allocator.alloc(ask(6 * MIB)), Ok(weight.offset(4 * MIB)));
    // The same size once more: its place is taken, and it goes elsewhere.
    assert!(allocator.alloc(ask(6 * MIB)).is_ok());
    let followed = allocator.statistics().plan.unwrap();
    assert_eq!(
        (followed.hits, followed.unknown, followed.occupied),
        (3, 1, 1)
    );
    let first = followed.divergence.unwrap();
    assert_eq!((first.request, first.step, first.bytes), (2, 0, MIB));
    assert!(!first.occupied);
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn a_plan_for_another_device_is_not_followed() {
    let plan = AllocatorPlan::new(vec![PlannedBlock::new(MIB, 0, 1 << 40)], Vec::new()).unwrap();
    let mut allocator = planned_allocator(&plan);
    assert!(allocator.alloc(ask(MIB)).is_ok());
    assert_eq!(allocator.statistics().plan.unwrap().occupied, 1);
    assert_eq!(allocator.reserved(), 2 * MIB);
}

#[test]
fn every_step_of_the_search_is_told() {
    let mut allocator = allocator(Settings::default());
    let kept = allocator.alloc(ask(TOTAL / 2)).unwrap();
    assert!(allocator.alloc(ask(TOTAL)).is_err());
    let search_steps = std::mem::take(&mut allocator.observer_mut().search_steps);
    let first = [SearchStep::OtherStreams, SearchStep::Pages];
    let all = [
        SearchStep::OtherStreams,
        SearchStep::Pages,
        SearchStep::Wait,
        SearchStep::Device,
    ];
    assert_eq!(search_steps, [&first[..], &all[..]].concat());
    allocator.free(kept).unwrap();
    allocator.alloc(ask(TOTAL / 2)).unwrap();
    assert_eq!(
        allocator.observer().search_steps,
        [],
        "a free block is not a search"
    );
}

#[test]
fn a_request_that_is_far_too_large_takes_nothing_from_others() {
    let device = SimDevice::new(SimConfig::with_total(1 << 30));
    let mut allocator = Allocator::new(device, Settings::default());
    allocator
        .alloc(Request::new(600 << 20, StreamId(0)))
        .unwrap();
    let before = allocator.statistics();
    assert!(
        allocator
            .alloc(Request::new(600 << 20, StreamId(0)))
            .is_err()
    );
    let after = allocator.statistics();
    assert_eq!(
        after.pages_created, before.pages_created,
        "pages were obtained in vain"
    );
    assert_eq!(after.refused, 1);
}
