// SPDX-License-Identifier: MIT OR Apache-2.0
//! `report` as a person sees it: every sentence is a snapshot.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod said;

use std::path::Path;

use insta::assert_snapshot;
use tempfile::TempDir;
use tonnage_recording::{Event, Kind, StackTable, Writer, meta};

const MIB: u64 = 1 << 20;

const SNAPSHOT: &str = r#"{"segments": [{"device": 0, "address": 1048576, "total_size": 20971520, "stream": 0,
  "segment_type": "large", "blocks": [
    {"address": 1048576, "size": 2097152, "requested_size": 2000000, "state": "active_allocated", "frames": []},
    {"address": 3145728, "size": 18874368, "requested_size": 0, "state": "inactive", "frames": []}]}],
 "device_traces": [[
  {"action": "free_requested", "addr": 3145728, "size": 5000, "stream": 0, "time_us": 10, "frames": []},
  {"action": "free_completed", "addr": 3145728, "size": 5000, "stream": 0, "time_us": 11, "frames": []},
  {"action": "alloc", "addr": 1048576, "size": 2000000, "stream": 0, "time_us": 12, "surprise": 1}]]}"#;
const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
   17,10:00:00.000000,allocate,0x7f00000000,1024,0x0\n\
   17,10:00:01.500000,free,0x7f00000000,1024,0x0\n\
   17,10:00:02.000000,allocate failure,0x0,4096,0x0\n";

/// A run of two processes; the first ends out of memory if requested.
fn write_recording(fails: bool) -> Vec<u8> {
    let mut stacks = StackTable::new();
    let mut place = |function: &str, file: &str, line| {
        let (function, file) = (stacks.intern(function), stacks.intern(file));
        let frame = stacks.frame(function, file, line);
        stacks.push_stack(&[frame])
    };
    let (load, forward) = (
        place("main", "/home/alice/train.py", 3),
        place("forward\u{1b}[31m", "/home/alice/model.py", 70),
    );
    let mut writer = Writer::with_stacks(Vec::new(), "tonnage 0.1.0", stacks).unwrap();
    let ending = if fails { "exit 1" } else { "exit 0" };
    for (name, text) in [
        (meta::COMMAND, "python /home/alice/train.py --lr 1e-4"),
        ("run.ending", ending),
        (meta::TORCH_VERSION, "2.15.0"),
        (meta::GPU_NAME, "NVIDIA A100-SXM4-40GB"),
        ("gpu.id", "a100-40gb"),
        (meta::GPU_CAPACITY, "134217728"),
        ("gpu.capacity.known", "given"),
        ("unknown.0", "the stacks of 3 allocations and frees"),
    ] {
        writer.meta(0, name, text).unwrap();
    }
    let row = |process, kind, address, size, stack| Event {
        process,
        address,
        size,
        requested: size,
        stack,
        time: Some(1000 + address.cast_signed()),
        ..Event::new(kind)
    };
    for process in [0, 1] {
        let mut events = vec![
            row(process, Kind::DriverContext, 0, 20 * MIB, None),
            row(process, Kind::SegmentAlloc, 2 * MIB, 20 * MIB, load),
            row(process, Kind::Alloc, 2 * MIB, 12 * MIB, load),
            row(process, Kind::SegmentAlloc, 32 * MIB, 40 * MIB, forward),
            row(process, Kind::Alloc, 32 * MIB, 34 * MIB, forward),
            row(process, Kind::FreeRequested, 32 * MIB, 34 * MIB, forward),
            row(process, Kind::FreeCompleted, 32 * MIB, 34 * MIB, forward),
            row(process, Kind::Alloc, 32 * MIB, 22 * MIB, forward),
        ];
        if fails && process == 0 {
            events.push(Event {
                free: 48 * MIB,
                ..row(0, Kind::Oom, 0, 90 * MIB, forward)
            });
        }
        for event in &events {
            writer.event(event).unwrap();
        }
    }
    writer.finish().unwrap()
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    put("train.tonnage", &write_recording(false));
    put("oom.tonnage", &write_recording(true));
    put(
        "cut.tonnage",
        &write_recording(false)[..write_recording(false).len() - 8],
    );
    put("snapshot.json", SNAPSHOT.as_bytes());
    put("rmm.csv", RMM.as_bytes());
    put("plan.csv", b"id,lower,upper,size\na,0,5,100\nb,2,9,50\n");
    put("empty", b"");
    put("prose.txt", b"hello");
    folder
}

/// The result of the command: exit code, stdout, stderr.
fn tonnage(folder: &Path, arguments: &str) -> String {
    said::tonnage(folder, arguments) + "\n"
}

/// Sizes of pages are not ours to promise.
fn without_sizes(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let key = line.trim_start();
        let line = if key.starts_with("\"bytes\":") || key.starts_with("\"data\":") {
            format!("{}: SIZE,", line.split_once(':').unwrap().0)
        } else if line.starts_with("wrote") {
            format!("{} (SIZE)", line.split_once(" (").unwrap().0)
        } else if let Some((head, _)) = line.split_once("pictures take ") {
            format!("{head}pictures take SIZE of data")
        } else {
            line.to_owned()
        };
        lines.push(line);
    }
    lines.join("\n")
}

#[test]
fn pages_are_written_and_never_by_accident() {
    let folder = folder();
    let mut text = String::new();
    for arguments in [
        "report train.tonnage",
        "report train.tonnage",
        "report train.tonnage --force --json --process 1",
        "report oom.tonnage -o oom.html --compare-allocators never",
        "report snapshot.json -o new/page.html",
        "report snapshot.json -o snapshot.html",
        "report rmm.csv",
        "report train.tonnage -o small.html --max-data 500",
        "report train.tonnage -o other.html --process 7",
        "report train.tonnage -o text.html --text",
        "report empty",
        "report prose.txt",
        "report nowhere.tonnage",
    ] {
        text += &tonnage(folder.path(), arguments);
    }
    assert_snapshot!("pages", without_sizes(&text));
    let page = std::fs::read_to_string(folder.path().join("train.html")).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    assert!(!page.contains("alice"));
    assert!(!folder.path().join("small.html").exists());
}

#[test]
fn the_same_pictures_as_text() {
    let folder = folder();
    let mut text = String::new();
    for file in [
        "train.tonnage",
        "oom.tonnage",
        "cut.tonnage",
        "snapshot.json",
        "rmm.csv",
        "plan.csv",
    ] {
        text += &tonnage(folder.path(), &format!("report {file} --text"));
    }
    text += &tonnage(folder.path(), "report oom.tonnage --text --json");
    for line in text.lines() {
        assert!(
            line.chars().count() <= 80 || line.contains('"'),
            "too wide: {line}"
        );
    }
    assert!(!text.contains('\u{1b}'));
    assert_snapshot!("text", text);
}

/// Many processes, each with one block.
fn crowd(processes: u32) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    for process in 0..processes {
        let block = Event {
            process,
            address: 2 * MIB,
            size: MIB,
            requested: MIB,
            ..Event::new(Kind::Alloc)
        };
        writer.event(&block).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn every_process_is_in_the_page_up_to_a_bound() {
    let folder = folder();
    let panes = |file: &str| {
        tonnage(
            folder.path(),
            &format!("report {file} -o page.html --force"),
        );
        let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
        page.matches("id=\"data-timeline-").count()
    };
    assert_eq!(panes("train.tonnage"), 2);
    std::fs::write(folder.path().join("crowd.tonnage"), crowd(40)).unwrap();
    assert_eq!(panes("crowd.tonnage"), 16);
}

#[test]
fn the_same_recording_gives_the_same_page() {
    let folder = folder();
    for name in ["one.html", "two.html"] {
        tonnage(folder.path(), &format!("report oom.tonnage -o {name}"));
    }
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("one.html") == read("two.html"));
}

#[test]
fn the_help_names_every_option() {
    let folder = folder();
    assert_snapshot!("help", tonnage(folder.path(), "report --help"));
}
