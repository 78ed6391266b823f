// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be typed: commands, options, and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What a job does to GPU memory, without a GPU.
#[derive(Debug, Parser)]
#[command(name = "tonnage", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    pub(crate) fn apply(self) {
        match self {
            Self::Auto => {}
            Self::Always => anstream::ColorChoice::Always.write_global(),
            Self::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunOptions),
    Gpus(GpusOptions),
}

/// Dry-run a PyTorch script on a GPU that is not there
///
/// Runs the command with a stand-in for the CUDA libraries that accounts for
/// every byte and runs no kernel, so PyTorch's own allocator shows what the
/// script does to the memory of the chosen GPU. Values on the device are
/// unknown and read as zero.
///
/// Exit code: 0 it fits, 1 it does not fit, 2 the script failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage run --gpu a100-80gb -- python train.py --batch-size 8
  tonnage run --gpu h100 --gpus 2 -- torchrun --nproc-per-node 2 train.py
  tonnage run --capacity 24GiB --json -- python -m my.training > verdict.json")]
pub(crate) struct RunOptions {
    /// The GPU to play; `tonnage gpus` lists them.
    #[arg(long, value_name = "NAME", default_value = "h100-80gb")]
    pub(crate) gpu: String,
    /// How many of them the machine has.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) gpus: u8,
    /// Memory of the GPU, instead of the catalogue's, e.g. 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) capacity: Option<u64>,
    /// Memory that the context of a process takes, instead of the catalogue's.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) context: Option<u64>,
    /// In which order the driver hands out addresses: it decides ties between free blocks.
    #[arg(long, value_enum, default_value_t = AddressOrder::Descending, value_name = "ORDER")]
    pub(crate) address_order: AddressOrder,
    /// Where to write the recording [default: the script's name, with .tonnage].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the verdict as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no live figures.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    /// Run even where a real NVIDIA device is present.
    #[arg(long)]
    pub(crate) even_with_gpu: bool,
    /// The command to run, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AddressOrder {
    /// Downwards in chunks of 32 MiB, as seen on an H100 under Linux.
    Descending,
    /// Upwards and packed, as seen under WSL.
    Ascending,
}

/// List the GPUs that can be played, and how each figure is known
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage gpus
  tonnage gpus h100
  tonnage gpus --json")]
pub(crate) struct GpusOptions {
    /// Show one GPU, with the source of each figure.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print the catalogue as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
