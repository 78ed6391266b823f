// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of the facts that a dry run or `tonnage record` writes, beside those of [`meta`]. No key is defined
//! elsewhere.

use serde::{Deserialize, Serialize};

use crate::meta::{self, Meta};

/// Facts about the whole run stand under this process.
pub const RUN: u32 = 0;
/// The arguments of a process.
pub const PROCESS_COMMAND: &str = "process.command";
/// How many devices the machine had.
pub const GPU_COUNT: &str = "gpu.count";
/// The catalogue's name of the GPU.
pub const GPU_ID: &str = "gpu.id";
/// The basis of a figure that the device itself reported while the job ran.
pub const MEASURED: &str = "measured";
/// How the capacity is known: read, rounded, assumed, given, measured.
pub const GPU_CAPACITY_KNOWN: &str = "gpu.capacity.known";
/// How the size of the context is known.
pub const GPU_CONTEXT_KNOWN: &str = "gpu.context.known";
/// Bytes that are to stay free on each device, where the user set them.
pub const MARGIN: &str = "run.margin";
/// The order of the driver's addresses.
pub const ADDRESS_ORDER: &str = "driver.address_order";
/// How the command ended: `exit 0`, `exit 1`, `signal 9`.
pub const ENDING: &str = "run.ending";
/// A process that failed, as JSON of `FailedProcess` of tonnage-analysis; one fact for each, in the order in
/// which they ended.
pub const FAILED_PROCESS: &str = "run.failed_process";
/// How many ranks the job has of which only some were run.
pub const WORLD_SIZE: &str = "run.world_size";
/// The beginning of the name of a fact: a rank that does something else than the process that reports it.
pub const DIFFERING_RANK: &str = "process.differing_rank.";
/// The ranks that were run, as numbers with commas.
pub const RANKS: &str = "run.ranks";
/// Why the command was ended before its own end, if it was.
pub const STOPPED: &str = "run.stopped";
/// How long, in whole seconds, an interrupted run had gone on without a new peak.
pub const WITHOUT_NEW_PEAK: &str = "run.seconds_without_new_peak";
/// How many processes the kernel ended during the run because the machine was out of memory.
pub const KILLED_FOR_MEMORY: &str = "run.killed_for_memory";
/// How many processes with a GPU still ran when the command had ended, and were ended.
pub const LEFT_RUNNING: &str = "run.left_running";
/// The arguments of a process that still ran when the command had ended, had not used a GPU, and was ended.
pub const LEFT_WITHOUT_GPU: &str = "run.left_without_gpu";
/// Set if the user interrupted the run.
pub const INTERRUPTED: &str = "run.interrupted";
/// Which values a process read that were not computed, and which sizes depended on such values, as JSON.
pub const VALUES: &str = "process.values";
/// The operations that a process had the GPU do, as JSON.
pub const COSTS: &str = "process.costs";
/// How many ranks the first communicator of NCCL has that a process made.
pub const COMMUNICATOR: &str = "process.communicator";
/// How much the buffers of the communicators take that a process used, as JSON of [`NcclBuffers`].
pub const NCCL_BUFFERS: &str = "process.nccl_buffers";
/// That blocks were freed which another stream used, so that what PyTorch reserves depends on how far the GPU is behind
/// the host: by how many launches its streams were taken to be behind at most.
pub const FREES_WAIT: &str = "process.frees_wait";
/// A change that was to be made to the program, and what became of it, as JSON; one fact for each.
pub const CHANGE: &str = "process.change";
/// When a process was stopped before its end, as was requested.
pub const ENDED_EARLY: &str = "process.ended_early";
/// The message that a rank waits for and that does not come, as JSON.
pub const DEADLOCK: &str = "process.deadlock";
/// A user of a device that a dry run cannot follow, as JSON; one fact for each.
pub const FOREIGN: &str = "run.foreign";
/// An action that a dry run did not carry out, as JSON; one fact for each.
pub const SUPPRESSED: &str = "run.suppressed";
/// A host that a process connected to, with the port; one fact for each.
pub const HOST: &str = "run.host";
/// A library that could not be kept from uploading, with the reason; one fact for each.
pub const UNPROTECTED: &str = "run.unprotected";
/// A limitation of the recording that has a code, as JSON; one fact for each.
pub const LIMITATION: &str = "run.limitation";
/// A function of the hook that failed in a process, as JSON; one fact for each function and process.
pub const HOOK_FAILURE: &str = "run.hook_failure";
/// The allocator that took the place of PyTorch's own in a process: [`TONNAGE`], or [`PLUGGED`].
pub const ALLOCATOR: &str = "process.allocator";
/// tonnage's.
pub const TONNAGE: &str = "tonnage";
/// One that is not known.
pub const PLUGGED: &str = "plugged";
/// The uncaught exception of a process, as JSON.
pub const EXCEPTION: &str = "process.exception";
/// The devices a process saw, by their number on the machine, with commas.
pub const VISIBLE: &str = "process.visible";
/// The environment variables that change what PyTorch and CUDA allocate, as JSON.
pub const ENVIRONMENT: &str = "process.environment";
/// Version of Python.
pub const PYTHON_VERSION: &str = "python.version";
/// Whether the uses of all blocks are recorded: [`ALL_USES`] if they are.
pub const USES: &str = "uses";
/// The value of [`USES`] where none is missing.
pub const ALL_USES: &str = "all";
/// Most bytes of blocks that one launch used, for each device from 0, as JSON.
pub const FLOORS: &str = "uses.floors";
/// CUDA's version as torch was built for it.
pub const CUDA_VERSION: &str = "cuda.version";
/// How files of the user were protected and what the job did to them, as JSON of [`FileChanges`].
pub const FILES: &str = "run.files";
/// From where on rows are missing, and why.
pub const INCOMPLETE: &str = "recording.incomplete";

/// The memory of NCCL's own buffers in a process, by the communicators that it used.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct NcclBuffers {
    /// How many there were at once, at most.
    pub communicators: u64,
    /// The least that they take, in bytes.
    pub low: u64,
    /// The most.
    pub high: u64,
}

/// How the files of the user are protected from a job that runs dry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// Overlay mounts of the kernel: every write, however a program makes it.
    Overlay,
    /// The preloaded library: every write through the C library, but not raw system calls.
    Preload,
}

/// Changes of files by a job. They are discarded, and the user's files are as before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileChanges {
    /// The mechanism that protected the files.
    pub protection: Protection,
    /// Files that the job made. Temporary files and byte code of Python are not counted.
    pub new: u64,
    /// Existing files that the job wrote to.
    pub changed: u64,
    /// Existing files that the job deleted.
    pub deleted: u64,
    /// The first of the files that the job changed or deleted: the user's own are as before.
    pub unchanged: Vec<String>,
    /// Files at which the preloaded library refused a change, because it could not redirect it.
    pub refused: u64,
    /// The first of them.
    pub refused_at: Vec<String>,
    /// Where copies of the files that the job wrote are, if they were kept.
    pub kept_in: Option<String>,
}

impl FileChanges {
    /// No changes.
    pub fn new(protection: Protection) -> Self {
        Self {
            protection,
            new: 0,
            changed: 0,
            deleted: 0,
            unchanged: Vec::new(),
            refused: 0,
            refused_at: Vec::new(),
            kept_in: None,
        }
    }
}

/// Why the run, or one of its processes, was ended before its own end.
pub fn why_stopped(facts: &[Meta]) -> Option<String> {
    let run = meta::find(facts, RUN, STOPPED).map(str::to_owned);
    let asked_for = || {
        let found = facts.iter().find(|fact| fact.name == ENDED_EARLY)?;
        Some(format!("it was to stop {}", found.text))
    };
    run.or_else(asked_for)
}

/// The name of the fact that a rank does something else.
pub fn differing_rank(rank: u32) -> String {
    format!("{DIFFERING_RANK}{rank}")
}

/// That no other process had memory of a device when a process first used it.
pub fn alone_at_start(device: i32) -> String {
    format!("device.{device}.alone_at_start")
}

/// The most that all processes together had in use on a device, kept beside the rows.
pub fn peak_in_use(device: i32) -> String {
    format!("device.{device}.peak_in_use")
}

/// The most bytes a device had charged to a process; kept for a process whose recording is incomplete.
pub fn peak_charged(device: i32) -> String {
    format!("device.{device}.peak_charged")
}

/// The most bytes torch's allocator handed out on a device; kept for a process whose recording is incomplete.
pub fn peak_allocated(device: i32) -> String {
    format!("device.{device}.peak_allocated")
}

/// The most bytes torch's allocator held on a device; kept for a process whose recording is incomplete.
pub fn peak_reserved(device: i32) -> String {
    format!("device.{device}.peak_reserved")
}
