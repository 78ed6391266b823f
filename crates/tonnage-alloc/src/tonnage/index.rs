// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the offset of a used block to the block.
//!
//! An open table with linear probing. A removal closes the hole it leaves, so
//! there are no dead entries, and a steady program never makes the table grow.
//! It is never iterated.

use super::blocks::NONE;
use super::class::GRANULE;

/// Offsets are multiples of the granule; multiplying spreads what is left.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const FIRST_SLOTS: usize = 256;
/// The offset of an empty slot.
const EMPTY: u64 = u64::MAX;

/// Offsets of used blocks.
///
/// **Invariant:** at most half of the slots are taken, and no empty slot lies
/// between an entry and the slot its hash names.
#[derive(Clone, Debug)]
pub(super) struct Index {
    slots: Vec<(u64, u32)>,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            slots: vec![(EMPTY, NONE); FIRST_SLOTS],
            len: 0,
        }
    }
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot an offset should be in.
    #[inline]
    fn home(&self, offset: u64) -> usize {
        let shift = 64 - self.slots.len().trailing_zeros();
        ((offset / GRANULE).wrapping_mul(SPREAD) >> shift) as usize
    }

    /// The slot of an offset, or the empty one where it would be.
    #[inline]
    fn slot(&self, offset: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(offset);
        while self.slots[at].0 != offset && self.slots[at].0 != EMPTY {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    pub(super) fn get(&self, offset: u64) -> Option<u32> {
        let (there, block) = self.slots[self.slot(offset)];
        (there == offset && offset != EMPTY).then_some(block)
    }

    /// pre: `offset` is not here.
    #[inline]
    pub(super) fn insert(&mut self, offset: u64, block: u32) {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let at = self.slot(offset);
        debug_assert_eq!(self.slots[at].0, EMPTY, "two used blocks at one offset");
        self.slots[at] = (offset, block);
        self.len += 1;
    }

    /// pre: `offset` is here.
    #[inline]
    pub(super) fn remove(&mut self, offset: u64) {
        let mask = self.slots.len() - 1;
        let mut hole = self.slot(offset);
        debug_assert_eq!(self.slots[hole].0, offset);
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (there, _) = self.slots[at];
            if there == EMPTY {
                break;
            }
            // An entry may move to the hole if its home is not behind it.
            let (from_home, from_hole) = (at.wrapping_sub(self.home(there)), at.wrapping_sub(hole));
            if from_home & mask >= from_hole & mask {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = (EMPTY, NONE);
        self.len -= 1;
    }

    #[cold]
    fn grow(&mut self) {
        let count = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![(EMPTY, NONE); count]);
        self.len = 0;
        for (offset, block) in old {
            if offset != EMPTY {
                self.insert(offset, block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_is_a_map() {
        let mut index = Index::default();
        let mut model = BTreeMap::new();
        let mut state = 1_u64;
        let mut most = 0;
        for step in 0..200_000_u32 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let offset = ((state >> 40) % 3000 + u64::from(step / 2000) * 100) * GRANULE;
            let known = model.remove(&offset);
            assert_eq!(index.get(offset), known);
            if known.is_some() {
                index.remove(offset);
            } else {
                index.insert(offset, step);
                model.insert(offset, step);
            }
            assert_eq!(index.len(), model.len());
            most = most.max(model.len());
        }
        assert!(
            index.slots.len() <= (2 * most).next_power_of_two(),
            "dead entries make it grow"
        );
        for (offset, block) in model {
            assert_eq!(index.get(offset), Some(block));
        }
        assert_eq!(index.get(EMPTY), None);
    }
}
