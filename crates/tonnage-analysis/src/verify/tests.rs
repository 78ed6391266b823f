// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two recordings that differ in one thing each.

use tonnage_recording::facts;
use tonnage_recording::{Event, Kind, Trace};

use super::*;

struct Recording(Trace);

impl Recording {
    fn new() -> Self {
        Self(Trace::new("test 1.0"))
    }

    fn fact(&mut self, name: &str, text: &str) {
        self.0.meta.push(tonnage_recording::Meta {
            process: 0,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }

    fn row(&mut self, kind: Kind, address: u64, bytes: u64) {
        let is_block = matches!(kind, Kind::Alloc | Kind::FreeRequested);
        self.0.events.push(Event {
            address,
            size: if is_block { 0 } else { bytes },
            requested: if is_block { bytes } else { 0 },
            ..Event::new(kind)
        });
    }

    /// Some steps of a training, each with a block of `odd` bytes in between, if that is not 0.
    fn steps(&mut self, count: u64, odd: u64) {
        self.row(Kind::SegmentAlloc, 1 << 30, 64 << 20);
        for step in 0..count {
            for block in 0..8 {
                self.row(
                    Kind::Alloc,
                    (1 << 30) + block * 4096,
                    1000 + block * 8 + step % 2,
                );
            }
            if odd > 0 && step == 2 {
                self.row(Kind::Alloc, (1 << 30) + (1 << 20), odd);
                self.row(Kind::FreeRequested, (1 << 30) + (1 << 20), odd);
            }
            for block in 0..8 {
                self.row(
                    Kind::FreeRequested,
                    (1 << 30) + block * 4096,
                    1000 + block * 8 + step % 2,
                );
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.write(Vec::new()).unwrap()
    }
}

fn compared(real: &Recording, dry: &Recording) -> Verification {
    verify(real.bytes().as_slice(), dry.bytes().as_slice()).unwrap()
}

#[test]
fn the_same_rows_are_the_same() {
    let mut one = Recording::new();
    one.steps(5, 0);
    let found = compared(&one, &one);
    assert!(found.same);
    assert_eq!(found.processes[0].same_events, 1 + 5 * 16);
}

#[test]
fn a_block_that_one_run_lacks_is_found_and_the_rest_agrees() {
    let (mut real, mut dry) = (Recording::new(), Recording::new());
    real.steps(5, 0);
    dry.steps(5, 777);
    let found = compared(&real, &dry);
    assert!(!found.same);
    let process = &found.processes[0];
    assert_eq!(process.same_events, process.real_events);
    let [parting] = process.partings.as_slice() else {
        panic!("one parting: {:?}", process.partings);
    };
    assert_eq!((parting.only_real, parting.only_dry), (0, 2));
    assert_eq!(parting.dry_bytes, 777);
    assert_eq!(parting.known, "unknown");
}

#[test]
fn a_block_of_another_size_is_one_parting() {
    let (mut real, mut dry) = (Recording::new(), Recording::new());
    real.steps(5, 778);
    dry.steps(5, 777);
    let process = compared(&real, &dry).processes.remove(0);
    let bytes: Vec<_> = process
        .partings
        .iter()
        .map(|parting| (parting.real_bytes, parting.dry_bytes))
        .collect();
    assert_eq!(bytes, [(778, 777)]);
}

#[test]
fn settings_that_differ_are_named() {
    let (mut real, mut dry) = (Recording::new(), Recording::new());
    real.steps(5, 0);
    dry.steps(5, 777);
    real.fact(
        facts::ENVIRONMENT,
        r#"{"PYTORCH_CUDA_ALLOC_CONF":"max_split_size_mb:64"}"#,
    );
    dry.fact(facts::ENVIRONMENT, "{}");
    let found = compared(&real, &dry);
    assert_eq!(found.settings.len(), 1);
    assert_eq!(found.settings[0].what, "PYTORCH_CUDA_ALLOC_CONF");
    let parting = &found.processes[0].partings[0];
    assert_eq!(parting.known, "likely");
    assert!(
        parting
            .cause
            .contains("max_split_size_mb:64 on the GPU and not set")
    );
}

#[test]
fn a_value_that_nobody_computed_is_named() {
    let (mut real, mut dry) = (Recording::new(), Recording::new());
    real.steps(5, 0);
    dry.steps(5, 777);
    let values = r#"{"reads":[["/job/train.py",31,"main",true,12]],"sizes":[],"assumed_mask":100}"#;
    dry.fact(facts::VALUES, values);
    let parting = &compared(&real, &dry).processes[0].partings[0];
    assert_eq!(parting.known, "likely");
    assert!(
        parting.cause.contains("first at train.py:31"),
        "{}",
        parting.cause
    );
}

#[test]
fn runs_that_never_meet_again_end() {
    let (mut real, mut dry) = (Recording::new(), Recording::new());
    for number in 0..30_000 {
        real.row(Kind::Alloc, number * 512, 2 * number + 2);
        dry.row(Kind::Alloc, number * 512, 2 * number + 3);
    }
    let process = compared(&real, &dry).processes.remove(0);
    assert_eq!(process.same_events, 0);
    assert_eq!(process.partings.len(), 1);
}

#[test]
fn an_unreadable_recording_is_named() {
    let whole = Recording::new().bytes();
    let broken = b"nothing".as_slice();
    let error = verify(whole.as_slice(), broken).unwrap_err();
    assert!(matches!(error, VerifyError::Dry(_)), "{error:?}");
    let error = verify(broken, whole.as_slice()).unwrap_err();
    assert!(matches!(error, VerifyError::Real(_)), "{error:?}");
}
