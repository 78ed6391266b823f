// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage run`: a dry run with what was typed, and the verdict in words.
//!
//! The dry run itself is the library `tonnage-run`. Here are
//!
//! * the file that the recording goes to;
//! * `screen`, what is shown while the job runs;
//! * `render`, the verdict in words.

pub(crate) mod render;
mod screen;
mod table;
mod waits;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;
use tonnage_analysis::verdict::{Outcome, Verdict};
use tonnage_gpus::Catalogue;
use tonnage_run::collect::Collected;
use tonnage_run::{
    AddressOrder as Order, DryRun, Job, JobOutput, Launched, Options, RunError, StopAfter, World,
    dry_run, launched,
};

use crate::Surroundings;
use crate::commands::explain::Cause;
use crate::commands::gpus::{self, GpuChoice};
use crate::commands::recording::{Output, job_folder};
use crate::options::{
    DetailOptions, GpuName, GpuOptions, JobCommand, RecordingFile, ReplyOptions, RunLimits,
    ScreenOptions, SideEffects, headings,
};
use crate::output::{Answer, Form, Reply, hinted, print_err, ranks_named};

pub(crate) use self::screen::Screen;

/// Dry-run a PyTorch script on a GPU that is not there
///
/// Runs the command with a stand-in for the CUDA libraries that accounts for
/// every byte and runs no kernel, so PyTorch's own allocator shows what the
/// script does to the memory of the chosen GPU. Small values are computed on
/// the CPU, so that flags, counts and sizes are those of a GPU. The verdict
/// names values that the script read and that were not computed.
///
/// A job that runs out of memory is run once more on a GPU without a limit, so
/// that the verdict can report how much it needs. It ends with the job, or when
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
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) named: GpuName,
    /// How many of them the machine has [default: 1; with --world-size the value from torchrun, or 8].
    #[arg(long, value_name = "N", value_parser = parse_gpus, help_heading = headings::GPUS)]
    pub(crate) gpus: Option<u8>,
    /// Run some ranks of a job of so many, and answer for the others: each rank that --ranks names is started as
    /// torchrun would start it. A torchrun in front of the command is taken off.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20),
        help_heading = headings::GPUS
    )]
    pub(crate) world_size: Option<u32>,
    /// Which ranks to run, e.g. 0,7 or 0-3, or auto: one of each stage of a pipeline, which a step of rank 0 shows;
    /// without a pipeline the first and the last [default: 0].
    #[arg(long, value_name = "LIST", value_parser = parse_ranks, help_heading = headings::GPUS)]
    pub(crate) ranks: Option<Ranks>,
    #[command(flatten, next_help_heading = headings::MODEL)]
    pub(crate) gpu: GpuOptions,
    /// Memory that the context of a process takes, instead of the catalogue's.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes, help_heading = headings::MODEL,
          hide_short_help = true)]
    pub(crate) context: Option<u64>,
    #[command(flatten, next_help_heading = headings::COMMON)]
    pub(crate) limits: RunLimits,
    /// In which order the driver hands out addresses: it decides ties between free blocks.
    #[arg(long, value_enum, default_value_t = AddressOrder::Descending, value_name = "ORDER",
          help_heading = headings::MODEL, hide_short_help = true)]
    pub(crate) address_order: AddressOrder,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) file: RecordingFile,
    /// Do not run a job that ran out of memory again to find out how much it needs.
    #[arg(long, help_heading = headings::COMMON)]
    pub(crate) stop_at_oom: bool,
    /// Whether small values are computed, so that what the script reads back is true.
    #[arg(long, value_enum, default_value_t = Values::On, value_name = "WHEN", help_heading = headings::MODEL,
          hide_short_help = true)]
    pub(crate) values: Values,
    /// Assumptions where a dry run has no value. mask=30%: a mask that was not computed selects that part of its
    /// elements [default: mask=100%, the most there can be]. lag=1024: each stream of the GPU is up to so many launches
    /// behind the host, and memory that another stream uses becomes free only then [default: lag=0].
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = parse_assumption,
          help_heading = headings::MODEL, hide_short_help = true)]
    pub(crate) assume: Vec<Assumption>,
    /// Change the program inside its process, e.g. checkpoint-blocks; may be given several times. `tonnage explain
    /// NAME` prints the effect of a change.
    #[arg(long = "change", value_name = "NAME", help_heading = headings::COMMON)]
    pub(crate) changes: Vec<String>,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) detail: DetailOptions,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) reply: ReplyOptions,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten, next_help_heading = headings::EFFECTS)]
    pub(crate) effects: SideEffects,
    /// Copy the files that the job writes to DIR, a new directory. Without it they are discarded.
    #[arg(long, value_name = "DIR", conflicts_with = "side_effects", help_heading = headings::EFFECTS)]
    pub(crate) keep_files: Option<PathBuf>,
    #[command(flatten, next_help_heading = headings::COMMON)]
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
    /// The ranks that can differ.
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

/// Reads `0,7` or `0-3,511` or `auto`.
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

/// The value that a dry run assumes where it cannot know one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Assumption {
    /// The part of an unknown mask, in percent, that is true.
    Mask(u8),
    /// How many launches a stream is behind the host.
    Lag(u64),
}

/// Reads `mask=30%` or `lag=1024`.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AddressOrder {
    /// Downwards in chunks of 32 MiB, as seen on an H100 under Linux.
    Descending,
    /// Upwards and packed, as seen under WSL.
    Ascending,
}

/// GPUs of a machine of a large job, unless an option overrides it.
const USUAL_GPUS: u8 = 8;

pub(crate) fn run_in(
    options: &RunOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    let path = output_file(
        options.file.output.as_deref(),
        options.file.force,
        &options.job.command,
    );
    let here = job_folder(surroundings);
    // The job may change the files that name it.
    let gpu = gpu_choice(options, surroundings)?.mention();
    let (judged, collected) = judge(options, path, surroundings)?;
    let answer = answer(&judged.verdict);
    let reply = Reply::new(form, answer, &judged, |judged| {
        // The script's own output may have ended without a line break.
        print_err("");
        let shown = render::Shown {
            output: judged.recording.as_ref().map(Path::new),
            gpu: gpu.as_deref(),
            here: &here,
            verbose: options.detail.verbose,
        };
        render::text(&judged.verdict, judged.cause.as_ref(), &collected, &shown)
    });
    Ok(reply?)
}

/// The answer of a dry run.
pub(crate) fn answer(verdict: &Verdict) -> Answer {
    match verdict.outcome {
        Outcome::Fits | Outcome::NoDevice => Answer::Yes,
        Outcome::DoesNotFit | Outcome::Uncertain => Answer::No,
        Outcome::Interrupted | Outcome::Failed | Outcome::NotCovered => Answer::Failed,
    }
}

/// Runs the job dry and records it in the file `path`.
pub(crate) fn judge(
    options: &RunOptions,
    path: PathBuf,
    surroundings: &Surroundings,
) -> Result<(Judged, Collected)> {
    // Before anything runs: a recording that cannot be written is found out now.
    let output = Output::create(&path, options.file.force)?;
    let Some(written) = output.path() else {
        return Err(hinted(
            format!("{} is not a file", path.display()),
            "a recording is read again for the verdict: name a file with -o",
        ));
    };
    let (job, machine) = described(options, surroundings)?;
    let mut screen = Screen::new(
        !options.screen.no_progress && !options.detail.quiet.quiet,
        surroundings,
    );
    let several = options.world_size > Some(1);
    let run = if options.ranks == Some(Ranks::Auto) && several {
        run_differing(&job, &machine, written, &mut screen)?
    } else {
        dry_run(&job, &machine, written, &mut screen)?
    };
    let (verdict, collected) = (run.verdict, run.limited.collected);
    // Nothing was recorded of a job that ended before it used a GPU.
    let has_ended = matches!(verdict.outcome, Outcome::Failed | Outcome::Interrupted);
    let is_empty = has_ended && collected.events == 0;
    let output = if is_empty {
        None
    } else {
        Some(finished(output, path, options.file.force)?)
    };
    let fails = verdict.outcome == Outcome::DoesNotFit;
    let failed = output.as_deref().filter(|_| fails);
    let judged = Judged {
        verdict,
        cause: failed.and_then(super::explain::cause),
        recording: output.map(|output| output.to_string_lossy().into_owned()),
    };
    Ok((judged, collected))
}

/// Runs the ranks of a job that can differ. A first step of rank 0 shows whether there is a pipeline, of which one rank
/// of each stage is run; else the first and the last rank are.
fn run_differing(
    job: &Job,
    options: &Options,
    recording: &Path,
    screen: &mut Screen,
) -> Result<DryRun> {
    let mut options = options.clone();
    let mut first = options.clone();
    first.stop_after.get_or_insert(StopAfter::Steps(1));
    first.stop_at_oom = true;
    let mut silent = job.clone();
    silent.output = JobOutput::Discard;
    let mut run = dry_run(&silent, &first, recording, screen)?;
    while let Some(ran) = &run.verdict.ranks_run {
        let with = |more: &[u32]| {
            let ranks = ran.ranks.iter().chain(more).copied();
            Ok::<_, RunError>(Some(World::new(ran.world_size, ranks)?))
        };
        options.world = with(&ran.differing)?;
        // They may be too many for one run; the verdict names them then.
        let possible = !ran.differing.is_empty() && options.validate().is_ok();
        if !possible && ran.ranks == [0] {
            options.world = with(&[ran.world_size - 1])?;
        } else if !possible {
            break;
        }
        let ranks = options.world.as_ref().map_or(&[][..], World::ranks);
        // The output of a try looks like the job's own failure.
        let again = if possible && ran.ranks != [0] {
            let missing = ranks_named(&ran.differing);
            format!("what is above was a try without {missing}, which the others need; ")
        } else {
            String::new()
        };
        print_err(&format!("{again}running {}", ranks_named(ranks)));
        std::fs::File::create(recording)?;
        run = dry_run(job, &options, recording, screen)?;
    }
    Ok(run)
}

/// Gives a recording that is complete its name, which it returns.
pub(crate) fn finished(mut output: Output, mut path: PathBuf, force: bool) -> Result<PathBuf> {
    if !force && path.exists() {
        // The script itself made a file of this name meanwhile, and a recording is not to be lost.
        path = next_free(&path);
        output.rename(&path);
    }
    output.finish()?;
    Ok(path)
}

/// The result of a dry run, and where it was recorded.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Judged {
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
    /// Why it does not fit, as `tonnage explain` reports it.
    pub(crate) cause: Option<Cause>,
    /// The file with the recording; none of a job that failed before it used a GPU.
    pub(crate) recording: Option<String>,
}

/// The command that was typed, as the library takes it.
pub(crate) fn job_of<W: AsRef<OsStr>>(
    command: &[W],
    json: bool,
    surroundings: &Surroundings,
) -> Job {
    let mut job = Job::new(command.iter().map(AsRef::as_ref));
    job.folder.clone_from(&surroundings.folder);
    job.environment.clone_from(&surroundings.environment);
    job.output = match &surroundings.output {
        Some(path) => JobOutput::File(path.clone()),
        // stdout is for the verdict alone.
        None if json => JobOutput::Stderr,
        None => JobOutput::Inherit,
    };
    job.start_scripts_with_python();
    job
}

/// The directory for files of the job. It must be empty, so that nothing in it is lost.
fn kept_files(folder: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(folder) = folder else {
        return Ok(None);
    };
    if std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(hinted(
            format!("{} is not empty", folder.display()),
            "name a new directory with --keep-files",
        ));
    }
    Ok(Some(std::path::absolute(folder)?))
}

/// The GPU of a dry run.
pub(crate) fn gpu_choice(typed: &RunOptions, surroundings: &Surroundings) -> Result<GpuChoice> {
    gpus::choose(typed.named.gpu.as_deref(), &job_folder(surroundings))
}

/// The arguments, as the library takes them.
fn described(typed: &RunOptions, surroundings: &Surroundings) -> Result<(Job, Options)> {
    let mut job = job_of(&typed.job.command, typed.reply.json, surroundings);
    let catalogue = Catalogue::embedded();
    let choice = gpu_choice(typed, surroundings)?;
    let gpu = choice.find(&catalogue)?;
    let mut options = Options::new(gpu.clone());
    options.gpus = typed.gpus.unwrap_or(1);
    let launched = launched(&job)?;
    if let Some(size) = size_of_world(typed, launched.as_ref())? {
        if let Some(launched) = &launched {
            agree(launched, size)?;
        }
        let per_machine = launched.as_ref().and_then(|it| it.ranks_per_node);
        let per_machine = per_machine.and_then(|ranks| u8::try_from(ranks).ok());
        let usual = u8::try_from(size).unwrap_or(USUAL_GPUS).min(USUAL_GPUS);
        options.gpus = typed.gpus.or(per_machine).unwrap_or(usual);
        let ranks = match &typed.ranks {
            Some(Ranks::These(ranks)) => ranks.clone(),
            Some(Ranks::Auto) | None => vec![0],
        };
        options.world = Some(World::new(size, ranks)?);
        if let Some(launched) = launched {
            job.command = launched.command;
        }
    }
    options.capacity = typed.gpu.capacity;
    options.context = typed.context;
    options.margin = typed.limits.margin;
    options.address_order = match typed.address_order {
        AddressOrder::Descending => Order::Descending,
        AddressOrder::Ascending => Order::Ascending,
    };
    options.stop_at_oom = typed.stop_at_oom;
    options.values = typed.values == Values::On;
    for assumed in &typed.assume {
        match *assumed {
            Assumption::Mask(percent) => options.assumed_mask = percent,
            Assumption::Lag(launches) => options.lag = launches,
        }
    }
    options.changes.clone_from(&typed.changes);
    options.stop_after = typed.limits.stop_after;
    options.allow_real_gpu = typed.gpu.allow_real_gpu;
    typed.effects.apply(&mut options);
    options.keep_files = kept_files(typed.keep_files.as_deref())?;
    options.forward_signals = surroundings.forward_signals;
    options.live.clone_from(&typed.file.live);
    options.validate()?;
    Ok((job, options))
}

/// The number of ranks of a job of which only some are to run: the one that was typed, or else the one that torchrun is
/// given, where it names several machines or `--ranks` names ranks.
fn size_of_world(typed: &RunOptions, launched: Option<&Launched>) -> Result<Option<u32>> {
    let by_launcher = launched.and_then(Launched::size);
    let is_on_machines = launched.is_some_and(|it| it.nodes.is_some_and(|nodes| nodes > 1));
    match (typed.world_size, by_launcher) {
        (Some(size), _) => Ok(Some(size)),
        (None, Some(size)) if is_on_machines || typed.ranks.is_some() => Ok(Some(size)),
        (None, _) if typed.ranks.is_some() => Err(hinted(
            "--ranks needs the number of all ranks",
            "add --world-size N, or --nnodes and --nproc-per-node to torchrun",
        )),
        _ => Ok(None),
    }
}

/// Refuses a number of ranks that the words of the launcher exclude.
fn agree(launched: &Launched, size: u32) -> Result<()> {
    if !launched.has_script {
        return Err(hinted(
            "the command has a torchrun without a script",
            "write the options of torchrun with their values, and the script behind them",
        ));
    }
    let by_launcher = launched.size().unwrap_or(size);
    if by_launcher != size {
        let product = "--nnodes times --nproc-per-node of torchrun";
        return Err(hinted(
            format!("{product} is {by_launcher}, and --world-size is {size}"),
            format!("write --world-size {by_launcher}, or change the options of torchrun"),
        ));
    }
    match launched.ranks_per_node {
        Some(ranks) if ranks > 0 && !size.is_multiple_of(ranks) => Err(hinted(
            format!("torchrun starts {ranks} ranks on each machine, and {size} is not a multiple"),
            format!(
                "write --world-size {}, or another --nproc-per-node",
                size.div_ceil(ranks).saturating_mul(ranks)
            ),
        )),
        _ => Ok(()),
    }
}

/// `-o`, or the script's name with another ending, and a number where that is taken.
pub(crate) fn output_file(typed: Option<&Path>, force: bool, command: &[OsString]) -> PathBuf {
    if let Some(output) = typed {
        return output.to_owned();
    }
    let script = command
        .iter()
        .map(Path::new)
        .find(|argument| argument.extension() == Some(OsStr::new("py")));
    let stem = script
        .and_then(Path::file_stem)
        .unwrap_or(OsStr::new("run"));
    let path = PathBuf::from(stem).with_extension("tonnage");
    if force { path } else { free(path) }
}

/// The name, or one with a number behind it if a file has it.
pub(crate) fn free(path: PathBuf) -> PathBuf {
    if path.exists() {
        next_free(&path)
    } else {
        path
    }
}

/// The name with the first number behind it that no file has.
fn next_free(path: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = path.file_stem().unwrap_or(OsStr::new("run")).to_owned();
        name.push(format!("-{number}."));
        name.push(path.extension().unwrap_or(OsStr::new("tonnage")));
        path.with_file_name(name)
    };
    (2..=u32::MAX)
        .map(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: RunOptions,
    }

    #[test]
    fn a_world_that_the_launcher_excludes_is_refused() {
        let refused = |size: u32, nodes, ranks_per_node| {
            let launched = Launched {
                command: vec!["python".into(), "train.py".into()],
                nodes,
                ranks_per_node,
                has_script: true,
            };
            agree(&launched, size).err().map(|error| error.to_string())
        };
        assert_eq!(refused(32, Some(4), Some(8)), None);
        assert_eq!(refused(512, None, Some(8)), None, "more machines than one");
        assert_eq!(refused(16, Some(2), None), None);
        let words = refused(16, Some(4), Some(8)).expect("32 ranks are not 16");
        assert!(words.contains("is 32, and --world-size is 16"), "{words}");
        assert!(refused(10, None, Some(4)).is_some());
        let without = Launched {
            command: vec!["python".into(), "-u".into()],
            ..Launched::default()
        };
        assert!(agree(&without, 4).is_err());
    }

    #[test]
    fn several_machines_of_a_launcher_are_the_world() {
        let size = |words: &str, nodes, ranks_per_node| {
            let words = words.split(' ').filter(|word| !word.is_empty());
            let line = ["run"].into_iter().chain(words);
            let options = Line::parse_from(line.chain(["--", "train.py"])).options;
            let launched = Launched {
                nodes,
                ranks_per_node,
                has_script: true,
                ..Launched::default()
            };
            size_of_world(&options, Some(&launched)).ok()
        };
        assert_eq!(size("", Some(4), Some(8)), Some(Some(32)));
        assert_eq!(size("--ranks 3", Some(1), Some(8)), Some(Some(8)));
        assert_eq!(size("", Some(1), Some(8)), Some(None), "all ranks run");
        assert_eq!(size("", None, Some(8)), Some(None));
        assert_eq!(size("--world-size 16", Some(4), Some(8)), Some(Some(16)));
        assert_eq!(size("--ranks 3", None, None), None, "the size is missing");
    }

    #[test]
    fn the_recording_is_named_after_the_script() {
        let name = |words: &[&str]| {
            let options = Line::parse_from(["run", "--"].iter().chain(words)).options;
            output_file(
                options.file.output.as_deref(),
                options.file.force,
                &options.job.command,
            )
        };
        assert_eq!(
            name(&["python", "jobs/train.py", "--x"]),
            Path::new("train.tonnage")
        );
        assert_eq!(name(&["python", "-m", "my.job"]), Path::new("run.tonnage"));
    }
}
