// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of this crate are made of.

use tonnage_analysis::holdings::{Category, Holding, Known, Phase};
use tonnage_trace::StackTable;

use crate::input::Subject;

/// A block of no importance but its lifetime and its size.
pub(crate) fn block(born: u32, died: u32, address: u64, bytes: u64) -> Holding {
    Holding {
        born,
        died,
        address,
        bytes,
        requested: bytes,
        stream: 0,
        stack: None,
        module: None,
        name: None,
        shape: None,
        step: 0,
        category: Category::Other,
        known: Known::Inferred,
        phase: Phase::Load,
    }
}

/// Blocks and nothing else.
pub(crate) fn subject<'a>(blocks: &'a [Holding], stacks: &'a StackTable, rows: u32) -> Subject<'a> {
    Subject {
        blocks,
        segments: &[],
        phases: &[],
        stacks,
        rows,
        capacity: None,
        context: 0,
        times: &[],
        moments: &[],
        packing: None,
        failure: None,
        holders: None,
    }
}
