// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the exported functions are made of.
//!
//! Raw pointers end here. An out-parameter becomes an [`Out`], zeroed before
//! the model sees it; an opaque pointer becomes a [`Ptr`], a number that only
//! the functions of this file and of `values` turn into memory again.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exports::NAMES;
use crate::recorder;

/// What a function with a status answers when its model panicked: "unknown
/// error" in the runtime, the driver and NVML, and no success anywhere.
pub const FAILED: i32 = 999;

/// A pointer or opaque handle, as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ptr(pub usize);

/// Handles are numbers in a range of addresses that no program maps, so that
/// whoever takes one for a pointer is stopped at once. They are given out in
/// order, because torch's trace shows streams by their handle and two runs of
/// one script must give the same recording.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(0x0f00_0000_0000);

impl Ptr {
    /// The null pointer.
    pub const NULL: Self = Self(0);

    /// A handle that was never given out before.
    pub fn fresh() -> Self {
        Self(NEXT_HANDLE.fetch_add(0x40, Ordering::Relaxed) as usize)
    }

    /// Whether this is null.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// A C string that lives as long as the program.
    pub fn text(text: &'static CStr) -> Self {
        Self(text.as_ptr() as usize)
    }

    /// Reads the C string at this address, or `None` for null or what is not UTF-8.
    pub fn read_text(self) -> Option<String> {
        if self.is_null() {
            return None;
        }
        // SAFETY: the interface demands a zero-terminated string or null here.
        let text = unsafe { CStr::from_ptr(self.0 as *const c_char) };
        text.to_str().ok().map(str::to_owned)
    }

    /// Writes `text` and a zero into a buffer of `room` bytes, cut to fit.
    pub fn write_text(self, text: &str, room: usize) {
        if self.is_null() || room == 0 {
            return;
        }
        let length = text.len().min(room - 1);
        // SAFETY: the interface demands a buffer of `room` bytes here.
        let buffer = unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, room) };
        buffer[..length].copy_from_slice(&text.as_bytes()[..length]);
        buffer[length] = 0;
    }

    /// Writes `value` at this host address plus `offset` bytes; nothing for null.
    pub fn put<T: Copy>(self, offset: usize, value: T) {
        if !self.is_null() {
            // SAFETY: a `mut ptr` of the table: the model knows the layout of
            // what the caller passes and writes only inside it.
            unsafe { ((self.0 + offset) as *mut T).write_unaligned(value) };
        }
    }

    /// Reads a `T` at this host address plus `offset` bytes; `None` for null.
    pub fn get<T: Copy>(self, offset: usize) -> Option<T> {
        // SAFETY: the model knows the layout of what the caller passes and
        // reads only plain numbers inside it.
        (!self.is_null()).then(|| unsafe { ((self.0 + offset) as *const T).read_unaligned() })
    }
}

/// A host address to which the callee writes one `T`.
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T: Copy + Default> Out<T> {
    /// Takes the address and writes zero there.
    ///
    /// # Safety
    /// `address` is null or points to a `T` the caller gives us to write.
    pub unsafe fn new(address: *mut T) -> Self {
        let out = Self(address);
        out.set(T::default());
        out
    }

    /// Writes `value`, unless the caller does not want it.
    pub fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: `new` was promised that this is the caller's to write.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Whether the caller passed null.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A host address to which the callee writes a struct of `N` bytes.
#[derive(Clone, Copy, Debug)]
pub struct OutBytes<const N: usize>(*mut [u8; N]);

impl<const N: usize> OutBytes<N> {
    /// Takes the address and writes zeros there.
    ///
    /// # Safety
    /// `address` is null or points to `N` bytes the caller gives us to write.
    pub unsafe fn new(address: *mut [u8; N]) -> Self {
        if !address.is_null() {
            // SAFETY: promised by the caller.
            unsafe { address.write_bytes(0, 1) };
        }
        Self(address)
    }

    /// Writes `bytes` at `offset`, cut to what the struct holds.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        if self.0.is_null() || offset >= N {
            return;
        }
        let length = bytes.len().min(N - offset);
        // SAFETY: `new` was promised `N` bytes, and `offset + length <= N`.
        unsafe {
            self.0
                .cast::<u8>()
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), length);
        }
    }

    /// Writes a 32-bit number at `offset`.
    pub fn put_i32(&self, offset: usize, value: i32) {
        self.put(offset, &value.to_ne_bytes());
    }

    /// Writes a 64-bit number at `offset`.
    pub fn put_u64(&self, offset: usize, value: u64) {
        self.put(offset, &value.to_ne_bytes());
    }

    /// Whether the caller passed null.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A host address from which the callee reads a `T` and to which it writes one.
#[derive(Clone, Copy, Debug)]
pub struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// Takes the address and leaves what is there.
    ///
    /// # Safety
    /// `address` is null or points to a `T` that is the callee's to read and write.
    pub unsafe fn new(address: *mut T) -> Self {
        Self(address)
    }

    /// What the caller put there; `None` for null.
    pub fn get(&self) -> Option<T> {
        // SAFETY: `new` was promised that this is ours to read.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Writes `value`, unless the caller does not want it.
    pub fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: `new` was promised that this is ours to write.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

/// A struct passed by value whose inside is not looked at field by field.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct ByValue<const N: usize>(pub [u8; N]);

/// The extent of a grid or a block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Dim3 {
    /// First dimension.
    pub x: u32,
    /// Second dimension.
    pub y: u32,
    /// Third dimension.
    pub z: u32,
}

/// A complex number passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Complex64(f32, f32);

/// A complex number passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Complex128(f64, f64);

/// A function by its name, as `dlsym` would find it.
#[derive(Debug)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// Its address.
    pub function: *const (),
}

// SAFETY: addresses of functions, never written through.
unsafe impl Sync for Symbol {}

/// Runs `body`; a panic becomes `failure` instead of crossing into C.
pub fn guard<R>(failure: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failure)
}

/// How often each function that is not modelled was called.
pub(crate) static UNMODELLED: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts a call of the function with this number, and names it the first time.
pub fn unmodelled(id: usize) {
    if UNMODELLED[id].fetch_add(1, Ordering::Relaxed) == 0 {
        recorder::unmodelled(NAMES[id]);
    }
}
