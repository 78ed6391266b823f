// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reasons why two runs part, from their recordings.
//!
//! A cause is `certain` where a recording names it at that very place, `likely` where the runs were given something
//! different that is known to have such an effect, and `unknown` otherwise. Nothing is guessed beyond that.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tonnage_recording::facts;
use tonnage_recording::{Kind, meta};
use tonnage_text::bytes;

use super::align::Gap;
use super::side::{Side, Step, Track};
use super::{Parting, Place, Setting};
use crate::unknown::SizedBy;
use crate::verdict::ToldValues;

/// The different inputs of the two runs.
pub(super) fn settings(real: &Side, dry: &Side) -> Vec<Setting> {
    let mut found = Vec::new();
    let mut compare = |what: &str, real: Option<&str>, dry: Option<&str>| {
        if real != dry {
            found.push(Setting {
                what: what.to_owned(),
                real: real.map(str::to_owned),
                dry: dry.map(str::to_owned),
            });
        }
    };
    if real.tracks.is_empty() || dry.tracks.is_empty() {
        return found;
    }
    let facts = [
        ("GPU", meta::GPU_NAME, true),
        ("PyTorch", meta::TORCH_VERSION, false),
        ("CUDA", facts::CUDA_VERSION, false),
        ("Python", facts::PYTHON_VERSION, false),
        ("command", meta::COMMAND, true),
    ];
    for (what, name, of_run) in facts {
        let of = |side: &Side| {
            let process = if of_run {
                facts::RUN
            } else {
                side.tracks.first().map_or(0, |track| track.process)
            };
            side.fact(process, name).map(str::to_owned)
        };
        compare(what, of(real).as_deref(), of(dry).as_deref());
    }
    let (one, two) = (environment(real), environment(dry));
    let mut names: Vec<&String> = one.keys().chain(two.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let value = |all: &BTreeMap<String, String>| all.get(name).cloned();
        compare(name, value(&one).as_deref(), value(&two).as_deref());
    }
    found
}

/// The variables that change what PyTorch and CUDA allocate.
fn environment(side: &Side) -> BTreeMap<String, String> {
    let process = side.tracks.first().map_or(0, |track| track.process);
    let text = side.fact(process, facts::ENVIRONMENT).unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

pub(super) fn parting(
    gap: &Gap,
    (real, track): (&Side, &Track),
    (dry, other): (&Side, &Track),
    settings: &[Setting],
) -> Parting {
    let ours = &track.events[gap.real.clone()];
    let theirs = &other.events[gap.dry.clone()];
    let blocks = |steps: &[Step]| {
        let sizes = steps.iter().filter(|step| step.kind == Kind::Alloc);
        sizes.fold(0_u64, |sum, step| sum.saturating_add(step.bytes))
    };
    let place_in = |side: &Side, steps: &[Step]| {
        let mut steps = steps.iter();
        steps.find_map(|step| side.place(step.stack))
    };
    let place = place_in(real, ours).or_else(|| place_in(dry, theirs));
    let (cause, known) = cause((real, ours), (dry, theirs), other, place.as_ref(), settings);
    Parting {
        real_event: gap.real.start as u64,
        dry_event: gap.dry.start as u64,
        only_real: ours.len() as u64,
        only_dry: theirs.len() as u64,
        real_bytes: blocks(ours),
        dry_bytes: blocks(theirs),
        real: ours.first().map(describe_step),
        dry: theirs.first().map(describe_step),
        place,
        cause,
        known,
        repeats: 0,
    }
}

/// An event in words.
fn describe_step(step: &Step) -> String {
    let what = match step.kind {
        Kind::Alloc => "a block of",
        Kind::FreeRequested => "a free of",
        Kind::SegmentAlloc => "a new segment of",
        Kind::SegmentFree => "a segment given back of",
        Kind::SegmentMap => "a mapping of",
        Kind::SegmentUnmap => "an unmapping of",
        _ => "out of memory at",
    };
    format!("{what} {}", bytes(step.bytes))
}

fn setting<'a>(settings: &'a [Setting], prefix: &str) -> Option<&'a Setting> {
    settings.iter().find(|one| one.what.starts_with(prefix))
}

/// A setting in words.
fn describe_setting(setting: &Setting) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
    format!(
        "{} is {} on the GPU and {} in the dry run",
        setting.what,
        value(&setting.real),
        value(&setting.dry)
    )
}

fn cause(
    (real, ours): (&Side, &[Step]),
    (dry, theirs): (&Side, &[Step]),
    other: &Track,
    place: Option<&Place>,
    settings: &[Setting],
) -> (String, &'static str) {
    let is_oom = |step: &Step| step.kind == Kind::Oom;
    if ours.iter().any(is_oom) != theirs.iter().any(is_oom) {
        return out_of_memory(ours.iter().any(is_oom), real, dry);
    }
    if let Some(found) = workspace((real, ours), (dry, theirs), settings) {
        return found;
    }
    if let Some(found) = value(dry, other, place) {
        return found;
    }
    for name in [
        "command", "PyTorch", "PYTORCH_", "TORCH_", "GPU", "CUDA", "CUDNN", "NCCL", "Python",
    ] {
        if let Some(setting) = setting(settings, name) {
            return (describe_setting(setting), "likely");
        }
    }
    let is_segment = |step: &Step| !matches!(step.kind, Kind::Alloc | Kind::FreeRequested);
    if ours.iter().chain(theirs).all(is_segment) {
        let why = "the same requests, served from other segments: the driver's addresses or its free memory differ";
        return (why.to_owned(), "likely");
    }
    let place = place.map_or(String::new(), |place| {
        format!(": look at what decides at {}:{}", file(place), place.line)
    });
    (
        format!("nothing that both recordings know differs{place}"),
        "unknown",
    )
}

fn file(place: &Place) -> &str {
    place.file.rsplit('/').next().unwrap_or(&place.file)
}

fn out_of_memory(on_gpu: bool, real: &Side, dry: &Side) -> (String, &'static str) {
    let (fails, goes_on) = if on_gpu {
        ("on the GPU", "the dry run")
    } else {
        ("in the dry run", "the GPU")
    };
    let most = |side: &Side| side.tracks.iter().map(|track| track.beside).max();
    let (ours, theirs) = (most(real).unwrap_or(0), most(dry).unwrap_or(0));
    let mut why = format!("a request is refused {fails} that {goes_on} serves");
    let mut known = "unknown";
    if real.capacity != dry.capacity {
        let _ = write!(
            why,
            ": the GPU has {}, the dry run simulates {}",
            bytes(real.capacity),
            bytes(dry.capacity)
        );
        known = "certain";
    }
    if ours != theirs {
        let and = if known == "certain" { ", and" } else { ":" };
        let _ = write!(
            why,
            "{and} outside PyTorch {} are in use on the GPU and {} in the dry run",
            bytes(ours),
            bytes(theirs)
        );
        known = "certain";
    }
    (why, known)
}

/// Scratch memory of a library, which the dry run names.
fn workspace(
    (real, ours): (&Side, &[Step]),
    (dry, theirs): (&Side, &[Step]),
    settings: &[Setting],
) -> Option<(String, &'static str)> {
    let named = |side: &Side, steps: &[Step]| {
        let step = steps.iter().find(|step| step.workspace > 0)?;
        let library = side.libraries.get(step.workspace as usize - 1)?;
        Some((library.clone(), step.bytes))
    };
    let (library, size) = named(dry, theirs).or_else(|| named(real, ours))?;
    let block = |steps: &[Step]| {
        let mut steps = steps.iter();
        steps
            .find(|step| step.kind == Kind::Alloc)
            .map(|step| step.bytes)
    };
    let theirs = block(theirs).map_or("none".to_owned(), |_| bytes(size));
    let ours = block(ours).map_or("none".to_owned(), bytes);
    let mut why = format!("the workspace of {library}: {ours} on the GPU, {theirs} in the dry run");
    let upper = library.to_ascii_uppercase();
    let upper = if upper.starts_with("CUBLAS") {
        "CUBLAS"
    } else {
        upper.as_str()
    };
    let mut known = "certain";
    let because = setting(settings, upper).or_else(|| setting(settings, "GPU"));
    match because {
        Some(setting) => {
            let _ = write!(why, "; {}", describe_setting(setting));
        }
        None => known = "likely",
    }
    Some((why, known))
}

/// A value that the dry run did not compute, at this line or one that the script branches on.
fn value(dry: &Side, other: &Track, place: Option<&Place>) -> Option<(String, &'static str)> {
    let text = dry.fact(other.process, facts::VALUES)?;
    let told: ToldValues = serde_json::from_str(text).ok()?;
    let here =
        |name: &str, line: u64| place.is_some_and(|place| place.file == name && place.line == line);
    let sized = told.sizes.iter().position(|size| here(&size.0, size.1));
    if let Some(at) = sized {
        let (name, line, ..) = &told.sizes[at];
        let name = name.rsplit('/').next().unwrap_or(name);
        let by = told
            .sized_by
            .get(at)
            .map_or(SizedBy::Mask, SizedBy::parse_name);
        let how = by.describe_origin(told.assumed_mask);
        let why = format!(
            "the size of a result at {name}:{line} depends on values that the dry run did not compute; {how}"
        );
        return Some((why, "certain"));
    }
    let mut decisions = told.reads.iter().filter(|read| read.3);
    let first = decisions.next()?;
    let count: u64 = told
        .reads
        .iter()
        .filter(|read| read.3)
        .map(|read| read.4)
        .sum();
    let name = first.0.rsplit('/').next().unwrap_or(&first.0);
    let values = if count == 1 { "a value" } else { "values" };
    let why = format!(
        "the script branches on {values} that the dry run did not compute, first at {name}:{}",
        first.1
    );
    Some((why, "likely"))
}
