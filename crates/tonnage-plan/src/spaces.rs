// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several spaces: who lies where, so that it costs least.
//!
//! Everything starts in the cheapest space it may lie in. A space that is too full at some moment gives away what
//! relieves it most for what that costs more elsewhere; then it is planned, and if the plan does not fit it gives
//! away what lies highest, and is planned again. Spaces come in order of their cost, so what is given away meets a
//! space that is not planned yet. This is a heuristic: it proves the cost only where nothing was given away.
//!
//! A buffer that must start at a given byte can lie only where that byte and those after it are free. Spaces that
//! forbid them, or end before, are excluded for it. If two buffers must overlap, one of them goes to another space.

use std::cmp::Reverse;

use crate::bound;
use crate::family::{self, Family};
use crate::normal::{Normalized, Selection};
use crate::options::{Clock, Options};
use crate::plan::{Conflict, Plan, SpacePlan, Status};
use crate::problem::{BufferId, Space};
use crate::solve::solve;

/// Plans a problem with several spaces.
pub(crate) fn plan(normalized: &Normalized<'_>, options: &Options<'_>, clock: &Clock<'_>) -> Plan {
    let mut assignment = Assignment::new(normalized, options, clock);
    let conflict = assignment.conflict();
    for space in assignment.order.clone() {
        assignment.plan_space(space);
    }
    assignment.finish(conflict)
}

/// Whether a family with a fixed offset can lie in a space at all.
fn has_room(family: &Family, space: &Space) -> bool {
    let ends_by = |capacity: u64| {
        family.fixed.is_none_or(|fixed| {
            family
                .pieces
                .iter()
                .all(|&(_, _, size)| fixed + size <= capacity)
        })
    };
    space.capacity.is_none_or(ends_by) && family.is_outside(&space.forbidden)
}

/// Which space each buffer is assigned to, and the plans so far.
struct Assignment<'a> {
    normalized: &'a Normalized<'a>,
    options: &'a Options<'a>,
    clock: &'a Clock<'a>,
    /// The spaces, by cost.
    order: Vec<u16>,
    /// The space of each buffer.
    space_of: Vec<u16>,
    offsets: Vec<u64>,
    parts: Vec<Option<SpacePlan>>,
    /// Whether something fits nowhere, which proves that there is no plan.
    is_unplaceable: bool,
    /// Whether two fixed offsets overlap here.
    has_fixed_overlap: bool,
    /// Whether anything has left the cheapest space it may lie in.
    has_moved: bool,
}

impl<'a> Assignment<'a> {
    /// Everything in the cheapest space that has room for it.
    fn new(normalized: &'a Normalized<'a>, options: &'a Options<'a>, clock: &'a Clock<'a>) -> Self {
        let mut order: Vec<u16> = (0..normalized.spaces.len() as u16).collect();
        order.sort_by_key(|space| normalized.spaces[usize::from(*space)].cost);
        let mut assignment = Self {
            normalized,
            options,
            clock,
            order,
            space_of: vec![0; normalized.buffers()],
            offsets: normalized.initial_offsets(),
            parts: vec![None; normalized.spaces.len()],
            is_unplaceable: false,
            has_fixed_overlap: false,
            has_moved: false,
        };
        for index in 0..normalized.buffers() {
            let id = BufferId::new(index as u32);
            let cheapest = assignment.cheapest(id);
            assignment.is_unplaceable |= cheapest.is_none();
            assignment.space_of[index] = cheapest.unwrap_or_else(|| assignment.least_bad(id));
        }
        assignment
    }

    /// Whether a buffer may lie in a space and has room there.
    fn allows(&self, id: BufferId, space: u16) -> bool {
        let room = |family| has_room(family, &self.normalized.spaces[usize::from(space)]);
        self.normalized.permits(id, space) && self.normalized.families.get(&id).is_none_or(room)
    }

    /// Whether a buffer may lie in this space and in no other.
    fn allows_only(&self, id: BufferId, space: u16) -> bool {
        let mut others = self.order.iter().filter(|other| **other != space);
        self.normalized.permits(id, space) && others.all(|other| !self.allows(id, *other))
    }

    fn cheapest(&self, id: BufferId) -> Option<u16> {
        let mut spaces = self.order.iter().copied();
        spaces.find(|space| self.allows(id, *space))
    }

    /// The next dearer space that a buffer may lie in.
    fn next(&self, id: BufferId, after: u16) -> Option<u16> {
        let mut dearer = self
            .order
            .iter()
            .skip_while(|space| **space != after)
            .skip(1);
        dearer.find(|space| self.allows(id, **space)).copied()
    }

    /// For what fits nowhere: where only the capacity is in its way, or else where it may at least be.
    fn least_bad(&self, id: BufferId) -> u16 {
        let spaces = self.order.iter().copied();
        let permitted = spaces.filter(|space| self.normalized.permits(id, *space));
        let least = permitted.min_by_key(|space| {
            let forbidden = &self.normalized.spaces[usize::from(*space)].forbidden;
            let family = self.normalized.families.get(&id);
            family.is_some_and(|family| !family.is_outside(forbidden))
        });
        least.unwrap_or(0)
    }

    /// The additional cost of a byte of a buffer in the next space.
    fn extra_cost(&self, id: BufferId, space: u16) -> Option<u64> {
        let cost = |space: u16| self.normalized.spaces[usize::from(space)].cost;
        Some(cost(self.next(id, space)?) - cost(space))
    }

    /// A buffer that may lie in one space only, and does not fit there, fits nowhere.
    fn conflict(&self) -> Option<Conflict> {
        let mut spaces = self.order.iter();
        spaces.find_map(|&space| {
            let bound = self
                .normalized
                .select(space, |id| self.allows_only(id, space));
            bound::conflict(&bound)
        })
    }

    /// Plans a space, after it has given away what it has no room for.
    fn plan_space(&mut self, space: u16) {
        loop {
            if let Some(id) = self.overlapping(space) {
                self.move_on(id, space);
                continue;
            }
            let normalized = self.normalized;
            let selection = normalized.select(space, |id| self.space_of[id.index()] == space);
            let capacity = selection.space.capacity;
            let bound = capacity.map(|_| bound::bound(&selection));
            let overfull = bound.filter(|bound| Some(bound.bytes) > capacity);
            let evicted = if let Some(bound) = overfull {
                self.cheapest_to_move(&selection, bound.moment)
            } else {
                let part = self.solve(&selection);
                if capacity.is_none_or(|capacity| part.peak <= capacity) {
                    return;
                }
                self.highest(&selection)
            };
            let Some(id) = evicted else {
                // Nothing can leave: the best is what there is, though it does not fit.
                if overfull.is_some() {
                    self.solve(&selection);
                }
                return;
            };
            self.move_on(id, space);
        }
    }

    fn solve(&mut self, selection: &Selection<'_>) -> &SpacePlan {
        let part = solve(selection, &mut self.offsets, self.options, self.clock);
        self.parts[selection.number].insert(part)
    }

    /// Gives a buffer to the next space.
    fn move_on(&mut self, id: BufferId, from: u16) {
        self.has_moved = true;
        self.space_of[id.index()] = self.next(id, from).unwrap_or(from);
    }

    /// If two fixed offsets overlap here, the buffer with the cheaper alternative.
    fn overlapping(&mut self, space: u16) -> Option<BufferId> {
        let inside = self.normalized.families.iter();
        let inside = inside
            .filter(|(id, _)| self.space_of[id.index()] == space)
            .map(|(id, family)| (*id, family));
        let clashes = family::clashes(inside);
        let evicted = clashes.iter().find_map(|&(one, other, _)| {
            let movable = [one, other].into_iter();
            let costs = movable.filter_map(|id| Some((self.extra_cost(id, space)?, id)));
            costs.min().map(|(_, id)| id)
        });
        if evicted.is_none() {
            self.has_fixed_overlap |= !clashes.is_empty();
            self.is_unplaceable |= clashes.iter().any(|&(one, other, _)| {
                self.allows_only(one, space) && self.allows_only(other, space)
            });
        }
        evicted
    }

    /// Among the buffers that live at the fullest moment, or are too large at any: the cheapest to move, for the bytes
    /// it frees.
    fn cheapest_to_move(&self, selection: &Selection<'_>, moment: Option<i64>) -> Option<BufferId> {
        let moment = moment.unwrap_or(i64::MIN);
        let space = selection.number as u16;
        let wanted = selection.iter().filter(|entry| {
            entry.start <= moment && moment < entry.end
                || Some(entry.size) > selection.space.capacity
        });
        let costs = wanted.filter_map(|entry| {
            Some((
                self.extra_cost(entry.id, space)?,
                Reverse(entry.size),
                entry.id,
            ))
        });
        costs.min().map(|(_, _, id)| id)
    }

    /// The highest buffer that can leave.
    fn highest(&self, selection: &Selection<'_>) -> Option<BufferId> {
        let space = selection.number as u16;
        let movable = selection
            .iter()
            .filter(|entry| self.next(entry.id, space).is_some());
        let tops = movable.map(|entry| (self.offsets[entry.id.index()] + entry.size, entry.id));
        tops.max().map(|(_, id)| id)
    }

    fn finish(mut self, conflict: Option<Conflict>) -> Plan {
        // Members of a family lie where the first one lies; what has no size lies where it may.
        for (&first, family) in &self.normalized.families {
            for &member in &family.members {
                self.space_of[member.index()] = self.space_of[first.index()];
            }
        }
        let empty = SpacePlan {
            peak: 0,
            lower_bound: 0,
            moment: None,
            status: Status::Optimal,
        };
        let parts = self.parts.into_iter();
        let parts: Vec<SpacePlan> = parts
            .map(|part| part.unwrap_or_else(|| empty.clone()))
            .collect();
        let fits = |part: &SpacePlan| matches!(part.status, Status::Optimal | Status::Fits);
        let is_best = |(part, space): (&SpacePlan, &Space)| {
            space.capacity.is_some() || part.status == Status::Optimal
        };
        let status = if conflict.is_some() || self.is_unplaceable {
            Status::Infeasible
        } else if self.has_fixed_overlap || !parts.iter().all(fits) {
            Status::Unknown
        } else if !self.has_moved && parts.iter().zip(&self.normalized.spaces).all(is_best) {
            Status::Optimal
        } else {
            Status::Fits
        };
        Plan {
            offsets: self.offsets,
            cost: self
                .normalized
                .cost(|buffer| usize::from(self.space_of[buffer])),
            spaces: self.space_of,
            parts,
            conflict,
            status,
        }
    }
}
