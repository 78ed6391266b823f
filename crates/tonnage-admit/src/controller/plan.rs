// SPDX-License-Identifier: MIT OR Apache-2.0
//! The next steps, from the present state of the cluster; pure.
//!
//! Everything that the controller knows lies in the cluster, and every step has a fixed name or is done only to the
//! version that was seen. So it may end between any two steps, or be there twice: the next look finds what is left to do.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tonnage_forecast::JobKey;
use tonnage_forecast::admit::Asked;

use super::dry_run::{self, DryRuns};
use super::objects::Terminated;
use super::objects::{API_VERSION, ForecastObject, ForecastSpec, ForecastStatus, Job, Phase, read};
use crate::claim;
use crate::job::{FORECASTS, GATE, is_held, jobs};
use crate::objects::{Pod, ResourceClaimTemplate};

/// The time to wait for the pod of an ended Job: different watches report the two.
const LAST_WORDS: u64 = 15;
/// A Job ends itself; so long after it should have, it is given up.
const OVERDUE: u64 = 60;

/// A name within a namespace.
pub type Name = (String, String);

/// The administrator's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The driver of the GPUs.
    pub driver: String,
    /// Their device classes.
    pub classes: Vec<String>,
    /// GPUs for which forecasts are made in any case, beside those that the cluster has.
    pub gpus: BTreeSet<String>,
    /// The dry runs.
    pub dry_runs: DryRuns,
    /// Dry runs at a time.
    pub parallel: usize,
    /// Seconds after which a pod goes on without a forecast.
    pub patience: u64,
    /// Seconds after which a failed dry run is repeated, if a pod needs it.
    pub retry_after: u64,
}

/// The state of the cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Pods that wait for a forecast.
    pub pods: BTreeMap<Name, HeldPod>,
    /// The templates of claims.
    pub templates: BTreeMap<Name, ResourceClaimTemplate>,
    /// Forecasts.
    pub forecasts: BTreeMap<Name, ForecastObject>,
    /// Jobs of dry runs.
    pub jobs: BTreeMap<Name, Job>,
    /// How the containers of dry runs have ended, by the names of their Jobs.
    pub ended: BTreeMap<Name, BTreeMap<String, Terminated>>,
    /// The GPUs, as the catalogue names them.
    pub gpus: BTreeSet<String>,
}

/// A pod that waits for a forecast.
#[derive(Clone, Debug)]
pub struct HeldPod {
    pod: Pod,
    /// As it is written: a dry run takes over what is not read here.
    raw: Value,
}

impl HeldPod {
    /// A pod and how it is written; `None` if it does not wait.
    pub fn new(pod: Pod, raw: Value) -> Option<Self> {
        is_held(&pod).then_some(Self { pod, raw })
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Creates a forecast.
    CreateForecast {
        /// Where.
        namespace: String,
        /// The object.
        object: Value,
    },
    /// Says how far a forecast is.
    SetStatus {
        /// Which.
        name: Name,
        /// The object.
        object: Value,
    },
    /// Deletes a forecast that no pod waits for.
    DeleteForecast(Name),
    /// Starts a dry run.
    CreateJob {
        /// The forecast that it is for.
        forecast: Name,
        /// The object.
        object: Value,
    },
    /// Ends one.
    DeleteJob(Name),
    /// Lets a pod go on.
    OpenGate {
        /// Which.
        pod: Name,
        /// The change of it.
        patch: Value,
    },
}

/// A job of a pod that waits.
struct Wanted {
    key: JobKey,
    container: String,
    gpus: u32,
}

/// The steps that are to be done now.
pub fn steps(state: &State, settings: &Settings, now: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    // For which forecasts pods wait, and which container shows how it is run.
    let mut waiting: BTreeMap<Name, Waiting<'_>> = BTreeMap::new();
    let gpus: BTreeSet<&String> = state.gpus.iter().chain(&settings.gpus).collect();
    for (name, HeldPod { pod, raw }) in &state.pods {
        let Some(wanted) = wanted(pod, &name.0, state, settings) else {
            // The template of its claim does not exist yet: it could not be placed anyway.
            continue;
        };
        let created = pod.metadata.creation_timestamp.as_deref().and_then(read);
        let mut used = Vec::new();
        // Without a GPU nothing is known of the job; one may come.
        let mut is_open = !gpus.is_empty() || wanted.is_empty();
        for job in &wanted {
            for gpu in &gpus {
                let spec = ForecastSpec::new(&job.key, gpu, job.gpus);
                let at = (name.0.clone(), spec.name());
                match state.forecasts.get(&at) {
                    Some(one) if one.is_finished() && !one.is_due(settings.retry_after, now) => {
                        used.push(at.1);
                        continue;
                    }
                    Some(one) if one.is_finished() && !waiting.contains_key(&at) => {
                        let again = ForecastStatus {
                            attempt: one.status.attempt.saturating_add(1),
                            ..ForecastStatus::default()
                        };
                        steps.push(set_status(&at, one, &again));
                    }
                    Some(_) => {}
                    None if waiting.contains_key(&at) => {}
                    None => steps.push(Step::CreateForecast {
                        namespace: name.0.clone(),
                        object: new_forecast(&at, &spec),
                    }),
                }
                is_open = false;
                let one = waiting.entry(at).or_insert_with(|| Waiting {
                    pod: raw,
                    container: job.container.clone(),
                    since: created,
                });
                one.since = one.since.min(created);
            }
        }
        let is_late =
            created.is_some_and(|created| now >= created.saturating_add(settings.patience));
        if is_open || is_late {
            steps.extend(open(name, raw, &used));
        }
    }
    let mut ready = Vec::new();
    for (name, forecast) in &state.forecasts {
        if forecast.is_finished() {
            continue;
        }
        let attempt = Attempt {
            name,
            forecast,
            settings,
            now,
        };
        let at = (name.0.clone(), forecast.job_name());
        let job = state.jobs.get(&at);
        let uid = job.and_then(|job| job.metadata.uid.as_deref());
        // The words of a pod that only bears the name of the Job do not count.
        let ended = state.ended.get(&at).into_iter().flat_map(BTreeMap::values);
        let mut ended = ended.filter(|one| uid.is_none_or(|uid| one.job == uid));
        let said = ended.clone().find(|one| !one.message.is_empty());
        match (said, job, waiting.get(name)) {
            (Some(said), _, _) => steps.push(attempt.take(&said.message)),
            (None, Some(job), _) => steps.extend(attempt.watch(job, ended.next_back())),
            (None, None, Some(waiting)) => ready.push((attempt, waiting)),
            (None, None, None) => steps.push(Step::DeleteForecast(name.clone())),
        }
    }
    steps.extend(start_in_turn(ready, state, settings.parallel));
    steps
}

/// A pod that waits for a forecast, and shows how its container is run.
struct Waiting<'a> {
    pod: &'a Value,
    container: String,
    /// When the first pod that waits was created.
    since: Option<u64>,
}

/// Starts dry runs while there is room: of the namespace that runs fewest, those for which a pod has waited longest.
fn start_in_turn(
    mut ready: Vec<(Attempt<'_>, &Waiting<'_>)>,
    state: &State,
    parallel: usize,
) -> Vec<Step> {
    let mut running: BTreeMap<&str, usize> = BTreeMap::new();
    for ((namespace, _), job) in &state.jobs {
        *running.entry(namespace).or_default() += usize::from(job.ended().is_none());
    }
    let mut all: usize = running.values().sum();
    ready.sort_by_key(|(attempt, waiting)| (waiting.since, attempt.name));
    let mut steps = Vec::new();
    while all < parallel && !ready.is_empty() {
        let namespaces = ready.iter().map(|(attempt, _)| attempt.name.0.as_str());
        let count = |namespace| running.get(namespace).copied().unwrap_or(0);
        // The first of equal ones: it has waited longest.
        let Some((next, namespace)) = namespaces.enumerate().min_by_key(|(_, one)| count(*one))
        else {
            break;
        };
        *running.entry(namespace).or_default() += 1;
        all += 1;
        let (attempt, waiting) = ready.remove(next);
        steps.push(attempt.start(waiting.pod, &waiting.container));
    }
    steps
}

/// The jobs of a pod that need a number; none if that is not known yet.
fn wanted(pod: &Pod, namespace: &str, state: &State, settings: &Settings) -> Option<Vec<Wanted>> {
    let jobs = jobs(pod);
    let mut wanted = Vec::new();
    let claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims);
    for claim in claims.flatten() {
        let Some(template) = &claim.resource_claim_template_name else {
            continue;
        };
        let template = state
            .templates
            .get(&(namespace.to_owned(), template.clone()))?;
        let Some(Ok(job)) = jobs.get(&claim.name) else {
            // The webhook writes the reason into the claim.
            continue;
        };
        let spec = &template.spec.spec;
        let Ok(requests) = claim::requests(spec, &settings.driver, &settings.classes) else {
            continue;
        };
        let empty = requests.iter().filter(|one| one.asked == Asked::Nothing);
        let gpus: u32 = empty
            .map(|one| one.count.unwrap_or(0))
            .fold(0, u32::saturating_add);
        if gpus > 0 {
            wanted.push(Wanted {
                key: job.key.clone(),
                container: job.container.clone(),
                gpus,
            });
        }
    }
    Some(wanted)
}

/// A forecast that is not there yet, and what is done for it.
struct Attempt<'a> {
    name: &'a Name,
    forecast: &'a ForecastObject,
    settings: &'a Settings,
    now: u64,
}

impl Attempt<'_> {
    fn set(&self, status: &ForecastStatus) -> Step {
        set_status(self.name, self.forecast, status)
    }

    fn fail(&self, reason: &str) -> Step {
        let attempt = self.forecast.status.attempt;
        self.set(&ForecastStatus::failed(reason, attempt, self.now))
    }

    /// Stores the message of the dry run.
    fn take(&self, message: &str) -> Step {
        let ForecastObject { spec, status, .. } = self.forecast;
        let attempt = status.attempt;
        self.set(&ForecastStatus::of_message(
            message, spec, attempt, self.now,
        ))
    }

    /// Starts the dry run of this container of a pod.
    fn start(&self, pod: &Value, container: &str) -> Step {
        match dry_run::job(pod, container, self.forecast, &self.settings.dry_runs) {
            Some(object) => Step::CreateJob {
                forecast: self.name.clone(),
                object,
            },
            None => self.fail("the pod has no such container"),
        }
    }

    /// Checks a dry run without a message; `last` is how its container ended.
    fn watch(&self, job: &Job, last: Option<&Terminated>) -> Vec<Step> {
        let status = &self.forecast.status;
        let has_passed = |since: Option<&str>, seconds: u64| {
            let since = since.and_then(read);
            since.map(|since| self.now >= since.saturating_add(seconds))
        };
        if let Some(condition) = job.ended() {
            // Without a time there is nothing to wait for.
            return match has_passed(condition.last_transition_time.as_deref(), LAST_WORDS) {
                Some(false) => Vec::new(),
                _ => vec![self.fail(&self.why(last, &condition.reason, &condition.message))],
            };
        }
        let limit = self.settings.dry_runs.seconds.saturating_add(OVERDUE);
        if has_passed(job.metadata.creation_timestamp.as_deref(), limit) == Some(true) {
            let at = (self.name.0.clone(), self.forecast.job_name());
            return vec![self.fail(&self.too_long()), Step::DeleteJob(at)];
        }
        if status.phase == Phase::Pending {
            return vec![self.set(&ForecastStatus {
                phase: Phase::Running,
                ..status.clone()
            })];
        }
        Vec::new()
    }

    fn too_long(&self) -> String {
        let seconds = self.settings.dry_runs.seconds;
        format!("the dry run was ended after {seconds} seconds")
    }

    /// Why a Job that has ended gave no forecast.
    fn why(&self, last: Option<&Terminated>, reason: &str, message: &str) -> String {
        match last {
            _ if reason == "DeadlineExceeded" => self.too_long(),
            Some(one) if one.reason == "OOMKilled" => format!(
                "the dry run needs more host memory than the {} that it may have",
                self.settings.dry_runs.memory
            ),
            Some(one) if one.exit_code != 0 => {
                format!(
                    "the dry run ended with exit {} and reported nothing",
                    one.exit_code
                )
            }
            _ => format!("the dry run reported nothing: {reason} {message}"),
        }
    }
}

fn set_status(name: &Name, forecast: &ForecastObject, status: &ForecastStatus) -> Step {
    Step::SetStatus {
        name: name.clone(),
        object: forecast.with_status(status),
    }
}

fn new_forecast(name: &Name, spec: &ForecastSpec) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Forecast",
        "metadata": { "name": name.1, "namespace": name.0 }, "spec": spec,
    })
}

/// Takes the gate away, and names the known forecasts: the webhook that answers for the claim looks for them.
fn open(name: &Name, pod: &Value, used: &[String]) -> Option<Step> {
    let gates = pod.pointer("/spec/schedulingGates")?.as_array()?;
    let at = gates.iter().position(|gate| gate["name"] == GATE)?;
    let version = pod.pointer("/metadata/resourceVersion")?;
    let mut patch = vec![json!({
        "op": "test", "path": "/metadata/resourceVersion", "value": version,
    })];
    if pod.pointer("/metadata/annotations").is_none() {
        patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": {} }));
    }
    let key = FORECASTS.replace('/', "~1");
    patch.push(json!({
        "op": "add", "path": format!("/metadata/annotations/{key}"), "value": used.join(","),
    }));
    patch.push(json!({ "op": "remove", "path": format!("/spec/schedulingGates/{at}") }));
    Some(Step::OpenGate {
        pod: name.clone(),
        patch: json!(patch),
    })
}
