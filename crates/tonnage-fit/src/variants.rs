// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dry runs of the variants of a job: the first in its own process, the others in forks of one that has imported
//! what the first imported.
//!
//! Whether a fork does the same as a fresh process is not taken for granted: the first variant is run in both ways, and
//! the recordings are compared. If they differ, or the job cannot be forked, every variant gets its own process.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tempfile::TempDir;
use tonnage_analysis::verdict::{Costs, Outcome, ProgramChange, Verdict, ended};
use tonnage_gpus::Gpu;
use tonnage_run::{
    DryRun, ForkServer, Imports, Job, JobOutput, Observer, Options, Progress, RunError, dry_run,
    dry_run_forked, first_dry_run, private_folder,
};

use crate::compare::first_difference;

/// Receives the events of a search, from several threads.
pub trait Watcher: Sync {
    /// Something begins or is known.
    fn stage(&self, stage: Stage<'_>) {
        let _ = stage;
    }

    /// Whether to end with what is known.
    fn stopped(&self) -> bool {
        false
    }
}

/// An event of a search.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stage<'a> {
    /// A variant is run: its values, and the changes to the program.
    Trying(&'a [(String, String)], &'a [String]),
    /// The imports of the job run once for all variants.
    Importing,
    /// Variants are not forked, and why.
    NotForked(&'a str),
    /// A variant was judged.
    Tried(&'a Trial),
    /// The largest value that fits is probably one of these: a line through two trials crosses the limit there.
    Estimated {
        /// The parameter that is searched.
        name: &'a str,
        /// The smallest of them.
        low: u64,
        /// The largest.
        high: u64,
    },
}

/// How sure a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Seen in a dry run; the smallest GPU was found by replaying it.
    Replayed,
    /// Seen in a dry run in which some size depended on an unknowable value.
    Assumed,
    /// The most that was in use, which may be more than is needed.
    AtMost,
    /// Less than the job takes: it did not run to its end, or its cache comes on top.
    AtLeast,
}

/// One variant, and what its dry run showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Trial {
    /// Names and values of the parameters.
    pub values: Vec<(String, String)>,
    /// The command as a shell takes it, with the environment variables that were given a value.
    pub command: String,
    /// The constants of the source that were given a value.
    pub constants: Vec<ConstantValue>,
    /// How the run went; `uncertain` if it ran to its end without leaving the margin.
    pub outcome: Outcome,
    /// Whether it fits with the margin, without running out of memory once.
    pub fits: bool,
    /// How often it ran out of memory and went on.
    pub handled_ooms: u64,
    /// Bytes of a GPU that the variant needs, context included; none if that is not known.
    pub need: Option<u64>,
    /// How that is known.
    pub evidence: Evidence,
    /// The same with expandable segments, replayed; none where that is not less.
    pub expandable: Option<u64>,
    /// Bytes of the GPU.
    pub capacity: u64,
    /// Bytes that are to stay free: the margin that was given, or what is not counted.
    pub margin: u64,
    /// Largest sum of blocks on one device.
    pub peak_allocated: u64,
    /// Why it failed, if it was not for memory.
    pub why: Option<String>,
    /// When the job was stopped before its end, as was requested.
    pub stopped: Option<String>,
    /// The outcomes of the changes that were to be made to the program.
    pub changes: Vec<ProgramChange>,
    /// The GPU work of the job; for a job that does not fit, on a GPU without a limit.
    pub costs: Option<Costs>,
    /// The unknowns of a dry run, a sentence each.
    pub unknown: Vec<String>,
    /// Its recording, as long as the search goes on, if one was requested.
    #[serde(skip)]
    pub(crate) recording: PathBuf,
    /// Whether it ran in a fork.
    pub forked: bool,
    /// Seconds that it took.
    pub seconds: f64,
}

/// A constant of the source with the value that it has in a variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ConstantValue {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The value, as it would be written there.
    pub value: String,
}

/// A variant that is to be run.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) job: Job,
    /// The command as a shell takes it.
    pub(crate) line: String,
    pub(crate) constants: Vec<ConstantValue>,
    pub(crate) values: Vec<(String, String)>,
    /// The source files that are another's for it.
    pub(crate) sources: Vec<(PathBuf, String)>,
    /// Changes that are made to the program, by name.
    pub(crate) changes: Vec<String>,
    /// The GPU, instead of the requested one.
    pub(crate) gpu: Option<Gpu>,
}

/// Runs variants.
pub(crate) struct Variants<'a> {
    pub(crate) options: Options,
    /// Whether the recordings are kept as long as the search goes on.
    keep: bool,
    watcher: &'a dyn Watcher,
    folder: TempDir,
    numbers: AtomicUsize,
    first: Option<First>,
    server: Option<ForkServer>,
    /// Why there is no server.
    pub(crate) not_forked: Option<String>,
    /// The largest margin of a trial.
    margin_seen: u64,
    /// How often a job was run: also without a limit, and in a fork to compare it.
    runs: AtomicUsize,
}

/// The first variant, which ran in its own process.
struct First {
    variant: Variant,
    recording: PathBuf,
    imports: Option<Imports>,
    took: Duration,
}

/// A run that is prepared.
struct Begun {
    job: Job,
    options: Options,
    recording: PathBuf,
    at: Instant,
}

impl<'a> Variants<'a> {
    pub(crate) fn new(
        options: &Options,
        margin: Option<u64>,
        keep: bool,
        watcher: &'a dyn Watcher,
    ) -> Result<Self, RunError> {
        let mut options = options.clone();
        options.margin = margin;
        Ok(Self {
            options,
            keep,
            watcher,
            folder: private_folder("tonnage-fit-")?,
            numbers: AtomicUsize::new(0),
            first: None,
            server: None,
            not_forked: None,
            margin_seen: 0,
            runs: AtomicUsize::new(0),
        })
    }

    /// Runs some variants, at most `width` at a time. Variants that were not begun when the watcher stopped are
    /// missing.
    pub(crate) fn run(
        &mut self,
        variants: &[Variant],
        width: usize,
    ) -> Result<Vec<Option<Trial>>, RunError> {
        let mut trials: Vec<Option<Trial>> = vec![None; variants.len()];
        let mut rest = 0;
        if self.first.is_none()
            && let Some(variant) = variants.first()
        {
            trials[0] = self.run_first(variant)?;
            rest = 1;
        }
        if rest < variants.len() && self.server.is_none() && self.not_forked.is_none() {
            self.start_server();
        }
        let server = self.server.take();
        let next = AtomicUsize::new(rest);
        let results = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..width.clamp(1, variants.len().max(1)) {
                scope.spawn(|| {
                    while !self.watcher.stopped() {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(variant) = variants.get(number) else {
                            break;
                        };
                        let trial = self.run_one(variant, server.as_ref());
                        if let Ok(mut results) = results.lock() {
                            results.push((number, trial));
                        }
                    }
                });
            }
        });
        self.server = server;
        for (number, trial) in results.into_inner().unwrap_or_default() {
            trials[number] = trial?;
        }
        let margins = trials.iter().flatten().map(|trial| trial.margin);
        self.margin_seen = margins.max().unwrap_or(0).max(self.margin_seen);
        Ok(trials)
    }

    /// The largest margin of all trials.
    pub(crate) fn margin_seen(&self) -> u64 {
        self.margin_seen
    }

    /// Runs the first variant in its own process.
    fn run_first(&mut self, variant: &Variant) -> Result<Option<Trial>, RunError> {
        let begun = self.begin(variant);
        let mut observer = Until::stopped(self.watcher);
        let (run, imports) =
            first_dry_run(&begun.job, &begun.options, &begun.recording, &mut observer)?;
        let trial = self.judged(variant, &run, &begun, false);
        self.first = Some(First {
            variant: variant.clone(),
            recording: begun.recording,
            imports,
            took: run.limited.end.elapsed,
        });
        Ok(trial)
    }

    /// Runs a variant; nothing if it was stopped.
    fn run_one(
        &self,
        variant: &Variant,
        server: Option<&ForkServer>,
    ) -> Result<Option<Trial>, RunError> {
        let begun = self.begin(variant);
        let Begun {
            job,
            options,
            recording,
            ..
        } = &begun;
        let mut observer = Until::stopped(self.watcher);
        let server = server.filter(|server| server.serves(job, options));
        if let Some(server) = server {
            let run = dry_run_forked(server, job, options, recording, &mut observer);
            match run {
                // It was interrupted with its variants.
                Err(RunError::ForkServer { .. }) if self.watcher.stopped() => return Ok(None),
                Err(RunError::ForkServer { .. }) => {}
                other => return Ok(self.judged(variant, &other?, &begun, true)),
            }
        }
        let run = dry_run(job, options, recording, &mut observer)?;
        Ok(self.judged(variant, &run, &begun, false))
    }

    /// Says what is tried, and prepares its run.
    fn begin(&self, variant: &Variant) -> Begun {
        self.watcher
            .stage(Stage::Trying(&variant.values, &variant.changes));
        let recording = self.recording();
        Begun {
            job: logged(&variant.job, &recording),
            options: self.options_of(variant),
            recording,
            at: Instant::now(),
        }
    }

    /// Starts a fork server, and compares the first variant in a fork with the same in its own process.
    fn start_server(&mut self) {
        let Some(first) = &self.first else {
            return;
        };
        self.watcher.stage(Stage::Importing);
        let checked = self.checked_server(first);
        match checked {
            Ok(server) => self.server = Some(server),
            // Nothing more is run.
            Err(_) if self.watcher.stopped() => {}
            Err(why) => {
                self.watcher.stage(Stage::NotForked(&why));
                self.not_forked = Some(why);
            }
        }
    }

    fn checked_server(&self, first: &First) -> Result<ForkServer, String> {
        let imports = first.imports.as_ref();
        let imports =
            imports.ok_or_else(|| "the first run did not report its imports".to_owned())?;
        let told = |error: RunError| match error {
            RunError::ForkServer { why } => why,
            other => other.to_string(),
        };
        let recording = self.recording();
        let job = logged(&first.variant.job, &recording);
        let mut options = self.options_of(&first.variant);
        let server = ForkServer::start(&job, &options, imports).map_err(told)?;
        options.stop_at_oom = true;
        options.holders_at_end = true;
        // A fork that waits for what is not there waits forever. On a busy machine one that does not takes long, too.
        let limit = first.took * 3 + Duration::from_secs(20);
        let mut observer = Until {
            limit: Some(limit),
            ..Until::stopped(self.watcher)
        };
        let run = dry_run_forked(&server, &job, &options, &recording, &mut observer);
        let run = run.map_err(told)?;
        self.count(&run);
        if self.watcher.stopped() {
            return Err("it was interrupted".to_owned());
        }
        if run.limited.end.interrupted {
            let seconds = limit.as_secs();
            return Err(format!(
                "a fork did nothing for {seconds} s, or did not end"
            ));
        }
        let difference = difference(&first.recording, &recording);
        self.forget(&first.recording);
        self.forget(&recording);
        match difference {
            Ok(None) => Ok(server),
            Ok(Some(row)) => Err(format!(
                "a fork did not do the same as a fresh process, from event {row} on"
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The machine, with what is another for this variant.
    fn options_of(&self, variant: &Variant) -> Options {
        let mut options = self.options.clone();
        options.sources.clone_from(&variant.sources);
        options.changes.clone_from(&variant.changes);
        if let Some(gpu) = &variant.gpu {
            options.gpu.clone_from(gpu);
        }
        // Nobody sees them in a recording that is not kept.
        options.holders_at_end = self.keep || self.first.is_none();
        options
    }

    fn recording(&self) -> PathBuf {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("{number}.tonnage"))
    }

    /// Removes a recording that no caller requested to keep.
    fn forget(&self, recording: &Path) {
        if !self.keep {
            let _ = std::fs::remove_file(recording);
        }
    }

    /// Whether the search is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.watcher.stopped()
    }

    /// How many dry runs were made.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }

    fn count(&self, run: &DryRun) {
        let runs = 1 + usize::from(run.unlimited.is_some());
        self.runs.fetch_add(runs, Ordering::Relaxed);
    }

    fn judged(
        &self,
        variant: &Variant,
        run: &DryRun,
        begun: &Begun,
        forked: bool,
    ) -> Option<Trial> {
        self.count(run);
        let (verdict, recording) = (&run.verdict, &begun.recording);
        if verdict.outcome == Outcome::Interrupted && self.watcher.stopped() {
            return None;
        }
        let mut trial = judge(
            variant,
            verdict,
            self.options.margin,
            forked,
            begun.at.elapsed().as_secs_f64(),
        );
        if verdict.outcome == Outcome::Failed && verdict.exceptions.is_empty() {
            trial.why = trial.why.map(|why| match last_line(recording) {
                Some(line) => format!("{why}; the last line it wrote: {line}"),
                None => why,
            });
        }
        let _ = std::fs::remove_file(recording.with_extension("output"));
        // The first one is compared with a fork of it.
        if self.first.is_some() {
            self.forget(recording);
        }
        recording.clone_into(&mut trial.recording);
        self.watcher.stage(Stage::Tried(&trial));
        Some(trial)
    }
}

fn judge(
    variant: &Variant,
    verdict: &Verdict,
    margin: Option<u64>,
    forked: bool,
    seconds: f64,
) -> Trial {
    let (need, evidence) = needed(verdict);
    let margin = match (&verdict.margin, &verdict.need) {
        (Some(found), _) => found.kept,
        (None, Some(need)) => margin.unwrap_or(need.uncounted),
        (None, None) => margin.unwrap_or(0),
    };
    let mut unknown = verdict.unknown_sizes.clone();
    if let Some(values) = &verdict.unknown_values
        && values.sizes > 0
    {
        unknown.push(format!(
            "{} sizes depend on values that a dry run does not compute",
            values.sizes
        ));
    }
    Trial {
        values: variant.values.clone(),
        command: variant.line.clone(),
        constants: variant.constants.clone(),
        outcome: verdict.outcome,
        // A job that ran out and went on is not the requested run.
        fits: verdict.outcome == Outcome::Fits && verdict.handled_ooms() == 0,
        handled_ooms: verdict.handled_ooms(),
        need,
        evidence,
        expandable: verdict.need.as_ref().and_then(|need| need.expandable),
        capacity: verdict.capacity.bytes,
        margin,
        changes: verdict.changes.clone(),
        costs: verdict.costs,
        peak_allocated: peak_allocated(verdict),
        why: reason(verdict),
        stopped: verdict.stopped.clone(),
        unknown,
        recording: PathBuf::new(),
        forked,
        seconds,
    }
}

/// The job with its output in a file beside the recording: only the reason of a failure is read from it.
fn logged(job: &Job, recording: &Path) -> Job {
    let mut job = job.clone();
    job.output = JobOutput::File(recording.with_extension("output"));
    job
}

/// The last line that a job wrote, which is where most programs write why they end.
fn last_line(recording: &Path) -> Option<String> {
    let mut file = File::open(recording.with_extension("output")).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(4096)))
        .ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}

/// Bytes of a GPU that a job needs, and how that is known.
fn needed(verdict: &Verdict) -> (Option<u64>, Evidence) {
    let replayed = if verdict.assumes_sizes() {
        Evidence::Assumed
    } else {
        Evidence::Replayed
    };
    if let Some(need) = &verdict.need {
        let evidence = match need.known.as_str() {
            "replayed" if need.complete => replayed,
            _ => Evidence::AtLeast,
        };
        let bytes = (need.known != "unknown").then_some(need.bytes);
        return (bytes, evidence);
    }
    if verdict.outcome == Outcome::DoesNotFit || verdict.handled_ooms() > 0 {
        return (None, Evidence::AtLeast);
    }
    let smallest = verdict.margin.as_ref().and_then(|margin| margin.smallest);
    if let Some(smallest) = smallest {
        return (Some(smallest), replayed);
    }
    let most = verdict.devices_total.iter().map(|it| it.most_in_use).max();
    (most, Evidence::AtMost)
}

fn peak_allocated(verdict: &Verdict) -> u64 {
    if let Some(need) = &verdict.need {
        return need.peak_allocated;
    }
    let peaks = verdict.devices.iter().map(|device| device.peak_allocated);
    peaks.max().unwrap_or(0)
}

/// Why a job ended early, where it was not for the memory of the GPU.
fn reason(verdict: &Verdict) -> Option<String> {
    match verdict.outcome {
        Outcome::Fits | Outcome::Uncertain | Outcome::DoesNotFit => None,
        Outcome::Interrupted => Some("it was interrupted".to_owned()),
        Outcome::NoDevice => Some("it did not use a GPU".to_owned()),
        Outcome::NotCovered => Some("it uses CUDA in ways that a dry run cannot follow".to_owned()),
        Outcome::Failed => {
            let exception = verdict.exceptions.first().map(|exception| {
                let kind = exception.kind.trim_start_matches("builtins.");
                let message = exception.message.lines().next().unwrap_or_default();
                format!("{kind}: {message}")
            });
            let host = verdict.host_out_of_memory.clone();
            Some(
                exception
                    .or(host)
                    .unwrap_or_else(|| format!("it {}", ended(&verdict.ending))),
            )
        }
    }
}

/// The first row in which two recordings differ; only the first part of each is read.
fn difference(one: &Path, other: &Path) -> Result<Option<u64>, Box<dyn std::error::Error>> {
    Ok(first_difference(File::open(one)?, File::open(other)?)?)
}

/// Ends a run when the watcher does, or when it seems to wait forever.
struct Until<'a> {
    watcher: &'a dyn Watcher,
    /// How long it may do nothing with a GPU; all of it may take ten times as long.
    limit: Option<Duration>,
    /// The events of the allocator so far, and when the last of them was seen.
    events: (u64, Duration),
}

impl<'a> Until<'a> {
    fn stopped(watcher: &'a dyn Watcher) -> Self {
        Self {
            watcher,
            limit: None,
            events: (0, Duration::ZERO),
        }
    }
}

impl Observer for Until<'_> {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        if progress.events != self.events.0 {
            self.events = (progress.events, progress.elapsed);
        }
        let idle = progress.elapsed.saturating_sub(self.events.1);
        let is_late = self
            .limit
            .is_some_and(|limit| idle > limit || progress.elapsed > limit * 10);
        if is_late || self.watcher.stopped() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Patient;

    impl Watcher for Patient {}

    #[test]
    fn a_fork_that_goes_on_slowly_is_waited_for_and_one_that_does_nothing_is_not() {
        let mut until = Until {
            limit: Some(Duration::from_secs(10)),
            ..Until::stopped(&Patient)
        };
        let mut after = |seconds, events| {
            let mut progress = Progress::default();
            progress.elapsed = Duration::from_secs(seconds);
            progress.events = events;
            until.progress(&progress)
        };
        assert_eq!(after(9, 0), ControlFlow::Continue(()));
        assert_eq!(after(18, 1), ControlFlow::Continue(()));
        assert_eq!(after(27, 2), ControlFlow::Continue(()));
        assert_eq!(after(38, 2), ControlFlow::Break(()));
        assert_eq!(after(101, 3), ControlFlow::Break(()));
    }
}
