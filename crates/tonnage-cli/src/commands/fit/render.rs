// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of a search in words: at most twenty lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use tonnage_analysis::verdict::Outcome;
use tonnage_fit::{
    Bound, Evidence, ExtraCost, Fit, GpuVerdict, LeastTime, Remedies, Remedy, Row, Trial,
};

use crate::output::{BAD, DIM, GOOD, HINT, WARN, bytes};

/// How many rows are listed; the JSON has all.
const ROWS: usize = 10;

/// `gpu` is the GPU and its source, where the option does not name it; the machine has
/// `of_machine` of them.
pub(crate) fn text(fit: &Fit, gpu: Option<&str>, of_machine: u8) -> String {
    let mut text = if fit.gpus.is_empty() {
        format!("{}\n", headline(fit))
    } else {
        format!("{}\n", gpu_headline(fit))
    };
    let limit = fit.limit;
    let kept = if limit.margin_given {
        format!("keeps {} free (--margin)", bytes(limit.margin))
    } else {
        format!(
            "keeps {} free for CUDA overhead (change with --margin)",
            bytes(limit.margin)
        )
    };
    // A job that failed at once has no figure that a margin could relate to.
    let is_judged = !matches!(fit.rows.as_slice(), [row] if row.bound == Bound::Failed);
    // An interrupted search may know no margin yet.
    let has_margin = limit.margin_given || limit.margin > 0;
    if is_judged && has_margin {
        let _ = writeln!(text, "  {DIM}{kept}{DIM:#}");
    }
    if let Some(gpu) = gpu {
        let _ = writeln!(text, "  {DIM}simulates {gpu}{DIM:#}");
    }
    gpus(&mut text, &fit.gpus);
    if fit.rows.len() > 1 {
        table(&mut text, fit);
    } else if let Some(row) = fit.rows.first() {
        single(&mut text, fit, row);
    }
    sharded(&mut text, fit);
    if let Some(found) = &fit.remedies {
        remedies(&mut text, found);
    }
    remarks(&mut text, fit);
    if let Some(next) = next(fit).filter(|_| of_machine == 1) {
        let _ = writeln!(text, "  {:<12} {HINT}{next}{HINT:#}", "next");
    }
    text
}

/// The next useful command, where the answer has all that it takes.
fn next(fit: &Fit) -> Option<String> {
    let gpu = &fit.gpu;
    if !fit.variables.is_empty() || fit.limit.capacity_given || fit.interrupted {
        return None;
    }
    if !fit.gpus.is_empty() {
        let command = &fit.command;
        return fit
            .found
            .then(|| format!("tonnage run --gpu {gpu} -- {command}"));
    }
    let [row] = fit.rows.as_slice() else {
        return None;
    };
    if let Some(largest) = &row.largest {
        // A budget is of a command alone.
        let command = &largest.command;
        let is_whole = largest.constants.is_empty();
        return is_whole.then(|| format!("tonnage check --init --gpu {gpu} -- {command}"));
    }
    let trial = row
        .next
        .as_ref()
        .filter(|trial| trial.constants.is_empty())?;
    if row.bound == Bound::Failed {
        return None;
    }
    let command = &trial.command;
    let remedy = fit
        .remedies
        .as_ref()
        .and_then(|found| found.fitting.first());
    let Some(remedy) = remedy else {
        return Some(format!("tonnage fit --gpu any -- {command}"));
    };
    if remedy.setting.is_some() {
        return None;
    }
    let changes = remedy.trial.changes.iter();
    let changes: Vec<String> = changes
        .map(|change| format!("--change {}", change.name))
        .collect();
    Some(format!(
        "tonnage run --gpu {gpu} {} -- {command}",
        changes.join(" ")
    ))
}

/// The need of each GPU when the model is spread over them.
fn sharded(text: &mut String, fit: &Fit) {
    if fit.sharded.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n  spread over the GPUs, each with the batch of the script; rank 0 was run, NCCL's own memory is not counted:"
    );
    for way in &fit.sharded {
        let name = way.changes.join(" + ");
        let trial = &way.trial;
        let not_made = trial.changes.iter().find(|change| !change.applied);
        let why = match (&trial.why, not_made) {
            (Some(why), _) => Some(why.as_str()),
            (None, Some(change)) => Some(change.why.as_deref().unwrap_or("it was not made")),
            (None, None) => None,
        };
        if let Some(why) = why {
            let _ = writeln!(text, "  {name:<16} {WARN}not possible{WARN:#}: {why}");
            continue;
        }
        let style = if trial.fits { GOOD } else { BAD };
        let word = format!("{style}{}{style:#}", judged(trial));
        let less = way
            .saves
            .map_or_else(String::new, |saves| format!(", {} less", bytes(saves)));
        let need = need(trial);
        let _ = writeln!(text, "  {name:<16} {word}: each GPU needs {need}{less}");
    }
}

/// How many proposals are listed; the JSON has all.
const REMEDIES: usize = 3;
/// How many lines of the first proposal are listed, and of the others; `--show` has all.
const LINES: [usize; 2] = [5, 1];

fn remedies(text: &mut String, found: &Remedies) {
    if found.fitting.is_empty() && found.interrupted {
        interrupted(text, found);
        return;
    }
    if found.fitting.is_empty() {
        let _ = match &found.nearest {
            Some(nearest) => writeln!(
                text,
                "\n  {BAD}no change makes it fit{BAD:#}; the nearest: {}, needs {}",
                nearest.title,
                need(&nearest.trial)
            ),
            None => writeln!(
                text,
                "\n  {BAD}no change that could be made saves anything{BAD:#}"
            ),
        };
        return;
    }
    let by_time = found
        .fitting
        .iter()
        .all(|remedy| remedy.least_time.is_some());
    let unpublished = found
        .fitting
        .iter()
        .any(|remedy| remedy.cost.is_some() && remedy.least_time.is_none());
    let order = if by_time {
        "cheapest first by least time (a lower bound from counted work and the GPU's published peak)"
    } else if unpublished {
        "cheapest first by counted work (this GPU has no published peak for a time)"
    } else {
        "cheapest first by counted work, not measured time"
    };
    let _ = writeln!(
        text,
        "\n  changes that make it fit; same mathematics first, then {order}:"
    );
    if found.interrupted {
        let _ = writeln!(
            text,
            "  {WARN}the search was interrupted{WARN:#}: not every change was tried"
        );
    }
    for (number, remedy) in found.fitting.iter().take(REMEDIES).enumerate() {
        let _ = writeln!(
            text,
            "  {}. {GOOD}{}{GOOD:#}: needs {}{}; mathematics: {}{}{}",
            number + 1,
            remedy.title,
            need(&remedy.trial),
            remedy
                .saves
                .map_or_else(String::new, |saves| format!(", {} less", bytes(saves))),
            remedy.maths,
            remedy.cost.map_or_else(String::new, cost),
            remedy.least_time.map_or_else(String::new, at_least),
        );
        let lines = lines(remedy);
        let most = LINES[number.min(1)];
        for line in lines.iter().take(most) {
            let _ = writeln!(text, "     {HINT}{line}{HINT:#}");
        }
        if lines.len() > most {
            let _ = writeln!(
                text,
                "     {DIM}… --show {} has all of it{DIM:#}",
                number + 1
            );
        }
    }
    let others = found.fitting.iter().enumerate().skip(REMEDIES);
    for (number, remedy) in others {
        let _ = writeln!(
            text,
            "  {}. {}: needs {}; mathematics: {} {DIM}(--show {0}){DIM:#}",
            number + 1,
            remedy.title,
            need(&remedy.trial),
            remedy.maths,
        );
    }
}

/// The results of a search that was ended before a change was found.
fn interrupted(text: &mut String, found: &Remedies) {
    let _ = writeln!(
        text,
        "\n  {WARN}the search was interrupted{WARN:#}: no change was found yet, another one may make it fit"
    );
    if let Some(nearest) = &found.nearest {
        let _ = writeln!(
            text,
            "  nearest so far: {}, needs {}",
            nearest.title,
            need(&nearest.trial)
        );
    }
    let tried = match found.tried.as_slice() {
        [] => "nothing; the search needs more time".to_owned(),
        names => names.join(", "),
    };
    let _ = writeln!(text, "  {:<12} {tried}", "tried");
}

/// Fewer bytes than this take no noticeable time.
const WORTH_TELLING: i64 = 1 << 20;

/// The cost of a change, as it was counted.
fn cost(cost: ExtraCost) -> String {
    let mut text = String::new();
    let of = if cost.of_step { "a step" } else { "in all" };
    let percent = (cost.part * 100.0).round();
    if percent != 0.0 {
        let _ = write!(text, "; {percent:+} % matrix operations {of}");
    }
    if cost.moved >= WORTH_TELLING {
        let moved = bytes(cost.moved.unsigned_abs());
        let _ = write!(text, "; {moved} more between host and GPU {of}");
    }
    text
}

/// The least time, and how much more that is than without the change.
fn at_least(least: LeastTime) -> String {
    let of = if least.of_step { "a step" } else { "in all" };
    let percent = least.part.map(|part| (part * 100.0).round());
    let more = match percent {
        Some(0.0) => " as without it".to_owned(),
        Some(percent) => format!(", {percent:+} %"),
        None => String::new(),
    };
    format!("; at least {} {of}{more}", duration(least.seconds))
}

/// A time with three digits.
fn duration(seconds: f64) -> String {
    let (value, unit) = if seconds >= 1.0 {
        (seconds, "s")
    } else if seconds >= 1e-3 {
        (seconds * 1e3, "ms")
    } else {
        (seconds * 1e6, "µs")
    };
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

/// The lines to write by hand.
fn lines(remedy: &Remedy) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if let Some(setting) = &remedy.setting {
        lines.push(format!("export PYTORCH_CUDA_ALLOC_CONF={setting}"));
    }
    for change in &remedy.trial.changes {
        if change.edits.is_empty() {
            lines.extend(
                change
                    .lines
                    .iter()
                    .flat_map(|line| line.lines())
                    .map(str::to_owned),
            );
        }
        for edit in &change.edits {
            let file = Path::new(&edit.file).file_name().unwrap_or_default();
            lines.push(format!(
                "{}:{}  {}",
                file.display(),
                edit.line,
                edit.new.trim()
            ));
        }
    }
    lines
}

/// One proposal in full: a patch of the script where that is certain, else the lines to write.
pub(crate) fn shown(fit: &Fit, number: usize, gpu: Option<&str>, here: &Path) -> String {
    let fitting = fit
        .remedies
        .as_ref()
        .map_or(&[][..], |found| &found.fitting);
    let Some(remedy) = fitting.get(number - 1) else {
        let why = match fitting.len() {
            0 if fit.interrupted => {
                "the search was interrupted before a proposal was found".to_owned()
            }
            0 if fit.found => "it fits as it is: no proposal is needed".to_owned(),
            0 => "no proposal was found".to_owned(),
            count => format!("there are {count} proposals; --show takes a number up to {count}"),
        };
        return format!("{why}\n{}", self::text(fit, gpu, 1));
    };
    let mut text = String::new();
    let _ = writeln!(text, "# {}: needs {}", remedy.title, need(&remedy.trial));
    if let Some(setting) = &remedy.setting {
        let _ = writeln!(text, "export PYTORCH_CUDA_ALLOC_CONF={setting}");
    }
    for change in &remedy.trial.changes {
        if change.edits.is_empty() {
            let _ = writeln!(
                text,
                "# {}: write, where the model and the optimizer are made:",
                change.name
            );
            for line in &change.lines {
                let _ = writeln!(text, "{line}");
            }
            continue;
        }
        for edit in &change.edits {
            let file = Path::new(&edit.file);
            let file = file.strip_prefix(here).unwrap_or(file).display();
            let new: Vec<&str> = edit.new.lines().collect();
            let _ = writeln!(text, "--- a/{file}\n+++ b/{file}");
            let _ = writeln!(text, "@@ -{0},1 +{0},{1} @@", edit.line, new.len());
            let _ = writeln!(text, "-{}", edit.old);
            for line in new {
                let _ = writeln!(text, "+{line}");
            }
        }
    }
    text
}

fn gpu_headline(fit: &Fit) -> String {
    let all = fit.gpus.len();
    let some = fit.gpus.iter().filter(|gpu| gpu.fits == Some(true)).count();
    let what = if fit.gpus.iter().any(|gpu| gpu.price.is_some()) {
        "cheapest"
    } else {
        "smallest"
    };
    match some {
        0 => format!("{BAD}does not fit{BAD:#} on any of {all} GPUs"),
        _ => format!(
            "{GOOD}fits on {some} of {all} GPUs{GOOD:#}, the {what} is {} ({})",
            fit.gpu,
            bytes(fit.limit.capacity)
        ),
    }
}

/// The GPUs around the limit: the last that are too small and the first that are not.
fn gpus(text: &mut String, gpus: &[GpuVerdict]) {
    if gpus.is_empty() {
        return;
    }
    let first = gpus.iter().position(|gpu| gpu.fits == Some(true));
    let begin = match first {
        Some(first) if gpus.len() > ROWS => first.saturating_sub(3).min(gpus.len() - ROWS),
        _ => gpus.len().saturating_sub(ROWS),
    };
    text.push('\n');
    for gpu in gpus.iter().skip(begin).take(ROWS) {
        let word = match gpu.fits {
            Some(true) => format!("{GOOD}fits{GOOD:#}        "),
            Some(false) => format!("{BAD}does not fit{BAD:#}"),
            None => format!("{WARN}fails{WARN:#}       "),
        };
        let need = gpu.need.map_or_else(|| "-".to_owned(), bytes);
        let price = gpu
            .price
            .map_or_else(String::new, |price| format!("  {price}"));
        let _ = writeln!(
            text,
            "  {:<18} {:>10}  {word}  needs {need:>10}{price}",
            gpu.gpu,
            bytes(gpu.capacity),
        );
    }
    let hidden = gpus.len().saturating_sub(ROWS);
    if hidden > 0 {
        let _ = writeln!(text, "  {DIM}and {hidden} more: --json has all{DIM:#}");
    }
    let mut runs: Vec<&str> = gpus.iter().map(|gpu| &*gpu.run_on).collect();
    runs.sort_unstable();
    runs.dedup();
    let _ = writeln!(
        text,
        "  {DIM}run dry on the largest GPU of each architecture ({}), replayed for the others{DIM:#}",
        runs.join(", ")
    );
}

fn machine(fit: &Fit) -> String {
    let set = if fit.limit.capacity_given {
        "set to "
    } else {
        ""
    };
    format!("{} ({set}{})", fit.gpu_name, bytes(fit.limit.capacity))
}

/// The value that was searched.
pub(super) fn value<'a>(fit: &Fit, trial: &'a Trial) -> &'a str {
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
            (1, 0) if fit.rows[0].bound == Bound::Interrupted && fit.rows[0].next.is_none() => {
                format!("{WARN}interrupted{WARN:#} before the first dry run ended on {machine}")
            }
            (1, 0) => format!("{BAD}{}{BAD:#} on {machine}", does_not_fit(&fit.rows[0])),
            (all, 0) => format!("{BAD}none of {all} combinations fits{BAD:#} on {machine}"),
            (all, some) if all == some => {
                format!("{GOOD}all {all} combinations fit{GOOD:#} on {machine}")
            }
            (all, some) => format!("{GOOD}{some} of {all} combinations fit{GOOD:#} on {machine}"),
        };
    };
    if let [row] = fit.rows.as_slice() {
        return match (&row.largest, row.bound) {
            (Some(largest), Bound::Proved) => format!(
                "{GOOD}{searched} {} fits{GOOD:#} on {machine}, and is the largest of the range that does",
                value(fit, largest)
            ),
            (Some(largest), Bound::NextFails) => format!(
                "{GOOD}{searched} {} fits{GOOD:#} on {machine}; the next one fails for another reason than memory, larger ones may fit too",
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
            (None, _) => {
                let first = row.next.as_ref().map_or("", |trial| value(fit, trial));
                let is_first = row.trials.first() == row.next.as_ref();
                let which = if is_first {
                    "the first of the range"
                } else {
                    "the first that does not fail for another reason"
                };
                format!(
                    "{BAD}not even {searched} {first}{BAD:#}, {which}: it {} on {machine}",
                    does_not_fit(row)
                )
            }
        };
    }
    let some = fit.rows.iter().filter(|row| row.largest.is_some()).count();
    if some == 0 {
        return format!("{BAD}nothing fits{BAD:#} on {machine}");
    }
    format!("{GOOD}the largest {searched} that fits{GOOD:#} on {machine}")
}

/// The outcome for a job that does not fit, or fits without the margin.
fn does_not_fit(row: &Row) -> &'static str {
    match &row.next {
        Some(next) if next.handled_ooms > 0 => "runs out of memory, which the script handles,",
        Some(next) if next.outcome == Outcome::Uncertain => "fits, but not with the margin,",
        _ => "does not fit",
    }
}

fn failed(row: &Row, machine: &str) -> String {
    let why = row.next.as_ref().and_then(|trial| trial.why.as_deref());
    format!(
        "{BAD}failed{BAD:#} on {machine}; GPU memory did not run out: {}",
        why.unwrap_or("the script failed")
    )
}

/// How a trial went, in a word or two.
pub(super) fn judged(trial: &Trial) -> &'static str {
    match (trial.fits, trial.outcome) {
        (true, _) => "fits",
        (false, _) if trial.handled_ooms > 0 => "runs out, which is handled",
        (false, Outcome::Uncertain) => "fits, but not with the margin",
        (false, Outcome::DoesNotFit) => "does not fit",
        (false, _) => "fails",
    }
}

/// The need of one variant.
pub(super) fn need(trial: &Trial) -> String {
    let Some(need) = trial.need else {
        return match trial.outcome {
            _ if trial.handled_ooms > 0 => "more than there is".to_owned(),
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

/// Why the next value is rejected.
fn refusal(trial: &Trial) -> String {
    match (&trial.why, trial.outcome) {
        (Some(why), _) => format!("fails: {why}"),
        (None, _) if trial.handled_ooms > 0 => {
            "runs out of memory, which the script handles".to_owned()
        }
        // A GPU between the smallest and this one may still be worse: PyTorch frees its cache at another time there.
        (None, Outcome::Uncertain)
            if trial
                .need
                .is_some_and(|need| need.saturating_add(trial.margin) <= trial.capacity) =>
        {
            format!(
                "needs {}: that fits, but a GPU with {} less runs out of memory, because PyTorch frees its cache at \
                 another time there",
                need(trial),
                bytes(trial.margin)
            )
        }
        (None, Outcome::Uncertain) => {
            format!("needs {}: that fits, but not with the margin", need(trial))
        }
        (None, _) => format!("needs {}", need(trial)),
    }
}

fn single(text: &mut String, fit: &Fit, row: &Row) {
    if fit.searched.is_none() {
        if let Some(trial) = row.largest.as_ref().or(row.next.as_ref())
            && trial.why.is_none()
        {
            let _ = writeln!(text, "  {:<12} {}", "needs", need(trial));
        }
        return;
    }
    if let Some(largest) = &row.largest {
        let (value, need) = (value(fit, largest), need(largest));
        let _ = writeln!(text, "  {:<12} {value} needs {need}", "largest");
    }
    if let (Some(low), Some(high)) = (row.estimate_low, row.estimate_high) {
        let _ = writeln!(
            text,
            "  {:<12} {low} to {high} is probably the largest, by a line through the runs so far; no run has proved it",
            "estimate"
        );
    }
    if let Some(next) = &row.next
        && row.bound != Bound::Failed
    {
        let (value, refusal) = (value(fit, next), refusal(next));
        let _ = writeln!(text, "  {:<12} {value} {refusal}", "next");
    }
    if let Some(largest) = &row.largest {
        let command = &largest.command;
        let _ = writeln!(text, "  {:<12} {HINT}{command}{HINT:#}", "command");
        for constant in &largest.constants {
            let tonnage_fit::ConstantValue {
                file,
                line,
                name,
                value,
                ..
            } = constant;
            let _ = writeln!(
                text,
                "  {:<12} {HINT}{file}:{line}  {name} = {value}{HINT:#}",
                "with"
            );
        }
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

/// The parameters whose values were seen to change nothing, maybe because the script does not read them.
fn without_effect(fit: &Fit) -> Vec<&str> {
    let ran = |trial: &&Trial| {
        matches!(
            trial.outcome,
            Outcome::Fits | Outcome::Uncertain | Outcome::DoesNotFit
        )
    };
    let trials: Vec<&Trial> = fit
        .rows
        .iter()
        .flat_map(|row| &row.trials)
        .filter(ran)
        .collect();
    let is_without = |name: &&str| {
        // Only a difference in this one alone describes it.
        let mut groups: BTreeMap<Vec<&str>, Vec<&Trial>> = BTreeMap::new();
        for trial in &trials {
            let others = trial.values.iter().filter(|(other, _)| other != name);
            let others = others.map(|(_, value)| value.as_str()).collect();
            groups.entry(others).or_default().push(trial);
        }
        let figures = |trial: &Trial| (trial.need, trial.peak_allocated);
        let same = |group: &Vec<&Trial>| {
            group[0].need.is_some() && group.iter().all(|it| figures(it) == figures(group[0]))
        };
        let mut groups = groups.values().filter(|group| group.len() > 1).peekable();
        groups.peek().is_some() && groups.all(same)
    };
    let values = trials.first().map_or(&[][..], |trial| &trial.values);
    let names = values.iter().map(|(name, _)| name.as_str());
    names.filter(is_without).collect()
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
    if fit.interrupted && fit.remedies.is_none() && !fit.found {
        let _ = writeln!(
            text,
            "  {WARN}the search was interrupted: no change was tried{WARN:#}"
        );
    }
    let left_out = fit.rows.iter().filter(|row| row.bound != Bound::Failed);
    let left_out = left_out.flat_map(|row| &row.trials);
    let left_out: Vec<&Trial> = left_out.filter(|trial| trial.why.is_some()).collect();
    if let (Some(_), [first, ..]) = (&fit.searched, left_out.as_slice()) {
        let values: Vec<&str> = left_out.iter().map(|trial| value(fit, trial)).collect();
        let _ = writeln!(
            text,
            "  {WARN}left out: {}, which fails for another reason than memory ({}); steps leave such values out, {{8..512+8}}{WARN:#}",
            values.join(", "),
            first.why.as_deref().unwrap_or_default(),
        );
    }
    for name in without_effect(fit) {
        let _ = writeln!(
            text,
            "  {WARN}{name} makes no difference: the job needs the same with every value that was tried{WARN:#}"
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
        Some(why) => format!("; each in its own process, because {why}"),
    };
    let proved = if fit.gpus.is_empty() && !fit.rows.is_empty() {
        "; what is shown was run as shown"
    } else {
        ""
    };
    let runs = if fit.runs == 1 { "dry run" } else { "dry runs" };
    let _ = writeln!(
        text,
        "  {DIM}{} {runs}, {:.1} s{proved}{how}{DIM:#}",
        fit.runs, fit.seconds
    );
}
