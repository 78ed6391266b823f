// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage convert` to a recording of tonnage, from one of another tool.

use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::commands::recording::{Input, Output, derived, import_to, named, tell_notes, words};
use crate::options::OutputFile;
use crate::output::{Answer, Reply, bytes, count, hinted, print_err};

/// Turn a recording of another tool into one of tonnage
///
/// Reads PyTorch memory snapshots (pickle or JSON, PyTorch 2.1 and later),
/// logs of RMM and planner CSV; the format is detected from the first bytes.
/// Nothing in the file is ever run.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage convert snapshot.pickle
  tonnage convert rmm_log.csv -o service.tonnage")]
pub(crate) struct ImportOptions {
    /// The recording to read; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: OutputFile,
}

pub(crate) fn run(path: &Path, target: &OutputFile) -> Result<Reply> {
    let input = Input::new(path)?;
    let Some(format) = input.recognise()? else {
        return Err(hinted(
            format!("{} is a recording of tonnage already", named(path)),
            format!(
                "`tonnage info {0}` shows what is in it, `tonnage convert {0} --to snapshot` writes a snapshot",
                path.display()
            ),
        ));
    };
    let force = target.force;
    let target = target.output.clone();
    let target = target.unwrap_or_else(|| derived(path, ".tonnage"));
    let output = Output::create(&target, force)?;
    let imported = if let Some(file) = output.file() {
        import_to(&input, file)?.1
    } else {
        // Output to a pipe cannot be taken back: nothing is written before all of it was read.
        let kept = tempfile::tempfile().context("cannot make a temporary file")?;
        let (mut kept, imported) = import_to(&input, kept)?;
        let mut destination = output.writer()?;
        kept.rewind()
            .and_then(|()| std::io::copy(&mut kept, &mut destination))
            .and_then(|_| destination.flush())
            .with_context(|| format!("cannot write {}", target.display()))?;
        imported
    };
    let size = output.finish()?;
    let size = size.map_or(String::new(), |size| format!(", {}", bytes(size)));
    print_err(&format!(
        "wrote {} ({} rows{size}) from a {}",
        target.display(),
        count(imported.events),
        words(format)
    ));
    tell_notes("not known", &imported.unknown);
    Ok(Reply::silent(Answer::Yes))
}
