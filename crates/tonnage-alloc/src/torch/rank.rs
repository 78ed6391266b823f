// SPDX-License-Identifier: MIT OR Apache-2.0
//! One number that orders free blocks of equal size.
//!
//! torch compares the serial of the segment and then the address, or only the
//! address, or only the serial of the block object, by release (13.5). All
//! three become one integer: a serial in the high bits and the offset into the
//! segment in the low ones; the address; the serial. A block's rank moves with
//! its address, so cutting and merging are additions.

use super::TieBreak;
use super::block::Blocks;
use super::size::MIN_BLOCK;

/// Gives out ranks.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    tie_break: TieBreak,
    /// Bits of an offset: enough for the largest range the device's memory leads to.
    offset_bits: u32,
    last: u64,
}

impl Ranks {
    pub(super) fn new(tie_break: TieBreak, total: u64) -> Self {
        // Ranges are 9/8 of the device, rounded up to a page: below twice that,
        // or a page more. An offset is counted in blocks.
        let units = total.saturating_mul(2).saturating_add(1 << 40) / MIN_BLOCK;
        Self {
            tie_break,
            offset_bits: units.ilog2() + 1,
            last: 0,
        }
    }

    /// The rank of a new segment.
    pub(super) fn segment(&mut self, addr: u64) -> u64 {
        self.last += 1;
        match self.tie_break {
            TieBreak::Address => addr / MIN_BLOCK,
            TieBreak::Object => self.last,
            TieBreak::Segment => self.last << self.offset_bits,
        }
    }

    /// The rank of a new object for the part `offset` bytes into a block.
    pub(super) fn part(&mut self, rank: u64, offset: u64) -> u64 {
        if self.tie_break == TieBreak::Object {
            self.last += 1;
            return self.last;
        }
        self.moved(rank, offset)
    }

    /// The rank of a block whose start moved up by `bytes`.
    #[inline]
    pub(super) fn moved(&self, rank: u64, bytes: u64) -> u64 {
        if self.tie_break == TieBreak::Object {
            rank
        } else {
            rank + bytes / MIN_BLOCK
        }
    }

    /// The low `size` bytes of `rest` became the new block `part`.
    #[inline]
    pub(super) fn cut(&mut self, blocks: &mut Blocks, part: u32, rest: u32, size: u64) {
        if self.tie_break == TieBreak::Object {
            self.last += 1;
            blocks[part].rank = self.last;
        } else {
            blocks[rest].rank += size / MIN_BLOCK;
        }
    }

    /// A block took in its lower neighbour of rank `lower`.
    #[inline]
    pub(super) fn absorb(&self, rank: &mut u64, lower: u64) {
        if self.tie_break != TieBreak::Object {
            *rank = lower;
        }
    }
}
