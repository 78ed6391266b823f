// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage report`: a recording as pictures, in one HTML page or in the terminal.
//!
//! Gathers what others know (holdings, verdict, replays) and hands it on; the
//! page is `tonnage-report`'s, the text is in `text`, the plan is asked for in `packing`.

mod packing;
mod text;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tonnage_analysis::explain::{Explanation, explain};
use tonnage_analysis::facts;
use tonnage_analysis::holdings::{self, Category, Holdings, HoldingsError, Recording as Held};
use tonnage_analysis::replay::{Alloc, Fidelity, Job, Options as ReplayOn, Outcome, Replayed};
use tonnage_analysis::verdict::{self, verdict, verdict_of_whole};
use tonnage_report::{
    Fact, Finding, Levels, Moment, MomentKind, Options, Picture, Racer, Story, Stretch, Subject,
    Tone, WriteError, Written,
};
use tonnage_trace::meta;

use crate::PRODUCER;
use crate::arguments::{OpenPage, Race, ReportOptions};
use crate::commands::recording::{
    Output, Recording, derived, explained, plain, unreadable_trace, without, words,
};
use crate::output::{Answer, Form, HINT, Reply, bytes, count, hinted, tell};

/// Rows that are replayed without being asked: a report is to be there in half a minute.
const REPLAYED_ROWS: u32 = 4_000_000;
/// Stretches of the timeline in the JSON: enough for a picture of a page's width.
const TIMELINE: u32 = 240;
/// Version of the JSON; raised when a field changes its meaning.
const SCHEMA_VERSION: u32 = 1;

pub(crate) fn run(options: &ReportOptions, form: Form) -> Result<Reply> {
    let path = &options.file;
    let target = options.output.clone();
    let target = target.unwrap_or_else(|| derived(path, ".html"));
    let output = if options.text {
        None
    } else {
        Some(Output::create(&target, options.force)?)
    };
    let recording = Recording::open(path)?;
    let held = holdings::read(recording.trace()?).map_err(|error| match error {
        HoldingsError::Read(error) => unreadable_trace(path, &error),
        error => explained(&error, "check the file; `tonnage info` says what is in it"),
    })?;
    let track = choose(&held, options)?;
    let moments = moments(track);
    let (packing, planned) = packing::ask(options, &recording, track);
    let picture = Picture::draw(Subject {
        blocks: &track.blocks,
        segments: &track.segments,
        phases: &track.phases,
        stacks: &held.stacks,
        rows: held.rows,
        capacity: track.capacity,
        context: track.context,
        times: &held.times,
        moments: &moments,
        packing: packing.as_ref(),
    });
    let mut story = story(options, &recording, &held, track, &picture)?;
    story.plan = planned;
    let Some(output) = output else {
        let figures = figures(&picture, &story, track);
        let text = |_: &_| text::render(&picture, &story, &held, track);
        return Ok(Reply::new(form, Answer::Yes, &figures, text)?);
    };
    let shape = Options {
        max_data: options.max_data,
        full_paths: options.full_paths,
    };
    let mut destination = output.writer()?;
    let written = picture
        .write(&story, &shape, &mut destination)
        .map_err(|error| not_written(&target, error))?;
    destination
        .flush()
        .with_context(|| format!("cannot write {}", target.display()))?;
    drop(destination);
    let is_file = output.finish()?.is_some();
    tell_written(&target, written);
    if options.open == OpenPage::Yes && is_file {
        open(&target)?;
    }
    if form == Form::Text || target == Path::new("-") {
        return Ok(Reply::silent(Answer::Yes));
    }
    let figures = Figures {
        file: Some(target.display().to_string()),
        written: Some(written),
        ..figures(&picture, &story, track)
    };
    Ok(Reply::new(Form::Json, Answer::Yes, &figures, |_| {
        String::new()
    })?)
}

/// The process and device that are asked for, else the one that matters.
fn choose<'a>(held: &'a Held, options: &ReportOptions) -> Result<&'a Holdings> {
    let (process, device) = (options.process, options.device);
    if process.is_none() && device.is_none() {
        return held.worst().ok_or_else(|| {
            if held.truncated {
                return without(&options.file, "memory of a device", true, "");
            }
            hinted(
                format!("{} shows nothing of a device", options.file.display()),
                "`tonnage info` says what is in it",
            )
        });
    }
    let asked = |track: &&Holdings| {
        process.is_none_or(|process| process == track.process)
            && device.is_none_or(|device| device == track.device)
    };
    held.tracks.iter().find(asked).ok_or_else(|| {
        let list: Vec<String> = held
            .tracks
            .iter()
            .take(16)
            .map(|track| format!("--process {} --device {}", track.process, track.device))
            .collect();
        hinted(
            "the recording has no such process on such a device",
            format!("it has: {}", list.join(", ")),
        )
    })
}

fn not_written(target: &Path, error: WriteError) -> anyhow::Error {
    let context = format!("cannot write {}", target.display());
    match error {
        WriteError::TooSmall { needed } => hinted(
            format!("even the coarsest pictures take {} of data", bytes(needed)),
            "allow more with --max-data",
        ),
        WriteError::Io(error) => anyhow::Error::new(error).context(context),
        error => anyhow::Error::new(error).context(context),
    }
}

/// The figures of a report.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Figures<'a> {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// The page that was written, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    written: Option<Written>,
    /// What the report is about: the script's or the recording's name.
    title: &'a str,
    /// The verdict in one sentence.
    verdict: &'a str,
    /// Bytes of the device, where they are known.
    capacity: Option<u64>,
    /// Bytes of the context.
    context: u64,
    /// Moments worth looking at, in the order of rows.
    moments: Vec<MomentFigures<'a>>,
    /// The recording in stretches of equal length, each at its fullest moment.
    timeline: Vec<StretchFigures>,
}

/// A part of the recording at its fullest moment.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct StretchFigures {
    /// Its first row.
    row: u32,
    /// Bytes of blocks.
    allocated: u64,
    /// Bytes held from the driver.
    reserved: u64,
    /// Bytes of each category that has any.
    categories: BTreeMap<&'static str, u64>,
}

/// A moment worth looking at.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct MomentFigures<'a> {
    #[serde(flatten)]
    moment: &'a Moment,
    /// Bytes of blocks.
    allocated: u64,
    /// Bytes held from the driver.
    reserved: u64,
}

fn figures<'a>(picture: &'a Picture<'_>, story: &'a Story, track: &Holdings) -> Figures<'a> {
    let moment = |(moment, levels): (&'a Moment, &Levels)| MomentFigures {
        moment,
        allocated: levels.allocated,
        reserved: levels.held(),
    };
    let stretch = |stretch: Stretch| {
        let high = &stretch.high;
        let categories = Category::ALL.into_iter().zip(high.by_category);
        StretchFigures {
            row: stretch.start,
            allocated: high.allocated,
            reserved: stretch.most_reserved.max(high.allocated),
            categories: categories
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(category, bytes)| (category.key(), bytes))
                .collect(),
        }
    };
    let timeline = picture.stretches(TIMELINE).into_iter().map(stretch);
    Figures {
        schema_version: SCHEMA_VERSION,
        file: None,
        written: None,
        capacity: track.capacity,
        context: track.context,
        timeline: timeline.collect(),
        title: &story.title,
        verdict: &story.verdict,
        moments: picture.moments().map(moment).collect(),
    }
}

/// Says what was written, and what of the recording is summed up in it.
fn tell_written(target: &Path, written: Written) {
    if target != Path::new("-") {
        tell(&format!(
            "wrote {HINT}{}{HINT:#} ({})",
            target.display(),
            bytes(written.bytes)
        ));
    }
    if written.blocks_summed_up > 0 {
        tell(&format!(
            "  {} blocks are drawn one by one, {} smaller or short-lived ones as sums",
            count(written.blocks),
            count(written.blocks_summed_up)
        ));
    }
}

/// Moments that only the recording knows.
fn moments(track: &Holdings) -> Vec<Moment> {
    let failure = track.failure.iter().map(|failure| Moment {
        row: failure.row,
        kind: MomentKind::OutOfMemory,
        label: format!(
            "out of memory: {} asked for, {} free",
            bytes(failure.requested),
            bytes(failure.free)
        ),
    });
    failure.collect()
}

fn story(
    options: &ReportOptions,
    recording: &Recording,
    held: &Held,
    track: &Holdings,
    picture: &Picture<'_>,
) -> Result<Story> {
    let path = &options.file;
    let fact = |name: &str| held.fact(track.process, name).map(plain);
    let mut lines: Vec<Fact> = Vec::new();
    let mut put = |name: &str, text: Option<String>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            let name = name.to_owned();
            lines.push(Fact { name, text });
        }
    };
    put("command", fact(meta::COMMAND));
    let file = path.file_name().unwrap_or(path.as_os_str());
    let kind = recording
        .foreign
        .map(|format| format!(", {}", words(format)));
    put(
        "recording",
        Some(format!("{}{}", file.display(), kind.unwrap_or_default())),
    );
    put("device", device(held, track));
    if held.tracks.len() > 1 {
        let rank = fact(meta::PROCESS_RANK).map_or(String::new(), |rank| format!(", rank {rank}"));
        put(
            "process",
            Some(format!(
                "{}{rank}, one of {} on their devices",
                track.process,
                held.tracks.len()
            )),
        );
    }
    let conf = fact(meta::ALLOCATOR_CONF).filter(|conf| !conf.is_empty());
    let torch = fact(meta::TORCH_VERSION);
    put("PyTorch", torch.clone());
    put(
        "allocator",
        torch.map(|_| {
            conf.unwrap_or_else(|| {
                // A dry run writes settings down where there are any.
                if recording.foreign.is_none() {
                    "PyTorch's, with its defaults".to_owned()
                } else {
                    "PyTorch's, settings not recorded".to_owned()
                }
            })
        }),
    );
    put("CUDA", fact(facts::CUDA_VERSION));
    put("Python", fact(facts::PYTHON_VERSION));
    // What cannot be replayed can be drawn all the same, without a race.
    let replays = match options.race {
        Race::Auto => held.rows <= REPLAYED_ROWS,
        Race::Yes => true,
        Race::No => false,
    };
    let job = replays.then(|| Job::load(|| recording.trace(), &ReplayOn::default()).ok());
    let job = job.flatten();
    // The whole job, if there is one, is what a fix is held against; its replay is another.
    let whole = recording
        .whole()?
        .and_then(|whole| holdings::read(whole).ok());
    let whole_job = whole.as_ref().filter(|_| replays);
    let whole_job =
        whole_job.and_then(|_| Job::load(|| recording.furthest(), &ReplayOn::default()).ok());
    let explaining = if whole.is_some() {
        whole_job.as_ref()
    } else {
        job.as_ref()
    };
    let explanation = explain(held, whole.as_ref(), explaining)
        .filter(|one| (one.process, one.device) == (track.process, track.device));
    let mut unknown = unknown(held, track);
    if !replays && options.race == Race::Auto {
        unknown.push(
            "what other allocators would have held, because the recording is long; --race yes replays it"
                .to_owned(),
        );
    }
    let outside = explanation.as_ref().and_then(|one| one.on_device.outside);
    if let Some(outside) = outside.filter(|&outside| outside > 0) {
        unknown.push(format!(
            "what others than PyTorch's allocator held is not drawn: {} at the {}",
            bytes(outside),
            if track.failure.is_some_and(|failure| failure.last) {
                "failure"
            } else {
                "peak"
            }
        ));
    }
    let (verdict, tone) = sentence(options, recording, held, track, picture)?;
    Ok(Story {
        title: title(path, fact(meta::COMMAND).as_deref()),
        verdict,
        tone,
        facts: lines,
        findings: explanation.as_ref().map(findings).unwrap_or_default(),
        race: race(job.as_ref(), track),
        plan: None,
        unknown,
        producer: PRODUCER.to_owned(),
    })
}

/// The script's name, or the recording's.
fn title(path: &Path, command: Option<&str>) -> String {
    let script = command.and_then(|command| {
        let mut words = command.split_whitespace();
        let script = words.find(|word| Path::new(word).extension().is_some_and(|e| e == "py"))?;
        script.rsplit(['/', '\\']).next()
    });
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    script.map_or_else(|| stem.display().to_string(), str::to_owned)
}

fn device(held: &Held, track: &Holdings) -> Option<String> {
    let name = held.fact(track.process, meta::GPU_NAME).map(plain);
    let capacity = track.capacity.map(bytes);
    match (name, capacity) {
        (Some(name), Some(capacity)) => Some(format!("{name}, {capacity}")),
        (name, capacity) => name.or(capacity),
    }
}

/// The verdict in one sentence.
fn sentence(
    options: &ReportOptions,
    recording: &Recording,
    held: &Held,
    track: &Holdings,
    picture: &Picture<'_>,
) -> Result<(String, Tone)> {
    let most = |of: fn(&Levels) -> u64| picture.moments().map(|(_, levels)| of(levels)).max();
    let allocated = most(|levels| levels.allocated).unwrap_or(0);
    let reserved = most(Levels::held).unwrap_or(0).max(track.peak_reserved);
    let peak = if track.segments.is_empty() {
        format!("{} allocated at most", bytes(allocated))
    } else {
        let allocated = bytes(allocated);
        format!(
            "{allocated} allocated and {} reserved at most",
            bytes(reserved)
        )
    };
    let of = track.capacity.map_or(String::new(), |capacity| {
        format!(", of {}", bytes(capacity))
    });
    let failed = |tone| {
        track.failure.filter(|failure| failure.last).map(|failure| {
            let asked = bytes(failure.requested);
            let free = bytes(failure.free);
            (
                format!("Out of memory: {asked} asked for, {free} free; {peak}{of}."),
                tone,
            )
        })
    };
    // Only a dry run knows how the program ended.
    let own = recording.foreign.is_none() && held.fact(track.process, facts::ENDING).is_some();
    if own {
        let verdict = if recording.has_whole() {
            verdict_of_whole(|| recording.trace(), || recording.furthest())
        } else {
            verdict(|| recording.trace())
        };
        let verdict = verdict.map_err(|error| match error {
            verdict::VerdictError::Read(error) => unreadable_trace(&options.file, &error),
            error => explained(&error, "check the file"),
        })?;
        return Ok(match verdict.outcome {
            verdict::Outcome::Fits => (format!("Fits: {peak}{of}."), Tone::Good),
            verdict::Outcome::DoesNotFit => {
                let (mut sentence, tone) = failed(Tone::Bad)
                    .unwrap_or_else(|| (format!("Does not fit: {peak}{of}."), Tone::Bad));
                if let Some(need) = &verdict.need {
                    let is_known = need.complete && need.known == "replayed";
                    let least = if is_known { "" } else { "at least " };
                    let need = bytes(need.bytes);
                    let _ = write!(sentence, " The whole job needs {least}{need}.");
                }
                (sentence, tone)
            }
            verdict::Outcome::Interrupted => {
                (format!("Interrupted; until then {peak}{of}."), Tone::Plain)
            }
            verdict::Outcome::Failed => (
                format!("The program failed for another reason; until then {peak}{of}."),
                Tone::Plain,
            ),
            verdict::Outcome::NoDevice => ("The program used no device.".to_owned(), Tone::Plain),
        });
    }
    Ok(failed(Tone::Bad).unwrap_or_else(|| (format!("{}.", capitalised(&peak)), Tone::Plain)))
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// What `tonnage explain` finds, with what helps against it.
fn findings(explanation: &Explanation) -> Vec<Finding> {
    let all = explanation.findings.iter().map(|finding| {
        let mut text = plain(finding.sentence.trim_end_matches('.'));
        text.push('.');
        let helps = explanation.fixes.iter();
        for fix in helps.filter(|fix| fix.code == finding.code.code) {
            let advice = plain(&fix.advice);
            let (before, after) = (bytes(fix.peak_before), bytes(fix.peak_after));
            let paste = fix
                .paste
                .as_ref()
                .map_or_else(String::new, |paste| format!(" ({})", plain(paste)));
            let fits = match fix.fits {
                Some(true) if fix.whole_job => ", and it fits",
                Some(false) => ", which is still too much",
                _ => "",
            };
            let _ = write!(
                text,
                " What helps: {advice}{paste}: {before} → {after}{fits}."
            );
        }
        Finding {
            code: finding.code.code.to_owned(),
            title: finding.code.title.to_owned(),
            text,
        }
    });
    all.collect()
}

/// What other allocators would have made of it; nothing for recordings that cannot be replayed.
fn race(job: Option<&Job>, track: &Holdings) -> Vec<Racer> {
    let Some(job) = job else {
        return Vec::new();
    };
    let report = job.replay(&Alloc::usual(), false);
    let ours = report
        .tracks
        .into_iter()
        .find(|one| (one.process, one.device) == (track.process, track.device));
    let mut rows: Vec<Racer> = Vec::new();
    for result in ours.into_iter().flat_map(|one| one.allocators) {
        // The recorded setting is often one of the usual ones.
        let again = rows.iter().any(|racer| racer.allocator == result.allocator);
        if !again {
            rows.push(racer(result));
        }
    }
    rows
}

fn racer(result: Replayed) -> Racer {
    let outcome = match &result.outcome {
        Outcome::Completes => "completes".to_owned(),
        Outcome::OutOfMemory { request, .. } => {
            format!("out of memory at request {}", count(*request))
        }
        Outcome::Undefined { reason, .. } => format!("not known: {reason}"),
    };
    Racer {
        completes: result.completes(),
        outcome,
        recorded: result.recorded,
        exact: result.fidelity == Fidelity::Exact,
        peak_reserved: result.peak_reserved,
        peak_allocated: result.peak_allocated,
        cached_at_peak: result.cached_at_peak,
        smallest: result.smallest.map(|found| found.bytes),
        calls: result.driver.sum(),
        retries: result.retries,
        series: Vec::new(),
        allocator: result.allocator,
    }
}

/// What the recording cannot say.
fn unknown(held: &Held, track: &Holdings) -> Vec<String> {
    let prefix = format!("{}.", meta::UNKNOWN);
    let mut sentences: Vec<String> = Vec::new();
    for fact in held
        .meta
        .iter()
        .filter(|fact| fact.name.starts_with(&prefix))
    {
        let sentence = plain(&fact.text);
        if sentences.len() < 50 && !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    if held.truncated {
        sentences
            .push("what came after the last whole batch, because the file was cut off".to_owned());
    }
    if !track.phases_told && track.phases.len() > 1 {
        sentences.push(
            "phases and steps as the program saw them; they are inferred from stacks".to_owned(),
        );
    }
    if track.unseen_births > 0 {
        sentences.push(format!(
            "when {} of the final blocks were handed out; they are shown from the start",
            count(track.unseen_births)
        ));
    }
    let said = |word: &str, sentences: &[String]| sentences.iter().any(|one| one.contains(word));
    if track.capacity.is_none() && !said("capacity", &sentences) {
        sentences.push("the capacity of the device".to_owned());
    }
    if track.context == 0 {
        sentences.push("the size of the context".to_owned());
    }
    sentences
}

/// Shows the page with the desktop's browser.
fn open(page: &Path) -> Result<()> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let page = page.canonicalize()?;
    let mut command = Command::new(program);
    command.arg(page);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().map(drop).map_err(|error| {
        let reason = explained(&error, "open the file yourself, or leave --open out");
        reason.context(format!("cannot start {program}"))
    })
}
