// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to the API server: read one object, list and watch objects, and change an object.
//!
//! These are the requests that webhook and controller make. The libraries for all of Kubernetes' API bring some sixty
//! further crates, whose features have others built again.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::objects::Metadata;

/// Objects of a page of a list.
const PAGE: usize = 500;
/// Bytes of a page, and of an event of a watch; an object has at most 1.5 MiB.
const MAX_PAGE: usize = 1 << 30;
const MAX_EVENT: usize = 8 << 20;
/// Until the API server answers.
const ANSWER: Duration = Duration::from_secs(30);
/// The duration of a watch, and the silence after which the server counts as gone. Silence before the end of a watch is
/// normal: the API server sends no bookmark of an unchanged list either.
const WATCH_SECONDS: u32 = 120;
const SILENCE: Duration = Duration::from_secs(150);
const _: () = assert!(SILENCE.as_secs() > WATCH_SECONDS as u64);
/// Between attempts, from and to.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// The variables by which a pod finds the API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Why the API server gives no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// This is not a pod, and the address of the API server is not set.
    #[error("it is not known where the API server is")]
    Nowhere,
    /// Its address makes no sense.
    #[error("{0:?} is not the address of an API server")]
    Address(String),
    /// A file cannot be used.
    #[error("cannot use {path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// It cannot be reached.
    #[error("cannot reach the API server: {0}")]
    Io(#[from] io::Error),
    /// It does not use HTTP.
    #[error("the API server does not answer: {0}")]
    Http(#[from] hyper::Error),
    /// It refuses.
    #[error("the API server answers {code}: {message}")]
    Status {
        /// The code of HTTP.
        code: u16,
        /// The message.
        message: String,
    },
    /// It returns something other than the requested object.
    #[error("the answer of the API server cannot be read: {0}")]
    Body(String),
    /// It returns nothing.
    #[error("the API server does not answer in time")]
    Time,
}

impl ClientError {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
    }

    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { code: 404, .. })
    }

    /// Whether another writer was first: the object already exists, or has changed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { code: 409, .. })
    }

    /// The API server's message if a retry would get the same answer: the object is not allowed, or makes no sense.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Status {
                code: 400 | 403 | 422,
                message,
            } => Some(message),
            _ => None,
        }
    }
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It is created.
    Create(Value),
    /// It is replaced, if it is still the version that the new one names.
    Replace(Value),
    /// It is changed by a JSON Patch.
    Patch(Value),
    /// It is deleted, and what it owns after it.
    Delete,
}

impl Change {
    fn request(&self) -> (Method, &'static str, Vec<u8>) {
        const JSON: &str = "application/json";
        match self {
            Self::Create(object) => (Method::POST, JSON, object.to_string().into_bytes()),
            Self::Replace(object) => (Method::PUT, JSON, object.to_string().into_bytes()),
            Self::Patch(patch) => (
                Method::PATCH,
                "application/json-patch+json",
                patch.to_string().into_bytes(),
            ),
            Self::Delete => (
                Method::DELETE,
                JSON,
                br#"{"propagationPolicy":"Background"}"#.to_vec(),
            ),
        }
    }
}

/// The address of the API server, and the client's identity.
#[derive(Clone, Debug)]
pub struct Client {
    /// `host:port`.
    address: String,
    name: ServerName<'static>,
    authority: PathBuf,
    token: PathBuf,
}

impl Client {
    /// From the variables and files of a pod.
    pub fn in_cluster() -> Result<Self, ClientError> {
        let variable = |name: &str| std::env::var(name).map_err(|_| ClientError::Nowhere);
        let (host, port) = (
            variable("KUBERNETES_SERVICE_HOST")?,
            variable("KUBERNETES_SERVICE_PORT")?,
        );
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let account = PathBuf::from(ACCOUNT);
        Self::new(
            &format!("https://{host}:{port}"),
            account.join("ca.crt"),
            account.join("token"),
        )
    }

    /// At `https://host:port`, whose certificate this authority has signed, with the token of this file.
    pub fn new(server: &str, authority: PathBuf, token: PathBuf) -> Result<Self, ClientError> {
        let wrong = || ClientError::Address(server.to_owned());
        let address = server
            .strip_prefix("https://")
            .ok_or_else(wrong)?
            .trim_end_matches('/');
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        port.parse::<u16>().map_err(|_| wrong())?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self {
            address: address.to_owned(),
            name: ServerName::try_from(host).map_err(|_| wrong())?,
            authority,
            token,
        })
    }

    /// An object, by its path.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(path, (Method::GET, "application/json", Vec::new()))
            .await
    }

    /// Changes the object at a path, or creates one in the list at a path; what it is then.
    pub async fn change(&self, path: &str, change: &Change) -> Result<Value, ClientError> {
        self.ask(path, change.request()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        request: (Method, &'static str, Vec<u8>),
    ) -> Result<T, ClientError> {
        tokio::time::timeout(ANSWER, async {
            let body = self.send(path, request).await?.into_body();
            let bytes = Limited::new(body, MAX_PAGE).collect().await;
            let bytes = bytes
                .map_err(|error| ClientError::Body(error.to_string()))?
                .to_bytes();
            serde_json::from_slice(&bytes).map_err(|error| ClientError::Body(error.to_string()))
        })
        .await
        .map_err(|_| ClientError::Time)?
    }

    /// Sends a request over a separate connection, and returns a successful response.
    async fn send(
        &self,
        path: &str,
        (method, content, body): (Method, &'static str, Vec<u8>),
    ) -> Result<Response<Incoming>, ClientError> {
        let unusable = |path: &PathBuf, reason: String| ClientError::File {
            path: path.clone(),
            reason,
        };
        // Both files are changed while pods run.
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(&self.authority);
        for certificate in
            certificates.map_err(|error| unusable(&self.authority, error.to_string()))?
        {
            let added = certificate.map_err(|error| error.to_string());
            added
                .and_then(|one| roots.add(one).map_err(|error| error.to_string()))
                .map_err(|reason| unusable(&self.authority, reason))?;
        }
        let token = tokio::fs::read_to_string(&self.token).await;
        let token = token.map_err(|error| unusable(&self.token, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ClientError::Io(io::Error::other(error)))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(&self.address).await?;
        let stream = TlsConnector::from(Arc::new(config))
            .connect(self.name.clone(), stream)
            .await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the body, or with its reader.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.address)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, content)
            .header(AUTHORIZATION, format!("Bearer {}", token.trim()))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| ClientError::Body(error.to_string()))?;
        let response = sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let said = Limited::new(response.into_body(), MAX_EVENT)
            .collect()
            .await;
        let said = said
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let message = serde_json::from_slice::<Status>(&said).map(|status| status.message);
        Err(ClientError::Status {
            code,
            message: message.unwrap_or_default(),
        })
    }

    /// Reports all objects of a list, and then its changes; ends only with the program. Errors are reported as well,
    /// and retried with growing delays.
    pub async fn follow<T: DeserializeOwned>(&self, list: &List, mut tell: impl FnMut(Seen<T>)) {
        let mut version = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let ended = match version.take() {
                None => self
                    .list(list, &mut tell)
                    .await
                    .map(|listed| version = Some(listed)),
                Some(mut seen) => {
                    let watched = self.watch(list, &mut seen, &mut pause, &mut tell).await;
                    // The server does not keep missed changes forever; everything is then listed again.
                    if watched.as_ref().is_ok()
                        || watched.as_ref().is_err_and(|error| !error.is_gone())
                    {
                        version = Some(seen);
                    }
                    watched
                }
            };
            match ended {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    tell(Seen::Failed(&error));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
        }
    }

    /// Lists everything; the state of the cluster in which it was so.
    async fn list<T: DeserializeOwned>(
        &self,
        list: &List,
        tell: &mut impl FnMut(Seen<T>),
    ) -> Result<String, ClientError> {
        let mut found = Vec::new();
        let mut from = String::new();
        loop {
            let path = format!("{}?limit={PAGE}{}{from}", list.path, list.selector());
            let page: Page<T> = self.get(&path).await?;
            found.extend(page.items.unwrap_or_default());
            let rest = page.metadata.r#continue.filter(|token| !token.is_empty());
            let Some(token) = rest else {
                tell(Seen::All(found));
                return Ok(page.metadata.resource_version);
            };
            from = format!("&continue={}", escaped(&token));
        }
    }

    /// Watches until the API server ends it, which it does now and then. One that begins well forgets the failures
    /// before it, whatever becomes of it.
    async fn watch<T: DeserializeOwned>(
        &self,
        list: &List,
        version: &mut String,
        pause: &mut Duration,
        tell: &mut impl FnMut(Seen<T>),
    ) -> Result<(), ClientError> {
        let from = escaped(version);
        let path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}{}",
            list.path,
            list.selector()
        );
        let watch = (Method::GET, "application/json", Vec::new());
        let sent = tokio::time::timeout(ANSWER, self.send(&path, watch)).await;
        let mut body = sent.map_err(|_| ClientError::Time)??.into_body();
        *pause = FIRST_PAUSE;
        let mut lines = Lines::default();
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame()).await;
            let Some(frame) = frame.map_err(|_| ClientError::Time)?.transpose()? else {
                return Ok(());
            };
            lines.push(&frame.into_data().unwrap_or_default())?;
            while let Some(line) = lines.next() {
                event(&line, version, tell)?;
            }
        }
    }
}

/// The lines of a body that comes in pieces.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Up to here there is no end of a line.
    searched: usize,
}

impl Lines {
    fn push(&mut self, piece: &[u8]) -> Result<(), ClientError> {
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() > MAX_EVENT + piece.len() {
            return Err(ClientError::Body("an event without an end".to_owned()));
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut unsearched = self.bytes[self.searched..].iter();
        let Some(at) = unsearched.position(|&byte| byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let rest = self.bytes.split_off(self.searched + at + 1);
        self.searched = 0;
        Some(std::mem::replace(&mut self.bytes, rest))
    }
}

/// Tells an event of a watch, and remembers its state of the cluster.
fn event<T: DeserializeOwned>(
    line: &[u8],
    version: &mut String,
    tell: &mut impl FnMut(Seen<T>),
) -> Result<(), ClientError> {
    let wrong = |error: serde_json::Error| ClientError::Body(error.to_string());
    let kind: Event<serde::de::IgnoredAny> = serde_json::from_slice(line).map_err(wrong)?;
    if kind.r#type == "ERROR" {
        let status: Event<Status> = serde_json::from_slice(line).map_err(wrong)?;
        return Err(ClientError::Status {
            code: status.object.code,
            message: status.object.message,
        });
    }
    let of: Event<Versioned> = serde_json::from_slice(line).map_err(wrong)?;
    if kind.r#type != "BOOKMARK" {
        let object: Event<T> = serde_json::from_slice(line).map_err(wrong)?;
        tell(match kind.r#type.as_str() {
            "DELETED" => Seen::Gone(object.object),
            _ => Seen::One(object.object),
        });
    }
    if let Some(seen) = of.object.metadata.resource_version {
        *version = seen;
    }
    Ok(())
}

/// A list of the API server.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// Its path.
    pub path: &'static str,
    /// Objects to leave out, by their fields; may be empty.
    pub fields: &'static str,
    /// Objects to leave out, by their labels; may be empty.
    pub labels: &'static str,
}

impl List {
    fn selector(&self) -> String {
        let selector = |name: &str, value: &str| match value {
            "" => String::new(),
            value => format!("&{name}={}", escaped(value)),
        };
        selector("fieldSelector", self.fields) + &selector("labelSelector", self.labels)
    }
}

/// A change of a list.
#[derive(Debug)]
pub enum Seen<'a, T> {
    /// These are all.
    All(Vec<T>),
    /// There is a new one, or one is different.
    One(T),
    /// One was deleted.
    Gone(T),
    /// It is not known for now.
    Failed(&'a ClientError),
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    #[serde(default)]
    resource_version: String,
    r#continue: Option<String>,
}

#[derive(Deserialize)]
struct Event<T> {
    r#type: String,
    object: T,
}

#[derive(Deserialize)]
struct Versioned {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

/// A value as part of an address.
pub(crate) fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value
        .bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_whole_however_they_come() {
        let text = b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"5\"}}}\n\
            {\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n\
            {\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"11\"}}}\n";
        for size in [1, 7, text.len()] {
            let (mut lines, mut version, mut told) = (Lines::default(), String::new(), Vec::new());
            for piece in text.chunks(size) {
                lines.push(piece).expect("small");
                while let Some(line) = lines.next() {
                    event(
                        &line,
                        &mut version,
                        &mut |change: Seen<Versioned>| match change {
                            Seen::One(one) => {
                                told.push(format!("+{}", one.metadata.name.unwrap_or_default()));
                            }
                            Seen::Gone(one) => {
                                told.push(format!("-{}", one.metadata.name.unwrap_or_default()));
                            }
                            Seen::All(_) | Seen::Failed(_) => unreachable!("no event"),
                        },
                    )
                    .expect("an event");
                }
            }
            assert_eq!(
                (told.join(" ").as_str(), version.as_str()),
                ("+a -a", "11"),
                "pieces of {size}"
            );
        }
    }

    #[test]
    fn a_state_that_is_no_longer_kept_is_told_apart() {
        let line = b"{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}";
        let error =
            event(line, &mut String::new(), &mut |_: Seen<Versioned>| {}).expect_err("an error");
        assert!(error.is_gone());
    }

    #[test]
    fn an_event_without_an_end_is_not_waited_for() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; MAX_EVENT];
        assert!((0..3).any(|_| lines.push(&piece).is_err()));
    }

    #[test]
    fn addresses_are_read() {
        let new = |server: &str| Client::new(server, PathBuf::new(), PathBuf::new());
        assert_eq!(
            new("https://10.0.0.1:443/").expect("an address").address,
            "10.0.0.1:443"
        );
        assert_eq!(
            new("https://[fd00::1]:6443").expect("an address").address,
            "[fd00::1]:6443"
        );
        for wrong in [
            "http://10.0.0.1:443",
            "https://host",
            "https://:1",
            "https://host:99999",
            "",
        ] {
            assert!(new(wrong).is_err(), "{wrong}");
        }
    }
}
