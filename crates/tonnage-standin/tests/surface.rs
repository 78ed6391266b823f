// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stand-in through its C surface, as a program sees it.
//!
//! One process has one machine, so all tests share a run with two devices and
//! each keeps to a device, or to things that do not touch the other tests.
#![expect(unsafe_code, reason = "calls a C interface")]
#![expect(
    clippy::unwrap_used,
    reason = "a test whose stage cannot be set has failed"
)]

use std::sync::{Mutex, MutexGuard, OnceLock};

use tonnage_alloc::torch::{Allocator, Event, Settings};
use tonnage_alloc::{
    Access, AddressOrder, Device, DeviceAddr, DeviceError, EventId, PhysicalId, SimConfig,
    SimDevice, StreamId,
};
use tonnage_capture::ledger::{DeviceWord, Ledger};
use tonnage_capture::log::{CallKind, Record};
use tonnage_capture::{
    AddressOrderName, CONFIG_FILE, DeviceProfile, LEDGER_FILE, LOG_PREFIX, RUN_VARIABLE, RunConfig,
};
use tonnage_conformance::TestDevice;
use tonnage_standin::exports::{cublas, cuda, cudart, cusolver, nvml};
use tonnage_standin::ffi::{Dim3, FAILED, HostFunction, Ptr, guard};

const TOTAL: u64 = 4 << 30;
const CONTEXT: u64 = 512 << 20;
const MIB: u64 = 1 << 20;

fn profile() -> DeviceProfile {
    DeviceProfile {
        name: "NVIDIA Test 4 GiB".to_owned(),
        total: TOTAL,
        context: CONTEXT,
        major: 9,
        minor: 0,
        sm_count: 132,
        shared_per_block: 48 << 10,
        shared_per_block_optin: 227 << 10,
        shared_per_sm: 228 << 10,
        shared_reserved: 1 << 10,
        registers: 65536,
        threads_per_sm: 2048,
        blocks_per_sm: 32,
        l2: 50 << 20,
        clock_khz: 1_980_000,
        memory_clock_khz: 2_619_000,
        bus_width: 5120,
        nccl_channels: 24,
    }
}

/// The run of this test program; the lock keeps tests that count bytes apart.
fn stage() -> MutexGuard<'static, std::path::PathBuf> {
    static STAGE: OnceLock<Mutex<std::path::PathBuf>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let config = RunConfig {
            devices: vec![profile(); 2],
            machines: 1,
            absent_ranks: false,
            address_order: AddressOrderName::Descending,
            cuda_version: 13020,
            value_limit: 64 << 10,
            unlimited: false,
            lag: 0,
        };
        let config = serde_json::to_vec(&config).unwrap();
        std::fs::write(folder.join(CONFIG_FILE), config).unwrap();
        std::fs::write(folder.join(LEDGER_FILE), tonnage_capture::ledger::fresh()).unwrap();
        // SAFETY: before the first call of the stand-in, which is the only
        // reader; other threads of the test program wait here.
        unsafe {
            std::env::set_var(RUN_VARIABLE, &folder);
            std::env::remove_var("CUDA_VISIBLE_DEVICES");
        }
        Mutex::new(folder)
    });
    stage
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Calls a function of the C surface.
macro_rules! call {
    ($function:expr $(, $argument:expr)* $(,)?) => {
        // SAFETY: every out-parameter is a live local or null.
        unsafe { $function($($argument),*) }
    };
}

fn use_device(device: i32) {
    assert_eq!(call!(cudart::cudaSetDevice, device), 0);
}

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    assert_eq!(
        call!(cudart::cudaMemGetInfo, &raw mut free, &raw mut total),
        0
    );
    assert_eq!(total as u64, TOTAL);
    free as u64
}

/// A device that is reached through the driver's C functions alone.
#[derive(Clone)]
struct Driver(i32);

/// The result of a status. 0 is success and 2 is out of memory, for the runtime and
/// for the driver.
fn answer(call: &'static str, status: i32) -> Result<(), DeviceError> {
    match status {
        0 => Ok(()),
        2 => Err(DeviceError::OutOfMemory {
            requested: 0,
            free: free_bytes(),
        }),
        code => Err(DeviceError::Driver { call, code }),
    }
}

/// Calls a function of the C surface for its answer.
macro_rules! ask {
    ($module:ident :: $function:ident $(, $argument:expr)* $(,)?) => {
        answer(stringify!($function), call!($module::$function $(, $argument)*))
    };
}

impl Device for Driver {
    fn total(&self) -> u64 {
        TOTAL
    }

    fn free_bytes(&self) -> u64 {
        use_device(self.0);
        free_bytes()
    }

    fn granularity(&self) -> u64 {
        let mut granularity = 0;
        call!(
            cuda::cuMemGetAllocationGranularity,
            &raw mut granularity,
            Ptr::NULL,
            0
        );
        granularity as u64
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        // The runtime answers zero bytes with success and no address.
        if size == 0 {
            return Err(DeviceError::Invalid("an allocation of zero bytes"));
        }
        use_device(self.0);
        let mut address = 0;
        ask!(cudart::cudaMalloc, &raw mut address, size as usize)?;
        Ok(DeviceAddr(address))
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        ask!(cudart::cudaFree, Ptr(addr.0 as usize))
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        use_device(self.0);
        let mut address = 0;
        ask!(
            cuda::cuMemAddressReserve,
            &raw mut address,
            size as usize,
            0,
            0,
            0
        )?;
        Ok(DeviceAddr(address))
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        ask!(cuda::cuMemAddressFree, addr.0, size as usize)
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        let mut properties = [0_i32; 8];
        (properties[0], properties[2], properties[3]) = (1, 1, self.0);
        let mut handle = Ptr::NULL;
        let described = properties.as_ptr().cast();
        ask!(
            cuda::cuMemCreate,
            &raw mut handle,
            size as usize,
            described,
            0
        )?;
        Ok(PhysicalId(handle.0 as u64))
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        ask!(cuda::cuMemRelease, memory.0)
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        ask!(cuda::cuMemMap, addr.0, size as usize, 0, memory.0, 0)
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        ask!(cuda::cuMemUnmap, addr.0, size as usize)
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
        // A location, which is a kind (1 for a device) and a number, and the flags.
        let described = [1_i32, self.0, flags];
        let described = Ptr(described.as_ptr() as usize);
        ask!(cuda::cuMemSetAccess, addr.0, size as usize, described, 1)
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let mut event = Ptr::NULL;
        ask!(cudart::cudaEventCreate, &raw mut event)?;
        Ok(EventId(event.0 as u64))
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        ask!(cudart::cudaEventDestroy, Ptr(event.0 as usize))
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let stream = Ptr(stream.0 as usize);
        ask!(cudart::cudaEventRecord, Ptr(event.0 as usize), stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        /// `cudaErrorNotReady`
        const NOT_READY: i32 = 600;
        match call!(cudart::cudaEventQuery, Ptr(event.0 as usize)) {
            NOT_READY => Ok(false),
            status => answer("cudaEventQuery", status).map(|()| true),
        }
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        ask!(cudart::cudaEventSynchronize, Ptr(event.0 as usize))
    }
}

impl TestDevice for Driver {
    const CHECKS_ACCESS: bool = false;
}

/// The driver's C functions are a device like any other.
#[test]
fn the_drivers_calls_pass_the_conformance_suite() {
    let _stage = stage();
    use_device(1);
    let before = free_bytes();
    tonnage_conformance::device(|| Driver(1));
    for settings in ["", "expandable_segments:True"] {
        let settings: Settings = settings.parse().unwrap();
        let private_pools = !settings.expandable_segments;
        let make = |device| Allocator::new(device, settings.clone());
        tonnage_conformance::policy_with(private_pools, || Driver(1), make);
    }
    use_device(1);
    assert_eq!(free_bytes(), before, "everything came back");
}

/// A stream of requests that is the same every time.
fn drive<D: Device + Clone>(device: &mut D, settings: &str) -> (Vec<Event>, u64) {
    let settings: Settings = settings.parse().unwrap();
    let rules = tonnage_alloc::torch::Rules::for_version(tonnage_alloc::torch::Version(2, 15));
    let mut torch = Allocator::with(device.clone(), settings, rules, Vec::new());
    let mut live = Vec::new();
    let mut state = 12345_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..4000 {
        let stream = StreamId([0, 0x40, 0x80][random(3) as usize]);
        match random(20) {
            0..=10 => {
                let size = [512, 3000, 70_000, MIB + 1, 7 * MIB, 30 * MIB, 200 * MIB];
                let size = size[random(7) as usize] + random(4096);
                if let Ok(addr) = torch.malloc(size, stream) {
                    live.push(addr);
                }
            }
            11..=17 if !live.is_empty() => {
                let addr = live.swap_remove(random(live.len() as u64) as usize);
                torch.free(addr).unwrap();
            }
            18 if !live.is_empty() => {
                let addr = live[random(live.len() as u64) as usize];
                torch.record_stream(addr, stream).unwrap();
            }
            19 if random(50) == 0 => torch.empty_cache().unwrap(),
            _ => {}
        }
    }
    torch.check().unwrap();
    for addr in live {
        torch.free(addr).unwrap();
    }
    torch.empty_cache().unwrap();
    *device = torch.device().clone();
    (torch.sink().clone(), torch.peak_reserved())
}

/// The product's promise: the same policy on the simulated device and on the
/// driver's C functions does the same, event for event, address for address.
#[test]
fn a_policy_cannot_tell_the_simulated_device_from_the_drivers_calls() {
    let _stage = stage();
    use_device(1);
    let (base, span) = if cfg!(tonnage_sanitizer = "address") {
        (0x1100_0000_0000, 8 << 40)
    } else if cfg!(tonnage_sanitizer = "thread") {
        (0x0010_0000_0000, 224 << 30)
    } else {
        (0x1000_0000_0000, 8 << 40)
    };
    let mut sim = SimDevice::new(SimConfig {
        total: TOTAL,
        context: CONTEXT,
        order: AddressOrder::Descending,
        base: base + span,
        span,
    });
    sim.open_context().unwrap();
    // One run after the other, so that each starts with the holes the last one left.
    for settings in ["", "expandable_segments:True", "max_split_size_mb:64"] {
        let simulated = drive(&mut sim, settings);
        let driven = drive(&mut Driver(1), settings);
        assert!(
            simulated.0.len() > 2000,
            "{settings}: the script does something"
        );
        let difference = simulated.0.iter().zip(&driven.0).position(|(a, b)| a != b);
        assert_eq!(difference, None, "{settings}");
        assert_eq!(simulated, driven, "{settings}");
        use_device(1);
        assert_eq!(free_bytes(), TOTAL - CONTEXT, "everything came back");
    }
}

#[test]
fn memory_is_refused_with_the_right_code_which_sticks_until_it_is_read() {
    let stage = stage();
    use_device(0);
    let before = free_bytes();
    let mut address = 1;
    let status = call!(cudart::cudaMalloc, &raw mut address, (TOTAL + 1) as usize);
    assert_eq!(
        (status, address),
        (2, 0),
        "the out-parameter is written even so"
    );
    assert_eq!(call!(cudart::cudaPeekAtLastError), 2);
    assert_eq!(call!(cudart::cudaGetLastError), 2);
    assert_eq!(call!(cudart::cudaGetLastError), 0);
    assert_eq!(
        call!(cuda::cuMemAlloc_v2, &raw mut address, TOTAL as usize),
        2
    );
    assert_eq!(
        call!(cudart::cudaGetLastError),
        0,
        "the driver's errors are its own"
    );
    assert_eq!(free_bytes(), before);
    let text = call!(cudart::cudaGetErrorString, 2).0 as *const std::ffi::c_char;
    // SAFETY: the interface gives out strings that last.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"out of memory");
    let ledger = Ledger::from_bytes(&std::fs::read(stage.join(LEDGER_FILE)).unwrap()).unwrap();
    assert!(ledger.device(0, 0, DeviceWord::Refusals) >= 2);
    assert_eq!(ledger.device(0, 0, DeviceWord::Context), CONTEXT);
}

#[test]
fn an_address_says_what_it_is() {
    let _stage = stage();
    use_device(0);
    let mut address = 0;
    assert_eq!(call!(cudart::cudaMalloc, &raw mut address, 3 << 20), 0);
    let mut attributes = [0xff_u8; 88];
    let out = (&raw mut attributes).cast();
    let inside = Ptr(address as usize + 100);
    assert_eq!(call!(cudart::cudaPointerGetAttributes, out, inside), 0);
    assert_eq!(
        attributes[..8],
        [2, 0, 0, 0, 0, 0, 0, 0],
        "device memory of device 0"
    );
    assert_eq!(attributes[24..], [0xff; 64], "CUDA 12 has only 24 bytes");
    let local = 0_u8;
    let host = Ptr(&raw const local as usize);
    assert_eq!(call!(cudart::cudaPointerGetAttributes, out, host), 0);
    assert_eq!(attributes[0], 0, "not registered");
    let mut pinned = Ptr::NULL;
    assert_eq!(call!(cudart::cudaHostAlloc, &raw mut pinned, 5000, 0), 0);
    assert_eq!(call!(cudart::cudaPointerGetAttributes, out, pinned), 0);
    assert_eq!(attributes[0], 1, "pinned");
    assert_eq!(call!(cudart::cudaFreeHost, pinned), 0);
    assert_eq!(call!(cudart::cudaFreeHost, pinned), 1, "only once");
    let (mut base, mut size) = (0, 0);
    let range = call!(
        cuda::cuMemGetAddressRange_v2,
        &raw mut base,
        &raw mut size,
        address + 7
    );
    assert_eq!((range, base, size), (0, address, 3 << 20));
    assert_eq!(call!(cudart::cudaFree, Ptr(address as usize)), 0);
    assert_eq!(
        call!(cudart::cudaFree, Ptr(address as usize)),
        1,
        "only once"
    );
}

#[test]
fn pinned_memory_is_given_back_as_it_was_taken() {
    let stage = stage();
    use_device(0);
    let pinned = |stage: &std::path::Path| -> Vec<(CallKind, u64)> {
        let log = std::fs::read_dir(stage).unwrap().find_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(LOG_PREFIX).then_some(path)
        });
        let log = log.map_or_else(Vec::new, |log| std::fs::read(log).unwrap());
        let calls = tonnage_capture::log::read(&log).map(Result::unwrap);
        calls
            .filter_map(|record| match record {
                Record::Call(call) => Some((call.kind, call.size)),
                _ => None,
            })
            .filter(|(kind, _)| matches!(kind, CallKind::HostAlloc | CallKind::HostFree))
            .collect()
    };
    let before = pinned(&stage).len();
    let mut address = Ptr::NULL;
    call!(cudart::cudaMallocHost, &raw mut address, 100);
    call!(cudart::cudaFreeHost, address);
    let own = [0_u8; 300];
    let own = Ptr(own.as_ptr() as usize);
    assert_eq!(call!(cudart::cudaHostRegister, own, 300, 0), 0);
    assert_eq!(call!(cudart::cudaHostUnregister, own), 0);
    assert_eq!(
        pinned(&stage)[before..],
        [
            (CallKind::HostAlloc, 100),
            (CallKind::HostFree, 100),
            (CallKind::HostAlloc, 300),
            (CallKind::HostFree, 300),
        ]
    );
}

#[test]
fn small_values_come_back_and_the_rest_is_zero() {
    let _stage = stage();
    use_device(0);
    let mut address = 0;
    call!(cudart::cudaMalloc, &raw mut address, 1 << 30);
    let device = Ptr(address as usize);
    let data: Vec<u8> = (0..=255).collect();
    let host = Ptr(data.as_ptr() as usize);
    assert_eq!(call!(cudart::cudaMemcpy, device, host, 256, 1), 0);
    let mut back = vec![7_u8; 512];
    let target = Ptr(back.as_mut_ptr() as usize);
    assert_eq!(call!(cudart::cudaMemcpy, target, device, 512, 2), 0);
    assert_eq!(back[..256], data);
    assert_eq!(back[256..], [0; 256]);
    // Carried along on the device, filled, and forgotten under something large.
    let other = Ptr(device.0 + (64 << 20));
    call!(cudart::cudaMemcpy, other, device, 256, 3);
    call!(cudart::cudaMemset, Ptr(other.0 + 16), 9, 4);
    call!(cudart::cudaMemcpy, target, other, 32, 2);
    assert_eq!(back[..16], data[..16]);
    assert_eq!(back[16..24], [9, 9, 9, 9, 20, 21, 22, 23]);
    let large = vec![1_u8; 1 << 20];
    call!(
        cudart::cudaMemcpy,
        device,
        Ptr(large.as_ptr() as usize),
        1 << 20,
        1
    );
    call!(cudart::cudaMemcpy, target, device, 512, 2);
    assert_eq!(back, [0; 512]);
    // A large copy to the host gives zeros, also where something stood.
    let mut large = vec![1_u8; 3 << 20];
    let target = Ptr(large.as_mut_ptr() as usize);
    call!(cudart::cudaMemcpy, target, device, 3 << 20, 2);
    assert!(large.iter().all(|&byte| byte == 0));
    call!(cudart::cudaFree, device);
}

#[test]
fn a_capture_spreads_through_events_and_ends_for_all() {
    let _stage = stage();
    use_device(0);
    let (mut first, mut second, mut event) = (Ptr::NULL, Ptr::NULL, Ptr::NULL);
    call!(cudart::cudaStreamCreate, &raw mut first);
    call!(cudart::cudaStreamCreate, &raw mut second);
    call!(cudart::cudaEventCreate, &raw mut event);
    assert_ne!(first, second);
    let capturing = |stream| {
        let mut status = -1;
        call!(cudart::cudaStreamIsCapturing, stream, &raw mut status);
        status
    };
    assert_eq!(
        call!(cudart::cudaStreamBeginCapture, Ptr::NULL, 0),
        900,
        "not the default stream"
    );
    assert_eq!(call!(cudart::cudaStreamBeginCapture, first, 0), 0);
    assert_eq!((capturing(first), capturing(second)), (1, 0));
    call!(cudart::cudaEventRecord, event, first);
    call!(cudart::cudaStreamWaitEvent, second, event, 0);
    assert_eq!(capturing(second), 1);
    let nothing = Dim3::default();
    call!(
        cudart::cudaLaunchKernel,
        Ptr(1),
        nothing,
        nothing,
        std::ptr::null(),
        0,
        second
    );
    let mut graph = Ptr::NULL;
    assert_eq!(
        call!(cudart::cudaStreamEndCapture, first, &raw mut graph),
        0
    );
    assert_eq!((capturing(first), capturing(second)), (0, 0));
    let mut nodes = 0;
    call!(
        cudart::cudaGraphGetNodes,
        graph,
        std::ptr::null_mut(),
        &raw mut nodes
    );
    assert_eq!(nodes, 1);
    assert_eq!(
        call!(cudart::cudaStreamEndCapture, first, &raw mut graph),
        901
    );
}

#[test]
fn a_stream_that_captures_cannot_be_waited_for() {
    let _stage = stage();
    use_device(0);
    let (mut stream, mut graph) = (Ptr::NULL, Ptr::NULL);
    call!(cudart::cudaStreamCreate, &raw mut stream);
    call!(cudart::cudaStreamBeginCapture, stream, 0);
    assert_eq!(call!(cudart::cudaStreamSynchronize, stream), 900);
    let end = |graph: &mut Ptr| call!(cudart::cudaStreamEndCapture, stream, &raw mut *graph);
    assert_eq!(end(&mut graph), 901, "the capture is void");
    assert_eq!(call!(cudart::cudaStreamSynchronize, stream), 0);
    call!(cudart::cudaStreamBeginCapture, stream, 0);
    assert_eq!(end(&mut graph), 0);
}

#[test]
fn a_host_function_is_called_and_a_timer_moves() {
    unsafe extern "C" fn add_one(data: Ptr) {
        // SAFETY: the test passes a live number.
        unsafe { *(data.0 as *mut u32) += 1 };
    }
    let _stage = stage();
    use_device(0);
    let mut count = 0_u32;
    let function = Some(add_one as HostFunction);
    let data = Ptr(&raw mut count as usize);
    assert_eq!(
        call!(cudart::cudaLaunchHostFunc, Ptr::NULL, function, data),
        0
    );
    assert_eq!(count, 1);
    let mut ms = 0.0;
    assert_eq!(
        call!(cudart::cudaEventElapsedTime, &raw mut ms, Ptr(1), Ptr(2)),
        0
    );
    assert!(ms > 0.0);
}

/// Rows, volumes and lists name their memory in several parameters, or inside of a description.
#[test]
fn copies_of_rows_volumes_and_lists_carry_their_values() {
    let _stage = stage();
    use_device(0);
    let mut address = 0;
    assert_eq!(call!(cudart::cudaMalloc, &raw mut address, 4096), 0);
    let device = Ptr(address as usize);
    let data: Vec<u8> = (0..64).collect();
    let host = Ptr(data.as_ptr() as usize);
    // Four rows of 8 bytes out of rows of 16, to rows of 32, and back to rows of 8.
    let to_device = call!(cudart::cudaMemcpy2D, device, 32, host, 16, 8, 4, 1);
    let mut back = [0_u8; 32];
    let target = Ptr(back.as_mut_ptr() as usize);
    let to_host = call!(cudart::cudaMemcpy2D, target, 8, device, 32, 8, 4, 2);
    assert_eq!((to_device, to_host), (0, 0));
    let rows: Vec<u8> = data.chunks(16).flat_map(|row| row[..8].to_vec()).collect();
    assert_eq!(back, *rows);
    // The same two rows by the driver's description: x 0, y 1, device 2, pitch 32.
    let mut words = [0_usize; 16];
    (words[1], words[2], words[4], words[6]) = (1, 2, device.0, 32);
    (words[9], words[10], words[13]) = (1, target.0, 8);
    (words[14], words[15]) = (8, 2);
    back = [0; 32];
    assert_eq!(call!(cuda::cuMemcpy2D_v2, words.as_ptr().cast()), 0);
    assert_eq!(back[..16], rows[8..24]);
    assert_eq!(back[16..], [0; 16]);
    // Two slices of two rows of 8 bytes.
    let mut words = [0_usize; 20];
    (words[4], words[5], words[7]) = (device.0, 32, 2);
    (words[12], words[13], words[15]) = (target.0, 8, 2);
    (words[16], words[17], words[18]) = (8, 2, 2);
    back = [0; 32];
    assert_eq!(call!(cudart::cudaMemcpy3D, words.as_ptr().cast()), 0);
    assert_eq!(back, *rows);
    // A list of two copies.
    back = [0; 32];
    let from = [device, Ptr(device.0 + 32)];
    let to = [Ptr(target.0 + 8), target];
    let status = call!(
        cudart::cudaMemcpyBatchAsync,
        to.as_ptr(),
        from.as_ptr(),
        [8_usize, 4].as_ptr(),
        2,
        Ptr::NULL,
        Ptr::NULL,
        0,
        Ptr::NULL
    );
    assert_eq!(status, 0);
    assert_eq!(back[..4], rows[8..12]);
    assert_eq!(back[4..8], [0; 4]);
    assert_eq!(back[8..16], rows[..8]);
    for null in [
        call!(cuda::cuMemcpy2D_v2, std::ptr::null()),
        call!(cudart::cudaMemcpy3D, std::ptr::null()),
    ] {
        assert_eq!(null, 1);
    }
    // Attributes of the pointer, two of three wanted.
    let (mut kind, mut size) = (0_u32, 0_usize);
    let targets = [
        Ptr(&raw mut kind as usize),
        Ptr::NULL,
        Ptr(&raw mut size as usize),
    ];
    let status = call!(
        cuda::cuPointerGetAttributes,
        3,
        [2, 9, 12].as_ptr(),
        targets.as_ptr(),
        address
    );
    assert_eq!((status, kind, size), (0, 2, 4096));
    assert_eq!(call!(cudart::cudaFree, device), 0);
}

/// A variable is as large as it was registered: a copy beyond its end is an error and touches nothing.
#[test]
fn a_copy_beyond_a_variable_is_an_error() {
    let _stage = stage();
    use_device(0);
    let name = Ptr(0x7000_1234);
    call!(
        cudart::__cudaRegisterVar,
        Ptr::NULL,
        name,
        Ptr::NULL,
        Ptr::NULL,
        0,
        16,
        0,
        0
    );
    let data = [7_u8; 16];
    let mut back = [0_u8; 16];
    let from = Ptr(data.as_ptr() as usize);
    let to = Ptr(back.as_mut_ptr() as usize);
    let write = |size, offset| call!(cudart::cudaMemcpyToSymbol, name, from, size, offset, 1);
    assert_eq!(
        (write(16, 0), write(16, 1), write(1, usize::MAX)),
        (0, 1, 1)
    );
    assert_eq!(call!(cudart::cudaMemcpyFromSymbol, to, name, 8, 8, 2), 0);
    assert_eq!(back[..8], [7; 8]);
    assert_eq!(back[8..], [0; 8]);
}

#[test]
fn stubs_write_every_out_parameter() {
    let _stage = stage();
    let (mut size, mut handle) = (77, Ptr::NULL);
    let status = call!(
        cusolver::cusolverDnSgetrf_bufferSize,
        Ptr(1),
        8,
        8,
        Ptr(1),
        8,
        &raw mut size
    );
    assert_eq!((status, size), (0, 0));
    assert_eq!(call!(cublas::cublasCreate_v2, &raw mut handle), 0);
    assert!(!handle.is_null());
    let mut second = Ptr::NULL;
    call!(cublas::cublasCreate_v2, &raw mut second);
    assert_ne!(handle, second);
    // Null where the caller does not care.
    assert_eq!(
        call!(
            cudart::cudaMemGetInfo,
            std::ptr::null_mut(),
            std::ptr::null_mut()
        ),
        0
    );
}

#[test]
fn functions_are_found_by_name_and_version() {
    let _stage = stage();
    let find = |name: &std::ffi::CStr, version| {
        let (mut function, mut found) = (Ptr::NULL, -1);
        let name = name.as_ptr();
        call!(
            cuda::cuGetProcAddress_v2,
            name,
            &raw mut function,
            version,
            0,
            &raw mut found
        );
        (function.0, found)
    };
    let address = |function: *const ()| (function as usize, 0);
    assert_eq!(
        find(c"cuMemCreate", 12040),
        address(cuda::cuMemCreate as *const ())
    );
    assert_eq!(
        find(c"cuMemAlloc", 12040),
        address(cuda::cuMemAlloc_v2 as *const ())
    );
    let third = cuda::cuStreamGetCaptureInfo_v3 as *const ();
    assert_eq!(find(c"cuStreamGetCaptureInfo", 13000), address(third));
    assert_eq!(find(c"cuNoSuchThing", 13000), (0, 1));
    assert_eq!(find(c"cuGetExportTable", 13000), (0, 1), "never served");
    let mut table = Ptr(5);
    assert_ne!(call!(cuda::cuGetExportTable, &raw mut table, Ptr(1)), 0);
    assert!(table.is_null());
}

#[test]
fn nvml_sees_the_machine() {
    let _stage = stage();
    let mut count = 0;
    assert_eq!(call!(nvml::nvmlDeviceGetCount_v2, &raw mut count), 0);
    assert_eq!(count, 2);
    let mut device = Ptr::NULL;
    assert_eq!(
        call!(nvml::nvmlDeviceGetHandleByIndex_v2, 1, &raw mut device),
        0
    );
    let mut name = [0_u8; 64];
    let buffer = name.as_mut_ptr().cast();
    assert_eq!(call!(nvml::nvmlDeviceGetName, device, buffer, 64), 0);
    let text = std::ffi::CStr::from_bytes_until_nul(&name).unwrap();
    assert_eq!(text, c"NVIDIA Test 4 GiB");
    assert_eq!(
        call!(nvml::nvmlDeviceGetName, device, buffer, 4),
        7,
        "too small a buffer"
    );
    let mut temperature = 9;
    let target = &raw mut temperature;
    let status = call!(nvml::nvmlDeviceGetTemperature, device, 0, target);
    assert_eq!((status, temperature), (0, 35), "as an idle GPU");
    assert_eq!(
        call!(nvml::nvmlDeviceGetHandleByIndex_v2, 2, &raw mut device),
        2
    );
    let status = call!(nvml::nvmlDeviceGetTemperature, Ptr(1), 0, target);
    assert_eq!(status, 2, "no device has this handle");
}

#[test]
fn a_panic_stays_inside() {
    assert_eq!(guard(FAILED, || panic!("inside")), 999);
}

#[test]
fn pools_give_back_at_their_threshold() {
    let _stage = stage();
    use_device(0);
    let before = free_bytes();
    let (mut address, mut pool) = (0, Ptr::NULL);
    call!(cudart::cudaDeviceGetDefaultMemPool, &raw mut pool, 0);
    assert_eq!(
        call!(
            cudart::cudaMallocAsync,
            &raw mut address,
            100 << 20,
            Ptr::NULL
        ),
        0
    );
    assert_eq!(before - free_bytes(), 128 << 20, "chunks of 32 MiB");
    assert_eq!(
        call!(cudart::cudaFreeAsync, Ptr(address as usize), Ptr::NULL),
        0
    );
    assert_eq!(free_bytes(), before);
    let all = u64::MAX;
    let value = (&raw const all).cast();
    assert_eq!(call!(cudart::cudaMemPoolSetAttribute, pool, 4, value), 0);
    call!(
        cudart::cudaMallocAsync,
        &raw mut address,
        1 << 20,
        Ptr::NULL
    );
    call!(cudart::cudaFreeAsync, Ptr(address as usize), Ptr::NULL);
    assert_eq!(before - free_bytes(), 32 << 20, "kept");
    assert_eq!(call!(cudart::cudaMemPoolTrimTo, pool, 0), 0);
    assert_eq!(free_bytes(), before);
}

unsafe extern "C" {
    /// A control for tests, not a function of CUDA's.
    fn tonnage_hold_stream(stream: Ptr, hold: bool);
}

#[test]
fn events_of_a_held_stream_wait() {
    let _stage = stage();
    use_device(0);
    // SAFETY: it takes any value for a stream.
    let hold = |stream: Ptr, hold: bool| unsafe { tonnage_hold_stream(stream, hold) };
    let mut stream = Ptr::NULL;
    call!(cudart::cudaStreamCreate, &raw mut stream);
    let [mut before, mut first, mut second] = [Ptr::NULL; 3];
    for event in [&mut before, &mut first, &mut second] {
        call!(cudart::cudaEventCreate, &raw mut *event);
    }
    call!(cudart::cudaEventRecord, before, stream);
    hold(stream, true);
    call!(cudart::cudaEventRecord, first, stream);
    call!(cudart::cudaEventRecord, second, stream);
    let done = || [before, first, second].map(|event| call!(cudart::cudaEventQuery, event));
    assert_eq!(done(), [0, 600, 600]);
    call!(cudart::cudaEventSynchronize, first);
    assert_eq!(done(), [0, 0, 600], "whoever waits has waited");
    hold(stream, false);
    assert_eq!(done(), [0, 0, 0]);
    call!(cudart::cudaEventRecord, first, stream);
    assert_eq!(call!(cuda::cuEventQuery, first), 0);
    call!(cudart::cudaGetLastError);
}
