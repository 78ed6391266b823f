// SPDX-License-Identifier: MIT OR Apache-2.0
//! One command, one file, one function.

#[cfg(feature = "jobs")]
pub(crate) mod attach;
#[cfg(feature = "jobs")]
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod diff;
#[cfg(feature = "jobs")]
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
#[cfg(feature = "jobs")]
pub(crate) mod fit;
#[cfg(feature = "jobs")]
pub(crate) mod fleet;
#[cfg(feature = "jobs")]
pub(crate) mod forecast;
pub(crate) mod gpus;
pub(crate) mod headroom;
pub(crate) mod import;
pub(crate) mod info;
#[cfg(feature = "jobs")]
pub(crate) mod mcp;
#[cfg(feature = "jobs")]
pub(crate) mod model;
pub(crate) mod plan;
#[cfg(feature = "jobs")]
pub(crate) mod record;
mod recording;
pub(crate) mod replay;
pub(crate) mod report;
#[cfg(feature = "jobs")]
pub(crate) mod run;
#[cfg(feature = "jobs")]
pub(crate) mod serve_fit;
pub(crate) mod tune;
#[cfg(feature = "jobs")]
pub(crate) mod verify;
