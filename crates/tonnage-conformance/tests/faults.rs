// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every single call that the tonnage allocator makes of a device fails once.

use tonnage_alloc::tonnage::{AllocatorPlan, PlannedBlock, Settings};
use tonnage_alloc::{SimConfig, SimDevice};
use tonnage_conformance::{
    every_call_fails, every_call_fails_while_pausing, every_call_fails_with,
};
use tonnage_device_host::HostDevice;

const TOTAL: u64 = 32 << 20;
/// The scenario fits to the page without a plan; a plan may leave parts of pages empty.
const PLANNED_TOTAL: u64 = 40 << 20;

fn simulated() -> SimDevice {
    SimDevice::new(SimConfig::with_total(TOTAL))
}

#[test]
fn on_a_simulated_device() {
    let calls = every_call_fails(simulated, &Settings::default(), 1);
    assert!(calls > 50, "{calls} calls");
}

#[test]
fn on_a_simulated_device_where_pages_move_only_when_memory_is_short() {
    let settings = Settings::default().with_slack(1_000_000);
    let calls = every_call_fails(simulated, &settings, 1);
    assert!(calls > 50, "{calls} calls");
}

#[test]
fn on_memory_of_the_host() {
    let host = || HostDevice::new(TOTAL).unwrap_or_else(|error| panic!("{error}"));
    let calls = every_call_fails(host, &Settings::default(), 1);
    assert!(calls > 50, "{calls} calls");
}

#[test]
fn what_fails_while_it_is_undone_is_not_lost() {
    for times in [2, 3] {
        every_call_fails(simulated, &Settings::default(), times);
    }
}

/// Places for the requests of the scenario, in two streams, a graph and one more, `distance` apart.
fn plan(distance: u64) -> AllocatorPlan {
    const MIB: u64 = 1 << 20;
    let mut places = Vec::new();
    for number in 0..14 {
        let lane = (number % 2) as u16;
        places.push(PlannedBlock::new(2 * MIB, lane, number * distance));
    }
    places.push(PlannedBlock::new(1024, 0, 14 * distance));
    // Where blocks 6, 8, 10 and 12 were; the first of them is not alone there.
    places.push(PlannedBlock::new(9 * MIB + 512, 0, 6 * distance));
    places.push(PlannedBlock::new(3 * MIB, 1, 14 * distance + 1024));
    places.push(PlannedBlock::new(MIB, 2, distance));
    places.push(PlannedBlock::new(4 * MIB, 3, 2 * distance));
    AllocatorPlan::new(places, Vec::new()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn with_a_plan_right_or_wrong() {
    let device = || SimDevice::new(SimConfig::with_total(PLANNED_TOTAL));
    // Side by side, on top of each other, far apart.
    for (distance, times) in [(2 << 20, 1), (2 << 20, 2), (512, 1), (6 << 20, 2)] {
        let (plan, settings) = (plan(distance), Settings::default());
        let calls = every_call_fails_with(device, &settings, Some(&plan), times);
        assert!(calls > 50, "{calls} calls");
    }
}

#[test]
fn with_a_plan_on_memory_of_the_host() {
    let host = || HostDevice::new(PLANNED_TOTAL).unwrap_or_else(|error| panic!("{error}"));
    let calls = every_call_fails_with(host, &Settings::default(), Some(&plan(2 << 20)), 1);
    assert!(calls > 50, "{calls} calls");
}

#[test]
fn while_blocks_are_paused() {
    for times in [1, 2, 3] {
        let calls = every_call_fails_while_pausing(simulated, times);
        assert!(calls > 50, "{calls} calls");
    }
    let host = || HostDevice::new(TOTAL).unwrap_or_else(|error| panic!("{error}"));
    let calls = every_call_fails_while_pausing(host, 1);
    assert!(calls > 50, "{calls} calls");
}
