// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stand-in for the CUDA libraries: every byte accounted, no kernel run.
//!
//! Loaded in front of the real libraries, it answers the calls of an unmodified
//! program as a machine with the chosen GPUs would, as far as memory is concerned.
//! The accounts of each device are kept by `tonnage_alloc::SimDevice`; this crate
//! only translates between C and those accounts.
//!
//! * `api/*.api` hold one line for each foreign function; `build.rs` makes the
//!   exported functions of them, in [`exports`];
//! * [`ffi`] is what those functions are made of: checked inputs and outputs, the
//!   guard that keeps panics inside; `unmodelled` counts what is not modelled; `lengths`
//!   reports how long host memory is where it takes more than one argument to know;
//!   [`region`] is memory that is copied or filled, of a device or of the host;
//! * `model` holds what the modelled functions do, a file for each library;
//! * `config` is the configuration of the run, `machine` the state of the process, `values` the device data that is
//!   kept, `torch` the reports of torch's allocator, `holders` the blocks and what
//!   holds them by Python's answers, `uses` when the device uses them, `foreign` users of a device that cannot be
//!   followed;
//! * `exchange` is what the ranks of a run send each other by NCCL;
//! * `costs` counts what the GPU would have to do: operations, bytes moved,
//!   launches;
//! * `ledger` is the state that processes share, `recorder` what is written for
//!   `tonnage run`, through `files` that cannot harm the program; `fork` has
//!   the locks, which keep all of it consistent when the program forks;
//!   `variant` gives a forked child a separate run;
//! * `overlay` gives the job a view of the file system in which its writes go to
//!   the directory of the run;
//! * `endings` records how processes end, and the signals that they send;
//! * `loader` gives it to programs that load NCCL or the CUDA runtime by a path;
//! * `sources` gives Python other text for a source file, in a variant of a job;
//! * `protect` keeps the user's files as they are: a copy-on-write view of the file system.
//!
//! **Invariant:** without the environment variable `TONNAGE_RUN` the library
//! behaves like a machine without a GPU, writes nothing and starts nothing.
#![expect(
    unsafe_code,
    reason = "a C interface: exported symbols, out-parameters, mapped memory"
)]

mod config;
mod costs;
mod ending;
mod endings;
mod exchange;
pub mod exports;
pub mod ffi;
mod files;
mod foreign;
mod fork;
mod holders;
mod hosts;
mod lag;
mod ledger;
mod lengths;
mod loader;
mod machine;
mod model;
mod overlay;
mod protect;
mod recorder;
pub mod region;
mod sources;
mod torch;
mod unmodelled;
mod uses;
mod values;
mod variant;
