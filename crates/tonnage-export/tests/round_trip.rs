// SPDX-License-Identifier: MIT OR Apache-2.0
//! An export gives the same recording when it is read again, in Python too, and odd recordings end in errors.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::process::Command;

use tonnage_export::{ExportError, Exported, PerfettoOptions, perfetto, snapshot};
use tonnage_recording::{Event, Kind, Pool, Trace, Writer, meta};

const MIB: u64 = 1 << 20;

/// A recording with one of everything a snapshot holds, in the order an importer writes it.
fn everything() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test 1").unwrap();
    writer.meta(0, meta::SOURCE, "pytorch-pickle").unwrap();
    // Only a key that a trace does not keep identifies 2.15 itself, so it would be read as this version.
    writer.meta(0, meta::TORCH_VERSION, ">=2.14").unwrap();
    writer
        .meta(0, meta::ALLOCATOR_CONF, "expandable_segments:True")
        .unwrap();
    let settings = r#"{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "max_split_size": -1, "garbage_collection_threshold": 0.0, "expandable_segments": true, "max_round_threshold": 9223372036854775807, "graph_capture_record_stream_reuse": false, "roundup_power2_divisions.1": 0, "roundup_power2_divisions.2": 4, "last": 1}"#;
    writer.meta(0, meta::ALLOCATOR_SETTINGS, settings).unwrap();
    let stacks = writer.stacks_mut();
    let [
        inner,
        outer,
        file,
        large,
        expandable,
        allocated,
        pending,
        inactive,
        note,
        step,
        teleport,
    ] = [
        "forward",
        "main",
        "modèle.py",
        "large",
        "expandable",
        "active_allocated",
        "active_pending_free",
        "inactive",
        "a note",
        "step",
        "teleport",
    ]
    .map(|text| stacks.intern(text));
    let frames = [
        stacks.frame(inner, file, 7),
        stacks.frame(outer, file, u64::MAX),
    ];
    let stack = stacks.push_stack(&frames);
    let caller = stacks.push_stack(&frames[1..]);
    let base = Event {
        time: Some(1_783_874_041_854_969_000),
        pool: Some(Pool {
            first: 4,
            second: u32::MAX,
        }),
        stack,
        ..Event::new(Kind::Alloc)
    };
    let at = |kind, address, size, requested| Event {
        kind,
        address,
        size,
        requested,
        ..base
    };
    let address = 0x7f00_0000_0000;
    let events = [
        Event {
            name: Some(large),
            text: Some(expandable),
            time: None,
            ..at(Kind::FinalSegment, address, 20 * MIB, 1507)
        },
        Event {
            name: Some(allocated),
            time: None,
            ..at(Kind::FinalBlock, address, 1536, 1500)
        },
        Event {
            name: Some(pending),
            time: None,
            stack: None,
            ..at(Kind::FinalBlock, address + 1536, 512, 7)
        },
        Event {
            name: Some(inactive),
            time: None,
            stack: None,
            ..at(Kind::FinalBlock, address + 2048, 20 * MIB - 2048, 0)
        },
        Event {
            name: Some(step),
            stack: None,
            pool: None,
            ..at(Kind::MarkStart, 0, 0, 0)
        },
        at(Kind::SegmentMap, address, 20 * MIB, 0),
        Event {
            text: Some(note),
            name: Some(step),
            ..at(Kind::Alloc, address, 0, 1500)
        },
        Event {
            stream: (1 << 63) + 5,
            stack: caller,
            ..at(Kind::FreeRequested, address + 1536, 0, 7)
        },
        Event {
            free: 123_456_789,
            stack: None,
            ..at(Kind::Oom, 0, 1 << 33, 0)
        },
        Event {
            pool: None,
            time: None,
            ..at(Kind::FreeCompleted, address + 4096, 0, 3)
        },
        at(Kind::Snapshot, 0, 55, 0),
        Event {
            name: Some(teleport),
            ..at(Kind::OtherAction, 5, 6, 0)
        },
        Event {
            time: Some(1_783_874_041_854_970_000),
            name: Some(step),
            stack: None,
            pool: None,
            ..at(Kind::MarkEnd, 0, 0, 0)
        },
        Event {
            device: 2,
            ..at(Kind::SegmentFree, address, 2 * MIB, 0)
        },
        Event {
            device: -1,
            ..at(Kind::Alloc, 64, 0, 4096)
        },
    ];
    for event in events {
        writer.event(&event).unwrap();
    }
    writer.finish().unwrap()
}

fn export(trace: &[u8], process: Option<u32>) -> Result<(Vec<u8>, Exported), ExportError> {
    snapshot(|| Ok(trace), Vec::new(), process)
}

/// Events with their texts and stacks, whatever ids they have.
fn readable(trace: &[u8]) -> Vec<String> {
    let trace = Trace::read(trace).unwrap();
    let text =
        |id: Option<tonnage_recording::TextId>| id.map(|id| trace.stacks.text(id).to_owned());
    let facts = trace
        .meta
        .iter()
        .map(|fact| format!("{} = {}", fact.name, fact.text));
    let events = trace.events.iter().map(|event| {
        let stack: Vec<_> = event
            .stack
            .iter()
            .flat_map(|stack| trace.stacks.frames(*stack))
            .collect();
        let bare = Event {
            stack: None,
            name: None,
            text: None,
            ..*event
        };
        format!(
            "{bare:?} {:?} {:?} {stack:?}",
            text(event.name),
            text(event.text)
        )
    });
    facts
        .filter(|fact| !fact.starts_with("unknown"))
        .chain(events)
        .collect()
}

fn import(pickle: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test 1").unwrap();
    tonnage_import::import(pickle, 0, &mut writer).unwrap();
    writer.finish().unwrap()
}

#[test]
fn an_exported_snapshot_imports_as_it_was() {
    let trace = everything();
    let (pickle, exported) = export(&trace, None).unwrap();
    assert_eq!(exported.events, 9);
    assert_eq!(exported.notes, Vec::<String>::new());
    assert_eq!(readable(&import(&pickle)), readable(&trace));
    let (again, _) = export(&import(&pickle), None).unwrap();
    assert_eq!(again, pickle);
}

#[test]
fn python_loads_an_exported_snapshot_and_shares_its_stacks() {
    let folder = std::env::temp_dir().join(format!("tonnage-export-{}", std::process::id()));
    let (pickle, _) = export(&everything(), None).unwrap();
    std::fs::write(&folder, pickle).unwrap();
    let program = "
import pickle, sys
s = pickle.load(open(sys.argv[1], 'rb'))
t = s['device_traces'][0]
print([len(trace) for trace in s['device_traces']], len(s['host_traces']), t[0]['frames'] is t[1]['frames'])
print(t[2]['stream'], t[2]['pool_id'], t[3]['device_free'], [f['line'] for f in t[0]['frames']])
print(s['segments'][0]['allocated_size'], s['segments'][0]['active_size'], s['segments'][0]['blocks'][1]['state'])
print(s['allocator_settings']['roundup_power2_divisions'], s['allocator_settings']['garbage_collection_threshold'])
print(s['external_annotations'])";
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(&folder)
        .output()
        .unwrap();
    std::fs::remove_file(&folder).unwrap();
    let expect = "[7, 0, 1] 1 True
9223372036854775813 (4, 4294967295) 123456789 [7, 18446744073709551615]
1536 2048 active_pending_free
{'1': 0, '2': 4} 0.0
[{'name': 'step', 'stage': 'START', 'device': 0, 'time_us': 1783874041854969}, {'name': 'step', 'stage': 'END', 'device': 0, 'time_us': 1783874041854970}]
";
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expect);
}

#[test]
fn a_recording_of_blocks_alone_gets_a_state_a_viewer_can_draw() {
    let mut writer = Writer::new(Vec::new(), "test 1").unwrap();
    let row = |kind, address, size, requested| Event {
        address,
        size,
        requested,
        time: Some(1),
        ..Event::new(kind)
    };
    for event in [
        row(Kind::DriverMalloc, 0, 20 * MIB, 20 * MIB),
        row(Kind::SegmentAlloc, 1 << 30, 20 * MIB, 0),
        row(Kind::Alloc, 1 << 30, 1024, 1000),
        row(Kind::Alloc, (1 << 30) + MIB, MIB, 0),
        row(Kind::FreeRequested, (1 << 30) + MIB, MIB, 0),
    ] {
        writer.event(&event).unwrap();
    }
    let (pickle, exported) = export(&writer.finish().unwrap(), None).unwrap();
    let trace = Trace::read(import(&pickle).as_slice()).unwrap();
    let kinds: Vec<_> = trace.events.iter().map(|event| event.kind.name()).collect();
    let expect = "final_segment final_block final_block segment_alloc alloc alloc free_requested free_completed";
    assert_eq!(kinds.join(" "), expect);
    assert_eq!(trace.events[5].requested, MIB);
    assert!(
        exported
            .notes
            .contains(&"1 call of the driver is left out".to_owned()),
        "{:?}",
        exported.notes
    );
    assert!(
        exported
            .notes
            .contains(&"1 free is taken as completed at once".to_owned())
    );
}

fn processes(numbers: &[u32], device: i32) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test 1").unwrap();
    for process in numbers {
        let event = Event {
            process: *process,
            device,
            requested: 5,
            ..Event::new(Kind::Alloc)
        };
        writer.event(&event).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn what_a_snapshot_has_no_room_for_is_an_error_with_a_next_step() {
    let two = processes(&[3, 8], 0);
    let error = export(&two, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a snapshot holds one process, the recording has 2"
    );
    assert_eq!(error.hint(), "choose one, e.g. with --process 3");
    assert_eq!(export(&two, Some(8)).unwrap().1.events, 1);
    let error = export(&two, Some(4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the recording has no events of process 4"
    );
    let error = export(&processes(&[0], 1 << 30), None).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the recording names device 1073741824"),
        "{error}"
    );
    assert!(matches!(export(b"hello", None), Err(ExportError::Read(_))));
    let empty = Writer::new(Vec::new(), "test 1").unwrap().finish().unwrap();
    let (pickle, exported) = export(&empty, None).unwrap();
    assert_eq!(exported.events, 0);
    assert_eq!(readable(&import(&pickle)).len(), 2);
}

#[test]
fn a_recording_cut_anywhere_exports_or_says_why_not() {
    let trace = everything();
    for length in 0..trace.len() {
        let cut = &trace[..length];
        match export(cut, None) {
            Ok((_, exported)) => {
                assert!(exported.notes.iter().any(|note| note.contains("truncated")));
            }
            Err(error) => assert!(!error.hint().is_empty()),
        }
        let _ = perfetto(|| Ok(cut), Vec::new(), &PerfettoOptions::default());
    }
}

#[test]
fn a_perfetto_trace_is_json_with_counters_slices_and_instants() {
    let trace = everything();
    let options = PerfettoOptions {
        min_block: 1,
        ..PerfettoOptions::default()
    };
    let (bytes, exported) = perfetto(|| Ok(trace.as_slice()), Vec::new(), &options).unwrap();
    assert!(exported.events > 5);
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let rows = json["traceEvents"].as_array().unwrap();
    let find = |phase: &str| {
        rows.iter()
            .filter(|row| row["ph"] == phase)
            .collect::<Vec<_>>()
    };
    let counters = find("C");
    assert!(
        counters
            .iter()
            .any(|row| row["name"] == "reserved" && row["args"]["bytes"] == 20 * MIB)
    );
    let slices = find("X");
    assert!(
        slices
            .iter()
            .any(|row| row["name"] == "step" && row["dur"] == 1.0),
        "{slices:?}"
    );
    assert!(
        slices
            .iter()
            .any(|row| row["name"] == "1.50 KiB forward modèle.py:7"),
        "{slices:?}"
    );
    assert_eq!(
        find("i")[0]["name"],
        "out of memory: 8.00 GiB asked, 117.74 MiB free"
    );
    let empty = Writer::new(Vec::new(), "test 1").unwrap().finish().unwrap();
    let (bytes, _) = perfetto(|| Ok(empty.as_slice()), Vec::new(), &options).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["traceEvents"].as_array().unwrap().len(), 0);
}

#[test]
fn counters_of_use_are_what_the_device_charged() {
    let mut writer = Writer::new(Vec::new(), "test 1").unwrap();
    let charges = [
        (Kind::DriverMalloc, 2 * MIB + 1, 4 * MIB, 4 * MIB),
        (Kind::PoolMalloc, MIB, 36 * MIB, 46 * MIB),
        (Kind::PoolFree, MIB, 36 * MIB, 36 * MIB),
        (Kind::PoolTrim, 0, 4 * MIB, 4 * MIB),
        (Kind::ManagedAlloc, 64 * MIB, 4 * MIB, 4 * MIB),
    ];
    for (kind, size, charged, in_use) in charges {
        let event = Event {
            address: 64,
            size,
            charged: Some(charged),
            in_use: Some(in_use),
            ..Event::new(kind)
        };
        writer.event(&event).unwrap();
    }
    let trace = writer.finish().unwrap();
    let options = PerfettoOptions::default();
    let (bytes, _) = perfetto(|| Ok(trace.as_slice()), Vec::new(), &options).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let values = |name: &str| -> Vec<u64> {
        let rows = json["traceEvents"].as_array().unwrap().iter();
        rows.filter(|row| row["ph"] == "C" && row["name"] == name)
            .map(|row| row["args"]["bytes"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(values("used"), [4 * MIB, 36 * MIB, 4 * MIB]);
    assert_eq!(
        values("used by all processes"),
        [46 * MIB, 36 * MIB, 4 * MIB]
    );
    assert_eq!(values("managed"), [64 * MIB]);
}

#[test]
fn slices_of_a_lane_never_overlap_even_where_clocks_step_back() {
    let mut writer = Writer::new(Vec::new(), "test 1").unwrap();
    let mut state = 7_u64;
    for step in 0..2000_i64 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let kind = if state >> 63 == 0 {
            Kind::Alloc
        } else {
            Kind::FreeRequested
        };
        let (address, time) = (
            (state >> 40) % 50 * 512,
            step * 10 - (state >> 20) as i64 % 40,
        );
        writer
            .event(&Event {
                address,
                requested: 100,
                time: Some(time),
                ..Event::new(kind)
            })
            .unwrap();
    }
    let trace = writer.finish().unwrap();
    let options = PerfettoOptions {
        min_block: 1,
        ..PerfettoOptions::default()
    };
    let (bytes, _) = perfetto(|| Ok(trace.as_slice()), Vec::new(), &options).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let mut lanes: std::collections::BTreeMap<u64, Vec<(f64, f64)>> =
        std::collections::BTreeMap::new();
    for row in json["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["ph"] == "X")
    {
        let (from, length) = (row["ts"].as_f64().unwrap(), row["dur"].as_f64().unwrap());
        assert!(from >= 0.0 && length >= 0.0);
        lanes
            .entry(row["tid"].as_u64().unwrap())
            .or_default()
            .push((from, from + length));
    }
    assert!(lanes.len() > 5);
    for slices in lanes.values_mut() {
        slices.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert!(slices.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6));
    }
}
