// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fleet review`: what past jobs used of the GPU memory that they held. `review_page` has it as a page.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use tonnage_forecast::review::{Group, History, Review, Scenario, read, review};

use super::{at_most, review_page};
use crate::browser;
use crate::commands::recording::{Input, Output, named, plain};
use crate::options::{PageFile, ReplyOptions};
use crate::output::{Answer, Form, Reply, WARN, count, hinted, plural, wrapped};

/// Larger files are not accounting: a million jobs have some 300 MB.
const MAX_HISTORY: u64 = 1 << 30;
/// Teams and kinds of jobs that the text lists; the JSON has all.
const LISTED: usize = 10;
const ROOM: usize = 84;

/// Review how past jobs used GPU memory, and what sharing would have saved
///
/// Reads the accounting of jobs that have ended: sacct's output with -P, the
/// answer of Prometheus to a query over a range of DCGM_FI_DEV_FB_USED, or CSV with
/// a line of names. Prints how much of the GPU memory that jobs held they used, how
/// many GPUs would have been enough if jobs had shared them, and who leaves most
/// unused.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sacct -a -P -S 2026-10-01 -E 2026-11-01 \\
    -o JobID,JobName,Account,User,AllocTRES,NTasks,Start,End,State,TRESUsageInMax > jobs.txt
  tonnage fleet review jobs.txt --html review.html
  tonnage fleet review --gpu a100-80gb --price 2.50 jobs.csv")]
pub(crate) struct FleetReview {
    /// Accounting of past jobs; `-` for standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The GPU of jobs that name none.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// The price of one GPU for an hour, in any currency.
    #[arg(long, value_name = "PRICE")]
    price: Option<f64>,
    #[command(flatten)]
    page: PageFile,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

pub(super) fn run(options: &FleetReview, form: Form) -> Result<Reply> {
    if options
        .price
        .is_some_and(|price| !(0.0..1e9).contains(&price))
    {
        return Err(hinted(
            "--price is not an amount",
            "give a number such as 2.50",
        ));
    }
    let target = options.page.html.as_deref();
    let output = target
        .map(|target| Output::create(target, options.page.force))
        .transpose()?;
    let history = history_of(&options.files, options.gpu.as_deref())?;
    if history.jobs.is_empty() {
        return Err(hinted(
            format!(
                "there is no ended job with GPUs in {}",
                plural(options.files.len() as u64, "file")
            ),
            "jobs need a number of GPUs, a start and an end",
        ));
    }
    let reviewed = review(&history);
    if let Some(output) = output {
        let page = review_page::page(&reviewed, options.price);
        output.write(page.as_bytes())?;
        if let Some(target) = target.filter(|_| options.page.open) {
            browser::open(target)?;
        }
        if target == Some(Path::new("-")) {
            return Ok(Reply::silent(Answer::Yes));
        }
    }
    Ok(Reply::new(form, Answer::Yes, &reviewed, |reviewed| {
        text(reviewed, options.price)
    })?)
}

/// The jobs of these files.
pub(crate) fn history_of(files: &[PathBuf], gpu: Option<&str>) -> Result<History> {
    let mut all = History::default();
    for path in files {
        let bytes = at_most(MAX_HISTORY, Input::new(path)?.open()?)
            .with_context(|| format!("cannot read {}", named(path)))?;
        let bytes = bytes.ok_or_else(|| {
            hinted(
                format!("{} is larger than any accounting", named(path)),
                "review a shorter time",
            )
        })?;
        let history = read(&String::from_utf8_lossy(&bytes), gpu).map_err(|error| {
            hinted(
                format!("cannot read {}: {error}", named(path)),
                "`tonnage fleet review --help` shows the sacct command; docs/guides/review.md has all forms",
            )
        })?;
        all.extend(history).map_err(|error| {
            hinted(
                format!("cannot add {}: {error}", named(path)),
                "review a shorter time",
            )
        })?;
    }
    Ok(all)
}

pub(super) fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

pub(super) fn hours(hours: f64) -> String {
    count(hours.round() as u64)
}

/// The memory of measured jobs, in a sentence.
pub(super) fn headline(review: &Review) -> String {
    match review.used_part {
        Some(part) => format!(
            "{} measured {} used {} of the held GPU memory, over {} GPU-hours",
            count(review.measured),
            if review.measured == 1 { "job" } else { "jobs" },
            percent(part),
            hours(review.measured_gpu_hours)
        ),
        None => format!(
            "{} held GPUs for {} GPU-hours; how much memory they used was not measured",
            plural(review.jobs, "job"),
            hours(review.gpu_hours)
        ),
    }
}

/// A replay, in words.
pub(super) fn name_of(scenario: &Scenario) -> String {
    match scenario.margin_percent {
        None => "as jobs held them".to_owned(),
        Some(0) => "shared by measured use".to_owned(),
        Some(margin) => format!("shared by measured use and {margin} %"),
    }
}

/// The part of the GPU-hours that a replay saves.
pub(super) fn saved(scenario: &Scenario, held: &Scenario) -> f64 {
    if held.gpu_hours > 0.0 {
        1.0 - scenario.gpu_hours / held.gpu_hours
    } else {
        0.0
    }
}

fn text(review: &Review, price: Option<f64>) -> String {
    let mut text = format!("{}\n", headline(review));
    if review.measured > 0 {
        let _ = writeln!(
            text,
            "\n  {:<34} {:>12} {:>14} {:>12}",
            "replay of all jobs", "most GPUs", "GPU-hours", "fewer"
        );
        if let Some((held, shared)) = review.scenarios.split_first() {
            let _ = writeln!(
                text,
                "  {:<34} {:>12} {:>14}",
                name_of(held),
                count(held.most_gpus),
                hours(held.gpu_hours)
            );
            for scenario in shared {
                let _ = writeln!(
                    text,
                    "  {:<34} {:>12} {:>14} {:>12}",
                    name_of(scenario),
                    count(scenario.most_gpus),
                    hours(scenario.gpu_hours),
                    percent(saved(scenario, held))
                );
            }
            if let (Some(price), Some(shared)) = (price, shared.last()) {
                let _ = writeln!(
                    text,
                    "\n  at {price} for a GPU-hour, {} less with the largest margin",
                    hours((held.gpu_hours - shared.gpu_hours) * price)
                );
            }
        }
        group_text(&mut text, "teams", &review.teams);
        group_text(&mut text, "kinds of jobs", &review.families);
    }
    if review.full_failures > 0 {
        let _ = writeln!(
            text,
            "\n{WARN}{}{WARN:#} failed with a full GPU after {} GPU-hours; {} came after such a failure of the same user and kind",
            plural(review.full_failures, "job"),
            hours(review.full_failure_gpu_hours),
            count(review.repeated_failures)
        );
    }
    text.push('\n');
    for note in &review.notes {
        for (at, line) in wrapped(&plain(note), ROOM).iter().enumerate() {
            let name = if at == 0 { "note" } else { "" };
            let _ = writeln!(text, "  {name:<5} {line}");
        }
    }
    text
}

fn group_text(text: &mut String, title: &str, groups: &[Group]) {
    let mut shown = groups
        .iter()
        .filter(|group| !group.name.is_empty())
        .peekable();
    if shown.peek().is_none() {
        return;
    }
    let title = format!("{title} with most unused");
    let _ = writeln!(
        text,
        "\n  {title:<34} {:>8} {:>12} {:>8} {:>18}",
        "jobs", "GPU-hours", "used", "unused GPU-hours"
    );
    for group in shown.take(LISTED) {
        let name: String = plain(&group.name).chars().take(34).collect();
        let _ = writeln!(
            text,
            "  {name:<34} {:>8} {:>12} {:>8} {:>18}",
            count(group.jobs),
            hours(group.gpu_hours),
            percent(group.used_part),
            hours(group.unused_gpu_hours)
        );
    }
}
