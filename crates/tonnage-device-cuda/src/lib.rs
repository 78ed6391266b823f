// SPDX-License-Identifier: MIT OR Apache-2.0
//! A [`Device`] over the CUDA driver.
//!
//! The driver is loaded when the program runs, so a program that links this crate starts on machines without a GPU and
//! gets an error there that names the missing part. No header and no library of NVIDIA's is needed to build it; the
//! functions it calls are in one table (`table.rs`).
//!
//! Calls are made in the device's primary context, which the CUDA runtime and
//! PyTorch use too. It is made current for each call and put back after it, so a
//! program's own current context does not matter and does not change. The
//! thread's capture mode is relaxed for each call, so that none invalidates the
//! capture of a graph on another stream or in another thread; an event is not
//! recorded on a stream that is captured itself.
//!
//! Memory belongs to one device and one process. Access for other devices, and
//! handles for other processes, are not given out.
//!
//! ```no_run
//! use tonnage_alloc::tonnage::{Allocator, Settings};
//! use tonnage_alloc::{Policy, Request, StreamId};
//! use tonnage_device_cuda::CudaDevice;
//!
//! // SAFETY: only the default stream is named.
//! let device = unsafe { CudaDevice::new(0) }?;
//! let mut allocator = Allocator::new(device, Settings::default());
//! let block = allocator.alloc(Request::new(3 << 20, StreamId(0)))?;
//! allocator.free(block)?;
//! allocator.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[expect(unsafe_code, reason = "calls functions of a library that is loaded")]
mod table;

use std::path::Path;

use table::{AllocationProperties, Handle, Status, Table};
use thiserror::Error;
use tonnage_alloc::{
    Access, Contents, Device, DeviceAddr, DeviceError, EventId, PhysicalId, StreamId, round_up,
};

/// The name under which systems have the driver.
const DRIVER: &str = "libcuda.so.1";

/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: Status = 600;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`
const VIRTUAL_MEMORY: i32 = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`
const GPU_DIRECT: i32 = 110;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: i32 = 2;
/// `CU_EVENT_DISABLE_TIMING`
const WITHOUT_TIME: u32 = 2;

/// Why there is no device.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The driver cannot be opened.
    #[error("the CUDA driver cannot be loaded: {0}")]
    Missing(String),
    /// The driver is older than this crate.
    #[error("the CUDA driver has no function {0}; CUDA 12 or newer is needed")]
    Function(String),
    /// The driver failed.
    #[error("{call} failed with code {code}")]
    Driver {
        /// The function.
        call: &'static str,
        /// Its return value.
        code: i32,
    },
    /// The device cannot map memory.
    #[error("device {0} has no virtual memory management")]
    NoVirtualMemory(i32),
}

/// Whether a stream is captured into a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// It is not.
    None,
    /// It is.
    Active,
    /// It was, and the capture cannot be completed any more.
    Invalidated,
}

/// A device of the CUDA driver.
///
/// The driver follows the handles and addresses that it is given, and the verbs of [`Device`] and [`Contents`] are safe
/// functions. The creator of a device therefore promises, once, that they are right; see [`new`](Self::new).
#[derive(Debug)]
pub struct CudaDevice {
    table: Table,
    device: i32,
    context: Handle,
    properties: AllocationProperties,
    total: u64,
    granularity: u64,
}

impl CudaDevice {
    /// The device with this number, as the driver counts them.
    ///
    /// # Safety
    /// As long as the device, or an allocator on it, is used:
    /// * every [`StreamId`] is 0, 1, 2 or the handle of a live stream of the device's primary context;
    /// * every address, event and piece of memory is one that this device gave and that was not given back.
    ///
    /// # Errors
    /// If there is no driver, no such device, or it cannot map memory.
    #[expect(unsafe_code, reason = "handles and addresses are the caller's promise")]
    pub unsafe fn new(number: i32) -> Result<Self, LoadError> {
        // SAFETY: the caller promises it, and the system's driver is one.
        unsafe { Self::of_library(Path::new(DRIVER), number) }
    }

    /// The same with another library in the role of the driver.
    ///
    /// # Safety
    /// As [`new`](Self::new), and the functions of the library are those of the driver: loading it runs its code.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[expect(unsafe_code, reason = "handles and addresses are the caller's promise")]
    pub unsafe fn of_library(library: &Path, number: i32) -> Result<Self, LoadError> {
        // SAFETY: the caller promises it.
        let table = unsafe { Table::open(library) }?;
        loaded("cuInit", table.init(0))?;
        let (status, device) = table.device_get(number);
        loaded("cuDeviceGet", status)?;
        let attribute = |attribute| {
            let (status, value) = table.device_attribute(attribute, device);
            status == 0 && value != 0
        };
        if !attribute(VIRTUAL_MEMORY) {
            return Err(LoadError::NoVirtualMemory(number));
        }
        let properties = AllocationProperties::on(device, attribute(GPU_DIRECT));
        let (status, granularity) = table.granularity(&properties);
        loaded("cuMemGetAllocationGranularity", status)?;
        let (status, context) = table.primary_retain(device);
        loaded("cuDevicePrimaryCtxRetain", status)?;
        let mut made = Self {
            table,
            device,
            context,
            properties,
            total: 0,
            granularity: granularity as u64,
        };
        let (status, _, total) = made
            .current(Table::memory_info)
            .map_err(|error| load_error(&error))?;
        loaded("cuMemGetInfo", status)?;
        made.total = total as u64;
        Ok(made)
    }

    /// The number that identifies the GPU, or the part of one, in every process of the machine.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn uuid(&self) -> Result<[u8; 16], DeviceError> {
        let (status, uuid) = self.table.device_uuid(self.device);
        answered("cuDeviceGetUuid", status)?;
        Ok(uuid)
    }

    /// Whether a stream is captured.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn capture(&self, stream: StreamId) -> Result<Capture, DeviceError> {
        let (status, capturing) = self.current(|table| table.stream_capturing(stream.0))?;
        answered("cuStreamIsCapturing", status)?;
        Ok(match capturing {
            0 => Capture::None,
            1 => Capture::Active,
            _ => Capture::Invalidated,
        })
    }

    /// Calls the driver with the device's context current and a capture mode that allows any call.
    fn current<T>(&self, call: impl FnOnce(&Table) -> T) -> Result<T, DeviceError> {
        answered("cuCtxPushCurrent", self.table.push_current(self.context))?;
        let (changed, before) = self.table.capture_mode(RELAXED);
        let result = call(&self.table);
        if changed == 0 {
            self.table.capture_mode(before);
        }
        // The context pushed above can be popped; there is nothing to do if not.
        self.table.pop_current();
        Ok(result)
    }

    /// The result of a call that obtains memory or addresses.
    fn obtained<T>(
        &self,
        call: &'static str,
        requested: u64,
        (status, value): (Status, T),
    ) -> Result<T, DeviceError> {
        if status == OUT_OF_MEMORY {
            let free = self.free_bytes();
            return Err(DeviceError::OutOfMemory { requested, free });
        }
        answered(call, status).map(|()| value)
    }

    /// A size that can be mapped.
    fn whole(&self, size: u64) -> Result<usize, DeviceError> {
        match round_up(size, self.granularity) {
            Some(whole) if whole == size && size > 0 => Ok(size as usize),
            _ => Err(DeviceError::Invalid("not a multiple of the granularity")),
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // After the driver has ended with the process this fails, and nothing is left to release.
        self.table.primary_release(self.device);
    }
}

fn loaded(call: &'static str, code: Status) -> Result<(), LoadError> {
    match code {
        0 => Ok(()),
        code => Err(LoadError::Driver { call, code }),
    }
}

fn load_error(error: &DeviceError) -> LoadError {
    match *error {
        DeviceError::Driver { call, code } => LoadError::Driver { call, code },
        _ => LoadError::Missing(error.to_string()),
    }
}

fn answered(call: &'static str, code: Status) -> Result<(), DeviceError> {
    match code {
        0 => Ok(()),
        code => Err(DeviceError::Driver { call, code }),
    }
}

impl Contents for CudaDevice {
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        answered("cuCtxSynchronize", self.current(Table::synchronize)?)
    }

    fn download(&mut self, from: DeviceAddr, to: &mut [u8]) -> Result<(), DeviceError> {
        let status = self.current(|table| table.download(to, from.0))?;
        answered("cuMemcpyDtoH", status)
    }

    fn upload(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), DeviceError> {
        let status = self.current(|table| table.upload(to.0, from))?;
        answered("cuMemcpyHtoD", status)
    }
}

impl Device for CudaDevice {
    fn total(&self) -> u64 {
        self.total
    }

    fn free_bytes(&self) -> u64 {
        match self.current(Table::memory_info) {
            Ok((0, free, _)) => free as u64,
            _ => 0,
        }
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let obtained = self.current(|table| table.memory_alloc(size as usize))?;
        self.obtained("cuMemAlloc", size, obtained).map(DeviceAddr)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        answered(
            "cuMemFree",
            self.current(|table| table.memory_free(addr.0))?,
        )
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let whole = self.whole(size)?;
        let alignment = self.granularity as usize;
        let obtained = self.current(|table| table.reserve(whole, alignment, 0, 0))?;
        self.obtained("cuMemAddressReserve", size, obtained)
            .map(DeviceAddr)
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        answered(
            "cuMemAddressFree",
            self.current(|table| table.unreserve(addr.0, size as usize))?,
        )
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        let whole = self.whole(size)?;
        let obtained = self.current(|table| table.create(whole, &self.properties))?;
        self.obtained("cuMemCreate", size, obtained).map(PhysicalId)
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        answered(
            "cuMemRelease",
            self.current(|table| table.release(memory.0))?,
        )
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        answered(
            "cuMemMap",
            self.current(|table| table.map(addr.0, size as usize, 0, memory.0, 0))?,
        )
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        answered(
            "cuMemUnmap",
            self.current(|table| table.unmap(addr.0, size as usize))?,
        )
    }

    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError> {
        let flags = match access {
            Access::None => 0,
            Access::Read => 1,
            Access::ReadWrite => 3,
        };
        let device = self.device;
        answered(
            "cuMemSetAccess",
            self.current(|table| table.set_access(addr.0, size as usize, device, flags))?,
        )
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let (status, event) = self.current(|table| table.event_create(WITHOUT_TIME))?;
        answered("cuEventCreate", status).map(|()| EventId(event))
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        answered(
            "cuEventDestroy",
            self.current(|table| table.event_destroy(event.0))?,
        )
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        if self.capture(stream)? != Capture::None {
            return Err(DeviceError::Invalid(
                "an event on a stream that is captured",
            ));
        }
        answered(
            "cuEventRecord",
            self.current(|table| table.event_record(event.0, stream.0))?,
        )
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        match self.current(|table| table.event_query(event.0))? {
            NOT_READY => Ok(false),
            status => answered("cuEventQuery", status).map(|()| true),
        }
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        answered(
            "cuEventSynchronize",
            self.current(|table| table.event_wait(event.0))?,
        )
    }
}
