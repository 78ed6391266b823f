// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fleet watch`: what jobs take while they run, for Prometheus. It runs until it is ended.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use tonnage_forecast::Forecast;
use tonnage_watch::server::{Settings, serve};

use super::at_most;
use crate::arguments::FleetWatch;
use crate::output::{Answer, Reply, hinted, print_err};

/// Larger files are no forecasts.
const MAX_FORECAST: u64 = 1 << 20;

pub(crate) fn run(options: &FleetWatch) -> Result<Reply> {
    let settings = Settings {
        folder: options.folder.clone().unwrap_or_else(std::env::temp_dir),
        listen: options.listen,
        keep: Duration::from_secs(options.keep),
        forecast: forecast(options)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
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
        let listening = |address| print_err(&format!("{watched}: http://{address}/metrics"));
        serve(settings, listening, end).await
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
