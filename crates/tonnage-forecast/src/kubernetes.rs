// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live account of a Kubernetes cluster: ResourceSlices list the devices, ResourceClaims their users.
//!
//! Read from the output of `kubectl get resourceslices,resourceclaims -A -o json`, so that a report needs no access to
//! the cluster itself. Unknown fields and other objects are skipped.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use crate::place::{Gpu, Job};

/// The capacity that memory is accounted under.
const MEMORY: &str = "memory";
/// A claim of more devices than a machine has is not one that can be placed.
const MAX_COUNT: u64 = 1024;

/// The devices, their users, and the waiting claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Every GPU, by machine and name.
    pub gpus: Vec<Gpu>,
    /// The allocations of claims.
    pub shares: Vec<Share>,
    /// Claims that have been given nothing yet, in the order in which they were made.
    pub waiting: Vec<Waiting>,
}

/// The part of a GPU that a claim was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its owner.
    pub namespace: String,
    /// The number of the GPU in the account.
    pub gpu: usize,
    /// Bytes.
    pub bytes: u64,
    /// Whether the claim named no number and got the whole GPU.
    pub whole: bool,
}

/// A claim that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its owner.
    pub namespace: String,
    /// Its request; bytes are those of the largest GPU if it names none.
    pub job: Job,
}

/// Why an account cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AccountError {
    /// It is not JSON of Kubernetes.
    #[error("not what `kubectl get -o json` prints: {0}")]
    Json(String),
    /// It has no GPU.
    #[error("it has no ResourceSlice with devices that have a capacity `memory`")]
    NoDevices,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    items: Vec<Object>,
    spec: Option<serde_json::Value>,
    status: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    creation_timestamp: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceSpec {
    driver: String,
    #[serde(default)]
    node_name: String,
    pool: Pool,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Pool {
    name: String,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    #[serde(default)]
    capacity: BTreeMap<String, Capacity>,
}

#[derive(Deserialize)]
struct Capacity {
    value: String,
}

#[derive(Deserialize)]
struct ClaimSpec {
    #[serde(default)]
    devices: ClaimDevices,
}

#[derive(Default, Deserialize)]
struct ClaimDevices {
    #[serde(default)]
    requests: Vec<Request>,
}

#[derive(Deserialize)]
struct Request {
    exactly: Option<Exactly>,
}

#[derive(Deserialize)]
struct Exactly {
    count: Option<u64>,
    capacity: Option<Requests>,
}

#[derive(Default, Deserialize)]
struct Requests {
    #[serde(default)]
    requests: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct ClaimStatus {
    allocation: Option<Allocation>,
}

#[derive(Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Results,
}

#[derive(Default, Deserialize)]
struct Results {
    #[serde(default)]
    results: Vec<Given>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    driver: String,
    pool: String,
    device: String,
    consumed_capacity: Option<BTreeMap<String, String>>,
    #[serde(default)]
    admin_access: Option<bool>,
}

impl Account {
    /// Reads what kubectl printed, in one or several documents.
    pub fn parse<'a>(documents: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, AccountError> {
        let mut objects = Vec::new();
        for json in documents {
            let object: Object = serde_json::from_slice(json)
                .map_err(|error| AccountError::Json(error.to_string()))?;
            objects.push(object);
        }
        // Lists hold objects, and lists of lists are what kubectl makes of several files.
        let mut flat = Vec::new();
        while let Some(mut object) = objects.pop() {
            objects.append(&mut object.items);
            flat.push(object);
        }
        let mut numbers = BTreeMap::new();
        let mut account = Self::default();
        let mut slices: Vec<SliceSpec> = flat
            .iter()
            .filter(|object| object.kind == "ResourceSlice")
            .filter_map(|object| serde_json::from_value(object.spec.clone()?).ok())
            .collect();
        slices.sort_by(|a, b| (&a.node_name, &a.pool.name).cmp(&(&b.node_name, &b.pool.name)));
        for slice in slices {
            for device in slice.devices {
                let capacity = device
                    .capacity
                    .get(MEMORY)
                    .and_then(|capacity| quantity(&capacity.value));
                let Some(capacity) = capacity.filter(|&bytes| bytes > 0) else {
                    continue;
                };
                let key = (
                    slice.driver.clone(),
                    slice.pool.name.clone(),
                    device.name.clone(),
                );
                let number = account.gpus.len();
                // A slice that is being replaced is there twice for a moment.
                if let std::collections::btree_map::Entry::Vacant(entry) = numbers.entry(key) {
                    entry.insert(number);
                    account.gpus.push(Gpu {
                        node: slice.node_name.clone(),
                        name: device.name,
                        capacity,
                        used: 0,
                    });
                }
            }
        }
        if account.gpus.is_empty() {
            return Err(AccountError::NoDevices);
        }
        let largest = account
            .gpus
            .iter()
            .map(|gpu| gpu.capacity)
            .max()
            .unwrap_or(0);
        let mut claims: Vec<&Object> = flat
            .iter()
            .filter(|object| object.kind == "ResourceClaim")
            .collect();
        claims.sort_by(|a, b| {
            let key = |object: &Object| {
                (
                    object.metadata.creation_timestamp.clone(),
                    object.metadata.name.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        for claim in claims {
            account.add(claim, &numbers, largest);
        }
        Ok(account)
    }

    fn add(
        &mut self,
        claim: &Object,
        numbers: &BTreeMap<(String, String, String), usize>,
        largest: u64,
    ) {
        let namespace = claim.metadata.namespace.clone();
        let status: ClaimStatus = claim
            .status
            .clone()
            .and_then(|status| serde_json::from_value(status).ok())
            .unwrap_or_default();
        if let Some(allocation) = status.allocation {
            for given in allocation.devices.results {
                // An administrator looks at a device and takes nothing of it.
                if given.admin_access == Some(true) {
                    continue;
                }
                let Some(&number) = numbers.get(&(given.driver, given.pool, given.device)) else {
                    continue;
                };
                let gpu = &mut self.gpus[number];
                let consumed = given
                    .consumed_capacity
                    .as_ref()
                    .and_then(|all| quantity(all.get(MEMORY)?));
                let bytes = consumed.unwrap_or(gpu.capacity);
                gpu.used = gpu.used.saturating_add(bytes);
                self.shares.push(Share {
                    namespace: namespace.clone(),
                    gpu: number,
                    bytes,
                    whole: bytes >= gpu.capacity,
                });
            }
            return;
        }
        let spec: Option<ClaimSpec> = claim
            .spec
            .clone()
            .and_then(|spec| serde_json::from_value(spec).ok());
        for request in spec.map_or_else(Vec::new, |spec| spec.devices.requests) {
            let Some(exactly) = request.exactly else {
                continue;
            };
            let asked = exactly
                .capacity
                .as_ref()
                .and_then(|capacity| quantity(capacity.requests.get(MEMORY)?));
            let count = exactly.count.unwrap_or(1).min(MAX_COUNT);
            self.waiting.push(Waiting {
                namespace: namespace.clone(),
                job: Job {
                    name: claim.metadata.name.clone(),
                    gpus: usize::try_from(count).unwrap_or(1),
                    bytes: asked.unwrap_or(largest),
                },
            });
        }
    }
}

/// A quantity of Kubernetes in whole bytes, rounded up: `39Gi`, `81559Mi`, `1.5G`, `1e9`, `128974848`.
pub fn quantity(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    // As a fraction of powers of ten: floats would not be exact.
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') || part.len() > 18 {
        return None;
    }
    let digits: u128 = format!("0{whole}{part}").parse().ok()?;
    let mut divisor = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let ten = |power: u32| 10_u128.checked_pow(power);
    let factor = match suffix {
        "" => 1,
        "m" => {
            divisor = divisor.checked_mul(1000)?;
            1
        }
        "k" => ten(3)?,
        "M" => ten(6)?,
        "G" => ten(9)?,
        "T" => ten(12)?,
        "P" => ten(15)?,
        "E" => ten(18)?,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        exponent => ten(exponent.strip_prefix(['e', 'E'])?.parse().ok()?)?,
    };
    u64::try_from(digits.checked_mul(factor)?.div_ceil(divisor)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_exactly() {
        for (text, bytes) in [
            ("39Gi", Some(39 << 30)),
            ("81559Mi", Some(81559 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("128974848", Some(128_974_848)),
            ("1e9", Some(1_000_000_000)),
            ("129M", Some(129_000_000)),
            ("1500m", Some(2)),
            ("0.1", Some(1)),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("Gi", None),
            ("-1", None),
            ("1Qi", None),
            ("99999999999Ei", None),
            ("1e400", None),
            ("99999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(quantity(text), bytes, "{text}");
        }
    }

    const CLAIMS: &str = r#"{"kind": "List", "items": [
      {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n"},
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}, {"name": "gpu-1", "capacity": {"memory": {"value": "80Gi"}}},
                    {"name": "nic-0"}]}},
      {"kind": "ResourceClaim", "metadata": {"name": "b", "namespace": "vision", "creationTimestamp": "2026-02-02"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"count": 2, "capacity": {"requests": {"memory": "30Gi"}}}}]}}},
      {"kind": "ResourceClaim", "metadata": {"name": "a", "namespace": "vision", "creationTimestamp": "2026-01-01"},
        "spec": {}, "status": {"allocation": {"devices": {"results": [
          {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0", "consumedCapacity": {"memory": "30Gi"}},
          {"driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-1"},
          {"driver": "gpu.nvidia.com", "pool": "elsewhere", "device": "gpu-1"}]}}}},
      {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}]}"#;

    #[test]
    fn what_claims_have_and_want_is_read() {
        let account = Account::parse([CLAIMS.as_bytes()]).expect("an account");
        let used: Vec<u64> = account.gpus.iter().map(|gpu| gpu.used >> 30).collect();
        assert_eq!(used, [30, 80]);
        let whole: Vec<bool> = account.shares.iter().map(|share| share.whole).collect();
        assert_eq!(whole, [false, true]);
        assert_eq!(account.waiting.len(), 1);
        assert_eq!(
            (
                account.waiting[0].job.gpus,
                account.waiting[0].job.bytes >> 30
            ),
            (2, 30)
        );
    }

    #[test]
    fn hostile_documents_are_refused() {
        for json in ["", "[]", "{", "{\"items\": 3}", "{\"kind\": \"List\"}"] {
            assert!(Account::parse([json.as_bytes()]).is_err(), "{json}");
        }
        let deep = format!("{}{}", "{\"items\":[".repeat(200_000), "]}".repeat(200_000));
        assert!(Account::parse([deep.as_bytes()]).is_err());
    }
}
