// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reserved ranges of addresses, for devices of any kind.
//!
//! The rules are those of the driver's virtual memory management: a range has a whole number of pieces, is given back
//! whole, and only when nothing is mapped in it. Which addresses there are and what is mapped is the device's own
//! account; it is passed in.

use std::collections::BTreeMap;

use crate::{AddressSpace, DeviceAddr, DeviceError, GRANULARITY};

/// The reserved ranges of a device.
///
/// ```
/// use std::collections::BTreeMap;
/// use tonnage_alloc::{AddressOrder, AddressSpace, GRANULARITY, Reservations};
///
/// let mut space = AddressSpace::new(AddressOrder::Ascending, 1 << 40, 1 << 30);
/// let mut reservations = Reservations::default();
/// let range = reservations.reserve(&mut space, 2 * GRANULARITY, 0)?;
/// assert!(reservations.holds(range.offset(GRANULARITY), GRANULARITY));
/// assert!(!reservations.holds(range.offset(GRANULARITY), 2 * GRANULARITY));
///
/// let mapped = BTreeMap::from([(range.0, "memory")]);
/// assert!(reservations.unreserve(&mut space, range, 2 * GRANULARITY, &mapped).is_err());
/// reservations.unreserve(&mut space, range, 2 * GRANULARITY, &BTreeMap::<u64, ()>::new())?;
/// # Ok::<(), tonnage_alloc::DeviceError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    /// Their lengths, by address.
    lengths: BTreeMap<u64, u64>,
}

impl Reservations {
    /// Reserves `size` bytes of `space`; `free` is what the error reports.
    pub fn reserve(
        &mut self,
        space: &mut AddressSpace,
        size: u64,
        free: u64,
    ) -> Result<DeviceAddr, DeviceError> {
        let size = whole_pieces(size)?;
        let requested = size;
        let addr = space
            .take(size)
            .ok_or(DeviceError::OutOfMemory { requested, free })?;
        self.lengths.insert(addr, size);
        Ok(DeviceAddr(addr))
    }

    /// Gives a range back to `space`; `mappings` has what is mapped, by address.
    pub fn unreserve<M>(
        &mut self,
        space: &mut AddressSpace,
        addr: DeviceAddr,
        size: u64,
        mappings: &BTreeMap<u64, M>,
    ) -> Result<(), DeviceError> {
        if self.lengths.get(&addr.0) != Some(&size) {
            return Err(DeviceError::Invalid("not a whole reservation"));
        }
        if mappings.range(addr.0..addr.0 + size).next().is_some() {
            return Err(DeviceError::Invalid("the reservation is still mapped"));
        }
        self.lengths.remove(&addr.0);
        space.release_range(addr.0, size);
        Ok(())
    }

    /// The range around an address, as start and length.
    pub fn find(&self, addr: DeviceAddr) -> Option<(DeviceAddr, u64)> {
        let (&start, &length) = self.lengths.range(..=addr.0).next_back()?;
        (addr.0 - start < length).then_some((DeviceAddr(start), length))
    }

    /// Whether `size` bytes from `addr` on, which is a multiple of a piece, lie in one range.
    pub fn holds(&self, addr: DeviceAddr, size: u64) -> bool {
        let Some((start, length)) = self.find(addr) else {
            return false;
        };
        let end = addr.0.checked_add(size);
        addr.0.is_multiple_of(GRANULARITY) && end.is_some_and(|end| end <= start.0 + length)
    }
}

/// A size that is a whole number of pieces of physical memory, as [`Device::reserve`](crate::Device::reserve) and
/// [`Device::create`](crate::Device::create) require.
pub fn whole_pieces(size: u64) -> Result<u64, DeviceError> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(DeviceError::Invalid(
            "the size must be a positive multiple of 2 MiB",
        ));
    }
    Ok(size)
}
