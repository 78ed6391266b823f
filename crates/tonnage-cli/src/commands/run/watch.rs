// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command and shows live figures below its output.
//!
//! The script keeps the terminal: nothing of its output passes through here.
//! The figures stand in the last row, which is taken out of the scrolling
//! region, so that they and the script's lines do not mix.

use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tonnage_capture::LEDGER_FILE;
use tonnage_capture::ledger::{DEVICES, DeviceWord, Ledger, ProcessWord};

use super::stage::Stage;
use crate::arguments::RunOptions;
use crate::output::{bytes, count};

const TICK: Duration = Duration::from_millis(100);

/// Runs the command to its end; how it ended, in words.
pub(crate) fn watch(stage: &Stage, options: &RunOptions, capacity: u64) -> Result<String> {
    let (program, arguments) = options.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    stage.equip(&mut command);
    if options.json {
        // stdout is for the verdict alone.
        command.stdout(std::io::stderr());
    }
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", program.to_string_lossy()))?;
    let listening = outlive(&child);
    let mut line = (!options.no_progress).then(StatusLine::open).flatten();
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            break status;
        }
        std::thread::sleep(TICK);
        if let Some(line) = &mut line {
            line.show(&figures(stage, capacity, line.started.elapsed()));
        }
    };
    drop(line);
    drop(listening);
    Ok(ending(status))
}

/// Ctrl-C reaches the script by itself, and what it does then is its own affair; a request to end is passed on, and so
/// is impatience. Either way this process stays to report.
fn outlive(child: &Child) -> Option<Listening> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw)?;
    // Without handlers a signal ends this process as ever.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).ok()?;
    let listening = Listening(signals.handle());
    std::thread::spawn(move || {
        let mut interrupted = false;
        for signal in signals.forever() {
            if signal == SIGINT && !interrupted {
                interrupted = true;
            } else {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    });
    Some(listening)
}

/// Signals are for the script while this lives; its number may be another's later.
struct Listening(Handle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// The figures of the fullest device, all processes together.
fn figures(stage: &Stage, capacity: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let ledger = std::fs::read(stage.folder().join(LEDGER_FILE))
        .ok()
        .and_then(|bytes| Ledger::from_bytes(&bytes));
    let Some(ledger) = ledger else {
        return format!("tonnage {seconds:.1} s");
    };
    let slots = 0..ledger.processes();
    let sum = |device: usize, word| -> u64 {
        slots
            .clone()
            .map(|slot| ledger.device(slot, device, word))
            .sum()
    };
    let fullest =
        (0..DEVICES).max_by_key(|&device| (sum(device, DeviceWord::Charged), DEVICES - device));
    let device = fullest.unwrap_or(0);
    let events: u64 = slots
        .clone()
        .map(|slot| ledger.process(slot, ProcessWord::TorchEvents))
        .sum();
    format!(
        "tonnage {seconds:.1} s   GPU {device}: allocated {}   reserved {}   used {} of {}   {} events",
        bytes(sum(device, DeviceWord::Allocated)),
        bytes(sum(device, DeviceWord::Reserved)),
        bytes(sum(device, DeviceWord::Charged)),
        bytes(capacity),
        count(events),
    )
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
