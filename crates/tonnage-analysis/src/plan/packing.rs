// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of one process on one device beside its holdings: where each block would lie.
//!
//! The problems are those of [`super::problems`], so peaks and bounds equal the report of `tonnage plan`. Pools share
//! no memory; their arenas lie one behind the other here, and the sum of their peaks is what the plan takes. Time is
//! bounded by attempts first, so that the same recording gives the same packing, and by a clock where those take long.

use std::collections::HashMap;
use std::io::Read;
use std::time::{Duration, Instant};

use tonnage_plan::{Options, Status};
use tonnage_recording::{Pool, ReadError};

use super::problems::{Name, Wanted};
use super::recording::problems;
use super::report::PlanError;
use crate::holdings::Holdings;

/// Attempts for each part of a pool, as in replays.
const ATTEMPTS: u64 = 24;

/// The arena of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The pool, if the recording has it.
    pub pool: Option<Pool>,
    /// Where it begins among the arenas.
    pub base: u64,
    /// The highest byte in use, plus one.
    pub peak: u64,
    /// The lower bound of every plan.
    pub lower_bound: u64,
    /// Whether no plan has a lower peak.
    pub proved: bool,
    /// Blocks in it.
    pub buffers: usize,
    /// Streams that occur; they are one time line in the plan.
    pub streams: usize,
}

/// A block and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBlock {
    /// Its number among the holdings; `None` if it is not among them.
    pub block: Option<u32>,
    /// The row it is there from.
    pub from: u32,
    /// The first row it is gone: the one that completes its free.
    pub until: u32,
    /// Where it lies, counted from the first arena's first byte.
    pub address: u64,
    /// Bytes, a multiple of what the allocator aligns to.
    pub bytes: u64,
}

/// Where all blocks of one process on one device would lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// By pool.
    pub arenas: Vec<Arena>,
    /// Every block that was planned.
    pub places: Vec<PlacedBlock>,
}

impl Packing {
    /// The memory that all arenas use together.
    pub fn peak(&self) -> u64 {
        sum(self.arenas.iter().map(|arena| arena.peak))
    }

    /// The lower bound of every plan.
    pub fn lower_bound(&self) -> u64 {
        sum(self.arenas.iter().map(|arena| arena.lower_bound))
    }

    /// Whether no plan takes less.
    pub fn is_proved(&self) -> bool {
        self.arenas.iter().all(|arena| arena.proved)
    }
}

/// Why there is no packing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackingError {
    /// The recording cannot be read.
    #[error("the recording cannot be read")]
    Read(#[from] ReadError),
    /// It is a planning problem, whose times are not rows.
    #[error("it is a planning problem and not a recording")]
    IsProblem,
    /// It cannot be planned.
    #[error("its blocks cannot be planned")]
    Plan(#[from] PlanError),
}

/// Plans the blocks of one process on one device; `source` is the recording that `track` was read from.
pub fn packing<R: Read>(
    source: R,
    track: &Holdings,
    deadline: Duration,
) -> Result<Packing, PackingError> {
    let problems = problems(source, &Wanted::default())?;
    if problems.is_problem {
        return Err(PackingError::IsProblem);
    }
    let numbers = Numbers::from_track(track);
    let (begin, device) = (Instant::now(), track.device);
    let mut packing = Packing::default();
    for group in &problems.groups {
        if (group.process, group.device) != (track.process, device) || group.names.is_empty() {
            continue;
        }
        let options = Options {
            attempts: ATTEMPTS,
            threads: 1,
            deadline: Some(deadline.saturating_sub(begin.elapsed())),
            ..Options::default()
        };
        let plan = tonnage_plan::plan(&group.problem, &options)
            .map_err(|source| PlanError::Invalid { device, source })?;
        tonnage_plan::check(&group.problem, &plan)
            .map_err(|source| PlanError::Wrong { device, source })?;
        let base = packing.peak();
        for (id, name) in group.problem.ids().zip(&group.names) {
            let buffer = group.problem.buffer(id);
            packing.places.push(PlacedBlock {
                block: numbers.find(*name),
                from: row(buffer.start),
                until: row(buffer.end),
                address: base.saturating_add(plan.offset(id)),
                bytes: buffer.size,
            });
        }
        packing.arenas.push(Arena {
            pool: group.pool,
            base,
            peak: plan.peak(),
            lower_bound: plan.lower_bound(),
            proved: plan.status == Status::Optimal,
            buffers: group.names.len(),
            streams: group.streams,
        });
    }
    Ok(packing)
}

/// Each pool has at most 2⁶⁰ bytes, but a hostile recording has many.
fn sum(all: impl Iterator<Item = u64>) -> u64 {
    all.fold(0, u64::saturating_add)
}

fn row(moment: i64) -> u32 {
    u32::try_from(moment.max(0)).unwrap_or(u32::MAX)
}

/// The numbers of blocks by what the plan calls them.
struct Numbers {
    by_row: HashMap<u32, u32>,
    before: HashMap<u64, u32>,
}

impl Numbers {
    fn from_track(track: &Holdings) -> Self {
        let mut numbers = Self {
            by_row: HashMap::with_capacity(track.blocks.len()),
            before: HashMap::new(),
        };
        // Blocks without a birth come last and share their row with others, so the first one of a row is meant.
        for (number, block) in (0_u32..).zip(&track.blocks) {
            numbers.by_row.entry(block.born).or_insert(number);
            if block.born == 0 {
                numbers.before.entry(block.address).or_insert(number);
            }
        }
        numbers
    }

    fn find(&self, name: Name) -> Option<u32> {
        match name {
            Name::Row(row) => self.by_row.get(&u32::try_from(row).ok()?).copied(),
            Name::Before(address) => self.before.get(&address).copied(),
            Name::Text(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holdings;
    use crate::plan::plan;
    use tonnage_recording::{Event, Kind, Writer, meta};

    const MIB: u64 = 1 << 20;

    fn recording(source: Option<&str>) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
        if let Some(source) = source {
            writer.meta(0, meta::SOURCE, source).unwrap();
        }
        let row = |kind, address, size, second| Event {
            address,
            size,
            requested: size - 100,
            pool: Some(Pool { first: 0, second }),
            ..Event::new(kind)
        };
        for event in [
            row(Kind::Alloc, 64 * MIB, MIB, 0),
            row(Kind::Alloc, 96 * MIB, 2 * MIB, 0),
            row(Kind::FreeRequested, 64 * MIB, MIB, 0),
            row(Kind::FreeCompleted, 64 * MIB, MIB, 0),
            row(Kind::Alloc, 128 * MIB, MIB, 0),
            row(Kind::Alloc, 160 * MIB, 4 * MIB, 7),
            row(Kind::FreeRequested, 96 * MIB, MIB, 0),
        ] {
            writer.event(&event).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn every_block_has_its_place_and_the_sums_are_those_of_the_plan() {
        let bytes = recording(None);
        let held = holdings::read(bytes.as_slice()).unwrap();
        let track = held.worst().unwrap();
        let packing = packing(bytes.as_slice(), track, Duration::from_mins(1)).unwrap();
        let problems = problems(bytes.as_slice(), &Wanted::default()).unwrap();
        let report = plan(&problems, &Wanted::default(), &Options::default()).unwrap();
        let peaks: Vec<u64> = report.groups.iter().map(|group| group.peak).collect();
        assert_eq!(peaks, [3 * MIB, 4 * MIB]);
        assert_eq!(packing.peak(), 7 * MIB);
        assert_eq!(packing.lower_bound(), 7 * MIB);
        assert!(packing.is_proved());
        assert_eq!(packing.arenas[1].base, 3 * MIB);
        assert_eq!(packing.places.len(), track.blocks.len());
        for place in &packing.places {
            let block = &track.blocks[place.block.unwrap() as usize];
            assert_eq!((place.from, place.bytes), (block.born, block.bytes));
            // A free that is requested and not completed ends no life in the plan.
            assert!(place.until > block.died.min(6));
        }
        // The third block takes the place of the first, the one of the other pool lies behind both.
        assert_eq!(packing.places[2].address, packing.places[0].address);
        assert_eq!(packing.places[3].address, 3 * MIB);
    }

    #[test]
    fn a_planning_problem_is_none_of_its_business() {
        let bytes = recording(Some("planner-csv"));
        let held = holdings::read(bytes.as_slice()).unwrap();
        let packing = packing(
            bytes.as_slice(),
            held.worst().unwrap(),
            Duration::from_secs(1),
        );
        assert!(matches!(packing, Err(PackingError::IsProblem)));
    }
}
