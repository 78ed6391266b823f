// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is said to those who typed something else than the command understands.

mod said;

use std::path::Path;

use said::tonnage;

#[test]
fn a_job_without_its_separator_is_shown_where_it_belongs() {
    let here = Path::new(".");
    for (typed, meant) in [
        ("run train.py", "tonnage run -- python train.py"),
        ("run python train.py", "tonnage run -- python train.py"),
        (
            "run --gpu a100-40gb torchrun --nproc-per-node 2 train.py --batch-size 8",
            "tonnage run --gpu a100-40gb -- torchrun --nproc-per-node 2 train.py --batch-size 8",
        ),
    ] {
        let text = tonnage(here, typed);
        assert!(text.contains("exit code 2"), "{text}");
        assert!(text.contains("belongs after `--`"), "{text}");
        assert!(text.contains(&format!("    {meant}\n")), "{text}");
    }
    // Another mistake is none of this.
    let text = tonnage(here, "run --gpuu h100 -- python train.py");
    assert!(!text.contains("belongs after"), "{text}");
    assert!(text.contains("--gpuu"), "{text}");
}

#[test]
fn a_capacity_without_a_unit_is_asked_for_it() {
    let text = tonnage(Path::new("."), "run --capacity 24 -- python train.py");
    assert!(text.contains("exit code 2"), "{text}");
    assert!(
        text.contains("24 without a unit is 24 bytes; use 24GiB"),
        "{text}"
    );
}
