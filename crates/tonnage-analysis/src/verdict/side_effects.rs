// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions of a job on other machines: which were suppressed, and which hosts it connected to.

use serde::{Deserialize, Serialize};
use tonnage_recording::Meta;

use tonnage_recording::facts;

/// Connections of a job to other machines, and actions that the dry run suppressed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SideEffects {
    /// Actions that were not carried out, such as uploads.
    pub suppressed: Vec<Suppressed>,
    /// Hosts that a process connected to, by name where it is known, with the port; without this machine's own.
    pub hosts: Vec<String>,
    /// Libraries that could not be kept from uploading, with the reason.
    pub unprotected: Vec<String>,
}

/// An action that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Suppressed {
    /// The library or the service.
    pub library: String,
    /// The action: a method and its target.
    pub action: String,
    /// How often it was called, by all processes together.
    pub count: u64,
}

impl SideEffects {
    /// Reads the facts of a recording.
    pub(super) fn find(all: &[Meta]) -> Self {
        let texts = |name: &'static str| {
            let found = all.iter().filter(move |fact| fact.name == name);
            found.map(|fact| fact.text.clone())
        };
        Self {
            suppressed: texts(facts::SUPPRESSED)
                .filter_map(|text| serde_json::from_str(&text).ok())
                .collect(),
            hosts: texts(facts::HOST).collect(),
            unprotected: texts(facts::UNPROTECTED).collect(),
        }
    }
}
