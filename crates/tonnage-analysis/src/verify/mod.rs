// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares a recording of a real GPU with that of a dry run of the same job, event by event.
//!
//! The requests to PyTorch's allocator, and its requests to the driver, are compared: blocks by the bytes that
//! were requested, segments by their size, in order. Addresses, streams and times are another's in every run. `align`
//! finds where the two part and where they meet again, `causes` finds the reason in the recordings themselves.

mod align;
mod causes;
mod side;
#[cfg(test)]
mod tests;

use std::io::Read;

use serde::Serialize;
use thiserror::Error;
use tonnage_recording::ReadError;

pub use crate::holdings::Place;
use side::{Side, Track};

/// Version of the JSON that [`Verification`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 2;

/// How many partings of a process are reported one by one.
const MAX_PARTINGS: usize = 50;

/// Which of two recordings cannot be read.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// That of the GPU.
    #[error("the recording of the GPU cannot be read")]
    Real(#[source] ReadError),
    /// That of the dry run.
    #[error("the recording of the dry run cannot be read")]
    Dry(#[source] ReadError),
}

/// How far a dry run is what the GPU did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Verification {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// Whether every event of every process is the same, in the same order. Memory outside PyTorch may differ
    /// all the same, and is among the figures.
    pub same: bool,
    /// The command that was run on the GPU.
    pub command: String,
    /// The driver's name of the real GPU.
    pub gpu: String,
    /// Version of PyTorch.
    pub torch: String,
    /// The differences of the two runs before anything is allocated: the GPU, versions, settings, arguments.
    pub settings: Vec<Setting>,
    /// Every process on every device it used.
    pub processes: Vec<Comparison>,
    /// The facts that make the comparison weaker.
    pub unknown: Vec<String>,
}

/// Something the two runs were given that is not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Setting {
    /// Its description.
    pub what: String,
    /// On the GPU; none if it was not set.
    pub real: Option<String>,
    /// In the dry run.
    pub dry: Option<String>,
}

/// One process on one device, in both runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Comparison {
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// Number of the device on the machine.
    pub device: i32,
    /// Events on the GPU that were compared.
    pub real_events: u64,
    /// Events of the dry run that were compared.
    pub dry_events: u64,
    /// Events that are the same in both.
    pub same_events: u64,
    /// Moved blocks among these: they lie in another segment or elsewhere in it.
    pub moved_blocks: u64,
    /// Bytes of both runs.
    pub figures: Vec<Figure>,
    /// Where the runs part, in order.
    pub partings: Vec<Parting>,
    /// Partings that are not listed.
    pub more_partings: u64,
}

/// A number of both runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Figure {
    /// The name: `peak_allocated`, `peak_reserved`, `beside_first`, `beside_most`, `capacity`.
    pub name: String,
    /// On the GPU.
    pub real: u64,
    /// In the dry run.
    pub dry: u64,
}

/// Where the runs part, up to where they meet again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Parting {
    /// Number of the event on the GPU, from 0, among those that are compared.
    pub real_event: u64,
    /// Number of the event in the dry run.
    pub dry_event: u64,
    /// Events that only the GPU has.
    pub only_real: u64,
    /// Events that only the dry run has.
    pub only_dry: u64,
    /// Bytes that these requested on the GPU.
    pub real_bytes: u64,
    /// Bytes that these requested in the dry run.
    pub dry_bytes: u64,
    /// The first event on the GPU: its kind and bytes.
    pub real: Option<String>,
    /// The first event of the dry run.
    pub dry: Option<String>,
    /// The line of the script, by the GPU's recording or else that of the dry run.
    pub place: Option<Place>,
    /// Why, in a sentence.
    pub cause: String,
    /// `certain`: the recordings show it. `likely`: they show a possible cause. `unknown`: neither.
    pub known: &'static str,
    /// How often the same parting, at the same line and by the same bytes, came again later.
    pub repeats: u64,
}

/// Compares a recording of a real GPU with one of a dry run.
///
/// ```
/// use tonnage_analysis::verify::verify;
/// use tonnage_recording::Trace;
///
/// let file = Trace::new("example 1.0").write(Vec::new())?;
/// let verification = verify(file.as_slice(), file.as_slice())?;
/// assert!(verification.same && verification.processes.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If one of them cannot be read; the error names it.
pub fn verify<A: Read, B: Read>(real: A, dry: B) -> Result<Verification, VerifyError> {
    let real = Side::read(real).map_err(VerifyError::Real)?;
    let dry = Side::read(dry).map_err(VerifyError::Dry)?;
    let settings = causes::settings(&real, &dry);
    let mut unknown = Vec::new();
    for (side, name) in [(&real, "on the GPU"), (&dry, "of the dry run")] {
        if let Some(why) = &side.incomplete {
            unknown.push(format!("what the recording {name} lacks {why}"));
        }
    }
    let sizes = dry.unmodelled.unknown_sizes();
    unknown.extend(sizes.iter().map(|size| format!("in the dry run: {size}")));
    let mut processes = Vec::new();
    let mut pairs = real.tracks.len() == dry.tracks.len();
    for track in &real.tracks {
        let other = dry.tracks.iter().find(|other| other.is_same(track));
        let Some(other) = other else {
            pairs = false;
            unknown.push(format!("{}: the dry run has no such process", track.name()));
            continue;
        };
        processes.push(compare(&real, track, &dry, other, &settings));
    }
    for track in &dry.tracks {
        if !real.tracks.iter().any(|other| other.is_same(track)) {
            unknown.push(format!(
                "{}: the recording of the GPU has no such process",
                track.name()
            ));
        }
    }
    for parting in processes
        .iter_mut()
        .flat_map(|one: &mut Comparison| &mut one.partings)
    {
        if let Some(place) = &mut parting.place {
            // A report is sent to others: it names files, not folders.
            let name = place.file.rsplit('/').next().unwrap_or_default();
            place.file = name.to_owned();
        }
    }
    let same = |process: &Comparison| process.partings.is_empty();
    Ok(Verification {
        schema_version: SCHEMA_VERSION,
        same: pairs && processes.iter().all(same),
        command: real.command.clone(),
        gpu: real.gpu.clone(),
        torch: real.torch.clone(),
        settings,
        processes,
        unknown,
    })
}

impl Figure {
    /// Whether both are the same.
    pub fn is_same(&self) -> bool {
        self.real == self.dry
    }
}

fn compare(
    real: &Side,
    track: &Track,
    dry: &Side,
    other: &Track,
    settings: &[Setting],
) -> Comparison {
    let aligned = align::align(&track.events, &other.events);
    let mut partings: Vec<Parting> = Vec::new();
    let mut more = 0;
    for gap in &aligned.gaps {
        let parting = causes::parting(gap, (real, track), (dry, other), settings);
        let again = partings.iter_mut().find(|known| known.is_same(&parting));
        if let Some(known) = again {
            known.repeats += 1;
        } else if partings.len() < MAX_PARTINGS {
            partings.push(parting);
        } else {
            more += 1;
        }
    }
    let figure = |name: &str, real: u64, dry: u64| Figure {
        name: name.to_owned(),
        real,
        dry,
    };
    Comparison {
        rank: track.rank,
        device: track.device,
        real_events: track.events.len() as u64,
        dry_events: other.events.len() as u64,
        same_events: aligned.same,
        moved_blocks: aligned.moved,
        figures: vec![
            figure("peak_allocated", track.peak_allocated, other.peak_allocated),
            figure("peak_reserved", track.peak_reserved, other.peak_reserved),
            figure("beside_first", track.context, other.context),
            figure("beside_most", track.beside, other.beside),
            figure("capacity", real.capacity, dry.capacity),
        ],
        partings,
        more_partings: more,
    }
}

impl Parting {
    fn is_same(&self, other: &Self) -> bool {
        let what = |one: &Self| (one.only_real, one.only_dry, one.real_bytes, one.dry_bytes);
        what(self) == what(other)
            && self.place == other.place
            && self.real == other.real
            && self.dry == other.dry
    }
}
