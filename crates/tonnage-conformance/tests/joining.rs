// SPDX-License-Identifier: MIT OR Apache-2.0
//! Free blocks that touch become one, also where a shared one lies between two of
//! a stream that is late.

use tonnage_alloc::tonnage::{Allocator, Settings};
use tonnage_alloc::{Policy, Request, StreamId};
use tonnage_device_host::HostDevice;

#[test]
fn a_shared_block_between_two_of_a_late_stream() {
    let (late, other) = (StreamId(1), StreamId(2));
    let device = HostDevice::new(32 << 20).unwrap();
    let mut allocator = Allocator::new(device, Settings::default());
    let [first, between, last] =
        [late, other, late].map(|stream| allocator.alloc(Request::new(512, stream)).unwrap());
    assert_eq!((between.0 - first.0, last.0 - between.0), (512, 512));
    allocator.free(first).unwrap();
    allocator.device_mut().enqueue_fill(late, first, 512, 1);
    allocator.free(between).unwrap();
    // Nothing fits, so what streams have done is shared: the late one has not.
    let large = allocator.alloc(Request::new(4 << 20, other)).unwrap();
    assert_eq!(allocator.check(), Ok(()));
    allocator.free(last).unwrap();
    assert_eq!(allocator.check(), Ok(()));
    allocator.free(large).unwrap();
    allocator.close().unwrap();
}
