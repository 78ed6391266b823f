// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which lane a request belongs to: a stream within a pool.
//!
//! A pool is in use from its first request until it is released. Meanwhile its
//! memory is for it alone, because a graph may use it again at any time;
//! afterwards its lanes are like any other.

use std::collections::BTreeMap;

use super::arena::{Lane, SHARED};
use super::blocks::NONE;
use super::streams::Streams;
use super::{Allocator, Device, Observer};
use crate::torch::PoolId;
use crate::{Request, StreamId};

/// Names of lanes.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    /// By pool and stream.
    names: BTreeMap<(PoolId, StreamId), u32>,
    /// The lane of the last request, because the next one is mostly of the same.
    last: (PoolId, StreamId, u32),
    /// Number of the stream of each lane; `NONE` for what is shared and for vacant lanes.
    streams: Vec<u32>,
    vacant: Vec<u32>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            names: BTreeMap::new(),
            last: (PoolId::DEFAULT, StreamId::default(), NONE),
            streams: vec![NONE],
            vacant: Vec::new(),
        }
    }
}

impl Lanes {
    /// The stream of a lane.
    #[inline]
    pub(super) fn stream(&self, lane: u32) -> u32 {
        self.streams[lane as usize]
    }

    /// Every lane of a stream.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + use<> {
        let all = SHARED + 1..self.streams.len() as u32;
        let streams = self.streams.clone();
        all.filter(move |&lane| streams[lane as usize] != NONE)
    }

    /// The name of the stream of a lane; none of what is shared.
    pub(super) fn name(&self, lane: u32, streams: &Streams) -> Option<StreamId> {
        let stream = self.stream(lane);
        (stream != NONE).then(|| streams.id(stream))
    }

    fn forget_last(&mut self) {
        self.last.2 = NONE;
    }
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// The lane of a request, made if it is new.
    #[inline]
    pub(super) fn lane(&mut self, request: Request) -> u32 {
        let (pool, stream, lane) = self.lanes.last;
        if lane != NONE && (pool, stream) == (request.pool, request.stream) {
            return lane;
        }
        self.find_lane(request.pool, request.stream)
    }

    fn find_lane(&mut self, pool: PoolId, stream: StreamId) -> u32 {
        let known = self.lanes.names.get(&(pool, stream)).copied();
        let lane = known.unwrap_or_else(|| self.add_lane(pool, stream));
        self.lanes.last = (pool, stream, lane);
        lane
    }

    fn add_lane(&mut self, pool: PoolId, stream: StreamId) -> u32 {
        let lanes = &mut self.lanes;
        let lane = lanes.vacant.pop().unwrap_or(lanes.streams.len() as u32);
        if lane as usize == lanes.streams.len() {
            lanes.streams.push(NONE);
            self.arena.lanes.push(Lane::default());
        }
        lanes.streams[lane as usize] = self.streams.join(stream);
        lanes.names.insert((pool, stream), lane);
        self.arena.lanes[lane as usize].private = pool != PoolId::DEFAULT;
        lane
    }

    /// Forgets a lane that has no blocks.
    pub(super) fn forget_if_empty(&mut self, lane: u32) {
        let Lane {
            live,
            private,
            ref free,
            ref planned,
            ..
        } = self.arena.lanes[lane as usize];
        if live > 0 || free.len() + planned.len() > 0 || private {
            return;
        }
        let lanes = &mut self.lanes;
        self.streams.leave(lanes.streams[lane as usize]);
        lanes.streams[lane as usize] = NONE;
        lanes.names.retain(|_, named| *named != lane);
        lanes.vacant.push(lane);
        lanes.forget_last();
    }

    /// Whether a pool is in use.
    pub(super) fn in_use(&self, pool: PoolId) -> bool {
        let mut names = self.lanes.names.keys();
        pool != PoolId::DEFAULT && names.any(|(named, _)| *named == pool)
    }

    /// Makes the memory of pools like any other; of all of them if none is named.
    pub(super) fn open_pools(&mut self, wanted: Option<PoolId>) {
        let opened = |pool: PoolId| match wanted {
            Some(wanted) => pool == wanted,
            None => pool != PoolId::DEFAULT,
        };
        let arena = &mut self.arena;
        self.lanes.names.retain(|&(pool, _), &mut lane| {
            if opened(pool) {
                arena.lanes[lane as usize].private = false;
            }
            !opened(pool)
        });
        self.lanes.forget_last();
    }
}
