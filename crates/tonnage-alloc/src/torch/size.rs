// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large a block and a segment become (specification 2).

use super::settings::{INTERVALS, MIN_OWN_SEGMENT, Settings};

/// The smallest block, and what every block is a multiple of.
pub(super) const MIN_BLOCK: u64 = 512;
/// Rounded requests up to this size come from the small pool.
pub(super) const SMALL_LIMIT: u64 = 1 << 20;
/// Bytes that the small pool obtains from the device.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// The unit to which segments of their own size are rounded up.
const OWN_SEGMENT_STEP: u64 = 2 << 20;
/// Requests from this size on are refused at once.
pub(super) const TOO_LARGE: u64 = 1 << 60;

/// The size of a block for `requested` bytes.
///
/// pre: `requested < TOO_LARGE`, so nothing overflows.
#[inline]
pub(super) fn round(settings: &Settings, requested: u64) -> u64 {
    if requested < MIN_BLOCK {
        return MIN_BLOCK;
    }
    let power = requested.ilog2();
    let interval = (power.saturating_sub(20) as usize).min(INTERVALS - 1);
    let divisions = settings.roundup_power2_divisions[interval];
    // Absurdly many divisions overflow in torch; the product wraps there too.
    if divisions > 1 && requested > MIN_BLOCK.wrapping_mul(divisions) {
        let step = (1_u64 << power) >> divisions.ilog2();
        return if step == 0 {
            requested.next_power_of_two()
        } else {
            requested.next_multiple_of(step)
        };
    }
    requested.next_multiple_of(MIN_BLOCK)
}

/// The same where no divisions are set.
#[inline]
pub(super) fn round_plainly(requested: u64) -> u64 {
    (requested + (MIN_BLOCK - 1)) & !(MIN_BLOCK - 1)
}

/// Bytes to request from the device for a block of `size` bytes.
#[inline]
pub(super) fn segment(settings: &Settings, size: u64) -> u64 {
    if size <= SMALL_LIMIT {
        SMALL_SEGMENT
    } else if size < MIN_OWN_SEGMENT {
        settings.large_segment_size
    } else {
        size.next_multiple_of(OWN_SEGMENT_STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_round_as_the_specification_shows() {
        let with = |divisions| Settings {
            roundup_power2_divisions: [divisions; INTERVALS],
            ..Settings::default()
        };
        let mib = 1 << 20;
        assert_eq!(round(&with(4), 2049), 2560);
        assert_eq!(round(&with(4), 5 * mib + 1), 6 * mib);
        assert_eq!(round(&with(4), 1200), 1536);
        assert_eq!(round(&with(0), 1200), 1536);
        assert_eq!(round(&with(8), 1), 512);
        assert_eq!(round(&with(1 << 40), 4097), 4608);
        assert_eq!(round(&with(1 << 63), 4097), 8192);
    }
}
