// SPDX-License-Identifier: MIT OR Apache-2.0
//! Size classes: two levels, so that a class is found by counting zeros.
//!
//! The first level is the power of two of a size, the second cuts each power
//! into [`FINE`] equal parts. Sizes below [`FINE`] granules have a class each.
//! The classes are a formula, not a table, so their spacing cannot be wrong in
//! one row.

/// Every block starts at a multiple of this and has a multiple of it.
pub(super) const GRANULE: u64 = 512;
const FINE_BITS: u32 = 5;
/// Classes for each power of two.
pub(super) const FINE: usize = 1 << FINE_BITS;
/// Powers of two; the last holds blocks of 2^52 bytes, more than any device reserves.
pub(super) const COARSE: usize = 40;
/// The largest block that has a class.
pub(super) const LARGEST: u64 = 1 << 52;

/// The class of a block of `bytes`, a positive multiple of the granule.
#[inline]
pub(super) fn class_of(bytes: u64) -> usize {
    debug_assert!(bytes >= GRANULE && bytes.is_multiple_of(GRANULE) && bytes <= LARGEST);
    let granules = bytes / GRANULE;
    if granules < FINE as u64 {
        return granules as usize;
    }
    let power = granules.ilog2();
    let fine = (granules >> (power - FINE_BITS)) as usize & (FINE - 1);
    (((power - FINE_BITS + 1) as usize) << FINE_BITS) | fine
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest block of a class.
    fn least(class: usize) -> u64 {
        let (coarse, fine) = ((class >> FINE_BITS) as u32, (class & (FINE - 1)) as u64);
        let granules = match coarse {
            0 => fine,
            _ => (FINE as u64 + fine) << (coarse - 1),
        };
        granules * GRANULE
    }

    #[test]
    fn classes_grow_with_their_sizes_and_leave_none_out() {
        let last = class_of(LARGEST);
        assert!(last < FINE * COARSE, "{last}");
        for class in 1..=last {
            let bytes = least(class);
            assert_eq!(class_of(bytes), class, "{bytes}");
            if class > 1 {
                assert_eq!(class_of(bytes - GRANULE), class - 1, "below {bytes}");
            }
        }
    }

    #[test]
    fn a_class_is_at_most_a_part_in_32_wide() {
        for class in FINE..class_of(LARGEST) {
            let width = least(class + 1) - least(class);
            assert!(width * FINE as u64 <= least(class), "{class}");
        }
    }
}
