// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a report is made of: borrowed lists of what lived when, and the words around them.
//!
//! The lists are those of `tonnage_analysis::holdings`; the words are plain texts, so that the module with the answer
//! (the verdict, the findings, the replays) writes it, and this crate only sets it.

use std::collections::HashMap;

use serde::Serialize;
use tonnage_analysis::explain::UnusedBlock;
use tonnage_analysis::holdings::{HeldBy, Holding, PhaseSpan, SegmentSpan};
use tonnage_analysis::plan::Packing;
use tonnage_recording::{StackId, StackTable};

/// One process on one device, from the first row of its recording to the last.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Every block that ever lived.
    pub blocks: &'a [Holding],
    /// The memory that the allocator held from the driver.
    pub segments: &'a [SegmentSpan],
    /// The activity of the program, in the order of rows.
    pub phases: &'a [PhaseSpan],
    /// The meaning of the ids in blocks.
    pub stacks: &'a StackTable,
    /// Rows of the recording.
    pub rows: u32,
    /// Bytes of the device.
    pub capacity: Option<u64>,
    /// Bytes of the context.
    pub context: u64,
    /// When some rows happened: row and nanoseconds since the first, ascending. Empty without a clock.
    pub times: &'a [(u32, u64)],
    /// Moments that only the recording knows, such as an out-of-memory.
    pub moments: &'a [Moment],
    /// Where the blocks would lie if their lifetimes had been known beforehand, if that was planned.
    pub packing: Option<&'a Packing>,
    /// Where the request was made that could not be served.
    pub failure: Option<StackId>,
    /// The holder of a block, by its index, where Python was queried.
    pub holders: Option<&'a HashMap<u32, HeldBy>>,
    /// Blocks that stay in memory after their last use, by index; empty where the recording has no uses.
    pub unused: &'a [UnusedBlock],
}

/// A moment worth looking at: just after a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moment {
    /// The row, from 0.
    pub row: u32,
    /// Why it is worth it.
    pub kind: MomentKind,
    /// The event, in a few words.
    pub label: String,
    /// The request that could not be served at this moment, if that is what happened.
    #[serde(skip)]
    pub refused: Option<Refused>,
}

/// A request that could not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Bytes that were requested.
    pub requested: u64,
    /// Bytes that were free on the device.
    pub free: u64,
}

/// Why a moment is worth looking at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MomentKind {
    /// The allocator could not serve a request.
    OutOfMemory,
    /// Most bytes alive.
    Peak,
    /// The peak without the first one.
    SecondPeak,
    /// Something the recording marks.
    Mark,
    /// Most bytes alive in one step.
    StepPeak,
}

/// The words of a page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Story {
    /// The subject of the page: the script's or the recording's name.
    pub title: String,
    /// The verdict in one sentence.
    pub verdict: String,
    /// Whether the verdict is good news.
    pub tone: Tone,
    /// Why, what it needs and what helps.
    pub answer: Option<Answer>,
    /// Command, recording, device, policy, versions: name and text each.
    pub facts: Vec<Fact>,
    /// The findings, the cause first.
    pub findings: Vec<Finding>,
    /// The ranks of the job, where it has several.
    pub ranks: Option<Ranks>,
    /// The differences of two recordings, where the page compares two.
    pub comparison: Option<Comparison>,
    /// The program that wrote the page.
    pub producer: String,
}

/// The ranks of a job beside each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ranks {
    /// How many ranks the job has.
    pub world_size: u32,
    /// The ranks that were run, in order.
    pub run: Vec<Rank>,
    /// A line for each group of equal ranks.
    pub lines: Vec<Fact>,
}

/// The memory of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Most bytes of its device that were in use.
    pub used: u64,
    /// Most bytes in blocks.
    pub allocated: u64,
    /// Bytes of its device.
    pub capacity: Option<u64>,
    /// The pane that shows it, if one does.
    pub pane: Option<usize>,
}

/// Why, what it needs and what helps, in the words of `tonnage explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The cause in one line.
    pub headline: String,
    /// The figures that decide: what it needs, what there is, what is missing.
    pub figures: Vec<Figure>,
    /// More about it: name and text each. A text without a name belongs to the one before.
    pub lines: Vec<Fact>,
    /// The proposals, the largest saving first.
    pub fixes: Vec<Proposal>,
}

/// A number of bytes with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// The description.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Whether it is the bad news.
    pub bad: bool,
}

/// Something that would help.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proposal {
    /// The action.
    pub advice: String,
    /// The line to paste, if there is one.
    pub paste: Option<String>,
    /// How it was proved, and what comes of it.
    pub proof: String,
}

/// The differences of two recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Groups of differences, such as those by category.
    pub groups: Vec<Differences>,
}

/// Differences of one sort.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// The names of the two.
    pub title: String,
    /// Each of them, the largest first.
    pub rows: Vec<Difference>,
}

/// One thing that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What.
    pub what: String,
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
}

/// The words about one process on one device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Words {
    /// Its name among the others of the page.
    pub name: String,
    /// The results of other allocators for it.
    pub allocators: Vec<AllocatorRun>,
    /// The size of the blocks if their lifetimes had been known beforehand.
    pub plan: Option<Planned>,
    /// Facts that the recording does not contain.
    pub unknown: Vec<String>,
}

/// Whether a verdict is good news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// It fits.
    Good,
    /// It does not.
    Bad,
    /// Neither.
    #[default]
    Plain,
}

/// A line of the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The subject.
    pub name: String,
    /// The text.
    pub text: String,
}

/// Something that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its stable code, `TN101`.
    pub code: String,
    /// The finding in one line.
    pub title: String,
    /// The finding, in one sentence.
    pub text: String,
    /// The pane of the page that shows its blocks.
    pub pane: usize,
    /// Its blocks, by their index in the subject of that pane. The page holds their number, and where they are drawn.
    #[serde(serialize_with = "number")]
    pub blocks: Vec<u32>,
    /// Whether these blocks keep free memory beside them from being given back.
    pub pins: bool,
}

#[expect(clippy::ptr_arg, reason = "serde hands over what the field is")]
fn number<S: serde::Serializer>(blocks: &Vec<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(blocks.len() as u64)
}

/// One allocator's run through the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocatorRun {
    /// The allocator, as it can be typed.
    pub allocator: String,
    /// Whether it is the recorded one.
    pub recorded: bool,
    /// Whether the replay is exact, rather than an approximation.
    pub exact: bool,
    /// Whether every request was served.
    pub completes: bool,
    /// How it ended, in a few words.
    pub outcome: String,
    /// Most that was held from the driver.
    pub peak_reserved: u64,
    /// Most that was handed out.
    pub peak_allocated: u64,
    /// Held and not handed out at the fullest moment.
    pub cached_at_peak: u64,
    /// The smallest device on which it completes.
    pub smallest: Option<u64>,
    /// Calls of the driver.
    pub calls: u64,
    /// How often everything cached was given back to serve a request.
    pub retries: u64,
    /// The held memory over time: row and bytes, ascending; empty if not known.
    pub series: Vec<(u32, u64)>,
}

/// The size of the blocks if their lifetimes had been known beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// The state of the plan, or why there is none and how to get it, in a sentence.
    pub sentence: String,
    /// Whether there is a plan; without one the figures are 0.
    pub done: bool,
    /// Whether no plan takes less.
    pub proved: bool,
    /// The memory that all pools use together.
    pub peak: u64,
    /// The lower bound of every plan.
    pub lower_bound: u64,
    /// Blocks that were planned.
    pub buffers: u64,
    /// Most that the recorded allocator held from the driver, if the recording has it.
    pub reserved: Option<u64>,
    /// The name of each pool, in the order in which their arenas lie.
    pub pools: Vec<String>,
}
