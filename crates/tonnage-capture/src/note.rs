// SPDX-License-Identifier: MIT OR Apache-2.0
//! The notes in the log of a process: facts that the stand-in, the hook or the plugin of PyTorch writes as JSON.
//!
//! A note is an object with one key, the kind of the note. Python gets the same kinds from the hook's `wire.py`, which
//! tonnage-reference makes from this file. A note that has another kind or another field is not a [`Note`]: a recording
//! counts it as a limitation.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sample::Sample;

/// One fact about a process. The rarest are in boxes, because a log in memory has an entry for each record.
///
/// ```
/// use tonnage_capture::note::Note;
///
/// assert_eq!(Note::Rank(3).to_json(), br#"{"rank":3}"#);
/// assert_eq!(Note::parse(br#"{"rank": 3}"#), Some(Note::Rank(3)));
/// assert_eq!(Note::parse(br#"{"rang": 3}"#), None);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Note {
    /// The versions of the program's libraries, and the variables that change what they allocate.
    Versions(Versions),
    /// The rank of the process, by torch.distributed.
    Rank(u32),
    /// Rows of torch's history whose stacks are missing.
    Lost(u64),
    /// The reason why torch's history cannot be read.
    Trouble(String),
    /// The reason why the owners of some blocks are missing.
    Unnamed(String),
    /// The uncaught exception of the process.
    Exception(Exception),
    /// Values that the script read and no process computed; each note replaces the one before.
    Values(Values),
    /// The moment at which the job was stopped, as the user requested.
    Stopped(String),
    /// A user of a device that a dry run cannot follow.
    Foreign(Foreign),
    /// A limitation with its code.
    Limitation(Limitation),
    /// A function of the hook that failed.
    Failure(Failure),
    /// Memory of a real GPU.
    Sample(Box<Sample>),
    /// Rows that torch's history lost.
    Overrun(u64),
    /// The reason why a sample is missing.
    Unsampled(String),
    /// A change to the program: its name, and the facts that its file in `hook/changes` writes.
    Change(BTreeMap<String, Value>),
    /// Work of the GPU.
    Costs(Costs),
    /// Whether the process has written everything.
    Ended(bool),
    /// The device, as the process numbers it, that PyTorch has just found full.
    Oom(i32),
    /// A property of the GPU that a program read and a dry run invents.
    MadeUp(String),
    /// PyTorch's allocator checked whether another stream was done with a freed block: the launches by which streams
    /// are behind.
    FreesWait(u64),
    /// The ranks of the first communicator of NCCL.
    Communicator(u64),
    /// Memory of NCCL's own buffers.
    Nccl(Nccl),
    /// Ranks that do something else than this process.
    DifferingRanks(Vec<u32>),
    /// A wait of a rank that cannot end.
    Deadlock(Box<Deadlock>),
    /// Whether an allocator took the place of PyTorch's own, which then has no history.
    Plugged(bool),
    /// tonnage's allocator took the place of PyTorch's own.
    Allocator {
        /// A block of it: the addresses around it that were reserved with it are the allocator's.
        address: u64,
    },
    /// Whether tonnage's allocator took the memory of live blocks away for a while.
    Paused(bool),
    /// Whether an autotuner chose among kernels, which goes by time on a GPU.
    Autotuned(bool),
    /// Modules of kernels that were not compiled, because nvcc is not on this machine.
    UndoneModules(Vec<String>),
    /// Whether cuDNN had to measure which plan of a convolution is the fastest.
    Benchmarked(bool),
    /// The uses of all blocks that were alive at the end have been written.
    Uses {
        /// Launches of kernels whose parameters could not be read: what they used is not known.
        unread: u64,
        /// Whether there were more live blocks than are followed.
        is_cut: bool,
        /// Most bytes of blocks that one launch used, for each device.
        floors: Vec<u64>,
    },
    /// An action that a dry run did not carry out.
    Suppressed(Suppressed),
    /// A library that could not be kept from uploading, with the reason.
    Unprotected(String),
    /// A host that the process connected to.
    Connected {
        /// Its address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// A name that the process resolved.
    Resolved {
        /// The name.
        name: String,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
}

impl Note {
    /// The note in a record of a log; `None` if it has a kind or a field that this version does not have.
    pub fn parse(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The note as the payload of a record.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The versions of libraries, and variables of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// PyTorch.
    pub torch: String,
    /// CUDA, as torch was built for it.
    pub cuda: Option<String>,
    /// Python.
    pub python: String,
    /// The variables that change what PyTorch and CUDA allocate, and the rank that a launcher sets.
    pub environment: BTreeMap<String, String>,
}

impl Versions {
    /// The rank that a launcher set.
    pub fn rank(&self) -> Option<u32> {
        self.environment.get("RANK")?.parse().ok()
    }
}

/// An uncaught exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// Its class, with the module.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its text.
    pub message: String,
    /// Its frames, innermost first: function, file, line.
    pub stack: Vec<(String, String, Option<u64>)>,
}

/// Reads of values that no process computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// Reads: file, line, function, whether the script branches on it, how often.
    pub reads: Vec<(String, u64, String, bool, u64)>,
    /// Results whose size depends on them: file, line, function, how many.
    pub sizes: Vec<(String, u64, String, u64)>,
    /// The source of each of these sizes: `mask`, `drawn`, `absent` or `count`.
    pub sized_by: Vec<String>,
    /// The part of a mask, in percent, that is assumed to be true.
    pub assumed_mask: u8,
}

/// A user of a device that a dry run cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Foreign {
    /// The name of the package, or of the file.
    pub name: String,
    /// The file that called.
    pub library: String,
    /// Its use of the device.
    pub how: ForeignUse,
}

/// The use of a device that a dry run cannot follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ForeignUse {
    /// It has a separate CUDA runtime, whose calls fail.
    Runtime,
    /// It takes most of the device and divides it itself.
    Memory,
    /// It computes on the CPU, because it found no GPU in its own way.
    Cpu,
}

/// A part of the recording that tonnage cannot make as on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limitation {
    /// Its code, such as `TN301`.
    pub code: String,
    /// The unknown property, and the reason.
    pub message: String,
    /// Whether figures are assumed because of it.
    pub affects_figures: bool,
}

/// A function of the hook that failed in this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The function, with its class.
    pub function: String,
    /// How often it failed so far.
    pub count: u64,
    /// The type of the first exception.
    pub error: String,
    /// The message of the first exception.
    pub message: String,
}

/// Work of the GPU up to a step, or to the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Steps that were done.
    pub steps: u64,
    /// The counts of the stand-in.
    pub counts: Vec<u64>,
}

/// Memory of NCCL's own buffers in a process, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Nccl {
    /// Communicators at one time.
    pub communicators: u64,
    /// The least that they take, in bytes.
    pub low: u64,
    /// The most.
    pub high: u64,
}

/// An action that a dry run did not carry out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Suppressed {
    /// The library.
    pub library: String,
    /// The action.
    pub action: String,
    /// How often, since the process started.
    pub count: u64,
}

/// The reason why a wait cannot end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeadlockCause {
    /// The awaited rank waits, too.
    Waits,
    /// Its process has ended.
    Ended,
    /// No process is that rank.
    Absent,
    /// It called another operation.
    Differs,
    /// It called the operation, behind another that waits in turn.
    Behind,
}

/// A wait of a rank that cannot end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Deadlock {
    /// The rank that waits, as the script counts them.
    pub rank: i64,
    /// The communicator, in hexadecimal digits.
    pub communicator: String,
    /// Its ranks.
    pub ranks: usize,
    /// The operation that waits.
    pub operation: String,
    /// Its number on the communicator, from 1.
    pub number: u64,
    /// The file that called it.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The awaited rank.
    pub waits_for: i64,
    /// The reason.
    pub why: DeadlockCause,
    /// The operation that the other rank called instead.
    pub instead: Option<Called>,
    /// The other rank's side of the operation.
    pub called: Option<Called>,
    /// The operation that the other rank's GPU has to do before.
    pub behind: Option<Called>,
}

/// An operation and the line that called it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Called {
    /// The operation.
    pub operation: String,
    /// The file.
    pub file: String,
    /// The line.
    pub line: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_with_another_kind_or_field_is_not_a_note() {
        for json in [
            "{}",
            r#"{"rank": 3, "lost": 1}"#,
            r#"{"cost": {"steps": 1, "counts": []}}"#,
            r#"{"costs": {"steps": 1, "counts": [], "more": 0}}"#,
            r#"{"costs": {"step": 1, "counts": []}}"#,
            r#"{"allocator": {"address": 1, "size": 2}}"#,
            r#"{"sample": {"device": 0, "time": 1, "free": 1, "total": 2, "reserved": 0, "more": 0}}"#,
        ] {
            assert_eq!(Note::parse(json.as_bytes()), None, "{json}");
        }
        let costs = Note::Costs(Costs {
            steps: 1,
            counts: vec![2],
        });
        assert_eq!(Note::parse(&costs.to_json()), Some(costs));
    }

    #[test]
    fn the_note_of_jax_is_a_note() {
        let json = br#"{"foreign": {"name": "JAX", "library": "xla_cuda13", "how": "cpu"}}"#;
        assert!(
            matches!(Note::parse(json), Some(Note::Foreign(foreign)) if foreign.how == ForeignUse::Cpu)
        );
    }
}
