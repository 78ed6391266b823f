// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory planning problems: CSV with one buffer per line, `id,lower,upper,size[,offset]`.
//!
//! The format of minimalloc and of the collections around it; `start` is accepted for `lower`. Lifetimes are
//! half-open with `upper`; an `end` is the last moment that still counts, as in minimalloc. A buffer becomes an `alloc` at `lower` and a free at `upper`; frees come
//! first among events of one moment, so that a buffer may take the place of one that ends there. Addresses are
//! the given offsets; without them buffers lie side by side, so that an address names one buffer.

use std::io::{Read, Write};

use tonnage_trace::{Event, Kind, TextId, Writer};

use crate::ImportError;
use crate::rmm::line;
use crate::source::Source;

/// Buffers of one problem; the largest published has two million.
const MAX_BUFFERS: usize = 1 << 24;

/// Whether a file starts as a planning problem.
pub fn is_header(first: &[u8]) -> bool {
    let line = first
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| Header::of(line).is_some())
}

/// Where each column is.
struct Header {
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    offset: Option<usize>,
    /// 1 where the column is an `end`, 0 where it is an `upper`.
    inclusive: i64,
}

impl Header {
    fn of(line: &str) -> Option<Self> {
        let names: Vec<String> = line
            .split(',')
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let find = |wanted: &[&str]| {
            names
                .iter()
                .position(|name| wanted.contains(&name.as_str()))
        };
        Some(Self {
            id: find(&["id", "buffer", "buffer_id"])?,
            lower: find(&["lower", "start", "begin"])?,
            upper: find(&["upper"]).or_else(|| find(&["end"]))?,
            size: find(&["size"])?,
            offset: find(&["offset"]),
            inclusive: i64::from(find(&["upper"]).is_none()),
        })
    }
}

struct Buffer {
    id: TextId,
    lower: i64,
    upper: i64,
    size: u64,
    address: u64,
}

/// Reads a problem into a trace and returns the number of events.
pub fn import<W: Write>(
    source: impl Read,
    process: u32,
    writer: &mut Writer<W>,
) -> Result<u64, ImportError> {
    let mut source = Source::new(source);
    let header = Header::of(&line(&mut source)?).ok_or(ImportError::UnknownFormat)?;
    let buffers = read(&mut source, &header, writer)?;
    writer.meta(process, "clock", "steps of the planning problem")?;
    // Moment, frees before allocations, order of the file.
    let mut order: Vec<(i64, bool, u32)> = Vec::with_capacity(buffers.len() * 2);
    for (buffer, index) in buffers.iter().zip(0..) {
        order.push((buffer.lower, true, index));
        order.push((buffer.upper, false, index));
    }
    order.sort_unstable();
    let mut events = 0;
    for (time, is_alloc, index) in order {
        let buffer = &buffers[index as usize];
        let event = Event {
            process,
            time: Some(time),
            address: buffer.address,
            size: buffer.size,
            requested: buffer.size,
            name: Some(buffer.id),
            ..Event::new(Kind::Alloc)
        };
        let kinds: &[Kind] = if is_alloc {
            &[Kind::Alloc]
        } else {
            &[Kind::FreeRequested, Kind::FreeCompleted]
        };
        for kind in kinds {
            writer.event(&Event {
                kind: *kind,
                ..event
            })?;
            events += 1;
        }
    }
    Ok(events)
}

fn read<R: Read, W: Write>(
    source: &mut Source<R>,
    header: &Header,
    writer: &mut Writer<W>,
) -> Result<Vec<Buffer>, ImportError> {
    let (mut buffers, mut number, mut next_address) = (Vec::new(), 1_u64, 0_u64);
    while source.peek()?.is_some() {
        number += 1;
        let text = line(source)?;
        if text.trim().is_empty() {
            continue;
        }
        if buffers.len() >= MAX_BUFFERS {
            return Err(ImportError::TooLarge {
                what: "buffers",
                limit: MAX_BUFFERS as u64,
            });
        }
        let bad = |reason: &str| ImportError::Malformed {
            offset: source.offset(),
            reason: format!("line {number}: {reason}"),
        };
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or_default();
        let last = field(header.upper).parse::<i64>().ok();
        let upper = last.and_then(|last| last.checked_add(header.inclusive));
        let (lower, upper) = field(header.lower)
            .parse()
            .ok()
            .zip(upper)
            .ok_or_else(|| bad("its lifetime is no pair of numbers"))?;
        let size: u64 = field(header.size)
            .parse()
            .map_err(|_| bad("its size is not a number"))?;
        if upper <= lower {
            return Err(bad("it ends before it begins"));
        }
        let address = match header.offset {
            Some(index) => field(index)
                .parse()
                .map_err(|_| bad("its offset is not a number"))?,
            None => next_address,
        };
        next_address = next_address
            .checked_add(size)
            .ok_or_else(|| bad("the sizes add up to more than 64 bits"))?;
        buffers.push(Buffer {
            id: writer.stacks_mut().intern(field(header.id)),
            lower,
            upper,
            size,
            address,
        });
    }
    Ok(buffers)
}

#[cfg(test)]
mod tests {
    use tonnage_trace::Trace;

    use super::*;

    fn trace(csv: &str) -> Result<Trace, ImportError> {
        let mut writer = Writer::new(Vec::new(), "test 0")?;
        import(csv.as_bytes(), 0, &mut writer)?;
        Ok(Trace::read(writer.finish()?.as_slice()).unwrap())
    }

    #[test]
    fn lifetimes_are_half_open_and_frees_come_first() {
        let trace = trace("id,lower,upper,size\na,0,5,100\nb,5,9,50\n").unwrap();
        let seen: Vec<_> = trace
            .events
            .iter()
            .map(|event| (event.time.unwrap(), event.kind, event.address))
            .collect();
        assert_eq!(
            seen,
            [
                (0, Kind::Alloc, 0),
                (5, Kind::FreeRequested, 0),
                (5, Kind::FreeCompleted, 0),
                (5, Kind::Alloc, 100),
                (9, Kind::FreeRequested, 100),
                (9, Kind::FreeCompleted, 100),
            ]
        );
    }

    #[test]
    fn offsets_are_addresses_and_bad_lines_are_named() {
        let with_offsets = trace("id,start,end,size,offset\nx,1,2,3,77").unwrap();
        assert_eq!(with_offsets.events[0].address, 77);
        assert_eq!(with_offsets.events[1].time, Some(3), "an end still counts");
        for (csv, expect) in [
            ("id,lower,upper,size\na,0,5\n", "line 2: its size"),
            (
                "id,lower,upper,size\na,0,5,1\nb,5,5,1\n",
                "line 3: it ends before",
            ),
            ("id,lower,upper,size\na,x,5,1\n", "line 2: its lifetime"),
        ] {
            let error = trace(csv).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
