// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes that a dry run made to the program inside its process.

use serde::{Deserialize, Serialize};
use tonnage_recording::facts;

use super::Facts;

/// The outcome of a change that was to be made to the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct ProgramChange {
    /// Its name, as `tonnage explain` knows it.
    pub name: String,
    /// Whether it was made.
    pub applied: bool,
    /// Whether the program does so by itself.
    pub already: bool,
    /// Why it was not made.
    pub why: Option<String>,
    /// Where it was made: lines of the script, or parts of the model.
    #[serde(rename = "where")]
    pub places: Vec<String>,
    /// The lines that do the same by hand.
    pub lines: Vec<String>,
    /// Edits of the script that do the same, where they are certain.
    pub edits: Vec<Edit>,
}

/// A line of the script that becomes another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Edit {
    /// The file.
    pub file: String,
    /// The number of the line, from 1.
    pub line: u64,
    /// The line as it is.
    pub old: String,
    /// The replacement; may be several lines.
    pub new: String,
}

/// The changes over all processes, each once: from the first process that made it, else from the first.
pub(super) fn find(facts: &Facts<'_>) -> Vec<ProgramChange> {
    let told = facts.all.iter().filter(|fact| fact.name == facts::CHANGE);
    let mut changes: Vec<ProgramChange> = Vec::new();
    for change in told.filter_map(|fact| serde_json::from_str::<ProgramChange>(&fact.text).ok()) {
        match changes.iter_mut().find(|known| known.name == change.name) {
            Some(known) if change.applied && !known.applied => *known = change,
            Some(_) => {}
            None => changes.push(change),
        }
    }
    changes
}
