// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of the command, as the snapshots hold it: the call, the exit code, stdout, stderr.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Runs the command in `folder`.
pub(crate) fn tonnage(folder: &Path, arguments: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tonnage"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    let mut text = format!("$ tonnage {arguments}\nexit code {code}\n");
    for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
        if !bytes.is_empty() {
            let _ = write!(text, "--- {name}\n{}", String::from_utf8_lossy(&bytes));
        }
    }
    text
}
