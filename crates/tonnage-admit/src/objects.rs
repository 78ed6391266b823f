// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of Kubernetes, as far as an answer needs them; fields that are not named here are passed over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The common fields of objects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Its name.
    pub name: Option<String>,
    /// The start of its name, where the API server chooses one.
    pub generate_name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its identity.
    pub uid: Option<String>,
    /// The state of the cluster that it was read from.
    pub resource_version: Option<String>,
    /// Notes.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Its owners.
    pub owner_references: Option<Vec<OwnerReference>>,
    /// When it was created, as RFC 3339 has it.
    pub creation_timestamp: Option<String>,
}

/// The owner of an object.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// The version of the owner's kind.
    pub api_version: String,
    /// The owner's kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
}

/// `resource.k8s.io/v1`, ResourceClaim: devices that a pod wants.
#[derive(Clone, Debug, Deserialize)]
pub struct ResourceClaim {
    /// Its name and owner.
    #[serde(default)]
    pub metadata: Metadata,
    /// Its request.
    pub spec: ClaimSpec,
}

/// `resource.k8s.io/v1`, ResourceClaimTemplate: what claims are made from.
#[derive(Clone, Debug, Deserialize)]
pub struct ResourceClaimTemplate {
    /// Its name.
    #[serde(default)]
    pub metadata: Metadata,
    /// The claims.
    pub spec: TemplateSpec,
}

/// The claims of a template.
#[derive(Clone, Debug, Deserialize)]
pub struct TemplateSpec {
    /// The request of each.
    pub spec: ClaimSpec,
}

/// The request of a claim.
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimSpec {
    /// The devices.
    pub devices: Option<ClaimDevices>,
}

/// The devices of a claim.
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimDevices {
    /// Each kind of device.
    pub requests: Option<Vec<DeviceRequest>>,
}

/// One of both.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRequest {
    /// This device.
    pub exactly: Option<Wanted>,
    /// The first of these that is free.
    pub first_available: Option<Vec<Wanted>>,
}

/// A device that is wanted.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// Its class.
    pub device_class_name: String,
    /// So many, or all.
    pub allocation_mode: Option<String>,
    /// How many; one by default.
    pub count: Option<u32>,
    /// To watch it, and not to use it.
    pub admin_access: Option<bool>,
    /// How much of it.
    pub capacity: Option<WantedCapacity>,
}

/// How much of a device is wanted.
#[derive(Clone, Debug, Deserialize)]
pub struct WantedCapacity {
    /// By the name of what is shared, as it is written: `28147Mi`.
    pub requests: Option<BTreeMap<String, String>>,
}

/// `resource.k8s.io/v1`, ResourceSlice: devices that a driver has.
#[derive(Clone, Debug, Deserialize)]
pub struct ResourceSlice {
    /// Its name.
    #[serde(default)]
    pub metadata: Metadata,
    /// The driver of the devices, and the devices.
    pub spec: SliceSpec,
}

/// Devices of a driver.
#[derive(Clone, Debug, Deserialize)]
pub struct SliceSpec {
    /// The driver.
    pub driver: String,
    /// Its devices.
    pub devices: Option<Vec<Device>>,
}

/// A device.
#[derive(Clone, Debug, Deserialize)]
pub struct Device {
    /// Its properties.
    pub attributes: Option<BTreeMap<String, Attribute>>,
    /// How much it has.
    pub capacity: Option<BTreeMap<String, Capacity>>,
}

/// The properties of a device.
#[derive(Clone, Debug, Deserialize)]
pub struct Attribute {
    /// In words.
    pub string: Option<String>,
}

/// How much a device has.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// The whole, as it is written: `81559Mi`.
    pub value: String,
    /// The parts of it that claims may take.
    pub request_policy: Option<RequestPolicy>,
}

/// The parts of a capacity that claims may take.
#[derive(Clone, Debug, Deserialize)]
pub struct RequestPolicy {
    /// The part for a claim without a number; all of it, where this is missing.
    pub default: Option<String>,
}

/// `v1`, Pod.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    /// Its name and identity.
    #[serde(default)]
    pub metadata: Metadata,
    /// Its spec.
    pub spec: Option<PodSpec>,
}

/// The spec of a pod.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Containers that run before the others.
    pub init_containers: Option<Vec<Container>>,
    /// Its containers.
    #[serde(default)]
    pub containers: Vec<Container>,
    /// Its names for claims.
    pub resource_claims: Option<Vec<PodClaim>>,
    /// Folders that its containers may have.
    pub volumes: Option<Vec<Value>>,
    /// Its scheduling gates.
    pub scheduling_gates: Option<Vec<Named>>,
    /// Where it is placed.
    pub node_name: Option<String>,
}

/// A pod's name for a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodClaim {
    /// The name.
    pub name: String,
    /// The template of the claim, if it is made for the pod.
    pub resource_claim_template_name: Option<String>,
}

/// Something with a name.
#[derive(Clone, Debug, Deserialize)]
pub struct Named {
    /// The name.
    pub name: String,
}

/// A container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: Option<String>,
    /// The program and its first words.
    pub command: Option<Vec<String>>,
    /// More words.
    pub args: Option<Vec<String>>,
    /// Its environment.
    pub env: Option<Vec<Variable>>,
    /// More of it, from elsewhere.
    pub env_from: Option<Vec<Value>>,
    /// Where it is started.
    pub working_dir: Option<String>,
    /// Folders that are not its image's.
    pub volume_mounts: Option<Vec<Value>>,
    /// Its resources.
    pub resources: Option<Resources>,
}

/// A variable of an environment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Option<String>,
    /// Where its value comes from, if from elsewhere.
    pub value_from: Option<Value>,
}

/// The resources of a container.
#[derive(Clone, Debug, Deserialize)]
pub struct Resources {
    /// Claims, by the pod's names.
    pub claims: Option<Vec<Named>>,
}
