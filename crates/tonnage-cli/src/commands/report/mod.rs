// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage report`: a recording as pictures, in one HTML page or in the terminal.
//!
//! Gathers what others know (holdings, verdict, explanation, replays) and hands it on; the page is `tonnage-report`'s.
//! `panes` has the data, `story` the words, `text` the text, and `packing` the plan.

mod packing;
pub(crate) mod panes;
mod story;
mod text;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tonnage_analysis::explain::{Explanation, codes};
use tonnage_analysis::holdings::{self, Category, Holdings, HoldingsError, Recording as Held};
use tonnage_analysis::replay::{Job, Options as ReplayOn};
use tonnage_report::{
    Levels, Moment, Options, Pane, Picture, Story, Stretch, WriteError, Written, colour, write,
};

use self::panes::Panes;
use crate::browser;
use crate::commands::explain::explain_with_gpus;
use crate::commands::recording::{
    Output, Recording, derived, explained, unreadable_trace, without,
};
use crate::commands::replay::more_tracks;
use crate::options::OutputFile;
use crate::output::{Answer, Form, HINT, Reply, bytes, count, hinted, print_err};

/// Write a report of a recording: one HTML page that needs no network
///
/// The page shows bytes over time by category, the address space over time,
/// who holds the memory at any moment, and what other allocators would have
/// held; every picture has its table. It keeps no source text, no environment
/// and no full paths. Reads everything `tonnage info` reads.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage report train.tonnage
  tonnage report snapshot.pickle -o oom.html --force
  tonnage report train.tonnage --open
  tonnage report train.tonnage --text")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct ReportOptions {
    /// The recording; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: OutputFile,
    /// Draw in the terminal instead, as far as text can.
    #[arg(long, conflicts_with_all = ["output", "force"])]
    pub(crate) text: bool,
    /// The process to show, by its number in the recording [default: the one that failed or used most].
    #[arg(long, value_name = "N")]
    pub(crate) process: Option<u32>,
    /// The device to show, by its number.
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<i32>,
    /// Maximum size of the data embedded in the page.
    #[arg(long, value_name = "SIZE", default_value = "10MiB", value_parser = crate::output::parse_bytes)]
    pub(crate) max_data: u64,
    /// Keep the folders of files, which may name people and machines.
    #[arg(long)]
    pub(crate) full_paths: bool,
    /// When to replay the recording under other allocators, and to plan it.
    #[arg(long, alias = "race", value_enum, default_value_t = Compare::Auto, value_name = "WHEN")]
    pub(crate) compare_allocators: Compare,
    /// Open the page in a browser. Without a display, and over SSH, print its path.
    #[arg(long, conflicts_with = "text")]
    pub(crate) open: bool,
    /// Print what was written, or with --text the figures, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compare {
    /// If the recording has no more than 4 million rows; the plan, no more than 1 million blocks.
    Auto,
    /// However long it takes.
    #[value(alias = "yes")]
    Always,
    /// Not at all.
    #[value(alias = "no")]
    Never,
}

/// Rows that are replayed without a request: a report is to be there in half a minute.
const REPLAYED_ROWS: u32 = 4_000_000;
/// Stretches of the timeline in the JSON: enough for a picture of a page's width.
const TIMELINE: u32 = 240;
/// Version of the JSON; raised when a field changes its meaning.
const SCHEMA_VERSION: u32 = 1;

pub(crate) fn run(options: &ReportOptions, form: Form) -> Result<Reply> {
    let path = &options.file;
    let target = options.target.output.clone();
    let target = target.unwrap_or_else(|| derived(path, ".html"));
    let output = if options.text {
        None
    } else {
        Some(Output::create(&target, options.target.force)?)
    };
    let recording = Recording::open(path)?;
    let held = holdings::read(recording.trace()?).map_err(|error| match error {
        HoldingsError::Read(error) => unreadable_trace(path, &error),
        error => explained(&error, "check the file; `tonnage info` prints its contents"),
    })?;
    let tracks = choose(&held, options)?;
    let track = tracks[0];
    // A recording that cannot be replayed can be drawn all the same, without other allocators.
    let replays = match options.compare_allocators {
        Compare::Auto => held.rows <= REPLAYED_ROWS,
        Compare::Always => true,
        Compare::Never => false,
    };
    let whole = recording
        .whole()?
        .and_then(|whole| holdings::read(whole).ok());
    let job = replays.then(|| Job::load(|| recording.trace(), &ReplayOn::default()).ok());
    let job = job.flatten();
    let explanation = explanation(&recording, &held, whole.as_ref(), job.as_ref(), replays)
        .filter(|one| (one.process, one.device) == (track.process, track.device));
    let short = explanation
        .as_ref()
        .is_some_and(|one| one.failure_class == Some(codes::SHORT) && one.need.is_some());
    // Only what was recorded on a real device has a clock that means anything.
    let timed = recording.foreign.is_some();
    let mut panes = Panes::new(&held, &tracks, whole.as_ref(), short, timed);
    if let Some(explanation) = &explanation {
        panes.mark_unused(explanation);
    }
    let (packing, planned) = packing::ask(options, &recording, track);
    let recorded = panes.recorded();
    let replayed = story::replayed(job.as_ref());
    let mut shown: Vec<Pane<'_>> = Vec::with_capacity(panes.sources.len());
    for (number, source) in panes.sources.iter().enumerate() {
        let is_main = number == recorded;
        let packing = packing.as_ref().filter(|_| is_main);
        let mut words = story::words_of(source, &replayed);
        if is_main {
            words.plan.clone_from(&planned);
            story::more_unknown(&mut words, options, replays, track, explanation.as_ref());
            if panes.left_out > 0 {
                let more = more_tracks(panes.left_out);
                let sentence = format!("{more}; --process and --device choose them");
                words.unknown.push(sentence);
            }
        }
        shown.push(Pane {
            picture: Picture::draw(source.subject(packing)),
            words,
        });
    }
    let main = &shown[recorded];
    let story = story::story(
        options,
        &recording,
        &held,
        track,
        explanation.as_ref(),
        &panes,
        &main.picture,
    )?;
    let Some(output) = output else {
        let figures = figures(&main.picture, &story, track);
        let text = |_: &_| text::render(&main.picture, &story, &main.words, &held, track);
        return Ok(Reply::new(form, Answer::Yes, &figures, text)?);
    };
    let shape = Options {
        max_data: options.max_data,
        full_paths: options.full_paths,
    };
    let written = save_page(output, &target, &story, &shown, &shape)?;
    tell_written(&target, written.0);
    if options.open && written.1 {
        browser::open(&target)?;
    }
    if form == Form::Text || target == Path::new("-") {
        return Ok(Reply::silent(Answer::Yes));
    }
    let figures = Figures {
        file: Some(target.display().to_string()),
        written: Some(written.0),
        ..figures(&main.picture, &story, track)
    };
    Ok(Reply::new(Form::Json, Answer::Yes, &figures, |_| {
        String::new()
    })?)
}

/// Writes a page where it belongs; returns what was written and whether it is a file.
pub(crate) fn save_page(
    output: Output,
    target: &Path,
    story: &Story,
    panes: &[Pane<'_>],
    shape: &Options,
) -> Result<(Written, bool)> {
    let mut destination = output.writer()?;
    let written =
        write(story, panes, shape, &mut destination).map_err(|error| not_written(target, error))?;
    destination
        .flush()
        .with_context(|| format!("cannot write {}", target.display()))?;
    drop(destination);
    Ok((written, output.finish()?.is_some()))
}

/// The explanation, with proposals that are replayed if that does not take too long.
fn explanation(
    recording: &Recording,
    held: &Held,
    whole: Option<&Held>,
    job: Option<&Job>,
    replays: bool,
) -> Option<Explanation> {
    // The whole job, if there is one, is what a fix is held against; its replay is another.
    let whole_job = whole.filter(|_| replays);
    let whole_job =
        whole_job.and_then(|_| Job::load(|| recording.furthest(), &ReplayOn::default()).ok());
    let explaining = if whole.is_some() {
        whole_job.as_ref()
    } else {
        job
    };
    explain_with_gpus(held, whole, explaining)
}

/// The requested processes and devices, the one that matters first.
fn choose<'a>(held: &'a Held, options: &ReportOptions) -> Result<Vec<&'a Holdings>> {
    let (process, device) = (options.process, options.device);
    let worst = held.worst();
    let asked = |track: &&Holdings| {
        process.is_none_or(|process| process == track.process)
            && device.is_none_or(|device| device == track.device)
    };
    if process.is_none() && device.is_none() {
        let Some(worst) = worst else {
            if held.truncated {
                return Err(without(&options.file, "memory of a device", true, ""));
            }
            return Err(hinted(
                format!("{} shows nothing of a device", options.file.display()),
                "`tonnage info` prints its contents",
            ));
        };
        let others = held
            .tracks
            .iter()
            .filter(|track| !std::ptr::eq(*track, worst) && !track.blocks.is_empty());
        return Ok(std::iter::once(worst).chain(others).collect());
    }
    let mut tracks: Vec<&Holdings> = held.tracks.iter().filter(asked).collect();
    // The requested one that matters first; the others behind it.
    if let Some(at) = tracks
        .iter()
        .position(|&track| worst.is_some_and(|worst| std::ptr::eq(track, worst)))
    {
        tracks[..=at].rotate_right(1);
    }
    if tracks.is_empty() {
        let list: Vec<String> = held
            .tracks
            .iter()
            .take(16)
            .map(|track| format!("--process {} --device {}", track.process, track.device))
            .collect();
        return Err(hinted(
            "the recording has no such process on such a device",
            format!("it has: {}", list.join(", ")),
        ));
    }
    Ok(tracks)
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
    /// The subject of the report: the script's or the recording's name.
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
    /// The colour of each category, as every picture has it.
    colours: BTreeMap<&'static str, &'static str>,
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
        reserved: levels.held_bytes(),
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
        colours: Category::ALL
            .into_iter()
            .map(|category| (category.key(), colour(category)))
            .collect(),
        title: &story.title,
        verdict: &story.verdict,
        moments: picture.moments().map(moment).collect(),
    }
}

/// Says what was written, and what of the recording is summed up in it.
pub(crate) fn tell_written(target: &Path, written: Written) {
    if target != Path::new("-") {
        print_err(&format!(
            "wrote {HINT}{}{HINT:#} ({})",
            target.display(),
            bytes(written.bytes)
        ));
    }
    if written.blocks_summed_up > 0 {
        print_err(&format!(
            "  {} blocks are drawn one by one, {} smaller or short-lived ones as sums",
            count(written.blocks),
            count(written.blocks_summed_up)
        ));
    }
}
