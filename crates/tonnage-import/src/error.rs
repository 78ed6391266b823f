// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a foreign recording could not be imported, and what to do about it.
//!
//! One enum for all importers: a front end does not care which of them stopped. The next step is
//! [`ImportError::hint`], kept apart from the text as everywhere in tonnage.

use std::io;

use tonnage_plan::csv::PlannerError;
use tonnage_recording::WriteError;

/// Why an import stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file could not be read.
    #[error("cannot read the file after byte {offset}")]
    Io {
        /// Bytes read before.
        offset: u64,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The first bytes fit no format this crate reads.
    #[error("the format of the file is not recognised")]
    UnknownFormat,
    /// The file stops in the middle.
    #[error("the file stops after {offset} bytes, in the middle of its data")]
    Incomplete {
        /// Its length.
        offset: u64,
    },
    /// A pickle that would run code or build objects when loaded by Python.
    #[error(
        "the pickle contains {opcode} at byte {offset}, which builds objects by running code; a memory snapshot is plain data"
    )]
    RunsCode {
        /// Name of the opcode as in Python's `pickletools`.
        opcode: &'static str,
        /// Where it stands.
        offset: u64,
    },
    /// The bytes contradict the format.
    #[error("the file is damaged at byte {offset}: {reason}")]
    Malformed {
        /// Where.
        offset: u64,
        /// The problem.
        reason: String,
    },
    /// Well-formed data that is something else.
    #[error("not a PyTorch memory snapshot: {reason}")]
    NotASnapshot {
        /// The missing or odd part.
        reason: String,
    },
    /// A value that contradicts its name.
    #[error("{what} has an impossible value: {value}")]
    Value {
        /// Which value.
        what: String,
        /// The actual value.
        value: String,
    },
    /// A planning problem that cannot be read.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// The file requests more than an importer gives.
    #[error("the file exceeds a limit: more than {limit} {what}")]
    TooLarge {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The result could not be written.
    #[error("cannot write the imported recording")]
    Write(#[from] WriteError),
}

impl ImportError {
    /// The next step.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "check that the file is still there and readable",
            Self::UnknownFormat => {
                "give a recording of tonnage run (.tonnage), a file of torch.cuda.memory._dump_snapshot, its JSON form, an RMM log or a planner CSV with the header id,lower,upper,size"
            }
            Self::Incomplete { .. } => {
                "the copy or the dump was interrupted; copy or dump it again"
            }
            Self::RunsCode { .. } => {
                "do not load this file in Python unless you trust it; dump again with torch.cuda.memory._dump_snapshot"
            }
            Self::Malformed { .. } => "copy or dump the file again",
            Self::NotASnapshot { .. } => {
                "dump with torch.cuda.memory._dump_snapshot after _record_memory_history"
            }
            Self::Value { .. } => "dump again; if it stays, please report the file",
            Self::TooLarge { .. } => {
                "record a shorter span with max_entries of torch.cuda.memory._record_memory_history"
            }
            Self::Planner(error) => error.hint(),
            Self::Write(error) => error.hint(),
        }
    }
}
