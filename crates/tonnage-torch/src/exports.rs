// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that PyTorch calls.
//!
//! A failure is raised as an error of PyTorch's, through the frames of these
//! functions: `C-unwind` says that this may happen. Outside of PyTorch a request
//! that cannot be served gives null. A free never fails.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use tonnage_alloc::Tag;
use tonnage_alloc::tonnage::EventKind;
use tonnage_runtime::Kept;

use crate::served::{Failure, NAMES, NoPlan, Served, set_plan};
use crate::tags;
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
    // SAFETY: promised by the caller.
    match set_plan(&unsafe { text_of(text, length) }) {
        Ok(()) => 0,
        Err(NoPlan::Unreadable(error)) => i64::try_from(error.line).unwrap_or(i64::MAX).max(1),
        Err(NoPlan::TooLate) => -1,
    }
}

/// What a text of C has.
///
/// # Safety
/// `text` is null or points to `length` readable bytes.
unsafe fn text_of<'a>(text: *const u8, length: usize) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: promised by the caller.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(text, length) })
}

/// The number of a tag, by its name: 0 if there are 65,535 others already.
///
/// # Safety
/// `name` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_tag(name: *const u8, length: usize) -> u16 {
    // SAFETY: promised by the caller.
    let name = unsafe { text_of(name, length) };
    tags::named(&name).unwrap_or_default().0
}

/// What this thread requests from now on has a tag, or none if it is 0. Returns the one before.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_set_tag(tag: u16) -> u16 {
    tags::set_current(Tag(tag)).0
}

/// Writes why something failed, and gives a number for it.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
unsafe fn told(result: Result<u64, Failure>, message: *mut u8, room: usize) -> i64 {
    let (code, text) = match result {
        Ok(bytes) => return i64::try_from(bytes).unwrap_or(i64::MAX),
        Err(Failure::OutOfMemory(text)) => (-2, text),
        Err(Failure::Other(text)) => (-1, text),
    };
    if !message.is_null() && room > 0 {
        let length = text.floor_char_boundary(room - 1);
        // SAFETY: promised by the caller; the text and its zero are not more than the room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), message, length);
            message.add(length).write(0);
        }
    }
    code
}

/// Gives the memory of a tag's blocks back, and keeps what is in them on the host if that is asked for. Returns how many
/// bytes were given back, or a negative number, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_pause(tag: u16, keep: bool, message: *mut u8, room: usize) -> i64 {
    let kept = if keep { Kept::OnHost } else { Kept::Nothing };
    let paused = Served::existing().map_or(Ok(0), |served| served.pause(Tag(tag), kept));
    // SAFETY: promised by the caller.
    unsafe { told(paused, message, room) }
}

/// Brings memory back to a tag's blocks. Returns how many bytes, or a negative number, -2 if there is not enough memory,
/// and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_resume(tag: u16, message: *mut u8, room: usize) -> i64 {
    let resumed = Served::existing().map_or(Ok(0), |served| served.resume(Tag(tag)));
    // SAFETY: promised by the caller.
    unsafe { told(resumed, message, room) }
}

/// Says that what has a tag may be spilled to the host when memory runs short. Returns 0, or a negative number, and then
/// writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_allow_spill(tag: u16, message: *mut u8, room: usize) -> i64 {
    let allowed = crate::served::allow_spill(Tag(tag)).map(|()| 0);
    // SAFETY: promised by the caller.
    unsafe { told(allowed, message, room) }
}

/// Brings back what was spilled of a tag, and keeps it there until `tonnage_unhold` is called as often. Returns 0, or a
/// negative number, -2 if there is not enough memory, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_hold(tag: u16, message: *mut u8, room: usize) -> i64 {
    let held = crate::served::hold(Tag(tag)).map(|()| 0);
    // SAFETY: promised by the caller.
    unsafe { told(held, message, room) }
}

/// One use of a tag less.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_unhold(tag: u16) {
    crate::served::unhold(Tag(tag));
}

/// Registers a function that is called when memory runs short, with the bytes that are needed, on the thread that needs
/// them. It frees what it can and returns how many bytes that was. It is never forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_on_shortage(callback: extern "C" fn(u64) -> u64) {
    crate::served::on_shortage(callback);
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

/// The number of the device that is served; 0 before the first request.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_device() -> c_int {
    Served::existing().map_or(0, Served::device)
}

/// Says how many events are kept, which has to happen before the first request.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_keep_events(count: usize) {
    crate::served::keep_events(count);
}

/// The names of the kinds of events, with spaces between them.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_event_names() -> *const c_char {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| EventKind::ALL.map(EventKind::name).join(" ") + "\0")
        .as_ptr()
        .cast()
}

/// Writes every block and the last events, of the same moment, and returns how many numbers that takes: nothing is
/// written if there is not so much room, and none are needed before the first request. The first two numbers are how
/// many blocks and how many events there are. Five numbers for each block follow: address, bytes, bytes asked for, 0 if
/// it is used, 1 if it waits for a stream, 2 if it is free, and its stream; then five for each event, the oldest first:
/// its number, its kind as the place of the name, address, bytes and stream.
///
/// # Safety
/// `values` is null or points to `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_snapshot(values: *mut u64, room: usize) -> usize {
    let Some(served) = Served::existing() else {
        return 0;
    };
    let numbers = served.snapshot();
    if !values.is_null() && numbers.len() <= room {
        // SAFETY: promised by the caller.
        unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), values, numbers.len()) };
    }
    numbers.len()
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
