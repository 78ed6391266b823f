// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be typed: commands, options, and their help.

mod fleet;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use tonnage_run::StopAfter;

pub(crate) use self::fleet::{
    ChosenForecast, CompareForecasts, EmitForecast, Ending, Engine, FindForecast, FleetCommand,
    FleetMetrics, FleetOptions, FleetReport, FleetWatch, ForecastCommand, ForecastFrom,
    ForecastOptions, ForecastStore, JobNames, LearnOptions, LedgerOptions, MakeForecast,
    ShowForecast, SlurmOptions,
};

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
    Record(RecordOptions),
    Verify(VerifyOptions),
    Explain(ExplainOptions),
    Report(ReportOptions),
    Diff(DiffOptions),
    Fit(FitOptions),
    ServeFit(ServeFitOptions),
    Tune(TuneOptions),
    Replay(ReplayOptions),
    Plan(PlanOptions),
    Check(CheckOptions),
    Forecast(ForecastOptions),
    Fleet(FleetOptions),
    Info(InfoOptions),
    Import(ImportOptions),
    Export(ExportOptions),
    Gpus(GpusOptions),
    Doctor(DoctorOptions),
    Mcp(McpOptions),
    Completions(CompletionsOptions),
}

/// The commands as the help groups them.
pub(crate) const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Ask what a job does",
        &["run", "record", "verify", "explain", "report", "diff"],
    ),
    (
        "Decide what to change",
        &["fit", "serve-fit", "tune", "replay", "plan", "check"],
    ),
    ("Share GPUs", &["forecast", "fleet"]),
    (
        "Files",
        &[
            "info",
            "import",
            "export",
            "gpus",
            "doctor",
            "mcp",
            "completions",
            "help",
        ],
    ),
];

/// The command line with its commands in groups, which clap has for options only.
pub(crate) fn grouped() -> clap::Command {
    let mut command = Arguments::command();
    let mut built = command.clone();
    // Adds the command `help`.
    built.build();
    let styles = command.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let width = GROUPS.iter().flat_map(|(_, names)| *names);
    let width = width.map(|name| name.len()).max().unwrap_or(0);
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(groups, "{header}{title}:{header:#}");
        for name in names {
            let about = built
                .find_subcommand(name)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(groups, "  {literal}{name:<width$}{literal:#}  {about}");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}"
    );
    command = command.help_template(template);
    command
}

impl Command {
    /// Whether the reply is for a program.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Run(options) => options.json,
            Self::Record(options) => options.json,
            Self::Verify(options) => options.json,
            Self::Fit(options) => options.json,
            Self::ServeFit(options) => options.json,
            Self::Gpus(options) => options.json,
            Self::Doctor(options) => options.json,
            Self::Info(options) => options.json,
            Self::Replay(options) => options.json,
            Self::Plan(options) => options.json,
            Self::Tune(options) => options.json,
            Self::Explain(options) => options.json,
            Self::Diff(options) => options.json,
            Self::Report(options) => options.json,
            Self::Forecast(options) => options.what.wants_json(),
            Self::Fleet(options) => options.what.wants_json(),
            // They write files, or have formats of their own.
            Self::Import(_)
            | Self::Export(_)
            | Self::Check(_)
            | Self::Mcp(_)
            | Self::Completions(_) => false,
        }
    }
}

// The groups below have no documentation comment: clap would take it for the text of the command.
#[derive(Args, Debug)]
pub(crate) struct RecordingFile {
    /// Where to write the recording [default: the script's name with .tonnage, and a number if that is taken].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite FILE.
    #[arg(long)]
    pub(crate) force: bool,
    /// Where the files of the job are while it runs, for `tonnage fleet watch` [default: the temporary folder].
    #[arg(long, value_name = "DIR", env = "TONNAGE_LIVE")]
    pub(crate) live: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct JobCommand {
    /// The command to run, with its arguments: all words from the first that is no option, or after `--`. A Python
    /// script may stand for itself.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Dry-run a PyTorch script on a GPU that is not there
///
/// Runs the command with a stand-in for the CUDA libraries that accounts for
/// every byte and runs no kernel, so PyTorch's own allocator shows what the
/// script does to the memory of the chosen GPU. Small values are computed on
/// the CPU, so that flags, counts and sizes are those of a GPU; the verdict
/// names what the script read and nobody computed.
///
/// A job that runs out of memory is run once more on a GPU without a limit, so
/// that the verdict can say how much it needs. It ends with the job, or when
/// the peak has not grown for a while.
///
/// A job fits if it leaves a margin free: the most that CUDA was seen to take on
/// real GPUs beyond the bytes that a dry run counts. Less headroom than that is
/// an uncertain answer.
///
/// Exit code: 0 it fits, 1 it does not fit or that is uncertain, 2 the script failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage run --gpu rtx4090 train.py
  tonnage run --gpu a100-80gb python train.py --batch-size 8
  tonnage run --gpu h100 --gpus 2 torchrun --nproc-per-node 2 train.py
  tonnage run --gpu h100 --world-size 512 --ranks 0,511 torchrun --nproc-per-node 8 train.py
  tonnage run --gpu rtx4090 --capacity 20GiB --json -- python -m my.training > verdict.json")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct RunOptions {
    /// The GPU to simulate; `tonnage gpus` lists them [default: `gpu` in tonnage.toml, or in pyproject.toml under
    /// tool.tonnage].
    #[arg(long, value_name = "NAME", env = "TONNAGE_GPU", hide_env_values = true)]
    pub(crate) gpu: Option<String>,
    /// How many of them the machine has [default: 1; with --world-size what torchrun says, or 8].
    #[arg(long, value_name = "N", value_parser = parse_gpus)]
    pub(crate) gpus: Option<u8>,
    /// Run some ranks of a job of so many, and answer for the others: each rank that --ranks names is started as torchrun
    /// would start it. A torchrun in front of the command is taken off.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    pub(crate) world_size: Option<u32>,
    /// Which ranks to run, e.g. 0,7 or 0-3, or auto: one of each stage of a pipeline, which a step of rank 0 tells; without
    /// a pipeline the first and the last [default: 0].
    #[arg(long, value_name = "LIST", value_parser = parse_ranks)]
    pub(crate) ranks: Option<Ranks>,
    /// Memory of the GPU, instead of the catalogue's, e.g. 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_capacity)]
    pub(crate) capacity: Option<u64>,
    /// Memory that the context of a process takes, instead of the catalogue's.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) context: Option<u64>,
    /// Memory that must stay free for the answer to be "fits" [default: the most CUDA overhead seen on real GPUs].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_margin)]
    pub(crate) margin: Option<u64>,
    /// In which order the driver hands out addresses: it decides ties between free blocks.
    #[arg(long, value_enum, default_value_t = AddressOrder::Descending, value_name = "ORDER")]
    pub(crate) address_order: AddressOrder,
    #[command(flatten)]
    pub(crate) file: RecordingFile,
    /// Do not run a job that ran out of memory again to find out how much it needs.
    #[arg(long)]
    pub(crate) stop_at_oom: bool,
    /// Whether small values are computed, so that what the script reads back is true.
    #[arg(long, value_enum, default_value_t = Values::On, value_name = "WHEN")]
    pub(crate) values: Values,
    /// What to assume of what a dry run cannot know. mask=30%: where a size depends on a mask that nobody computed, the
    /// mask selects that part of its elements [default: mask=100%, the most there can be]. lag=1024: each stream of the
    /// GPU is up to so many launches behind the host, and memory that another stream uses is free again only then
    /// [default: lag=0].
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = parse_assumption)]
    pub(crate) assume: Vec<Assumption>,
    /// Change the program inside its process, e.g. checkpoint-blocks; may be given several times. `tonnage explain NAME`
    /// says what a change does.
    #[arg(long = "change", value_name = "NAME")]
    pub(crate) changes: Vec<String>,
    /// End the job early, e.g. after 3steps of an optimizer or 90s, and judge it as far as it ran.
    #[arg(long, value_name = "WHEN", value_parser = parse_stop_after)]
    pub(crate) stop_after: Option<StopAfter>,
    /// Print the verdict as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no live figures.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    /// Run even where a real NVIDIA device is present.
    #[arg(long, alias = "even-with-gpu")]
    pub(crate) allow_real_gpu: bool,
    #[command(flatten)]
    pub(crate) effects: SideEffects,
    /// Copy the files that the job writes to DIR, a new directory. Without it they are discarded.
    #[arg(long, value_name = "DIR", conflicts_with = "side_effects")]
    pub(crate) keep_files: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobCommand,
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

impl SideEffects {
    /// Puts them into the options of a dry run.
    pub(crate) fn apply(&self, options: &mut tonnage_run::Options) {
        options.side_effects = self.side_effects;
        options.pass_through.clone_from(&self.pass_through);
    }
}

/// Record a PyTorch script on the real GPU of this machine
///
/// Runs the command as it is: kernels run, and its output and exit code are
/// its own. PyTorch's allocator history, with stacks, owners and phases, goes
/// to a file while the job runs, so a job that is killed leaves what was
/// recorded until then. If the job runs out of memory, the explanation is
/// printed when it has ended.
///
/// Exit code: that of the command; 128 and the number of the signal that ended
/// it; 2 if there is no GPU.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage record -- python train.py
  tonnage record -o night.tonnage -- torchrun --nproc-per-node 8 train.py")]
pub(crate) struct RecordOptions {
    #[command(flatten)]
    pub(crate) file: RecordingFile,
    /// Print what was recorded as JSON on stdout, as `tonnage run` does; the output of the command goes to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

/// Compare a dry run with what the real GPU of this machine does
///
/// Records the command on the GPU, runs it dry on the same GPU of the
/// catalogue, and compares the two event by event: where they part, why, and
/// how far apart their figures are. The report is a small JSON file without
/// source text and folders, made to be sent with an issue; both recordings are
/// left beside it.
///
/// Exit code: 0 every event is the same, 1 they differ, 2 one of them could not
/// be done.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage verify -- python train.py
  tonnage verify --recorded train.tonnage -- python train.py")]
pub(crate) struct VerifyOptions {
    /// A recording of the same command by `tonnage record`: the command is then run dry only, on any machine.
    #[arg(long, value_name = "FILE")]
    pub(crate) recorded: Option<PathBuf>,
    /// The GPU of the dry run, instead of the one that was recorded.
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Where to write the report [default: the script's name with -verify.json, and a number if that is taken].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite FILE and the recordings beside it.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the report on stdout too; the output of the command goes to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Values {
    /// Small operators are computed on the CPU beside the simulated GPU.
    On,
    /// Nothing is computed: what was not copied to the device reads as zero.
    Off,
}

/// Ranks as they are typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ranks {
    /// These.
    These(Vec<u32>),
    /// Those that can differ.
    Auto,
}

/// GPUs of a machine.
fn parse_gpus(text: &str) -> Result<u8, String> {
    match text.parse::<u8>() {
        Ok(gpus @ 1..=16) => Ok(gpus),
        _ => Err(
            "a machine has 1 to 16 GPUs; --world-size runs ranks of a job on several machines"
                .to_owned(),
        ),
    }
}

/// `0,7` or `0-3,511` or `auto`.
fn parse_ranks(text: &str) -> Result<Ranks, String> {
    const MOST: usize = 4096;
    if text == "auto" {
        return Ok(Ranks::Auto);
    }
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>();
        match (number(first), number(last)) {
            (Ok(first), Ok(last)) if first <= last && (last - first) < MOST as u32 => {
                ranks.extend(first..=last);
            }
            _ => return Err("write ranks with commas, for example 0,7 or 0-3, or auto".to_owned()),
        }
        if ranks.len() > MOST {
            return Err(format!("at most {MOST} ranks can be named"));
        }
    }
    Ok(Ranks::These(ranks))
}

/// `mask=30%`.
/// What is assumed of what a dry run cannot know.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Assumption {
    /// The part of an unknown mask, in percent, that is true.
    Mask(u8),
    /// How many launches a stream is behind the host.
    Lag(u64),
}

fn parse_assumption(text: &str) -> Result<Assumption, String> {
    let mask = |part: &str| {
        let percent = part.strip_suffix('%')?.trim().parse().ok()?;
        (percent <= 100).then_some(Assumption::Mask(percent))
    };
    let assumed = match text.split_once('=') {
        Some(("mask", part)) => mask(part),
        Some(("lag", launches)) => launches.trim().parse().ok().map(Assumption::Lag),
        _ => None,
    };
    assumed.ok_or_else(|| {
        "write mask= and a percentage from 0 to 100, for example mask=30%, or lag= and a number of launches, for \
         example lag=1024"
            .to_owned()
    })
}

/// Find what makes a job fit: the largest batch, or changes to the program
///
/// Write the numbers that may change into the job's own command: a range
/// {batch=1..256}, of which the largest that fits is searched, or a list
/// {seq=1024,2048}, of which each is tried. {batch=8..256+8} goes in steps,
/// {batch=1..256*2} in powers of two; {batch} repeats the value in another place.
/// Quote them: a shell would take a list in braces apart.
///
/// Every answer is a dry run of the job itself, and so is the next larger
/// number, which does not fit. The job is started once; the variants are forked
/// from it, which is checked to give the same recording.
///
/// Where nothing fits, changes are made to the program inside its process, such
/// as gradient checkpointing or another optimizer, without touching a file. What
/// makes the job fit is listed, by what it adds to each step, with the lines to
/// write.
///
/// Exit code: 0 something fits, 1 nothing does, 2 the script failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage fit --gpu rtx4090 train.py
  tonnage fit --gpu any train.py
  tonnage fit --gpu rtx4090 --gpus 4 --shard train.py
  tonnage fit --gpu rtx4090 train.py --batch-size '{batch=1..256}'
  tonnage fit --gpu rtx4090 train.py --batch-size '{batch=1..256}' --seq '{seq=1024,2048,4096}'
  tonnage fit --gpu rtx4090 --let 'batch_size={1..256}' train.py
  tonnage fit --gpu a100-40gb --env 'BATCH={1..64}' -- python -m my.training")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct FitOptions {
    /// The GPU that it is to fit on; several with commas, or `any`, to see on which the job fits. `tonnage gpus` lists
    /// them [default: `gpu` in tonnage.toml, or in pyproject.toml under tool.tonnage].
    #[arg(
        long,
        value_name = "NAME",
        env = "TONNAGE_GPU",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) gpu: Vec<String>,
    /// A file with a GPU and its price on each line: the cheapest comes first.
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// How many of them the machine has.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) gpus: u8,
    /// Also spread the model over these GPUs, by FSDP2, and say what each of them needs.
    #[arg(long)]
    pub(crate) shard: bool,
    /// Memory of the GPU, instead of the catalogue's, e.g. 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_capacity)]
    pub(crate) capacity: Option<u64>,
    /// Memory that must stay free for the answer to be "fits" [default: the most CUDA overhead seen on real GPUs].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_margin)]
    pub(crate) margin: Option<u64>,
    /// An environment variable with a placeholder, e.g. BATCH={1..64}; may be repeated.
    #[arg(long, value_name = "NAME=TEXT", value_parser = parse_variable)]
    pub(crate) env: Vec<(String, String)>,
    /// A constant of the script with a placeholder, e.g. batch_size={1..64}: an assignment at the top level, or else the
    /// one keyword, key, attribute or default of that name. batch_size@42 names a line, config.yaml:batch_size a file of
    /// Python, YAML or JSON. No file is changed: only what Python reads of it. May be repeated.
    #[arg(long = "let", value_name = "NAME=TEXT", value_parser = parse_variable)]
    pub(crate) constants: Vec<(String, String)>,
    /// What changes may do to the mathematics of the program, where nothing fits without one.
    #[arg(long, value_enum, default_value_t = Allow::Algorithm, value_name = "WHAT")]
    pub(crate) allow: Allow,
    /// Print what a proposal changes in the script, as a patch where that is certain; the number is that of the list.
    #[arg(long, value_name = "N")]
    pub(crate) show: Option<std::num::NonZeroUsize>,
    /// End each run early, e.g. after 3steps of an optimizer or 90s, and judge it as far as it ran.
    #[arg(long, value_name = "WHEN", value_parser = parse_stop_after)]
    pub(crate) stop_after: Option<StopAfter>,
    /// Keep the recording of the largest that fits in FILE, for `tonnage explain` and `tonnage report`.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Draw what each variant needs, beside what the GPU has, into FILE: a page (.html) or a picture (.svg).
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Overwrite the files.
    #[arg(long)]
    pub(crate) force: bool,
    /// How many variants to run at a time [default: one for each processor].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<std::num::NonZeroU16>,
    /// Run even where a real NVIDIA device is present.
    #[arg(long)]
    pub(crate) allow_real_gpu: bool,
    /// Do not show what is being tried.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) effects: SideEffects,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

/// How many requests of which length a vLLM server holds at once, with the flags to paste
///
/// The command is dry-run as it is: vLLM measures its memory when it starts, and
/// says how many tokens its KV cache holds. The number of requests of each length
/// follows from that. The shortest and the longest are dry-run again with their
/// flags, which also shows whether a request of the model takes memory in
/// proportion to its length.
///
/// With `--load-format dummy` in the command no weights are needed, only the
/// model's configuration.
///
/// Exit code: 0 it starts, 1 it does not fit, 2 the server failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage serve-fit --gpu l4 -- vllm serve ./model --load-format dummy
  tonnage serve-fit --gpu h100 --gpus 2 -- vllm serve ./model --load-format dummy --tensor-parallel-size 2")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct ServeFitOptions {
    /// The GPU to simulate; `tonnage gpus` lists them [default: `gpu` in tonnage.toml, or in pyproject.toml under
    /// tool.tonnage].
    #[arg(long, value_name = "NAME", env = "TONNAGE_GPU", hide_env_values = true)]
    pub(crate) gpu: Option<String>,
    /// How many of them the machine has.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) gpus: u8,
    /// Memory of the GPU, instead of the catalogue's, e.g. 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_capacity)]
    pub(crate) capacity: Option<u64>,
    /// Do not run two of the answers again with their flags.
    #[arg(long)]
    pub(crate) no_check: bool,
    /// Run even where a real NVIDIA device is present.
    #[arg(long)]
    pub(crate) allow_real_gpu: bool,
    /// Do not show what is being tried.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) effects: SideEffects,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

/// What changes to the program may do to its mathematics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allow {
    /// No change is tried.
    None,
    /// Nothing: the same numbers are computed.
    Nothing,
    /// The same formula, with another rounding.
    Rounding,
    /// Another algorithm, too.
    Algorithm,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, text)) if !name.is_empty() && !name.contains('{') => {
            Ok((name.to_owned(), text.to_owned()))
        }
        _ => Err("a name and a text, e.g. BATCH={1..64}".to_owned()),
    }
}

/// `3steps`, `90s`, `5min`.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AddressOrder {
    /// Downwards in chunks of 32 MiB, as seen on an H100 under Linux.
    Descending,
    /// Upwards and packed, as seen under WSL.
    Ascending,
}

/// List the GPUs that can be simulated, with the source of each figure
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

/// Check that dry runs work here, with a remedy for each problem
///
/// Runs a small job dry, and shows the Python, the torch and the CUDA libraries
/// that it found. The exit code is 0 if everything works, 1 if there is a
/// problem, and 2 if the check itself failed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage doctor
  tonnage doctor --python .venv/bin/python
  tonnage doctor --json")]
pub(crate) struct DoctorOptions {
    /// Check this Python instead of the one on the path.
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what is in a recording, and how reliable its figures are
///
/// Reads recordings of tonnage and everything `tonnage import` reads; the
/// format is detected from the first bytes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage info train.tonnage
  tonnage info --json snapshot.pickle rmm.csv")]
pub(crate) struct InfoOptions {
    /// The recordings; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print everything as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Turn a recording of another tool into one of tonnage
///
/// Reads PyTorch memory snapshots (pickle or JSON, PyTorch 2.1 and later),
/// logs of RMM and planner CSV; the format is detected from the first bytes.
/// Nothing in the file is ever run.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage import snapshot.pickle
  tonnage import rmm_log.csv -o service.tonnage")]
pub(crate) struct ImportOptions {
    /// The recording to read; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write; `-` is stdout [default: the file's name, with .tonnage].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long)]
    pub(crate) force: bool,
}

/// Write a recording in the format of another tool
///
/// A snapshot opens in pytorch.org/memory_viz, a Perfetto trace in
/// ui.perfetto.dev. Reads everything `tonnage info` reads.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage export train.tonnage --format snapshot
  tonnage export train.tonnage --format perfetto -o train.json --min-block 64MiB")]
pub(crate) struct ExportOptions {
    /// The recording to read; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The format to write.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: ExportFormat,
    /// Where to write; `-` is stdout [default: the file's name, with .pickle or .perfetto.json].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long)]
    pub(crate) force: bool,
    /// The process to write, where a snapshot has room for one only.
    #[arg(long, value_name = "N")]
    pub(crate) process: Option<u32>,
    /// The smallest block that a Perfetto trace shows on its own [default: 16MiB].
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

/// Replay a recording under other allocators, settings and devices
///
/// Takes the requests and frees of a recording (of `tonnage run`, or any that
/// `tonnage import` reads) and lets each allocator serve them. PyTorch's is
/// exact, event for event; tonnage's own is, too, if streams keep up; the others
/// are approximations and marked so. The recorded setting is always checked against the recording.
///
/// Exit code: 0 the first allocator completes, 1 it runs out of memory.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage replay train.tonnage
  tonnage replay snapshot.pickle --gpu a100-40gb
  tonnage replay train.tonnage --alloc torch:max_split_size_mb:128 --alloc bfc --json")]
pub(crate) struct ReplayOptions {
    /// The recording; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// An allocator: recorded, torch, torch:SETTINGS, cuda-malloc-async, bfc or tonnage, or plan for
    /// an offline placement that knows every lifetime in advance; may be repeated
    /// [default: recorded, PyTorch's defaults and with expandable segments, cuda-malloc-async and bfc].
    #[arg(long, value_name = "ALLOCATOR")]
    pub(crate) alloc: Vec<tonnage_analysis::replay::Alloc>,
    /// Replay tonnage's own allocator with a plan, too, that `tonnage plan --for-runtime` made.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Do not look for the smallest device.
    #[arg(long)]
    pub(crate) no_smallest: bool,
    /// Print the results as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Find the setting of PyTorch's allocator that serves a recording best
///
/// Replays the recording under more than 200 settings, on all cores, and prints
/// the line to paste, what it saves and what it costs. Says so when no setting
/// helps because the job needs more memory than the device has. Every proposed
/// setting was replayed.
///
/// Exit code: 0 it fits with the setting, 1 no setting makes it fit.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage tune train.tonnage
  tonnage tune snapshot.pickle --gpu a100-40gb --json")]
pub(crate) struct TuneOptions {
    /// The recording; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Replays at the same time [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) threads: Option<u8>,
    /// Show no progress.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Explain what fills the memory, and what would help
///
/// At most one screen: the moment of the failure or of the peak, memory by category, what holds
/// it, and what would lower the peak. A setting is proposed only after it was replayed on the
/// recording; any other change only with its arithmetic.
///
/// Exit code: 0 explained, 1 the recording ends out of memory, 2 it cannot be explained.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tonnage explain train.tonnage
  tonnage explain snapshot.pickle --json
  ssh trainer cat snapshot.pickle | tonnage explain -
  tonnage explain TN102
  tonnage explain checkpoint-blocks")]
pub(crate) struct ExplainOptions {
    /// The recording, a PyTorch snapshot, `-` for standard input, the code of a finding or the name of a change.
    #[arg(value_name = "FILE|CODE|CHANGE")]
    pub(crate) what: PathBuf,
    /// Which rank of a job of several to explain [default: the one that failed, or with the largest peak].
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare two recordings by category, phase and line
///
/// Lines are identified by file and function, so an edit elsewhere in a file makes no difference.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tonnage diff before.tonnage after.tonnage
  tonnage diff before.tonnage after.tonnage --html both.html
  tonnage diff before.pickle after.pickle --json")]
pub(crate) struct DiffOptions {
    /// The recording before.
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The recording after.
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// Compare this rank of both, instead of the process with the largest peak.
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    /// Write a page with both recordings side by side; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Overwrite the page if it is there.
    #[arg(long, requires = "html")]
    pub(crate) force: bool,
    /// Keep the folders of files in the page, which may name people and machines.
    #[arg(long, requires = "html")]
    pub(crate) full_paths: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check dry runs against memory budgets, for CI
///
/// Reads `[[budget]]` of tonnage.toml, or `[[tool.tonnage.budget]]` of pyproject.toml: a name, a
/// command (`run`), a GPU (`gpu`), and limits on `peak`, `reserved` and `growth` per step.
/// Dry-runs each of them and fails if a limit is exceeded, or if a figure is above the last
/// accepted one (tonnage.lock). Dry runs are deterministic, so a single byte counts.
///
/// Exit code: 0 every budget holds, 1 one does not, 2 a run failed or the configuration is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tonnage check --init --gpu a100-40gb -- python train.py --steps 3
  tonnage check
  tonnage check --update
  tonnage check --format markdown >> \"$GITHUB_STEP_SUMMARY\"")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct CheckOptions {
    /// The configuration [default: tonnage.toml, else pyproject.toml, here].
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The budgets to check [default: all of them]; with --init, the command of the first one.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Write a first tonnage.toml, for the command that follows, and check nothing.
    #[arg(long, conflicts_with_all = ["update", "json", "format"])]
    pub(crate) init: bool,
    /// The GPU of the first budget; `tonnage gpus` lists them [env: TONNAGE_GPU].
    #[arg(long, value_name = "NAME", requires = "init")]
    pub(crate) gpu: Option<String>,
    /// Overwrite the configuration if it is there.
    #[arg(long, requires = "init")]
    pub(crate) force: bool,
    /// Accept the figures as they are now: write them to tonnage.lock.
    #[arg(long)]
    pub(crate) update: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = CheckFormat::Text, value_name = "FORMAT")]
    pub(crate) format: CheckFormat,
    /// Print the result as JSON: short for `--format json`.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no live figures.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    #[command(flatten)]
    pub(crate) effects: SideEffects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// For test reports.
    Junit,
    /// Annotations of GitHub Actions.
    Github,
    /// For programs.
    Json,
}

/// Write a report of a recording: one HTML page that needs no network
///
/// The page shows bytes over time by category, the address space over time,
/// who holds the memory at any moment, and what other allocators would have
/// held; every picture has its table. It keeps no source text, no environment
/// and no full paths. Reads everything `tonnage info` reads.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage report train.tonnage
  tonnage report snapshot.pickle -o oom.html --force
  tonnage report train.tonnage --text")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "switches that do not depend on each other"
)]
pub(crate) struct ReportOptions {
    /// The recording; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write; `-` is stdout [default: the file's name, with .html].
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long, conflicts_with = "text")]
    pub(crate) force: bool,
    /// Draw in the terminal instead, as far as text can.
    #[arg(long)]
    pub(crate) text: bool,
    /// The process to show, by its number in the recording [default: the one that failed or used most].
    #[arg(long, value_name = "N")]
    pub(crate) process: Option<u32>,
    /// The device to show, by its number.
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<i32>,
    /// Maximum size of the data embedded in the page.
    #[arg(long, value_name = "SIZE", default_value = "10MiB", value_parser = crate::output::parse_bytes)]
    pub(crate) max_data: u64,
    /// Keep the folders of files, which may name people and machines.
    #[arg(long)]
    pub(crate) full_paths: bool,
    /// When to replay the recording under other allocators, and to plan it.
    #[arg(long, alias = "race", value_enum, default_value_t = Compare::Auto, value_name = "WHEN")]
    pub(crate) compare_allocators: Compare,
    /// Whether to open the page in a browser.
    #[arg(long, value_enum, default_value_t = OpenPage::No, value_name = "WHETHER", conflicts_with = "text")]
    pub(crate) open: OpenPage,
    /// Print what was written, or with --text the figures, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpenPage {
    /// With the desktop's browser.
    Yes,
    /// Only write it.
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compare {
    /// If the recording has no more than 4 million rows; the plan, no more than 1 million blocks.
    Auto,
    /// However long it takes.
    #[value(alias = "yes")]
    Always,
    /// Not at all.
    #[value(alias = "no")]
    Never,
}

/// Place buffers with known lifetimes at the lowest peak, or within a capacity
///
/// Reads planning problems (CSV with id, lower, upper and size, as minimalloc
/// has them), ONNX models with known shapes, and recordings: the blocks of each
/// process, device and pool are then a problem of their own. Gives offsets, the peak, a lower bound,
/// and whether the plan is proved optimal. Every plan is checked before it is
/// shown.
///
/// Exit code: 0 there is a plan, 1 none that fits in the capacity was found.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage plan buffers.csv --capacity 1MiB -o offsets.csv
  tonnage plan train.tonnage --step --svg step.svg
  tonnage plan model.onnx --dim batch=8 --alignment 64
  tonnage plan train.tonnage --deadline 60 --json > plan.json
  tonnage plan train.tonnage --for-runtime -o train.plan")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct PlanOptions {
    /// The planning problem, the ONNX model, or the recording; `-` is standard input.
    #[arg(value_name = "INPUT")]
    pub(crate) file: PathBuf,
    /// Memory that must suffice, e.g. 1MiB [default: as little as possible].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) capacity: Option<u64>,
    /// Time limit in seconds; the best plan found so far is returned.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
    pub(crate) deadline: f64,
    /// Threads that search [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) threads: Option<u8>,
    /// The same seed gives the same plan, unless the time limit is reached.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Offsets are multiples of this [default: 512 for recordings, 1 for planning problems].
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) alignment: Option<u64>,
    /// Leave buffers where the offset column of the problem says; the others go around them.
    #[arg(long)]
    pub(crate) keep_offsets: bool,
    /// Plan one step of a recording: the fullest that the program marked, else what repeats in it.
    #[arg(long)]
    pub(crate) step: bool,
    /// Write a plan that tonnage's own allocator follows, with the places of the first step and of those that repeat.
    #[arg(long, conflicts_with_all = ["capacity", "alignment", "keep_offsets", "step", "dim", "svg"])]
    pub(crate) for_runtime: bool,
    /// The value of a dimension that an ONNX model has only a name for; may be repeated.
    #[arg(long, value_name = "NAME=N", value_parser = parse_dimension)]
    pub(crate) dim: Vec<(String, u64)>,
    /// Where to write the offsets, as CSV, or the plan for the allocator; `-` is stdout.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Where to write a picture of the packing.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Overwrite outputs that are there.
    #[arg(long)]
    pub(crate) force: bool,
    /// Show no progress.
    #[arg(long, env = "TONNAGE_NO_PROGRESS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) no_progress: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a dimension with its value.
fn parse_dimension(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('=');
    let named = parts.and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)));
    match named {
        Some((name, value)) if !name.is_empty() && value > 0 => Ok((name.to_owned(), value)),
        _ => Err("expected a name and a number, such as batch=8".to_owned()),
    }
}

/// Answer a coding assistant, by the Model Context Protocol
///
/// A server on standard input and output with the tools run, fit, check,
/// explain, replay and gpus, each of which is the command of that name. An
/// assistant starts it by itself, as its configuration says. The tools run, fit
/// and check execute the user's program, on this machine, without a GPU.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage mcp
  tonnage mcp --directory ~/project
  claude mcp add tonnage -- tonnage mcp")]
pub(crate) struct McpOptions {
    /// The folder of the calls that name none [default: the one it is started in].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) directory: Option<PathBuf>,
}

/// Print a completion script for a shell
///
/// The script goes to stdout; put it where the shell looks for completions.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage completions bash > ~/.local/share/bash-completion/completions/tonnage
  tonnage completions zsh > ~/.zfunc/_tonnage
  tonnage completions fish > ~/.config/fish/completions/tonnage.fish")]
pub(crate) struct CompletionsOptions {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

/// Reads a time that can be waited for.
fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err("expected seconds, such as 2.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_in_its_order() {
        let mut command = Arguments::command();
        command.build();
        let all: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        assert_eq!(all, grouped);
    }
}
