// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole recording in memory.
//!
//! For analyses that look at a recording more than once. About a hundred bytes per event; a recording of 100
//! million events is for [`Reader`] instead.

use std::io::{Read, Write};

use crate::{Ending, Event, Meta, ReadError, Reader, StackTable, WriteError, Writer, meta};

/// A recording: facts, stacks and events.
///
/// ```
/// use tonnage_recording::{Event, Kind, Meta, Trace, meta};
///
/// let mut trace = Trace::new("example 1.0");
/// trace.meta.push(Meta {
///     process: 0,
///     name: meta::TORCH_VERSION.to_owned(),
///     text: "2.15.0".to_owned(),
/// });
/// trace.events.push(Event::new(Kind::Alloc));
/// let file = trace.write(Vec::new())?;
///
/// let again = Trace::read(file.as_slice())?;
/// assert_eq!(again.fact(0, meta::TORCH_VERSION), Some("2.15.0"));
/// assert_eq!(again.events, trace.events);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Trace {
    /// The program that wrote it.
    pub producer: String,
    /// Facts, in the order of the file.
    pub meta: Vec<Meta>,
    /// The stacks that the ids in events refer to.
    pub stacks: StackTable,
    /// Events, in the order of the file: chronological for each device of each process.
    pub events: Vec<Event>,
    /// Whether the end is there.
    pub ending: Ending,
    /// Rows of kinds this version does not know.
    pub unknown_rows: u64,
}

impl Trace {
    /// An empty recording.
    pub fn new(producer: &str) -> Self {
        Self {
            producer: producer.to_owned(),
            meta: Vec::new(),
            stacks: StackTable::new(),
            events: Vec::new(),
            ending: Ending::Complete,
            unknown_rows: 0,
        }
    }

    /// Reads a file to its end.
    pub fn read(source: impl Read) -> Result<Self, ReadError> {
        let mut reader = Reader::new(source)?;
        let events = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
        let ending = reader.ending().unwrap_or(Ending::Truncated { dropped: 0 });
        let (producer, unknown_rows) = (reader.producer().to_owned(), reader.unknown_rows());
        let (stacks, meta) = reader.into_parts();
        Ok(Self {
            producer,
            meta,
            stacks,
            events,
            ending,
            unknown_rows,
        })
    }

    /// Writes it as a complete file.
    pub fn write<W: Write>(&self, destination: W) -> Result<W, WriteError> {
        let mut writer = Writer::with_stacks(destination, &self.producer, self.stacks.clone())?;
        for fact in &self.meta {
            writer.meta(fact.process, &fact.name, &fact.text)?;
        }
        for event in &self.events {
            writer.event(event)?;
        }
        writer.finish()
    }

    /// The latest value of a fact.
    pub fn fact(&self, process: u32, name: &str) -> Option<&str> {
        meta::find(&self.meta, process, name)
    }
}
