// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plan that tonnage's allocator can follow, made from a recording.
//!
//! The blocks of the time line (`timeline`) are placed by `tonnage-plan`, each
//! pool on its own, since pools share no memory, and checked by its checker. The
//! arenas of pools lie one behind the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;
use tonnage_alloc::GRANULARITY;
use tonnage_alloc::tonnage::{AllocatorPlan, PlanError, PlannedBlock};
use tonnage_alloc::torch::PoolId;
use tonnage_plan::{Buffer, BufferId, Options, Problem, Status};

use super::job::Job;
use super::timeline::{Block, Order, Part, Timeline};
use super::track::Track;

/// Version of the JSON that [`RuntimePlan`] serialises to; raised when a field changes its meaning.
pub const PLAN_SCHEMA_VERSION: u32 = 1;

/// A plan for tonnage's allocator, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RuntimePlan {
    /// Version of this JSON: [`PLAN_SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = PLAN_SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// Number of the process it is for: the one with the most alive.
    pub process: u32,
    /// Number of the device.
    pub device: i32,
    /// How many processes and devices the recording has.
    pub tracks: u64,
    /// Complete steps of the recording.
    pub steps: u64,
    /// Whether the program marked them; otherwise they are what repeats.
    pub marked: bool,
    /// Kinds of steps that are planned. A step whose outputs outlive it has two.
    pub kinds: u64,
    /// Requests before the first complete step that have a place.
    pub once: u64,
    /// Requests of steps that have a place, of all kinds.
    pub repeated: u64,
    /// Requests that have no place, because they outlive several steps.
    pub anywhere: u64,
    /// Most bytes alive at once in the recording.
    pub peak_live: u64,
    /// Bytes the plan takes.
    pub height: u64,
    /// The lower bound of every plan of these blocks.
    pub lower_bound: u64,
    /// Whether no plan of these blocks takes less.
    pub optimal: bool,
    /// The plan.
    #[serde(skip)]
    pub plan: AllocatorPlan,
}

/// The part of what is alive that a plan may leave without a place: one in this many.
const UNPLACED: u64 = 20;

impl RuntimePlan {
    /// Bytes alive at once for which the plan has no place, because the program keeps more with each step than what
    /// repeats.
    pub fn unplaced(&self) -> u64 {
        self.peak_live.saturating_sub(self.height)
    }

    /// Whether the program's memory grows so much from step to step that the plan would do harm: places of the steps
    /// are taken by what was kept, and pages move that would not without a plan.
    pub fn grows(&self) -> bool {
        self.unplaced() > self.peak_live / UNPLACED
    }
}

/// Why there is no plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RuntimePlanError {
    /// The blocks are not a planning problem.
    #[error("the blocks cannot be planned")]
    Invalid(#[from] tonnage_plan::Invalid),
    /// The planner made a plan that is wrong.
    #[error("the planner made a wrong plan")]
    Wrong(#[from] tonnage_plan::Fault),
    /// The blocks are larger than a plan can be.
    #[error("the blocks are too large for a plan")]
    TooLarge(#[from] PlanError),
}

impl Job {
    /// Plans the process with the most alive, for an allocator that follows the plan.
    ///
    /// # Errors
    /// If its blocks are larger than any device.
    ///
    /// ```
    /// use tonnage_analysis::replay::{Alloc, Job, Options};
    /// use tonnage_recording::{Event, Kind, Trace};
    ///
    /// // A recording in which a program requests 3 MB.
    /// let mut trace = Trace::new("example 1.0");
    /// trace.events.push(Event {
    ///     address: 0x7f00_0000_0000,
    ///     size: 3_000_320,
    ///     requested: 3_000_000,
    ///     ..Event::new(Kind::Alloc)
    /// });
    /// let file = trace.write(Vec::new())?;
    ///
    /// let job = Job::load(|| Ok(file.as_slice()), &Options::default())?;
    /// let made = job.runtime_plan(&tonnage_plan::Options::default())?;
    /// assert_eq!((made.once, made.height), (1, 3_000_320));
    /// let report = job.replay(&[Alloc::Planned(made.plan.into())], false);
    /// let own = report.tracks[0].allocators[0].own.unwrap();
    /// assert_eq!(own.plan.unwrap().hits, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn runtime_plan(&self, options: &Options<'_>) -> Result<RuntimePlan, RuntimePlanError> {
        let mut plan = self.tracks[0].runtime_plan(options)?;
        plan.tracks = self.tracks.len() as u64;
        Ok(plan)
    }
}

impl Track {
    fn runtime_plan(&self, options: &Options<'_>) -> Result<RuntimePlan, RuntimePlanError> {
        let timeline = Timeline::from_requests(&self.requests, Order::Any);
        let arenas = Arenas::plan(&timeline.blocks, options)?;
        let (timeline, arenas) = if timeline.steps.len() < 2 || arenas.is_tight() {
            (timeline, arenas)
        } else {
            let recorded = Timeline::from_requests(&self.requests, Order::Recorded);
            let other = Arenas::plan(&recorded.blocks, options)?;
            if other.height < arenas.height {
                (recorded, other)
            } else {
                (timeline, arenas)
            }
        };
        let places = |part: &Part| -> Vec<PlannedBlock> {
            let requests = part.requests.iter();
            let places = requests.filter_map(|&(request, block)| {
                let asked = &timeline.asked[request];
                asked.is_told_apart().then(|| match block {
                    Some(block) => PlannedBlock::new(asked.size, asked.lane, arenas.offsets[block]),
                    None => PlannedBlock::anywhere(asked.size, asked.lane),
                })
            });
            places.collect()
        };
        let once = places(&timeline.once);
        let mut steps: Vec<Vec<PlannedBlock>> = timeline.steps.iter().map(places).collect();
        let kinds = steps.len() as u64;
        if !timeline.marked && steps.len() > 1 {
            // A counter of requests alone mistakes two steps in turn for one.
            steps = vec![steps.concat()];
        }
        let placed = |places: &[PlannedBlock]| {
            let placed = places.iter().filter(|place| place.offset.is_some());
            placed.count() as u64
        };
        let repeated: u64 = steps.iter().map(|step| placed(step)).sum();
        let once_placed = placed(&once);
        let plan = AllocatorPlan::new(once, steps)?.with_live(self.requests.peak_live);
        Ok(RuntimePlan {
            schema_version: PLAN_SCHEMA_VERSION,
            process: self.requests.process,
            device: self.requests.device,
            tracks: 1,
            steps: timeline.recorded_steps as u64,
            marked: timeline.marked,
            kinds,
            once: once_placed,
            repeated,
            anywhere: plan.places() as u64 - once_placed - repeated,
            peak_live: self.requests.peak_live,
            height: plan.height(),
            lower_bound: arenas.lower_bound,
            optimal: arenas.optimal,
            plan,
        })
    }
}

/// The plans of all pools, one behind the other.
struct Arenas {
    /// By block.
    offsets: Vec<u64>,
    height: u64,
    lower_bound: u64,
    optimal: bool,
}

impl Arenas {
    /// Whether nothing is to be gained from another plan: it is at most half a percent above its bound.
    fn is_tight(&self) -> bool {
        self.height - self.lower_bound.min(self.height) <= self.lower_bound / 200
    }

    fn plan(blocks: &[Block], options: &Options<'_>) -> Result<Self, RuntimePlanError> {
        let mut pools: BTreeMap<PoolId, (Problem, Vec<usize>)> = BTreeMap::new();
        let mut arenas = Self {
            offsets: vec![0; blocks.len()],
            height: 0,
            lower_bound: 0,
            optimal: true,
        };
        for (number, block) in blocks.iter().enumerate() {
            let (Some(first), Some(last)) = (block.times.first(), block.times.last()) else {
                continue;
            };
            let mut buffer = Buffer::new(block.size, first.start..last.end);
            for pair in block.times.windows(2) {
                buffer = buffer.with_gap(pair[0].end..pair[1].start);
            }
            let (problem, numbers) = pools.entry(block.pool).or_default();
            problem.add(buffer);
            numbers.push(number);
        }
        let begun = Instant::now();
        let mut base = 0_u64;
        for (problem, numbers) in pools.values() {
            let left = |limit: Duration| limit.saturating_sub(begun.elapsed());
            let options = Options {
                deadline: options.deadline.map(left),
                ..*options
            };
            let plan = tonnage_plan::plan(problem, &options)?;
            tonnage_plan::check(problem, &plan)?;
            for (&number, id) in numbers.iter().zip(0..) {
                let offset = plan.offset(BufferId::new(id));
                arenas.offsets[number] = base.saturating_add(offset);
            }
            let bound = plan.lower_bound();
            arenas.lower_bound = arenas.lower_bound.saturating_add(bound);
            arenas.optimal &= plan.status == Status::Optimal;
            arenas.height = base.saturating_add(plan.peak());
            // Pools share no pages.
            base = base
                .saturating_add(plan.peak())
                .saturating_add(GRANULARITY - 1)
                / GRANULARITY
                * GRANULARITY;
        }
        Ok(arenas)
    }
}
