// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which order GPUs carry out what ranks exchange, and whether ranks wait in a circle because of it.
//!
//! An operation of a stream begins once those before it are complete, and is
//! complete once the other ranks' sides of it have begun. The host goes on
//! meanwhile. So each rank may have called everything, and all wait forever:
//! two that both receive before they send. A process writes to a file of the run's
//! folder behind what each of its operations is, before another process can find the
//! operation itself. Where the host waits for the GPU it looks whether that leads
//! in a circle. The caller last can see all of it.
//!
//! A send is taken to end without its receiver: NCCL has buffers, and how much
//! they take depends on the machine.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{Read as _, Result, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::records::{Kind, append};
use super::{Place, sources};
use crate::ffi::Ptr;

/// How many operations of a process are kept. Earlier operations are taken to be complete.
const KEPT: usize = 1 << 12;

const PREFIX: &str = "nccl-order-";

/// An operation of a rank, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) communicator: u64,
    /// The rank in the communicator, and how many it has.
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// The rank as the script counts them.
    pub(crate) world_rank: i64,
    pub(crate) kind: Kind,
    /// The root, or the other rank.
    pub(crate) root: i32,
    pub(crate) number: u64,
    pub(crate) place: Place,
}

/// Communicator and rank, the peer that a message is sent to or received from, and the number.
type Key = (u64, usize, Side, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Together,
    Send(i32),
    Receive(i32),
}

impl Operation {
    fn key(&self) -> Key {
        let side = match self.kind {
            Kind::Send => Side::Send(self.root),
            Kind::Receive => Side::Receive(self.root),
            _ => Side::Together,
        };
        (self.communicator, self.rank, side, self.number)
    }

    /// The operations that other ranks must have begun for it to be complete.
    fn other_sides(&self) -> Vec<Key> {
        let side = match self.kind {
            Kind::Receive => Side::Send(self.rank as i32),
            _ => Side::Together,
        };
        let peers = sources(self.kind, self.rank, self.ranks, self.root);
        let each = peers.into_iter();
        each.map(|peer| (self.communicator, peer, side, self.number))
            .collect()
    }
}

/// An operation, and those that come right before it on its stream.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    operation: Operation,
    after: Vec<Operation>,
}

/// The last operations of a stream, or those that an event comes after, by their order in this process.
type Last = BTreeMap<u64, Arc<Operation>>;

/// A rank that waits in a circle.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The operation that it waits in.
    pub(crate) operation: Operation,
    /// The side of the rank that it waits for.
    pub(crate) other: Operation,
    /// The operation that the GPU of that rank waits in first.
    pub(crate) behind: Operation,
}

/// The file of a process, as far as it was read.
#[derive(Default)]
struct Read {
    length: u64,
    keys: VecDeque<Key>,
}

#[derive(Default)]
pub(super) struct Order {
    streams: BTreeMap<Ptr, Last>,
    events: BTreeMap<Ptr, Last>,
    issued: u64,
    written: u64,
    /// Operations that are issued together have the same before them.
    group: u64,
    before_group: BTreeMap<Ptr, Last>,
    /// Own operations that are behind others, since the last look.
    unchecked: Vec<Operation>,
    read: BTreeMap<PathBuf, Read>,
    entries: HashMap<Key, Entry>,
}

impl Order {
    pub(super) const fn is_checked(&self) -> bool {
        self.unchecked.is_empty()
    }

    /// An operation is issued by this process, which has this number in the run.
    pub(super) fn issue(
        &mut self,
        (folder, process): (&Path, u64),
        stream: Ptr,
        operation: Operation,
        group: u64,
    ) -> Result<()> {
        if self.group != group {
            self.group = group;
            self.before_group.clear();
        }
        let last = self.streams.entry(stream).or_default();
        let before = self.before_group.entry(stream);
        let before = before.or_insert_with(|| std::mem::take(last));
        last.insert(self.issued, Arc::new(operation.clone()));
        self.issued += 1;
        if before.is_empty() {
            return Ok(());
        }
        let entry = Entry {
            after: before.values().map(|one| (**one).clone()).collect(),
            operation,
        };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        let path = folder.join(format!("{PREFIX}{process}"));
        append(&path, self.written, &line)?;
        self.written += line.len() as u64;
        self.unchecked.push(entry.operation);
        Ok(())
    }

    pub(super) fn record(&mut self, event: Ptr, stream: Ptr) {
        match self.streams.get(&stream) {
            Some(last) => self.events.insert(event, last.clone()),
            None => self.events.remove(&event),
        };
    }

    pub(super) fn follow(&mut self, stream: Ptr, event: Ptr) {
        if let Some(last) = self.events.get(&event) {
            let all = last.iter().map(|(&id, one)| (id, Arc::clone(one)));
            self.streams.entry(stream).or_default().extend(all);
        }
    }

    pub(super) fn forget_event(&mut self, event: Ptr) {
        self.events.remove(&event);
    }

    /// The host has waited for a stream.
    pub(super) fn finish_stream(&mut self, stream: Ptr) {
        let done = self.streams.remove(&stream).unwrap_or_default();
        self.finish(&done);
    }

    pub(super) fn finish_event(&mut self, event: Ptr) {
        let done = self.events.remove(&event).unwrap_or_default();
        self.finish(&done);
    }

    pub(super) fn finish_all(&mut self) {
        self.streams.clear();
        self.events.clear();
    }

    fn finish(&mut self, done: &Last) {
        let each = self.streams.values_mut().chain(self.events.values_mut());
        each.for_each(|last| last.retain(|id, _| !done.contains_key(id)));
        self.streams.retain(|_, last| !last.is_empty());
        self.events.retain(|_, last| !last.is_empty());
    }

    /// Ranks that wait in a circle of which this process is one.
    pub(super) fn circle(&mut self, folder: &Path) -> Option<Vec<Wait>> {
        let unchecked = std::mem::take(&mut self.unchecked);
        self.read_on(folder).ok()?;
        let mut done = HashSet::new();
        let mut starts = unchecked.into_iter();
        starts.find_map(|start| find_circle(&self.entries, start, &mut done))
    }

    /// Reads what processes have written since.
    fn read_on(&mut self, folder: &Path) -> Result<()> {
        for file in fs::read_dir(folder)? {
            let file = file?;
            let is_order = file.file_name().to_str().map(|it| it.starts_with(PREFIX));
            if is_order != Some(true) {
                continue;
            }
            let read = self.read.entry(file.path()).or_default();
            let mut bytes = Vec::new();
            let mut file = File::open(file.path())?;
            file.seek(SeekFrom::Start(read.length))?;
            file.read_to_end(&mut bytes)?;
            // A line may not be whole yet.
            for line in bytes.split_inclusive(|&byte| byte == b'\n') {
                if line.last() != Some(&b'\n') {
                    break;
                }
                read.length += line.len() as u64;
                let Ok(entry) = serde_json::from_slice::<Entry>(line) else {
                    continue;
                };
                let key = entry.operation.key();
                self.entries.insert(key, entry);
                read.keys.push_back(key);
                if read.keys.len() > KEPT
                    && let Some(oldest) = read.keys.pop_front()
                {
                    self.entries.remove(&oldest);
                }
            }
        }
        Ok(())
    }
}

/// The operation that must be complete before another one is, and the needed side of another rank; none for its own
/// stream.
struct Need {
    operation: Operation,
    by: Option<Key>,
}

fn needs(entries: &HashMap<Key, Entry>, operation: &Operation) -> Vec<Need> {
    let of = |key: Key, by: Option<Key>| {
        let after = entries.get(&key).into_iter().flat_map(|it| &it.after);
        after.map(move |before| Need {
            operation: before.clone(),
            by,
        })
    };
    let sides = operation.other_sides().into_iter();
    of(operation.key(), None)
        .chain(sides.flat_map(|side| of(side, Some(side))))
        .collect()
}

/// A circle that can be reached from an operation; `done` has those from which none can.
fn find_circle(
    entries: &HashMap<Key, Entry>,
    start: Operation,
    done: &mut HashSet<Key>,
) -> Option<Vec<Wait>> {
    struct Step {
        operation: Operation,
        needs: Vec<Need>,
        at: usize,
    }
    let step = |operation: Operation| Step {
        needs: needs(entries, &operation),
        operation,
        at: 0,
    };
    let mut on_path = HashSet::from([start.key()]);
    let mut path = vec![step(start)];
    while let Some(last) = path.last_mut() {
        let Some(need) = last.needs.get(last.at) else {
            let key = last.operation.key();
            on_path.remove(&key);
            done.insert(key);
            path.pop();
            continue;
        };
        let (next, key) = (need.operation.clone(), need.operation.key());
        last.at += 1;
        if on_path.contains(&key) {
            let from = path.iter().position(|step| step.operation.key() == key)?;
            let circle = path[from..].iter().filter_map(|step| {
                let need = &step.needs[step.at - 1];
                Some(Wait {
                    operation: step.operation.clone(),
                    other: entries.get(&need.by?)?.operation.clone(),
                    behind: need.operation.clone(),
                })
            });
            return Some(circle.collect());
        }
        if !done.contains(&key) {
            on_path.insert(key);
            path.push(step(next));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Kind, rank: usize, other: usize) -> Operation {
        Operation {
            communicator: 1,
            rank,
            ranks: 3,
            world_rank: rank as i64,
            kind,
            root: other as i32,
            number: 0,
            place: Place {
                file: "ring.py".to_owned(),
                line: if kind == Kind::Send { 2 } else { 1 },
            },
        }
    }

    /// Each rank issues its operations on one stream; the circle that the last one finds.
    fn ring(folder: &Path, ranks: &[&[Operation]]) -> Option<Vec<Wait>> {
        let mut found = None;
        for (process, operations) in ranks.iter().enumerate() {
            let mut order = Order::default();
            for (group, operation) in operations.iter().enumerate() {
                let at = (folder, process as u64);
                let group = group as u64 + 1;
                order.issue(at, Ptr(7), operation.clone(), group).unwrap();
            }
            found = order.circle(folder);
        }
        found
    }

    #[test]
    fn ranks_that_all_receive_first_wait_in_a_circle() {
        let folder = tempfile::tempdir().unwrap();
        let both = |rank: usize| {
            [
                message(Kind::Receive, rank, (rank + 2) % 3),
                message(Kind::Send, rank, (rank + 1) % 3),
            ]
        };
        let ranks = [both(0), both(1), both(2)];
        let circle = ring(folder.path(), &ranks.each_ref().map(<[_; 2]>::as_slice)).unwrap();
        let mut waits: Vec<_> = circle
            .iter()
            .map(|wait| (wait.operation.rank, wait.other.rank, wait.behind.rank))
            .collect();
        waits.sort_unstable();
        assert_eq!(waits, [(0, 2, 2), (1, 0, 0), (2, 1, 1)]);
        assert!(circle.iter().all(|wait| wait.operation.place.line == 1));
        assert!(circle.iter().all(|wait| wait.other.place.line == 2));
    }

    #[test]
    fn one_rank_that_sends_first_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let both = |rank: usize| {
            [
                message(Kind::Receive, rank, (rank + 2) % 3),
                message(Kind::Send, rank, (rank + 1) % 3),
            ]
        };
        let [receive, send] = both(1);
        let ranks = [both(0), [send, receive], both(2)];
        assert!(ring(folder.path(), &ranks.each_ref().map(<[_; 2]>::as_slice)).is_none());
    }

    #[test]
    fn what_is_issued_together_has_no_order() {
        let folder = tempfile::tempdir().unwrap();
        for rank in 0..2 {
            let mut order = Order::default();
            for kind in [Kind::Receive, Kind::Send] {
                let operation = message(kind, rank, 1 - rank);
                let at = (folder.path(), rank as u64);
                order.issue(at, Ptr(7), operation, 1).unwrap();
            }
            assert!(order.is_checked());
            assert!(order.circle(folder.path()).is_none());
        }
    }

    #[test]
    fn what_the_host_has_waited_for_is_before_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut order = Order::default();
        let at = (folder.path(), 0);
        let (receive, send) = (message(Kind::Receive, 0, 1), message(Kind::Send, 0, 1));
        order.issue(at, Ptr(7), receive, 1).unwrap();
        order.record(Ptr(9), Ptr(7));
        order.follow(Ptr(8), Ptr(9));
        order.finish_stream(Ptr(7));
        order.issue(at, Ptr(8), send.clone(), 2).unwrap();
        assert!(order.is_checked());
        order.issue(at, Ptr(8), send, 3).unwrap();
        assert!(!order.is_checked());
    }
}
