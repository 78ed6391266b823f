// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a pickle of plain data, protocol 4, piece by piece.
//!
//! The opcodes are those Python's own writer uses for a snapshot, because PyTorch's viewer in the browser knows no
//! others and refuses protocol 5. Only what is shared is memoised: texts, frames and stacks, not every event. Bytes
//! go out in frames of 64 KiB, which is what lets Python's reader avoid one call per opcode.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::ExportError;

const PROTOCOL: u8 = 4;
const FRAME_BYTES: usize = 64 << 10;
/// Items between two `APPENDS`, as in Python's writer: a reader holds this many on its stack.
const BATCH: usize = 1000;

/// A place in the memo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared(u32);

/// Items since the last `APPENDS` of a list that is being written.
#[derive(Debug, Default)]
pub(crate) struct List(usize);

pub(crate) struct Pickler<W> {
    destination: W,
    frame: Vec<u8>,
    memoised: u32,
    texts: HashMap<Box<str>, Shared>,
}

impl<W: Write> Pickler<W> {
    pub(crate) fn new(mut destination: W) -> Result<Self, ExportError> {
        let header = destination.write_all(&[0x80, PROTOCOL]);
        header.map_err(ExportError::Write)?;
        Ok(Self {
            destination,
            frame: Vec::with_capacity(FRAME_BYTES + 1024),
            memoised: 0,
            texts: HashMap::new(),
        })
    }

    /// Ends the pickle and gives the destination back.
    pub(crate) fn finish(mut self) -> Result<W, ExportError> {
        self.frame.push(b'.');
        self.send().map_err(ExportError::Write)?;
        self.destination.flush().map_err(ExportError::Write)?;
        Ok(self.destination)
    }

    fn send(&mut self) -> io::Result<()> {
        self.destination.write_all(&[0x95])?;
        let length = self.frame.len() as u64;
        self.destination.write_all(&length.to_le_bytes())?;
        self.destination.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }

    fn write(&mut self, opcode: &[u8]) -> Result<(), ExportError> {
        self.frame.extend_from_slice(opcode);
        if self.frame.len() >= FRAME_BYTES {
            self.send().map_err(ExportError::Write)?;
        }
        Ok(())
    }

    pub(crate) fn memoise(&mut self) -> Result<Shared, ExportError> {
        let place = Shared(self.memoised);
        self.memoised = self.memoised.checked_add(1).ok_or(ExportError::TooLarge {
            limit: u64::from(u32::MAX),
        })?;
        self.write(&[0x94])?;
        Ok(place)
    }

    pub(crate) fn get(&mut self, place: Shared) -> Result<(), ExportError> {
        if let Ok(short) = u8::try_from(place.0) {
            return self.write(&[b'h', short]);
        }
        let [a, b, c, d] = place.0.to_le_bytes();
        self.write(&[b'j', a, b, c, d])
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), ExportError> {
        if let Some(place) = self.texts.get(text).copied() {
            return self.get(place);
        }
        if let Ok(length) = u8::try_from(text.len()) {
            self.frame.extend_from_slice(&[0x8c, length]);
        } else {
            self.frame.push(b'X');
            // A batch of a trace has at most 256 MiB, so the length fits.
            self.frame
                .extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
        self.write(text.as_bytes())?;
        let place = self.memoise()?;
        self.texts.insert(text.into(), place);
        Ok(())
    }

    pub(crate) fn number(&mut self, number: impl Into<i128>) -> Result<(), ExportError> {
        let number = number.into();
        if let Ok(byte) = u8::try_from(number) {
            return self.write(&[b'K', byte]);
        }
        if let Ok(short) = u16::try_from(number) {
            let [a, b] = short.to_le_bytes();
            return self.write(&[b'M', a, b]);
        }
        if let Ok(int) = i32::try_from(number) {
            let [a, b, c, d] = int.to_le_bytes();
            return self.write(&[b'J', a, b, c, d]);
        }
        // Two's complement without the bytes that only repeat the sign, as Python writes it.
        let bytes = number.to_le_bytes();
        let repeats = |length: usize| {
            let negative = bytes[length - 1] & 0x80 != 0;
            let fill = if negative { 0xff } else { 0 };
            bytes[length..].iter().all(|byte| *byte == fill) && negative == (number < 0)
        };
        let length = (1..bytes.len()).find(|length| repeats(*length));
        let length = length.unwrap_or(bytes.len());
        self.frame.extend_from_slice(&[0x8a, length as u8]);
        self.write(&bytes[..length])
    }

    pub(crate) fn float(&mut self, number: f64) -> Result<(), ExportError> {
        self.frame.push(b'G');
        self.write(&number.to_be_bytes())
    }

    pub(crate) fn flag(&mut self, flag: bool) -> Result<(), ExportError> {
        self.write(&[if flag { 0x88 } else { 0x89 }])
    }

    pub(crate) fn none(&mut self) -> Result<(), ExportError> {
        self.write(b"N")
    }

    /// Makes a pair of the last two values.
    pub(crate) fn pair(&mut self) -> Result<(), ExportError> {
        self.write(&[0x86])
    }

    /// Starts a dictionary; keys and values follow, then [`Self::close_dict`].
    pub(crate) fn open_dict(&mut self) -> Result<(), ExportError> {
        self.write(b"}(")
    }

    pub(crate) fn close_dict(&mut self) -> Result<(), ExportError> {
        self.write(b"u")
    }

    /// Starts a list; [`Self::item`] goes before each item, [`Self::close_list`] after the last.
    pub(crate) fn open_list(&mut self) -> Result<List, ExportError> {
        self.write(b"]")?;
        Ok(List(0))
    }

    pub(crate) fn item(&mut self, list: &mut List) -> Result<(), ExportError> {
        if list.0 == BATCH {
            self.write(b"e")?;
            list.0 = 0;
        }
        if list.0 == 0 {
            self.write(b"(")?;
        }
        list.0 += 1;
        Ok(())
    }

    #[expect(clippy::needless_pass_by_value, reason = "a list is closed once")]
    pub(crate) fn close_list(&mut self, list: List) -> Result<(), ExportError> {
        if list.0 > 0 { self.write(b"e") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(write: impl FnOnce(&mut Pickler<Vec<u8>>)) -> Vec<u8> {
        let mut pickler = Pickler::new(Vec::new()).unwrap();
        write(&mut pickler);
        let bytes = pickler.finish().unwrap();
        bytes[11..bytes.len() - 1].to_vec() // PROTO 4, FRAME length, …, STOP
    }

    #[test]
    fn numbers_take_the_bytes_python_gives_them() {
        let cases: [(i128, &[u8]); 9] = [
            (0, b"K\0"),
            (255, b"K\xff"),
            (256, b"M\0\x01"),
            (65_536, b"J\0\0\x01\0"),
            (-1, b"J\xff\xff\xff\xff"),
            (1 << 31, b"\x8a\x05\0\0\0\x80\0"),
            (-(1 << 31) - 1, b"\x8a\x05\xff\xff\xff\x7f\xff"),
            (
                i128::from(u64::MAX),
                b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0",
            ),
            (i128::from(i64::MIN), b"\x8a\x08\0\0\0\0\0\0\0\x80"),
        ];
        for (number, expect) in cases {
            assert_eq!(body(|p| p.number(number).unwrap()), expect, "{number}");
        }
    }

    #[test]
    fn a_text_is_written_once_and_long_lists_in_batches() {
        assert_eq!(
            body(|p| {
                p.text("ab").unwrap();
                p.text("ab").unwrap();
            }),
            b"\x8c\x02ab\x94h\0"
        );
        let list = body(|p| {
            let mut list = p.open_list().unwrap();
            for _ in 0..2001 {
                p.item(&mut list).unwrap();
                p.flag(true).unwrap();
            }
            p.close_list(list).unwrap();
        });
        assert_eq!(list.split(|byte| *byte == b'e').count(), 4);
        assert_eq!(
            body(|p| {
                let list = p.open_list().unwrap();
                p.close_list(list).unwrap();
            }),
            b"]"
        );
    }
}
