// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fleet watch`: what jobs take while they run, for Prometheus and OpenTelemetry. It runs until it is ended.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tonnage_forecast::Forecast;
use tonnage_http::metrics::Exposition;
use tonnage_watch::otlp::Otlp;
use tonnage_watch::server::{Event, Settings, serve};

use super::at_most;
use crate::output::{Answer, Reply, hinted, print_err};

/// Report the GPU memory of jobs to Prometheus while they run
///
/// Reads the files that `tonnage record` and `tonnage run` leave while a job
/// runs, and serves /metrics until it is ended: what PyTorch holds and has handed
/// out, the peaks so far, what the device reports as used, out-of-memory errors,
/// and whether the recording is complete. Jobs come and go; the folder need not
/// be there yet. It has to run as the user of the jobs, whose files no other user
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
    /// A forecast, whose upper bound is reported beside the use of its job.
    #[arg(long, value_name = "FILE")]
    pub(crate) forecast: Option<PathBuf>,
    /// How many seconds a job is reported after its end: longer than between two scrapes of Prometheus.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) keep: u64,
    /// Also send it to an OpenTelemetry collector, by OTLP over HTTP, as the variables OTEL_EXPORTER_OTLP_ENDPOINT,
    /// OTEL_METRIC_EXPORT_INTERVAL and their like specify [default: to http://localhost:4318 every 60 seconds].
    #[arg(long)]
    pub(crate) otlp: bool,
}

/// Larger files are not forecasts.
const MAX_FORECAST: u64 = 1 << 20;

pub(crate) fn run(options: &FleetWatch) -> Result<Reply> {
    let settings = Settings {
        folder: options.folder.clone().unwrap_or_else(std::env::temp_dir),
        listen: options.listen,
        keep: Duration::from_secs(options.keep),
        forecast: forecast(options)?,
        otlp: options.otlp.then(otlp).transpose()?,
    };
    let runtime = runtime()?;
    let watched = settings.folder.display().to_string();
    let served = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let end = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let tell = move |event: Event<'_>| match event {
            Event::Listening(address) => {
                print_err(&format!("{watched}: http://{address}/metrics"));
            }
            Event::NotSent(error) => print_err(&format!("metrics are not sent: {error}")),
            Event::SentAgain => print_err("metrics are sent again"),
            _ => {}
        };
        serve(settings, Box::new(tell), end).await
    });
    // A file system that hangs must not keep it from ending.
    runtime.shutdown_background();
    served.map_err(|error| {
        hinted(
            format!("cannot listen on {}: {error}", options.listen),
            "choose another address with --listen; port 0 is any that is free",
        )
    })?;
    Ok(Reply::silent(Answer::Yes))
}

/// Sends metrics once.
pub(crate) fn push(metrics: &Exposition) -> Result<()> {
    let otlp = otlp()?;
    let runtime = runtime()?;
    let pushed = runtime.block_on(otlp.push(metrics));
    // A name that is being looked up must not keep it from ending.
    runtime.shutdown_background();
    pushed.map_err(|error| {
        hinted(
            format!("metrics are not sent: {error}"),
            "OTEL_EXPORTER_OTLP_ENDPOINT names the collector, with its port for HTTP, mostly 4318",
        )
    })
}

fn otlp() -> Result<Otlp> {
    Otlp::from_environment(|name| std::env::var(name).ok()).map_err(|error| {
        hinted(
            error.to_string(),
            "the variables are those of OpenTelemetry's exporters; unset what you do not need",
        )
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")
}

fn forecast(options: &FleetWatch) -> Result<Option<Forecast>> {
    let Some(path) = &options.forecast else {
        return Ok(None);
    };
    let failed = || format!("cannot read {}", path.display());
    let bytes = at_most(MAX_FORECAST, File::open(path).with_context(failed)?)
        .with_context(failed)?
        .unwrap_or_default();
    let forecast = Forecast::parse(&bytes).map_err(|error| {
        hinted(
            format!("{}: {error}", path.display()),
            "make a forecast with: tonnage forecast make",
        )
    })?;
    Ok(Some(forecast))
}
