// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which place of a plan is meant for a request.
//!
//! A request is recognised by its key, size and stream, and by how many of the
//! same key came before it in the step. Its position among all requests does not
//! matter, so one that was not planned does not shift the others. Where a plan
//! has several kinds of steps, the kind that fitted last is taken; if a request
//! does not occur in it, or its place is taken, the others are tried, and the
//! one that fits is the kind of step from then on.
//!
//! A program that does not mark its steps is followed by counting alone: after the last place of a key its first one
//! comes again.

use std::collections::BTreeMap;

use super::class::GRANULE;
use super::index::Index;
use super::plan::{AllocatorPlan, LANES, PlannedBlock};
use crate::torch::PoolId;
use crate::{Request, StreamId};

/// Kinds of steps that are tried for a request.
const TRIED: usize = 4;
/// How many requests are seen before it is judged whether the program is the planned one.
const JUDGED_AFTER: u64 = 64;

/// How far a program was as planned. Every number is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// Requests that got their planned place.
    pub hits: u64,
    /// Bytes of their blocks.
    pub hit_bytes: u64,
    /// Requests that the plan does not have.
    pub unknown: u64,
    /// Requests whose place was taken.
    pub occupied: u64,
    /// Steps that the program began.
    pub steps: u64,
    /// The first request that did not get a planned place.
    pub divergence: Option<Divergence>,
}

impl Followed {
    /// Requests that were seen.
    pub fn requests(&self) -> u64 {
        self.hits + self.unknown + self.occupied
    }
}

/// A request that did not get a planned place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// Its number among the requests, from 1.
    pub request: u64,
    /// The step it is in; 0 before the first.
    pub step: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Whether there was a place and it was taken; otherwise the plan has none.
    pub occupied: bool,
}

/// No place, among offsets.
const ANYWHERE: u64 = u64::MAX;

/// The places of a key.
#[derive(Clone, Debug, Default)]
struct Key {
    /// Before the first step.
    once: Vec<u64>,
    /// In each kind of step that has any, by its number.
    steps: Vec<(u32, Vec<u64>)>,
    /// Requests of it since the step began, and which step that was.
    count: u64,
    step: u64,
}

/// The places that a request could get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The key; none if the plan does not have it.
    key: Option<u32>,
    /// How many of it came before.
    before: u64,
    /// Places with their kind of step, the likeliest first.
    places: [Option<(u32, u64)>; TRIED],
}

impl Wanted {
    pub(super) fn places(&self) -> impl Iterator<Item = (u32, u64)> + use<> {
        self.places.into_iter().flatten()
    }
}

/// A plan that is being followed.
#[derive(Clone, Debug, Default)]
pub(super) struct Follower {
    keys: Vec<Key>,
    /// From the code of a key to its number.
    numbers: Index,
    /// Streams and pools by the order of their first requests.
    lanes: BTreeMap<(PoolId, StreamId), u16>,
    /// The one with the latest request.
    last: (PoolId, StreamId, u16),
    /// Kinds of steps.
    kinds: u32,
    kind: u32,
    height: u64,
    live: u64,
    pub(super) followed: Followed,
}

/// The index's form of a key: a multiple of the granule.
fn code(size: u64, lane: u16) -> u64 {
    size * u64::from(LANES) + u64::from(lane) * GRANULE
}

impl Follower {
    pub(super) fn new(plan: &AllocatorPlan) -> Self {
        let mut follower = Self {
            kinds: plan.steps().len() as u32,
            height: plan.height(),
            live: plan.live(),
            ..Self::default()
        };
        // The default stream keeps its number, whichever stream has the first request.
        let default = (PoolId::DEFAULT, StreamId::default());
        follower.lanes.insert(default, 0);
        for place in plan.once() {
            let offset = place.offset.unwrap_or(ANYWHERE);
            follower.key(place).once.push(offset);
        }
        for (kind, places) in (0..).zip(plan.steps()) {
            for place in places {
                let offset = place.offset.unwrap_or(ANYWHERE);
                let steps = &mut follower.key(place).steps;
                match steps.last_mut().filter(|(last, _)| *last == kind) {
                    Some((_, offsets)) => offsets.push(offset),
                    None => steps.push((kind, vec![offset])),
                }
            }
        }
        follower
    }

    fn key(&mut self, place: &PlannedBlock) -> &mut Key {
        let code = code(place.size, place.lane);
        let number = self.numbers.get(code).unwrap_or_else(|| {
            let new = self.keys.len() as u32;
            self.numbers.insert(code, new);
            self.keys.push(Key::default());
            new
        });
        &mut self.keys[number as usize]
    }

    /// One past the highest byte of the plan.
    pub(super) fn height(&self) -> u64 {
        self.height
    }

    /// The most bytes of its blocks that are live at once.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Whether most requests get their places, so that the plan's memory will be needed.
    pub(super) fn is_trusted(&self) -> bool {
        let requests = self.followed.requests();
        requests < JUDGED_AFTER || 2 * self.followed.hits >= requests
    }

    /// The program begins a step.
    pub(super) fn begin_step(&mut self) {
        self.followed.steps += 1;
        if self.followed.steps > 1 && self.kinds > 0 {
            self.kind = (self.kind + 1) % self.kinds;
        }
    }

    /// The place that the next request of a size could get.
    pub(super) fn look_up(&mut self, request: Request, size: u64) -> Wanted {
        let mut wanted = Wanted {
            key: None,
            before: 0,
            places: [None; TRIED],
        };
        let Some(lane) = self.lane(request) else {
            return wanted;
        };
        wanted.key = self.numbers.get(code(size, lane));
        let Some(key) = wanted.key.map(|key| &self.keys[key as usize]) else {
            return wanted;
        };
        let step = self.followed.steps;
        wanted.before = if key.step == step { key.count } else { 0 };
        let mut before = wanted.before;
        if step == 0 {
            let place = usize::try_from(before).ok();
            if let Some(&offset) = place.and_then(|place| key.once.get(place)) {
                wanted.places[0] = (offset != ANYWHERE).then_some((self.kind, offset));
                return wanted;
            }
            before -= key.once.len() as u64;
        }
        let first = key.steps.partition_point(|(kind, _)| *kind < self.kind);
        let (below, above) = key.steps.split_at(first);
        for (place, (kind, offsets)) in wanted.places.iter_mut().zip(above.iter().chain(below)) {
            let offset = offsets[(before % offsets.len() as u64) as usize];
            *place = (offset != ANYWHERE).then_some((*kind, offset));
        }
        wanted
    }

    fn lane(&mut self, request: Request) -> Option<u16> {
        let name = (request.pool, request.stream);
        let (pool, stream, last) = self.last;
        if (pool, stream) == name {
            return Some(last);
        }
        let new = self.lanes.len() as u16;
        if new >= LANES && !self.lanes.contains_key(&name) {
            return None;
        }
        let lane = *self.lanes.entry(name).or_insert(new);
        self.last = (name.0, name.1, lane);
        Some(lane)
    }

    /// Notes that a request was served, at a place of a kind of step or elsewhere.
    pub(super) fn served(&mut self, wanted: Wanted, bytes: u64, size: u64, at: Option<u32>) {
        let step = self.followed.steps;
        if let Some(key) = wanted.key {
            let key = &mut self.keys[key as usize];
            (key.count, key.step) = (wanted.before + 1, step);
        }
        if let Some(kind) = at {
            self.kind = kind;
            self.followed.hits += 1;
            self.followed.hit_bytes += size;
            return;
        }
        let occupied = wanted.places().next().is_some();
        if occupied {
            self.followed.occupied += 1;
        } else {
            self.followed.unknown += 1;
        }
        let request = self.followed.requests();
        self.followed.divergence.get_or_insert(Divergence {
            request,
            step,
            bytes,
            occupied,
        });
    }
}
