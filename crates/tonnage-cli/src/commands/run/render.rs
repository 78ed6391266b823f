// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict in words: a dozen lines, the answer first, the next command last.

use std::fmt::Write as _;
use std::path::Path;

use tonnage_core::collect::Collected;
use tonnage_core::verdict::{DeviceUse, Outcome, Place, Verdict};

use crate::output::{BAD, DIM, GOOD, HINT, WARN, bytes, count};

/// How many holders the text lists; the JSON has more.
const HOLDERS: usize = 5;
/// How many names of functions that are not modelled the text lists.
const NAMES: usize = 4;

pub(crate) fn text(verdict: &Verdict, collected: &Collected, output: &Path) -> String {
    let mut text = headline(verdict);
    text.push('\n');
    if let Some(device) = verdict.worst() {
        failure(&mut text, verdict, device);
        breakdown(&mut text, verdict, device);
        holders(&mut text, device);
        others(&mut text, verdict, device);
    }
    gaps(&mut text, verdict);
    row(
        &mut text,
        "recording",
        &format!(
            "{} ({} events{})",
            output.display(),
            count(collected.events),
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

fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}

fn headline(verdict: &Verdict) -> String {
    let machine = match verdict.gpu_count {
        1 => format!("{} ({})", verdict.gpu_name, bytes(verdict.capacity.bytes)),
        count => format!(
            "{count} × {} ({} each)",
            verdict.gpu_name,
            bytes(verdict.capacity.bytes)
        ),
    };
    match verdict.outcome {
        Outcome::Fits => format!(
            "{GOOD}fits{GOOD:#} on {machine}, {} to spare",
            bytes(verdict.spare())
        ),
        Outcome::DoesNotFit => format!("{BAD}does not fit{BAD:#} on {machine}"),
        Outcome::Failed => format!(
            "{BAD}failed{BAD:#} on {machine}, not for want of GPU memory: the script {}",
            match verdict.ending.split_once(' ') {
                Some(("exit", code)) => format!("ended with exit code {code}"),
                Some(("signal", number)) => format!("was ended by signal {number}"),
                _ => "ended in an unknown way".to_owned(),
            }
        ),
        Outcome::NoDevice => "the command ended without using a GPU".to_owned(),
    }
}

fn at(place: &Place) -> String {
    format!(
        "{}:{} in {}",
        shorten(&place.file),
        place.line,
        place.function
    )
}

/// A path as far as it helps: libraries from their package on, the rest as given.
fn shorten(file: &str) -> &str {
    for part in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = file.rsplit_once(part) {
            return rest;
        }
    }
    let here = std::env::current_dir().unwrap_or_default();
    let here = here.to_string_lossy();
    file.strip_prefix(here.as_ref())
        .map_or(file, |rest| rest.trim_start_matches('/'))
}

fn where_from(place: Option<&Place>, inside: Option<&Place>) -> String {
    let Some(place) = place else {
        return "no Python frame: PyTorch's own threads, such as the backward pass".to_owned();
    };
    let inside =
        inside.map(|inside| format!(" {DIM}({}:{}){DIM:#}", shorten(&inside.file), inside.line));
    format!("{}{}", at(place), inside.unwrap_or_default())
}

fn failure(text: &mut String, verdict: &Verdict, device: &DeviceUse) {
    if let Some(oom) = &device.out_of_memory {
        let mut place = where_from(oom.place.as_ref(), oom.inside.as_ref());
        if oom.place.is_none() {
            let raised = verdict.exceptions.iter().find_map(|e| e.place.as_ref());
            place = where_from(raised, None);
        }
        row(
            text,
            "asked for",
            &format!(
                "{} with {} free, at {place}",
                bytes(oom.requested),
                bytes(oom.free)
            ),
        );
    } else if let (Outcome::Failed, Some(exception)) = (verdict.outcome, verdict.exceptions.first())
    {
        let message = exception.message.lines().next().unwrap_or_default();
        let place = exception
            .place
            .as_ref()
            .map_or(String::new(), |place| format!(" at {}", at(place)));
        row(
            text,
            "raised",
            &format!("{}{place}: {message}", exception.kind),
        );
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
        (Some(rank), _) => format!(" on GPU {} (rank {rank})", device.device),
        (None, _) => format!(" on GPU {}", device.device),
    };
    row(
        text,
        moment,
        &format!("{}{whose}, {when}", bytes(peak.used)),
    );
    let mut part = |name: &str, value: u64, known: &str, what: &str| {
        let _ = writeln!(
            text,
            "    {name:<9} {:>11}  {DIM}{known:<8}{DIM:#} {what}",
            bytes(value)
        );
    };
    part("allocated", peak.allocated, "exact", "in PyTorch's blocks");
    if device.reserved_known {
        part(
            "cached",
            peak.cached,
            "exact",
            "held by PyTorch, not handed out",
        );
    }
    part(
        "context",
        peak.context,
        &verdict.context.known,
        "CUDA's own",
    );
    if device.reserved_known {
        part("other", peak.other, "exact", "outside PyTorch's allocator");
    } else {
        part(
            "other",
            peak.cached + peak.other,
            "exact",
            "cached by PyTorch or outside of it, which its history would tell",
        );
    }
    let reserved = if device.reserved_known {
        format!("{} reserved by PyTorch", bytes(device.peak_reserved))
    } else {
        "what PyTorch reserved is not known: Python did not load tonnage's hook (-I, -E, -S), \
         or the process was killed, or another allocator was set"
            .to_owned()
    };
    let allocated = bytes(device.peak_allocated);
    row(
        text,
        "at most",
        &format!("{allocated} allocated, {reserved}"),
    );
}

fn holders(text: &mut String, device: &DeviceUse) {
    if device.holders.is_empty() {
        return;
    }
    text.push_str("  held by\n");
    for holder in device.holders.iter().take(HOLDERS) {
        let blocks = match holder.blocks {
            1 => "1 block".to_owned(),
            many => format!("{} blocks", count(many)),
        };
        let _ = writeln!(
            text,
            "    {:>11} {blocks:>13}  {}",
            bytes(holder.bytes),
            where_from(holder.place.as_ref(), holder.inside.as_ref())
        );
    }
}

/// The other processes and devices, in a line each.
fn others(text: &mut String, verdict: &Verdict, shown: &DeviceUse) {
    for device in verdict.devices.iter().filter(|device| *device != shown) {
        let rank = device
            .rank
            .as_ref()
            .map_or(String::new(), |rank| format!(" (rank {rank})"));
        row(
            text,
            &format!("GPU {}", device.device),
            &format!(
                "{} used at most, {} allocated{rank}",
                bytes(device.peak_used),
                bytes(device.peak_allocated)
            ),
        );
    }
    let caught: u64 = verdict.devices.iter().map(|device| device.ooms).sum();
    if verdict.outcome == Outcome::Fits && caught > 0 {
        let errors = if caught == 1 { "error" } else { "errors" };
        row(
            text,
            "caught",
            &format!("{WARN}{caught} out-of-memory {errors} that the script handled{WARN:#}"),
        );
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
            &format!("{WARN}{} calls{WARN:#}: {}", count(calls), list.join(", ")),
        );
    }
    for gap in &verdict.unknown {
        row(text, "not known", &format!("{WARN}{gap}{WARN:#}"));
    }
}

/// The command that most people would type next: the one that says why, and what would help.
fn next(verdict: &Verdict, output: &Path) -> Option<String> {
    match verdict.outcome {
        Outcome::Fits | Outcome::DoesNotFit => {
            Some(format!("tonnage explain {}", output.display()))
        }
        Outcome::Failed | Outcome::NoDevice => None,
    }
}

#[cfg(test)]
mod tests {
    use tonnage_core::verdict::{
        Breakdown, Exception, Holder, KnownBytes, Moment, OutOfMemory, SCHEMA_VERSION, Unmodelled,
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
            },
            peak_allocated: 30 << 30,
            peak_reserved: 31 << 30,
            reserved_known: true,
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

    fn verdict() -> Verdict {
        Verdict {
            schema_version: SCHEMA_VERSION,
            outcome: Outcome::Fits,
            command: "python train.py".to_owned(),
            ending: "exit 0".to_owned(),
            gpu: "test".to_owned(),
            gpu_name: "NVIDIA Test".to_owned(),
            gpu_count: 1,
            capacity: KnownBytes {
                bytes: 40 << 30,
                known: "read".to_owned(),
            },
            context: KnownBytes {
                bytes: 512 << 20,
                known: "assumed".to_owned(),
            },
            torch: "2.15.0".to_owned(),
            devices: vec![device()],
            exceptions: Vec::new(),
            unmodelled: Vec::new(),
            unknown: Vec::new(),
            events: 5000,
        }
    }

    fn shown(verdict: &Verdict) -> String {
        let collected = Collected {
            processes: 1,
            events: 5000,
        };
        let styled = text(verdict, &collected, Path::new("train.tonnage"));
        anstream::adapter::strip_str(&styled).to_string()
    }

    #[test]
    fn a_run_that_fits() {
        insta::assert_snapshot!(shown(&verdict()));
    }

    #[test]
    fn a_run_that_does_not_fit() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::DoesNotFit;
        verdict.devices[0].out_of_memory = Some(OutOfMemory {
            requested: 9 << 30,
            free: 100 << 20,
            place: Some(place("train.py", 30, "step")),
            inside: None,
        });
        verdict.unmodelled = vec![Unmodelled {
            name: "cudaFoo".to_owned(),
            calls: 1234,
        }];
        insta::assert_snapshot!(shown(&verdict));
    }

    #[test]
    fn a_run_that_failed_on_its_own() {
        let mut verdict = verdict();
        verdict.outcome = Outcome::Failed;
        verdict.ending = "exit 1".to_owned();
        verdict.exceptions = vec![Exception {
            kind: "builtins.ValueError".to_owned(),
            message: "first line\nsecond".to_owned(),
            place: Some(place("train.py", 3, "main")),
        }];
        verdict.unknown = vec!["the stacks of 2 allocations and frees".to_owned()];
        insta::assert_snapshot!(shown(&verdict));
    }

    #[test]
    fn a_run_without_a_history() {
        let mut verdict = verdict();
        verdict.devices[0].peak_reserved = 0;
        verdict.devices[0].reserved_known = false;
        insta::assert_snapshot!(shown(&verdict));
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
