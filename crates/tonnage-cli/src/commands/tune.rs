// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage replay --search`: the best setting of PyTorch's allocator for a recording.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tonnage_analysis::tune::{Advice, OtherAllocator, Trial, Tuned};

use crate::commands::replay::{load, track_remarks};
use crate::options::{ReplyOptions, ScreenOptions, Target};
use crate::output::{Answer, BAD, DIM, Form, GOOD, HINT, Reply, bytes, count, plural};
use crate::progress;

/// Find the setting of PyTorch's allocator that serves a recording best
///
/// Replays the recording under more than 200 settings, on all cores, and prints
/// the line to paste, what it saves and what it costs. Says so when no setting
/// helps because the job needs more memory than the device has. Every proposed
/// setting was replayed.
///
/// Exit code: 0 it fits with the setting, 1 no setting makes it fit.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage replay --search train.tonnage
  tonnage replay --search snapshot.pickle --gpu a100-40gb --json")]
pub(crate) struct TuneOptions {
    /// The recording; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Replays at the same time [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) threads: Option<u8>,
    #[command(flatten)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// The text shown meanwhile.
pub(crate) const PROGRESS: &str = "replayed {pos} of about {len} settings, {eta} left";

pub(crate) fn run(options: &TuneOptions, form: Form) -> Result<Reply> {
    search(
        &options.file,
        &options.target,
        options.threads,
        &options.screen,
        form,
    )
}

/// Looks for the best setting of a recording.
pub(super) fn search(
    file: &Path,
    target: &Target,
    threads: Option<u8>,
    screen: &ScreenOptions,
    form: Form,
) -> Result<Reply> {
    let job = load(file, target)?;
    let threads = threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let progress = progress::line(screen.no_progress, PROGRESS);
    let tuned = job.tune(threads, &|done, total| {
        progress.set_length(total as u64);
        progress.set_position(done as u64);
    });
    progress.finish_and_clear();
    let answer = match tuned.advice {
        Advice::MemoryIsShort | Advice::NothingFits => Answer::No,
        Advice::MakesItFit | Advice::Saves | Advice::KeepIt => Answer::Yes,
    };
    let reply = Reply::new(form, answer, &tuned, |tuned| {
        let mut text = text(tuned);
        for track in &job.replay(&[], false).tracks {
            track_remarks(&mut text, track);
        }
        text
    });
    Ok(reply?)
}

fn text(tuned: &Tuned) -> String {
    let Tuned {
        advice,
        baseline,
        best,
        ..
    } = tuned;
    let mut text = format!("{}\n", headline(tuned));
    if *advice != Advice::MemoryIsShort {
        text.push('\n');
    }
    if matches!(advice, Advice::MakesItFit | Advice::Saves) && !tuned.own.recorded {
        let _ = writeln!(
            text,
            "  {HINT}export PYTORCH_CUDA_ALLOC_CONF={}{HINT:#}\n",
            best.conf
        );
    }
    if *advice != Advice::MemoryIsShort {
        let _ = writeln!(
            text,
            "{:>12} {:>12} {:>8} {:>7}  setting",
            "smallest GPU", "reserved", "calls", "retries"
        );
        line(
            &mut text,
            baseline,
            if baseline.recorded {
                "recorded"
            } else {
                "default"
            },
        );
        if best.conf != baseline.conf {
            line(
                &mut text,
                best,
                if *advice == Advice::KeepIt {
                    "closest"
                } else {
                    "best"
                },
            );
        }
        for trial in &tuned.runners_up {
            line(&mut text, trial, "");
        }
        write_own(&mut text, tuned);
    }
    let smaller = || {
        let trials = tuned.runners_up.iter();
        trials.filter(|trial| trial.completes && trial.smallest < best.smallest)
    };
    let why = if smaller().next().is_none() {
        ""
    } else if smaller().all(|trial| trial.keys() > best.keys()) {
        "; best is the simplest: settings with more keys save little more"
    } else {
        "; of settings within 0.2 %, the one with the fewest driver calls is best"
    };
    let _ = writeln!(
        text,
        "\n{DIM}tested {} by replay{why}{DIM:#}",
        plural(tuned.tried, "setting")
    );
    text
}

/// The need of tonnage's own allocator, and its use today.
fn write_own(text: &mut String, tuned: &Tuned) {
    let OtherAllocator { smallest, .. } = &tuned.own;
    figures(
        text,
        *smallest,
        tuned.own.peak_reserved,
        tuned.own.driver_calls,
        tuned.own.retries,
        "tonnage's own allocator",
        tuned.own.completes,
    );
    let compared = match (tuned.own.completes, smallest, tuned.best.smallest) {
        (true, Some(own), _) if !tuned.best.completes => {
            format!("would make it fit and need {}", bytes(*own))
        }
        (true, Some(own), Some(best)) if *own < best => format!(
            "would need {} less than {}",
            bytes(best - own),
            if tuned.best.conf.is_empty() {
                "PyTorch's defaults"
            } else {
                "the best setting"
            }
        ),
        (true, Some(own), Some(best)) if *own == best => "would need as much".to_owned(),
        (true, Some(own), Some(best)) => format!("would need {} more", bytes(own - best)),
        _ => "does not make it fit either".to_owned(),
    };
    if tuned.own.recorded {
        return;
    }
    let _ = writeln!(
        text,
        "\n{DIM}tonnage's own allocator {compared}, if streams keep up; `import tonnage.torch; tonnage.torch.install()` turns it on{DIM:#}"
    );
}

fn headline(tuned: &Tuned) -> String {
    let Tuned {
        baseline,
        best,
        capacity,
        context,
        least,
        ..
    } = tuned;
    let size = |trial: &Trial| trial.smallest.unwrap_or(0);
    if tuned.own.recorded && tuned.advice != Advice::MemoryIsShort {
        let known =
            |smallest: Option<u64>| smallest.map_or_else(|| "an unknown size".to_owned(), bytes);
        return format!(
            "recorded with tonnage's own allocator, which takes no settings: a GPU of {} suffices; PyTorch's own would take \
             {} with {}",
            known(tuned.own.smallest),
            known(best.smallest),
            if best.conf.is_empty() {
                "its defaults"
            } else {
                &best.conf
            },
        );
    }
    let saved = size(baseline).saturating_sub(size(best));
    let calls = best.driver_calls.cast_signed() - baseline.driver_calls.cast_signed();
    let cost = match calls {
        0 => "the same number of driver calls".to_owned(),
        1 => "1 more driver call".to_owned(),
        -1 => "1 fewer driver call".to_owned(),
        more if more > 0 => format!("{} more driver calls", count(more.unsigned_abs())),
        fewer => format!("{} fewer driver calls", count(fewer.unsigned_abs())),
    };
    match tuned.advice {
        Advice::MemoryIsShort => format!(
            "{BAD}the job needs more than the GPU has{BAD:#}: {} is live at once, plus {} of context, on a device of {}; no setting helps",
            bytes(least - context),
            bytes(*context),
            bytes(*capacity)
        ),
        Advice::NothingFits => format!(
            "{BAD}no setting makes it fit{BAD:#} in {}; the closest needs {}",
            bytes(*capacity),
            best.smallest
                .map_or_else(|| "an unknown size".to_owned(), bytes)
        ),
        Advice::MakesItFit => format!(
            "{GOOD}fits with another setting{GOOD:#}: the recorded one runs out of memory in {}, this one needs {}, for {cost}",
            bytes(*capacity),
            bytes(size(best))
        ),
        Advice::Saves => format!(
            "{GOOD}another setting saves {}{GOOD:#}: a device of {} instead of {} suffices, for {cost}",
            bytes(saved),
            bytes(size(best)),
            bytes(size(baseline))
        ),
        Advice::KeepIt => {
            let others = tuned.runners_up.iter().filter(|trial| trial.completes);
            keep(
                size(baseline),
                others.filter_map(|trial| trial.smallest).min(),
            )
        }
    }
}

/// Why nothing is proposed for a job that needs so much: nothing saves enough, or only several options together.
fn keep(needed: u64, fewest: Option<u64>) -> String {
    let saved = needed.saturating_sub(fewest.unwrap_or(needed));
    let why = if saved > needed / 100 {
        format!(
            "no single option saves 1% of the {} it needs; several together save {}, and are proposed from 5% of the GPU on",
            bytes(needed),
            bytes(saved)
        )
    } else {
        format!("none saves 1% of the {} it needs", bytes(needed))
    };
    format!("{GOOD}keep the setting{GOOD:#}: {why}")
}

fn line(text: &mut String, trial: &Trial, mark: &str) {
    let conf = if trial.conf.is_empty() {
        "(defaults)"
    } else {
        &trial.conf
    };
    let mark = match mark {
        "" => String::new(),
        mark => format!(" {DIM}{mark}{DIM:#}"),
    };
    figures(
        text,
        trial.smallest,
        trial.peak_reserved,
        trial.driver_calls,
        trial.retries,
        &format!("{conf}{mark}"),
        trial.completes,
    );
}

fn figures(
    text: &mut String,
    smallest: Option<u64>,
    reserved: u64,
    calls: u64,
    retries: u64,
    name: &str,
    completes: bool,
) {
    let smallest = smallest.map_or_else(|| "-".to_owned(), bytes);
    let outcome = if completes {
        String::new()
    } else {
        format!(" {BAD}out of memory{BAD:#} on this device")
    };
    let _ = writeln!(
        text,
        "{smallest:>12} {:>12} {:>8} {:>7}  {name}{outcome}",
        bytes(reserved),
        count(calls),
        count(retries),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_options_save_is_not_denied() {
        const GIB: u64 = 1 << 30;
        assert!(keep(100 * GIB, None).contains("none saves 1% of the 100.00 GiB"));
        assert!(keep(100 * GIB, Some(100 * GIB - 1)).contains("none saves 1%"));
        let several = keep(100 * GIB, Some(96 * GIB));
        assert!(
            several.contains("several together save 4.00 GiB"),
            "{several}"
        );
        assert!(!several.contains("none saves"), "{several}");
    }
}
