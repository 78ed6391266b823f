// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which GPUs a cluster has: how much memory, and which product of the catalogue.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tonnage_forecast::admit::Sizes;
use tonnage_forecast::kubernetes::quantity;
use tonnage_gpus::Catalogue;

use crate::claim::MEMORY;
use crate::objects::{Device, ResourceSlice};

/// The attribute in which a driver names the product.
const PRODUCT: &str = "productName";

/// A kind of GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    memory: u64,
    /// The part of it that a claim without a number takes.
    default: u64,
    /// The driver's name of the product; empty if it names none.
    product: String,
}

/// The GPUs of a cluster, from its ResourceSlices.
#[derive(Debug, Default)]
pub struct Devices {
    /// By the name of the slice.
    slices: HashMap<String, Vec<Kind>>,
    /// How many there are of each.
    kinds: BTreeMap<Kind, usize>,
}

/// The properties of the GPUs that an answer needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Bytes of the largest and of the smallest; none if no GPU is known.
    pub sizes: Option<Sizes>,
    /// Whether a claim without a number takes a whole GPU, on each of them: some drivers give it a part.
    pub whole_by_default: bool,
    /// Their names in the catalogue; a product that is not in it has the driver's name.
    pub products: BTreeSet<String>,
    /// How many there are.
    pub count: usize,
}

impl Devices {
    /// Takes a slice in place of what was known of it.
    pub fn replace_slice(&mut self, slice: &ResourceSlice, driver: &str) {
        let Some(name) = slice.metadata.name.clone() else {
            return;
        };
        self.remove(&name);
        if slice.spec.driver != driver {
            return;
        }
        let devices = slice.spec.devices.iter().flatten();
        let kinds: Vec<Kind> = devices.filter_map(|device| kind(device, driver)).collect();
        for kind in &kinds {
            *self.kinds.entry(kind.clone()).or_default() += 1;
        }
        self.slices.insert(name, kinds);
    }

    /// Forgets a slice.
    pub fn remove(&mut self, name: &str) {
        for kind in self.slices.remove(name).into_iter().flatten() {
            if let Some(count) = self.kinds.get_mut(&kind) {
                *count -= 1;
                if *count == 0 {
                    self.kinds.remove(&kind);
                }
            }
        }
    }

    /// The GPUs in the catalogue, by its names.
    pub(crate) fn in_catalogue(&self, catalogue: &Catalogue) -> BTreeSet<String> {
        let mut products = self.gpus(catalogue).products;
        products.retain(|id| catalogue.find(id).is_ok());
        products
    }

    /// The properties that an answer needs.
    pub fn gpus(&self, catalogue: &Catalogue) -> Gpus {
        let id = |kind: &Kind| match catalogue.find(&kind.product) {
            Ok(gpu) => gpu.id.clone(),
            Err(_) => kind.product.clone(),
        };
        let ends = (self.kinds.first_key_value(), self.kinds.last_key_value());
        let (Some((smallest, _)), Some((largest, _))) = ends else {
            return Gpus::default();
        };
        Gpus {
            sizes: Some(Sizes {
                smallest: smallest.memory,
                largest: largest.memory,
            }),
            whole_by_default: self.kinds.keys().all(|kind| kind.default >= kind.memory),
            products: self.kinds.keys().map(id).collect(),
            count: self.kinds.values().sum(),
        }
    }
}

/// The kind of a device; none if it does not report its memory.
fn kind(device: &Device, driver: &str) -> Option<Kind> {
    let qualified = |name: &str| format!("{driver}/{name}");
    let capacity = device.capacity.as_ref()?;
    let memory = capacity
        .get(MEMORY)
        .or_else(|| capacity.get(&qualified(MEMORY)))?;
    let attributes = device.attributes.as_ref();
    let product =
        attributes.and_then(|all| all.get(PRODUCT).or_else(|| all.get(&qualified(PRODUCT))));
    let bytes = quantity(&memory.value)?;
    let policy = memory.request_policy.as_ref();
    let default = policy.and_then(|policy| policy.default.as_deref());
    Some(Kind {
        memory: bytes,
        // One that cannot be read is taken for none of it.
        default: default.map_or(bytes, |text| quantity(text).unwrap_or(0)),
        product: product
            .and_then(|product| product.string.clone())
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, driver: &str, memory: &[&str]) -> ResourceSlice {
        let devices: Vec<_> = memory
            .iter()
            .map(|memory| {
                json!({
                    "name": "gpu-0", "capacity": { "memory": { "value": memory } },
                    "attributes": { "productName": { "string": "NVIDIA H100 80GB HBM3" } },
                })
            })
            .collect();
        let pool = json!({ "name": name, "generation": 1, "resourceSliceCount": 1 });
        let slice = json!({ "metadata": { "name": name }, "spec": { "driver": driver, "pool": pool, "devices": devices } });
        serde_json::from_value(slice).expect("a slice")
    }

    #[test]
    fn the_largest_gpu_is_known_whatever_comes_and_goes() {
        let catalogue = Catalogue::embedded();
        let mut devices = Devices::default();
        let driver = "gpu.nvidia.com";
        assert_eq!(devices.gpus(&catalogue), Gpus::default());
        devices.replace_slice(&slice("a", driver, &["81559Mi", "81559Mi"]), driver);
        devices.replace_slice(&slice("b", driver, &["143771Mi", "nonsense"]), driver);
        devices.replace_slice(&slice("c", "memory.example.com", &["1Ti"]), driver);
        let gpus = devices.gpus(&catalogue);
        let mixed = Sizes {
            smallest: 81_559 << 20,
            largest: 143_771 << 20,
        };
        assert_eq!((gpus.sizes, gpus.count), (Some(mixed), 3));
        assert!(gpus.whole_by_default);
        assert_eq!(gpus.products, BTreeSet::from(["h100-80gb".to_owned()]));
        // The same slice again replaces what was known of it.
        devices.replace_slice(&slice("b", driver, &["40Gi"]), driver);
        let largest = |devices: &Devices| devices.gpus(&catalogue).sizes.map(|sizes| sizes.largest);
        assert_eq!(largest(&devices), Some(81_559 << 20));
        devices.remove("a");
        devices.remove("a");
        assert_eq!(largest(&devices), Some(40 << 30));
        devices.remove("b");
        assert_eq!(devices.gpus(&catalogue), Gpus::default());
    }
}
