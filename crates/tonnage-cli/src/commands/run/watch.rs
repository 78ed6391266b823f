// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command and shows live figures below its output.
//!
//! The script keeps the terminal: nothing of its output passes through here.
//! The figures stand in the last row, which is taken out of the scrolling
//! region, so that they and the script's lines do not mix.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tonnage_capture::LEDGER_FILE;
use tonnage_capture::ledger::{DEVICES, DeviceWord, Ledger, ProcessWord, SharedWord};

use super::stage::Stage;
use crate::arguments::RunOptions;
use crate::output::{bytes, count};

const TICK: Duration = Duration::from_millis(100);
/// The first look comes sooner, so that a command of a moment is not waited for.
const FIRST_TICK: Duration = Duration::from_millis(2);

/// What the user sees of the command.
#[derive(Clone, Copy)]
pub(crate) enum Showing {
    /// Everything it prints.
    All,
    /// Only live figures: its output was shown already. It is ended when its peak has not grown for so long.
    Figures { patience: Duration },
}

/// How a run went.
pub(crate) struct Watched {
    /// How it ended: `exit 0`, `signal 9`.
    pub(crate) ending: String,
    /// Why it was ended before its own end, if it was.
    pub(crate) stopped: Option<String>,
    /// Whether the user interrupted it.
    pub(crate) interrupted: bool,
    /// How long it took.
    pub(crate) elapsed: Duration,
}

/// How long a run without a limit may go on without a new peak, where the limited one took `first`: a loop of a
/// hundred thousand steps shows its peak in the first few.
pub(crate) fn patience(first: Duration) -> Duration {
    (first * 3).max(Duration::from_secs(30))
}

/// The standard input of a second run: a file from its start, else nothing, since a pipe was read already.
fn stdin_again() -> Stdio {
    let path = "/proc/self/fd/0";
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let file = is_file.then(|| File::open(path).ok()).flatten();
    file.map_or_else(Stdio::null, Stdio::from)
}

/// Runs the command to its end.
pub(crate) fn watch(stage: &Stage, options: &RunOptions, showing: Showing) -> Result<Watched> {
    let (program, arguments) = options.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    stage.equip(&mut command);
    let patience = match showing {
        Showing::All => {
            if options.json {
                // stdout is for the verdict alone.
                command.stdout(std::io::stderr());
            }
            None
        }
        Showing::Figures { patience } => {
            command
                .stdin(stdin_again())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Some(patience)
        }
    };
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", program.to_string_lossy()))?;
    let listening = outlive(&child);
    let mut line = (!options.no_progress).then(StatusLine::open).flatten();
    let mut last_peak = (0, started);
    let mut stopped = None;
    let mut tick = FIRST_TICK;
    let mut ending_since: Option<(Instant, usize)> = None;
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            break status;
        }
        std::thread::sleep(tick);
        tick = TICK.min(tick * 2);
        let figures = Figures::read(stage);
        if let Some(line) = &mut line {
            line.show(&figures.text(stage.capacity(), line.started.elapsed()));
        }
        if figures.peak > last_peak.0 {
            last_peak = (figures.peak, Instant::now());
        }
        let quiet = last_peak.1.elapsed();
        if ending_since.is_none() && patience.is_some_and(|patience| quiet > patience) {
            stopped = Some(format!("its peak had not grown for {} s", quiet.as_secs()));
            ending_since = Some((Instant::now(), 0));
        }
        if let (Some((since, asked)), Some(pid)) = (&mut ending_since, pid(&child)) {
            // First in the way that leaves it time to hand over what it recorded.
            let due = [(0, gentlest(pid)), (10, Signal::TERM), (20, Signal::KILL)];
            if let Some((_, signal)) = due
                .get(*asked)
                .filter(|(after, _)| since.elapsed().as_secs() >= *after)
            {
                let _ = kill_process(pid, *signal);
                *asked += 1;
            }
        }
    };
    drop(line);
    let interrupted = listening.as_ref().is_some_and(Listening::interrupted);
    drop(listening);
    Ok(Watched {
        ending: ending(status),
        stopped,
        interrupted,
        elapsed: started.elapsed(),
    })
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// How long a script that ignores interrupts has to end after one before it is asked in another way.
const GRACE: Duration = Duration::from_millis(1500);
/// How much longer one has that hears them, before it is taken to have heard none: it may be tidying up.
const TIDYING: Duration = Duration::from_millis(8500);

/// Ctrl-C at a terminal reaches the script by itself. Without one it may not: it was sent to this process alone, or the
/// script was started with interrupts ignored, as shells start what runs in the background. So an interrupt is passed
/// on when the script still runs after a while, as a request to end if it ignores interrupts. A request to end is
/// passed on at once, and so is impatience. Either way this process stays to report.
fn outlive(child: &Child) -> Option<Listening> {
    let pid = pid(child)?;
    // Without handlers a signal ends this process as ever.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).ok()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicBool::new(false));
    let listening = Listening {
        handle: signals.handle(),
        interrupted: Arc::clone(&interrupted),
        ended: Arc::clone(&ended),
    };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let again = interrupted.swap(true, Ordering::Relaxed);
            if signal == SIGINT && !again && std::io::stdin().is_terminal() {
                // It reached the script, too.
            } else if signal == SIGINT && !again {
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || {
                    std::thread::sleep(GRACE);
                    if gentlest(pid) == Signal::INT {
                        std::thread::sleep(TIDYING);
                    }
                    // Its number may be another's once it has ended.
                    if !ended.load(Ordering::Relaxed) {
                        let _ = kill_process(pid, gentlest(pid));
                    }
                });
            } else {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    });
    Some(listening)
}

/// An interrupt, unless the process ignores interrupts.
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

/// Signals are for the script while this lives; its number may be another's later.
struct Listening {
    handle: Handle,
    interrupted: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Listening {
    fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.handle.close();
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// The figures of the fullest device at a moment, all processes together.
#[derive(Default)]
struct Figures {
    device: usize,
    allocated: u64,
    reserved: u64,
    used: u64,
    events: u64,
    /// The most that all processes were ever charged, summed over devices.
    peak: u64,
}

impl Figures {
    fn read(stage: &Stage) -> Self {
        let ledger = std::fs::read(stage.folder().join(LEDGER_FILE))
            .ok()
            .and_then(|bytes| Ledger::from_bytes(&bytes));
        let Some(ledger) = ledger else {
            return Self::default();
        };
        let slots = 0..ledger.slots();
        let sum = |device: usize, word| -> u64 {
            slots
                .clone()
                .map(|slot| ledger.device(slot, device, word))
                .sum()
        };
        let used = |device: usize| ledger.shared(device, SharedWord::InUse);
        let fullest = (0..DEVICES).max_by_key(|&device| (used(device), DEVICES - device));
        let device = fullest.unwrap_or(0);
        Self {
            device,
            allocated: sum(device, DeviceWord::Allocated),
            reserved: sum(device, DeviceWord::Reserved),
            used: used(device),
            events: slots
                .clone()
                .map(|slot| ledger.process(slot, ProcessWord::TorchEvents))
                .sum(),
            peak: (0..DEVICES)
                .map(|device| ledger.shared(device, SharedWord::PeakInUse))
                .sum(),
        }
    }

    fn text(&self, capacity: u64, elapsed: Duration) -> String {
        format!(
            "tonnage {:.1} s   GPU {}: allocated {}   reserved {}   used {} of {}   {} events",
            elapsed.as_secs_f64(),
            self.device,
            bytes(self.allocated),
            bytes(self.reserved),
            bytes(self.used),
            bytes(capacity),
            count(self.events),
        )
    }
}

/// The last row of the terminal.
struct StatusLine {
    rows: u16,
    started: Instant,
}

impl StatusLine {
    /// Takes the last row, if there is a terminal with room for one.
    fn open() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if !std::io::stderr().is_terminal() || dumb {
            return None;
        }
        let mut line = Self {
            rows: 0,
            started: Instant::now(),
        };
        line.fit()?;
        Some(line)
    }

    /// Follows the size of the window.
    fn fit(&mut self) -> Option<u16> {
        let (width, height) = terminal_size::terminal_size_of(std::io::stderr())?;
        if height.0 < 4 {
            return None;
        }
        if height.0 != self.rows {
            self.rows = height.0;
            // A line of room, then all rows but the last scroll.
            write(&format!("\n\x1b7\x1b[1;{}r\x1b8\x1b[1A", self.rows - 1));
        }
        Some(width.0)
    }

    fn show(&mut self, text: &str) {
        if let Some(width) = self.fit() {
            let text: String = text
                .chars()
                .take(usize::from(width).saturating_sub(1))
                .collect();
            write(&format!(
                "\x1b7\x1b[{};1H\x1b[2K\x1b[2m{text}\x1b[0m\x1b8",
                self.rows
            ));
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        write(&format!("\x1b7\x1b[r\x1b[{};1H\x1b[2K\x1b8", self.rows));
    }
}

/// One write, so that the script's output cannot come between its parts.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
