// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dry run itself: run the job, record it, judge it.
//!
//! A job that runs out of memory is run a second time on devices without a limit, because only then is it known how
//! much it needs. Both recordings are in one file, one after the other.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;

use tonnage_analysis::verdict::{Outcome, Verdict, VerdictError, verdict, verdict_of_whole};
use tonnage_gpus::Catalogue;
use tonnage_recording::second_recording;

use crate::collect::Collected;
use crate::error::RunError;
use crate::fork_server::{ForkServer, Imports};
use crate::job::Job;
use crate::observer::{Attempt, JobEnd, Observer};
use crate::options::Options;
use crate::prepare::prepare;
use crate::python::Torch;
use crate::run_dir::{Prepared, RunDir};
use crate::watch::{self, Start, Started, Watching};

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// How it ended.
    pub end: JobEnd,
    /// The recording.
    pub collected: Collected,
}

/// The result of a dry run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DryRun {
    /// Whether the job fits, by how much, and what held the memory.
    pub verdict: Verdict,
    /// The run on devices with their own memory.
    pub limited: Run,
    /// The run on devices without a limit, if the job ran out of memory and its need was wanted.
    pub unlimited: Option<Run>,
}

/// Runs a job with simulated GPUs and judges whether it fits; the recording is appended to the file `recording`.
///
/// The job is run once more without a limit if it runs out of memory, unless [`Options::stop_at_oom`] is set.
///
/// # Errors
///
/// If the job could not be started, recorded or judged. That it does not fit, or fails, is a verdict.
pub fn dry_run(
    job: &Job,
    options: &Options,
    recording: &Path,
    observer: &mut dyn Observer,
) -> Result<DryRun, RunError> {
    let torch = prepare(job, options)?;
    let how = How {
        server: None,
        torch,
    };
    Ok(run(job, options, recording, &how, observer)?.0)
}

/// Like [`dry_run`], and returns the data that a [`ForkServer`] needs to run further variants of the job; `None` if the
/// job did not get far enough.
///
/// # Errors
///
/// Those of [`dry_run`].
pub fn first_dry_run(
    job: &Job,
    options: &Options,
    recording: &Path,
    observer: &mut dyn Observer,
) -> Result<(DryRun, Option<Imports>), RunError> {
    let torch = prepare(job, options)?;
    let how = How {
        server: None,
        torch,
    };
    let mut options = options.clone();
    options.list_imports = true;
    run(job, &options, recording, &how, observer)
}

/// Like [`dry_run`], in a process that `server` forks off.
///
/// # Errors
///
/// Those of [`dry_run`], and [`RunError::ForkServer`] if the server has ended: the job can be run without it then.
pub fn dry_run_forked(
    server: &ForkServer,
    job: &Job,
    options: &Options,
    recording: &Path,
    observer: &mut dyn Observer,
) -> Result<DryRun, RunError> {
    options.validate()?;
    let how = How {
        server: Some(server),
        torch: server.torch(),
    };
    Ok(run(job, options, recording, &how, observer)?.0)
}

/// How processes are started.
struct How<'a> {
    server: Option<&'a ForkServer>,
    torch: Torch,
}

fn run(
    job: &Job,
    options: &Options,
    recording: &Path,
    how: &How<'_>,
    observer: &mut dyn Observer,
) -> Result<(DryRun, Option<Imports>), RunError> {
    let mut run_once = |attempt, patience| {
        let mut run_dir = RunDir::create(options, how.torch, attempt)?;
        run_dir.protect_files(job)?;
        let fork = how.server.map(|server| {
            move |prepared: &dyn Prepared, job: &Job| {
                let variant = server.fork(prepared, job);
                variant.map(|variant| Box::new(variant) as Box<dyn Started>)
            }
        });
        let watching = Watching {
            world: options.world.as_ref().map(|world| (world, options.gpus)),
            start: fork.as_ref().map(|fork| fork as &Start<'_>),
            forward_signals: options.forward_signals,
            patience,
        };
        observer.started(attempt);
        let end = watch::watch(&run_dir, job, &watching, observer)?;
        observer.ended(attempt, &end);
        // A second run on devices without a limit writes other files, which no caller requested.
        if attempt == Attempt::Limited {
            run_dir.keep_files()?;
        }
        let collected = run_dir.record(job, &end, recording);
        let collected = collected.map_err(|source| RunError::Record {
            path: recording.to_owned(),
            source,
        })?;
        let imports = options
            .list_imports
            .then(|| Imports::read(run_dir.path()))
            .flatten();
        Ok::<(Run, Option<Imports>), RunError>((Run { end, collected }, imports))
    };
    let (limited, imports) = run_once(Attempt::Limited, None)?;
    let verdict = judge(recording)?;
    if verdict.outcome != Outcome::DoesNotFit || options.stop_at_oom {
        let run = DryRun {
            verdict,
            limited,
            unlimited: None,
        };
        return Ok((run, imports));
    }
    let patience = watch::patience(limited.end.elapsed);
    let (unlimited, _) = run_once(Attempt::Unlimited, Some(patience))?;
    let mut verdict = judge(recording)?;
    if let Some(need) = &mut verdict.need
        && need.known != "unknown"
    {
        let catalogue = Catalogue::embedded();
        let margin = options.margin.unwrap_or(need.uncounted);
        let bytes = need.bytes.saturating_add(margin);
        let gpus = catalogue.that_hold(bytes, verdict.context.bytes);
        need.gpus = gpus.iter().map(|gpu| gpu.id.clone()).collect();
    }
    let run = DryRun {
        verdict,
        limited,
        unlimited: Some(unlimited),
    };
    Ok((run, imports))
}

/// The verdict of a recording, and of the one without a limit behind it, if there is one.
pub fn judge(recording: &Path) -> Result<Verdict, RunError> {
    verdict_of(recording).map_err(|source| RunError::Judge {
        path: recording.to_owned(),
        source,
    })
}

fn verdict_of(recording: &Path) -> Result<Verdict, VerdictError> {
    let open_at = |offset: u64| {
        let mut file = File::open(recording)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file)
    };
    match second_recording(File::open(recording)?)? {
        Some(offset) => verdict_of_whole(|| open_at(0), || open_at(offset)),
        None => verdict(|| open_at(0)),
    }
}
