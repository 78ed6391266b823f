// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes the peak, found in the lives of blocks.
//!
//! Each function looks for one finding and returns it with the bytes it
//! accounts for at the moment. Shares below are of the bytes alive then.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tonnage_trace::StackId;

use super::codes::{self, Code};
use super::{Case, Finding, pattern};
use crate::holdings::{Category, Holding, Holdings, Known, Phase, Place, shortened, site};
use crate::words::{bytes, count};

/// A cause that holds less than this share is none.
const SHARE: f64 = 0.10;
/// What caches and single operations must hold.
const LARGE_SHARE: f64 = 0.25;
/// How much longer than the median a pass must be.
const LONG: f64 = 1.3;
/// In how many passes in a row a line must leave blocks behind.
const PASSES: usize = 3;

/// Bytes by which the device is too small for what is alive and `request`; 0 if it is not.
pub(super) fn short(case: &Case<'_>, request: u64) -> u64 {
    let device = &case.on_device;
    let Some(failure) = case.track.failure else {
        return 0;
    };
    let room = match device.capacity {
        Some(capacity) => {
            let taken = device.context.unwrap_or(0) + device.outside.unwrap_or(0) + device.others;
            capacity.saturating_sub(taken)
        }
        // What the driver had left, and all that could have been given back.
        None => failure.free + device.allocated + device.cached,
    };
    (device.allocated + request).saturating_sub(room)
}

/// Everything that was found: the class of a failure first, then by bytes.
pub(super) fn find(case: &Case<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = class(case).into_iter().collect();
    let told = |found: &Finding| findings.iter().any(|other| other.code == found.code);
    let mut causes: Vec<Finding> = [
        outside(case).filter(|found| !told(found)),
        left_behind(case),
        long_sample(case),
        loss(case),
        optimizer(case),
        checkpointing(case),
        checkpoint_file(case),
        kv_cache(case),
        two_copies(case),
        evaluation(case),
        spike(case),
    ]
    .into_iter()
    .flatten()
    .collect();
    causes.sort_by_key(|finding| std::cmp::Reverse(finding.bytes));
    findings.extend(causes);
    findings
}

fn finding(code: Code, bytes: u64, place: Option<Place>, sentence: String) -> Finding {
    Finding {
        code,
        sentence,
        bytes,
        place,
    }
}

/// `train.py:31`.
pub(super) fn at(place: Option<&Place>) -> String {
    place.map_or_else(
        || "no Python line".to_owned(),
        |place| format!("{}:{}", shortened(&place.file), place.line),
    )
}

fn is_large(case: &Case<'_>, bytes: u64, share: f64) -> bool {
    bytes > 0 && bytes as f64 >= share * case.on_device.allocated as f64
}

/// Why the request failed.
fn class(case: &Case<'_>) -> Option<Finding> {
    let failure = case.track.failure.filter(|_| case.failed)?;
    let short = short(case, failure.requested);
    let place = site(case.stacks(), failure.stack);
    let slack = &case.slack;
    // What is short only because of others is not short by itself.
    if short > 0
        && let Some(found) = outside(case).filter(|found| found.bytes >= short)
    {
        return Some(found);
    }
    if short > 0 {
        let sentence = format!(
            "{} alive and {} asked for are {} more than the device can hold; placed without a hole they would not fit",
            bytes(case.on_device.allocated),
            bytes(failure.requested),
            bytes(short),
        );
        return Some(finding(codes::SHORT, short, place, sentence));
    }
    if slack.stream > slack.hard {
        let sentence = format!(
            "{} are free in segments of other streams, which a request on this one cannot use",
            bytes(slack.stream),
        );
        return Some(finding(codes::STRANDED, slack.stream, place, sentence));
    }
    let sentence = format!(
        "{} are free in {} between live blocks, the largest {}; {} were asked for",
        bytes(slack.hard),
        counted(slack.holes as usize, "hole", "holes"),
        bytes(slack.largest_hole),
        bytes(failure.requested),
    );
    Some(finding(codes::FRAGMENTED, slack.hard, place, sentence))
}

/// The other processes of the recording on this device.
fn others<'a>(case: &'a Case<'a>) -> impl Iterator<Item = &'a Holdings> {
    let (process, device) = (case.track.process, case.track.device);
    let tracks = case.recording.tracks.iter();
    tracks.filter(move |other| other.device == device && other.process != process)
}

fn outside(case: &Case<'_>) -> Option<Finding> {
    let device = &case.on_device;
    let past = device.outside.unwrap_or(0);
    let outside = past + device.others;
    let capacity = device.capacity?;
    if (outside as f64) < SHARE * capacity as f64 {
        return None;
    }
    // The line by which the largest of the others came here.
    let largest = others(case).max_by_key(|other| other.peak_charged + other.context);
    let place = largest.and_then(|other| {
        let block = other.blocks.iter().max_by_key(|block| block.bytes)?;
        site(case.stacks(), block.stack)
    });
    let mut parts = Vec::new();
    if device.others > 0 {
        parts.push(format!(
            "{} of the device are held by {} of this run, contexts included (opened at {})",
            bytes(device.others),
            counted(others(case).count(), "other process", "other processes"),
            at(place.as_ref()),
        ));
    }
    if past > 0 {
        parts.push(format!(
            "{} were obtained past PyTorch's allocator",
            bytes(past)
        ));
    }
    let sentence = parts.join(", and ");
    Some(finding(codes::OUTSIDE, outside, place, sentence))
}

/// `1 block`, `2 blocks`.
fn counted(number: usize, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        count(number as u64),
        if number == 1 { one } else { many }
    )
}

/// Whether a block is one that programs keep on purpose.
fn is_kept(block: &Holding) -> bool {
    block.known == Known::Exact
        || matches!(
            block.category,
            Category::Weights | Category::OptimizerState | Category::Gradients | Category::KvCache
        )
}

/// The number of the pass a row is in, from 1; 0 before the first.
pub(super) fn pass_of(track: &Holdings, row: u32) -> usize {
    track.passes.partition_point(|&from| from <= row)
}

/// Stacks of blocks alive at a row that were made at least two passes before.
pub(super) fn staying(track: &Holdings, row: u32) -> HashSet<StackId> {
    let here = pass_of(track, row);
    let old = |block: &&Holding| {
        let born = pass_of(track, block.born);
        born > 0 && born + 1 < here
    };
    let old = track.alive_at(row).filter(old);
    old.filter_map(|block| block.stack).collect()
}

/// Blocks of earlier passes that are alive at the moment.
///
/// What was made after the pass before began may be the batch of this one: it is left behind only
/// if older ones of the same stack are.
pub(super) fn is_left_behind(case: &Case<'_>, block: &Holding) -> bool {
    if is_kept(block) {
        return false;
    }
    let born = pass_of(case.track, block.born);
    let here = pass_of(case.track, case.row);
    let stays = || {
        block
            .stack
            .is_some_and(|stack| case.staying.contains(&stack))
    };
    born > 0 && here > born && block.alive_at(case.row) && (here > born + 1 || stays())
}

fn left_behind(case: &Case<'_>) -> Option<Finding> {
    let mut groups: BTreeMap<Option<Place>, (u64, BTreeSet<usize>, bool)> = BTreeMap::new();
    for block in case.alive().filter(|block| is_left_behind(case, block)) {
        let group = groups.entry(site(case.stacks(), block.stack)).or_default();
        group.0 += block.bytes;
        group.1.insert(pass_of(case.track, block.born));
        group.2 |= block.phase == Phase::Eval;
    }
    let mut sum = 0;
    let mut worst: Option<(u64, Option<Place>, usize, bool)> = None;
    for (place, (bytes, passes, eval)) in groups {
        if passes.len() < PASSES {
            continue;
        }
        sum += bytes;
        if worst.as_ref().is_none_or(|worst| bytes > worst.0) {
            worst = Some((bytes, place, passes.len(), eval));
        }
    }
    let (most, place, passes, eval) = worst?;
    if !is_large(case, sum, SHARE) {
        return None;
    }
    let code = if eval { codes::EVALUATION } else { codes::LEAK };
    let sentence = format!(
        "{} from {} earlier passes are still alive, {} of them made at {}: {} more with every pass",
        bytes(sum),
        passes,
        bytes(most),
        at(place.as_ref()),
        bytes(sum / passes as u64),
    );
    Some(finding(code, sum, place, sentence))
}

/// What a pass makes and holds at its own peak, without what programs keep: for each pass its
/// bytes, its peak and the row of that.
pub(super) fn passes(track: &Holdings, until: u32) -> Vec<(u64, u64, u32)> {
    let count = track.passes.len();
    let mut changes: Vec<(u32, i64, bool)> = Vec::new();
    for block in &track.blocks {
        let own = !is_kept(block) && block.phase != Phase::Step && block.phase != Phase::Load;
        changes.push((block.born, block.bytes.cast_signed(), own));
        if block.died != Holding::ALIVE {
            let died_in_pass = pass_of(track, block.died) == pass_of(track, block.born);
            changes.push((block.died, -block.bytes.cast_signed(), own && died_in_pass));
        }
    }
    changes.sort_unstable();
    let mut result = vec![(0, 0, 0); count];
    let (mut all, mut own, mut pass) = (0_i64, 0_i64, 0);
    for (row, change, is_own) in changes {
        if row > until {
            break;
        }
        let now = pass_of(track, row);
        if now != pass {
            own = 0;
            pass = now;
        }
        all += change;
        if is_own {
            own += change;
        }
        if let Some(entry) = now.checked_sub(1).and_then(|index| result.get_mut(index)) {
            let own = own.max(0).cast_unsigned();
            entry.0 = entry.0.max(own);
            if all.max(0).cast_unsigned() > entry.1 {
                entry.1 = all.max(0).cast_unsigned();
                entry.2 = row;
            }
        }
    }
    result
}

fn long_sample(case: &Case<'_>) -> Option<Finding> {
    let here = pass_of(case.track, case.row).checked_sub(1)?;
    let phase = case.track.phase_at(*case.track.passes.get(here)?)?.phase;
    let all = passes(case.track, case.row);
    let place = largest_place(case, |block| {
        pass_of(case.track, block.born) == here + 1 && !is_kept(block)
    })?;
    // Only passes of the same sort that run the same line can be compared: a decoder behind a
    // loop of another model is no long sample of it.
    let mut runs_it = vec![false; all.len()];
    let (mut seen, stacks) = (BTreeMap::new(), case.stacks());
    for block in &case.track.blocks {
        let Some(index) = pass_of(case.track, block.born).checked_sub(1) else {
            continue;
        };
        runs_it[index] |= *seen
            .entry(block.stack)
            .or_insert_with(|| site(stacks, block.stack).as_ref() == Some(&place));
    }
    // Nor is a pass whose backward pass makes the peak longer than those that have none.
    let goes_back = |index: usize| {
        let from = case.track.passes[index];
        let to = case.track.passes.get(index + 1).copied();
        let mut spans = case.track.phases.iter();
        spans.any(|span| {
            let inside = span.from >= from && to.is_none_or(|to| span.from < to);
            inside && span.phase == Phase::Backward
        })
    };
    let back = case.phase() == Phase::Backward;
    let same = |index: &usize| {
        let span = case.track.phase_at(case.track.passes[*index]);
        runs_it[*index]
            && (!back || goes_back(*index))
            && span.is_some_and(|span| span.phase == phase)
    };
    let mut others: Vec<u64> = (0..all.len())
        .filter(|index| *index != here)
        .filter(same)
        .map(|index| all[index].0)
        .filter(|&own| own > 0)
        .collect();
    others.sort_unstable();
    if others.len() + 1 < PASSES {
        return None;
    }
    let median = others[others.len() / 2];
    let own = all[here].0;
    let more = own.saturating_sub(median);
    if (own as f64) < LONG * median as f64 || !is_large(case, more, SHARE) {
        return None;
    }
    // Memory that grows with every pass is no long sample.
    let before = here.checked_sub(1).map_or(0, |index| all[index].0);
    if here + 1 == all.len()
        && before as f64 * LONG > own as f64
        && others.windows(2).all(|w| w[0] < w[1])
    {
        return None;
    }
    let sentence = format!(
        "pass {} makes {} of its own, {:.1} times the median of the {} others; most at {}",
        here + 1,
        bytes(own),
        own as f64 / median.max(1) as f64,
        others.len(),
        at(Some(&place)),
    );
    Some(finding(codes::LONG_SAMPLE, more, Some(place), sentence))
}

/// The line with the most bytes among live blocks.
fn largest_place(case: &Case<'_>, filter: impl Fn(&Holding) -> bool) -> Option<Place> {
    let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
    for block in case.alive().filter(|block| filter(block)) {
        if let Some(place) = site(case.stacks(), block.stack) {
            *sums.entry(place).or_default() += block.bytes;
        }
    }
    let largest = sums.into_iter().max_by_key(|(_, bytes)| *bytes);
    largest.map(|(place, _)| place)
}

fn has_function(case: &Case<'_>, stack: Option<StackId>, names: &[&str]) -> bool {
    let stacks = case.stacks();
    stack.is_some_and(|stack| {
        stacks
            .frames(stack)
            .any(|frame| names.contains(&frame.function))
    })
}

const LOSSES: [&str; 6] = [
    "cross_entropy",
    "log_softmax",
    "nll_loss",
    "softmax",
    "logsumexp",
    "kl_div",
];

/// The blocks of logits and loss: made inside a loss function, and blocks of the same number of
/// elements around it.
pub(super) fn loss_blocks<'a>(case: &'a Case<'a>) -> Vec<&'a Holding> {
    let inside = |block: &Holding| {
        matches!(block.phase, Phase::Forward | Phase::Eval)
            && has_function(case, block.stack, &LOSSES[..3])
    };
    let everywhere = case.track.blocks.iter();
    let largest = everywhere
        .filter(|block| block.born <= case.row && inside(block))
        .map(|block| block.requested)
        .max()
        .unwrap_or(0);
    if largest == 0 {
        return Vec::new();
    }
    // float32, and the halves of it that bfloat16 takes.
    let sizes = [largest / 2, largest, largest * 2];
    case.alive()
        .filter(|block| !is_kept(block))
        .filter(|block| sizes.contains(&block.requested) || inside(block))
        .collect()
}

fn loss(case: &Case<'_>) -> Option<Finding> {
    let blocks = loss_blocks(case);
    let sum: u64 = blocks.iter().map(|block| block.bytes).sum();
    let largest = blocks.iter().map(|block| block.bytes).max()?;
    // A loss over few classes is no spike, whatever else has its size.
    if !is_large(case, sum, SHARE) || !is_large(case, largest, SHARE / 4.0) {
        return None;
    }
    let inside = |block: &&Holding| has_function(case, block.stack, &LOSSES);
    let made = case
        .track
        .blocks
        .iter()
        .filter(|block| block.born <= case.row);
    let place = made
        .filter(inside)
        .max_by_key(|block| (block.bytes, block.born));
    let place = place.and_then(|block| site(case.stacks(), block.stack));
    let sentence = format!(
        "{} in {} are logits and what the loss at {} makes of them, the largest {}",
        bytes(sum),
        counted(blocks.len(), "block", "blocks"),
        at(place.as_ref()),
        bytes(largest),
    );
    Some(finding(codes::LOSS_SPIKE, sum, place, sentence))
}

/// Temporary blocks of an optimizer's step that are alive at the moment.
pub(super) fn is_step_temporary(block: &Holding) -> bool {
    block.phase == Phase::Step
        && !matches!(block.category, Category::OptimizerState)
        && !is_kept(block)
}

fn optimizer(case: &Case<'_>) -> Option<Finding> {
    let state = case.held(|block| block.category == Category::OptimizerState);
    let temporary = case.held(is_step_temporary);
    let in_step = case.phase() == Phase::Step;
    let step = case.track.phase_at(case.row).map_or(0, |span| span.step);
    let first_after = case.failed && step == 1 && !in_step;
    let bytes_here = state + temporary;
    if !(in_step || first_after) || !is_large(case, bytes_here, SHARE) {
        return None;
    }
    let place = largest_place(case, |block| {
        is_step_temporary(block) || block.category == Category::OptimizerState
    });
    let sentence = if in_step {
        format!(
            "the optimizer's step at {} holds {} of state and {} of temporary copies",
            at(place.as_ref()),
            bytes(state),
            bytes(temporary),
        )
    } else {
        format!(
            "the first step left {} of optimizer state (made at {}); the second starts that much higher",
            bytes(state),
            at(place.as_ref()),
        )
    };
    Some(finding(codes::OPTIMIZER_STEP, bytes_here, place, sentence))
}

/// Whether a block was made inside `torch.utils.checkpoint`.
pub(super) fn is_recomputed(case: &Case<'_>, stack: Option<StackId>) -> bool {
    let file = "torch/utils/checkpoint.py";
    stack.is_some_and(|stack| {
        let mut frames = case.stacks().frames(stack);
        frames.any(|frame| frame.file.ends_with(file))
    })
}

fn checkpointing(case: &Case<'_>) -> Option<Finding> {
    if case.phase() != Phase::Step {
        return None;
    }
    let stacks = case.stacks();
    let mut seen = BTreeMap::new();
    let mut recomputed = |stack: Option<StackId>| {
        *seen
            .entry(stack)
            .or_insert_with(|| is_recomputed(case, stack))
    };
    let block = case
        .track
        .blocks
        .iter()
        .find(|block| recomputed(block.stack))?;
    let activations = case.held(|block| block.category == Category::Activations);
    let temporary = case.held(is_step_temporary);
    let place = site(stacks, block.stack);
    let alive = if activations == 0 {
        "none of them is".to_owned()
    } else {
        format!("only {} of them are", bytes(activations))
    };
    let sentence = format!(
        "activations are recomputed (from {}) and {alive} alive here: the peak is the optimizer's step",
        at(place.as_ref()),
    );
    // Ranked just behind the step itself, which is the cause.
    Some(finding(
        codes::CHECKPOINTING,
        temporary / 2,
        place,
        sentence,
    ))
}

fn checkpoint_file(case: &Case<'_>) -> Option<Finding> {
    let made = |block: &Holding| block.phase == Phase::Save && !is_kept(block);
    let sum = case.held(made);
    if !is_large(case, sum, SHARE) {
        return None;
    }
    let place = largest_place(case, made);
    let sentence = format!(
        "{} were made while a checkpoint was read or written at {}, beside the model's own tensors",
        bytes(sum),
        at(place.as_ref()),
    );
    Some(finding(codes::CHECKPOINT_FILE, sum, place, sentence))
}

fn kv_cache(case: &Case<'_>) -> Option<Finding> {
    let cached = |block: &Holding| block.category == Category::KvCache;
    let sum = case.held(cached);
    if !is_large(case, sum, LARGE_SHARE) {
        return None;
    }
    let place = largest_place(case, cached);
    let sentence = format!(
        "{} in {} are keys and values kept from token to token, made at {}",
        bytes(sum),
        counted(
            case.alive().filter(|block| cached(block)).count(),
            "block",
            "blocks",
        ),
        at(place.as_ref()),
    );
    Some(finding(codes::KV_CACHE, sum, place, sentence))
}

/// The older of blocks that torch gave the same name: all but the youngest.
pub(super) fn old_copies<'a>(case: &'a Case<'a>) -> Vec<&'a Holding> {
    let mut named: BTreeMap<_, Vec<&Holding>> = BTreeMap::new();
    for block in case.alive() {
        if let (Category::Weights, Known::Exact, Some(name)) =
            (block.category, block.known, block.name)
        {
            let key = (name, block.shape);
            named.entry(key).or_default().push(block);
        }
    }
    let mut old = Vec::new();
    for blocks in named.into_values() {
        let Some((_, older)) = blocks.split_last() else {
            continue;
        };
        old.extend(older);
    }
    old
}

fn two_copies(case: &Case<'_>) -> Option<Finding> {
    let old = old_copies(case);
    let sum: u64 = old.iter().map(|block| block.bytes).sum();
    if !is_large(case, sum, SHARE) {
        return None;
    }
    let largest = old.iter().max_by_key(|block| block.bytes)?;
    let place = site(case.stacks(), largest.stack);
    let sentence = format!(
        "{} are weights of which a younger copy of the same name is alive; the old ones were made at {}",
        bytes(sum),
        at(place.as_ref()),
    );
    Some(finding(codes::TWO_COPIES, sum, place, sentence))
}

fn evaluation(case: &Case<'_>) -> Option<Finding> {
    let trains = case
        .track
        .phases
        .iter()
        .any(|span| matches!(span.phase, Phase::Backward | Phase::Step));
    if case.phase() != Phase::Eval || !trains {
        return None;
    }
    let made = |block: &Holding| block.phase == Phase::Eval && !is_kept(block);
    let sum = case.held(made);
    let collects = left_behind(case).is_some_and(|found| found.code == codes::EVALUATION);
    if collects || !is_large(case, sum, SHARE) {
        return None;
    }
    let place = largest_place(case, made);
    let sentence = format!(
        "{} were made in a pass without gradients, most at {}; training itself peaks lower",
        bytes(sum),
        at(place.as_ref()),
    );
    Some(finding(codes::EVALUATION, sum, place, sentence))
}

/// The line with the most temporary memory at the moment.
///
/// By line and not by module: whoever calls it on half of the samples halves all that it makes,
/// in whatever modules.
pub(super) fn spike_place(case: &Case<'_>) -> Option<(Place, u64)> {
    let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
    for block in case.alive().filter(|block| is_passing(case, block)) {
        if let Some(place) = site(case.stacks(), block.stack) {
            *sums.entry(place).or_default() += block.bytes;
        }
    }
    sums.into_iter().max_by_key(|(_, bytes)| *bytes)
}

/// Whether a block is scratch memory, or lives only within its pass without gradients.
pub(super) fn is_passing(case: &Case<'_>, block: &Holding) -> bool {
    matches!(block.category, Category::Temporaries | Category::Workspaces)
        && block.phase != Phase::Step
        && !is_left_behind(case, block)
}

fn spike(case: &Case<'_>) -> Option<Finding> {
    let (place, sum) = spike_place(case)?;
    let here = |block: &&Holding| {
        is_passing(case, block) && site(case.stacks(), block.stack).as_ref() == Some(&place)
    };
    let in_loss = case
        .alive()
        .filter(here)
        .any(|block| has_function(case, block.stack, &LOSSES));
    if in_loss || !is_large(case, sum, LARGE_SHARE) {
        return None;
    }
    let largest = case.alive().filter(here).max_by_key(|block| block.bytes);
    let module = largest.and_then(|block| block.module);
    let inside = module.map_or_else(String::new, |id| {
        format!(", the largest of it in {}", pattern(case.stacks().text(id)))
    });
    let sentence = format!(
        "{} are temporary memory of one line, {}{inside}",
        bytes(sum),
        at(Some(&place)),
    );
    Some(finding(codes::SPIKE, sum, Some(place), sentence))
}
