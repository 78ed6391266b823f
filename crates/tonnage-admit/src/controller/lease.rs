// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of several controllers does the work: the one that holds a Lease.
//!
//! Two that both think they do would harm nothing, because every step can be done twice. The Lease saves the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use crate::client::{Change, Client, ClientError};

/// A Lease of a namespace, and who wants it.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The namespace.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of this holder: another after every start.
    pub identity: String,
    /// A holder that has not renewed for this long has gone. The others watch that by their own clocks.
    pub term: Duration,
}

impl Lease {
    /// How often a holder renews.
    fn renewal(&self) -> Duration {
        self.term / 5
    }

    /// This long after its last renewal, a holder stops, before another may begin.
    fn last_moment(&self) -> Duration {
        self.term * 2 / 3
    }
}

/// Holds a Lease whenever it is free, and reports it in `holds`; ends only with the program.
pub async fn hold(
    client: Client,
    lease: Lease,
    holds: Arc<AtomicBool>,
    failed: impl Fn(&ClientError),
) {
    // The version that was last seen, and since when it is the same.
    let mut seen: Option<(String, Instant)> = None;
    let mut renewed = Instant::now();
    loop {
        match attempt(&client, &lease, &mut seen).await {
            Ok(held) => {
                renewed = Instant::now();
                holds.store(held, Ordering::Release);
            }
            Err(error) => {
                // Another was faster: that is not a failure, and is checked again.
                if !error.is_conflict() {
                    failed(&error);
                }
                if renewed.elapsed() > lease.last_moment() {
                    holds.store(false, Ordering::Release);
                }
            }
        }
        tokio::time::sleep(lease.renewal()).await;
    }
}

/// Takes or renews the Lease if that is possible; whether it is held.
async fn attempt(
    client: &Client,
    lease: &Lease,
    seen: &mut Option<(String, Instant)>,
) -> Result<bool, ClientError> {
    let list = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
        lease.namespace
    );
    let path = format!("{list}/{}", lease.name);
    let current: Value = match client.get(&path).await {
        Ok(current) => current,
        Err(error) if error.is_not_found() => {
            let new = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": lease.name }, "spec": spec(lease, 0),
            });
            client.change(&list, &Change::Create(new)).await?;
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    let version = current
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let holder = current
        .pointer("/spec/holderIdentity")
        .and_then(Value::as_str);
    let is_ours = holder == Some(lease.identity.as_str());
    if !is_ours {
        let is_free = holder.is_none_or(str::is_empty);
        let since = match seen.take() {
            Some((old, since)) if old == version => since,
            _ => Instant::now(),
        };
        let has_gone = since.elapsed() > lease.term;
        *seen = Some((version.clone(), since));
        if !is_free && !has_gone {
            return Ok(false);
        }
    }
    let changes = current
        .pointer("/spec/leaseTransitions")
        .and_then(Value::as_u64)
        .unwrap_or(0);
    let mut next = current.clone();
    next["spec"] = spec(lease, changes + u64::from(!is_ours));
    client.change(&path, &Change::Replace(next)).await?;
    Ok(true)
}

fn spec(lease: &Lease, changes: u64) -> Value {
    let now: DateTime<Utc> = SystemTime::now().into();
    let now = now.to_rfc3339_opts(SecondsFormat::Micros, true);
    json!({
        "holderIdentity": lease.identity, "leaseDurationSeconds": lease.term.as_secs().max(1), "renewTime": now,
        "acquireTime": now, "leaseTransitions": changes,
    })
}
