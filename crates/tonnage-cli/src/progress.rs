// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on stderr, for someone who watches: what is done, and how long the rest takes.
//!
//! Nothing is shown where stderr is no terminal, where TONNAGE_NO_PROGRESS is set, or where a program asks. The figures
//! below a running job are another thing, in `commands/run/screen.rs`: there the job owns the terminal.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use crate::output::is_quiet;

const READING: &str = "reading: {binary_bytes} of {binary_total_bytes}, {eta} left";
const REPLAYS: &str = "replayed with {pos} of {len} allocators, {eta} left after {elapsed}";

/// One line that is written over and gone at the end; its text is a template of indicatif.
pub(crate) fn line(is_off: bool, template: &str) -> ProgressBar {
    let target = if is_off || is_quiet() || is_unwanted() {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(None, target).with_finish(ProgressFinish::AndClear);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A file whose reading is shown.
pub(crate) fn reading(file: File) -> impl Read {
    let bar = line(false, READING);
    bar.set_length(file.metadata().map_or(0, |metadata| metadata.len()));
    bar.wrap_read(file)
}

/// Shows how many replays are done while `work` reports them.
pub(crate) fn of_replays<T>(work: impl FnOnce(&dyn Fn(usize, usize)) -> T) -> T {
    let bar = line(false, REPLAYS);
    // A replay may take a minute: the time goes on meanwhile.
    bar.enable_steady_tick(Duration::from_millis(200));
    let result = work(&|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result
}

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
    fn templates_are_understood() {
        // Tests have no terminal, so the style is what can be looked at.
        for template in [READING, REPLAYS, crate::commands::tune::PROGRESS] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
