// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exceptions of tonnage's own Python hook, which the job never saw.

use std::collections::btree_map::{BTreeMap, Entry};

use serde::{Deserialize, Serialize};
use tonnage_recording::Meta;

use tonnage_recording::facts::HOOK_FAILURE;

/// A function of the hook that failed. The job went on without its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct HookFailure {
    /// The function, with its class.
    pub function: String,
    /// How often it failed, in all processes.
    pub count: u64,
    /// The type of the first exception.
    pub error: String,
    /// The message of the first exception.
    pub message: String,
}

impl HookFailure {
    /// The failures of all processes, each function once, in the order in which they were recorded.
    ///
    /// ```
    /// use tonnage_recording::facts::HOOK_FAILURE;
    /// use tonnage_analysis::unknown::HookFailure;
    /// use tonnage_recording::Meta;
    ///
    /// let text = r#"{"function":"Values._level","count":2,"error":"KeyError","message":"x"}"#;
    /// let fact = |process| Meta { process, name: HOOK_FAILURE.to_owned(), text: text.to_owned() };
    /// let failures = HookFailure::all(&[fact(0), fact(1)]);
    /// assert_eq!((failures.len(), failures[0].count), (1, 4));
    /// ```
    pub fn all(facts: &[Meta]) -> Vec<Self> {
        let mut failures: Vec<Self> = Vec::new();
        let mut places = BTreeMap::new();
        let written = facts.iter().filter(|fact| fact.name == HOOK_FAILURE);
        for failure in written.filter_map(|fact| serde_json::from_str::<Self>(&fact.text).ok()) {
            match places.entry(failure.function.clone()) {
                Entry::Occupied(place) => {
                    let before: &mut Self = &mut failures[*place.get()];
                    before.count = before.count.saturating_add(failure.count);
                }
                Entry::Vacant(place) => {
                    place.insert(failures.len());
                    failures.push(failure);
                }
            }
        }
        failures
    }
}
