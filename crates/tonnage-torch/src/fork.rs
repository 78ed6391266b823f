// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps other threads out of the allocator while the process forks.
//!
//! A fork copies the memory as it is, and only the thread that forks. A lock that
//! another thread holds at that moment would stay held in the child, which then
//! waits forever when it frees a tensor. So the thread that forks takes every
//! lock first and lets go of them on both sides.

use std::cell::{Cell, RefCell};
use std::sync::Once;

use crate::served::{self, Locks};

thread_local! {
    static LOCKS: RefCell<Option<Locks>> = const { RefCell::new(None) };
    /// How many functions of the plugin this thread is inside of.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// This thread is inside of the plugin until it is dropped.
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter() -> Self {
        register();
        // A thread that ends may free after its variables are gone; it does not fork any more.
        let _ = INSIDE.try_with(|inside| inside.set(inside.get() + 1));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(inside.get() - 1));
    }
}

fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the functions take nothing and do not unwind. The library is never unloaded, because PyTorch frees
        // with it until the end. A failure (no memory) leaves forks as they were without it.
        unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(release)) };
    });
}

extern "C" fn prepare() {
    // A function of the program that frees memory runs inside of a request, without a lock, and may fork; a signal
    // handler may interrupt a thread that has one, and would wait for itself.
    if INSIDE.try_with(Cell::get) == Ok(0) {
        let _ = LOCKS.try_with(|locks| locks.replace(Some(served::lock_all())));
    }
}

extern "C" fn release() {
    let _ = LOCKS.try_with(|locks| drop(locks.take()));
}
