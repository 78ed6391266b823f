// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver: its names for what the other files do, contexts, and functions
//! by name.
//!
//! Each device has one context, its primary one; a program that creates another gets
//! that. A context's handle is a number that gives back the device.

use std::cell::RefCell;
use std::ffi::CStr;

use super::device::{context_of, device_of};
use super::errors::find_error;
use crate::config;
use crate::exports::DRIVER;
use crate::ffi::{Arguments, InOut, Out, OutBytes, OutText, Ptr};
use crate::machine::{self, code, current, machine, set_current, status, use_current};
use crate::recorder::static_text;
use crate::region::{Copy2D, Region};

pub(crate) use super::device::{
    attribute as cuDeviceGetAttribute, bus_id as cuDeviceGetPCIBusId,
    by_bus_id as cuDeviceGetByPCIBusId, can_access_peer as cuDeviceCanAccessPeer,
    count as cuDeviceGetCount, limit as cuCtxGetLimit, memory_info as cuMemGetInfo_v2,
    peer_attribute as cuDeviceGetP2PAttribute, priority_range as cuCtxGetStreamPriorityRange,
    version as cuDriverGetVersion,
};
pub(crate) use super::kernel::{
    active_clusters as cuOccupancyMaxActiveClusters,
    available_shared as cuOccupancyAvailableDynamicSMemPerBlock,
    cluster_size as cuOccupancyMaxPotentialClusterSize,
    enumerate_kernels as cuLibraryEnumerateKernels,
    enumerate_kernels as cuModuleEnumerateFunctions, module_variable as cuLibraryGetGlobal,
    module_variable as cuLibraryGetManaged, module_variable as cuModuleGetGlobal_v2,
    occupancy as cuOccupancyMaxActiveBlocksPerMultiprocessor,
    occupancy_flags as cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    of_module as cuLibraryGetKernel, of_module as cuModuleGetFunction,
    potential_block as cuOccupancyMaxPotentialBlockSize, same_handle as cuKernelGetFunction,
    same_handle as cuLibraryGetModule, unload as cuLibraryUnload, unload as cuModuleUnload,
};
pub(crate) use super::memory::{
    address_range as cuMemGetAddressRange_v2, create as cuMemCreate,
    create_pool as cuMemPoolCreate, current_pool as cuDeviceGetMemPool,
    default_pool as cuDeviceGetDefaultMemPool, destroy_pool as cuMemPoolDestroy,
    export_handle as cuMemExportToShareableHandle, free as cuMemFree_v2,
    free_async as cuMemFreeAsync, get_access as cuMemGetAccess,
    granularity as cuMemGetAllocationGranularity, graph_memory as cuDeviceGetGraphMemAttribute,
    host_alloc as cuMemHostAlloc, host_alloc_plain as cuMemAllocHost_v2,
    host_device_pointer as cuMemHostGetDevicePointer_v2, host_flags as cuMemHostGetFlags,
    host_free as cuMemFreeHost, host_register as cuMemHostRegister,
    host_register as cuMemHostRegister_v2, host_unregister as cuMemHostUnregister,
    import_handle as cuMemImportFromShareableHandle, ipc_close as cuIpcCloseMemHandle,
    ipc_event as cuIpcGetEventHandle, ipc_handle as cuIpcGetMemHandle,
    ipc_open as cuIpcOpenMemHandle, ipc_open as cuIpcOpenMemHandle_v2,
    ipc_open_event as cuIpcOpenEventHandle, malloc_async as cuMemAllocAsync,
    malloc_from_pool as cuMemAllocFromPoolAsync, malloc_managed as cuMemAllocManaged,
    malloc_some as cuMemAlloc_v2, map as cuMemMap,
    physical_properties as cuMemGetAllocationPropertiesFromHandle,
    pointer_attribute as cuPointerGetAttribute, pointer_attribute_list as cuPointerGetAttributes,
    pool_attribute as cuMemPoolGetAttribute, release as cuMemRelease,
    reserve as cuMemAddressReserve, retain_handle as cuMemRetainAllocationHandle,
    set_access as cuMemSetAccess, set_current_pool as cuDeviceSetMemPool,
    set_graph_memory as cuDeviceSetGraphMemAttribute, set_pool_attribute as cuMemPoolSetAttribute,
    trim_pool as cuMemPoolTrimTo, unmap as cuMemUnmap, unreserve as cuMemAddressFree,
};
pub(crate) use super::modules::{
    load as cuModuleLoadData, load as cuModuleLoadFatBinary, load_file as cuModuleLoad,
    load_library as cuLibraryLoadData, load_library_file as cuLibraryLoadFromFile,
    load_with_options as cuModuleLoadDataEx,
};
pub(crate) use super::stream::{
    begin as cuStreamBeginCapture_v2, begin_plain as cuStreamBeginCapture,
    begin_to_graph as cuStreamBeginCaptureToGraph, callback as cuStreamAddCallback,
    capture_info as cuStreamGetCaptureInfo, capture_info_v2 as cuStreamGetCaptureInfo_v2,
    capture_info_v3 as cuStreamGetCaptureInfo_v3, create as cuStreamCreateWithPriority,
    create_event as cuEventCreate, create_flags as cuStreamCreate, create_graph as cuGraphCreate,
    create_object as cuUserObjectCreate, destroy as cuStreamDestroy, destroy as cuStreamDestroy_v2,
    destroy_event as cuEventDestroy, destroy_event as cuEventDestroy_v2,
    destroy_exec as cuGraphExecDestroy, destroy_graph as cuGraphDestroy,
    device as cuStreamGetDevice, done as cuStreamQuery, elapsed as cuEventElapsedTime,
    elapsed as cuEventElapsedTime_v2, end as cuStreamEndCapture,
    exchange_mode as cuThreadExchangeStreamCaptureMode, flags as cuStreamGetFlags,
    graph_release_object as cuGraphReleaseUserObject,
    graph_retain_object as cuGraphRetainUserObject, host_function as cuLaunchHostFunc,
    host_function_mode as cuLaunchHostFunc_v2, id as cuStreamGetId,
    instantiate as cuGraphInstantiateWithFlags, instantiate_log as cuGraphInstantiate,
    instantiate_log as cuGraphInstantiate_v2,
    instantiate_parameters as cuGraphInstantiateWithParams, is_capturing as cuStreamIsCapturing,
    launch_graph as cuGraphLaunch, node_type as cuGraphNodeGetType, nodes as cuGraphGetNodes,
    nodes as cuGraphGetRootNodes, priority as cuStreamGetPriority, query_event as cuEventQuery,
    record as cuEventRecord, record_flags as cuEventRecordWithFlags,
    release_object as cuUserObjectRelease, retain_object as cuUserObjectRetain,
    synchronize as cuCtxSynchronize, wait as cuStreamWaitEvent,
    wait_for_event as cuEventSynchronize, wait_for_stream as cuStreamSynchronize,
};

pub(crate) fn cuInit(_flags: u32) -> i32 {
    status(machine().map(|_| ()))
}

fn text(out: &Out<Ptr>, text: &str) -> i32 {
    out.set(Ptr::text(static_text(text.to_owned())));
    code::SUCCESS
}

pub(crate) fn cuGetErrorString(error: i32, out: Out<Ptr>) -> i32 {
    text(&out, find_error(error).3)
}

pub(crate) fn cuGetErrorName(error: i32, out: Out<Ptr>) -> i32 {
    text(&out, find_error(error).2)
}

// Functions by name.

/// Which exported function a name means, for programs of which CUDA version.
const VERSIONS: &str = include_str!("../../api/cuda.versions");

fn exported(name: &str) -> Option<Ptr> {
    let symbol = DRIVER.iter().find(|symbol| symbol.name == name)?;
    Some(Ptr(symbol.function as usize))
}

/// The driver's function of this name, as a program of this CUDA version means
/// it; null if there is none.
pub(crate) fn entry_point(name: Option<&CStr>, version: i32) -> Ptr {
    let Some(name) = name.and_then(|name| name.to_str().ok()) else {
        return Ptr::NULL;
    };
    if name == "cuGetExportTable" {
        crate::foreign::runtime_started();
        return Ptr::NULL;
    }
    let symbol = VERSIONS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let known = (
                words.next()?,
                words.next()?.parse::<i32>().ok()?,
                words.next()?,
            );
            (known.0 == name && known.1 <= version).then_some(known)
        })
        .max_by_key(|known| known.1)
        .map_or(name, |known| known.2);
    exported(symbol).unwrap_or(Ptr::NULL)
}

pub(crate) fn cuGetProcAddress_v2(
    name: Option<&CStr>,
    out: Out<Ptr>,
    version: i32,
    _flags: u64,
    found: Out<i32>,
) -> i32 {
    let function = entry_point(name, version);
    out.set(function);
    found.set(i32::from(function.is_null()));
    if function.is_null() {
        return code::NOT_FOUND;
    }
    code::SUCCESS
}

pub(crate) fn cuGetProcAddress(
    name: Option<&CStr>,
    out: Out<Ptr>,
    version: i32,
    _flags: u64,
) -> i32 {
    let function = entry_point(name, version);
    out.set(function);
    if function.is_null() {
        return code::NOT_FOUND;
    }
    code::SUCCESS
}

/// The driver's undocumented tables are not supported. Only CUDA runtimes request them.
pub(crate) fn cuGetExportTable(_table: Out<Ptr>, _id: Ptr) -> i32 {
    crate::foreign::runtime_started();
    code::NOT_FOUND
}

// Devices.

pub(crate) fn cuDeviceGet(out: Out<i32>, ordinal: i32) -> i32 {
    status(machine().and_then(|machine| {
        machine.physical(ordinal)?;
        out.set(ordinal);
        Ok(())
    }))
}

pub(crate) fn cuDeviceGetName(name: OutText, _length: i32, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        name.set(&machine.profile(device)?.name);
        Ok(())
    }))
}

pub(crate) fn cuDeviceGetUuid(out: OutBytes<16>, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        out.write_at(0, &config::uuid(machine.physical(device)?));
        Ok(())
    }))
}

pub(crate) use cuDeviceGetUuid as cuDeviceGetUuid_v2;

pub(crate) fn cuDeviceTotalMem_v2(out: Out<usize>, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        out.set(machine.profile(device)?.total as usize);
        Ok(())
    }))
}

pub(crate) fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        let profile = machine.profile(device)?;
        major.set(profile.major);
        minor.set(profile.minor);
        Ok(())
    }))
}

pub(crate) fn cuDeviceGetProperties(out: OutBytes<56>, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        let profile = machine.profile(device)?;
        for (offset, value) in [
            (0, 1024),
            (4, 1024),
            (8, 1024),
            (12, 64),
            (16, i32::MAX),
            (20, 65535),
            (24, 65535),
            (28, profile.shared_per_block),
            (32, 64 << 10),
            (36, 32),
            (40, i32::MAX),
            (44, profile.registers),
            (48, profile.clock_khz),
            (52, 512),
        ] {
            out.put_i32(offset, value);
        }
        Ok(())
    }))
}

// Contexts.

/// The device of a thread, and whether its context is current.
type Binding = (usize, bool);

thread_local! {
    /// Bindings below the current one.
    static STACK: RefCell<Vec<Binding>> = const { RefCell::new(Vec::new()) };
}

fn binding() -> Binding {
    (current(), machine::is_bound())
}

fn bind((device, bound): Binding) {
    set_current(device);
    machine::set_bound(bound);
}

/// Makes the context of a device current, and keeps the thread's binding for a later pop.
fn push(device: usize) -> Result<(), i32> {
    let before = binding();
    enter(device)?;
    // A thread that ends has no stack any more.
    STACK
        .try_with(|stack| stack.borrow_mut().push(before))
        .map_err(|_| code::INVALID_CONTEXT)
}

/// Takes the current context off the stack. A context that `cuCtxSetCurrent` put on an empty stack is its top.
fn pop() -> Result<(), i32> {
    let before = STACK.try_with(|stack| stack.borrow_mut().pop());
    match before.ok().flatten() {
        Some(before) => bind(before),
        None if machine::is_bound() => machine::set_bound(false),
        None => return Err(code::INVALID_CONTEXT),
    }
    Ok(())
}

fn enter(device: usize) -> Result<(), i32> {
    machine()?.physical(device as i32)?;
    set_current(device);
    use_current().map(|_| ())
}

pub(crate) fn cuDevicePrimaryCtxGetState(device: i32, _flags: Out<u32>, active: Out<i32>) -> i32 {
    status(machine().and_then(|machine| {
        let physical = machine.physical(device)?;
        active.set(i32::from(machine::has_context(physical)));
        Ok(())
    }))
}

pub(crate) fn cuDevicePrimaryCtxRetain(out: Out<Ptr>, device: i32) -> i32 {
    let before = binding();
    let entered = enter(device.max(0) as usize);
    bind(before);
    status(entered.map(|()| out.set(context_of(device))))
}

/// Contexts stay until the process ends: the memory of one is charged once.
pub(crate) fn cuDevicePrimaryCtxRelease(_device: i32) -> i32 {
    code::SUCCESS
}

pub(crate) use cuDevicePrimaryCtxRelease as cuDevicePrimaryCtxRelease_v2;
pub(crate) use cuDevicePrimaryCtxRelease as cuDevicePrimaryCtxReset;
pub(crate) use cuDevicePrimaryCtxRelease as cuDevicePrimaryCtxReset_v2;

pub(crate) fn cuDevicePrimaryCtxSetFlags(_device: i32, _flags: u32) -> i32 {
    code::SUCCESS
}

pub(crate) use cuDevicePrimaryCtxSetFlags as cuDevicePrimaryCtxSetFlags_v2;

/// The context of this thread's device, whether it is current or not; null if it was never opened.
fn context_of_thread() -> Result<Ptr, i32> {
    let device = current() as i32;
    let open = machine()?.physical(device).is_ok_and(machine::has_context);
    Ok(if open { context_of(device) } else { Ptr::NULL })
}

pub(crate) fn cuCtxGetCurrent(out: Out<Ptr>) -> i32 {
    status(context_of_thread().map(|context| {
        out.set(if machine::is_bound() {
            context
        } else {
            Ptr::NULL
        });
    }))
}

pub(crate) fn cuCtxSetCurrent(context: Ptr) -> i32 {
    if context.is_null() {
        // CUDA pops the top of the stack, and accepts an empty one.
        let _ = pop();
        return code::SUCCESS;
    }
    status(device_of(context).and_then(enter))
}

pub(crate) fn cuCtxGetDevice(out: Out<i32>) -> i32 {
    status(machine().map(|_| out.set(current() as i32)))
}

pub(crate) fn cuCtxGetDevice_v2(out: Out<i32>, context: Ptr) -> i32 {
    status(device_of(context).map(|device| out.set(device as i32)))
}

pub(crate) fn cuCtxPushCurrent(context: Ptr) -> i32 {
    status(device_of(context).and_then(push))
}

pub(crate) use cuCtxPushCurrent as cuCtxPushCurrent_v2;

pub(crate) fn cuCtxPopCurrent(out: Out<Ptr>) -> i32 {
    let context = context_of(current() as i32);
    status(pop().map(|()| out.set(context)))
}

pub(crate) use cuCtxPopCurrent as cuCtxPopCurrent_v2;

pub(crate) fn cuCtxCreate(out: Out<Ptr>, _flags: u32, device: i32) -> i32 {
    status(push(device.max(0) as usize).map(|()| out.set(context_of(device))))
}

pub(crate) use cuCtxCreate as cuCtxCreate_v2;

pub(crate) fn cuCtxCreate_v3(
    out: Out<Ptr>,
    _parameters: Ptr,
    _count: i32,
    flags: u32,
    device: i32,
) -> i32 {
    cuCtxCreate(out, flags, device)
}

pub(crate) fn cuCtxCreate_v4(out: Out<Ptr>, _parameters: Ptr, flags: u32, device: i32) -> i32 {
    cuCtxCreate(out, flags, device)
}

pub(crate) fn cuCtxDestroy(_context: Ptr) -> i32 {
    code::SUCCESS
}

pub(crate) use cuCtxDestroy as cuCtxDestroy_v2;
pub(crate) use cuCtxDestroy as cuCtxDetach;
pub(crate) use cuCtxDestroy as cuCtxSynchronize_v2;

pub(crate) fn cuCtxAttach(out: Out<Ptr>, _flags: u32) -> i32 {
    cuCtxGetCurrent(out)
}

pub(crate) fn cuCtxGetFlags(_flags: Out<u32>) -> i32 {
    code::SUCCESS
}

pub(crate) fn cuCtxGetId(context: Ptr, id: Out<u64>) -> i32 {
    id.set(context.0 as u64);
    code::SUCCESS
}

pub(crate) fn cuCtxGetApiVersion(_context: Ptr, version: Out<u32>) -> i32 {
    version.set(3020);
    code::SUCCESS
}

pub(crate) fn cuCtxSetLimit(_limit: i32, _value: usize) -> i32 {
    code::SUCCESS
}

pub(crate) fn cuStreamGetCtx(_stream: Ptr, out: Out<Ptr>) -> i32 {
    status(context_of_thread().map(|context| out.set(context)))
}

pub(crate) fn cuStreamGetCtx_v2(stream: Ptr, out: Out<Ptr>, _green: Out<Ptr>) -> i32 {
    cuStreamGetCtx(stream, out)
}

// Memory, copies and fills.

pub(crate) fn cuMemAllocPitch_v2(
    out: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    _element: u32,
) -> i32 {
    super::memory::malloc_pitch(out, pitch, width, height)
}

pub(crate) fn cuMemcpyAsync(to: Region, from: Region, _size: usize, stream: Ptr) -> i32 {
    super::memory::copy(to, from, stream)
}

pub(crate) use {
    cuMemcpyAsync as cuMemcpyDtoDAsync_v2, cuMemcpyAsync as cuMemcpyDtoHAsync_v2,
    cuMemcpyAsync as cuMemcpyHtoDAsync_v2,
};

pub(crate) fn cuMemcpy(to: Region, from: Region, size: usize) -> i32 {
    cuMemcpyAsync(to, from, size, Ptr::NULL)
}

pub(crate) use {
    cuMemcpy as cuMemcpyDtoD_v2, cuMemcpy as cuMemcpyDtoH_v2, cuMemcpy as cuMemcpyHtoD_v2,
};

pub(crate) fn cuMemcpyPeerAsync(
    to: Region,
    _to_context: Ptr,
    from: Region,
    _from_context: Ptr,
    size: usize,
    stream: Ptr,
) -> i32 {
    cuMemcpyAsync(to, from, size, stream)
}

pub(crate) fn cuMemcpyPeer(
    to: Region,
    _to_context: Ptr,
    from: Region,
    _from_context: Ptr,
    size: usize,
) -> i32 {
    cuMemcpyAsync(to, from, size, Ptr::NULL)
}

pub(crate) fn cuMemcpy2DAsync_v2(copy: Option<Copy2D>, stream: Ptr) -> i32 {
    let Some(copy) = copy else {
        return code::INVALID_VALUE;
    };
    super::memory::copy_rows(copy.to, copy.from, copy.width, copy.height, stream)
}

pub(crate) fn cuMemcpy2D_v2(copy: Option<Copy2D>) -> i32 {
    cuMemcpy2DAsync_v2(copy, Ptr::NULL)
}

pub(crate) use cuMemcpy2D_v2 as cuMemcpy2DUnaligned_v2;

pub(crate) fn cuMemsetD8Async(to: Region, value: u8, _count: usize, stream: Ptr) -> i32 {
    super::memory::fill(to, &[value], stream)
}

pub(crate) fn cuMemsetD16Async(to: Region, value: u16, _count: usize, stream: Ptr) -> i32 {
    super::memory::fill(to, &value.to_ne_bytes(), stream)
}

pub(crate) fn cuMemsetD32Async(to: Region, value: u32, _count: usize, stream: Ptr) -> i32 {
    super::memory::fill(to, &value.to_ne_bytes(), stream)
}

pub(crate) fn cuMemsetD8_v2(to: Region, value: u8, count: usize) -> i32 {
    cuMemsetD8Async(to, value, count, Ptr::NULL)
}

pub(crate) fn cuMemsetD16_v2(to: Region, value: u16, count: usize) -> i32 {
    cuMemsetD16Async(to, value, count, Ptr::NULL)
}

pub(crate) fn cuMemsetD32_v2(to: Region, value: u32, count: usize) -> i32 {
    cuMemsetD32Async(to, value, count, Ptr::NULL)
}

// Modules, functions, launches.

pub(crate) fn cuModuleGetFunctionCount(count: Out<u32>, _module: Ptr) -> i32 {
    count.set(1);
    code::SUCCESS
}

pub(crate) use cuModuleGetFunctionCount as cuLibraryGetKernelCount;

/// Modules are loaded when they are used.
pub(crate) fn cuModuleGetLoadingMode(mode: Out<i32>) -> i32 {
    mode.set(2);
    code::SUCCESS
}

pub(crate) fn cuFuncGetAttribute(out: Out<i32>, attribute: i32, _function: Ptr) -> i32 {
    super::kernel::attribute(out, attribute)
}

pub(crate) fn cuKernelGetAttribute(
    out: Out<i32>,
    attribute: i32,
    _kernel: Ptr,
    _device: i32,
) -> i32 {
    super::kernel::attribute(out, attribute)
}

pub(crate) fn cuFuncSetAttribute(_function: Ptr, _attribute: i32, _value: i32) -> i32 {
    code::SUCCESS
}

pub(crate) fn cuKernelSetAttribute(
    _attribute: i32,
    _value: i32,
    _kernel: Ptr,
    _device: i32,
) -> i32 {
    code::SUCCESS
}

pub(crate) fn cuFuncGetName(name: Out<Ptr>, _function: Ptr) -> i32 {
    super::kernel::kernel_name(name)
}

pub(crate) use cuFuncGetName as cuKernelGetName;

pub(crate) fn cuFuncIsLoaded(state: Out<i32>, _function: Ptr) -> i32 {
    state.set(1);
    code::SUCCESS
}

pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<i32>,
    block: Out<i32>,
    kernel: Ptr,
    shared_of: Ptr,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> i32 {
    super::kernel::potential_block(grid, block, kernel, shared_of, shared, limit)
}

pub(crate) fn cuLaunchKernel(
    function: Ptr,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    _block_x: u32,
    _block_y: u32,
    _block_z: u32,
    _shared: u32,
    stream: Ptr,
    parameters: Arguments,
    packed: Arguments,
) -> i32 {
    let grid = [grid_x, grid_y, grid_z];
    super::kernel::launch_driver(function, grid, parameters, packed, stream)
}

pub(crate) fn cuLaunchKernelEx(
    config: Option<[u8; 40]>,
    function: Ptr,
    parameters: Arguments,
    packed: Arguments,
) -> i32 {
    super::kernel::launch_described(config, function, parameters, packed)
}

pub(crate) fn cuLaunchCooperativeKernel(
    function: Ptr,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    _block_x: u32,
    _block_y: u32,
    _block_z: u32,
    _shared: u32,
    stream: Ptr,
    parameters: Arguments,
) -> i32 {
    let grid = [grid_x, grid_y, grid_z];
    super::kernel::launch_driver(function, grid, parameters, Arguments::NONE, stream)
}

// Graphs.

pub(crate) fn cuGraphNodeGetDependencies(_node: Ptr, _after: Ptr, count: InOut<usize>) -> i32 {
    super::stream::no_neighbours(&count)
}

pub(crate) fn cuGraphNodeGetDependencies_v2(
    _node: Ptr,
    _after: Ptr,
    _edges: Ptr,
    count: InOut<usize>,
) -> i32 {
    super::stream::no_neighbours(&count)
}

pub(crate) fn cuGraphAddNode(
    out: Out<Ptr>,
    graph: Ptr,
    _after: Ptr,
    _count: usize,
    _parameters: Ptr,
) -> i32 {
    super::stream::add_node(out, graph)
}

pub(crate) fn cuGraphAddNode_v2(
    out: Out<Ptr>,
    graph: Ptr,
    _after: Ptr,
    _edges: Ptr,
    _count: usize,
    _parameters: Ptr,
) -> i32 {
    super::stream::add_node(out, graph)
}
