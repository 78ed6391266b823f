// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage.dev/v1alpha1`, Forecast: what a job takes, kept in the cluster. And the Jobs that find it out.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tonnage_forecast::message::Message;
use tonnage_forecast::{Forecast, ForecastError, JobKey, MIB};

use crate::client::escaped;
use crate::objects::Metadata;

/// The version of the custom resource.
pub const API_VERSION: &str = "tonnage.dev/v1alpha1";
/// All forecasts of the cluster.
pub const FORECASTS: &str = "/apis/tonnage.dev/v1alpha1/forecasts";

/// The path of forecasts of a namespace.
pub(crate) fn forecasts_of(namespace: &str) -> String {
    let namespace = escaped(namespace);
    format!("/apis/tonnage.dev/v1alpha1/namespaces/{namespace}/forecasts")
}

/// Characters of a message in a status.
const MAX_SENTENCE: usize = 1000;

/// The memory of a job on one kind of GPU.
#[derive(Clone, Debug, Deserialize)]
pub struct ForecastObject {
    /// Its name, namespace and version.
    pub metadata: Metadata,
    /// Which job, and which GPU.
    pub spec: ForecastSpec,
    /// Its status.
    #[serde(default)]
    pub status: ForecastStatus,
}

/// Which job, and which GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastSpec {
    /// The words of its command, the program without a folder.
    pub command: Vec<String>,
    /// Its image, as pods write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Settings of PyTorch's allocator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator: Option<String>,
    /// A digest of the other fields of its container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// The catalogue's name of the GPU.
    pub gpu: String,
    /// How many GPUs it has, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

impl ForecastSpec {
    /// That of a job of a pod, with so many GPUs of this kind.
    pub fn new(job: &JobKey, gpu: &str, gpus: u32) -> Self {
        Self {
            command: job.command.clone(),
            image: job.image.clone(),
            allocator: job.allocator.clone(),
            environment: job.environment.clone(),
            gpu: gpu.to_owned(),
            gpus: (gpus > 1).then_some(gpus),
        }
    }

    /// The inputs of its forecast. The files that the words name are in the image.
    pub fn key(&self) -> JobKey {
        JobKey {
            command: self.command.clone(),
            image: self.image.clone(),
            allocator: self.allocator.clone(),
            environment: self.environment.clone(),
            gpu: self.gpu.clone(),
            gpus: self.gpus,
            ..JobKey::default()
        }
    }

    /// The name of its object: the same for the same job, so that it is made once.
    pub fn name(&self) -> String {
        let job = self.key().job_name();
        match self.gpus {
            Some(gpus) => format!("{job}-{}-x{gpus}", self.gpu),
            None => format!("{job}-{}", self.gpu),
        }
    }
}

/// How far a forecast is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Its dry run has not started.
    #[default]
    Pending,
    /// Its dry run was started.
    Running,
    /// It is there.
    Ready,
    /// There is none, and the message has the reason.
    Failed,
}

/// The status of a forecast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForecastStatus {
    /// How far it is.
    #[serde(default)]
    pub phase: Phase,
    /// Which attempt this is; the first is 0.
    #[serde(default)]
    pub attempt: u32,
    /// When the last attempt ended, as RFC 3339 has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// The request for each GPU: `1252Mi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// In a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The forecast as `tonnage forecast` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Value>,
}

impl ForecastStatus {
    /// That of an attempt which has ended with these last words.
    pub fn of_message(text: &str, spec: &ForecastSpec, attempt: u32, now: u64) -> Self {
        match Message::forecast(text, spec.key()) {
            Ok(forecast) => {
                let amount = forecast.request(forecast.fullest());
                Self {
                    phase: Phase::Ready,
                    attempt,
                    finished_at: Some(written(now)),
                    memory: amount.map(|bytes| format!("{}Mi", bytes.div_ceil(MIB))),
                    message: Some(shortened(&forecast.sentence())),
                    forecast: serde_json::to_value(&forecast).ok(),
                }
            }
            Err(ForecastError::NoAnswer(reason)) => Self::failed(&reason, attempt, now),
            Err(error) => Self::failed(
                &format!("the report of the dry run is {error}"),
                attempt,
                now,
            ),
        }
    }

    /// That of an attempt which gave no forecast.
    pub fn failed(reason: &str, attempt: u32, now: u64) -> Self {
        Self {
            phase: Phase::Failed,
            attempt,
            finished_at: Some(written(now)),
            message: Some(shortened(reason)),
            ..Self::default()
        }
    }
}

impl ForecastObject {
    /// Whether nothing more comes of it by itself.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase, Phase::Ready | Phase::Failed)
    }

    /// Whether it failed so long ago that it is tried again for a pod that comes now.
    pub fn is_due(&self, retry_after: u64, now: u64) -> bool {
        let finished = self.status.finished_at.as_deref().and_then(read);
        self.status.phase == Phase::Failed
            && finished.is_none_or(|finished| now >= finished.saturating_add(retry_after))
    }

    /// The forecast, if it is one, and of this job.
    pub fn forecast(&self) -> Option<Forecast> {
        let json = serde_json::to_vec(self.status.forecast.as_ref()?).ok()?;
        let forecast = Forecast::parse(&json).ok()?;
        let mut key = self.spec.key();
        key.torch.clone_from(&forecast.key.torch);
        (self.status.phase == Phase::Ready && forecast.key == key).then_some(forecast)
    }

    /// The name of the Job of the attempt that is now.
    pub fn job_name(&self) -> String {
        format!("tonnage-{}-{}", self.spec.name(), self.status.attempt)
    }

    /// As JSON, with another status.
    pub fn with_status(&self, status: &ForecastStatus) -> Value {
        json!({
            "apiVersion": API_VERSION, "kind": "Forecast",
            "metadata": {
                "name": self.metadata.name, "namespace": self.metadata.namespace,
                "resourceVersion": self.metadata.resource_version,
            },
            "spec": self.spec, "status": status,
        })
    }
}

/// `batch/v1`, Job.
#[derive(Clone, Debug, Deserialize)]
pub struct Job {
    /// Its name, and when it was created.
    pub metadata: Metadata,
    /// Its outcome.
    #[serde(default)]
    pub status: JobStatus,
}

/// The outcome of a Job.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct JobStatus {
    /// Sentences of its controller.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// A sentence of a controller.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its subject.
    pub r#type: String,
    /// Whether it is so.
    pub status: String,
    /// In a word.
    #[serde(default)]
    pub reason: String,
    /// In words.
    #[serde(default)]
    pub message: String,
    /// Since when.
    pub last_transition_time: Option<String>,
}

impl Job {
    /// The sentence with which it has ended.
    pub fn ended(&self) -> Option<&Condition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|one| {
            one.status == "True" && matches!(one.r#type.as_str(), "Complete" | "Failed")
        })
    }
}

/// `v1`, Pod of a Job, as far as its result needs it.
#[derive(Clone, Debug, Deserialize)]
pub struct JobPod {
    /// Its name, and the Job that owns it.
    pub metadata: Metadata,
    /// The outcome of its containers.
    #[serde(default)]
    pub status: JobPodStatus,
}

/// The outcome of the containers of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobPodStatus {
    /// Each of them.
    #[serde(default)]
    pub container_statuses: Vec<ContainerStatus>,
}

/// The outcome of a container.
#[derive(Clone, Debug, Deserialize)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// How far it is.
    #[serde(default)]
    pub state: ContainerState,
}

/// How far a container is.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ContainerState {
    /// If it has ended.
    pub terminated: Option<Terminated>,
}

/// How a container has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated {
    /// Its exit code.
    #[serde(default)]
    pub exit_code: i32,
    /// In a word.
    #[serde(default)]
    pub reason: String,
    /// Its last words.
    #[serde(default)]
    pub message: String,
    /// The uid of the Job that owns its pod. Not every pod that names a Job is one of it.
    #[serde(skip)]
    pub job: String,
}

/// A time as Kubernetes writes it.
pub fn written(seconds: u64) -> String {
    time(seconds).to_rfc3339_opts(SecondsFormat::Secs, true)
}

pub(super) fn time(seconds: u64) -> DateTime<Utc> {
    let seconds = i64::try_from(seconds).unwrap_or_default();
    DateTime::from_timestamp(seconds, 0).unwrap_or_default()
}

/// Seconds since 1970 of a time that Kubernetes wrote.
pub fn read(time: &str) -> Option<u64> {
    let time = DateTime::parse_from_rfc3339(time).ok()?;
    u64::try_from(time.timestamp()).ok()
}

/// One line of bounded length.
fn shortened(text: &str) -> String {
    let text = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    text.take(MAX_SENTENCE).collect()
}
