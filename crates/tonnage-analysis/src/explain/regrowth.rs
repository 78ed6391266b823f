// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN224: a tensor is copied into a larger one each time it grows.

use std::collections::{BTreeSet, HashSet};

use tonnage_recording::{StackId, TextId};
use tonnage_text::bytes;

use super::Found;
use super::case::{Case, PASSES, SHARE, at, is_kept};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, computed, sized, unchanged};
use crate::holdings::{HeldBy, Holding};

/// A tensor that is copied to grow.
pub const REGROWTH: Code = code(
    "TN224",
    "a tensor is copied each time it grows",
    "A tensor cannot grow in place. `x = torch.cat([x, part])` makes a new tensor of both sizes and copies the old one into
it. Both are alive at once, and each copy leaves a free segment that is too small for the next one.

Recognised by: one line makes three or more blocks, each larger than the one before and in its place. The device reads
the old one for the copy, and it is freed after it. The old copy at the moment holds at least a tenth of the peak.
Fix: allocate the tensor once at its full size and copy each part into a slice of it. The peak without the old copies
is computed from the recording.",
);

/// Smaller blocks of the line are scratch memory or too old to matter.
const SMALLEST_PART: u64 = 64;

/// The copies that one line made, in the order of their births.
struct Copies<'a> {
    /// Copies up to the moment and after it; a request that failed is not among them.
    blocks: Vec<(u32, &'a Holding)>,
    /// The index among `blocks` of the copy that is replaced at the moment.
    old: usize,
    /// The copy that replaces it.
    new: &'a Holding,
    /// Whether that is the request that failed.
    is_requested: bool,
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let lines: BTreeSet<(StackId, Option<TextId>)> = case
        .unexplained()
        .filter(|live| case.is_large(live.block.bytes, SHARE) && !is_kept(live.block))
        .filter_map(|live| Some((live.block.stack?, live.block.module)))
        .collect();
    let copies = lines.into_iter().filter_map(|line| find_copies(case, line));
    let copies = copies.max_by_key(|copies| copies.blocks[copies.old].1.bytes)?;
    let (index, old) = copies.blocks[copies.old];
    let place = case.site(old);
    let line = at(place.as_ref());
    let named = |index: u32| case.holder(index).filter(|held| held.is_named());
    let held = copies.blocks.iter().rev().find_map(|&(at, _)| named(at));
    let name = held.map_or_else(|| "a tensor".to_owned(), HeldBy::describe_holder);
    let headline = format!(
        "{name} is copied each time it grows: the old copy holds {}",
        bytes(old.bytes)
    );
    let sentence = format!(
        "{headline}, the new one {} ({line})",
        bytes(copies.new.bytes)
    );
    let advice = format!(
        "allocate {name} once at its full size and copy each part into a slice of it ({line})"
    );
    Some(
        Found::exact(REGROWTH, old.bytes, headline, sentence)
            .with_place(place)
            .with_holder(held)
            .with_fixes(allocate_once(case, &copies, advice))
            .with_claims([index])
            .into_mistake(),
    )
}

fn find_copies<'a>(
    case: &'a Case<'_>,
    (stack, module): (StackId, Option<TextId>),
) -> Option<Copies<'a>> {
    let is_of_line = |block: &Holding| block.stack == Some(stack) && block.module == module;
    let wanted = case.wanted.as_ref().filter(|block| is_of_line(block));
    let made = (0_u32..).zip(&case.track.blocks);
    let made: Vec<(u32, &Holding)> = made.filter(|(_, block)| is_of_line(block)).collect();
    let here = made.partition_point(|(_, block)| block.born <= case.row);
    let (new, old) = match wanted {
        Some(wanted) => (wanted, here.checked_sub(1)?),
        None => (made.get(here.checked_sub(1)?)?.1, here.checked_sub(2)?),
    };
    let is_next = |before: &Holding, after: &Holding| {
        before.requested < after.requested && before.born < after.born && after.born < before.died
    };
    let replaced = made[old].1;
    if !is_next(replaced, new)
        || !replaced.alive_at(case.row)
        || !case.is_large(replaced.bytes, SHARE)
    {
        return None;
    }
    let mut first = old;
    while first > 0
        && is_next(made[first - 1].1, made[first].1)
        && made[first - 1].1.bytes * SMALLEST_PART >= new.bytes
    {
        first -= 1;
    }
    let mut end = here;
    while end < made.len() && is_next(made[end - 1].1, made[end].1) {
        end += 1;
    }
    let blocks = made[first..end].to_vec();
    // A list that grows keeps all of them.
    let is_freed_in_time =
        |&[(_, old), _, (_, later)]: &[(u32, &Holding); 3]| old.died <= later.born;
    let all_are_freed = blocks.array_windows().all(is_freed_in_time);
    let last_but_one = blocks.len().checked_sub(2).map(|at| blocks[at].1);
    let ends = wanted.is_some() || last_but_one.is_some_and(|block| block.died != Holding::ALIVE);
    // A new tensor that is not made of the old one is not a copy.
    let is_read = |&[(_, old), (_, new)]: &[(u32, &Holding); 2]| {
        old.uses
            .and_then(|uses| uses.last)
            .is_some_and(|last| last >= new.born)
    };
    let all_are_read = blocks.array_windows().all(is_read);
    let number = blocks.len() + usize::from(wanted.is_some());
    (number >= PASSES && all_are_freed && all_are_read && ends).then_some(Copies {
        blocks,
        old: old - first,
        new,
        is_requested: wanted.is_some(),
    })
}

/// The first copy has the size of the last one and lives as long; no other one is made.
fn allocate_once(case: &Case<'_>, copies: &Copies<'_>, advice: String) -> Option<Fix> {
    let (&(first, _), &(_, last)) = (copies.blocks.first()?, copies.blocks.last()?);
    let last = if copies.is_requested {
        copies.new
    } else {
        last
    };
    let all: HashSet<u32> = copies.blocks.iter().map(|&(index, _)| index).collect();
    let proposal = Proposal::new(REGROWTH.code, advice, "of old copies");
    let mut fix = computed(case, proposal, |index, block| match index {
        Some(index) if index == first => vec![(block.born, last.died, last.bytes)],
        Some(index) if all.contains(&index) => sized(block, 0),
        None if copies.is_requested => sized(block, 0),
        _ => unchanged(block),
    })?;
    if case.failed {
        // How large it would have become is not known.
        fix.leave_open();
    }
    Some(fix)
}
