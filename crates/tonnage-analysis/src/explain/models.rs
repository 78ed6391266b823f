// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN209, TN215 and TN217: weights that are there twice, on purpose or not, and weights alone.
//!
//! Two blocks of one parameter name are two models, or one that was replaced and is
//! still referenced. Python reports which of the two it is: a model that a variable or an
//! attribute holds is in use, one that only a closure, a cache or a traceback holds
//! is not. Where Python was not queried, two of everything is a guess at an old copy, and
//! more than three of one name are separate layers. Where it was, any number of models
//! may have been left behind.

use std::collections::{BTreeMap, HashSet};

use tonnage_text::bytes;

use super::case::{Case, Live, SHARE, at, counted};
use super::codes::{Code, code};
use super::fixes::{Proposal, computed, sized, unchanged, without};
use super::{Found, case};
use crate::holdings::{Category, HeldBy, Holding, Known, ModelState, Sort};

/// An old copy.
pub const TWO_COPIES: Code = code(
    "TN209",
    "an old copy is still referenced",
    "Tensors of the same name and shape are alive twice: the model that was deleted is still referenced somewhere, by a
cache, a closure, a list, an exception's traceback. Where nothing of Python refers to it, a reference cycle or C++ keeps
it: after `backward(create_graph=True)`, for example, each parameter and its gradient keep each other.

Recognised by: torch named two live blocks or more with the same parameter, and Python reports that no variable and no
attribute holds the older ones. Where Python was not queried this is a guess, and not made of layers that belong to no
common model.
Fix: drop the last reference before loading anew; set gradients to None after a double backward pass. The peak
without the older copies and their gradients is computed from the recording.",
);

/// A second model.
pub const SECOND_MODEL: Code = code(
    "TN215",
    "a second model is kept",
    "Beside the model that is trained another one is held: a reference, a moving average, a teacher. That is not a
mistake, but its weights count in full.

Recognised by: Python reports which variable holds each model, and that nothing trains this one.
Fix: compute what it puts out beforehand, keep it on the host or in a smaller type; with adapters, use the
same weights with the adapters off. The peak without it is computed from the recording.",
);

/// Weights alone.
pub const WEIGHTS: Code = code(
    "TN217",
    "weights make the peak",
    "The parameters and buffers of the models alone take most of the memory.

Recognised by: weights hold at least 60 % of the peak, or more than the device has.
Fix: a smaller type (bfloat16, 8 or 4 bits), part of the layers on the host, a larger or a second GPU. The peak
with half of the weights is computed from the recording.",
);

/// Weights that hold this share are the cause.
const MOST: f64 = 0.6;
/// More blocks of one name are layers without a model around them.
const COPIES: usize = 3;

/// The older of blocks that torch gave the same name, all but the youngest, and how many models they are.
fn old_copies<'a>(case: &'a Case<'_>, of: Category) -> (Vec<Live<'a>>, usize) {
    let mut named: BTreeMap<_, Vec<Live<'a>>> = BTreeMap::new();
    for live in case.unexplained() {
        let block = live.block;
        if let (category, Known::Exact, Some(name)) = (block.category, block.known, block.name)
            && category == of
        {
            named.entry((name, block.shape)).or_default().push(live);
        }
    }
    let (mut old, mut models) = (Vec::new(), 0);
    for blocks in named.into_values() {
        let Some((_, older)) = blocks.split_last() else {
            continue;
        };
        // Many may be layers without a model around them, unless Python was queried about each.
        let asked = |live: &Live<'_>| blocks.len() <= COPIES || live.held.is_some();
        let before = old.len();
        let left = |live: &&Live<'_>| asked(live) && !is_in_use(live.held);
        old.extend(older.iter().filter(left).copied());
        models = models.max(old.len() - before);
    }
    (old, models)
}

/// Whether a name that a program can still use leads to the block.
fn is_in_use(held: Option<&HeldBy>) -> bool {
    held.is_some_and(|held| {
        !held.name.is_empty()
            && held.class_without_name().is_none()
            && !matches!(
                held.sort,
                Sort::Closure | Sort::Traceback | Sort::Nothing | Sort::Other
            )
    })
}

pub(super) fn two_copies(case: &Case<'_>) -> Option<Found> {
    let (mut old, models) = old_copies(case, Category::Weights);
    let largest = *old.iter().max_by_key(|live| live.block.bytes)?;
    let (gradients, _) = old_copies(case, Category::Gradients);
    let what = if gradients.is_empty() {
        "weights"
    } else {
        "weights and gradients"
    };
    old.extend(gradients);
    let sum: u64 = old.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let place = case.site(largest.block);
    let held = largest.held.filter(|held| !held.name.is_empty());
    let by = held.map_or_else(String::new, |held| {
        format!(", held by {}", held.describe_holder())
    });
    let headline = if models > 1 {
        format!(
            "{} of {what} of {models} earlier models with the same parameters{by}",
            bytes(sum)
        )
    } else {
        format!("{} of an older copy of the same {what}{by}", bytes(sum))
    };
    let mut sentence = format!("{headline}; they were made at {}", at(place.as_ref()));
    // Python looked for it and found nothing.
    let is_left = largest.held.is_some_and(|held| !held.is_named());
    if is_left && held.is_none() {
        sentence += ", and no variable refers to them: a reference cycle, or C++";
    }
    let gone: HashSet<u32> = old.iter().map(|live| live.index).collect();
    let mut advice = format!(
        "drop every reference to the model made at {} before the new one is loaded{by}",
        at(place.as_ref())
    );
    if is_left {
        advice +=
            "; after `backward(create_graph=True)` call `model.zero_grad()` before the model goes";
    }
    let proposal = Proposal::new(TWO_COPIES.code, advice, "of the old copy");
    let fix = without(case, proposal, &gone);
    Some(
        Found::exact(TWO_COPIES, sum, headline, sentence)
            .inferred_unless(case.asked())
            .with_place(place)
            .with_holder(held)
            .with_fixes(fix)
            .with_claims(gone)
            .into_mistake(),
    )
}

/// A model that nothing trains, beside one that is trained.
pub(super) fn second_model(case: &Case<'_>) -> Option<Found> {
    let trained = |model: &crate::holdings::Model| model.state == ModelState::Trained;
    if !case.track.models.iter().any(trained) {
        return None;
    }
    let mut models: BTreeMap<&HeldBy, Vec<Live<'_>>> = BTreeMap::new();
    for live in case.unexplained() {
        let weights = matches!(live.block.category, Category::Weights | Category::Buffers);
        if let Some(held) = live
            .held
            .filter(|held| held.sort == Sort::Module && weights)
            && case
                .model_of(held)
                .is_some_and(|state| state != ModelState::Trained)
        {
            models.entry(held).or_default().push(live);
        }
    }
    let sum_of = |blocks: &[Live<'_>]| blocks.iter().map(|live| live.block.bytes).sum::<u64>();
    let (held, blocks) = models
        .into_iter()
        .max_by_key(|(_, blocks)| sum_of(blocks))?;
    let sum = sum_of(&blocks);
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let state = match case.model_of(held) {
        Some(ModelState::Frozen) => "frozen",
        _ => "never trained",
    };
    let headline = format!(
        "{} holds {} of weights that are {state}",
        held.describe_holder(),
        bytes(sum)
    );
    let sentence = format!(
        "{headline}, beside the model that is trained ({})",
        at(held.place.as_ref())
    );
    let gone: HashSet<u32> = blocks.iter().map(|live| live.index).collect();
    let advice = format!(
        "keep {} on the host, in fewer bits, or compute its outputs beforehand",
        held.describe_holder()
    );
    let mut proposal = Proposal::new(SECOND_MODEL.code, advice, "without it on the device");
    proposal.estimate = true;
    // It is there on purpose: only a job that does not fit has to do without it.
    let fix = if case.ran_out {
        without(case, proposal, &gone)
    } else {
        None
    };
    Some(
        Found::exact(SECOND_MODEL, sum, headline, sentence)
            .with_place(held.place.clone())
            .with_holder(Some(held))
            .with_fixes(fix)
            .with_claims(gone),
    )
}

pub(super) fn weights(case: &Case<'_>) -> Option<Found> {
    let is_weight = |live: &Live<'_>| {
        let by_module = live.held.is_some_and(|held| held.sort == Sort::Module);
        matches!(live.block.category, Category::Weights | Category::Buffers) || by_module
    };
    let blocks: Vec<Live<'_>> = case.alive().filter(is_weight).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    let capacity = case.on_device.capacity.unwrap_or(u64::MAX);
    let alone = sum.saturating_add(case.taken()) > capacity;
    if !alone && !case.is_large(sum, MOST) {
        return None;
    }
    let place = case.largest_place(blocks.iter().map(|live| live.block));
    let more = if alone {
        ", more than the GPU has for them"
    } else {
        ""
    };
    let headline = format!("{} of weights{more}", bytes(sum));
    let held = case::most_named(&blocks);
    let by = held.map_or_else(String::new, |held| {
        format!(", most in {}", held.describe_holder())
    });
    let sentence = format!(
        "{headline}, in {}{by}, made at {}",
        counted(blocks.len(), "block", "blocks"),
        at(place.as_ref())
    );
    let of: HashSet<u32> = blocks.iter().map(|live| live.index).collect();
    let advice =
        "keep the weights in a type of half the size, or half of them on the host".to_owned();
    let mut proposal = Proposal::new(WEIGHTS.code, advice, "for half of the weights");
    proposal.changes_result = true;
    proposal.estimate = true;
    let halved = |index: Option<u32>, block: &Holding| {
        if index.is_some_and(|index| of.contains(&index)) {
            sized(block, block.bytes / 2)
        } else {
            unchanged(block)
        }
    };
    // A job that fits has no use for fewer bits.
    let fix = if case.ran_out {
        computed(case, proposal, halved)
    } else {
        None
    };
    let exact = blocks.iter().all(|live| live.block.known == Known::Exact);
    Some(
        Found::exact(WEIGHTS, sum, headline, sentence)
            .inferred_unless(exact)
            .with_place(place)
            .with_holder(held)
            .with_fixes(fix)
            .with_claims(of),
    )
}
