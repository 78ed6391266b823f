// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small training loop, written as rows.

use tonnage_recording::{Event, Kind, Pool, StackTable, Trace};

use super::*;

const MIB: u64 = 1 << 20;

/// Writes rows and reads them back as holdings.
struct Script {
    trace: Trace,
}

impl Script {
    fn new() -> Self {
        Self {
            trace: Trace::new("test"),
        }
    }

    fn push(&mut self, event: Event) {
        self.trace.events.push(event);
    }

    fn segment(&mut self, address: u64, size: u64, stream: u64) {
        self.push(Event {
            address,
            size,
            stream,
            ..Event::new(Kind::SegmentAlloc)
        });
    }

    fn alloc(&mut self, address: u64, size: u64, requested: u64) {
        self.push(Event {
            address,
            size,
            requested,
            pool: Some(Pool::default()),
            ..Event::new(Kind::Alloc)
        });
    }

    fn free(&mut self, address: u64) {
        self.push(Event {
            address,
            ..Event::new(Kind::FreeRequested)
        });
    }

    fn note(&mut self, kind: Kind, name: &str, text: &str, address: u64) {
        let stacks: &mut StackTable = &mut self.trace.stacks;
        let (name, text) = (stacks.intern(name), stacks.intern(text));
        self.push(Event {
            address,
            name: Some(name),
            text: Some(text),
            ..Event::new(kind)
        });
    }

    fn read(&self) -> Recording {
        let bytes = self.trace.write(Vec::new()).expect("writes");
        read(bytes.as_slice()).expect("reads")
    }
}

fn training() -> Script {
    let mut script = Script::new();
    script.segment(0, 64 * MIB, 0);
    script.alloc(0, 4 * MIB, 4 * MIB - 100); // a weight
    script.note(Kind::MarkStart, "forward", "phase", 0);
    script.note(Kind::MarkStart, "block.0", "module", 0);
    script.alloc(8 * MIB, 8 * MIB, 8 * MIB); // kept for the backward pass
    script.alloc(16 * MIB, 2 * MIB, 2 * MIB); // not kept
    script.free(16 * MIB);
    script.note(Kind::MarkEnd, "block.0", "module", 0);
    script.note(
        Kind::Owner,
        "block.0.weight",
        "weights float32[1024, 1024]",
        0,
    );
    script.note(Kind::MarkEnd, "forward", "phase", 0);
    script.alloc(16 * MIB, MIB, MIB); // the loss, after the model
    script.note(Kind::MarkStart, "backward", "phase", 0);
    script.alloc(24 * MIB, 4 * MIB, 4 * MIB); // a gradient
    script.free(8 * MIB);
    script.free(16 * MIB);
    script.note(
        Kind::Owner,
        "block.0.weight",
        "gradients float32[1024, 1024]",
        24 * MIB,
    );
    script.note(Kind::MarkEnd, "backward", "phase", 0);
    script.note(Kind::MarkStart, "step", "phase", 0);
    script.alloc(32 * MIB, 4 * MIB, 4 * MIB);
    script.alloc(40 * MIB, MIB, MIB);
    script.free(40 * MIB);
    script.note(
        Kind::Owner,
        "block.0.weight exp_avg",
        "optimizer_state float32[1024, 1024]",
        32 * MIB,
    );
    script.note(Kind::MarkEnd, "step", "phase", 0);
    script.note(Kind::Mark, "0", "step", 0);
    script
}

#[test]
fn named_blocks_are_exact_and_the_others_follow_from_their_lives() {
    let recording = training().read();
    let track = &recording.tracks[0];
    let told: Vec<_> = track
        .blocks
        .iter()
        .map(|block| (block.bytes / MIB, block.category, block.known, block.phase))
        .collect();
    assert_eq!(
        told,
        [
            (4, Category::Weights, Known::Exact, Phase::Load),
            (8, Category::Activations, Known::Inferred, Phase::Forward),
            (2, Category::Temporaries, Known::Inferred, Phase::Forward),
            (1, Category::Activations, Known::Inferred, Phase::Forward),
            (4, Category::Gradients, Known::Exact, Phase::Backward),
            (4, Category::OptimizerState, Known::Exact, Phase::Step),
            (1, Category::Temporaries, Known::Inferred, Phase::Step),
        ]
    );
    let module = |index: usize| {
        track.blocks[index]
            .module
            .map(|id| recording.stacks.text(id))
    };
    assert_eq!(module(1), Some("block.0"));
    assert_eq!(module(3), None);
    assert_eq!(track.steps.len(), 1);
    assert_eq!(track.peak_allocated, 17 * MIB);
}

#[test]
fn what_is_held_and_not_used_is_told_by_what_would_free_it() {
    let mut script = Script::new();
    script.segment(0, 20 * MIB, 0);
    script.segment(32 * MIB, 10 * MIB, 0);
    script.segment(64 * MIB, 10 * MIB, 7);
    script.alloc(0, 2 * MIB, 2 * MIB - 10);
    script.alloc(6 * MIB, 2 * MIB, 2 * MIB);
    script.alloc(64 * MIB, MIB, MIB);
    let recording = script.read();
    let track = &recording.tracks[0];
    let slack = track.slack_at(5, 0);
    assert_eq!(
        slack,
        Slack {
            rounding: 10,
            hard: 16 * MIB,
            soft: 10 * MIB,
            stream: 9 * MIB,
            holes: 2,
            largest_hole: 12 * MIB,
        }
    );
    assert_eq!(slack.cached() + track.allocated_at(5), track.reserved_at(5));
}

#[test]
fn a_part_of_an_expandable_segment_can_go() {
    let mut script = Script::new();
    script.segment(0, 20 * MIB, 0);
    script.push(Event {
        address: 4 * MIB,
        size: 6 * MIB,
        ..Event::new(Kind::SegmentUnmap)
    });
    script.alloc(0, MIB, MIB);
    let recording = script.read();
    let track = &recording.tracks[0];
    assert_eq!(track.reserved_at(0), 20 * MIB);
    assert_eq!(track.reserved_at(1), 14 * MIB);
    assert_eq!(track.peak_reserved, 20 * MIB);
}

#[test]
fn categories_add_up_to_what_is_allocated_at_every_row() {
    let recording = training().read();
    let track = &recording.tracks[0];
    for row in 0..recording.rows {
        let sum: u64 = track
            .categories_at(row)
            .iter()
            .map(|part| part.block_bytes)
            .sum();
        assert_eq!(sum, track.allocated_at(row));
        let asked: u64 = track.categories_at(row).iter().map(|part| part.bytes).sum();
        assert_eq!(sum - asked, track.slack_at(row, 0).rounding);
    }
    let best = track
        .phase_peaks()
        .into_iter()
        .map(|(_, bytes, _)| bytes)
        .max();
    assert_eq!(best, Some(track.peak_allocated));
}

#[test]
fn absurd_sizes_do_not_overflow_any_sum() {
    let mut script = Script::new();
    for block in 0..40_u64 {
        script.segment(block << 40, u64::MAX, 0);
        script.alloc(block << 40, u64::MAX, u64::MAX);
        script.push(Event {
            size: u64::MAX,
            ..Event::new(Kind::DriverContext)
        });
        script.free((block << 40) + 8);
    }
    script.push(Event {
        size: u64::MAX,
        free: u64::MAX,
        ..Event::new(Kind::Oom)
    });
    let recording = script.read();
    let told = crate::explain::explain(&recording, None, None).expect("it has blocks");
    assert!(told.on_device.allocated > 0);
    assert!(crate::diff::Summary::from_recording(&recording, "").is_some());
}

#[test]
fn a_phase_ends_when_it_says_so_and_a_loss_belongs_to_its_pass() {
    let mut script = training();
    script.alloc(48 * MIB, MIB, MIB); // after the step
    script.note(Kind::MarkStart, "eval", "phase", 0);
    script.note(Kind::MarkEnd, "eval", "phase", 0);
    script.alloc(50 * MIB, MIB, MIB); // after the evaluation
    // An exception skipped the end of this one.
    script.note(Kind::MarkStart, "step", "phase", 0);
    script.note(Kind::MarkStart, "step", "phase", 0);
    script.note(Kind::MarkEnd, "step", "phase", 0);
    script.alloc(52 * MIB, MIB, MIB);
    let recording = script.read();
    let blocks = &recording.tracks[0].blocks;
    let after = |index: usize| blocks[blocks.len() - index].phase;
    assert_eq!([after(3), after(2), after(1)], [Phase::Other; 3]);
    // The loss, made when the model had returned.
    assert_eq!(blocks[3].phase, Phase::Forward);
}

#[test]
fn the_nearest_census_says_who_holds_a_block_and_what_it_does_not_repeat_stays() {
    let mut script = Script::new();
    script.alloc(0, MIB, MIB);
    script.alloc(MIB, MIB, MIB);
    script.note(Kind::Mark, "peak", "census", 0);
    script.note(Kind::Holder, "x (f)", "variable a.py:1", 0);
    script.note(Kind::Holder, "kept", "list a.py:2", MIB);
    script.alloc(2 * MIB, MIB, MIB);
    script.note(Kind::Mark, "end", "census", 0);
    script.note(Kind::Holder, "late", "list a.py:3", MIB);
    let recording = script.read();
    let track = &recording.tracks[0];
    let names = |row: u32| {
        let holders = track.holders_near(row, &recording.stacks);
        let name = |index: u32| {
            holders
                .get(&index)
                .map_or("", |held| held.name.as_str())
                .to_owned()
        };
        [name(0), name(1), name(2)]
    };
    assert_eq!(names(1), ["x", "kept", ""]);
    assert_eq!(names(7), ["x", "late", ""]);
}

/// Pages that are mapped side by side are segments of their own; a block may lie in several of them.
#[test]
fn a_block_in_two_segments_is_a_hole_in_none() {
    let mut script = Script::new();
    for page in 0..3 {
        script.push(Event {
            address: 64 * MIB + page * 2 * MIB,
            size: 2 * MIB,
            ..Event::new(Kind::SegmentMap)
        });
    }
    script.alloc(65 * MIB, 4 * MIB, 4 * MIB);
    let recording = script.read();
    let track = &recording.tracks[0];
    let slack = track.slack_at(3, 0);
    assert_eq!((slack.hard, slack.soft), (2 * MIB, 0));
    assert_eq!(slack.largest_hole, MIB);
    assert_eq!(slack.cached() + track.allocated_at(3), track.reserved_at(3));
}
