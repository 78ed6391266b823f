// SPDX-License-Identifier: MIT OR Apache-2.0
//! Variants of a job in forks of one process.
//!
//! A fork server is a process that has imported what a script imports and forks
//! a child for each variant of a job. Such a child joins its own run, with
//! devices that no process has used: it is as if it had just been started.

use crate::{endings, ffi, fork, ledger, machine, recorder};

/// Makes this process a fork server: 0, or 1 if it has used a device already, which no child could take over.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_serve() -> i32 {
    ffi::guard(1, || {
        if machine::is_used() || fork::is_broken() {
            return 1;
        }
        fork::become_server();
        0
    })
}

/// Makes this child of a fork server a process of the run that `TONNAGE_RUN` names now, as if it had been started with
/// these arguments, each with a zero byte at its end: 0, or 1 if it is too late for that.
///
/// # Safety
/// `arguments` points to `length` readable bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_join(arguments: *const u8, length: usize) -> i32 {
    ffi::guard(1, || {
        if !fork::is_server() || machine::is_used() || fork::is_broken() {
            return 1;
        }
        // SAFETY: promised by the caller.
        let arguments = unsafe { ffi::input_array(arguments, length) };
        fork::join_second_run();
        ledger::forget_slot();
        recorder::join(arguments);
        endings::join();
        0
    })
}
