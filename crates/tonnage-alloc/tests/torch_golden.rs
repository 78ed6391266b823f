// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays the scripts in `golden/`: the policy produces every recorded line.
//!
//! A file is a script with the expected results below each call; the format is described in `torch_script/mod.rs`. The
//! first line of each names its origin. Most are actions of the real allocator of torch 2.15.0, and in `torch-2.11.txt`
//! of torch 2.11.0, under `tonnage run`; they are recorded by `tests/torch/differential.py --golden`. `torch-2.12.txt`
//! and the three `undefined-*.txt` were written by an executable model of the specification: that torch was not at
//! hand, and torch is undefined where the others end.

mod torch_script;

use std::path::Path;

use torch_script::Script;

#[test]
fn every_golden_script_is_reproduced() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut scripts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        replay(&path, &text);
        scripts += 1;
    }
    assert!(scripts >= 15, "only {scripts} scripts were found");
}

fn replay(path: &Path, text: &str) {
    let mut script = Script::default();
    script.check = true;
    let recorded: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut at = 0;
    for line in recorded.iter().filter(|line| line.starts_with("> ")) {
        let produced = script
            .line(line)
            .unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        for produced in produced.lines() {
            assert_eq!(
                produced,
                recorded[at],
                "{}: line {at} without comments, {} events in",
                path.display(),
                script.events
            );
            at += 1;
        }
    }
    assert_eq!(at, recorded.len(), "{}: lines are left", path.display());
}
