// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users of one device that have a quota each.

use crate::Error;
use crate::sync::{Arc, AtomicU64, Ordering};

/// A user with a quota: the bytes that its live blocks may take, rounded up to
/// 512 each.
///
/// A request is charged before it is served, by one compare-and-swap: two
/// requests that together exceed the quota cannot both be charged, and one that
/// is refused disturbs no other request. The quota is a limit, not a reservation: the device
/// can be full before it is reached.
///
/// ```
/// use tonnage_runtime::{Error, Runtime, Settings, SimConfig, SimDevice, StreamId, Tenant};
///
/// let device = SimDevice::new(SimConfig::with_total(1 << 30));
/// let runtime = Runtime::new(device, Settings::default());
/// let tenant = Tenant::new("search", 10 << 20);
/// let mut front = runtime.front(StreamId(0));
/// let block = front.alloc_for(&tenant, 8 << 20)?;
/// assert!(matches!(front.alloc_for(&tenant, 4 << 20), Err(Error::Quota { .. })));
/// assert_eq!(tenant.used(), 8 << 20);
/// drop(block);
/// assert_eq!(tenant.used(), 0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Tenant {
    name: String,
    quota: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Tenant {
    /// A tenant that uses nothing yet.
    pub fn new(name: impl Into<String>, quota: u64) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            quota,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes it may use.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Bytes of its live blocks.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// The most there ever were.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Acquire)
    }

    /// Charges a block, unless that is above the quota.
    pub(crate) fn charge(self: &Arc<Self>, size: u64) -> Result<Charge, Error> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let more = used.checked_add(size).filter(|&more| more <= self.quota);
            let Some(more) = more else {
                return Err(Error::Quota {
                    tenant: self.name.clone(),
                    requested: size,
                    used,
                    quota: self.quota,
                });
            };
            let swapped =
                self.used
                    .compare_exchange_weak(used, more, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) => {
                    self.peak.fetch_max(more, Ordering::AcqRel);
                    return Ok(Charge {
                        tenant: Arc::clone(self),
                        size,
                    });
                }
                Err(now) => used = now,
            }
        }
    }
}

/// The charge of a tenant for a block, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    tenant: Arc<Tenant>,
    size: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.tenant.used.fetch_sub(self.size, Ordering::AcqRel);
    }
}
