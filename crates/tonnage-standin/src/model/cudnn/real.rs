// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's own libraries, which are loaded behind the stand-in.
//!
//! Torch finds them by its run path, so they are in the process whether a
//! program calls them or not. Few of their functions need no device; those are
//! called, so that versions and sizes are the user's and not ours.

use std::cell::RefCell;
use std::ffi::CStr;

use crate::foreign::file_of;

thread_local! {
    /// Functions of real libraries that this thread is inside of.
    static CALLED: RefCell<Vec<&'static CStr>> = const { RefCell::new(Vec::new()) };
}

/// Calls a real library; `None` if this thread is inside of the same function already. A real library may call an
/// exported function of the stand-in, which would call the real library again without end.
fn call_once<R>(symbol: &'static CStr, call: impl FnOnce() -> R) -> Option<R> {
    let enter = |called: &RefCell<Vec<&'static CStr>>| {
        let mut called = called.borrow_mut();
        let is_new = !called.contains(&symbol);
        if is_new {
            called.push(symbol);
        }
        is_new
    };
    if !CALLED.try_with(enter).unwrap_or(false) {
        return None;
    }
    let result = call();
    let _ = CALLED.try_with(|called| called.borrow_mut().pop());
    Some(result)
}

/// An address inside the library with one of these names, if it is loaded.
///
/// Only what the library itself defines counts: what its dependencies define
/// may be the stand-in under another name, which would call itself forever.
pub(crate) fn function(names: &[&CStr], symbol: &CStr) -> Option<usize> {
    names.iter().find_map(|name| {
        // SAFETY: queries a library that is loaded already; loads nothing.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the handle was just given to us.
        let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        let mut map: *const usize = std::ptr::null();
        // SAFETY: writes the address of the library's link map to `map`.
        let answer = unsafe { libc::dlinfo(library, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
        if answer != 0 || map.is_null() {
            return None;
        }
        // SAFETY: a link map begins with the address at which the library lies, and is there as long
        // as the library.
        let base = unsafe { *map };
        let is_its_own = file_of(address).is_some_and(|(start, _)| start == base);
        is_its_own.then_some(address as usize)
    })
}

/// Queries a library for a part of its version, by the function all of them have.
pub(crate) fn property(names: &[&CStr], symbol: &'static CStr, part: i32) -> Option<i32> {
    let address = function(names, symbol)?;
    let mut value = 0_i32;
    // SAFETY: every `…GetProperty` takes the part and where to write it.
    let status = call_once(symbol, || unsafe {
        let ask: unsafe extern "C" fn(i32, *mut i32) -> i32 = std::mem::transmute(address);
        ask(part, &raw mut value)
    })?;
    (status == 0).then_some(value)
}

/// Queries a library for its version as one number.
pub(crate) fn number(names: &[&CStr], symbol: &'static CStr) -> Option<usize> {
    let address = function(names, symbol)?;
    // SAFETY: the functions called this way take nothing and return a size.
    call_once(symbol, || unsafe {
        let ask: unsafe extern "C" fn() -> usize = std::mem::transmute(address);
        ask()
    })
}
