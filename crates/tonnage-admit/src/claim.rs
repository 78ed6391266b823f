// SPDX-License-Identifier: MIT OR Apache-2.0
//! The request of a claim, and the changes that write a number into it.

use serde_json::{Value, json};
use tonnage_forecast::MIB;
use tonnage_forecast::admit::Asked;
use tonnage_forecast::kubernetes::quantity;

use crate::objects::{ClaimSpec, ResourceClaim, Wanted};

/// The annotation of a claim that names the pod's entry for which it is made.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// The capacity of a GPU.
pub(crate) const MEMORY: &str = "memory";

/// Requests of a claim with their alternatives, at most: Kubernetes refuses more than 32 with 8 each, after the webhook.
const MAX_REQUESTS: usize = 256;

/// The pod for which a claim is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity: a later pod of the same name is another.
    pub uid: String,
    /// Its own name for the claim.
    pub claim: Option<String>,
}

/// A request for GPUs within a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it stands, as a JSON pointer.
    path: String,
    /// Its request for each GPU.
    pub asked: Asked,
    /// How many GPUs; none for all that there are.
    pub count: Option<u32>,
    /// Whether it has `capacity` and `capacity.requests` already.
    has: (bool, bool),
}

/// The reason why a request cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

/// The pod that owns a claim; none if the claim was made by hand.
pub fn owner(claim: &ResourceClaim) -> Option<Owner> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut pods = owners.filter(|owner| owner.kind == "Pod" && owner.api_version == "v1");
    let pod = pods.next()?;
    let annotations = claim.metadata.annotations.as_ref();
    Some(Owner {
        namespace: claim.metadata.namespace.clone().unwrap_or_default(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        claim: annotations.and_then(|all| all.get(POD_CLAIM_NAME)).cloned(),
    })
}

/// The requests of a claim for devices of these classes.
pub fn requests(
    spec: &ClaimSpec,
    driver: &str,
    classes: &[String],
) -> Result<Vec<Request>, Unreadable> {
    let devices = spec.devices.as_ref();
    let requests = devices.and_then(|devices| devices.requests.as_ref());
    let mut found = Vec::new();
    for (number, request) in requests.into_iter().flatten().enumerate() {
        let base = format!("/spec/devices/requests/{number}");
        let exactly = request
            .exactly
            .iter()
            .map(|one| (format!("{base}/exactly"), one));
        let alternatives = request.first_available.iter().flatten().enumerate();
        let alternatives =
            alternatives.map(|(place, one)| (format!("{base}/firstAvailable/{place}"), one));
        for (path, wanted) in exactly.chain(alternatives) {
            // A claim that only monitors a device uses none of its memory.
            if classes.contains(&wanted.device_class_name) && wanted.admin_access != Some(true) {
                if found.len() == MAX_REQUESTS {
                    return Err(Unreadable("a claim has at most 32 requests".to_owned()));
                }
                found.push(read(path, wanted, driver)?);
            }
        }
    }
    Ok(found)
}

fn read(path: String, wanted: &Wanted, driver: &str) -> Result<Request, Unreadable> {
    let capacity = wanted.capacity.as_ref();
    let requests = capacity.and_then(|capacity| capacity.requests.as_ref());
    let qualified = format!("{driver}/{MEMORY}");
    let memory = requests.and_then(|all| all.get(MEMORY).or_else(|| all.get(&qualified)));
    let asked = match (memory, wanted.allocation_mode.as_deref()) {
        (Some(memory), _) => {
            let unreadable = || {
                let start: String = memory.chars().take(40).collect();
                Unreadable(format!("{start:?} is not an amount of memory"))
            };
            Asked::Bytes(quantity(memory).ok_or_else(unreadable)?)
        }
        // All devices of a pool, each as a whole.
        (None, Some("All")) => Asked::WholeGpus,
        (None, _) => Asked::Nothing,
    };
    Ok(Request {
        path,
        asked,
        count: match wanted.allocation_mode.as_deref() {
            Some("All") => None,
            _ => Some(wanted.count.unwrap_or(1)),
        },
        has: (capacity.is_some(), requests.is_some()),
    })
}

impl Request {
    /// The change that writes so many bytes of each GPU.
    pub fn write(&self, bytes: u64) -> Value {
        let (path, amount) = (&self.path, amount(bytes));
        match self.has {
            (false, _) => add(
                &format!("{path}/capacity"),
                &json!({ "requests": { MEMORY: amount } }),
            ),
            (true, false) => add(
                &format!("{path}/capacity/requests"),
                &json!({ MEMORY: amount }),
            ),
            (true, true) => add(
                &format!("{path}/capacity/requests/{MEMORY}"),
                &json!(amount),
            ),
        }
    }
}

/// Bytes as Kubernetes writes them, in MiB where they are whole.
fn amount(bytes: u64) -> String {
    match bytes % MIB {
        0 => format!("{}Mi", bytes / MIB),
        _ => bytes.to_string(),
    }
}

/// The changes that write annotations.
pub fn annotate(claim: &ResourceClaim, annotations: &[(&str, &str)]) -> Vec<Value> {
    if annotations.is_empty() {
        return Vec::new();
    }
    if claim.metadata.annotations.is_none() {
        let all: serde_json::Map<String, Value> = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        return vec![add("/metadata/annotations", &Value::Object(all))];
    }
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    annotations
        .iter()
        .map(|(key, value)| {
            add(
                &format!("/metadata/annotations/{}", escaped(key)),
                &json!(value),
            )
        })
        .collect()
}

fn add(path: &str, value: &Value) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_again_as_they_were_written() {
        for bytes in [0, 1, MIB, 28_147 * MIB + 1, u64::MAX] {
            assert_eq!(quantity(&amount(bytes)), Some(bytes));
        }
        assert_eq!(amount(28_147 * MIB), "28147Mi");
    }
}
