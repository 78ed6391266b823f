// SPDX-License-Identifier: MIT OR Apache-2.0
//! TN201 and TN205: a container or a variable that grows from iteration to iteration.
//!
//! Where Python was queried, the holder is named and is a fact; that it grows is seen
//! in the births of its blocks: in three passes or more, or, in loops without a
//! model, in bytes that only ever increase. Where Python was not queried, the line that
//! makes the blocks stands for the holder, and the finding is a guess.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;

use tonnage_recording::{StackId, TextId};
use tonnage_text::bytes;

use super::case::{Bound, Case, Live, PASSES, SHARE, at, counted, is_kept, is_kept_by, most_named};
use super::codes::{Code, code};
use super::fixes::{Fix, Proposal, bounded, computed, sized, unchanged, until};
use super::graphs::{self, is_used_later};
use super::{Finding, Found, next_use};
use crate::holdings::{Category, HeldBy, Holding, Phase, Place, Sort, changes};

/// Memory that grows.
pub const LEAK: Code = code(
    "TN201",
    "memory grows",
    "A list, a dictionary, an attribute or a variable holds more with every iteration, of a training loop or of any other.
Usual causes: outputs appended to a list, a cache that is never emptied, a tensor that `torch.cat` makes longer.

Recognised by: Python was queried for the holder of each block; blocks of the same holder come from three passes or
more, or, in a loop without a model, the bytes from its lines only ever increase. Memory that is
emptied with every step of the optimizer does not grow. In recordings without those answers the same
is looked for by line, and the finding is marked as inferred.
Fix: keep what is needed on the host (`.cpu()`), reduce it first, or empty the container. The peak without what
has piled up is computed from the recording.",
);

/// Outputs of passes without gradients, or their batch.
pub const EVALUATION: Code = code(
    "TN205",
    "results of passes without gradients make the peak",
    "Passes without gradients, such as those of an evaluation or of the rollouts of reinforcement learning, make the peak:
their batch is larger than in training, or what comes of them is collected on the device until the end.

Recognised by: blocks of several passes without gradients are alive at once, in a container that Python named; or the
`Trainer` of transformers joins them for `compute_metrics`; or the peak lies in such a pass of a recording that also
trains.
Fix: move outputs to the host after each batch (`.cpu()`, or `eval_accumulation_steps=1` of the `Trainer`), reduce
them first (`argmax`), use a smaller batch.
Data for later training comes back to the device a batch at a time.
The peak without the collected outputs is computed from the recording.",
);

/// Moments at which the bytes of a line are looked at, to see whether they only increase.
const SAMPLES: usize = 8;

/// The origin of blocks of one sort: a stack, in a module, because layers share their stacks.
type Line = (Option<StackId>, Option<TextId>);

fn line(block: &Holding) -> Line {
    (block.stack, block.module)
}

/// The blocks that one holder, or one line, has piled up.
#[derive(Default)]
struct Pile<'a> {
    held: Option<&'a HeldBy>,
    bytes: u64,
    blocks: Vec<u32>,
    lines: BTreeSet<Line>,
    passes: BTreeSet<usize>,
    /// Bytes made in passes without gradients, or right after one.
    eval: u64,
}

/// The owner of a pile: a holder, or the stack that makes it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Owner<'a> {
    Held(&'a HeldBy),
    Line(Line),
}

pub(super) fn find(case: &Case<'_>) -> Option<Found> {
    let mut piles: BTreeMap<Owner<'_>, Pile<'_>> = BTreeMap::new();
    for live in case.unexplained().filter(|live| may_pile_up(case, live)) {
        let held = live.held.filter(|held| held.sort != Sort::Nothing);
        let owner = match held {
            Some(held) => Owner::Held(held),
            None => Owner::Line(line(live.block)),
        };
        let pile = piles.entry(owner).or_default();
        pile.held = held;
        pile.bytes += live.block.bytes;
        pile.blocks.push(live.index);
        pile.lines.insert(line(live.block));
        pile.passes.insert(case.pass_of(live.block.born));
        if after_eval(case, live.block) {
            pile.eval += live.block.bytes;
        }
    }
    let mut growing: Vec<Pile<'_>> = piles
        .into_values()
        .filter(|pile| case.is_large(pile.bytes, SHARE / 4.0) && grows(case, pile))
        .collect();
    growing.sort_by_key(|pile| std::cmp::Reverse(pile.bytes));
    let sum: u64 = growing.iter().map(|pile| pile.bytes).sum();
    if !case.is_large(sum, SHARE) {
        return None;
    }
    Some(build_finding(case, &growing, sum))
}

fn may_pile_up(case: &Case<'_>, live: &Live<'_>) -> bool {
    if is_kept(live.block) || is_kept_by(live.held) {
        return false;
    }
    // Blocks that only a graph keeps belong to another finding.
    if let Some(held) = live.held.filter(|held| held.sort != Sort::Nothing) {
        let holds = held.sort.is_container()
            || matches!(held.sort, Sort::Variable | Sort::Closure | Sort::Other);
        // The copies of a step are in lists of the optimizer's own, which have no name.
        return holds && !held.name.is_empty() && live.block.phase != Phase::Step;
    }
    // Scratch memory and blocks that a backward pass will use are not a pile, where Python was not queried about them.
    !matches!(
        live.block.category,
        Category::Temporaries | Category::Workspaces
    ) && !matches!(live.block.phase, Phase::Step | Phase::Backward)
        && !is_used_later(case, live.block)
}

fn after_eval(case: &Case<'_>, block: &Holding) -> bool {
    match block.phase {
        Phase::Eval => true,
        Phase::Other => {
            let track = case.track;
            let at = track.phases.partition_point(|span| span.to <= block.born);
            let before = at.checked_sub(1).and_then(|at| track.phases.get(at));
            before.is_some_and(|span| span.phase == Phase::Eval)
        }
        _ => false,
    }
}

/// Whether all of it is of one step of the optimizer, and its lines make as much in other steps: then it is emptied
/// with every step, as by a pipeline that keeps the outputs of its micro-batches.
fn is_emptied(case: &Case<'_>, pile: &Pile<'_>) -> bool {
    let step_of = |row: u32| case.track.phase_at(row).map(|span| span.step);
    let now = step_of(case.row);
    let of_now = |&index: &u32| step_of(case.track.blocks[index as usize].born) == now;
    let of_another = |block: &Holding| {
        let step = step_of(block.born);
        pile.lines.contains(&line(block)) && step.is_some() && step != now
    };
    now.is_some()
        && pile.eval * 2 <= pile.bytes
        && pile.blocks.iter().all(of_now)
        && case.track.blocks.iter().any(of_another)
}

fn grows(case: &Case<'_>, pile: &Pile<'_>) -> bool {
    if is_emptied(case, pile) {
        return false;
    }
    if pile.passes.len() >= PASSES && pile.passes.iter().any(|&pass| pass > 0) {
        // Without a holder the batch of this pass and the one before may be alive as well.
        return pile.held.is_some()
            || pile
                .blocks
                .iter()
                .any(|&index| case.is_left_behind(&case.track.blocks[index as usize]));
    }
    // In a loop without a model only what is made over and over by a line counts, and what a
    // comprehension makes is made at once.
    let made_at_once = |stack: Option<StackId>| {
        let functions = ["<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"];
        case.has_function(stack, &functions)
    };
    pile.passes
        .iter()
        .all(|&pass| pass == case.pass_of(case.row))
        && pile
            .lines
            .iter()
            .all(|&(stack, _)| stack.is_some() && !made_at_once(stack))
        && only_increases(case, pile)
}

/// Whether the bytes of the pile's lines increase from their first block to the moment.
fn only_increases(case: &Case<'_>, pile: &Pile<'_>) -> bool {
    let of = |block: &&Holding| pile.lines.contains(&line(block)) && block.born <= case.row;
    let blocks: Vec<&Holding> = case.track.blocks.iter().filter(of).collect();
    if blocks.len() < SAMPLES || blocks.iter().any(|block| block.phase == Phase::Forward) {
        return false;
    }
    let lifetimes = blocks.iter().map(|b| (b.born, b.died, b.bytes));
    let changes = changes(lifetimes);
    let mut sums = Vec::new();
    let mut sum = 0_i64;
    let mut before_last_zero = 0;
    for (row, change) in changes {
        if row > case.row {
            break;
        }
        sum += change;
        if change > 0 {
            sums.push(sum);
        } else if sum == 0 {
            before_last_zero = sums.len();
        }
    }
    // Iterations that free all that they make do not grow, however large the last of them is.
    if before_last_zero * 2 > sums.len() {
        return false;
    }
    let at = |part: usize| sums[(sums.len() - 1) * part / SAMPLES];
    let rises = (1..SAMPLES).all(|part| at(part + 1) * 100 >= at(part) * 98);
    rises && at(SAMPLES) * 10 >= at(SAMPLES / 4) * 14
}

/// Whether the holder replaces what it holds by something larger, rather than holding more things.
fn replaces(case: &Case<'_>, pile: &Pile<'_>) -> bool {
    // Blocks that a backward pass makes have no line.
    let of = |block: &&Holding| {
        block.stack.is_some() && pile.lines.contains(&line(block)) && block.born <= case.row
    };
    // The smallest of each line that is held: one that was replaced is smaller.
    let mut held: HashMap<Line, u64> = HashMap::new();
    for &index in &pile.blocks {
        let block = &case.track.blocks[index as usize];
        let least = held.entry(line(block)).or_insert(u64::MAX);
        *least = block.requested.min(*least);
    }
    let made = case.track.blocks.iter().filter(of);
    let large = pile.bytes / pile.blocks.len().max(1) as u64 / 8;
    let made = made.filter(|block| block.bytes > large);
    let replaced = made.filter(|block| {
        let least = held.get(&line(block));
        least.is_some_and(|&least| block.requested < least)
    });
    replaced.count() > pile.blocks.len()
}

fn build_finding(case: &Case<'_>, growing: &[Pile<'_>], sum: u64) -> Found {
    let largest = &growing[0];
    let eval = growing.iter().map(|pile| pile.eval).sum::<u64>() * 2 > sum;
    let code = if eval { EVALUATION } else { LEAK };
    let blocks: usize = growing.iter().map(|pile| pile.blocks.len()).sum();
    let block = |&index: &u32| &case.track.blocks[index as usize];
    let made = case.largest_place(largest.blocks.iter().map(block));
    let place = largest.held.and_then(|held| held.place.clone());
    let place = place.or_else(|| made.clone());
    let replaced = replaces(case, largest);
    let tensors = counted(blocks, "tensor", "tensors");
    let headline = match largest.held {
        Some(held) => {
            let names: Vec<String> = growing
                .iter()
                .filter_map(|pile| pile.held)
                .filter(|other| *other != held && other.function == held.function)
                .take(2)
                .map(|other| {
                    let said = other.describe_holder();
                    let name = said
                        .split_once(" in ")
                        .map_or(said.as_str(), |(name, _)| name);
                    format!(" and {name}")
                })
                .collect();
            let verb = if names.is_empty() { "holds" } else { "hold" };
            let said = held.describe_holder();
            let (name, rest) = said.split_once(" in ").unwrap_or((said.as_str(), ""));
            let rest = if rest.is_empty() {
                String::new()
            } else {
                format!(" in {rest}")
            };
            format!(
                "{name}{}{rest} {verb} {} in {tensors}",
                names.concat(),
                bytes(sum)
            )
        }
        None => format!(
            "{} in {tensors} made at {} stay",
            bytes(sum),
            at(made.as_ref())
        ),
    };
    let mut sentence = headline.clone();
    if largest.held.is_some_and(HeldBy::is_named) {
        let line = at(place.as_ref());
        let _ = write!(sentence, ", filled at {line}");
        let of_backward = |&index: &u32| {
            let block = &case.track.blocks[index as usize];
            block.phase == Phase::Backward
        };
        match made.as_ref().map(|made| at(Some(made))) {
            Some(from) if from != line => {
                let _ = write!(sentence, ", made at {from}");
            }
            None if largest.blocks.iter().all(of_backward) => {
                sentence += ", made in backward passes";
            }
            _ => {}
        }
    }
    if replaced {
        sentence += "; each tensor is replaced by a larger one";
    } else if let Some(rate) = bytes_per_pass(growing) {
        let _ = write!(sentence, ", {} with every pass", bytes(rate));
    }
    let found = Found::exact(code, sum, headline, sentence)
        .inferred_unless(largest.held.is_some())
        .with_place(place)
        .with_holder(largest.held);
    let fix = fix(case, growing, &found.finding, replaced);
    found
        .with_fixes(fix)
        .with_claims(growing.iter().flat_map(|pile| pile.blocks.clone()))
        .into_mistake()
}

/// The sizes of what `torch.stack` or `torch.cat` make of all that a line has piled up.
fn made_of(case: &Case<'_>, growing: &[Pile<'_>]) -> HashSet<u64> {
    let mut sums: HashMap<Line, (u64, usize)> = HashMap::new();
    for &index in growing.iter().flat_map(|pile| &pile.blocks) {
        let block = &case.track.blocks[index as usize];
        let sum = sums.entry(line(block)).or_default();
        *sum = (sum.0 + block.requested, sum.1 + 1);
    }
    let several = sums.into_values().filter(|&(_, blocks)| blocks >= PASSES);
    several.map(|(sum, _)| sum).collect()
}

/// How much is added with every pass; none if there were too few passes.
fn bytes_per_pass(growing: &[Pile<'_>]) -> Option<u64> {
    let passes = growing.iter().map(|pile| pile.passes.len()).max()?;
    let sum: u64 = growing.iter().map(|pile| pile.bytes).sum();
    (passes >= PASSES).then(|| sum / passes as u64)
}

/// Without what piled up: each block goes when the next of its line comes.
fn fix(case: &Case<'_>, growing: &[Pile<'_>], finding: &Finding, replaced: bool) -> Option<Fix> {
    let lines: HashSet<Line> = growing
        .iter()
        .flat_map(|pile| pile.lines.iter().copied())
        .filter(|(stack, _)| stack.is_some())
        .collect();
    let place = at(finding.place.as_ref());
    let code = finding.code.code;
    // Graphs of the same passes keep these tensors, and more: what is kept without them frees both.
    let passes = growing.iter().flat_map(|pile| pile.passes.iter().copied());
    let in_graph = case.kept_graphs(&passes.collect());
    let kept_by = most_named(&in_graph).filter(|graph| {
        let mut holders = growing.iter().filter_map(|pile| pile.held);
        holders.all(|held| held.name != graph.name)
    });
    let in_graphs: HashSet<u32> = in_graph.iter().map(|live| live.index).collect();
    if replaced {
        let advice = format!("halve the batch or the longest length of what grows at {place}");
        let mut proposal = Proposal::new(code, advice, "for half as much of it");
        proposal.changes_result = true;
        return computed(case, proposal, |_, block| {
            if lines.contains(&line(block)) && !is_kept(block) {
                sized(block, block.bytes / 2)
            } else {
                unchanged(block)
            }
        });
    }
    let piled: HashSet<u32> = growing
        .iter()
        .flat_map(|pile| pile.blocks.iter().copied())
        .collect();
    let sizes = piled
        .iter()
        .map(|&index| case.track.blocks[index as usize].bytes);
    let made_of_it = made_of(case, growing);
    // The scratch memory of a line is not part of what it returns.
    let least = sizes.min().unwrap_or(0) / 2;
    // The next birth of each line after each block.
    let mut next: HashMap<u32, u32> = HashMap::new();
    let mut last: HashMap<Line, u32> = HashMap::new();
    for (index, block) in (0_u32..).zip(&case.track.blocks) {
        if block.bytes >= least
            && lines.contains(&line(block))
            && let Some(before) = last.insert(line(block), index)
        {
            next.insert(before, block.born);
        }
    }
    let in_forward = piled
        .iter()
        .any(|&index| case.track.blocks[index as usize].phase == Phase::Forward);
    let copied = if in_forward || !in_graphs.is_empty() {
        ".detach().cpu()"
    } else {
        ".cpu()"
    };
    let through = finding
        .place
        .as_ref()
        .is_some_and(|place| case.is_trained_through(place));
    let mut advice = match &finding.held_by {
        Some(held) if !held.is_named() => graphs::unnamed(held),
        None => format!(
            "drop what refers to the tensors made at {place}: a list, an attribute or a reference cycle; or keep \
             copies on the host"
        ),
        Some(held) if held.hooks.is_some() => format!(
            "remove each hook when it has run: `handle.remove()`; `{}` has another one with every pass, which remembers {}",
            held.hooks.as_deref().unwrap_or_default(),
            held.describe_holder()
        ),
        Some(held) if is_cache(held, finding.place.as_ref()) => format!(
            "limit what {} remembers at {place}: `functools.lru_cache(maxsize=N)`, or clear it with \
             `{}.cache_clear()`",
            held.describe_holder(),
            held.name
        ),
        Some(held) if through => format!(
            "let {} keep a copy on the host, and go on with the result of {place} itself: a backward pass goes \
             through it",
            held.describe_holder()
        ),
        Some(held) => format!(
            "keep the tensors of {} on the host at {place}: `{copied}`, or reduce them first",
            held.describe_holder()
        ),
    };
    let can_go = |graph: &&HeldBy| {
        let place = graph.place.as_ref();
        graph.is_named() && place.is_some_and(|place| !case.is_trained_through(place))
    };
    if let Some(graph) = kept_by.filter(can_go) {
        let line = at(graph.place.as_ref());
        let _ = write!(
            advice,
            "; and keep {} without its graph at {line}: `.detach()`",
            graph.describe_holder()
        );
    }
    let unused: HashSet<u32> = piled
        .iter()
        .copied()
        .filter(|&index| case.is_unused(index))
        .collect();
    let is_earlier = |&index: &u32| {
        let born = case.track.blocks[index as usize].born;
        case.pass_of(born) < case.pass_of(case.row)
    };
    let used_later = piled.difference(&unused).filter(|index| is_earlier(index));
    let used_later = used_later.count();
    let named = finding.held_by.as_ref().filter(|held| held.is_named());
    // The device still needs the newest ones, so they cannot be on the host.
    let is_hooked = named.is_some_and(|held| held.hooks.is_some());
    let partly = named.filter(|_| !is_hooked && used_later > 1 && !unused.is_empty());
    if let Some(held) = partly {
        advice = format!(
            "drop tensors from {} after their last use ({place}): {} of {} are never used again",
            held.describe_holder(),
            unused.len(),
            piled.len()
        );
    }
    let proposal = || Proposal::new(code, advice.clone(), "of what piled up");
    let sum = |blocks: &HashSet<u32>| -> u64 {
        let blocks = blocks
            .iter()
            .map(|&index| &case.track.blocks[index as usize]);
        blocks.map(|block| block.bytes).sum()
    };
    let mostly_unused = !unused.is_empty() && sum(&unused) * 2 >= sum(&piled);
    if partly.is_some() || mostly_unused {
        let freed = if partly.is_some() { &piled } else { &unused };
        // Memory that every pass uses again, such as by hooks that pile up, has its last use at the end.
        if let Some(fix) = next_use::freed_after_use(case, proposal(), freed) {
            return Some(with_rate(fix, growing));
        }
    }
    let fix = bounded(case, proposal(), |bound, index, block| {
        let Some(index) = index else {
            return unchanged(block);
        };
        let outlives = block.died > case.round_end(block.born, true);
        let again_and_again = outlives && lines.contains(&line(block)) && !is_kept(block);
        if made_of_it.contains(&block.requested) && block.phase == Phase::Other && !is_kept(block) {
            // On the host as well.
            return sized(block, 0);
        }
        if !(piled.contains(&index) || again_and_again) {
            if in_graphs.is_empty() {
                return unchanged(block);
            }
            let without = graphs::without_graph(case, &in_graphs, bound, Some(index), block);
            return without.unwrap_or_else(|| unchanged(block));
        }
        if block.stack.is_none() {
            // Made by a backward pass: there until the names of this round are assigned anew.
            let next = bound == Bound::Most;
            return until(block, case.round_end(block.born, next));
        }
        let again = next.get(&index).copied().unwrap_or(Holding::ALIVE);
        // A variable keeps the last one until the next is made.
        let assigned = until(block, again.saturating_add(1));
        match (block.phase, bound) {
            // A copy between passes would be made on the host at once.
            (Phase::Other, Bound::Least) if case.pass_of(block.born) > 0 => sized(block, 0),
            (Phase::Forward | Phase::Eval, _) => {
                let row = case.taken_back(index, block, bound);
                match (row, bound) {
                    (Some(row), _) => until(block, row),
                    (None, Bound::Least) => until(block, case.round_end(block.born, false)),
                    (None, Bound::Most) => assigned,
                }
            }
            (_, Bound::Least) => until(block, again),
            (_, Bound::Most) => assigned,
        }
    })?;
    Some(with_rate(fix, growing))
}

/// Whether a holder is the cache of the function that makes the tensors, as `functools.lru_cache` keeps it.
fn is_cache(held: &HeldBy, made: Option<&Place>) -> bool {
    held.sort == Sort::Dict
        && held.function.is_none()
        && made.is_some_and(|place| place.function == held.name)
}

/// Adds the rate per pass to the saving.
fn with_rate(mut fix: Fix, growing: &[Pile<'_>]) -> Fix {
    if let Some(rate) = bytes_per_pass(growing) {
        let saved = fix.peak_before.saturating_sub(fix.peak_after);
        fix.shown = format!(
            "saves {} so far and {} per iteration",
            bytes(saved),
            bytes(rate)
        );
    }
    fix
}
