// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bare addresses for tests, which keep account of their blocks themselves, and devices that a test changes.
#![allow(dead_code, reason = "each test program uses a part")]
#![expect(unsafe_code, reason = "functions for C")]

use tonnage_runtime::{Device, DeviceAddr, Error, Runtime};

/// Frees a block of `alloc_raw`.
pub(crate) fn free<D: Device>(runtime: &Runtime<D>, addr: DeviceAddr) -> Result<(), Error> {
    // SAFETY: tests free no address twice, except to see the error of a runtime without a block there.
    unsafe { runtime.free_raw(addr) }
}

/// Does something with the device.
pub(crate) fn visit<D: Device, T>(
    runtime: &Runtime<D>,
    act: impl FnOnce(&mut D) -> T,
) -> Result<T, Error> {
    // SAFETY: tests write to their own blocks and change what the device simulates; they take no memory away.
    unsafe { runtime.with_device_mut(act) }
}
