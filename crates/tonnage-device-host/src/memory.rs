// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory behind a [`HostDevice`](crate::HostDevice): a range of addresses
//! and a file without a name, parts of which are put into the range.
//!
//! This is the only file of the crate with `unsafe` code. It keeps its own
//! table of what is mapped where and with which access, so that reading and
//! writing are safe whatever the caller does. Sizes and places are multiples of
//! the host's page; the table is what every check is made against.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use tonnage_alloc::{Access, DeviceError};

/// Length of the file. Parts without content take no memory, and places in it
/// are used once.
const FILE_LENGTH: u64 = 1 << 60;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    offset: u64,
    size: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapped {
    size: u64,
    access: Access,
}

/// A range of addresses of this process, and a file to fill it with.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The reserved range, with space to align the start.
    reserved: NonNull<c_void>,
    reserved_length: usize,
    base: u64,
    length: u64,
    file: OwnedFd,
    next_offset: u64,
    /// The mappings in the range, by address. No two overlap.
    mapped: BTreeMap<u64, Mapped>,
}

// SAFETY: the mapping and the file belong to this value alone, and neither is
// tied to the thread that made it.
unsafe impl Send for Memory {}

fn failed(call: &'static str) -> impl Fn(Errno) -> DeviceError {
    move |error| DeviceError::Driver {
        call,
        code: error.raw_os_error(),
    }
}

impl Memory {
    /// Reserves `length` bytes of addresses that start at a multiple of `align`.
    pub(crate) fn new(length: u64, align: u64) -> Result<Self, DeviceError> {
        let file = rustix::fs::memfd_create("tonnage-device", MemfdFlags::CLOEXEC)
            .map_err(failed("memfd_create"))?;
        rustix::fs::ftruncate(&file, FILE_LENGTH).map_err(failed("ftruncate"))?;
        let too_long = DeviceError::Invalid("more addresses than a process has");
        let reserved_length = length
            .checked_add(align)
            .and_then(|length| usize::try_from(length).ok())
            .ok_or(too_long)?;
        // SAFETY: a new mapping at a place the kernel chooses; nothing exists there.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved_length,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let reserved = reserved.map_err(failed("mmap"))?;
        let reserved = NonNull::new(reserved).ok_or(DeviceError::Invalid("mapped at nothing"))?;
        Ok(Self {
            reserved,
            reserved_length,
            base: (reserved.as_ptr().addr() as u64).next_multiple_of(align),
            length,
            file,
            next_offset: 0,
            mapped: BTreeMap::new(),
        })
    }

    /// First address of the range.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Obtains `size` bytes of memory, zeroed, without an address.
    pub(crate) fn obtain(&mut self, size: u64) -> Result<Extent, DeviceError> {
        let offset = self.next_offset;
        let end = offset.checked_add(size).filter(|&end| end <= FILE_LENGTH);
        let end = end.ok_or(DeviceError::Invalid("the file is used up"))?;
        // Pages that exist already cannot be missing when they are written, which
        // would be a signal.
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, size)
            .map_err(failed("fallocate"))?;
        self.next_offset = end;
        Ok(Extent { offset, size })
    }

    /// Gives memory back to the host. Its remaining mappings read as zero.
    pub(crate) fn discard(&mut self, extent: Extent) -> Result<(), DeviceError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, extent.offset, extent.size)
            .map_err(failed("fallocate"))
    }

    /// Puts memory at `addr`, without access.
    ///
    /// # Errors
    /// If the range is not ours or something is mapped there.
    pub(crate) fn map(&mut self, addr: u64, extent: Extent) -> Result<(), DeviceError> {
        let page = rustix::param::page_size() as u64;
        let end = addr.checked_add(extent.size);
        let inside = addr >= self.base && end.is_some_and(|end| end <= self.base + self.length);
        if !inside
            || extent.size == 0
            || !addr.is_multiple_of(page)
            || !extent.size.is_multiple_of(page)
        {
            return Err(DeviceError::Invalid("not whole pages of the range"));
        }
        let before = self.mapped.range(..addr + extent.size).next_back();
        if before.is_some_and(|(&start, mapped)| start + mapped.size > addr) {
            return Err(DeviceError::Invalid("the range is mapped already"));
        }
        // SAFETY: `inside` checks that the pages lie in the range this value reserved, and the table that nothing is
        // mapped there; so only our own reservation is replaced. The file is longer than the extent.
        let mapped = unsafe {
            rustix::mm::mmap(
                self.pointer(addr),
                extent.size as usize,
                ProtFlags::empty(),
                MapFlags::SHARED | MapFlags::FIXED,
                &self.file,
                extent.offset,
            )
        };
        mapped.map_err(failed("mmap"))?;
        let access = Access::None;
        let size = extent.size;
        self.mapped.insert(addr, Mapped { size, access });
        Ok(())
    }

    /// Takes the memory at `addr` away; the addresses stay reserved.
    pub(crate) fn unmap(&mut self, addr: u64) -> Result<(), DeviceError> {
        let unknown = DeviceError::Invalid("nothing is mapped there");
        let mapped = *self.mapped.get(&addr).ok_or(unknown)?;
        // SAFETY: by the table, this mapping is ours, and by `&mut self`, no other code reads or writes it.
        let replaced = unsafe {
            rustix::mm::mmap_anonymous(
                self.pointer(addr),
                mapped.size as usize,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        replaced.map_err(failed("mmap"))?;
        self.mapped.remove(&addr);
        Ok(())
    }

    /// Says what may be done with the memory that was put at `addr`.
    pub(crate) fn protect(&mut self, addr: u64, access: Access) -> Result<(), DeviceError> {
        let at = self.pointer(addr);
        let unknown = DeviceError::Invalid("nothing is mapped there");
        let mapped = self.mapped.get_mut(&addr).ok_or(unknown)?;
        let flags = match access {
            Access::None => MprotectFlags::empty(),
            Access::Read => MprotectFlags::READ,
            Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: by the table, this mapping is ours, and by `&mut self`, no other code reads or writes it.
        unsafe { rustix::mm::mprotect(at, mapped.size as usize, flags) }
            .map_err(failed("mprotect"))?;
        mapped.access = access;
        Ok(())
    }

    /// Copies bytes to `addr`.
    ///
    /// # Errors
    /// If not all of the range may be written.
    pub(crate) fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(addr, bytes.len() as u64, Access::ReadWrite)?;
        // SAFETY: by the table, the range is mapped and may be written; `bytes` is memory of the program and not part
        // of the range, to which no code outside of this file has a reference.
        unsafe {
            let to = self.pointer(addr).cast::<u8>();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    /// Copies bytes from `addr`.
    ///
    /// # Errors
    /// If not all of the range may be read.
    pub(crate) fn read(&self, addr: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check(addr, bytes.len() as u64, Access::Read)?;
        // SAFETY: as in `write`; the range may be read.
        unsafe {
            let from = self.pointer(addr).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Whether all of a range allows `wanted`; it may span mappings that touch.
    fn check(&self, addr: u64, size: u64, wanted: Access) -> Result<(), DeviceError> {
        let refused = DeviceError::Driver {
            call: "access",
            code: Errno::FAULT.raw_os_error(),
        };
        let end = addr.checked_add(size).ok_or(refused.clone())?;
        let mut next = addr;
        while next < end {
            let (&start, mapped) = self
                .mapped
                .range(..=next)
                .next_back()
                .ok_or(refused.clone())?;
            if start + mapped.size <= next || mapped.access < wanted {
                return Err(refused);
            }
            next = start + mapped.size;
        }
        Ok(())
    }

    /// A pointer to an address of the range, derived from the reservation.
    fn pointer(&self, addr: u64) -> *mut c_void {
        let start = self.reserved.as_ptr();
        start.with_addr(addr as usize)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the whole range was reserved by `new` and everything mapped in
        // it is ours; nothing refers to it after this.
        let _ = unsafe { rustix::mm::munmap(self.reserved.as_ptr(), self.reserved_length) };
    }
}
