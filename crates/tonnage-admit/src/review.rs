// SPDX-License-Identifier: MIT OR Apache-2.0
//! AdmissionReview, version `admission.k8s.io/v1`: what the API server sends, and what it gets back.

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::answer::Answer;
use crate::objects::{Pod, ResourceClaim};

/// The supported version.
const VERSION: &str = "admission.k8s.io/v1";
/// Characters of a warning; the API server shortens longer ones.
const MAX_WARNING: usize = 256;

/// A question of the API server.
#[derive(Debug)]
pub struct Request {
    /// Repeated in the response.
    pub uid: String,
    /// Its subject.
    pub subject: Subject,
}

/// The subject of a question.
#[derive(Debug)]
pub enum Subject {
    /// A claim is created.
    Claim(Box<ResourceClaim>),
    /// A pod is created.
    Pod(Box<Pod>),
    /// An object without an answer: the webhook was registered for too much.
    Other,
}

/// The reason why a body is not a question.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReviewError {
    /// It is not the JSON of a review.
    #[error("not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// It is another version.
    #[error("{0:?} is not {VERSION}")]
    Version(String),
    /// It has no question.
    #[error("the AdmissionReview has no request with a uid")]
    NoRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    request: Option<RawRequest>,
}

#[derive(Deserialize)]
struct RawRequest {
    uid: String,
    kind: Kind,
    operation: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    object: Value,
}

#[derive(Deserialize)]
struct Kind {
    group: String,
    version: String,
    #[serde(rename = "kind")]
    name: String,
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<Request, ReviewError> {
    let review: Review = serde_json::from_slice(body)?;
    if review.api_version != VERSION {
        return Err(ReviewError::Version(review.api_version));
    }
    let request = review
        .request
        .filter(|request| !request.uid.is_empty())
        .ok_or(ReviewError::NoRequest)?;
    let Kind {
        group,
        version,
        name,
    } = &request.kind;
    let kind = [group, version, name];
    // A new object may leave its namespace to the address of the request.
    let subject = match kind.map(String::as_str) {
        _ if request.operation != "CREATE" => Subject::Other,
        ["resource.k8s.io", "v1", "ResourceClaim"] => {
            let mut claim: ResourceClaim = serde_json::from_value(request.object)?;
            claim.metadata.namespace = claim.metadata.namespace.or(request.namespace);
            Subject::Claim(Box::new(claim))
        }
        ["", "v1", "Pod"] => {
            let mut pod: Pod = serde_json::from_value(request.object)?;
            pod.metadata.namespace = pod.metadata.namespace.or(request.namespace);
            Subject::Pod(Box::new(pod))
        }
        _ => Subject::Other,
    };
    Ok(Request {
        uid: request.uid,
        subject,
    })
}

/// The review that goes back.
pub fn response(uid: &str, answer: &Answer) -> Value {
    let mut response = json!({ "uid": uid, "allowed": answer.refused.is_none() });
    if let Some(reason) = &answer.refused {
        response["status"] =
            json!({ "code": 403, "reason": "Forbidden", "message": format!("tonnage: {reason}") });
    }
    if let Some(warning) = &answer.warning {
        response["warnings"] = json!([format!("tonnage: {warning}")
            .chars()
            .take(MAX_WARNING)
            .collect::<String>()]);
    }
    if !answer.patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(base64(json!(answer.patch).to_string().as_bytes()));
    }
    json!({ "apiVersion": VERSION, "kind": "AdmissionReview", "response": response })
}

/// As JSON carries bytes in Kubernetes.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three
            .iter()
            .fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte))
            << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place > three.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_packed_as_rfc_4648_has_it() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(super::base64(bytes.as_bytes()), text);
        }
    }
}
