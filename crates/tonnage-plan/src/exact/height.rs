// SPDX-License-Identifier: MIT OR Apache-2.0
//! Heights as numbers: the narrower they are, the more of them are compared at once.

use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number for heights.
pub(super) trait Height:
    Copy + Ord + Default + Add<Output = Self> + Sub<Output = Self> + AddAssign + SubAssign + Send + Sync
{
    /// Above everything; also the support of what is placed.
    const MAX: Self;
    fn real(self) -> f32;
    fn from_units(units: u64) -> Self;
    fn units(self) -> u64;
}

macro_rules! height {
    ($type:ty) => {
        impl Height for $type {
            const MAX: Self = Self::MAX;
            fn real(self) -> f32 {
                self as f32
            }
            fn from_units(units: u64) -> Self {
                units as Self
            }
            fn units(self) -> u64 {
                self as u64
            }
        }
    };
}
height!(i32);
height!(i64);
