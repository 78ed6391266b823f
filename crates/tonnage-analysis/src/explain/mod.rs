// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why does it need what it needs, and what would help?
//!
//! * `findings!` lists the findings; each has its own file with its code, its page, how it is recognised and what
//!   would help;
//! * `class` determines why a request failed, with `outside` for what others hold; `imbalance` compares the ranks of a
//!   job;
//! * `case` is their input: one process on one device, at one moment;
//! * `need` is what the whole job needs, where it was run on a device without a limit;
//! * `repeats` finds the repeated blocks of a model;
//! * `fixes` and `setting` prove proposals. A setting of the allocator is replayed. Any other change is applied to the
//!   recorded lifetimes of the blocks, and the peak is found again.
//!
//! A finding that rests on the reports of torch or Python is exact; one that rests on patterns of lifetimes is
//! inferred, and is marked as such.

pub mod codes;
pub mod need;

mod activations;
mod attention;
mod case;
mod checkpoint_file;
mod class;
mod fixes;
mod graphs;
mod growth;
mod imbalance;
mod kv_cache;
mod last_result;
mod logits;
mod long_sample;
mod models;
mod next_use;
mod no_grad;
mod optimizer;
mod outside;
mod own_tensors;
mod pipeline;
mod pools;
mod recomputed;
mod regrowth;
mod repeats;
mod setting;
mod spike;
mod state_copy;
#[cfg(test)]
mod tests;
mod trainer;
mod untrained;

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use tonnage_recording::facts;
use tonnage_recording::{Meta, meta};
use tonnage_text::{bytes, plural};

pub use codes::Code;
pub use fixes::{Fix, FixOutcome, Measure, Proof};
pub use need::{Need, Over};
pub use next_use::{NextUse, NextUses, UnusedBlock, UsedNext, UsedPart};

use self::case::Case;
use crate::holdings::{
    Category, CategoryBytes, HeldBy, Holding, Holdings, Known, Phase, Place, Recording, Slack,
    changes, is_users, pattern, site,
};
use crate::replay::Job;
use crate::unknown;
use crate::verdict::ended;

/// A search for one cause of a moment.
type Search = for<'a, 'b> fn(&'a Case<'b>) -> Option<Found>;

/// Lists each finding once: its file, its codes and its searches for causes.
macro_rules! findings {
    ($($file:ident { $($code:ident),* $(; $($search:ident),+)? })+) => {
        mod listed {
            $($(pub use super::$file::$code;)*)+

            pub(super) const CODES: &[super::Code] = &[$($($code,)*)+];
        }

        const SEARCHES: &[Search] = &[$($($($file::$search,)+)?)+];
    };
}

// In the order of the searches: a search does not look at blocks that one before it has explained.
findings! {
    class { FRAGMENTED, LIMIT, SHORT, STRANDED }
    outside { OUTSIDE }
    imbalance { IMBALANCE }
    untrained { UNTRAINED; find }
    no_grad { NO_GRAD; find }
    pipeline { OUTPUTS; find }
    graphs { GRAPHS; find }
    checkpoint_file { CHECKPOINT_FILE; find }
    state_copy { STATE_COPY; gathered, find }
    trainer { ; find }
    regrowth { REGROWTH; find }
    growth { EVALUATION, LEAK; find }
    last_result { LAST_RESULT; find }
    next_use { ; idle }
    pools { PRIVATE_POOLS; find }
    models { SECOND_MODEL, TWO_COPIES, WEIGHTS; two_copies, second_model }
    kv_cache { KV_CACHE; find }
    long_sample { LONG_SAMPLE; find }
    logits { LOSS_SPIKE; find }
    attention { ATTENTION; find }
    optimizer { CHECKPOINTING, OPTIMIZER_STEP; find, checkpointing }
    activations { ACTIVATIONS; find }
    recomputed { RECOMPUTED; find }
    spike { SPIKE; find }
    own_tensors { OWN_TENSORS; find }
    next_use { UNUSED; find }
    own_tensors { ; of_step }
}

/// Version of the JSON that [`Explanation`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 3;

/// How many holders are listed.
const HOLDERS: usize = 6;

/// How the recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A request failed and nothing was requested after it.
    OutOfMemory,
    /// It went on to its end, or to the end of the recording.
    Ran,
}

/// The moment that is explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Moment {
    /// Its row, from 0.
    pub row: u32,
    /// Rows of the recording.
    pub rows: u32,
    /// The activity of the program.
    pub phase: Phase,
    /// Whether the recording itself has it.
    pub phase_known: Known,
    /// The step, from 0.
    pub step: u32,
    /// Nanoseconds since the first row with a time, to within a few rows.
    pub after_ns: Option<u64>,
    /// Where the request was made that reached the peak, or failed.
    pub place: Option<Place>,
    /// Where a request without a Python line, such as one of a backward pass, was called from, according to the
    /// exception that ended the job.
    pub called_at: Option<Place>,
    /// The module in whose forward pass it was.
    pub module: Option<String>,
}

/// The request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Request {
    /// Bytes, as the allocator rounded them.
    pub bytes: u64,
    /// Bytes the driver had left.
    pub free: u64,
    /// Bytes by which the device is too small for what was alive and this; 0 if it is not.
    pub short: u64,
}

/// The memory on the device at the moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OnDevice {
    /// Bytes of the device, where they are known.
    pub capacity: Option<u64>,
    /// Bytes of blocks.
    pub allocated: u64,
    /// Bytes held by PyTorch and not handed out.
    pub cached: u64,
    /// Whether tonnage's allocator held them, in the place of PyTorch's own.
    pub own_allocator: bool,
    /// Bytes of this process's context, where they are known.
    pub context: Option<u64>,
    /// Bytes this process obtained past PyTorch's allocator, where that is known.
    pub outside: Option<u64>,
    /// Bytes that other processes of the recording held on the device, their contexts included.
    pub others: u64,
}

/// The moment at which most of the device was in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Fullest {
    /// Its row, from 0.
    pub row: u32,
    /// The memory on the device then.
    pub on_device: OnDevice,
}

impl OnDevice {
    /// The memory that the process uses: all but the memory of other processes.
    pub fn used(&self) -> u64 {
        let sum = self.allocated.saturating_add(self.cached);
        let sum = sum.saturating_add(self.context.unwrap_or(0));
        sum.saturating_add(self.outside.unwrap_or(0))
    }
}

/// Memory held by one line, for one purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Holder {
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// The purpose.
    pub category: Category,
    /// How that is known.
    pub known: Known,
    /// The user's line, or the innermost of Python.
    pub place: Option<Place>,
    /// The forward line of whose backward pass it is, where it has no line: inferred from what that pass
    /// frees next.
    #[serde(skip)]
    pub backward_of: Option<Place>,
    /// The modules, with `*` for numbers: `layers.*.mlp`.
    pub module: Option<String>,
    /// A tensor of it, where torch named one.
    pub tensor: Option<String>,
    /// Its type and shape.
    pub shape: Option<String>,
    /// The holder, where Python was queried.
    pub held_by: Option<HeldBy>,
}

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Finding {
    /// Its code.
    #[serde(flatten)]
    pub code: Code,
    /// The finding in a clause, for a headline.
    pub headline: Option<String>,
    /// The finding, in one sentence.
    pub sentence: String,
    /// Bytes it accounts for at the moment.
    pub bytes: u64,
    /// The line to look at: where the memory is held, or else where it is made.
    pub place: Option<Place>,
    /// Whether it rests on the reports of torch and Python, or on patterns of lifetimes.
    pub known: Known,
    /// The holder of the memory, where Python was queried.
    pub held_by: Option<HeldBy>,
}

/// The live blocks that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The finding.
    pub code: Code,
    /// Whether they are blocks of the whole job at its fullest moment, and not of the recording at its failure or peak.
    pub whole: bool,
    /// By their index among the blocks of the process and device.
    pub blocks: Vec<u32>,
}

/// The result of a search for one finding.
struct Found {
    finding: Finding,
    fixes: Vec<Fix>,
    /// The live blocks it explains, by index.
    claims: Vec<u32>,
    /// Whether it is something that the program need not do, which ranks before what it must.
    mistake: bool,
}

impl Found {
    /// A finding that rests on what torch and Python recorded.
    fn exact(code: Code, bytes: u64, headline: String, sentence: String) -> Self {
        Self {
            finding: Finding {
                code,
                headline: Some(headline),
                sentence,
                bytes,
                place: None,
                known: Known::Exact,
                held_by: None,
            },
            fixes: Vec::new(),
            claims: Vec::new(),
            mistake: false,
        }
    }

    /// A finding that rests on patterns of lifetimes.
    fn inferred(code: Code, bytes: u64, headline: String, sentence: String) -> Self {
        Self::exact(code, bytes, headline, sentence).inferred_unless(false)
    }

    fn inferred_unless(mut self, exact: bool) -> Self {
        self.finding.known = if exact { Known::Exact } else { Known::Inferred };
        self
    }

    fn with_place(mut self, place: Option<Place>) -> Self {
        self.finding.place = place;
        self
    }

    fn with_holder(mut self, holder: Option<&HeldBy>) -> Self {
        self.finding.held_by = holder.cloned();
        self
    }

    fn with_fixes(mut self, fixes: impl IntoIterator<Item = Fix>) -> Self {
        self.fixes = fixes.into_iter().collect();
        self
    }

    fn with_claims(mut self, blocks: impl IntoIterator<Item = u32>) -> Self {
        self.claims = blocks.into_iter().collect();
        self
    }

    fn with_claims_of(self, blocks: &[case::Live<'_>]) -> Self {
        self.with_claims(blocks.iter().map(|live| live.index))
    }

    fn into_mistake(mut self) -> Self {
        self.mistake = true;
        self
    }
}

/// The largest sum of blocks in another phase than that of the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SecondPeak {
    /// Bytes.
    pub bytes: u64,
    /// The phase.
    pub phase: Phase,
    /// The step.
    pub step: u32,
    /// The row.
    pub row: u32,
}

/// A device that several processes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharedDevice {
    /// How many.
    pub processes: u64,
    /// Most bytes that they had in use at one time.
    pub most_in_use: u64,
}

/// Out-of-memory errors that the program handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Handled {
    /// How often.
    pub times: u64,
    /// Whether the moment that is explained lies before the last of them: in an attempt that was given up, or before.
    pub before_last: bool,
    /// Most bytes of blocks after the last of them.
    pub allocated_after: u64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Explanation {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// How the recording ended.
    pub outcome: Outcome,
    /// The command, where it is known.
    pub command: Option<String>,
    /// The GPU, where it is known.
    pub gpu: Option<String>,
    /// Version of PyTorch, where it is known.
    pub torch: Option<String>,
    /// Number of the process.
    pub process: u32,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// All ranks of which the recording shows memory; the one that is explained failed, or has the largest peak.
    pub ranks: Vec<u32>,
    /// How many ranks the job has, if only some of them were run.
    pub world_size: Option<u32>,
    /// Number of the device.
    pub device: i32,
    /// How many devices the recording shows memory of.
    pub devices: u64,
    /// How many processes used the device, and what they had together; none if no other did.
    pub shared: Option<SharedDevice>,
    /// The moment: the failure, or the peak.
    pub moment: Moment,
    /// The request that failed.
    pub request: Option<Request>,
    /// Out-of-memory errors that the program handled, of one that went on to its end.
    pub handled: Option<Handled>,
    /// The memory on the device.
    pub on_device: OnDevice,
    /// Most bytes of the device that were in use at any moment, where the recording shows the driver's calls.
    pub peak_used: Option<u64>,
    /// The moment at which they were, if that is another than `moment`, at which most is allocated: PyTorch had cached
    /// more then, or more was held outside its allocator. None of a job that failed.
    pub fullest: Option<Fullest>,
    /// The bytes by kind; categories without bytes are left out.
    pub categories: Vec<CategoryBytes>,
    /// Memory that was reserved and not used.
    pub slack: Slack,
    /// The holders of that memory, the largest first.
    pub holders: Vec<Holder>,
    /// When the device next uses what was alive, where a dry run recorded that; of a job that failed, at the fullest
    /// moment of the whole job.
    pub next_uses: Option<NextUses>,
    /// The peak behind the peak.
    pub second_peak: Option<SecondPeak>,
    /// The need of the whole job, where a job that failed was run once more on a device without a limit.
    pub need: Option<Need>,
    /// Why the request failed: TN101 to TN105.
    pub failure_class: Option<Code>,
    /// The findings, the cause first. The class of a failure is among them: first if it is the cause itself
    /// (fragmentation, other streams, other processes), else last.
    pub findings: Vec<Finding>,
    /// Proposed changes, the largest saving first.
    pub fixes: Vec<Fix>,
    /// The blocks that findings are about, for pictures.
    #[serde(skip)]
    pub claims: Vec<Claim>,
    /// Sizes that a library would have reported on a GPU and that are not certain, a sentence each. Figures with
    /// such blocks are assumed, not exact.
    pub unknown_sizes: Vec<String>,
    /// Facts that the recording does not contain.
    pub unknown: Vec<String>,
}

/// Explains the failure or the peak of a recording; none if it shows no block at all.
///
/// `whole` is the same job on a device without a limit, if it was run so. `job` is that recording, or else the
/// first, ready to be replayed; without it no setting is proposed.
pub fn explain(
    recording: &Recording,
    whole: Option<&Recording>,
    job: Option<&Job>,
) -> Option<Explanation> {
    let track = recording.worst()?;
    let failed = track.failure.is_some_and(|failure| failure.last);
    let whole = whole.filter(|_| failed);
    let whole = whole.and_then(|whole| Some((whole, need::same_track(whole, track)?)));
    let own_job = job.filter(|_| whole.is_none());
    let mut case = Case::new(recording, track, track.moment(), own_job, failed);
    let mut all = whole.map(|(whole, track)| Case::new(whole, track, track.peak_row, job, true));
    let need = all.as_ref().map(|all| {
        let (categories, holders) = (categories(all), holders(all));
        let request = case.track.failure.map_or(0, |failure| failure.requested);
        let wanted = case.on_device.allocated.saturating_add(request);
        need::find(all, wanted, moment(all), categories, holders)
    });
    // A second run that did not get to the failure shows a part of the job that fits; the first showed more.
    let known = need.as_ref().filter(|need| need.seen_to_failure);
    all = all.filter(|_| known.is_some());
    let next_uses = next_use::account(all.as_ref().unwrap_or(&case), all.is_some());
    let (class, pinning) = class::find(&case, known)
        .map(|class| class.unless_it_grows(&case, known.is_some()))
        .map(|class| (class.finding, class.pinning))
        .unzip();
    let (mut findings, fixes, claims) = conclude(
        &mut case,
        all.as_mut(),
        known,
        class.as_ref(),
        pinning.unwrap_or_default(),
    );
    // Ranks that were ended when another failed do not show their peaks.
    let compared = if failed {
        whole.map(|(whole, _)| whole)
    } else {
        Some(recording)
    };
    findings.extend(compared.and_then(imbalance::find));
    let fact = |name: &str| recording.fact(track.process, name).map(str::to_owned);
    let (unknown_sizes, unknown) = unknown(recording, whole.map(|(whole, _)| whole), track);
    Some(Explanation {
        schema_version: SCHEMA_VERSION,
        outcome: if failed {
            Outcome::OutOfMemory
        } else {
            Outcome::Ran
        },
        command: fact(meta::COMMAND),
        gpu: fact(meta::GPU_NAME),
        torch: fact(meta::TORCH_VERSION),
        process: track.process,
        rank: recording.rank(track.process),
        ranks: recording.ranks(),
        world_size: recording.world_size(),
        device: track.device,
        devices: recording.devices(),
        shared: recording
            .shared(track)
            .map(|(processes, most_in_use)| SharedDevice {
                processes,
                most_in_use,
            }),
        moment: moment(&case),
        request: case.request(),
        handled: handled(&case).filter(|_| !failed),
        on_device: case.on_device.clone(),
        peak_used: (track.peak_charged > 0)
            .then(|| track.peak_charged.saturating_add(track.context)),
        fullest: fullest(&case).filter(|_| !failed),
        categories: categories(&case),
        slack: case.slack,
        holders: holders(&case),
        next_uses,
        second_peak: second_peak(&case),
        need,
        failure_class: class.map(|class| class.code),
        findings,
        fixes,
        claims,
        unknown_sizes,
        unknown,
    })
}

fn handled(case: &Case<'_>) -> Option<Handled> {
    let last = case.track.failure?.row;
    let later = |block: &&Holding| block.died > last;
    let lifetimes = case.track.blocks.iter().filter(later);
    let lifetimes = lifetimes.map(|block| (block.born.max(last), block.died, block.bytes));
    let (mut sum, mut most) = (0_i64, 0_i64);
    // An attempt that is given up frees what it has before the next request.
    let mut asked = false;
    for (row, change) in changes(lifetimes) {
        sum += change;
        asked |= row > last && change > 0;
        if asked {
            most = most.max(sum);
        }
    }
    Some(Handled {
        times: case.track.failures,
        before_last: case.row < last,
        allocated_after: most.max(0).cast_unsigned(),
    })
}

/// The findings in their order, and what would help. `case` is the moment of the failure or the peak, `all` the
/// fullest moment of the whole job.
fn conclude<'a>(
    case: &mut Case<'a>,
    all: Option<&mut Case<'a>>,
    need: Option<&Need>,
    class: Option<&Finding>,
    pinning: Vec<u32>,
) -> (Vec<Finding>, Vec<Fix>, Vec<Claim>) {
    if let Some(class) = class.filter(|class| class.code == codes::LIMIT) {
        // Nothing that is held is too much for the device.
        return (vec![class.clone()], Vec::new(), Vec::new());
    }
    let short = class.is_some_and(|class| class.code == codes::SHORT);
    let elsewhere = class
        .filter(|class| class.code.code == codes::OUTSIDE.code)
        .and_then(|class| outside::elsewhere(all.as_deref().unwrap_or(case), class));
    let mut fixes = Vec::new();
    let mut claims = Vec::new();
    if let Some(class) = class.filter(|_| !pinning.is_empty()) {
        claims.push(Claim {
            code: class.code,
            whole: false,
            blocks: pinning,
        });
    }
    // A failure because of holes is explained where it fails; a job that needs too much, where it needs most.
    let known_short = if short {
        class.map_or(0, |class| class.bytes.max(1))
    } else {
        0
    };
    let seen_whole = all.is_some();
    let setting = setting::find(all.as_deref().unwrap_or(case), known_short);
    // Holes of a job that hardly fits without them are not all that is wrong.
    let narrow = class.is_some_and(|class| class.code == codes::FRAGMENTED)
        && seen_whole
        && setting
            .iter()
            .any(|fix| fix.outcome == FixOutcome::FitsOnlyIf);
    fixes.extend(setting);
    let whole = seen_whole && (short || narrow);
    let judged = match all {
        Some(all) if whole => all,
        _ => case,
    };
    let mut causes = causes(judged, need.map_or(known_short, |need| need.short));
    // A job that fits otherwise does not fail because of its blocks.
    if class.is_some() && !short && !narrow {
        causes.retain(|cause| cause.finding.code == codes::LONG_SAMPLE);
    }
    let mut findings = Vec::new();
    for cause in causes {
        fixes.extend(cause.fixes);
        claims.push(Claim {
            code: cause.finding.code,
            whole,
            blocks: cause.claims,
        });
        findings.push(cause.finding);
    }
    let outside = outside::find(judged);
    fixes.extend(elsewhere.or_else(|| outside::elsewhere(judged, outside.as_ref()?)));
    if short {
        fixes.extend(setting::device(judged, need));
    }
    let class = class.cloned();
    let outside = outside.filter(|outside| {
        class
            .as_ref()
            .is_none_or(|class| class.code != outside.code)
    });
    findings.extend(outside);
    match class {
        Some(mut class) if short => {
            if findings.is_empty() {
                fixes.extend(name_holder(judged, &mut class));
            }
            findings.push(class);
        }
        Some(class) => findings.insert(0, class),
        None => {}
    }
    fixes.sort_by_key(|fix| order(fix, judged.ran_out));
    (findings, fixes, claims)
}

/// The place of a proposal among others: the largest saving comes first. A setting of the allocator comes before it
/// only where the job fits with it alone, and a larger GPU comes last.
fn order(fix: &Fix, ran_out: bool) -> (bool, bool, std::cmp::Reverse<u64>) {
    let is_larger_device = fix.code == codes::SHORT.code && fix.measure == Measure::Device;
    let is_enough = matches!(fix.outcome, FixOutcome::Fits | FixOutcome::FitsOnlyIf);
    let is_enough_of_itself = ran_out && is_enough && fix.measure == Measure::Reserved;
    let saved = fix.peak_before.saturating_sub(fix.peak_after);
    (
        is_larger_device,
        !is_enough_of_itself,
        std::cmp::Reverse(saved),
    )
}

/// Tensors from which on a container could hold fewer of them.
const MANY: usize = 4;

/// Where nothing else was found, what holds most is worth a name; what a container holds could be on the host.
fn name_holder(case: &Case<'_>, class: &mut Finding) -> Option<Fix> {
    let alive: Vec<case::Live<'_>> = case.alive().collect();
    let Some(held) = case::most_named(&alive) else {
        name_line(case, class, &alive);
        return None;
    };
    let of_it = alive.iter().filter(|live| live.held == Some(held));
    let gone: HashSet<u32> = of_it.clone().map(|live| live.index).collect();
    let (sum, blocks) = (of_it.map(|live| live.block.bytes).sum(), gone.len());
    if !case.is_large(sum, case::LARGE_SHARE) {
        name_line(case, class, &alive);
        return None;
    }
    let tensors = case::counted(blocks, "tensor", "tensors");
    let holds = format!(
        "{} holds {} in {tensors}",
        held.describe_holder(),
        bytes(sum)
    );
    let line = case::at(held.place.as_ref());
    class.sentence = format!("{}; {holds} ({line})", class.sentence);
    class.headline = Some(holds);
    class.place = held.place.clone().or_else(|| class.place.clone());
    class.held_by = Some(held.clone());
    if !held.sort.is_container() || blocks < MANY {
        return None;
    }
    let advice = format!(
        "keep what {} holds on the host ({line}), and move each to the GPU when it is used",
        held.describe_holder()
    );
    let proposal = fixes::Proposal::new(class.code.code, advice, "that would be on the host");
    let mut fix = fixes::without(case, proposal, &gone)?;
    // How many are on the GPU at once is not known, so it is not certain that the rest fits.
    fix.estimate = true;
    fix.leave_open();
    Some(fix)
}

/// Names the line that made the largest part of the live memory.
fn name_line(case: &Case<'_>, class: &mut Finding, alive: &[case::Live<'_>]) {
    let Some(place) = case.largest_place(alive.iter().map(|live| live.block)) else {
        return;
    };
    let of_it = alive
        .iter()
        .filter(|live| case.site(live.block).as_ref() == Some(&place));
    let sum: u64 = of_it.map(|live| live.block.bytes).sum();
    if case.is_large(sum, case::LARGE_SHARE) {
        let made = format!("{} was allocated at {}", bytes(sum), case::at(Some(&place)));
        class.sentence = format!("{}; {made}", class.sentence);
        class.headline = Some(made);
        class.place = Some(place);
    }
}

/// Everything that makes the moment, the cause first.
fn causes(case: &mut Case<'_>, short: u64) -> Vec<Found> {
    case.set_unused(next_use::unused(case));
    let mut causes: Vec<Found> = Vec::new();
    for search in SEARCHES {
        if let Some(found) = search(case) {
            case.claim(found.claims.iter().copied());
            causes.push(found);
        }
    }
    // Weights are a cause only where nothing is wrong.
    if !causes.iter().any(|found| found.mistake) {
        causes.extend(models::weights(case));
    }
    let weighty = |found: &Found| {
        let bytes = found.finding.bytes;
        let claims = found.claims.iter().filter(|&&index| case.is_unused(index));
        let claims: HashSet<u32> = claims.copied().collect();
        let unused = case.alive().filter(|live| claims.contains(&live.index));
        let unused: u64 = unused.map(|live| live.block.bytes).sum();
        // Memory that grows will be a larger share in a longer job.
        let grows = found.finding.code == codes::LEAK && case.is_large(bytes, case::SHARE);
        found.mistake
            && (grows
                || case.is_large(bytes, case::LARGE_SHARE)
                || case.is_large(unused, case::SHARE)
                || (short > 0 && bytes >= short))
    };
    causes.sort_by_key(|found| (!weighty(found), std::cmp::Reverse(found.finding.bytes)));
    // Memory that grows is not a large sample.
    if causes
        .first()
        .is_some_and(|first| first.mistake && first.finding.code != codes::LONG_SAMPLE)
    {
        causes.retain(|found| found.finding.code != codes::LONG_SAMPLE);
    }
    causes
}

/// The fullest moment, where more is in use then than at the one that is explained.
fn fullest(case: &Case<'_>) -> Option<Fullest> {
    let fullest = case.track.fullest?;
    let then = fullest.breakdown;
    (then.used > case.on_device.used()).then(|| Fullest {
        row: u32::try_from(fullest.row).unwrap_or(u32::MAX),
        on_device: OnDevice {
            capacity: case.track.capacity,
            allocated: then.allocated,
            cached: then.cached,
            own_allocator: case.on_device.own_allocator,
            context: Some(then.context),
            outside: Some(then.other),
            others: then.other_processes,
        },
    })
}

fn moment(case: &Case<'_>) -> Moment {
    let (recording, track, row) = (case.recording, case.track, case.row);
    let failure = track.failure.filter(|_| case.failed);
    let made = track.blocks.iter().find(|block| block.born == row);
    let stack = failure.map_or_else(|| made.and_then(|block| block.stack), |f| f.stack);
    let module = failure.map_or_else(|| made.and_then(|block| block.module), |f| f.module);
    let span = track.phase_at(row);
    let place = site(&recording.stacks, stack);
    let called_at = match place {
        None if failure.is_some() => raised_at(recording, track.process),
        _ => None,
    };
    Moment {
        row,
        rows: recording.rows,
        phase: case.phase(),
        phase_known: if track.phases_told {
            Known::Exact
        } else {
            Known::Inferred
        },
        step: failure.map_or_else(|| span.map_or(0, |span| span.step), |f| f.step),
        after_ns: after(recording, row),
        place,
        called_at,
        module: module.map(|id| recording.stacks.text(id).to_owned()),
    }
}

/// The user's line at which the exception was raised that ended a process.
fn raised_at(recording: &Recording, process: u32) -> Option<Place> {
    let text = meta::find(&recording.meta, process, facts::EXCEPTION)?;
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let mut frames = json["stack"].as_array()?.iter().filter_map(|frame| {
        Some(Place {
            function: frame[0].as_str()?.to_owned(),
            file: frame[1].as_str()?.to_owned(),
            line: frame[2].as_u64()?,
        })
    });
    frames.find(|place| is_users(&place.file))
}

fn after(recording: &Recording, row: u32) -> Option<u64> {
    let index = recording.times.partition_point(|&(at, _)| at <= row);
    Some(recording.times.get(index.checked_sub(1)?)?.1)
}

fn categories(case: &Case<'_>) -> Vec<CategoryBytes> {
    let all = case.track.categories_at(case.row).into_iter();
    all.filter(|part| part.blocks > 0).collect()
}

fn holders(case: &Case<'_>) -> Vec<Holder> {
    type Key = (
        Category,
        Option<String>,
        Option<Place>,
        Option<Place>,
        Option<HeldBy>,
    );
    // With the bytes of the tensor that is named as an example: the largest.
    let mut groups: BTreeMap<Key, (Holder, u64)> = BTreeMap::new();
    let stacks = case.stacks();
    for live in case.alive() {
        let block = live.block;
        let forward = case.backward_of(block);
        let module = forward.unwrap_or(block).module;
        let module = module.map(|id| pattern(stacks.text(id)));
        let place = site(stacks, block.stack);
        let backward_of = forward.and_then(|forward| case.site(forward));
        let held_by = live.held.cloned();
        let (holder, largest) = groups
            .entry((
                block.category,
                module.clone(),
                place.clone(),
                backward_of.clone(),
                held_by.clone(),
            ))
            .or_insert_with(|| {
                let holder = Holder {
                    bytes: 0,
                    blocks: 0,
                    category: block.category,
                    known: Known::Exact,
                    place,
                    backward_of,
                    module,
                    tensor: None,
                    shape: None,
                    held_by,
                };
                (holder, 0)
            });
        holder.bytes += block.bytes;
        holder.blocks += 1;
        holder.known = holder.known.max(block.known);
        if block.name.is_some() && block.bytes > *largest {
            *largest = block.bytes;
            holder.tensor = block.name.map(|id| stacks.text(id).to_owned());
            let shape = block.shape.map(|id| stacks.text(id));
            holder.shape = shape.and_then(|text| Some(text.split_once(' ')?.1.to_owned()));
        }
    }
    let mut holders: Vec<Holder> = groups.into_values().map(|(holder, _)| holder).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders.truncate(HOLDERS);
    holders
}

fn second_peak(case: &Case<'_>) -> Option<SecondPeak> {
    let phase = case.phase();
    let peaks = case.track.phase_peaks().into_iter();
    let others = peaks.filter(|(span, bytes, row)| {
        // After a failure the recording shows unwinding, not the program.
        span.phase != phase && *bytes > 0 && (!case.failed || *row < case.row)
    });
    // The first of equals.
    let best = others.rev().max_by_key(|(_, bytes, _)| *bytes)?;
    Some(SecondPeak {
        bytes: best.1,
        phase: best.0.phase,
        step: best.0.step,
        row: best.2,
    })
}

/// How a job failed, if it did and not because of memory: what came first, where it is known.
pub fn failed_otherwise(recording: &Recording) -> Option<String> {
    let run = |name: &str| meta::find(&recording.meta, facts::RUN, name);
    let ending = run(facts::ENDING).filter(|ending| *ending != "exit 0")?;
    let out_of_memory = |track: &Holdings| track.failure.is_some_and(|failure| failure.last);
    let is_stopped = facts::why_stopped(&recording.meta).is_some();
    if is_stopped || run(facts::INTERRUPTED).is_some() || recording.tracks.iter().any(out_of_memory)
    {
        return None;
    }
    if recording
        .meta
        .iter()
        .any(|fact| fact.name == facts::DEADLOCK)
    {
        return Some("ranks wait forever".to_owned());
    }
    let raised = recording.meta.iter().find_map(|fact| {
        let told = (fact.name == facts::EXCEPTION).then_some(&fact.text)?;
        let json: serde_json::Value = serde_json::from_str(told).ok()?;
        let kind = json["type"]
            .as_str()?
            .trim_start_matches("builtins.")
            .to_owned();
        Some((fact.process, kind))
    });
    let Some((process, kind)) = raised else {
        return Some(format!("it {}", ended(ending)));
    };
    let rank = recording.rank(process);
    let rank = rank.map_or_else(String::new, |rank| format!(" on rank {rank}"));
    let place = raised_at(recording, process);
    let place = place.map_or_else(String::new, |place| {
        format!(" at {}:{}", place.file, place.line)
    });
    Some(format!("{kind}{rank}{place}"))
}

/// The sizes that are not known, and all that the recording does not contain.
fn unknown(
    recording: &Recording,
    whole: Option<&Recording>,
    track: &Holdings,
) -> (Vec<String>, Vec<String>) {
    let mut sizes = recording.unmodelled.unknown_sizes();
    // The need of the job rests on the sizes of the whole job, not only on those before the failure.
    for sentence in whole.map_or_else(Vec::new, |whole| whole.unmodelled.unknown_sizes()) {
        if !sizes.contains(&sentence) {
            sizes.push(sentence);
        }
    }
    let about = |fact: &&Meta| fact.process == track.process || fact.process == facts::RUN;
    let facts: Vec<Meta> = recording.meta.iter().filter(about).cloned().collect();
    let mut unknown = sizes.clone();
    let told = unknown::sentences(&facts, &recording.unmodelled);
    unknown.extend(told.into_iter().filter(|gap| !sizes.contains(gap)));
    if track.unseen_births > 0 {
        let sum: u64 = track
            .blocks
            .iter()
            .filter(|block| block.born == 0 && block.stack.is_none())
            .map(|block| block.bytes)
            .sum();
        unknown.push(format!(
            "who made {} that were there before the recording began",
            bytes(sum)
        ));
    }
    if track.sizes_unknown > 0 {
        unknown.push(format!(
            "how far {} {} rounded beyond 512 bytes: at least so much is allocated",
            plural(track.sizes_unknown, "block"),
            if track.sizes_unknown == 1 {
                "was"
            } else {
                "were"
            }
        ));
    }
    if !track.phases_told {
        // Blocks that torch named are certain all the same, and the others are marked where they stand.
        let is_exact = |block: &Holding| block.known == Known::Exact;
        if !track.blocks.iter().any(is_exact) {
            let gap = "categories and phases: they are inferred from stacks and lifetimes";
            unknown.push(gap.to_owned());
        } else if track.phases.len() > 1 {
            unknown.push("phases: they are inferred from stacks".to_owned());
        }
    }
    if track.capacity.is_none() && !unknown.iter().any(|gap| gap.contains("capacity")) {
        unknown.push("the capacity of the device".to_owned());
    }
    if let Some(failure) = failed_otherwise(recording) {
        unknown.push(format!(
            "what would have come after the failure of the job: {failure}"
        ));
    }
    if recording.truncated {
        unknown.push("the end: the recording stops in the middle".to_owned());
    }
    (sizes, unknown)
}
