// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings and verdicts from the files of made-up processes.
#![expect(
    clippy::unwrap_used,
    reason = "a test whose files cannot be written has failed"
)]

use std::path::Path;

use tonnage_analysis::verdict::{Outcome, Verdict, verdict};
use tonnage_capture::blocks::{self, Block, Entry, Note, NoteKind};
use tonnage_capture::ledger::{self, DeviceWord, ProcessWord, SharedWord};
use tonnage_capture::log::{CallKind, DriverCall, Record, Start, encode};
use tonnage_recording::facts;
use tonnage_recording::{Event, Kind, Trace, Writer, meta};
use tonnage_run::collect::collect;

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 44;

fn call(kind: CallKind, time: u64, address: u64, size: u64) -> Record<'static> {
    Record::Call(DriverCall {
        kind,
        device: 0,
        time,
        address,
        size,
        extra: if kind == CallKind::Refused {
            3 * MIB
        } else {
            0
        },
        charged: 0,
        in_use: 0,
    })
}

fn block(time: u64, address: u64, change: i64) -> Block {
    Block {
        address,
        change,
        time,
        device: 0,
    }
}

/// A piece of torch's history as JSON, which the importer reads like a pickle.
fn history(entries: &[(&str, u64, u64, u64)]) -> String {
    let entry = |&(action, address, size, line): &(&str, u64, u64, u64)| {
        let key = if action == "oom" {
            "device_free"
        } else {
            "addr"
        };
        format!(
            r#"{{"action": "{action}", "{key}": {address}, "size": {size}, "stream": 0,
                "time_us": 1, "frames": [
                {{"name": "empty", "filename": "/x/site-packages/torch/a.py", "line": 9}},
                {{"name": "main", "filename": "train.py", "line": {line}}}]}}"#
        )
    };
    let entries: Vec<String> = entries.iter().map(entry).collect();
    format!(r#"{{"device_traces": [[{}]]}}"#, entries.join(","))
}

struct Run {
    folder: tempfile::TempDir,
    ending: &'static str,
}

impl Run {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            ending: "exit 0",
        }
    }

    fn process(&self, slot: u32, records: &[Record<'_>], blocks: &[Block]) {
        let entries: Vec<Entry> = blocks.iter().copied().map(Entry::Block).collect();
        self.process_with_notes(slot, records, &entries);
    }

    fn process_with_notes(&self, slot: u32, records: &[Record<'_>], entries: &[Entry]) {
        let start = Start {
            slot,
            pid: 100 + slot,
            arguments: vec!["python".to_owned(), "train.py".to_owned()],
            visible: vec![0],
            time: 0,
            measured: false,
        };
        let mut log = encode(&Record::Start(start)).unwrap();
        // The device charges the requested size, to no other process.
        let mut charged = 0;
        for record in records {
            let mut record = record.clone();
            if let Record::Call(call) = &mut record {
                match call.kind {
                    CallKind::Context | CallKind::Malloc | CallKind::Create => charged += call.size,
                    CallKind::Free | CallKind::Release => charged -= call.size,
                    _ => {}
                }
                (call.charged, call.in_use) = (charged, charged);
            }
            log.extend(encode(&record).unwrap());
        }
        let name = |prefix: &str| {
            self.path()
                .join(format!("{prefix}{slot:03}-{}", 100 + slot))
        };
        std::fs::write(name(tonnage_capture::LOG_PREFIX), log).unwrap();
        let words = entries.iter().flat_map(|entry| entry.to_words());
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.resize(bytes.len() + blocks::ENTRY, 0);
        std::fs::write(name(blocks::PREFIX), bytes).unwrap();
    }

    /// A ledger with these words set.
    fn ledger(&self, words: &[(usize, u64)]) {
        let mut bytes = ledger::fresh();
        for &(at, word) in words {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        std::fs::write(self.path().join(tonnage_capture::LEDGER_FILE), bytes).unwrap();
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn record(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        for (name, text) in [
            (meta::COMMAND, "python train.py"),
            (facts::GPU_ID, "test"),
            (meta::GPU_NAME, "Test"),
            (facts::GPU_COUNT, "1"),
            (meta::GPU_CAPACITY, "1073741824"),
            (facts::GPU_CAPACITY_KNOWN, "given"),
            (meta::GPU_CONTEXT, "104857600"),
            (facts::GPU_CONTEXT_KNOWN, "assumed"),
            (facts::ENDING, self.ending),
        ] {
            writer.meta(facts::RUN, name, text).unwrap();
        }
        collect(self.path(), &mut writer).unwrap();
        writer.finish().unwrap()
    }

    fn trace(&self) -> Trace {
        Trace::read(self.record().as_slice()).unwrap()
    }

    fn verdict(&self) -> Verdict {
        let bytes = self.record();
        verdict(|| Ok(bytes.as_slice())).unwrap()
    }
}

fn rows(trace: &Trace) -> Vec<(Kind, u64, u64, u64)> {
    let row = |event: &Event| (event.kind, event.address, event.size, event.requested);
    trace.events.iter().map(row).collect()
}

/// One segment, three blocks, the last of them after the last drain.
fn usual(run: &Run) {
    let first = history(&[
        ("segment_alloc", BASE, 20 * MIB, 4),
        ("alloc", BASE, 3_000_000, 4),
        ("alloc", BASE + 4 * MIB, 1_000_000, 5),
        ("free_requested", BASE, 3_000_000, 4),
        ("free_completed", BASE, 3_000_000, 4),
    ]);
    run.process(
        0,
        &[
            call(CallKind::Context, 1, 0, 100 * MIB),
            call(CallKind::Malloc, 2, BASE, 20 * MIB),
            Record::Torch(first.as_bytes()),
            Record::Unmodelled("cudaFoo"),
        ],
        &[
            block(3, BASE, 3_000_320),
            block(4, BASE + 4 * MIB, 1_000_448),
            block(5, BASE, -3_000_320),
            block(6, BASE + 8 * MIB, 512),
        ],
    );
}

#[test]
fn three_sources_become_one_story() {
    let run = Run::new();
    usual(&run);
    let trace = run.trace();
    assert_eq!(
        rows(&trace),
        [
            (Kind::DriverContext, 0, 100 * MIB, 0),
            (Kind::DriverMalloc, BASE, 20 * MIB, 20 * MIB),
            (Kind::SegmentAlloc, BASE, 20 * MIB, 0),
            (Kind::Alloc, BASE, 3_000_320, 3_000_000),
            (Kind::Alloc, BASE + 4 * MIB, 1_000_448, 1_000_000),
            (Kind::FreeRequested, BASE, 3_000_320, 3_000_000),
            (Kind::FreeCompleted, BASE, 0, 3_000_000),
            (Kind::Alloc, BASE + 8 * MIB, 512, 0),
            (Kind::Unmodelled, 0, 1, 0),
        ]
    );
    let stacks = trace.events.iter().filter(|event| event.stack.is_some());
    assert_eq!(stacks.count(), 5, "only the tail has no stack");
}

#[test]
fn the_verdict_adds_up() {
    let run = Run::new();
    usual(&run);
    let verdict = run.verdict();
    assert_eq!(verdict.outcome, Outcome::Fits);
    let device = verdict.worst().unwrap();
    assert_eq!(device.peak_allocated, 4_000_768);
    assert_eq!(device.peak_reserved, 20 * MIB);
    assert_eq!(device.peak_used, 120 * MIB);
    assert_eq!(verdict.spare(), (1024 - 120) * MIB);
    let held = device.at_peak;
    assert_eq!(held.allocated + held.cached, 20 * MIB);
    assert_eq!(
        (held.context, held.other, held.used),
        (100 * MIB, 0, 120 * MIB)
    );
    let place = |index: usize| {
        let holder = &device.holders[index];
        (holder.bytes, holder.place.as_ref().unwrap().line)
    };
    assert_eq!([place(0), place(1)], [(3_000_320, 4), (1_000_448, 5)]);
    let inside = device.holders[0].inside.as_ref().unwrap();
    assert_eq!(inside.file, "/x/site-packages/torch/a.py");
    assert_eq!(verdict.unmodelled[0].name, "cudaFoo");
}

#[test]
fn memory_that_is_not_torchs_is_other() {
    let run = Run::new();
    run.process(
        0,
        &[
            call(CallKind::Context, 1, 0, 100 * MIB),
            call(CallKind::Malloc, 2, BASE, 20 * MIB),
        ],
        &[],
    );
    let verdict = run.verdict();
    assert_eq!(verdict.worst().unwrap().peak_used, 120 * MIB);
    assert_eq!(verdict.worst().unwrap().peak_allocated, 0);
}

#[test]
fn out_of_memory_ends_a_run_only_if_it_ended_the_run() {
    let mut run = Run::new();
    let story = history(&[
        ("segment_alloc", BASE, 20 * MIB, 4),
        ("alloc", BASE, 20_000_000, 4),
        ("oom", 3 * MIB, 900 * MIB, 7),
    ]);
    let records = [
        call(CallKind::Context, 1, 0, 100 * MIB),
        call(CallKind::Malloc, 2, BASE, 20 * MIB),
        call(CallKind::Refused, 3, 1, 900 * MIB),
        call(CallKind::Refused, 4, 1, 900 * MIB),
        Record::Torch(story.as_bytes()),
    ];
    run.process(0, &records, &[block(3, BASE, 20_000_256)]);
    assert_eq!(run.verdict().outcome, Outcome::Fits, "caught by the script");
    assert_eq!(run.verdict().worst().unwrap().ooms, 1);
    assert_eq!(run.verdict().worst().unwrap().out_of_memory, None);

    run.ending = "exit 1";
    let verdict = run.verdict();
    assert_eq!(verdict.outcome, Outcome::DoesNotFit);
    let failure = verdict.worst().unwrap().out_of_memory.as_ref().unwrap();
    assert_eq!((failure.requested, failure.free), (900 * MIB, 3 * MIB));
    assert_eq!(failure.place.as_ref().unwrap().line, 7);
    assert_eq!(verdict.worst().unwrap().refusals, 2);
    let kinds: Vec<Kind> = run.trace().events.iter().map(|event| event.kind).collect();
    let oom = kinds.iter().position(|kind| *kind == Kind::Oom).unwrap();
    assert_eq!(
        kinds[oom - 2..oom],
        [Kind::DriverOom; 2],
        "refusals stand before it"
    );
}

/// The events of the driver and of torch, where a script fails twice for the same size and a third time later: it
/// gives a segment back and takes another in between.
fn three_failures(run: &Run, notes: bool) -> Vec<(Kind, u64)> {
    const SECOND: u64 = BASE + 900 * MIB;
    let failed = ("oom", 3 * MIB, 900 * MIB, 7);
    let story = history(&[
        ("segment_alloc", BASE, 20 * MIB, 4),
        failed,
        failed,
        ("segment_free", BASE, 20 * MIB, 4),
        ("segment_alloc", SECOND, 40 * MIB, 5),
        ("oom", 3 * MIB, 900 * MIB, 9),
    ]);
    let refused = |time| call(CallKind::Refused, time, CallKind::Malloc as u64, 900 * MIB);
    let note = || Record::Note(br#"{"oom": 0}"#);
    let mut records = vec![
        call(CallKind::Context, 1, 0, 100 * MIB),
        call(CallKind::Malloc, 2, BASE, 20 * MIB),
        refused(3),
        refused(4),
        note(),
        refused(5),
        refused(6),
        note(),
        call(CallKind::Free, 7, BASE, 20 * MIB),
        call(CallKind::Malloc, 8, SECOND, 40 * MIB),
        refused(9),
        note(),
        Record::Torch(story.as_bytes()),
    ];
    if !notes {
        records.retain(|record| !matches!(record, Record::Note(_)));
    }
    run.process(0, &records, &[]);
    let rows = run.trace().events;
    rows.iter().map(|row| (row.kind, row.size)).collect()
}

#[test]
fn each_failure_takes_its_own_refusals() {
    let refused = (Kind::DriverOom, 900 * MIB);
    let failed = (Kind::Oom, 900 * MIB);
    let expected = [
        (Kind::DriverContext, 100 * MIB),
        (Kind::DriverMalloc, 20 * MIB),
        (Kind::SegmentAlloc, 20 * MIB),
        refused,
        refused,
        failed,
        refused,
        refused,
        failed,
        (Kind::SegmentFree, 20 * MIB),
        (Kind::DriverFree, 20 * MIB),
        (Kind::DriverMalloc, 40 * MIB),
        (Kind::SegmentAlloc, 40 * MIB),
        refused,
        failed,
    ];
    assert_eq!(three_failures(&Run::new(), true), expected);
}

#[test]
fn a_failure_that_was_not_told_does_not_take_later_calls() {
    let rows = three_failures(&Run::new(), false);
    let second = (rows.iter().rposition(|row| row.0 == Kind::Oom)).unwrap();
    let earlier: Vec<Kind> = rows[..second].iter().map(|row| row.0).collect();
    let place = |kind| earlier.iter().position(|one| *one == kind).unwrap();
    let last_before = |kind| earlier.iter().rposition(|one| *one == kind).unwrap();
    assert!(place(Kind::Oom) < place(Kind::DriverFree));
    assert!(place(Kind::SegmentFree) < place(Kind::DriverFree));
    assert!(last_before(Kind::DriverMalloc) < last_before(Kind::SegmentAlloc));
}

#[test]
fn a_failure_of_another_device_takes_no_refusal_of_this_one() {
    let run = Run::new();
    let oom = r#"{"action": "oom", "device_free": 0, "size": 7, "stream": 0, "time_us": 1, "frames": []}"#;
    let story = format!(r#"{{"device_traces": [[{oom}], [{oom}]]}}"#);
    let refused = |device, time| match call(CallKind::Refused, time, CallKind::Malloc as u64, 7) {
        Record::Call(call) => Record::Call(DriverCall { device, ..call }),
        other => other,
    };
    let records = [
        call(CallKind::Context, 1, 0, 100 * MIB),
        refused(0, 2),
        Record::Note(br#"{"oom": 0}"#),
        refused(1, 3),
        Record::Note(br#"{"oom": 1}"#),
        Record::Torch(story.as_bytes()),
    ];
    run.process(0, &records, &[]);
    let rows: Vec<(Kind, i32)> = (run.trace().events.iter())
        .map(|row| (row.kind, row.device))
        .collect();
    let expected = [
        (Kind::DriverContext, 0),
        (Kind::DriverOom, 0),
        (Kind::Oom, 0),
        (Kind::DriverOom, 1),
        (Kind::Oom, 1),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn what_held_the_memory_at_a_failure_stands_before_it() {
    let run = Run::new();
    let story = history(&[
        ("segment_alloc", BASE, 20 * MIB, 4),
        ("alloc", BASE, 3_000_000, 4),
        ("oom", 3 * MIB, 64 * MIB, 6),
        ("alloc", BASE + 4 * MIB, 1_000_000, 7),
    ]);
    let note = |time, kind, address, text| {
        Entry::Note(Note {
            kind,
            device: 0,
            time,
            address,
            text,
        })
    };
    run.process_with_notes(
        0,
        &[
            call(CallKind::Context, 1, 0, 100 * MIB),
            call(CallKind::Malloc, 2, BASE, 20 * MIB),
            Record::Text("phase\tstep"),
            Record::Text("census\toom"),
            Record::Text("list\tkept\ttrain.py:4"),
            Record::Text("census_end\toom"),
            call(CallKind::Refused, 4, CallKind::Malloc as u64, 64 * MIB),
            Record::Torch(story.as_bytes()),
        ],
        &[
            Entry::Block(block(3, BASE, 3_000_320)),
            note(4, NoteKind::Start, 0, 0),
            note(5, NoteKind::Moment, 0, 1),
            note(6, NoteKind::Holder, BASE, 2),
            note(7, NoteKind::Moment, 0, 3),
            note(8, NoteKind::End, 0, 0),
            Entry::Block(block(9, BASE + 4 * MIB, 1_000_448)),
        ],
    );
    let trace = run.trace();
    let kinds: Vec<Kind> = trace.events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds[3..],
        [
            Kind::Alloc,
            Kind::DriverOom,
            Kind::MarkStart,
            Kind::Mark,
            Kind::Holder,
            Kind::Mark,
            Kind::Oom,
            Kind::MarkEnd,
            Kind::Alloc,
        ]
    );
    let held = trace.events.iter().find(|event| event.kind == Kind::Holder);
    let text = |id: Option<_>| trace.stacks.text(id.unwrap());
    let held = held.unwrap();
    assert_eq!((held.address, text(held.name)), (BASE, "kept"));
    assert_eq!(text(held.text), "list train.py:4");
}

#[test]
fn a_failure_of_the_scripts_own_is_told_apart() {
    let mut run = Run::new();
    run.ending = "exit 1";
    let note = br#"{"exception": {"type": "builtins.ValueError", "message": "no",
                    "stack": [["main", "train.py", 3]]}}"#;
    run.process(
        0,
        &[call(CallKind::Context, 1, 0, MIB), Record::Note(note)],
        &[],
    );
    let verdict = run.verdict();
    assert_eq!(verdict.outcome, Outcome::Failed);
    assert_eq!(verdict.exceptions[0].kind, "builtins.ValueError");
    assert_eq!(verdict.exceptions[0].place.as_ref().unwrap().line, 3);
}

#[test]
fn a_history_that_lost_events_is_filled_up() {
    let run = Run::new();
    let story = history(&[("alloc", BASE, 1000, 4), ("alloc", BASE + 4096, 3000, 5)]);
    run.process(
        0,
        &[
            call(CallKind::Context, 1, 0, MIB),
            Record::Torch(story.as_bytes()),
            Record::Note(br#"{"lost": 1}"#),
            Record::Note(br#"{"lost": 1}"#),
        ],
        &[
            block(2, BASE, 1024),
            block(3, BASE + 1024, 512),
            block(4, BASE + 1024, -512),
            block(5, BASE + 4096, 3072),
        ],
    );
    let trace = run.trace();
    let sizes: Vec<u64> = trace.events[..4].iter().map(|event| event.size).collect();
    assert_eq!(sizes, [1024, 512, 512, 3072]);
    let unknown = trace.fact(0, "unknown.0").unwrap();
    assert_eq!(unknown, "the stacks of 2 allocations and frees");
    assert_eq!(trace.fact(0, "unknown.1"), None, "one sum");
}

#[test]
fn notes_that_are_not_known_are_counted() {
    let run = Run::new();
    let lost = Record::Note(br#"{"lost": 1}"#);
    let renamed = Record::Note(br#"{"stacks_lost": 1}"#);
    let more = Record::Note(br#"{"costs": {"steps": 1, "counts": [], "more": 0}}"#);
    let calls = [call(CallKind::Context, 1, 0, MIB), lost, renamed, more];
    run.process(0, &calls, &[]);
    let limitations = run.verdict().limitations;
    assert_eq!(limitations.len(), 1);
    assert_eq!(limitations[0].code, "TN305");
    assert!(
        limitations[0]
            .message
            .starts_with("2 notes of the recorder")
    );
}

#[test]
fn a_process_that_never_used_a_device_is_left_out() {
    let run = Run::new();
    run.process(0, &[Record::Note(b"{}")], &[]);
    run.process(1, &[call(CallKind::Context, 1, 0, MIB)], &[]);
    let trace = run.trace();
    assert_eq!(trace.events.len(), 1);
    assert_eq!(trace.events[0].process, 0);
    let empty = Run::new();
    empty.process(0, &[], &[]);
    assert_eq!(empty.verdict().outcome, Outcome::NoDevice);
}

#[test]
fn a_log_cut_by_a_kill_is_read() {
    let run = Run::new();
    usual(&run);
    let name = std::fs::read_dir(run.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains(tonnage_capture::LOG_PREFIX))
        .unwrap();
    let whole = std::fs::read(&name).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(&name, &whole[..cut]).unwrap();
        run.record();
    }
}

#[test]
fn a_corrupt_log_loses_one_process_and_the_verdict_names_it() {
    let run = Run::new();
    for slot in 0..3 {
        let calls = [
            call(CallKind::Context, 1, 0, 256 * MIB),
            call(CallKind::Malloc, 2, 4096, 2 * MIB),
        ];
        run.process(slot, &calls, &[]);
    }
    let log = |slot: u32| {
        let name = format!("{}{slot:03}-{}", tonnage_capture::LOG_PREFIX, 100 + slot);
        run.path().join(name)
    };
    // One log is corrupt from its start on, one in its last record.
    let mut bytes = std::fs::read(log(1)).unwrap();
    bytes[0] = 99;
    std::fs::write(log(1), &bytes).unwrap();
    let mut bytes = std::fs::read(log(2)).unwrap();
    let last = bytes.len() - 64;
    bytes[last] = 99;
    std::fs::write(log(2), &bytes).unwrap();
    let verdict = run.verdict();
    assert_eq!(
        verdict.devices.len(),
        2,
        "the first whole, the last in part"
    );
    for (pid, at) in [(101, 0), (102, last)] {
        let named = format!("process {pid} after byte {at} of its log");
        let unknown = verdict.unknown.iter().filter(|gap| gap.contains(&named));
        assert_eq!(unknown.count(), 1, "{:?}", verdict.unknown);
    }
    assert!(verdict.incomplete.is_some());
}

#[test]
fn a_history_that_cannot_be_read_is_a_gap_and_not_the_end() {
    let run = Run::new();
    let records = [
        call(CallKind::Context, 1, 0, 256 * MIB),
        Record::Torch(b"not a pickle"),
    ];
    run.process(0, &records, &[]);
    let verdict = run.verdict();
    assert_eq!(verdict.devices.len(), 1);
    let named = |gap: &&String| gap.contains("history of process 100");
    assert_eq!(
        verdict.unknown.iter().filter(named).count(),
        1,
        "{:?}",
        verdict.unknown
    );
}

#[test]
fn random_bytes_in_capture_files_do_not_panic() {
    let run = Run::new();
    usual(&run);
    let mut files: Vec<_> = std::fs::read_dir(run.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (std::fs::read(&path).unwrap(), path))
        .collect();
    files.sort();
    let mut seed = 1_u64;
    for _ in 0..400 {
        for (bytes, path) in &files {
            let mut bytes = bytes.clone();
            for _ in 0..4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 20) as u8;
            }
            std::fs::write(path, bytes).unwrap();
        }
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        let collected = collect(run.path(), &mut writer);
        assert!(collected.is_ok(), "{collected:?}");
    }
}

/// The words of a process with this number whose disk was full after 3 entries.
fn full_disk(slot: usize, number: u64) -> [(usize, u64); 5] {
    [
        (ledger::TAKEN_WORD, slot as u64 + 1),
        (ledger::process_word(slot, ProcessWord::Number), number + 1),
        (ledger::process_word(slot, ProcessWord::Lost), 7),
        (ledger::process_word(slot, ProcessWord::FirstLost), 4),
        (ledger::process_word(slot, ProcessWord::LostError), 28),
    ]
}

#[test]
fn a_recording_that_lost_entries_says_from_where_and_knows_the_most_all_the_same() {
    let run = Run::new();
    usual(&run);
    let whole = run.verdict();
    assert_eq!(whole.incomplete, None);
    assert!(whole.unknown.is_empty());
    let mut words = full_disk(5, 0).to_vec();
    words.extend([
        (
            ledger::device_word(5, 0, DeviceWord::PeakCharged),
            300 * MIB,
        ),
        (
            ledger::device_word(5, 0, DeviceWord::PeakAllocated),
            50 * MIB,
        ),
        (ledger::shared_word(0, SharedWord::PeakInUse), 400 * MIB),
    ]);
    run.ledger(&words);
    let verdict = run.verdict();
    assert_eq!(
        verdict.incomplete.as_deref(),
        Some("from event 4 on: the disk was full")
    );
    assert_eq!(
        verdict.unknown,
        ["7 calls and blocks from event 4 on, because the disk was full"]
    );
    assert_eq!(verdict.devices_total[0].most_in_use, 400 * MIB);
    let device = &verdict.devices[0];
    assert_eq!(device.peak_used, 300 * MIB);
    assert_eq!(device.peak_allocated, 50 * MIB);
    assert!(
        device.at_peak.used < device.peak_used,
        "a moment that was recorded"
    );
    let info = tonnage_analysis::info::info(run.record().as_slice()).unwrap();
    assert!(info.incomplete.is_some());
    let peak = info.devices[0].peak_used.clone().unwrap();
    assert_ne!(peak.known, tonnage_analysis::info::Known::Exact);
    let trace = run.trace();
    let fact = |name: &str| trace.fact(0, name).map(str::to_owned);
    assert_eq!(fact("device.0.peak_charged"), Some((300 * MIB).to_string()));
    assert_eq!(
        fact("device.0.peak_allocated"),
        Some((50 * MIB).to_string())
    );
    assert_eq!(fact("device.0.peak_reserved"), None);
}

#[test]
fn processes_of_which_nothing_was_kept_are_spoken_of() {
    let run = Run::new();
    usual(&run);
    let mut words = full_disk(1, 1).to_vec();
    words.extend([(ledger::UNPLACED_WORD, 2), (ledger::LOST_BEFORE_WORD, 10)]);
    run.ledger(&words);
    let verdict = run.verdict();
    assert!(verdict.incomplete.is_some());
    let [unplaced, lost] = verdict.unknown.as_slice() else {
        panic!("two things are unknown: {:?}", verdict.unknown);
    };
    assert!(
        unplaced.starts_with("2 processes, because only 512"),
        "{unplaced}"
    );
    assert!(lost.starts_with("17 calls and blocks"), "{lost}");
}

#[test]
fn processes_come_in_the_order_of_their_numbers() {
    let run = Run::new();
    // By name alone, 1000 would stand before 999.
    for slot in [1000, 999, 2] {
        run.process(slot, &[call(CallKind::Context, 1, 0, u64::from(slot))], &[]);
    }
    let sizes: Vec<u64> = run.trace().events.iter().map(|event| event.size).collect();
    assert_eq!(sizes, [2, 999, 1000]);
}

#[test]
fn any_ledger_is_read() {
    let run = Run::new();
    usual(&run);
    for word in [0, 1, 255, u64::MAX] {
        let words: Vec<(usize, u64)> = (1..ledger::WORDS).map(|at| (at, word)).collect();
        run.ledger(&words);
        run.verdict();
    }
    std::fs::write(run.path().join(tonnage_capture::LEDGER_FILE), b"tonn").unwrap();
    run.verdict();
}
