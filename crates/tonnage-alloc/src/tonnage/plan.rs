// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plan: where the blocks of a known program shall lie, and its file.
//!
//! A plan lists places in the order of the requests: those of the program's
//! start once, then those of each kind of step, which repeat. Nothing has to be
//! true about it. A place is a wish, granted only if its range is free.
//!
//! The file is text, a line for each place, so that it can be read and compared.
//! Its first line has the version of the format, its last one the number of
//! places, so that a file that was cut off is recognised.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::class::GRANULE;

/// The first line of a file.
const HEADING: &str = "tonnage plan 1";
/// Streams and pools that a plan distinguishes.
pub(super) const LANES: u16 = 64;
/// The highest a plan may be: 2^49 bytes, more than any device has.
const HIGHEST: u64 = 1 << 49;

/// Where a block shall lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedBlock {
    /// Bytes of the block, a multiple of 512.
    pub size: u64,
    /// Number of its stream within its pool, by the order of their first requests; 0 is the default stream.
    pub lane: u16,
    /// Distance from the first address, a multiple of 512; none if the plan has no place for it. Such a request is
    /// listed so that those after it are counted right.
    pub offset: Option<u64>,
}

impl PlannedBlock {
    /// A place.
    pub fn new(size: u64, lane: u16, offset: u64) -> Self {
        Self {
            size,
            lane,
            offset: Some(offset),
        }
    }

    /// A request that shall lie anywhere.
    pub fn anywhere(size: u64, lane: u16) -> Self {
        Self {
            size,
            lane,
            offset: None,
        }
    }
}

/// Where the blocks of a program shall lie.
///
/// ```
/// use tonnage_alloc::tonnage::{AllocatorPlan, PlanError, PlannedBlock};
///
/// let weight = PlannedBlock::new(4096, 0, 0);
/// let activation = PlannedBlock::new(1024, 0, 4096);
/// let plan = AllocatorPlan::new(vec![weight], vec![vec![activation]])?;
/// assert_eq!(plan.height(), 5120);
/// assert_eq!(plan.to_string().parse::<AllocatorPlan>()?, plan);
/// # Ok::<(), PlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorPlan {
    once: Vec<PlannedBlock>,
    steps: Vec<Vec<PlannedBlock>>,
    height: u64,
    live: u64,
}

/// The reason why a file is not a plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}: {reason}")]
#[non_exhaustive]
pub struct PlanError {
    /// The line, from 1; for places that are in no file, their number.
    pub line: usize,
    /// The contradiction.
    pub reason: &'static str,
}

impl AllocatorPlan {
    /// A plan of places: those before the first step, and those of each kind of step, in the order of their requests.
    ///
    /// # Errors
    /// If a place is not made of whole granules, or too large.
    pub fn new(once: Vec<PlannedBlock>, steps: Vec<Vec<PlannedBlock>>) -> Result<Self, PlanError> {
        let mut height = 0;
        for (number, place) in once.iter().chain(steps.iter().flatten()).enumerate() {
            let line = number + 1;
            let end = end_of(place).map_err(|reason| PlanError { line, reason })?;
            height = height.max(end);
        }
        Ok(Self {
            once,
            steps,
            height,
            live: height,
        })
    }

    /// The same, and the most bytes of its blocks that are live at once. Memory beyond that is not obtained for it.
    #[must_use]
    pub fn with_live(self, bytes: u64) -> Self {
        Self {
            live: bytes.min(self.height),
            ..self
        }
    }

    /// The most bytes of its blocks that are live at once.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// The places before the first step.
    pub fn once(&self) -> &[PlannedBlock] {
        &self.once
    }

    /// The places of each kind of step.
    pub fn steps(&self) -> &[Vec<PlannedBlock>] {
        &self.steps
    }

    /// One past the highest byte that it gives to a block.
    pub fn height(&self) -> u64 {
        self.height
    }

    /// How many places it has.
    pub fn places(&self) -> usize {
        self.once.len() + self.steps.iter().map(Vec::len).sum::<usize>()
    }
}

/// One past the last byte of a place, if it is one.
fn end_of(place: &PlannedBlock) -> Result<u64, &'static str> {
    if place.size == 0 || !place.size.is_multiple_of(GRANULE) {
        return Err("the size is not a positive multiple of 512");
    }
    if place.size > HIGHEST {
        return Err("no device has so much");
    }
    if place.lane >= LANES {
        return Err("there are at most 64 streams");
    }
    let Some(offset) = place.offset else {
        return Ok(0);
    };
    if !offset.is_multiple_of(GRANULE) {
        return Err("the offset is not a multiple of 512");
    }
    let end = offset.checked_add(place.size);
    end.filter(|&end| end <= HIGHEST)
        .ok_or("the place ends beyond any device")
}

impl fmt::Display for AllocatorPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADING}")?;
        writeln!(f, "live {}", self.live)?;
        writeln!(
            f,
            "# size, stream, offset (- for anywhere); in the order of the requests"
        )?;
        let mut write = |title: &str, places: &[PlannedBlock]| {
            writeln!(f, "{title}")?;
            places.iter().try_for_each(|place| {
                let PlannedBlock { size, lane, .. } = place;
                match place.offset {
                    Some(offset) => writeln!(f, "{size} {lane} {offset}"),
                    None => writeln!(f, "{size} {lane} -"),
                }
            })
        };
        write("once", &self.once)?;
        for step in &self.steps {
            write("step", step)?;
        }
        writeln!(f, "end {}", self.places())
    }
}

impl FromStr for AllocatorPlan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut lines = text.lines().zip(1..);
        let wrong = |line, reason| Err(PlanError { line, reason });
        if lines.next().is_none_or(|(first, _)| first != HEADING) {
            return wrong(1, "not a plan of this version of tonnage");
        }
        let mut once = Vec::new();
        let mut steps: Vec<Vec<PlannedBlock>> = Vec::new();
        let mut height = 0;
        let mut live = u64::MAX;
        let mut begun = false;
        let mut last = 1;
        for (line, number) in lines {
            last = number;
            if line.starts_with('#') {
                continue;
            }
            if let Some(count) = line.strip_prefix("end ") {
                let plan = Self {
                    once,
                    steps,
                    height,
                    live: live.min(height),
                };
                if count.parse() != Ok(plan.places()) {
                    return wrong(number, "there are not so many places");
                }
                return Ok(plan);
            }
            if let Some(bytes) = line.strip_prefix("live ")
                && !begun
            {
                let Ok(bytes) = bytes.parse() else {
                    return wrong(number, "expected the bytes that are live at once");
                };
                live = bytes;
                continue;
            }
            match line {
                "once" if !begun => begun = true,
                "step" if begun => steps.push(Vec::new()),
                _ if begun => {
                    let Some(place) = place(line) else {
                        return wrong(number, "expected a size, a stream and an offset");
                    };
                    match end_of(&place) {
                        Ok(end) => height = height.max(end),
                        Err(reason) => return wrong(number, reason),
                    }
                    steps.last_mut().unwrap_or(&mut once).push(place);
                }
                _ => return wrong(number, "expected the places before the first step"),
            }
        }
        wrong(last, "the file was cut off: its last line is missing")
    }
}

fn place(line: &str) -> Option<PlannedBlock> {
    let mut fields = line.split(' ');
    let place = PlannedBlock {
        size: fields.next()?.parse().ok()?,
        lane: fields.next()?.parse().ok()?,
        offset: match fields.next()? {
            "-" => None,
            offset => Some(offset.parse().ok()?),
        },
    };
    fields.next().is_none().then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plan_is_refused_with_its_line() {
        let refused = |text: &str| {
            let error = text
                .parse::<AllocatorPlan>()
                .err()
                .map(|error| error.to_string());
            error.unwrap_or_default()
        };
        let whole = "tonnage plan 1\nonce\n512 0 0\nstep\n1024 1 512\nend 2\n";
        let lively = whole.replace("once", "live some\nonce");
        assert!(refused(&lively).starts_with("line 2: expected the bytes"));
        assert_eq!(refused(whole), "");
        for (from, to, error) in [
            ("plan 1", "plan 2", "line 1: not a plan of this version"),
            ("512 0 0", "512 0", "line 3: expected a size"),
            ("512 0 0", "512 0 0 0", "line 3: expected a size"),
            ("512 0 0", "511 0 0", "line 3: the size is not a positive"),
            ("512 0 0", "0 0 0", "line 3: the size is not a positive"),
            ("512 0 0", "512 64 0", "line 3: there are at most 64"),
            ("1024 1 512", "1024 1 1", "line 5: the offset"),
            (
                "1024 1 512",
                "1024 1 18446744073709551104",
                "line 5: the place ends",
            ),
            ("once\n", "", "line 2: expected the places"),
            ("end 2", "end 3", "line 6: there are not so many"),
            ("end 2\n", "", "line 5: the file was cut off"),
        ] {
            let text = whole.replace(from, to);
            assert!(refused(&text).starts_with(error), "{}", refused(&text));
        }
    }
}
