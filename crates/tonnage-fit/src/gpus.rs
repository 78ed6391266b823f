// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which GPU a job fits on.
//!
//! Libraries choose kernels by the architecture of a GPU, and some of them take memory. So the job is run once for each
//! architecture, on its largest GPU. A replay finds its need there. The need is the same on the other GPUs
//! of that architecture, apart from the context.

use std::collections::BTreeMap;

use serde::Serialize;
use tonnage_gpus::Gpu;
use tonnage_run::RunError;

use crate::variants::{Evidence, Trial, Variant, Variants};

/// Whether a job fits on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GpuVerdict {
    /// The catalogue's name.
    pub gpu: String,
    /// The driver's name.
    pub name: String,
    /// Bytes of its memory.
    pub capacity: u64,
    /// Whether the job fits with the margin; none if the job fails there for another reason.
    pub fits: Option<bool>,
    /// Bytes that the job needs there, context included.
    pub need: Option<u64>,
    /// How that is known.
    pub evidence: Evidence,
    /// The GPU of the same architecture on which the job was run dry.
    pub run_on: String,
    /// Why the job fails there, if it does.
    pub why: Option<String>,
    /// Its price, as it was given.
    pub price: Option<f64>,
}

/// The largest GPU of each architecture.
fn largest_of_each(gpus: &[Gpu]) -> Vec<&Gpu> {
    let mut largest: BTreeMap<(u32, u32), &Gpu> = BTreeMap::new();
    for gpu in gpus {
        let architecture = (gpu.compute_capability.major, gpu.compute_capability.minor);
        let known = largest.entry(architecture).or_insert(gpu);
        if gpu.total_memory.value > known.total_memory.value {
            *known = gpu;
        }
    }
    largest.into_values().collect()
}

/// Judges the job on each GPU, the smallest first; with prices, the cheapest first.
pub(crate) fn judge(
    variants: &mut Variants<'_>,
    variant: &Variant,
    gpus: &[Gpu],
    prices: &BTreeMap<String, f64>,
    width: usize,
) -> Result<Vec<GpuVerdict>, RunError> {
    let runs = largest_of_each(gpus);
    let wanted: Vec<Variant> = runs
        .iter()
        .map(|gpu| Variant {
            gpu: Some((*gpu).clone()),
            ..variant.clone()
        })
        .collect();
    let trials = variants.run(&wanted, width)?;
    let mut verdicts = Vec::new();
    for (run_on, trial) in runs.iter().zip(&trials) {
        let Some(trial) = trial else {
            continue;
        };
        let same = |gpu: &&Gpu| gpu.compute_capability == run_on.compute_capability;
        for gpu in gpus.iter().filter(same) {
            let price = prices.get(&gpu.id).copied();
            verdicts.push(verdict(gpu, run_on, trial, price));
        }
    }
    verdicts.sort_by(|one, other| {
        let price = |verdict: &GpuVerdict| verdict.price.unwrap_or(f64::INFINITY);
        let by_price = price(one).total_cmp(&price(other));
        by_price.then_with(|| (one.capacity, &one.gpu).cmp(&(other.capacity, &other.gpu)))
    });
    Ok(verdicts)
}

fn verdict(gpu: &Gpu, run_on: &Gpu, trial: &Trial, price: Option<f64>) -> GpuVerdict {
    let capacity = gpu.total_memory.value;
    let need = trial.need.map(|need| {
        let without = need.saturating_sub(run_on.context.value);
        without.saturating_add(gpu.context.value)
    });
    let fits = match (need, &trial.why) {
        (_, Some(_)) => None,
        (Some(need), None) => Some(need.saturating_add(trial.margin) <= capacity),
        (None, None) => Some(false),
    };
    GpuVerdict {
        gpu: gpu.id.clone(),
        name: gpu.name.clone(),
        capacity,
        fits,
        need,
        evidence: trial.evidence,
        run_on: run_on.id.clone(),
        why: trial.why.clone(),
        price,
    }
}
