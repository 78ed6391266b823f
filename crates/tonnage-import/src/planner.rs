// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory planning problems as recordings.
//!
//! [`import`] makes a recording of the buffers that [`ProblemReader`] reads: a buffer becomes an `alloc` at the start of its lifetime and a free at the end; frees come first among events
//! of one moment, so that a buffer may take the place of one that ends there. Addresses are the given offsets; buffers
//! without one lie side by side, so that an address names one buffer. A recording has no place for alignments and
//! gaps.

use std::io::{Read, Write};

use tonnage_plan::csv::ProblemReader;
use tonnage_recording::{Event, Kind, TextId, Writer};

use crate::ImportError;

/// Buffers of one problem; the largest published has two million.
const MAX_BUFFERS: usize = 1 << 24;

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
    let buffers = read(source, writer)?;
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

fn read<W: Write>(source: impl Read, writer: &mut Writer<W>) -> Result<Vec<Buffer>, ImportError> {
    let mut reader = ProblemReader::new(source)?;
    let (mut buffers, mut next_address) = (Vec::new(), 0_u64);
    while let Some(row) = reader.next_row()? {
        if buffers.len() >= MAX_BUFFERS {
            return Err(ImportError::TooLarge {
                what: "buffers",
                limit: MAX_BUFFERS as u64,
            });
        }
        let (lifetime, size) = (row.lifetime()?, row.size()?);
        let address = row.offset()?.unwrap_or(next_address);
        next_address = next_address
            .checked_add(size)
            .ok_or_else(|| row.error("the sizes add up to more than 64 bits"))?;
        buffers.push(Buffer {
            id: writer.stacks_mut().intern(&row.id()),
            lower: lifetime.start,
            upper: lifetime.end,
            size,
            address,
        });
    }
    Ok(buffers)
}

#[cfg(test)]
mod tests {
    use tonnage_recording::Trace;

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
    fn offsets_are_addresses_and_errors_are_those_of_the_reader() {
        let with_offsets = trace("id,start,end,size,offset\nx,1,2,3,77").unwrap();
        assert_eq!(with_offsets.events[0].address, 77);
        assert_eq!(with_offsets.events[1].time, Some(3), "an end still counts");
        let mixed = trace("id,start,end,size,offset\nx,1,2,3,77\ny,2,3,4,\n").unwrap();
        assert_eq!(mixed.events[1].address, 3, "y has no offset");
        let refused = trace("id,lower,upper,size\na,0,5,1\nb,5,5,1\n").unwrap_err();
        assert_eq!(refused.to_string(), "line 3: it ends before it begins");
        assert!(refused.hint().starts_with("correct the line"));
        // A recording has no gaps, so they are not read.
        trace("id,lower,upper,size,gaps\na,0,5,1,none\n").unwrap();
    }
}
