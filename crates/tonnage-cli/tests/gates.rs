// SPDX-License-Identifier: MIT OR Apache-2.0
//! `diff` and `check` as a person sees them before anything runs: every sentence is a snapshot.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod said;

use std::path::Path;

use insta::assert_snapshot;
use tempfile::TempDir;
use tonnage_recording::{Event, Kind, Meta, Trace, meta};

const MIB: u64 = 1 << 20;

/// A recording of two blocks, made on lines that a change of the script moved.
fn recording(second: u64, line: u64) -> Vec<u8> {
    recorded(second, line).write(Vec::new()).unwrap()
}

/// The same, of a job that ran out of memory before the second block.
fn cut_short(line: u64) -> Vec<u8> {
    let mut trace = recorded(9 * MIB, line);
    trace.events[1].kind = Kind::Oom;
    trace.write(Vec::new()).unwrap()
}

fn recorded(second: u64, line: u64) -> Trace {
    let mut trace = Trace::new("test");
    let mut at = |line: u64| {
        let (function, file) = (
            trace.stacks.intern("forward"),
            trace.stacks.intern("model.py"),
        );
        let frame = trace.stacks.frame(function, file, line);
        Some(trace.stacks.push(None, frame))
    };
    let stacks = [at(line), at(line + 1)];
    for (index, size) in [4 * MIB, second].into_iter().enumerate() {
        trace.events.push(Event {
            address: index as u64 * 64 * MIB,
            size,
            requested: size,
            stack: stacks[index],
            ..Event::new(Kind::Alloc)
        });
    }
    trace
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    put("before.tonnage", &recording(MIB, 10));
    put("after.tonnage", &recording(9 * MIB, 20));
    put("cut.tonnage", &cut_short(20));
    // The output of `tonnage run`: the job as far as it went, and all of it on a GPU without a limit.
    put(
        "whole.tonnage",
        &[cut_short(20), recording(9 * MIB, 20)].concat(),
    );
    put("plan.csv", b"id,lower,upper,size\na,0,5,100\n");
    let budget = "[[budget]]\nname = \"a\"\nrun = \"python a.py\"\ngpu = \"a100-40gb\"\n";
    put(
        "unknown_key.toml",
        format!("{budget}peek = \"1 GiB\"\n").as_bytes(),
    );
    put("twice.toml", format!("{budget}{budget}").as_bytes());
    put(
        "decimal.toml",
        format!("{budget}peak = \"1 GX\"\n").as_bytes(),
    );
    put(
        "no_command.toml",
        budget.replace("python a.py", "").as_bytes(),
    );
    put(
        "no_gpu.toml",
        budget.replace("a100-40gb", "a100-41gb").as_bytes(),
    );
    put("many.toml", format!("{budget}gpus = 17\n").as_bytes());
    put(
        "forgotten_unit.toml",
        format!("{budget}capacity = 24\n").as_bytes(),
    );
    put("none.toml", b"");
    put("broken.toml", b"[[budget]\n");
    folder
}

/// The result of the command: exit code, stdout, stderr.
fn tonnage(folder: &Path, arguments: &str) -> String {
    said::tonnage(folder, arguments) + "\n"
}

fn all(arguments: &[&str]) -> String {
    let folder = folder();
    let said = arguments.iter().map(|line| tonnage(folder.path(), line));
    said.collect()
}

#[test]
fn diff_says_what_grew_and_where() {
    assert_snapshot!(
        "diff",
        all(&[
            "diff before.tonnage after.tonnage",
            "diff before.tonnage after.tonnage --json",
            "diff after.tonnage after.tonnage",
            "diff before.tonnage nowhere.tonnage",
            "diff before.tonnage",
        ])
    );
}

#[test]
fn diff_compares_whole_jobs_and_says_where_one_ends_early() {
    let said = all(&[
        "diff before.tonnage whole.tonnage",
        "diff whole.tonnage after.tonnage",
        "diff before.tonnage cut.tonnage",
        "diff cut.tonnage cut.tonnage --json",
    ]);
    assert_snapshot!("diff_of_jobs_that_failed", said);
}

#[test]
fn diff_says_that_the_commands_differ() {
    let folder = folder();
    let of = |command: &str| {
        let mut trace = recorded(MIB, 10);
        trace.meta.push(Meta {
            process: 0,
            name: meta::COMMAND.to_owned(),
            text: command.to_owned(),
        });
        trace.write(Vec::new()).unwrap()
    };
    for (name, command) in [("train", "python train.py"), ("serve", "python serve.py")] {
        std::fs::write(folder.path().join(name), of(command)).unwrap();
    }
    let text = tonnage(folder.path(), "diff train serve");
    let remark = "the commands differ: `python train.py` and `python serve.py`";
    assert!(text.contains(remark), "{text}");
    let text = tonnage(folder.path(), "diff train train");
    assert!(!text.contains("the commands differ"), "{text}");
}

#[test]
fn diff_writes_a_page_of_both_and_never_by_accident() {
    let folder = folder();
    let mut said = String::new();
    for arguments in [
        "diff before.tonnage after.tonnage --html both.html",
        "diff before.tonnage after.tonnage --html both.html",
        "diff before.tonnage after.tonnage --html both.html --force",
        "diff before.tonnage after.tonnage --force",
        "diff before.tonnage nowhere.tonnage --html other.html",
    ] {
        said += &tonnage(folder.path(), arguments);
    }
    // The size of a page is not ours to promise.
    let lines = said.lines().map(|line| match line.split_once(" (") {
        Some((wrote, _)) if line.starts_with("wrote") => format!("{wrote} (SIZE)"),
        _ => line.to_owned(),
    });
    let said: Vec<String> = lines.collect();
    assert_snapshot!("diff_page", said.join("\n"));
    let page = std::fs::read_to_string(folder.path().join("both.html")).unwrap();
    for part in ["data-timeline-0", "data-blocks-1", "before.tonnage"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!folder.path().join("other.html").exists());
}

#[test]
fn check_refuses_what_it_cannot_hold() {
    assert_snapshot!(
        "check_errors",
        all(&[
            "check",
            "check --config unknown_key.toml",
            "check --config twice.toml",
            "check --config decimal.toml",
            "check --config no_command.toml",
            "check --config no_gpu.toml",
            "check --config many.toml",
            "check --config forgotten_unit.toml",
            "check --config none.toml",
            "check --config broken.toml",
            "check --config nowhere.toml",
            "check --config no_gpu.toml b",
            "check --format svg",
        ])
    );
}

#[test]
fn a_first_configuration_is_written_once() {
    let folder = TempDir::new().unwrap();
    let mut text = String::new();
    for arguments in [
        "check --init --gpu rtx3090 -- python train.py --steps 3",
        "check --init",
        "check --init --force",
        "check --init --config pyproject.toml --force",
        "check --init --gpu nope --config other.toml",
        "check --gpu rtx3090",
    ] {
        text += &tonnage(folder.path(), arguments);
        text.push('\n');
        if arguments.ends_with("--steps 3") {
            text += &std::fs::read_to_string(folder.path().join("tonnage.toml")).unwrap();
            text.push('\n');
        }
    }
    assert_snapshot!("check_init", text);
    assert!(!folder.path().join("other.toml").exists());
}
