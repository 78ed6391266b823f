// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the stand-in into this library, to ship a single self-contained binary (feature `bundled`).
//!
//! A program cannot depend on the shared library of another crate, and `cargo install` installs programs alone. So the
//! library is built here, by the same cargo, and its bytes become part of whatever links this crate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const LIBRARY: &str = "libtonnage_standin.so";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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

fn variable(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")))
}

fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
