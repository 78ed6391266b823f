// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offline placement of buffers whose sizes and lifetimes are known in advance.
#![doc = include_str!("../README.md")]
//!
//! # The model
//!
//! A [`Buffer`] has a size and a half-open lifetime; it may have an alignment, gaps in which its contents do not
//! matter, a fixed offset, and a choice of spaces. A [`Space`] has a capacity or requests the least peak, a cost for
//! each byte, and ranges that nothing may use. [`Problem::alias`] demands that two buffers start at the same byte.
//!
//! # The answer
//!
//! [`Plan`] has the offsets and a [`Status`]. A peak at the lower bound is optimal, and the fullest moment is the
//! proof: add up what lives then. Where a capacity does not suffice, [`Conflict`] names the smallest set of buffers
//! that live at one moment and need more.
//!
//! A search can be stopped at any time: by a deadline, by a flag, by a number of attempts. The best plan so far is
//! then the answer. Without a deadline the same seed gives the same plan.
//!
//! # The engines
//!
//! A problem is normalised once (`normal`): what must be placed as one becomes an entry, and engines see entries only.
//!
//! * `solve`: which engine works on what in one space, and what that proves;
//! * `rigid`: reduction to sections of time, decomposition into parts that do not touch, peeling of what always lives;
//! * `dive`: constructive; fills the lowest valley of the skyline by several rules, a microsecond for each buffer;
//! * `pack`: which engine works on which part, and dives again where one failed;
//! * `exact`: complete search with propagation, a failure cache and restarts, for some thousand buffers;
//! * `improve`: plans a window of time anew where a dive missed, and leaves the rest;
//! * `flexible`: everything with gaps, aliases, fixed offsets, forbidden ranges or mixed alignments;
//! * `spaces`: which space each buffer lies in.
//!
//! Each heuristic is a switch ([`Switches`]), and none may change whether an answer is right: tests run all
//! combinations against an optimum found by trying everything.
#![forbid(unsafe_code)]

mod bound;
mod check;
#[cfg(feature = "csv")]
pub mod csv;
mod dive;
mod exact;
mod family;
mod flexible;
mod improve;
mod normal;
mod options;
mod pack;
mod plan;
mod planner;
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
pub use planner::plan;
pub use problem::{Buffer, BufferId, Invalid, MAX_BUFFERS, MAX_BYTES, Problem, Space};
