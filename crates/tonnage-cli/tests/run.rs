// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage run` as far as it needs no torch: where recordings go, and how a job is ended.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn tonnage(folder: &Path, words: &[&str]) -> Command {
    // Cargo puts the library of a dependency beside the test, and beside the command only when it is to be built.
    let standin = std::env::current_exe()
        .unwrap()
        .with_file_name("libtonnage_standin.so");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tonnage"));
    command
        .args(words)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .env("TONNAGE_GPU", "h100-80gb")
        .env("TONNAGE_STANDIN", standin)
        .stdin(Stdio::null());
    command
}

/// Exit code, stdout and stderr.
fn run_command(mut command: Command) -> (Option<i32>, String, String) {
    let done = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

#[test]
fn a_recording_is_never_overwritten_without_a_word() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x.tonnage");
    std::fs::write(&path, "precious").unwrap();
    let run = |words: &[&str]| run_command(tonnage(folder.path(), words));
    let (code, _, told) = run(&["run", "-o", "x.tonnage", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(
        told.contains("already exists") && told.contains("--force"),
        "{told}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let (code, ..) = run(&["run", "--force", "-o", "x.tonnage", "--", "true"]);
    assert_eq!(code, Some(0));
    assert!(std::fs::read(&path).unwrap().starts_with(&[0xff; 4]));
}

#[test]
fn a_run_that_cannot_begin_leaves_what_was_there() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x.tonnage");
    std::fs::write(&path, "precious").unwrap();
    let words = ["run", "--force", "-o", "x.tonnage", "--", "true"];
    let mut command = tonnage(folder.path(), &words);
    command.env("TMPDIR", "/nonexistent");
    let (code, _, told) = run_command(command);
    assert_eq!(code, Some(2), "{told}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    // Nor does anything else stay behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_second_recording_of_a_script_takes_the_next_name() {
    let folder = TempDir::new().unwrap();
    for expected in ["train.tonnage", "train-2.tonnage", "train-3.tonnage"] {
        let (code, out, _) =
            run_command(tonnage(folder.path(), &["run", "--", "true", "train.py"]));
        assert_eq!(code, Some(0));
        assert!(out.contains(expected), "{out}");
        assert!(folder.path().join(expected).exists());
    }
}

#[test]
fn an_unknown_gpu_is_reported_with_the_place_that_names_it() {
    let folder = TempDir::new().unwrap();
    let error = |words: &[&str], variable: Option<&str>| {
        let mut command = tonnage(folder.path(), words);
        command.env_remove("TONNAGE_GPU");
        if let Some(name) = variable {
            command.env("TONNAGE_GPU", name);
        }
        let (code, _, told) = run_command(command);
        assert_eq!(code, Some(2), "{told}");
        let error = told.lines().find(|line| line.starts_with("error"));
        error.unwrap_or_default().to_owned()
    };
    let unknown = "error: no GPU in the catalogue is called \"nope\"";
    std::fs::write(folder.path().join("tonnage.toml"), "gpu = \"nope\"\n").unwrap();
    for command in ["run", "fit", "serve-fit"] {
        let told = error(&[command, "--", "true"], None);
        assert_eq!(told, format!("{unknown} (named in tonnage.toml)"));
        let told = error(&[command, "--", "true"], Some("nope"));
        assert_eq!(told, format!("{unknown} (named in TONNAGE_GPU)"));
        let told = error(&[command, "--gpu", "nope", "--", "true"], Some("l4"));
        assert_eq!(told, unknown);
    }
    // Several names with commas, as the option takes them.
    let told = error(&["fit", "--", "true"], Some("l4,nope"));
    assert_eq!(told, format!("{unknown} (named in TONNAGE_GPU)"));
}

#[test]
fn a_quiet_run_prints_the_verdict_alone() {
    let folder = TempDir::new().unwrap();
    let job = ["--", "sh", "-c", "echo out; echo err >&2; exit 3"];
    let run = |options: &[&str]| {
        let words = [&["run"], options, &job].concat();
        run_command(tonnage(folder.path(), &words))
    };
    let (code, out, told) = run(&[]);
    assert_eq!(code, Some(2));
    assert!(
        out.starts_with("out\n") && told.contains("err\n"),
        "{out}{told}"
    );
    let (code, out, told) = run(&["--quiet"]);
    assert_eq!(code, Some(2));
    assert_eq!((out.lines().count(), told.as_str()), (1, ""), "{out}");
    assert!(out.starts_with("failed"), "{out}");
    // Errors are still reported.
    let (code, out, told) = run(&["--quiet", "--gpu", "nope"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(told.contains("is called \"nope\""), "{told}");
}

#[test]
fn a_job_needs_no_separator_and_keeps_its_own_options() {
    let folder = TempDir::new().unwrap();
    // A program that takes options with the names of ours.
    let script = "#!/bin/sh\necho got \"$@\"\n";
    for (words, got) in [
        (
            &["run", "--gpu", "h100", "./job", "--gpu", "x", "--json"][..],
            "got --gpu x --json\n",
        ),
        (&["run", "./job", "--", "-h"], "got -- -h\n"),
        (&["run", "--", "./job", "--help"], "got --help\n"),
        (&["run", "./job", "--color", "never"], "got --color never\n"),
    ] {
        std::fs::write(folder.path().join("job"), script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("job"), mode).unwrap();
        let (code, out, told) = run_command(tonnage(folder.path(), words));
        assert_eq!(code, Some(0), "{out}{told}");
        assert!(out.contains(got), "{out}");
    }
}

#[test]
fn a_script_alone_is_run_with_python() {
    let folder = TempDir::new().unwrap();
    let (code, _, told) = {
        let mut command = tonnage(folder.path(), &["run", "train.py", "--steps", "3"]);
        command.env("PATH", folder.path());
        run_command(command)
    };
    assert_eq!(code, Some(2));
    assert!(told.contains("cannot find the command python\n"), "{told}");
    assert!(told.contains(".venv/bin/python"), "{told}");
}

#[test]
fn a_script_that_makes_a_file_of_the_same_name_costs_no_recording() {
    let folder = TempDir::new().unwrap();
    let words = [
        "run",
        "--side-effects",
        "--",
        "sh",
        "-c",
        "echo mine > train.tonnage",
        "train.py",
    ];
    let (code, out, told) = run_command(tonnage(folder.path(), &words));
    assert_eq!(code, Some(0), "{told}");
    assert!(out.contains("train-2.tonnage"), "{out}");
    assert_eq!(
        std::fs::read(folder.path().join("train.tonnage")).unwrap(),
        b"mine\n"
    );
}

/// Sends the signal to the command alone, as a supervisor does, and waits for its end.
fn interrupted(script: &str) -> (Option<i32>, String) {
    let folder = TempDir::new().unwrap();
    let words = ["run", "-o", "x.tonnage", "--", "sh", "-c", script];
    let mut command = tonnage(folder.path(), &words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The script runs once it has reported so; its signals are listened to just after it was started.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
    let deadline = started + Duration::from_mins(1);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it goes on after an interrupt");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    // It used no GPU, so there is nothing to record.
    assert!(!folder.path().join("x.tonnage").exists());
    (child.wait().unwrap().code(), text)
}

#[test]
fn an_interrupt_without_a_terminal_ends_the_job() {
    // One that would end by an interrupt, and one that was started with interrupts ignored.
    for script in [
        "echo ready; exec sleep 600",
        "trap '' INT; echo ready; exec sleep 600",
    ] {
        let (code, out) = interrupted(script);
        assert_eq!(code, Some(2), "{script}: {out}");
        assert!(out.contains("interrupted"), "{script}: {out}");
        assert!(
            out.contains("it had not used a GPU until then"),
            "{script}: {out}"
        );
    }
}
