// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the time of one request or free of the torch policy, or of tonnage's own if the variable `POLICY` is
//! `tonnage`.
//!
//! `torch_speed` measures the patterns below, `torch_speed TRACE…` traces: a text of lines `a NAME BYTES STREAM` and `f
//! NAME`. A trace is run repeatedly on one allocator, and live blocks are freed in between; the first rounds warm the
//! cache. Nanoseconds for one event (a request or a free): best round and median, in time of the processor, so that
//! other work on the machine counts for little. The settings of torch are those of the variable `CONF`; `ROUNDS` sets
//! the number of rounds of at least 200 000 events. With `UNTIMED` no clock is read, because valgrind does not know
//! how.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use tonnage_alloc::{
    AddressOrder, DeviceAddr, Policy, Request, SimConfig, SimDevice, StreamId, tonnage, torch,
};

type Failed = Box<dyn std::error::Error>;

#[derive(Clone, Copy)]
enum Call {
    Alloc(usize, u64, StreamId),
    Free(usize),
}

const EVENTS_PER_ROUND: usize = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        for (name, calls) in patterns() {
            measure(&name, &calls)?;
        }
    }
    for path in paths {
        let calls = read(&std::fs::read_to_string(&path)?)?;
        measure(&path, &calls)?;
    }
    Ok(())
}

fn patterns() -> Vec<(String, Vec<Call>)> {
    let mib = 1 << 20;
    let stream = StreamId(0);
    let mut patterns = Vec::new();
    for size in [512, 65_536, mib, 5 * mib, 64 * mib] {
        let calls = vec![Call::Alloc(0, size, stream), Call::Free(0)];
        patterns.push((format!("pair of {size}"), calls));
    }
    for size in [4096, 5 * mib / 2] {
        let mut calls: Vec<Call> = (0..1000)
            .map(|slot| Call::Alloc(slot, size, stream))
            .collect();
        calls.extend((0..1000).map(Call::Free));
        patterns.push((format!("burst of 1000 of {size}"), calls));
    }
    for (live, largest) in [
        (100, mib),
        (1000, mib),
        (10_000, mib),
        (100, 64 * mib),
        (1000, 64 * mib),
    ] {
        let mut random = Random(live as u64);
        let mut calls: Vec<Call> = (0..live)
            .map(|slot| Call::Alloc(slot, 512 + random.next() % largest, stream))
            .collect();
        for _ in 0..20 * live {
            let slot = random.next() as usize % live;
            calls.push(Call::Free(slot));
            calls.push(Call::Alloc(slot, 512 + random.next() % largest, stream));
        }
        patterns.push((format!("churn up to {largest}, {live} live"), calls));
    }
    for count in [20_000, 320_000] {
        let mut random = Random(count as u64);
        let mut calls: Vec<Call> = (0..count)
            .map(|slot| Call::Alloc(slot, 512, stream))
            .collect();
        // Every other, so that no two free blocks become one.
        let mut freed: Vec<usize> = (0..count).step_by(2).collect();
        for index in (1..freed.len()).rev() {
            freed.swap(index, random.next() as usize % (index + 1));
        }
        calls.extend(freed.into_iter().map(Call::Free));
        patterns.push((format!("every other of {count} of 512 at random"), calls));
    }
    patterns
}

fn measure(name: &str, calls: &[Call]) -> Result<(), Failed> {
    let device = SimDevice::new(SimConfig {
        total: 1 << 40,
        context: 0,
        order: AddressOrder::Ascending,
        base: 1 << 44,
        span: 16 << 40,
    });
    if std::env::var("POLICY").is_ok_and(|policy| policy == "tonnage") {
        let settings = tonnage::Settings::default();
        let ring = tonnage::Ring::default();
        let mut own = tonnage::Allocator::observed(device, settings, None, ring);
        let alloc = |own: &mut tonnage::Allocator<_, _>, bytes, stream| {
            Ok(own.alloc(Request::new(bytes, stream))?)
        };
        run(
            name,
            calls,
            &mut own,
            alloc,
            |own, addr| Ok(own.free(addr)?),
        )?;
        return Ok(own.check()?);
    }
    let settings: torch::Settings = std::env::var("CONF").unwrap_or_default().parse()?;
    let mut torch = torch::Allocator::new(device, settings);
    let alloc = |torch: &mut torch::Allocator<_>, bytes, stream| Ok(torch.malloc(bytes, stream)?);
    run(name, calls, &mut torch, alloc, |torch, addr| {
        Ok(torch.free(addr)?)
    })?;
    Ok(torch.check()?)
}

fn run<A>(
    name: &str,
    calls: &[Call],
    allocator: &mut A,
    alloc: impl Fn(&mut A, u64, StreamId) -> Result<DeviceAddr, Failed>,
    free: impl Fn(&mut A, DeviceAddr) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let slots = calls.iter().map(|call| match call {
        Call::Alloc(slot, ..) | Call::Free(slot) => slot + 1,
    });
    let mut live: Vec<Option<DeviceAddr>> = vec![None; slots.max().unwrap_or(0)];
    let repeats = (EVENTS_PER_ROUND / calls.len()).max(1);
    let count: usize = std::env::var("ROUNDS").map_or(Ok(40), |count| count.parse())?;
    let mut rounds = Vec::new();
    for _ in 0..count.max(1) {
        let mut events = 0;
        let start = processor_time();
        for _ in 0..repeats {
            for &call in calls {
                match call {
                    Call::Alloc(slot, size, stream) => {
                        live[slot] = Some(black_box(alloc(allocator, size, stream)?));
                    }
                    Call::Free(slot) => {
                        if let Some(addr) = live[slot].take() {
                            free(allocator, addr)?;
                        }
                    }
                }
            }
            events += calls.len();
            for addr in live.iter_mut().filter_map(Option::take) {
                free(allocator, addr)?;
                events += 1;
            }
        }
        rounds.push((processor_time() - start) as f64 / events as f64);
    }
    rounds.sort_by(f64::total_cmp);
    println!("{:6.1} {:6.1}  {name}", rounds[0], rounds[rounds.len() / 2]);
    Ok(())
}

/// Nanoseconds this thread has run.
fn processor_time() -> i64 {
    if std::env::var_os("UNTIMED").is_some() {
        return 0;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn read(text: &str) -> Result<Vec<Call>, Box<dyn std::error::Error>> {
    let mut calls = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        calls.push(match words[..] {
            ["a", slot, size, stream] => {
                Call::Alloc(slot.parse()?, size.parse()?, StreamId(stream.parse()?))
            }
            ["f", slot] => Call::Free(slot.parse()?),
            _ => return Err(format!("not a call: {line}").into()),
        });
    }
    Ok(calls)
}

/// A small generator, so that every run measures the same calls.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }
}
