// SPDX-License-Identifier: MIT OR Apache-2.0
//! `replay` and `tune` as a person sees them: every sentence is a snapshot, with its exit code.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod said;

use std::path::Path;

use insta::assert_snapshot;
use tempfile::TempDir;
use tonnage_recording::{Event, Kind, Pool, Writer, meta};

const MIB: u64 = 1 << 20;

/// A dry run whose cache gets in the way: blocks of growing size, each freed before the next is requested.
fn growing() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    for (name, text) in [
        ("gpu.id", "a100-40gb"),
        (meta::TORCH_VERSION, "2.15.0"),
        (meta::GPU_NAME, "NVIDIA A100-SXM4-40GB"),
        (meta::GPU_CAPACITY, "1073741824"),
        (meta::GPU_CONTEXT, "104857600"),
        ("driver.address_order", "ascending"),
    ] {
        writer.meta(0, name, text).unwrap();
    }
    for step in 0..8_u64 {
        let (address, bytes) = ((step + 1) << 32, (60 + 20 * step) * MIB);
        for kind in [Kind::Alloc, Kind::FreeRequested, Kind::FreeCompleted] {
            let event = Event {
                address,
                requested: bytes,
                pool: Some(Pool::default()),
                time: Some(step.cast_signed() * 1000),
                ..Event::new(kind)
            };
            writer.event(&event).unwrap();
        }
    }
    writer.finish().unwrap()
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let growing = growing();
    put("growing.tonnage", &growing);
    put("cut.tonnage", &growing[..growing.len() - 8]);
    put(
        "plan.csv",
        b"id,lower,upper,size\na,0,5,104857600\nb,2,9,52428800\n",
    );
    put("empty.csv", b"id,lower,upper,size\n");
    put("prose.txt", b"hello");
    put("cut.plan", b"tonnage plan 1\nonce\n512 0 0\n");
    put(
        "wrong.plan",
        b"tonnage plan 1\nonce\n83886080 0 0\n104857600 0 512\nend 2\n",
    );
    // It begins in the middle: what is freed first was there before.
    put(
        "middle.json",
        br#"{"segments": [{"device": 0, "address": 1048576, "total_size": 20971520, "stream": 0,
  "segment_type": "large", "blocks": [
    {"address": 1048576, "size": 20971520, "requested_size": 0, "state": "inactive", "frames": []}]}],
 "device_traces": [[
  {"action": "free_requested", "addr": 1048576, "size": 5000000, "stream": 0, "time_us": 10, "frames": []},
  {"action": "free_completed", "addr": 1048576, "size": 5000000, "stream": 0, "time_us": 11, "frames": []},
  {"action": "alloc", "addr": 1048576, "size": 6000000, "stream": 0, "time_us": 12, "frames": []},
  {"action": "free_requested", "addr": 1048576, "size": 6000000, "stream": 0, "time_us": 13, "frames": []},
  {"action": "free_completed", "addr": 1048576, "size": 6000000, "stream": 0, "time_us": 14, "frames": []}]]}"#,
    );
    folder
}

/// The result of the command for each of these arguments: exit code, stdout, stderr.
fn tonnage(folder: &Path, calls: &[&str]) -> String {
    let said = calls.iter().map(|call| said::tonnage(folder, call) + "\n");
    said.collect()
}

#[test]
fn replay_of_every_kind_of_recording() {
    let calls = [
        "replay growing.tonnage",
        "replay growing.tonnage --alloc torch:expandable_segments:True --gpu h100-80gb",
        "replay plan.csv --alloc cuda-malloc-async --alloc bfc --alloc tonnage",
        "replay middle.json --alloc recorded",
        "replay cut.tonnage --alloc torch",
    ];
    assert_snapshot!("replay", tonnage(folder().path(), &calls));
}

#[test]
fn replay_with_a_plan() {
    let calls = [
        "plan growing.tonnage --for-runtime",
        "plan growing.tonnage --for-runtime -o growing.plan",
        "plan growing.tonnage --for-runtime -o growing.plan --json --force",
        "replay growing.tonnage --alloc tonnage --plan growing.plan",
        "replay growing.tonnage --alloc tonnage --plan wrong.plan --no-smallest",
    ];
    assert_snapshot!("replay_with_a_plan", tonnage(folder().path(), &calls));
}

#[test]
fn replay_on_a_device_that_is_too_small() {
    let calls = [
        "replay growing.tonnage --capacity 200MiB",
        "replay growing.tonnage --alloc torch --alloc bfc --capacity 50MiB --context 100MiB",
    ];
    assert_snapshot!("replay_does_not_fit", tonnage(folder().path(), &calls));
}

#[test]
fn replay_of_what_cannot_be_replayed() {
    let calls = [
        "replay nowhere.tonnage",
        "replay prose.txt",
        "replay empty.csv",
        "replay growing.tonnage --alloc jemalloc",
        "replay growing.tonnage --alloc torch:max_split_size_mb:5",
        "replay growing.tonnage --alloc torch:no_such_key:1",
        "replay growing.tonnage --gpu voodoo2",
        "replay growing.tonnage --capacity lots",
        "replay growing.tonnage --plan nowhere.plan",
        "replay growing.tonnage --plan prose.txt",
        "replay growing.tonnage --plan cut.plan",
    ];
    assert_snapshot!("replay_errors", tonnage(folder().path(), &calls));
}

#[test]
fn replay_as_json() {
    let calls = [
        "replay growing.tonnage --alloc recorded --alloc bfc --json",
        "replay middle.json --alloc recorded --json --capacity 4MiB",
    ];
    assert_snapshot!("replay_json", tonnage(folder().path(), &calls));
}

#[test]
fn tune_finds_a_setting_or_says_why_not() {
    let calls = [
        "replay --search growing.tonnage --capacity 500MiB",
        "replay --search growing.tonnage --capacity 150MiB",
        "replay --search middle.json",
        "replay --search cut.tonnage",
    ];
    assert_snapshot!("tune", tonnage(folder().path(), &calls));
}

#[test]
fn tune_of_what_cannot_be_tuned() {
    let calls = [
        "replay --search nowhere.tonnage",
        "replay --search prose.txt",
        "replay --search empty.csv",
        "replay --search growing.tonnage --gpu voodoo2",
    ];
    assert_snapshot!("tune_errors", tonnage(folder().path(), &calls));
}

#[test]
fn tune_as_json() {
    let calls = ["replay --search growing.tonnage --capacity 500MiB --json"];
    assert_snapshot!("tune_json", tonnage(folder().path(), &calls));
}
