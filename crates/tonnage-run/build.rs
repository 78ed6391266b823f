// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the files of the hook, and builds the stand-in into this library, to ship a single self-contained binary
//! (feature `bundled`).
//!
//! A program cannot depend on the shared library of another crate, and `cargo install` installs programs alone. So the
//! library is built here, by the same cargo, and its bytes become part of whatever links this crate.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const LIBRARY: &str = "libtonnage_standin.so";
/// The sources of the hook, from this package.
const HOOK: &str = "src/hook";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    list_hook();
    if env::var_os("CARGO_FEATURE_BUNDLED").is_none() {
        return;
    }
    let source = variable("DEP_TONNAGE_STANDIN_SOURCE");
    let out = variable("OUT_DIR");
    for part in ["src", "api", "build.rs", "Cargo.toml"] {
        watch(&source.join(part));
    }
    // Its own dependencies, if they are beside it: in the repository, not in a registry.
    for neighbour in ["tonnage-alloc", "tonnage-capture"] {
        watch(&source.join("..").join(neighbour).join("src"));
    }
    let target = out.join("standin");
    let triple = env::var("TARGET").expect("cargo names the target");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--release",
            "--lib",
            "--quiet",
            "--target",
            &triple,
        ])
        .arg("--manifest-path")
        .arg(source.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // With the linter of an outer `cargo clippy` no library would be built.
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the stand-in does not build");
    let built = target.join(triple).join("release").join(LIBRARY);
    fs::copy(&built, out.join(LIBRARY)).expect("cargo has built the library");
}

/// Writes a table of the Python files of the hook, by their paths from its folder.
fn list_hook() {
    let hook = variable("CARGO_MANIFEST_DIR").join(HOOK);
    watch(&hook);
    let mut files = Vec::new();
    collect(&hook, &mut files);
    // The order of a folder depends on the machine.
    files.sort();
    let mut table = String::from("pub(crate) const FILES: &[(&str, &str)] = &[\n");
    for file in files {
        let name = file.strip_prefix(&hook).expect("it is below that folder");
        let (name, file) = (name.display(), file.display());
        let _ = writeln!(
            table,
            "    ({:?}, include_str!({:?})),",
            name.to_string(),
            file.to_string()
        );
    }
    table.push_str("];\n");
    fs::write(variable("OUT_DIR").join("hook_files.rs"), table).expect("cargo made the folder");
}

/// The Python files in a folder and below.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|end| end == "py") {
            files.push(path);
        }
    }
}

fn variable(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
