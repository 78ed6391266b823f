// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts that a recording does not contain, in the same sentences in every answer about it.
//!
//! Four sources: the notes of the recorder; limitations, which have codes; the sizes that a library would have reported
//! on a GPU, which the functions that are not modelled show; and users of a device that a dry run cannot follow. An
//! answer adds its own.

mod failures;
mod foreign;
mod limitations;
mod values;

use std::collections::BTreeSet;

use tonnage_recording::facts::FREES_WAIT;
use tonnage_recording::{Meta, meta};
use tonnage_text::count;

use crate::unmodelled::UnmodelledCalls;

pub use failures::HookFailure;
pub use foreign::{Foreign, ForeignUse};
pub use limitations::Limitation;
pub(crate) use values::SizedBy;
pub use values::{ToldValues, UnknownValues};

/// Most sentences that are kept; no recorder writes so many.
const MOST: usize = 1 << 16;

/// The facts that a recording with these facts and calls does not contain, each sentence once; sizes first, because
/// figures rest on them.
///
/// ```
/// use tonnage_analysis::unknown;
/// use tonnage_analysis::unmodelled::UnmodelledCalls;
/// use tonnage_recording::{Event, Kind, Trace};
///
/// // A program that queried from cuDNN how much a recurrent network reserves.
/// let mut trace = Trace::new("example 1.0");
/// let name = trace.stacks.intern("cudnnGetRNNTempSpaceSizes");
/// trace.events.push(Event { size: 1, name: Some(name), ..Event::new(Kind::Unmodelled) });
///
/// let mut calls = UnmodelledCalls::default();
/// for event in &trace.events {
///     calls.add(event, &trace.stacks);
/// }
/// assert!(unknown::is_assumed(&trace.meta, &calls));
/// assert!(unknown::sentences(&trace.meta, &calls)[0].starts_with("what cuDNN reserves"));
/// ```
pub fn sentences(facts: &[Meta], calls: &UnmodelledCalls) -> Vec<String> {
    let mut sentences = calls.unknown_sizes();
    sentences.extend(Limitation::all(facts).iter().map(Limitation::sentence));
    sentences.extend(lag(facts).map(lag_said));
    sentences.extend(list_unknowns(facts));
    let what = |user: &Foreign| format!("what {} does with the GPU: {}", user.name, user.why());
    sentences.extend(Foreign::all(facts).iter().map(what));
    sentences
}

/// Whether blocks of a recording have sizes that are assumed: a library would have reported them on a GPU, they depend
/// on values that were not computed, or a limitation affects them.
pub fn is_assumed(facts: &[Meta], calls: &UnmodelledCalls) -> bool {
    let by_value = UnknownValues::all(facts).is_some_and(|values| values.sizes > 0);
    let limited = Limitation::all(facts).iter().any(|one| one.affects_figures);
    by_value || limited || !calls.unknown_sizes().is_empty()
}

/// By how many launches streams were taken to be behind the host, where what PyTorch reserves depends on it.
pub fn lag(facts: &[Meta]) -> Option<u64> {
    let told = facts.iter().filter(|fact| fact.name == FREES_WAIT);
    told.filter_map(|fact| fact.text.parse().ok()).max()
}

fn lag_said(launches: u64) -> String {
    let what = "how far the GPU is behind the host. PyTorch reuses a block that another stream used (record_stream) only \
                when that stream is done with it";
    if launches == 0 {
        return format!(
            "{what}: here at once, later on a GPU, which may then reserve more. `--assume lag=1024` runs the job with \
             streams that are up to 1,024 launches behind"
        );
    }
    let launches = count(launches);
    format!("{what}: here streams are up to {launches} launches behind, as was assumed")
}

/// The unknowns that the facts of a recording list, each sentence once.
pub fn list_unknowns(facts: &[Meta]) -> Vec<String> {
    let prefix = format!("{}.", meta::UNKNOWN);
    let of = |fact: &&Meta| fact.name.starts_with(&prefix);
    let mut said = BTreeSet::new();
    let texts = facts.iter().filter(of).map(|fact| &fact.text);
    let once = texts.filter(|&text| said.insert(text));
    once.take(MOST).cloned().collect()
}
