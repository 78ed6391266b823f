// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contract of a policy, one scenario each.

use std::sync::{Mutex, PoisonError};

use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{Device, DeviceError, Policy, PolicyError, Request, StreamId};

use crate::checked::Call;
use crate::model::{Held, Program, Random};
use crate::{Checked, TestDevice};

/// Streams that blocks are requested for.
const HOME: [StreamId; 3] = [StreamId(0), StreamId(0x40), StreamId(0x80)];
/// Streams that only use blocks of others.
const SIDE: [StreamId; 2] = [StreamId(0x1000), StreamId(0x2000)];
/// A private pool, and the pool of a graph.
const PRIVATE: PoolId = PoolId(0, 7);
const GRAPH: PoolId = PoolId(1, 0);

/// Puts a policy through its contract on a device. `device` gives a fresh device
/// of 64 to 512 MiB each time, `policy` a fresh policy on it.
///
/// # Panics
/// If the policy breaks the contract of [`Policy`].
pub fn policy<D, P>(device: impl Fn() -> D, policy: impl Fn(Checked<D>) -> P)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>> + Send,
{
    policy_with(true, device, policy);
}

/// The same, with a choice whether random requests go to private pools too. torch loses count of these where segments
/// are expandable ([`Undefined`](tonnage_alloc::torch::Undefined)).
///
/// # Panics
/// If the policy breaks the contract of [`Policy`].
pub fn policy_with<D, P>(
    private_pools: bool,
    device: impl Fn() -> D,
    policy: impl Fn(Checked<D>) -> P,
) where
    D: TestDevice,
    P: Policy<Device = Checked<D>> + Send,
{
    let make = || Program::new(policy(Checked::new(device())));
    let run = |seed, steps| random_calls(make(), seed, steps, private_pools);
    run(1, 500);
    same_calls_same_effects(run);
    out_of_memory(make());
    equal_sizes(make());
    streams(make());
    if P::STREAM_AWARE {
        capture(make());
    }
    threads(make());
    driver_errors(&make);
    unknown_addresses(make());
}

/// The possible results of a step of the random program.
#[track_caller]
fn served<T>(result: Result<T, PolicyError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(PolicyError::OutOfMemory { .. }) => None,
        Err(error) => panic!("the policy failed: {error}"),
    }
}

/// A size as programs request: many small ones, some of many pieces.
fn any_size(random: &mut Random) -> u64 {
    const MIB: u64 = 1 << 20;
    let base = [1, 300, 512, 4000, 70_000, MIB, 3 * MIB, 6 * MIB, 11 * MIB];
    let base = base[random.below(base.len() as u64) as usize];
    base + random.below(base)
}

/// Random requests, frees, uses by other streams and emptied caches. Answers with
/// the calls of the device.
fn random_calls<D, P>(
    mut program: Program<P>,
    seed: u64,
    steps: u64,
    private_pools: bool,
) -> Vec<Call>
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let mut random = Random::new(seed);
    for step in 0..steps {
        let choice = random.below(20);
        let picked = program.pick(&mut random);
        match (choice, picked) {
            (0..=9, _) => {
                let stream = HOME[random.below(3) as usize];
                let mut request = Request::new(any_size(&mut random), stream);
                if random.below(8) == 0 && private_pools {
                    request = request.in_pool(PRIVATE);
                }
                served(program.alloc(request));
            }
            (10..=15, Some(held)) => {
                served(program.free(held));
            }
            (16, Some(held)) => {
                // Work that comes late must find the block, not its successor.
                let side = SIDE[random.below(2) as usize];
                let device = program.policy.device_mut();
                device.enqueue_fill(side, held.addr, held.size, 0xEE);
                served(program.policy.record_stream(held.addr, side));
                served(program.free_unread(held));
            }
            (17, _) => {
                let side = SIDE[random.below(2) as usize];
                let ran = program.policy.device_mut().run_stream(side);
                assert_eq!(ran, Ok(()), "a block lost its memory while it was used");
            }
            (18, _) => {
                served(program.policy.process_events());
            }
            (19, _) if random.below(10) == 0 => {
                served(program.policy.empty_cache(PoolId::DEFAULT));
            }
            _ => {}
        }
        program.check();
        if step % 64 == 0 {
            program.check_all_bytes();
        }
    }
    program.check_all_bytes();
    let calls = program.policy.device().calls().to_vec();
    program.finish(if private_pools { &[PRIVATE] } else { &[] });
    calls
}

fn same_calls_same_effects(run: impl Fn(u64, u64) -> Vec<Call>) {
    let first = run(77, 250);
    let second = run(77, 250);
    let differ = first.iter().zip(&second).position(|(a, b)| a != b);
    assert_eq!(differ, None, "the same calls had another effect");
    assert_eq!(first.len(), second.len());
}

fn out_of_memory<D, P>(mut program: Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let total = program.policy.device().total();
    let request = Request::new(total / 16, HOME[0]);
    let mut blocks = Vec::new();
    while let Some(held) = served(program.alloc(request)) {
        blocks.push(held);
    }
    assert!(blocks.len() >= 8, "{} blocks of 1/16", blocks.len());
    let before = program.policy.allocated();
    for bytes in [total / 16, total / 2, total, total + 1, 1 << 50] {
        for stream in HOME {
            let refused = program.alloc(Request::new(bytes, stream));
            let is_refused = matches!(refused, Err(PolicyError::OutOfMemory { .. }));
            assert!(is_refused, "{bytes} bytes: {refused:?}");
            program.check();
            assert_eq!(program.policy.allocated(), before);
        }
    }
    let empty = program.alloc(Request::new(0, HOME[0]));
    assert!(matches!(empty, Err(PolicyError::Refused(_))), "{empty:?}");
    let absurd = program.alloc(Request::new(u64::MAX, HOME[0]));
    assert!(absurd.is_err(), "more than there are addresses");
    program.check();
    program.check_all_bytes();
    // Freed memory can be allocated again.
    for held in blocks.into_iter().take(3) {
        served(program.free(held));
        assert!(
            served(program.alloc(request)).is_some(),
            "freed and not found"
        );
        program.check();
    }
    program.finish(&[]);
}

/// Many blocks of one size, every other of which is freed and requested again.
fn equal_sizes<D, P>(mut program: Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let request = Request::new(512, HOME[0]);
    let alloc = |program: &mut Program<P>| served(program.alloc(request));
    let blocks: Vec<Held> = (0..2000).filter_map(|_| alloc(&mut program)).collect();
    assert_eq!(blocks.len(), 2000);
    let reserved = program.policy.reserved();
    let mut holes: Vec<u64> = Vec::new();
    for held in blocks.iter().step_by(2) {
        served(program.free(*held));
        holes.push(held.addr.0);
    }
    program.check();
    let again: Vec<Held> = (0..1000).filter_map(|_| alloc(&mut program)).collect();
    let mut places: Vec<u64> = again.iter().map(|held| held.addr.0).collect();
    places.sort_unstable();
    holes.sort_unstable();
    assert_eq!(places, holes, "the holes were not used again");
    assert_eq!(program.policy.reserved(), reserved);
    program.check();
    program.finish(&[]);
}

fn overlap(a: Held, b: Held) -> bool {
    a.addr.0 < b.addr.0 + b.size && b.addr.0 < a.addr.0 + a.size
}

/// A block that another stream still uses is not reused.
fn streams<D, P>(mut program: Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let bytes = 3 << 20;
    let side = SIDE[0];
    let request = Request::new(bytes, HOME[0]);
    let Some(used) = served(program.alloc(request)) else {
        panic!("no memory for the first block");
    };
    let device = program.policy.device_mut();
    let later = device.enqueue_fill(side, used.addr, used.size, 0xEE);
    served(program.policy.record_stream(used.addr, side));
    served(program.free_unread(used));
    let meanwhile: Vec<Held> = (0..4)
        .filter_map(|_| served(program.alloc(request)))
        .collect();
    if later {
        assert!(
            meanwhile.iter().all(|held| !overlap(*held, used)),
            "a block was allocated while another stream used it"
        );
    }
    let ran = program.policy.device_mut().run_stream(side);
    assert_eq!(ran, Ok(()), "a block lost its memory while it was used");
    served(program.policy.process_events());
    program.check_all_bytes();
    // The next request of its size finds it, as nothing delays it any more.
    let reserved = program.policy.reserved();
    served(program.alloc(request));
    if later {
        assert_eq!(program.policy.reserved(), reserved, "a freed block is lost");
    }
    if P::STREAM_AWARE {
        // Work of the stream that freed a block is ordered for that stream alone.
        let Some(first) = served(program.alloc(Request::new(bytes, HOME[1]))) else {
            panic!("no memory for a second stream");
        };
        let device = program.policy.device_mut();
        let later = device.enqueue_fill(HOME[1], first.addr, first.size, 0xDD);
        served(program.free_unread(first));
        if let Some(other) = served(program.alloc(Request::new(bytes, HOME[2]))) {
            let changed = overlap(first, other);
            assert!(!(later && changed), "a block changed its stream");
            let ran = program.policy.device_mut().run_stream(HOME[1]);
            assert_eq!(ran, Ok(()), "a block lost its memory while it was used");
            program.check_bytes(other);
        }
    }
    program.check();
    program.finish(&[]);
}

/// During a capture no call is made that a capture forbids, even where memory
/// runs short.
fn capture<D, P>(mut program: Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let total = program.policy.device().total();
    let request = Request::new(2 << 20, HOME[0]);
    let Some(used) = served(program.alloc(request)) else {
        panic!("no memory for the first block");
    };
    let device = program.policy.device_mut();
    device.enqueue_fill(SIDE[0], used.addr, used.size, 0xEE);
    served(program.policy.record_stream(used.addr, SIDE[0]));
    served(program.free_unread(used));
    program.policy.device_mut().set_capturing(true);
    let mut captured = Vec::new();
    for bytes in [600, 2 << 20, 5 << 20, total] {
        let request = Request::new(bytes, HOME[0]).in_pool(GRAPH);
        captured.extend(served(program.alloc(request)));
        program.check();
    }
    assert_eq!(captured.len(), 3, "a capture got what does not exist");
    served(program.free(captured[1]));
    let request = Request::new(2 << 20, HOME[0]).in_pool(GRAPH);
    assert!(served(program.alloc(request)).is_some());
    program.check();
    program.policy.device_mut().set_capturing(false);
    program.finish(&[GRAPH]);
}

/// A policy under a lock serves several threads.
fn threads<D, P>(program: Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>> + Send,
{
    let shared = Mutex::new(program);
    std::thread::scope(|scope| {
        for seed in [5, 6] {
            let shared = &shared;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..150 {
                    let mut program = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    if random.below(3) < 2 || program.live() == 0 {
                        let bytes = any_size(&mut random);
                        served(program.alloc(Request::new(bytes, HOME[0])));
                    } else if let Some(held) = program.pick(&mut random) {
                        served(program.free(held));
                    }
                    program.check();
                }
            });
        }
    });
    let program = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    program.check_all_bytes();
    program.finish(&[]);
}

/// Whichever call of the device fails, the policy reports it, no block is harmed, and in the end everything is
/// released.
fn driver_errors<D, P>(make: &impl Fn() -> Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let mut after = 0;
    loop {
        let mut program = make();
        program.policy.device_mut().fail_after(after);
        let mut random = Random::new(31);
        let mut failures = 0;
        for _ in 0..60 {
            let choice = random.below(10);
            let picked = program.pick(&mut random);
            let done = match (choice, picked) {
                (0..=4, _) => {
                    let stream = HOME[random.below(2) as usize];
                    let request = Request::new(any_size(&mut random), stream);
                    program.alloc(request).map(|_| ())
                }
                (5, Some(held)) => {
                    let named = program.policy.record_stream(held.addr, SIDE[0]);
                    named.and_then(|()| program.free(held))
                }
                (6..=8, Some(held)) => program.free(held),
                (9, _) => program.policy.empty_cache(PoolId::DEFAULT),
                _ => Ok(()),
            };
            match done {
                Ok(()) | Err(PolicyError::OutOfMemory { .. }) => {}
                Err(PolicyError::Device(DeviceError::Driver { .. })) => failures += 1,
                Err(error) => panic!("call {after} failed, and then: {error}"),
            }
            program.check_allocated();
            if failures == 0 {
                program.check();
            }
        }
        assert!(failures <= 1, "one failure was reported {failures} times");
        program.check_all_bytes();
        let over = program.policy.device().failure_is_due();
        program.policy.device_mut().fail_after(u64::MAX);
        program.finish(&[]);
        if over {
            break;
        }
        // All of the first calls, then some of the others.
        after += 1 + after / 10;
    }
    assert!(after > 4, "the program makes calls of the device");
}

fn unknown_addresses<D, P>(mut program: Program<P>)
where
    D: TestDevice,
    P: Policy<Device = Checked<D>>,
{
    let Some(held) = served(program.alloc(Request::new(4096, HOME[0]))) else {
        panic!("no memory for the first block");
    };
    for addr in [held.addr.offset(256), held.addr.offset(1 << 40)] {
        let unknown = Err(PolicyError::UnknownAddress(addr));
        assert_eq!(program.policy.free(addr), unknown);
        assert_eq!(program.policy.record_stream(addr, SIDE[0]), unknown);
        assert_eq!(program.policy.size_of(addr), None);
    }
    served(program.free(held));
    let twice = program.policy.free(held.addr);
    assert_eq!(twice, Err(PolicyError::UnknownAddress(held.addr)));
    program.check();
    program.finish(&[]);
}
