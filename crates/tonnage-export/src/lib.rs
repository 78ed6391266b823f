// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings written in the formats other tools open.
//!
//! * [`snapshot()`] writes a PyTorch memory snapshot, which pytorch.org/memory_viz and `torch.cuda._memory_viz` read;
//! * [`perfetto()`] writes a Chrome trace, which ui.perfetto.dev reads.
//!
//! An exporter is given a way to open the recording and reads it as often as it must: once to learn what there is,
//! then once for each part of the output. So memory follows what is alive at one moment and the distinct stacks,
//! not the length of the recording. It translates and invents nothing; what the other format cannot hold, or had
//! to be assumed, is a sentence in [`Exported::notes`].
#![forbid(unsafe_code)]

mod error;
mod perfetto;
mod pickle;
mod snapshot;
mod state;

pub use error::ExportError;
pub use perfetto::{DEFAULT_MIN_BLOCK, Level, PerfettoOptions, perfetto};
pub use snapshot::snapshot;

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// Events of the recording that are in the output.
    pub events: u64,
    /// Losses and assumptions: one fragment each.
    pub notes: Vec<String>,
}

/// `count` of something, in words; nothing for none.
pub(crate) fn counted(notes: &mut Vec<String>, count: u64, one: &str, many: &str) {
    match count {
        0 => {}
        1 => notes.push(format!("1 {one}")),
        _ => notes.push(format!("{count} {many}")),
    }
}
