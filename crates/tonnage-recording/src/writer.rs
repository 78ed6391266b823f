// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a recording as a stream of batches.
//!
//! Rows are collected and written as one Arrow batch every [`BATCH_ROWS`] rows (or [`BATCH_TEXT`]
//! bytes of text), so batch boundaries depend on the rows alone and the same rows give the same bytes. A batch
//! goes out in one `write_all`: what a crash leaves is whole batches and at most one torn one. A frame's row is
//! written before the first row that refers to it.
//!
//! The writer owns the [`StackTable`], so an id of another table cannot be written by accident.

use std::io::Write;

use crate::encoder::Encoder;
use crate::rows::Rows;
use crate::{Event, Kind, Meta, StackId, StackTable, TextId, WriteError, limits};

/// Rows of a full batch.
pub const BATCH_ROWS: usize = 16_384;
/// Bytes of text after which a batch is written even if it has fewer rows.
pub const BATCH_TEXT: usize = 4 << 20;

/// Writes a recording to `W`. Buffers a few batches; give it an unbuffered file.
pub struct Writer<W> {
    destination: W,
    encoder: Encoder,
    rows: Rows,
    stacks: StackTable,
    facts: Vec<Meta>,
    events: u64,
    /// Stacks 1 to this are in the file or in `rows`.
    written_stacks: usize,
    stopped: bool,
}

impl<W> std::fmt::Debug for Writer<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Writer");
        shown
            .field("pending_rows", &self.rows.len())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Starts a recording; `producer` is the name and version of the program, e.g. `tonnage 0.1.0`.
    pub fn new(destination: W, producer: &str) -> Result<Self, WriteError> {
        Self::with_stacks(destination, producer, StackTable::new())
    }

    /// Starts a recording whose events refer to a table that exists already.
    pub fn with_stacks(
        destination: W,
        producer: &str,
        stacks: StackTable,
    ) -> Result<Self, WriteError> {
        let (encoder, first) = Encoder::new(producer)?;
        let mut writer = Self {
            destination,
            encoder,
            rows: Rows::default(),
            stacks,
            facts: Vec::new(),
            events: 0,
            written_stacks: 0,
            stopped: false,
        };
        writer.send(&first)?;
        Ok(writer)
    }

    /// How many events were written.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The facts that were written, in their order.
    pub fn facts(&self) -> &[Meta] {
        &self.facts
    }

    /// The table that the ids in events refer to.
    pub fn stacks(&self) -> &StackTable {
        &self.stacks
    }

    /// The same, to add texts and stacks.
    pub fn stacks_mut(&mut self) -> &mut StackTable {
        &mut self.stacks
    }

    /// Writes a fact about a process; a later one with the same name replaces it.
    pub fn meta(&mut self, process: u32, name: &str, text: &str) -> Result<(), WriteError> {
        self.ready()?;
        check_text(name)?;
        check_text(text)?;
        self.rows.push(
            &Event {
                process,
                ..Event::new(Kind::Meta)
            },
            Some(name),
            Some(text),
        );
        self.facts.push(Meta {
            process,
            name: name.to_owned(),
            text: text.to_owned(),
        });
        self.row_done()
    }

    /// Writes an event, after the frames of its stack that are not written yet.
    pub fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        self.ready()?;
        if !event.kind.is_event() {
            return Err(WriteError::NotAnEvent(event.kind));
        }
        self.check_ids(event)?;
        if let Some(stack) = event.stack {
            self.write_stacks_up_to(stack)?;
        }
        let resolve = |id: Option<TextId>| id.map(|id| self.stacks.text(id));
        self.rows
            .push(event, resolve(event.name), resolve(event.text));
        self.events += 1;
        self.row_done()
    }

    fn check_ids(&self, event: &Event) -> Result<(), WriteError> {
        for id in [event.name, event.text].into_iter().flatten() {
            if id.get() as usize > self.stacks.text_count() {
                return Err(WriteError::UnknownId {
                    what: "text",
                    id: id.get(),
                });
            }
            check_text(self.stacks.text(id))?;
        }
        match event.stack {
            Some(stack) if stack.get() as usize > self.stacks.len() => Err(WriteError::UnknownId {
                what: "stack",
                id: stack.get(),
            }),
            _ => Ok(()),
        }
    }

    /// Callers have smaller ids than callees, so every node up to `stack` includes all of its frames.
    fn write_stacks_up_to(&mut self, stack: StackId) -> Result<(), WriteError> {
        if stack.get() as usize > limits::FRAMES {
            return Err(WriteError::TooManyFrames {
                limit: limits::FRAMES,
            });
        }
        while self.written_stacks < stack.get() as usize {
            let Some(id) = StackId::from_raw(self.written_stacks as u32 + 1) else {
                break;
            };
            let Some(frame) = self.stacks.top(id) else {
                break;
            };
            check_text(frame.function)?;
            check_text(frame.file)?;
            self.rows.push_frame(id, self.stacks.parent(id), frame);
            self.written_stacks += 1;
            self.row_done()?;
        }
        Ok(())
    }

    /// Writes out what is collected, as its own batch, and flushes the destination.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.ready()?;
        self.write_all()?;
        self.destination
            .flush()
            .inspect_err(|_| self.stopped = true)?;
        Ok(())
    }

    /// Writes the rest and the end marker; without it a reader reports the recording as unfinished.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.ready()?;
        self.write_all()?;
        let mut destination = self.destination;
        destination.write_all(&self.encoder.finish()?)?;
        destination.flush()?;
        Ok(destination)
    }

    fn ready(&self) -> Result<(), WriteError> {
        if self.stopped {
            Err(WriteError::Stopped)
        } else {
            Ok(())
        }
    }

    fn row_done(&mut self) -> Result<(), WriteError> {
        if self.rows.len() >= BATCH_ROWS || self.rows.text_bytes >= BATCH_TEXT {
            self.write_batch()
        } else {
            Ok(())
        }
    }

    fn write_batch(&mut self) -> Result<(), WriteError> {
        if self.rows.len() == 0 {
            return Ok(());
        }
        let written = self
            .encoder
            .batch(&mut self.rows, write_to(&mut self.destination));
        self.unless_stopped(written)
    }

    /// Writes what is collected, and waits for what is being encoded.
    fn write_all(&mut self) -> Result<(), WriteError> {
        self.write_batch()?;
        let written = self.encoder.drain(write_to(&mut self.destination));
        self.unless_stopped(written)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let written = write_to(&mut self.destination)(bytes);
        self.unless_stopped(written)
    }

    /// After a failure nothing more is written, so that the file keeps its whole batches in front of the torn one.
    fn unless_stopped(&mut self, written: Result<(), WriteError>) -> Result<(), WriteError> {
        written.inspect_err(|_| self.stopped = true)
    }
}

fn write_to<W: Write>(destination: &mut W) -> impl FnMut(&[u8]) -> Result<(), WriteError> {
    |bytes| Ok(destination.write_all(bytes)?)
}

fn check_text(text: &str) -> Result<(), WriteError> {
    if text.len() > limits::TEXT {
        return Err(WriteError::TextTooLong {
            length: text.len(),
            limit: limits::TEXT,
        });
    }
    Ok(())
}
