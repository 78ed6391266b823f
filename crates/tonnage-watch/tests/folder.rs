// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folders of jobs as processes write them, cut anywhere, and with malformed content.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonnage_capture::ledger::{self, DeviceWord, ProcessWord, SharedWord};
use tonnage_capture::log::{Record, Start, encode};
use tonnage_http::metrics::Exposition;
use tonnage_watch::metrics::of_jobs;
use tonnage_watch::seen::{Job, Source};
use tonnage_watch::{Folder, Seen};

const MIB: u64 = 1 << 20;
const KEEP: Duration = Duration::from_mins(5);

/// A folder with jobs, and the one who watches it.
struct Site {
    live: TempDir,
    folder: Folder,
    now: Instant,
}

impl Site {
    fn new() -> Self {
        let live = tempfile::tempdir().unwrap();
        let folder = Folder::new(live.path(), KEEP);
        Self {
            live,
            folder,
            now: Instant::now(),
        }
    }

    fn read_folder(&mut self) -> Seen {
        self.now += Duration::from_secs(1);
        self.folder.read_new(self.now)
    }

    fn only_job(&mut self) -> Job {
        let mut jobs = self.read_folder().jobs;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    /// The folder of a job that runs: it ends when the file is dropped.
    fn starts(&self, name: &str) -> (PathBuf, File) {
        let folder = self.live.path().join(name);
        fs::create_dir(&folder).unwrap();
        let mut running = File::create(folder.join("running")).unwrap();
        running.lock().unwrap();
        let command = json!({ "command": ["python", "/srv/train.py", "--lr", "1"] });
        running.write_all(command.to_string().as_bytes()).unwrap();
        (folder, running)
    }
}

fn start(pid: u32) -> Vec<u8> {
    encode(&Record::Start(Start {
        slot: 0,
        pid,
        arguments: vec!["python".to_owned(), "other.py".to_owned()],
        visible: vec![3],
        time: 1,
        measured: true,
    }))
    .unwrap()
}

fn note(value: &Value) -> Vec<u8> {
    encode(&Record::Note(value.to_string().as_bytes())).unwrap()
}

fn sample(allocated: u64, peak: u64) -> Vec<u8> {
    note(&json!({ "sample": {
        "device": 0, "time": 5, "free": 20_000 * MIB, "total": 24_125 * MIB, "own": 1_000 * MIB,
        "free_before": null, "reserved": 700 * MIB, "allocated": allocated, "peak_allocated": peak,
        "peak_reserved": 800 * MIB, "inactive_split": 3 * MIB,
        "name": "NVIDIA GeForce RTX 3090", "uuid": "GPU-1", "count": 1,
    } }))
}

fn append(path: &Path, bytes: &[u8]) {
    let file = File::options().append(true).create(true).open(path);
    file.unwrap().write_all(bytes).unwrap();
}

fn text(seen: &Seen) -> String {
    let mut exposition = Exposition::default();
    of_jobs(&mut exposition, seen, None, SystemTime::UNIX_EPOCH);
    exposition.to_text()
}

#[test]
fn a_job_is_told_from_its_first_byte_to_after_its_end() {
    let mut site = Site::new();
    fs::remove_dir(site.live.path()).unwrap();
    assert!(!site.read_folder().found);
    fs::create_dir(site.live.path()).unwrap();
    assert_eq!(site.read_folder().jobs, []);

    let (folder, running) = site.starts("tonnage-record-a");
    let job = site.only_job();
    assert_eq!((job.family.as_str(), job.is_running), ("train.py", true));
    let log = folder.join("process-000-77");
    append(&log, &start(77));
    append(
        &log,
        &note(
            &json!({ "versions": { "torch": "2.15.0", "python": "3.12.0", "environment": { "RANK": "2" } } }),
        ),
    );
    // A history longer than what is read at a time, and a text.
    append(&log, &encode(&Record::Torch(&vec![7; 300_000])).unwrap());
    append(&log, &encode(&Record::Text("module\tlayers")).unwrap());
    let first = sample(500 * MIB, 600 * MIB);
    append(&log, &first[..first.len() - 1]);
    assert_eq!(site.only_job().processes[0].devices, []);
    append(&log, &first[first.len() - 1..]);
    let process = site.only_job().processes.remove(0);
    assert_eq!((process.number, process.rank), (0, Some(2)));
    assert!(process.is_complete && process.last_event.is_some());
    let device = &process.devices[0];
    assert_eq!((device.number, device.gpu.as_str()), (3, "rtx3090"));
    assert_eq!(device.uuid, "GPU-1");
    assert_eq!(device.allocated, Some(500 * MIB));
    assert_eq!(device.peak_allocated, Some(600 * MIB));
    assert_eq!(device.in_use, Some(4_125 * MIB));
    assert_eq!(device.used, Some(1_000 * MIB));

    // The script has PyTorch count its peaks anew, and runs out of memory; the folder disappears before the next
    // reading.
    append(&log, &note(&json!({ "oom": 0 })));
    append(&log, &sample(1, 2));
    append(&log, &note(&json!({ "ended": true })));
    drop(running);
    fs::remove_dir_all(&folder).unwrap();
    let job = site.only_job();
    let device = &job.processes[0].devices[0];
    assert!(!job.is_running && job.processes[0].is_complete);
    assert_eq!(device.allocated, Some(1));
    assert_eq!(device.peak_allocated, Some(600 * MIB));
    assert_eq!(device.ooms, 1);
    site.now += KEEP;
    assert_eq!(site.read_folder().jobs, []);
}

#[test]
fn a_job_that_was_killed_is_incomplete_and_forgotten_though_its_folder_stays() {
    let mut site = Site::new();
    let (folder, running) = site.starts("tonnage-record-a");
    append(&folder.join("process-000-1"), &start(1));
    append(&folder.join("process-000-1"), &sample(1, 1));
    assert!(site.only_job().processes[0].is_complete);
    drop(running);
    let job = site.only_job();
    assert!(!job.is_running && !job.processes[0].is_complete);
    site.now += KEEP;
    assert_eq!(site.read_folder().jobs, []);
    assert_eq!(site.read_folder().jobs, []);
    // A watcher that starts now reports it once more.
    site.folder = Folder::new(site.live.path(), KEEP);
    assert!(!site.only_job().is_running);
}

#[test]
fn a_new_job_takes_the_number_of_one_that_has_ended_and_of_no_other() {
    let mut site = Site::new();
    let (_, first) = site.starts("tonnage-record-a");
    let (_, second) = site.starts("tonnage-record-b");
    let numbers = |seen: &Seen| {
        let jobs = seen.jobs.iter();
        jobs.map(|job| (job.number, job.is_running))
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(&site.read_folder()), [(0, true), (1, true)]);
    drop(first);
    assert_eq!(numbers(&site.read_folder()), [(0, false), (1, true)]);
    let (_, _third) = site.starts("tonnage-record-c");
    assert_eq!(numbers(&site.read_folder()), [(0, true), (1, true)]);
    drop(second);
    assert_eq!(numbers(&site.read_folder()), [(0, true), (1, false)]);
}

#[test]
fn the_folder_of_one_job_can_be_watched_itself_and_be_used_again() {
    let mut site = Site::new();
    let (folder, running) = site.starts("tonnage-record-a");
    site.folder = Folder::new(&folder, KEEP);
    append(&folder.join("process-000-1"), &start(1));
    append(&folder.join("process-000-1"), &sample(5, 5));
    assert_eq!(site.only_job().processes[0].devices[0].allocated, Some(5));
    drop(running);
    fs::remove_dir_all(&folder).unwrap();
    assert!(!site.only_job().is_running);
    let (folder, _running) = site.starts("tonnage-record-a");
    append(&folder.join("process-000-9"), &start(1));
    append(&folder.join("process-000-9"), &sample(6, 6));
    let job = site.only_job();
    assert!(job.is_running);
    assert_eq!(job.processes[0].devices[0].allocated, Some(6));
}

#[test]
fn a_log_that_is_cut_or_replaced_is_read_anew() {
    let mut site = Site::new();
    let (folder, _running) = site.starts("tonnage-record-a");
    let log = folder.join("process-000-1");
    append(&log, &start(1));
    append(&log, &sample(5, 5));
    append(&log, &sample(50, 50));
    assert_eq!(site.only_job().processes[0].devices[0].allocated, Some(50));
    fs::write(&log, sample(7, 7)).unwrap();
    assert_eq!(site.only_job().processes[0].devices[0].allocated, Some(7));
    fs::write(folder.join("new"), [sample(8, 8), sample(9, 9)].concat()).unwrap();
    fs::rename(folder.join("new"), &log).unwrap();
    assert_eq!(site.only_job().processes[0].devices[0].allocated, Some(9));
}

fn dry_run(folder: &Path, unlimited: bool) {
    let device = json!({
        "name": "NVIDIA H100 80GB HBM3", "total": 81_000 * MIB, "context": 1, "major": 9, "minor": 0, "sm_count": 1,
        "shared_per_block": 1, "shared_per_block_optin": 1, "shared_per_sm": 1, "shared_reserved": 1, "registers": 1,
        "threads_per_sm": 1, "blocks_per_sm": 1, "l2": 1, "clock_khz": 1, "memory_clock_khz": 1, "bus_width": 1,
    });
    let config = json!({
        "devices": [device], "machines": 1, "absent_ranks": false, "address_order": "descending", "cuda_version": 0,
        "value_limit": 0, "unlimited": unlimited,
    });
    fs::write(folder.join("run.json"), config.to_string()).unwrap();
    let mut bytes = ledger::fresh();
    let mut set = |word: usize, value: u64| {
        bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    };
    set(ledger::TAKEN_WORD, 1);
    set(ledger::process_word(0, ProcessWord::Number), 1);
    set(ledger::shared_word(0, SharedWord::InUse), 900);
    for (word, value) in [
        (DeviceWord::Charged, 600),
        (DeviceWord::PeakCharged, 700),
        (DeviceWord::Allocated, 300),
        (DeviceWord::PeakAllocated, 400),
        (DeviceWord::Reserved, 500),
        (DeviceWord::PeakReserved, 550),
    ] {
        set(ledger::device_word(0, 0, word), value);
    }
    fs::write(folder.join("ledger"), bytes).unwrap();
}

#[test]
fn a_dry_run_is_told_by_its_account_and_as_what_it_is() {
    let mut site = Site::new();
    let (folder, _running) = site.starts("tonnage-run-a");
    dry_run(&folder, false);
    append(&folder.join("process-000-1"), &note(&json!({ "oom": 0 })));
    let (second, _second) = site.starts("tonnage-run-b");
    dry_run(&second, true);
    let job = site.only_job();
    assert_eq!(job.source, Source::DryRun);
    let device = &job.processes[0].devices[0];
    assert_eq!(device.gpu, "h100-80gb");
    assert_eq!((device.used, device.peak_used), (Some(600), Some(700)));
    assert_eq!(
        (device.allocated, device.peak_allocated),
        (Some(300), Some(400))
    );
    assert_eq!(
        (device.reserved, device.peak_reserved),
        (Some(500), Some(550))
    );
    assert_eq!((device.in_use, device.ooms), (Some(900), 1));
}

#[test]
fn files_that_are_none_are_not_waited_for() {
    let mut site = Site::new();
    let (folder, _running) = site.starts("tonnage-record-a");
    let made = std::process::Command::new("mkfifo")
        .arg(folder.join("process-000-1"))
        .arg(folder.join("run.json"))
        .arg(folder.join("ledger"))
        .status();
    assert!(made.unwrap().success());
    symlink("/dev/zero", folder.join("process-001-1")).unwrap();
    fs::create_dir(folder.join("process-002-1")).unwrap();
    fs::write(folder.join("process-003-1"), [0xff; 4096]).unwrap();
    fs::write(folder.join("process-004-1"), [9, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    fs::write(folder.join("process-x"), "").unwrap();
    let deep = "[".repeat(60_000);
    append(
        &folder.join("process-005-1"),
        &encode(&Record::Note(deep.as_bytes())).unwrap(),
    );
    append(&folder.join("process-005-1"), &sample(4, 4));
    symlink(&folder, site.live.path().join("tonnage-record-link")).unwrap();
    fs::write(site.live.path().join("tonnage-record-file"), "").unwrap();
    let seen = site.read_folder();
    assert_eq!(seen.jobs.len(), 1);
    let processes = &seen.jobs[0].processes;
    let numbers: Vec<u64> = processes.iter().map(|process| process.number).collect();
    assert_eq!(numbers, [3, 4, 5]);
    // One waits for bytes that may come; one makes no sense.
    assert_eq!(seen.damaged, 1);
    assert!(!processes[1].is_complete);
    assert_eq!(processes[2].devices[0].allocated, Some(4));
}

#[test]
fn names_end_no_line_and_have_a_length() {
    let mut site = Site::new();
    let (folder, _running) = site.starts("tonnage-record-a");
    let hostile = format!("a\"}} 1\ntonnage_evil 1\n{}", "x".repeat(10_000));
    let mut value = json!({ "command": [hostile] });
    fs::write(folder.join("running"), value.to_string()).unwrap();
    value = json!({ "sample": { "device": 0, "time": 1, "free": 9, "total": 1, "own": null, "reserved": u64::MAX,
        "free_before": null, "name": hostile, "uuid": hostile } });
    append(&folder.join("process-000-1"), &note(&value));
    for device in 1..1000 {
        value["sample"]["device"] = device.into();
        append(&folder.join("process-000-1"), &note(&value));
        append(
            &folder.join("process-000-1"),
            &note(&json!({ "oom": device })),
        );
    }
    let seen = site.read_folder();
    assert_eq!(seen.jobs[0].processes[0].devices.len(), 64);
    let text = text(&seen);
    assert!(!text.lines().any(|line| line.starts_with("tonnage_evil")));
    assert!(text.lines().all(|line| line.len() < 1000), "{text}");
}

#[test]
fn too_many_folders_and_logs_are_counted_and_not_read() {
    let mut site = Site::new();
    let held: Vec<_> = (0..200)
        .map(|at| site.starts(&format!("tonnage-record-{at:03}")))
        .collect();
    for at in 0..700 {
        append(&held[0].0.join(format!("process-{at:03}-1")), &start(1));
    }
    let seen = site.read_folder();
    assert_eq!(seen.jobs.len(), 128);
    assert_eq!(seen.jobs[0].processes.len(), 512);
    assert_eq!(seen.skipped, 72 + 188);
    // Ended jobs make room, once they were reported for long enough.
    drop(held);
    site.read_folder();
    site.now += KEEP;
    site.read_folder();
    // All 72 have ended: each takes the number of the one before.
    assert_eq!(site.read_folder().jobs.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_read_without_a_panic_and_to_an_end(
        log in prop::collection::vec(any::<u8>(), 0..2000),
        cut in 0_usize..2000,
        running in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut site = Site::new();
        let folder = site.live.path().join("tonnage-run-a");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("running"), &running).unwrap();
        fs::write(folder.join("run.json"), &running).unwrap();
        fs::write(folder.join("ledger"), &log).unwrap();
        let good: Vec<u8> = [start(1), sample(1, 1), sample(2, 2)].concat();
        let cut = cut.min(good.len());
        fs::write(folder.join("process-000-1"), [&good[..cut], log.as_slice()].concat()).unwrap();
        let seen = site.read_folder();
        text(&seen);
        let again = site.read_folder();
        prop_assert_eq!(&seen.jobs[0].processes, &again.jobs[0].processes);
    }
}
