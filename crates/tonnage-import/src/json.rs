// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the JSON form of a snapshot into the same values as a pickle.
//!
//! Written by hand instead of with serde because a dump of a snapshot repeats every frame of every stack in
//! full: here an object turns into its record as soon as it closes, so only the records stay. It accepts what
//! Python's `json` writes, which includes `NaN` and `Infinity`. Nesting is bounded.

use std::io::Read;

use tonnage_recording::limits;

use crate::ImportError;
use crate::source::Source;
use crate::value::{Value, Values};

/// A snapshot nests seven deep.
const MAX_DEPTH: usize = 64;
/// Values between two checks of the sizes.
const CHECK_EVERY: u32 = 1 << 12;

/// Reads one JSON value, which must be all there is.
pub(crate) fn read<R: Read>(source: R, values: &mut Values<'_>) -> Result<Value, ImportError> {
    let mut parser = Parser {
        source: Source::new(source),
        values,
        stack: Vec::new(),
        text: Vec::new(),
        until_check: CHECK_EVERY,
    };
    let root = parser.value(0)?;
    match parser.skip_space()? {
        None => Ok(root),
        Some(_) => Err(parser
            .source
            .malformed("there is more after the end of the JSON value")),
    }
}

/// Appends a JSON string.
pub(crate) fn quote(into: &mut String, text: &str) {
    into.push('"');
    for character in text.chars() {
        match character {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            control if control < ' ' => {
                into.extend(format!("\\u{:04x}", u32::from(control)).chars());
            }
            plain => into.push(plain),
        }
    }
    into.push('"');
}

struct Parser<'m, 'a, R> {
    source: Source<R>,
    values: &'m mut Values<'a>,
    /// Elements of all open containers.
    stack: Vec<Value>,
    text: Vec<u8>,
    until_check: u32,
}

impl<R: Read> Parser<'_, '_, R> {
    fn value(&mut self, depth: usize) -> Result<Value, ImportError> {
        if depth > MAX_DEPTH {
            return Err(ImportError::TooLarge {
                what: "levels of nesting",
                limit: MAX_DEPTH as u64,
            });
        }
        self.until_check -= 1;
        if self.until_check == 0 {
            self.until_check = CHECK_EVERY;
            self.values.check_size()?;
        }
        match self.need()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => {
                self.string()?;
                Values::text(self.values.stacks, &self.text)
            }
            b't' => self.word(b"true", Value::TRUE),
            b'f' => self.word(b"false", Value::FALSE),
            b'n' => self.word(b"null", Value::NONE),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, ImportError> {
        self.source.byte()?;
        let from = self.stack.len();
        if self.need()? == b'}' {
            self.source.byte()?;
            return Ok(self.values.new_dict());
        }
        loop {
            if self.need()? != b'"' {
                return Err(self.source.malformed("a key that is not a string"));
            }
            self.string()?;
            let key = Values::text(self.values.stacks, &self.text)?;
            self.stack.push(key);
            if self.need()? != b':' {
                return Err(self.source.malformed("a key without a colon"));
            }
            self.source.byte()?;
            let value = self.value(depth + 1)?;
            self.stack.push(value);
            if self.closes(b'}')? {
                break;
            }
        }
        let dict = self.values.new_dict();
        self.values.extend_dict(dict, &self.stack[from..])?;
        self.stack.truncate(from);
        Ok(dict)
    }

    fn array(&mut self, depth: usize) -> Result<Value, ImportError> {
        self.source.byte()?;
        let from = self.stack.len();
        if self.need()? == b']' {
            self.source.byte()?;
            return Ok(self.values.new_list());
        }
        loop {
            let value = self.value(depth + 1)?;
            self.stack.push(value);
            if self.closes(b']')? {
                break;
            }
        }
        let list = self.values.new_list();
        self.values.extend_list(list, &self.stack[from..])?;
        self.stack.truncate(from);
        Ok(list)
    }

    /// Takes a comma or the closing bracket; returns which.
    fn closes(&mut self, bracket: u8) -> Result<bool, ImportError> {
        let byte = self.need()?;
        if byte != b',' && byte != bracket {
            return Err(self
                .source
                .malformed("neither a comma nor a closing bracket"));
        }
        self.source.byte()?;
        Ok(byte == bracket)
    }

    fn skip_space(&mut self) -> Result<Option<u8>, ImportError> {
        loop {
            match self.source.peek()? {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.source.byte()?,
                other => return Ok(other),
            };
        }
    }

    fn need(&mut self) -> Result<u8, ImportError> {
        self.skip_space()?.ok_or_else(|| self.source.incomplete())
    }

    fn word(&mut self, word: &[u8], value: Value) -> Result<Value, ImportError> {
        if self.source.take(word.len() as u64, 8)? == word {
            return Ok(value);
        }
        Err(self.source.malformed("a word that is not JSON"))
    }

    /// Leaves the string in `self.text`.
    fn string(&mut self) -> Result<(), ImportError> {
        self.source.byte()?;
        self.text.clear();
        loop {
            match self.source.byte()? {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                plain => self.text.push(plain),
            }
            if self.text.len() > limits::TEXT {
                return Err(ImportError::TooLarge {
                    what: "bytes in one value",
                    limit: limits::TEXT as u64,
                });
            }
        }
    }

    fn escape(&mut self) -> Result<(), ImportError> {
        let byte = match self.source.byte()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let character = self.unicode()?;
                self.text
                    .extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            same @ (b'"' | b'\\' | b'/') => same,
            _ => return Err(self.source.malformed("an unknown escape in a string")),
        };
        self.text.push(byte);
        Ok(())
    }

    /// Four hexadecimal digits, twice for characters beyond 16 bits; a lone half is replaced.
    fn unicode(&mut self) -> Result<char, ImportError> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) || self.source.peek()? != Some(b'\\') {
            return Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        self.source.byte()?;
        if self.source.byte()? != b'u' {
            return Err(self.source.malformed("an unpaired surrogate in a string"));
        }
        let second = self.four_digits()?;
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second & 0x3ff);
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_digits(&mut self) -> Result<u32, ImportError> {
        let digits = self.source.array::<4>()?;
        let code = std::str::from_utf8(&digits)
            .ok()
            .and_then(|hex| u32::from_str_radix(hex, 16).ok());
        code.ok_or_else(|| self.source.malformed("an invalid character code"))
    }

    fn number(&mut self) -> Result<Value, ImportError> {
        self.text.clear();
        while let Some(byte) = self.source.peek()? {
            if !(byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
                || self.text.len() > 64
            {
                break;
            }
            self.text.push(byte);
            self.source.byte()?;
        }
        let text = std::str::from_utf8(&self.text).unwrap_or_default();
        if let Ok(number) = text.parse::<i128>() {
            return Ok(self.values.int(number));
        }
        match text.parse::<f64>() {
            Ok(number) => Ok(self.values.float(number)),
            Err(_) => Err(self.source.malformed("an invalid number")),
        }
    }
}
