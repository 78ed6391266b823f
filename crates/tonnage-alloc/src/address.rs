// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the driver puts things: a space of addresses and the order it is used in.
//!
//! PyTorch's allocator breaks ties between equal free blocks by address (before
//! 2.12) or by age and then address, so the order of addresses moves reserved
//! memory. Two orders have been seen in snapshots of real GPUs; which one a
//! machine uses is a setting of the simulated device, never a guess inside it.

use std::collections::BTreeMap;

use crate::{GRANULARITY, round_up};

/// The order in which a driver hands out addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressOrder {
    /// Downwards, each large request opening a chunk rounded up to 32 MiB whose
    /// rest later requests fill. Seen on an H100 under Linux.
    #[default]
    Descending,
    /// Upwards and packed. Seen in snapshots that look like WSL's.
    Ascending,
}

/// The unit to which a fresh request is rounded up in [`AddressOrder::Descending`].
const CHUNK: u64 = 32 << 20;

/// A range of addresses, parts of which are taken.
///
/// ```
/// use tonnage_alloc::{AddressOrder, AddressSpace, GRANULARITY};
///
/// let mut space = AddressSpace::new(AddressOrder::Ascending, 1 << 40, 1 << 30);
/// let first = space.take(GRANULARITY).unwrap();
/// let second = space.take(GRANULARITY).unwrap();
/// assert_eq!(second, first + GRANULARITY);
/// space.release_range(first, GRANULARITY);
/// assert_eq!(space.take(GRANULARITY), Some(first));
/// ```
#[derive(Clone, Debug)]
pub struct AddressSpace {
    order: AddressOrder,
    /// Never used yet: `[low, high)`. Ascending takes from `low`, descending from `high`.
    low: u64,
    high: u64,
    /// Ranges given back, or left over in a chunk.
    holes: Holes,
}

impl AddressSpace {
    /// A space of which nothing is taken; `base` is a multiple of the granularity.
    pub fn new(order: AddressOrder, base: u64, size: u64) -> Self {
        Self {
            order,
            low: base,
            high: base.saturating_add(size),
            holes: Holes::default(),
        }
    }

    /// Takes `size` bytes, a multiple of the granularity; `None` when no range is left.
    pub fn take(&mut self, size: u64) -> Option<u64> {
        debug_assert!(size > 0 && size.is_multiple_of(GRANULARITY));
        let reused = match self.order {
            AddressOrder::Ascending => self.holes.take_lowest(size),
            AddressOrder::Descending => self.holes.take_highest(size),
        };
        if reused.is_some() {
            return reused;
        }
        match self.order {
            AddressOrder::Ascending => {
                let end = self.low.checked_add(size).filter(|&end| end <= self.high)?;
                Some(std::mem::replace(&mut self.low, end))
            }
            AddressOrder::Descending => {
                let chunk = round_up(size, CHUNK)?;
                let start = self
                    .high
                    .checked_sub(chunk)
                    .filter(|&start| start >= self.low)?;
                self.high = start;
                if chunk > size {
                    self.holes.release_hole(start + size, chunk - size);
                }
                Some(start)
            }
        }
    }

    /// Gives `[start, start + size)` back, which must have been taken.
    pub fn release_range(&mut self, start: u64, size: u64) {
        self.holes.release_hole(start, size);
    }
}

/// Free ranges, merged, by address.
///
/// **Invariant:** no two of them touch or overlap.
#[derive(Clone, Debug, Default)]
struct Holes(BTreeMap<u64, u64>);

impl Holes {
    /// Takes `size` bytes from the lowest range that holds them.
    fn take_lowest(&mut self, size: u64) -> Option<u64> {
        let (&start, _) = self.0.iter().find(|&(_, &length)| length >= size)?;
        self.take_at(start, size)
    }

    /// Takes `size` bytes from the start of the highest range that holds them.
    fn take_highest(&mut self, size: u64) -> Option<u64> {
        let (&start, _) = self.0.iter().rev().find(|&(_, &length)| length >= size)?;
        self.take_at(start, size)
    }

    /// The length and start of the smallest range that holds `size` bytes, the lowest of equals.
    fn tightest(&self, size: u64) -> Option<(u64, u64)> {
        self.0
            .iter()
            .filter(|&(_, &length)| length >= size)
            .map(|(&start, &length)| (length, start))
            .min()
    }

    fn take_at(&mut self, start: u64, size: u64) -> Option<u64> {
        let length = self.0.remove(&start)?;
        if length > size {
            self.0.insert(start + size, length - size);
        }
        Some(start)
    }

    /// Gives `[start, start + size)` back and merges it with what it touches.
    fn release_hole(&mut self, start: u64, size: u64) {
        let (mut start, mut size) = (start, size);
        if let Some((&before, &length)) = self.0.range(..start).next_back() {
            debug_assert!(before + length <= start, "a range was given back twice");
            if before + length == start {
                self.0.remove(&before);
                start = before;
                size += length;
            }
        }
        if let Some(length) = self.0.remove(&(start + size)) {
            size += length;
        }
        self.0.insert(start, size);
    }
}

/// Chunks of device memory that are cut into pieces.
///
/// A piece never spans two chunks, even where they touch: each chunk keeps its
/// own holes, so it can be given back when its last piece is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunks(BTreeMap<u64, Chunk>);

#[derive(Clone, Debug)]
struct Chunk {
    length: u64,
    used: u64,
    holes: Holes,
}

impl Chunks {
    /// Cuts `size` bytes out of the tightest hole of all chunks.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let (_, start, chunk) = self
            .0
            .values_mut()
            .filter_map(|chunk| {
                let (length, start) = chunk.holes.tightest(size)?;
                Some((length, start, chunk))
            })
            .min_by_key(|&(length, start, _)| (length, start))?;
        chunk.used += size;
        chunk.holes.take_at(start, size)
    }

    /// Gives a piece back; answers with the chunk's start and length if it is now empty.
    pub(crate) fn release_piece(&mut self, start: u64, size: u64) -> Option<(u64, u64)> {
        let (&first, chunk) = self.0.range_mut(..=start).next_back()?;
        chunk.holes.release_hole(start, size);
        chunk.used -= size;
        (chunk.used == 0).then_some((first, chunk.length))
    }

    pub(crate) fn add(&mut self, start: u64, length: u64) {
        let mut holes = Holes::default();
        holes.release_hole(start, length);
        let chunk = Chunk {
            length,
            used: 0,
            holes,
        };
        self.0.insert(start, chunk);
    }

    pub(crate) fn remove(&mut self, start: u64) {
        self.0.remove(&start);
    }

    /// Start and length of every chunk nothing is cut from.
    pub(crate) fn empty(&self) -> Vec<(u64, u64)> {
        self.0
            .iter()
            .filter(|(_, chunk)| chunk.used == 0)
            .map(|(&start, chunk)| (start, chunk.length))
            .collect()
    }

    /// Bytes in all chunks.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|chunk| chunk.length).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ascending_packs_and_reuses_the_lowest_hole() {
        let mut space = AddressSpace::new(AddressOrder::Ascending, 0x1000_0000, 1 << 40);
        let first = space.take(20 * MIB).unwrap();
        let second = space.take(2 * MIB).unwrap();
        assert_eq!(second, first + 20 * MIB);
        space.release_range(first, 20 * MIB);
        assert_eq!(space.take(4 * MIB), Some(first));
        assert_eq!(space.take(16 * MIB), Some(first + 4 * MIB));
    }

    #[test]
    fn descending_opens_chunks_and_fills_their_rest() {
        let top = 1 << 40;
        let mut space = AddressSpace::new(AddressOrder::Descending, 0, top);
        let first = space.take(20 * MIB).unwrap();
        assert_eq!(first, top - 32 * MIB);
        assert_eq!(space.take(2 * MIB), Some(first + 20 * MIB));
        assert_eq!(space.take(100 * MIB), Some(first - 128 * MIB));
    }

    #[test]
    fn a_full_space_says_no() {
        let mut space = AddressSpace::new(AddressOrder::Descending, 0, 64 * MIB);
        assert!(space.take(64 * MIB).is_some());
        assert_eq!(space.take(2 * MIB), None);
    }
}
