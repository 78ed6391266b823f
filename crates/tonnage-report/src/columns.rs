// SPDX-License-Identifier: MIT OR Apache-2.0
//! Columns of numbers as bytes that compress well.
//!
//! A part of the data is a JSON text (what it holds, and the words) followed by columns. Numbers are written in groups
//! of seven bits, most of them as the difference to the one before: neighbours in a recording resemble each other, and
//! gzip finds what repeats from step to step. Nothing is larger than 2⁵³, up to which the page's numbers are exact.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use serde::Serialize;

/// The largest number that the page holds exactly.
const MAX: u64 = (1 << 53) - 1;

#[derive(Serialize)]
struct Column {
    name: &'static str,
    /// `u8`, `varint` or `delta`.
    kind: &'static str,
    count: usize,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Columns {
    directory: Vec<Column>,
    data: Vec<u8>,
}

impl Columns {
    /// One byte for each.
    pub(crate) fn small(&mut self, name: &'static str, values: impl IntoIterator<Item = u8>) {
        self.write_column(name, "u8", values, Vec::push);
    }

    /// Numbers as they are.
    pub(crate) fn plain(&mut self, name: &'static str, values: impl IntoIterator<Item = u64>) {
        self.write_column(name, "varint", values, |data, value| {
            varint(data, value.min(MAX));
        });
    }

    /// Numbers as the difference to the one before.
    pub(crate) fn deltas(&mut self, name: &'static str, values: impl IntoIterator<Item = u64>) {
        let mut before = 0_i64;
        self.write_column(name, "delta", values, |data, value| {
            let value = value.min(MAX).cast_signed();
            let difference = value - before;
            before = value;
            varint(
                data,
                ((difference << 1) ^ (difference >> 63)).cast_unsigned(),
            );
        });
    }

    fn write_column<T>(
        &mut self,
        name: &'static str,
        kind: &'static str,
        values: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Vec<u8>, T),
    ) {
        let from = self.data.len();
        let mut count = 0;
        for value in values {
            write(&mut self.data, value);
            count += 1;
        }
        self.directory.push(Column {
            name,
            kind,
            count,
            bytes: self.data.len() - from,
        });
    }

    /// All of it, compressed, with `facts` in front.
    pub(crate) fn packed(&self, facts: &impl Serialize) -> std::io::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Head<'a, T> {
            columns: &'a [Column],
            facts: &'a T,
        }
        let head = serde_json::to_vec(&Head {
            columns: &self.directory,
            facts,
        })?;
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::new(6));
        gzip.write_all(&(head.len() as u32).to_le_bytes())?;
        gzip.write_all(&head)?;
        gzip.write_all(&self.data)?;
        gzip.finish()
    }
}

fn varint(data: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        data.push(value as u8 | 0x80);
        value >>= 7;
    }
    data.push(value as u8);
}

/// Bytes as text that HTML leaves alone.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= three.len() {
                let value = bits >> (18 - 6 * digit) & 63;
                text.push(char::from(DIGITS[value as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{fb}ÿ", "w7vDvw=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn differences_of_any_size_are_written() {
        let mut columns = Columns::default();
        columns.deltas("x", [0, u64::MAX, 3, 0]);
        columns.plain("y", [u64::MAX, 127, 128]);
        assert_eq!(columns.directory[0].count, 4);
        assert_eq!(columns.directory[1].bytes, 8 + 1 + 2);
    }
}
