// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random sequences of all calls without `unsafe`, on two runtimes with real memory, by several threads that exchange
//! their blocks. A block has a pattern at both ends, which nothing but its owner may change.
//!
//! `TONNAGE_OPERATIONS` is the number of operations for each number of threads; CI runs a slice.
#![expect(clippy::unwrap_used, reason = "a call that fails fails the test")]
#![cfg(not(feature = "shuttle"))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use tonnage_device_host::HostDevice;
use tonnage_runtime::{
    Block, Error, Front, Kept, PoolId, Request, Runtime, Settings, StreamId, Tag, Tenant,
};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 48 * MIB;
const SIZES: [u64; 8] = [1, 700, 4096, 60_000, 300_000, MIB, 3 * MIB, 6 * MIB];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Mostly small.
    fn size(&mut self) -> u64 {
        let class = self.below(8).min(self.below(8)) as usize;
        SIZES[class] + self.below(2) * self.below(SIZES[class])
    }
}

/// A block and its pattern.
struct Held {
    block: Block<HostDevice>,
    pattern: [u8; 8],
}

/// Writes a pattern to both ends.
fn fill(block: &mut Block<HostDevice>, pattern: [u8; 8]) -> Result<(), Error> {
    block.write(0, &pattern)?;
    let end = block.size() - 8;
    block.write(end, &pattern)
}

/// Calls until no other thread captures a graph.
fn insist<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match call() {
            Err(Error::Capture) => std::thread::yield_now(),
            result => return result,
        }
    }
}

fn check(held: &Held) {
    for offset in [0, held.block.size() - 8] {
        let mut bytes = [0; 8];
        insist(|| held.block.read(offset, &mut bytes)).unwrap();
        assert_eq!(bytes, held.pattern, "another owner wrote to a block");
    }
}

/// The part that all threads share.
struct Shared {
    runtimes: [Runtime<HostDevice>; 2],
    tenant: Arc<Tenant>,
    /// Blocks that any thread may drop.
    exchange: Mutex<Vec<Held>>,
    /// Blocks that a callback drops when memory runs short.
    caches: [Arc<Mutex<Vec<Held>>>; 2],
}

struct Program<'a> {
    shared: &'a Shared,
    number: u64,
    fronts: [Front<HostDevice>; 2],
    random: Random,
    held: Vec<Held>,
    patterns: u64,
    refused: u64,
}

impl Program<'_> {
    fn stream(&self, which: usize) -> StreamId {
        StreamId(0x40 * (self.number + 1) + which as u64)
    }

    /// A tag that no other thread pauses.
    fn tag(&self) -> Tag {
        Tag(self.number as u16 * 2 + 1)
    }

    /// A tag that may be spilled.
    fn spilled(&self) -> Tag {
        Tag(self.number as u16 * 2 + 2)
    }

    fn keep(&mut self, mut block: Block<HostDevice>) {
        self.patterns += 1;
        let pattern = (self.patterns * 64 + self.number).to_le_bytes();
        insist(|| fill(&mut block, pattern)).unwrap();
        self.held.push(Held { block, pattern });
    }

    fn served(&mut self, served: Result<Block<HostDevice>, Error>) {
        match served {
            Ok(block) => self.keep(block),
            Err(Error::OutOfMemory(_) | Error::Quota { .. }) => {
                self.refused += 1;
                self.drop_some();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn take(&mut self) -> Option<Held> {
        let count = self.held.len() as u64;
        (count > 0).then(|| self.held.swap_remove(self.random.below(count) as usize))
    }

    fn drop_some(&mut self) {
        while self.held.len() > 4 {
            let held = self.take().unwrap();
            check(&held);
        }
    }

    fn step(&mut self) {
        let which = self.random.below(2) as usize;
        let shared = self.shared;
        let runtime = &shared.runtimes[which];
        let bytes = self.random.size();
        let request = Request::new(bytes, self.stream(which));
        let few = self.held.len() < 60;
        match self.random.below(64) {
            0..=13 if few => {
                let served = self.fronts[which].alloc(bytes);
                self.served(served);
            }
            14..=17 if few => self.served(runtime.alloc(request)),
            18 if few => {
                let served = self.fronts[which].alloc_for(&shared.tenant, bytes);
                self.served(served);
            }
            19 if few => self.served(runtime.alloc_for(&shared.tenant, request)),
            20 if few => self.served(runtime.alloc(request.in_pool(PoolId(0, self.number + 1)))),
            21..=40 => {
                if let Some(held) = self.take() {
                    check(&held);
                }
            }
            41 | 42 => {
                if let Some(held) = self.take() {
                    shared.exchange.lock().unwrap().push(held);
                }
            }
            43 | 44 => {
                let taken = shared.exchange.lock().unwrap().pop();
                if let Some(held) = taken {
                    check(&held);
                }
            }
            45 => {
                if let Some(mut held) = self.take() {
                    held.block.record_stream(StreamId(7)).unwrap();
                    check(&held);
                }
            }
            46 => self.fronts[which].flush(),
            47 => self.fronts[which] = runtime.front(self.stream(which)),
            48 => {
                // Blocks of any runtime are dropped while this thread has the lock of one.
                let taken = [self.take(), self.take()];
                let inside = runtime.with_device(|_| {
                    drop(taken);
                    runtime.alloc(request).map(drop)
                });
                assert_eq!(inside, Ok(Err(Error::Inside)));
            }
            49 if self.random.below(50) == 0 => {
                let taken = self.take();
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    runtime.with_device(|_| {
                        let _dropped = taken;
                        std::panic::resume_unwind(Box::new("on purpose"));
                    })
                }));
                assert!(panicked.is_err());
            }
            50 => self.pause(runtime, request),
            51 => self.spill(runtime, request),
            52 if self.random.below(20) == 0 => {
                runtime.begin_capture().unwrap();
                if let Ok(block) = self.fronts[which].alloc(bytes) {
                    drop(block);
                }
                runtime.end_capture().unwrap();
            }
            53 if self.random.below(20) == 0 => runtime.empty_cache().unwrap(),
            54 if self.random.below(50) == 0 => match runtime.close() {
                Ok(()) | Err(Error::Live(_) | Error::Capture) => {}
                Err(error) => panic!("{error}"),
            },
            55 if self.random.below(20) == 0 => {
                let limit = self.random.below(2) == 0;
                runtime.set_limit(limit.then_some(TOTAL / 2)).unwrap();
            }
            56 => {
                if let Some(held) = self.take() {
                    shared.caches[self.random.below(2) as usize]
                        .lock()
                        .unwrap()
                        .push(held);
                }
            }
            57 => {
                runtime.begin_step().unwrap();
                runtime.reset_peaks().unwrap();
                let now = runtime.statistics().unwrap();
                assert!(now.allocated.now >= now.requested.now && now.reserved.now <= TOTAL);
            }
            58 if self.random.below(50) == 0 => {
                let snapshot = runtime.snapshot().unwrap();
                let ends = snapshot
                    .blocks
                    .windows(2)
                    .all(|two| two[0].addr.0 + two[0].bytes <= two[1].addr.0);
                assert!(ends, "blocks overlap");
            }
            59 if self.random.below(50) == 0 => assert_eq!(runtime.check(), Ok(())),
            60 if few => {
                // The first owner of a tenant's block may be gone before its front is.
                let mut front = runtime.front(self.stream(which));
                let served = front.alloc(bytes);
                self.served(served);
            }
            61 => {
                let weak = runtime.downgrade();
                assert!(weak.upgrade().is_some());
                assert!(runtime.count_kept().0 <= TOTAL);
            }
            62 => {
                let id = runtime.on_shortage(|_| 0);
                assert!(runtime.remove_callback(id));
            }
            _ => {}
        }
    }

    /// A block gives its memory back and gets it again, with its bytes.
    fn pause(&mut self, runtime: &Runtime<HostDevice>, request: Request) {
        let Ok(mut block) = runtime.alloc(request.tagged(self.tag())) else {
            return;
        };
        let pattern = [0x77; 8];
        insist(|| fill(&mut block, pattern)).unwrap();
        insist(|| runtime.pause(self.tag(), Kept::OnHost)).unwrap();
        if self.random.below(3) == 0 {
            return;
        }
        match insist(|| runtime.resume(self.tag())) {
            Ok(_) => check(&Held { block, pattern }),
            Err(Error::Resume { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// A block makes way for others while it is not held.
    fn spill(&mut self, runtime: &Runtime<HostDevice>, request: Request) {
        let tag = self.spilled();
        runtime.allow_spill(tag).unwrap();
        let hold = runtime.hold(tag).unwrap();
        let Ok(mut block) = runtime.alloc(request.tagged(tag)) else {
            return;
        };
        let pattern = [0x55; 8];
        insist(|| fill(&mut block, pattern)).unwrap();
        drop(hold);
        drop(runtime.alloc(Request::new(TOTAL / 2, request.stream)));
        match insist(|| runtime.hold(tag)) {
            Ok(_hold) => check(&Held { block, pattern }),
            Err(Error::OutOfMemory(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[expect(clippy::print_stderr, reason = "figures for a run of many operations")]
fn run(threads: u64, operations: u64) {
    let runtime = || Runtime::new(HostDevice::new(TOTAL).unwrap(), Settings::default());
    let shared = Shared {
        runtimes: [runtime(), runtime()],
        tenant: Tenant::new("tenant", 20 * MIB),
        exchange: Mutex::default(),
        caches: Default::default(),
    };
    for (runtime, cache) in shared.runtimes.iter().zip(&shared.caches) {
        let cache = Arc::downgrade(cache);
        runtime.on_shortage(move |_| {
            let Some(cache) = cache.upgrade() else {
                return 0;
            };
            let cached = std::mem::take(&mut *cache.lock().unwrap());
            cached.into_iter().map(|held| held.block.size()).sum()
        });
    }
    let refused: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let shared = &shared;
                scope.spawn(move || {
                    let stream = |which| StreamId(0x40 * (number + 1) + which);
                    let [one, two] = &shared.runtimes;
                    let mut program = Program {
                        shared,
                        number,
                        fronts: [one.front(stream(0)), two.front(stream(1))],
                        random: Random(number + 1),
                        held: Vec::new(),
                        patterns: 0,
                        refused: 0,
                    };
                    for _ in 0..operations / threads {
                        program.step();
                    }
                    while let Some(held) = program.take() {
                        check(&held);
                    }
                    program.refused
                })
            })
            .collect();
        let counts = workers.into_iter().map(|worker| worker.join().unwrap());
        counts.sum()
    });
    shared.exchange.into_inner().unwrap().iter().for_each(check);
    for cache in shared.caches {
        cache
            .lock()
            .unwrap()
            .drain(..)
            .for_each(|held| check(&held));
    }
    assert_eq!(shared.tenant.used(), 0, "a quota was lost");
    for runtime in shared.runtimes {
        assert_eq!(runtime.check(), Ok(()));
        assert_eq!(
            runtime.count_kept(),
            (0, 0),
            "fronts gave back what they kept"
        );
        runtime.close().unwrap();
        let now = runtime.statistics().unwrap();
        assert_eq!((now.blocks, now.reserved.now), (0, 0));
        eprintln!(
            "{threads} threads: {} requests served, {refused} refused, {} pages moved",
            now.served, now.pages_moved
        );
    }
}

fn operations() -> u64 {
    let given = std::env::var("TONNAGE_OPERATIONS").ok();
    given.map_or(24_000, |text| text.parse().unwrap())
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
