// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions answered from a recording, as plain result structs.
//!
//! * [`check`] holds a run against its budget;
//! * [`diff`] says what two recordings differ in;
//! * [`explain`] says why a recording needs what it needs, and what would help;
//! * [`holdings`] says whose every byte is, at every moment;
//! * [`info`] says what is in a recording, and how well it is known;
//! * [`plan`] places the blocks of a recording, whose lifetimes are known now, as low as they can lie;
//! * [`replay`] says what another allocator or device would have made of a recording;
//! * [`tune`] finds the setting of PyTorch's allocator that serves a recording best;
//! * [`unknown`] says what a recording cannot say, in the same sentences in every answer;
//! * [`unmodelled`] counts the functions that were called and are not modelled;
//! * [`verdict`] says from a recording whether the run fits, by how much, and
//!   who held the memory at the peak;
//! * [`verify`] says where a dry run is not what a real GPU did.
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
