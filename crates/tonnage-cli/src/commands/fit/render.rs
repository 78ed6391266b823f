// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of a search in words: at most twenty lines.

use std::fmt::Write as _;

use tonnage_analysis::verdict::Outcome;
use tonnage_fit::{Bound, Evidence, Fit, Row, Trial};

use crate::output::{BAD, DIM, GOOD, HINT, WARN, bytes};

/// How many rows are listed; the JSON has all.
const ROWS: usize = 10;

pub(crate) fn text(fit: &Fit) -> String {
    let mut text = format!("{}\n", headline(fit));
    let limit = fit.limit;
    let kept = if limit.given {
        format!("{} are kept free, as was asked for", bytes(limit.margin))
    } else {
        format!(
            "{} are kept free for what a dry run does not count (--margin)",
            bytes(limit.margin)
        )
    };
    let _ = writeln!(text, "  {DIM}{kept}{DIM:#}");
    if fit.rows.len() > 1 || fit.searched.is_none() {
        table(&mut text, fit);
    } else if let Some(row) = fit.rows.first() {
        single(&mut text, fit, row);
    }
    remarks(&mut text, fit);
    text
}

fn machine(fit: &Fit) -> String {
    format!("{} ({})", fit.gpu_name, bytes(fit.limit.capacity))
}

/// The value that was searched.
fn value<'a>(fit: &Fit, trial: &'a Trial) -> &'a str {
    let name = fit.searched.as_deref().unwrap_or_default();
    let value = trial.values.iter().find(|(known, _)| known == name);
    value.map_or("", |(_, value)| value)
}

fn headline(fit: &Fit) -> String {
    let machine = machine(fit);
    let Some(searched) = &fit.searched else {
        let fitting = fit.rows.iter().filter(|row| row.largest.is_some()).count();
        return match (fit.rows.len(), fitting) {
            (1, 1) => format!("{GOOD}fits{GOOD:#} on {machine}"),
            (1, 0) if fit.rows[0].bound == Bound::Failed => failed(&fit.rows[0], &machine),
            (1, 0) => format!("{BAD}does not fit{BAD:#} on {machine}"),
            (all, 0) => format!("{BAD}none of {all} combinations fits{BAD:#} on {machine}"),
            (all, some) if all == some => {
                format!("{GOOD}all {all} combinations fit{GOOD:#} on {machine}")
            }
            (all, some) => format!("{GOOD}{some} of {all} combinations fit{GOOD:#} on {machine}"),
        };
    };
    if let [row] = fit.rows.as_slice() {
        return match (&row.largest, row.bound) {
            (Some(largest), Bound::Proved | Bound::NextFails) => format!(
                "{GOOD}{searched} {} fits{GOOD:#} on {machine}, and is the largest that does",
                value(fit, largest)
            ),
            (Some(largest), Bound::EndOfRange) => format!(
                "{GOOD}{searched} {} fits{GOOD:#} on {machine}; it is the last of the range, larger ones may fit too",
                value(fit, largest)
            ),
            (Some(largest), _) => format!(
                "{WARN}{searched} {} fits{WARN:#} on {machine}; the search was interrupted, larger ones may fit too",
                value(fit, largest)
            ),
            (None, Bound::Failed) => failed(row, &machine),
            (None, Bound::Interrupted) => {
                format!("{WARN}interrupted{WARN:#} before anything was known")
            }
            (None, _) => format!(
                "{BAD}nothing fits{BAD:#} on {machine}: not even {searched} {}",
                row.next.as_ref().map_or("", |trial| value(fit, trial))
            ),
        };
    }
    let some = fit.rows.iter().filter(|row| row.largest.is_some()).count();
    if some == 0 {
        return format!("{BAD}nothing fits{BAD:#} on {machine}");
    }
    format!("{GOOD}the largest {searched} that fits{GOOD:#} on {machine}")
}

fn failed(row: &Row, machine: &str) -> String {
    let why = row.next.as_ref().and_then(|trial| trial.why.as_deref());
    format!(
        "{BAD}failed{BAD:#} on {machine}, not because of GPU memory: {}",
        why.unwrap_or("the script failed")
    )
}

/// What one variant needs.
fn need(trial: &Trial) -> String {
    let Some(need) = trial.need else {
        return match trial.outcome {
            Outcome::DoesNotFit => "more than there is".to_owned(),
            _ => "-".to_owned(),
        };
    };
    match trial.evidence {
        Evidence::AtMost => format!("≤ {}", bytes(need)),
        Evidence::AtLeast => format!("≥ {}", bytes(need)),
        Evidence::Assumed => format!("≈ {}", bytes(need)),
        Evidence::Replayed => bytes(need),
    }
}

/// Why the next value is none.
fn refusal(trial: &Trial) -> String {
    match (&trial.why, trial.outcome) {
        (Some(why), _) => format!("fails: {why}"),
        (None, Outcome::Fits) => format!("needs {}, fits only into the margin", need(trial)),
        (None, _) => format!("needs {}", need(trial)),
    }
}

fn single(text: &mut String, fit: &Fit, row: &Row) {
    if let Some(largest) = &row.largest {
        let _ = writeln!(
            text,
            "  {:<12} {} needs {}",
            "largest",
            value(fit, largest),
            need(largest)
        );
    }
    if let Some(next) = &row.next {
        let _ = writeln!(
            text,
            "  {:<12} {} {}",
            "next",
            value(fit, next),
            refusal(next)
        );
    }
    if let Some(largest) = &row.largest {
        let _ = writeln!(
            text,
            "  {:<12} {HINT}{}{HINT:#}",
            "command", largest.command
        );
    }
}

fn table(text: &mut String, fit: &Fit) {
    let Some(first) = fit.rows.first() else {
        return;
    };
    let searched = fit.searched.as_deref();
    let mut head: Vec<String> = first.values.iter().map(|(name, _)| name.clone()).collect();
    head.extend(searched.map(str::to_owned));
    head.push("needs".to_owned());
    let mut lines = vec![(
        head,
        if searched.is_some() {
            "next larger"
        } else {
            ""
        }
        .to_owned(),
    )];
    for row in fit.rows.iter().take(ROWS) {
        let mut cells: Vec<String> = row.values.iter().map(|(_, value)| value.clone()).collect();
        let told = row.largest.as_ref().or(row.next.as_ref());
        if searched.is_some() {
            cells.push(
                row.largest
                    .as_ref()
                    .map_or("-", |trial| value(fit, trial))
                    .to_owned(),
            );
        }
        cells.push(told.map_or_else(|| "-".to_owned(), need));
        let last = match (&row.largest, &row.next, row.bound) {
            (_, _, Bound::Interrupted) => "interrupted".to_owned(),
            (Some(_), Some(next), _) => format!("{} {}", value(fit, next), refusal(next)),
            (Some(_), None, _) if searched.is_some() => "the range ends here".to_owned(),
            (Some(_), None, _) => "fits".to_owned(),
            (None, Some(next), Bound::Failed) => refusal(next),
            (None, _, _) if searched.is_some() => "not even the first fits".to_owned(),
            (None, _, _) => "does not fit".to_owned(),
        };
        lines.push((cells, last));
    }
    let columns = lines[0].0.len();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|(cells, _)| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    text.push('\n');
    for (cells, last) in &lines {
        let mut line = String::from(" ");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, " {cell:>width$}  ");
        }
        let _ = writeln!(text, "{}", format!("{line}{last}").trim_end());
    }
    if fit.rows.len() > ROWS {
        let _ = writeln!(
            text,
            "  {DIM}and {} more: --json has all{DIM:#}",
            fit.rows.len() - ROWS
        );
    }
}

fn remarks(text: &mut String, fit: &Fit) {
    let answers = || {
        let largest = fit.rows.iter().filter_map(|row| row.largest.as_ref());
        largest.chain(fit.rows.iter().filter_map(|row| row.next.as_ref()))
    };
    if let Some(stopped) = answers().find_map(|trial| trial.stopped.as_ref()) {
        let _ = writeln!(
            text,
            "  {WARN}each run was stopped {stopped}: what comes later is not known{WARN:#}"
        );
    }
    let mut unknown: Vec<&String> = answers().flat_map(|trial| &trial.unknown).collect();
    unknown.sort();
    unknown.dedup();
    for sentence in unknown.iter().take(2) {
        let _ = writeln!(text, "  {WARN}assumed: {sentence}{WARN:#}");
    }
    let how = match &fit.not_forked {
        None => String::new(),
        Some(why) => format!("; each in a process of its own, because {why}"),
    };
    let runs = if fit.runs == 1 { "dry run" } else { "dry runs" };
    let _ = writeln!(
        text,
        "  {DIM}{} {runs}, {:.1} s; what is shown was run as shown{how}{DIM:#}",
        fit.runs, fit.seconds
    );
}
