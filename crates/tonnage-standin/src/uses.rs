// SPDX-License-Identifier: MIT OR Apache-2.0
//! When the device uses the blocks of torch's allocator.
//!
//! A launch, a copy or a call of a library uses each block that one of its addresses lies in. Kernels pass addresses
//! inside structs, so every word of their parameters counts that looks like one (`model/parameters.rs`). A host array
//! of addresses that is copied to a block belongs to that block: a use of it uses them. So a recorded use may be false,
//! where a number has the value of an address or where a kernel does not follow one. No use is left out, apart
//! from kernels whose parameters cannot be read, which are counted.
//!
//! The time of a use is the number of the last entry in the blocks file: it has the order of the recording and no
//! clock. The uses of a block are written when it is taken back, or at the end of the process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tonnage_capture::blocks::{Block, Uses};
use tonnage_capture::note::Note;

use crate::fork::Lock;
use crate::machine::{Machine, machine};
use crate::model::note_captured;
use crate::recorder;
use crate::region::Region;

/// Host arrays that are longer are data and no addresses.
const LONGEST_ARRAY: usize = 1 << 20;
/// Maximum number of live blocks that are followed.
const MAX_BLOCKS: usize = 1 << 20;
const WORD: usize = 8;
/// Devices of which the bytes of each launch are added up.
const DEVICES: usize = 16;

/// A live block.
struct Live {
    size: u64,
    uses: Uses,
    /// The last launch that used it.
    launch: u64,
    /// The moment of the peak that `uses.next` comes after.
    peak: Option<u32>,
    /// Addresses that were copied into it.
    addresses: Vec<u64>,
}

struct Known {
    live: BTreeMap<u64, Live>,
    /// Most bytes that were allocated on each device, and the moment.
    peaks: Vec<(u64, u32)>,
    /// Most bytes of blocks that one launch used on each device.
    floors: Vec<u64>,
    launches: u64,
}

static KNOWN: Lock<Known> = Lock::forgotten_in_child(
    Known {
        live: BTreeMap::new(),
        peaks: Vec::new(),
        floors: Vec::new(),
        launches: 0,
    },
    forget,
);
/// Launches of kernels whose parameters could not be read.
static UNREAD: AtomicU64 = AtomicU64::new(0);
/// Set when there were more blocks than are followed.
static TOO_MANY: AtomicBool = AtomicBool::new(false);

fn forget() {
    let mut known = KNOWN.lock();
    known.live.clear();
    known.peaks.clear();
    known.floors.clear();
    UNREAD.store(0, Ordering::Relaxed);
    TOO_MANY.store(false, Ordering::Relaxed);
}

/// Keeps a block that was handed out or taken back, with its uses; `allocated` is what is handed out then.
pub(crate) fn keep_block(block: Block, allocated: u64) {
    let mut known = KNOWN.lock();
    let device = usize::from(block.device);
    let Ok(size) = u64::try_from(block.change) else {
        let uses = known.live.remove(&block.address).map(|live| live.uses);
        recorder::block(block, uses);
        return;
    };
    let Some(born) = recorder::block(block, None) else {
        return;
    };
    if known.peaks.len() <= device {
        known.peaks.resize(device + 1, (0, 0));
        known.floors.resize(device + 1, 0);
    }
    if allocated > known.peaks[device].0 {
        known.peaks[device] = (allocated, born);
    }
    if known.live.len() >= MAX_BLOCKS {
        TOO_MANY.store(true, Ordering::Relaxed);
        return;
    }
    let uses = Uses {
        device: block.device,
        born,
        ..Uses::default()
    };
    let live = Live {
        size,
        uses,
        launch: 0,
        peak: None,
        addresses: Vec::new(),
    };
    known.live.insert(block.address, live);
}

/// The addresses of all devices.
fn addresses() -> Range<u64> {
    machine().map_or(0..0, Machine::all_addresses)
}

/// Whether there is a device whose memory could be used.
pub(crate) fn are_followed() -> bool {
    !addresses().is_empty()
}

/// The words that look like addresses of a device.
fn among(words: impl Iterator<Item = u64>) -> Vec<u64> {
    let all = addresses();
    words.filter(|word| all.contains(word)).collect()
}

/// Notes a launch that uses the blocks at those of the words that are addresses.
pub(crate) fn touch(words: impl Iterator<Item = u64>) {
    let addresses = among(words);
    if !addresses.is_empty() {
        note_captured(&addresses);
        KNOWN.lock().touch(&addresses);
    }
}

/// Notes a call whose list of bytes may contain addresses.
pub(crate) fn touch_bytes(bytes: &[u8]) {
    let words = bytes.as_chunks::<WORD>().0.iter();
    touch(words.map(|word| u64::from_ne_bytes(*word)));
}

/// Notes a copy; addresses that it brings from the host belong to the target.
pub(crate) fn copy(to: Region, from: Region) {
    let (target, source) = (to.address().0 as u64, from.address().0 as u64);
    touch([target, source].into_iter());
    let all = addresses();
    let length = to.len().min(from.len());
    let is_array = source.is_multiple_of(WORD as u64) && (WORD..=LONGEST_ARRAY).contains(&length);
    if !is_array || source == 0 || all.contains(&source) || !all.contains(&target) {
        return;
    }
    let words = (0..length / WORD).map(|index| {
        // SAFETY: the source is on the host, and the caller of the copy promises that `length` bytes of it can be read.
        unsafe { from.word(index) }
    });
    let found = among(words);
    if found.is_empty() {
        return;
    }
    touch(found.iter().copied());
    let mut known = KNOWN.lock();
    if let Some(live) = known.at(target) {
        live.addresses.extend(&found);
        live.addresses.sort_unstable();
        live.addresses.dedup();
    }
}

/// Counts a launch whose parameters cannot be read.
pub(crate) fn note_unread() {
    UNREAD.fetch_add(1, Ordering::Relaxed);
}

impl Known {
    fn at(&mut self, address: u64) -> Option<&mut Live> {
        let (start, live) = self.live.range_mut(..=address).next_back()?;
        (address - start < live.size).then_some(live)
    }

    fn touch(&mut self, addresses: &[u64]) {
        self.launches += 1;
        let mut behind = Vec::new();
        let mut sums = [0_u64; DEVICES];
        for &address in addresses {
            behind.extend(self.touch_one(address, &mut sums));
        }
        for address in behind {
            self.touch_one(address, &mut sums);
        }
        for (floor, sum) in self.floors.iter_mut().zip(sums) {
            *floor = sum.max(*floor);
        }
    }

    /// Notes a use of the block at an address, adds it to the launch's bytes of its device, and returns the addresses
    /// that were copied into it.
    fn touch_one(&mut self, address: u64, sums: &mut [u64; DEVICES]) -> Vec<u64> {
        let launch = self.launches;
        let peaks = std::mem::take(&mut self.peaks);
        let used = self.at(address).filter(|live| live.launch != launch);
        let behind = used.map_or_else(Vec::new, |live| {
            let uses = &mut live.uses;
            live.launch = launch;
            if let Some(sum) = sums.get_mut(usize::from(uses.device)) {
                *sum += live.size;
            }
            uses.count = uses.count.saturating_add(1);
            let now = recorder::entries(uses.device).saturating_sub(1);
            uses.first.get_or_insert(now);
            uses.last = Some(now);
            let peak = peaks.get(usize::from(uses.device)).map(|peak| peak.1);
            if live.peak != peak && peak.is_some_and(|peak| uses.born <= peak) {
                live.peak = peak;
                uses.next = Some(now);
            }
            live.addresses.clone()
        });
        self.peaks = peaks;
        behind
    }
}

/// Writes the uses of the blocks that are alive at the end of the process, and whether any may be missing.
pub(crate) fn write_rest() {
    let known = KNOWN.lock();
    if known.peaks.is_empty() {
        return;
    }
    for (&address, live) in &known.live {
        recorder::used(live.uses, address);
    }
    let floors = known.floors.clone();
    drop(known);
    recorder::remark_note(&Note::Uses {
        unread: UNREAD.load(Ordering::Relaxed),
        is_cut: TOO_MANY.load(Ordering::Relaxed),
        floors,
    });
}
