// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a recording row by row.
//!
//! One batch is decoded at a time and its rows are handed out as [`Event`]s; `meta` and `frame` rows are taken
//! in on the way and do not come out of the iterator. Memory is one batch, the stacks and the distinct texts,
//! whatever the length of the recording.
//!
//! Every message is checked for lengths before arrow sees it (`message`), arrow validates what it decodes, and
//! ids are checked here. As a last resort arrow runs under `catch_unwind`: its decoder contains assertions that
//! a hostile file may reach in ways we do not know, and a panic in a reader is worse than an error.
//!
//! **Invariant:** stack ids that come out of the iterator exist in [`Reader::stacks`].

use std::cell::Cell;
use std::collections::HashMap;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Int32Type, Int64Type, UInt8Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, DictionaryArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_ipc::MessageHeader;
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow_schema::{ArrowError, SchemaRef};

use crate::message::{Fault, Message, Messages, Next, limits};
use crate::schema::{self, Header};
use crate::{Event, Kind, Meta, Pool, ReadError, StackId, StackTable, TextId, Uses, meta};

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The writer finished it.
    Complete,
    /// It stops without the writer's end marker: the run crashed, or is still going on.
    Truncated {
        /// Bytes of an incomplete batch at the end that could not be used.
        dropped: u64,
    },
}

impl Ending {
    /// Whether the end is missing.
    pub const fn is_truncated(self) -> bool {
        matches!(self, Self::Truncated { .. })
    }
}

/// Reads a recording from `R`: an iterator of events that also collects facts and stacks.
///
/// After an error it ends; what came before is good. Give it a buffered or an unbuffered file, it reads in
/// large pieces either way.
#[derive(Debug)]
pub struct Reader<R> {
    messages: Messages<R>,
    schema: SchemaRef,
    header: Header,
    dictionaries: HashMap<i64, ArrayRef>,
    batch: Option<Batch>,
    intake: Intake,
    ending: Option<Ending>,
    failed: bool,
}

/// The items that were read so far.
#[derive(Debug, Default)]
struct Intake {
    stacks: StackTable,
    meta: Vec<Meta>,
    meta_bytes: u64,
    rows: u64,
    unknown_rows: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn new(source: R) -> Result<Self, ReadError> {
        Self::start(Messages::new(source))
    }

    /// The recording behind this one in the same file, if there is one: what is left of this one is passed over.
    ///
    /// A dry run that ran out of memory is followed by the same command on a device without a limit.
    pub fn into_next(mut self) -> Result<Option<Self>, ReadError> {
        while self.ending.is_none() {
            match self.messages.next() {
                Ok(Next::Message(_)) => {}
                Ok(Next::End) => self.ending = Some(Ending::Complete),
                Ok(Next::Cut { dropped }) => self.ending = Some(Ending::Truncated { dropped }),
                Err(fault) => return Err(self.fault(fault)),
            }
        }
        match Self::start(self.messages) {
            Ok(next) => Ok(Some(next)),
            // Nothing follows, or its beginning was never written whole.
            Err(ReadError::Headless { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn start(mut messages: Messages<R>) -> Result<Self, ReadError> {
        let first = match messages.next() {
            Ok(Next::Message(message)) => message,
            Ok(Next::End) => return Err(not_a_trace("an Arrow stream that ends at once")),
            Ok(Next::Cut { dropped }) => return Err(ReadError::Headless { length: dropped }),
            Err(Fault::Io(source)) => {
                return Err(ReadError::Io {
                    offset: messages.offset,
                    source,
                });
            }
            Err(Fault::Damaged(reason)) => {
                return Err(not_a_trace(&format!("the first message is odd: {reason}")));
            }
        };
        let schema =
            guarded(|| decode_schema(&first.header)).map_err(|reason| not_a_trace(&reason))?;
        if schema.fields().len() > limits::COLUMNS {
            return Err(not_a_trace(&format!(
                "more than {} columns",
                limits::COLUMNS
            )));
        }
        let header = schema::check(&schema)?;
        Ok(Self {
            messages,
            schema,
            header,
            dictionaries: HashMap::new(),
            batch: None,
            intake: Intake::default(),
            ending: None,
            failed: false,
        })
    }

    /// Format version of the file, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.header.version
    }

    /// The program that wrote the file.
    pub fn producer(&self) -> &str {
        &self.header.producer
    }

    /// Facts seen so far, in the order of the file.
    pub fn meta(&self) -> &[Meta] {
        &self.intake.meta
    }

    /// The latest value of a fact seen so far.
    pub fn fact(&self, process: u32, name: &str) -> Option<&str> {
        meta::find(&self.intake.meta, process, name)
    }

    /// Stacks and texts seen so far.
    pub fn stacks(&self) -> &StackTable {
        &self.intake.stacks
    }

    /// How the recording ends, once the iterator has reached it without an error.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Rows read so far, of every kind.
    pub fn rows(&self) -> u64 {
        self.intake.rows
    }

    /// Rows of kinds that a later minor version added, which were passed over.
    pub fn unknown_rows(&self) -> u64 {
        self.intake.unknown_rows
    }

    /// Gives up reading and keeps what was taken in: the stacks that events refer to, and the facts.
    pub fn into_parts(self) -> (StackTable, Vec<Meta>) {
        (self.intake.stacks, self.intake.meta)
    }

    fn step(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(batch) = &mut self.batch {
                if let Some(event) = batch.next(&mut self.intake)? {
                    return Ok(Some(event));
                }
                self.batch = None;
            }
            match self.messages.next() {
                Ok(Next::Message(message)) => self.accept(&message)?,
                Ok(Next::End) => self.ending = Some(Ending::Complete),
                Ok(Next::Cut { dropped }) => self.ending = Some(Ending::Truncated { dropped }),
                Err(fault) => return Err(self.fault(fault)),
            }
            if self.ending.is_some() {
                return Ok(None);
            }
        }
    }

    fn accept(&mut self, message: &Message) -> Result<(), ReadError> {
        let schema = Arc::clone(&self.schema);
        let dictionaries = &mut self.dictionaries;
        let decoded = guarded(|| decode(message, schema, dictionaries)).and_then(|batch| {
            batch
                .map(|batch| Batch::new(&batch, &self.header, message.offset))
                .transpose()
        });
        match decoded {
            Ok(batch) => self.batch = batch,
            Err(reason) => return Err(self.damaged(message.offset, reason)),
        }
        Ok(())
    }

    fn fault(&self, fault: Fault) -> ReadError {
        let offset = self.messages.offset;
        match fault {
            Fault::Io(source) => ReadError::Io { offset, source },
            Fault::Damaged(reason) => self.damaged(offset, reason),
        }
    }

    fn damaged(&self, offset: u64, reason: String) -> ReadError {
        ReadError::Damaged {
            offset,
            row: self.intake.rows,
            reason,
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.ending.is_some() {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        step.transpose()
    }
}

fn not_a_trace(reason: &str) -> ReadError {
    ReadError::NotATrace {
        reason: reason.to_owned(),
    }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is one that the reader expects of arrow and turns into an error.
///
/// For panic hooks: such a panic is not a bug to report to the user.
pub fn panic_is_guarded() -> bool {
    GUARDED.get()
}

/// Runs arrow on bytes from a file, turning its errors and its panics into a reason.
fn guarded<T>(decode: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, String> {
    GUARDED.set(true);
    // Nothing half-changed is used afterwards: the caller stops at the first failure.
    let result = catch_unwind(AssertUnwindSafe(decode));
    GUARDED.set(false);
    match result {
        Ok(result) => result.map_err(|error| first_line(&error.to_string())),
        Err(_) => Err("its contents contradict its header".to_owned()),
    }
}

fn parse(header: &[u8]) -> Result<arrow_ipc::Message<'_>, ArrowError> {
    arrow_ipc::root_as_message(header)
        .map_err(|_| ArrowError::ParseError("its header is not a valid flatbuffer".to_owned()))
}

/// A reason of arrow that is good for a message: some are pages of its insides.
fn first_line(reason: &str) -> String {
    const MOST: usize = 200;
    let line = reason.lines().next().unwrap_or_default();
    line.chars().take(MOST).collect()
}

fn decode_schema(header: &[u8]) -> Result<SchemaRef, ArrowError> {
    let message = parse(header)?;
    let schema = message
        .header_as_schema()
        .ok_or_else(|| ArrowError::ParseError("the first message is not a schema".to_owned()))?;
    Ok(Arc::new(arrow_ipc::convert::try_fb_to_schema(schema)?))
}

fn decode(
    message: &Message,
    schema: SchemaRef,
    dictionaries: &mut HashMap<i64, ArrayRef>,
) -> Result<Option<RecordBatch>, ArrowError> {
    let parsed = parse(&message.header)?;
    let version = parsed.version();
    match parsed.header_type() {
        MessageHeader::DictionaryBatch => {
            if let Some(batch) = parsed.header_as_dictionary_batch() {
                check_buffers(batch.data(), message.body.len())?;
                read_dictionary(&message.body, batch, &schema, dictionaries, &version)?;
            }
            Ok(None)
        }
        MessageHeader::RecordBatch => {
            let Some(batch) = parsed.header_as_record_batch() else {
                return Ok(None);
            };
            check_buffers(Some(batch), message.body.len())?;
            let decoder =
                RecordBatchDecoder::try_new(&message.body, batch, schema, dictionaries, &version)?;
            decoder.read_record_batch().map(Some)
        }
        other => Err(ArrowError::ParseError(format!(
            "a message of type {other:?} after the header"
        ))),
    }
}

/// Refuses buffers that lie outside the body or across the 8 bytes that the format aligns them to:
/// arrow takes both for granted in places, and panics.
fn check_buffers(batch: Option<arrow_ipc::RecordBatch<'_>>, body: usize) -> Result<(), ArrowError> {
    for buffer in batch
        .and_then(|batch| batch.buffers())
        .into_iter()
        .flatten()
    {
        let offset = usize::try_from(buffer.offset()).ok();
        let length = usize::try_from(buffer.length()).ok();
        let end = offset
            .zip(length)
            .and_then(|(offset, length)| offset.checked_add(length));
        if offset.is_none_or(|offset| !offset.is_multiple_of(8)) || end.is_none_or(|end| end > body)
        {
            return Err(ArrowError::ParseError(
                "a buffer is not aligned, or reaches past its message".to_owned(),
            ));
        }
    }
    Ok(())
}

/// A decoded batch and the row that comes next.
#[derive(Debug)]
struct Batch {
    offset: u64,
    row: usize,
    rows: usize,
    kinds: Vec<Option<Kind>>,
    kind: DictionaryArray<UInt8Type>,
    time: Option<PrimitiveArray<Int64Type>>,
    process: PrimitiveArray<UInt32Type>,
    device: Option<PrimitiveArray<Int32Type>>,
    stream: Option<PrimitiveArray<UInt64Type>>,
    pool_first: Option<PrimitiveArray<UInt32Type>>,
    pool_second: Option<PrimitiveArray<UInt32Type>>,
    address: Option<PrimitiveArray<UInt64Type>>,
    size: Option<PrimitiveArray<UInt64Type>>,
    requested: Option<PrimitiveArray<UInt64Type>>,
    free: Option<PrimitiveArray<UInt64Type>>,
    handle: Option<PrimitiveArray<UInt64Type>>,
    stack: Option<PrimitiveArray<UInt32Type>>,
    id: Option<PrimitiveArray<UInt32Type>>,
    line: Option<PrimitiveArray<UInt64Type>>,
    name: Option<StringArray>,
    file: Option<StringArray>,
    text: Option<StringArray>,
    charged: Option<PrimitiveArray<UInt64Type>>,
    in_use: Option<PrimitiveArray<UInt64Type>>,
    uses: Option<PrimitiveArray<UInt32Type>>,
    first_use: Option<PrimitiveArray<UInt32Type>>,
    last_use: Option<PrimitiveArray<UInt32Type>>,
    next_use: Option<PrimitiveArray<UInt32Type>>,
}

impl Batch {
    fn new(batch: &RecordBatch, header: &Header, offset: u64) -> Result<Self, String> {
        let column = |index: usize| {
            header
                .positions
                .get(index)
                .copied()
                .flatten()
                .map(|at| batch.column(at))
        };
        let kind = column(0)
            .and_then(|array| array.as_dictionary_opt::<UInt8Type>())
            .ok_or("its kinds are missing")?
            .clone();
        let names = kind
            .values()
            .as_string_opt::<i32>()
            .ok_or("its kinds have no names")?;
        let kinds = names
            .iter()
            .map(|name| name.and_then(Kind::from_name))
            .collect();
        let process = column(2)
            .and_then(numbers)
            .ok_or("its processes are missing")?;
        if kind.null_count() > 0 || process.null_count() > 0 {
            return Err("a row has no kind or no process".to_owned());
        }
        Ok(Self {
            offset,
            row: 0,
            rows: batch.num_rows(),
            kinds,
            kind,
            time: column(1).and_then(numbers),
            process,
            device: column(3).and_then(numbers),
            stream: column(4).and_then(numbers),
            pool_first: column(5).and_then(numbers),
            pool_second: column(6).and_then(numbers),
            address: column(7).and_then(numbers),
            size: column(8).and_then(numbers),
            requested: column(9).and_then(numbers),
            free: column(10).and_then(numbers),
            handle: column(11).and_then(numbers),
            stack: column(12).and_then(numbers),
            id: column(13).and_then(numbers),
            line: column(14).and_then(numbers),
            name: column(15).and_then(texts),
            file: column(16).and_then(texts),
            text: column(17).and_then(texts),
            charged: column(18).and_then(numbers),
            in_use: column(19).and_then(numbers),
            uses: column(20).and_then(numbers),
            first_use: column(21).and_then(numbers),
            last_use: column(22).and_then(numbers),
            next_use: column(23).and_then(numbers),
        })
    }

    /// The next event of the batch; takes in the facts and frames before it.
    fn next(&mut self, intake: &mut Intake) -> Result<Option<Event>, ReadError> {
        while self.row < self.rows {
            let row = self.row;
            let code = usize::from(self.kind.keys().value(row));
            let kind = self.kinds.get(code).copied().flatten();
            let taken = match kind {
                None => {
                    intake.unknown_rows += 1;
                    Ok(None)
                }
                Some(Kind::Meta) => self.take_meta(row, intake).map(|()| None),
                Some(Kind::Frame) => self.take_frame(row, intake).map(|()| None),
                Some(kind) => self.event(row, kind, intake).map(Some),
            };
            let event = taken?;
            self.row += 1;
            intake.rows += 1;
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    fn event(&self, row: usize, kind: Kind, intake: &mut Intake) -> Result<Event, ReadError> {
        let stack = number(self.stack.as_ref(), row).and_then(StackId::from_raw);
        if let Some(stack) = stack.filter(|stack| stack.get() as usize > intake.stacks.len()) {
            return Err(self.damaged(intake, format!("stack {} is not defined yet", stack.get())));
        }
        let pool =
            number(self.pool_first.as_ref(), row).zip(number(self.pool_second.as_ref(), row));
        Ok(Event {
            kind,
            process: self.process.value(row),
            device: number(self.device.as_ref(), row).unwrap_or(0),
            time: number(self.time.as_ref(), row),
            stream: number(self.stream.as_ref(), row).unwrap_or(0),
            address: number(self.address.as_ref(), row).unwrap_or(0),
            size: number(self.size.as_ref(), row).unwrap_or(0),
            requested: number(self.requested.as_ref(), row).unwrap_or(0),
            free: number(self.free.as_ref(), row).unwrap_or(0),
            handle: number(self.handle.as_ref(), row).unwrap_or(0),
            charged: number(self.charged.as_ref(), row),
            in_use: number(self.in_use.as_ref(), row),
            uses: number(self.uses.as_ref(), row).map(|count| Uses {
                count,
                first: number(self.first_use.as_ref(), row).unwrap_or(0),
                last: number(self.last_use.as_ref(), row).unwrap_or(0),
                next: number(self.next_use.as_ref(), row).unwrap_or(0),
            }),
            pool: pool.map(|(first, second)| Pool { first, second }),
            stack,
            name: intern(self.name.as_ref(), row, intake)?,
            text: intern(self.text.as_ref(), row, intake)?,
        })
    }

    fn take_meta(&self, row: usize, intake: &mut Intake) -> Result<(), ReadError> {
        let name = text(self.name.as_ref(), row).unwrap_or_default().to_owned();
        let text = text(self.text.as_ref(), row).unwrap_or_default().to_owned();
        // The struct itself counts too: a hostile file may hold millions of empty facts.
        intake.meta_bytes += (name.len() + text.len() + size_of::<Meta>()) as u64;
        intake.meta.push(Meta {
            process: self.process.value(row),
            name,
            text,
        });
        intake.check_texts()
    }

    fn take_frame(&self, row: usize, intake: &mut Intake) -> Result<(), ReadError> {
        let defined = intake.stacks.len();
        let id = number(self.id.as_ref(), row).unwrap_or(0);
        if id as usize != defined + 1 {
            return Err(self.damaged(intake, format!("frame {id} follows frame {defined}")));
        }
        if defined >= limits::FRAMES {
            return Err(ReadError::TooLarge {
                row: intake.rows,
                limit: limits::FRAMES as u64,
                what: "frames",
            });
        }
        let parent = number(self.stack.as_ref(), row).and_then(StackId::from_raw);
        if parent.is_some_and(|parent| parent.get() >= id) {
            return Err(self.damaged(intake, format!("frame {id} is called from a later frame")));
        }
        let function = intake
            .stacks
            .intern(text(self.name.as_ref(), row).unwrap_or_default());
        let file = intake
            .stacks
            .intern(text(self.file.as_ref(), row).unwrap_or_default());
        let frame =
            intake
                .stacks
                .frame(function, file, number(self.line.as_ref(), row).unwrap_or(0));
        intake.stacks.append(parent, frame);
        intake.check_texts()
    }

    fn damaged(&self, intake: &Intake, reason: String) -> ReadError {
        ReadError::Damaged {
            offset: self.offset,
            row: intake.rows,
            reason,
        }
    }
}

impl Intake {
    fn check_texts(&self) -> Result<(), ReadError> {
        if self.meta_bytes.saturating_add(self.stacks.text_bytes()) > limits::TEXTS {
            return Err(ReadError::TooLarge {
                row: self.rows,
                limit: limits::TEXTS,
                what: "bytes of text",
            });
        }
        Ok(())
    }
}

fn numbers<T: ArrowPrimitiveType>(array: &ArrayRef) -> Option<PrimitiveArray<T>> {
    array.as_primitive_opt::<T>().cloned()
}

fn texts(array: &ArrayRef) -> Option<StringArray> {
    array.as_string_opt::<i32>().cloned()
}

fn number<T: ArrowPrimitiveType>(
    column: Option<&PrimitiveArray<T>>,
    row: usize,
) -> Option<T::Native> {
    column
        .filter(|column| column.is_valid(row))
        .map(|column| column.value(row))
}

fn text(column: Option<&StringArray>, row: usize) -> Option<&str> {
    column
        .filter(|column| column.is_valid(row))
        .map(|column| column.value(row))
}

fn intern(
    column: Option<&StringArray>,
    row: usize,
    intake: &mut Intake,
) -> Result<Option<TextId>, ReadError> {
    let Some(text) = text(column, row) else {
        return Ok(None);
    };
    let id = intake.stacks.intern(text);
    intake.check_texts()?;
    Ok(Some(id))
}
