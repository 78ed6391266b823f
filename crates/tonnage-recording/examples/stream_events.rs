// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes and reads back a long recording and reports how fast and in how much memory: `stream_events FILE [EVENTS]`.
//!
//! The memory is the kernel's high-water mark of the process (Linux only).

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::time::Instant;

use tonnage_recording::{Event, Kind, Pool, Reader, Writer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: stream_events FILE [EVENTS]")?;
    let events: u64 = arguments
        .next()
        .map_or(Ok(10_000_000), |text| text.parse())?;
    let start = Instant::now();
    write(&path, events)?;
    let wrote = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut reader = Reader::new(File::open(&path)?)?;
    let (mut count, mut bytes) = (0_u64, 0_u64);
    for event in reader.by_ref() {
        bytes = bytes.wrapping_add(event?.size);
        count += 1;
    }
    let read = start.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    writeln!(
        io::stdout(),
        "{count} events ({bytes} bytes asked), file {} bytes, written in {wrote:.2} s, read in {read:.2} s, {}",
        fs::metadata(&path)?.len(),
        peak.unwrap_or("VmHWM: unknown")
    )?;
    Ok(())
}

fn write(path: &str, events: u64) -> Result<(), Box<dyn Error>> {
    let mut writer = Writer::new(File::create(path)?, "stream_events 0")?;
    let mut stacks = Vec::new();
    for index in 0..10_000_u64 {
        let table = writer.stacks_mut();
        let (function, file) = (
            table.intern(&format!("function_{}", index % 700)),
            table.intern("train.py"),
        );
        let frame = table.frame(function, file, index);
        let parent = stacks.get(index as usize / 2).copied();
        stacks.push(table.push(parent, frame));
    }
    for index in 0..events {
        let allocation = index / 3;
        let kind = [Kind::Alloc, Kind::FreeRequested, Kind::FreeCompleted][(index % 3) as usize];
        writer.event(&Event {
            time: Some(1_783_874_041_854_969_000 + index as i64 * 1_000),
            address: 0x7f00_0000_0000 + allocation % 4096 * 0x20_0000,
            size: 512 + allocation * 7919 % 33_554_432,
            pool: Some(Pool::default()),
            stack: Some(stacks[(allocation * 31 % 10_000) as usize]),
            ..Event::new(kind)
        })?;
    }
    writer.finish()?;
    Ok(())
}
