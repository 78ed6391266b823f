// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals while a job runs: signals to this process are for the job, and how a job is requested to end.

use std::fs::File;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tonnage_capture::endings::Fact;

use crate::endings;

/// A file of the folder of a run that is there once `tonnage run` ends the job.
const ENDED_FILE: &str = "ended";

/// How long a job that ignores interrupts has to end after one before it gets a request to terminate.
const GRACE: Duration = Duration::from_millis(1500);
/// How much longer a job has that handles interrupts: it may be cleaning up.
const CLEANUP: Duration = Duration::from_millis(8500);

/// Signals go to the job while this lives; its process id may be another's later.
pub(crate) struct Forwarding {
    handle: Handle,
    interrupted: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Forwarding {
    /// Starts to handle signals.
    ///
    /// Ctrl-C at a terminal reaches the job by itself. Without one it may not: it was sent to this process alone, or
    /// the job was started with interrupts ignored, as shells start what runs in the background. So an interrupt is
    /// passed on when the job still runs after a while, as a request to terminate if it ignores interrupts. A request
    /// to terminate is passed on at once, and so is a second interrupt. Either way this process stays to report.
    pub(crate) fn start(processes: &[u32], folder: &Path) -> Option<Self> {
        let pids: Vec<Pid> = processes.iter().copied().filter_map(pid).collect();
        // Without handlers a signal ends this process as usual.
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).ok()?;
        let interrupted = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicBool::new(false));
        let forwarding = Self {
            handle: signals.handle(),
            interrupted: Arc::clone(&interrupted),
            ended: Arc::clone(&ended),
        };
        let folder = folder.to_owned();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                let again = interrupted.swap(true, Ordering::Relaxed);
                if signal == SIGINT && !again && std::io::stdin().is_terminal() {
                    // It reached the job, too.
                } else if signal == SIGINT && !again {
                    for &pid in &pids {
                        interrupt_later(pid, Arc::clone(&ended), folder.clone());
                    }
                } else {
                    for &pid in &pids {
                        send(pid, Signal::TERM, &folder);
                    }
                }
            }
        });
        Some(forwarding)
    }

    /// Whether a signal came.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.handle.close();
    }
}

fn interrupt_later(pid: Pid, ended: Arc<AtomicBool>, folder: PathBuf) {
    std::thread::spawn(move || {
        std::thread::sleep(GRACE);
        if gentlest(pid) == Signal::INT {
            std::thread::sleep(CLEANUP);
        }
        // Its process id may be another's once it has ended.
        if !ended.load(Ordering::Relaxed) {
            send(pid, gentlest(pid), &folder);
        }
    });
}

/// Sends a signal and records that it did: a process that was ended has not failed.
fn send(pid: Pid, signal: Signal, folder: &Path) {
    let sent = Fact::Sent {
        signal: signal.as_raw(),
        from: 0,
    };
    endings::write(folder, pid.as_raw_nonzero().get().cast_unsigned(), sent);
    let _ = kill_process(pid, signal);
}

/// Ends a job: requests it first, so that it can hand over what it recorded, and kills it in the end.
pub(crate) struct Termination {
    since: Instant,
    sent: usize,
    folder: PathBuf,
    /// Seconds between two signals.
    pace: u64,
}

impl Termination {
    /// Nothing is sent yet.
    pub(crate) fn start(folder: &Path, pace: u64) -> Self {
        // The hook leaves out the tracebacks of processes that are ended from here: they would hide the true one.
        let _ = File::create(folder.join(ENDED_FILE));
        Self {
            since: Instant::now(),
            sent: 0,
            folder: folder.to_owned(),
            pace,
        }
    }

    /// Sends the next signal if it is due.
    pub(crate) fn go_on(&mut self, processes: &[u32]) {
        let due = [
            (0, None),
            (self.pace, Some(Signal::TERM)),
            (2 * self.pace, Some(Signal::KILL)),
        ];
        if let Some(&(after, signal)) = due.get(self.sent)
            && self.since.elapsed().as_secs() >= after
        {
            for pid in processes.iter().copied().filter_map(pid) {
                let signal = signal.unwrap_or_else(|| gentlest(pid));
                send(pid, signal, &self.folder);
            }
            self.sent += 1;
        }
    }
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

/// An interrupt, or a request to terminate if the process ignores interrupts.
fn gentlest(pid: Pid) -> Signal {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    if ignored & (1 << (SIGINT - 1)) == 0 {
        Signal::INT
    } else {
        Signal::TERM
    }
}
