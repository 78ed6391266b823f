// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that wait for others forever, in words.

use std::path::Path;

use tonnage_analysis::verdict::{Called, Deadlock, Outcome, Place, Verdict, WaitsBecause};
use tonnage_text::named_from;

use super::table::{OTHERS, row};

/// Whether the job failed because ranks wait for each other, not because one of them raised an exception.
pub(super) fn hangs(verdict: &Verdict) -> bool {
    let all_ended = |deadlock: &Deadlock| deadlock.because == WaitsBecause::Ended;
    let waits = |rank: u32| {
        let mut waiting = verdict.deadlocks.iter();
        waiting.any(|deadlock| deadlock.rank == i64::from(rank))
    };
    // A rank that failed by itself is why the others wait.
    let mut failed = verdict.failed_processes.iter();
    let failed = failed.any(|process| !process.rank.is_some_and(waits));
    let explained =
        (!verdict.exceptions.is_empty() || failed) && verdict.deadlocks.iter().all(all_ended);
    !verdict.deadlocks.is_empty() && !explained
}

/// The ranks that wait forever, each with its line.
pub(super) fn waits(text: &mut String, verdict: &Verdict, here: &Path) {
    if verdict.outcome != Outcome::Failed {
        return;
    }
    for deadlock in verdict.deadlocks.iter().take(OTHERS) {
        row(text, "waits", &wait(deadlock, here));
    }
    let more = verdict.deadlocks.len().saturating_sub(OTHERS);
    if more > 0 {
        row(text, "", &format!("and {more} more ranks"));
    }
}

/// Why a rank that has called its side does not come to it.
fn behind(deadlock: &Deadlock, line: impl Fn(&Option<Place>) -> String) -> String {
    let name = |called: &Option<Called>| {
        called.as_ref().map_or_else(
            || "something else".to_owned(),
            |called| format!("{}{}", called.operation, line(&called.place)),
        )
    };
    format!(
        "rank {} called {}, but its GPU waits in {} first",
        deadlock.waits_for,
        name(&deadlock.called),
        name(&deadlock.behind)
    )
}

fn wait(deadlock: &Deadlock, here: &Path) -> String {
    let line = |place: &Option<Place>| {
        place.as_ref().map_or(String::new(), |place| {
            format!(" at {}:{}", named_from(&place.file, here), place.line)
        })
    };
    let other = deadlock.waits_for;
    let because = match (deadlock.because, &deadlock.instead) {
        (_, Some(instead)) => format!(
            "rank {other} called {}{}",
            instead.operation,
            line(&instead.place)
        ),
        (WaitsBecause::Behind, _) => behind(deadlock, line),
        (WaitsBecause::Ended, _) => format!("rank {other} has ended without calling it"),
        (WaitsBecause::Absent, _) => format!("no process is rank {other}"),
        _ => format!("rank {other} waits, too, and has not called it"),
    };
    // Messages are counted by the two ranks, collectives by all ranks of the communicator.
    let message = deadlock.operation == "recv";
    let among = if message {
        format!("from rank {other}")
    } else {
        let name = deadlock.communicator.get(..6).unwrap_or_default();
        format!("of communicator {name} with {} ranks", deadlock.ranks)
    };
    format!(
        "rank {} in {}{}, number {} {among}: {because}",
        deadlock.rank,
        deadlock.operation,
        line(&deadlock.place),
        deadlock.number,
    )
}
