// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is said to those who typed something else than the command understands.

mod said;

use std::path::Path;

use insta::assert_snapshot;
use said::tonnage;

#[test]
fn an_unknown_option_of_run_is_not_taken_for_the_job() {
    for typed in [
        "run --gpuu h100 -- python train.py",
        "run --gpuu h100 train.py",
    ] {
        let text = tonnage(Path::new("."), typed);
        assert!(text.contains("exit code 2"), "{text}");
        assert!(text.contains("unexpected argument '--gpuu'"), "{text}");
        assert!(text.contains("'--gpu'"), "{text}");
    }
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

#[test]
fn the_help_groups_the_commands() {
    assert_snapshot!("help", tonnage(Path::new("."), "-h"));
    // What is wrong in what was typed is told as ever.
    let text = tonnage(Path::new("."), "explian");
    assert!(text.contains("'explain'"), "{text}");
}

/// Scripts that were written before the options had these names go on working.
#[test]
fn options_keep_their_old_spelling() {
    let here = Path::new(".");
    let text = tonnage(here, "report nowhere.tonnage --race yes --text");
    assert!(text.contains("cannot open nowhere.tonnage"), "{text}");
    let text = tonnage(here, "run --even-with-gpu --gpu nope true");
    assert!(text.contains("is called \"nope\""), "{text}");
    for help in ["report --help", "run --help"] {
        let text = tonnage(here, help);
        assert!(
            !text.contains("--race") && !text.contains("--even"),
            "{text}"
        );
    }
}
