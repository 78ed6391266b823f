// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes one recording from the files that the processes of a dry run wrote.
//!
//! Three sources describe the same events. The blocks file has every block that torch's allocator handed out or took
//! back, complete up to the end of the process, and between them notes about the program: who owns a block, which
//! phase begins or ends. Torch's own history adds the requested size, the stream, the stack, and what happened inside
//! the allocator; it comes in pieces and may end before the process did. The log has the driver calls. They are joined
//! by addresses and order, which they have in common, never by their clocks: two runs of one script give the same rows
//! in the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use tonnage_analysis::verdict::{self, Costs, Place, ToldCosts, ToldValues, UnknownValues};
use tonnage_capture::blocks::{self, Block, Entry, Note as BlockNote, NoteKind};
use tonnage_capture::ledger::{DEVICES, DeviceWord, Ledger, PROCESSES, ProcessWord, SharedWord};
use tonnage_capture::log::{self, CallKind, DriverCall, LogError, Record, Start};
use tonnage_capture::note::{self, Exception, Failure, Limitation, Nccl, Note, Versions};
use tonnage_capture::sample::Sample;
use tonnage_capture::{LEDGER_FILE, LOG_PREFIX};
use tonnage_import::pytorch::Snapshot;
use tonnage_recording::facts;
use tonnage_recording::{Event, Kind, Uses, WriteError, Writer, meta};
use tonnage_text::named_from;
use tonnage_text::{count, plural};

use crate::endings::{self, Seen};
use crate::measured::{Machine, Measured, note_kind, note_row};
use crate::side_effects::SideEffects;

/// Why a recording could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CollectError {
    /// A file of the run cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The recording cannot be written.
    #[error("the recording cannot be written")]
    Write(#[from] WriteError),
}

/// How many entries of the blocks file are searched for a row of torch's history: as many as a history can lose
/// between two pieces.
const LOOK_AHEAD: usize = 1 << 17;
/// How many modules of kernels that were not compiled are named; the names are long.
const MOST_UNDONE_NAMED: usize = 3;

/// The code of notes that this version of tonnage does not know.
const UNREADABLE_NOTES: &str = "TN305";

/// The contents written to a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Processes that used a device.
    pub processes: u32,
    /// Rows written, without facts and frames.
    pub events: u64,
    /// The GPU of the first process, where it is a real one.
    pub machine: Option<Machine>,
}

/// A record of a log.
enum Logged<'log> {
    Note(Note),
    Record(Record<'log>),
}

/// The records of a process, with each note parsed once.
struct Log<'log> {
    records: Vec<Logged<'log>>,
    /// Notes that this version does not know.
    unreadable: u64,
    /// The end of a log that is corrupt.
    error: Option<LogError>,
}

impl<'log> Log<'log> {
    fn parse(bytes: &'log [u8]) -> Self {
        let mut log = Self {
            records: Vec::new(),
            unreadable: 0,
            error: None,
        };
        for record in log::read(bytes) {
            match record {
                Ok(Record::Note(json)) => match Note::parse(json) {
                    Some(note) => log.records.push(Logged::Note(note)),
                    None => log.unreadable += 1,
                },
                Ok(record) => log.records.push(Logged::Record(record)),
                Err(error) => log.error = Some(error),
            }
        }
        log
    }

    fn notes(&self) -> impl Iterator<Item = &Note> {
        self.records.iter().filter_map(|record| match record {
            Logged::Note(note) => Some(note),
            Logged::Record(_) => None,
        })
    }
}

/// An entry of the blocks file that no row was written for yet.
struct Queued {
    entry: Entry,
    /// Its number among the entries of its device, without those of uses.
    number: u32,
    /// The uses that stood before it.
    uses: Option<blocks::Uses>,
}

/// Memory that tonnage's allocator has mapped and that no row was written for yet.
#[derive(Clone, Copy)]
struct Mapped {
    device: u8,
    address: u64,
    size: u64,
    time: u64,
}

/// Writes what the processes of a run left in `folder` to `writer`.
///
/// ```
/// use tonnage_run::collect::collect;
/// use tonnage_recording::{Trace, Writer};
///
/// // A folder in which no process wrote anything gives a recording without events.
/// let folder = tempfile::tempdir()?;
/// let mut writer = Writer::new(Vec::new(), "example")?;
/// let collected = collect(folder.path(), &mut writer)?;
/// assert_eq!((collected.processes, collected.events), (0, 0));
/// assert!(Trace::read(writer.finish()?.as_slice())?.events.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn collect<W: Write>(folder: &Path, writer: &mut Writer<W>) -> Result<Collected, CollectError> {
    let mut logs = files(folder, LOG_PREFIX)?;
    logs.sort_by_key(|path| (number_of(path), path.clone()));
    let ledger = std::fs::read(folder.join(LEDGER_FILE))
        .ok()
        .and_then(|bytes| Ledger::from_bytes(&bytes));
    let mut collected = Collected::default();
    let mut losses = Losses::read_ledger(ledger.as_ref());
    let mut foreign = BTreeSet::new();
    let mut raised = Vec::new();
    // A log that cannot be read costs its own process, and no other.
    let mut broken = Vec::new();
    let mut seen = Vec::new();
    let mut side_effects = SideEffects::default();
    let mut failures = Vec::new();
    let mut limitations = BTreeSet::new();
    let mut unreadable = 0;
    for path in logs {
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                broken.push(format!("{}: {}", name_of(&path), with_cause(&error)));
                continue;
            }
        };
        let log = Log::parse(&bytes);
        unreadable += log.unreadable;
        side_effects.read(log.notes());
        // Also of a process that has no rows because its calls failed.
        for note in log.notes() {
            match note {
                Note::Foreign(user) => _ = foreign.insert(sort_keys(user).to_string()),
                Note::Limitation(one) => _ = limitations.insert(sort_keys(one).to_string()),
                _ => {}
            }
        }
        failures.extend(hook_failures(&log));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let blocks_name = name.replacen(LOG_PREFIX, blocks::PREFIX, 1);
        let blocks = std::fs::read(folder.join(blocks_name)).unwrap_or_default();
        let number = collected.processes;
        let mut process = Process::new(number, &path, &blocks, writer);
        process.loss = number_of(&path).and_then(|number| losses.take(number));
        let mut one = look_at(&log);
        let exceptions: Vec<Value> = (log.notes())
            .filter_map(|note| match note {
                Note::Exception(exception) => Some(sort_keys(exception)),
                _ => None,
            })
            .collect();
        if process.write(log, &mut collected, &mut broken)? {
            one.number = Some(number);
            collected.processes += 1;
        }
        raised.extend((exceptions.into_iter()).map(|exception| (one.clone(), exception)));
        seen.push(one);
    }
    let failed = endings::failures(&endings::read(folder), &seen);
    for failed in &failed {
        let text = serde_json::to_string(failed).unwrap_or_default();
        writer.meta(facts::RUN, facts::FAILED_PROCESS, &text)?;
    }
    // A script may fail before it uses a device. Where one was used, those that used it report how the job ended: the
    // others may have raised because of them, as a launcher or a server of notebooks does.
    if collected.processes == 0 {
        let has_failed = |one: &Seen| {
            let mut failed = failed.iter();
            failed.any(|failed| failed.process_id == one.process.unsigned_abs())
        };
        for (one, mut exception) in raised {
            // Others were ended because of those that failed.
            if says_another_failed(&exception) || (!failed.is_empty() && !has_failed(&one)) {
                continue;
            }
            exception["of_failed_process"] = has_failed(&one).into();
            if let Some(rank) = one.rank {
                exception["rank"] = rank.to_string().into();
            }
            writer.meta(facts::RUN, facts::EXCEPTION, &exception.to_string())?;
        }
    }
    if unreadable > 0 {
        let limitation = Limitation {
            code: UNREADABLE_NOTES.to_owned(),
            message: format!(
                "{}: a process wrote them, and this version of tonnage does not know them",
                plural(unreadable, "note of the recorder")
            ),
            affects_figures: false,
        };
        limitations.insert(sort_keys(&limitation).to_string());
    }
    for limitation in limitations {
        writer.meta(facts::RUN, facts::LIMITATION, &limitation)?;
    }
    for failure in failures {
        let text = serde_json::to_string(&failure).unwrap_or_default();
        writer.meta(facts::RUN, facts::HOOK_FAILURE, &text)?;
    }
    for user in foreign {
        writer.meta(facts::RUN, facts::FOREIGN, &user)?;
    }
    side_effects.write(writer)?;
    if let Some(ledger) = &ledger {
        write_run_facts(ledger, &losses, writer)?;
    }
    for (index, gap) in broken.iter().enumerate() {
        let name = format!("{}.log.{index}", meta::UNKNOWN);
        writer.meta(facts::RUN, &name, gap)?;
        writer.meta(facts::RUN, facts::INCOMPLETE, gap)?;
    }
    Ok(collected)
}

/// JSON with sorted keys, as facts have it.
fn sort_keys(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Identifies a process by its log.
fn look_at(log: &Log<'_>) -> Seen {
    let mut seen = Seen::default();
    let mut by_launcher = None;
    let mut raised = Vec::new();
    for record in &log.records {
        match record {
            Logged::Record(Record::Start(start)) => {
                seen.process = start.pid.cast_signed();
                seen.started = start.time;
                seen.arguments.clone_from(&start.arguments);
            }
            Logged::Record(Record::Call(call)) => {
                seen.used_memory |= call.kind != CallKind::Context;
                seen.refused = match call.kind {
                    CallKind::Refused => true,
                    CallKind::Malloc | CallKind::Create | CallKind::PoolMalloc => false,
                    _ => seen.refused,
                };
            }
            Logged::Note(Note::Versions(versions)) => {
                by_launcher = by_launcher.or_else(|| versions.rank());
            }
            Logged::Note(Note::Rank(rank)) => seen.rank = Some(*rank),
            Logged::Note(Note::Exception(one)) => raised.push(one),
            _ => {}
        }
    }
    let is_memory =
        |one: &&Exception| verdict::is_out_of_memory(&one.kind, &one.message, seen.refused);
    seen.out_of_memory = match raised.as_slice() {
        [] => seen.refused,
        raised => raised.iter().any(is_memory),
    };
    seen.rank = seen.rank.or(by_launcher);
    seen
}

/// The functions of the hook that failed in a process, each with its last count.
fn hook_failures(log: &Log<'_>) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for note in log.notes() {
        let Note::Failure(failure) = note else {
            continue;
        };
        let same = |before: &&mut Failure| before.function == failure.function;
        match failures.iter_mut().find(same) {
            Some(before) => before.count = failure.count,
            None => failures.push(failure.clone()),
        }
    }
    failures
}

/// Whether an exception is that of a process which waited for one that failed.
fn says_another_failed(exception: &Value) -> bool {
    const KINDS: [&str; 4] = [
        "subprocess.CalledProcessError",
        "ChildFailedError",
        "ProcessExitedException",
        "ProcessRaisedException",
    ];
    let kind = exception["type"].as_str().unwrap_or_default();
    KINDS.iter().any(|one| kind.ends_with(one))
}

/// Writes what the ledger knows of all processes together.
fn write_run_facts<W: Write>(
    ledger: &Ledger,
    losses: &Losses,
    writer: &mut Writer<W>,
) -> Result<(), CollectError> {
    for device in 0..DEVICES {
        let peak = ledger.shared(device, SharedWord::PeakInUse);
        if peak > 0 {
            let name = facts::peak_in_use(device as i32);
            writer.meta(facts::RUN, &name, &peak.to_string())?;
        }
    }
    let mut gaps = Vec::new();
    if ledger.unplaced() > 0 {
        gaps.push(format!(
            "{}, because only {} can use a device at one time: they were neither recorded nor charged",
            plural(ledger.unplaced(), "process"),
            PROCESSES,
        ));
    }
    // Losses of processes that have no rows in the recording.
    let rest = losses.0.values().fold(ledger.lost_before(), |sum, loss| {
        sum.saturating_add(loss.entries)
    });
    if rest > 0 {
        let why = losses.0.values().next().map_or("", |loss| loss.why);
        let because = if why.is_empty() { "" } else { ", because " };
        gaps.push(format!(
            "{} of processes that are not in the recording{because}{why}",
            calls_and_blocks(rest)
        ));
    }
    for (index, gap) in gaps.iter().enumerate() {
        let name = format!("{}.run.{index}", meta::UNKNOWN);
        writer.meta(facts::RUN, &name, gap)?;
        writer.meta(facts::RUN, facts::INCOMPLETE, gap)?;
    }
    Ok(())
}

/// The name of a process, from the name of its log.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = name.rsplit('-').next().unwrap_or_default();
    format!("process {pid}")
}

/// An error in one line, with its cause.
fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The number of a process in the run, from the name of its log.
fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let (number, _) = name.strip_prefix(LOG_PREFIX)?.split_once('-')?;
    number.parse().ok()
}

/// The records that a process could not keep.
struct Loss {
    entries: u64,
    /// Entries that were kept before the first loss.
    kept: u64,
    why: &'static str,
    /// The most it held on each device, by the names of the facts.
    peaks: Vec<(String, u64)>,
}

/// The losses of processes, by their numbers.
struct Losses(BTreeMap<u64, Loss>);

impl Losses {
    fn read_ledger(ledger: Option<&Ledger>) -> Self {
        let Some(ledger) = ledger else {
            return Self(BTreeMap::new());
        };
        let of = |slot: usize| {
            let number = ledger.process(slot, ProcessWord::Number).checked_sub(1)?;
            let entries = ledger.process(slot, ProcessWord::Lost);
            (entries > 0).then(|| (number, Loss::read_slot(ledger, slot, entries)))
        };
        Self((0..ledger.slots()).filter_map(of).collect())
    }

    fn take(&mut self, number: u64) -> Option<Loss> {
        self.0.remove(&number)
    }
}

impl Loss {
    fn read_slot(ledger: &Ledger, slot: usize, entries: u64) -> Self {
        let peaks = (0..DEVICES)
            .flat_map(|device| {
                let number = device as i32;
                [
                    (facts::peak_charged(number), DeviceWord::PeakCharged),
                    (facts::peak_allocated(number), DeviceWord::PeakAllocated),
                    (facts::peak_reserved(number), DeviceWord::PeakReserved),
                ]
                .map(|(name, word)| (name, ledger.device(slot, device, word)))
            })
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        Self {
            entries,
            kept: ledger
                .process(slot, ProcessWord::FirstLost)
                .saturating_sub(1),
            why: lost_because(ledger.process(slot, ProcessWord::LostError)),
            peaks,
        }
    }
}

/// The meaning of a Linux error number for a file that could not be written.
fn lost_because(error: u64) -> &'static str {
    match error {
        28 => "the disk was full",
        122 => "the disk quota was used up",
        27 => "the limit on the size of files (ulimit -f) was reached",
        1 | 13 | 30 => "the folder of the run could not be written to",
        2 => "the folder of the run was gone",
        23 | 24 => "too many files were open",
        12 => "the machine was out of memory",
        _ => "its files could not be written",
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CollectError> {
    std::fs::read(path).map_err(|source| CollectError::Read {
        path: path.to_owned(),
        source,
    })
}

fn files(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>, CollectError> {
    let entries = std::fs::read_dir(folder).map_err(|source| CollectError::Read {
        path: folder.to_owned(),
        source,
    })?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let matches = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(prefix)
    };
    Ok(names.filter(matches).collect())
}

/// The joining of one process's sources.
struct Process<'a, W> {
    number: u32,
    path: &'a Path,
    writer: &'a mut Writer<W>,
    start: Start,
    /// The driver's calls that no row was written for yet, in order.
    calls: VecDeque<DriverCall>,
    /// Each out-of-memory that was reported and has no row yet, in order: the device, as the process numbers it, and
    /// how many of the driver's calls came later.
    failures: VecDeque<(i32, usize)>,
    /// The blocks and notes of each device that no row was written for yet, in order.
    blocks: BTreeMap<u8, VecDeque<Queued>>,
    /// For each entry of a device, the number of the row that was written when it was taken.
    rows: BTreeMap<u8, Vec<u64>>,
    /// The last uses of live blocks, as far as they are recorded.
    uses: Option<(u64, bool, Vec<u64>)>,
    /// The texts of the notes, by number.
    texts: Vec<String>,
    unmodelled: BTreeMap<String, u64>,
    /// The records that the process could not keep.
    loss: Option<Loss>,
    /// The readings of a process on a real GPU, apart from torch's history.
    measured: Option<Measured>,
    /// Whether the process reported that its recording is complete.
    ended: bool,
    /// The NVML queries that a simulated GPU cannot answer.
    made_up: Vec<String>,
    /// The most that NCCL's own buffers took.
    nccl: Option<Nccl>,
    /// The operations that the process had the GPU do, after steps and at the end.
    costs: Vec<ToldCosts>,
    /// The last report of each change to the program, by name.
    changes: Vec<(String, Value)>,
    values: Option<note::Values>,
    /// Allocations and frees without a stack; several parts of the hook report them.
    lost_stacks: u64,
    undone_modules: Vec<String>,
    /// Whether an allocator took the place of PyTorch's own.
    plugged: bool,
    /// Whether it took the memory of live blocks away for a while.
    paused: bool,
    /// The addresses of tonnage's allocator, where it did.
    own_addresses: std::ops::Range<u64>,
    /// The memory that it has just mapped.
    mapped: Option<Mapped>,
    unknown: u32,
    events: u64,
}

impl<'a, W: Write> Process<'a, W> {
    fn new(number: u32, path: &'a Path, entries: &[u8], writer: &'a mut Writer<W>) -> Self {
        let mut queues: BTreeMap<u8, VecDeque<Queued>> = BTreeMap::new();
        let mut before: BTreeMap<u8, blocks::Uses> = BTreeMap::new();
        for entry in blocks::read(entries) {
            let device = entry.device();
            if let Entry::Uses(uses) = entry {
                before.insert(device, uses);
                continue;
            }
            let queue = queues.entry(device).or_default();
            queue.push_back(Queued {
                entry,
                number: queue.len() as u32,
                uses: before.remove(&device),
            });
        }
        Self {
            number,
            path,
            writer,
            start: Start::default(),
            calls: VecDeque::new(),
            failures: VecDeque::new(),
            blocks: queues,
            rows: BTreeMap::new(),
            uses: None,
            texts: Vec::new(),
            unmodelled: BTreeMap::new(),
            loss: None,
            measured: None,
            ended: false,
            made_up: Vec::new(),
            nccl: None,
            costs: Vec::new(),
            changes: Vec::new(),
            values: None,
            lost_stacks: 0,
            undone_modules: Vec::new(),
            plugged: false,
            paused: false,
            own_addresses: 0..0,
            mapped: None,
            unknown: 0,
            events: 0,
        }
    }

    /// Writes the rows of the process, and returns whether there were any.
    fn write(
        mut self,
        log: Log<'_>,
        collected: &mut Collected,
        broken: &mut Vec<String>,
    ) -> Result<bool, CollectError> {
        match log.error {
            Some(LogError::Broken { at, why }) => broken.push(format!(
                "{} after byte {at} of its log, which is corrupt: {why}",
                name_of(self.path)
            )),
            Some(error) => broken.push(format!("{}: {error}", name_of(self.path))),
            None => {}
        }
        let records = log.records;
        for record in &records {
            match record {
                Logged::Record(Record::Call(call)) => self.calls.push_back(*call),
                Logged::Record(Record::Text(text)) => self.texts.push((*text).to_owned()),
                Logged::Note(Note::Oom(device)) => {
                    self.failures.push_back((*device, self.calls.len()));
                }
                _ => {}
            }
        }
        // Calls are taken from the front: the number left shows how many were written, wherever they were taken.
        for (_, calls) in &mut self.failures {
            *calls = self.calls.len() - *calls;
        }
        if self.measure(&records) {
            return self.write_measured(records, collected, broken);
        }
        if self.calls.is_empty() && self.loss.is_none() {
            // A launcher or a worker that only queried how many devices there are.
            return Ok(false);
        }
        let mut devices = BTreeSet::new();
        let firsts: Vec<DriverCall> = (self.calls.iter().copied())
            .filter(|call| devices.insert(call.device))
            .collect();
        for first in firsts.iter().filter(|call| call.in_use == call.charged) {
            self.fact(&facts::alone_at_start(i32::from(first.device)), "yes")?;
        }
        for record in records {
            let record = match record {
                Logged::Note(note) => {
                    self.note(note)?;
                    continue;
                }
                Logged::Record(record) => record,
            };
            match record {
                Record::Start(start) => self.begin(start)?,
                Record::Torch(pickle) => self.history(pickle, broken)?,
                Record::Unmodelled(name) => {
                    self.unmodelled.entry(name.to_owned()).or_insert(1);
                }
                Record::Counts(json) => {
                    let counts = serde_json::from_slice(json).unwrap_or_default();
                    self.unmodelled = counts;
                }
                Record::Note(_) | Record::Call(_) | Record::Text(_) | Record::Owners(_) => {}
            }
        }
        self.rest()?;
        if self.lost_stacks > 0 {
            let lost = count(self.lost_stacks);
            self.gap(&format!("the stacks of {lost} allocations and frees"))?;
        }
        if self.plugged {
            self.fact(facts::ALLOCATOR, self.allocator())?;
            self.gap(match self.allocator() {
                facts::TONNAGE => "the lines that requested memory: PyTorch keeps no history of tonnage's allocator",
                _ => {
                    "blocks and the lines that requested them: another allocator took the place of PyTorch's, which then \
                     keeps no history"
                }
            })?;
        }
        if self.paused {
            self.gap(
                "when tensors were paused: replays and accounts of live memory count them all the time",
            )?;
        }
        self.values()?;
        self.undone_modules()?;
        self.incomplete()?;
        if let Some(nccl) = self.nccl {
            let text = serde_json::to_string(&nccl).unwrap_or_default();
            self.fact(facts::NCCL_BUFFERS, &text)?;
        }
        if let Some((unread, is_cut, floors)) = self.uses.take() {
            let whole = unread == 0 && !is_cut && !self.plugged;
            self.fact(facts::USES, if whole { facts::ALL_USES } else { "some" })?;
            if whole {
                self.fact(
                    facts::FLOORS,
                    &serde_json::to_string(&floors).unwrap_or_default(),
                )?;
            }
            if unread > 0 {
                self.gap(&format!(
                    "what {} used: the parameters of a kernel cannot be read",
                    plural(unread, "launch")
                ))?;
            }
        }
        if !self.made_up.is_empty() {
            let what = self.made_up.join(", ");
            self.gap(&format!(
                "{what}, which the job read from NVML: the answers are those of an idle GPU"
            ))?;
        }
        let costs = std::mem::take(&mut self.costs);
        if let Some(text) =
            Costs::from_notes(&costs).and_then(|costs| serde_json::to_string(&costs).ok())
        {
            self.fact(facts::COSTS, &text)?;
        }
        for (_, change) in std::mem::take(&mut self.changes) {
            self.fact(facts::CHANGE, &change.to_string())?;
        }
        let counts = std::mem::take(&mut self.unmodelled);
        for (name, count) in counts {
            let name = Some(self.writer.stacks_mut().intern(&name));
            self.write_row(Event {
                size: count,
                name,
                ..Event::new(Kind::Unmodelled)
            })?;
        }
        collected.events += self.events;
        Ok(true)
    }

    /// Takes the readings of a process on a real GPU, apart from torch's history; whether it is one.
    fn measure(&mut self, records: &[Logged<'_>]) -> bool {
        let start = records.iter().find_map(|record| match record {
            Logged::Record(Record::Start(start)) => Some(start),
            _ => None,
        });
        let Some(start) = start.filter(|start| start.measured) else {
            return false;
        };
        self.start = start.clone();
        let mut samples = Vec::new();
        let mut lists = Vec::new();
        for record in records {
            match record {
                Logged::Record(Record::Owners(list)) => lists.push(*list),
                Logged::Note(Note::Sample(sample)) => samples.push(Sample {
                    device: self.physical(sample.device),
                    ..(**sample).clone()
                }),
                _ => {}
            }
        }
        let entries = std::mem::take(&mut self.blocks).into_values().flatten();
        let entries = entries.map(|queued| queued.entry);
        let texts = std::mem::take(&mut self.texts);
        self.measured = Some(Measured::new(entries, samples, &lists, texts));
        true
    }

    /// Writes the rows of a process on a real GPU.
    fn write_measured(
        mut self,
        records: Vec<Logged<'_>>,
        collected: &mut Collected,
        broken: &mut Vec<String>,
    ) -> Result<bool, CollectError> {
        let history = |record: &Logged<'_>| matches!(record, Logged::Record(Record::Torch(_)));
        let is_measured = self.measured.as_ref().is_some_and(Measured::has_samples);
        if !is_measured && !records.iter().any(history) {
            // It looked how many devices there are, and used none.
            return Ok(false);
        }
        if let Some(measured) = &self.measured {
            let knows_own = measured.knows_own();
            if collected.machine.is_none() {
                collected.machine.clone_from(&measured.machine);
            }
            if !is_measured {
                self.gap("how much of the GPU was in use: it was never queried")?;
            } else if !knows_own {
                self.gap(
                    "what other processes use: the driver does not report what each has, so all that came into use \
                     counts as this one's",
                )?;
            }
        }
        for record in records {
            match record {
                Logged::Record(Record::Start(start)) => self.begin(start)?,
                Logged::Record(Record::Torch(pickle)) => self.history(pickle, broken)?,
                Logged::Note(note) => self.note(note)?,
                Logged::Record(_) => {}
            }
        }
        if let Some(mut measured) = self.measured.take() {
            for row in measured.rest(self.writer.stacks_mut()) {
                self.write_row(row)?;
            }
        }
        if !self.ended {
            let why =
                "the process was killed, and what it did in its last moments was not handed over";
            self.fact(
                facts::INCOMPLETE,
                &format!("from event {} on: {why}", self.events + 1),
            )?;
        }
        collected.events += self.events;
        Ok(true)
    }

    fn write_row(&mut self, event: Event) -> Result<(), CollectError> {
        self.events += 1;
        self.writer.event(&Event {
            process: self.number,
            ..event
        })?;
        Ok(())
    }

    fn fact(&mut self, name: &str, text: &str) -> Result<(), CollectError> {
        Ok(self.writer.meta(self.number, name, text)?)
    }

    fn gap(&mut self, text: &str) -> Result<(), CollectError> {
        let name = format!("{}.{}", meta::UNKNOWN, self.unknown);
        self.unknown += 1;
        self.fact(&name, text)
    }

    /// Writes what could not be kept, and the figures that are known nevertheless.
    fn incomplete(&mut self) -> Result<(), CollectError> {
        let Some(loss) = self.loss.take() else {
            return Ok(());
        };
        let from = loss.kept + 1;
        self.fact(
            facts::INCOMPLETE,
            &format!("from event {from} on: {}", loss.why),
        )?;
        self.gap(&format!(
            "{} from event {from} on, because {}",
            calls_and_blocks(loss.entries),
            loss.why
        ))?;
        for (name, bytes) in loss.peaks {
            self.fact(&name, &bytes.to_string())?;
        }
        Ok(())
    }

    fn begin(&mut self, start: Start) -> Result<(), CollectError> {
        self.fact(facts::PROCESS_COMMAND, &start.arguments.join(" "))?;
        let visible: Vec<String> = start.visible.iter().map(u8::to_string).collect();
        self.fact(facts::VISIBLE, &visible.join(","))?;
        self.start = start;
        Ok(())
    }

    fn note(&mut self, note: Note) -> Result<(), CollectError> {
        match note {
            Note::Versions(versions) => self.versions(&versions)?,
            Note::Rank(rank) => self.fact(meta::PROCESS_RANK, &rank.to_string())?,
            Note::Lost(lost) => self.lost_stacks += lost,
            Note::Trouble(trouble) => {
                self.gap(&format!("stacks, because torch reported: {trouble}"))?;
            }
            Note::Unnamed(trouble) => self.gap(&format!(
                "whose some of the blocks are, because the query of torch failed: {trouble}"
            ))?,
            Note::Ended(ended) => self.ended |= ended,
            Note::Overrun(rows) => self.gap(&format!(
                "{rows} allocations and frees, because torch's history was full or another thread used the allocator \
                 while it was read"
            ))?,
            Note::Unsampled(trouble) => self.gap(&format!(
                "how much of the GPU was in use at some moments, because the query failed: {trouble}"
            ))?,
            Note::Exception(exception) => {
                self.fact(facts::EXCEPTION, &sort_keys(&exception).to_string())?;
            }
            // Reported anew as there are more of them: the process may be killed at any time.
            Note::Values(values) => self.values = Some(values),
            Note::UndoneModules(names) => {
                for name in names {
                    if !self.undone_modules.contains(&name) {
                        self.undone_modules.push(name);
                    }
                }
            }
            Note::Autotuned(true) => self.gap(
                "which kernels an autotuner takes: it measures time, and a dry run has none; \
                 the first that compiles was taken, and a library's before others",
            )?,
            Note::Benchmarked(true) => self.gap(
                "which plan of a convolution torch.backends.cudnn.benchmark takes: it measures time, and a dry run has \
                 none; the first that cuDNN proposes was taken",
            )?,
            Note::Costs(note::Costs { steps, counts }) => {
                let mut costs = ToldCosts::default();
                (costs.steps, costs.counts) = (steps, counts);
                self.costs.push(costs);
            }
            Note::Change(change) => {
                let change = sort_keys(&change);
                let name = change["name"].as_str().unwrap_or_default().to_owned();
                match self.changes.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, told)) => *told = change,
                    None => self.changes.push((name, change)),
                }
            }
            Note::Plugged(plugged) => self.plugged |= plugged,
            Note::Paused(paused) => self.paused |= paused,
            Note::Allocator { address } => {
                self.plugged = true;
                let around = |call: &&DriverCall| {
                    call.kind == CallKind::Reserve
                        && (call.address..call.address.saturating_add(call.size)).contains(&address)
                };
                if let Some(reserved) = self.calls.iter().find(around) {
                    self.own_addresses =
                        reserved.address..reserved.address.saturating_add(reserved.size);
                }
            }
            Note::FreesWait(lag) => self.fact(facts::FREES_WAIT, &lag.to_string())?,
            Note::MadeUp(what) => self.made_up.push(what),
            Note::Nccl(told) => {
                let most = self.nccl.get_or_insert(told);
                most.communicators = most.communicators.max(told.communicators);
                (most.low, most.high) = (most.low.max(told.low), most.high.max(told.high));
            }
            Note::Communicator(ranks) => self.fact(facts::COMMUNICATOR, &ranks.to_string())?,
            Note::DifferingRanks(ranks) => {
                for rank in ranks {
                    self.fact(&facts::differing_rank(rank), "yes")?;
                }
            }
            Note::Deadlock(deadlock) => {
                self.fact(facts::DEADLOCK, &sort_keys(&deadlock).to_string())?;
            }
            Note::Stopped(stopped) => {
                self.fact(facts::ENDED_EARLY, &stopped)?;
                self.gap(&format!(
                    "what comes later: the job was stopped {stopped}, as was requested"
                ))?;
            }
            Note::Uses { unread, is_cut, floors } => self.uses = Some((unread, is_cut, floors)),
            // Read with the notes of all processes, or before the rows are written; or a fact that holds for most jobs.
            Note::Foreign(_)
            | Note::Limitation(_)
            | Note::Failure(_)
            | Note::Suppressed(_)
            | Note::Unprotected(_)
            | Note::Connected { .. }
            | Note::Resolved { .. }
            | Note::Oom(_)
            | Note::Sample(_)
            | Note::Autotuned(false)
            | Note::Benchmarked(false) => {}
        }
        Ok(())
    }

    fn versions(&mut self, versions: &Versions) -> Result<(), CollectError> {
        self.fact(meta::TORCH_VERSION, &versions.torch)?;
        if let Some(version) = &versions.cuda {
            self.fact(facts::CUDA_VERSION, version)?;
        }
        self.fact(facts::PYTHON_VERSION, &versions.python)?;
        // The CUDA name wins where both are set, as it does in torch.
        for name in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
            if let Some(conf) = versions.environment.get(name) {
                self.fact(meta::ALLOCATOR_CONF, conf)?;
            }
        }
        if !versions.environment.is_empty() {
            // The identity of the process is not a setting.
            let is_setting =
                |name: &String| !["RANK", "LOCAL_RANK", "WORLD_SIZE"].contains(&&**name);
            let settings: BTreeMap<_, _> = versions
                .environment
                .iter()
                .filter(|(name, _)| is_setting(name))
                .collect();
            let text = serde_json::to_string(&settings).unwrap_or_default();
            self.fact(facts::ENVIRONMENT, &text)?;
        }
        // A rank by torch.distributed comes later, and replaces the launcher's.
        if let Some(rank) = versions.environment.get("RANK") {
            self.fact(meta::PROCESS_RANK, rank)?;
        }
        Ok(())
    }

    /// Writes which modules of kernels were not compiled.
    fn undone_modules(&mut self) -> Result<(), CollectError> {
        if self.undone_modules.is_empty() {
            return Ok(());
        }
        let (named, others) = self
            .undone_modules
            .split_at(self.undone_modules.len().min(MOST_UNDONE_NAMED));
        let others = match others.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        self.gap(&format!(
            "what modules of kernels allocate themselves that a package compiles with nvcc ({}{others}): nvcc is not \
             on this machine, so they were not compiled and did nothing; what the package allocates in Python is \
             counted",
            named.join(", ")
        ))
    }

    /// Writes the last report of values that were not computed.
    fn values(&mut self) -> Result<(), CollectError> {
        let Some(told) = self.values.take() else {
            return Ok(());
        };
        let text = serde_json::to_string(&told).unwrap_or_default();
        self.fact(facts::VALUES, &text)?;
        let mut unknown = ToldValues::default();
        (unknown.reads, unknown.sizes) = (told.reads, told.sizes);
        (unknown.sized_by, unknown.assumed_mask) = (told.sized_by, told.assumed_mask);
        let values = UnknownValues::sum([unknown]);
        let here = std::env::current_dir().unwrap_or_default();
        let line_of = |place: &Place| format!("{}:{}", named_from(&place.file, &here), place.line);
        if let Some(first) = &values.first_size {
            let results = if values.sizes == 1 {
                "the size of a result that depends".to_owned()
            } else {
                format!("the sizes of {} results that depend", count(values.sizes))
            };
            self.gap(&format!(
                "{results} on values that a dry run does not compute, first at {}; {}",
                line_of(first),
                values.assumption(),
            ))?;
        }
        if let Some(first) = &values.first_decision {
            self.gap(&format!(
                "{} that the script branches on, which a dry run does not compute, first read at {}",
                plural(values.decisions, "value"),
                line_of(first),
            ))?;
        }
        Ok(())
    }

    fn history(&mut self, pickle: &[u8], broken: &mut Vec<String>) -> Result<(), CollectError> {
        let snapshot = match Snapshot::parse(pickle, self.writer.stacks_mut()) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let (process, why) = (name_of(self.path), with_cause(&error));
                broken.push(format!(
                    "a part of PyTorch's history of {process}, which cannot be read: {why}"
                ));
                return Ok(());
            }
        };
        let mut queues: Vec<_> = snapshot.traces.into_iter().map(VecDeque::from).collect();
        let mut marks = VecDeque::from(snapshot.annotations);
        // One device after the other by time; a machine with one device, the
        // common case, keeps torch's own order whatever its clock shows.
        while let Some(next) = queues
            .iter()
            .enumerate()
            .filter_map(|(index, queue)| Some((queue.front()?.time, index)))
            .min()
            .map(|(_, index)| index)
        {
            let Some(mut event) = queues[next].pop_front() else {
                break;
            };
            while let Some(mark) = marks.pop_front_if(|mark| mark.time <= event.time) {
                self.write_row(mark)?;
            }
            event.device = self.physical(event.device);
            self.join(event)?;
        }
        for mark in marks {
            self.write_row(mark)?;
        }
        Ok(())
    }

    /// The machine's number of the device that the process calls `visible`.
    fn physical(&self, visible: i32) -> i32 {
        let known = usize::try_from(visible)
            .ok()
            .and_then(|visible| self.start.visible.get(visible));
        known.map_or(visible, |&device| i32::from(device))
    }

    /// Writes a row of torch's history, with what belongs before it.
    fn join(&mut self, mut event: Event) -> Result<(), CollectError> {
        if let Some(measured) = &mut self.measured {
            for row in measured.row(event, self.writer.stacks_mut()) {
                self.write_row(row)?;
            }
            return Ok(());
        }
        match event.kind {
            Kind::Alloc | Kind::FreeRequested => {
                if let Some((block, uses)) = self.take_block(&event)? {
                    event.size = block.change.unsigned_abs();
                    event.uses = uses;
                }
            }
            Kind::SegmentAlloc => {
                let at = |call: &DriverCall| {
                    call.kind == CallKind::Malloc && call.address == event.address
                };
                self.calls_up_to(at)?;
            }
            Kind::SegmentMap => {
                let end = event.address + event.size;
                let at = |call: &DriverCall| {
                    call.kind == CallKind::Map && call.address + call.size == end
                };
                self.calls_up_to(at)?;
            }
            Kind::Oom => {
                self.refusals(event.device)?;
                self.census_at_failure()?;
            }
            Kind::Snapshot => return Ok(()), // our own
            _ => {}
        }
        self.write_row(event)
    }

    /// Takes the entry of the blocks file that belongs to `event`.
    ///
    /// Entries before it have no row in torch's history (it was lost, or is not recorded while the script changes the
    /// settings of the history): they get one without a stack.
    fn take_block(&mut self, event: &Event) -> Result<Option<(Block, Option<Uses>)>, CollectError> {
        let Ok(device) = u8::try_from(event.device) else {
            return Ok(None);
        };
        let same = |queued: &Queued| match queued.entry {
            Entry::Block(block) => {
                block.address == event.address && (block.change > 0) == (event.kind == Kind::Alloc)
            }
            Entry::Note(_) | Entry::Uses(_) => false,
        };
        let Some(queue) = self.blocks.get_mut(&device) else {
            return Ok(None);
        };
        let Some(position) = queue.iter().take(LOOK_AHEAD).position(same) else {
            return Ok(None);
        };
        let skipped: Vec<Queued> = queue.drain(..position).collect();
        let found = queue.pop_front();
        for queued in skipped {
            self.put_entry(&queued)?;
        }
        Ok(found.and_then(|queued| match queued.entry {
            Entry::Block(block) => Some((block, self.take(&queued))),
            Entry::Note(_) | Entry::Uses(_) => None,
        }))
    }

    /// Takes an entry whose row comes next; its uses, in rows before that.
    fn take(&mut self, queued: &Queued) -> Option<Uses> {
        let rows = self.rows.entry(queued.entry.device()).or_default();
        let number = queued.number as usize;
        if rows.len() <= number {
            rows.resize(number + 1, self.events);
        }
        rows[number] = self.events;
        let uses = queued.uses?;
        let row_of = |moment: u32| rows.get(moment as usize).copied();
        let before = |moment: Option<u32>| {
            let row = row_of(moment?)?;
            u32::try_from(self.events - row).ok()
        };
        let first = uses.first.and_then(row_of).zip(row_of(uses.born));
        let first = first.map_or(0, |(first, born)| first.saturating_sub(born));
        Some(Uses {
            count: uses.count,
            first: u32::try_from(first).unwrap_or(u32::MAX),
            last: before(uses.last).unwrap_or(0),
            next: before(uses.next).unwrap_or(0),
        })
    }

    /// Writes the row of an entry that is only in the blocks file.
    fn put_entry(&mut self, queued: &Queued) -> Result<(), CollectError> {
        let uses = self.take(queued);
        match &queued.entry {
            Entry::Block(block) => self.write_row(Event {
                uses,
                ..bare_row(block)
            }),
            Entry::Note(note) if note.kind == NoteKind::Used => self.write_row(Event {
                device: i32::from(note.device),
                address: note.address,
                uses,
                ..Event::new(Kind::Used)
            }),
            Entry::Note(note) => self.put_note(note),
            Entry::Uses(_) => Ok(()),
        }
    }

    /// Writes the notes of the census that Python took at an out-of-memory, which belong before the row of it.
    fn census_at_failure(&mut self) -> Result<(), CollectError> {
        let ends = |queued: &&Queued| match &queued.entry {
            Entry::Note(note) if note.kind == NoteKind::Moment => {
                let text = self.texts.get(note.text as usize);
                text.is_some_and(|text| text == "census_end\toom")
            }
            _ => false,
        };
        let waiting = |queued: &&Queued| matches!(queued.entry, Entry::Note(_));
        let end = self.blocks.values().find_map(|queue| {
            let mut notes = queue.iter().take_while(waiting);
            notes.find(ends).map(|queued| queued.entry.time())
        });
        let Some(end) = end else {
            return Ok(());
        };
        let mut notes = Vec::new();
        for queue in self.blocks.values_mut() {
            let said =
                |queued: &mut Queued| matches!(queued.entry, Entry::Note(note) if note.time <= end);
            while let Some(entry) = queue.pop_front_if(said) {
                notes.push(entry);
            }
        }
        for note in notes {
            self.put_entry(&note)?;
        }
        Ok(())
    }

    /// Writes a mark, an owner or a holder.
    fn put_note(&mut self, note: &BlockNote) -> Result<(), CollectError> {
        let Some(text) = self.texts.get(note.text as usize) else {
            return Ok(());
        };
        if note.kind == NoteKind::OutOfMemory {
            let row = Event {
                device: i32::from(note.device),
                time: i64::try_from(note.time).ok(),
                size: note.address,
                free: text.parse().unwrap_or(0),
                ..Event::new(Kind::Oom)
            };
            return self.write_row(row);
        }
        let row = note_row(
            note_kind(note.kind),
            i32::from(note.device),
            i64::try_from(note.time).ok(),
            note.address,
            text,
            self.writer.stacks_mut(),
        );
        self.write_row(row)
    }

    /// Writes the driver's calls up to the first for which `at` returns true, if there is one.
    fn calls_up_to(&mut self, at: impl Fn(&DriverCall) -> bool) -> Result<(), CollectError> {
        if let Some(position) = self.calls.iter().position(at) {
            for call in self.calls.drain(..=position).collect::<Vec<_>>() {
                self.put_call(&call)?;
            }
        }
        Ok(())
    }

    /// Writes the refusals that led to an out-of-memory of a device, and the calls before them.
    ///
    /// A script may run out of memory several times by the same size, with other work in between. Where the process
    /// reported when it ran out, the last refusal before that moment is the end. Calls after it are those of other
    /// threads, which are not held up by a failure.
    fn refusals(&mut self, device: i32) -> Result<(), CollectError> {
        let refused = |call: &DriverCall| call.kind == CallKind::Refused;
        let told =
            (self.failures.iter()).position(|&(visible, _)| self.physical(visible) == device);
        let until = match told.and_then(|index| self.failures.remove(index)) {
            Some((_, later)) => self.calls.len().saturating_sub(later),
            None => self.refusals_in_a_row(),
        };
        let here = |call: &DriverCall| refused(call) && i32::from(call.device) == device;
        if let Some(last) = (0..until).rev().find(|&index| here(&self.calls[index])) {
            for call in self.calls.drain(..=last).collect::<Vec<_>>() {
                self.put_call(&call)?;
            }
        }
        Ok(())
    }

    /// Where the next refusals end that can belong to one request: all of one size, and before them no memory that a
    /// later row of torch's may stand for.
    fn refusals_in_a_row(&self) -> usize {
        let mut refused = self
            .calls
            .iter()
            .filter(|call| call.kind == CallKind::Refused);
        let Some(size) = refused.next().map(|call| call.size) else {
            return 0;
        };
        let belongs = |call: &&DriverCall| match call.kind {
            CallKind::Refused => call.size == size,
            CallKind::Malloc | CallKind::Map => false,
            _ => true,
        };
        self.calls.iter().take_while(belongs).count()
    }

    /// The name of the allocator that took the place of PyTorch's own.
    fn allocator(&self) -> &'static str {
        if self.own_addresses.is_empty() {
            facts::PLUGGED
        } else {
            facts::TONNAGE
        }
    }

    /// Writes a segment for what tonnage's allocator has mapped, as PyTorch's history would have it for its own.
    fn put_segment(&mut self) -> Result<(), CollectError> {
        let Some(mapped) = self.mapped.take() else {
            return Ok(());
        };
        self.write_row(segment_row(Kind::SegmentMap, mapped))
    }

    /// Writes a call of the driver, and a segment where tonnage's allocator made it.
    fn put_call(&mut self, call: &DriverCall) -> Result<(), CollectError> {
        let moved = matches!(call.kind, CallKind::Map | CallKind::Unmap)
            && self.own_addresses.contains(&call.address);
        let new = Mapped {
            device: call.device,
            address: call.address,
            size: call.size,
            time: call.time,
        };
        if !moved || call.kind == CallKind::Unmap {
            self.put_segment()?;
        }
        self.put_driver_row(call)?;
        if !moved {
            return Ok(());
        }
        if call.kind == CallKind::Unmap {
            return self.write_row(segment_row(Kind::SegmentUnmap, new));
        }
        // Pages that touch are one segment.
        match &mut self.mapped {
            Some(before)
                if before.device == new.device && before.address + before.size == new.address =>
            {
                before.size += new.size;
                before.time = new.time;
                Ok(())
            }
            _ => {
                self.put_segment()?;
                self.mapped = Some(new);
                Ok(())
            }
        }
    }

    fn put_driver_row(&mut self, call: &DriverCall) -> Result<(), CollectError> {
        let mut event = Event {
            device: i32::from(call.device),
            time: i64::try_from(call.time).ok(),
            address: call.address,
            size: call.size,
            charged: Some(call.charged),
            in_use: Some(call.in_use),
            ..Event::new(match call.kind {
                CallKind::Context => Kind::DriverContext,
                CallKind::Malloc => Kind::DriverMalloc,
                CallKind::Free => Kind::DriverFree,
                CallKind::Create => Kind::DriverCreate,
                CallKind::Release => Kind::DriverRelease,
                CallKind::Reserve => Kind::DriverReserve,
                CallKind::Unreserve => Kind::DriverUnreserve,
                CallKind::Map => Kind::DriverMap,
                CallKind::Unmap => Kind::DriverUnmap,
                CallKind::Refused => Kind::DriverOom,
                CallKind::HostAlloc => Kind::HostAlloc,
                CallKind::HostFree => Kind::HostFree,
                CallKind::PoolMalloc => Kind::PoolMalloc,
                CallKind::PoolFree => Kind::PoolFree,
                CallKind::ManagedAlloc => Kind::ManagedAlloc,
                CallKind::ManagedFree => Kind::ManagedFree,
                CallKind::PoolTrim => Kind::PoolTrim,
            })
        };
        match call.kind {
            CallKind::Malloc => event.requested = call.size,
            CallKind::ManagedAlloc => event.requested = call.extra,
            CallKind::Create | CallKind::Release => {
                event.handle = call.address;
                event.address = 0;
            }
            CallKind::Map => event.handle = call.extra,
            CallKind::PoolMalloc | CallKind::PoolFree => event.stream = call.extra,
            CallKind::Refused => {
                let name = match call.address {
                    kind if kind == CallKind::Create as u64 => "cuMemCreate",
                    kind if kind == CallKind::Context as u64 => "context",
                    kind if kind == CallKind::PoolMalloc as u64 => "cuMemAllocAsync",
                    _ => "cuMemAlloc",
                };
                event.name = Some(self.writer.stacks_mut().intern(name));
                event.free = call.extra;
                event.address = 0;
            }
            CallKind::HostAlloc | CallKind::HostFree => {
                event.device = -1;
                (event.charged, event.in_use) = (None, None);
            }
            _ => {}
        }
        self.write_row(event)
    }

    /// Writes what is not in torch's history: the last driver calls, and the blocks after its last piece, in the order
    /// of their times.
    fn rest(&mut self) -> Result<(), CollectError> {
        let mut tail: Vec<Queued> = std::mem::take(&mut self.blocks)
            .into_values()
            .flatten()
            .collect();
        tail.sort_by_key(|queued| queued.entry.time());
        for entry in tail {
            let time = entry.entry.time();
            while let Some(call) = self.calls.pop_front_if(|call| call.time <= time) {
                self.put_call(&call)?;
            }
            self.put_segment()?;
            self.put_entry(&entry)?;
        }
        while let Some(call) = self.calls.pop_front() {
            self.put_call(&call)?;
        }
        self.put_segment()
    }
}

/// A row for a block that is only in the blocks file.
fn bare_row(block: &Block) -> Event {
    let kind = if block.change > 0 {
        Kind::Alloc
    } else {
        Kind::FreeRequested
    };
    Event {
        device: i32::from(block.device),
        time: i64::try_from(block.time).ok(),
        address: block.address,
        size: block.change.unsigned_abs(),
        ..Event::new(kind)
    }
}

fn segment_row(kind: Kind, mapped: Mapped) -> Event {
    Event {
        device: i32::from(mapped.device),
        time: i64::try_from(mapped.time).ok(),
        address: mapped.address,
        size: mapped.size,
        ..Event::new(kind)
    }
}

/// How many rows are missing, in words.
fn calls_and_blocks(number: u64) -> String {
    match number {
        1 => "1 call or block".to_owned(),
        many => format!("{} calls and blocks", count(many)),
    }
}
