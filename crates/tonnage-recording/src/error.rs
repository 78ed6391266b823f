// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong with a trace file, and what to do about it.
//!
//! The text of an error is a fragment for an error chain; [`ReadError::hint`] and [`WriteError::hint`] are the
//! next step, kept apart so that each front end can place them. A file that merely stops early is not an error:
//! see [`Ending`](crate::Ending).

use std::io;

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be read at all.
    #[error("cannot read the recording after byte {offset}")]
    Io {
        /// Bytes read before.
        offset: u64,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The file is not a tonnage trace.
    #[error("not a tonnage trace: {reason}")]
    NotATrace {
        /// The reason, from the contents that were read instead.
        reason: String,
    },
    /// The file stops inside its header.
    #[error("the recording stops inside its header, after {length} bytes")]
    Headless {
        /// Length of the file.
        length: u64,
    },
    /// The file was written by a later major version.
    #[error("the recording has format version {found}, this program reads {supported}")]
    TooNew {
        /// Version in the file.
        found: String,
        /// Version this program reads.
        supported: String,
    },
    /// The bytes contradict the format.
    #[error("the recording is damaged in the message at byte {offset} (row {row}): {reason}")]
    Damaged {
        /// Where the message starts.
        offset: u64,
        /// Rows read before.
        row: u64,
        /// The problem.
        reason: String,
    },
    /// The recording requests more than a reader gives.
    #[error("the recording exceeds a limit at row {row}: more than {limit} {what}")]
    TooLarge {
        /// Rows read before.
        row: u64,
        /// The limit.
        limit: u64,
        /// The limited quantity.
        what: &'static str,
    },
}

impl ReadError {
    /// The next step for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "check that the file is still there and readable",
            Self::NotATrace { .. } => "convert a recording of another tool with `tonnage convert`",
            Self::Headless { .. } => "the run ended before anything was recorded; record it again",
            Self::TooNew { .. } => "update tonnage to a version that reads this format",
            Self::Damaged { .. } => {
                "everything before the damage is readable; copy the file again or record again"
            }
            Self::TooLarge { .. } => {
                "no recorder of tonnage writes this; record again or report the file"
            }
        }
    }
}

/// Why a trace could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The destination refused.
    #[error("cannot write the recording")]
    Io(#[from] io::Error),
    /// Arrow refused, which it does only for a defect of this crate.
    #[error("cannot encode the recording")]
    Encode(#[from] arrow_schema::ArrowError),
    /// An earlier write failed, so the file ends there.
    #[error("the recording stopped at an earlier write error")]
    Stopped,
    /// One text is longer than a reader accepts.
    #[error(
        "a text of {length} bytes is longer than the {limit} bytes a recording may hold in one row"
    )]
    TextTooLong {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// An id does not come from the writer's own table.
    #[error("an event refers to {what} {id}, which is not in the writer's table")]
    UnknownId {
        /// The kind of id.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// More distinct frames than a reader accepts.
    #[error("more than {limit} distinct frames in one recording")]
    TooManyFrames {
        /// The limit.
        limit: usize,
    },
    /// `meta` and `frame` rows have their own functions.
    #[error("a row of kind {0} is not an event")]
    NotAnEvent(crate::Kind),
}

impl WriteError {
    /// The next step for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io(_) | Self::Stopped => {
                "free space on the disk or choose another file; what is there stays readable"
            }
            Self::TextTooLong { .. } => "shorten the text",
            Self::TooManyFrames { .. } => "record with fewer frames per stack",
            Self::Encode(_) | Self::UnknownId { .. } | Self::NotAnEvent(_) => {
                "this is a defect of tonnage; please report it"
            }
        }
    }
}
