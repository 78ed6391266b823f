// SPDX-License-Identifier: MIT OR Apache-2.0
//! The job of a pod: the words, the image and the settings by which a forecast is found.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tonnage_forecast::slurm::allocator_settings;
use tonnage_forecast::{ALLOCATOR_SETTINGS, JobKey, environment_digest};

use crate::objects::{Container, Pod, PodSpec};

/// The annotation of a pod that names the forecast to use.
pub const FORECAST: &str = "tonnage.dev/forecast";
/// The gate that keeps a pod from being placed until its forecast is there.
pub const GATE: &str = "tonnage.dev/forecast";
/// The annotation of a pod that does not want to wait: `disabled`.
pub const DRY_RUNS: &str = "tonnage.dev/dry-runs";
/// The annotation of a pod whose gate was opened: the forecasts of the cluster that were there then.
pub const FORECASTS: &str = "tonnage.dev/forecasts";
/// Larger commands are ignored; a pod of 1.5 MB may have one.
const MAX_WORDS: usize = 1000;
const MAX_TEXT: usize = 64 << 10;
/// A cluster has few kinds of GPUs.
const MAX_MADE: usize = 64;

/// The job of a pod's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The words, the image and the settings.
    pub key: JobKey,
    /// The name of the container.
    pub container: String,
    /// Whether it declares ranks in other pods.
    pub is_spread: bool,
    /// The forecast that the pod names.
    pub named: Option<String>,
    /// The forecasts of the cluster that were there when the pod's gate was opened.
    pub made: Vec<String>,
    /// Its unknown settings, in words.
    pub unknown: Option<&'static str>,
}

/// The jobs of a pod, by its names for the claims that they use; or, in words, why one is not known.
pub type Jobs = BTreeMap<String, Result<Job, String>>;

/// The stored part of a pod.
#[derive(Clone, Debug)]
pub struct PodJobs {
    /// Its jobs.
    pub jobs: Jobs,
    /// Whether it waits for a forecast.
    pub is_held: bool,
}

impl PodJobs {
    /// Reads this pod.
    pub fn from_pod(pod: &Pod) -> Self {
        Self {
            jobs: jobs(pod),
            is_held: is_held(pod),
        }
    }
}

/// The jobs of a pod; empty if it uses no claims.
pub fn jobs(pod: &Pod) -> Jobs {
    let Some(spec) = &pod.spec else {
        return Jobs::new();
    };
    let annotation = |name: &str| {
        let all = pod.metadata.annotations.as_ref();
        all.and_then(|all| all.get(name)).cloned()
    };
    let named = annotation(FORECAST);
    let made = annotation(FORECASTS).unwrap_or_default();
    let made: Vec<String> = made
        .split(',')
        .filter(|name| !name.is_empty())
        .take(MAX_MADE)
        .map(str::to_owned)
        .collect();
    let claims = spec.resource_claims.iter().flatten();
    claims
        .map(|claim| {
            let containers = spec
                .init_containers
                .iter()
                .flatten()
                .chain(&spec.containers);
            let using: Vec<&Container> = containers
                .filter(|container| uses(container, &claim.name))
                .collect();
            let job = match using.as_slice() {
                [] => Err("no container of the pod uses the claim".to_owned()),
                [container] => key(container).map(|key| Job {
                    key: JobKey {
                        environment: Some(environment(spec, container)),
                        ..key
                    },
                    container: container.name.clone(),
                    is_spread: is_spread(container),
                    named: named.clone(),
                    made: made.clone(),
                    unknown: unknown(container),
                }),
                several => Err(format!(
                    "{} containers of the pod share the claim",
                    several.len()
                )),
            };
            (claim.name.clone(), job)
        })
        .collect()
}

/// Whether a pod opts out of waiting for a dry run.
pub fn declines(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(DRY_RUNS))
        .is_some_and(|value| value == "disabled")
}

/// Whether a pod waits for a forecast.
pub fn is_held(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| &spec.scheduling_gates);
    gates.flatten().any(|gate| gate.name == GATE)
}

/// Variables that come from elsewhere are not read: the allocator may be set there.
fn unknown(container: &Container) -> Option<&'static str> {
    let has_others = container
        .env_from
        .as_ref()
        .is_some_and(|all| !all.is_empty());
    let mut variables = container.env.iter().flatten();
    let is_set = variables.any(|one| ALLOCATOR_SETTINGS.contains(&one.name.as_str()));
    (has_others && !is_set).then_some("whether its envFrom sets PyTorch's allocator is not known")
}

/// Where every container has the token of its account, under a name that is another for each pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The inputs of a container besides its words and its image: variables, volumes, and earlier containers. The content
/// of a ConfigMap or a disk is not inspected.
fn environment(spec: &PodSpec, container: &Container) -> String {
    let own = started_with(spec, container);
    let before: Vec<Value> = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|one| one.name != container.name)
        .map(|one| {
            let words = (&one.image, &one.command, &one.args);
            json!([words, started_with(spec, one)])
        })
        .collect();
    environment_digest(&(own, before))
}

/// The same of one container.
fn started_with(spec: &PodSpec, container: &Container) -> Value {
    let text = |value: &Value, field: &str| {
        let text = value.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let mounts: Vec<&Value> = container
        .volume_mounts
        .iter()
        .flatten()
        .filter(|mount| !text(mount, "mountPath").starts_with(ACCOUNT))
        .collect();
    let volumes: Vec<&Value> = spec
        .volumes
        .iter()
        .flatten()
        .filter(|volume| {
            let name = text(volume, "name");
            mounts.iter().any(|mount| text(mount, "name") == name)
        })
        .collect();
    let variables = container.env.as_ref().filter(|all| !all.is_empty());
    let others = container.env_from.as_ref().filter(|all| !all.is_empty());
    json!([variables, others, container.working_dir, mounts, volumes])
}

/// Whether the variables of a launcher declare ranks in other pods.
fn is_spread(container: &Container) -> bool {
    let mut variables = container.env.iter().flatten();
    variables.any(|one| {
        let count = one.value.as_deref().and_then(|value| value.parse().ok());
        one.name == "WORLD_SIZE" && count.is_some_and(|count: u64| count > 1)
    })
}

fn uses(container: &Container, claim: &str) -> bool {
    let resources = container.resources.as_ref();
    let claims = resources.and_then(|resources| resources.claims.as_ref());
    claims.into_iter().flatten().any(|one| one.name == claim)
}

fn key(container: &Container) -> Result<JobKey, String> {
    let name = &container.name;
    let Some(command) = container
        .command
        .as_ref()
        .filter(|command| !command.is_empty())
    else {
        // It is in the image, which is not looked into.
        return Err(format!(
            "container {name} names no command: its image's own is not known"
        ));
    };
    let variables: BTreeMap<&str, Option<&str>> = container
        .env
        .iter()
        .flatten()
        .map(|variable| {
            let literal = variable.value.as_deref().unwrap_or_default();
            // One that is made of others is left to the node.
            let is_known = variable.value_from.is_none() && !literal.contains("$(");
            let value = is_known.then_some(literal);
            (variable.name.as_str(), value)
        })
        .collect();
    let mut words = Vec::new();
    let mut length = 0;
    for word in command.iter().chain(container.args.iter().flatten()) {
        let word = expanded(word, &variables).ok_or_else(|| {
            format!("the command of container {name} has a variable that only the node knows")
        })?;
        length += word.len();
        words.push(word);
        if words.len() > MAX_WORDS || length > MAX_TEXT {
            return Err(format!("the command of container {name} is too long"));
        }
    }
    // The named files are in the image: no file of this machine is meant.
    let mut key = JobKey::of_words(&words);
    key.image.clone_from(&container.image);
    key.allocator =
        allocator_settings(|name| variables.get(name).copied().flatten().map(str::to_owned));
    Ok(key)
}

/// A word with its `$(VARIABLES)`, as Kubernetes expands them: `$$` is a dollar, an unknown variable stays. None if the
/// value of one is known only where the pod runs, or if the word becomes too long.
fn expanded(word: &str, variables: &BTreeMap<&str, Option<&str>>) -> Option<String> {
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            rest = after;
        } else if let Some((name, after)) = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            // Unknown variables stay as they are written.
            let unknown = format!("$({name})");
            let known = variables.get(name).copied();
            text.push_str(known.unwrap_or(Some(&unknown))?);
            rest = after;
        } else {
            text.push('$');
            rest = after;
        }
        if text.len() > MAX_TEXT {
            return None;
        }
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(container: &Value) -> Pod {
        let pod = json!({
            "metadata": { "annotations": { FORECAST: "abc" } },
            "spec": { "resourceClaims": [{ "name": "gpu" }], "containers": [container] },
        });
        serde_json::from_value(pod).expect("a pod")
    }

    fn job(container: &Value) -> Result<Job, String> {
        jobs(&pod(container)).remove("gpu").expect("an entry")
    }

    #[test]
    fn a_job_is_the_words_the_image_and_the_settings_of_the_container_that_uses_the_claim() {
        let job = job(&json!({
            "name": "train", "image": "train:1", "resources": { "claims": [{ "name": "gpu" }] },
            "command": ["/usr/bin/python3", "train.py"], "args": ["--lr=$(LR)", "$$(LR)", "$(NOBODY)", "$5"],
            "env": [{ "name": "LR", "value": "0.1" }, { "name": "PYTORCH_CUDA_ALLOC_CONF", "value": "x:1" }],
        }))
        .expect("a job");
        assert_eq!(
            job.key.command,
            ["python", "train.py", "--lr=0.1", "$(LR)", "$(NOBODY)", "$5"]
        );
        assert_eq!(job.key.image.as_deref(), Some("train:1"));
        assert_eq!(job.key.allocator.as_deref(), Some("x:1"));
        assert_eq!(job.named.as_deref(), Some("abc"));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let uses = json!({ "claims": [{ "name": "gpu" }] });
        let reason = |container: Value| job(&container).expect_err("no job");
        assert!(reason(json!({ "name": "a", "resources": uses })).contains("names no command"));
        assert!(reason(json!({ "name": "a", "command": ["x"] })).contains("no container"));
        let from_node =
            json!({ "name": "H", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } });
        let text = reason(
            json!({ "name": "a", "command": ["x", "$(H)"], "env": [from_node], "resources": uses }),
        );
        assert!(text.contains("only the node knows"), "{text}");
        let many = vec!["x"; 5000];
        assert!(
            reason(json!({ "name": "a", "command": many, "resources": uses })).contains("too long")
        );
        // A variable that is repeated must not fill memory.
        let bomb = json!({ "name": "B", "value": "x".repeat(60_000) });
        let word = "$(B)".repeat(60_000);
        let text =
            reason(json!({ "name": "a", "command": [word], "env": [bomb], "resources": uses }));
        assert!(text.contains("container a"), "{text}");
    }

    #[test]
    fn what_a_container_is_started_with_makes_it_another_job() {
        let with = |more: Value, volumes: Value| {
            let mut container = json!({
                "name": "a", "command": ["x"], "resources": { "claims": [{ "name": "gpu" }] },
            });
            for (field, value) in more.as_object().expect("fields") {
                container[field] = value.clone();
            }
            let pod = json!({
                "spec": { "resourceClaims": [{ "name": "gpu" }], "containers": [container], "volumes": volumes },
            });
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let job = jobs(&pod).remove("gpu").expect("an entry").expect("a job");
            job.key
        };
        let plain = with(json!({}), json!([]));
        assert!(plain.environment.is_some());
        let batch = |size: &str| {
            with(
                json!({ "env": [{ "name": "BATCH", "value": size }] }),
                json!([]),
            )
        };
        assert_ne!(batch("8").job_name(), batch("64").job_name());
        assert_eq!(batch("8").job_name(), batch("8").job_name());
        assert!(!batch("8").is_same_job(&batch("64")));
        // The token of the account has another name in every pod.
        let token = |name: &str| {
            let mount = json!({ "name": name, "mountPath": ACCOUNT });
            with(
                json!({ "volumeMounts": [mount] }),
                json!([{ "name": name, "projected": {} }]),
            )
        };
        assert_eq!(token("kube-api-access-1"), plain);
        let data = |claim: &str| {
            let mount = json!({ "name": "data", "mountPath": "/data" });
            let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
            with(json!({ "volumeMounts": [mount] }), json!([volume]))
        };
        assert_ne!(data("small").environment, data("large").environment);
    }

    #[test]
    fn two_containers_with_one_claim_are_not_guessed() {
        let one = json!({ "name": "a", "command": ["x"], "resources": { "claims": [{ "name": "gpu" }] } });
        let both =
            json!({ "spec": { "resourceClaims": [{ "name": "gpu" }], "containers": [one, one] } });
        let pod: Pod = serde_json::from_value(both).expect("a pod");
        assert!(
            jobs(&pod)["gpu"]
                .as_ref()
                .expect_err("shared")
                .contains("share")
        );
    }
}
