// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other text for source files: a variant of a job in which a constant has another value.
//!
//! Python opens the script that it is started with by C's `fopen`, so `protect` replaces it there. The hook does the
//! same for what Python loads by itself. The user's file is never written.

use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use tonnage_capture::SOURCES_VARIABLE;

/// Whether there is such text in this process.
pub(crate) fn are_replaced() -> bool {
    let name = CString::new(SOURCES_VARIABLE).unwrap_or_default();
    // SAFETY: queries a variable by a text that ends with a zero byte.
    unsafe { !libc::getenv(name.as_ptr()).is_null() }
}

/// The file to read instead of this one.
pub(crate) fn copy_of(path: &[u8]) -> Option<CString> {
    let list = std::env::var_os(SOURCES_VARIABLE)?.into_vec();
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
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
