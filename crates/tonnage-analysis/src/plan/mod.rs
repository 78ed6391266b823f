// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the blocks of a recording would lie if their lives had been known beforehand.
//!
//! The blocks of one process, device and pool are one planning problem: nothing else shares their memory. A block
//! lives from the row that hands it out to the row that completes its free, in rows of the recording; a planning
//! problem that was imported keeps its own times. Blocks that were there before the first row live from the start.
//! Streams are one time line here: the order of the rows is the order in which the allocator saw them, and it is
//! what the plan is valid for.
//!
//! A step is what lies between two marks of ended steps, where a recording has them: of all steps the one that needs
//! most, since that is what memory must suffice for. Without marks a step is found by what repeats: the places in the
//! program that ask, or the sizes where the recording has no stacks.

pub mod csv;
pub mod onnx;
mod packing;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use serde::Serialize;
use tonnage_plan::{Buffer, Fault, Invalid, Options, Plan, Problem, Status};
use tonnage_trace::{Event, Kind, Pool, ReadError, Reader, StackTable, TextId, meta};

use crate::facts;

pub use packing::{Arena, Packing, PackingError, Place, packing};

/// Version of the JSON that [`Report`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// What PyTorch's allocator aligns blocks to.
const TORCH_ALIGNMENT: u64 = 512;

/// Problems that are told apart; blocks beyond go with the last one's. No machine has so many pools.
const MAX_PROBLEMS: usize = 1 << 12;

/// Requests that a step has at least; less repeats in any program.
const MIN_STEP: usize = 8;

/// What to plan, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Memory that must suffice.
    pub capacity: Option<u64>,
    /// Offsets are multiples of this.
    pub alignment: Option<u64>,
    /// One step instead of the whole.
    pub step: bool,
    /// Offsets that a planning problem says are kept.
    pub keep_offsets: bool,
}

/// What a buffer is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The row that hands it out, counted from 0.
    Row(u64),
    /// Its name in the planning problem.
    Text(TextId),
    /// It was there before the first row; the address.
    Before(u64),
}

/// Blocks that share a memory.
#[derive(Debug)]
pub struct Group {
    /// Number of the process.
    pub process: u32,
    /// Number of the device.
    pub device: i32,
    /// The allocator's pool, if the recording says.
    pub pool: Option<Pool>,
    /// Streams that occur.
    pub streams: usize,
    /// The problem.
    pub problem: Problem,
    /// What each buffer is called.
    pub names: Vec<Name>,
    /// The step, if one was wanted and found.
    pub step: Option<Step>,
}

/// One step of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// The row it starts with.
    pub first_row: i64,
    /// The first row after it.
    pub end_row: i64,
    /// Requests in it.
    pub requests: usize,
    /// How many steps the program itself marked; 0 if it marked none and the step is what repeats.
    pub of_marked: usize,
}

/// The problems of a recording and what their names refer to.
#[derive(Debug)]
pub struct Problems {
    /// By process, device and pool.
    pub groups: Vec<Group>,
    /// Texts of names.
    pub texts: StackTable,
    /// Whether times are those of a planning problem, and not rows.
    pub is_problem: bool,
    /// Rows that made no sense: frees of what was not there, blocks where one was alive.
    pub passed_over: u64,
    /// What of a graph is not planned, if it is one.
    pub graph: Option<onnx::GraphFacts>,
}

impl Problems {
    /// A planning problem from elsewhere: one memory, and times of its own.
    fn alone(problem: Problem, names: Vec<Name>, texts: StackTable) -> Self {
        Self {
            groups: vec![Group {
                process: 0,
                device: 0,
                pool: None,
                streams: 1,
                problem,
                names,
                step: None,
            }],
            texts,
            is_problem: true,
            passed_over: 0,
            graph: None,
        }
    }
}

/// Process, device and pool.
type Key = (u32, i32, Option<Pool>);

#[derive(Default)]
struct Blocks {
    /// Start, end, size, name; an end that is not known yet is [`i64::MAX`].
    list: Vec<(i64, i64, u64, Name)>,
    /// What is compared to find steps, for each block: the stack, or else the size.
    sites: Vec<u64>,
    streams: Vec<u64>,
}

/// Reads the problems of a recording.
pub fn problems<R: Read>(source: R, wanted: &Wanted) -> Result<Problems, ReadError> {
    let mut reader = Reader::new(source)?;
    let mut groups: BTreeMap<Key, Blocks> = BTreeMap::new();
    // Where a live block is: its group and place.
    let mut live: HashMap<(u32, i32, u64), (Key, usize)> = HashMap::new();
    let (mut row, mut passed_over, mut last) = (0_i64, 0, 0);
    let mut is_problem = None;
    // The rows after which a process began a new step.
    let mut marks: HashMap<u32, Vec<i64>> = HashMap::new();
    while let Some(event) = reader.next().transpose()? {
        let is_problem = *is_problem
            .get_or_insert_with(|| reader.fact(facts::RUN, meta::SOURCE) == Some("planner-csv"));
        let moment = if is_problem {
            event.time.unwrap_or(row)
        } else {
            row
        };
        last = last.max(moment);
        let address = (event.process, event.device, event.address);
        let before = matches!(event.kind, Kind::InitialBlock) && is_active(&event, reader.stacks());
        match event.kind {
            Kind::Alloc | Kind::InitialBlock if before || event.kind == Kind::Alloc => {
                let size = if event.requested > 0 {
                    event.requested
                } else {
                    event.size
                };
                let mut key = (event.process, event.device, event.pool);
                if groups.len() >= MAX_PROBLEMS && !groups.contains_key(&key) {
                    key = groups.last_key_value().map_or(key, |(key, _)| *key);
                }
                let group = groups.entry(key).or_default();
                if !group.streams.contains(&event.stream) && group.streams.len() < 64 {
                    group.streams.push(event.stream);
                }
                let name = match event.name {
                    _ if before => Name::Before(event.address),
                    Some(text) if is_problem => Name::Text(text),
                    _ => Name::Row(row.unsigned_abs()),
                };
                let place = group.list.len();
                group.list.push((moment, i64::MAX, size, name));
                group.sites.push(
                    event
                        .stack
                        .map_or(size, |stack| u64::MAX - u64::from(stack.get())),
                );
                if let Some((old, place)) = live.insert(address, (key, place)) {
                    passed_over += 1;
                    end(&mut groups, old, place, moment);
                }
            }
            Kind::FreeCompleted => match live.remove(&address) {
                Some((key, place)) => end(&mut groups, key, place, moment),
                None => passed_over += 1,
            },
            Kind::Mark
                if event
                    .text
                    .is_some_and(|text| reader.stacks().text(text) == "step") =>
            {
                marks.entry(event.process).or_default().push(row);
            }
            _ => {}
        }
        row += 1;
    }
    let is_problem = is_problem.unwrap_or(false);
    let alignment = wanted
        .alignment
        .unwrap_or(if is_problem { 1 } else { TORCH_ALIGNMENT });
    let (texts, _) = reader.into_parts();
    let groups = groups
        .into_iter()
        .map(|(key, blocks)| {
            let marks = marks.get(&key.0).map_or(&[][..], Vec::as_slice);
            group(key, blocks, marks, wanted, alignment, !is_problem, last + 1)
        })
        .collect();
    Ok(Problems {
        groups,
        texts,
        is_problem,
        passed_over,
        graph: None,
    })
}

fn is_active(event: &Event, texts: &StackTable) -> bool {
    let state = event.name.map(|name| texts.text(name));
    state.is_some_and(|state| state.starts_with("active"))
}

fn end(groups: &mut BTreeMap<Key, Blocks>, key: Key, place: usize, moment: i64) {
    if let Some(block) = groups
        .get_mut(&key)
        .and_then(|group| group.list.get_mut(place))
    {
        block.1 = moment;
    }
}

fn group(
    key: Key,
    blocks: Blocks,
    marks: &[i64],
    wanted: &Wanted,
    alignment: u64,
    whole: bool,
    end: i64,
) -> Group {
    let step = wanted.step.then(|| {
        let marked = fullest_step(&blocks.list, marks);
        marked.or_else(|| find_step(&blocks, end))
    });
    let step = step.flatten();
    let (first, last) = step.map_or((i64::MIN, end), |step| (step.first_row, step.end_row));
    let mut problem = wanted.capacity.map_or_else(Problem::new, Problem::fitting);
    let mut names = Vec::new();
    for (start, stop, size, name) in blocks.list {
        let (start, stop) = (start.max(first), stop.min(last));
        if start < stop && size > 0 {
            // What an allocator hands out is a multiple of its alignment.
            let size = if whole {
                size.saturating_add(alignment - 1) / alignment * alignment
            } else {
                size
            };
            problem.add(Buffer::new(size, start..stop).aligned(alignment));
            names.push(name);
        }
    }
    Group {
        process: key.0,
        device: key.1,
        pool: key.2,
        streams: blocks.streams.len(),
        problem,
        names,
        step,
    }
}

/// Of the steps between marks the one that needs most at once; the last of several, since first ones warm up.
fn fullest_step(list: &[(i64, i64, u64, Name)], marks: &[i64]) -> Option<Step> {
    let mut changes: Vec<(i64, bool, u64)> = Vec::with_capacity(2 * list.len());
    for &(start, end, size, _) in list {
        changes.push((start, true, size));
        changes.push((end, false, size));
    }
    // What ends makes room for what starts then.
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let mut live = 0_u64;
    let mut pass_until = |row: i64| {
        let (mut most, mut requests) = (live, 0);
        while let Some((_, starts, size)) = changes.next_if(|(at, _, _)| *at < row) {
            live = if starts {
                live.saturating_add(size)
            } else {
                live.saturating_sub(size)
            };
            most = most.max(live);
            requests += usize::from(starts);
        }
        (most, requests)
    };
    pass_until(marks.first()? + 1);
    let mut fullest: Option<(u64, Step)> = None;
    for pair in marks.windows(2) {
        let (first_row, end_row) = (pair[0] + 1, pair[1] + 1);
        let (most, requests) = pass_until(end_row);
        if requests > 0 && fullest.is_none_or(|(known, _)| most >= known) {
            let step = Step {
                first_row,
                end_row,
                requests,
                of_marked: marks.len() - 1,
            };
            fullest = Some((most, step));
        }
    }
    fullest.map(|(_, step)| step)
}

/// The last stretch of requests that is the same as the one before it.
///
/// What comes after the last step spoils the end of a recording, so several ends are tried. From an end the requests
/// are read backwards: the shortest period of the longest such stretch with at least two rounds is the step.
fn find_step(blocks: &Blocks, end: i64) -> Option<Step> {
    let requests: Vec<(i64, u64)> = blocks
        .list
        .iter()
        .zip(&blocks.sites)
        .filter(|(block, _)| !matches!(block.3, Name::Before(_)))
        .map(|(block, site)| (block.0, *site))
        .collect();
    let mut best: Option<(usize, usize, usize)> = None;
    for share in [100, 98, 95, 90, 85, 80, 70, 60, 50] {
        let cut = requests.len() * share / 100;
        let site = |index: usize| requests[cut - 1 - index].1;
        // The longest border of each prefix of the reversed sequence.
        let mut border = vec![0_usize; cut];
        for index in 1..cut {
            let mut length = border[index - 1];
            while length > 0 && site(index) != site(length) {
                length = border[length - 1];
            }
            border[index] = length + usize::from(site(index) == site(length));
        }
        for index in (2 * MIN_STEP - 1..cut).rev() {
            let (length, period) = (index + 1, index + 1 - border[index]);
            if period >= MIN_STEP && length >= 2 * period {
                if best.is_none_or(|(longest, _, _)| length > longest) {
                    best = Some((length, period, cut));
                }
                break;
            }
        }
    }
    let (_, period, cut) = best?;
    let row = |index: usize| requests.get(index).map_or(end, |request| request.0);
    Some(Step {
        first_row: row(cut - period),
        end_row: row(cut),
        requests: period,
        of_marked: 0,
    })
}

/// A buffer and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Placement {
    /// What it is called.
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
pub struct Conflict {
    /// When they all live.
    pub moment: Option<i64>,
    /// What they need.
    pub bytes: u64,
    /// Whether no smaller set is in conflict.
    pub smallest: bool,
    /// Which they are, by their place in the list of buffers.
    pub buffers: Vec<usize>,
}

/// The plan of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// What no plan can be below.
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
pub struct Report {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// What must suffice.
    pub capacity: Option<u64>,
    /// Whether times are those of a planning problem, and not rows.
    pub is_problem: bool,
    /// Rows that made no sense.
    pub passed_over: u64,
    /// What of a graph is not planned, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<onnx::GraphFacts>,
    /// By process, device and pool.
    pub groups: Vec<GroupReport>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The blocks are no problem.
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
        /// What the one is called.
        one: String,
        /// What the other is called.
        other: String,
        /// When both live.
        moment: i64,
    },
    /// The checker refused the plan: our fault.
    #[error("the plan of device {device} is wrong")]
    Wrong {
        /// Number of the device.
        device: i32,
        /// What it found.
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
            Status::Unknown => "unknown",
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
