// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of the webhook.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stderr,
    reason = "a server writes what happens to its standard error"
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::json;
use tonnage_admit::answer::Settings;
use tonnage_admit::arguments::{ClusterArguments, ServerArguments, run_to_end, told_to_end};
use tonnage_admit::client::ClientError;
use tonnage_admit::cluster::{Cache, Pods, follow_pods, follow_slices};
use tonnage_admit::cluster_forecasts::{ClusterForecasts, follow_forecasts};
use tonnage_admit::server::{Certificates, Event, Listen, Webhook, follow_store, serve};
use tonnage_forecast::Store;
use tonnage_forecast::admit::Mode;

/// Write a job's GPU memory into its ResourceClaim
///
/// An admission webhook of Kubernetes. When a ResourceClaim is created for a pod,
/// it looks for the forecast of the pod's command and image, and reports, writes or
/// refuses the request of the claim for each GPU. In a pod it finds the API server by
/// itself.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The folder of forecasts, which `tonnage forecast make --store` fills.
    #[arg(long, value_name = "DIR", env = "TONNAGE_STORE")]
    store: PathBuf,
    /// The action on claims.
    #[arg(long, value_enum, default_value = "advise", env = "TONNAGE_MODE")]
    mode: ModeArgument,
    /// The certificate of the webhook and those above it, as PEM; read again when it changes.
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.crt")]
    certificate: PathBuf,
    /// The key of the certificate, as PEM.
    #[arg(long, value_name = "FILE", default_value = "/tls/tls.key")]
    key: PathBuf,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Where to serve probes and metrics, without TLS: a port that pods of other namespaces need not reach.
    #[arg(long, value_name = "ADDRESS")]
    status_listen: Option<SocketAddr>,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    server: ServerArguments,
    /// Have pods wait for forecasts that tonnage-controller makes, and use those that it has made.
    #[arg(long, env = "TONNAGE_CLUSTER_FORECASTS")]
    cluster_forecasts: bool,
    /// Seconds in which requests are still taken after the signal to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    shutdown_delay: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArgument {
    /// Say what is known; change nothing but annotations.
    Advise,
    /// Write the number where there is none; refuse what no GPU can hold.
    Fill,
    /// Also refuse numbers below the forecast, and give whole GPUs to jobs without one.
    Enforce,
}

impl From<ModeArgument> for Mode {
    fn from(mode: ModeArgument) -> Self {
        match mode {
            ModeArgument::Advise => Self::Advise,
            ModeArgument::Fill => Self::Fill,
            ModeArgument::Enforce => Self::Enforce,
        }
    }
}

fn main() -> ExitCode {
    match run_to_end(run(Arguments::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err((reason, code)) => {
            eprintln!("error: {reason}");
            code
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let client = arguments.server.client()?;
    let cluster = arguments.cluster;
    let settings = Settings {
        mode: arguments.mode.into(),
        driver: cluster.driver.clone(),
        classes: cluster.device_class,
    };
    let cache = Arc::new(Cache::new(&cluster.driver));
    let pods = Pods::new(Arc::clone(&cache), Some(client.clone()));
    let mut webhook = Webhook::new(settings, Arc::clone(&cache), pods, Box::new(write));
    let forecasts = Arc::new(ClusterForecasts::new(cluster.retry_after));
    if arguments.cluster_forecasts {
        webhook = webhook.with_cluster_forecasts(Arc::clone(&forecasts));
    }
    let webhook = Arc::new(webhook);
    let failed = |webhook: &Arc<Webhook>| {
        let webhook = Arc::clone(webhook);
        move |error: &ClientError| webhook.tell(Event::Watch(error))
    };
    tokio::spawn(follow_pods(
        client.clone(),
        Arc::clone(&cache),
        failed(&webhook),
    ));
    if arguments.cluster_forecasts {
        let failed = failed(&webhook);
        tokio::spawn(follow_forecasts(client.clone(), forecasts, failed));
    }
    tokio::spawn(follow_slices(client, cache, failed(&webhook)));
    tokio::spawn(follow_store(
        Arc::clone(&webhook),
        Store::new(arguments.store),
    ));
    let files = Certificates {
        chain: arguments.certificate,
        key: arguments.key,
    };
    let end = told_to_end()?;
    let delay = Duration::from_secs(arguments.shutdown_delay);
    let listen = Listen {
        reviews: arguments.listen,
        status: arguments.status_listen,
    };
    serve(webhook, listen, files, end, delay)
        .await
        .map_err(|error| format!("cannot serve on {}: {error}", arguments.listen))
}

/// A line of JSON for each event.
fn write(event: Event<'_>) {
    let line = match event {
        Event::Answered {
            claim,
            answer,
            took,
        } => {
            let metadata = &claim.metadata;
            let name = metadata.name.as_ref().or(metadata.generate_name.as_ref());
            let said = answer.refused.as_ref().or(answer.warning.as_ref());
            json!({
                "event": if answer.refused.is_some() { "refused" } else { "allowed" },
                "namespace": metadata.namespace, "claim": name, "forecast": answer.forecast,
                "bytes_written": answer.written, "message": said, "microseconds": took.as_micros() as u64,
            })
        }
        Event::Malformed(reason) => json!({ "event": "malformed review", "message": reason }),
        Event::Forecasts { count, damaged } => {
            let damaged: Vec<String> = damaged
                .iter()
                .take(10)
                .map(|(path, reason)| format!("{}: {reason}", path.display()))
                .collect();
            json!({ "event": "forecasts read", "count": count, "damaged": damaged })
        }
        Event::NoForecasts(error) => {
            json!({ "event": "forecasts not read", "message": error.to_string() })
        }
        Event::Certificates => json!({ "event": "certificates changed" }),
        Event::BadCertificates(error) => {
            json!({ "event": "certificates not changed", "message": error.to_string() })
        }
        Event::Watch(error) => json!({ "event": "watch failed", "message": error.to_string() }),
        _ => return,
    };
    eprintln!("{line}");
}
