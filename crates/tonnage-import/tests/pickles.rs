// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pickles of every protocol, PyTorch's C++ writer, JSON, and hostile bytes.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use tonnage_import::pytorch::{BlockState, Setting, Snapshot};
use tonnage_import::{Format, ImportError, detect, import};
use tonnage_recording::{Event, Kind, Pool, StackTable, Trace, Writer, meta};

/// A small snapshot with everything version 2.15 has, as a Python expression.
const SNAPSHOT: &str = r"
frame = {'name': 'forward', 'filename': 'modèle.py', 'line': 12}
outer = {'name': 'main', 'filename': 'train.py', 'line': 70000, 'fx_node_op': 'call'}
stack = [frame, outer]
none = []
def event(action, addr, size, **more):
    base = {'action': action, 'addr': addr, 'size': size, 'stream': 0, 'time_us': 1783874041854969,
            'compile_context': 'N/A', 'user_metadata': '', 'pool_id': (0, 0), 'frames': stack}
    base.update(more)
    return base
oom = event('oom', 0, 1 << 33, device_free=123456789, frames=none); del oom['addr']
snapshot = {
 'segments': [{'device': 0, 'address': 140000000000, 'total_size': 20971520, 'allocated_size': 1536, 'active_size': 2048,
   'requested_size': 1500, 'stream': 0, 'segment_type': 'large', 'segment_pool_id': (0, 3), 'is_expandable': True, 'frames': none,
   'blocks': [{'address': 140000000000, 'size': 1536, 'requested_size': 1500, 'state': 'active_allocated', 'frames': stack},
              {'address': 140000001536, 'size': 512, 'requested_size': 7, 'state': 'active_pending_free', 'frames': none},
              {'address': 140000002048, 'size': 20969472, 'requested_size': 0, 'state': 'inactive', 'frames': none}]}],
 'device_traces': [[event('segment_map', 140000000000, 20971520), event('alloc', 140000000000, 1500, user_metadata='note'),
   event('free_requested', 140000001536, 7, stream=(1 << 63) + 5, pool_id=(4, 1 << 31)), oom,
   event('teleport', 5, 6, surprise=[1, 2])], []],
 'allocator_settings': {'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True', 'max_split_size': -1,
   'garbage_collection_threshold': 0.75, 'expandable_segments': True, 'graph_capture_record_stream_reuse': False,
   'max_round_threshold': 1, 'roundup_power2_divisions': {'1': 0, '2': 4}},
 'external_annotations': [{'name': 'step', 'stage': 'START', 'device': 0, 'time_us': 17}, {'name': 'step', 'stage': 'END', 'device': 0, 'time_us': 18}],
 'host_segments': [], 'host_traces': [event('alloc', 64, 4096, compile_context='')],
}
";

/// Runs Python with the snapshot defined and returns what it writes.
fn python(statement: &str) -> Vec<u8> {
    let program =
        format!("import pickle, json, sys\n{SNAPSHOT}\nout = sys.stdout.buffer\n{statement}\n");
    let mut child = Command::new("python3")
        .args(["-X", "utf8", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 writes the pickles of this test");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(program.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

fn parse(bytes: &[u8]) -> Result<(Snapshot, StackTable), ImportError> {
    let mut stacks = StackTable::new();
    Snapshot::parse(bytes, &mut stacks).map(|snapshot| (snapshot, stacks))
}

fn check(bytes: &[u8]) {
    let (snapshot, stacks) = parse(bytes).unwrap();
    assert_eq!(snapshot.traces.len(), 2);
    let [map, alloc, free, oom, other] = snapshot.traces[0][..] else {
        panic!("{:?}", snapshot.traces)
    };
    assert_eq!(
        (map.kind, map.address, map.size),
        (Kind::SegmentMap, 140_000_000_000, 20_971_520)
    );
    assert_eq!(
        (alloc.kind, alloc.time),
        (Kind::Alloc, Some(1_783_874_041_854_969_000))
    );
    assert_eq!(
        (alloc.name, alloc.text.map(|text| stacks.text(text))),
        (None, Some("note"))
    );
    assert_eq!(alloc.pool, Some(Pool::default()));
    assert_eq!(
        (free.stream, free.pool),
        (
            (1 << 63) + 5,
            Some(Pool {
                first: 4,
                second: 1 << 31
            })
        )
    );
    assert_eq!(
        (oom.kind, oom.size, oom.free, oom.address, oom.stack),
        (Kind::Oom, 1 << 33, 123_456_789, 0, None)
    );
    assert_eq!(
        (other.kind, other.name.map(|text| stacks.text(text))),
        (Kind::OtherAction, Some("teleport"))
    );
    assert_eq!(map.stack, alloc.stack, "one list, one stack");
    let frames: Vec<_> = stacks
        .frames(alloc.stack.unwrap())
        .map(|f| (f.function, f.file, f.line))
        .collect();
    assert_eq!(
        frames,
        [("forward", "modèle.py", 12), ("main", "train.py", 70_000)]
    );
    let segment = &snapshot.segments[0];
    assert_eq!(
        (segment.total_size, segment.is_large, segment.is_expandable),
        (20_971_520, true, true)
    );
    assert_eq!(
        segment.pool,
        Some(Pool {
            first: 0,
            second: 3
        })
    );
    let states: Vec<_> = segment.blocks.iter().map(|block| block.state).collect();
    assert_eq!(
        states,
        [
            BlockState::Allocated,
            BlockState::PendingFree,
            BlockState::Inactive
        ]
    );
    assert_eq!(segment.blocks[0].stack, alloc.stack);
    let settings = snapshot.settings.unwrap();
    assert_eq!(settings.conf(), Some("expandable_segments:True"));
    assert_eq!(
        settings.get("roundup_power2_divisions.2"),
        Some(&Setting::Number(4))
    );
    assert_eq!(
        settings.get("garbage_collection_threshold"),
        Some(&Setting::Fraction(0.75))
    );
    assert_eq!(
        snapshot
            .annotations
            .iter()
            .map(|mark| mark.kind)
            .collect::<Vec<_>>(),
        [Kind::MarkStart, Kind::MarkEnd]
    );
    assert_eq!(snapshot.host_trace[0].device, -1);
    assert_eq!((snapshot.versions.from, snapshot.versions.to), (14, None));
    assert!(
        snapshot
            .notes
            .iter()
            .any(|note| note == "1 values of events were not kept"),
        "{:?}",
        snapshot.notes
    );
}

#[test]
fn every_protocol_of_both_python_picklers_reads_the_same() {
    for protocol in 0..=5 {
        let fast = python(&format!(
            "out.write(pickle.dumps(snapshot, protocol={protocol}))"
        ));
        assert_eq!(
            detect(&fast),
            Some(Format::PytorchPickle),
            "protocol {protocol}"
        );
        check(&fast);
        // The pure Python pickler batches and memoises differently.
        check(&python(&format!(
            "out.write(pickle._dumps(snapshot, protocol={protocol}))"
        )));
    }
}

#[test]
fn json_reads_the_same() {
    for arguments in ["", ", indent=2", ", ensure_ascii=False"] {
        let bytes = python(&format!(
            "out.write(json.dumps(snapshot{arguments}).encode())"
        ));
        assert_eq!(detect(&bytes), Some(Format::PytorchJson));
        check(&bytes);
    }
}

/// As PyTorch's C++ writer does: protocol 2, no batches, containers memoised after they are filled.
const CPP_WRITER: &str = r"
import struct
memo = {}; result = bytearray(b'\x80\x02')
def put_key(key):
    index = memo[key] = len(memo)
    result.extend(b'q' + bytes([index]) if index < 256 else b'r' + struct.pack('<I', index))
def save(value):
    key = ('text', value) if isinstance(value, str) else id(value)
    if isinstance(value, (str, dict, list)) and key in memo:
        index = memo[key]
        result.extend(b'h' + bytes([index]) if index < 256 else b'j' + struct.pack('<I', index)); return
    if isinstance(value, bool): result.extend(b'\x88' if value else b'\x89')
    elif isinstance(value, int):
        if 0 <= value < 256: result.extend(b'K' + bytes([value]))
        elif -(1 << 31) <= value < 1 << 31: result.extend(b'J' + struct.pack('<i', value))
        else: result.extend(b'\x8a\x08' + struct.pack('<Q', value) if value < 1 << 63 else b'\x8a\x09' + struct.pack('<Q', value) + b'\0')
    elif isinstance(value, float): result.extend(b'G' + struct.pack('>d', value))
    elif isinstance(value, str):
        raw = value.encode(); result.extend(b'X' + struct.pack('<I', len(raw)) + raw); put_key(key)
    elif isinstance(value, tuple):
        for item in value: save(item)
        result.extend(b'\x86')
    elif isinstance(value, list):
        result.extend(b'](')
        for item in value: save(item)
        result.extend(b'e'); put_key(key)
    elif isinstance(value, dict):
        result.extend(b'}(')
        for name, item in value.items(): save(name); save(item)
        result.extend(b'u'); put_key(key)
save(snapshot); out.write(bytes(result) + b'.')
";

#[test]
fn the_cpp_writer_reads_the_same() {
    check(&python(CPP_WRITER));
}

#[test]
fn old_versions_have_defaults() {
    let bytes = python(
        "old = {'segments': [{'device': 1, 'address': 4096, 'total_size': 1024, 'stream': 0, 'segment_type': 'small',\n\
         'blocks': [{'size': 512, 'requested_size': 1, 'state': 'active_awaiting_free', 'frames': []}, {'size': 512, 'state': 'inactive'}]}],\n\
         'device_traces': [[], [{'action': 'alloc', 'addr': 4096, 'size': 1, 'stream': 0, 'frames': stack}]]}\n\
         out.write(pickle.dumps(old, protocol=4))",
    );
    let (snapshot, _) = parse(&bytes).unwrap();
    assert_eq!((snapshot.versions.from, snapshot.versions.to), (1, Some(1)));
    let event = snapshot.traces[1][0];
    assert_eq!((event.device, event.time, event.pool), (1, None, None));
    let blocks: Vec<_> = snapshot.segments[0]
        .blocks
        .iter()
        .map(|block| (block.address, block.state))
        .collect();
    assert_eq!(
        blocks,
        [
            (4096, BlockState::PendingFree),
            (4608, BlockState::Inactive)
        ]
    );
    assert!(snapshot.notes.contains(&"events have no time".to_owned()));
}

#[test]
fn a_chunk_without_segments_shares_the_table_of_its_run() {
    let chunk =
        python("out.write(pickle.dumps({'device_traces': snapshot['device_traces']}, protocol=5))");
    let mut stacks = StackTable::new();
    let first = Snapshot::parse(&chunk, &mut stacks).unwrap();
    let size = stacks.len();
    let second = Snapshot::parse(&chunk, &mut stacks).unwrap();
    assert_eq!(
        first.traces, second.traces,
        "ids of equal stacks and texts are equal"
    );
    assert_eq!(stacks.len(), size);
}

#[test]
fn an_import_puts_marks_and_facts_in_place() {
    let bytes = python("out.write(pickle.dumps(snapshot))");
    let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
    assert_eq!(
        import(bytes.as_slice(), 2, &mut writer).unwrap(),
        (Format::PytorchPickle, 6)
    );
    let trace = Trace::read(writer.finish().unwrap().as_slice()).unwrap();
    assert_eq!(
        trace.fact(2, meta::ALLOCATOR_CONF),
        Some("expandable_segments:True")
    );
    assert_eq!(trace.fact(2, meta::TORCH_VERSION), Some(">=2.14"));
    assert!(
        trace
            .fact(2, meta::ALLOCATOR_SETTINGS)
            .unwrap()
            .contains("\"roundup_power2_divisions.2\": 4")
    );
    let kinds: Vec<_> = trace.events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds[..4],
        [
            Kind::FinalSegment,
            Kind::FinalBlock,
            Kind::FinalBlock,
            Kind::FinalBlock
        ]
    );
    assert_eq!(
        kinds[4..7],
        [Kind::MarkStart, Kind::MarkEnd, Kind::SegmentMap]
    );
    assert!(trace.events.iter().all(|event: &Event| event.process == 2));
}

#[test]
fn code_is_refused_by_name() {
    for (bytes, name) in [
        (&b"cos\nsystem\n(S'true'\ntR."[..], "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"\x80\x02N)R.", "REDUCE"),
        (b"\x80\x02N}b.", "BUILD"),
        (b"\x80\x02N)\x81.", "NEWOBJ"),
        (b"\x80\x02(ios\nsystem\n.", "INST"),
        (b"\x80\x02(No.", "OBJ"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02Pid\n.", "PERSID"),
        (b"\x80\x04\x8f.", "EMPTY_SET"),
    ] {
        // A pickle may also start with the instruction itself; give it a head that is recognised.
        let bytes = if bytes[0] == 0x80 {
            bytes.to_vec()
        } else {
            [b"\x80\x02", bytes].concat()
        };
        let error = parse(&bytes).unwrap_err();
        assert!(
            matches!(error, ImportError::RunsCode { opcode, .. } if opcode == name),
            "{name}: {error}"
        );
        assert!(!error.hint().is_empty());
    }
}

/// Prefix of a snapshot up to the list of traces.
fn with_traces(tail: &[u8]) -> Vec<u8> {
    [b"\x80\x04}X\x0d\0\0\0device_traces", tail, b"s."].concat()
}

#[test]
fn hostile_structures_end_in_errors_or_small_results() {
    // A list that holds itself.
    assert!(parse(&with_traces(b"]\x94h\0a")).is_err());
    // A dictionary that holds itself.
    assert!(parse(b"\x80\x04}\x94X\x0d\0\0\0device_tracesh\0s.").is_err());
    // One list of events, used as the trace of a thousand devices, would multiply.
    let mut bomb = b"](](}X\x06\0\0\0actionX\x05\0\0\0allocse\x94".to_vec();
    bomb.extend(b"h\0".repeat(1000));
    bomb.extend(b"e");
    let error = parse(&with_traces(&bomb)).unwrap_err();
    assert!(error.to_string().contains("used elsewhere"), "{error}");
    // Lengths and memo indices that the file cannot hold.
    for bytes in [
        &b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
        b"\x80\x04X\xff\xff\xff\xff",
        b"\x80\x04\x8b\xff\xff\xff\x7f",
        b"\x80\x04Nr\xff\xff\xff\xff.",
        b"\x80\x04Np99999999999999999999\n.",
        b"\x80\x04j\0\0\0\0.",
        b"\x80\x04(e.",
        b"\x80\x04u.",
        b"\x80\x04.",
        b"\x80\x04N(a.",
        b"\x80\x04}(NNNu.",
        b"\x80\x04]}a.",
        b"\x80\x04\xee.",
    ] {
        assert!(parse(bytes).is_err(), "{bytes:?}");
    }
    // Deep nesting costs a list each and no recursion.
    let deep = [
        b"\x80\x04".to_vec(),
        b"]".repeat(200_000),
        b"a".repeat(199_999),
        b".".to_vec(),
    ]
    .concat();
    assert!(parse(&deep).is_err());
    let deep = [b"\x80\x04".to_vec(), b"(".repeat(200_000)].concat();
    assert!(matches!(parse(&deep), Err(ImportError::Incomplete { .. })));
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert!(matches!(parse(&deep), Err(ImportError::TooLarge { .. })));
}

#[test]
fn impossible_values_are_named() {
    for (statement, expect) in [
        (
            "snapshot['device_traces'][0][0]['size'] = -1",
            "the size of an event has an impossible value: -1",
        ),
        (
            "snapshot['device_traces'][0][0]['size'] = 'x'",
            "the size of an event",
        ),
        (
            "snapshot['device_traces'][0][0]['pool_id'] = (1 << 40, 0)",
            "a pool id",
        ),
        (
            "snapshot['segments'][0]['blocks'][0]['state'] = 'odd'",
            "the state of a block has an impossible value: odd",
        ),
        ("snapshot['segments'][0]['device'] = 1 << 40", "a device"),
        (
            "snapshot = {'a': 1}",
            "not a PyTorch memory snapshot: it has neither segments nor device_traces",
        ),
        (
            "snapshot = 5",
            "not a PyTorch memory snapshot: its outermost value is not a dictionary",
        ),
        (
            "snapshot['device_traces'] = [[5]]",
            "an event has no action",
        ),
        (
            "snapshot['device_traces'] = 5",
            "device_traces is not a list",
        ),
    ] {
        let error = parse(&python(&format!(
            "{statement}\nout.write(pickle.dumps(snapshot))"
        )))
        .unwrap_err()
        .to_string();
        assert!(error.contains(expect), "{statement}: {error}");
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    for protocol in [0, 2, 4] {
        let bytes = python(&format!(
            "out.write(pickle.dumps(snapshot, protocol={protocol}))"
        ));
        for length in 0..bytes.len() {
            assert!(
                parse(&bytes[..length]).is_err(),
                "protocol {protocol} cut at {length}"
            );
        }
    }
    let bytes = python("out.write(json.dumps(snapshot).encode())");
    for length in 0..bytes.len() {
        assert!(parse(&bytes[..length]).is_err(), "JSON cut at {length}");
    }
}

fn written() -> &'static [Vec<u8>] {
    static FILES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    FILES.get_or_init(|| {
        let pickles = [0, 2, 5].map(|protocol| {
            python(&format!(
                "out.write(pickle.dumps(snapshot, protocol={protocol}))"
            ))
        });
        pickles
            .into_iter()
            .chain([python("out.write(json.dumps(snapshot).encode())")])
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_never_panic(which in 0_usize..4, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
        let mut bytes = written()[which].clone();
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        let mut writer = Writer::new(std::io::sink(), "test 0").unwrap();
        let _ = import(bytes.as_slice(), 0, &mut writer);
    }

    #[test]
    fn random_instructions_never_panic(opcodes in prop::collection::vec(prop::sample::select(&b"(.012NIJKMLFGSVUTXCB)]}ldaestupqrgh\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x94\x95\0\x01\x02\n'5"[..]), 0..200)) {
        let bytes = [b"\x80\x04".to_vec(), opcodes].concat();
        let _ = parse(&bytes);
    }

    #[test]
    fn csv_noise_never_panics(rest in "[0-9a-z,:.\n\r-]{0,200}", rmm in any::<bool>()) {
        let header = if rmm { "Thread,Time,Action,Pointer,Size,Stream\n" } else { "id,lower,upper,size\n" };
        let mut writer = Writer::new(std::io::sink(), "test 0").unwrap();
        let _ = import(format!("{header}{rest}").as_bytes(), 0, &mut writer);
    }
}
