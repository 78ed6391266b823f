// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed reference is what the code gives, and a difference is noticed.

use std::path::Path;

use tempfile::TempDir;
use tonnage_reference::{apart, extras, pages, wire, write};

#[test]
fn the_committed_reference_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let apart = apart(&folder, &pages().unwrap()).unwrap();
    assert!(
        apart.is_empty(),
        "`cargo run --bin tonnage-reference` writes it anew: {apart:#?}"
    );
}

#[test]
fn the_committed_wire_module_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let committed = std::fs::read_to_string(root.join(wire::FILE)).unwrap();
    assert_eq!(
        committed,
        wire::module(&root).unwrap(),
        "`cargo run --bin tonnage-reference` writes it anew"
    );
}

#[test]
fn what_differs_is_named() {
    let folder = TempDir::new().unwrap();
    let pages = pages().unwrap();
    write(folder.path(), &pages).unwrap();
    assert!(apart(folder.path(), &pages).unwrap().is_empty());
    let at = |name: &str| folder.path().join(name);
    let text = std::fs::read_to_string(at("cli.md")).unwrap();
    std::fs::write(
        at("cli.md"),
        text.replacen("tonnage run", "tonnage walk", 1),
    )
    .unwrap();
    std::fs::remove_file(at("schemas/run.json")).unwrap();
    std::fs::write(at("schemas/old.json"), "{}").unwrap();
    let told = apart(folder.path(), &pages).unwrap();
    assert_eq!(told.len(), 3, "{told:#?}");
    assert!(told[0].contains("cli.md:") && told[0].ends_with("differs"));
    assert!(told[1].ends_with("schemas/run.json: is missing"));
    assert!(told[2].ends_with("schemas/old.json: is not made from the code"));
}

#[test]
fn every_command_has_a_heading_a_man_page_and_completions() {
    let pages = pages().unwrap();
    let page = &pages[Path::new("cli.md")];
    let extras = extras().unwrap();
    let mut names = Vec::new();
    let commands = tonnage_cli::command();
    // An older name only points to the command that replaced it.
    for command in commands
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let name = command.get_name();
        assert!(page.contains(&format!("\n## tonnage {name}\n")), "{name}");
        let man = &extras[Path::new(&format!("man/tonnage-{name}.1"))];
        assert!(man.contains(".SH SYNOPSIS"), "{name}");
        names.push(name.to_owned());
    }
    assert!(names.len() > 10);
    for script in ["bash/tonnage", "zsh/_tonnage", "fish/tonnage.fish"] {
        let script = &extras[&Path::new("completions").join(script)];
        for name in &names {
            assert!(script.contains(name.as_str()), "{name}");
        }
    }
    assert!(extras[Path::new("man/tonnage.1")].contains("tonnage"));
}
