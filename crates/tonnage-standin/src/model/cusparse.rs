// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuSPARSE: texts, the pointer mode, sizes of matrices, and counts that
//! callers read on the host.
//!
//! How many non-zeros a product or a sum has depends on data that is not kept.
//! A sum is answered with the most it can have, a product with none: its count
//! stays unmodelled and is named to the user.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::cublas::cuda_part;
use super::cudnn::real;
use crate::ffi::{Out, OutArray, Ptr};
use crate::fork::Lock;
use crate::recorder::static_text;

const SUCCESS: i32 = 0;

static POINTER_MODES: Lock<BTreeMap<Ptr, i32>> = Lock::new(BTreeMap::new());
/// Rows, columns and non-zeros of the matrices that are described now.
static SIZES: Lock<BTreeMap<Ptr, [i64; 3]>> = Lock::new(BTreeMap::new());

fn modes() -> MutexGuard<'static, BTreeMap<Ptr, i32>> {
    POINTER_MODES.lock()
}

fn sizes() -> MutexGuard<'static, BTreeMap<Ptr, [i64; 3]>> {
    SIZES.lock()
}

pub(crate) fn on_host(handle: Ptr) -> bool {
    modes().get(&handle).copied().unwrap_or(0) == 0
}

pub(crate) fn cusparseGetErrorName(status: i32) -> Ptr {
    let name = match status {
        0 => "CUSPARSE_STATUS_SUCCESS",
        1 => "CUSPARSE_STATUS_NOT_INITIALIZED",
        2 => "CUSPARSE_STATUS_ALLOC_FAILED",
        3 => "CUSPARSE_STATUS_INVALID_VALUE",
        4 => "CUSPARSE_STATUS_ARCH_MISMATCH",
        6 => "CUSPARSE_STATUS_EXECUTION_FAILED",
        7 => "CUSPARSE_STATUS_INTERNAL_ERROR",
        10 => "CUSPARSE_STATUS_NOT_SUPPORTED",
        11 => "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
        _ => "CUSPARSE_STATUS_UNKNOWN",
    };
    Ptr::text(static_text(name.to_owned()))
}

pub(crate) use cusparseGetErrorName as cusparseGetErrorString;

pub(crate) fn cusparseSetPointerMode(handle: Ptr, mode: i32) -> i32 {
    modes().insert(handle, mode);
    SUCCESS
}

pub(crate) fn cusparseGetPointerMode(handle: Ptr, mode: Out<i32>) -> i32 {
    mode.set(i32::from(!on_host(handle)));
    SUCCESS
}

pub(crate) fn cusparseDestroy(handle: Ptr) -> i32 {
    modes().remove(&handle);
    SUCCESS
}

pub(crate) fn cusparseGetProperty(kind: i32, value: Out<i32>) -> i32 {
    let names = [c"libcusparse.so.12", c"libcusparse.so.11"];
    value.set(
        real::property(&names, c"cusparseGetProperty", kind).unwrap_or_else(|| cuda_part(kind)),
    );
    SUCCESS
}

/// The most that the sum of two matrices can have.
#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cusparseXcsrgeam2Nnz(
    _handle: Ptr,
    _rows: i32,
    _columns: i32,
    _a: Ptr,
    a_count: i32,
    _a_rows: Ptr,
    _a_columns: Ptr,
    _b: Ptr,
    b_count: i32,
    _b_rows: Ptr,
    _b_columns: Ptr,
    _c: Ptr,
    _c_rows: Ptr,
    count: OutArray<i32>,
    _workspace: Ptr,
) -> i32 {
    count.set(0, a_count.saturating_add(b_count));
    SUCCESS
}

/// No pivot is zero: returns success, and no position.
pub(crate) fn zero_pivot(_handle: Ptr, _info: Ptr, position: OutArray<i32>) -> i32 {
    position.set(0, -1);
    SUCCESS
}

pub(crate) use {
    zero_pivot as cusparseXbsric02_zeroPivot, zero_pivot as cusparseXbsrilu02_zeroPivot,
    zero_pivot as cusparseXbsrsm2_zeroPivot, zero_pivot as cusparseXbsrsv2_zeroPivot,
    zero_pivot as cusparseXcsric02_zeroPivot, zero_pivot as cusparseXcsrilu02_zeroPivot,
};

// Descriptions of matrices, whose size is read back.

fn describe(out: &Out<Ptr>, size: [i64; 3]) -> i32 {
    let handle = Ptr::fresh();
    sizes().insert(handle, size);
    out.set(handle);
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cusparseCreateCsr(
    out: Out<Ptr>,
    rows: i64,
    columns: i64,
    count: i64,
    _row_offsets: Ptr,
    _column_indices: Ptr,
    _values: Ptr,
    _offsets_type: i32,
    _indices_type: i32,
    _base: i32,
    _value_type: i32,
) -> i32 {
    describe(&out, [rows, columns, count])
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cusparseCreateCoo(
    out: Out<Ptr>,
    rows: i64,
    columns: i64,
    count: i64,
    _row_indices: Ptr,
    _column_indices: Ptr,
    _values: Ptr,
    _indices_type: i32,
    _base: i32,
    _value_type: i32,
) -> i32 {
    describe(&out, [rows, columns, count])
}

pub(crate) use {
    cusparseCreateCoo as cusparseCreateConstCoo, cusparseCreateCsr as cusparseCreateConstCsr,
};

pub(crate) fn cusparseSpMatGetSize(
    matrix: Ptr,
    rows: Out<i64>,
    columns: Out<i64>,
    count: Out<i64>,
) -> i32 {
    let [has_rows, has_columns, has_count] = sizes().get(&matrix).copied().unwrap_or_default();
    rows.set(has_rows);
    columns.set(has_columns);
    count.set(has_count);
    SUCCESS
}

pub(crate) fn cusparseDestroySpMat(matrix: Ptr) -> i32 {
    sizes().remove(&matrix);
    SUCCESS
}
