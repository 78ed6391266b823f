// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime: its names for what the other files do, its last error, and the
//! functions only it has.

use std::cell::Cell;

use std::ffi::CStr;

use crate::ffi::{Arguments, ByValue, InOut, Out, OutArray, OutBytes, Ptr};
use crate::machine::{code, machine};
use crate::recorder::static_text;
use crate::region::{Copy3D, Region, Regions, Rows, pitched};

pub(crate) use super::device::{
    attribute as cudaDeviceGetAttribute, bus_id as cudaDeviceGetPCIBusId,
    by_bus_id as cudaDeviceGetByPCIBusId, can_access_peer as cudaDeviceCanAccessPeer,
    count as cudaGetDeviceCount, get_current as cudaGetDevice, limit as cudaDeviceGetLimit,
    limit as cudaThreadGetLimit, memory_info as cudaMemGetInfo,
    peer_attribute as cudaDeviceGetP2PAttribute,
    priority_range as cudaDeviceGetStreamPriorityRange,
    properties_12 as cudaGetDeviceProperties_v2, properties_13 as cudaGetDeviceProperties,
    use_device as cudaSetDevice, version as cudaDriverGetVersion, version as cudaRuntimeGetVersion,
};
use super::errors::find_error;
use super::images::FatBinary;
pub(crate) use super::kernel::{
    active_clusters as cudaOccupancyMaxActiveClusters, attributes as cudaFuncGetAttributes,
    available_shared as cudaOccupancyAvailableDynamicSMemPerBlock,
    cluster_size as cudaOccupancyMaxPotentialClusterSize,
    enumerate_kernels as cudaLibraryEnumerateKernels, launch_runtime as __cudaLaunchKernel,
    launch_runtime as __cudaLaunchKernel_ptsz, launch_runtime as cudaLaunchCooperativeKernel,
    launch_runtime as cudaLaunchKernel, module_variable as cudaLibraryGetGlobal,
    module_variable as cudaLibraryGetManaged,
    occupancy as cudaOccupancyMaxActiveBlocksPerMultiprocessor,
    occupancy_flags as cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    of_module as cudaLibraryGetKernel, pop_configuration as __cudaPopCallConfiguration,
    push_configuration as __cudaPushCallConfiguration, same_handle as __cudaGetKernel,
    same_handle as cudaGetFuncBySymbol, same_handle as cudaGetKernel,
    symbol_address as cudaGetSymbolAddress, symbol_size as cudaGetSymbolSize,
    unload as cudaLibraryUnload,
};
pub(crate) use super::memory::{
    create_pool as cudaMemPoolCreate, current_pool as cudaDeviceGetMemPool,
    default_pool as cudaDeviceGetDefaultMemPool, destroy_pool as cudaMemPoolDestroy,
    free_async_ptr as cudaFreeAsync, free_ptr as cudaFree,
    graph_memory as cudaDeviceGetGraphMemAttribute, host_alloc as cudaHostAlloc,
    host_alloc_plain as cudaMallocHost, host_device_pointer as cudaHostGetDevicePointer,
    host_flags as cudaHostGetFlags, host_free as cudaFreeHost, host_register as cudaHostRegister,
    host_unregister as cudaHostUnregister, ipc_event as cudaIpcGetEventHandle,
    ipc_handle_ptr as cudaIpcGetMemHandle, ipc_open as cudaIpcOpenMemHandle,
    ipc_open_event as cudaIpcOpenEventHandle, malloc as cudaMalloc,
    malloc_async as cudaMallocAsync, malloc_from_pool as cudaMallocFromPoolAsync,
    malloc_managed as cudaMallocManaged, malloc_pitch as cudaMallocPitch,
    pointer_attributes as cudaPointerGetAttributes, pool_attribute as cudaMemPoolGetAttribute,
    set_current_pool as cudaDeviceSetMemPool, set_graph_memory as cudaDeviceSetGraphMemAttribute,
    set_pool_attribute as cudaMemPoolSetAttribute, trim_pool as cudaMemPoolTrimTo,
};
pub(crate) use super::modules::{
    load_library as cudaLibraryLoadData, load_library_file as cudaLibraryLoadFromFile,
};
pub(crate) use super::stream::{
    begin as cudaStreamBeginCapture, begin_to_graph as cudaStreamBeginCaptureToGraph,
    callback as cudaStreamAddCallback, capture_info_runtime as cudaStreamGetCaptureInfo,
    capture_info_v2 as cudaStreamGetCaptureInfo_v2, capture_info_v3 as cudaStreamGetCaptureInfo_v3,
    create as cudaStreamCreateWithPriority, create_event as cudaEventCreateWithFlags,
    create_event_plain as cudaEventCreate, create_flags as cudaStreamCreateWithFlags,
    create_graph as cudaGraphCreate, create_object as cudaUserObjectCreate,
    create_plain as cudaStreamCreate, destroy as cudaStreamDestroy,
    destroy_event as cudaEventDestroy, destroy_exec as cudaGraphExecDestroy,
    destroy_graph as cudaGraphDestroy, device as cudaStreamGetDevice, done as cudaStreamQuery,
    elapsed as cudaEventElapsedTime, elapsed as cudaEventElapsedTime_v2,
    end as cudaStreamEndCapture, exchange_mode as cudaThreadExchangeStreamCaptureMode,
    flags as cudaStreamGetFlags, graph_release_object as cudaGraphReleaseUserObject,
    graph_retain_object as cudaGraphRetainUserObject, host_function as cudaLaunchHostFunc,
    host_function_mode as cudaLaunchHostFunc_v2, id as cudaStreamGetId,
    instantiate as cudaGraphInstantiate, instantiate as cudaGraphInstantiateWithFlags,
    instantiate_parameters as cudaGraphInstantiateWithParams,
    is_capturing as cudaStreamIsCapturing, launch_graph as cudaGraphLaunch,
    node_type as cudaGraphNodeGetType, nodes as cudaGraphGetNodes, nodes as cudaGraphGetRootNodes,
    priority as cudaStreamGetPriority, query_event as cudaEventQuery, record as cudaEventRecord,
    record_flags as cudaEventRecordWithFlags, release_object as cudaUserObjectRelease,
    retain_object as cudaUserObjectRetain, synchronize as cudaDeviceSynchronize,
    synchronize as cudaThreadSynchronize, wait as cudaStreamWaitEvent,
    wait_for_event as cudaEventSynchronize, wait_for_stream as cudaStreamSynchronize,
};

thread_local! {
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
}

/// Keeps the code of a failure until it is requested.
pub(crate) fn remember(status: i32) -> i32 {
    if status != code::SUCCESS {
        LAST_ERROR.set(status);
    }
    status
}

pub(crate) fn cudaGetLastError() -> i32 {
    LAST_ERROR.replace(code::SUCCESS)
}

pub(crate) fn cudaPeekAtLastError() -> i32 {
    LAST_ERROR.get()
}

pub(crate) fn cudaGetErrorString(status: i32) -> Ptr {
    Ptr::text(static_text(find_error(status).3.to_owned()))
}

pub(crate) fn cudaGetErrorName(status: i32) -> Ptr {
    Ptr::text(static_text(find_error(status).1.to_owned()))
}

pub(crate) fn cudaInitDevice(device: i32, _device_flags: u32, _flags: u32) -> i32 {
    cudaSetDevice(device)
}

pub(crate) fn cudaDeviceReset() -> i32 {
    code::SUCCESS
}

pub(crate) fn cudaThreadExit() -> i32 {
    code::SUCCESS
}

pub(crate) fn cudaDeviceSetLimit(_limit: i32, _value: usize) -> i32 {
    code::SUCCESS
}

pub(crate) fn cudaThreadSetLimit(_limit: i32, _value: usize) -> i32 {
    code::SUCCESS
}

pub(crate) fn cudaGetDeviceFlags(_flags: Out<u32>) -> i32 {
    code::SUCCESS
}

pub(crate) fn cudaSetDeviceFlags(_flags: u32) -> i32 {
    code::SUCCESS
}

pub(crate) fn cudaMalloc3D(out: OutBytes<32>, extent: ByValue<24>) -> i32 {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&extent.0[at..at + 8]);
        usize::from_ne_bytes(bytes)
    };
    let (width, height, depth) = (word(0), word(8), word(16));
    let (mut address, mut pitch) = (0_u64, 0_usize);
    // SAFETY: both are local variables.
    let (to, pitched) = unsafe { (Out::new(&raw mut address), Out::new(&raw mut pitch)) };
    let status = cudaMallocPitch(to, pitched, width, height.saturating_mul(depth));
    out.put_u64(0, address);
    out.put_u64(8, pitch as u64);
    out.put_u64(16, width as u64);
    out.put_u64(24, height as u64);
    status
}

pub(crate) fn cudaMemcpyAsync(
    to: Region,
    from: Region,
    _size: usize,
    _kind: i32,
    stream: Ptr,
) -> i32 {
    super::memory::copy(to, from, stream)
}

pub(crate) fn cudaMemcpy(to: Region, from: Region, _size: usize, _kind: i32) -> i32 {
    super::memory::copy(to, from, Ptr::NULL)
}

pub(crate) fn cudaMemsetAsync(to: Region, value: i32, _count: usize, stream: Ptr) -> i32 {
    super::memory::fill(to, &[value as u8], stream)
}

pub(crate) fn cudaMemset(to: Region, value: i32, count: usize) -> i32 {
    cudaMemsetAsync(to, value, count, Ptr::NULL)
}

pub(crate) fn cudaMemcpyPeerAsync(
    to: Region,
    _to_device: i32,
    from: Region,
    _from_device: i32,
    _size: usize,
    stream: Ptr,
) -> i32 {
    super::memory::copy(to, from, stream)
}

pub(crate) fn cudaMemcpyPeer(
    to: Region,
    _to_device: i32,
    from: Region,
    _from_device: i32,
    _size: usize,
) -> i32 {
    super::memory::copy(to, from, Ptr::NULL)
}

pub(crate) fn cudaMemcpy2DAsync(
    to: Region,
    to_pitch: usize,
    from: Region,
    from_pitch: usize,
    width: usize,
    height: usize,
    _kind: i32,
    stream: Ptr,
) -> i32 {
    let rows = |region, pitch| Rows { region, pitch };
    let (to, from) = (rows(to, to_pitch), rows(from, from_pitch));
    super::memory::copy_rows(to, from, width, height, stream)
}

pub(crate) fn cudaMemcpy2D(
    to: Region,
    to_pitch: usize,
    from: Region,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: i32,
) -> i32 {
    cudaMemcpy2DAsync(
        to,
        to_pitch,
        from,
        from_pitch,
        width,
        height,
        kind,
        Ptr::NULL,
    )
}

/// Copies of volumes are between arrays and pitched memory: rows, slice by slice.
pub(crate) fn cudaMemcpy3DAsync(copy: Option<Copy3D>, stream: Ptr) -> i32 {
    let Some(copy) = copy else {
        return code::INVALID_VALUE;
    };
    let Copy3D { to, from, .. } = copy;
    if from.region.address().is_null() || to.region.address().is_null() {
        return code::NOT_SUPPORTED;
    }
    for slice in 0..copy.depth {
        let rows = |all: Rows, slice_bytes: usize| {
            let length = pitched(all.pitch, copy.width, copy.height);
            let region = all.region.part(slice.saturating_mul(slice_bytes), length)?;
            Some(Rows { region, ..all })
        };
        let (Some(to), Some(from)) = (rows(to, copy.slices.0), rows(from, copy.slices.1)) else {
            return code::INVALID_VALUE;
        };
        let status = super::memory::copy_rows(to, from, copy.width, copy.height, stream);
        if status != code::SUCCESS {
            return status;
        }
    }
    code::SUCCESS
}

pub(crate) fn cudaMemcpy3D(copy: Option<Copy3D>) -> i32 {
    cudaMemcpy3DAsync(copy, Ptr::NULL)
}

pub(crate) fn cudaMemset2DAsync(
    to: Region,
    pitch: usize,
    value: i32,
    width: usize,
    height: usize,
    stream: Ptr,
) -> i32 {
    for row in 0..height {
        let Some(row) = to.part(row.saturating_mul(pitch), width) else {
            return code::INVALID_VALUE;
        };
        let status = cudaMemsetAsync(row, value, width, stream);
        if status != code::SUCCESS {
            return status;
        }
    }
    code::SUCCESS
}

pub(crate) fn cudaMemset2D(
    to: Region,
    pitch: usize,
    value: i32,
    width: usize,
    height: usize,
) -> i32 {
    cudaMemset2DAsync(to, pitch, value, width, height, Ptr::NULL)
}

pub(crate) fn cudaMemcpyToSymbolAsync(
    symbol: Ptr,
    from: Region,
    size: usize,
    offset: usize,
    _kind: i32,
    stream: Ptr,
) -> i32 {
    match super::kernel::symbol(symbol, offset, size) {
        Ok(to) => super::memory::copy(to, from, stream),
        Err(status) => status,
    }
}

pub(crate) fn cudaMemcpyToSymbol(
    symbol: Ptr,
    from: Region,
    size: usize,
    offset: usize,
    kind: i32,
) -> i32 {
    cudaMemcpyToSymbolAsync(symbol, from, size, offset, kind, Ptr::NULL)
}

pub(crate) fn cudaMemcpyFromSymbolAsync(
    to: Region,
    symbol: Ptr,
    size: usize,
    offset: usize,
    _kind: i32,
    stream: Ptr,
) -> i32 {
    match super::kernel::symbol(symbol, offset, size) {
        Ok(from) => super::memory::copy(to, from, stream),
        Err(status) => status,
    }
}

pub(crate) fn cudaMemcpyFromSymbol(
    to: Region,
    symbol: Ptr,
    size: usize,
    offset: usize,
    kind: i32,
) -> i32 {
    cudaMemcpyFromSymbolAsync(to, symbol, size, offset, kind, Ptr::NULL)
}

pub(crate) fn cudaMemcpyBatchAsync(
    to: Regions<'_>,
    from: Regions<'_>,
    _sizes: &[usize],
    _count: usize,
    _attributes: Ptr,
    _indices: Ptr,
    _attribute_count: usize,
    stream: Ptr,
) -> i32 {
    for (to, from) in to.iter().zip(from.iter()) {
        super::memory::copy(to, from, stream);
    }
    code::SUCCESS
}

pub(crate) fn __cudaRegisterFatBinary(binary: FatBinary) -> Ptr {
    super::images::register_binary(binary)
}

pub(crate) fn __cudaRegisterFatBinaryEnd(_handle: Ptr) {}

pub(crate) fn __cudaUnregisterFatBinary(handle: Ptr) {
    super::images::unregister_binary(handle);
}

pub(crate) fn __cudaRegisterFunction(
    handle: Ptr,
    host: Ptr,
    _device: Ptr,
    name: Option<&CStr>,
    _threads: i32,
    _thread: Ptr,
    _block: Ptr,
    _block_extent: Ptr,
    _grid_extent: Ptr,
    _warp: Ptr,
) {
    super::images::register_kernel(handle, host, name);
    super::attention::register(host, name);
}

pub(crate) fn __cudaRegisterVar(
    _handle: Ptr,
    host: Ptr,
    _address: Ptr,
    _name: Ptr,
    _external: i32,
    size: usize,
    _constant: i32,
    _global: i32,
) {
    super::kernel::register_variable(host, size);
}

/// A managed variable is reached through a pointer, which must point somewhere.
pub(crate) fn __cudaRegisterManagedVar(
    _handle: Ptr,
    host: Out<Ptr>,
    _address: Ptr,
    _name: Ptr,
    _external: i32,
    size: usize,
    _constant: i32,
    _global: i32,
) {
    super::kernel::register_variable(host.address(), size);
    let mut address = 0;
    // SAFETY: a local variable.
    super::kernel::symbol_address(unsafe { Out::new(&raw mut address) }, host.address());
    host.set(Ptr(address as usize));
}

pub(crate) fn __cudaInitModule(_handle: Ptr) -> i32 {
    1
}

pub(crate) fn cudaLaunchKernelExC(
    config: Option<[u8; 40]>,
    kernel: Ptr,
    arguments: Arguments,
) -> i32 {
    super::kernel::launch_described_runtime(config, kernel, arguments)
}

pub(crate) fn cudaLaunchCooperativeKernelMultiDevice(_list: Ptr, count: u32, _flags: u32) -> i32 {
    for _ in 0..count {
        super::kernel::launch(Ptr::NULL);
    }
    code::SUCCESS
}

pub(crate) fn cudaFuncGetName(name: Out<Ptr>, _kernel: Ptr) -> i32 {
    super::kernel::kernel_name(name)
}

pub(crate) fn cudaFuncSetAttribute(_kernel: Ptr, _attribute: i32, _value: i32) -> i32 {
    code::SUCCESS
}

/// Neighbours of a node: the count stands in the third parameter before CUDA 13
/// and in the fourth since.
pub(crate) fn cudaGraphNodeGetDependencies(
    _node: Ptr,
    _neighbours: Ptr,
    third: OutArray<usize>,
    fourth: OutArray<usize>,
) -> i32 {
    third.set(0, 0);
    fourth.set(0, 0);
    code::SUCCESS
}

pub(crate) use cudaGraphNodeGetDependencies as cudaGraphNodeGetDependentNodes;

pub(crate) fn cudaGraphNodeGetDependencies_v2(
    _node: Ptr,
    _neighbours: Ptr,
    _edges: Ptr,
    count: InOut<usize>,
) -> i32 {
    super::stream::no_neighbours(&count)
}

pub(crate) fn cudaGraphGetEdges(
    _graph: Ptr,
    _from: Ptr,
    _to: Ptr,
    fourth: OutArray<usize>,
    fifth: OutArray<usize>,
) -> i32 {
    fourth.set(0, 0);
    fifth.set(0, 0);
    code::SUCCESS
}

pub(crate) fn cudaGraphAddNode(
    out: Out<Ptr>,
    graph: Ptr,
    _after: Ptr,
    _edges: Ptr,
    _count: usize,
    _parameters: Ptr,
) -> i32 {
    super::stream::add_node(out, graph)
}

pub(crate) use cudaGraphAddNode as cudaGraphAddNode_v2;

pub(crate) fn cudaIpcCloseMemHandle(address: Ptr) -> i32 {
    super::memory::ipc_close(address.0 as u64)
}

pub(crate) fn cudaGetDriverEntryPoint(
    name: Option<&CStr>,
    out: Out<Ptr>,
    flags: u64,
    found: Out<i32>,
) -> i32 {
    let version = machine().map_or(12040, |machine| machine.config.cuda_version);
    cudaGetDriverEntryPointByVersion(name, out, version as u32, flags, found)
}

pub(crate) fn cudaGetDriverEntryPointByVersion(
    name: Option<&CStr>,
    out: Out<Ptr>,
    version: u32,
    _flags: u64,
    found: Out<i32>,
) -> i32 {
    let function = super::cuda::entry_point(name, version as i32);
    out.set(function);
    found.set(i32::from(function.is_null()));
    code::SUCCESS
}

pub(crate) fn cudaLibraryGetKernelCount(count: Out<u32>, _library: Ptr) -> i32 {
    count.set(1);
    code::SUCCESS
}

pub(crate) fn cudaLibraryGetUnifiedFunction(out: Out<Ptr>, _library: Ptr, symbol: Ptr) -> i32 {
    super::kernel::same_handle(out, symbol)
}
