// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every single call that the tonnage allocator makes of a device fails once.

use tonnage_alloc::tonnage::Settings;
use tonnage_alloc::{SimConfig, SimDevice};
use tonnage_conformance::every_call_fails;
use tonnage_device_host::HostDevice;

const TOTAL: u64 = 32 << 20;

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
