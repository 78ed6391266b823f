// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage verify`: a job on the real GPU and dry, compared, in words and as a report to send.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use tonnage_analysis::verify::{Comparison, Figure, Parting, Setting, Verification};
use tonnage_gpus::Catalogue;
use tonnage_run::verify;

use super::run::{Screen, finished, job_of, output_file};
use crate::Surroundings;
use crate::commands::recording::Output;
use crate::options::JobCommand;
use crate::output::{
    Answer, BAD, DIM, Form, GOOD, HINT, Reply, WARN, bytes, count, hinted, plural, print_err,
};

/// Compare a dry run with what the real GPU of this machine does
///
/// Records the command on the GPU, runs it dry on the same GPU of the
/// catalogue, and compares the two event by event: where they part, why, and
/// how far apart their figures are. The report is a small JSON file without
/// source text and folders, made to be sent with an issue; both recordings are
/// left beside it.
///
/// Exit code: 0 every event is the same, 1 they differ, 2 one of them could not
/// be done.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage verify -- python train.py
  tonnage verify --recorded train.tonnage -- python train.py")]
pub(crate) struct VerifyOptions {
    /// A recording of the same command by `tonnage record`: the command is then run dry only, on any machine.
    #[arg(long, value_name = "FILE")]
    pub(crate) recorded: Option<PathBuf>,
    /// The GPU of the dry run, instead of the one that was recorded.
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Where to write the report [default: the script's name with -verify.json, and a number if that is taken].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite FILE and the recordings beside it.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the report on stdout too; the output of the command goes to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

/// How many partings the text lists; the report has more.
const PARTINGS: usize = 4;

pub(crate) fn run(typed: &VerifyOptions, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    let path = report_file(typed);
    let report = Output::create(&path, typed.force)?;
    let beside = |name: &str| path.with_extension(name);
    let real_path = typed.recorded.clone();
    let real_path = real_path.unwrap_or_else(|| beside("real.tonnage"));
    let dry_path = beside("dry.tonnage");
    let real = match &typed.recorded {
        Some(_) => None,
        None => Some(Output::create(&real_path, typed.force)?),
    };
    let dry = Output::create(&dry_path, typed.force)?;
    let no_file = || {
        hinted(
            format!("{} is not a file", path.display()),
            "the recordings are written beside it: name a file with -o",
        )
    };
    let real_written = match &real {
        Some(output) => output.path().ok_or_else(no_file)?,
        None => &real_path,
    };
    let dry_written = dry.path().ok_or_else(no_file)?;
    let job = job_of(&typed.job.command, typed.json, surroundings);
    let mut options = tonnage_run::VerifyOptions::default();
    options.is_recorded = typed.recorded.is_some();
    options.forward_signals = surroundings.forward_signals;
    if let Some(name) = &typed.gpu {
        let catalogue = Catalogue::embedded();
        options.gpu = Some(super::gpus::find(&catalogue, name)?.clone());
    }
    let mut screen = Screen::new(false, surroundings).on_real_gpu();
    let verified = verify(&job, &options, real_written, dry_written, &mut screen)?;
    let verification = verified.verification;
    let json = serde_json::to_string_pretty(&verification)?;
    report
        .writer()?
        .write_all(format!("{json}\n").as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let path = finished(report, path.clone(), typed.force)?;
    let dry_path = finished(dry, dry_path, typed.force)?;
    let real_path = match real {
        Some(output) => finished(output, real_path, typed.force)?,
        None => real_path,
    };
    let answer = if verification.same {
        Answer::Yes
    } else {
        Answer::No
    };
    let reply = Reply::new(form, answer, &verification, |verification| {
        print_err("");
        text(verification, &path, [&real_path, &dry_path])
    });
    Ok(reply?)
}

/// `-o`, or the script's name with another ending, and a number where that is taken.
fn report_file(typed: &VerifyOptions) -> PathBuf {
    if let Some(output) = &typed.output {
        return output.clone();
    }
    let script = output_file(None, true, &typed.job.command);
    let stem = script.file_stem().unwrap_or(OsStr::new("run"));
    let named = |number: u32| {
        let number = match number {
            1 => String::new(),
            _ => format!("-{number}"),
        };
        PathBuf::from(format!("{}-verify{number}.json", stem.to_string_lossy()))
    };
    let mut names = (1..).map(named);
    let free = names.find(|path| typed.force || !path.exists());
    free.unwrap_or_else(|| named(1))
}

fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}

fn text(found: &Verification, report: &Path, recordings: [&Path; 2]) -> String {
    let mut text = headline(found);
    text.push('\n');
    for setting in &found.settings {
        row(&mut text, "differs", &describe_setting(setting));
    }
    for process in &found.processes {
        compared(&mut text, process, found.processes.len() > 1);
    }
    for gap in &found.unknown {
        row(&mut text, "not known", gap);
    }
    let [real, dry] = recordings.map(Path::display);
    row(&mut text, "recordings", &format!("{real}, {dry}"));
    let send = if found.same {
        "another GPU confirmed"
    } else {
        "what we need to find the cause"
    };
    let report = report.display();
    row(
        &mut text,
        "report",
        &format!("{HINT}{report}{HINT:#} {DIM}(please send it with an issue: {send}){DIM:#}"),
    );
    text.trim_end().to_owned()
}

fn headline(found: &Verification) -> String {
    let sum = |of: fn(&Comparison) -> u64| found.processes.iter().map(of).sum::<u64>();
    let (real, same) = (sum(|one| one.real_events), sum(|one| one.same_events));
    let dry = sum(|one| one.dry_events);
    if found.same {
        let beside = found.processes.iter().find_map(besides);
        return format!(
            "{GOOD}the same events{GOOD:#}: all {} on {} are in the dry run, in this order{}",
            count(real),
            found.gpu,
            beside.unwrap_or_default(),
        );
    }
    let partings = sum(|one| {
        let listed = one.partings.iter().map(|parting| parting.repeats + 1);
        listed.sum::<u64>() + one.more_partings
    });
    format!(
        "{BAD}different{BAD:#}: {} of {} events on {} are in the dry run, which has {}; they part {}",
        count(same),
        count(real),
        found.gpu,
        count(dry),
        plural(partings, "time"),
    )
}

/// Memory in use outside PyTorch, where the runs differ.
fn besides(process: &Comparison) -> Option<String> {
    let figures = &process.figures;
    let figure = figures.iter().find(|one| one.name == "beside_most")?;
    let (more, who) = if figure.real > figure.dry {
        (figure.real - figure.dry, "the GPU has")
    } else {
        (figure.dry - figure.real, "the dry run counts")
    };
    (more > 0).then(|| format!("; {WARN}{who} {} more outside PyTorch{WARN:#}", bytes(more)))
}

fn describe_setting(setting: &Setting) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
    format!(
        "{}: {} on the GPU, {} in the dry run",
        setting.what,
        value(&setting.real),
        value(&setting.dry)
    )
}

fn compared(text: &mut String, process: &Comparison, several: bool) {
    if several {
        let who = process.rank.map_or_else(
            || format!("GPU {}", process.device),
            |rank| format!("rank {rank}"),
        );
        let (same, real) = (count(process.same_events), count(process.real_events));
        row(text, &who, &format!("{same} of {real} events are the same"));
    }
    for (index, parting) in process.partings.iter().take(PARTINGS).enumerate() {
        part(text, if index == 0 { "first" } else { "then" }, parting);
    }
    let left = process.partings.len().saturating_sub(PARTINGS) as u64 + process.more_partings;
    if left > 0 {
        row(
            text,
            "",
            &format!("and {} more, which the report lists", count(left)),
        );
    }
    if process.moved_blocks > 0 {
        let lie = if process.moved_blocks == 1 {
            "lies"
        } else {
            "lie"
        };
        let moved = plural(process.moved_blocks, "block");
        row(
            text,
            "moved",
            &format!("{moved} {lie} elsewhere in PyTorch's segments"),
        );
    }
    for figure in &process.figures {
        row(text, words(&figure.name), &both(figure));
    }
}

fn part(text: &mut String, name: &str, parting: &Parting) {
    let place = parting.place.as_ref().map_or(String::new(), |place| {
        format!(", at {}:{} in {}", place.file, place.line, place.function)
    });
    let none = || "nothing".to_owned();
    row(
        text,
        name,
        &format!(
            "event {}: {} on the GPU, {} in the dry run{place}",
            count(parting.real_event + 1),
            parting.real.clone().unwrap_or_else(none),
            parting.dry.clone().unwrap_or_else(none),
        ),
    );
    row(
        text,
        "",
        &format!("{} {DIM}[{}]{DIM:#}", parting.cause, parting.known),
    );
    let mut more = Vec::new();
    if parting.only_real + parting.only_dry > 2 {
        more.push(format!(
            "{} here only on the GPU ({}), {} only in the dry run ({})",
            plural(parting.only_real, "event"),
            bytes(parting.real_bytes),
            count(parting.only_dry),
            bytes(parting.dry_bytes),
        ));
    }
    if parting.repeats > 0 {
        more.push(format!(
            "the same again {}",
            plural(parting.repeats, "time")
        ));
    }
    if !more.is_empty() {
        row(text, "", &more.join("; "));
    }
}

fn words(name: &str) -> &str {
    match name {
        "peak_allocated" => "allocated",
        "peak_reserved" => "reserved",
        "beside_first" => "context",
        "beside_most" => "beside",
        name => name,
    }
}

fn both(figure: &Figure) -> String {
    let what = match figure.name.as_str() {
        "peak_allocated" => "at most in PyTorch's blocks",
        "peak_reserved" => "at most held by PyTorch",
        "beside_first" => "the context, and what libraries took before the GPU was first queried",
        "beside_most" => "at most outside PyTorch: the context, kernels, libraries",
        _ => "of memory",
    };
    if figure.is_same() {
        return format!("{} in both {DIM}({what}){DIM:#}", bytes(figure.real));
    }
    let (sign, difference) = if figure.dry > figure.real {
        ("+", figure.dry - figure.real)
    } else {
        ("-", figure.real - figure.dry)
    };
    let percent = 100.0 * difference as f64 / figure.real.max(1) as f64;
    format!(
        "{} on the GPU, {} in the dry run: {sign}{}, {sign}{percent:.2} % {DIM}({what}){DIM:#}",
        bytes(figure.real),
        bytes(figure.dry),
        bytes(difference),
    )
}
