// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offline placement.
#![forbid(unsafe_code)]
mod bound;
mod check;
mod dive;
mod exact;
mod family;
mod flexible;
mod options;
mod pack;
mod plan;
mod problem;
mod random;
mod rigid;
mod slack;
mod solve;
mod spaces;
mod tree;

pub use check::{Fault, check};
pub use options::{Options, Progress, Switches};
pub use plan::{Conflict, Plan, SpacePlan, Status};
pub use problem::{Buffer, Invalid, MOST_BUFFERS, MOST_BYTES, Problem, Space};
pub use solve::plan;
