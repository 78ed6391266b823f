// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller against a small model of the API server: ended between any two steps, there twice, and with an old
//! picture of the cluster, it comes to the same end.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use tonnage_admit::controller::dry_run::DryRuns;
use tonnage_admit::controller::objects::{ForecastObject, Phase, Terminated, written};
use tonnage_admit::controller::plan::{HeldPod, Name, Settings, State, Step, steps};

const GATE: &str = "tonnage.dev/forecast";
const START: u64 = 1_800_000_000;

fn settings() -> Settings {
    Settings {
        driver: "gpu.nvidia.com".to_owned(),
        classes: vec!["gpu.nvidia.com".to_owned()],
        gpus: BTreeSet::new(),
        dry_runs: DryRuns {
            image: "tonnage:1".to_owned(),
            seconds: 600,
            cpu: "1".to_owned(),
            memory: "2Gi".to_owned(),
            nodes: BTreeMap::new(),
        },
        parallel: 2,
        patience: 3600,
        retry_after: 1000,
    }
}

fn name(name: &str) -> Name {
    ("team".to_owned(), name.to_owned())
}

/// The API server, as far as the controller uses it.
struct Cluster {
    state: State,
    /// Every pod, as it is written.
    pods: BTreeMap<Name, Value>,
    version: u64,
    /// Every Job that was ever created.
    jobs_created: Vec<String>,
}

impl Cluster {
    fn new(pods: &[(&str, &str)]) -> Self {
        let mut cluster = Self {
            state: State {
                gpus: BTreeSet::from(["h100-80gb".to_owned(), "a100-80gb".to_owned()]),
                ..State::default()
            },
            pods: BTreeMap::new(),
            version: 1,
            jobs_created: Vec::new(),
        };
        let request = json!({ "name": "gpu", "exactly": { "deviceClassName": "gpu.nvidia.com" } });
        let template = json!({
            "metadata": { "name": "gpu", "namespace": "team" },
            "spec": { "spec": { "devices": { "requests": [request] } } },
        });
        let template = serde_json::from_value(template).unwrap();
        cluster.state.templates.insert(name("gpu"), template);
        for (pod, script) in pods {
            cluster.add_pod(pod, script);
        }
        cluster
    }

    /// With one kind of GPU, so that a job has one forecast.
    fn with_h100(pods: &[(&str, &str)]) -> Self {
        let mut cluster = Self::new(pods);
        cluster.state.gpus = BTreeSet::from(["h100-80gb".to_owned()]);
        cluster
    }

    fn add_pod(&mut self, pod: &str, script: &str) {
        self.add_pod_of("team", pod, script, START);
    }

    fn add_pod_of(&mut self, namespace: &str, pod: &str, script: &str, created: u64) {
        let raw = json!({
            "metadata": {
                "name": pod, "namespace": namespace, "uid": pod, "resourceVersion": "1",
                "creationTimestamp": written(created),
            },
            "spec": {
                "schedulingGates": [{ "name": "another" }, { "name": GATE }],
                "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "gpu" }],
                "containers": [{
                    "name": "job", "image": "train:1", "command": ["python", script],
                    "resources": { "claims": [{ "name": "gpu" }] },
                }],
            },
        });
        self.set_pod(&(namespace.to_owned(), pod.to_owned()), raw);
    }

    /// Writes a pod, which is then reported to the controller if it waits.
    fn set_pod(&mut self, name: &Name, raw: Value) {
        let pod = serde_json::from_value(raw.clone()).unwrap();
        match HeldPod::new(pod, raw.clone()) {
            Some(held) => self.state.pods.insert(name.clone(), held),
            None => self.state.pods.remove(name),
        };
        self.pods.insert(name.clone(), raw);
    }

    /// Looks and does what is to be done, so many times.
    fn work(&mut self, rounds: usize, now: u64) {
        for _ in 0..rounds {
            for step in steps(&self.state, &settings(), now) {
                self.execute(&step, now);
            }
        }
    }

    /// The first Job that there is.
    fn job(&self) -> Name {
        self.state.jobs.keys().next().unwrap().clone()
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// Does a step as the API server does: what is there already or has changed is left as it is.
    fn execute(&mut self, step: &Step, now: u64) {
        match step {
            Step::CreateForecast { namespace, object } => {
                let at = (namespace.clone(), text(object, "/metadata/name"));
                if !self.state.forecasts.contains_key(&at) {
                    let mut object = object.clone();
                    object["metadata"]["resourceVersion"] = json!(self.next_version());
                    object["metadata"]["uid"] = json!(at.1);
                    let object = serde_json::from_value(object).unwrap();
                    self.state.forecasts.insert(at, object);
                }
            }
            Step::SetStatus { name, object } => {
                let version = text(object, "/metadata/resourceVersion");
                let Some(current) = self.state.forecasts.get(name) else {
                    return;
                };
                if current.metadata.resource_version.as_deref() == Some(&version) {
                    let mut object = object.clone();
                    object["metadata"]["uid"] = json!(current.metadata.uid);
                    object["metadata"]["resourceVersion"] = json!(self.next_version());
                    let object: ForecastObject = serde_json::from_value(object).unwrap();
                    self.state.forecasts.insert(name.clone(), object);
                }
            }
            Step::DeleteForecast(name) => {
                self.state.forecasts.remove(name);
            }
            Step::CreateJob { forecast, object } => {
                let at = (forecast.0.clone(), text(object, "/metadata/name"));
                if !self.state.jobs.contains_key(&at) {
                    let mut object = object.clone();
                    object["metadata"]["creationTimestamp"] = json!(written(now));
                    self.jobs_created.push(at.1.clone());
                    let object = serde_json::from_value(object).unwrap();
                    self.state.jobs.insert(at, object);
                }
            }
            Step::DeleteJob(name) => {
                self.state.jobs.remove(name);
            }
            Step::OpenGate { pod, patch } => {
                let Some(mut current) = self.pods.get(pod).cloned() else {
                    return;
                };
                let changes = patch.as_array().unwrap();
                let version = current.pointer("/metadata/resourceVersion").cloned();
                if version.as_ref() != Some(&changes[0]["value"]) {
                    return;
                }
                for change in &changes[1..] {
                    apply(&mut current, change);
                }
                self.version += 1;
                current["metadata"]["resourceVersion"] = json!(self.version.to_string());
                self.set_pod(pod, current);
            }
        }
    }

    /// The Job of a forecast ends with these words.
    fn end_job(&mut self, job: &Name, message: &str) {
        let ended = Terminated {
            exit_code: 0,
            reason: "Completed".to_owned(),
            message: message.to_owned(),
            job: String::new(),
        };
        let all = self.state.ended.entry(job.clone()).or_default();
        all.insert("pod".to_owned(), ended);
    }

    fn waiting(&self) -> Vec<&Name> {
        let held = self.pods.iter().filter(|(_, pod)| {
            let gates = pod["spec"]["schedulingGates"].as_array().unwrap();
            gates.iter().any(|gate| gate["name"] == GATE)
        });
        held.map(|(name, _)| name).collect()
    }

    fn forecast(&self, part: &str) -> &ForecastObject {
        let mut all = self.state.forecasts.values();
        all.find(|one| one.spec.command.join(" ").contains(part))
            .unwrap()
    }
}

fn text(object: &Value, at: &str) -> String {
    object.pointer(at).unwrap().as_str().unwrap().to_owned()
}

/// JSON Patch, as far as it is used; the parent must be there.
fn apply(target: &mut Value, change: &Value) {
    let (parent, last) = change["path"].as_str().unwrap().rsplit_once('/').unwrap();
    let last = last.replace("~1", "/");
    let parent = target.pointer_mut(parent).expect("a parent");
    match (change["op"].as_str().unwrap(), parent) {
        ("add", Value::Object(map)) => {
            map.insert(last, change["value"].clone());
        }
        ("remove", Value::Array(list)) => {
            list.remove(last.parse().unwrap());
        }
        (op, _) => panic!("{op} is not used"),
    }
}

/// The message of a dry run about a job on a GPU.
fn render_message(gpu: &str) -> String {
    json!({
        "schema_version": 1,
        "forecast": {
            "torch": "2.15.0", "gpu": gpu, "gpu_memory": 85_017_493_504_u64, "fits": "yes",
            "roles": [{
                "name": "GPU 0", "gpus": 1, "peak": 1 << 30, "known": "exact", "uncounted": 0, "bound": 1 << 30,
                "least": null,
            }],
            "evidence": [{ "source": "dry_run", "what": "a dry run", "complete": true }],
            "larger_gpus": [], "unknown": [],
        },
    })
    .to_string()
}

/// Everything that is left to do, with a fresh picture each time; Jobs end as soon as they are there.
fn finish(cluster: &mut Cluster, now: u64) {
    for _ in 0..100 {
        let next = steps(&cluster.state, &settings(), now);
        for step in &next {
            cluster.execute(step, now);
        }
        let jobs: Vec<Name> = cluster.state.jobs.keys().cloned().collect();
        for job in &jobs {
            let gpu = if job.1.contains("h100") {
                "h100-80gb"
            } else {
                "a100-80gb"
            };
            cluster.end_job(job, &render_message(gpu));
            cluster.state.jobs.remove(job);
        }
        if next.is_empty() && jobs.is_empty() {
            return;
        }
    }
    panic!("it comes to no end");
}

proptest! {
    #[test]
    fn ended_at_any_step_and_there_twice_it_comes_to_the_same_end(
        // Which controller looks; how old its picture is; after how many steps it is ended; whether a Job ends then.
        rounds in prop::collection::vec((0..2_usize, any::<bool>(), 0..6_usize, any::<bool>()), 0..40),
    ) {
        let mut cluster = Cluster::new(&[("a", "one.py"), ("b", "one.py"), ("c", "two.py")]);
        let mut pictures = [cluster.state.clone(), cluster.state.clone()];
        for (who, is_fresh, count, ends) in rounds {
            if is_fresh {
                pictures[who] = cluster.state.clone();
            }
            let next = steps(&pictures[who], &settings(), START + 5);
            for step in next.iter().take(count) {
                if let Step::OpenGate { patch, .. } = step {
                    // No pod continues before the forecasts of both GPUs exist, and their names are reported.
                    let names = patch.as_array().unwrap().iter().find(|one| one["op"] == "add"
                        && one["value"].is_string()).unwrap()["value"].as_str().unwrap().to_owned();
                    prop_assert_eq!(names.split(',').count(), 2);
                    for one in names.split(',') {
                        prop_assert!(cluster.state.forecasts[&name(one)].is_finished());
                    }
                }
                cluster.execute(step, START + 5);
            }
            if ends && let Some(job) = cluster.state.jobs.keys().next().cloned() {
                let gpu = if job.1.contains("h100") { "h100-80gb" } else { "a100-80gb" };
                cluster.end_job(&job, &render_message(gpu));
            }
        }
        finish(&mut cluster, START + 10);
        prop_assert!(cluster.waiting().is_empty());
        prop_assert_eq!(cluster.state.forecasts.len(), 4);
        for one in cluster.state.forecasts.values() {
            prop_assert_eq!(one.status.phase, Phase::Ready);
            prop_assert_eq!(one.status.memory.as_deref(), Some("1024Mi"));
            prop_assert!(one.forecast().is_some());
        }
        // Other gates stay.
        for pod in cluster.pods.values() {
            prop_assert_eq!(&pod["spec"]["schedulingGates"], &json!([{ "name": "another" }]));
        }
    }
}

#[test]
fn so_many_dry_runs_at_a_time_and_no_more() {
    let mut cluster = Cluster::new(&[("a", "one.py"), ("b", "two.py")]);
    cluster.work(5, START);
    assert_eq!(cluster.state.forecasts.len(), 4);
    assert_eq!(cluster.jobs_created.len(), 2);
}

#[test]
fn a_dry_run_that_fails_opens_the_gate_and_is_tried_again_later() {
    let mut cluster = Cluster::with_h100(&[("a", "one.py")]);
    cluster.work(5, START);
    let job = cluster.job();
    cluster.end_job(
        &job,
        r#"{"schema_version":1,"no_forecast":"it failed with ImportError"}"#,
    );
    cluster.work(5, START + 20);
    let status = &cluster.forecast("one.py").status;
    assert_eq!(status.phase, Phase::Failed);
    assert_eq!(
        status.message.as_deref(),
        Some("it failed with ImportError")
    );
    assert!(cluster.waiting().is_empty());
    // A pod that comes soon after goes on at once; one that comes much later has it tried again.
    cluster.add_pod("b", "one.py");
    cluster.work(5, START + 100);
    assert!(cluster.waiting().is_empty());
    assert_eq!(cluster.jobs_created.len(), 1);
    cluster.add_pod("c", "one.py");
    cluster.work(5, START + 1100);
    assert_eq!(cluster.waiting().len(), 1);
    assert_eq!(cluster.jobs_created.len(), 2);
    assert_ne!(cluster.jobs_created[0], cluster.jobs_created[1]);
}

#[test]
fn what_gives_no_answer_is_said_and_a_pod_does_not_wait_for_ever() {
    let reason = |condition: Value, ended: Option<Terminated>| {
        let mut cluster = Cluster::with_h100(&[("a", "one.py")]);
        cluster.work(3, START);
        let job = cluster.job();
        let object = json!({
            "metadata": { "name": job.1, "namespace": job.0, "creationTimestamp": written(START) },
            "status": { "conditions": [condition] },
        });
        cluster
            .state
            .jobs
            .insert(job.clone(), serde_json::from_value(object).unwrap());
        if let Some(ended) = ended {
            cluster
                .state
                .ended
                .insert(job, BTreeMap::from([("pod".to_owned(), ended)]));
        }
        // Its pod may be reported after the Job.
        assert!(steps(&cluster.state, &settings(), START + 5).is_empty());
        cluster.work(1, START + 30);
        cluster.forecast("one.py").status.message.clone().unwrap()
    };
    let failed = |reason: &str| {
        json!({
            "type": "Failed", "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": written(START + 1),
        })
    };
    let killed = Terminated {
        exit_code: 137,
        reason: "OOMKilled".to_owned(),
        message: String::new(),
        job: String::new(),
    };
    assert_eq!(
        reason(failed("DeadlineExceeded"), None),
        "the dry run was ended after 600 seconds"
    );
    assert_eq!(
        reason(failed("BackoffLimitExceeded"), Some(killed)),
        "the dry run needs more host memory than the 2Gi that it may have"
    );
    // No GPU ever appeared: the pod continues after an hour, and the webhook reports its knowledge.
    let mut cluster = Cluster::new(&[("a", "one.py")]);
    cluster.state.gpus.clear();
    assert!(steps(&cluster.state, &settings(), START + 3599).is_empty());
    let next = steps(&cluster.state, &settings(), START + 3600);
    assert!(matches!(next.as_slice(), [Step::OpenGate { .. }]));
}

#[test]
fn what_somebody_else_wrote_is_no_forecast() {
    let mut cluster = Cluster::with_h100(&[("a", "one.py")]);
    for message in ["Killed", &render_message("t4"), "{}", &"x".repeat(5000)] {
        let mut cluster = Cluster::with_h100(&[("a", "one.py")]);
        cluster.work(3, START);
        let job = cluster.job();
        cluster.end_job(&job, message);
        cluster.work(1, START);
        let one = cluster.forecast("one.py");
        assert_eq!(one.status.phase, Phase::Failed);
        let said = one.status.message.as_deref().unwrap();
        assert!(said.contains("not a forecast"), "{said}");
    }
    // Nor is one whose object names another job.
    finish(&mut cluster, START);
    let mut forged = cluster.forecast("one.py").clone();
    assert!(forged.forecast().is_some());
    forged.spec.command.push("--larger".to_owned());
    assert!(forged.forecast().is_none());
}

#[test]
fn nobody_waits_any_more() {
    let mut cluster = Cluster::new(&[("a", "one.py")]);
    cluster.work(1, START);
    assert_eq!(cluster.state.forecasts.len(), 2);
    cluster.state.pods.clear();
    cluster.work(1, START);
    assert!(cluster.state.forecasts.is_empty());
}

#[test]
fn a_sweep_of_one_team_does_not_keep_others_waiting() {
    let mut cluster = Cluster::with_h100(&[]);
    let template = cluster.state.templates[&name("gpu")].clone();
    for namespace in ["alpha", "zulu"] {
        let at = (namespace.to_owned(), "gpu".to_owned());
        cluster.state.templates.insert(at, template.clone());
    }
    for number in 0..30_u64 {
        let (pod, script) = (format!("sweep-{number}"), format!("sweep_{number}.py"));
        cluster.add_pod_of("alpha", &pod, &script, START + number);
    }
    cluster.add_pod_of("zulu", "one", "one.py", START + 100);
    cluster.work(3, START + 200);
    let of = |namespace: &str| {
        cluster
            .state
            .jobs
            .keys()
            .filter(|at| at.0 == namespace)
            .count()
    };
    assert_eq!(of("zulu"), 1, "the other team waits behind the sweep");
    assert_eq!(of("alpha"), settings().parallel - 1);
}

#[test]
fn the_words_of_a_pod_that_only_names_a_job_do_not_count() {
    let mut cluster = Cluster::with_h100(&[("a", "one.py")]);
    cluster.work(3, START);
    let job = cluster.job();
    cluster.state.jobs.get_mut(&job).unwrap().metadata.uid = Some("the-job".to_owned());
    let mut words = Terminated {
        exit_code: 0,
        reason: "Completed".to_owned(),
        message: "nonsense".to_owned(),
        job: "another".to_owned(),
    };
    let mut tell = |words: &Terminated| {
        let all = BTreeMap::from([("pod".to_owned(), words.clone())]);
        cluster.state.ended.insert(job.clone(), all);
        steps(&cluster.state, &settings(), START + 1).len()
    };
    let forged = tell(&words);
    words.job = "the-job".to_owned();
    assert_eq!((forged, tell(&words)), (0, 1));
}
