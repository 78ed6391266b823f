// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that PyTorch calls.
//!
//! A failure is raised as an error of PyTorch's, through the frames of these
//! functions: `C-unwind` declares that this may happen. Outside of PyTorch a request
//! that cannot be served gives null. A free never fails.
//!
//! No panic of Rust leaves a function: `guard` makes a failure of it. Functions
//! of C++ that may throw are called outside of the guard, which would end the
//! process, except PyTorch's profiler, which does not throw.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tonnage_alloc::Tag;
use tonnage_alloc::tonnage::EventKind;
use tonnage_alloc::torch::PoolId;
use tonnage_runtime::Kept;

use crate::fork::Inside;
use crate::served::{Failure, NAMES, Served, Share, set_plan};
use crate::tags;
pub use crate::torch::StreamFilter;
use crate::torch::{raise, raise_out_of_memory};

/// The name of a pool: `c10::cuda::MempoolId_t`, a pair of numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pool(u64, u64);

/// Runs the body of a function that C or C++ calls. A panic is a failure like any other.
fn guard<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _inside = Inside::enter();
        #[cfg(test)]
        tests::panic_if_wanted();
        body()
    }));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Failure::Other(format!(
            "tonnage: the allocator panicked: {}. This is a bug in tonnage; please report it",
            text.unwrap_or("no message")
        )))
    })
}

/// The same for what cannot fail otherwise.
fn guard_value<T>(value: T, body: impl FnOnce() -> T) -> T {
    guard(|| Ok(body())).unwrap_or(value)
}

/// Does something with the allocator, if there was a request.
fn with_existing<T: Default>(
    body: impl FnOnce(&'static Served) -> Result<T, Failure>,
) -> Result<T, Failure> {
    guard(|| Served::existing().map_or(Ok(T::default()), body))
}

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
    let stream = number(stream);
    // A filter of a pool is a function of C++ that may throw, so it is called outside of the guard.
    let block = guard(|| {
        let served = Served::find_for(device)?;
        if !served.is_without_pools() {
            return Ok(Err(served));
        }
        served.malloc(bytes, stream, PoolId::DEFAULT).map(Ok)
    });
    let block = match block {
        Ok(Ok(block)) => Ok(block),
        Ok(Err(served)) => {
            let pool = served.pool_for(stream);
            guard(|| served.malloc(bytes, stream, pool))
        }
        Err(failure) => Err(failure),
    };
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
    if block.is_null() {
        return;
    }
    let freed = with_existing(|served| {
        // SAFETY: PyTorch frees what it was given, once.
        unsafe { served.free(number(block)) };
        Ok(())
    });
    // The damage that it caused is raised as an error by the next request.
    if let (Err(_), Some(served)) = (freed, Served::existing()) {
        served.note_failed_free();
    }
}

/// Notes that another stream uses a block.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_record_stream(block: *mut c_void, stream: *mut c_void) {
    unless_raised(with_existing(|served| {
        served.record_stream(number(block), number(stream))
    }));
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
    unless_raised(guard(|| {
        let filter =
            filter.ok_or_else(|| Failure::Other("tonnage: a pool without streams".to_owned()))?;
        Served::find_for(device)?.begin_pool((pool.0, pool.1), filter)
    }));
}

/// Requests go to this pool no more.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_end_allocate_to_pool(_device: c_int, pool: Pool) {
    unless_raised(with_existing(|served| served.end_pool((pool.0, pool.1))));
}

/// One user of a pool less.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_release_pool(_device: c_int, pool: Pool) {
    unless_raised(with_existing(|served| {
        served.release_pool((pool.0, pool.1))
    }));
}

/// Gives back what no block needs.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_empty_cache() {
    unless_raised(with_existing(Served::empty_cache));
}

/// Limits what is reserved to a part of the device.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn tonnage_set_memory_fraction(fraction: f64, device: c_int) {
    unless_raised(guard(|| Served::find_for(device)?.set_fraction(fraction)));
}

/// The part of the device that may be reserved.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_memory_fraction() -> f64 {
    guard_value(1.0, || Served::existing().map_or(1.0, Served::fraction))
}

/// Records that PyTorch was given all functions of this library, and not only of `malloc` and `free`.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_complete() {
    guard_value((), crate::served::complete);
}

/// Takes the text of a plan, which has to happen before the first request. Returns 0, or a negative number, and then
/// writes why it failed.
///
/// # Safety
/// `text` points to `length` readable bytes, `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_set_plan(
    text: *const u8,
    length: usize,
    message: *mut u8,
    room: usize,
) -> i64 {
    // SAFETY: promised by the caller.
    let set = guard(|| set_plan(&unsafe { text_of(text, length) }).map(|()| 0));
    // SAFETY: promised by the caller.
    unsafe { write_result(set, message, room) }
}

/// Holds this process to a quota of bytes on a GPU that processes share, which has to happen before the first request.
/// The first request fails if the name is taken or the quotas of all processes do not fit. Returns 0, or a negative
/// number, and then writes why it failed.
///
/// # Safety
/// `folder` points to `folder_length` readable bytes, `name` to `name_length`; `message` is null or points to room for
/// `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_share(
    folder: *const u8,
    folder_length: usize,
    name: *const u8,
    name_length: usize,
    quota: u64,
    message: *mut u8,
    room: usize,
) -> i64 {
    let shared = guard(|| {
        // SAFETY: promised by the caller.
        let (folder, name) =
            unsafe { (text_of(folder, folder_length), text_of(name, name_length)) };
        let (folder, name) = (folder.into_owned().into(), name.into_owned());
        crate::served::share(Share {
            folder,
            name,
            quota,
        })
        .map(|()| 0)
    });
    // SAFETY: promised by the caller.
    unsafe { write_result(shared, message, room) }
}

/// The contents of a C text.
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
    guard_value(0, || {
        // SAFETY: promised by the caller.
        let name = unsafe { text_of(name, length) };
        tags::named(&name).unwrap_or_default().0
    })
}

/// Later requests of this thread have a tag, or none if it is 0. Returns the one before.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_set_tag(tag: u16) -> u16 {
    guard_value(0, || tags::set_current(Tag(tag)).0)
}

/// Writes why something failed, and gives a number for it.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
unsafe fn write_result(result: Result<u64, Failure>, message: *mut u8, room: usize) -> i64 {
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

/// Gives the memory of a tag's blocks back, and keeps what is in them on the host if that is requested. Returns how
/// many bytes were given back, or a negative number, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_pause(tag: u16, keep: bool, message: *mut u8, room: usize) -> i64 {
    let kept = if keep { Kept::OnHost } else { Kept::Nothing };
    let paused = with_existing(|served| served.pause(Tag(tag), kept));
    // SAFETY: promised by the caller.
    unsafe { write_result(paused, message, room) }
}

/// Brings memory back to a tag's blocks. Returns how many bytes, or a negative number, -2 if there is not enough
/// memory, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_resume(tag: u16, message: *mut u8, room: usize) -> i64 {
    let resumed = with_existing(|served| served.resume(Tag(tag)));
    // SAFETY: promised by the caller.
    unsafe { write_result(resumed, message, room) }
}

/// Records that memory with a tag may be spilled to the host when memory runs short. Returns 0, or a negative number, and
/// then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_allow_spill(tag: u16, message: *mut u8, room: usize) -> i64 {
    let allowed = guard(|| crate::served::allow_spill(Tag(tag)).map(|()| 0));
    // SAFETY: promised by the caller.
    unsafe { write_result(allowed, message, room) }
}

/// Brings back what was spilled of a tag, and keeps it there until `tonnage_unhold` is called as often. Returns 0, or a
/// negative number, -2 if there is not enough memory, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_hold(tag: u16, message: *mut u8, room: usize) -> i64 {
    let held = guard(|| crate::served::hold(Tag(tag)).map(|()| 0));
    // SAFETY: promised by the caller.
    unsafe { write_result(held, message, room) }
}

/// One use of a tag less.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_unhold(tag: u16) {
    guard_value((), || crate::served::unhold(Tag(tag)));
}

/// Registers a function that is called when memory runs short, with the bytes that are needed, on the thread that needs
/// them. It frees what it can and returns how many bytes that was. It is never forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_on_shortage(callback: extern "C" fn(u64) -> u64) {
    guard_value((), || crate::served::on_shortage(callback));
}

/// The program begins a step of what it repeats. Returns 0, or a negative number, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_begin_step(message: *mut u8, room: usize) -> i64 {
    let begun = with_existing(|served| served.begin_step().map(|()| 0));
    // SAFETY: promised by the caller.
    unsafe { write_result(begun, message, room) }
}

/// Begins the recent peaks anew. Returns 0, or a negative number, and then writes why it failed.
///
/// # Safety
/// `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_reset_peaks(message: *mut u8, room: usize) -> i64 {
    let reset = with_existing(|served| served.reset_peaks().map(|()| 0));
    // SAFETY: promised by the caller.
    unsafe { write_result(reset, message, room) }
}

/// The number of the device that is served; 0 before the first request.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_device() -> c_int {
    guard_value(0, || Served::existing().map_or(0, Served::device))
}

/// Sets how many events are kept, which has to happen before the first request.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_keep_events(count: usize) {
    guard_value((), || crate::served::keep_events(count));
}

/// The names of the kinds of events, with spaces between them.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_event_names() -> *const c_char {
    static TEXT: OnceLock<String> = OnceLock::new();
    names(&TEXT, || EventKind::ALL.map(EventKind::name).join(" "))
}

/// A text for C that is made once; null if that fails.
fn names(text: &'static OnceLock<String>, make: impl FnOnce() -> String) -> *const c_char {
    guard_value(std::ptr::null(), || {
        text.get_or_init(|| make() + "\0").as_ptr().cast()
    })
}

/// Writes every block and the last events, of the same moment, and returns how many numbers that takes: nothing is
/// written if there is not so much room, and none are needed before the first request. The first two numbers are how
/// many blocks and how many events there are. Five numbers for each block follow: address, bytes, bytes requested, 0 if
/// it is used, 1 if it waits for a stream, 2 if it is free, and its stream; then five for each event, the oldest first:
/// its number, its kind as the place of the name, address, bytes and stream. A negative number means that it failed,
/// and `message` why.
///
/// # Safety
/// `values` is null or points to `length` numbers, `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_snapshot(
    values: *mut u64,
    length: usize,
    message: *mut u8,
    room: usize,
) -> i64 {
    let needed = with_existing(|served| {
        let numbers = served.snapshot()?;
        if !values.is_null() && numbers.len() <= length {
            // SAFETY: promised by the caller.
            unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), values, numbers.len()) };
        }
        Ok(numbers.len() as u64)
    });
    // SAFETY: promised by the caller.
    unsafe { write_result(needed, message, room) }
}

/// The names of the statistics, with spaces between them.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_statistics_names() -> *const c_char {
    static TEXT: OnceLock<String> = OnceLock::new();
    names(&TEXT, || NAMES.join(" "))
}

/// Writes the statistics in the order of their names, and returns how many were written: none before the first request.
/// A negative number means that it failed, and `message` has the reason.
///
/// # Safety
/// `values` points to room for `length` numbers, `message` is null or points to room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_statistics(
    values: *mut u64,
    length: usize,
    message: *mut u8,
    room: usize,
) -> i64 {
    let written = with_existing(|served| {
        let statistics = served.statistics()?;
        let written = statistics.len().min(length);
        if !values.is_null() {
            // SAFETY: promised by the caller.
            unsafe { std::ptr::copy_nonoverlapping(statistics.as_ptr(), values, written) };
        }
        Ok(written as u64)
    });
    // SAFETY: promised by the caller.
    unsafe { write_result(written, message, room) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::ptr::{null, null_mut};

    use super::*;

    thread_local! {
        static WANTED: Cell<bool> = const { Cell::new(false) };
        static PANICS: Cell<u32> = const { Cell::new(0) };
    }

    /// Panics in the guard, if the test of this thread wants it.
    pub(super) fn panic_if_wanted() {
        if WANTED.get() {
            PANICS.set(PANICS.get() + 1);
            panic!("injected");
        }
    }

    extern "C" fn free_nothing(_bytes: u64) -> u64 {
        0
    }

    /// Every function that is exported, called with a panic inside: its name, and the message that it wrote.
    fn call_all() -> Vec<(&'static str, Option<String>)> {
        let stream = null_mut();
        let message = |call: &dyn Fn(*mut u8, usize) -> i64| {
            let mut text = vec![0_u8; 256];
            assert_eq!(call(text.as_mut_ptr(), text.len()), -1);
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
            Some(String::from_utf8_lossy(&text[..end]).into_owned())
        };
        let block = std::ptr::without_provenance_mut(512);
        let text = b"x".as_ptr();
        // SAFETY: pointers are null, or to what the functions expect.
        unsafe {
            vec![
                ("tonnage_malloc", {
                    assert!(tonnage_malloc(1, 0, stream).is_null());
                    None
                }),
                ("tonnage_free", {
                    tonnage_free(block, 512, 0, stream);
                    None
                }),
                ("tonnage_record_stream", {
                    tonnage_record_stream(block, stream);
                    None
                }),
                ("tonnage_begin_allocate_to_pool", {
                    tonnage_begin_allocate_to_pool(0, Pool(0, 1), null());
                    None
                }),
                ("tonnage_end_allocate_to_pool", {
                    tonnage_end_allocate_to_pool(0, Pool(0, 1));
                    None
                }),
                ("tonnage_release_pool", {
                    tonnage_release_pool(0, Pool(0, 1));
                    None
                }),
                ("tonnage_empty_cache", {
                    tonnage_empty_cache();
                    None
                }),
                ("tonnage_set_memory_fraction", {
                    tonnage_set_memory_fraction(0.5, 0);
                    None
                }),
                ("tonnage_memory_fraction", {
                    assert!((tonnage_memory_fraction() - 1.0).abs() < f64::EPSILON);
                    None
                }),
                ("tonnage_complete", {
                    tonnage_complete();
                    None
                }),
                (
                    "tonnage_set_plan",
                    message(&|to, room| tonnage_set_plan(text, 1, to, room)),
                ),
                ("tonnage_tag", {
                    assert_eq!(tonnage_tag(text, 1), 0);
                    None
                }),
                (
                    "tonnage_share",
                    message(&|out, room| tonnage_share(text, 1, text, 1, 1, out, room)),
                ),
                ("tonnage_set_tag", {
                    assert_eq!(tonnage_set_tag(1), 0);
                    None
                }),
                (
                    "tonnage_pause",
                    message(&|to, room| tonnage_pause(1, true, to, room)),
                ),
                (
                    "tonnage_resume",
                    message(&|to, room| tonnage_resume(1, to, room)),
                ),
                (
                    "tonnage_allow_spill",
                    message(&|to, room| tonnage_allow_spill(1, to, room)),
                ),
                (
                    "tonnage_hold",
                    message(&|to, room| tonnage_hold(1, to, room)),
                ),
                ("tonnage_unhold", {
                    tonnage_unhold(1);
                    None
                }),
                ("tonnage_on_shortage", {
                    tonnage_on_shortage(free_nothing);
                    None
                }),
                (
                    "tonnage_begin_step",
                    message(&|to, room| tonnage_begin_step(to, room)),
                ),
                (
                    "tonnage_reset_peaks",
                    message(&|to, room| tonnage_reset_peaks(to, room)),
                ),
                ("tonnage_device", {
                    assert_eq!(tonnage_device(), 0);
                    None
                }),
                ("tonnage_keep_events", {
                    tonnage_keep_events(1);
                    None
                }),
                ("tonnage_event_names", {
                    assert!(tonnage_event_names().is_null());
                    None
                }),
                (
                    "tonnage_snapshot",
                    message(&|to, room| tonnage_snapshot(null_mut(), 0, to, room)),
                ),
                ("tonnage_statistics_names", {
                    assert!(tonnage_statistics_names().is_null());
                    None
                }),
                (
                    "tonnage_statistics",
                    message(&|to, room| tonnage_statistics(null_mut(), 0, to, room)),
                ),
            ]
        }
    }

    /// The functions that a library exports under names of our own, read from its source.
    fn exported(sources: &Path, found: &mut BTreeSet<String>) {
        let entries = std::fs::read_dir(sources).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                exported(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for after in lines
                .split(|line| line.trim() == "#[unsafe(no_mangle)]")
                .skip(1)
            {
                let function = after.iter().find_map(|line| line.split_once(" fn "));
                let name = function.and_then(|(_, rest)| rest.split_once('('));
                found.extend(name.map(|(name, _)| name.to_owned()));
            }
        }
    }

    fn exported_by(name: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        exported(
            &crates.unwrap_or(Path::new(".")).join(name).join("src"),
            &mut found,
        );
        found
    }

    #[test]
    fn no_panic_leaves_an_exported_function() {
        WANTED.set(true);
        let called = call_all();
        WANTED.set(false);
        assert_eq!(PANICS.get() as usize, called.len(), "one without a guard");
        for (name, message) in &called {
            let Some(message) = message else { continue };
            assert!(message.contains("panicked: injected."), "{name}: {message}");
        }
        let names: BTreeSet<String> = called.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(
            names,
            exported_by("tonnage-torch"),
            "one is not called here"
        );
    }

    #[test]
    fn no_name_is_that_of_a_function_of_the_stand_in() {
        // Both libraries may be in one process, and the first one's function would be called for both.
        let (own, other) = (exported_by("tonnage-torch"), exported_by("tonnage-standin"));
        assert!(
            other.contains("tonnage_hold_stream"),
            "the names are not found"
        );
        assert_eq!(
            own.intersection(&other).collect::<Vec<_>>(),
            [] as [&String; 0]
        );
    }
}
