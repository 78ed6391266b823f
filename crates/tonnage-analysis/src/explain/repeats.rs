// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repeated blocks of a model, such as the layers of a transformer, and what each keeps for the backward pass.
//!
//! Modules identify them where they are recorded: everything in `layers.3.*` is one unit
//! of the family `layers.*`. In snapshots a unit is one round of the loop over the
//! layers: the lines of the loop make one block each in every round, so the n-th
//! block of a stack within a pass belongs to round n. Compiled code has no units:
//! the compiler has laid out the layers as one, and chose what it keeps.
//!
//! Under checkpointing a unit would keep its output, which is the input of
//! the next one; the rest is computed again in the backward pass. An output that only
//! passes, because the next unit keeps a copy of another type, would be kept then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use tonnage_recording::StackId;

use super::case::{Case, is_kept};
use super::fixes::{Lifetimes, unchanged};
use crate::holdings::{Category, Holding, Phase};

/// A family needs so many units.
const UNITS: usize = 3;
/// Numbers of a path that are tried: blocks of stages, and what is repeated in a block.
const DEPTHS: usize = 3;

/// One unit in one pass.
pub(super) struct Unit {
    pub(super) pass: usize,
    /// `layers.3`; none where it is a round of a loop.
    path: Option<String>,
    /// The blocks that it keeps for the backward pass, by index among the blocks, in the order of births.
    blocks: Vec<u32>,
    /// The one of them that the next unit reads.
    output: Option<u32>,
    /// Row of the last birth.
    end: u32,
    /// Row at which its backward pass begins, if it was seen.
    back: u32,
}

/// All units of a recording.
pub(super) struct Repeats {
    /// `layers.*`, and others of the model, those with the most bytes first; none where units are rounds of a loop.
    pub(super) families: Vec<String>,
    pub(super) units: Vec<Unit>,
    /// The unit of each block.
    member: HashMap<u32, usize>,
    /// The unit that each block is the output of, if no unit keeps it: it goes while the next one works.
    passing: HashMap<u32, usize>,
}

/// A block that the backward pass needs, as far as its lifetime shows.
fn is_kept_for_backward(block: &Holding) -> bool {
    block.phase == Phase::Forward && block.category == Category::Activations && !is_kept(block)
}

/// The unit of a path: everything up to its part with a number of that depth, such as `3` or `layer3`. Blocks may be
/// repeated in stages that are repeated.
fn unit_of(path: &str, depth: usize) -> Option<&str> {
    let mut at = 0;
    let mut ends = path.split('.').filter_map(|part| {
        let end = at + part.len();
        at = end + 1;
        part.ends_with(|c: char| c.is_ascii_digit()).then_some(end)
    });
    ends.nth(depth - 1).map(|end| &path[..end])
}

/// `stage*.*` of the unit `stage2.7`.
fn family_of(unit: &str) -> String {
    let parts = unit.split('.').map(|part| {
        let name = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = if name.len() < part.len() { "*" } else { "" };
        format!("{name}{number}")
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Finds the units; none if the model has no repeated blocks.
pub(super) fn find(case: &Case<'_>) -> Option<Repeats> {
    find_among(case, is_kept_for_backward)
}

/// The units of some blocks: of those that may be taken, the ones of which the least would stay at the moment.
pub(super) fn find_among(case: &Case<'_>, of: impl Fn(&Holding) -> bool) -> Option<Repeats> {
    let mut compiled = HashMap::new();
    let kept: Vec<u32> = (0_u32..)
        .zip(&case.track.blocks)
        .filter(|(_, block)| of(block) && case.pass_of(block.born) > 0)
        .filter(|(_, block)| {
            let known = |stack| {
                *compiled
                    .entry(stack)
                    .or_insert_with(|| case.is_compiled(stack))
            };
            !block.stack.is_some_and(known)
        })
        .map(|(index, _)| index)
        .collect();
    let settled = |(families, units)| {
        let mut repeats = Repeats {
            families,
            units,
            member: HashMap::new(),
            passing: HashMap::new(),
        };
        repeats.settle(case);
        repeats
    };
    let depths = (1..=DEPTHS).filter_map(|depth| by_module(case, &kept, depth));
    // The first of equal ones, which are the larger units.
    depths
        .map(settled)
        .min_by_key(|repeats| {
            let (inner, most, _) = repeats.at_moment(case);
            let added = repeats.added_at_moment(case);
            Reverse((inner - most).saturating_sub(added))
        })
        .or_else(|| {
            // Layers that a script calls itself have no common path.
            let units = by_stack(case, &kept)?;
            Some(settled((Vec::new(), units)))
        })
}

fn block<'a>(case: &Case<'a>, index: u32) -> &'a Holding {
    &case.track.blocks[index as usize]
}

fn is_in_backward(case: &Case<'_>, row: u32) -> bool {
    let span = case.track.phase_at(row);
    span.is_some_and(|span| span.phase == Phase::Backward && span.from <= row)
}

fn by_module(case: &Case<'_>, kept: &[u32], depth: usize) -> Option<(Vec<String>, Vec<Unit>)> {
    // Units by pass and path, in the order in which they begin.
    let mut found: BTreeMap<(usize, String), Vec<u32>> = BTreeMap::new();
    let mut families: BTreeMap<String, (u64, BTreeSet<String>)> = BTreeMap::new();
    for &index in kept {
        let block = block(case, index);
        let Some(path) = block.module.map(|id| case.stacks().text(id)) else {
            continue;
        };
        let Some(unit) = unit_of(path, depth) else {
            continue;
        };
        let pass = case.pass_of(block.born);
        found
            .entry((pass, unit.to_owned()))
            .or_default()
            .push(index);
        let family = families.entry(family_of(unit)).or_default();
        family.0 += block.bytes;
        family.1.insert(unit.to_owned());
    }
    families.retain(|_, (_, units)| units.len() >= UNITS);
    found.retain(|(_, unit), _| families.values().any(|(_, units)| units.contains(unit)));
    let mut names: Vec<(u64, String)> = families
        .into_iter()
        .map(|(name, (bytes, _))| (bytes, name))
        .collect();
    names.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
    let units = found
        .into_iter()
        .map(|((pass, path), blocks)| unit_from(pass, Some(path), blocks));
    (!names.is_empty()).then(|| (names, units.collect()))
}

fn unit_from(pass: usize, path: Option<String>, blocks: Vec<u32>) -> Unit {
    Unit {
        pass,
        path,
        blocks,
        output: None,
        end: 0,
        back: Holding::ALIVE,
    }
}

fn by_stack(case: &Case<'_>, kept: &[u32]) -> Option<Vec<Unit>> {
    let mut counts: BTreeMap<(usize, StackId), (usize, u64)> = BTreeMap::new();
    for &index in kept {
        let block = block(case, index);
        let Some(stack) = block.stack else { continue };
        let entry = counts.entry((case.pass_of(block.born), stack)).or_default();
        entry.0 += 1;
        entry.1 += block.bytes;
    }
    // In each pass as many rounds as the lines with the most bytes have blocks.
    let mut rounds: BTreeMap<usize, BTreeMap<usize, u64>> = BTreeMap::new();
    for (&(pass, _), &(count, bytes)) in &counts {
        if count >= UNITS {
            *rounds.entry(pass).or_default().entry(count).or_default() += bytes;
        }
    }
    let rounds: BTreeMap<usize, usize> = rounds
        .into_iter()
        .filter_map(|(pass, by)| Some((pass, by.into_iter().max_by_key(|(_, bytes)| *bytes)?.0)))
        .collect();
    // The first rows of the rounds, by the first line that makes one block in each.
    let mut begins: BTreeMap<usize, (StackId, Vec<u32>)> = BTreeMap::new();
    for &index in kept {
        let block = block(case, index);
        let pass = case.pass_of(block.born);
        if let Some(stack) = block.stack.filter(|_| rounds.contains_key(&pass))
            && counts[&(pass, stack)].0 == rounds[&pass]
        {
            let begin = begins.entry(pass).or_insert_with(|| (stack, Vec::new()));
            if begin.0 == stack {
                begin.1.push(block.born);
            }
        }
    }
    let mut seen: HashMap<(usize, StackId), usize> = HashMap::new();
    let mut found: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
    for &index in kept {
        let block = block(case, index);
        let pass = case.pass_of(block.born);
        let (Some(stack), Some(&rounds)) = (block.stack, rounds.get(&pass)) else {
            continue;
        };
        let count = counts[&(pass, stack)].0;
        let number = seen.entry((pass, stack)).or_default();
        let round = match begins.get(&pass) {
            _ if count.is_multiple_of(rounds) => *number / (count / rounds),
            // A variable keeps more of the last round, or its result, which is not among the blocks here.
            Some((_, begins)) if count + 1 >= rounds => {
                begins.partition_point(|&row| row <= block.born).max(1) - 1
            }
            _ => continue,
        };
        *number += 1;
        found.entry((pass, round)).or_default().push(index);
    }
    if found.is_empty() {
        return None;
    }
    let units = found.into_iter();
    Some(
        units
            .map(|((pass, _), blocks)| unit_from(pass, None, blocks))
            .collect(),
    )
}

impl Repeats {
    /// Orders the units and finds what each would compute again, and when.
    fn settle(&mut self, case: &Case<'_>) {
        let first = |unit: &Unit| unit.blocks.first().copied().unwrap_or(0);
        self.units.sort_by_key(|unit| (unit.pass, first(unit)));
        for (number, unit) in self.units.iter_mut().enumerate() {
            let Some(&last) = unit.blocks.last() else {
                continue;
            };
            unit.end = block(case, last).born;
            // The backward pass comes from the next unit, which kept it, so it goes before all else; where no backward
            // pass was seen, the last is taken for it. Copies of weights by autocast go earlier.
            let died = |&&index: &&u32| {
                let died = block(case, index).died;
                (!is_in_backward(case, died), died, Reverse(index))
            };
            unit.output = unit.blocks.iter().min_by_key(died).copied();
            let inner = unit
                .blocks
                .iter()
                .filter(|&&index| Some(index) != unit.output);
            let first = inner.min_by_key(died);
            unit.back = first.map_or(Holding::ALIVE, |&index| block(case, index).died);
            for &index in &unit.blocks {
                self.member.insert(index, number);
            }
        }
        self.find_passing(case);
        // The backward pass of a unit begins when that of the next one is over.
        for number in 0..self.units.len() {
            let Some(next) = self.units.get(number + 1) else {
                continue;
            };
            if next.pass != self.units[number].pass {
                continue;
            }
            let over = next.blocks.iter().map(|&index| block(case, index).died);
            let back = self.units[number].back;
            let before = |&died: &u32| died < back && is_in_backward(case, died);
            let over = over.filter(before).max();
            if let Some(over) = over {
                self.units[number].back = over;
            }
        }
    }

    /// Finds outputs that no unit keeps: the last that a unit made and that is there when the next one begins.
    fn find_passing(&mut self, case: &Case<'_>) {
        let blocks = &case.track.blocks;
        for number in 0..self.units.len().saturating_sub(1) {
            let (unit, next) = (&self.units[number], &self.units[number + 1]);
            let (Some(path), Some(&first), Some(&begin)) =
                (&unit.path, unit.blocks.first(), next.blocks.first())
            else {
                continue;
            };
            let born = block(case, begin).born;
            let within = |other: &Holding| {
                let module = other.module.map(|id| case.stacks().text(id));
                let rest = module.and_then(|module| module.strip_prefix(path.as_str()));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let range = first as usize..(begin as usize).min(blocks.len());
            let made = (first..).zip(blocks.get(range).unwrap_or_default());
            let stays = |(_, other): &(u32, &Holding)| {
                other.phase == Phase::Forward
                    && !is_kept(other)
                    && other.died > born
                    && within(other)
            };
            let last = made.filter(stays).map(|(index, _)| index).last();
            if let Some(index) =
                last.filter(|index| unit.pass == next.pass && !self.member.contains_key(index))
                && !is_in_backward(case, block(case, index).died)
            {
                self.units[number].output = None;
                self.passing.insert(index, number);
            }
        }
    }

    /// The unit that would compute a block again.
    fn inner(&self, index: Option<u32>) -> Option<usize> {
        let unit = *self.member.get(&index?)?;
        (self.units[unit].output != index).then_some(unit)
    }

    /// Units that are alive at the moment, at least in part.
    pub(super) fn alive(&self, case: &Case<'_>) -> usize {
        let lives = |unit: &&Unit| {
            let mut blocks = unit.blocks.iter();
            blocks.any(|&index| block(case, index).alive_at(case.row))
        };
        self.units.iter().filter(lives).count()
    }

    /// Units of the pass of the moment.
    pub(super) fn in_pass(&self, case: &Case<'_>) -> usize {
        let pass = case.pass_of(case.row);
        self.units.iter().filter(|unit| unit.pass == pass).count()
    }

    /// Whether a block is what one unit hands to the next.
    pub(super) fn is_output(&self, index: Option<u32>) -> bool {
        let unit = index.and_then(|index| self.member.get(&index));
        unit.is_some_and(|&unit| self.units[unit].output == index)
    }

    /// Bytes that are alive at the moment and would be computed again, the most in one unit, and what would stay.
    pub(super) fn at_moment(&self, case: &Case<'_>) -> (u64, u64, u64) {
        let mut inner: BTreeMap<usize, u64> = BTreeMap::new();
        let mut outputs = 0;
        for (number, unit) in self.units.iter().enumerate() {
            for &index in &unit.blocks {
                let block = block(case, index);
                if !block.alive_at(case.row) {
                    continue;
                }
                if self.inner(Some(index)).is_some() {
                    *inner.entry(number).or_default() += block.bytes;
                } else {
                    outputs += block.bytes;
                }
            }
        }
        let sum = inner.values().sum();
        outputs += self.added_at_moment(case);
        (sum, inner.into_values().max().unwrap_or(0), outputs)
    }

    /// Bytes of outputs that are not alive at the moment and would be.
    fn added_at_moment(&self, case: &Case<'_>) -> u64 {
        let added = |(&index, &unit): (&u32, &usize)| {
            let block = block(case, index);
            let there = block.died <= case.row && case.row < self.units[unit].back;
            there.then_some(block.bytes)
        };
        self.passing.iter().filter_map(added).sum()
    }

    /// The lifetimes of a block if every unit were checkpointed.
    pub(super) fn checkpointed(&self, index: Option<u32>, block: &Holding) -> Lifetimes {
        if let Some(&unit) = index.and_then(|index| self.passing.get(&index)) {
            return vec![(
                block.born,
                block.died.max(self.units[unit].back),
                block.bytes,
            )];
        }
        let Some(unit) = self.inner(index) else {
            return unchanged(block);
        };
        let unit = &self.units[unit];
        let end = unit.end.max(block.born).saturating_add(1);
        if block.died <= end {
            return unchanged(block);
        }
        let mut lifetimes = vec![(block.born, end, block.bytes)];
        if block.died != Holding::ALIVE && unit.back < block.died {
            lifetimes.push((unit.back.max(end), block.died, block.bytes));
        }
        lifetimes
    }

    /// The lifetimes of a block if no unit kept anything for a backward pass: until its unit is done, or the next one
    /// if it is the last that its unit made, which is what the next one is given.
    pub(super) fn without_graph(&self, index: Option<u32>, block: &Holding) -> Option<Lifetimes> {
        let unit = *self.member.get(&index?)?;
        let given = self.units[unit].blocks.last() == index.as_ref();
        let next = self.units.get(unit + 1).filter(|_| given);
        let next = next.filter(|next| next.pass == self.units[unit].pass);
        let end = next.map_or(self.units[unit].end, |next| next.end);
        let end = end.max(block.born).saturating_add(1);
        Some(vec![(block.born, block.died.min(end), block.bytes)])
    }
}
