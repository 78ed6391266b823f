// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the rows of a process that ran on a real GPU in order.
//!
//! Beside torch's own history there are the notes of the Python hook and its readings of the device. All three have
//! times of one clock; a piece of history is never older than the half second between two drains, so that the clocks
//! of the processor and of the system do not drift apart meanwhile. The facts that the stand-in has at once are derived
//! here from the rows: the block of an owner or a holder, whether that was reported before, and the blocks that were
//! never named.
//!
//! Driver calls are not seen on a real GPU. How much the device charges to the process is known at each reading, and
//! between two readings from what PyTorch obtained and gave back meanwhile; such a row reports that it is computed.

use std::collections::{BTreeMap, VecDeque};

use tonnage_capture::blocks::{Entry, Note, NoteKind};
use tonnage_capture::sample::Sample;
use tonnage_recording::{Event, Kind, StackTable};

/// The holder of a block that no Python object refers to.
const NOTHING: &str = "nothing\t\t";
/// The `name` of a row that follows from others.
pub(crate) const COMPUTED: &str = "computed";

/// The state of a device since its last sample.
#[derive(Clone, Copy, Debug)]
struct Reading {
    total: u64,
    /// Bytes of the process that are not PyTorch's.
    beside: u64,
    /// Bytes of other processes.
    others: u64,
}

/// The GPU of a process, as it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// The driver's name.
    pub name: String,
    /// Bytes of memory.
    pub capacity: u64,
    /// Bytes that the process took outside PyTorch when it was first measured.
    pub context: u64,
    /// Devices that the process sees.
    pub count: u32,
}

struct Live {
    device: i32,
    bytes: u64,
    owner: Option<u32>,
    holder: Option<String>,
    census: u64,
}

#[derive(Default)]
struct Device {
    reserved: u64,
    reading: Option<Reading>,
    has_rows: bool,
}

/// The notes and readings of one process that no row was written for yet, and what its rows have shown.
#[derive(Default)]
pub(crate) struct Measured {
    notes: VecDeque<Note>,
    samples: VecDeque<Sample>,
    lists: Vec<Vec<(u64, u32)>>,
    texts: Vec<String>,
    live: BTreeMap<u64, Live>,
    devices: BTreeMap<i32, Device>,
    last_device: i32,
    census: u64,
    pub(crate) machine: Option<Machine>,
}

impl Measured {
    /// Takes the notes of the process, and its samples, whose devices have the machine's numbers.
    pub(crate) fn new(
        entries: impl Iterator<Item = Entry>,
        samples: Vec<Sample>,
        lists: &[&[u8]],
        texts: Vec<String>,
    ) -> Self {
        let note = |entry| match entry {
            Entry::Note(note) => Some(note),
            Entry::Block(_) | Entry::Uses(_) => None,
        };
        let mut measured = Self {
            notes: entries.filter_map(note).collect(),
            samples: samples.into(),
            lists: lists.iter().map(|list| pairs(list)).collect(),
            texts,
            ..Self::default()
        };
        let first = measured.samples.front();
        measured.machine = first.and_then(|sample| {
            Some(Machine {
                name: sample.name.clone()?,
                capacity: sample.total,
                context: Reading::from_sample(sample).beside,
                count: sample.count.unwrap_or(1),
            })
        });
        measured
    }

    /// Whether a device was ever queried.
    pub(crate) fn has_samples(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Whether the driver reported how much of a device is this process's.
    pub(crate) fn knows_own(&self) -> bool {
        self.samples.iter().all(|sample| sample.own.is_some())
    }

    /// The rows of a row of torch's history: those that belong before it, itself, and what follows from it.
    pub(crate) fn row(&mut self, event: Event, stacks: &mut StackTable) -> Vec<Event> {
        let mut rows = Vec::new();
        if event.kind == Kind::Snapshot {
            return rows; // our own
        }
        let time = event.time.and_then(|time| u64::try_from(time).ok());
        self.until(time.unwrap_or(0), stacks, &mut rows);
        if event.device >= 0 {
            self.last_device = event.device;
            self.open(event.device, event.time, &mut rows);
        }
        match event.kind {
            Kind::Alloc => {
                let live = Live {
                    device: event.device,
                    bytes: event.requested.max(1),
                    owner: None,
                    holder: None,
                    census: 0,
                };
                self.live.insert(event.address, live);
                rows.push(event);
            }
            Kind::FreeRequested => {
                self.live.remove(&event.address);
                rows.push(event);
            }
            Kind::SegmentAlloc | Kind::SegmentMap => {
                rows.push(event);
                self.reserve(&event, event.size, 0, stacks, &mut rows);
            }
            Kind::SegmentFree | Kind::SegmentUnmap => {
                rows.push(event);
                self.reserve(&event, 0, event.size, stacks, &mut rows);
            }
            Kind::Oom => {
                self.refused(&event, &mut rows);
                self.census_at_failure(time.unwrap_or(0), stacks, &mut rows);
                rows.push(event);
            }
            _ => rows.push(event),
        }
        rows
    }

    /// The rows after the last of torch's history.
    pub(crate) fn rest(&mut self, stacks: &mut StackTable) -> Vec<Event> {
        let mut rows = Vec::new();
        self.until(u64::MAX, stacks, &mut rows);
        rows
    }

    /// The context of a device, before its first row.
    fn open(&mut self, device: i32, time: Option<i64>, rows: &mut Vec<Event>) {
        let state = self.devices.entry(device).or_default();
        if std::mem::replace(&mut state.has_rows, true) {
            return;
        }
        let mut samples = self.samples.iter();
        let first = samples.find(|sample| sample.device == device);
        let reading = state.reading.or_else(|| first.map(Reading::from_sample));
        state.reading = reading;
        if let Some(reading) = reading {
            rows.push(Event {
                device,
                time,
                size: reading.beside,
                charged: Some(reading.beside),
                in_use: Some(reading.beside.saturating_add(reading.others)),
                ..Event::new(Kind::DriverContext)
            });
        }
    }

    /// PyTorch obtained or gave back memory: what the device charges follows from the last reading.
    fn reserve(
        &mut self,
        event: &Event,
        more: u64,
        less: u64,
        stacks: &mut StackTable,
        rows: &mut Vec<Event>,
    ) {
        let state = self.devices.entry(event.device).or_default();
        state.reserved = state.reserved.saturating_add(more).saturating_sub(less);
        let reserved = state.reserved;
        if let Some(reading) = state.reading {
            let mut row = reading.row(event.device, event.time, reserved);
            row.name = Some(stacks.intern(COMPUTED));
            rows.push(row);
        }
    }

    /// PyTorch reports with an out-of-memory how much the driver had left.
    fn refused(&mut self, event: &Event, rows: &mut Vec<Event>) {
        let state = self.devices.entry(event.device).or_default();
        let Some(reading) = &mut state.reading else {
            return;
        };
        let in_use = reading.total.saturating_sub(event.free);
        let beside = in_use.saturating_sub(reading.others.saturating_add(state.reserved));
        reading.beside = beside;
        rows.push(reading.row(event.device, event.time, state.reserved));
    }

    /// Notes and readings up to a time.
    fn until(&mut self, time: u64, stacks: &mut StackTable, rows: &mut Vec<Event>) {
        loop {
            let note = self.notes.front().map(|note| note.time);
            let sample = self.samples.front().map(|sample| sample.time);
            let is_note = match (note, sample) {
                (Some(note), Some(sample)) => note <= sample,
                (note, _) => note.is_some(),
            };
            if is_note {
                let Some(note) = self.notes.pop_front_if(|note| note.time <= time) else {
                    return;
                };
                self.note(&note, stacks, rows);
            } else {
                let Some(sample) = self.samples.pop_front_if(|sample| sample.time <= time) else {
                    return;
                };
                self.sample(&sample, rows);
            }
        }
    }

    fn sample(&mut self, sample: &Sample, rows: &mut Vec<Event>) {
        let time = i64::try_from(sample.time).ok();
        self.open(sample.device, time, rows);
        let state = self.devices.entry(sample.device).or_default();
        let reading = Reading::from_sample(sample);
        state.reading = Some(reading);
        // PyTorch's own count of what it holds, where rows of its history were lost.
        rows.push(reading.row(sample.device, time, sample.reserved));
    }

    /// The census that Python took at an out-of-memory, which belongs before the row of it.
    fn census_at_failure(&mut self, time: u64, stacks: &mut StackTable, rows: &mut Vec<Event>) {
        let ends = |note: &&Note| {
            let text = self.texts.get(note.text as usize);
            note.kind == NoteKind::Moment && text.is_some_and(|text| text == "census_end\toom")
        };
        let end = self.notes.iter().find(ends).map(|note| note.time);
        if let Some(end) = end.filter(|end| *end >= time) {
            self.until(end, stacks, rows);
        }
    }

    fn note(&mut self, note: &Note, stacks: &mut StackTable, rows: &mut Vec<Event>) {
        let time = i64::try_from(note.time).ok();
        match note.kind {
            NoteKind::Owners => {
                let list = self.lists.get(note.text as usize);
                for (address, text) in list.cloned().unwrap_or_default() {
                    self.report_owner(address, text, time, stacks, rows);
                }
            }
            NoteKind::Owner => self.report_owner(note.address, note.text, time, stacks, rows),
            NoteKind::Holder => {
                let text = self.texts.get(note.text as usize).cloned();
                self.hold(note.address, text.as_deref(), time, stacks, rows);
            }
            NoteKind::OutOfMemory | NoteKind::Used => {}
            NoteKind::Start | NoteKind::End | NoteKind::Moment => {
                let Some(text) = self.texts.get(note.text as usize).cloned() else {
                    return;
                };
                if text.starts_with("census\t") {
                    self.census += 1;
                } else if text.starts_with("census_end\t") {
                    self.nobody_named(note.address != 0, time, stacks, rows);
                }
                let kind = note_kind(note.kind);
                rows.push(note_row(kind, self.last_device, time, 0, &text, stacks));
            }
        }
    }

    /// Reports the owner of a block, unless it was reported before for the same block.
    fn report_owner(
        &mut self,
        address: u64,
        text: u32,
        time: Option<i64>,
        stacks: &mut StackTable,
        rows: &mut Vec<Event>,
    ) {
        let words = self.texts.get(text as usize);
        let (Some(live), Some(words)) = (self.live.get_mut(&address), words) else {
            return;
        };
        if live.owner.replace(text) != Some(text) {
            rows.push(note_row(
                Kind::Owner,
                live.device,
                time,
                address,
                words,
                stacks,
            ));
        }
    }

    /// Reports what holds the block that contains an address, likewise.
    fn hold(
        &mut self,
        address: u64,
        text: Option<&str>,
        time: Option<i64>,
        stacks: &mut StackTable,
        rows: &mut Vec<Event>,
    ) {
        let found = self.live.range_mut(..=address).next_back();
        let (Some((&start, live)), Some(text)) = (found, text) else {
            return;
        };
        if address - start >= live.bytes {
            return;
        }
        live.census = self.census;
        if live.holder.as_deref() != Some(text) {
            live.holder = Some(text.to_owned());
            rows.push(note_row(
                Kind::Holder,
                live.device,
                time,
                start,
                text,
                stacks,
            ));
        }
    }

    /// A census ends: nothing holds the blocks that it did not name. Where graphs were not walked, a block that one
    /// held still counts as held by it.
    fn nobody_named(
        &mut self,
        graphs: bool,
        time: Option<i64>,
        stacks: &mut StackTable,
        rows: &mut Vec<Event>,
    ) {
        for (&address, live) in &mut self.live {
            let before = live.holder.as_deref().unwrap_or_default();
            if live.census == self.census || (!graphs && before.starts_with("graph\t")) {
                continue;
            }
            if before != NOTHING {
                live.holder = Some(NOTHING.to_owned());
                let device = live.device;
                rows.push(note_row(
                    Kind::Holder,
                    device,
                    time,
                    address,
                    NOTHING,
                    stacks,
                ));
            }
        }
    }
}

impl Reading {
    fn from_sample(sample: &Sample) -> Self {
        let charged = sample.charged();
        Self {
            total: sample.total,
            beside: charged.saturating_sub(sample.reserved),
            others: sample.in_use().saturating_sub(charged),
        }
    }

    /// The row of the sample, with the bytes that PyTorch holds.
    fn row(&self, device: i32, time: Option<i64>, reserved: u64) -> Event {
        let charged = self.beside.saturating_add(reserved);
        let in_use = charged.saturating_add(self.others);
        Event {
            device,
            time,
            free: self.total.saturating_sub(in_use),
            charged: Some(charged),
            in_use: Some(in_use),
            ..Event::new(Kind::Measured)
        }
    }
}

/// Pairs of words: an address and the number of a text.
fn pairs(bytes: &[u8]) -> Vec<(u64, u32)> {
    let words = bytes.as_chunks::<16>().0.iter();
    let pair = |pair: &[u8; 16]| {
        let word = u128::from_le_bytes(*pair);
        (word as u64, (word >> 64) as u32)
    };
    words.map(pair).collect()
}

/// The kind of row that a note becomes.
pub(crate) fn note_kind(kind: NoteKind) -> Kind {
    match kind {
        NoteKind::Start => Kind::MarkStart,
        NoteKind::End => Kind::MarkEnd,
        NoteKind::Moment => Kind::Mark,
        NoteKind::Owner | NoteKind::Owners => Kind::Owner,
        NoteKind::Holder => Kind::Holder,
        NoteKind::OutOfMemory => Kind::Oom,
        NoteKind::Used => Kind::Used,
    }
}

/// A mark, an owner or a holder. A text is its sort, its name and, for a tensor, its type and shape, separated by tabs.
pub(crate) fn note_row(
    kind: Kind,
    device: i32,
    time: Option<i64>,
    address: u64,
    text: &str,
    stacks: &mut StackTable,
) -> Event {
    let mut parts = text.splitn(3, '\t');
    let sort = parts.next().unwrap_or_default();
    let name = parts.next().unwrap_or_default();
    let sort = match parts.next() {
        Some(shape) => format!("{sort} {shape}"),
        None => sort.to_owned(),
    };
    let (name, sort) = (stacks.intern(name), stacks.intern(&sort));
    Event {
        device,
        time,
        address,
        name: Some(name),
        text: Some(sort),
        ..Event::new(kind)
    }
}
