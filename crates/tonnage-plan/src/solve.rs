// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of one space: which engine works on what, and what its result proves.
//!
//! Plain entries of one alignment become rigid items, and all that the engines find about these holds for the
//! buffers. Anything with gaps, fixed offsets, forbidden ranges, aliases or mixed alignments goes to the flexible
//! engine; where nothing is fixed it starts from the rigid plan of the hulls, which is never wrong, only wasteful.

use std::sync::atomic::AtomicU64;

use crate::bound::{self, Bound};
use crate::flexible::Flexible;
use crate::normal::Selection;
use crate::options::{Clock, Options};
use crate::pack::{ProgressReporter, pack};
use crate::plan::{SpacePlan, Status};
use crate::rigid::Rigid;

/// Plans what is in one space; writes the offsets of its buffers.
pub(crate) fn solve(
    selection: &Selection<'_>,
    offsets: &mut [u64],
    options: &Options<'_>,
    clock: &Clock<'_>,
) -> SpacePlan {
    let &Selection {
        unit,
        multiple,
        is_free,
        space,
        ..
    } = selection;
    let plain = is_free && multiple == Some(unit) && selection.is_plain;
    // Families and trimmed tops need the careful bound; for plain multiples of the unit the load is all there is.
    let is_whole = || {
        selection
            .iter()
            .all(|entry| entry.size.is_multiple_of(unit))
    };
    let known = if plain && (unit == 1 || is_whole()) {
        None
    } else {
        Some(bound::bound(selection))
    };
    let mut bound = known.unwrap_or_default();
    let mut proved = 0;
    let reporter = ProgressReporter {
        options,
        space: selection.number,
        attempts: AtomicU64::new(0),
    };
    if let (true, Some(step)) = (is_free, multiple) {
        let rigid = selection.rigid(step);
        if known.is_none() {
            bound = load_bound(&rigid);
        }
        let target = space.capacity.unwrap_or(0).max(bound.bytes);
        let place = |entry: u32, offset: u64| selection.place(offsets, entry, offset);
        let lower = pack(rigid, target, place, &reporter, clock);
        // Rounding may have cost the topmost one up to a step.
        if plain {
            proved = lower.saturating_sub(step - 1);
        }
    }
    let mut peak = if is_free && multiple.is_some() {
        peak_of(selection, offsets)
    } else {
        u64::MAX
    };
    let target = space.capacity.unwrap_or(0).max(bound.bytes);
    if peak > target && (!plain || (unit > 1 && selection.len() <= 64)) {
        let (shapes, moments) = selection.shapes();
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
            switches.boost_failed,
            clock,
        );
        if found.peak < peak {
            for (&offset, entry) in found.offsets.iter().zip(0..) {
                selection.place(offsets, entry, offset);
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
    reporter.report(peak, lower_bound, 0);
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

fn peak_of(selection: &Selection<'_>, offsets: &[u64]) -> u64 {
    let tops = selection
        .iter()
        .map(|entry| offsets[entry.id.index()] + entry.size);
    tops.max().unwrap_or(0)
}
