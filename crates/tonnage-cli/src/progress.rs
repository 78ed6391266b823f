// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on stderr, for someone who watches: what is done, and how long the rest takes.
//!
//! Nothing is shown where stderr is not a terminal, where TONNAGE_NO_PROGRESS is set, or where a program calls. The
//! figures below a running job are another thing, in `commands/run/screen.rs`: there the job owns the terminal.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::time::{Duration, Instant};

#[cfg(not(target_family = "wasm"))]
use indicatif::{ProgressDrawTarget, ProgressFinish, ProgressStyle};

#[cfg(not(target_family = "wasm"))]
pub(crate) use indicatif::ProgressBar;

#[cfg(target_family = "wasm")]
pub(crate) use self::percent::ProgressBar;

#[cfg(not(target_family = "wasm"))]
use crate::output::is_quiet;

#[cfg(target_family = "wasm")]
mod percent;

const READING: &str = "reading: {binary_bytes} of {binary_total_bytes}, {eta} left";
const REPLAYS: &str = "replayed with {pos} of {len} allocators, {eta} left after {elapsed}";

/// In a browser, the page draws the bar.
#[cfg(target_family = "wasm")]
pub(crate) fn line(_is_off: bool, _template: &str) -> ProgressBar {
    ProgressBar::default()
}

/// One line that is written over and gone at the end; its text is a template of indicatif.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn line(is_off: bool, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target(is_off));
    let bar = bar.with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(not(target_family = "wasm"))]
fn target(is_off: bool) -> ProgressDrawTarget {
    if is_off || is_quiet() || is_unwanted() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    }
}

/// A file whose reading is shown if it takes more than a second.
pub(crate) struct Reading {
    file: File,
    begun: Instant,
    is_shown: bool,
    bar: ProgressBar,
}

impl Reading {
    /// From where the file stands to its end.
    pub(crate) fn new(mut file: File) -> io::Result<Self> {
        let bar = line(true, READING);
        let begin = file.stream_position()?;
        bar.set_length(file.metadata()?.len().saturating_sub(begin));
        Ok(Self {
            file,
            begun: Instant::now(),
            is_shown: false,
            bar,
        })
    }
}

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.is_shown && self.begun.elapsed() > Duration::from_secs(1) {
            self.is_shown = true;
            #[cfg(not(target_family = "wasm"))]
            self.bar.set_draw_target(target(false));
        }
        let read = self.file.read(buffer)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

/// Shows how many replays are done while `work` reports them.
pub(crate) fn of_replays<T>(work: impl FnOnce(&dyn Fn(usize, usize)) -> T) -> T {
    let bar = line(false, REPLAYS);
    // A replay may take a minute: the time goes on meanwhile.
    #[cfg(not(target_family = "wasm"))]
    bar.enable_steady_tick(Duration::from_millis(200));
    let result = work(&|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result
}

#[cfg(not(target_family = "wasm"))]
/// As clap reads the variable where `--no-progress` is an option.
fn is_unwanted() -> bool {
    std::env::var_os("TONNAGE_NO_PROGRESS").is_some_and(|value| {
        let value = value.to_string_lossy().to_ascii_lowercase();
        !matches!(
            value.as_str(),
            "" | "n" | "no" | "f" | "false" | "off" | "0"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_and_counted_from_where_it_stands() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), "0123456789").unwrap();
        let mut file = path.reopen().unwrap();
        file.seek(io::SeekFrom::Start(4)).unwrap();
        let mut reading = Reading::new(file).unwrap();
        let mut text = String::new();
        reading.read_to_string(&mut text).unwrap();
        assert_eq!(text, "456789");
        assert_eq!(reading.bar.length(), Some(6));
        assert_eq!(reading.bar.position(), 6);
    }

    #[test]
    fn templates_are_understood() {
        // Tests have no terminal, so the style is what can be looked at.
        for template in [READING, REPLAYS, crate::commands::tune::PROGRESS] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
