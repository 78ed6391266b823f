// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be done next, from what is in the cluster now; pure.
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

/// After a Job has ended, its pod is waited for so long: the two are told by different watches.
const LAST_WORDS: u64 = 15;
/// A Job ends itself; so long after it should have, it is given up.
const OVERDUE: u64 = 60;

/// A name within a namespace.
pub type Name = (String, String);

/// What an administrator has set.
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
    /// Seconds after which what failed is tried again, if a pod asks for it.
    pub retry_after: u64,
}

/// What is in the cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Pods that are not placed yet, as they are written.
    pub pods: BTreeMap<Name, Value>,
    /// What claims are made from.
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
    /// Deletes a forecast that nobody waits for.
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
    let mut waiting: BTreeMap<Name, (&Value, String)> = BTreeMap::new();
    let gpus: BTreeSet<&String> = state.gpus.iter().chain(&settings.gpus).collect();
    for (name, raw) in &state.pods {
        let Ok(pod) = serde_json::from_value::<Pod>(raw.clone()) else {
            continue;
        };
        if !is_held(&pod) {
            continue;
        }
        let Some(wanted) = wanted(&pod, &name.0, state, settings) else {
            // What its claim is made from is not there yet: it could not be placed anyway.
            continue;
        };
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
                waiting
                    .entry(at)
                    .or_insert_with(|| (raw, job.container.clone()));
            }
        }
        let created = pod.metadata.creation_timestamp.as_deref().and_then(read);
        let is_late =
            created.is_some_and(|created| now >= created.saturating_add(settings.patience));
        if is_open || is_late {
            steps.extend(open(name, raw, &used));
        }
    }
    let mut running = state
        .jobs
        .values()
        .filter(|job| job.ended().is_none())
        .count();
    for (name, forecast) in &state.forecasts {
        if !forecast.is_finished() {
            go_on(
                name,
                forecast,
                waiting.get(name),
                &mut running,
                state,
                settings,
                now,
                &mut steps,
            );
        }
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
            // The webhook says in the claim why.
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

/// What is to be done for a forecast that is not there yet.
#[expect(
    clippy::too_many_arguments,
    reason = "one look at a forecast, split from the loop for reading only"
)]
fn go_on(
    name: &Name,
    forecast: &ForecastObject,
    wanted: Option<&(&Value, String)>,
    running: &mut usize,
    state: &State,
    settings: &Settings,
    now: u64,
    steps: &mut Vec<Step>,
) {
    let at = (name.0.clone(), forecast.job_name());
    let attempt = forecast.status.attempt;
    let fail = |reason: &str| {
        let status = ForecastStatus::failed(reason, attempt, now);
        set_status(name, forecast, &status)
    };
    let ended = state.ended.get(&at);
    let said = ended.and_then(|all| all.values().find(|one| !one.message.is_empty()));
    if let Some(one) = said {
        let status = ForecastStatus::of_message(&one.message, &forecast.spec, attempt, now);
        steps.push(set_status(name, forecast, &status));
        return;
    }
    let Some(job) = state.jobs.get(&at) else {
        match wanted {
            Some((pod, container)) if *running < settings.parallel => {
                *running += 1;
                match dry_run::job(pod, container, forecast, &settings.dry_runs) {
                    Some(object) => steps.push(Step::CreateJob {
                        forecast: name.clone(),
                        object,
                    }),
                    None => steps.push(fail("the pod has no such container")),
                }
            }
            Some(_) => {}
            None => steps.push(Step::DeleteForecast(name.clone())),
        }
        return;
    };
    if let Some(condition) = job.ended() {
        let since = condition.last_transition_time.as_deref().and_then(read);
        if since.is_none_or(|since| now >= since.saturating_add(LAST_WORDS)) {
            let last = ended.and_then(|all| all.values().last());
            steps.push(fail(&why(
                last,
                &condition.reason,
                &condition.message,
                settings,
            )));
        }
        return;
    }
    let created = job.metadata.creation_timestamp.as_deref().and_then(read);
    let limit = settings.dry_runs.seconds.saturating_add(OVERDUE);
    if created.is_some_and(|created| now >= created.saturating_add(limit)) {
        steps.push(fail(&too_long(settings)));
        steps.push(Step::DeleteJob(at));
    } else if forecast.status.phase == Phase::Pending {
        let status = ForecastStatus {
            phase: Phase::Running,
            ..forecast.status.clone()
        };
        steps.push(set_status(name, forecast, &status));
    }
}

fn too_long(settings: &Settings) -> String {
    let seconds = settings.dry_runs.seconds;
    format!("the dry run was ended after {seconds} seconds")
}

/// Why a Job that has ended gave no forecast.
fn why(last: Option<&Terminated>, reason: &str, message: &str, settings: &Settings) -> String {
    match last {
        _ if reason == "DeadlineExceeded" => too_long(settings),
        Some(one) if one.reason == "OOMKilled" => format!(
            "the dry run needs more host memory than the {} that it may have",
            settings.dry_runs.memory
        ),
        Some(one) if one.exit_code != 0 => {
            format!(
                "the dry run ended with exit {} and said nothing",
                one.exit_code
            )
        }
        _ => format!("the dry run said nothing: {reason} {message}"),
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

/// Takes the gate away, and names the forecasts that are known: whoever answers for the claim looks for them.
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
