// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of a program to its allocator, whatever the allocator did about them.
//!
//! A recording shows requests, frees, and what PyTorch's allocator made of
//! them: segments obtained and given back. The first two belong to the program
//! and are kept; the rest is what a replay predicts. Between them stand the
//! program's own calls of `empty_cache`, which leave no row: a burst of segments
//! given back is one unless a request that found no memory explains it. Where
//! both are possible the burst is kept as [`OpKind::MaybeRelease`], and the
//! replay under the recorded setting decides (`check`).
//!
//! 20 bytes per operation, so that 100 million of them fit in 2 GiB: 16 that
//! every replay reads and 4, apart, that only reports do. Blocks are slots that
//! are used again, not addresses, because another allocator has other addresses.
//!
//! The memory that is alive, obtained and charged at each row is added up by an
//! [`Account`](tonnage_recording::Account), which keeps the slot of each live block.
//!
//! **Invariant:** an operation on a slot follows the one that filled it, or the
//! slot is in `initial`. A hostile recording can make the counts in [`Gaps`]
//! large, but no operation that contradicts this.

mod builder;
mod model;
mod segments;
mod state;

pub(crate) use builder::Builder;
pub use model::Gaps;
pub(crate) use model::{InitialBlock, InitialSegment, Lane, Op, OpKind, Requests};
