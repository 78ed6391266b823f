// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the replay under the recorded setting reproduce the recording, event for event?
//!
//! The recorded rows go by a second time, beside a replay that reports every
//! event. Segments may lie elsewhere, because addresses are the driver's choice:
//! each area of the replay is matched with the recorded one when it is obtained,
//! and everything inside must then lie at the same distance. All else must be
//! equal: order, action, size, stream, pool.
//!
//! On the way the bursts that may or may not be an `empty_cache` are decided: the
//! explanation that reproduces the rows is the right one. Frees that complete in
//! a burst may be the work of its synchronisation, so that is tried as well.

use std::collections::{BTreeMap, VecDeque};

use tonnage_alloc::DeviceAddr;
use tonnage_alloc::torch::{Action, Event as Told, PoolId};
use tonnage_recording::{Event, Kind};

use super::policy::Torch;
use super::report::{Comparison, Difference, Seen};
use super::requests::{Op, OpKind, Requests};

/// How many completed frees before a burst are tried as part of it.
const MAX_SPLITS: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Recorded {
    action: Action,
    address: u64,
    size: u64,
    stream: u64,
    pool: Option<PoolId>,
    row: u32,
}

impl Recorded {
    fn from_event(event: &Event, row: u32) -> Option<Self> {
        let (action, size) = match event.kind {
            Kind::Alloc => (Action::Alloc, event.requested),
            Kind::FreeRequested => (Action::FreeRequested, event.requested),
            Kind::FreeCompleted => (Action::FreeCompleted, event.requested),
            Kind::SegmentAlloc => (Action::SegmentAlloc, event.size),
            Kind::SegmentFree => (Action::SegmentFree, event.size),
            Kind::SegmentMap => (Action::SegmentMap, event.size),
            Kind::SegmentUnmap => (Action::SegmentUnmap, event.size),
            Kind::Oom => (Action::Oom, event.size),
            _ => return None,
        };
        let pool = |pool: tonnage_recording::Pool| PoolId(pool.first.into(), pool.second.into());
        Some(Self {
            action,
            address: event.address,
            size,
            stream: event.stream,
            pool: event.pool.map(pool),
            row,
        })
    }

    fn describe(&self) -> Seen {
        Seen {
            action: self.action.name().to_owned(),
            address: self.address,
            size: self.size,
            stream: self.stream,
        }
    }
}

/// A segment, or the reserved range of an expandable one.
#[derive(Clone, Copy, Debug)]
struct Area {
    size: u64,
    /// The recorded address minus the replayed one.
    shift: u64,
    mapped: u64,
}

/// The replay, and where its areas lie in the recording. Cloned to try explanations.
#[derive(Clone, Debug)]
struct Twin {
    policy: Torch<Vec<Told>>,
    addrs: Vec<u64>,
    areas: BTreeMap<u64, Area>,
}

impl Twin {
    fn place(&self, addr: u64) -> Option<(u64, Area)> {
        let (&start, &area) = self.areas.range(..=addr).next_back()?;
        (addr - start < area.size).then_some((start, area))
    }

    fn translated(&self, addr: u64) -> u64 {
        self.place(addr)
            .map_or(addr, |(_, area)| addr.wrapping_add(area.shift))
    }

    /// Whether a recorded event is the replayed one; takes note of new areas.
    fn same(&mut self, recorded: &Recorded, told: &Told) -> bool {
        let alike = recorded.action == told.action
            && recorded.size == told.size
            && recorded.stream == told.stream.0
            && recorded.pool.is_none_or(|pool| pool == told.pool);
        alike && self.placed(recorded, told)
    }

    fn placed(&mut self, recorded: &Recorded, told: &Told) -> bool {
        let addr = told.addr.0;
        let shift = recorded.address.wrapping_sub(addr);
        match told.action {
            // Its address is what the driver had free.
            Action::Oom => true,
            Action::SegmentAlloc => {
                let area = Area {
                    size: told.size,
                    shift,
                    mapped: told.size,
                };
                self.areas.insert(addr, area);
                true
            }
            Action::SegmentMap => {
                let range = self.policy.policy.device().reservation(DeviceAddr(addr));
                let start = range.unwrap_or(addr);
                let area = self.areas.entry(start).or_insert(Area {
                    size: u64::MAX - start,
                    shift,
                    mapped: 0,
                });
                area.mapped += told.size;
                area.shift == shift
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let Some((start, area)) = self.place(addr) else {
                    return false;
                };
                let left = area.mapped.saturating_sub(told.size);
                if left == 0 {
                    // The range may be dropped now; a later one may lie elsewhere.
                    self.areas.remove(&start);
                } else if let Some(area) = self.areas.get_mut(&start) {
                    area.mapped = left;
                }
                area.shift == shift
            }
            _ => self
                .place(addr)
                .is_some_and(|(_, area)| area.shift == shift),
        }
    }
}

/// Compares a replay with the rows of a recording.
#[derive(Debug)]
pub(crate) struct Check<'a> {
    requests: &'a mut Requests,
    twin: Twin,
    /// The next operation.
    next: usize,
    rows: VecDeque<Recorded>,
    told: VecDeque<Told>,
    pub(crate) comparison: Comparison,
    over: bool,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        requests: &'a mut Requests,
        policy: Torch<Vec<Told>>,
        addrs: Vec<u64>,
        adopted: &[(u64, u64)],
    ) -> Self {
        let areas = adopted
            .iter()
            .map(|&(start, size)| {
                let area = Area {
                    size,
                    shift: 0,
                    mapped: size,
                };
                (start, area)
            })
            .collect();
        let comparison = Comparison {
            events: requests.events,
            ..Comparison::default()
        };
        Self {
            requests,
            twin: Twin {
                policy,
                addrs,
                areas,
            },
            next: 0,
            rows: VecDeque::new(),
            told: VecDeque::new(),
            comparison,
            over: false,
        }
    }

    /// Takes one row of the recording.
    pub(crate) fn row(&mut self, event: &Event, row: u32) {
        if self.over {
            return;
        }
        let Some(recorded) = Recorded::from_event(event, row) else {
            return;
        };
        let block = matches!(event.kind, Kind::Alloc | Kind::FreeRequested);
        if block && event.requested == 0 {
            self.bare(&recorded);
            return;
        }
        self.rows.push_back(recorded);
        self.advance(row);
    }

    /// Every event was compared.
    pub(crate) fn finish(mut self) -> Comparison {
        if !self.over {
            self.advance(u32::MAX);
        }
        if !self.over && (!self.rows.is_empty() || !self.told.is_empty()) {
            self.differ();
        }
        if !self.over {
            self.compare_finals();
        }
        self.decide_rest();
        self.comparison
    }

    /// A row of a process that was killed: only the block is known, and what
    /// the allocator did to get it is not recorded.
    fn bare(&mut self, recorded: &Recorded) {
        self.advance(recorded.row.saturating_sub(1));
        while !self.over
            && let Some(&row) = self.requests.rows.get(self.next)
            && row <= recorded.row
        {
            self.one();
        }
        let mut equal = false;
        for told in std::mem::take(&mut self.told) {
            let same = told.action == recorded.action;
            let mut as_recorded = *recorded;
            if told.action == Action::SegmentAlloc && recorded.action == Action::Alloc {
                // Its place is learnt from the block that was put at its start.
                as_recorded.action = told.action;
                self.twin.placed(&as_recorded, &told);
            } else if same {
                equal = self.twin.placed(&as_recorded, &told);
            }
        }
        if equal {
            self.comparison.equal += 1;
            self.comparison.bare += 1;
        } else if !self.over {
            self.comparison.incomparable_from = Some(recorded.row.into());
            self.over = true;
        }
    }

    fn advance(&mut self, row: u32) {
        self.pair();
        while !self.over && self.next < self.requests.ops.len() {
            if self.requests.rows[self.next] > row {
                break;
            }
            match self.open_question() {
                Some(last) if self.requests.rows[last] > row => break,
                Some(last) => self.answer(last),
                None => self.one(),
            }
            self.pair();
            let op_row = self.requests.rows[self.next - 1];
            let last = self.requests.rows.get(self.next);
            let last = last.is_none_or(|&next| next > op_row);
            let owed = self.rows.front().is_some_and(|first| first.row <= op_row);
            if !self.over && last && owed && self.told.is_empty() {
                self.differ();
            }
        }
    }

    /// Does the next operation.
    fn one(&mut self) {
        let op = self.requests.ops[self.next];
        if matches!(op.kind, OpKind::Release) {
            self.comparison.empty_caches += 1;
        }
        self.perform(&op);
        self.next += 1;
    }

    fn perform(&mut self, op: &Op) {
        let lane = self.requests.lanes[op.lane as usize];
        let twin = &mut self.twin;
        // A failing request shows as an event, or by the lack of one.
        let _ = twin.policy.step(op, lane, &mut twin.addrs);
        self.told.extend(twin.policy.policy.sink_mut().drain(..));
    }

    /// Compares what is there on both sides.
    fn pair(&mut self) {
        while !self.over
            && let (Some(recorded), Some(told)) = (self.rows.front(), self.told.front())
        {
            if self.twin.same(recorded, told) {
                self.comparison.equal += 1;
                self.rows.pop_front();
                self.told.pop_front();
            } else {
                self.differ();
            }
        }
    }

    fn differ(&mut self) {
        let next = self.requests.rows.get(self.next.saturating_sub(1));
        let row = self.rows.front().map(|recorded| recorded.row);
        let row = row.or(next.copied()).unwrap_or(0);
        self.comparison.difference = Some(Difference {
            row: row.into(),
            recorded: self.rows.front().map(Recorded::describe),
            replayed: self.told.front().map(|told| Seen {
                action: told.action.name().to_owned(),
                address: self.twin.translated(told.addr.0),
                size: told.size,
                stream: told.stream.0,
            }),
        });
        self.over = true;
    }

    /// If what comes next may be explained in several ways: the request it ends with.
    fn open_question(&self) -> Option<usize> {
        let ops = &self.requests.ops[self.next..];
        let mut unsure = false;
        for (index, op) in ops.iter().enumerate() {
            match op.kind {
                OpKind::FreeNow | OpKind::PoolDone | OpKind::Outside | OpKind::Nothing => {}
                OpKind::MaybeRelease => unsure = true,
                OpKind::Alloc | OpKind::Failed | OpKind::FailedLast if unsure => {
                    return Some(self.next + index);
                }
                _ => return None,
            }
        }
        None
    }

    /// Tries the explanations of the operations up to `last` and takes the first that fits.
    fn answer(&mut self, last: usize) {
        let range = self.next..=last;
        let ops = self.requests.ops[range.clone()].iter().copied();
        let ops: Vec<(Op, u32)> = ops.zip(self.requests.rows[range].iter().copied()).collect();
        let is_done = |op: &Op| op.kind == OpKind::FreeNow;
        let instead = |(op, row): (Op, u32), kind| match op.kind {
            OpKind::MaybeRelease => (Op { kind, ..op }, row),
            _ => (op, row),
        };
        let frees = ops.iter().filter(|(op, _)| is_done(op)).count();
        let mut attempts: Vec<(Vec<(Op, u32)>, bool)> = Vec::new();
        // The request did it, after so many frees had completed.
        for before in (0..=frees).rev().take(MAX_SPLITS + 1) {
            let mut seen = 0;
            let (mut first, mut after) = (Vec::new(), Vec::new());
            for &(op, row) in &ops {
                seen += usize::from(is_done(&op));
                if is_done(&op) && seen > before {
                    after.push((op, row));
                } else {
                    first.push(instead((op, row), OpKind::Nothing));
                }
            }
            first.extend(after);
            attempts.push((first, true));
        }
        let explicit = ops.iter().map(|&op| instead(op, OpKind::Release));
        let explicit = explicit.collect();
        attempts.push((explicit, false));
        for (ops, retried) in attempts {
            if let Some((twin, equal)) = self.attempt(&ops) {
                self.twin = twin;
                self.comparison.equal += equal;
                self.comparison.retries += u64::from(retried);
                self.comparison.empty_caches += u64::from(!retried);
                self.rows.clear();
                for (place, (op, row)) in (self.next..).zip(ops) {
                    self.requests.ops[place] = op;
                    self.requests.rows[place] = row;
                }
                self.next = last + 1;
                return;
            }
        }
        // None fits: the plain reading shows where.
        for (op, _) in &ops {
            let mut op = *op;
            if op.kind == OpKind::MaybeRelease {
                op.kind = plain(&op);
            }
            self.perform(&op);
        }
        self.next = last + 1;
    }

    /// Does operations on a copy; the copy and the number of events if they are those recorded.
    fn attempt(&self, ops: &[(Op, u32)]) -> Option<(Twin, u64)> {
        let mut twin = self.twin.clone();
        for (op, _) in ops {
            let lane = self.requests.lanes[op.lane as usize];
            let _ = twin.policy.step(op, lane, &mut twin.addrs);
        }
        let mut told = std::mem::take(twin.policy.policy.sink_mut());
        let mut rows: Vec<Recorded> = self.rows.iter().copied().collect();
        if told.len() != rows.len() || !self.told.is_empty() {
            return None;
        }
        // One synchronisation completes its frees in the order of hashes of
        // streams, which no recording holds: their order among each other is
        // the recorded one.
        let mut at = 0;
        while at < rows.len() {
            let completed = |action| action == Action::FreeCompleted;
            let run = |actions: &mut dyn Iterator<Item = Action>| {
                actions.take_while(|action| completed(*action)).count()
            };
            let count = run(&mut rows[at..].iter().map(|row| row.action));
            if count > 1 && count == run(&mut told[at..].iter().map(|told| told.action)) {
                rows[at..at + count].sort_by_key(|row| row.address);
                told[at..at + count].sort_by_key(|told| twin.translated(told.addr.0));
            }
            at += count.max(1);
        }
        let equal = rows
            .iter()
            .zip(&told)
            .all(|(recorded, told)| twin.same(recorded, told));
        equal.then_some((twin, rows.len() as u64))
    }

    /// Whether the blocks at the end are those of the recording.
    fn compare_finals(&mut self) {
        let Some(mut recorded) = self.requests.finals.clone() else {
            return;
        };
        let segments = self.twin.policy.policy.segments();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let mut replayed: Vec<_> = blocks
            .map(|block| (self.twin.translated(block.addr.0), block.size, block.state))
            .collect();
        recorded.sort_unstable();
        replayed.sort_unstable();
        self.comparison.final_state = Some(recorded == replayed);
    }

    /// Bursts that nothing explained: the driver's refusals decide.
    fn decide_rest(&mut self) {
        for op in &mut self.requests.ops {
            if op.kind == OpKind::MaybeRelease {
                op.kind = plain(op);
            }
        }
    }
}

/// The kind of a burst if only the driver's refusals can be queried.
fn plain(op: &Op) -> OpKind {
    if op.bytes > 0 {
        OpKind::Nothing
    } else {
        OpKind::Release
    }
}
