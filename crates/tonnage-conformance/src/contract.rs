// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contract of a device, verb by verb.

use tonnage_alloc::{Access, DeviceAddr, DeviceError, StreamId};

use crate::TestDevice;

/// Puts a device through its contract; `make` gives a fresh one of at least
/// 64 MiB each time.
///
/// # Panics
/// If the device breaks the contract of [`Device`](tonnage_alloc::Device).
pub fn device<D: TestDevice>(make: impl Fn() -> D) {
    allocations(&mut make());
    physical_memory(&mut make());
    access(&mut make());
    events(&mut make());
}

fn is_out_of_memory<T>(result: &Result<T, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::OutOfMemory { .. }))
}

#[track_caller]
fn ok<T>(result: Result<T, DeviceError>) -> T {
    result.unwrap_or_else(|error| panic!("the device failed: {error}"))
}

fn allocations(device: &mut impl TestDevice) {
    let free = device.free_bytes();
    assert!(free <= device.total());
    assert!(device.malloc(0).is_err(), "an allocation of zero bytes");
    assert!(is_out_of_memory(&device.malloc(device.total() + 1)));
    assert!(is_out_of_memory(&device.malloc(u64::MAX)));
    assert_eq!(device.free_bytes(), free, "what was refused took memory");
    let first = ok(device.malloc(3 << 20));
    let second = ok(device.malloc(5 << 20));
    assert!(first.0.is_multiple_of(512) && second.0.is_multiple_of(512));
    let apart = first.0 + (3 << 20) <= second.0 || second.0 + (5 << 20) <= first.0;
    assert!(apart, "two allocations overlap");
    assert!(free - device.free_bytes() >= 8 << 20);
    assert!(
        device.free(first.offset(512)).is_err(),
        "not its first byte"
    );
    ok(device.free(first));
    assert!(device.free(first).is_err(), "freed twice");
    ok(device.free(second));
    assert_eq!(device.free_bytes(), free, "not everything came back");
    // All of it, and not a byte more.
    let all = ok(device.malloc(free));
    assert!(is_out_of_memory(&device.malloc(1)));
    ok(device.free(all));
    assert_eq!(device.free_bytes(), free);
}

fn physical_memory(device: &mut impl TestDevice) {
    let page = device.granularity();
    let free = device.free_bytes();
    for size in [0, page / 2, page + 1] {
        assert!(device.reserve(size).is_err(), "a reservation of {size}");
        assert!(device.create(size).is_err(), "memory of {size}");
    }
    let range = ok(device.reserve(4 * page));
    let other = ok(device.reserve(page));
    assert!(range.0.is_multiple_of(page) && other.0.is_multiple_of(page));
    assert_eq!(device.free_bytes(), free, "addresses are not memory");
    let memory = ok(device.create(2 * page));
    assert_eq!(device.free_bytes(), free - 2 * page);
    let huge = device.total() / page * page + page;
    assert!(is_out_of_memory(&device.create(huge)));
    for size in [page, 3 * page] {
        let mapped = device.map(range, size, memory);
        assert!(mapped.is_err(), "mapped with another size");
    }
    assert!(device.map(other, 2 * page, memory).is_err(), "too short");
    let end = range.offset(3 * page);
    assert!(device.map(end, 2 * page, memory).is_err(), "over its end");
    ok(device.map(range.offset(page), 2 * page, memory));
    let taken = device.map(range.offset(2 * page), 2 * page, memory);
    assert!(taken.is_err(), "something is mapped there");
    assert!(device.unreserve(range, 4 * page).is_err(), "still mapped");
    assert!(device.unmap(range, 2 * page).is_err(), "not whole mappings");
    assert!(device.unmap(range.offset(page), page).is_err(), "a half");
    ok(device.release(memory));
    assert_eq!(device.free_bytes(), free - 2 * page, "the mapping holds it");
    ok(device.unmap(range.offset(page), 2 * page));
    assert_eq!(device.free_bytes(), free, "nothing holds it");
    assert!(device.unreserve(range, page).is_err(), "not all of it");
    ok(device.unreserve(range, 4 * page));
    ok(device.unreserve(other, page));
}

fn access(device: &mut impl TestDevice) {
    let page = device.granularity();
    let range = ok(device.reserve(3 * page));
    let memory = ok(device.create(page));
    ok(device.map(range, page, memory));
    check_write(device, range, false, "before access was given");
    ok(device.set_access(range, page, Access::Read));
    check_write(device, range, false, "with the right to read");
    ok(device.set_access(range, page, Access::ReadWrite));
    check_write(device, range, true, "with the right to write");
    // The same bytes, elsewhere.
    ok(device.unmap(range, page));
    check_write(device, range, false, "after it was unmapped");
    let moved = range.offset(2 * page);
    ok(device.map(moved, page, memory));
    check_write(device, moved, false, "where it was mapped again");
    ok(device.set_access(moved, page, Access::ReadWrite));
    let mut bytes = [0; 5];
    if ok(device.read(moved, &mut bytes)) {
        assert_eq!(&bytes, b"bytes", "the memory has lost what was in it");
    }
    // Two pieces side by side, reached at once.
    let second = ok(device.create(page));
    ok(device.map(range.offset(page), page, second));
    ok(device.set_access(range.offset(page), 2 * page, Access::ReadWrite));
    let edge = moved.0 - 2;
    ok(device.write(DeviceAddr(edge), b"edge"));
    ok(device.unmap(range.offset(page), 2 * page));
    ok(device.release(memory));
    ok(device.release(second));
    ok(device.unreserve(range, 3 * page));
}

fn check_write<D: TestDevice>(device: &mut D, addr: DeviceAddr, allowed: bool, when: &str) {
    if D::CHECKS_ACCESS || allowed {
        let written = device.write(addr, b"bytes");
        assert_eq!(written.is_ok(), allowed, "written {when}: {written:?}");
    }
}

fn events(device: &mut impl TestDevice) {
    let stream = StreamId(0x40);
    let event = ok(device.create_event());
    assert!(ok(device.query_event(event)), "it marks nothing");
    ok(device.record_event(event, stream));
    assert!(ok(device.query_event(event)), "nothing was to be done");
    let block = ok(device.malloc(4096));
    if device.enqueue_fill(stream, block, 4096, 0xA5) {
        assert!(ok(device.query_event(event)), "it marks an earlier moment");
        ok(device.record_event(event, stream));
        assert!(!ok(device.query_event(event)), "work is still to be done");
        ok(device.wait_event(event));
        assert!(ok(device.query_event(event)), "it was waited for");
        let mut byte = [0];
        ok(device.read(block, &mut byte));
        assert_eq!(byte, [0xA5], "the work was done");
    }
    ok(device.wait_event(event));
    ok(device.destroy_event(event));
    ok(device.free(block));
}
