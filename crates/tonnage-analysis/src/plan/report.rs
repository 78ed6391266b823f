// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans of all groups, each checked, as they are printed.

use serde::Serialize;
use tonnage_plan::{Fault, Invalid, Options, Plan, Status};
use tonnage_recording::StackTable;

use super::problems::{GraphFacts, Group, Name, Problems, Step, Wanted};

/// Version of the JSON that [`Report`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// A buffer and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Placement {
    /// The name.
    pub id: String,
    /// When it comes into being: a time of the problem, or a row.
    pub lower: i64,
    /// The first moment it is gone.
    pub upper: i64,
    /// Bytes.
    pub size: u64,
    /// Where it lies.
    pub offset: u64,
}

/// Buffers that cannot live together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Conflict {
    /// When they all live.
    pub moment: Option<i64>,
    /// The memory that they need.
    pub bytes: u64,
    /// Whether no smaller set is in conflict.
    pub smallest: bool,
    /// Which they are, by their place in the list of buffers.
    pub buffers: Vec<usize>,
}

/// The plan of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GroupReport {
    /// Number of the process.
    pub process: u32,
    /// Number of the device.
    pub device: i32,
    /// The allocator's pool, as its two numbers.
    pub pool: Option<(u32, u32)>,
    /// Streams that occur; they are one time line in the plan.
    pub streams: usize,
    /// The step that was planned; `None` for the whole.
    pub step: Option<Step>,
    /// `optimal`, `fits`, `infeasible` or `unknown`.
    pub status: &'static str,
    /// The highest byte in use, plus one.
    pub peak: u64,
    /// The lower bound of every plan.
    pub lower_bound: u64,
    /// The fullest moment, which proves the bound.
    pub moment: Option<i64>,
    /// Why the capacity cannot hold, if that is proved.
    pub conflict: Option<Conflict>,
    /// All buffers, in the order of the input.
    pub buffers: Vec<Placement>,
}

/// Plans of all groups of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Report {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// The memory that must suffice.
    pub capacity: Option<u64>,
    /// Whether times are those of a planning problem, and not rows.
    pub is_problem: bool,
    /// Rows that made no sense.
    pub passed_over: u64,
    /// The parts of a graph that are not planned, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphFacts>,
    /// By process, device and pool.
    pub groups: Vec<GroupReport>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The blocks are not a planning problem.
    #[error("the buffers of device {device} cannot be planned")]
    Invalid {
        /// Number of the device.
        device: i32,
        /// Why not.
        source: Invalid,
    },
    /// Two buffers with fixed offsets are in each other's way.
    #[error("the fixed offsets of {one} and {other} overlap at {moment}")]
    Fixed {
        /// The name of the one.
        one: String,
        /// The name of the other.
        other: String,
        /// When both live.
        moment: i64,
    },
    /// The checker refused the plan: our fault.
    #[error("the plan of device {device} is wrong")]
    Wrong {
        /// Number of the device.
        device: i32,
        /// The result.
        source: Fault,
    },
}

/// Plans every group and checks each plan.
pub fn plan(
    problems: &Problems,
    wanted: &Wanted,
    options: &Options<'_>,
) -> Result<Report, PlanError> {
    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        capacity: wanted.capacity,
        is_problem: problems.is_problem,
        passed_over: problems.passed_over,
        graph: problems.graph,
        groups: Vec::new(),
    };
    for group in &problems.groups {
        let device = group.device;
        let plan = tonnage_plan::plan(&group.problem, options)
            .map_err(|source| refused(group, &problems.texts, source))?;
        tonnage_plan::check(&group.problem, &plan)
            .map_err(|source| PlanError::Wrong { device, source })?;
        report
            .groups
            .push(group_report(group, plan, &problems.texts));
    }
    Ok(report)
}

/// A plan cannot mend what the problem itself demands.
fn refused(group: &Group, texts: &StackTable, invalid: Invalid) -> PlanError {
    match invalid {
        Invalid::Fixed { one, other, moment } => PlanError::Fixed {
            one: called(&group.names[one.index()], texts),
            other: called(&group.names[other.index()], texts),
            moment,
        },
        source => PlanError::Invalid {
            device: group.device,
            source,
        },
    }
}

fn called(name: &Name, texts: &StackTable) -> String {
    match name {
        Name::Row(row) => row.to_string(),
        Name::Text(text) => texts.text(*text).to_owned(),
        Name::Before(address) => format!("before-{address:x}"),
    }
}

fn group_report(group: &Group, plan: Plan, texts: &StackTable) -> GroupReport {
    let ids = group.problem.ids().zip(&group.names);
    let buffers = ids.map(|(id, label)| {
        let buffer = group.problem.buffer(id);
        Placement {
            id: called(label, texts),
            lower: buffer.start,
            upper: buffer.end,
            size: buffer.size,
            offset: plan.offset(id),
        }
    });
    GroupReport {
        process: group.process,
        device: group.device,
        pool: group.pool.map(|pool| (pool.first, pool.second)),
        streams: group.streams,
        step: group.step,
        status: match plan.status {
            Status::Optimal => "optimal",
            Status::Fits => "fits",
            Status::Infeasible => "infeasible",
            _ => "unknown",
        },
        peak: plan.peak(),
        lower_bound: plan.lower_bound(),
        moment: plan.parts.first().and_then(|part| part.moment),
        buffers: buffers.collect(),
        conflict: plan.conflict.map(|conflict| Conflict {
            moment: conflict.moment,
            bytes: conflict.bytes,
            smallest: conflict.smallest,
            buffers: conflict.buffers.iter().map(|id| id.index()).collect(),
        }),
    }
}
