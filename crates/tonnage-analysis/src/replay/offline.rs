// SPDX-License-Identifier: MIT OR Apache-2.0
//! The offline placement beside the allocators: what the requests would take if their lifetimes had been
//! known in advance.
//!
//! No allocator ran, and none can do better than the bound: it is what an allocator is to be measured by. Each pool
//! is planned on its own, since pools do not share memory, and takes its peak from the start. The time is bounded by
//! attempts, not by a clock, so that a report is the same on every machine.

use std::collections::BTreeMap;

use tonnage_alloc::GRANULARITY;
use tonnage_alloc::torch::PoolId;
use tonnage_plan::{Buffer, Options, Problem};

use super::alloc::{Alloc, Fidelity};
use super::report::{Outcome, Replayed, Smallest};
use super::requests::OpKind;
use super::track::Track;

/// Attempts for each part of a pool; real recordings reach the bound in the first.
const ATTEMPTS: u64 = 24;

impl Track {
    /// The plan as a row of the report.
    pub(super) fn planned(&self, total: u64) -> Replayed {
        let mut result = self.result(&Alloc::Plan, Fidelity::Offline);
        result.peak_allocated = self.requests.peak_live;
        let Some(peak) = self.plan_peak() else {
            result.outcome = Outcome::Undefined {
                row: None,
                reason: "the blocks are too large to be planned".to_owned(),
            };
            return result;
        };
        result.peak_reserved = peak;
        result.allocated_at_peak = self.requests.peak_live.min(peak);
        result.cached_at_peak = peak - result.allocated_at_peak;
        let taken = self.context.saturating_add(self.requests.peak_outside);
        if taken.saturating_add(peak) > total {
            result.outcome = Outcome::OutOfMemory {
                row: None,
                request: 0,
                requested: peak,
                free: total.saturating_sub(taken),
            };
        }
        result
    }

    /// The smallest device for a plan needs no search.
    pub(super) fn planned_smallest(&self, plan: &Replayed) -> Option<Smallest> {
        let outside = self.context.saturating_add(self.requests.peak_outside);
        let bytes = outside.checked_add(plan.peak_reserved)?;
        Some(Smallest {
            bytes: bytes.checked_next_multiple_of(GRANULARITY)?,
            tried: 1,
            monotone: true,
        })
    }

    /// The peaks of all pools together.
    fn plan_peak(&self) -> Option<u64> {
        let requests = &self.requests;
        let mut problems: BTreeMap<PoolId, Problem> = BTreeMap::new();
        let mut live: BTreeMap<u32, (i64, u64, PoolId)> = BTreeMap::new();
        let mut add = |start: i64, end: i64, bytes: u64, pool: PoolId| {
            let size = bytes.next_multiple_of(512);
            problems
                .entry(pool)
                .or_default()
                .add(Buffer::new(size, start..end));
        };
        let pool = |lane: u16| {
            requests
                .lanes
                .get(lane as usize)
                .map(|lane| lane.pool)
                .unwrap_or_default()
        };
        for block in &requests.initial {
            live.insert(block.slot, (-1, block.requested, pool(block.lane)));
        }
        for (op, moment) in requests.ops.iter().zip(0_i64..) {
            match op.kind {
                OpKind::Alloc => {
                    live.insert(op.slot, (moment, op.bytes, pool(op.lane)));
                }
                OpKind::Free | OpKind::FreeNow => {
                    if let Some((start, bytes, pool)) = live.remove(&op.slot) {
                        add(start, moment, bytes, pool);
                    }
                }
                _ => {}
            }
        }
        for (start, bytes, pool) in live.into_values() {
            add(start, requests.ops.len() as i64, bytes, pool);
        }
        let options = Options {
            attempts: ATTEMPTS,
            threads: 1,
            ..Options::default()
        };
        let mut sum = 0_u64;
        for problem in problems.values() {
            let plan = tonnage_plan::plan(problem, &options).ok()?;
            tonnage_plan::check(problem, &plan).ok()?;
            sum = sum.checked_add(plan.peak())?;
        }
        Some(sum)
    }
}
