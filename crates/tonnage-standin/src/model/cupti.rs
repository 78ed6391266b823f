// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUPTI, as far as torch's profiler starts with it: nothing is ever recorded.

use super::cublas::cuda_part;
use crate::ffi::{Out, Ptr};
use crate::recorder::static_text;

const SUCCESS: i32 = 0;
/// The status that ends the loop over the records of a buffer.
const MAX_LIMIT_REACHED: i32 = 12;

/// Since CUDA 12.6 the version is CUDA's with two more digits; before, a count.
pub(crate) fn cuptiGetVersion(version: Out<u32>) -> i32 {
    let (major, minor) = (cuda_part(0), cuda_part(1));
    version.set(if major >= 13 {
        (major * 10000 + minor * 100) as u32
    } else {
        22
    });
    SUCCESS
}

pub(crate) fn cuptiGetResultString(result: i32, text: Out<Ptr>) -> i32 {
    let name = match result {
        0 => "CUPTI_SUCCESS",
        12 => "CUPTI_ERROR_MAX_LIMIT_REACHED",
        _ => "CUPTI_ERROR_UNKNOWN",
    };
    text.set(Ptr::text(static_text(name.to_owned())));
    SUCCESS
}

pub(crate) fn cuptiActivityGetNextRecord(_buffer: Ptr, _size: usize, _record: Out<Ptr>) -> i32 {
    MAX_LIMIT_REACHED
}

pub(crate) fn cuptiGetCallbackName(_domain: i32, _callback: u32, name: Out<Ptr>) -> i32 {
    name.set(Ptr::text(c"unknown"));
    SUCCESS
}
