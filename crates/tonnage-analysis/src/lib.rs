// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions answered from a recording, as plain result structs.
//!
//! * [`check`] holds a run against its budget;
//! * [`diff`] compares two recordings;
//! * [`explain`] determines why a recording needs its memory, and what would help;
//! * [`holdings`] finds the owner of every byte, at every moment;
//! * [`info`] describes a recording, and how certain its figures are;
//! * [`plan`] places the blocks of a recording, whose lifetimes are known now, as low as they can lie;
//! * [`replay`] serves a recording with another allocator or device;
//! * [`tune`] finds the setting of PyTorch's allocator that serves a recording best;
//! * [`unknown`] lists what a recording does not contain, in the same sentences in every answer;
//! * [`unmodelled`] counts the functions that were called and are not modelled;
//! * [`verdict`] computes from a recording whether the run fits, by how much, and
//!   who held the memory at the peak;
//! * [`verify`] finds where a dry run differs from a real GPU.
//!
//! **Invariant:** nothing here prints. Results are data with public fields;
//! text and JSON are made of them elsewhere.
#![forbid(unsafe_code)]

pub mod check;
pub mod diff;
pub mod explain;
pub mod holdings;
pub mod info;
pub mod plan;
pub mod replay;
pub mod tune;
pub mod unknown;
pub mod unmodelled;
pub mod verdict;
pub mod verify;
