// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of this crate are made of.

use tonnage_analysis::holdings::Holding;
use tonnage_recording::StackTable;

use crate::input::Subject;

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
        unused: &[],
    }
}
