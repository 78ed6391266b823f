// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the address of a live block to the block.
//!
//! An open table with linear probing and backward-shift deletion, never
//! iterated, so the order of its hash decides nothing.

use super::block::NONE;

/// Addresses are multiples of 512; multiplying spreads what is left.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const FIRST_SLOTS: usize = 1024;

/// Addresses of live blocks.
#[derive(Clone, Debug)]
pub(super) struct Live {
    /// Address and block; `NONE` marks an empty slot. At most half are taken.
    slots: Vec<(u64, u32)>,
    len: usize,
    /// What leaves as many bits of a hash as there are slots.
    shift: u32,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            slots: vec![(0, NONE); FIRST_SLOTS],
            len: 0,
            shift: 64 - FIRST_SLOTS.trailing_zeros(),
        }
    }
}

impl Live {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn home(&self, addr: u64) -> usize {
        ((addr >> 9).wrapping_mul(SPREAD) >> self.shift) as usize
    }

    #[inline]
    fn find(&self, addr: u64) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(addr);
        loop {
            let (there, block) = self.slots[at & mask];
            if block == NONE {
                return None;
            }
            if there == addr {
                return Some(at & mask);
            }
            at += 1;
        }
    }

    #[inline]
    pub(super) fn get(&self, addr: u64) -> Option<u32> {
        self.find(addr).map(|at| self.slots[at].1)
    }

    /// pre: `addr` is not in the table.
    #[inline]
    pub(super) fn insert(&mut self, addr: u64, block: u32) {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(addr) & mask;
        while self.slots[at].1 != NONE {
            at = (at + 1) & mask;
        }
        self.slots[at] = (addr, block);
        self.len += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, addr: u64) -> Option<u32> {
        let mut hole = self.find(addr)?;
        let block = self.slots[hole].1;
        self.len -= 1;
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (there, follower) = self.slots[at];
            if follower == NONE {
                break;
            }
            // A follower may move up unless that would put it before its home.
            let wanted = at.wrapping_sub(self.home(there)) & mask;
            if wanted >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = (there, follower);
                hole = at;
            }
        }
        self.slots[hole].1 = NONE;
        Some(block)
    }

    #[cold]
    fn grow(&mut self) {
        let slots = vec![(0, NONE); 2 * self.slots.len()];
        self.len = 0;
        self.shift -= 1;
        for (addr, block) in std::mem::replace(&mut self.slots, slots) {
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
            let addr = (state >> 40) % 3000 * 512;
            let known = model.remove(&addr);
            assert_eq!(live.get(addr), known);
            assert_eq!(live.remove(addr), known);
            if known.is_none() {
                live.insert(addr, step);
                model.insert(addr, step);
            }
            assert_eq!(live.len(), model.len());
        }
        for (addr, block) in model {
            assert_eq!(live.get(addr), Some(block));
        }
    }
}
