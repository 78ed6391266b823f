// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN208: one line makes temporary memory far above everything around it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tonnage_text::{bytes, shortened};

use super::Found;
use super::case::{Case, LARGE_SHARE, Live, at, describe_shape};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged};
use super::logits::LOSSES;
use crate::holdings::{Category, Holding, Phase, Place, is_users, pattern};

/// One operation.
pub const SPIKE: Code = code(
    "TN208",
    "one operation makes the peak",
    "A single line makes temporary memory far above everything around it: a decoder at full resolution, a convolution's
workspace, a large intermediate product.

Recognised by: temporaries and workspaces of one line hold at least a quarter of the peak. A block of a backward pass
belongs to the line of the forward pass whose results it frees next, which is inferred.
Fix: work in tiles or on fewer samples at a time; of a backward pass, in parts that are checkpointed. The peak
with this line at half size is computed from the recording.",
);

/// Whether a block is scratch memory, or exists only within its pass without gradients. A block that goes when a pass
/// is given up, for example because memory ran out, may have been an activation.
fn is_passing(case: &Case<'_>, block: &Holding) -> bool {
    matches!(block.category, Category::Temporaries | Category::Workspaces)
        && block.phase != Phase::Step
        && !case.is_of_cublas(block)
        && !case.is_left_behind(block)
        && (block.phase != Phase::Forward || case.goes_on_after(block))
}

/// The line of a block, or that of the forward pass whose backward pass made it.
fn line(case: &Case<'_>, block: &Holding) -> Option<Place> {
    case.site(block)
        .or_else(|| case.site(case.backward_of(block)?))
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    // By line and not by module: a caller that passes half of the samples halves all that it
    // makes, in whatever modules.
    let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
    let passing = |live: &Live<'_>| is_passing(case, live.block);
    for live in case.unexplained().filter(passing) {
        if let Some(place) = line(case, live.block) {
            *sums.entry(place).or_default() += live.block.bytes;
        }
    }
    let (place, sum) = sums.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    let here: Vec<Live<'_>> = case
        .unexplained()
        .filter(passing)
        .filter(|live| line(case, live.block).as_ref() == Some(&place))
        .collect();
    let of_backward = here.iter().filter(|live| case.site(live.block).is_none());
    let is_backward = of_backward.map(|live| live.block.bytes).sum::<u64>() * 2 > sum;
    let in_loss = here
        .iter()
        .any(|live| case.has_function(live.block.stack, &LOSSES));
    if in_loss || !case.is_large(sum, LARGE_SHARE) {
        return None;
    }
    let largest = here
        .iter()
        .max_by_key(|live| live.block.bytes)
        .map(|live| case.backward_of(live.block).unwrap_or(live.block));
    let module = largest.and_then(|block| block.module);
    let mut inside = module.map_or_else(String::new, |id| {
        format!(", the largest of it in {}", pattern(case.stacks().text(id)))
    });
    // A line that calls a whole training explains little; the library's line that requested it explains more.
    let innermost = largest.and_then(|block| case.stacks().frames(block.stack?).next());
    if let Some(frame) = innermost.filter(|frame| !is_users(frame.file) && frame.line > 0) {
        let joint = if inside.is_empty() {
            ", the largest of it"
        } else {
            ""
        };
        let _ = write!(
            inside,
            "{joint} at {}:{}",
            shortened(frame.file),
            frame.line
        );
    }
    let at_line = at(Some(&place));
    let of = if is_backward {
        "the backward pass of one line"
    } else {
        "one line"
    };
    let sentence = format!(
        "{} is temporary memory of {of}, {at_line}{inside}{}",
        bytes(sum),
        describe_shape(&here, "such as ")
    );
    let advice = format!("call {at_line} on half of the samples, or in two tiles");
    let proposal = Proposal::new(
        SPIKE.code,
        advice,
        "of temporary memory there, a half of it",
    );
    let half = computed(case, proposal, |_, block| {
        let there = || line(case, block).as_ref() == Some(&place);
        if is_passing(case, block) && there() {
            sized(block, block.bytes / 2)
        } else {
            unchanged(block)
        }
    });
    // No change of the forward line was tested against memory of its backward pass, so none is proposed.
    let fix = half.filter(|_| !is_backward);
    let relation = if is_backward {
        "of the backward pass of"
    } else {
        "at"
    };
    let headline = format!("{} of temporary memory {relation} {at_line}", bytes(sum));
    Some(
        Found::inferred(SPIKE, sum, headline, sentence)
            .with_place(Some(place.clone()))
            .with_fixes(fix)
            .with_claims_of(&here),
    )
}
