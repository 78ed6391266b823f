// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes a job fit on a GPU, found by dry runs of the job itself.
//!
//! * `template`: the numbers that may change, written into the job's own command: `--batch-size {batch=1..256}`;
//! * `search`: the largest of them that fits, in few runs;
//! * `variants`: runs one variant after the other, in forks of one process where that gives the same recordings;
//! * `compare`: whether a fork did the same as a fresh process;
//! * `remedies`: what makes a job fit that does not, by changes inside its process;
//! * `least_time`: the least time that what was counted takes, by the published peak of the GPU;
//! * `gpus`: which GPU it fits on;
//! * `serving`: how many requests of which length a server holds at once;
//! * `frontier`: the question and its answer.
//!
//! **Invariants:** nothing here prints. Every answer was dry-run; so was the next larger one, which does not fit.
#![forbid(unsafe_code)]

mod compare;
mod frontier;
mod gpus;
mod least_time;
mod remedies;
mod search;
mod serving;
mod template;
mod variants;

pub use frontier::{Bound, Fit, FitError, Limit, Request, Row, SCHEMA_VERSION, fit};
pub use gpus::GpuVerdict;
pub use least_time::{LeastTime, Work};
pub use remedies::{ExtraCost, NotMade, Remedies, Remedy};
pub use search::Judgement;
pub use serving::{
    SERVING_SCHEMA_VERSION, ServeCheck, ServeError, ServeEvidence, ServeRequest, ServeRow, Serving,
    Startup, serve_fit, starts_vllm,
};
pub use template::{Choice, Parameter, Template, TemplateError};
pub use variants::{ConstantValue, Evidence, Stage, Trial, Watcher};
