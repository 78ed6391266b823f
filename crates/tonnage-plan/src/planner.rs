// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a problem to a plan: normalises once, then plans one space or shares the entries out among several.

use crate::bound;
use crate::normal::Normalized;
use crate::options::{Clock, Options};
use crate::plan::{Plan, Status};
use crate::problem::{Invalid, Problem};
use crate::solve::solve;
use crate::spaces;

/// Plans a problem.
///
/// Never fails for want of room: a capacity that does not suffice is an answer, see [`Status`].
///
/// ```
/// use tonnage_plan::{Buffer, Options, Problem, Status, plan};
///
/// let mut problem = Problem::fitting(10);
/// let large = problem.add(Buffer::new(8, 0..3));
/// let small = problem.add(Buffer::new(4, 2..5));
/// let plan = plan(&problem, &Options::default())?;
/// assert_eq!(plan.status, Status::Infeasible);
/// // Both live at moment 2 and need 12 bytes.
/// let conflict = plan.conflict.expect("it is proved");
/// assert_eq!((conflict.moment, conflict.bytes), (Some(2), 12));
/// assert_eq!(conflict.buffers, [large, small]);
/// # Ok::<(), tonnage_plan::Invalid>(())
/// ```
pub fn plan(problem: &Problem, options: &Options<'_>) -> Result<Plan, Invalid> {
    let clock = Clock::new(options);
    let normalized = Normalized::new(problem)?;
    if normalized.spaces.len() > 1 {
        return Ok(spaces::plan(&normalized, options, &clock));
    }
    let selection = normalized.all();
    let mut offsets = normalized.initial_offsets();
    let part = solve(&selection, &mut offsets, options, &clock);
    let conflict = (part.status == Status::Infeasible).then(|| bound::conflict(&selection));
    Ok(Plan {
        offsets,
        spaces: Vec::new(),
        status: part.status,
        parts: vec![part],
        cost: normalized.cost(|_| 0),
        conflict: conflict.flatten(),
    })
}
