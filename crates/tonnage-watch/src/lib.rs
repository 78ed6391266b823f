// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPU memory of jobs while they run, read from the files that they write meanwhile.
//!
//! `tonnage record` and `tonnage run` make a directory for a job, into which its processes write. [`Folder`] finds such
//! directories and reads new data in them; [`metrics`] formats it for Prometheus; [`server`] answers Prometheus;
//! [`otlp`] sends metrics to an OpenTelemetry collector. Nothing is written, and no process of the job is contacted.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use tonnage_watch::Folder;
//!
//! let mut folder = Folder::new("/run/tonnage-missing", Duration::from_secs(300));
//! let seen = folder.read_new(Instant::now());
//! assert!(!seen.found && seen.jobs.is_empty());
//! ```
#![forbid(unsafe_code)]

mod log;
pub mod metrics;
pub mod otlp;
mod runs;
pub mod seen;
pub mod server;

pub use runs::Folder;
pub use seen::Seen;
