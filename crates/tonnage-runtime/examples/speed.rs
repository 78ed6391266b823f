// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much CPU time a pair of a request and a free takes, and how two
//! threads on two streams compare with one:
//! `cargo run --release -p tonnage-runtime --example speed`.
//!
//! CPU time is what the kernel charges to the thread, so that other work on
//! the machine counts little. Time that a thread sleeps for a lock is not a part of
//! it; that is shown apart, as the number of requests that needed the lock.

use std::sync::Barrier;

use tonnage_runtime::{
    Block, Error, Front, Request, Runtime, Settings, SimConfig, SimDevice, StreamId,
};

const PAIRS: u64 = 200_000;
const ROUNDS: usize = 15;

/// Sizes as a program requests again and again.
const SIZES: [u64; 8] = [512, 2048, 4096, 12_288, 65_536, 131_072, 524_288, 1 << 20];

fn runtime() -> Runtime<SimDevice> {
    let device = SimDevice::new(SimConfig::with_total(64 << 30));
    Runtime::new(device, Settings::default())
}

/// Replaces random ones of `live` blocks, through the front.
fn pairs(front: &mut Front<SimDevice>, held: &mut [Option<Block<SimDevice>>], seed: &mut u64) {
    for _ in 0..PAIRS {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let place = &mut held[(*seed >> 33) as usize % held.len().max(1)];
        let size = SIZES[(*seed >> 20) as usize % SIZES.len()];
        *place = None;
        *place = front.alloc(size).ok();
    }
}

/// Nanoseconds of CPU time of this thread.
fn processor_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().unwrap_or_default();
    first.parse().unwrap_or(0)
}

/// Nanoseconds of a thread for a pair, best of the rounds, with so many threads at once; and which part of the requests
/// reached the allocator.
fn through_fronts(threads: u64, live: usize) -> (f64, f64) {
    let runtime = runtime();
    let start = Barrier::new(threads as usize);
    let best = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (runtime, start) = (&runtime, &start);
                scope.spawn(move || {
                    let mut front = runtime.front(StreamId(number));
                    let mut held: Vec<Option<Block<SimDevice>>> = (0..live).map(|_| None).collect();
                    let mut seed = number + 1;
                    let mut best = f64::MAX;
                    pairs(&mut front, &mut held, &mut seed);
                    for _ in 0..ROUNDS {
                        start.wait();
                        let began = processor_time();
                        pairs(&mut front, &mut held, &mut seed);
                        best = best.min((processor_time() - began) as f64 / PAIRS as f64);
                    }
                    best
                })
            })
            .collect();
        let times = workers.into_iter().filter_map(|worker| worker.join().ok());
        times.fold(0.0, f64::max)
    });
    let asked = threads * PAIRS * (ROUNDS as u64 + 1);
    let served = runtime.statistics().map_or(0, |now| now.served);
    (best, served as f64 / asked as f64)
}

/// The same with one lock.
fn through_the_lock(live: usize) -> Result<f64, Error> {
    let runtime = runtime();
    let mut held: Vec<Option<Block<SimDevice>>> = (0..live).map(|_| None).collect();
    let mut seed = 1_u64;
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let began = processor_time();
        for _ in 0..PAIRS {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let place = &mut held[(seed >> 33) as usize % live.max(1)];
            let size = SIZES[(seed >> 20) as usize % SIZES.len()];
            *place = None;
            *place = Some(runtime.alloc(Request::new(size, StreamId(0)))?);
        }
        best = best.min((processor_time() - began) as f64 / PAIRS as f64);
    }
    Ok(best)
}

#[expect(clippy::print_stdout, reason = "a measurement is shown")]
fn main() -> Result<(), Error> {
    for live in [100, 1000, 10_000] {
        let lock = through_the_lock(live)?;
        let (one, reached) = through_fronts(1, live);
        let (two, reached_of_two) = through_fronts(2, live);
        println!(
            "{live:6} live blocks, a pair: without a front {lock:4.0} ns; with one {one:4.0} ns, {:.1} % of requests reach \
             the allocator; two threads with one each {two:4.0} ns, {:.1} %",
            100.0 * reached,
            100.0 * reached_of_two,
        );
    }
    Ok(())
}
