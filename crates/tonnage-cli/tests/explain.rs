// SPDX-License-Identifier: MIT OR Apache-2.0
//! `explain` as a person sees it: every sentence is a snapshot, with its exit code.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod said;

use std::path::Path;

use insta::assert_snapshot;
use tempfile::TempDir;
use tonnage_recording::{Event, Kind, Meta, Pool, StackId, Trace, meta};

use said::tonnage;

const MIB: u64 = 1 << 20;

/// A small training run on a device of 1 GiB.
struct Run {
    trace: Trace,
}

impl Run {
    fn new() -> Self {
        let mut trace = Trace::new("tonnage 0.1.0");
        for (name, text) in [
            (meta::COMMAND, "python train.py"),
            (meta::TORCH_VERSION, "2.15.0"),
            (meta::GPU_NAME, "NVIDIA A100-SXM4-40GB"),
            (meta::GPU_CAPACITY, "1073741824"),
        ] {
            trace.meta.push(Meta {
                process: 0,
                name: name.to_owned(),
                text: text.to_owned(),
            });
        }
        let mut run = Self { trace };
        run.row(Kind::DriverContext, 0, 100 * MIB, None);
        run
    }

    fn row(&mut self, kind: Kind, address: u64, size: u64, stack: Option<StackId>) {
        self.trace.events.push(Event {
            address,
            size,
            requested: if kind == Kind::Alloc { size } else { 0 },
            pool: (kind == Kind::Alloc).then(Pool::default),
            stack,
            ..Event::new(kind)
        });
    }

    fn line(&mut self, line: u64) -> Option<StackId> {
        let stacks = &mut self.trace.stacks;
        let (function, file) = (stacks.intern("main"), stacks.intern("/home/me/train.py"));
        let frame = stacks.frame(function, file, line);
        stacks.push_stack(&[frame])
    }

    /// A segment of so many MiB at an address in MiB.
    fn segment(&mut self, at: u64, size: u64) {
        self.row(Kind::SegmentAlloc, at * MIB, size * MIB, None);
    }

    fn alloc(&mut self, at: u64, size: u64, line: u64) {
        let stack = self.line(line);
        self.row(Kind::Alloc, at * MIB, size * MIB, stack);
    }

    fn note(&mut self, kind: Kind, name: &str, text: &str, at: u64) {
        let stacks = &mut self.trace.stacks;
        let (name, text) = (stacks.intern(name), stacks.intern(text));
        self.trace.events.push(Event {
            address: at * MIB,
            name: Some(name),
            text: Some(text),
            ..Event::new(kind)
        });
    }

    /// Weights, and activations of two layers.
    fn trained() -> Self {
        let mut run = Self::new();
        run.segment(0, 200);
        run.alloc(0, 200, 4);
        run.note(Kind::MarkStart, "forward", "phase", 0);
        for layer in 0..2 {
            let module = format!("layers.{layer}");
            run.note(Kind::MarkStart, &module, "module", 0);
            run.segment(200 + 256 * layer, 256);
            run.alloc(200 + 256 * layer, 250, 9);
            run.note(Kind::MarkEnd, &module, "module", 0);
        }
        run.note(Kind::Owner, "head.weight", "weights float32[8192, 6400]", 0);
        run
    }

    /// A list keeps what each of so many passes makes.
    fn with_kept(passes: u64) -> Self {
        let mut run = Self::new();
        run.segment(0, 200);
        run.alloc(0, 200, 4);
        for pass in 0..passes {
            run.note(Kind::MarkStart, "forward", "phase", 0);
            run.segment(200 + 100 * pass, 100);
            run.alloc(200 + 100 * pass, 100, 9);
            run.note(Kind::MarkEnd, "forward", "phase", 0);
            for phase in ["backward", "step"] {
                run.note(Kind::MarkStart, phase, "phase", 0);
                run.note(Kind::MarkEnd, phase, "phase", 0);
            }
            run.note(Kind::Mark, "", "step", 0);
        }
        run
    }

    fn bytes(&self) -> Vec<u8> {
        self.trace.write(Vec::new()).unwrap()
    }

    fn save(&self, folder: &Path, name: &str) {
        std::fs::write(folder.join(name), self.bytes()).unwrap();
    }
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    Run::new().save(path, "empty.tonnage");
    let mut run = Run::trained();
    run.save(path, "peak.tonnage");
    let stack = run.line(12);
    run.row(Kind::Oom, 0, 400 * MIB, stack);
    run.save(path, "short.tonnage");
    let mut run = Run::new();
    run.segment(0, 800);
    run.alloc(0, 100, 3);
    run.alloc(400, 100, 3);
    let stack = run.line(5);
    run.row(Kind::Oom, 0, 500 * MIB, stack);
    run.save(path, "pieces.tonnage");
    folder
}

#[test]
fn a_failure_and_a_peak() {
    let folder = folder();
    let mut text = String::new();
    for name in ["short", "pieces", "peak"] {
        text += &tonnage(folder.path(), &format!("explain {name}.tonnage"));
        text.push('\n');
    }
    assert_snapshot!("explain", text);
}

#[test]
fn as_json() {
    let folder = folder();
    assert_snapshot!(
        "explain_json",
        tonnage(folder.path(), "explain short.tonnage --json")
    );
}

#[test]
fn the_pages_of_the_findings() {
    let folder = folder();
    let mut text = String::new();
    for code in tonnage_analysis::explain::codes::ALL.iter() {
        text += &tonnage(folder.path(), &format!("explain {}", code.code));
        text.push('\n');
    }
    text += &tonnage(folder.path(), "explain tn101 --json");
    assert_snapshot!("explain_pages", text);
}

#[test]
fn what_cannot_be_explained() {
    let folder = folder();
    let mut text = String::new();
    for what in ["TN999", "empty.tonnage", "nowhere.tonnage"] {
        text += &tonnage(folder.path(), &format!("explain {what}"));
        text.push('\n');
    }
    assert_snapshot!("explain_errors", text);
}

/// No GPU is large enough for memory that grows with every pass.
#[test]
fn a_larger_gpu_does_not_help_against_a_leak() {
    let folder = TempDir::new().unwrap();
    let mut failed = Run::with_kept(7);
    let stack = failed.line(9);
    failed.row(Kind::Oom, 0, 100 * MIB, stack);
    let recording = [failed.bytes(), Run::with_kept(9).bytes()].concat();
    std::fs::write(folder.path().join("leak.tonnage"), recording).unwrap();
    let text = tonnage(folder.path(), "explain leak.tonnage");
    assert!(text.contains("memory grows (TN201)"), "{text}");
    assert!(!text.contains("a GPU"), "{text}");
    assert!(
        text.contains("so far and 100.00 MiB per iteration"),
        "{text}"
    );
}

#[test]
fn a_script_is_not_taken_for_a_recording() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("train.py"), "import torch\n").unwrap();
    let text = tonnage(folder.path(), "explain train.py");
    assert!(
        text.contains("train.py is a script, not a recording"),
        "{text}"
    );
    assert!(text.contains("`tonnage run --gpu NAME train.py`"), "{text}");
}

/// A recording that was made when the format was 1.1: without what the device charged, holders and the whole job.
#[test]
fn a_recording_of_an_older_format_is_read_and_explained() {
    let folder = TempDir::new().unwrap();
    let old = include_bytes!("data/format-1.1.tonnage");
    std::fs::write(folder.path().join("old.tonnage"), old).unwrap();
    let info = tonnage(folder.path(), "info old.tonnage");
    assert!(info.contains("trace format 1.1"), "{info}");
    assert!(info.contains("21.35 GiB allocated exact"), "{info}");
    let explained = tonnage(folder.path(), "explain old.tonnage");
    assert!(explained.contains("exit code 1"), "{explained}");
    assert!(explained.contains("(TN102)"), "{explained}");
    // Nobody has seen what comes after the failure.
    assert!(explained.contains("what follows is unknown"), "{explained}");
    let replayed = tonnage(folder.path(), "replay old.tonnage --alloc recorded");
    assert!(replayed.contains("reproduced: all"), "{replayed}");
}
