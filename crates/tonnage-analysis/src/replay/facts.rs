// SPDX-License-Identifier: MIT OR Apache-2.0
//! The allocator and the device that a recording was made with.

use serde_json::Value;
use tonnage_alloc::AddressOrder;
use tonnage_alloc::torch::{Backend, Rules, Settings, Version};
use tonnage_recording::facts;
use tonnage_recording::{Meta, meta};

use super::alloc::{Alloc, TorchConf};
use super::requests::Requests;

/// The allocator and the device of a recording, as far as it has them.
#[derive(Clone, Debug)]
pub(super) struct RecordedAs {
    /// Whether PyTorch's allocator made it, rather than a plan or another library.
    pub(super) is_torch: bool,
    /// `PYTORCH_CUDA_ALLOC_CONF`, empty if it was not set.
    pub(super) conf: String,
    /// The allocator that took the place of PyTorch's own, if one did.
    plugged: Option<String>,
    /// The settings in force; `None` if it is not a recording of PyTorch's own allocator.
    pub(super) settings: Option<Settings>,
    /// Whether the recording has them.
    pub(super) settings_known: bool,
    pub(super) version_text: String,
    pub(super) capacity: Option<u64>,
    pub(super) context: Option<u64>,
    pub(super) order: Option<AddressOrder>,
    /// Whether it was made on a device that refused nothing.
    pub(super) unlimited: bool,
}

impl RecordedAs {
    pub(super) fn read(all: &[Meta], process: u32, requests: &Requests) -> Self {
        // Facts about the run stand under process 0.
        let fact = |name: &str| {
            let own = meta::find(all, process, name);
            own.or_else(|| meta::find(all, facts::RUN, name))
        };
        let number = |name: &str| fact(name).and_then(|text| text.parse::<u64>().ok());
        let version_text = fact(meta::TORCH_VERSION).unwrap_or_default().to_owned();
        let is_torch = !version_text.is_empty() || requests.has_segments;
        let conf = meta::find(all, process, meta::ALLOCATOR_CONF).unwrap_or_default();
        let listed = meta::find(all, process, meta::ALLOCATOR_SETTINGS);
        let parsed = conf.parse::<Settings>();
        let dry_run = fact(facts::GPU_ID).is_some();
        let settings_known = parsed.is_ok() && (dry_run || listed.is_some());
        let mut settings = parsed.unwrap_or_default();
        if let Some(Ok(Value::Object(listed))) = listed.map(serde_json::from_str) {
            apply(&mut settings, &listed);
        }
        let plugged = meta::find(all, process, facts::ALLOCATOR).map(str::to_owned);
        let order = fact(facts::ADDRESS_ORDER).and_then(|order| match order {
            "ascending" => Some(AddressOrder::Ascending),
            "descending" => Some(AddressOrder::Descending),
            _ => None,
        });
        Self {
            is_torch,
            conf: conf.to_owned(),
            settings: (is_torch && plugged.is_none()).then_some(settings),
            plugged,
            settings_known,
            version_text,
            capacity: number(meta::GPU_CAPACITY).filter(|&bytes| bytes > 0),
            context: number(meta::GPU_CONTEXT),
            order,
            unlimited: fact(meta::PART) == Some(meta::WHOLE_JOB),
        }
    }

    /// Whether tonnage's allocator made it: pages that it unmaps to map others are not a call of `empty_cache`.
    pub(super) fn moves_pages(&self) -> bool {
        self.plugged.as_deref() == Some(facts::TONNAGE)
    }

    /// The recorded allocator as one that can be replayed.
    pub(super) fn alloc(&self) -> Option<Alloc> {
        if self.moves_pages() {
            return Some(Alloc::Tonnage);
        }
        let settings = self.settings.as_ref()?;
        Some(match settings.backend {
            Backend::CudaMallocAsync => Alloc::CudaMallocAsync,
            // A listed setting wins over the text, which may not even be one.
            Backend::Native => Alloc::Torch(Box::new(TorchConf {
                text: self.conf.clone(),
                settings: settings.clone(),
            })),
        })
    }

    /// The releases that may have made it, the likeliest first, one for each set of rules.
    pub(super) fn versions(&self) -> Vec<Version> {
        let minor = |text: &str| -> Option<u16> {
            let rest = text.trim().strip_prefix("2.")?;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse().ok()
        };
        let recorded = Version::parse(&self.version_text).filter(|version| version.0 >= 2);
        if let Some(version) = recorded {
            return vec![version];
        }
        let mut range = (1, Version::VERIFIED.1);
        for part in self.version_text.split(',') {
            if let Some(from) = part.trim().strip_prefix(">=").and_then(minor) {
                range.0 = from;
                range.1 = range.1.max(from);
            } else if let Some(to) = part.trim().strip_prefix("<=").and_then(minor) {
                range.1 = to;
            }
        }
        let mut versions: Vec<Version> = Vec::new();
        for minor in (range.0.min(range.1)..=range.1).rev() {
            let version = Version(2, minor);
            let rules = Rules::for_version(version);
            if versions
                .iter()
                .all(|known| Rules::for_version(*known) != rules)
            {
                versions.push(version);
            }
        }
        versions
    }

    /// The orders of addresses to try, the likeliest first.
    pub(super) fn orders(&self, requests: &Requests) -> Vec<AddressOrder> {
        let (up, down) = (AddressOrder::Ascending, AddressOrder::Descending);
        match self.order {
            Some(order) => vec![order],
            None if requests.descending > requests.ascending => vec![down, up],
            None => vec![up, down],
        }
    }
}

/// Settings as a snapshot lists them (specification 13.2); they win over the
/// text, because a program may have changed them.
fn apply(settings: &mut Settings, listed: &serde_json::Map<String, Value>) {
    if let Some(on) = listed.get("expandable_segments").and_then(Value::as_bool) {
        settings.expandable_segments = on;
    }
    if let Some(bytes) = listed.get("max_split_size").and_then(Value::as_i64) {
        // -1 means unlimited: the largest unsigned number.
        settings.max_split_size = bytes.cast_unsigned();
    }
    let threshold = listed.get("garbage_collection_threshold");
    if let Some(threshold) = threshold.and_then(Value::as_f64) {
        settings.garbage_collection_threshold = threshold;
    }
    for (index, divisions) in settings.roundup_power2_divisions.iter_mut().enumerate() {
        let key = format!("roundup_power2_divisions.{}", 1_u64 << index);
        if let Some(value) = listed.get(&key).and_then(Value::as_u64) {
            *divisions = value;
        }
    }
}
