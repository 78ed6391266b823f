// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording as pictures: one HTML file that needs no network.
//!
//! [`Picture::draw`] boils one process on one device down to what a screen can show; [`write()`] puts any number of
//! these into a page.
//!
//! * `timeline` keeps the highest and the lowest moment of every stretch of rows, each with its exact parts, so that no
//!   peak is lost however long the recording is;
//! * `moments` finds the moments worth looking at: the peak, the one behind it, that of every step;
//! * `blocks` chooses the blocks that are drawn one by one, and sums up the others;
//! * `names` shortens paths, so that a report can be shown to others;
//! * `palette` is the colours, for every picture;
//! * `columns` and `page` are the file: compressed columns inside HTML.
//!
//! The page itself is written in TypeScript (`ui/`); its built form is in `assets/` so that building tonnage needs no
//! other toolchain. The alternative, a report drawn in Rust as SVG, would either be too large or could not be zoomed.
//!
//! **Invariant:** a number on the page is exact, or states what it leaves out. Nothing here prints, and nothing panics,
//! whatever the recording contains.
#![forbid(unsafe_code)]

mod blocks;
mod columns;
mod input;
mod moments;
mod names;
mod page;
mod palette;
#[cfg(test)]
mod testing;
mod timeline;

pub use input::{
    AllocatorRun, Answer, Comparison, Difference, Differences, Fact, Figure, Finding, Moment,
    MomentKind, Planned, Proposal, Rank, Ranks, Refused, Story, Subject, Tone, Words,
};
pub use names::own_line;
pub use page::{Options, Pane, Picture, WriteError, Written, escaped, write};
pub use palette::colour;
pub use timeline::{Levels, Stretch};
