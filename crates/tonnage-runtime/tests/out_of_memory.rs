// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is tried before a request is refused, each step alone and in order, with
//! real bytes; and every single call of the device fails once on the way.
#![expect(clippy::unwrap_used, reason = "a call that fails fails the test")]
#![cfg(not(feature = "shuttle"))]

mod raw;

use std::sync::{Arc, Mutex};

use raw::{free, visit};
use tonnage_alloc::tonnage::{EventKind, SearchStep, Settings};
use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{Device, DeviceAddr, DeviceError, Request, StreamId, Tag};
use tonnage_conformance::{Checked, TestDevice};
use tonnage_device_host::HostDevice;
use tonnage_runtime::{Error, OutOfMemory, Runtime};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 64 * MIB;
const STREAM: StreamId = StreamId(0);
const FIRST: Tag = Tag(1);
const SECOND: Tag = Tag(2);

fn runtime() -> Runtime<HostDevice> {
    let device = HostDevice::new(TOTAL).unwrap();
    Runtime::new(device, Settings::default())
}

fn ask(bytes: u64) -> Request {
    Request::new(bytes, STREAM)
}

/// The steps that were taken, from the ring of events, and whether requests were refused.
fn searched(runtime: &Runtime<HostDevice>) -> (Vec<SearchStep>, usize) {
    let events = runtime.events().unwrap().events;
    let refused = events.iter().filter(|one| one.kind == EventKind::Refused);
    let refused = refused.count();
    let search_steps = events.iter().filter_map(|one| match one.kind {
        EventKind::Search(step) => Some(step),
        _ => None,
    });
    (search_steps.collect(), refused)
}

fn short<T: std::fmt::Debug>(result: Result<T, Error>) -> OutOfMemory {
    match result {
        Err(Error::OutOfMemory(short) | Error::TooLarge(short)) => *short,
        other => panic!("{other:?}"),
    }
}

/// Writes a byte to some places of every page of a block.
fn fill<D: TestDevice>(runtime: &Runtime<D>, block: DeviceAddr, bytes: u64, byte: u8) {
    for place in (0..bytes).step_by(MIB as usize) {
        let written = visit(runtime, |device| {
            device.write(block.offset(place), &[byte; 64])
        });
        written.unwrap().unwrap();
    }
}

/// Whether it is still there.
fn holds<D: TestDevice>(runtime: &Runtime<D>, block: DeviceAddr, bytes: u64, byte: u8) -> bool {
    (0..bytes).step_by(MIB as usize).all(|place| {
        let mut read = [0; 64];
        let result = visit(runtime, |device| {
            device.read(block.offset(place), &mut read)
        });
        result.unwrap().is_ok() && read == [byte; 64]
    })
}

#[test]
fn what_fronts_keep_is_taken_first_and_a_served_request_is_not_refused() {
    let runtime = runtime();
    let mut front = runtime.front(StreamId(1));
    let blocks: Vec<_> = (0..1024).map(|_| front.alloc(MIB / 16).unwrap()).collect();
    for block in blocks {
        drop(block);
    }
    assert!(runtime.count_kept().1 > 0);
    let called = Arc::new(Mutex::new(0));
    let calls = Arc::clone(&called);
    runtime.on_shortage(move |_| {
        *calls.lock().unwrap() += 1;
        0
    });
    runtime.alloc_raw(ask(TOTAL)).unwrap();
    let now = runtime.statistics().unwrap();
    assert_eq!((now.refused, searched(&runtime).1), (0, 0), "it was served");
    assert!(searched(&runtime).0.contains(&SearchStep::Fronts));
    assert_eq!(
        (
            now.search_steps.tried(SearchStep::Fronts),
            now.search_steps.helped(SearchStep::Fronts)
        ),
        (1, 1)
    );
    assert_eq!(*called.lock().unwrap(), 0, "nobody had to free anything");
}

#[test]
fn callbacks_are_called_in_order_until_the_request_is_served() {
    let runtime = runtime();
    let cached: Vec<DeviceAddr> = (0..3)
        .map(|_| runtime.alloc_raw(ask(20 * MIB)).unwrap())
        .collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (number, block) in cached.into_iter().enumerate() {
        let (owner, order) = (runtime.downgrade(), Arc::clone(&order));
        let block = Mutex::new(Some(block));
        runtime.on_shortage(move |bytes| {
            order.lock().unwrap().push((number, bytes));
            let runtime = owner.upgrade().unwrap();
            // No lock is held, and a request in here calls no callback.
            assert!(runtime.alloc_raw(ask(TOTAL)).is_err());
            match block.lock().unwrap().take() {
                Some(block) => free(&runtime, block).map_or(0, |()| 20 * MIB),
                None => 0,
            }
        });
    }
    let nothing = runtime.on_shortage(|_| panic!("it was removed"));
    assert!(runtime.remove_callback(nothing) && !runtime.remove_callback(nothing));
    runtime.alloc_raw(ask(40 * MIB)).unwrap();
    assert_eq!(*order.lock().unwrap(), [(0, 40 * MIB), (1, 40 * MIB)]);
    let search_steps = runtime.statistics().unwrap().search_steps;
    assert_eq!(
        (
            search_steps.tried(SearchStep::Callbacks),
            search_steps.helped(SearchStep::Callbacks)
        ),
        (2, 1)
    );
    // The third has 20 MiB, the first two have nothing any more.
    let refused = short(runtime.alloc_raw(ask(50 * MIB)));
    assert_eq!(order.lock().unwrap().len(), 5);
    assert_eq!(refused.tried.len(), 1);
    assert_eq!(
        (refused.tried[0].step, refused.tried[0].gave),
        (SearchStep::Callbacks, 20 * MIB)
    );
}

#[test]
fn a_callback_that_panics_leaves_the_runtime_in_order() {
    let runtime = runtime();
    runtime.alloc_raw(ask(4 * MIB)).unwrap();
    runtime.on_shortage(|bytes| {
        if bytes > 60 * MIB {
            panic!("on purpose")
        } else {
            0
        }
    });
    let inside = std::panic::AssertUnwindSafe(|| runtime.alloc_raw(ask(63 * MIB)));
    assert!(std::panic::catch_unwind(inside).is_err());
    assert_eq!(runtime.check(), Ok(()));
    runtime.alloc_raw(ask(MIB)).unwrap();
    // This thread is not inside of a callback any more.
    short(runtime.alloc_raw(ask(60 * MIB)));
    assert_eq!(
        runtime
            .statistics()
            .unwrap()
            .search_steps
            .tried(SearchStep::Callbacks),
        2
    );
}

#[test]
fn tags_that_nobody_holds_are_spilled_the_one_held_longest_ago_first() {
    let runtime = runtime();
    for tag in [FIRST, SECOND] {
        runtime.allow_spill(tag).unwrap();
    }
    let first = runtime.alloc_raw(ask(24 * MIB).tagged(FIRST)).unwrap();
    fill(&runtime, first, 24 * MIB, 0x11);
    let second = runtime.alloc_raw(ask(24 * MIB).tagged(SECOND)).unwrap();
    fill(&runtime, second, 24 * MIB, 0x22);
    // The first was used last.
    drop(runtime.hold(FIRST).unwrap());
    let other = runtime.alloc_raw(ask(30 * MIB)).unwrap();
    fill(&runtime, other, 30 * MIB, 0x33);
    assert!(holds(&runtime, first, 24 * MIB, 0x11), "one was enough");
    assert!(!holds(&runtime, second, 1, 0x22), "it has no memory");
    assert_eq!(runtime.kept_on_host().unwrap(), 24 * MIB);
    let search_steps = runtime.statistics().unwrap().search_steps;
    assert_eq!(
        (
            search_steps.tried(SearchStep::Spill),
            search_steps.helped(SearchStep::Spill)
        ),
        (1, 1)
    );
    // Bringing it back spills the other one.
    let hold = runtime.hold(SECOND).unwrap();
    assert!(
        holds(&runtime, second, 24 * MIB, 0x22),
        "at the same address, byte for byte"
    );
    assert!(!holds(&runtime, first, 1, 0x11));
    assert!(holds(&runtime, other, 30 * MIB, 0x33));
    // Memory that is held stays.
    let refused = short(runtime.alloc_raw(ask(30 * MIB)));
    assert!(holds(&runtime, second, 24 * MIB, 0x22));
    let said = refused.to_string();
    assert!(said.contains("tag 2 is held and was not spilled"), "{said}");
    assert!(
        said.contains("Pausing tag 2 would give 24.00 MiB."),
        "{said}"
    );
    let refused = short(runtime.hold(FIRST).map(drop));
    assert_eq!(refused.shortage.missing, 14 * MIB);
    drop(hold);
    free(&runtime, other).unwrap();
    let holding = (runtime.hold(FIRST).unwrap(), runtime.hold(SECOND).unwrap());
    assert!(holds(&runtime, first, 24 * MIB, 0x11) && holds(&runtime, second, 24 * MIB, 0x22));
    drop(holding);
    assert_eq!(
        (runtime.kept_on_host().unwrap(), runtime.check()),
        (0, Ok(()))
    );
    assert!(matches!(
        runtime.allow_spill(Tag::NONE),
        Err(Error::Refused(_))
    ));
    assert!(matches!(runtime.hold(Tag(9)), Err(Error::Refused(_))));
}

#[test]
fn nobody_gives_anything_up_in_vain() {
    let runtime = runtime();
    runtime.on_shortage(|bytes| {
        if bytes > TOTAL {
            panic!("it is too large for the device")
        } else {
            0
        }
    });
    for tag in [FIRST, SECOND] {
        runtime.allow_spill(tag).unwrap();
        let block = runtime.alloc_raw(ask(10 * MIB).tagged(tag)).unwrap();
        fill(&runtime, block, 10 * MIB, 0x11);
    }
    runtime.alloc_raw(ask(30 * MIB)).unwrap();
    short(runtime.alloc_raw(ask(TOTAL + 1)));
    let said = short(runtime.alloc_raw(ask(36 * MIB))).to_string();
    assert!(
        said.contains("spilling what no thread holds, 20971520 bytes, is not enough"),
        "{said}"
    );
    assert_eq!(
        runtime
            .statistics()
            .unwrap()
            .search_steps
            .tried(SearchStep::Spill),
        0
    );
    // Both are needed for this, and both make way.
    runtime.alloc_raw(ask(34 * MIB)).unwrap();
    assert_eq!(
        runtime
            .statistics()
            .unwrap()
            .search_steps
            .tried(SearchStep::Spill),
        2
    );
    assert_eq!(runtime.kept_on_host().unwrap(), 20 * MIB);
}

#[test]
fn nothing_is_spilled_while_a_graph_is_captured() {
    let runtime = runtime();
    runtime.allow_spill(FIRST).unwrap();
    let first = runtime.alloc_raw(ask(40 * MIB).tagged(FIRST)).unwrap();
    fill(&runtime, first, 40 * MIB, 0x11);
    runtime.begin_capture().unwrap();
    let refused = short(runtime.alloc_raw(ask(30 * MIB).in_pool(PoolId(1, 0))));
    assert!(refused.shortage.capturing);
    let said = refused.to_string();
    assert!(
        said.contains("nothing was spilled while a graph is captured"),
        "{said}"
    );
    assert!(said.contains("request it before the capture"), "{said}");
    runtime.end_capture().unwrap();
    assert!(holds(&runtime, first, 40 * MIB, 0x11));
    runtime.alloc_raw(ask(30 * MIB)).unwrap();
    assert!(!holds(&runtime, first, 1, 0x11));
}

#[test]
fn the_error_says_what_there_is_and_what_would_help() {
    let runtime = runtime();
    // Half of each page is free.
    let mut blocks: Vec<DeviceAddr> = (0..48)
        .map(|_| runtime.alloc_raw(ask(MIB)).unwrap())
        .collect();
    for number in (0..24).rev() {
        free(&runtime, blocks.remove(2 * number)).unwrap();
    }
    let tagged = runtime.alloc_raw(ask(6 * MIB).tagged(FIRST)).unwrap();
    let refused = short(runtime.alloc_raw(ask(20 * MIB)));
    let there = &refused.shortage;
    assert_eq!((there.requested, there.total), (20 * MIB, TOTAL));
    assert_eq!((there.live, there.reserved), (30 * MIB, 54 * MIB));
    assert_eq!((there.free, there.largest), (24 * MIB, MIB));
    assert_eq!((there.device_free, there.others()), (10 * MIB, Some(0)));
    assert_eq!(there.missing, 10 * MIB);
    assert_eq!(
        there.tags[0].pausable,
        6 * MIB,
        "not enough, so it is not proposed"
    );
    assert_eq!(
        refused.to_string(),
        "out of memory: 20.00 MiB requested, 10.00 MiB are missing. The allocator holds 54.00 MiB of 64.00 MiB, 30.00 MiB \
         of it in live blocks and 24.00 MiB free, the largest piece 1.00 MiB; 10.00 MiB are free on the device."
    );
    assert_eq!(
        (runtime.statistics().unwrap().refused, searched(&runtime).1),
        (1, 1)
    );
    // The reported shortage is exact: five pages more, and it is served.
    for block in blocks.drain(..4) {
        free(&runtime, block).unwrap();
    }
    let refused = short(runtime.alloc_raw(ask(20 * MIB)));
    assert_eq!(refused.shortage.missing, 2 * MIB);
    free(&runtime, blocks.remove(0)).unwrap();
    runtime.alloc_raw(ask(20 * MIB)).unwrap();
    free(&runtime, tagged).unwrap();
    runtime.set_limit(Some(60 * MIB)).unwrap();
    let refused = short(runtime.alloc_raw(ask(16 * MIB)));
    assert!(
        !refused.shortage.is_limited() || refused.to_string().contains("The limit of 60.00 MiB")
    );
    let refused = short(runtime.alloc_raw(ask(65 * MIB)));
    assert!(
        refused
            .to_string()
            .contains("No device of this size serves it."),
        "{refused}"
    );
}

#[test]
fn a_limit_is_named_if_it_is_the_reason() {
    let device = HostDevice::new(TOTAL).unwrap();
    let runtime = Runtime::new(device, Settings::default().with_limit(32 * MIB));
    runtime.alloc_raw(ask(20 * MIB)).unwrap();
    let refused = short(runtime.alloc_raw(ask(20 * MIB)));
    assert_eq!(refused.shortage.missing, 8 * MIB);
    let said = refused.to_string();
    assert!(
        said.contains("The limit of 32.00 MiB is the reason: the device has 44.00 MiB free."),
        "{said}"
    );
}

/// A program that spills, in which every call is made until it succeeds.
struct Program {
    runtime: Runtime<Checked<HostDevice>>,
    failures: u64,
}

impl Program {
    fn insist<T>(&mut self, call: impl Fn(&Runtime<Checked<HostDevice>>) -> Result<T, Error>) -> T {
        let runtime = self.runtime.clone();
        loop {
            let result = call(&runtime);
            self.check();
            match result {
                Ok(value) => return value,
                Err(Error::Device(DeviceError::Driver { .. })) => {
                    self.failures += 1;
                }
                Err(error) => panic!("after {} failures: {error}", self.failures),
            }
            assert!(
                self.failures <= 2,
                "the failure is reported again and again"
            );
        }
    }

    fn check(&self) {
        assert_eq!(self.runtime.check(), Ok(()));
        let reserved = self.runtime.statistics().unwrap().reserved.now;
        let held = visit(&self.runtime, |device| {
            assert_eq!(device.problems(), &[] as &[String]);
            device.held_bytes()
        });
        assert_eq!(held, Ok(reserved), "memory is lost");
    }

    fn run(mut self) -> u64 {
        let cached = Mutex::new(Some(self.insist(|runtime| runtime.alloc_raw(ask(2 * MIB)))));
        let owner = self.runtime.downgrade();
        self.runtime.on_shortage(move |_| {
            let runtime = owner.upgrade().unwrap();
            let block = cached.lock().unwrap().take();
            block.map_or(0, |block| free(&runtime, block).map_or(0, |()| 2 * MIB))
        });
        let mut blocks = Vec::new();
        for (tag, byte) in [(FIRST, 0x11), (SECOND, 0x22)] {
            self.runtime.allow_spill(tag).unwrap();
            let block = self.insist(|runtime| runtime.alloc_raw(ask(4 * MIB).tagged(tag)));
            fill(&self.runtime, block, 4 * MIB, byte);
            blocks.push((tag, block, byte));
        }
        // The callback gives 2 MiB, which is not enough; the first tag gives the rest.
        let other = self.insist(|runtime| runtime.alloc_raw(ask(6 * MIB)));
        fill(&self.runtime, other, 6 * MIB, 0x33);
        for _ in 0..2 {
            for &(tag, block, byte) in &blocks {
                let runtime = self.runtime.clone();
                let hold = self.insist(|_| runtime.hold(tag));
                assert!(
                    holds(&runtime, block, 4 * MIB, byte),
                    "tag {} has other bytes",
                    tag.0
                );
                assert!(holds(&runtime, other, 6 * MIB, 0x33));
                drop(hold);
            }
        }
        let spilled = self
            .runtime
            .statistics()
            .unwrap()
            .search_steps
            .tried(SearchStep::Spill);
        assert!(spilled >= 4, "{spilled}");
        self.insist(|runtime| free(runtime, other));
        for (tag, block, byte) in blocks {
            let runtime = self.runtime.clone();
            let hold = self.insist(|_| runtime.hold(tag));
            assert!(holds(&runtime, block, 4 * MIB, byte));
            drop(hold);
            self.insist(|runtime| free(runtime, block));
        }
        self.insist(Runtime::close);
        let left = visit(&self.runtime, |device| device.left());
        assert_eq!(left.as_deref(), Ok(""));
        assert_eq!(self.runtime.kept_on_host().unwrap(), 0);
        visit(&self.runtime, |device| device.failed()).unwrap()
    }
}

#[test]
fn every_call_fails_once_while_memory_is_spilled() {
    let mut after = 0;
    loop {
        let mut device = Checked::new(HostDevice::new(12 * MIB).unwrap());
        device.fail_times(after, 1);
        let total = device.total();
        let runtime = Runtime::new(device, Settings::default());
        assert_eq!(total, 12 * MIB);
        let program = Program {
            runtime,
            failures: 0,
        };
        if program.run() == 0 {
            break;
        }
        after += 1;
    }
    assert!(after > 100, "{after} calls");
}
