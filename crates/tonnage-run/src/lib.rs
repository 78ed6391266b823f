// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dry runs: what is started with a job, and what is made of the files it leaves behind.
//!
//! * [`collect`] makes one recording from the files that the processes of a dry run wrote;
//! * [`HOOK_FILES`] is the Python code that runs inside the job;
//! * [`BUNDLED_STANDIN`] is the stand-in library, where it was built in.
//!
//! **Invariant:** nothing here prints.
#![forbid(unsafe_code)]

pub mod collect;

/// The Python hook: files that run inside every Python process of the job, by name.
pub const HOOK_FILES: [(&str, &str); 3] = [
    ("sitecustomize.py", include_str!("hook/sitecustomize.py")),
    ("owners.py", include_str!("hook/owners.py")),
    ("holders.py", include_str!("hook/holders.py")),
];

/// The stand-in library, where it is part of this program (feature `bundled`).
#[cfg(feature = "bundled")]
pub const BUNDLED_STANDIN: Option<&[u8]> = Some(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/libtonnage_standin.so"
)));
/// The stand-in library, where it is part of this program (feature `bundled`).
#[cfg(not(feature = "bundled"))]
pub const BUNDLED_STANDIN: Option<&[u8]> = None;
