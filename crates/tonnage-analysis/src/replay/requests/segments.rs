// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments obtained and given back: what others hold, and which bursts are calls of `empty_cache`.

use tonnage_alloc::torch::PoolId;
use tonnage_recording::{Event, Kind};

use super::builder::{Builder, Burst, Track};
use super::model::{InitialSegment, OpKind};

impl Builder {
    pub(super) fn close_burst(&mut self, burst: &Burst, certain: bool, row: u32) {
        let mut private = None;
        let lanes = burst.lanes.iter().copied();
        for lane in lanes {
            let pool = self.out.lanes[lane as usize].pool;
            if pool == PoolId::DEFAULT {
                continue;
            }
            private = if private.is_none() { Some(lane) } else { None };
            if !self.done.contains_key(&pool) {
                let op = self.push(OpKind::PoolDone, 0, lane, 0, burst.row);
                self.done.insert(pool, op);
            }
        }
        let lane = match private {
            Some(lane) if !burst.default_pool => lane,
            _ => self.default_lane(),
        };
        let kind = if certain {
            OpKind::Release
        } else {
            OpKind::MaybeRelease
        };
        // The driver's refusal shows who gave the segments back, for recordings
        // that cannot be replayed to find out.
        let bytes = u64::from(burst.refused);
        self.push(kind, 0, lane, bytes, burst.row.min(row));
    }

    /// Notes how much is obtained and not given back.
    pub(super) fn note_net(&mut self, track: &Track) {
        let before = i128::from(track.initial_reserved().unwrap_or(0));
        let net = before + track.reserved_change();
        self.net = i64::try_from(net.min(i128::from(i64::MAX))).unwrap_or(i64::MIN);
        self.most = self.most.max(self.net);
        self.least = self.least.min(self.net);
    }

    pub(super) fn obtained(&mut self, event: &Event, track: &Track, row: u32) {
        self.out.events += 1;
        self.out.has_segments = true;
        self.settle(event, false, row);
        self.note_net(track);
        if event.kind == Kind::SegmentAlloc {
            if self.last_segment > 0 {
                self.out.ascending += u64::from(event.address > self.last_segment);
                self.out.descending += u64::from(event.address < self.last_segment);
            }
            self.last_segment = event.address;
        }
        self.note_outside(track, row);
    }

    /// Notes what others hold. At a row at which PyTorch has what it obtained: what is charged besides is theirs.
    pub(super) fn note_outside(&mut self, track: &Track, row: u32) {
        if track.driver_rows() == self.driver_rows {
            return;
        }
        self.driver_rows = track.driver_rows();
        self.taken = None;
        self.set_outside(track.outside(), row);
    }

    /// The driver has given memory to a process: to another one, unless the next row is a segment.
    pub(super) fn note_taken(&mut self, track: &Track, row: u32) {
        self.taken = Some((track.outside(), row));
    }

    /// Others had the driver's memory, and may have given it back before the first request of PyTorch.
    pub(super) fn settle_taken(&mut self) {
        if let Some((outside, row)) = self.taken.take() {
            // Rows are in order, and frees may have come since.
            let last = self.out.rows.last().copied();
            self.set_outside(outside, row.max(last.unwrap_or(0)));
        }
    }

    fn set_outside(&mut self, outside: u64, row: u32) {
        if outside != self.outside {
            self.outside = outside;
            self.out.peak_outside = self.out.peak_outside.max(outside);
            let lane = self.default_lane();
            self.push(OpKind::Outside, 0, lane, outside, row);
        }
    }

    pub(super) fn given_back(&mut self, event: &Event, is_unseen: bool, track: &Track, row: u32) {
        self.out.events += 1;
        self.out.has_segments = true;
        if let Some((_, op)) = self.last_free.take() {
            self.out.ops[op].kind = OpKind::FreeLater;
        }
        self.note_net(track);
        let lane = self.lane(event);
        let expandable = event.kind == Kind::SegmentUnmap;
        if !expandable && is_unseen {
            self.out.segments.push(InitialSegment {
                addr: event.address,
                size: event.size,
                lane,
                small: event.size == 2 << 20,
                expandable,
            });
        }
        let pool = self.out.lanes[lane as usize].pool;
        let default_pool = pool == PoolId::DEFAULT;
        // One call gives back the default pools first and private ones after
        // them, so anything else is a second call.
        let other = |lane: &u16| self.out.lanes[*lane as usize].pool != pool;
        let second = |burst: &Burst| {
            if default_pool {
                burst.lanes.iter().any(other)
            } else {
                !burst.default_pool && burst.lanes.iter().any(other)
            }
        };
        if let Some(burst) = self.burst.take_if(|burst| second(burst)) {
            self.close_burst(&burst, true, row);
        }
        let burst = self.burst.get_or_insert_default();
        burst.row = row;
        burst.lanes.insert(lane);
        burst.default_pool |= default_pool;
    }
}
