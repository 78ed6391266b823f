// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which blocks are drawn one by one, and what becomes of the others.
//!
//! Kept are: all blocks alive at the moments that matter most, so that their parts are complete; the blocks of the
//! step around the peak, which is where people zoom in; and of all others those with the largest area, bytes times
//! life, because area is what a picture of addresses over time shows. A block that is not kept is counted, and its
//! share of the address space is a coarse grid: a hole on the page is then a hole, and not a place where the page is
//! silent.

use tonnage_analysis::holdings::{Holding, SegmentSpan};

use crate::input::{MomentKind, Subject};
use crate::moments::{Found, span_at};

/// Ranges of addresses that are distinguished; beyond it, neighbours are joined.
const MAX_RANGES: usize = 2000;
/// Cells of the grid over time and over addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cells {
    pub(crate) columns: u32,
    pub(crate) lines: u32,
}

impl Cells {
    /// As fine as befits a timeline of so many stretches.
    pub(crate) fn beside(stretches: u32) -> Self {
        Self {
            columns: (stretches / 64).clamp(32, 1024),
            lines: (stretches / 256).clamp(16, 256),
        }
    }
}

/// A stretch of addresses that held memory at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// The blocks that are kept and the sum of the others.
pub(crate) struct Chosen {
    /// Numbers of kept blocks, ascending by birth.
    pub(crate) kept: Vec<u32>,
    pub(crate) rest: Rest,
}

/// The blocks that are not drawn one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    /// How many blocks.
    pub(crate) blocks: u64,
    /// Their bytes, each block once.
    pub(crate) bytes: u64,
    /// The largest of them.
    pub(crate) largest: u64,
    /// How much of each cell they cover, in 255ths; time runs fastest. Empty if there are none.
    pub(crate) grid: Vec<u8>,
}

/// The ranges of addresses, ascending.
pub(crate) fn ranges(blocks: &[Holding], segments: &[SegmentSpan]) -> Vec<Range> {
    // Blocks too: a recording that begins in the middle does not show all segments.
    let of_segments = segments
        .iter()
        .map(|segment| (segment.address, segment.bytes));
    let of_blocks = blocks.iter().map(|block| (block.address, block.bytes));
    let mut spans: Vec<(u64, u64)> = of_segments.chain(of_blocks).collect();
    spans.retain(|&(address, bytes)| address.saturating_add(bytes) > address);
    spans.sort_unstable();
    let mut ranges: Vec<Range> = Vec::new();
    for (address, bytes) in spans {
        let end = address.saturating_add(bytes);
        match ranges.last_mut() {
            Some(last) if address <= last.address + last.bytes => {
                last.bytes = last.bytes.max(end - last.address);
            }
            _ => ranges.push(Range {
                address,
                bytes: end - address,
            }),
        }
    }
    if ranges.len() > MAX_RANGES {
        join(&mut ranges);
    }
    ranges
}

/// Joins ranges over the smallest gaps until there are few enough.
fn join(ranges: &mut Vec<Range>) {
    let gap = |pair: &[Range]| pair[1].address - pair[0].address - pair[0].bytes;
    let mut gaps: Vec<u64> = ranges.windows(2).map(gap).collect();
    gaps.sort_unstable();
    let limit = gaps[gaps.len() - MAX_RANGES];
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges.iter() {
        match joined.last_mut() {
            Some(last) if range.address - last.address - last.bytes <= limit => {
                last.bytes = range.address + range.bytes - last.address;
            }
            _ => joined.push(*range),
        }
    }
    *ranges = joined;
}

/// Chooses at most `most` blocks.
pub(crate) fn choose(
    subject: &Subject<'_>,
    moments: &[Found],
    ranges: &[Range],
    most: usize,
    cells: Cells,
) -> Chosen {
    let blocks = subject.blocks;
    let mut chosen = vec![false; blocks.len()];
    let mut left = most.min(blocks.len());
    if left == blocks.len() {
        chosen.fill(true);
    } else {
        let mut first: Vec<&Found> = moments
            .iter()
            .filter(|found| found.moment.kind < MomentKind::Mark)
            .collect();
        first.sort_by_key(|found| found.moment.kind);
        for found in &first {
            let row = found.moment.row;
            let alive = |block: &Holding| block.alive_at(row);
            let share = (left / 2).max(1).min(left);
            left -= take(blocks, &mut chosen, share, alive, |block| {
                u128::from(block.bytes)
            });
        }
        let focus = first
            .first()
            .and_then(|found| span_of_step(subject, found.moment.row));
        if let Some((from, to)) = focus {
            let share = left / 2;
            let within = |block: &Holding| block.born >= from && block.born < to;
            left -= take(blocks, &mut chosen, share, within, |block| {
                area(block, subject.rows)
            });
        }
        take(
            blocks,
            &mut chosen,
            left,
            |_| true,
            |block| area(block, subject.rows),
        );
    }
    let mut kept: Vec<u32> = (0_u32..)
        .zip(&chosen)
        .filter(|(_, chosen)| **chosen)
        .map(|(index, _)| index)
        .collect();
    kept.sort_by_key(|&index| blocks[index as usize].born);
    let others = blocks.iter().zip(&chosen).filter(|(_, chosen)| !**chosen);
    let rest = sum_up(
        others.map(|(block, _)| Placed {
            from: block.born,
            until: block.died,
            address: block.address,
            bytes: block.bytes,
        }),
        subject.rows,
        ranges,
        cells,
    );
    Chosen { kept, rest }
}

/// The rows of the step around a row.
fn span_of_step(subject: &Subject<'_>, row: u32) -> Option<(u32, u32)> {
    let step = span_at(subject.phases, row)?.step;
    let mut spans = subject.phases.iter().filter(|span| span.step == step);
    let first = spans.next()?;
    Some(spans.fold((first.from, first.to), |(from, to), span| {
        (from.min(span.from), to.max(span.to))
    }))
}

fn area(block: &Holding, rows: u32) -> u128 {
    let life = block.died.min(rows).saturating_sub(block.born);
    u128::from(block.bytes) * u128::from(life)
}

/// Chooses the `most` highest of those that are eligible and not chosen, and returns how many there were.
fn take(
    blocks: &[Holding],
    chosen: &mut [bool],
    most: usize,
    eligible: impl Fn(&Holding) -> bool,
    score: impl Fn(&Holding) -> u128,
) -> usize {
    if most == 0 {
        return 0;
    }
    let mut candidates: Vec<(u128, u32)> = (0_u32..)
        .zip(blocks)
        .filter(|(index, block)| !chosen[*index as usize] && eligible(block))
        // The lower number of equals, so that the same recording gives the same page.
        .map(|(index, block)| (score(block), u32::MAX - index))
        .collect();
    if candidates.len() > most {
        candidates.select_nth_unstable_by(most - 1, |one, other| other.cmp(one));
        candidates.truncate(most);
    }
    for (_, index) in &candidates {
        chosen[(u32::MAX - index) as usize] = true;
    }
    candidates.len()
}

/// A block that lies somewhere for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) from: u32,
    pub(crate) until: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Counts what is not drawn one by one, and where it lies.
pub(crate) fn sum_up(
    others: impl Iterator<Item = Placed>,
    rows: u32,
    ranges: &[Range],
    cells: Cells,
) -> Rest {
    let mut rest = Rest::default();
    let mut offsets = Vec::with_capacity(ranges.len());
    let mut total = 0_u64;
    for range in ranges {
        offsets.push(total);
        total = total.saturating_add(range.bytes);
    }
    let (whole, rows) = (f64::from(rows.max(1)), rows);
    let (columns, lines) = (cells.columns as usize, cells.lines as usize);
    let line_bytes = total as f64 / lines as f64;
    let column_rows = whole / columns as f64;
    // Cells of a line that a block covers from end to end are added as a difference at its ends.
    let mut partial = vec![0_f64; columns * lines];
    let mut full = vec![0_f64; (columns + 1) * lines];
    for block in others {
        rest.blocks += 1;
        rest.bytes = rest.bytes.saturating_add(block.bytes);
        rest.largest = rest.largest.max(block.bytes);
        let index = ranges.partition_point(|range| range.address <= block.address);
        let Some(index) = index.checked_sub(1) else {
            continue;
        };
        let inside = block.address - ranges[index].address;
        if inside >= ranges[index].bytes {
            continue;
        }
        let bytes = block.bytes.min(ranges[index].bytes - inside);
        let top = (offsets[index] + inside) as f64 / line_bytes;
        let bottom = top + bytes as f64 / line_bytes;
        let from = f64::from(block.from.min(rows)) / column_rows;
        let to = f64::from(block.until.min(rows)) / column_rows;
        let (first, last) = (from as usize, (to as usize).min(columns));
        let mut line = (top as usize).min(lines - 1);
        while line < lines && (line as f64) < bottom {
            let height = (bottom.min(line as f64 + 1.0) - top.max(line as f64)).max(0.0);
            if first == last {
                if first < columns {
                    partial[line * columns + first] += height * (to - from).max(0.0);
                }
            } else if first < last {
                partial[line * columns + first] += height * (first as f64 + 1.0 - from);
                if last < columns {
                    partial[line * columns + last] += height * (to - last as f64);
                }
                full[line * (columns + 1) + first + 1] += height;
                full[line * (columns + 1) + last] -= height;
            }
            line += 1;
        }
    }
    if rest.blocks > 0 && total > 0 {
        rest.grid = Vec::with_capacity(columns * lines);
        for line in 0..lines {
            let mut over = 0.0;
            for column in 0..columns {
                over += full[line * (columns + 1) + column];
                let share = over + partial[line * columns + column];
                rest.grid
                    .push((share.clamp(0.0, 1.0) * 255.0).round() as u8);
            }
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Moment;
    use crate::testing::subject;
    use crate::timeline::Levels;
    use tonnage_recording::StackTable;

    #[test]
    fn ranges_join_what_touches() {
        let segment = |address, bytes| SegmentSpan {
            born: 0,
            died: 9,
            address,
            bytes,
            stream: 0,
            pool: None,
            stack: None,
        };
        let found = ranges(
            &[],
            &[
                segment(100, 10),
                segment(0, 10),
                segment(10, 5),
                segment(u64::MAX, 9),
            ],
        );
        let pairs: Vec<_> = found
            .iter()
            .map(|range| (range.address, range.bytes))
            .collect();
        assert_eq!(pairs, [(0, 15), (100, 10)]);
        let many: Vec<_> = (0..5000_u64)
            .map(|n| segment(n * 100 + n * n / 100, 10))
            .collect();
        assert!(ranges(&[], &many).len() <= MAX_RANGES);
    }

    #[test]
    fn the_peak_is_complete_and_the_rest_is_counted() {
        let stacks = StackTable::new();
        // A large one, forty that live only around row 50, and crumbs.
        let mut blocks = vec![Holding::new(0, 100, 0, 1000)];
        blocks.extend((0..40).map(|n| Holding::new(49, 51, 1000 + n * 10, 10)));
        blocks.extend((0..100).map(|n| Holding::new(n, n + 60, 2000 + u64::from(n), 1)));
        let subject = subject(&blocks, &stacks, 100);
        let peak = Found {
            moment: Moment {
                row: 50,
                kind: MomentKind::Peak,
                label: String::new(),
                refused: None,
            },
            levels: Levels::default(),
        };
        let ranges = ranges(&blocks, &[]);
        let some = choose(
            &subject,
            std::slice::from_ref(&peak),
            &ranges,
            90,
            Cells::beside(1 << 16),
        );
        assert_eq!(some.kept.len(), 90);
        assert_eq!(some.rest.blocks, 51);
        assert_eq!(some.rest.bytes, 51);
        assert!((0..41).all(|index| some.kept.contains(&index)));
        let covered: f64 = some
            .rest
            .grid
            .iter()
            .map(|share| f64::from(*share) / 255.0)
            .sum();
        assert!(covered > 0.0);
        let all = choose(&subject, &[peak], &ranges, 1000, Cells::beside(0));
        assert_eq!((all.kept.len(), all.rest.blocks), (141, 0));
        assert!(all.rest.grid.is_empty());
    }
}
