// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a recording as a stream of batches.
//!
//! Rows are collected in columns and written as one Arrow batch every [`BATCH_ROWS`] rows (or [`BATCH_TEXT`]
//! bytes of text), so batch boundaries depend on the rows alone and the same rows give the same bytes. A batch
//! goes out in one `write_all`: what a crash leaves is whole batches and at most one torn one. A frame's row is
//! written before the first row that refers to it.
//!
//! The writer owns the [`StackTable`], so an id of another table cannot be written by accident.

use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::{
    Int32Builder, Int64Builder, StringBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::types::UInt8Type;
use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, StringArray, UInt8Array};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{ArrowError, SchemaRef};

use crate::{Column, Event, Kind, StackId, StackTable, TextId, WriteError, limits, schema};

/// Rows of a full batch.
pub const BATCH_ROWS: usize = 16_384;
/// Bytes of text after which a batch is written even if it has fewer rows.
pub const BATCH_TEXT: usize = 4 << 20;

/// Writes a recording to `W`. Buffers one batch; give it an unbuffered file.
pub struct Writer<W> {
    destination: W,
    encoder: StreamWriter<Vec<u8>>,
    schema: SchemaRef,
    kinds: Arc<StringArray>,
    rows: Rows,
    stacks: StackTable,
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
        let schema = Arc::new(schema::schema(producer));
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?;
        let encoder = StreamWriter::try_new_with_options(Vec::new(), &schema, options)?;
        let mut writer = Self {
            destination,
            encoder,
            schema,
            kinds: schema::kinds(),
            rows: Rows::default(),
            stacks,
            written_stacks: 0,
            stopped: false,
        };
        writer.send()?;
        Ok(writer)
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

    /// Writes out what is collected, as a batch of its own, and flushes the destination.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.ready()?;
        self.write_batch()?;
        self.destination
            .flush()
            .inspect_err(|_| self.stopped = true)?;
        Ok(())
    }

    /// Writes the rest and the end marker; without it a reader reports the recording as unfinished.
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.ready()?;
        self.write_batch()?;
        self.encoder.finish()?;
        self.send()?;
        self.destination.flush()?;
        Ok(self.destination)
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
        let columns = self.rows.take(&self.kinds)?;
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.encoder.write(&batch)?;
        self.send()
    }

    /// Moves encoded bytes to the destination. After a failure nothing more is written, so that the file keeps
    /// its whole batches in front of the torn one.
    fn send(&mut self) -> Result<(), WriteError> {
        let bytes = self.encoder.get_mut();
        let sent = self.destination.write_all(bytes);
        bytes.clear();
        sent.inspect_err(|_| self.stopped = true)?;
        Ok(())
    }
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

/// The rows of the batch under construction, by column.
#[derive(Debug, Default)]
struct Rows {
    kind: Vec<u8>,
    time: Int64Builder,
    process: UInt32Builder,
    device: Int32Builder,
    stream: UInt64Builder,
    pool_first: UInt32Builder,
    pool_second: UInt32Builder,
    address: UInt64Builder,
    size: UInt64Builder,
    requested: UInt64Builder,
    free: UInt64Builder,
    handle: UInt64Builder,
    stack: UInt32Builder,
    id: UInt32Builder,
    line: UInt64Builder,
    name: StringBuilder,
    file: StringBuilder,
    text: StringBuilder,
    charged: UInt64Builder,
    in_use: UInt64Builder,
    text_bytes: usize,
}

impl Rows {
    fn len(&self) -> usize {
        self.kind.len()
    }

    fn push(&mut self, event: &Event, name: Option<&str>, text: Option<&str>) {
        let columns = event.kind.columns();
        // A value the kind does not promise is still written, so that nothing is lost.
        let shown =
            |column: Column, value: u64| (columns.has(column) || value != 0).then_some(value);
        self.device.append_option(
            (columns.has(Column::Device) || event.device != 0).then_some(event.device),
        );
        self.stream
            .append_option(shown(Column::Stream, event.stream));
        self.address
            .append_option(shown(Column::Address, event.address));
        self.size.append_option(shown(Column::Size, event.size));
        self.requested
            .append_option(shown(Column::Requested, event.requested));
        self.free.append_option(shown(Column::Free, event.free));
        self.handle
            .append_option(shown(Column::Handle, event.handle));
        self.charged.append_option(event.charged);
        self.in_use.append_option(event.in_use);
        self.time.append_option(event.time);
        self.pool_first
            .append_option(event.pool.map(|pool| pool.first));
        self.pool_second
            .append_option(event.pool.map(|pool| pool.second));
        self.id.append_null();
        self.line.append_null();
        self.file.append_null();
        self.finish_row(event.kind, event.process, event.stack, name, text);
    }

    fn push_frame(&mut self, id: StackId, parent: Option<StackId>, frame: crate::Frame<'_>) {
        self.device.append_null();
        for column in [
            &mut self.stream,
            &mut self.address,
            &mut self.size,
            &mut self.requested,
            &mut self.free,
            &mut self.handle,
            &mut self.charged,
            &mut self.in_use,
        ] {
            column.append_null();
        }
        self.time.append_null();
        self.pool_first.append_null();
        self.pool_second.append_null();
        self.id.append_value(id.get());
        self.line.append_value(frame.line);
        self.file.append_value(frame.file);
        self.text_bytes += frame.file.len();
        self.finish_row(Kind::Frame, 0, parent, Some(frame.function), None);
    }

    fn finish_row(
        &mut self,
        kind: Kind,
        process: u32,
        stack: Option<StackId>,
        name: Option<&str>,
        text: Option<&str>,
    ) {
        self.kind.push(kind as u8);
        self.process.append_value(process);
        self.stack.append_option(stack.map(StackId::get));
        self.name.append_option(name);
        self.text.append_option(text);
        self.text_bytes += name.map_or(0, str::len) + text.map_or(0, str::len);
    }

    /// The columns in the order of the schema; leaves an empty batch behind.
    fn take(&mut self, kinds: &Arc<StringArray>) -> Result<Vec<ArrayRef>, ArrowError> {
        let rows = self.len();
        let codes = UInt8Array::from(std::mem::replace(&mut self.kind, Vec::with_capacity(rows)));
        let values: ArrayRef = Arc::clone(kinds) as ArrayRef;
        self.text_bytes = 0;
        Ok(vec![
            Arc::new(DictionaryArray::<UInt8Type>::try_new(codes, values)?),
            Arc::new(self.time.finish()),
            Arc::new(self.process.finish()),
            Arc::new(self.device.finish()),
            Arc::new(self.stream.finish()),
            Arc::new(self.pool_first.finish()),
            Arc::new(self.pool_second.finish()),
            Arc::new(self.address.finish()),
            Arc::new(self.size.finish()),
            Arc::new(self.requested.finish()),
            Arc::new(self.free.finish()),
            Arc::new(self.handle.finish()),
            Arc::new(self.stack.finish()),
            Arc::new(self.id.finish()),
            Arc::new(self.line.finish()),
            Arc::new(self.name.finish()),
            Arc::new(self.file.finish()),
            Arc::new(self.text.finish()),
            Arc::new(self.charged.finish()),
            Arc::new(self.in_use.finish()),
        ])
    }
}
