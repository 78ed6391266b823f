// SPDX-License-Identifier: MIT OR Apache-2.0
//! The holder of each block, and the moments at which Python is queried for it.
//!
//! Python answers in one go, a census: for each block an answer, or none. The
//! answers are kept here beside the blocks, so that one that was given before is
//! not written again, and a block for which Python returns nothing is written as
//! held by `nothing`. The moment of a query depends on bytes alone, never on a clock:
//! two runs of a script are queried at the same moments.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use tonnage_capture::blocks::NoteKind;

use crate::fork::Lock;
use crate::recorder;

/// Below this many allocated bytes there is no census.
const MIN_ALLOCATED: u64 = 64 << 20;
/// Nor, while the program runs, below the capacity divided by this.
const MIN_SHARE: u64 = 64;
/// Below the capacity divided by this, levels lie further apart: most programs pass them while they load a model.
const SMALL_SHARE: u64 = 16;
/// A larger capacity counts as this one: a run without a limit needs censuses as well.
const MAX_CAPACITY: u64 = 16 << 30;
/// A level is new if it is a quarter above the last one, or by the capacity divided by this.
const NEW_SHARE: u64 = 12;
/// Maximum number of live blocks that are followed: a census of more would take too long.
const MAX_BLOCKS: usize = 1 << 20;

/// The holder of a block that no Python object refers to.
const NOTHING: &str = "nothing\t\t";

/// A block that torch's allocator has handed out.
struct Live {
    size: u64,
    device: usize,
    holder: Option<String>,
    /// Number of the last census that named a holder.
    census: u64,
}

pub(crate) struct Known {
    live: BTreeMap<u64, Live>,
    /// Allocated bytes of each device now, and at the last census.
    levels: Vec<(u64, u64)>,
    censuses: u64,
    /// Whether a census was requested and has not begun.
    pending: bool,
}

static KNOWN: Lock<Known> = Lock::new(Known {
    live: BTreeMap::new(),
    levels: Vec::new(),
    censuses: 0,
    pending: false,
});

fn lock_known() -> MutexGuard<'static, Known> {
    KNOWN.lock()
}

/// A block was handed out or taken back; `capacity` is the size of its device.
/// Whether a census is due because so much was never allocated before.
pub(crate) fn changed(
    address: u64,
    change: i64,
    device: usize,
    allocated: u64,
    capacity: u64,
) -> bool {
    let mut known = lock_known();
    match u64::try_from(change) {
        Ok(size) if known.live.len() < MAX_BLOCKS => {
            let live = Live {
                size,
                device,
                holder: None,
                census: 0,
            };
            known.live.insert(address, live);
        }
        Ok(_) => {}
        Err(_) => {
            known.live.remove(&address);
        }
    }
    if known.levels.len() <= device {
        known.levels.resize(device + 1, (0, 0));
    }
    let (now, last) = &mut known.levels[device];
    *now = allocated;
    let size = capacity.min(MAX_CAPACITY);
    let least = MIN_ALLOCATED.max(size / MIN_SHARE);
    let more = if allocated < size / SMALL_SHARE {
        *last / 5 * 3
    } else {
        (*last / 4).min((capacity / NEW_SHARE).max(MIN_ALLOCATED))
    };
    let due = allocated >= least && allocated > last.saturating_add(more);
    let ask = due && !known.pending;
    known.pending |= due;
    ask
}

/// Whether a device holds this many hundredths of what it held at the last census, and not little.
pub(crate) fn due(percent: u64) -> bool {
    lock_known().levels.iter().any(|&(now, last)| {
        now >= MIN_ALLOCATED && u128::from(now) * 100 >= u128::from(last) * u128::from(percent)
    })
}

/// A census begins, for this reason.
pub(crate) fn begin(reason: &str, device: usize) {
    let mut known = lock_known();
    known.censuses += 1;
    known.pending = false;
    for (now, last) in &mut known.levels {
        *last = *now;
    }
    drop(known);
    recorder::note(NoteKind::Moment, device, 0, &format!("census\t{reason}"));
}

/// Records what holds the block that contains `address`, as found by Python.
pub(crate) fn hold(address: u64, text: &str) {
    let mut known = lock_known();
    let census = known.censuses;
    let Some((&start, live)) = known.live.range_mut(..=address).next_back() else {
        return;
    };
    if address - start >= live.size {
        return;
    }
    live.census = census;
    if live.holder.as_deref() != Some(text) {
        live.holder = Some(text.to_owned());
        recorder::note(NoteKind::Holder, live.device, start, text);
    }
}

/// A census ends. Where graphs were not walked, a block that one held still counts as held by it.
pub(crate) fn end(reason: &str, device: usize, graphs: bool) {
    let mut known = lock_known();
    let census = known.censuses;
    for (&address, live) in &mut known.live {
        let before = live.holder.as_deref().unwrap_or_default();
        if live.census == census || (!graphs && before.starts_with("graph\t")) {
            continue;
        }
        if before != NOTHING {
            live.holder = Some(NOTHING.to_owned());
            recorder::note(NoteKind::Holder, live.device, address, NOTHING);
        }
    }
    drop(known);
    recorder::note(
        NoteKind::Moment,
        device,
        0,
        &format!("census_end\t{reason}"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_is_due_at_new_levels_and_once_at_a_time() {
        let (device, capacity) = (7, 24 << 30);
        let mut address = 1 << 44;
        let mut allocate = |allocated| {
            address += 1 << 20;
            changed(address, 1 << 20, device, allocated, capacity)
        };
        assert!(!allocate(64 << 20), "little for this device");
        assert!(due(100), "but not for the beginning of a pass");
        assert!(allocate(256 << 20), "a sixty-fourth");
        begin("peak", device);
        assert!(
            !allocate(409 << 20),
            "a small level is three fifths above the last"
        );
        assert!(allocate(410 << 20));
        begin("peak", device);
        assert!(allocate(3 << 29));
        assert!(!allocate(2 << 30), "one is asked for already");
        assert!(due(100));
        begin("peak", device);
        assert!(!due(105));
        assert!(!allocate((2 << 30) + (512 << 20)), "not a quarter more");
        assert!(due(105));
        assert!(!due(130));
        assert!(allocate((2 << 30) + (513 << 20)));
        begin("peak", device);
        assert!(allocate(20 << 30));
        begin("peak", device);
        assert!(allocate((22 << 30) + 1), "a twelfth of the device more");
        begin("peak", device);
        hold((1 << 44) + (3 << 20) + 17, "list\tkept\ta.py:1");
        hold(17, "list\tno block\t");
        end("peak", device, true);
        let known = lock_known();
        let holder = |index: u64| known.live[&((1 << 44) + (index << 20))].holder.as_deref();
        assert_eq!(holder(3), Some("list\tkept\ta.py:1"));
        assert_eq!(holder(2), Some("nothing\t\t"));
        assert!(!known.live.contains_key(&17));
    }
}
