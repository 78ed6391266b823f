// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of blocks by size class, with a bit for each list that is not empty.
//!
//! A search looks at two bit maps and at few blocks, however many there are.
//! The lists are chained through the blocks themselves. The heads are allocated
//! with the first block, because most lanes of a program with many streams never
//! have one.

use super::blocks::{Blocks, NONE};
use super::class::{COARSE, FINE, class_of};

/// How many blocks of a class a search looks at.
const LOOKED_AT: usize = 8;

/// Lists of blocks by size.
///
/// **Invariant:** a bit is set exactly where a list is not empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    coarse: u64,
    fine: Vec<u32>,
    heads: Vec<u32>,
    len: u32,
}

impl Lists {
    /// How many blocks there are.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) fn insert(&mut self, blocks: &mut Blocks, index: u32) {
        if self.heads.is_empty() {
            self.heads = vec![NONE; COARSE * FINE];
            self.fine = vec![0; COARSE];
        }
        let class = class_of(blocks[index].size);
        let head = std::mem::replace(&mut self.heads[class], index);
        if head == NONE {
            self.fine[class / FINE] |= 1 << (class % FINE);
            self.coarse |= 1 << (class / FINE);
        } else {
            blocks[head].list_prev = index;
        }
        blocks[index].list_prev = NONE;
        blocks[index].list_next = head;
        self.len += 1;
    }

    /// pre: the block is here, with the size it was inserted with.
    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut Blocks, index: u32) {
        let block = blocks[index];
        if block.list_next != NONE {
            blocks[block.list_next].list_prev = block.list_prev;
        }
        if block.list_prev == NONE {
            let class = class_of(block.size);
            debug_assert_eq!(self.heads[class], index);
            self.heads[class] = block.list_next;
            if block.list_next == NONE {
                self.fine[class / FINE] &= !(1 << (class % FINE));
                if self.fine[class / FINE] == 0 {
                    self.coarse &= !(1 << (class / FINE));
                }
            }
        } else {
            blocks[block.list_prev].list_next = block.list_next;
        }
        self.len -= 1;
    }

    /// A block of at least `size` bytes that exceeds it by little: the tightest of the first few of the first class
    /// that has one. May overlook a block of the same class as `size`; [`Self::find_any`] does not.
    #[inline]
    pub(super) fn find(&self, blocks: &Blocks, size: u64) -> Option<u32> {
        if self.coarse == 0 {
            return None;
        }
        let class = class_of(size);
        let same = Self::tightest(blocks, self.heads[class], size, LOOKED_AT);
        same.or_else(|| {
            let larger = self.class_from(class + 1)?;
            Self::tightest(blocks, self.heads[larger], size, LOOKED_AT)
        })
    }

    /// The same, and looks at every block that could serve.
    pub(super) fn find_any(&self, blocks: &Blocks, size: u64) -> Option<u32> {
        self.find(blocks, size).or_else(|| {
            let head = *self.heads.get(class_of(size))?;
            Self::tightest(blocks, head, size, usize::MAX)
        })
    }

    /// The smallest of `most` blocks from `head` on that has `size` bytes, the lowest of equals.
    #[inline]
    fn tightest(blocks: &Blocks, head: u32, size: u64, most: usize) -> Option<u32> {
        let mut best = NONE;
        let mut key = (u64::MAX, u64::MAX);
        let mut index = head;
        for _ in 0..most {
            if index == NONE {
                break;
            }
            let block = &blocks[index];
            let found = (block.size, block.offset);
            if block.size >= size && found < key {
                (best, key) = (index, found);
            }
            index = block.list_next;
        }
        (best != NONE).then_some(best)
    }

    /// The first class that is not empty, from one on.
    #[inline]
    fn class_from(&self, class: usize) -> Option<usize> {
        let (coarse, fine) = (class / FINE, class % FINE);
        let here = self.fine.get(coarse)? & (u32::MAX << fine);
        if here != 0 {
            return Some(coarse * FINE + here.trailing_zeros() as usize);
        }
        let above = self.coarse & (u64::MAX << 1 << coarse);
        if above == 0 {
            return None;
        }
        let coarse = above.trailing_zeros() as usize;
        Some(coarse * FINE + self.fine[coarse].trailing_zeros() as usize)
    }

    /// The blocks of a class.
    fn chain<'a>(&'a self, blocks: &'a Blocks, class: usize) -> impl Iterator<Item = u32> + 'a {
        let mut index = self.heads.get(class).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let here = (index != NONE).then_some(index)?;
            index = blocks[here].list_next;
            Some(here)
        })
    }

    /// The blocks of at least the class of `size`, the smallest classes first.
    pub(super) fn of_at_least<'a>(
        &'a self,
        blocks: &'a Blocks,
        size: u64,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut next = self.class_from(class_of(size));
        let classes = std::iter::from_fn(move || {
            let class = next?;
            next = self.class_from(class + 1);
            Some(class)
        });
        classes.flat_map(move |class| self.chain(blocks, class))
    }

    /// The blocks of the largest classes first.
    pub(super) fn largest_first<'a>(
        &'a self,
        blocks: &'a Blocks,
    ) -> impl Iterator<Item = u32> + 'a {
        let coarse = (0..COARSE)
            .rev()
            .filter(|&coarse| self.coarse >> coarse & 1 != 0);
        let classes = coarse.flat_map(move |coarse| {
            let fine = (0..FINE).rev();
            fine.filter(move |&fine| self.fine[coarse] >> fine & 1 != 0)
                .map(move |fine| coarse * FINE + fine)
        });
        classes.flat_map(move |class| self.chain(blocks, class))
    }

    /// Compares bits with lists, and lists with blocks.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub(super) fn check(&self, blocks: &Blocks) -> Result<(), String> {
        let mut len = 0;
        for class in 0..self.heads.len() {
            let set = self.fine[class / FINE] >> (class % FINE) & 1 != 0;
            if set != (self.heads[class] != NONE) {
                return Err(format!("the bit of class {class} is wrong"));
            }
            let mut before = NONE;
            for index in self.chain(blocks, class) {
                if class_of(blocks[index].size) != class || blocks[index].list_prev != before {
                    return Err(format!("block {index} is not of the list of class {class}"));
                }
                (before, len) = (index, len + 1);
            }
        }
        for (coarse, fine) in self.fine.iter().enumerate() {
            if (self.coarse >> coarse & 1 != 0) != (*fine != 0) {
                return Err(format!("the bit of power {coarse} is wrong"));
            }
        }
        if len != self.len {
            return Err(format!("{len} blocks in lists, {} counted", self.len));
        }
        Ok(())
    }
}
