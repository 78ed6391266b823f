// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users of a device other than PyTorch that a dry run cannot follow.

use serde::{Deserialize, Serialize};
use tonnage_recording::Meta;

use tonnage_recording::facts;

/// The activity of a user of a device that cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ForeignUse {
    /// It has its own CUDA runtime, linked statically as a rule, whose calls fail.
    Runtime,
    /// It takes most of a device when it starts and divides it itself.
    Memory,
    /// It looks for GPUs in its own way, finds none and computes on the CPU.
    Cpu,
}

/// A user of a device other than PyTorch that a dry run cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Foreign {
    /// The name of the package, where it is known, else of the file.
    pub name: String,
    /// The file whose calls showed it.
    pub library: String,
    /// The activity.
    pub how: ForeignUse,
}

impl Foreign {
    /// Why it cannot be followed, as the end of a sentence.
    pub fn why(&self) -> &'static str {
        match self.how {
            ForeignUse::Runtime => {
                "it has its own CUDA runtime, linked statically as a rule, \
                 and the calls of such a one fail in a dry run"
            }
            ForeignUse::Memory => {
                "it takes most of the GPU when it starts and divides it itself, \
                 so what it needs cannot be seen from outside"
            }
            ForeignUse::Cpu => {
                "it looks for GPUs in its own way, finds none in a dry run and computes on the CPU"
            }
        }
    }

    /// Users that a recording names.
    pub(crate) fn all(facts: &[Meta]) -> Vec<Self> {
        let told = facts.iter().filter(|fact| fact.name == facts::FOREIGN);
        told.filter_map(|fact| serde_json::from_str(&fact.text).ok())
            .collect()
    }
}
