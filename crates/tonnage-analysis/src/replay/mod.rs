// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would have happened with another allocator, another setting, another device?
//!
//! A recording becomes a list of requests ([`Job::load`]); each allocator then
//! serves that list on a simulated device ([`Job::replay`]).
//!
//! * `job` and `track` read a recording and see that it is understood, `serve` replays it, `report` is the result;
//! * `requests` reads the program's requests out of a recording;
//! * `start` is what a truncated recording began with;
//! * `device` is the device it runs on;
//! * `policy` runs requests through one allocator;
//! * `changed` is the same program with other lifetimes of its blocks;
//! * `check` compares the replay under the recorded setting with the recording;
//! * `smallest` finds the smallest device on which a recording completes;
//! * `offline` is the placement that knows every lifetime in advance;
//! * `timeline` and `runtime_plan` make a plan that tonnage's allocator can follow.
//!
//! PyTorch's allocator is exact; the others are approximations and are marked as such in
//! every result.

mod alloc;
mod changed;
mod check;
mod device;
mod facts;
mod job;
mod offline;
mod options;
mod policy;
mod report;
mod requests;
mod runtime_plan;
mod serve;
mod smallest;
mod start;
#[cfg(test)]
mod tests;
mod timeline;
mod track;

pub use alloc::{Alloc, AllocError, Fidelity, TorchConf};
pub use changed::{Change, Changes};
pub use job::Job;
pub use options::{Options, ReplayError};
pub use report::{
    Assumption, Comparison, Difference, Diverged, DriverCalls, Outcome, OwnCounts, PlanFollowed,
    Replayed, Report, SCHEMA_VERSION, Seen, Smallest, TrackReport,
};
pub use requests::Gaps;
pub use runtime_plan::{PLAN_SCHEMA_VERSION, RuntimePlan, RuntimePlanError};

pub(crate) use track::Track;

/// A plan that tonnage's allocator can follow, and why a file is not one.
pub use tonnage_alloc::tonnage::{AllocatorPlan, PlanError as AllocatorPlanError};
