// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checker: does a plan match its claims?
//!
//! Shares no code with the solver and none of its ideas: it neither compresses time nor scales sizes. It sweeps over
//! the moments at which something changes and keeps what lives ordered by offset, so that neighbours are all that
//! must be compared. `O(n log n)`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::plan::{Plan, Status};
use crate::problem::{BufferId, Problem};

/// The error in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It lacks an offset, a space, or a peak for a buffer or space.
    Incomplete,
    /// An offset is not a multiple of the buffer's alignment.
    Alignment {
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer is not at its fixed offset.
    Fixed {
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer lies in a space it may not lie in.
    Space {
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer reaches into a forbidden range.
    Forbidden {
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer ends above the capacity, though the plan claims that it fits.
    Capacity {
        /// The buffer.
        buffer: BufferId,
    },
    /// Two buffers use the same byte at the same time.
    Overlap {
        /// The one.
        one: BufferId,
        /// The other.
        other: BufferId,
        /// When.
        moment: i64,
    },
    /// Two buffers that must start at the same byte do not.
    Alias {
        /// The one.
        one: BufferId,
        /// The other.
        other: BufferId,
    },
    /// The peak is not the one that the offsets have.
    Peak {
        /// The space.
        space: usize,
        /// The value of the offsets.
        actual: u64,
    },
    /// The lower bound is above the peak.
    Bound {
        /// The space.
        space: usize,
    },
    /// The cost is not the one that the spaces have.
    Cost {
        /// Their value.
        actual: u128,
    },
    /// The buffers of the claimed conflict do not live together, or do not need as much.
    Conflict,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete => write!(formatter, "the plan does not cover every buffer and space"),
            Self::Alignment { buffer } => write!(formatter, "buffer {buffer} is not aligned"),
            Self::Fixed { buffer } => {
                write!(formatter, "buffer {buffer} is not at its fixed offset")
            }
            Self::Space { buffer } => {
                write!(formatter, "buffer {buffer} is in a space it may not be in")
            }
            Self::Forbidden { buffer } => {
                write!(formatter, "buffer {buffer} is in a forbidden range")
            }
            Self::Capacity { buffer } => {
                write!(formatter, "buffer {buffer} ends above the capacity")
            }
            Self::Overlap { one, other, moment } => {
                write!(formatter, "buffers {one} and {other} overlap at {moment}")
            }
            Self::Alias { one, other } => {
                write!(
                    formatter,
                    "buffers {one} and {other} do not start at the same byte"
                )
            }
            Self::Peak { space, actual } => {
                write!(formatter, "the peak of space {space} is {actual}")
            }
            Self::Bound { space } => {
                write!(formatter, "the bound of space {space} is above its peak")
            }
            Self::Cost { actual } => write!(formatter, "the cost is {actual}"),
            Self::Conflict => write!(formatter, "the buffers in conflict are not in conflict"),
        }
    }
}

impl std::error::Error for Fault {}

/// Checks a plan against its problem: every promise that can be checked without solving it again.
///
/// ```
/// use tonnage_plan::{Buffer, Fault, Options, Problem, check, plan};
///
/// let mut problem = Problem::new();
/// problem.add(Buffer::new(8, 0..3));
/// problem.add(Buffer::new(4, 1..4));
/// let mut plan = plan(&problem, &Options::default())?;
/// assert_eq!(check(&problem, &plan), Ok(()));
///
/// plan.offsets = vec![0, 6];
/// assert!(matches!(check(&problem, &plan), Err(Fault::Overlap { moment: 1, .. })));
/// # Ok::<(), tonnage_plan::Invalid>(())
/// ```
pub fn check(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    let count = problem.len();
    let spaces = problem.spaces();
    if plan.offsets.len() != count
        || plan.parts.len() != spaces.len()
        || !(plan.spaces.len() == count || plan.spaces.is_empty() && spaces.len() == 1)
    {
        return Err(Fault::Incomplete);
    }
    let fits = matches!(plan.status, Status::Optimal | Status::Fits);
    let mut peaks = vec![0_u64; spaces.len()];
    let mut cost = 0_u128;
    for id in problem.ids() {
        let buffer = problem.buffer(id);
        let (offset, place) = (plan.offset(id), plan.space(id));
        let Some(space) = spaces.get(place) else {
            return Err(Fault::Space { buffer: id });
        };
        if !buffer.spaces.is_empty() && !buffer.spaces.iter().any(|one| usize::from(*one) == place)
        {
            return Err(Fault::Space { buffer: id });
        }
        if offset % buffer.alignment != 0 {
            return Err(Fault::Alignment { buffer: id });
        }
        if buffer.offset.is_some_and(|fixed| fixed != offset) {
            return Err(Fault::Fixed { buffer: id });
        }
        cost += u128::from(buffer.size) * u128::from(space.cost);
        // A buffer without bytes or lifetime conflicts with no other.
        if buffer.size == 0 || times(problem, id).is_empty() {
            continue;
        }
        let Some(end) = offset.checked_add(buffer.size) else {
            return Err(Fault::Capacity { buffer: id });
        };
        if space
            .forbidden
            .iter()
            .any(|range| offset < range.end && range.start < end && range.start < range.end)
        {
            return Err(Fault::Forbidden { buffer: id });
        }
        if fits && space.capacity.is_some_and(|capacity| end > capacity) {
            return Err(Fault::Capacity { buffer: id });
        }
        peaks[place] = peaks[place].max(end);
    }
    for (one, other) in problem.aliases() {
        if plan.offset(one) != plan.offset(other) || plan.space(one) != plan.space(other) {
            return Err(Fault::Alias { one, other });
        }
    }
    overlaps(problem, plan)?;
    for (space, (part, actual)) in plan.parts.iter().zip(peaks).enumerate() {
        if part.peak != actual {
            return Err(Fault::Peak { space, actual });
        }
        if part.lower_bound > part.peak {
            return Err(Fault::Bound { space });
        }
    }
    if plan.cost != cost {
        return Err(Fault::Cost { actual: cost });
    }
    conflict(problem, plan)
}

/// The times when a buffer uses its place.
fn times(problem: &Problem, id: BufferId) -> Vec<(i64, i64)> {
    let buffer = problem.buffer(id);
    let mut times = vec![(buffer.start, buffer.end)];
    for gap in &buffer.gaps {
        times = times
            .into_iter()
            .flat_map(|(start, end)| [(start, end.min(gap.start)), (start.max(gap.end), end)])
            .filter(|(start, end)| start < end)
            .collect();
    }
    times
}

/// Which buffers belong together through aliases: they may share bytes.
fn families(problem: &Problem) -> BTreeMap<BufferId, BufferId> {
    let mut neighbours: BTreeMap<BufferId, Vec<BufferId>> = BTreeMap::new();
    for (one, other) in problem.aliases() {
        neighbours.entry(one).or_default().push(other);
        neighbours.entry(other).or_default().push(one);
    }
    let mut family = BTreeMap::new();
    for &first in neighbours.keys() {
        let mut waiting = vec![first];
        while let Some(id) = waiting.pop() {
            if family.contains_key(&id) {
                continue;
            }
            family.insert(id, first);
            waiting.extend(neighbours.get(&id).into_iter().flatten());
        }
    }
    family
}

fn overlaps(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    // Ends before starts at one moment, since lifetimes are half-open.
    let mut events: Vec<(i64, bool, BufferId)> = Vec::new();
    for id in problem.ids() {
        if problem.buffer(id).size == 0 {
            continue;
        }
        for (start, end) in times(problem, id) {
            events.push((start, true, id));
            events.push((end, false, id));
        }
    }
    events.sort_unstable();
    let family = families(problem);
    let kin = |id: BufferId| family.get(&id).copied().unwrap_or(id);
    // Members of one family start at the same byte and so come one after the other; the longest is what others see.
    let mut live: BTreeSet<(usize, u64, BufferId, u64, BufferId)> = BTreeSet::new();
    for (moment, starts, id) in events {
        let (size, offset) = (problem.buffer(id).size, plan.offset(id));
        let entry = (plan.space(id), offset, kin(id), offset + size, id);
        if !starts {
            live.remove(&entry);
            continue;
        }
        let clash = |other: &(usize, u64, BufferId, u64, BufferId)| {
            other.0 == entry.0 && other.2 != entry.2 && other.1 < entry.3 && offset < other.3
        };
        // Below: the families next to it; those further down end before these start, or they would clash with them.
        let mut below = live.range(..entry).rev().filter(|other| other.2 != entry.2);
        let above = live.range(entry..).find(|other| other.2 != entry.2);
        let below = below.next();
        if let Some(other) = [below, above]
            .into_iter()
            .flatten()
            .find(|other| clash(other))
        {
            return Err(Fault::Overlap {
                one: id,
                other: other.4,
                moment,
            });
        }
        live.insert(entry);
    }
    Ok(())
}

fn conflict(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    let Some(conflict) = &plan.conflict else {
        return Ok(());
    };
    let spaces = problem.spaces();
    let capacity = spaces.get(conflict.space).and_then(|space| space.capacity);
    if plan.status != Status::Infeasible
        || conflict
            .buffers
            .iter()
            .any(|id| id.index() >= problem.len())
    {
        return Err(Fault::Conflict);
    }
    let distinct: BTreeSet<_> = conflict.buffers.iter().collect();
    if distinct.len() != conflict.buffers.len()
        || capacity.is_none_or(|capacity| conflict.bytes <= capacity)
    {
        return Err(Fault::Conflict);
    }
    // Each takes its size and what alignment adds; forbidden ranges below them take the rest.
    let taken = |id: &BufferId| {
        let buffer = problem.buffer(*id);
        buffer.size.next_multiple_of(buffer.alignment)
    };
    let forbidden: u64 = spaces[conflict.space]
        .forbidden
        .iter()
        .map(|range| range.end.saturating_sub(range.start))
        .sum();
    if conflict.buffers.iter().map(taken).sum::<u64>() + forbidden < conflict.bytes {
        return Err(Fault::Conflict);
    }
    if let Some(moment) = conflict.moment {
        let lives = |id: BufferId| {
            times(problem, id)
                .iter()
                .any(|(start, end)| *start <= moment && moment < *end)
        };
        if !conflict.buffers.iter().all(|id| lives(*id)) {
            return Err(Fault::Conflict);
        }
    }
    Ok(())
}
