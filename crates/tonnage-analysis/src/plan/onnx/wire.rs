// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protobuf messages read from a stream, field by field; unrequested fields are passed over and never held.

use std::io::{self, BufRead, BufReader, Read};

use super::error::OnnxError;

/// Bytes of a name; longer ones are refused.
const MAX_NAME: u64 = 1 << 12;

/// A field of a message; the bytes of an inner message are still to be read.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Number(u64),
    /// Where it ends.
    Inner(u64),
    /// Passed over already.
    Fixed,
}

/// The bytes of messages, one after the other.
pub(super) struct Wire<R> {
    source: BufReader<R>,
    /// Bytes read so far.
    pub(super) at: u64,
}

impl<R: Read> Wire<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source: BufReader::new(source),
            at: 0,
        }
    }

    pub(super) fn damaged(&self, reason: &'static str) -> OnnxError {
        OnnxError::Damaged {
            at: self.at,
            reason,
        }
    }

    fn byte(&mut self) -> Result<Option<u8>, OnnxError> {
        let first = self.source.fill_buf()?.first().copied();
        if first.is_some() {
            self.source.consume(1);
            self.at += 1;
        }
        Ok(first)
    }

    pub(super) fn varint(&mut self, end: u64) -> Result<u64, OnnxError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            if self.at >= end {
                return Err(self.damaged("a number reaches beyond its message"));
            }
            let Some(byte) = self.byte()? else {
                return Err(self.damaged("it ends within a number"));
            };
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged("a number has more than 64 bits"))
    }

    /// The next field of the message that ends there; `None` at its end.
    pub(super) fn field(&mut self, end: u64) -> Result<Option<(u64, Value)>, OnnxError> {
        if self.at >= end || end == u64::MAX && self.source.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let tag = self.varint(end)?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint(end)?),
            2 => {
                let length = self.varint(end)?;
                match self.at.checked_add(length) {
                    Some(inner) if inner <= end && inner < u64::MAX => Value::Inner(inner),
                    _ => return Err(self.damaged("a field reaches beyond its message")),
                }
            }
            kind @ (1 | 5) => {
                let length = if kind == 1 { 8 } else { 4 };
                if end - self.at < length {
                    return Err(self.damaged("a field reaches beyond its message"));
                }
                self.skip(self.at + length)?;
                Value::Fixed
            }
            _ => return Err(self.damaged("a field has an unknown kind")),
        };
        Ok(Some((tag >> 3, value)))
    }

    pub(super) fn skip(&mut self, end: u64) -> Result<(), OnnxError> {
        let length = end.saturating_sub(self.at);
        let passed = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
        self.at += passed;
        if passed < length {
            return Err(self.damaged("it ends within a field"));
        }
        Ok(())
    }

    /// Passes over an unrequested field.
    pub(super) fn pass(&mut self, value: Value) -> Result<(), OnnxError> {
        match value {
            Value::Inner(end) => self.skip(end),
            Value::Number(_) | Value::Fixed => Ok(()),
        }
    }

    pub(super) fn text(&mut self, end: u64) -> Result<String, OnnxError> {
        let length = end.saturating_sub(self.at);
        if length > MAX_NAME {
            return Err(self.damaged("a name is longer than 4 KiB"));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        self.source.by_ref().take(length).read_to_end(&mut bytes)?;
        self.at += bytes.len() as u64;
        if (bytes.len() as u64) < length {
            return Err(self.damaged("it ends within a name"));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
