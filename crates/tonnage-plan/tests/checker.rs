// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checker refuses plans that are broken, each in its own way, and returns the reason.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use tonnage_plan::{
    Buffer, BufferId, Conflict, Fault, Options, Plan, Problem, Space, Status, check, plan,
};

const fn id(index: u32) -> BufferId {
    BufferId::new(index)
}

/// A problem that has everything: two spaces, a fixed buffer, a gap, an alignment, an alias, a forbidden range.
fn problem() -> Problem {
    let mut problem = Problem::new();
    problem.add_space(Space {
        capacity: Some(64),
        cost: 0,
        forbidden: vec![20..24, 60..60],
    });
    problem.add_space(Space {
        cost: 3,
        ..Space::default()
    });
    problem.add(Buffer::new(8, 0..10).fixed_at(8).in_spaces(&[0]));
    problem.add(Buffer::new(4, 0..5).aligned(4).in_spaces(&[0]));
    problem.add(Buffer::new(6, 2..9).with_gap(4..6).in_spaces(&[0]));
    problem.add(Buffer::new(5, 4..6).in_spaces(&[0]));
    problem.add(Buffer::new(5, 5..8).in_spaces(&[0]));
    problem.add(Buffer::new(100, 0..3).in_spaces(&[0, 1]));
    problem.alias(id(3), id(4));
    problem
}

fn good() -> (Problem, Plan) {
    let problem = problem();
    let plan = plan(&problem, &Options::default()).unwrap();
    assert_eq!(check(&problem, &plan), Ok(()));
    assert_eq!(plan.space(id(5)), 1, "it is larger than the first space");
    assert_eq!(plan.cost, 300);
    (problem, plan)
}

#[test]
fn a_plan_that_is_broken_is_refused_with_the_reason() {
    type Break = fn(&mut Plan);
    let cases: [(Break, Fault); 12] = [
        (|plan| plan.offsets.truncate(5), Fault::Incomplete),
        (|plan| plan.parts.truncate(1), Fault::Incomplete),
        (|plan| plan.spaces.truncate(5), Fault::Incomplete),
        (
            |plan| plan.offsets[1] += 2,
            Fault::Alignment { buffer: id(1) },
        ),
        (|plan| plan.offsets[0] = 16, Fault::Fixed { buffer: id(0) }),
        (|plan| plan.spaces[2] = 1, Fault::Space { buffer: id(2) }),
        (|plan| plan.spaces[2] = 9, Fault::Space { buffer: id(2) }),
        (
            |plan| plan.offsets[2] = 19,
            Fault::Forbidden { buffer: id(2) },
        ),
        (
            |plan| plan.offsets[2] = 60,
            Fault::Capacity { buffer: id(2) },
        ),
        (
            |plan| plan.offsets[4] = 40,
            Fault::Alias {
                one: id(3),
                other: id(4),
            },
        ),
        (
            |plan| plan.parts[0].lower_bound = plan.parts[0].peak + 1,
            Fault::Bound { space: 0 },
        ),
        (|plan| plan.cost += 1, Fault::Cost { actual: 300 }),
    ];
    for (index, (damage, fault)) in cases.into_iter().enumerate() {
        let (problem, mut plan) = good();
        damage(&mut plan);
        assert_eq!(check(&problem, &plan), Err(fault), "case {index}");
    }
}

#[test]
fn a_wrong_peak_is_refused() {
    let (problem, mut plan) = good();
    let actual = plan.parts[0].peak;
    plan.parts[0].peak += 1;
    assert_eq!(
        check(&problem, &plan),
        Err(Fault::Peak { space: 0, actual })
    );
}

#[test]
fn buffers_on_the_same_byte_are_refused_wherever_they_meet() {
    let (problem, plan) = good();
    for (buffer, offset) in [(1, 8), (1, 12), (2, 8), (2, 13)] {
        let mut plan = plan.clone();
        plan.offsets[buffer] = offset;
        let fault = check(&problem, &plan).unwrap_err();
        assert!(
            matches!(fault, Fault::Overlap { .. }),
            "{buffer} at {offset}: {fault}"
        );
    }
    // In the gap of another there is room, and at other times too; one later than the gap there is not.
    let mut problem = Problem::new();
    problem.add(Buffer::new(10, 0..10).with_gap(4..6));
    problem.add(Buffer::new(10, 4..6));
    let mut plan = plan_of(&problem);
    assert_eq!((plan.peak(), plan.status), (10, Status::Optimal));
    let mut tight = Problem::new();
    tight.add(Buffer::new(10, 0..10).with_gap(4..6));
    tight.add(Buffer::new(10, 4..7));
    plan.offsets = vec![0, 0];
    let overlap = Fault::Overlap {
        one: id(0),
        other: id(1),
        moment: 6,
    };
    assert_eq!(check(&tight, &plan), Err(overlap));
}

#[test]
fn a_buffer_below_a_neighbour_is_found_too() {
    let mut problem = Problem::new();
    for (size, life) in [(50, 0..9), (1, 1..9), (2, 2..9)] {
        problem.add(Buffer::new(size, life));
    }
    let mut plan = plan_of(&problem);
    plan.offsets = vec![0, 60, 49];
    plan.parts[0].peak = 61;
    let overlap = Fault::Overlap {
        one: id(2),
        other: id(0),
        moment: 2,
    };
    assert_eq!(check(&problem, &plan), Err(overlap));
}

#[test]
fn a_conflict_that_is_none_is_refused() {
    let mut problem = Problem::fitting(10);
    for (size, life) in [(6, 0..4), (5, 2..6), (6, 5..9)] {
        problem.add(Buffer::new(size, life));
    }
    let plan = plan_of(&problem);
    assert_eq!(plan.status, Status::Infeasible);
    let conflict = plan.conflict.clone().unwrap();
    assert_eq!((conflict.space, conflict.moment), (0, Some(2)));
    assert_eq!(conflict.buffers, [id(0), id(1)]);
    assert_eq!((conflict.bytes, conflict.smallest), (11, true));
    let cases: [fn(&mut Conflict); 5] = [
        |conflict| conflict.moment = Some(4),
        |conflict| conflict.buffers = vec![id(0), id(7)],
        |conflict| conflict.buffers = vec![id(0), id(0)],
        |conflict| conflict.bytes = 10,
        |conflict| conflict.bytes = 12,
    ];
    for (index, damage) in cases.into_iter().enumerate() {
        let mut plan = plan.clone();
        plan.conflict.as_mut().map(damage).unwrap();
        assert_eq!(check(&problem, &plan), Err(Fault::Conflict), "case {index}");
    }
}

fn plan_of(problem: &Problem) -> Plan {
    let plan = plan(problem, &Options::default()).unwrap();
    assert_eq!(check(problem, &plan), Ok(()));
    plan
}
