// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operations of several threads on real memory of the host, while pages
//! move: every block holds what its own stream wrote to it until it is freed.
//!
//! Streams lag behind: what a thread writes is work of its stream, and is done
//! when a thread waits for it. Memory that is unmapped under such work, or given
//! to another stream too early, makes the work fail or the pattern wrong.
//!
//! `TONNAGE_OPERATIONS` reports how many operations there are in all; CI has a slice.
#![expect(clippy::unwrap_used, reason = "a test that cannot start has failed")]
#![cfg(not(feature = "shuttle"))]

mod raw;

use std::sync::Mutex;

use raw::visit;
use tonnage_alloc::StreamId;
use tonnage_alloc::tonnage::Settings;
use tonnage_device_host::HostDevice;
use tonnage_runtime::{Block, Error, Front, Runtime};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 64 * MIB;
/// Bytes at both ends of a block that carry its pattern.
const EDGE: u64 = 64;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Mostly small, some of many pages. Half of them are sizes that come again.
    fn size(&mut self) -> u64 {
        let base = [512, 2048, 20_000, 300_000, MIB, 3 * MIB, 7 * MIB];
        let weights = [5, 5, 5, 3, 2, 1, 1];
        let mut pick = self.below(weights.iter().sum());
        for (base, weight) in base.into_iter().zip(weights) {
            if pick < weight {
                return base + [0, self.below(base)][self.below(2) as usize];
            }
            pick -= weight;
        }
        MIB
    }
}

struct Held {
    block: Block<HostDevice>,
    pattern: u8,
}

/// One thread with its stream.
struct Program<'a> {
    runtime: &'a Runtime<HostDevice>,
    front: Front<HostDevice>,
    stream: StreamId,
    random: Random,
    held: Vec<Held>,
    live: u64,
    /// Bytes it holds at most.
    share: u64,
    /// Blocks that any thread may free.
    given_away: &'a Mutex<Vec<Held>>,
    refused: u64,
}

impl Program<'_> {
    fn edges(block: &Block<HostDevice>) -> [tonnage_alloc::DeviceAddr; 2] {
        [block.addr(), block.addr().offset(block.size() - EDGE)]
    }

    fn alloc(&mut self) {
        let bytes = self.random.size();
        let block = match self.front.alloc(bytes) {
            Ok(block) => block,
            Err(Error::OutOfMemory(_)) => {
                self.refused += 1;
                while self.held.len() > 4 {
                    self.free_one(true);
                }
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(block.size() >= bytes);
        let pattern = self.random.below(256) as u8;
        let stream = self.stream;
        visit(self.runtime, |device| {
            for edge in Self::edges(&block) {
                device.enqueue_fill(stream, edge, EDGE, pattern);
            }
        })
        .unwrap();
        self.live += block.size();
        self.held.push(Held { block, pattern });
    }

    /// Lets the block's stream catch up and compares its pattern.
    fn check(&self, held: &Held) {
        let (stream, pattern) = (held.block.stream(), held.pattern);
        visit(self.runtime, |device| {
            let ran = device.run_stream(stream);
            assert_eq!(ran, Ok(()), "memory was unmapped while a stream used it");
            for edge in Self::edges(&held.block) {
                let mut bytes = [0; EDGE as usize];
                device.read(edge, &mut bytes).unwrap();
                assert_eq!(bytes, [pattern; EDGE as usize], "a block has changed");
            }
        })
        .unwrap();
    }

    fn free_one(&mut self, checked: bool) {
        let number = self.random.below(self.held.len() as u64) as usize;
        let held = self.held.swap_remove(number);
        self.live -= held.block.size();
        if checked {
            self.check(&held);
        }
        drop(held.block);
    }

    fn step(&mut self) {
        let full = self.live > self.share;
        match self.random.below(20) {
            0..=9 if !full => self.alloc(),
            0..=15 if !self.held.is_empty() => {
                let checked = self.random.below(2) == 0;
                self.free_one(checked);
            }
            16 if !self.held.is_empty() => {
                // Another thread is to free the youngest, which its stream may still have to write to.
                let held = self.held.pop().unwrap();
                self.live -= held.block.size();
                self.given_away.lock().unwrap().push(held);
            }
            17 => {
                let taken = self.given_away.lock().unwrap().pop();
                if let Some(held) = taken {
                    // Often while the stream of its thread has still to write to it.
                    if self.random.below(4) == 0 {
                        self.check(&held);
                    }
                    drop(held.block);
                }
            }
            18 if !self.held.is_empty() => {
                // A side stream uses it too, and is late.
                let mut held = self.held.swap_remove(0);
                self.live -= held.block.size();
                self.check(&held);
                let side = StreamId(0x9000 + self.stream.0);
                held.block.record_stream(side).unwrap();
                let addr = held.block.addr();
                visit(self.runtime, |device| {
                    device.enqueue_fill(side, addr, EDGE, 0xEE);
                })
                .unwrap();
                drop(held.block);
            }
            19 if self.random.below(500) == 0 => self.runtime.empty_cache().unwrap(),
            _ => {}
        }
    }
}

#[expect(clippy::print_stderr, reason = "figures for whoever runs all of it")]
fn run(threads: u64, operations: u64) {
    let device = HostDevice::new(TOTAL).unwrap();
    let runtime = Runtime::new(device, Settings::default());
    let given_away = Mutex::new(Vec::new());
    let refused: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (runtime, given_away) = (&runtime, &given_away);
                scope.spawn(move || {
                    let stream = StreamId(0x40 * (number + 1));
                    let mut program = Program {
                        runtime,
                        front: runtime.front(stream),
                        stream,
                        random: Random(number + 1),
                        held: Vec::new(),
                        live: 0,
                        share: TOTAL * 3 / 4 / threads,
                        given_away,
                        refused: 0,
                    };
                    for step in 0..operations / threads {
                        program.step();
                        if step % 4096 == 0 {
                            assert_eq!(runtime.check(), Ok(()));
                        }
                    }
                    while !program.held.is_empty() {
                        program.free_one(true);
                    }
                    program.refused
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    for held in given_away.into_inner().unwrap() {
        drop(held.block);
    }
    assert_eq!(runtime.check(), Ok(()));
    assert_eq!(
        runtime.count_kept(),
        (0, 0),
        "fronts gave back what they kept"
    );
    runtime.empty_cache().unwrap();
    let statistics = runtime.statistics().unwrap();
    assert_eq!((statistics.blocks, statistics.pending), (0, 0));
    assert_eq!(statistics.reserved.now, 0);
    assert!(statistics.pages_moved > 0, "no page moved");
    assert!(
        statistics.served < operations,
        "every request took the lock"
    );
    runtime.close().unwrap();
    let events = visit(&runtime, |device| device.live_events());
    assert_eq!(events, Ok(0));
    eprintln!(
        "{threads} threads: {} requests reached the allocator, {} pages moved, {} waits, {refused} refused",
        statistics.served, statistics.pages_moved, statistics.waits
    );
}

fn operations() -> u64 {
    let given = std::env::var("TONNAGE_OPERATIONS").ok();
    given.map_or(150_000, |text| text.parse().unwrap())
}

#[test]
fn one_thread() {
    run(1, operations());
}

#[test]
fn two_threads() {
    run(2, operations());
}

#[test]
fn four_threads() {
    run(4, operations());
}
