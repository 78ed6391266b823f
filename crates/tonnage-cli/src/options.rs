// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that several commands share.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
#[cfg(feature = "jobs")]
use tonnage_run::StopAfter;

/// Headings of the help of commands with many options.
pub(crate) mod headings {
    /// No heading. Without it, an option gets that of the option before.
    pub(crate) const COMMON: Option<&str> = None;
    pub(crate) const GPUS: &str = "Several GPUs";
    pub(crate) const MODEL: &str = "GPU model and assumptions";
    pub(crate) const SEARCH: &str = "Search";
    pub(crate) const EFFECTS: &str = "Files and network of the job";
    pub(crate) const OUTPUT: &str = "Output";
}

// The groups have no documentation comment: clap would take it for the text of the command.
#[derive(Args, Debug)]
pub(crate) struct GpuName {
    /// The GPU to simulate; `tonnage gpus` lists them [env: TONNAGE_GPU] [default: `gpu` in the nearest tonnage.toml,
    /// or in pyproject.toml under tool.tonnage].
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct GpuOptions {
    /// Memory of the GPU, instead of the catalogue's, e.g. 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_capacity)]
    pub(crate) capacity: Option<u64>,
    /// Run even where a real NVIDIA device is present.
    #[arg(long, alias = "even-with-gpu")]
    pub(crate) allow_real_gpu: bool,
}

#[cfg(feature = "jobs")]
#[derive(Args, Debug)]
pub(crate) struct RunLimits {
    /// Memory that must stay free for the answer to be "fits" [default: the most CUDA overhead seen on real GPUs].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_margin)]
    pub(crate) margin: Option<u64>,
    /// End a run early, e.g. after 3steps of an optimizer or 90s, and judge it as far as it ran.
    #[arg(long, value_name = "WHEN", value_parser = parse_stop_after)]
    pub(crate) stop_after: Option<StopAfter>,
}

#[derive(Args, Debug)]
pub(crate) struct ScreenOptions {
    /// Show no progress.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
}

#[derive(Args, Debug, Default)]
pub(crate) struct QuietOptions {
    /// Print only the verdict: one line, and the exit code. The output of the job is discarded.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How much of the answer is printed.
#[derive(Args, Debug, Default)]
pub(crate) struct DetailOptions {
    #[command(flatten)]
    pub(crate) quiet: QuietOptions,
    /// Print every figure, holder and proposal, with the arithmetic.
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReplyOptions {
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct OutputFile {
    /// Where to write; `-` is stdout [default: the file's name, with the ending of the new format].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PageFile {
    /// Write the result as an HTML page, too; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Overwrite the page if it is there.
    #[arg(long, requires = "html")]
    pub(crate) force: bool,
    /// Open the page in a browser. Without a display, and over SSH, print its path.
    #[arg(long, requires = "html")]
    pub(crate) open: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RecordingFile {
    /// Where to write the recording [default: the script's name with .tonnage, and a number if that is taken].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long)]
    pub(crate) force: bool,
    /// Where the files of the job are while it runs, for `tonnage fleet watch` [default: the temporary folder].
    #[arg(long, value_name = "DIR", env = "TONNAGE_LIVE", hide_short_help = true)]
    pub(crate) live: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct JobCommand {
    /// The command to run, with its arguments: all words from the first that is not an option, or after `--`. A Python
    /// script may stand for itself.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Side effects that a dry run may have.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SideEffects {
    /// Let the job change files and upload data as a real run does. By default, a dry run does neither.
    #[arg(long)]
    pub(crate) side_effects: bool,
    /// Let the job change PATH and all below it; its other writes are discarded. May be repeated.
    #[arg(
        long,
        value_name = "PATH",
        env = "TONNAGE_PASS_THROUGH",
        value_delimiter = ':'
    )]
    pub(crate) pass_through: Vec<PathBuf>,
}

#[cfg(feature = "jobs")]
impl SideEffects {
    /// Puts them into the options of a dry run.
    pub(crate) fn apply(&self, options: &mut tonnage_run::Options) {
        options.side_effects = self.side_effects;
        options.pass_through.clone_from(&self.pass_through);
    }
}

/// On which device a recording is replayed.
#[derive(Args, Debug, Default)]
pub(crate) struct Target {
    /// Replay on this GPU; `tonnage gpus` lists them [default: the recorded one].
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Memory of the GPU, instead of the recorded or the catalogue's, e.g. 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_capacity)]
    pub(crate) capacity: Option<u64>,
    /// Memory that the context takes, instead of the recorded or the catalogue's.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) context: Option<u64>,
    /// The release of PyTorch whose rules apply, e.g. 2.11 [default: the recorded one].
    #[arg(long, value_name = "VERSION", value_parser = parse_torch)]
    pub(crate) torch: Option<u16>,
}

/// Reads `2.11` or `2.11.0` as 11.
fn parse_torch(text: &str) -> Result<u16, String> {
    let minor = text
        .strip_prefix("2.")
        .and_then(|rest| rest.split('.').next());
    let minor = minor.and_then(|minor| minor.parse().ok());
    minor
        .filter(|minor| *minor >= 1)
        .ok_or_else(|| "expected a release such as 2.11".to_owned())
}

#[cfg(feature = "jobs")]
/// Reads `3steps`, `90s` or `5min`.
fn parse_stop_after(text: &str) -> Result<StopAfter, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u64>().ok().filter(|number| *number > 0);
    match (number, unit.trim()) {
        (Some(steps), "step" | "steps") => Ok(StopAfter::Steps(steps)),
        (Some(seconds), "s" | "sec" | "seconds") => Ok(StopAfter::Seconds(seconds)),
        (Some(minutes), "min" | "minutes") => Ok(StopAfter::Seconds(minutes.saturating_mul(60))),
        _ => Err("write a number of steps or a time: 3steps, 90s, 5min".to_owned()),
    }
}
