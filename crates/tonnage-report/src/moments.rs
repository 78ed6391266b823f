// SPDX-License-Identifier: MIT OR Apache-2.0
//! The moments worth looking at.
//!
//! The peak alone misleads: lowering it exposes the next one. So the second peak is found too: the highest moment
//! of another phase than the first, because equal steps have equal peaks and show nothing new. Without phases it is the
//! highest one that a valley of a tenth of the peak sets apart.

use tonnage_analysis::holdings::PhaseSpan;

use crate::input::{Moment, MomentKind, Subject};
use crate::timeline::{Changes, Levels, Stretch, starts};

/// Steps whose peaks are kept.
pub(crate) const MAX_STEPS: usize = 400;
/// Phases that are looked at; more than any training has, and few enough to hold.
pub(crate) const MAX_PHASES: usize = 200_000;
/// Moments of the recording that are kept.
const MAX_MARKS: usize = 200;
/// Stretches that are compared where phases are not known.
const UNPHASED: u32 = 4096;

/// A moment with what was so at it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) moment: Moment,
    pub(crate) levels: Levels,
}

/// The moments of a recording, in the order of rows, and how many steps were left out.
pub(crate) fn find(subject: &Subject<'_>, changes: &Changes) -> (Vec<Found>, usize) {
    let phases = &subject.phases[..subject.phases.len().min(MAX_PHASES)];
    let mut cuts = if phases.is_empty() {
        starts(subject.rows, UNPHASED, &[])
    } else {
        vec![0]
    };
    cuts.extend(phases.iter().flat_map(|span| [span.from, span.to]));
    cuts.retain(|&row| row == 0 || row < subject.rows);
    cuts.sort_unstable();
    cuts.dedup();
    let stretches = changes.stretches(&cuts);
    let mut found: Vec<Found> = Vec::new();
    let given: Vec<&Moment> = subject
        .moments
        .iter()
        .filter(|moment| moment.row < subject.rows)
        .take(MAX_MARKS)
        .collect();
    // A stretch of each row alone.
    let mut rows: Vec<u32> = given
        .iter()
        .flat_map(|moment| [moment.row, moment.row.saturating_add(1)])
        .filter(|&row| row < subject.rows)
        .collect();
    rows.sort_unstable();
    rows.dedup();
    let alone = changes.stretches(&rows);
    for moment in given {
        if let Ok(index) = rows.binary_search(&moment.row) {
            let levels = alone[index].high;
            let moment = Moment {
                row: levels.row,
                ..moment.clone()
            };
            found.push(Found { moment, levels });
        }
    }
    let mut put = |levels: Levels, kind: MomentKind, label: String| {
        let moment = Moment {
            row: levels.row,
            kind,
            label,
            refused: None,
        };
        found.push(Found { moment, levels });
    };
    if let Some(peak) = highest(stretches.iter()) {
        put(peak.high, MomentKind::Peak, "peak".to_owned());
        if let Some(second) = second(phases, &stretches, peak.high) {
            put(second, MomentKind::SecondPeak, "second peak".to_owned());
        }
    }
    let (steps, left_out) = step_peaks(phases, &stretches);
    for (step, levels) in steps {
        put(levels, MomentKind::StepPeak, format!("peak of step {step}"));
    }
    found.sort_by_key(|found| (found.moment.row, found.moment.kind));
    (found, left_out)
}

fn highest<'a>(stretches: impl Iterator<Item = &'a Stretch>) -> Option<&'a Stretch> {
    // The first of equals.
    stretches.fold(None, |best: Option<&Stretch>, one| {
        if best.is_none_or(|best| one.high.allocated > best.high.allocated) {
            Some(one)
        } else {
            best
        }
    })
}

/// The span that holds a row.
pub(crate) fn span_at(phases: &[PhaseSpan], row: u32) -> Option<&PhaseSpan> {
    let after = phases.partition_point(|span| span.from <= row);
    phases[..after].last().filter(|span| row < span.to)
}

fn second(phases: &[PhaseSpan], stretches: &[Stretch], peak: Levels) -> Option<Levels> {
    let phase_at = |row| span_at(phases, row).map(|span| span.phase);
    if phases.is_empty() {
        return beyond_a_valley(stretches, peak);
    }
    let first = phase_at(peak.row);
    let others = stretches
        .iter()
        .filter(|one| phase_at(one.start) != first && phase_at(one.start).is_some());
    highest(others).map(|one| one.high)
}

fn beyond_a_valley(stretches: &[Stretch], peak: Levels) -> Option<Levels> {
    let deep = peak.allocated - peak.allocated / 10;
    let index = stretches.partition_point(|one| one.start <= peak.row);
    let (before, after) = stretches.split_at(index.saturating_sub(1));
    let mut best: Option<Levels> = None;
    let mut look = |side: &mut dyn Iterator<Item = &Stretch>| {
        let mut below = false;
        for one in side {
            if below && best.is_none_or(|best| one.high.allocated > best.allocated) {
                best = Some(one.high);
            }
            below |= one.low.allocated < deep;
        }
    };
    look(&mut before.iter().rev());
    look(&mut after.iter().skip(1));
    best.filter(|best| best.allocated > 0)
}

/// The peak of each step; of too many steps those with the highest.
fn step_peaks(phases: &[PhaseSpan], stretches: &[Stretch]) -> (Vec<(u32, Levels)>, usize) {
    let mut peaks: std::collections::BTreeMap<u32, Levels> = std::collections::BTreeMap::new();
    for span in phases {
        let from = stretches.partition_point(|one| one.start < span.from);
        let within = stretches[from..]
            .iter()
            .take_while(|one| one.start < span.to);
        // Overlapping spans of a hostile recording would make this quadratic.
        for one in within.take(8) {
            let best = peaks.entry(span.step).or_insert(one.high);
            if one.high.allocated > best.allocated {
                *best = one.high;
            }
        }
    }
    let mut peaks: Vec<(u32, Levels)> = peaks.into_iter().collect();
    let left_out = peaks.len().saturating_sub(MAX_STEPS);
    if left_out > 0 {
        peaks.sort_by_key(|(_, levels)| std::cmp::Reverse(levels.allocated));
        peaks.truncate(MAX_STEPS);
        peaks.sort_by_key(|(step, _)| *step);
    }
    (peaks, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::subject;
    use tonnage_analysis::holdings::{Holding, Phase};
    use tonnage_recording::StackTable;

    fn block(born: u32, died: u32, bytes: u64) -> Holding {
        Holding::new(born, died, 0, bytes)
    }

    fn rows_of(subject: &Subject<'_>) -> Vec<(MomentKind, u32, u64)> {
        let changes = Changes::from_blocks(subject.blocks, subject.segments, subject.rows);
        let (found, _) = find(subject, &changes);
        found
            .into_iter()
            .map(|found| (found.moment.kind, found.moment.row, found.levels.allocated))
            .collect()
    }

    #[test]
    fn the_second_peak_is_of_another_phase() {
        let stacks = StackTable::new();
        // Backward peaks at 50 and 49; forward at 40.
        let blocks = [
            block(2, 4, 40),
            block(5, 7, 50),
            block(12, 14, 39),
            block(15, 17, 49),
        ];
        let span = |phase, from, to, step| PhaseSpan {
            phase,
            from,
            to,
            step,
        };
        let phases = [
            span(Phase::Forward, 0, 5, 0),
            span(Phase::Backward, 5, 10, 0),
            span(Phase::Forward, 10, 15, 1),
            span(Phase::Backward, 15, 20, 1),
        ];
        let oom = [Moment {
            row: 16,
            kind: MomentKind::OutOfMemory,
            label: "out of memory".to_owned(),
            refused: None,
        }];
        let subject = Subject {
            phases: &phases,
            moments: &oom,
            ..subject(&blocks, &stacks, 20)
        };
        assert_eq!(
            rows_of(&subject),
            [
                (MomentKind::SecondPeak, 2, 40),
                (MomentKind::Peak, 5, 50),
                (MomentKind::StepPeak, 5, 50),
                (MomentKind::StepPeak, 15, 49),
                (MomentKind::OutOfMemory, 16, 49),
            ]
        );
        let unphased = Subject {
            phases: &[],
            moments: &[],
            ..subject
        };
        assert_eq!(
            rows_of(&unphased),
            [(MomentKind::Peak, 5, 50), (MomentKind::SecondPeak, 15, 49),]
        );
    }
}
