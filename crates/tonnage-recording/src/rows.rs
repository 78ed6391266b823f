// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of a batch, and the columns that they become.
//!
//! Rows are kept as they come and turned into columns one column after the other: that is cheaper than adding each row
//! to twenty columns. Values that few rows have (texts, the fields of frames) are kept beside them with the number of
//! its row.

use std::sync::Arc;

use arrow_array::builder::{PrimitiveBuilder, StringBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Int32Type, Int64Type, UInt8Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, DictionaryArray, StringArray, UInt8Array};
use arrow_schema::ArrowError;

use crate::{Column, Event, Frame, Kind, StackId};

/// The rows of the batch under construction.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// A frame's row has its caller as its stack.
    events: Vec<Event>,
    names: Texts,
    files: Texts,
    texts: Texts,
    frames: Vec<FrameFields>,
    /// Bytes of all texts.
    pub(crate) text_bytes: usize,
}

/// The fields that only the row of a frame has, beside its texts.
#[derive(Clone, Copy, Debug)]
struct FrameFields {
    row: usize,
    id: u32,
    line: u64,
}

/// The texts of one column.
#[derive(Debug, Default)]
struct Texts {
    all: String,
    /// The row of each, and where it ends in `all`.
    ends: Vec<(usize, usize)>,
}

impl Texts {
    fn push(&mut self, row: usize, text: &str) {
        self.all.push_str(text);
        self.ends.push((row, self.all.len()));
    }

    fn clear(&mut self) {
        self.all.clear();
        self.ends.clear();
    }

    fn column(&self, rows: usize) -> ArrayRef {
        let mut builder = StringBuilder::with_capacity(rows, self.all.len());
        let (mut next, mut start) = (0, 0);
        for &(row, end) in &self.ends {
            builder.append_nulls(row - next);
            builder.append_value(&self.all[start..end]);
            (next, start) = (row + 1, end);
        }
        builder.append_nulls(rows - next);
        Arc::new(builder.finish())
    }
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn push(&mut self, event: &Event, name: Option<&str>, text: Option<&str>) {
        let row = self.len();
        for (texts, text) in [(&mut self.names, name), (&mut self.texts, text)] {
            if let Some(text) = text {
                texts.push(row, text);
                self.text_bytes += text.len();
            }
        }
        self.events.push(*event);
    }

    pub(crate) fn push_frame(&mut self, id: StackId, parent: Option<StackId>, frame: Frame<'_>) {
        let row = self.len();
        self.files.push(row, frame.file);
        self.text_bytes += frame.file.len();
        self.frames.push(FrameFields {
            row,
            id: id.get(),
            line: frame.line,
        });
        let event = Event {
            stack: parent,
            ..Event::new(Kind::Frame)
        };
        self.push(&event, Some(frame.function), None);
    }

    /// Makes room for the next batch, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.frames.clear();
        for texts in [&mut self.names, &mut self.files, &mut self.texts] {
            texts.clear();
        }
        self.text_bytes = 0;
    }

    /// The columns in the order of the schema.
    pub(crate) fn columns(&self, kinds: &Arc<StringArray>) -> Result<Vec<ArrayRef>, ArrowError> {
        let codes = self.events.iter().map(|event| event.kind as u8);
        let codes = UInt8Array::from_iter_values(codes);
        let values: ArrayRef = Arc::clone(kinds) as ArrayRef;
        let rows = self.len();
        Ok(vec![
            Arc::new(DictionaryArray::<UInt8Type>::try_new(codes, values)?),
            self.column::<Int64Type>(|event| event.time),
            self.column::<UInt32Type>(|event| Some(event.process)),
            self.column::<Int32Type>(|event| {
                let columns = event.kind.columns();
                (columns.has(Column::Device) || event.device != 0).then_some(event.device)
            }),
            self.shown(Column::Stream, |event| event.stream),
            self.column::<UInt32Type>(|event| event.pool.map(|pool| pool.first)),
            self.column::<UInt32Type>(|event| event.pool.map(|pool| pool.second)),
            self.shown(Column::Address, |event| event.address),
            self.shown(Column::Size, |event| event.size),
            self.shown(Column::Requested, |event| event.requested),
            self.shown(Column::Free, |event| event.free),
            self.shown(Column::Handle, |event| event.handle),
            self.column::<UInt32Type>(|event| event.stack.map(StackId::get)),
            self.of_frames::<UInt32Type>(|frame| frame.id),
            self.of_frames::<UInt64Type>(|frame| frame.line),
            self.names.column(rows),
            self.files.column(rows),
            self.texts.column(rows),
            self.column::<UInt64Type>(|event| event.charged),
            self.column::<UInt64Type>(|event| event.in_use),
            self.column::<UInt32Type>(|event| event.uses.map(|uses| uses.count)),
            self.column::<UInt32Type>(|event| event.uses.map(|uses| uses.first)),
            self.column::<UInt32Type>(|event| event.uses.map(|uses| uses.last)),
            self.column::<UInt32Type>(|event| {
                let next = event.uses.map(|uses| uses.next);
                next.filter(|&next| next > 0)
            }),
        ])
    }

    fn column<T: ArrowPrimitiveType>(
        &self,
        value: impl Fn(&Event) -> Option<T::Native>,
    ) -> ArrayRef {
        let mut builder = PrimitiveBuilder::<T>::with_capacity(self.len());
        // A column has its values in most rows or in few.
        let mut absent = 0;
        for event in &self.events {
            if let Some(value) = value(event) {
                builder.append_nulls(std::mem::take(&mut absent));
                builder.append_value(value);
            } else {
                absent += 1;
            }
        }
        builder.append_nulls(absent);
        Arc::new(builder.finish())
    }

    /// A column that some kinds have. A value that the kind does not promise is still written, so that nothing is lost.
    fn shown(&self, column: Column, value: impl Fn(&Event) -> u64) -> ArrayRef {
        self.column::<UInt64Type>(|event| {
            let value = value(event);
            (value != 0 || event.kind.columns().has(column)).then_some(value)
        })
    }

    fn of_frames<T: ArrowPrimitiveType>(
        &self,
        value: impl Fn(&FrameFields) -> T::Native,
    ) -> ArrayRef {
        let mut builder = PrimitiveBuilder::<T>::with_capacity(self.len());
        let mut next = 0;
        for frame in &self.frames {
            builder.append_nulls(frame.row - next);
            builder.append_value(value(frame));
            next = frame.row + 1;
        }
        builder.append_nulls(self.len() - next);
        Arc::new(builder.finish())
    }
}
