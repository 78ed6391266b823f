// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the reference, or checks whether the committed one is current.
//!
//! Exit code: 0 written or current, 1 not current, 2 it could not be found out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tonnage_reference::{apart, extras, pages, wire, write};

/// Write the reference of tonnage, as its code has it
#[derive(Debug, Parser)]
#[command(name = "tonnage-reference")]
struct Arguments {
    /// The folder of the reference.
    #[arg(value_name = "FOLDER", default_value = "docs/reference")]
    folder: PathBuf,
    /// Write nothing; report where the folder differs from the code.
    #[arg(long)]
    check: bool,
    /// Where to write man pages and completions, which are not committed.
    #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
    extras: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            tell(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pages = pages()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let module = wire::module(&root)?;
    let file = root.join(wire::FILE);
    if arguments.check {
        let mut apart = apart(&arguments.folder, &pages)?;
        if fs::read_to_string(&file).ok() != Some(module) {
            apart.push(format!("{}: differs", wire::FILE));
        }
        for difference in &apart {
            tell(difference);
        }
        if apart.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        tell(
            "the reference is not what the code gives; `cargo run --bin tonnage-reference` writes it anew",
        );
        return Ok(ExitCode::from(1));
    }
    write(&arguments.folder, &pages)?;
    fs::write(file, module)?;
    tell_written(&arguments.folder, pages.len());
    if let Some(folder) = &arguments.extras {
        let extras = extras()?;
        write(folder, &extras)?;
        tell_written(folder, extras.len());
    }
    Ok(ExitCode::SUCCESS)
}

fn tell_written(folder: &Path, files: usize) {
    tell(&format!("wrote {files} files to {}", folder.display()));
}

#[expect(
    clippy::print_stderr,
    reason = "a tool of the repository, not the command"
)]
fn tell(line: &str) {
    eprintln!("{line}");
}
