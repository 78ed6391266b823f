// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of the run, and the devices that this process has by it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use tonnage_capture::{CONFIG_FILE, MACHINE_VARIABLE, RunConfig};

use crate::fork::{self, Lazy};
use crate::ledger::folder;

/// The part of a process in its run.
pub(crate) struct Config {
    pub(crate) run: RunConfig,
    /// Physical numbers of the devices of the machine that this process is on.
    pub(crate) own: Range<usize>,
    /// Physical numbers of the devices that programs see.
    pub(crate) visible: Vec<usize>,
}

/// The configuration of this process; the second is that of a variant, see [`crate::variant::tonnage_join`].
static CONFIGS: [Lazy<Option<Config>>; 2] = [const { Lazy::new() }; 2];
/// Set in a child that was forked off after CUDA was in use, as real CUDA is useless there.
static LOST: AtomicBool = AtomicBool::new(false);

/// The configuration of the run this process is part of, if it is part of one.
pub(crate) fn config() -> Option<&'static Config> {
    CONFIGS[fork::run_number()].get_or_init(read).as_ref()
}

/// Physical numbers of the devices that programs see in this process.
pub(crate) fn visible() -> &'static [usize] {
    let config = config().filter(|_| !has_lost_devices());
    config.map_or(&[], |config| &config.visible)
}

/// This process has no device any more.
pub(crate) fn lose_devices() {
    LOST.store(true, Ordering::Relaxed);
}

/// Whether this process was forked off in a state in which it cannot use a device.
pub(crate) fn has_lost_devices() -> bool {
    LOST.load(Ordering::Relaxed) || fork::is_broken()
}

fn read() -> Option<Config> {
    let bytes = std::fs::read(folder()?.join(CONFIG_FILE)).ok()?;
    let run = serde_json::from_slice(&bytes).ok()?;
    let own = own_devices(&run);
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let mut visible = visible_devices(own.len(), visible.as_deref());
    for device in &mut visible {
        *device += own.start;
    }
    Some(Config { run, own, visible })
}

/// Physical numbers of the devices of this process's machine.
fn own_devices(config: &RunConfig) -> Range<usize> {
    let each = config.devices.len() / config.machines.max(1);
    let machine = std::env::var(MACHINE_VARIABLE).ok();
    let machine = machine.and_then(|text| text.parse::<usize>().ok());
    let first = machine.filter(|it| *it < config.machines).unwrap_or(0) * each;
    first..first + each
}

/// Which devices of `total` a program may see, by the rule of `CUDA_VISIBLE_DEVICES`.
///
/// Numbers or prefixes of UUIDs, up to the first that names no device.
fn visible_devices(total: usize, variable: Option<&str>) -> Vec<usize> {
    let Some(list) = variable else {
        return (0..total).collect();
    };
    let mut visible = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let device = entry.parse::<usize>().ok().or_else(|| {
            let named = |device: &usize| uuid_text(*device).starts_with(entry);
            (!entry.is_empty())
                .then(|| (0..total).find(named))
                .flatten()
        });
        match device {
            Some(device) if device < total && !visible.contains(&device) => visible.push(device),
            _ => break,
        }
    }
    visible
}

/// The UUID of a device: made up, the same in every run, and plainly ours.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"tonnage-dry-run\0";
    uuid[15] = device as u8;
    uuid
}

/// The same as text, as NVML gives it.
pub(crate) fn uuid_text(device: usize) -> String {
    let number = u128::from_be_bytes(uuid(device));
    let hex = format!("{number:032x}");
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_follow_cudas_rule() {
        assert_eq!(visible_devices(3, None), [0, 1, 2]);
        assert_eq!(visible_devices(3, Some("2,0")), [2, 0]);
        assert_eq!(
            visible_devices(3, Some("1, 7, 0")),
            [1],
            "ends at the first unknown"
        );
        assert_eq!(visible_devices(3, Some("")), [0; 0]);
        assert_eq!(visible_devices(3, Some("-1")), [0; 0]);
        assert_eq!(visible_devices(3, Some(&uuid_text(2))), [2]);
        assert_eq!(visible_devices(3, Some("0,0")), [0]);
    }
}
