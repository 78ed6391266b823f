// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels: registered, queried, launched; never run.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::costs;
use crate::ffi::{Arguments, Dim3, Out, OutArray, OutBytes, Ptr, field, guard};
use crate::fork::Lock;
use crate::machine::{Answer, code, current, machine, status, use_current};
use crate::recorder;
use crate::region::Region;

use super::handshake::is_in_handshake;
use super::images::{self, Image};
use super::modules;

/// The usage that is reported for every kernel: little enough for full occupancy.
const REGISTERS: i32 = 32;
const THREADS: i32 = 1024;

pub(crate) fn launch(stream: Ptr) -> i32 {
    if is_in_handshake() {
        return code::SUCCESS;
    }
    status(use_current().map(|_| {
        super::stream::note_work(stream);
        recorder::report_launch();
        costs::launched();
    }))
}

pub(crate) fn launch_runtime(
    kernel: Ptr,
    grid: Dim3,
    _block: Dim3,
    arguments: Arguments,
    _shared: usize,
    stream: Ptr,
) -> i32 {
    if !is_in_handshake() {
        super::attention::launched(kernel, grid, arguments);
        super::parameters::launched(kernel, grid.x, arguments, Arguments::NONE);
    }
    launch(stream)
}

/// Called by the driver's functions: the arguments have an address each, or are in one piece.
pub(crate) fn launch_driver(
    kernel: Ptr,
    grid: [u32; 3],
    arguments: Arguments,
    packed: Arguments,
    stream: Ptr,
) -> i32 {
    let answer = launch(stream);
    if answer == code::SUCCESS && !is_in_handshake() {
        super::parameters::launched(kernel, grid[0], arguments, packed);
        tell_watcher(kernel, grid, arguments.address());
    }
    answer
}

/// The grid stands at the beginning of the launch's description, the stream 32 bytes into it.
pub(crate) fn launch_described(
    config: Option<[u8; 40]>,
    kernel: Ptr,
    arguments: Arguments,
    packed: Arguments,
) -> i32 {
    let Some(config) = config else {
        return launch(Ptr::NULL);
    };
    let stream = field(&config, 32).unwrap_or(Ptr::NULL);
    let grid = [0, 4, 8].map(|at| field::<u32>(&config, at).unwrap_or(1));
    launch_driver(kernel, grid, arguments, packed, stream)
}

/// The same of the runtime, whose kernels the hook does not compute.
pub(crate) fn launch_described_runtime(
    config: Option<[u8; 40]>,
    kernel: Ptr,
    arguments: Arguments,
) -> i32 {
    if !is_in_handshake() {
        let grid = config.and_then(|config| field(&config, 0)).unwrap_or(1);
        super::parameters::launched(kernel, grid, arguments, Arguments::NONE);
    }
    let stream = config.and_then(|config| field(&config, 32));
    let answer = launch(stream.unwrap_or(Ptr::NULL));
    if answer == code::SUCCESS && !is_in_handshake() {
        tell_watcher(Ptr::NULL, [1; 3], Ptr::NULL);
    }
    answer
}

/// A kernel of a loaded module, by its name.
pub(crate) fn of_module(out: Out<Ptr>, module: Ptr, name: Option<&CStr>) -> i32 {
    let kernel = Ptr::fresh();
    let parameters = name.and_then(|name| modules::parameters(module, name));
    super::parameters::register(kernel, parameters);
    out.set(kernel);
    code::SUCCESS
}

/// Receives what the hook computes: a kernel's handle, its grid, and where the addresses of its arguments are.
type Watcher = extern "C" fn(u64, u32, u32, u32, u64);

#[derive(Default)]
struct Watched {
    watcher: Option<Watcher>,
    kernels: BTreeSet<usize>,
}

static WATCHED: Lock<Option<Watched>> = Lock::new(None);

fn watched<R>(act: impl FnOnce(&mut Watched) -> R) -> R {
    let mut watched = WATCHED.lock();
    act(watched.get_or_insert_default())
}

/// Kernels that were launched through the driver: those of Triton, and what else is compiled while a program runs.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// How many kernels were launched through the driver.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_kernel_launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Has the hook compute a kernel that it requested, unless the launch is only captured.
fn tell_watcher(kernel: Ptr, grid: [u32; 3], arguments: Ptr) {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    if arguments.is_null() || super::stream::capturing() {
        return;
    }
    let watcher = watched(|watched| {
        let is_wanted = watched.kernels.contains(&kernel.0);
        watched.watcher.filter(|_| is_wanted)
    });
    if let Some(watcher) = watcher {
        let [x, y, z] = grid;
        watcher(kernel.0 as u64, x, y, z, arguments.0 as u64);
    }
}

/// Sets the function that is called when a watched kernel is launched; none if it is null.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_kernel_launched(watcher: Option<Watcher>) {
    guard((), || watched(|watched| watched.watcher = watcher));
}

/// Makes launches of a kernel be reported.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_kernel_watch(kernel: u64) {
    guard((), || {
        watched(|watched| watched.kernels.insert(kernel as usize));
    });
}

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<(Dim3, Dim3, usize, Ptr)>> =
        const { RefCell::new(Vec::new()) };
}

pub(crate) fn push_configuration(grid: Dim3, block: Dim3, shared: usize, stream: Ptr) -> u32 {
    // A thread that ends keeps none any more: an error, which stops the launch.
    let kept = CONFIGURATIONS.try_with(|stack| {
        stack.borrow_mut().push((grid, block, shared, stream));
    });
    u32::from(kept.is_err())
}

pub(crate) fn pop_configuration(
    grid: OutBytes<12>,
    block: OutBytes<12>,
    shared: Out<usize>,
    stream: Out<Ptr>,
) -> i32 {
    let top = CONFIGURATIONS.try_with(|stack| stack.borrow_mut().pop());
    let Some(top) = top.ok().flatten() else {
        return code::INVALID_VALUE;
    };
    for (out, extent) in [(grid, top.0), (block, top.1)] {
        out.put_i32(0, extent.x as i32);
        out.put_i32(4, extent.y as i32);
        out.put_i32(8, extent.z as i32);
    }
    shared.set(top.2);
    stream.set(top.3);
    code::SUCCESS
}

/// The key of a variable: its address on the host, or a module and its name there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Host(usize),
    Module(usize, Vec<u8>),
}

/// A variable of the device; its memory is on the host and is made at its first use.
#[derive(Clone, Copy)]
struct Variable {
    address: usize,
    size: usize,
}

static VARIABLES: Lock<BTreeMap<Name, Variable>> = Lock::new(BTreeMap::new());

/// The size that is reported for a variable whose true size is not known.
const UNKNOWN_SIZE: usize = 4096;
/// The memory of such a variable: a program copies the true size, whatever was reported.
const ROOM: usize = 256 << 20;
const PAGE: usize = 4096;

pub(crate) fn register_variable(host: Ptr, size: usize) {
    let mut variables = VARIABLES.lock();
    variables.insert(Name::Host(host.0), Variable { address: 0, size });
}

/// Zeroed memory for a variable, kept for good. It begins a page, as CUDA aligns variables to 256 bytes, and behind it
/// is a page that cannot be written: what is too long ends the program and does not damage it.
fn make_room(size: usize) -> Answer<usize> {
    let pages = size.max(1).checked_next_multiple_of(PAGE);
    let length = pages.and_then(|pages| pages.checked_add(PAGE));
    let length = length.ok_or(code::OUT_OF_MEMORY)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, which nothing refers to.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(code::OUT_OF_MEMORY);
    }
    // SAFETY: the last page of that mapping.
    unsafe { libc::mprotect(memory.byte_add(length - PAGE), PAGE, libc::PROT_NONE) };
    Ok(memory as usize)
}

fn variable(host: Ptr) -> Answer<Variable> {
    let mut variables = VARIABLES.lock();
    let found = variables.get_mut(&Name::Host(host.0));
    let variable = found.ok_or(code::INVALID_SYMBOL)?;
    if variable.address == 0 {
        variable.address = make_room(variable.size)?;
    }
    Ok(*variable)
}

pub(crate) fn symbol_address(out: Out<u64>, symbol: Ptr) -> i32 {
    status(variable(symbol).map(|variable| out.set(variable.address as u64)))
}

pub(crate) fn symbol_size(out: Out<usize>, symbol: Ptr) -> i32 {
    status(variable(symbol).map(|variable| out.set(variable.size)))
}

/// A part of a variable, for copies to and from it; an error if the variable is smaller.
pub(crate) fn symbol(symbol: Ptr, offset: usize, length: usize) -> Answer<Region> {
    let Variable { address, size } = variable(symbol)?;
    // SAFETY: memory of our own of this size, which is kept for good and read and written only by copies.
    let all = unsafe { Region::new(Ptr(address), size) };
    all.part(offset, length).ok_or(code::INVALID_VALUE)
}

/// A variable of a loaded module, by module and name.
pub(crate) fn module_variable(
    out: Out<u64>,
    size: Out<usize>,
    module: Ptr,
    name: Option<&CStr>,
) -> i32 {
    let name = name.unwrap_or_default().to_bytes();
    status(variable_of_module(module, name).map(|variable| {
        out.set(variable.address as u64);
        size.set(variable.size);
    }))
}

fn variable_of_module(module: Ptr, name: &[u8]) -> Answer<Variable> {
    let key = Name::Module(module.0, name.to_owned());
    let mut variables = VARIABLES.lock();
    if let Some(variable) = variables.get(&key) {
        return Ok(*variable);
    }
    let (size, room) = match modules::variable(module, name) {
        modules::Variable::Sized(size) => (size, size),
        modules::Variable::Missing => return Err(code::NOT_FOUND),
        modules::Variable::Unknown => {
            recorder::count_unmodelled_name("cuModuleGetGlobal_v2");
            (UNKNOWN_SIZE, ROOM)
        }
    };
    let address = make_room(room)?;
    let variable = Variable { address, size };
    variables.insert(key, variable);
    Ok(variable)
}

/// Unloads a module: its variables have no names any more.
pub(crate) fn unload(module: Ptr) -> i32 {
    modules::forget(module);
    let mut variables = VARIABLES.lock();
    variables.retain(|name, _| !matches!(name, Name::Module(of, _) if *of == module.0));
    code::SUCCESS
}

pub(crate) fn enumerate_kernels(kernels: OutArray<Ptr>, _count: u32, library: Ptr) -> i32 {
    for index in 0..kernels.len() {
        kernels.set(index, library);
    }
    code::SUCCESS
}

pub(crate) fn kernel_name(out: Out<Ptr>) -> i32 {
    out.set(Ptr::text(c"kernel"));
    code::SUCCESS
}

pub(crate) fn same_handle(out: Out<Ptr>, handle: Ptr) -> i32 {
    out.set(handle);
    code::SUCCESS
}

pub(crate) fn attributes(out: OutBytes<144>, kernel: Ptr) -> i32 {
    status(machine().and_then(|machine| {
        let profile = machine.profile(current() as i32)?;
        let device = profile.major * 10 + profile.minor;
        let (portable, native) = match images::select_image(kernel, device) {
            Image::Native(built) => (built, built),
            Image::Portable(built) => (built, device),
            Image::Missing => return Err(code::NO_KERNEL_IMAGE),
            Image::Unknown => (device, device),
        };
        out.put_i32(24, THREADS);
        out.put_i32(28, REGISTERS);
        out.put_i32(32, portable);
        out.put_i32(36, native);
        out.put_i32(44, profile.shared_per_block);
        out.put_i32(48, -1);
        Ok(())
    }))
}

/// One attribute, by the driver's numbers.
pub(crate) fn attribute(out: Out<i32>, attribute: i32) -> i32 {
    status(machine().and_then(|machine| {
        let profile = machine.profile(current() as i32)?;
        out.set(match attribute {
            0 => THREADS,
            4 => REGISTERS,
            5 | 6 => profile.major * 10 + profile.minor,
            8 => profile.shared_per_block,
            9 => -1,
            _ => 0,
        });
        Ok(())
    }))
}

/// How many blocks fit on a multiprocessor at once.
fn resident_blocks(threads: i32, shared: usize) -> Answer<i32> {
    let machine = machine()?;
    let profile = machine.profile(current() as i32)?;
    if threads <= 0 || threads > THREADS {
        return Err(code::INVALID_VALUE);
    }
    let threads = (threads as u32).next_multiple_of(32) as i32;
    let by_threads = profile.threads_per_sm / threads;
    let by_registers = profile.registers / (REGISTERS * threads);
    let each = shared as i64 + i64::from(profile.shared_reserved);
    let by_shared = if shared == 0 {
        profile.blocks_per_sm
    } else {
        i32::try_from(i64::from(profile.shared_per_sm) / each.max(1)).unwrap_or(0)
    };
    Ok(by_threads
        .min(by_registers)
        .min(by_shared)
        .min(profile.blocks_per_sm))
}

pub(crate) fn occupancy(out: Out<i32>, _kernel: Ptr, threads: i32, shared: usize) -> i32 {
    status(resident_blocks(threads, shared).map(|blocks| out.set(blocks)))
}

pub(crate) fn occupancy_flags(
    out: Out<i32>,
    kernel: Ptr,
    threads: i32,
    shared: usize,
    _flags: u32,
) -> i32 {
    occupancy(out, kernel, threads, shared)
}

pub(crate) fn potential_block(
    grid: Out<i32>,
    block: Out<i32>,
    _kernel: Ptr,
    _shared_of: Ptr,
    shared: usize,
    limit: i32,
) -> i32 {
    let threads = if limit > 0 {
        limit.min(THREADS)
    } else {
        THREADS
    };
    status(resident_blocks(threads, shared).and_then(|blocks| {
        let machine = machine()?;
        grid.set(blocks * machine.profile(current() as i32)?.sm_count);
        block.set(threads);
        Ok(())
    }))
}

pub(crate) fn available_shared(out: Out<usize>, _kernel: Ptr, blocks: i32, _threads: i32) -> i32 {
    status(machine().and_then(|machine| {
        let profile = machine.profile(current() as i32)?;
        let share = profile.shared_per_sm / blocks.max(1) - profile.shared_reserved;
        out.set(share.clamp(0, profile.shared_per_block_optin) as usize);
        Ok(())
    }))
}

/// Clusters of 8 blocks are what every device that has clusters can do.
pub(crate) fn cluster_size(out: Out<i32>, _kernel: Ptr, _config: Ptr) -> i32 {
    out.set(8);
    code::SUCCESS
}

pub(crate) fn active_clusters(out: Out<i32>, _kernel: Ptr, _config: Ptr) -> i32 {
    status(machine().and_then(|machine| {
        out.set(machine.profile(current() as i32)?.sm_count / 8);
        Ok(())
    }))
}
