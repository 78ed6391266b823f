// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks, of the standard library or of the model checker.
//!
//! With the feature `shuttle` every lock and atomic is one that a test can
//! schedule, so that all of this crate runs under it.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread::ThreadId;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread::ThreadId;

/// The thread that asks.
pub(crate) fn current_thread() -> ThreadId {
    #[cfg(feature = "shuttle")]
    return shuttle::thread::current().id();
    #[cfg(not(feature = "shuttle"))]
    std::thread::current().id()
}

/// Takes a lock behind which nothing can be half done.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
