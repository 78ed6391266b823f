// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of the allocator and larger devices: proposals that a replay proves.

use tonnage_text::bytes;

use super::case::Case;
use super::class::{FRAGMENTED, SHORT};
use super::fixes::{Fix, FixOutcome, Measure, Proof, outcome};
use super::need::{EXPANDABLE, Need};
use crate::replay::Alloc;

/// Expandable segments, where they help and are not on. `case` is the whole job if it is known.
pub(super) fn find(case: &Case<'_>, short: u64) -> Option<Fix> {
    let job = case.job?;
    let cached = case.on_device.cached;
    let matters = case.ran_out || cached * 20 > case.on_device.allocated;
    // No setting helps a job that needs more than there is, even if a replay completes that does not include
    // the other processes.
    if !matters || short > 0 || !job.takes_settings() {
        return None;
    }
    let report = job.replay(&[Alloc::Recorded, Alloc::expandable()], false);
    let track = report
        .tracks
        .iter()
        .find(|track| track.process == case.track.process && track.device == case.track.device)?;
    let [before, after] = track.allocators.as_slice() else {
        return None;
    };
    if before.allocator.contains(EXPANDABLE) {
        return None;
    }
    let before_fails = !before.completes() || case.ran_out;
    // A replay has the device for itself.
    let others = case.on_device.others;
    let room = case.on_device.capacity.unwrap_or(u64::MAX);
    let own = case.on_device.context.unwrap_or(0) + case.on_device.outside.unwrap_or(0);
    if others > 0 && after.peak_reserved + own + others > room {
        return None;
    }
    let saved = before.peak_reserved.saturating_sub(after.peak_reserved);
    // Memory that is mapped page by page fills the device before it is refused and cached memory is given back: no less
    // of it is in use then.
    let within = after.retries == 0;
    let saves = within && saved * 20 >= before.peak_reserved;
    let helps = after.completes() && (before_fails || saves);
    if !helps {
        return None;
    }
    let (outcome, room) = if track.capacity_known {
        let track = job.track(track.process, track.device)?;
        let room = track.room(&Alloc::expandable(), others, case.uncounted);
        outcome(room, case.uncounted)
    } else {
        (FixOutcome::Unknown, None)
    };
    Some(Fix {
        code: FRAGMENTED.code,
        advice: "turn on expandable segments".to_owned(),
        paste: Some(format!("PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}")),
        proof: Proof::Replayed,
        shown: if before_fails {
            format!(
                "every request is served, with at most {} reserved",
                bytes(after.peak_reserved)
            )
        } else {
            format!(
                "reserved at most {} instead of {}",
                bytes(after.peak_reserved),
                bytes(before.peak_reserved)
            )
        },
        measure: Measure::Reserved,
        peak_before: before.peak_reserved,
        peak_after: after.peak_reserved,
        peak_after_least: after.peak_reserved,
        outcome,
        room,
        whole_job: !case.failed,
        changes_result: false,
        estimate: false,
    })
}

/// The smallest device on which the whole job completes, or on which a recording that ends in its
/// failure gets past that.
pub(super) fn device(case: &Case<'_>, need: Option<&Need>) -> Option<Fix> {
    let failed_on = case.on_device.capacity.unwrap_or(0);
    let smallest = match need {
        Some(need) => need.bytes,
        // A replay has the device for itself.
        None if case.on_device.others > 0 || !case.failed => return None,
        None => {
            let track = case.track;
            let report = case
                .job?
                .replay_track(track.process, track.device, &[Alloc::Recorded])?;
            report.allocators.first()?.smallest?.bytes
        }
    };
    // A replay that fits where the recording did not does not prove anything.
    if smallest <= failed_on {
        return None;
    }
    let whole_job = need.is_some_and(|need| need.complete);
    // The smallest leaves nothing for what is not counted.
    let (outcome, room) = outcome(Some(0), case.uncounted);
    Some(Fix {
        code: SHORT.code,
        advice: if bytes(smallest) == bytes(failed_on) {
            // By so little that the two are written alike.
            format!("a GPU with {} more", bytes(smallest - failed_on))
        } else {
            format!("a GPU with at least {}", bytes(smallest))
        },
        paste: Some(format!("--capacity {smallest}")),
        proof: Proof::Replayed,
        shown: if whole_job {
            "the smallest on which the whole job completes".to_owned()
        } else {
            "the smallest that gets past this request; what follows is unknown".to_owned()
        },
        measure: Measure::Device,
        peak_before: failed_on,
        peak_after: smallest,
        peak_after_least: smallest,
        outcome,
        room,
        whole_job,
        changes_result: false,
        estimate: false,
    })
}
