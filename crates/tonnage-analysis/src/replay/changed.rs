// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same program with other lifetimes of its blocks: the requests after a change of the program.
//!
//! A block may be left out, be made smaller, end earlier, or come back later
//! (recomputed activations). The allocator then serves what is left, in the same
//! order, so that "it would fit" rests on a replay and not on a sum. Requests
//! that the change would add and the recording does not show are not in it.

use std::collections::{BTreeMap, HashMap};

use super::alloc::Alloc;
use super::job::Job;
use super::requests::{Op, OpKind, Requests};
use super::track::Track;

/// The lifetimes of one block after the change: from a row, to a row, bytes. None of them: it is never made.
pub type Change = Vec<(u32, u32, u64)>;

/// The fate of blocks, by the row that allocated each.
pub type Changes = HashMap<u32, Change>;

impl Job {
    /// A process on a device as it would be after a change of the program, with the recorded setting; none if there
    /// is no such process.
    pub(crate) fn changed(
        &self,
        (process, device): (u32, i32),
        changes: &Changes,
    ) -> Option<(Track, Alloc)> {
        let track = self.track(process, device)?;
        let mut changed = track.clone();
        changed.requests = with_changes(&track.requests, changes);
        let alloc = changed.resolve(&Alloc::Recorded)?;
        Some((changed, alloc))
    }

    /// Whether every process has PyTorch's own allocator, which takes settings.
    pub(crate) fn takes_settings(&self) -> bool {
        let of_torch =
            |track: &Track| matches!(track.resolve(&Alloc::Recorded), Some(Alloc::Torch(_)));
        self.tracks.iter().all(of_torch)
    }

    pub(crate) fn track(&self, process: u32, device: i32) -> Option<&Track> {
        let mut tracks = self.tracks.iter();
        tracks.find(|track| (track.requests.process, track.requests.device) == (process, device))
    }
}

fn with_changes(requests: &Requests, changes: &Changes) -> Requests {
    let mut out = requests.clone();
    out.ops.clear();
    out.rows.clear();
    let mut push = |op: Op, row: u32| {
        out.ops.push(op);
        out.rows.push(row);
    };
    // The changes to come, by row; within a row frees come first.
    let mut coming: BTreeMap<(u32, bool), Vec<Op>> = BTreeMap::new();
    let mut gone = vec![false; requests.slots as usize];
    let mut slots = requests.slots;
    for (op, &row) in requests.ops.iter().zip(&requests.rows) {
        let slot = op.slot as usize;
        let mut dropped = false;
        match op.kind {
            OpKind::Alloc => {
                let change = changes.get(&row);
                if let Some(gone) = gone.get_mut(slot) {
                    *gone = change.is_some();
                }
                for &(from, to, bytes) in change.into_iter().flatten() {
                    if bytes == 0 || to <= from || slots == u32::MAX {
                        continue;
                    }
                    let made = Op {
                        bytes,
                        slot: slots,
                        ..*op
                    };
                    let freed = Op {
                        bytes: 0,
                        kind: OpKind::Free,
                        ..made
                    };
                    slots += 1;
                    coming.entry((from, true)).or_default().push(made);
                    if to != u32::MAX {
                        coming.entry((to, false)).or_default().push(freed);
                    }
                }
                dropped = change.is_some();
            }
            OpKind::Free | OpKind::FreeLater | OpKind::FreeNow => {
                dropped = gone.get(slot).is_some_and(|&gone| gone);
            }
            _ => {}
        }
        while let Some(next) = coming.first_entry().filter(|next| next.key().0 <= row) {
            for op in next.remove() {
                push(op, row);
            }
        }
        if !dropped {
            push(*op, row);
        }
    }
    out.slots = slots;
    let live = peak_live(&out);
    out.peak_live = live;
    out.needed_live = live;
    out
}

/// Most bytes alive at once, each request rounded to 512.
fn peak_live(requests: &Requests) -> u64 {
    let mut held: HashMap<u32, u64> = HashMap::new();
    let (mut sum, mut peak) = (0_u64, 0_u64);
    let rounded = |bytes: u64| bytes.checked_next_multiple_of(512).unwrap_or(bytes);
    for block in &requests.initial {
        let bytes = rounded(block.requested);
        held.insert(block.slot, bytes);
        sum = sum.saturating_add(bytes);
    }
    for op in &requests.ops {
        match op.kind {
            OpKind::Alloc => {
                let bytes = rounded(op.bytes);
                held.insert(op.slot, bytes);
                sum = sum.saturating_add(bytes);
            }
            OpKind::Free | OpKind::FreeLater | OpKind::FreeNow => {
                let bytes = held.remove(&op.slot).unwrap_or(0);
                sum = sum.saturating_sub(bytes);
            }
            _ => {}
        }
        peak = peak.max(sum);
    }
    peak
}
