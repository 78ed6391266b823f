// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that copies and fills read or write, of a device or of the host.
//!
//! Which of the two an address means is known only when it is used, so both are
//! a [`Region`]. On a device every access is checked against what is mapped; on
//! the host it is the program that reports how long the memory is. Hence only an
//! unsafe function makes a region, and every part of one lies inside of it.

use crate::ffi::{Ptr, field};

/// Memory of a device or of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    address: Ptr,
    length: usize,
}

impl Region {
    /// Takes the address and touches nothing.
    ///
    /// # Safety
    /// `address` is null, or of a device, or points to `length` bytes of the host that the callee
    /// may read, or write if the call writes, until the call has taken effect.
    pub unsafe fn new(address: Ptr, length: usize) -> Self {
        Self { address, length }
    }

    /// Where it begins.
    pub fn address(&self) -> Ptr {
        self.address
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes, or the caller passed null.
    pub fn is_empty(&self) -> bool {
        self.length == 0 || self.address.is_null()
    }

    /// The 64-bit word at a position.
    ///
    /// # Safety
    /// The region is on the host, can be read, and has the word.
    pub(crate) unsafe fn word(&self, index: usize) -> u64 {
        // SAFETY: promised by the caller.
        unsafe { (self.address.0 as *const u64).add(index).read_unaligned() }
    }

    /// `length` bytes from `offset` on; `None` if they do not lie inside.
    pub fn part(&self, offset: usize, length: usize) -> Option<Self> {
        let end = offset.checked_add(length)?;
        let address = Ptr(self.address.0.checked_add(offset)?);
        (end <= self.length).then_some(Self { address, length })
    }
}

/// Bytes from the first to the last of `height` rows of `width` bytes, `pitch` apart.
pub fn pitched(pitch: usize, width: usize, height: usize) -> usize {
    match (width, height.checked_sub(1)) {
        (0, _) | (_, None) => 0,
        (width, Some(others)) => others.saturating_mul(pitch).saturating_add(width),
    }
}

/// Rows of memory that begin `pitch` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// All of them.
    pub region: Region,
    /// Bytes from the beginning of a row to that of the next.
    pub pitch: usize,
}

/// The parameters of `cuMemcpy2D`: from where to where, and how much.
#[derive(Clone, Copy, Debug)]
pub struct Copy2D {
    pub(crate) to: Rows,
    pub(crate) from: Rows,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Copy2D {
    /// Reads a description; `None` for null.
    ///
    /// # Safety
    /// `address` is null or points to a readable `CUDA_MEMCPY2D`, and the memory it names may be
    /// used as [`Region::new`] requires.
    pub unsafe fn new(address: *const [u8; 128]) -> Option<Self> {
        // SAFETY: promised by the caller.
        let description = unsafe { crate::ffi::input(address) }?;
        let word = |offset| field::<usize>(&description, offset).unwrap_or(0);
        let (width, height) = (word(112), word(120));
        // One side has 56 bytes: x, y, kind (1 is the host), host, device, array, pitch.
        let side = |at: usize| {
            let (x, y, kind, pitch) = (word(at), word(at + 8), word(at + 16) as i32, word(at + 48));
            let base = if kind == 1 {
                word(at + 24)
            } else {
                word(at + 32)
            };
            let first = Ptr(base.wrapping_add(y.wrapping_mul(pitch)).wrapping_add(x));
            // SAFETY: promised by the caller.
            let region = unsafe { Region::new(first, pitched(pitch, width, height)) };
            Rows { region, pitch }
        };
        Some(Self {
            from: side(0),
            to: side(56),
            width,
            height,
        })
    }
}

/// The parameters of `cudaMemcpy3D`, where both sides are pitched memory.
#[derive(Clone, Copy, Debug)]
pub struct Copy3D {
    pub(crate) to: Rows,
    pub(crate) from: Rows,
    /// Bytes from a slice to the next, of the target and of the source.
    pub(crate) slices: (usize, usize),
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

impl Copy3D {
    /// Reads a description; `None` for null.
    ///
    /// # Safety
    /// `address` is null or points to a readable `cudaMemcpy3DParms`, and the memory it names may be
    /// used as [`Region::new`] requires.
    pub unsafe fn new(address: *const [u8; 160]) -> Option<Self> {
        // SAFETY: promised by the caller.
        let description = unsafe { crate::ffi::input(address) }?;
        let word = |offset| field::<usize>(&description, offset).unwrap_or(0);
        let (width, height, depth) = (word(128), word(136), word(144));
        let side = |at: usize| {
            let (first, pitch, rows) = (word(at), word(at + 8), word(at + 24));
            let slice = pitch.saturating_mul(rows);
            let length = pitched(slice, pitched(pitch, width, height), depth);
            // SAFETY: promised by the caller.
            let region = unsafe { Region::new(Ptr(first), length) };
            (Rows { region, pitch }, slice)
        };
        let ((from, from_slice), (to, to_slice)) = (side(32), side(96));
        Some(Self {
            to,
            from,
            slices: (to_slice, from_slice),
            width,
            height,
            depth,
        })
    }
}

/// Regions whose addresses and lengths the caller passes as two arrays.
#[derive(Clone, Copy, Debug)]
pub struct Regions<'a> {
    addresses: &'a [Ptr],
    lengths: &'a [usize],
}

impl<'a> Regions<'a> {
    /// Takes the addresses and touches nothing.
    ///
    /// # Safety
    /// `addresses` is null or points to as many readable addresses as there are lengths; each pair
    /// of them is as [`Region::new`] demands.
    pub unsafe fn new(addresses: *const Ptr, lengths: &'a [usize]) -> Self {
        // SAFETY: promised by the caller.
        let addresses = unsafe { crate::ffi::input_array(addresses, lengths.len()) };
        Self { addresses, lengths }
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Region> {
        let pairs = self.addresses.iter().zip(self.lengths);
        // SAFETY: `new` was promised this.
        pairs.map(|(&address, &length)| unsafe { Region::new(address, length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_inside() {
        let bytes = [0_u8; 16];
        let address = Ptr(bytes.as_ptr() as usize);
        // SAFETY: as many bytes as there are.
        let region = unsafe { Region::new(address, 16) };
        assert_eq!(region.part(4, 12).unwrap().address().0, address.0 + 4);
        assert_eq!(region.part(4, 13), None);
        assert_eq!(region.part(usize::MAX, 2), None);
        assert!(region.part(16, 0).unwrap().is_empty());
    }

    #[test]
    fn rows_reach_from_the_first_byte_to_the_last() {
        assert_eq!(pitched(100, 10, 3), 210);
        assert_eq!(pitched(100, 10, 0), 0);
        assert_eq!(pitched(100, 0, 3), 0);
        assert_eq!(pitched(usize::MAX, 1, 3), usize::MAX);
    }

    #[test]
    fn a_description_of_a_copy_names_its_memory() {
        let (mut from, mut to) = ([0_u8; 64], [0_u8; 64]);
        let mut words = [0_usize; 16];
        // From x 2, y 1 of host memory, to the beginning of a device's; 4 bytes of 2 rows.
        (words[0], words[1], words[2], words[6]) = (2, 1, 1, 8);
        words[3] = from.as_mut_ptr() as usize;
        (words[7 + 2], words[7 + 4], words[7 + 6]) = (2, to.as_mut_ptr() as usize, 16);
        (words[14], words[15]) = (4, 2);
        // SAFETY: the memory is there.
        let copy = unsafe { Copy2D::new(words.as_ptr().cast()) }.unwrap();
        assert_eq!(copy.from.region.address().0, words[3] + 10);
        assert_eq!((copy.from.region.len(), copy.from.pitch), (12, 8));
        assert_eq!((copy.to.region.len(), copy.to.pitch), (20, 16));
        assert_eq!((copy.width, copy.height), (4, 2));
    }
}
