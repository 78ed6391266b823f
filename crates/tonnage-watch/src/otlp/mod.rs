// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends metrics to an OpenTelemetry collector: OTLP over HTTP, configured by the standard environment variables.
//!
//! A push is tried a few times and then given up; the next one has newer values, so nothing is kept for later. `client`
//! has the request, `encode` what is in it.

mod client;
mod encode;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::Uri;
use thiserror::Error;
use tonnage_http::metrics::{Exposition, Kind};

pub use encode::request;

/// Attempts of a push, and the pause after the first; each further one is twice as long.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that a receiver may request.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Where a collector listens that is on the same machine.
const LOCAL: &str = "http://localhost:4318";

/// Why metrics cannot be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// A variable makes no sense.
    #[error("{name} is {value:?}: {why}")]
    Variable {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
        /// The error.
        why: &'static str,
    },
    /// The certificates by which a receiver is known cannot be read.
    #[error("cannot read certificates: {0}")]
    Certificates(String),
    /// The receiver cannot be reached, or does not use HTTP.
    #[error("{endpoint} cannot be reached: {why}")]
    Unreachable {
        /// Where it should be.
        endpoint: String,
        /// The event.
        why: String,
    },
    /// It did not take them.
    #[error("{endpoint} answers {code}: {message}")]
    Refused {
        /// Where it is.
        endpoint: String,
        /// The code of HTTP.
        code: u16,
        /// Its answer, shortened.
        message: String,
        /// The time after which to retry.
        after: Option<Duration>,
    },
    /// It took only a part.
    #[error("{endpoint} did not take {count} values: {message}")]
    Rejected {
        /// Where it is.
        endpoint: String,
        /// How many.
        count: u64,
        /// Why.
        message: String,
    },
}

impl OtlpError {
    /// Whether the same may be taken later, as the specification has it.
    fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => matches!(code, 429 | 502 | 503 | 504),
            _ => false,
        }
    }

    fn pause(&self) -> Option<Duration> {
        match self {
            Self::Refused { after, .. } => after.map(|pause| pause.min(LONGEST_PAUSE)),
            _ => None,
        }
    }
}

/// Where metrics are sent, and as whose.
#[derive(Clone, Debug)]
pub struct Otlp {
    endpoint: Uri,
    headers: Vec<(String, String)>,
    resource: Vec<(String, String)>,
    certificates: Option<PathBuf>,
    /// Until a receiver answers.
    timeout: Duration,
    /// How often metrics are sent where that goes on.
    pub interval: Duration,
}

impl Otlp {
    /// Reads the standard variables: `OTEL_EXPORTER_OTLP_ENDPOINT` and the related ones.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, OtlpError> {
        // A variable that is empty is one that is not set.
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let of_metrics = |rest: &str| {
            let names = [
                format!("OTEL_EXPORTER_OTLP_METRICS_{rest}"),
                format!("OTEL_EXPORTER_OTLP_{rest}"),
            ];
            names
                .into_iter()
                .find_map(|name| set(&name).map(|value| (name, value)))
        };
        if let Some((name, value)) = of_metrics("PROTOCOL")
            && value.trim() != "http/protobuf"
        {
            let why = "only http/protobuf is supported";
            return Err(OtlpError::Variable { name, value, why });
        }
        let (name, value) = of_metrics("ENDPOINT")
            .unwrap_or_else(|| ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), LOCAL.to_owned()));
        let text = if name.contains("METRICS") {
            value.trim().to_owned()
        } else {
            format!("{}/v1/metrics", value.trim().trim_end_matches('/'))
        };
        let endpoint = text.parse::<Uri>().ok().filter(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        });
        let Some(endpoint) = endpoint else {
            let why = "it should be like http://localhost:4318";
            return Err(OtlpError::Variable { name, value, why });
        };
        let mut resource = Vec::new();
        if let Some(value) = set("OTEL_RESOURCE_ATTRIBUTES") {
            resource = pairs("OTEL_RESOURCE_ATTRIBUTES".to_owned(), &value)?;
        }
        let mut set_attribute = |name: &str, value: String, is_stronger: bool| {
            if let Some(at) = resource.iter().position(|(known, _)| known == name) {
                if is_stronger {
                    resource[at].1 = value;
                }
            } else {
                resource.push((name.to_owned(), value));
            }
        };
        if let Some(service) = set("OTEL_SERVICE_NAME") {
            set_attribute("service.name", service, true);
        }
        set_attribute("service.name", "tonnage".to_owned(), false);
        set_attribute(
            "service.version",
            env!("CARGO_PKG_VERSION").to_owned(),
            false,
        );
        let headers = of_metrics("HEADERS").map(|(name, value)| pairs(name, &value));
        let timeout = of_metrics("TIMEOUT").map(|(name, value)| milliseconds(name, value));
        let interval = set("OTEL_METRIC_EXPORT_INTERVAL");
        let interval =
            interval.map(|value| milliseconds("OTEL_METRIC_EXPORT_INTERVAL".to_owned(), value));
        Ok(Self {
            endpoint,
            headers: headers.transpose()?.unwrap_or_default(),
            resource,
            certificates: of_metrics("CERTIFICATE").map(|(_, file)| file.into()),
            timeout: timeout.transpose()?.unwrap_or(Duration::from_secs(10)),
            interval: interval.transpose()?.unwrap_or(Duration::from_mins(1)),
        })
    }

    /// Sends metrics. Temporary failures are retried a few times, with growing delays.
    pub async fn push(&self, metrics: &Exposition) -> Result<(), OtlpError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
        let resource = self.resource.iter();
        let resource: Vec<_> = resource
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let body = request(metrics, &resource, time);
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            match self.send(body.clone()).await {
                Err(error) if error.is_passing() && attempt < ATTEMPTS => {
                    tokio::time::sleep(error.pause().unwrap_or(pause)).await;
                    pause *= 2;
                    attempt += 1;
                }
                ended => return ended,
            }
        }
    }
}

/// How often metrics were sent.
#[derive(Debug, Default)]
pub struct Pushes {
    taken: AtomicU64,
    failed: AtomicU64,
}

impl Pushes {
    /// Counts how a push ended.
    pub fn count(&self, is_taken: bool) {
        let counter = if is_taken { &self.taken } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells it.
    pub fn tell(&self, to: &mut Exposition) {
        let mut samples = to.metric(
            "tonnage_watch_pushes_total",
            Kind::Counter,
            "How often metrics were sent by OTLP, by whether they were taken.",
        );
        let counters = [("taken", &self.taken), ("failed", &self.failed)];
        for (result, counter) in counters {
            samples.add(&[("result", result)], counter.load(Ordering::Relaxed));
        }
    }
}

/// Pairs like `name=value,name=value`, in which `%20` is a space. All or nothing, as the specification wants it.
fn pairs(name: String, value: &str) -> Result<Vec<(String, String)>, OtlpError> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let key = decoded(key.trim())?;
        (!key.is_empty()).then_some((key, decoded(value.trim())?))
    };
    let parts = value.split(',').filter(|part| !part.trim().is_empty());
    let pairs: Option<Vec<_>> = parts.map(pair).collect();
    pairs.ok_or_else(|| OtlpError::Variable {
        name,
        value: value.to_owned(),
        why: "it should be like name=value,name=value, with %2C for a comma",
    })
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn milliseconds(name: String, value: String) -> Result<Duration, OtlpError> {
    match value.trim().parse() {
        Ok(number) if number > 0 => Ok(Duration::from_millis(number)),
        _ => Err(OtlpError::Variable {
            name,
            value,
            why: "it should be a number of milliseconds",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Otlp, OtlpError> {
        Otlp::from_environment(|name| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_endpoint_is_where_the_variables_say() {
        let endpoint = |variables: &[(&str, &str)]| with(variables).unwrap().endpoint.to_string();
        assert_eq!(endpoint(&[]), "http://localhost:4318/v1/metrics");
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:1/otlp/");
        assert_eq!(endpoint(&[base]), "https://collector:1/otlp/v1/metrics");
        let of_metrics = (
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            "http://other/as/it/is",
        );
        assert_eq!(endpoint(&[base, of_metrics]), "http://other/as/it/is");
        let empty = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "");
        assert_eq!(
            endpoint(&[base, empty]),
            "https://collector:1/otlp/v1/metrics"
        );
        for wrong in ["collector:4317", "ftp://x", "http://", "unix:///x"] {
            assert!(
                with(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", wrong)]).is_err(),
                "{wrong}"
            );
        }
        assert!(with(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).is_err());
    }

    #[test]
    fn a_resource_is_who_the_variables_say() {
        let resource = |variables: &[(&str, &str)]| with(variables).unwrap().resource;
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let version = pair("service.version", env!("CARGO_PKG_VERSION"));
        assert_eq!(
            resource(&[]),
            [pair("service.name", "tonnage"), version.clone()]
        );
        let attributes = (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=a, k8s.pod.name=b%2Cc%20d ,",
        );
        assert_eq!(
            resource(&[attributes]),
            [
                pair("service.name", "a"),
                pair("k8s.pod.name", "b,c d"),
                version.clone()
            ]
        );
        let named = resource(&[attributes, ("OTEL_SERVICE_NAME", "e")]);
        assert_eq!(named[0], pair("service.name", "e"));
        for wrong in ["a", "=b", "a=%zz", "a=%2", "a=%ff"] {
            assert!(
                with(&[("OTEL_RESOURCE_ATTRIBUTES", wrong)]).is_err(),
                "{wrong}"
            );
        }
        assert!(with(&[("OTEL_METRIC_EXPORT_INTERVAL", "0")]).is_err());
        let timed = with(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "250")]).unwrap();
        assert_eq!(timed.timeout, Duration::from_millis(250));
    }
}
