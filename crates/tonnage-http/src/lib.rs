// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of tonnage's servers: the webhook of Kubernetes and the exporter of live jobs.
//!
//! * `metrics` writes the text that Prometheus reads; it needs no other crate;
//! * `server` has the limits of a server, with the feature of that name.
#![forbid(unsafe_code)]

pub mod metrics;
#[cfg(feature = "server")]
mod server;

#[cfg(feature = "server")]
pub use server::{LimitedAcceptor, LimitedStream, Limits, limited};
