// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about a recording: who made it, on what, and what is not known.
//!
//! Free key and value, so that a recorder can record more than this version understands; the keys that tonnage
//! itself writes and reads are the constants below. A later fact with the same key and process replaces an
//! earlier one, which lets a recorder correct itself at the end of a run.

/// One fact. `process` 0 is also where facts about the whole recording go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Which process the fact is about.
    pub process: u32,
    /// The key.
    pub name: String,
    /// The value.
    pub text: String,
}

/// The latest value of `name` for `process`.
pub fn find<'a>(facts: &'a [Meta], process: u32, name: &str) -> Option<&'a str> {
    facts
        .iter()
        .rev()
        .find(|fact| fact.process == process && fact.name == name)
        .map(|fact| fact.text.as_str())
}

/// The command line that was run.
pub const COMMAND: &str = "command";
/// The format a recording was imported from, e.g. `pytorch-pickle`.
pub const SOURCE: &str = "source";
/// Version of PyTorch.
pub const TORCH_VERSION: &str = "torch.version";
/// Name of the GPU.
pub const GPU_NAME: &str = "gpu.name";
/// Bytes of the GPU.
pub const GPU_CAPACITY: &str = "gpu.capacity";
/// Bytes a context takes on it.
pub const GPU_CONTEXT: &str = "gpu.context";
/// `PYTORCH_CUDA_ALLOC_CONF` as it was parsed.
pub const ALLOCATOR_CONF: &str = "allocator.conf";
/// All settings of the allocator, as JSON.
pub const ALLOCATOR_SETTINGS: &str = "allocator.settings";
/// Which recording of a file it is: [`WHOLE_JOB`] for the second one, which no device limited.
pub const PART: &str = "run.part";
/// The value of [`PART`] in the recording of a job on a device without a limit.
pub const WHOLE_JOB: &str = "whole";
/// Operating system's id of the process.
pub const PROCESS_ID: &str = "process.id";
/// Rank of the process in a distributed run.
pub const PROCESS_RANK: &str = "process.rank";
/// Something the recording cannot contain; one fact per gap, with a number appended to the key: `unknown.0`.
pub const UNKNOWN: &str = "unknown";
