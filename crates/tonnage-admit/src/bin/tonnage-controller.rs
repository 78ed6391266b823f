// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of the controller.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stderr,
    reason = "a controller writes what happens to its standard error"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use serde_json::json;
use tonnage_admit::arguments::{ClusterArguments, ServerArguments, run_to_end, told_to_end};
use tonnage_admit::client::ClientError;
use tonnage_admit::controller::dry_run::DryRuns;
use tonnage_admit::controller::lease::{Lease, hold};
use tonnage_admit::controller::plan::{Settings, Step};
use tonnage_admit::controller::run::{Controller, Event};
use tonnage_gpus::Catalogue;

/// Forecast jobs in the cluster that have no forecast yet
///
/// A pod that the webhook has put a scheduling gate on waits for the forecast of
/// its job. This program has the same image and command run dry on a node without
/// a GPU, keeps the result as a Forecast, and opens the gate. In a pod it finds
/// the API server by itself.
#[derive(Debug, Parser)]
#[command(name = "tonnage-controller", version)]
struct Arguments {
    /// The image with `tonnage` in it, for the Jobs of dry runs.
    #[arg(long, value_name = "IMAGE", env = "TONNAGE_IMAGE")]
    image: String,
    /// A GPU for which forecasts are made, even if the cluster has none of it now; may be given again.
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    /// Seconds after which a dry run is ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    dry_run_seconds: u64,
    /// Seconds after which a pod goes on without a forecast.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    patience: u64,
    /// Dry runs at a time.
    #[arg(long, value_name = "N", default_value_t = 8)]
    parallel: usize,
    /// Processors that a dry run requests.
    #[arg(long, value_name = "AMOUNT", default_value = "2")]
    cpu: String,
    /// Host memory that a dry run requests, and may have.
    #[arg(long, value_name = "AMOUNT", default_value = "8Gi")]
    memory: String,
    /// A label of the nodes on which dry runs run; may be given again.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    node_selector: Vec<(String, String)>,
    /// The namespace of the Lease by which several controllers agree on one.
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAMESPACE",
        default_value = "tonnage-system"
    )]
    namespace: String,
    /// Seconds after which another controller takes the place of one that has gone.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=600))]
    lease_seconds: u64,
    /// The name of this controller, if several run.
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAME",
        default_value = "tonnage-controller"
    )]
    identity: String,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    server: ServerArguments,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is written KEY=VALUE".to_owned()),
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
    let catalogue = Catalogue::embedded();
    let mut gpus = BTreeSet::new();
    for name in &arguments.gpu {
        let gpu = catalogue.find(name).map_err(|error| {
            format!("--gpu {name}: {error}\nhint: `tonnage gpus` lists those that are known")
        })?;
        gpus.insert(gpu.id.clone());
    }
    let settings = Settings {
        driver: arguments.cluster.driver,
        classes: arguments.cluster.device_class,
        gpus,
        dry_runs: DryRuns {
            image: arguments.image,
            seconds: arguments.dry_run_seconds,
            cpu: arguments.cpu,
            memory: arguments.memory,
            nodes: arguments
                .node_selector
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
        },
        parallel: arguments.parallel,
        patience: arguments.patience,
        retry_after: arguments.cluster.retry_after,
    };
    // Another after every start, so that none takes the Lease of its predecessor for its own.
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
    let started = started.map(|time| time.as_nanos()).unwrap_or_default();
    let lease = Lease {
        namespace: arguments.namespace,
        name: "tonnage-controller".to_owned(),
        term: Duration::from_secs(arguments.lease_seconds),
        identity: format!(
            "{}-{:x}-{:x}",
            arguments.identity,
            std::process::id(),
            started
        ),
    };
    let holds = Arc::new(AtomicBool::new(false));
    let controller = Controller::new(
        client.clone(),
        settings,
        Arc::clone(&holds),
        Box::new(|event| write(&event)),
    );
    tokio::spawn(hold(client, lease, holds, |error: &ClientError| {
        write(&Event::Watch(error));
    }));
    let end = told_to_end()?;
    // It may end at any point: the next one finds what is left to do.
    tokio::select! {
        () = controller.run() => {}
        () = end => {}
    }
    Ok(())
}

/// A line of JSON for each event.
fn write(event: &Event<'_>) {
    let line = match event {
        Event::Leads(true) => json!({ "event": "leads" }),
        Event::Leads(false) => json!({ "event": "does not lead" }),
        Event::Done(step) => json!({ "event": "done", "step": named(step) }),
        Event::Failed(step, error) => {
            json!({ "event": "failed", "step": named(step), "message": error.to_string() })
        }
        Event::Watch(error) => json!({ "event": "watch failed", "message": error.to_string() }),
        _ => return,
    };
    eprintln!("{line}");
}

/// A step in words.
fn named(step: &Step) -> String {
    match step {
        Step::CreateForecast { namespace, object } => {
            let name = object
                .pointer("/metadata/name")
                .and_then(|name| name.as_str());
            format!("create forecast {namespace}/{}", name.unwrap_or_default())
        }
        Step::SetStatus { name, object } => {
            let text = |field| object.pointer(field).and_then(|value| value.as_str());
            let phase = text("/status/phase").unwrap_or_default();
            let said = text("/status/message").unwrap_or_default();
            let (namespace, name) = name;
            format!("forecast {namespace}/{name} is {phase} {said}")
                .trim_end()
                .to_owned()
        }
        Step::DeleteForecast((namespace, name)) => format!("delete forecast {namespace}/{name}"),
        Step::CreateJob {
            forecast: (namespace, name),
            ..
        } => {
            format!("start the dry run of {namespace}/{name}")
        }
        Step::DeleteJob((namespace, name)) => format!("delete job {namespace}/{name}"),
        Step::OpenGate {
            pod: (namespace, name),
            ..
        } => {
            format!("open the gate of pod {namespace}/{name}")
        }
    }
}
