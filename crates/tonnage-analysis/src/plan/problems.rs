// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems, whatever they were read from: groups of buffers with names.

use serde::Serialize;
use tonnage_plan::Problem;
use tonnage_recording::{Pool, StackTable, TextId};

/// The planning problems and the limits of the search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Memory that must suffice.
    pub capacity: Option<u64>,
    /// Offsets are multiples of this.
    pub alignment: Option<u64>,
    /// One step instead of the whole.
    pub step: bool,
    /// Offsets that a planning problem fixes.
    pub keep_offsets: bool,
}

/// The name of a buffer.
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
#[non_exhaustive]
pub struct Group {
    /// Number of the process.
    pub process: u32,
    /// Number of the device.
    pub device: i32,
    /// The allocator's pool, if the recording has it.
    pub pool: Option<Pool>,
    /// Streams that occur.
    pub streams: usize,
    /// The problem.
    pub problem: Problem,
    /// The name of each buffer.
    pub names: Vec<Name>,
    /// The step, if one was wanted and found.
    pub step: Option<Step>,
}

/// One step of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct Problems {
    /// By process, device and pool.
    pub groups: Vec<Group>,
    /// Texts of names.
    pub texts: StackTable,
    /// Whether times are those of a planning problem, and not rows.
    pub is_problem: bool,
    /// Rows that made no sense: frees of what was not there, blocks where one was alive.
    pub passed_over: u64,
    /// The parts of a graph that are not planned, if it is one.
    pub graph: Option<GraphFacts>,
}

impl Problems {
    /// A planning problem from elsewhere: one memory, and its own times.
    pub(super) fn alone(problem: Problem, names: Vec<Name>, texts: StackTable) -> Self {
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

/// The parts of a graph that are not planned, and their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GraphFacts {
    /// Operators.
    pub operators: u64,
    /// Inputs of the graph that are not initializers.
    pub inputs: u64,
    /// Their bytes, of those with a known shape.
    pub input_bytes: u64,
    /// Initializers.
    pub initializers: u64,
    /// Their bytes.
    pub initializer_bytes: u64,
    /// Outputs of `Constant` operators.
    pub constants: u64,
    /// Tensors that bodies of `If`, `Loop` and `Scan` make.
    pub inner: u64,
    /// Further outputs of operators that nothing reads and whose shape is not known.
    pub unread: u64,
}
