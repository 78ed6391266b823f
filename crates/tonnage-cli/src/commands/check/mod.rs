// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage check`: dry runs against budgets.
//!
//! * `init` writes a first configuration;
//! * `config` reads the budgets and the accepted figures, and writes the latter;
//! * `render` has the answer in five formats.

mod config;
mod init;
mod render;

use std::error::Error as _;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use tonnage_analysis::check::{
    Answer as Held, Budget, Checked, Limits, Lock, SCHEMA_VERSION, judge,
};
use tonnage_analysis::diff::Summary;
use tonnage_analysis::holdings;
use tonnage_analysis::verdict::{Outcome, Verdict, ended};
use tonnage_gpus::Catalogue;
use tonnage_run::{Job, Options, RunError, dry_run};

use self::config::{
    LOCK, capacity, find_config, limits, margin, read_config, read_lock, words, write_lock,
};
#[cfg(feature = "schema")]
pub(crate) use self::render::All;
use self::render::render;
use super::recording::plain;
use super::run::{Screen, job_of};
use crate::Surroundings;
use crate::options::{QuietOptions, ScreenOptions, SideEffects};
use crate::output::{Answer, Form, HINT, Reply, bytes, hinted, print_err};

/// Check dry runs against memory budgets, for CI
///
/// Reads `[[budget]]` of tonnage.toml, or `[[tool.tonnage.budget]]` of pyproject.toml: a name, a
/// command (`run`), a GPU (`gpu`), and limits on `peak`, `reserved` and `growth` per step.
/// Dry-runs each of them and fails if a limit is exceeded, or if a figure is above the last
/// accepted one (tonnage.lock). Dry runs are deterministic, so a single byte counts.
///
/// Exit code: 0 every budget holds, 1 one does not, 2 a run failed or the configuration is wrong.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage check --init --gpu a100-40gb -- python train.py --steps 3
  tonnage check
  tonnage check --update
  tonnage check --format markdown >> \"$GITHUB_STEP_SUMMARY\"")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct CheckOptions {
    /// The configuration [default: tonnage.toml, else pyproject.toml, here].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The budgets to check [default: all of them]; with --init, the command of the first one.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Write a first tonnage.toml, for the command that follows, and check nothing.
    #[arg(long, conflicts_with_all = ["update", "json", "format"])]
    pub(crate) init: bool,
    /// The GPU of the first budget; `tonnage gpus` lists them [env: TONNAGE_GPU].
    #[arg(long, value_name = "NAME", requires = "init")]
    pub(crate) gpu: Option<String>,
    /// Overwrite the configuration if it is there.
    #[arg(long, requires = "init")]
    pub(crate) force: bool,
    /// Accept the figures as they are now: write them to tonnage.lock.
    #[arg(long)]
    pub(crate) update: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = CheckFormat::Text, value_name = "FORMAT")]
    pub(crate) format: CheckFormat,
    /// Print the result as JSON: short for `--format json`.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) quiet: QuietOptions,
    #[command(flatten)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten)]
    pub(crate) effects: SideEffects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// For test reports.
    Junit,
    /// Annotations of GitHub Actions.
    Github,
    /// For programs.
    Json,
}

pub(crate) fn run(
    options: &CheckOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    if options.init {
        return init::run(options);
    }
    let path = match &options.config {
        Some(path) => path.clone(),
        None => find_config(surroundings.folder.as_deref())?,
    };
    let config = read_config(&path)?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let lock_path = folder.join(LOCK);
    let mut lock = read_lock(&lock_path)?;
    let accepted_before = lock.clone();
    for name in &options.names {
        if !config.budgets.iter().any(|budget| &budget.name == name) {
            let known: Vec<&str> = config.budgets.iter().map(|b| b.name.as_str()).collect();
            return Err(hinted(
                format!("{} has no budget called {name}", path.display()),
                format!("it has {}", known.join(", ")),
            ));
        }
    }
    let wanted =
        |budget: &&Budget| options.names.is_empty() || options.names.contains(&budget.name);
    // Before anything runs: what is wrong in the last budget is found out now.
    let mut described = Vec::new();
    for budget in config.budgets.iter().filter(wanted) {
        let (job, mut machine) = describe(budget, surroundings)?;
        options.effects.apply(&mut machine);
        described.push((budget, limits(budget)?, job, machine));
    }
    let mut all = Vec::new();
    for (budget, limits, job, machine) in described {
        if surroundings.stop.load(Ordering::Relaxed) {
            break;
        }
        print_err(&format!(
            "{HINT}checking{HINT:#} {} on {}",
            plain(&budget.name),
            budget.gpu
        ));
        let recording = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
        let mut screen = Screen::new(
            !options.screen.no_progress && !options.quiet.quiet,
            surroundings,
        );
        let (mut checked, measured) = match dry_run(&job, &machine, recording.path(), &mut screen) {
            Ok(run) => check(
                budget,
                limits,
                &lock,
                &folder,
                &run.verdict,
                recording.path(),
            )?,
            // The others are checked all the same.
            Err(error) => (failed(budget, Held::Failed, explained(&error)), None),
        };
        if let Some(measured) = measured.filter(|_| options.update) {
            lock.budget.insert(budget.name.clone(), measured);
            if checked.answer == Held::New {
                checked.answer = Held::Holds;
            }
        }
        all.push(checked);
    }
    if options.update {
        lock.version = SCHEMA_VERSION;
        // A budget that is gone leaves nothing behind.
        lock.budget
            .retain(|name, _| config.budgets.iter().any(|budget| &budget.name == name));
        if lock == accepted_before {
            print_err(&format!("{} stays as it is", lock_path.display()));
        } else {
            write_lock(&lock_path, &lock)?;
            print_err(&format!("wrote {}", lock_path.display()));
        }
    }
    let format = if options.json {
        CheckFormat::Json
    } else {
        options.format
    };
    let mut text = render(&all, format, &path)?.trim_end().to_owned();
    if format == CheckFormat::Text
        && let Some(next) = next(&all, &config.budgets, options.update)
    {
        let _ = write!(text, "\n  {:<16} {HINT}{next}{HINT:#}", "next");
    }
    let failed = |held: Held| held == Held::Failed;
    // Accepting allows growth, never the excess of a limit.
    let holds = |held: Held| held.passes() || (options.update && held == Held::Grew);
    let answer = if all.iter().any(|checked| failed(checked.answer)) {
        Answer::Failed
    } else if all.iter().all(|checked| holds(checked.answer)) {
        Answer::Yes
    } else {
        Answer::No
    };
    let json = match form {
        Form::Both => Some(render(&all, CheckFormat::Json, &path)?),
        Form::Text | Form::Json => None,
    };
    Ok(Reply {
        text: Some(text),
        json,
        ..Reply::silent(answer)
    })
}

/// The next useful command after a budget that does not hold.
fn next(all: &[Checked], budgets: &[Budget], updated: bool) -> Option<String> {
    let checked = all.iter().find(|checked| !checked.answer.passes())?;
    if checked.answer == Held::Grew {
        let accept = "tonnage check --update, if the growth is intended";
        return (!updated).then(|| accept.to_owned());
    }
    let budget = budgets.iter().find(|budget| budget.name == checked.name)?;
    // Limits of the machine are not repeated here.
    if budget.gpus != 1 || budget.capacity.is_some() || budget.margin.is_some() {
        return None;
    }
    let command = words(budget).ok()?;
    let command = shlex::try_join(command.iter().map(String::as_str)).ok()?;
    let verb = match checked.answer {
        Held::DoesNotFit | Held::Uncertain => "fit",
        _ => "run",
    };
    let gpu = &budget.gpu;
    Some(format!("tonnage {verb} --gpu {gpu} -- {command}"))
}

/// A budget's job and machine, as a dry run takes them.
fn describe(budget: &Budget, surroundings: &Surroundings) -> Result<(Job, Options)> {
    // stdout is for the answer alone.
    let job = job_of(&words(budget)?, true, surroundings);
    let catalogue = Catalogue::embedded();
    let gpu = super::gpus::find(&catalogue, &budget.gpu)?;
    let mut options = Options::new(gpu.clone());
    options.gpus = budget.gpus;
    options.capacity = capacity(budget)?;
    options.margin = margin(budget)?;
    // A budget needs only whether the job fits; the shortage is for `tonnage run`.
    options.stop_at_oom = true;
    options.forward_signals = surroundings.forward_signals;
    options
        .validate()
        .with_context(|| format!("budget {} cannot be run", budget.name))?;
    Ok((job, options))
}

/// A budget that could not be held against anything, and why.
fn failed(budget: &Budget, answer: Held, trouble: String) -> Checked {
    Checked {
        name: budget.name.clone(),
        gpu: budget.gpu.clone(),
        answer,
        figures: Vec::new(),
        diff: None,
        torch_changed: None,
        trouble: Some(trouble),
    }
}

/// Why a dry run could not be done, with what to do.
fn explained(error: &RunError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    if let Some(hint) = error.hint() {
        let _ = write!(text, "; {hint}");
    }
    text
}

fn check(
    budget: &Budget,
    limits: Limits,
    lock: &Lock,
    folder: &Path,
    verdict: &Verdict,
    recording: &Path,
) -> Result<(Checked, Option<Summary>)> {
    let failed = |answer, trouble: String| failed(budget, answer, trouble);
    let exception = verdict.exceptions.first().map(|exception| {
        let message = exception.message.lines().next().unwrap_or_default();
        format!("{}: {message}", exception.kind)
    });
    match verdict.outcome {
        Outcome::Fits => {}
        Outcome::Uncertain => {
            let (room, kept) = verdict
                .margin
                .as_ref()
                .map_or((0, 0), |margin| (margin.room, margin.kept));
            let trouble = format!(
                "{} of headroom, and {} must stay free for CUDA overhead (`margin`)",
                bytes(room),
                bytes(kept)
            );
            return Ok((failed(Held::Uncertain, trouble), None));
        }
        Outcome::DoesNotFit => {
            let trouble = exception.unwrap_or_else(|| "out of memory".to_owned());
            return Ok((failed(Held::DoesNotFit, trouble), None));
        }
        Outcome::NoDevice => {
            return Ok((failed(Held::Failed, "it never used a GPU".to_owned()), None));
        }
        Outcome::NotCovered => {
            let user = verdict.foreign.first();
            let name = user.map_or("something else", |user| user.name.as_str());
            let uses = format!("it uses the GPU through {name}, which cannot be judged");
            let trouble =
                exception.map_or_else(|| uses.clone(), |raised| format!("{raised}; {uses}"));
            return Ok((failed(Held::Failed, trouble), None));
        }
        Outcome::Failed | Outcome::Interrupted => {
            let waits = verdict.deadlocks.first().map(|deadlock| {
                format!(
                    "rank {} waits forever in {}",
                    deadlock.rank, deadlock.operation
                )
            });
            let trouble = exception.or(waits);
            let trouble =
                trouble.unwrap_or_else(|| format!("the script {}", ended(&verdict.ending)));
            return Ok((failed(Held::Failed, trouble), None));
        }
    }
    let read = holdings::read(fs::File::open(recording)?)?;
    let base = fs::canonicalize(if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    })?;
    let Some(measured) = Summary::from_recording(&read, &base.to_string_lossy()) else {
        return Ok((failed(Held::Failed, "it never used a GPU".to_owned()), None));
    };
    let checked = judge(budget, limits, &measured, lock.budget.get(&budget.name));
    Ok((checked, Some(measured)))
}

#[cfg(test)]
mod tests {
    use tonnage_analysis::check::CommandLine;

    use super::*;

    #[test]
    fn a_budget_that_does_not_hold_names_the_next_command() {
        let budget = Budget::new(
            "train",
            CommandLine::Line("train.py --name 'a b'".to_owned()),
            "l4",
        );
        let after = |answer, budget: &Budget| {
            let all = [failed(budget, answer, String::new())];
            next(&all, std::slice::from_ref(budget), false)
        };
        let job = "--gpu l4 -- train.py --name 'a b'";
        for (answer, expected) in [
            (Held::Holds, None),
            (Held::New, None),
            (Held::DoesNotFit, Some(format!("tonnage fit {job}"))),
            (Held::Uncertain, Some(format!("tonnage fit {job}"))),
            (Held::Over, Some(format!("tonnage run {job}"))),
            (Held::Failed, Some(format!("tonnage run {job}"))),
        ] {
            assert_eq!(after(answer, &budget), expected, "{answer:?}");
        }
        let grew = after(Held::Grew, &budget).unwrap();
        assert!(grew.starts_with("tonnage check --update"), "{grew}");
        let several = Budget { gpus: 2, ..budget };
        assert_eq!(after(Held::DoesNotFit, &several), None);
    }
}
