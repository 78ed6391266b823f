// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would lower the peak, each proposal proved on the recording.
//!
//! A setting is replayed. A change of the program is played on the lives of the
//! blocks: those it would do away with are left out, those it would make smaller
//! are made smaller, and the largest sum of the rest is the new peak. Where the
//! recording ends in a failure, the peak is that of what was recorded: what
//! comes after it nobody has seen.

use serde::Serialize;

use super::cause::{
    is_left_behind, is_passing, is_recomputed, is_step_temporary, loss_blocks, old_copies, pass_of,
    passes, spike_place,
};
use super::{Case, Finding, codes};
use crate::holdings::{Category, Holding, Phase, changes, site};
use crate::replay::{Alloc, Job, Outcome, Replayed};
use crate::words::bytes;

/// How a proposal was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The recording was replayed with the setting; the peak is of reserved bytes.
    Replayed,
    /// The peak was computed from the recording without the blocks; the peak is of allocated bytes.
    Computed,
}

/// What the peaks of a proposal are peaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Bytes of blocks, as `torch.cuda.max_memory_allocated` counts them.
    Allocated,
    /// Bytes of segments, as `torch.cuda.max_memory_reserved` counts them.
    Reserved,
    /// Bytes of the device, with contexts and other processes, as `nvidia-smi` counts them.
    Device,
}

/// A proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// The finding it answers.
    pub code: &'static str,
    /// What to do.
    pub advice: String,
    /// What to paste, where it is a line.
    pub paste: Option<String>,
    /// How it was proved.
    pub proof: Proof,
    /// The arithmetic, or what was replayed.
    pub shown: String,
    /// What the two peaks are peaks of.
    pub measure: Measure,
    /// The peak today, with the request that failed.
    pub peak_before: u64,
    /// The peak with it.
    pub peak_after: u64,
    /// Whether the recording then fits on its device, where that can be told.
    pub fits: Option<bool>,
}

/// The largest sum of blocks, each with the bytes that `bytes_of` gives it. Where the recording
/// ends in a failure: up to that, with the block that was asked for.
fn peak_with(case: &Case<'_>, bytes_of: impl Fn(&Holding) -> u64) -> u64 {
    let until = until(case);
    let blocks = case.track.blocks.iter().chain(&case.wanted);
    let lives = blocks.map(|block| (block.born, block.died, bytes_of(block)));
    let (mut sum, mut peak) = (0_i64, 0_i64);
    for (_, change) in changes(lives)
        .into_iter()
        .take_while(|&(row, _)| row <= until)
    {
        sum += change;
        peak = peak.max(sum);
    }
    peak.max(0).cast_unsigned()
}

/// Everything that helps, the cheapest first.
pub(super) fn find(case: &Case<'_>, findings: &[Finding], job: Option<&Job>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    if let Some(job) = job {
        fixes.extend(setting(case, job));
    }
    for finding in findings {
        fixes.extend(change(case, finding));
    }
    if let Some(job) = job {
        fixes.extend(device(case, job));
    }
    fixes
}

fn until(case: &Case<'_>) -> u32 {
    if case.failed { case.row } else { u32::MAX - 1 }
}

/// Proposes a change of the program that gives each block the bytes `bytes_of` says.
fn computed(
    case: &Case<'_>,
    code: &'static str,
    advice: String,
    what: &str,
    bytes_of: impl Fn(&Holding) -> u64,
) -> Option<Fix> {
    let before = peak_with(case, |block| block.bytes);
    let after = peak_with(case, &bytes_of);
    fix(case, code, advice, what, before, after)
}

fn fix(
    case: &Case<'_>,
    code: &'static str,
    advice: String,
    what: &str,
    before: u64,
    after: u64,
) -> Option<Fix> {
    let saved = before.checked_sub(after).filter(|&saved| saved > 0)?;
    // Below a hundredth it is not worth a change.
    if saved < before / 100 {
        return None;
    }
    // Nobody has seen what comes after a request that failed.
    let until = if case.failed {
        ", up to the request that failed"
    } else {
        ""
    };
    let shown = format!(
        "{} - {} {what} = {}{until}",
        bytes(before),
        bytes(saved),
        bytes(after)
    );
    let device = &case.on_device;
    let taken = device.context.unwrap_or(0) + device.outside.unwrap_or(0) + device.others;
    let fits = device
        .capacity
        .filter(|_| case.failed)
        .map(|capacity| after + taken <= capacity);
    Some(Fix {
        code,
        advice,
        paste: None,
        proof: Proof::Computed,
        shown,
        measure: Measure::Allocated,
        peak_before: before,
        peak_after: after,
        fits,
    })
}

/// The change of the program that answers a finding.
fn change(case: &Case<'_>, finding: &Finding) -> Option<Fix> {
    let code = finding.code.code;
    let place = super::cause::at(finding.place.as_ref());
    match finding.code {
        codes::LEAK => computed(
            case,
            code,
            format!("keep numbers, not tensors, at {place}: `.item()` or `.detach().cpu()`"),
            "left behind by earlier passes",
            |block| {
                if outlives_its_pass(case, block) {
                    0
                } else {
                    block.bytes
                }
            },
        ),
        codes::EVALUATION => computed(
            case,
            code,
            format!("move outputs to the host after each batch at {place}: `.cpu()`"),
            "of outputs kept on the device",
            |block| {
                if block.phase == Phase::Eval && outlives_its_pass(case, block) {
                    0
                } else {
                    block.bytes
                }
            },
        ),
        codes::LONG_SAMPLE => {
            let here = pass_of(case.track, case.row).checked_sub(1)?;
            let all = passes(case.track, until(case));
            let others = all.iter().enumerate().filter(|(index, _)| *index != here);
            let after = others.map(|(_, pass)| pass.1).max()?;
            let before = peak_with(case, |block| block.bytes);
            fix(
                case,
                code,
                format!(
                    "cap or bucket the lengths so that no pass is longer than the others (made at {place})"
                ),
                "of the long pass above the others",
                before,
                after,
            )
        }
        codes::LOSS_SPIKE => {
            let blocks = loss_blocks(case);
            let size = blocks.iter().map(|block| block.requested).max()?;
            // It is done already.
            if blocks.iter().any(|block| is_recomputed(case, block.stack)) {
                return None;
            }
            let is_loss = |block: &Holding| {
                block.requested >= size / 2
                    && block.requested <= size * 2
                    && block.known != crate::holdings::Known::Exact
            };
            computed(
                case,
                code,
                format!(
                    "compute the loss at {place} in 8 chunks of the tokens, each checkpointed, or fused"
                ),
                "of logits and loss",
                |block| {
                    if is_loss(block) {
                        block.bytes / 8
                    } else {
                        block.bytes
                    }
                },
            )
        }
        codes::OPTIMIZER_STEP => computed(
            case,
            code,
            format!("make the optimizer with `fused=True` (its step is at {place})"),
            "of temporary copies in the step",
            |block| {
                let copied = is_step_temporary(block) && is_unfused(case, block);
                if copied { 0 } else { block.bytes }
            },
        ),
        codes::CHECKPOINT_FILE => computed(
            case,
            code,
            format!("read the checkpoint at {place} with `map_location=\"cpu\"`"),
            "made by reading or writing it",
            |block| {
                if block.phase == Phase::Save {
                    0
                } else {
                    block.bytes
                }
            },
        ),
        codes::KV_CACHE => computed(
            case,
            code,
            format!("halve the batch or the longest length of the cache made at {place}"),
            "of keys and values, a half of them",
            |block| {
                if block.category == Category::KvCache {
                    block.bytes / 2
                } else {
                    block.bytes
                }
            },
        ),
        codes::TWO_COPIES => {
            let old: Vec<u32> = old_copies(case).iter().map(|block| block.born).collect();
            computed(
                case,
                code,
                format!(
                    "drop every reference to the model made at {place} before the new one is loaded"
                ),
                "of the old copy",
                |block| {
                    let gone = old.contains(&block.born) && block.category == Category::Weights;
                    if gone { 0 } else { block.bytes }
                },
            )
        }
        codes::SPIKE => {
            let (spike, _) = spike_place(case)?;
            computed(
                case,
                code,
                format!("call {place} on half of the samples, or in two tiles"),
                "of temporary memory there, a half of it",
                |block| {
                    let there = site(case.stacks(), block.stack).as_ref() == Some(&spike);
                    if is_passing(case, block) && there {
                        block.bytes / 2
                    } else {
                        block.bytes
                    }
                },
            )
        }
        codes::OUTSIDE => elsewhere(case, &place),
        _ => None,
    }
}

/// The device without the other processes of the run.
fn elsewhere(case: &Case<'_>, place: &str) -> Option<Fix> {
    let device = &case.on_device;
    if device.others == 0 {
        return None;
    }
    let own = device.context.unwrap_or(0) + device.outside.unwrap_or(0);
    // What is cached goes back before a request fails.
    let after = match case.wanted {
        Some(wanted) => device.allocated + wanted.bytes + own,
        None => device.allocated + device.cached + own,
    };
    let before = after + device.others;
    Some(Fix {
        code: codes::OUTSIDE.code,
        advice: format!(
            "give each process its own device: `torch.cuda.set_device(rank)` before {place}"
        ),
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
        fits: device.capacity.map(|capacity| after <= capacity),
    })
}

/// Whether an implementation of torch's own optimizers made the block that its fused one does not make.
fn is_unfused(case: &Case<'_>, block: &Holding) -> bool {
    let stacks = case.stacks();
    block.stack.is_some_and(|stack| {
        stacks.frames(stack).any(|frame| {
            frame.file.contains("torch/optim/")
                && (frame.function.starts_with("_multi_tensor_")
                    || frame.function.starts_with("_single_tensor_"))
        })
    })
}

fn outlives_its_pass(case: &Case<'_>, block: &Holding) -> bool {
    if is_left_behind(case, block) {
        return true;
    }
    // Those of earlier moments too, which died before this one.
    let born = pass_of(case.track, block.born);
    let died = pass_of(case.track, block.died.min(case.recording.rows));
    born > 0
        && died > born + 1
        && !matches!(
            block.category,
            Category::Weights
                | Category::OptimizerState
                | Category::Gradients
                | Category::KvCache
                | Category::Buffers
                | Category::Workspaces
        )
}

/// Expandable segments, where they help and are not on.
fn setting(case: &Case<'_>, job: &Job) -> Option<Fix> {
    const CONF: &str = "expandable_segments:True";
    let cached = case.on_device.cached;
    let matters = case.failed || cached * 20 > case.on_device.allocated;
    // No setting helps where memory is truly short, whatever a replay says that does not know of
    // the other processes.
    let short = case
        .wanted
        .map_or(0, |wanted| super::cause::short(case, wanted.bytes));
    if !matters || short > 0 {
        return None;
    }
    let report = job.replay(&[Alloc::Recorded, Alloc::Torch(CONF.to_owned())], false);
    let track = report
        .tracks
        .iter()
        .find(|track| track.process == case.track.process && track.device == case.track.device)?;
    let [before, after] = track.allocators.as_slice() else {
        return None;
    };
    if before.allocator.contains("expandable_segments:True") {
        return None;
    }
    let before_fails = !before.completes() || case.failed;
    // A replay has the device for itself.
    let others = case.on_device.others;
    let room = case.on_device.capacity.unwrap_or(u64::MAX);
    let own = case.on_device.context.unwrap_or(0) + case.on_device.outside.unwrap_or(0);
    if others > 0 && after.peak_reserved + own + others > room {
        return None;
    }
    let saved = before.peak_reserved.saturating_sub(after.peak_reserved);
    let helps = (before_fails && after.completes())
        || (!before_fails && after.completes() && saved * 50 > before.peak_reserved);
    helps.then(|| Fix {
        code: codes::FRAGMENTED.code,
        advice: "let segments grow instead of collecting many".to_owned(),
        paste: Some(format!("PYTORCH_CUDA_ALLOC_CONF={CONF}")),
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
        fits: track.capacity_known.then(|| completes_all(after)),
    })
}

fn completes_all(replayed: &Replayed) -> bool {
    replayed.outcome == Outcome::Completes
}

/// The smallest device on which a recording that failed gets past its end.
fn device(case: &Case<'_>, job: &Job) -> Option<Fix> {
    // A replay has the device for itself.
    if !case.failed || case.on_device.others > 0 {
        return None;
    }
    let report = job.replay(&[Alloc::Recorded], true);
    let track = report
        .tracks
        .iter()
        .find(|track| track.process == case.track.process && track.device == case.track.device)?;
    let replayed = track.allocators.first()?;
    // A replay that fits where the recording did not is no proof of anything.
    let failed_on = case.on_device.capacity.unwrap_or(0);
    let smallest = replayed.smallest?.bytes;
    if smallest <= failed_on {
        return None;
    }
    Some(Fix {
        code: codes::SHORT.code,
        advice: format!("a device of at least {}", bytes(smallest)),
        paste: Some(format!("--capacity {smallest}")),
        proof: Proof::Replayed,
        shown: "the smallest on which the recording gets past its last request, with the recorded setting".to_owned(),
        measure: Measure::Device,
        peak_before: failed_on,
        peak_after: smallest,
        fits: Some(true),
    })
}
