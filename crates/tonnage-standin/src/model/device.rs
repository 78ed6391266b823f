// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices: how many, what they are like, which one a thread works on.

use tonnage_alloc::torch::Settings;
use tonnage_capture::DeviceProfile;

use std::ffi::CStr;

use crate::config;
use crate::ffi::{Out, OutBytes, OutText, Ptr};
use crate::machine::{
    self, Answer, Machine, accounts, code, current, machine, set_current, status,
};

pub(crate) fn count(count: Out<i32>) -> i32 {
    status(machine().and_then(|machine| {
        count.set(machine.visible.len() as i32);
        if machine.visible.is_empty() {
            return Err(code::NO_DEVICE);
        }
        Ok(())
    }))
}

pub(crate) fn get_current(device: Out<i32>) -> i32 {
    status(machine().map(|_| device.set(current() as i32)))
}

/// Makes a device the thread's and uses it, which opens its context.
pub(crate) fn use_device(device: i32) -> i32 {
    status(machine().and_then(|machine| {
        machine.physical(device)?;
        let before = current();
        set_current(device as usize);
        machine::use_current().map(|_| ()).inspect_err(|_| {
            set_current(before);
        })
    }))
}

pub(crate) fn memory_info(free: Out<usize>, total: Out<usize>) -> i32 {
    status(machine::use_current().and_then(|device| {
        let (_, mut accounts) = accounts()?;
        let (free_bytes, total_bytes) = accounts.memory(device);
        free.set(free_bytes as usize);
        total.set(total_bytes as usize);
        Ok(())
    }))
}

pub(crate) fn version(version: Out<i32>) -> i32 {
    // Queried before there is a machine: a driver without devices still has a version.
    version.set(machine().map_or(12040, |machine| machine.config.cuda_version));
    0
}

pub(crate) fn priority_range(least: Out<i32>, greatest: Out<i32>) -> i32 {
    least.set(0);
    greatest.set(-5);
    0
}

pub(crate) fn can_access_peer(can: Out<i32>, device: i32, peer: i32) -> i32 {
    status(machine().and_then(|machine| {
        machine.physical(device)?;
        machine.physical(peer)?;
        can.set(i32::from(device != peer));
        Ok(())
    }))
}

/// Everything between two devices is allowed, at the same rank.
pub(crate) fn peer_attribute(value: Out<i32>, attribute: i32, from: i32, to: i32) -> i32 {
    status(machine().and_then(|machine| {
        machine.physical(from)?;
        machine.physical(to)?;
        value.set(i32::from(attribute != 1));
        Ok(())
    }))
}

pub(crate) fn bus_id(text: OutText, _length: i32, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        let physical = machine.physical(device)?;
        text.set(&machine::bus_text(physical));
        Ok(())
    }))
}

pub(crate) fn by_bus_id(device: Out<i32>, text: Option<&CStr>) -> i32 {
    status(machine().and_then(|machine| {
        let text = text.and_then(|text| text.to_str().ok());
        let text = text.ok_or(code::INVALID_VALUE)?;
        let found = machine
            .visible
            .iter()
            .position(|&physical| machine::bus_text(physical).eq_ignore_ascii_case(text));
        device.set(found.ok_or(code::INVALID_DEVICE)? as i32);
        Ok(())
    }))
}

pub(crate) fn limit(value: Out<usize>, limit: i32) -> i32 {
    // Stack, printf buffer, malloc heap, synchronisation depth, pending launches.
    value.set(match limit {
        0 => 1024,
        1 => 1 << 20,
        2 => 8 << 20,
        3 => 2,
        4 => 2048,
        _ => 0,
    });
    0
}

pub(crate) fn attribute(value: Out<i32>, attribute: i32, device: i32) -> i32 {
    status(machine().and_then(|machine| {
        let physical = machine.physical(device)?;
        let profile = &machine.config.devices[physical];
        value.set(attribute_of(profile, physical, attribute));
        Ok(())
    }))
}

/// The runtime and the driver number their attributes alike; what is not
/// listed is a feature these devices do not have, or no program requests.
#[expect(
    clippy::match_same_arms,
    reason = "in the order of the numbers, each with its meaning"
)]
fn attribute_of(profile: &DeviceProfile, physical: usize, attribute: i32) -> i32 {
    let since = |major: i32| i32::from(profile.major >= major);
    match attribute {
        1..=3 => 1024,                              // threads of a block, its x and y
        4 => 64,                                    // its z
        5 => i32::MAX,                              // grid, x
        6 | 7 => 65535,                             // grid, y and z
        8 => profile.shared_per_block,              // shared memory of a block
        9 => 64 << 10,                              // constant memory
        10 => 32,                                   // warp
        11 => i32::MAX,                             // pitch
        12 | 82 => profile.registers,               // registers of a block, of a multiprocessor
        13 => profile.clock_khz,                    //
        14 | 30 => 512,                             // alignment of textures and surfaces
        16 => profile.sm_count,                     //
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 => 1, // overlap, host memory, unified addresses …
        21..=24 | 55..=58 | 69 => 131_072,          // textures and surfaces, one and two dimensions
        25..=29 | 59..=68 => 16384,                 // … three dimensions and layers
        32 => since(7),                             // ECC
        33 => machine::bus(physical),               //
        36 => profile.memory_clock_khz,             //
        37 => profile.bus_width,                    //
        38 => profile.l2,                           //
        39 => profile.threads_per_sm,               //
        40 => 3,                                    // copy engines
        51 => 32,                                   // pitch alignment of textures
        75 => profile.major,                        //
        76 => profile.minor,                        //
        81 => profile.shared_per_sm,                //
        87 => 2,                                    // single to double precision
        89..=91 | 95 | 96 => 1,                     // managed memory, preemption, cooperation
        92..=94 | 98 | 99 => 1,                     // stream memory operations, host registration
        97 => profile.shared_per_block_optin,       //
        102 | 103 => 1,                             // virtual memory, shared by file descriptor
        106 => profile.blocks_per_sm,               //
        108 => profile.l2 * since(8),               // persisting cache
        109 => (128 << 20) * since(8),              // access window
        111 => profile.shared_reserved,             //
        113 | 115 => 1,                             // read-only registration, memory pools
        119 => 1,                                   // pool handles: file descriptors
        120 => since(9),                            // clusters
        122 | 123 | 125 => 1, // stream memory operations, events between processes
        126 => 1 + 3 * since(9), // memory synchronisation domains
        127 | 129 => since(9), // tensor maps, unified function pointers
        _ => 0,
    }
}

/// The memory that a device's properties report.
///
/// Torch sizes the addresses of an expandable segment by it, once and for all. On a device without a limit they must
/// reach further than the device; for programs that do not use such segments, the result is the truth.
fn reported_total(machine: &Machine, total: u64) -> u64 {
    let conf = |name| std::env::var(name).unwrap_or_default();
    let confs = [conf("PYTORCH_ALLOC_CONF"), conf("PYTORCH_CUDA_ALLOC_CONF")];
    if machine.config.unlimited && confs.iter().any(|conf| segments_expand(conf)) {
        reach(total)
    } else {
        total
    }
}

/// How far the addresses of one segment reach: far beyond the device, and short enough for several segments.
fn reach(total: u64) -> u64 {
    total.saturating_mul(8).min(MAX_REPORTED_TOTAL).max(total)
}

const MAX_REPORTED_TOTAL: u64 = 512 << 30;

/// Whether the settings of torch's allocator turn expandable segments on.
fn segments_expand(conf: &str) -> bool {
    conf.parse::<Settings>()
        .is_ok_and(|settings| settings.expandable_segments)
}

/// Where a field of the properties stands in CUDA 13's layout and in CUDA 12's.
struct Place(Option<usize>, Option<usize>);

fn properties(device: i32, mut put: impl FnMut(Place, &[u8])) -> Answer {
    let machine = machine()?;
    let physical = machine.physical(device)?;
    let profile = machine.profile(device)?;
    let at = |both: usize| Place(Some(both), Some(both));
    let two = |thirteen: usize, twelve: usize| Place(Some(thirteen), Some(twelve));
    put(at(0), profile.name.as_bytes());
    put(at(256), &config::uuid(physical));
    put(
        at(288),
        &reported_total(machine, profile.total).to_ne_bytes(),
    );
    put(at(296), &(profile.shared_per_block as u64).to_ne_bytes());
    put(at(304), &profile.registers.to_ne_bytes());
    put(at(308), &32_i32.to_ne_bytes()); // warp
    put(at(312), &(i32::MAX as u64).to_ne_bytes()); // pitch
    put(at(320), &1024_i32.to_ne_bytes()); // threads of a block
    for (offset, value) in [(324, 1024_i32), (328, 1024), (332, 64)] {
        put(at(offset), &value.to_ne_bytes());
    }
    for (offset, value) in [(336, i32::MAX), (340, 65535), (344, 65535)] {
        put(at(offset), &value.to_ne_bytes());
    }
    put(Place(None, Some(348)), &profile.clock_khz.to_ne_bytes());
    put(at(352), &(64_u64 << 10).to_ne_bytes()); // constant memory
    put(at(360), &profile.major.to_ne_bytes());
    put(at(364), &profile.minor.to_ne_bytes());
    put(at(368), &512_u64.to_ne_bytes()); // texture alignment
    put(at(376), &32_u64.to_ne_bytes()); // texture pitch alignment
    put(Place(None, Some(384)), &1_i32.to_ne_bytes()); // overlap
    put(
        Place(None, Some(608)),
        &profile.memory_clock_khz.to_ne_bytes(),
    );
    for (place, value) in [
        (two(384, 388), profile.sm_count),
        (two(392, 400), 1),                             // maps host memory
        (two(560, 576), 1),                             // concurrent kernels
        (two(564, 580), i32::from(profile.major >= 7)), // ECC
        (two(568, 584), machine::bus(physical)),
        (two(584, 600), 3), // copy engines
        (two(588, 604), 1), // unified addresses
        (two(592, 612), profile.bus_width),
        (two(596, 616), profile.l2),
        (
            two(600, 620),
            if profile.major >= 8 { profile.l2 } else { 0 },
        ),
        (two(604, 624), profile.threads_per_sm),
        (two(608, 628), 1), // stream priorities
        (two(612, 632), 1), // L1 for global memory
        (two(616, 636), 1), // L1 for local memory
        (two(632, 648), profile.registers),
        (two(636, 652), 1), // managed memory
        (two(656, 676), 1), // … accessed by both sides
        (two(660, 680), 1), // preemption
        (two(664, 684), 1), // registered memory at its host address
        (two(668, 688), 1), // cooperative launch
        (two(688, 712), profile.blocks_per_sm),
        (two(704, 728), 1),                             // host registration
        (two(712, 736), 1),                             // … read-only
        (two(720, 744), 1),                             // memory pools
        (two(736, 760), 1),                             // their handles: file descriptors
        (two(744, 768), 1),                             // events between processes
        (two(748, 772), i32::from(profile.major >= 9)), // clusters
    ] {
        put(place, &value.to_ne_bytes());
    }
    for (place, value) in [
        (two(624, 640), profile.shared_per_sm),
        (two(672, 696), profile.shared_per_block_optin),
        (two(696, 720), profile.shared_reserved),
    ] {
        put(place, &(value as u64).to_ne_bytes());
    }
    Ok(())
}

/// The properties in CUDA 13's layout.
pub(crate) fn properties_13(out: OutBytes<1008>, device: i32) -> i32 {
    status(properties(device, |Place(thirteen, _), bytes| {
        if let Some(offset) = thirteen {
            out.write_at(offset, bytes);
        }
    }))
}

/// The properties in CUDA 12's layout.
pub(crate) fn properties_12(out: OutBytes<1032>, device: i32) -> i32 {
    status(properties(device, |Place(_, twelve), bytes| {
        if let Some(offset) = twelve {
            out.write_at(offset, bytes);
        }
    }))
}

// Contexts.

const CONTEXTS: usize = 0x0e00_0000_0000;
const CONTEXT_STEP: usize = 0x100;

/// The handle of the context of the device with this visible number.
pub(crate) fn context_of(device: i32) -> Ptr {
    Ptr(CONTEXTS + (device.max(0) as usize + 1) * CONTEXT_STEP)
}

/// The number of the device that has this context.
pub(crate) fn device_of(context: Ptr) -> Result<usize, i32> {
    let device = context.0.wrapping_sub(CONTEXTS) / CONTEXT_STEP;
    let known = (1..=tonnage_capture::ledger::DEVICES).contains(&device);
    known.then(|| device - 1).ok_or(code::INVALID_CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_reach_beyond_the_device_and_several_fit_its_addresses() {
        for total in [16_u64 << 30, 24 << 30, 80 << 30, 192 << 30, 2 << 40] {
            assert!(reach(total) >= total);
            assert!(total > 64 << 30 || reach(total) >= 8 * total);
        }
        // Torch reserves an eighth more; half of 8 TiB is for reservations.
        assert!((reach(192 << 30) / 8 * 9) * 6 < 4 << 40);
    }

    #[test]
    fn expandable_segments_are_found_in_torchs_settings() {
        assert!(segments_expand("expandable_segments:True"));
        assert!(segments_expand(
            "max_split_size_mb:64,expandable_segments:True"
        ));
        assert!(!segments_expand("expandable_segments:False"));
        assert!(!segments_expand(""));
    }
}
