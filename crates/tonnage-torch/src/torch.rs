// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of PyTorch and of the C++ library that are called by name.
//!
//! A mangled name contains the types of its parameters, so a function whose
//! parameters have changed is not found, and what needs it is left out: no block
//! is reported, or an error is of a more general kind. The layouts used here are
//! those of the Itanium C++ ABI and of libstdc++, with which PyTorch is built on
//! Linux.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use tonnage_capture::blocks::NoteKind;
use tonnage_capture::log;
use tonnage_capture::note::Note;
use tonnage_device_cuda::{CudaDevice, LoadError};

/// A function of a library that is loaded already. The library loaded before all others comes first, so that it can
/// stand before the library's.
fn find(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both names end with zero. No library is loaded or unloaded by this; the handle that `dlopen` gives is
    // kept, so a function that was found stays.
    let found = unsafe {
        let global = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if global.is_null() {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return None;
            }
            libc::dlsym(handle, name.as_ptr())
        } else {
            global
        }
    };
    (!found.is_null()).then_some(found)
}

/// The device that PyTorch's allocator would use.
pub(crate) fn device(number: i32) -> Result<CudaDevice, LoadError> {
    // SAFETY: PyTorch passes streams of the device's primary context, which live at least as long as the blocks that
    // were requested for them. Addresses come from the device itself.
    unsafe { CudaDevice::new(number) }
}

const C10: &CStr = c"libc10.so";
const CXX: &CStr = c"libstdc++.so.6";

/// `c10::Device`: a kind, of which 1 is CUDA, and a number, passed in one register.
#[repr(C)]
#[derive(Clone, Copy)]
struct TorchDevice {
    kind: i8,
    index: i8,
}

type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, TorchDevice);

/// Reports to PyTorch's profiler that a block was handed out, or taken back with a negative size.
pub(crate) fn report(address: u64, change: i64, allocated: u64, reserved: u64, device: i32) {
    static REPORT: OnceLock<Option<Report>> = OnceLock::new();
    let report = REPORT.get_or_init(|| {
        let name = c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
        // SAFETY: the name reports which parameters the function has.
        find(C10, name).map(|found| unsafe { std::mem::transmute::<*mut c_void, Report>(found) })
    });
    if let Some(report) = report {
        let block = std::ptr::with_exposed_provenance_mut(address as usize);
        let device = TorchDevice {
            kind: 1,
            index: device as i8,
        };
        // SAFETY: PyTorch's own allocator calls it the same way; the address is only a number to it.
        unsafe { report(block, change, allocated as usize, reserved as usize, device) };
    }
}

type ReportOutOfMemory = unsafe extern "C-unwind" fn(i64, usize, usize, TorchDevice);
/// `tonnage_note` of the stand-in: a kind, a number, and a text with its length.
type WriteNote = unsafe extern "C" fn(u8, u64, *const u8, usize);
/// `tonnage_record` of the stand-in: a tag, and bytes with their length.
type WriteRecord = unsafe extern "C" fn(u32, *const u8, usize);

/// Reports to PyTorch's profiler, and to a dry run, that a request was refused for want of memory.
pub(crate) fn report_out_of_memory(
    bytes: u64,
    free: u64,
    allocated: u64,
    reserved: u64,
    device: i32,
) {
    if let Some(found) = find(C10, c"tonnage_note") {
        let text = free.to_string();
        // SAFETY: the stand-in's function of this name has this type, and copies the text.
        unsafe {
            let note = std::mem::transmute::<*mut c_void, WriteNote>(found);
            note(
                NoteKind::OutOfMemory as u8,
                bytes,
                text.as_ptr(),
                text.len(),
            );
        }
    }
    let name = c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE";
    if let Some(found) = find(C10, name) {
        let device = TorchDevice {
            kind: 1,
            index: device as i8,
        };
        // SAFETY: the name reports which parameters the function has; PyTorch's own allocator calls it the same way.
        unsafe {
            let report = std::mem::transmute::<*mut c_void, ReportOutOfMemory>(found);
            report(
                bytes.cast_signed(),
                allocated as usize,
                reserved as usize,
                device,
            );
        }
    }
}

/// Reports to a dry run that this allocator takes the place of PyTorch's, and an address of it.
pub(crate) fn tell_dry_run(address: u64) {
    note(&Note::Allocator { address });
}

/// Reports to a dry run that live blocks have no memory for a while.
pub(crate) fn tell_dry_run_of_a_pause() {
    note(&Note::Paused(true));
}

fn note(note: &Note) {
    let json = note.to_json();
    if let Some(found) = find(C10, c"tonnage_record") {
        // SAFETY: the stand-in's function of this name has this type, and copies the bytes.
        unsafe {
            let record = std::mem::transmute::<*mut c_void, WriteRecord>(found);
            record(log::NOTE, json.as_ptr(), json.len());
        }
    }
}

/// `c10::SourceLocation`
#[repr(C)]
#[derive(Clone, Copy)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string`: a pointer, a length, and a capacity or a short text.
#[repr(C)]
struct CxxString {
    start: *mut c_char,
    length: usize,
    capacity: usize,
    rest: usize,
}

type Construct = unsafe extern "C-unwind" fn(*mut c_void, SourceLocation, *mut CxxString);
type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Destroy = unsafe extern "C" fn(*mut c_void);
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, Destroy) -> !;
type CheckFail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> !;

/// The functions that raise `torch.OutOfMemoryError`.
#[derive(Clone, Copy)]
struct OutOfMemoryError {
    construct: Construct,
    type_info: usize,
    allocate_exception: Allocate,
    throw: Throw,
    new: Allocate,
    /// Frees what an object owns, its message above all.
    destroy: Destroy,
}

impl OutOfMemoryError {
    /// Bytes of the room for an object of the class, which had 144 when this was written; see [`fits`](Self::fits).
    const ROOM: usize = 1024;

    fn find() -> Option<Self> {
        let construct = find(
            C10,
            c"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        )?;
        let type_info = find(C10, c"_ZTIN3c1016OutOfMemoryErrorE")?;
        let allocate_exception = find(CXX, c"__cxa_allocate_exception")?;
        let throw = find(CXX, c"__cxa_throw")?;
        let new = find(CXX, c"_Znwm")?;
        let vtable = find(C10, c"_ZTVN3c1016OutOfMemoryErrorE")?.cast::<*mut c_void>();
        // SAFETY: the names report which parameters the functions have: those of the class and of `operator new` by
        // their mangling, the other two by the C++ ABI. A class that derives from `std::exception` has its destructor
        // first in its table, behind the offset and the type.
        let found = unsafe {
            Self {
                destroy: std::mem::transmute::<*mut c_void, Destroy>(vtable.add(2).read()),
                construct: std::mem::transmute::<*mut c_void, Construct>(construct),
                type_info: type_info.expose_provenance(),
                allocate_exception: std::mem::transmute::<*mut c_void, Allocate>(
                    allocate_exception,
                ),
                throw: std::mem::transmute::<*mut c_void, Throw>(throw),
                new: std::mem::transmute::<*mut c_void, Allocate>(new),
            }
        };
        found.fits().then_some(found)
    }

    /// Whether an object of the class has far less than the room: one is made where 64 times as much is, and the bytes
    /// that it wrote are looked at. Another release of PyTorch may have a larger class.
    fn fits(self) -> bool {
        const FILL: u128 = u128::from_ne_bytes([0xA5; 16]);
        let mut space = vec![FILL; 64 * Self::ROOM / 16];
        let object = space.as_mut_ptr().cast::<c_void>();
        // SAFETY: the space has the alignment of every C++ object that does not request more, and far more bytes than
        // this one. It is destroyed once, and not used afterwards.
        unsafe {
            self.construct_at(object, c"tonnage");
            (self.destroy)(object);
        }
        let untouched = space.iter().rev().take_while(|word| **word == FILL);
        (space.len() - untouched.count()) * 16 <= Self::ROOM / 2
    }

    /// Makes an object.
    ///
    /// # Safety
    /// `object` points to room for one.
    unsafe fn construct_at(self, object: *mut c_void, message: &CStr) {
        let text = message.to_bytes_with_nul();
        // SAFETY: the string owns memory of `operator new` that holds the text and its zero, so the constructor may
        // take it over, as it does with every string that is moved into it. The location's texts live as long as the
        // program.
        unsafe {
            let start = (self.new)(text.len()).cast::<c_char>();
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), start, text.len());
            let mut string = CxxString {
                start,
                length: text.len() - 1,
                capacity: text.len() - 1,
                rest: 0,
            };
            (self.construct)(object, LOCATION, &raw mut string);
        }
    }

    fn raise(self, message: &CStr) -> ! {
        // SAFETY: the object has room (`fits`). The type information and the destructor are those of its class.
        unsafe {
            let object = (self.allocate_exception)(Self::ROOM);
            std::ptr::write_bytes(object.cast::<u8>(), 0, Self::ROOM);
            self.construct_at(object, message);
            let type_info = std::ptr::with_exposed_provenance_mut(self.type_info);
            (self.throw)(object, type_info, self.destroy)
        }
    }
}

const LOCATION: SourceLocation = SourceLocation {
    function: c"tonnage_malloc".as_ptr(),
    file: c"tonnage".as_ptr(),
    line: 0,
};

fn text(message: &str) -> CString {
    let bytes: Vec<u8> = message.bytes().filter(|&byte| byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Raises `torch.OutOfMemoryError` through the frames of the caller; or a `RuntimeError` if this PyTorch has another
/// such class. Comes back if there is no PyTorch in the process.
pub(crate) fn raise_out_of_memory(message: &str) {
    static FOUND: OnceLock<Option<OutOfMemoryError>> = OnceLock::new();
    if let Some(found) = *FOUND.get_or_init(OutOfMemoryError::find) {
        found.raise(&text(message));
    }
    raise(message);
}

/// Raises a `RuntimeError` through the frames of the caller. Comes back if there is no PyTorch in the process.
pub(crate) fn raise(message: &str) {
    if let Some(found) = find(C10, c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_") {
        let message = text(message);
        // SAFETY: the name reports which parameters the function has; it copies its texts before it throws.
        unsafe {
            let fail = std::mem::transmute::<*mut c_void, CheckFail>(found);
            fail(
                LOCATION.function,
                LOCATION.file,
                LOCATION.line,
                message.as_ptr(),
            );
        }
    }
}

/// `std::function<bool(cudaStream_t)>`, as PyTorch passes it: what it captured, how to copy or destroy that, how to
/// call.
#[repr(C)]
pub struct StreamFilter {
    captured: [usize; 2],
    manage: Option<unsafe extern "C-unwind" fn(*mut [usize; 2], *const [usize; 2], c_int) -> bool>,
    call: Option<unsafe extern "C-unwind" fn(*const [usize; 2], *const *mut c_void) -> bool>,
}

// SAFETY: PyTorch passes filters that it calls from any thread itself: they compare a thread or query the driver.
unsafe impl Send for StreamFilter {}

impl StreamFilter {
    const CLONE: c_int = 2;
    const DESTROY: c_int = 3;

    /// A copy of a function that belongs to the caller.
    ///
    /// # Safety
    /// `function` is null or points to a live `std::function` of libstdc++ of this signature.
    pub(crate) unsafe fn copy(function: *const Self) -> Option<Self> {
        // SAFETY: promised by the caller.
        let function = unsafe { function.as_ref() }?;
        let manage = function.manage?;
        let mut copy = Self {
            captured: [0; 2],
            manage: function.manage,
            call: function.call,
        };
        // SAFETY: this is how libstdc++ copies what a function captured.
        unsafe {
            manage(
                &raw mut copy.captured,
                &raw const function.captured,
                Self::CLONE,
            )
        };
        Some(copy)
    }

    /// Whether the filter accepts a stream.
    pub(crate) fn accepts(&self, stream: u64) -> bool {
        let stream: *mut c_void = std::ptr::with_exposed_provenance_mut(stream as usize);
        let Some(call) = self.call else {
            return false;
        };
        // SAFETY: this is how libstdc++ calls a function; its argument is passed by reference.
        unsafe { call(&raw const self.captured, &raw const stream) }
    }
}

impl Drop for StreamFilter {
    fn drop(&mut self) {
        if let Some(manage) = self.manage {
            let captured = &raw mut self.captured;
            // SAFETY: this is how libstdc++ destroys what a function captured; it is not used again.
            unsafe { manage(captured, captured.cast_const(), Self::DESTROY) };
        }
    }
}
