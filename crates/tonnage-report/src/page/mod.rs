// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page: panes of one process on one device each, with the words that belong to all of them.
//!
//! * `data` is what a pane holds, as compressed columns, coarser until it fits;
//! * `texts` are the names and stacks in it;
//! * `html` is the file around it.

mod data;
mod html;
#[cfg(test)]
mod tests;
mod texts;

use std::io::{self, Write};

use serde::Serialize;

pub use self::html::escaped;

use self::data::{DATA_VERSION, PaneData, Shown, pack};
use crate::columns::{Columns, base64};
use crate::input::{Moment, Story, Subject, Words};
use crate::moments::{Found, find};
use crate::names::without_folders;
use crate::timeline::{Changes, Levels, Stretch, starts};

/// How a page is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most bytes of data in it.
    pub max_data: u64,
    /// Whether files keep their folders.
    pub full_paths: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_data: 10 << 20,
            full_paths: false,
        }
    }
}

/// Why a page could not be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The file.
    Io(io::Error),
    /// Even the coarsest picture needs more data than allowed.
    TooSmall {
        /// Bytes it needs.
        needed: u64,
    },
}

impl std::fmt::Display for WriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(_) => f.write_str("the page cannot be written"),
            Self::TooSmall { needed } => {
                write!(f, "the coarsest picture takes {needed} bytes of data")
            }
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::TooSmall { .. } => None,
        }
    }
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The written page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Written {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of data in it, as text.
    pub data: u64,
    /// Processes and devices in it, each of them a pane.
    pub panes: u64,
    /// Blocks drawn one by one.
    pub blocks: u64,
    /// Blocks that are summed up.
    pub blocks_summed_up: u64,
    /// Stretches of the timeline.
    pub stretches: u64,
}

/// A recording as a screen shows it.
pub struct Picture<'a> {
    subject: Subject<'a>,
    changes: Changes,
    moments: Vec<Found>,
    steps_left_out: usize,
}

impl<'a> Picture<'a> {
    /// Finds the moments of a recording.
    pub fn draw(subject: Subject<'a>) -> Self {
        let changes = Changes::from_blocks(subject.blocks, subject.segments, subject.rows);
        let (moments, steps_left_out) = find(&subject, &changes);
        Self {
            subject,
            changes,
            moments,
            steps_left_out,
        }
    }

    /// The moments worth looking at, in the order of rows.
    pub fn moments(&self) -> impl Iterator<Item = (&Moment, &Levels)> {
        self.moments
            .iter()
            .map(|found| (&found.moment, &found.levels))
    }

    /// The timeline in this many stretches of equal length.
    pub fn stretches(&self, count: u32) -> Vec<Stretch> {
        self.changes
            .stretches(&starts(self.subject.rows, count, &[]))
    }
}

/// One process on one device, with the words about it.
pub struct Pane<'a> {
    /// Its pictures.
    pub picture: Picture<'a>,
    /// Its words.
    pub words: Words,
}

/// Writes a page of panes. The first is the one that the page opens with; a page that compares has two.
///
/// The first pane may take half of the data, the others share what is left.
pub fn write(
    story: &Story,
    panes: &[Pane<'_>],
    options: &Options,
    destination: &mut impl Write,
) -> Result<Written, WriteError> {
    let told = if options.full_paths {
        story.clone()
    } else {
        discreet(story)
    };
    let names: Vec<&str> = panes.iter().map(|pane| pane.words.name.as_str()).collect();
    let words = base64(&Columns::default().packed(&StoryFacts {
        version: DATA_VERSION,
        story: &told,
        panes: names,
    })?);
    let mut left = options.max_data.saturating_sub(words.len() as u64);
    let mut packed: Vec<PaneData> = Vec::with_capacity(panes.len());
    for (number, pane) in panes.iter().enumerate() {
        let findings: Vec<Shown<'_>> = (0..)
            .zip(&story.findings)
            .filter(|(_, finding)| finding.pane == number)
            .map(|(number, finding)| Shown { number, finding })
            .collect();
        let others = (panes.len() - number) as u64;
        let limit = match (number, others, &story.comparison) {
            (_, 1, _) => left,
            (0, _, None) => left / 2,
            _ => left / others,
        };
        let one = pack(&pane.picture, &pane.words, &findings, options, limit)?;
        left = left.saturating_sub(one.len() as u64);
        packed.push(one);
    }
    let page = html::page(&told, &words, &packed);
    destination.write_all(page.as_bytes())?;
    destination.flush()?;
    let sum = |of: fn(&PaneData) -> u64| packed.iter().map(of).sum();
    Ok(Written {
        bytes: page.len() as u64,
        data: sum(|pane| pane.len() as u64) + words.len() as u64,
        panes: packed.len() as u64,
        blocks: sum(|pane| pane.drawn),
        blocks_summed_up: sum(|pane| pane.summed_up),
        stretches: sum(|pane| pane.stretches),
    })
}

#[derive(Serialize)]
struct StoryFacts<'a> {
    version: u32,
    story: &'a Story,
    /// The name of each pane.
    panes: Vec<&'a str>,
}

/// The same words without the folders of files.
fn discreet(story: &Story) -> Story {
    let mut told = story.clone();
    let facts = told.facts.iter_mut().map(|fact| &mut fact.text);
    let findings = told.findings.iter_mut().map(|finding| &mut finding.text);
    let answer = told.answer.iter_mut().flat_map(|answer| {
        let lines = answer.lines.iter_mut().map(|line| &mut line.text);
        let fixes = answer
            .fixes
            .iter_mut()
            .flat_map(|fix| [&mut fix.advice, &mut fix.proof]);
        lines.chain(fixes).chain([&mut answer.headline])
    });
    let groups = told.comparison.iter_mut().flat_map(|one| &mut one.groups);
    let rows = groups.flat_map(|group| &mut group.rows);
    let all = [&mut told.title, &mut told.verdict]
        .into_iter()
        .chain(facts)
        .chain(findings)
        .chain(answer)
        .chain(rows.map(|row| &mut row.what));
    for text in all {
        *text = without_folders(text);
    }
    told
}
