// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts of jobs without a forecast, made in the cluster.
//!
//! The webhook puts a scheduling gate on a pod whose job has no forecast. The controller has the job run dry on a node
//! without a GPU, as an ordinary Job with the same image and command; its result is kept as a custom resource, and the
//! gate is opened. Only then is the pod's claim made, with the number.
//!
//! - [`objects`]: the custom resource, and the Jobs.
//! - [`dry_run`]: the Job of a dry run.
//! - [`plan`]: what is to be done next; pure.
//! - [`lease`]: which of several controllers does it.
//! - [`run`]: watches, and does it.

pub mod dry_run;
pub mod lease;
pub mod objects;
pub mod plan;
pub mod run;
