// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans against the optimum of tiny problems, found by trying everything, under every combination of heuristics.
//!
//! The brute force knows nothing of skylines, orders or bounds: it tries every offset of every buffer and looks at
//! every byte at every moment; with several spaces, for every way to share the buffers out among them.

use std::ops::Range;

use proptest::prelude::*;
use tonnage_plan::{Buffer, BufferId, Options, Problem, Space, Status, Switches, check, plan};

/// Moments and bytes of the tiny world.
const MOMENTS: i64 = 6;
const BYTES: u64 = 14;

/// Which buffer uses each byte at each moment, as the buffers are placed one by one.
struct World<'a> {
    problem: &'a Problem,
    /// The buffers in the problem.
    ids: Vec<BufferId>,
    buffers: Vec<Buffer>,
    forbidden: Vec<Range<u64>>,
    offsets: Vec<u64>,
    best: u64,
}

impl World<'_> {
    fn lives(&self, number: usize, moment: i64) -> bool {
        let buffer = &self.buffers[number];
        buffer.start <= moment
            && moment < buffer.end
            && !buffer.gaps.iter().any(|gap| gap.contains(&moment))
    }

    fn kin(&self, one: usize, other: usize) -> bool {
        kin(self.problem, self.ids[one], self.ids[other])
    }

    fn clashes(&self, number: usize) -> bool {
        let (offset, size) = (self.offsets[number], self.buffers[number].size);
        if self
            .forbidden
            .iter()
            .any(|range| (offset..offset + size).any(|byte| range.contains(&byte)))
        {
            return true;
        }
        (0..number).any(|other| {
            if self.kin(number, other) {
                return self.offsets[other] != offset;
            }
            let apart = self.offsets[other] + self.buffers[other].size <= offset
                || offset + size <= self.offsets[other];
            let empty = size == 0 || self.buffers[other].size == 0;
            !apart
                && !empty
                && (0..MOMENTS)
                    .any(|moment| self.lives(number, moment) && self.lives(other, moment))
        })
    }

    /// The least peak of all plans that place `number` and what follows.
    fn search(&mut self, number: usize, peak: u64) {
        if peak >= self.best {
            return;
        }
        if number == self.buffers.len() {
            self.best = peak;
            return;
        }
        let buffer = self.buffers[number].clone();
        for offset in 0..=3 * BYTES {
            if offset % buffer.alignment != 0 || buffer.offset.is_some_and(|fixed| fixed != offset)
            {
                continue;
            }
            self.offsets[number] = offset;
            let top = if buffer.size == 0 {
                0
            } else {
                offset + buffer.size
            };
            if top >= self.best && offset > 0 {
                break;
            }
            if !self.clashes(number) {
                self.search(number + 1, peak.max(top));
            }
        }
    }
}

/// Whether two buffers must start at the same byte, by whatever chain of aliases.
fn kin(problem: &Problem, one: BufferId, other: BufferId) -> bool {
    let mut known = vec![one];
    loop {
        let before = known.len();
        for (a, b) in problem.aliases() {
            for (from, to) in [(a, b), (b, a)] {
                if known.contains(&from) && !known.contains(&to) {
                    known.push(to);
                }
            }
        }
        if known.len() == before {
            return known.contains(&other);
        }
    }
}

fn optimum(problem: &Problem) -> Option<u64> {
    let all: Vec<BufferId> = problem.ids().collect();
    optimum_of(problem, &problem.spaces()[0], &all, u64::MAX - 1)
}

/// The least peak of some buffers in a space, if it is at most `most`.
fn optimum_of(problem: &Problem, space: &Space, ids: &[BufferId], most: u64) -> Option<u64> {
    let mut world = World {
        problem,
        ids: ids.to_vec(),
        buffers: ids.iter().map(|id| problem.buffer(*id)).collect(),
        forbidden: space.forbidden.clone(),
        offsets: vec![0; ids.len()],
        best: most + 1,
    };
    for number in 0..ids.len() {
        // All gap: never live, so without conflicts.
        if !(0..MOMENTS).any(|moment| world.lives(number, moment)) {
            world.buffers[number].size = 0;
        }
    }
    world.search(0, 0);
    (world.best <= most).then_some(world.best)
}

/// The least cost of all ways to share the buffers out among the spaces, within their capacities or whatever they are.
fn least_cost(problem: &Problem, bounded: bool) -> Option<u128> {
    let spaces = problem.spaces();
    let ways = spaces.len().pow(problem.len() as u32);
    let mut best: Option<u128> = None;
    for way in 0..ways {
        let space_of = |id: BufferId| way / spaces.len().pow(id.index() as u32) % spaces.len();
        let allowed = |id: BufferId| {
            let spaces = problem.buffer(id).spaces;
            spaces.is_empty() || spaces.contains(&(space_of(id) as u16))
        };
        let together = |(one, other)| space_of(one) == space_of(other);
        if !problem.ids().all(allowed) || !problem.aliases().all(together) {
            continue;
        }
        let cost = problem
            .ids()
            .map(|id| u128::from(problem.buffer(id).size) * u128::from(spaces[space_of(id)].cost))
            .sum();
        if best.is_some_and(|best| best <= cost) {
            continue;
        }
        let fits = spaces.iter().enumerate().all(|(index, space)| {
            let inside: Vec<BufferId> = problem.ids().filter(|id| space_of(*id) == index).collect();
            let most = space.capacity.filter(|_| bounded).unwrap_or(u64::MAX - 1);
            optimum_of(problem, space, &inside, most).is_some()
        });
        if fits {
            best = Some(cost);
        }
    }
    best
}

fn rigid() -> impl Strategy<Value = Buffer> {
    (1..5_u64, 0..MOMENTS - 1, 1..MOMENTS)
        .prop_map(|(size, start, life)| Buffer::new(size, start..(start + life).min(MOMENTS)))
}

fn any_buffer() -> impl Strategy<Value = Buffer> {
    let alignment = prop_oneof![4 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    let gap = prop_oneof![3 => Just(None), 1 => (0..MOMENTS, 1..3_i64).prop_map(Some)];
    (rigid(), 0..5_u64, alignment, gap).prop_map(|(mut buffer, size, alignment, gap)| {
        buffer.size = size;
        buffer.alignment = alignment;
        if let Some((start, length)) = gap {
            buffer.gaps.push(start..start + length);
        }
        buffer
    })
}

/// Where buffers are fixed, in multiples of their alignment.
fn fixed_offsets() -> impl Strategy<Value = Vec<Option<u64>>> {
    let fixed = prop_oneof![4 => Just(None), 1 => (0..3_u64).prop_map(Some)];
    prop::collection::vec(fixed, 4)
}

/// A problem with everything.
fn anything() -> impl Strategy<Value = Problem> {
    let forbidden = prop_oneof![2 => Just(None), 1 => (0..8_u64, 1..4_u64).prop_map(Some)];
    let alias = prop_oneof![2 => Just(None), 1 => (0..4_usize, 0..4_usize).prop_map(Some)];
    (
        prop::collection::vec(any_buffer(), 1..5),
        forbidden,
        alias,
        fixed_offsets(),
    )
        .prop_map(|(mut buffers, forbidden, alias, fixed)| {
            let count = buffers.len();
            for (buffer, times) in buffers.iter_mut().zip(fixed) {
                buffer.offset = times.map(|times| times * buffer.alignment);
            }
            let mut problem = Problem::new();
            problem.add_space(Space {
                forbidden: forbidden
                    .map(|(start, length)| start..start + length)
                    .into_iter()
                    .collect(),
                ..Space::default()
            });
            for buffer in buffers {
                problem.add(buffer);
            }
            if let Some((one, other)) = alias {
                let id = |number: usize| BufferId::new((number % count) as u32);
                problem.alias(id(one), id(other));
            }
            problem
        })
}

/// Some spaces with costs, capacities and forbidden ranges, and buffers with everything a buffer may have.
fn several() -> impl Strategy<Value = Problem> {
    let forbidden = prop_oneof![3 => Just(None), 1 => (0..6_u64, 1..3_u64).prop_map(Some)];
    let capacity = prop_oneof![1 => Just(None), 4 => (1..11_u64).prop_map(Some)];
    let space = (capacity, 0..4_u64, forbidden).prop_map(|(capacity, cost, forbidden)| Space {
        capacity,
        cost,
        forbidden: forbidden
            .map(|(start, length)| start..start + length)
            .into_iter()
            .collect(),
    });
    let within = prop_oneof![3 => Just(0_u16), 2 => 1..8_u16];
    let buffer = (any_buffer(), within);
    let alias = prop_oneof![2 => Just(None), 1 => (0..4_usize, 0..4_usize).prop_map(Some)];
    (
        prop::collection::vec(space, 2..4),
        prop::collection::vec(buffer, 1..5),
        alias,
        fixed_offsets(),
    )
        .prop_map(|(spaces, buffers, alias, fixed)| {
            let (mut problem, count) = (Problem::new(), buffers.len());
            for ((mut buffer, within), times) in buffers.into_iter().zip(fixed) {
                buffer.offset = times.map(|times| times * buffer.alignment);
                let allowed = (0..spaces.len() as u16).filter(|space| within & 1 << space != 0);
                buffer.spaces = allowed.collect();
                problem.add(buffer);
            }
            for space in spaces {
                problem.add_space(space);
            }
            if let Some((one, other)) = alias {
                let id = |number: usize| BufferId::new((number % count) as u32);
                problem.alias(id(one), id(other));
            }
            problem
        })
}

fn options(switches: u16) -> Options<'static> {
    Options {
        threads: 1,
        switches: Switches::from_bits(switches),
        ..Options::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_combination_of_heuristics_finds_the_optimum_of_rigid_buffers(buffers in prop::collection::vec(rigid(), 1..7)) {
        let mut problem = Problem::new();
        for buffer in buffers {
            problem.add(buffer);
        }
        let best = optimum(&problem).unwrap();
        for switches in 0..1 << Switches::COUNT {
            let plan = plan(&problem, &options(switches)).unwrap();
            prop_assert_eq!(check(&problem, &plan), Ok(()));
            prop_assert!(plan.peak() >= best && plan.lower_bound() <= best, "{:?} {best}", plan.parts);
            if Switches::from_bits(switches).exact {
                prop_assert_eq!((plan.peak(), plan.status), (best, Status::Optimal), "{:#b}", switches);
            }
        }
    }

    #[test]
    fn a_capacity_is_met_or_refused_as_the_optimum_says(buffers in prop::collection::vec(rigid(), 1..7), short in 0..3_u64) {
        let mut problem = Problem::new();
        for buffer in &buffers {
            problem.add(buffer.clone());
        }
        let best = optimum(&problem).unwrap();
        let capacity = (best + 1).saturating_sub(short);
        let mut problem = Problem::fitting(capacity);
        for buffer in buffers {
            problem.add(buffer);
        }
        for switches in 0..1 << Switches::COUNT {
            let plan = plan(&problem, &options(switches)).unwrap();
            prop_assert_eq!(check(&problem, &plan), Ok(()));
            match plan.status {
                Status::Optimal | Status::Fits => prop_assert!(best <= capacity),
                Status::Infeasible => prop_assert!(best > capacity),
                Status::Unknown => prop_assert!(!Switches::from_bits(switches).exact, "{:#b}", switches),
                status => panic!("{status:?} is not tested"),
            }
        }
    }

    #[test]
    fn everything_the_model_has_is_planned_as_well_as_can_be(problem in anything()) {
        let Some(best) = optimum(&problem) else {
            // Two demands contradict each other, such as a fixed buffer in a forbidden range.
            prop_assert!(plan(&problem, &options(u16::MAX)).is_err());
            return Ok(());
        };
        for switches in [0, 16, 8, u16::MAX] {
            let plan = plan(&problem, &options(switches)).unwrap();
            prop_assert_eq!(check(&problem, &plan), Ok(()));
            prop_assert!(plan.peak() >= best && plan.lower_bound() <= best, "{:?} {best}", plan.parts);
            if Switches::from_bits(switches).exact {
                prop_assert_eq!(plan.peak(), best, "{:#b} {:?}", switches, plan);
            }
        }
    }

    #[test]
    fn several_spaces_are_used_as_cheaply_as_is_claimed(problem in several()) {
        let best = least_cost(&problem, true);
        for switches in [16, u16::MAX] {
            let Ok(plan) = plan(&problem, &options(switches)) else {
                // Only what has no plan whatever the capacities are is refused.
                prop_assert_eq!(least_cost(&problem, false), None);
                continue;
            };
            match plan.status {
                Status::Optimal => prop_assert_eq!(Some(plan.cost), best, "{:?}", plan),
                Status::Fits => prop_assert!(best.is_some_and(|best| best <= plan.cost), "{best:?} {plan:?}"),
                Status::Infeasible => prop_assert_eq!(best, None, "{:?}", plan),
                Status::Unknown => {}
                status => panic!("{status:?} is not tested"),
            }
            if matches!(plan.status, Status::Optimal | Status::Fits) {
                prop_assert_eq!(check(&problem, &plan), Ok(()), "{:?}", plan);
            }
            for (index, space) in problem.spaces().iter().enumerate() {
                let inside: Vec<BufferId> = problem.ids().filter(|id| plan.space(*id) == index).collect();
                let Some(least) = optimum_of(&problem, space, &inside, u64::MAX - 1) else {
                    continue;
                };
                let part = &plan.parts[index];
                prop_assert!(part.lower_bound <= least && least <= part.peak, "space {index}: {least}, {plan:?}");
                if part.status == Status::Optimal {
                    prop_assert_eq!(part.peak, least, "space {}: {:?}", index, plan);
                }
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_plan(buffers in prop::collection::vec(rigid(), 1..30), seed in 0..9_u64, threads in 1..4_usize) {
        let mut problem = Problem::new();
        for buffer in buffers {
            problem.add(buffer);
        }
        let options = Options { seed, threads, attempts: 20, ..Options::default() };
        prop_assert_eq!(plan(&problem, &options).unwrap(), plan(&problem, &options).unwrap());
    }
}
