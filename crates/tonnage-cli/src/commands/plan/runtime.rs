// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage plan --for-runtime`: a plan that tonnage's allocator follows.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tonnage_analysis::replay::{RuntimePlan, RuntimePlanError};

use crate::commands::plan::PlanOptions;
use crate::commands::recording::{Output, explained, named};
use crate::commands::replay::{load, more_tracks};
use crate::options::Target;
use crate::output::{Answer, BAD, DIM, Form, GOOD, Reply, bytes, count, hinted, plural};

pub(super) fn run(options: &PlanOptions, form: Form) -> Result<Reply> {
    let Some(path) = options.output.as_deref() else {
        return Err(hinted(
            "--for-runtime writes a file",
            "name it: -o train.plan",
        ));
    };
    if options.reply.json && path == Path::new("-") {
        return Err(hinted(
            "both JSON and the plan would go to stdout",
            "name a file with -o, or leave out --json",
        ));
    }
    let output = Output::create(path, options.force)?;
    let job = load(&options.file, &Target::default())?;
    let made = super::watched(options, form, |options| job.runtime_plan(options));
    let made = made.map_err(|error| {
        let hint = match error {
            RuntimePlanError::Wrong(_) => {
                "this is a bug in tonnage; please report it with the file"
            }
            _ => "tonnage info prints the contents of the file",
        };
        explained(&error, hint).context(format!("cannot plan {}", named(&options.file)))
    })?;
    if made.grows() {
        // Before anything is written: such a plan would do harm.
        let reply = Reply::new(form, Answer::No, &made, |made| growth(made, options));
        return Ok(reply?);
    }
    super::write(output, path, |writer| write!(writer, "{}", made.plan))
        .with_context(|| format!("cannot keep the plan of {}", named(&options.file)))?;
    if path == Path::new("-") {
        return Ok(Reply::silent(Answer::Yes));
    }
    let reply = Reply::new(form, Answer::Yes, &made, |made| text(made, options));
    Ok(reply?)
}

/// Why no plan is written.
fn growth(made: &RuntimePlan, options: &PlanOptions) -> String {
    format!(
        "{BAD}not planned{BAD:#}: the program's memory grows with each step; what repeats takes {} of {} alive at most\n  \
         {:<10} nothing: with such a plan pages move that do not move without one\n\
         {DIM}next{DIM:#}  tonnage explain {} names what is kept\n",
        bytes(made.height),
        bytes(made.peak_live),
        "written",
        options.file.display(),
    )
}

fn text(made: &RuntimePlan, options: &PlanOptions) -> String {
    let mut text = String::new();
    let over = made.height.saturating_sub(made.peak_live);
    let _ = writeln!(
        text,
        "{GOOD}planned{GOOD:#}: {} for {} alive at most{}",
        bytes(made.height),
        bytes(made.peak_live),
        if over == 0 {
            String::new()
        } else {
            format!(
                ", {:.2} % above",
                over as f64 * 100.0 / made.peak_live.max(1) as f64
            )
        }
    );
    let once = plural(made.once, "request");
    let _ = match (made.steps, made.marked) {
        (0, _) => writeln!(
            text,
            "  {:<10} {once}; nothing in the recording repeats, so nothing is planned after them",
            "once"
        ),
        (steps, marked) => {
            let _ = writeln!(
                text,
                "  {:<10} {once}, up to the end of the first step",
                "once"
            );
            let how = if marked {
                "as the program marks them"
            } else {
                "found by what repeats"
            };
            let kinds = match made.kinds {
                1 => "all of one kind".to_owned(),
                kinds => format!("{} kinds", count(kinds)),
            };
            writeln!(
                text,
                "  {:<10} {} in {} {how}, {kinds}",
                "repeated",
                plural(made.repeated, "request"),
                plural(steps, "step"),
            )
        }
    };
    if made.anywhere > 0 {
        let _ = writeln!(
            text,
            "  {:<10} {}, which outlive several steps",
            "anywhere",
            plural(made.anywhere, "request")
        );
    }
    if made.unplaced() > 0 {
        let _ = writeln!(
            text,
            "  {:<10} {} of what is alive at most has no place",
            "unplaced",
            bytes(made.unplaced())
        );
    }
    if made.tracks > 1 {
        let _ = writeln!(
            text,
            "  {DIM}for process {} on GPU {}; {} not planned{DIM:#}",
            made.process,
            made.device,
            more_tracks(made.tracks as usize - 1)
        );
    }
    if let Some(path) = &options.output {
        let _ = writeln!(
            text,
            "{DIM}next{DIM:#}  tonnage replay {} --alloc tonnage --plan {}",
            options.file.display(),
            path.display()
        );
    }
    text
}
