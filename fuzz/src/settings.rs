// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings: they are refused, or an allocator lives with them and with any change to them.

use tonnage_alloc::torch::{Allocator, Settings};
use tonnage_alloc::{AddressOrder, SimConfig, SimDevice, StreamId};

/// Reads the bytes as settings, a line that changes them below.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (first, second) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(settings) = first.parse::<Settings>() else {
        return;
    };
    let device = SimDevice::new(SimConfig {
        total: 1 << 30,
        context: 0,
        order: AddressOrder::Ascending,
        base: 1 << 44,
        span: 16 << 40,
    });
    let mut torch = Allocator::new(device, settings);
    for round in 0..2 {
        for size in [1, 3000, 1 << 20, 3 << 20, 11 << 20, 70 << 20, 900 << 20] {
            let (first, second) = (StreamId(0), StreamId(7));
            if let Ok(addr) = torch.malloc(size, first) {
                let _ = torch.malloc(size, second);
                torch.free(addr).expect("it is live");
            }
        }
        torch.check().expect("the books balance");
        if round == 0 {
            let _ = torch.update_settings(second);
        }
    }
    let _ = torch.empty_cache();
    torch.check().expect("the books balance");
    torch.device().check().expect("the device's books balance");
}
