// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage forecast learn-from`: what many jobs took, from the accounting of a cluster.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::{ForecastStore, store_of, unusable};
use crate::commands::fleet::review::history_of;
use crate::commands::recording::plain;
use crate::options::ReplyOptions;
use crate::output::{Answer, DIM, Form, Reply, plural};

/// Keep what past jobs took, from the accounting of a cluster
///
/// Reads what `tonnage fleet review` reads: sacct's output with -P, the answer of
/// Prometheus to a query over a range, or CSV. A job without a forecast is kept,
/// too. Slurm's column AdminComment names the forecast that a job ran with. A job
/// that failed with a full GPU is kept as one that ran out of memory: its next run
/// requests a quarter more. A job that was kept before is replaced. A task with
/// several GPUs is left out: Slurm records only their sum.
///
/// Exit code: 0 done, 1 no job had a measured use.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  sacct -a -P -S now-1days -E now \\
    -o JobID,JobName,Account,User,AllocTRES,NTasks,Start,End,State,TRESUsageInMax,AdminComment > jobs.txt
  tonnage forecast learn-from --store forecasts jobs.txt")]
pub(crate) struct LearnFrom {
    /// Accounting of past jobs; `-` for standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    store: ForecastStore,
    /// The GPU of jobs that name none.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// The jobs that were kept.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Learned {
    /// Version of this JSON.
    #[cfg_attr(feature = "schema", schemars(extend("const" = tonnage_forecast::SCHEMA_VERSION)))]
    schema_version: u32,
    /// Jobs whose use was kept.
    jobs: u64,
    /// Jobs among them that ran with a forecast.
    with_forecast: u64,
    /// Jobs among them that failed with a full GPU.
    full_failures: u64,
    /// Jobs without a measured use, with an average of several GPUs, or with more than their GPU has.
    not_measured: u64,
    /// Reasons for caution, a sentence each.
    notes: Vec<String>,
}

pub(super) fn learn_from(options: &LearnFrom, form: Form) -> Result<Reply> {
    let store = store_of(&options.store)?;
    let history = history_of(&options.files, options.gpu.as_deref())?;
    let mut learned = Learned {
        schema_version: tonnage_forecast::SCHEMA_VERSION,
        jobs: 0,
        with_forecast: 0,
        full_failures: 0,
        not_measured: 0,
        notes: history.notes,
    };
    for job in &history.jobs {
        let Some(observation) = job.observation() else {
            learned.not_measured += 1;
            continue;
        };
        store
            .observe(&observation)
            .map_err(|error| unusable(&error))?;
        learned.jobs += 1;
        learned.with_forecast += u64::from(observation.forecast.is_some());
        let is_oom = observation.ended == tonnage_forecast::ledger::Ended::OutOfMemory;
        learned.full_failures += u64::from(is_oom);
    }
    let answer = if learned.jobs == 0 {
        Answer::No
    } else {
        Answer::Yes
    };
    Ok(Reply::new(form, answer, &learned, |learned| {
        let mut text = format!(
            "kept what {} took, {} with a forecast",
            plural(learned.jobs, "job"),
            learned.with_forecast
        );
        if learned.full_failures > 0 {
            let failures = plural(learned.full_failures, "job");
            let _ = write!(text, "; {failures} failed with a full GPU");
        }
        if learned.not_measured > 0 {
            let others = plural(learned.not_measured, "job");
            let _ = write!(
                text,
                "; {others} without a measured use of each GPU left out"
            );
        }
        for note in &learned.notes {
            let _ = write!(text, "\n{DIM}note{DIM:#} {}", plain(note));
        }
        text
    })?)
}
