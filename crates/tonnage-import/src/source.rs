// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of a foreign file, in order, through one reused buffer.
//!
//! A snapshot of 1.5 million events is a quarter of a gigabyte; reading it whole would cost more memory than its
//! information. The buffer grows only for a single text that is longer, and only as its bytes arrive.

use std::io::Read;

use crate::ImportError;

const CAPACITY: usize = 1 << 18;

/// A reader with a window of bytes that are ready.
pub(crate) struct Source<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `buffer[0]` in the file.
    base: u64,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: vec![0; CAPACITY],
            start: 0,
            end: 0,
            base: 0,
        }
    }

    /// Bytes taken so far.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// The next byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, ImportError> {
        if self.start == self.end && !self.fill(1)? {
            return Err(self.incomplete());
        }
        let byte = self.buffer[self.start];
        self.start += 1;
        Ok(byte)
    }

    /// The next byte, left in place; none at the end.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>, ImportError> {
        if self.start == self.end && !self.fill(1)? {
            return Ok(None);
        }
        Ok(Some(self.buffer[self.start]))
    }

    /// The next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ImportError> {
        if self.end - self.start < N && !self.fill(N)? {
            return Err(self.incomplete());
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buffer[self.start..self.start + N]);
        self.start += N;
        Ok(bytes)
    }

    /// The next `length` bytes, which must be below `limit`.
    #[inline]
    pub(crate) fn take(&mut self, length: u64, limit: usize) -> Result<&[u8], ImportError> {
        if length > limit as u64 {
            return Err(ImportError::TooLarge {
                what: "bytes in one value",
                limit: limit as u64,
            });
        }
        let length = length as usize;
        if self.end - self.start < length && !self.fill(length)? {
            return Err(self.incomplete());
        }
        self.start += length;
        Ok(&self.buffer[self.start - length..self.start])
    }

    /// The bytes up to the next line feed, which is taken too but not returned.
    pub(crate) fn line(&mut self, limit: usize) -> Result<&[u8], ImportError> {
        let mut searched = 0;
        loop {
            let window = &self.buffer[self.start..self.end];
            if let Some(at) = window[searched..].iter().position(|byte| *byte == b'\n') {
                let (from, to) = (self.start, self.start + searched + at);
                self.start = to + 1;
                return Ok(&self.buffer[from..to]);
            }
            searched = window.len();
            if searched > limit {
                return Err(ImportError::TooLarge {
                    what: "bytes in one line",
                    limit: limit as u64,
                });
            }
            if !self.fill(searched + 1)? {
                return Err(self.incomplete());
            }
        }
    }

    /// All bytes that are left of a last line without line feed.
    pub(crate) fn rest(&mut self) -> &[u8] {
        let from = self.start;
        self.start = self.end;
        &self.buffer[from..self.end]
    }

    /// Makes `wanted` bytes ready; returns whether they exist. The buffer grows in steps, so a file that only announces
    /// a length does not cost it.
    #[cold]
    fn fill(&mut self, wanted: usize) -> Result<bool, ImportError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            if self.end == self.buffer.len() {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(got) => self.end += got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ImportError::Io {
                        offset: self.offset(),
                        source,
                    });
                }
            }
        }
        Ok(true)
    }

    pub(crate) fn incomplete(&self) -> ImportError {
        ImportError::Incomplete {
            offset: self.base + self.end as u64,
        }
    }

    pub(crate) fn malformed(&self, reason: impl Into<String>) -> ImportError {
        ImportError::Malformed {
            offset: self.offset(),
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_across_the_buffer_edge_are_whole() {
        let bytes: Vec<u8> = (0..CAPACITY * 3 + 7)
            .map(|index| (index % 251) as u8)
            .collect();
        let mut source = Source::new(bytes.as_slice());
        let mut seen = Vec::new();
        while seen.len() + 1000 <= bytes.len() {
            seen.extend_from_slice(source.take(997, 1000).unwrap());
            seen.extend(source.array::<3>().unwrap());
            assert_eq!(source.offset(), seen.len() as u64);
        }
        assert_eq!(seen, bytes[..seen.len()]);
        assert!(matches!(
            source.take(5000, 9999),
            Err(ImportError::Incomplete { .. })
        ));
    }

    #[test]
    fn a_line_longer_than_the_buffer_is_read_up_to_the_limit() {
        let mut text = vec![b'x'; CAPACITY + 10];
        text.extend(b"\nrest");
        let mut source = Source::new(text.as_slice());
        assert_eq!(source.line(1 << 20).unwrap().len(), CAPACITY + 10);
        assert!(matches!(
            source.line(1 << 20),
            Err(ImportError::Incomplete { .. })
        ));
        assert_eq!(source.rest(), b"rest");
        assert!(matches!(
            Source::new(text.as_slice()).line(10),
            Err(ImportError::TooLarge { .. })
        ));
    }
}
