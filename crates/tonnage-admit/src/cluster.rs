// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a cluster: its pods that use claims, and its GPUs. Both are watched, so that an answer asks nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonnage_gpus::Catalogue;

use crate::answer::Known;
use crate::claim::Owner;
use crate::client::{Change, Client, ClientError, List, escaped};
use crate::devices::{Devices, Gpus};
use crate::job::{Jobs, jobs};
use crate::objects::{Pod, ResourceSlice};

/// A pod that is newer than the watch is asked for: so many at a time, and for so long.
const LOOKUPS: usize = 32;
const LOOKUP_TIME: Duration = Duration::from_secs(2);

/// Pods that use claims, by their identity, and the GPUs.
#[derive(Debug)]
pub struct Cache {
    driver: String,
    catalogue: Catalogue,
    pods: RwLock<HashMap<String, Arc<Jobs>>>,
    gpus: RwLock<Arc<Gpus>>,
    has_pods: AtomicBool,
    has_gpus: AtomicBool,
}

impl Cache {
    /// An empty one, for the GPUs of a driver.
    pub fn new(driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            catalogue: Catalogue::embedded(),
            pods: RwLock::default(),
            gpus: RwLock::default(),
            has_pods: AtomicBool::new(false),
            has_gpus: AtomicBool::new(false),
        }
    }

    /// Whether everything was listed once.
    pub fn is_complete(&self) -> bool {
        self.has_pods.load(Ordering::Acquire) && self.has_gpus.load(Ordering::Acquire)
    }

    /// The GPUs.
    pub fn gpus(&self) -> Arc<Gpus> {
        Arc::clone(&self.gpus.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a pod runs.
    pub fn jobs(&self, uid: &str) -> Option<Arc<Jobs>> {
        self.pods
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .cloned()
    }

    /// Takes these pods in place of all others.
    pub fn set_pods(&self, pods: &[Pod]) {
        let pods = pods.iter().filter_map(entry).collect();
        *self.pods.write().unwrap_or_else(PoisonError::into_inner) = pods;
        self.has_pods.store(true, Ordering::Release);
    }

    /// Takes these slices in place of all others.
    pub fn set_slices(&self, slices: &[ResourceSlice]) {
        self.set_devices(&self.devices(slices));
    }

    fn devices(&self, slices: &[ResourceSlice]) -> Devices {
        let mut devices = Devices::default();
        for slice in slices {
            devices.put(slice, &self.driver);
        }
        devices
    }

    fn set_devices(&self, devices: &Devices) {
        let gpus = Arc::new(devices.gpus(&self.catalogue));
        *self.gpus.write().unwrap_or_else(PoisonError::into_inner) = gpus;
        self.has_gpus.store(true, Ordering::Release);
    }
}

/// A pod as it is kept; none if it uses no claim.
fn entry(pod: &Pod) -> Option<(String, Arc<Jobs>)> {
    let jobs = jobs(pod);
    let uid = pod.metadata.uid.clone()?;
    (!jobs.is_empty()).then(|| (uid, Arc::new(jobs)))
}

/// What has ended needs no memory any more.
const PODS: List = List {
    path: "/api/v1/pods",
    fields: "status.phase!=Succeeded,status.phase!=Failed",
};
const SLICES: List = List {
    path: "/apis/resource.k8s.io/v1/resourceslices",
    fields: "",
};

/// Keeps the pods of a cache as they are in the cluster; ends only with the program. What goes wrong is told to
/// `failed`.
pub async fn follow_pods(client: Client, cache: Arc<Cache>, failed: impl Fn(&ClientError)) {
    let pods = || cache.pods.write().unwrap_or_else(PoisonError::into_inner);
    client
        .follow(&PODS, |change: Change<'_, Pod>| match change {
            Change::All(all) => cache.set_pods(&all),
            Change::One(pod) => pods().extend(entry(&pod)),
            Change::Gone(pod) => {
                pods().remove(&pod.metadata.uid.unwrap_or_default());
            }
            Change::Failed(error) => failed(error),
        })
        .await;
}

/// Keeps the GPUs of a cache as they are in the cluster, as [`follow_pods`] does.
pub async fn follow_slices(client: Client, cache: Arc<Cache>, failed: impl Fn(&ClientError)) {
    let mut devices = Devices::default();
    client
        .follow(&SLICES, |change: Change<'_, ResourceSlice>| {
            match change {
                Change::All(all) => devices = cache.devices(&all),
                Change::One(slice) => devices.put(&slice, &cache.driver),
                Change::Gone(slice) => devices.remove(&slice.metadata.name.unwrap_or_default()),
                Change::Failed(error) => return failed(error),
            }
            cache.set_devices(&devices);
        })
        .await;
}

/// Pods, from the cache or by asking the API server.
pub struct Pods {
    cache: Arc<Cache>,
    client: Option<Client>,
    lookups: Semaphore,
}

impl Pods {
    /// Of this cache; without a client, of nothing else.
    pub fn new(cache: Arc<Cache>, client: Option<Client>) -> Self {
        Self {
            cache,
            client,
            lookups: Semaphore::new(LOOKUPS),
        }
    }

    /// What is known of the job of a claim that belongs to `owner`.
    pub async fn known(&self, owner: Option<&Owner>) -> Known {
        let Some(owner) = owner else {
            return Known::Not("the claim belongs to no pod".to_owned());
        };
        let jobs = match self.cache.jobs(&owner.uid) {
            Some(jobs) => jobs,
            None => match tokio::time::timeout(LOOKUP_TIME, self.look_up(owner)).await {
                Ok(Ok(jobs)) => jobs,
                Ok(Err(known)) => return known,
                Err(_) => {
                    return Known::NotNow(format!("pod {} could not be read in time", owner.name));
                }
            },
        };
        let job = match &owner.claim {
            Some(name) => jobs.get(name),
            // Without the annotation there is no doubt only where there is one.
            None => jobs.values().next().filter(|_| jobs.len() == 1),
        };
        match job {
            Some(Ok(job)) => Known::Job(job.clone()),
            Some(Err(reason)) => Known::Not(reason.clone()),
            None => Known::Not(format!("pod {} does not name this claim", owner.name)),
        }
    }

    async fn look_up(&self, owner: &Owner) -> Result<Arc<Jobs>, Known> {
        let not_now = |reason: String| {
            Known::NotNow(format!("pod {} could not be read: {reason}", owner.name))
        };
        let Some(client) = &self.client else {
            return Err(not_now("nobody can be asked".to_owned()));
        };
        let _permit = self
            .lookups
            .acquire()
            .await
            .map_err(|error| not_now(error.to_string()))?;
        let (namespace, name) = (escaped(&owner.namespace), escaped(&owner.name));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        match client.get::<Pod>(&path).await {
            Ok(pod) if pod.metadata.uid.as_ref() == Some(&owner.uid) => Ok(Arc::new(jobs(&pod))),
            Ok(_) => Err(Known::Not(format!("pod {} is gone", owner.name))),
            Err(error) if error.is_not_found() => {
                Err(Known::Not(format!("pod {} is gone", owner.name)))
            }
            Err(error) => Err(not_now(error.to_string())),
        }
    }
}
