// SPDX-License-Identifier: MIT OR Apache-2.0
//! A training that never ran, as long as requested: as a page or as a recording.
//!
//! `synthetic page EVENTS FILE.html`, `synthetic comparison EVENTS FILE.html` and `synthetic recording EVENTS
//! FILE.tonnage`. For measuring how long reports take and how the page behaves with millions of events; the same
//! arguments give the same file. The model is a transformer:
//! weights first, then steps of forward, backward and optimizer whose activations vary with the length of samples, an
//! evaluation now and then, and one long sample that makes the peak.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a tool for tests")]

use std::collections::HashMap;
use std::time::Instant;

use tonnage_analysis::explain::UnusedBlock;
use tonnage_analysis::holdings::{
    Category, HeldBy, Holding, Known, Phase, PhaseSpan, SegmentSpan, Sort,
};
use tonnage_analysis::plan::{Arena, Packing, PlacedBlock};
use tonnage_plan::{Buffer, Problem, Status};
use tonnage_recording::{Event, Kind, StackId, StackTable, TextId, Writer, meta};
use tonnage_report::{
    AllocatorRun, Answer, Comparison, Difference, Differences, Fact, Figure, Finding, Moment,
    MomentKind, Options, Pane, Picture, Planned, Proposal, Rank, Ranks, Refused, Story, Subject,
    Tone, Words, write,
};

const MIB: u64 = 1 << 20;
const LAYERS: u32 = 32;

struct Training {
    stacks: StackTable,
    blocks: Vec<Holding>,
    segments: Vec<SegmentSpan>,
    phases: Vec<PhaseSpan>,
    row: u32,
    step: u32,
    phase: Phase,
    /// Addresses of free blocks, by size.
    free: HashMap<u64, Vec<u64>>,
    /// Room left in the newest segment.
    next: u64,
    end: u64,
    random: u32,
}

impl Training {
    fn random(&mut self, below: u32) -> u32 {
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.random >> 8) % below
    }

    fn text(&mut self, text: &str) -> TextId {
        self.stacks.intern(text)
    }

    fn stack(&mut self, places: &[(&str, &str, u64)]) -> StackId {
        let frames: Vec<_> = places
            .iter()
            .map(|(function, file, line)| {
                let (function, file) = (self.stacks.intern(function), self.stacks.intern(file));
                self.stacks.frame(function, file, *line)
            })
            .collect();
        self.stacks.push_stack(&frames).unwrap()
    }

    fn address(&mut self, bytes: u64) -> u64 {
        if let Some(address) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return address;
        }
        if self.next + bytes > self.end {
            let size = bytes.next_multiple_of(2 * MIB).max(512 * MIB);
            self.next = self.end.next_multiple_of(32 * MIB) + 64 * MIB;
            self.end = self.next + size;
            self.segments.push(SegmentSpan {
                born: self.row,
                died: Holding::ALIVE,
                address: self.next,
                bytes: size,
                stream: 0,
                pool: None,
                stack: None,
            });
            self.row += 1;
        }
        let address = self.next;
        self.next += bytes;
        address
    }

    fn alloc(&mut self, bytes: u64, category: Category, stack: StackId) -> usize {
        let bytes = bytes.next_multiple_of(512);
        let address = self.address(bytes);
        self.blocks.push(Holding {
            requested: bytes - 12,
            stack: Some(stack),
            step: self.step,
            category,
            known: if category < Category::Activations {
                Known::Exact
            } else {
                Known::Inferred
            },
            phase: self.phase,
            ..Holding::new(self.row, Holding::ALIVE, address, bytes)
        });
        self.row += 1;
        self.blocks.len() - 1
    }

    fn give_back(&mut self, block: usize) {
        let Holding { address, bytes, .. } = self.blocks[block];
        self.blocks[block].died = self.row;
        self.free.entry(bytes).or_default().push(address);
        self.row += 1;
    }

    fn enter(&mut self, phase: Phase) {
        if let Some(last) = self.phases.last_mut() {
            last.to = self.row;
        }
        self.phase = phase;
        self.phases.push(PhaseSpan {
            phase,
            from: self.row,
            to: u32::MAX,
            step: self.step,
        });
    }
}

const TORCH: &str = "/home/alice/venv/lib/python3.12/site-packages/torch";
const MODEL: &str = "/home/alice/project/llm/model.py";
const SCRIPT: &str = "/home/alice/project/train.py";
const PARTS: [(&str, u64, u64); 7] = [
    ("self_attn.q_proj", 32, 61),
    ("self_attn.k_proj", 8, 62),
    ("self_attn.v_proj", 8, 63),
    ("self_attn.o_proj", 32, 70),
    ("mlp.gate_proj", 112, 81),
    ("mlp.up_proj", 112, 82),
    ("mlp.down_proj", 112, 84),
];

fn train(events: u32) -> Training {
    let mut run = Training {
        stacks: StackTable::new(),
        blocks: Vec::new(),
        segments: Vec::new(),
        phases: Vec::new(),
        row: 0,
        step: 0,
        phase: Phase::Load,
        free: HashMap::new(),
        next: 0x7f00_0000_0000,
        end: 0x7f00_0000_0000,
        random: 1,
    };
    let nn = format!("{TORCH}/nn/modules/linear.py");
    let functional = format!("{TORCH}/nn/functional.py");
    let adam = format!("{TORCH}/optim/adamw.py");
    let autograd = format!("{TORCH}/autograd/graph.py");
    run.enter(Phase::Load);
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        for (part, mib, _) in PARTS {
            let stack = run.stack(&[
                ("__init__", &nn, 106),
                ("__init__", MODEL, 31),
                ("main", SCRIPT, 12),
            ]);
            let block = run.alloc(mib * MIB / 4, Category::Weights, stack);
            let module = run.text(&format!("model.layers.{layer}.{part}"));
            let name = run.text(&format!("model.layers.{layer}.{part}.weight"));
            let shape = run.text(&format!("bfloat16[{}, 4096]", mib * 32));
            run.blocks[block].module = Some(module);
            run.blocks[block].name = Some(name);
            run.blocks[block].shape = Some(shape);
            weights.push((block, mib * MIB / 4, module, name, shape));
        }
    }
    let mut grads: Vec<usize> = Vec::new();
    let mut has_state = false;
    let modules: Vec<Vec<TextId>> = (0..LAYERS)
        .map(|layer| {
            PARTS
                .iter()
                .map(|(part, ..)| run.text(&format!("model.layers.{layer}.{part}")))
                .collect()
        })
        .collect();
    let forward: Vec<StackId> = PARTS
        .iter()
        .map(|(_, _, line)| {
            run.stack(&[
                ("forward", &nn, 134),
                ("forward", MODEL, *line),
                ("forward", MODEL, 120),
                ("train_step", SCRIPT, 40),
                ("main", SCRIPT, 77),
            ])
        })
        .collect();
    let softmax = run.stack(&[
        ("softmax", &functional, 2140),
        ("forward", MODEL, 66),
        ("train_step", SCRIPT, 40),
        ("main", SCRIPT, 77),
    ]);
    let backward = run.stack(&[
        ("_engine_run_backward", &autograd, 824),
        ("train_step", SCRIPT, 44),
        ("main", SCRIPT, 77),
    ]);
    let state = run.stack(&[
        ("_init_group", &adam, 152),
        ("step", &adam, 244),
        ("train_step", SCRIPT, 46),
        ("main", SCRIPT, 77),
    ]);
    let logits = run.stack(&[
        ("cross_entropy", &functional, 3479),
        ("loss", MODEL, 140),
        ("train_step", SCRIPT, 41),
        ("main", SCRIPT, 77),
    ]);
    let long_step = events / 2 / 6000;
    while run.row < events {
        let eval = run.step % 40 == 39;
        let lengths = [512, 768, 1024, 1536];
        let length = if run.step == long_step.max(1) {
            2304
        } else {
            lengths[run.random(4) as usize]
        };
        run.enter(if eval { Phase::Eval } else { Phase::Forward });
        let mut kept: Vec<Vec<usize>> = Vec::new();
        for of_modules in &modules {
            let mut of_layer = Vec::new();
            for (part, &(_, mib, _)) in PARTS.iter().enumerate() {
                let bytes = mib * 1024 * length / 4;
                let block = run.alloc(bytes, Category::Activations, forward[part]);
                run.blocks[block].module = Some(of_modules[part]);
                // Scratch that dies at once.
                for _ in 0..2 {
                    let size = u64::from(run.random(64) + 1) * 16 * 1024;
                    let scratch = run.alloc(size, Category::Temporaries, softmax);
                    run.blocks[scratch].module = Some(of_modules[part]);
                    run.give_back(scratch);
                }
                if eval {
                    run.give_back(block);
                } else {
                    of_layer.push(block);
                }
            }
            kept.push(of_layer);
        }
        let spike = run.alloc(length * 128_256 / 2, Category::Activations, logits);
        let shape = run.text(&format!("float32[{length}, 128256]"));
        run.blocks[spike].shape = Some(shape);
        if eval {
            run.give_back(spike);
            run.step += 1;
            continue;
        }
        run.enter(Phase::Backward);
        let spike_grad = run.alloc(length * 128_256 / 2, Category::Temporaries, backward);
        run.give_back(spike);
        run.give_back(spike_grad);
        let fresh = grads.is_empty();
        for (layer, of_layer) in kept.into_iter().enumerate().rev() {
            for (part, block) in of_layer.into_iter().enumerate().rev() {
                let (_, bytes, module, name, shape) = weights[layer * PARTS.len() + part];
                let scratch = run.alloc(bytes / 4, Category::Temporaries, backward);
                if fresh {
                    let grad = run.alloc(bytes, Category::Gradients, backward);
                    run.blocks[grad].module = Some(module);
                    run.blocks[grad].name = Some(name);
                    run.blocks[grad].shape = Some(shape);
                    grads.push(grad);
                }
                run.give_back(scratch);
                run.give_back(block);
            }
        }
        run.enter(Phase::Step);
        if !has_state {
            has_state = true;
            for (_, bytes, module, name, shape) in weights.clone() {
                for _ in 0..2 {
                    let block = run.alloc(bytes, Category::OptimizerState, state);
                    run.blocks[block].module = Some(module);
                    run.blocks[block].name = Some(name);
                    run.blocks[block].shape = Some(shape);
                }
            }
        }
        for (_, bytes, module, ..) in weights.clone() {
            let scratch = run.alloc(bytes, Category::Temporaries, state);
            run.blocks[scratch].module = Some(module);
            run.give_back(scratch);
        }
        if run.step % 2 == 1 {
            for grad in std::mem::take(&mut grads) {
                run.give_back(grad);
            }
        }
        run.step += 1;
    }
    if let Some(last) = run.phases.last_mut() {
        last.to = run.row;
    }
    run
}

fn write_recording(run: &Training, file: &str) {
    let destination = std::io::BufWriter::new(std::fs::File::create(file).unwrap());
    let mut writer = Writer::with_stacks(destination, "tonnage 0.1.0", run.stacks.clone()).unwrap();
    for (name, text) in [
        (meta::COMMAND, "python /home/alice/project/train.py"),
        ("run.ending", "exit 0"),
        (meta::TORCH_VERSION, "2.15.0"),
        (meta::GPU_NAME, "NVIDIA H100 80GB HBM3"),
        ("gpu.id", "h100-80gb"),
        (meta::GPU_CAPACITY, "85017493504"),
        ("gpu.capacity.known", "read"),
        (meta::GPU_CONTEXT, "545259520"),
        ("gpu.context.known", "read"),
    ] {
        writer.meta(0, name, text).unwrap();
    }
    let mut rows: Vec<(u32, Event)> = Vec::new();
    for block in &run.blocks {
        let event = Event {
            address: block.address,
            size: block.bytes,
            requested: block.requested,
            stack: block.stack,
            ..Event::new(Kind::Alloc)
        };
        rows.push((block.born, event));
        if block.died != Holding::ALIVE {
            rows.push((
                block.died,
                Event {
                    kind: Kind::FreeRequested,
                    ..event
                },
            ));
            rows.push((
                block.died,
                Event {
                    kind: Kind::FreeCompleted,
                    ..event
                },
            ));
        }
    }
    for segment in &run.segments {
        rows.push((
            segment.born,
            Event {
                address: segment.address,
                size: segment.bytes,
                ..Event::new(Kind::SegmentAlloc)
            },
        ));
    }
    rows.sort_by_key(|(row, _)| *row);
    for (row, (_, event)) in (0_i64..).zip(&rows) {
        let timed = Event {
            time: Some(1_700_000_000_000_000_000 + row * 900),
            ..*event
        };
        writer.event(&timed).unwrap();
    }
    writer.finish().unwrap();
}

/// The plan of all blocks, in one pool.
fn pack(run: &Training) -> Packing {
    let mut problem = Problem::new();
    let until = |block: &Holding| block.died.min(run.row).max(block.born + 1);
    for block in &run.blocks {
        let life = i64::from(block.born)..i64::from(until(block));
        problem.add(Buffer::new(block.bytes, life).aligned(512));
    }
    let options = tonnage_plan::Options {
        attempts: 24,
        threads: 1,
        ..tonnage_plan::Options::default()
    };
    let plan = tonnage_plan::plan(&problem, &options).unwrap();
    let places = (0_u32..).zip(&run.blocks).zip(&plan.offsets);
    Packing {
        arenas: vec![Arena {
            pool: None,
            base: 0,
            peak: plan.peak(),
            lower_bound: plan.lower_bound(),
            proved: plan.status == Status::Optimal,
            buffers: run.blocks.len(),
            streams: 1,
        }],
        places: places
            .map(|((number, block), offset)| PlacedBlock {
                block: Some(number),
                from: block.born,
                until: until(block),
                address: *offset,
                bytes: block.bytes,
            })
            .collect(),
    }
}

fn allocator_runs(run: &Training) -> Vec<AllocatorRun> {
    let with = |allocator: &str, reserved: u64, recorded: bool, exact: bool| AllocatorRun {
        allocator: allocator.to_owned(),
        recorded,
        exact,
        completes: reserved < 79 << 30,
        outcome: if reserved < 79 << 30 {
            "completes".to_owned()
        } else {
            "out of memory at request 1,204".to_owned()
        },
        peak_reserved: reserved,
        peak_allocated: 58 << 30,
        cached_at_peak: reserved - (58 << 30),
        smallest: Some(reserved + (1 << 30)),
        calls: 143,
        retries: 2,
        series: (0..200)
            .map(|n| (n * (run.row / 200), reserved * u64::from(n.min(50)) / 50))
            .collect(),
    };
    vec![
        with("torch", 61 << 30, true, true),
        with("torch:expandable_segments:True", 59 << 30, false, true),
        with("cuda-malloc-async", 60 << 30, false, false),
        with("bfc", 81 << 30, false, false),
    ]
}

fn words(run: &Training, packing: &Packing) -> Words {
    Words {
        name: "rank 0, GPU 0".to_owned(),
        allocators: allocator_runs(run),
        plan: Some(Planned {
            sentence: "proved: no plan has a lower peak".to_owned(),
            done: true,
            proved: packing.is_proved(),
            peak: packing.peak(),
            lower_bound: packing.lower_bound(),
            buffers: packing.places.len() as u64,
            reserved: Some(61 << 30),
            pools: vec![String::new()],
        }),
        unknown: vec!["the stacks of 3 allocations and frees".to_owned()],
    }
}

fn fact(name: &str, text: &str) -> Fact {
    Fact {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

fn answer() -> Answer {
    let figure = |name: &str, gib: u64, bad: bool| Figure {
        name: name.to_owned(),
        bytes: gib << 30,
        bad,
    };
    Answer {
        headline: "out of memory: memory is fragmented (TN102): 3.10 GiB is free in 41 gaps"
            .to_owned(),
        figures: vec![
            figure("needs", 84, false),
            figure("the GPU has", 79, false),
            figure("short by", 5, true),
        ],
        lines: vec![
            fact("needs", "84.00 GiB as its blocks are placed"),
            fact("", "fits on h200, b200"),
            fact("headroom", "none"),
            fact(
                "overhead",
                "50.00 MiB to 350.00 MiB for kernel images, not counted",
            ),
            fact("on device", "61.32 GiB allocated"),
            fact("when", "step 833, forward pass at model.py:140"),
        ],
        fixes: vec![
            Proposal {
                advice: "turn on expandable segments".to_owned(),
                paste: Some("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned()),
                proof: "every request is served [replayed]; the whole job then fits".to_owned(),
            },
            Proposal {
                advice: "a name that means harm: `<img src=x onerror=alert(2)>`, and an unpaired `"
                    .to_owned(),
                paste: Some("</script><img src=x onerror=alert(3)>".to_owned()),
                proof: "none".to_owned(),
            },
        ],
    }
}

/// The largest blocks of a category at a row.
fn largest(run: &Training, row: u32, category: Category, most: usize) -> Vec<u32> {
    let mut blocks: Vec<u32> = (0_u32..)
        .zip(&run.blocks)
        .filter(|(_, block)| block.alive_at(row) && block.category == category)
        .map(|(index, _)| index)
        .collect();
    blocks.sort_by_key(|&index| std::cmp::Reverse(run.blocks[index as usize].bytes));
    blocks.truncate(most);
    blocks
}

fn story(run: &Training, peak: u32) -> Story {
    Story {
        title: "train.py".to_owned(),
        verdict: "Fits: 61.32 GiB of 79.18 GiB at most, in backward of step 833.".to_owned(),
        tone: Tone::Bad,
        answer: Some(answer()),
        facts: vec![
            fact("command", "python /home/alice/project/train.py --steps 1000"),
            fact("recording", "/home/alice/project/train.tonnage"),
            fact("device", "NVIDIA H100 80GB HBM3, 79.18 GiB"),
            fact("allocator", "PyTorch 2.15.0, defaults"),
            fact("tensor named <b>&amp;", "</script><script>throw 1</script>"),
        ],
        findings: vec![
            Finding {
                code: "TN102".to_owned(),
                title: "memory is fragmented".to_owned(),
                text: "3.10 GiB is free in 41 gaps; 12 blocks of `state` keep them from being given back"
                    .to_owned(),
                pane: 0,
                blocks: largest(run, peak, Category::OptimizerState, 12),
                pins: true,
            },
            Finding {
                code: "TN202".to_owned(),
                title: "one long sample makes the peak".to_owned(),
                text: "step 833 has 2304 tokens where others have 1536 at most; without it the peak is 12.40 GiB lower"
                    .to_owned(),
                pane: 0,
                blocks: largest(run, peak, Category::Activations, 40),
                pins: false,
            },
        ],
        ranks: Some(ranks()),
        comparison: None,
        producer: concat!("tonnage ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

/// Four ranks of eight, the last of which takes more and is not shown.
fn ranks() -> Ranks {
    let rank = |rank: u32, used: u64, allocated: u64, pane: Option<usize>| Rank {
        rank,
        used: used << 30,
        allocated: allocated << 30,
        capacity: Some(79 << 30),
        pane,
    };
    Ranks {
        world_size: 8,
        run: vec![
            rank(0, 64, 61, Some(0)),
            rank(1, 64, 61, Some(1)),
            rank(2, 64, 61, None),
            rank(7, 78, 70, None),
        ],
        lines: vec![
            fact("rank 7", "78.00 GiB used at most, 70.00 GiB allocated"),
            fact("ranks 0–2", "64.00 GiB used at most, 61.00 GiB allocated"),
        ],
    }
}

/// The words of a page that compares.
fn compared() -> Story {
    let row = |what: &str, before: u64, after: u64| Difference {
        what: what.to_owned(),
        before: before << 20,
        after: after << 20,
    };
    let group = |title: &str, rows: Vec<Difference>| Differences {
        title: title.to_owned(),
        rows,
    };
    Story {
        title: "before.tonnage → after.tonnage".to_owned(),
        verdict: "The peak is 10.00 GiB lower.".to_owned(),
        facts: vec![fact(
            "ended",
            "the commands differ: `python before.py` and `python after.py`",
        )],
        ranks: None,
        comparison: Some(Comparison {
            groups: vec![
                group(
                    "totals",
                    vec![
                        row("peak of blocks", 61_000, 51_000),
                        row("<img src=x onerror=alert(4)>", 61_000, 61_000),
                    ],
                ),
                group(
                    "by category, at the peak",
                    vec![row("activations", 20_000, 9_000)],
                ),
            ],
        }),
        producer: concat!("tonnage ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Story::default()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, what, events, file] = arguments.as_slice() else {
        eprintln!("usage: synthetic page|comparison|recording EVENTS FILE");
        return;
    };
    let mut run = train(events.parse().unwrap());
    eprintln!(
        "{} rows, {} blocks, {} segments, {} steps",
        run.row,
        run.blocks.len(),
        run.segments.len(),
        run.step
    );
    if what == "recording" {
        write_recording(&run, file);
        return;
    }
    // A name that tries to break out of the page.
    let hostile = run.text("</script><img src=x onerror=alert(1)>");
    run.blocks[0].name = Some(hostile);
    let mark = [Moment {
        row: run.row / 3,
        kind: MomentKind::Mark,
        label: "checkpoint".to_owned(),
        refused: None,
    }];
    let started = Instant::now();
    let packing = pack(&run);
    eprintln!(
        "planned in {:.2} s: peak {}, bound {}",
        started.elapsed().as_secs_f64(),
        packing.peak(),
        packing.lower_bound()
    );
    let started = Instant::now();
    let held = HeldBy {
        sort: Sort::Optimizer,
        name: "state<img src=x onerror=alert(5)>".to_owned(),
        function: None,
        place: None,
        exception: None,
        unsaved: false,
        operation: None,
        shape: None,
        hooks: None,
        in_library: false,
    };
    let holders: HashMap<u32, HeldBy> = (0_u32..)
        .zip(&run.blocks)
        .filter(|(_, block)| block.category == Category::OptimizerState)
        .map(|(index, _)| (index, held.clone()))
        .collect();
    // Memory that a holder keeps from a quarter of the job on.
    let from = run.row / 4;
    let mut unused: Vec<UnusedBlock> = largest(&run, from, Category::OptimizerState, 600)
        .into_iter()
        .map(|block| UnusedBlock { block, from })
        .collect();
    unused.sort_unstable_by_key(|one| one.block);
    let subject = Subject {
        blocks: &run.blocks,
        segments: &run.segments,
        phases: &run.phases,
        stacks: &run.stacks,
        rows: run.row,
        capacity: Some(85_017_493_504),
        context: 545_259_520,
        times: &[],
        moments: &mark,
        packing: Some(&packing),
        failure: None,
        holders: Some(&holders),
        unused: &unused,
    };
    let first = Picture::draw(subject);
    let peak = first
        .moments()
        .find(|(moment, _)| moment.kind == MomentKind::Peak)
        .map_or(0, |(moment, _)| moment.row);
    let failed = [Moment {
        row: run.row - 1,
        kind: MomentKind::OutOfMemory,
        label: "out of memory: 60.00 GiB requested, 50.00 GiB free".to_owned(),
        refused: Some(Refused {
            requested: 60 << 30,
            free: 50 << 30,
        }),
    }];
    let another = Pane {
        picture: Picture::draw(Subject {
            packing: None,
            unused: &[],
            moments: &failed,
            failure: run.blocks[run.blocks.len() / 2].stack,
            ..subject
        }),
        words: Words {
            name: "rank 1, GPU 1".to_owned(),
            ..Words::default()
        },
    };
    let (story, words) = if what == "comparison" {
        let name = "before.tonnage".to_owned();
        let words = Words {
            name,
            ..Words::default()
        };
        (compared(), words)
    } else {
        (story(&run, peak), words(&run, &packing))
    };
    let first = Pane {
        picture: first,
        words,
    };
    let mut page = Vec::new();
    let written = write(&story, &[first, another], &Options::default(), &mut page).unwrap();
    eprintln!("{written:?} in {:.2} s", started.elapsed().as_secs_f64());
    std::fs::write(file, page).unwrap();
}
