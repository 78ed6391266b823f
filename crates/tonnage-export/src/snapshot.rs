// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording as a PyTorch memory snapshot.
//!
//! The recording is read once to learn its devices, facts and final state, then once for each device, because a
//! snapshot lists the events of one device after those of another. Keys are those of the PyTorch version that made the
//! recording (allocator specification, section 13.3), so that an importer infers the same version from the export as
//! from the original. Frames and stacks are written once and shared, as PyTorch does.
//!
//! A snapshot has no room for the driver's calls, for the size of a block that was freed, or for a second process.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use tonnage_recording::account::{FinalSegment, Rounding};
use tonnage_recording::{
    Account, Event, Kind, Meta, Pool, Reader, StackId, StackTable, TextId, meta,
};

use crate::pickle::{Pickler, Shared};
use crate::state::{Found, Ranges, active_and_allocated, at_the_end, is_bare};
use crate::{ExportError, Exported, counted};

/// The largest number of a device; the output has a list for each up to it.
const MAX_DEVICES: i32 = 255;
const HOST: i32 = -1;
/// The minor version of PyTorch 2 whose keys are written when the recording does not name its version.
const NEWEST: u32 = 15;

/// Writes one process of the recording that `open` opens as a snapshot. Without `process` there must be only one.
pub fn snapshot<R: Read, W: Write>(
    open: impl Fn() -> io::Result<R>,
    destination: W,
    process: Option<u32>,
) -> Result<(W, Exported), ExportError> {
    let open = || Ok::<_, ExportError>(Reader::new(open().map_err(ExportError::Open)?)?);
    let survey = Survey::read(open()?, process)?;
    let mut output = Output {
        pickler: Pickler::new(destination)?,
        vintage: survey.vintage(),
        scale: survey.scale(),
        frames: Vec::new(),
        lists: Vec::new(),
        empty: None,
        pools: BTreeMap::new(),
        events: 0,
        losses: survey.losses,
    };
    let found = output.write(&survey, open)?;
    let notes = output.losses.notes(&found, &survey);
    let exported = Exported {
        events: output.events,
        notes,
    };
    Ok((output.pickler.finish()?, exported))
}

/// Omissions and changes.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    driver: u64,
    unmodelled: u64,
    initial: u64,
    sizes: u64,
    fractions: u64,
    bare: u64,
    completed: u64,
    moments: u64,
    devices: u64,
    unknown_rows: u64,
}

impl Losses {
    fn notes(&self, found: &Found, survey: &Survey) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |count, one: &str, many: &str| counted(&mut notes, count, one, many);
        note(
            self.driver,
            "call of the driver is left out",
            "calls of the driver are left out",
        );
        note(
            self.unmodelled,
            "row of unmodelled calls is left out",
            "rows of unmodelled calls are left out",
        );
        note(
            self.initial,
            "row of the state at the start is left out",
            "rows of the state at the start are left out",
        );
        note(
            self.devices,
            "event of no device is left out",
            "events of no device are left out",
        );
        note(
            self.sizes,
            "event loses the size of its block, which a snapshot has only for blocks at the end",
            "events lose the size of their block, which a snapshot has only for blocks at the end",
        );
        note(
            self.fractions,
            "time is cut to a microsecond",
            "times are cut to microseconds",
        );
        note(
            self.bare,
            "event has the size of its block for an unknown request",
            "events have the size of their block for an unknown request",
        );
        note(
            self.completed,
            "free is taken as completed at once",
            "frees are taken as completed at once",
        );
        note(
            self.moments,
            "mark becomes an empty range",
            "marks become empty ranges",
        );
        note(
            found.derived,
            "segment at the end follows from the events",
            "segments at the end follow from the events",
        );
        note(
            found.laid_around,
            "segment is laid around the blocks, the recording has none",
            "segments are laid around the blocks, the recording has none",
        );
        note(
            found.rounded,
            "block at the end has its request, rounded up to 512 bytes, as size",
            "blocks at the end have their request, rounded up to 512 bytes, as size",
        );
        note(
            found.unplaced,
            "block at the end lies in no segment and is left out there",
            "blocks at the end lie in no segment and are left out there",
        );
        note(
            self.unknown_rows,
            "row of a later version is left out",
            "rows of a later version are left out",
        );
        if survey.truncated {
            notes.push("the recording is truncated; the end is where it stops".to_owned());
        }
        notes
    }
}

/// The result of the first reading.
struct Survey {
    process: u32,
    /// The segments at the end of each device that is mentioned, and how they are known.
    devices: BTreeMap<i32, (Vec<FinalSegment>, Found)>,
    /// Devices with events, whatever their state.
    traced: BTreeSet<i32>,
    marks: u64,
    stacks: StackTable,
    meta: Vec<Meta>,
    losses: Losses,
    truncated: bool,
}

impl Survey {
    fn read<R: Read>(mut reader: Reader<R>, wanted: Option<u32>) -> Result<Self, ExportError> {
        let mut processes = BTreeSet::new();
        let mut process = wanted;
        let mut account: Account = Account::new(Rounding::PyTorch);
        let mut devices: BTreeMap<i32, Ranges> = BTreeMap::new();
        let mut row = 0;
        let (mut traced, mut marks, mut losses) = (BTreeSet::new(), 0, Losses::default());
        while let Some(event) = reader.next().transpose()? {
            let relevant = is_trace(event.kind) || is_state(event.kind);
            if relevant && processes.len() < 1 << 16 {
                processes.insert(event.process);
            }
            if process.is_none() && relevant {
                process = Some(event.process);
            }
            // Marks before the first event of an allocator belong to the first allocator.
            if process.is_some_and(|process| process != event.process) {
                continue;
            }
            match event.kind {
                Kind::Mark | Kind::MarkStart | Kind::MarkEnd => marks += 1,
                Kind::Unmodelled => losses.unmodelled += 1,
                Kind::InitialSegment | Kind::InitialBlock => losses.initial += 1,
                kind if !relevant && kind.is_event() => losses.driver += 1,
                _ => {}
            }
            if !relevant {
                continue;
            }
            if event.device < HOST {
                losses.devices += 1;
                continue;
            }
            if event.device > MAX_DEVICES {
                return Err(ExportError::Device {
                    device: event.device,
                    most: MAX_DEVICES,
                });
            }
            if is_trace(event.kind) {
                traced.insert(event.device);
            }
            // Rows of the driver are not read: a snapshot knows the allocator alone.
            let change = account.apply(&event, row, reader.stacks());
            row += 1;
            let ranges = devices.entry(event.device).or_default();
            ranges.note(&change);
        }
        if wanted.is_none() && processes.len() > 1 {
            return Err(ExportError::SeveralProcesses {
                count: processes.len(),
                first: processes.first().copied().unwrap_or(0),
            });
        }
        if let Some(process) = wanted.filter(|process| !processes.contains(process)) {
            return Err(ExportError::NoSuchProcess { process });
        }
        losses.unknown_rows = reader.unknown_rows();
        let truncated = reader
            .ending()
            .is_none_or(tonnage_recording::Ending::is_truncated);
        let (stacks, meta) = reader.into_parts();
        // A process that records its state at the end records it for all its devices.
        let recorded = account
            .iter()
            .any(|((its, _), track)| process == Some(its) && !track.final_state().is_empty());
        let finish = |(device, ranges): (i32, Ranges)| {
            let track = account.get(process?, device)?;
            Some((device, at_the_end(track, &ranges, recorded)))
        };
        Ok(Self {
            process: process.unwrap_or(0),
            devices: devices.into_iter().filter_map(finish).collect(),
            traced,
            marks,
            stacks,
            meta,
            losses,
            truncated,
        })
    }

    fn fact(&self, name: &str) -> Option<&str> {
        meta::find(&self.meta, self.process, name)
    }

    /// The earliest minor version of PyTorch 2 that the recording may come from.
    fn vintage(&self) -> u32 {
        let version = self.fact(meta::TORCH_VERSION).unwrap_or_default();
        let minor = version.trim_start_matches(">=").strip_prefix("2.");
        let digits = minor.and_then(|minor| minor.split(|c: char| !c.is_ascii_digit()).next());
        digits
            .and_then(|digits| digits.parse().ok())
            .unwrap_or(NEWEST)
    }

    /// Units of the recording's clock in a microsecond; a clock that does not count time is kept as it is.
    fn scale(&self) -> i64 {
        match self.fact("clock") {
            Some(clock) if !clock.starts_with("nanoseconds") => 1,
            _ => 1000,
        }
    }
}

/// Whether PyTorch's allocator has the kind in its own trace.
fn is_trace(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Alloc
            | Kind::FreeRequested
            | Kind::FreeCompleted
            | Kind::SegmentAlloc
            | Kind::SegmentFree
            | Kind::SegmentMap
            | Kind::SegmentUnmap
            | Kind::Snapshot
            | Kind::Oom
            | Kind::Annotate
            | Kind::OtherAction
    )
}

fn is_state(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::InitialSegment | Kind::InitialBlock | Kind::FinalSegment | Kind::FinalBlock
    )
}

struct Output<W> {
    pickler: Pickler<W>,
    vintage: u32,
    scale: i64,
    /// Where each frame and each stack is in the memo, by id.
    frames: Vec<Option<Shared>>,
    lists: Vec<Option<Shared>>,
    /// The one empty list of frames.
    empty: Option<Shared>,
    pools: BTreeMap<Pool, Shared>,
    events: u64,
    losses: Losses,
}

impl<W: Write> Output<W> {
    fn write<R: Read>(
        &mut self,
        survey: &Survey,
        open: impl Fn() -> Result<Reader<R>, ExportError>,
    ) -> Result<Found, ExportError> {
        self.pickler.open_dict()?;
        self.pickler.text("segments")?;
        let found = self.segments(survey, false)?;
        self.pickler.text("device_traces")?;
        let mut traces = self.pickler.open_list()?;
        let last = survey.devices.keys().next_back().copied();
        for device in 0..=last.unwrap_or(HOST) {
            self.pickler.item(&mut traces)?;
            self.trace(survey, device, &open)?;
        }
        self.pickler.close_list(traces)?;
        if let Some(settings) = survey.fact(meta::ALLOCATOR_SETTINGS) {
            self.pickler.text("allocator_settings")?;
            self.settings(settings)?;
        } else if let Some(conf) = survey.fact(meta::ALLOCATOR_CONF) {
            self.pickler.text("allocator_settings")?;
            self.pickler.open_dict()?;
            self.pickler.text("PYTORCH_CUDA_ALLOC_CONF")?;
            self.pickler.text(conf)?;
            self.pickler.close_dict()?;
        }
        if survey.marks > 0 || self.vintage >= 5 {
            self.pickler.text("external_annotations")?;
            self.annotations(survey, &open)?;
        }
        if survey.devices.contains_key(&HOST) || self.vintage >= 14 {
            self.pickler.text("host_segments")?;
            self.segments(survey, true)?;
            self.pickler.text("host_traces")?;
            self.trace(survey, HOST, &open)?;
        }
        self.pickler.close_dict()?;
        Ok(found)
    }

    /// The segments of the host or of all devices.
    fn segments(&mut self, survey: &Survey, host: bool) -> Result<Found, ExportError> {
        let mut found = Found::default();
        let mut list = self.pickler.open_list()?;
        for (&device, (segments, how)) in &survey.devices {
            if (device == HOST) != host {
                continue;
            }
            found.add(*how);
            for segment in segments {
                self.pickler.item(&mut list)?;
                self.segment(device, segment, &survey.stacks)?;
            }
        }
        self.pickler.close_list(list)?;
        Ok(found)
    }

    fn segment(
        &mut self,
        device: i32,
        state: &FinalSegment,
        stacks: &StackTable,
    ) -> Result<(), ExportError> {
        let segment = &state.segment;
        let (active, allocated) = active_and_allocated(state);
        self.pickler.open_dict()?;
        self.entry("device", device)?;
        self.entry("address", segment.address)?;
        self.entry("total_size", segment.bytes)?;
        self.entry("allocated_size", allocated)?;
        self.entry("active_size", active)?;
        self.entry("requested_size", segment.requested)?;
        self.entry("stream", segment.stream)?;
        self.pickler.text("segment_type")?;
        self.pickler
            .text(if segment.is_large { "large" } else { "small" })?;
        if let Some(pool) = segment.pool {
            self.pickler.text("segment_pool_id")?;
            self.pool(pool)?;
        }
        self.pickler.text("is_expandable")?;
        self.pickler.flag(segment.is_expandable)?;
        self.pickler.text("frames")?;
        self.stack(segment.stack, stacks)?;
        self.pickler.text("blocks")?;
        let mut blocks = self.pickler.open_list()?;
        for block in &state.blocks {
            self.pickler.item(&mut blocks)?;
            self.pickler.open_dict()?;
            self.entry("address", block.address)?;
            self.entry("size", block.bytes)?;
            self.entry("requested_size", block.requested)?;
            self.pickler.text("state")?;
            self.pickler.text(block.state.name())?;
            self.pickler.text("frames")?;
            self.stack(block.stack, stacks)?;
            self.pickler.close_dict()?;
        }
        self.pickler.close_list(blocks)?;
        self.pickler.close_dict()
    }

    /// The events of one device; reads the recording if it has any.
    fn trace<R: Read>(
        &mut self,
        survey: &Survey,
        device: i32,
        open: impl Fn() -> Result<Reader<R>, ExportError>,
    ) -> Result<(), ExportError> {
        let mut list = self.pickler.open_list()?;
        if survey.traced.contains(&device) {
            for event in open()? {
                let event = event?;
                let ours = event.process == survey.process && event.device == device;
                if !ours || !is_trace(event.kind) {
                    continue;
                }
                self.pickler.item(&mut list)?;
                self.event(&event, &survey.stacks)?;
                self.events += 1;
                if event.kind == Kind::FreeRequested && is_bare(&event) {
                    // The viewer takes a block as alive until its free is completed.
                    self.losses.completed += 1;
                    self.pickler.item(&mut list)?;
                    let kind = Kind::FreeCompleted;
                    let losses = self.losses; // counted with the event itself
                    self.event(&Event { kind, ..event }, &survey.stacks)?;
                    self.losses = losses;
                }
            }
        }
        self.pickler.close_list(list)
    }

    fn event(&mut self, event: &Event, stacks: &StackTable) -> Result<(), ExportError> {
        let text = |id: Option<TextId>| id.map(|id| stacks.text(id));
        let other = event.kind == Kind::OtherAction;
        let block = matches!(
            event.kind,
            Kind::Alloc | Kind::FreeRequested | Kind::FreeCompleted | Kind::Annotate
        );
        self.pickler.open_dict()?;
        self.pickler.text("action")?;
        let action = if other {
            text(event.name).unwrap_or_default()
        } else {
            event.kind.name()
        };
        self.pickler.text(action)?;
        if event.kind == Kind::Oom {
            self.entry("device_free", event.free)?;
        } else {
            self.entry("addr", event.address)?;
        }
        let bare = block && is_bare(event);
        self.losses.bare += u64::from(bare);
        self.losses.sizes += u64::from(block && !bare && event.size > 0);
        self.entry(
            "size",
            if block && !bare {
                event.requested
            } else {
                event.size
            },
        )?;
        self.entry("stream", event.stream)?;
        if let Some(time) = event.time {
            self.time(time)?;
        }
        let context = if other { None } else { text(event.name) };
        if self.vintage >= 8 || context.is_some() {
            let none = if event.device == HOST { "" } else { "N/A" };
            self.pickler.text("compile_context")?;
            self.pickler.text(context.unwrap_or(none))?;
        }
        let metadata = text(event.text);
        if self.vintage >= 10 || metadata.is_some() {
            self.pickler.text("user_metadata")?;
            self.pickler.text(metadata.unwrap_or_default())?;
        }
        if let Some(pool) = event.pool {
            self.pickler.text("pool_id")?;
            self.pool(pool)?;
        }
        if event.stack.is_some() {
            self.pickler.text("frames")?;
            self.stack(event.stack, stacks)?;
        }
        self.pickler.close_dict()
    }

    fn time(&mut self, time: i64) -> Result<(), ExportError> {
        self.losses.fractions += u64::from(time % self.scale != 0);
        self.entry("time_us", time.div_euclid(self.scale))
    }

    fn annotations<R: Read>(
        &mut self,
        survey: &Survey,
        open: impl Fn() -> Result<Reader<R>, ExportError>,
    ) -> Result<(), ExportError> {
        let mut list = self.pickler.open_list()?;
        if survey.marks > 0 {
            for event in open()? {
                let event = event?;
                let stages: &[&str] = match event.kind {
                    Kind::MarkStart => &["START"],
                    Kind::MarkEnd => &["END"],
                    Kind::Mark => &["START", "END"],
                    _ => continue,
                };
                if event.process != survey.process {
                    continue;
                }
                self.losses.moments += u64::from(event.kind == Kind::Mark);
                for stage in stages {
                    self.pickler.item(&mut list)?;
                    self.pickler.open_dict()?;
                    self.pickler.text("name")?;
                    let name = event.name.map_or("", |name| survey.stacks.text(name));
                    self.pickler.text(name)?;
                    self.pickler.text("stage")?;
                    self.pickler.text(stage)?;
                    self.entry("device", event.device)?;
                    if let Some(time) = event.time {
                        self.time(time)?;
                    }
                    self.pickler.close_dict()?;
                }
            }
        }
        self.pickler.close_list(list)
    }

    /// The flat JSON object of the settings, nested again.
    fn settings(&mut self, json: &str) -> Result<(), ExportError> {
        let Ordered(entries) = serde_json::from_str(json).unwrap_or_default();
        self.pickler.open_dict()?;
        let mut open: Option<&str> = None;
        let mut seen = BTreeSet::new();
        for (name, value) in &entries {
            let (group, key) = match name.split_once('.') {
                Some((group, key)) if !seen.contains(group) || open == Some(group) => {
                    (Some(group), key)
                }
                _ => (None, name.as_str()),
            };
            if open != group {
                if open.is_some() {
                    self.pickler.close_dict()?;
                }
                if let Some(group) = group {
                    self.pickler.text(group)?;
                    self.pickler.open_dict()?;
                    seen.insert(group);
                }
                open = group;
            }
            self.pickler.text(key)?;
            self.value(value)?;
        }
        if open.is_some() {
            self.pickler.close_dict()?;
        }
        self.pickler.close_dict()
    }

    fn value(&mut self, value: &serde_json::Value) -> Result<(), ExportError> {
        use serde_json::Value;
        match value {
            Value::Bool(flag) => self.pickler.flag(*flag),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(number), ..) => self.pickler.number(number),
                (_, Some(number), _) => self.pickler.number(number),
                (.., Some(number)) => self.pickler.float(number),
                _ => self.pickler.none(),
            },
            Value::String(text) => self.pickler.text(text),
            _ => self.pickler.none(),
        }
    }

    fn entry(&mut self, key: &str, number: impl Into<i128>) -> Result<(), ExportError> {
        self.pickler.text(key)?;
        self.pickler.number(number)
    }

    fn pool(&mut self, pool: Pool) -> Result<(), ExportError> {
        if let Some(place) = self.pools.get(&pool).copied() {
            return self.pickler.get(place);
        }
        self.pickler.number(pool.first)?;
        self.pickler.number(pool.second)?;
        self.pickler.pair()?;
        let place = self.pickler.memoise()?;
        self.pools.insert(pool, place);
        Ok(())
    }

    fn stack(&mut self, stack: Option<StackId>, stacks: &StackTable) -> Result<(), ExportError> {
        let known = match stack {
            Some(stack) => self.lists.get(stack.get() as usize).copied().flatten(),
            None => self.empty,
        };
        if let Some(place) = known {
            return self.pickler.get(place);
        }
        let mut list = self.pickler.open_list()?;
        let place = self.pickler.memoise()?;
        let mut next = stack;
        while let Some(node) = next {
            self.pickler.item(&mut list)?;
            self.frame(node, stacks)?;
            // A caller's id is smaller than its callee's, so this ends.
            next = stacks.parent(node).filter(|parent| *parent < node);
        }
        self.pickler.close_list(list)?;
        match stack {
            Some(stack) => remember(&mut self.lists, stack.get(), place),
            None => self.empty = Some(place),
        }
        Ok(())
    }

    /// The innermost frame of a stack.
    fn frame(&mut self, stack: StackId, stacks: &StackTable) -> Result<(), ExportError> {
        let id = stacks
            .top_id(stack)
            .map_or(0, tonnage_recording::FrameId::get);
        if let Some(place) = self.frames.get(id as usize).copied().flatten() {
            return self.pickler.get(place);
        }
        let frame = stacks.top(stack);
        self.pickler.open_dict()?;
        self.pickler.text("name")?;
        self.pickler
            .text(frame.map_or("", |frame| frame.function))?;
        self.pickler.text("filename")?;
        self.pickler.text(frame.map_or("", |frame| frame.file))?;
        self.entry("line", frame.map_or(0, |frame| frame.line))?;
        self.pickler.close_dict()?;
        let place = self.pickler.memoise()?;
        remember(&mut self.frames, id, place);
        Ok(())
    }
}

fn remember(places: &mut Vec<Option<Shared>>, id: u32, place: Shared) {
    let index = id as usize;
    if places.len() <= index {
        places.resize(index + 1, None);
    }
    places[index] = Some(place);
}

/// A JSON object in the order of its text, which a map would lose.
#[derive(Default)]
struct Ordered(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Ordered;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
