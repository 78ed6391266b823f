// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording as a Chrome trace, the JSON that ui.perfetto.dev and chrome://tracing read.
//!
//! Each device of each process is shown as a process of the viewer: counters of the bytes allocated, reserved, used of
//! the device by this process and by all, one slice for each large block from its request to its free, the user's marks, and an instant for each
//! out-of-memory. Slices lie in lanes (threads of the viewer) that this module assigns, because slices of a viewer's
//! thread must not overlap and asynchronous slices are drawn one track per name.
//!
//! The output is written as the recording goes by. Times are microseconds after the first event; where threads raced
//! and a time steps back, it is held.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;
use tonnage_recording::account::{self, BlockState, Change, Rounding};
use tonnage_recording::{
    Account, DeviceAccount, Event, Frame, Kind, Meta, Reader, StackId, StackTable, TextId, meta,
};

use crate::{ExportError, Exported, counted};

/// Blocks below this are only in the counters, unless the caller sets another limit.
pub const DEFAULT_MIN_BLOCK: u64 = 16 << 20;

/// Processes and devices an output has room for.
const MAX_TRACKS: usize = 4096;
/// Slices side by side; a picture with more lanes cannot be read.
const MAX_LANES: u32 = 512;
/// Frames of a block's stack that are written with it.
const MAX_FRAMES: usize = 24;

const EVENTS_LANE: u32 = 1;
const MARKS_LANE: u32 = 1000;
const BLOCKS_LANE: u32 = 10_000;

/// Bytes that were there before the first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// In blocks.
    pub allocated: u64,
    /// In segments.
    pub reserved: u64,
}

/// The options of an export.
#[derive(Clone, Debug)]
pub struct PerfettoOptions {
    /// The smallest block that gets a slice.
    pub min_block: u64,
    /// Bytes of each process on each device before the first event; none if missing.
    pub start: BTreeMap<(u32, i32), Level>,
}

impl Default for PerfettoOptions {
    fn default() -> Self {
        Self {
            min_block: DEFAULT_MIN_BLOCK,
            start: BTreeMap::new(),
        }
    }
}

/// Writes the recording that `open` opens as a Chrome trace.
pub fn perfetto<R: Read, W: Write>(
    open: impl Fn() -> io::Result<R>,
    destination: W,
    options: &PerfettoOptions,
) -> Result<(W, Exported), ExportError> {
    let open = || Ok::<_, ExportError>(Reader::new(open().map_err(ExportError::Open)?)?);
    let survey = Survey::read(open()?)?;
    let mut output = Output::new(destination, &survey)?;
    let mut tracks: BTreeMap<(u32, i32), Track> = BTreeMap::new();
    for (key, pid) in survey.tracks.iter().zip(1..) {
        let track = Track::new(pid, *key, options);
        track.introduce(&mut output, *key, &survey)?;
        tracks.insert(*key, track);
    }
    let (mut exported, mut row, mut crowded) = (Exported::default(), 0, 0);
    let mut reader = open()?;
    let mut account: Account<Option<Slice>> = Account::new(Rounding::PyTorch);
    while let Some(event) = reader.next().transpose()? {
        row += 1;
        let change = account.apply(&event, (row - 1_i64).cast_unsigned(), &survey.stacks);
        if !is_shown(event.kind) {
            continue;
        }
        let (process, device) = (event.process, event.device);
        let Some(track) = tracks.get_mut(&(process, device)) else {
            continue;
        };
        let time = event.time.map_or(row, |time| survey.after(time));
        let held = account.get_mut(process, device);
        track.apply(&event, &change, held, time, &survey, &mut output)?;
        exported.events += 1;
    }
    for (&(process, device), track) in &mut tracks {
        let held = account.get(process, device);
        track.finish(held, &survey, &mut output)?;
        crowded += track.crowded;
    }
    if !survey.has_times {
        exported
            .notes
            .push("the recording has no clock; one event is shown as one microsecond".to_owned());
    }
    counted(
        &mut exported.notes,
        crowded,
        "block does not fit in the track limit and appears only in the counters; increase --min-block",
        "blocks do not fit in the track limit and appear only in the counters; increase --min-block",
    );
    if reader
        .ending()
        .is_none_or(tonnage_recording::Ending::is_truncated)
    {
        exported
            .notes
            .push("the recording is truncated; the end is where it stops".to_owned());
    }
    Ok((output.finish()?, exported))
}

/// Kinds that move a counter or make a slice or an instant.
fn is_shown(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Mark
            | Kind::MarkStart
            | Kind::MarkEnd
            | Kind::Alloc
            | Kind::FreeRequested
            | Kind::SegmentAlloc
            | Kind::SegmentFree
            | Kind::SegmentMap
            | Kind::SegmentUnmap
            | Kind::Oom
            | Kind::DriverMalloc
            | Kind::DriverFree
            | Kind::DriverCreate
            | Kind::DriverRelease
            | Kind::DriverContext
            | Kind::DriverOom
            | Kind::PoolMalloc
            | Kind::PoolFree
            | Kind::PoolTrim
            | Kind::ManagedAlloc
            | Kind::ManagedFree
    )
}

/// The result of the first reading.
struct Survey {
    tracks: BTreeSet<(u32, i32)>,
    first: i64,
    has_times: bool,
    scale: i64,
    producer: String,
    stacks: StackTable,
    meta: Vec<Meta>,
}

impl Survey {
    fn read<R: Read>(mut reader: Reader<R>) -> Result<Self, ExportError> {
        let (mut tracks, mut first) = (BTreeSet::new(), None);
        while let Some(event) = reader.next().transpose()? {
            if !is_shown(event.kind) {
                continue;
            }
            tracks.insert((event.process, event.device));
            if tracks.len() > MAX_TRACKS {
                return Err(ExportError::TooManyTracks { limit: MAX_TRACKS });
            }
            if let Some(time) = event.time {
                first = Some(first.map_or(time, |first: i64| first.min(time)));
            }
        }
        let producer = reader.producer().to_owned();
        let (stacks, meta) = reader.into_parts();
        // A clock that counts something else than time is shown as if it counted microseconds.
        let opaque =
            meta::find(&meta, 0, "clock").is_some_and(|clock| !clock.starts_with("nanoseconds"));
        Ok(Self {
            tracks,
            first: first.unwrap_or(0),
            has_times: first.is_some(),
            scale: if opaque { 1000 } else { 1 },
            producer,
            stacks,
            meta,
        })
    }

    /// Nanoseconds after the first event.
    fn after(&self, time: i64) -> i64 {
        time.saturating_sub(self.first).saturating_mul(self.scale)
    }

    fn text(&self, id: Option<TextId>) -> &str {
        id.map_or("", |id| self.stacks.text(id))
    }
}

/// One object of the output.
#[derive(Serialize)]
struct Row<'a, A> {
    ph: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    args: A,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: u32,
}

#[derive(Serialize)]
struct Bytes {
    bytes: u64,
}

#[derive(Serialize)]
struct Refusal {
    requested: u64,
    free: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    stack: String,
}

#[derive(Serialize)]
struct BlockArguments {
    bytes: u64,
    requested: u64,
    address: String,
    stream: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    stack: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    alive_at_the_end: Option<bool>,
}

struct Output<W> {
    destination: W,
    rows: u64,
}

impl<W: Write> Output<W> {
    fn new(mut destination: W, survey: &Survey) -> Result<Self, ExportError> {
        let mut facts = BTreeMap::new();
        facts.insert("recorded by", survey.producer.as_str());
        let names = [
            meta::COMMAND,
            meta::TORCH_VERSION,
            meta::GPU_NAME,
            meta::GPU_CAPACITY,
            meta::ALLOCATOR_CONF,
        ];
        for name in names {
            if let Some(value) = meta::find(&survey.meta, 0, name) {
                facts.insert(name, value);
            }
        }
        let facts =
            serde_json::to_string(&facts).map_err(|error| ExportError::Write(error.into()))?;
        let head = format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{facts},\"traceEvents\":[");
        destination
            .write_all(head.as_bytes())
            .map_err(ExportError::Write)?;
        Ok(Self {
            destination,
            rows: 0,
        })
    }

    fn row<A: Serialize>(&mut self, row: &Row<'_, A>) -> Result<(), ExportError> {
        let separator: &[u8] = if self.rows == 0 { b"\n" } else { b",\n" };
        self.rows += 1;
        self.destination
            .write_all(separator)
            .map_err(ExportError::Write)?;
        serde_json::to_writer(&mut self.destination, row)
            .map_err(|error| ExportError::Write(error.into()))
    }

    fn about<A: Serialize>(
        &mut self,
        pid: u32,
        tid: Option<u32>,
        name: &str,
        args: A,
    ) -> Result<(), ExportError> {
        self.row(&Row {
            ph: "M",
            pid,
            tid,
            ts: None,
            dur: None,
            name,
            s: None,
            args,
        })
    }

    fn finish(mut self) -> Result<W, ExportError> {
        self.destination
            .write_all(b"\n]}\n")
            .map_err(ExportError::Write)?;
        self.destination.flush().map_err(ExportError::Write)?;
        Ok(self.destination)
    }
}

/// Nanoseconds as the microseconds of the format.
fn microseconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// A value over time, written when it has its last value of a moment.
struct Counter {
    name: &'static str,
    value: u64,
    pending: Option<i64>,
    written: Option<u64>,
}

impl Counter {
    const fn new(name: &'static str, value: u64) -> Self {
        Self {
            name,
            value,
            pending: None,
            written: None,
        }
    }

    fn set<W: Write>(
        &mut self,
        value: u64,
        time: i64,
        pid: u32,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        if self.pending.is_some_and(|pending| pending != time) {
            self.write(pid, output)?;
        }
        self.value = value;
        self.pending = Some(time);
        Ok(())
    }

    fn write<W: Write>(&mut self, pid: u32, output: &mut Output<W>) -> Result<(), ExportError> {
        let Some(time) = self.pending.take() else {
            return Ok(());
        };
        if self.written.replace(self.value) == Some(self.value) {
            return Ok(());
        }
        output.row(&Row {
            ph: "C",
            pid,
            tid: None,
            ts: Some(microseconds(time)),
            dur: None,
            name: self.name,
            s: None,
            args: Bytes { bytes: self.value },
        })
    }
}

/// Numbers of lanes, the lowest free one first, so that few are used.
#[derive(Default)]
struct Lanes {
    free: BTreeSet<u32>,
    used: u32,
}

impl Lanes {
    /// A lane, and whether it is new.
    fn take(&mut self) -> Option<(u32, bool)> {
        if let Some(lane) = self.free.pop_first() {
            return Some((lane, false));
        }
        let lane = self.used;
        (lane < MAX_LANES).then(|| {
            self.used += 1;
            (lane, true)
        })
    }
}

type Block = account::Block<Option<Slice>>;

/// The slice of a large block.
#[derive(Clone, Copy)]
struct Slice {
    lane: u32,
    since: i64,
}

struct Range {
    name: Option<TextId>,
    lane: Option<u32>,
    since: i64,
}

/// One device of one process.
struct Track {
    pid: u32,
    min_block: u64,
    now: i64,
    allocated: Counter,
    reserved: Counter,
    used: Counter,
    in_use: Counter,
    managed: Counter,
    start: Level,
    block_lanes: Lanes,
    ranges: Vec<Range>,
    range_lanes: Lanes,
    crowded: u64,
}

impl Track {
    fn new(pid: u32, key: (u32, i32), options: &PerfettoOptions) -> Self {
        let start = options.start.get(&key).copied().unwrap_or_default();
        Self {
            pid,
            min_block: options.min_block,
            now: 0,
            allocated: Counter::new("allocated", start.allocated),
            reserved: Counter::new("reserved", start.reserved),
            used: Counter::new("used", 0),
            in_use: Counter::new("used by all processes", 0),
            managed: Counter::new("managed", 0),
            start,
            block_lanes: Lanes::default(),
            ranges: Vec::new(),
            range_lanes: Lanes::default(),
            crowded: 0,
        }
    }

    fn introduce<W: Write>(
        &self,
        output: &mut Output<W>,
        (process, device): (u32, i32),
        survey: &Survey,
    ) -> Result<(), ExportError> {
        let rank = meta::find(&survey.meta, process, meta::PROCESS_RANK);
        let who = rank.map_or_else(
            || format!("process {process}"),
            |rank| format!("rank {rank}"),
        );
        let name = match device {
            -1 => format!("{who}, pinned host memory"),
            device => format!("{who}, GPU {device}"),
        };
        output.about(self.pid, None, "process_name", Name { name: &name })?;
        output.about(
            self.pid,
            None,
            "process_sort_index",
            SortIndex {
                sort_index: self.pid,
            },
        )
    }

    fn apply<W: Write>(
        &mut self,
        event: &Event,
        change: &Change<Option<Slice>>,
        held: Option<&mut DeviceAccount<Option<Slice>>>,
        time: i64,
        survey: &Survey,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        self.now = self.now.max(time);
        if let Some(held) = held {
            match change {
                Change::Allocated { block, replaced } => {
                    let slice = self.open_slice(block, output)?;
                    held.tag(block.address, slice);
                    if let Some(lost) = replaced {
                        self.close_slice(lost, false, survey, output)?;
                    }
                }
                Change::Freed { block, .. } | Change::Completed { block: Some(block) } => {
                    self.close_slice(block, false, survey, output)?;
                }
                _ => {}
            }
            self.count(change, held, output)?;
        }
        match event.kind {
            Kind::Oom => self.refusal("out of memory", event, survey, output)?,
            Kind::DriverOom => self.refusal("refused by the driver", event, survey, output)?,
            Kind::Mark => self.instant(
                survey.text(event.name),
                "p",
                BTreeMap::<&str, &str>::new(),
                output,
            )?,
            Kind::MarkStart => {
                let lane = self.range_lanes.take();
                if let Some((lane, true)) = lane {
                    self.name_lane(MARKS_LANE + lane, "marks", output)?;
                }
                self.ranges.push(Range {
                    name: event.name,
                    lane: lane.map(|(lane, _)| lane),
                    since: self.now,
                });
            }
            Kind::MarkEnd => {
                let same = |range: &Range| range.name == event.name;
                if let Some(index) = self.ranges.iter().rposition(same) {
                    let range = self.ranges.remove(index);
                    self.close_range(&range, survey, output)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves the counters that a row can have moved.
    fn count<W: Write>(
        &mut self,
        change: &Change<Option<Slice>>,
        held: &DeviceAccount<Option<Slice>>,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        let (now, pid) = (self.now, self.pid);
        let above = |start: u64, change: i128| {
            u64::try_from((i128::from(start) + change).max(0)).unwrap_or(u64::MAX)
        };
        match change {
            Change::Allocated { .. } | Change::Freed { .. } | Change::Completed { .. } => {
                let value = above(self.start.allocated, held.allocated_change());
                self.allocated.set(value, now, pid, output)
            }
            Change::Obtained { .. } | Change::GivenBack { .. } => {
                let value = above(self.start.reserved, held.reserved_change());
                self.reserved.set(value, now, pid, output)
            }
            Change::Charged | Change::Refused => {
                self.used.set(held.charged(), now, pid, output)?;
                if held.managed() > 0 || self.managed.value > 0 {
                    self.managed.set(held.managed(), now, pid, output)?;
                }
                // A process that is alone needs no second counter of the same.
                match held.in_use() {
                    Some(all) if all > held.charged() || self.in_use.value > 0 => {
                        self.in_use.set(all, now, pid, output)
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn open_slice<W: Write>(
        &mut self,
        block: &Block,
        output: &mut Output<W>,
    ) -> Result<Option<Slice>, ExportError> {
        if block.bytes < self.min_block {
            return Ok(None);
        }
        let Some((lane, is_new)) = self.block_lanes.take() else {
            self.crowded += 1;
            return Ok(None);
        };
        if is_new {
            self.name_lane(BLOCKS_LANE + lane, "blocks", output)?;
        }
        Ok(Some(Slice {
            lane,
            since: self.now,
        }))
    }

    /// Writes the slice of a block that the program had until now.
    fn close_slice<W: Write>(
        &mut self,
        block: &Block,
        at_the_end: bool,
        survey: &Survey,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        let Some(slice) = block.tag.filter(|_| block.state == BlockState::Allocated) else {
            return Ok(());
        };
        self.block_lanes.free.insert(slice.lane);
        let place = block
            .stack
            .and_then(|stack| telling_frame(&survey.stacks, stack));
        let name = place.map_or_else(
            || tonnage_text::bytes(block.bytes),
            |frame| {
                format!(
                    "{} {}",
                    tonnage_text::bytes(block.bytes),
                    place_text(&frame)
                )
            },
        );
        output.row(&Row {
            ph: "X",
            pid: self.pid,
            tid: Some(BLOCKS_LANE + slice.lane),
            ts: Some(microseconds(slice.since)),
            dur: Some(microseconds(self.now - slice.since)),
            name: &name,
            s: None,
            args: BlockArguments {
                bytes: block.bytes,
                requested: block.requested,
                address: format!("{:#x}", block.address),
                stream: block.stream,
                pool: block
                    .pool
                    .map(|pool| format!("({}, {})", pool.first, pool.second)),
                stack: stack_text(&survey.stacks, block.stack),
                alive_at_the_end: at_the_end.then_some(true),
            },
        })
    }

    fn close_range<W: Write>(
        &mut self,
        range: &Range,
        survey: &Survey,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        let Some(lane) = range.lane else {
            return Ok(());
        };
        self.range_lanes.free.insert(lane);
        output.row(&Row {
            ph: "X",
            pid: self.pid,
            tid: Some(MARKS_LANE + lane),
            ts: Some(microseconds(range.since)),
            dur: Some(microseconds(self.now - range.since)),
            name: survey.text(range.name),
            s: None,
            args: BTreeMap::<&str, &str>::new(),
        })
    }

    fn refusal<W: Write>(
        &mut self,
        what: &str,
        event: &Event,
        survey: &Survey,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        let name = format!(
            "{what}: {} asked, {} free",
            tonnage_text::bytes(event.size),
            tonnage_text::bytes(event.free)
        );
        let refusal = Refusal {
            requested: event.size,
            free: event.free,
            stack: stack_text(&survey.stacks, event.stack),
        };
        self.instant(&name, "p", refusal, output)
    }

    fn instant<W: Write, A: Serialize>(
        &mut self,
        name: &str,
        scope: &str,
        args: A,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        output.row(&Row {
            ph: "i",
            pid: self.pid,
            tid: Some(EVENTS_LANE),
            ts: Some(microseconds(self.now)),
            dur: None,
            name,
            s: Some(scope),
            args,
        })
    }

    fn name_lane<W: Write>(
        &self,
        lane: u32,
        name: &str,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        output.about(self.pid, Some(lane), "thread_name", Name { name })?;
        output.about(
            self.pid,
            Some(lane),
            "thread_sort_index",
            SortIndex { sort_index: lane },
        )
    }

    /// Closes what is open at the last event of the track.
    fn finish<W: Write>(
        &mut self,
        held: Option<&DeviceAccount<Option<Slice>>>,
        survey: &Survey,
        output: &mut Output<W>,
    ) -> Result<(), ExportError> {
        for block in held.into_iter().flat_map(DeviceAccount::blocks) {
            self.close_slice(block, true, survey, output)?;
        }
        for range in std::mem::take(&mut self.ranges) {
            self.close_range(&range, survey, output)?;
        }
        self.allocated.write(self.pid, output)?;
        self.reserved.write(self.pid, output)?;
        self.used.write(self.pid, output)?;
        self.in_use.write(self.pid, output)?;
        self.managed.write(self.pid, output)
    }
}

/// The innermost frame of the user's own code, or the innermost of all.
fn telling_frame(stacks: &StackTable, stack: StackId) -> Option<Frame<'_>> {
    let library = |file: &str| {
        file.is_empty()
            || file.starts_with('<')
            || ["site-packages/", "dist-packages/", "/lib/python", "torch/"]
                .iter()
                .any(|part| file.contains(part))
            || Path::new(file)
                .extension()
                .is_none_or(|extension| extension != "py")
    };
    let own = stacks.frames(stack).find(|frame| !library(frame.file));
    own.or_else(|| stacks.top(stack))
}

fn place_text(frame: &Frame<'_>) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or(frame.file);
    format!("{} {file}:{}", frame.function, frame.line)
}

fn stack_text(stacks: &StackTable, stack: Option<StackId>) -> String {
    let Some(stack) = stack else {
        return String::new();
    };
    let mut lines = Vec::new();
    for frame in stacks.frames(stack).take(MAX_FRAMES) {
        lines.push(format!(
            "{} ({}:{})",
            frame.function, frame.file, frame.line
        ));
    }
    lines.join("\n")
}
