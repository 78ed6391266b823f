// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict in words: a dozen lines, the answer first, the next command last.

use std::fmt::Write as _;
use std::path::Path;

use tonnage_analysis::facts;
use tonnage_analysis::holdings::named_from;
use tonnage_analysis::verdict::{
    DeviceUse, Exception, Margin, Need, Outcome, Place, Verdict, ended,
};
use tonnage_run::changes;
use tonnage_run::collect::Collected;

use super::waits::{hangs, waits};
use crate::commands::explain::Cause;
use crate::output::{BAD, DIM, GOOD, HINT, WARN, bytes, count, plural, ranks_named};

/// How many holders the text lists; the JSON has more.
const HOLDERS: usize = 5;
/// How many other processes and devices the text lists.
pub(super) const OTHERS: usize = 8;
/// How many GPUs that are large enough the text lists.
const GPUS: usize = 5;
/// How many places of a change the text lists.
const PLACES: usize = 3;
/// How many names of functions that are not modelled the text lists.
const NAMES: usize = 4;

/// `here` is the folder that files of the job are named from.
pub(crate) fn text(
    verdict: &Verdict,
    cause: Option<&Cause>,
    collected: &Collected,
    output: &Path,
    here: &Path,
) -> String {
    let mut text = headline(verdict);
    if let Some(cause) = cause {
        let _ = write!(text, "; {} ({})", cause.title, cause.code);
    }
    text.push('\n');
    changes(&mut text, verdict);
    work(&mut text, verdict);
    if let Some(margin) = &verdict.margin {
        distance(&mut text, margin);
    }
    if let Some(need) = &verdict.need {
        needed(&mut text, verdict, need);
    }
    if verdict.outcome == Outcome::NotCovered {
        raised(&mut text, verdict, here);
        not_covered(&mut text, verdict, here);
    } else if let Some(device) = verdict.worst() {
        failure(&mut text, verdict, device, here);
        waits(&mut text, verdict, here);
        breakdown(&mut text, verdict, device);
        together(&mut text, verdict, device);
        // PyTorch keeps a history, with lines, only of its own allocator.
        if verdict.allocator.is_none() {
            holders(&mut text, device, here);
        }
        others(&mut text, verdict, device);
    } else {
        raised(&mut text, verdict, here);
    }
    gaps(&mut text, verdict);
    row(
        &mut text,
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
    if let Some(next) = next(verdict, output) {
        row(&mut text, "next", &format!("{HINT}{next}{HINT:#}"));
    }
    text.trim_end().to_owned()
}

/// What was changed in the program: the answer is about the changed one.
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

/// What the changed program has the GPU do, so that changes can be compared.
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

pub(super) fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}

fn headline(verdict: &Verdict) -> String {
    // A size that was given is not that of the GPU by this name.
    let size = match verdict.capacity.known.as_str() {
        "given" => format!("set to {}", bytes(verdict.capacity.bytes)),
        _ => bytes(verdict.capacity.bytes),
    };
    let machine = match verdict.gpu_count {
        _ if let Some(run) = &verdict.ranks_run
            && run.ranks.len() == run.world_size as usize =>
        {
            format!(
                "{} ({size} each), all {} ranks",
                verdict.gpu_name, run.world_size
            )
        }
        _ if let Some(run) = &verdict.ranks_run => format!(
            "{} ({size} each), as far as {} of {} {}",
            verdict.gpu_name,
            ranks_named(&run.ranks),
            run.world_size,
            if run.ranks.len() == 1 {
                "shows"
            } else {
                "show"
            },
        ),
        1 => format!("{} ({size})", verdict.gpu_name),
        count => format!("{count} × {} ({size} each)", verdict.gpu_name),
    };
    if verdict.gpu_name.is_empty() && verdict.outcome == Outcome::Failed {
        return format!(
            "{BAD}failed{BAD:#} without using a GPU: the script {}",
            ended(&verdict.ending)
        );
    }
    if verdict.is_measured() {
        return ran(verdict, &machine);
    }
    match verdict.outcome {
        Outcome::Fits => fits(verdict, &machine),
        Outcome::DoesNotFit if is_own_limit(verdict) => {
            let need = verdict.need.as_ref().filter(|need| need.known != "unknown");
            let need = need.map_or_else(String::new, |need| {
                let least = if need.complete { "" } else { "at least " };
                format!(": it needs {least}{}", bytes(need.bytes))
            });
            format!("{BAD}does not fit{BAD:#} in what the script allows itself of {machine}{need}")
        }
        Outcome::DoesNotFit => format!(
            "{BAD}does not fit{BAD:#} on {machine}{}",
            short(verdict.need.as_ref())
        ),
        Outcome::Interrupted => format!(
            "{WARN}interrupted{WARN:#} on {machine}: the script {}; {} to spare until then, the rest is not known",
            ended(&verdict.ending),
            bytes(verdict.spare())
        ),
        Outcome::Failed if hangs(verdict) => format!(
            "{BAD}hangs{BAD:#} on {machine}: ranks wait for others for ever, and were ended"
        ),
        Outcome::Failed => format!(
            "{BAD}failed{BAD:#} on {machine}, not because of GPU memory: the script {}{}",
            ended(&verdict.ending),
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

/// How a job on a real GPU went.
fn ran(verdict: &Verdict, machine: &str) -> String {
    let free = bytes(verdict.spare());
    match verdict.outcome {
        Outcome::Fits => {
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

fn fits(verdict: &Verdict, machine: &str) -> String {
    let spare = bytes(verdict.spare());
    if verdict.incomplete.is_some() {
        return format!(
            "{WARN}fits as far as it was recorded{WARN:#} on {machine}, {spare} to spare"
        );
    }
    let caught = verdict.handled_ooms();
    if caught > 0 && verdict.stopped.is_none() {
        let times = plural(caught, "time");
        return format!(
            "{WARN}runs to its end{WARN:#} on {machine}; it ran out of memory {times}, which the script handled"
        );
    }
    match verdict.margin.as_ref().filter(|margin| !margin.certain) {
        Some(margin) if margin.room == 0 => {
            format!("{WARN}fits with nothing to spare{WARN:#} for what is not counted on {machine}")
        }
        Some(margin) => format!(
            "{WARN}fits only if{WARN:#} what is not counted takes less than {} of {machine}",
            bytes(margin.room)
        ),
        None => match &verdict.stopped {
            Some(stopped) => format!(
                "{WARN}fits until it was stopped{WARN:#} {stopped} on {machine}, {spare} to spare"
            ),
            None => format!("{GOOD}fits{GOOD:#} on {machine}, {spare} to spare"),
        },
    }
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
        return ": how much it needs is not known".to_owned();
    }
    if need.short == 0 {
        let packed = need.expandable.map_or_else(String::new, |less| {
            format!(", {} with expandable segments", bytes(less))
        });
        return format!(
            ": it needs {least}{} as its blocks are placed{packed}",
            bytes(need.bytes)
        );
    }
    // Where both round to the same figure, only the difference says something.
    if need.short < need.bytes / 1000 {
        return format!(": it needs {least}{} more", bytes(need.short));
    }
    format!(
        ": it needs {least}{}, {} too much",
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

/// How far from its limits the job is.
fn distance(text: &mut String, margin: &Margin) {
    if let Some(smallest) = margin.smallest {
        row(
            text,
            "smallest",
            &format!(
                "a GPU of {} serves all of its requests {DIM}(replayed){DIM:#}",
                bytes(smallest)
            ),
        );
    }
    if margin.after_ooms.is_some() {
        row(
            text,
            "smallest",
            "not known: where there is less memory, the script asks for less",
        );
    }
    if margin.uncounted.is_empty() {
        return;
    }
    let parts: Vec<String> = margin
        .uncounted
        .iter()
        .map(|part| {
            format!(
                "{} ({} to {} {})",
                part.what,
                bytes(part.low),
                bytes(part.high),
                part.known
            )
        })
        .collect();
    row(text, "not counted", &parts.join(", "));
}

/// How much the whole job takes.
fn needed(text: &mut String, verdict: &Verdict, need: &Need) {
    if is_own_limit(verdict) {
        if need.known != "unknown" {
            let what = "without the limit that the script sets itself, which the GPU would hold";
            row(text, "needs", &format!("{}: {what}", bytes(need.bytes)));
        }
        return;
    }
    let how = match need.known.as_str() {
        "replayed" => "the smallest larger GPU that serves all of its requests (replayed)",
        "unknown" => "not enough; how much is, the run without a limit did not show",
        _ => "without what PyTorch caches, which no replay could find here",
    };
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
    if need.above.times > 0 {
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
        return "no Python frame: PyTorch's own threads, such as the backward pass".to_owned();
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
            "asked for",
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
            let limit = "refused by PyTorch, which did not ask the GPU: the script limits its own memory, as by \
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

/// The exception that ended a script which failed for another reason, or before it could be judged.
fn raised(text: &mut String, verdict: &Verdict, here: &Path) {
    let shown = matches!(verdict.outcome, Outcome::Failed | Outcome::NotCovered);
    if let (true, Some(exception)) = (shown, verdict.exceptions.first()) {
        let message = exception.message.lines().next().unwrap_or_default();
        let place = exception
            .place
            .as_ref()
            .map_or(String::new(), |place| format!(" at {}", at(place, here)));
        let message = if message.is_empty() {
            String::new()
        } else {
            format!(": {message}")
        };
        let rank = exception.rank.as_ref();
        let rank = rank.map_or(String::new(), |rank| format!(" on rank {rank}"));
        let kind = kind(exception);
        row(text, "raised", &format!("{kind}{rank}{place}{message}"));
        if exception.message.contains("invalid device ordinal") {
            let machine = plural(u64::from(verdict.gpu_count), "GPU");
            row(
                text,
                "",
                &format!("the machine of this run has {machine}; --gpus N gives it more"),
            );
        }
    }
}

fn breakdown(text: &mut String, verdict: &Verdict, device: &DeviceUse) {
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
    let whose = match (&device.rank, verdict.devices.len()) {
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
        // PyTorch's history has what was asked for; how far that was rounded follows from its rules.
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
        "beside PyTorch when the device was first asked: CUDA's own and its libraries'"
    } else {
        "CUDA's own"
    };
    part("context", peak.context, &verdict.context.known, context);
    if measured {
        let what = "beside PyTorch since then: kernels, libraries, communication";
        part("other", peak.other, facts::MEASURED, what);
    } else if device.reserved_known {
        let what = if own {
            "outside tonnage's allocator"
        } else {
            "outside PyTorch's allocator"
        };
        part("other", peak.other, exact, what);
    } else {
        part(
            "other",
            peak.cached + peak.other,
            exact,
            "cached by PyTorch or outside of it, which its history would tell",
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
    if !is_torchs {
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

/// What all processes on the GPU that is shown have in use together: the room on it is what they leave.
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

fn holders(text: &mut String, device: &DeviceUse, here: &Path) {
    if device.holders.is_empty() {
        return;
    }
    text.push_str("  held by\n");
    for holder in device.holders.iter().take(HOLDERS) {
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
        // Each on a GPU of its own, or all on the same.
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

fn ranks_of(devices: &[&DeviceUse]) -> Option<Vec<u32>> {
    let ranks = devices
        .iter()
        .map(|device| device.rank.as_ref()?.parse().ok());
    let mut ranks: Vec<u32> = ranks.collect::<Option<_>>()?;
    ranks.sort_unstable();
    Some(ranks)
}

/// The other processes and devices, in a line each, equal ranks in one.
fn others(text: &mut String, verdict: &Verdict, shown: &DeviceUse) {
    let mut others: Vec<_> = verdict
        .devices
        .iter()
        .filter(|device| *device != shown)
        .collect();
    others.sort_by_key(|device| device.device);
    let alike = alike(&others);
    for group in alike.iter().take(OTHERS) {
        let device = group[0];
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
            None => (
                format!("GPU {}", device.device),
                format!("(process {})", device.process),
            ),
        };
        let used = bytes(device.peak_used);
        let line = format!("{used} used at most{allocated} {who}");
        row(text, &name, line.trim_end());
    }
    if alike.len() > OTHERS {
        let left: usize = alike[OTHERS..].iter().map(Vec::len).sum();
        row(text, "", &format!("and {left} more, which --json lists"));
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
    } else if verdict.outcome == Outcome::Fits && refused > 0 && verdict.torch.is_empty() {
        let requests = plural(refused, "request that the program went on without");
        row(text, "refused", &format!("{WARN}{requests}{WARN:#}"));
    }
}

/// What may make the figures wrong.
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
    for gap in &verdict.unknown {
        row(text, "not known", &format!("{WARN}{gap}{WARN:#}"));
    }
}

/// The command that most people would type next: the one that says why, and what would help.
fn next(verdict: &Verdict, output: &Path) -> Option<String> {
    match verdict.outcome {
        // What explains it follows below.
        Outcome::DoesNotFit if verdict.is_measured() => {
            Some(format!("tonnage report {}", output.display()))
        }
        Outcome::Fits | Outcome::DoesNotFit => {
            Some(format!("tonnage explain {}", output.display()))
        }
        Outcome::Interrupted | Outcome::Failed | Outcome::NoDevice | Outcome::NotCovered => None,
    }
}

#[cfg(test)]
mod tests {
    use tonnage_analysis::verdict::{
        Above, AfterOoms, Breakdown, DeviceTotal, Holder, KnownBytes, Moment, OutOfMemory,
        RanksRun, SCHEMA_VERSION, Uncounted, Unmodelled,
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
            certain: room >= 350 << 20,
        }
    }

    fn verdict() -> Verdict {
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
            deadlocks: Vec::new(),
            foreign: Vec::new(),
            unknown_sizes: Vec::new(),
            unknown: Vec::new(),
            events: 5000,
        }
    }

    fn shown(verdict: &Verdict) -> String {
        let mut collected = Collected::default();
        (collected.processes, collected.events) = (1, 5000);
        let cause = (verdict.outcome == Outcome::DoesNotFit).then(|| Cause {
            code: "TN204",
            title: "the optimizer makes the peak",
            sentence: String::new(),
        });
        let styled = text(
            verdict,
            cause.as_ref(),
            &collected,
            Path::new("train.tonnage"),
            Path::new("/job"),
        );
        anstream::adapter::strip_str(&styled).to_string()
    }

    #[test]
    fn ranks_with_the_same_figures_are_one_line() {
        let device = |rank: u32, used: u64| DeviceUse {
            rank: Some(rank.to_string()),
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
    }

    #[test]
    fn a_run_that_fits_narrowly() {
        let mut verdict = verdict();
        verdict.margin = Some(margin(19 << 20));
        insta::assert_snapshot!(shown(&verdict));
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
        assert!(text.contains("refused by PyTorch, which did not ask the GPU"));
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
            rank: Some("1".to_owned()),
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
        let row =
            "raised       ModuleNotFoundError at train.py:1 in <module>: No module named 'PIL'";
        assert!(text.contains(row), "{text}");
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
        verdict.devices[0].rank = Some("0".to_owned());
        let mut other = device();
        (other.process, other.device, other.rank) = (1, 1, Some("1".to_owned()));
        other.ooms = 2;
        verdict.devices.push(other);
        insta::assert_snapshot!(shown(&verdict));
    }
}
