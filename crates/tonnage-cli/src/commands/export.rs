// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage convert --to`: a recording in the format of another tool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use tonnage_analysis::info::info;
use tonnage_export::{DEFAULT_MIN_BLOCK, ExportError, Level, PerfettoOptions, perfetto, snapshot};

use crate::commands::recording::{
    Output, Recording, derived, explained, tell_notes, unreadable_trace,
};
use crate::options::OutputFile;
use crate::output::{Answer, HINT, Reply, bytes, hinted, plural, print_err};

/// Write a recording in the format of another tool
///
/// A snapshot opens in pytorch.org/memory_viz, a Perfetto trace in
/// ui.perfetto.dev. Reads everything `tonnage info` reads.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage convert train.tonnage --to snapshot
  tonnage convert train.tonnage --to perfetto -o train.json --min-block 64MiB")]
pub(crate) struct ExportOptions {
    /// The recording to read; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The format to write.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: ExportFormat,
    #[command(flatten)]
    pub(crate) target: OutputFile,
    #[command(flatten)]
    pub(crate) parts: Parts,
}

/// Which parts of a recording a format holds.
#[derive(Args, Debug)]
pub(crate) struct Parts {
    /// The process to write, because a snapshot holds only one.
    #[arg(long, value_name = "N")]
    pub(crate) process: Option<u32>,
    /// The smallest block that a Perfetto trace shows separately [default: 16MiB].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) min_block: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// A PyTorch memory snapshot.
    Snapshot,
    /// A Chrome trace for Perfetto.
    Perfetto,
}

pub(crate) fn run(
    path: &Path,
    format: ExportFormat,
    target: &OutputFile,
    parts: &Parts,
) -> Result<Reply> {
    let (extension, viewer) = match format {
        ExportFormat::Snapshot => (".pickle", "https://pytorch.org/memory_viz"),
        ExportFormat::Perfetto => (".perfetto.json", "https://ui.perfetto.dev"),
    };
    check_parts(format, parts)?;
    let file = target.output.clone();
    let file = file.unwrap_or_else(|| derived(path, extension));
    let output = Output::create(&file, target.force)?;
    let recording = Recording::open(path)?;
    let destination = output.writer()?;
    let open = || recording.trace();
    let exported = match format {
        ExportFormat::Snapshot => {
            snapshot(open, destination, parts.process).map(|(_, exported)| exported)
        }
        ExportFormat::Perfetto => {
            let info = info(recording.trace()?).map_err(|error| unreadable_trace(path, &error))?;
            // Memory held before the first event lifts the counters.
            let start = info.devices.iter().map(|device| {
                let level = Level {
                    allocated: device.start_allocated,
                    reserved: device.start_reserved,
                };
                ((device.process, device.device), level)
            });
            let options = PerfettoOptions {
                min_block: parts.min_block.unwrap_or(DEFAULT_MIN_BLOCK),
                start: start.collect::<BTreeMap<_, _>>(),
            };
            perfetto(open, destination, &options).map(|(_, exported)| exported)
        }
    };
    let exported = exported.map_err(|error: ExportError| {
        let hint = error.hint();
        explained(&error, hint).context(format!("cannot export {}", path.display()))
    })?;
    let size = output.finish()?;
    let size = size.map_or(String::new(), |size| format!(", {}", bytes(size)));
    print_err(&format!(
        "wrote {} ({}{size}); it opens in {HINT}{viewer}{HINT:#}",
        file.display(),
        plural(exported.events, "event"),
    ));
    tell_notes("not as in the recording", &exported.notes);
    Ok(Reply::silent(Answer::Yes))
}

/// Refuses an option of the other format.
fn check_parts(format: ExportFormat, parts: &Parts) -> Result<()> {
    match format {
        ExportFormat::Snapshot if parts.min_block.is_some() => Err(hinted(
            "a snapshot holds all blocks; --min-block is for Perfetto traces",
            "leave it out, or use --to perfetto",
        )),
        ExportFormat::Perfetto if parts.process.is_some() => Err(hinted(
            "a Perfetto trace holds all processes; --process is for snapshots",
            "leave it out, or use --to snapshot",
        )),
        _ => Ok(()),
    }
}
