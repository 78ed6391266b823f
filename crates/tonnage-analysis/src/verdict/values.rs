// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that a program read although nobody computed them.

use serde::{Deserialize, Serialize};

use super::{Facts, Place};
use crate::facts;

/// Values that the program read although nobody computed them: kernels do not run in a dry run, and only small
/// operators are computed beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UnknownValues {
    /// Reads that the program decides by: they reach a condition, a loop or a slice.
    pub decisions: u64,
    /// Where the first of them is.
    pub first_decision: Option<Place>,
    /// Other reads: what is printed or kept.
    pub reads: u64,
    /// Where the first of them is.
    pub first_read: Option<Place>,
    /// Results whose size depends on such values. Figures rest on an assumption then.
    pub sizes: u64,
    /// Where the first of them is.
    pub first_size: Option<Place>,
    /// The part of an unknown mask, in percent, that was taken to be true.
    pub assumed_mask: u8,
}

/// As the hook writes it; see `tonnage-run`.
#[derive(Deserialize)]
struct Told {
    reads: Vec<(String, u64, String, bool, u64)>,
    sizes: Vec<(String, u64, String, u64)>,
    assumed_mask: u8,
}

fn place(file: &str, line: u64, function: &str) -> Place {
    Place {
        file: file.to_owned(),
        line,
        function: function.to_owned(),
    }
}

/// The sums over all processes; none if every value that was read is known.
pub(super) fn find(facts: &Facts<'_>) -> Option<UnknownValues> {
    let mut all = UnknownValues::default();
    let told = facts.all.iter().filter(|fact| fact.name == facts::VALUES);
    for told in told.filter_map(|fact| serde_json::from_str::<Told>(&fact.text).ok()) {
        all.assumed_mask = told.assumed_mask;
        for (file, line, function, decides, count) in told.reads {
            let here = || place(&file, line, &function);
            if decides {
                all.decisions = all.decisions.saturating_add(count);
                all.first_decision.get_or_insert_with(here);
            } else {
                all.reads = all.reads.saturating_add(count);
                all.first_read.get_or_insert_with(here);
            }
        }
        for (file, line, function, count) in told.sizes {
            all.sizes = all.sizes.saturating_add(count);
            all.first_size
                .get_or_insert_with(|| place(&file, line, &function));
        }
    }
    (all.decisions + all.reads + all.sizes > 0).then_some(all)
}
