// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties that only a device with bytes can show.

use tonnage_alloc::{Access, Device, DeviceAddr, DeviceError, StreamId};
use tonnage_device_host::HostDevice;

const PAGE: u64 = 2 << 20;

fn read(device: &HostDevice, addr: DeviceAddr) -> Result<[u8; 4], DeviceError> {
    let mut bytes = [0; 4];
    device.read(addr, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn memory_at_two_addresses_is_one_memory() {
    let mut device = HostDevice::new(16 * PAGE).unwrap();
    let range = device.reserve(2 * PAGE).unwrap();
    let memory = device.create(PAGE).unwrap();
    for at in [range, range.offset(PAGE)] {
        device.map(at, PAGE, memory).unwrap();
    }
    device.set_access(range, PAGE, Access::ReadWrite).unwrap();
    device
        .set_access(range.offset(PAGE), PAGE, Access::Read)
        .unwrap();
    device.write(range.offset(100), b"once").unwrap();
    assert_eq!(&read(&device, range.offset(PAGE + 100)).unwrap(), b"once");
    assert!(device.write(range.offset(PAGE), b"no").is_err());
    device.release(memory).unwrap();
    device.unmap(range, PAGE).unwrap();
    assert_eq!(device.free_bytes(), 15 * PAGE, "one mapping holds it");
    assert_eq!(&read(&device, range.offset(PAGE + 100)).unwrap(), b"once");
    device.unmap(range.offset(PAGE), PAGE).unwrap();
    assert_eq!(device.free_bytes(), 16 * PAGE);
}

#[test]
fn memory_that_was_given_back_is_lost_and_new_memory_is_zero() {
    let mut device = HostDevice::new(4 * PAGE).unwrap();
    let block = device.malloc(PAGE).unwrap();
    device.write(block, b"gone").unwrap();
    device.free(block).unwrap();
    assert!(read(&device, block).is_err());
    let again = device.malloc(PAGE).unwrap();
    assert_eq!(again, block, "the lowest address is used again");
    assert_eq!(read(&device, again).unwrap(), [0; 4]);
}

#[test]
fn what_reaches_over_the_end_is_refused() {
    let mut device = HostDevice::new(4 * PAGE).unwrap();
    let block = device.malloc(PAGE).unwrap();
    assert!(device.write(block.offset(PAGE - 2), b"over").is_err());
    assert!(read(&device, DeviceAddr(u64::MAX - 1)).is_err());
    assert!(read(&device, DeviceAddr(0)).is_err());
    assert!(device.write(block.offset(PAGE - 4), b"here").is_ok());
}

#[test]
fn work_happens_in_the_order_of_its_stream_and_when_it_is_waited_for() {
    let mut device = HostDevice::new(4 * PAGE).unwrap();
    let (one, two) = (StreamId(1), StreamId(2));
    let block = device.malloc(8).unwrap();
    device.enqueue_fill(one, block, 4, 1);
    let event = device.create_event().unwrap();
    device.record_event(event, one).unwrap();
    device.enqueue_fill(one, block, 4, 2);
    device.enqueue_fill(two, block.offset(4), 4, 3);
    assert_eq!(read(&device, block).unwrap(), [0; 4]);
    assert_eq!(device.query_event(event), Ok(false));
    device.wait_event(event).unwrap();
    assert_eq!(read(&device, block).unwrap(), [1; 4], "not what came after");
    device.run_stream(one).unwrap();
    assert_eq!(read(&device, block).unwrap(), [2; 4]);
    assert_eq!(read(&device, block.offset(4)).unwrap(), [0; 4]);
    // Freeing anything waits for everything.
    let other = device.malloc(8).unwrap();
    device.free(other).unwrap();
    assert_eq!(read(&device, block.offset(4)).unwrap(), [3; 4]);
    device.destroy_event(event).unwrap();
    assert!(device.query_event(event).is_err());
    assert_eq!(device.live_events(), 0);
}

#[test]
fn work_on_memory_that_is_gone_is_an_error() {
    let mut device = HostDevice::new(4 * PAGE).unwrap();
    let stream = StreamId(1);
    let range = device.reserve(PAGE).unwrap();
    let memory = device.create(PAGE).unwrap();
    device.map(range, PAGE, memory).unwrap();
    device.set_access(range, PAGE, Access::ReadWrite).unwrap();
    device.enqueue_fill(stream, range, 16, 9);
    device.unmap(range, PAGE).unwrap();
    let ran = device.run_stream(stream);
    let told = matches!(ran, Err(DeviceError::Driver { call: "access", .. }));
    assert!(told, "{ran:?}");
}

#[test]
fn a_device_can_be_moved_to_another_thread() {
    let mut device = HostDevice::new(4 * PAGE).unwrap();
    let block = device.malloc(PAGE).unwrap();
    device.write(block, b"move").unwrap();
    let moved = std::thread::spawn(move || read(&device, block).unwrap());
    assert_eq!(&moved.join().unwrap(), b"move");
}
