// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several spaces: who lies where, so that it costs least.
//!
//! Everything starts in the cheapest space it may lie in. A space that is too full at some moment gives away what
//! relieves it most for what that costs more elsewhere; then it is planned, and if the plan does not fit it gives
//! away what lies highest, and is planned again. Spaces come in order of their cost, so what is given away meets a
//! space that is not planned yet. This is a heuristic: it proves the cost only where nothing was given away.
//!
//! What must start at a given byte can lie only where that byte and those after it are free: spaces that forbid them,
//! or end before, are none for it, and of two that must lie on each other one is given away.

use crate::bound;
use crate::family::{self, Families, Family, View};
use crate::options::{Clock, Options};
use crate::plan::{Plan, SpacePlan, Status};
use crate::problem::{Problem, Space};
use crate::solve;

/// What all buffers cost.
pub(crate) fn cost(problem: &Problem, spaces: &[Space], space: impl Fn(usize) -> usize) -> u128 {
    let cost =
        |buffer: usize| u128::from(problem.sizes[buffer]) * u128::from(spaces[space(buffer)].cost);
    (0..problem.len()).map(cost).sum()
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

/// Plans a problem with several spaces.
pub(crate) fn plan(
    problem: &Problem,
    families: &Families,
    spaces: &[Space],
    options: &Options<'_>,
    clock: &Clock<'_>,
) -> Plan {
    let mut order: Vec<u16> = (0..spaces.len() as u16).collect();
    order.sort_by_key(|space| spaces[usize::from(*space)].cost);
    let permitted = |head: u32, space: u16| match families.get(&head) {
        Some(family) => family.may_lie_in(space),
        None => problem
            .extras
            .get(&head)
            .is_none_or(|extra| extra.spaces.is_empty() || extra.spaces.contains(&space)),
    };
    let allowed = |head: u32, space: u16| {
        permitted(head, space)
            && families
                .get(&head)
                .is_none_or(|family| has_room(family, &spaces[usize::from(space)]))
    };
    let next = |head: u32, after: Option<u16>| {
        let from = after.map_or(0, |after| {
            order
                .iter()
                .position(|space| *space == after)
                .map_or(0, |at| at + 1)
        });
        order[from..]
            .iter()
            .copied()
            .find(|space| allowed(head, *space))
    };
    let mut place: Vec<u16> = vec![0; problem.len()];
    // Whether something fits nowhere, which proves that there is no plan; and whether two lie on each other here.
    let (mut homeless, mut stuck) = (false, false);
    for head in 0..problem.len() as u32 {
        place[head as usize] = next(head, None).unwrap_or_else(|| {
            // What fits nowhere lies where only the capacity is in its way, or else where it may at least be.
            let mut best = order.clone();
            best.retain(|space| permitted(head, *space));
            best.sort_by_key(|space| {
                let forbidden = &spaces[usize::from(*space)].forbidden;
                families
                    .get(&head)
                    .is_some_and(|family| !family.is_outside(forbidden))
            });
            homeless = true;
            best.first().copied().unwrap_or(0)
        });
    }
    let mut moved = false;
    let mut offsets = solve::lowest(problem, families);
    let mut parts: Vec<Option<SpacePlan>> = vec![None; spaces.len()];
    // What may lie in one space only, and does not fit there, fits nowhere.
    let mut conflict = None;
    let only = |head: u32, space: u16| {
        permitted(head, space)
            && order
                .iter()
                .all(|other| *other == space || !allowed(head, *other))
    };
    for &space in &order {
        let number = usize::from(space);
        let view = View::new(problem, families, |head| only(head, space));
        conflict = conflict
            .or_else(|| bound::conflict(&view, number, &spaces[number], solve::unit(&view).0));
    }
    for &space in &order {
        let number = usize::from(space);
        loop {
            let view = View::new(problem, families, |head| place[head as usize] == space);
            let dear = |head: u32| {
                let to = next(head, Some(space))?;
                Some(spaces[usize::from(to)].cost - spaces[number].cost)
            };
            // Of two that lie on each other, the one that goes elsewhere for less.
            let inside = families
                .iter()
                .filter(|(head, _)| place[**head as usize] == space)
                .map(|(head, family)| (*head, family));
            let clashes = family::clashes(inside);
            let leaves = clashes.iter().find_map(|&(one, other, _)| {
                let cheaper = [one, other]
                    .into_iter()
                    .filter_map(|head| Some((dear(head)?, head)));
                cheaper.min().map(|(_, head)| head)
            });
            if let Some(head) = leaves {
                moved = true;
                place[head as usize] = next(head, Some(space)).unwrap_or(space);
                continue;
            }
            stuck |= !clashes.is_empty();
            homeless |= clashes
                .iter()
                .any(|&(one, other, _)| only(one, space) && only(other, space));
            let Some(capacity) = spaces[number].capacity else {
                parts[number] = Some(solve::solve(
                    &view,
                    number,
                    &spaces[number],
                    &mut offsets,
                    options,
                    clock,
                ));
                break;
            };
            let (unit, _) = solve::unit(&view);
            let bound = bound::bound(&view, &spaces[number], unit);
            let gone = if bound.bytes > capacity {
                // Too full at one moment: what lives then and is cheapest to move, for what it frees.
                let moment = bound.moment.unwrap_or(i64::MIN);
                (0..view.len())
                    .map(|index| view.head(index))
                    .filter(|head| {
                        let (start, end, size) = view.hull(*head);
                        start <= moment && moment < end || size > capacity
                    })
                    .filter_map(|head| {
                        Some((dear(head)?, std::cmp::Reverse(view.hull(head).2), head))
                    })
                    .min()
                    .map(|entry| entry.2)
            } else {
                let part =
                    solve::solve(&view, number, &spaces[number], &mut offsets, options, clock);
                let fits = part.peak <= capacity;
                parts[number] = Some(part);
                if fits {
                    break;
                }
                (0..view.len())
                    .map(|index| view.head(index))
                    .filter(|head| next(*head, Some(space)).is_some())
                    .max_by_key(|head| (offsets[*head as usize] + view.hull(*head).2, *head))
            };
            let Some(head) = gone else {
                // Nothing can leave: the best is what there is, though it does not fit.
                parts[number] = Some(solve::solve(
                    &view,
                    number,
                    &spaces[number],
                    &mut offsets,
                    options,
                    clock,
                ));
                break;
            };
            moved = true;
            place[head as usize] = next(head, Some(space)).unwrap_or(space);
            if let Some(extra) = problem.extras.get(&head) {
                offsets[head as usize] = extra.offset.unwrap_or(0);
            }
        }
    }
    // Members of a family lie where the first one lies; what has no size lies where it may.
    for (&head, family) in families {
        for &member in &family.members {
            place[member as usize] = place[head as usize];
        }
    }
    let parts: Vec<SpacePlan> = parts
        .into_iter()
        .map(|part| {
            part.unwrap_or(SpacePlan {
                peak: 0,
                lower_bound: 0,
                moment: None,
                status: Status::Optimal,
            })
        })
        .collect();
    let all = |wanted: &[Status]| parts.iter().all(|part| wanted.contains(&part.status));
    let status = if conflict.is_some() || homeless {
        Status::Infeasible
    } else if stuck || !all(&[Status::Optimal, Status::Fits]) {
        Status::Unknown
    } else if !moved
        && parts
            .iter()
            .zip(spaces)
            .all(|(part, space)| space.capacity.is_some() || part.status == Status::Optimal)
    {
        Status::Optimal
    } else {
        Status::Fits
    };
    Plan {
        offsets,
        cost: cost(problem, spaces, |buffer| usize::from(place[buffer])),
        spaces: place,
        parts,
        conflict,
        status,
    }
}
