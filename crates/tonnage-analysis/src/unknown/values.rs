// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that a program read although nobody computed them.

use serde::{Deserialize, Serialize};
use tonnage_trace::Meta;

use crate::facts;
use crate::holdings::Place;

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

/// What one process tells of values that nobody computed, as the hook writes it and a recording keeps it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[non_exhaustive]
pub struct ToldValues {
    /// Reads of them: file, line, function, whether the script decides by it, how often.
    pub reads: Vec<(String, u64, String, bool, u64)>,
    /// Results whose size depends on them: file, line, function, how many.
    pub sizes: Vec<(String, u64, String, u64)>,
    /// The part of a mask, in percent, that is taken to be true.
    pub assumed_mask: u8,
}

impl UnknownValues {
    /// The sums over what processes tell.
    ///
    /// ```
    /// use tonnage_analysis::unknown::{ToldValues, UnknownValues};
    ///
    /// let mut told = ToldValues::default();
    /// told.reads.push(("train.py".into(), 31, "main".into(), true, 12));
    /// let sums = UnknownValues::sum([told]);
    /// assert_eq!((sums.decisions, sums.reads), (12, 0));
    /// assert_eq!(sums.first_decision.unwrap().line, 31);
    /// ```
    pub fn sum(processes: impl IntoIterator<Item = ToldValues>) -> Self {
        let mut all = Self::default();
        for told in processes {
            all.assumed_mask = told.assumed_mask;
            for (file, line, function, decides, count) in told.reads {
                let (sum, first) = if decides {
                    (&mut all.decisions, &mut all.first_decision)
                } else {
                    (&mut all.reads, &mut all.first_read)
                };
                *sum = sum.saturating_add(count);
                first.get_or_insert(Place {
                    file,
                    line,
                    function,
                });
            }
            for (file, line, function, count) in told.sizes {
                all.sizes = all.sizes.saturating_add(count);
                all.first_size.get_or_insert(Place {
                    file,
                    line,
                    function,
                });
            }
        }
        all
    }

    /// The sums over all processes of a recording; none if every value that was read is known.
    pub(crate) fn all(facts: &[Meta]) -> Option<Self> {
        let told = facts.iter().filter(|fact| fact.name == facts::VALUES);
        let all = Self::sum(told.filter_map(|fact| serde_json::from_str(&fact.text).ok()));
        (all.decisions > 0 || all.reads > 0 || all.sizes > 0).then_some(all)
    }
}
