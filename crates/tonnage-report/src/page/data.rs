// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data of one pane: compressed columns of its timeline, and of its blocks.

use std::collections::HashMap;
use std::io;

use serde::Serialize;
use tonnage_analysis::holdings::{Category, HeldBy, Holding, Known, Phase, SegmentSpan};
use tonnage_analysis::plan::{Packing, PlacedBlock};

use super::texts::{Stacks, Texts};
use super::{Options, Picture, WriteError};
use crate::blocks::{Cells, Chosen, Placed, Range, Rest, choose, ranges, sum_up};
use crate::columns::{Columns, base64};
use crate::input::{Finding, Moment, MomentKind, Refused, Words};
use crate::moments::MAX_PHASES;
use crate::names::{shortened, without_folders};
use crate::timeline::{CATEGORIES, Stretch, starts};

/// Version of the data, which the page checks; raised when a column changes its meaning.
pub(super) const DATA_VERSION: u32 = 2;
/// Stretches of equal length; with them a screen of any width is served several times over.
const STRETCHES: u32 = 65_536;
/// Rows shown one by one on each side of a peak.
const NEAR: u32 = 768;
/// Blocks drawn one by one, if there is room: what a browser draws in a frame.
const BLOCKS: usize = 120_000;
/// Segments drawn one by one.
const SEGMENTS: usize = 20_000;
/// Phases drawn one by one.
const PHASES: usize = 20_000;
/// Times that are kept; between them rows are taken to be evenly spaced.
const TIMES: usize = 2048;
/// Points of an allocator's line.
const SERIES: usize = 1024;

/// One pane as base64, and what is in it.
pub(super) struct PaneData {
    pub(super) timeline: String,
    pub(super) blocks: String,
    pub(super) drawn: u64,
    pub(super) summed_up: u64,
    pub(super) stretches: u64,
}

impl PaneData {
    /// Bytes in the page.
    pub(super) fn len(&self) -> usize {
        self.timeline.len() + self.blocks.len()
    }
}

/// A finding whose blocks this pane shows.
pub(super) struct Shown<'a> {
    /// Its number on the page.
    pub(super) number: usize,
    pub(super) finding: &'a Finding,
}

/// The data of a pane in at most `limit` bytes.
pub(super) fn pack(
    picture: &Picture<'_>,
    words: &Words,
    findings: &[Shown<'_>],
    options: &Options,
    limit: u64,
) -> Result<PaneData, WriteError> {
    let subject = &picture.subject;
    let shared = Shared {
        ranges: ranges(subject.blocks, subject.segments),
        full_paths: options.full_paths,
        words: if options.full_paths {
            words.clone()
        } else {
            discreet(words)
        },
    };
    let (mut even, mut most) = (STRETCHES, BLOCKS);
    loop {
        let stretches = picture.detailed(even);
        let cells = Cells::beside(even);
        let chosen = choose(subject, &picture.moments, &shared.ranges, most, cells);
        let timeline = base64(&picture.timeline(&stretches, &chosen, &shared)?);
        let blocks = base64(&picture.blocks(&chosen, &shared, findings, cells)?);
        let data = (timeline.len() + blocks.len()) as u64;
        if data <= limit {
            return Ok(PaneData {
                timeline,
                blocks,
                drawn: chosen.kept.len() as u64,
                summed_up: chosen.rest.blocks,
                stretches: stretches.len() as u64,
            });
        }
        if even <= 64 && most == 0 {
            return Err(WriteError::TooSmall { needed: data });
        }
        // Blocks first: the timeline is the picture that must stay fine.
        let share = limit as f64 / data as f64 * 0.8;
        let kept = chosen.kept.len().min(most);
        most = if kept < 200 {
            0
        } else {
            (kept as f64 * share) as usize
        };
        if kept < 20_000 || timeline.len() as u64 > limit / 2 {
            even = (even / 2).max(64);
        }
    }
}

impl Picture<'_> {
    /// The timeline with every row around the moments that matter.
    fn detailed(&self, even: u32) -> Vec<Stretch> {
        let around = |kind| match kind {
            MomentKind::OutOfMemory | MomentKind::Peak | MomentKind::SecondPeak => {
                NEAR.min(even / 32)
            }
            MomentKind::Mark | MomentKind::StepPeak => 0,
        };
        let near: Vec<(u32, u32)> = self
            .moments
            .iter()
            .map(|found| (found.moment.row, around(found.moment.kind)))
            .collect();
        self.changes
            .stretches(&starts(self.subject.rows, even, &near))
    }

    /// Whether more is handed out than held: then some segments are not in the recording.
    fn reserved_at_least(&self, stretches: &[Stretch]) -> bool {
        let more = |one: &Stretch| one.high.allocated > one.high.reserved;
        !self.subject.segments.is_empty() && stretches.iter().any(more)
    }

    /// The first part: words, timeline, phases, moments.
    fn timeline(
        &self,
        stretches: &[Stretch],
        chosen: &Chosen,
        shared: &Shared,
    ) -> io::Result<Vec<u8>> {
        let subject = &self.subject;
        let mut columns = Columns::default();
        columns.deltas("start", stretches.iter().map(|one| u64::from(one.start)));
        for (levels, names) in [(0, &HIGH), (1, &LOW)] {
            let of = |one: &Stretch| if levels == 0 { one.high } else { one.low };
            let row = |one: &Stretch| u64::from(of(one).row - one.start);
            columns.plain(names[0], stretches.iter().map(row));
            columns.deltas(names[1], stretches.iter().map(|one| of(one).held_bytes()));
            for category in 0..CATEGORIES {
                let bytes = |one: &Stretch| of(one).by_category[category];
                columns.deltas(names[2 + category], stretches.iter().map(bytes));
            }
        }
        columns.deltas(
            "most_reserved",
            stretches
                .iter()
                .map(|one| one.most_reserved.max(one.high.allocated)),
        );
        let phases = &subject.phases[..subject.phases.len().min(MAX_PHASES)];
        let shown = longest(phases, PHASES, |span| span.to.saturating_sub(span.from));
        columns.deltas(
            "phase_from",
            shown.iter().map(|&n| u64::from(phases[n].from)),
        );
        columns.deltas("phase_to", shown.iter().map(|&n| u64::from(phases[n].to)));
        columns.small("phase", shown.iter().map(|&n| phases[n].phase as u8));
        columns.deltas(
            "phase_step",
            shown.iter().map(|&n| u64::from(phases[n].step)),
        );
        let every = subject.times.len().div_ceil(TIMES).max(1);
        let times = || subject.times.iter().step_by(every);
        columns.deltas("time_row", times().map(|(row, _)| u64::from(*row)));
        columns.deltas("time", times().map(|(_, time)| *time));
        let mut words = shared.words.clone();
        for run in &mut words.allocators {
            thin(&mut run.series);
        }
        let facts = TimelineFacts {
            version: DATA_VERSION,
            words: &words,
            rows: subject.rows,
            capacity: subject.capacity,
            context: subject.context,
            blocks: subject.blocks.len() as u64,
            drawn: chosen.kept.len() as u64,
            segments: subject.segments.len() as u64,
            categories: Category::ALL.map(Category::name),
            phases: Phase::ALL.map(Phase::name),
            phases_left_out: subject.phases.len() - shown.len(),
            moments: self
                .moments
                .iter()
                .map(|found| MomentFacts {
                    moment: &found.moment,
                    refused: found.moment.refused,
                    allocated: found.levels.allocated,
                    reserved: found.levels.held_bytes(),
                })
                .collect(),
            steps_left_out: self.steps_left_out,
            reserved_at_least: self.reserved_at_least(stretches),
        };
        columns.packed(&facts)
    }

    /// The second part: blocks, segments, stacks, texts.
    fn blocks(
        &self,
        chosen: &Chosen,
        shared: &Shared,
        findings: &[Shown<'_>],
        cells: Cells,
    ) -> io::Result<Vec<u8>> {
        let subject = &self.subject;
        let kept: Vec<&Holding> = chosen
            .kept
            .iter()
            .map(|&index| &subject.blocks[index as usize])
            .collect();
        let mut texts = Texts::new(subject.stacks);
        let mut columns = Columns::default();
        self.lifetimes(chosen, &kept, &mut columns);
        let failure_stack = self.names(chosen, &kept, shared, &mut texts, &mut columns);
        self.segments(shared, &mut columns);
        columns.small("grid", chosen.rest.grid.iter().copied());
        let marked = mark(findings, chosen, &mut columns);
        let plan_rest = subject
            .packing
            .map(|packing| self.packing(packing, chosen, cells, &mut columns));
        columns.packed(&BlockFacts {
            plan_rest_blocks: plan_rest.as_ref().map_or(0, |rest| rest.blocks),
            plan_rest_largest: plan_rest.as_ref().map_or(0, |rest| rest.largest),
            version: DATA_VERSION,
            rest_blocks: chosen.rest.blocks,
            rest_bytes: chosen.rest.bytes,
            rest_largest: chosen.rest.largest,
            segments_left_out: subject.segments.len().saturating_sub(SEGMENTS),
            grid_columns: cells.columns,
            grid_lines: cells.lines,
            failure_stack,
            marked,
        })
    }

    /// When each block was there, where, and what it is.
    fn lifetimes(&self, chosen: &Chosen, kept: &[&Holding], columns: &mut Columns) {
        let subject = &self.subject;
        columns.deltas("born", kept.iter().map(|block| u64::from(block.born)));
        columns.plain(
            "life",
            kept.iter().map(|block| {
                if block.died < subject.rows {
                    u64::from(block.died.saturating_sub(block.born)) + 1
                } else {
                    0
                }
            }),
        );
        columns.deltas("address", kept.iter().map(|block| block.address));
        columns.deltas("bytes", kept.iter().map(|block| block.bytes));
        columns.plain(
            "spare",
            kept.iter()
                .map(|block| block.bytes.saturating_sub(block.requested)),
        );
        columns.small(
            "what",
            kept.iter().map(|block| {
                let known = u8::from(block.known == Known::Exact);
                block.category as u8 | known << 4
            }),
        );
        columns.small("born_in", kept.iter().map(|block| block.phase as u8));
        columns.deltas("step", kept.iter().map(|block| u64::from(block.step)));
        self.unused(chosen, kept, columns);
        let mut streams: Vec<u64> = Vec::new();
        let mut stream_ids: HashMap<u64, u64> = HashMap::new();
        columns.plain(
            "stream",
            kept.iter().map(|block| {
                *stream_ids.entry(block.stream).or_insert_with(|| {
                    streams.push(block.stream);
                    streams.len() as u64 - 1
                })
            }),
        );
        columns.plain("stream_handle", streams);
    }

    /// The row after the last use of each block that stays, from its birth and from 1; 0 of the others. The column is
    /// missing where no such block is known.
    fn unused(&self, chosen: &Chosen, kept: &[&Holding], columns: &mut Columns) {
        let unused = self.subject.unused;
        if unused.is_empty() {
            return;
        }
        let rows = chosen.kept.iter().zip(kept).map(|(index, block)| {
            let found = unused.binary_search_by_key(index, |one| one.block).ok();
            let from = found.map(|at| unused[at].from.saturating_sub(block.born));
            from.map_or(0, |from| u64::from(from) + 1)
        });
        columns.plain("unused", rows);
    }

    /// The name of each block, its holder, and where it was made; the number of the stack of the request that could
    /// not be served.
    fn names(
        &self,
        chosen: &Chosen,
        kept: &[&Holding],
        shared: &Shared,
        texts: &mut Texts<'_>,
        columns: &mut Columns,
    ) -> u64 {
        let subject = &self.subject;
        let mut stacks = Stacks::new(subject.stacks, shared.full_paths);
        let held = |index: &u32| subject.holders.and_then(|holders| holders.get(index));
        let holders: Vec<(u64, u64)> = chosen
            .kept
            .iter()
            .map(|index| {
                let held = held(index).filter(|held| !held.name.is_empty());
                held.map_or((0, 0), |held| {
                    (
                        texts.intern_text(&held.describe_holder()),
                        texts.intern_text(&line(held, shared)),
                    )
                })
            })
            .collect();
        columns.plain("holder", holders.iter().map(|(name, _)| *name));
        columns.plain("holder_line", holders.iter().map(|(_, line)| *line));
        columns.plain("module", kept.iter().map(|block| texts.id(block.module)));
        columns.plain("name", kept.iter().map(|block| texts.id(block.name)));
        let shapes = kept.iter().zip(&chosen.kept).map(|(block, index)| {
            let told = held(index).and_then(|held| held.shape.as_deref());
            let named = block
                .shape
                .map(|id| without_category(subject.stacks.text(id)));
            named.or(told).map_or(0, |shape| texts.intern_text(shape))
        });
        columns.plain("shape", shapes);
        columns.deltas(
            "stack",
            kept.iter().map(|block| stacks.id(block.stack, texts)),
        );
        let failure = stacks.id(subject.failure, texts);
        columns.plain(
            "stack_depth",
            stacks.nodes.iter().map(|node| node.parent_distance),
        );
        columns.plain("stack_frame", stacks.nodes.iter().map(|node| node.frame));
        columns.plain(
            "frame_function",
            stacks.frames.iter().map(|frame| frame.function),
        );
        columns.plain("frame_file", stacks.frames.iter().map(|frame| frame.file));
        columns.plain("frame_line", stacks.frames.iter().map(|frame| frame.line));
        columns.small(
            "frame_own",
            stacks.frames.iter().map(|frame| u8::from(frame.own)),
        );
        columns.plain(
            "text_bytes",
            texts.list.iter().map(|text| text.len() as u64),
        );
        columns.small("text", texts.list.iter().flat_map(|text| text.bytes()));
        failure
    }

    fn segments(&self, shared: &Shared, columns: &mut Columns) {
        let subject = &self.subject;
        let segments = longest(subject.segments, SEGMENTS, |segment| {
            u128::from(segment.bytes)
                * u128::from(segment.died.min(subject.rows).saturating_sub(segment.born))
        });
        let of = |n: &usize| -> &SegmentSpan { &subject.segments[*n] };
        columns.deltas("segment_born", segments.iter().map(|n| of(n).born.into()));
        columns.plain(
            "segment_life",
            segments.iter().map(|n| {
                let segment = of(n);
                if segment.died < subject.rows {
                    u64::from(segment.died.saturating_sub(segment.born)) + 1
                } else {
                    0
                }
            }),
        );
        columns.deltas("segment_address", segments.iter().map(|n| of(n).address));
        columns.deltas("segment_bytes", segments.iter().map(|n| of(n).bytes));
        columns.plain("segment_stream", segments.iter().map(|n| of(n).stream));
        columns.deltas(
            "range_address",
            shared.ranges.iter().map(|range| range.address),
        );
        columns.plain("range_bytes", shared.ranges.iter().map(|range| range.bytes));
    }

    /// Where the kept blocks would lie, and what of the plan is not drawn one by one.
    fn packing(
        &self,
        packing: &Packing,
        chosen: &Chosen,
        cells: Cells,
        columns: &mut Columns,
    ) -> Rest {
        let subject = &self.subject;
        let mut places: HashMap<u32, &PlacedBlock> = HashMap::with_capacity(chosen.kept.len());
        places.extend(chosen.kept.iter().map(|block| (*block, UNPLANNED)));
        let mut others: Vec<&PlacedBlock> = Vec::new();
        for place in &packing.places {
            let mine = place.block.and_then(|block| places.get_mut(&block));
            match mine.filter(|mine| mine.bytes == 0) {
                Some(mine) => *mine = place,
                None => others.push(place),
            }
        }
        let place = |block: &u32| places.get(block).copied().unwrap_or(UNPLANNED);
        let kept = || chosen.kept.iter().map(place);
        columns.plain(
            "plan_life",
            kept().map(|place| {
                let until = place.until.min(subject.rows);
                u64::from(until.saturating_sub(place.from))
            }),
        );
        columns.deltas("plan_address", kept().map(|place| place.address));
        columns.deltas("plan_bytes", kept().map(|place| place.bytes));
        let arenas: Vec<Range> = packing
            .arenas
            .iter()
            .map(|arena| Range {
                address: arena.base,
                bytes: arena.peak,
            })
            .collect();
        columns.deltas("plan_range_address", arenas.iter().map(|one| one.address));
        columns.plain("plan_range_bytes", arenas.iter().map(|one| one.bytes));
        let others = others.into_iter().map(|place| Placed {
            from: place.from,
            until: place.until,
            address: place.address,
            bytes: place.bytes,
        });
        let rest = sum_up(others, subject.rows, &arenas, cells);
        columns.small("plan_grid", rest.grid.iter().copied());
        rest
    }
}

/// The place of a block that was not planned.
const UNPLANNED: &PlacedBlock = &PlacedBlock {
    block: None,
    from: 0,
    until: 0,
    address: 0,
    bytes: 0,
};

/// The type and shape of a tensor: a recording has the category before them, as `weights bfloat16[4096, 4096]`.
fn without_category(text: &str) -> &str {
    match text.split_once(' ') {
        Some((first, shape)) if Category::from_key(first).is_some() => shape,
        _ => text,
    }
}

/// Where a holder is assigned or filled.
fn line(held: &HeldBy, shared: &Shared) -> String {
    let place = held.place.as_ref();
    place.map_or_else(String::new, |place| {
        let file = if shared.full_paths {
            place.file.clone()
        } else {
            shortened(&place.file)
        };
        format!("{file}:{}", place.line)
    })
}

/// Where the blocks of findings are among the kept ones.
fn mark(findings: &[Shown<'_>], chosen: &Chosen, columns: &mut Columns) -> Vec<Marked> {
    let mut positions: Vec<(u32, u64)> = chosen.kept.iter().copied().zip(0..).collect();
    positions.sort_unstable();
    let at = |block: &u32| {
        let found = positions.binary_search_by_key(block, |(kept, _)| *kept);
        found.ok().map(|found| positions[found].1)
    };
    let mut all = Vec::new();
    let marked = findings.iter().map(|shown| {
        let from = all.len();
        all.extend(shown.finding.blocks.iter().filter_map(at));
        let drawn = all.len() - from;
        Marked {
            finding: shown.number,
            drawn,
            left_out: shown.finding.blocks.len() - drawn,
        }
    });
    let marked = marked.collect();
    columns.plain("marked", all);
    marked
}

struct Shared {
    ranges: Vec<Range>,
    full_paths: bool,
    words: Words,
}

const HIGH: [&str; 2 + CATEGORIES] = [
    "high_row",
    "high_reserved",
    "high_0",
    "high_1",
    "high_2",
    "high_3",
    "high_4",
    "high_5",
    "high_6",
    "high_7",
    "high_8",
];
const LOW: [&str; 2 + CATEGORIES] = [
    "low_row",
    "low_reserved",
    "low_0",
    "low_1",
    "low_2",
    "low_3",
    "low_4",
    "low_5",
    "low_6",
    "low_7",
    "low_8",
];

#[derive(Serialize)]
struct TimelineFacts<'a> {
    version: u32,
    words: &'a Words,
    rows: u32,
    capacity: Option<u64>,
    context: u64,
    blocks: u64,
    drawn: u64,
    segments: u64,
    categories: [&'static str; CATEGORIES],
    phases: [&'static str; Phase::ALL.len()],
    phases_left_out: usize,
    moments: Vec<MomentFacts<'a>>,
    steps_left_out: usize,
    reserved_at_least: bool,
}

#[derive(Serialize)]
struct MomentFacts<'a> {
    #[serde(flatten)]
    moment: &'a Moment,
    refused: Option<Refused>,
    allocated: u64,
    reserved: u64,
}

#[derive(Serialize)]
struct BlockFacts {
    version: u32,
    plan_rest_blocks: u64,
    plan_rest_largest: u64,
    rest_blocks: u64,
    rest_bytes: u64,
    rest_largest: u64,
    segments_left_out: usize,
    grid_columns: u32,
    grid_lines: u32,
    /// Number of the stack of the request that could not be served; 0 means none.
    failure_stack: u64,
    /// Blocks of findings: so many of the column `marked` each, in order.
    marked: Vec<Marked>,
}

#[derive(Serialize)]
struct Marked {
    finding: usize,
    drawn: usize,
    left_out: usize,
}

/// The same words without the folders of files.
fn discreet(words: &Words) -> Words {
    let mut told = words.clone();
    let plan = told.plan.iter_mut().map(|plan| &mut plan.sentence);
    for text in plan.chain(&mut told.unknown) {
        *text = without_folders(text);
    }
    told
}

/// Numbers of the `most` highest, in their order.
fn longest<T, S: Ord>(all: &[T], most: usize, score: impl Fn(&T) -> S) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..all.len()).collect();
    if numbers.len() > most {
        numbers.sort_by_key(|&number| std::cmp::Reverse(score(&all[number])));
        numbers.truncate(most);
        numbers.sort_unstable();
    }
    numbers
}

/// Keeps the highest point of every stretch of a line.
fn thin(series: &mut Vec<(u32, u64)>) {
    if series.len() > SERIES {
        let every = series.len().div_ceil(SERIES);
        let highest =
            |points: &[(u32, u64)]| points.iter().copied().max_by_key(|(_, bytes)| *bytes);
        *series = series.chunks(every).filter_map(highest).collect();
    }
}
