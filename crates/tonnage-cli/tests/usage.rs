// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers to command lines that the command does not understand.

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

/// A bare `tonnage` is bad use, so its text goes to stderr.
#[test]
fn without_a_command_the_four_everyday_ones_are_shown() {
    let text = tonnage(Path::new("."), "");
    assert_snapshot!("overview", text);
    let commands: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split("  ").next())
        .collect();
    assert_eq!(commands[..4], ["run", "explain", "fit", "report"]);
    // A missing command of a group is another matter.
    let nested = tonnage(Path::new("."), "forecast");
    assert!(
        nested.contains("exit code 2") && nested.contains("ledger"),
        "{nested}"
    );
}

#[test]
fn options_of_run_and_fit_are_in_sections() {
    for (command, sections) in [
        (
            "run",
            [
                "Options:",
                "Several GPUs:",
                "GPU model and assumptions:",
                "Files and network of the job:",
                "Output:",
            ],
        ),
        (
            "fit",
            [
                "Options:",
                "Several GPUs:",
                "GPU model and assumptions:",
                "Search:",
                "Output:",
            ],
        ),
    ] {
        let long = tonnage(Path::new("."), &format!("{command} --help"));
        let arguments = long.find("Arguments:").unwrap();
        assert!(arguments < long.find("Options:").unwrap(), "{long}");
        for section in sections {
            let heading = format!("\n{section}\n");
            assert_eq!(long.matches(&heading).count(), 1, "{section}: {long}");
        }
    }
    // Options for specialists are in the long help alone.
    let short = tonnage(Path::new("."), "run -h");
    let long = tonnage(Path::new("."), "run --help");
    for option in [
        "--assume",
        "--address-order",
        "--context",
        "--live",
        "--values",
    ] {
        assert!(!short.contains(option) && long.contains(option), "{option}");
    }
}

#[test]
fn the_help_groups_the_commands() {
    assert_snapshot!("help", tonnage(Path::new("."), "-h"));
    // A mistake in the command line is reported as ever.
    let text = tonnage(Path::new("."), "explian");
    assert!(text.contains("'explain'"), "{text}");
}

/// Commands that have a newer spelling still run, with a note on stderr.
#[test]
fn commands_keep_their_old_names() {
    let here = Path::new(".");
    for (older, newer, error) in [
        (
            "tune nowhere.tonnage",
            "replay --search",
            "cannot open nowhere.tonnage",
        ),
        (
            "import nowhere.pickle",
            "convert",
            "cannot open nowhere.pickle",
        ),
        (
            "export nowhere.tonnage --format snapshot",
            "convert --to",
            "cannot open nowhere.tonnage",
        ),
        (
            "serve-fit --gpu nope vllm serve m",
            "fit",
            "is called \"nope\"",
        ),
    ] {
        let name = older.split(' ').next().unwrap();
        let text = tonnage(here, older);
        let note = format!("note: `tonnage {name}` is the older name of `tonnage {newer}`\n");
        assert!(
            text.contains("exit code 2") && text.contains(&note),
            "{text}"
        );
        assert!(text.contains(error), "{text}");
        let help = tonnage(here, "--help");
        assert!(!help.contains(&format!("\n  {name} ")), "{help}");
    }
    let text = tonnage(here, "replay --search nowhere.tonnage");
    assert!(
        text.contains("cannot open nowhere.tonnage") && !text.contains("note:"),
        "{text}"
    );
}

/// `fit` recognizes the command of a vLLM server, unless it has a placeholder.
#[test]
fn fit_counts_the_requests_of_a_server() {
    let here = Path::new(".");
    let server = tonnage(here, "fit --gpu l4 --shard vllm serve m");
    assert!(
        server.contains("--shard does not apply to a vLLM server"),
        "{server}"
    );
    for search in [
        "fit --gpu l4 --shard vllm serve m --max-num-seqs {n=1..8}",
        "fit --gpu l4 --shard train.py",
    ] {
        let text = tonnage(here, search);
        assert!(
            text.contains("--shard spreads a model over several GPUs"),
            "{text}"
        );
    }
}

#[test]
fn options_of_one_format_are_refused_with_another() {
    let here = Path::new(".");
    for (call, error) in [
        ("convert a.pickle --process 1", "--process is for snapshots"),
        (
            "convert a.pickle --min-block 1MiB",
            "--min-block is for Perfetto traces",
        ),
        (
            "convert a.tonnage --to perfetto --process 1",
            "--process is for snapshots",
        ),
    ] {
        let text = tonnage(here, call);
        assert!(
            text.contains("exit code 2") && text.contains(error),
            "{text}"
        );
    }
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
