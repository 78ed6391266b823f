// SPDX-License-Identifier: MIT OR Apache-2.0
//! What webhook and controller have in common: where the API server is, which devices are GPUs, and how they end.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{Client, ClientError};

/// Where the API server is.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// The API server, if this is not a pod: https://HOST:PORT.
    #[arg(long, value_name = "URL", requires_all = ["server_ca", "token"])]
    pub server: Option<String>,
    /// The authority of the API server's certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub server_ca: Option<PathBuf>,
    /// The file of the token for requests to the API server.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token: Option<PathBuf>,
}

impl ServerArguments {
    /// The client; or, in words, why there is none.
    pub fn client(self) -> Result<Client, String> {
        let client = match (self.server, self.server_ca, self.token) {
            (Some(server), Some(authority), Some(token)) => Client::new(&server, authority, token),
            _ => Client::in_cluster(),
        };
        client.map_err(|error| match error {
            ClientError::Nowhere => {
                format!("{error}\nhint: run it in a pod, or name the API server with --server")
            }
            error => error.to_string(),
        })
    }
}

/// Which devices are GPUs, and what is done about jobs that could not be forecast.
#[derive(Args, Clone, Debug)]
pub struct ClusterArguments {
    /// The driver whose devices are the GPUs.
    #[arg(long, value_name = "NAME", default_value = "gpu.nvidia.com")]
    pub driver: String,
    /// A device class of the GPUs; may be given again.
    #[arg(long, value_name = "NAME", default_value = "gpu.nvidia.com")]
    pub device_class: Vec<String>,
    /// Seconds after which a forecast that could not be made in the cluster is tried again, if a pod requests it.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub retry_after: u64,
}

/// Runs a program to its end; what went wrong is for its standard error.
///
/// # Errors
///
/// With the sentence to write, and the exit code beside it, if the program could not do its work.
pub fn run_to_end(
    program: impl Future<Output = Result<(), String>>,
) -> Result<(), (String, ExitCode)> {
    let failed = |reason| (reason, ExitCode::from(2));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(format!("cannot start: {error}")))?;
    runtime.block_on(program).map_err(failed)
}

/// Waits until the program receives a signal to end. The signal is awaited from this call on.
///
/// # Errors
///
/// If the system does not let it listen.
pub fn told_to_end() -> Result<impl Future<Output = ()>, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
