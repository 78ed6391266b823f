// SPDX-License-Identifier: MIT OR Apache-2.0
//! The largest of many values that fits, in few trials.
//!
//! The need of a job grows with a batch size or a length, piece by piece on nearly straight lines. So the next value to
//! try is read off the line through two that were tried. Once few are open, it is tried together with its neighbour
//! above: if one fits and the other does not, the search is over. Where the line misleads, because needs grow in steps
//! or on a curve, values around the guess are tried, and then the interval is divided.
//!
//! A value with which the job fails for another reason carries no information about memory, and is left out. Most such
//! values do not divide by what they must, so from then on the interval is divided at the value with most factors of
//! two.

use std::collections::{BTreeMap, BTreeSet};

/// The result for one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Whether the job runs to its end with it.
    pub fits: bool,
    /// Bytes of a GPU that it needs, if that is known.
    pub need: Option<u64>,
}

/// How many values may fail for another reason than memory before the search ends.
const MAX_FAILED: usize = 8;

/// The same before any value carried information about memory: the job may fail whatever the value is.
const MAX_FAILED_AT_FIRST: usize = 2;

/// Among so few open values a guess is tried together with its neighbour.
const NEAR: usize = 8;

/// A search that goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// Values in growing order: what stands for their size.
    sizes: Vec<u64>,
    /// Bytes that are there.
    limit: u64,
    tried: BTreeMap<usize, Judgement>,
    /// The values with which the job fails for another reason than memory.
    failed: BTreeSet<usize>,
    /// How many values were open before the last trials, once one was known that does not fit.
    open: Option<usize>,
    /// How often in a row the trials left more than half of them.
    slow: u32,
}

impl Search {
    pub(crate) fn new(sizes: Vec<u64>, limit: u64) -> Self {
        Self {
            sizes,
            limit,
            ..Self::default()
        }
    }

    pub(crate) fn learn(&mut self, index: usize, judgement: Judgement) {
        self.tried.insert(index, judgement);
    }

    /// A value carries no information about memory.
    pub(crate) fn leave_out(&mut self, index: usize) {
        self.failed.insert(index);
    }

    /// The smallest value above the largest that fits with which the job runs out of memory, if all between them fail
    /// for another reason.
    pub(crate) fn refused(&self) -> Option<usize> {
        let above = self.best().map_or(0, |best| best + 1);
        let refused = self.smallest_that_does_not_fit()?;
        (above..refused)
            .all(|index| self.failed.contains(&index))
            .then_some(refused)
    }

    /// The largest value that fits.
    pub(crate) fn best(&self) -> Option<usize> {
        let fitting = self.tried.iter().filter(|(_, judgement)| judgement.fits);
        let below = self.smallest_that_does_not_fit().unwrap_or(usize::MAX);
        fitting
            .map(|(index, _)| *index)
            .filter(|it| *it < below)
            .max()
    }

    /// The smallest and the largest value that may be the answer, by the line through two trials; none without them.
    pub(crate) fn estimate(&self) -> Option<(u64, u64)> {
        let low = self.best()?;
        let high = self.smallest_that_does_not_fit();
        let end = high.unwrap_or(self.sizes.len()) - 1;
        let guess = self.line(low, high)?.clamp(low, end);
        let away = (guess / 8).max(1);
        let size = |index: usize| self.sizes[index.clamp(low, end)];
        Some((size(guess.saturating_sub(away)), size(guess + away)))
    }

    /// The smallest value that does not.
    fn smallest_that_does_not_fit(&self) -> Option<usize> {
        let refused = self.tried.iter().find(|(_, judgement)| !judgement.fits);
        refused.map(|(index, _)| *index)
    }

    /// The values to try next, at most `width` of them; none if the answer is known.
    pub(crate) fn next(&mut self, width: usize) -> Vec<usize> {
        let high = self.smallest_that_does_not_fit();
        if !self.failed.is_empty() {
            return self.next_of_those_that_work(high);
        }
        let Some(low) = self.best() else {
            return if high == Some(0) { vec![] } else { vec![0] };
        };
        // Indices strictly between what fits and what does not.
        let (first, end) = (low + 1, high.unwrap_or(self.sizes.len()));
        if first >= end {
            return vec![];
        }
        let open = end - first;
        if high.is_some() {
            let slow = self.open.is_some_and(|before| open > before / 2);
            self.slow = if slow { self.slow + 1 } else { 0 };
            self.open = Some(open);
        }
        let mut next = match (self.line(low, high), self.slow) {
            // Nothing is known of the slope yet.
            (None, _) => vec![self.between(low)],
            // With its neighbour the guess is proved at once, if it is right; far from what is known it seldom is.
            (Some(guess), 0) if open <= NEAR => vec![guess, guess + 1],
            (Some(guess), 0) => vec![guess],
            (Some(guess), 1) => {
                let guess = self.nearest_line().unwrap_or(guess);
                let away = (open / 8).max(1);
                vec![guess.saturating_sub(away), guess + away]
            }
            _ => divided(first, end, width),
        };
        for index in &mut next {
            *index = (*index).clamp(first, end - 1);
        }
        next.dedup();
        next.truncate(width.max(1));
        next
    }

    /// The open value with most factors of two, the middle one of those.
    fn next_of_those_that_work(&self, high: Option<usize>) -> Vec<usize> {
        let most = if self.tried.is_empty() {
            MAX_FAILED_AT_FIRST
        } else {
            MAX_FAILED
        };
        if self.failed.len() >= most {
            return vec![];
        }
        let first = self.best().map_or(0, |best| best + 1);
        let open: Vec<usize> = (first..high.unwrap_or(self.sizes.len()))
            .filter(|index| !self.failed.contains(index))
            .collect();
        let factors = |index: &usize| self.sizes[*index].trailing_zeros();
        let most = open.iter().map(factors).max();
        let best: Vec<usize> = open
            .into_iter()
            .filter(|index| Some(factors(index)) == most)
            .collect();
        best.get(best.len() / 2).copied().into_iter().collect()
    }

    /// A value well above the lowest one: constant memory dominates at small values, which show little of the slope.
    fn between(&self, low: usize) -> usize {
        let (first, last) = (self.sizes[low].max(1), self.sizes[self.sizes.len() - 1]);
        let size = (first as f64 * last as f64).sqrt() as u64;
        self.sizes.partition_point(|known| *known < size)
    }

    /// The largest value that fits, by the line through the two around the limit, or else the largest two below it.
    fn line(&self, low: usize, high: Option<usize>) -> Option<usize> {
        let known = |(index, judgement): (&usize, &Judgement)| {
            judgement.need.map(|need| (self.sizes[*index], need))
        };
        let mut below = self.tried.range(..=low).rev().filter_map(known);
        let one = below.next()?;
        let above = high.and_then(|high| self.tried.range(high..).find_map(known));
        let two = above.or_else(|| below.next())?;
        Some(self.crossing(one, two))
    }

    /// The same by the two whose needs are nearest to the limit, on whichever side: a curve is steeper there.
    fn nearest_line(&self) -> Option<usize> {
        let known = self.tried.iter().filter_map(|(index, judgement)| {
            let need = judgement.need?;
            Some((need.abs_diff(self.limit), self.sizes[*index], need))
        });
        let mut known: Vec<(u64, u64, u64)> = known.collect();
        known.sort_unstable();
        let [(_, one, need_of_one), (_, two, need_of_two), ..] = known[..] else {
            return None;
        };
        Some(self.crossing((one, need_of_one), (two, need_of_two)))
    }

    /// The last value that is below the limit on the line through two sizes with their needs.
    fn crossing(&self, one: (u64, u64), two: (u64, u64)) -> usize {
        let slope = (two.1 as f64 - one.1 as f64) / (two.0 as f64 - one.0 as f64);
        let reach = if slope > 0.0 {
            let room = self.limit as f64 - one.1 as f64;
            (one.0 as f64 + room / slope).max(0.0) as u64
        } else {
            // It does not grow: as far as can be.
            u64::MAX
        };
        let above = self.sizes.partition_point(|size| *size <= reach);
        above.saturating_sub(1)
    }
}

/// One or two values that divide the interval.
fn divided(first: usize, end: usize, width: usize) -> Vec<usize> {
    if width < 2 {
        return vec![first.midpoint(end - 1)];
    }
    let third = (end - first) / 3;
    vec![first + third, end - 1 - third]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Searches with a need for each size; the answer, and how many trials it took.
    fn search(
        sizes: &[u64],
        limit: u64,
        width: usize,
        need: impl Fn(u64) -> u64,
    ) -> (Option<usize>, usize) {
        let mut search = Search::new(sizes.to_vec(), limit);
        let mut trials = 0;
        loop {
            let next = search.next(width);
            if next.is_empty() {
                return (search.best(), trials);
            }
            for index in next {
                assert!(!search.tried.contains_key(&index), "{index} is tried twice");
                let need = need(sizes[index]);
                search.learn(
                    index,
                    Judgement {
                        fits: need <= limit,
                        need: Some(need),
                    },
                );
                trials += 1;
            }
            assert!(trials <= 2 * sizes.len() + 2);
        }
    }

    #[test]
    fn a_straight_line_takes_four_trials() {
        let sizes: Vec<u64> = (1..=256).collect();
        let line = |size: u64| 1000 + 70 * size;
        assert_eq!(search(&sizes, 10_000, 2, line), (Some(127), 4));
        assert_eq!(search(&sizes, 10_000, 1, line), (Some(127), 4));
    }

    #[test]
    fn two_trials_give_an_estimate_with_the_answer_in_it() {
        let mut search = Search::new((1..=256).collect(), 10_000);
        let mut trials = 0;
        while search.estimate().is_none() {
            for index in search.next(1) {
                let need = 1000 + 70 * (index as u64 + 1) + (index as u64 + 1).pow(2) / 20;
                let fits = need <= 10_000;
                search.learn(
                    index,
                    Judgement {
                        fits,
                        need: Some(need),
                    },
                );
                trials += 1;
            }
        }
        let (low, high) = search.estimate().unwrap();
        assert_eq!(trials, 2);
        assert!(
            low <= 119 && 119 <= high && high - low < 40,
            "{low} to {high}"
        );
    }

    #[test]
    fn a_floor_and_steps_take_few_trials_more() {
        let sizes: Vec<u64> = (1..=256).collect();
        // The optimizer rules the small ones.
        let bent = |size: u64| (800 + 5 * size).max(100 + 270 * size);
        let (found, trials) = search(&sizes, 24_900, 2, bent);
        assert_eq!(found, Some(90));
        assert!(trials <= 8, "{trials} trials");
        // Segments are of 20 MiB.
        let steps = |size: u64| 200 + (3 * size).next_multiple_of(20);
        let (found, trials) = search(&sizes, 700, 2, steps);
        assert_eq!(found, sizes.iter().rposition(|size| steps(*size) <= 700));
        assert!(trials <= 14, "{trials} trials");
    }

    #[test]
    fn a_vision_transformer_takes_few_trials() {
        // Seen in MiB: an optimizer rules below 20; then a slope that steps of the cache blur.
        let sizes: Vec<u64> = (1..=512).collect();
        let need = |size: u64| {
            (2148 + 45 * size).max(1180 + 69 * size) + [0, 0, 140, 50][size as usize % 4]
        };
        for limit in [8_000, 12_000, 16_000, 24_000, 32_000] {
            let (found, trials) = search(&sizes, limit, 2, need);
            let refused = found.map_or(0, |found| found + 1);
            assert!(found.is_none_or(|found| need(sizes[found]) <= limit));
            assert!(sizes.get(refused).is_none_or(|size| need(*size) > limit));
            assert!(trials <= 8, "{trials} trials for {limit}");
        }
    }

    /// Searches where only multiples of a number work; the answer, what is refused above it, and the trials.
    fn search_multiples(
        last: u64,
        of: u64,
        limit: u64,
    ) -> (Option<usize>, Option<usize>, Vec<u64>) {
        let sizes: Vec<u64> = (1..=last).collect();
        let mut search = Search::new(sizes.clone(), limit);
        let mut trials = Vec::new();
        loop {
            let next = search.next(2);
            if next.is_empty() {
                return (search.best(), search.refused(), trials);
            }
            for index in next {
                let size = sizes[index];
                trials.push(size);
                if size.is_multiple_of(of) {
                    let judgement = Judgement {
                        fits: size <= limit,
                        need: Some(size),
                    };
                    search.learn(index, judgement);
                } else {
                    search.leave_out(index);
                }
            }
        }
    }

    #[test]
    fn values_that_do_not_work_are_left_out() {
        // 50 is the largest even number that fits, 52 the next one.
        let (best, refused, trials) = search_multiples(256, 2, 51);
        assert_eq!((best, refused), (Some(49), Some(51)), "{trials:?}");
        // Where most values do not work, the largest is found and the values above it are not all tried.
        let (best, _, trials) = search_multiples(512, 16, 100);
        assert_eq!(best, Some(95), "{trials:?}");
        assert!(trials.len() < 24, "{trials:?}");
    }

    #[test]
    fn a_job_that_fails_with_every_value_is_tried_twice() {
        let (best, refused, trials) = search_multiples(256, 1000, 100);
        assert_eq!((best, refused, trials), (None, None, vec![1, 256]));
    }

    #[test]
    fn the_ends_of_the_range_are_answers_too() {
        let sizes: Vec<u64> = (1..=256).collect();
        assert_eq!(search(&sizes, 10, 2, |_| 20).0, None);
        assert_eq!(search(&sizes, 30, 2, |_| 20).0, Some(255));
        assert_eq!(search(&[7], 30, 2, |_| 20), (Some(0), 1));
    }

    proptest! {
        #[test]
        fn the_largest_that_fits_is_found(
            last in 1u64..600, base in 0u64..5000, slope in 0u64..300, curve in 0u64..4, step in 1u64..40,
            limit in 0u64..60_000, width in 1usize..3,
        ) {
            let sizes: Vec<u64> = (1..=last).collect();
            // Grows in stairs, and faster than a line.
            let need = |size: u64| base + slope * (size / step * step) + curve * size * size;
            let (found, trials) = search(&sizes, limit, width, need);
            let expected = sizes.iter().rposition(|size| need(*size) <= limit);
            prop_assert_eq!(found, expected);
            prop_assert!(trials <= 30, "{} trials", trials);
        }
    }
}
