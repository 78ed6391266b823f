// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict in words: a dozen lines, the answer first, the next command last. `--verbose` prints every figure.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::Path;

use tonnage_analysis::verdict::{
    DeviceUse, Exception, FailedProcess, Need, Outcome, Place, SideEffects, Verdict, ended,
};
use tonnage_recording::facts::{self, FileChanges};
use tonnage_run::changes;
use tonnage_run::collect::Collected;
use tonnage_text::named_from;

use super::table::{OTHERS, row};
use super::waits::{hangs, waits};
use crate::commands::explain::Cause;
use crate::commands::headroom::{distance, evidence};
use crate::commands::recording::plain;
use crate::output::{BAD, DIM, GOOD, HINT, WARN, bytes, count, plural, ranks_named};

/// How many holders the verbose text lists; the JSON has more.
const HOLDERS: usize = 5;
/// How many holders the text lists if it has room for them.
const TOP_HOLDERS: usize = 3;
/// Lines of an answer for a job that fits, and for one that does not.
const LINES: (usize, usize) = (12, 25);
/// How many GPUs that are large enough the text lists.
const GPUS: usize = 5;
/// How many places of a change the text lists.
const PLACES: usize = 3;
/// How many suppressed actions and hosts are named.
const SIDE_EFFECTS: usize = 4;
/// How many names of functions that are not modelled the text lists.
const NAMES: usize = 4;

/// Settings of the text.
pub(crate) struct Shown<'a> {
    /// The recording, if there is one.
    pub(crate) output: Option<&'a Path>,
    /// The GPU and its source, where the option does not name it.
    pub(crate) gpu: Option<&'a str>,
    /// The directory that files of the job are named from.
    pub(crate) here: &'a Path,
    /// Whether every figure is printed.
    pub(crate) verbose: bool,
}

pub(crate) fn text(
    verdict: &Verdict,
    cause: Option<&Cause>,
    collected: &Collected,
    shown: &Shown<'_>,
) -> String {
    let &Shown {
        output,
        gpu,
        here,
        verbose,
    } = shown;
    let mut text = match verdict.exceptions.first() {
        Some(exception) if output.is_none() && verdict.outcome == Outcome::Failed => {
            before_gpu(verdict, exception, here)
        }
        _ => headline(verdict),
    };
    if let Some(cause) = cause {
        let _ = write!(text, "; {} ({})", cause.title, cause.code);
    }
    text.push('\n');
    if let Some(fix) = cause.and_then(|cause| cause.fix.as_ref()) {
        let folder = format!("{}/", here.display());
        row(&mut text, "fix", &plain(fix).replace(&folder, ""));
    }
    changes(&mut text, verdict);
    work(&mut text, verdict);
    if let Some(margin) = &verdict.margin {
        for (name, line) in distance(margin, verbose) {
            row(&mut text, name, &line);
        }
    }
    if let Some(need) = &verdict.need {
        needed(&mut text, verdict, need, verbose);
    }
    failed_processes(&mut text, verdict);
    let mut held_by = None;
    let mut rest = String::new();
    if verdict.outcome == Outcome::NotCovered {
        raised(&mut text, verdict, here);
        not_covered(&mut text, verdict, here);
    } else if let Some(device) = verdict.worst() {
        failure(&mut text, verdict, device, here);
        waits(&mut text, verdict, here);
        // The memory of a job that failed for another reason is not the answer.
        if verdict.outcome != Outcome::Failed {
            breakdown(&mut text, verdict, device, verbose);
            together(&mut text, verdict, device);
            // PyTorch keeps a history, with lines, only of its own allocator.
            held_by = Some(device).filter(|_| verdict.allocator.is_none());
            others(&mut rest, verdict, device);
        }
    } else if output.is_some() {
        raised(&mut text, verdict, here);
    }
    side_effects(&mut rest, &verdict.side_effects);
    gaps(&mut rest, verdict);
    if let Some(files) = &verdict.files {
        file_changes(&mut rest, files);
    }
    // A job that used no GPU ran on none.
    if let Some(gpu) = gpu.filter(|_| verdict.worst().is_some()) {
        row(&mut rest, "GPU", gpu);
    }
    let next = output.and_then(|output| next(verdict, output));
    // The next command names the recording, too.
    if let Some(output) = output.filter(|_| verbose || next.is_none()) {
        row(
            &mut rest,
            "recording",
            &format!(
                "{} ({}{})",
                output.display(),
                plural(collected.events, "event"),
                if collected.processes > 1 {
                    format!(" of {} processes", collected.processes)
                } else {
                    String::new()
                }
            ),
        );
    }
    if let Some(next) = next {
        row(&mut rest, "next", &format!("{HINT}{next}{HINT:#}"));
    }
    if let Some(device) = held_by {
        let most = match verdict.outcome {
            Outcome::DoesNotFit => LINES.1,
            _ => LINES.0,
        };
        // The title is a line, too.
        let room = most.saturating_sub(text.lines().count() + rest.lines().count() + 1);
        let shown = if verbose {
            HOLDERS
        } else {
            room.clamp(1, TOP_HOLDERS)
        };
        holders(&mut text, device, here, shown);
    }
    text.push_str(&rest);
    text.trim_end().to_owned()
}

/// The writes of the job that were discarded, and those that were refused.
fn file_changes(text: &mut String, files: &FileChanges) {
    discarded(text, files);
    if let [first, ..] = files.refused_at.as_slice() {
        let more = match files.refused {
            1 => String::new(),
            all => format!(" and {} more", count(all - 1)),
        };
        let line = format!(
            "changes of {}{more}: the preloaded library cannot redirect them",
            plain(first)
        );
        row(text, "refused", &line);
    }
}

fn discarded(text: &mut String, files: &FileChanges) {
    let counts = [
        (files.new, "new"),
        (files.changed, "changed"),
        (files.deleted, "deleted"),
    ];
    let parts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(number, what)| format!("{} {what}", count(*number)))
        .collect();
    if parts.is_empty() {
        return;
    }
    let fate = match &files.kept_in {
        Some(folder) => format!("copied to {}", plain(folder)),
        None => "discarded".to_owned(),
    };
    let mut line = format!("{} by the job: {fate}", parts.join(", "));
    let existing = files.changed + files.deleted;
    if let [first, ..] = files.unchanged.as_slice() {
        let more = match existing {
            1 => String::new(),
            _ => format!(" and {} more", count(existing - 1)),
        };
        let verb = if existing == 1 { "is" } else { "are" };
        let _ = write!(line, "; {}{more} {verb} unchanged", plain(first));
    }
    row(text, "files", &line);
}

/// A script that failed before it used a GPU, in one line.
fn before_gpu(verdict: &Verdict, exception: &Exception, here: &Path) -> String {
    let place = exception.place.as_ref().map_or_else(String::new, |place| {
        format!(" ({}:{})", named_from(&place.file, here), place.line)
    });
    let message = exception.message.lines().next().unwrap_or_default();
    let message = if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    };
    let kind = kind(exception);
    let rank = exception
        .rank
        .map_or_else(String::new, |rank| format!(" on rank {rank}"));
    let mut text =
        format!("{BAD}the script failed{BAD:#} before using the GPU: {kind}{rank}{place}{message}");
    more_gpus(&mut text, verdict, exception);
    text
}

/// Uploads that were suppressed, and hosts that the job connected to.
fn side_effects(text: &mut String, effects: &SideEffects) {
    let listed = |all: Vec<String>| {
        let more = all.len().saturating_sub(SIDE_EFFECTS);
        let mut listed = all[..all.len() - more].join(", ");
        if more > 0 {
            let _ = write!(listed, " and {more} more");
        }
        listed
    };
    if !effects.suppressed.is_empty() {
        let actions = effects.suppressed.iter().map(|it| {
            let times = match it.count {
                1 => String::new(),
                count => format!(" ×{count}"),
            };
            format!("{} ({}{times})", it.library, it.action)
        });
        let actions = listed(actions.collect());
        row(
            text,
            "not sent",
            &format!("{actions}; --side-effects sends"),
        );
    }
    if !effects.hosts.is_empty() {
        row(text, "connected to", &listed(effects.hosts.clone()));
    }
    for library in &effects.unprotected {
        let what = format!("{WARN}uploads of this library were not suppressed{WARN:#}: {library}");
        row(text, "unprotected", &what);
    }
}

/// The changes in the program: the answer is about the changed one.
fn changes(text: &mut String, verdict: &Verdict) {
    for change in &verdict.changes {
        let title = changes::find(&change.name).map_or(&change.name, |known| &known.title);
        let places: Vec<&str> = change.places.iter().take(PLACES).map(|at| &**at).collect();
        let more = change.places.len().saturating_sub(PLACES);
        let mut at = places.join(", ");
        if more > 0 {
            let _ = write!(at, " and {more} more");
        }
        if change.applied {
            row(text, "with", &format!("{GOOD}{title}{GOOD:#}, at {at}"));
            for line in &change.lines {
                row(text, "", line);
            }
        } else {
            let why = change.why.as_deref().unwrap_or("it is not known why");
            row(
                text,
                "without",
                &format!("{WARN}{title}{WARN:#}, not changed: {why}"),
            );
        }
    }
}

/// The GPU work of the changed program, so that changes can be compared.
fn work(text: &mut String, verdict: &Verdict) {
    let Some(costs) = verdict.costs.filter(|_| !verdict.changes.is_empty()) else {
        return;
    };
    let (name, cost) = match costs.per_step {
        Some(cost) => ("each step", cost),
        None => ("in all", costs.total),
    };
    let uncounted = match cost.uncounted {
        0 => String::new(),
        calls => format!(
            "; not counted: what {} calls of cuDNN compute",
            count(calls)
        ),
    };
    row(
        text,
        name,
        &format!(
            "{} in matrix products, {} to the GPU, {} to the host, {} kernels (counted){uncounted}",
            operations(cost.flops()),
            bytes(cost.to_device),
            bytes(cost.to_host),
            count(cost.launches),
        ),
    );
}

/// Floating-point operations, with three digits.
fn operations(count: u64) -> String {
    let units = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{count} FLOP");
    }
    format!("{value:.2} {}", units[unit])
}

fn headline(verdict: &Verdict) -> String {
    let size = size(verdict);
    let machine = match (&verdict.ranks_run, verdict.gpu_count) {
        // The sentence names the rank that failed.
        (Some(_), _) if verdict.outcome == Outcome::Failed => {
            format!("{} ({size} each)", verdict.gpu_name)
        }
        (None, 1) => format!("{} ({size})", verdict.gpu_name),
        _ => format!("{} ({size} each)", where_run(verdict)),
    };
    if verdict.gpu_name.is_empty() && verdict.outcome == Outcome::Failed {
        return format!(
            "{BAD}failed{BAD:#} without using a GPU: {}",
            failed(verdict)
        );
    }
    if verdict.is_measured() {
        return ran(verdict, &machine);
    }
    match verdict.outcome {
        Outcome::Fits => fits(verdict),
        Outcome::Uncertain => uncertain(verdict),
        Outcome::DoesNotFit if is_own_limit(verdict) => {
            let need = verdict.need.as_ref().filter(|need| need.known != "unknown");
            let need = need.map_or_else(String::new, |need| {
                let least = if need.complete { "" } else { "at least " };
                format!(": needs {least}{}", bytes(need.bytes))
            });
            format!("{BAD}does not fit{BAD:#} in what the script allows itself of {machine}{need}")
        }
        Outcome::DoesNotFit => format!(
            "{BAD}does not fit{BAD:#} on {machine}{}",
            short(verdict.need.as_ref())
        ),
        Outcome::Interrupted => format!(
            "{WARN}interrupted{WARN:#} on {machine}: the script {}; {}, the rest is not known",
            ended(&verdict.ending),
            if verdict.devices_total.is_empty() {
                "it had not used a GPU until then".to_owned()
            } else {
                format!("{} of headroom until then", bytes(verdict.spare()))
            }
        ),
        Outcome::Failed if hangs(verdict) => format!(
            "{BAD}hangs{BAD:#} on {machine}: {}; tonnage ended the job",
            match verdict.deadlocks.as_slice() {
                [one] => format!("rank {} waits forever", one.rank),
                many => format!(
                    "{} ranks wait forever, rank {} first",
                    many.len(),
                    many[0].rank
                ),
            }
        ),
        Outcome::Failed => format!(
            "{BAD}failed{BAD:#} on {machine}; GPU memory did not run out: {}{}",
            failed(verdict),
            verdict
                .host_out_of_memory
                .as_ref()
                .map_or_else(String::new, |how| format!("; {how}")),
        ),
        Outcome::NoDevice => "the command ended without using a GPU".to_owned(),
        Outcome::NotCovered => {
            let mut names: Vec<&str> = verdict.foreign.iter().map(|user| &*user.name).collect();
            names.dedup();
            let names = names.join(" and ");
            match verdict.exceptions.first() {
                Some(exception) => format!(
                    "{BAD}no verdict{BAD:#}: the script ended with {} before PyTorch used a GPU; it also uses CUDA \
                     through {names}",
                    kind(exception)
                ),
                None => format!(
                    "{BAD}no verdict{BAD:#}: this program uses CUDA through {names}, and PyTorch did not use a GPU"
                ),
            }
        }
    }
}

/// A process that failed, by its rank or its program, and how it ended.
fn describe_failed(verdict: &Verdict, process: &FailedProcess) -> String {
    let mut how = ended(&process.ending);
    if process.out_of_memory {
        how = format!("ran out of GPU memory and {how}");
    }
    let command = &process.command;
    match (process.rank, process.run.zip(process.runs)) {
        (Some(rank), _) => {
            let of = verdict.ranks_run.as_ref();
            let of = of.map_or_else(String::new, |run| {
                format!(" of {}", count(u64::from(run.world_size)))
            });
            format!("rank {rank}{of} {how}")
        }
        (None, Some((run, runs))) => {
            let mut words = command.split(' ');
            let first = words.next().unwrap_or_default();
            let program = words.find(|word| !word.starts_with('-')).unwrap_or(first);
            format!("run {run} of {runs} of {program} {how} ({command})")
        }
        (None, None) => format!("process {} ({command}) {how}", process.process_id),
    }
}

/// Which process failed, and how.
fn failed(verdict: &Verdict) -> String {
    // The command is named where no rank is, and nothing is left out.
    let is_named = |process: &&FailedProcess| {
        process.rank.is_some() || process.ending != verdict.ending && verdict.ending == "exit 0"
    };
    match verdict.failed_processes.first().filter(is_named) {
        Some(process) => describe_failed(verdict, process),
        None => format!("the script {}", ended(&verdict.ending)),
    }
}

/// The processes that failed, beside the one that the first line names.
fn failed_processes(text: &mut String, verdict: &Verdict) {
    if !matches!(verdict.outcome, Outcome::Failed | Outcome::DoesNotFit) {
        return;
    }
    let all = &verdict.failed_processes;
    // One process is the script itself, unless the command hid that it failed.
    if all.len() > 1 || (verdict.ending == "exit 0" && !all.is_empty()) {
        for process in all.iter().take(OTHERS) {
            row(text, "failed", &describe_failed(verdict, process));
        }
    }
    if all.len() > OTHERS {
        let more = plural((all.len() - OTHERS) as u64, "process");
        row(text, "", &format!("and {more} more, which --json lists"));
    }
    let hidden = verdict.outcome == Outcome::Failed || !all.is_empty();
    if verdict.ending == "exit 0" && hidden {
        row(text, "", "the command itself ended with exit code 0");
    }
}

/// How a job on a real GPU went.
fn ran(verdict: &Verdict, machine: &str) -> String {
    let free = bytes(verdict.spare());
    match verdict.outcome {
        Outcome::Fits | Outcome::Uncertain => {
            format!("{GOOD}recorded{GOOD:#} on {machine}, {free} free at the fullest moment")
        }
        Outcome::DoesNotFit => format!("{BAD}out of memory{BAD:#} on {machine}"),
        Outcome::Interrupted => format!(
            "{WARN}interrupted{WARN:#} on {machine}: the script {}; at least {free} free until then",
            ended(&verdict.ending)
        ),
        Outcome::Failed => format!(
            "{BAD}failed{BAD:#} on {machine}: the script {}; at least {free} free until then",
            ended(&verdict.ending)
        ),
        Outcome::NoDevice | Outcome::NotCovered => {
            "the command ended without using a GPU".to_owned()
        }
    }
}

/// The GPUs that were simulated, and the ranks that ran on them.
fn where_run(verdict: &Verdict) -> String {
    let name = &verdict.gpu_name;
    match (&verdict.ranks_run, verdict.gpu_count) {
        (Some(run), _) if run.ranks.len() == run.world_size as usize => {
            format!("{name}, all {} ranks", count(u64::from(run.world_size)))
        }
        (Some(run), _) => {
            let show = if run.ranks.len() == 1 {
                "shows"
            } else {
                "show"
            };
            let ranks = ranks_named(&run.ranks);
            let all = count(u64::from(run.world_size));
            format!("{name}, as far as {ranks} of {all} {show}")
        }
        (None, 1) => name.clone(),
        (None, number) => format!("{number} × {name}"),
    }
}

/// Memory of the GPU; a size that was given is not that of the GPU by this name.
fn size(verdict: &Verdict) -> String {
    let size = bytes(verdict.capacity.bytes);
    match verdict.capacity.known.as_str() {
        "given" => format!("set to {size}"),
        _ => size,
    }
}

/// The number that answers the question, beside that of the GPU.
fn lead(verdict: &Verdict) -> String {
    let each = match (&verdict.ranks_run, verdict.gpu_count) {
        (None, 1) => "",
        _ => " each",
    };
    let size = match verdict.capacity.known.as_str() {
        "given" => format!("{} (--capacity)", bytes(verdict.capacity.bytes)),
        _ => bytes(verdict.capacity.bytes),
    };
    let least = if verdict.incomplete.is_some() || verdict.stopped.is_some() {
        "at least "
    } else {
        ""
    };
    let smallest = verdict.margin.as_ref().and_then(|margin| margin.smallest);
    let number = if let Some(smallest) = smallest {
        format!("needs {least}{}", bytes(smallest))
    } else {
        // The cache of PyTorch is a part of it, so the job may need less.
        let most = verdict.devices_total.iter().map(|total| total.most_in_use);
        format!("uses {}", bytes(most.max().unwrap_or(0)))
    };
    format!("{}: {number} of {size}{each}", where_run(verdict))
}

fn fits(verdict: &Verdict) -> String {
    let caught = verdict.handled_ooms();
    if caught > 0 && verdict.stopped.is_none() && verdict.incomplete.is_none() {
        let times = plural(caught, "time");
        return format!(
            "{WARN}runs to its end{WARN:#} on {} ({}); it ran out of memory {times} and went on",
            where_run(verdict),
            size(verdict)
        );
    }
    let lead = lead(verdict);
    match &verdict.stopped {
        _ if verdict.incomplete.is_some() => {
            format!("{WARN}fits as far as it was recorded{WARN:#} on {lead}")
        }
        Some(stopped) => format!("{WARN}fits until it was stopped{WARN:#} {stopped} on {lead}"),
        None => format!("{GOOD}fits{GOOD:#} on {lead}"),
    }
}

/// A job that ran to its end and left less free than it must.
fn uncertain(verdict: &Verdict) -> String {
    let lead = lead(verdict);
    let Some(margin) = &verdict.margin else {
        return format!("{WARN}may not fit{WARN:#} on {lead}");
    };
    let left = bytes(margin.room);
    if margin.given {
        let kept = bytes(margin.kept);
        return format!(
            "{WARN}does not leave the margin free{WARN:#} on {lead}: {left} of headroom, --margin is {kept}"
        );
    }
    let word = if margin.room < margin.low() {
        "probably does not fit"
    } else {
        "probably fits"
    };
    format!(
        "{WARN}{word}{WARN:#} on {lead}: {left} of headroom, and CUDA overhead is {} to {}",
        bytes(margin.low()),
        bytes(margin.kept)
    )
}

/// By how much it does not fit, as far as that is known.
fn short(need: Option<&Need>) -> String {
    let Some(need) = need else {
        return String::new();
    };
    let least = if need.complete && need.known == "replayed" {
        ""
    } else {
        "at least "
    };
    if need.known == "unknown" {
        return ": the need is not known".to_owned();
    }
    if need.short == 0 {
        let packed = need.expandable.map_or_else(String::new, |less| {
            format!(", {} with expandable_segments:True", bytes(less))
        });
        return format!(": needs {least}{}{packed}", bytes(need.bytes));
    }
    // Where both round to the same figure, only the difference is informative.
    if need.short < need.bytes / 1000 {
        return format!(": needs {least}{} more", bytes(need.short));
    }
    format!(
        ": needs {least}{}, {} too much",
        bytes(need.bytes),
        bytes(need.short)
    )
}

/// Why there is no verdict, and what there can be one about.
fn not_covered(text: &mut String, verdict: &Verdict, here: &Path) {
    for user in &verdict.foreign {
        let library = named_from(&user.library, here);
        row(
            text,
            "because",
            &format!("{}; noticed by {library}", user.why()),
        );
    }
    row(
        text,
        "can do",
        "programs that use PyTorch, the shared CUDA runtime (libcudart.so) or the driver: every byte is counted",
    );
    row(
        text,
        "",
        "if this one also uses PyTorch, import torch first: the memory of PyTorch is counted, and the rest is named",
    );
}

/// How much the whole job takes.
fn needed(text: &mut String, verdict: &Verdict, need: &Need, verbose: bool) {
    if is_own_limit(verdict) {
        if need.known != "unknown" {
            let what = "without the limit that the script sets itself, which the GPU would hold";
            row(text, "needs", &format!("{}: {what}", bytes(need.bytes)));
        }
        return;
    }
    let how = evidence(need);
    row(text, "needs", &format!("{}: {how}", bytes(need.bytes)));
    if let Some(less) = need.expandable {
        row(
            text,
            "",
            &format!(
                "{} with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (replayed)",
                bytes(less)
            ),
        );
    }
    if !need.complete {
        let why = if need.ended.starts_with("exit ") || need.ended.starts_with("signal ") {
            format!("{} there", ended(&need.ended))
        } else {
            format!("was ended because {}", need.ended)
        };
        row(
            text,
            "",
            &format!("{WARN}or more{WARN:#}: run without a limit, the script {why}"),
        );
    }
    if verbose && need.above.times > 0 {
        row(
            text,
            "above",
            &format!(
                "{}, event {} to {} of {} without a limit",
                plural(need.above.times, "time"),
                count(need.above.first_event + 1),
                count(need.above.last_event + 1),
                count(need.above.events),
            ),
        );
    }
    if need.known != "unknown" && verdict.gpu_count == 1 && verdict.devices_total.len() == 1 {
        let names = match need.gpus.as_slice() {
            [] => "no GPU of the catalogue".to_owned(),
            all if all.len() <= GPUS => all.join(", "),
            all => format!("{}, …", all[..GPUS].join(", ")),
        };
        let title = if need.complete && need.known == "replayed" {
            "large enough"
        } else {
            "may suffice"
        };
        row(text, title, &names);
    }
}

fn at(place: &Place, here: &Path) -> String {
    format!(
        "{}:{} in {}",
        named_from(&place.file, here),
        place.line,
        place.function
    )
}

fn where_from(place: Option<&Place>, inside: Option<&Place>, here: &Path) -> String {
    let Some(place) = place else {
        return "no Python line (such as the backward pass)".to_owned();
    };
    let inside = inside.map(|inside| {
        format!(
            " {DIM}({}:{}){DIM:#}",
            named_from(&inside.file, here),
            inside.line
        )
    });
    format!("{}{}", at(place, here), inside.unwrap_or_default())
}

/// Whether it is the script's own limit that keeps the job from running, and not the GPU.
fn is_own_limit(verdict: &Verdict) -> bool {
    let refused = verdict
        .worst()
        .and_then(|device| device.out_of_memory.as_ref());
    let gpu_suffices = verdict.need.as_ref().is_none_or(|need| need.short == 0);
    refused.is_some_and(|oom| oom.own_limit) && gpu_suffices
}

fn failure(text: &mut String, verdict: &Verdict, device: &DeviceUse, here: &Path) {
    if let Some(oom) = &device.out_of_memory {
        let mut place = where_from(oom.place.as_ref(), oom.inside.as_ref(), here);
        if oom.place.is_none() {
            let raised = verdict.exceptions.iter().find_map(|e| e.place.as_ref());
            place = where_from(raised, None, here);
        }
        row(
            text,
            "requested",
            &match &oom.call {
                Some(call) => format!(
                    "{} with {} free, by {call}, outside PyTorch's allocator",
                    bytes(oom.requested),
                    bytes(oom.free)
                ),
                None => format!(
                    "{} with {} free, at {place}",
                    bytes(oom.requested),
                    bytes(oom.free)
                ),
            },
        );
        if oom.own_limit {
            let limit = "refused by PyTorch, which did not query the GPU: the script limits its own memory, as by \
                         set_per_process_memory_fraction";
            row(text, "", limit);
        }
    } else {
        raised(text, verdict, here);
    }
}

fn kind(exception: &Exception) -> &str {
    exception.kind.trim_start_matches("builtins.")
}

/// The message of an exception in a line. The exception of a worker stands at the end of its wrapper's message.
fn message_of(exception: &Exception) -> String {
    let mut lines = (exception.message.lines()).filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) if first.starts_with("Caught ") => format!("{first} {}", last.trim()),
        _ => first.to_owned(),
    }
}

/// The exception that ended a script which failed for another reason, or before it could be judged.
fn raised(text: &mut String, verdict: &Verdict, here: &Path) {
    let shown = matches!(verdict.outcome, Outcome::Failed | Outcome::NotCovered);
    if let (true, Some(exception)) = (shown, verdict.exceptions.first()) {
        let message = message_of(exception);
        let place = exception
            .place
            .as_ref()
            .map_or(String::new(), |place| format!(" at {}", at(place, here)));
        let message = if message.is_empty() {
            String::new()
        } else {
            format!(": {message}")
        };
        let rank = exception.rank;
        let rank = rank.map_or(String::new(), |rank| format!(" on rank {rank}"));
        let kind = kind(exception);
        row(text, "raised", &format!("{kind}{rank}{place}{message}"));
        text.truncate(text.trim_end().len());
        more_gpus(text, verdict, exception);
        text.push('\n');
    }
}

/// The next step of a script that uses a GPU which the machine does not have.
fn more_gpus(text: &mut String, verdict: &Verdict, exception: &Exception) {
    if exception.message.contains("invalid device ordinal") {
        let machine = plural(u64::from(verdict.gpu_count), "GPU");
        let hint = format!("the machine of this run has {machine}; --gpus N gives it more");
        let _ = write!(text, "\n  {:<12} {hint}", "");
    }
}

fn breakdown(text: &mut String, verdict: &Verdict, device: &DeviceUse, verbose: bool) {
    let peak = &device.at_peak;
    let when = format!(
        "{:.2} s after the first event, event {} of {}",
        device.peak.after_ns as f64 / 1e9,
        count(device.peak.event + 1),
        count(verdict.events),
    );
    let moment = if device.out_of_memory.is_some() {
        "at failure"
    } else {
        "peak"
    };
    let whose = match (device.rank, verdict.devices.len()) {
        (_, 1) => String::new(),
        (Some(rank), _) if verdict.ranks_run.is_some() => format!(" of rank {rank}"),
        (Some(rank), _) => format!(" on GPU {} (rank {rank})", device.device),
        (None, _) => format!(" on GPU {}", device.device),
    };
    // Where rows are missing, the largest moment may be one that is not there.
    let recorded = verdict.incomplete.is_some();
    let most = if recorded && device.out_of_memory.is_none() && device.peak_used > peak.used {
        let most = bytes(device.peak_used);
        format!(" of what was recorded ({most} in use at most)")
    } else {
        String::new()
    };
    row(
        text,
        moment,
        &format!("{}{whose}{most}, {when}", bytes(peak.used)),
    );
    let exact = match (recorded, verdict.assumes_sizes()) {
        (true, _) => "recorded",
        // PyTorch's history has the requested size; how far that was rounded follows from its rules.
        (false, _) if verdict.is_measured() => "computed",
        (false, true) => "assumed",
        (false, false) => "exact",
    };
    let mut part = |name: &str, value: u64, known: &str, what: &str| {
        let _ = writeln!(
            text,
            "    {name:<9} {:>11}  {DIM}{known:<8}{DIM:#} {what}",
            bytes(value)
        );
    };
    // A process that never used PyTorch's allocator has no figures of it.
    let is_torchs = device.peak_allocated > 0 || device.peak_reserved > 0;
    if is_torchs {
        part("allocated", peak.allocated, exact, "in PyTorch's blocks");
    }
    let own = verdict.allocator.as_deref() == Some(facts::TONNAGE);
    if device.reserved_known && is_torchs {
        let what = if own {
            "kept by tonnage's allocator"
        } else {
            "cached by PyTorch"
        };
        // How soon blocks that another stream used were free again is assumed.
        let known = match verdict.lag {
            Some(_) if exact == "exact" => "assumed",
            _ => exact,
        };
        part("cached", peak.cached, known, what);
    }
    let measured = verdict.is_measured();
    let context = if measured {
        "outside PyTorch when the device was first queried: CUDA's own and its libraries'"
    } else {
        "CUDA's own"
    };
    part("context", peak.context, &verdict.context.known, context);
    if measured {
        let what = "outside PyTorch since then: kernels, libraries, communication";
        part("other", peak.other, facts::MEASURED, what);
    } else if device.reserved_known && (verbose || peak.other > 0) {
        let what = if own {
            "outside tonnage's allocator"
        } else {
            "outside PyTorch's allocator"
        };
        part("other", peak.other, exact, what);
    } else if !device.reserved_known {
        part(
            "other",
            peak.cached + peak.other,
            exact,
            "cached by PyTorch or outside of it, which its history would show",
        );
    }
    if peak.managed > 0 {
        part(
            "managed",
            peak.managed,
            exact,
            "moves between host and device, no part of the sum",
        );
    }
    if peak.other_processes > 0 {
        let (known, what) = if measured {
            (facts::MEASURED, "in use by other processes at that moment")
        } else {
            let what = "in use by other processes of the run at that moment";
            (exact, what)
        };
        part("others", peak.other_processes, known, what);
    }
    // Where a figure is missing, the line gives the reason.
    if !is_torchs || (!verbose && device.reserved_known) {
        return;
    }
    let reserved = if device.reserved_known {
        let who = if own {
            "tonnage's allocator"
        } else {
            "PyTorch"
        };
        format!("{} reserved by {who}", bytes(device.peak_reserved))
    } else if device.hooked {
        "what PyTorch reserved is not known: the process ended before it handed over PyTorch's history (it was killed, \
         or crashed), or another allocator was set"
            .to_owned()
    } else {
        "what PyTorch reserved is not known: Python did not load tonnage's hook (-I, -E, -S)"
            .to_owned()
    };
    let allocated = bytes(device.peak_allocated);
    row(
        text,
        "at most",
        &format!("{allocated} allocated, {reserved}"),
    );
}

/// The memory that all processes on the shown GPU use together: the rest is free on it.
fn together(text: &mut String, verdict: &Verdict, device: &DeviceUse) {
    let total = verdict.total(device.device);
    let Some(total) = total.filter(|total| total.processes > 1) else {
        return;
    };
    if device.out_of_memory.is_some() || total.most_in_use <= device.at_peak.used {
        return;
    }
    let at_once = if total.exact {
        "at one time"
    } else {
        "if they run at the same time"
    };
    row(
        text,
        "together",
        &format!(
            "{} in use on GPU {} at most by its {} processes {at_once}",
            bytes(total.most_in_use),
            device.device,
            total.processes
        ),
    );
}

fn holders(text: &mut String, device: &DeviceUse, here: &Path, shown: usize) {
    if device.holders.is_empty() {
        return;
    }
    text.push_str("  held by\n");
    for holder in device.holders.iter().take(shown) {
        let blocks = plural(holder.blocks, "block");
        let place = if holder.place.is_none() && !device.reserved_known {
            "lines are not known, as PyTorch's history is missing".to_owned()
        } else {
            where_from(holder.place.as_ref(), holder.inside.as_ref(), here)
        };
        let size = bytes(holder.bytes);
        let _ = writeln!(text, "    {size:>11} {blocks:>13}  {place}");
    }
}

/// Puts ranks together whose figures are the same.
fn alike<'a>(devices: &[&'a DeviceUse]) -> Vec<Vec<&'a DeviceUse>> {
    let figures = |device: &DeviceUse| (device.peak_used, device.peak_allocated);
    let mut groups: Vec<Vec<&DeviceUse>> = Vec::new();
    for &device in devices {
        // Each on its own GPU, or all on the same.
        let lies_as_they_do = |group: &[&DeviceUse]| {
            let here = |one: &&DeviceUse| one.device == device.device;
            if group.len() > 1 && group[0].device == group[1].device {
                here(&group[0])
            } else {
                group.len() == 1 || !group.iter().any(here)
            }
        };
        let same = |group: &&mut Vec<&DeviceUse>| {
            let first = group[0];
            first.rank.is_some()
                && device.rank.is_some()
                && figures(first) == figures(device)
                && lies_as_they_do(group)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(device),
            None => groups.push(vec![device]),
        }
    }
    groups
}

fn processes_named(processes: &[u32]) -> String {
    let numbers: Vec<String> = processes.iter().map(u32::to_string).collect();
    let noun = if numbers.len() == 1 {
        "process"
    } else {
        "processes"
    };
    format!("{noun} {}", numbers.join(", "))
}

fn ranks_of(devices: &[&DeviceUse]) -> Option<Vec<u32>> {
    let ranks = devices.iter().map(|device| device.rank);
    let mut ranks: Vec<u32> = ranks.collect::<Option<_>>()?;
    ranks.sort_unstable();
    ranks.dedup();
    Some(ranks)
}

/// Whether several processes use the device.
fn is_shared(verdict: &Verdict, device: &DeviceUse) -> bool {
    let mut all = verdict.devices.iter();
    all.any(|other| other.device == device.device && other.process != device.process)
}

/// The other processes and devices, in a line each, equal ranks in one.
fn others(text: &mut String, verdict: &Verdict, shown: &DeviceUse) {
    let mut others: Vec<_> = verdict
        .devices
        .iter()
        .filter(|device| *device != shown)
        .collect();
    others.sort_by_key(|device| (Reverse(device.peak_used), device.device));
    let alike = alike(&others);
    // The fullest come first, and the emptiest is never left out.
    let left_out = if alike.len() > OTHERS {
        OTHERS - 1..alike.len() - 1
    } else {
        alike.len()..alike.len()
    };
    for (index, group) in alike.iter().enumerate() {
        if left_out.contains(&index) {
            if index == left_out.start {
                let left: usize = alike[left_out.clone()].iter().map(Vec::len).sum();
                let more = format!("and {left} between, by memory used, which --json lists");
                row(text, "", &more);
            }
            continue;
        }
        let device = group[0];
        // A rank may have had several processes.
        let is_of_rank = |one: &DeviceUse| {
            let mut all = verdict.devices.iter();
            one.rank.is_some()
                && all.any(|other| other.rank == one.rank && other.process != one.process)
        };
        let processes: Vec<u32> = group.iter().map(|one| one.process).collect();
        let processes = if group.iter().any(|one| is_of_rank(one)) {
            format!(" in {}", processes_named(&processes))
        } else {
            String::new()
        };
        let allocated = match device.peak_allocated {
            0 => String::new(),
            allocated => format!(", {} allocated", bytes(allocated)),
        };
        let (name, who) = match ranks_of(group) {
            Some(ranks) if group.len() > 1 => (
                if device.device == group[1].device {
                    format!("GPU {}", device.device)
                } else {
                    format!("{} GPUs", group.len())
                },
                format!("each ({})", ranks_named(&ranks)),
            ),
            // The numbers of GPUs are those of the machines that are simulated.
            Some(ranks) if verdict.ranks_run.is_some() => (ranks_named(&ranks), String::new()),
            Some(ranks) => (
                format!("GPU {}", device.device),
                format!("({})", ranks_named(&ranks)),
            ),
            // A row that is named by the GPU would seem to be all that is on it.
            None if is_shared(verdict, device) => (
                processes_named(&[device.process]),
                format!("on GPU {}", device.device),
            ),
            None => (
                format!("GPU {}", device.device),
                format!("(process {})", device.process),
            ),
        };
        let used = bytes(device.peak_used);
        let line = format!("{used} used at most{allocated} {who}");
        row(text, &name, &format!("{}{processes}", line.trim_end()));
    }
    let caught = verdict.handled_ooms();
    let refused: u64 = verdict.devices.iter().map(|device| device.refusals).sum();
    if caught > 0 {
        if let Some(after) = shown.after_ooms {
            row(
                text,
                "then",
                &format!(
                    "after the last time at most {} allocated, {} in use with what {} caches",
                    bytes(after.peak_allocated),
                    bytes(after.most_in_use),
                    if verdict.allocator.is_some() {
                        "the allocator"
                    } else {
                        "PyTorch"
                    }
                ),
            );
        }
    } else if verdict.completed() && refused > 0 && verdict.torch.is_empty() {
        let requests = plural(refused, "request that the program went on without");
        row(text, "refused", &format!("{WARN}{requests}{WARN:#}"));
    }
}

/// The reasons why the figures may be wrong.
fn gaps(text: &mut String, verdict: &Verdict) {
    if !verdict.unmodelled.is_empty() {
        let mut names: Vec<_> = verdict.unmodelled.iter().collect();
        names.sort_by_key(|function| std::cmp::Reverse(function.calls));
        let calls: u64 = names.iter().map(|function| function.calls).sum();
        let mut list: Vec<String> = names
            .iter()
            .take(NAMES)
            .map(|function| format!("{} ({})", function.name, count(function.calls)))
            .collect();
        if names.len() > NAMES {
            list.push(format!("{} more", names.len() - NAMES));
        }
        row(
            text,
            "not modelled",
            &format!(
                "{WARN}{}{WARN:#}: {}",
                plural(calls, "call"),
                list.join(", ")
            ),
        );
    }
    if let Some(from) = &verdict.incomplete {
        row(text, "incomplete", &format!("{WARN}{from}{WARN:#}"));
    }
    failures(text, verdict);
    for gap in &verdict.unknown {
        row(text, "not known", &format!("{WARN}{gap}{WARN:#}"));
    }
}

/// Functions of the hook that failed, in one line; the JSON has all of them.
fn failures(text: &mut String, verdict: &Verdict) {
    let Some(first) = verdict.hook_failures.first() else {
        return;
    };
    let counts = verdict.hook_failures.iter().map(|one| one.count);
    let times = counts.fold(0, u64::saturating_add);
    let message = first.message.lines().next().unwrap_or_default();
    row(
        text,
        "hook",
        &format!(
            "{WARN}{} failed {}{WARN:#} (first: {}: {}: {message})",
            plural(verdict.hook_failures.len() as u64, "function"),
            plural(times, "time"),
            first.function,
            first.error,
        ),
    );
}

/// The command that most people would type next: the one that prints why, and what would help.
fn next(verdict: &Verdict, output: &Path) -> Option<String> {
    match verdict.outcome {
        // The explanation follows, with its own next command.
        Outcome::DoesNotFit if verdict.is_measured() => None,
        Outcome::Fits | Outcome::Uncertain | Outcome::DoesNotFit => {
            Some(format!("tonnage explain {}", output.display()))
        }
        Outcome::Failed if verdict.worst().is_some() => Some(format!(
            "tonnage explain {} (memory until then)",
            output.display()
        )),
        Outcome::Interrupted | Outcome::Failed | Outcome::NoDevice | Outcome::NotCovered => None,
    }
}

/// A job that fits, for tests of other modules.
#[cfg(test)]
pub(crate) use self::tests::verdict as verdict_for_tests;

#[cfg(test)]
mod tests {
    use tonnage_analysis::verdict::{
        Above, AfterOoms, Breakdown, DeviceTotal, Holder, KnownBytes, Margin, Moment, OutOfMemory,
        RanksRun, SCHEMA_VERSION, Suppressed, Uncounted, Unmodelled,
    };

    use super::*;

    fn place(file: &str, line: u64, function: &str) -> Place {
        Place {
            file: file.to_owned(),
            line,
            function: function.to_owned(),
        }
    }

    fn device() -> DeviceUse {
        DeviceUse {
            peak: Moment {
                event: 1233,
                after_ns: 4_210_000_000,
            },
            at_peak: Breakdown {
                allocated: 30 << 30,
                cached: 1 << 30,
                context: 512 << 20,
                other: 0,
                used: (31 << 30) + (512 << 20),
                ..Breakdown::default()
            },
            peak_allocated: 30 << 30,
            peak_reserved: 31 << 30,
            reserved_known: true,
            hooked: true,
            peak_used: (31 << 30) + (512 << 20),
            holders: vec![
                Holder {
                    bytes: 20 << 30,
                    blocks: 1200,
                    place: Some(place("train.py", 12, "main")),
                    inside: Some(place(
                        "/v/lib/python3.11/site-packages/torch/a.py",
                        7,
                        "empty",
                    )),
                },
                Holder {
                    bytes: 10 << 30,
                    blocks: 1,
                    place: None,
                    inside: None,
                },
            ],
            events: 5000,
            ..DeviceUse::default()
        }
    }

    fn margin(room: u64) -> Margin {
        Margin {
            device: 0,
            least_free: (8 << 30) + (512 << 20),
            smallest: Some((40 << 30) - room),
            after_ooms: None,
            room,
            uncounted: vec![Uncounted {
                what: "kernel images".to_owned(),
                low: 50 << 20,
                high: 350 << 20,
                known: "seen".to_owned(),
            }],
            kept: 350 << 20,
            given: false,
            certain: room >= 350 << 20,
        }
    }

    pub(crate) fn verdict() -> Verdict {
        Verdict {
            schema_version: SCHEMA_VERSION,
            outcome: Outcome::Fits,
            command: "python train.py".to_owned(),
            ending: "exit 0".to_owned(),
            gpu: "test".to_owned(),
            gpu_name: "NVIDIA Test".to_owned(),
            gpu_count: 1,
            ranks_run: None,
            capacity: KnownBytes {
                bytes: 40 << 30,
                known: "read".to_owned(),
            },
            context: KnownBytes {
                bytes: 512 << 20,
                known: "assumed".to_owned(),
            },
            torch: "2.15.0".to_owned(),
            allocator: None,
            devices_total: vec![DeviceTotal {
                device: 0,
                capacity: 40 << 30,
                most_in_use: (31 << 30) + (512 << 20),
                least_free: (8 << 30) + (512 << 20),
                exact: true,
                processes: 1,
            }],
            devices: vec![device()],
            margin: Some(margin(9 << 30)),
            need: None,
            incomplete: None,
            exceptions: Vec::new(),
            unmodelled: Vec::new(),
            unknown_values: None,
            lag: None,
            changes: Vec::new(),
            costs: None,
            stopped: None,
            host_out_of_memory: None,
            failed_processes: Vec::new(),
            deadlocks: Vec::new(),
            foreign: Vec::new(),
            side_effects: SideEffects::default(),
            unknown_sizes: Vec::new(),
            files: None,
            hook_failures: Vec::new(),
            limitations: Vec::new(),
            unknown: Vec::new(),
            events: 5000,
        }
    }

    #[test]
    fn discarded_writes_are_one_line() {
        let line = |changes: &FileChanges| {
            let mut text = String::new();
            file_changes(&mut text, changes);
            text.trim().to_owned()
        };
        let mut changes = FileChanges::new(facts::Protection::Overlay);
        assert_eq!(line(&changes), "");
        changes.new = 1200;
        assert!(line(&changes).ends_with("1,200 new by the job: discarded"));
        changes.changed = 1;
        changes.unchanged = vec!["best.pt".to_owned()];
        let one = "1,200 new, 1 changed by the job: discarded; best.pt is unchanged";
        assert!(line(&changes).ends_with(one));
        changes.deleted = 2;
        changes.kept_in = Some("kept".to_owned());
        let all = "1,200 new, 1 changed, 2 deleted by the job: copied to kept; best.pt and 2 more are unchanged";
        assert!(line(&changes).ends_with(all));
        changes.refused = 2;
        changes.refused_at = vec!["pipe".to_owned(), "socket".to_owned()];
        let refused = "changes of pipe and 1 more: the preloaded library cannot redirect them";
        assert!(line(&changes).ends_with(refused));
    }

    #[test]
    fn side_effects_are_listed_in_a_line_each() {
        let mut verdict = verdict();
        assert!(!shown(&verdict).contains("not sent"));
        let action = |library: &str, action: &str, count| Suppressed {
            library: library.to_owned(),
            action: action.to_owned(),
            count,
        };
        verdict.side_effects = SideEffects {
            suppressed: vec![
                action("S3", "PUT bucket.example", 3),
                action("wandb", "run kept offline", 1),
            ],
            hosts: (0..6).map(|host| format!("host{host}:443")).collect(),
            unprotected: vec!["mlflow: AttributeError: x".to_owned()],
        };
        let text = shown(&verdict);
        assert!(
            text.contains(
                "S3 (PUT bucket.example ×3), wandb (run kept offline); --side-effects sends"
            ),
            "{text}"
        );
        assert!(text.contains("host3:443 and 2 more"), "{text}");
        assert!(text.contains("not suppressed: mlflow"), "{text}");
    }

    fn shown(verdict: &Verdict) -> String {
        answer(verdict, false)
    }

    fn answer(verdict: &Verdict, verbose: bool) -> String {
        let mut collected = Collected::default();
        (collected.processes, collected.events) = (1, 5000);
        let cause = (verdict.outcome == Outcome::DoesNotFit).then(|| Cause {
            code: "TN204",
            title: "the optimizer makes the peak",
            sentence: String::new(),
            fix: Some("use SGD at /job/train.py:3 (computed: the whole job then fits)".to_owned()),
        });
        let used = verdict.outcome != Outcome::Failed || !verdict.devices.is_empty();
        let settings = Shown {
            output: used.then_some(Path::new("train.tonnage")),
            gpu: None,
            here: Path::new("/job"),
            verbose,
        };
        let styled = text(verdict, cause.as_ref(), &collected, &settings);
        anstream::adapter::strip_str(&styled).to_string()
    }

    #[test]
    fn a_gpu_that_no_option_names_is_mentioned_with_its_source() {
        let gpu = "a100-80gb, named in pyproject.toml";
        let shown = |verdict: &Verdict| {
            let settings = Shown {
                output: None,
                gpu: Some(gpu),
                here: Path::new("/job"),
                verbose: false,
            };
            text(verdict, None, &Collected::default(), &settings)
        };
        let row = format!("  GPU          {gpu}");
        assert!(shown(&verdict()).contains(&row), "{}", shown(&verdict()));
        // A job that used no GPU ran on none.
        let idle = Verdict {
            outcome: Outcome::NoDevice,
            devices: Vec::new(),
            ..verdict()
        };
        assert!(!shown(&idle).contains("GPU          "));
    }

    #[test]
    fn ranks_with_the_same_figures_are_one_line() {
        let device = |rank: u32, used: u64| DeviceUse {
            rank: Some(rank),
            device: i32::try_from(rank).unwrap(),
            peak_used: used,
            ..DeviceUse::default()
        };
        let mut verdict = verdict();
        verdict.devices = vec![
            device(0, 3 << 30),
            device(3, 2 << 30),
            device(1, 2 << 30),
            device(2, 2 << 30),
            device(4, 1 << 30),
        ];
        let mut text = String::new();
        others(&mut text, &verdict, &verdict.devices[0]);
        assert!(
            text.contains("3 GPUs       2.00 GiB used at most each (ranks 1–3)\n"),
            "{text}"
        );
        assert!(
            text.contains("GPU 4        1.00 GiB used at most (rank 4)\n"),
            "{text}"
        );
        verdict.ranks_run = Some(RanksRun {
            world_size: 8,
            ranks: vec![0, 1, 2, 3, 4],
            differing: Vec::new(),
        });
        text.clear();
        others(&mut text, &verdict, &verdict.devices[0]);
        assert!(
            text.contains("rank 4       1.00 GiB used at most\n"),
            "{text}"
        );
    }

    #[test]
    fn a_run_that_fits() {
        insta::assert_snapshot!(shown(&verdict()));
        insta::assert_snapshot!("a_run_that_fits_verbose", answer(&verdict(), true));
    }

    #[test]
    fn an_answer_has_few_lines() {
        let mut verdict = verdict();
        let holder = verdict.devices[0].holders[0].clone();
        verdict.devices[0].holders = vec![holder; 8];
        let margin = verdict.margin.as_mut().unwrap();
        let part = margin.uncounted[0].clone();
        margin.uncounted.push(part);
        assert_eq!(shown(&verdict).lines().count(), LINES.0);
        let mut files = FileChanges::new(facts::Protection::Overlay);
        files.new = 3;
        verdict.files = Some(files);
        let text = shown(&verdict);
        assert_eq!(text.lines().count(), LINES.0, "{text}");
        assert!(text.contains("3 new by the job"), "{text}");
        assert!(answer(&verdict, true).lines().count() > LINES.0);
    }

    #[test]
    fn a_run_that_fits_narrowly() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::Uncertain;
        verdict.margin = Some(margin(287 << 20));
        insta::assert_snapshot!(shown(&verdict));
        verdict.margin = Some(margin(19 << 20));
        let text = shown(&verdict);
        assert!(
            text.starts_with("probably does not fit on NVIDIA Test: needs 39.98 GiB of 40.00 GiB"),
            "{text}"
        );
        let mut given = margin(400 << 20);
        (given.kept, given.given, given.certain) = (500 << 20, true, false);
        verdict.margin = Some(given);
        let text = shown(&verdict);
        let end = "400.00 MiB of headroom, --margin is 500.00 MiB";
        assert!(
            text.lines().next().is_some_and(|line| line.ends_with(end)),
            "{text}"
        );
    }

    #[test]
    fn a_run_that_handles_errors_of_memory() {
        let mut verdict = verdict();
        verdict.devices[0].ooms = 2;
        verdict.devices[0].after_ooms = Some(AfterOoms {
            most_in_use: 31 << 30,
            peak_allocated: 20 << 30,
        });
        let handled = |room: u64| Margin {
            smallest: None,
            after_ooms: Some((40 << 30) - room),
            ..margin(room)
        };
        verdict.margin = Some(handled(9 << 20));
        insta::assert_snapshot!(shown(&verdict));
    }

    #[test]
    fn a_run_that_does_not_fit() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::DoesNotFit;
        verdict.margin = None;
        verdict.need = Some(Need {
            device: 0,
            bytes: 78 << 30,
            known: "replayed".to_owned(),
            most_in_use: 80 << 30,
            expandable: Some((77 << 30) + (512 << 20)),
            least: 77 << 30,
            peak_allocated: 76 << 30,
            short: 38 << 30,
            complete: false,
            ended: "its peak had not grown for 42 s".to_owned(),
            above: Above {
                times: 2,
                first_event: 4999,
                last_event: 8999,
                events: 10000,
            },
            uncounted: 0,
            gpus: vec!["h100-80gb".to_owned(), "b200".to_owned()],
        });
        verdict.devices[0].out_of_memory = Some(OutOfMemory {
            requested: 9 << 30,
            free: 100 << 20,
            call: None,
            place: Some(place("train.py", 30, "step")),
            inside: None,
            own_limit: false,
        });
        verdict.unmodelled = vec![Unmodelled {
            name: "cudaFoo".to_owned(),
            calls: 1234,
        }];
        insta::assert_snapshot!(shown(&verdict));
    }

    #[test]
    fn a_limit_of_the_script_itself_is_told_from_a_full_gpu() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::DoesNotFit;
        verdict.margin = None;
        verdict.devices[0].out_of_memory = Some(OutOfMemory {
            requested: 256 << 20,
            free: 30 << 30,
            call: None,
            place: Some(place("train.py", 30, "step")),
            inside: None,
            own_limit: true,
        });
        let text = shown(&verdict);
        assert!(
            text.starts_with("does not fit in what the script allows itself of NVIDIA Test"),
            "{text}"
        );
        assert!(!text.contains("needs "), "{text}");
        assert!(text.contains("refused by PyTorch, which did not query the GPU"));
        verdict.need = Some(Need {
            device: 0,
            bytes: 78 << 30,
            known: "replayed".to_owned(),
            most_in_use: 80 << 30,
            expandable: None,
            least: 77 << 30,
            peak_allocated: 76 << 30,
            short: 38 << 30,
            complete: true,
            ended: "exit 0".to_owned(),
            above: Above::default(),
            uncounted: 0,
            gpus: Vec::new(),
        });
        let text = shown(&verdict);
        assert!(
            text.starts_with("does not fit on NVIDIA Test"),
            "without its limit the GPU would refuse it: {text}"
        );
    }

    #[test]
    fn a_run_that_failed_on_its_own() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::Failed;
        verdict.margin = None;
        verdict.ending = "exit 1".to_owned();
        verdict.exceptions = vec![Exception {
            kind: "builtins.ValueError".to_owned(),
            message: "first line\nsecond".to_owned(),
            place: Some(place("train.py", 3, "main")),
            rank: Some(1),
        }];
        verdict.unknown = vec!["the stacks of 2 allocations and frees".to_owned()];
        insta::assert_snapshot!(shown(&verdict));
    }

    #[test]
    fn a_run_that_asked_for_a_gpu_that_is_not_there() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::Failed;
        verdict.margin = None;
        verdict.devices.clear();
        verdict.exceptions = vec![Exception {
            kind: "torch.AcceleratorError".to_owned(),
            message: "CUDA error: invalid device ordinal".to_owned(),
            place: Some(place("train.py", 1, "<module>")),
            rank: None,
        }];
        let text = shown(&verdict);
        let hint = "the machine of this run has 1 GPU; --gpus N gives it more";
        assert!(text.contains(hint), "{text}");
    }

    #[test]
    fn a_run_that_failed_before_it_used_a_gpu() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::Failed;
        verdict.margin = None;
        verdict.ending = "exit 1".to_owned();
        verdict.devices.clear();
        verdict.exceptions = vec![Exception {
            kind: "builtins.ModuleNotFoundError".to_owned(),
            message: "No module named 'PIL'".to_owned(),
            place: Some(place("train.py", 1, "<module>")),
            rank: None,
        }];
        let text = shown(&verdict);
        let line = "the script failed before using the GPU: ModuleNotFoundError (train.py:1): No module named 'PIL'";
        assert_eq!(text, line);
    }

    #[test]
    fn a_script_that_failed_is_said_even_where_there_is_no_verdict() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::NotCovered;
        verdict.margin = None;
        verdict.ending = "exit 1".to_owned();
        verdict.devices.clear();
        verdict.foreign = vec![
            serde_json::from_str(
                r#"{"name":"driver.so","library":"/packages/driver.so","how":"runtime"}"#,
            )
            .expect("a user of a device"),
        ];
        verdict.exceptions = vec![Exception {
            kind: "builtins.AssertionError".to_owned(),
            message: String::new(),
            place: Some(place("deep_gemm/__init__.py", 12, "find_home")),
            rank: None,
        }];
        verdict.exceptions[0].message = "Caught RuntimeError in DataLoader worker process 0.\n\
             Original Traceback (most recent call last):\n  File \"data.py\", line 3\nRuntimeError: bad sample\n\n"
            .to_owned();
        let row =
            ": Caught RuntimeError in DataLoader worker process 0. RuntimeError: bad sample\n";
        assert!(shown(&verdict).contains(row), "{}", shown(&verdict));
        verdict.exceptions[0].message.clear();
        let text = shown(&verdict);
        let first = "no verdict: the script ended with AssertionError before PyTorch used a GPU; it also uses CUDA \
                     through driver.so";
        assert!(text.starts_with(first), "{text}");
        let row = "raised       AssertionError at deep_gemm/__init__.py:12 in find_home";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn a_run_without_a_history() {
        let mut verdict = verdict();
        verdict.devices[0].peak_reserved = 0;
        verdict.devices[0].reserved_known = false;
        for holder in &mut verdict.devices[0].holders {
            (holder.place, holder.inside) = (None, None);
        }
        insta::assert_snapshot!(shown(&verdict));
        verdict.devices[0].hooked = false;
        let text = shown(&verdict);
        assert!(text.contains("did not load tonnage's hook"), "{text}");
    }

    #[test]
    fn several_processes_and_devices() {
        let mut verdict = verdict();
        verdict.gpu_count = 2;
        verdict.devices[0].rank = Some(0);
        let mut other = device();
        (other.process, other.device, other.rank) = (1, 1, Some(1));
        other.ooms = 2;
        verdict.devices.push(other);
        insta::assert_snapshot!(shown(&verdict));
    }
    #[test]
    fn a_process_that_shares_its_device_is_named() {
        let mut verdict = verdict();
        let mut other = device();
        (other.process, other.peak_used) = (1, other.peak_used / 2);
        verdict.devices.push(other);
        let text = shown(&verdict);
        assert!(text.contains("\n  process 1    "), "{text}");
        assert!(text.contains("allocated on GPU 0\n"), "{text}");
        assert!(!text.contains("\n  GPU 0 "), "{text}");
    }
}
