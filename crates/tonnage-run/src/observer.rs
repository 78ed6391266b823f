// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of a dry run for an observer: progress, and how the job ended.

use std::fmt;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

/// Is notified of events of a dry run, on the thread that called [`dry_run`](crate::dry_run).
pub trait Observer {
    /// The job is about to be started.
    fn started(&mut self, attempt: Attempt) {
        let _ = attempt;
    }

    /// About ten times a second while the job runs. `Break` ends it: it is interrupted, then terminated, then killed,
    /// and what it recorded until then is judged.
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }

    /// The job has ended.
    fn ended(&mut self, attempt: Attempt, end: &JobEnd) {
        let _ = (attempt, end);
    }
}

/// Which run of a job it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The first, on GPUs with their own memory.
    Limited,
    /// The second, of a job that ran out of memory: its GPUs refuse nothing, so that it shows how much it needs.
    Unlimited,
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Observer for Quiet {}

/// How a process ended.
///
/// ```
/// assert_eq!(tonnage_run::Ending::Exit(0).to_string(), "exit 0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// By itself, with this exit code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// In a way the system does not report.
    Unknown,
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

/// As recordings have it: `exit 0`, `signal 9`.
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// How one run of a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobEnd {
    /// How its first process ended.
    pub ending: Ending,
    /// Why it was ended because it went on without a new peak, if it was.
    pub stopped: Option<String>,
    /// Whether it was interrupted: by a signal to this process, or by the observer.
    pub interrupted: bool,
    /// How many processes with a GPU still ran when the command had ended, and were ended.
    pub left_running: usize,
    /// The arguments of processes that still ran then, had not used a GPU, and were ended.
    pub left_without_gpu: Vec<String>,
    /// How long it had gone on without a new peak.
    pub quiet: Duration,
    /// How many processes the kernel ended meanwhile, on the whole machine, for want of memory.
    pub killed_for_memory: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl JobEnd {
    /// A job that came to this end by itself.
    pub fn new(ending: Ending, elapsed: Duration) -> Self {
        Self {
            ending,
            stopped: None,
            interrupted: false,
            left_running: 0,
            left_without_gpu: Vec::new(),
            quiet: Duration::ZERO,
            killed_for_memory: 0,
            elapsed,
        }
    }
}

/// Live figures of a running job: those of the device with the most memory in use, all processes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// How long the job has run.
    pub elapsed: Duration,
    /// Number of the device.
    pub device: usize,
    /// Bytes of its memory.
    pub capacity: u64,
    /// Bytes in use of it.
    pub used: u64,
    /// Bytes that PyTorch's allocator handed out.
    pub allocated: u64,
    /// Bytes that PyTorch's allocator holds from the driver.
    pub reserved: u64,
    /// Events recorded by now.
    pub events: u64,
    /// The largest use so far, summed over all devices.
    pub peak: u64,
    /// How long ago that was.
    pub quiet: Duration,
    /// CPU time that the job has taken since.
    pub quiet_busy: Duration,
}
