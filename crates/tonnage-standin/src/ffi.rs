// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of the exported functions.
//!
//! Raw pointers end here. `build.rs` wraps every parameter that is a host
//! address in one of these types, as its line in the table states: a value that is read
//! becomes a value, a string or a slice, one that is written an [`Out`], [`InOut`],
//! [`OutBytes`], [`OutArray`] or [`OutText`] that knows how long it is. Only
//! their constructors are unsafe, and only generated code calls them. All other
//! addresses are a [`Ptr`], a number that no safe function dereferences.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// The status that a function returns when its model panicked: "unknown
/// error" in the runtime, the driver and NVML, and not a success anywhere.
pub const FAILED: i32 = 999;

/// A function of the program that is called with one pointer.
pub type HostFunction = unsafe extern "C" fn(Ptr);

/// A function of the program that is called with a stream, a status and a pointer.
pub type StreamCallback = unsafe extern "C" fn(Ptr, i32, Ptr);

/// Types that are plain numbers: every pattern of bits is a value, zeros too.
///
/// # Safety
/// The type has no padding, no invalid bit patterns and no references.
pub unsafe trait Plain: Copy + 'static {
    /// The value whose bits are all zero.
    const ZERO: Self;
}

macro_rules! plain {
    ($($number:ty = $zero:expr),*) => {
        $(
            // SAFETY: a number.
            unsafe impl Plain for $number {
                const ZERO: Self = $zero;
            }
        )*
    };
}

plain!(
    i8 = 0,
    u8 = 0,
    i16 = 0,
    u16 = 0,
    i32 = 0,
    u32 = 0,
    i64 = 0,
    u64 = 0,
    isize = 0,
    usize = 0,
    f32 = 0.0,
    f64 = 0.0,
    Ptr = Ptr::NULL
);

// SAFETY: numbers one after the other.
unsafe impl<const N: usize> Plain for [u8; N] {
    const ZERO: Self = [0; N];
}

/// A pointer or opaque handle, as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ptr(pub usize);

/// Handles are numbers in a range of addresses that no program maps, so that
/// a caller that takes one for a pointer is stopped at once. They are given out in
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
}

/// Reads the value at a host address; `None` for null.
///
/// # Safety
/// `address` is null or points to a readable `T`.
pub unsafe fn input<T: Plain>(address: *const T) -> Option<T> {
    // SAFETY: promised by the caller.
    (!address.is_null()).then(|| unsafe { address.read_unaligned() })
}

/// The string at a host address; `None` for null.
///
/// # Safety
/// `address` is null or points to a zero-terminated string that no thread changes during the call.
pub unsafe fn input_text<'a>(address: *const c_char) -> Option<&'a CStr> {
    // SAFETY: promised by the caller.
    (!address.is_null()).then(|| unsafe { CStr::from_ptr(address) })
}

/// The array at a host address; empty for null, and for a length or an alignment that no array has.
///
/// # Safety
/// `address` is null or points to `length` readable values that no thread changes during the call.
pub unsafe fn input_array<'a, T: Plain>(address: *const T, length: usize) -> &'a [T] {
    let possible = length
        .checked_mul(size_of::<T>())
        .is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if address.is_null() || !address.is_aligned() || !possible {
        return &[];
    }
    // SAFETY: promised by the caller; length and alignment are possible.
    unsafe { std::slice::from_raw_parts(address, length) }
}

/// The number `offset` bytes into a struct; `None` if it does not lie inside.
pub fn field<T: Plain>(bytes: &[u8], offset: usize) -> Option<T> {
    let field = bytes.get(offset..offset.checked_add(size_of::<T>())?)?;
    // SAFETY: as many bytes as a `T` has, which may have any bits.
    Some(unsafe { field.as_ptr().cast::<T>().read_unaligned() })
}

/// The arguments of a kernel that is launched: an address for each.
#[derive(Clone, Copy, Debug)]
pub struct Arguments(*const *const u8);

impl Arguments {
    /// Takes the list of a launch.
    ///
    /// # Safety
    /// `list` is null or points to the addresses of the arguments, at least one, or is the driver's list of all of them
    /// in one piece, for the length of the call.
    pub unsafe fn new(list: *const *const u8) -> Self {
        Self(list)
    }

    /// No list.
    pub const NONE: Self = Self(std::ptr::null());

    /// Where the list is.
    pub(crate) fn address(self) -> Ptr {
        Ptr(self.0 as usize)
    }

    /// The bytes of the first argument; none where there is no list.
    ///
    /// # Safety
    /// The kernel has an argument, and its first has so many bytes.
    pub(crate) unsafe fn first_bytes<'a>(self, size: usize) -> &'a [u8] {
        // SAFETY: by `new` and by the caller's promise.
        let first = (!self.0.is_null()).then(|| unsafe { self.0.read() });
        // SAFETY: the same.
        unsafe { input_array(first.unwrap_or(std::ptr::null()), size) }
    }

    /// The 64-bit words of arguments, each by its position and size.
    ///
    /// # Safety
    /// The kernel has these arguments.
    pub(crate) unsafe fn words(self, arguments: &[(u16, u32)]) -> impl Iterator<Item = u64> {
        let arguments = arguments.iter().filter(move |_| !self.0.is_null());
        arguments.flat_map(move |&(position, size)| {
            // SAFETY: by `new` and by the caller's promise.
            let argument = unsafe { self.0.add(usize::from(position)).read() };
            let count = if argument.is_null() {
                0
            } else {
                size as usize / 8
            };
            // SAFETY: the same.
            let word = move |at| unsafe { argument.cast::<[u8; 8]>().add(at).read() };
            (0..count).map(word).map(u64::from_ne_bytes)
        })
    }

    /// The words of all arguments in one piece, where this is the driver's list of such a piece: 1 and its address, 2
    /// and the address of its length, and 0.
    ///
    /// # Safety
    /// This is such a list, or null.
    pub(crate) unsafe fn packed_words(self) -> Vec<u64> {
        const PAIRS: usize = 2;
        let (mut piece, mut length) = (std::ptr::null::<u8>(), 0);
        let mut at = 0;
        while !self.0.is_null() && at < 2 * PAIRS {
            // SAFETY: promised by the caller: the list goes on until the 0.
            let (what, value) = unsafe { (self.0.add(at).read() as usize, self.0.add(at + 1)) };
            match what {
                // SAFETY: a value follows, which is the address of the piece, or of its length.
                1 => piece = unsafe { value.read() },
                // SAFETY: the same.
                2 => length = unsafe { value.read().cast::<usize>().read_unaligned() },
                _ => break,
            }
            at += 2;
        }
        if piece.is_null() {
            return Vec::new();
        }
        // SAFETY: the piece has this length.
        let word = |at| unsafe { piece.cast::<[u8; 8]>().add(at).read() };
        (0..length / 8).map(word).map(u64::from_ne_bytes).collect()
    }

    /// The first bytes of the first argument.
    ///
    /// # Safety
    /// The kernel has an argument, and its first is at least so long.
    pub(crate) unsafe fn first<const LENGTH: usize>(self) -> Option<[u8; LENGTH]> {
        // SAFETY: by `new` and by the caller's promise. Unaligned, because nothing is known of the struct.
        unsafe {
            let first = (!self.0.is_null()).then(|| self.0.read())?;
            (!first.is_null()).then(|| first.cast::<[u8; LENGTH]>().read_unaligned())
        }
    }
}

/// Numbers that report how long something is.
pub trait Length {
    /// The length; none if the number is negative.
    fn length(&self) -> usize;
}

macro_rules! length {
    ($($number:ty),*) => {
        $(
            impl Length for $number {
                fn length(&self) -> usize {
                    usize::try_from(*self).unwrap_or(0)
                }
            }
        )*
    };
}

length!(i32, u32, i64, u64, usize);

/// A length that the caller put where the callee writes how much it gave.
impl<T: Plain + Length> Length for InOut<T> {
    fn length(&self) -> usize {
        self.get().map_or(0, |length| length.length())
    }
}

/// A host address to which the callee writes one `T`.
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T: Plain> Out<T> {
    /// Takes the address and writes zero there.
    ///
    /// # Safety
    /// `address` is null or points to a `T` the caller gives us to write.
    pub unsafe fn new(address: *mut T) -> Self {
        let out = Self(address);
        out.set(T::ZERO);
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

    /// The address itself, by which some interfaces name a thing.
    pub fn address(&self) -> Ptr {
        Ptr(self.0 as usize)
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
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
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
        self.write_at(offset, &value.to_ne_bytes());
    }

    /// Writes a 64-bit number at `offset`.
    pub fn put_u64(&self, offset: usize, value: u64) {
        self.write_at(offset, &value.to_ne_bytes());
    }

    /// Whether the caller passed null.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A host address from which the callee reads a `T` and to which it writes one.
#[derive(Clone, Copy, Debug)]
pub struct InOut<T>(*mut T);

impl<T: Plain> InOut<T> {
    /// Takes the address and leaves what is there.
    ///
    /// # Safety
    /// `address` is null or points to a `T` that is the callee's to read and write.
    pub unsafe fn new(address: *mut T) -> Self {
        Self(address)
    }

    /// The value that the caller put there; `None` for null.
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

/// A host address to which the callee writes up to `length` values.
///
/// Unlike an [`Out`] it is not zeroed: callers read only the length that is reported as written.
#[derive(Clone, Copy, Debug)]
pub struct OutArray<T> {
    address: *mut T,
    length: usize,
}

impl<T: Plain> OutArray<T> {
    /// Takes the address and leaves what is there.
    ///
    /// # Safety
    /// `address` is null or points to `length` values the caller gives us to write.
    pub unsafe fn new(address: *mut T, length: usize) -> Self {
        let length = if address.is_null() { 0 } else { length };
        Self { address, length }
    }

    /// How many values there is room for; none if the caller passed null.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is room for nothing.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the caller passed null.
    pub fn is_null(&self) -> bool {
        self.address.is_null()
    }

    /// The address, for a library that writes there itself.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.address
    }

    /// Writes a value, if there is room for it.
    pub fn set(&self, index: usize, value: T) {
        if index < self.length {
            // SAFETY: `new` was promised `length` values, and this is one of them.
            unsafe { self.address.add(index).write_unaligned(value) };
        }
    }

    /// Writes values from the first on, as many as there is room for.
    pub fn set_all(&self, values: &[T]) {
        let length = values.len().min(self.length);
        if length > 0 {
            // SAFETY: `new` was promised `self.length` values. They are written as bytes, which
            // need no alignment.
            unsafe {
                self.address
                    .cast::<u8>()
                    .copy_from_nonoverlapping(values.as_ptr().cast(), length * size_of::<T>());
            }
        }
    }

    /// Writes a number `offset` bytes after the beginning, if it fits there.
    pub fn write_at<V: Plain>(&self, offset: usize, value: V) {
        let bytes = self.length.saturating_mul(size_of::<T>());
        if offset
            .checked_add(size_of::<V>())
            .is_some_and(|end| end <= bytes)
        {
            // SAFETY: `new` was promised this many bytes, and the number lies inside.
            unsafe {
                self.address
                    .cast::<u8>()
                    .add(offset)
                    .cast::<V>()
                    .write_unaligned(value);
            };
        }
    }
}

/// Bytes of an attribute of a pointer.
pub(crate) fn pointer_attribute(attribute: i32) -> usize {
    match attribute {
        // Context, device pointer, host pointer, buffer id, start and size of the range.
        1 | 3 | 4 | 7 | 11 | 12 => 8,
        // Memory type, and what is yes or no or a device's number.
        2 | 6 | 8..=10 | 13 => 4,
        _ => 0,
    }
}

/// Host addresses to which the callee writes attributes of a pointer, one for each attribute.
#[derive(Clone, Copy, Debug)]
pub struct AttributeTargets<'a> {
    addresses: &'a [Ptr],
    attributes: &'a [i32],
}

impl<'a> AttributeTargets<'a> {
    /// Takes the addresses and leaves what is there.
    ///
    /// # Safety
    /// `addresses` is null or points to as many readable addresses as there are attributes; each is
    /// null or points to memory for its attribute that the caller gives us to write.
    pub unsafe fn new(addresses: *const Ptr, attributes: &'a [i32]) -> Self {
        // SAFETY: promised by the caller.
        let addresses = unsafe { input_array(addresses, attributes.len()) };
        Self {
            addresses,
            attributes,
        }
    }

    /// Each attribute with where it is written.
    pub fn iter(&self) -> impl Iterator<Item = (i32, OutArray<u8>)> {
        let pairs = self.attributes.iter().zip(self.addresses);
        pairs.map(|(&attribute, address)| {
            let length = pointer_attribute(attribute);
            // SAFETY: `new` was promised this.
            let target = unsafe { OutArray::new(address.0 as *mut u8, length) };
            (attribute, target)
        })
    }
}

/// A host address to which the callee writes a text.
#[derive(Clone, Copy, Debug)]
pub struct OutText {
    address: *mut c_char,
    length: usize,
}

impl OutText {
    /// Takes the address and leaves what is there.
    ///
    /// # Safety
    /// `address` is null or points to `length` bytes the caller gives us to write.
    pub unsafe fn new(address: *mut c_char, length: usize) -> Self {
        let length = if address.is_null() { 0 } else { length };
        Self { address, length }
    }

    /// Writes `text` and a zero, cut to fit.
    pub fn set(&self, text: &str) {
        let Some(room) = self.length.checked_sub(1) else {
            return;
        };
        let length = text.len().min(room);
        // SAFETY: `new` was promised `self.length` bytes, of which `length + 1` are written.
        unsafe {
            self.address
                .cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), length);
            self.address.add(length).write(0);
        }
    }

    /// Bytes there is room for, with the zero.
    pub fn room(&self) -> usize {
        self.length
    }

    /// The address, for a library that writes there itself.
    pub fn as_mut_ptr(&self) -> *mut c_char {
        self.address
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
