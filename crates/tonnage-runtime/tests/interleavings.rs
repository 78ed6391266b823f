// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads under many schedules, chosen by a model checker: whenever one may be
//! interrupted at a lock or an atomic, others go on.
#![expect(clippy::unwrap_used, reason = "a test that cannot start has failed")]

mod raw;

use std::collections::BTreeMap;

use std::sync::Arc;

use raw::visit;
use shuttle::sync::Mutex;
use shuttle::thread;
use tonnage_alloc::tonnage::Settings;
use tonnage_alloc::{Request, SimConfig, SimDevice, StreamId, Tag};
use tonnage_device_host::HostDevice;
use tonnage_runtime::{Block, Error, Runtime, Tenant};

const MIB: u64 = 1 << 20;
/// Schedules of each test.
const SCHEDULES: usize = 2000;

fn runtime(total: u64) -> Runtime<SimDevice> {
    let device = SimDevice::new(SimConfig::with_total(total));
    Runtime::new(device, Settings::default())
}

/// Live blocks, as the program sees them.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<u64, u64>>);

impl Seen {
    fn add(&self, block: &Block<SimDevice>) {
        let (start, end) = (block.addr().0, block.addr().0 + block.size());
        let mut live = self.0.lock().unwrap();
        let below = live.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, &other)| other <= start),
            "two live blocks overlap"
        );
        live.insert(start, end);
    }

    fn remove(&self, block: &Block<SimDevice>) {
        assert!(self.0.lock().unwrap().remove(&block.addr().0).is_some());
    }
}

/// Two threads allocate and free small and large blocks, each frees what the other made, and a third recalls what they
/// keep all the time.
#[test]
fn blocks_never_overlap_and_none_is_lost() {
    shuttle::check_random(
        || {
            let runtime = runtime(16 * MIB);
            let seen = Arc::new(Seen::default());
            let exchange: Arc<Mutex<Vec<Block<SimDevice>>>> = Arc::default();
            let workers: Vec<_> = (0..2)
                .map(|number| {
                    let (runtime, seen) = (runtime.clone(), Arc::clone(&seen));
                    let exchange = Arc::clone(&exchange);
                    thread::spawn(move || {
                        let mut front = runtime.front(StreamId(number));
                        for size in [600, 600, 3 * MIB, 600, 5000] {
                            let block = front.alloc(size).unwrap();
                            seen.add(&block);
                            exchange.lock().unwrap().push(block);
                            let other = exchange.lock().unwrap().pop();
                            if let Some(other) = other {
                                seen.remove(&other);
                                drop(other);
                            }
                        }
                    })
                })
                .collect();
            let recalling = runtime.clone();
            let third = thread::spawn(move || {
                for _ in 0..2 {
                    recalling.empty_cache().unwrap();
                    assert_eq!(recalling.check(), Ok(()));
                }
            });
            for worker in workers {
                worker.join().unwrap();
            }
            third.join().unwrap();
            for block in std::mem::take(&mut *exchange.lock().unwrap()) {
                seen.remove(&block);
                drop(block);
            }
            assert_eq!(runtime.count_kept(), (0, 0));
            assert_eq!(runtime.statistics().unwrap().blocks, 0);
            runtime.close().unwrap();
            assert_eq!(runtime.statistics().unwrap().reserved.now, 0);
        },
        SCHEDULES,
    );
}

/// Blocks that a front keeps are not a reason to run out, whatever its thread does at the moment.
#[test]
fn what_is_kept_is_had_when_memory_runs_short() {
    shuttle::check_random(
        || {
            let runtime = runtime(4 * MIB);
            let keeper = {
                let runtime = runtime.clone();
                thread::spawn(move || {
                    let mut front = runtime.front(StreamId(1));
                    for _ in 0..3 {
                        if let Ok(block) = front.alloc(700) {
                            drop(block);
                        }
                    }
                    front
                })
            };
            let wanting = {
                let runtime = runtime.clone();
                thread::spawn(move || {
                    let mut front = runtime.front(StreamId(2));
                    // Only while the other thread has a block in its hands is there too little.
                    while let Err(error) = front.alloc(4 * MIB).map(drop) {
                        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
                        thread::yield_now();
                    }
                })
            };
            let mut front = keeper.join().unwrap();
            wanting.join().unwrap();
            // The keeper is done; what it keeps is taken back at once.
            let block = front.alloc(700).unwrap();
            drop(block);
            assert_eq!(runtime.count_kept().1, 1);
            let mut other = runtime.front(StreamId(3));
            let all = other.alloc(4 * MIB).unwrap();
            drop(all);
        },
        SCHEDULES,
    );
}

/// Two requests that together exceed a quota are not both served, and a refused one costs no other request anything.
#[test]
fn a_quota_holds() {
    shuttle::check_random(
        || {
            let runtime = runtime(16 * MIB);
            let tenant = Tenant::new("both", 3 * MIB);
            let workers: Vec<_> = (0..3)
                .map(|number| {
                    let (runtime, tenant) = (runtime.clone(), Arc::clone(&tenant));
                    thread::spawn(move || {
                        let mut front = runtime.front(StreamId(number));
                        let served = front.alloc_for(&tenant, MIB + 1);
                        assert!(tenant.used() <= tenant.quota());
                        served.ok()
                    })
                })
                .collect();
            let blocks = workers
                .into_iter()
                .filter_map(|worker| worker.join().unwrap());
            let blocks: Vec<Block<SimDevice>> = blocks.collect();
            // Two fit, and a refused third one did not take the place of either.
            assert_eq!(blocks.len(), 2);
            assert_eq!(tenant.used(), 2 * (MIB + 512));
            for block in blocks {
                drop(block);
            }
            assert_eq!((tenant.used(), tenant.peak()), (0, 2 * (MIB + 512)));
        },
        SCHEDULES,
    );
}

/// Two tags that do not fit at once are used in turn: what a thread holds has its memory and its bytes, however the
/// other one is scheduled.
#[test]
fn what_is_held_is_not_spilled() {
    shuttle::check_random(
        || {
            let device = HostDevice::new(8 * MIB).unwrap();
            let runtime = Runtime::new(device, Settings::default());
            let workers: Vec<_> = (1..=2_u8)
                .map(|number| {
                    let runtime = runtime.clone();
                    thread::spawn(move || {
                        let tag = Tag(u16::from(number));
                        runtime.allow_spill(tag).unwrap();
                        let request = Request::new(6 * MIB, StreamId(0)).tagged(tag);
                        let mut block = None;
                        let mut done = 0;
                        while done < 2 {
                            match runtime.hold(tag) {
                                Ok(hold) => {
                                    let Some(addr) =
                                        block.or_else(|| runtime.alloc_raw(request).ok())
                                    else {
                                        drop(hold);
                                        thread::yield_now();
                                        continue;
                                    };
                                    let mut byte = [0];
                                    visit(&runtime, |device| {
                                        if block.is_some() {
                                            device.read(addr, &mut byte).unwrap();
                                            assert_eq!(byte, [number + done], "bytes are lost");
                                        }
                                        device.write(addr, &[number + done + 1]).unwrap();
                                    })
                                    .unwrap();
                                    block = Some(addr);
                                    done += 1;
                                    drop(hold);
                                }
                                // The other thread holds its own.
                                Err(Error::OutOfMemory(_)) => thread::yield_now(),
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            for worker in workers {
                worker.join().unwrap();
            }
            assert_eq!(runtime.check(), Ok(()));
        },
        SCHEDULES / 10,
    );
}
