// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a problem to a plan: which engine works on what, and what its result proves.
//!
//! Plain buffers of one alignment become rigid items, and all that the engines find about these holds for the
//! buffers. Anything with gaps, fixed offsets, forbidden ranges, aliases or mixed alignments goes to the flexible
//! engine; where nothing is fixed it starts from the rigid plan of the hulls, which is never wrong, only wasteful.

use std::sync::atomic::AtomicU64;

use crate::bound::{self, Bound};
use crate::family::{self, Families, View, gcd};
use crate::flexible::Flexible;
use crate::options::{Clock, Options};
use crate::pack::{Told, pack};
use crate::plan::{Plan, SpacePlan, Status};
use crate::problem::{Invalid, MAX_BYTES, Problem, Space};
use crate::rigid::Rigid;
use crate::spaces;

/// Plans a problem.
///
/// Never fails for want of room: a capacity that does not suffice is an answer, see [`Status`].
pub fn plan(problem: &Problem, options: &Options<'_>) -> Result<Plan, Invalid> {
    problem.validate()?;
    let clock = Clock::new(options);
    let families = family::families(problem)?;
    let spaces = problem.spaces();
    family::refuse_contradictions(&families, &spaces)?;
    if spaces.len() > 1 {
        return Ok(spaces::plan(problem, &families, &spaces, options, &clock));
    }
    let view = View::new(problem, &families, |_| true);
    let mut offsets = lowest(problem, &families);
    let part = solve(&view, 0, &spaces[0], &mut offsets, options, &clock);
    let conflict = (part.status == Status::Infeasible)
        .then(|| bound::conflict(&view, 0, &spaces[0], unit(&view).0));
    Ok(Plan {
        offsets,
        spaces: Vec::new(),
        status: part.status,
        parts: vec![part],
        cost: spaces::cost(problem, &spaces, |_| 0),
        conflict: conflict.flatten(),
    })
}

/// Offsets before anything is planned: 0, or where a buffer must be.
pub(crate) fn lowest(problem: &Problem, families: &Families) -> Vec<u64> {
    let mut offsets = vec![0; problem.len()];
    for family in families.values() {
        for &member in &family.members {
            offsets[member as usize] = family.fixed.unwrap_or(0);
        }
    }
    offsets
}

/// What all alignments are multiples of; and a multiple of all of them, if there is one that is not absurd.
pub(crate) fn unit(view: &View<'_>) -> (u64, Option<u64>) {
    if view.problem.alignments.is_empty() {
        return (1, Some(1));
    }
    let (mut unit, mut multiple) = (0, Some(1_u64));
    for index in 0..view.len() {
        let alignment = view.alignment(view.head(index));
        unit = gcd(unit, alignment);
        multiple = multiple
            .and_then(|multiple| (multiple / gcd(multiple, alignment)).checked_mul(alignment));
    }
    let most = MAX_BYTES / (view.len() as u64 + 1);
    (unit.max(1), multiple.filter(|multiple| *multiple <= most))
}

/// Plans what is in one space; writes the offsets of its buffers.
pub(crate) fn solve(
    view: &View<'_>,
    number: usize,
    space: &Space,
    offsets: &mut [u64],
    options: &Options<'_>,
    clock: &Clock<'_>,
) -> SpacePlan {
    let (unit, multiple) = unit(view);
    let is_free = space.forbidden.iter().all(|range| range.start >= range.end)
        && (0..view.len()).all(|index| view.fixed(view.head(index)).is_none());
    let plain = is_free && multiple == Some(unit) && view.is_plain();
    // Families and trimmed tops need the careful bound; for plain multiples of the unit the load is all there is.
    let whole = |index: usize| view.problem.sizes[view.head(index) as usize].is_multiple_of(unit);
    let known = if plain && (unit == 1 || (0..view.len()).all(whole)) {
        None
    } else {
        Some(bound::bound(view, space, unit))
    };
    let mut bound = known.unwrap_or_default();
    let mut proved = 0;
    let told = Told {
        options,
        space: number,
        attempts: AtomicU64::new(0),
    };
    if let (true, Some(step)) = (is_free, multiple) {
        let rigid = Rigid::new(view.len(), |index| {
            let head = view.head(index);
            let (start, end, size) = view.hull(head);
            (head, start, end, size.next_multiple_of(step))
        });
        if known.is_none() {
            bound = load_bound(&rigid);
        }
        let target = space.capacity.unwrap_or(0).max(bound.bytes);
        let place = |head: u32, offset: u64| put(view, offsets, head, offset);
        let lower = pack(rigid, target, place, &told, clock);
        // Rounding may have cost the topmost one up to a step.
        if plain {
            proved = lower.saturating_sub(step - 1);
        }
    }
    let mut peak = if is_free && multiple.is_some() {
        peak_of(view, offsets)
    } else {
        u64::MAX
    };
    let target = space.capacity.unwrap_or(0).max(bound.bytes);
    if peak > target && (!plain || (unit > 1 && view.len() <= 64)) {
        let (shapes, moments) = view.shapes();
        let flexible = Flexible {
            shapes: &shapes,
            sections: moments.len() as u32,
            forbidden: &space.forbidden,
        };
        let switches = options.switches;
        let found = flexible.solve(
            target,
            options.attempts,
            options.seed,
            switches.exact,
            switches.blame,
            clock,
        );
        if found.peak < peak {
            for (index, &offset) in found.offsets.iter().enumerate() {
                put(view, offsets, view.head(index), offset);
            }
            peak = found.peak;
        }
        if found.exhausted && found.peak > target {
            // Nothing below what the complete search ended with.
            proved = proved.max(found.peak);
        }
    }
    let lower_bound = bound.bytes.max(proved).min(peak);
    let status = match space.capacity {
        Some(capacity) if lower_bound > capacity => Status::Infeasible,
        Some(capacity) if peak > capacity => Status::Unknown,
        _ if peak == lower_bound => Status::Optimal,
        _ => Status::Fits,
    };
    told.tell(peak, lower_bound, 0);
    SpacePlan {
        peak,
        lower_bound,
        moment: bound.moment,
        status,
    }
}

fn load_bound(rigid: &Rigid) -> Bound {
    let load = Rigid::load(&rigid.items, 0, rigid.moments.len() as u32);
    let most = load
        .iter()
        .zip(&rigid.moments)
        .max_by_key(|(load, moment)| (**load, std::cmp::Reverse(**moment)));
    most.map_or_else(Bound::default, |(load, moment)| Bound {
        bytes: *load,
        moment: Some(*moment),
    })
}

fn put(view: &View<'_>, offsets: &mut [u64], head: u32, offset: u64) {
    match view.families.get(&head) {
        Some(family) => family
            .members
            .iter()
            .for_each(|member| offsets[*member as usize] = offset),
        None => offsets[head as usize] = offset,
    }
}

fn peak_of(view: &View<'_>, offsets: &[u64]) -> u64 {
    let heads = (0..view.len()).map(|index| view.head(index));
    heads
        .map(|head| offsets[head as usize] + view.hull(head).2)
        .max()
        .unwrap_or(0)
}
