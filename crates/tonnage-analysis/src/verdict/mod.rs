// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does it fit, by how much, and who held the memory at the peak?
//!
//! The figures are those of the [`Account`]: what the device charged, at the moment of its largest use or of the
//! failure. A recording is read twice: once to find that moment, once to see what was alive then. `margin` computes how
//! far from its limits a job that fits is, `need` how much one that does not fit would take. Memory grows with the
//! blocks that live at the same time, not with the length of the recording.

mod changes;
mod costs;
mod deadlock;
mod margin;
mod need;
mod side_effects;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use thiserror::Error;
pub use tonnage_recording::account::Breakdown;
use tonnage_recording::account::{Refusal, Rounding};
use tonnage_recording::{
    Account, DeviceAccount, Event, Frame, Kind, ReadError, Reader, StackId, StackTable, meta,
};

pub use crate::holdings::Place;
use crate::holdings::{is_own_limit, is_python, is_users};
use crate::unknown;
pub use crate::unknown::{Foreign, ForeignUse, HookFailure, Limitation, ToldValues, UnknownValues};
use crate::unmodelled::UnmodelledCalls;
pub use changes::{Edit, ProgramChange};
pub use costs::{Cost, Costs, ToldCosts};
pub use deadlock::{Called, Deadlock, WaitsBecause};
pub use margin::{Margin, Uncounted};
pub(crate) use margin::{OnDevice, most_uncounted};
pub use need::{Above, Need};
pub(crate) use need::{Needed, Seen};
pub use side_effects::{SideEffects, Suppressed};
use tonnage_recording::facts;
use tonnage_text::{count, plural, ranks_named};

/// Version of the JSON that [`Verdict`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 4;

/// How a run went, as far as memory is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran to its end, and left the margin free: the most that was seen of what a dry run does not count.
    Fits,
    /// It ran to its end, and left less than the margin: on a real GPU it may run out of memory.
    Uncertain,
    /// It ended because a request for device memory was refused.
    DoesNotFit,
    /// The user ended it: what was seen fits, what would have come is not known.
    Interrupted,
    /// It ended early for another reason.
    Failed,
    /// It never used a device.
    NoDevice,
    /// PyTorch did not use a device, and something did that a dry run cannot follow: there is no verdict.
    NotCovered,
}

/// Memory held from one source line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Holder {
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many blocks.
    pub blocks: u64,
    /// The line of the user's code, or the innermost known; `None` if the
    /// recording has no stack for them.
    pub place: Option<Place>,
    /// The innermost line, where it is another.
    pub inside: Option<Place>,
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Moment {
    /// Number of the row, from 0.
    pub event: u64,
    /// Nanoseconds since the first event with a time.
    pub after_ns: u64,
}

/// The request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutOfMemory {
    /// Requested bytes.
    pub requested: u64,
    /// Bytes the driver had left.
    pub free: u64,
    /// The driver's call that was refused, where PyTorch's allocator did not request it.
    pub call: Option<String>,
    /// The line of the user's code.
    pub place: Option<Place>,
    /// The innermost line, where it is another.
    pub inside: Option<Place>,
    /// Whether PyTorch refused it without a request to the driver, which had room: the script limits its own memory.
    pub own_limit: bool,
}

/// The memory of one process on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceUse {
    /// Number of the process.
    pub process: u32,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// Number of the device on the machine.
    pub device: i32,
    /// The moment of `at_peak`.
    pub peak: Moment,
    /// The device at its largest use, or at the failure.
    pub at_peak: Breakdown,
    /// Largest sum of blocks.
    pub peak_allocated: u64,
    /// Most that PyTorch held from the driver, as far as its history shows.
    pub peak_reserved: u64,
    /// Whether that history is there and whole: without it cached and other memory cannot be distinguished.
    pub reserved_known: bool,
    /// Whether tonnage's hook ran in the process, which hands that history over.
    pub hooked: bool,
    /// Most that was charged to the process.
    pub peak_used: u64,
    /// The holders of the blocks at the peak, largest first.
    pub holders: Vec<Holder>,
    /// How often PyTorch's allocator ran out and raised an error in the program.
    pub ooms: u64,
    /// The most there was after the last time, where the program went on.
    pub after_ooms: Option<AfterOoms>,
    /// How often the driver refused.
    pub refusals: u64,
    /// The failure that ended the process, if it was one of this device.
    pub out_of_memory: Option<OutOfMemory>,
    /// Rows about this device.
    pub events: u64,
}

/// The memory of a program after the last out-of-memory error that it handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AfterOoms {
    /// Most bytes in use on the device, by all processes.
    pub most_in_use: u64,
    /// Largest sum of blocks.
    pub peak_allocated: u64,
}

/// A device with all processes that used it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceTotal {
    /// Number of the device on the machine.
    pub device: i32,
    /// Its bytes.
    pub capacity: u64,
    /// The most that was in use at one time, by all processes together.
    pub most_in_use: u64,
    /// The least that was free.
    pub least_free: u64,
    /// Whether these two are exact; else processes are taken to have run at the same time.
    pub exact: bool,
    /// How many processes used it.
    pub processes: u32,
}

/// A function that was called and is not modelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unmodelled {
    /// Its name.
    pub name: String,
    /// How often.
    pub calls: u64,
}

/// An exception that ended a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exception {
    /// Its type, with the module.
    pub kind: String,
    /// Its message.
    pub message: String,
    /// Where it was raised, by the user's line.
    pub place: Option<Place>,
    /// The rank of the process, where it has one.
    pub rank: Option<u32>,
}

impl Exception {
    fn is_interrupt(&self) -> bool {
        self.kind == "builtins.KeyboardInterrupt"
    }
}

/// A process that ended with an exit code other than 0, or by a signal, whatever the launcher returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailedProcess {
    /// Its number, if it used a device.
    pub process: Option<u32>,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// How it ended: `exit 3`, `signal 9`.
    pub ending: String,
    /// Its arguments, if it used a device.
    pub command: String,
    /// Its process id.
    pub process_id: u32,
    /// Whether it failed because it got no GPU memory.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Which run of its program it was, counted from 1, if the job ran that with several sets of arguments.
    #[serde(default)]
    pub run: Option<u32>,
    /// How many runs of its program there were, if the job ran that with several sets of arguments.
    #[serde(default)]
    pub runs: Option<u32>,
}

/// A number and how it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KnownBytes {
    /// The number.
    pub bytes: u64,
    /// read, rounded, assumed, given or measured.
    pub known: String,
}

/// The ranks of a job that were run, of more that it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RanksRun {
    /// How many ranks the job has.
    pub world_size: u32,
    /// The ranks that were run, in order.
    pub ranks: Vec<u32>,
    /// Ranks that do something else and were not run, as far as the job records them: a rank of each stage of a
    /// pipeline.
    pub differing: Vec<u32>,
}

impl RanksRun {
    fn find(facts: &Facts<'_>) -> Option<Self> {
        let world_size = facts.any(facts::WORLD_SIZE)?.parse().ok()?;
        let ranks = facts.any(facts::RANKS)?.split(',');
        let ranks: Vec<u32> = ranks.map(str::parse).collect::<Result<_, _>>().ok()?;
        let named = |fact: &meta::Meta| fact.name.strip_prefix(facts::DIFFERING_RANK)?.parse().ok();
        let mut differing: Vec<u32> = facts.all.iter().filter_map(named).collect();
        differing.retain(|rank| !ranks.contains(rank));
        differing.sort_unstable();
        differing.dedup();
        Some(Self {
            world_size,
            ranks,
            differing,
        })
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// The answer in a word.
    pub outcome: Outcome,
    /// The command that was run.
    pub command: String,
    /// How it ended: `exit 0`, `signal 9`.
    pub ending: String,
    /// The catalogue's name of the GPU.
    pub gpu: String,
    /// The driver's name of it.
    pub gpu_name: String,
    /// Devices of the machine.
    pub gpu_count: u32,
    /// Which ranks of the job were run, where others were only answered.
    pub ranks_run: Option<RanksRun>,
    /// Bytes of a device.
    pub capacity: KnownBytes,
    /// Bytes of a context.
    pub context: KnownBytes,
    /// Version of PyTorch.
    pub torch: String,
    /// The allocator that took the place of PyTorch's own: `tonnage`, or `plugged` for one that is not known.
    pub allocator: Option<String>,
    /// Every device that was used, with all its processes.
    pub devices_total: Vec<DeviceTotal>,
    /// Every process on every device it used, in order.
    pub devices: Vec<DeviceUse>,
    /// How far from its limits a job that fits is.
    pub margin: Option<Margin>,
    /// How much a job that does not fit takes.
    pub need: Option<Need>,
    /// From where on rows are missing, and why; none for a whole recording.
    pub incomplete: Option<String>,
    /// Exceptions that ended processes.
    pub exceptions: Vec<Exception>,
    /// Functions that were called and are not modelled.
    pub unmodelled: Vec<Unmodelled>,
    /// Values that the program read and that were not computed, if there are any.
    pub unknown_values: Option<UnknownValues>,
    /// By how many launches streams were taken to be behind the host at most, where what PyTorch reserves depends on
    /// it: it queried whether another stream was done with a block that was freed.
    pub lag: Option<u64>,
    /// Changes that were made to the program inside its process, as was requested, or could not be made.
    pub changes: Vec<ProgramChange>,
    /// The work that the program gave the GPU, apart from memory, of all processes together.
    pub costs: Option<Costs>,
    /// When the job was stopped before its end, as was requested: `after 3 steps`.
    pub stopped: Option<String>,
    /// How the memory of the host, not that of the GPU, ran out, if it did.
    pub host_out_of_memory: Option<String>,
    /// Processes that failed, in the order in which they ended. One of them decides the outcome, even if the command
    /// itself ended with exit code 0.
    pub failed_processes: Vec<FailedProcess>,
    /// Ranks that would wait for others forever on a GPU.
    pub deadlocks: Vec<Deadlock>,
    /// Users of a device other than PyTorch that a dry run cannot follow.
    pub foreign: Vec<Foreign>,
    /// The job's connections to other machines, and the actions that the dry run suppressed.
    pub side_effects: SideEffects,
    /// Sizes that a library would have reported on a GPU and that are not certain, a sentence each. Figures with
    /// such blocks are assumed, not exact.
    pub unknown_sizes: Vec<String>,
    /// How the user's files were protected and which changes of the job were discarded; none with `--side-effects`.
    pub files: Option<facts::FileChanges>,
    /// Differences from a GPU that tonnage found, each with a code. `unknown` contains their sentences, too.
    pub limitations: Vec<Limitation>,
    /// Functions of tonnage's own Python hook that failed. The job went on without their results.
    pub hook_failures: Vec<HookFailure>,
    /// Facts that the recording does not contain.
    pub unknown: Vec<String>,
    /// Rows of the recording.
    pub events: u64,
}

impl Verdict {
    /// The process with most on the fullest device, or the one that failed.
    pub fn worst(&self) -> Option<&DeviceUse> {
        let in_use = |device: i32| self.total(device).map_or(0, |total| total.most_in_use);
        // The first of equal ones whose lines are known, so that rank 0 stands for all.
        let worst = |device: &&DeviceUse| {
            let first = Reverse(device.rank.unwrap_or(u32::MAX));
            let failed = device.out_of_memory.is_some();
            (
                failed,
                in_use(device.device),
                device.peak_used,
                device.reserved_known,
                first,
            )
        };
        self.devices.iter().rev().max_by_key(worst)
    }

    /// A device with all its processes.
    pub fn total(&self, device: i32) -> Option<&DeviceTotal> {
        self.devices_total
            .iter()
            .find(|total| total.device == device)
    }

    /// Bytes that were never used on the fullest device, all processes on it taken together.
    pub fn spare(&self) -> u64 {
        // The free memory before an error means nothing for a job that ran out and continued.
        if let Some(margin) = self.margin.as_ref().filter(|it| it.after_ooms.is_some()) {
            return margin.room;
        }
        let free = self.devices_total.iter().map(|device| device.least_free);
        free.min().unwrap_or(self.capacity.bytes)
    }

    /// Whether the job ran on a real GPU.
    pub fn is_measured(&self) -> bool {
        self.capacity.known == facts::MEASURED
    }

    /// Whether sizes were assumed: of a library's memory, because they depend on values that were not computed, or
    /// because of a limitation.
    pub fn assumes_sizes(&self) -> bool {
        let values = self.unknown_values.as_ref();
        !self.unknown_sizes.is_empty()
            || values.is_some_and(|values| values.sizes > 0)
            || self.limitations.iter().any(|one| one.affects_figures)
    }

    /// Whether the job ran to its end, with or without a margin.
    pub fn completed(&self) -> bool {
        matches!(self.outcome, Outcome::Fits | Outcome::Uncertain)
    }

    /// How often a job that ran to its end had run out of memory.
    pub fn handled_ooms(&self) -> u64 {
        if self.completed() {
            self.devices.iter().map(|device| device.ooms).sum()
        } else {
            0
        }
    }
}

/// How many holders are listed.
const HOLDERS: usize = 8;

/// How a process ended, in words, of what [`Verdict::ending`] has: `exit 3`, `signal 9`.
pub fn ended(ending: &str) -> String {
    match ending.split_once(' ') {
        Some(("exit", code)) => format!("ended with exit code {code}"),
        Some(("signal", number)) => format!("was ended by signal {number}"),
        _ => "ended in an unknown way".to_owned(),
    }
}

/// Why a recording could not be judged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerdictError {
    /// It cannot be opened.
    #[error("the recording cannot be opened")]
    Open(#[from] io::Error),
    /// It cannot be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
}

/// Judges the recording that `open` opens, with that of the same job on a device without a limit, which `whole` opens.
pub fn verdict_of_whole<R: Read>(
    open: impl Fn() -> io::Result<R>,
    whole: impl Fn() -> io::Result<R>,
) -> Result<Verdict, VerdictError> {
    let mut verdict = verdict(open)?;
    let failures = verdict.devices.iter().filter_map(|device| {
        let failure = device.out_of_memory.as_ref()?;
        let requested = failure.call.is_none().then_some(failure.requested);
        Some(
            device
                .at_peak
                .allocated
                .saturating_add(requested.unwrap_or(0)),
        )
    });
    let wanted = failures.max().unwrap_or(0);
    let whole = need::find(&whole, verdict.capacity.bytes, wanted)?;
    verdict.need = whole.need;
    // The cost of the job is the cost of the whole of it.
    verdict.costs = whole.costs.or(verdict.costs);
    // The need rests on the sizes of the whole job, not only on those before the failure.
    for sentence in whole.unknown_sizes {
        if !verdict.unknown_sizes.contains(&sentence) {
            verdict.unknown_sizes.push(sentence.clone());
            verdict.unknown.push(sentence);
        }
    }
    // Only this run lifts the limits that the script sets, so it alone has their limitation.
    for limitation in whole.limitations {
        if !verdict.limitations.contains(&limitation) {
            verdict.unknown.push(limitation.sentence());
            verdict.limitations.push(limitation);
        }
    }
    for failure in whole.hook_failures {
        let failures = &mut verdict.hook_failures;
        if failures.iter().all(|one| one.function != failure.function) {
            failures.push(failure);
        }
    }
    Ok(verdict)
}

/// Judges the recording that `open` opens.
///
/// ```
/// use tonnage_analysis::verdict::verdict;
/// use tonnage_recording::Trace;
///
/// let trace = Trace::new("example 1.0");
/// let file = trace.write(Vec::new())?;
/// let verdict = verdict(|| Ok(file.as_slice()))?;
/// // Nothing used a GPU.
/// assert!(verdict.devices.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verdict<R: Read>(open: impl Fn() -> io::Result<R>) -> Result<Verdict, VerdictError> {
    let rows = Rows::read(open()?)?;
    let facts = Facts::read(&rows.reader);
    let devices_total = rows.totals(&facts);
    let exceptions = facts.exceptions();
    let foreign = Foreign::all(facts.all);
    let outcome = if facts.torch.is_empty() && !foreign.is_empty() {
        Outcome::NotCovered
    } else {
        rows.outcome(&facts, &exceptions)
    };
    let mut devices = rows.devices(outcome, &facts);
    find_holders(open()?, &mut devices)?;
    let margin = (outcome == Outcome::Fits)
        .then(|| margin::find(&open, &devices_total, &devices, &facts))
        .flatten();
    let host_out_of_memory = (outcome == Outcome::Failed)
        .then(|| host_out_of_memory(&facts, &exceptions))
        .flatten();
    // A job that handles out-of-memory errors takes what it finds.
    let is_short = |margin: &Margin| !margin.certain && margin.after_ooms.is_none();
    Ok(Verdict {
        schema_version: SCHEMA_VERSION,
        outcome: if margin.as_ref().is_some_and(is_short) {
            Outcome::Uncertain
        } else {
            outcome
        },
        command: facts.command.clone(),
        ending: facts.ending.clone(),
        gpu: facts.gpu.clone(),
        gpu_name: facts.gpu_name.clone(),
        gpu_count: facts.gpu_count,
        ranks_run: RanksRun::find(&facts),
        capacity: facts.capacity.clone(),
        context: facts.context.clone(),
        torch: facts.torch.clone(),
        allocator: facts.any(facts::ALLOCATOR).map(str::to_owned),
        devices_total,
        devices,
        margin,
        need: None,
        incomplete: facts.any(facts::INCOMPLETE).map(str::to_owned),
        exceptions,
        unmodelled: rows
            .unmodelled
            .iter()
            .map(|(name, calls)| Unmodelled {
                name: name.to_owned(),
                calls,
            })
            .collect(),
        unknown_values: UnknownValues::all(facts.all),
        lag: unknown::lag(facts.all),
        changes: changes::find(&facts),
        costs: costs::find(&facts),
        stopped: facts.any(facts::ENDED_EARLY).map(str::to_owned),
        host_out_of_memory,
        failed_processes: facts.failed_processes(),
        deadlocks: deadlock::find(facts.all),
        limitations: Limitation::all(facts.all),
        hook_failures: HookFailure::all(facts.all),
        unknown: unknown(&facts, outcome, &rows),
        unknown_sizes: rows.unmodelled.unknown_sizes(),
        files: facts
            .any(facts::FILES)
            .and_then(|text| serde_json::from_str(text).ok()),
        foreign,
        side_effects: SideEffects::find(facts.all),
        events: rows.count,
    })
}

/// Facts that the recording does not contain.
fn unknown<R: Read>(facts: &Facts<'_>, outcome: Outcome, rows: &Rows<R>) -> Vec<String> {
    let (calls, used_gpu) = (&rows.unmodelled, rows.tracks().next().is_some());
    // Where other users of a device are the reason that there is no verdict, they are named with it.
    let mut unknown = match outcome {
        Outcome::NotCovered => unknown::list_unknowns(facts.all),
        _ => unknown::sentences(facts.all, calls),
    };
    if let Some(run) = RanksRun::find(facts) {
        let absent = u64::from(run.world_size).saturating_sub(run.ranks.len() as u64);
        if !run.differing.is_empty() {
            let (hold, them) = match run.differing.len() {
                1 => ("holds, which does", "it"),
                _ => ("hold, which do", "them"),
            };
            unknown.push(format!(
                "what {} {hold} something else than those that were run: --ranks auto runs {them} too",
                ranks_named(&run.differing)
            ));
        }
        let taken = "taken to send what the rank that asks sends, so a sum over N ranks is N times its value";
        // Without such a read no decision and no size of the script rests on it.
        let reads = UnknownValues::all(facts.all).is_some();
        match absent {
            _ if !reads => {}
            0 => {}
            1 => unknown.push(format!(
                "what the rank that was not run does: it is {taken}"
            )),
            _ => unknown.push(format!(
                "what the {} ranks that were not run do: each is {taken}",
                count(absent)
            )),
        }
    }
    let left = facts
        .any(facts::LEFT_RUNNING)
        .and_then(|it| it.parse().ok());
    if let Some(left) = left {
        let them = if left == 1 { "it was" } else { "they were" };
        unknown.push(format!(
            "later memory of {} with a GPU that still ran when the command had ended: {them} ended then",
            plural(left, "process")
        ));
    }
    let left = facts.all.iter();
    let left: Vec<_> = left
        .filter(|fact| fact.name == facts::LEFT_WITHOUT_GPU)
        .collect();
    if let [first, rest @ ..] = left.as_slice() {
        let (more, them) = match rest.len() as u64 {
            0 => (String::new(), "it was"),
            more => (format!(" and {} more", count(more)), "they were"),
        };
        unknown.push(format!(
            "memory that `{}`{more} would have used in the background: {them} ended with the command, before any use \
             of a GPU",
            first.text
        ));
    }
    let quiet = facts.any(facts::WITHOUT_NEW_PEAK).filter(|_| used_gpu);
    if facts.any(facts::INTERRUPTED).is_some() && (outcome == Outcome::Fits || quiet.is_some()) {
        let quiet = quiet.map_or_else(String::new, |seconds| {
            format!("; it had gone on for {seconds} s without a new peak")
        });
        unknown.push(format!("what would have come after the interrupt{quiet}"));
    }
    unknown
}

/// How the host ran out of memory, if a failed job reports it or the kernel ended a process for it.
fn host_out_of_memory(facts: &Facts<'_>, exceptions: &[Exception]) -> Option<String> {
    const WORDS: [&str; 3] = [
        "DefaultCPUAllocator",
        "Cannot allocate memory",
        "Unable to allocate",
    ];
    let is_host = |exception: &&Exception| {
        exception.kind == "builtins.MemoryError"
            || exception.kind.ends_with("_ArrayMemoryError")
            || WORDS.iter().any(|word| exception.message.contains(word))
    };
    if exceptions.iter().any(|exception| is_host(&exception)) {
        return Some("the host did not have the memory that the script requested".to_owned());
    }
    let killed: u64 = facts.any(facts::KILLED_FOR_MEMORY)?.parse().ok()?;
    (killed > 0).then(|| {
        "the kernel ended a process of this machine meanwhile because the host was out of memory"
            .to_owned()
    })
}

/// A recording, read to its end.
struct Rows<R> {
    reader: Reader<R>,
    account: Account,
    unmodelled: UnmodelledCalls,
    first_time: Option<i64>,
    count: u64,
}

impl<R: Read> Rows<R> {
    fn read(source: R) -> Result<Self, ReadError> {
        let mut rows = Self {
            reader: Reader::new(source)?,
            account: Account::new(Rounding::PyTorch),
            unmodelled: UnmodelledCalls::default(),
            first_time: None,
            count: 0,
        };
        while let Some(event) = rows.reader.next().transpose()? {
            rows.unmodelled.add(&event, rows.reader.stacks());
            if event.kind != Kind::Unmodelled && event.device >= 0 {
                rows.first_time = rows.first_time.or(event.time);
            }
            rows.account.apply(&event, rows.count, rows.reader.stacks());
            rows.count += 1;
        }
        Ok(rows)
    }

    /// Every process on every device it used.
    fn tracks(&self) -> impl Iterator<Item = ((u32, i32), &DeviceAccount)> {
        let used = |track: &DeviceAccount| {
            let peak = track.at_peak_used().breakdown;
            peak.used > 0 || peak.managed > 0 || track.refusals() > 0 || track.ooms() > 0
        };
        self.account
            .iter()
            .filter(move |((_, device), track)| *device >= 0 && used(track))
    }

    fn totals(&self, facts: &Facts<'_>) -> Vec<DeviceTotal> {
        let mut processes: BTreeMap<i32, u32> = BTreeMap::new();
        for ((_, device), _) in self.tracks() {
            *processes.entry(device).or_default() += 1;
        }
        let total = |(device, processes)| {
            let peak = self.account.peak_in_use(device).unwrap_or_default();
            // Kept beside the rows, so it is right even where rows are missing.
            let kept = facts.any(&facts::peak_in_use(device));
            let kept = kept.and_then(|text| text.parse::<u64>().ok());
            let most = kept.map_or(peak.bytes, |kept| kept.max(peak.bytes));
            DeviceTotal {
                device,
                capacity: facts.capacity.bytes,
                most_in_use: most,
                least_free: facts.capacity.bytes.saturating_sub(most),
                exact: peak.is_exact || kept.is_some(),
                processes,
            }
        };
        processes.into_iter().map(total).collect()
    }

    fn outcome(&self, facts: &Facts<'_>, exceptions: &[Exception]) -> Outcome {
        let unserved = self.tracks().any(|(_, track)| failure(track).is_some());
        let is_memory = |one: &Exception| is_out_of_memory(&one.kind, &one.message, unserved);
        let failed = facts.failed_processes();
        let hangs = facts.any(facts::DEADLOCK).is_some();
        if facts.ending == "exit 0" && failed.is_empty() && !hangs {
            if self.tracks().next().is_none() {
                return Outcome::NoDevice;
            }
            return Outcome::Fits;
        }
        if exceptions.iter().any(is_memory) {
            return Outcome::DoesNotFit;
        }
        let interrupted = facts.any(facts::INTERRUPTED).is_some();
        let is_interrupt = Exception::is_interrupt;
        if interrupted || (!exceptions.is_empty() && exceptions.iter().all(is_interrupt)) {
            return Outcome::Interrupted;
        }
        // A program that is not a Python script has no exception: its last answer was a refusal.
        if unserved && exceptions.is_empty() {
            return Outcome::DoesNotFit;
        }
        Outcome::Failed
    }

    fn devices(&self, outcome: Outcome, facts: &Facts<'_>) -> Vec<DeviceUse> {
        let device = |((process, device), track): ((u32, i32), &DeviceAccount)| {
            let failure = failure(track).filter(|_| outcome == Outcome::DoesNotFit);
            let shown = failure.map_or_else(|| track.at_peak_used(), |failure| failure.moment);
            // While tensors are paused, there are more bytes in blocks than in memory: the most is at another moment.
            let moments = [track.at_peak_allocated(), track.at_peak_used()];
            let allocated = moments.map(|moment| moment.breakdown.allocated);
            let peak_allocated = allocated[0].max(allocated[1]);
            let peak_reserved = track.at_peak_reserved().reserved;
            // Kept beside the rows of a process that lost some.
            let kept = |name: String| {
                let bytes = facts
                    .fact(process, &name)
                    .and_then(|text| text.parse().ok());
                bytes.unwrap_or(0_u64)
            };
            DeviceUse {
                process,
                rank: facts.rank(process),
                device,
                peak: moment(shown.row, shown.time, self.first_time),
                at_peak: shown.breakdown,
                peak_allocated: peak_allocated.max(kept(facts::peak_allocated(device))),
                peak_reserved: peak_reserved.max(kept(facts::peak_reserved(device))),
                // Blocks lie in segments: less reserved than handed out means that segments were not seen.
                reserved_known: peak_reserved >= peak_allocated,
                hooked: facts.fact(process, meta::TORCH_VERSION).is_some(),
                peak_used: track
                    .at_peak_used()
                    .breakdown
                    .used
                    .max(kept(facts::peak_charged(device))),
                holders: Vec::new(),
                ooms: track.ooms(),
                after_ooms: track.after_oom().map(|after| AfterOoms {
                    most_in_use: after.in_use,
                    peak_allocated: after.allocated,
                }),
                refusals: track.refusals(),
                out_of_memory: failure
                    .map(|failure| self.out_of_memory(&failure, track.refusals())),
                events: track.rows(),
            }
        };
        self.tracks().map(device).collect()
    }

    fn out_of_memory(&self, failure: &Refusal, refusals: u64) -> OutOfMemory {
        let stacks = self.reader.stacks();
        let (place, inside) = places(stacks, failure.stack);
        OutOfMemory {
            requested: failure.requested,
            free: failure.free,
            call: failure.call.map(|call| stacks.text(call).to_owned()),
            place,
            inside,
            own_limit: refusals == 0 && is_own_limit(failure.requested, failure.free),
        }
    }
}

/// The request after which a process got nothing more on a device: PyTorch's, or the request of another client of the
/// driver.
fn failure(track: &DeviceAccount) -> Option<Refusal> {
    let oom = track.last_oom().filter(|refusal| refusal.is_last);
    oom.or_else(|| track.last_refusal().filter(|refusal| refusal.is_last))
}

/// Whether an exception is the end of a process that got no GPU memory. `refused`: its last request was refused.
pub fn is_out_of_memory(kind: &str, message: &str, refused: bool) -> bool {
    kind.ends_with("OutOfMemoryError") || (refused && speaks_of_memory(message))
}

/// Whether an exception's message is about device memory that could not be had.
fn speaks_of_memory(message: &str) -> bool {
    const WORDS: [&str; 4] = [
        "out of memory",
        "out_of_memory",
        "cudaErrorMemoryAllocation",
        "ALLOC_FAILED",
    ];
    let lower = message.to_ascii_lowercase();
    WORDS
        .iter()
        .any(|word| lower.contains(&word.to_ascii_lowercase()))
}

fn moment(event: u64, time: Option<i64>, first: Option<i64>) -> Moment {
    let after = time
        .zip(first)
        .map_or(0, |(time, first)| time.saturating_sub(first));
    Moment {
        event,
        after_ns: after.max(0).cast_unsigned(),
    }
}

/// Bytes of a block: as recorded, or the request where that is all there is.
fn taken(event: &Event) -> u64 {
    Rounding::PyTorch.taken(event.size, event.requested).0
}

/// The second reading: what is alive at the peak of each device, by line.
fn find_holders<R: Read>(source: R, devices: &mut [DeviceUse]) -> Result<(), ReadError> {
    let mut reader = Reader::new(source)?;
    let mut live: Vec<BTreeMap<u64, (u64, Option<StackId>)>> = vec![BTreeMap::new(); devices.len()];
    let last = devices.iter().map(|device| device.peak.event).max();
    let mut row = 0;
    while let Some(event) = reader.next().transpose()? {
        for (device, live) in devices.iter().zip(&mut live) {
            let ours = (device.process, device.device) == (event.process, event.device);
            if !ours || row > device.peak.event {
                continue;
            }
            match event.kind {
                Kind::Alloc => {
                    live.insert(event.address, (taken(&event), event.stack));
                }
                Kind::FreeRequested => {
                    live.remove(&event.address);
                }
                _ => {}
            }
        }
        if Some(row) == last {
            break;
        }
        row += 1;
    }
    for (device, live) in devices.iter_mut().zip(live) {
        device.holders = holders(reader.stacks(), live.into_values());
    }
    Ok(())
}

fn holders(
    stacks: &StackTable,
    blocks: impl Iterator<Item = (u64, Option<StackId>)>,
) -> Vec<Holder> {
    // Stacks are shared, so each is looked at once.
    let mut by_stack: BTreeMap<Option<StackId>, (u64, u64)> = BTreeMap::new();
    for (bytes, stack) in blocks {
        let sum = by_stack.entry(stack).or_default();
        sum.0 += bytes;
        sum.1 += 1;
    }
    let mut by_place: BTreeMap<(Option<Place>, Option<Place>), (u64, u64)> = BTreeMap::new();
    for (stack, (bytes, blocks)) in by_stack {
        let sum = by_place.entry(places(stacks, stack)).or_default();
        sum.0 += bytes;
        sum.1 += blocks;
    }
    let mut holders: Vec<Holder> = by_place
        .into_iter()
        .map(|((place, inside), (bytes, blocks))| Holder {
            bytes,
            blocks,
            place,
            inside,
        })
        .collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders.truncate(HOLDERS);
    holders
}

/// The innermost line of the user's code, and the innermost of Python if it is another; frames of C++ only where there
/// are no others.
fn places(stacks: &StackTable, stack: Option<StackId>) -> (Option<Place>, Option<Place>) {
    let Some(stack) = stack else {
        return (None, None);
    };
    let place = |frame: Frame<'_>| Place {
        file: frame.file.to_owned(),
        line: frame.line,
        function: frame.function.to_owned(),
    };
    let is_line = |frame: &Frame<'_>| is_python(frame.file) || is_users(frame.file);
    let inner = stacks.frames(stack).find(is_line);
    let inner = inner.or_else(|| stacks.frames(stack).next()).map(place);
    let users = stacks.frames(stack).find(|frame| is_users(frame.file));
    match users.map(place) {
        Some(users) if Some(&users) == inner.as_ref() => (Some(users), None),
        Some(users) => (Some(users), inner),
        None => (inner, None),
    }
}

/// The description of the run in the recording.
struct Facts<'a> {
    all: &'a [meta::Meta],
    command: String,
    ending: String,
    gpu: String,
    gpu_name: String,
    gpu_count: u32,
    capacity: KnownBytes,
    context: KnownBytes,
    torch: String,
}

impl<'a> Facts<'a> {
    fn read<R: Read>(reader: &'a Reader<R>) -> Self {
        let facts = reader.meta();
        let text = |name: &str| {
            meta::find(facts, tonnage_recording::facts::RUN, name)
                .unwrap_or_default()
                .to_owned()
        };
        let any = |name: &str| facts.iter().find(|fact| fact.name == name);
        let bytes = |name: &str, known: &str| KnownBytes {
            bytes: text(name).parse().unwrap_or(0),
            known: text(known),
        };
        Self {
            all: facts,
            command: text(meta::COMMAND),
            ending: text(facts::ENDING),
            gpu: text(facts::GPU_ID),
            gpu_name: text(meta::GPU_NAME),
            gpu_count: text(facts::GPU_COUNT).parse().unwrap_or(1),
            capacity: bytes(meta::GPU_CAPACITY, facts::GPU_CAPACITY_KNOWN),
            context: bytes(meta::GPU_CONTEXT, facts::GPU_CONTEXT_KNOWN),
            torch: any(meta::TORCH_VERSION).map_or(String::new(), |fact| fact.text.clone()),
        }
    }

    fn fact(&self, process: u32, name: &str) -> Option<&str> {
        meta::find(self.all, process, name)
    }

    fn rank(&self, process: u32) -> Option<u32> {
        self.fact(process, meta::PROCESS_RANK)?.parse().ok()
    }

    /// The fact of the first process that has it.
    fn any(&self, name: &str) -> Option<&str> {
        let found = self.all.iter().find(|fact| fact.name == name);
        found.map(|fact| fact.text.as_str())
    }

    /// The processes that failed.
    fn failed_processes(&self) -> Vec<FailedProcess> {
        let named = |fact: &&meta::Meta| fact.name == facts::FAILED_PROCESS;
        let told = self.all.iter().filter(named);
        told.filter_map(|fact| serde_json::from_str(&fact.text).ok())
            .collect()
    }

    /// The exceptions of the processes, without processes that were only ended because of another.
    fn exceptions(&self) -> Vec<Exception> {
        let found = self.all.iter().filter(|fact| fact.name == facts::EXCEPTION);
        // Others ended well, were started again, or were ended because of these.
        let all_failed = self.failed_processes();
        let failed: Vec<u32> = all_failed.iter().filter_map(|one| one.process).collect();
        let is_of_failed = |fact: &meta::Meta| {
            failed.contains(&fact.process) || fact.text.contains("\"of_failed_process\":true")
        };
        let found = found.filter(|fact| all_failed.is_empty() || is_of_failed(fact));
        let mut raised: Vec<(u32, Exception)> = found
            .filter_map(|fact| {
                let json: serde_json::Value = serde_json::from_str(&fact.text).ok()?;
                let frames = json["stack"].as_array().cloned().unwrap_or_default();
                let mut frames = frames.iter().filter_map(|frame| {
                    Some(Place {
                        function: frame[0].as_str()?.to_owned(),
                        file: frame[1].as_str()?.to_owned(),
                        line: frame[2].as_u64()?,
                    })
                });
                let exception = Exception {
                    kind: json["type"].as_str()?.to_owned(),
                    message: json["message"].as_str().unwrap_or_default().to_owned(),
                    place: frames.find(|place| is_users(&place.file)),
                    rank: json["rank"]
                        .as_str()
                        .and_then(|rank| rank.parse().ok())
                        .or_else(|| self.rank(fact.process)),
                };
                Some((fact.process, exception))
            })
            .collect();
        // That of the process that ended first is the cause of the others.
        raised.sort_by_key(|(process, _)| failed.iter().position(|failed| failed == process));
        let mut raised: Vec<Exception> = raised.into_iter().map(|(_, raised)| raised).collect();
        if !raised.iter().all(Exception::is_interrupt) && self.any(facts::INTERRUPTED).is_none() {
            raised.retain(|exception| !exception.is_interrupt());
        }
        raised
    }
}
