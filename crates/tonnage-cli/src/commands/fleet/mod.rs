// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fleet`: forecasts in a cluster. `page` has the report as a page, `watch` serves what jobs take, `review`
//! reads what past jobs took.

mod page;
pub(super) mod review;
mod review_page;
mod watch;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use tonnage_forecast::Store;
use tonnage_forecast::admit::Action;
use tonnage_forecast::fleet::{Report, report};
use tonnage_forecast::kubernetes::Account;
use tonnage_forecast::metrics;
use tonnage_forecast::slurm::{Settings, Submission, allocator_settings, submission};
use tonnage_http::metrics::{Exposition, Kind};

use self::review::FleetReview;
use self::watch::FleetWatch;
use super::forecast::ForecastStore;
use super::recording::{Input, Output, named, plain};
use crate::browser;
use crate::options::{PageFile, ReplyOptions};
use crate::output::{Answer, BAD, Form, Reply, WARN, bytes, count, hinted, parse_bytes, plural};

/// Report on the GPUs of a cluster, and export metrics
#[derive(Args, Debug)]
pub(crate) struct FleetOptions {
    #[command(subcommand)]
    pub(crate) what: FleetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    Report(FleetReport),
    Review(FleetReview),
    Metrics(FleetMetrics),
    Watch(FleetWatch),
    Slurm(SlurmOptions),
}

impl FleetCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Report(options) => options.reply.json,
            Self::Review(options) => options.reply.json,
            Self::Metrics(_) | Self::Watch(_) | Self::Slurm(_) => false,
        }
    }
}

/// Show which GPU memory a Kubernetes cluster's claims request
///
/// Reads the output of kubectl for ResourceSlices and ResourceClaims: the requests
/// on each machine and by each team, the memory in pieces that no job can
/// use, who waits, and where waiting jobs would have to be pinned so that more
/// of them start.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl get resourceslices,resourceclaims -A -o json | tonnage fleet report -
  tonnage fleet report --store forecasts account.json --html fleet.html")]
pub(crate) struct FleetReport {
    /// The output of `kubectl get resourceslices,resourceclaims -A -o json`; `-` for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    #[command(flatten)]
    pub(crate) page: PageFile,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Print forecasts, what jobs used and a cluster's account for Prometheus
///
/// Text in Prometheus' own format, for a file that node_exporter's textfile
/// collector reads. On Kubernetes, tonnage-admit serves the forecasts and what
/// jobs used at /metrics by itself.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage fleet metrics --store forecasts > /var/lib/node_exporter/tonnage.prom
  kubectl get resourceslices,resourceclaims -A -o json | tonnage fleet metrics --store forecasts -")]
pub(crate) struct FleetMetrics {
    /// The output of `kubectl get resourceslices,resourceclaims -A -o json`; `-` for standard input.
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// Send it to an OpenTelemetry collector instead, by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_ENDPOINT,
    /// OTEL_RESOURCE_ATTRIBUTES and their like specify [default: to http://localhost:4318].
    #[arg(long)]
    pub(crate) otlp: bool,
}

/// Decide about a job that is handed to Slurm
///
/// Called by the hooks of Slurm (cli_filter.lua, job_submit.lua): finds the
/// commands of the job, looks for their forecasts, and prints what is to be done
/// as lines name=value.
///
/// Exit code: 0 the job may go on, 1 it is refused, 2 it could not be found out.
#[derive(Args, Debug)]
pub(crate) struct SlurmOptions {
    /// The settings of the cluster, a TOML file.
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: PathBuf,
    /// The batch script.
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// The number of requested tasks.
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<u32>,
    /// An option of gres or TRES that the job has, with its name: gres=gpu:2, tres-per-task=gres/shard:42. May be given
    /// several times.
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub(crate) asked: Vec<String>,
    /// The folder in which the job starts [default: the current one].
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// The command of srun or salloc, or the arguments of the batch script.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Larger files are not batch scripts or settings.
const MAX_SCRIPT: u64 = 16 << 20;
/// Larger documents are not an account: that of 10,000 GPUs has some 20 MB.
const MAX_ACCOUNT: u64 = 1 << 30;
/// Machines and teams that the text lists; the JSON has all.
const LISTED: usize = 12;

pub(crate) fn run(options: &FleetOptions, form: Form) -> Result<Reply> {
    match &options.what {
        FleetCommand::Report(options) => report_on(options, form),
        FleetCommand::Review(options) => review::run(options, form),
        FleetCommand::Metrics(options) => metrics_of(options),
        FleetCommand::Watch(options) => watch::run(options),
        FleetCommand::Slurm(options) => slurm(options),
    }
}

fn report_on(options: &FleetReport, form: Form) -> Result<Reply> {
    let target = options.page.html.as_deref();
    let output = target
        .map(|target| Output::create(target, options.page.force))
        .transpose()?;
    let account = account_of(&options.files)?;
    let sums = match &options.store.store {
        Some(folder) => Some(super::forecast::ledger_of(&Store::new(folder))?),
        None => None,
    };
    let reported = report(&account, sums.as_ref());
    if let Some(output) = output {
        output.write(page::page(&reported).as_bytes())?;
        if let Some(target) = target.filter(|_| options.page.open) {
            browser::open(target)?;
        }
        if target == Some(Path::new("-")) {
            return Ok(Reply::silent(Answer::Yes));
        }
    }
    Ok(Reply::new(form, Answer::Yes, &reported, text)?)
}

fn metrics_of(options: &FleetMetrics) -> Result<Reply> {
    if options.files.is_empty() && options.store.store.is_none() {
        return Err(hinted(
            "there is nothing to report",
            "name the folder of forecasts with --store, or a file that kubectl printed",
        ));
    }
    let mut exposition = Exposition::default();
    if let Some(folder) = &options.store.store {
        let (forecasts, observed) = super::forecast::contents_of(&Store::new(folder))?;
        metrics::of_store(&mut exposition, &forecasts.found, &observed.found);
        let damaged = forecasts.damaged.len() + observed.damaged.len();
        exposition
            .metric(
                "tonnage_store_damaged_files",
                Kind::Gauge,
                "Files of the store that could not be read.",
            )
            .add(&[], damaged);
    }
    if !options.files.is_empty() {
        metrics::of_report(&mut exposition, &report(&account_of(&options.files)?, None));
    }
    let mut reply = Reply::silent(Answer::Yes);
    if options.otlp {
        watch::push(&exposition)?;
    } else {
        reply.text = Some(exposition.to_text().trim_end().to_owned());
    }
    Ok(reply)
}

/// The account that kubectl printed to these files.
fn account_of(files: &[PathBuf]) -> Result<Account> {
    let mut documents = Vec::new();
    for path in files {
        let json = at_most(MAX_ACCOUNT, Input::new(path)?.open()?)
            .with_context(|| format!("cannot read {}", named(path)))?;
        documents.push(json.ok_or_else(|| {
            hinted(
                format!("{} is larger than any account", named(path)),
                "it should be what kubectl printed",
            )
        })?);
    }
    Account::parse(documents.iter().map(Vec::as_slice)).map_err(|error| {
        hinted(
            error.to_string(),
            "make it with: kubectl get resourceslices,resourceclaims -A -o json",
        )
    })
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let all = &report.all;
    let part = |part: u64| format!("{:.1} %", part as f64 * 100.0 / all.capacity.max(1) as f64);
    let _ = writeln!(
        text,
        "{}, {} in use: {} of {} requested",
        plural(all.gpus, "GPU"),
        count(all.in_use),
        part(all.asked),
        bytes(all.capacity)
    );
    let _ = writeln!(
        text,
        "  {:<10} {:>12}  {}",
        "headroom",
        bytes(all.headroom),
        part(all.headroom)
    );
    let _ = writeln!(
        text,
        "  {:<10} {:>12}  {}, in pieces too small for the smallest share that any job has or wants",
        "stranded",
        bytes(all.stranded),
        part(all.stranded)
    );
    let stranded = report.nodes.iter().filter(|node| node.sums.stranded > 0);
    let mut shown = stranded.clone().take(LISTED).peekable();
    if shown.peek().is_some() {
        let _ = writeln!(text, "\nmachines with most stranded");
    }
    for node in shown {
        let sums = &node.sums;
        let _ = writeln!(
            text,
            "  {:<24} {:>12} stranded, {:>12} headroom, {} of {} in use",
            plain(&node.node),
            bytes(sums.stranded),
            bytes(sums.headroom),
            sums.in_use,
            plural(sums.gpus, "GPU")
        );
    }
    let more = stranded.count().saturating_sub(LISTED);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more; --json has all");
    }
    let _ = writeln!(text, "\nteams");
    for team in report.teams.iter().take(LISTED) {
        let seen = match (team.asked_by_a_job, team.used_by_a_job) {
            (Some(asked), Some(used)) => {
                format!("; a job requested {}, used {}", bytes(asked), bytes(used))
            }
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "  {:<24} requested {} in {}, {} of them whole GPUs; {} waiting{seen}",
            plain(&team.team),
            bytes(team.asked),
            plural(team.shares, "share"),
            team.whole,
            team.waiting
        );
    }
    if report.teams.len() > LISTED {
        let _ = writeln!(
            text,
            "  and {} more; --json has all",
            report.teams.len() - LISTED
        );
    }
    for job in &report.impossible {
        let _ = writeln!(
            text,
            "\n{BAD}never starts{BAD:#}  {} requests more of one GPU than any has",
            plain(job)
        );
    }
    if !report.pins.is_empty() {
        let _ = writeln!(
            text,
            "\n{WARN}pinned like this{WARN:#}, more of the waiting jobs start than by first fit:"
        );
        for pin in &report.pins {
            let gpus = pin
                .gpus
                .iter()
                .map(|gpu| plain(gpu))
                .collect::<Vec<_>>()
                .join(", ");
            let _ = writeln!(
                text,
                "  {} ({}): {} on {}, {} of each",
                plain(&pin.job),
                plain(&pin.team),
                gpus,
                plain(&pin.node),
                bytes(pin.bytes)
            );
        }
    }
    text
}

fn slurm(options: &SlurmOptions) -> Result<Reply> {
    let settings = Settings::parse(&text_of(&options.settings)?).map_err(|error| {
        hinted(
            format!("cannot read {}: {error}", options.settings.display()),
            "it needs store = \"FOLDER\" and, for each kind of GPU, [[gpu]] with type and shards",
        )
    })?;
    let shard = parse_bytes(&settings.shard)
        .map_err(|error| hinted(format!("shard: {error}"), "shard = \"1GiB\" is usual"))?;
    let script = options.script.as_deref().map(text_of).transpose()?;
    let words: Vec<String> = options
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let here = std::env::current_dir().context("the current folder is gone")?;
    let folder = options
        .folder
        .as_ref()
        .map_or_else(|| here.clone(), |folder| here.join(folder));
    let answer = submission(
        &settings,
        shard,
        &Submission {
            script: script.as_deref(),
            words: &words,
            folder: &folder,
            tasks: options.tasks,
            asked: &options.asked,
            allocator: allocator_settings(|name| std::env::var(name).ok()),
        },
    )?;
    let mut text = String::new();
    for (name, value) in answer.lines() {
        let _ = writeln!(text, "{name}={value}");
    }
    let mut reply = Reply::silent(match answer.decision.action {
        Action::Refuse => Answer::No,
        Action::None | Action::Advise | Action::Fill | Action::Whole => Answer::Yes,
    });
    reply.text = Some(text.trim_end().to_owned());
    Ok(reply)
}

fn text_of(path: &Path) -> Result<String> {
    let failed = || format!("cannot read {}", path.display());
    let file = fs::File::open(path).with_context(failed)?;
    let bytes = at_most(MAX_SCRIPT, file).with_context(failed)?;
    let bytes = bytes.ok_or_else(|| {
        hinted(
            format!("{} is larger than any script", path.display()),
            "name the batch script",
        )
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All of it; none if it has more bytes than `most`.
fn at_most(most: u64, reader: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}
