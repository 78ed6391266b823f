// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace files: what can be read can be summed up, written again and read again, the same.

use tonnage_analysis::diff::Summary;
use tonnage_analysis::explain::explain;
use tonnage_analysis::{holdings, info::info, verdict::verdict};
use tonnage_recording::{Event, Reader, Trace};

/// Reads the bytes as a trace.
pub fn run(data: &[u8]) {
    let _ = info(data);
    let _ = verdict(|| Ok(data));
    if let Ok(recording) = holdings::read(data) {
        let _ = explain(&recording, None, None);
        let _ = Summary::from_recording(&recording, "");
    }
    let Ok(mut reader) = Reader::new(data) else {
        return;
    };
    for event in reader.by_ref() {
        if let Err(error) = event {
            assert!(!error.hint().is_empty());
            return;
        }
    }
    assert!(
        reader.ending().is_some(),
        "an end of the events is an end of the file"
    );
    let trace = Trace::read(data).expect("it was read before");
    let Ok(bytes) = trace.write(Vec::new()) else {
        return;
    };
    let again = Trace::read(bytes.as_slice()).expect("what was written is readable");
    assert_eq!(trace.events.len(), again.events.len());
    // Ids are numbered afresh, so what they stand for is compared.
    for (before, after) in trace.events.iter().zip(&again.events) {
        let text = |trace: &Trace, event: &Event| {
            [event.name, event.text].map(|id| id.map(|id| trace.stacks.text(id).to_owned()))
        };
        let frames = |trace: &Trace, event: &Event| {
            let frames = event.stack.map(|stack| trace.stacks.frames(stack).take(64));
            frames.map(|frames| frames.map(|frame| format!("{frame:?}")).collect::<Vec<_>>())
        };
        assert_eq!(text(&trace, before), text(&again, after));
        assert_eq!(frames(&trace, before), frames(&again, after));
        let bare = |event: &Event| Event {
            name: None,
            text: None,
            stack: None,
            ..*event
        };
        assert_eq!(bare(before), bare(after));
    }
}
