// SPDX-License-Identifier: MIT OR Apache-2.0
//! Importers: they end in an error or in a recording that the reader accepts, with the events they reported.

use std::io::Read;

use tonnage_import::{ImportError, detect, planner, pytorch, rmm};
use tonnage_recording::{StackTable, Trace, Writer};

type Importer = fn(&mut dyn Read, &mut Writer<Vec<u8>>) -> Result<u64, ImportError>;

fn check(source: &[u8], importer: Importer) {
    let mut writer = Writer::new(Vec::new(), "fuzz 0").expect("memory takes a header");
    let mut rest = source;
    match importer(&mut rest, &mut writer) {
        Ok(events) => {
            let bytes = writer.finish().expect("memory takes the rest");
            let trace = Trace::read(bytes.as_slice()).expect("an imported recording is readable");
            // Segments and marks are rows too, but no events of the allocator.
            assert!(trace.events.len() as u64 >= events);
        }
        Err(error) => assert!(!error.hint().is_empty() && !error.to_string().is_empty()),
    }
}

fn snapshot(source: &[u8]) {
    check(source, |source, writer| pytorch::import(source, 0, writer));
    let mut stacks = StackTable::new();
    if let Ok(snapshot) = pytorch::Snapshot::parse(source, &mut stacks) {
        for segment in &snapshot.segments {
            segment.events(pytorch::When::Final, &mut stacks);
        }
    }
}

/// The bytes as a pickle of protocol 2 or later, or of an older one if they begin like it.
pub fn pickle(data: &[u8]) {
    snapshot(data);
}

/// The bytes inside of what makes a document a snapshot, and by themselves.
pub fn json(data: &[u8]) {
    snapshot(data);
    let wrapped = [br#"{"segments": [], "device_traces": [["#, data, b"]]}"];
    snapshot(&wrapped.concat());
}

/// The bytes below the header of a log.
pub fn rmm(data: &[u8]) {
    let log = [b"Thread,Time,Action,Pointer,Size,Stream\n", data].concat();
    check(&log, |source, writer| rmm::import(source, 0, writer));
}

/// The bytes below the header of a planning problem, with and without offsets.
pub fn planner(data: &[u8]) {
    for header in ["id,lower,upper,size\n", "offset,size,end,start,buffer\n"] {
        let problem = [header.as_bytes(), data].concat();
        check(&problem, |source, writer| {
            planner::import(source, 0, writer)
        });
    }
}

/// The bytes as they are.
pub fn any(data: &[u8]) {
    let first = &data[..data.len().min(tonnage_import::DETECT_BYTES)];
    assert_eq!(detect(first), detect(data), "the first bytes are enough");
    check(data, |source, writer| {
        tonnage_import::import(source, 0, writer).map(|(_, events)| events)
    });
}
