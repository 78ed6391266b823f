// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue of GPUs: capacity, context, compute capability, each with its source.
//!
//! The data is `gpus.toml`, embedded in the crate; this module is the public face over it.
//! [`Catalogue::embedded`] gives the catalogue, [`Catalogue::find`] a GPU by the name a person
//! types, and every number of a [`Gpu`] is a [`Figure`]: a value, where it was read, and whether
//! it is a reading at all.
//!
//! ```
//! use tonnage_gpus::{Catalogue, Known};
//!
//! let catalogue = Catalogue::embedded();
//! let gpu = catalogue.find("H100").expect("in the catalogue");
//! assert_eq!(gpu.id, "h100-80gb");
//! assert_eq!(gpu.total_memory.known, Known::Read);
//! ```
#![forbid(unsafe_code)]

mod catalogue;
mod figure;
mod gpu;
mod parse;
mod suggest;

pub use catalogue::{Catalogue, UnknownGpu};
pub use figure::{Figure, Known};
pub use gpu::{ComputeCapability, Gpu, Limits, Peak};
pub use parse::CatalogueError;
