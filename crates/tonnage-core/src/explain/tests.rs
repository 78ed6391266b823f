// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every finding on a recording of a few rows: its code, its line, its arithmetic.

use tonnage_trace::{Event, Kind, Pool, Trace};

use super::*;
use crate::holdings::read;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A frame: function, file, line.
type Frame = (&'static str, &'static str, u64);

const ADAM: Frame = (
    "_multi_tensor_adam",
    "/v/site-packages/torch/optim/adam.py",
    400,
);
const LOAD: Frame = ("load", "/v/site-packages/torch/serialization.py", 900);
const CROSS_ENTROPY: Frame = (
    "cross_entropy",
    "/v/site-packages/torch/nn/functional.py",
    3000,
);
const CHECKPOINT: Frame = (
    "checkpoint",
    "/v/site-packages/torch/utils/checkpoint.py",
    500,
);

/// A line of the user's script.
const fn line(number: u64) -> Frame {
    ("main", "/home/me/train.py", number)
}

/// Writes rows of one process on one device, in MiB.
struct Script {
    trace: Trace,
    process: u32,
    stream: u64,
    next: u64,
}

impl Script {
    /// On a device of so many MiB, with one segment that is large enough for everything.
    fn new(capacity: u64) -> Self {
        let mut script = Self::bare(capacity);
        script.segment(0, 64 * GIB / MIB);
        script
    }

    fn bare(capacity: u64) -> Self {
        let mut trace = Trace::new("test");
        trace.meta.push(tonnage_trace::Meta {
            process: 0,
            name: meta::GPU_CAPACITY.to_owned(),
            text: (capacity * MIB).to_string(),
        });
        Self {
            trace,
            process: 0,
            stream: 0,
            next: 0,
        }
    }

    fn push(&mut self, event: Event) {
        self.trace.events.push(Event {
            process: self.process,
            stream: self.stream,
            ..event
        });
    }

    fn segment(&mut self, at: u64, size: u64) {
        self.push(Event {
            address: at * MIB,
            size: size * MIB,
            ..Event::new(Kind::SegmentAlloc)
        });
    }

    fn stack(&mut self, frames: &[Frame]) -> Option<tonnage_trace::StackId> {
        let stacks = &mut self.trace.stacks;
        let mut ids = Vec::new();
        for (function, file, line) in frames {
            let (function, file) = (stacks.intern(function), stacks.intern(file));
            ids.push(stacks.frame(function, file, *line));
        }
        stacks.push_stack(&ids)
    }

    fn alloc_at(&mut self, at: u64, size: u64, frames: &[Frame]) -> u64 {
        let stack = self.stack(frames);
        self.push(Event {
            address: at * MIB,
            size: size * MIB,
            requested: size * MIB,
            pool: Some(Pool::default()),
            stack,
            ..Event::new(Kind::Alloc)
        });
        at
    }

    /// A block where none was before.
    fn alloc(&mut self, size: u64, frames: &[Frame]) -> u64 {
        let at = self.next;
        self.next += size;
        self.alloc_at(at, size, frames)
    }

    fn free(&mut self, at: u64) {
        self.push(Event {
            address: at * MIB,
            ..Event::new(Kind::FreeRequested)
        });
    }

    fn note(&mut self, kind: Kind, name: &str, text: &str, at: u64) {
        let stacks = &mut self.trace.stacks;
        let (name, text) = (stacks.intern(name), stacks.intern(text));
        self.push(Event {
            address: at * MIB,
            name: Some(name),
            text: Some(text),
            ..Event::new(kind)
        });
    }

    fn own(&mut self, at: u64, category: &str, name: &str) {
        self.note(Kind::Owner, name, &format!("{category} float32[8]"), at);
    }

    fn phase(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.note(Kind::MarkStart, name, "phase", 0);
        inside(self);
        self.note(Kind::MarkEnd, name, "phase", 0);
    }

    fn oom(&mut self, size: u64, frames: &[Frame]) {
        let stack = self.stack(frames);
        self.push(Event {
            size: size * MIB,
            stack,
            ..Event::new(Kind::Oom)
        });
    }

    fn explain(&self) -> Explanation {
        let bytes = self.trace.write(Vec::new()).expect("writes");
        let recording = read(bytes.as_slice()).expect("reads");
        explain(&recording, None, None).expect("has blocks")
    }
}

fn codes(explanation: &Explanation) -> Vec<&str> {
    let findings = explanation.findings.iter();
    findings.map(|finding| finding.code.code).collect()
}

/// Code, line and MiB of the first finding.
fn first(explanation: &Explanation) -> (&str, Option<u64>, u64) {
    let finding = explanation.findings.first().expect("a finding");
    let line = finding.place.as_ref().map(|place| place.line);
    (finding.code.code, line, finding.bytes / MIB)
}

/// MiB before and after the proposal that answers a finding.
fn promised(explanation: &Explanation, code: &str) -> Option<(u64, u64)> {
    let fix = explanation.fixes.iter().find(|fix| fix.code == code)?;
    Some((fix.peak_before / MIB, fix.peak_after / MIB))
}

#[test]
fn tn101_what_is_alive_and_asked_for_exceeds_the_device() {
    let mut script = Script::new(100);
    script.alloc(60, &[line(1)]);
    script.oom(50, &[line(2)]);
    let explanation = script.explain();
    assert_eq!(explanation.outcome, Outcome::OutOfMemory);
    assert_eq!(first(&explanation), ("TN101", Some(2), 10));
    assert_eq!(
        explanation.request.as_ref().map(|r| r.short),
        Some(10 * MIB)
    );
    // Nothing is promised that was not computed or replayed.
    assert_eq!(explanation.fixes, []);
}

#[test]
fn tn102_enough_is_free_but_in_holes() {
    let mut script = Script::bare(100);
    script.segment(0, 90);
    script.alloc_at(0, 10, &[line(1)]);
    script.alloc_at(50, 10, &[line(1)]);
    script.oom(60, &[line(3)]);
    let explanation = script.explain();
    // The line whose blocks keep the holes, and not the one that asked.
    assert_eq!(first(&explanation), ("TN102", Some(1), 70));
    assert_eq!(explanation.slack.largest_hole, 40 * MIB);
}

#[test]
fn tn103_what_is_free_belongs_to_another_stream() {
    let mut script = Script::bare(100);
    script.stream = 7;
    script.segment(0, 80);
    script.alloc_at(0, 10, &[line(1)]);
    script.stream = 0;
    script.oom(60, &[line(3)]);
    assert_eq!(first(&script.explain()), ("TN103", Some(1), 70));
}

#[test]
fn tn105_it_would_fit_without_the_other_processes() {
    let mut script = Script::new(100);
    let context = |size: u64| Event {
        size: size * MIB,
        ..Event::new(Kind::DriverContext)
    };
    script.push(context(10));
    script.alloc(50, &[line(1)]);
    script.process = 1;
    script.push(context(10));
    script.alloc(1, &[line(9)]);
    script.process = 0;
    script.oom(35, &[line(2)]);
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN105", Some(9), 10));
    assert_eq!(codes(&explanation), ["TN105"]);
    assert_eq!(promised(&explanation, "TN105"), Some((105, 95)));
    assert_eq!(explanation.fixes[0].measure, Measure::Device);
    // Short by more than the others hold: short by itself.
    script.oom(80, &[line(2)]);
    assert_eq!(codes(&script.explain()), ["TN105", "TN101"]);
}

/// Steps of a training loop; `made` gets the number of each.
fn train(script: &mut Script, steps: u64, made: impl Fn(&mut Script, u64)) {
    for step in 0..steps {
        script.phase("forward", |script| made(script, step));
        script.phase("backward", |_| ());
        script.phase("step", |_| ());
        script.note(Kind::Mark, "", "step", 0);
    }
}

#[test]
fn tn201_blocks_of_every_step_stay() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    train(&mut script, 6, |script, _| {
        script.alloc(10, &[line(7)]);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN201", Some(7), 60));
    // The last one is alive in any case.
    assert_eq!(promised(&explanation, "TN201"), Some((80, 30)));
}

#[test]
fn tn202_one_pass_makes_more_than_the_others() {
    let run = |long: u64, decoder: bool| {
        let mut script = Script::new(1000);
        script.alloc(20, &[line(1)]);
        train(&mut script, 5, |script, step| {
            let (size, at) = match step {
                3 => (long, if decoder { 8 } else { 7 }),
                _ => (10, 7),
            };
            let block = script.alloc(size, &[line(at)]);
            script.phase("backward", |script| script.free(block));
        });
        script.explain()
    };
    let explanation = run(60, false);
    assert_eq!(first(&explanation), ("TN202", Some(7), 50));
    assert_eq!(promised(&explanation, "TN202"), Some((80, 30)));
    assert!(!codes(&run(12, false)).contains(&"TN202"));
    // Another line than in the other passes is another program, not a longer sample.
    assert!(!codes(&run(60, true)).contains(&"TN202"));
}

#[test]
fn tn203_logits_and_the_copies_of_the_loss() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    script.phase("forward", |script| {
        script.alloc(80, &[line(5)]);
        script.alloc(80, &[CROSS_ENTROPY, line(6)]);
    });
    script.phase("backward", |script| {
        let gradient = script.alloc(80, &[]);
        script.free(gradient);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN203", Some(6), 240));
    assert_eq!(promised(&explanation, "TN203"), Some((260, 50)));
}

/// Weights of 40, their gradients, Adam's state, and the copies of its step, recomputed or not.
fn adam(recomputed: bool) -> Explanation {
    let mut script = Script::new(1000);
    let weight = script.alloc(40, &[line(1)]);
    script.phase("forward", |script| {
        let frames = if recomputed {
            vec![CHECKPOINT, line(4)]
        } else {
            vec![line(4)]
        };
        let block = script.alloc(5, &frames);
        script.own(weight, "weights", "w");
        script.phase("backward", |script| script.free(block));
    });
    script.phase("backward", |script| {
        let gradient = script.alloc(40, &[]);
        script.own(gradient, "gradients", "w");
    });
    script.phase("step", |script| {
        let state = script.alloc(80, &[ADAM, line(9)]);
        let copies = script.alloc(40, &[ADAM, line(9)]);
        script.free(copies);
        script.own(state, "optimizer_state", "w exp_avg");
    });
    script.explain()
}

#[test]
fn tn204_the_step_makes_copies() {
    let explanation = adam(false);
    assert_eq!(codes(&explanation), ["TN204"]);
    assert_eq!(first(&explanation), ("TN204", Some(9), 120));
    assert_eq!(promised(&explanation, "TN204"), Some((200, 160)));
}

#[test]
fn tn205_outputs_of_evaluation_are_collected() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    train(&mut script, 1, |_, _| ());
    for _ in 0..5 {
        script.phase("eval", |script| {
            script.alloc(30, &[line(11)]);
        });
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN205", Some(11), 150));
    assert_eq!(promised(&explanation, "TN205"), Some((170, 50)));
}

#[test]
fn tn206_a_checkpoint_is_read_beside_the_model() {
    let mut script = Script::new(1000);
    script.alloc(40, &[line(1)]);
    script.phase("save", |script| {
        let state = script.alloc(40, &[LOAD, line(8)]);
        script.free(state);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN206", Some(8), 40));
    assert_eq!(promised(&explanation, "TN206"), Some((80, 40)));
}

#[test]
fn tn207_the_cache_and_the_request_for_more_of_it_are_halved() {
    let mut script = Script::new(200);
    script.alloc(20, &[line(1)]);
    for part in 0..2 {
        let cache = script.alloc(60, &[line(3)]);
        script.own(cache, "kv_cache", &format!("cache.{part}"));
    }
    script.oom(100, &[line(3)]);
    let explanation = script.explain();
    assert_eq!(codes(&explanation), ["TN207", "TN101"]);
    assert_eq!(promised(&explanation, "TN207"), Some((240, 130)));
    // Without a replay a sum that is small enough proves nothing.
    assert_eq!(explanation.fixes[0].fits, None);
}

#[test]
fn tn208_one_line_makes_most_of_the_peak() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    script.phase("eval", |script| {
        for module in ["up", "convolution"] {
            script.note(Kind::MarkStart, module, "module", 0);
            script.alloc(50, &[line(12)]);
            script.note(Kind::MarkEnd, module, "module", 0);
        }
        script.free(20);
        script.free(70);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN208", Some(12), 100));
    assert_eq!(promised(&explanation, "TN208"), Some((120, 70)));
}

#[test]
fn tn209_two_blocks_of_one_name() {
    let mut script = Script::new(1000);
    for line_number in [3, 8] {
        let weight = script.alloc(50, &[line(line_number)]);
        script.own(weight, "weights", "layer.weight");
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN209", Some(3), 50));
    assert_eq!(promised(&explanation, "TN209"), Some((100, 50)));
}

#[test]
fn tn210_checkpointing_is_on_and_the_step_makes_the_peak() {
    assert_eq!(codes(&adam(true)), ["TN204", "TN210"]);
}
