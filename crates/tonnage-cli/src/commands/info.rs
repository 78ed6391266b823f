// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage info`: what is in a recording.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tonnage_analysis::info::{DeviceInfo, Figure, Info, Known, SCHEMA_VERSION, info};
use tonnage_recording::facts;

use crate::commands::recording::{Recording, plain, unreadable_trace, words};
use crate::options::ReplyOptions;
use crate::output::{Answer, DIM, Form, Reply, WARN, bytes, count, error, plural, ranks_named};

/// Show what is in a recording, and how reliable its figures are
///
/// Reads recordings of tonnage and everything `tonnage convert` reads; the
/// format is detected from the first bytes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage info train.tonnage
  tonnage info --json snapshot.pickle rmm.csv")]
pub(crate) struct InfoOptions {
    /// The recordings; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Devices whose peaks the text lists; the JSON has all.
const DEVICES: usize = 8;
/// Kinds of events in a line of the text.
const KINDS: usize = 3;

pub(crate) fn run(options: &InfoOptions, form: Form) -> Result<Reply> {
    let (mut answer, mut recordings) = (Answer::Yes, Vec::new());
    for path in &options.files {
        match describe(path) {
            Ok(described) => recordings.push(described),
            Err(reason) if options.files.len() == 1 => return Err(reason),
            // The other recordings are still worth a look.
            Err(reason) => {
                error(&reason);
                answer = Answer::Failed;
            }
        }
    }
    let all = All {
        schema_version: SCHEMA_VERSION,
        recordings,
    };
    let reply = Reply::new(form, answer, &all, |all| {
        let texts: Vec<String> = all.recordings.iter().map(text).collect();
        texts.join("\n\n")
    });
    Ok(reply?)
}

/// The contents of recordings.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct All {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// In the order of the arguments; files that cannot be read are left out.
    recordings: Vec<Described>,
}

/// A recording and where it is.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Described {
    /// The file, as it was given.
    file: String,
    /// Its size.
    bytes: u64,
    /// The kind, in words.
    what: &'static str,
    #[serde(flatten)]
    info: Info,
}

fn describe(path: &Path) -> Result<Described> {
    let recording = Recording::open(path)?;
    let info = info(recording.trace()?).map_err(|error| unreadable_trace(path, &error))?;
    let what = match (recording.foreign, &info.source) {
        (Some(format), _) => words(format),
        (None, Some(_)) => "imported recording of tonnage",
        (None, None) => "recording of tonnage",
    };
    Ok(Described {
        file: path.display().to_string(),
        bytes: recording.size(),
        what,
        info,
    })
}

fn text(described: &Described) -> String {
    let info = &described.info;
    let mut text = format!(
        "{}: {}, {}, {}\n",
        described.file,
        described.what,
        bytes(described.bytes),
        ending(info)
    );
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<11} {value}");
    };
    row("written by", &writer(described));
    if let Some(command) = &info.command {
        let ending = info.ending.as_deref().unwrap_or("its end is not known");
        row(
            "command",
            &format!("{} ({})", plain(command), plain(ending)),
        );
    }
    row("torch", &versions(info));
    row("GPU", &gpu(info));
    row("settings", &settings(info));
    if let Some(size) = info.world_size {
        let others = if info.ranks_run.len() < size as usize {
            "; the others did not run"
        } else {
            ""
        };
        let ran = ranks_named(&info.ranks_run);
        row("ranks", &format!("{ran} of {}{others}", count(size.into())));
    }
    row("processes", &processes(info));
    for (name, value) in ["events", "", "", "", "", "", ""].iter().zip(events(info)) {
        row(name, &value);
    }
    row("time span", &span(info));
    if let Some(before) = before(info) {
        row("begins", &before);
    }
    row("stacks", &stacks(info));
    peaks(&mut row, info);
    let mut title = "not known";
    for gap in &info.unknown {
        row(title, &plain(gap));
        title = "";
    }
    text.trim_end().to_owned()
}

fn ending(info: &Info) -> String {
    if info.complete {
        let word = format!("{WARN}incomplete{WARN:#}");
        return info
            .incomplete
            .as_ref()
            .map_or_else(|| "complete".to_owned(), |_| word);
    }
    let lost = match info.dropped_bytes {
        0 => String::new(),
        dropped => format!("; {} at its end could not be used", bytes(dropped)),
    };
    format!("{WARN}truncated{WARN:#}{lost}")
}

fn writer(described: &Described) -> String {
    let info = &described.info;
    let trace = format!(
        "{}, trace format {}",
        plain(&info.producer),
        info.format_version
    );
    match (described.what, info.source.as_deref()) {
        (_, None) => trace,
        ("imported recording of tonnage", Some(source)) => {
            format!("{trace}, from {}", plain(source))
        }
        (_, Some(source)) if source.starts_with("pytorch") => "PyTorch".to_owned(),
        (_, Some("rmm-csv")) => "RMM".to_owned(),
        _ => "not known".to_owned(),
    }
}

fn versions(info: &Info) -> String {
    let Some(torch) = &info.torch else {
        return "not known".to_owned();
    };
    let mut text = range(&plain(torch));
    for (name, version) in [("CUDA", &info.cuda), ("Python", &info.python)] {
        if let Some(version) = version {
            let _ = write!(text, ", {name} {}", plain(version));
        }
    }
    text
}

/// `>=2.10,<=2.12`, which an importer writes where the file has no more, in words.
fn range(version: &str) -> String {
    let Some(bounds) = version.strip_prefix(">=") else {
        return version.to_owned();
    };
    match bounds.split_once(",<=") {
        None => format!("{bounds} or later"),
        Some((from, to)) if from == to => from.to_owned(),
        Some((from, to)) => format!("{from} to {to}"),
    }
}

fn gpu(info: &Info) -> String {
    let Some(name) = &info.gpu else {
        return "not known".to_owned();
    };
    let mut text = match info.gpu_count {
        Some(count) if count > 1 => format!("{count} × {}", plain(name)),
        _ => plain(name),
    };
    for (before, figure) in [("", &info.capacity), ("context ", &info.context)] {
        if let Some(figure) = figure {
            let size = bytes(figure.bytes);
            let _ = write!(
                text,
                ", {before}{size} {DIM}{}{DIM:#}",
                plain(&figure.known)
            );
        }
    }
    text
}

fn settings(info: &Info) -> String {
    match info.allocator.as_deref() {
        Some(facts::TONNAGE) => {
            return "none: tonnage's allocator took the place of PyTorch's".to_owned();
        }
        Some(_) => return "none: another allocator took the place of PyTorch's".to_owned(),
        None => {}
    }
    match info.allocator_conf.as_deref() {
        Some("") => "PyTorch's defaults".to_owned(),
        Some(conf) => plain(conf),
        None => "not known".to_owned(),
    }
}

fn processes(info: &Info) -> String {
    let gpus: Vec<&DeviceInfo> = info
        .devices
        .iter()
        .filter(|device| device.device >= 0)
        .collect();
    let streams: u64 = gpus.iter().map(|device| device.streams).sum();
    // A device that several processes use is one.
    let distinct: BTreeSet<i32> = gpus.iter().map(|device| device.device).collect();
    let mut text = format!(
        "{}, {}, {}",
        plural(info.processes.len() as u64, "process"),
        plural(distinct.len() as u64, "device"),
        plural(streams, "stream")
    );
    if gpus.len() < info.devices.len() {
        text.push_str(", pinned host memory");
    }
    text
}

/// All rows, then the kinds, most frequent first.
fn events(info: &Info) -> Vec<String> {
    let mut kinds: Vec<_> = info.kinds.iter().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
    let words: Vec<String> = kinds
        .iter()
        .map(|kind| format!("{} {}", count(kind.count), kind.kind))
        .collect();
    let mut lines = vec![count(info.events)];
    if info.unknown_rows > 0 {
        lines[0] = format!(
            "{}, and {} of a later version",
            lines[0],
            count(info.unknown_rows)
        );
    }
    let mut chunks = words.chunks(KINDS * 2);
    lines.extend(chunks.by_ref().take(5).map(|chunk| chunk.join(", ")));
    lines
}

fn span(info: &Info) -> String {
    let Some(span) = info.span else {
        return "not known, the recording has no clock".to_owned();
    };
    let length = span.last.saturating_sub(span.first).max(0);
    match info.clock.as_deref() {
        Some(clock) if !clock.starts_with("nanoseconds") => {
            format!("{} {}", count(length.cast_unsigned()), plain(clock))
        }
        _ => seconds(length),
    }
}

/// Memory held before the first event, if any.
fn before(info: &Info) -> Option<String> {
    let sum = |part: fn(&DeviceInfo) -> u64| {
        let parts = info.devices.iter().map(part);
        parts.fold(0, u64::saturating_add)
    };
    let (allocated, reserved) = (
        sum(|device| device.start_allocated),
        sum(|device| device.start_reserved),
    );
    (allocated > 0 || reserved > 0).then(|| {
        format!(
            "in the middle of the run: {} allocated, {} reserved before its first event",
            bytes(allocated),
            bytes(reserved.max(allocated))
        )
    })
}

fn seconds(nanoseconds: i64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds < 1.0 {
        return format!("{:.2} ms", seconds * 1e3);
    }
    if seconds < 600.0 {
        return format!("{seconds:.2} s");
    }
    let minutes = nanoseconds / 60_000_000_000;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}

fn stacks(info: &Info) -> String {
    match info.events_with_stack {
        0 => "none".to_owned(),
        with => format!(
            "{} distinct frames, for {} of the events",
            count(info.stacks),
            count(with)
        ),
    }
}

fn peaks(row: &mut impl FnMut(&str, &str), info: &Info) {
    let with_peak = |device: &&DeviceInfo| {
        let peaks = [
            &device.peak_allocated,
            &device.peak_reserved,
            &device.peak_used,
        ];
        peaks.into_iter().any(Option::is_some)
    };
    let devices: Vec<&DeviceInfo> = info.devices.iter().filter(with_peak).collect();
    if devices.is_empty() {
        row("peak", "not known, the recording has no blocks");
    }
    let mut title = "peak";
    for device in devices.iter().take(DEVICES) {
        let who = match (devices.len(), device.device) {
            (1, _) => String::new(),
            (_, -1) => format!("process {}, host: ", device.process),
            (_, number) => format!("process {}, GPU {number}: ", device.process),
        };
        let ooms = match device.ooms {
            0 => String::new(),
            ooms => format!(", out of memory {}", plural(ooms, "time")),
        };
        let allocated = figure(device.peak_allocated.as_ref(), "allocated");
        let reserved = figure(device.peak_reserved.as_ref(), "reserved");
        let used = match &device.peak_used {
            None => String::new(),
            Some(used) => format!(", {}", figure(Some(used), "used")),
        };
        row(title, &format!("{who}{allocated}, {reserved}{used}{ooms}"));
        title = "";
        if devices.len() == 1 {
            let figures = [
                &device.peak_allocated,
                &device.peak_reserved,
                &device.peak_used,
            ];
            for figure in figures.into_iter().flatten() {
                if figure.known != Known::Exact && figure.known != Known::Assumed {
                    row("", &format!("{DIM}{}{DIM:#}", figure.how));
                }
            }
        }
    }
    if devices.len() > DEVICES {
        row(
            "",
            &format!("and {} more; --json lists them", devices.len() - DEVICES),
        );
    }
    // A single process has printed it above.
    let shared = info.totals.iter().filter(|total| total.processes > 1);
    for total in shared.take(DEVICES) {
        let used = figure(Some(&total.peak_used), "used");
        row(
            "",
            &format!(
                "GPU {}, all {} processes together: {used}",
                total.device, total.processes
            ),
        );
    }
}

fn figure(figure: Option<&Figure>, what: &str) -> String {
    let Some(figure) = figure else {
        return format!("{what} not known");
    };
    let size = bytes(figure.bytes);
    match figure.known {
        Known::Exact => format!("{size} {what} {DIM}exact{DIM:#}"),
        Known::Assumed => format!("{size} {what} {DIM}assumed{DIM:#}"),
        Known::Computed => format!("{size} {what} {DIM}computed{DIM:#}"),
        Known::AtLeast => format!("at least {size} {what}"),
        Known::AtMost => format!("at most {size} {what}"),
    }
}
