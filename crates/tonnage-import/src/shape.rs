// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dictionaries of a snapshot: events and blocks as fixed records, and the words that identify them.
//!
//! The schema has grown with every PyTorch version; missing keys keep their defaults, unknown keys are counted, and
//! only a value that contradicts its key (a negative size) is an error. Keys are compared by the id of their text,
//! looked up in a table with one byte per text.
//!
//! This file and `value` use each other: a record is set from values, and values keep records in place of the
//! dictionaries they recognise, so that a million events are never held as dictionaries.

use tonnage_recording::{Event, Kind, Pool, StackId, StackTable, TextId};

use crate::ImportError;
use crate::value::{Value, Values, View};

macro_rules! words {
    ($($word:ident $text:literal,)*) => {
        /// The keys and values of a snapshot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Word {
            /// Any other text.
            Other,
            $(#[doc = concat!("The text `", $text, "`.")] $word,)*
        }

        const WORDS: &[(Word, &str)] = &[$((Word::$word, $text),)*];
    };
}

words! {
    Action "action", Addr "addr", Address "address", Size "size", Stream "stream", TimeUs "time_us",
    CompileContext "compile_context", UserMetadata "user_metadata", PoolId "pool_id", Frames "frames",
    DeviceFree "device_free", Device "device", ForwardFrames "forward_frames",
    Name "name", Filename "filename", Line "line",
    State "state", RequestedSize "requested_size",
    Segments "segments", DeviceTraces "device_traces", AllocatorSettings "allocator_settings",
    ExternalAnnotations "external_annotations", HostSegments "host_segments", HostTraces "host_traces",
    TotalSize "total_size", AllocatedSize "allocated_size", ActiveSize "active_size",
    SegmentType "segment_type", SegmentPoolId "segment_pool_id", IsExpandable "is_expandable",
    Blocks "blocks",
    // More than a mask of 32 bits can hold; none of these is ever part of a mask.
    Stage "stage", Start "START", NotAvailable "N/A", Empty "", History "history", RealSize "real_size",
    InternalMetadata "internal_metadata",
    Alloc "alloc", FreeRequested "free_requested", FreeCompleted "free_completed", SegmentAlloc "segment_alloc",
    SegmentFree "segment_free", SegmentMap "segment_map", SegmentUnmap "segment_unmap", Snapshot "snapshot",
    Oom "oom", Annotate "annotate",
    ActiveAllocated "active_allocated", ActivePendingFree "active_pending_free",
    ActiveAwaitingFree "active_awaiting_free", Inactive "inactive", Small "small", Large "large",
}

impl Word {
    /// A bit for masks of keys; 0 for words that are not keys of a recognized shape.
    pub(crate) const fn bit(self) -> u32 {
        if (self as u8) < 32 {
            1 << (self as u8)
        } else {
            0
        }
    }

    fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Alloc => Kind::Alloc,
            Self::FreeRequested => Kind::FreeRequested,
            Self::FreeCompleted => Kind::FreeCompleted,
            Self::SegmentAlloc => Kind::SegmentAlloc,
            Self::SegmentFree => Kind::SegmentFree,
            Self::SegmentMap => Kind::SegmentMap,
            Self::SegmentUnmap => Kind::SegmentUnmap,
            Self::Snapshot => Kind::Snapshot,
            Self::Oom => Kind::Oom,
            Self::Annotate => Kind::Annotate,
            _ => return None,
        })
    }
}

/// Finds the word of a text id.
pub(crate) struct Words {
    by_id: Vec<Word>,
}

impl Words {
    pub(crate) fn new(stacks: &mut StackTable) -> Self {
        let mut by_id = Vec::new();
        for (word, text) in WORDS {
            let index = stacks.intern(text).get() as usize;
            if by_id.len() <= index {
                by_id.resize(index + 1, Word::Other);
            }
            by_id[index] = *word;
        }
        Self { by_id }
    }

    /// The word of a value that is a text.
    #[inline]
    pub(crate) fn word_of(&self, value: Value) -> Word {
        value
            .as_text()
            .map_or(Word::Other, |text| self.of_text(text))
    }

    #[inline]
    pub(crate) fn of_text(&self, text: TextId) -> Word {
        self.by_id
            .get(text.get() as usize)
            .copied()
            .unwrap_or(Word::Other)
    }
}

/// One event of a snapshot's trace, in 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// The address, or for an out-of-memory event what the driver had left.
    address: u64,
    size: u64,
    stream: u64,
    /// Nanoseconds; meaningful if `has_time`.
    time: i64,
    pool: Pool,
    stack: Option<StackId>,
    context: Option<TextId>,
    metadata: Option<TextId>,
    action: Option<TextId>,
    has_pool: bool,
    has_time: bool,
}

const _: () = assert!(
    size_of::<Entry>() <= 64,
    "a million of these are held at once"
);

impl Entry {
    pub(crate) fn set(
        &mut self,
        key: Value,
        value: Value,
        values: &mut Values<'_>,
    ) -> Result<(), ImportError> {
        let word = values.words.word_of(key);
        values.seen |= 1 << (word as u8);
        match word {
            Word::Action => self.action = value.as_text(),
            Word::Addr => self.address = address(value, values, "the address of an event")?,
            Word::DeviceFree => {
                self.address = bytes(value, values, "device_free of an event")?;
            }
            Word::Size => self.size = bytes(value, values, "the size of an event")?,
            Word::Stream => self.stream = address(value, values, "the stream of an event")?,
            Word::TimeUs => {
                self.time = nanoseconds(value, values, "the time of an event")?;
                self.has_time = true;
            }
            Word::CompileContext => self.context = read_text(value, values),
            Word::UserMetadata => self.metadata = read_text(value, values),
            Word::PoolId => {
                let pool = pool(value, values)?;
                self.has_pool = pool.is_some();
                self.pool = pool.unwrap_or_default();
            }
            Word::Frames => self.stack = values.stack(value)?,
            Word::ForwardFrames => values.dropped.forward_frames += 1,
            _ => values.dropped.entry_keys += 1,
        }
        Ok(())
    }

    /// The event; `device` is the list it stands in.
    pub(crate) fn event(&self, device: i32, words: &Words) -> Event {
        let known = self.action.and_then(|action| words.of_text(action).kind());
        let kind = known.unwrap_or(Kind::OtherAction);
        let (address, free) = if kind == Kind::Oom {
            (0, self.address)
        } else {
            (self.address, 0)
        };
        // A snapshot records the requested size of a block's events, not the size of the block.
        let asked = matches!(
            kind,
            Kind::Alloc | Kind::FreeRequested | Kind::FreeCompleted | Kind::Annotate
        );
        let (size, requested) = if asked {
            (0, self.size)
        } else {
            (self.size, 0)
        };
        Event {
            device,
            time: self.has_time.then_some(self.time),
            stream: self.stream,
            address,
            size,
            requested,
            free,
            pool: self.has_pool.then_some(self.pool),
            stack: self.stack,
            // The compile context of an action we do not know gives way to the action's own word.
            name: if known.is_some() {
                self.context
            } else {
                self.action
            },
            text: self.metadata,
            ..Event::new(kind)
        }
    }
}

/// State of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockState {
    /// Handed out.
    Allocated,
    /// Freed by the program, still waiting for another stream.
    PendingFree,
    /// Free.
    #[default]
    Inactive,
}

impl BlockState {
    /// PyTorch's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::PendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// First byte; 0 in files before addresses were recorded, then it follows from the blocks in front.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes the program requested; 0 for a free block.
    pub requested_size: u64,
    /// Its use.
    pub state: BlockState,
    /// Where it was allocated.
    pub stack: Option<StackId>,
}

impl Block {
    pub(crate) fn set(
        &mut self,
        key: Value,
        value: Value,
        values: &mut Values<'_>,
    ) -> Result<(), ImportError> {
        match values.words.word_of(key) {
            Word::Address => self.address = address(value, values, "the address of a block")?,
            Word::Size => self.size = bytes(value, values, "the size of a block")?,
            Word::RequestedSize => {
                self.requested_size = bytes(value, values, "the requested size of a block")?;
            }
            Word::State => self.state = state(value, values)?,
            Word::Frames => self.stack = values.stack(value)?,
            _ => values.dropped.block_keys += 1,
        }
        Ok(())
    }
}

fn state(value: Value, values: &Values<'_>) -> Result<BlockState, ImportError> {
    match values.words.word_of(value) {
        Word::ActiveAllocated => Ok(BlockState::Allocated),
        Word::ActivePendingFree | Word::ActiveAwaitingFree => Ok(BlockState::PendingFree),
        Word::Inactive => Ok(BlockState::Inactive),
        _ => {
            let text = value
                .as_text()
                .map_or("no text", |text| values.stacks.text(text));
            Err(impossible(
                "the state of a block",
                text.chars().take(60).collect(),
            ))
        }
    }
}

/// A meaningful text: not empty and not PyTorch's "N/A".
fn read_text(value: Value, values: &Values<'_>) -> Option<TextId> {
    value.as_text().filter(|text| {
        !matches!(
            values.words.of_text(*text),
            Word::NotAvailable | Word::Empty
        )
    })
}

fn impossible(what: &str, value: String) -> ImportError {
    ImportError::Value {
        what: what.to_owned(),
        value,
    }
}

/// A byte count.
#[inline]
pub(crate) fn bytes(value: Value, values: &Values<'_>, what: &str) -> Result<u64, ImportError> {
    if let Some(number) = value.as_int()
        && number >= 0
    {
        return Ok(number.cast_unsigned());
    }
    match values.view(value) {
        View::Int(number) => {
            u64::try_from(number).map_err(|_| impossible(what, number.to_string()))
        }
        other => Err(impossible(what, format!("{other:?}"))),
    }
}

/// An address or handle; PyTorch's C++ writer stores them signed.
#[inline]
pub(crate) fn address(value: Value, values: &Values<'_>, what: &str) -> Result<u64, ImportError> {
    if let Some(number) = value.as_int() {
        return Ok(number.cast_unsigned());
    }
    match values.view(value) {
        View::Int(number) => match (u64::try_from(number), i64::try_from(number)) {
            (Ok(number), _) => Ok(number),
            (_, Ok(number)) => Ok(number as u64),
            _ => Err(impossible(what, number.to_string())),
        },
        View::None => Ok(0),
        other => Err(impossible(what, format!("{other:?}"))),
    }
}

/// Microseconds as nanoseconds.
#[inline]
pub(crate) fn nanoseconds(
    value: Value,
    values: &Values<'_>,
    what: &str,
) -> Result<i64, ImportError> {
    if let Some(time) = value.as_int().and_then(|number| number.checked_mul(1000)) {
        return Ok(time);
    }
    match values.view(value) {
        View::Int(number) => number
            .checked_mul(1000)
            .and_then(|number| i64::try_from(number).ok())
            .ok_or_else(|| impossible(what, number.to_string())),
        other => Err(impossible(what, format!("{other:?}"))),
    }
}

/// A pool id: two numbers.
pub(crate) fn pool(value: Value, values: &Values<'_>) -> Result<Option<Pool>, ImportError> {
    let what = "a pool id";
    match values.view(value) {
        View::Pair(first, second) => Ok(Some(Pool { first, second })),
        View::List(list) => {
            let two = values
                .two_of_list(list)
                .ok_or_else(|| impossible(what, "not two numbers".to_owned()))?;
            let [first, second] = two.map(|value| match values.view(value) {
                View::Int(number) => {
                    u32::try_from(number).map_err(|_| impossible(what, number.to_string()))
                }
                other => Err(impossible(what, format!("{other:?}"))),
            });
            Ok(Some(Pool {
                first: first?,
                second: second?,
            }))
        }
        View::None => Ok(None),
        other => Err(impossible(what, format!("{other:?}"))),
    }
}
