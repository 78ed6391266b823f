// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a rank waits for another, and what is done if it would wait forever.
//!
//! A rank that waits for longer reports it in a file of the run's folder, so that each can
//! follow which rank waits for which. Nothing can go on if that leads in a circle, or to
//! a process that has ended. It is concluded only after a while in which
//! nothing changed and no other thread of those processes had anything to do.
//! Then every rank that waits reports what it waits for, and its process ends: a
//! GPU would hang here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tonnage_capture::note::{Called, Deadlock, DeadlockCause, Note};

use super::order::{Operation, Wait};
use super::records::{Call, Kind, Owner};
use super::{Place, Seat};
use crate::{ending, ledger, recorder};

/// A wait that lasts this long is reported to the others.
const TOLD_AFTER: Duration = Duration::from_millis(300);
/// The time between two reads of the waits of all ranks.
const LOOK: Duration = Duration::from_millis(250);
/// How long nothing may have changed before it is concluded that nothing will.
const STABLE: Duration = Duration::from_secs(3);
/// The same where the rank that is waited for has not been seen yet: it may still be importing.
const STABLE_UNSEEN: Duration = Duration::from_mins(1);
/// Looks at which a thread was about to run that make a process busy.
const BUSY_LOOKS: u32 = 4;

/// The outcome of a wait that cannot end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The host of a GPU would not wait here: then what arrives is unknown.
    Soft,
    /// The host of a GPU would wait here, too: the ranks wait for each other forever.
    Firm,
}

/// A rank that has yet to call, or that has called something else.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    /// The communicator, and the rank in it that waits.
    pub(crate) seat: Seat,
    /// How many ranks the communicator has.
    pub(crate) ranks: usize,
    /// The rank that is waited for.
    pub(crate) peer: usize,
    /// Its process, if it has opened the communicator.
    pub(crate) owner: Option<Owner>,
    /// The call of the waiting rank.
    pub(crate) call: Call,
    /// The call that the other rank has made instead.
    pub(crate) instead: Option<Call>,
}

/// A wait, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    process: u64,
    thread: i32,
    communicator: u64,
    rank: usize,
    peer: usize,
    /// The process that is waited for.
    target: Option<u64>,
    kind: String,
    number: u64,
    firm: bool,
}

fn describe_call(operation: String, place: &Place) -> Called {
    Called {
        operation,
        file: place.file.clone(),
        line: place.line,
    }
}

/// One wait.
pub(crate) struct Waiter {
    patience: Patience,
    since: Instant,
    looked: Instant,
    told: Option<(PathBuf, Told)>,
    /// The chain of waits at the last look, since when, and how often each process was busy since.
    chain: Vec<Told>,
    unchanged_since: Instant,
    busy: u32,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some((path, _)) = self.told.take() {
            let _ = fs::remove_file(path);
        }
    }
}

impl Waiter {
    pub(crate) fn new(patience: Patience) -> Self {
        let now = Instant::now();
        Self {
            patience,
            since: now,
            looked: now,
            told: None,
            chain: Vec::new(),
            unchanged_since: now,
            busy: 0,
        }
    }

    /// Waits a little; whether to go on. Ends the process if it would wait forever.
    pub(crate) fn wait(&mut self, missing: &Missing) -> bool {
        if missing.instead.is_some() {
            end_for(missing);
        }
        let waited = self.since.elapsed();
        let pause = match waited.as_millis() {
            0 => Duration::from_micros(20),
            1..=100 => Duration::from_millis(1),
            101..=1000 => Duration::from_millis(5),
            _ => Duration::from_millis(20),
        };
        std::thread::sleep(pause);
        if waited > TOLD_AFTER && self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            return self.check_wait(missing);
        }
        true
    }

    /// Looks whether the wait can end; whether to go on.
    fn check_wait(&mut self, missing: &Missing) -> bool {
        let Some(folder) = ledger::folder() else {
            return true;
        };
        let Some(me) = self.tell(&folder, missing) else {
            return true;
        };
        if folder.join(ENDING).exists() {
            // Others have found that nothing can go on, and this rank waits as well.
            end_for(missing);
        }
        let (chain, closed) = follow(&me, &waits(&folder));
        if !closed || chain != self.chain {
            self.chain = chain;
            self.unchanged_since = Instant::now();
            self.busy = 0;
            return true;
        }
        let unseen = chain.iter().any(|told| told.target.is_none());
        self.busy += u32::from(is_busy(&chain, unseen.then_some(&folder)));
        if self.busy >= BUSY_LOOKS {
            self.unchanged_since = Instant::now();
            self.busy = 0;
        }
        let stable = if unseen { STABLE_UNSEEN } else { STABLE };
        if self.unchanged_since.elapsed() < stable {
            return true;
        }
        if self.patience == Patience::Soft {
            return false;
        }
        if chain.iter().all(|told| told.firm) {
            end_for(missing);
        }
        true
    }

    /// Publishes to the others what is waited for.
    fn tell(&mut self, folder: &Path, missing: &Missing) -> Option<Told> {
        // SAFETY: queries the number of this thread.
        let thread = unsafe { libc::gettid() };
        let process = ledger::ledger()?.number()?;
        let told = Told {
            process,
            thread,
            communicator: missing.seat.0,
            rank: missing.seat.1,
            peer: missing.peer,
            target: missing.owner.map(|owner| owner.number),
            kind: missing.call.kind.name().to_owned(),
            number: missing.call.number,
            firm: self.patience == Patience::Firm,
        };
        if self.told.as_ref().is_none_or(|(_, before)| *before != told) {
            let path = folder.join(format!("{WAIT_PREFIX}{process}-{thread}"));
            // Written under another name first, so that no one reads half of it.
            let draft = folder.join(format!("draft-{process}-{thread}"));
            fs::write(&draft, serde_json::to_vec(&told).ok()?).ok()?;
            fs::rename(&draft, &path).ok()?;
            self.told = Some((path, told.clone()));
        }
        Some(told)
    }
}

const WAIT_PREFIX: &str = "nccl-wait-";
/// Set by the first who finds that nothing can go on.
const ENDING: &str = "nccl-deadlock";

/// All waits of the run.
fn waits(folder: &Path) -> Vec<Told> {
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut waits: Vec<Told> = files
        .filter_map(|file| {
            let file = file.ok()?;
            let name = file.file_name();
            let name = name.to_str()?;
            if !name.starts_with(WAIT_PREFIX) {
                return None;
            }
            serde_json::from_slice(&fs::read(file.path()).ok()?).ok()
        })
        .collect();
    waits.sort_by_key(|told| (told.process, told.thread));
    waits
}

fn is_alive(process: u64) -> bool {
    ledger::ledger().is_none_or(|ledger| ledger.is_there(process))
}

/// Which rank waits for which from `first` on, and whether that leads in a circle or to a rank that will not come.
fn follow(first: &Told, waits: &[Told]) -> (Vec<Told>, bool) {
    let mut chain = vec![first.clone()];
    loop {
        let last = &chain[chain.len() - 1];
        let Some(target) = last.target else {
            return (chain, true);
        };
        if chain.iter().any(|told| told.process == target) || !is_alive(target) {
            return (chain, true);
        }
        let Some(next) = waits.iter().find(|told| told.process == target) else {
            return (chain, false);
        };
        chain.push(next.clone());
    }
}

/// Why the rank that is waited for does not come.
fn why(missing: &Missing) -> DeadlockCause {
    if missing.instead.is_some() {
        return DeadlockCause::Differs;
    }
    match missing.owner {
        None => DeadlockCause::Absent,
        Some(owner) if !is_alive(owner.number) => DeadlockCause::Ended,
        Some(_) => DeadlockCause::Waits,
    }
}

/// Whether a thread is about to run in one of these processes, other than those that wait; in any of the run's, if its
/// `folder` is given.
fn is_busy(chain: &[Told], folder: Option<&PathBuf>) -> bool {
    let waiting: Vec<i32> = chain.iter().map(|told| told.thread).collect();
    let pid = |told: &Told| ledger::ledger()?.pid(told.process);
    let processes: Vec<u32> = folder.map_or_else(
        || chain.iter().filter_map(pid).collect(),
        |folder| processes_of(folder),
    );
    processes.into_iter().any(|process| {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
            return false;
        };
        threads.filter_map(Result::ok).any(|thread| {
            let name = thread.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let runs = || {
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                // The state follows the name, which may hold anything.
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('R'))
            };
            number.is_some_and(|number| !waiting.contains(&number)) && runs()
        })
    })
}

/// The processes of the run with this folder.
fn processes_of(folder: &Path) -> Vec<u32> {
    let variable = format!("{}={}", tonnage_capture::RUN_VARIABLE, folder.display());
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let numbers = entries.filter_map(Result::ok).filter_map(number);
    numbers
        .filter(|process| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            let mut variables = environment.split(|&byte| byte == 0);
            variables.any(|one| one == variable.as_bytes())
        })
        .collect()
}

/// Reports what this rank waits for in vain, and ends the process.
pub(crate) fn end_for(missing: &Missing) -> ! {
    let (communicator, rank) = missing.seat;
    // As the script counts its ranks, where that is known.
    let own = super::world_rank().unwrap_or(rank as i64);
    let other = missing.owner.and_then(|owner| owner.world_rank);
    recorder::remark_note(&Note::Deadlock(Box::new(Deadlock {
        rank: own,
        communicator: format!("{communicator:016x}"),
        ranks: missing.ranks,
        operation: missing.call.kind.name().to_owned(),
        number: missing.call.number + 1,
        file: missing.call.place.file.clone(),
        line: missing.call.place.line,
        waits_for: other.unwrap_or(missing.peer as i64),
        why: why(missing),
        instead: missing
            .instead
            .as_ref()
            .map(|call| describe_call(call.describe(), &call.place)),
        called: None,
        behind: None,
    })));
    end()
}

/// Reports what ranks wait for in a circle, for all of them, and ends the process.
pub(crate) fn end_in_circle(circle: &[Wait]) -> ! {
    for wait in circle {
        let Wait {
            operation,
            other,
            behind,
        } = wait;
        let side = |one: &Operation| describe_call(one.kind.name().to_owned(), &one.place);
        recorder::remark_note(&Note::Deadlock(Box::new(Deadlock {
            rank: operation.world_rank,
            communicator: format!("{:016x}", operation.communicator),
            ranks: operation.ranks,
            operation: operation.kind.name().to_owned(),
            number: operation.number + 1,
            file: operation.place.file.clone(),
            line: operation.place.line,
            waits_for: other.world_rank,
            why: DeadlockCause::Behind,
            instead: None,
            called: Some(side(other)),
            behind: Some(side(behind)),
        })));
    }
    end()
}

/// Ends the process, the first of those that cannot go on a little later than the others.
fn end() -> ! {
    if let Some(folder) = ledger::folder() {
        let first = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(folder.join(ENDING));
        if first.is_ok() {
            // The others report what they wait for before they see that this process has ended.
            std::thread::sleep(LOOK * 4);
        }
    }
    ending::end(2)
}

impl Call {
    /// The call, with enough detail to distinguish it from a similar one.
    pub(crate) fn describe(&self) -> String {
        let unit = if self.count == 1 {
            "element"
        } else {
            "elements"
        };
        let elements = format!("{} of {} {unit}", self.kind.name(), self.count);
        match self.kind {
            Kind::Broadcast | Kind::Scatter => format!("{elements} from rank {}", self.root),
            Kind::Reduce | Kind::Gather => format!("{elements} to rank {}", self.root),
            Kind::Split => self.kind.name().to_owned(),
            _ => elements,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_is_a_sum_of_one_element() {
        let mut call = Call {
            kind: Kind::AllReduce,
            number: 0,
            count: 1,
            data_type: 0,
            operator: 0,
            root: -1,
            place: super::super::Place::default(),
        };
        assert_eq!(call.describe(), "all_reduce of 1 element");
        call.count = 4;
        assert_eq!(call.describe(), "all_reduce of 4 elements");
    }

    fn make_wait(process: u64, target: Option<u64>) -> Told {
        Told {
            process,
            thread: process as i32,
            communicator: 1,
            rank: process as usize,
            peer: 0,
            target,
            kind: "all_reduce".to_owned(),
            number: 0,
            firm: true,
        }
    }

    #[test]
    fn a_circle_of_waits_is_found() {
        // There is no ledger here, so all are taken for alive.
        let waits = [
            make_wait(0, Some(1)),
            make_wait(1, Some(2)),
            make_wait(2, Some(1)),
            make_wait(3, Some(4)),
        ];
        assert!(
            follow(&waits[0], &waits).1,
            "0 waits for two that wait for each other"
        );
        assert!(!follow(&waits[3], &waits).1, "4 does not wait");
        assert!(follow(&make_wait(5, None), &waits).1, "nobody is that rank");
        assert_eq!(follow(&waits[0], &waits).0.len(), 3);
    }
}
