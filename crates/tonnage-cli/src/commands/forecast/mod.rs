// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage forecast`: what a job will take, for a scheduler. `learn_from` reads the accounting of past jobs, `upkeep`
//! deletes what is old or wrong.

pub(crate) mod learn_from;
pub(crate) mod upkeep;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use tonnage_analysis::verdict::{Outcome, Verdict};
use tonnage_forecast::emit::{Dialect, EmitError, Emitted, Options, emit};
use tonnage_forecast::ledger::{self, Ended, Observation, ObservedRuns, PastRuns, ledger};
use tonnage_forecast::message::Message;
use tonnage_forecast::slurm::allocator_settings;
use tonnage_forecast::{Fits, Forecast, ForecastError, JobKey, Listed, Role, Store, StoreError};
use tonnage_run::private_folder;

use self::learn_from::LearnFrom;
use self::upkeep::{ForgetOptions, PruneOptions};
use super::recording::{Recording, explained, plain};
use super::run::{RunOptions, answer, gpu_choice, job_of, judge};
use crate::Surroundings;
use crate::options::{JobCommand, ReplyOptions};
use crate::output::{
    Answer, BAD, DIM, Form, GOOD, HINT, Reply, WARN, bytes, hinted, plural, print_err,
};

/// Forecast the GPU memory of a job, for a scheduler
///
/// A forecast is a small file: how much GPU memory each rank of a job takes at
/// most, what that rests on, and what it was made from. Schedulers keep an
/// account of GPU memory and request this number.
#[derive(Args, Debug)]
pub(crate) struct ForecastOptions {
    #[command(subcommand)]
    pub(crate) what: ForecastCommand,
}

#[derive(Debug, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one value of it, and it is made once"
)]
pub(crate) enum ForecastCommand {
    Make(MakeForecast),
    From(ForecastFrom),
    Show(ShowForecast),
    Compare(CompareForecasts),
    Emit(EmitForecast),
    Find(FindForecast),
    Learn(LearnOptions),
    LearnFrom(LearnFrom),
    Ledger(LedgerOptions),
    Forget(ForgetOptions),
    Prune(PruneOptions),
}

impl ForecastCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Make(options) => options.run.reply.json,
            Self::From(options) => options.reply.json,
            Self::Show(options) => options.reply.json,
            Self::Compare(options) => options.reply.json,
            Self::Emit(options) => options.reply.json,
            Self::Find(options) => options.reply.json,
            Self::Learn(options) => options.reply.json,
            Self::LearnFrom(options) => options.reply.json,
            Self::Ledger(options) => options.reply.json,
            Self::Forget(options) => options.reply.json,
            Self::Prune(options) => options.reply.json,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct ForecastStore {
    /// The folder of forecasts.
    #[arg(long, value_name = "DIR", env = "TONNAGE_STORE")]
    pub(crate) store: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct JobNames {
    /// The container image that the job runs in: part of what a forecast is found by.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// The name under which jobs of one kind are added up [default: the script's].
    #[arg(long, value_name = "NAME")]
    pub(crate) family: Option<String>,
}

/// Make a forecast by a dry run
///
/// Runs the job as `tonnage run` does, with the same options, and prints what each
/// of its GPUs takes at most. With --store it is kept there, where `tonnage
/// forecast find` and the hooks of schedulers look for it. The recording is kept
/// only with -o.
///
/// Exit code: 0 it fits, 1 it does not fit, 2 the script failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage forecast make --gpu h100 --store forecasts python train.py --batch-size 8
  tonnage forecast make --gpu h100 --gpus 2 --store forecasts torchrun --nproc-per-node 2 train.py")]
pub(crate) struct MakeForecast {
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// Also write the forecast, or why there is none, to this file in at most 4 KiB: what Kubernetes keeps of a
    /// container that has ended.
    #[arg(long, value_name = "FILE")]
    pub(crate) termination_message: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) names: JobNames,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// Make a forecast from a recording
///
/// The recording is one of `tonnage run` or `tonnage record`. The files that its
/// command names are looked for in the current folder, and must be no newer than
/// it.
#[derive(Args, Debug)]
pub(crate) struct ForecastFrom {
    /// The recording.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    #[command(flatten)]
    pub(crate) names: JobNames,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

#[derive(Args, Debug)]
pub(crate) struct ChosenForecast {
    /// The file of a forecast, or its name in the store.
    #[arg(value_name = "FORECAST")]
    pub(crate) forecast: String,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
}

/// Show a forecast
#[derive(Args, Debug)]
pub(crate) struct ShowForecast {
    #[command(flatten)]
    pub(crate) chosen: ChosenForecast,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Show what differs between two forecasts
///
/// Exit code: 0 the second takes no more, 1 it takes more.
#[derive(Args, Debug)]
pub(crate) struct CompareForecasts {
    /// The file of a forecast, or its name in the store.
    #[arg(value_name = "BEFORE")]
    pub(crate) before: String,
    /// The other one.
    #[arg(value_name = "AFTER")]
    pub(crate) after: String,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Write a forecast as a scheduler takes it
///
/// Exit code: 0 done, 1 the job does not fit on the GPU, so there is nothing to
/// request.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage forecast emit --for dra --store forecasts 3f2a81c09b1d4e55
  sbatch $(tonnage forecast emit --for slurm train.json) job.sh")]
pub(crate) struct EmitForecast {
    /// Whom it is for.
    #[arg(long = "for", value_enum, value_name = "ENGINE")]
    pub(crate) dialect: Engine,
    /// The size of a shard of Slurm.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = crate::output::parse_bytes)]
    pub(crate) shard: u64,
    /// The DeviceClass of the GPUs in Kubernetes.
    #[arg(long, value_name = "NAME", default_value = "gpu.nvidia.com")]
    pub(crate) device_class: String,
    #[command(flatten)]
    pub(crate) chosen: ChosenForecast,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// Kubernetes: a ResourceClaimTemplate with a capacity.
    Dra,
    /// HAMi: limits of the container.
    Hami,
    /// KAI Scheduler: annotations of the pod.
    Kai,
    /// Volcano: limits of the container.
    Volcano,
    /// Slurm: shards, as options of sbatch and srun.
    Slurm,
    /// The smallest MIG profile that holds it.
    Mig,
}

/// Find the forecast of a job
///
/// Exit code: 0 there is one, 1 there is none.
#[derive(Args, Debug)]
pub(crate) struct FindForecast {
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// The container image that the job runs in.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// How many ranks the job has, where its command line does not contain it.
    #[arg(long, value_name = "N")]
    pub(crate) world_size: Option<u32>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

/// Keep what a job really took
///
/// The next forecast of the same job takes it into account, and `tonnage
/// forecast ledger` adds it up. The figure is read from a recording of `tonnage
/// record`, or given by --used, as a monitoring system has measured it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage forecast learn --store forecasts --job 1234 --team vision --asked 80GiB run.tonnage
  tonnage forecast learn --store forecasts --job 1234 --forecast 3f2a81c09b1d4e55 --used 31.5GiB")]
pub(crate) struct LearnOptions {
    /// A recording of the job on a real GPU.
    #[arg(
        value_name = "FILE",
        required_unless_present = "used",
        conflicts_with = "used"
    )]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// The scheduler's name of the job.
    #[arg(long, value_name = "ID")]
    pub(crate) job: String,
    /// The owner of the job.
    #[arg(long, value_name = "NAME")]
    pub(crate) team: Option<String>,
    /// Its request, of one GPU.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes)]
    pub(crate) asked: Option<u64>,
    /// The most it used of one GPU, with the context.
    #[arg(long, value_name = "SIZE", value_parser = crate::output::parse_bytes, requires = "forecast")]
    pub(crate) used: Option<u64>,
    /// The name of the forecast it ran with [default: that of the recording's command].
    #[arg(long, value_name = "NAME")]
    pub(crate) forecast: Option<String>,
    /// How the job ended.
    #[arg(long, value_enum, default_value_t = Ending::Completed, value_name = "HOW")]
    pub(crate) ended: Ending,
    /// The container image that the job ran in.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ending {
    /// It ran to its end.
    Completed,
    /// It ran out of GPU memory.
    Oom,
    /// Otherwise: it may have taken more later.
    Other,
}

/// Hold forecasts and requests against what jobs took
///
/// For each kind of job how far the forecasts were off, and for each team what
/// its jobs requested and used.
#[derive(Args, Debug)]
pub(crate) struct LedgerOptions {
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Forecasts that a hint names.
const LISTED: usize = 10;

/// Where lines of the text are broken.
const ROOM: usize = 84;

pub(crate) fn run(
    options: &ForecastOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    match &options.what {
        ForecastCommand::Make(options) => make(options, form, surroundings),
        ForecastCommand::From(options) => from(options, form),
        ForecastCommand::Show(options) => show(options, form),
        ForecastCommand::Compare(options) => compare(options, form),
        ForecastCommand::Emit(options) => say(options, form),
        ForecastCommand::Find(options) => find(options, form, surroundings),
        ForecastCommand::Learn(options) => learn(options, form),
        ForecastCommand::LearnFrom(options) => learn_from::learn_from(options, form),
        ForecastCommand::Ledger(options) => tell_ledger(options, form),
        ForecastCommand::Forget(options) => upkeep::forget(options, form),
        ForecastCommand::Prune(options) => upkeep::prune(options, form),
    }
}

fn make(options: &MakeForecast, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    let made = dry_run(options, surroundings);
    if let Some(path) = &options.termination_message {
        let message = match &made {
            Ok((_, forecast)) => Message::from_forecast(forecast),
            Err(error) => Message::of_failure(&format!("{error:#}")),
        };
        fs::write(path, message.text()).map_err(|error| {
            hinted(
                format!("cannot write {}: {error}", path.display()),
                "name a file that can be written with --termination-message",
            )
        })?;
    }
    let (answer, forecast) = made?;
    let file = store_forecast(&forecast, &options.store)?;
    render_reply(form, answer, &forecast, file.as_deref())
}

/// Runs the job, and makes a forecast of what it showed.
fn dry_run(options: &MakeForecast, surroundings: &Surroundings) -> Result<(Answer, Forecast)> {
    let run = &options.run;
    let words = words_of(&run.job.command, surroundings);
    let folder = super::recording::job_folder(surroundings);
    // Before the job runs, which may change its own files.
    let mut key = key_of(&words, &folder, options.names.image.clone());
    key.world_size = run.world_size;
    key.gpus = run.gpus.map(u32::from);
    let scratch = private_folder("tonnage-forecast-")?;
    let path = match &run.file.output {
        Some(path) => path.clone(),
        None => scratch.path().join("run.tonnage"),
    };
    if let Some(gpu) = gpu_choice(run, surroundings)?.mention() {
        print_err(&format!("simulates {gpu}"));
    }
    let (judged, _) = judge(run, path, surroundings)?;
    let forecast = made(&judged.verdict, key, &options.names)?;
    Ok((answer(&judged.verdict), forecast))
}

fn from(options: &ForecastFrom, form: Form) -> Result<Reply> {
    let verdict = verdict_of(&options.file)?;
    let key = key_of_recording(&options.file, &verdict, options.names.image.clone())?;
    let forecast = made(&verdict, key, &options.names)?;
    let file = store_forecast(&forecast, &options.store)?;
    render_reply(form, answer(&verdict), &forecast, file.as_deref())
}

fn show(options: &ShowForecast, form: Form) -> Result<Reply> {
    render_reply(form, Answer::Yes, &chosen(&options.chosen)?, None)
}

fn render_reply(
    form: Form,
    answer: Answer,
    forecast: &Forecast,
    file: Option<&Path>,
) -> Result<Reply> {
    Ok(Reply::new(form, answer, forecast, |forecast| {
        let mut text = text(forecast);
        if forecast.fits != Fits::No
            && let Some(file) = file
        {
            let file = file.to_string_lossy();
            let file = shlex::try_quote(&file).unwrap_or(std::borrow::Cow::Borrowed(&file));
            let _ = write!(
                text,
                "\n{HINT}next{HINT:#}  tonnage forecast emit --for slurm {file}"
            );
        }
        text
    })?)
}

fn made(verdict: &Verdict, key: JobKey, names: &JobNames) -> Result<Forecast> {
    let mut forecast = Forecast::of_verdict(verdict, key).map_err(|error| no_forecast(&error))?;
    if let Some(family) = &names.family {
        forecast.family.clone_from(family);
    }
    Ok(forecast)
}

fn no_forecast(error: &ForecastError) -> anyhow::Error {
    explained(error, error.hint())
}

/// Keeps it where a store is named; the file.
fn store_forecast(forecast: &Forecast, store: &ForecastStore) -> Result<Option<PathBuf>> {
    let Some(folder) = &store.store else {
        return Ok(None);
    };
    match Store::new(folder).save_forecast(forecast) {
        Err(error @ StoreError::Whole(_)) => {
            print_err(&format!("{WARN}note{WARN:#}: {error}"));
            Ok(None)
        }
        kept => kept.map(Some).map_err(|error| unusable(&error)),
    }
}

fn unusable(error: &StoreError) -> anyhow::Error {
    let hint = match error {
        StoreError::Forecast { source, .. } => source.hint(),
        _ => "name a folder that can be read and written with --store",
    };
    explained(error, hint)
}

/// The words of a job, with `python` before a script that stands for itself.
fn words_of<W: AsRef<OsStr>>(command: &[W], surroundings: &Surroundings) -> Vec<String> {
    let job = job_of(command, false, surroundings);
    let words = job.command.iter();
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

fn key_of(words: &[String], folder: &Path, image: Option<String>) -> JobKey {
    JobKey {
        image,
        allocator: allocator_settings(|name| std::env::var(name).ok()),
        ..JobKey::of_command(words, folder)
    }
}

/// The description of a recording's job, by the files that are here now.
fn key_of_recording(recording: &Path, verdict: &Verdict, image: Option<String>) -> Result<JobKey> {
    let words = shlex::split(&verdict.command).unwrap_or_default();
    if words.is_empty() {
        return Err(hinted(
            format!(
                "{} does not contain the command that was run",
                recording.display()
            ),
            ForecastError::NoDevice.hint(),
        ));
    }
    let here = std::env::current_dir().context("the current folder is gone")?;
    let mut key = key_of(&words, &here, image);
    key.world_size = verdict.ranks_run.as_ref().map(|ran| ran.world_size);
    let changed = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    let recorded = changed(recording);
    let newer = key
        .sources
        .keys()
        .find(|name| changed(&here.join(name)) > recorded);
    match newer {
        Some(name) if recorded.is_some() => Err(hinted(
            format!("{name} is newer than {}", recording.display()),
            "the recording is of an older job: record it again, or `tonnage forecast make`",
        )),
        _ => Ok(key),
    }
}

fn verdict_of(path: &Path) -> Result<Verdict> {
    Recording::open(path)?.verdict().map_err(|error| {
        explained(&error, "record the job again").context(format!("cannot read {}", path.display()))
    })
}

fn store_of(store: &ForecastStore) -> Result<Store> {
    match &store.store {
        Some(folder) => Ok(Store::new(folder)),
        None => Err(hinted(
            "no store is named",
            "name the folder of forecasts with --store, or in TONNAGE_STORE",
        )),
    }
}

fn chosen(chosen: &ChosenForecast) -> Result<Forecast> {
    forecast_of(&chosen.forecast, &chosen.store)
}

/// The forecast in a file, or of this name in the store.
fn forecast_of(name: &str, store: &ForecastStore) -> Result<Forecast> {
    let path = Path::new(name);
    if path.is_file() {
        return Forecast::read(path).map_err(|error| unusable(&error));
    }
    let Some(folder) = &store.store else {
        return Err(hinted(
            format!("there is no file {name}"),
            "name the file of a forecast, or its name with --store",
        ));
    };
    let store = Store::new(folder);
    let unusable = |error: StoreError| unusable(&error);
    let Some(mut forecast) = store.forecast(name).map_err(unusable)? else {
        let mut forecasts = store.all().map_err(unusable)?.found;
        let more = forecasts.len().saturating_sub(LISTED);
        forecasts.truncate(LISTED);
        let names = forecasts.iter();
        let names = names.map(|one| format!("{} ({})", one.name, one.family));
        let names: Vec<_> = names.collect();
        let hint = match (names.is_empty(), more) {
            (true, _) => "it has none; `tonnage forecast make --store` makes one".to_owned(),
            (false, 0) => format!("it has {}", names.join(", ")),
            (false, more) => format!("it has {} and {more} more", names.join(", ")),
        };
        return Err(hinted(
            format!("{} has no forecast {name}", folder.display()),
            plain(&hint),
        ));
    };
    let observed = store.observed_of(name).map_err(unusable)?.found;
    forecast.learn(&ObservedRuns::new(&observed));
    Ok(forecast)
}

/// The differences between two forecasts.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    /// Version of this JSON.
    #[cfg_attr(feature = "schema", schemars(extend("const" = tonnage_forecast::SCHEMA_VERSION)))]
    schema_version: u32,
    /// The first.
    before: Forecast,
    /// The second.
    after: Forecast,
    /// The upper bound of the fullest GPU of the second minus that of the first; none where one has no upper bound.
    bytes: Option<i64>,
    /// The different inputs, a sentence each.
    differs: Vec<String>,
}

fn compare(options: &CompareForecasts, form: Form) -> Result<Reply> {
    let before = forecast_of(&options.before, &options.store)?;
    let after = forecast_of(&options.after, &options.store)?;
    let bound = |forecast: &Forecast| forecast.fullest().bound;
    let bytes = bound(&before)
        .zip(bound(&after))
        .map(|(before, after)| after as i64 - before as i64);
    let fails = before.fits != Fits::No && after.fits == Fits::No;
    let answer = if fails || bytes.is_some_and(|bytes| bytes > 0) {
        Answer::No
    } else {
        Answer::Yes
    };
    let comparison = Comparison {
        schema_version: tonnage_forecast::SCHEMA_VERSION,
        differs: differences(&before.key, &after.key),
        before,
        after,
        bytes,
    };
    Ok(Reply::new(form, answer, &comparison, |comparison| {
        let mut text = String::new();
        for (name, forecast) in [("before", &comparison.before), ("after", &comparison.after)] {
            let _ = writeln!(
                text,
                "{name:<8} {} on {}: {}",
                plain(&forecast.family),
                forecast.key.gpu,
                forecast.sentence()
            );
        }
        let _ = match comparison.bytes {
            Some(0) => writeln!(text, "\nboth take the same"),
            Some(more) if more > 0 => writeln!(
                text,
                "\n{WARN}{} more{WARN:#}",
                crate::output::bytes(more.unsigned_abs())
            ),
            Some(less) => writeln!(
                text,
                "\n{GOOD}{} less{GOOD:#}",
                crate::output::bytes(less.unsigned_abs())
            ),
            None => writeln!(text, "\none of them has no upper bound"),
        };
        for sentence in &comparison.differs {
            let _ = writeln!(text, "  {}", plain(sentence));
        }
        text
    })?)
}

fn differences(before: &JobKey, after: &JobKey) -> Vec<String> {
    let mut differs = Vec::new();
    let mut say = |what: &str, before: &str, after: &str| {
        if before != after {
            let named = |text: &str| {
                if text.is_empty() {
                    "none".to_owned()
                } else {
                    text.to_owned()
                }
            };
            differs.push(format!("{what}: {} → {}", named(before), named(after)));
        }
    };
    say("command", &joined(&before.command), &joined(&after.command));
    say(
        "image",
        before.image.as_deref().unwrap_or(""),
        after.image.as_deref().unwrap_or(""),
    );
    say("torch", &before.torch, &after.torch);
    say("GPU", &before.gpu, &after.gpu);
    let number = |number: Option<u32>| number.map_or_else(String::new, |it| it.to_string());
    say(
        "ranks",
        &number(before.world_size),
        &number(after.world_size),
    );
    say(
        "GPUs of a process",
        &number(before.gpus),
        &number(after.gpus),
    );
    let allocator = |key: &JobKey| key.allocator.clone().unwrap_or_default();
    say("allocator settings", &allocator(before), &allocator(after));
    for (name, digest) in &before.sources {
        if let Some(other) = after.sources.get(name)
            && other != digest
        {
            differs.push(format!("{name} has another text"));
        }
    }
    differs
}

fn joined(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

fn say(options: &EmitForecast, form: Form) -> Result<Reply> {
    let forecast = chosen(&options.chosen)?;
    let dialect = match options.dialect {
        Engine::Dra => Dialect::Dra,
        Engine::Hami => Dialect::Hami,
        Engine::Kai => Dialect::Kai,
        Engine::Volcano => Dialect::Volcano,
        Engine::Slurm => Dialect::Slurm,
        Engine::Mig => Dialect::Mig,
    };
    let cluster = Options {
        shard: options.shard,
        device_class: options.device_class.clone(),
    };
    let emitted: Emitted = match emit(&forecast, dialect, &cluster) {
        Ok(emitted) => emitted,
        Err(error @ (EmitError::DoesNotFit(_) | EmitError::NoProfile { .. })) => {
            crate::output::error(&explained(&error, error.hint()));
            return Ok(Reply::silent(Answer::No));
        }
        Err(error) => return Err(explained(&error, error.hint())),
    };
    // The text to paste stands alone on stdout.
    for note in &emitted.notes {
        print_err(&format!("{DIM}note: {}{DIM:#}", plain(note)));
    }
    Ok(Reply::new(form, Answer::Yes, &emitted, |emitted| {
        emitted.text.clone()
    })?)
}

/// The forecasts that were found for a job.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Found {
    /// Version of this JSON.
    #[cfg_attr(feature = "schema", schemars(extend("const" = tonnage_forecast::SCHEMA_VERSION)))]
    schema_version: u32,
    /// One for each GPU.
    forecasts: Vec<Forecast>,
}

fn find(options: &FindForecast, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    let store = store_of(&options.store)?;
    let words = words_of(&options.job.command, surroundings);
    let folder = super::recording::job_folder(surroundings);
    let mut key = key_of(&words, &folder, options.image.clone());
    key.world_size = options.world_size;
    let found = Found {
        schema_version: tonnage_forecast::SCHEMA_VERSION,
        forecasts: store.find(&key).map_err(|error| unusable(&error))?,
    };
    let answer = if found.forecasts.is_empty() {
        Answer::No
    } else {
        Answer::Yes
    };
    Ok(Reply::new(form, answer, &found, |found| {
        if found.forecasts.is_empty() {
            return format!(
                "{WARN}no forecast{WARN:#} of this job in {}",
                store.folder().display()
            );
        }
        let lines = found.forecasts.iter().map(|forecast| {
            let gpu = &forecast.key.gpu;
            format!(
                "{gpu}: {}\n  {DIM}forecast{DIM:#} {}",
                forecast.sentence(),
                forecast.name
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    })?)
}

fn learn(options: &LearnOptions, form: Form) -> Result<Reply> {
    let store = store_of(&options.store)?;
    let named = |name: &str| {
        let found = store.forecast(name).map_err(|error| unusable(&error))?;
        found.ok_or_else(|| {
            hinted(
                format!("{} has no forecast {name}", store.folder().display()),
                "`tonnage forecast find` prints the name",
            )
        })
    };
    let mut observation = Observation {
        schema_version: ledger::SCHEMA_VERSION,
        job: options.job.clone(),
        team: options.team.clone(),
        forecast: options.forecast.clone(),
        family: String::new(),
        gpu: String::new(),
        asked: options.asked,
        used: 0,
        ended: match options.ended {
            Ending::Completed => Ended::Completed,
            Ending::Oom => Ended::OutOfMemory,
            Ending::Other => Ended::Other,
        },
    };
    match (&options.file, options.used) {
        (Some(file), _) => observe_recording(file, options, &store, &mut observation)?,
        (None, used) => observation.used = used.unwrap_or(0),
    }
    if let Some(name) = &observation.forecast {
        let forecast = named(name)?;
        observation.family.clone_from(&forecast.family);
        observation.gpu.clone_from(&forecast.key.gpu);
        if observation.used > forecast.gpu_memory {
            let (used, gpu) = (bytes(observation.used), &forecast.key.gpu);
            return Err(hinted(
                format!(
                    "{used} is more than the {} of {gpu}",
                    bytes(forecast.gpu_memory)
                ),
                "--used is what the job took of one GPU at most",
            ));
        }
    }
    let path = store
        .observe(&observation)
        .map_err(|error| unusable(&error))?;
    print_err(&format!("{DIM}kept in {}{DIM:#}", path.display()));
    Ok(Reply::new(form, Answer::Yes, &observation, |one| {
        let asked = one
            .asked
            .map_or_else(String::new, |asked| format!("requested {}, ", bytes(asked)));
        format!("job {}: {asked}used {}", plain(&one.job), bytes(one.used))
    })?)
}

/// The figures of a recording of a job that ran on a real GPU.
fn observe_recording(
    file: &Path,
    options: &LearnOptions,
    store: &Store,
    observation: &mut Observation,
) -> Result<()> {
    let verdict = verdict_of(file)?;
    if !verdict.is_measured() {
        return Err(hinted(
            format!("{} was not recorded on a real GPU", file.display()),
            "what a job really took is learnt from `tonnage record`, or given with --used",
        ));
    }
    let most = verdict
        .devices_total
        .iter()
        .map(|total| total.most_in_use)
        .max();
    observation.used = most.unwrap_or(0);
    observation.gpu.clone_from(&verdict.gpu);
    observation.ended = match verdict.outcome {
        Outcome::Fits | Outcome::Uncertain => Ended::Completed,
        Outcome::DoesNotFit => Ended::OutOfMemory,
        _ => Ended::Other,
    };
    let words = shlex::split(&verdict.command).unwrap_or_default();
    let here = std::env::current_dir().context("the current folder is gone")?;
    let key = key_of(&words, &here, options.image.clone());
    observation.family = key.family();
    if observation.forecast.is_none() {
        let found = store.find(&key).map_err(|error| unusable(&error))?;
        let same = found
            .into_iter()
            .find(|forecast| forecast.key.gpu == verdict.gpu);
        observation.forecast = same.map(|forecast| forecast.name);
    }
    Ok(())
}

fn tell_ledger(options: &LedgerOptions, form: Form) -> Result<Reply> {
    let sums = ledger_of(&store_of(&options.store)?)?;
    Ok(Reply::new(form, Answer::Yes, &sums, ledger_text)?)
}

/// The contents of a store: forecasts and the use of jobs; files that cannot be read are named.
pub(super) fn ledger_of(store: &Store) -> Result<PastRuns> {
    let (forecasts, observed) = contents_of(store)?;
    let mut sums = ledger(&forecasts.found, &observed.found);
    sums.damaged = (forecasts.damaged.len() + observed.damaged.len()) as u64;
    Ok(sums)
}

/// All that a store has; files that cannot be read are named.
pub(super) fn contents_of(store: &Store) -> Result<(Listed<Forecast>, Listed<Observation>)> {
    let unusable = |error: StoreError| unusable(&error);
    let forecasts = store.all().map_err(unusable)?;
    let observed = store.observed().map_err(unusable)?;
    for (path, reason) in forecasts.damaged.iter().chain(&observed.damaged) {
        print_err(&format!(
            "{WARN}passed over{WARN:#} {}: {}",
            path.display(),
            plain(reason)
        ));
    }
    Ok((forecasts, observed))
}

fn ledger_text(sums: &PastRuns) -> String {
    if sums.families.is_empty() {
        return "nothing was observed yet: `tonnage forecast learn` takes what jobs used"
            .to_owned();
    }
    let mut text = String::from("forecast against used, by kind of job\n");
    let percent = |error: Option<f64>| {
        error.map_or_else(
            || "–".to_owned(),
            |error| format!("{:+.1} %", error * 100.0),
        )
    };
    let _ = writeln!(
        text,
        "{DIM}  {:<24} {:<14} {:>5} {:>9} {:>9} {:>11} {:>5}{DIM:#}",
        "job", "GPU", "jobs", "median", "worst", "over bound", "OOMs"
    );
    for family in &sums.families {
        let _ = writeln!(
            text,
            "  {:<24} {:<14} {:>5} {:>9} {:>9} {:>11} {:>5}",
            plain(&family.family),
            plain(&family.gpu),
            family.jobs,
            percent(family.median_error),
            percent(family.worst_under),
            family.over_bound,
            family.ooms
        );
    }
    let _ = writeln!(text, "\nasked against used, by team, of one GPU");
    for team in sums.teams.iter().filter(|team| team.jobs > 0) {
        let name = team.team.as_deref().unwrap_or("(no team)");
        let _ = writeln!(
            text,
            "  {:<24} requested {}, used {} ({}, {} requested and not used in all)",
            plain(name),
            bytes(team.asked),
            bytes(team.used),
            plural(team.jobs, "job"),
            bytes(team.unused)
        );
    }
    text
}

/// A forecast in words.
fn text(forecast: &Forecast) -> String {
    let mut text = String::new();
    let (style, word) = match forecast.fits {
        Fits::Yes => (GOOD, "FITS"),
        Fits::Perhaps => (WARN, "MAY NOT FIT"),
        Fits::No => (BAD, "DOES NOT FIT"),
    };
    let _ = writeln!(
        text,
        "{style}{word}{style:#}  {} on {}: {}\n",
        plain(&forecast.family),
        forecast.key.gpu,
        forecast.sentence()
    );
    for role in &forecast.roles {
        line(&mut text, "takes", &role_text(forecast, role));
    }
    for evidence in &forecast.evidence {
        let seen = if evidence.complete {
            ""
        } else {
            "; the job was not seen to its end"
        };
        line(&mut text, "known by", &format!("{}{seen}", evidence.what));
    }
    for sentence in &forecast.unknown {
        line(&mut text, "not known", sentence);
    }
    line(&mut text, "command", &joined(&forecast.key.command));
    if let Some(image) = &forecast.key.image {
        line(&mut text, "image", image);
    }
    let sources: Vec<&str> = forecast.key.sources.keys().map(String::as_str).collect();
    if !sources.is_empty() {
        line(
            &mut text,
            "files",
            &format!("{}; what they import is not part of it", sources.join(", ")),
        );
    }
    line(&mut text, "name", &forecast.name);
    text
}

fn role_text(forecast: &Forecast, role: &Role) -> String {
    let mut text = format!("{} ({}): ", role.name, plural(u64::from(role.gpus), "GPU"));
    let (peak, known) = (bytes(role.peak), role.known.word());
    let _ = match role.bound {
        Some(bound) => write!(
            text,
            "at most {}; {peak} {known}, {} not counted",
            bytes(bound),
            up_to(role.uncounted)
        ),
        None => write!(text, "{known} {peak}; there is no upper bound"),
    };
    if let Some(request) = forecast.request(role) {
        let _ = write!(text, "; request {}", bytes(request));
    }
    if let Some(least) = role.least {
        let _ = write!(
            text,
            "; would run on {} if its share were fenced",
            bytes(least)
        );
    }
    text
}

fn up_to(bytes: u64) -> String {
    match bytes {
        0 => "nothing".to_owned(),
        _ => format!("up to {}", crate::output::bytes(bytes)),
    }
}

/// A fact with its name before it; further lines below.
fn line(text: &mut String, name: &str, fact: &str) {
    let fact = plain(fact);
    let mut name = name;
    for part in crate::output::wrapped(&fact, ROOM) {
        let _ = writeln!(text, "  {DIM}{name:<10}{DIM:#} {part}");
        name = "";
    }
}
