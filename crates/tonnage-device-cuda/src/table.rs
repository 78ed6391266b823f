// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the driver that a device needs, found when the program runs.
//!
//! This is the only file of the crate with `unsafe` code. The driver is opened by name or by path and stays open until
//! the process ends, so that a function that was found can be called at any time. Signatures are those that NVIDIA
//! documents for the driver API; the names carry the version of the signature (`_v2`), as the library exports them.
//! Every function of this file takes and gives plain values: the driver writes to a local. They are safe because the
//! caller that opens the table promises that handles and addresses are live ones ([`Table::open`]).

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::LoadError;

/// A status of the driver; 0 is success.
pub(crate) type Status = c_int;

/// Describes physical memory, as `cuMemCreate` wants it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    /// A pointer, on another system.
    windows_metadata: usize,
    compression: u8,
    gpu_direct: u8,
    usage: u16,
    reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`
    fn device(id: c_int) -> Self {
        Self { kind: 1, id }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct AccessDescription {
    location: Location,
    flags: c_int,
}

/// Declares the table: what each function is called, and what it takes.
macro_rules! table {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            fn find(library: Library) -> Result<Self, LoadError> {
                Ok(Self {
                    // SAFETY: the symbol is the driver's function of this name, whose documented signature this is.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>(
                            library.symbol($symbol)?,
                        )
                    },)*
                })
            }
        }
    };
}

table! {
    init: c"cuInit" (c_uint);
    device_get: c"cuDeviceGet" (*mut c_int, c_int);
    device_attribute: c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_uuid: c"cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
    primary_retain: c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    primary_release: c"cuDevicePrimaryCtxRelease_v2" (c_int);
    push_current: c"cuCtxPushCurrent_v2" (*mut c_void);
    pop_current: c"cuCtxPopCurrent_v2" (*mut *mut c_void);
    synchronize: c"cuCtxSynchronize" ();
    download: c"cuMemcpyDtoH_v2" (*mut c_void, c_ulonglong, usize);
    upload: c"cuMemcpyHtoD_v2" (c_ulonglong, *const c_void, usize);
    memory_info: c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    memory_alloc: c"cuMemAlloc_v2" (*mut c_ulonglong, usize);
    memory_free: c"cuMemFree_v2" (c_ulonglong);
    granularity: c"cuMemGetAllocationGranularity" (*mut usize, *const AllocationProperties, c_int);
    reserve: c"cuMemAddressReserve" (*mut c_ulonglong, usize, usize, c_ulonglong, c_ulonglong);
    unreserve: c"cuMemAddressFree" (c_ulonglong, usize);
    create: c"cuMemCreate" (*mut c_ulonglong, usize, *const AllocationProperties, c_ulonglong);
    release: c"cuMemRelease" (c_ulonglong);
    map: c"cuMemMap" (c_ulonglong, usize, usize, c_ulonglong, c_ulonglong);
    unmap: c"cuMemUnmap" (c_ulonglong, usize);
    set_access: c"cuMemSetAccess" (c_ulonglong, usize, *const AccessDescription, usize);
    event_create: c"cuEventCreate" (*mut *mut c_void, c_uint);
    event_destroy: c"cuEventDestroy_v2" (*mut c_void);
    event_record: c"cuEventRecord" (*mut c_void, *mut c_void);
    event_query: c"cuEventQuery" (*mut c_void);
    event_wait: c"cuEventSynchronize" (*mut c_void);
    stream_capturing: c"cuStreamIsCapturing" (*mut c_void, *mut c_int);
    capture_mode: c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
}

/// An open library, which is never closed.
#[derive(Clone, Copy, Debug)]
struct Library(*mut c_void);

impl Library {
    fn open(name: &CStr) -> Result<Self, LoadError> {
        // SAFETY: the name is a string that ends with zero. Opening runs the library's own start-up code, which is
        // what a program that uses CUDA wants.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(LoadError::Missing(last_error()));
        }
        Ok(Self(handle))
    }

    fn symbol(self, name: &'static CStr) -> Result<*mut c_void, LoadError> {
        // SAFETY: the handle is of a library that is never closed, the name ends with zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if found.is_null() {
            return Err(LoadError::Function(name.to_string_lossy().into_owned()));
        }
        Ok(found)
    }
}

/// The error of `dlopen`.
fn last_error() -> String {
    // SAFETY: the string is this thread's until the next call of the loader, and copied here.
    unsafe {
        let text: *const c_char = libc::dlerror();
        if text.is_null() {
            return "unknown error".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// The driver's functions. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table(Functions);

/// A context, an event or a stream of the driver, as a number.
pub(crate) type Handle = u64;

fn pointer(handle: Handle) -> *mut c_void {
    // A handle is an address inside of the driver, which this program never looks at.
    std::ptr::with_exposed_provenance_mut(handle as usize)
}

fn number(handle: *mut c_void) -> Handle {
    handle.expose_provenance() as Handle
}

/// Calls that only take values.
macro_rules! plain {
    ($($(#[$note:meta])* $name:ident($($argument:ident: $type:ty as $passed:expr),*);)*) => {
        impl Table {
            $($(#[$note])*
            pub(crate) fn $name(&self, $($argument: $type),*) -> Status {
                // SAFETY: the function takes values and reads or writes no memory of this program. Handles and addresses
                // are live ones: `Table::open` was called with that promise.
                unsafe { (self.0.$name)($($passed),*) }
            })*
        }
    };
}

plain! {
    init(flags: u32 as flags);
    synchronize();
    primary_release(device: i32 as device);
    push_current(context: Handle as pointer(context));
    memory_free(address: u64 as address);
    unreserve(address: u64 as address, size: usize as size);
    release(memory: u64 as memory);
    map(address: u64 as address, size: usize as size, offset: usize as offset, memory: u64 as memory, flags: u64 as flags);
    unmap(address: u64 as address, size: usize as size);
    event_destroy(event: Handle as pointer(event));
    event_record(event: Handle as pointer(event), stream: Handle as pointer(stream));
    event_query(event: Handle as pointer(event));
    event_wait(event: Handle as pointer(event));
}

/// Calls that write one value, to a local.
macro_rules! writes {
    ($($name:ident($($argument:ident: $type:ty as $passed:expr),*) -> $written:ty;)*) => {
        impl Table {
            $(pub(crate) fn $name(&self, $($argument: $type),*) -> (Status, $written) {
                let mut out = <$written>::default();
                // SAFETY: the function writes one value to its first parameter, which is a local of that type.
                let status = unsafe { (self.0.$name)(&raw mut out, $($passed),*) };
                (status, out)
            })*
        }
    };
}

writes! {
    device_get(number: i32 as number) -> i32;
    device_uuid(device: i32 as device) -> [u8; 16];
    device_attribute(attribute: i32 as attribute, device: i32 as device) -> i32;
    memory_alloc(size: usize as size) -> u64;
    reserve(size: usize as size, alignment: usize as alignment, wanted: u64 as wanted, flags: u64 as flags) -> u64;
}

impl Table {
    /// Opens the driver and finds its functions.
    ///
    /// # Safety
    /// The library is a driver, or a stand-in for one. Handles and addresses that are passed to the table are live ones
    /// that this driver gave.
    pub(crate) unsafe fn open(library: &Path) -> Result<Self, LoadError> {
        let name = CString::new(library.as_os_str().as_bytes());
        let name = name.map_err(|_| LoadError::Missing("a name with a zero in it".to_owned()))?;
        Ok(Self(Functions::find(Library::open(&name)?)?))
    }

    pub(crate) fn primary_retain(&self, device: i32) -> (Status, Handle) {
        let mut context = std::ptr::null_mut();
        // SAFETY: the function writes a handle to a local.
        let status = unsafe { (self.0.primary_retain)(&raw mut context, device) };
        (status, number(context))
    }

    pub(crate) fn pop_current(&self) -> Status {
        let mut context = std::ptr::null_mut();
        // SAFETY: the function writes a handle to a local.
        unsafe { (self.0.pop_current)(&raw mut context) }
    }

    /// Free and total bytes of the current device.
    pub(crate) fn memory_info(&self) -> (Status, usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two numbers to locals.
        let status = unsafe { (self.0.memory_info)(&raw mut free, &raw mut total) };
        (status, free, total)
    }

    /// Copies memory of the device to the host.
    pub(crate) fn download(&self, to: &mut [u8], from: u64) -> Status {
        // SAFETY: the function writes as many bytes as the slice has, and comes back when they are written. The range
        // is live (`Table::open`).
        unsafe { (self.0.download)(to.as_mut_ptr().cast(), from, to.len()) }
    }

    /// Copies memory of the host to the device.
    pub(crate) fn upload(&self, to: u64, from: &[u8]) -> Status {
        // SAFETY: the function reads as many bytes as the slice has, and has read them when it comes back. The range
        // is live memory of the device (`Table::open`).
        unsafe { (self.0.upload)(to, from.as_ptr().cast(), from.len()) }
    }

    /// The smallest unit of memory of a device.
    pub(crate) fn granularity(&self, properties: &AllocationProperties) -> (Status, usize) {
        let mut size = 0;
        // SAFETY: the function reads the description and writes a number to a local. 0 requests the minimum.
        let status = unsafe { (self.0.granularity)(&raw mut size, properties, 0) };
        (status, size)
    }

    pub(crate) fn create(
        &self,
        size: usize,
        properties: &AllocationProperties,
    ) -> (Status, Handle) {
        let mut memory = 0;
        // SAFETY: the function reads the description and writes a handle to a local.
        let status = unsafe { (self.0.create)(&raw mut memory, size, properties, 0) };
        (status, memory)
    }

    /// Gives a device access: 0 none, 1 read, 3 read and write.
    pub(crate) fn set_access(&self, address: u64, size: usize, device: i32, flags: i32) -> Status {
        let description = AccessDescription {
            location: Location::device(device),
            flags,
        };
        // SAFETY: the function reads one description, which is a local.
        unsafe { (self.0.set_access)(address, size, &raw const description, 1) }
    }

    pub(crate) fn event_create(&self, flags: u32) -> (Status, Handle) {
        let mut event = std::ptr::null_mut();
        // SAFETY: the function writes a handle to a local.
        let status = unsafe { (self.0.event_create)(&raw mut event, flags) };
        (status, number(event))
    }

    /// Whether a stream is captured: 0 no, 1 yes, 2 a capture that was invalidated.
    pub(crate) fn stream_capturing(&self, stream: Handle) -> (Status, i32) {
        let mut capturing = 0;
        // SAFETY: the function takes a handle, which is of a live stream (`Table::open`), and writes a number to a local.
        let status = unsafe { (self.0.stream_capturing)(pointer(stream), &raw mut capturing) };
        (status, capturing)
    }

    /// Sets the capture mode of this thread and gives the one before.
    pub(crate) fn capture_mode(&self, mode: i32) -> (Status, i32) {
        let mut mode = mode;
        // SAFETY: the function reads and writes a number, which is a local.
        let status = unsafe { (self.0.capture_mode)(&raw mut mode) };
        (status, mode)
    }
}

impl AllocationProperties {
    /// Memory of a device that stays where it is (`CU_MEM_ALLOCATION_TYPE_PINNED`), for this process alone.
    pub(crate) fn on(device: i32, gpu_direct: bool) -> Self {
        Self {
            kind: 1,
            handle_types: 0,
            location: Location::device(device),
            windows_metadata: 0,
            compression: 0,
            gpu_direct: u8::from(gpu_direct),
            usage: 0,
            reserved: [0; 4],
        }
    }
}
