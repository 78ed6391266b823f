// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a pair of calls takes with many live blocks: a free of a random
//! block and a request of a random size in its place.
//!
//! `tonnage_speed [NAME [PAIRS]]` measures `tonnage` or `torch` (the policy that
//! follows PyTorch's allocator), or both. Nanoseconds for a pair in time of the
//! processor, best round and median. Statistics and the last events are kept, as
//! a runtime does.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use tonnage_alloc::{
    DeviceAddr, Policy, PolicyError, Request, SimConfig, SimDevice, StreamId, tonnage, torch,
};

const ROUNDS: usize = 40;
const MIB: u64 = 1 << 20;
/// Live blocks, and the largest request.
const LOADS: [(usize, u64); 5] = [
    (1, MIB),
    (1000, MIB),
    (10_000, MIB),
    (1000, 64 * MIB),
    (10_000, 8 * MIB),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next();
    let pairs: usize = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let wanted = |other: &str| name.as_deref().is_none_or(|name| name == other);
    println!("  best median  ns for a free and a request");
    for (live, largest) in LOADS {
        let device = || SimDevice::new(SimConfig::with_total(1 << 40));
        if wanted("tonnage") {
            let settings = tonnage::Settings::default();
            let ring = tonnage::Ring::default();
            let own = tonnage::Allocator::observed(device(), settings, None, ring);
            measure("tonnage", own, live, largest, pairs)?;
        }
        if wanted("torch") {
            let torch = torch::Allocator::new(device(), torch::Settings::default());
            measure("torch", torch, live, largest, pairs)?;
        }
    }
    Ok(())
}

fn measure<P: Policy>(
    name: &str,
    mut policy: P,
    live: usize,
    largest: u64,
    pairs: usize,
) -> Result<(), PolicyError> {
    let mut random = Random(live as u64);
    let mut blocks = Vec::new();
    for _ in 0..live {
        blocks.push(policy.alloc(random.request(largest))?);
    }
    // The first rounds bring it to a steady state.
    for _ in 0..4 {
        churn(&mut policy, &mut blocks, &mut random, largest, pairs)?;
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = processor_time();
        churn(&mut policy, &mut blocks, &mut random, largest, pairs)?;
        rounds.push((processor_time() - start) as f64 / pairs as f64);
    }
    rounds.sort_by(f64::total_cmp);
    let (best, median) = (rounds[0], rounds[ROUNDS / 2]);
    let kib = largest >> 10;
    println!("{best:6.1} {median:6.1}  {name}, {live} live, up to {kib} KiB");
    Ok(())
}

#[inline(never)]
fn churn<P: Policy>(
    policy: &mut P,
    blocks: &mut [DeviceAddr],
    random: &mut Random,
    largest: u64,
    pairs: usize,
) -> Result<(), PolicyError> {
    for _ in 0..pairs {
        let slot = random.below(blocks.len() as u64) as usize;
        policy.free(blocks[slot])?;
        blocks[slot] = black_box(policy.alloc(random.request(largest))?);
    }
    Ok(())
}

/// Nanoseconds this thread has run.
fn processor_time() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// A small generator, so that every run measures the same calls.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 20) % limit
    }

    fn request(&mut self, largest: u64) -> Request {
        Request::new(512 + self.below(largest), StreamId(0))
    }
}
