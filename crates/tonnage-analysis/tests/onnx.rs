// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models that the onnx package wrote: lives and bytes against the report of that package.
//!
//! `onnx/make.py` made the models and printed the numbers that stand here.

use tonnage_analysis::plan::{Name, Problems, Wanted, onnx, plan};
use tonnage_plan::Options;

const NET: &[u8] = include_bytes!("onnx/net.onnx");
const SYMBOLIC: &[u8] = include_bytes!("onnx/symbolic.onnx");
const BRANCHES: &[u8] = include_bytes!("onnx/branches.onnx");

/// Name, first moment, first moment after, bytes.
type Life = (&'static str, i64, i64, u64);

const NET_LIVES: [Life; 12] = [
    ("conv1", 0, 2, 16384),
    ("relu1", 1, 4, 16384),
    ("conv2", 2, 4, 16384),
    ("sum", 3, 5, 16384),
    ("pool", 4, 7, 4096),
    ("where", 4, 5, 8192),
    ("scaled", 6, 8, 4096),
    ("mean", 7, 9, 64),
    ("flat", 8, 10, 64),
    ("logits", 9, 12, 80),
    ("half_logits", 10, 12, 40),
    ("probabilities", 11, 12, 80),
];

const BRANCHES_LIVES: [Life; 4] = [
    ("early", 0, 3, 16),
    ("middle", 1, 4, 16),
    ("chosen", 2, 4, 16),
    ("y", 3, 4, 16),
];

fn lives(problems: &Problems) -> Vec<(String, i64, i64, u64)> {
    let group = &problems.groups[0];
    let mut lives: Vec<_> = group
        .names
        .iter()
        .zip(group.problem.buffers())
        .map(|(name, buffer)| {
            let Name::Text(text) = name else {
                panic!("{name:?}")
            };
            let name = problems.texts.text(*text).to_owned();
            (name, buffer.start, buffer.end, buffer.size)
        })
        .collect();
    lives.sort_by_key(|life| life.1);
    lives
}

fn expected(lives: &[Life], batch: u64) -> Vec<(String, i64, i64, u64)> {
    lives
        .iter()
        .map(|(name, from, to, size)| ((*name).to_owned(), *from, *to, size / 2 * batch))
        .collect()
}

#[test]
fn lives_and_bytes_are_those_of_the_onnx_package() {
    let wanted = Wanted::default();
    let problems = onnx::problem(NET, &wanted, &[]).unwrap();
    assert_eq!(lives(&problems), expected(&NET_LIVES, 2));
    let facts = problems.graph.unwrap();
    assert_eq!((facts.operators, facts.constants, facts.inner), (12, 1, 0));
    assert_eq!((facts.inputs, facts.input_bytes), (1, 2 * 3 * 16 * 16 * 4));
    assert_eq!((facts.initializers, facts.initializer_bytes), (4, 3520));
    let report = plan(&problems, &wanted, &Options::default()).unwrap();
    // relu1, conv2 and sum at the fourth operator.
    assert_eq!(report.groups[0].peak, 3 * 16384);
    assert_eq!(report.groups[0].status, "optimal");
}

#[test]
fn bodies_keep_alive_what_they_read() {
    let problems = onnx::problem(BRANCHES, &Wanted::default(), &[]).unwrap();
    assert_eq!(lives(&problems), expected(&BRANCHES_LIVES, 2));
    let facts = problems.graph.unwrap();
    assert_eq!((facts.inputs, facts.initializers, facts.inner), (2, 0, 3));
}

#[test]
fn a_dimension_with_a_name_is_asked_for_and_taken() {
    let wanted = Wanted::default();
    let error = onnx::problem(SYMBOLIC, &wanted, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dimension 0 of `conv1` is `batch`, which has no value"
    );
    assert_eq!(error.hint(), "use --dim batch=8, or whatever its value is");
    for batch in [1, 2, 64] {
        let dims = [("batch".to_owned(), batch)];
        let problems = onnx::problem(SYMBOLIC, &wanted, &dims).unwrap();
        assert_eq!(lives(&problems), expected(&NET_LIVES, batch));
    }
    let dims = [("batch".to_owned(), u64::MAX)];
    let error = onnx::problem(SYMBOLIC, &wanted, &dims).unwrap_err();
    assert_eq!(error.to_string(), "`conv1` is larger than any memory");
}

/// A field with bytes in it.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 1 << 14 && number < 16);
    let length = content.len();
    let mut bytes = vec![
        number << 3 | 2,
        (length & 0x7f) as u8 | 0x80,
        (length >> 7) as u8,
    ];
    bytes.extend(content);
    bytes
}

fn operator(reads: &[&str], makes: &[&str]) -> Vec<u8> {
    let reads = reads.iter().map(|name| field(1, name.as_bytes()));
    let makes = makes.iter().map(|name| field(2, name.as_bytes()));
    field(1, &reads.chain(makes).collect::<Vec<_>>().concat())
}

/// A float tensor, or another type.
fn value(number: u8, name: &str, kind: &[u8]) -> Vec<u8> {
    let kind = field(2, kind);
    field(number, &[field(1, name.as_bytes()), kind].concat())
}

fn shape(dimensions: &[&[u8]]) -> Vec<u8> {
    let dimensions: Vec<u8> = dimensions.iter().flat_map(|one| field(1, one)).collect();
    field(1, &[vec![8, 1], field(2, &dimensions)].concat())
}

fn read_error(graph: &[Vec<u8>]) -> String {
    let model = [vec![8, 9], field(7, &graph.concat())].concat();
    assert!(onnx::looks_like(&model));
    match onnx::problem(model.as_slice(), &Wanted::default(), &[]) {
        Ok(problems) => format!("{:?}", lives(&problems)),
        Err(error) => format!("{error}; {}", error.hint()),
    }
}

#[test]
fn what_cannot_be_planned_is_named_with_a_next_step() {
    let float = |name| value(13, name, &shape(&[&[8, 4]]));
    let input = value(11, "x", &shape(&[&[8, 4]]));
    let relu = operator(&["x"], &["y"]);
    for (graph, words) in [
        (
            vec![relu.clone(), input.clone(), float("y")],
            r#"[("y", 0, 1, 16)]"#,
        ),
        (
            vec![operator(&["x"], &["y", "mask"]), input.clone(), float("y")],
            r#"[("y", 0, 1, 16)]"#,
        ),
        (
            vec![
                operator(&["x"], &["y", "mask"]),
                operator(&["mask"], &["z"]),
                input.clone(),
                float("y"),
                float("z"),
            ],
            "the shape of `mask` is not known; write the model anew with onnx.shape_inference.infer_shapes, with fixed shapes of its inputs",
        ),
        (
            vec![relu.clone(), input.clone()],
            "the shape of `y` is not known; write the model anew with onnx.shape_inference.infer_shapes, with fixed shapes of its inputs",
        ),
        (
            vec![
                relu.clone(),
                input.clone(),
                value(13, "y", &shape(&[&[8, 4], &[]])),
            ],
            "dimension 1 of `y` is not known; write the model anew with onnx.shape_inference.infer_shapes, with fixed shapes of its inputs",
        ),
        (
            vec![relu.clone(), input.clone(), value(13, "y", &field(4, &[]))],
            "`y` is a sequence, whose bytes are not known; only tensors of numbers can be planned",
        ),
        (
            vec![
                operator(&["z"], &["y"]),
                input.clone(),
                float("y"),
                float("z"),
            ],
            "operator 0 reads `z`, which nothing before it makes; operators must be sorted and each tensor made once; onnx.checker has details",
        ),
        (
            vec![operator(&["y"], &["y"]), float("y")],
            "operator 0 reads `y`, which nothing before it makes; operators must be sorted and each tensor made once; onnx.checker has details",
        ),
        (
            vec![relu.clone(), relu.clone(), input.clone(), float("y")],
            "`y` is made twice, the second time by operator 1; operators must be sorted and each tensor made once; onnx.checker has details",
        ),
        (
            vec![relu, input, vec![0x0a, 100]],
            "it is not an ONNX model, or damaged at byte 41: a field reaches beyond its message; check it with onnx.checker, or export it again",
        ),
    ] {
        assert_eq!(read_error(&graph), words);
    }
    let empty = onnx::problem(&[8, 9][..], &Wanted::default(), &[]).unwrap_err();
    assert_eq!(empty.to_string(), "it has no graph");
}

#[test]
fn graphs_inside_of_graphs_are_followed_only_so_far() {
    let mut body = Vec::new();
    for _ in 0..40 {
        body = field(1, &field(5, &field(6, &body)));
    }
    assert_eq!(
        read_error(&[body]),
        "it has more than 16 graphs inside of each other; check it with onnx.checker, or export it again"
    );
}

#[test]
fn damaged_models_are_refused_or_read_but_never_panic() {
    let mut state = 1_u64;
    let mut draw = |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % bound
    };
    let (mut read, mut refused) = (0, 0);
    for round in 0..6000 {
        let mut bytes = [NET, SYMBOLIC, BRANCHES][round % 3].to_vec();
        for _ in 0..=draw(3) {
            if bytes.is_empty() {
                break;
            }
            let at = draw(bytes.len());
            match draw(4) {
                0 => bytes[at] = draw(256) as u8,
                1 => bytes[at] ^= 1 << draw(8),
                2 => {
                    bytes.remove(at);
                }
                _ => bytes.truncate(at + 1),
            }
        }
        match onnx::problem(bytes.as_slice(), &Wanted::default(), &[]) {
            Ok(_) => read += 1,
            Err(error) => {
                assert!(!error.hint().is_empty());
                refused += 1;
            }
        }
    }
    assert!(
        read > 100 && refused > 100,
        "{read} read, {refused} refused"
    );
}
