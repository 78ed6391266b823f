// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks, of the standard library or of the model checker.
//!
//! With the feature `shuttle` every lock and atomic is one that a test can
//! schedule, so that all of this crate runs under it.

// Counting owners needs no schedule.
pub(crate) use std::sync::{Arc, Weak};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread::ThreadId;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread::ThreadId;

/// The calling thread.
pub(crate) fn current_thread() -> ThreadId {
    #[cfg(feature = "shuttle")]
    return shuttle::thread::current().id();
    #[cfg(not(feature = "shuttle"))]
    std::thread::current().id()
}

/// The thread that runs code of the program while it holds a lock of ours.
#[derive(Debug, Default)]
pub(crate) struct Visitor {
    /// Whether there is one, so that most calls need not look.
    present: AtomicBool,
    thread: Mutex<Option<ThreadId>>,
}

impl Visitor {
    pub(crate) fn enter(&self) {
        *locked(&self.thread) = Some(current_thread());
        self.present.store(true, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.present.store(false, Ordering::Relaxed);
        *locked(&self.thread) = None;
    }

    /// Whether it is the thread that calls. It has seen its own store; others may see an old one, and then compare.
    #[inline]
    pub(crate) fn is_this_thread(&self) -> bool {
        self.present.load(Ordering::Relaxed) && *locked(&self.thread) == Some(current_thread())
    }
}

/// Takes a lock behind which nothing can be half done.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
