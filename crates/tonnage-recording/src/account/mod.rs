// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of a recording: who has what on which device, row by row.
//!
//! The one place that adds up rows. Everything that reports bytes (the verdict, `info`, `explain`, the report, the
//! exports, a replay's input) feeds its rows to an [`Account`] and reads the sums from it, so that no two answers
//! about one recording can differ.
//!
//! A [`DeviceAccount`] is one process on one device. It knows PyTorch's live blocks and segments by their rows, and
//! what the device charged by the driver's rows: by the device's own figure where the recording has it, else by the
//! sizes requested. It remembers the moments that answers are about: the largest use, the largest sum of blocks, the
//! last out-of-memory. Rows of several processes stand one process after the other in a recording, so what all of
//! them used together is only known where the driver's rows contain it ([`Event::in_use`]).
//!
//! **Invariant:** memory grows with what is there at one time, not with the number of rows; no sum exceeds
//! [`ABSURD`] by more than one other, whatever the rows contain.

mod block;
mod device;
mod driver;
mod moment;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use block::{ABSURD, Block, BlockState, Change, FinalSegment, Rounding, Segment};
pub use device::DeviceAccount;
use driver::Reservations;
pub use moment::{AfterOom, Breakdown, Moment, Peak, Refusal};

use crate::{Event, Kind, StackTable};

/// Pairs of process and device that are distinguished; no machine has so many.
const MAX_TRACKS: usize = 1 << 16;

/// The most that all processes used of a device at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePeak {
    /// Bytes.
    pub bytes: u64,
    /// Whether it was this much; else it was not more, because nothing reports which processes ran at the same time.
    pub is_exact: bool,
    /// The process at whose row it was reached: the one that used most, where it is not exact.
    pub process: u32,
    /// That row.
    pub row: u64,
}

/// The memory of every process on every device. `T` is the reader's note beside each live block.
///
/// ```
/// use tonnage_recording::account::Rounding;
/// use tonnage_recording::{Account, Event, Kind, StackTable};
///
/// let (mut account, stacks) = (Account::<()>::new(Rounding::PyTorch), StackTable::new());
/// let rows = [(Kind::Alloc, 4096, 1000), (Kind::Alloc, 8192, 3000), (Kind::FreeRequested, 4096, 1000)];
/// for (row, (kind, address, requested)) in (0..).zip(rows) {
///     let event = Event { address, requested, ..Event::new(kind) };
///     account.apply(&event, row, &stacks);
/// }
/// let device = account.get(0, 0).expect("it has blocks");
/// // 1000 and 3000 bytes take 1024 and 3072.
/// assert_eq!(device.peak_allocated().bytes, 4096);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Account<T = ()> {
    rounding: Rounding,
    tracks: BTreeMap<(u32, i32), DeviceAccount<T>>,
    reservations: BTreeMap<u32, Reservations>,
}

impl<T: Copy + Default> Account<T> {
    /// An empty account for blocks that are rounded in this way.
    pub fn new(rounding: Rounding) -> Self {
        Self {
            rounding,
            tracks: BTreeMap::new(),
            reservations: BTreeMap::new(),
        }
    }

    /// Takes the next row, the `row`th from 0, and reports what it did.
    pub fn apply(&mut self, event: &Event, row: u64, stacks: &StackTable) -> Change<T> {
        if !is_about_device(event.kind) {
            return Change::Nothing;
        }
        let has_room = self.reservations.len() < MAX_TRACKS;
        if !has_room && !self.reservations.contains_key(&event.process) {
            return Change::Nothing;
        }
        let reservations = self.reservations.entry(event.process).or_default();
        match event.kind {
            Kind::DriverReserve => {
                reservations.reserve(event);
                return Change::Nothing;
            }
            Kind::DriverUnreserve => {
                reservations.unreserve(event);
                return Change::Nothing;
            }
            _ => {}
        }
        let key = (event.process, event.device);
        if self.tracks.len() >= MAX_TRACKS && !self.tracks.contains_key(&key) {
            return Change::Nothing;
        }
        let track = self
            .tracks
            .entry(key)
            .or_insert_with(|| DeviceAccount::new(self.rounding));
        track.apply(event, row, stacks, reservations)
    }

    /// One process on one device.
    pub fn get(&self, process: u32, device: i32) -> Option<&DeviceAccount<T>> {
        self.tracks.get(&(process, device))
    }

    /// The same, to note something down beside its blocks.
    pub fn get_mut(&mut self, process: u32, device: i32) -> Option<&mut DeviceAccount<T>> {
        self.tracks.get_mut(&(process, device))
    }

    /// Every process on every device, in order.
    pub fn iter(&self) -> impl Iterator<Item = ((u32, i32), &DeviceAccount<T>)> {
        self.tracks.iter().map(|(key, track)| (*key, track))
    }

    /// The most that all processes together used of a device; `None` if no row is about it.
    pub fn peak_in_use(&self, device: i32) -> Option<DevicePeak> {
        let tracks = || self.iter().filter(|((_, on), _)| *on == device);
        let peak = |process, moment: Moment| {
            let breakdown = moment.breakdown;
            let bytes = breakdown.used.saturating_add(breakdown.other_processes);
            (bytes, process, moment.row)
        };
        // The first of equals, so that process 0 stands for all.
        let is_told = tracks().all(|(_, track)| {
            track.at_peak_in_use().is_some() || track.at_peak_used().breakdown.used == 0
        });
        if is_told {
            let told = tracks().filter_map(|((process, _), track)| {
                track.at_peak_in_use().map(|moment| peak(process, moment))
            });
            if let Some((bytes, process, row)) = first_largest(told) {
                return Some(DevicePeak {
                    bytes,
                    is_exact: true,
                    process,
                    row,
                });
            }
        }
        let own = || {
            tracks().map(|((process, _), track)| {
                let moment = track.at_peak_used();
                (moment.breakdown.used, process, moment.row)
            })
        };
        let (_, process, row) = first_largest(own())?;
        Some(DevicePeak {
            bytes: own().fold(0_u64, |sum, (bytes, ..)| sum.saturating_add(bytes)),
            is_exact: own().filter(|(bytes, ..)| *bytes > 0).count() <= 1,
            process,
            row,
        })
    }
}

fn first_largest(peaks: impl Iterator<Item = (u64, u32, u64)>) -> Option<(u64, u32, u64)> {
    peaks.reduce(|most, next| if next.0 > most.0 { next } else { most })
}

/// Whether a row is about memory of a device, or of the host.
fn is_about_device(kind: Kind) -> bool {
    kind.is_event()
        && !matches!(
            kind,
            Kind::Mark | Kind::MarkStart | Kind::MarkEnd | Kind::Unmodelled
        )
}
