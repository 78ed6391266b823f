// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuBLASLt: one algorithm that always works and needs no separate workspace.
//!
//! Torch allocates the workspace it offers before the query, so what the
//! algorithm would use of it changes nothing in the accounts.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::MutexGuard;

use super::cublas::{SUCCESS, cuda_part};
use super::cudnn::real;
use crate::costs::{self, Type};
use crate::ffi::{Out, OutArray, OutBytes, Ptr};
use crate::fork::Lock;
use crate::torch::own_workspace;

/// Bytes of one entry of the heuristics' answer: algorithm (64), workspace (8),
/// state (4), waves (4), reserved.
const RESULT: usize = 96;

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cublasLtMatmulAlgoGetHeuristic(
    _handle: Ptr,
    _operation: Ptr,
    _a: Ptr,
    _b: Ptr,
    _c: Ptr,
    _d: Ptr,
    _preference: Ptr,
    requested: i32,
    results: OutArray<[u8; RESULT]>,
    returned: Out<i32>,
) -> i32 {
    if requested < 1 {
        return 7;
    }
    results.set(0, [0; RESULT]);
    results.write_at(76, 1.0_f32);
    returned.set(1);
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cublasLtMatmulAlgoCheck(
    _handle: Ptr,
    _operation: Ptr,
    _a: Ptr,
    _b: Ptr,
    _c: Ptr,
    _d: Ptr,
    _algorithm: Ptr,
    _result: OutBytes<RESULT>,
) -> i32 {
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cublasLtMatmul(
    _handle: Ptr,
    _operation: Ptr,
    _alpha: Ptr,
    _a: Ptr,
    a_layout: Ptr,
    _b: Ptr,
    _b_layout: Ptr,
    _beta: Ptr,
    _c: Ptr,
    _c_layout: Ptr,
    _d: Ptr,
    d_layout: Ptr,
    _algorithm: Ptr,
    workspace: Ptr,
    _workspace_bytes: usize,
    _stream: Ptr,
) -> i32 {
    own_workspace(workspace.0 as u64, "cuBLASLt");
    count_product(a_layout, d_layout);
    SUCCESS
}

// Attributes of a layout that matter for what a product costs.
const LAYOUT_TYPE: i32 = 0;
const LAYOUT_ROWS: i32 = 2;
const LAYOUT_COLUMNS: i32 = 3;
const LAYOUT_BATCH: i32 = 5;

/// Counts a product by the layouts of its first factor and its result.
fn count_product(factor: Ptr, result: Ptr) {
    let attributes = attributes();
    let number = |of: Ptr, attribute: i32| {
        let bytes = attributes.get(&(of, attribute))?;
        let mut wide = [0; 8];
        let length = bytes.len().min(8);
        wide[..length].copy_from_slice(&bytes[..length]);
        Some(u64::from_ne_bytes(wide))
    };
    let size = |of: Ptr| Some((number(of, LAYOUT_ROWS)?, number(of, LAYOUT_COLUMNS)?));
    let (Some((m, n)), Some((rows, columns))) = (size(result), size(factor)) else {
        return;
    };
    // Whether the first factor is transposed or not, it has m × k elements.
    let k = rows.saturating_mul(columns) / m.max(1);
    let kind = number(factor, LAYOUT_TYPE).unwrap_or(0);
    let batch = number(result, LAYOUT_BATCH).unwrap_or(1).max(1);
    costs::product(Type::of_number(kind as i32), [m, n, k, batch]);
}

fn keep_layout(layout: Ptr, kind: i32, rows: u64, columns: u64) {
    let mut attributes = attributes();
    attributes.insert((layout, LAYOUT_TYPE), kind.to_ne_bytes().to_vec());
    attributes.insert((layout, LAYOUT_ROWS), rows.to_ne_bytes().to_vec());
    attributes.insert((layout, LAYOUT_COLUMNS), columns.to_ne_bytes().to_vec());
    attributes.remove(&(layout, LAYOUT_BATCH));
}

pub(crate) fn cublasLtMatrixLayoutCreate(
    layout: Out<Ptr>,
    kind: i32,
    rows: u64,
    columns: u64,
    _leading: i64,
) -> i32 {
    let new = Ptr::fresh();
    layout.set(new);
    keep_layout(new, kind, rows, columns);
    SUCCESS
}

pub(crate) fn cublasLtMatrixLayoutInit_internal(
    layout: Ptr,
    _size: usize,
    kind: i32,
    rows: u64,
    columns: u64,
    _leading: i64,
) -> i32 {
    keep_layout(layout, kind, rows, columns);
    SUCCESS
}

const NAMES: [&CStr; 3] = [
    c"libcublasLt.so.13",
    c"libcublasLt.so.12",
    c"libcublasLt.so.11",
];

pub(crate) fn cublasLtGetVersion() -> usize {
    real::number(&NAMES, c"cublasLtGetVersion")
        .unwrap_or_else(|| (cuda_part(0) * 10000 + cuda_part(1) * 100) as usize)
}

/// The real `cublasGetProperty` calls this function, so this one must not depend on it.
pub(crate) fn cublasLtGetProperty(kind: i32, value: Out<i32>) -> i32 {
    let version = real::property(&NAMES, c"cublasLtGetProperty", kind);
    value.set(version.unwrap_or_else(|| cuda_part(kind)));
    SUCCESS
}

pub(crate) use super::cublas::{
    cublasGetCudartVersion as cublasLtGetCudartVersion,
    cublasGetStatusName as cublasLtGetStatusName, cublasGetStatusName as cublasLtGetStatusString,
};

// Attributes read back as they were set. Algorithms are structs of the caller
// and are copied about, so what was set on one is not kept.

type Attributes = BTreeMap<(Ptr, i32), Vec<u8>>;

static ATTRIBUTES: Lock<Attributes> = Lock::new(BTreeMap::new());

fn attributes() -> MutexGuard<'static, Attributes> {
    ATTRIBUTES.lock()
}

pub(crate) fn set_attribute(of: Ptr, attribute: i32, value: &[u8], _size: usize) -> i32 {
    attributes().insert((of, attribute), value.to_vec());
    SUCCESS
}

pub(crate) fn attribute(
    of: Ptr,
    attribute: i32,
    value: OutArray<u8>,
    size: usize,
    written: Out<usize>,
) -> i32 {
    let known = attributes().get(&(of, attribute)).cloned();
    if size == 0 {
        written.set(known.map_or(0, |known| known.len()));
        return SUCCESS;
    }
    let known = known.unwrap_or_default();
    for index in 0..value.len() {
        value.set(index, known.get(index).copied().unwrap_or(0));
    }
    written.set(size);
    SUCCESS
}

pub(crate) fn destroy(of: Ptr) -> i32 {
    let mut attributes = attributes();
    let gone: Vec<_> = attributes
        .range((of, i32::MIN)..=(of, i32::MAX))
        .map(|(key, _)| *key)
        .collect();
    for key in gone {
        attributes.remove(&key);
    }
    SUCCESS
}

pub(crate) use {
    attribute as cublasLtMatmulAlgoConfigGetAttribute, attribute as cublasLtMatmulDescGetAttribute,
    attribute as cublasLtMatmulPreferenceGetAttribute,
    attribute as cublasLtMatrixLayoutGetAttribute, destroy as cublasLtMatmulDescDestroy,
    destroy as cublasLtMatmulPreferenceDestroy, destroy as cublasLtMatrixLayoutDestroy,
    set_attribute as cublasLtMatmulDescSetAttribute,
    set_attribute as cublasLtMatmulPreferenceSetAttribute,
    set_attribute as cublasLtMatrixLayoutSetAttribute,
};
