// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares a dry run with what a real GPU does: records the job on it, runs it dry on the same GPU of the catalogue,
//! and holds the two recordings against each other.
//!
//! The dry run is the one that `tonnage run` would do, with the catalogue's figures and not with those just measured:
//! whether they are right is part of the question.

use std::fs::File;
use std::path::{Path, PathBuf};

use tonnage_analysis::verify::{Verification, VerifyError, verify as compare};
use tonnage_gpus::Gpu;
use tonnage_recording::facts;
use tonnage_recording::{Reader, meta};

use crate::dry_run::{DryRun, dry_run};
use crate::error::RunError;
use crate::job::{Job, JobOutput};
use crate::observer::Observer;
use crate::options::Options;
use crate::record::{RecordOptions, Recorded, catalogued, record};

/// How a job is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// The GPU of the dry run; the one of the recording if there is none.
    pub gpu: Option<Gpu>,
    /// Whether the recording of the GPU is there already: then the job runs dry only.
    pub is_recorded: bool,
    /// Handle SIGINT, SIGTERM and SIGHUP while the job runs, as in [`Options::forward_signals`].
    pub forward_signals: bool,
    /// The stand-in library, as in [`Options::standin`].
    pub standin: Option<PathBuf>,
}

/// The result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Verified {
    /// Where the two recordings differ, and why.
    pub verification: Verification,
    /// The job on the GPU, if it was run now.
    pub recorded: Option<Recorded>,
    /// The dry run.
    pub dry_run: DryRun,
}

/// Records `job` on the GPU of this machine into the file `real`, runs it dry into the file `dry`, and compares the
/// two.
///
/// # Errors
///
/// If one of the runs could not be done, or the GPU is not in the catalogue. That they differ is a result.
pub fn verify(
    job: &Job,
    options: &VerifyOptions,
    real: &Path,
    dry: &Path,
    observer: &mut dyn Observer,
) -> Result<Verified, RunError> {
    let mut recorded = None;
    if !options.is_recorded {
        let how = RecordOptions {
            forward_signals: options.forward_signals,
            live: None,
        };
        recorded = Some(record(job, &how, real, observer)?);
    }
    let (name, capacity, count) = machine(real)?;
    let gpu = options.gpu.clone().or_else(|| catalogued(&name, capacity));
    let gpu = gpu.ok_or_else(|| RunError::NotCatalogued {
        gpu: name,
        capacity,
    })?;
    let mut simulated = Options::new(gpu);
    simulated.gpus = count.clamp(1, Options::MAX_GPUS);
    simulated.stop_at_oom = true;
    // It is beside a real one on purpose.
    simulated.allow_real_gpu = true;
    simulated.forward_signals = options.forward_signals;
    simulated.standin.clone_from(&options.standin);
    let mut again = job.clone();
    if recorded.is_some() {
        // Its output was shown already.
        again.output = JobOutput::Discard;
    }
    let dry_run = dry_run(&again, &simulated, dry, observer)?;
    let verification = compare(open(real)?, open(dry)?).map_err(|error| {
        let (path, source) = match error {
            VerifyError::Dry(source) => (dry, source),
            VerifyError::Real(source) => (real, source),
        };
        RunError::Compare {
            path: path.to_owned(),
            source,
        }
    })?;
    Ok(Verified {
        verification,
        recorded,
        dry_run,
    })
}

fn open(recording: &Path) -> Result<File, RunError> {
    File::open(recording).map_err(|source| RunError::Read {
        path: recording.to_owned(),
        source,
    })
}

/// The GPU of a recording: the driver's name, bytes of memory, and how many there were.
fn machine(recording: &Path) -> Result<(String, u64, u8), RunError> {
    let file = open(recording)?;
    let unreadable = |source| RunError::Compare {
        path: recording.to_owned(),
        source,
    };
    let mut reader = Reader::new(file).map_err(unreadable)?;
    for event in &mut reader {
        event.map_err(unreadable)?;
    }
    let fact = |name: &str| reader.fact(facts::RUN, name).unwrap_or_default();
    if fact(facts::GPU_CAPACITY_KNOWN) != facts::MEASURED {
        return Err(RunError::NotMeasured {
            path: recording.to_owned(),
        });
    }
    Ok((
        fact(meta::GPU_NAME).to_owned(),
        fact(meta::GPU_CAPACITY).parse().unwrap_or(0),
        fact(facts::GPU_COUNT).parse().unwrap_or(1),
    ))
}
