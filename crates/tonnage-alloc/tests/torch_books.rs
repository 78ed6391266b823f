// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls against the torch policy: its books balance after each, live
//! blocks never overlap, and a settings string never does worse than fail.

mod torch_script;

use std::collections::BTreeMap;

use proptest::prelude::*;
use tonnage_alloc::torch::{
    Allocator, Error, Event, PoolId, Rules, Scope, Settings, TieBreak, Undefined, Version,
};
use tonnage_alloc::{AddressOrder, Device, DeviceAddr, StreamId};
use torch_script::{Controlled, Script};

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Malloc(u64, u64),
    MallocIn(u64, u64),
    MallocAt(u64, usize, u64),
    Free(usize),
    RequestFree(usize),
    CompleteFree(usize),
    Record(usize, u64),
    Hold(u64, bool),
    EmptyCache,
    Update(&'static str),
    Fraction(f64),
    Pool(u64),
    Drop(u64),
    Release(u64),
    Begin(u64, Option<u64>),
    End(u64),
    NoSplit(u64),
    UseOnOom(u64, bool),
    Capture(bool),
    Reset(bool),
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1..4096_u64,
        3 => 1..2 * MIB,
        3 => MIB..80 * MIB,
        1 => 80 * MIB..700 * MIB,
        1 => prop::sample::select(vec![0, 512, MIB, MIB + 1, 10 * MIB, 20 * MIB, 1 << 59, u64::MAX]),
    ]
}

fn settings() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "expandable_segments:True",
        "expandable_segments:False",
        "max_split_size_mb:40",
        "max_split_size_mb:60,max_non_split_rounding_mb:30",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[1:2,64:8,>:16]",
        "garbage_collection_threshold:0.3",
        "large_segment_size_mb:32",
        "throw_on_cudamalloc_oom:True",
        "throw_on_cudamalloc_oom:False,per_process_memory_fraction:0.8",
        "expandable_segments:True,expandable_segments_reserve:0.3",
        "graph_capture_record_stream_reuse:True",
    ])
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stream = 0..4_u64;
    let pool = 1..4_u64;
    prop::collection::vec(
        prop_oneof![
            40 => (sizes(), stream.clone()).prop_map(|(size, stream)| Step::Malloc(size, stream)),
            4 => (sizes(), pool.clone()).prop_map(|(size, pool)| Step::MallocIn(size, pool)),
            2 => (sizes(), any::<usize>(), 0..64_u64)
                .prop_map(|(size, which, offset)| Step::MallocAt(size, which, offset)),
            30 => any::<usize>().prop_map(Step::Free),
            2 => any::<usize>().prop_map(Step::RequestFree),
            2 => any::<usize>().prop_map(Step::CompleteFree),
            8 => (any::<usize>(), stream.clone()).prop_map(|(which, s)| Step::Record(which, s)),
            4 => (stream.clone(), any::<bool>()).prop_map(|(stream, hold)| Step::Hold(stream, hold)),
            2 => Just(Step::EmptyCache),
            2 => settings().prop_map(Step::Update),
            1 => (0.0..1.5_f64).prop_map(Step::Fraction),
            2 => pool.clone().prop_map(Step::Pool),
            1 => pool.clone().prop_map(Step::Drop),
            1 => pool.clone().prop_map(Step::Release),
            3 => (pool.clone(), prop::option::of(stream)).prop_map(|(p, s)| Step::Begin(p, s)),
            3 => pool.clone().prop_map(Step::End),
            1 => pool.clone().prop_map(Step::NoSplit),
            1 => (pool, any::<bool>()).prop_map(|(pool, on)| Step::UseOnOom(pool, on)),
            2 => any::<bool>().prop_map(Step::Capture),
            1 => any::<bool>().prop_map(Step::Reset),
        ],
        1..250,
    )
}

type Torch = Allocator<Controlled, Vec<Event>>;

/// The allocator and what a program would know about it.
struct World {
    torch: Torch,
    live: BTreeMap<u64, u64>,
    held_back: Vec<u64>,
}

impl World {
    fn pick(&self, which: usize) -> Option<DeviceAddr> {
        let place = which.checked_rem(self.live.len())?;
        self.live.keys().nth(place).map(|&addr| DeviceAddr(addr))
    }

    fn handed_out(&mut self, addr: DeviceAddr, requested: u64) -> Result<(), TestCaseError> {
        let size = self.torch.size_of(addr).expect("it is live");
        prop_assert!(size >= requested);
        prop_assert!(addr.0.is_multiple_of(512));
        let before = self.live.range(..addr.0 + size).next_back();
        prop_assert!(before.is_none_or(|(&start, &size)| start + size <= addr.0));
        self.live.insert(addr.0, size);
        Ok(())
    }

    /// Runs a step; refusals are fine, as long as the books balance.
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let torch = &mut self.torch;
        let result = match *step {
            Step::Malloc(size, stream) => match torch.malloc(size, StreamId(stream)) {
                Ok(addr) => return self.handed_out(addr, size),
                Err(error) => Err(error),
            },
            Step::MallocIn(size, pool) => {
                match torch.malloc_in(PoolId(0, pool), size, StreamId(0)) {
                    Ok(addr) => return self.handed_out(addr, size),
                    Err(error) => Err(error),
                }
            }
            Step::MallocAt(size, which, offset) => {
                let Some(addr) = self.pick(which) else {
                    return Ok(());
                };
                let addr = addr.offset(offset * 512);
                match self.torch.malloc_at(size, StreamId(0), addr) {
                    Ok(Some(served)) => {
                        prop_assert_eq!(served, addr);
                        return self.handed_out(served, size);
                    }
                    other => other.map(|_| ()),
                }
            }
            Step::Free(which) => match self.pick(which) {
                Some(addr) => {
                    self.live.remove(&addr.0);
                    self.torch.free(addr).expect("it is live");
                    self.torch.free(addr)
                }
                None => Ok(()),
            },
            Step::RequestFree(which) => match self.pick(which) {
                Some(addr) => {
                    self.live.remove(&addr.0);
                    self.held_back.push(addr.0);
                    self.torch.request_free(addr)
                }
                None => Ok(()),
            },
            Step::CompleteFree(which) => match which.checked_rem(self.held_back.len()) {
                Some(place) => {
                    let addr = DeviceAddr(self.held_back.swap_remove(place));
                    torch.complete_free(addr).expect("it was held back");
                    torch.complete_free(addr)
                }
                None => Ok(()),
            },
            Step::Record(which, stream) => match self.pick(which) {
                Some(addr) => self.torch.record_stream(addr, StreamId(stream)),
                None => Ok(()),
            },
            Step::Hold(stream, hold) => {
                torch.device_mut().hold(StreamId(stream), hold);
                Ok(())
            }
            Step::EmptyCache => torch.empty_cache(),
            Step::Update(text) => {
                // A split limit may be below a large segment that was set before.
                let _ = torch.update_settings(text);
                Ok(())
            }
            Step::Fraction(fraction) => torch.set_memory_fraction(fraction),
            Step::Pool(pool) => torch.create_pool(PoolId(0, pool)),
            Step::Drop(pool) => torch.destroy_pool(PoolId(0, pool)),
            Step::Release(pool) => torch.release_pool_use(PoolId(0, pool)),
            Step::Begin(pool, stream) => {
                let scope = stream.map_or(Scope::Everything, |stream| {
                    Scope::Streams(vec![StreamId(stream)])
                });
                torch.begin_allocate_to_pool(PoolId(0, pool), scope)
            }
            Step::End(pool) => torch.end_allocate_to_pool(PoolId(0, pool)),
            Step::NoSplit(pool) => {
                torch.set_no_split(PoolId(0, pool));
                Ok(())
            }
            Step::UseOnOom(pool, on) => {
                torch.set_use_on_oom(PoolId(0, pool), on);
                Ok(())
            }
            Step::Capture(on) => {
                torch.set_capturing(on);
                Ok(())
            }
            Step::Reset(peaks) => {
                if peaks {
                    torch.reset_peak_stats();
                } else {
                    torch.reset_accumulated_stats();
                }
                Ok(())
            }
        };
        let device = matches!(result, Err(Error::Device(_)));
        prop_assert!(!device, "the device was misused: {:?}", result);
        Ok(())
    }

    fn balanced(&self) -> Result<(), TestCaseError> {
        self.torch.check().map_err(TestCaseError::fail)?;
        self.torch.device().check().map_err(TestCaseError::fail)?;
        let device = self.torch.device();
        prop_assert_eq!(device.total() - device.free_bytes(), self.torch.reserved());
        let live: u64 = self.live.values().sum();
        let stats = self.torch.stats();
        prop_assert_eq!(stats.allocated_bytes.all.current as u64, live);
        prop_assert!(stats.active.all.peak >= stats.active.all.current);
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_books_balance(
        steps in steps(),
        first in settings(),
        total in (200 * MIB)..(4 << 30),
        minor in 1..16_u16,
        ascending in any::<bool>(),
    ) {
        let order = if ascending { AddressOrder::Ascending } else { AddressOrder::Descending };
        let total = total / (2 * MIB) * (2 * MIB);
        let rules = Rules::for_version(Version(2, minor));
        let settings = first.parse().unwrap();
        let torch = Allocator::with(Controlled::new(total, order), settings, rules, Vec::new());
        let mut world = World { torch, live: BTreeMap::new(), held_back: Vec::new() };
        for step in steps {
            world.step(&step)?;
            world.balanced()?;
        }
        // Everything can be taken back, and what is not private leaves the device.
        world.torch.set_capturing(false);
        for addr in std::mem::take(&mut world.held_back) {
            world.torch.complete_free(DeviceAddr(addr)).unwrap();
        }
        for addr in std::mem::take(&mut world.live).into_keys() {
            world.torch.free(DeviceAddr(addr)).unwrap();
        }
        let _ = world.torch.empty_cache();
        world.balanced()?;
    }

    #[test]
    fn a_settings_string_never_panics(text in "[a-z_0-9:,\\[\\]> TrueFalsGg.+-]{0,60}") {
        let _ = text.parse::<Settings>();
    }

    #[test]
    fn keys_with_odd_values_never_panic(
        key in prop::sample::select(vec![
            "large_segment_size_mb", "max_split_size_mb", "max_non_split_rounding_mb",
            "garbage_collection_threshold", "roundup_power2_divisions", "expandable_segments",
            "expandable_segments_reserve", "expandable_segments_reserve_by_class",
            "per_process_memory_fraction", "throw_on_cudamalloc_oom", "backend",
        ]),
        value in "[0-9a-z:,\\[\\]>.+-]{0,24}",
    ) {
        let text = format!("{key}:{value}");
        if let Ok(settings) = text.parse::<Settings>() {
            let mut torch = Allocator::new(Controlled::new(1 << 30, AddressOrder::Ascending), settings);
            let _ = torch.malloc(3 * MIB, StreamId(0));
            torch.check().map_err(TestCaseError::fail)?;
        }
    }
}

fn torch(total: u64, settings: &str) -> Torch {
    Allocator::with(
        Controlled::new(total, AddressOrder::Ascending),
        settings.parse().expect("valid settings"),
        Rules::default(),
        Vec::new(),
    )
}

#[test]
fn out_of_memory_tells_what_torch_tells() {
    let mut torch = torch(1 << 30, "");
    let stream = StreamId(0);
    torch.malloc(400 * MIB, stream).unwrap();
    let Err(Error::OutOfMemory(told)) = torch.malloc(700 * MIB + 3, stream) else {
        panic!("it fits");
    };
    assert_eq!(told.segment_size, 702 * MIB);
    assert_eq!(told.rounded, 734_003_712);
    assert_eq!(told.device_free, 624 * MIB);
    let stats = torch.stats();
    assert_eq!((stats.num_ooms, stats.num_alloc_retries), (1, 1));
    torch.check().unwrap();
}

#[test]
fn impossible_requests_leave_no_trace() {
    let mut torch = torch(1 << 30, "");
    assert_eq!(torch.malloc(0, StreamId(0)), Err(Error::Empty));
    let huge = 1 << 60;
    assert_eq!(torch.malloc(huge, StreamId(0)), Err(Error::TooLarge(huge)));
    assert_eq!(torch.stats().num_ooms, 0);
    assert!(torch.sink().is_empty());
}

#[test]
fn a_recording_may_say_when_a_free_is_completed() {
    let mut torch = torch(1 << 30, "");
    let addr = torch.malloc(5 * MIB, StreamId(0)).unwrap();
    torch.request_free(addr).unwrap();
    torch.check().unwrap();
    assert_eq!(torch.stats().active.all.current, 1);
    assert_eq!(torch.stats().allocation.all.current, 0);
    assert_ne!(torch.malloc(5 * MIB, StreamId(0)).unwrap(), addr);
    torch.complete_free(addr).unwrap();
    assert_eq!(torch.malloc(5 * MIB, StreamId(0)).unwrap(), addr);
    torch.check().unwrap();
}

#[test]
fn a_state_that_is_taken_over_goes_on_like_the_first() {
    let mut first = torch(64 << 30, "");
    let streams = [StreamId(0), StreamId(7)];
    let mut live = Vec::new();
    for (step, size) in (0..400_u64).map(|step| (step, 512 + step * step * 977 % (30 * MIB))) {
        live.push(first.malloc(size, streams[step as usize % 2]).unwrap());
        if step % 3 == 0 {
            let place = step as usize * 31 % live.len();
            first.free(live.swap_remove(place)).unwrap();
        }
    }
    let pending = live.pop().unwrap();
    first.request_free(pending).unwrap();
    let made: Vec<DeviceAddr> = first
        .sink()
        .iter()
        .filter(|event| event.action.name() == "segment_alloc")
        .map(|event| event.addr)
        .collect();
    let mut segments = first.segments();
    segments.sort_by_key(|segment| made.iter().position(|&addr| addr == segment.addr));
    // The same device, so that new segments get the same addresses.
    let device = first.device().clone();
    let mut second = Allocator::with(device, Settings::default(), Rules::default(), Vec::new());
    for segment in &segments {
        second.adopt(segment).unwrap();
        assert!(second.adopt(segment).is_err(), "it is there already");
    }
    second.check().unwrap();
    assert_eq!(second.segments(), first.segments());
    first.sink_mut().clear();
    for torch in [&mut first, &mut second] {
        torch.complete_free(pending).unwrap();
        for (step, &addr) in (0_u64..).zip(&live) {
            torch.free(addr).unwrap();
            torch
                .malloc(
                    512 + step * 6_000_011 % (40 * MIB),
                    streams[step as usize % 2],
                )
                .unwrap();
        }
        torch.check().unwrap();
    }
    assert_eq!(first.sink(), second.sink());
    assert_eq!(first.segments(), second.segments());
}

#[test]
fn a_pool_without_users_serves_nothing() {
    let mut torch = torch(1 << 30, "");
    let pool = PoolId(0, 1);
    torch.create_pool(pool).unwrap();
    let addr = torch.malloc_in(pool, MIB, StreamId(0)).unwrap();
    torch.destroy_pool(pool).unwrap();
    // The pool stays while the block lives, but a request could outlive it.
    assert!(torch.malloc_in(pool, MIB, StreamId(0)).is_err());
    torch.free(addr).unwrap();
    torch.empty_cache().unwrap();
    assert_eq!(torch.reserved(), 0);
    torch.check().unwrap();
}

#[test]
fn releases_break_ties_differently() {
    // Two equal segments, the first one at the higher address.
    for (minor, tie_break, first_made_wins) in [
        (11, TieBreak::Address, false),
        (12, TieBreak::Object, true),
        (15, TieBreak::Segment, true),
    ] {
        let rules = Rules::for_version(Version(2, minor));
        assert_eq!(rules.tie_break, tie_break);
        let device = Controlled::new(1 << 30, AddressOrder::Descending);
        let mut torch = Allocator::with(device, Settings::default(), rules, ());
        let first = torch.malloc(32 * MIB, StreamId(0)).unwrap();
        let second = torch.malloc(32 * MIB, StreamId(0)).unwrap();
        assert!(second < first);
        torch.free(first).unwrap();
        torch.free(second).unwrap();
        let expected = if first_made_wins { first } else { second };
        assert_eq!(
            torch.malloc(32 * MIB, StreamId(0)),
            Ok(expected),
            "2.{minor}"
        );
    }
}

#[test]
fn what_torch_leaves_open_is_flagged() {
    let mut torch = torch(120 * MIB, "");
    let first = torch.malloc(60 * MIB, StreamId(0)).unwrap();
    torch.free(first).unwrap();
    torch.malloc(4 * MIB, StreamId(0)).unwrap();
    torch.update_settings("max_split_size_mb:30").unwrap();
    let undefined = Err(Error::Undefined(Undefined::SplitBlockReleased));
    assert_eq!(torch.malloc(70 * MIB, StreamId(0)), undefined);
    assert!(torch.undefined().contains(&Undefined::SplitBlockReleased));
    torch.check().unwrap();
}

/// Seen in torch 2.15: uses in a capture outlive a block that is freed after it.
#[test]
fn uses_that_torch_forgets_to_forget_are_flagged() {
    let mut torch = torch(1 << 30, "");
    let (own, other) = (StreamId(0), StreamId(0x40));
    let first = torch.malloc(30 * MIB, own).unwrap();
    torch.set_capturing(true);
    torch.record_stream(first, other).unwrap();
    torch.set_capturing(false);
    torch.free(first).unwrap();
    // The next block's free, deferred, should wait for the stream; torch may not.
    let second = torch.malloc(30 * MIB, own).unwrap();
    torch.record_stream(second, other).unwrap();
    torch.set_capturing(true);
    torch.free(second).unwrap();
    torch.set_capturing(false);
    assert!(torch.undefined().is_empty());
    torch.malloc(1, own).unwrap();
    assert!(torch.undefined().contains(&Undefined::StaleCaptureUses));
    torch.check().unwrap();
}

/// Seen in torch 2.15: a pool whose `MemPool` is gone no longer serves others,
/// even if a graph keeps it.
#[test]
fn a_pool_that_is_gone_helps_out_no_more() {
    for gone in [false, true] {
        let mut torch = torch(450 * MIB, "");
        let pool = PoolId(0, 1);
        torch.create_pool(pool).unwrap();
        torch.set_use_on_oom(pool, true);
        torch
            .begin_allocate_to_pool(pool, Scope::Everything)
            .unwrap();
        let block = torch.malloc(400 * MIB, StreamId(0)).unwrap();
        torch.end_allocate_to_pool(pool).unwrap();
        torch.free(block).unwrap();
        if gone {
            torch.destroy_pool(pool).unwrap();
        }
        assert_eq!(torch.malloc(390 * MIB, StreamId(0)).is_err(), gone);
        torch.check().unwrap();
    }
}

#[test]
fn a_script_that_is_no_script_says_so() {
    let mut script = Script::default();
    assert!(script.line("> malloc 1 2 3").is_err());
    assert!(script.line("> device x ascending").is_err());
    assert_eq!(script.line("# a comment"), Ok(String::new()));
}
