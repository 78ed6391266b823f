// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dry runs as a library: runs a job with simulated GPUs, records what it does to their memory, judges whether it fits.
//!
//! [`dry_run`] does all of it. A [`Job`] has the command, [`Options`] the GPU, and an [`Observer`] is notified of what
//! happens meanwhile. The recording goes to a file; the [`DryRun`] has the verdict and how each run of the job went.
//!
//! ```no_run
//! use std::path::Path;
//! use tonnage_run::{Job, Options, Quiet, dry_run};
//!
//! let job = Job::new(["python", "train.py", "--batch-size", "8"]);
//! let mut options = Options::for_gpu("a100-40gb")?;
//! options.gpus = 2;
//! let run = dry_run(&job, &options, Path::new("train.tonnage"), &mut Quiet)?;
//! println!("{:?}, {} bytes of headroom", run.verdict.outcome, run.verdict.spare());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The steps are public too, for callers that start processes in ways of their own, such as a server that forks one
//! process for each variant of a job:
//!
//! 1. [`Torch::find`] reports which CUDA the job's torch was built for;
//! 2. [`RunDir::create`] makes the folder with the stand-in, the Python hook and the configuration, and
//!    [`RunDir::environment`] gives the variables that make a process use it;
//! 3. the processes run, and write what they do into the folder;
//! 4. [`RunDir::record`] makes a recording of it;
//! 5. [`judge`] reads the verdict from the recording.
//!
//! [`record`] does the same on a real GPU, without the stand-in: the job runs as it is, and only the Python hook is
//! added. [`verify`] does both and compares them.
//!
//! **Invariants:** nothing here prints. No signal handler is installed unless [`Options::forward_signals`] requests it.
#![forbid(unsafe_code)]

pub mod attach;
pub mod changes;
pub mod collect;
mod constants;
mod dry_run;
mod endings;
mod error;
mod files;
mod fork_server;
mod hook;
mod job;
mod leftovers;
mod measured;
mod observer;
mod options;
mod prepare;
mod python;
mod ranks;
mod record;
mod run_dir;
mod side_effects;
mod signals;
mod standin;
mod verify;
mod watch;

pub use constants::Constant;
pub use dry_run::{DryRun, Run, dry_run, dry_run_forked, first_dry_run, judge};
pub use error::RunError;
pub use fork_server::{ForkServer, Imports};
pub use job::{Job, JobOutput};
pub use measured::Machine;
pub use observer::{Attempt, Ending, JobEnd, Observer, Progress, Quiet};
pub use options::{AddressOrder, Options, StopAfter};
pub use prepare::real_gpu;
pub use python::Torch;
pub use ranks::{Launched, World, launched};
pub use record::{RecordOptions, Recorded, record};
pub use run_dir::{RunDir, private_folder};
pub use verify::{Verified, VerifyOptions, verify};

/// The name of tonnage in the files it writes.
pub const PRODUCER: &str = concat!("tonnage ", env!("CARGO_PKG_VERSION"));
