// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a front keeps: small blocks that were freed, by their exact size.
//!
//! The allocator counts them as used. A size has a few blocks at most, fewer the
//! larger they are, and a shelf a bounded number of bytes, so what is kept is
//! small beside the device. A size that has too many gives half of them back at
//! once, for one lock.

use tonnage_alloc::DeviceAddr;

/// Sizes are multiples of this.
const GRANULE: u64 = 512;
/// The largest block that is kept.
const LARGEST: u64 = 1 << 20;
/// Blocks of one size.
const PER_CLASS: u64 = 16;
/// Bytes of one size.
const BYTES_PER_CLASS: u64 = 2 << 20;
/// The part of a device that a front may keep: one in this many.
pub(crate) const SHARE: u64 = 256;
/// Bytes that a front may keep at most.
pub(crate) const MOST: u64 = 8 << 20;

/// Blocks for one thread and one stream.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// By size.
    classes: Vec<Vec<DeviceAddr>>,
    /// Bytes in them.
    bytes: u64,
    /// Bytes that may be in them.
    limit: u64,
    /// How many blocks there are.
    blocks: usize,
    /// Whether its front is gone, so that nothing is kept.
    closed: bool,
}

/// Whether blocks of a size are kept.
pub(crate) fn keeps(size: u64) -> bool {
    size <= LARGEST
}

/// How many blocks of a size are kept at most.
fn room(size: u64) -> usize {
    (BYTES_PER_CLASS / size.max(1)).clamp(1, PER_CLASS) as usize
}

/// The place of a size in the table.
fn class(size: u64) -> usize {
    (size / GRANULE) as usize
}

impl Shelf {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            classes: vec![Vec::new(); class(LARGEST) + 1],
            bytes: 0,
            limit,
            blocks: 0,
            closed: false,
        }
    }

    /// Bytes and blocks.
    pub(crate) fn count_held(&self) -> (u64, usize) {
        (self.bytes, self.blocks)
    }

    /// A block of a size.
    #[inline]
    pub(crate) fn take(&mut self, size: u64) -> Option<DeviceAddr> {
        let block = self.classes.get_mut(class(size))?.pop()?;
        self.bytes -= size;
        self.blocks -= 1;
        Some(block)
    }

    /// Keeps a block; answers with what has to be given back for it.
    #[inline]
    pub(crate) fn add_block(&mut self, block: DeviceAddr, size: u64) -> Vec<DeviceAddr> {
        if self.closed {
            return vec![block];
        }
        let class = &mut self.classes[class(size)];
        class.push(block);
        self.bytes += size;
        self.blocks += 1;
        if class.len() <= room(size) && self.bytes <= self.limit {
            return Vec::new();
        }
        // The older half: the youngest is the likeliest to be in a cache of the GPU.
        let surplus: Vec<DeviceAddr> = class.drain(..class.len().div_ceil(2)).collect();
        self.bytes -= size * surplus.len() as u64;
        self.blocks -= surplus.len();
        surplus
    }

    /// Gives everything up, and keeps nothing from now on.
    pub(crate) fn close(&mut self) -> Vec<DeviceAddr> {
        self.closed = true;
        self.take_all()
    }

    /// Gives everything up.
    pub(crate) fn take_all(&mut self) -> Vec<DeviceAddr> {
        let mut all = Vec::with_capacity(self.blocks);
        for class in &mut self.classes {
            all.append(class);
        }
        (self.bytes, self.blocks) = (0, 0);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_counted() {
        let mut shelf = Shelf::new(40 * 4096);
        let mut given = 0;
        for number in 0..1000_u64 {
            let size = 4096 * (1 + number % 3);
            given += shelf.add_block(DeviceAddr(number * 65536), size).len();
            let (bytes, blocks) = shelf.count_held();
            assert!(bytes <= 40 * 4096 && blocks <= 3 * PER_CLASS as usize);
            assert_eq!(blocks + given, number as usize + 1, "a block is lost");
        }
        let (bytes, blocks) = shelf.count_held();
        let mut taken = 0;
        for size in [4096, 8192, 12288] {
            while shelf.take(size).is_some() {
                taken += size;
            }
        }
        assert!(blocks > 0);
        assert_eq!((taken, shelf.count_held()), (bytes, (0, 0)));
        assert!(shelf.take(512).is_none());
        assert!(shelf.take(1 << 40).is_none());
    }
}
