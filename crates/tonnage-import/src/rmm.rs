// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CSV log of RMM's `logging_resource_adaptor`.
//!
//! Each line is a request: thread, time of day, `allocate`, `allocate failure` or `free`, pointer, bytes, stream. An
//! allocation becomes `alloc`, a free becomes `free_requested` and `free_completed` at once, because the log does not
//! record when memory was reused; a failure becomes `oom`. The log has no date, device or pool: times count from
//! midnight of its first day, and device is 0.

use std::io::{Read, Write};

use tonnage_recording::{Event, Kind, Writer, meta};

use crate::ImportError;
use crate::source::Source;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";
const MAX_LINE: usize = 4096;
const DAY: i64 = 24 * 3600 * 1_000_000_000;

/// Whether a file starts as an RMM log.
pub fn is_header(first: &[u8]) -> bool {
    first.starts_with(HEADER.as_bytes())
}

/// Streams a log into a trace and returns the number of events.
pub fn import<W: Write>(
    source: impl Read,
    process: u32,
    writer: &mut Writer<W>,
) -> Result<u64, ImportError> {
    let mut source = Source::new(source);
    source.line(MAX_LINE)?;
    writer.meta(
        process,
        "clock",
        "nanoseconds since midnight of the first day",
    )?;
    writer.meta(
        process,
        &format!("{}.0", meta::UNKNOWN),
        "the log has no device, date, pool or stacks",
    )?;
    let (mut number, mut events, mut clock) = (1_u64, 0, Clock::default());
    while source.peek()?.is_some() {
        number += 1;
        let line = line(&mut source)?;
        if line.trim().is_empty() {
            continue;
        }
        let mut rows = parse(&line, &mut clock).ok_or_else(|| ImportError::Malformed {
            offset: source.offset(),
            reason: format!("line {number} is not {HEADER}"),
        })?;
        for row in rows.iter_mut().flatten() {
            row.process = process;
            writer.event(row)?;
            events += 1;
        }
    }
    Ok(events)
}

/// One line as text, the last one also without a line feed.
fn line<R: Read>(source: &mut Source<R>) -> Result<String, ImportError> {
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes)
            .trim_end_matches('\r')
            .to_owned()
    };
    match source.line(MAX_LINE) {
        Ok(bytes) => Ok(text(bytes)),
        Err(ImportError::Incomplete { .. }) => Ok(text(source.rest())),
        Err(other) => Err(other),
    }
}

/// Turns times of day into times since the first midnight.
#[derive(Default)]
struct Clock {
    days: i64,
    last: i64,
}

impl Clock {
    /// A step back of more than half a day is midnight; a smaller one is another thread being late.
    fn read(&mut self, text: &str) -> Option<i64> {
        let (time, fraction) = text
            .split_once([':', '.'])
            .and_then(|_| text.rsplit_once(['.', ':']))?;
        let mut parts = time.split(':').map(|part| part.parse::<i64>().ok());
        let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
        let scale = 10_i64.checked_pow(9_u32.checked_sub(fraction.len() as u32)?)?;
        let fraction = fraction.parse::<i64>().ok()?.checked_mul(scale)?;
        if !(0..24).contains(&hours)
            || !(0..60).contains(&minutes)
            || !(0..=60).contains(&seconds)
            || fraction < 0
        {
            return None;
        }
        let now = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + fraction;
        if now < self.last - DAY / 2 {
            self.days += 1;
        }
        self.last = now;
        self.days.checked_mul(DAY)?.checked_add(now)
    }
}

fn parse(line: &str, clock: &mut Clock) -> Option<[Option<Event>; 2]> {
    let mut fields = line.split(',').map(str::trim);
    let (_thread, time, action) = (fields.next()?, fields.next()?, fields.next()?);
    let (pointer, size, stream) = (fields.next()?, fields.next()?, fields.next()?);
    let event = Event {
        time: Some(clock.read(time)?),
        address: number(pointer)?,
        requested: size.parse().ok()?,
        stream: number(stream)?,
        ..Event::new(Kind::Alloc)
    };
    match action {
        "allocate" => Some([Some(event), None]),
        "allocate failure" => Some([
            Some(Event {
                kind: Kind::Oom,
                size: event.requested,
                requested: 0,
                ..event
            }),
            None,
        ]),
        "free" => Some([
            Some(Event {
                kind: Kind::FreeRequested,
                ..event
            }),
            Some(Event {
                kind: Kind::FreeCompleted,
                ..event
            }),
        ]),
        _ => None,
    }
}

/// A pointer or stream: hexadecimal with or without `0x`, or `(nil)`.
fn number(text: &str) -> Option<u64> {
    match text {
        "(nil)" | "0" => Some(0),
        _ => u64::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
    }
}

#[cfg(test)]
mod tests {
    use tonnage_recording::Trace;

    use super::*;

    fn trace(log: &str) -> Result<Trace, ImportError> {
        let mut writer = Writer::new(Vec::new(), "test 0")?;
        import(log.as_bytes(), 0, &mut writer)?;
        Ok(Trace::read(writer.finish()?.as_slice()).unwrap())
    }

    #[test]
    fn a_log_becomes_requests() {
        let log = "Thread,Time,Action,Pointer,Size,Stream\n\
                   17,23:59:59.999999,allocate,0x7f00000000,1024,0x0\n\
                   17,00:00:00.000001,free,0x7f00000000,1024,0x0\r\n\
                   17,00:00:01.500000,allocate failure,0x0,99,0x5";
        let trace = trace(log).unwrap();
        let kinds: Vec<_> = trace.events.iter().map(|event| event.kind).collect();
        assert_eq!(
            kinds,
            [
                Kind::Alloc,
                Kind::FreeRequested,
                Kind::FreeCompleted,
                Kind::Oom
            ]
        );
        assert_eq!(trace.events[0].address, 0x7f_0000_0000);
        assert_eq!(
            trace.events[1].time.unwrap() - trace.events[0].time.unwrap(),
            2_000
        );
        assert_eq!(trace.events[3].stream, 5);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = trace("Thread,Time,Action,Pointer,Size,Stream\n1,2,3\n").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
