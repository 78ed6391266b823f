// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where two runs part and where they meet again.
//!
//! Both are followed event by event. Where they part, the nearest place is searched at which the next events of both
//! are the same again. The search looks a bounded number of events ahead, so that the work grows with the length of the
//! runs and the number of partings alone; runs that do not meet within that range have nothing more in common.

use std::collections::HashMap;
use std::ops::Range;

use tonnage_recording::Kind;

use super::side::Step;

/// Events that must be the same for two runs to have met again.
const AGREEMENT: usize = 6;
/// How far ahead a meeting is searched.
const AHEAD: usize = 1 << 14;
/// Partings after which nothing more is compared.
const MAX_GAPS: usize = 20_000;

/// A gap with at most so many pairs of events is looked into.
const MAX_REFINED: usize = 1 << 16;

/// Events of both runs that have no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) real: Range<usize>,
    pub(super) dry: Range<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Aligned {
    pub(super) gaps: Vec<Gap>,
    pub(super) same: u64,
    pub(super) moved: u64,
}

/// Finds what two runs have in common.
pub(super) fn align(real: &[Step], dry: &[Step]) -> Aligned {
    let mut aligned = Aligned::default();
    let (mut at, mut other) = (0, 0);
    while at < real.len() && other < dry.len() {
        if real[at].key() == dry[other].key() {
            aligned.same += 1;
            let is_block = real[at].kind == Kind::Alloc;
            aligned.moved += u64::from(is_block && real[at].place != dry[other].place);
            (at, other) = (at + 1, other + 1);
            continue;
        }
        let (skip, other_skip) = if aligned.gaps.len() < MAX_GAPS {
            meeting(&real[at..], &dry[other..])
        } else {
            (real.len() - at, dry.len() - other)
        };
        let gap = Gap {
            real: at..at + skip,
            dry: other..other + other_skip,
        };
        refine(&gap, real, dry, &mut aligned);
        (at, other) = (at + skip, other + other_skip);
    }
    if at < real.len() || other < dry.len() {
        aligned.gaps.push(Gap {
            real: at..real.len(),
            dry: other..dry.len(),
        });
    }
    aligned
}

/// Finds what the two have in common inside a short gap, which may be less than an agreement.
fn refine(gap: &Gap, real: &[Step], dry: &[Step], aligned: &mut Aligned) {
    let (ours, theirs) = (&real[gap.real.clone()], &dry[gap.dry.clone()]);
    if ours.is_empty() || theirs.is_empty() || ours.len() * theirs.len() > MAX_REFINED {
        aligned.gaps.push(gap.clone());
        return;
    }
    // The longest common subsequence of what follows each pair of places.
    let width = theirs.len() + 1;
    let mut longest = vec![0_u32; (ours.len() + 1) * width];
    for at in (0..ours.len()).rev() {
        for other in (0..theirs.len()).rev() {
            longest[at * width + other] = if ours[at].key() == theirs[other].key() {
                longest[(at + 1) * width + other + 1] + 1
            } else {
                longest[(at + 1) * width + other].max(longest[at * width + other + 1])
            };
        }
    }
    let (mut at, mut other) = (0, 0);
    let (mut from, mut other_from) = (0, 0);
    let mut close = |to: usize, other_to: usize, from: usize, other_from: usize| {
        if to > from || other_to > other_from {
            aligned.gaps.push(Gap {
                real: gap.real.start + from..gap.real.start + to,
                dry: gap.dry.start + other_from..gap.dry.start + other_to,
            });
        }
    };
    let mut same = 0;
    while at < ours.len() && other < theirs.len() {
        if ours[at].key() == theirs[other].key() {
            close(at, other, from, other_from);
            same += 1;
            (at, other) = (at + 1, other + 1);
            (from, other_from) = (at, other);
        } else if longest[(at + 1) * width + other] >= longest[at * width + other + 1] {
            at += 1;
        } else {
            other += 1;
        }
    }
    close(ours.len(), theirs.len(), from, other_from);
    aligned.same += same;
}

/// How many events of each to pass over until both agree again: the fewest in sum; all of them if they do not.
fn meeting(real: &[Step], dry: &[Step]) -> (usize, usize) {
    type Key = [(Kind, u64); AGREEMENT];
    let key = |steps: &[Step]| -> Option<Key> {
        let mut key = [(Kind::Alloc, 0); AGREEMENT];
        for (part, step) in key.iter_mut().zip(steps.get(..AGREEMENT)?) {
            *part = step.key();
        }
        Some(key)
    };
    // The first place of each run of events in the dry run.
    let mut places: HashMap<Key, usize> = HashMap::new();
    for skip in 0..dry.len().min(AHEAD) {
        if let Some(key) = key(&dry[skip..]) {
            places.entry(key).or_insert(skip);
        }
    }
    let mut best: Option<(usize, usize)> = None;
    for skip in 0..real.len().min(AHEAD) {
        if best.is_some_and(|(one, two)| skip >= one + two) {
            break;
        }
        let other = key(&real[skip..]).and_then(|key| places.get(&key));
        if let Some(&other) = other
            && best.is_none_or(|(one, two)| skip + other < one + two)
        {
            best = Some((skip, other));
        }
    }
    // The ends of both may be shorter than an agreement.
    let tail = real
        .iter()
        .rev()
        .zip(dry.iter().rev())
        .take_while(|(one, two)| one.key() == two.key())
        .count();
    best.unwrap_or((real.len() - tail, dry.len() - tail))
}
