// SPDX-License-Identifier: MIT OR Apache-2.0
//! The webhook over TLS: its requests, their limits, its start and end.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use hyper::body::Body as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tonnage_forecast::admit::Asked;
use tonnage_forecast::{Forecast, Snapshot, Store, StoreError};
use tonnage_http::Limits;
use tonnage_http::metrics::{Exposition, Kind, METRICS_TYPE};

use crate::answer::{Answer, Known, Settings, answer};
use crate::claim;
use crate::client::ClientError;
use crate::cluster::{Cache, Pods};
use crate::cluster_forecasts::ClusterForecasts;
use crate::counters::Counters;
use crate::forecasts::Forecasts;
use crate::job::{GATE, declines, is_held, jobs};
use crate::objects::{Pod, ResourceClaim};
use crate::review::{self, Subject};

/// Bytes of a review: an object of etcd has at most 1.5 MiB, and a review holds it once on creation.
pub const MAX_BODY: usize = 4 << 20;
/// Most reviews are smaller than this, and each connection may send one at any time.
const SMALL_BODY: u64 = 256 << 10;
/// Larger reviews that are read at a time: together they hold so many times [`MAX_BODY`]. A client that sends one slowly
/// delays only other large ones.
const LARGE_REVIEWS: usize = 32;
/// A review is sent at once: an API server does not need longer for its bytes.
const BODY: Duration = Duration::from_secs(2);
/// `timeoutSeconds` of the registrations in `deploy/kubernetes`. The API server sends its own with each review.
pub const API_SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections. An API server has few connections, and reuses them.
const LIMITS: Limits = Limits {
    headers: API_SERVER_TIMEOUT,
    handshake: API_SERVER_TIMEOUT,
    silence: Duration::from_mins(1),
    connections: 1024,
    connections_of_a_client: 128,
};
/// Limits for probes and Prometheus, apart from reviews.
const STATUS_LIMITS: Limits = Limits {
    connections: 64,
    connections_of_a_client: 16,
    ..LIMITS
};
/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// After this many checks, forecasts are read again in any case: not every file system reports changes of a folder.
const LOOKS: u32 = 30;
/// Requests in flight are given so long when the program ends.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// Events, for a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A claim was answered.
    Answered {
        /// The claim.
        claim: &'a ResourceClaim,
        /// The answer.
        answer: &'a Answer,
        /// How long it took.
        took: Duration,
    },
    /// A body was not a review.
    Malformed(String),
    /// Forecasts were read: their number, and the invalid files.
    Forecasts {
        /// How many.
        count: usize,
        /// The files, and why.
        damaged: &'a [(PathBuf, String)],
    },
    /// They could not be read; those of before hold.
    NoForecasts(&'a StoreError),
    /// The certificates have changed, and new connections get them.
    Certificates,
    /// They have changed and cannot be used; those of before hold.
    BadCertificates(&'a io::Error),
    /// The cluster could not be watched; it is tried again.
    Watch(&'a ClientError),
}

/// Where events go.
pub type Events = Box<dyn Fn(Event<'_>) + Send + Sync>;

/// The webhook.
pub struct Webhook {
    settings: Settings,
    cache: Arc<Cache>,
    pods: Pods,
    forecasts: RwLock<Option<Arc<Forecasts>>>,
    /// Forecasts that are made in the cluster, if any.
    cluster_forecasts: Option<Arc<ClusterForecasts>>,
    is_ending: AtomicBool,
    large_reviews: Semaphore,
    counters: Counters,
    events: Events,
}

impl Webhook {
    /// A webhook that answers from these caches.
    pub fn new(settings: Settings, cache: Arc<Cache>, pods: Pods, events: Events) -> Self {
        Self {
            settings,
            cache,
            pods,
            forecasts: RwLock::new(None),
            cluster_forecasts: None,
            is_ending: AtomicBool::new(false),
            large_reviews: Semaphore::new(LARGE_REVIEWS),
            counters: Counters::default(),
            events,
        }
    }

    /// Also takes these forecasts, and has pods wait for theirs.
    #[must_use]
    pub fn with_cluster_forecasts(mut self, forecasts: Arc<ClusterForecasts>) -> Self {
        self.cluster_forecasts = Some(forecasts);
        self
    }

    /// Counts and reports an event.
    pub fn tell(&self, event: Event<'_>) {
        match &event {
            Event::Answered { answer, took, .. } => self.counters.answered(answer, *took),
            Event::Malformed(_) => self.counters.malformed(),
            Event::Watch(_) => self.counters.failed_watch(),
            _ => {}
        }
        (self.events)(event);
    }

    /// Takes these forecasts from now on.
    pub fn set_forecasts(&self, forecasts: Forecasts) {
        self.tell(Event::Forecasts {
            count: forecasts.len(),
            damaged: &forecasts.damaged,
        });
        *self
            .forecasts
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(forecasts));
    }

    fn forecasts(&self) -> Option<Arc<Forecasts>> {
        self.forecasts
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The forecasts of the folder, if everything is known that an answer needs.
    fn current_forecasts(&self) -> Option<Arc<Forecasts>> {
        let of_cluster = self.cluster_forecasts.as_ref();
        let is_known =
            self.cache.is_complete() && of_cluster.is_none_or(|forecasts| forecasts.is_known());
        self.forecasts().filter(|_| is_known)
    }

    /// Whether everything is known that an answer needs.
    pub fn is_ready(&self) -> bool {
        self.current_forecasts().is_some() && !self.is_ending.load(Ordering::Acquire)
    }

    /// Its counters and state, in the format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut exposition = Exposition::default();
        self.counters.tell(&mut exposition);
        let forecasts = self.forecasts();
        let mut tell = |name: &str, help: &str, value: usize| {
            exposition.metric(name, Kind::Gauge, help).add(&[], value);
        };
        tell(
            "tonnage_admit_ready",
            "Whether everything is known that an answer needs.",
            usize::from(self.is_ready()),
        );
        tell(
            "tonnage_admit_forecasts",
            "Forecasts that are known.",
            forecasts.as_ref().map_or(0, |forecasts| forecasts.len()),
        );
        tell(
            "tonnage_store_damaged_files",
            "Files of the store that could not be read.",
            forecasts
                .as_ref()
                .map_or(0, |forecasts| forecasts.damaged.len()),
        );
        let mut text = exposition.to_text();
        if let Some(forecasts) = forecasts {
            text.push_str(&forecasts.metrics);
        }
        text
    }

    /// Stops being ready: no new connections should come.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Makes sure that the forecasts are known which were there when a pod's gate was opened.
    async fn caught_up(&self, known: Known, namespace: &str, deadline: Instant) -> Known {
        let (Known::Job(job), Some(forecasts), Some(client)) =
            (&known, &self.cluster_forecasts, self.pods.client())
        else {
            return known;
        };
        let caught_up = forecasts.catch_up(client, namespace, &job.made);
        let error = match timeout_at(deadline, caught_up).await {
            Ok(Ok(())) => return known,
            Ok(Err(error)) => error,
            Err(_) => ClientError::Time,
        };
        self.tell(Event::Watch(&error));
        Known::Later
    }

    /// Has a pod wait if the forecast of its job can be made and is not there.
    async fn hold(&self, pod: &Pod, forecasts: &Forecasts, deadline: Instant) -> Answer {
        let (Some(of_cluster), Some(spec)) = (&self.cluster_forecasts, &pod.spec) else {
            return Answer::default();
        };
        // One that is placed by hand cannot wait.
        if is_held(pod) || declines(pod) || spec.node_name.is_some() {
            return Answer::default();
        }
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let here = of_cluster.in_namespace(&namespace);
        let gpus = self.cache.gpus();
        let jobs = jobs(pod);
        for claim in spec.resource_claims.iter().flatten() {
            let (Some(name), Some(Ok(job))) =
                (&claim.resource_claim_template_name, jobs.get(&claim.name))
            else {
                continue;
            };
            // Its dry run would wait for the others.
            if job.is_spread {
                continue;
            }
            let found: Vec<&Forecast> = [forecasts, &here]
                .iter()
                .flat_map(|all| all.find(job))
                .collect();
            let is_known = |gpu: &&String| {
                found.iter().any(|one| one.key.gpu == **gpu)
                    || of_cluster.has_failed(&namespace, job, gpu)
            };
            let products = gpus.products.iter().filter(|gpu| self.cache.knows(gpu));
            let lacks_some =
                gpus.products.is_empty() || !products.clone().all(|gpu| is_known(&gpu));
            if !lacks_some {
                continue;
            }
            // Forecasts that cannot be read now are left to the controller.
            let template = timeout_at(deadline, self.pods.template(&namespace, name)).await;
            let template = template.ok().and_then(Result::ok).flatten();
            let wants_number = template.is_none_or(|template| {
                let settings = &self.settings;
                let requests =
                    claim::requests(&template.spec.spec, &settings.driver, &settings.classes);
                requests.is_ok_and(|all| {
                    all.iter()
                        .any(|one| one.asked == Asked::Nothing && one.count.is_some())
                })
            });
            if wants_number {
                return Answer {
                    patch: vec![gate(spec.scheduling_gates.is_some())],
                    ..Answer::default()
                };
            }
        }
        Answer::default()
    }

    /// Answers a review before the API server stops waiting: its turn, its bytes and what has to be looked up share one
    /// deadline, at which the answer for what is not known then is sent.
    async fn review(&self, request: Request) -> Response {
        let started = Instant::now();
        let deadline = started + time_for_review(request.uri().query());
        // A request that announces too many bytes is refused at once.
        if request.body().size_hint().lower() > MAX_BODY as u64 {
            self.tell(Event::Malformed("it is too large".to_owned()));
            return (StatusCode::PAYLOAD_TOO_LARGE, "the review is too large\n").into_response();
        }
        // A body without an announced length may become a large one.
        let announced = request.body().size_hint().upper();
        let is_small = announced.is_some_and(|bytes| bytes <= SMALL_BODY);
        let permit = async {
            if is_small {
                return Ok(None);
            }
            self.large_reviews.acquire().await.map(Some)
        };
        let Ok(Ok(permit)) = timeout_at(deadline, permit).await else {
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many large reviews at a time\n",
            )
                .into_response();
        };
        let body_deadline = deadline.min(Instant::now() + BODY);
        let body = match timeout_at(body_deadline, Bytes::from_request(request, &())).await {
            Ok(Ok(body)) => body,
            // Too large, or cut off.
            Ok(Err(rejection)) => {
                self.tell(Event::Malformed(rejection.to_string()));
                return rejection.into_response();
            }
            Err(_) => {
                self.tell(Event::Malformed("it did not come in time".to_owned()));
                return (
                    StatusCode::REQUEST_TIMEOUT,
                    "the review did not come in time\n",
                )
                    .into_response();
            }
        };
        let parsed = review::parse(&body);
        drop((body, permit));
        let request = match parsed {
            Ok(request) => request,
            Err(error) => {
                self.tell(Event::Malformed(error.to_string()));
                // Not an answer: the failure policy of the webhook decides.
                return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
            }
        };
        let answer = match (&request.subject, self.current_forecasts()) {
            (Subject::Other, _) => Answer::default(),
            (_, None) => {
                self.counters.unready();
                return (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response();
            }
            (Subject::Pod(pod), Some(forecasts)) => self.hold(pod, &forecasts, deadline).await,
            (Subject::Claim(claim), Some(forecasts)) => {
                let namespace = claim.metadata.namespace.clone().unwrap_or_default();
                let owner = claim::owner(claim);
                let known = self.pods.find_job(owner.as_ref(), deadline).await;
                let known = self.caught_up(known, &namespace, deadline).await;
                let of_cluster = self.cluster_forecasts.as_ref();
                let of_cluster = of_cluster.map(|all| all.in_namespace(&namespace));
                let all: Vec<&Forecasts> = std::iter::once(&*forecasts)
                    .chain(of_cluster.as_deref())
                    .collect();
                let answer = answer(claim, &known, &all, &self.cache.gpus(), &self.settings);
                let took = started.elapsed();
                self.tell(Event::Answered {
                    claim,
                    answer: &answer,
                    took,
                });
                answer
            }
        };
        let response = review::response(&request.uid, &answer);
        (
            [(header::CONTENT_TYPE, "application/json")],
            response.to_string(),
        )
            .into_response()
    }
}

/// How long a review may take: four fifths of the API server's `timeoutSeconds`, which it sends as `?timeout=5s`. The
/// rest is for the way there and back.
fn time_for_review(query: Option<&str>) -> Duration {
    let mut pairs = query.unwrap_or_default().split('&');
    let sent = pairs.find_map(|pair| pair.strip_prefix("timeout=")?.strip_suffix('s'));
    let sent = sent.and_then(|seconds| seconds.parse().ok());
    let waits = sent.map_or(API_SERVER_TIMEOUT, Duration::from_secs);
    waits.min(API_SERVER_TIMEOUT) * 4 / 5
}

/// The change that puts the gate on a pod, which may have others.
fn gate(has_others: bool) -> Value {
    let gate = json!({ "name": GATE });
    if has_others {
        json!({ "op": "add", "path": "/spec/schedulingGates/-", "value": gate })
    } else {
        json!({ "op": "add", "path": "/spec/schedulingGates", "value": [gate] })
    }
}

/// The addresses of the webhook.
pub fn router(webhook: Arc<Webhook>) -> Router {
    let review = |State(webhook): State<Arc<Webhook>>, request: Request| async move {
        webhook.review(request).await
    };
    probes()
        .route("/claims", post(review))
        .route("/pods", post(review))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(webhook)
}

/// The probes, and what Prometheus reads: for a port that the webhook's own clients do not use.
pub fn status_router(webhook: Arc<Webhook>) -> Router {
    let metrics = |State(webhook): State<Arc<Webhook>>| async move {
        ([(header::CONTENT_TYPE, METRICS_TYPE)], webhook.metrics())
    };
    probes().route("/metrics", get(metrics)).with_state(webhook)
}

fn probes() -> Router<Arc<Webhook>> {
    let ready = |State(webhook): State<Arc<Webhook>>| async move {
        if webhook.is_ready() {
            (StatusCode::OK, "ready\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
}

/// Keeps the forecasts of a webhook as they are in a store; ends only with the program.
pub async fn follow_store(webhook: Arc<Webhook>, store: Store) {
    let mut snapshot = Snapshot::default();
    let mut looks = LOOKS;
    let mut is_due = true;
    loop {
        let place = store.clone();
        let whole = looks >= LOOKS;
        let began = Instant::now();
        // Thousands of files may have to be read: other tasks go on.
        let read = tokio::task::spawn_blocking(move || {
            let mut snapshot = snapshot;
            let changed = snapshot.refresh(&place, whole);
            let forecasts = changed.map(|changed| {
                let forecasts = || Forecasts::from_snapshot(&snapshot, &place);
                (changed || is_due).then(forecasts)
            });
            (snapshot, forecasts)
        });
        let Ok((kept, forecasts)) = read.await else {
            return;
        };
        snapshot = kept;
        looks = if whole { 0 } else { looks + 1 };
        match forecasts {
            Ok(None) => {}
            Ok(Some(forecasts)) => {
                webhook.set_forecasts(forecasts);
                is_due = false;
            }
            Err(error) => {
                webhook.tell(Event::NoForecasts(&error));
                is_due = true;
            }
        }
        // A large store that changes all the time takes at most a tenth of a processor.
        tokio::time::sleep(LOOK.max(began.elapsed() * 9)).await;
    }
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The chain, the webhook's own first, as PEM.
    pub chain: PathBuf,
    /// Its key, as PEM.
    pub key: PathBuf,
}

impl Certificates {
    async fn read(&self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let read = async |path: &Path| {
            let failed = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            tokio::fs::read(path).await.map_err(failed)
        };
        Ok((read(&self.chain).await?, read(&self.key).await?))
    }
}

/// Gives new connections the certificates that are in the files now; ends only with the program.
async fn follow_certificates(
    webhook: &Webhook,
    files: &Certificates,
    config: &RustlsConfig,
    first: (Vec<u8>, Vec<u8>),
) {
    let mut seen = first;
    loop {
        tokio::time::sleep(LOOK).await;
        match files.read().await {
            Ok(now) if now == seen => {}
            Ok((chain, key)) => {
                match config.reload_from_pem(chain.clone(), key.clone()).await {
                    Ok(()) => webhook.tell(Event::Certificates),
                    // Said once; a half of the pair may be written yet.
                    Err(error) => webhook.tell(Event::BadCertificates(&error)),
                }
                seen = (chain, key);
            }
            // They are being changed; those of before hold.
            Err(error) => webhook.tell(Event::BadCertificates(&error)),
        }
    }
}

/// The addresses of a webhook.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// For reviews, over TLS.
    pub reviews: SocketAddr,
    /// For probes and metrics, without TLS; none to serve no metrics.
    pub status: Option<SocketAddr>,
}

/// Serves until `end` comes; then goes on for `delay`, so that the cluster sees that it is not ready, takes no more
/// connections, and finishes the requests in flight.
pub async fn serve(
    webhook: Arc<Webhook>,
    listen: Listen,
    files: Certificates,
    end: impl Future<Output = ()>,
    delay: Duration,
) -> io::Result<()> {
    // Another provider may have been installed by a test.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let first = files.read().await?;
    let config = RustlsConfig::from_pem(first.0.clone(), first.1.clone()).await?;
    let handle = Handle::new();
    let server = axum_server::bind_rustls(listen.reviews, config.clone()).handle(handle.clone());
    let server = tonnage_http::limited(server, LIMITS);
    let ending = async {
        end.await;
        webhook.end();
        tokio::time::sleep(delay).await;
        handle.graceful_shutdown(Some(LAST_REQUESTS));
    };
    let service = router(Arc::clone(&webhook)).into_make_service();
    let status = async {
        let Some(address) = listen.status else {
            return std::future::pending().await;
        };
        let server = axum_server::bind(address).handle(handle.clone());
        let service = status_router(Arc::clone(&webhook)).into_make_service();
        match tonnage_http::limited(server, STATUS_LIMITS)
            .serve(service)
            .await
        {
            // It may end before the last reviews are answered.
            Ok(()) => std::future::pending().await,
            failed => failed,
        }
    };
    let beside = async {
        tokio::join!(
            ending,
            follow_certificates(&webhook, &files, &config, first)
        )
    };
    tokio::select! {
        ended = server.serve(service) => ended,
        ended = status => ended,
        _ = beside => Ok(()),
    }
}
