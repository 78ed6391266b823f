// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that a program read although they were not computed.

use serde::{Deserialize, Serialize};
use tonnage_recording::Meta;
use tonnage_recording::facts;

use crate::holdings::Place;

/// Values that the program read although they were not computed: kernels do not run in a dry run, and only small
/// operators are computed beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UnknownValues {
    /// Reads that the program branches on: they reach a condition, a loop or a slice.
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
    /// How many of these sizes follow from a mask of which `assumed_mask` percent were taken to be true.
    pub sizes_by_mask: u64,
    /// How many of them were computed from values that are drawn: random, and the same in every run.
    pub sizes_drawn: u64,
    /// How many of them are integers from ranks that were not run, which the script read.
    pub sizes_absent: u64,
    /// The part of an unknown mask, in percent, that was taken to be true.
    pub assumed_mask: u8,
}

/// The values of one process that were not computed, as the hook writes them and a recording keeps them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[non_exhaustive]
pub struct ToldValues {
    /// Reads of them: file, line, function, whether the script branches on it, how often.
    pub reads: Vec<(String, u64, String, bool, u64)>,
    /// Results whose size depends on them: file, line, function, how many.
    pub sizes: Vec<(String, u64, String, u64)>,
    /// Where each of these sizes comes from: `mask`, `drawn`, `absent` or `count`. Older recordings do not record it.
    #[serde(default)]
    pub sized_by: Vec<String>,
    /// The part of a mask, in percent, that is taken to be true.
    pub assumed_mask: u8,
}

impl UnknownValues {
    /// The sums over the notes of processes.
    ///
    /// ```
    /// use tonnage_analysis::unknown::{ToldValues, UnknownValues};
    ///
    /// let mut values = ToldValues::default();
    /// values.reads.push(("train.py".into(), 31, "main".into(), true, 12));
    /// let sums = UnknownValues::sum([values]);
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
            for (index, (file, line, function, count)) in told.sizes.into_iter().enumerate() {
                all.sizes = all.sizes.saturating_add(count);
                match told
                    .sized_by
                    .get(index)
                    .map_or(SizedBy::Mask, SizedBy::parse_name)
                {
                    SizedBy::Mask => {
                        all.sizes_by_mask = all.sizes_by_mask.saturating_add(count);
                    }
                    SizedBy::Drawn => all.sizes_drawn = all.sizes_drawn.saturating_add(count),
                    SizedBy::Absent => {
                        all.sizes_absent = all.sizes_absent.saturating_add(count);
                    }
                    SizedBy::Count => {}
                }
                all.first_size.get_or_insert(Place {
                    file,
                    line,
                    function,
                });
            }
        }
        all
    }

    /// The origin of the sizes of results that depend on such values: the end of a sentence that names them.
    pub fn assumption(&self) -> String {
        let told = self.sizes_by_mask.saturating_add(self.sizes_drawn);
        let told = told.saturating_add(self.sizes_absent);
        let parts = [
            (self.sizes_by_mask, SizedBy::Mask),
            (self.sizes_drawn, SizedBy::Drawn),
            (self.sizes_absent, SizedBy::Absent),
            (self.sizes.saturating_sub(told), SizedBy::Count),
        ];
        let there: Vec<_> = parts.into_iter().filter(|&(count, _)| count > 0).collect();
        let said = there.iter().map(|&(count, by)| {
            let said = by.describe_origin(self.assumed_mask);
            if there.len() == 1 {
                said
            } else {
                format!("{said} ({count})")
            }
        });
        said.collect::<Vec<_>>().join(", ")
    }

    /// The sums over all processes of a recording; none if every value that was read is known.
    pub(crate) fn all(facts: &[Meta]) -> Option<Self> {
        let told = facts.iter().filter(|fact| fact.name == facts::VALUES);
        let all = Self::sum(told.filter_map(|fact| serde_json::from_str(&fact.text).ok()));
        (all.decisions > 0 || all.reads > 0 || all.sizes > 0).then_some(all)
    }
}

/// The origin of a size that depends on values that were not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizedBy {
    /// A mask of which nothing is known, by the user's assumption.
    Mask,
    /// Values that were drawn.
    Drawn,
    /// Integers from ranks that were not run.
    Absent,
    /// A count that an operator requested.
    Count,
}

impl SizedBy {
    pub(crate) fn parse_name(name: impl AsRef<str>) -> Self {
        match name.as_ref() {
            "drawn" => Self::Drawn,
            "absent" => Self::Absent,
            "count" => Self::Count,
            _ => Self::Mask,
        }
    }

    /// Its description, if this part of an unknown mask, in percent, was taken to be true.
    pub(crate) fn describe_origin(self, assumed_mask: u8) -> String {
        match self {
            Self::Mask => {
                format!("an unknown mask is taken to select {assumed_mask} % of its elements")
            }
            Self::Drawn => "unknown values are drawn, the same in every run".to_owned(),
            Self::Absent => {
                "ranks that were not run are assumed to send the integers of the rank that reads them"
                    .to_owned()
            }
            Self::Count => "an unknown count is assumed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(by: &[&str]) -> UnknownValues {
        let mut told = ToldValues {
            assumed_mask: 30,
            ..ToldValues::default()
        };
        for (line, by) in (1..).zip(by) {
            told.sizes.push(("a.py".into(), line, "main".into(), 2));
            told.sized_by.push((*by).into());
        }
        UnknownValues::sum([told])
    }

    #[test]
    fn a_mask_is_spoken_of_only_where_there_was_one() {
        assert_eq!(
            sized(&["mask"]).assumption(),
            "an unknown mask is taken to select 30 % of its elements"
        );
        assert_eq!(
            sized(&["drawn", "drawn"]).assumption(),
            "unknown values are drawn, the same in every run"
        );
        assert_eq!(
            sized(&["absent"]).assumption(),
            "ranks that were not run are assumed to send the integers of the rank that reads them"
        );
        assert_eq!(
            sized(&["mask", "drawn", "count"]).assumption(),
            "an unknown mask is taken to select 30 % of its elements (2), unknown values are drawn, the same in every \
             run (2), an unknown count is assumed (2)"
        );
    }

    #[test]
    fn an_older_recording_tells_of_masks_alone() {
        let told = r#"{"reads":[],"sizes":[["a.py",3,"main",2]],"assumed_mask":100}"#;
        let sums = UnknownValues::sum([serde_json::from_str(told).unwrap()]);
        assert_eq!(
            (sums.sizes, sums.sizes_by_mask, sums.sizes_drawn),
            (2, 2, 0)
        );
    }
}
