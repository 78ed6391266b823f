// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the folders of jobs, and reads what is in them.
//!
//! A folder is the job's own, and may be anything: files are opened without following links and without waiting, of
//! each only so much is read, and there are limits on how many are. A job has ended when no process holds the lock of
//! its folder any more or the folder is gone. It is reported for a while after that, because Prometheus scrapes only
//! now and then.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, TryLockError};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use tonnage_capture::ledger::{DEVICES, DeviceWord, Ledger, ProcessWord, SharedWord, WORDS};
use tonnage_capture::{
    CONFIG_FILE, LEDGER_FILE, LOG_PREFIX, RECORD_FOLDER_PREFIX, RUN_FOLDER_PREFIX, RUNNING_FILE,
    RunConfig, Running,
};
use tonnage_forecast::JobKey;
use tonnage_gpus::Catalogue;

use crate::log::{Log, Told, short};
use crate::seen::{Device, Job, Process, Seen, Source};

/// Names of a folder that are looked at.
const ENTRIES: usize = 1 << 16;
/// Folders of jobs that are known at a time, and logs that are open.
const RUNS: usize = 128;
const LOGS: usize = 512;
/// Bytes of logs that are read at a time; the rest is read the next time.
const BUDGET: u64 = 64 << 20;
/// Bytes of a small file.
const SMALL: u64 = 1 << 20;

/// A folder in which jobs have theirs.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// How long a job is reported after its end.
    keep: Duration,
    runs: Vec<Run>,
    /// Folders of jobs that were reported for long enough.
    forgotten: BTreeMap<CString, Identity>,
    catalogue: Catalogue,
}

impl Folder {
    /// The folder at a path, which need not exist yet. Jobs are reported for the given time after their end.
    pub fn new(path: impl Into<PathBuf>, keep: Duration) -> Self {
        Self {
            path: path.into(),
            keep,
            runs: Vec::new(),
            forgotten: BTreeMap::new(),
            catalogue: Catalogue::embedded(),
        }
    }

    /// Reads what is new.
    pub fn read_new(&mut self, now: Instant) -> Seen {
        let mut seen = Seen::default();
        let (folder, listed) = self.list(&mut seen);
        for run in &mut self.runs {
            run.is_gone |= listed.get(&run.name) != Some(&run.identity);
        }
        self.forgotten
            .retain(|name, identity| listed.get(name) == Some(identity));
        for (name, identity) in listed {
            let is_known = |run: &Run| run.name == name && !run.is_gone;
            if self.forgotten.contains_key(&name) || self.runs.iter().any(is_known) {
                continue;
            }
            let directory = folder.as_ref().filter(|_| self.runs.len() < RUNS);
            let flags = FOLDER | OFlags::NOFOLLOW;
            match directory.map(|folder| openat(folder, &name, flags, Mode::empty())) {
                Some(Ok(directory)) => self.runs.push(Run::new(name, identity, directory)),
                Some(Err(_)) => {} // it is gone again, or not for us
                None => seen.skipped += 1,
            }
        }
        let mut budget = BUDGET;
        let mut logs = self.runs.iter().map(|run| run.logs.len()).sum();
        for run in &mut self.runs {
            run.read(now, &mut budget, &mut logs, &mut seen);
        }
        self.number();
        let keep = self.keep;
        self.forget(|run| {
            run.ended
                .is_some_and(|ended| now.saturating_duration_since(ended) > keep)
        });
        for run in &self.runs {
            if let Some(number) = run.number {
                seen.jobs.push(run.job(number, &self.catalogue));
            }
        }
        seen.jobs.sort_by_key(|job| job.number);
        seen
    }

    /// The folder, and those of jobs that are in it now.
    fn list(&self, seen: &mut Seen) -> (Option<OwnedFd>, BTreeMap<CString, Identity>) {
        let mut listed = BTreeMap::new();
        let Ok(folder) = openat(CWD, &self.path, FOLDER, Mode::empty()) else {
            return (None, listed);
        };
        let Ok(entries) = Dir::read_from(&folder) else {
            return (None, listed);
        };
        seen.found = true;
        let mut names = Vec::new();
        for entry in entries.take(ENTRIES).flatten() {
            let name = entry.file_name();
            let bytes = name.to_bytes();
            if bytes == RUNNING_FILE.as_bytes() || bytes.starts_with(LOG_PREFIX.as_bytes()) {
                // The folder is itself that of a job.
                names.push(c".".to_owned());
            }
            if [RUN_FOLDER_PREFIX, RECORD_FOLDER_PREFIX]
                .iter()
                .any(|prefix| bytes.starts_with(prefix.as_bytes()))
            {
                names.push(name.to_owned());
            }
        }
        for name in names {
            let found = statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW);
            if let Ok(stat) = found
                && FileType::from_raw_mode(stat.st_mode).is_dir()
            {
                listed.insert(name, (stat.st_dev, stat.st_ino));
            }
        }
        (Some(folder), listed)
    }

    /// Tells no more of these jobs, also if their folders stay.
    fn forget(&mut self, is_over: impl Fn(&Run) -> bool) {
        for run in self.runs.extract_if(.., |run| is_over(run)) {
            if !run.is_gone {
                self.forgotten.insert(run.name, run.identity);
            }
        }
    }

    /// Gives new jobs their numbers. A job that has ended leaves its own to the next.
    fn number(&mut self) {
        let is_new = |run: &Run| run.number.is_none() && run.tells();
        while let Some(at) = self.runs.iter().position(is_new) {
            let is_free = |number: &u32| {
                let mut runs = self.runs.iter();
                !runs.any(|run| run.number == Some(*number) && run.ended.is_none())
            };
            let number = (0..=RUNS as u32).find(is_free).unwrap_or_default();
            let mut run = self.runs.swap_remove(at);
            run.number = Some(number);
            self.forget(|run| run.number == Some(number));
            self.runs.push(run);
        }
    }
}

/// The identity of a folder: the numbers of its file system and of itself.
type Identity = (u64, u64);

/// How a folder is opened.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// An ordinary file of a folder: no link, no pipe, no device.
fn open(folder: &OwnedFd, name: &CStr) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(folder, name, flags, Mode::empty()).ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}

fn open_named(folder: &OwnedFd, name: &str) -> Option<File> {
    open(folder, &CString::new(name).ok()?)
}

/// The folder of a job.
#[derive(Debug)]
struct Run {
    name: CString,
    identity: Identity,
    directory: OwnedFd,
    running: Option<File>,
    family: Option<String>,
    /// The part of a dry run: its simulated devices, and its account.
    config: Option<RunConfig>,
    ledger_file: Option<File>,
    ledger: Option<Ledger>,
    logs: BTreeMap<u64, Log>,
    number: Option<u32>,
    ended: Option<Instant>,
    is_gone: bool,
}

impl Run {
    fn new(name: CString, identity: Identity, directory: OwnedFd) -> Self {
        Self {
            name,
            identity,
            directory,
            running: None,
            family: None,
            config: None,
            ledger_file: None,
            ledger: None,
            logs: BTreeMap::new(),
            number: None,
            ended: None,
            is_gone: false,
        }
    }

    /// Whether there is data to report. The second run of a job on a device that refuses nothing is not a separate job.
    fn tells(&self) -> bool {
        let is_unlimited = self.config.as_ref().is_some_and(|config| config.unlimited);
        !is_unlimited && (self.running.is_some() || !self.logs.is_empty())
    }

    fn read(&mut self, now: Instant, budget: &mut u64, logs: &mut usize, seen: &mut Seen) {
        self.open_files(logs, seen);
        // Asked before anything is read: what is read of a job that has ended is then all of it.
        let is_running = !self.is_gone && self.is_locked();
        for log in self.logs.values_mut() {
            log.read_on(budget);
            seen.damaged += u64::from(log.is_damaged);
        }
        if let Some(file) = &self.ledger_file {
            let mut bytes = vec![0; WORDS * 8];
            let read = std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0);
            let ledger = read.ok().and_then(|()| Ledger::from_bytes(&bytes));
            seen.damaged += u64::from(ledger.is_none());
            self.ledger = ledger.or(self.ledger.take());
        }
        if is_running {
            self.ended = None;
        } else if self.ended.is_none() {
            self.ended = Some(now);
        }
    }

    /// Opens what is new in the folder.
    fn open_files(&mut self, logs: &mut usize, seen: &mut Seen) {
        if self.is_gone {
            return;
        }
        let folder = &self.directory;
        if self.running.is_none() {
            self.running = open_named(folder, RUNNING_FILE);
        }
        if self.family.is_none() {
            self.family = self.running.as_ref().and_then(family);
        }
        if self.config.is_none() {
            let config = open_named(folder, CONFIG_FILE);
            let config = config.and_then(|file| small(&file));
            self.config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        }
        if self.ledger_file.is_none() {
            self.ledger_file = open_named(folder, LEDGER_FILE);
        }
        let Ok(entries) = Dir::read_from(folder) else {
            return;
        };
        for entry in entries.take(ENTRIES).flatten() {
            let name = entry.file_name();
            let Some(number) = log_number(name) else {
                continue;
            };
            let known = self.logs.get(&number);
            if known.is_some_and(|log| log.is((self.identity.0, entry.ino()))) {
                continue;
            }
            if known.is_none() && *logs >= LOGS {
                seen.skipped += 1;
            } else if let Some(file) = open(folder, name) {
                // The directory's own number of a file need not be that of the file.
                let same = |file: &File, log: &Log| {
                    let metadata = file.metadata();
                    metadata.is_ok_and(|found| log.is((found.dev(), found.ino())))
                };
                if known.is_none_or(|log| !same(&file, log)) {
                    *logs += usize::from(known.is_none());
                    self.logs.insert(number, Log::new(file));
                }
            }
        }
    }

    /// Whether a process holds the lock of the folder; assumed if the check fails.
    fn is_locked(&self) -> bool {
        let Some(file) = &self.running else {
            return true;
        };
        match file.try_lock_shared() {
            Ok(()) => {
                let _ = file.unlock();
                false
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
        }
    }

    fn job(&self, number: u32, catalogue: &Catalogue) -> Job {
        let is_running = self.ended.is_none();
        let source = if self.config.is_some() {
            Source::DryRun
        } else {
            Source::Gpu
        };
        let by_arguments = || {
            let arguments = self.logs.values().map(|log| &log.told.start.arguments);
            let first = arguments.into_iter().find(|words| !words.is_empty());
            first.map(|words| family_of(words))
        };
        let processes = if let Some(ledger) = &self.ledger {
            self.simulated(ledger, catalogue)
        } else {
            let logs = self.logs.iter();
            logs.map(|(number, log)| measured(*number, log, is_running, catalogue))
                .collect()
        };
        Job {
            number,
            family: self
                .family
                .clone()
                .or_else(by_arguments)
                .unwrap_or_default(),
            source,
            is_running,
            processes,
        }
    }

    /// The processes of a dry run, by its account.
    fn simulated(&self, ledger: &Ledger, catalogue: &Catalogue) -> Vec<Process> {
        let nothing = Told::default();
        let mut processes = Vec::new();
        for slot in 0..ledger.slots() {
            let Some(number) = ledger.process(slot, ProcessWord::Number).checked_sub(1) else {
                continue;
            };
            let log = self.logs.get(&number);
            let told = log.map_or(&nothing, |log| &log.told);
            let mut devices = Vec::new();
            for device in 0..DEVICES {
                let word = |word| ledger.device(slot, device, word);
                if word(DeviceWord::PeakCharged) == 0 {
                    continue;
                }
                let profile = self.config.as_ref().and_then(|all| all.devices.get(device));
                let gpu = profile.map(|gpu| gpu_id(catalogue, &gpu.name, gpu.total));
                devices.push(Device {
                    number: device as u32,
                    gpu: gpu.unwrap_or_default(),
                    uuid: String::new(),
                    total: profile.map(|gpu| gpu.total),
                    in_use: Some(ledger.shared(device, SharedWord::InUse)),
                    used: Some(word(DeviceWord::Charged)),
                    peak_used: Some(word(DeviceWord::PeakCharged)),
                    allocated: Some(word(DeviceWord::Allocated)),
                    peak_allocated: Some(word(DeviceWord::PeakAllocated)),
                    reserved: Some(word(DeviceWord::Reserved)),
                    peak_reserved: Some(word(DeviceWord::PeakReserved)),
                    inactive_split: None,
                    ooms: ooms_on(told, device as i64),
                });
            }
            let is_damaged = log.is_some_and(|log| log.is_damaged);
            if !devices.is_empty() {
                processes.push(Process {
                    number,
                    rank: told.rank,
                    is_complete: ledger.process(slot, ProcessWord::Lost) == 0
                        && !told.has_gaps
                        && !is_damaged,
                    last_event: told.last_event,
                    devices,
                });
            }
        }
        processes
    }
}

/// A process on a real GPU, by the readings of its devices.
fn measured(number: u64, log: &Log, is_running: bool, catalogue: &Catalogue) -> Process {
    let told = &log.told;
    let devices = told.devices.iter().map(|(&visible, device)| {
        let last = &device.last;
        Device {
            number: u32::try_from(physical(told, visible)).unwrap_or_default(),
            gpu: gpu_id(catalogue, &device.name, last.total),
            uuid: device.uuid.clone(),
            total: Some(last.total),
            in_use: Some(last.in_use()),
            used: Some(last.charged()),
            peak_used: Some(device.peak_used),
            allocated: last.allocated,
            peak_allocated: device.peak_allocated,
            reserved: Some(last.reserved),
            peak_reserved: device.peak_reserved,
            inactive_split: last.inactive_split,
            ooms: told.ooms.get(&visible).copied().unwrap_or_default(),
        }
    });
    let mut devices: Vec<Device> = devices.collect();
    devices.sort_by_key(|device| device.number);
    devices.dedup_by_key(|device| device.number);
    Process {
        number,
        rank: told.rank,
        is_complete: !told.has_gaps && !log.is_damaged && (is_running || told.has_ended),
        last_event: told.last_event,
        devices,
    }
}

/// The machine's number of the device that a process calls `visible`.
fn physical(told: &Told, visible: i32) -> i64 {
    let at = usize::try_from(visible).ok();
    let known = at.and_then(|at| told.start.visible.get(at));
    known.map_or(i64::from(visible), |&device| i64::from(device))
}

fn ooms_on(told: &Told, device: i64) -> u64 {
    let of_device = told
        .ooms
        .iter()
        .filter(|(visible, _)| physical(told, **visible) == device);
    of_device.map(|(_, count)| count).sum()
}

/// The catalogue's id of a GPU, or else what the driver calls it.
fn gpu_id(catalogue: &Catalogue, name: &str, total: u64) -> String {
    let found = catalogue.measured(name, total);
    found.map_or_else(|| short(name), |gpu| gpu.id.clone())
}

/// The bytes of a small file.
fn small(file: &File) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader: &File = file;
    std::io::Seek::rewind(&mut reader).ok()?;
    reader.take(SMALL).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The job's command from the file in a folder.
fn family(running: &File) -> Option<String> {
    let running: Running = serde_json::from_slice(&small(running)?).ok()?;
    Some(family_of(&running.command))
}

fn family_of(words: &[String]) -> String {
    short(&JobKey::of_words(words).family())
}

/// The number of a process, from the name of its log.
fn log_number(name: &CStr) -> Option<u64> {
    let name = Path::new(OsStr::from_bytes(name.to_bytes())).to_str()?;
    let (number, _) = name.strip_prefix(LOG_PREFIX)?.split_once('-')?;
    number.parse().ok()
}
