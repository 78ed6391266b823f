// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine a process believes to run on: its devices and their books.
//!
//! Made at the first CUDA call, from the configuration that `tonnage run`
//! wrote. One lock guards all of it: calls that move memory are few, and those
//! that are many (launches, event queries) do not take it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tonnage_alloc::{
    AddressOrder, Device, DeviceAddr, DeviceError, SimConfig, SimDevice, StreamPool,
};
use tonnage_capture::log::{CallKind, DriverCall};
use tonnage_capture::{AddressOrderName, DeviceProfile, RunConfig};

use crate::ffi::Ptr;
use crate::{recorder, values};

/// Status codes that the runtime and the driver share.
pub(crate) mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NOT_INITIALIZED: i32 = 3;
    pub(crate) const NO_DEVICE: i32 = 100;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_CONTEXT: i32 = 201;
    pub(crate) const NO_KERNEL_IMAGE: i32 = 209;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
    pub(crate) const CAPTURE_INVALIDATED: i32 = 901;
}

/// What calls answer: nothing, or the status code of a failure.
pub(crate) type Answer<T = ()> = Result<T, i32>;

/// Turns an [`Answer`] into the number C wants.
pub(crate) fn status(answer: Answer) -> i32 {
    answer.err().unwrap_or(code::SUCCESS)
}

/// Addresses of device 0 start here: far from where Linux puts programs and
/// libraries, and the same in every run so that recordings can be compared.
const ADDRESS_BASE: u64 = 0x1000_0000_0000;
/// All devices together get this many bytes of addresses.
const ADDRESS_SPAN: u64 = 64 << 40;

/// A memory pool for `cudaMallocAsync`, of the device with this number.
pub(crate) struct Pool {
    pub(crate) device: usize,
    pub(crate) pool: StreamPool,
}

/// One device of the machine.
pub(crate) struct DeviceState {
    pub(crate) sim: SimDevice,
    /// What the last report to the ledger said this process holds.
    current_pool: Ptr,
    default_pool: Ptr,
}

/// What is behind the lock.
pub(crate) struct Books {
    /// All devices of the machine, by their physical number.
    devices: Vec<DeviceState>,
    pub(crate) pools: BTreeMap<Ptr, Pool>,
    /// Pinned host memory: start to length, and whether we allocated it.
    pub(crate) pinned: BTreeMap<usize, (usize, bool)>,
    /// Which device each handle of physical memory belongs to.
    physical: BTreeMap<u64, (usize, tonnage_alloc::PhysicalId)>,
}

/// The machine, as far as it does not change.
pub(crate) struct Machine {
    pub(crate) config: RunConfig,
    /// Physical numbers of the devices that programs see.
    pub(crate) visible: Vec<usize>,
    span: u64,
    books: Mutex<Books>,
}

static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();
/// Set in a child that was forked off after CUDA was in use, as real CUDA is useless there.
static FORKED: AtomicBool = AtomicBool::new(false);
static ANY_CONTEXT: AtomicBool = AtomicBool::new(false);
/// Bit `n` is set once device `n` has a context, so that asking costs no lock.
static CONTEXTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The visible number of the device this thread works on.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

extern "C" fn after_fork() {
    if ANY_CONTEXT.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// The machine, or why there is none.
pub(crate) fn machine() -> Answer<&'static Machine> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(code::NOT_INITIALIZED);
    }
    MACHINE
        .get_or_init(Machine::open)
        .as_ref()
        .ok_or(code::NO_DEVICE)
}

/// The machine, with its books.
pub(crate) fn books() -> Answer<(&'static Machine, MutexGuard<'static, Books>)> {
    let machine = machine()?;
    let books = machine.books.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((machine, books))
}

/// The visible number of this thread's device.
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// Makes the device with this visible number the thread's, without using it yet.
pub(crate) fn set_current(device: usize) {
    CURRENT.set(device);
}

/// The physical number of this thread's device, whose context is open afterwards.
pub(crate) fn use_current() -> Answer<usize> {
    let machine = machine()?;
    let device = machine.physical(CURRENT.get() as i32)?;
    if CONTEXTS.load(Ordering::Relaxed) & (1 << device) == 0 {
        let (_, mut books) = books()?;
        books.open_context(device)?;
    }
    Ok(device)
}

/// Whether the device with this physical number is in use by this process.
pub(crate) fn has_context(device: usize) -> bool {
    CONTEXTS.load(Ordering::Relaxed) & (1 << device) != 0
}

/// Which devices of `total` a program may see, by the rule of `CUDA_VISIBLE_DEVICES`.
///
/// Numbers or prefixes of UUIDs, up to the first that names no device.
fn visible_devices(total: usize, variable: Option<&str>) -> Vec<usize> {
    let Some(list) = variable else {
        return (0..total).collect();
    };
    let mut visible = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let device = entry.parse::<usize>().ok().or_else(|| {
            let named = |device: &usize| uuid_text(*device).starts_with(entry);
            (!entry.is_empty())
                .then(|| (0..total).find(named))
                .flatten()
        });
        match device {
            Some(device) if device < total && !visible.contains(&device) => visible.push(device),
            _ => break,
        }
    }
    visible
}

/// The UUID of a device: made up, the same in every run, and plainly ours.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"tonnage-dry-run\0";
    uuid[15] = device as u8;
    uuid
}

/// The same as text, as NVML gives it.
pub(crate) fn uuid_text(device: usize) -> String {
    let number = u128::from_be_bytes(uuid(device));
    let hex = format!("{number:032x}");
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The PCI bus number of a device.
pub(crate) fn bus(device: usize) -> i32 {
    0x10 + device as i32
}

/// The PCI address of a device as text.
pub(crate) fn bus_text(device: usize) -> String {
    format!("0000:{:02X}:00.0", bus(device))
}

/// CUDA's version by the runtime library that the program has loaded: the last
/// minor version there could be, so that no program finds its driver too old.
fn loaded_cuda_version() -> i32 {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: only asks whether a library is loaded, by a zero-terminated name.
    let twelve = unsafe { !libc::dlopen(c"libcudart.so.12".as_ptr(), flags).is_null() };
    if twelve { 12090 } else { 13090 }
}

impl Machine {
    fn open() -> Option<Self> {
        let mut config = recorder::read_config()?;
        if config.cuda_version == 0 {
            config.cuda_version = loaded_cuda_version();
        }
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let visible = visible_devices(config.devices.len(), visible.as_deref());
        let count = config.devices.len().max(1) as u64;
        let span = (ADDRESS_SPAN / count).min(ADDRESS_SPAN / 8) & !((1 << 30) - 1);
        let order = match config.address_order {
            AddressOrderName::Descending => AddressOrder::Descending,
            AddressOrderName::Ascending => AddressOrder::Ascending,
        };
        let mut pools = BTreeMap::new();
        let devices = config
            .devices
            .iter()
            .enumerate()
            .map(|(index, profile)| {
                let default_pool = Ptr::fresh();
                let pool = Pool {
                    device: index,
                    pool: StreamPool::default(),
                };
                pools.insert(default_pool, pool);
                DeviceState {
                    sim: SimDevice::new(SimConfig {
                        total: profile.total,
                        context: profile.context,
                        order,
                        base: ADDRESS_BASE + index as u64 * span,
                        span,
                    }),
                    current_pool: default_pool,
                    default_pool,
                }
            })
            .collect();
        values::set_limit(config.value_limit as usize);
        Some(Self {
            config,
            visible,
            span,
            books: Mutex::new(Books {
                devices,
                pools,
                pinned: BTreeMap::new(),
                physical: BTreeMap::new(),
            }),
        })
    }

    /// The physical number of the device with this visible number.
    pub(crate) fn physical(&self, visible: i32) -> Answer<usize> {
        if self.visible.is_empty() {
            return Err(code::NO_DEVICE);
        }
        usize::try_from(visible)
            .ok()
            .and_then(|visible| self.visible.get(visible).copied())
            .ok_or(code::INVALID_DEVICE)
    }

    /// The profile of the device with this visible number.
    pub(crate) fn profile(&self, visible: i32) -> Answer<&DeviceProfile> {
        Ok(&self.config.devices[self.physical(visible)?])
    }

    /// The bytes of the device with this physical number.
    pub(crate) fn capacity(&self, device: usize) -> u64 {
        self.config
            .devices
            .get(device)
            .map_or(0, |profile| profile.total)
    }

    /// The physical number of the device that `address` belongs to, by its range alone.
    pub(crate) fn device_of(&self, address: u64) -> Option<usize> {
        let device = usize::try_from(address.checked_sub(ADDRESS_BASE)? / self.span).ok()?;
        (device < self.config.devices.len()).then_some(device)
    }

    /// The visible number of a device.
    pub(crate) fn visible_number(&self, device: usize) -> i32 {
        let position = self.visible.iter().position(|&d| d == device);
        position.map_or(-1, |position| position as i32)
    }

    /// Whether programs built for CUDA 13 run here, whose signatures differ from CUDA 12's.
    pub(crate) fn is_cuda_13(&self) -> bool {
        self.config.cuda_version >= 13000
    }
}

/// Reports a call and what it left behind; on a refusal, turns it into a status.
fn settle<T>(
    device: usize,
    sim: &SimDevice,
    kind: CallKind,
    size: u64,
    result: Result<T, DeviceError>,
    describe: impl FnOnce(&T) -> (u64, u64),
) -> Answer<T> {
    let call = |kind, address, size, extra| DriverCall {
        kind,
        device: device as u8,
        time: recorder::now(),
        address,
        size,
        extra,
        charged: sim.charged(),
        in_use: sim.charged(),
    };
    match result {
        Ok(value) => {
            let (address, extra) = describe(&value);
            recorder::call(&call(kind, address, size, extra));
            recorder::report_charge(device, sim);
            Ok(value)
        }
        Err(DeviceError::OutOfMemory { free, .. }) => {
            recorder::call(&call(CallKind::Refused, kind as u64, size, free));
            recorder::report_refusal(device);
            Err(code::OUT_OF_MEMORY)
        }
        Err(_) => Err(code::INVALID_VALUE),
    }
}

impl Books {
    /// The books of a device, with what other processes hold on it brought up to date.
    pub(crate) fn device(&mut self, device: usize) -> &mut SimDevice {
        let sim = &mut self.devices[device].sim;
        sim.set_outside(recorder::held_by_others(device));
        sim
    }

    fn open_context(&mut self, device: usize) -> Answer {
        let sim = self.device(device);
        let context = sim.config().context;
        if sim.context_open() {
            return Ok(());
        }
        let result = sim.open_context();
        settle(device, sim, CallKind::Context, context, result, |_| (0, 0))?;
        recorder::report_context(device, context);
        let (base, span) = (sim.config().base, sim.config().span);
        values::map_range(base, span);
        ANY_CONTEXT.store(true, Ordering::Relaxed);
        CONTEXTS.fetch_or(1 << device, Ordering::Relaxed);
        Ok(())
    }

    /// `cudaMalloc` on the device with this physical number.
    pub(crate) fn malloc(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = self.device(device);
        let result = sim.malloc(size);
        let addr = settle(device, sim, CallKind::Malloc, size, result, |addr| {
            (addr.0, 0)
        })?;
        Ok(addr.0)
    }

    /// `cudaFree`.
    pub(crate) fn free(&mut self, device: usize, address: u64) -> Answer {
        let sim = self.device(device);
        let size = sim.find(DeviceAddr(address)).map_or(0, |found| found.size);
        let result = sim.free(DeviceAddr(address));
        settle(device, sim, CallKind::Free, size, result, |()| (address, 0))?;
        values::forget(address, size);
        Ok(())
    }

    pub(crate) fn reserve(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = self.device(device);
        let result = sim.reserve(size);
        let addr = settle(device, sim, CallKind::Reserve, size, result, |addr| {
            (addr.0, 0)
        })?;
        Ok(addr.0)
    }

    pub(crate) fn unreserve(&mut self, device: usize, address: u64, size: u64) -> Answer {
        let sim = self.device(device);
        let result = sim.unreserve(DeviceAddr(address), size);
        settle(device, sim, CallKind::Unreserve, size, result, |()| {
            (address, 0)
        })
    }

    /// `cuMemCreate`: a handle that is unique over all devices.
    pub(crate) fn create(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = self.device(device);
        let result = sim.create(size);
        let handle = Ptr::fresh().0 as u64;
        let memory = settle(device, sim, CallKind::Create, size, result, |_| (handle, 0))?;
        self.physical.insert(handle, (device, memory));
        Ok(handle)
    }

    /// The device and memory behind a handle of physical memory.
    pub(crate) fn physical(&self, handle: u64) -> Answer<(usize, tonnage_alloc::PhysicalId)> {
        self.physical
            .get(&handle)
            .copied()
            .ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn release(&mut self, handle: u64) -> Answer {
        let (device, memory) = self.physical(handle)?;
        let sim = self.device(device);
        let size = sim.physical_size(memory).unwrap_or(0);
        let result = sim.release(memory);
        settle(device, sim, CallKind::Release, size, result, |()| {
            (handle, 0)
        })
    }

    /// The handle of the physical memory at `address`, with one more hold on it.
    pub(crate) fn retain_at(&mut self, device: usize, address: u64) -> Answer<u64> {
        let sim = &mut self.devices[device].sim;
        let memory = sim
            .mapped_at(DeviceAddr(address))
            .ok_or(code::INVALID_VALUE)?;
        sim.retain(memory).map_err(|_| code::INVALID_VALUE)?;
        let handle = self
            .physical
            .iter()
            .find(|(_, held)| **held == (device, memory))
            .map(|(handle, _)| *handle);
        handle.ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn map(&mut self, address: u64, handle: u64) -> Answer {
        let (device, memory) = self.physical(handle)?;
        let sim = self.device(device);
        let size = sim.physical_size(memory).unwrap_or(0);
        let result = sim.map(DeviceAddr(address), memory);
        settle(device, sim, CallKind::Map, size, result, |()| {
            (address, handle)
        })
    }

    pub(crate) fn unmap(&mut self, device: usize, address: u64, size: u64) -> Answer {
        let sim = self.device(device);
        let result = sim.unmap(DeviceAddr(address), size);
        settle(device, sim, CallKind::Unmap, size, result, |()| {
            (address, 0)
        })?;
        values::forget(address, size);
        Ok(())
    }

    /// `cudaMallocAsync` from this pool, or from the device's own.
    pub(crate) fn pool_malloc(&mut self, pool: Ptr, size: u64, stream: Ptr) -> Answer<u64> {
        let Pool { device, pool } = self.pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        let sim = &mut self.devices[*device].sim;
        sim.set_outside(recorder::held_by_others(*device));
        let result = pool.malloc(sim, size);
        let addr = settle(*device, sim, CallKind::PoolMalloc, size, result, |addr| {
            (addr.0, stream.0 as u64)
        })?;
        values::forget(addr.0, size);
        Ok(addr.0)
    }

    /// `cudaFreeAsync`; an address of no pool is freed as `cudaFree` would.
    pub(crate) fn pool_free(&mut self, address: u64, stream: Ptr) -> Answer {
        let addr = DeviceAddr(address);
        let owner = self
            .pools
            .values_mut()
            .find(|pool| pool.pool.size_of(addr).is_some());
        let Some(Pool { device, pool }) = owner else {
            let device = machine()?.device_of(address).ok_or(code::INVALID_VALUE)?;
            return self.free(device, address);
        };
        let sim = &mut self.devices[*device].sim;
        let size = pool.size_of(addr).unwrap_or(0);
        let mut result = pool.free(addr);
        // Work is done at once here, so every free is also a point at which the
        // pool may give back what it keeps too much of.
        let keep = pool.release_threshold;
        result = result.and_then(|()| pool.trim(sim, keep));
        settle(*device, sim, CallKind::PoolFree, size, result, |()| {
            (address, stream.0 as u64)
        })
    }

    /// The size of the pool block at `address`.
    pub(crate) fn pool_block(&self, address: u64) -> Option<u64> {
        let mut pools = self.pools.values();
        pools.find_map(|pool| pool.pool.size_of(DeviceAddr(address)))
    }

    /// Gives back what a pool holds beyond `keep` bytes.
    pub(crate) fn pool_trim(&mut self, pool: Ptr, keep: u64) -> Answer {
        let Pool { device, pool } = self.pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        let sim = &mut self.devices[*device].sim;
        pool.trim(sim, keep).map_err(|_| code::INVALID_VALUE)?;
        recorder::report_charge(*device, sim);
        Ok(())
    }

    /// The pool that `cudaMallocAsync` uses on a device.
    pub(crate) fn current_pool(&self, device: usize) -> Ptr {
        self.devices[device].current_pool
    }

    /// The pool a device was born with.
    pub(crate) fn default_pool(&self, device: usize) -> Ptr {
        self.devices[device].default_pool
    }

    /// Makes another pool the one `cudaMallocAsync` uses.
    pub(crate) fn set_current_pool(&mut self, device: usize, pool: Ptr) -> Answer {
        if !self.pools.contains_key(&pool) {
            return Err(code::INVALID_VALUE);
        }
        self.devices[device].current_pool = pool;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_follow_cudas_rule() {
        assert_eq!(visible_devices(3, None), [0, 1, 2]);
        assert_eq!(visible_devices(3, Some("2,0")), [2, 0]);
        assert_eq!(
            visible_devices(3, Some("1, 7, 0")),
            [1],
            "ends at the first unknown"
        );
        assert_eq!(visible_devices(3, Some("")), [0; 0]);
        assert_eq!(visible_devices(3, Some("-1")), [0; 0]);
        assert_eq!(visible_devices(3, Some(&uuid_text(2))), [2]);
        assert_eq!(visible_devices(3, Some("0,0")), [0]);
    }
}
