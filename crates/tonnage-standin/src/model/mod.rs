// SPDX-License-Identifier: MIT OR Apache-2.0
//! The behavior of the modelled functions.
//!
//! The runtime and the driver are two faces of the same thing, with the same
//! status codes; what both do lives in [`device`], [`memory`], [`stream`] and
//! [`kernel`]. [`cudart`] and [`cuda`] give it the names of their tables and
//! add what only one of them has.
#![expect(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "functions are named and called as in the C interface, so that a search finds them"
)]
#![expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "what a function only writes through is borrowed, so that its caller keeps it"
)]

mod attention;
pub(crate) mod cublas;
pub(crate) mod cublaslt;
pub(crate) mod cuda;
pub(crate) mod cudart;
pub(crate) mod cudnn;
pub(crate) mod cufft;
pub(crate) mod cupti;
pub(crate) mod cusparse;
pub(crate) mod cusparselt;
mod device;
mod errors;
mod handshake;
pub(crate) mod images;
mod kernel;
mod memory;
pub(crate) mod modules;
pub(crate) mod nccl;
mod nccl_buffers;
pub(crate) mod nvml;
mod parameters;
mod stream;

pub(crate) use stream::note_captured;
