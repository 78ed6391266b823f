// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program had the GPU do, apart from memory: operations of matrix products, bytes copied, kernels.
//!
//! All of it is counted in the dry run, at the calls of libraries and at launches. Nothing is a time.

use serde::{Deserialize, Serialize};
use tonnage_recording::facts;

use super::Facts;

/// The work of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Cost {
    /// Floating-point operations of matrix products in 8 bits or fewer: a multiplication and an addition for each
    /// element.
    pub flops_8: u64,
    /// The same of matrix products and attention in 16 bits. Attention counts as if no position were masked.
    pub flops_16: u64,
    /// The same in 32 bits.
    pub flops_32: u64,
    /// The same in 64 bits.
    pub flops_64: u64,
    /// Bytes copied from the host to a device.
    pub to_device: u64,
    /// Bytes copied from a device to the host.
    pub to_host: u64,
    /// Bytes copied on a device or between two.
    pub on_device: u64,
    /// Kernels launched, without those inside cuBLAS.
    pub launches: u64,
    /// Matrix products, with kernels of attention.
    pub products: u64,
    /// Kernels of attention, whose products are counted.
    pub attention: u64,
    /// Floating-point operations inside them, which are among those above.
    pub attention_flops: u64,
    /// Executions of cuDNN and kernels of attention whose operations are not in the counts.
    pub uncounted: u64,
}

impl Cost {
    /// Floating-point operations in all types.
    pub fn flops(&self) -> u64 {
        self.flops_8
            .saturating_add(self.flops_16)
            .saturating_add(self.flops_32)
            .saturating_add(self.flops_64)
    }

    /// The counts in the order in which the stand-in has them.
    fn from_counts(counts: &[u64]) -> Self {
        let count = |index: usize| counts.get(index).copied().unwrap_or(0);
        Self {
            flops_8: count(11),
            flops_16: count(0),
            flops_32: count(1),
            flops_64: count(2),
            to_device: count(3),
            to_host: count(4),
            on_device: count(5),
            launches: count(6),
            products: count(7),
            uncounted: count(8).saturating_add(count(10)),
            attention: count(9),
            attention_flops: count(12),
        }
    }

    /// Both, figure by figure.
    fn combine(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            flops_8: combine(self.flops_8, other.flops_8),
            flops_16: combine(self.flops_16, other.flops_16),
            flops_32: combine(self.flops_32, other.flops_32),
            flops_64: combine(self.flops_64, other.flops_64),
            to_device: combine(self.to_device, other.to_device),
            to_host: combine(self.to_host, other.to_host),
            on_device: combine(self.on_device, other.on_device),
            launches: combine(self.launches, other.launches),
            products: combine(self.products, other.products),
            attention: combine(self.attention, other.attention),
            attention_flops: combine(self.attention_flops, other.attention_flops),
            uncounted: combine(self.uncounted, other.uncounted),
        }
    }
}

/// The work that a program gave the GPU, in all and for each step of an optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Costs {
    /// From the first use of the GPU to the end.
    pub total: Cost,
    /// Steps of optimizers, of the process with most.
    pub steps: u64,
    /// The work of one step, with the passes before it: the mean from the end of the first step to the end of the
    /// last that was noted. Absent if there were fewer than two steps.
    pub per_step: Option<Cost>,
}

/// The counts of a process after so many steps, as the hook writes them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[non_exhaustive]
pub struct ToldCosts {
    /// Steps that were done.
    pub steps: u64,
    /// The counts.
    pub counts: Vec<u64>,
}

impl Costs {
    /// The sums of the notes that a process wrote after steps and at the end; none if it wrote none.
    ///
    /// ```
    /// use tonnage_analysis::verdict::{Costs, ToldCosts};
    ///
    /// let mut notes = [ToldCosts::default(), ToldCosts::default(), ToldCosts::default()];
    /// (notes[0].steps, notes[0].counts) = (1, vec![500]);
    /// (notes[1].steps, notes[1].counts) = (2, vec![800]);
    /// // At the end there was an evaluation, which does not belong to a step.
    /// (notes[2].steps, notes[2].counts) = (2, vec![900]);
    /// let costs = Costs::from_notes(&notes).unwrap();
    /// assert_eq!((costs.total.flops_16, costs.per_step.unwrap().flops_16), (900, 300));
    /// ```
    pub fn from_notes(told: &[ToldCosts]) -> Option<Self> {
        let last = told.last()?;
        let first = told.iter().find(|one| one.steps == 1);
        // The first note after a step, without what came between it and the next.
        let end = told
            .iter()
            .max_by_key(|one| (one.steps, std::cmp::Reverse(one.counts.clone())));
        let per_step = first.zip(end).and_then(|(first, end)| {
            let steps = end
                .steps
                .checked_sub(first.steps)
                .filter(|&steps| steps > 0)?;
            let between = Cost::from_counts(&end.counts)
                .combine(Cost::from_counts(&first.counts), u64::saturating_sub);
            Some(between.combine(between, |amount, _| amount / steps))
        });
        Some(Self {
            total: Cost::from_counts(&last.counts),
            steps: last.steps,
            per_step,
        })
    }
}

/// The sums over all processes.
pub(super) fn find(facts: &Facts<'_>) -> Option<Costs> {
    let told = facts.all.iter().filter(|fact| fact.name == facts::COSTS);
    let told = told.filter_map(|fact| serde_json::from_str::<Costs>(&fact.text).ok());
    told.reduce(|one, other| Costs {
        total: one.total.combine(other.total, u64::saturating_add),
        steps: one.steps.max(other.steps),
        per_step: match (one.per_step, other.per_step) {
            (Some(one), Some(other)) => Some(one.combine(other, u64::saturating_add)),
            (one, other) => one.or(other),
        },
    })
}
