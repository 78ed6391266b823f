// SPDX-License-Identifier: MIT OR Apache-2.0
//! `plan` as a person sees it: every sentence is a snapshot, and every file it writes is read back.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

mod said;

use std::path::Path;

use insta::assert_snapshot;
use tempfile::TempDir;
use tonnage_recording::{Event, Kind, Pool, Writer};

const MIB: u64 = 1 << 20;

/// Three steps of a small training, with weights, two streams and its own pool.
fn training() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    let row = |kind, address: u64, size: u64, stream, pool| Event {
        address: address * MIB,
        size: size * MIB,
        requested: size * MIB - 100,
        stream,
        pool: Some(Pool {
            first: 0,
            second: pool,
        }),
        ..Event::new(kind)
    };
    let mut events = vec![
        row(Kind::Alloc, 900, 7, 0, 0),
        row(Kind::Alloc, 999, 2, 0, 1),
    ];
    for _ in 0..3 {
        for layer in 1..=9 {
            events.push(row(Kind::Alloc, layer * 10, layer, layer % 2, 0));
        }
        for layer in (1..=9).rev() {
            events.push(row(Kind::FreeRequested, layer * 10, layer, layer % 2, 0));
            events.push(row(Kind::FreeCompleted, layer * 10, layer, layer % 2, 0));
        }
    }
    for event in events {
        writer.event(&event).unwrap();
    }
    writer.finish().unwrap()
}

/// Steps of three, five and four layers, marked where they end, and the beginning of one more.
fn marked() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    let sort = writer.stacks_mut().intern("step");
    let row = |kind, layer: u64| Event {
        address: layer * 10 * MIB,
        size: layer * MIB,
        ..Event::new(kind)
    };
    let mut events = vec![row(Kind::Alloc, 90)];
    for layers in [1, 3, 5, 4, 2] {
        events.extend((1..=layers).map(|layer| row(Kind::Alloc, layer)));
        events.extend((1..=layers).map(|layer| row(Kind::FreeCompleted, layer)));
        if layers > 2 {
            events.push(Event {
                text: Some(sort),
                ..Event::new(Kind::Mark)
            });
        }
    }
    for event in events {
        writer.event(&event).unwrap();
    }
    writer.finish().unwrap()
}

/// Four passes of eight layers whose outputs a list keeps, and scratch memory that repeats.
fn write_kept() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "tonnage 0.1.0").unwrap();
    let row = |kind, address: u64, size: u64| Event {
        address: address << 30,
        size: size * MIB,
        requested: size * MIB,
        pool: Some(Pool::default()),
        ..Event::new(kind)
    };
    let mut events = vec![row(Kind::Alloc, 1, 64)];
    for pass in 1..=4 {
        let at = pass * 16;
        events.extend((1..=8).map(|layer| row(Kind::Alloc, at + layer, 256)));
        events.push(row(Kind::Alloc, at + 9, 32));
        events.push(row(Kind::FreeRequested, at + 9, 32));
        events.push(row(Kind::FreeCompleted, at + 9, 32));
    }
    for event in events {
        writer.event(&event).unwrap();
    }
    writer.finish().unwrap()
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    put(
        "toy.csv",
        b"id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n",
    );
    put(
        "graph.csv",
        b"buffer,start,end,size\na,0,5,100\n\"b\",2,9,50\nc,4,9,60\n",
    );
    put("bad.csv", b"id,lower,upper,size\na,5,5,100\n");
    put(
        "fixed.csv",
        b"id,lower,upper,size,alignment,gaps,offset
a,0,9,8,4,3-6,4
b,0,9,4,4,,
c,3,6,6,2,,
",
    );
    put(
        "crossed.csv",
        b"id,lower,upper,size,offset\na,0,9,8,4\nb,2,6,6,0\n",
    );
    put("blockless.csv", b"id,lower,upper,size\n");
    put("training.tonnage", &training());
    put("marked.tonnage", &marked());
    folder
}

const MODELS: [(&str, &[u8]); 3] = [
    (
        "net.onnx",
        include_bytes!("../../tonnage-analysis/tests/onnx/net.onnx"),
    ),
    (
        "symbolic.onnx",
        include_bytes!("../../tonnage-analysis/tests/onnx/symbolic.onnx"),
    ),
    // Known by how it begins.
    (
        "branches.model",
        include_bytes!("../../tonnage-analysis/tests/onnx/branches.onnx"),
    ),
];

/// The result of the command: exit code, stdout, stderr.
fn tonnage(folder: &Path, arguments: &str) -> String {
    said::tonnage(folder, arguments) + "\n"
}

#[test]
fn problems_and_recordings() {
    let folder = folder();
    let mut text = String::new();
    for arguments in [
        "plan toy.csv --capacity 12 -o -",
        "plan toy.csv --capacity 11",
        "plan graph.csv",
        "plan graph.csv --alignment 64 -o aligned.csv",
        "plan fixed.csv --keep-offsets -o -",
        "plan graph.csv --alignment 64 -o aligned.csv",
        "plan graph.csv --capacity 120",
        "plan training.tonnage",
        "plan training.tonnage --step",
        "plan marked.tonnage --step",
        "plan training.tonnage --capacity 40MiB",
        "plan graph.csv --json -o -",
        "plan bad.csv",
        "plan crossed.csv --keep-offsets",
        "plan blockless.csv",
        "plan graph.csv --deadline 0",
        "plan nowhere.csv",
    ] {
        text += &tonnage(folder.path(), arguments);
    }
    assert_snapshot!("plan", text);
}

#[test]
fn models() {
    let folder = folder();
    for (name, bytes) in MODELS {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    std::fs::write(folder.path().join("cut.onnx"), &MODELS[0].1[..2000]).unwrap();
    std::fs::write(folder.path().join("prose.onnx"), "hello").unwrap();
    // The graph of a dropout whose mask no operator reads, field by field.
    let dropout = b"\x08\x09\x3a\x31\x0a\x0b\x0a\x01x\x12\x01y\x12\x03msk\
        \x5a\x10\x0a\x01x\x12\x0b\x0a\x09\x08\x01\x12\x05\x0a\x03\x08\x80\x08\
        \x62\x10\x0a\x01y\x12\x0b\x0a\x09\x08\x01\x12\x05\x0a\x03\x08\x80\x08";
    std::fs::write(folder.path().join("dropout.onnx"), dropout).unwrap();
    let mut text = String::new();
    for arguments in [
        "plan net.onnx --alignment 64",
        "plan net.onnx --capacity 40KiB",
        "plan branches.model -o -",
        "plan dropout.onnx",
        "plan symbolic.onnx",
        "plan symbolic.onnx --dim batch=8",
        "plan symbolic.onnx --dim batch",
        "plan cut.onnx",
        "plan prose.onnx",
    ] {
        text += &tonnage(folder.path(), arguments);
    }
    text += "$ tonnage plan branches.model --json | graph\n";
    let json = tonnage(folder.path(), "plan branches.model --json");
    let from = json.find("\"graph\"").unwrap();
    text += &json[from..from + json[from..].find('}').unwrap()];
    assert_snapshot!("models", text);
}

#[test]
fn json() {
    let folder = folder();
    assert_snapshot!(
        "plan_json",
        tonnage(folder.path(), "plan graph.csv --json --capacity 120")
    );
}

#[test]
fn what_is_written_can_be_planned_again_and_looked_at() {
    let folder = folder();
    let text = tonnage(
        folder.path(),
        "plan training.tonnage -o all.csv --svg all.svg --step",
    );
    assert!(text.contains("exit code 0"), "{text}");
    let csv = std::fs::read_to_string(folder.path().join("all.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("process,device,pool,id,lower,upper,size,offset")
    );
    assert!(lines.all(|line| line.split(',').count() == 8), "{csv}");
    let svg = std::fs::read_to_string(folder.path().join("all.svg")).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    assert_eq!(
        svg.matches("<title>").count(),
        csv.lines().count() - 1,
        "a rectangle for each buffer"
    );
    let text = tonnage(folder.path(), "plan all.csv");
    assert!(text.contains("exit code 0"), "{text}");
}

#[test]
fn a_plan_that_would_do_harm_is_not_written() {
    let folder = folder();
    std::fs::write(folder.path().join("kept.tonnage"), write_kept()).unwrap();
    let text = tonnage(
        folder.path(),
        "plan kept.tonnage --for-runtime -o kept.plan",
    );
    assert!(text.contains("exit code 1"), "{text}");
    assert!(
        text.contains("not planned: the program's memory grows"),
        "{text}"
    );
    assert!(!folder.path().join("kept.plan").exists());
}

/// The walk of the README: from a CSV to offsets that another program reads.
#[test]
fn from_buffers_to_offsets() {
    let folder = folder();
    let text = tonnage(folder.path(), "plan toy.csv --capacity 12 -o offsets.csv");
    assert!(text.contains("exit code 0"), "{text}");
    let csv = std::fs::read_to_string(folder.path().join("offsets.csv")).unwrap();
    let rows: Vec<Vec<u64>> = csv
        .lines()
        .skip(1)
        .map(|line| {
            line.split(',')
                .skip(1)
                .map(|field| field.parse().unwrap())
                .collect()
        })
        .collect();
    assert_eq!(rows.len(), 5);
    for (index, one) in rows.iter().enumerate() {
        assert!(one[3] + one[2] <= 12, "{csv}");
        for other in &rows[..index] {
            let together = one[0] < other[1] && other[0] < one[1];
            let apart = one[3] + one[2] <= other[3] || other[3] + other[2] <= one[3];
            assert!(!together || apart, "{csv}");
        }
    }
}
