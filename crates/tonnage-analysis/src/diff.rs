// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two recordings differ in: by category, by phase, by line.
//!
//! A [`Summary`] is the part of a recording that is worth comparing, small
//! enough to be kept in a file beside the code. Lines are compared by file,
//! function and module and in the order of their numbers, so that an edit
//! elsewhere in a file, which moves them, is not a difference.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tonnage_recording::meta;
use tonnage_text::shortened;

use crate::holdings::{Holdings, Recording, pattern, site};

/// Version of the JSON that [`Diff`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Bytes by what they are for.
pub type Sums = BTreeMap<String, u64>;

/// The compared part of a recording: the process and device with the largest peak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Version of PyTorch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub torch: String,
    /// Largest sum of blocks.
    pub peak_allocated: u64,
    /// Most that PyTorch held from the driver.
    pub peak_reserved: u64,
    /// Bytes that stay behind with each step, from the second on. Not known of fewer than three steps of an optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth_per_step: Option<u64>,
    /// Bytes of blocks at the peak, by category.
    #[serde(default)]
    pub categories: Sums,
    /// Largest sum of blocks in each phase.
    #[serde(default)]
    pub phases: Sums,
    /// Blocks at the peak by file, function, module and category: the lines there and their bytes.
    #[serde(default)]
    pub lines: BTreeMap<String, Vec<(u64, u64)>>,
    /// Largest sum of blocks of each rank, where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranks: BTreeMap<u32, u64>,
}

impl Summary {
    /// Sums up a recording; none if it shows no block. Files below `base` are named from there.
    pub fn from_recording(recording: &Recording, base: &str) -> Option<Self> {
        let track = recording.most_allocated()?;
        let row = track.peak_row;
        let mut summary = Self {
            torch: recording
                .fact(track.process, meta::TORCH_VERSION)
                .unwrap_or_default()
                .to_owned(),
            peak_allocated: track.peak_allocated,
            peak_reserved: recording
                .tracks
                .iter()
                .map(|track| track.peak_reserved)
                .max()
                .unwrap_or(0),
            growth_per_step: growth(track),
            ..Self::default()
        };
        let mut lines: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
        for block in track.alive_at(row) {
            let category = block.category.name();
            *summary.categories.entry(category.to_owned()).or_default() += block.bytes;
            let (key, line) = match site(&recording.stacks, block.stack) {
                None => (format!("no Python line ({category})"), 0),
                Some(place) => {
                    let file = shortened(&place.file);
                    let file = file.strip_prefix(base).unwrap_or(file);
                    let file = file.trim_start_matches('/');
                    let module = block.module.map_or_else(String::new, |module| {
                        format!(" in {}", pattern(recording.stacks.text(module)))
                    });
                    let key = format!("{file} {}{module} ({category})", place.function);
                    (key, place.line)
                }
            };
            let sum = lines.entry(key).or_default().entry(line).or_default();
            *sum += block.bytes;
        }
        summary.lines = lines
            .into_iter()
            .map(|(key, lines)| (key, lines.into_iter().collect()))
            .collect();
        for (span, bytes, _) in track.phase_peaks() {
            let peak = summary.phases.entry(span.phase.name().to_owned());
            let peak = peak.or_default();
            *peak = (*peak).max(bytes);
        }
        summary.ranks = ranks(recording);
        Some(summary)
    }
}

/// The peaks of ranks, where there are several.
fn ranks(recording: &Recording) -> BTreeMap<u32, u64> {
    let mut ranks: BTreeMap<u32, u64> = BTreeMap::new();
    for track in recording.tracks.iter().filter(|track| track.is_shown()) {
        if let Some(rank) = recording.rank(track.process) {
            let peak = ranks.entry(rank).or_default();
            *peak = (*peak).max(track.peak_allocated);
        }
    }
    if ranks.len() < 2 {
        ranks.clear();
    }
    ranks
}

/// Bytes that stay behind with each step, on average from the end of the second step on; not known
/// with fewer than three, because the first makes the optimizer's state.
fn growth(track: &Holdings) -> Option<u64> {
    let [_, second, .., last] = track.steps.as_slice() else {
        return None;
    };
    let steps = track.steps.len() as u64 - 2;
    let grown = track.allocated_at(*last);
    Some(grown.saturating_sub(track.allocated_at(*second)) / steps)
}

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Change {
    /// What.
    pub what: String,
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
    /// The line number after, or before if it is gone.
    pub line: Option<u64>,
}

impl Change {
    /// Bytes more, or less.
    pub fn delta(&self) -> i64 {
        self.after.cast_signed() - self.before.cast_signed()
    }
}

/// The differences between two recordings; equal things are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Diff {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// The peaks, and the growth where both report it, equal or not.
    pub totals: Vec<Change>,
    /// By category, the largest difference first.
    pub categories: Vec<Change>,
    /// By phase.
    pub phases: Vec<Change>,
    /// By line.
    pub lines: Vec<Change>,
    /// The peaks of ranks that both have.
    pub ranks: Vec<Change>,
    /// Ranks that only the first has. Both are empty if one of the two records no ranks.
    pub ranks_before: Vec<u32>,
    /// Ranks that only the second has.
    pub ranks_after: Vec<u32>,
    /// The stretch that is compared in place of a job that ran to its end.
    pub remarks: Vec<String>,
}

impl Diff {
    /// Compares two summaries.
    ///
    /// ```
    /// use tonnage_analysis::diff::{Diff, Summary};
    ///
    /// let before = Summary { peak_allocated: 100, ..Summary::default() };
    /// let after = Summary { peak_allocated: 150, ..Summary::default() };
    /// let diff = Diff::between(&before, &after);
    /// assert_eq!(diff.totals[0].delta(), 50);
    /// assert!(Diff::between(&before, &before).is_empty());
    /// ```
    pub fn between(before: &Summary, after: &Summary) -> Self {
        let total = |what: &str, before, after| Change {
            what: what.to_owned(),
            before,
            after,
            line: None,
        };
        let sums = |summary: &Summary| -> Sums {
            let sum = |lines: &Vec<(u64, u64)>| lines.iter().map(|(_, bytes)| bytes).sum();
            let lines = summary.lines.iter();
            lines
                .map(|(key, lines)| (key.clone(), sum(lines)))
                .collect()
        };
        let growth = before.growth_per_step.zip(after.growth_per_step);
        let mut lines = changes(&sums(before), &sums(after));
        for change in &mut lines {
            let of =
                |summary: &Summary| summary.lines.get(&change.what).cloned().unwrap_or_default();
            change.line = changed_line(&of(before), &of(after)).filter(|&line| line > 0);
        }
        Self {
            schema_version: SCHEMA_VERSION,
            totals: [
                total(
                    "peak allocated",
                    before.peak_allocated,
                    after.peak_allocated,
                ),
                total("peak reserved", before.peak_reserved, after.peak_reserved),
            ]
            .into_iter()
            .chain(growth.map(|(before, after)| total("growth per step", before, after)))
            .collect(),
            categories: changes(&before.categories, &after.categories),
            phases: changes(&before.phases, &after.phases),
            lines,
            ranks: changes(&of_ranks(before, after), &of_ranks(after, before)),
            ranks_before: ranks_of_one(before, after),
            ranks_after: ranks_of_one(after, before),
            remarks: Vec::new(),
        }
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.totals.iter().all(|change| change.delta() == 0)
            && self.categories.is_empty()
            && self.phases.is_empty()
            && self.lines.is_empty()
            && self.ranks.is_empty()
            && self.ranks_before.is_empty()
            && self.ranks_after.is_empty()
    }
}

/// The ranks of one recording that the other, which has ranks, does not have.
fn ranks_of_one(one: &Summary, other: &Summary) -> Vec<u32> {
    let alone = |rank: &u32| !other.ranks.is_empty() && !other.ranks.contains_key(rank);
    one.ranks.keys().copied().filter(alone).collect()
}

/// The peaks of the ranks of one recording that are in the other as well.
fn of_ranks(one: &Summary, other: &Summary) -> Sums {
    let both = |(rank, _): &(&u32, &u64)| other.ranks.contains_key(rank);
    let shared = one.ranks.iter().filter(both);
    shared
        .map(|(rank, bytes)| (format!("rank {rank}"), *bytes))
        .collect()
}

/// Lines of a function that are compared one by one; more are compared by their sum alone.
const ALIGNED: usize = 256;

/// The number of the line that changed: of those that cannot be aligned with a line of the same
/// bytes, in order, the largest after; else the largest that is gone.
fn changed_line(before: &[(u64, u64)], after: &[(u64, u64)]) -> Option<u64> {
    let largest = |lines: &[(u64, u64)]| {
        let largest = lines.iter().max_by_key(|(_, bytes)| *bytes);
        largest.map(|(line, _)| *line)
    };
    if before.len() > ALIGNED || after.len() > ALIGNED {
        return largest(after);
    }
    // Longest common subsequence of the bytes, from the end.
    let width = after.len() + 1;
    let mut common = vec![0_u32; (before.len() + 1) * width];
    for (i, (_, old)) in before.iter().enumerate().rev() {
        for (j, (_, new)) in after.iter().enumerate().rev() {
            common[i * width + j] = if old == new {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    while i < before.len() || j < after.len() {
        if i < before.len() && j < after.len() && before[i].1 == after[j].1 {
            i += 1;
            j += 1;
        } else if j < after.len()
            && (i == before.len() || common[i * width + j + 1] >= common[(i + 1) * width + j])
        {
            new.push(after[j]);
            j += 1;
        } else {
            gone.push(before[i]);
            i += 1;
        }
    }
    largest(&new).or_else(|| largest(&gone))
}

fn changes(before: &Sums, after: &Sums) -> Vec<Change> {
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let mut changes: Vec<Change> = names
        .into_iter()
        .map(|name| Change {
            what: name.clone(),
            before: before.get(name).copied().unwrap_or(0),
            after: after.get(name).copied().unwrap_or(0),
            line: None,
        })
        .filter(|change| change.before != change.after)
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.delta().unsigned_abs()));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(lines: &[(&str, u64)]) -> Summary {
        let sum = lines.iter().map(|(_, bytes)| bytes).sum();
        let lines = lines
            .iter()
            .map(|&(name, bytes)| (name.to_owned(), vec![(3, bytes)]));
        Summary {
            peak_allocated: sum,
            peak_reserved: sum,
            lines: lines.collect(),
            ..Summary::default()
        }
    }

    #[test]
    fn only_what_differs_is_told_the_largest_first() {
        let before = summary(&[
            ("a.py f (weights)", 10),
            ("a.py g (other)", 7),
            ("b.py h (other)", 1),
        ]);
        let after = summary(&[
            ("a.py f (weights)", 10),
            ("a.py g (other)", 9),
            ("c.py k (other)", 30),
        ]);
        let diff = Diff::between(&before, &after);
        let told: Vec<_> = diff
            .lines
            .iter()
            .map(|c| (c.what.as_str(), c.delta()))
            .collect();
        assert_eq!(
            told,
            [
                ("c.py k (other)", 30),
                ("a.py g (other)", 2),
                ("b.py h (other)", -1)
            ]
        );
        assert_eq!(diff.totals[0].delta(), 31);
        assert!(!diff.is_empty());
        assert!(Diff::between(&before, &before).is_empty());
    }

    #[test]
    fn ranks_are_compared_where_both_have_them() {
        let with = |ranks: &[(u32, u64)]| Summary {
            ranks: ranks.iter().copied().collect(),
            ..Summary::default()
        };
        let diff = Diff::between(&with(&[(0, 5), (1, 7), (2, 7)]), &with(&[(0, 5), (1, 9)]));
        let told: Vec<_> = diff.ranks.iter().map(|c| (&*c.what, c.delta())).collect();
        assert_eq!(told, [("rank 1", 2)]);
        assert_eq!((diff.ranks_before, diff.ranks_after), (vec![2], vec![]));
        let gone = Diff::between(&with(&[(0, 5), (1, 7), (2, 7)]), &with(&[(0, 5), (1, 7)]));
        assert!(!gone.is_empty());
        // A lockfile from before ranks were kept has no ranks.
        assert!(Diff::between(&with(&[]), &with(&[(0, 5), (1, 9)])).is_empty());
    }

    #[test]
    fn the_line_that_changed_is_found_though_others_moved() {
        let before = [(10, 4), (12, 9), (15, 4)];
        assert_eq!(
            changed_line(&before, &[(11, 4), (12, 4), (14, 9), (17, 4)]),
            Some(12)
        );
        assert_eq!(
            changed_line(&before, &[(20, 4), (22, 10), (25, 4)]),
            Some(22)
        );
        assert_eq!(changed_line(&before, &[(10, 4), (15, 4)]), Some(12));
        assert_eq!(changed_line(&[], &[(7, 1)]), Some(7));
    }
}
