// SPDX-License-Identifier: MIT OR Apache-2.0
//! PyTorch memory snapshots: what `torch.cuda.memory._dump_snapshot` writes, of PyTorch 2.1 to 2.15.
//!
//! A snapshot is the state of the allocator at its end (segments and their blocks), the last events of each
//! device, the allocator's settings and the user's annotations. [`Snapshot::parse`] gives all of it as plain
//! structs; [`import`] streams the same into a trace file with half the memory. The keys and their history are
//! those of the allocator specification, section 13: missing keys are defaults, unknown keys and actions never
//! fail.
//!
//! Nothing is reconstructed here: a recording whose ring overflowed starts in the middle, and what existed
//! before follows from the final state and the events, which is the replayer's business.

use std::io::{Read, Write};

use tonnage_recording::{Event, Kind, Pool, StackId, StackTable, Writer, facts, limits, meta};

pub use crate::shape::{Block, BlockState};

use crate::shape::{self, Entry, Word, Words};
use crate::value::{Value, Values, View};
use crate::{Encoding, ImportError, json, pickle};

/// A segment that existed when the snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Index of the GPU; -1 is pinned host memory.
    pub device: i32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Bytes in allocated blocks.
    pub allocated_size: u64,
    /// Bytes in allocated and pending blocks.
    pub active_size: u64,
    /// Bytes the program requested in its active blocks.
    pub requested_size: u64,
    /// Its stream.
    pub stream: u64,
    /// Whether it is of the large pool.
    pub is_large: bool,
    /// Whether it is (a mapped run of) an expandable segment.
    pub is_expandable: bool,
    /// Its pool, if the file names it.
    pub pool: Option<Pool>,
    /// Where it was obtained.
    pub stack: Option<StackId>,
    /// Its blocks, by address.
    pub blocks: Vec<Block>,
}

impl Segment {
    /// The equivalent rows of a trace: the segment, then its blocks.
    pub fn events(&self, when: When, stacks: &mut StackTable) -> Vec<Event> {
        let (segment_kind, block_kind) = match when {
            When::Initial => (Kind::InitialSegment, Kind::InitialBlock),
            When::Final => (Kind::FinalSegment, Kind::FinalBlock),
        };
        let common = Event {
            device: self.device,
            stream: self.stream,
            pool: self.pool,
            ..Event::new(segment_kind)
        };
        let mut rows = vec![Event {
            address: self.address,
            size: self.total_size,
            requested: self.requested_size,
            stack: self.stack,
            name: Some(stacks.intern(if self.is_large { "large" } else { "small" })),
            text: self.is_expandable.then(|| stacks.intern("expandable")),
            ..common
        }];
        for block in &self.blocks {
            rows.push(Event {
                kind: block_kind,
                address: block.address,
                size: block.size,
                requested: block.requested_size,
                stack: block.stack,
                name: Some(stacks.intern(block.state.name())),
                ..common
            });
        }
        rows
    }
}

/// Which end of a recording a state belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before its first event.
    Initial,
    /// After its last event.
    Final,
}

/// A value of the allocator's settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Setting {
    /// On or off.
    Flag(bool),
    /// A number.
    Number(i64),
    /// A fraction.
    Fraction(f64),
    /// A text.
    Text(String),
}

/// The allocator's settings, as the file lists them.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Names and values in the order of the file; nested ones are joined with a dot
    /// (`roundup_power2_divisions.1`).
    pub entries: Vec<(String, Setting)>,
}

impl Settings {
    /// The value of a setting.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.entries
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    /// `PYTORCH_CUDA_ALLOC_CONF` as PyTorch parsed it last.
    pub fn conf(&self) -> Option<&str> {
        match self.get("PYTORCH_CUDA_ALLOC_CONF") {
            Some(Setting::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The version of PyTorch, which only `tonnage.torch.snapshot()` records.
    pub fn torch_version(&self) -> Option<&str> {
        match self.get("torch_version") {
            Some(Setting::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// One flat JSON object.
    pub fn to_json(&self) -> String {
        let mut text = String::from("{");
        for (index, (name, value)) in self.entries.iter().enumerate() {
            if index > 0 {
                text.push_str(", ");
            }
            json::quote(&mut text, name);
            text.push_str(": ");
            match value {
                Setting::Flag(flag) => text.push_str(if *flag { "true" } else { "false" }),
                Setting::Number(number) => text.push_str(&number.to_string()),
                Setting::Fraction(number) if number.is_finite() => {
                    text.extend(format!("{number:?}").chars());
                }
                Setting::Fraction(_) => text.push_str("null"),
                Setting::Text(value) => json::quote(&mut text, value),
            }
        }
        text.push('}');
        text
    }
}

/// The versions of PyTorch 2 whose snapshots look like this one, as minor numbers, both included.
///
/// The file does not contain its version; its keys narrow it down. `to` is `None` if a later version than this crate
/// knows may have written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versions {
    /// Earliest minor version.
    pub from: u32,
    /// Latest minor version.
    pub to: Option<u32>,
}

/// A snapshot in memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Events of each device, in order; the index in the outer list is the device.
    pub traces: Vec<Vec<Event>>,
    /// Events of the pinned host memory allocator (device -1).
    pub host_trace: Vec<Event>,
    /// Segments at the end, by address within each device.
    pub segments: Vec<Segment>,
    /// Segments of pinned host memory (device -1).
    pub host_segments: Vec<Segment>,
    /// The allocator's settings, if the file has them.
    pub settings: Option<Settings>,
    /// `record_function` scopes: [`Kind::MarkStart`] and [`Kind::MarkEnd`].
    pub annotations: Vec<Event>,
    /// Which versions of PyTorch may have written it.
    pub versions: Versions,
    /// Information that the file lacks or this crate did not keep, in words.
    pub notes: Vec<String>,
}

impl Snapshot {
    /// Reads a snapshot, or a part of one that has only `device_traces`, from a pickle or its JSON form.
    /// Stacks and texts go to `stacks`, which may already hold those of other files.
    pub fn parse(bytes: &[u8], stacks: &mut StackTable) -> Result<Self, ImportError> {
        Self::read(bytes, stacks)
    }

    /// The same from a reader, without holding the file in memory.
    pub fn read(source: impl Read, stacks: &mut StackTable) -> Result<Self, ImportError> {
        let parsed = Parsed::read(source, stacks)?;
        let list = |trace: &[u32], device| parsed.events(trace, device).collect();
        Ok(Self {
            traces: parsed
                .traces
                .iter()
                .zip(0..)
                .map(|(trace, device)| list(trace, device))
                .collect(),
            host_trace: list(&parsed.host_trace, HOST),
            segments: parsed.segments,
            host_segments: parsed.host_segments,
            settings: parsed.settings,
            annotations: parsed.annotations,
            versions: parsed.versions,
            notes: parsed.notes,
        })
    }
}

/// Streams a snapshot into a trace: facts, the final segments, then the events of each device with the
/// annotations at their place. Returns the number of events of all devices.
pub fn import<W: Write>(
    source: impl Read,
    process: u32,
    writer: &mut Writer<W>,
) -> Result<u64, ImportError> {
    let mut parsed = Parsed::read(source, writer.stacks_mut())?;
    parsed.write_facts(process, writer)?;
    parsed.write_segments(process, writer)?;
    parsed.write_events(process, writer)
}

/// Streams a history that was taken piece by piece into one trace: each piece is a snapshot with the events since the
/// one before, and `last` has the state at the end. Only one piece is in memory at a time, and the last. The only facts
/// taken from it are the allocator's settings: the caller knows the rest.
pub fn import_pieces<W: Write, R: Read>(
    pieces: impl IntoIterator<Item = std::io::Result<R>>,
    last: R,
    process: u32,
    writer: &mut Writer<W>,
) -> Result<u64, ImportError> {
    let mut last = Parsed::read(last, writer.stacks_mut())?;
    last.write_settings(process, writer)?;
    last.write_segments(process, writer)?;
    let mut count = 0;
    for piece in pieces {
        let piece = piece.map_err(|source| ImportError::Io { offset: 0, source })?;
        count += Parsed::read(piece, writer.stacks_mut())?.write_events(process, writer)?;
    }
    Ok(count + last.write_events(process, writer)?)
}

/// The device of pinned host memory.
const HOST: i32 = -1;

/// A snapshot whose events are still compact records.
struct Parsed {
    words: Words,
    entries: Vec<Entry>,
    /// Indices into `entries`.
    traces: Vec<Vec<u32>>,
    host_trace: Vec<u32>,
    segments: Vec<Segment>,
    host_segments: Vec<Segment>,
    settings: Option<Settings>,
    annotations: Vec<Event>,
    versions: Versions,
    notes: Vec<String>,
}

impl Parsed {
    fn read(source: impl Read, stacks: &mut StackTable) -> Result<Self, ImportError> {
        let (encoding, source) = crate::sniff(source)?;
        let mut values = Values::new(stacks);
        let root = match encoding {
            Some(Encoding::Pickle) => pickle::read(source, &mut values)?,
            Some(Encoding::Json) => json::read(source, &mut values)?,
            _ => return Err(ImportError::UnknownFormat),
        };
        values.check_size()?;
        Self::convert(values, root)
    }

    fn convert(mut values: Values<'_>, root: Value) -> Result<Self, ImportError> {
        let top = Top::from_root(root, &values)?;
        let mut traces = Vec::new();
        if let Some(list) = top.device_traces {
            for trace in values.drain(list, "device_traces")? {
                traces.push(trace_of(&mut values, trace)?);
            }
        }
        let host_trace = top
            .host_traces
            .map_or(Ok(Vec::new()), |list| trace_of(&mut values, list))?;
        let segments = top
            .segments
            .map_or(Ok(Vec::new()), |list| segments_of(&mut values, list, None))?;
        let host_segments = top.host_segments.map_or(Ok(Vec::new()), |list| {
            segments_of(&mut values, list, Some(HOST))
        })?;
        let settings = top
            .settings
            .map(|dict| settings_of(&values, dict))
            .transpose()?;
        let annotations = top
            .annotations
            .map_or(Ok(Vec::new()), |list| annotations_of(&mut values, list))?;
        let versions = versions_of(&values, &top, settings.as_ref());
        let notes = notes_of(&values, &top);
        Ok(Self {
            words: values.words,
            entries: values.entries,
            traces,
            host_trace,
            segments,
            host_segments,
            settings,
            annotations,
            versions,
            notes,
        })
    }

    fn events<'a>(&'a self, trace: &'a [u32], device: i32) -> impl Iterator<Item = Event> + 'a {
        trace.iter().filter_map(move |index| {
            self.entries
                .get(*index as usize)
                .map(|entry| entry.event(device, &self.words))
        })
    }

    fn write_segments<W: Write>(
        &mut self,
        process: u32,
        writer: &mut Writer<W>,
    ) -> Result<(), ImportError> {
        for segment in std::mem::take(&mut self.segments)
            .iter()
            .chain(&std::mem::take(&mut self.host_segments))
        {
            for row in segment.events(When::Final, writer.stacks_mut()) {
                writer.event(&Event { process, ..row })?;
            }
        }
        Ok(())
    }

    /// The events of each device with the annotations at their place; how many events there are.
    fn write_events<W: Write>(
        &mut self,
        process: u32,
        writer: &mut Writer<W>,
    ) -> Result<u64, ImportError> {
        let mut marks = std::mem::take(&mut self.annotations);
        // Stable: scopes that start at the same moment stay nested as they were.
        marks.sort_by_key(|mark| (mark.device, mark.time));
        let mut marks = marks.into_iter().peekable();
        let mut count = 0;
        for (trace, device) in self.traces.iter().zip(0..) {
            for event in self.events(trace, device) {
                let due = |mark: &Event| {
                    mark.device < device || (mark.device == device && mark.time <= event.time)
                };
                while let Some(mark) = marks.next_if(due) {
                    writer.event(&Event { process, ..mark })?;
                }
                writer.event(&Event { process, ..event })?;
                count += 1;
            }
        }
        for mark in marks {
            writer.event(&Event { process, ..mark })?;
        }
        for event in self.events(&self.host_trace, HOST) {
            writer.event(&Event { process, ..event })?;
            count += 1;
        }
        Ok(count)
    }

    fn write_facts<W: Write>(
        &self,
        process: u32,
        writer: &mut Writer<W>,
    ) -> Result<(), ImportError> {
        let Versions { from, to } = self.versions;
        let versions = to.map_or_else(
            || format!(">=2.{from}"),
            |to| format!(">=2.{from},<=2.{to}"),
        );
        let told = self.settings.as_ref().and_then(Settings::torch_version);
        writer.meta(process, meta::TORCH_VERSION, told.unwrap_or(&versions))?;
        self.write_settings(process, writer)?;
        for (index, note) in self.notes.iter().enumerate() {
            writer.meta(process, &format!("{}.{index}", meta::UNKNOWN), note)?;
        }
        Ok(())
    }

    fn write_settings<W: Write>(
        &self,
        process: u32,
        writer: &mut Writer<W>,
    ) -> Result<(), ImportError> {
        if let Some(settings) = &self.settings {
            if let Some(conf) = settings.conf() {
                writer.meta(process, meta::ALLOCATOR_CONF, conf)?;
            }
            // `tonnage.torch.snapshot()` names the allocator there, which PyTorch's own never does.
            if let Some(Setting::Text(name)) = settings.get("allocator") {
                writer.meta(process, facts::ALLOCATOR, name)?;
            }
            writer.meta(process, meta::ALLOCATOR_SETTINGS, &settings.to_json())?;
        }
        Ok(())
    }
}

/// The parts of the outermost dictionary.
#[derive(Default)]
struct Top {
    segments: Option<Value>,
    device_traces: Option<Value>,
    settings: Option<Value>,
    annotations: Option<Value>,
    host_segments: Option<Value>,
    host_traces: Option<Value>,
    other_keys: Vec<String>,
}

impl Top {
    fn from_root(root: Value, values: &Values<'_>) -> Result<Self, ImportError> {
        // `torch.cuda.memory_snapshot()` is the bare list of segments.
        if matches!(values.view(root), View::List(_)) {
            return Ok(Self {
                segments: Some(root),
                ..Self::default()
            });
        }
        let mut top = Self::default();
        let refuse = |reason: &str| ImportError::NotASnapshot {
            reason: reason.to_owned(),
        };
        for (key, value) in values
            .pairs(root)
            .ok_or_else(|| refuse("its outermost value is not a dictionary"))?
        {
            match values.words.word_of(*key) {
                Word::Segments => top.segments = Some(*value),
                Word::DeviceTraces => top.device_traces = Some(*value),
                Word::AllocatorSettings => top.settings = Some(*value),
                Word::ExternalAnnotations => top.annotations = Some(*value),
                Word::HostSegments => top.host_segments = Some(*value),
                Word::HostTraces => top.host_traces = Some(*value),
                _ if top.other_keys.len() < 32 => top.other_keys.push(shown(values, *key)),
                _ => {}
            }
        }
        if top.segments.is_none() && top.device_traces.is_none() {
            return Err(refuse("it has neither segments nor device_traces"));
        }
        Ok(top)
    }
}

fn shown(values: &Values<'_>, value: Value) -> String {
    value
        .as_text()
        .map_or("?", |text| values.stacks.text(text))
        .chars()
        .take(60)
        .collect()
}

fn trace_of(values: &mut Values<'_>, list: Value) -> Result<Vec<u32>, ImportError> {
    let items = values.drain(list, "a trace")?;
    let index = |item| values.entry_index(item);
    items
        .into_iter()
        .map(|item| {
            index(item).ok_or_else(|| ImportError::NotASnapshot {
                reason: "an event has no action".to_owned(),
            })
        })
        .collect()
}

fn segments_of(
    values: &mut Values<'_>,
    list: Value,
    device: Option<i32>,
) -> Result<Vec<Segment>, ImportError> {
    let mut segments = Vec::new();
    for item in values.drain(list, "segments")? {
        let pairs = values.pairs(item).map(<[_]>::to_vec);
        let pairs = pairs.ok_or_else(|| ImportError::NotASnapshot {
            reason: "a segment is not a dictionary".to_owned(),
        })?;
        if !pairs
            .iter()
            .any(|(key, _)| values.words.word_of(*key) == Word::TotalSize)
        {
            return Err(ImportError::NotASnapshot {
                reason: "a segment has no total_size".to_owned(),
            });
        }
        let mut segment = Segment::default();
        for (key, value) in pairs {
            set_segment(&mut segment, key, value, values)?;
        }
        segment.device = device.unwrap_or(segment.device);
        place_blocks(&mut segment);
        segments.push(segment);
    }
    Ok(segments)
}

fn set_segment(
    segment: &mut Segment,
    key: Value,
    value: Value,
    values: &mut Values<'_>,
) -> Result<(), ImportError> {
    let view = values.view(value);
    match values.words.word_of(key) {
        Word::Device => segment.device = device_of(view)?,
        Word::Address => {
            segment.address = shape::address(value, values, "the address of a segment")?;
        }
        Word::TotalSize => {
            segment.total_size = shape::bytes(value, values, "total_size of a segment")?;
        }
        Word::AllocatedSize => {
            segment.allocated_size = shape::bytes(value, values, "allocated_size of a segment")?;
        }
        Word::ActiveSize => {
            segment.active_size = shape::bytes(value, values, "active_size of a segment")?;
        }
        Word::RequestedSize => {
            segment.requested_size = shape::bytes(value, values, "requested_size of a segment")?;
        }
        Word::Stream => segment.stream = shape::address(value, values, "the stream of a segment")?,
        Word::SegmentType => segment.is_large = values.words.word_of(value) == Word::Large,
        Word::SegmentPoolId => segment.pool = shape::pool(value, values)?,
        Word::IsExpandable => segment.is_expandable = view == View::Bool(true),
        Word::Frames => segment.stack = values.stack(value)?,
        Word::Blocks => {
            for item in values.drain(value, "the blocks of a segment")? {
                let block = values.block(item)?;
                let block = block.ok_or_else(|| ImportError::NotASnapshot {
                    reason: "a block is not a dictionary".to_owned(),
                })?;
                segment.blocks.push(block);
            }
        }
        _ => values.dropped.segment_keys += 1,
    }
    Ok(())
}

/// Blocks of old files have no address; they follow each other from the start of the segment.
fn place_blocks(segment: &mut Segment) {
    let mut next = segment.address;
    for block in &mut segment.blocks {
        if block.address == 0 {
            block.address = next;
        }
        next = block.address.wrapping_add(block.size);
    }
}

fn device_of(view: View) -> Result<i32, ImportError> {
    match view {
        View::Int(number) => i32::try_from(number).ok(),
        _ => None,
    }
    .ok_or_else(|| ImportError::Value {
        what: "a device".to_owned(),
        value: format!("{view:?}"),
    })
}

/// Settings are small; anything deeper or longer is cut off here rather than expanded.
const MAX_SETTINGS: usize = 1024;
const MAX_SETTING_DEPTH: usize = 3;

fn settings_of(values: &Values<'_>, dict: Value) -> Result<Settings, ImportError> {
    let mut settings = Settings::default();
    flatten(values, dict, "", 0, &mut settings)?;
    Ok(settings)
}

fn flatten(
    values: &Values<'_>,
    dict: Value,
    prefix: &str,
    depth: usize,
    into: &mut Settings,
) -> Result<(), ImportError> {
    for (key, value) in values.pairs(dict).unwrap_or_default() {
        if into.entries.len() >= MAX_SETTINGS {
            return Err(ImportError::TooLarge {
                what: "allocator settings",
                limit: MAX_SETTINGS as u64,
            });
        }
        let name = match values.view(*key) {
            View::Text(text) => values.stacks.text(text).to_owned(),
            View::Int(number) => number.to_string(),
            _ => continue,
        };
        let name = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}.{name}")
        };
        if name.len() > 4096 {
            return Err(ImportError::TooLarge {
                what: "bytes in the name of a setting",
                limit: 4096,
            });
        }
        let setting = match values.view(*value) {
            View::Bool(flag) => Setting::Flag(flag),
            View::Int(number) => Setting::Number(i64::try_from(number).unwrap_or(i64::MAX)),
            View::Float(number) => Setting::Fraction(number),
            View::Text(text) => Setting::Text(
                values
                    .stacks
                    .text(text)
                    .chars()
                    .take(limits::TEXT / 64)
                    .collect(),
            ),
            View::Dict(_) if depth < MAX_SETTING_DEPTH => {
                flatten(values, *value, &name, depth + 1, into)?;
                continue;
            }
            _ => continue,
        };
        into.entries.push((name, setting));
    }
    Ok(())
}

fn annotations_of(values: &mut Values<'_>, list: Value) -> Result<Vec<Event>, ImportError> {
    let mut annotations = Vec::new();
    for item in values.drain(list, "external_annotations")? {
        let pairs = values
            .pairs(item)
            .ok_or_else(|| ImportError::NotASnapshot {
                reason: "an annotation is not a dictionary".to_owned(),
            })?;
        let mut mark = Event::new(Kind::MarkEnd);
        for (key, value) in pairs {
            match values.words.word_of(*key) {
                Word::Name => mark.name = value.as_text(),
                Word::Stage if values.words.word_of(*value) == Word::Start => {
                    mark.kind = Kind::MarkStart;
                }
                Word::Device => mark.device = device_of(values.view(*value))?,
                Word::TimeUs => {
                    mark.time = Some(shape::nanoseconds(
                        *value,
                        values,
                        "the time of an annotation",
                    )?);
                }
                _ => {}
            }
        }
        annotations.push(mark);
    }
    Ok(annotations)
}

/// Narrows down the version from the keys that are there (specification 13.3).
fn versions_of(values: &Values<'_>, top: &Top, settings: Option<&Settings>) -> Versions {
    let told = settings.and_then(Settings::torch_version);
    let minor =
        told.and_then(|version| version.strip_prefix("2.")?.split('.').next()?.parse().ok());
    if let Some(minor) = minor {
        let (from, to) = (minor, Some(minor));
        return Versions { from, to };
    }
    let events = !values.entries.is_empty();
    let setting = |name: &str| settings.map(|settings| settings.get(name).is_some());
    // Each key, the minor version that brought it, and whether its absence can be detected in this file.
    let keys = [
        (2, values.has_seen(Word::TimeUs), events),
        (3, top.settings.is_some(), true),
        (5, top.annotations.is_some(), true),
        (8, values.has_seen(Word::CompileContext), events),
        (
            9,
            setting("graph_capture_record_stream_reuse") == Some(true),
            settings.is_some(),
        ),
        (10, values.has_seen(Word::UserMetadata), events),
        (11, values.has_seen(Word::ForwardFrames), false),
        (
            13,
            setting("max_round_threshold") == Some(true),
            settings.is_some(),
        ),
        (14, top.host_segments.is_some(), true),
        (15, values.has_seen(Word::InternalMetadata), false),
    ];
    let from = keys
        .iter()
        .filter(|(_, present, _)| *present)
        .map(|(minor, ..)| *minor)
        .max()
        .unwrap_or(1);
    let to = keys
        .iter()
        .filter(|(minor, present, tells)| !present && *tells && *minor > from)
        .map(|(minor, ..)| minor - 1)
        .min();
    Versions { from, to }
}

fn notes_of(values: &Values<'_>, top: &Top) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |condition: bool, text: String| {
        if condition {
            notes.push(text);
        }
    };
    let events = !values.entries.is_empty();
    note(
        events && !values.has_seen(Word::TimeUs),
        "events have no time".to_owned(),
    );
    note(
        events && !values.has_seen(Word::PoolId),
        "events do not name their pool".to_owned(),
    );
    note(
        events && !values.has_seen(Word::Frames),
        "events have no stacks".to_owned(),
    );
    note(
        top.segments.is_none(),
        "the state at the end is not in the file".to_owned(),
    );
    note(
        top.settings.is_none(),
        "the allocator's settings are not in the file".to_owned(),
    );
    note(
        true,
        "the capacity of the device and what other programs held are not in the file".to_owned(),
    );
    note(
        !top.other_keys.is_empty(),
        format!("keys that were not kept: {}", top.other_keys.join(", ")),
    );
    let dropped = &values.dropped;
    let counted = [
        (dropped.entry_keys, "values of events"),
        (dropped.forward_frames, "lists of forward frames"),
        (dropped.frame_keys, "extra values of frames"),
        (dropped.frames, "frames without name, file and line"),
        (dropped.block_keys, "values of blocks"),
        (dropped.segment_keys, "values of segments"),
    ];
    for (count, what) in counted {
        note(count > 0, format!("{count} {what} were not kept"));
    }
    notes
}
