// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of a verdict as text: a name and a value.

use std::fmt::Write as _;

/// How many other processes and devices the text lists.
pub(super) const OTHERS: usize = 8;

pub(super) fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}
