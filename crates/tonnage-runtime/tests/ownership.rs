// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks have one owner, whatever a program calls in whatever order, and a failure loses none of them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(not(feature = "shuttle"))]

mod raw;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use raw::free;
use tonnage_device_host::HostDevice;
use tonnage_runtime::{
    Device, DeviceAddr, DeviceError, Error, PoolId, Request, Runtime, Settings, SimConfig,
    SimDevice, StreamId, Tag, Tenant,
};

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

fn runtime() -> Runtime<HostDevice> {
    let device = HostDevice::new(64 * MIB).unwrap();
    Runtime::new(device, Settings::default())
}

fn ask(bytes: u64) -> Request {
    Request::new(bytes, STREAM)
}

#[test]
fn a_block_goes_back_to_its_own_runtime() {
    let (one, two) = (runtime(), runtime());
    let (mut first, mut second) = (one.front(STREAM), two.front(STREAM));
    // One that a front keeps, and one that goes to the allocator; one runtime may be dropped before its block.
    for bytes in [4096, 4 * MIB] {
        let blocks = (first.alloc(bytes).unwrap(), second.alloc(bytes).unwrap());
        let (of_one, of_two) = (blocks.0.addr(), blocks.1.addr());
        drop(blocks);
        let again = (second.alloc(bytes).unwrap(), first.alloc(bytes).unwrap());
        assert_eq!((again.1.addr(), again.0.addr()), (of_one, of_two));
    }
    let last = second.alloc(4096).unwrap();
    drop((second, two));
    drop(last);
    first.flush();
    one.close().unwrap();
}

#[test]
fn an_address_does_not_free_a_block() {
    let runtime = runtime();
    let mut front = runtime.front(STREAM);
    let mut block = front.alloc(4096).unwrap();
    let addr = block.addr();
    // While it is used, and while the front keeps it.
    assert_eq!(free(&runtime, addr), Err(Error::Owned(addr)));
    let named = runtime.record_stream_raw(addr, StreamId(1));
    assert_eq!(named, Err(Error::Owned(addr)));
    block.record_stream(STREAM).unwrap();
    drop(block);
    assert_eq!(free(&runtime, addr), Err(Error::Owned(addr)));
    let kept = front.alloc(4096).unwrap();
    let other = runtime.alloc(Request::new(4096, StreamId(7))).unwrap();
    assert_eq!(kept.addr(), addr, "the front keeps it");
    assert_ne!(kept.addr(), other.addr());
    assert_eq!(runtime.check(), Ok(()));
    drop((kept, other));
    // Nor does an address that was another block's before.
    let stale = runtime.alloc_raw(ask(3 * MIB)).unwrap();
    free(&runtime, stale).unwrap();
    let block = front.alloc(3 * MIB).unwrap();
    assert_eq!(block.addr(), stale);
    assert_eq!(free(&runtime, stale), Err(Error::Owned(stale)));
    drop(block);
    front.flush();
    runtime.close().unwrap();
}

#[test]
fn bytes_of_a_block_are_its_own() {
    let runtime = runtime();
    let mut block = runtime.alloc(ask(1000)).unwrap();
    block.write(0, &[7; 1024]).unwrap();
    let mut bytes = [0; 24];
    block.read(1000, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 24]);
    let outside = |offset, bytes| {
        Err(Error::Bounds {
            offset,
            bytes,
            size: 1024,
        })
    };
    assert_eq!(block.write(1001, &[0; 24]), outside(1001, 24));
    assert_eq!(block.read(u64::MAX, &mut bytes), outside(u64::MAX, 24));
    runtime.begin_capture().unwrap();
    assert_eq!(block.read(0, &mut bytes), Err(Error::Capture));
    assert_eq!(runtime.close(), Err(Error::Capture));
    runtime.end_capture().unwrap();
    assert_eq!(runtime.alloc(ask(0)).map(drop), Err(Error::Zero));
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
    drop(block);
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
    let mut stays = runtime.alloc(ask(4096)).unwrap();
    drop(dropped.alloc(4096).unwrap());
    runtime.allow_spill(Tag(1)).unwrap();
    let hold = runtime.hold(Tag(1)).unwrap();
    runtime
        .with_device(|_| {
            let inside = |result: Result<(), Error>| assert_eq!(result, Err(Error::Inside));
            inside(runtime.alloc(ask(4096)).map(drop));
            inside(runtime.with_device(|_| ()));
            inside(runtime.statistics().map(drop));
            inside(runtime.empty_cache());
            inside(runtime.close());
            inside(stays.record_stream(StreamId(3)));
            inside(stays.write(0, &[1]));
            // More than a shelf keeps, so that some have to be given back.
            drop(blocks);
            front.flush();
            drop((dropped, large, hold));
        })
        .unwrap();
    assert_eq!(tenant.used(), 0);
    assert_eq!(runtime.statistics().unwrap().blocks, 1);
    drop(stays);
    // It is not held any more.
    let spilled = runtime.alloc(ask(40 * MIB).tagged(Tag(1))).unwrap();
    let other = runtime.alloc(ask(40 * MIB)).unwrap();
    assert_eq!(runtime.kept_on_host(), Ok(40 * MIB));
    drop((spilled, other));
    runtime.close().unwrap();
    // Another thread waits for the closure and is served.
    let other = runtime.clone();
    let served = runtime.with_device(move |_| std::thread::spawn(move || other.alloc(ask(4096))));
    drop(served.unwrap().join().unwrap().unwrap());
}

#[test]
fn close_and_drop_report_what_is_live() {
    let runtime = runtime();
    let (report, reports) = mpsc::channel();
    runtime.on_leak(move |live| report.send(live.to_string()).unwrap());
    runtime.name_tag(Tag(3), "weights");
    let mut front = runtime.front(STREAM);
    let weights = runtime.alloc(ask(8 * MIB).tagged(Tag(3))).unwrap();
    let block = front.alloc(MIB).unwrap();
    let Err(Error::Live(live)) = runtime.close() else {
        panic!("a leak is not reported");
    };
    assert_eq!((live.blocks, live.bytes), (2, 9 * MIB));
    assert_eq!(live.tags, [(Tag(3), 8 * MIB), (Tag::NONE, MIB)]);
    let text = "2 blocks of 9.00 MiB are still live: 8.00 MiB of 'weights', 1.00 MiB without a tag; free them and \
                close again";
    assert_eq!(live.to_string(), text);
    // The runtime goes on.
    drop(weights);
    assert!(matches!(runtime.close(), Err(Error::Live(_))));
    let lost = runtime.alloc(ask(2 * MIB).tagged(Tag(3))).unwrap();
    lost.leak();
    drop((block, front));
    assert_eq!(reports.try_recv().ok(), None);
    drop(runtime);
    assert!(
        reports
            .recv()
            .unwrap()
            .starts_with("1 block of 2.00 MiB is still live: 2.00 MiB of 'weights'")
    );
}

#[test]
fn quotas_are_charged_until_the_block_is_free() {
    let runtime = runtime();
    let tenant = Tenant::new("search", 10 * MIB);
    let block = runtime.alloc_for(&tenant, ask(8 * MIB)).unwrap();
    let above = runtime.alloc_for(&tenant, ask(3 * MIB)).map(drop);
    let quota = Error::Quota {
        tenant: "search".to_owned(),
        requested: 3 * MIB,
        used: 8 * MIB,
        quota: 10 * MIB,
    };
    assert_eq!(above, Err(quota));
    drop(block);
    // A request that fails otherwise is not charged.
    let all = runtime.alloc(ask(60 * MIB)).unwrap();
    assert!(matches!(
        runtime.alloc_for(&tenant, ask(9 * MIB)),
        Err(Error::OutOfMemory(_))
    ));
    drop(all);
    assert_eq!(tenant.used(), 0);
}

#[test]
fn figures_of_a_request_above_the_device_are_right() {
    let runtime = runtime();
    let held = runtime.alloc(ask(6 * MIB).tagged(Tag(1))).unwrap();
    drop(runtime.alloc(ask(4 * MIB)).unwrap());
    let refused = |bytes: u64| {
        let error = runtime.alloc(ask(bytes)).map(drop).unwrap_err();
        let Error::TooLarge(short) = error else {
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
    drop(held);
}

#[test]
fn figures_before_the_first_block_respect_the_limit() {
    let runtime = runtime();
    runtime.set_limit(Some(10 * MIB)).unwrap();
    let text = runtime
        .alloc(ask(100 * MIB))
        .map(drop)
        .unwrap_err()
        .to_string();
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
    fn create(&mut self, size: u64) -> Result<tonnage_alloc::PhysicalId, DeviceError> {
        self.1.memory.fetch_add(size, Ordering::Relaxed);
        self.0.create(size)
    }
    fn release(&mut self, memory: tonnage_alloc::PhysicalId) -> Result<(), DeviceError> {
        let granularity = self.0.granularity();
        self.1.memory.fetch_sub(granularity, Ordering::Relaxed);
        self.0.release(memory)
    }
    fn map(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        memory: tonnage_alloc::PhysicalId,
    ) -> Result<(), DeviceError> {
        self.0.map(addr, size, memory)
    }
    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.0.unmap(addr, size)
    }
    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: tonnage_alloc::Access,
    ) -> Result<(), DeviceError> {
        self.0.set_access(addr, size, access)
    }
    fn create_event(&mut self) -> Result<tonnage_alloc::EventId, DeviceError> {
        self.0.create_event()
    }
    fn destroy_event(&mut self, event: tonnage_alloc::EventId) -> Result<(), DeviceError> {
        self.0.destroy_event(event)
    }
    fn record_event(
        &mut self,
        event: tonnage_alloc::EventId,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.0.record_event(event, stream)
    }
    fn query_event(&mut self, event: tonnage_alloc::EventId) -> Result<bool, DeviceError> {
        self.0.query_event(event)
    }
    fn wait_event(&mut self, event: tonnage_alloc::EventId) -> Result<(), DeviceError> {
        self.0.wait_event(event)
    }
}

fn counted() -> (Runtime<Counted>, Arc<Held>) {
    let held = Arc::new(Held::default());
    let device = SimDevice::new(SimConfig::with_total(64 * MIB));
    let device = Counted(device, Arc::clone(&held));
    (Runtime::new(device, Settings::default()), held)
}

#[test]
fn a_dropped_runtime_gives_its_memory_back() {
    let (runtime, held) = counted();
    let mut front = runtime.front(STREAM);
    drop(front.alloc(4096).unwrap());
    let block = runtime.alloc(ask(6 * MIB)).unwrap();
    drop(runtime);
    drop(front);
    assert!(
        held.memory.load(Ordering::Relaxed) >= 6 * MIB,
        "a block is there"
    );
    drop(block);
    assert_eq!(held.memory.load(Ordering::Relaxed), 0);
    assert_eq!(held.addresses.load(Ordering::Relaxed), 0);
}

#[test]
fn a_dropped_runtime_keeps_what_may_be_in_use() {
    // A live block, which work of the device may use.
    let (runtime, held) = counted();
    runtime.alloc(ask(4 * MIB)).unwrap().leak();
    drop(runtime.alloc(ask(6 * MIB)).unwrap());
    drop(runtime);
    assert_eq!(held.memory.load(Ordering::Relaxed), 4 * MIB);
    // Free memory of a graph, which a replay may use.
    let (runtime, held) = counted();
    let graph = PoolId(1, 1);
    drop(runtime.alloc(ask(4 * MIB).in_pool(graph)).unwrap());
    drop(runtime);
    assert_eq!(held.memory.load(Ordering::Relaxed), 4 * MIB);
    // Everything, while a graph is captured.
    let (runtime, held) = counted();
    drop(runtime.alloc(ask(4 * MIB)).unwrap());
    runtime.begin_capture().unwrap();
    drop(runtime);
    assert_eq!(held.memory.load(Ordering::Relaxed), 4 * MIB);
}

#[test]
fn no_other_thread_is_inside_while_all_locks_are_held() {
    let runtime = runtime();
    let locked = runtime.lock_all();
    let other = runtime.clone();
    let asking = std::thread::spawn(move || other.alloc(ask(4096)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!asking.is_finished());
    drop(locked);
    drop(asking.join().unwrap().unwrap());
    runtime.with_device(|_| drop(runtime.lock_all())).unwrap();
}
