// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes of a job failed, by what they and their parents recorded, whatever the launcher returned.
//!
//! A process counts if it was started as a rank, if `torch.distributed` made it one, or if it took GPU memory. It
//! failed if it ended with an exit code other than 0 or by a signal, with two exceptions:
//!
//! * another process of the job, or `tonnage run`, had sent it a signal that ends processes: a server ends its workers
//!   so, and a launcher the other ranks. Signals of the program `timeout` do not count: a job that hangs ends so;
//! * a later process took its place and did not fail: one of the same rank, or, without ranks, of the same program.
//!   Elastic launchers restart ranks. After a failure for want of GPU memory its arguments must be the same, too: a
//!   sweep over batch sizes does not fit if one of its runs does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::SystemTime;

use tonnage_analysis::verdict::FailedProcess;
use tonnage_capture::endings::{ENDINGS_FILE, Fact, Line, MOST_BYTES};

use crate::observer::Ending;

/// Signals that request the end of a process, or end it: HUP, INT, QUIT, KILL, TERM.
const ENDING_SIGNALS: [i32; 5] = [1, 2, 3, 9, 15];

/// An argument of each process that Python's `multiprocessing` starts.
const SPAWNED: &str = "--multiprocessing-fork";

/// How soon a process ends that a signal ends, in nanoseconds.
const SOON: u64 = 30_000_000_000;

/// A process that left a log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Its process id.
    pub(crate) process: i32,
    /// Its number in the recording, if it has rows there.
    pub(crate) number: Option<u32>,
    /// Its rank, as its environment or `torch.distributed` has it.
    pub(crate) rank: Option<u32>,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// When its log begins, in nanoseconds since 1970.
    pub(crate) started: u64,
    /// Whether it took GPU memory beyond a context.
    pub(crate) used_memory: bool,
    /// Whether the last GPU memory that it requested was refused.
    pub(crate) refused: bool,
    /// Whether it failed because it got no GPU memory, if it failed.
    pub(crate) out_of_memory: bool,
}

impl Seen {
    /// The program, without what differs between two tries of it.
    fn program(&self) -> (&str, &str) {
        let mut arguments = self.arguments.iter().map(String::as_str);
        let first = arguments.next().unwrap_or_default();
        if self.arguments.iter().any(|word| word == SPAWNED) {
            return (first, SPAWNED);
        }
        let script = arguments.find(|word| !word.starts_with('-'));
        (first, script.unwrap_or_default())
    }

    /// Whether both were started in the same way. Python starts each process of `multiprocessing` with other numbers.
    fn is_same_job(&self, other: &Self) -> bool {
        let program = self.program();
        program == other.program() && (program.1 == SPAWNED || self.arguments == other.arguments)
    }
}

/// Which run of a program with several a process is, and how many there are; `None` if all are the same job.
fn count_runs(one: &Seen, seen: &[Seen]) -> Option<(u32, u32)> {
    let runs = || {
        seen.iter()
            .filter(|other| other.used_memory && other.program() == one.program())
    };
    if runs().all(|other| other.is_same_job(one)) {
        return None;
    }
    let earlier = runs().filter(|other| other.started < one.started).count();
    Some((earlier as u32 + 1, runs().count() as u32))
}

/// Reads what was recorded in the folder of a run.
pub(crate) fn read(folder: &Path) -> Vec<Line> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(folder.join(ENDINGS_FILE)) {
        // A longer file was not written by us.
        let _ = file.take(MOST_BYTES).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<Line> = text.lines().filter_map(Line::parse).collect();
    lines.sort_by_key(|line| line.time);
    lines
}

/// Records what `tonnage run` itself did or saw. Without it the rest of the run goes on.
pub(crate) fn write(folder: &Path, process: u32, fact: Fact) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let line = Line {
        process: process.cast_signed(),
        time: since.map_or(0, |since| since.as_nanos() as u64),
        fact,
    };
    let file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(folder.join(ENDINGS_FILE));
    if let Ok(mut file) = file {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// A process that ended badly.
struct Ended<'a> {
    line: &'a Line,
    seen: Option<&'a Seen>,
    rank: Option<u32>,
}

/// The processes that failed, in the order in which they ended.
pub(crate) fn failures(lines: &[Line], seen: &[Seen]) -> Vec<FailedProcess> {
    let started_as: BTreeMap<i32, u32> = lines
        .iter()
        .filter_map(|line| match line.fact {
            Fact::Rank(rank) => Some((line.process, rank)),
            _ => None,
        })
        .collect();
    let mut known = BTreeSet::new();
    let ended: Vec<Ended<'_>> = lines
        .iter()
        .filter(|line| matches!(line.fact, Fact::Exit { .. } | Fact::Died(_)))
        .filter(|line| !was_ended(lines, line) && known.insert(line.process))
        .filter_map(|line| {
            // A process id may have been that of another before.
            let before = |seen: &&Seen| seen.process == line.process && seen.started <= line.time;
            let seen = seen.iter().filter(before).max_by_key(|seen| seen.started);
            let own_rank = started_as.get(&line.process).copied();
            let rank = own_rank.or_else(|| seen.and_then(|seen| seen.rank));
            // Processes that a rank starts inherit its number.
            let is_helper = |rank| started_as.values().any(|&other| other == rank);
            let counts = own_rank.is_some()
                || seen.is_some_and(|seen| seen.used_memory)
                || rank.is_some_and(|rank| !is_helper(rank));
            counts.then_some(Ended { line, seen, rank })
        })
        .collect();
    let failed: BTreeSet<i32> = ended.iter().map(|ended| ended.line.process).collect();
    let is_made_good = |ended: &&Ended<'_>| {
        // After any other failure, other arguments may be what makes the next try succeed.
        let is_other_job = |one: &Seen| {
            let failed = ended.seen.filter(|failed| failed.out_of_memory);
            failed.is_some_and(|failed| !failed.is_same_job(one))
        };
        let later_rank = lines.iter().any(|line| {
            let mut of_it = seen.iter().filter(|one| one.process == line.process);
            line.time > ended.line.time
                && ended.rank.is_some_and(|rank| line.fact == Fact::Rank(rank))
                && !failed.contains(&line.process)
                && !of_it.any(is_other_job)
        });
        let later = seen.iter().any(|one| {
            let same = match (ended.rank, ended.seen) {
                (Some(rank), _) => one.rank == Some(rank),
                (None, Some(seen)) => one.program() == seen.program(),
                (None, None) => false,
            };
            same && !is_other_job(one)
                && one.started > ended.line.time
                && !failed.contains(&one.process)
        });
        later_rank || later
    };
    ended
        .iter()
        .filter(|ended| !is_made_good(ended))
        .map(|ended| (ended, ended.seen.and_then(|one| count_runs(one, seen))))
        .map(|(ended, runs)| FailedProcess {
            process: ended.seen.and_then(|seen| seen.number),
            rank: ended.rank,
            ending: match ended.line.fact {
                Fact::Exit { code, .. } => Ending::Exit(code),
                Fact::Died(signal) => Ending::Signal(signal),
                Fact::Rank(_) | Fact::Sent { .. } => Ending::Unknown,
            }
            .to_string(),
            command: ended
                .seen
                .map_or_else(String::new, |seen| seen.arguments.join(" ")),
            process_id: ended.line.process.unsigned_abs(),
            out_of_memory: ended.seen.is_some_and(|seen| seen.out_of_memory),
            run: runs.map(|(run, _)| run),
            runs: runs.map(|(_, runs)| runs),
        })
        .collect()
}

/// Whether a process of the job, or `tonnage run`, sent the signal that a process ended by or after.
fn was_ended(lines: &[Line], end: &Line) -> bool {
    let earlier = lines.iter().filter(|line| line.time <= end.time);
    earlier
        .filter(|line| reaches(line, end))
        .any(|line| match (line.fact, end.fact) {
            (Fact::Sent { from, .. }, _) if from == end.process => false,
            (Fact::Sent { signal, .. }, Fact::Died(died)) => signal == died,
            (Fact::Sent { signal, .. }, _) => ENDING_SIGNALS.contains(&signal),
            _ => false,
        })
}

/// Whether a signal that was sent to one process, or to a group, reached the process that ended.
fn reaches(sent: &Line, end: &Line) -> bool {
    match (sent.process, end.fact) {
        (1.., _) => sent.process == end.process,
        (-1, _) => true,
        (_, Fact::Exit { group, .. }) if group != 0 => sent.process == -group,
        // The group of a process that a signal ended is not known.
        _ => end.time.saturating_sub(sent.time) <= SOON,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        text.lines()
            .map(|line| Line::parse(line.trim()).expect("a line"))
            .collect()
    }

    fn make_seen(process: i32, rank: Option<u32>, started: u64) -> Seen {
        Seen {
            process,
            number: Some(process.unsigned_abs() - 10),
            rank,
            arguments: ["python", "train.py"].map(str::to_owned).to_vec(),
            started,
            used_memory: true,
            refused: false,
            out_of_memory: false,
        }
    }

    fn named(lines: &[Line], seen: &[Seen]) -> Vec<(Option<u32>, String)> {
        let failed = failures(lines, seen).into_iter();
        failed.map(|one| (one.rank, one.ending)).collect()
    }

    #[test]
    fn ranks_and_processes_that_took_memory_count() {
        let all =
            lines("10 1 rank 0 0\n11 1 rank 1 0\n12 4 exit 3 0\n11 5 exit 3 0\n13 6 died 11 0");
        assert_eq!(
            named(&all, &[make_seen(13, None, 2)]),
            [
                (Some(1), "exit 3".to_owned()),
                (None, "signal 11".to_owned())
            ],
            "process 12 is neither a rank nor has it used a GPU"
        );
        // It raised and knows its rank, but another process was started as that rank: a helper of it.
        let mut helper = make_seen(12, Some(1), 2);
        helper.used_memory = false;
        assert_eq!(named(&all[..3], std::slice::from_ref(&helper)), []);
        assert_eq!(named(&lines("12 4 exit 3 0"), &[helper]).len(), 1);
    }

    #[test]
    fn processes_that_the_job_ended_have_not_failed() {
        let ranks = [make_seen(10, Some(0), 1), make_seen(11, Some(1), 1)];
        assert_eq!(named(&lines("11 3 sent 15 10\n11 4 died 15 0"), &ranks), []);
        assert_eq!(
            named(&lines("11 3 sent 15 10\n11 4 exit 143 0"), &ranks),
            []
        );
        assert_eq!(named(&lines("-9 3 sent 9 10\n11 4 died 9 0"), &ranks), []);
        for group in [-9, -1] {
            let text = format!("{group} 3 sent 15 10\n11 4 exit 1 9");
            assert_eq!(named(&lines(&text), &ranks), [], "{text}");
        }
        // It sent the signal itself, got another one, or got it too late.
        for text in [
            "11 3 sent 9 11\n11 4 died 9 0",
            "11 3 sent 10 10\n11 4 exit 1 0",
            "11 3 sent 15 10\n11 4 died 11 0",
            "11 3 died 15 0\n11 4 sent 15 10",
            // Another group, as that of a helper.
            "-8 3 sent 15 10\n11 4 exit 1 9",
            "-8 3 sent 9 10\n11 60000000000 died 9 0",
        ] {
            assert_eq!(named(&lines(text), &ranks).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_later_process_makes_good_for_one_that_failed() {
        let end = lines("11 4 exit 1 0");
        assert_eq!(
            named(
                &end,
                &[make_seen(11, Some(1), 1), make_seen(12, Some(1), 5)]
            ),
            []
        );
        assert_eq!(
            named(&end, &[make_seen(11, None, 1), make_seen(12, None, 5)]),
            []
        );
        // Another rank, one that ran at the same time, one that failed as well, another program.
        assert_eq!(
            named(
                &end,
                &[make_seen(11, Some(1), 1), make_seen(12, Some(0), 5)]
            )
            .len(),
            1
        );
        assert_eq!(
            named(&end, &[make_seen(11, None, 1), make_seen(12, None, 2)]).len(),
            1
        );
        let both = lines("11 4 exit 1 0\n12 6 exit 1 0");
        assert_eq!(
            named(
                &both,
                &[make_seen(11, Some(1), 1), make_seen(12, Some(1), 5)]
            )
            .len(),
            2
        );
        let mut other = make_seen(12, None, 5);
        other.arguments[1] = "evaluate.py".to_owned();
        assert_eq!(named(&end, &[make_seen(11, None, 1), other]).len(), 1);
    }

    #[test]
    fn only_the_same_job_makes_good_for_an_out_of_memory() {
        let end = lines("11 4 exit 1 0");
        let tries = |words: [&str; 2], rank| {
            let mut tries = [make_seen(11, rank, 1), make_seen(12, rank, 5)];
            for (one, word) in tries.iter_mut().zip(words) {
                one.arguments.push(word.to_owned());
            }
            tries[0].out_of_memory = true;
            tries
        };
        for rank in [None, Some(1)] {
            assert_eq!(named(&end, &tries(["64", "64"], rank)), []);
            let failed = failures(&end, &tries(["64", "32"], rank));
            assert_eq!(failed.len(), 1);
            assert!(failed[0].out_of_memory);
            assert_eq!((failed[0].run, failed[0].runs), (Some(1), Some(2)));
            // Numbers of pipes differ, and the job does not.
            let mut spawned = tries(["pipe_handle=5", "pipe_handle=7"], rank);
            for one in &mut spawned {
                one.arguments.push(SPAWNED.to_owned());
            }
            assert_eq!(named(&end, &spawned), []);
        }
        let again = lines("11 4 exit 1 0\n12 5 rank 1 0");
        assert_eq!(named(&again, &tries(["64", "32"], Some(1))).len(), 1);
    }

    #[test]
    fn a_file_that_was_tampered_with_is_read_as_far_as_it_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(
            folder.path().join(ENDINGS_FILE),
            b"\xff x\n1 2 exit 3 0\n1 2 exit\n",
        )
        .expect("written");
        assert_eq!(read(folder.path()).len(), 1);
        write(folder.path(), 7, Fact::Died(9));
        assert_eq!(read(folder.path()).len(), 2);
    }
}
