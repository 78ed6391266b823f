// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of a track served by one allocator after the other.

use tonnage_alloc::torch::Settings;
use tonnage_alloc::{Bfc, Policy, StreamPool, StreamSafe, Suballocator, tonnage};

use super::alloc::{Alloc, Fidelity};
use super::device::{DeviceSpec, ReplayDevice};
use super::policy::{Refusal, Replaying, RunSummary, Torch, UNPLACED, run};
use super::report::{
    Diverged, DriverCalls, Outcome, OwnCounts, PlanFollowed, Replayed, TrackReport,
};
use super::requests::{Op, OpKind};
use super::start::Start;
use super::track::Track;

/// How many pages of 2 MiB an allocator may map that maps no larger ones, beside those of moves: half a TiB.
const PAGES: u64 = 1 << 18;

impl Track {
    /// `replayed` is called after each allocator.
    pub(super) fn report(
        &self,
        allocs: &[Alloc],
        smallest: bool,
        replayed: &mut dyn FnMut(),
    ) -> TrackReport {
        let mut allocators: Vec<Replayed> = Vec::new();
        for (number, alloc) in allocs.iter().enumerate() {
            if number > 0 {
                replayed();
            }
            let Some(alloc) = self.resolve(alloc) else {
                continue;
            };
            let mut result = self.replay(&alloc, self.capacity, true);
            if allocators
                .iter()
                .any(|other| other.allocator == result.allocator)
            {
                continue;
            }
            if smallest {
                result.smallest = match alloc {
                    Alloc::Plan => self.planned_smallest(&result),
                    _ => self.smallest(&alloc, &result),
                };
            }
            allocators.push(result);
        }
        if !allocs.is_empty() {
            replayed();
        }
        let requests = &self.requests;
        TrackReport {
            process: requests.process,
            rank: self.rank,
            device: requests.device,
            requests: requests.allocs,
            events: requests.events,
            recorded_peak_reserved: requests.peak_reserved,
            peak_live: requests.peak_live,
            peak_outside: requests.peak_outside,
            capacity: self.capacity,
            capacity_known: self.capacity_known,
            context: self.context,
            assumptions: self.assumptions.clone(),
            gaps: requests.gaps,
            allocators,
        }
    }

    /// One allocator on a device of so many bytes. `closely` also looks at the
    /// peak, and starts the recorded setting from the recorded segments.
    pub(crate) fn replay(&self, alloc: &Alloc, total: u64, closely: bool) -> Replayed {
        match alloc {
            Alloc::Recorded | Alloc::Torch(_) => self.replay_torch(alloc, total, closely),
            Alloc::CudaMallocAsync => self.approximate::<StreamPool>(alloc, total, closely),
            Alloc::Bfc => self.approximate::<Bfc>(alloc, total, closely),
            Alloc::Tonnage => self.replay_own(alloc, total, closely, |device| {
                tonnage::Allocator::new(device, tonnage::Settings::default())
            }),
            Alloc::Planned(plan) => self.replay_own(alloc, total, closely, |device| {
                tonnage::Allocator::with_plan(device, tonnage::Settings::default(), plan)
            }),
            Alloc::Plan => self.planned(total),
        }
    }

    fn settings(&self, alloc: &Alloc) -> Settings {
        match alloc {
            // A listed setting wins over the text in the recording.
            Alloc::Torch(conf) if !self.is_recorded(alloc) => conf.settings().clone(),
            _ => self.recorded.settings.clone().unwrap_or_default(),
        }
    }

    fn replay_torch(&self, alloc: &Alloc, total: u64, closely: bool) -> Replayed {
        let recorded = self.is_recorded(alloc);
        let settings = self.settings(alloc);
        // Segments as they were belong to the recorded setting on a device that
        // holds them; a search compares settings and devices from the same start.
        let fits = |start: &Start| {
            let held = start
                .held_segments()
                .iter()
                .map(|(_, size)| size)
                .sum::<u64>();
            recorded && closely && held.saturating_add(self.context) <= total
        };
        let adopted = self.adopted.clone().filter(fits);
        let start = adopted.unwrap_or_else(|| Start::requested(&self.requests));
        let begin = |addrs: &mut [u64]| {
            let device = ReplayDevice::with(self.spec(total), &start.held_segments());
            Torch::new(device, settings.clone(), self.rules, (), &start, addrs)
        };
        self.serve(alloc, closely, begin, |_, _| {})
    }

    fn approximate<A: Suballocator>(&self, alloc: &Alloc, total: u64, closely: bool) -> Replayed {
        self.replay_other(alloc, total, closely, StreamSafe::<A, _>::new, |_, _| {})
    }

    fn replay_own(
        &self,
        alloc: &Alloc,
        total: u64,
        closely: bool,
        policy: impl Fn(ReplayDevice) -> tonnage::Allocator<ReplayDevice>,
    ) -> Replayed {
        let height = match alloc {
            Alloc::Planned(plan) => plan.height(),
            _ => 0,
        };
        self.replay_other(alloc, total, closely, policy, |allocator, result| {
            result.own = Some(OwnCounts::from_statistics(&allocator.statistics(), height));
        })
    }

    /// An allocator that does not take over segments of PyTorch's.
    fn replay_other<P: Policy<Device = ReplayDevice>>(
        &self,
        alloc: &Alloc,
        total: u64,
        closely: bool,
        policy: impl Fn(ReplayDevice) -> P,
        look: impl Fn(&P, &mut Replayed),
    ) -> Replayed {
        let start = Start::requested(&self.requests);
        let spec = DeviceSpec {
            max_pages: PAGES + 64 * self.requests.allocs,
            ..self.spec(total)
        };
        let begin = |addrs: &mut [u64]| {
            let device = ReplayDevice::new(spec);
            Replaying::requested(policy(device), &start, addrs)
        };
        self.serve(alloc, closely, begin, look)
    }

    /// Serves the requests with the allocator that `begin` sets up; `closely`
    /// serves them again up to the peak, to look at what is free there. `look` is shown the allocator at the end.
    pub(super) fn serve<P: Policy<Device = ReplayDevice>>(
        &self,
        alloc: &Alloc,
        closely: bool,
        begin: impl Fn(&mut [u64]) -> Result<Replaying<P>, Refusal>,
        look: impl Fn(&P, &mut Replayed),
    ) -> Replayed {
        let mut result = self.result(alloc, alloc.fidelity(self.version));
        let mut addrs = vec![UNPLACED; self.requests.slots as usize];
        let mut replaying = match begin(&mut addrs) {
            Ok(replaying) => replaying,
            Err(refusal) => {
                result.outcome = self.outcome_of_start(refusal);
                return result;
            }
        };
        let summary = run(&mut replaying, &self.requests, &mut addrs, None, closely);
        self.fill(&mut result, &summary);
        let policy = &mut replaying.policy;
        result.peak_allocated = policy.peak_allocated();
        result.retries = policy.retries();
        result.undefined = policy.undefined();
        result.driver = policy.device_mut().calls;
        look(policy, &mut result);
        if result.recorded && matches!(result.fidelity, Fidelity::Exact | Fidelity::Assumed) {
            result.comparison.clone_from(&self.comparison);
        }
        if closely
            && let Some(peak) = summary.peak_op
            && policy.largest_free().is_some()
        {
            addrs.fill(UNPLACED);
            if let Ok(mut replaying) = begin(&mut addrs) {
                run(
                    &mut replaying,
                    &self.requests,
                    &mut addrs,
                    Some(peak),
                    false,
                );
                result.largest_free_at_peak = replaying.policy.largest_free();
            }
        }
        result
    }

    pub(super) fn result(&self, alloc: &Alloc, fidelity: Fidelity) -> Replayed {
        Replayed {
            allocator: alloc.to_string(),
            recorded: self.is_recorded(alloc),
            fidelity,
            outcome: Outcome::Completes,
            peak_allocated: 0,
            peak_reserved: 0,
            allocated_at_peak: 0,
            cached_at_peak: 0,
            largest_free_at_peak: None,
            peak_row: None,
            driver: DriverCalls::default(),
            retries: 0,
            served_failures: 0,
            smallest: None,
            comparison: None,
            own: None,
            undefined: Vec::new(),
        }
    }

    fn fill(&self, result: &mut Replayed, summary: &RunSummary) {
        result.peak_reserved = summary.peak_reserved;
        result.allocated_at_peak = summary.allocated_at_peak;
        result.cached_at_peak = summary
            .peak_reserved
            .saturating_sub(summary.allocated_at_peak);
        let row = |op: usize| u64::from(self.requests.rows[op]);
        result.peak_row = summary.peak_op.map(row);
        result.served_failures = summary.served_failures;
        if let Some(stop) = &summary.stop {
            let requests = self.requests.ops[..=stop.op].iter();
            let is_request =
                |op: &&Op| matches!(op.kind, OpKind::Alloc | OpKind::Failed | OpKind::FailedLast);
            result.outcome = match &stop.refusal {
                Refusal::OutOfMemory { free } => Outcome::OutOfMemory {
                    row: Some(row(stop.op)),
                    request: requests.filter(is_request).count() as u64,
                    requested: stop.bytes,
                    free: *free,
                },
                Refusal::OthersOutOfMemory { requested, free } => Outcome::OthersOutOfMemory {
                    row: row(stop.op),
                    request: requests.filter(is_request).count() as u64,
                    requested: *requested,
                    free: *free,
                },
                Refusal::Broken(reason) => Outcome::Undefined {
                    row: Some(row(stop.op)),
                    reason: reason.clone(),
                },
            };
        }
    }

    fn outcome_of_start(&self, refusal: Refusal) -> Outcome {
        let bytes = self.requests.initial.iter().map(|block| block.requested);
        match refusal {
            Refusal::OutOfMemory { free } | Refusal::OthersOutOfMemory { free, .. } => {
                Outcome::OutOfMemory {
                    row: None,
                    request: 0,
                    requested: bytes.fold(0, u64::saturating_add),
                    free,
                }
            }
            Refusal::Broken(reason) => Outcome::Undefined { row: None, reason },
        }
    }
}

impl OwnCounts {
    fn from_statistics(statistics: &tonnage::Statistics, height: u64) -> Self {
        let followed = |plan: tonnage::Followed| PlanFollowed {
            requests: plan.requests(),
            hits: plan.hits,
            unknown: plan.unknown,
            occupied: plan.occupied,
            height,
            divergence: plan.divergence.map(|first| Diverged {
                request: first.request,
                step: first.step,
                bytes: first.bytes,
                occupied: first.occupied,
            }),
        };
        Self {
            misses: statistics.misses,
            pages_created: statistics.pages_created,
            pages_moved: statistics.pages_moved,
            plan: statistics.plan.map(followed),
        }
    }
}
