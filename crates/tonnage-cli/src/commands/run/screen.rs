// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is shown while a job runs: live figures below its output.
//!
//! The job keeps the terminal: nothing of its output passes through here. The figures are in the last row, which is
//! taken out of the scrolling region, so that they and the job's lines do not mix.

use std::io::{IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use tonnage_run::{Attempt, JobEnd, Observer, Progress};

use crate::Surroundings;
use crate::output::{DIM, bytes, count, print_err};

/// Shows on stderr what happens during a dry run.
pub(crate) struct Screen {
    live_figures: bool,
    line: Option<StatusLine>,
    stop: Arc<AtomicBool>,
    watcher: Option<Sender<String>>,
    /// Whether the screen showed that the peak has not grown for long; shown once, for the first run.
    said_quiet: bool,
}

/// A job that has not reached a new peak for so much CPU time probably repeats the same step. The time of a clock
/// would also count a slow machine and a job that waits.
const HINT_AFTER: Duration = Duration::from_mins(1);

impl Screen {
    /// Nothing is shown before the job starts.
    pub(crate) fn new(live_figures: bool, surroundings: &Surroundings) -> Self {
        Self {
            live_figures,
            line: None,
            stop: Arc::clone(&surroundings.stop),
            watcher: surroundings.progress.clone(),
            said_quiet: false,
        }
    }

    /// For a real GPU, where a long job without a new peak is desired.
    pub(crate) fn on_real_gpu(self) -> Self {
        Self {
            said_quiet: true,
            ..self
        }
    }
}

impl Observer for Screen {
    fn started(&mut self, attempt: Attempt) {
        if attempt == Attempt::Unlimited {
            self.said_quiet = true;
            print_err(&format!(
                "{DIM}out of memory; running it once more on a GPU without a limit, to find out how much it needs \
                 (--stop-at-oom leaves this out){DIM:#}"
            ));
        }
        if self.live_figures {
            self.line = StatusLine::open();
        }
    }

    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        if !self.said_quiet && progress.peak > 0 && progress.quiet_busy >= HINT_AFTER {
            self.said_quiet = true;
            let seconds = progress.quiet_busy.as_secs();
            print_err(&format!(
                "{DIM}still running: no new peak for {seconds} s of CPU time ({} so far). Press Ctrl-C to stop \
                 and get a verdict, or use --stop-after{DIM:#}",
                bytes(progress.peak)
            ));
        }
        if let Some(line) = &mut self.line {
            line.show(&figures(progress));
        }
        if let Some(watcher) = &self.watcher {
            // A client that does not listen any more does not want to know.
            let _ = watcher.send(figures(progress));
        }
        if self.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn ended(&mut self, _: Attempt, _: &JobEnd) {
        self.line = None;
    }
}

fn figures(progress: &Progress) -> String {
    format!(
        "tonnage {:.1} s   GPU {}: allocated {}   reserved {}   used {} of {}   {} events",
        progress.elapsed.as_secs_f64(),
        progress.device,
        bytes(progress.allocated),
        bytes(progress.reserved),
        bytes(progress.used),
        bytes(progress.capacity),
        count(progress.events),
    )
}

/// The last row of the terminal.
struct StatusLine {
    rows: u16,
}

impl StatusLine {
    /// Takes the last row, if there is a terminal with room for one.
    fn open() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if !std::io::stderr().is_terminal() || dumb {
            return None;
        }
        let mut line = Self { rows: 0 };
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

/// One write, so that the job's output cannot come between its parts.
fn write(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_counts_processor_time_and_not_that_of_a_clock() {
        let mut screen = Screen::new(false, &Surroundings::default());
        let mut progress = Progress::default();
        progress.peak = 1;
        progress.quiet = 2 * HINT_AFTER;
        let _ = screen.progress(&progress);
        assert!(!screen.said_quiet, "a slow machine");
        progress.quiet_busy = HINT_AFTER;
        let _ = screen.progress(&progress);
        assert!(screen.said_quiet);
    }
}
