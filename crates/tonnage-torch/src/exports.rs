// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that PyTorch calls.
//!
//! A failure is raised as an error of PyTorch's, through the frames of these
//! functions: `C-unwind` says that this may happen. Outside of PyTorch a request
//! that cannot be served gives null. A free never fails.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::served::{Failure, NAMES, NoPlan, Served, set_plan};
pub use crate::torch::StreamFilter;
use crate::torch::{raise, raise_out_of_memory};

/// The name of a pool: `c10::cuda::MempoolId_t`, a pair of numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pool(u64, u64);

/// Raises what went wrong.
fn unless_raised<T: Default>(result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => return value,
        Err(Failure::OutOfMemory(message)) => raise_out_of_memory(&message),
        Err(Failure::Other(message)) => raise(&message),
    }
    T::default()
}

fn number(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

/// Serves a request of a stream: the address of a block on a device, null for no bytes.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_malloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let bytes = u64::try_from(size).unwrap_or(0);
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    let block = Served::of(device).and_then(|served| served.malloc(bytes, number(stream)));
    std::ptr::with_exposed_provenance_mut(unless_raised(block) as usize)
}

/// Takes a block back. Its size, device and stream are known.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_free(
    block: *mut c_void,
    _size: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
    if let Some(served) = Served::existing().filter(|_| !block.is_null()) {
        served.free(number(block));
    }
}

/// Notes that another stream uses a block.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_record_stream(block: *mut c_void, stream: *mut c_void) {
    if let Some(served) = Served::existing() {
        unless_raised(served.record_stream(number(block), number(stream)));
    }
}

/// Requests of streams that the filter accepts go to a pool from now on.
///
/// # Safety
/// `filter` points to a `std::function<bool(cudaStream_t)>`, which is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tonnage_begin_allocate_to_pool(
    device: c_int,
    pool: Pool,
    filter: *const StreamFilter,
) {
    // SAFETY: promised by the caller.
    let filter = unsafe { StreamFilter::copy(filter) };
    let filter = filter.ok_or_else(|| Failure::Other("tonnage: a pool without streams".to_owned()));
    let begun = Served::of(device)
        .and_then(|served| filter.and_then(|filter| served.begin_pool((pool.0, pool.1), filter)));
    unless_raised(begun);
}

/// Requests go to this pool no more.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_end_allocate_to_pool(_device: c_int, pool: Pool) {
    if let Some(served) = Served::existing() {
        unless_raised(served.end_pool((pool.0, pool.1)));
    }
}

/// One user of a pool less.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_release_pool(_device: c_int, pool: Pool) {
    if let Some(served) = Served::existing() {
        unless_raised(served.release_pool((pool.0, pool.1)));
    }
}

/// Gives back what no block needs.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_empty_cache() {
    if let Some(served) = Served::existing() {
        unless_raised(served.empty_cache());
    }
}

/// Limits what is reserved to a part of the device.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_set_memory_fraction(fraction: f64, device: c_int) {
    unless_raised(Served::of(device).and_then(|served| served.set_fraction(fraction)));
}

/// Says that PyTorch was told of all functions of this library, and not only of `malloc` and `free`.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_complete() {
    crate::served::complete();
}

/// Takes the text of a plan, which has to happen before the first request: 0 if it is one, the number of the line that
/// is not understood, or -1 if it is too late.
///
/// # Safety
/// `text` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_set_plan(text: *const u8, length: usize) -> i64 {
    let bytes = if text.is_null() {
        &[]
    } else {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(text, length) }
    };
    match set_plan(&String::from_utf8_lossy(bytes)) {
        Ok(()) => 0,
        Err(NoPlan::Unreadable(error)) => i64::try_from(error.line).unwrap_or(i64::MAX).max(1),
        Err(NoPlan::TooLate) => -1,
    }
}

/// The program begins a step of what it repeats.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_begin_step() {
    if let Some(served) = Served::existing() {
        served.begin_step();
    }
}

/// Begins the recent peaks anew.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_reset_peaks() {
    if let Some(served) = Served::existing() {
        // It fails only where nothing is served any more.
        let _ = served.reset_peaks();
    }
}

/// The names of the statistics, with spaces between them.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_statistics_names() -> *const c_char {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| NAMES.join(" ") + "\0").as_ptr().cast()
}

/// Writes the statistics in the order of their names, and returns how many were written: none before the first request.
///
/// # Safety
/// `values` points to room for `length` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_statistics(values: *mut u64, length: usize) -> usize {
    let Some(served) = Served::existing() else {
        return 0;
    };
    let statistics = served.statistics();
    let written = statistics.len().min(length);
    if !values.is_null() {
        // SAFETY: promised by the caller.
        unsafe { std::ptr::copy_nonoverlapping(statistics.as_ptr(), values, written) };
    }
    written
}
