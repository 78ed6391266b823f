// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that end without a word to Python: by C's `_exit`, or because they wait forever.
//!
//! PyTorch's history is handed over in pieces. Python's own ways to end hand over the last one; here it is requested
//! where C ends the process. It may come to nothing, but never keeps the process from ending.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::ffi::guard;
use crate::{endings, fork, recorder};

type Finish = unsafe extern "C" fn(*mut c_void) -> i32;

/// How long a process waits for Python's lock when it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// The function of Python that hands over what is left, and the process whose it is.
static FINISH: AtomicUsize = AtomicUsize::new(0);
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Names the function that hands over what is left of torch's history; null for none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_set_finish(finish: Option<Finish>) {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    FINISH.store(
        finish.map_or(0, |finish| finish as usize),
        Ordering::Relaxed,
    );
}

/// Stands before C's `_exit`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _exit(status: i32) -> ! {
    end(status)
}

/// Stands before C's `_Exit`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _Exit(status: i32) -> ! {
    end(status)
}

/// Ends the process, after it has handed over what it recorded.
pub(crate) fn end(status: i32) -> ! {
    endings::record_exit(status);
    // A child between fork and exec has nothing to hand over, and may call nothing.
    if PROCESS.load(Ordering::Relaxed) == std::process::id() {
        guard((), finish);
    }
    loop {
        // SAFETY: ends the process, as C's own function does.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

fn finish() {
    let address = FINISH.swap(0, Ordering::Relaxed);
    // A handler of a signal may have interrupted us: what is locked then stays locked.
    if address == 0 || fork::is_broken() || !fork::is_unlocked() {
        return;
    }
    recorder::write_counts();
    // SAFETY: only addresses of such functions are stored there.
    let finish = unsafe { std::mem::transmute::<usize, Finish>(address) };
    if holds_pythons_lock() {
        // SAFETY: Python's own function, called with Python's lock.
        unsafe { finish(std::ptr::null_mut()) };
        return;
    }
    // The thread that has Python's lock may never give it back, so another thread waits for it.
    let (done, wait) = mpsc::channel();
    let started = std::thread::Builder::new().spawn(move || {
        // SAFETY: Python's own function, which takes Python's lock itself.
        unsafe { finish(std::ptr::null_mut()) };
        let _ = done.send(());
    });
    if started.is_ok() {
        let _ = wait.recv_timeout(PATIENCE);
    }
}

fn holds_pythons_lock() -> bool {
    // SAFETY: looks up a function of the Python that gave us the callback; any thread may call it.
    unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"PyGILState_Check".as_ptr());
        !address.is_null()
            && std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(address)() != 0
    }
}
