// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every finding on a recording of a few rows: its code, its line, its arithmetic.

use tonnage_recording::{Event, Kind, Pool, Trace};

use super::*;
use crate::holdings::{Sort, read};

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
    device: i32,
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
        trace.meta.push(tonnage_recording::Meta {
            process: 0,
            name: meta::GPU_CAPACITY.to_owned(),
            text: (capacity * MIB).to_string(),
        });
        Self {
            trace,
            process: 0,
            device: 0,
            stream: 0,
            next: 0,
        }
    }

    /// A dry run, in which kernel images of up to 350 MiB are not counted.
    fn of_dry_run(mut self) -> Self {
        for (name, text) in [(facts::GPU_ID, "test"), (meta::TORCH_VERSION, "2.15.0")] {
            self.trace.meta.push(tonnage_recording::Meta {
                process: 0,
                name: name.to_owned(),
                text: text.to_owned(),
            });
        }
        self
    }

    fn push(&mut self, event: Event) {
        self.trace.events.push(Event {
            process: self.process,
            device: self.device,
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

    /// A call of the driver after which the device charges so much.
    fn driver(&mut self, kind: Kind, size: u64, charged: u64) {
        self.push(Event {
            address: charged << 40,
            size: size * MIB,
            charged: Some(charged * MIB),
            in_use: Some(charged * MIB),
            ..Event::new(kind)
        });
    }

    fn stack(&mut self, frames: &[Frame]) -> Option<tonnage_recording::StackId> {
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

    /// A tensor of one number.
    fn alloc_number(&mut self, frames: &[Frame]) -> u64 {
        let at = self.alloc(1, frames);
        let made = self.trace.events.last_mut().unwrap();
        (made.size, made.requested) = (512, 4);
        at
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

    fn set_owner(&mut self, at: u64, category: &str, name: &str) {
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

/// MiB before the proposal that answers a finding, and at least and at most after it.
fn bounds(explanation: &Explanation, code: &str) -> Option<(u64, u64, u64)> {
    let fix = explanation.fixes.iter().find(|fix| fix.code == code)?;
    let after = [fix.peak_after_least, fix.peak_after];
    Some((fix.peak_before / MIB, after[0] / MIB, after[1] / MIB))
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
    // The line that made the largest part, and not the line of the request.
    assert_eq!(first(&explanation), ("TN101", Some(1), 10));
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
    // The line whose blocks keep the holes, and not the one that requested.
    assert_eq!(first(&explanation), ("TN102", Some(1), 70));
    assert_eq!(explanation.slack.largest_hole, 40 * MIB);
    // The blocks that keep the holes, for pictures.
    let claim = Claim {
        code: codes::FRAGMENTED,
        whole: false,
        blocks: vec![0, 1],
    };
    assert_eq!(explanation.claims, [claim]);
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
    let title = "other processes of the job hold memory of this GPU";
    assert_eq!(explanation.findings[0].code.title, title);
    assert!(explanation.findings[0].sentence.contains("(opened at "));
    // Short by more than the others hold: short by itself.
    script.oom(80, &[line(2)]);
    assert_eq!(codes(&script.explain()), ["TN105", "TN101"]);
}

#[test]
fn tn105_other_processes_without_a_line() {
    let mut script = Script::new(100);
    script.process = 1;
    script.push(Event {
        size: 20 * MIB,
        ..Event::new(Kind::DriverContext)
    });
    script.process = 0;
    script.push(Event {
        size: 10 * MIB,
        ..Event::new(Kind::DriverContext)
    });
    script.alloc(50, &[line(1)]);
    script.oom(35, &[line(2)]);
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN105", None, 20));
    let sentence = &explanation.findings[0].sentence;
    assert!(sentence.ends_with("contexts included"), "{sentence}");
    let advice = &explanation.fixes[0].advice;
    assert!(advice.ends_with("before its first CUDA call"), "{advice}");
}

#[test]
fn a_job_that_failed_is_named_with_its_exit_code() {
    let mut script = Script::new(1000);
    script.trace.meta.push(tonnage_recording::Meta {
        process: facts::RUN,
        name: facts::ENDING.to_owned(),
        text: "exit 3".to_owned(),
    });
    script.alloc(20, &[line(1)]);
    let unknown = script.explain().unknown;
    let failure = unknown.iter().find(|gap| gap.contains("failure"));
    assert!(
        failure.is_some_and(|gap| gap.ends_with(": it ended with exit code 3")),
        "{unknown:?}"
    );
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
    // The last one is alive in any case, and a variable may keep the one before until it is assigned.
    assert_eq!(bounds(&explanation, "TN201"), Some((80, 30, 40)));
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

#[test]
fn tn203_a_loss_after_a_pass_without_gradients_does_not_fit() {
    let mut script = Script::new(200);
    script.alloc(20, &[line(1)]);
    script.phase("eval", |script| {
        script.alloc(40, &[line(5)]);
    });
    script.alloc(80, &[line(6)]);
    script.oom(80, &[CROSS_ENTROPY, line(6)]);
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN203", Some(6), 200));
    assert_eq!(promised(&explanation, "TN203"), Some((220, 45)));
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN203");
    assert!(!fix.expect("a proposal").advice.contains("checkpoint"));
}

#[test]
fn tn203_predictions_that_are_collected_are_not_of_the_loss() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    let mut predictions = 0;
    script.phase("eval", |script| {
        predictions = script.alloc(80, &[line(5)]);
        let loss = script.alloc(80, &[CROSS_ENTROPY, line(6)]);
        script.free(loss);
    });
    // Beside them what they are joined with, once the loss is gone.
    script.alloc(150, &[line(9)]);
    let explanation = script.explain();
    assert_eq!(explanation.on_device.allocated, 250 * MIB);
    assert!(!codes(&explanation).contains(&"TN203"), "{explanation:?}");
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
        script.set_owner(weight, "weights", "w");
        script.phase("backward", |script| script.free(block));
    });
    script.phase("backward", |script| {
        let gradient = script.alloc(40, &[]);
        script.set_owner(gradient, "gradients", "w");
    });
    script.phase("step", |script| {
        let state = script.alloc(80, &[ADAM, line(9)]);
        let copies = script.alloc(40, &[ADAM, line(9)]);
        script.free(copies);
        script.set_owner(state, "optimizer_state", "w exp_avg");
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
    // The variable that got an output keeps it until the next is made: two of 30 beside the 20.
    assert_eq!(promised(&explanation, "TN205"), Some((170, 80)));
}

#[test]
fn tn205_what_is_stacked_goes_to_the_host_with_what_it_is_made_of() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    train(&mut script, 1, |_, _| ());
    for _ in 0..5 {
        script.phase("eval", |script| {
            script.alloc(30, &[line(11)]);
        });
    }
    script.alloc(150, &[line(12)]);
    let explanation = script.explain();
    assert_eq!(promised(&explanation, "TN205"), Some((320, 80)));
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
fn tn202_a_checkpoint_that_is_read_after_the_last_pass_is_no_part_of_it() {
    let mut script = Script::new(4 << 30);
    let model = script.alloc(40 << 20, &[line(1)]);
    script.set_owner(model, "weights", "weight");
    train(&mut script, 5, |script, _| {
        let made = script.alloc(30 << 20, &[line(7)]);
        script.free(made);
    });
    let left = script.alloc(1 << 20, &[line(7)]);
    script.phase("save", |script| {
        script.alloc(160 << 20, &[line(8)]);
    });
    script.free(left);
    let explanation = script.explain();
    assert_eq!(codes(&explanation), ["TN206"]);
}

#[test]
fn tn206_what_the_optimizer_took_over_is_needed_all_the_same() {
    let mut script = Script::new(1000);
    script.alloc(40, &[line(1)]);
    script.phase("save", |script| {
        let state = script.alloc(60, &[LOAD, line(8)]);
        script.alloc(40, &[LOAD, line(8)]);
        script.set_owner(state, "optimizer_state", "weight exp_avg");
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN206", Some(8), 40));
    assert_eq!(promised(&explanation, "TN206"), Some((140, 100)));
}

#[test]
fn tn207_the_cache_and_the_request_for_more_of_it_are_halved() {
    let mut script = Script::new(200);
    script.alloc(20, &[line(1)]);
    for part in 0..2 {
        let cache = script.alloc(60, &[line(3)]);
        script.set_owner(cache, "kv_cache", &format!("cache.{part}"));
    }
    script.oom(100, &[line(3)]);
    let explanation = script.explain();
    assert_eq!(codes(&explanation), ["TN207", "TN101"]);
    assert_eq!(promised(&explanation, "TN207"), Some((240, 130)));
    // Without a replay a sum that is small enough proves nothing.
    assert_eq!(explanation.fixes[0].outcome, FixOutcome::Unknown);
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
fn tn208_a_loss_makes_temporary_memory_after_the_model_has_returned() {
    let mut script = Script::new(1000);
    let (mut logits, mut rest) = (0, 0);
    script.phase("forward", |script| {
        logits = script.alloc(20, &[line(5)]);
    });
    // Still in the forward phase.
    let products: Vec<u64> = (0..3).map(|_| script.alloc(60, &[line(9)])).collect();
    for product in products {
        script.free(product);
        rest = script.alloc(1, &[line(10)]);
    }
    script.phase("backward", |script| {
        script.free(rest);
        script.free(logits);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN208", Some(9), 180));
    assert_eq!(promised(&explanation, "TN208"), Some((200, 110)));
}

#[test]
fn tn208_scratch_memory_of_cublas_is_not_halved_with_the_samples() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    script.phase("eval", |script| {
        let workspace = script.alloc(50, &[line(12)]);
        script.set_owner(workspace, "workspaces", "cuBLAS");
        let product = script.alloc(50, &[line(12)]);
        script.free(product);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN208", Some(12), 50));
    assert_eq!(promised(&explanation, "TN208"), Some((120, 95)));
}

#[test]
fn tn209_two_blocks_of_one_name() {
    let mut script = Script::new(1000);
    for line_number in [3, 8] {
        let weight = script.alloc(50, &[line(line_number)]);
        script.set_owner(weight, "weights", "layer.weight");
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN209", Some(3), 50));
    assert_eq!(promised(&explanation, "TN209"), Some((100, 50)));
}

#[test]
fn tn210_checkpointing_is_on_and_the_step_makes_the_peak() {
    assert_eq!(codes(&adam(true)), ["TN204", "TN210"]);
}

impl Script {
    /// Python is queried: block, `SORT PLACE`, name.
    fn census(&mut self, reason: &str, answers: &[(u64, &str, &str)]) {
        self.note(Kind::Mark, reason, "census", 0);
        for (at, name, text) in answers {
            self.note(Kind::Holder, name, text, *at);
        }
    }

    fn recording(&self) -> Recording {
        let bytes = self.trace.write(Vec::new()).expect("writes");
        read(bytes.as_slice()).expect("reads")
    }

    /// With the whole job behind it, which can be replayed.
    fn explain_with(&self, whole: &Self) -> Explanation {
        let bytes = whole.trace.write(Vec::new()).expect("writes");
        let options = crate::replay::Options::default();
        let job = Job::load(|| Ok(bytes.as_slice()), &options).expect("requests");
        explain(&self.recording(), Some(&whole.recording()), Some(&job)).expect("has blocks")
    }
}

#[test]
fn tn101_by_the_need_of_the_whole_job_although_the_first_request_would_fit_in_holes() {
    // A hole of 60 beside 40 alive, and a request of 50 that would have been served by it.
    let begin = || {
        let mut script = Script::bare(100);
        script.segment(0, 90);
        script.alloc_at(0, 10, &[line(1)]);
        script.alloc_at(40, 10, &[line(1)]);
        script
    };
    let mut failed = begin();
    failed.oom(60, &[line(3)]);
    assert_eq!(first(&failed.explain()).0, "TN102");
    let mut whole = begin();
    whole.segment(100, 60);
    whole.alloc_at(100, 60, &[line(3)]);
    // As far as that it fits without holes, and the report is that it is fragmented.
    let explanation = failed.explain_with(&whole);
    assert_eq!(explanation.failure_class, Some(codes::FRAGMENTED));
    let fix = &explanation.fixes[0];
    assert_eq!(
        (fix.code, fix.outcome, fix.whole_job),
        ("TN102", FixOutcome::Fits, true)
    );
    // One more of those, and no setting helps.
    whole.segment(200, 60);
    whole.alloc_at(200, 60, &[line(4)]);
    let explanation = failed.explain_with(&whole);
    assert_eq!(explanation.failure_class, Some(codes::SHORT));
    assert!(explanation.fixes.iter().all(|fix| fix.code != "TN102"));
    let need = explanation.need.expect("what it needs");
    assert!(
        need.bytes >= 140 * MIB && need.short >= 40 * MIB,
        "{need:?}"
    );
    assert_eq!(need.allocated, 140 * MIB);
    let over = need.over.expect("moments above the device");
    assert_eq!((over.requests, over.of), (1, 4));
}

#[test]
fn tn201_is_the_reason_although_the_first_request_that_failed_would_fit_in_holes() {
    let begin = |steps: u64| {
        let mut script = Script::bare(100);
        script.segment(0, 95);
        script.alloc(5, &[line(1)]);
        train(&mut script, steps, |script, _| {
            script.alloc(10, &[line(7)]);
        });
        script
    };
    let mut failed = begin(7);
    // 20 are free in the segment, not in one piece.
    failed.alloc_at(85, 1, &[line(2)]);
    failed.oom(12, &[line(7)]);
    let explanation = failed.explain();
    assert_eq!(explanation.failure_class, Some(codes::SHORT));
    assert_eq!(codes(&explanation)[0], "TN201");
    // The run without a limit was interrupted before it got to the failure.
    let explanation = failed.explain_with(&begin(2));
    assert_eq!(explanation.failure_class, Some(codes::SHORT));
    assert_eq!(codes(&explanation)[0], "TN201");
    let need = explanation.need.expect("it was run once more");
    assert!(need.is_unknown(), "{need:?}");
    assert_eq!(need.expandable, None, "of a part of the job");
    assert!(
        explanation.fixes.iter().all(|fix| !fix.whole_job),
        "{:?}",
        explanation.fixes
    );
}

#[test]
fn a_setting_helps_only_if_what_is_not_counted_takes_less_than_it_leaves() {
    // 800 alive, with a hole that nothing large fits in.
    let outcome = |capacity: u64| {
        let begin = || {
            let mut script = Script::bare(capacity).of_dry_run();
            script.segment(0, 900);
            script.alloc_at(0, 100, &[line(1)]);
            script.alloc_at(400, 100, &[line(1)]);
            script
        };
        let mut failed = begin();
        failed.oom(600, &[line(3)]);
        let mut whole = begin();
        whole.segment(1000, 600);
        whole.alloc_at(1000, 600, &[line(3)]);
        let explanation = failed.explain_with(&whole);
        let fix = &explanation.fixes[0];
        assert_eq!(fix.code, "TN102");
        (fix.outcome, fix.room.map(|room| room / MIB))
    };
    assert_eq!(outcome(1150), (FixOutcome::Fits, None));
    assert_eq!(outcome(1148), (FixOutcome::FitsOnlyIf, Some(348)));
    assert_eq!(outcome(1000), (FixOutcome::FitsOnlyIf, Some(200)));
}

#[test]
fn a_change_of_the_program_helps_only_if_what_is_not_counted_takes_less_than_it_leaves() {
    // Ten blocks of 100 in a list, of which two need be there at a time, beside one of 200.
    let outcome = |capacity: u64| {
        let script = |blocks: u64| {
            let mut script = Script::bare(capacity).of_dry_run();
            script.segment(0, 200);
            script.alloc(200, &[line(1)]);
            for block in 0..blocks {
                script.segment(200 + 100 * block, 100);
                let at = script.alloc(100, &[line(7)]);
                let holder = "list /home/me/train.py:8";
                script.census("peak", &[(at, "kept (collect)", holder)]);
            }
            script
        };
        let mut failed = script(5);
        failed.oom(100, &[line(7)]);
        let explanation = failed.explain_with(&script(10));
        let fix = explanation.fixes.iter().find(|fix| fix.code == "TN201");
        let fix = fix.expect("a proposal");
        assert_eq!(fix.peak_after, 400 * MIB);
        (fix.outcome, fix.room.map(|room| room / MIB))
    };
    assert_eq!(outcome(750), (FixOutcome::Fits, None));
    assert_eq!(outcome(748), (FixOutcome::FitsOnlyIf, Some(348)));
    assert_eq!(outcome(500), (FixOutcome::FitsOnlyIf, Some(100)));
}

#[test]
fn tn203_the_gradient_that_each_chunk_adds_is_counted_before_it_is_said_to_fit() {
    // Logits of 800, their loss and gradient, beside 20 and the 200 of a weight's gradient.
    let outcome = |capacity: u64| {
        let begin = |script: &mut Script| {
            script.alloc(20, &[line(1)]);
            script.phase("forward", |script| {
                script.alloc(800, &[line(5)]);
            });
        };
        let mut failed = Script::new(capacity);
        begin(&mut failed);
        failed.oom(800, &[CROSS_ENTROPY, line(6)]);
        let mut whole = Script::new(capacity);
        begin(&mut whole);
        whole.phase("forward", |script| {
            script.alloc(800, &[CROSS_ENTROPY, line(6)]);
        });
        whole.phase("backward", |script| {
            let logits = script.alloc(800, &[]);
            let weight = script.alloc(200, &[]);
            script.set_owner(weight, "gradients", "w");
            script.free(logits);
        });
        let explanation = failed.explain_with(&whole);
        let fix = explanation.fixes.iter().find(|fix| fix.code == "TN203");
        let fix = fix.expect("a proposal");
        assert_eq!(fix.peak_before, 2620 * MIB);
        assert_eq!(fix.peak_after, 720 * MIB);
        assert_eq!(
            fix.shown,
            "2.56 GiB - 2.05 GiB of logits and loss + 200.00 MiB for a gradient of each chunk = 720.00 MiB"
        );
        fix.outcome
    };
    assert_eq!(outcome(719), FixOutcome::Unknown);
    assert_eq!(outcome(519), FixOutcome::DoesNotFit);
    // PyTorch obtains 20 MiB for each of the smaller blocks.
    assert_eq!(outcome(800), FixOutcome::Fits);
}

#[test]
fn tn201_what_a_list_holds_is_a_fact_and_its_line_is_the_one_that_fills_it() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    let mut kept = Vec::new();
    for _ in 0..10 {
        kept.push(script.alloc(10, &[line(7)]));
    }
    let answers: Vec<_> = kept
        .iter()
        .map(|&at| (at, "kept (collect)", "list /home/me/train.py:8"))
        .collect();
    script.census("peak", &answers);
    let explanation = script.explain();
    // In a loop without a model.
    assert_eq!(first(&explanation), ("TN201", Some(8), 100));
    let finding = &explanation.findings[0];
    assert_eq!(finding.known, Known::Exact);
    let held = finding.held_by.as_ref().expect("a holder");
    assert_eq!(
        (held.name.as_str(), held.function.as_deref()),
        ("kept", Some("collect"))
    );
    let headline = finding.headline.as_deref();
    assert_eq!(
        headline,
        Some("`kept` in collect() holds 100.00 MiB in 10 tensors")
    );
    // Each goes before the next is made, or just after.
    assert_eq!(bounds(&explanation, "TN201"), Some((120, 30, 40)));
    let claim = Claim {
        code: codes::LEAK,
        whole: false,
        blocks: (1..=10).collect(),
    };
    assert_eq!(explanation.claims[0], claim);
}

#[test]
fn tn201_the_cache_of_a_function_has_a_limit() {
    let explain = |name: &str| {
        let mut script = Script::new(1000);
        let tables: Vec<_> = (0..10).map(|_| script.alloc(10, &[line(7)])).collect();
        let holders: Vec<_> = tables.iter().map(|&at| (at, name, "dict")).collect();
        script.census("peak", &holders);
        script.explain().fixes[0].advice.clone()
    };
    // The frames of `line` are of `main`.
    assert!(explain("main").contains("`main.cache_clear()`"));
    assert!(!explain("tables").contains("cache_clear"));
}

/// A loop over forward passes of three layers; `keeper` is the report of Python about their blocks.
fn passes(script: &mut Script, number: u64, mark: Option<&str>) -> Vec<u64> {
    let mut blocks = Vec::new();
    for _ in 0..number {
        if let Some(mark) = mark {
            script.note(Kind::Mark, "Model", mark, 0);
        }
        script.phase("forward", |script| {
            for layer in 0..3 {
                let module = format!("layers.{layer}");
                script.note(Kind::MarkStart, &module, "module", 0);
                for number in [7, 8] {
                    blocks.push(script.alloc(10, &[line(number)]));
                }
                script.note(Kind::MarkEnd, &module, "module", 0);
            }
        });
    }
    blocks
}

/// The answers of Python to a census of these blocks.
fn graph_of<'a>(blocks: &[u64], name: &'a str) -> Vec<(u64, &'a str, &'static str)> {
    let answer = |&at: &u64| (at, name, "graph /home/me/train.py:12");
    blocks.iter().map(answer).collect()
}

#[test]
fn tn211_graphs_that_a_variable_keeps_and_no_backward_pass_uses() {
    let mut script = Script::new(1000);
    let blocks = passes(&mut script, 5, None);
    script.census("peak", &graph_of(&blocks, "total"));
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN211", Some(12), 240));
    let fix = &explanation.fixes[0];
    assert!(fix.advice.contains(".item()"), "{}", fix.advice);
    assert!(!fix.changes_result);
    // A state that is carried on is large itself, and must not become a number.
    let mut script = Script::new(1000);
    let blocks = passes(&mut script, 5, None);
    let state = script.alloc(10, &[line(9)]);
    let mut answers = graph_of(&blocks, "h");
    answers.push((state, "h", "variable /home/me/train.py:12"));
    script.census("peak", &answers);
    let explanation = script.explain();
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN211");
    let fix = fix.expect("a proposal");
    assert!(fix.advice.contains("`h = h.detach()`"), "{}", fix.advice);
    assert!(!fix.advice.contains(".item()") && fix.changes_result);
}

#[test]
fn tn213_losses_that_one_backward_pass_uses_are_no_leak() {
    let waiting = |numbers: bool, own: bool| {
        let mut script = Script::new(1000);
        let mut blocks = Vec::new();
        for part in 0..4 {
            // As attention keeps the state of its random numbers.
            script.phase("forward", |script| {
                if own || part == 0 {
                    script.note(Kind::Mark, "0 Model", "own_graph", 0);
                }
                script.alloc_number(&[line(6)]);
                blocks.extend((0..6).map(|number| script.alloc(10, &[line(7 + number % 2)])));
            });
            if numbers {
                script.alloc_number(&[line(11)]);
            }
        }
        script.census("peak", &graph_of(&blocks, "loss"));
        script.phase("backward", |script| {
            for &block in blocks.iter().rev() {
                script.free(block);
            }
        });
        script.explain()
    };
    // Passes without a loss of their own, as those of two encoders, cannot go back one by one.
    let towers = waiting(false, true);
    assert_eq!(first(&towers), ("TN213", Some(12), 240));
    let is_each = |fix: &Fix| fix.advice.contains("micro-batch");
    assert!(!towers.fixes.iter().any(is_each));
    // Nor can layers, each of which is given what the one before made and leaves its own loss: that is one pass.
    let layers = waiting(true, false);
    assert_eq!(first(&layers), ("TN213", Some(8), 240));
    assert!(!layers.fixes.iter().any(is_each), "{:?}", layers.fixes);
    let headline = layers.findings[0].headline.as_deref();
    assert_eq!(headline, Some("240.00 MiB kept for the backward pass"));
    let explanation = waiting(true, true);
    assert_eq!(first(&explanation), ("TN213", Some(12), 240));
    let fix = &explanation.fixes[0];
    assert!(
        fix.advice.contains("`backward()` for each micro-batch"),
        "{}",
        fix.advice
    );
    assert_eq!((fix.peak_before / MIB, fix.peak_after / MIB), (240, 60));
}

#[test]
fn tn212_a_model_in_evaluation_mode_keeps_what_no_backward_pass_uses() {
    let mut script = Script::new(1000);
    passes(&mut script, 1, Some("grad_in_eval"));
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN212", Some(8), 60));
    assert_eq!(explanation.findings[0].known, Known::Exact);
    // At most a layer and what it was given.
    assert_eq!(promised(&explanation, "TN212"), Some((60, 30)));
    // Without the mark it is a forward pass like any other.
    let mut script = Script::new(1000);
    passes(&mut script, 1, None);
    assert_eq!(first(&script.explain()).0, "TN213");
}

#[test]
fn tn219_a_model_that_no_optimizer_trains_and_one_that_is_trained_later() {
    let explained = |later: Option<&str>| {
        let mut script = Script::new(1000);
        let blocks = passes(&mut script, 1, Some("own_graph"));
        script.census("peak", &graph_of(&blocks, "loss"));
        script.phase("backward", |script| {
            for &block in blocks.iter().rev() {
                script.free(block);
            }
        });
        for mark in ["untrained_model"].into_iter().chain(later) {
            script.note(Kind::Mark, "Model", mark, 0);
        }
        script.note(Kind::Mark, "Model = teacher (main)", "called_model", 0);
        script.explain()
    };
    let explanation = explained(None);
    assert_eq!(
        explanation.findings[0].sentence,
        "the call of `teacher` in main() at /home/me/train.py:7 keeps 50.00 MiB for gradients, and no optimizer trains it"
    );
    assert!(explanation.fixes.iter().any(|fix| {
        fix.advice
            .ends_with("gradients off before: `teacher.requires_grad_(False)`")
    }));
    // Without its output, which stays.
    assert_eq!(first(&explanation), ("TN219", Some(7), 50));
    assert_eq!(promised(&explanation, "TN219"), Some((60, 30)));
    assert_eq!(first(&explained(Some("trained_model"))).0, "TN213");
}

#[test]
fn tn220_a_checkpoint_around_all_layers() {
    let mut script = Script::new(1000);
    script.phase("forward", |script| {
        script.alloc(10, &[line(7), CHECKPOINT, line(20)]);
    });
    script.phase("backward", |script| {
        let mut blocks = Vec::new();
        for layer in 0..3 {
            let module = format!("layers.{layer}");
            script.note(Kind::MarkStart, &module, "module", 0);
            for number in [7, 8] {
                blocks.push(script.alloc(10, &[line(number), CHECKPOINT]));
            }
            script.note(Kind::MarkEnd, &module, "module", 0);
        }
        script.alloc(1, &[]);
        for &block in blocks.iter().rev() {
            script.free(block);
        }
    });
    let explanation = script.explain();
    assert_eq!(codes(&explanation), ["TN220"]);
    assert_eq!(first(&explanation), ("TN220", Some(20), 60));
    let sentence = &explanation.findings[0].sentence;
    assert!(sentence.contains("covers 3 repeated blocks `layers.*`"));
    assert!(sentence.ends_with(", as much as without checkpointing"));
    // The outputs of all layers, and one layer at a time.
    assert_eq!(promised(&explanation, "TN220"), Some((71, 50)));
}

#[test]
fn tn221_a_variable_that_nobody_reads_until_it_is_assigned_anew() {
    let explained = |told: &[&str]| {
        let mut script = Script::new(1000);
        let mut before = None;
        for _ in 0..2 {
            script.alloc(1, &[line(4)]);
            let mut out = 0;
            script.phase("forward", |script| out = script.alloc(50, &[line(5)]));
            if let Some(before) = before.replace(out) {
                script.free(before);
            }
            let answer = (out, "out (main)", "variable /home/me/train.py:5");
            script.census("peak", &[answer]);
            for text in told {
                script.note(Kind::Mark, text, "last_result", 0);
            }
            script.phase("backward", |_| ());
        }
        script.explain()
    };
    let told = "out (main) = out, prediction /home/me/train.py:9";
    let explanation = explained(&[told]);
    assert_eq!(first(&explanation), ("TN221", Some(5), 50));
    let fix = &explanation.fixes[0];
    assert_eq!(
        fix.advice,
        "`del out, prediction` after /home/me/train.py:9, which reads it last"
    );
    // From the next batch on it is gone.
    assert_eq!(promised(&explanation, "TN221"), Some((102, 52)));
    // It was taken back, because another name holds the same.
    let taken_back = explained(&[told, "out (main) = "]);
    assert!(!codes(&taken_back).contains(&"TN221"));
}

#[test]
fn tn201_what_a_hook_keeps_is_needed_by_the_backward_pass_as_well() {
    let mut script = Script::new(1000);
    let mut kept = Vec::new();
    for _ in 0..5 {
        let (mut before, mut after) = (0, 0);
        script.phase("forward", |script| {
            before = script.alloc(10, &[line(5)]);
            kept.push(script.alloc(10, &[line(7)]));
            after = script.alloc(1, &[line(8)]);
        });
        script.phase("backward", |script| {
            script.free(after);
            // It may be needed until here, and what was made before it is needed longer.
            let gradient = script.alloc(30, &[]);
            if kept.len() == 5 {
                let answers: Vec<_> = kept
                    .iter()
                    .map(|&at| (at, "kept", "list /home/me/train.py:12"))
                    .collect();
                script.census("peak", &answers);
            }
            script.free(gradient);
            script.free(before);
        });
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN201", Some(12), 50));
    assert_eq!(promised(&explanation, "TN201"), Some((90, 50)));
    assert_eq!(explanation.fixes[0].peak_after_least / MIB, 40);
}

#[test]
fn tn201_gradients_that_a_list_collects_have_no_line_and_are_not_replaced() {
    let mut script = Script::new(1000);
    let mut kept = Vec::new();
    for _ in 0..5 {
        let mut activation = 0;
        script.phase("forward", |script| {
            activation = script.alloc(10, &[line(5)]);
        });
        script.phase("backward", |script| {
            for _ in 0..4 {
                let gradient = script.alloc(10, &[]);
                script.free(gradient);
            }
            kept.push(script.alloc(10, &[]));
            script.free(activation);
        });
    }
    let answers: Vec<_> = kept
        .iter()
        .map(|&at| (at, "logs", "list /home/me/train.py:12"))
        .collect();
    script.census("end", &answers);
    let explanation = script.explain();
    assert_eq!(first(&explanation).0, "TN201");
    let sentence = &explanation.findings[0].sentence;
    assert!(sentence.contains(", made in backward passes"), "{sentence}");
    let fix = &explanation.fixes[0];
    assert!(fix.advice.contains("on the host"), "{}", fix.advice);
    assert!(!fix.changes_result);
    assert_eq!(promised(&explanation, "TN201"), Some((60, 30)));
}

#[test]
fn tn212_what_the_program_collects_stays_without_gradients() {
    let mut script = Script::new(1000);
    let blocks = passes(&mut script, 5, Some("grad_in_eval"));
    // The output of each pass is in a dictionary, and the rest in its graph.
    let answer = |(number, &at): (usize, &u64)| {
        let text = if number % 6 == 5 {
            "dict /home/me/train.py:12"
        } else {
            "graph /home/me/train.py:12"
        };
        (at, "cache", text)
    };
    let answers: Vec<_> = blocks.iter().enumerate().map(answer).collect();
    script.census("peak", &answers);
    let explanation = script.explain();
    assert_eq!(first(&explanation).0, "TN212");
    assert_eq!(first(&explanation).2, 250);
    // Five outputs of 10, four of them beside the two layers of the last pass that are there at once.
    let (before, after) = promised(&explanation, "TN212").expect("a proposal");
    assert_eq!(before, 300);
    assert!((50..=90).contains(&after), "{after}");
    assert!(codes(&explanation).contains(&"TN201"), "{explanation:?}");
}

#[test]
fn tn213_checkpointing_leaves_the_outputs_and_one_layer() {
    let mut script = Script::new(1000);
    let blocks = passes(&mut script, 1, None);
    script.phase("backward", |script| {
        for &block in blocks.iter().rev() {
            script.free(block);
        }
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN213", Some(8), 60));
    // Three outputs of 10 and one inner result of 10.
    assert_eq!(promised(&explanation, "TN213"), Some((60, 40)));
    let fix = &explanation.fixes[0];
    assert!(fix.advice.contains("`layers.*`"), "{fix:?}");
}

#[test]
fn what_a_script_does_after_an_error_that_it_handled_is_told() {
    let mut script = Script::new(200);
    script.alloc(20, &[line(1)]);
    let attempt = script.alloc(150, &[line(5)]);
    script.oom(100, &[line(6)]);
    script.free(attempt);
    let smaller = script.alloc(75, &[line(5)]);
    script.free(smaller);
    let explanation = script.explain();
    assert_eq!(explanation.outcome, Outcome::Ran);
    let handled = explanation.handled.expect("it ran out of memory");
    assert!(handled.before_last);
    assert_eq!((handled.times, handled.allocated_after), (1, 95 * MIB));
    // One that ended with the error handled nothing.
    let mut script = Script::new(200);
    script.alloc(150, &[line(5)]);
    script.oom(100, &[line(6)]);
    assert_eq!(script.explain().handled, None);
}

/// Four layers, each with a block of 256 MiB that a graph holds, and another of 8 MiB.
fn script_with_wide_blocks(
    holder: &'static str,
) -> (Script, Vec<(u64, &'static str, &'static str)>) {
    let mut script = Script::new(4000);
    let mut holders = Vec::new();
    script.phase("forward", |script| {
        for _ in 0..4 {
            let wide = script.alloc(256, &[line(5)]);
            holders.push((wide, "loss", holder));
            script.alloc(8, &[line(6)]);
        }
    });
    (script, holders)
}

#[test]
fn tn214_finds_matrices_of_tokens_by_tokens_by_their_shape() {
    let holder = "graph /home/me/train.py:9\tSoftmaxBackward0\tfloat32[1, 4, 4096, 4096]";
    let (mut script, holders) = script_with_wide_blocks(holder);
    script.census("peak", &holders);
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN214", Some(5), 1024));
    assert_eq!(explanation.findings[0].known, Known::Exact);
    assert_eq!(promised(&explanation, "TN214"), Some((1056, 32)));
}

#[test]
fn tn214_rows_of_a_wide_layer_are_not_matrices_of_tokens() {
    let holder = "graph /home/me/train.py:9\tReluBackward0\tfloat32[8192, 8192]";
    let (mut script, holders) = script_with_wide_blocks(holder);
    // Without recorded shapes, only the ratio of the sizes is left.
    assert_eq!(first(&script.explain()), ("TN214", Some(5), 1024));
    script.census("peak", &holders);
    let explanation = script.explain();
    assert!(!codes(&explanation).contains(&"TN214"), "{explanation:?}");
}

/// Two models of two layers, each held by a variable.
fn two_models(states: &[&str]) -> Explanation {
    let mut script = Script::new(1000);
    let mut answers = Vec::new();
    for (name, number) in [("policy", 3), ("ref", 4)] {
        for layer in 0..2 {
            let weight = script.alloc(50, &[line(number)]);
            script.set_owner(weight, "weights", &format!("{layer}.weight"));
            answers.push((weight, name, "module /home/me/train.py:4"));
        }
    }
    script.census("peak", &answers);
    for state in states {
        script.note(Kind::Mark, state, "model", 0);
    }
    script.explain()
}

#[test]
fn tn215_a_reference_model_is_named_and_not_called_superfluous() {
    let explanation = two_models(&["trained policy", "frozen ref"]);
    let codes = codes(&explanation);
    assert!(
        codes.contains(&"TN215") && !codes.contains(&"TN209"),
        "{codes:?}"
    );
    let found = explanation.findings.iter().find(|f| f.code.code == "TN215");
    let held = found.and_then(|found| found.held_by.as_ref());
    assert_eq!(held.map(|held| held.name.as_str()), Some("ref"));
    // There is no report that anything is trained: two models are two models.
    let explanation = two_models(&[]);
    let codes = self::codes(&explanation);
    assert!(
        !codes.contains(&"TN215") && !codes.contains(&"TN209"),
        "{codes:?}"
    );
}

#[test]
fn tn209_is_not_said_of_layers_without_a_common_model() {
    let mut script = Script::new(1000);
    for _ in 0..8 {
        let weight = script.alloc(50, &[line(3)]);
        script.set_owner(weight, "weights", "weight");
    }
    assert_eq!(codes(&script.explain()), ["TN217"]);
}

#[test]
fn tn216_clones_after_the_step_are_no_copies_of_the_optimizer() {
    let mut script = Script::new(1000);
    let weights: Vec<u64> = (0..6).map(|_| script.alloc(20, &[line(1)])).collect();
    train(&mut script, 2, |_, _| ());
    for (number, &weight) in weights.iter().enumerate() {
        script.set_owner(weight, "weights", &format!("{number}.weight"));
    }
    for _ in 0..6 {
        script.alloc(20, &[line(9)]);
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN216", Some(9), 120));
    assert_eq!(promised(&explanation, "TN216"), Some((240, 120)));
    assert_eq!(explanation.moment.phase, Phase::Other);
}

#[test]
fn tn216_a_state_dict_that_is_gathered_on_the_device_does_not_grow() {
    let mut script = Script::new(1000);
    script.alloc(100, &[line(1)]);
    train(&mut script, 2, |_, _| ());
    let gathers: Frame = (
        "_full_post_state_dict_hook",
        "/lib/site-packages/torch/distributed/fsdp/_state_dict_utils.py",
        332,
    );
    for _ in 0..6 {
        script.alloc(20, &[gathers, line(9)]);
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN216", Some(9), 120));
    // One of them at a time is on the device.
    assert_eq!(promised(&explanation, "TN216"), Some((220, 120)));
}

#[test]
fn tn216_every_line_that_clones_is_to_be_changed() {
    let mut script = Script::new(1000);
    let weights: Vec<u64> = (0..4).map(|_| script.alloc(20, &[line(1)])).collect();
    train(&mut script, 2, |_, _| ());
    for (number, &weight) in weights.iter().enumerate() {
        script.set_owner(weight, "weights", &format!("{number}.weight"));
        let state = script.alloc(20, &[line(2)]);
        script.set_owner(
            state,
            "optimizer_state",
            &format!("{number}.weight exp_avg"),
        );
    }
    for clone in 0..8 {
        script.alloc(20, &[line(8 + clone % 2)]);
    }
    let explanation = script.explain();
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN216");
    let advice = &fix.expect("a proposal").advice;
    assert!(
        advice.contains(":8 and ") && advice.contains(":9:"),
        "{advice}"
    );
    assert_eq!(promised(&explanation, "TN216"), Some((320, 160)));
}

#[test]
fn tn213_all_repeated_blocks_that_are_counted_are_named() {
    let mut script = Script::new(1000);
    let mut blocks = Vec::new();
    script.phase("forward", |script| {
        for family in ["down", "up"] {
            for number in 0..3 {
                let module = format!("{family}.{number}");
                script.note(Kind::MarkStart, &module, "module", 0);
                blocks.push(script.alloc(10, &[line(4)]));
                blocks.push(script.alloc(10, &[line(5)]));
                script.note(Kind::MarkEnd, &module, "module", 0);
            }
        }
    });
    script.phase("backward", |script| {
        for &block in blocks.iter().rev() {
            script.free(block);
        }
    });
    let explanation = script.explain();
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN213");
    let advice = &fix.expect("a proposal").advice;
    assert!(advice.contains("each of `down.*` and `up.*`:"), "{advice}");
}

#[test]
fn sizes_that_nobody_told_are_named_also_those_of_the_whole_job() {
    let sizes = |explanation: &Explanation| explanation.unknown_sizes.len();
    let mut failed = Script::new(100);
    failed.alloc(60, &[line(1)]);
    failed.note(Kind::Unmodelled, "cudnnGetRNNTempSpaceSizes", "", 1);
    failed.oom(60, &[line(3)]);
    let explanation = failed.explain();
    assert_eq!(sizes(&explanation), 1);
    assert!(explanation.unknown[0].starts_with("what cuDNN reserves"));
    let mut whole = Script::new(100);
    whole.alloc(60, &[line(1)]);
    whole.note(Kind::Unmodelled, "cudnnGetRNNTempSpaceSizes", "", 1);
    whole.alloc(60, &[line(3)]);
    whole.note(Kind::Unmodelled, "cufftMakePlan1d", "", 1);
    let explanation = failed.explain_with(&whole);
    assert_eq!(sizes(&explanation), 2);
    assert_eq!(explanation.unknown[..2], explanation.unknown_sizes);
}

#[test]
fn the_moment_of_the_peak_is_told_where_another_has_most_allocated() {
    let mut script = Script::bare(100);
    let mut charged = 10;
    script.driver(Kind::DriverContext, 10, charged);
    let mut grow = |script: &mut Script, size: u64| {
        charged += size;
        script.driver(Kind::DriverMalloc, size, charged);
        script.segment(charged * 100, size);
        script.alloc_at(charged * 100, size, &[line(size)])
    };
    let first = grow(&mut script, 40);
    assert_eq!(script.explain().fullest, None);
    script.free(first);
    grow(&mut script, 20);
    // 20 are allocated and 40 cached; before, 40 were allocated and nothing was cached.
    let explanation = script.explain();
    let fullest = explanation.fullest.expect("it is another moment");
    let there = &fullest.on_device;
    assert_eq!((there.allocated, there.cached), (20 * MIB, 40 * MIB));
    assert_eq!(Some(there.used()), explanation.peak_used);
    assert!(fullest.row > explanation.moment.row);
    assert_eq!(explanation.on_device.used(), 50 * MIB);
    // The moment of a failure is the failure itself.
    script.oom(60, &[line(3)]);
    assert_eq!(script.explain().fullest, None);
}

#[test]
fn what_is_emptied_with_every_step_does_not_grow() {
    // Outputs of four micro-batches in a list, until the step is over.
    let found = |emptied: bool| {
        let mut script = Script::new(1000);
        script.alloc(20, &[line(1)]);
        let mut kept = Vec::new();
        for _ in 0..3 {
            if emptied {
                for at in std::mem::take(&mut kept) {
                    script.free(at);
                }
            }
            for _ in 0..4 {
                script.phase("forward", |script| kept.push(script.alloc(10, &[line(7)])));
                script.phase("backward", |_| ());
            }
            let answers: Vec<_> = kept
                .iter()
                .map(|&at| (at, "outputs (main)", "list /home/me/train.py:8"))
                .collect();
            script.census("peak", &answers);
            script.phase("step", |_| ());
            script.note(Kind::Mark, "", "step", 0);
        }
        codes(&script.explain()).contains(&"TN201")
    };
    assert!(!found(true));
    assert!(found(false));
}

/// Ranks that hold so many MiB of weights, and logits besides, each on its own device.
fn ranks(held: &[(u64, u64)]) -> Script {
    let mut script = Script::bare(1000);
    for (rank, (weights, logits)) in (0..).zip(held) {
        script.process = rank + 1;
        script.trace.meta.push(tonnage_recording::Meta {
            process: script.process,
            name: meta::PROCESS_RANK.to_owned(),
            text: rank.to_string(),
        });
        script.segment(script.next, 512);
        let at = script.alloc(*weights, &[line(2)]);
        script.set_owner(at, "weights", "weight");
        if *logits > 0 {
            script.alloc(*logits, &[line(7)]);
        }
    }
    script
}

#[test]
fn the_rank_with_most_in_use_is_explained_and_budgets_are_about_the_one_with_most_in_blocks() {
    let mut script = Script::bare(1000);
    for (rank, (held, reserved)) in (0..).zip([(100, 120), (90, 300)]) {
        script.process = rank + 1;
        script.device = rank.cast_signed();
        script.trace.meta.push(tonnage_recording::Meta {
            process: script.process,
            name: meta::PROCESS_RANK.to_owned(),
            text: rank.to_string(),
        });
        script.driver(Kind::DriverMalloc, reserved, reserved);
        script.segment(script.next, reserved);
        script.alloc(held, &[line(7)]);
    }
    assert_eq!(script.explain().rank, Some(1));
    let recording = script.recording();
    let summary = crate::diff::Summary::from_recording(&recording, "").expect("it has blocks");
    assert_eq!(
        (summary.peak_allocated / MIB, summary.peak_reserved / MIB),
        (100, 300)
    );
}

#[test]
fn tn106_a_gpu_of_one_process_that_holds_more_is_named() {
    let mut script = Script::bare(1000);
    for (device, held) in [(0, 300), (1, 100), (2, 100)] {
        script.device = device;
        script.segment(script.next, 512);
        script.alloc(held, &[line(7)]);
    }
    let explanation = script.explain();
    let finding = explanation.findings.last().expect("an imbalance");
    assert!(
        finding.sentence.starts_with(
            "GPU 0 has 300.00 MiB allocated at its peak, each of the other 2 100.00 MiB;"
        ),
        "{}",
        finding.sentence
    );
}

#[test]
fn tn106_a_rank_that_holds_more_is_named_with_its_line() {
    let explanation = ranks(&[(100, 0), (90, 0), (100, 0), (100, 50)]).explain();
    let finding = explanation.findings.last().expect("an imbalance");
    let place = finding.place.as_ref().map(|place| place.line);
    assert_eq!((finding.code.code, place), ("TN106", Some(7)));
    assert_eq!(finding.bytes, 50 * MIB);
    assert!(
        finding
            .sentence
            .starts_with("rank 3 has 150.00 MiB allocated at its peak, the other 3 have 90.00 MiB to 100.00 MiB; the largest difference is 50.00 MiB more"),
        "{}",
        finding.sentence
    );
}

#[test]
fn ranks_that_are_nearly_the_same_are_no_imbalance() {
    for held in [
        &[(100, 0), (100, 0)][..],
        &[(100, 0), (100, 10)],
        &[(100, 0)],
    ] {
        let explanation = ranks(held).explain();
        assert!(!codes(&explanation).contains(&"TN106"), "{held:?}");
    }
}

/// Steps of a training loop in which something keeps the graph of each pass; `keeper` is the holder by Python.
fn leak(keeper: (&str, &'static str), frames: &[Frame]) -> Explanation {
    let mut script = Script::new(1000);
    let mut kept = Vec::new();
    for _ in 0..5 {
        let mut used = 0;
        script.phase("forward", |script| {
            kept.extend((0..2).map(|_| script.alloc(10, frames)));
            used = script.alloc(1, &[line(9)]);
        });
        script.phase("backward", |script| script.free(used));
        script.phase("step", |_| ());
        script.note(Kind::Mark, "", "step", 0);
    }
    let answers: Vec<_> = kept.iter().map(|&at| (at, keeper.0, keeper.1)).collect();
    script.census("peak", &answers);
    script.explain()
}

const CALL: Frame = (
    "_call_impl",
    "/v/site-packages/torch/nn/modules/module.py",
    1700,
);

fn advice_of(explanation: &Explanation, code: &str) -> String {
    let fix = explanation.fixes.iter().find(|fix| fix.code == code);
    fix.expect("a proposal").advice.clone()
}

#[test]
fn tn211_nothing_is_detached_without_a_name_or_where_a_backward_pass_goes_through() {
    let forward = [line(27), CALL, line(40)];
    // A cycle keeps the graphs, and no variable leads to them: the line is in a forward function that is trained.
    let unnamed = leak(("", "graph "), &forward);
    assert_eq!(first(&unnamed).0, "TN211");
    let headline = unnamed.findings[0].headline.as_deref();
    assert_eq!(
        headline,
        Some("80.00 MiB of 4 passes is still alive, and no variable refers to it")
    );
    let advice = advice_of(&unnamed, "TN211");
    assert!(advice.contains("gc.collect()"), "{advice}");
    let members = leak(
        ("<cycle: ctx.out of Twice>", "graph /home/me/train.py:12"),
        &forward,
    );
    let sentence = &members.findings[0].sentence;
    assert!(
        sentence.starts_with("a reference cycle (ctx.out of Twice) keeps the graphs of 4 passes"),
        "{sentence}"
    );
    let saved = advice_of(&members, "TN211");
    assert!(saved.contains("ctx.save_for_backward"), "{saved}");
    // An attribute that is assigned in a forward function which the loss goes through.
    let through = leak(("model.out", "graph /home/me/train.py:27"), &forward);
    let copied = advice_of(&through, "TN211");
    assert!(copied.contains("`model.out`"), "{copied}");
    for advice in [advice, saved, copied] {
        assert!(
            !advice.contains("detach") && !advice.contains(".item()"),
            "{advice}"
        );
    }
    // A sum beside the loss may lose its graph.
    let total = leak(("total", "graph /home/me/train.py:42"), &forward);
    assert!(advice_of(&total, "TN211").contains(".item()"));
}

#[test]
fn tn201_what_no_name_leads_to_is_neither_detached_nor_copied() {
    let forward = [line(27), CALL, line(40)];
    let cycle = leak(("<cycle: Node.parent, Node.child>", "other "), &forward);
    assert_eq!(first(&cycle).0, "TN201");
    let advice = advice_of(&cycle, "TN201");
    assert_eq!(advice, "break the reference cycle: Node.parent, Node.child");
}

#[test]
fn tn201_hooks_that_pile_up_are_to_be_removed() {
    let text = "closure /home/me/train.py:15\t-\tfloat32[5]\tnet.2._forward_hooks";
    let hooks = leak(("batch (attach)", text), &[line(15)]);
    assert_eq!(first(&hooks).0, "TN201");
    let advice = advice_of(&hooks, "TN201");
    assert!(
        advice.starts_with("remove each hook") && advice.contains("`net.2._forward_hooks`"),
        "{advice}"
    );
}

#[test]
fn tn201_a_collection_of_garbage_shows_a_cycle_that_no_census_saw() {
    let mut script = Script::new(1000);
    let forward = [line(27), CALL, line(40)];
    let mut garbage = Vec::new();
    for step in 0..8 {
        let mut used = 0;
        script.phase("forward", |script| {
            garbage.push(script.alloc(20, &forward));
            used = script.alloc(1, &[line(9)]);
        });
        script.phase("backward", |script| script.free(used));
        script.phase("step", |_| ());
        script.note(Kind::Mark, "", "step", 0);
        if step == 4 {
            for block in garbage.drain(..) {
                script.free(block);
            }
            script.note(Kind::Mark, "5", "collected", 0);
        }
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN201", Some(27), 80));
    let sentence = &explanation.findings[0].sentence;
    assert!(
        sentence.starts_with("a reference cycle holds 80.00 MiB"),
        "{sentence}"
    );
    assert!(advice_of(&explanation, "TN201").contains("gc.collect()"));
}

#[test]
fn tn202_a_gradient_that_is_added_to_another_is_no_large_batch() {
    // All batches are alike. The second backward pass finds a gradient and makes one of the same size to add to it.
    let mut script = Script::new(1000);
    let weight = script.alloc(100, &[line(1)]);
    script.set_owner(weight, "weights", "w");
    for step in 0..3 {
        let mut block = 0;
        script.phase("forward", |script| block = script.alloc(1, &[line(7)]));
        script.phase("backward", |script| {
            let gradient = script.alloc(100, &[]);
            if step == 1 {
                script.free(gradient);
            } else {
                script.set_owner(gradient, "gradients", "w");
            }
            script.free(block);
        });
        script.phase("step", |_| ());
        script.note(Kind::Mark, "", "step", 0);
    }
    let explanation = script.explain();
    assert!(!codes(&explanation).contains(&"TN202"), "{explanation:?}");
}

#[test]
fn tn204_the_step_of_an_optimizer_whose_state_was_loaded_is_at_its_own_line() {
    let mut script = Script::new(1000);
    let weight = script.alloc(40, &[line(1)]);
    script.set_owner(weight, "weights", "w");
    let mut state = 0;
    script.phase("save", |script| state = script.alloc(80, &[LOAD, line(5)]));
    script.phase("forward", |script| {
        let block = script.alloc(5, &[line(8)]);
        script.phase("backward", |script| script.free(block));
    });
    script.phase("step", |script| {
        let copies = script.alloc(40, &[ADAM, line(9)]);
        script.set_owner(state, "optimizer_state", "w exp_avg");
        script.free(copies);
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN204", Some(9), 120));
    let advice = advice_of(&explanation, "TN204");
    assert!(
        advice.ends_with("(its step is at /home/me/train.py:9)"),
        "{advice}"
    );
}

#[test]
fn tn203_a_chunk_adds_gradients_of_both_factors_of_a_product() {
    let mut script = Script::new(4000);
    script.phase("forward", |script| {
        script.alloc(800, &[line(5)]);
        script.alloc(800, &[CROSS_ENTROPY, line(6)]);
    });
    script.phase("backward", |script| {
        let logits = script.alloc(800, &[]);
        // The gradients of two embeddings, of which neither is a parameter.
        let factors = [script.alloc(48, &[]), script.alloc(48, &[])];
        script.free(logits);
        for factor in factors {
            script.free(factor);
        }
    });
    let explanation = script.explain();
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN203");
    let fix = fix.expect("a proposal");
    assert!(
        fix.shown
            .contains("+ 96.00 MiB for a gradient of each chunk"),
        "{}",
        fix.shown
    );
    assert!(!fix.advice.contains("token"), "{}", fix.advice);
}

#[test]
fn the_workspace_of_a_backward_convolution_has_the_line_of_the_forward_pass() {
    let lines = |name: &str| {
        let mut script = Script::new(1000);
        let mut image = 0;
        script.phase("forward", |script| image = script.alloc(30, &[line(20)]));
        script.phase("backward", |script| {
            let workspace = script.alloc(60, &[]);
            script.set_owner(workspace, "workspaces", name);
            script.free(image);
            script.free(workspace);
        });
        let explanation = script.explain();
        let place = explanation.holders[0].backward_of.as_ref();
        place.map(|place| place.line)
    };
    assert_eq!(lines("cuDNN"), Some(20));
    assert_eq!(lines("cuBLAS"), None);
}

#[test]
fn tn208_temporaries_of_a_backward_pass_have_the_line_of_the_forward_pass() {
    let mut script = Script::new(1000);
    let (mut difference, mut distance) = (0, 0);
    script.phase("forward", |script| {
        difference = script.alloc(30, &[line(20)]);
        distance = script.alloc(10, &[line(21)]);
    });
    script.phase("backward", |script| {
        let first = script.alloc(10, &[]);
        script.free(distance);
        // The backward pass of line 20: it frees what that line saved when it is done.
        let temporaries: Vec<u64> = (0..3).map(|_| script.alloc(30, &[])).collect();
        script.free(difference);
        for block in temporaries.into_iter().chain([first]) {
            script.free(block);
        }
    });
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN208", Some(20), 90));
    let sentence = &explanation.findings[0].sentence;
    assert!(
        sentence.starts_with(
            "90.00 MiB is temporary memory of the backward pass of one line, /home/me/train.py:20"
        ),
        "{sentence}"
    );
    let holder = &explanation.holders[0];
    assert_eq!(
        holder.backward_of.as_ref().map(|place| place.line),
        Some(20)
    );
}

/// Six models one after another; `held` is the report of Python about the weights of all but the last.
fn models_one_after_another(held: Option<(&str, &str)>) -> Explanation {
    let mut script = Script::new(1000);
    let (mut old, mut weight) = (Vec::new(), 0);
    for _ in 0..6 {
        weight = script.alloc(40, &[line(6)]);
        script.set_owner(weight, "weights", "0.weight");
        let gradient = script.alloc(40, &[]);
        script.set_owner(gradient, "gradients", "0.weight");
        old.extend([weight, gradient]);
    }
    let last = old.split_off(10);
    if let Some((name, text)) = held {
        let mut answers: Vec<_> = old.iter().map(|&at| (at, name, text)).collect();
        answers.push((weight, "model", "module /home/me/train.py:6"));
        answers.push((last[1], "model", "grad /home/me/train.py:6"));
        script.census("peak", &answers);
    }
    script.explain()
}

#[test]
fn tn209_any_number_of_models_that_no_variable_names() {
    // Five of six models stay, with their gradients: 5 x 80.
    let explanation = models_one_after_another(Some(("", "nothing ")));
    assert_eq!(first(&explanation), ("TN209", Some(6), 400));
    let sentence = &explanation.findings[0].sentence;
    assert!(
        sentence.contains("of 5 earlier models") && sentence.contains("no variable refers to them"),
        "{sentence}"
    );
    assert_eq!(promised(&explanation, "TN209"), Some((480, 80)));
    let cycle = ("<cycle: a parameter and its .grad>", "other ");
    let explanation = models_one_after_another(Some(cycle));
    let sentence = &explanation.findings[0].sentence;
    assert!(
        sentence.contains("a reference cycle (a parameter and its .grad)"),
        "{sentence}"
    );
    // Models in a list are in use, and without an answer of Python they are layers.
    let listed = models_one_after_another(Some(("models", "list /home/me/train.py:7")));
    assert!(!codes(&listed).contains(&"TN209"), "{listed:?}");
    assert!(!codes(&models_one_after_another(None)).contains(&"TN209"));
}

#[test]
fn tn222_tensors_of_the_programs_own() {
    let run = |held: bool| {
        let mut script = Script::new(1000);
        let buffers = [script.alloc(200, &[line(8)]), script.alloc(200, &[line(9)])];
        train(&mut script, 4, |script, _| {
            let block = script.alloc(20, &[line(20)]);
            script.phase("backward", |script| script.free(block));
        });
        if held {
            let text = "attribute /home/me/train.py:8\t\tfloat32[50000, 4, 84, 84]";
            let names = ["buffer.obs", "buffer.next_obs"];
            let answers = buffers.iter().zip(names);
            let answers: Vec<_> = answers.map(|(&at, name)| (at, name, text)).collect();
            script.census("peak", &answers);
        }
        script.explain()
    };
    let explanation = run(true);
    assert_eq!(first(&explanation).0, "TN222");
    assert_eq!(first(&explanation).2, 400);
    assert_eq!(
        explanation.findings[0].sentence,
        "2 tensors made at /home/me/train.py:8 and /home/me/train.py:9 hold 400.00 MiB (`buffer.next_obs` and `buffer.obs`) for the whole \
         run, the largest float32[50000, 4, 84, 84]"
    );
    assert_eq!(first(&run(false)).0, "TN222");
}

#[test]
fn what_saves_most_is_proposed_first() {
    // A setting that saves cache comes after a change that saves more of the tensors, where the job fits anyway.
    let fix = |code, measure, outcome, saved: u64| Fix {
        code,
        advice: String::new(),
        paste: None,
        proof: Proof::Computed,
        shown: String::new(),
        measure,
        peak_before: 100,
        peak_after: 100 - saved,
        peak_after_least: 100 - saved,
        outcome,
        room: None,
        whole_job: true,
        changes_result: false,
        estimate: false,
    };
    let sorted = |ran_out: bool| {
        let outcome = if ran_out {
            FixOutcome::Fits
        } else {
            FixOutcome::Unknown
        };
        let mut fixes = [
            fix("TN102", Measure::Reserved, outcome, 20),
            fix("TN203", Measure::Allocated, FixOutcome::Unknown, 80),
            fix("TN101", Measure::Device, FixOutcome::Fits, 0),
        ];
        fixes.reverse();
        fixes.sort_by_key(|fix| order(fix, ran_out));
        fixes.map(|fix| fix.code)
    };
    assert_eq!(sorted(false), ["TN203", "TN102", "TN101"]);
    assert_eq!(sorted(true), ["TN102", "TN203", "TN101"]);
}

#[test]
fn layers_that_a_script_calls_are_repeated_blocks_of_one_pass() {
    // A variable keeps another result of the last layer, or none does.
    layers_of_one_pass(false);
    layers_of_one_pass(true);
}

fn layers_of_one_pass(keeps_another: bool) {
    // Three layers, each called by the script on the result of the one before: their paths have no numbers.
    let mut script = Script::new(1000);
    let mut blocks = Vec::new();
    let layer = |script: &mut Script, blocks: &mut Vec<u64>| {
        for name in ["up", "down"] {
            script.note(Kind::MarkStart, name, "module", 0);
            blocks.extend([7, 8].map(|number| script.alloc(10, &[line(number), line(20)])));
            script.note(Kind::MarkEnd, name, "module", 0);
        }
    };
    script.phase("forward", |script| layer(script, &mut blocks));
    for _ in 0..2 {
        layer(&mut script, &mut blocks);
        script.note(Kind::Mark, "Layer", "pass_end", 0);
    }
    if keeps_another {
        script.alloc(1, &[line(8), line(20)]);
    }
    script.phase("backward", |script| {
        for &block in blocks.iter().rev() {
            script.free(block);
        }
    });
    let track = &script.recording().tracks[0];
    assert_eq!(track.passes.len(), 1);
    assert!(track.pass_ends[0] > track.blocks[11].born);
    let explanation = script.explain();
    assert_eq!(first(&explanation).0, "TN213");
    let advice = advice_of(&explanation, "TN213");
    assert!(advice.starts_with("checkpoint each"), "{advice}");
}

impl Script {
    /// The row that comes next.
    fn row(&self) -> usize {
        self.trace.events.len()
    }

    /// Ends a block, or its record, with its last use and the first after the peak, by row.
    fn used(&mut self, kind: Kind, at: u64, last: usize, next: Option<usize>) {
        let before = |row: usize| u32::try_from(self.row() - row).expect("few rows");
        let uses = tonnage_recording::Uses {
            count: 1,
            first: 0,
            last: before(last),
            next: next.map_or(0, before),
        };
        self.push(Event {
            address: at * MIB,
            uses: Some(uses),
            ..Event::new(kind)
        });
    }
}

/// Captures of two graphs with outputs of these sizes, each in a private pool, or both in one.
fn captures(outputs: [u64; 2], pools: [u32; 2]) -> Explanation {
    let mut script = Script::bare(1000);
    script.segment(0, 20);
    script.alloc_at(0, 20, &[line(1)]);
    for (graph, at) in [(0, 100), (1, 200)] {
        let pool = Pool {
            first: pools[graph],
            second: 0,
        };
        let shared = pools[0] == pools[1];
        if graph == 0 || !shared {
            script.segment(at, 60);
            let stack = script.stack(&[line(5)]);
            let obtained = script.trace.events.last_mut().unwrap();
            (obtained.pool, obtained.stack) = (Some(pool), stack);
        }
        let at = if shared { 100 } else { at };
        for (size, is_output) in [(60, false), (outputs[graph], true)] {
            script.alloc_at(at, size, &[line(6)]);
            script.trace.events.last_mut().unwrap().pool = Some(pool);
            if shared || !is_output {
                script.free(at);
            }
        }
    }
    script.explain()
}

#[test]
fn tn225_graphs_that_could_share_a_pool() {
    let explanation = captures([5, 5], [1, 2]);
    let finding = explanation
        .findings
        .iter()
        .find(|finding| finding.code.code == "TN225");
    let finding = finding.expect("a finding");
    assert_eq!(finding.bytes, 120 * MIB);
    assert_eq!(finding.place.as_ref().map(|place| place.line), Some(5));
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN225");
    let fix = fix.expect("a proposal");
    // The second capture runs beside the output of the first, which stays: 5 + 60.
    assert_eq!(
        (fix.peak_before / MIB, fix.peak_after / MIB),
        (140, 20 + 65)
    );
    // One pool is shared, or its whole memory is in results that stay.
    assert!(!codes(&captures([5, 5], [1, 1])).contains(&"TN225"));
    assert!(!codes(&captures([60, 60], [1, 2])).contains(&"TN225"));
    // The program made these pools itself.
    assert!(!codes(&captures([5, 5], [0, 0])).contains(&"TN225"));
}

/// Three rounds in which `logits` is not used after the forward pass and stays until the next one. The peak is the
/// backward pass of the first.
fn rounds(is_told: bool, name: &str) -> Script {
    let mut script = Script::new(1000);
    if is_told {
        script.trace.meta.push(tonnage_recording::Meta {
            process: 0,
            name: facts::USES.to_owned(),
            text: facts::ALL_USES.to_owned(),
        });
    }
    let weights = script.alloc(10, &[line(1)]);
    script.set_owner(weights, "weights", "w");
    let mut old = None;
    let (mut first_peak, mut second_pass, mut last) = (0, 0, 0);
    for round in 0..3 {
        let (mut kept, mut logits) = (0, 0);
        script.phase("forward", |script| {
            kept = script.alloc(20, &[line(3)]);
            if round == 1 {
                second_pass = script.row() - 1;
            }
            logits = script.alloc(30, &[line(4)]);
            if let Some((logits, used)) = old {
                script.used(Kind::FreeRequested, logits, used, None);
            }
        });
        old = Some((logits, script.row() - 2));
        script.phase("backward", |script| {
            let row = script.row();
            first_peak = if round == 0 { row } else { first_peak };
            let next = (round == 0).then_some(row);
            let temporary = script.alloc(40, &[]);
            script.census("peak", &[(logits, name, "variable /home/me/train.py:4")]);
            script.used(Kind::FreeRequested, temporary, row, next);
            let next = next.map(|_| script.row() - 1);
            script.used(Kind::FreeRequested, kept, script.row() - 1, next);
        });
        script.phase("step", |script| script.note(Kind::Mark, "Adam", "step", 0));
        last = script.row() - 1;
    }
    let (logits, used) = old.expect("rounds");
    script.used(Kind::Used, logits, used, None);
    script.used(Kind::Used, weights, last, Some(second_pass));
    assert!(first_peak > 0);
    script
}

/// A line that makes `parts` tensors, each one part larger, and frees the one before, which the new one is made of.
fn copies(script: &mut Script, parts: u64, are_read: bool) {
    let mut old = None;
    for part in 1..=parts {
        let new = script.alloc(part * 10, &[line(2)]);
        if let Some(old) = old.replace(new) {
            let read = script.row() - if are_read { 1 } else { 2 };
            script.used(Kind::FreeRequested, old, read, None);
        }
    }
}

#[test]
fn tn224_a_tensor_is_copied_each_time_it_grows() {
    let mut script = Script::new(1000);
    script.alloc(20, &[line(1)]);
    copies(&mut script, 4, true);
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN224", Some(2), 30));
    // 20 beside 30 and 40, and beside 40 alone.
    assert_eq!(promised(&explanation, "TN224"), Some((90, 60)));
}

#[test]
fn tn224_the_next_copy_does_not_fit() {
    let mut script = Script::new(100);
    script.alloc(20, &[line(1)]);
    copies(&mut script, 4, true);
    script.oom(50, &[line(2)]);
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN224", Some(2), 40));
    let fix = explanation.fixes.iter().find(|fix| fix.code == "TN224");
    let fix = fix.expect("a proposal");
    assert_eq!((fix.peak_before / MIB, fix.peak_after / MIB), (110, 70));
    // The recording does not show how large it would have become.
    assert_eq!(fix.outcome, FixOutcome::Unknown);
}

#[test]
fn tn224_an_old_copy_that_is_gone_at_the_peak_is_not_a_cause() {
    let mut script = Script::new(1000);
    copies(&mut script, 4, true);
    // The last copy, 40, is still alive; the one before it is not.
    script.alloc(100, &[line(3)]);
    let explanation = script.explain();
    assert_eq!(explanation.on_device.allocated, 140 * MIB);
    assert!(!codes(&explanation).contains(&"TN224"), "{explanation:?}");
}

#[test]
fn a_list_of_larger_and_larger_tensors_is_not_a_copy() {
    let mut script = Script::new(1000);
    for part in 1..=4 {
        script.alloc(part * 10, &[line(2)]);
    }
    assert!(!codes(&script.explain()).contains(&"TN224"));
    // Two tensors of a line do not prove growth.
    let mut script = Script::new(1000);
    copies(&mut script, 2, true);
    assert!(!codes(&script.explain()).contains(&"TN224"));
    // A buffer that is replaced by a larger one is not copied.
    let mut script = Script::new(1000);
    copies(&mut script, 4, false);
    assert!(!codes(&script.explain()).contains(&"TN224"));
}

#[test]
fn tn223_what_a_variable_keeps_is_never_used_again() {
    let explanation = rounds(true, "logits (main)").explain();
    let uses = explanation.next_uses.as_ref().expect("uses are recorded");
    let sums: Vec<_> = (uses.sums.iter())
        .map(|part| (part.next_use, part.bytes / MIB, part.blocks))
        .collect();
    let expected = [
        (NextUse::Now, 40, 1),
        (NextUse::ThisStep, 20, 1),
        (NextUse::LaterStep, 10, 1),
        (NextUse::Never, 30, 1),
    ];
    assert_eq!(sums, expected);
    assert_eq!((uses.bytes / MIB, uses.ideal_peak / MIB), (100, 70));
    // Charts have the same memory at that moment.
    let script = rounds(true, "logits (main)");
    let blocks = &script.recording().tracks[0].blocks;
    let is_unused =
        |one: &&UnusedBlock| one.from <= uses.row && blocks[one.block as usize].alive_at(uses.row);
    let unused = uses.unused.iter().filter(is_unused);
    let unused = unused.map(|one| blocks[one.block as usize].bytes);
    assert_eq!((unused.sum::<u64>() / MIB, uses.whole), (30, false));
    for one in &uses.unused {
        let block = blocks[one.block as usize];
        let last = block.uses.and_then(|known| known.last);
        assert!(one.from < block.died && last.is_none_or(|last| last < one.from));
    }
    let never = uses
        .parts
        .iter()
        .find(|part| part.next_use == NextUse::Never);
    let never = never.expect("a part");
    assert_eq!(never.place.as_ref().map(|place| place.line), Some(4));
    assert_eq!(first(&explanation), ("TN223", Some(4), 30));
    assert_eq!(promised(&explanation, "TN223"), Some((100, 70)));
    // A block without a name may have no line to change.
    assert!(!codes(&rounds(true, "").explain()).contains(&"TN223"));
    // Without a record of all uses there is no account.
    let untold = rounds(false, "logits (main)").explain();
    assert_eq!(untold.next_uses, None);
    assert!(!codes(&untold).contains(&"TN223"));
}

#[test]
fn tn223_a_block_that_the_backward_pass_frees_is_not_kept_by_a_variable() {
    let mut script = Script::new(1000);
    script.trace.meta.push(tonnage_recording::Meta {
        process: 0,
        name: facts::USES.to_owned(),
        text: facts::ALL_USES.to_owned(),
    });
    for _ in 0..3 {
        let mut difference = 0;
        script.phase("forward", |script| {
            difference = script.alloc(30, &[line(4)]);
            // Its function is still running when Python records the holders, and returns before the backward pass.
            let holder = (
                difference,
                "difference (pairs)",
                "variable /home/me/train.py:4",
            );
            script.census("peak", &[holder]);
        });
        script.phase("backward", |script| {
            let used = script.row();
            let temporary = script.alloc(40, &[]);
            script.used(Kind::FreeRequested, temporary, used, None);
            script.used(Kind::FreeRequested, difference, used - 1, None);
        });
        script.phase("step", |script| script.note(Kind::Mark, "Adam", "step", 0));
    }
    let explanation = script.explain();
    assert_eq!(explanation.on_device.allocated, 70 * MIB);
    assert!(!codes(&explanation).contains(&"TN223"), "{explanation:?}");
    let held: Vec<_> = (explanation.holders.iter())
        .filter_map(|holder| holder.held_by.as_ref())
        .map(|held| (held.sort, held.name.as_str()))
        .collect();
    assert_eq!(held, [(Sort::Graph, "difference")]);
}

#[test]
fn tn223_a_model_of_an_earlier_trial_is_not_used_again() {
    let explain = |ending: &str, later: usize| {
        let mut script = Script::new(1000);
        for (process, name, text) in [
            (0, facts::USES, facts::ALL_USES),
            (facts::RUN, facts::ENDING, ending),
        ] {
            script.trace.meta.push(tonnage_recording::Meta {
                process,
                name: name.to_owned(),
                text: text.to_owned(),
            });
        }
        let mut last_uses = Vec::new();
        let mut holders = Vec::new();
        for (model, steps) in [(0, 3), (1, later)] {
            let weights = script.alloc(100, &[line(2)]);
            script.set_owner(weights, "weights", "w");
            holders.push((weights, "results", "dict /home/me/train.py:9"));
            for _ in 0..steps {
                script.phase("forward", |script| {
                    let hidden = script.alloc(10 + model, &[line(3)]);
                    script.free(hidden);
                });
                script.phase("step", |script| script.note(Kind::Mark, "Adam", "step", 0));
            }
            last_uses.push((weights, script.row() - 3));
        }
        script.census("end", &holders);
        for (weights, last) in last_uses {
            let row = script.row();
            script.used(Kind::Used, weights, last, None);
            let uses = script.trace.events[row].uses.as_mut().expect("uses");
            uses.count = 6;
        }
        script.explain()
    };
    let explanation = explain("exit 0", 3);
    assert_eq!(first(&explanation).0, "TN223");
    assert_eq!(explanation.findings[0].bytes, 100 * MIB);
    // Two rounds later, the job may still use it in every third.
    assert!(!codes(&explain("exit 0", 2)).contains(&"TN223"));
    // The job did not come to its own end.
    assert!(!codes(&explain("signal 15", 3)).contains(&"TN223"));
}

#[test]
fn tn223_the_model_of_the_trial_before_goes_with_the_others_and_gradients_with_their_weights() {
    let mut script = Script::new(2000);
    for (process, name, text) in [
        (0, facts::USES, facts::ALL_USES),
        (facts::RUN, facts::ENDING, "exit 0"),
    ] {
        script.trace.meta.push(tonnage_recording::Meta {
            process,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }
    let mut last_uses = Vec::new();
    let mut holders = Vec::new();
    for trial in 0..4 {
        let weights = script.alloc(100, &[line(2)]);
        script.set_owner(weights, "weights", "w");
        let gradient = script.alloc(100, &[]);
        script.set_owner(gradient, "gradients", "w.grad");
        // The variable has another model by now, and no census saw that.
        let (name, text) = if trial == 2 {
            ("trial.model (main)", "module /home/me/train.py:5")
        } else {
            ("results (main)", "module /home/me/train.py:9")
        };
        holders.push((weights, name, text));
        for step in 0..3 {
            script.phase("forward", |script| {
                let hidden = script.alloc(10, &[line(3)]);
                script.free(hidden);
            });
            script.phase("step", |script| script.note(Kind::Mark, "Adam", "step", 0));
            if trial == 2 && step == 0 {
                script.census("peak", &holders);
            }
        }
        last_uses.extend([weights, gradient].map(|block| (block, script.row() - 3)));
    }
    for (block, last) in last_uses {
        let row = script.row();
        script.used(Kind::Used, block, last, None);
        let uses = script.trace.events[row].uses.as_mut().expect("uses");
        uses.count = 6;
    }
    let explanation = script.explain();
    assert_eq!(first(&explanation), ("TN223", Some(9), 600));
}

#[test]
fn tn222_float64_is_named_with_its_price() {
    let mut script = Script::new(1000);
    let table = script.alloc(100, &[line(2)]);
    for _ in 0..3 {
        script.phase("forward", |script| {
            let hidden = script.alloc(10, &[line(3)]);
            script.free(hidden);
        });
    }
    let shape = "variable /home/me/train.py:2\t-\tfloat64[100, 131072]";
    script.census("peak", &[(table, "x", shape)]);
    let explanation = script.explain();
    assert_eq!(first(&explanation).0, "TN222");
    let sentence = &explanation.findings[0].sentence;
    assert!(
        sentence.ends_with("float64[100, 131072], twice the size of float32"),
        "{sentence}"
    );
    assert!(advice_of(&explanation, "TN222").contains("float32"));
    assert_eq!(promised(&explanation, "TN222"), Some((110, 60)));
}

#[test]
fn at_the_end_of_a_recording_nothing_proves_that_memory_is_unused() {
    // One round: the job may have used the table and the weights in a second one.
    let mut script = Script::new(1000);
    for (process, name, text) in [
        (0, facts::USES, facts::ALL_USES),
        (facts::RUN, facts::ENDING, "exit 0"),
    ] {
        script.trace.meta.push(tonnage_recording::Meta {
            process,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }
    let weights = script.alloc(10, &[line(1)]);
    script.set_owner(weights, "weights", "w");
    let table = script.alloc(50, &[line(2)]);
    let mut last = 0;
    script.phase("forward", |script| {
        last = script.row() - 1;
        let output = script.alloc(40, &[line(3)]);
        script.census(
            "peak",
            &[(table, "table (main)", "variable /home/me/train.py:2")],
        );
        let row = script.row() - 3;
        script.used(Kind::FreeRequested, output, row, Some(row));
    });
    script.phase("step", |script| script.note(Kind::Mark, "Adam", "step", 0));
    script.used(Kind::FreeRequested, table, last, None);
    script.used(Kind::Used, weights, last, None);
    let explanation = script.explain();
    let uses = explanation.next_uses.as_ref().expect("uses are recorded");
    let sums: Vec<_> = (uses.sums.iter())
        .map(|part| (part.next_use, part.bytes / MIB))
        .collect();
    assert_eq!(sums, [(NextUse::Now, 40), (NextUse::NotSeen, 60)]);
    // The output is freed after its last use; the weights and the table are not.
    let unused: Vec<u32> = uses.unused.iter().map(|one| one.block).collect();
    assert_eq!(unused, [2]);
    assert!(!codes(&explanation).contains(&"TN223"));
}
