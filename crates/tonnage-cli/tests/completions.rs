// SPDX-License-Identifier: MIT OR Apache-2.0
//! `completions` as a person sees it; the scripts themselves are clap's, so only what they must name is checked.

mod said;

use insta::assert_snapshot;
use tempfile::TempDir;

use said::tonnage;

#[test]
fn the_help_says_where_the_script_goes() {
    let folder = TempDir::new().unwrap();
    assert_snapshot!("help", tonnage(folder.path(), "completions --help"));
}

#[test]
fn scripts_know_commands_and_options() {
    let folder = TempDir::new().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = tonnage(folder.path(), &format!("completions {shell}"));
        assert!(script.contains("exit code 0"), "{script}");
        for word in ["explain", "allow-real-gpu"] {
            assert!(script.contains(word), "{shell} {word}");
        }
    }
    let told = tonnage(folder.path(), "completions csh");
    assert!(told.contains("exit code 2"), "{told}");
}
