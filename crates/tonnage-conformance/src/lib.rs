// SPDX-License-Identifier: MIT OR Apache-2.0
//! One test suite for every allocator policy on every device.
//!
#![doc = include_str!("../README.md")]
//!
//! [`policy`] puts a [`Policy`](tonnage_alloc::Policy) through everything its
//! contract promises; [`device`] does the same for a
//! [`Device`]. Both run on any device that implements
//! [`TestDevice`]; where a device has bytes, patterns are written into every
//! block and checked before it is freed.
//!
//! A [`Checked`] device stands between the policy and the device. It keeps separate accounts, which share no code with
//! the devices: it knows what is allocated, reserved, mapped and recorded, notes every call that breaks the contract,
//! and fails a call on demand. [`every_call_fails`] lets each call of a scenario fail in turn.
#![forbid(unsafe_code)]

mod checked;
mod contract;
mod faults;
mod model;
mod suite;

use tonnage_alloc::{Access, AllocationKind, Device, DeviceAddr, DeviceError, SimDevice, StreamId};
use tonnage_device_host::HostDevice;

pub use checked::Checked;
pub use contract::device;
pub use faults::{every_call_fails, every_call_fails_while_pausing, every_call_fails_with};
pub use suite::{policy, policy_with};

/// A device that the suite can look into.
///
/// The methods as they are here suit a device without bytes, on which all work is done at once.
pub trait TestDevice: Device {
    /// Whether [`write`](Self::write) fails where access was not given.
    const CHECKS_ACCESS: bool = true;

    /// Writes to a block, now. A device without bytes returns whether it could.
    fn write(&mut self, _addr: DeviceAddr, _bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Reads a block, now; `false` if the device has no bytes.
    fn read(&self, _addr: DeviceAddr, _bytes: &mut [u8]) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Gives a stream work: to fill a range with a byte later. `false` if work on
    /// this device happens at once.
    fn enqueue_fill(&mut self, _: StreamId, _: DeviceAddr, _size: u64, _byte: u8) -> bool {
        false
    }

    /// Lets the work of a stream happen.
    fn run_stream(&mut self, _stream: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl TestDevice for SimDevice {
    fn write(&mut self, addr: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        let end = addr.0 + bytes.len() as u64;
        let mut next = addr.0;
        while next < end {
            let at = DeviceAddr(next);
            let found = self.find(at);
            let found = found.ok_or(DeviceError::Invalid("nothing is there"))?;
            let mapped = found.kind == AllocationKind::Mapped;
            if mapped && self.access_at(at) != Some(Access::ReadWrite) {
                return Err(DeviceError::Invalid("it may not be written"));
            }
            next = found.addr.0 + found.size;
        }
        Ok(())
    }
}

impl TestDevice for HostDevice {
    fn write(&mut self, addr: DeviceAddr, bytes: &[u8]) -> Result<(), DeviceError> {
        Self::write(self, addr, bytes)
    }

    fn read(&self, addr: DeviceAddr, bytes: &mut [u8]) -> Result<bool, DeviceError> {
        Self::read(self, addr, bytes)?;
        Ok(true)
    }

    fn enqueue_fill(&mut self, stream: StreamId, addr: DeviceAddr, size: u64, byte: u8) -> bool {
        Self::enqueue_fill(self, stream, addr, size, byte);
        true
    }

    fn run_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        Self::run_stream(self, stream)
    }
}
