// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems and models: refused with a next step, or planned so that the checker has nothing to report.

use std::fmt::Write as _;

use tonnage_analysis::plan::{PlanError, Problems, Wanted, csv, onnx, plan};
use tonnage_plan::{Buffer, Options};

use super::Bytes;

/// Buffers that are planned; of more, only reading is tried.
const MAX_PLANNED: usize = 48;

/// The first byte reports what is wanted and which header is put on top; below it the bytes are as they are.
pub fn csv(data: &[u8]) {
    let mut bytes = Bytes(data);
    let choice = bytes.byte();
    let wanted = Wanted {
        capacity: (choice & 1 != 0).then_some(1 << 20),
        alignment: (choice & 2 != 0).then_some(64),
        keep_offsets: choice & 4 != 0,
        ..Wanted::default()
    };
    let header: &[u8] = match choice >> 3 & 3 {
        0 => b"",
        1 => b"id,lower,upper,size\n",
        2 => b"id,lower,end,size,alignment,gaps,offset\n",
        _ => b"offset,gaps,alignment,size,upper,begin,buffer\n",
    };
    match csv::problem([header, bytes.0].concat().as_slice(), &wanted) {
        Ok(problems) => {
            read_again(&problems, &wanted);
            planned(&problems, &wanted);
        }
        Err(error) => assert!(!error.hint().is_empty() && !error.to_string().is_empty()),
    }
}

/// The bytes as a model, with a value for one dimension.
pub fn onnx(data: &[u8]) {
    let wanted = Wanted::default();
    match onnx::problem(data, &wanted, &[("batch".to_owned(), 8)]) {
        Ok(problems) => {
            let facts = problems.graph.expect("a model is a graph");
            for buffer in buffers(&problems) {
                assert!(0 <= buffer.start && buffer.start < buffer.end);
                assert!(buffer.end.cast_unsigned() <= facts.operators);
            }
            planned(&problems, &wanted);
        }
        Err(error) => assert!(!error.hint().is_empty() && !error.to_string().is_empty()),
    }
}

fn buffers(problems: &Problems) -> Vec<Buffer> {
    let group = &problems.groups[0];
    assert_eq!(group.names.len(), group.problem.len());
    group.problem.buffers().collect()
}

/// A problem that was read and is written again reads the same.
fn read_again(problems: &Problems, wanted: &Wanted) {
    let buffers = buffers(problems);
    let mut text = "id,lower,upper,size,alignment,gaps,offset\n".to_owned();
    for (number, buffer) in buffers.iter().enumerate() {
        // A minus at the front of a time and the one between two times cannot be distinguished.
        if buffer.gaps.iter().any(|gap| gap.start < 0 || gap.end < 0) {
            return;
        }
        let gaps: Vec<String> = buffer
            .gaps
            .iter()
            .map(|gap| format!("{}-{}", gap.start, gap.end))
            .collect();
        let offset = buffer
            .offset
            .map_or(String::new(), |offset| offset.to_string());
        let _ = writeln!(
            text,
            "{number},{},{},{},{},{},{offset}",
            buffer.start,
            buffer.end,
            buffer.size,
            buffer.alignment,
            gaps.join(" ")
        );
    }
    if let Some(long) = text.lines().map(str::len).max()
        && long < 1 << 15
    {
        let again = csv::problem(text.as_bytes(), wanted).expect("what is written can be read");
        assert_eq!(self::buffers(&again), buffers);
    }
}

/// Planned, or refused because the problem contradicts itself; every plan passes the checker.
fn planned(problems: &Problems, wanted: &Wanted) {
    if problems.groups[0].names.len() > MAX_PLANNED {
        return;
    }
    let options = Options {
        attempts: 1,
        threads: 1,
        ..Options::default()
    };
    match plan(problems, wanted, &options) {
        Ok(report) => {
            let group = &report.groups[0];
            assert!(group.peak >= group.lower_bound);
            let fits = matches!(group.status, "optimal" | "fits");
            assert!(
                !fits
                    || wanted
                        .capacity
                        .is_none_or(|capacity| group.peak <= capacity)
            );
        }
        Err(error) => assert!(!matches!(error, PlanError::Wrong { .. }), "{error:?}"),
    }
}
