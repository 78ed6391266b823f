// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Job of a dry run: the container of a pod once more, on a node without a GPU, with tonnage before its command.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::objects::{API_VERSION, ForecastObject};

/// The label of a Job and its pods: the name of the forecast.
pub const LABEL: &str = "tonnage.dev/forecast";
/// The container of a Job that runs the job.
pub const CONTAINER: &str = "job";
/// Where tonnage is put.
const FOLDER: &str = "/tonnage";
const VOLUME: &str = "tonnage";
/// Where Kubernetes looks for the last words of a container.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// The fields with which a container of the user is started. Its resource requests are not among them: they would need
/// a GPU.
const OF_CONTAINER: [&str; 7] = [
    "image",
    "imagePullPolicy",
    "workingDir",
    "env",
    "envFrom",
    "volumeMounts",
    "securityContext",
];
/// Additional fields of an init container. One that is restarted always is a sidecar, which runs in parallel with the
/// job: without that field the pod would wait for its end. Its startup probe decides when the next container starts.
const OF_INIT_CONTAINER: [&str; 5] = ["name", "command", "args", "restartPolicy", "startupProbe"];
/// The same of a pod. Its labels are not: a service would select it.
const OF_POD: [&str; 9] = [
    "serviceAccountName",
    "automountServiceAccountToken",
    "imagePullSecrets",
    "securityContext",
    "hostAliases",
    "dnsPolicy",
    "dnsConfig",
    "enableServiceLinks",
    "volumes",
];
/// Volumes that are a pod's own: what is written there is gone with it.
const OWN_VOLUMES: [&str; 6] = [
    "emptyDir",
    "ephemeral",
    "configMap",
    "secret",
    "projected",
    "downwardAPI",
];

/// The user of the image, for the container that copies tonnage out of it.
const USER: u32 = 65532;

/// The administrator's settings for dry runs.
#[derive(Clone, Debug)]
pub struct DryRuns {
    /// The image with tonnage in it.
    pub image: String,
    /// Seconds after which one is ended.
    pub seconds: u64,
    /// Processors that it requests.
    pub cpu: String,
    /// Host memory that it requests, and may use.
    pub memory: String,
    /// Labels of the nodes on which they run.
    pub nodes: BTreeMap<String, String>,
}

/// The Job that makes a forecast, from a pod whose container of this name has the same job.
pub fn job(
    pod: &Value,
    container: &str,
    forecast: &ForecastObject,
    settings: &DryRuns,
) -> Option<Value> {
    let spec = pod.get("spec")?;
    let containers = |list: &str| -> Vec<Value> {
        let all = spec.get(list).and_then(Value::as_array);
        all.cloned().unwrap_or_default()
    };
    let all = containers("initContainers")
        .into_iter()
        .chain(containers("containers"))
        .find(|one| one.get("name").and_then(Value::as_str) == Some(container))?;
    let kept = kept_volumes(spec);
    let mut runs = copied(&all, &OF_CONTAINER, &kept);
    runs.insert("name".to_owned(), json!(CONTAINER));
    runs.insert("command".to_owned(), json!(words(&all, forecast)));
    runs.insert("terminationMessagePath".to_owned(), json!(TERMINATION_LOG));
    // Without its own words, the end of its output is not a forecast.
    runs.insert("terminationMessagePolicy".to_owned(), json!("File"));
    runs.insert(
        "resources".to_owned(),
        json!({
            "requests": { "cpu": settings.cpu, "memory": settings.memory },
            "limits": { "memory": settings.memory },
        }),
    );
    mount(&mut runs, true);
    let mut brings = Map::new();
    brings.insert("name".to_owned(), json!("tonnage"));
    brings.insert("image".to_owned(), json!(settings.image));
    brings.insert(
        "command".to_owned(),
        json!(["cp", "/usr/local/bin/tonnage", FOLDER]),
    );
    brings.insert(
        "securityContext".to_owned(),
        json!({
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true, "seccompProfile": { "type": "RuntimeDefault" },
            "runAsNonRoot": true, "runAsUser": USER,
        }),
    );
    // A quota of the namespace refuses pods of which a container names none.
    brings.insert(
        "resources".to_owned(),
        json!({
            "requests": { "cpu": "100m", "memory": "128Mi" },
            "limits": { "cpu": "1", "memory": "128Mi" },
        }),
    );
    mount(&mut brings, false);
    // They may fetch what the job needs. One that uses a GPU cannot run here.
    let before = containers("initContainers").into_iter().filter(|one| {
        one.get("name").and_then(Value::as_str) != Some(container)
            && one.pointer("/resources/claims").is_none()
    });
    let before = before.map(|one| {
        let mut fields = copied(&one, &OF_CONTAINER, &kept);
        for name in OF_INIT_CONTAINER {
            fields.extend(one.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        Value::Object(fields)
    });
    let before: Vec<Value> = std::iter::once(Value::Object(brings))
        .chain(before)
        .collect();
    let mut runs_in = Map::new();
    for name in OF_POD {
        runs_in.extend(spec.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let volumes = runs_in.entry("volumes").or_insert_with(|| json!([]));
    volumes
        .as_array_mut()?
        .push(json!({ "name": VOLUME, "emptyDir": {} }));
    runs_in.insert("restartPolicy".to_owned(), json!("Never"));
    runs_in.insert("initContainers".to_owned(), json!(before));
    runs_in.insert("containers".to_owned(), json!([runs]));
    if !settings.nodes.is_empty() {
        runs_in.insert("nodeSelector".to_owned(), json!(settings.nodes));
    }
    let labels = json!({ LABEL: forecast.spec.name(), "app.kubernetes.io/managed-by": "tonnage" });
    Some(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": forecast.job_name(), "namespace": forecast.metadata.namespace, "labels": labels,
            // It goes with the forecast.
            "ownerReferences": [{
                "apiVersion": API_VERSION, "kind": "Forecast", "name": forecast.metadata.name,
                "uid": forecast.metadata.uid, "controller": true,
            }],
        },
        "spec": {
            "activeDeadlineSeconds": settings.seconds,
            // Its output can be read for an hour.
            "ttlSecondsAfterFinished": 3600,
            "backoffLimit": 2,
            // tonnage would repeat its own answer; a node that went away allows no conclusion about the job.
            "podFailurePolicy": { "rules": [
                { "action": "FailJob", "onExitCodes": { "containerName": CONTAINER, "operator": "In", "values": [1, 2] } },
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            ] },
            "template": { "metadata": { "labels": labels }, "spec": runs_in },
        },
    }))
}

/// tonnage, and the words of the container as they are written: the node expands their variables.
fn words(container: &Value, forecast: &ForecastObject) -> Vec<Value> {
    let mut words: Vec<Value> = [
        "/tonnage/tonnage",
        "forecast",
        "make",
        "--termination-message",
        TERMINATION_LOG,
        "--gpu",
        &forecast.spec.gpu,
    ]
    .map(Value::from)
    .to_vec();
    if let Some(gpus) = forecast.spec.gpus {
        words.extend(["--gpus".into(), gpus.to_string().into()]);
    }
    words.push("--".into());
    for list in ["command", "args"] {
        let list = container.get(list).and_then(Value::as_array);
        words.extend(list.into_iter().flatten().cloned());
    }
    words
}

/// Fields of a container. Volumes that others have, too, are read-only for it: a dry run must not write over the
/// checkpoints of a real one.
fn copied(container: &Value, fields: &[&str], own: &[String]) -> Map<String, Value> {
    let mut copy = Map::new();
    for name in fields {
        copy.extend(
            container
                .get(*name)
                .map(|value| ((*name).to_owned(), value.clone())),
        );
    }
    let mounts = copy.get_mut("volumeMounts").and_then(Value::as_array_mut);
    for mount in mounts.into_iter().flatten() {
        let name = mount
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !own.iter().any(|one| one == name) {
            mount["readOnly"] = json!(true);
        }
    }
    copy
}

/// The names of the volumes that are the pod's own.
fn kept_volumes(spec: &Value) -> Vec<String> {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let own = volumes
        .into_iter()
        .flatten()
        .filter(|volume| OWN_VOLUMES.iter().any(|kind| volume.get(*kind).is_some()));
    own.filter_map(|volume| Some(volume.get("name")?.as_str()?.to_owned()))
        .collect()
}

fn mount(container: &mut Map<String, Value>, read_only: bool) {
    let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
    if let Some(mounts) = mounts.as_array_mut() {
        mounts.push(json!({ "name": VOLUME, "mountPath": FOLDER, "readOnly": read_only }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::objects::ForecastSpec;

    #[test]
    fn a_dry_run_is_the_container_without_its_gpu_and_without_harm() {
        let pod = json!({
            "metadata": { "name": "train", "labels": { "app": "served" } },
            "spec": {
                "serviceAccountName": "team", "nodeSelector": { "gpu": "yes" }, "runtimeClassName": "nvidia",
                "resourceClaims": [{ "name": "gpu" }],
                "volumes": [
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "scratch", "emptyDir": {} },
                ],
                "initContainers": [{
                    "name": "fetch", "image": "git", "command": ["clone"],
                    "volumeMounts": [{ "name": "scratch", "mountPath": "/code" }],
                }, {
                    "name": "mount", "image": "bucket", "restartPolicy": "Always",
                    "startupProbe": { "exec": { "command": ["ls", "/data"] } },
                }],
                "containers": [
                    {
                        "name": "main", "image": "train:1", "command": ["python", "train.py"], "args": ["--lr=$(LR)"],
                        "env": [{ "name": "LR", "value": "0.1" }], "workingDir": "/code",
                        "resources": { "claims": [{ "name": "gpu" }], "limits": { "cpu": "64" } },
                        "volumeMounts": [
                            { "name": "data", "mountPath": "/data" }, { "name": "scratch", "mountPath": "/code" },
                        ],
                    },
                    { "name": "proxy", "image": "proxy" },
                ],
            },
        });
        let key = tonnage_forecast::JobKey {
            image: Some("train:1".to_owned()),
            ..tonnage_forecast::JobKey::of_words(&["python", "train.py", "--lr=0.1"])
        };
        let forecast: ForecastObject = serde_json::from_value(json!({
            "metadata": { "name": "f", "namespace": "team", "uid": "7" },
            "spec": ForecastSpec::new(&key, "h100-80gb", 2),
        }))
        .expect("a forecast");
        let settings = DryRuns {
            image: "tonnage:1".to_owned(),
            seconds: 600,
            cpu: "2".to_owned(),
            memory: "8Gi".to_owned(),
            nodes: BTreeMap::from([("pool".to_owned(), "cpu".to_owned())]),
        };
        let job = job(&pod, "main", &forecast, &settings).expect("a Job");
        let spec = &job["spec"]["template"]["spec"];
        let runs = &spec["containers"][0];
        assert_eq!(spec["containers"].as_array().map(Vec::len), Some(1));
        let words: Vec<&str> = runs["command"]
            .as_array()
            .expect("words")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(
            words[5..].join(" "),
            "--gpu h100-80gb --gpus 2 -- python train.py --lr=$(LR)"
        );
        assert!(runs.get("args").is_none());
        assert_eq!(runs["image"], "train:1");
        assert_eq!(runs["workingDir"], "/code");
        assert_eq!(runs["env"][0]["value"], "0.1");
        assert_eq!(
            runs["resources"],
            json!({ "requests": { "cpu": "2", "memory": "8Gi" }, "limits": { "memory": "8Gi" } })
        );
        // Shared volumes are not written; the pod's own are.
        assert_eq!(runs["volumeMounts"][0]["readOnly"], true);
        assert_eq!(runs["volumeMounts"][1].get("readOnly"), None);
        assert_eq!(spec["initContainers"][0]["image"], "tonnage:1");
        assert_eq!(spec["initContainers"][1]["command"], json!(["clone"]));
        assert_eq!(spec["initContainers"][1].get("restartPolicy"), None);
        // A sidecar stays one, so that the Job ends with its own container.
        assert_eq!(spec["initContainers"][2]["restartPolicy"], "Always");
        assert_eq!(
            spec["initContainers"][2]["startupProbe"]["exec"]["command"],
            json!(["ls", "/data"])
        );
        assert_eq!(runs.get("restartPolicy"), None);
        assert_eq!(spec["serviceAccountName"], "team");
        assert_eq!(spec["nodeSelector"], json!({ "pool": "cpu" }));
        assert!(spec.get("runtimeClassName").is_none() && spec.get("resourceClaims").is_none());
        assert!(
            job["spec"]["template"]["metadata"]["labels"]
                .get("app")
                .is_none()
        );
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "7");
    }
}
