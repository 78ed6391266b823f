// SPDX-License-Identifier: MIT OR Apache-2.0
//! `info`, `import` and `export` as a person sees them: every sentence is a snapshot.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod said;

use std::process::Command;

use insta::assert_snapshot;
use tempfile::TempDir;
use tonnage_recording::{Event, Kind, Writer, meta};

use said::tonnage;

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

fn write_recording() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    for (name, text) in [
        (meta::COMMAND, "python train.py\u{1b}[31m"),
        ("run.ending", "exit 0"),
        (meta::TORCH_VERSION, "2.15.0"),
        (meta::GPU_NAME, "NVIDIA A100-SXM4-40GB"),
        (meta::GPU_CAPACITY, "42297786368"),
        ("gpu.capacity.known", "read"),
        (meta::ALLOCATOR_CONF, "expandable_segments:True"),
        ("unknown.0", "the stacks of 3 allocations and frees"),
    ] {
        writer.meta(0, name, text).unwrap();
    }
    let row = |process, kind, address, size, requested| Event {
        process,
        address,
        size,
        requested,
        time: Some(i64::from(process) * 1_000_000 + address.cast_signed()),
        ..Event::new(kind)
    };
    for process in [0, 1] {
        for event in [
            row(process, Kind::DriverContext, 0, 400 * MIB, 0),
            row(process, Kind::SegmentAlloc, 2 * MIB, 20 * MIB, 0),
            row(process, Kind::Alloc, 2 * MIB, 5 * MIB, 5 * MIB - 3),
            row(process, Kind::Alloc, 8 * MIB, MIB, MIB),
            row(process, Kind::FreeRequested, 2 * MIB, 5 * MIB, 5 * MIB - 3),
            row(process, Kind::FreeCompleted, 2 * MIB, 0, 5 * MIB - 3),
        ] {
            writer.event(&event).unwrap();
        }
    }
    writer.finish().unwrap()
}

/// A folder with one file of each kind.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let own = write_recording();
    put("own.tonnage", &own);
    put("cut.tonnage", &own[..own.len() - 8]);
    put("headless.tonnage", &own[..40]);
    put("snapshot.json", SNAPSHOT.as_bytes());
    put("rmm.csv", RMM.as_bytes());
    put("plan.csv", b"id,lower,upper,size\na,0,5,100\nb,2,9,50\n");
    put("empty", b"");
    put("prose.txt", b"hello");
    put("code.pickle", b"\x80\x04cos\nsystem\n.");
    put("short.pickle", b"\x80\x04}(");
    folder
}

#[test]
fn info_of_every_format() {
    let folder = folder();
    let mut text = String::new();
    for file in ["own.tonnage", "snapshot.json", "rmm.csv", "plan.csv"] {
        text += &tonnage(folder.path(), &format!("info {file}"));
        text.push('\n');
    }
    // The size of a compressed file is not ours to promise.
    let size = std::fs::metadata(folder.path().join("own.tonnage"))
        .unwrap()
        .len();
    let size = format!("{:.2} KiB", size as f64 / 1024.0);
    assert_snapshot!("info", text.replace(&size, "SIZE"));
}

#[test]
fn a_recording_says_that_it_is_one_rank_of_many() {
    let folder = TempDir::new().unwrap();
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    for (name, text) in [
        ("run.world_size", "4"),
        ("run.ranks", "0"),
        (meta::PROCESS_RANK, "0"),
        (meta::GPU_CAPACITY, "42297786368"),
    ] {
        writer.meta(0, name, text).unwrap();
    }
    let block = Event {
        address: 2 * MIB,
        size: MIB,
        ..Event::new(Kind::Alloc)
    };
    writer.event(&block).unwrap();
    let path = folder.path().join("rank.tonnage");
    std::fs::write(path, writer.finish().unwrap()).unwrap();
    for (command, words) in [
        ("info", "rank 0 of 4; the others did not run"),
        ("info --json", "\"world_size\": 4"),
        ("explain", "rank 0 of 4; the others did not run"),
    ] {
        let text = tonnage(folder.path(), &format!("{command} rank.tonnage"));
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn info_of_what_cannot_be_read() {
    let folder = folder();
    let mut text = String::new();
    for file in [
        "empty",
        "prose.txt",
        "headless.tonnage",
        "code.pickle",
        "short.pickle",
        "nowhere",
        ".",
    ] {
        text += &tonnage(folder.path(), &format!("info {file}"));
        text.push('\n');
    }
    assert_snapshot!("info_errors", text);
}

#[test]
fn info_says_that_a_recording_is_truncated_and_shows_the_others() {
    let folder = folder();
    let text = tonnage(folder.path(), "info cut.tonnage empty own.tonnage");
    assert!(text.contains("exit code 2"), "{text}");
    assert!(text.contains("truncated"), "{text}");
    assert!(text.contains("at least 6.00 MiB allocated"), "{text}");
    assert!(text.contains("empty is empty"), "{text}");
    assert!(text.contains("6.00 MiB allocated exact"), "{text}");
}

/// The first batch is whole, and nothing of it is left: a copy that stopped early.
#[test]
fn what_has_no_answer_because_it_is_truncated_says_so() {
    let folder = folder();
    let own = write_recording();
    // The header and the schema, then a batch that is cut in its middle.
    std::fs::write(folder.path().join("half.tonnage"), &own[..own.len() / 2]).unwrap();
    let info = tonnage(folder.path(), "info half.tonnage");
    assert!(info.contains("truncated"), "{info}");
    for command in [
        "explain half.tonnage",
        "report half.tonnage",
        "diff half.tonnage half.tonnage",
    ] {
        let text = tonnage(folder.path(), command);
        assert!(text.contains("exit code 2"), "{text}");
        assert!(text.contains("half.tonnage is truncated"), "{text}");
        assert!(text.contains("copy it again"), "{text}");
    }
}

#[test]
fn damage_is_told_in_a_line_and_with_one_hint_everywhere() {
    let folder = folder();
    let mut own = write_recording();
    // The second message: its header, which has the length of everything.
    let second = own
        .windows(4)
        .enumerate()
        .filter(|(place, four)| place % 8 == 0 && *four == [0xff; 4])
        .map(|(place, _)| place)
        .nth(1)
        .unwrap();
    for byte in &mut own[second + 8..second + 40] {
        *byte ^= 0x5a;
    }
    std::fs::write(folder.path().join("bad.tonnage"), own).unwrap();
    let mut said = std::collections::BTreeSet::new();
    for command in ["info", "explain", "report", "replay"] {
        let text = tonnage(folder.path(), &format!("{command} bad.tonnage"));
        let (_, stderr) = text.split_once("--- stderr\n").unwrap();
        // The unreadable file, the reason, and the remedy.
        assert_eq!(
            stderr.lines().filter(|line| !line.is_empty()).count(),
            3,
            "{text}"
        );
        assert!(stderr.contains("damaged"), "{text}");
        said.insert(stderr.to_owned());
    }
    assert_eq!(said.len(), 1, "{said:?}");
}

/// Runs the command with a file as its standard input; the exit code, stdout and stderr.
fn piped(folder: &TempDir, words: &str, file: &str) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tonnage"))
        .args(words.split_whitespace())
        .current_dir(folder.path())
        .env("NO_COLOR", "1")
        .stdin(std::fs::File::open(folder.path().join(file)).unwrap())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn a_dash_is_standard_input_for_every_command_that_reads_a_recording() {
    let folder = folder();
    for (words, file) in [
        ("info FILE", "own.tonnage"),
        ("explain FILE", "own.tonnage"),
        ("replay FILE --alloc recorded", "own.tonnage"),
        ("replay --search FILE", "own.tonnage"),
        ("plan FILE", "own.tonnage"),
        ("plan FILE", "plan.csv"),
        ("report FILE --text", "own.tonnage"),
        ("convert FILE --to perfetto -o -", "own.tonnage"),
        ("info FILE", "snapshot.json"),
        ("explain FILE", "snapshot.json"),
    ] {
        let (code, out, told) = piped(&folder, &words.replace("FILE", "-"), file);
        let (same_code, mut same_out, _) = piped(&folder, &words.replace("FILE", file), "empty");
        // A command that reads standard input cannot be repeated.
        if let Some(next) = same_out.find("  next       tonnage report") {
            same_out.truncate(next);
        }
        assert_eq!(code, same_code, "{words} {file}: {told}");
        assert_eq!(out, same_out.replace(file, "-"), "{words} {file}");
        assert!(!out.is_empty(), "{words} {file}: {told}");
    }
    let (code, _, told) = piped(&folder, "convert -", "snapshot.json");
    assert_eq!(code, 0, "{told}");
    assert!(folder.path().join("stdin.tonnage").exists(), "{told}");
    for (file, message) in [
        ("empty", "standard input is empty"),
        ("prose.txt", "cannot read standard input"),
        ("headless.tonnage", "cannot read standard input"),
    ] {
        let (code, _, told) = piped(&folder, "explain -", file);
        assert_eq!(code, 2);
        assert!(told.contains(message) && told.contains("hint:"), "{told}");
    }
}

#[test]
fn info_as_json() {
    let folder = folder();
    assert_snapshot!(
        "info_json",
        tonnage(folder.path(), "info --json snapshot.json")
    );
}

#[test]
fn import_and_export() {
    let folder = folder();
    let mut text = String::new();
    for arguments in [
        "convert snapshot.json",
        "convert snapshot.json",
        "convert own.tonnage",
        "convert rmm.csv -o log.tonnage",
        "convert snapshot.tonnage --to snapshot",
        "convert snapshot.tonnage --to snapshot -o snapshot.pickle",
        "convert own.tonnage --to snapshot",
        "convert own.tonnage --to snapshot --process 1",
        "convert own.tonnage --to snapshot --process 7 --force",
        "convert own.tonnage --to snapshot --min-block 1MiB",
        "convert own.tonnage --to perfetto --min-block 1MiB",
        "convert own.tonnage --to perfetto -o nowhere/x.json",
        "convert prose.txt --to perfetto",
        "convert plan.csv --to snapshot",
        "convert rmm.csv --to svg",
    ] {
        text += &tonnage(folder.path(), arguments);
        text.push('\n');
    }
    // Sizes of compressed files are not ours to promise.
    let text: Vec<_> = text.lines().map(without_size).collect();
    assert_snapshot!("import_and_export", text.join("\n"));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    let hidden = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with('.');
    assert!(
        !left
            .iter()
            .any(|entry| hidden(&entry.as_ref().unwrap().file_name()))
    );
}

fn without_size(line: &str) -> String {
    let cut = line.split_once(" (").and_then(|(head, rest)| {
        let (inside, tail) = rest.split_once(')')?;
        let (count, _) = inside.split_once(", ")?;
        line.starts_with("wrote")
            .then(|| format!("{head} ({count}, SIZE){tail}"))
    });
    cut.unwrap_or_else(|| line.to_owned())
}

#[test]
fn a_snapshot_comes_back_as_it_was() {
    let folder = folder();
    for arguments in [
        "convert snapshot.json -o first.tonnage",
        "convert first.tonnage --to snapshot -o back.pickle",
        "convert back.pickle -o second.tonnage",
    ] {
        let text = tonnage(folder.path(), arguments);
        assert!(text.contains("exit code 0"), "{text}");
    }
    let events = |name: &str| {
        let trace =
            tonnage_recording::Trace::read(std::fs::File::open(folder.path().join(name)).unwrap());
        let events = trace.unwrap().events;
        events
            .into_iter()
            .map(|event| Event {
                name: None,
                ..event
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(events("first.tonnage"), events("second.tonnage"));
}

#[test]
fn a_dash_writes_to_stdout() {
    let folder = folder();
    let output = Command::new(env!("CARGO_BIN_EXE_tonnage"))
        .args(["export", "own.tonnage", "--format", "perfetto", "-o", "-"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        json["traceEvents"]
            .as_array()
            .is_some_and(|rows| rows.len() > 10)
    );
}
