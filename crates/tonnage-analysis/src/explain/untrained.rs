// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN219: a model that no optimizer trains is called with gradients on, as a teacher whose outputs are a target.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tonnage_recording::{StackId, TextId};
use tonnage_text::bytes;

use super::case::{Bound, Case, Live, SHARE, at, is_kept, listed, most_named};
use super::codes::{Code, code};
use super::fixes::{Lifetimes, Proposal, bounded, sized, unchanged, until};
use super::{Found, repeats};
use crate::holdings::{Category, HeldBy, Holding, Known, ModelState, Phase, Place, Sort};

/// Graphs for gradients that no optimizer uses.
pub const UNTRAINED: Code = code(
    "TN219",
    "gradients that no optimizer uses",
    "A model that is not trained, such as a teacher or a reference, is called with gradients on, and its parameters
require them. Every layer keeps its inputs for the backward pass, and if the loss depends on its outputs, a gradient is
made for each of its parameters, which nothing uses and `zero_grad()` of the optimizer does not clear. The same holds for
the weights beside adapters, and for a network that a loss is computed with, if they are not frozen.

Recognised by: torch was queried; no optimizer has a parameter of the model, while one has parameters of another, and
nothing that the model is given requires gradients, so they end there. Or there are gradients of parameters that no
optimizer has.
Fix: move the call of that model, and no other, into `with torch.no_grad():`, or `requires_grad_(False)` on it
before. The peak without what it keeps is computed within bounds: a result goes when the next one is made, or, at the
latest, when the repeated block is done that made it, or was given it.",
);

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    of_passes(case).or_else(|| of_parameters(case))
}

/// The memory that a model keeps, all of which is in vain.
fn of_passes(case: &Case<'_>) -> Option<Found> {
    let blocks: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| goes(case, Some(live.index), live.block))
        .collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let calls = calls(case, &blocks);
    let place = calls.first()?.place.clone();
    let headline = headline(&calls, sum);
    let units = repeats::find_among(case, |block| is_of_pass(case, block));
    let advice = advice(&calls);
    let mut proposal = Proposal::new(UNTRAINED.code, advice, "for gradients that nothing uses");
    proposal.paste = Some("with torch.no_grad():".to_owned());
    let taken_back = taken_back(case);
    let fix = bounded(case, proposal, |bound, index, block| {
        if bound == Bound::Least && may_go(case, &taken_back, index, block) {
            return until(block, case.next_birth(index, block).saturating_add(1));
        }
        if !goes(case, index, block) {
            return unchanged(block);
        }
        if block.category == Category::Gradients {
            return sized(block, 0);
        }
        let units = units.as_ref();
        without_graph(case, units, bound, index, block)
    });
    Some(
        Found::exact(UNTRAINED, sum, headline.clone(), headline)
            .with_place(place)
            .with_fixes(fix)
            .with_claims_of(&blocks)
            .into_mistake(),
    )
}

/// Gradients of parameters that no optimizer has, of a model that gradients have to go through.
fn of_parameters(case: &Case<'_>) -> Option<Found> {
    let of = |live: &Live<'_>| is_unused_gradient(case, live.held, live.block);
    let blocks: Vec<Live<'_>> = case.unexplained().filter(of).collect();
    let sum: u64 = blocks.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    let held = most_named(&blocks)?;
    let named = blocks.iter().find_map(|live| live.block.name);
    let example = named.map_or_else(String::new, |name| {
        format!(", such as `{}`", case.stacks().text(name))
    });
    let headline = format!(
        "{} of gradients in {}, of parameters that no optimizer has",
        bytes(sum),
        held.describe_holder()
    );
    let sentence = format!("{headline}{example} ({})", at(held.place.as_ref()));
    let advice = format!(
        "turn gradients off for these parameters of {} before the first pass: `requires_grad_(False)`",
        held.describe_holder()
    );
    let proposal = Proposal::new(UNTRAINED.code, advice, "of gradients that nothing uses");
    let fix = bounded(case, proposal, |bound, index, block| {
        let held = index.and_then(|index| case.holder(index));
        if is_unused_gradient(case, held, block) {
            return sized(block, 0);
        }
        // The memory kept for these gradients alone, or added to them, is uncertain: at the least, nothing else is
        // kept.
        let of_pass = matches!(block.phase, Phase::Forward | Phase::Backward);
        let passing = match block.category {
            Category::Activations | Category::Temporaries | Category::Other => !is_kept(block),
            Category::Gradients => block.name.is_none(),
            _ => false,
        };
        if bound == Bound::Least && of_pass && passing {
            return sized(block, 0);
        }
        unchanged(block)
    });
    let fix = fix.map(|mut fix| {
        fix.shown = format!(
            "{} - at least {} of gradients that nothing uses = at most {}",
            bytes(fix.peak_before),
            bytes(fix.peak_before - fix.peak_after),
            bytes(fix.peak_after)
        );
        fix
    });
    Some(
        Found::exact(UNTRAINED, sum, headline, sentence)
            .with_place(held.place.clone())
            .with_holder(Some(held))
            .with_fixes(fix)
            .with_claims_of(&blocks)
            .into_mistake(),
    )
}

/// A model, and the user's line that calls it.
struct Call {
    /// `` `teacher` in main() ``, or its class.
    said: Option<String>,
    /// `teacher`.
    variable: Option<String>,
    place: Option<Place>,
}

/// The models that keep some blocks, those with the most bytes first.
fn calls(case: &Case<'_>, blocks: &[Live<'_>]) -> Vec<Call> {
    let mut models: BTreeMap<TextId, (u64, &Holding)> = BTreeMap::new();
    for live in blocks.iter().filter(|live| is_of_pass(case, live.block)) {
        let block = live.block;
        let Some(model) = case.untrained_model(block.born) else {
            continue;
        };
        let (sum, largest) = models.entry(model).or_insert((0, block));
        *sum += block.bytes;
        if block.bytes >= largest.bytes {
            *largest = block;
        }
    }
    let mut models: Vec<_> = models.into_iter().collect();
    models.sort_by_key(|&(_, (sum, _))| Reverse(sum));
    let call = |(model, (_, largest)): (TextId, (u64, &Holding))| {
        let model = case.stacks().text(model);
        let held = case.track.called_models.get(model);
        let class = model.split_once(' ').map(|(_, class)| class);
        let of_class = || class.map(|class| format!("the {class} that no optimizer trains"));
        Call {
            said: held.map(HeldBy::describe_holder).or_else(of_class),
            variable: held.map(|held| held.name.clone()),
            place: called_at(case, largest),
        }
    };
    models.into_iter().map(call).collect()
}

/// `` `teacher` at train.py:8 and `judge` at train.py:9 ``; models at one line share one mention.
fn describe_calls(calls: &[Call]) -> String {
    let line = |call: &Call| at(call.place.as_ref());
    let name = |call: &Call| {
        let unnamed = || "a model that no optimizer trains".to_owned();
        call.said.clone().unwrap_or_else(unnamed)
    };
    let first = calls.first().map(line).unwrap_or_default();
    if calls.iter().all(|call| line(call) == first) {
        return format!("{} at {first}", listed(calls.iter().map(name)));
    }
    listed(
        calls
            .iter()
            .map(|call| format!("{} at {}", name(call), line(call))),
    )
}

fn headline(calls: &[Call], sum: u64) -> String {
    let (said, sum) = (describe_calls(calls), bytes(sum));
    match calls {
        [
            Call {
                said: None, place, ..
            },
        ] => format!(
            "the call at {} keeps {sum} for gradients of a model that no optimizer trains",
            at(place.as_ref())
        ),
        [Call { variable: None, .. }] => format!("the call of {said} keeps {sum} for gradients"),
        [_] => format!("the call of {said} keeps {sum} for gradients, and no optimizer trains it"),
        _ => format!("the calls of {said} keep {sum} for gradients, and no optimizer trains them"),
    }
}

/// One line may call a model that is trained, too: the call itself has to move.
fn advice(calls: &[Call]) -> String {
    let several = calls.len() > 1;
    let (call, its) = if several {
        ("calls", "their")
    } else {
        ("call", "its")
    };
    let off = calls.iter().map(|call| {
        let variable = call.variable.as_ref().filter(|name| !name.starts_with('<'));
        variable.map_or_else(
            || "`requires_grad_(False)`".to_owned(),
            |name| format!("`{name}.requires_grad_(False)`"),
        )
    });
    let off: BTreeSet<String> = off.collect();
    format!(
        "move the {call} of {} into `with torch.no_grad():`, or turn {its} gradients off before: {}",
        describe_calls(calls),
        listed(off)
    )
}

/// The user's line that calls the model of a block and no model that is trained: both may be called by one function.
fn called_at(case: &Case<'_>, block: &Holding) -> Option<Place> {
    let trained: BTreeSet<StackId> = case
        .track
        .blocks
        .iter()
        .filter(|other| other.phase == Phase::Forward && !case.is_untrained(other.born))
        .filter_map(|other| other.stack)
        .collect();
    let trained: BTreeSet<Place> = trained
        .into_iter()
        .flat_map(|stack| case.callers(stack))
        .collect();
    let mut callers = block
        .stack
        .map_or_else(Vec::new, |stack| case.callers(stack));
    callers.retain(|place| !trained.contains(place));
    let own = callers.into_iter().next();
    own.or_else(|| case.call_site(block))
}

/// Whether a block may go too: what is computed from the outputs, and what backward passes make on their way.
fn may_go(case: &Case<'_>, taken_back: &[(u32, u32)], index: Option<u32>, block: &Holding) -> bool {
    let of_pass = block.phase == Phase::Forward && case.is_untrained(block.born);
    if of_pass && block.category == Category::KvCache {
        return block.known != Known::Exact;
    }
    if is_kept(block) {
        return false;
    }
    let held = index.and_then(|index| case.holder(index));
    let in_graph = held.is_none_or(|held| matches!(held.sort, Sort::Graph | Sort::Nothing));
    if of_pass && in_graph && block.born >= case.pass_end(block.born) {
        return true;
    }
    let way = taken_back.partition_point(|&(_, to)| to < block.born);
    let way = taken_back.get(way);
    block.phase == Phase::Backward && way.is_some_and(|&(from, _)| from <= block.born)
}

/// The rows between which backward passes have such a model before them: from their beginning to the last that they
/// take back of it.
fn taken_back(case: &Case<'_>) -> Vec<(u32, u32)> {
    let mut ways: BTreeMap<u32, u32> = BTreeMap::new();
    for block in &case.track.blocks {
        let span = case.track.phase_at(block.died);
        if let Some(span) = span.filter(|span| span.phase == Phase::Backward)
            && is_of_pass(case, block)
        {
            let last = ways.entry(span.from).or_default();
            *last = block.died.max(*last);
        }
    }
    ways.into_iter().collect()
}

fn without_graph(
    case: &Case<'_>,
    units: Option<&repeats::Repeats>,
    bound: Bound,
    index: Option<u32>,
    block: &Holding,
) -> Lifetimes {
    if bound == Bound::Least {
        return until(block, case.next_birth(index, block).saturating_add(1));
    }
    let lifetimes = units.and_then(|units| units.without_graph(index, block));
    lifetimes.unwrap_or_else(|| until(block, case.pass_end(block.born).saturating_add(1)))
}

/// Whether a block was made by such a model for a backward pass.
fn is_of_pass(case: &Case<'_>, block: &Holding) -> bool {
    block.phase == Phase::Forward
        && !is_kept(block)
        && case.is_untrained(block.born)
        && block.born < case.pass_end(block.born)
}

/// Whether a block goes if the model builds no graph.
fn goes(case: &Case<'_>, index: Option<u32>, block: &Holding) -> bool {
    let held = index.and_then(|index| case.holder(index));
    if block.category == Category::Gradients {
        return is_unused_gradient(case, held, block);
    }
    // Tensors that the program refers to itself, such as the outputs, stay.
    let in_graph = held.is_none_or(|held| matches!(held.sort, Sort::Graph | Sort::Nothing));
    is_of_pass(case, block) && in_graph && !is_output(case, index, block)
}

/// Whether it is the gradient of a parameter that no optimizer has.
fn is_unused_gradient(case: &Case<'_>, held: Option<&HeldBy>, block: &Holding) -> bool {
    let named = block
        .name
        .is_some_and(|name| case.track.unstepped.contains(&name));
    let model = held.filter(|held| held.sort == Sort::Grad);
    let model = model.and_then(|held| case.model_of(held));
    block.category == Category::Gradients && (named || model == Some(ModelState::Untrained))
}

/// Whether it is the last that the model made in its pass and left behind.
fn is_output(case: &Case<'_>, index: Option<u32>, block: &Holding) -> bool {
    let end = case.pass_end(block.born);
    let later = index.map_or(&[][..], |index| &case.track.blocks[index as usize + 1..]);
    let mut later = later.iter().take_while(|other| other.born < end);
    block.died > end && !later.any(|other| other.died > end && !is_kept(other))
}
