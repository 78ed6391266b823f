// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accounts against hand-made rows, and against sums made anew from all rows after each of them.

use proptest::prelude::*;

use super::*;
use crate::Pool;

const MIB: u64 = 1 << 20;

fn row(kind: Kind, address: u64, size: u64) -> Event {
    Event {
        address,
        size,
        ..Event::new(kind)
    }
}

fn handle(kind: Kind, address: u64, size: u64, handle: u64) -> Event {
    Event {
        handle,
        ..row(kind, address, size)
    }
}

/// The driver's row of `event` with the device's report of its charge.
fn add_charge(event: Event, charged: u64, in_use: u64) -> Event {
    Event {
        charged: Some(charged),
        in_use: Some(in_use),
        ..event
    }
}

fn account(events: &[Event]) -> Account {
    let (mut account, stacks) = (Account::new(Rounding::PyTorch), StackTable::new());
    for (event, row) in events.iter().zip(0..) {
        account.apply(event, row, &stacks);
    }
    account
}

fn track(events: &[Event]) -> DeviceAccount {
    account(events).get(0, 0).unwrap().clone()
}

fn parts(breakdown: Breakdown) -> [u64; 5] {
    let Breakdown {
        allocated,
        cached,
        context,
        other,
        used,
        ..
    } = breakdown;
    assert_eq!(allocated + cached + context + other, used);
    [allocated, cached, context, other, used]
}

#[test]
fn memory_of_a_segment_is_pytorchs_from_the_drivers_row_on() {
    let events = [
        row(Kind::DriverContext, 0, 100 * MIB),
        row(Kind::DriverMalloc, MIB, 10 * MIB),
        // Not yet reported by PyTorch here; the peak is already reached.
        row(Kind::DriverMalloc, 64 * MIB, 20 * MIB),
        row(Kind::SegmentAlloc, 64 * MIB, 20 * MIB),
        row(Kind::Alloc, 64 * MIB, 4 * MIB),
    ];
    let at_driver = track(&events[..3]);
    assert_eq!(
        parts(at_driver.breakdown()),
        [0, 0, 100 * MIB, 30 * MIB, 130 * MIB]
    );
    let after = track(&events);
    let want = [4 * MIB, 16 * MIB, 100 * MIB, 10 * MIB, 130 * MIB];
    assert_eq!(parts(after.breakdown()), want);
    // The moment with the most in blocks wins among those with the same use.
    assert_eq!(after.at_peak_used().row, 4);
    assert_eq!(parts(after.at_peak_used().breakdown), want);
    let before_the_block = track(&events[..4]);
    let at_peak = before_the_block.at_peak_used();
    assert_eq!((at_peak.row, at_peak.breakdown.other), (2, 10 * MIB));
}

#[test]
fn a_segment_that_goes_back_is_gone_at_pytorchs_row_and_not_other() {
    let events = [
        row(Kind::DriverMalloc, 64 * MIB, 20 * MIB),
        row(Kind::SegmentAlloc, 64 * MIB, 20 * MIB),
        row(Kind::SegmentFree, 64 * MIB, 20 * MIB),
        row(Kind::DriverMalloc, MIB, 2 * MIB),
        row(Kind::DriverFree, 64 * MIB, 20 * MIB),
    ];
    assert_eq!(parts(track(&events[..3]).breakdown()), [0; 5]);
    // The driver's own row knows better what was there at its moment.
    let peak = track(&events[..4]).at_peak_used();
    assert_eq!(parts(peak.breakdown), [0, 20 * MIB, 0, 2 * MIB, 22 * MIB]);
    assert_eq!(
        parts(track(&events).breakdown()),
        [0, 0, 0, 2 * MIB, 2 * MIB]
    );
}

#[test]
fn half_an_expandable_segment_is_pytorchs() {
    let reserve = row(Kind::DriverReserve, 1 << 40, 1280 * 20 * MIB);
    let create = |number| handle(Kind::DriverCreate, 0, 20 * MIB, number);
    let map = |number: u64| {
        let address = (1 << 40) + (number - 1) * 20 * MIB;
        handle(Kind::DriverMap, address, 20 * MIB, number)
    };
    let refused = row(Kind::DriverOom, 0, 20 * MIB);
    let release = |number| handle(Kind::DriverRelease, 0, 20 * MIB, number);
    // A first segment of which nothing is reported yet.
    let first = [reserve, create(1), create(2), create(3), refused];
    let refusal = track(&first).last_refusal().unwrap();
    assert_eq!(
        parts(refusal.moment.breakdown),
        [0, 60 * MIB, 0, 0, 60 * MIB]
    );
    // PyTorch's own row stands in front of the releases and knows that the pieces are gone.
    let oom = row(Kind::Oom, 0, 60 * MIB);
    let all = [
        reserve,
        create(1),
        create(2),
        refused,
        oom,
        release(1),
        release(2),
    ];
    let failed = track(&all);
    assert_eq!(parts(failed.last_oom().unwrap().moment.breakdown), [0; 5]);
    assert_eq!(failed.at_peak_used().breakdown.cached, 40 * MIB);
    assert_eq!(failed.charged(), 0);
    // One that is mapped and not reported.
    let half = [reserve, create(1), map(1), create(2), map(2)];
    assert_eq!(track(&half).breakdown().cached, 40 * MIB);
    // Another library's: it fills what it reserves.
    let whole = [
        row(Kind::DriverReserve, 1 << 40, 40 * MIB),
        create(1),
        map(1),
    ];
    assert_eq!(track(&whole).breakdown().other, 20 * MIB);
    // Unless PyTorch reports memory in it.
    let reported = [
        row(Kind::DriverReserve, 1 << 40, 40 * MIB),
        create(1),
        map(1),
        row(Kind::SegmentMap, 1 << 40, 20 * MIB),
        create(2),
        map(2),
    ];
    assert_eq!(track(&reported).at_peak_used().breakdown.cached, 40 * MIB);
}

#[test]
fn the_devices_own_figure_counts() {
    let driver = |row, charged| add_charge(row, charged, charged);
    let events = [
        driver(row(Kind::DriverContext, 0, 100 * MIB), 100 * MIB),
        // Rounded up by the device.
        driver(row(Kind::DriverMalloc, MIB, 2 * MIB + 1), 104 * MIB),
        // The pool takes more than is requested, keeps it, and gives it back later.
        driver(row(Kind::PoolMalloc, 9 * MIB, 33 * MIB), 168 * MIB),
        driver(row(Kind::PoolFree, 9 * MIB, 33 * MIB), 168 * MIB),
        driver(row(Kind::PoolTrim, 0, 0), 104 * MIB),
        driver(row(Kind::ManagedAlloc, 1 << 40, 1 << 40), 104 * MIB),
    ];
    let all = track(&events);
    assert!(all.is_charge_told());
    assert_eq!((all.charged(), all.managed()), (104 * MIB, 1 << 40));
    let used = [0, 0, 100 * MIB, 4 * MIB, 104 * MIB];
    assert_eq!(parts(all.breakdown()), used);
    assert_eq!(all.breakdown().managed, 1 << 40);
    let peak = all.at_peak_used();
    assert_eq!((peak.row, peak.breakdown.used), (2, 168 * MIB));
    // Blocks of PyTorch that lie in the pools: the pools are its cache.
    let block = Event {
        requested: 30 * MIB,
        ..row(Kind::Alloc, 9 * MIB, 0)
    };
    let pooled = track(&[events[0], events[1], events[2], block]);
    let used = [30 * MIB, 36 * MIB - 1, 100 * MIB, 2 * MIB + 1, 168 * MIB];
    assert_eq!(parts(pooled.breakdown()), used);
}

#[test]
fn processes_share_a_device_in_time() {
    let of = |process, event| Event { process, ..event };
    let run = |process, others: u64| {
        [
            of(
                process,
                add_charge(
                    row(Kind::DriverMalloc, MIB, 10 * MIB),
                    10 * MIB,
                    10 * MIB + others,
                ),
            ),
            of(
                process,
                add_charge(row(Kind::DriverFree, MIB, 10 * MIB), 0, others),
            ),
        ]
    };
    // One after the other.
    let apart = account(&[run(0, 0), run(1, 0), run(2, 0)].concat());
    let peak = apart.peak_in_use(0).unwrap();
    assert_eq!(
        (peak.bytes, peak.is_exact, peak.process),
        (10 * MIB, true, 0)
    );
    // The second beside the first: the rows of a process stand together all the same.
    let together = account(&[run(0, 0), run(1, 10 * MIB)].concat());
    let peak = together.peak_in_use(0).unwrap();
    assert_eq!((peak.bytes, peak.process, peak.row), (20 * MIB, 1, 2));
    let moment = together.get(1, 0).unwrap().at_peak_in_use().unwrap();
    assert_eq!(moment.breakdown.other_processes, 10 * MIB);
    // Without the device's figures it is a bound.
    let plain = |process| of(process, row(Kind::DriverMalloc, MIB, 10 * MIB));
    let unknown = account(&[plain(0), plain(1)]).peak_in_use(0).unwrap();
    assert_eq!((unknown.bytes, unknown.is_exact), (20 * MIB, false));
    let alone = account(&[plain(3)]).peak_in_use(0).unwrap();
    assert_eq!((alone.bytes, alone.is_exact), (10 * MIB, true));
    assert_eq!(alone.process, 3);
    assert_eq!(account(&[]).peak_in_use(0), None);
}

#[test]
fn a_change_says_what_the_row_did() {
    let stacks = StackTable::new();
    let mut account: Account<u32> = Account::new(Rounding::PyTorch);
    let alloc = Event {
        requested: 700,
        ..row(Kind::Alloc, MIB, 0)
    };
    let Change::Allocated { block, replaced } = account.apply(&alloc, 0, &stacks) else {
        panic!("no block");
    };
    assert_eq!(
        (block.bytes, block.size_known, replaced),
        (1024, false, None)
    );
    account.get_mut(0, 0).unwrap().tag(MIB, 7);
    // Handed out again without a free.
    let Change::Allocated { replaced, .. } = account.apply(&alloc, 1, &stacks) else {
        panic!("no block");
    };
    assert_eq!(replaced.map(|old| (old.tag, old.born)), Some((7, Some(0))));
    let free = Event {
        kind: Kind::FreeRequested,
        ..alloc
    };
    let Change::Freed { block, is_pending } = account.apply(&free, 2, &stacks) else {
        panic!("not freed");
    };
    assert_eq!((block.born, is_pending), (Some(1), true));
    assert!(matches!(
        account.apply(&free, 3, &stacks),
        Change::Contradicted { .. }
    ));
    let complete = row(Kind::FreeCompleted, MIB, 0);
    let Change::Completed { block } = account.apply(&complete, 4, &stacks) else {
        panic!("not completed");
    };
    assert_eq!(
        block.map(|block| block.state),
        Some(BlockState::PendingFree)
    );
    // A block from before the first row.
    let Change::Freed { block, .. } = account.apply(&free, 5, &stacks) else {
        panic!("not freed");
    };
    assert_eq!(block.born, None);
    assert_eq!(account.get(0, 0).unwrap().start_allocated(), 1024);
    // The middle of an expandable segment goes.
    account.apply(&row(Kind::SegmentMap, 0, 60 * MIB), 6, &stacks);
    let unmap = row(Kind::SegmentUnmap, 20 * MIB, 20 * MIB);
    let Change::GivenBack { gone, left, .. } = account.apply(&unmap, 7, &stacks) else {
        panic!("not given back");
    };
    assert_eq!((gone.len(), gone[0].bytes), (1, 60 * MIB));
    let left: Vec<_> = left.iter().map(|part| (part.address, part.bytes)).collect();
    assert_eq!(left, [(0, 20 * MIB), (40 * MIB, 20 * MIB)]);
    let again = account.apply(&unmap, 8, &stacks);
    assert!(matches!(again, Change::GivenBack { gone, .. } if gone.is_empty()));
}

#[test]
fn mapped_parts_join_unless_they_differ() {
    let map = |address: u64| row(Kind::SegmentMap, address * MIB, 20 * MIB);
    let pool = Some(Pool {
        first: 1,
        second: 0,
    });
    let private = Event { pool, ..map(40) };
    let merged = track(&[map(0), map(20), private]).merged_segments();
    let merged: Vec<_> = merged.iter().map(|run| (run.address, run.bytes)).collect();
    assert_eq!(merged, [(0, 40 * MIB), (40 * MIB, 20 * MIB)]);
}

#[test]
fn the_last_failure_is_told_from_one_that_was_survived() {
    let oom = row(Kind::Oom, 0, MIB);
    let alloc = row(Kind::Alloc, MIB, MIB);
    let refused = row(Kind::DriverOom, 0, MIB);
    let malloc = row(Kind::DriverMalloc, MIB, MIB);
    let last = |events: &[Event]| {
        let track = track(events);
        let oom = track.last_oom().map(|oom| oom.is_last);
        (oom, track.last_refusal().map(|refusal| refusal.is_last))
    };
    assert_eq!(last(&[refused, oom]), (Some(true), Some(true)));
    assert_eq!(last(&[refused, oom, alloc]), (Some(false), Some(true)));
    assert_eq!(last(&[refused, oom, malloc]), (Some(true), Some(false)));
}

#[test]
fn absurd_sizes_are_bounded() {
    let huge = u64::MAX - 1;
    let kinds = [
        Kind::Alloc,
        Kind::SegmentMap,
        Kind::DriverContext,
        Kind::DriverMalloc,
        Kind::DriverCreate,
        Kind::PoolMalloc,
        Kind::ManagedAlloc,
    ];
    let mut events = Vec::new();
    for address in 0..4 {
        let rows = kinds.map(|kind| handle(kind, address, huge, address));
        events.extend(rows);
        events.push(add_charge(
            row(Kind::DriverMalloc, address, huge),
            huge,
            huge,
        ));
        events.push(row(Kind::FreeRequested, 100 + address, huge));
    }
    let track = track(&events);
    parts(track.breakdown());
    assert_eq!((track.allocated(), track.charged()), (ABSURD, ABSURD));
    assert_eq!(track.start_allocated(), ABSURD);
    assert!(track.peak_allocated().bytes <= 2 * ABSURD);
}

/// Everything a naive reader finds by going through all rows again.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    allocated: u64,
    reserved: u64,
    charged: u64,
    managed: u64,
}

impl Naive {
    fn from_events(events: &[Event]) -> Self {
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        let mut segments: Vec<(u64, u64)> = Vec::new();
        let mut direct: Vec<(u64, u64)> = Vec::new();
        let mut managed: Vec<(u64, u64)> = Vec::new();
        let mut charged = 0;
        for event in events {
            let (at, size) = (event.address, event.size);
            match event.kind {
                Kind::Alloc => {
                    blocks.retain(|block| block.0 != at);
                    blocks.push((at, size));
                }
                Kind::FreeRequested | Kind::FreeCompleted => blocks.retain(|block| block.0 != at),
                Kind::SegmentAlloc | Kind::SegmentMap => {
                    segments = without(&segments, at, at + size);
                    segments.push((at, size));
                }
                Kind::SegmentFree | Kind::SegmentUnmap => {
                    segments = without(&segments, at, at + size);
                }
                Kind::DriverMalloc => {
                    direct.retain(|piece| piece.0 != at);
                    direct.push((at, size));
                    charged += size;
                }
                Kind::DriverFree => {
                    let found = direct.iter().position(|piece| piece.0 == at);
                    let bytes = found.map_or(size, |index| direct.remove(index).1);
                    charged = charged.saturating_sub(bytes);
                }
                Kind::ManagedAlloc => {
                    managed.retain(|piece| piece.0 != at);
                    managed.push((at, size));
                }
                Kind::ManagedFree => managed.retain(|piece| piece.0 != at),
                _ => {}
            }
            charged = event.charged.unwrap_or(charged);
        }
        Self {
            allocated: blocks.iter().map(|block| block.1).sum(),
            reserved: segments.iter().map(|segment| segment.1).sum(),
            charged,
            managed: managed.iter().map(|piece| piece.1).sum(),
        }
    }
}

/// Ranges, as first byte and bytes, without what lies from `start` to `end`.
fn without(ranges: &[(u64, u64)], start: u64, end: u64) -> Vec<(u64, u64)> {
    let cut = ranges.iter().flat_map(|&(from, bytes)| {
        let to = from + bytes;
        [(from, to.min(start)), (from.max(end), to)]
    });
    let left = cut.filter(|(from, to)| from < to);
    left.map(|(from, to)| (from, to - from)).collect()
}

fn any_row() -> impl Strategy<Value = Event> {
    let kinds = prop::sample::select(vec![
        Kind::Alloc,
        Kind::Alloc,
        Kind::FreeRequested,
        Kind::FreeCompleted,
        Kind::SegmentAlloc,
        Kind::SegmentMap,
        Kind::SegmentFree,
        Kind::SegmentUnmap,
        Kind::DriverMalloc,
        Kind::DriverMalloc,
        Kind::DriverFree,
        Kind::ManagedAlloc,
        Kind::ManagedFree,
        Kind::DriverMap,
        Kind::Oom,
    ]);
    let place = (0..2_u32, 0..2, 0..12_u64, 1..6_u64);
    (kinds, place, prop::option::weighted(0.1, 0..40_u64)).prop_map(
        |(kind, (process, device, address, size), charged)| Event {
            process,
            device,
            charged: charged.filter(|_| kind.name().starts_with("driver")),
            ..row(kind, address, size)
        },
    )
}

proptest! {
    #[test]
    fn sums_are_those_of_all_rows_added_up_anew(
        events in prop::collection::vec(any_row(), 0..60),
    ) {
        let stacks = StackTable::new();
        let mut account: Account = Account::new(Rounding::PyTorch);
        let mut most: BTreeMap<(u32, i32), Naive> = BTreeMap::new();
        for (index, event) in events.iter().enumerate() {
            account.apply(event, index as u64, &stacks);
            let key = (event.process, event.device);
            let mine: Vec<Event> = events[..=index]
                .iter()
                .filter(|other| (other.process, other.device) == key)
                .copied()
                .collect();
            let naive = Naive::from_events(&mine);
            let track = account.get(key.0, key.1).unwrap();
            let found = Naive {
                allocated: track.allocated(),
                reserved: track.reserved(),
                charged: track.charged(),
                managed: track.managed(),
            };
            prop_assert_eq!(&found, &naive);
            let now = track.breakdown();
            prop_assert_eq!(now.allocated + now.cached + now.context + now.other, now.used);
            let most = most.entry(key).or_default();
            if event.charged.is_some() || !track.is_charge_told() {
                most.charged = most.charged.max(naive.charged);
            }
            let blocks: u64 = track
                .blocks()
                .filter(|block| block.state == BlockState::Allocated)
                .map(|block| block.bytes)
                .sum();
            prop_assert_eq!(blocks, naive.allocated);
        }
        for (key, track) in account.iter() {
            let peak = track.at_peak_used().breakdown;
            prop_assert!(peak.used >= most[&key].charged);
            prop_assert_eq!(peak.allocated + peak.cached + peak.context + peak.other, peak.used);
        }
    }
}
