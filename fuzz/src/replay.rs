// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays of recordings that contradict themselves: an answer comes, and stays within the device.
//!
//! The bytes are turned into rows, because a damaged file hardly ever gets past the reader.

use tonnage_analysis::replay::{Alloc, Job, Options};
use tonnage_recording::{Event, Kind, Pool, Writer, meta};

use super::Bytes;

const SETTINGS: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:40,garbage_collection_threshold:0.4",
    "backend:cudaMallocAsync",
    "no_such_setting:1",
];
const STATES: [&str; 5] = [
    "active_allocated",
    "inactive",
    "active_pending_free",
    "small",
    "large",
];

fn recording(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "fuzz 0").expect("memory takes a header");
    let flags = bytes.byte();
    let mut fact = |name: &str, text: &str| writer.meta(0, name, text).expect("it is short");
    if flags & 1 != 0 {
        fact(
            meta::TORCH_VERSION,
            bytes.pick(&["2.15.0", "2.11.0", "2.1", "3", "2.x"]),
        );
    }
    if flags & 2 != 0 {
        fact(meta::ALLOCATOR_CONF, bytes.pick(&SETTINGS));
    }
    if flags & 4 != 0 {
        fact(meta::GPU_CAPACITY, &bytes.size().to_string());
        fact(meta::GPU_CONTEXT, &bytes.size().to_string());
    }
    while !bytes.is_empty() {
        let kind = Kind::ALL[bytes.below(Kind::ALL.len())];
        let shape = bytes.byte();
        let name = (shape & 1 != 0).then(|| writer.stacks_mut().intern(bytes.pick(&STATES)));
        let text = (shape & 2 != 0).then(|| writer.stacks_mut().intern("expandable"));
        // A search for the smallest device maps every page of it many times over.
        let size = bytes.size().min(1 << 33);
        let event = Event {
            process: u32::from(shape >> 7),
            device: i32::from(shape >> 6 & 1) - i32::from(shape == 0x7f),
            stream: u64::from(shape >> 4 & 3),
            // Few addresses, so that rows refer to each other's blocks.
            address: u64::from(bytes.byte()) << (9 + (shape & 8) + (shape & 4)),
            size,
            requested: if shape & 8 != 0 { size / 2 } else { size },
            free: size,
            pool: (shape & 0x0c == 0x0c).then_some(Pool {
                first: 0,
                second: u32::from(shape >> 6),
            }),
            name,
            text,
            ..Event::new(kind)
        };
        if kind.is_event() {
            writer.event(&event).expect("ids are the writer's own");
        }
    }
    writer.finish().expect("memory takes the rest")
}

/// Replays the recording that the bytes make.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let capacity = (bytes.byte() & 1 != 0).then(|| bytes.size().min(1 << 33));
    let file = recording(&mut bytes);
    let options = Options {
        capacity,
        ..Options::default()
    };
    let Ok(job) = Job::load(|| Ok(file.as_slice()), &options) else {
        return;
    };
    for track in job.replay(&Alloc::usual(), true).tracks {
        for result in track.allocators {
            assert!(result.peak_reserved <= track.capacity, "{result:?}");
            assert!(
                result.allocated_at_peak <= result.peak_reserved,
                "{result:?}"
            );
        }
    }
}
