// SPDX-License-Identifier: MIT OR Apache-2.0
//! One command, one file, one function.

pub(crate) mod gpus;
pub(crate) mod run;
