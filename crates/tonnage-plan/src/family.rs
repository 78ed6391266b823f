// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that must be placed as one: those that share their first byte, and those with gaps in their lifetime.
//!
//! A family has one offset, and a size that changes with time: the greatest of its members that live then, none in
//! gaps. A plain buffer is not a family, so that a problem without such constraints costs nothing here.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::problem::{BufferId, Invalid, MAX_BYTES, Problem, Space};

/// Buffers with one offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) members: Vec<BufferId>,
    /// Times and sizes, ascending, none empty.
    pub(crate) pieces: Vec<(i64, i64, u64)>,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
    /// The spaces all of them may lie in; `None` means any.
    pub(crate) spaces: Option<Vec<u16>>,
}

impl Family {
    /// Whether all of them allow a space.
    pub(crate) fn may_lie_in(&self, space: u16) -> bool {
        self.spaces
            .as_ref()
            .is_none_or(|spaces| spaces.contains(&space))
    }

    /// Whether the fixed offset, if there is one, leaves them outside of what a space forbids.
    pub(crate) fn is_outside(&self, forbidden: &[Range<u64>]) -> bool {
        let Some(fixed) = self.fixed else {
            return true;
        };
        let meets = |range: &Range<u64>, size: u64| {
            fixed < range.end && range.start < fixed + size && range.start < range.end
        };
        self.pieces
            .iter()
            .all(|&(_, _, size)| !forbidden.iter().any(|range| meets(range, size)))
    }
}

/// Families by their first member.
pub(crate) type Families = BTreeMap<BufferId, Family>;

/// Finds the families of a problem.
pub(crate) fn families(problem: &Problem) -> Result<Families, Invalid> {
    let mut first: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    for (&buffer, _) in problem
        .extras
        .iter()
        .filter(|(_, extra)| !extra.gaps.is_empty() || extra.offset.is_some())
    {
        first.insert(buffer, buffer);
    }
    for &(one, other) in &problem.aliases {
        let (one, other) = (root(&mut first, one), root(&mut first, other));
        first.insert(one.max(other), one.min(other));
    }
    let mut families = Families::new();
    let members: Vec<BufferId> = first.keys().copied().collect();
    for buffer in members {
        let head = root(&mut first, buffer);
        families.entry(head).or_default().members.push(buffer);
    }
    for family in families.values_mut() {
        join(problem, family)?;
    }
    Ok(families)
}

fn root(first: &mut BTreeMap<BufferId, BufferId>, buffer: BufferId) -> BufferId {
    let mut head = buffer;
    while let Some(&next) = first.get(&head) {
        if next == head {
            break;
        }
        head = next;
    }
    first.entry(head).or_insert(head);
    // Shorten the way for the next one.
    let mut at = buffer;
    while at != head {
        at = first.insert(at, head).unwrap_or(head);
    }
    head
}

fn join(problem: &Problem, family: &mut Family) -> Result<(), Invalid> {
    family.alignment = 1;
    let mut times: Vec<(i64, bool, u64)> = Vec::new();
    let one = family.members[0];
    for &other in &family.members {
        let refuse = |reason| Err(Invalid::Alias { one, other, reason });
        let buffer = problem.buffer(other);
        match common_multiple(family.alignment, buffer.alignment) {
            Some(multiple) => family.alignment = multiple,
            None => return refuse("their alignments have no common multiple below 2^60"),
        }
        match (family.fixed, buffer.offset) {
            (Some(fixed), Some(offset)) if fixed != offset => {
                return refuse("their fixed offsets differ");
            }
            (None, offset) => family.fixed = offset,
            _ => {}
        }
        if !buffer.spaces.is_empty() {
            let mut both = buffer.spaces.clone();
            if let Some(spaces) = &family.spaces {
                both.retain(|space| spaces.contains(space));
            }
            if both.is_empty() {
                return refuse("there is no space both may lie in");
            }
            family.spaces = Some(both);
        }
        if buffer.size == 0 {
            continue;
        }
        let mut gaps = buffer.gaps.clone();
        gaps.sort_unstable_by_key(|gap| gap.start);
        let mut at = buffer.start;
        for gap in gaps.iter().chain(std::iter::once(&(buffer.end..i64::MAX))) {
            let end = gap.start.min(buffer.end);
            if at < end {
                times.push((at, true, buffer.size));
                times.push((end, false, buffer.size));
            }
            at = at.max(gap.end);
        }
    }
    if family
        .fixed
        .is_some_and(|fixed| fixed % family.alignment != 0)
    {
        let other = family.members.last().copied().unwrap_or(one);
        return Err(Invalid::Alias {
            one,
            other,
            reason: "a fixed offset is not a multiple of the other's alignment",
        });
    }
    times.sort_unstable();
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    let mut index = 0;
    while index < times.len() {
        let moment = times[index].0;
        while index < times.len() && times[index].0 == moment {
            let (_, starts, size) = times[index];
            let count = live.entry(size).or_default();
            // Ends come first, but a piece that ends where its own next begins may be counted down to nothing.
            *count = if starts { *count + 1 } else { *count - 1 };
            index += 1;
        }
        live.retain(|_, count| *count > 0);
        if let (Some((&size, _)), Some(&(end, _, _))) = (live.last_key_value(), times.get(index)) {
            match family.pieces.last_mut() {
                Some(last) if last.1 == moment && last.2 == size => last.1 = end,
                _ => family.pieces.push((moment, end, size)),
            }
        }
    }
    Ok(())
}

/// Two families, by their first members, with fixed offsets that put them on the same byte, and when.
pub(crate) type Clash = (BufferId, BufferId, i64);

/// Finds families that their fixed offsets put on each other, if they share a space; every one but those that clash
/// only with one that is named already.
pub(crate) fn clashes<'a>(families: impl Iterator<Item = (BufferId, &'a Family)>) -> Vec<Clash> {
    // Ends before starts at one moment, since lifetimes are half-open.
    let mut events: Vec<(i64, bool, u64, u64, BufferId)> = Vec::new();
    for (head, family) in families {
        let Some(fixed) = family.fixed else {
            continue;
        };
        for &(start, end, size) in &family.pieces {
            events.push((start, true, fixed, size, head));
            events.push((end, false, fixed, size, head));
        }
    }
    events.sort_unstable();
    // The live items, by first byte: they do not overlap, so a new one can meet only its neighbors.
    let mut live: BTreeMap<u64, (u64, BufferId)> = BTreeMap::new();
    let mut clashes = Vec::new();
    for (moment, starts, offset, size, head) in events {
        if !starts {
            if live.get(&offset).is_some_and(|(_, other)| *other == head) {
                live.remove(&offset);
            }
            continue;
        }
        let below = live.range(..=offset).next_back();
        let above = live.range(offset..offset + size).next();
        match below.filter(|(_, (end, _))| *end > offset).or(above) {
            Some((_, &(_, other))) => clashes.push((other.min(head), other.max(head), moment)),
            None => {
                live.insert(offset, (offset + size, head));
            }
        }
    }
    clashes
}

/// Refuses fixed offsets that contradict each other or the forbidden ranges, whatever the capacities are.
pub(crate) fn refuse_contradictions(families: &Families, spaces: &[Space]) -> Result<(), Invalid> {
    let mut homes: BTreeMap<u16, Vec<(BufferId, &Family)>> = BTreeMap::new();
    for (&head, family) in families.iter().filter(|(_, family)| family.fixed.is_some()) {
        let mut outside = (0..spaces.len() as u16).filter(|space| {
            family.may_lie_in(*space) && family.is_outside(&spaces[usize::from(*space)].forbidden)
        });
        match (outside.next(), outside.next()) {
            (None, _) => {
                return Err(Invalid::Buffer {
                    buffer: head,
                    reason: "its fixed offset lies in a forbidden range",
                });
            }
            (Some(space), None) => homes.entry(space).or_default().push((head, family)),
            _ => {}
        }
    }
    for inside in homes.into_values() {
        if let Some(&(one, other, moment)) = clashes(inside.into_iter()).first() {
            return Err(Invalid::Fixed { one, other, moment });
        }
    }
    Ok(())
}

fn common_multiple(one: u64, other: u64) -> Option<u64> {
    let multiple = (one / gcd(one, other)).checked_mul(other)?;
    (multiple <= MAX_BYTES).then_some(multiple)
}

/// The greatest common divisor; that of 0 and anything is the other.
pub(crate) const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}
