// SPDX-License-Identifier: MIT OR Apache-2.0
//! How processes of a run ended, as they and their parents recorded it.
//!
//! One file for the whole run, a line for each fact, appended by every process in a single write. A process records its
//! own exit code; its parent records the signal that ended it; the sender of a signal records that it sent it. So a
//! launcher that drops the exit codes of its ranks does not hide a failed rank.

use std::fmt;

/// The name of the file inside the folder of the run.
pub const ENDINGS_FILE: &str = "endings";

/// The variable with the rank and the id of a process that was started as a rank. Its children inherit the variable and
/// are not that rank.
pub const RANK_OF_PARENT_VARIABLE: &str = "TONNAGE_RANK_OF_PARENT";

/// Processes write no line beyond this size.
pub const MOST_BYTES: u64 = 1 << 20;

/// An event in the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// It was started as this rank.
    Rank(u32),
    /// It ended by itself.
    Exit {
        /// The exit code, which is not 0.
        code: i32,
        /// Its process group, which a signal may have been sent to.
        group: i32,
    },
    /// A signal with this number ended it.
    Died(i32),
    /// A process of the run, or `tonnage run` itself as process 0, sent it a signal.
    Sent {
        /// The number of the signal.
        signal: i32,
        /// The process that sent it.
        from: i32,
    },
}

/// A line of the file.
///
/// ```
/// use tonnage_capture::endings::{Fact, Line};
///
/// let line = Line { process: 17, time: 5, fact: Fact::Died(9) };
/// assert_eq!(line.to_string(), "17 5 died 9 0");
/// assert_eq!(Line::parse("17 5 died 9 0"), Some(line));
/// assert_eq!(Line::parse("17 5 died"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its process id; negative for a process group, of which this is the number, and -1 for all processes.
    pub process: i32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The event.
    pub fact: Fact,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, number, from) = match self.fact {
            Fact::Rank(rank) => ("rank", i64::from(rank), 0),
            Fact::Exit { code, group } => ("exit", code.into(), group),
            Fact::Died(signal) => ("died", signal.into(), 0),
            Fact::Sent { signal, from } => ("sent", signal.into(), from),
        };
        write!(f, "{} {} {name} {number} {from}", self.process, self.time)
    }
}

impl Line {
    /// Reads a line; `None` if it is not one.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let &[process, time, name, number, from] = words.as_slice() else {
            return None;
        };
        let fact = match name {
            "rank" => Fact::Rank(number.parse().ok()?),
            "exit" => Fact::Exit {
                code: number.parse().ok()?,
                group: from.parse().ok()?,
            },
            "died" => Fact::Died(number.parse().ok()?),
            "sent" => Fact::Sent {
                signal: number.parse().ok()?,
                from: from.parse().ok()?,
            },
            _ => return None,
        };
        Some(Self {
            process: process.parse().ok()?,
            time: time.parse().ok()?,
            fact,
        })
    }
}
