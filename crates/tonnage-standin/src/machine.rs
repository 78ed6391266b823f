// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated machine of a process: its devices and their accounts.
//!
//! Made at the first CUDA call, from the configuration that `tonnage run`
//! wrote. One lock guards all of it: calls that move memory are few, and those
//! that are many (launches, event queries) do not take it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tonnage_alloc::{
    AddressOrder, AllocationKind, Device, DeviceAddr, DeviceError, SimConfig, SimDevice,
    StreamPool, round_up,
};
use tonnage_capture::log::{CallKind, DriverCall};
use tonnage_capture::{AddressOrderName, DeviceProfile, RunConfig};

use crate::config::{self, Config};
use crate::ffi::Ptr;
use crate::fork::{Lazy, Lock};
use crate::ledger::{Charge, DeviceLock, ledger};
use crate::{foreign, fork, lag, recorder, values};

/// Status codes that the runtime and the driver share.
pub(crate) mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NOT_INITIALIZED: i32 = 3;
    pub(crate) const INVALID_SYMBOL: i32 = 13;
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

/// The answer of a call: nothing, or the status code of a failure.
pub(crate) type Answer<T = ()> = Result<T, i32>;

/// Turns an [`Answer`] into the number C wants.
pub(crate) fn status(answer: Answer) -> i32 {
    answer.err().unwrap_or(code::SUCCESS)
}

/// Addresses of device 0 start here: far from where Linux puts programs and
/// libraries, and the same in every run so that recordings can be compared.
/// Sanitizers keep their shadow memory there; AddressSanitizer leaves room
/// behind it, ThreadSanitizer before it.
const ADDRESS_BASE: u64 = if cfg!(tonnage_sanitizer = "address") {
    0x1100_0000_0000
} else if cfg!(tonnage_sanitizer = "thread") {
    0x0010_0000_0000
} else {
    0x1000_0000_0000
};
/// All devices together get this many bytes of addresses.
const ADDRESS_SPAN: u64 = if cfg!(tonnage_sanitizer = "thread") {
    448 << 30
} else {
    64 << 40
};
/// A device gets at most this, so that addresses do not depend on how many there are.
const MAX_DEVICE_SPAN: u64 = if cfg!(tonnage_sanitizer = "thread") {
    ADDRESS_SPAN / 2
} else {
    ADDRESS_SPAN / 8
};

/// A memory pool for `cudaMallocAsync`, of the device with this number.
pub(crate) struct Pool {
    pub(crate) device: usize,
    pub(crate) pool: StreamPool,
}

/// One device of the machine.
pub(crate) struct DeviceState {
    sim: SimDevice,
    current_pool: Ptr,
    default_pool: Ptr,
}

/// A range of pinned host memory.
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    /// Bytes that were requested.
    pub(crate) size: usize,
    /// Bytes that were mapped for it; `None` if the program brought its own memory.
    pub(crate) mapped: Option<usize>,
}

/// The data behind the lock.
pub(crate) struct Accounts {
    /// All devices of the machine, by their physical number.
    devices: Vec<DeviceState>,
    pub(crate) pools: BTreeMap<Ptr, Pool>,
    /// Pinned host memory by its first byte.
    pub(crate) pinned: BTreeMap<usize, Pinned>,
    /// Which device each handle of physical memory belongs to.
    physical: BTreeMap<u64, (usize, tonnage_alloc::PhysicalId)>,
    /// Handles of physical memory that other processes have too.
    exported: BTreeSet<u64>,
    /// Memory of other processes that this one has opened, by its first byte here.
    pub(crate) opened: BTreeMap<u64, Opened>,
}

/// Memory of another process, which stays charged to that one.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    /// The process that made it, and where it has it.
    pub(crate) owner: (i32, u64),
    pub(crate) device: usize,
    pub(crate) size: u64,
    /// How often it is open.
    pub(crate) holders: u32,
}

/// The machine, as far as it does not change.
pub(crate) struct Machine {
    pub(crate) config: RunConfig,
    /// Physical numbers of the devices of the machine that this process is on.
    pub(crate) own: Range<usize>,
    /// Physical numbers of the devices that programs see.
    pub(crate) visible: Vec<usize>,
    span: u64,
    accounts: Lock<Accounts>,
}

/// The machine of this process; the second is that of a variant, see [`crate::variant::tonnage_join`].
static MACHINES: [Lazy<Option<Machine>>; 2] = [const { Lazy::new() }; 2];
static ANY_CONTEXT: AtomicBool = AtomicBool::new(false);
/// Bit `n` is set once device `n` has a context, so that a query costs no lock.
static CONTEXTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The visible number of the device this thread works on.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread has a current context. A retained primary context is not current.
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has a current context: that of its device.
pub(crate) fn is_bound() -> bool {
    BOUND.get()
}

/// Makes the context of this thread's device its current one, or leaves the thread without a context.
pub(crate) fn set_bound(bound: bool) {
    BOUND.set(bound);
}

/// This process was forked off.
pub(crate) fn note_fork() {
    if ANY_CONTEXT.load(Ordering::Relaxed) {
        config::lose_devices();
    }
}

/// Whether this process, or one it was forked off from, has used a device.
pub(crate) fn is_used() -> bool {
    ANY_CONTEXT.load(Ordering::Relaxed)
}

/// The machine, or why there is none.
pub(crate) fn machine() -> Answer<&'static Machine> {
    if config::has_lost_devices() {
        return Err(code::NOT_INITIALIZED);
    }
    MACHINES[fork::run_number()]
        .get_or_init(Machine::open)
        .as_ref()
        .ok_or(code::NO_DEVICE)
}

/// The machine, with its accounts.
pub(crate) fn accounts() -> Answer<(&'static Machine, MutexGuard<'static, Accounts>)> {
    let machine = machine()?;
    let accounts = machine.accounts.lock();
    Ok((machine, accounts))
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
        foreign::device_used();
        let (_, mut accounts) = accounts()?;
        accounts.open_context(device)?;
    }
    set_bound(true);
    Ok(device)
}

/// Whether the device with this physical number is in use by this process.
pub(crate) fn has_context(device: usize) -> bool {
    CONTEXTS.load(Ordering::Relaxed) & (1 << device) != 0
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
    // SAFETY: only queries whether a library is loaded, by a zero-terminated name.
    let twelve = unsafe { !libc::dlopen(c"libcudart.so.12".as_ptr(), flags).is_null() };
    if twelve { 12090 } else { 13090 }
}

impl Machine {
    fn open() -> Option<Self> {
        let Config { run, own, visible } = config::config()?;
        let mut config = run.clone();
        if config.cuda_version == 0 {
            config.cuda_version = loaded_cuda_version();
        }
        let count = config.devices.len().max(1) as u64;
        let span = (ADDRESS_SPAN / count).min(MAX_DEVICE_SPAN) & !((1 << 30) - 1);
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
                let sim = SimDevice::new(SimConfig {
                    total: profile.total,
                    context: profile.context,
                    order,
                    base: ADDRESS_BASE + index as u64 * span,
                    span,
                });
                DeviceState {
                    sim: if config.unlimited {
                        sim.without_limit()
                    } else {
                        sim
                    },
                    current_pool: default_pool,
                    default_pool,
                }
            })
            .collect();
        values::set_limit(config.value_limit as usize);
        lag::set(config.lag);
        let accounts = Accounts {
            devices,
            pools,
            pinned: BTreeMap::new(),
            physical: BTreeMap::new(),
            exported: BTreeSet::new(),
            opened: BTreeMap::new(),
        };
        Some(Self {
            config,
            own: own.clone(),
            visible: visible.clone(),
            span,
            accounts: Lock::forgotten_in_child(accounts, note_fork),
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

    /// How many GPUs this machine has.
    pub(crate) fn gpus(&self) -> usize {
        self.own.len()
    }

    /// Whether the job is known to be on this machine alone.
    pub(crate) fn is_alone(&self) -> bool {
        self.config.machines <= 1 && !self.config.absent_ranks
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

    /// The first address of a device, and how many it has.
    pub(crate) fn addresses(&self, device: usize) -> (u64, u64) {
        (ADDRESS_BASE + device as u64 * self.span, self.span)
    }

    /// The addresses of all devices.
    pub(crate) fn all_addresses(&self) -> std::ops::Range<u64> {
        ADDRESS_BASE..ADDRESS_BASE + self.config.devices.len() as u64 * self.span
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

/// The effect of a call, for its row in the log.
struct Report<'a, T> {
    kind: CallKind,
    /// Bytes requested or given back.
    size: u64,
    /// The address or handle, and what depends on the kind.
    describe: &'a dyn Fn(&T) -> (u64, u64),
}

/// Does `act` with the accounts of a device while no other process of the run can change it, and reports
/// the call with what it left charged; a refusal becomes a status.
fn settle<T>(
    device: usize,
    sim: &mut SimDevice,
    act: impl FnOnce(&mut SimDevice) -> Result<T, DeviceError>,
    report: &Report<'_, T>,
) -> Answer<T> {
    let (result, charge) = alone(device, sim, act);
    let call = |kind, address, extra| {
        recorder::call(&DriverCall {
            kind,
            device: device as u8,
            time: recorder::now(),
            address,
            size: report.size,
            extra,
            charged: charge.own,
            in_use: charge.in_use,
        });
    };
    match result {
        Ok(value) => {
            let (address, extra) = (report.describe)(&value);
            call(report.kind, address, extra);
            Ok(value)
        }
        Err(DeviceError::OutOfMemory { free, .. }) => {
            call(CallKind::Refused, report.kind as u64, free);
            recorder::report_refusal(device);
            Err(code::OUT_OF_MEMORY)
        }
        Err(_) => Err(code::INVALID_VALUE),
    }
}

/// Does `act` with the accounts of a device, which know what other processes hold on it and are the only
/// ones that change meanwhile.
fn alone<T>(
    device: usize,
    sim: &mut SimDevice,
    act: impl FnOnce(&mut SimDevice) -> T,
) -> (T, Charge) {
    let lock = ledger().and_then(|ledger| ledger.lock(device));
    sim.set_outside(lock.as_ref().map_or(0, DeviceLock::outside));
    let result = act(sim);
    let own = sim.own_charged();
    let in_use = lock.map_or(own, |lock| lock.set_own(own));
    (result, Charge { own, in_use })
}

/// Bytes in whole pieces of the device.
fn whole_pieces(size: u64) -> u64 {
    round_up(size, tonnage_alloc::GRANULARITY).unwrap_or(size)
}

impl Accounts {
    /// The accounts of a device as far as this process alone is concerned.
    pub(crate) fn device(&self, device: usize) -> &SimDevice {
        &self.devices[device].sim
    }

    /// Bytes of a device that are free, and all it has.
    pub(crate) fn memory(&mut self, device: usize) -> (u64, u64) {
        let sim = &mut self.devices[device].sim;
        let (free, _) = alone(device, sim, |sim| sim.free_bytes());
        (free, sim.total())
    }

    fn open_context(&mut self, device: usize) -> Answer {
        let sim = &mut self.devices[device].sim;
        let context = sim.config().context;
        if sim.context_open() {
            return Ok(());
        }
        let report = Report {
            kind: CallKind::Context,
            size: context,
            describe: &|_| (0, 0),
        };
        settle(device, sim, SimDevice::open_context, &report)?;
        recorder::report_context(device, context);
        let (base, span) = (sim.config().base, sim.config().span);
        values::map_range(base, span);
        ANY_CONTEXT.store(true, Ordering::Relaxed);
        CONTEXTS.fetch_or(1 << device, Ordering::Relaxed);
        Ok(())
    }

    /// `cudaMalloc` on the device with this physical number.
    pub(crate) fn malloc(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = &mut self.devices[device].sim;
        let report = Report {
            kind: CallKind::Malloc,
            size,
            describe: &|addr: &DeviceAddr| (addr.0, 0),
        };
        Ok(settle(device, sim, |sim| sim.malloc(size), &report)?.0)
    }

    /// `cudaMallocManaged`: the log has the pieces it takes and, beside them, what was requested.
    pub(crate) fn malloc_managed(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = &mut self.devices[device].sim;
        let report = Report {
            kind: CallKind::ManagedAlloc,
            size: whole_pieces(size),
            describe: &|addr: &DeviceAddr| (addr.0, size),
        };
        Ok(settle(device, sim, |sim| sim.malloc_managed(size), &report)?.0)
    }

    /// `cudaFree`.
    pub(crate) fn free(&mut self, device: usize, address: u64) -> Answer {
        let sim = &mut self.devices[device].sim;
        let found = sim.find(DeviceAddr(address));
        let size = found.map_or(0, |found| found.size);
        let managed = found.is_some_and(|found| found.kind == AllocationKind::Managed);
        let report = Report {
            kind: if managed {
                CallKind::ManagedFree
            } else {
                CallKind::Free
            },
            size: if managed { whole_pieces(size) } else { size },
            describe: &|()| (address, 0),
        };
        settle(device, sim, |sim| sim.free(DeviceAddr(address)), &report)?;
        values::forget(address, size);
        Ok(())
    }

    pub(crate) fn reserve(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = &mut self.devices[device].sim;
        let report = Report {
            kind: CallKind::Reserve,
            size,
            describe: &|addr: &DeviceAddr| (addr.0, 0),
        };
        Ok(settle(device, sim, |sim| sim.reserve(size), &report)?.0)
    }

    pub(crate) fn unreserve(&mut self, device: usize, address: u64, size: u64) -> Answer {
        let sim = &mut self.devices[device].sim;
        let report = Report {
            kind: CallKind::Unreserve,
            size,
            describe: &|()| (address, 0),
        };
        let act = |sim: &mut SimDevice| sim.unreserve(DeviceAddr(address), size);
        settle(device, sim, act, &report)
    }

    /// `cudaIpcOpenMemHandle`: memory of another process gets addresses here that nothing else has. Both processes
    /// number their own memory from the same address on.
    pub(crate) fn open(&mut self, device: usize, owner: (i32, u64), size: u64) -> Answer<u64> {
        let mut opened = self.opened.iter_mut();
        if let Some((&address, opened)) = opened.find(|(_, opened)| opened.owner == owner) {
            opened.holders += 1;
            return Ok(address);
        }
        let sim = &mut self.devices[device].sim;
        let address = sim.reserve(whole_pieces(size));
        let address = address.map_err(|_| code::OUT_OF_MEMORY)?.0;
        values::share(address, size);
        let opened = Opened {
            owner,
            device,
            size,
            holders: 1,
        };
        self.opened.insert(address, opened);
        Ok(address)
    }

    /// `cudaIpcCloseMemHandle`.
    pub(crate) fn close(&mut self, address: u64) -> Answer {
        let Some(opened) = self.opened.get_mut(&address) else {
            return Err(code::INVALID_VALUE);
        };
        opened.holders -= 1;
        if opened.holders > 0 {
            return Ok(());
        }
        let Opened { device, size, .. } = *opened;
        self.opened.remove(&address);
        let sim = &mut self.devices[device].sim;
        let given_back = sim.unreserve(DeviceAddr(address), whole_pieces(size));
        values::forget(address, size);
        values::unshare(address, size);
        given_back.map_err(|_| code::INVALID_VALUE)
    }

    /// The memory of another process that an address is in: its start, its device and its size.
    pub(crate) fn opened_at(&self, address: u64) -> Option<(u64, usize, u64)> {
        let (&start, opened) = self.opened.range(..=address).next_back()?;
        (address - start < opened.size).then_some((start, opened.device, opened.size))
    }

    /// `cuMemCreate`: a handle that is unique over all devices.
    pub(crate) fn create(&mut self, device: usize, size: u64) -> Answer<u64> {
        let sim = &mut self.devices[device].sim;
        let handle = Ptr::fresh().0 as u64;
        let report = Report {
            kind: CallKind::Create,
            size,
            describe: &|_| (handle, 0),
        };
        let memory = settle(device, sim, |sim| sim.create(size), &report)?;
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

    /// `cuMemExportToShareableHandle`: from now on others may write to it, unseen here.
    pub(crate) fn export(&mut self, handle: u64) -> Answer<u64> {
        let (device, memory) = self.physical(handle)?;
        let sim = &self.devices[device].sim;
        let size = sim.physical_size(memory).ok_or(code::INVALID_VALUE)?;
        for address in sim.mappings_of(memory) {
            values::share(address.0, size);
        }
        self.exported.insert(handle);
        Ok(size)
    }

    /// `cuMemImportFromShareableHandle`. The log does not have it: nothing is charged for it in this process.
    pub(crate) fn import(&mut self, device: usize, size: u64) -> u64 {
        let handle = Ptr::fresh().0 as u64;
        let memory = self.devices[device].sim.import(size);
        self.physical.insert(handle, (device, memory));
        self.exported.insert(handle);
        handle
    }

    pub(crate) fn release(&mut self, handle: u64) -> Answer {
        let (device, memory) = self.physical(handle)?;
        let sim = &mut self.devices[device].sim;
        if sim.is_imported(memory) {
            return sim.release(memory).map_err(|_| code::INVALID_VALUE);
        }
        let report = Report {
            kind: CallKind::Release,
            size: sim.physical_size(memory).unwrap_or(0),
            describe: &|()| (handle, 0),
        };
        settle(device, sim, |sim| sim.release(memory), &report)
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
        let sim = &mut self.devices[device].sim;
        let report = Report {
            kind: CallKind::Map,
            size: sim.physical_size(memory).unwrap_or(0),
            describe: &|()| (address, handle),
        };
        let size = report.size;
        let act = |sim: &mut SimDevice| sim.map(DeviceAddr(address), size, memory);
        if sim.is_imported(memory) {
            act(sim).map_err(|_| code::INVALID_VALUE)?;
        } else {
            settle(device, sim, act, &report)?;
        }
        if self.exported.contains(&handle) {
            values::share(address, size);
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, device: usize, address: u64, size: u64) -> Answer {
        let sim = &mut self.devices[device].sim;
        let report = Report {
            kind: CallKind::Unmap,
            size,
            describe: &|()| (address, 0),
        };
        let act = |sim: &mut SimDevice| sim.unmap(DeviceAddr(address), size);
        let memory = sim.mapped_at(DeviceAddr(address));
        if memory.is_some_and(|memory| sim.is_imported(memory)) {
            act(sim).map_err(|_| code::INVALID_VALUE)?;
        } else {
            settle(device, sim, act, &report)?;
        }
        values::forget(address, size);
        values::unshare(address, size);
        Ok(())
    }

    /// `cudaMallocAsync` from this pool, or from the device's own.
    pub(crate) fn pool_malloc(&mut self, pool: Ptr, size: u64, stream: Ptr) -> Answer<u64> {
        let Pool { device, pool } = self.pools.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        let sim = &mut self.devices[*device].sim;
        let report = Report {
            kind: CallKind::PoolMalloc,
            size,
            describe: &|addr: &DeviceAddr| (addr.0, stream.0 as u64),
        };
        let addr = settle(*device, sim, |sim| pool.malloc(sim, size), &report)?;
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
        let report = Report {
            kind: CallKind::PoolFree,
            size: pool.size_of(addr).unwrap_or(0),
            describe: &|()| (address, stream.0 as u64),
        };
        // Work is done at once here, so every free is also a point at which the
        // pool may give back what it keeps too much of.
        let keep = pool.release_threshold;
        let act = |sim: &mut SimDevice| pool.free(addr).and_then(|()| pool.trim(sim, keep));
        settle(*device, sim, act, &report)
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
        let report = Report {
            kind: CallKind::PoolTrim,
            size: 0,
            describe: &|()| (0, 0),
        };
        settle(*device, sim, |sim| pool.trim(sim, keep), &report)
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
