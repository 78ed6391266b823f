// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranks that wait for others forever.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tonnage_recording::Meta;
use tonnage_recording::facts;

use super::Place;

/// Why a rank waits forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsBecause {
    /// The rank that it waits for waits, too.
    Waits,
    /// The process of the rank that it waits for has ended.
    Ended,
    /// No process is the rank that it waits for.
    Absent,
    /// The rank that it waits for called something else.
    Differs,
    /// The rank that it waits for called its side, but its GPU waits in something else first, and so in a circle.
    Behind,
}

/// The call of another rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Called {
    /// The operation; with its size, if it is another than the one that is waited in.
    pub operation: String,
    /// The line of the script, where it is known.
    pub place: Option<Place>,
}

/// A rank that would wait forever on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Deadlock {
    /// Number of the process that reports it: that of the rank, or of another one of the same circle.
    pub process: u32,
    /// The rank that waits.
    pub rank: i64,
    /// The call: `all_reduce`, `recv`, …
    pub operation: String,
    /// The how many-th of its kind that is, from 1: of all operations of the communicator, or of the messages between
    /// two ranks.
    pub number: u64,
    /// A name of the communicator, which all its ranks have.
    pub communicator: String,
    /// How many ranks the communicator has.
    pub ranks: u64,
    /// The line of the script that called it, where it is known.
    pub place: Option<Place>,
    /// The rank that it waits for.
    pub waits_for: i64,
    /// Why that does not come.
    pub because: WaitsBecause,
    /// The call of the other rank instead, if that is why.
    pub instead: Option<Called>,
    /// The other rank's side of it, if its GPU waits in something else first.
    pub called: Option<Called>,
    /// The cause.
    pub behind: Option<Called>,
}

/// The report of a process about it.
#[derive(Deserialize)]
struct Told {
    rank: i64,
    communicator: String,
    ranks: u64,
    operation: String,
    number: u64,
    file: String,
    line: u64,
    waits_for: i64,
    why: WaitsBecause,
    instead: Option<ToldCall>,
    called: Option<ToldCall>,
    behind: Option<ToldCall>,
}

#[derive(Deserialize)]
struct ToldCall {
    operation: String,
    file: String,
    line: u64,
}

fn place(file: String, line: u64) -> Option<Place> {
    (!file.is_empty()).then(|| Place {
        function: String::new(),
        file,
        line,
    })
}

/// The deadlocks that a recording names, by rank.
pub(super) fn find(facts: &[Meta]) -> Vec<Deadlock> {
    let told = facts.iter().filter(|fact| fact.name == facts::DEADLOCK);
    let mut found: Vec<Deadlock> = told
        .filter_map(|fact| {
            let told: Told = serde_json::from_str(&fact.text).ok()?;
            Some(Deadlock {
                process: fact.process,
                rank: told.rank,
                operation: told.operation,
                number: told.number,
                communicator: told.communicator,
                ranks: told.ranks,
                place: place(told.file, told.line),
                waits_for: told.waits_for,
                because: told.why,
                instead: told.instead.map(Called::from),
                called: told.called.map(Called::from),
                behind: told.behind.map(Called::from),
            })
        })
        .collect();
    found.sort_by_key(|deadlock| (deadlock.rank, deadlock.process));
    // Each rank of a circle reports all, and one that had not looked waits in something later.
    let in_circle = |deadlock: &Deadlock| deadlock.because == WaitsBecause::Behind;
    let circle: BTreeSet<i64> = (found.iter().filter(|it| in_circle(it)))
        .map(|it| it.rank)
        .collect();
    found.retain(|deadlock| in_circle(deadlock) || !circle.contains(&deadlock.rank));
    found.dedup_by(|one, other| in_circle(one) && one.rank == other.rank);
    found
}

impl From<ToldCall> for Called {
    fn from(told: ToldCall) -> Self {
        Self {
            operation: told.operation,
            place: place(told.file, told.line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_say_is_sorted_by_rank() {
        let fact = |process, text: &str| Meta {
            process,
            name: facts::DEADLOCK.to_owned(),
            text: text.to_owned(),
        };
        let waits = r#"{"rank": 1, "communicator": "ab", "ranks": 2, "operation": "all_reduce", "number": 3,
            "file": "train.py", "line": 12, "waits_for": 0, "why": "waits", "instead": null}"#;
        let differs = r#"{"rank": 0, "communicator": "ab", "ranks": 2, "operation": "broadcast", "number": 3,
            "file": "", "line": 0, "waits_for": 1, "why": "differs",
            "instead": {"operation": "all_reduce of 4 elements", "file": "train.py", "line": 12}}"#;
        let facts = [fact(0, waits), fact(1, differs), fact(2, "{}")];
        let found = find(&facts);
        let ranks: Vec<i64> = found.iter().map(|deadlock| deadlock.rank).collect();
        assert_eq!(ranks, [0, 1]);
        assert_eq!(found[0].place, None);
        assert_eq!(found[0].because, WaitsBecause::Differs);
        // Two ranks reported a circle, and one of them waits in something later by now.
        let circle = r#"{"rank": 1, "communicator": "ab", "ranks": 2, "operation": "recv", "number": 1,
            "file": "train.py", "line": 5, "waits_for": 0, "why": "behind", "instead": null,
            "called": {"operation": "send", "file": "train.py", "line": 6},
            "behind": {"operation": "recv", "file": "train.py", "line": 5}}"#;
        let facts = [fact(0, circle), fact(1, circle), fact(1, waits)];
        let [one] = &find(&facts)[..] else {
            panic!("a rank waits once");
        };
        assert_eq!(one.because, WaitsBecause::Behind);
        let instead = found[0].instead.as_ref().and_then(|it| it.place.as_ref());
        assert_eq!(instead.map(|place| place.line), Some(12));
    }
}
