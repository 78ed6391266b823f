// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports a recording and prints its time and memory: `import_snapshot FILE [TRACE]`.
//!
//! Without `TRACE` the trace is encoded and thrown away. The memory is the kernel's high-water mark of the process
//! (Linux only).

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::time::Instant;

use tonnage_recording::Writer;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: import_snapshot FILE [TRACE]")?;
    let output: Box<dyn Write> = match arguments.next() {
        Some(path) => Box::new(File::create(path)?),
        None => Box::new(io::sink()),
    };
    let start = Instant::now();
    let mut writer = Writer::new(output, "import_snapshot 0")?;
    let (format, events) = tonnage_import::import(File::open(&path)?, 0, &mut writer)?;
    let stacks = writer.stacks().len();
    writer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or("VmHWM: unknown");
    writeln!(
        io::stdout(),
        "{} {events} events, {stacks} frames, {seconds:.3} s, {peak}",
        format.name()
    )?;
    Ok(())
}
