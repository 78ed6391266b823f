// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks have one owner, whatever a program calls in whatever order, and a failure loses none of them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonnage_alloc::tonnage::Settings;
use tonnage_alloc::{
    Access, Device, DeviceAddr, DeviceError, EventId, PhysicalId, PolicyError, Request, SimConfig,
    SimDevice, StreamId, Tag,
};
use tonnage_device_host::HostDevice;
use tonnage_runtime::{Runtime, Tenant};

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

fn runtime() -> Arc<Runtime<HostDevice>> {
    let device = HostDevice::new(64 * MIB).unwrap();
    Arc::new(Runtime::new(device, Settings::default()))
}

fn ask(bytes: u64) -> Request {
    Request::new(bytes, STREAM)
}

#[test]
fn a_block_of_another_runtime_is_refused_and_given_back() {
    let (one, two) = (runtime(), runtime());
    let (mut first, mut second) = (one.front(STREAM), two.front(STREAM));
    // One that a front keeps, and one that goes to the allocator.
    for bytes in [4096, 4 * MIB] {
        let mut block = first.alloc(bytes).unwrap();
        let foreign = block.addr();
        let named = second.record_stream(&mut block, StreamId(1));
        assert!(matches!(named, Err(PolicyError::Refused(_))), "{named:?}");
        let refused = second.free(block).unwrap_err();
        assert!(refused.to_string().contains("another runtime"));
        let refused = two.free_block(refused.block).unwrap_err();
        let own = second.alloc(bytes).unwrap();
        assert_ne!(own.addr(), foreign, "memory of another device");
        second.free(own).unwrap();
        first.free(refused.block).unwrap();
    }
    second.flush().unwrap();
    first.flush().unwrap();
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn a_foreign_block_does_not_make_others_be_lost() {
    let (one, two) = (runtime(), runtime());
    let (mut first, mut second) = (one.front(STREAM), two.front(STREAM));
    let foreign = first.alloc(512).unwrap();
    let own: Vec<_> = (0..10).map(|_| second.alloc(8192).unwrap()).collect();
    let refused = second.free(foreign).unwrap_err();
    for block in own {
        second.free(block).unwrap();
    }
    assert_eq!(two.empty_cache(), Ok(()));
    assert_eq!(two.statistics().unwrap().blocks, 0);
    two.close().unwrap();
    first.free(refused.block).unwrap();
}

#[test]
fn an_address_does_not_free_a_block() {
    let runtime = runtime();
    let mut front = runtime.front(STREAM);
    let mut block = front.alloc(4096).unwrap();
    let addr = block.addr();
    // While it is used, and while the front keeps it.
    assert_eq!(runtime.free(addr), Err(PolicyError::Owned(addr)));
    let named = runtime.record_stream(addr, StreamId(1));
    assert_eq!(named, Err(PolicyError::Owned(addr)));
    front.record_stream(&mut block, STREAM).unwrap();
    front.free(block).unwrap();
    assert_eq!(runtime.free(addr), Err(PolicyError::Owned(addr)));
    let named = runtime.record_stream(addr, StreamId(1));
    assert_eq!(named, Err(PolicyError::Owned(addr)));
    let kept = front.alloc(4096).unwrap();
    let other = runtime.alloc(Request::new(4096, StreamId(7))).unwrap();
    assert_eq!(kept.addr(), addr, "the front keeps it");
    assert_ne!(kept.addr(), other);
    assert_eq!(runtime.check(), Ok(()));
    // Nor does an address that was another block's before.
    runtime.free_block(kept).unwrap();
    runtime.free(other).unwrap();
    let stale = runtime.alloc(ask(3 * MIB)).unwrap();
    runtime.free(stale).unwrap();
    let block = front.alloc(3 * MIB).unwrap();
    assert_eq!(block.addr(), stale);
    assert_eq!(runtime.free(stale), Err(PolicyError::Owned(stale)));
    front.free(block).unwrap();
    front.flush().unwrap();
    runtime.close().unwrap();
}

#[test]
fn a_panic_of_the_program_does_not_break_the_runtime() {
    let runtime = runtime();
    let block = runtime.alloc(ask(4096)).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        runtime.with_device(|_| panic!("a bug of the program"))
    }));
    let panic = panicked.err().unwrap();
    assert_eq!(panic.downcast_ref(), Some(&"a bug of the program"));
    assert_eq!(runtime.statistics().unwrap().blocks, 1);
    assert_eq!(runtime.size_of(block), Ok(Some(4096)));
    runtime.free(block).unwrap();
    runtime.close().unwrap();
}

#[test]
fn a_call_inside_of_with_device_is_an_error_and_loses_nothing() {
    let runtime = runtime();
    let tenant = Tenant::new("tenant", 64 * MIB);
    let mut front = runtime.front(STREAM);
    let mut dropped = runtime.front(STREAM);
    let blocks: Vec<_> = (0..40).map(|_| front.alloc(4096).unwrap()).collect();
    let large = front.alloc_for(&tenant, 4 * MIB).unwrap();
    let held = dropped.alloc(4096).unwrap();
    dropped.free(held).unwrap();
    let large = runtime
        .with_device(|_| {
            let inside = |result: Result<(), PolicyError>| {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("inside of with_device"), "{error}");
            };
            inside(runtime.alloc(ask(4096)).map(drop).map_err(Into::into));
            inside(runtime.with_device(|_| ()));
            inside(runtime.statistics().map(drop));
            inside(runtime.empty_cache());
            inside(runtime.close());
            // More than a shelf keeps, so that some have to be given back.
            for block in blocks {
                front.free(block).unwrap();
            }
            inside(front.flush());
            drop(dropped);
            let refused = front.free(large).unwrap_err();
            inside(Err(refused.error));
            refused.block
        })
        .unwrap();
    assert_eq!(tenant.used(), 4 * MIB);
    front.free(large).unwrap();
    assert_eq!(tenant.used(), 0);
    runtime.empty_cache().unwrap();
    assert_eq!(runtime.statistics().unwrap().blocks, 0);
    runtime.close().unwrap();
    // Another thread waits for the closure and is served.
    let served = runtime.with_device(|_| {
        let other = Arc::clone(&runtime);
        std::thread::spawn(move || other.alloc(ask(4096)))
    });
    let addr = served.unwrap().join().unwrap().unwrap();
    runtime.free(addr).unwrap();
}

#[test]
fn close_reports_what_is_live() {
    let runtime = runtime();
    let mut front = runtime.front(STREAM);
    let weights = runtime.alloc(ask(8 * MIB).tagged(Tag(3))).unwrap();
    let block = front.alloc(MIB).unwrap();
    let Err(PolicyError::Live(live)) = runtime.close() else {
        panic!("a leak is not reported");
    };
    assert_eq!((live.blocks, live.bytes), (2, 9 * MIB));
    assert_eq!(live.tags, [(Tag(3), 8 * MIB), (Tag::NONE, MIB)]);
    assert_eq!(
        live.to_string(),
        "2 blocks of 9.00 MiB are still live: 8.00 MiB of tag 3, 1.00 MiB without a tag; free them and close again"
    );
    // The runtime goes on.
    runtime.free(weights).unwrap();
    front.free(block).unwrap();
    assert_eq!(runtime.close(), Ok(()));
    assert_eq!(runtime.statistics().unwrap().reserved.now, 0);
}

#[test]
fn figures_of_a_request_above_the_device_are_right() {
    let runtime = runtime();
    let held = runtime.alloc(ask(6 * MIB).tagged(Tag(1))).unwrap();
    let free = runtime.alloc(ask(4 * MIB)).unwrap();
    runtime.free(free).unwrap();
    let refused = |bytes: u64| {
        let error = runtime.alloc(ask(bytes)).unwrap_err();
        let tonnage_runtime::Error::OutOfMemory(short) = error else {
            panic!("{error}");
        };
        short.shortage
    };
    let short = refused(100 * MIB);
    // 100 of 64 MiB, of which 6 are used: 54 can be had on the device and 4 here.
    assert_eq!((short.free, short.largest), (4 * MIB, 4 * MIB));
    assert_eq!((short.device_free, short.missing), (54 * MIB, 42 * MIB));
    assert_eq!(short.tags.len(), 1);
    let text = short.to_string();
    assert!(text.contains("42.00 MiB are missing"), "{text}");
    assert!(
        text.contains("4.00 MiB free, the largest piece 4.00 MiB"),
        "{text}"
    );
    assert!(refused(u64::MAX).missing > u64::MAX / 2);
    runtime.free(held).unwrap();
}

#[test]
fn figures_before_the_first_block_respect_the_limit() {
    let runtime = runtime();
    runtime.set_limit(Some(10 * MIB)).unwrap();
    let text = runtime.alloc(ask(100 * MIB)).unwrap_err().to_string();
    assert!(text.contains("90.00 MiB are missing"), "{text}");
}

/// The memory that a device holds, seen from outside after its owner was dropped.
#[derive(Default)]
struct Held {
    memory: AtomicU64,
    addresses: AtomicU64,
}

struct Counted(SimDevice, Arc<Held>);

impl Device for Counted {
    fn total(&self) -> u64 {
        self.0.total()
    }
    fn free_bytes(&self) -> u64 {
        self.0.free_bytes()
    }
    fn granularity(&self) -> u64 {
        self.0.granularity()
    }
    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        self.0.malloc(size)
    }
    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        self.0.free(addr)
    }
    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        self.1.addresses.fetch_add(1, Ordering::Relaxed);
        self.0.reserve(size)
    }
    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.1.addresses.fetch_sub(1, Ordering::Relaxed);
        self.0.unreserve(addr, size)
    }
    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        self.1.memory.fetch_add(size, Ordering::Relaxed);
        self.0.create(size)
    }
    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        let granularity = self.0.granularity();
        self.1.memory.fetch_sub(granularity, Ordering::Relaxed);
        self.0.release(memory)
    }
    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        self.0.map(addr, size, memory)
    }
    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.0.unmap(addr, size)
    }
    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError> {
        self.0.set_access(addr, size, access)
    }
    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.0.create_event()
    }
    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.0.destroy_event(event)
    }
    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.0.record_event(event, stream)
    }
    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.0.query_event(event)
    }
    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.0.wait_event(event)
    }
}

fn counted() -> (Arc<Runtime<Counted>>, Arc<Held>) {
    let held = Arc::new(Held::default());
    let device = SimDevice::new(SimConfig::with_total(64 * MIB));
    let device = Counted(device, Arc::clone(&held));
    (Arc::new(Runtime::new(device, Settings::default())), held)
}

#[test]
fn a_dropped_runtime_gives_its_memory_back() {
    let (runtime, held) = counted();
    let mut front = runtime.front(STREAM);
    let block = front.alloc(4096).unwrap();
    front.free(block).unwrap();
    let block = runtime.alloc(ask(6 * MIB)).unwrap();
    runtime.free(block).unwrap();
    assert!(held.memory.load(Ordering::Relaxed) >= 6 * MIB);
    drop(runtime);
    assert!(
        held.memory.load(Ordering::Relaxed) >= 6 * MIB,
        "a front is there"
    );
    drop(front);
    assert_eq!(held.memory.load(Ordering::Relaxed), 0);
    assert_eq!(held.addresses.load(Ordering::Relaxed), 0);
}

#[test]
fn a_dropped_runtime_keeps_what_may_be_in_use() {
    // A live block, which work of the device may use.
    let (runtime, held) = counted();
    runtime.alloc(ask(4 * MIB)).unwrap();
    let freed = runtime.alloc(ask(6 * MIB)).unwrap();
    runtime.free(freed).unwrap();
    drop(runtime);
    assert_eq!(held.memory.load(Ordering::Relaxed), 4 * MIB);
    // Free memory of a graph, which a replay may use.
    let (runtime, held) = counted();
    let graph = tonnage_alloc::torch::PoolId(1, 1);
    let block = runtime.alloc(ask(4 * MIB).in_pool(graph)).unwrap();
    runtime.free(block).unwrap();
    drop(runtime);
    assert_eq!(held.memory.load(Ordering::Relaxed), 4 * MIB);
    // Everything, while a graph is captured.
    let (runtime, held) = counted();
    let block = runtime.alloc(ask(4 * MIB)).unwrap();
    runtime.free(block).unwrap();
    runtime.begin_capture().unwrap();
    drop(runtime);
    assert_eq!(held.memory.load(Ordering::Relaxed), 4 * MIB);
}

#[test]
fn no_other_thread_is_inside_while_all_locks_are_held() {
    let runtime = runtime();
    let locked = runtime.lock_all();
    let other = Arc::clone(&runtime);
    let asking = std::thread::spawn(move || other.alloc(ask(4096)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!asking.is_finished());
    drop(locked);
    let addr = asking.join().unwrap().unwrap();
    runtime.with_device(|_| drop(runtime.lock_all())).unwrap();
    runtime.free(addr).unwrap();
}
