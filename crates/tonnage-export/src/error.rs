// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a recording could not be exported, and what to do about it.

use std::io;

use tonnage_recording::ReadError;

/// Why an export stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The recording could not be opened.
    #[error("the recording cannot be opened")]
    Open(#[source] io::Error),
    /// The recording could not be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
    /// The destination refused.
    #[error("cannot write the export")]
    Write(#[source] io::Error),
    /// A snapshot holds one process, the recording has several.
    #[error("a snapshot holds one process, the recording has {count}")]
    SeveralProcesses {
        /// How many.
        count: usize,
        /// The first of them.
        first: u32,
    },
    /// The requested process has no events.
    #[error("the recording has no events of process {process}")]
    NoSuchProcess {
        /// The requested process.
        process: u32,
    },
    /// A number of a device that no machine has.
    #[error("the recording names device {device}; an export has room for devices 0 to {most}")]
    Device {
        /// The number.
        device: i32,
        /// The largest there is room for.
        most: i32,
    },
    /// More processes and devices than there is room for.
    #[error("the recording has more than {limit} pairs of process and device")]
    TooManyTracks {
        /// The limit.
        limit: usize,
    },
    /// The output would need more than its format can count.
    #[error("the export has more than {limit} shared values")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
}

impl ExportError {
    /// The next step.
    pub fn hint(&self) -> String {
        match self {
            Self::Open(_) => "check that the file is still there and readable".to_owned(),
            Self::Read(error) => error.hint().to_owned(),
            Self::Write(_) => "free space on the disk or choose another file".to_owned(),
            Self::SeveralProcesses { first, .. } => {
                format!("choose one, e.g. with --process {first}")
            }
            Self::NoSuchProcess { .. } => "`tonnage info` lists the processes".to_owned(),
            Self::Device { .. } | Self::TooManyTracks { .. } => {
                "no recorder of tonnage writes this; record again or report the file".to_owned()
            }
            Self::TooLarge { .. } => "export a shorter recording".to_owned(),
        }
    }
}
