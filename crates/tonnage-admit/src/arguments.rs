// SPDX-License-Identifier: MIT OR Apache-2.0
//! What webhook and controller are both told: where the API server is, and which devices are GPUs.

use std::path::PathBuf;

use clap::Args;

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
    /// The file of the token with which the API server is asked.
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
    /// Seconds after which a forecast that could not be made in the cluster is tried again, if a pod asks for it.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub retry_after: u64,
}
