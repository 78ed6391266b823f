// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a script of the torch policy from standard input and prints what it
//! produces; the format is described in `tests/torch_script/mod.rs`.
//!
//! The differential test writes the same text with the real allocator, or with
//! its executable model, and compares the two byte for byte. With `--check` the
//! books are recounted after every call.

#[path = "../tests/torch_script/mod.rs"]
mod torch_script;

use std::io::{BufRead as _, Write as _};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut script = torch_script::Script::default();
    script.check = std::env::args().any(|argument| argument == "--check");
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        out.write_all(script.line(&line?)?.as_bytes())?;
    }
    writeln!(out, "# {} events", script.events)?;
    Ok(())
}
