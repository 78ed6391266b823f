// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN216: weights and optimizer state are on the device a second time, as clones.
//!
//! A copy is recognised by its sizes: made outside of passes and steps, by few lines, with
//! the sizes of parameters or of their state, many of them one after the other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use tonnage_text::bytes;

use super::Found;
use super::case::{Bound, Case, Live, SHARE, at, counted, is_kept, is_kept_by, listed};
use super::codes::{Code, code};
use super::fixes::{Proposal, bounded, computed, sized, unchanged, until};
use crate::holdings::{Category, HeldBy, Holding, Known, Phase, Place};

/// A copy of the state.
pub const STATE_COPY: Code = code(
    "TN216",
    "a copy of the model's state is held",
    "Parameters or the state of the optimizer were cloned and the clones are kept: the best state so far, a state that is
about to be saved, the weights before a step.

Recognised by: blocks made between passes have the sizes of parameters or optimizer state, one for each of many, and a
variable or container holds them. Or: a whole state dict of a sharded model is gathered on the device.
Fix: clone to the host: `.cpu()`, or `torch.save` without cloning; gather to the host (`offload_to_cpu`,
`cpu_offload`). The peak without the copy is computed from the recording.",
);

/// Fewer blocks are not a copy of a state.
const LEAST: usize = 4;

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    // How often each size occurs among parameters and state.
    let mut originals: HashMap<u64, usize> = HashMap::new();
    for live in case.alive() {
        let of_model = matches!(
            live.block.category,
            Category::Weights | Category::Buffers | Category::OptimizerState
        );
        if of_model && live.block.known == Known::Exact {
            *originals.entry(live.block.requested).or_default() += 1;
        }
    }
    let is_copy = |live: &Live<'_>| {
        let between = matches!(live.block.phase, Phase::Other | Phase::Load | Phase::Save);
        between
            && !is_kept(live.block)
            && !is_kept_by(live.held)
            && originals.contains_key(&live.block.requested)
    };
    let copies: Vec<Live<'_>> = case.unexplained().filter(is_copy).collect();
    // Not more of a size than there are originals: a list that grows has as many as it likes.
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    for live in &copies {
        *sizes.entry(live.block.requested).or_default() += 1;
    }
    let repeated = sizes.iter().any(|(size, &count)| count > originals[size]);
    let sum: u64 = copies.iter().map(|live| live.block.bytes).sum();
    if repeated || copies.len() < LEAST || !case.is_large(sum, SHARE) {
        return None;
    }
    let mut holders: BTreeMap<Option<&HeldBy>, u64> = BTreeMap::new();
    for live in &copies {
        *holders.entry(live.held).or_default() += live.block.bytes;
    }
    let mut holders: Vec<(Option<&HeldBy>, u64)> = holders.into_iter().collect();
    holders.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let held = holders.first()?.0;
    let made = case.largest_place(copies.iter().map(|live| live.block));
    let mut names: Vec<String> = Vec::new();
    for said in holders
        .iter()
        .filter_map(|(held, _)| Some(held.as_ref()?.describe_holder()))
    {
        if !names.contains(&said) {
            names.push(said);
        }
    }
    let by = match names.as_slice() {
        [] => String::new(),
        // More are the names of single tensors.
        [first, _, _, _, ..] => format!(" in {first} and elsewhere"),
        _ => format!(" in {}", listed(names)),
    };
    // Each line that clones is to be changed, those with little too.
    let mut places: BTreeMap<Option<Place>, u64> = BTreeMap::new();
    for live in &copies {
        *places.entry(case.site(live.block)).or_default() += live.block.bytes;
    }
    let mut places: Vec<(Option<Place>, u64)> = places.into_iter().collect();
    places.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let cloned_at = listed(places.iter().map(|(place, _)| at(place.as_ref())));
    let headline = format!("{} of clones{by}", bytes(sum));
    let sentence = format!(
        "{headline}, {} with the sizes of parameters and optimizer state, cloned at {cloned_at}",
        counted(copies.len(), "tensor", "tensors"),
    );
    let lines: HashSet<Option<_>> = copies.iter().map(|live| live.block.stack).collect();
    let advice = format!("clone to the host at {cloned_at}: `.cpu()`");
    let proposal = Proposal::new(STATE_COPY.code, advice, "of clones");
    let fix = computed(case, proposal, |_, block: &Holding| {
        let copied = lines.contains(&block.stack) && !is_kept(block);
        if copied && originals.contains_key(&block.requested) {
            sized(block, 0)
        } else {
            unchanged(block)
        }
    });
    Some(
        Found::inferred(STATE_COPY, sum, headline, sentence)
            .with_place(made)
            .with_holder(held)
            .with_fixes(fix)
            .with_claims_of(&copies)
            .into_mistake(),
    )
}

/// Files of torch that gather the state of a sharded model.
const GATHERS: [&str; 4] = [
    "torch/distributed/fsdp/_state_dict_utils.py",
    "torch/distributed/fsdp/_optim_utils.py",
    "torch/distributed/checkpoint/state_dict.py",
    "torch/distributed/_state_dict_utils.py",
];

/// A whole state dict of a sharded model that is gathered on the device.
pub(super) fn gathered(case: &Case<'_>) -> Option<Found> {
    let is_gathered = |block: &Holding| {
        let frames = block.stack.map(|stack| case.stacks().frames(stack));
        !is_kept(block)
            && frames.is_some_and(|mut frames| {
                frames.any(|frame| GATHERS.iter().any(|file| frame.file.ends_with(file)))
            })
    };
    let blocks: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| is_gathered(live.block))
        .collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if blocks.len() < LEAST || !case.is_large(sum, SHARE) {
        return None;
    }
    let place = case.largest_place(blocks.iter().map(|live| live.block));
    let line = at(place.as_ref());
    let headline = format!("{} of a whole state dict, gathered at {line}", bytes(sum));
    let sentence = format!(
        "{headline}, are on this device in {}",
        counted(blocks.len(), "tensor", "tensors")
    );
    let advice = format!(
        "gather it to the host at {line}: `FullStateDictConfig(offload_to_cpu=True)` and the same of `FullOptimStateDictConfig`, or \
         `StateDictOptions(full_state_dict=True, cpu_offload=True)`"
    );
    let mut proposal = Proposal::new(STATE_COPY.code, advice, "of the state dict");
    // Each tensor is on the device for a moment before it goes to the host.
    proposal.estimate = true;
    let stacks: HashSet<Option<_>> = blocks.iter().map(|live| live.block.stack).collect();
    let fix = bounded(case, proposal, |bound, index, block| {
        if !stacks.contains(&block.stack) || is_kept(block) {
            unchanged(block)
        } else if bound == Bound::Least {
            sized(block, 0)
        } else {
            until(block, case.next_birth(index, block))
        }
    });
    Some(
        Found::inferred(STATE_COPY, sum, headline, sentence)
            .with_place(place)
            .with_fixes(fix)
            .with_claims_of(&blocks)
            .into_mistake(),
    )
}
