// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much GPU memory a job will take, for those who share GPUs among jobs.
//!
//! Schedulers keep an account of GPU memory and require a person to declare each job's share. A [`Forecast`] is that
//! number with its evidence, made from the verdict of a dry run or of a recording. A [`Store`] keeps forecasts as files
//! and finds that of a job before it starts, by its [`JobKey`]; [`emit`] writes the number as each scheduler takes it,
//! and [`admit`] decides about a job that requests another one, or none. [`ledger`] compares forecasts with the memory
//! that jobs used, and [`metrics`] reports all of it to Prometheus. [`review`] reads the accounting of past jobs.
//! [`message`] carries one out of a container.
#![forbid(unsafe_code)]

pub mod admit;
pub mod emit;
pub mod fleet;
mod forecast;
mod key;
pub mod kubernetes;
pub mod ledger;
pub mod message;
pub mod metrics;
pub mod place;
pub mod review;
pub mod slurm;
mod store;

pub use forecast::{
    Evidence, Fits, Forecast, ForecastError, Known, MIB, Role, SCHEMA_VERSION, Source,
};
pub use key::{ALLOCATOR_SETTINGS, JobKey, SourceFiles, environment_digest};
pub use store::{Listed, Pruned, Snapshot, Store, StoreError};
