// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage convert`: a recording to and from the formats of other tools.
//!
//! `import` and `export` do the work. They were commands of their own, and still run under these names.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::export::{ExportFormat, Parts};
use super::{export, import};
use crate::options::OutputFile;
use crate::output::{Reply, hinted};

/// Convert a recording to or from the format of another tool
///
/// Without --to, it writes a recording of tonnage. It reads PyTorch memory
/// snapshots (pickle or JSON, PyTorch 2.1 and later), logs of RMM, and planner
/// CSV. The first bytes of the file decide the format. Nothing in the file is
/// ever run.
///
/// With --to, it writes a snapshot, which opens in pytorch.org/memory_viz, or a
/// Perfetto trace, which opens in ui.perfetto.dev. It then also reads recordings
/// of tonnage.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage convert snapshot.pickle
  tonnage convert rmm_log.csv -o service.tonnage
  tonnage convert train.tonnage --to snapshot
  tonnage convert train.tonnage --to perfetto -o train.json --min-block 64MiB")]
pub(crate) struct ConvertOptions {
    /// The recording to read; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The format to write.
    #[arg(long, alias = "format", value_enum, default_value_t = Written::Tonnage, value_name = "FORMAT")]
    pub(crate) to: Written,
    #[command(flatten)]
    pub(crate) target: OutputFile,
    #[command(flatten)]
    pub(crate) parts: Parts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Written {
    /// A recording of tonnage.
    Tonnage,
    /// A PyTorch memory snapshot.
    Snapshot,
    /// A Chrome trace for Perfetto.
    Perfetto,
}

pub(crate) fn run(options: &ConvertOptions) -> Result<Reply> {
    let format = match options.to {
        Written::Tonnage => {
            let misplaced = match (options.parts.process, options.parts.min_block) {
                (Some(_), _) => "--process is for snapshots",
                (None, Some(_)) => "--min-block is for Perfetto traces",
                (None, None) => return import::run(&options.file, &options.target),
            };
            let hint = "leave it out, or name the format with --to";
            return Err(hinted(
                format!("a recording of tonnage has all processes and blocks; {misplaced}"),
                hint,
            ));
        }
        Written::Snapshot => ExportFormat::Snapshot,
        Written::Perfetto => ExportFormat::Perfetto,
    };
    export::run(&options.file, format, &options.target, &options.parts)
}
