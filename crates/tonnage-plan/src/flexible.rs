// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning of shapes that are not rigid: with gaps, with members that share a start, with alignments of their own,
//! among obstacles that cannot move.
//!
//! Three searches share one question, the lowest offset at which a shape is clear of what is placed. First fit by
//! several orders gives a plan for any size; it is repeated with what lay too high moved to the front; and a
//! complete search places shapes in order of their offsets, each as low as it can lie. That order loses nothing: in
//! any plan, taking shapes by offset and dropping each as far as it goes never lifts one, whatever its form.

use std::ops::Range;

use crate::options::Clock;
use crate::random::Random;

/// A time in which a shape has one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) size: u64,
}

/// Pieces that are placed as one, at the same offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
}

impl Shape {
    fn height(&self) -> u64 {
        self.pieces
            .iter()
            .map(|piece| piece.size)
            .max()
            .unwrap_or(0)
    }

    fn area(&self) -> u128 {
        let area = |piece: &Piece| u128::from(piece.size) * u128::from(piece.end - piece.start);
        self.pieces.iter().map(area).sum()
    }

    fn lifetime(&self) -> u32 {
        self.pieces
            .iter()
            .map(|piece| piece.end - piece.start)
            .sum()
    }
}

/// Shapes and where nothing may lie.
#[derive(Debug)]
pub(crate) struct Flexible<'a> {
    pub(crate) shapes: &'a [Shape],
    pub(crate) sections: u32,
    pub(crate) forbidden: &'a [Range<u64>],
}

/// The result of a search.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) offsets: Vec<u64>,
    pub(crate) peak: u64,
    /// Whether nothing lower exists.
    pub(crate) exhausted: bool,
}

/// Shapes up to which the complete search is tried; beyond, each node costs too much.
const MAX_COMPLETE: usize = 400;

/// Sections that share a list of what is placed in them.
const BUCKETS: usize = 512;

/// The placed pieces, by time.
struct Placed<'a> {
    flexible: &'a Flexible<'a>,
    width: usize,
    buckets: Vec<Vec<(Piece, u64)>>,
    blocked: Vec<(u64, u64)>,
}

impl<'a> Placed<'a> {
    fn new(flexible: &'a Flexible<'a>) -> Self {
        let width = (flexible.sections as usize).div_ceil(BUCKETS).max(1);
        let mut placed = Self {
            flexible,
            width,
            buckets: vec![Vec::new(); (flexible.sections as usize).div_ceil(width)],
            blocked: Vec::new(),
        };
        for shape in flexible.shapes {
            if let Some(offset) = shape.fixed {
                placed.add(shape, offset);
            }
        }
        placed
    }

    fn add(&mut self, shape: &Shape, offset: u64) {
        for piece in &shape.pieces {
            for bucket in piece.start as usize / self.width..=(piece.end as usize - 1) / self.width
            {
                self.buckets[bucket].push((*piece, offset));
            }
        }
    }

    fn remove(&mut self, shape: &Shape) {
        // The piece added last is at the end of its lists.
        for piece in &shape.pieces {
            for bucket in piece.start as usize / self.width..=(piece.end as usize - 1) / self.width
            {
                self.buckets[bucket].pop();
            }
        }
    }

    /// The lowest offset at which the shape is clear of everything.
    fn lowest(&mut self, shape: &Shape) -> u64 {
        self.blocked.clear();
        for piece in &shape.pieces {
            let first = piece.start as usize / self.width;
            for bucket in first..=(piece.end as usize - 1) / self.width {
                // Pieces that both have in several buckets count in the first of them.
                let begins = if bucket == first {
                    0
                } else {
                    (bucket * self.width) as u32
                };
                for (other, offset) in &self.buckets[bucket] {
                    if other.start >= begins && other.start < piece.end && piece.start < other.end {
                        // Offsets in this range, without its ends, would overlap; the lower end counts from 1.
                        self.blocked
                            .push(((offset + 1).saturating_sub(piece.size), offset + other.size));
                    }
                }
            }
        }
        let height = shape.height();
        for range in self.flexible.forbidden {
            if range.start < range.end {
                self.blocked
                    .push(((range.start + 1).saturating_sub(height), range.end));
            }
        }
        self.blocked.sort_unstable();
        let mut offset = 0_u64;
        for &(from, to) in &self.blocked {
            if offset < from {
                break;
            }
            if to > offset {
                offset = to.next_multiple_of(shape.alignment);
            }
        }
        offset
    }
}

impl Flexible<'_> {
    /// The least top of the shapes that cannot move.
    fn fixed_peak(&self) -> u64 {
        let tops = self
            .shapes
            .iter()
            .filter_map(|shape| Some(shape.fixed? + shape.height()));
        tops.max().unwrap_or(0)
    }

    fn first_fit(&self, order: &[u32], clock: &Clock<'_>) -> Option<Found> {
        let mut placed = Placed::new(self);
        let mut offsets: Vec<u64> = self
            .shapes
            .iter()
            .map(|shape| shape.fixed.unwrap_or(0))
            .collect();
        let mut peak = self.fixed_peak();
        for (&index, step) in order.iter().zip(1_u32..) {
            if step % 256 == 0 && clock.is_over() {
                return None;
            }
            let shape = &self.shapes[index as usize];
            let offset = placed.lowest(shape);
            placed.add(shape, offset);
            offsets[index as usize] = offset;
            peak = peak.max(offset + shape.height());
        }
        Some(Found {
            offsets,
            peak,
            exhausted: false,
        })
    }

    /// Plans: the best of what the attempts find, or the first with a peak of at most `target`.
    ///
    /// The first order is always completed, even after the deadline: an answer is required.
    pub(crate) fn solve(
        &self,
        target: u64,
        attempts: u64,
        seed: u64,
        complete: bool,
        boost_failed: bool,
        clock: &Clock<'_>,
    ) -> Found {
        let mut movable: Vec<u32> = (0..self.shapes.len() as u32)
            .filter(|index| self.shapes[*index as usize].fixed.is_none())
            .collect();
        let shape = |index: &u32| &self.shapes[*index as usize];
        movable.sort_by_cached_key(|index| {
            std::cmp::Reverse((shape(index).height(), shape(index).lifetime()))
        });
        let never = Clock::never();
        let mut best = self.first_fit(&movable, &never).unwrap_or(Found {
            offsets: Vec::new(),
            peak: u64::MAX,
            exhausted: false,
        });
        let mut orders = vec![movable.clone()];
        movable.sort_by_cached_key(|index| std::cmp::Reverse(shape(index).area()));
        orders.push(movable.clone());
        movable.sort_by_cached_key(|index| {
            std::cmp::Reverse((shape(index).lifetime(), shape(index).height()))
        });
        orders.push(movable.clone());
        movable.sort_by_cached_key(|index| shape(index).pieces.first().map(|piece| piece.start));
        orders.push(movable);
        for order in &orders[1..] {
            if best.peak <= target || clock.is_over() {
                break;
            }
            if let Some(found) = self.first_fit(order, clock)
                && found.peak < best.peak
            {
                best = found;
            }
        }
        if complete && best.peak > target && orders[0].len() <= MAX_COMPLETE {
            let mut nodes = attempts.saturating_mul(2000);
            let mut search = Complete {
                flexible: self,
                placed: Placed::new(self),
                order: &orders[0],
                offsets: best.offsets.clone(),
                is_placed: vec![false; self.shapes.len()],
                remaining: vec![0; self.sections as usize],
                best: &mut best,
                target,
                nodes: &mut nodes,
                clock,
            };
            for index in &orders[0] {
                for piece in &shape(index).pieces {
                    for load in &mut search.remaining[piece.start as usize..piece.end as usize] {
                        *load += piece.size;
                    }
                }
            }
            let fixed = self.fixed_peak();
            if search.place(0, fixed, 0) {
                best.exhausted = true;
                return best;
            }
        }
        if boost_failed {
            self.repeat_with_boosts(&orders, target, attempts, seed, &mut best, clock);
        }
        best
    }

    /// First fit again and again, with what lay too high moved forward.
    fn repeat_with_boosts(
        &self,
        orders: &[Vec<u32>],
        target: u64,
        attempts: u64,
        seed: u64,
        best: &mut Found,
        clock: &Clock<'_>,
    ) {
        let mut random = Random::new(seed);
        let mut rank = vec![0.0_f32; self.shapes.len()];
        for (attempt, order) in (0..attempts).zip(orders.iter().cycle()) {
            if best.peak <= target || clock.is_over() {
                return;
            }
            if (attempt as usize).is_multiple_of(24 * orders.len()) {
                for (&index, place) in order.iter().zip(0_u32..) {
                    rank[index as usize] = place as f32;
                }
            }
            let mut order = order.clone();
            order.sort_by(|one, other| rank[*one as usize].total_cmp(&rank[*other as usize]));
            let Some(found) = self.first_fit(&order, clock) else {
                return;
            };
            for &index in &order {
                let top = found.offsets[index as usize] + self.shapes[index as usize].height();
                if top > target && top >= found.peak.min(best.peak) {
                    rank[index as usize] *= 0.3 + 0.5 * random.unit();
                } else {
                    rank[index as usize] += random.unit();
                }
            }
            if found.peak < best.peak {
                *best = found;
            }
        }
    }
}

/// Places shapes in order of their offsets.
struct Complete<'a> {
    flexible: &'a Flexible<'a>,
    placed: Placed<'a>,
    order: &'a [u32],
    offsets: Vec<u64>,
    is_placed: Vec<bool>,
    /// The items still to come in each section.
    remaining: Vec<u64>,
    best: &'a mut Found,
    target: u64,
    nodes: &'a mut u64,
    clock: &'a Clock<'a>,
}

impl Complete<'_> {
    /// Whether everything from here was looked at, or the target is reached.
    fn place(&mut self, done: usize, peak: u64, last: u64) -> bool {
        if done == self.order.len() {
            self.best.peak = peak;
            self.best.offsets.clone_from(&self.offsets);
            return true;
        }
        if *self.nodes == 0 || (self.nodes.is_multiple_of(64) && self.clock.is_over()) {
            return false;
        }
        *self.nodes -= 1;
        if self
            .remaining
            .iter()
            .any(|load| *load > 0 && last + load >= self.best.peak)
        {
            return true;
        }
        let shapes = self.flexible.shapes;
        let mut options: Vec<(u64, u32)> = Vec::new();
        let mut lowest_top = u64::MAX;
        for &index in self.order {
            if self.is_placed[index as usize] {
                continue;
            }
            let shape = &shapes[index as usize];
            let offset = self.placed.lowest(shape);
            if offset + shape.height() >= self.best.peak {
                return true;
            }
            lowest_top = lowest_top.min(offset + shape.height());
            // An item that could lie below the last one is tried when others lie there.
            if offset >= last {
                options.push((offset, index));
            }
        }
        options.sort_unstable();
        for (offset, index) in options {
            // Something else would fit entirely below: with it there the plan is not worse, and that is tried.
            if offset >= lowest_top {
                break;
            }
            let shape = &shapes[index as usize];
            if offset + shape.height() >= self.best.peak {
                continue;
            }
            self.offsets[index as usize] = offset;
            self.is_placed[index as usize] = true;
            self.placed.add(shape, offset);
            for piece in &shape.pieces {
                for load in &mut self.remaining[piece.start as usize..piece.end as usize] {
                    *load -= piece.size;
                }
            }
            let finished = self.place(done + 1, peak.max(offset + shape.height()), offset);
            for piece in &shape.pieces {
                for load in &mut self.remaining[piece.start as usize..piece.end as usize] {
                    *load += piece.size;
                }
            }
            self.placed.remove(shape);
            self.is_placed[index as usize] = false;
            if !finished {
                return false;
            }
            if self.best.peak <= self.target {
                return true;
            }
        }
        true
    }
}
