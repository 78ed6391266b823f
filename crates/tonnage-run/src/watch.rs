// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command of a job to its end and reads live figures meanwhile.
//!
//! The job keeps the terminal: its output does not pass through here.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tonnage_capture::LEDGER_FILE;
use tonnage_capture::endings::Fact;
use tonnage_capture::ledger::{DEVICES, DeviceWord, Ledger, ProcessWord, SharedWord};

use crate::endings;
use crate::error::RunError;
use crate::job::{Job, JobOutput};
use crate::leftovers::{self, Guard};
use crate::observer::{JobEnd, Observer, Progress};
use crate::ranks::World;
use crate::ranks::store::Store;
use crate::run_dir::{self, Prepared};
use crate::signals::{Forwarding, Termination};

/// Seconds between two signals to a job that is ended: it may be cleaning up.
const PACE: u64 = 10;
const TICK: Duration = Duration::from_millis(100);
/// How often the job's figures are read: the file has room for every process and device, so it is large.
const LOOK: Duration = Duration::from_millis(500);
/// The first look comes sooner, so that a short command is not waited for.
const FIRST_TICK: Duration = Duration::from_millis(2);

/// Reads the figures that the processes keep in the ledger, and adds up the CPU time of these and of `first`.
fn read_progress(folder: &Path, first: Vec<u32>) -> (Progress, Duration) {
    let ledger = std::fs::read(folder.join(LEDGER_FILE))
        .ok()
        .and_then(|bytes| Ledger::from_bytes(&bytes));
    let mut processes = BTreeSet::from_iter(first);
    let Some(ledger) = ledger else {
        let busy = processes.into_iter().map(processor_time).sum();
        return (Progress::default(), busy);
    };
    let slots = 0..ledger.slots();
    let id = |slot| u32::try_from(ledger.process(slot, ProcessWord::Pid)).ok();
    processes.extend(slots.clone().filter_map(id));
    let busy = processes.into_iter().map(processor_time).sum();
    let sum = |device: usize, word| -> u64 {
        slots
            .clone()
            .map(|slot| ledger.device(slot, device, word))
            .sum()
    };
    let used = |device: usize| ledger.shared(device, SharedWord::InUse);
    let fullest = (0..DEVICES).max_by_key(|&device| (used(device), DEVICES - device));
    let device = fullest.unwrap_or(0);
    let progress = Progress {
        device,
        used: used(device),
        allocated: sum(device, DeviceWord::Allocated),
        reserved: sum(device, DeviceWord::Reserved),
        events: slots
            .clone()
            .map(|slot| ledger.process(slot, ProcessWord::TorchEvents))
            .sum(),
        peak: (0..DEVICES)
            .map(|device| ledger.shared(device, SharedWord::PeakInUse))
            .sum(),
        ..Progress::default()
    };
    (progress, busy)
}

/// A job that was started.
pub(crate) trait Started {
    /// The ids of those of its processes that were started from here and have not ended.
    fn processes(&self) -> Vec<u32>;

    /// How they have ended, if all have.
    fn try_wait(&mut self) -> Result<Option<ExitStatus>, RunError>;
}

impl Started for Child {
    fn processes(&self) -> Vec<u32> {
        vec![self.id()]
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, RunError> {
        Self::try_wait(self).map_err(RunError::Wait)
    }
}

/// Ranks that were started one by one. When one fails the others are ended, as `torchrun` ends them.
struct Ranks {
    running: Vec<Child>,
    /// How the first ended that failed; else the last.
    status: ExitStatus,
    termination: Option<Termination>,
    folder: PathBuf,
    /// Serves as long as they run.
    _store: Store,
}

impl Started for Ranks {
    fn processes(&self) -> Vec<u32> {
        self.running.iter().map(Child::id).collect()
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, RunError> {
        let mut failure = Ok(());
        self.running
            .retain_mut(|rank| match Started::try_wait(rank) {
                Ok(None) => true,
                Ok(Some(status)) => {
                    record_signal(&self.folder, rank.id(), status);
                    if self.status.success() {
                        self.status = status;
                    }
                    false
                }
                Err(error) => {
                    failure = Err(error);
                    true
                }
            });
        failure?;
        if !self.status.success() && !self.running.is_empty() {
            let start = || Termination::start(&self.folder, PACE);
            let termination = self.termination.get_or_insert_with(start);
            let processes: Vec<u32> = self.running.iter().map(Child::id).collect();
            termination.go_on(&processes);
        }
        Ok(self.running.is_empty().then_some(self.status))
    }
}

impl Ranks {
    fn start(
        prepared: &dyn Prepared,
        job: &Job,
        (world, gpus): (&World, u8),
        again: bool,
    ) -> Result<Self, RunError> {
        let store = Store::start(world.size(), world.ranks(), gpus).map_err(RunError::Store)?;
        let (ports, secret) = (store.ports().to_vec(), store.secret().to_owned());
        let mut ranks = Self {
            running: Vec::new(),
            status: ExitStatus::default(),
            termination: None,
            folder: prepared.folder().to_owned(),
            _store: store,
        };
        for (&rank, port) in world.ranks().iter().zip(ports) {
            let mut job = job.clone();
            let environment = world.environment(rank, gpus, port, &secret);
            job.environment.extend(environment);
            let started = prepared.command(&job).and_then(|mut command| {
                if again || !ranks.running.is_empty() {
                    command.stdin(stdin_again());
                }
                spawn(&mut command)
            });
            match started {
                Ok(child) => ranks.running.push(child),
                Err(error) => {
                    for rank in &mut ranks.running {
                        let _ = rank.kill();
                        let _ = rank.wait();
                    }
                    return Err(error);
                }
            }
        }
        Ok(ranks)
    }
}

/// Records that a signal ended a process that was started from here; a process records its exit code itself.
fn record_signal(folder: &Path, process: u32, status: ExitStatus) {
    if let Some(signal) = status.signal() {
        endings::write(folder, process, Fact::Died(signal));
    }
}

/// Starts a job in a folder that is prepared for it.
pub(crate) type Start<'a> = dyn Fn(&dyn Prepared, &Job) -> Result<Box<dyn Started>, RunError> + 'a;

/// How a job is watched.
pub(crate) struct Watching<'a> {
    /// Which ranks are started, on machines of so many GPUs, instead of one process.
    pub(crate) world: Option<(&'a World, u8)>,
    /// Starts its process, instead of the system.
    pub(crate) start: Option<&'a Start<'a>>,
    /// Whether signals to this process are for the job.
    pub(crate) forward_signals: bool,
    /// For a second run, whose output was shown already: it is ended when its peak has not grown for so long.
    pub(crate) patience: Option<Duration>,
}

/// How long a run without a limit may go on without a new peak, where the limited one took `first`: a loop of a
/// hundred thousand steps shows its peak in the first few.
pub(crate) fn patience(first: Duration) -> Duration {
    (first * 3).max(Duration::from_secs(30))
}

/// Runs the command to its end.
pub(crate) fn watch(
    prepared: &dyn Prepared,
    job: &Job,
    watching: &Watching<'_>,
    observer: &mut dyn Observer,
) -> Result<JobEnd, RunError> {
    let kills_before = kills_for_memory();
    let started = Instant::now();
    let _running = run_dir::announce(prepared.folder(), job);
    let _guard = Guard::start(prepared.folder());
    let mut child = start(prepared, job, watching)?;
    let first_processes = child.processes();
    let forwarding = watching
        .forward_signals
        .then(|| Forwarding::start(&first_processes, prepared.folder()))
        .flatten();
    let mut last_peak = (0, started);
    let mut stopped = None;
    let mut interrupted = false;
    let mut termination: Option<Termination> = None;
    let mut tick = FIRST_TICK;
    let (mut read, mut read_at) = (Progress::default(), None::<Instant>);
    let mut busy_at_peak = Duration::ZERO;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(tick);
        tick = TICK.min(tick * 2);
        if read_at.is_none_or(|at| at.elapsed() >= LOOK) {
            let busy;
            (read, busy) = read_progress(prepared.folder(), child.processes());
            read_at = Some(Instant::now());
            if read.peak > last_peak.0 {
                last_peak = (read.peak, Instant::now());
                busy_at_peak = busy;
            }
            read.quiet_busy = busy.saturating_sub(busy_at_peak);
        }
        let progress = Progress {
            elapsed: started.elapsed(),
            capacity: prepared.capacity(),
            quiet: last_peak.1.elapsed(),
            ..read.clone()
        };
        let asked_to_stop = observer.progress(&progress) == ControlFlow::Break(());
        let quiet = progress.quiet;
        let out_of_patience = watching.patience.is_some_and(|patience| quiet > patience);
        if termination.is_none() && (asked_to_stop || out_of_patience) {
            interrupted = asked_to_stop;
            if !asked_to_stop {
                stopped = Some(format!("its peak had not grown for {} s", quiet.as_secs()));
            }
            termination = Some(Termination::start(prepared.folder(), PACE));
        }
        if let Some(termination) = &mut termination {
            termination.go_on(&child.processes());
        }
    };
    if let &[process] = first_processes.as_slice() {
        record_signal(prepared.folder(), process, status);
    }
    let interrupted = interrupted || forwarding.as_ref().is_some_and(Forwarding::interrupted);
    let left = leftovers::end(prepared.folder(), interrupted);
    Ok(JobEnd {
        ending: status.into(),
        stopped,
        interrupted,
        left_running: left.users,
        left_without_gpu: left.others,
        quiet: last_peak.1.elapsed(),
        killed_for_memory: kills_for_memory().saturating_sub(kills_before),
        elapsed: started.elapsed(),
    })
}

/// Starts the first process of the job, or the ranks of it that run.
fn start(
    prepared: &dyn Prepared,
    job: &Job,
    watching: &Watching<'_>,
) -> Result<Box<dyn Started>, RunError> {
    let mut job = job.clone();
    if watching.patience.is_some() {
        job.output = JobOutput::Discard;
    }
    if let Some(start) = watching.start {
        return start(prepared, &job);
    }
    let again = watching.patience.is_some();
    if let Some(world) = watching.world {
        return Ok(Box::new(Ranks::start(prepared, &job, world, again)?));
    }
    let mut command = prepared.command(&job)?;
    if again {
        command.stdin(stdin_again());
    }
    Ok(Box::new(spawn(&mut command)?))
}

fn spawn(command: &mut Command) -> Result<Child, RunError> {
    command.spawn().map_err(|source| RunError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })
}

/// The CPU time that a process has taken, with that of its children that have ended.
fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    processor_time_in(&stat.unwrap_or_default())
}

fn processor_time_in(stat: &str) -> Duration {
    // The name of the program, in brackets, may have spaces in it.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = fields.split_whitespace().skip(11).take(4);
    let ticks = ticks.filter_map(|field| field.parse::<u64>().ok());
    // The kernel counts in hundredths of a second, whatever its clock.
    Duration::from_millis(ticks.fold(0, u64::saturating_add).saturating_mul(10))
}

/// How many processes the kernel has ended since it started because the machine, or a group of processes, was out of
/// memory.
fn kills_for_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    kills_in(&text).unwrap_or(0)
}

fn kills_in(vmstat: &str) -> Option<u64> {
    let line = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "));
    line?.trim().parse().ok()
}

/// The standard input of a second run: a file from its start, else nothing, since a pipe was read already.
fn stdin_again() -> Stdio {
    let path = "/proc/self/fd/0";
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let file = is_file.then(|| File::open(path).ok()).flatten();
    file.map_or_else(Stdio::null, Stdio::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_a_process_and_of_its_ended_children() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0 999";
        let stat = format!("17 (a) b) {fields}");
        assert_eq!(processor_time_in(&stat), Duration::from_millis(1270));
        assert_eq!(processor_time_in("17 (sh"), Duration::ZERO);
        let folder = tempfile::tempdir().expect("a folder");
        let own = std::process::id();
        let deadline = Instant::now() + Duration::from_mins(1);
        while read_progress(folder.path(), vec![own]).1.is_zero() {
            assert!(Instant::now() < deadline, "this loop takes processor time");
        }
    }

    #[test]
    fn kills_for_want_of_memory_are_counted_by_the_kernel() {
        assert_eq!(
            kills_in("nr_free_pages 12\noom_kill 3\nnuma_hit 4\n"),
            Some(3)
        );
        assert_eq!(kills_in("oom_kills 3\n"), None);
    }
}
