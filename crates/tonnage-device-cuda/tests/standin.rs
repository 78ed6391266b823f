// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device on a driver that is loaded: the stand-in's library, through the
//! very calls that a program on a GPU makes.
//!
//! One process has one machine, so the tests take turns.
#![expect(unsafe_code, reason = "sets the environment, and calls a control")]
#![expect(
    clippy::unwrap_used,
    reason = "a test whose stage cannot be set has failed"
)]

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tonnage_alloc::tonnage::{Allocator, Settings};
use tonnage_alloc::{
    Access, Device, DeviceAddr, DeviceError, EventId, PhysicalId, Policy, Request, StreamId, torch,
};
use tonnage_capture::{
    AddressOrderName, CONFIG_FILE, DeviceProfile, LEDGER_FILE, RUN_VARIABLE, RunConfig,
};
use tonnage_conformance::TestDevice;
use tonnage_device_cuda::{Capture, CudaDevice, LoadError};

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 32 * MIB;

fn profile(total: u64) -> DeviceProfile {
    DeviceProfile {
        name: "NVIDIA Test".to_owned(),
        total,
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

/// The stand-in, which cargo has built for these tests.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libtonnage_standin.so")
}

/// Makes this process one of a run, with a device of 160 MiB and one of 64.
fn stage() -> MutexGuard<'static, ()> {
    static STAGE: OnceLock<Mutex<()>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let config = RunConfig {
            devices: vec![profile(128 * MIB + CONTEXT), profile(32 * MIB + CONTEXT)],
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
        Mutex::new(())
    });
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device(number: i32) -> CudaDevice {
    // SAFETY: the library is the stand-in, which checks every handle and address that it is given.
    unsafe { CudaDevice::of_library(&library(), number) }.unwrap()
}

/// Lets the work of a stream wait, or happen.
fn hold(stream: StreamId, hold: bool) {
    let library = std::ffi::CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: the function is the stand-in's control for tests, of this signature.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        let found = libc::dlsym(handle, c"tonnage_hold_stream".as_ptr());
        assert!(!found.is_null());
        let control: extern "C" fn(*mut c_void, bool) = std::mem::transmute(found);
        control(
            std::ptr::with_exposed_provenance_mut(stream.0 as usize),
            hold,
        );
    }
}

/// The stand-in has no bytes behind large memory, so the suite writes none; it checks the calls of the driver.
struct Driver(CudaDevice);

impl Driver {
    fn new() -> Self {
        Self(device(0))
    }

    fn small() -> Self {
        Self(device(1))
    }
}

/// Passes the calls on.
macro_rules! pass {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> Result<$result, DeviceError> {
            self.0.$name($($argument),*)
        })*
    };
}

impl Device for Driver {
    fn total(&self) -> u64 {
        self.0.total()
    }

    fn free_bytes(&self) -> u64 {
        self.0.free_bytes()
    }

    fn granularity(&self) -> u64 {
        self.0.granularity()
    }

    pass! {
        malloc(size: u64) -> DeviceAddr;
        free(addr: DeviceAddr) -> ();
        reserve(size: u64) -> DeviceAddr;
        unreserve(addr: DeviceAddr, size: u64) -> ();
        create(size: u64) -> PhysicalId;
        release(memory: PhysicalId) -> ();
        map(addr: DeviceAddr, size: u64, memory: PhysicalId) -> ();
        unmap(addr: DeviceAddr, size: u64) -> ();
        set_access(addr: DeviceAddr, size: u64, access: Access) -> ();
        create_event() -> EventId;
        destroy_event(event: EventId) -> ();
        record_event(event: EventId, stream: StreamId) -> ();
        query_event(event: EventId) -> bool;
        wait_event(event: EventId) -> ();
    }
}

impl TestDevice for Driver {
    const CHECKS_ACCESS: bool = false;
}

#[test]
fn it_passes_the_suite_for_devices() {
    let _stage = stage();
    let free = device(0).free_bytes();
    tonnage_conformance::device(Driver::new);
    assert_eq!(device(0).free_bytes(), free, "everything came back");
}

#[test]
fn policies_pass_their_suite_on_it() {
    let _stage = stage();
    let free = device(0).free_bytes();
    let own = |device| Allocator::new(device, Settings::default());
    tonnage_conformance::policy(Driver::new, own);
    let torch = |device| torch::Allocator::new(device, torch::Settings::default());
    tonnage_conformance::policy(Driver::new, torch);
    assert_eq!(device(0).free_bytes(), free, "everything came back");
}

#[test]
fn every_call_of_the_driver_may_fail_once() {
    let _stage = stage();
    let free = device(1).free_bytes();
    let calls = tonnage_conformance::every_call_fails(Driver::small, &Settings::default(), 1);
    assert!(calls > 50, "{calls} calls");
    let calls = tonnage_conformance::every_call_fails_while_pausing(Driver::small, 1);
    assert!(calls > 50, "{calls} calls");
    assert_eq!(device(1).free_bytes(), free, "everything came back");
}

#[test]
fn a_device_is_the_one_of_its_number() {
    let _stage = stage();
    let (first, second) = (device(0), device(1));
    assert_eq!(first.total(), 160 * MIB);
    assert_eq!(second.total(), 64 * MIB);
    assert_eq!(second.free_bytes(), 32 * MIB, "a context is open");
    // Each takes from its own, whichever was used last.
    let mut on_second = Allocator::new(second, Settings::default());
    let before = first.free_bytes();
    let block = on_second
        .alloc(Request::new(20 * MIB, StreamId(0)))
        .unwrap();
    assert_eq!(first.free_bytes(), before);
    assert_eq!(on_second.device().free_bytes(), 12 * MIB);
    on_second.free(block).unwrap();
    on_second.close().unwrap();
    assert_eq!(on_second.device().free_bytes(), 32 * MIB);
}

#[test]
fn what_is_missing_is_told() {
    let _stage = stage();
    // SAFETY: none of them makes a device.
    let open = |library: &Path, number| unsafe { CudaDevice::of_library(library, number) };
    let nowhere = open(Path::new("libno-such-driver.so"), 0);
    assert!(matches!(nowhere, Err(LoadError::Missing(_))), "{nowhere:?}");
    // A library, but no driver.
    let other = open(Path::new("libc.so.6"), 0);
    let wanted = LoadError::Function("cuInit".to_owned());
    assert_eq!(other.err(), Some(wanted));
    for number in [-1, 2] {
        let none = open(&library(), number);
        let told = matches!(
            none,
            Err(LoadError::Driver {
                call: "cuDeviceGet",
                ..
            })
        );
        assert!(told, "{none:?}");
    }
}

#[test]
fn an_event_of_a_busy_stream_is_waited_for() {
    let _stage = stage();
    let mut device = device(0);
    let stream = StreamId(0x7730);
    let event = device.create_event().unwrap();
    hold(stream, true);
    device.record_event(event, stream).unwrap();
    assert_eq!(device.query_event(event), Ok(false));
    assert_eq!(device.capture(stream), Ok(Capture::None));
    device.wait_event(event).unwrap();
    assert_eq!(device.query_event(event), Ok(true));
    hold(stream, false);
    device.destroy_event(event).unwrap();
}

/// Memory whose stream is busy goes to another stream only when that has caught up; its pages stay where they are.
#[test]
fn pages_of_a_busy_stream_do_not_move() {
    let _stage = stage();
    let busy = StreamId(0x7740);
    let mut allocator = Allocator::new(device(0), Settings::default());
    let first = allocator.alloc(Request::new(60 * MIB, busy)).unwrap();
    hold(busy, true);
    allocator.free(first).unwrap();
    let second = allocator
        .alloc(Request::new(60 * MIB, StreamId(0)))
        .unwrap();
    assert_ne!(first, second);
    assert_eq!(allocator.statistics().pages_moved, 0);
    assert_eq!(allocator.reserved(), 120 * MIB);
    hold(busy, false);
    let third = allocator
        .alloc(Request::new(68 * MIB, StreamId(0)))
        .unwrap();
    assert_eq!(allocator.reserved(), 128 * MIB);
    assert_eq!(allocator.statistics().waits, 0);
    for block in [second, third] {
        allocator.free(block).unwrap();
    }
    allocator.close().unwrap();
}
