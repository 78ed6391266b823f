// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far from its limits a job that fits is.
//!
//! Free memory at the fullest moment means little: PyTorch keeps what was freed, so a job with headroom may fill
//! its device. The distance that counts is to the smallest device on which the same requests are served, which a
//! replay finds. Against it stands what a dry run does not count. Its ranges were read off real GPUs;
//! `docs/concepts/limits.md` has the readings.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use serde::Serialize;
use tonnage_recording::facts::{self, NcclBuffers};
use tonnage_recording::{Meta, meta};

use super::{DeviceTotal, DeviceUse, Facts};
use crate::replay::{Alloc, Job, Options, Track};

const MIB: u64 = 1 << 20;
/// The memory of kernel images and library handles outside the context of a process with PyTorch.
const IMAGES: (u64, u64) = (50 * MIB, 350 * MIB);
/// The memory of NCCL in a process of a distributed job. More communicators than in those jobs need more.
const NCCL: (u64, u64) = (100 * MIB, 1843 * MIB);
/// How far a context that is assumed was from those that were read.
const CONTEXT: (u64, u64) = (0, 22 * MIB);

/// Something that takes memory on a real GPU and is not counted in a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Uncounted {
    /// Its description.
    pub what: String,
    /// The least it takes, in bytes on the device.
    pub low: u64,
    /// The most.
    pub high: u64,
    /// How both are known: `seen` on real GPUs, `computed`, or `computed and seen`: the least and the most.
    pub known: String,
}

/// The distance to the limits of the fullest device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Margin {
    /// The fullest device.
    pub device: i32,
    /// The least that was free on it.
    pub least_free: u64,
    /// The smallest device on which every request is served, found by replay: cached memory is given back there.
    /// None where several processes share the device, the replay does not reproduce the recording, or the job handled
    /// an out-of-memory error: it requests less where there is less.
    pub smallest: Option<u64>,
    /// The most that was in use after the last out-of-memory error that the job handled; none if there was none.
    pub after_ooms: Option<u64>,
    /// How much more the job could take: the capacity minus `smallest`, or `least_free` where that is not known. For a
    /// job that handled out-of-memory errors, this is the free memory after the last of them.
    pub room: u64,
    /// The overhead that is not counted.
    pub uncounted: Vec<Uncounted>,
    /// Bytes that are to stay free: those that were given, or the most that was seen of what is not counted.
    pub kept: u64,
    /// Whether `kept` was given.
    pub given: bool,
    /// Whether `room` is at least `kept`; else the job may run out of memory on a real GPU.
    pub certain: bool,
}

impl Margin {
    /// The least that was seen of what is not counted.
    pub fn low(&self) -> u64 {
        self.uncounted.iter().map(|part| part.low).sum()
    }
}

pub(super) fn find<R: Read>(
    open: &impl Fn() -> io::Result<R>,
    totals: &[DeviceTotal],
    devices: &[DeviceUse],
    facts: &Facts<'_>,
) -> Option<Margin> {
    let fullest = totals.iter().min_by_key(|total| total.least_free)?;
    let of_it = devices.iter().filter(|one| one.device == fullest.device);
    let after_ooms = of_it
        .filter_map(|one| one.after_ooms)
        .map(|after| after.most_in_use)
        .max();
    let uses: Vec<_> = devices
        .iter()
        .map(|one| (one.process, one.device))
        .collect();
    let job = if after_ooms.is_some() {
        None
    } else {
        load(open, totals, &uses, facts.all)
    };
    let smallest = job
        .as_ref()
        .and_then(|job| smallest(job, &Alloc::Recorded, None));
    let room = match (after_ooms, smallest) {
        (Some(after), _) => fullest.capacity.saturating_sub(after),
        (None, Some(smallest)) => {
            let distance = fullest.capacity.saturating_sub(smallest);
            distance.max(fullest.least_free)
        }
        (None, None) => fullest.least_free,
    };
    let on_it = at_work(devices, fullest.device, facts.all);
    let uncounted = uncounted(facts.all, on_it);
    let given = facts.any(facts::MARGIN).and_then(|text| text.parse().ok());
    let kept = given.unwrap_or_else(|| uncounted.iter().map(|part| part.high).sum());
    // Less may be worse than both more and still less: what is taken for certain is replayed, unless it was never used.
    let holds = |job: &Job| {
        let left = fullest.capacity.saturating_sub(kept);
        let completes = |track: &Track| track.replay(&Alloc::Recorded, left, false).completes();
        job.tracks.iter().all(completes)
    };
    let is_between = smallest.is_some() && room >= kept && fullest.least_free < kept;
    let room = if is_between && !job.as_ref().is_some_and(holds) {
        fullest.least_free
    } else {
        room
    };
    Some(Margin {
        device: fullest.device,
        least_free: fullest.least_free,
        smallest,
        after_ooms,
        room,
        kept,
        given: given.is_some(),
        certain: room >= kept,
        uncounted,
    })
}

/// Loads a recording for a replay; none where processes share a device at the same time, which a replay does not know,
/// or where a process used a device without a request of PyTorch's, which is not replayed. `uses` are the processes
/// with their devices.
pub(super) fn load<R: Read>(
    open: &impl Fn() -> io::Result<R>,
    totals: &[DeviceTotal],
    uses: &[(u32, i32)],
    all: &[Meta],
) -> Option<Job> {
    if totals.iter().any(|total| total.processes > 1) && !are_in_turn(uses, all) {
        return None;
    }
    let job = Job::load(open, &Options::default()).ok();
    job.filter(|job| job.tracks.len() == uses.len())
}

/// Whether a process begins to use a device only after the others there have ended.
fn are_in_turn(uses: &[(u32, i32)], all: &[Meta]) -> bool {
    // Processes have numbers in the order in which they first used a device.
    let is_first = |&(process, device): &(u32, i32)| {
        let before = |&(other, on): &(u32, i32)| on == device && other < process;
        !uses.iter().any(before)
    };
    let is_alone = |&(process, device): &(u32, i32)| {
        meta::find(all, process, &facts::alone_at_start(device)).is_some()
    };
    uses.iter().all(|one| is_first(one) || is_alone(one))
}

/// The smallest device on which every process of a recording completes with `alloc`, each on its own device. With
/// less memory PyTorch empties its cache sooner, and what it obtains then may lie better: so a job may complete on less
/// than a device of `refused` bytes on which it ran out. That device is not large enough, and a larger one is
/// looked for.
pub(super) fn smallest(job: &Job, alloc: &Alloc, refused: Option<u64>) -> Option<u64> {
    let report = job.replay(std::slice::from_ref(alloc), true);
    let mut most = 0;
    for (told, track) in report.tracks.iter().zip(&job.tracks) {
        let replayed = told.allocators.first()?;
        if replayed.comparison.as_ref().is_some_and(|c| !c.exact()) {
            return None;
        }
        let found = replayed.smallest?.bytes;
        let is_refused = |bytes: u64| !track.replay(alloc, bytes, false).completes();
        most = most.max(match refused {
            Some(refused) if found <= refused && is_refused(refused) => {
                track.smallest_above(alloc, refused)?
            }
            _ => found,
        });
    }
    Some(most)
}

/// Processes on a device, as far as what is not counted goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnDevice {
    /// Processes that have more there than a context. One that only has a context, because a thread of it did not
    /// select a device, launches no kernel there.
    pub(crate) working: u64,
    /// Processes that have most of their memory there: the buffers of NCCL are on a rank's own device, and not where it
    /// read a file to.
    pub(crate) at_home: u64,
}

impl OnDevice {
    /// One process with its own device.
    pub(crate) const ALONE: Self = Self {
        working: 1,
        at_home: 1,
    };

    /// Counts those that ran at the same time, by process, device, and the bytes that it has there beyond a context.
    pub(crate) fn count(
        uses: impl Iterator<Item = (u32, i32, u64)>,
        device: i32,
        all: &[Meta],
    ) -> Self {
        let mut processes: BTreeMap<u32, Vec<(u64, i32)>> = BTreeMap::new();
        for (process, on, bytes) in uses.filter(|(_, _, bytes)| *bytes > 0) {
            processes.entry(process).or_default().push((bytes, on));
        }
        let here = |uses: &Vec<(u64, i32)>| uses.iter().any(|(_, on)| *on == device);
        let home = |uses: &Vec<(u64, i32)>| uses.iter().max().is_some_and(|(_, on)| *on == device);
        // Processes have numbers in the order in which they first used a device.
        let is_alone = |process| meta::find(all, process, &facts::alone_at_start(device)).is_some();
        let (mut working, mut at_home) = (0, 0);
        let mut most = Self::ALONE;
        for (&process, uses) in processes.iter().filter(|(_, uses)| here(uses)) {
            if is_alone(process) {
                // All before it had ended.
                (working, at_home) = (0, 0);
            }
            working += 1;
            at_home += u64::from(home(uses));
            most.working = most.working.max(working);
            most.at_home = most.at_home.max(at_home);
        }
        most
    }
}

fn at_work(devices: &[DeviceUse], device: i32, all: &[Meta]) -> OnDevice {
    let beyond = |one: &DeviceUse| one.peak_used.saturating_sub(one.at_peak.context);
    let uses = devices
        .iter()
        .map(|one| (one.process, one.device, beyond(one)));
    OnDevice::count(uses, device, all)
}

/// Most that was seen of what is not counted, of these processes on a device.
pub(crate) fn most_uncounted(facts: &[Meta], processes: OnDevice) -> u64 {
    uncounted(facts, processes)
        .iter()
        .map(|part| part.high)
        .sum()
}

/// The overhead of these processes on a device.
fn uncounted(all: &[Meta], processes: OnDevice) -> Vec<Uncounted> {
    let part_known = |what: &str, (low, high): (u64, u64), known: &str, of: u64| Uncounted {
        what: what.to_owned(),
        low: low.saturating_mul(of),
        high: high.saturating_mul(of),
        known: known.to_owned(),
    };
    let part = |what: &str, range| part_known(what, range, "seen", processes.working);
    let mut parts = Vec::new();
    if meta::find(all, facts::RUN, facts::GPU_CONTEXT_KNOWN) == Some(facts::MEASURED) {
        // On a real GPU everything counts.
        return parts;
    }
    let fact = |name: &str| all.iter().find(|fact| fact.name == name);
    if fact(meta::TORCH_VERSION).is_some_and(|fact| !fact.text.is_empty()) {
        parts.push(part("kernel images and library handles", IMAGES));
    }
    if let Some((what, range, known)) = nccl(all) {
        parts.push(part_known(&what, range, known, processes.at_home));
    }
    if meta::find(all, facts::RUN, facts::GPU_CONTEXT_KNOWN) == Some("assumed") {
        parts.push(part("a context larger than assumed", CONTEXT));
    }
    parts
}

/// The memory of NCCL in one process: by the computed figure of the process with most, where that is more than was
/// seen.
fn nccl(all: &[Meta]) -> Option<(String, (u64, u64), &'static str)> {
    let told = all.iter().filter(|fact| fact.name == facts::NCCL_BUFFERS);
    let most = told
        .filter_map(|fact| serde_json::from_str::<NcclBuffers>(&fact.text).ok())
        .max_by_key(|buffers| (buffers.high, buffers.low));
    if let Some(buffers) = most {
        let count = buffers.communicators;
        let plural = if count == 1 { "" } else { "s" };
        let what = format!("buffers of NCCL, {count} communicator{plural}");
        let known = if buffers.high > NCCL.1 {
            "computed"
        } else {
            "computed and seen"
        };
        return Some((what, (buffers.low, buffers.high.max(NCCL.1)), known));
    }
    // Processes that were spawned have no rank in their environment. One rank alone, as a server may have it, has no
    // other rank to exchange anything with.
    let named = |name: &'static str| all.iter().filter(move |fact| fact.name == name);
    let several = |name: &'static str| {
        named(name).any(|fact| fact.text.parse::<u64>().is_ok_and(|ranks| ranks > 1))
    };
    let ranks: BTreeSet<&str> = named(meta::PROCESS_RANK)
        .map(|fact| fact.text.as_str())
        .collect();
    let distributed = ranks.len() > 1 || several(facts::WORLD_SIZE) || several(facts::COMMUNICATOR);
    distributed.then(|| ("buffers of NCCL".to_owned(), NCCL, "seen"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_ran_one_after_the_other_are_not_added_up() {
        let uses = || [(0, 0, 5), (1, 0, 5), (2, 0, 5), (2, 1, 1)].into_iter();
        let alone = |process| Meta {
            process,
            name: facts::alone_at_start(0),
            text: "yes".to_owned(),
        };
        let count = |all: &[Meta]| {
            let counted = OnDevice::count(uses(), 0, all);
            (counted.working, counted.at_home)
        };
        assert_eq!(count(&[]), (3, 3), "nothing shows that they ran in turn");
        assert_eq!(count(&[alone(0), alone(1), alone(2)]), (1, 1));
        assert_eq!(count(&[alone(0), alone(2)]), (2, 2));
        assert_eq!(OnDevice::count(uses(), 1, &[]).at_home, 1);
        let pairs = [(0, 0), (1, 0), (2, 0), (2, 1)];
        assert!(are_in_turn(&pairs, &[alone(1), alone(2)]));
        assert!(!are_in_turn(&pairs, &[alone(2)]), "two at the same time");
        assert!(are_in_turn(&[(0, 0), (1, 1)], &[]), "a device each");
    }

    #[test]
    fn a_rank_alone_has_no_buffers_of_nccl() {
        let told = |facts: &[(&str, &str)]| {
            let facts: Vec<Meta> = facts
                .iter()
                .map(|&(name, text)| Meta {
                    process: 0,
                    name: name.to_owned(),
                    text: text.to_owned(),
                })
                .collect();
            nccl(&facts).is_some()
        };
        assert!(!told(&[]));
        // A server with one GPU sets a rank and makes a communicator of itself.
        assert!(!told(&[
            (meta::PROCESS_RANK, "0"),
            (facts::COMMUNICATOR, "1")
        ]));
        assert!(told(&[
            (meta::PROCESS_RANK, "0"),
            (meta::PROCESS_RANK, "1")
        ]));
        assert!(told(&[(facts::COMMUNICATOR, "2")]));
        assert!(told(&[
            (meta::PROCESS_RANK, "7"),
            (facts::WORLD_SIZE, "512")
        ]));
    }
}
