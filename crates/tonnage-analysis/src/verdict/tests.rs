// SPDX-License-Identifier: MIT OR Apache-2.0
//! The headline's figures on small recordings with several processes and kinds of memory.

use tonnage_recording::{Event, Kind, Writer, meta};

use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A recording of a run that ended so, with driver rows as (process, kind, size, charged, in use).
fn recording(ending: &str, rows: &[(u32, Kind, u64, u64, u64)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test 0").unwrap();
    for (name, text) in [
        (meta::GPU_CAPACITY, (24 * GIB).to_string()),
        (meta::GPU_NAME, "Test".to_owned()),
        (facts::ENDING, ending.to_owned()),
    ] {
        writer.meta(facts::RUN, name, &text).unwrap();
    }
    for (index, &(process, kind, size, charged, in_use)) in rows.iter().enumerate() {
        let event = Event {
            process,
            address: (index as u64 + 1) << 40,
            size,
            requested: size,
            charged: Some(charged),
            in_use: Some(in_use),
            time: Some(index as i64),
            ..Event::new(kind)
        };
        writer.event(&event).unwrap();
    }
    writer.finish().unwrap()
}

fn judge(file: &[u8]) -> Verdict {
    verdict(|| Ok(file)).unwrap()
}

#[test]
fn a_line_of_python_is_named_rather_than_a_frame_of_cpp() {
    let mut stacks = StackTable::new();
    let mut stack = |files: &[&str]| {
        let frames: Vec<_> = files
            .iter()
            .map(|file| {
                let (function, file) = (stacks.intern("f"), stacks.intern(file));
                stacks.frame(function, file, 1)
            })
            .collect();
        stacks.push_stack(&frames)
    };
    let native = "/x/site-packages/torch/lib/libtorch_cpu.so";
    let package = "/x/site-packages/torch/nn/a.py";
    let all = stack(&[native, package, "train.py"]);
    let users = stack(&[native, "train.py"]);
    let of_package = stack(&[native, package]);
    let only_native = stack(&[native, "??"]);
    let files = |stack| {
        let (place, inside) = places(&stacks, stack);
        (
            place.map(|place| place.file),
            inside.map(|place| place.file),
        )
    };
    let named = |file: &str| Some(file.to_owned());
    assert_eq!(files(all), (named("train.py"), named(package)));
    assert_eq!(files(users), (named("train.py"), None));
    assert_eq!(files(of_package), (named(package), None));
    assert_eq!(files(only_native), (named(native), None));
}

#[test]
fn what_the_device_charges_counts_and_not_what_was_asked_for() {
    let small = 2 * MIB + 1;
    let verdict = judge(&recording(
        "exit 0",
        &[
            (0, Kind::DriverContext, 256 * MIB, 256 * MIB, 256 * MIB),
            (0, Kind::DriverMalloc, small, 260 * MIB, 260 * MIB),
            (0, Kind::DriverMalloc, small, 264 * MIB, 264 * MIB),
        ],
    ));
    assert_eq!(verdict.spare(), 24 * GIB - 264 * MIB);
    assert_eq!(verdict.outcome, Outcome::Fits);
    // A program without PyTorch has a peak all the same, and its parts add up.
    let peak = verdict.devices[0].at_peak;
    assert_eq!(
        (peak.used, peak.context, peak.other),
        (264 * MIB, 256 * MIB, 8 * MIB)
    );
}

#[test]
fn processes_one_after_the_other_share_the_device_in_time() {
    let rows: Vec<_> = (0..3)
        .flat_map(|process| {
            [
                (process, Kind::DriverContext, GIB, GIB, GIB),
                (process, Kind::DriverMalloc, 9 * GIB, 10 * GIB, 10 * GIB),
            ]
        })
        .collect();
    let verdict = judge(&recording("exit 0", &rows));
    assert_eq!(verdict.spare(), 14 * GIB);
    assert_eq!(verdict.devices_total[0].processes, 3);
    assert!(verdict.devices_total[0].exact);
    // The last one fails on its own: no other process exists.
    assert!(
        verdict
            .devices
            .iter()
            .all(|device| device.at_peak.other_processes == 0)
    );
}

#[test]
fn a_refusal_outside_pytorch_that_ends_the_program_is_an_out_of_memory() {
    let rows = [
        (0, Kind::DriverMalloc, 10 * GIB, 10 * GIB, 10 * GIB),
        (0, Kind::DriverOom, 20 * GIB, 10 * GIB, 10 * GIB),
    ];
    let verdict = judge(&recording("exit 1", &rows));
    assert_eq!(verdict.outcome, Outcome::DoesNotFit);
    let failure = verdict.devices[0].out_of_memory.as_ref().unwrap();
    assert_eq!(failure.requested, 20 * GIB);
    // One that the program lived through does not count.
    assert_eq!(judge(&recording("exit 0", &rows)).outcome, Outcome::Fits);
    let goes_on = [
        rows[0],
        rows[1],
        (0, Kind::DriverMalloc, GIB, 11 * GIB, 11 * GIB),
    ];
    assert_eq!(
        judge(&recording("exit 1", &goes_on)).outcome,
        Outcome::Failed
    );
}

#[test]
fn of_a_job_that_handles_errors_of_memory_what_came_after_counts() {
    let rows = [
        (0, Kind::DriverMalloc, 12 * GIB, 12 * GIB, 12 * GIB),
        (0, Kind::DriverMalloc, 8 * GIB, 20 * GIB, 20 * GIB),
        (0, Kind::Oom, 8 * GIB, 20 * GIB, 20 * GIB),
        // Between the two frees there are 8 GiB, which no request followed after the error.
        (0, Kind::DriverFree, 12 * GIB, 8 * GIB, 8 * GIB),
        (0, Kind::DriverFree, 8 * GIB, 0, 0),
        (0, Kind::DriverMalloc, 6 * GIB, 6 * GIB, 6 * GIB),
        (0, Kind::Alloc, 5 * GIB, 6 * GIB, 6 * GIB),
    ];
    let verdict = judge(&recording("exit 0", &rows));
    assert_eq!(verdict.outcome, Outcome::Fits);
    let after = verdict.devices[0].after_ooms.unwrap();
    assert_eq!(after.peak_allocated, 5 * GIB);
    assert_eq!(after.most_in_use, 6 * GIB);
    let margin = verdict.margin.as_ref().unwrap();
    // On a smaller device it would have requested less.
    assert_eq!((margin.smallest, margin.after_ooms), (None, Some(6 * GIB)));
    assert_eq!((verdict.spare(), margin.room), (18 * GIB, 18 * GIB));
}

#[test]
fn managed_memory_is_counted_apart() {
    let rows = [
        (0, Kind::DriverMalloc, GIB, GIB, GIB),
        (0, Kind::ManagedAlloc, 40 * GIB, GIB, GIB),
    ];
    let verdict = judge(&recording("exit 0", &rows));
    assert_eq!(verdict.spare(), 23 * GIB);
    assert_eq!(verdict.outcome, Outcome::Fits);
}
