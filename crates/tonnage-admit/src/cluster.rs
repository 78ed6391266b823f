// SPDX-License-Identifier: MIT OR Apache-2.0
//! The known state of a cluster: its pods that use claims, and its GPUs. Both are watched, so that an answer needs no
//! request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tonnage_gpus::Catalogue;

use crate::answer::Known;
use crate::claim::Owner;
use crate::client::{Client, ClientError, List, Seen, escaped};
use crate::devices::{Devices, Gpus};
use crate::job::PodJobs;
use crate::objects::{Pod, ResourceClaimTemplate, ResourceSlice};

/// A pod that is newer than the watch is read from the server: at most this many at a time.
const LOOKUPS: usize = 32;

/// Pods that use claims, by their identity, and the GPUs.
#[derive(Debug)]
pub struct Cache {
    driver: String,
    catalogue: Catalogue,
    pods: RwLock<HashMap<String, Arc<PodJobs>>>,
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

    /// Whether the catalogue knows a GPU.
    pub fn knows(&self, gpu: &str) -> bool {
        self.catalogue.find(gpu).is_ok()
    }

    /// The GPUs.
    pub fn gpus(&self) -> Arc<Gpus> {
        Arc::clone(&self.gpus.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The job of a pod.
    pub fn jobs(&self, uid: &str) -> Option<Arc<PodJobs>> {
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
            devices.replace_slice(slice, &self.driver);
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
fn entry(pod: &Pod) -> Option<(String, Arc<PodJobs>)> {
    let kept = PodJobs::from_pod(pod);
    let uid = pod.metadata.uid.clone()?;
    (!kept.jobs.is_empty()).then(|| (uid, Arc::new(kept)))
}

/// Ended pods need no memory any more.
const PODS: List = List {
    path: "/api/v1/pods",
    fields: "status.phase!=Succeeded,status.phase!=Failed",
    labels: "",
};
pub(crate) const SLICES: List = List {
    path: "/apis/resource.k8s.io/v1/resourceslices",
    fields: "",
    labels: "",
};

/// Keeps the pods of a cache as they are in the cluster; ends only with the program. Errors are passed to `failed`.
pub async fn follow_pods(client: Client, cache: Arc<Cache>, failed: impl Fn(&ClientError)) {
    let pods = || cache.pods.write().unwrap_or_else(PoisonError::into_inner);
    client
        .follow(&PODS, |change: Seen<'_, Pod>| match change {
            Seen::All(all) => cache.set_pods(&all),
            Seen::One(pod) => pods().extend(entry(&pod)),
            Seen::Gone(pod) => {
                pods().remove(&pod.metadata.uid.unwrap_or_default());
            }
            Seen::Failed(error) => failed(error),
        })
        .await;
}

/// Keeps the GPUs of a cache as they are in the cluster, as [`follow_pods`] does.
pub async fn follow_slices(client: Client, cache: Arc<Cache>, failed: impl Fn(&ClientError)) {
    let mut devices = Devices::default();
    client
        .follow(&SLICES, |change: Seen<'_, ResourceSlice>| {
            match change {
                Seen::All(all) => devices = cache.devices(&all),
                Seen::One(slice) => devices.replace_slice(&slice, &cache.driver),
                Seen::Gone(slice) => devices.remove(&slice.metadata.name.unwrap_or_default()),
                Seen::Failed(error) => return failed(error),
            }
            cache.set_devices(&devices);
        })
        .await;
}

/// Pods, from the cache or from the API server.
pub struct Pods {
    cache: Arc<Cache>,
    client: Option<Client>,
    lookups: Semaphore,
}

impl Pods {
    /// Pods of this cache; without a client, of no other source.
    pub fn new(cache: Arc<Cache>, client: Option<Client>) -> Self {
        Self {
            cache,
            client,
            lookups: Semaphore::new(LOOKUPS),
        }
    }

    /// The job of a claim that belongs to `owner`, as far as it is known at `deadline`.
    pub async fn find_job(&self, owner: Option<&Owner>, deadline: Instant) -> Known {
        let Some(owner) = owner else {
            return Known::Not("the claim belongs to no pod".to_owned());
        };
        // The server is queried whether a pod still waits: its claim is refused until then, and each refusal makes the
        // next attempt come later.
        let pod = match self.cache.jobs(&owner.uid) {
            Some(pod) if !pod.is_held => pod,
            _ => match timeout_at(deadline, self.look_up(owner)).await {
                Ok(Ok(pod)) => pod,
                Ok(Err(known)) => return known,
                Err(_) => {
                    return Known::NotNow(format!("pod {} could not be read in time", owner.name));
                }
            },
        };
        let job = match &owner.claim {
            Some(name) => pod.jobs.get(name),
            // Without the annotation there is no doubt only where there is one.
            None => pod.jobs.values().next().filter(|_| pod.jobs.len() == 1),
        };
        match job {
            _ if pod.is_held => Known::Later,
            Some(Ok(job)) => Known::Job(Box::new(job.clone())),
            Some(Err(reason)) => Known::Not(reason.clone()),
            None => Known::Not(format!("pod {} does not name this claim", owner.name)),
        }
    }

    /// The template of claims; none if it is missing.
    pub async fn template(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaimTemplate>, ClientError> {
        let Some(client) = &self.client else {
            return Ok(None);
        };
        let (namespace, name) = (escaped(namespace), escaped(name));
        let path = format!(
            "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/{name}"
        );
        match client.get(&path).await {
            Ok(template) => Ok(Some(template)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The client for the API server, if there is one.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    async fn look_up(&self, owner: &Owner) -> Result<Arc<PodJobs>, Known> {
        let not_now = |reason: String| {
            Known::NotNow(format!("pod {} could not be read: {reason}", owner.name))
        };
        let Some(client) = &self.client else {
            return Err(not_now("there is no API server to query".to_owned()));
        };
        let _permit = self
            .lookups
            .acquire()
            .await
            .map_err(|error| not_now(error.to_string()))?;
        let (namespace, name) = (escaped(&owner.namespace), escaped(&owner.name));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        match client.get::<Pod>(&path).await {
            Ok(pod) if pod.metadata.uid.as_ref() == Some(&owner.uid) => {
                Ok(Arc::new(PodJobs::from_pod(&pod)))
            }
            Ok(_) => Err(Known::Not(format!("pod {} is gone", owner.name))),
            Err(error) if error.is_not_found() => {
                Err(Known::Not(format!("pod {} is gone", owner.name)))
            }
            Err(error) => Err(not_now(error.to_string())),
        }
    }
}
