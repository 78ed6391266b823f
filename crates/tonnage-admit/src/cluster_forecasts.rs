// SPDX-License-Identifier: MIT OR Apache-2.0
//! The forecasts that the controller has made, of each namespace, kept up to date.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::client::{Client, ClientError, Seen, escaped};
use crate::controller::objects::{ForecastObject, Phase, forecasts_of};
use crate::controller::run::{ALL_FORECASTS, now};
use crate::forecasts::Forecasts;
use crate::job::Job;

/// The forecasts of a cluster.
#[derive(Debug)]
pub struct ClusterForecasts {
    namespaces: RwLock<BTreeMap<String, Namespace>>,
    is_known: AtomicBool,
    /// Seconds after which what failed is tried again.
    retry_after: u64,
}

/// The forecasts of a namespace: users who may start jobs there are trusted for no other.
#[derive(Debug, Default)]
struct Namespace {
    objects: BTreeMap<String, ForecastObject>,
    forecasts: Arc<Forecasts>,
}

impl Namespace {
    fn refresh(&mut self) {
        let ready = self.objects.values().filter_map(ForecastObject::forecast);
        let mut forecasts = Forecasts::from_list(ready);
        for one in self.objects.values() {
            if let (Phase::Failed, Some(reason)) = (one.status.phase, &one.status.message) {
                forecasts.fail(&one.spec.key(), reason);
            }
        }
        self.forecasts = Arc::new(forecasts);
    }
}

impl ClusterForecasts {
    /// None yet; what failed is tried again after so many seconds.
    pub fn new(retry_after: u64) -> Self {
        Self {
            namespaces: RwLock::default(),
            is_known: AtomicBool::new(false),
            retry_after,
        }
    }

    /// Whether all were listed once.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Namespace>> {
        let lock = self.namespaces.read();
        lock.unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Namespace>> {
        let lock = self.namespaces.write();
        lock.unwrap_or_else(PoisonError::into_inner)
    }

    /// The ready forecasts of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Arc<Forecasts> {
        let namespaces = self.read();
        let found = namespaces.get(namespace);
        found.map_or_else(Arc::default, |one| Arc::clone(&one.forecasts))
    }

    /// Whether nothing has to be found out about a job on this GPU: its forecast failed a short while ago.
    pub fn has_failed(&self, namespace: &str, job: &Job, gpu: &str) -> bool {
        let namespaces = self.read();
        let objects = namespaces.get(namespace).map(|one| &one.objects);
        let now = now();
        objects.into_iter().flatten().any(|(_, one)| {
            let key = one.spec.key();
            key.gpu == gpu
                && key.is_same_job(&job.key)
                && one.status.phase == Phase::Failed
                && !one.is_due(self.retry_after, now)
        })
    }

    /// Takes these in place of all others.
    pub fn set(&self, all: Vec<ForecastObject>) {
        let mut namespaces: BTreeMap<String, Namespace> = BTreeMap::new();
        for one in all {
            if let (Some(namespace), Some(name)) = (&one.metadata.namespace, &one.metadata.name) {
                let of = namespaces.entry(namespace.clone()).or_default();
                of.objects.insert(name.clone(), one);
            }
        }
        for one in namespaces.values_mut() {
            one.refresh();
        }
        *self.write() = namespaces;
        self.is_known.store(true, Ordering::Release);
    }

    fn change(&self, object: ForecastObject, is_there: bool) {
        let metadata = &object.metadata;
        let (Some(namespace), Some(name)) = (metadata.namespace.clone(), metadata.name.clone())
        else {
            return;
        };
        let mut namespaces = self.write();
        let of = namespaces.entry(namespace).or_default();
        if is_there {
            of.objects.insert(name, object);
        } else {
            of.objects.remove(&name);
        }
        of.refresh();
    }

    /// Asks for forecasts that are newer than the watch. A claim is written once, so the number has to be there when
    /// the pod goes on.
    pub async fn catch_up(
        &self,
        client: &Client,
        namespace: &str,
        names: &[String],
    ) -> Result<(), ClientError> {
        for name in names {
            let is_finished = {
                let namespaces = self.read();
                let of = namespaces.get(namespace);
                of.and_then(|of| of.objects.get(name))
                    .is_some_and(ForecastObject::is_finished)
            };
            if is_finished {
                continue;
            }
            let path = format!("{}/{}", forecasts_of(namespace), escaped(name));
            match client.get::<ForecastObject>(&path).await {
                Ok(object) => self.change(object, true),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Keeps forecasts as they are in the cluster; ends only with the program. Errors are passed to `failed`.
pub async fn follow_forecasts(
    client: Client,
    forecasts: Arc<ClusterForecasts>,
    failed: impl Fn(&ClientError),
) {
    client
        .follow(
            &ALL_FORECASTS,
            |seen: Seen<'_, ForecastObject>| match seen {
                Seen::All(all) => forecasts.set(all),
                Seen::One(one) => forecasts.change(one, true),
                Seen::Gone(one) => forecasts.change(one, false),
                Seen::Failed(error) => failed(error),
            },
        )
        .await;
}
