// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scenario of the tonnage allocator in which each call of the device fails in
//! turn: what was begun is undone, nothing is lost, and the same request then
//! succeeds.

use tonnage_alloc::tonnage::{Allocator, AllocatorPlan, Settings, Statistics};
use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{DeviceAddr, DeviceError, Policy, PolicyError, Request, StreamId, Tag};

use crate::{Checked, TestDevice};

const MIB: u64 = 1 << 20;
const GRAPH: PoolId = PoolId(1, 0);
const WEIGHTS: Tag = Tag(7);

/// A block, and the byte that is in its first and last place.
#[derive(Clone, Copy, Debug)]
struct Held {
    addr: DeviceAddr,
    size: u64,
    byte: u8,
    tag: Tag,
}

/// A program in which every call is made until it succeeds.
struct Program<D: TestDevice> {
    allocator: Allocator<Checked<D>>,
    held: Vec<Held>,
    failures: u64,
    made: u8,
    /// The parts that may have no memory now.
    paused: Option<Tag>,
}

impl<D: TestDevice> Program<D> {
    fn new(device: D, settings: Settings, plan: Option<&AllocatorPlan>) -> Self {
        let device = Checked::new(device);
        Self {
            allocator: match plan {
                Some(plan) => Allocator::with_plan(device, settings, plan),
                None => Allocator::new(device, settings),
            },
            held: Vec::new(),
            failures: 0,
            made: 0,
            paused: None,
        }
    }

    /// Makes a call until it succeeds; with `undone`, a failure must change nothing.
    fn insist<T>(
        &mut self,
        undone: bool,
        call: impl Fn(&mut Allocator<Checked<D>>) -> Result<T, PolicyError>,
    ) -> T {
        loop {
            let before = self.allocator.statistics();
            match call(&mut self.allocator) {
                Ok(value) => {
                    self.check();
                    return value;
                }
                Err(PolicyError::Device(DeviceError::Driver { .. })) => self.failures += 1,
                Err(error) => panic!("after {} failures: {error}", self.failures),
            }
            assert!(
                self.failures <= 3,
                "the failure is reported again and again"
            );
            self.check();
            if undone && self.allocator.device().failed() == 1 {
                same(&before, &self.allocator.statistics());
            }
        }
    }

    fn alloc(&mut self, request: Request) {
        let addr = self.insist(true, |allocator| allocator.alloc(request));
        let size = self.allocator.size_of(addr).unwrap_or(0);
        assert!(size >= request.bytes);
        self.made += 1;
        let held = Held {
            addr,
            size,
            byte: self.made,
            tag: request.tag,
        };
        self.write(held);
        self.held.push(held);
    }

    fn write(&mut self, held: Held) {
        let device = self.allocator.device_mut();
        for at in [held.addr, held.addr.offset(held.size - 1)] {
            let written = device.write(at, &[held.byte]);
            assert_eq!(written, Ok(()), "a block without memory");
        }
    }

    fn free(&mut self, number: usize) {
        let Held { addr, .. } = self.held.swap_remove(number);
        self.insist(true, |allocator| allocator.free(addr));
    }

    fn free_later(&mut self, number: usize, stream: StreamId) {
        let addr = self.held[number].addr;
        self.insist(true, |allocator| allocator.record_stream(addr, stream));
        self.free(number);
    }

    fn check(&self) {
        assert_eq!(self.allocator.check(), Ok(()));
        let device = self.allocator.device();
        assert_eq!(device.problems(), &[] as &[String]);
        assert_eq!(
            self.allocator.reserved(),
            device.held_bytes(),
            "memory is lost"
        );
        let readable = |held: &&Held| self.paused != Some(held.tag);
        for held in self.held.iter().filter(readable) {
            for at in [held.addr, held.addr.offset(held.size - 1)] {
                let mut byte = [held.byte];
                let read = device.read(at, &mut byte);
                assert!(read.is_ok(), "{read:?}");
                assert_eq!(byte, [held.byte], "the bytes of {held:?} have changed");
            }
        }
    }

    /// Pauses blocks with a tag, frees one of them meanwhile, uses their memory for something else, and resumes the rest.
    fn run_pausing(mut self) -> u64 {
        let ask = |bytes| Request::new(bytes, StreamId(0));
        for bytes in [5 * MIB, 3 * MIB, 4 * MIB + 512, 7 * MIB] {
            self.alloc(ask(bytes).tagged(WEIGHTS));
        }
        self.alloc(ask(600));
        let reserved = self.allocator.reserved();
        let failed = self.failures;
        // Either all of it has its memory and its bytes, or it is paused; where undoing failed, parts of it.
        self.paused = Some(WEIGHTS);
        let given = self.insist(true, |allocator| allocator.pause(WEIGHTS));
        if self.failures == failed {
            assert_eq!(
                self.allocator.reserved(),
                reserved - given,
                "not all of it came back"
            );
        }
        assert_eq!(self.allocator.statistics().paused, 18 * MIB);
        if D::CHECKS_ACCESS {
            let inside = self.held[0].addr.offset(2 * MIB);
            assert!(self.allocator.device_mut().write(inside, &[1]).is_err());
        }
        self.alloc(ask(9 * MIB));
        self.free(1);
        self.insist(true, |allocator| allocator.resume(WEIGHTS));
        assert_eq!(self.allocator.statistics().paused, 0);
        // The bytes do not matter here.
        for held in self.held.clone() {
            self.write(held);
        }
        self.paused = None;
        self.check();
        self.paused = Some(WEIGHTS);
        self.insist(false, |allocator| allocator.pause(WEIGHTS));
        while let Some(last) = self.held.len().checked_sub(1) {
            self.free(last);
        }
        assert_eq!(
            self.allocator.statistics().paused,
            0,
            "no block has it any more"
        );
        self.insist(false, Policy::close);
        assert_eq!(self.allocator.device().left(), "");
        assert_eq!(self.allocator.reserved(), 0);
        // A pause does not fail because the device does not take memory back.
        self.allocator.device().failed()
    }

    /// Fills the device, makes holes, and requests more than any hole has.
    fn run(mut self) -> u64 {
        let ask = |bytes, stream| Request::new(bytes, StreamId(stream));
        for number in 0..14 {
            self.alloc(ask(2 * MIB, number % 2));
        }
        self.alloc(ask(600, 0));
        for number in [12, 10, 8, 6] {
            self.free(number);
        }
        self.alloc(ask(9 * MIB + 512, 0));
        self.free_later(3, StreamId(7));
        self.free_later(1, StreamId(8));
        self.alloc(ask(3 * MIB, 1));
        self.insist(false, Policy::process_events);
        self.free(0);
        self.insist(false, |allocator| allocator.empty_cache(PoolId::DEFAULT));
        self.alloc(ask(MIB, 0).in_pool(GRAPH));
        self.alloc(ask(4 * MIB, 2));
        while let Some(last) = self.held.len().checked_sub(1) {
            self.free(last);
        }
        self.insist(false, |allocator| allocator.release_pool(GRAPH));
        self.insist(false, Policy::close);
        assert_eq!(self.allocator.device().left(), "");
        assert_eq!(self.allocator.reserved(), 0);
        self.failures
    }
}

/// The state that a failed call must not change.
fn same(before: &Statistics, after: &Statistics) {
    // A free that waited may have been completed before the failure.
    if before.pending == after.pending {
        assert_eq!(before.requested, after.requested);
        assert_eq!(before.allocated, after.allocated);
    }
    assert_eq!(before.reserved, after.reserved, "not everything was undone");
}

/// Fails each call of the scenario in turn, `times` in a row; answers with how many there were. `make` gives a fresh
/// device with 32 MiB free each time.
///
/// # Panics
/// If something is lost or not undone, or if a call fails again after the device works again.
pub fn every_call_fails<D: TestDevice>(
    make: impl Fn() -> D,
    settings: &Settings,
    times: u64,
) -> u64 {
    every_call_fails_with(make, settings, None, times)
}

/// The same, with a plan that the allocator follows.
///
/// # Panics
/// If something is lost or not undone, or if a call fails again after the device works again.
pub fn every_call_fails_with<D: TestDevice>(
    make: impl Fn() -> D,
    settings: &Settings,
    plan: Option<&AllocatorPlan>,
    times: u64,
) -> u64 {
    in_turn(make, settings, plan, times, Program::run)
}

/// The same with a scenario in which blocks are paused and resumed.
///
/// # Panics
/// If something is lost or not undone, or if a call fails again after the device works again.
pub fn every_call_fails_while_pausing<D: TestDevice>(make: impl Fn() -> D, times: u64) -> u64 {
    let settings = Settings::default();
    in_turn(make, &settings, None, times, Program::run_pausing)
}

fn in_turn<D: TestDevice>(
    make: impl Fn() -> D,
    settings: &Settings,
    plan: Option<&AllocatorPlan>,
    times: u64,
    run: impl Fn(Program<D>) -> u64,
) -> u64 {
    let mut after = 0;
    loop {
        let mut program = Program::new(make(), settings.clone(), plan);
        let device = program.allocator.device_mut();
        device.fail_times(after, times);
        if run(program) == 0 {
            return after;
        }
        after += 1;
    }
}
