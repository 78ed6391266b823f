// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `tonnage` program: the command as a separate file.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tonnage_cli::main(std::env::args_os()))
}
