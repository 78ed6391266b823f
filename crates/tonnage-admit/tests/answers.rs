// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers about claims in the reviews of Kubernetes 1.36.4, and about hostile ones.
//!
//! `recorded/` was recorded from a real API server; a separate reader applies the patches here.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use proptest::prelude::*;
use serde_json::{Value, json};
use tonnage_admit::answer::Settings;
use tonnage_admit::client::Client;
use tonnage_admit::cluster::{Cache, Pods};
use tonnage_admit::cluster_forecasts::ClusterForecasts;
use tonnage_admit::forecasts::Forecasts;
use tonnage_admit::server::{API_SERVER_TIMEOUT, Event, MAX_BODY, Webhook, router, status_router};
use tonnage_forecast::admit::Mode;
use tonnage_forecast::{Evidence, Fits, Forecast, JobKey, Known, Role, SCHEMA_VERSION, Source};
use tower_service::Service as _;

const REVIEW: &str = include_str!("recorded/admission-review.json");
const SLICE: &str = include_str!("recorded/resource-slice.json");
const UID: &str = "5a0f95d5-ad3e-4dc1-ae91-94fbf8a34358";
const MIB: u64 = 1 << 20;
const COMMAND: [&str; 3] = ["python", "train.py", "--batch=8"];

fn forecast(gpu: &str, bound: u64, fits: Fits) -> Forecast {
    let mut key = JobKey::of_words(&COMMAND);
    key.image = Some("train:1".to_owned());
    key.sources.insert("train.py".to_owned(), "a".repeat(64));
    gpu.clone_into(&mut key.gpu);
    Forecast {
        schema_version: SCHEMA_VERSION,
        name: key.name(),
        family: key.family(),
        key,
        gpu_memory: 81_000 * MIB,
        fits,
        roles: vec![Role {
            name: "GPU 0".to_owned(),
            gpus: 1,
            peak: bound - MIB,
            known: Known::Exact,
            uncounted: MIB,
            bound: Some(bound),
            least: None,
        }],
        evidence: vec![Evidence {
            source: Source::DryRun,
            what: "a dry run".to_owned(),
            complete: true,
        }],
        larger_gpus: Vec::new(),
        unknown: Vec::new(),
    }
}

fn pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": { "name": "fx", "namespace": "default", "uid": UID },
        "spec": {
            "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "one" }],
            "containers": [{
                "name": "train", "image": "train:1", "command": COMMAND,
                "resources": { "claims": [{ "name": "gpu" }] },
            }],
        },
    });
    change(&mut pod);
    pod
}

fn review(change: impl FnOnce(&mut Value)) -> Value {
    let mut review: Value = serde_json::from_str(REVIEW).unwrap();
    change(&mut review["request"]["object"]);
    review
}

/// The requests of a claim after the patch.
fn ask(memory: &str) -> impl FnOnce(&mut Value) {
    let memory = memory.to_owned();
    move |claim| {
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
            json!({ "requests": { "memory": memory } });
    }
}

struct World {
    mode: Mode,
    pod: Value,
    forecasts: Vec<Forecast>,
    has_gpus: bool,
}

impl World {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            pod: pod(|_| {}),
            forecasts: vec![forecast("h100-80gb", 28_147 * MIB, Fits::Yes)],
            has_gpus: true,
        }
    }

    fn webhook(&self, events: &Arc<Mutex<Vec<String>>>) -> Arc<Webhook> {
        let webhook = self.unshared(events);
        webhook.set_forecasts(Forecasts::from_list(self.forecasts.clone()));
        Arc::new(webhook)
    }

    /// Without forecasts yet.
    fn unshared(&self, events: &Arc<Mutex<Vec<String>>>) -> Webhook {
        self.asking(None, events)
    }

    /// One that reads pods from an API server if the watch has not shown them.
    fn asking(&self, client: Option<Client>, events: &Arc<Mutex<Vec<String>>>) -> Webhook {
        let settings = Settings {
            mode: self.mode,
            driver: "gpu.nvidia.com".to_owned(),
            classes: vec!["gpu.nvidia.com".to_owned()],
        };
        let cache = Arc::new(Cache::new("gpu.nvidia.com"));
        cache.set_pods(&[serde_json::from_value(self.pod.clone()).unwrap()]);
        let slices = if self.has_gpus {
            vec![serde_json::from_str(SLICE).unwrap()]
        } else {
            Vec::new()
        };
        cache.set_slices(&slices);
        let events = Arc::clone(events);
        let write = move |event: Event<'_>| events.lock().unwrap().push(format!("{event:?}"));
        let pods = Pods::new(Arc::clone(&cache), client);
        Webhook::new(settings, cache, pods, Box::new(write))
    }

    fn send(&self, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let request = Request::post("/claims").body(body.into()).unwrap();
        sent(self.webhook(&events), request)
    }

    /// The response to a review, and its claim with the patch applied.
    fn answer(&self, review: &Value) -> (Value, Value) {
        let (status, body) = self.send(review.to_string());
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        let response = answer["response"].clone();
        assert_eq!(response["uid"], review["request"]["uid"]);
        let mut claim = review["request"]["object"].clone();
        if let Some(patch) = response["patch"].as_str() {
            assert_eq!(response["patchType"], "JSONPatch");
            for change in serde_json::from_slice::<Vec<Value>>(&unpacked(patch)).unwrap() {
                apply(&mut claim, &change);
            }
        }
        (response, claim)
    }
}

/// The answer of a webhook to a request.
fn sent(webhook: Arc<Webhook>, request: Request<Body>) -> (StatusCode, Vec<u8>) {
    sent_to(router(webhook), request)
}

/// The answer of these routes.
fn sent_to(mut routes: axum::Router, request: Request<Body>) -> (StatusCode, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let response = routes.call(request).await.unwrap();
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        (status, bytes.to_vec())
    })
}

/// Base64, by the definition.
fn unpacked(text: &str) -> Vec<u8> {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes().filter(|&letter| letter != b'=') {
        let value = letters.iter().position(|&one| one == letter).unwrap();
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
}

/// JSON Patch, `add` to an object: its parent must be there, as RFC 6902 demands.
fn apply(claim: &mut Value, change: &Value) {
    assert_eq!(change["op"], "add");
    let (parent, name) = change["path"].as_str().unwrap().rsplit_once('/').unwrap();
    let parent = claim
        .pointer_mut(parent)
        .expect("a parent")
        .as_object_mut()
        .expect("an object");
    parent.insert(
        name.replace("~1", "/").replace("~0", "~"),
        change["value"].clone(),
    );
}

fn memory(claim: &Value) -> Option<&str> {
    claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"].as_str()
}

#[test]
fn advise_says_the_number_and_leaves_the_claim_as_it_is() {
    let (response, claim) = World::new(Mode::Advise).answer(&review(|_| {}));
    assert_eq!(response["allowed"], true);
    assert_eq!(memory(&claim), None);
    let message = claim["metadata"]["annotations"]["tonnage.dev/message"]
        .as_str()
        .unwrap();
    assert!(
        message.starts_with("the job needs 27.49 GiB of each GPU"),
        "{message}"
    );
    assert_eq!(response["warnings"][0], format!("tonnage: {message}"));
    // The earlier content stays.
    assert_eq!(
        claim["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"],
        "gpu"
    );
}

#[test]
fn fill_writes_the_number_where_there_is_none() {
    let world = World::new(Mode::Fill);
    let (response, claim) = world.answer(&review(|_| {}));
    assert_eq!(response["allowed"], true);
    assert_eq!(memory(&claim), Some("28147Mi"));
    assert_eq!(
        claim["metadata"]["annotations"]["tonnage.dev/forecast"],
        world.forecasts[0].name
    );
    // Nothing else has changed.
    let mut without = claim.clone();
    without["spec"]["devices"]["requests"][0]["exactly"]
        .as_object_mut()
        .unwrap()
        .remove("capacity");
    assert_eq!(without["spec"], review(|_| {})["request"]["object"]["spec"]);
}

#[test]
fn fill_keeps_other_capacities_and_comes_to_terms_with_halves() {
    let world = World::new(Mode::Fill);
    for capacity in [
        json!({}),
        json!({ "requests": {} }),
        json!({ "requests": { "cores": "5" } }),
    ] {
        let (_, claim) = world.answer(&review(|claim| {
            claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = capacity.clone();
            claim["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations");
        }));
        assert_eq!(memory(&claim), Some("28147Mi"), "{capacity}");
        if capacity["requests"]["cores"].is_string() {
            assert_eq!(
                claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["cores"],
                "5"
            );
        }
    }
}

#[test]
fn a_number_of_the_user_is_never_changed() {
    for (mode, allowed) in [
        (Mode::Advise, true),
        (Mode::Fill, true),
        (Mode::Enforce, false),
    ] {
        let (response, claim) = World::new(mode).answer(&review(ask("10Gi")));
        assert_eq!(response["allowed"], allowed, "{mode:?}");
        assert_eq!(memory(&claim), Some("10Gi"));
    }
    let (response, _) = World::new(Mode::Enforce).answer(&review(ask("10Gi")));
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("tonnage: the job requests 10.00 GiB of each GPU and may take 27.49 GiB"),
        "{message}"
    );
    assert!(response.get("patch").is_none());
    let (response, claim) = World::new(Mode::Enforce).answer(&review(ask("28147Mi")));
    assert_eq!(
        (&response["allowed"], memory(&claim)),
        (&json!(true), Some("28147Mi"))
    );
    assert!(response.get("warnings").is_none());
}

#[test]
fn what_no_gpu_holds_is_refused_with_the_reason() {
    let (response, _) = World::new(Mode::Fill).answer(&review(ask("96Gi")));
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 403);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("the largest has 79.65 GiB: it would never start"),
        "{message}"
    );
    let (response, _) = World::new(Mode::Advise).answer(&review(ask("96Gi")));
    assert_eq!(response["allowed"], true);

    let mut world = World::new(Mode::Fill);
    world.forecasts = vec![forecast("h100-80gb", 200_000 * MIB, Fits::No)];
    let (response, _) = world.answer(&review(|_| {}));
    assert_eq!(response["allowed"], false);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("tonnage: the job does not fit: it takes up to"),
        "{message}"
    );
    // GPUs that are not here do not matter, as long as the job could fit on one that is.
    world.forecasts = vec![forecast("a100-40gb", 50_000 * MIB, Fits::No)];
    let (response, claim) = world.answer(&review(|_| {}));
    assert_eq!((&response["allowed"], memory(&claim)), (&json!(true), None));
}

#[test]
fn a_job_without_a_forecast_gets_a_whole_gpu_only_where_a_number_is_demanded() {
    for (mode, expected) in [
        (Mode::Advise, None),
        (Mode::Fill, None),
        (Mode::Enforce, Some("81559Mi")),
    ] {
        let mut world = World::new(mode);
        world.forecasts.clear();
        let (response, claim) = world.answer(&review(|_| {}));
        assert_eq!(response["allowed"], true);
        assert_eq!(memory(&claim), expected, "{mode:?}");
    }
}

#[test]
fn a_forecast_is_of_the_same_words_image_and_settings() {
    let container = |change: fn(&mut Value)| {
        let mut world = World::new(Mode::Fill);
        world.pod = pod(|pod| change(&mut pod["spec"]["containers"][0]));
        let (_, claim) = world.answer(&review(|_| {}));
        memory(&claim).is_some()
    };
    assert!(container(
        |one| one["command"] = json!(["/usr/bin/python3.12", "train.py", "--batch=8"])
    ));
    assert!(container(|one| {
        one["command"] = json!(["python"]);
        one["args"] = json!(["train.py", "--batch=$(B)"]);
        one["env"] = json!([{ "name": "B", "value": "8" }]);
    }));
    assert!(!container(|one| one["image"] = json!("train:2")));
    assert!(!container(
        |one| one["command"] = json!(["python", "train.py", "--batch=16"])
    ));
    assert!(!container(|one| one["command"] = Value::Null));
    assert!(!container(
        |one| one["env"] =
            json!([{ "name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True" }])
    ));
}

#[test]
fn a_pod_may_name_a_forecast_of_its_own_words_only() {
    let mut world = World::new(Mode::Fill);
    world.forecasts[0].key.image = None;
    world.forecasts[0].name = world.forecasts[0].key.name();
    let name = world.forecasts[0].name.clone();
    let named = |command: &str| {
        pod(|pod| {
            pod["metadata"]["annotations"] = json!({ "tonnage.dev/forecast": name });
            pod["spec"]["containers"][0]["command"][1] = json!(command);
        })
    };
    world.pod = named("train.py");
    assert_eq!(memory(&world.answer(&review(|_| {})).1), Some("28147Mi"));
    // A small forecast of another job cannot bypass the account.
    world.pod = named("larger.py");
    assert_eq!(memory(&world.answer(&review(|_| {})).1), None);
}

#[test]
fn of_several_gpus_the_forecast_that_asks_for_most_holds_and_the_others_are_named() {
    let mut world = World::new(Mode::Fill);
    world
        .forecasts
        .push(forecast("a100-80gb", 40_000 * MIB, Fits::Yes));
    // There is no A100 here.
    assert_eq!(memory(&world.answer(&review(|_| {})).1), Some("28147Mi"));
}

#[test]
fn alternatives_are_filled_too_and_other_classes_left_alone() {
    let world = World::new(Mode::Fill);
    let (_, claim) = world.answer(&review(|claim| {
        claim["spec"]["devices"]["requests"] = json!([
            { "name": "any", "firstAvailable": [
                { "name": "a", "deviceClassName": "gpu.nvidia.com" },
                { "name": "b", "deviceClassName": "nic.example.com" },
            ] },
            { "name": "nic", "exactly": { "deviceClassName": "nic.example.com" } },
            { "name": "watch", "exactly": { "deviceClassName": "gpu.nvidia.com", "adminAccess": true } },
        ]);
    }));
    let requests = &claim["spec"]["devices"]["requests"];
    assert_eq!(
        requests[0]["firstAvailable"][0]["capacity"]["requests"]["memory"],
        "28147Mi"
    );
    for other in [
        &requests[0]["firstAvailable"][1],
        &requests[1]["exactly"],
        &requests[2]["exactly"],
    ] {
        assert!(other.get("capacity").is_none(), "{other}");
    }
}

#[test]
fn without_gpus_nothing_is_refused_but_where_a_number_is_demanded() {
    for (mode, allowed) in [
        (Mode::Advise, true),
        (Mode::Fill, true),
        (Mode::Enforce, false),
    ] {
        let mut world = World::new(mode);
        world.has_gpus = false;
        assert_eq!(world.answer(&review(ask("10Gi"))).0["allowed"], allowed);
    }
}

#[test]
fn a_pod_that_cannot_be_read_now_is_asked_for_later_where_a_number_is_demanded() {
    for (mode, allowed) in [
        (Mode::Advise, true),
        (Mode::Fill, true),
        (Mode::Enforce, false),
    ] {
        let mut world = World::new(mode);
        world.pod["metadata"]["uid"] = json!("another");
        let (response, claim) = world.answer(&review(|_| {}));
        assert_eq!(response["allowed"], allowed);
        assert_eq!(memory(&claim), None);
    }
}

#[test]
fn other_objects_and_operations_are_let_through() {
    let world = World::new(Mode::Enforce);
    for (place, value) in [
        ("operation", json!("UPDATE")),
        (
            "kind",
            json!({ "group": "", "version": "v1", "kind": "Pod" }),
        ),
    ] {
        let mut review = review(|_| {});
        review["request"][place] = value;
        review["request"]["object"] = json!({ "anything": true });
        assert_eq!(world.answer(&review).0["allowed"], true);
    }
}

#[test]
fn what_is_no_review_is_no_answer_but_a_bad_request() {
    let world = World::new(Mode::Enforce);
    let bad = |body: String| {
        assert_eq!(
            world.send(body.clone()).0,
            StatusCode::BAD_REQUEST,
            "{}",
            &body[..body.len().min(80)]
        );
    };
    bad(String::new());
    bad("null".to_owned());
    bad("[".repeat(100_000));
    bad(REVIEW[..REVIEW.len() - 20].to_owned());
    bad(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview" }).to_string());
    let mut other = review(|_| {});
    other["apiVersion"] = json!("admission.k8s.io/v1beta1");
    bad(other.to_string());
    bad(review(|claim| claim["spec"] = json!(5)).to_string());
    bad(review(|claim| claim["spec"]["devices"]["requests"] = json!({})).to_string());
    let (status, _) = world.send(vec![b' '; MAX_BODY + 1]);
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[test]
fn metrics_count_what_was_answered() {
    let world = World::new(Mode::Fill);
    let webhook = world.webhook(&Arc::default());
    let post = |body: String| {
        let request = Request::post("/claims").body(body.into()).unwrap();
        sent(Arc::clone(&webhook), request).0
    };
    assert_eq!(post(review(|_| {}).to_string()), StatusCode::OK);
    assert_eq!(post(review(ask("200Gi")).to_string()), StatusCode::OK);
    assert_eq!(post("{".to_owned()), StatusCode::BAD_REQUEST);
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let (status, text) = sent_to(status_router(webhook), request);
    assert_eq!(status, StatusCode::OK);
    let text = String::from_utf8(text).unwrap();
    for line in [
        "tonnage_admit_claims_total{result=\"filled\"} 1",
        "tonnage_admit_claims_total{result=\"refused\"} 1",
        "tonnage_admit_claims_total{result=\"passed\"} 0",
        "tonnage_admit_claim_duration_seconds_bucket{le=\"+Inf\"} 2",
        "tonnage_admit_malformed_total 1",
        "tonnage_admit_ready 1",
        "tonnage_admit_forecasts 1",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}\n{text}");
    }
}

#[test]
fn amounts_that_make_no_sense_are_refused() {
    for amount in ["-5Gi", "lots", "1e400", "99999999999999999999Ei", ""] {
        let (response, _) = World::new(Mode::Fill).answer(&review(ask(amount)));
        assert_eq!(response["allowed"], false, "{amount}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever bytes come in place of some of a review, there is an answer or an error.
    #[test]
    fn damaged_reviews_are_answered(at in 0..REVIEW.len(), bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
        let mut body = REVIEW.as_bytes().to_vec();
        let end = (at + bytes.len()).min(body.len());
        body.splice(at..end, bytes);
        let (status, answer) = World::new(Mode::Enforce).send(body);
        prop_assert!(matches!(status, StatusCode::OK | StatusCode::BAD_REQUEST), "{status}");
        if status == StatusCode::OK {
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            prop_assert!(answer["response"]["allowed"].is_boolean());
        }
    }
}

/// The review of a pod that is created.
fn pod_review(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = World::new(Mode::Enforce).pod;
    let claims = json!([{ "name": "gpu", "resourceClaimTemplateName": "gpu" }]);
    pod["spec"]["resourceClaims"] = claims;
    change(&mut pod);
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "namespace": "default", "object": pod,
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
        },
    })
}

/// The gates of a pod after the answer of a webhook that has forecasts made.
fn gates(world: &World, review: &Value) -> Vec<String> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let cluster = Arc::new(ClusterForecasts::new(3600));
    cluster.set(Vec::new());
    let webhook = world.unshared(&events).with_cluster_forecasts(cluster);
    webhook.set_forecasts(Forecasts::from_list(world.forecasts.clone()));
    let request = Request::post("/pods").body(review.to_string().into());
    let (status, body) = sent(Arc::new(webhook), request.unwrap());
    assert_eq!(status, StatusCode::OK);
    let response = serde_json::from_slice::<Value>(&body).unwrap()["response"].clone();
    assert_eq!(response["allowed"], true);
    let mut pod = review["request"]["object"].clone();
    let patch = response["patch"].as_str().map(unpacked).unwrap_or_default();
    for change in serde_json::from_slice::<Vec<Value>>(&patch).unwrap_or_default() {
        if change["path"] == "/spec/schedulingGates/-" {
            let gates = pod["spec"]["schedulingGates"].as_array_mut().unwrap();
            gates.push(change["value"].clone());
        } else {
            apply(&mut pod, &change);
        }
    }
    let gates = pod["spec"]["schedulingGates"].as_array();
    let gates = gates.into_iter().flatten();
    gates
        .map(|gate| gate["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_pod_waits_only_for_a_forecast_that_can_be_made_and_is_not_there() {
    const GATE: &str = "tonnage.dev/forecast";
    let mut world = World::new(Mode::Enforce);
    assert!(gates(&world, &pod_review(|_| {})).is_empty());
    world.forecasts.clear();
    assert_eq!(gates(&world, &pod_review(|_| {})), [GATE]);
    let other = json!([{ "name": "a.example/b" }]);
    assert_eq!(
        gates(
            &world,
            &pod_review(|pod| pod["spec"]["schedulingGates"] = other)
        ),
        ["a.example/b", GATE]
    );
    // A claim that a person has made, a pod that is placed, and a command that is not known.
    let by_hand = json!([{ "name": "gpu", "resourceClaimName": "mine" }]);
    assert!(
        gates(
            &world,
            &pod_review(|pod| pod["spec"]["resourceClaims"] = by_hand)
        )
        .is_empty()
    );
    assert!(
        gates(
            &world,
            &pod_review(|pod| pod["spec"]["nodeName"] = json!("a"))
        )
        .is_empty()
    );
    let declines = json!({ "tonnage.dev/dry-runs": "disabled" });
    assert!(
        gates(
            &world,
            &pod_review(|pod| pod["metadata"]["annotations"] = declines)
        )
        .is_empty()
    );
    let without = |pod: &mut Value| pod["spec"]["containers"][0]["command"] = json!([]);
    assert!(gates(&world, &pod_review(without)).is_empty());
    // Without a controller no pod waits.
    let (response, _) = world.answer(&pod_review(|_| {}));
    assert_eq!(response.get("patch"), None);
}

#[test]
fn allocator_settings_that_may_come_from_elsewhere_are_said() {
    let says = |more: Value| {
        let mut world = World::new(Mode::Fill);
        let container = &mut world.pod["spec"]["containers"][0];
        for (field, value) in more.as_object().unwrap() {
            container[field] = value.clone();
        }
        let (_, claim) = world.answer(&review(|_| {}));
        let message = claim["metadata"]["annotations"]["tonnage.dev/message"].as_str();
        message.unwrap().contains("envFrom")
    };
    let from = json!([{ "secretRef": { "name": "tokens" } }]);
    assert!(!says(json!({})));
    assert!(says(json!({ "envFrom": from })));
}

/// The pod of the claim under review, as a name that the watch has not shown.
fn unseen_pod() -> Value {
    pod(|pod| pod["metadata"]["uid"] = json!("another"))
}

/// An API server that takes connections and never answers, and the webhook that calls it.
fn silent_api_server(world: &World) -> ((TcpListener, tempfile::TempDir), Webhook) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [authority, token] = ["ca.crt", "token"].map(|name| folder.path().join(name));
    std::fs::write(&authority, "").unwrap();
    std::fs::write(&token, "token").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let client = Client::new(&address, authority, token).unwrap();
    let webhook = world.asking(Some(client), &Arc::default());
    webhook.set_forecasts(Forecasts::from_list(world.forecasts.clone()));
    // Both files are read for each request.
    ((listener, folder), webhook)
}

/// A body of which nothing comes.
struct SilentBody;

impl HttpBody for SilentBody {
    type Data = hyper::body::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// When an answer with a deadline of 1.6 s is there, on a machine that is busy with other tests.
const AT_MOST: Duration = Duration::from_secs(4);

/// The answer to a request of an API server that waits for two seconds, and that its deadline holds.
fn sent_in_time(webhook: Arc<Webhook>, path: &str, body: Body) -> (StatusCode, Vec<u8>) {
    let started = Instant::now();
    let request = Request::post(format!("{path}?timeout=2s")).body(body);
    let answer = sent(webhook, request.unwrap());
    let took = started.elapsed();
    assert!(took < AT_MOST, "{took:?}");
    answer
}

#[test]
fn a_slow_api_server_gets_the_prepared_answer_in_time() {
    let mut world = World::new(Mode::Enforce);
    world.pod = unseen_pod();
    for (mode, allowed) in [(Mode::Enforce, false), (Mode::Fill, true)] {
        world.mode = mode;
        let (_server, webhook) = silent_api_server(&world);
        let body = review(|_| {}).to_string();
        let (status, body) = sent_in_time(Arc::new(webhook), "/claims", body.into());
        assert_eq!(status, StatusCode::OK);
        let response = serde_json::from_slice::<Value>(&body).unwrap()["response"].clone();
        assert_eq!(response["allowed"], allowed, "{response}");
        assert!(
            response.to_string().contains("could not be read in time"),
            "{response}"
        );
    }
}

#[test]
fn forecasts_that_a_slow_api_server_does_not_show_are_waited_for_in_time() {
    let mut world = World::new(Mode::Enforce);
    // A pod whose gate was opened with this forecast, which the watch has not shown.
    let made = json!({ "tonnage.dev/forecasts": "f-1,f-2,f-3" });
    world.pod = pod(|pod| pod["metadata"]["annotations"] = made);
    let (_server, webhook) = silent_api_server(&world);
    let cluster = Arc::new(ClusterForecasts::new(3600));
    cluster.set(Vec::new());
    let webhook = webhook.with_cluster_forecasts(cluster);
    let body = review(|_| {}).to_string();
    let (status, body) = sent_in_time(Arc::new(webhook), "/claims", body.into());
    assert_eq!(status, StatusCode::OK);
    let response = serde_json::from_slice::<Value>(&body).unwrap()["response"].clone();
    assert_eq!(response["allowed"], false);
    assert!(response.to_string().contains("the pod waits"), "{response}");
}

#[test]
fn a_pod_is_gated_in_time_when_its_template_cannot_be_read() {
    let mut world = World::new(Mode::Enforce);
    world.forecasts.clear();
    let (_server, webhook) = silent_api_server(&world);
    let cluster = Arc::new(ClusterForecasts::new(3600));
    cluster.set(Vec::new());
    let webhook = Arc::new(webhook.with_cluster_forecasts(cluster));
    let body = pod_review(|_| {}).to_string();
    let (status, body) = sent_in_time(webhook, "/pods", body.into());
    assert_eq!(status, StatusCode::OK);
    let response = serde_json::from_slice::<Value>(&body).unwrap()["response"].clone();
    let patch = String::from_utf8(unpacked(response["patch"].as_str().unwrap())).unwrap();
    assert!(patch.contains("tonnage.dev/forecast"), "{patch}");
}

#[test]
fn a_slow_body_is_answered_in_time() {
    let world = World::new(Mode::Enforce);
    let webhook = world.webhook(&Arc::default());
    let (status, _) = sent_in_time(webhook, "/claims", Body::new(SilentBody));
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
}

#[test]
fn reviews_that_wait_for_their_turn_are_answered_in_time() {
    let world = World::new(Mode::Enforce);
    let webhook = world.webhook(&Arc::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let statuses = runtime.block_on(async {
        let started = Instant::now();
        let mut waiting = tokio::task::JoinSet::new();
        // Twice as many as are read at a time; none of them ever has its bytes.
        for _ in 0..128 {
            let request = Request::post("/claims?timeout=2s").body(Body::new(SilentBody));
            let answer = router(Arc::clone(&webhook)).call(request.unwrap());
            waiting.spawn(async { answer.await.unwrap().status() });
        }
        let statuses = waiting.join_all().await;
        assert!(started.elapsed() < AT_MOST);
        statuses
    });
    // One that gets its turn at the deadline has no bytes, either.
    let expected = [StatusCode::REQUEST_TIMEOUT, StatusCode::SERVICE_UNAVAILABLE];
    assert!(
        statuses.iter().all(|status| expected.contains(status)),
        "{statuses:?}"
    );
}

#[test]
fn the_registrations_wait_for_as_long_as_the_webhook_believes() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
    let mut found = 0;
    for entry in std::fs::read_dir(deploy).unwrap() {
        let Ok(text) = std::fs::read_to_string(entry.unwrap().path().join("registration.yaml"))
        else {
            continue;
        };
        let waits = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("timeoutSeconds: "));
        for seconds in waits {
            let seconds: u64 = seconds.parse().unwrap();
            assert_eq!(Duration::from_secs(seconds), API_SERVER_TIMEOUT);
            found += 1;
        }
    }
    assert_eq!(found, 4);
}
