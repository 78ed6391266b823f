// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls against the simulated device: its books balance after each.

use proptest::prelude::*;
use tonnage_alloc::{
    Access, AddressOrder, AllocationKind, Device, DeviceAddr, DeviceError, GRANULARITY, PhysicalId,
    SimConfig, SimDevice, StreamId, StreamPool,
};

fn device(order: AddressOrder, total: u64) -> SimDevice {
    SimDevice::new(SimConfig {
        total,
        context: 400 << 20,
        order,
        base: 1 << 44,
        span: 4 << 40,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Malloc(u64),
    Managed(u64),
    Outside(u64),
    Free(usize),
    Create(u64),
    Release(usize),
    Map(usize, u64),
    Unmap(usize),
    PoolMalloc(u64),
    PoolFree(usize),
    PoolTrim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1..4096_u64, 1..(64_u64 << 20), Just(u64::MAX)];
    let pages = 1..20_u64;
    prop::collection::vec(
        prop_oneof![
            3 => size.clone().prop_map(Step::Malloc),
            1 => size.clone().prop_map(Step::Managed),
            1 => (0..(2_u64 << 30)).prop_map(Step::Outside),
            3 => any::<usize>().prop_map(Step::Free),
            1 => pages.clone().prop_map(|pages| Step::Create(pages * GRANULARITY)),
            1 => any::<usize>().prop_map(Step::Release),
            1 => (any::<usize>(), 0..64_u64).prop_map(|(which, page)| Step::Map(which, page)),
            1 => any::<usize>().prop_map(Step::Unmap),
            2 => size.prop_map(Step::PoolMalloc),
            2 => any::<usize>().prop_map(Step::PoolFree),
            1 => Just(Step::PoolTrim),
        ],
        1..300,
    )
}

fn pick<T: Copy>(from: &[T], which: usize) -> Option<(usize, T)> {
    let index = which.checked_rem(from.len())?;
    Some((index, from[index]))
}

proptest! {
    #[test]
    fn the_books_balance(
        steps in steps(),
        ascending in any::<bool>(),
        total in (1_u64 << 30)..(8 << 30),
    ) {
        let order = if ascending { AddressOrder::Ascending } else { AddressOrder::Descending };
        let mut device = device(order, total);
        device.open_context().unwrap();
        let mut pool = StreamPool::default();
        let range = device.reserve(64 * GRANULARITY).unwrap();
        let mut live: Vec<DeviceAddr> = Vec::new();
        let mut physical: Vec<PhysicalId> = Vec::new();
        let mut mapped: Vec<(DeviceAddr, u64)> = Vec::new();
        let mut pooled: Vec<DeviceAddr> = Vec::new();
        for step in steps {
            match step {
                Step::Malloc(size) => match device.malloc(size) {
                    Ok(addr) => {
                        prop_assert!(size <= total);
                        prop_assert_eq!(device.find(addr).unwrap().size, size);
                        prop_assert_eq!(device.find(addr.offset(size - 1)).unwrap().addr, addr);
                        live.push(addr);
                    }
                    Err(error) => prop_assert!(
                        matches!(error, DeviceError::OutOfMemory { .. }), "{}", error
                    ),
                },
                Step::Managed(size) => {
                    let before = device.charged();
                    if let Ok(addr) = device.malloc_managed(size) {
                        prop_assert_eq!(device.find(addr).unwrap().size, size);
                        live.push(addr);
                    }
                    prop_assert_eq!(device.charged(), before, "it is charged nothing");
                }
                Step::Outside(bytes) => {
                    let before = device.own_charged();
                    device.set_outside(bytes);
                    prop_assert_eq!(device.own_charged(), before, "others are not this process");
                }
                Step::Free(which) => if let Some((index, addr)) = pick(&live, which) {
                    live.swap_remove(index);
                    device.free(addr).unwrap();
                    prop_assert!(device.free(addr).is_err());
                },
                Step::Create(size) => if let Ok(memory) = device.create(size) {
                    physical.push(memory);
                },
                Step::Release(which) => if let Some((index, memory)) = pick(&physical, which) {
                    physical.swap_remove(index);
                    device.release(memory).unwrap();
                    prop_assert!(device.release(memory).is_err());
                },
                Step::Map(which, page) => if let Some((_, memory)) = pick(&physical, which) {
                    let addr = range.offset(page * GRANULARITY);
                    let size = device.physical_size(memory).unwrap();
                    prop_assert!(device.map(addr, size + GRANULARITY, memory).is_err());
                    if device.map(addr, size, memory).is_ok() {
                        prop_assert_eq!(device.access_at(addr), Some(Access::None));
                        prop_assert!(device.set_access(addr, size / 2, Access::Read).is_err());
                        device.set_access(addr, size, Access::Read).unwrap();
                        prop_assert_eq!(device.access_at(addr.offset(size - 1)), Some(Access::Read));
                        mapped.push((addr, size));
                    }
                },
                Step::Unmap(which) => if let Some((index, (addr, size))) = pick(&mapped, which) {
                    mapped.swap_remove(index);
                    device.unmap(addr, size).unwrap();
                },
                Step::PoolMalloc(size) => if let Ok(addr) = pool.malloc(&mut device, size) {
                    prop_assert!(pool.size_of(addr).unwrap() >= size);
                    pooled.push(addr);
                },
                Step::PoolFree(which) => if let Some((index, addr)) = pick(&pooled, which) {
                    pooled.swap_remove(index);
                    pool.free(addr).unwrap();
                },
                Step::PoolTrim => pool.trim(&mut device, 0).unwrap(),
            }
            if let Err(problem) = device.check() {
                return Err(TestCaseError::fail(problem));
            }
            prop_assert!(device.own_charged() <= total);
            prop_assert_eq!(device.free_bytes(), total.saturating_sub(device.charged()));
            prop_assert!(pool.used() <= pool.reserved());
        }
        device.set_outside(0);
        for addr in live { device.free(addr).unwrap(); }
        for addr in pooled { pool.free(addr).unwrap(); }
        pool.trim(&mut device, 0).unwrap();
        for (addr, size) in mapped { device.unmap(addr, size).unwrap(); }
        for memory in physical { device.release(memory).unwrap(); }
        prop_assert_eq!(device.charged(), 400 << 20);
        prop_assert_eq!(device.managed(), 0);
    }
}

#[test]
fn memory_is_refused_to_the_byte() {
    for order in [AddressOrder::Ascending, AddressOrder::Descending] {
        let mut device = device(order, 2 << 30);
        assert_eq!(device.open_context(), Ok(true));
        assert_eq!(device.open_context(), Ok(false));
        let room = device.free_bytes();
        assert!(device.malloc(room + 1).is_err());
        let all = device.malloc(room).unwrap();
        assert_eq!(device.free_bytes(), 0);
        let refusal = device.malloc(512).unwrap_err();
        assert_eq!(
            refusal,
            DeviceError::OutOfMemory {
                requested: 512,
                free: 0
            }
        );
        device.free(all).unwrap();
        assert_eq!(device.free_bytes(), room);
    }
}

#[test]
fn physical_memory_lives_until_its_last_holder_is_gone() {
    let mut device = device(AddressOrder::Descending, 1 << 30);
    let range = device.reserve(GRANULARITY).unwrap();
    let memory = device.create(GRANULARITY).unwrap();
    device.map(range, GRANULARITY, memory).unwrap();
    device.release(memory).unwrap();
    assert_eq!(device.charged(), GRANULARITY, "the mapping still holds it");
    assert!(device.unreserve(range, GRANULARITY).is_err());
    device.unmap(range, GRANULARITY).unwrap();
    assert_eq!(device.charged(), 0);
    device.unreserve(range, GRANULARITY).unwrap();
}

#[test]
fn small_requests_share_a_piece_and_large_ones_do_not() {
    let mut device = device(AddressOrder::Ascending, 1 << 30);
    let first = device.malloc(1).unwrap();
    let second = device.malloc(1000).unwrap();
    assert_eq!(device.charged(), GRANULARITY);
    assert_eq!(second.0 - first.0, 512);
    let third = device.malloc(3 << 20).unwrap();
    assert_eq!(device.charged(), 3 * GRANULARITY);
    for addr in [first, second, third] {
        device.free(addr).unwrap();
    }
    assert_eq!(device.charged(), 0);
}

#[test]
fn managed_memory_may_exceed_the_device() {
    let mut device = device(AddressOrder::Descending, 1 << 30);
    device.open_context().unwrap();
    let before = device.free_bytes();
    let managed = device.malloc_managed((40 << 30) + 1).unwrap();
    assert_eq!(device.free_bytes(), before);
    assert_eq!(device.managed(), (40 << 30) + GRANULARITY);
    assert_eq!(device.find(managed).unwrap().kind, AllocationKind::Managed);
    let beside = device.malloc(before).unwrap();
    assert!(device.malloc(1).is_err());
    device.free(managed).unwrap();
    assert_eq!((device.managed(), device.free_bytes()), (0, 0));
    device.free(beside).unwrap();
    assert_eq!(device.free_bytes(), before);
}

#[test]
fn a_device_without_a_limit_says_what_is_free_and_refuses_nothing() {
    let mut device = device(AddressOrder::Descending, 1 << 30).without_limit();
    device.open_context().unwrap();
    assert_eq!(device.free_bytes(), (1 << 30) - (400 << 20));
    let large = device.malloc(3 << 30).unwrap();
    assert_eq!((device.free_bytes(), device.total()), (0, 1 << 30));
    let memory = device.create(5 << 30).unwrap();
    let mut pool = StreamPool::default();
    let pooled = pool.malloc(&mut device, 7 << 30).unwrap();
    assert_eq!(device.own_charged(), (15 << 30) + (400 << 20));
    device.check().unwrap();
    // Sums stay sums: the addresses are the limit.
    assert!(device.create(1 << 63).is_err());
    pool.free(pooled).unwrap();
    pool.trim(&mut device, 0).unwrap();
    device.release(memory).unwrap();
    device.free(large).unwrap();
    assert_eq!(device.free_bytes(), (1 << 30) - (400 << 20));
}

#[test]
fn events_exist_until_they_are_destroyed() {
    let mut device = device(AddressOrder::Descending, 1 << 30);
    let event = device.create_event().unwrap();
    assert_eq!(device.query_event(event), Ok(true), "it marks nothing");
    device.record_event(event, StreamId(7)).unwrap();
    device.wait_event(event).unwrap();
    assert_eq!(device.query_event(event), Ok(true), "work is done at once");
    assert_eq!(device.live_events(), 1);
    device.destroy_event(event).unwrap();
    assert_eq!(device.live_events(), 0);
    assert!(device.destroy_event(event).is_err());
    assert!(device.record_event(event, StreamId(7)).is_err());
    assert!(device.query_event(event).is_err());
    assert!(device.wait_event(event).is_err());
}
