// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage diff`: two recordings side by side.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use tonnage_analysis::diff::{Change, Diff, Summary};
use tonnage_analysis::holdings::own_folder;
use tonnage_analysis::words::bytes;

use super::explain::read;
use super::recording::{Recording, plain, without};
use crate::arguments::DiffOptions;
use crate::output::{Answer, BAD, Form, GOOD, Reply};

pub(crate) fn run(options: &DiffOptions, form: Form) -> Result<Reply> {
    let diff = Diff::of(&summary(&options.before)?, &summary(&options.after)?);
    Ok(Reply::new(form, Answer::Yes, &diff, text)?)
}

fn summary(path: &Path) -> Result<Summary> {
    let recording = read(&Recording::open(path)?, path)?;
    // Two checkouts of one program are to be compared, wherever they lie.
    let stacks = recording.worst().map_or(&[][..], |track| &track.blocks);
    let stacks = stacks.iter().filter_map(|block| block.stack);
    let base = own_folder(&recording.stacks, stacks);
    Summary::of(&recording, &base).ok_or_else(|| {
        let hint = "`tonnage info` says what is in it";
        without(path, "block of device memory", recording.truncated, hint)
    })
}

/// How many lines are shown.
const LINES: usize = 10;

fn text(diff: &Diff) -> String {
    let mut text = String::new();
    for change in &diff.totals {
        let _ = writeln!(text, "{}", row(change));
    }
    if diff.is_empty() {
        text.push_str("\nno difference\n");
        return text;
    }
    for (title, changes) in [
        ("by category, at the peak", &diff.categories),
        ("by phase, its own peak", &diff.phases),
        ("by line, at the peak", &diff.lines),
    ] {
        if changes.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{title}");
        for change in changes.iter().take(LINES) {
            let _ = writeln!(text, "{}", row(change));
        }
        if changes.len() > LINES {
            let _ = writeln!(text, "  and {} more", changes.len() - LINES);
        }
    }
    text
}

/// `+64.00 MiB`, `-1.00 GiB`.
pub(crate) fn signed(delta: i64) -> String {
    let sign = match delta {
        0 => "±",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", bytes(delta.unsigned_abs()))
}

/// What changed, with the line it is on now.
pub(crate) fn named(change: &Change) -> String {
    match change.line {
        Some(line) => format!("{} line {line}", plain(&change.what)),
        None => plain(&change.what),
    }
}

pub(crate) fn row(change: &Change) -> String {
    let delta = change.delta();
    let style = match delta {
        0 => anstyle::Style::new(),
        1.. => BAD,
        _ => GOOD,
    };
    let name = named(change);
    format!(
        "  {style}{:>13}{style:#}  {:>11} → {:>11}  {name}",
        signed(delta),
        bytes(change.before),
        bytes(change.after),
    )
}
