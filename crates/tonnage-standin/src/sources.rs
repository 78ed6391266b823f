// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other text for source files: a variant of a job in which a constant has another value.
//!
//! Python opens the script that it is started with by C's `fopen`, so this is the one place where it can be given a
//! copy instead. The hook does the same for what Python loads by itself. The user's file is never written.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::OnceLock;

use tonnage_capture::SOURCES_VARIABLE;

use crate::ffi::guard;

type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// Stands before C's `fopen`.
///
/// # Safety
/// What `fopen` asks for: two texts that end with a zero byte.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    static REAL: OnceLock<Option<Open>> = OnceLock::new();
    // SAFETY: promised by the caller.
    unsafe { open(&REAL, c"fopen", path, mode) }
}

/// Stands before C's `fopen64`.
///
/// # Safety
/// What `fopen` asks for: two texts that end with a zero byte.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fopen64(
    path: *const c_char,
    mode: *const c_char,
) -> *mut libc::FILE {
    static REAL: OnceLock<Option<Open>> = OnceLock::new();
    // SAFETY: promised by the caller.
    unsafe { open(&REAL, c"fopen64", path, mode) }
}

/// Opens the copy of a file that is replaced, and any other file itself.
///
/// # Safety
/// `path` and `mode` are texts that end with a zero byte; `name` is a function of this type.
unsafe fn open(
    real: &OnceLock<Option<Open>>,
    name: &CStr,
    path: *const c_char,
    mode: *const c_char,
) -> *mut libc::FILE {
    let real = real.get_or_init(|| {
        // SAFETY: asks for a symbol by a text that ends with a zero byte.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // SAFETY: both functions of C have this type.
        (!address.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Open>(address) })
    });
    let Some(real) = real else {
        return std::ptr::null_mut();
    };
    let copy = guard(None, || {
        if path.is_null() {
            return None;
        }
        // SAFETY: promised by the caller.
        copy_of(unsafe { CStr::from_ptr(path) })
    });
    let path = copy.as_ref().map_or(path, |copy| copy.as_ptr());
    // SAFETY: promised by the caller; the copy's name lives until the call returns.
    unsafe { real(path, mode) }
}

/// The file to read instead of this one.
fn copy_of(path: &CStr) -> Option<CString> {
    let list = std::env::var_os(SOURCES_VARIABLE)?.into_vec();
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    let name = path.file_name()?;
    let mut lines = list.split(|byte| *byte == b'\n');
    while let (Some(file), Some(copy)) = (lines.next(), lines.next()) {
        let file = Path::new(std::ffi::OsStr::from_bytes(file));
        if file.file_name() == Some(name) && path.canonicalize().is_ok_and(|path| path == file) {
            return CString::new(copy).ok();
        }
    }
    None
}
