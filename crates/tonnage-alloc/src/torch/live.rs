// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the address of a live block to the block.
//!
//! An open table with linear probing, never iterated in an order that matters.
//! An address that is no longer live keeps its slot, because a caching allocator
//! soon hands it out again: so a free takes nothing out and a request mostly
//! finds its slot at once. Dead slots go when the table is built anew.
//!
//! **Invariant:** at most half of the slots have an address, and after the table
//! was built anew at most an eighth.

use super::block::NONE;

/// Addresses are multiples of 512; multiplying spreads what is left.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const FIRST_SLOTS: usize = 2048;
/// The address of an empty slot; no block starts there.
const EMPTY: u64 = u64::MAX;

/// Addresses of live blocks.
#[derive(Clone, Debug)]
pub(super) struct Live {
    /// Address and block; the block is `NONE` if the address is not live.
    slots: Vec<(u64, u32)>,
    /// Live addresses.
    len: usize,
    /// Slots with an address, live or not.
    taken: usize,
    /// The shift that leaves as many bits of a hash as the slots need.
    shift: u32,
}

impl Default for Live {
    fn default() -> Self {
        Self::with_slots(FIRST_SLOTS)
    }
}

impl Live {
    /// A table with so many slots, a power of two.
    fn with_slots(count: usize) -> Self {
        Self {
            slots: vec![(EMPTY, NONE); count],
            len: 0,
            taken: 0,
            shift: 64 - count.trailing_zeros(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot of an address, or the empty one where it would be.
    #[inline]
    fn slot(&self, addr: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = ((addr >> 9).wrapping_mul(SPREAD) >> self.shift) as usize;
        loop {
            let there = self.slots[at].0;
            if there == addr || there == EMPTY {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    pub(super) fn get(&self, addr: u64) -> Option<u32> {
        let (there, block) = self.slots[self.slot(addr)];
        (there == addr && block != NONE).then_some(block)
    }

    /// pre: `addr` is not live.
    #[inline]
    pub(super) fn insert(&mut self, addr: u64, block: u32) {
        let at = self.slot(addr);
        let slot = &mut self.slots[at];
        debug_assert!(slot.1 == NONE, "two live blocks at one address");
        let new = slot.0 == EMPTY;
        *slot = (addr, block);
        self.len += 1;
        if new {
            self.taken += 1;
            if 2 * self.taken > self.slots.len() {
                self.rebuild();
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, addr: u64) -> Option<u32> {
        let at = self.slot(addr);
        let slot = &mut self.slots[at];
        if slot.0 != addr || slot.1 == NONE {
            return None;
        }
        self.len -= 1;
        Some(std::mem::replace(&mut slot.1, NONE))
    }

    /// Leaves out what is not live, in a table of the right size.
    #[cold]
    fn rebuild(&mut self) {
        let count = (8 * self.len).next_power_of_two().max(FIRST_SLOTS);
        let old = std::mem::replace(self, Self::with_slots(count));
        for (addr, block) in old.slots {
            if block != NONE {
                self.insert(addr, block);
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
        let mut live = Live::default();
        let mut model = BTreeMap::new();
        let mut state = 1_u64;
        for step in 0..200_000_u32 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // More addresses in all than are live at once, as in a program.
            let addr = ((state >> 40) % 3000 + u64::from(step / 2000) * 1000) * 512;
            let known = model.remove(&addr);
            assert_eq!(live.get(addr), known);
            assert_eq!(live.remove(addr), known);
            if known.is_none() {
                live.insert(addr, step);
                model.insert(addr, step);
            }
            assert_eq!(live.len(), model.len());
            assert!(live.slots.len() <= FIRST_SLOTS.max(16 * model.len()));
        }
        for (addr, block) in model {
            assert_eq!(live.get(addr), Some(block));
        }
    }
}
