// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks that give their memory back for a while, with real bytes: they are
//! compared one by one after the memory was used for something else.
#![expect(clippy::unwrap_used, reason = "a call that fails fails the test")]
#![cfg(not(feature = "shuttle"))]

mod raw;

use raw::{free, visit};
use tonnage_alloc::tonnage::Settings;
use tonnage_alloc::{DeviceAddr, Request, StreamId, Tag};
use tonnage_device_host::HostDevice;
use tonnage_runtime::{Error, Kept, Runtime};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 64 * MIB;
const WEIGHTS: Tag = Tag(1);
const CACHE: Tag = Tag(2);

fn runtime() -> Runtime<HostDevice> {
    Runtime::new(HostDevice::new(TOTAL).unwrap(), Settings::default())
}

fn ask(bytes: u64, tag: Tag) -> Request {
    Request::new(bytes, StreamId(0)).tagged(tag)
}

/// Bytes that differ from block to block and from place to place.
fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    let byte = |place: u64| (place.wrapping_mul(0x9E37_79B9) >> 13) as u8 ^ seed as u8;
    (0..bytes).map(byte).collect()
}

fn write(runtime: &Runtime<HostDevice>, at: DeviceAddr, bytes: &[u8]) {
    visit(runtime, |device| device.write(at, bytes))
        .unwrap()
        .unwrap();
}

fn read(runtime: &Runtime<HostDevice>, at: DeviceAddr, bytes: u64) -> Option<Vec<u8>> {
    let mut read = vec![0; bytes as usize];
    let result = visit(runtime, |device| device.read(at, &mut read));
    result.unwrap().ok().map(|()| read)
}

#[test]
fn what_is_kept_is_there_again_byte_for_byte() {
    let runtime = runtime();
    let sizes = [5 * MIB, 700, 3 * MIB + 512, 40_000, 9 * MIB];
    let mut blocks = Vec::new();
    for (seed, bytes) in (0..).zip(sizes) {
        let block = runtime.alloc_raw(ask(bytes, WEIGHTS)).unwrap();
        write(&runtime, block, &pattern(bytes, seed));
        blocks.push((block, bytes, seed));
    }
    let other = runtime.alloc_raw(ask(700, Tag::NONE)).unwrap();
    write(&runtime, other, &pattern(700, 99));
    let before = runtime.statistics().unwrap();
    let given = runtime.pause(WEIGHTS, Kept::OnHost).unwrap();
    let after = runtime.statistics().unwrap();
    // All of its pages but the one that the other block lies on.
    assert_eq!(given, before.reserved.now - 2 * MIB);
    assert_eq!((after.reserved.now, after.paused), (2 * MIB, given));
    assert_eq!(
        after.allocated, before.allocated,
        "the program still has them"
    );
    assert_eq!(runtime.kept_on_host().unwrap(), given);
    assert_eq!(read(&runtime, blocks[0].0, 8), None, "nothing is there");
    assert_eq!(read(&runtime, other, 700), Some(pattern(700, 99)));
    // Somebody else writes all over the memory.
    let large = runtime.alloc_raw(ask(60 * MIB, Tag::NONE)).unwrap();
    write(&runtime, large, &vec![0xEE; 60 * MIB as usize]);
    let refused = runtime.resume(WEIGHTS);
    let short = Error::Resume {
        needed: given,
        free: 2 * MIB,
    };
    assert_eq!(refused, Err(short));
    assert_eq!(
        runtime.statistics().unwrap().paused,
        given,
        "everything stays paused"
    );
    free(&runtime, large).unwrap();
    assert_eq!(runtime.resume(WEIGHTS), Ok(given));
    for (block, bytes, seed) in blocks {
        assert_eq!(read(&runtime, block, bytes), Some(pattern(bytes, seed)));
        free(&runtime, block).unwrap();
    }
    assert_eq!(
        (
            runtime.statistics().unwrap().paused,
            runtime.kept_on_host().unwrap()
        ),
        (0, 0)
    );
    free(&runtime, other).unwrap();
    assert_eq!(runtime.check(), Ok(()));
    runtime.close().unwrap();
}

#[test]
fn tags_do_not_disturb_each_other_and_what_is_freed_meanwhile_is_gone() {
    let runtime = runtime();
    let fill = |tag, seed| {
        let block = runtime.alloc_raw(ask(3 * MIB, tag)).unwrap();
        write(&runtime, block, &pattern(3 * MIB, seed));
        block
    };
    let weights: Vec<DeviceAddr> = (0..4).map(|seed| fill(WEIGHTS, seed)).collect();
    let cache: Vec<DeviceAddr> = (4..8).map(|seed| fill(CACHE, seed)).collect();
    assert_eq!(runtime.pause(CACHE, Kept::Nothing), Ok(12 * MIB));
    assert_eq!(runtime.pause(WEIGHTS, Kept::OnHost), Ok(12 * MIB));
    assert_eq!(runtime.statistics().unwrap().reserved.now, 0);
    free(&runtime, weights[1]).unwrap();
    free(&runtime, cache[2]).unwrap();
    assert_eq!(runtime.check(), Ok(()));
    // A page that a freed block shares with one that is still there stays paused.
    assert_eq!(runtime.statistics().unwrap().paused, 24 * MIB - 2 * 2 * MIB);
    assert_eq!(runtime.resume(WEIGHTS), Ok(10 * MIB));
    for seed in [0, 2, 3] {
        let whole = read(&runtime, weights[seed as usize], 3 * MIB);
        assert_eq!(whole, Some(pattern(3 * MIB, seed)));
    }
    assert_eq!(read(&runtime, cache[0], 8), None, "the other tag is paused");
    assert_eq!(runtime.resume(CACHE), Ok(10 * MIB));
    assert!(read(&runtime, cache[0], 3 * MIB).is_some());
    assert_eq!(runtime.resume(CACHE), Ok(0), "nothing is paused");
    // The memory that the freed blocks left is used again.
    let again = runtime.alloc_raw(ask(MIB, Tag::NONE)).unwrap();
    assert_eq!(runtime.check(), Ok(()));
    let left = [
        weights[0], weights[2], weights[3], cache[0], cache[1], cache[3], again,
    ];
    for block in left {
        free(&runtime, block).unwrap();
    }
    runtime.close().unwrap();
    assert_eq!(runtime.statistics().unwrap().reserved.now, 0);
}

#[test]
fn work_that_is_late_is_waited_for() {
    let runtime = runtime();
    let block = runtime.alloc_raw(ask(4 * MIB, WEIGHTS)).unwrap();
    let side = StreamId(0x77);
    // No call reported that this stream uses it.
    visit(&runtime, |device| {
        device.enqueue_fill(side, block, 4 * MIB, 0x5A);
    })
    .unwrap();
    runtime.pause(WEIGHTS, Kept::OnHost).unwrap();
    runtime.resume(WEIGHTS).unwrap();
    let expected = Some(vec![0x5A; 4 * MIB as usize]);
    assert_eq!(read(&runtime, block, 4 * MIB), expected);
    runtime.begin_capture().unwrap();
    for refused in [
        runtime.pause(WEIGHTS, Kept::Nothing),
        runtime.resume(WEIGHTS),
    ] {
        assert!(matches!(refused, Err(Error::Capture)), "{refused:?}");
    }
    runtime.end_capture().unwrap();
    let none = runtime.pause(Tag::NONE, Kept::Nothing);
    assert!(matches!(none, Err(Error::Refused(_))), "{none:?}");
}
