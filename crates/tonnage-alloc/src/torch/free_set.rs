// SPDX-License-Identifier: MIT OR Apache-2.0
//! The free blocks of one pool and stream, ordered by size and rank.
//!
//! Torch keeps a red-black tree. Here sizes fall into bins: one for each
//! multiple of 512 bytes up to 128 KiB, above that ever wider ones, 256 for each
//! doubling of the size and 128 KiB together. A bit
//! for each bin and one for each word of bits find the next block of any size
//! by counting zeros. Most bins hold one block, which then is the bin; some
//! hold a sorted list. A list that grows long becomes a tree, so that nothing
//! takes more than logarithmic time however many blocks are of one size.
//!
//! ```text
//! held:   0 1 0 0 1 …                  one bit for each word
//! words:    └─ 0 0 1 0 … 1 …           one bit for each bin
//! bins:            ├─ 7                a block
//!                  ├─ LIST | 2         or lists[2], the smallest key last
//!                  └─ LIST | TREE | 0  or trees[0]
//! ```
//!
//! **Invariant:** a bit is set exactly if what it stands for is not empty; a
//! list that is in use has at least two blocks and at most [`MAX_LIST`], a tree
//! more than [`MIN_TREE`].

use std::collections::BTreeMap;
use std::ops::Bound;

use super::block::{Blocks, NONE};
use super::size::MIN_BLOCK;

/// Bins for each doubling, and exact bins below the first one.
const BINS: u32 = 256;
const BINS_POWER: u32 = BINS.ilog2();
/// Marks a bin that holds the number of a list instead of a block.
const LIST: u32 = 1 << 31;
/// Marks, beside [`LIST`], a bin that holds the number of a tree.
const TREE: u32 = 1 << 30;
/// Blocks in a list. Measured: up to here a list is faster than a tree.
const MAX_LIST: usize = 512;
/// A tree with so few blocks becomes a list; far below [`MAX_LIST`], so that a set does not change back and forth.
const MIN_TREE: usize = 128;
/// The place of a cursor in a tree.
const IN_TREE: u32 = u32::MAX;
/// An empty bin.
const EMPTY: u32 = NONE;
/// Words of `held`: enough for the bins of 2^64 bytes.
const HELD: usize = 4;

const _: () = assert!(
    bin_of(u64::MAX) < HELD as u32 * 64 * 64,
    "every bin has its bits"
);

/// A place in the order; good until the set changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The bin in the high half, the place in its list in the low one. One number,
    /// because two that are stored apart and loaded together stall the processor:
    /// that was a tenth of a request.
    at: u64,
    pub(super) block: u32,
}

impl Cursor {
    #[inline]
    const fn new(bin: u32, place: u32, block: u32) -> Self {
        let at = (bin as u64) << 32 | place as u64;
        Self { at, block }
    }

    #[inline]
    const fn bin(self) -> u32 {
        (self.at >> 32) as u32
    }

    #[inline]
    const fn place(self) -> u32 {
        self.at as u32
    }
}

/// A block of a list with its key, so that searching the list stays in the list.
#[derive(Clone, Copy, Debug)]
struct Listed {
    size: u64,
    rank: u64,
    block: u32,
}

impl Listed {
    fn new(blocks: &Blocks, block: u32) -> Self {
        let (size, rank) = blocks[block].key();
        Self { size, rank, block }
    }

    /// Size and rank as one number, which is compared without a branch.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.size) << 64 | u128::from(self.rank)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct FreeSet {
    /// As many as were ever needed, from the smallest size up.
    bins: Vec<u32>,
    words: Vec<u64>,
    held: [u64; HELD],
    lists: Vec<Vec<Listed>>,
    /// Lists that no bin uses.
    spare: Vec<u32>,
    /// Blocks by key.
    trees: Vec<BTreeMap<u128, u32>>,
    /// Trees that no bin uses.
    spare_trees: Vec<u32>,
}

/// The bin of blocks of `size` bytes. Small and large sizes take the same way:
/// which of them comes next cannot be foretold.
#[inline]
const fn bin_of(size: u64) -> u32 {
    let units = size / MIN_BLOCK + BINS as u64;
    let power = units.ilog2();
    let within = (units >> (power - BINS_POWER)) as u32 - BINS;
    (power - BINS_POWER) * BINS + within
}

/// The word of `held` for a bin; the remainder spares a check.
#[inline]
const fn held_word(bin: u32) -> usize {
    (bin / 4096) as usize % HELD
}

/// The number of the tree that a bin holds.
#[inline]
const fn tree_of(there: u32) -> usize {
    (there & !(LIST | TREE)) as usize
}

const fn in_tree(bin: u32, block: u32) -> Cursor {
    Cursor::new(bin, IN_TREE, block)
}

impl FreeSet {
    #[expect(clippy::inline_always, reason = "on the path of every event, measured")]
    #[inline(always)]
    pub(super) fn insert(&mut self, blocks: &Blocks, block: u32) {
        let bin = bin_of(blocks[block].size);
        if bin as usize >= self.bins.len() {
            self.extend(bin);
        }
        let there = self.bins[bin as usize];
        if there == EMPTY {
            self.bins[bin as usize] = block;
            self.words[(bin / 64) as usize] |= 1 << (bin % 64);
            self.held[held_word(bin)] |= 1 << (bin / 64 % 64);
        } else {
            self.insert_more(blocks, block, bin, there);
        }
    }

    #[cold]
    fn extend(&mut self, bin: u32) {
        let bins = ((bin / BINS + 1) * BINS) as usize;
        self.bins.resize(bins, EMPTY);
        self.words.resize(bins / 64, 0);
    }

    /// Inserts into a bin that holds something.
    fn insert_more(&mut self, blocks: &Blocks, block: u32, bin: u32, there: u32) {
        let new = Listed::new(blocks, block);
        if there & LIST != 0 {
            if there & TREE != 0 {
                self.trees[tree_of(there)].insert(new.key(), block);
                return;
            }
            let list = &mut self.lists[(there & !LIST) as usize];
            let key = new.key();
            // The block freed last is often the first in the order.
            if list.last().is_some_and(|last| last.key() > key) {
                list.push(new);
            } else {
                let place = list.partition_point(|there| there.key() > key);
                list.insert(place, new);
            }
            if list.len() > MAX_LIST {
                self.grow(bin, there);
            }
            return;
        }
        let old = Listed::new(blocks, there);
        let pair = if old.key() > new.key() {
            [old, new]
        } else {
            [new, old]
        };
        let list = self.spare_list();
        self.lists[list as usize].extend(pair);
        self.bins[bin as usize] = LIST | list;
    }

    /// Makes a tree of a list.
    #[cold]
    fn grow(&mut self, bin: u32, there: u32) {
        let index = there & !LIST;
        let list = &mut self.lists[index as usize];
        let tree = list.drain(..).map(|one| (one.key(), one.block)).collect();
        self.spare.push(index);
        let number = if let Some(number) = self.spare_trees.pop() {
            self.trees[number as usize] = tree;
            number
        } else {
            self.trees.push(tree);
            self.trees.len() as u32 - 1
        };
        self.bins[bin as usize] = LIST | TREE | number;
    }

    /// Takes a block out of a tree, which becomes a list when few are left.
    #[cold]
    #[inline(never)]
    fn remove_from_tree(&mut self, blocks: &Blocks, block: u32, bin: u32, there: u32) {
        let tree = &mut self.trees[tree_of(there)];
        let found = tree.remove(&Listed::new(blocks, block).key());
        debug_assert!(found == Some(block), "a free block is missing from its set");
        if tree.len() > MIN_TREE {
            return;
        }
        let tree = std::mem::take(tree);
        self.spare_trees.push(tree_of(there) as u32);
        let list = self.spare_list();
        let blocks = tree.into_values().rev().map(|it| Listed::new(blocks, it));
        self.lists[list as usize].extend(blocks);
        self.bins[bin as usize] = LIST | list;
    }

    fn spare_list(&mut self) -> u32 {
        self.spare.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() as u32 - 1
        })
    }

    /// pre: `block` is in the set, with the size it had when it came in.
    #[inline]
    pub(super) fn remove(&mut self, blocks: &Blocks, block: u32) {
        let bin = bin_of(blocks[block].size);
        let there = self.bins[bin as usize];
        if there == block {
            self.clear(bin);
        } else if there & TREE != 0 {
            self.remove_from_tree(blocks, block, bin, there);
        } else {
            let place = self.place_of(blocks, block, there);
            debug_assert!(place.is_some(), "a free block is missing from its set");
            if let Some(place) = place {
                self.remove_from_list(bin, place);
            }
        }
    }

    fn place_of(&self, blocks: &Blocks, block: u32, there: u32) -> Option<usize> {
        let list = self.lists.get((there & !LIST) as usize)?;
        let key = Listed::new(blocks, block).key();
        let place = list.partition_point(|there| there.key() > key);
        (list.get(place)?.block == block).then_some(place)
    }

    /// Empties a bin that holds one block.
    #[inline]
    fn clear(&mut self, bin: u32) {
        self.bins[bin as usize] = EMPTY;
        let word = &mut self.words[(bin / 64) as usize];
        *word &= !(1 << (bin % 64));
        if *word == 0 {
            self.held[held_word(bin)] &= !(1 << (bin / 64 % 64));
        }
    }

    fn remove_from_list(&mut self, bin: u32, place: usize) {
        let index = self.bins[bin as usize] & !LIST;
        let list = &mut self.lists[index as usize];
        if place + 1 == list.len() {
            list.pop();
        } else {
            list.remove(place);
        }
        if let [last] = list[..] {
            list.clear();
            self.spare.push(index);
            self.bins[bin as usize] = last.block;
        }
    }

    /// The first block of at least `size` bytes.
    #[expect(clippy::inline_always, reason = "on the path of every event, measured")]
    #[inline(always)]
    pub(super) fn lower_bound(&self, blocks: &Blocks, size: u64) -> Option<Cursor> {
        let bin = bin_of(size);
        let there = *self.bins.get(bin as usize)?;
        if there != EMPTY {
            if there & LIST != 0 {
                if there & TREE != 0 {
                    return self.lower_bound_in_tree(bin, there, size);
                }
                let list = &self.lists[(there & !LIST) as usize];
                // Where bins are exact, the smallest always fits.
                let fitting = if list.last().is_some_and(|last| last.size >= size) {
                    list.len()
                } else {
                    list.partition_point(|there| there.size >= size)
                };
                if let Some(place) = fitting.checked_sub(1) {
                    return Some(Self::listed(bin, list, place));
                }
            } else if blocks[there].size >= size {
                return Some(Cursor::new(bin, 0, there));
            }
        }
        self.first_of(self.bin_from(bin + 1)?)
    }

    #[cold]
    #[inline(never)]
    fn lower_bound_in_tree(&self, bin: u32, there: u32, size: u64) -> Option<Cursor> {
        let mut fitting = self.trees[tree_of(there)].range(u128::from(size) << 64..);
        match fitting.next() {
            Some((_, &block)) => Some(in_tree(bin, block)),
            None => self.first_of(self.bin_from(bin + 1)?),
        }
    }

    /// The first bin from `bin` on that holds something.
    #[inline]
    fn bin_from(&self, bin: u32) -> Option<u32> {
        let word = bin / 64;
        let here = self.words.get(word as usize)? >> (bin % 64);
        if here != 0 {
            return Some(bin + here.trailing_zeros());
        }
        let mut group = word / 64;
        // Shifting twice keeps each shift below 64.
        let mut above = self.held[group as usize] & (u64::MAX << (word % 64) << 1);
        while above == 0 {
            group += 1;
            above = *self.held.get(group as usize)?;
        }
        let word = group * 64 + above.trailing_zeros();
        Some(word * 64 + self.words[word as usize].trailing_zeros())
    }

    /// The last bin below `bin` that holds something.
    fn bin_before(&self, bin: u32) -> Option<u32> {
        let bits = |word: u32| self.words.get(word as usize).copied().unwrap_or(0);
        let here = bits(bin / 64) & ((1 << (bin % 64)) - 1);
        if here != 0 {
            return Some(bin / 64 * 64 + here.ilog2());
        }
        let word = (0..bin / 64).rev().find(|&word| bits(word) != 0)?;
        Some(word * 64 + bits(word).ilog2())
    }

    #[inline]
    fn first_of(&self, bin: u32) -> Option<Cursor> {
        let there = self.bins[bin as usize];
        if there & LIST == 0 {
            return Some(Cursor::new(bin, 0, there));
        }
        if there & TREE != 0 {
            let (_, &block) = self.trees[tree_of(there)].first_key_value()?;
            return Some(in_tree(bin, block));
        }
        let list = &self.lists[(there & !LIST) as usize];
        Some(Self::listed(bin, list, list.len().checked_sub(1)?))
    }

    #[inline]
    fn listed(bin: u32, list: &[Listed], place: usize) -> Cursor {
        Cursor::new(bin, place as u32, list[place].block)
    }

    #[inline]
    pub(super) fn next(&self, blocks: &Blocks, cursor: Cursor) -> Option<Cursor> {
        let (bin, place, block) = (cursor.bin(), cursor.place(), cursor.block);
        if place == IN_TREE {
            let key = Listed::new(blocks, block).key();
            let after = (Bound::Excluded(key), Bound::Unbounded);
            let mut later = self.tree(bin)?.range(after);
            return match later.next() {
                Some((_, &block)) => Some(in_tree(bin, block)),
                None => self.first_of(self.bin_from(bin + 1)?),
            };
        }
        // Later in the order is earlier in the list.
        if let Some(place) = place.checked_sub(1) {
            let list = &self.lists[(self.bins[bin as usize] & !LIST) as usize];
            return Some(Self::listed(bin, list, place as usize));
        }
        self.first_of(self.bin_from(bin + 1)?)
    }

    /// The block before `cursor`, or the last of all for `None`.
    pub(super) fn before(&self, blocks: &Blocks, cursor: Option<Cursor>) -> Option<Cursor> {
        if let Some(cursor) = cursor {
            let (bin, place, block) = (cursor.bin(), cursor.place(), cursor.block);
            if let Some(tree) = self.tree(bin) {
                let key = Listed::new(blocks, block).key();
                if let Some((_, &block)) = tree.range(..key).next_back() {
                    return Some(in_tree(bin, block));
                }
            } else if let Some(list) = self.list(bin)
                && let place = place as usize + 1
                && place < list.len()
            {
                return Some(Self::listed(bin, list, place));
            }
        }
        let end = cursor.map_or(self.bins.len() as u32, Cursor::bin);
        let bin = self.bin_before(end)?;
        if let Some(tree) = self.tree(bin) {
            let (_, &block) = tree.last_key_value()?;
            return Some(in_tree(bin, block));
        }
        match self.list(bin) {
            Some(list) => Some(Self::listed(bin, list, 0)),
            None => self.first_of(bin),
        }
    }

    /// The tree of a bin, if it has one.
    fn tree(&self, bin: u32) -> Option<&BTreeMap<u128, u32>> {
        let there = self.bins[bin as usize];
        let is_tree = there != EMPTY && there & LIST != 0 && there & TREE != 0;
        is_tree.then(|| &self.trees[tree_of(there)])
    }

    /// The list of a bin, if it has one.
    fn list(&self, bin: u32) -> Option<&[Listed]> {
        let there = self.bins[bin as usize];
        let listed = there != EMPTY && there & LIST != 0 && there & TREE == 0;
        listed.then(|| &self.lists[(there & !LIST) as usize][..])
    }

    /// Takes the block at `cursor` out.
    #[inline]
    pub(super) fn take(&mut self, blocks: &Blocks, cursor: Cursor) -> u32 {
        let bin = cursor.bin();
        let there = self.bins[bin as usize];
        if there & LIST == 0 {
            self.clear(bin);
        } else if there & TREE != 0 {
            self.remove_from_tree(blocks, cursor.block, bin, there);
        } else {
            self.remove_from_list(bin, cursor.place() as usize);
        }
        cursor.block
    }

    /// Every block, in order.
    pub(super) fn iter<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = u32> + 'a {
        let first = self.bin_from(0).and_then(|bin| self.first_of(bin));
        std::iter::successors(first, |&cursor| self.next(blocks, cursor)).map(|cursor| cursor.block)
    }

    /// Whether the order and the bits are right. To find a block whose bit is missing, count [`iter`](Self::iter).
    pub(super) fn check(&self, blocks: &Blocks) -> Result<(), String> {
        for (word, &bits) in self.words.iter().enumerate() {
            if (self.held[word / 64] >> (word % 64) & 1 == 1) != (bits != 0) {
                return Err(format!("the bit of word {word} is wrong"));
            }
            if bits == 0 {
                continue;
            }
            let bins = (0..64).filter(|bit| bits >> bit & 1 == 1);
            for bin in bins.map(|bit| word as u32 * 64 + bit) {
                if self.bins[bin as usize] == EMPTY {
                    return Err(format!("the bit of bin {bin} is wrong"));
                }
                let list = self.list(bin);
                if list.is_some_and(|list| list.len() < 2 || list.len() > MAX_LIST) {
                    return Err(format!("the list of bin {bin} is too short or too long"));
                }
                let tree = self.tree(bin);
                if tree.is_some_and(|tree| tree.len() <= MIN_TREE) {
                    return Err(format!("the tree of bin {bin} is too small"));
                }
                let moved = |(key, block): (&u128, &u32)| Listed::new(blocks, *block).key() != *key;
                if tree.is_some_and(|tree| tree.iter().any(moved)) {
                    return Err(format!("the tree of bin {bin} has an old key"));
                }
                let old = |there: &Listed| Listed::new(blocks, there.block).key() != there.key();
                if list.is_some_and(|list| list.iter().any(old)) {
                    return Err(format!("the list of bin {bin} has an old key"));
                }
            }
        }
        if !self
            .iter(blocks)
            .is_sorted_by_key(|block| blocks[block].key())
        {
            return Err("the free blocks are out of order".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::block::Block;
    use super::*;

    /// Every answer of the set against a tree of the same keys.
    #[test]
    fn it_orders_like_a_tree() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut blocks = Blocks::default();
        let mut set = FreeSet::default();
        let mut tree = BTreeSet::new();
        for step in 0..20_000_u64 {
            if tree.len() < 40 || random(2) == 0 {
                // Few sizes, so that lists are long, from 512 bytes to 2^50.
                let size = MIN_BLOCK << random(42) | random(3) << 9;
                let mut block = Block::new(step << 30, size, 0, true);
                block.rank = step ^ 0x55;
                let index = blocks.add(block);
                set.insert(&blocks, index);
                tree.insert((blocks[index].key(), index));
            } else {
                let place = random(tree.len() as u64) as usize;
                let &(key, index) = tree.iter().nth(place).unwrap();
                tree.remove(&(key, index));
                set.remove(&blocks, index);
                blocks.remove(index);
            }
            let size = MIN_BLOCK << random(44);
            let expected = tree.range(((size, 0), 0)..).map(|&(_, index)| index);
            let found = set.lower_bound(&blocks, size);
            assert_eq!(found.map(|cursor| cursor.block), expected.clone().next());
            let next = found.and_then(|cursor| set.next(&blocks, cursor));
            assert_eq!(next.map(|cursor| cursor.block), expected.clone().nth(1));
            let below = tree.range(..((size, 0), 0)).next_back();
            let before = set.before(&blocks, found).map(|cursor| cursor.block);
            assert_eq!(before, below.map(|&(_, index)| index));
            if step % 100 == 0 {
                set.check(&blocks).unwrap();
                assert!(set.iter(&blocks).eq(tree.iter().map(|&(_, index)| index)));
            }
        }
    }

    /// So many blocks of few sizes that lists become trees, and lists again.
    #[test]
    fn many_blocks_of_one_size_are_in_no_long_list() {
        let count = 20_000_u64;
        let mut blocks = Blocks::default();
        let mut set = FreeSet::default();
        let mut tree = BTreeSet::new();
        // Steps that share no factor with the count go through all places, far apart.
        let places = |step: u64| (0..count).map(move |place| place * step % count);
        for place in places(7919) {
            let mut block = Block::new(place << 12, MIN_BLOCK << (place % 2), 0, true);
            block.rank = place;
            let index = blocks.add(block);
            set.insert(&blocks, index);
            tree.insert((blocks[index].key(), index));
        }
        set.check(&blocks).unwrap();
        assert!(set.iter(&blocks).eq(tree.iter().map(|&(_, index)| index)));
        let by_rank: Vec<_> = {
            let mut all: Vec<_> = tree.iter().copied().collect();
            all.sort_by_key(|((_, rank), _)| *rank);
            all
        };
        for (step, place) in places(6007).enumerate() {
            let (key, index) = by_rank[place as usize];
            tree.remove(&(key, index));
            if step % 3 == 0 {
                let first = set.lower_bound(&blocks, key.0);
                let expected = tree.range(((key.0, 0), 0)..).next();
                if first.is_some_and(|first| first.block == index) {
                    assert_eq!(set.take(&blocks, first.unwrap()), index);
                } else {
                    assert_eq!(first.map(|first| first.block), expected.map(|it| it.1));
                    set.remove(&blocks, index);
                }
            } else {
                set.remove(&blocks, index);
            }
            let last = set.before(&blocks, None).map(|last| last.block);
            assert_eq!(last, tree.last().map(|it| it.1));
            let before = set.before(&blocks, set.lower_bound(&blocks, 2 * MIN_BLOCK));
            let below = tree.range(..((2 * MIN_BLOCK, 0), 0)).next_back();
            assert_eq!(before.map(|it| it.block), below.map(|it| it.1));
            if step % 500 == 0 || tree.len() < 600 {
                set.check(&blocks).unwrap();
                assert!(set.iter(&blocks).eq(tree.iter().map(|&(_, index)| index)));
            }
        }
        assert_eq!(set.iter(&blocks).count(), 0);
    }
}
