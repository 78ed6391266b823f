// SPDX-License-Identifier: MIT OR Apache-2.0
//! One number of the catalogue together with what stands behind it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How well a figure is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// Read from a driver or a document, to the last digit given here.
    Read,
    /// Read, but only rounded (a count of MiB, a GiB with two decimals); the value given is one
    /// that prints as that reading.
    Rounded,
    /// Not read on this GPU: extrapolated or taken over from a sibling, as the source explains.
    Assumed,
}

impl Known {
    /// The word used in `gpus.toml` and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Rounded => "rounded",
            Self::Assumed => "assumed",
        }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A value, where it comes from, and how well it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Figure_of_{T}")
)]
pub struct Figure<T> {
    /// The value, in the unit of the field's name or documentation.
    pub value: T,
    /// Where the value was read (an issue, a repository, a document), with any reading that
    /// disagrees.
    pub source: String,
    /// Whether it is a reading, a rounded reading or an assumption.
    pub known: Known,
}
