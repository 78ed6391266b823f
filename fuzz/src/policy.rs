// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls against PyTorch's policy: live blocks never overlap, every recount agrees, the device is never misused.

#[path = "../../crates/tonnage-alloc/tests/torch_script/mod.rs"]
#[expect(dead_code, reason = "the scripts themselves are not used here")]
mod torch_script;

use std::collections::BTreeMap;

use tonnage_alloc::torch::{Allocator, Error, PoolId, Rules, Scope, Version};
use tonnage_alloc::{AddressOrder, Device, DeviceAddr, StreamId};
use torch_script::Controlled;

use super::Bytes;

const SETTINGS: [&str; 14] = [
    "",
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:40",
    "max_split_size_mb:60,max_non_split_rounding_mb:30",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,64:8,>:16]",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.7",
    "large_segment_size_mb:32",
    "throw_on_cudamalloc_oom:True",
    "throw_on_cudamalloc_oom:False,per_process_memory_fraction:0.8",
    "expandable_segments:True,expandable_segments_reserve:0.3",
    "graph_capture_record_stream_reuse:True",
    "expandable_segments:True,max_split_size_mb:40,garbage_collection_threshold:0.5",
];
/// A recount looks at every block, which makes a long script quadratic.
const MAX_CALLS: usize = 400;
const RECOUNT_EVERY: usize = 8;

struct World {
    torch: Allocator<Controlled>,
    live: BTreeMap<u64, u64>,
    held_back: Vec<u64>,
}

/// Runs the bytes as a script.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let order = bytes.pick(&[AddressOrder::Ascending, AddressOrder::Descending]);
    let total = (1 + bytes.below(200) as u64) * (20 << 20);
    let rules = Rules::for_version(Version(2, 1 + u16::from(bytes.byte() % 15)));
    let settings = bytes.pick(&SETTINGS).parse().expect("valid settings");
    let torch = Allocator::with(Controlled::new(total, order), settings, rules, ());
    let mut world = World {
        torch,
        live: BTreeMap::new(),
        held_back: Vec::new(),
    };
    for call in 0..MAX_CALLS {
        if bytes.is_empty() {
            break;
        }
        let result = world.call(&mut bytes);
        assert!(!matches!(result, Err(Error::Device(_))), "{result:?}");
        if call % RECOUNT_EVERY == 0 {
            world.recount();
        }
    }
    world.torch.set_capturing(false);
    for addr in std::mem::take(&mut world.held_back) {
        world
            .torch
            .complete_free(DeviceAddr(addr))
            .expect("it was held back");
    }
    for addr in std::mem::take(&mut world.live).into_keys() {
        world.torch.free(DeviceAddr(addr)).expect("it is live");
    }
    let _ = world.torch.empty_cache();
    world.recount();
}

impl World {
    fn call(&mut self, bytes: &mut Bytes<'_>) -> Result<(), Error> {
        let verb = bytes.byte();
        let stream = StreamId(u64::from(verb >> 5) % 6);
        let pool = PoolId(u64::from(verb & 1), 1 + u64::from(verb >> 6));
        let torch = &mut self.torch;
        match verb % 32 {
            0..=7 => {
                let size = bytes.size();
                let addr = torch.malloc(size, stream)?;
                self.handed_out(addr, size);
            }
            8 => {
                let size = bytes.size();
                let addr = torch.malloc_in(pool, size, stream)?;
                self.handed_out(addr, size);
            }
            9 => {
                let (size, offset) = (bytes.size(), u64::from(bytes.byte()) * 512);
                let Some(near) = self.pick(bytes) else {
                    return Ok(());
                };
                let place = near.offset(offset);
                if let Some(addr) = self.torch.malloc_at(size, stream, place)? {
                    assert_eq!(addr, place);
                    self.handed_out(addr, size);
                }
            }
            verb @ 10..=16 => {
                let Some(addr) = self.pick(bytes) else {
                    return Ok(());
                };
                self.live.remove(&addr.0);
                if verb == 16 {
                    self.held_back.push(addr.0);
                    return self.torch.request_free(addr);
                }
                self.torch.free(addr)?;
                assert!(self.torch.free(addr).is_err(), "freed twice");
            }
            17 => {
                let Some(addr) = self.held_back.pop() else {
                    return Ok(());
                };
                torch.complete_free(DeviceAddr(addr))?;
            }
            18 | 19 => {
                let Some(addr) = self.pick(bytes) else {
                    return Ok(());
                };
                self.torch.record_stream(addr, stream)?;
            }
            20 => torch
                .device_mut()
                .hold(stream, bytes.byte().is_multiple_of(2)),
            21 => torch.empty_cache()?,
            22 => {
                let _ = torch.update_settings(bytes.pick(&SETTINGS));
            }
            23 => torch.set_memory_fraction(f64::from(bytes.byte()) / 200.0)?,
            24 => torch.create_pool(pool)?,
            25 => torch.destroy_pool(pool)?,
            26 => torch.release_pool_use(pool)?,
            27 => torch.begin_allocate_to_pool(pool, Scope::Everything)?,
            28 => torch.begin_allocate_to_pool(pool, Scope::Streams(vec![stream]))?,
            29 => torch.end_allocate_to_pool(pool)?,
            30 => torch.set_capturing(verb >= 128),
            _ => match bytes.below(6) {
                0 => torch.set_no_split(pool),
                1 => torch.set_use_on_oom(pool, true),
                2 => torch.set_use_on_oom(pool, false),
                3 => torch.reset_peak_stats(),
                4 => torch.create_custom_pool(pool)?,
                _ => torch.reset_accumulated_stats(),
            },
        }
        Ok(())
    }

    fn pick(&self, bytes: &mut Bytes<'_>) -> Option<DeviceAddr> {
        let place = usize::from(bytes.byte()).checked_rem(self.live.len())?;
        self.live.keys().nth(place).map(|&addr| DeviceAddr(addr))
    }

    fn handed_out(&mut self, addr: DeviceAddr, requested: u64) {
        let size = self.torch.size_of(addr).expect("it is live");
        assert!(size >= requested && addr.0.is_multiple_of(512));
        let below = self.live.range(..addr.0 + size).next_back();
        assert!(
            below.is_none_or(|(&start, &size)| start + size <= addr.0),
            "two blocks overlap"
        );
        self.live.insert(addr.0, size);
    }

    fn recount(&self) {
        self.torch.check().expect("the allocator's books balance");
        let device = self.torch.device();
        device.check().expect("the device's books balance");
        assert_eq!(device.total() - device.free_bytes(), self.torch.reserved());
        let stats = self.torch.stats();
        let live: u64 = self.live.values().sum();
        assert_eq!(stats.allocated_bytes.all.current as u64, live);
        assert!(stats.active_bytes.all.current >= stats.allocated_bytes.all.current);
        assert!(stats.reserved_bytes.all.current >= stats.active_bytes.all.current);
        for stat in [&stats.active, &stats.allocated_bytes, &stats.reserved_bytes] {
            assert_eq!(
                stat.all.current,
                stat.small_pool.current + stat.large_pool.current
            );
            assert!(stat.all.peak >= stat.all.current);
        }
    }
}
