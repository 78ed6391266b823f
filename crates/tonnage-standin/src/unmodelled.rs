// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the calls of functions that are not modelled.
//!
//! The tables in `api/` give each function a number; `build.rs` writes their names in that order.

use std::sync::atomic::{AtomicU64, Ordering};

include!(concat!(env!("OUT_DIR"), "/names.rs"));

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts a call of the function with this number; the name of the function if it is the first call.
pub(crate) fn count(id: usize) -> Option<&'static str> {
    (COUNTS[id].fetch_add(1, Ordering::Relaxed) == 0).then_some(NAMES[id])
}

/// The number of a function.
pub(crate) fn number_of(name: &str) -> Option<usize> {
    NAMES.iter().position(|known| *known == name)
}

/// How often each function was called, of those that were called.
pub(crate) fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
    let all = NAMES.iter().copied().zip(counts);
    all.filter(|(_, count)| *count > 0)
}

/// Counts from zero.
pub(crate) fn forget() {
    for count in &COUNTS {
        // Almost all are zero: stores would copy all of their pages for a forked child.
        if count.load(Ordering::Relaxed) > 0 {
            count.store(0, Ordering::Relaxed);
        }
    }
}
