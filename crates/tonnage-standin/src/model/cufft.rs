// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuFFT: plans are numbers.
//!
//! The work area of a plan depends on how the library splits the transform,
//! which is not known without a device: it is answered with zero bytes.

use std::sync::atomic::{AtomicI32, Ordering};

use super::cublas::cuda_part;
use super::cudnn::real;
use crate::ffi::{Out, Ptr};

const SUCCESS: i32 = 0;

static NEXT_PLAN: AtomicI32 = AtomicI32::new(1);

pub(crate) fn cufftCreate(plan: Out<i32>) -> i32 {
    plan.set(NEXT_PLAN.fetch_add(1, Ordering::Relaxed));
    SUCCESS
}

pub(crate) fn cufftPlan1d(plan: Out<i32>, _x: i32, _kind: i32, _batch: i32) -> i32 {
    cufftCreate(plan)
}

pub(crate) fn cufftPlan2d(plan: Out<i32>, _x: i32, _y: i32, _kind: i32) -> i32 {
    cufftCreate(plan)
}

pub(crate) fn cufftPlan3d(plan: Out<i32>, _x: i32, _y: i32, _z: i32, _kind: i32) -> i32 {
    cufftCreate(plan)
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cufftPlanMany(
    plan: Out<i32>,
    _rank: i32,
    _n: Ptr,
    _in_embed: Ptr,
    _in_stride: i32,
    _in_distance: i32,
    _out_embed: Ptr,
    _out_stride: i32,
    _out_distance: i32,
    _kind: i32,
    _batch: i32,
) -> i32 {
    cufftCreate(plan)
}

pub(crate) fn cufftDestroy(_plan: i32) -> i32 {
    SUCCESS
}

fn version(part: i32) -> i32 {
    let names = [c"libcufft.so.12", c"libcufft.so.11"];
    // The library's first number is one behind CUDA's.
    let simulated = || cuda_part(part) - i32::from(part == 0);
    real::property(&names, c"cufftGetProperty", part).unwrap_or_else(simulated)
}

pub(crate) fn cufftGetProperty(kind: i32, value: Out<i32>) -> i32 {
    value.set(version(kind));
    SUCCESS
}

pub(crate) fn cufftGetVersion(out: Out<i32>) -> i32 {
    out.set(version(0) * 1000 + version(1) * 100 + version(2));
    SUCCESS
}
