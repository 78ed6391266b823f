// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks and where they live: one vector, indices instead of pointers.
//!
//! A block's fields fill one cache line. Properties of only some blocks (the streams that used it, its age for garbage
//! collection) are stored separately.

use super::ska::{HashedStream, SkaSet};

/// An index that points at nothing.
pub(super) const NONE: u32 = u32::MAX;

const ALLOCATED: u8 = 1;
const MAPPED: u8 = 2;
const SMALL: u8 = 4;
const VACANT: u8 = 8;

/// A part of a segment.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size: u64,
    /// Bytes last requested. Not cleared by a free: a free block shows the request of the object that survived the
    /// merges (specification 1).
    pub(super) requested: u64,
    /// Orders free blocks of equal size, as `Ranks` explains.
    pub(super) rank: u64,
    /// Neighbours in the segment, by address; touching, never a gap.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The pool and stream it belongs to, for life.
    pub(super) lane: u32,
    /// The expandable segment it is part of, or `NONE`.
    pub(super) range: u32,
    /// The set of foreign streams that used it, or `NONE` if that is empty.
    pub(super) uses: u32,
    /// Events that must be done before it is free.
    pub(super) events: u32,
    flags: u8,
}

const _: () = assert!(size_of::<Block>() == 64, "a block fills one cache line");

impl Block {
    #[inline]
    pub(super) fn new(addr: u64, size: u64, lane: u32, small: bool) -> Self {
        Self {
            addr,
            size,
            requested: 0,
            rank: 0,
            prev: NONE,
            next: NONE,
            lane,
            range: NONE,
            uses: NONE,
            events: 0,
            flags: MAPPED | if small { SMALL } else { 0 },
        }
    }

    /// Cuts `size` bytes off the low end, handed out and linked to this block, whose index is `own`. The neighbors are
    /// not updated.
    #[inline]
    pub(super) fn cut(&mut self, own: u32, size: u64, requested: u64) -> Self {
        let part = Self {
            addr: self.addr,
            size,
            requested,
            rank: self.rank,
            prev: self.prev,
            next: own,
            lane: self.lane,
            range: self.range,
            uses: NONE,
            events: 0,
            flags: self.flags | ALLOCATED,
        };
        self.addr += size;
        self.size -= size;
        part
    }

    #[inline]
    pub(super) fn is_allocated(&self) -> bool {
        self.flags & ALLOCATED != 0
    }

    #[inline]
    pub(super) fn set_allocated(&mut self, allocated: bool) {
        self.flags = self.flags & !ALLOCATED | if allocated { ALLOCATED } else { 0 };
    }

    /// Whether there is memory behind it; only parts of expandable segments may lack it.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        self.flags & MAPPED != 0
    }

    #[inline]
    pub(super) fn set_mapped(&mut self, mapped: bool) {
        self.flags = self.flags & !MAPPED | if mapped { MAPPED } else { 0 };
    }

    /// Whether its pool is a small one.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.flags & SMALL != 0
    }

    #[inline]
    pub(super) fn is_vacant(&self) -> bool {
        self.flags & VACANT != 0
    }

    /// Whether it has a neighbour.
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    #[inline]
    pub(super) fn is_expandable(&self) -> bool {
        self.range != NONE
    }

    /// Whether someone may still use it.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.is_allocated() || self.events > 0 || self.uses != NONE
    }

    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.addr + self.size
    }

    /// The order among free blocks of one pool and stream.
    #[inline]
    pub(super) fn key(&self) -> (u64, u64) {
        (self.size, self.rank)
    }
}

/// All blocks of an allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    /// Places in `all` that may be used again.
    vacant: Vec<u32>,
    /// The sets `Block::uses` points into.
    uses: Vec<SkaSet<HashedStream>>,
    vacant_uses: Vec<u32>,
}

impl std::ops::Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.all[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.all[index as usize]
    }
}

impl Blocks {
    #[inline]
    pub(super) fn add(&mut self, block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self[index] = block;
            return index;
        }
        let index = u32::try_from(self.all.len()).unwrap_or(NONE);
        assert!(index < NONE / 2, "fewer than 2^31 blocks exist at once");
        self.all.push(block);
        index
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        self[index].flags |= VACANT;
        self.vacant.push(index);
    }

    /// Every block that is not vacant, in no meaningful order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> + '_ {
        (0..).zip(&self.all).filter(|(_, block)| !block.is_vacant())
    }

    /// Adds `stream` to those that used the block.
    pub(super) fn add_use(&mut self, index: u32, stream: HashedStream) {
        if self[index].uses == NONE {
            self[index].uses = self.vacant_uses.pop().unwrap_or_else(|| {
                self.uses.push(SkaSet::default());
                (self.uses.len() - 1) as u32
            });
        }
        let uses = self[index].uses as usize;
        self.uses[uses].insert(stream, ());
    }

    /// The streams that used the block, in torch's order.
    pub(super) fn streams(&self, index: u32) -> Vec<HashedStream> {
        let uses = self.uses.get(self[index].uses as usize);
        uses.map_or_else(Vec::new, |uses| uses.keys().collect())
    }

    /// Takes away the streams that used the block, in torch's order.
    pub(super) fn take_uses(&mut self, index: u32) -> Vec<HashedStream> {
        let uses = std::mem::replace(&mut self[index].uses, NONE);
        if uses == NONE {
            return Vec::new();
        }
        self.vacant_uses.push(uses);
        // A fresh table for the next user: capacity is part of the order.
        let taken = std::mem::take(&mut self.uses[uses as usize]);
        taken.keys().collect()
    }

    pub(super) fn uses(&self, index: u32) -> usize {
        let uses = self[index].uses;
        if uses == NONE {
            0
        } else {
            self.uses[uses as usize].len()
        }
    }

    /// Puts `new` between `prev` and `next`, either of which may be `NONE`.
    #[inline]
    pub(super) fn link(&mut self, new: u32, prev: u32, next: u32) {
        self[new].prev = prev;
        self[new].next = next;
        if prev != NONE {
            self[prev].next = new;
        }
        if next != NONE {
            self[next].prev = new;
        }
    }
}
