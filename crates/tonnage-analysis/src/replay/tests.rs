// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small recordings made by hand, hostile ones, and those of real GPUs.

use std::io::{Cursor, Write as _};
use std::path::PathBuf;

use tonnage_alloc::torch::Settings;
use tonnage_recording::{Event, Kind, Meta, Pool, Trace, Writer, meta};

use super::device::{DeviceSpec, ReplayDevice};
use super::policy::Torch;
use super::start::Start;
use super::*;

const MIB: u64 = 1 << 20;

/// A recording made by hand.
struct Hand(Trace);

impl Hand {
    fn new() -> Self {
        Self(Trace::new("test 0"))
    }

    /// One of `tonnage run` on a device of so many MiB.
    fn dry_run(capacity: u64) -> Self {
        let mut hand = Self::new();
        hand.fact(tonnage_recording::facts::GPU_ID, "test");
        hand.fact(meta::TORCH_VERSION, "2.15.0+cu132");
        hand.fact(meta::GPU_CAPACITY, &(capacity * MIB).to_string());
        hand.fact(tonnage_recording::facts::ADDRESS_ORDER, "ascending");
        hand
    }

    fn fact(&mut self, name: &str, text: &str) {
        self.0.meta.push(Meta {
            process: 0,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }

    fn push_row(&mut self, kind: Kind, address: u64, bytes: u64) -> &mut Self {
        let mut event = Event::new(kind);
        event.address = address;
        event.pool = Some(Pool::default());
        match kind {
            Kind::Alloc | Kind::FreeRequested | Kind::FreeCompleted => event.requested = bytes,
            _ => event.size = bytes,
        }
        self.0.events.push(event);
        self
    }

    fn free(&mut self, address: u64, bytes: u64) -> &mut Self {
        self.push_row(Kind::FreeRequested, address, bytes);
        self.push_row(Kind::FreeCompleted, address, bytes)
    }

    fn load(&self, options: &Options) -> Result<Job, ReplayError> {
        let file = self.0.write(Vec::new()).unwrap();
        Job::load(|| Ok(Cursor::new(&file)), options)
    }

    fn job(&self) -> Job {
        self.load(&Options::default()).unwrap()
    }
}

fn on(mebibytes: u64) -> Options {
    Options {
        capacity: Some(mebibytes * MIB),
        ..Options::default()
    }
}

fn default_torch() -> Alloc {
    Alloc::Torch(Box::default())
}

/// Two blocks of 30 MiB, one freed, then one of 50 MiB.
fn simple() -> Hand {
    let mut hand = Hand::new();
    hand.push_row(Kind::Alloc, 0x1000_0000, 30 * MIB);
    hand.push_row(Kind::Alloc, 0x3000_0000, 30 * MIB);
    hand.free(0x1000_0000, 30 * MIB);
    hand.push_row(Kind::Alloc, 0x5000_0000, 50 * MIB);
    hand
}

#[test]
fn a_device_that_is_too_small_names_the_request() {
    let job = simple().load(&on(70)).unwrap();
    let report = job.replay(&[default_torch()], true);
    let result = &report.tracks[0].allocators[0];
    // The cached 30 MiB were given back, but 30 + 50 are more than 70.
    assert_eq!(
        result.outcome,
        Outcome::OutOfMemory {
            row: Some(4),
            request: 3,
            requested: 50 * MIB,
            free: 40 * MIB,
        }
    );
    assert_eq!(result.retries, 1);
    assert_eq!(result.smallest.unwrap().bytes, 80 * MIB);
}

#[test]
fn the_smallest_device_is_found_and_holds_the_context() {
    let options = Options {
        context: Some(100 * MIB),
        ..Options::default()
    };
    let job = simple().load(&options).unwrap();
    let report = job.replay(&Alloc::usual(), true);
    let track = &report.tracks[0];
    assert_eq!(track.peak_live, 80 * MIB);
    for result in &track.allocators {
        assert!(result.completes(), "{result:?}");
        let smallest = result.smallest.unwrap();
        assert!(smallest.monotone);
        assert!(smallest.bytes >= 180 * MIB, "{result:?}");
    }
    // The default reserves all three, but a retry makes do with two.
    let torch = &track.allocators[0];
    assert_eq!(torch.peak_reserved, 110 * MIB);
    assert_eq!(torch.cached_at_peak, 30 * MIB);
    assert_eq!(torch.largest_free_at_peak, Some(30 * MIB));
    assert_eq!(torch.smallest.unwrap().bytes, 180 * MIB);
    let names: Vec<_> = track
        .allocators
        .iter()
        .map(|result| result.fidelity)
        .collect();
    assert_eq!(names[2..], [Fidelity::Approximation; 2]);
}

#[test]
fn a_recording_that_maps_memory_over_and_over_ends() {
    let mut hand = Hand::new();
    for row in 0..40 {
        for kind in [Kind::Alloc, Kind::FreeRequested, Kind::FreeCompleted] {
            hand.push_row(kind, 0x1000_0000, 900 * MIB);
            // The cache of another stream does not serve this one, so it is unmapped.
            hand.0.events.last_mut().unwrap().stream = row % 2;
        }
    }
    let track = &hand.load(&on(1000)).unwrap().tracks[0];
    let settings: Settings = "expandable_segments:True".parse().unwrap();
    let outcome = |max_pages| {
        let spec = DeviceSpec {
            max_pages,
            ..track.spec(1000 * MIB)
        };
        let begin = |addrs: &mut [u64]| {
            let start = Start::requested(&track.requests);
            let (device, settings) = (ReplayDevice::new(spec), settings.clone());
            Torch::new(device, settings, track.rules, (), &start, addrs)
        };
        let made = track.serve(&default_torch(), false, begin, |_, _| {});
        made.outcome
    };
    assert_eq!(outcome(40 * 45), Outcome::Completes);
    let Outcome::Undefined { reason, .. } = outcome(39 * 45) else {
        panic!("it goes on");
    };
    assert!(reason.contains("more pages"), "{reason}");
}

#[test]
fn tune_says_when_memory_is_simply_short() {
    use crate::tune::Advice;
    let tune = |mebibytes| {
        let job = simple().load(&on(mebibytes)).unwrap();
        job.tune(2, &|_, _| {})
    };
    let short = tune(78);
    assert_eq!(short.advice, Advice::MemoryIsShort);
    assert_eq!(short.least, 80 * MIB);
    assert!(short.tried >= 200);
    let fits = tune(200);
    assert!(
        matches!(fits.advice, Advice::KeepIt | Advice::Saves),
        "{fits:?}"
    );
    assert!(fits.best.completes);
}

#[test]
fn the_request_on_which_a_recording_ended_must_be_served_too() {
    use crate::tune::Advice;
    let mut hand = Hand::dry_run(100);
    hand.push_row(Kind::Alloc, 0x1_0000_0000, 70 * MIB);
    hand.push_row(Kind::Oom, 0, 40 * MIB);
    // Frees of the program while it dies do not make room for it.
    hand.free(0x1_0000_0000, 70 * MIB);
    let tuned = hand.job().tune(1, &|_, _| {});
    assert_eq!(tuned.advice, Advice::MemoryIsShort, "{tuned:?}");
    assert_eq!(tuned.least, 110 * MIB);
}

#[test]
fn another_setting_makes_it_fit_and_is_replayed() {
    use crate::tune::Advice;
    // Holes of 12 MiB between live blocks: only expandable segments use them together.
    let mut hand = Hand::dry_run(130);
    let at = |index: u64| 0x1_0000_0000 + index * 12 * MIB;
    for index in 0..10 {
        hand.push_row(Kind::Alloc, at(index), 12 * MIB);
    }
    for index in 0..9 {
        hand.free(at(index), 12 * MIB);
    }
    hand.push_row(Kind::Alloc, at(20), 100 * MIB);
    let tuned = hand.job().tune(1, &|_, _| {});
    assert_eq!(tuned.advice, Advice::KeepIt, "a retry suffices: {tuned:?}");
    // Every other block stays: nothing whole can be given back but single segments.
    let mut hand = Hand::dry_run(100);
    for index in 0..16 {
        hand.push_row(Kind::Alloc, at(index), 5 * MIB);
    }
    for index in (0..16).filter(|index| index % 4 != 0) {
        hand.free(at(index), 5 * MIB);
    }
    hand.push_row(Kind::Alloc, at(30), 30 * MIB);
    let tuned = hand.job().tune(1, &|_, _| {});
    assert_eq!(tuned.advice, Advice::MakesItFit, "{tuned:?}");
    let job = hand.job();
    let result = job.replay(
        &[Alloc::torch(&tuned.best.conf).expect("a setting that torch takes")],
        false,
    );
    assert!(result.tracks[0].allocators[0].completes());
}

#[test]
fn the_recorded_setting_is_reproduced_with_its_empty_cache() {
    let mut hand = Hand::dry_run(1000);
    let (first, second) = (0x1_0000_0000, 0x2_0000_0000);
    hand.push_row(Kind::SegmentAlloc, first, 20 * MIB);
    hand.push_row(Kind::Alloc, first, 5 * MIB);
    hand.free(first, 5 * MIB);
    // The program's own call: nothing failed.
    hand.push_row(Kind::SegmentFree, first, 20 * MIB);
    hand.push_row(Kind::SegmentAlloc, second, 20 * MIB);
    hand.push_row(Kind::Alloc, second, 5 * MIB);
    let report = hand.job().replay(&[Alloc::Recorded], false);
    let track = &report.tracks[0];
    let comparison = track.allocators[0].comparison.as_ref().unwrap();
    assert!(comparison.exact(), "{comparison:?}");
    assert_eq!((comparison.equal, comparison.empty_caches), (7, 1));
    assert!(
        track
            .assumptions
            .contains(&Assumption::EmptyCache { calls: 1 })
    );
    // A difference is named.
    hand.push_row(Kind::Alloc, second + 7 * MIB, 5 * MIB);
    let report = hand.job().replay(&[Alloc::Recorded], false);
    let comparison = report.tracks[0].allocators[0].comparison.as_ref().unwrap();
    let difference = comparison.difference.as_ref().unwrap();
    assert_eq!(difference.row, 7);
    assert_eq!(
        difference.recorded.as_ref().unwrap().address,
        second + 7 * MIB
    );
    assert_eq!(
        difference.replayed.as_ref().unwrap().address,
        second + 5 * MIB
    );
}

#[test]
fn a_retry_is_told_from_an_empty_cache() {
    // 60 MiB: the second segment fits only after the first was given back.
    let mut hand = Hand::dry_run(60);
    let (first, second) = (0x1_0000_0000, 0x2_0000_0000);
    hand.push_row(Kind::SegmentAlloc, first, 40 * MIB);
    hand.push_row(Kind::Alloc, first, 40 * MIB);
    // Pending when the retry synchronises.
    hand.push_row(Kind::FreeRequested, first, 40 * MIB);
    hand.push_row(Kind::FreeCompleted, first, 40 * MIB);
    hand.push_row(Kind::SegmentFree, first, 40 * MIB);
    hand.push_row(Kind::SegmentAlloc, second, 50 * MIB);
    hand.push_row(Kind::Alloc, second, 50 * MIB);
    let report = hand.job().replay(&[Alloc::Recorded], false);
    let result = &report.tracks[0].allocators[0];
    let comparison = result.comparison.as_ref().unwrap();
    assert!(comparison.exact(), "{comparison:?}");
    assert_eq!((comparison.retries, comparison.empty_caches), (1, 0));
    assert_eq!(result.retries, 1);
}

#[test]
fn a_free_that_still_waits_at_the_end_does_not_complete() {
    let mut hand = Hand::dry_run(60);
    let first = 0x1_0000_0000;
    hand.push_row(Kind::SegmentAlloc, first, 40 * MIB);
    hand.push_row(Kind::Alloc, first, 40 * MIB);
    // It waited for another stream, which was done when the next request came: no row lies between.
    hand.push_row(Kind::FreeRequested, first, 40 * MIB);
    hand.push_row(Kind::FreeCompleted, first, 40 * MIB);
    hand.push_row(Kind::Alloc, first, 40 * MIB);
    hand.push_row(Kind::FreeRequested, first, 40 * MIB);
    let report = hand.job().replay(&[Alloc::Recorded], false);
    let comparison = &report.tracks[0].allocators[0].comparison;
    assert!(comparison.as_ref().unwrap().exact(), "{comparison:?}");
}

#[test]
fn frees_that_wait_complete_where_the_recording_says_or_at_a_retry() {
    let mut hand = Hand::new();
    hand.push_row(Kind::Alloc, 0x1000_0000, 30 * MIB);
    hand.push_row(Kind::FreeRequested, 0x1000_0000, 30 * MIB);
    hand.push_row(Kind::Alloc, 0x3000_0000, 30 * MIB);
    hand.push_row(Kind::FreeCompleted, 0x1000_0000, 30 * MIB);
    hand.push_row(Kind::Alloc, 0x5000_0000, 30 * MIB);
    let ample = hand.job().replay(&[default_torch(), Alloc::Tonnage], false);
    for result in &ample.tracks[0].allocators {
        assert_eq!(result.peak_reserved, 60 * MIB, "{result:?}");
    }
    for alloc in [
        default_torch(),
        Alloc::CudaMallocAsync,
        Alloc::Bfc,
        Alloc::Tonnage,
    ] {
        let tight = hand.load(&on(70)).unwrap().replay(&[alloc], false);
        assert!(tight.tracks[0].allocators[0].completes());
    }
    // With room for one only, a retry waits for the pending free.
    let report = hand
        .load(&on(30))
        .unwrap()
        .replay(&[default_torch()], false);
    let Outcome::OutOfMemory { request, .. } = report.tracks[0].allocators[0].outcome else {
        panic!("{report:?}");
    };
    assert_eq!(request, 3);
}

#[test]
fn the_tonnage_allocator_serves_holes_that_do_not_touch() {
    let mut hand = Hand::new();
    let place = |number: u64| 0x1000_0000 + number * 64 * MIB;
    for number in 0..8 {
        hand.push_row(Kind::Alloc, place(number), 30 * MIB);
    }
    for number in [0, 2, 4, 6] {
        hand.free(place(number), 30 * MIB);
    }
    hand.push_row(Kind::Alloc, place(8), 120 * MIB);
    let job = hand.load(&on(240)).unwrap();
    let report = job.replay(&[Alloc::expandable(), Alloc::Tonnage], true);
    let results = &report.tracks[0].allocators;
    assert_eq!(results[1].allocator, "tonnage");
    assert_eq!(results[1].fidelity, Fidelity::InStep);
    assert!(results[1].completes(), "{results:?}");
    assert_eq!(results[1].peak_reserved, 240 * MIB);
    assert_eq!(results[1].smallest.unwrap().bytes, 240 * MIB);
    assert!(results[0].smallest.unwrap().bytes >= 240 * MIB);
}

#[test]
fn a_truncated_recording_starts_from_what_it_had() {
    let mut hand = Hand::new();
    let base = 0x1_0000_0000;
    // 6 MiB at the start were there before; 2 MiB behind them are handed out now.
    hand.push_row(Kind::Alloc, base + 6 * MIB, 2 * MIB);
    hand.free(base, 6 * MIB - 100);
    hand.push_row(Kind::Alloc, base, 3 * MIB);
    let mut state = |kind: Kind, address: u64, bytes: u64, requested: u64, name: &str| {
        let name = hand.0.stacks.intern(name);
        let mut event = Event::new(kind);
        (event.address, event.size, event.requested) = (address, bytes, requested);
        event.name = Some(name);
        hand.0.events.push(event);
    };
    state(Kind::FinalSegment, base, 20 * MIB, 5 * MIB, "large");
    state(Kind::FinalBlock, base, 3 * MIB, 3 * MIB, "active_allocated");
    state(Kind::FinalBlock, base + 3 * MIB, 3 * MIB, 0, "inactive");
    state(
        Kind::FinalBlock,
        base + 6 * MIB,
        2 * MIB,
        2 * MIB,
        "active_allocated",
    );
    state(Kind::FinalBlock, base + 8 * MIB, 12 * MIB, 0, "inactive");
    let report = hand.job().replay(&[Alloc::Recorded, Alloc::Bfc], false);
    let track = &report.tracks[0];
    let comparison = track.allocators[0].comparison.as_ref().unwrap();
    assert!(comparison.exact(), "{comparison:?}");
    assert_eq!((comparison.equal, comparison.final_state), (4, Some(true)));
    assert_eq!(track.recorded_peak_reserved, 20 * MIB);
    assert!(
        matches!(
            track.assumptions[..],
            [
                ..,
                Assumption::Start {
                    blocks: 1,
                    segments: 1,
                    adopted: true,
                    ..
                },
                _,
                _,
                _
            ]
        ),
        "{:?}",
        track.assumptions
    );
}

#[test]
fn rows_of_a_killed_process_have_sizes_only() {
    let mut hand = Hand::dry_run(100);
    let base = 0x1_0000_0000;
    hand.push_row(Kind::SegmentAlloc, base, 20 * MIB);
    hand.push_row(Kind::Alloc, base, 5 * MIB - 100);
    for (kind, address, size) in [
        (Kind::Alloc, base + 5 * MIB, 2 * MIB),
        (Kind::FreeRequested, base, 5 * MIB),
    ] {
        hand.push_row(kind, address, 0);
        hand.0.events.last_mut().unwrap().size = size;
    }
    let report = hand.job().replay(&[Alloc::Recorded], false);
    let track = &report.tracks[0];
    assert!(
        track
            .assumptions
            .contains(&Assumption::SizesOnly { blocks: 1 })
    );
    let comparison = track.allocators[0].comparison.as_ref().unwrap();
    assert!(comparison.exact(), "{comparison:?}");
    assert_eq!((comparison.equal, comparison.bare), (4, 2));
}

#[test]
fn hostile_recordings_end_in_an_answer() {
    let mut empty = Hand::new();
    assert!(matches!(
        empty.load(&Options::default()),
        Err(ReplayError::NoRequests)
    ));
    empty.push_row(Kind::Alloc, 5, 0);
    assert!(matches!(
        empty.load(&Options::default()),
        Err(ReplayError::NoRequests)
    ));
    // Every pair of kinds at few addresses with absurd sizes: contradictions of every sort.
    let kinds = [
        Kind::Alloc,
        Kind::FreeRequested,
        Kind::FreeCompleted,
        Kind::SegmentAlloc,
        Kind::SegmentFree,
        Kind::SegmentMap,
        Kind::SegmentUnmap,
        Kind::Oom,
        Kind::InitialSegment,
        Kind::InitialBlock,
        Kind::FinalSegment,
        Kind::FinalBlock,
        Kind::DriverMalloc,
        Kind::DriverFree,
        Kind::PoolMalloc,
        Kind::PoolFree,
        Kind::DriverOom,
    ];
    let sizes = [1, 512, 3 * MIB, 1 << 40, (1 << 60) - 1, 1 << 60, u64::MAX];
    let addresses = [0, 512, 1 << 21, u64::MAX - 1, u64::MAX];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |count: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % count as u64) as usize
    };
    for round in 0..150 {
        let mut hand = if round % 2 == 0 {
            Hand::new()
        } else {
            Hand::dry_run(100)
        };
        let states = [
            "small",
            "large",
            "active_allocated",
            "active_pending_free",
            "inactive",
            "expandable",
        ];
        for _ in 0..40 {
            hand.push_row(kinds[draw(kinds.len())], addresses[draw(5)], sizes[draw(7)]);
            let texts = [states[draw(6)], states[draw(6)]].map(|text| hand.0.stacks.intern(text));
            let event = hand.0.events.last_mut().unwrap();
            event.pool = [
                None,
                Some(Pool {
                    first: 0,
                    second: 1,
                }),
                Some(Pool {
                    first: 1,
                    second: 0,
                }),
            ][draw(3)];
            event.stream = [0, 7, u64::MAX][draw(3)];
            if draw(4) == 0 {
                (event.size, event.requested) = (event.requested, event.size);
            }
            (event.name, event.text) = (Some(texts[0]), Some(texts[1]));
        }
        if let Ok(job) = hand.load(&Options::default()) {
            job.replay(&Alloc::usual(), round % 10 == 0);
            // It maps pages of 2 MiB, so absurd sizes take it longer.
            if round % 10 == 0 {
                job.replay(&[Alloc::Tonnage], false);
            }
        }
    }
}

/// Name, events, peak reserved in MiB, as published.
const REAL: [(&str, u64, u64); 8] = [
    ("medium_1024_training", 22_331, 24_012),
    ("medium_512_training", 22_332, 12_074),
    ("medium_256_training", 19_430, 8_836),
    ("medium_128_training", 19_136, 6_900),
    ("medium_128_inference", 3_840, 1_682),
    ("medium_256_inference", 3_840, 1_778),
    ("medium_512_inference", 4_998, 1_890),
    ("medium_1024_inference", 3_840, 3_056),
];

#[test]
fn real_gpus_are_reproduced_event_for_event() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/real-gpu");
    if !folder.is_dir() {
        // Not `eprintln!`, which the test harness hides when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {} is not there; the snapshots of real GPUs were not replayed",
            folder.display()
        );
        return;
    }
    for (name, events, reserved) in REAL {
        let path = folder.join(format!("{name}_memory_snapshot.pickle"));
        let source = std::fs::File::open(path).unwrap();
        let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
        tonnage_import::import(source, 0, &mut writer).unwrap();
        let file = writer.finish().unwrap();
        let options = Options {
            torch_minor: Some(11),
            ..Options::default()
        };
        let job = Job::load(|| Ok(Cursor::new(&file)), &options).unwrap();
        let report = job.replay(&[Alloc::Recorded], false);
        let track = &report.tracks[0];
        let result = &track.allocators[0];
        let comparison = result.comparison.as_ref().unwrap();
        assert_eq!(comparison.difference, None, "{name}");
        assert_eq!(
            (comparison.equal, comparison.events),
            (events, events),
            "{name}"
        );
        assert_eq!(comparison.final_state, Some(true), "{name}");
        assert_eq!(result.peak_reserved, reserved * MIB, "{name}");
        assert_eq!(track.recorded_peak_reserved, reserved * MIB, "{name}");
        let ascending = Assumption::AddressOrder { ascending: true };
        assert!(track.assumptions.contains(&ascending), "{name}");
    }
}

#[test]
fn a_plan_stands_beside_the_allocators_and_needs_no_more_than_is_alive() {
    let mut hand = Hand::dry_run(100);
    hand.push_row(Kind::Alloc, MIB, 10 * MIB);
    hand.push_row(Kind::Alloc, 11 * MIB, 10 * MIB);
    hand.free(MIB, 10 * MIB);
    hand.push_row(Kind::Alloc, 31 * MIB, 20 * MIB);
    let job = hand.job();
    let report = job.replay(&[Alloc::Plan, Alloc::Bfc], true);
    let plan = &report.tracks[0].allocators[0];
    assert_eq!(plan.allocator, "plan");
    assert_eq!("plan".parse::<Alloc>(), Ok(Alloc::Plan));
    assert_eq!(plan.fidelity, Fidelity::Offline);
    assert_eq!(plan.outcome, Outcome::Completes);
    assert_eq!(plan.peak_reserved, 30 * MIB);
    assert_eq!(plan.driver.sum(), 0);
    let smallest = plan.smallest.unwrap().bytes;
    let track = &job.tracks[0];
    assert!(track.replay(&Alloc::Plan, smallest, false).completes());
    let less = track.replay(&Alloc::Plan, 30 * MIB - 1, false);
    assert!(
        matches!(less.outcome, Outcome::OutOfMemory { .. }),
        "{less:?}"
    );
}

#[test]
fn a_changed_program_is_served_with_its_other_lifetimes() {
    let mut hand = Hand::dry_run(70);
    hand.0.events = simple().0.events;
    let job = hand.job();
    let replayed = |changes: &[(u32, Change)], taken: u64| {
        let changes: Changes = changes.iter().cloned().collect();
        let (track, alloc) = job.changed((0, 0), &changes).expect("the process");
        let replayed = track.replay(&alloc, track.capacity - taken * MIB, false);
        (replayed.completes(), replayed.peak_allocated / MIB)
    };
    assert_eq!(replayed(&[], 0), (false, 60));
    // The second block is never made, is smaller, or ends before the last comes.
    assert_eq!(replayed(&[(1, vec![])], 0), (true, 50));
    assert_eq!(
        replayed(&[(1, vec![(1, u32::MAX, 20 * MIB)])], 0),
        (true, 70)
    );
    assert_eq!(replayed(&[(1, vec![(1, 4, 30 * MIB)])], 0), (true, 60));
    // It goes and comes back, and keeps the segment in which it then lies from being given back.
    let back = vec![(1, 2, 30 * MIB), (4, u32::MAX, 10 * MIB)];
    assert_eq!(replayed(&[(1, back)], 0), (false, 60));
    // The memory of others is missing for it.
    assert_eq!(replayed(&[(1, vec![])], 30), (false, 30));
    assert!(job.changed((1, 0), &Changes::new()).is_none());
}

#[test]
fn what_another_library_takes_must_fit_beside_the_cache() {
    let mut hand = Hand::new();
    hand.push_row(Kind::DriverMalloc, 0x1000_0000, 30 * MIB);
    hand.push_row(Kind::SegmentAlloc, 0x1000_0000, 30 * MIB);
    hand.push_row(Kind::Alloc, 0x1000_0000, 30 * MIB);
    hand.free(0x1000_0000, 30 * MIB);
    // It comes and goes while PyTorch requests nothing, and gives back nothing that it keeps.
    hand.push_row(Kind::DriverMalloc, 0x7000_0000, 40 * MIB);
    hand.push_row(Kind::DriverFree, 0x7000_0000, 40 * MIB);
    let on_60 = hand.load(&on(60)).unwrap();
    let report = on_60.replay(&[default_torch()], true);
    let result = &report.tracks[0].allocators[0];
    assert_eq!(
        result.outcome,
        Outcome::OthersOutOfMemory {
            row: 5,
            request: 1,
            requested: 40 * MIB,
            free: 30 * MIB,
        }
    );
    assert_eq!(result.smallest.unwrap().bytes, 70 * MIB);
    // Rows are in order, also where a free comes between the two.
    let mut between = Hand::new();
    between.push_row(Kind::Alloc, 0x1000_0000, 30 * MIB);
    between.push_row(Kind::DriverMalloc, 0x7000_0000, 40 * MIB);
    between.free(0x1000_0000, 30 * MIB);
    between.push_row(Kind::DriverFree, 0x7000_0000, 40 * MIB);
    assert!(between.job().tracks[0].requests.rows.is_sorted());
    // The same at the end of the recording, and before a request that needs no new segment.
    hand.0.events.truncate(6);
    for more in [false, true] {
        if more {
            hand.push_row(Kind::Alloc, 0x1000_0000, 30 * MIB);
        }
        let report = hand.job().replay(&[default_torch()], true);
        let smallest = report.tracks[0].allocators[0].smallest;
        assert_eq!(smallest.unwrap().bytes, 70 * MIB);
    }
}

#[test]
fn room_is_the_distance_to_the_smallest_device_or_what_was_never_used() {
    // 60 alive at most, in pieces that a device of 70 cannot hold as they lie.
    let room = |capacity: u64, taken: u64, enough: u64| {
        let mut hand = Hand::dry_run(capacity);
        hand.0.events = simple().0.events;
        let job = hand.job();
        let (track, alloc) = job.changed((0, 0), &Changes::new()).expect("the process");
        let room = track.room(&alloc, taken * MIB, enough * MIB);
        let smallest = track.smallest(&alloc, &track.replay(&alloc, track.capacity, false));
        (
            room.map(|room| room / MIB),
            smallest.expect("a size").bytes / MIB,
        )
    };
    let smallest = room(200, 0, 0).1;
    assert_eq!(room(70, 0, 100).0, None);
    assert_eq!(room(smallest + 10, 0, 100).0, Some(10));
    // Held by others, it is not there.
    assert_eq!(room(smallest + 10, 4, 100).0, Some(6));
    assert_eq!(room(smallest + 10, 12, 100).0, None);
    // Enough is enough.
    assert_eq!(room(smallest + 10, 0, 10).0, Some(10));
    assert!(room(smallest + 1000, 0, 100).0 >= Some(100));
}

#[test]
fn a_device_above_one_that_is_too_small_is_not_below_it() {
    let mut hand = Hand::dry_run(50);
    // Two large ones come and go. Where both stay in the cache, the small ones that follow lie in both of them, and
    // the last does not fit in between; where the first was given back, they lie in the second.
    for size in [20, 24] {
        hand.push_row(Kind::Alloc, size << 32, size * MIB);
        hand.free(size << 32, size * MIB);
    }
    for (number, size) in [(1, 12), (2, 14), (3, 12)] {
        hand.push_row(Kind::Alloc, number << 40, size * MIB);
    }
    let job = hand.job();
    let track = &job.tracks[0];
    let completes = |mib: u64| track.replay(&Alloc::Recorded, mib * MIB, false).completes();
    assert!(completes(40) && !completes(50) && completes(56));
    assert_eq!(
        track.smallest_above(&Alloc::Recorded, 50 * MIB),
        Some(56 * MIB)
    );
}

#[test]
fn every_replay_is_counted_also_one_that_is_left_out() {
    let hand = simple();
    let told = std::cell::RefCell::new(Vec::new());
    // The recorded setting twice: the second is not replayed again.
    let allocs = [Alloc::Recorded, Alloc::Recorded, Alloc::Bfc];
    let progress = |done, total| told.borrow_mut().push((done, total));
    hand.job().replay_watched(&allocs, false, &progress);
    assert_eq!(*told.borrow(), [(1, 3), (2, 3), (3, 3)]);
    told.borrow_mut().clear();
    hand.job().replay_watched(&[], false, &progress);
    assert!(told.borrow().is_empty());
}

/// A training of so many steps: a weight, an output that the next step overwrites, activations, and a gradient that
/// is freed when the next step begins its backward pass. The steps are marked, or not.
fn training(steps: u64, marked: bool) -> Hand {
    let mut hand = Hand::new();
    let mut place = 0x1000_0000;
    let mut made = |hand: &mut Hand, bytes: u64| {
        place += 256 * MIB;
        hand.push_row(Kind::Alloc, place, bytes);
        (place, bytes)
    };
    let free = |hand: &mut Hand, block: Option<(u64, u64)>| {
        if let Some((place, bytes)) = block {
            hand.free(place, bytes);
        }
    };
    made(&mut hand, 40 * MIB);
    let (mut output, mut gradient) = (None, None);
    for _ in 0..steps {
        let mut activations = Vec::new();
        for layer in 1..=6 {
            activations.push(made(&mut hand, layer * 3 * MIB));
        }
        let overwritten = output.replace(made(&mut hand, 16 * MIB));
        free(&mut hand, overwritten);
        free(&mut hand, gradient.take());
        gradient = Some(made(&mut hand, 40 * MIB));
        for activation in activations.into_iter().rev() {
            let scratch = made(&mut hand, activation.1 + MIB);
            free(&mut hand, Some(activation));
            free(&mut hand, Some(scratch));
        }
        if marked {
            let mut mark = Event::new(Kind::Mark);
            mark.text = Some(hand.0.stacks.intern("step"));
            hand.0.events.push(mark);
        }
    }
    hand
}

#[test]
fn a_plan_of_few_steps_serves_many() {
    for marked in [true, false] {
        let few = training(5, marked).job();
        let made = few.runtime_plan(&tonnage_plan::Options::default()).unwrap();
        assert_eq!((made.marked, made.kinds), (marked, 2), "{made:?}");
        assert_eq!((made.height, made.anywhere), (made.peak_live, 0));
        let many = training(40, marked).job();
        let report = many.replay(&[Alloc::Tonnage, Alloc::Planned(made.plan.into())], false);
        let [plain, planned] = report.tracks[0].allocators.as_slice() else {
            panic!("{report:?}");
        };
        let own = planned.own.unwrap();
        let followed = own.plan.unwrap();
        assert_eq!(followed.hits, followed.requests, "{followed:?}");
        assert_eq!(own.pages_moved, 0);
        assert_eq!(planned.peak_reserved, made.peak_live);
        assert!(planned.peak_reserved < plain.peak_reserved);
        assert!(plain.own.unwrap().plan.is_none());
    }
}

#[test]
fn a_program_whose_memory_grows_is_not_planned() {
    // Each pass keeps its outputs, as a list of losses with their graphs does.
    let mut hand = Hand::new();
    hand.push_row(Kind::Alloc, 0x1000_0000, 64 * MIB);
    for pass in 1..=4_u64 {
        for layer in 1..=8_u64 {
            hand.push_row(Kind::Alloc, (pass << 40) + (layer << 32), 256 * MIB);
        }
        hand.push_row(Kind::Alloc, (pass << 40) + (9 << 32), 512);
        let scratch = (pass << 40) + (10 << 32);
        hand.push_row(Kind::Alloc, scratch, 32 * MIB);
        hand.free(scratch, 32 * MIB);
    }
    let made = hand.job().runtime_plan(&tonnage_plan::Options::default());
    let made = made.unwrap();
    assert!(made.steps > 1 && made.height < made.peak_live, "{made:?}");
    assert!(made.grows() && made.unplaced() == made.peak_live - made.height);
    let steady = training(5, true).job();
    let steady = steady.runtime_plan(&tonnage_plan::Options::default());
    let steady = steady.unwrap();
    assert!(!steady.grows() && steady.unplaced() == 0);
}

#[test]
fn a_plan_of_another_program_harms_nothing() {
    let other = simple().job();
    let made = other.runtime_plan(&tonnage_plan::Options::default());
    let plan = made.unwrap().plan.into();
    let job = training(6, true).job();
    let report = job.replay(&[Alloc::Tonnage, Alloc::Planned(plan)], true);
    let [plain, planned] = report.tracks[0].allocators.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(planned.smallest, plain.smallest);
    let followed = planned.own.unwrap().plan.unwrap();
    assert_eq!(followed.hits, 0);
    assert_eq!(followed.divergence.unwrap().request, 1);
}
