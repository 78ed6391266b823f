// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuBLASLt: one algorithm that always works and needs no workspace of its own.
//!
//! Torch allocates the workspace it offers before it asks, so what the
//! algorithm would use of it changes nothing in the accounts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cublas::{SUCCESS, cuda_part};
use super::cudnn::real;
use crate::ffi::{Out, OutArray, OutBytes, Ptr};
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
    results.put(76, 1.0_f32);
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
    _a_layout: Ptr,
    _b: Ptr,
    _b_layout: Ptr,
    _beta: Ptr,
    _c: Ptr,
    _c_layout: Ptr,
    _d: Ptr,
    _d_layout: Ptr,
    _algorithm: Ptr,
    workspace: Ptr,
    _workspace_bytes: usize,
    _stream: Ptr,
) -> i32 {
    own_workspace(workspace.0 as u64, "cuBLASLt");
    SUCCESS
}

pub(crate) fn cublasLtGetVersion() -> usize {
    let names = [
        c"libcublasLt.so.13",
        c"libcublasLt.so.12",
        c"libcublasLt.so.11",
    ];
    real::number(&names, c"cublasLtGetVersion")
        .unwrap_or_else(|| (cuda_part(0) * 10000 + cuda_part(1) * 100) as usize)
}

pub(crate) use super::cublas::{
    cublasGetCudartVersion as cublasLtGetCudartVersion, cublasGetProperty as cublasLtGetProperty,
    cublasGetStatusName as cublasLtGetStatusName, cublasGetStatusName as cublasLtGetStatusString,
};

// Attributes read back as they were set. Algorithms are structs of the caller
// and are copied about, so what was set on one is not kept.

type Attributes = BTreeMap<(Ptr, i32), Vec<u8>>;

static ATTRIBUTES: Mutex<Attributes> = Mutex::new(BTreeMap::new());

fn attributes() -> MutexGuard<'static, Attributes> {
    ATTRIBUTES.lock().unwrap_or_else(PoisonError::into_inner)
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
