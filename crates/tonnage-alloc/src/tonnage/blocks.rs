// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of blocks: one vector, indices instead of pointers.
//!
//! A block fills one cache line. Vacant entries are chained through `next`, so
//! a program whose number of blocks is steady never makes the vector grow.
//!
//! Where a plan is followed, the blocks below its height are also found by
//! address, because a plan names addresses.

use std::collections::BTreeMap;

/// An index that points at nothing.
pub(super) const NONE: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A part of the program's memory.
    Used,
    /// Freed, and a stream that was named for it may still use it.
    Pending,
    /// Unused memory, in a list of its lane.
    Free,
    /// Addresses without memory, whole pages of them, in the list of gaps.
    Gap,
    /// A part of a page without memory, which a block left that was freed meanwhile; in no list.
    Left,
    /// An entry of the table that is not a block.
    Vacant,
}

/// A range of the address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Distance from the first address.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Bytes the program requested, while it is used or pending.
    pub(super) requested: u64,
    /// While it is free: which work of its lane's stream may still use it.
    pub(super) epoch: u64,
    /// Neighbours by address; they touch.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// Neighbours in a list of free blocks or of gaps.
    pub(super) list_prev: u32,
    pub(super) list_next: u32,
    /// Its owner.
    pub(super) lane: u32,
    /// The first of the streams that were named for it.
    pub(super) uses: u32,
    pub(super) state: State,
    /// The program's name for it, while it is used or pending.
    pub(super) tag: u16,
    /// Whether a handle owns it, while it is used: its address alone does not free it.
    pub(super) owned: bool,
}

const _: () = assert!(size_of::<Block>() == 64, "a block fills one cache line");

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }
}

/// A place for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Window {
    /// Pages that have to be mapped.
    pub(super) missing: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The free block or gap that `start` lies in.
    pub(super) block: u32,
}

/// Whole pages of a free block, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRange {
    pub(super) block: u32,
    pub(super) first: u64,
    /// One past the last.
    pub(super) last: u64,
}

/// All blocks of an address space.
///
/// **Invariant:** those that are not vacant follow each other by address from 0
/// to the end without a hole.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    table: Vec<Block>,
    vacant: u32,
    /// Blocks that start below this are found by address.
    planned: u64,
    starts: BTreeMap<u64, u32>,
}

impl std::ops::Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.table[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.table[index as usize]
    }
}

impl Blocks {
    /// The block at the lowest address; it is always the same entry.
    pub(super) const FIRST: u32 = 0;

    /// Gaps of so many bytes: one below the height of a plan, if there is one, and one above.
    pub(super) fn new(span: u64, planned: u64) -> Self {
        let whole = Block {
            offset: 0,
            size: span,
            requested: 0,
            epoch: 0,
            prev: NONE,
            next: NONE,
            list_prev: NONE,
            list_next: NONE,
            lane: NONE,
            uses: NONE,
            state: State::Gap,
            tag: 0,
            owned: false,
        };
        let mut blocks = Self {
            table: vec![whole],
            vacant: NONE,
            planned,
            starts: BTreeMap::new(),
        };
        if planned > 0 {
            blocks.starts.insert(0, Self::FIRST);
            blocks.cut(Self::FIRST, planned);
        }
        blocks
    }

    /// The block that an offset below the height of the plan lies in.
    pub(super) fn containing(&self, offset: u64) -> Option<u32> {
        let below = self.starts.range(..=offset).next_back()?;
        (offset < self.planned).then_some(*below.1)
    }

    /// Cuts a block in two at an offset inside of it; answers with the upper part, which is like the lower one.
    #[inline]
    pub(super) fn cut(&mut self, index: u32, at: u64) -> u32 {
        let lower = self[index];
        debug_assert!(lower.offset < at && at < lower.end());
        let upper = self.add(Block {
            offset: at,
            size: lower.end() - at,
            prev: index,
            ..lower
        });
        if at < self.planned {
            self.starts.insert(at, upper);
        }
        self[index].size = at - lower.offset;
        self[index].next = upper;
        if lower.next != NONE {
            self[lower.next].prev = upper;
        }
        upper
    }

    /// Makes one block of two neighbours. The lower entry stays.
    #[inline]
    pub(super) fn join(&mut self, lower: u32, upper: u32) {
        let gone = self[upper];
        debug_assert!(self[lower].next == upper && self[lower].end() == gone.offset);
        if gone.offset < self.planned {
            self.starts.remove(&gone.offset);
        }
        self[lower].size += gone.size;
        self[lower].next = gone.next;
        if gone.next != NONE {
            self[gone.next].prev = lower;
        }
        self[upper].state = State::Vacant;
        self[upper].next = self.vacant;
        self.vacant = upper;
    }

    #[inline]
    fn add(&mut self, block: Block) -> u32 {
        let index = self.vacant;
        if index == NONE {
            self.table.push(block);
            return self.table.len() as u32 - 1;
        }
        self.vacant = self[index].next;
        self[index] = block;
        index
    }

    /// The blocks by address.
    pub(super) fn by_address(&self) -> impl Iterator<Item = (u32, &Block)> {
        let mut index = Self::FIRST;
        std::iter::from_fn(move || {
            let here = (index != NONE).then_some(index)?;
            index = self[here].next;
            Some((here, &self[here]))
        })
    }

    /// Recounts the table.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub(super) fn check(&self, span: u64) -> Result<(), String> {
        let (mut end, mut before, mut count, mut planned) = (0, NONE, 0, 0);
        for (index, block) in self.by_address() {
            if block.offset != end || block.size == 0 || block.prev != before {
                return Err(format!("block {index} does not follow its neighbour"));
            }
            if block.state == State::Vacant {
                return Err(format!("block {index} is vacant"));
            }
            if block.offset < self.planned && self.starts.get(&block.offset) != Some(&index) {
                return Err(format!("block {index} is not found by its address"));
            }
            planned += usize::from(block.offset < self.planned);
            (end, before, count) = (block.end(), index, count + 1);
        }
        if planned != self.starts.len() {
            return Err("there are addresses without a block".to_owned());
        }
        if end != span {
            return Err(format!("the blocks end at {end}, not at {span}"));
        }
        let mut vacant = self.vacant;
        while vacant != NONE {
            if self[vacant].state != State::Vacant {
                return Err(format!("block {vacant} is not vacant"));
            }
            (vacant, count) = (self[vacant].next, count + 1);
        }
        if count != self.table.len() {
            return Err(format!("{count} of {} entries", self.table.len()));
        }
        Ok(())
    }
}
