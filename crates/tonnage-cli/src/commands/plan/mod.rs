// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage plan`: offsets for buffers with known lifetimes.

mod runtime;
mod svg;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
#[cfg(feature = "jobs")]
use signal_hook::consts::SIGINT;
use tonnage_analysis::plan::{
    GraphFacts, GroupReport, PlanError, Report, Wanted, csv, onnx, plan, problems,
};
use tonnage_import::{Format, detect};
use tonnage_plan::{Options, Progress, Switches};

use crate::commands::recording::{
    Input, Output, Recording, explained, named, plain, tell_of_the_whole, unreadable_trace,
};
use crate::options::{ReplyOptions, ScreenOptions};
use crate::output::{
    Answer, BAD, DIM, Form, GOOD, Reply, WARN, bytes, count, hinted, plural, print_err,
};
use crate::progress;

/// Place buffers with known lifetimes at the lowest peak, or within a capacity
///
/// Reads planning problems (CSV with id, lower, upper and size, as minimalloc
/// has them), ONNX models with known shapes, and recordings: the blocks of each
/// process, device and pool are then a problem of their own. Gives offsets, the peak, a lower bound,
/// and whether the plan is proved optimal. Every plan is checked before it is
/// shown.
///
/// Exit code: 0 there is a plan, 1 none that fits in the capacity was found.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage plan buffers.csv --capacity 1MiB -o offsets.csv
  tonnage plan train.tonnage --step --svg step.svg
  tonnage plan model.onnx --dim batch=8 --alignment 64
  tonnage plan train.tonnage --deadline 60 --json > plan.json
  tonnage plan train.tonnage --for-runtime -o train.plan")]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub(crate) struct PlanOptions {
    /// The planning problem, the ONNX model, or the recording; `-` is standard input.
    #[arg(value_name = "INPUT")]
    pub(crate) file: PathBuf,
    /// Memory that must suffice, e.g. 1MiB [default: as little as possible].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) capacity: Option<u64>,
    /// Time limit in seconds; the best plan found so far is returned.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
    pub(crate) deadline: f64,
    /// Threads that search [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) threads: Option<u8>,
    /// The same seed gives the same plan, unless the time limit is reached.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Offsets are multiples of this [default: 512 for recordings, 1 for planning problems].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) alignment: Option<u64>,
    /// Leave buffers at the offset column of the problem; the others go around them.
    #[arg(long)]
    pub(crate) keep_offsets: bool,
    /// Plan one step of a recording: the fullest that the program marked, else what repeats in it.
    #[arg(long)]
    pub(crate) step: bool,
    /// Write a plan that tonnage's own allocator follows, with the places of the first step and of those that repeat.
    #[arg(long, conflicts_with_all = ["capacity", "alignment", "keep_offsets", "step", "dim", "svg"])]
    pub(crate) for_runtime: bool,
    /// The value of a dimension that an ONNX model has only a name for; may be repeated.
    #[arg(long, value_name = "NAME=N", value_parser = parse_dimension)]
    pub(crate) dim: Vec<(String, u64)>,
    /// Where to write the offsets, as CSV, or the plan for the allocator; `-` is stdout.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Where to write a picture of the packing.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Overwrite outputs that are there.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Reads a dimension with its value.
fn parse_dimension(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('=');
    let named = parts.and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)));
    match named {
        Some((name, value)) if !name.is_empty() && value > 0 => Ok((name.to_owned(), value)),
        _ => Err("expected a name and a number, such as batch=8".to_owned()),
    }
}

/// Reads a time that can be waited for.
fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err("expected seconds, such as 2.5".to_owned()),
    }
}

/// Buffers of a conflict that are named; the rest is counted.
const MAX_NAMED: usize = 8;

pub(crate) fn run(options: &PlanOptions, form: Form) -> Result<Reply> {
    if options.for_runtime {
        return runtime::run(options, form);
    }
    let path = &options.file;
    let create = |path: &Path| Output::create(path, options.force);
    let output = options.output.as_deref().map(create).transpose()?;
    let svg = options.svg.as_deref().map(create).transpose()?;
    if options.reply.json && matches!(output, Some(Output::Stdout)) {
        return Err(hinted(
            "both JSON and CSV would go to stdout",
            "name a file with -o, or leave out --json",
        ));
    }
    let wanted = Wanted {
        capacity: options.capacity,
        alignment: options.alignment,
        step: options.step,
        keep_offsets: options.keep_offsets,
    };
    // A recording has no place for alignments and gaps, so planning problems are read as they are.
    let input = Input::new(path)?;
    let problems = if is_onnx(path, &input)? {
        onnx::problem(input.open()?, &wanted, &options.dim).map_err(|error| {
            let reason = explained(&error, error.hint());
            reason.context(format!("cannot plan {}", named(path)))
        })?
    } else if input.recognise()? == Some(Format::PlannerCsv) {
        csv::problem(input.open()?, &wanted).map_err(|error| {
            let reason = explained(&error, error.hint());
            reason.context(format!("cannot read {}", named(path)))
        })?
    } else {
        let recording = Recording::from_input(input)?;
        tell_of_the_whole(&recording);
        problems(recording.furthest()?, &wanted).map_err(|error| unreadable_trace(path, &error))?
    };
    if problems.groups.iter().all(|group| group.names.is_empty()) {
        return Err(hinted(
            format!("{} has no blocks to plan", named(path)),
            "tonnage info prints its contents",
        ));
    }
    let report = watched(options, form, |options| plan(&problems, &wanted, options));
    let report = report.map_err(|error| refused(path, &error))?;
    if let Some(output) = output {
        let name = options.output.as_deref().unwrap_or(path);
        write(output, name, |writer| rows(&report, writer))?;
    }
    if let (Some(output), Some(name)) = (svg, &options.svg) {
        write(output, name, |writer| svg::draw(&report, writer))?;
    }
    let fits = |group: &GroupReport| matches!(group.status, "optimal" | "fits");
    let answer = if report.groups.iter().all(fits) {
        Answer::Yes
    } else {
        Answer::No
    };
    if options.output.as_deref() == Some(Path::new("-")) {
        return Ok(Reply::silent(answer));
    }
    let reply = Reply::new(form, answer, &report, |report| text(report, options));
    Ok(reply?)
}

/// Plans with the options of the command line, and shows progress.
fn watched<T>(options: &PlanOptions, form: Form, plan: impl FnOnce(&Options<'_>) -> T) -> T {
    // Set by Ctrl-C: the best plan so far is then the answer.
    let cancel = Arc::new(AtomicBool::new(false));
    // A calling program handles Ctrl-C in its own way.
    #[cfg(feature = "jobs")]
    if form != Form::Both {
        // Without the handler Ctrl-C ends the process as ever.
        let _ = signal_hook::flag::register(SIGINT, Arc::clone(&cancel));
    }
    let line = progress::line(options.screen.no_progress, "{msg}");
    let begun = Instant::now();
    let planned = plan(&Options {
        seed: options.seed,
        threads: options.threads.map_or(0, usize::from),
        deadline: Some(Duration::from_secs_f64(options.deadline)),
        attempts: u64::MAX,
        cancel: Some(&cancel),
        progress: Some(&|progress: &Progress| {
            let left = options.deadline - begun.elapsed().as_secs_f64();
            line.set_message(format!(
                "peak {}, bound {}; at most {:.0} s left, Ctrl-C keeps the best so far",
                bytes(progress.peak),
                bytes(progress.lower_bound),
                left.max(0.0),
            ));
        }),
        switches: Switches::ALL,
    });
    line.finish_and_clear();
    planned
}

/// By its name, or by how it begins: the format has no mark.
fn is_onnx(path: &Path, input: &Input) -> Result<bool> {
    if path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("onnx"))
    {
        return Ok(true);
    }
    let first = input.head()?;
    Ok(detect(&first).is_none() && onnx::looks_like(&first))
}

fn refused(path: &Path, error: &PlanError) -> anyhow::Error {
    let hint = match error {
        PlanError::Fixed { .. } => "leave --keep-offsets out, or correct their offsets",
        PlanError::Wrong { .. } => "this is a bug in tonnage; please report it with the file",
        _ => "tonnage info prints the contents of the file",
    };
    explained(error, hint).context(format!("cannot plan {}", named(path)))
}

fn write(
    output: Output,
    path: &Path,
    content: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<()> {
    let mut writer = output.writer()?;
    let written = content(&mut writer).and_then(|()| writer.flush());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    drop(writer);
    if let Some(size) = output.finish()? {
        print_err(&format!("wrote {} ({})", path.display(), bytes(size)));
    }
    Ok(())
}

/// minimalloc's columns; with several groups, before them which one a buffer belongs to.
fn rows(report: &Report, writer: &mut dyn std::io::Write) -> std::io::Result<()> {
    let several = report.groups.len() > 1;
    writeln!(
        writer,
        "{}id,lower,upper,size,offset",
        if several { "process,device,pool," } else { "" }
    )?;
    for group in &report.groups {
        for buffer in &group.buffers {
            if several {
                write!(
                    writer,
                    "{},{},{},",
                    group.process,
                    group.device,
                    pool(group).unwrap_or_default()
                )?;
            }
            // A name with a comma or a line break would be another row.
            let id = plain(&buffer.id).replace([',', '"'], "_");
            writeln!(
                writer,
                "{id},{},{},{},{}",
                buffer.lower, buffer.upper, buffer.size, buffer.offset
            )?;
        }
    }
    Ok(())
}

fn pool(group: &GroupReport) -> Option<String> {
    group
        .pool
        .map(|(first, second)| format!("{first}.{second}"))
}

fn text(report: &Report, options: &PlanOptions) -> String {
    let mut text = String::new();
    let unit = match (report.graph, report.is_problem) {
        (Some(_), _) => "operator",
        (None, true) => "time",
        (None, false) => "row",
    };
    if let Some(graph) = &report.graph {
        text += &not_planned(graph);
    }
    for group in &report.groups {
        if report.groups.len() > 1 || !report.is_problem {
            let device = if group.device < 0 {
                "pinned host memory".to_owned()
            } else {
                format!("device {}", group.device)
            };
            let pool = pool(group)
                .filter(|pool| pool != "0.0")
                .map_or(String::new(), |pool| format!(", pool {pool}"));
            let _ = writeln!(text, "process {}, {device}{pool}", group.process);
        }
        if let Some(step) = &group.step {
            let how = match step.of_marked {
                0 => "found by what repeats".to_owned(),
                1 => "the only one that is marked".to_owned(),
                steps => format!("the fullest of {} that are marked", count(steps as u64)),
            };
            let _ = writeln!(
                text,
                "  {:<12} rows {} to {}, {}; {how}",
                "step",
                count(step.first_row.unsigned_abs()),
                count(step.end_row.unsigned_abs()),
                plural(step.requests as u64, "request"),
            );
        } else if options.step {
            let _ = writeln!(
                text,
                "  {WARN}no step found{WARN:#}: nothing repeats, so the whole was planned"
            );
        }
        let _ = writeln!(
            text,
            "  {:<12} {}",
            "buffers",
            count(group.buffers.len() as u64)
        );
        let moment = group
            .moment
            .map_or(String::new(), |moment| format!(", at {unit} {moment}"));
        let _ = writeln!(
            text,
            "  {:<12} {}{moment}",
            "lower bound",
            bytes(group.lower_bound)
        );
        let over = group.peak - group.lower_bound;
        let over = if over == 0 {
            String::new()
        } else {
            format!(
                ", {} or {:.3} % above the bound",
                bytes(over),
                over as f64 * 100.0 / group.lower_bound as f64
            )
        };
        let _ = writeln!(text, "  {:<12} {}{over}", "peak", bytes(group.peak));
        if group.streams > 1 {
            let _ = writeln!(
                text,
                "  {DIM}{} are one time line here, in the order of the rows{DIM:#}",
                plural(group.streams as u64, "stream")
            );
        }
        let _ = writeln!(text, "  {}\n", headline(group, report, unit));
    }
    if report.passed_over > 0 {
        let _ = writeln!(
            text,
            "{DIM}{} made no sense and went uncounted{DIM:#}",
            plural(report.passed_over, "row")
        );
    }
    text
}

/// The parts of a graph that the plan leaves to the caller.
fn not_planned(graph: &GraphFacts) -> String {
    let mut text = format!(
        "{}, in the order of the graph; each tensor lives from the one that makes it to the last that reads it\n",
        plural(graph.operators, "operator")
    );
    let mut others = vec![
        format!(
            "{} ({})",
            plural(graph.inputs, "input"),
            bytes(graph.input_bytes)
        ),
        format!(
            "{} ({})",
            plural(graph.initializers, "initializer"),
            bytes(graph.initializer_bytes)
        ),
    ];
    if graph.constants > 0 {
        others.push(plural(graph.constants, "constant"));
    }
    if graph.inner > 0 {
        let inner = plural(graph.inner, "tensor");
        others.push(format!("{inner} inside of branches and loops"));
    }
    if graph.unread > 0 {
        let unread = plural(graph.unread, "output");
        others.push(format!("{unread} of unknown shape that nothing reads"));
    }
    let _ = writeln!(text, "{DIM}not planned: {}{DIM:#}", others.join(", "));
    text
}

fn headline(group: &GroupReport, report: &Report, unit: &str) -> String {
    let capacity = bytes(report.capacity.unwrap_or(0));
    match (group.status, report.capacity) {
        ("optimal", None) => format!("{GOOD}optimal{GOOD:#}: no plan has a lower peak"),
        ("optimal", Some(_)) => {
            format!("{GOOD}fits{GOOD:#} in {capacity}, and no plan has a lower peak")
        }
        ("fits", Some(_)) => format!("{GOOD}fits{GOOD:#} in {capacity}"),
        ("fits", None) => format!(
            "{GOOD}planned{GOOD:#}; a lower peak is not excluded, and a longer --deadline may find one"
        ),
        ("infeasible", _) => conflict(group, &capacity, unit),
        _ => format!(
            "{BAD}no plan found{BAD:#} that fits in {capacity}; none is excluded, and a longer --deadline may find one"
        ),
    }
}

fn conflict(group: &GroupReport, capacity: &str, unit: &str) -> String {
    let Some(conflict) = &group.conflict else {
        return format!("{BAD}does not fit{BAD:#} in {capacity}: every arrangement was excluded");
    };
    let named: Vec<String> = conflict
        .buffers
        .iter()
        .take(MAX_NAMED)
        .filter_map(|buffer| group.buffers.get(*buffer))
        .map(|buffer| format!("{} ({})", plain(&buffer.id), bytes(buffer.size)))
        .collect();
    let more = conflict.buffers.len() - named.len();
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {} more", count(more as u64))
    };
    let moment = conflict
        .moment
        .map_or(String::new(), |moment| format!(" at {unit} {moment}"));
    format!(
        "{BAD}does not fit{BAD:#} in {capacity}: {} live{moment} and need {}: {}{more}",
        plural(conflict.buffers.len() as u64, "buffer"),
        bytes(conflict.bytes),
        named.join(", "),
    )
}
