// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: device, pinned, managed, virtual, pooled, shared between processes;
//! what an address is; copies and fills.

use tonnage_alloc::{AllocationKind, DeviceAddr};
use tonnage_capture::log::{CallKind, DriverCall};

use super::device::context_of;
use crate::ffi::{AttributeTargets, ByValue, Out, OutArray, OutBytes, Ptr, field, guard};
use crate::machine::{
    self, Answer, Pinned, Pool, accounts, code, current, machine, status, use_current,
};
use crate::region::{Region, Rows};
use crate::torch::is_seen;
use crate::values::Side;
use crate::{files, foreign, recorder, uses, values};

pub(crate) fn malloc(out: Out<u64>, size: usize) -> i32 {
    status(use_current().and_then(|device| {
        if out.is_null() {
            return Err(code::INVALID_VALUE);
        }
        if size > 0 {
            let (_, mut accounts) = accounts()?;
            out.set(accounts.malloc(device, size as u64)?);
        }
        Ok(())
    }))
}

/// The driver refuses zero bytes where the runtime gives a null pointer.
pub(crate) fn malloc_some(out: Out<u64>, size: usize) -> i32 {
    if size == 0 {
        return code::INVALID_VALUE;
    }
    foreign::driver_memory_taken();
    malloc(out, size)
}

pub(crate) fn malloc_managed(out: Out<u64>, size: usize, _flags: u32) -> i32 {
    status(use_current().and_then(|device| {
        if out.is_null() || size == 0 {
            return Err(code::INVALID_VALUE);
        }
        let (_, mut accounts) = accounts()?;
        out.set(accounts.malloc_managed(device, size as u64)?);
        Ok(())
    }))
}

pub(crate) fn malloc_pitch(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize) -> i32 {
    let padded = width.next_multiple_of(512);
    pitch.set(padded);
    padded
        .checked_mul(height)
        .map_or(code::OUT_OF_MEMORY, |size| malloc(out, size))
}

pub(crate) fn free(address: u64) -> i32 {
    if address == 0 {
        // Freeing null is the idiom for opening a context.
        return status(use_current().map(|_| ()));
    }
    super::stream::catch_up();
    status(use_current().and_then(|_| {
        let (machine, mut accounts) = accounts()?;
        if accounts.pool_block(address).is_some() {
            return accounts.pool_free(address, Ptr::NULL);
        }
        let device = machine.device_of(address).ok_or(code::INVALID_VALUE)?;
        accounts.free(device, address)
    }))
}

pub(crate) fn free_ptr(address: Ptr) -> i32 {
    free(address.0 as u64)
}

// Pinned host memory.

pub(crate) fn host_alloc(out: Out<Ptr>, size: usize, _flags: u32) -> i32 {
    status(use_current().and_then(|_| {
        if size == 0 {
            return Ok(());
        }
        let length = size.checked_next_multiple_of(4096);
        let length = length.ok_or(code::OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping; pages without writes cost nothing.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(code::OUT_OF_MEMORY);
        }
        let (_, mut accounts) = accounts()?;
        let pinned = Pinned {
            size,
            mapped: Some(length),
        };
        accounts.pinned.insert(address as usize, pinned);
        out.set(Ptr(address as usize));
        pinned_call(CallKind::HostAlloc, size);
        Ok(())
    }))
}

/// Host addresses differ from run to run, so the log has only the size.
fn pinned_call(kind: CallKind, size: usize) {
    recorder::call(&DriverCall {
        kind,
        device: current() as u8,
        time: recorder::now(),
        address: 0,
        size: size as u64,
        extra: 0,
        charged: 0,
        in_use: 0,
    });
}

pub(crate) fn host_alloc_plain(out: Out<Ptr>, size: usize) -> i32 {
    host_alloc(out, size, 0)
}

pub(crate) fn host_free(address: Ptr) -> i32 {
    if address.is_null() {
        return code::SUCCESS;
    }
    status(accounts().and_then(|(_, mut accounts)| {
        let Some(&Pinned {
            size,
            mapped: Some(length),
        }) = accounts.pinned.get(&address.0)
        else {
            return Err(code::INVALID_VALUE);
        };
        accounts.pinned.remove(&address.0);
        // SAFETY: exactly a mapping made by `host_alloc`.
        unsafe { libc::munmap(address.0 as *mut libc::c_void, length) };
        pinned_call(CallKind::HostFree, size);
        Ok(())
    }))
}

pub(crate) fn host_register(address: Ptr, size: usize, _flags: u32) -> i32 {
    status(use_current().and_then(|_| {
        let (_, mut accounts) = accounts()?;
        if address.is_null() || size == 0 {
            return Err(code::INVALID_VALUE);
        }
        accounts
            .pinned
            .insert(address.0, Pinned { size, mapped: None });
        pinned_call(CallKind::HostAlloc, size);
        Ok(())
    }))
}

pub(crate) fn host_unregister(address: Ptr) -> i32 {
    status(accounts().and_then(|(_, mut accounts)| {
        let Some(&Pinned { size, mapped: None }) = accounts.pinned.get(&address.0) else {
            return Err(code::INVALID_VALUE);
        };
        accounts.pinned.remove(&address.0);
        pinned_call(CallKind::HostFree, size);
        Ok(())
    }))
}

pub(crate) fn host_device_pointer(out: Out<u64>, host: Ptr, _flags: u32) -> i32 {
    out.set(host.0 as u64);
    code::SUCCESS
}

pub(crate) fn host_flags(flags: Out<u32>, host: Ptr) -> i32 {
    status(accounts().and_then(|(_, accounts)| {
        pinned_in(&accounts, host.0).ok_or(code::INVALID_VALUE)?;
        flags.set(1);
        Ok(())
    }))
}

/// Start and length of the pinned memory that an address is in.
pub(crate) fn pinned_range(address: usize) -> Option<(usize, usize)> {
    let (_, accounts) = accounts().ok()?;
    pinned_in(&accounts, address)
}

fn pinned_in(accounts: &machine::Accounts, address: usize) -> Option<(usize, usize)> {
    let (&start, pinned) = accounts.pinned.range(..=address).next_back()?;
    let length = pinned.mapped.unwrap_or(pinned.size);
    (address - start < length).then_some((start, length))
}

// The properties of an address.

enum Place {
    /// On the device with this visible number; start and length of the allocation.
    Device(i32, u64, u64),
    /// The same, for managed memory.
    Managed(i32, u64, u64),
    Pinned(usize, usize),
    Unknown,
}

fn place(address: u64) -> Answer<Place> {
    let (machine, accounts) = accounts()?;
    if let Some(device) = machine.device_of(address) {
        let visible = machine.visible_number(device);
        if let Some(size) = accounts.pool_block(address) {
            return Ok(Place::Device(visible, address, size));
        }
        if let Some((start, _, size)) = accounts.opened_at(address) {
            return Ok(Place::Device(visible, start, size));
        }
        let found = accounts.device(device).find(DeviceAddr(address));
        return Ok(found.map_or(Place::Unknown, |found| {
            let place = if found.kind == AllocationKind::Managed {
                Place::Managed
            } else {
                Place::Device
            };
            place(visible, found.addr.0, found.size)
        }));
    }
    Ok(
        pinned_in(&accounts, address as usize).map_or(Place::Unknown, |(start, length)| {
            Place::Pinned(start, length)
        }),
    )
}

/// A page of this thread's device in which nothing is allocated and whose values are kept.
pub(crate) fn scratch_page() -> Option<u64> {
    let machine = machine().ok()?;
    let device = machine.physical(current() as i32).ok()?;
    let (first, span) = machine.addresses(device);
    let mut pages = [first + span - values::SCRATCH, first + span / 2, first].into_iter();
    pages.find(|&page| {
        values::keeps_page(page) && place(page).is_ok_and(|place| matches!(place, Place::Unknown))
    })
}

pub(crate) fn pointer_attributes(out: OutBytes<24>, address: Ptr) -> i32 {
    status(place(address.0 as u64).map(|place| {
        let address = address.0 as u64;
        match place {
            Place::Device(device, ..) => {
                out.put_i32(0, 2);
                out.put_i32(4, device);
                out.put_u64(8, address);
            }
            Place::Managed(device, ..) => {
                out.put_i32(0, 3);
                out.put_i32(4, device);
                out.put_u64(8, address);
                out.put_u64(16, address);
            }
            Place::Pinned(..) => {
                out.put_i32(0, 1);
                out.put_i32(4, current() as i32);
                out.put_u64(8, address);
                out.put_u64(16, address);
            }
            Place::Unknown => {
                out.put_i32(4, -2);
                out.put_u64(16, address);
            }
        }
    }))
}

/// One attribute of an address, as the driver answers it.
pub(crate) fn pointer_attribute(data: OutArray<u8>, attribute: i32, address: u64) -> i32 {
    status(place(address).and_then(|place| {
        let (start, size, device) = match place {
            Place::Device(device, start, size) | Place::Managed(device, start, size) => {
                (start, size, device)
            }
            Place::Pinned(start, size) => (start as u64, size as u64, current() as i32),
            Place::Unknown => return Err(code::INVALID_VALUE),
        };
        let on_device = matches!(place, Place::Device(..));
        let managed = matches!(place, Place::Managed(..));
        match attribute {
            1 => data.write_at(0, context_of(device)),
            2 => data.write_at(0, if on_device || managed { 2_u32 } else { 1 }),
            4 if on_device => return Err(code::INVALID_VALUE),
            3 | 4 => data.write_at(0, address),
            8 => data.write_at(0, u32::from(managed)),
            6 | 10 => data.write_at(0, 0_u32),
            // 7 queries a number that is the buffer's alone.
            7 | 11 => data.write_at(0, start),
            9 => data.write_at(0, device),
            12 => data.write_at(0, size as usize),
            13 => data.write_at(0, 1_u32),
            _ => return Err(code::NOT_SUPPORTED),
        }
        Ok(())
    }))
}

pub(crate) fn pointer_attribute_list(
    _count: u32,
    _attributes: &[i32],
    targets: AttributeTargets<'_>,
    address: u64,
) -> i32 {
    for (attribute, data) in targets.iter() {
        pointer_attribute(data, attribute, address);
    }
    code::SUCCESS
}

pub(crate) fn address_range(base: Out<u64>, size: Out<usize>, address: u64) -> i32 {
    status(place(address).and_then(|place| match place {
        Place::Device(_, start, length) | Place::Managed(_, start, length) => {
            base.set(start);
            size.set(length as usize);
            Ok(())
        }
        _ => Err(code::INVALID_VALUE),
    }))
}

// Virtual memory.

pub(crate) fn reserve(out: Out<u64>, size: usize, _align: usize, _hint: u64, _flags: u64) -> i32 {
    status(use_current().and_then(|device| {
        let (_, mut accounts) = accounts()?;
        out.set(accounts.reserve(device, size as u64)?);
        Ok(())
    }))
}

/// Does `act` with the accounts of the device that `address` belongs to.
fn at_device(address: u64, act: impl FnOnce(&mut machine::Accounts, usize) -> Answer) -> i32 {
    status(accounts().and_then(|(machine, mut accounts)| {
        let device = machine.device_of(address).ok_or(code::INVALID_VALUE)?;
        act(&mut accounts, device)
    }))
}

pub(crate) fn unreserve(address: u64, size: usize) -> i32 {
    at_device(address, |accounts, device| {
        accounts.unreserve(device, address, size as u64)
    })
}

/// The device that a description of physical memory requests: `location` is 8
/// bytes in, of type 1 for a device and then its number.
fn located(properties: Option<[u8; 16]>) -> Answer<usize> {
    let properties = properties.ok_or(code::INVALID_VALUE)?;
    let kind: i32 = field(&properties, 8).ok_or(code::INVALID_VALUE)?;
    let device: i32 = field(&properties, 12).ok_or(code::INVALID_VALUE)?;
    if kind != 1 {
        return Err(code::NOT_SUPPORTED);
    }
    machine()?.physical(device)
}

pub(crate) fn create(out: Out<Ptr>, size: usize, properties: Option<[u8; 16]>, _flags: u64) -> i32 {
    status(located(properties).and_then(|device| {
        use_current()?;
        let (_, mut accounts) = accounts()?;
        let handle = accounts.create(device, size as u64)?;
        out.set(Ptr(handle as usize));
        Ok(())
    }))
}

pub(crate) fn release(handle: u64) -> i32 {
    status(accounts().and_then(|(_, mut accounts)| accounts.release(handle)))
}

pub(crate) fn map(address: u64, size: usize, offset: usize, handle: u64, _flags: u64) -> i32 {
    status(accounts().and_then(|(_, mut accounts)| {
        let (device, memory) = accounts.physical(handle)?;
        let whole = accounts.device(device).physical_size(memory);
        if offset != 0 || whole != Some(size as u64) {
            return Err(code::INVALID_VALUE);
        }
        accounts.map(address, handle)
    }))
}

pub(crate) fn unmap(address: u64, size: usize) -> i32 {
    let status = at_device(address, |accounts, device| {
        accounts.unmap(device, address, size as u64)
    });
    if status == code::SUCCESS {
        // A later mapping there has other bytes.
        values::forget(address, size as u64);
    }
    status
}

pub(crate) fn set_access(address: u64, _size: usize, _who: Ptr, _count: usize) -> i32 {
    at_device(address, |accounts, device| {
        let mapped = accounts.device(device).mapped_at(DeviceAddr(address));
        mapped.map(|_| ()).ok_or(code::INVALID_VALUE)
    })
}

pub(crate) fn get_access(flags: Out<u64>, _location: Ptr, _address: u64) -> i32 {
    flags.set(3);
    code::SUCCESS
}

pub(crate) fn granularity(out: Out<usize>, _properties: Ptr, _option: i32) -> i32 {
    out.set(tonnage_alloc::GRANULARITY as usize);
    code::SUCCESS
}

pub(crate) fn retain_handle(out: Out<u64>, address: Ptr) -> i32 {
    at_device(address.0 as u64, |accounts, device| {
        out.set(accounts.retain_at(device, address.0 as u64)?);
        Ok(())
    })
}

pub(crate) fn physical_properties(out: OutBytes<32>, handle: u64) -> i32 {
    status(accounts().and_then(|(machine, accounts)| {
        let (device, _) = accounts.physical(handle)?;
        out.put_i32(0, 1);
        out.put_i32(8, 1);
        out.put_i32(12, machine.visible_number(device));
        Ok(())
    }))
}

// Physical memory between processes: the file behind the descriptor reports how large it is. The memory stays charged
// to the process that made it.

/// How a handle goes to another process: as a file descriptor.
const BY_DESCRIPTOR: i32 = 1;
const PASSED: [u8; 8] = *b"tonnage\0";

pub(crate) fn export_handle(out: Out<i32>, handle: u64, kind: i32, _flags: u64) -> i32 {
    if kind != BY_DESCRIPTOR {
        return code::NOT_SUPPORTED;
    }
    status(accounts().and_then(|(_, mut accounts)| {
        let size = accounts.export(handle)?;
        let file = files::passable(&[PASSED, size.to_ne_bytes()].concat());
        out.set(file.map_err(|_| code::OUT_OF_MEMORY)?);
        Ok(())
    }))
}

pub(crate) fn import_handle(out: Out<Ptr>, from: Ptr, kind: i32) -> i32 {
    if kind != BY_DESCRIPTOR {
        return code::NOT_SUPPORTED;
    }
    status(use_current().and_then(|device| {
        let descriptor = i32::try_from(from.0).map_err(|_| code::INVALID_VALUE)?;
        let bytes = files::passed::<16>(descriptor).filter(|bytes| bytes.starts_with(&PASSED));
        let size = bytes.and_then(|bytes| field(&bytes, 8));
        let (_, mut accounts) = accounts()?;
        let handle = accounts.import(device, size.ok_or(code::INVALID_VALUE)?);
        out.set(Ptr(handle as usize));
        Ok(())
    }))
}

// Stream-ordered pools.

pub(crate) fn malloc_async(out: Out<u64>, size: usize, stream: Ptr) -> i32 {
    status(use_current().and_then(|device| {
        let (_, mut accounts) = accounts()?;
        let pool = accounts.current_pool(device);
        if size > 0 {
            out.set(accounts.pool_malloc(pool, size as u64, stream)?);
        }
        Ok(())
    }))
}

pub(crate) fn malloc_from_pool(out: Out<u64>, size: usize, pool: Ptr, stream: Ptr) -> i32 {
    status(use_current().and_then(|_| {
        let (_, mut accounts) = accounts()?;
        out.set(accounts.pool_malloc(pool, size as u64, stream)?);
        Ok(())
    }))
}

pub(crate) fn free_async(address: u64, stream: Ptr) -> i32 {
    if address == 0 {
        return code::SUCCESS;
    }
    status(accounts().and_then(|(_, mut accounts)| accounts.pool_free(address, stream)))
}

pub(crate) fn free_async_ptr(address: Ptr, stream: Ptr) -> i32 {
    free_async(address.0 as u64, stream)
}

pub(crate) fn default_pool(out: Out<Ptr>, device: i32) -> i32 {
    status(accounts().and_then(|(machine, accounts)| {
        out.set(accounts.default_pool(machine.physical(device)?));
        Ok(())
    }))
}

pub(crate) fn current_pool(out: Out<Ptr>, device: i32) -> i32 {
    status(accounts().and_then(|(machine, accounts)| {
        out.set(accounts.current_pool(machine.physical(device)?));
        Ok(())
    }))
}

pub(crate) fn set_current_pool(device: i32, pool: Ptr) -> i32 {
    status(accounts().and_then(|(machine, mut accounts)| {
        accounts.set_current_pool(machine.physical(device)?, pool)
    }))
}

pub(crate) fn create_pool(out: Out<Ptr>, properties: Option<[u8; 16]>) -> i32 {
    status(located(properties).and_then(|device| {
        let (_, mut accounts) = accounts()?;
        let handle = Ptr::fresh();
        let pool = Pool {
            device,
            pool: tonnage_alloc::StreamPool::default(),
        };
        accounts.pools.insert(handle, pool);
        out.set(handle);
        Ok(())
    }))
}

pub(crate) fn destroy_pool(pool: Ptr) -> i32 {
    // A block that is still allocated keeps its chunks, as the driver does.
    status(accounts().and_then(|(_, mut accounts)| accounts.pool_trim(pool, 0)))
}

pub(crate) fn trim_pool(pool: Ptr, keep: usize) -> i32 {
    status(accounts().and_then(|(_, mut accounts)| accounts.pool_trim(pool, keep as u64)))
}

/// Attributes 1 to 3 are reuse policies (32 bits); then the release threshold,
/// and what is reserved and used, now and at most (64 bits).
pub(crate) fn pool_attribute(pool: Ptr, attribute: i32, value: OutArray<u8>) -> i32 {
    status(accounts().and_then(|(_, accounts)| {
        let pool = &accounts.pools.get(&pool).ok_or(code::INVALID_VALUE)?.pool;
        match attribute {
            1..=3 => value.write_at(0, 1_i32),
            4 => value.write_at(0, pool.release_threshold),
            5 => value.write_at(0, pool.reserved()),
            6 => value.write_at(0, pool.peak_reserved()),
            7 => value.write_at(0, pool.used()),
            8 => value.write_at(0, pool.peak_used()),
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }))
}

pub(crate) fn set_pool_attribute(pool: Ptr, attribute: i32, value: &[u8]) -> i32 {
    status(accounts().and_then(|(_, mut accounts)| {
        let pool = accounts.pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        if attribute == 4 {
            pool.pool.release_threshold = field(value, 0).ok_or(code::INVALID_VALUE)?;
        }
        Ok(())
    }))
}

/// Memory of graphs: none is kept apart.
pub(crate) fn graph_memory(_device: i32, _attribute: i32, _value: Out<u64>) -> i32 {
    code::SUCCESS
}

pub(crate) fn set_graph_memory(_device: i32, _attribute: i32, _value: Ptr) -> i32 {
    code::SUCCESS
}

// Between processes: the handle reports whose memory it is, where and how large. The memory stays charged to the
// process that made it, and has other addresses in one that opens it.

pub(crate) fn ipc_handle(out: OutBytes<64>, address: u64) -> i32 {
    status(place(address).and_then(|place| match place {
        Place::Device(_, start, size) => {
            out.put_u64(0, start);
            out.put_i32(8, std::process::id() as i32);
            out.put_u64(16, size);
            Ok(())
        }
        _ => Err(code::INVALID_VALUE),
    }))
}

pub(crate) fn ipc_handle_ptr(out: OutBytes<64>, address: Ptr) -> i32 {
    ipc_handle(out, address.0 as u64)
}

pub(crate) fn ipc_open(out: Out<u64>, handle: ByValue<64>, _flags: u32) -> i32 {
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&handle.0[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let (address, owner, size) = (number(0), number(8) as i32, number(16));
    status(use_current().and_then(|_| {
        let (machine, mut accounts) = accounts()?;
        let device = machine.device_of(address).ok_or(code::INVALID_VALUE)?;
        out.set(accounts.open(device, (owner, address), size)?);
        Ok(())
    }))
}

pub(crate) fn ipc_close(address: u64) -> i32 {
    status(use_current().and_then(|_| accounts()?.1.close(address)))
}

pub(crate) fn ipc_event(_out: OutBytes<64>, _event: Ptr) -> i32 {
    code::SUCCESS
}

pub(crate) fn ipc_open_event(out: Out<Ptr>, _handle: ByValue<64>) -> i32 {
    out.set(Ptr::fresh());
    code::SUCCESS
}

// Copies and fills.

/// Copies one region to another, unless a graph is being captured: then it would happen at a launch.
pub(crate) fn copy(to: Region, from: Region, stream: Ptr) -> i32 {
    status(use_current().map(|_| {
        uses::copy(to, from);
        if !super::stream::note_work(stream) {
            copy_now(to, from);
        }
    }))
}

fn copy_now(to: Region, from: Region) {
    let length = to.len().min(from.len());
    // SAFETY: regions are of a device or may be used by the call.
    unsafe { values::copy(side(to), side(from), length, is_seen()) };
}

fn side(region: Region) -> Side {
    let address = region.address().0 as u64;
    let is_device = machine().is_ok_and(|machine| machine.device_of(address).is_some());
    Side { address, is_device }
}

/// Copies `height` rows of `width` bytes.
pub(crate) fn copy_rows(to: Rows, from: Rows, width: usize, height: usize, stream: Ptr) -> i32 {
    status(use_current().map(|_| {
        uses::touch(
            [to, from]
                .map(|rows| rows.region.address().0 as u64)
                .into_iter(),
        );
        if !super::stream::note_work(stream) {
            for row in 0..height {
                let to_row = to.region.part(row.saturating_mul(to.pitch), width);
                let from_row = from.region.part(row.saturating_mul(from.pitch), width);
                let (Some(to_row), Some(from_row)) = (to_row, from_row) else {
                    break;
                };
                copy_now(to_row, from_row);
            }
        }
    }))
}

/// Fills a region with a pattern.
pub(crate) fn fill(to: Region, pattern: &[u8], stream: Ptr) -> i32 {
    status(use_current().map(|_| {
        uses::touch([to.address().0 as u64].into_iter());
        if !super::stream::note_work(stream) {
            let count = to.len() / pattern.len().max(1);
            // SAFETY: the region is of a device or may be written by the call.
            unsafe { values::fill(side(to), pattern, count) };
        }
    }))
}

// Queries of the Python hook.

/// The knowledge of a range: 0 nothing, 1 drawn, 2 known; 3 where no values can
/// be kept, because the range is not mapped or a graph is being captured. Pinned
/// memory of the host, which kernels may use, has all its values.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_values_state(address: u64, size: u64) -> u8 {
    guard(3, || {
        values::before_use(address, size);
        if super::stream::capturing() {
            return 3;
        }
        if let Some(state) = values::state(address, size) {
            return state;
        }
        let pinned = pinned_range(address as usize);
        let inside = pinned
            .is_some_and(|(start, length)| address.saturating_add(size) <= (start + length) as u64);
        if inside { 2 } else { 3 }
    })
}

/// The pinned memory of the host that an address is in: its start, and its size in `size`; 0 if there is none.
///
/// # Safety
/// `size` points to a writable number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_values_pinned(address: u64, size: *mut u64) -> u64 {
    guard(0, || {
        let Some((start, length)) = pinned_range(address as usize) else {
            return 0;
        };
        // SAFETY: promised by the caller.
        unsafe { *size = length as u64 };
        start as u64
    })
}
