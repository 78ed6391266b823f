// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records a job on the real GPU of this machine.
//!
//! The job runs as it is, with the Python hook of a dry run and without its stand-in: nothing is put in front of the
//! CUDA libraries, kernels run, and the job's exit code is its own. The hook drains PyTorch's history into the folder
//! of the run about twice a second, so a job that is killed leaves what was recorded until then.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tonnage_analysis::verdict::Verdict;
use tonnage_capture::RECORD_FOLDER_PREFIX;
use tonnage_gpus::{Catalogue, Gpu};
use tonnage_recording::facts;
use tonnage_recording::{WriteError, Writer, meta};

use crate::PRODUCER;
use crate::collect::{CollectError, Collected, collect};
use crate::dry_run::judge;
use crate::error::RunError;
use crate::hook;
use crate::job::Job;
use crate::observer::{Attempt, JobEnd, Observer};
use crate::python::interpreter_of;
use crate::run_dir::{self, Prepared};
use crate::watch::{self, Watching};

/// How a job is recorded.
///
/// ```
/// let mut options = tonnage_run::RecordOptions::default();
/// options.forward_signals = true;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordOptions {
    /// Handle SIGINT, SIGTERM and SIGHUP while the job runs, as in [`Options::forward_signals`].
    ///
    /// [`Options::forward_signals`]: crate::Options::forward_signals
    pub forward_signals: bool,
    /// Where the folder of the job is made while it runs, instead of the temporary folder.
    pub live: Option<PathBuf>,
}

/// The recording of a job on a real GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// Whether it ran out of memory, how much was in use, and what held it.
    pub verdict: Verdict,
    /// How it ended.
    pub end: JobEnd,
    /// The contents that were written.
    pub collected: Collected,
}

/// Runs a job on the GPUs of this machine and records what it does to their memory, into the file `recording`.
///
/// # Errors
///
/// If there is no GPU, or the job could not be started or its recording not be written. How the job itself ends is a
/// result.
///
/// ```no_run
/// use std::path::Path;
/// use tonnage_run::{Job, Quiet, RecordOptions, record};
///
/// let job = Job::new(["python", "train.py"]);
/// let recorded = record(&job, &RecordOptions::default(), Path::new("train.tonnage"), &mut Quiet)?;
/// println!("{} rows, {}", recorded.collected.events, recorded.end.ending);
/// # Ok::<(), tonnage_run::RunError>(())
/// ```
pub fn record(
    job: &Job,
    options: &RecordOptions,
    recording: &Path,
    observer: &mut dyn Observer,
) -> Result<Recorded, RunError> {
    if gpu_count(job)? == 0 {
        return Err(RunError::NoGpu { job: job.line() });
    }
    let record_dir = RecordDir::create(options.live.as_deref())?;
    let watching = Watching {
        world: None,
        start: None,
        forward_signals: options.forward_signals,
        patience: None,
    };
    observer.started(Attempt::Limited);
    let end = watch::watch(&record_dir, job, &watching, observer)?;
    observer.ended(Attempt::Limited, &end);
    let collected = record_dir.write(job, &end, recording);
    let collected = collected.map_err(|source| RunError::Record {
        path: recording.to_owned(),
        source,
    })?;
    Ok(Recorded {
        verdict: judge(recording)?,
        end,
        collected,
    })
}

/// The temporary folder of a recorded job: the Python hook, and what the processes write.
struct RecordDir {
    folder: TempDir,
}

impl RecordDir {
    fn create(live: Option<&Path>) -> Result<Self, RunError> {
        let folder = run_dir::folder_of_job(RECORD_FOLDER_PREFIX, live)?;
        let settings = serde_json::json!({
            "record": folder.path(),
            "values": false,
            "stop_after_steps": null,
            "stop_after_seconds": null,
        });
        hook::write(folder.path(), &settings).map_err(|source| RunError::Prepare {
            folder: folder.path().to_owned(),
            source,
        })?;
        Ok(Self { folder })
    }

    /// Writes what the processes left as one recording.
    fn write(&self, job: &Job, end: &JobEnd, output: &Path) -> Result<Collected, CollectError> {
        let file = File::options().append(true).create(true).open(output);
        let mut writer = Writer::new(file.map_err(WriteError::from)?, PRODUCER)?;
        let collected = collect(self.folder.path(), &mut writer)?;
        let mut all = vec![
            (meta::COMMAND, job.line()),
            (facts::ENDING, end.ending.to_string()),
        ];
        if let Some(machine) = &collected.machine {
            let gpu = catalogued(&machine.name, machine.capacity);
            all.extend(gpu.map(|gpu| (facts::GPU_ID, gpu.id)));
            all.extend([
                (meta::GPU_NAME, machine.name.clone()),
                (facts::GPU_COUNT, machine.count.to_string()),
                (meta::GPU_CAPACITY, machine.capacity.to_string()),
                (facts::GPU_CAPACITY_KNOWN, facts::MEASURED.to_owned()),
                (meta::GPU_CONTEXT, machine.context.to_string()),
                (facts::GPU_CONTEXT_KNOWN, facts::MEASURED.to_owned()),
            ]);
        }
        if end.interrupted {
            all.push((facts::INTERRUPTED, "yes".to_owned()));
        }
        for (name, text) in all {
            writer.meta(facts::RUN, name, &text)?;
        }
        writer.finish()?;
        Ok(collected)
    }
}

impl Prepared for RecordDir {
    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn capacity(&self) -> u64 {
        0
    }

    fn environment(&self, job: &Job) -> Vec<(&'static str, OsString)> {
        vec![hook::variable(self.folder.path(), job)]
    }
}

/// The GPU of the catalogue with the driver's name, and the size that is nearest to this one.
pub(crate) fn catalogued(name: &str, capacity: u64) -> Option<Gpu> {
    Catalogue::embedded().measured(name, capacity).cloned()
}

/// Queries the driver for how many devices there are: prints a number, 0 if there is no driver.
const QUESTION: &str = "\
import ctypes
count = ctypes.c_int(0)
try:
    driver = ctypes.CDLL('libcuda.so.1')
    driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count))
except (OSError, AttributeError):
    pass
print(count.value)";

/// How many GPUs the job would see; queried in its own environment. At least one where that cannot be found out.
fn gpu_count(job: &Job) -> Result<u32, RunError> {
    let Some(python) = interpreter_of(job)? else {
        return Ok(1);
    };
    let mut command = Command::new(python);
    command
        .args(["-c", QUESTION])
        .envs(job.environment.iter().cloned())
        .stdin(Stdio::null());
    if let Some(folder) = &job.folder {
        command.current_dir(folder);
    }
    let answer = command.output().ok();
    let count = answer.and_then(|answer| {
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        text.trim().parse().ok()
    });
    Ok(count.unwrap_or(1))
}
