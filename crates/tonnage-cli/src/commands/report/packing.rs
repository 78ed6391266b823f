// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of a recording for its report: made if it is quick, and described in words.

use std::path::Path;
use std::time::Duration;

use tonnage_analysis::holdings::Holdings;
use tonnage_analysis::plan::{Packing, PackingError, packing};
use tonnage_report::Planned;

use crate::commands::recording::Recording;
use crate::commands::report::Compare;
use crate::commands::report::ReportOptions;
use crate::output::{bytes, count, plural};

/// How long planning may take without a request.
const SOON: Duration = Duration::from_secs(3);
/// How long it may take if every allocator is to be shown.
const LATER: Duration = Duration::from_mins(1);
/// Blocks that are planned without a request: so many take about as long.
const MAX_BLOCKS: usize = 1_000_000;

/// The plan, and its description in the report; nothing at all where other allocators are not wanted or nothing lived.
pub(super) fn ask(
    options: &ReportOptions,
    recording: &Recording,
    track: &Holdings,
) -> (Option<Packing>, Option<Planned>) {
    if options.compare_allocators == Compare::Never || track.blocks.is_empty() {
        return (None, None);
    }
    let command = command(&options.file);
    let said = |sentence: String| Planned {
        sentence,
        ..Planned::default()
    };
    let all = options.compare_allocators == Compare::Always;
    if !all && track.blocks.len() > MAX_BLOCKS {
        return (None, Some(said(many(track.blocks.len(), &command))));
    }
    let source = match recording.trace() {
        Ok(source) => source,
        Err(error) => return (None, Some(said(format!("left out: {error}")))),
    };
    let packed = match packing(source, track, if all { LATER } else { SOON }) {
        Ok(packed) if packed.places.is_empty() => return (None, None),
        Ok(packed) => packed,
        Err(PackingError::IsProblem) => {
            let sentence = format!(
                "left out: the file is a planning problem, whose alignments and gaps a recording does not have; {command} plans it"
            );
            return (None, Some(said(sentence)));
        }
        Err(error) => {
            let sentence = format!("left out: {error}; {command} prints why");
            return (None, Some(said(sentence)));
        }
    };
    let planned = planned(&packed, track, &command);
    (Some(packed), Some(planned))
}

fn many(blocks: usize, command: &str) -> String {
    let blocks = count(blocks as u64);
    format!(
        "left out, because planning {blocks} blocks takes a while: {command} plans them, and --compare-allocators always draws the plan here"
    )
}

/// The command to type; names that a shell would split are quoted.
fn command(file: &Path) -> String {
    let name = file.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=@%:,".contains(c);
    if name.chars().all(plain) {
        format!("`tonnage plan {name}`")
    } else {
        format!("`tonnage plan '{}'`", name.replace('\'', r"'\''"))
    }
}

fn planned(packed: &Packing, track: &Holdings, command: &str) -> Planned {
    let (peak, bound) = (packed.peak(), packed.lower_bound());
    let mut sentence = if packed.is_proved() {
        "proved: no plan has a lower peak".to_owned()
    } else {
        let over = peak.saturating_sub(bound);
        format!(
            "a lower peak is not excluded: it is {} or {:.3} % above the bound; {} may find one",
            bytes(over),
            over as f64 * 100.0 / bound.max(1) as f64,
            command.replace("plan ", "plan --deadline 60 "),
        )
    };
    if packed.arenas.iter().any(|arena| arena.streams > 1) {
        sentence.push_str("; streams are one time line here, in the order of the rows");
    }
    let there = track.blocks.iter().filter(|block| block.bytes > 0).count();
    let placed = packed.places.iter().filter(|place| place.block.is_some());
    let others = there.saturating_sub(placed.count());
    if others > 0 {
        let blocks = plural(others as u64, "block");
        sentence = format!("{sentence}; without {blocks} whose birth the recording does not show");
    }
    Planned {
        sentence,
        done: true,
        proved: packed.is_proved(),
        peak,
        lower_bound: bound,
        buffers: packed.places.len() as u64,
        reserved: (track.peak_reserved > 0).then_some(track.peak_reserved),
        pools: packed
            .arenas
            .iter()
            .map(|arena| {
                arena.pool.map_or(String::new(), |pool| {
                    format!("{}.{}", pool.first, pool.second)
                })
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonnage_analysis::plan::Arena;

    #[test]
    fn what_is_left_out_can_be_asked_for() {
        insta::assert_snapshot!(
            many(2_500_000, &command(Path::new("runs/long.tonnage"))),
            @"left out, because planning 2,500,000 blocks takes a while: `tonnage plan runs/long.tonnage` plans them, and --compare-allocators always draws the plan here"
        );
        insta::assert_snapshot!(
            command(Path::new("Eve's run.tonnage")),
            @r"`tonnage plan 'Eve'\''s run.tonnage'`"
        );
    }

    #[test]
    fn a_plan_above_its_bound_says_so() {
        let packed = Packing {
            arenas: vec![Arena {
                pool: None,
                base: 0,
                peak: 11 << 20,
                lower_bound: 10 << 20,
                proved: false,
                buffers: 3,
                streams: 2,
            }],
            places: Vec::new(),
        };
        let planned = planned(&packed, &Holdings::default(), "`tonnage plan a.tonnage`");
        insta::assert_snapshot!(
            planned.sentence,
            @"a lower peak is not excluded: it is 1.00 MiB or 10.000 % above the bound; `tonnage plan --deadline 60 a.tonnage` may find one; streams are one time line here, in the order of the rows"
        );
        assert_eq!((planned.reserved, planned.proved), (None, false));
    }
}
