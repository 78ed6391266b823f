// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacks as a tree of shared frames, and the texts of a recording.
//!
//! A stack is named by its innermost frame; each node points to its caller, so stacks that share their outer
//! frames share their nodes and no stack is ever expanded. Ids start at 1, are dense, and a caller's id is
//! always smaller than its callee's: a file can define nodes in id order and a reader can check each as it
//! comes. Nothing is ever removed.
//!
//! Hash maps are only looked up, never iterated, so the random seed of the hasher (which keeps hostile files
//! from forcing collisions) does not reach any output.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU32;
use std::sync::Arc;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(NonZeroU32);

        impl $name {
            /// The number in the file.
            pub const fn get(self) -> u32 {
                self.0.get()
            }

            /// The id with this number; none for 0. The table determines whether it exists.
            pub const fn from_raw(number: u32) -> Option<Self> {
                match NonZeroU32::new(number) {
                    Some(number) => Some(Self(number)),
                    None => None,
                }
            }

            fn index(self) -> usize {
                self.0.get() as usize - 1
            }

            /// The id of element `index`; saturates, which the callers' limits rule out.
            fn at(index: usize) -> Self {
                let number = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
                Self(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
            }
        }
    };
}

id!(
    /// A text in a [`StackTable`].
    TextId
);
id!(
    /// A place in a program (function, file, line) in a [`StackTable`].
    FrameId
);
id!(
    /// A stack in a [`StackTable`]: its innermost frame together with everything outside it.
    StackId
);

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Function name.
    pub function: &'a str,
    /// File name.
    pub file: &'a str,
    /// Line; for C++ frames without line information, the offset in the module.
    pub line: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    function: TextId,
    file: TextId,
    line: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Number of the caller's node, 0 for none.
    parent: u32,
    frame: FrameId,
}

impl Node {
    fn key(self) -> u64 {
        u64::from(self.parent) << 32 | u64::from(self.frame.get())
    }
}

/// Texts, frames and stacks of a recording, each held once.
///
/// ```
/// use tonnage_recording::StackTable;
///
/// let mut table = StackTable::new();
/// let (main, step, file) = (table.intern("main"), table.intern("step"), table.intern("train.py"));
/// let outer = table.frame(main, file, 40);
/// let inner = table.frame(step, file, 12);
/// let stack = table.push_stack(&[inner, outer]).expect("it has frames");
/// // The same frames are the same stack.
/// assert_eq!(table.push_stack(&[inner, outer]), Some(stack));
/// let lines: Vec<u64> = table.frames(stack).map(|frame| frame.line).collect();
/// assert_eq!(lines, [12, 40]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct StackTable {
    texts: Vec<Arc<str>>,
    text_ids: HashMap<Arc<str>, TextId>,
    text_bytes: u64,
    places: Vec<Place>,
    place_ids: HashMap<Place, FrameId>,
    nodes: Vec<Node>,
    node_ids: HashMap<u64, StackId, SeededIds>,
    /// Nodes below this index are in `node_ids`; a reader never pays for the rest.
    indexed: usize,
}

impl StackTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// The id of a text, which is stored if it is new.
    pub fn intern(&mut self, text: &str) -> TextId {
        if let Some(id) = self.text_ids.get(text) {
            return *id;
        }
        let id = TextId::at(self.texts.len());
        let shared: Arc<str> = Arc::from(text);
        self.text_bytes += text.len() as u64;
        self.texts.push(Arc::clone(&shared));
        self.text_ids.insert(shared, id);
        id
    }

    /// The text of an id; empty for an id of another table that this one does not have.
    pub fn text(&self, id: TextId) -> &str {
        self.texts.get(id.index()).map_or("", |text| text)
    }

    /// The id of a place in a program, which is stored if it is new.
    pub fn frame(&mut self, function: TextId, file: TextId, line: u64) -> FrameId {
        let place = Place {
            function,
            file,
            line,
        };
        *self.place_ids.entry(place).or_insert_with(|| {
            self.places.push(place);
            FrameId::at(self.places.len() - 1)
        })
    }

    /// The stack that `frame` makes when called from `parent`, which is stored if it is new.
    pub fn push(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        if self.indexed < self.nodes.len() {
            self.index_nodes();
        }
        let node = Node {
            parent: parent.map_or(0, StackId::get),
            frame,
        };
        let nodes = &mut self.nodes;
        let id = *self.node_ids.entry(node.key()).or_insert_with(|| {
            nodes.push(node);
            StackId::at(nodes.len() - 1)
        });
        self.indexed = self.nodes.len();
        id
    }

    /// The stack made of these places, innermost first; none if there are none.
    pub fn push_stack(&mut self, innermost_first: &[FrameId]) -> Option<StackId> {
        innermost_first
            .iter()
            .rev()
            .fold(None, |parent, frame| Some(self.push(parent, *frame)))
    }

    /// Adds a node without looking for an equal one, so that ids read from a file stay as they are.
    pub(crate) fn append(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        self.nodes.push(Node {
            parent: parent.map_or(0, StackId::get),
            frame,
        });
        StackId::at(self.nodes.len() - 1)
    }

    #[cold]
    fn index_nodes(&mut self) {
        while let Some(node) = self.nodes.get(self.indexed) {
            self.node_ids
                .entry(node.key())
                .or_insert(StackId::at(self.indexed));
            self.indexed += 1;
        }
    }

    /// The innermost frame of a stack; none for an id of another table that this one does not have.
    pub fn top(&self, stack: StackId) -> Option<Frame<'_>> {
        let place = self
            .places
            .get(self.nodes.get(stack.index())?.frame.index())?;
        Some(Frame {
            function: self.text(place.function),
            file: self.text(place.file),
            line: place.line,
        })
    }

    /// The place of a stack's innermost frame.
    pub fn top_id(&self, stack: StackId) -> Option<FrameId> {
        self.nodes.get(stack.index()).map(|node| node.frame)
    }

    /// The stack without its innermost frame.
    pub fn parent(&self, stack: StackId) -> Option<StackId> {
        self.nodes
            .get(stack.index())
            .and_then(|node| StackId::from_raw(node.parent))
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: StackId) -> Frames<'_> {
        Frames {
            table: self,
            next: Some(stack),
        }
    }

    /// Number of stacks; their ids are 1 to this.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no stack.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of distinct texts.
    pub fn text_count(&self) -> usize {
        self.texts.len()
    }

    /// Bytes of all distinct texts.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// Copies a stack of another table into this one.
    pub fn adopt(&mut self, other: &Self, stack: StackId) -> StackId {
        let mut frames = Vec::new();
        for frame in other.frames(stack) {
            let (function, file) = (self.intern(frame.function), self.intern(frame.file));
            frames.push(self.frame(function, file, frame.line));
        }
        let mut id = None;
        for frame in frames.iter().rev() {
            id = Some(self.push(id, *frame));
        }
        // An id the other table does not have has no frames; it maps to itself and the writer refuses it.
        id.unwrap_or(stack)
    }
}

/// The frames of one stack, innermost first.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    table: &'a StackTable,
    next: Option<StackId>,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let stack = self.next?;
        // A parent's id is smaller than its child's, so this ends.
        self.next = self.table.parent(stack).filter(|parent| *parent < stack);
        self.table.top(stack)
    }
}

/// Hashes one `u64` by a wide multiplication with a random seed: a tenth of SipHash's cost, and a file's author
/// does not know the seed.
#[derive(Clone, Debug)]
struct SeededIds(u64);

impl Default for SeededIds {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for SeededIds {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.0)
    }
}

struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(value ^ self.0) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_share_ids_and_iterate_innermost_first() {
        let mut table = StackTable::new();
        let file = table.intern("train.py");
        let [outer, middle, inner] = ["main", "step", "forward"].map(|name| {
            let function = table.intern(name);
            table.frame(function, file, 7)
        });
        let first = table.push_stack(&[inner, middle, outer]).unwrap();
        let again = table.push_stack(&[inner, middle, outer]).unwrap();
        let sibling = table.push_stack(&[middle, outer]).unwrap();
        assert_eq!(first, again);
        assert_eq!(table.parent(first), Some(sibling));
        assert_eq!(table.len(), 3);
        let names: Vec<_> = table.frames(first).map(|frame| frame.function).collect();
        assert_eq!(names, ["forward", "step", "main"]);
        assert_eq!(table.push_stack(&[]), None);
    }

    #[test]
    fn appended_nodes_are_found_by_a_later_push() {
        let mut table = StackTable::new();
        let name = table.intern("f");
        let frame = table.frame(name, name, 1);
        let root = table.append(None, frame);
        let child = table.append(Some(root), frame);
        assert_eq!(table.push_stack(&[frame, frame]), Some(child));
    }

    #[test]
    fn a_stack_moves_to_another_table() {
        let (mut from, mut to) = (StackTable::new(), StackTable::new());
        let (function, file) = (from.intern("f"), from.intern("a.py"));
        let frames = [from.frame(function, file, 1), from.frame(function, file, 2)];
        let stack = from.push_stack(&frames).unwrap();
        let moved = to.adopt(&from, stack);
        assert!(to.frames(moved).eq(from.frames(stack)));
    }

    #[test]
    fn ids_of_another_table_are_harmless() {
        let table = StackTable::new();
        let stranger = StackId::from_raw(9).unwrap();
        assert_eq!(table.frames(stranger).count(), 0);
        assert_eq!(table.text(TextId::from_raw(3).unwrap()), "");
    }
}
