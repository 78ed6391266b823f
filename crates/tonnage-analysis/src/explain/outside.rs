// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN105: part of the device is held by others than PyTorch's allocator in this process.

use tonnage_text::bytes;

use super::Finding;
use super::case::{Case, SHARE, at, counted, most_uncounted};
use super::codes::{Code, code};
use super::fixes::{Fix, FixOutcome, Measure, Proof, outcome};
use crate::holdings::{Holdings, Known, Phase, site};
use crate::verdict::OnDevice;

/// Memory outside.
pub const OUTSIDE: Code = code(
    "TN105",
    "memory is held outside PyTorch's allocator",
    "Part of the device is taken by other processes, by more contexts than needed, or by libraries that call the driver
directly. `nvidia-smi` counts it, `torch.cuda.memory_allocated` does not.

Recognised by: bytes the driver charged minus the segments of PyTorch, and other processes of the run that hold memory
on the same device at that moment. A recording of one process shows only its own part. It is the class of a failure if
the request would have been served without them.
Fix: one device for each rank (`torch.cuda.set_device(local_rank)` before the first CUDA call, `map_location` in
`torch.load`), so that no other rank opens a context here.",
);

/// The same where nothing is outside but what other processes have in PyTorch's allocators of their own.
const OF_OTHERS: Code = Code {
    title: "other processes of the job hold memory of this GPU",
    ..OUTSIDE
};

/// The other processes of the recording on this device.
fn others<'a>(case: &'a Case<'_>) -> impl Iterator<Item = &'a Holdings> {
    let (process, device) = (case.track.process, case.track.device);
    let tracks = case.recording.tracks.iter();
    tracks.filter(move |other| other.device == device && other.process != process)
}

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let device = &case.on_device;
    let past = device.outside.unwrap_or(0);
    let outside = past + device.others;
    let capacity = device.capacity?;
    if (outside as f64) < SHARE * capacity as f64 {
        return None;
    }
    // The line by which the largest of the others came here.
    let largest = others(case).max_by_key(|other| other.peak_charged + other.context);
    let place = largest.filter(|_| device.others > 0).and_then(|other| {
        let block = other.blocks.iter().max_by_key(|block| block.bytes)?;
        site(case.stacks(), block.stack)
    });
    let mut parts = Vec::new();
    if device.others > 0 {
        let opened = place.as_ref().map_or_else(String::new, |place| {
            format!(" (opened at {})", at(Some(place)))
        });
        parts.push(format!(
            "{} of the device are held by {} of this run, contexts included{opened}",
            bytes(device.others),
            counted(others(case).count(), "other process", "other processes"),
        ));
    }
    if past > 0 {
        parts.push(format!(
            "{} was obtained past PyTorch's allocator",
            bytes(past)
        ));
    }
    Some(Finding {
        code: if past > 0 { OUTSIDE } else { OF_OTHERS },
        headline: Some(format!("{} of the device", bytes(outside))),
        sentence: parts.join(", and "),
        bytes: outside,
        place,
        known: Known::Exact,
        held_by: None,
    })
}

/// Whether most of what the other processes have there was read from a file.
fn is_read(case: &Case<'_>) -> bool {
    let blocks = || others(case).flat_map(|other| &other.blocks);
    let sum = |read: bool| -> u64 {
        let of = blocks().filter(|block| (block.phase == Phase::Save) == read);
        of.map(|block| block.bytes).fold(0, u64::saturating_add)
    };
    sum(true) > sum(false)
}

/// The device without the other processes of the run.
pub(super) fn elsewhere(case: &Case<'_>, finding: &Finding) -> Option<Fix> {
    let device = &case.on_device;
    if device.others == 0 {
        return None;
    }
    let own = device.context.unwrap_or(0) + device.outside.unwrap_or(0);
    // Cached memory goes back before a request fails.
    let least = device.allocated + case.wanted.as_ref().map_or(0, |wanted| wanted.bytes) + own;
    let after = if case.failed {
        least
    } else {
        least + device.cached
    };
    let before = after + device.others;
    // A process that has only a context, or whose blocks no line of Python made, has no place.
    let place = finding.place.as_ref();
    let (outcome, room) = match device.capacity {
        Some(capacity) => outcome(
            capacity.checked_sub(after),
            most_uncounted(case.recording, OnDevice::ALONE),
        ),
        None => (FixOutcome::Unknown, None),
    };
    Some(Fix {
        code: OUTSIDE.code,
        advice: if is_read(case) {
            // A file records the device of its tensors, whatever device is set.
            let file = place.map_or_else(
                || "its file".to_owned(),
                |place| format!("the file at {}", at(Some(place))),
            );
            format!(
                "let each process read {file} to its own device: `map_location=f\"cuda:{{rank}}\"`, or \"cpu\""
            )
        } else {
            let call =
                place.map_or_else(|| "its first CUDA call".to_owned(), |place| at(Some(place)));
            format!("give each process its own device: `torch.cuda.set_device(rank)` before {call}")
        },
        paste: None,
        proof: Proof::Computed,
        shown: format!(
            "{} - {} of other processes = {} on the device",
            bytes(before),
            bytes(device.others),
            bytes(after)
        ),
        measure: Measure::Device,
        peak_before: before,
        peak_after: after,
        peak_after_least: least,
        outcome,
        room,
        whole_job: !case.failed,
        changes_result: false,
        estimate: false,
    })
}
