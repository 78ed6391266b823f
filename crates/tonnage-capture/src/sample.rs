// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory figures of a real GPU, and of PyTorch's allocator at that moment: a note in the log.
//!
//! The reader of a recording and the watcher of a running job both query how much of the device is the process's, so
//! the answer is here.

use serde::{Deserialize, Serialize};

/// The memory figures of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The device, as the process numbers it.
    pub device: i32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that it has.
    pub total: u64,
    /// Bytes of this process, if the driver reports them.
    pub own: Option<u64>,
    /// Bytes that PyTorch held at that moment.
    pub reserved: u64,
    /// Bytes that were free before the process used the device, if the driver reported them.
    pub free_before: Option<u64>,
    /// The driver's name of the device, in the first sample.
    pub name: Option<String>,
    /// Devices that the process sees, in the first sample.
    pub count: Option<u32>,
    /// The driver's own id of the device, in the first sample.
    pub uuid: Option<String>,
    /// Bytes that PyTorch had handed out at that moment.
    pub allocated: Option<u64>,
    /// The most of it, since the script started or last had PyTorch count anew.
    pub peak_allocated: Option<u64>,
    /// The most that PyTorch held, likewise.
    pub peak_reserved: Option<u64>,
    /// Bytes that lie free in segments of which a part is in use.
    pub inactive_split: Option<u64>,
}

impl Sample {
    /// Bytes in use by whomever.
    pub fn in_use(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Bytes of this process: by the driver's own word, else all that came into use since it started.
    pub fn charged(&self) -> u64 {
        let before = self.free_before.unwrap_or(self.total);
        let since = before.min(self.total).saturating_sub(self.free);
        // A process of another container may have the same number: its bytes are not evidence.
        let own = self.own.filter(|own| *own >= self.reserved);
        own.unwrap_or(since).min(self.in_use())
    }
}
