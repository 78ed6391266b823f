// SPDX-License-Identifier: MIT OR Apache-2.0
//! The snapshots of real GPUs, explained: the report has what they show, and nothing that they cannot show.

use std::io::Write as _;
use std::path::PathBuf;

use tonnage_analysis::explain::{Outcome, explain};
use tonnage_analysis::holdings;
use tonnage_recording::Writer;

const MIB: f64 = 1024.0 * 1024.0;

/// Name; peak of allocated MiB as the real device had it (published, or by the model of its allocator where that
/// corrects it) and of reserved MiB.
const SNAPSHOTS: [(&str, f64, f64); 8] = [
    ("medium_1024_training", 23_092.192, 24_012.0),
    ("medium_512_training", 11_859.395, 12_074.0),
    ("medium_256_training", 8_691.191, 8_836.0),
    ("medium_128_training", 6_701.094, 6_900.0),
    ("medium_128_inference", 1_658.371, 1_682.0),
    ("medium_256_inference", 1_712.553, 1_778.0),
    ("medium_512_inference", 1_860.914, 1_890.0),
    ("medium_1024_inference", 2_746.012, 3_056.0),
];

#[test]
fn each_is_explained_within_what_it_shows() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/real-gpu");
    if !folder.is_dir() {
        // Not `eprintln!`, which the test harness hides when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {} is not there; the snapshots of real GPUs were not explained",
            folder.display()
        );
        return;
    }
    for (name, allocated, reserved) in SNAPSHOTS {
        let file = folder.join(format!("{name}_memory_snapshot.pickle"));
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        let source = std::fs::File::open(file).unwrap();
        tonnage_import::import(source, 0, &mut writer).unwrap();
        let trace = writer.finish().unwrap();
        let recording = holdings::read(trace.as_slice()).unwrap();
        let told = explain(&recording, None, None).unwrap();
        assert_eq!(told.outcome, Outcome::Ran, "{name}");

        // The file has requests and not blocks: never above the real peak, and at most 0.2 % below.
        let said = told.on_device.allocated as f64 / MIB;
        assert!(
            said <= allocated + 0.001 && said >= allocated * 0.998,
            "{name}: {said}"
        );
        let held = said + told.on_device.cached as f64 / MIB;
        assert!(held <= reserved + 0.001, "{name}: {held}");
        let most = recording.tracks[0].peak_reserved as f64 / MIB;
        assert!((most - reserved).abs() < 0.001, "{name}: {most}");

        // It has no device, no context, and no word of torch on whose the bytes are.
        assert_eq!(told.on_device.capacity, None, "{name}");
        assert_eq!(told.on_device.context, None, "{name}");
        assert_eq!(told.on_device.outside, None, "{name}");
        assert!(
            told.categories.iter().all(|part| part.exact_bytes == 0),
            "{name}"
        );
        assert!(
            told.unknown.iter().any(|gap| gap.contains("inferred")),
            "{name}"
        );
        assert!(
            told.unknown.iter().any(|gap| gap.contains("capacity")),
            "{name}"
        );
        assert!(
            told.unknown
                .iter()
                .any(|gap| gap.contains("before the recording began")),
            "{name}"
        );

        // Nothing is proposed for an optimizer that is the user's own.
        assert!(
            told.fixes.iter().all(|fix| !fix.advice.contains("fused")),
            "{name}"
        );
        let trains = name.ends_with("training");
        let steps = told.moment.phase != holdings::Phase::Load;
        assert!(steps, "{name}: {:?}", told.moment);
        let gradients = told
            .categories
            .iter()
            .any(|part| part.category == holdings::Category::Gradients);
        assert!(trains || !gradients, "{name}");
    }
}
