// SPDX-License-Identifier: MIT OR Apache-2.0
//! When the device next uses what is alive at the moment, and TN223: memory that it never uses again.
//!
//! A dry run records the uses of each block, so this needs no pattern. A block that is not used again before the
//! recording ends is proved to be unused only if the program goes on long enough without it: it frees the block and
//! goes on, or the block idles for a whole step and was not used in several before. Else, at the end of a recording,
//! every weight would be unused.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;
use tonnage_recording::facts;
use tonnage_text::bytes;

use super::case::{Bound, Case, Live, SHARE, at, is_kept, is_kept_by, most_named};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, bounded, peak_with, unchanged, until};
use super::{Found, failed_otherwise};
use crate::holdings::{Category, HeldBy, Holding, Phase, Place, Sort, UsesOf, site};

/// Memory that is never used again.
pub const UNUSED: Code = code(
    "TN223",
    "a variable keeps memory that is never used again",
    "A tensor stays in memory as long as a variable, a container or an attribute refers to it, also after the last kernel
that reads or writes it: the logits while the backward pass runs, outputs in a list, a checkpoint that was loaded.

Recognised by: a dry run records every use of each block, and none comes after the peak. The program frees the block later
without a use and goes on, or the block idles for a whole step. Python recorded who holds it.
Fix: `del` after the line that uses it last, or a function around the lines that need it. The peak without the
memory is computed from the recording, with each of these blocks freed after its last use.",
);

/// When a block is used next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NextUse {
    /// Before anything else is allocated or freed.
    Now,
    /// Later in the same step. A step ends with that of an optimizer.
    ThisStep,
    /// In a later step.
    LaterStep,
    /// Later, in a recording that does not show steps.
    Later,
    /// Not before the recording ends, which is too soon to conclude more.
    NotSeen,
    /// Never: the program goes on without it.
    Never,
    /// The recording does not show the uses of the block.
    Unknown,
}

/// Blocks whose next use is of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UsedNext {
    /// When.
    pub next_use: NextUse,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
}

/// A part of it: one line, one purpose, one holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UsedPart {
    /// When.
    pub next_use: NextUse,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// Its category.
    pub category: Category,
    /// The user's line, or the innermost of Python; of a backward pass the forward line, where it is known.
    pub place: Option<Place>,
    /// Its holder, where Python recorded one.
    pub held_by: Option<HeldBy>,
}

/// The account of the moment by next use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NextUses {
    /// Its row: that of `moment`, or the fullest moment of the whole job where that failed.
    pub row: u32,
    /// Bytes of all blocks that are alive then.
    pub bytes: u64,
    /// `bytes` by next use, without those that have none. They add up to `bytes`.
    pub sums: Vec<UsedNext>,
    /// The largest parts.
    pub parts: Vec<UsedPart>,
    /// The peak of allocated bytes if each block were freed after its last use. No program frees so early everywhere.
    pub ideal_peak: u64,
    /// Most bytes of blocks that one launch uses, in the whole job: no offload or recomputation needs less.
    pub floor: Option<u64>,
    /// Whether it is the account of the whole job, and not of the recording itself.
    #[serde(skip)]
    pub whole: bool,
    /// The blocks that stay in memory after their last use, at any moment and not only at `row`, for charts: those with
    /// the most bytes and rows after it, by index.
    #[serde(skip)]
    pub unused: Vec<UnusedBlock>,
}

/// A block that stays in memory after its last use, and the program goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedBlock {
    /// Its index among the blocks of the process and device.
    pub block: u32,
    /// The first row after its last use. It is unused from there until it dies.
    pub from: u32,
}

/// How many parts are listed.
const PARTS: usize = 16;
/// How many unused blocks are listed: short-lived blocks have a few rows after their last use, too.
const UNUSED_BLOCKS: usize = 20_000;

/// The records from which the next use of a block follows.
struct Uses<'a> {
    case: &'a Case<'a>,
    /// The row at which memory changes next.
    change: u32,
    /// Whether the job went on to its own end.
    is_complete: bool,
}

impl<'a> Uses<'a> {
    /// None where the recording lacks a use, or ends where the moment is.
    fn read(case: &'a Case<'a>) -> Option<Self> {
        let all = case.recording.fact(case.track.process, facts::USES) == Some(facts::ALL_USES);
        if !all || case.failed {
            return None;
        }
        let rows = case
            .track
            .blocks
            .iter()
            .flat_map(|block| [block.born, block.died]);
        let stopped = facts::why_stopped(&case.recording.meta).is_some();
        Some(Self {
            case,
            change: rows
                .filter(|&row| row > case.row)
                .min()
                .unwrap_or(Holding::ALIVE),
            is_complete: !stopped && failed_otherwise(case.recording).is_none(),
        })
    }

    fn next(&self, block: &Holding) -> NextUse {
        let Some(uses) = block.uses else {
            return NextUse::Unknown;
        };
        let now = self.case.row;
        if uses.last.is_none_or(|last| last < now) {
            return if self.goes_on_without(block, uses) {
                NextUse::Never
            } else {
                NextUse::NotSeen
            };
        }
        let steps = &self.case.track.steps;
        let Some(next) = uses.next.filter(|&next| next >= now) else {
            return NextUse::Later;
        };
        if next < self.change {
            NextUse::Now
        } else if steps.is_empty() {
            NextUse::Later
        } else if steps.iter().any(|&step| now < step && step <= next) {
            NextUse::LaterStep
        } else {
            NextUse::ThisStep
        }
    }

    /// Whether a block that is not used after the moment is proved to be unused.
    fn goes_on_without(&self, block: &Holding, uses: UsesOf) -> bool {
        let track = self.case.track;
        let passes = &track.passes;
        let rounds = if track.steps.is_empty() {
            passes
        } else {
            &track.steps
        };
        let between = |from: u32, to: u32| {
            let after = rounds.partition_point(|&row| row <= from);
            rounds
                .partition_point(|&row| row < to)
                .saturating_sub(after)
        };
        if block.died != Holding::ALIVE && passes.last().is_some_and(|&last| last > block.died) {
            return true;
        }
        let last = uses.last.unwrap_or(block.born);
        let (active, idle) = (
            between(block.born, last),
            between(last, track.end.min(block.died)),
        );
        if idle >= 2 && active <= 1 {
            return true;
        }
        // A model of an earlier trial: used in every round, and then in none for at least as many, to the job's own
        // end.
        let (rounds_used, rounds_idle) = (active + 1, idle.saturating_sub(1));
        let is_used_in_each = uses.count as usize >= rounds_used;
        if self.is_complete && is_used_in_each && rounds_idle >= rounds_used.max(2) {
            return true;
        }
        // The next pass makes its own blocks.
        let is_of_pass = passes.first().is_some_and(|&first| first < block.born);
        self.is_complete && is_of_pass && !is_kept(block)
    }
}

/// All that the blocks of a part share.
type Key<'a> = (NextUse, Category, Option<Place>, Option<&'a HeldBy>);

/// The account of a moment; none where uses are not recorded.
pub(super) fn account(case: &Case<'_>, whole: bool) -> Option<NextUses> {
    let uses = Uses::read(case)?;
    let mut sums: BTreeMap<NextUse, (u64, u64)> = BTreeMap::new();
    let mut parts: BTreeMap<Key<'_>, (u64, u64)> = BTreeMap::new();
    let alive: Vec<Live<'_>> = case.alive().collect();
    for live in &alive {
        let next = uses.next(live.block);
        let forward = case
            .backward_of(live.block)
            .and_then(|forward| case.site(forward));
        let place = forward.or_else(|| site(case.stacks(), live.block.stack));
        let part = parts
            .entry((next, live.block.category, place, live.held))
            .or_default();
        for sum in [sums.entry(next).or_default(), part] {
            *sum = (sum.0 + live.block.bytes, sum.1 + 1);
        }
    }
    let sums = sums
        .into_iter()
        .map(|(next_use, (bytes, blocks))| UsedNext {
            next_use,
            bytes,
            blocks,
        });
    let parts = parts.into_iter();
    let mut parts: Vec<UsedPart> = parts
        .map(
            |((next_use, category, place, held), (bytes, blocks))| UsedPart {
                next_use,
                bytes,
                blocks,
                category,
                place,
                held_by: held.cloned(),
            },
        )
        .collect();
    parts.sort_by_key(|part| Reverse(part.bytes));
    parts.truncate(PARTS);
    Some(NextUses {
        row: case.row,
        bytes: alive.iter().map(|live| live.block.bytes).sum(),
        sums: sums.collect(),
        parts,
        ideal_peak: peak_with(case, |_, block| match block.uses {
            Some(uses) => until(block, uses.last.map_or(block.born, |last| last + 1)),
            None => unchanged(block),
        }),
        floor: floor(case),
        whole,
        unused: unused_blocks(&uses),
    })
}

fn floor(case: &Case<'_>) -> Option<u64> {
    let floors = case.recording.fact(case.track.process, facts::FLOORS)?;
    let floors: Vec<u64> = serde_json::from_str(floors).ok()?;
    let device = usize::try_from(case.track.device).ok()?;
    floors.get(device).copied().filter(|&bytes| bytes > 0)
}

/// The blocks of the track that stay after their last use, by the rule of the account.
fn unused_blocks(uses: &Uses<'_>) -> Vec<UnusedBlock> {
    let track = uses.case.track;
    let unused = (0_u32..).zip(&track.blocks).filter_map(|(index, block)| {
        let known = block.uses?;
        let last = known.last.map_or(block.born, |last| last.saturating_add(1));
        let from = last.max(block.born);
        let rows = block.died.min(track.end).saturating_sub(from);
        let area = u128::from(block.bytes) * u128::from(rows);
        let found = UnusedBlock { block: index, from };
        (area > 0 && uses.goes_on_without(block, known)).then_some((area, found))
    });
    let mut unused: Vec<(u128, UnusedBlock)> = unused.collect();
    unused.sort_by_key(|&(area, _)| Reverse(area));
    unused.truncate(UNUSED_BLOCKS);
    let mut unused: Vec<UnusedBlock> = unused.into_iter().map(|(_, found)| found).collect();
    unused.sort_by_key(|found| found.block);
    unused
}

/// The live blocks that are never used again, and stay.
pub(super) fn unused(case: &Case<'_>) -> HashSet<u32> {
    let Some(uses) = Uses::read(case) else {
        return HashSet::new();
    };
    let alive = case.alive();
    let unused = alive.filter(|live| uses.next(live.block) == NextUse::Never);
    unused.map(|live| live.index).collect()
}

/// Searches containers, models and optimizers: rules about steps and passes would count their memory as a part of
/// these.
pub(super) fn idle(case: &Case<'_>) -> Option<Found> {
    find_of(case, |held| {
        !matches!(held.sort, Sort::Variable | Sort::Closure | Sort::Other)
    })
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    find_of(case, |_| true)
}

/// Finds the holder of most memory that is never used again, among holders that `is_searched` accepts.
fn find_of(case: &Case<'_>, is_searched: impl Fn(&HeldBy) -> bool) -> Option<Found> {
    let is_named = |held: &&HeldBy| {
        held.is_named()
            && !held.in_library
            && !matches!(held.sort, Sort::Graph | Sort::Traceback)
            && is_searched(held)
    };
    // A list of models holds weights, gradients and an optimizer's state, which differ in sort and line.
    let mut sums: BTreeMap<(&str, Option<&str>), Vec<Live<'_>>> = BTreeMap::new();
    let unused: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| case.is_unused(live.index))
        .collect();
    let keepers = keepers(case, &unused);
    for &live in &unused {
        let held = keepers.get(&live.index).copied().or(live.held);
        if let Some(held) = held.filter(is_named) {
            let name = (held.name.as_str(), held.function.as_deref());
            sums.entry(name).or_default().push(Live {
                held: Some(held),
                ..live
            });
        }
    }
    for blocks in sums.values_mut() {
        drop_waiting_gradients(case, blocks);
    }
    let blocks = sums.into_values().max_by_key(|blocks| sum(blocks))?;
    let held = most_named(&blocks)?;
    let total = sum(&blocks);
    if !case.is_large(total, SHARE) {
        return None;
    }
    let largest = blocks.iter().max_by_key(|live| live.block.bytes)?;
    let made = case.site(largest.block);
    let gradients = blocks.iter().all(|live| is_gradient(live.block));
    let of = if gradients {
        " of gradients that are"
    } else {
        " that is"
    };
    let headline = format!(
        "{} keeps {}{of} never used again",
        held.describe_holder(),
        bytes(total)
    );
    let sentence = match &made {
        Some(made) => format!("{headline} (made at {})", at(Some(made))),
        None => headline.clone(),
    };
    let place = held.place.clone().or(made);
    let advice = if gradients {
        format!(
            "call `zero_grad()` after the optimizer's step, so that {} keeps no gradients until the next one",
            held.describe_holder()
        )
    } else {
        format!(
            "end the life of what {} holds ({}) after its last use",
            held.describe_holder(),
            at(held.place.as_ref())
        )
    };
    let proposal = Proposal::new(UNUSED.code, advice, "that is never used again");
    let claims = blocks.iter().map(|live| live.index).collect();
    let fix = freed_after_use(case, proposal, &claims);
    let is_avoidable = fix.is_some();
    let found = Found::exact(UNUSED, total, headline, sentence)
        .with_place(place)
        .with_holder(Some(held))
        .with_fixes(fix)
        .with_claims_of(&blocks);
    // Where the peak stays without this memory, it is not the cause of the peak.
    Some(if is_avoidable {
        found.into_mistake()
    } else {
        found
    })
}

/// Finds the holders of unused models that Python named when they were in use, or not at all. The variable of then has the
/// model that the same lines made since, and the older ones are where most of their kind are. A gradient is where its
/// weight is.
fn keepers<'a>(case: &Case<'_>, unused: &[Live<'a>]) -> HashMap<u32, &'a HeldBy> {
    let line = |block: &Holding| (block.stack, block.module, block.requested);
    let mut newest: HashMap<_, u32> = HashMap::new();
    for live in case.alive() {
        let born = newest.entry(line(live.block)).or_default();
        *born = live.block.born.max(*born);
    }
    let mut by_line: HashMap<_, BTreeMap<&HeldBy, u64>> = HashMap::new();
    for live in unused {
        if let Some(held) = live.held
            && live.block.stack.is_some()
        {
            let counts = by_line.entry(line(live.block)).or_default();
            *counts.entry(held).or_default() += 1;
        }
    }
    let mut keepers = HashMap::new();
    for live in unused {
        let is_replaced = newest
            .get(&line(live.block))
            .is_some_and(|&born| born > live.block.born);
        let most = by_line
            .get(&line(live.block))
            .and_then(|counts| counts.iter().max_by_key(|(_, count)| **count));
        if is_replaced
            && is_kept_by(live.held)
            && let Some((&held, _)) = most.filter(|(_, count)| **count > 1)
        {
            keepers.insert(live.index, held);
        }
    }
    let mut weights: Vec<Live<'_>> = case.alive().collect();
    weights.retain(|live| live.block.category == Category::Weights);
    weights.sort_by_key(|live| live.block.born);
    let by_index: HashMap<u32, &Live<'a>> = unused.iter().map(|live| (live.index, live)).collect();
    for live in unused {
        if live.held.is_some() || !is_gradient(live.block) {
            continue;
        }
        let before = weights.partition_point(|weight| weight.block.born < live.block.born);
        let mut before = weights[..before].iter().rev();
        let weight = before.find(|weight| weight.block.requested == live.block.requested);
        // The gradient of a model that is in use is not kept with an earlier one.
        let weight = weight.and_then(|weight| by_index.get(&weight.index));
        if let Some(weight) = weight
            && let Some(held) = keepers.get(&weight.index).copied().or(weight.held)
        {
            keepers.insert(live.index, held);
        }
    }
    keepers
}

fn sum(blocks: &[Live<'_>]) -> u64 {
    blocks.iter().map(|live| live.block.bytes).sum()
}

fn is_gradient(block: &Holding) -> bool {
    block.category == Category::Gradients
}

/// Drops gradients of a model that is trained: in its forward pass they wait for `zero_grad`, as in most programs. They
/// stay where the whole model is not used again, or where the passes have no gradients.
fn drop_waiting_gradients(case: &Case<'_>, blocks: &mut Vec<Live<'_>>) {
    let (gradients, others): (Vec<Live<'_>>, Vec<Live<'_>>) =
        blocks.iter().partition(|live| is_gradient(live.block));
    if case.phase() != Phase::Eval && sum(&others) < sum(&gradients) {
        *blocks = others;
    }
}

/// Computes the peak if `claims` were freed after their last use, at once or with the phase of that use. Blocks that
/// the same lines leave behind in other rounds are freed in the same way.
pub(super) fn freed_after_use(
    case: &Case<'_>,
    proposal: Proposal,
    claims: &HashSet<u32>,
) -> Option<Fix> {
    let sort = |block: &Holding| (block.stack, block.module, block.requested);
    let made: HashSet<_> = claims
        .iter()
        .map(|&index| sort(&case.track.blocks[index as usize]))
        .collect();
    let phase_end = |row: u32| case.track.phase_at(row).map_or(row + 1, |span| span.to);
    let mut claimed = claims
        .iter()
        .map(|&index| &case.track.blocks[index as usize]);
    let gradients = claimed.all(is_gradient);
    let holders: BTreeSet<&HeldBy> = claims
        .iter()
        .filter_map(|&index| case.holder(index))
        .collect();
    // Members of a cycle have several names, and a collection frees the last of them.
    let is_garbage = !holders.is_empty() && holders.iter().all(|held| held.cycle().is_some());
    // A tensor without a name is in no variable, and goes with what refers to it.
    let is_in_container = |held: &&HeldBy| held.is_named() && held.sort != Sort::Variable;
    let in_container = holders.iter().any(is_in_container);
    // A phase may have several passes.
    let end = |last: u32| match case.round_end(last, false) {
        _ if case.pass_of(last) == 0 => phase_end(last),
        round_end if in_container => round_end,
        round_end => phase_end(last).min(round_end),
    };
    // Without the container, a variable may keep a block until it has the next one of the same line.
    let mut replaced: HashMap<u32, u32> = HashMap::new();
    let mut newest = HashMap::new();
    for (index, block) in (0_u32..).zip(&case.track.blocks) {
        let line = (block.stack, block.module);
        if made.contains(&sort(block))
            && let Some(before) = newest.insert(line, index)
        {
            replaced.insert(before, block.born);
        }
    }
    bounded(case, proposal, |bound, index, block| {
        let Some(last) = block.uses.map(|uses| uses.last.unwrap_or(block.born)) else {
            return unchanged(block);
        };
        let outlives = || block.died >= case.round_end(last, false);
        let stays =
            || (gradients || !is_kept(block)) && (is_garbage && block.is_collected || outlives());
        let is_claimed = index.is_some_and(|index| claims.contains(&index));
        // Another holder would still keep it.
        let other = index.and_then(|index| case.holder(index));
        let is_same = |held: &HeldBy| {
            holders.contains(held)
                || is_garbage && (held.cycle().is_some() || held.sort == Sort::Nothing)
        };
        let is_like = made.contains(&sort(block)) && other.is_none_or(is_same);
        let is_freed = is_claimed || is_like && stays();
        if !is_freed {
            return unchanged(block);
        }
        match bound {
            Bound::Least if !in_container => until(block, last + 1),
            Bound::Most if in_container && !gradients => {
                let replaced = index.and_then(|index| replaced.get(&index));
                until(block, end(last).max(replaced.map_or(0, |&born| born + 1)))
            }
            Bound::Least | Bound::Most => until(block, end(last)),
        }
    })
}
