// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file as a whole: round trips, determinism, torn files and hostile bytes.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tonnage_recording::{
    BATCH_ROWS, Ending, Event, Kind, Pool, ReadError, Reader, Trace, Uses, WriteError, Writer,
};

/// Two events of every kind, one bare and one with every field filled, plus facts and stacks.
fn sample() -> Trace {
    let mut trace = Trace::new("test 0");
    let (file, note) = (
        trace.stacks.intern("train.py"),
        trace.stacks.intern("step 3"),
    );
    let mut frames = Vec::new();
    for (line, function) in ["forward", "step", "main"].into_iter().enumerate() {
        let function = trace.stacks.intern(function);
        frames.push(trace.stacks.frame(function, file, line as u64 + 10));
    }
    let stack = trace.stacks.push_stack(&frames);
    let shorter = trace.stacks.push_stack(&frames[1..]);
    for (process, name, text) in [
        (0, "command", "python train.py"),
        (1, "torch.version", "2.15.0"),
        (0, "empty", ""),
    ] {
        trace.meta.push(tonnage_recording::Meta {
            process,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }
    for kind in Kind::ALL.iter().copied().filter(|kind| kind.is_event()) {
        trace.events.push(Event {
            stack: shorter,
            ..Event::new(kind)
        });
        trace.events.push(Event {
            kind,
            process: 3,
            device: -1,
            time: Some(i64::MIN),
            stream: u64::MAX,
            address: u64::MAX - 1,
            size: 1 << 63,
            requested: 7,
            free: 8,
            handle: 9,
            charged: Some(0),
            in_use: Some(u64::MAX),
            uses: Some(Uses {
                count: u32::MAX,
                first: 4,
                last: 5,
                next: 6,
            }),
            pool: Some(Pool {
                first: u32::MAX,
                second: 1,
            }),
            stack,
            name: Some(note),
            text: Some(file),
        });
    }
    trace
}

fn bytes(trace: &Trace) -> Vec<u8> {
    trace.write(Vec::new()).expect("memory accepts every byte")
}

/// An event without ids, its frames, its name and its text.
type Resolved = (Event, Vec<String>, Option<String>, Option<String>);

/// Events with their ids resolved, comparable between tables.
fn resolved(trace: &Trace) -> Vec<Resolved> {
    let text = |id: Option<_>| id.map(|id| trace.stacks.text(id).to_owned());
    let frames = |event: &Event| {
        let stack = event.stack.map(|stack| {
            trace
                .stacks
                .frames(stack)
                .map(|frame| format!("{frame:?}"))
                .collect()
        });
        stack.unwrap_or_default()
    };
    let plain = |event: &Event| Event {
        name: None,
        text: None,
        ..*event
    };
    trace
        .events
        .iter()
        .map(|event| {
            (
                plain(event),
                frames(event),
                text(event.name),
                text(event.text),
            )
        })
        .collect()
}

#[test]
fn every_kind_comes_back_as_it_was_written() {
    let trace = sample();
    let back = Trace::read(bytes(&trace).as_slice()).unwrap();
    assert_eq!(resolved(&back), resolved(&trace));
    assert_eq!(back.meta, trace.meta);
    assert_eq!(back.producer, "test 0");
    assert_eq!(back.ending, Ending::Complete);
    assert_eq!(back.unknown_rows, 0);
    assert_eq!(back.fact(1, "torch.version"), Some("2.15.0"));
}

#[test]
fn the_same_events_give_the_same_bytes() {
    assert_eq!(bytes(&sample()), bytes(&sample()));
    let again = Trace::read(bytes(&sample()).as_slice()).unwrap();
    assert_eq!(
        bytes(&again),
        bytes(&sample()),
        "reading and writing again changes nothing"
    );
}

#[test]
fn a_file_cut_anywhere_reads_as_a_prefix() {
    let trace = sample();
    let mut writer = Writer::with_stacks(Vec::new(), "test 0", trace.stacks.clone()).unwrap();
    for (index, event) in trace.events.iter().enumerate() {
        writer.event(event).unwrap();
        if index % 16 == 15 {
            writer.flush().unwrap();
        }
    }
    let whole = writer.finish().unwrap();
    let expected = resolved(&trace);
    let (mut headless, mut seen) = (0, Vec::new());
    for length in 0..whole.len() {
        match Trace::read(&whole[..length]) {
            Ok(part) => {
                assert!(part.ending.is_truncated(), "cut at {length}");
                let events = resolved(&part);
                assert_eq!(events, expected[..events.len()], "cut at {length}");
                seen.push(events.len());
            }
            Err(ReadError::Headless { length: told }) => {
                assert_eq!(told, length as u64);
                headless = length;
            }
            Err(other) => panic!("cut at {length}: {other}"),
        }
    }
    assert!(seen.is_sorted());
    assert_eq!(
        seen.last(),
        Some(&expected.len()),
        "only the end marker is missing"
    );
    assert!(headless < whole.len() / 2);
    assert!(!Trace::read(whole.as_slice()).unwrap().ending.is_truncated());
}

#[test]
fn long_recordings_have_full_batches_and_stream() {
    let rows = 3 * BATCH_ROWS + 5;
    let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
    for index in 0..rows as u64 {
        writer
            .event(&Event {
                size: index,
                time: Some(index as i64),
                ..Event::new(Kind::Alloc)
            })
            .unwrap();
    }
    let file = writer.finish().unwrap();
    let mut reader = Reader::new(file.as_slice()).unwrap();
    let sizes: Vec<u64> = reader.by_ref().map(|event| event.unwrap().size).collect();
    assert!(sizes.iter().copied().eq(0..rows as u64));
    assert_eq!(reader.rows(), rows as u64);
    assert_eq!(reader.ending(), Some(Ending::Complete));
}

#[test]
fn what_is_flushed_is_there_and_rows_of_all_sorts_keep_their_order_over_many_batches() {
    let sample = sample();
    let mut writer = Writer::with_stacks(Vec::new(), "test 0", sample.stacks.clone()).unwrap();
    let mut expected = Vec::new();
    for (index, event) in sample
        .events
        .iter()
        .cycle()
        .enumerate()
        .take(4 * BATCH_ROWS)
    {
        let event = Event {
            size: index as u64,
            ..*event
        };
        writer.event(&event).unwrap();
        expected.push(event);
        if index % 10_000 == 0 {
            let fact = (index / 10_000).to_string();
            writer.meta(1, &fact, "later").unwrap();
        }
    }
    assert_eq!(writer.events(), expected.len() as u64);
    assert_eq!(writer.facts().len(), 7);
    let file = writer.finish().unwrap();
    let read = Trace::read(file.as_slice()).unwrap();
    assert_eq!(read.meta.len(), 7);
    let sizes = |events: &[Event]| events.iter().map(|e| (e.kind, e.size)).collect::<Vec<_>>();
    assert_eq!(sizes(&read.events), sizes(&expected));
    let expected = Trace {
        events: expected,
        ..sample
    };
    assert_eq!(resolved(&read), resolved(&expected));
}

#[test]
fn a_flush_waits_for_the_batches_before_it() {
    let (file, flushed) = (Shared::default(), BATCH_ROWS as u64 * 3 + 7);
    let mut writer = Writer::new(file.clone(), "test 0").unwrap();
    for _ in 0..flushed {
        writer.event(&Event::new(Kind::Mark)).unwrap();
    }
    writer.flush().unwrap();
    let written = file.0.lock().unwrap().clone();
    let mut reader = Reader::new(written.as_slice()).unwrap();
    assert_eq!(reader.by_ref().flatten().count() as u64, flushed);
    // A writer that is dropped leaves its thread behind, and no panic.
    drop(writer);
}

/// A file that can be looked at while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().expect("no panic");
        file.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_that_fills_up_behind_the_encoder_is_reported_and_leaves_whole_batches() {
    let mut writer = Writer::new(Full(60_000), "test 0").unwrap();
    let failed = (0..100 * BATCH_ROWS as u64).find_map(|index| {
        let event = Event {
            address: index.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..Event::new(Kind::Alloc)
        };
        writer.event(&event).err()
    });
    assert!(matches!(failed, Some(WriteError::Io(_))), "{failed:?}");
    assert!(matches!(writer.finish(), Err(WriteError::Stopped)));
}

#[test]
fn a_batch_of_long_texts_stays_below_the_limits() {
    let mut trace = Trace::new("test 0");
    for index in 0..64 {
        let text = format!("{index}").repeat(200_000);
        trace.events.push(Event {
            text: Some(trace.stacks.intern(&text)),
            ..Event::new(Kind::Mark)
        });
    }
    assert_eq!(
        resolved(&Trace::read(bytes(&trace).as_slice()).unwrap()),
        resolved(&trace)
    );
    let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
    assert!(matches!(
        writer.meta(0, "k", &"x".repeat(17 << 20)),
        Err(WriteError::TextTooLong { .. })
    ));
}

#[test]
fn ids_of_another_table_are_refused() {
    let trace = sample();
    let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
    assert!(matches!(
        writer.event(&trace.events[1]),
        Err(WriteError::UnknownId { .. })
    ));
    assert!(matches!(
        writer.event(&Event::new(Kind::Meta)),
        Err(WriteError::NotAnEvent(Kind::Meta))
    ));
}

/// Accepts some bytes, then refuses like a full disk.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn after_a_full_disk_the_writer_stays_stopped() {
    let mut writer = Writer::new(Full(5_000), "test 0").unwrap();
    let failed = (0..100).find_map(|_| {
        writer.event(&Event::new(Kind::Mark)).unwrap();
        writer.flush().err()
    });
    assert!(matches!(failed, Some(WriteError::Io(_))));
    assert!(matches!(
        writer.event(&Event::new(Kind::Mark)),
        Err(WriteError::Stopped)
    ));
    assert!(matches!(writer.finish(), Err(WriteError::Stopped)));
}

#[test]
fn other_files_are_told_from_traces_with_a_next_step() {
    for (bytes, expect) in [
        (
            &b"\x80\x04\x95hello pickle"[..],
            "not a tonnage trace: the first message is odd: it does not start",
        ),
        (&b"ARROW1\0\0"[..], "not a tonnage trace"),
        (
            &[0xff; 64][..],
            "not a tonnage trace: the first message is odd: its header announces 4294967295 bytes",
        ),
        (
            &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..],
            "not a tonnage trace: an Arrow stream that ends at once",
        ),
        (
            &b""[..],
            "the recording stops inside its header, after 0 bytes",
        ),
    ] {
        let error = Reader::new(bytes).unwrap_err();
        assert!(error.to_string().starts_with(expect), "{error}");
        assert!(!error.hint().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut file = bytes(&sample());
        for (index, value) in flips {
            let at = index.index(file.len());
            file[at] ^= value;
        }
        let _ = Trace::read(file.as_slice());
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut file = vec![0xff, 0xff, 0xff, 0xff];
        file.extend(noise);
        let _ = Trace::read(file.as_slice());
    }
}

/// A recording of one event at `address`, with a driver's row about the device.
fn single(address: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test 0").expect("memory accepts every byte");
    let event = Event {
        address,
        size: 2,
        charged: Some(3),
        in_use: Some(4),
        ..Event::new(Kind::DriverMalloc)
    };
    writer.event(&event).expect("memory accepts every byte");
    writer.finish().expect("memory accepts every byte")
}

#[test]
fn a_second_recording_follows_the_first_and_is_found_behind_it() {
    let mut file = single(1);
    let first = file.len();
    file.extend(single(2));
    let events = Trace::read(file.as_slice()).unwrap().events;
    assert_eq!((events.len(), events[0].address), (1, 1));
    assert_eq!((events[0].charged, events[0].in_use), (Some(3), Some(4)));
    // Whether the first was read to its end or not.
    for read in [false, true] {
        let mut reader = Reader::new(file.as_slice()).unwrap();
        if read {
            assert_eq!(reader.by_ref().count(), 1);
        }
        let mut next = reader.into_next().unwrap().unwrap();
        assert_eq!(next.next().unwrap().unwrap().address, 2);
        assert!(next.next().is_none());
        assert_eq!(next.ending(), Some(Ending::Complete));
        assert!(next.into_next().unwrap().is_none());
    }
    // A file cut anywhere gives what is whole, and never the second as a part of the first.
    for cut in 1..file.len() {
        let Ok(reader) = Reader::new(&file[..cut]) else {
            assert!(cut < first);
            continue;
        };
        let next = reader.into_next().unwrap();
        let found = tonnage_recording::second_recording(io::Cursor::new(&file[..cut])).unwrap();
        assert_eq!(found, (cut > first).then_some(first as u64));
        assert!(next.is_none() || cut > first);
    }
    // A file that is not a recording is refused behind one.
    let mut odd = single(1);
    odd.extend([7; 64]);
    assert!(Reader::new(odd.as_slice()).unwrap().into_next().is_err());
}
