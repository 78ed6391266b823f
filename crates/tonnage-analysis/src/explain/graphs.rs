// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN211: a variable or container keeps autograd graphs of passes that are over.
//!
//! A graph that a later backward pass uses is not a leak, however many passes it spans:
//! losses of micro-batches may be summed before one `backward()`. The difference is how
//! its blocks die: inside a backward pass, or not. Such graphs are activations (TN213).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;

use tonnage_text::bytes;

use super::case::{Bound, Case, Live, PASSES, SHARE, at, counted, is_kept, listed};
use super::codes::{Code, code};
use super::fixes::{Fix, FixOutcome, Lifetimes, Proposal, bounded, unchanged, until};
use super::{Found, failed_otherwise, pipeline};
use crate::holdings::{Category, HeldBy, Holding, Phase, Place, Sort};

/// Graphs that are kept.
pub const GRAPHS: Code = code(
    "TN211",
    "autograd graphs are kept",
    "A tensor that was computed from parameters carries the graph of its computation, with every activation that a
backward pass would need. A running sum of losses, a list of losses, a hidden state that is handed to the next step:
each keeps the graphs of all the passes it came from.

Recognised by: Python was queried, and blocks of earlier passes are kept by nothing but the graph of one variable or
container; no later backward pass uses them. In recordings without those answers: many lines of a forward pass leave
blocks behind, pass after pass, and the finding is marked as inferred.
Fix: for statistics, add numbers: `total += loss.detach()` or `.item()`. For a state that is carried on,
`h = h.detach()` between steps; that truncates backpropagation, so the gradients change. Where a backward pass goes
through a result, only a copy may lose its graph. Where no variable refers to a graph, a reference cycle or C++ keeps
it: a `torch.autograd.Function` that stores its own output as an attribute of `ctx`, for example, instead of
`ctx.save_for_backward`. The peak without the kept graphs is computed from the recording.",
);

/// So many other containers are named.
const OTHERS: usize = 3;
/// Bytes up to which a tensor is a number rather than a state.
const NUMBER: u64 = 4096;

/// Blocks of a graph that was made in an earlier pass, or is over.
pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let kept: Vec<Live<'_>> = case
        .unexplained()
        .filter(|live| is_kept_graph(case, live))
        .collect();
    let sum: u64 = kept.iter().map(|live| live.block.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    // Losses that one backward pass uses later are not a leak.
    let used: u64 = kept
        .iter()
        .filter(|live| is_used_later(case, live.block))
        .map(|live| live.block.bytes)
        .sum();
    if used * 2 > sum {
        return None;
    }
    let mut names: BTreeMap<Option<&HeldBy>, u64> = BTreeMap::new();
    for live in &kept {
        *names.entry(live.held).or_default() += live.block.bytes;
    }
    // Python was not queried about some: they count for the name that keeps the others.
    let not_asked = names.get(&None).copied().unwrap_or(0);
    let named = |held: Option<&HeldBy>, of_it: u64| {
        held.is_some_and(HeldBy::is_named) && (of_it + not_asked) * 2 >= sum
    };
    let held = names
        .into_iter()
        .max_by_key(|(held, bytes)| (named(*held, *bytes), held.is_some(), *bytes))?
        .0;
    let passes: BTreeSet<usize> = kept
        .iter()
        .map(|live| case.pass_of(live.block.born))
        .collect();
    if held.is_none() && (passes.len() < PASSES || lines(&kept) < PASSES) {
        return None;
    }
    let unsure = case.failed && !passes.iter().any(|&pass| was_over(case, pass));
    Some(build_finding(case, &kept, held, passes.len(), sum, unsure))
}

fn lines(kept: &[Live<'_>]) -> usize {
    let stacks: BTreeSet<_> = kept.iter().map(|live| live.block.stack).collect();
    stacks.len()
}

/// Whether a backward pass has begun since a pass began, and is over at the moment.
fn was_over(case: &Case<'_>, pass: usize) -> bool {
    let from = pass.checked_sub(1).and_then(|at| case.track.passes.get(at));
    from.is_some_and(|&from| case.went_back_between(from, case.row))
}

fn is_kept_graph(case: &Case<'_>, live: &Live<'_>) -> bool {
    let block = live.block;
    let traced = live.held.is_some_and(|held| held.sort == Sort::Traceback);
    if is_kept(block) || (case.pass_of(block.born) == 0 && !traced) {
        return false;
    }
    if pipeline::is_in_flight(case, block) {
        return false;
    }
    match live.held {
        Some(held) if held.sort == Sort::Graph => {
            let pass = case.pass_of(block.born);
            // A graph of this pass is at work unless nothing follows.
            pass < case.pass_of(case.row) || was_over(case, pass)
        }
        // The traceback of an exception keeps what a failed attempt computed.
        // A block of the running pass is from the same line, and its own backward pass uses it.
        Some(held) => {
            held.sort == Sort::Traceback
                && !is_end_of_job(case, held)
                && !is_used_later(case, block)
        }
        None => {
            block.category == Category::Activations
                && block.phase == Phase::Forward
                && case.is_left_behind(block)
        }
    }
}

/// Whether a traceback is that of the exception which ended the job: Python keeps it when everything is over.
fn is_end_of_job(case: &Case<'_>, held: &HeldBy) -> bool {
    let of = held.exception.as_deref();
    of.is_some_and(|of| of.starts_with("sys.last_")) && failed_otherwise(case.recording).is_some()
}

/// Whether a backward pass takes the block back.
pub(super) fn is_used_later(case: &Case<'_>, block: &Holding) -> bool {
    if block.died == Holding::ALIVE {
        return false;
    }
    let span = case.track.phase_at(block.died);
    span.is_some_and(|span| span.phase == Phase::Backward)
}

fn build_finding(
    case: &Case<'_>,
    kept: &[Live<'_>],
    held: Option<&HeldBy>,
    passes: usize,
    sum: u64,
    unsure: bool,
) -> Found {
    let made = case.largest_place(kept.iter().map(|live| live.block));
    let place = held
        .and_then(|held| held.place.clone())
        .or_else(|| made.clone());
    let of = counted(passes, "pass", "passes");
    let traceback = held.is_some_and(|held| held.sort == Sort::Traceback);
    let headline = match held {
        Some(held) if traceback => {
            let of = held.exception.as_ref();
            let of = of.map_or_else(String::new, |name| format!(" in `{name}`"));
            let (holder, sum) = (held.describe_holder(), bytes(sum));
            format!("the traceback of the exception{of} keeps {holder}, {sum}")
        }
        Some(held) if held.name.is_empty() => format!(
            "{} of {of} is still alive, and no variable refers to it",
            bytes(sum)
        ),
        Some(held) => format!(
            "{} keeps the graphs of {of}, {}",
            held.describe_holder(),
            bytes(sum)
        ),
        None => format!("the graphs of {of} are alive, {}", bytes(sum)),
    };
    let mut sentence = headline.clone();
    if held.is_some_and(|held| held.name.is_empty()) {
        let _ = write!(
            sentence,
            ": a reference cycle, or C++; most were made at {}",
            at(made.as_ref())
        );
    } else if held.is_some_and(|held| held.place.is_some()) {
        let _ = write!(
            sentence,
            " (at {}; computed at {})",
            at(place.as_ref()),
            at(made.as_ref())
        );
    } else {
        let _ = write!(sentence, ", made at {}", at(made.as_ref()));
    }
    if unsure {
        sentence += "; no backward pass was seen yet that might use them";
    }
    let found = Found::exact(GRAPHS, sum, headline, sentence)
        .inferred_unless(held.is_some())
        .with_place(place.clone())
        .with_holder(held);
    found
        .with_fixes(fix(case, kept, held, place.as_ref(), unsure))
        .with_claims_of(kept)
        .into_mistake()
}

fn fix(
    case: &Case<'_>,
    kept: &[Live<'_>],
    held: Option<&HeldBy>,
    place: Option<&Place>,
    unsure: bool,
) -> Option<Fix> {
    let line = at(place);
    let mut changes_result = false;
    let retained = is_retained(case, kept);
    let advice = match held {
        Some(held) if held.sort == Sort::Traceback => {
            format!("keep the message and not the exception at {line}: `str(error)`")
        }
        Some(held) if !held.is_named() => unnamed(held),
        Some(held) if is_state(case, held) => {
            changes_result = true;
            let name = &held.name;
            format!(
                "detach the state between steps at {line}: `{name} = {name}.detach()` (truncates backpropagation)"
            )
        }
        Some(held) if retained => {
            let name = &held.name;
            format!(
                "call `backward()` without `retain_graph=True`, or `del {name}` after the step ({line})"
            )
        }
        Some(_) if unsure => {
            changes_result = true;
            format!(
                "at {line}: call `backward()` for each part if it is trained on, else keep `.detach()` or `.item()` of it"
            )
        }
        Some(held) if place.is_some_and(|place| case.is_trained_through(place)) => format!(
            "let {} keep a copy without its graph, and go on with the result of {line} itself: a backward pass goes \
             through it",
            held.describe_holder()
        ),
        Some(_) => format!("keep the number without its graph at {line}: `.detach()` or `.item()`"),
        None => format!(
            "drop what refers to results of {line} after each step: a list, a sum, an attribute or a reference cycle"
        ),
    };
    let mut proposal = Proposal::new(GRAPHS.code, advice, "of graphs of earlier passes");
    proposal.changes_result = changes_result;
    // Blocks without a name may have several holders, so the effect of one change is unknown.
    proposal.estimate = held.is_none_or(|held| !held.is_named());
    let piled: HashSet<u32> = kept.iter().map(|live| live.index).collect();
    let fix = bounded(case, proposal, |bound, index, block| {
        let forward = block.phase == Phase::Forward && !is_kept(block);
        match case.retaining(block.born).filter(|_| retained && forward) {
            // An ordinary backward pass takes it back.
            Some((from, to)) => until(block, if bound == Bound::Least { from + 1 } else { to }),
            None => {
                without_graph(case, &piled, bound, index, block).unwrap_or_else(|| unchanged(block))
            }
        }
    });
    fix.map(|mut fix| {
        let others = also_keep(case, held);
        if !others.is_empty() {
            // Without its graph the named one alone may free nothing, so nothing is promised.
            fix.outcome = FixOutcome::Unknown;
            fix.room = None;
            let hold = if others.len() == 1 { "holds" } else { "hold" };
            let others = listed(others.into_iter().take(OTHERS).map(HeldBy::describe_holder));
            let _ = write!(
                fix.advice,
                "; {others} {hold} results of the same passes, and their graphs unless they are detached"
            );
        }
        fix
    })
}

/// Advice about memory to which no variable refers.
pub(super) fn unnamed(held: &HeldBy) -> String {
    match held.cycle() {
        Some("") => "call `gc.collect()` after a step, or break the reference cycle that keeps these tensors until Python \
                     collects its garbage"
            .to_owned(),
        Some(members) if members.starts_with("ctx.") => format!(
            "keep tensors by `ctx.save_for_backward`, and not as attributes of `ctx`: {members} is part of a cycle"
        ),
        Some(members) => format!("break the reference cycle: {members}"),
        None => "call `gc.collect()` after a step, as a test: what it frees is kept by a reference cycle, such as an \
                 output stored on `ctx` in a `torch.autograd.Function`"
            .to_owned(),
    }
}

/// Whether it is the graph of one step that lasts into the next, because its backward pass ran with `retain_graph`.
fn is_retained(case: &Case<'_>, kept: &[Live<'_>]) -> bool {
    let passes: BTreeSet<usize> = kept
        .iter()
        .map(|live| case.pass_of(live.block.born))
        .collect();
    let mut kept = kept.iter();
    passes.len() < PASSES && kept.all(|live| case.retaining(live.block.born).is_some())
}

/// The lifetimes of a block if the graph that keeps it were dropped; none if no such graph keeps it. `piled` are those
/// of the moment, by index; what came later and stays in the same way is judged by its lifetime.
pub(super) fn without_graph(
    case: &Case<'_>,
    piled: &HashSet<u32>,
    bound: Bound,
    index: Option<u32>,
    block: &Holding,
) -> Option<Lifetimes> {
    let index = index?;
    let forward = block.phase == Phase::Forward && !is_kept(block);
    let outlives =
        forward && block.died > case.round_end(block.born, false) && !is_used_later(case, block);
    let sort = case.holder(index).map(|held| held.sort);
    let graph = sort.is_none_or(|sort| matches!(sort, Sort::Graph | Sort::Nothing));
    if !(piled.contains(&index) || outlives && graph) {
        return None;
    }
    // A frame goes with its exception: after the pass that failed, and before the next one.
    if sort == Some(Sort::Traceback) {
        // The batch was made before that pass.
        let pass = match case.pass_of(block.born) {
            0 => case.next_pass(block.born),
            _ => block.born,
        };
        let row = match bound {
            Bound::Least => case.pass_end(pass),
            Bound::Most => case.next_pass(pass),
        };
        return Some(until(block, row));
    }
    // A backward pass takes them back, even with `retain_graph`. Without one the name of the last
    // result may keep them until it is assigned anew, in the round after.
    let row = match (case.taken_back(index, block, bound), bound) {
        (Some(row), _) => row,
        (None, Bound::Least) => case.pass_end(block.born),
        (None, Bound::Most) => case.round_end(block.born, true),
    };
    Some(until(block, row))
}

/// Containers with results of several passes, whose graphs were not queried: a block has one holder.
fn also_keep<'a>(case: &'a Case<'_>, held: Option<&HeldBy>) -> Vec<&'a HeldBy> {
    let keeper = held.map(|held| held.name.as_str());
    let mut passes: BTreeMap<&HeldBy, BTreeSet<usize>> = BTreeMap::new();
    for live in case.alive() {
        let container = live.held.filter(|held| {
            matches!(held.sort, Sort::List | Sort::Dict | Sort::Tuple | Sort::Set)
                && Some(held.name.as_str()) != keeper
                && !held.name.is_empty()
        });
        if let Some(container) = container.filter(|_| live.block.phase == Phase::Forward) {
            let born = case.pass_of(live.block.born);
            passes.entry(container).or_default().insert(born);
        }
    }
    let several = passes.into_iter().filter(|(_, born)| born.len() >= PASSES);
    several.map(|(held, _)| held).collect()
}

/// Whether what carries the graphs is a state rather than a number: its own tensor is large.
fn is_state(case: &Case<'_>, held: &HeldBy) -> bool {
    let same = |other: &HeldBy| other.name == held.name && other.function == held.function;
    case.alive().any(|live| {
        live.block.requested > NUMBER
            && live
                .held
                .is_some_and(|other| other.sort == Sort::Variable && same(other))
    })
}
