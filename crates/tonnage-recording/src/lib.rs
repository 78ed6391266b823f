// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model of a recording and its file: an Arrow IPC stream.
//!
//! A recording is a sequence of [`Event`]s (requests, frees, segments, driver calls, marks), a [`StackTable`]
//! that their stacks and texts live in, and [`Meta`] facts about the run. Everything tonnage does starts from
//! it, whatever its source: a dry run, a capture on a GPU, or an importer. [`Writer`] and [`Reader`] stream it;
//! [`Trace`] holds a whole one in memory. `docs/trace-format.md` is the file, byte for byte.
//!
//! One table with one schema was chosen over several files or a private format, because pandas, polars and
//! DuckDB open it without us, and because a stream of self-contained batches is readable up to its last whole
//! batch after a crash. This crate knows no allocator, no GPU and no foreign format, and never interprets what
//! it carries.
//!
//! **Invariant:** the same calls on a [`Writer`] give the same bytes; a [`Reader`] never panics and never holds
//! more than the limits in [`limits`], whatever the file contains.
#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

pub mod account;
mod encoder;
mod error;
mod event;
pub mod facts;
mod kind;
mod message;
pub mod meta;
mod reader;
mod rows;
mod schema;
mod stack;
mod trace;
mod writer;

pub use account::{Account, DeviceAccount};
pub use error::{ReadError, WriteError};
pub use event::{Event, Pool, Uses};
pub use kind::{Column, Columns, Kind};
pub use message::{limits, second_recording};
pub use meta::Meta;
pub use reader::{Ending, Reader, panic_is_guarded};
pub use schema::{FORMAT, FORMAT_MAJOR, FORMAT_MINOR};
pub use stack::{Frame, FrameId, Frames, StackId, StackTable, TextId};
pub use trace::Trace;
pub use writer::{BATCH_ROWS, BATCH_TEXT, Writer};
