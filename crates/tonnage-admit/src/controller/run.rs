// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches the cluster, and does what is to be done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;
use tonnage_gpus::Catalogue;

use super::dry_run::{CONTAINER, LABEL};
use super::objects::{FORECASTS, ForecastObject, ForecastStatus, Job, JobPod, forecasts_of};
use super::plan::{HeldPod, Name, Settings, State, Step, steps};
use crate::client::{Change, Client, ClientError, List, Seen, escaped};
use crate::cluster::SLICES;
use crate::devices::Devices;
use crate::objects::{Metadata, Pod, ResourceClaimTemplate, ResourceSlice};

/// Changes are gathered for so long; without one, it is looked so often, because times pass.
const GATHER: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(2);

/// Pods that have no node.
const UNPLACED: List = List {
    path: "/api/v1/pods",
    fields: "spec.nodeName=,status.phase=Pending",
    labels: "",
};
const TEMPLATES: List = List {
    path: "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    fields: "",
    labels: "",
};
/// Forecasts of the cluster.
pub(crate) const ALL_FORECASTS: List = List {
    path: FORECASTS,
    fields: "",
    labels: "",
};
const JOBS: List = List {
    path: "/apis/batch/v1/jobs",
    fields: "",
    labels: LABEL,
};
const JOB_PODS: List = List {
    path: "/api/v1/pods",
    fields: "",
    labels: LABEL,
};

/// Events, for a log.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It holds the Lease now, or no longer.
    Leads(bool),
    /// A step was done.
    Done(&'a Step),
    /// A step could not be done; it is tried again.
    Failed(&'a Step, &'a ClientError),
    /// The cluster could not be watched; it is tried again.
    Watch(&'a ClientError),
}

/// The controller.
pub struct Controller {
    client: Client,
    settings: Settings,
    state: Mutex<State>,
    changed: Notify,
    /// Lists that were read once.
    known: Mutex<BTreeSet<&'static str>>,
    holds: Arc<AtomicBool>,
    events: Box<dyn Fn(Event<'_>) + Send + Sync>,
}

impl Controller {
    /// A controller that works whenever `holds` is set.
    pub fn new(
        client: Client,
        settings: Settings,
        holds: Arc<AtomicBool>,
        events: Box<dyn Fn(Event<'_>) + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            settings,
            state: Mutex::default(),
            changed: Notify::new(),
            known: Mutex::default(),
            holds,
            events,
        })
    }

    /// Tells what happened.
    pub fn tell(&self, event: Event<'_>) {
        (self.events)(event);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_known(&self, what: &'static str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(what);
    }

    /// How many of the six lists were read.
    fn is_complete(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.len() == 6
    }

    /// Keeps the objects of a list in the state: `kept` has what is kept of one.
    async fn follow<T: DeserializeOwned, K>(
        &self,
        what: &'static str,
        list: &List,
        kept: impl Fn(T) -> (Option<Name>, Option<K>),
        entries: impl Fn(&mut State) -> &mut BTreeMap<Name, K>,
    ) {
        self.client
            .follow(list, |seen: Seen<'_, T>| {
                match seen {
                    Seen::All(all) => {
                        let all = all.into_iter().map(&kept);
                        let all = all.filter_map(|(name, one)| name.zip(one)).collect();
                        *entries(&mut self.state()) = all;
                        self.is_known(what);
                    }
                    Seen::One(one) => match kept(one) {
                        (Some(name), Some(one)) => {
                            entries(&mut self.state()).insert(name, one);
                        }
                        (Some(name), None) => {
                            entries(&mut self.state()).remove(&name);
                        }
                        (None, _) => {}
                    },
                    Seen::Gone(one) => {
                        if let (Some(name), _) = kept(one) {
                            entries(&mut self.state()).remove(&name);
                        }
                    }
                    Seen::Failed(error) => self.tell(Event::Watch(error)),
                }
                self.changed.notify_one();
            })
            .await;
    }

    async fn follow_gpus(&self) {
        let catalogue = Catalogue::embedded();
        let mut devices = Devices::default();
        self.client
            .follow(&SLICES, |seen: Seen<'_, ResourceSlice>| {
                match seen {
                    Seen::All(all) => {
                        devices = Devices::default();
                        for slice in &all {
                            devices.replace_slice(slice, &self.settings.driver);
                        }
                        self.is_known("slices");
                    }
                    Seen::One(slice) => devices.replace_slice(&slice, &self.settings.driver),
                    Seen::Gone(slice) => devices.remove(&slice.metadata.name.unwrap_or_default()),
                    Seen::Failed(error) => return self.tell(Event::Watch(error)),
                }
                self.state().gpus = devices.in_catalogue(&catalogue);
                self.changed.notify_one();
            })
            .await;
    }

    /// Works until the program ends.
    pub async fn run(self: Arc<Self>) {
        let pods = self.follow(
            "pods",
            &UNPLACED,
            |raw: Value| match serde_json::from_value::<Pod>(raw.clone()) {
                Ok(pod) => (name_of(&pod.metadata), HeldPod::new(pod, raw)),
                Err(_) => (None, None),
            },
            |state| &mut state.pods,
        );
        let templates = self.follow(
            "templates",
            &TEMPLATES,
            |one: ResourceClaimTemplate| (name_of(&one.metadata), Some(one)),
            |state| &mut state.templates,
        );
        let forecasts = self.follow(
            "forecasts",
            &ALL_FORECASTS,
            |one: ForecastObject| (name_of(&one.metadata), Some(one)),
            |state| &mut state.forecasts,
        );
        let jobs = self.follow(
            "jobs",
            &JOBS,
            |one: Job| (name_of(&one.metadata), Some(one)),
            |state| &mut state.jobs,
        );
        tokio::join!(
            pods,
            templates,
            forecasts,
            jobs,
            self.follow_results(),
            self.follow_gpus(),
            self.work()
        );
    }

    async fn follow_results(&self) {
        self.client
            .follow(&JOB_PODS, |seen: Seen<'_, JobPod>| {
                match seen {
                    Seen::All(all) => {
                        let mut state = self.state();
                        state.ended.clear();
                        for pod in &all {
                            take_result(&mut state, pod);
                        }
                        drop(state);
                        self.is_known("results");
                    }
                    Seen::One(pod) => take_result(&mut self.state(), &pod),
                    // Its message stays valid when it is gone.
                    Seen::Gone(_) => {}
                    Seen::Failed(error) => self.tell(Event::Watch(error)),
                }
                self.changed.notify_one();
            })
            .await;
    }

    async fn work(&self) {
        let mut led = false;
        loop {
            let _ = tokio::time::timeout(LOOK, self.changed.notified()).await;
            tokio::time::sleep(GATHER).await;
            let leads = self.holds.load(Ordering::Acquire);
            if leads != led {
                self.tell(Event::Leads(leads));
                led = leads;
            }
            if !leads || !self.is_complete() {
                continue;
            }
            let now = now();
            let next = {
                let mut state = self.state();
                let state = &mut *state;
                // A message is discarded with its Job.
                state.ended.retain(|name, _| state.jobs.contains_key(name));
                steps(state, &self.settings, now)
            };
            for step in &next {
                if !self.holds.load(Ordering::Acquire) {
                    break;
                }
                self.try_to(step, now).await;
            }
        }
    }

    async fn try_to(&self, step: &Step, now: u64) {
        match self.execute(step).await {
            Ok(()) => self.tell(Event::Done(step)),
            // Somebody was faster, or it has gone: the next look shows what is left to do.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => {
                self.tell(Event::Failed(step, &error));
                // A Job that the cluster refuses is refused the next time, too: quota, or a policy of the namespace.
                if let (Step::CreateJob { forecast, .. }, Some(reason)) = (step, error.refusal()) {
                    let reason = format!("the cluster refuses the dry run: {reason}");
                    let object = self.state().forecasts.get(forecast).map(|one| {
                        let status = ForecastStatus::failed(&reason, one.status.attempt, now);
                        one.with_status(&status)
                    });
                    if let Some(object) = object {
                        let name = forecast.clone();
                        let _ = self.execute(&Step::SetStatus { name, object }).await;
                    }
                }
            }
        }
    }

    async fn execute(&self, step: &Step) -> Result<(), ClientError> {
        let jobs = |namespace: &str| {
            let namespace = escaped(namespace);
            format!("/apis/batch/v1/namespaces/{namespace}/jobs")
        };
        let (path, change) = match step {
            Step::CreateForecast { namespace, object } => {
                (forecasts_of(namespace), Change::Create(object.clone()))
            }
            Step::SetStatus { name, object } => (
                format!("{}/{}/status", forecasts_of(&name.0), escaped(&name.1)),
                Change::Replace(object.clone()),
            ),
            Step::DeleteForecast(name) => (
                format!("{}/{}", forecasts_of(&name.0), escaped(&name.1)),
                Change::Delete,
            ),
            Step::CreateJob { forecast, object } => {
                (jobs(&forecast.0), Change::Create(object.clone()))
            }
            Step::DeleteJob(name) => (
                format!("{}/{}", jobs(&name.0), escaped(&name.1)),
                Change::Delete,
            ),
            Step::OpenGate { pod, patch } => (
                format!(
                    "/api/v1/namespaces/{}/pods/{}",
                    escaped(&pod.0),
                    escaped(&pod.1)
                ),
                Change::Patch(patch.clone()),
            ),
        };
        let changed = self.client.change(&path, &change).await?;
        // An accepted change is not repeated before the watch shows it.
        self.remember(step, changed);
        Ok(())
    }

    fn remember(&self, step: &Step, object: Value) {
        let mut state = self.state();
        match step {
            Step::CreateForecast { .. } | Step::SetStatus { .. } => {
                if let Ok(one) = serde_json::from_value::<ForecastObject>(object)
                    && let Some(name) = name_of(&one.metadata)
                {
                    state.forecasts.insert(name, one);
                }
            }
            Step::CreateJob { .. } => {
                if let Ok(one) = serde_json::from_value::<Job>(object)
                    && let Some(name) = name_of(&one.metadata)
                {
                    state.jobs.insert(name, one);
                }
            }
            Step::OpenGate { pod, .. } => {
                state.pods.remove(pod);
            }
            Step::DeleteForecast(name) => {
                state.forecasts.remove(name);
            }
            Step::DeleteJob(name) => {
                state.jobs.remove(name);
            }
        }
    }
}

fn name_of(metadata: &Metadata) -> Option<Name> {
    Some((metadata.namespace.clone()?, metadata.name.clone()?))
}

/// Remembers how a pod of a Job has ended, by the Job that owns it.
fn take_result(state: &mut State, pod: &JobPod) {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut jobs = owners.filter(|one| one.kind == "Job" && one.api_version == "batch/v1");
    let Some(job) = jobs.next() else {
        return;
    };
    let Some((namespace, name)) = name_of(&pod.metadata) else {
        return;
    };
    let mut containers = pod.status.container_statuses.iter();
    let container = containers.find(|one| one.name == CONTAINER);
    if let Some(mut ended) = container.and_then(|one| one.state.terminated.clone()) {
        ended.job.clone_from(&job.uid);
        let all = state
            .ended
            .entry((namespace, job.name.clone()))
            .or_default();
        all.insert(name, ended);
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.map(|passed| passed.as_secs()).unwrap_or_default()
}
