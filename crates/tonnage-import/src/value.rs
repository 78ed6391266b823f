// SPDX-License-Identifier: MIT OR Apache-2.0
//! Python values as eight-byte words, and the containers they live in.
//!
//! A snapshot repeats the same few strings, frames and stacks a million times through the pickle's memo. So a
//! value is a tagged word (small integers and pairs of them inside the word, everything else an id), texts are
//! interned, and containers are slots: a reference to a container is a copy of its id, never of its contents.
//!
//! Containers turn into a shape of a snapshot as soon as their keys identify it (`shape`), and their general storage is
//! used again. A million event dictionaries thus cost one record each instead of one map each, and a list of frames
//! becomes one stack id the first time it is used.
//!
//! This module knows neither pickle nor JSON; both readers build through it.

use tonnage_recording::{FrameId, StackId, StackTable, TextId, limits};

use crate::ImportError;
use crate::shape::{Block, Entry, Word, Words};

/// Lists, dictionaries and tuples of one file, each.
const MAX_CONTAINERS: usize = 1 << 26;
/// Events of one file: about a gigabyte of records.
const MAX_ENTRIES: usize = 1 << 24;
/// Containers in general storage at the same time. A snapshot has a few per segment.
const MAX_GENERAL: usize = 1 << 22;
/// Elements of one list read item by item: none is longer than the containers of the file can be.
const MAX_ITEMS: usize = 1 << 26;

/// Smallest and largest size of the table of recent stacks; powers of two.
const RECENT_FIRST: usize = 1 << 8;
const RECENT_LAST: usize = 1 << 18;

/// Keys that make a dictionary a frame.
/// The file that frames of tonnage's own Python hook are in. They are left out: a stack is that of the program.
const RECORDER: &str = "<tonnage>";
const FRAME: u32 = Word::Name.bit() | Word::Filename.bit() | Word::Line.bit();
/// Keys that make a dictionary a block.
const BLOCK: u32 = Word::Address.bit() | Word::Size.bit() | Word::State.bit();

const TAG_BITS: u32 = 4;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const PAIR_BITS: u32 = 30;

const TAG_INT: u64 = 0;
const TAG_CONST: u64 = 1;
const TAG_TEXT: u64 = 2;
const TAG_LIST: u64 = 3;
const TAG_DICT: u64 = 4;
const TAG_PAIR: u64 = 5;
const TAG_WIDE: u64 = 6;
const TAG_FLOAT: u64 = 7;

/// A value in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value(u64);

/// A value, taken apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum View {
    None,
    Bool(bool),
    /// Bytes and other things a snapshot has no use for.
    Opaque,
    Int(i128),
    Float(f64),
    Text(TextId),
    /// A tuple of two small numbers.
    Pair(u32, u32),
    /// A list, or a tuple of any other kind.
    List(u32),
    Dict(u32),
}

impl Value {
    pub(crate) const NONE: Self = Self(TAG_CONST);
    pub(crate) const TRUE: Self = Self(1 << TAG_BITS | TAG_CONST);
    pub(crate) const FALSE: Self = Self(2 << TAG_BITS | TAG_CONST);
    pub(crate) const OPAQUE: Self = Self(3 << TAG_BITS | TAG_CONST);

    /// No value: a hole in the memo.
    pub(crate) const UNSET: Self = Self(4 << TAG_BITS | TAG_CONST);

    const fn tagged(tag: u64, payload: u32) -> Self {
        Self((payload as u64) << TAG_BITS | tag)
    }

    #[inline]
    pub(crate) const fn text(id: TextId) -> Self {
        Self::tagged(TAG_TEXT, id.get())
    }

    /// An integer that fits a word, which all of 32 bits do.
    #[inline]
    pub(crate) const fn small(number: i32) -> Self {
        Self((number as i64 as u64) << TAG_BITS | TAG_INT)
    }

    const fn tag(self) -> u64 {
        self.0 & TAG_MASK
    }

    const fn payload(self) -> u32 {
        (self.0 >> TAG_BITS) as u32
    }

    /// An integer that fits the word, which nearly all do.
    #[inline]
    pub(crate) const fn as_int(self) -> Option<i64> {
        if self.tag() == TAG_INT {
            Some(self.0 as i64 >> TAG_BITS)
        } else {
            None
        }
    }

    /// The id of a text.
    #[inline]
    pub(crate) fn as_text(self) -> Option<TextId> {
        if self.tag() == TAG_TEXT {
            TextId::from_raw(self.payload())
        } else {
            None
        }
    }
}

/// A dictionary.
#[derive(Clone, Copy, Debug)]
enum Dict {
    Empty,
    /// General storage, an index into `Values::maps`.
    Open(u32),
    Frame(FrameId),
    /// An index into `Values::entries`.
    Entry(u32),
    /// An index into `Values::blocks`.
    Block(u32),
    /// A frame of the recorder itself, which no stack shows.
    RecorderFrame,
}

/// A list or tuple.
#[derive(Clone, Copy, Debug)]
enum List {
    Empty,
    /// General storage, an index into `Values::items`.
    Open(u32),
    /// A list of frames that became a stack.
    Stack(Option<StackId>),
    /// Read once as a list of events or blocks; a second time would multiply them.
    Spent,
}

/// All values of one file.
pub(crate) struct Values<'a> {
    pub(crate) stacks: &'a mut StackTable,
    pub(crate) words: Words,
    pub(crate) entries: Vec<Entry>,
    pub(crate) blocks: Vec<Block>,
    /// Keys that any event had, one bit per word.
    pub(crate) seen: u64,
    /// Objects that were read and not kept.
    pub(crate) dropped: Dropped,
    dicts: Vec<Dict>,
    lists: Vec<List>,
    maps: Pool<(Value, Value)>,
    items: Pool<Value>,
    wide: Vec<i128>,
    floats: Vec<f64>,
    frames: Vec<FrameId>,
    /// For each hash of a list of frames, the stack it was last time.
    recent: Vec<Option<StackId>>,
    /// Since the table has its size.
    recent_misses: usize,
}

/// Counts of what a trace has no place for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dropped {
    /// Extra keys of frames.
    pub(crate) frame_keys: u64,
    /// Frames without name, file or line.
    pub(crate) frames: u64,
    /// Unknown keys of events.
    pub(crate) entry_keys: u64,
    /// Lists of forward frames.
    pub(crate) forward_frames: u64,
    /// Unknown keys of blocks.
    pub(crate) block_keys: u64,
    /// Unknown keys of segments.
    pub(crate) segment_keys: u64,
}

/// Vectors that are used again.
struct Pool<T> {
    all: Vec<Vec<T>>,
    unused: Vec<u32>,
}

impl<T> Pool<T> {
    const fn new() -> Self {
        Self {
            all: Vec::new(),
            unused: Vec::new(),
        }
    }

    fn obtain(&mut self) -> u32 {
        self.unused.pop().unwrap_or_else(|| {
            self.all.push(Vec::new());
            self.all.len() as u32 - 1
        })
    }

    fn take(&mut self, index: u32) -> Vec<T> {
        std::mem::take(&mut self.all[index as usize])
    }

    /// Puts an emptied vector back, keeping its memory if it is of ordinary size.
    fn give_back(&mut self, index: u32, mut vector: Vec<T>) {
        vector.clear();
        vector.shrink_to(256);
        self.all[index as usize] = vector;
        self.unused.push(index);
    }
}

impl<'a> Values<'a> {
    pub(crate) fn new(stacks: &'a mut StackTable) -> Self {
        let words = Words::new(stacks);
        Self {
            stacks,
            words,
            entries: Vec::new(),
            blocks: Vec::new(),
            seen: 0,
            dropped: Dropped::default(),
            dicts: Vec::new(),
            lists: Vec::new(),
            maps: Pool::new(),
            items: Pool::new(),
            wide: Vec::new(),
            floats: Vec::new(),
            frames: Vec::new(),
            recent: vec![None; RECENT_FIRST],
            recent_misses: 0,
        }
    }

    #[inline]
    pub(crate) fn view(&self, value: Value) -> View {
        let payload = value.payload();
        match value.tag() {
            TAG_INT => View::Int(i128::from(value.0 as i64 >> TAG_BITS)),
            TAG_TEXT => TextId::from_raw(payload).map_or(View::None, View::Text),
            TAG_LIST => View::List(payload),
            TAG_DICT => View::Dict(payload),
            TAG_PAIR => {
                let both = value.0 >> TAG_BITS;
                View::Pair(
                    (both >> PAIR_BITS) as u32,
                    (both & ((1 << PAIR_BITS) - 1)) as u32,
                )
            }
            TAG_WIDE => View::Int(self.wide[payload as usize]),
            TAG_FLOAT => View::Float(self.floats[payload as usize]),
            _ => match value {
                Value::TRUE => View::Bool(true),
                Value::FALSE => View::Bool(false),
                Value::OPAQUE => View::Opaque,
                _ => View::None,
            },
        }
    }

    /// An integer of any size.
    #[inline]
    pub(crate) fn int(&mut self, number: i128) -> Value {
        if let Ok(small) = i64::try_from(number)
            && (small << TAG_BITS) >> TAG_BITS == small
        {
            return Value((small as u64) << TAG_BITS | TAG_INT);
        }
        self.wide.push(number);
        Value::tagged(TAG_WIDE, self.wide.len() as u32 - 1)
    }

    pub(crate) fn float(&mut self, number: f64) -> Value {
        self.floats.push(number);
        Value::tagged(TAG_FLOAT, self.floats.len() as u32 - 1)
    }

    /// A text; bytes that are not UTF-8 (Python allows them in file names) are replaced.
    pub(crate) fn text(stacks: &mut StackTable, bytes: &[u8]) -> Result<Value, ImportError> {
        let id = match std::str::from_utf8(bytes) {
            Ok(text) => stacks.intern(text),
            Err(_) => stacks.intern(&String::from_utf8_lossy(bytes)),
        };
        if stacks.text_bytes() > limits::TEXTS {
            return Err(ImportError::TooLarge {
                what: "bytes of text",
                limit: limits::TEXTS,
            });
        }
        Ok(Value::text(id))
    }

    /// Bytes of numbers that did not fit a word are bounded like containers.
    pub(crate) fn check_size(&self) -> Result<(), ImportError> {
        let most = self
            .dicts
            .len()
            .max(self.lists.len())
            .max(self.wide.len())
            .max(self.floats.len());
        if most > MAX_CONTAINERS {
            return Err(ImportError::TooLarge {
                what: "lists, dictionaries or large numbers",
                limit: MAX_CONTAINERS as u64,
            });
        }
        let entries = self.entries.len().max(self.blocks.len());
        if entries > MAX_ENTRIES {
            return Err(ImportError::TooLarge {
                what: "events",
                limit: MAX_ENTRIES as u64,
            });
        }
        if self.maps.all.len().max(self.items.all.len()) > MAX_GENERAL {
            return Err(ImportError::TooLarge {
                what: "lists or dictionaries that are not part of a snapshot",
                limit: MAX_GENERAL as u64,
            });
        }
        Ok(())
    }

    pub(crate) fn new_dict(&mut self) -> Value {
        self.dicts.push(Dict::Empty);
        Value::tagged(TAG_DICT, self.dicts.len() as u32 - 1)
    }

    pub(crate) fn new_list(&mut self) -> Value {
        self.lists.push(List::Empty);
        Value::tagged(TAG_LIST, self.lists.len() as u32 - 1)
    }

    /// A tuple: two small numbers stay in the word, anything else is a list.
    pub(crate) fn tuple(&mut self, items: &[Value]) -> Result<Value, ImportError> {
        if let [first, second] = items
            && let (View::Int(first), View::Int(second)) = (self.view(*first), self.view(*second))
            && (0..1 << PAIR_BITS).contains(&first)
            && (0..1 << PAIR_BITS).contains(&second)
        {
            let both = (first as u64) << PAIR_BITS | second as u64;
            return Ok(Value(both << TAG_BITS | TAG_PAIR));
        }
        let list = self.new_list();
        self.extend_list(list, items)?;
        Ok(list)
    }

    /// Appends to a list.
    pub(crate) fn extend_list(&mut self, list: Value, new: &[Value]) -> Result<(), ImportError> {
        let View::List(id) = self.view(list) else {
            return Err(odd("appends to something that is not a list"));
        };
        if new.is_empty() {
            return Ok(());
        }
        let slot = match self.lists[id as usize] {
            List::Open(slot) => slot,
            List::Empty => {
                let slot = self.items.obtain();
                self.lists[id as usize] = List::Open(slot);
                slot
            }
            List::Stack(_) | List::Spent => return Err(odd("changes a list after using it")),
        };
        let items = &mut self.items.all[slot as usize];
        if items.len() + new.len() > MAX_ITEMS {
            return Err(ImportError::TooLarge {
                what: "elements of a list",
                limit: MAX_ITEMS as u64,
            });
        }
        items.extend_from_slice(new);
        Ok(())
    }

    /// Sets keys of a dictionary, given as key, value, key, value.
    pub(crate) fn extend_dict(&mut self, dict: Value, new: &[Value]) -> Result<(), ImportError> {
        let View::Dict(id) = self.view(dict) else {
            return Err(odd("sets keys of something that is not a dictionary"));
        };
        if !new.len().is_multiple_of(2) {
            return Err(odd("sets a key without a value"));
        }
        let pairs = new.as_chunks::<2>().0;
        let dict = self.dicts[id as usize];
        match dict {
            Dict::Entry(entry) => return self.set_entry(entry, pairs),
            Dict::Block(block) => return self.set_block(block, pairs),
            Dict::Frame(_) | Dict::RecorderFrame => {
                self.dropped.frame_keys += pairs.len() as u64;
                return Ok(());
            }
            // The common case: a complete event or frame in one go, with no general storage in between.
            Dict::Empty if self.recognise(id, pairs)? => return Ok(()),
            Dict::Empty if pairs.is_empty() => return Ok(()),
            Dict::Empty => self.dicts[id as usize] = Dict::Open(self.maps.obtain()),
            Dict::Open(_) => {}
        }
        let Dict::Open(slot) = self.dicts[id as usize] else {
            return Ok(());
        };
        let map = &mut self.maps.all[slot as usize];
        map.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        // Older protocols set keys one at a time: look again while the dictionary is small.
        if map.len() > pairs.len() && map.len() <= 16 {
            let map = self.maps.take(slot);
            let pairs: Vec<[Value; 2]> = map.iter().map(|(key, value)| [*key, *value]).collect();
            let known = self.recognise(id, &pairs)?;
            if known {
                self.maps.give_back(slot, map);
            } else {
                self.maps.all[slot as usize] = map;
            }
        }
        Ok(())
    }

    /// Turns dictionary `id` into an event, frame or block if its keys match.
    fn recognise(&mut self, id: u32, pairs: &[[Value; 2]]) -> Result<bool, ImportError> {
        let mut found = 0_u32;
        for [key, _] in pairs {
            found |= self.words.word_of(*key).bit();
            // Every writer puts it first.
            if found & Word::Action.bit() != 0 {
                break;
            }
        }
        if found & Word::Action.bit() != 0 {
            self.entries.push(Entry::default());
            let entry = self.entries.len() as u32 - 1;
            self.dicts[id as usize] = Dict::Entry(entry);
            self.set_entry(entry, pairs)?;
            return Ok(true);
        }
        if found & FRAME == FRAME {
            let frame = self.make_frame(pairs);
            if let Some(frame) = frame {
                self.dicts[id as usize] = frame;
            }
            return Ok(frame.is_some());
        }
        if found & BLOCK == BLOCK {
            self.blocks.push(Block::default());
            let block = self.blocks.len() as u32 - 1;
            self.dicts[id as usize] = Dict::Block(block);
            self.set_block(block, pairs)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn make_frame(&mut self, pairs: &[[Value; 2]]) -> Option<Dict> {
        let (mut function, mut file, mut line) = (None, None, 0);
        for [key, value] in pairs {
            match (self.words.word_of(*key), self.view(*value)) {
                (Word::Name, View::Text(text)) => function = Some(text),
                (Word::Filename, View::Text(text)) => file = Some(text),
                (Word::Line, View::Int(number)) => line = u64::try_from(number).unwrap_or(0),
                (Word::Line, _) => {}
                _ => self.dropped.frame_keys += 1,
            }
        }
        let (function, file) = (function?, file?);
        if self.stacks.text(file) == RECORDER {
            return Some(Dict::RecorderFrame);
        }
        Some(Dict::Frame(self.stacks.frame(function, file, line)))
    }

    fn set_entry(&mut self, entry: u32, pairs: &[[Value; 2]]) -> Result<(), ImportError> {
        let mut record = self.entries[entry as usize];
        for [key, value] in pairs {
            record.set(*key, *value, self)?;
        }
        self.entries[entry as usize] = record;
        Ok(())
    }

    fn set_block(&mut self, block: u32, pairs: &[[Value; 2]]) -> Result<(), ImportError> {
        let mut record = self.blocks[block as usize];
        for [key, value] in pairs {
            record.set(*key, *value, self)?;
        }
        self.blocks[block as usize] = record;
        Ok(())
    }

    /// The stack that a list of frames is. The list gives up its elements: from now on it is that stack.
    pub(crate) fn stack(&mut self, value: Value) -> Result<Option<StackId>, ImportError> {
        let View::List(id) = self.view(value) else {
            return Ok(None);
        };
        let slot = match self.lists[id as usize] {
            List::Stack(stack) => return Ok(stack),
            List::Empty | List::Spent => return Ok(None),
            List::Open(slot) => slot,
        };
        let items = self.items.take(slot);
        self.frames.clear();
        for item in &items {
            match self.view(*item) {
                View::Dict(dict) => match self.dicts[dict as usize] {
                    Dict::RecorderFrame => {}
                    Dict::Frame(frame) => self.frames.push(frame),
                    _ => self.dropped.frames += 1,
                },
                _ => self.dropped.frames += 1,
            }
        }
        self.items.give_back(slot, items);
        let stack = self.push_frames();
        if self.stacks.len() > limits::FRAMES {
            return Err(ImportError::TooLarge {
                what: "distinct frames",
                limit: limits::FRAMES as u64,
            });
        }
        self.lists[id as usize] = List::Stack(stack);
        Ok(stack)
    }

    /// The stack of `self.frames`. A program allocates from the same places again and again, so the stack that
    /// an equal list had last time is tried first: comparing it costs a fifth of looking up every frame.
    fn push_frames(&mut self) -> Option<StackId> {
        let hash = self.frames.iter().fold(0_u64, |hash, frame| {
            (hash.rotate_left(5) ^ u64::from(frame.get())).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let place = (hash >> (64 - self.recent.len().trailing_zeros())) as usize;
        if let Some(recent) = self.recent[place].filter(|recent| self.is_stack(*recent)) {
            return Some(recent);
        }
        let stack = self.stacks.push_stack(&self.frames);
        self.recent[place] = stack;
        self.recent_misses += 1;
        if self.recent_misses > self.recent.len() && self.recent.len() < RECENT_LAST {
            self.recent = vec![None; self.recent.len() * 4];
            self.recent_misses = 0;
        }
        stack
    }

    /// Whether `stack` consists of exactly `self.frames`.
    fn is_stack(&self, stack: StackId) -> bool {
        let mut next = Some(stack);
        for frame in &self.frames {
            match next {
                Some(stack) if self.stacks.top_id(stack) == Some(*frame) => {
                    next = self.stacks.parent(stack);
                }
                _ => return false,
            }
        }
        next.is_none()
    }

    /// Takes the elements of a list, once.
    pub(crate) fn drain(&mut self, value: Value, what: &str) -> Result<Vec<Value>, ImportError> {
        let View::List(id) = self.view(value) else {
            return Err(ImportError::NotASnapshot {
                reason: format!("{what} is not a list"),
            });
        };
        match self.lists[id as usize] {
            List::Empty | List::Stack(None) => Ok(Vec::new()),
            List::Open(slot) => {
                self.lists[id as usize] = List::Spent;
                Ok(self.items.take(slot))
            }
            List::Stack(Some(_)) | List::Spent => Err(ImportError::NotASnapshot {
                reason: format!("{what} is a list that is also used elsewhere"),
            }),
        }
    }

    /// The first two elements of a short list, for pairs that came as a list.
    pub(crate) fn two_of_list(&self, id: u32) -> Option<[Value; 2]> {
        match self.lists[id as usize] {
            List::Open(slot) => {
                <[Value; 2]>::try_from(self.items.all[slot as usize].as_slice()).ok()
            }
            _ => None,
        }
    }

    /// The pairs of a general dictionary.
    pub(crate) fn pairs(&self, value: Value) -> Option<&[(Value, Value)]> {
        let View::Dict(id) = self.view(value) else {
            return None;
        };
        match self.dicts[id as usize] {
            Dict::Open(slot) => Some(&self.maps.all[slot as usize]),
            Dict::Empty => Some(&[]),
            _ => None,
        }
    }

    /// The index of the event that a dictionary is.
    pub(crate) fn entry_index(&self, value: Value) -> Option<u32> {
        match self.view(value) {
            View::Dict(id) => match self.dicts[id as usize] {
                Dict::Entry(entry) => Some(entry),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether any event had this key.
    pub(crate) fn has_seen(&self, word: Word) -> bool {
        self.seen & 1 << (word as u8) != 0
    }

    /// The block that a dictionary is; one without an address (old files) is read from its pairs.
    pub(crate) fn block(&mut self, value: Value) -> Result<Option<Block>, ImportError> {
        let View::Dict(id) = self.view(value) else {
            return Ok(None);
        };
        match self.dicts[id as usize] {
            Dict::Block(block) => Ok(self.blocks.get(block as usize).copied()),
            Dict::Open(slot) => {
                let mut record = Block::default();
                for (key, value) in self.maps.all[slot as usize].clone() {
                    record.set(key, value, self)?;
                }
                Ok(Some(record))
            }
            _ => Ok(None),
        }
    }
}

fn odd(what: &str) -> ImportError {
    ImportError::NotASnapshot {
        reason: format!("it {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_pairs_survive_the_word() {
        let mut table = StackTable::new();
        let mut values = Values::new(&mut table);
        for number in [
            0,
            1,
            -1,
            i64::from(i32::MIN),
            1 << 58,
            -(1 << 59),
            i64::MAX,
            i64::MIN,
        ] {
            let value = values.int(i128::from(number));
            assert_eq!(values.view(value), View::Int(i128::from(number)));
        }
        let (small, large) = (Value::small(7), values.int(1 << 40));
        let pair = values.tuple(&[small, small]).unwrap();
        assert_eq!(values.view(pair), View::Pair(7, 7));
        let list = values.tuple(&[small, large]).unwrap();
        assert!(matches!(values.view(list), View::List(_)));
        assert_eq!(values.view(Value::small(-5)), View::Int(-5));
    }
}
