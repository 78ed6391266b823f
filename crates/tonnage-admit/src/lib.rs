// SPDX-License-Identifier: MIT OR Apache-2.0
//! An admission webhook of Kubernetes that knows how much GPU memory a job will take.
//!
//! With consumable capacity (Dynamic Resource Allocation, on by default since Kubernetes 1.36) the scheduler keeps an
//! account of the memory of each GPU, and a ResourceClaim requests a part of it for a pod. The number can only be
//! written when the claim is created: its spec does not change afterwards. This webhook is called at that moment. It
//! finds the pod for which the claim is made, looks for the forecast of its command and image, and reports, writes or
//! refuses by the decision of [`tonnage_forecast::admit::decide`].
//!
//! - [`review`]: what the API server sends and gets back.
//! - [`claim`]: the request of a claim, and the place for a number.
//! - [`job`]: what a pod runs.
//! - [`devices`]: which GPUs a cluster has.
//! - [`forecasts`]: the forecasts of a folder, kept in memory.
//! - [`answer`]: the decision about a claim, from all of these; pure.
//! - [`cluster`]: pods and GPUs, kept up to date.
//! - [`cluster_forecasts`]: forecasts that were made in the cluster, kept up to date.
//! - [`client`]: requests to the API server, and watches.
//! - [`server`]: the webhook over TLS.
//! - [`arguments`]: the arguments of both programs.
//! - [`controller`]: forecasts of jobs that have none, made by dry runs in the cluster.
#![forbid(unsafe_code)]

pub mod answer;
pub mod arguments;
pub mod claim;
pub mod client;
pub mod cluster;
pub mod cluster_forecasts;
pub mod controller;
mod counters;
pub mod devices;
pub mod forecasts;
pub mod job;
pub mod objects;
pub mod review;
pub mod server;
