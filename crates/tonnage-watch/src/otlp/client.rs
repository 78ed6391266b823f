// SPDX-License-Identifier: MIT OR Apache-2.0
//! One request to a receiver of OTLP, over a separate connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::encode::rejected;
use super::{Otlp, OtlpError};

/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;
/// Letters of an answer that are reported.
const SAID: usize = 300;
/// Where systems keep the certificates that they trust.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

impl Otlp {
    /// Sends a request once.
    pub(super) async fn send(&self, body: Vec<u8>) -> Result<(), OtlpError> {
        let sent = tokio::time::timeout(self.timeout, self.exchange(body)).await;
        sent.unwrap_or_else(|_| Err(self.unreachable("it does not answer in time")))
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> OtlpError {
        OtlpError::Unreachable {
            endpoint: self.endpoint.to_string(),
            why: why.to_string(),
        }
    }

    async fn exchange(&self, body: Vec<u8>) -> Result<(), OtlpError> {
        let is_secure = self.endpoint.scheme_str() == Some("https");
        let host = self.endpoint.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.endpoint.port_u16();
        let port = port.unwrap_or(if is_secure { 443 } else { 80 });
        // Before anything is connected: certificates that cannot be read are not the receiver's fault.
        let secure = if is_secure { Some(self.tls()?) } else { None };
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| self.unreachable(error))?;
        match secure {
            None => self.ask(stream, body).await,
            Some(connector) => {
                let name = ServerName::try_from(host.to_owned());
                let name = name.map_err(|error| self.unreachable(error))?;
                let stream = connector.connect(name, stream).await;
                self.ask(stream.map_err(|error| self.unreachable(error))?, body)
                    .await
            }
        }
    }

    fn tls(&self) -> Result<TlsConnector, OtlpError> {
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            OtlpError::Certificates(format!("{}: {error}", path.display()))
        };
        let named = self.certificates.clone();
        let named = named.or_else(|| std::env::var_os("SSL_CERT_FILE").map(PathBuf::from));
        let bundles = BUNDLES.iter().map(PathBuf::from);
        let path = named
            .or_else(|| bundles.into_iter().find(|path| path.exists()))
            .ok_or_else(|| {
                let none = "this system has none; name a file with OTEL_EXPORTER_OTLP_CERTIFICATE";
                OtlpError::Certificates(none.to_owned())
            })?;
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(&path);
        for certificate in certificates.map_err(|error| failed(&path, &error))? {
            // One that is not understood is not needed.
            let _ = roots.add(certificate.map_err(|error| failed(&path, &error))?);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| OtlpError::Certificates(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    async fn ask<S>(&self, stream: S, body: Vec<u8>) -> Result<(), OtlpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let failed = |error: hyper::Error| self.unreachable(error);
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(failed)?;
        let authority = self.endpoint.authority();
        let path = self.endpoint.path_and_query();
        let mut request = Request::post(path.map_or("/", |path| path.as_str()))
            .header(HOST, authority.map_or("", |authority| authority.as_str()))
            .header(USER_AGENT, concat!("tonnage/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| self.unreachable(error))?;
        let answer = async move {
            let response = sender.send_request(request).await.map_err(failed)?;
            let status = response.status();
            let after = response.headers().get(RETRY_AFTER);
            let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok());
            let body = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await;
            let body = body.map(http_body_util::Collected::to_bytes);
            Ok((
                status,
                after.map(Duration::from_secs),
                body.unwrap_or_default(),
            ))
        };
        // Both here, so that nothing of it is left when time is up. The connection ends with the sender.
        let (answer, _) = tokio::join!(answer, connection);
        let (status, after, body) = answer?;
        let endpoint = self.endpoint.to_string();
        if !status.is_success() {
            return Err(OtlpError::Refused {
                endpoint,
                code: status.as_u16(),
                message: readable(&body),
                after,
            });
        }
        match rejected(&body) {
            None => Ok(()),
            Some((count, message)) => Err(OtlpError::Rejected {
                endpoint,
                count,
                message: readable(message.as_bytes()),
            }),
        }
    }
}

/// The start of a receiver's answer, as far as it can be printed.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let printed = text.chars().filter(|letter| !letter.is_control());
    printed.take(SAID).collect()
}
