// SPDX-License-Identifier: MIT OR Apache-2.0
//! One GPU of the catalogue, as plain data.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::Figure;

/// A CUDA compute capability, such as 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// The major revision: 9 in 9.0.
    pub major: u32,
    /// The minor revision: 0 in 9.0.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for ComputeCapability {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once('.').ok_or(())?;
        Ok(Self {
            major: major.parse().map_err(|_| ())?,
            minor: minor.parse().map_err(|_| ())?,
        })
    }
}

impl Serialize for ComputeCapability {
    // A string, not a number: 10.0 and 10 are the same number but not the same capability to a
    // reader.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// As it is serialised.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for ComputeCapability {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ComputeCapability".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A CUDA compute capability, such as 9.0.",
            "type": "string",
            "pattern": "^[0-9]+\\.[0-9]+$",
        })
    }
}

/// Limits that hold for every GPU of one compute capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// Bytes of shared memory a block may use without a request (`sharedMemPerBlock`).
    pub shared_per_block: Figure<u64>,
    /// Bytes of shared memory a block may use after opting in (`sharedMemPerBlockOptin`).
    pub shared_per_block_optin: Figure<u64>,
    /// Bytes of shared memory of one multiprocessor (`sharedMemPerMultiprocessor`).
    pub shared_per_sm: Figure<u64>,
    /// Bytes of shared memory CUDA keeps for itself in every block (`reservedSharedMemPerBlock`).
    pub shared_reserved_per_block: Figure<u64>,
    /// 32-bit registers of one multiprocessor (`regsPerMultiprocessor`).
    pub registers_per_sm: Figure<u32>,
    /// 32-bit registers one block may use (`regsPerBlock`).
    pub registers_per_block: Figure<u32>,
    /// Threads resident on one multiprocessor (`maxThreadsPerMultiProcessor`).
    pub threads_per_sm: Figure<u32>,
    /// Blocks resident on one multiprocessor (`maxBlocksPerMultiProcessor`).
    pub blocks_per_sm: Figure<u32>,
}

/// How fast a GPU is at most, as NVIDIA publishes it, for each second. An unpublished figure is absent.
///
/// Operations are dense ones, and of each type the highest figure that is published: times that are computed from them
/// are lower bounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Peak {
    /// Floating-point operations of products in 8 bits.
    pub flops_8: Option<Figure<u64>>,
    /// In 16 bits.
    pub flops_16: Option<Figure<u64>>,
    /// Operations on numbers of 32 bits that are rounded to TF32.
    pub flops_tf32: Option<Figure<u64>>,
    /// In 32 bits.
    pub flops_32: Option<Figure<u64>>,
    /// In 64 bits.
    pub flops_64: Option<Figure<u64>>,
    /// Bytes of device memory, read or written.
    pub memory_bytes: Option<Figure<u64>>,
    /// Bytes between it and the host, in one direction.
    pub host_bytes: Option<Figure<u64>>,
}

/// One GPU of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gpu {
    /// The catalogue's own name, such as `h100-80gb`; unique and stable.
    pub id: String,
    /// Other names that find it.
    pub aliases: Vec<String>,
    /// The name exactly as the driver reports it.
    pub name: String,
    /// Whether tonnage can answer for this GPU.
    pub supported: bool,
    /// Why not, when [`supported`](Self::supported) is false.
    pub reason: Option<String>,
    /// The size on the box, in the seller's GB: for people, and to keep
    /// [`total_memory`](Self::total_memory) honest in tests; never a capacity to plan with.
    pub marketed_gb: u32,
    /// The architecture's name, such as `Hopper`.
    pub architecture: String,
    /// The compute capability; read together with [`sm_count`](Self::sm_count).
    pub compute_capability: ComputeCapability,
    /// Bytes that `cudaMemGetInfo` calls total (`cudaDeviceProp.totalGlobalMem`): less than
    /// nvidia-smi's total, which counts what the driver keeps.
    pub total_memory: Figure<u64>,
    /// Bytes a process loses to its bare CUDA context, before it loads a kernel or a library
    /// (CUDA 12 and 13, lazy loading).
    pub context: Figure<u64>,
    /// How many channels NCCL opens between GPUs of one machine that NVLink connects; none without NVLink.
    pub nccl_channels: Option<Figure<u64>>,
    /// Multiprocessors (`multiProcessorCount`).
    pub sm_count: Figure<u32>,
    /// Bytes of L2 cache (`l2CacheSize`).
    pub l2_bytes: Figure<u64>,
    /// Width of the memory bus in bits (`memoryBusWidth`).
    pub memory_bus_bits: Figure<u32>,
    /// Memory clock in kHz (`memoryClockRate`).
    pub memory_clock_khz: Figure<u32>,
    /// Multiprocessor clock in kHz (`clockRate`); boards of one GPU differ here.
    pub clock_khz: Figure<u32>,
    /// How fast it is at most.
    pub peak: Peak,
    /// The limits of its compute capability.
    pub limits: Limits,
}
