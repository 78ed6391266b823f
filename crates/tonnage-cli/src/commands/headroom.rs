// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words for the need and the headroom of a job: the verdict of a run and the report use the same.

use tonnage_analysis::verdict::{Margin, Need};

use crate::output::{DIM, bytes};

/// How far from its limits the job is: name and text each. A text without a name belongs to the one before. Parts of
/// the overhead are one line unless all of them are wanted.
pub(crate) fn distance(margin: &Margin, parts: bool) -> Vec<(&'static str, String)> {
    let headroom = if margin.after_ooms.is_some() {
        "not known: where there is less memory, less is requested".to_owned()
    } else {
        let how = if margin.smallest.is_some() {
            format!(" {DIM}(replayed){DIM:#}")
        } else {
            String::new()
        };
        format!("{}{how}", bytes(margin.room))
    };
    if !parts && margin.uncounted.len() > 1 {
        let high = margin.uncounted.iter().map(|part| part.high).sum();
        let what: Vec<&str> = margin.uncounted.iter().map(|part| &*part.what).collect();
        let line = format!(
            "{} to {} not counted: {}",
            bytes(margin.low()),
            bytes(high),
            what.join(", ")
        );
        return vec![("headroom", headroom), ("overhead", line)];
    }
    let overhead = margin.uncounted.iter().enumerate().map(|(number, part)| {
        let name = if number == 0 { "overhead" } else { "" };
        let range = format!("{} to {}", bytes(part.low), bytes(part.high));
        let known = match part.known.as_str() {
            "computed and seen" => "lower bound computed, upper bound observed",
            known => known,
        };
        let line = format!(
            "{range} for {} {DIM}({known}){DIM:#}, not counted",
            part.what
        );
        (name, line)
    });
    std::iter::once(("headroom", headroom))
        .chain(overhead)
        .collect()
}

/// How the need of a job that does not fit was found.
pub(crate) fn evidence(need: &Need) -> &'static str {
    match need.known.as_str() {
        "replayed" => "the smallest larger GPU on which the job completes (replayed)",
        "unknown" => "not enough; the run without a limit did not show the need",
        _ => "without PyTorch's cache, which no replay could find here",
    }
}
