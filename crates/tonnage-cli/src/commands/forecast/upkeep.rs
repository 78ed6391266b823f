// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage forecast prune` and `forget`: files of a store that are old, or wrong.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::{ForecastStore, store_of, unusable};
use crate::commands::recording::plain;
use crate::options::ReplyOptions;
use crate::output::{Answer, Form, Reply, WARN, hinted, plural};

const DAY: u64 = 24 * 60 * 60;

/// Delete forecasts and observations that are old
///
/// A forecast is deleted if it was made before that time and no run of its job was
/// observed since. Files that an older version wrote are moved into the folders
/// where a lookup finds them fast.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage forecast prune --store forecasts --older-than 90 --dry-run
  tonnage forecast prune --store forecasts --older-than 90")]
pub(crate) struct PruneOptions {
    #[command(flatten)]
    store: ForecastStore,
    /// The age in days.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..))]
    older_than: u32,
    /// Print what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// The files that were deleted and moved.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Pruning {
    /// Version of this JSON.
    #[cfg_attr(feature = "schema", schemars(extend("const" = tonnage_forecast::SCHEMA_VERSION)))]
    schema_version: u32,
    /// Whether nothing was changed.
    dry_run: bool,
    /// How many.
    #[serde(flatten)]
    pruned: tonnage_forecast::Pruned,
}

pub(super) fn prune(options: &PruneOptions, form: Form) -> Result<Reply> {
    let store = store_of(&options.store)?;
    let age = Duration::from_secs(u64::from(options.older_than) * DAY);
    let pruned = store.prune(age, SystemTime::now(), options.dry_run);
    let pruning = Pruning {
        schema_version: tonnage_forecast::SCHEMA_VERSION,
        dry_run: options.dry_run,
        pruned: pruned.map_err(|error| unusable(&error))?,
    };
    Ok(Reply::new(form, Answer::Yes, &pruning, |pruning| {
        let pruned = &pruning.pruned;
        let (deleted, moved) = if pruning.dry_run {
            ("would delete", "would move")
        } else {
            ("deleted", "moved")
        };
        let mut text = format!(
            "{deleted} {} and {} older than {}",
            plural(pruned.forecasts, "forecast"),
            plural(pruned.observations, "observation"),
            plural(u64::from(options.older_than), "day")
        );
        if pruned.moved > 0 {
            let _ = write!(text, "; {moved} {}", plural(pruned.moved, "file"));
        }
        text
    })?)
}

/// Delete a forecast, or what was observed of a job
///
/// Observations change the forecasts of later runs, so a wrong one has to go.
///
/// Exit code: 0 done, 1 there was nothing to delete.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage forecast forget --store forecasts --job 1234
  tonnage forecast forget --store forecasts 3f2a81c09b1d4e55")]
pub(crate) struct ForgetOptions {
    #[command(flatten)]
    store: ForecastStore,
    /// The name of a forecast: deleted with all observations of its runs.
    #[arg(
        value_name = "FORECAST",
        required_unless_present = "job",
        conflicts_with = "job"
    )]
    forecast: Option<String>,
    /// The scheduler's name of a job: its observations are deleted, and no forecast.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// The number of deleted files.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Forgotten {
    /// Version of this JSON.
    #[cfg_attr(feature = "schema", schemars(extend("const" = tonnage_forecast::SCHEMA_VERSION)))]
    schema_version: u32,
    /// Files that were deleted.
    files: u64,
}

pub(super) fn forget(options: &ForgetOptions, form: Form) -> Result<Reply> {
    let store = store_of(&options.store)?;
    let (files, what) = match (&options.job, &options.forecast) {
        (Some(job), _) => (store.forget_job(job), format!("observation of job {job}")),
        (None, Some(name)) => (store.forget_forecast(name), format!("forecast {name}")),
        (None, None) => {
            return Err(hinted(
                "there is nothing to forget",
                "name a forecast, or a job with --job",
            ));
        }
    };
    let forgotten = Forgotten {
        schema_version: tonnage_forecast::SCHEMA_VERSION,
        files: files.map_err(|error| unusable(&error))?,
    };
    let answer = if forgotten.files == 0 {
        Answer::No
    } else {
        Answer::Yes
    };
    Ok(Reply::new(form, answer, &forgotten, |forgotten| {
        if forgotten.files == 0 {
            let folder = store.folder().display();
            return format!("{WARN}no {}{WARN:#} in {folder}", plain(&what));
        }
        format!("deleted {}", plural(forgotten.files, "file"))
    })?)
}
