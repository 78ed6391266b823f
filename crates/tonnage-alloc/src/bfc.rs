// SPDX-License-Identifier: MIT OR Apache-2.0
//! Best fit with coalescing, as TensorFlow's and JAX's GPU allocator works.
//!
//! An approximation, and everything computed from it is marked so: the rules
//! are those of `bfc_allocator.cc` with growth allowed (regions that double from
//! 2 MiB, blocks of 256 bytes, the tightest free chunk, a chunk split when it is
//! twice the request or 128 MiB larger, neighbours merged at once, nothing ever
//! given back before the end), but streams, timed waits and the preallocation of most of the
//! device, which programs can switch on or off, are left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Device, DeviceAddr, DeviceError, Suballocator, rounded_request};

const STEP: u64 = 256;
/// Size of the first region.
const FIRST_REGION: u64 = 2 << 20;
/// A chunk that exceeds a request by this much is split even if it is not twice as large.
const MAX_SLACK: u64 = 128 << 20;

#[derive(Clone, Copy, Debug)]
struct Chunk {
    size: u64,
    used: bool,
    /// First byte of its region: chunks of two regions never merge.
    region: u64,
}

/// An allocator of the best-fit-with-coalescing kind.
#[derive(Clone, Debug)]
pub struct Bfc {
    chunks: BTreeMap<u64, Chunk>,
    /// Free chunks by size, then address.
    free: BTreeSet<(u64, u64)>,
    /// Bytes of each region, by its first byte.
    regions: BTreeMap<u64, u64>,
    next_region: u64,
    backpedalled: bool,
    used: u64,
    peak_used: u64,
    reserved: u64,
}

impl Default for Bfc {
    fn default() -> Self {
        Self {
            chunks: BTreeMap::new(),
            free: BTreeSet::new(),
            regions: BTreeMap::new(),
            next_region: FIRST_REGION,
            backpedalled: false,
            used: 0,
            peak_used: 0,
            reserved: 0,
        }
    }
}

impl Bfc {
    /// Bytes handed out.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The most that was ever handed out.
    pub fn peak_used(&self) -> u64 {
        self.peak_used
    }

    /// Bytes held from the device; they shrink only in [`close`](Self::close).
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The largest free chunk.
    pub fn largest_free(&self) -> u64 {
        self.free.last().map_or(0, |&(size, _)| size)
    }

    /// Serves a request, growing on `device` if need be.
    pub fn malloc(
        &mut self,
        device: &mut impl Device,
        size: u64,
    ) -> Result<DeviceAddr, DeviceError> {
        let rounded = rounded_request(device, size, STEP)?;
        let refused = DeviceError::OutOfMemory {
            requested: size,
            free: device.free_bytes(),
        };
        if let Some(addr) = self.take(rounded) {
            return Ok(addr);
        }
        if !self.extend(device, rounded)? {
            return Err(refused);
        }
        self.take(rounded).ok_or(refused)
    }

    /// Takes a block back and merges it with its free neighbours.
    pub fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        let unknown = DeviceError::Invalid("not the start of an allocation");
        let chunk = self.chunks.get_mut(&addr.0).filter(|chunk| chunk.used);
        let chunk = chunk.ok_or(unknown)?;
        chunk.used = false;
        let Chunk {
            mut size, region, ..
        } = *chunk;
        self.used -= size;
        let mut start = addr.0;
        let mergeable = |chunk: &Chunk| !chunk.used && chunk.region == region;
        if let Some((&next, chunk)) = self.chunks.range(start + size..).next()
            && next == start + size
            && mergeable(chunk)
        {
            self.free.remove(&(chunk.size, next));
            size += chunk.size;
            self.chunks.remove(&next);
        }
        if let Some((&prev, chunk)) = self.chunks.range(..start).next_back()
            && prev + chunk.size == start
            && mergeable(chunk)
        {
            self.free.remove(&(chunk.size, prev));
            size += chunk.size;
            self.chunks.remove(&start);
            start = prev;
        }
        let used = false;
        self.chunks.insert(start, Chunk { size, used, region });
        self.free.insert((size, start));
        Ok(())
    }

    /// The size of the live block that starts at `addr`.
    pub fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        let chunk = self.chunks.get(&addr.0).filter(|chunk| chunk.used);
        chunk.map(|chunk| chunk.size)
    }

    /// Gives regions without live blocks back to `device`, as the allocator does
    /// at its end and never before.
    pub fn close(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        let regions: Vec<(u64, u64)> = self.regions.iter().map(|(&at, &size)| (at, size)).collect();
        for (region, bytes) in regions {
            if self.free.contains(&(bytes, region)) {
                device.free(DeviceAddr(region))?;
                self.free.remove(&(bytes, region));
                self.chunks.remove(&region);
                self.regions.remove(&region);
                self.reserved -= bytes;
            }
        }
        Ok(())
    }

    /// Hands out the tightest free chunk, split if too much would be wasted.
    fn take(&mut self, size: u64) -> Option<DeviceAddr> {
        let &(found, addr) = self.free.range((size, 0)..).next()?;
        self.free.remove(&(found, addr));
        let chunk = self.chunks.get_mut(&addr)?;
        chunk.used = true;
        let rest = found - size;
        if rest >= size || rest >= MAX_SLACK {
            chunk.size = size;
            let (used, region) = (false, chunk.region);
            let part = Chunk {
                size: rest,
                used,
                region,
            };
            self.chunks.insert(addr + size, part);
            self.free.insert((rest, addr + size));
            self.used += size;
        } else {
            self.used += found;
        }
        self.peak_used = self.peak_used.max(self.used);
        Some(DeviceAddr(addr))
    }

    /// Obtains a region for a request of `size` bytes; whether there was memory.
    fn extend(&mut self, device: &mut impl Device, size: u64) -> Result<bool, DeviceError> {
        let available = device.free_bytes() / STEP * STEP;
        if size > available {
            return Ok(false);
        }
        let mut grown = false;
        while size > self.next_region {
            self.next_region = self.next_region.saturating_mul(2);
            grown = true;
        }
        let mut bytes = self.next_region.min(available);
        let mut region = obtain(device, bytes)?;
        if region.is_none() && !self.backpedalled {
            self.backpedalled = true;
            while region.is_none() {
                bytes = (bytes / 10).saturating_mul(9) / STEP * STEP;
                if bytes < size {
                    break;
                }
                region = obtain(device, bytes)?;
            }
        }
        let Some(region) = region else {
            return Ok(false);
        };
        if !grown {
            self.next_region = self.next_region.saturating_mul(2);
        }
        let chunk = Chunk {
            size: bytes,
            used: false,
            region,
        };
        self.chunks.insert(region, chunk);
        self.free.insert((bytes, region));
        self.regions.insert(region, bytes);
        self.reserved += bytes;
        Ok(true)
    }
}

impl Suballocator for Bfc {
    const ALIGNMENT: u64 = STEP;

    fn malloc(&mut self, device: &mut impl Device, bytes: u64) -> Result<DeviceAddr, DeviceError> {
        Self::malloc(self, device, bytes)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        Self::free(self, addr)
    }

    fn trim(&mut self, _device: &mut impl Device) -> Result<(), DeviceError> {
        Ok(())
    }

    fn close(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        Self::close(self, device)
    }

    fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        Self::size_of(self, addr)
    }

    fn reserved(&self) -> u64 {
        Self::reserved(self)
    }

    fn used(&self) -> u64 {
        Self::used(self)
    }

    fn peak_used(&self) -> u64 {
        Self::peak_used(self)
    }

    fn largest_free(&self) -> Option<u64> {
        Some(Self::largest_free(self))
    }
}

fn obtain(device: &mut impl Device, bytes: u64) -> Result<Option<u64>, DeviceError> {
    match device.malloc(bytes) {
        Ok(addr) => Ok(Some(addr.0)),
        Err(DeviceError::OutOfMemory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddressOrder, SimConfig, SimDevice};

    fn device(total: u64) -> SimDevice {
        SimDevice::new(SimConfig {
            total,
            context: 0,
            order: AddressOrder::Ascending,
            base: 1 << 40,
            span: 1 << 50,
        })
    }

    #[test]
    fn regions_double_and_neighbours_merge() {
        let mut device = device(1 << 30);
        let mut bfc = Bfc::default();
        let first = bfc.malloc(&mut device, 1 << 20).unwrap();
        let second = bfc.malloc(&mut device, 1 << 20).unwrap();
        assert_eq!((bfc.reserved(), second.0 - first.0), (2 << 20, 1 << 20));
        bfc.malloc(&mut device, 1).unwrap();
        assert_eq!(bfc.reserved(), (2 << 20) + (4 << 20));
        bfc.free(second).unwrap();
        bfc.free(first).unwrap();
        assert_eq!(bfc.malloc(&mut device, 2 << 20).unwrap(), first);
        assert_eq!(bfc.used(), (2 << 20) + 256);
    }

    #[test]
    fn a_full_device_refuses_and_unknown_blocks_are_told() {
        let mut device = device(64 << 20);
        let mut bfc = Bfc::default();
        assert!(bfc.malloc(&mut device, 60 << 20).is_ok());
        let refused = bfc.malloc(&mut device, 8 << 20);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
        assert!(bfc.malloc(&mut device, u64::MAX).is_err());
        assert!(bfc.malloc(&mut device, 0).is_err());
        assert!(bfc.free(DeviceAddr(5)).is_err());
    }
}
