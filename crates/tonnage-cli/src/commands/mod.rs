// SPDX-License-Identifier: MIT OR Apache-2.0
//! One command, one file, one function.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fit;
pub(crate) mod fleet;
pub(crate) mod forecast;
pub(crate) mod gpus;
pub(crate) mod import;
pub(crate) mod info;
pub(crate) mod mcp;
pub(crate) mod plan;
pub(crate) mod record;
mod recording;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve_fit;
pub(crate) mod tune;
pub(crate) mod verify;
