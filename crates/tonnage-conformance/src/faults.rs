// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scenario of the tonnage allocator in which each call of the device fails in
//! turn: what was begun is undone, nothing is lost, and the same request then
//! succeeds.

use tonnage_alloc::tonnage::{Allocator, Plan, Settings, Statistics};
use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{DeviceAddr, DeviceError, Policy, PolicyError, Request, StreamId};

use crate::{Checked, TestDevice};

const MIB: u64 = 1 << 20;
const GRAPH: PoolId = PoolId(1, 0);

/// A block, and the byte that is in its first and last place.
#[derive(Clone, Copy, Debug)]
struct Held {
    addr: DeviceAddr,
    size: u64,
    byte: u8,
}

/// A program in which every call is made until it succeeds.
struct Program<D> {
    allocator: Allocator<Checked<D>>,
    held: Vec<Held>,
    failures: u64,
    made: u8,
}

impl<D: TestDevice> Program<D> {
    fn new(device: D, settings: Settings, plan: Option<&Plan>) -> Self {
        let device = Checked::new(device);
        Self {
            allocator: match plan {
                Some(plan) => Allocator::with_plan(device, settings, plan),
                None => Allocator::new(device, settings),
            },
            held: Vec::new(),
            failures: 0,
            made: 0,
        }
    }

    /// Makes a call until it succeeds; `undone` says that a failure must change nothing.
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
            assert!(self.failures <= 3, "the failure is told again and again");
            self.check();
            if undone && self.allocator.device().failed() == 1 {
                same(before, self.allocator.statistics());
            }
        }
    }

    fn alloc(&mut self, request: Request) {
        let addr = self.insist(true, |allocator| allocator.alloc(request));
        let size = self.allocator.size_of(addr).unwrap_or(0);
        assert!(size >= request.bytes);
        self.made += 1;
        let byte = self.made;
        let device = self.allocator.device_mut();
        for at in [addr, addr.offset(size - 1)] {
            assert_eq!(device.write(at, &[byte]), Ok(()), "a block without memory");
        }
        self.held.push(Held { addr, size, byte });
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
        assert_eq!(self.allocator.reserved(), device.held(), "memory is lost");
        for held in &self.held {
            for at in [held.addr, held.addr.offset(held.size - 1)] {
                let mut byte = [held.byte];
                let read = device.read(at, &mut byte);
                assert!(read.is_ok(), "{read:?}");
                assert_eq!(byte, [held.byte], "the bytes of {held:?} have changed");
            }
        }
    }

    /// Fills the device, makes holes, and asks for more than any hole has.
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

/// What a call that failed must leave as it was.
fn same(before: Statistics, after: Statistics) {
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
    plan: Option<&Plan>,
    times: u64,
) -> u64 {
    let mut after = 0;
    loop {
        let mut program = Program::new(make(), settings.clone(), plan);
        let device = program.allocator.device_mut();
        device.fail_times(after, times);
        let failures = program.run();
        if failures == 0 {
            return after;
        }
        after += 1;
    }
}
