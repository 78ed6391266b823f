// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a folder every second, answers Prometheus with what was read last, and sends it to a collector now and then.
//!
//! A separate thread reads, so a file system that hangs does not delay answers: they then report the time of the last
//! reading. A collector that does not answer delays nothing else.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::routing::get;
use axum_server::Handle;
use tonnage_forecast::Forecast;
use tonnage_http::Limits;
use tonnage_http::metrics::{Exposition, METRICS_TYPE};

use crate::metrics::of_jobs;
use crate::otlp::{Otlp, OtlpError, Pushes};
use crate::runs::Folder;

/// How often the folder is read.
const LOOK: Duration = Duration::from_secs(1);
/// A client.
const LIMITS: Limits = Limits {
    headers: Duration::from_secs(5),
    handshake: Duration::from_secs(5),
    silence: Duration::from_secs(10),
    connections: 64,
    connections_of_a_client: 48,
};
/// Requests in flight are given so long when the program ends.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// The last push is given so long.
const LAST_PUSH: Duration = Duration::from_secs(5);

/// The watched folder and the readers of its metrics.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder in which jobs have theirs.
    pub folder: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// How long a job is reported after its end.
    pub keep: Duration,
    /// The forecasts of the jobs.
    pub forecast: Option<Forecast>,
    /// Where metrics are sent as well.
    pub otlp: Option<Otlp>,
}

/// Events, for a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It answers at this address.
    Listening(SocketAddr),
    /// Metrics could not be sent; reported once until they can.
    NotSent(&'a OtlpError),
    /// They can be sent again.
    SentAgain,
}

/// Where events go.
pub type Events = Box<dyn Fn(Event<'_>) + Send + Sync>;

/// The last reading.
#[derive(Debug, Default)]
struct Last {
    exposition: RwLock<Arc<Exposition>>,
    /// Where metrics are sent: how often they were.
    pushes: Option<Pushes>,
}

impl Last {
    fn set(&self, exposition: Exposition) {
        let mut last = self
            .exposition
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *last = Arc::new(exposition);
    }

    fn get(&self) -> Arc<Exposition> {
        let last = self.exposition.read();
        Arc::clone(&last.unwrap_or_else(PoisonError::into_inner))
    }

    /// The reported data: the last reading, and how often it was sent.
    fn to_exposition(&self) -> Exposition {
        let mut told = Exposition::clone(&self.get());
        if let Some(pushes) = &self.pushes {
            pushes.tell(&mut told);
        }
        told
    }
}

/// Sends what was read last, again and again; ends only with the program.
async fn push_on(otlp: &Otlp, last: &Last, events: &Events) {
    let mut has_failed = false;
    loop {
        tokio::time::sleep(otlp.interval).await;
        let pushed = otlp.push(&last.to_exposition()).await;
        if let Some(pushes) = &last.pushes {
            pushes.count(pushed.is_ok());
        }
        match &pushed {
            Err(error) if !has_failed => events(Event::NotSent(error)),
            Ok(()) if has_failed => events(Event::SentAgain),
            _ => {}
        }
        has_failed = pushed.is_err();
    }
}

/// Serves until `end` comes. The last reading is then sent once more.
pub async fn serve(
    settings: Settings,
    events: Events,
    end: impl Future<Output = ()>,
) -> io::Result<()> {
    let otlp = settings.otlp;
    let last = Arc::new(Last {
        pushes: otlp.is_some().then(Pushes::default),
        ..Last::default()
    });
    let mut folder = Folder::new(settings.folder, settings.keep);
    let forecast = settings.forecast;
    let told = Arc::clone(&last);
    let look = move || {
        let seen = folder.read_new(Instant::now());
        let mut exposition = Exposition::default();
        of_jobs(&mut exposition, &seen, forecast.as_ref(), SystemTime::now());
        told.set(exposition);
    };
    let mut look = tokio::task::spawn_blocking(move || {
        let mut look = look;
        look();
        look
    })
    .await
    .map_err(io::Error::other)?;
    // It ends with the program.
    std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                look();
            }
        })?;
    let handle = Handle::new();
    let server = axum_server::bind(settings.listen).handle(handle.clone());
    let server = tonnage_http::limited(server, LIMITS);
    let metrics = |State(last): State<Arc<Last>>| async move {
        let text = last.to_exposition().to_text();
        ([(header::CONTENT_TYPE, METRICS_TYPE)], text)
    };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "alive\n" }))
        .with_state(Arc::clone(&last));
    let push = async {
        match &otlp {
            Some(otlp) => push_on(otlp, &last, &events).await,
            None => std::future::pending().await,
        }
    };
    let beside = async {
        let Some(address) = handle.listening().await else {
            return; // the server logs the reason
        };
        events(Event::Listening(address));
        tokio::select! {
            () = end => {}
            () = push => {}
        }
        if let Some(otlp) = &otlp {
            let _ = tokio::time::timeout(LAST_PUSH, otlp.push(&last.to_exposition())).await;
        }
        handle.graceful_shutdown(Some(LAST_REQUESTS));
    };
    let (served, ()) = tokio::join!(server.serve(router.into_make_service()), beside);
    served
}
