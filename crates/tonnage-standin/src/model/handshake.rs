// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handshake of the Python hook: a small job that leaves no trace in the recording.

use std::cell::Cell;

use super::memory::scratch_page;
use crate::ffi::guard;
use crate::values;

thread_local! {
    /// Whether the hook runs its handshake on this thread.
    static IN_HANDSHAKE: Cell<bool> = const { Cell::new(false) };
}

/// Begins the hook's handshake on this thread: kernels that it launches leave no trace. Returns the address of a page
/// on the current device that no program has, or 0 if the device keeps no values.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_handshake_begin() -> u64 {
    guard(0, || {
        let address = scratch_page().unwrap_or(0);
        IN_HANDSHAKE.set(address != 0);
        address
    })
}

/// Ends the handshake; `address` is the page that it used.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_handshake_end(address: u64) {
    guard((), || {
        IN_HANDSHAKE.set(false);
        values::forget_page(address);
    });
}

/// Whether the hook runs its handshake on this thread.
pub(crate) fn is_in_handshake() -> bool {
    // A thread that ends may launch after its variables are gone.
    IN_HANDSHAKE.try_with(Cell::get).unwrap_or(false)
}
