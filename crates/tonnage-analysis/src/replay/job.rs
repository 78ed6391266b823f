// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording that is ready to be replayed.

use std::collections::BTreeMap;
use std::io::{self, Read};

use tonnage_recording::account::Rounding;
use tonnage_recording::{Account, Ending, Kind, Reader};

use super::alloc::Alloc;
use super::options::{Options, ReplayError};
use super::report::{Assumption, Report, SCHEMA_VERSION, TrackReport};
use super::requests::Builder;
use super::track::Track;

/// A recording, ready to be replayed any number of times, by many threads at once.
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
/// let report = job.replay(&[Alloc::torch("")?, Alloc::Bfc], false);
/// let torch = &report.tracks[0].allocators[0];
/// assert!(torch.completes());
/// // PyTorch obtains a segment of 20 MiB for it.
/// assert_eq!(torch.peak_reserved, 20 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Job {
    pub(crate) tracks: Vec<Track>,
}

impl Job {
    /// Reads a recording and replays it once, as recorded, to see that it is understood.
    ///
    /// `open` opens the recording, as a trace, once for every reading of it.
    pub fn load<R: Read>(
        open: impl Fn() -> io::Result<R>,
        options: &Options,
    ) -> Result<Self, ReplayError> {
        let mut reader = Reader::new(open()?)?;
        let mut account: Account<Option<u32>> = Account::new(Rounding::PyTorch);
        let mut builders: BTreeMap<(u32, i32), Builder> = BTreeMap::new();
        let mut row = 0_u32;
        // Rows after which a process begins a step.
        let mut marks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        while let Some(event) = reader.next().transpose()? {
            // -1 is pinned host memory, which no allocator of the device serves.
            if event.device >= 0 {
                let key = (event.process, event.device);
                let change = account.apply(&event, u64::from(row), reader.stacks());
                if let Some(track) = account.get_mut(key.0, key.1) {
                    let builder = builders
                        .entry(key)
                        .or_insert_with(|| Builder::new(key.0, key.1));
                    builder.row(&event, &change, track, row, reader.stacks());
                }
            }
            let is_step = |text| reader.stacks().text(text) == "step";
            if event.kind == Kind::Mark && event.text.is_some_and(is_step) {
                marks.entry(event.process).or_default().push(row);
            }
            row = row.checked_add(1).ok_or(ReplayError::TooLong)?;
        }
        let cut_off = reader.ending().is_some_and(Ending::is_truncated);
        let facts = reader.meta().to_vec();
        drop(reader);
        let mut tracks = Vec::new();
        for ((process, device), builder) in builders {
            let Some(track) = account.get(process, device) else {
                continue;
            };
            let mut requests = builder.finish(track);
            requests.marks = marks.get(&process).cloned().unwrap_or_default();
            if requests.allocs > 0 {
                tracks.push(Track::prepare(&open, requests, &facts, options, cut_off)?);
            }
        }
        if tracks.is_empty() {
            return Err(ReplayError::NoRequests);
        }
        let mut sharing: BTreeMap<i32, u64> = BTreeMap::new();
        for track in &tracks {
            *sharing.entry(track.requests.device).or_default() += 1;
        }
        for track in &mut tracks {
            let processes = sharing[&track.requests.device];
            if processes > 1 {
                track
                    .assumptions
                    .push(Assumption::SharedDevice { processes });
            }
        }
        // Stable, so that rank 0 stands for equals.
        tracks.sort_by_key(|track| std::cmp::Reverse(track.requests.peak_live));
        Ok(Self { tracks })
    }

    /// Replays every process with each allocator; `smallest` also looks for the smallest device.
    pub fn replay(&self, allocs: &[Alloc], smallest: bool) -> Report {
        self.replay_watched(allocs, smallest, &|_, _| {})
    }

    /// The same; `progress` is called with how many replays are done, and how many there are.
    pub fn replay_watched(
        &self,
        allocs: &[Alloc],
        smallest: bool,
        progress: &dyn Fn(usize, usize),
    ) -> Report {
        let total = self.tracks.len() * allocs.len();
        let mut done = 0;
        let tracks = self.tracks.iter().map(|track| {
            track.report(allocs, smallest, &mut || {
                done += 1;
                progress(done, total);
            })
        });
        Report {
            schema_version: SCHEMA_VERSION,
            tracks: tracks.collect(),
        }
    }

    /// Replays one process on one device with each allocator, and looks for the smallest device; none if there is no
    /// such process.
    pub fn replay_track(&self, process: u32, device: i32, allocs: &[Alloc]) -> Option<TrackReport> {
        let track = self.track(process, device)?;
        Some(track.report(allocs, true, &mut || {}))
    }
}
