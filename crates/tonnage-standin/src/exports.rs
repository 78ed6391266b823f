// SPDX-License-Identifier: MIT OR Apache-2.0
//! The foreign surface, generated from the tables in `api/` by `build.rs`.
#![allow(
    non_snake_case,
    unused_variables,
    clippy::too_many_arguments,
    clippy::wildcard_imports,
    clippy::let_unit_value,
    clippy::unused_unit,
    clippy::missing_safety_doc,
    clippy::semicolon_if_nothing_returned,
    clippy::redundant_closure_for_method_calls,
    clippy::used_underscore_binding,
    unused_imports,
    reason = "generated; the names are those of the C interface"
)]

use crate::ffi::{
    Arguments, AttributeTargets, ByValue, Complex64, Complex128, Dim3, FAILED, HostFunction, InOut,
    Length, Out, OutArray, OutBytes, OutText, Ptr, StreamCallback, Symbol, guard, input,
    input_array, input_text,
};
pub use crate::model::images::{FatBinary, FatBinaryWrapper};
pub use crate::model::modules::ModuleImage;
use crate::recorder::count_unmodelled;
use crate::region::{Copy2D, Copy3D, Region, Regions};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
