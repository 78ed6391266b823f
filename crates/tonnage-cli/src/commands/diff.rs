// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage diff`: two recordings side by side.

use std::fmt::Write as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tonnage_analysis::diff::{Change, Diff, Summary};
use tonnage_analysis::explain::failed_otherwise;
use tonnage_analysis::holdings::{Holdings, Recording as Held, own_folder, read as read_rows};
use tonnage_recording::meta;
use tonnage_report::{
    Comparison, Difference, Differences, Fact, Options, Pane, Picture, Story, Words,
};
use tonnage_text::{bytes, ranks_named};

use super::explain::{keep_rank, read};
use super::recording::{Output, Recording, named as called, plain, without};
use super::report::panes::Source;
use super::report::{save_page, tell_written};
use crate::PRODUCER;
use crate::browser;
use crate::options::{PageFile, ReplyOptions};
use crate::output::{Answer, BAD, Form, GOOD, Reply};

/// Compare two recordings by category, phase and line
///
/// Lines are identified by file and function, so an edit elsewhere in a file makes no difference.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage diff before.tonnage after.tonnage
  tonnage diff before.tonnage after.tonnage --html both.html
  tonnage diff before.pickle after.pickle --json")]
pub(crate) struct DiffOptions {
    /// The recording before.
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The recording after.
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// Compare this rank of both, instead of the process with the largest peak.
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    #[command(flatten)]
    pub(crate) page: PageFile,
    /// Keep the folders of files in the page, which may name people and machines.
    #[arg(long, requires = "html")]
    pub(crate) full_paths: bool,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

pub(crate) fn run(options: &DiffOptions, form: Form) -> Result<Reply> {
    let target = options.page.html.as_deref();
    let output = target
        .map(|target| Output::create(target, options.page.force))
        .transpose()?;
    let before = Side::read(&options.before, options.rank)?;
    let after = Side::read(&options.after, options.rank)?;
    let mut diff = Diff::between(&before.summary, &after.summary);
    diff.remarks = [("first", &before), ("second", &after)]
        .into_iter()
        .filter_map(|(name, side)| Some(format!("the {name} recording {}", side.remark.as_ref()?)))
        .collect();
    if let (Some(before), Some(after)) = (&before.command, &after.command)
        && before != after
    {
        let remark = format!("the commands differ: `{before}` and `{after}`");
        diff.remarks.insert(0, remark);
    }
    if let Some((output, target)) = output.zip(target) {
        write_page(options, output, target, &diff, &before, &after)?;
        if options.page.open {
            browser::open(target)?;
        }
        if target == Path::new("-") {
            return Ok(Reply::silent(Answer::Yes));
        }
    }
    Ok(Reply::new(form, Answer::Yes, &diff, text)?)
}

/// One of the two recordings.
struct Side {
    name: String,
    held: Held,
    summary: Summary,
    /// Whether its clock means anything: that of a dry run does not.
    timed: bool,
    /// The compared stretch, if the job did not run to its end.
    remark: Option<String>,
    /// The command that was recorded.
    command: Option<String>,
}

impl Side {
    fn read(path: &Path, rank: Option<u32>) -> Result<Self> {
        let recording = Recording::open(path)?;
        let (mut held, remark) = furthest(&recording, path)?;
        if let Some(rank) = rank {
            keep_rank(&mut held, rank)?;
        }
        // Two checkouts of one program are to be compared, wherever they lie.
        let stacks = held.most_allocated().map_or(&[][..], |track| &track.blocks);
        let stacks = stacks.iter().filter_map(|block| block.stack);
        let base = own_folder(&held.stacks, stacks);
        let summary = Summary::from_recording(&held, &base).ok_or_else(|| {
            let hint = "`tonnage info` prints its contents";
            without(path, "block of device memory", held.truncated, hint)
        })?;
        let file = path.file_name().unwrap_or(path.as_os_str());
        Ok(Self {
            name: plain(&called(Path::new(file))),
            command: held.fact(0, meta::COMMAND).map(plain),
            summary,
            timed: recording.foreign.is_some(),
            held,
            remark,
        })
    }

    /// The drawn part: the process and device with the largest peak.
    fn source(&self) -> Option<Source<'_>> {
        let track = self.held.most_allocated()?;
        Some(Source::new(
            &self.held,
            track,
            self.name.clone(),
            self.timed,
        ))
    }
}

/// The recording that goes furthest, and the notes about it.
fn furthest(recording: &Recording, path: &Path) -> Result<(Held, Option<String>)> {
    let first = read(recording, path)?;
    let failed = |track: &Holdings| track.failure.is_some_and(|failure| failure.last);
    if !first.tracks.iter().any(failed) {
        let remark = failed_otherwise(&first).map(|how| {
            let how = without_folder(&plain(&how));
            format!("is of a job that failed: {how}; what would have come then is not in it")
        });
        return Ok((first, remark));
    }
    // An unreadable part of the second recording counts as missing.
    let whole = recording.whole()?.and_then(|whole| read_rows(whole).ok());
    let peak = |held: &Held| {
        held.most_allocated()
            .map_or(0, |track| track.peak_allocated)
    };
    let whole = whole.filter(|whole| peak(whole) >= peak(&first));
    let (held, remark) = match whole {
        Some(whole) => (whole, "compared is its run without a limit"),
        None => (first, "what would have come then is not in it"),
    };
    Ok((held, Some(format!("ran out of memory; {remark}"))))
}

/// How a job failed, with the name of the file alone: pages go to others.
fn without_folder(how: &str) -> String {
    match how.rsplit_once(" at ") {
        Some((what, place)) => {
            let file = place.rsplit(['/', '\\']).next().unwrap_or(place);
            format!("{what} at {file}")
        }
        None => how.to_owned(),
    }
}

/// Writes both recordings side by side.
fn write_page(
    options: &DiffOptions,
    output: Output,
    target: &Path,
    diff: &Diff,
    before: &Side,
    after: &Side,
) -> Result<()> {
    let sources: Vec<Source<'_>> = [before.source(), after.source()]
        .into_iter()
        .flatten()
        .collect();
    let mut panes: Vec<Pane<'_>> = Vec::new();
    for (source, side) in sources.iter().zip([before, after]) {
        panes.push(Pane {
            picture: Picture::draw(source.subject(None)),
            words: Words {
                name: side.name.clone(),
                ..Words::default()
            },
        });
    }
    let shape = Options {
        full_paths: options.full_paths,
        ..Options::default()
    };
    let (written, _) = save_page(output, target, &story(diff, before, after), &panes, &shape)?;
    tell_written(target, written);
    Ok(())
}

fn story(diff: &Diff, before: &Side, after: &Side) -> Story {
    let group = |title: &str, changes: &[Change]| Differences {
        title: title.to_owned(),
        rows: changes
            .iter()
            .map(|change| Difference {
                what: named(change),
                before: change.before,
                after: change.after,
            })
            .collect(),
    };
    let groups = groups(diff).into_iter();
    let groups = groups.filter(|(_, changes)| !changes.is_empty());
    let device = |side: &Side| {
        let track = side.held.most_allocated()?;
        side.held
            .fact(track.process, meta::GPU_NAME)
            .map(|name| Fact {
                name: side.name.clone(),
                text: plain(name),
            })
    };
    Story {
        title: format!("{} → {}", before.name, after.name),
        verdict: if diff.is_empty() {
            "no difference".to_owned()
        } else {
            String::new()
        },
        facts: [before, after]
            .into_iter()
            .filter_map(device)
            .chain(ranks_of_one(diff).map(|text| Fact {
                name: "ranks".to_owned(),
                text,
            }))
            .chain(diff.remarks.iter().map(|text| Fact {
                name: "ended".to_owned(),
                text: text.clone(),
            }))
            .collect(),
        ranks: None,
        comparison: Some(Comparison {
            groups: std::iter::once(("totals", &diff.totals))
                .chain(groups)
                .map(|(title, changes)| group(title, changes))
                .collect(),
        }),
        producer: PRODUCER.to_owned(),
        ..Story::default()
    }
}

/// The comparisons beside the totals.
fn groups(diff: &Diff) -> [(&'static str, &Vec<Change>); 4] {
    [
        ("by rank, its own peak", &diff.ranks),
        ("by category, at the peak", &diff.categories),
        ("by phase, its own peak", &diff.phases),
        ("by line, at the peak", &diff.lines),
    ]
}

/// Ranks that were not compared, in words.
fn ranks_of_one(diff: &Diff) -> impl Iterator<Item = String> {
    let sides = [(&diff.ranks_before, "first"), (&diff.ranks_after, "second")];
    let sides = sides.into_iter().filter(|(ranks, _)| !ranks.is_empty());
    sides.map(|(ranks, side)| format!("only the {side} recording has {}", ranks_named(ranks)))
}

/// How many lines are shown.
const LINES: usize = 10;

fn text(diff: &Diff) -> String {
    let mut text = String::new();
    for change in &diff.totals {
        let _ = writeln!(text, "{}", row(change));
    }
    for remark in &diff.remarks {
        let _ = writeln!(text, "\n{remark}");
    }
    if diff.is_empty() {
        text.push_str("\nno difference\n");
        return text;
    }
    for sentence in ranks_of_one(diff) {
        let _ = writeln!(text, "\n{sentence}");
    }
    for (title, changes) in groups(diff) {
        if changes.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{title}");
        for change in changes.iter().take(LINES) {
            let _ = writeln!(text, "{}", row(change));
        }
        if changes.len() > LINES {
            let _ = writeln!(text, "  and {} more", changes.len() - LINES);
        }
    }
    text
}

/// `+64.00 MiB`, `-1.00 GiB`.
pub(crate) fn signed(delta: i64) -> String {
    let sign = match delta {
        0 => "±",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", bytes(delta.unsigned_abs()))
}

/// The change, with the line it is on now.
pub(crate) fn named(change: &Change) -> String {
    match change.line {
        Some(line) => format!("{} line {line}", plain(&change.what)),
        None => plain(&change.what),
    }
}

pub(crate) fn row(change: &Change) -> String {
    let delta = change.delta();
    let style = match delta {
        0 => anstyle::Style::new(),
        1.. => BAD,
        _ => GOOD,
    };
    let name = named(change);
    format!(
        "  {style}{:>13}{style:#}  {:>11} → {:>11}  {name}",
        signed(delta),
        bytes(change.before),
        bytes(change.after),
    )
}
