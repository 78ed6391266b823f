// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guarantees of the model beyond the least peak: spaces, refusals, deadlines, cancelling, progress.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tonnage_plan::{
    Buffer, BufferId, Invalid, MAX_BYTES, Options, Problem, Space, Status, check, plan,
};

/// Many buffers in a pattern that no order places well at once.
fn hard(count: u64) -> Problem {
    let mut problem = Problem::new();
    let mut state = 1_u64;
    for _ in 0..count {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (start, life, size) = (state >> 40 & 255, 1 + (state >> 50 & 31), 1 + (state >> 56));
        problem.add(Buffer::new(size, start as i64..(start + life) as i64));
    }
    problem
}

#[test]
fn nonsense_is_refused_with_the_reason() {
    let cases: [(Buffer, &str); 6] = [
        (
            Buffer::new(1, 5..5),
            "buffer 0: its lifetime ends before it starts",
        ),
        (
            Buffer::new(1, 0..5).aligned(0),
            "buffer 0: its alignment is not between 1 and 2^60",
        ),
        (
            Buffer::new(1, 0..5).aligned(4).fixed_at(6),
            "buffer 0: its fixed offset is not a multiple of its alignment",
        ),
        (
            Buffer::new(1, 0..5).with_gap(3..3),
            "buffer 0: one of its gaps ends before it starts",
        ),
        (
            Buffer::new(1, 0..5).in_spaces(&[1]),
            "buffer 0: it may lie in a space that does not exist",
        ),
        (Buffer::new(MAX_BYTES + 1, 0..5), "more than 2^60 bytes"),
    ];
    for (buffer, words) in cases {
        let mut problem = Problem::new();
        problem.add(buffer);
        let error = plan(&problem, &Options::default()).unwrap_err();
        assert_eq!(error.to_string(), words);
    }
    let mut problem = Problem::new();
    let one = problem.add(Buffer::new(1, 0..5).fixed_at(0));
    let other = problem.add(Buffer::new(1, 0..5).fixed_at(8));
    for buffer in [BufferId::new(2), BufferId::new(u32::MAX)] {
        for (one, other) in [(one, buffer), (buffer, one)] {
            let mut problem = problem.clone();
            problem.alias(one, other);
            let error = plan(&problem, &Options::default()).unwrap_err();
            assert_eq!(error, Invalid::NoSuchBuffer { buffer });
        }
    }
    problem.alias(one, other);
    let error = plan(&problem, &Options::default()).unwrap_err();
    let words = "buffers 0 and 1 cannot start at the same byte: their fixed offsets differ";
    assert_eq!(error.to_string(), words);
}

#[test]
fn nothing_is_planned_at_once() {
    let plan = plan(&Problem::fitting(0), &Options::default()).unwrap();
    assert_eq!((plan.peak(), plan.status), (0, Status::Optimal));
    assert!(plan.gap().abs() < f64::EPSILON);
}

#[test]
fn what_does_not_fit_in_the_cheap_space_goes_where_it_costs_least() {
    let mut problem = Problem::new();
    let (dear, cheap, other) = (
        problem.add_space(Space {
            cost: 9,
            ..Space::default()
        }),
        problem.add_space(Space {
            capacity: Some(10),
            cost: 1,
            forbidden: Vec::new(),
        }),
        problem.add_space(Space {
            capacity: Some(10),
            cost: 2,
            forbidden: Vec::new(),
        }),
    );
    for size in [6, 5, 4, 5, 7] {
        problem.add(Buffer::new(size, 0..5));
    }
    let plan = plan(&problem, &Options::default()).unwrap();
    assert_eq!(check(&problem, &plan), Ok(()));
    assert_eq!(plan.status, Status::Fits);
    let inside = |space: usize| {
        let buffers = problem.ids();
        buffers.filter(|id| plan.space(*id) == space).count()
    };
    assert!(
        inside(cheap) >= 2 && inside(other) >= 1 && inside(dear) <= 2,
        "{plan:?}"
    );
    assert!(plan.parts[cheap].peak <= 10 && plan.parts[other].peak <= 10);
}

#[test]
fn a_deadline_is_kept_and_the_best_so_far_is_the_answer() {
    let problem = hard(400);
    let options = Options {
        deadline: Some(Duration::from_millis(200)),
        attempts: u64::MAX,
        ..Options::default()
    };
    let start = Instant::now();
    let plan = plan(&problem, &options).unwrap();
    // Generous, since a machine may be busy; without the deadline it would be hours.
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(check(&problem, &plan), Ok(()));
    assert!(plan.gap() < 0.5);
}

#[test]
fn cancelling_ends_a_search_and_progress_only_gets_better() {
    let problem = hard(400);
    let cancel = AtomicBool::new(false);
    let seen = Mutex::new(Vec::new());
    let progress = |progress: &tonnage_plan::Progress| {
        let mut seen = seen.lock().unwrap();
        seen.push((progress.peak, progress.lower_bound));
        cancel.store(seen.len() > 1, Ordering::Relaxed);
    };
    let options = Options {
        attempts: u64::MAX,
        cancel: Some(&cancel),
        progress: Some(&progress),
        ..Options::default()
    };
    let plan = plan(&problem, &options).unwrap();
    assert_eq!(check(&problem, &plan), Ok(()));
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() > 1);
    assert!(
        seen.windows(2)
            .all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 >= pair[0].1),
        "{seen:?}"
    );
    assert_eq!(seen.last().unwrap().0, plan.peak());
}

#[test]
fn attempts_are_counted_to_the_end() {
    let seen = Mutex::new(Vec::new());
    let progress = |progress: &tonnage_plan::Progress| {
        seen.lock().unwrap().push(progress.attempts);
    };
    let options = Options {
        progress: Some(&progress),
        attempts: 60,
        threads: 1,
        ..Options::default()
    };
    plan(&hard(400), &options).unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
    assert!(seen.last() > Some(&0), "{seen:?}");
}

/// Stretches of time that share nothing are planned one by one; the report covers all of them.
#[test]
fn progress_of_many_parts_is_the_progress_of_the_whole() {
    let mut problem = Problem::new();
    let stretch = hard(400);
    for round in 0..3 {
        for id in stretch.ids() {
            let buffer = stretch.buffer(id);
            let (start, end) = (buffer.start + 1000 * round, buffer.end + 1000 * round);
            problem.add(Buffer::new(buffer.size * (9 - round as u64), start..end));
        }
    }
    let seen = Mutex::new(Vec::new());
    let progress = |progress: &tonnage_plan::Progress| {
        seen.lock()
            .unwrap()
            .push((progress.peak, progress.lower_bound));
    };
    let options = Options {
        progress: Some(&progress),
        attempts: 60,
        threads: 1,
        ..Options::default()
    };
    let plan = plan(&problem, &options).unwrap();
    assert_eq!(check(&problem, &plan), Ok(()));
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() > 1, "{seen:?}");
    assert!(
        seen.windows(2)
            .all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 >= pair[0].1),
        "{seen:?}"
    );
    let last = *seen.last().unwrap();
    assert_eq!(last, (plan.peak(), plan.lower_bound()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Larger than brute force can follow: every promise that the checker can check.
    #[test]
    fn plans_of_any_size_pass_the_checker(
        lives in prop::collection::vec((0..200_i64, 1..60_i64, 0..500_u64, 0..5_u32, 0..20_u8), 1..400),
        capacity in prop::option::of(1000..20_000_u64),
    ) {
        let mut problem = capacity.map_or_else(Problem::new, Problem::fitting);
        for (start, life, size, alignment, special) in lives {
            let mut buffer = Buffer::new(size, start..start + life).aligned(1 << alignment);
            if special == 0 {
                buffer = buffer.with_gap(start + life / 2..start + life / 2 + 3);
            }
            let id = problem.add(buffer);
            if special == 1 && id.index() > 0 {
                problem.alias(id, BufferId::new(id.index() as u32 / 2));
            }
        }
        let options = Options { attempts: 8, deadline: Some(Duration::from_millis(200)), ..Options::default() };
        let plan = plan(&problem, &options).unwrap();
        prop_assert_eq!(check(&problem, &plan), Ok(()));
        if let (Some(capacity), Status::Optimal | Status::Fits) = (capacity, plan.status) {
            prop_assert!(plan.peak() <= capacity);
        }
    }
}

#[test]
fn fixed_offsets_that_lie_on_each_other_are_no_problem_at_all() {
    let mut problem = Problem::new();
    problem.add(Buffer::new(4, 0..3).fixed_at(0));
    problem.add(Buffer::new(4, 0..3));
    problem.add(Buffer::new(4, 2..5).fixed_at(2));
    let contradiction = Invalid::Fixed {
        one: BufferId::new(0),
        other: BufferId::new(2),
        moment: 2,
    };
    assert_eq!(plan(&problem, &Options::default()), Err(contradiction));
}

#[test]
fn a_fixed_offset_in_a_forbidden_range_is_refused() {
    let mut problem = Problem::new();
    problem.add_space(Space {
        forbidden: std::iter::once(4..8).collect(),
        ..Space::default()
    });
    problem.add(Buffer::new(4, 0..3).fixed_at(0));
    assert!(plan(&problem, &Options::default()).is_ok());
    problem.add(Buffer::new(4, 5..6).fixed_at(2));
    let refused = plan(&problem, &Options::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "buffer 1: its fixed offset lies in a forbidden range"
    );
}

/// Two spaces would part them, but only one of the two has room for either: no contradiction, yet no plan.
#[test]
fn fixed_offsets_that_only_a_capacity_brings_together_do_not_fit() {
    let with_capacity = |capacity: u64| {
        let mut problem = Problem::new();
        problem.add(Buffer::new(1, 1..5).fixed_at(1));
        problem.add(Buffer::new(2, 0..2).fixed_at(0));
        problem.add_space(Space {
            capacity: Some(capacity),
            ..Space::default()
        });
        problem.add_space(Space::default());
        plan(&problem, &Options::default()).unwrap().status
    };
    assert_eq!(with_capacity(1), Status::Infeasible);
    assert_eq!(with_capacity(2), Status::Fits);
}
