// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which devices a dry run simulates.

use serde::{Deserialize, Serialize};

/// The order of the driver's addresses; see `tonnage_alloc::AddressOrder`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressOrderName {
    /// Downwards in chunks of 32 MiB.
    #[default]
    Descending,
    /// Upwards and packed.
    Ascending,
}

/// Everything a process must know before its first CUDA call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The devices, by their number.
    pub devices: Vec<DeviceProfile>,
    /// How many machines have them, each the same number and one after the other; a process sees the GPUs of its own
    /// machine.
    pub machines: usize,
    /// Some ranks of the job do not run: messages to them are answered.
    pub absent_ranks: bool,
    /// The order of addresses on all of them.
    pub address_order: AddressOrderName,
    /// CUDA's version as torch was built for it, e.g. 13020; what the runtime
    /// and the driver call themselves. 0 if the process must find it out.
    pub cuda_version: i32,
    /// Copies up to this many bytes carry their values.
    pub value_limit: u64,
    /// The devices refuse nothing, whatever they report of themselves: how much a job needs is found so.
    #[serde(default)]
    pub unlimited: bool,
    /// How many launches a stream may be behind the host; 0 if work is done the moment it is requested.
    #[serde(default)]
    pub lag: u64,
}

/// One device, as programs see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// The driver's name, which programs match on.
    pub name: String,
    /// Bytes of memory as the driver reports them.
    pub total: u64,
    /// Bytes the context of a process takes.
    pub context: u64,
    /// Compute capability.
    pub major: i32,
    /// Compute capability, second part.
    pub minor: i32,
    /// Multiprocessors.
    pub sm_count: i32,
    /// Shared memory of a block without a request.
    pub shared_per_block: i32,
    /// Shared memory of a block that requests it.
    pub shared_per_block_optin: i32,
    /// Shared memory of a multiprocessor.
    pub shared_per_sm: i32,
    /// Shared memory of a block that the system takes.
    pub shared_reserved: i32,
    /// Registers of a multiprocessor, and of a block.
    pub registers: i32,
    /// Threads of a multiprocessor.
    pub threads_per_sm: i32,
    /// Blocks of a multiprocessor.
    pub blocks_per_sm: i32,
    /// Bytes of second-level cache.
    pub l2: i32,
    /// Clock in kHz.
    pub clock_khz: i32,
    /// Memory clock in kHz.
    pub memory_clock_khz: i32,
    /// Bits of the memory bus.
    pub bus_width: i32,
    /// How many channels NCCL opens to its like; 0 without NVLink.
    #[serde(default)]
    pub nccl_channels: u64,
}
