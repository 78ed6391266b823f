// SPDX-License-Identifier: MIT OR Apache-2.0
//! On what a recording is replayed, and why that may be impossible.

use std::io;

use thiserror::Error;
use tonnage_recording::ReadError;

/// On what a recording is replayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes of the device; else those of the recording, else enough.
    pub capacity: Option<u64>,
    /// Bytes of a context; else those of the recording, else none.
    pub context: Option<u64>,
    /// The release of torch, as minor number of version 2; else that of the recording.
    pub torch_minor: Option<u16>,
}

/// Why a recording could not be replayed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It cannot be opened.
    #[error("the recording cannot be opened")]
    Open(#[from] io::Error),
    /// It cannot be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
    /// It is longer than row numbers reach.
    #[error("the recording has more than {} rows", u32::MAX)]
    TooLong,
    /// It shows no request for device memory.
    #[error("the recording shows no request for device memory")]
    NoRequests,
    /// The requested device is too small for its own context.
    #[error("a context of {context} bytes does not fit on a device of {capacity} bytes")]
    NoRoom {
        /// Bytes of the context.
        context: u64,
        /// Bytes of the device.
        capacity: u64,
    },
}
