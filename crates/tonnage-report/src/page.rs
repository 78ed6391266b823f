// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page: words, compressed data and the program that draws them, in one file.
//!
//! The order in the file is what makes the first picture quick: style and words, the timeline's data, the program, and
//! only then the blocks, so that the timeline is on the screen while the rest is still being read. The words go into
//! the page as JSON inside compressed data and are set by the program as text, never as HTML; the few that stand in the
//! HTML itself are escaped.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;
use tonnage_analysis::holdings::{Category, Known, Phase, SegmentSpan};
use tonnage_analysis::plan::{Packing, Place};
use tonnage_trace::{StackId, StackTable, TextId};

use crate::blocks::{Cells, Chosen, Lying, Range, Rest, choose, ranges, sum_up};
use crate::columns::{Columns, base64};
use crate::input::{Moment, MomentKind, Story, Subject};
use crate::moments::{Found, MOST_PHASES, find};
use crate::names::{is_own, shortened, without_folders};
use crate::timeline::{CATEGORIES, Changes, Levels, Stretch, starts};

const SCRIPT: &str = include_str!("../assets/report.js");
const STYLE: &str = include_str!("../assets/report.css");

/// Version of the data, which the page checks; raised when a column changes its meaning.
const DATA_VERSION: u32 = 1;
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
/// Characters of a text.
const TEXT: usize = 300;

/// How a page is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most bytes of data in it.
    pub max_data: u64,
    /// Whether files keep their folders.
    pub full_paths: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_data: 10 << 20,
            full_paths: false,
        }
    }
}

/// Why a page could not be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The file.
    Io(io::Error),
    /// Even the coarsest picture needs more data than allowed.
    TooSmall {
        /// Bytes it needs.
        needed: u64,
    },
}

impl std::fmt::Display for WriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(_) => f.write_str("the page cannot be written"),
            Self::TooSmall { needed } => {
                write!(f, "the coarsest picture takes {needed} bytes of data")
            }
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::TooSmall { .. } => None,
        }
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Written {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of data in it, as text.
    pub data: u64,
    /// Blocks drawn one by one.
    pub blocks: u64,
    /// Blocks that are summed up.
    pub blocks_summed_up: u64,
    /// Stretches of the timeline.
    pub stretches: u64,
}

/// A recording as a screen shows it.
pub struct Picture<'a> {
    subject: Subject<'a>,
    changes: Changes,
    moments: Vec<Found>,
    steps_left_out: usize,
}

impl<'a> Picture<'a> {
    /// Finds the moments of a recording.
    pub fn draw(subject: Subject<'a>) -> Self {
        let changes = Changes::of(subject.blocks, subject.segments, subject.rows);
        let (moments, steps_left_out) = find(&subject, &changes);
        Self {
            subject,
            changes,
            moments,
            steps_left_out,
        }
    }

    /// The moments worth looking at, in the order of rows.
    pub fn moments(&self) -> impl Iterator<Item = (&Moment, &Levels)> {
        self.moments
            .iter()
            .map(|found| (&found.moment, &found.levels))
    }

    /// The timeline in this many stretches of equal length.
    pub fn stretches(&self, count: u32) -> Vec<Stretch> {
        self.changes
            .stretches(&starts(self.subject.rows, count, &[]))
    }

    /// Writes the page.
    pub fn write(
        &self,
        story: &Story,
        options: &Options,
        destination: &mut impl Write,
    ) -> Result<Written, WriteError> {
        let shared = Shared {
            ranges: ranges(self.subject.blocks, self.subject.segments),
            full_paths: options.full_paths,
        };
        let (mut even, mut most) = (STRETCHES, BLOCKS);
        loop {
            let stretches = self.detailed(even);
            let cells = Cells::beside(even);
            let chosen = choose(&self.subject, &self.moments, &shared.ranges, most, cells);
            let first = base64(&self.timeline(story, &stretches, &chosen, &shared)?);
            let second = base64(&self.blocks(&chosen, &shared, cells)?);
            let data = (first.len() + second.len()) as u64;
            if data > options.max_data {
                if even <= 64 && most == 0 {
                    return Err(WriteError::TooSmall { needed: data });
                }
                // Blocks first: the timeline is the picture that must stay fine.
                let share = options.max_data as f64 / data as f64 * 0.8;
                let kept = chosen.kept.len().min(most);
                most = if kept < 200 {
                    0
                } else {
                    (kept as f64 * share) as usize
                };
                if kept < 20_000 || first.len() as u64 > options.max_data / 2 {
                    even = (even / 2).max(64);
                }
                continue;
            }
            let told = if options.full_paths {
                story.clone()
            } else {
                discreet(story)
            };
            let page = page(&told, &first, &second);
            destination.write_all(page.as_bytes())?;
            destination.flush()?;
            return Ok(Written {
                bytes: page.len() as u64,
                data,
                blocks: chosen.kept.len() as u64,
                blocks_summed_up: chosen.rest.blocks,
                stretches: stretches.len() as u64,
            });
        }
    }

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
        story: &Story,
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
            columns.deltas(names[1], stretches.iter().map(|one| of(one).held()));
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
        let phases = &subject.phases[..subject.phases.len().min(MOST_PHASES)];
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
        let mut told = if shared.full_paths {
            story.clone()
        } else {
            discreet(story)
        };
        for racer in &mut told.race {
            thin(&mut racer.series);
        }
        let facts = TimelineFacts {
            version: DATA_VERSION,
            story: &told,
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
                    allocated: found.levels.allocated,
                    reserved: found.levels.held(),
                })
                .collect(),
            steps_left_out: self.steps_left_out,
            reserved_at_least: self.reserved_at_least(stretches),
        };
        columns.packed(&facts)
    }

    /// The second part: blocks, segments, stacks, texts.
    fn blocks(&self, chosen: &Chosen, shared: &Shared, cells: Cells) -> io::Result<Vec<u8>> {
        let subject = &self.subject;
        let kept: Vec<_> = chosen
            .kept
            .iter()
            .map(|&index| &subject.blocks[index as usize])
            .collect();
        let mut texts = Texts::new(subject.stacks);
        let mut stacks = Stacks::new(subject.stacks, shared.full_paths);
        let mut streams: Vec<u64> = Vec::new();
        let mut stream_ids: HashMap<u64, u64> = HashMap::new();
        let mut columns = Columns::default();
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
        columns.plain(
            "stream",
            kept.iter().map(|block| {
                *stream_ids.entry(block.stream).or_insert_with(|| {
                    streams.push(block.stream);
                    streams.len() as u64 - 1
                })
            }),
        );
        columns.plain("module", kept.iter().map(|block| texts.id(block.module)));
        columns.plain("name", kept.iter().map(|block| texts.id(block.name)));
        columns.plain("shape", kept.iter().map(|block| texts.id(block.shape)));
        columns.deltas(
            "stack",
            kept.iter().map(|block| stacks.id(block.stack, &mut texts)),
        );
        columns.plain("stream_handle", streams);
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
        columns.small("grid", chosen.rest.grid.iter().copied());
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
            segments_left_out: subject.segments.len() - segments.len(),
            grid_columns: cells.columns,
            grid_lines: cells.lines,
        })
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
        let mut places: HashMap<u32, &Place> = HashMap::with_capacity(chosen.kept.len());
        places.extend(chosen.kept.iter().map(|block| (*block, NOWHERE)));
        let mut others: Vec<&Place> = Vec::new();
        for place in &packing.places {
            let mine = place.block.and_then(|block| places.get_mut(&block));
            match mine.filter(|mine| mine.bytes == 0) {
                Some(mine) => *mine = place,
                None => others.push(place),
            }
        }
        let place = |block: &u32| places.get(block).copied().unwrap_or(NOWHERE);
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
        let others = others.into_iter().map(|place| Lying {
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
const NOWHERE: &Place = &Place {
    block: None,
    from: 0,
    until: 0,
    address: 0,
    bytes: 0,
};

struct Shared {
    ranges: Vec<Range>,
    full_paths: bool,
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
    story: &'a Story,
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
}

/// The same words without the folders of files.
fn discreet(story: &Story) -> Story {
    let mut told = story.clone();
    let facts = told.facts.iter_mut().map(|fact| &mut fact.text);
    let findings = told
        .findings
        .iter_mut()
        .flat_map(|finding| [&mut finding.title, &mut finding.text]);
    let texts = [&mut told.title, &mut told.verdict];
    let plan = told.plan.iter_mut().map(|plan| &mut plan.sentence);
    let all = texts
        .into_iter()
        .chain(plan)
        .chain(facts)
        .chain(findings)
        .chain(&mut told.unknown);
    for text in all {
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

/// The texts that kept blocks need; 0 is none.
struct Texts<'a> {
    table: &'a StackTable,
    list: Vec<String>,
    ids: HashMap<TextId, u64>,
    /// Shortened texts, by themselves.
    own: HashMap<String, u64>,
}

impl<'a> Texts<'a> {
    fn new(table: &'a StackTable) -> Self {
        Self {
            table,
            list: vec![String::new()],
            ids: HashMap::new(),
            own: HashMap::new(),
        }
    }

    fn id(&mut self, text: Option<TextId>) -> u64 {
        let Some(text) = text else { return 0 };
        if let Some(id) = self.ids.get(&text) {
            return *id;
        }
        let id = self.put(self.table.text(text));
        self.ids.insert(text, id);
        id
    }

    fn put(&mut self, text: &str) -> u64 {
        let mut cut: String = text.chars().take(TEXT).collect();
        if cut.len() < text.len() {
            cut.push('…');
        }
        if cut.is_empty() {
            return 0;
        }
        let list = &mut self.list;
        *self.own.entry(cut).or_insert_with_key(|cut| {
            list.push(cut.clone());
            list.len() as u64 - 1
        })
    }
}

struct StackNode {
    /// How much smaller the caller's number is; 0 is none.
    parent_distance: u64,
    frame: u64,
}

struct FrameTexts {
    own: bool,
    function: u64,
    file: u64,
    line: u64,
}

/// The stacks that kept blocks need; 0 is none.
struct Stacks<'a> {
    table: &'a StackTable,
    full_paths: bool,
    nodes: Vec<StackNode>,
    ids: HashMap<StackId, u64>,
    frames: Vec<FrameTexts>,
    frame_ids: HashMap<tonnage_trace::FrameId, u64>,
}

impl<'a> Stacks<'a> {
    fn new(table: &'a StackTable, full_paths: bool) -> Self {
        Self {
            table,
            full_paths,
            nodes: Vec::new(),
            ids: HashMap::new(),
            frames: Vec::new(),
            frame_ids: HashMap::new(),
        }
    }

    fn id(&mut self, stack: Option<StackId>, texts: &mut Texts<'_>) -> u64 {
        let Some(stack) = stack else { return 0 };
        // From the innermost outwards to what is known already, then back: recursion would follow the file's depth.
        let mut missing = Vec::new();
        let mut at = Some(stack);
        let mut parent = 0;
        while let Some(one) = at {
            if let Some(id) = self.ids.get(&one) {
                parent = *id;
                break;
            }
            missing.push(one);
            at = self.table.parent(one).filter(|parent| *parent < one);
        }
        for one in missing.into_iter().rev() {
            let frame = self.frame(one, texts);
            let number = self.nodes.len() as u64 + 1;
            self.nodes.push(StackNode {
                parent_distance: if parent == 0 { 0 } else { number - parent },
                frame,
            });
            self.ids.insert(one, number);
            parent = number;
        }
        parent
    }

    fn frame(&mut self, stack: StackId, texts: &mut Texts<'_>) -> u64 {
        let Some((id, frame)) = self.table.top_id(stack).zip(self.table.top(stack)) else {
            return 0;
        };
        if let Some(number) = self.frame_ids.get(&id) {
            return *number;
        }
        let file = if self.full_paths {
            texts.put(frame.file)
        } else {
            texts.put(&shortened(frame.file))
        };
        self.frames.push(FrameTexts {
            own: is_own(frame.file),
            function: texts.put(frame.function),
            file,
            line: frame.line,
        });
        let number = self.frames.len() as u64;
        self.frame_ids.insert(id, number);
        number
    }
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c if c.is_control() && c != '\n' => html.push(' '),
            c => html.push(c),
        }
    }
    html
}

fn page(story: &Story, first: &str, second: &str) -> String {
    let title = escaped(&story.title);
    let verdict = escaped(&story.verdict);
    let mut page = String::with_capacity(first.len() + second.len() + SCRIPT.len() + (64 << 10));
    page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    // Nothing is ever fetched, whatever a name in the recording says.
    page.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n");
    page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n");
    page.push_str("<title>");
    page.push_str(&title);
    page.push_str(" – GPU memory</title>\n<style>\n");
    page.push_str(STYLE);
    page.push_str("</style>\n</head>\n<body>\n<div id=\"app\"><h1>");
    page.push_str(&title);
    page.push_str("</h1>\n<p>");
    page.push_str(&verdict);
    page.push_str("</p>\n<noscript><p>The pictures need JavaScript, which is off; `tonnage report --text` draws them in a terminal.</p></noscript></div>\n");
    for (id, data) in [("data-timeline", first), ("", ""), ("data-blocks", second)] {
        if id.is_empty() {
            page.push_str("<script>\n");
            page.push_str(SCRIPT);
            page.push_str("</script>\n");
        } else {
            page.push_str("<script type=\"application/octet-stream\" id=\"");
            page.push_str(id);
            page.push_str("\">");
            page.push_str(data);
            page.push_str("</script>\n");
        }
    }
    page.push_str("</body>\n</html>\n");
    page
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::input::Fact;
    use tonnage_analysis::holdings::{Holding, PhaseSpan};

    const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

    fn blocks(stacks: &mut StackTable, count: u32) -> Vec<Holding> {
        let function = stacks.intern("forward");
        let file = stacks.intern("/home/alice/secret/llm/model.py");
        let name = stacks.intern(HOSTILE);
        (0..count)
            .map(|n| {
                let frame = stacks.frame(function, file, u64::from(n % 999));
                Holding {
                    born: n,
                    died: n + 2 + n.wrapping_mul(2_654_435_761) % 1000,
                    address: u64::from(n.wrapping_mul(2_246_822_519)) << 9,
                    bytes: u64::from(n.wrapping_mul(3_266_489_917)) >> 4,
                    requested: 1,
                    stream: u64::from(n % 3),
                    stack: Some(stacks.push(None, frame)),
                    module: Some(name),
                    name: Some(name),
                    shape: None,
                    step: n / 100,
                    category: Category::ALL[n as usize % CATEGORIES],
                    known: Known::Inferred,
                    phase: Phase::Forward,
                }
            })
            .collect()
    }

    fn subject<'a>(blocks: &'a [Holding], stacks: &'a StackTable, rows: u32) -> Subject<'a> {
        Subject {
            blocks,
            segments: &[],
            phases: &[],
            stacks,
            rows,
            capacity: Some(1 << 40),
            context: 0,
            packing: None,
            times: &[],
            moments: &[],
        }
    }

    fn story() -> Story {
        Story {
            title: HOSTILE.to_owned(),
            verdict: HOSTILE.to_owned(),
            facts: vec![Fact {
                name: "command".to_owned(),
                text: "python /home/alice/secret/train.py".to_owned(),
            }],
            ..Story::default()
        }
    }

    fn written(subject: Subject<'_>, options: &Options) -> Result<(String, Written), WriteError> {
        let mut page = Vec::new();
        let written = Picture::draw(subject).write(&story(), options, &mut page)?;
        Ok((String::from_utf8(page).unwrap(), written))
    }

    /// Everything in the page that is compressed, as bytes in a text.
    fn unpacked(page: &str) -> String {
        const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for part in page.split("application/octet-stream").skip(1) {
            let data = part.split_once('>').unwrap().1.split_once('<').unwrap().0;
            let bits: Vec<u32> = data
                .chars()
                .filter_map(|digit| DIGITS.find(digit).map(|at| at as u32))
                .collect();
            let mut bytes = Vec::new();
            for four in bits.chunks(4) {
                let sum = (0..4).fold(0, |sum, n| sum << 6 | four.get(n).copied().unwrap_or(0));
                bytes.extend(&sum.to_be_bytes()[1..four.len()]);
            }
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(bytes.as_slice())
                .read_to_end(&mut plain)
                .unwrap();
            text.push_str(&String::from_utf8_lossy(&plain));
        }
        text
    }

    #[test]
    fn names_of_the_recording_stay_text_and_folders_stay_at_home() {
        let mut stacks = StackTable::new();
        let blocks = blocks(&mut stacks, 300);
        let subject = subject(&blocks, &stacks, 1500);
        let (page, _) = written(subject, &Options::default()).unwrap();
        assert_eq!(page.matches("<script").count(), 3);
        assert_eq!(page.matches("</script").count(), 3);
        assert!(!page.contains("<img"));
        assert!(!page.contains("http://") && !page.contains("https://"));
        let data = unpacked(&page);
        assert!(data.contains("llm/model.py") && data.contains(HOSTILE));
        assert!(
            !data.contains("alice") && !data.contains("secret"),
            "{data}"
        );
        let options = Options {
            full_paths: true,
            ..Options::default()
        };
        let (page, _) = written(subject, &options).unwrap();
        assert!(unpacked(&page).contains("/home/alice/secret/llm/model.py"));
    }

    #[test]
    fn the_data_stays_within_what_is_allowed() {
        let mut stacks = StackTable::new();
        let blocks = blocks(&mut stacks, 8_000);
        let subject = subject(&blocks, &stacks, 9_000);
        let most = Picture::draw(subject)
            .moments()
            .map(|(_, levels)| levels.allocated)
            .max();
        for max_data in [50_000, 200_000, 10 << 20] {
            let options = Options {
                max_data,
                ..Options::default()
            };
            let (page, written) = written(subject, &options).unwrap();
            assert!(written.data <= max_data, "{written:?}");
            assert_eq!(written.blocks + written.blocks_summed_up, 8_000);
            // The peak is in the page to the byte, however coarse it is.
            let peak = format!("\"allocated\":{}", most.unwrap());
            assert!(unpacked(&page).contains(&peak), "{max_data}");
        }
        let options = Options {
            max_data: 500,
            ..Options::default()
        };
        assert!(matches!(
            written(subject, &options),
            Err(WriteError::TooSmall { needed }) if needed > 500
        ));
    }

    #[test]
    fn a_packing_is_drawn_as_far_as_its_blocks_are_and_the_rest_is_counted() {
        let mut stacks = StackTable::new();
        let blocks = blocks(&mut stacks, 8_000);
        let place = |number: u32| Place {
            block: Some(number),
            from: number,
            until: number + 10,
            address: u64::from(number % 10) << 9,
            bytes: 512,
        };
        let mut packing = Packing {
            arenas: vec![tonnage_analysis::plan::Arena {
                pool: None,
                base: 0,
                peak: 5120,
                lower_bound: 5120,
                proved: true,
                buffers: 8_000,
                streams: 1,
            }],
            places: (0..8_000).map(place).collect(),
        };
        for max_data in [60_000, 10 << 20] {
            let subject = Subject {
                packing: Some(&packing),
                ..subject(&blocks, &stacks, 9_000)
            };
            let options = Options {
                max_data,
                ..Options::default()
            };
            let (page, written) = written(subject, &options).unwrap();
            let rest = format!("\"plan_rest_blocks\":{},", written.blocks_summed_up);
            assert!(unpacked(&page).contains(&rest), "{written:?}");
        }
        // Places of blocks that do not exist, twice in one place, beyond everything.
        for (number, odd) in packing.places.iter_mut().enumerate() {
            odd.block = [None, Some(7), Some(u32::MAX)][number % 3];
            odd.address = u64::MAX >> (number % 64);
            odd.bytes = u64::MAX >> (number % 61);
            odd.until = u32::MAX - odd.from;
        }
        let subject = Subject {
            packing: Some(&packing),
            ..subject(&blocks, &stacks, 9_000)
        };
        let (page, _) = written(subject, &Options::default()).unwrap();
        assert!(unpacked(&page).contains("\"plan_rest_blocks\":7999,"));
    }

    #[test]
    fn nothing_and_nonsense_still_make_a_page() {
        let stacks = StackTable::new();
        written(subject(&[], &stacks, 0), &Options::default()).unwrap();
        let mut other = StackTable::new();
        let mut blocks = blocks(&mut other, 50);
        blocks[3].bytes = u64::MAX;
        blocks[4].address = u64::MAX;
        blocks[5].born = u32::MAX;
        blocks[6].died = 0;
        let phases = [
            PhaseSpan {
                phase: Phase::Step,
                from: 9,
                to: 3,
                step: u32::MAX,
            },
            PhaseSpan {
                phase: Phase::Forward,
                from: 0,
                to: u32::MAX,
                step: 0,
            },
        ];
        // Ids of another table, and fewer rows than the blocks say.
        let subject = Subject {
            phases: &phases,
            ..subject(&blocks, &stacks, 20)
        };
        written(subject, &Options::default()).unwrap();
    }
}
