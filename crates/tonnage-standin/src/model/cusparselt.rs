// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuSPARSELt: how large a matrix is once two of four elements are dropped.
//!
//! A description is memory of the caller, so its values are kept inside it.
//! The compressed size follows from the format: half of the values and two bits
//! for each that is kept.

use super::cublas::element_size;
use super::cudnn::real;
use crate::ffi::{Out, OutArray, OutBytes, Ptr, field};
use crate::recorder::static_text;

const SUCCESS: i32 = 0;
const NAMES: [&std::ffi::CStr; 1] = [c"libcusparseLt.so.0"];

pub(crate) fn cusparseLtGetErrorName(status: i32) -> Ptr {
    let name = match status {
        0 => "CUSPARSE_STATUS_SUCCESS",
        1 => "CUSPARSE_STATUS_NOT_INITIALIZED",
        3 => "CUSPARSE_STATUS_INVALID_VALUE",
        10 => "CUSPARSE_STATUS_NOT_SUPPORTED",
        _ => "CUSPARSE_STATUS_UNKNOWN",
    };
    Ptr::text(static_text(name.to_owned()))
}

pub(crate) use cusparseLtGetErrorName as cusparseLtGetErrorString;

fn version(part: i32) -> i32 {
    let simulated = [0, 8, 0].get(part as usize).copied().unwrap_or(0);
    real::property(&NAMES, c"cusparseLtGetProperty", part).unwrap_or(simulated)
}

pub(crate) fn cusparseLtGetProperty(kind: i32, value: Out<i32>) -> i32 {
    value.set(version(kind));
    SUCCESS
}

pub(crate) fn cusparseLtGetVersion(_handle: Ptr, out: Out<i32>) -> i32 {
    out.set(version(0) * 1000 + version(1) * 100 + version(2));
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cusparseLtStructuredDescriptorInit(
    _handle: Ptr,
    matrix: OutBytes<512>,
    rows: i64,
    columns: i64,
    _leading: i64,
    _alignment: u32,
    value_type: i32,
    _order: i32,
    _sparsity: i32,
) -> i32 {
    matrix.put_u64(0, rows as u64);
    matrix.put_u64(8, columns as u64);
    matrix.put_i32(16, value_type);
    SUCCESS
}

pub(crate) fn cusparseLtSpMMACompressedSize2(
    _handle: Ptr,
    matrix: Option<[u8; 20]>,
    size: Out<usize>,
    _buffer: Out<usize>,
) -> i32 {
    let matrix = matrix.unwrap_or([0; 20]);
    let rows: u64 = field(&matrix, 0).unwrap_or(0);
    let columns: u64 = field(&matrix, 8).unwrap_or(0);
    let element = element_size(field(&matrix, 16).unwrap_or(0));
    let bytes = (rows as usize)
        .saturating_mul(columns as usize)
        .saturating_mul(element);
    // Torch computes the same: nine sixteenths, or ten for single bytes.
    let sixteenths = if element == 1 { 10 } else { 9 };
    size.set(bytes.saturating_mul(sixteenths) / 16);
    SUCCESS
}

/// Attributes of an algorithm: its number, the number of algorithms, how often a search
/// tries, and into how many parts the sum is split.
pub(crate) fn cusparseLtMatmulAlgGetAttribute(
    _handle: Ptr,
    _algorithm: Ptr,
    attribute: i32,
    data: OutArray<u8>,
    _size: usize,
) -> i32 {
    let value = i32::from(matches!(attribute, 1 | 3));
    data.set_all(&value.to_ne_bytes());
    SUCCESS
}
