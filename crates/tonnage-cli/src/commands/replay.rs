// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage replay`: a recording under other allocators, settings and devices.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use tonnage_analysis::replay::{
    Alloc, AllocatorPlan, AllocatorPlanError, Assumption, Comparison, Fidelity, Gaps, Job, Options,
    Outcome, OwnCounts, PlanFollowed, ReplayError, Replayed, Report, Seen, TrackReport,
};
use tonnage_gpus::Catalogue;

use crate::commands::recording::{
    Recording, explained, named, tell_of_the_whole, unreadable_trace,
};
use crate::commands::tune;
use crate::options::{QuietOptions, ReplyOptions, ScreenOptions, Target};
use crate::output::{Answer, BAD, DIM, Form, GOOD, Reply, WARN, bytes, count, hinted, plural};
use crate::progress;

/// Replay a recording under other allocators, settings and devices
///
/// Takes the requests and frees of a recording (of `tonnage run`, or any that
/// `tonnage convert` reads) and lets each allocator serve them. PyTorch's is
/// exact, event for event; tonnage's own is, too, if streams keep up; the others
/// are approximations and marked so. The recorded setting is always checked against the recording.
///
/// With --search, it replays the recording under more than 200 settings of
/// PyTorch's allocator, on all cores, and prints the line to paste, what it saves
/// and what it costs. If no setting helps, because the job needs more memory than
/// the device has, the answer states that.
///
/// Exit code: 0 the first allocator completes, 1 it runs out of memory. With
/// --search: 0 the job fits with the setting, 1 no setting makes it fit.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage replay train.tonnage
  tonnage replay snapshot.pickle --gpu a100-40gb
  tonnage replay --search train.tonnage
  tonnage replay train.tonnage --alloc torch:max_split_size_mb:128 --alloc bfc --json")]
pub(crate) struct ReplayOptions {
    /// The recording; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// An allocator: recorded, torch, torch:SETTINGS, cuda-malloc-async, bfc or tonnage, or plan for
    /// an offline placement that knows every lifetime in advance; may be repeated
    /// [default: recorded, PyTorch's defaults and with expandable segments, cuda-malloc-async and bfc].
    #[arg(long, value_name = "ALLOCATOR")]
    pub(crate) alloc: Vec<tonnage_analysis::replay::Alloc>,
    /// Replay tonnage's own allocator with a plan, too, that `tonnage plan --for-runtime` made.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Do not look for the smallest device.
    #[arg(long)]
    pub(crate) no_smallest: bool,
    /// Search the settings of PyTorch's allocator for the best one.
    #[arg(long, conflicts_with_all = ["alloc", "plan", "no_smallest"])]
    pub(crate) search: bool,
    /// With --search, replays at the same time [default: one for each core].
    #[arg(long, value_name = "N", requires = "search", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) threads: Option<u8>,
    #[command(flatten)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten)]
    pub(crate) quiet: QuietOptions,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Bytes of a plan that are read; one of a million requests has a tenth of that.
const LONGEST_PLAN: u64 = 256 << 20;
/// Processes whose tables are shown; the JSON has all.
const TRACKS: usize = 4;

pub(crate) fn run(options: &ReplayOptions, form: Form) -> Result<Reply> {
    if options.search {
        return tune::search(
            &options.file,
            &options.target,
            options.threads,
            &options.screen,
            form,
        );
    }
    let plan = options.plan.as_deref().map(read_plan).transpose()?;
    let job = load(&options.file, &options.target)?;
    let mut allocs = if options.alloc.is_empty() {
        Alloc::usual()
    } else {
        options.alloc.clone()
    };
    allocs.extend(plan.map(|plan| Alloc::Planned(Arc::new(plan))));
    let report =
        progress::of_replays(|shown| job.replay_watched(&allocs, !options.no_smallest, shown));
    let reply = Reply::new(form, answer(&report), &report, |report| {
        text(report, options)
    });
    Ok(reply?)
}

/// Reads a plan for tonnage's allocator.
fn read_plan(path: &Path) -> Result<AllocatorPlan> {
    let hint = "`tonnage plan RECORDING --for-runtime -o FILE` makes one";
    let file = File::open(path);
    let file = file
        .map_err(|error| explained(&error, hint).context(format!("cannot open {}", named(path))))?;
    let mut text = String::new();
    let read = file.take(LONGEST_PLAN).read_to_string(&mut text);
    read.map_err(|error| explained(&error, hint).context(format!("cannot read {}", named(path))))?;
    let plan = text.parse();
    plan.map_err(|error: AllocatorPlanError| {
        explained(&error, hint).context(format!("{} is not a plan", named(path)))
    })
}

/// Reads a recording for a device.
pub(crate) fn load(file: &Path, target: &Target) -> Result<Job> {
    let recording = Recording::open(file)?;
    let options = on(target)?;
    tell_of_the_whole(&recording);
    Job::load(|| recording.furthest(), &options).map_err(|error| match error {
        ReplayError::Read(error) => unreadable_trace(file, &error),
        ReplayError::NoRequests => hinted(
            format!("{} shows no request for device memory", named(file)),
            "`tonnage info` prints its contents",
        ),
        ReplayError::NoRoom { context, capacity } => hinted(
            format!(
                "a context of {} does not fit on a device of {}",
                bytes(context),
                bytes(capacity)
            ),
            "give a larger --capacity or a smaller --context",
        ),
        error => explained(&error, "check the file; `tonnage info` prints its contents"),
    })
}

/// The requested device.
fn on(target: &Target) -> Result<Options> {
    let mut options = Options {
        capacity: target.capacity,
        context: target.context,
        torch_minor: target.torch,
    };
    if let Some(name) = &target.gpu {
        let catalogue = Catalogue::embedded();
        let gpu = super::gpus::find(&catalogue, name)?;
        options.capacity = options.capacity.or(Some(gpu.total_memory.value));
        options.context = options.context.or(Some(gpu.context.value));
    }
    Ok(options)
}

/// No, if a device is known and the recorded or the first requested setting does not fit on it.
fn answer(report: &Report) -> Answer {
    let completes = |track: &TrackReport| {
        let first = track.allocators.first();
        first.is_none_or(Replayed::completes)
    };
    if report.tracks.iter().all(completes) {
        Answer::Yes
    } else {
        Answer::No
    }
}

fn text(report: &Report, options: &ReplayOptions) -> String {
    let mut text = String::new();
    for track in report.tracks.iter().take(TRACKS) {
        headline(&mut text, track, report.tracks.len());
        table(&mut text, track);
        remarks(&mut text, track);
        text.push('\n');
    }
    if report.tracks.len() > TRACKS {
        let more = more_tracks(report.tracks.len() - TRACKS);
        let _ = writeln!(text, "{more}; --json has all of them");
    }
    if let Some(track) = report.tracks.first() {
        let next = format!("tonnage replay --search {}", options.file.display());
        if track.allocators.iter().any(|result| result.recorded) {
            let _ = write!(text, "{DIM}next{DIM:#}  {next}");
        }
    }
    text.trim_end().to_owned()
}

/// Which process and device, and what of.
fn headline(text: &mut String, track: &TrackReport, tracks: usize) {
    if tracks > 1 {
        let rank = track.rank.map(|rank| format!(", rank {rank}"));
        let _ = write!(
            text,
            "GPU {} of process {}{}: ",
            track.device,
            track.process,
            rank.unwrap_or_default()
        );
    }
    let device = if track.capacity_known {
        format!(
            "{} device, {} of it context",
            bytes(track.capacity),
            bytes(track.context)
        )
    } else {
        "a device that is large enough".to_owned()
    };
    let _ = writeln!(
        text,
        "{}, {} alive at most, on a {device}",
        plural(track.requests, "request"),
        bytes(track.peak_live),
        device = device.trim_start_matches("a ")
    );
}

/// The width of the first column.
const NAME: usize = 40;

fn table(text: &mut String, track: &TrackReport) {
    let _ = writeln!(
        text,
        "\n{:<NAME$} {:>12} {:>12} {:>12} {:>12} {:>8} {:>7}  ",
        "allocator", "reserved", "cached", "free block", "smallest GPU", "calls", "retries"
    );
    for result in &track.allocators {
        row(text, result);
    }
}

fn row(text: &mut String, result: &Replayed) {
    let dash = || "-".to_owned();
    let (smallest, odd) = result.smallest.map_or_else(
        || (dash(), ""),
        |found| (bytes(found.bytes), if found.monotone { "" } else { "*" }),
    );
    let _ = write!(
        text,
        "{:<NAME$} {:>12} {:>12} {:>12} {:>12} {:>8} {:>7}  ",
        shortened(&result.allocator),
        bytes(result.peak_reserved),
        bytes(result.cached_at_peak),
        result.largest_free_at_peak.map_or_else(dash, bytes),
        format!("{smallest}{odd}"),
        count(result.driver.sum()),
        count(result.retries),
    );
    let _ = match result.fidelity {
        Fidelity::Exact => write!(text, "exact"),
        Fidelity::Assumed => write!(
            text,
            "{WARN}assumed{WARN:#}: PyTorch is newer than the newest verified release"
        ),
        Fidelity::InStep => write!(text, "exact if streams keep up"),
        Fidelity::Approximation => write!(text, "{WARN}approximation{WARN:#}"),
        Fidelity::Offline => write!(text, "{WARN}offline placement{WARN:#}, no allocator"),
    };
    let _ = writeln!(text, "{}", if result.recorded { ", recorded" } else { "" });
    outcome(text, &result.outcome);
    if let Some(own) = &result.own {
        own_counts(text, own);
    }
    if result.served_failures > 0 {
        let _ = writeln!(
            text,
            "    {WARN}{} that failed when recorded would be served; what the program does then is not known{WARN:#}",
            plural(result.served_failures, "request")
        );
    }
    for note in &result.undefined {
        let _ = writeln!(text, "    {WARN}not certain{WARN:#}: {note}");
    }
}

/// The actions of tonnage's own allocator to get there.
fn own_counts(text: &mut String, own: &OwnCounts) {
    let moved = match own.pages_moved {
        0 => "no page was moved".to_owned(),
        pages => format!("{} moved", plural(pages, "page")),
    };
    let Some(plan) = &own.plan else {
        let _ = writeln!(text, "    {DIM}{moved}{DIM:#}");
        return;
    };
    let PlanFollowed { requests, hits, .. } = *plan;
    // Rounded down: all of them and nothing else is 100 %.
    let percent = (hits * 1000).checked_div(requests).unwrap_or(0) as f64 / 10.0;
    let _ = writeln!(
        text,
        "    {DIM}{} of {} got their places ({percent:.1} %), {moved}{DIM:#}",
        count(hits),
        plural(requests, "request"),
    );
    if let Some(first) = &plan.divergence {
        let why = if first.occupied {
            "its place was taken"
        } else {
            "the plan does not have it"
        };
        let _ = writeln!(
            text,
            "    {DIM}the first that did not: request {} ({}), {}: {why}{DIM:#}",
            count(first.request),
            bytes(first.bytes),
            match first.step {
                0 => "before the first step".to_owned(),
                step => format!("in step {}", count(step)),
            },
        );
    }
}

fn outcome(text: &mut String, outcome: &Outcome) {
    let _ = match outcome {
        Outcome::Completes => Ok(()),
        Outcome::OutOfMemory {
            row: Some(row),
            request,
            requested,
            free,
        } => writeln!(
            text,
            "    {BAD}out of memory{BAD:#} at request {} (row {}): {} requested, {} free",
            count(*request),
            count(*row),
            bytes(*requested),
            bytes(*free)
        ),
        Outcome::OutOfMemory {
            requested, free, ..
        } => writeln!(
            text,
            "    {BAD}out of memory{BAD:#} before the recording begins: {} was alive then, {} free",
            bytes(*requested),
            bytes(*free)
        ),
        Outcome::OthersOutOfMemory {
            row,
            request,
            requested,
            free,
        } => writeln!(
            text,
            "    {BAD}another library out of memory{BAD:#} after request {} (row {}): {} requested, {} free",
            count(*request),
            count(*row),
            bytes(*requested),
            bytes(*free)
        ),
        Outcome::Undefined { row, reason } => writeln!(
            text,
            "    {WARN}stopped{WARN:#} at row {}: {reason}",
            count(row.unwrap_or(0))
        ),
    };
}

/// The qualifications of the figures: the comparison with the recording, assumptions, gaps.
fn remarks(text: &mut String, track: &TrackReport) {
    let comparison = track
        .allocators
        .iter()
        .find_map(|result| result.comparison.as_ref());
    text.push('\n');
    if let Some(comparison) = comparison {
        let _ = writeln!(text, "  {}", compared(comparison));
    }
    let odd = |result: &Replayed| result.smallest.is_some_and(|found| !found.monotone);
    if track.allocators.iter().any(odd) {
        let _ = writeln!(
            text,
            "  * completes on this device, but not on every larger one"
        );
    }
    track_remarks(text, track);
}

/// Assumptions and gaps.
pub(crate) fn track_remarks(text: &mut String, track: &TrackReport) {
    for assumption in &track.assumptions {
        let _ = writeln!(text, "  {DIM}assumed{DIM:#}: {}", assumed(assumption));
    }
    for gap in gaps(&track.gaps) {
        let _ = writeln!(text, "  {WARN}passed over{WARN:#}: {gap}");
    }
}

fn compared(comparison: &Comparison) -> String {
    let Comparison {
        equal,
        events,
        difference,
        incomparable_from,
        retries,
        bare,
        final_state,
        ..
    } = comparison;
    let retried = match retries {
        0 => String::new(),
        retries => format!(
            ", {} among them",
            plural(*retries, "retry that gave memory back")
        ),
    };
    let state = match final_state {
        None => "",
        Some(true) => ", and so do the segments and blocks at the end",
        Some(false) => {
            return format!(
                "{BAD}not reproduced{BAD:#}: all {} events come out of the replay, but other blocks at the end",
                count(*equal)
            );
        }
    };
    let bare = match bare {
        0 => String::new(),
        bare => format!(" ({} of them known by their block only)", count(*bare)),
    };
    match (difference, incomparable_from) {
        (None, None) => format!(
            "{GOOD}reproduced{GOOD:#}: all {} recorded events{bare} come out of the replay{state}{retried}",
            count(*equal)
        ),
        (None, Some(row)) => format!(
            "{GOOD}reproduced{GOOD:#}: {} of {} recorded events; from row {} on requests are not known{retried}",
            count(*equal),
            count(*events),
            count(*row)
        ),
        (Some(difference), _) => format!(
            "{BAD}not reproduced{BAD:#}: after {} of {} events, at row {}, recorded {} but replayed {}",
            count(*equal),
            count(*events),
            count(difference.row),
            describe_seen(difference.recorded.as_ref()),
            describe_seen(difference.replayed.as_ref())
        ),
    }
}

fn describe_seen(seen: Option<&Seen>) -> String {
    seen.map_or_else(
        || "nothing".to_owned(),
        |seen| {
            format!(
                "{} of {} bytes at {:#x}",
                seen.action, seen.size, seen.address
            )
        },
    )
}

fn assumed(assumption: &Assumption) -> String {
    match assumption {
        Assumption::Start {
            blocks,
            bytes: size,
            segments,
            adopted,
            ambiguous,
        } => {
            let how = if *adopted {
                "taken over as they were under the recorded setting, in the order of their addresses, and requested first under others and in the search for the smallest device"
            } else {
                "requested first, in the order of their addresses"
            };
            let unsure = match ambiguous {
                0 => String::new(),
                count => format!("; the exact size of {count} is not in the recording"),
            };
            format!(
                "the recording begins with {} ({}) alive in {}; they are {how}{unsure}",
                plural(*blocks, "block"),
                bytes(*size),
                plural(*segments, "segment")
            )
        }
        Assumption::Capacity { .. } => {
            "a device that is large enough, because the recording does not name one; --gpu does"
                .to_owned()
        }
        Assumption::NoContext => {
            "no context, because its size is not known; --gpu or --context gives it".to_owned()
        }
        Assumption::Torch { said, minor } => {
            format!(
                "torch 2.{minor}; the recording has {}; --torch names another",
                unsaid(said)
            )
        }
        Assumption::Settings => {
            "PyTorch's default settings, because the recording has none".to_owned()
        }
        Assumption::AddressOrder { ascending } => format!(
            "the driver's addresses {}, as in the recording",
            if *ascending { "ascend" } else { "descend" }
        ),
        Assumption::EmptyCache { calls } => format!(
            "{} of empty_cache() or the end of a pool, which no retry explains; kept under every setting",
            plural(*calls, "call")
        ),
        Assumption::SizesOnly { blocks } => format!(
            "the size of a block is the requested size, in {} without a request",
            plural(*blocks, "block")
        ),
        Assumption::CutOff => {
            "nothing after the last whole batch, because the file was cut off".to_owned()
        }
        Assumption::SharedDevice { processes } => format!(
            "nothing held by the other {} of the same device",
            plural(processes - 1, "process")
        ),
    }
}

fn unsaid(text: &str) -> &str {
    if text.is_empty() { "nothing" } else { text }
}

fn gaps(gaps: &Gaps) -> Vec<String> {
    let all = [
        (
            gaps.unknown_completions,
            "free",
            "of a block that was not handed out, or twice",
        ),
        (
            gaps.overlapping,
            "block",
            "handed out where one was alive; the older one is taken as freed",
        ),
        (
            gaps.impossible_requests,
            "request",
            "of no bytes, or of more than any allocator serves",
        ),
        (
            gaps.untold_streams,
            "request",
            "on more streams and pools than can be distinguished",
        ),
        (
            gaps.contradicted_blocks,
            "block",
            "of the final state that contradicts the rows",
        ),
    ];
    all.into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, noun, what)| format!("{} {what}", plural(number, noun)))
        .collect()
}

/// How many processes and devices more there are, in words.
pub(crate) fn more_tracks(number: usize) -> String {
    match number {
        1 => "1 more process or device".to_owned(),
        many => format!("{} more processes and devices", count(many as u64)),
    }
}

/// A name that fits the column: the end is cut, not the table.
fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let kept: String = name.chars().take(NAME - 1).collect();
    format!("{kept}…")
}
