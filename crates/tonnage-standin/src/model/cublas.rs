// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuBLAS: settings that must read back, results that callers read on the host.
//!
//! No product is computed. Torch hands cuBLAS its workspace, so nothing is
//! charged here. A result in host memory (a dot product in
//! pointer mode 0, a matrix fetched from the device) is written, as zero or as
//! the values that are kept, so that no caller reads uninitialised memory.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::cudnn::real;
use super::memory;
use crate::ffi::{Out, OutArray, Plain, Ptr};
use crate::fork::Lock;
use crate::machine::machine;
use crate::recorder::static_text;
use crate::region::{Region, Rows};
use crate::torch::own_workspace;

pub(super) const SUCCESS: i32 = 0;
const EXECUTION_FAILED: i32 = 13;

/// Settings of a handle. A handle that was not created here has the defaults.
#[derive(Clone, Copy, Default)]
struct Settings {
    stream: Ptr,
    math: i32,
    pointer: i32,
    atomics: i32,
    sm_target: i32,
}

static HANDLES: Lock<BTreeMap<Ptr, Settings>> = Lock::new(BTreeMap::new());

fn handles() -> MutexGuard<'static, BTreeMap<Ptr, Settings>> {
    HANDLES.lock()
}

fn change(handle: Ptr, change: impl FnOnce(&mut Settings)) -> i32 {
    change(handles().entry(handle).or_default());
    SUCCESS
}

fn settings(handle: Ptr) -> Settings {
    handles().get(&handle).copied().unwrap_or_default()
}

pub(crate) fn cublasCreate_v2(handle: Out<Ptr>) -> i32 {
    if machine().is_err() {
        return 1; // not initialized, as without a driver
    }
    let new = Ptr::fresh();
    handles().insert(new, Settings::default());
    handle.set(new);
    SUCCESS
}

pub(crate) fn cublasDestroy_v2(handle: Ptr) -> i32 {
    handles().remove(&handle);
    SUCCESS
}

/// Torch lends its own block; this is how we know which.
pub(crate) fn cublasSetWorkspace_v2(_handle: Ptr, workspace: Ptr, _bytes: usize) -> i32 {
    own_workspace(workspace.0 as u64, "cuBLAS");
    SUCCESS
}

/// The version of the library that is loaded behind us, else that of the CUDA
/// version that is simulated: first, second and third number.
fn version(part: i32) -> i32 {
    let names = [c"libcublas.so.13", c"libcublas.so.12", c"libcublas.so.11"];
    real::property(&names, c"cublasGetProperty", part).unwrap_or_else(|| cuda_part(part))
}

pub(super) fn cuda_part(part: i32) -> i32 {
    let cuda = machine().map_or(0, |machine| machine.config.cuda_version);
    match part {
        0 => cuda / 1000,
        1 => cuda % 1000 / 10,
        _ => 0,
    }
}

pub(crate) fn cublasGetVersion_v2(_handle: Ptr, out: Out<i32>) -> i32 {
    out.set(version(0) * 10000 + version(1) * 100 + version(2));
    SUCCESS
}

pub(crate) fn cublasGetProperty(kind: i32, value: Out<i32>) -> i32 {
    value.set(version(kind));
    SUCCESS
}

pub(crate) fn cublasGetCudartVersion() -> usize {
    machine().map_or(0, |machine| machine.config.cuda_version as usize)
}

pub(crate) fn cublasSetStream_v2(handle: Ptr, stream: Ptr) -> i32 {
    change(handle, |settings| settings.stream = stream)
}

pub(crate) fn cublasGetStream_v2(handle: Ptr, stream: Out<Ptr>) -> i32 {
    stream.set(settings(handle).stream);
    SUCCESS
}

pub(crate) fn cublasSetMathMode(handle: Ptr, mode: i32) -> i32 {
    change(handle, |settings| settings.math = mode)
}

pub(crate) fn cublasGetMathMode(handle: Ptr, mode: Out<i32>) -> i32 {
    mode.set(settings(handle).math);
    SUCCESS
}

pub(crate) fn cublasSetPointerMode_v2(handle: Ptr, mode: i32) -> i32 {
    change(handle, |settings| settings.pointer = mode)
}

pub(crate) fn cublasGetPointerMode_v2(handle: Ptr, mode: Out<i32>) -> i32 {
    mode.set(settings(handle).pointer);
    SUCCESS
}

pub(crate) fn cublasSetAtomicsMode(handle: Ptr, mode: i32) -> i32 {
    change(handle, |settings| settings.atomics = mode)
}

pub(crate) fn cublasGetAtomicsMode(handle: Ptr, mode: Out<i32>) -> i32 {
    mode.set(settings(handle).atomics);
    SUCCESS
}

pub(crate) fn cublasSetSmCountTarget(handle: Ptr, target: i32) -> i32 {
    change(handle, |settings| settings.sm_target = target)
}

pub(crate) fn cublasGetSmCountTarget(handle: Ptr, target: Out<i32>) -> i32 {
    target.set(settings(handle).sm_target);
    SUCCESS
}

pub(super) fn status_name(status: i32) -> &'static str {
    match status {
        0 => "CUBLAS_STATUS_SUCCESS",
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "CUBLAS_STATUS_UNKNOWN",
    }
}

pub(crate) fn cublasGetStatusName(status: i32) -> Ptr {
    Ptr::text(static_text(status_name(status).to_owned()))
}

pub(crate) use cublasGetStatusName as cublasGetStatusString;

// Results that are scalars.

/// Whether results of this handle are written to the host.
pub(crate) fn result_is_on_host(handle: Ptr) -> bool {
    settings(handle).pointer == 0
}

/// Writes a result of zero, as far as it lives on the host.
fn zero(result: &OutArray<u8>) -> i32 {
    for index in 0..result.len() {
        result.set(index, 0);
    }
    SUCCESS
}

/// The bytes of a number of this `cudaDataType`.
pub(crate) fn element_size(data_type: i32) -> usize {
    match data_type {
        3 | 8 | 28..=30 => 1,           // 8-bit integers and floats
        2 | 14 | 20 | 22 => 2,          // half, bfloat16, 16-bit integers
        1 | 4 | 11 | 13 | 24 | 26 => 8, // double, complex float, 64-bit integers
        5 | 25 | 27 => 16,
        _ => 4,
    }
}

pub(crate) fn reduce<N>(_handle: Ptr, _n: N, _x: Ptr, _stride: N, result: OutArray<u8>) -> i32 {
    zero(&result)
}

pub(crate) use {
    reduce as cublasSasum_v2, reduce as cublasSasum_v2_64, reduce as cublasScasum_v2,
    reduce as cublasScasum_v2_64, reduce as cublasScnrm2_v2, reduce as cublasScnrm2_v2_64,
    reduce as cublasSnrm2_v2, reduce as cublasSnrm2_v2_64, reduce as cublasDasum_v2,
    reduce as cublasDasum_v2_64, reduce as cublasDnrm2_v2, reduce as cublasDnrm2_v2_64,
    reduce as cublasDzasum_v2, reduce as cublasDzasum_v2_64, reduce as cublasDznrm2_v2,
    reduce as cublasDznrm2_v2_64,
};

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn reduce_typed<N>(
    _handle: Ptr,
    _n: N,
    _x: Ptr,
    _x_type: i32,
    _stride: N,
    result: OutArray<u8>,
    _data_type: i32,
    _execution: i32,
) -> i32 {
    zero(&result)
}

pub(crate) use {
    reduce_typed as cublasAsumEx, reduce_typed as cublasAsumEx_64, reduce_typed as cublasNrm2Ex,
    reduce_typed as cublasNrm2Ex_64,
};

/// The place of the largest or smallest element, counted from 1: the first.
pub(crate) fn extreme<N: Plain + From<u8> + PartialOrd>(
    _handle: Ptr,
    n: N,
    _x: Ptr,
    _stride: N,
    result: OutArray<N>,
) -> i32 {
    let one = N::from(1);
    result.set(0, if n < one { N::ZERO } else { one });
    SUCCESS
}

pub(crate) fn extreme_typed<N: Plain + From<u8> + PartialOrd>(
    handle: Ptr,
    n: N,
    x: Ptr,
    _x_type: i32,
    stride: N,
    result: OutArray<N>,
) -> i32 {
    extreme(handle, n, x, stride, result)
}

pub(crate) use {
    extreme as cublasIcamax_v2, extreme as cublasIcamax_v2_64, extreme as cublasIcamin_v2,
    extreme as cublasIcamin_v2_64, extreme as cublasIdamax_v2, extreme as cublasIdamax_v2_64,
    extreme as cublasIdamin_v2, extreme as cublasIdamin_v2_64, extreme as cublasIsamax_v2,
    extreme as cublasIsamax_v2_64, extreme as cublasIsamin_v2, extreme as cublasIsamin_v2_64,
    extreme as cublasIzamax_v2, extreme as cublasIzamax_v2_64, extreme as cublasIzamin_v2,
    extreme as cublasIzamin_v2_64, extreme_typed as cublasIamaxEx,
    extreme_typed as cublasIamaxEx_64, extreme_typed as cublasIaminEx,
    extreme_typed as cublasIaminEx_64,
};

pub(crate) fn dot<N>(
    _handle: Ptr,
    _n: N,
    _x: Ptr,
    _x_stride: N,
    _y: Ptr,
    _y_stride: N,
    result: OutArray<u8>,
) -> i32 {
    zero(&result)
}

pub(crate) use {
    dot as cublasSdot_v2, dot as cublasSdot_v2_64, dot as cublasCdotc_v2, dot as cublasCdotc_v2_64,
    dot as cublasCdotu_v2, dot as cublasCdotu_v2_64, dot as cublasDdot_v2, dot as cublasDdot_v2_64,
    dot as cublasZdotc_v2, dot as cublasZdotc_v2_64, dot as cublasZdotu_v2,
    dot as cublasZdotu_v2_64,
};

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn dot_typed<N>(
    _handle: Ptr,
    _n: N,
    _x: Ptr,
    _x_type: i32,
    _x_stride: N,
    _y: Ptr,
    _y_type: i32,
    _y_stride: N,
    result: OutArray<u8>,
    _data_type: i32,
    _execution: i32,
) -> i32 {
    zero(&result)
}

pub(crate) use {
    dot_typed as cublasDotEx, dot_typed as cublasDotEx_64, dot_typed as cublasDotcEx,
    dot_typed as cublasDotcEx_64,
};

// Vectors and matrices between host and device: copies like any other.

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn matrix_async<N: Into<i64>>(
    rows: N,
    columns: N,
    element: N,
    from: Region,
    from_columns: N,
    to: Region,
    to_columns: N,
    stream: Ptr,
) -> i32 {
    let [rows, columns, element, from_columns, to_columns] = [
        rows.into(),
        columns.into(),
        element.into(),
        from_columns.into(),
        to_columns.into(),
    ]
    .map(|number: i64| number.max(0) as usize);
    let status = memory::copy_rows(
        Rows {
            region: to,
            pitch: to_columns.saturating_mul(element),
        },
        Rows {
            region: from,
            pitch: from_columns.saturating_mul(element),
        },
        rows.saturating_mul(element),
        columns,
        stream,
    );
    if status == 0 {
        SUCCESS
    } else {
        EXECUTION_FAILED
    }
}

pub(crate) fn matrix<N: Into<i64>>(
    rows: N,
    columns: N,
    element: N,
    from: Region,
    from_columns: N,
    to: Region,
    to_columns: N,
) -> i32 {
    matrix_async(
        rows,
        columns,
        element,
        from,
        from_columns,
        to,
        to_columns,
        Ptr::NULL,
    )
}

/// A vector is a matrix of one row.
pub(crate) fn vector_async<N: Into<i64> + From<u8>>(
    n: N,
    element: N,
    from: Region,
    from_stride: N,
    to: Region,
    to_stride: N,
    stream: Ptr,
) -> i32 {
    matrix_async(
        N::from(1),
        n,
        element,
        from,
        from_stride,
        to,
        to_stride,
        stream,
    )
}

pub(crate) fn vector<N: Into<i64> + From<u8>>(
    n: N,
    element: N,
    from: Region,
    from_stride: N,
    to: Region,
    to_stride: N,
) -> i32 {
    vector_async(n, element, from, from_stride, to, to_stride, Ptr::NULL)
}

pub(crate) use {
    matrix as cublasGetMatrix, matrix as cublasGetMatrix_64, matrix as cublasSetMatrix,
    matrix as cublasSetMatrix_64, matrix_async as cublasGetMatrixAsync,
    matrix_async as cublasGetMatrixAsync_64, matrix_async as cublasSetMatrixAsync,
    matrix_async as cublasSetMatrixAsync_64, vector as cublasGetVector,
    vector as cublasGetVector_64, vector as cublasSetVector, vector as cublasSetVector_64,
    vector_async as cublasGetVectorAsync, vector_async as cublasGetVectorAsync_64,
    vector_async as cublasSetVectorAsync, vector_async as cublasSetVectorAsync_64,
};
