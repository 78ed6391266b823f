// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be typed about forecasts and clusters.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{JobCommand, RunOptions};

/// What a job will take, for a scheduler
///
/// A forecast is a small file: how much GPU memory each rank of a job takes at
/// most, what that rests on, and what it was made from. Schedulers keep an
/// account of GPU memory and ask for this number.
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
    Ledger(LedgerOptions),
}

impl ForecastCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Make(options) => options.run.json,
            Self::From(options) => options.json,
            Self::Show(options) => options.json,
            Self::Compare(options) => options.json,
            Self::Emit(options) => options.json,
            Self::Find(options) => options.json,
            Self::Learn(options) => options.json,
            Self::Ledger(options) => options.json,
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
/// Runs the job as `tonnage run` does, with the same options, and says what each
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
    /// Also write the forecast, or why there is none, to this file in at most 4 KiB: what Kubernetes keeps of a container
    /// that has ended.
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
    /// Print the forecast as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Print the comparison as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write a forecast as a scheduler takes it
///
/// Exit code: 0 done, 1 the job does not fit on the GPU, so there is nothing to
/// ask for.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage forecast emit --for dra --store forecasts 3f2a81c09b1d4e55
  sbatch $(tonnage forecast emit --for slurm train.json) job.sh")]
pub(crate) struct EmitForecast {
    /// Whom it is for.
    #[arg(long = "for", value_enum, value_name = "ENGINE")]
    pub(crate) dialect: Engine,
    /// What a shard of Slurm stands for.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = crate::output::parse_bytes)]
    pub(crate) shard: u64,
    /// The DeviceClass of the GPUs in Kubernetes.
    #[arg(long, value_name = "NAME", default_value = "gpu.nvidia.com")]
    pub(crate) device_class: String,
    #[command(flatten)]
    pub(crate) chosen: ChosenForecast,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// How many ranks the job has, where its words do not say so.
    #[arg(long, value_name = "N")]
    pub(crate) world_size: Option<u32>,
    /// Print what was found as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Whose job it was.
    #[arg(long, value_name = "NAME")]
    pub(crate) team: Option<String>,
    /// What it had asked for, of one GPU.
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
    /// Print what was kept as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
/// its jobs asked for and what they used.
#[derive(Args, Debug)]
pub(crate) struct LedgerOptions {
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Forecasts in a cluster
#[derive(Args, Debug)]
pub(crate) struct FleetOptions {
    #[command(subcommand)]
    pub(crate) what: FleetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    Report(FleetReport),
    Metrics(FleetMetrics),
    Watch(FleetWatch),
    Slurm(SlurmOptions),
}

impl FleetCommand {
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Self::Report(options) => options.json,
            Self::Metrics(_) | Self::Watch(_) | Self::Slurm(_) => false,
        }
    }
}

/// Show what a Kubernetes cluster's GPUs are asked for
///
/// Reads what kubectl prints of ResourceSlices and ResourceClaims: what is asked
/// for on each machine and by each team, what lies in pieces that nobody can
/// use, who waits, and where waiting jobs would have to be pinned so that more
/// of them start.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  kubectl get resourceslices,resourceclaims -A -o json | tonnage fleet report -
  tonnage fleet report --store forecasts account.json --html fleet.html")]
pub(crate) struct FleetReport {
    /// What `kubectl get resourceslices,resourceclaims -A -o json` printed; `-` for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// Write it as a page, too; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Overwrite the page if it is there.
    #[arg(long, requires = "html")]
    pub(crate) force: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// What `kubectl get resourceslices,resourceclaims -A -o json` printed; `-` for standard input.
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) store: ForecastStore,
    /// Send it to an OpenTelemetry collector instead, by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_ENDPOINT,
    /// OTEL_RESOURCE_ATTRIBUTES and their like say [default: to http://localhost:4318].
    #[arg(long)]
    pub(crate) otlp: bool,
}

/// Tell Prometheus what jobs take of their GPUs while they run
///
/// Reads the files that `tonnage record` and `tonnage run` leave while a job
/// runs, and serves /metrics until it is ended: what PyTorch holds and has handed
/// out, the peaks so far, what the device says is in use, out-of-memory errors,
/// and whether the recording is complete. Jobs come and go; the folder need not
/// be there yet. It has to run as the user of the jobs, whose files nobody else
/// can read, and writes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage fleet watch
  tonnage fleet watch /run/tonnage --listen 0.0.0.0:9778 --forecast train.json")]
pub(crate) struct FleetWatch {
    /// The folder that jobs are given with --live [default: the temporary folder].
    #[arg(value_name = "DIR", env = "TONNAGE_LIVE")]
    pub(crate) folder: Option<PathBuf>,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9778")]
    pub(crate) listen: SocketAddr,
    /// A forecast, whose upper bound is told beside what its job takes.
    #[arg(long, value_name = "FILE")]
    pub(crate) forecast: Option<PathBuf>,
    /// How many seconds a job is told of after its end: longer than between two questions of Prometheus.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) keep: u64,
    /// Also send it to an OpenTelemetry collector, by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_ENDPOINT,
    /// OTEL_METRIC_EXPORT_INTERVAL and their like say [default: to http://localhost:4318 every 60 seconds].
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
    /// How many tasks were asked for.
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
