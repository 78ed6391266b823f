// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a page shows: the processes and devices of a recording, and those of the whole job behind it.
//!
//! A recording that ends out of memory has the same job behind it, run without a limit. Where the job needs more than
//! the GPU has, the page opens with that, because the findings are about its fullest moment; else with the recording.

use std::collections::HashMap;

use tonnage_analysis::explain::{Explanation, UnusedBlock};
use tonnage_analysis::holdings::{HeldBy, Holdings, Recording as Held};
use tonnage_analysis::plan::Packing;
use tonnage_recording::meta;
use tonnage_report::{Moment, MomentKind, Refused, Subject};

use crate::commands::recording::plain;
use crate::output::bytes;

/// Panes after which no other process or device is shown.
const MAX_PANES: usize = 16;

/// One process on one device of a recording.
pub(crate) struct Source<'a> {
    pub(super) held: &'a Held,
    pub(super) track: &'a Holdings,
    /// Whether it is of the whole job without a limit.
    pub(super) whole: bool,
    pub(super) name: String,
    /// Bytes of the device; a whole job is drawn against the device it did not fit on.
    capacity: Option<u64>,
    /// Whether its clock means anything: that of a dry run does not.
    timed: bool,
    moments: Vec<Moment>,
    holders: HashMap<u32, HeldBy>,
    unused: Vec<UnusedBlock>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(held: &'a Held, track: &'a Holdings, name: String, timed: bool) -> Self {
        Self {
            held,
            track,
            whole: false,
            name,
            capacity: track.capacity,
            timed,
            moments: moments(track),
            holders: track.holders_near(track.moment(), &held.stacks),
            unused: Vec::new(),
        }
    }

    /// The drawn part.
    pub(crate) fn subject<'b>(&'b self, packing: Option<&'b Packing>) -> Subject<'b> {
        let (held, track) = (self.held, self.track);
        Subject {
            blocks: &track.blocks,
            segments: &track.segments,
            phases: &track.phases,
            stacks: &held.stacks,
            rows: held.rows,
            capacity: self.capacity,
            context: track.context,
            times: if self.timed { &held.times } else { &[] },
            moments: &self.moments,
            packing,
            failure: track.failure.and_then(|failure| failure.stack),
            holders: (!self.holders.is_empty()).then_some(&self.holders),
            unused: &self.unused,
        }
    }
}

/// The panes of a page, that which it opens with first.
pub(super) struct Panes<'a> {
    pub(super) sources: Vec<Source<'a>>,
    /// How many more processes and devices there are.
    pub(super) left_out: usize,
}

impl<'a> Panes<'a> {
    /// The tracks of a recording, the first being the one that is explained, and those of the whole job.
    pub(super) fn new(
        held: &'a Held,
        tracks: &[&'a Holdings],
        whole: Option<&'a Held>,
        whole_first: bool,
        timed: bool,
    ) -> Self {
        let mut sources = Vec::new();
        let several = tracks.len() > 1;
        let mut left_out = 0;
        for &track in tracks {
            // A hidden part costs nothing, however many processes a file claims.
            if sources.len() >= MAX_PANES {
                left_out += 1;
                continue;
            }
            let mut name = if several {
                label(held, track)
            } else {
                String::new()
            };
            let of_whole = whole.and_then(|whole| Some((whole, same(whole, track)?)));
            if of_whole.is_some() {
                push_word(&mut name, "up to the failure");
            }
            let first = Source::new(held, track, name, timed);
            let second = of_whole.map(|(whole, of)| {
                let mut name = if several {
                    label(held, track)
                } else {
                    String::new()
                };
                push_word(&mut name, "whole job without a limit");
                Source {
                    whole: true,
                    capacity: track.capacity,
                    ..Source::new(whole, of, name, timed)
                }
            });
            let before = sources.len();
            sources.push(first);
            sources.extend(second);
            if whole_first {
                sources[before..].reverse();
            }
        }
        Self { sources, left_out }
    }

    /// Takes over the blocks that stay after their last use into the pane of the recording that they are blocks of.
    pub(super) fn mark_unused(&mut self, explanation: &Explanation) {
        let Some(uses) = &explanation.next_uses else {
            return;
        };
        let pane = self.find(explanation.process, explanation.device, uses.whole);
        if let Some(source) = pane.and_then(|pane| self.sources.get_mut(pane)) {
            source.unused.clone_from(&uses.unused);
        }
    }

    /// The number of a pane.
    pub(super) fn find(&self, process: u32, device: i32, whole: bool) -> Option<usize> {
        let is = |one: &Source<'_>| {
            one.whole == whole && (one.track.process, one.track.device) == (process, device)
        };
        self.sources.iter().position(is)
    }

    /// The number of a pane; the first if there is none such.
    pub(super) fn number_of(&self, process: u32, device: i32, whole: bool) -> usize {
        self.find(process, device, whole).unwrap_or(0)
    }

    /// The number of the recording's own pane that is explained.
    pub(super) fn recorded(&self) -> usize {
        let mut sources = self.sources.iter();
        sources.position(|one| !one.whole).unwrap_or(0)
    }
}

fn push_word(name: &mut String, word: &str) {
    if !name.is_empty() {
        name.push_str(", ");
    }
    name.push_str(word);
}

/// The same process and device in another recording.
fn same<'a>(whole: &'a Held, track: &Holdings) -> Option<&'a Holdings> {
    let mut tracks = whole.tracks.iter();
    tracks.find(|one| {
        (one.process, one.device) == (track.process, track.device) && !one.blocks.is_empty()
    })
}

/// A process and its device, with the rank if it has one.
fn label(held: &Held, track: &Holdings) -> String {
    let rank = tonnage_recording::meta::find(&held.meta, track.process, meta::PROCESS_RANK);
    let process = match rank.map(plain) {
        Some(rank) => format!("rank {rank}"),
        None => format!("process {}", track.process),
    };
    format!("{process}, GPU {}", track.device)
}

/// Moments that only the recording knows.
fn moments(track: &Holdings) -> Vec<Moment> {
    let failure = track.failure.iter().map(|failure| Moment {
        row: failure.row,
        kind: MomentKind::OutOfMemory,
        label: format!(
            "out of memory: {} requested, {} free",
            bytes(failure.requested),
            bytes(failure.free)
        ),
        refused: Some(Refused {
            requested: failure.requested,
            free: failure.free,
        }),
    });
    failure.collect()
}
