// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream-ordered pool, as `cudaMallocAsync` draws from.
//!
//! The driver does not document how its pools grow or which hole they fill, so
//! this is an approximation and everything computed from it is marked
//! `assumed`: chunks of at least 32 MiB, the tightest hole first, whole chunks
//! given back at a synchronisation while more than the release threshold is held.

use std::collections::BTreeMap;

use crate::address::Chunks;
use crate::{Device, DeviceAddr, DeviceError, Suballocator, rounded_request};

const CHUNK: u64 = 32 << 20;
const STEP: u64 = 512;

/// A pool of device memory from which pieces are cut.
#[derive(Clone, Debug, Default)]
pub struct StreamPool {
    chunks: Chunks,
    blocks: BTreeMap<u64, u64>,
    used: u64,
    peak_used: u64,
    reserved: u64,
    peak_reserved: u64,
    /// Bytes the pool may keep at a synchronisation (`cudaMemPoolAttrReleaseThreshold`).
    pub release_threshold: u64,
}

impl StreamPool {
    /// Bytes handed out.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The most that was ever handed out.
    pub fn peak_used(&self) -> u64 {
        self.peak_used
    }

    /// Bytes held from the device.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The most that was ever held from the device.
    pub fn peak_reserved(&self) -> u64 {
        self.peak_reserved
    }

    /// The size of the block that starts at `addr`, if it is this pool's.
    pub fn size_of(&self, addr: DeviceAddr) -> Option<u64> {
        self.blocks.get(&addr.0).copied()
    }

    /// Cuts `size` bytes out of the pool, growing it on `device` if need be.
    pub fn malloc(
        &mut self,
        device: &mut impl Device,
        size: u64,
    ) -> Result<DeviceAddr, DeviceError> {
        let rounded = rounded_request(device, size, STEP)?;
        let addr = if let Some(addr) = self.chunks.take(rounded) {
            addr
        } else {
            let chunk = rounded_request(device, size, CHUNK)?;
            // A chunk that does not fit may still fit unrounded.
            let exact = rounded.next_multiple_of(device.granularity());
            let (start, length) = match device.malloc(chunk) {
                Ok(start) => (start.0, chunk),
                Err(DeviceError::OutOfMemory { .. }) if exact < chunk => {
                    self.trim(device, 0)?;
                    (device.malloc(exact)?.0, exact)
                }
                Err(error) => return Err(error),
            };
            self.chunks.add(start, length);
            self.reserved += length;
            self.peak_reserved = self.peak_reserved.max(self.reserved);
            self.chunks
                .take(rounded)
                .ok_or(DeviceError::Invalid("a fresh chunk holds nothing"))?
        };
        self.blocks.insert(addr, rounded);
        self.used += rounded;
        self.peak_used = self.peak_used.max(self.used);
        Ok(DeviceAddr(addr))
    }

    /// Gives a block back to the pool.
    pub fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        let size = self
            .blocks
            .remove(&addr.0)
            .ok_or(DeviceError::Invalid("not the start of an allocation"))?;
        self.used -= size;
        self.chunks.release_piece(addr.0, size);
        Ok(())
    }

    /// Gives whole free chunks back to `device` until at most `keep` bytes are held.
    pub fn trim(&mut self, device: &mut impl Device, keep: u64) -> Result<(), DeviceError> {
        for (start, length) in self.chunks.empty() {
            if self.reserved <= keep {
                break;
            }
            device.free(DeviceAddr(start))?;
            self.chunks.remove(start);
            self.reserved -= length;
        }
        Ok(())
    }
}

impl Suballocator for StreamPool {
    const ALIGNMENT: u64 = STEP;

    fn malloc(&mut self, device: &mut impl Device, bytes: u64) -> Result<DeviceAddr, DeviceError> {
        Self::malloc(self, device, bytes)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        Self::free(self, addr)
    }

    fn trim(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        Self::trim(self, device, 0)
    }

    fn close(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        Self::trim(self, device, 0)
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
        None
    }
}
