// SPDX-License-Identifier: MIT OR Apache-2.0
//! The least time that a GPU can take for what was counted, by its published peak.
//!
//! It is a lower bound: each part of a GPU works at its peak, all at the same time, and what is not counted takes no
//! time. Uncertain work is not counted either: a kernel of attention leaves out what a mask hides, so its operations
//! are not taken into account. A real step takes longer, often several times as long. It shows which of two changes
//! cannot be faster than so much, and never how fast one is.

use serde::Serialize;
use tonnage_analysis::verdict::Cost;
use tonnage_gpus::{Figure, Peak};

/// The least time of a job, and what takes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LeastTime {
    /// Seconds, at least: computed from the counts and the published peak of the GPU.
    pub seconds: f64,
    /// How much more that is than the same of the job as it is, as a part of it; none if that is nothing.
    pub part: Option<f64>,
    /// Whether it is the time of a step of the optimizer, or else of the whole job.
    pub of_step: bool,
    /// The limiting part of the GPU.
    pub limited_by: Work,
}

/// The parts of the work that a GPU does at the same time as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Work {
    /// Matrix products.
    Products,
    /// Copies on the GPU.
    Memory,
    /// Copies between host and GPU.
    HostLink,
}

/// The least time for `cost` on so many GPUs with this peak; none if a figure that is needed is not published.
pub(crate) fn least_time(cost: &Cost, peak: &Peak, gpus: u8) -> Option<(f64, Work)> {
    let gpus = f64::from(gpus.max(1));
    let seconds = |amount: u64, figure: Option<&Figure<u64>>| match (amount, figure) {
        (0, _) => Some(0.0),
        (amount, Some(figure)) if figure.value > 0 => {
            Some(amount as f64 / figure.value as f64 / gpus)
        }
        _ => None,
    };
    // Numbers of 32 bits may be rounded to TF32, or not.
    let single = match (&peak.flops_tf32, &peak.flops_32) {
        (Some(one), Some(other)) => Some(if one.value > other.value { one } else { other }),
        (one, other) => one.as_ref().or(other.as_ref()),
    };
    let half = peak.flops_16.as_ref();
    let eighth = seconds(cost.flops_8, peak.flops_8.as_ref())?;
    let in_half = seconds(cost.flops_16, half)?;
    let in_single = seconds(cost.flops_32, single)?;
    // The type of attention is not known: it is taken to be the type in which leaving it out leaves out most.
    let slowest = if cost.flops_32 > 0 { single } else { half };
    let attention = seconds(cost.attention_flops, slowest)?;
    let products = eighth + (in_half + in_single - attention).max(0.0);
    // Other units may do these at the same time.
    let double = seconds(cost.flops_64, peak.flops_64.as_ref())?;
    // Copied bytes are read and written.
    let memory = seconds(cost.on_device.saturating_mul(2), peak.memory_bytes.as_ref())?;
    // Both directions are used at the same time.
    let host_link = seconds(cost.to_device.max(cost.to_host), peak.host_bytes.as_ref())?;
    let parts = [
        (products.max(double), Work::Products),
        (memory, Work::Memory),
        (host_link, Work::HostLink),
    ];
    parts
        .into_iter()
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
}

#[cfg(test)]
mod tests {
    use tonnage_gpus::Catalogue;

    use super::*;

    fn peak(gpu: &str) -> Peak {
        Catalogue::embedded().find(gpu).unwrap().peak.clone()
    }

    fn cost(fill: impl FnOnce(&mut Cost)) -> Cost {
        let mut cost = Cost::default();
        fill(&mut cost);
        cost
    }

    #[test]
    fn each_type_has_its_own_peak_and_the_longest_part_counts() {
        let a100 = peak("a100-80gb");
        // 312 TFLOP in 16 bits take a second, and so do 156 in 32 bits, which may be rounded.
        let both = cost(|cost| (cost.flops_16, cost.flops_32) = (312 << 40, 156 << 40));
        let (seconds, work) = least_time(&both, &a100, 1).unwrap();
        let second = (1_u64 << 40) as f64 / 1e12;
        assert!((seconds - 2.0 * second).abs() < 1e-9, "{seconds}");
        assert_eq!(work, Work::Products);
        let (halved, _) = least_time(&both, &a100, 2).unwrap();
        assert!((halved - second).abs() < 1e-9, "{halved}");
        // 64 GB to the GPU and 96 back: the link has 32 GB/s in each direction.
        let moved = cost(|cost| {
            (cost.flops_16, cost.to_device, cost.to_host) =
                (312 << 40, 64_000_000_000, 96_000_000_000);
        });
        let (seconds, work) = least_time(&moved, &a100, 1).unwrap();
        assert_eq!((seconds, work), (3.0, Work::HostLink));
    }

    #[test]
    fn attention_may_do_less_than_was_counted() {
        let h100 = peak("h100");
        let all = cost(|cost| (cost.flops_16, cost.attention_flops) = (300, 300));
        assert!(least_time(&all, &h100, 1).unwrap().0.abs() < 1e-30);
        // More attention than products of the slowest type does not make a time of less than nothing.
        let mixed = cost(|cost| (cost.flops_16, cost.flops_32, cost.attention_flops) = (9, 1, 9));
        assert!(least_time(&mixed, &h100, 1).unwrap().0.abs() < 1e-30);
    }

    #[test]
    fn what_is_not_published_gives_no_time() {
        // Nothing is known of the speed of a part of a GPU, nor of 64 bits on this one.
        let any = cost(|cost| cost.flops_16 = 1);
        assert_eq!(least_time(&any, &peak("h100/1g.10gb"), 1), None);
        let double = cost(|cost| cost.flops_64 = 1);
        assert_eq!(least_time(&double, &peak("rtx4090"), 1), None);
        assert_eq!(
            least_time(&any, &peak("rtx4090"), 1).map(|(_, work)| work),
            Some(Work::Products)
        );
    }
}
