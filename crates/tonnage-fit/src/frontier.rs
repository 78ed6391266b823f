// SPDX-License-Identifier: MIT OR Apache-2.0
//! The largest number that fits, for each combination of the others.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;
use tonnage_analysis::verdict::Outcome;
use tonnage_gpus::Gpu;
use tonnage_run::changes::Maths;
use tonnage_run::{Constant, Job, Options, RunError};

use crate::gpus::{self, GpuVerdict};
use crate::remedies::{self, Remedies, Remedy};
use crate::search::{Judgement, Search};
use crate::template::{Choice, Template, TemplateError};
use crate::variants::{ConstantValue, Stage, Trial, Variant, Variants, Watcher};

/// Version of the JSON that [`Fit`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// The question.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The job; placeholders stand in the words of its command and in its environment variables.
    pub job: Job,
    /// The names of environment variables that may have placeholders, with their text.
    pub variables: Vec<(String, String)>,
    /// Constants of the source: the place, the name, and the text, which may have placeholders.
    pub constants: Vec<(Constant, String, String)>,
    /// The GPU.
    pub options: Options,
    /// Several GPUs to choose from, instead of the one of the options.
    pub gpus: Vec<Gpu>,
    /// Their cost, by the catalogue's name.
    pub prices: BTreeMap<String, f64>,
    /// Bytes that are to stay free; what is known to be missing from the count, if none are given.
    pub margin: Option<u64>,
    /// The allowed effect of changes on the mathematics, where nothing fits; none if no change is to be tried.
    pub changes: Option<Maths>,
    /// Whether the model may be spread over the GPUs of the machine, and its need on each is requested.
    pub shard: bool,
    /// Where to write the recording of the largest that fits, of the first combination for which something does.
    pub recording: Option<PathBuf>,
    /// How many variants are run at a time.
    pub width: usize,
}

impl Request {
    /// Asks about a job on a GPU.
    pub fn new(job: Job, options: Options) -> Self {
        Self {
            job,
            variables: Vec::new(),
            constants: Vec::new(),
            options,
            gpus: Vec::new(),
            prices: BTreeMap::new(),
            margin: None,
            changes: Some(Maths::Algorithm),
            shard: false,
            recording: None,
            width: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// How a limit was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The largest fits and the next one does not: both were run.
    Proved,
    /// The last of the tested values fits.
    EndOfRange,
    /// Not even the first one fits.
    NothingFits,
    /// The first one fails for another reason than memory.
    Failed,
    /// The next one, and maybe others above it, fails for another reason than memory.
    NextFails,
    /// The search was interrupted.
    Interrupted,
}

/// The bytes that are to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limit {
    /// Bytes of the GPU.
    pub capacity: u64,
    /// Whether these were given; else they are the catalogue's.
    pub capacity_given: bool,
    /// Bytes that are to stay free.
    pub margin: u64,
    /// Whether the margin was given; else it is the most that was seen of what is not counted.
    pub margin_given: bool,
}

/// One combination of the parameters that are not searched.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Row {
    /// Their names and values.
    pub values: Vec<(String, String)>,
    /// How the search ended.
    pub bound: Bound,
    /// The largest that fits.
    pub largest: Option<Trial>,
    /// The next one, which does not.
    pub next: Option<Trial>,
    /// The smallest value that may be the answer of an interrupted search, by a line through two needs: not a proof.
    pub estimate_low: Option<u64>,
    /// The largest.
    pub estimate_high: Option<u64>,
    /// Everything that was tried, in order of the value.
    pub trials: Vec<Trial>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Fit {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// Whether something fits, by itself or with changes.
    pub found: bool,
    /// The command, with its placeholders.
    pub command: String,
    /// The catalogue's name of the GPU.
    pub gpu: String,
    /// The driver's name of it.
    pub gpu_name: String,
    /// The limits of the search.
    pub limit: Limit,
    /// The environment variables that were given values.
    pub variables: Vec<String>,
    /// The parameter whose largest value was searched.
    pub searched: Option<String>,
    /// A row for each combination of the other parameters.
    pub rows: Vec<Row>,
    /// Whether it fits on each of several GPUs, the smallest or cheapest first; empty if one was requested.
    pub gpus: Vec<GpuVerdict>,
    /// The need of the job on each GPU when the model is spread over them; empty if that was not requested.
    pub sharded: Vec<Remedy>,
    /// The changes that make it fit; none if it fits already, or nothing was tried: an unproven shortage is not
    /// reduced.
    pub remedies: Option<Remedies>,
    /// How many dry runs it took.
    pub runs: usize,
    /// Why each variant had its own process; none if they were forked.
    pub not_forked: Option<String>,
    /// Whether it was ended before everything was known.
    pub interrupted: bool,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Why nothing could be found out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FitError {
    /// A placeholder cannot be read.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// There are too many combinations.
    #[error("the lists make {combinations} combinations, more than {MAX_ROWS}")]
    Combinations {
        /// How many there are.
        combinations: usize,
    },
    /// The recording cannot be written.
    #[error("cannot write the recording {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The message of the system.
        source: std::io::Error,
    },
    /// There are placeholders and several GPUs.
    #[error("placeholders and several GPUs cannot be combined")]
    PlaceholdersAndGpus,
    /// A dry run could not be done.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// How many combinations are tried at most.
const MAX_ROWS: usize = 1024;

/// One row while it is searched.
struct Open {
    fixed: Vec<usize>,
    search: Search,
    trials: BTreeMap<usize, Trial>,
    done: bool,
}

/// Finds the largest value that fits for each combination of the others.
///
/// # Errors
///
/// If the placeholders cannot be read or a dry run cannot be done. That nothing fits is an answer.
pub fn fit(request: &Request, watcher: &dyn Watcher) -> Result<Fit, FitError> {
    let begun = Instant::now();
    let template = template(request)?;
    if !request.gpus.is_empty() {
        return which_gpu(request, &template, watcher, begun);
    }
    let searched = template.searched();
    let sizes = match searched.map(|number| &template.parameters[number].choice) {
        Some(Choice::Range(sizes)) => sizes.clone(),
        _ => vec![0],
    };
    let capacity = request.options.capacity();
    let mut rows: Vec<Open> = combinations(&template)?
        .into_iter()
        .map(|fixed| Open {
            fixed,
            search: Search::new(sizes.clone(), capacity),
            trials: BTreeMap::new(),
            done: false,
        })
        .collect();
    let keep = request.recording.is_some();
    let mut variants = Variants::new(&request.options, request.margin, keep, watcher)?;
    let mut interrupted = false;
    loop {
        let open = rows.iter().filter(|row| !row.done).count();
        let mut asked: Vec<(usize, usize)> = Vec::new();
        for (number, row) in rows.iter_mut().enumerate().filter(|(_, row)| !row.done) {
            // Where other rows keep the processors busy, a guess is tried before its neighbour.
            let width = if open < request.width { 2 } else { 1 };
            let next = row.search.next(width);
            row.done = next.is_empty();
            asked.extend(next.into_iter().map(|index| (number, index)));
        }
        if asked.is_empty() {
            break;
        }
        let wanted: Vec<Variant> = asked
            .iter()
            .map(|(row, index)| variant(request, &template, &rows[*row].fixed, *index))
            .collect();
        let trials = variants.run(&wanted, request.width)?;
        for ((row, index), trial) in asked.into_iter().zip(trials) {
            let Some(trial) = trial else {
                interrupted = true;
                continue;
            };
            if tells_of_memory(&trial) {
                let judgement = Judgement {
                    fits: trial.fits,
                    // The margin is part of what a variant takes.
                    need: trial.need.map(|need| need.saturating_add(trial.margin)),
                };
                rows[row].search.learn(index, judgement);
            } else {
                rows[row].search.leave_out(index);
            }
            rows[row].trials.insert(index, trial);
        }
        if interrupted || watcher.stopped() {
            interrupted = true;
            break;
        }
        if let ([row], Some(number)) = (rows.as_slice(), searched)
            && let Some((low, high)) = row.search.estimate()
        {
            let name = &template.parameters[number].name;
            watcher.stage(Stage::Estimated { name, low, high });
        }
    }
    // With several combinations it is not clear which one is meant.
    let one = match rows.as_slice() {
        [row] if row.done && !interrupted => Some(variant(
            request,
            &template,
            &row.fixed,
            row.search.best().or(row.search.refused()).unwrap_or(0),
        )),
        _ => None,
    };
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|row| finished(row, &template, searched))
        .collect();
    let trial = rows
        .first()
        .and_then(|row| row.largest.as_ref().or(row.next.as_ref()));
    let mut sharded = Vec::new();
    let mut remedies = None;
    if let (Some(one), Some(trial)) = (&one, trial) {
        if request.shard && trial.why.is_none() {
            sharded = remedies::sharded(&mut variants, one, trial, request.width)?;
        }
        if let Some(allowed) = request.changes
            && rows[0].bound == Bound::NothingFits
            && trial.need.is_some()
        {
            let found =
                remedies::find(&mut variants, one, trial, allowed, &sharded, request.width)?;
            remedies = Some(found);
        }
    }
    interrupted |= watcher.stopped();
    if let (Some(path), Some(largest)) =
        (&request.recording, answers(&rows, remedies.as_ref()).next())
    {
        std::fs::copy(&largest.recording, path).map_err(|source| FitError::Write {
            path: path.clone(),
            source,
        })?;
    }
    let found = answers(&rows, remedies.as_ref()).next().is_some();
    Ok(Fit {
        found,
        gpu: request.options.gpu.id.clone(),
        gpu_name: request.options.gpu.name.clone(),
        searched: searched.map(|number| template.parameters[number].name.clone()),
        rows,
        sharded,
        remedies,
        interrupted,
        ..unanswered(request, variants, capacity, begun)
    })
}

/// The question, and what finding an answer took.
fn unanswered(request: &Request, variants: Variants<'_>, capacity: u64, begun: Instant) -> Fit {
    Fit {
        schema_version: SCHEMA_VERSION,
        found: false,
        command: request.job.line(),
        gpu: String::new(),
        gpu_name: String::new(),
        limit: Limit {
            capacity,
            capacity_given: request.options.capacity.is_some(),
            margin: request.margin.unwrap_or(variants.margin_seen()),
            margin_given: request.margin.is_some(),
        },
        variables: request
            .variables
            .iter()
            .map(|(name, _)| name.clone())
            .collect(),
        searched: None,
        rows: Vec::new(),
        gpus: Vec::new(),
        sharded: Vec::new(),
        remedies: None,
        runs: variants.runs(),
        not_forked: variants.not_forked,
        interrupted: false,
        seconds: begun.elapsed().as_secs_f64(),
    }
}

/// Judges the job on each of several GPUs.
fn which_gpu(
    request: &Request,
    template: &Template,
    watcher: &dyn Watcher,
    begun: Instant,
) -> Result<Fit, FitError> {
    if !template.parameters.is_empty() {
        return Err(FitError::PlaceholdersAndGpus);
    }
    let mut variants = Variants::new(&request.options, request.margin, false, watcher)?;
    let variant = variant(request, template, &[], 0);
    let verdicts = gpus::judge(
        &mut variants,
        &variant,
        &request.gpus,
        &request.prices,
        request.width,
    )?;
    let fitting = verdicts.iter().find(|verdict| verdict.fits == Some(true));
    let answer = fitting.or(verdicts.last());
    let text =
        |get: fn(&GpuVerdict) -> &String| answer.map_or_else(String::new, |it| get(it).clone());
    let capacity = answer.map_or(0, |it| it.capacity);
    Ok(Fit {
        found: fitting.is_some(),
        gpu: text(|it| &it.gpu),
        gpu_name: text(|it| &it.name),
        interrupted: watcher.stopped(),
        gpus: verdicts,
        ..unanswered(request, variants, capacity, begun)
    })
}

/// The trials that are answers, the first of each combination first.
fn answers<'a>(rows: &'a [Row], remedies: Option<&'a Remedies>) -> impl Iterator<Item = &'a Trial> {
    let fitting = remedies.into_iter().flat_map(|found| &found.fitting);
    rows.iter()
        .filter_map(|row| row.largest.as_ref())
        .chain(fitting.map(|remedy| &remedy.trial))
}

/// The words of the command and the texts of the variables, in one.
fn template(request: &Request) -> Result<Template, TemplateError> {
    let words = request.job.command.iter().map(|word| (None, word.clone()));
    let variables = request
        .variables
        .iter()
        .map(|(name, text)| (Some(name.clone()), text.into()));
    let constants = request
        .constants
        .iter()
        .map(|(_, name, text)| (Some(name.clone()), text.into()));
    Template::read(words.chain(variables).chain(constants))
}

/// Every combination of the parameters that are not searched, which have index 0 here.
fn combinations(template: &Template) -> Result<Vec<Vec<usize>>, FitError> {
    let searched = template.searched();
    let counts = template.parameters.iter().enumerate();
    let counts: Vec<usize> = counts
        .map(|(number, parameter)| match searched {
            Some(searched) if searched == number => 1,
            _ => parameter.choice.len(),
        })
        .collect();
    let product = counts
        .iter()
        .try_fold(1usize, |product, count| product.checked_mul(*count));
    let combinations = product.unwrap_or(usize::MAX);
    if combinations > MAX_ROWS {
        return Err(FitError::Combinations { combinations });
    }
    let nth = |mut number: usize| {
        let mut values = vec![0; counts.len()];
        // The last parameter changes fastest, as in nested loops.
        for (value, count) in values.iter_mut().zip(&counts).rev() {
            *value = number % count;
            number /= count;
        }
        values
    };
    Ok((0..combinations).map(nth).collect())
}

fn variant(request: &Request, template: &Template, fixed: &[usize], index: usize) -> Variant {
    let mut values = fixed.to_vec();
    if let Some(searched) = template.searched() {
        values[searched] = index;
    }
    let mut words = template.words(&values);
    let mut texts = words.split_off(request.job.command.len());
    let constants = texts.split_off(request.variables.len());
    let mut job = request.job.clone();
    job.command = words;
    let names = || request.variables.iter().map(|(name, _)| name);
    let line = line(&job, names().zip(&texts));
    job.environment.extend(names().map(Into::into).zip(texts));
    Variant {
        job,
        line,
        constants: constant_values(request, &constants),
        sources: sources(request, &constants),
        changes: Vec::new(),
        gpu: None,
        values: [
            named(template, &values, |_| true),
            template.computed(&values),
        ]
        .concat(),
    }
}

/// The command with its variables in front, as a shell takes it.
fn line<'a, 'b>(job: &Job, variables: impl Iterator<Item = (&'a String, &'b OsString)>) -> String {
    let quoted = |text: &OsString| {
        let text = text.to_string_lossy();
        // A zero byte, which no command has, cannot be quoted.
        shlex::try_quote(&text).map_or_else(|_| text.to_string(), Cow::into_owned)
    };
    let variables = variables.map(|(name, text)| format!("{name}={}", quoted(text)));
    let words: Vec<String> = variables.chain(job.command.iter().map(quoted)).collect();
    words.join(" ")
}

fn constant_values(request: &Request, values: &[OsString]) -> Vec<ConstantValue> {
    let constants = request.constants.iter().zip(values);
    let value = |((constant, name, _), value): (&(Constant, String, String), &OsString)| {
        let folder = request.job.folder.as_deref();
        let file = folder.and_then(|folder| constant.file.strip_prefix(folder).ok());
        ConstantValue {
            file: file.unwrap_or(&constant.file).display().to_string(),
            line: constant.line,
            name: name.clone(),
            value: value.to_string_lossy().into_owned(),
        }
    };
    constants.map(value).collect()
}

/// The text of every file that has a constant, with the values of this variant.
fn sources(request: &Request, values: &[OsString]) -> Vec<(PathBuf, String)> {
    let mut files: BTreeMap<&Path, Vec<(&Constant, &str)>> = BTreeMap::new();
    for ((constant, _, _), value) in request.constants.iter().zip(values) {
        let value = value.to_str().unwrap_or_default();
        let file = files.entry(&constant.file).or_default();
        file.push((constant, value));
    }
    let replaced = |(file, constants): (&Path, Vec<(&Constant, &str)>)| {
        (file.to_owned(), Constant::replaced(&constants))
    };
    files.into_iter().map(replaced).collect()
}

fn named(
    template: &Template,
    values: &[usize],
    wanted: impl Fn(usize) -> bool,
) -> Vec<(String, String)> {
    let parameters = template.parameters.iter().enumerate();
    parameters
        .filter(|(number, _)| wanted(*number))
        .map(|(number, parameter)| {
            (
                parameter.name.clone(),
                parameter.choice.value(values[number]),
            )
        })
        .collect()
}

/// Whether the job ran as far as its memory let it; else it failed for another reason.
fn tells_of_memory(trial: &Trial) -> bool {
    matches!(
        trial.outcome,
        Outcome::Fits | Outcome::Uncertain | Outcome::DoesNotFit
    )
}

fn finished(row: Open, template: &Template, searched: Option<usize>) -> Row {
    let best = row.search.best();
    let above = best.map_or(0, |best| best + 1);
    let refused = row.search.refused();
    // Where the search ended because too many values failed, the next one may not have been tried.
    let next = match refused {
        Some(refused) => row.trials.get(&refused),
        None => row.trials.range(above..).map(|(_, trial)| trial).next(),
    };
    let failed = next.is_some_and(|trial| !tells_of_memory(trial));
    let bound = match (best, next) {
        _ if !row.done => Bound::Interrupted,
        (None, _) if failed => Bound::Failed,
        (None, _) => Bound::NothingFits,
        (Some(_), None) => Bound::EndOfRange,
        (Some(_), Some(_)) if failed => Bound::NextFails,
        (Some(_), Some(_)) => Bound::Proved,
    };
    let estimate = row.search.estimate().filter(|_| !row.done);
    Row {
        values: named(template, &row.fixed, |number| Some(number) != searched),
        bound,
        estimate_low: estimate.map(|(low, _)| low),
        estimate_high: estimate.map(|(_, high)| high),
        largest: best.and_then(|best| row.trials.get(&best).cloned()),
        next: next.cloned(),
        trials: row.trials.into_values().collect(),
    }
}
