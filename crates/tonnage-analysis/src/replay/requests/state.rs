// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state before the first row and after the last, and what follows from both.

use tonnage_alloc::torch::BlockState;
use tonnage_recording::{Event, Kind, StackTable, account};

use super::builder::{Builder, FinalBlock, Track};
use super::model::{InitialSegment, OpKind, Requests};

impl Builder {
    pub(super) fn segment_state(&mut self, event: &Event, track: &Track, texts: &StackTable) {
        let small = event.name.is_some_and(|name| texts.text(name) == "small");
        let expandable = event
            .text
            .is_some_and(|text| texts.text(text) == "expandable");
        let lane = self.lane(event);
        self.out.has_segments = true;
        let segment = InitialSegment {
            addr: event.address,
            size: event.size,
            lane,
            small,
            expandable,
        };
        if event.kind == Kind::InitialSegment {
            self.note_net(track);
            self.out.segments.push(segment);
        } else {
            self.finals.push(segment);
        }
    }

    pub(super) fn block_state(&mut self, event: &Event, track: &mut Track, texts: &StackTable) {
        let state = match event.name.map(|name| texts.text(name)) {
            Some("active_allocated") => BlockState::ActiveAllocated,
            Some("inactive") | None => BlockState::Inactive,
            Some(_) => BlockState::ActivePendingFree,
        };
        if event.kind == Kind::FinalBlock {
            let finals = self.out.finals.get_or_insert_default();
            finals.push((event.address, event.size, state));
        }
        if state == BlockState::Inactive {
            return;
        }
        let lane = self.lane(event);
        if event.kind == Kind::FinalBlock {
            self.final_blocks.push(FinalBlock {
                addr: event.address,
                size: event.size,
                requested: event.requested,
                lane,
                state,
            });
            return;
        }
        let slot = self.fresh_slot();
        self.add_initial(
            event.address,
            event.size,
            event.requested,
            lane,
            slot,
            state,
        );
        track.tag(event.address, Some(slot));
    }

    /// The requests, when every row was taken.
    pub(crate) fn finish(mut self, track: &Track) -> Requests {
        self.settle_taken();
        // A free that does not wait completes in the same call, where a recording has completions at all.
        if let Some((_, op)) = self.last_free.take()
            && self.has_completions
        {
            self.out.ops[op].kind = OpKind::FreeLater;
        }
        if let Some(burst) = self.burst.take() {
            self.close_burst(&burst, true, burst.row);
        }
        let last = self
            .out
            .ops
            .iter_mut()
            .rev()
            .find(|op| matches!(op.kind, OpKind::Alloc | OpKind::Failed));
        if let Some(op) = last
            && op.kind == OpKind::Failed
        {
            op.kind = OpKind::FailedLast;
        }
        let had_finals = !self.finals.is_empty();
        let sizes = self.finals.iter().map(|segment| segment.size);
        let final_bytes = sizes.fold(0, u64::saturating_add);
        for segment in std::mem::take(&mut self.finals) {
            // Segments that rows obtained whole, or that were there from the start.
            let new = !track
                .segment(segment.addr)
                .is_some_and(|seen| !seen.is_expandable || seen.born.is_none());
            // The mapped part of an expandable segment at the start does not follow
            // from what it has at the end.
            if new && (!segment.expandable || self.net < i64::try_from(final_bytes).unwrap_or(0)) {
                self.out.segments.push(segment);
            }
        }
        let since_start: Vec<FinalBlock> = std::mem::take(&mut self.final_blocks);
        for block in since_start {
            let live = track.block(block.addr).filter(|live| live.tag.is_some());
            let allocated = account::BlockState::Allocated;
            match live {
                Some(live)
                    if (live.state == allocated)
                        == (block.state == BlockState::ActiveAllocated) => {}
                Some(_) => self.out.gaps.contradicted_blocks += 1,
                None => {
                    let slot = self.fresh_slot();
                    let FinalBlock {
                        addr,
                        size,
                        requested,
                        lane,
                        state,
                    } = block;
                    self.add_initial(addr, size, requested, lane, slot, state);
                }
            }
        }
        let before = if had_finals {
            i64::try_from(final_bytes)
                .unwrap_or(i64::MAX)
                .saturating_sub(self.net)
        } else {
            self.least.saturating_neg()
        };
        self.out.peak_reserved =
            u64::try_from(before.max(0).saturating_add(self.most.max(0))).unwrap_or(0);
        self.out.available = self
            .room
            .and_then(|room| u64::try_from(room.saturating_add(before.max(0))).ok());
        self.out.initial.sort_by_key(|block| block.addr);
        self.out.segments.sort_by_key(|segment| segment.addr);
        self.raise_peak_live();
        self.out.ops.shrink_to_fit();
        self.out.rows.shrink_to_fit();
        self.out
    }

    /// Counts blocks that were there from the start, and the request that
    /// ended the recording, into the least any allocator needs.
    fn raise_peak_live(&mut self) {
        let mut needed = 0;
        let mut sizes = vec![0_u64; self.out.slots as usize];
        let mut live = 0_u64;
        for block in &self.out.initial {
            if block.state == BlockState::ActiveAllocated {
                sizes[block.slot as usize] = rounded(block.requested);
                live = live.saturating_add(rounded(block.requested));
            }
        }
        let mut most = live;
        for op in &self.out.ops {
            match op.kind {
                OpKind::Alloc => {
                    sizes[op.slot as usize] = rounded(op.bytes);
                    live = live.saturating_add(rounded(op.bytes));
                    most = most.max(live);
                }
                OpKind::Free | OpKind::FreeLater => {
                    live = live.saturating_sub(std::mem::take(&mut sizes[op.slot as usize]));
                }
                OpKind::FailedLast => needed = live.saturating_add(rounded(op.bytes)),
                _ => {}
            }
        }
        self.out.peak_live = most;
        self.out.needed_live = most.max(needed);
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(512).unwrap_or(u64::MAX)
}
