// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads pickles of plain data, protocols 0 to 5.
//!
//! A pickle is a program for a small stack machine. This one implements the instructions that build numbers,
//! texts, lists, tuples and dictionaries, and refuses by name every instruction that would import, call or
//! build anything else; there is no way from a file to running code. Nothing recurses, so nesting costs stack
//! entries, not stack frames; every length is checked before it is used and memory grows with the bytes read.
//!
//! Shared objects stay shared: the memo holds eight-byte references.

use std::io::Read;

use tonnage_recording::limits;

use crate::ImportError;
use crate::source::Source;
use crate::value::{Value, Values};

/// Values on the stack; PyTorch's C++ writer stacks all events of a device before it appends them.
const MAX_STACK: usize = 1 << 26;
/// Objects in the memo.
const MAX_MEMO: usize = 1 << 27;
/// Bytes of an integer: a longer one is not an address, size or time.
const MAX_INTEGER: usize = 16;
/// How many instructions run between two checks of the sizes that one instruction can change only by one.
const CHECK_EVERY: u32 = 1 << 12;

/// Reads one pickle and returns the value it stands for.
pub(crate) fn read<R: Read>(source: R, values: &mut Values<'_>) -> Result<Value, ImportError> {
    Machine {
        source: Source::new(source),
        values,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    }
    .run()
}

struct Machine<'m, 'a, R> {
    source: Source<R>,
    values: &'m mut Values<'a>,
    stack: Vec<Value>,
    /// Heights of the stack at each open mark.
    marks: Vec<usize>,
    memo: Vec<Value>,
}

impl<R: Read> Machine<'_, '_, R> {
    fn run(mut self) -> Result<Value, ImportError> {
        loop {
            for _ in 0..CHECK_EVERY {
                let opcode = self.source.byte()?;
                if opcode == b'.' {
                    return self.pop();
                }
                self.step(opcode)?;
            }
            self.check_sizes()?;
        }
    }

    fn check_sizes(&self) -> Result<(), ImportError> {
        if self.marks.len() > MAX_STACK {
            return Err(ImportError::TooLarge {
                what: "marks on the pickle's stack",
                limit: MAX_STACK as u64,
            });
        }
        self.values.check_size()
    }

    #[inline]
    fn step(&mut self, opcode: u8) -> Result<(), ImportError> {
        match opcode {
            // References to the memo are half of all instructions.
            b'h' => {
                let [index] = self.source.array()?;
                self.get(u32::from(index))
            }
            b'j' => {
                let index = u32::from_le_bytes(self.source.array()?);
                self.get(index)
            }
            0x94 => {
                let index = self.memo.len();
                self.save_memo(index as u64)
            }
            b'K' => {
                let [number] = self.source.array()?;
                self.push(Value::small(i32::from(number)))
            }
            b'M' => {
                let number = u16::from_le_bytes(self.source.array()?);
                self.push(Value::small(i32::from(number)))
            }
            b'J' => {
                let number = i32::from_le_bytes(self.source.array()?);
                self.push(Value::small(number))
            }
            0x8a => {
                let [length] = self.source.array()?;
                self.long(u64::from(length))
            }
            0x8b => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.long(u64::from(length))
            }
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'e' => {
                let (from, list) = self.marked_container()?;
                let done = self.values.extend_list(list, &self.stack[from..]);
                self.stack.truncate(from);
                done
            }
            b'u' => {
                let (from, dict) = self.marked_container()?;
                let done = self.values.extend_dict(dict, &self.stack[from..]);
                self.stack.truncate(from);
                done
            }
            b'}' => {
                let dict = self.values.new_dict();
                self.push(dict)
            }
            b']' => {
                let list = self.values.new_list();
                self.push(list)
            }
            0x86 => self.tuple_of(2),
            0x8c => {
                let [length] = self.source.array()?;
                self.text(u64::from(length))
            }
            b'X' => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.text(u64::from(length))
            }
            _ => self.rare_step(opcode),
        }
    }

    fn rare_step(&mut self, opcode: u8) -> Result<(), ImportError> {
        match opcode {
            0x80 => self.protocol(),
            // A frame's length is advice for readers that buffer; this one does not need it.
            0x95 => self.source.array::<8>().map(|_| ()),
            b'0' => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                    return Ok(());
                }
                self.pop().map(|_| ())
            }
            b'1' => {
                let from = self.mark()?;
                self.stack.truncate(from);
                Ok(())
            }
            b'2' => {
                let value = self.pop()?;
                self.push(value)?;
                self.push(value)
            }
            b'N' => self.push(Value::NONE),
            0x88 => self.push(Value::TRUE),
            0x89 => self.push(Value::FALSE),
            b'I' => self.int_line(),
            b'L' => self.long_line(),
            b'F' => self.float_line(),
            b'G' => {
                let number = f64::from_be_bytes(self.source.array()?);
                let value = self.values.float(number);
                self.push(value)
            }
            b'S' => self.string_line(),
            b'V' => self.unicode_line(),
            b'U' => {
                let [length] = self.source.array()?;
                self.text(u64::from(length))
            }
            b'T' => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.text(u64::from(length))
            }
            0x8d => {
                let length = u64::from_le_bytes(self.source.array()?);
                self.text(length)
            }
            b'C' => {
                let [length] = self.source.array()?;
                self.opaque(u64::from(length))
            }
            b'B' => {
                let length = u32::from_le_bytes(self.source.array()?);
                self.opaque(u64::from(length))
            }
            0x8e | 0x96 => {
                let length = u64::from_le_bytes(self.source.array()?);
                self.opaque(length)
            }
            b')' => self.tuple_of(0),
            0x85 => self.tuple_of(1),
            0x87 => self.tuple_of(3),
            b't' => {
                let from = self.mark()?;
                let tuple = self.values.tuple(&self.stack[from..])?;
                self.stack.truncate(from);
                self.push(tuple)
            }
            b'l' => {
                let from = self.mark()?;
                let list = self.values.new_list();
                self.values.extend_list(list, &self.stack[from..])?;
                self.stack.truncate(from);
                self.push(list)
            }
            b'd' => {
                let from = self.mark()?;
                let dict = self.values.new_dict();
                self.values.extend_dict(dict, &self.stack[from..])?;
                self.stack.truncate(from);
                self.push(dict)
            }
            b'a' => {
                let value = self.pop()?;
                let list = self.top()?;
                self.values.extend_list(list, &[value])
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dict = self.top()?;
                self.values.extend_dict(dict, &[key, value])
            }
            b'p' => {
                let index = self.number_line()?;
                self.save_memo(index)
            }
            b'q' => {
                let [index] = self.source.array()?;
                self.save_memo(u64::from(index))
            }
            b'r' => {
                let index = u32::from_le_bytes(self.source.array()?);
                self.save_memo(u64::from(index))
            }
            b'g' => {
                let index = self.number_line()?;
                let index = u32::try_from(index)
                    .map_err(|_| self.source.malformed("a memo index beyond 32 bits"))?;
                self.get(index)
            }
            _ => Err(self.refuse(opcode)),
        }
    }

    /// Every other instruction, by the name Python's `pickletools` gives it.
    fn refuse(&self, opcode: u8) -> ImportError {
        let name = match opcode {
            b'c' => "GLOBAL",
            0x93 => "STACK_GLOBAL",
            b'R' => "REDUCE",
            b'b' => "BUILD",
            b'i' => "INST",
            b'o' => "OBJ",
            0x81 => "NEWOBJ",
            0x92 => "NEWOBJ_EX",
            0x82 => "EXT1",
            0x83 => "EXT2",
            0x84 => "EXT4",
            b'P' => "PERSID",
            b'Q' => "BINPERSID",
            0x97 => "NEXT_BUFFER",
            0x98 => "READONLY_BUFFER",
            0x8f => "EMPTY_SET",
            0x90 => "ADDITEMS",
            0x91 => "FROZENSET",
            _ => {
                let offset = self.source.offset() - 1;
                return ImportError::Malformed {
                    offset,
                    reason: format!("{opcode:#04x} is not a pickle instruction"),
                };
            }
        };
        ImportError::RunsCode {
            opcode: name,
            offset: self.source.offset() - 1,
        }
    }

    fn protocol(&mut self) -> Result<(), ImportError> {
        match self.source.byte()? {
            0..=5 => Ok(()),
            other => Err(self
                .source
                .malformed(format!("pickle protocol {other} is unknown"))),
        }
    }

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), ImportError> {
        if self.stack.len() >= MAX_STACK {
            return Err(ImportError::TooLarge {
                what: "values on the pickle's stack",
                limit: MAX_STACK as u64,
            });
        }
        self.stack.push(value);
        Ok(())
    }

    /// Everything below the last mark is out of reach until the mark is gone.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, ImportError> {
        if self.stack.len() <= self.floor() {
            return Err(self
                .source
                .malformed("the pickle takes a value that is not there"));
        }
        self.stack.pop().ok_or_else(|| {
            self.source
                .malformed("the pickle takes a value that is not there")
        })
    }

    fn top(&self) -> Result<Value, ImportError> {
        let reachable = self.stack.get(self.floor()..).and_then(<[Value]>::last);
        reachable.copied().ok_or_else(|| {
            self.source
                .malformed("the pickle uses a value that is not there")
        })
    }

    fn mark(&mut self) -> Result<usize, ImportError> {
        self.marks.pop().ok_or_else(|| {
            self.source
                .malformed("the pickle goes back to a mark that is not there")
        })
    }

    /// Where the marked values start, and the container below the mark.
    #[inline]
    fn marked_container(&mut self) -> Result<(usize, Value), ImportError> {
        let from = self.mark()?;
        if from <= self.floor() {
            return Err(self
                .source
                .malformed("the pickle fills a container that is not there"));
        }
        Ok((from, self.stack[from - 1]))
    }

    fn tuple_of(&mut self, count: usize) -> Result<(), ImportError> {
        let from = self
            .stack
            .len()
            .checked_sub(count)
            .filter(|from| *from >= self.floor());
        let from = from.ok_or_else(|| {
            self.source
                .malformed("the pickle takes a value that is not there")
        })?;
        let tuple = self.values.tuple(&self.stack[from..])?;
        self.stack.truncate(from);
        self.push(tuple)
    }

    #[inline]
    fn get(&mut self, index: u32) -> Result<(), ImportError> {
        match self.memo.get(index as usize) {
            Some(value) if *value != Value::UNSET => {
                let value = *value;
                self.push(value)
            }
            _ => Err(self
                .source
                .malformed(format!("memo entry {index} is not set"))),
        }
    }

    #[inline]
    fn save_memo(&mut self, index: u64) -> Result<(), ImportError> {
        let value = self.top()?;
        let length = self.memo.len();
        if index == length as u64 && length < MAX_MEMO {
            self.memo.push(value);
            return Ok(());
        }
        self.put_elsewhere(index, value)
    }

    /// Every writer numbers the memo upwards, so indices larger than the bytes read so far are rejected, and gaps cost
    /// no more than the length of the file.
    fn put_elsewhere(&mut self, index: u64, value: Value) -> Result<(), ImportError> {
        if index > self.source.offset() || index >= MAX_MEMO as u64 {
            return Err(self.source.malformed(format!(
                "memo index {index} is beyond what the file can hold"
            )));
        }
        let index = index as usize;
        if self.memo.len() <= index {
            self.memo.resize(index + 1, Value::UNSET);
        }
        self.memo[index] = value;
        Ok(())
    }

    fn long(&mut self, length: u64) -> Result<(), ImportError> {
        let bytes = self.source.take(length, MAX_INTEGER)?;
        let mut wide = [if bytes.last().is_some_and(|byte| *byte >= 0x80) {
            0xff
        } else {
            0
        }; MAX_INTEGER];
        wide[..bytes.len()].copy_from_slice(bytes);
        let value = self.values.int(i128::from_le_bytes(wide));
        self.push(value)
    }

    fn text(&mut self, length: u64) -> Result<(), ImportError> {
        let bytes = self.source.take(length, limits::TEXT)?;
        let value = Values::text(self.values.stacks, bytes)?;
        self.push(value)
    }

    fn opaque(&mut self, length: u64) -> Result<(), ImportError> {
        self.source.take(length, limits::TEXT)?;
        self.push(Value::OPAQUE)
    }

    fn ascii_line(&mut self) -> Result<&str, ImportError> {
        let offset = self.source.offset();
        let line = self.source.line(64)?;
        let bad = || ImportError::Malformed {
            offset,
            reason: "an invalid number".to_owned(),
        };
        std::str::from_utf8(line)
            .map(str::trim_end)
            .map_err(|_| bad())
    }

    fn number_line(&mut self) -> Result<u64, ImportError> {
        let parsed = self.ascii_line()?.parse();
        parsed.map_err(|_| self.source.malformed("an invalid memo index"))
    }

    fn int_line(&mut self) -> Result<(), ImportError> {
        let number = match self.ascii_line()? {
            "00" => return self.push(Value::FALSE),
            "01" => return self.push(Value::TRUE),
            line => line.parse::<i128>(),
        };
        self.push_parsed(number.ok())
    }

    fn long_line(&mut self) -> Result<(), ImportError> {
        let number = self.ascii_line()?.trim_end_matches('L').parse::<i128>();
        self.push_parsed(number.ok())
    }

    fn push_parsed(&mut self, number: Option<i128>) -> Result<(), ImportError> {
        let number = number.ok_or_else(|| self.source.malformed("an invalid number"))?;
        let value = self.values.int(number);
        self.push(value)
    }

    fn float_line(&mut self) -> Result<(), ImportError> {
        let number = self.ascii_line()?.parse::<f64>();
        let number = number.map_err(|_| self.source.malformed("an invalid number"))?;
        let value = self.values.float(number);
        self.push(value)
    }

    /// Python 2's strings, as `repr` writes them. Escapes other than of quotes and backslashes stay as they are.
    fn string_line(&mut self) -> Result<(), ImportError> {
        let offset = self.source.offset();
        let bad = || ImportError::Malformed {
            offset,
            reason: "a string without its quotes".to_owned(),
        };
        let line = self.source.line(limits::TEXT)?.trim_ascii_end();
        let inner = match line {
            [open @ (b'\'' | b'"'), inner @ .., close] if open == close => inner,
            _ => return Err(bad()),
        };
        let mut text = Vec::with_capacity(inner.len());
        let mut rest = inner.iter().copied();
        while let Some(byte) = rest.next() {
            match byte {
                b'\\' => match rest.next().ok_or_else(bad)? {
                    escaped @ (b'\'' | b'"' | b'\\') => text.push(escaped),
                    other => text.extend([b'\\', other]),
                },
                plain => text.push(plain),
            }
        }
        let value = Values::text(self.values.stacks, &text)?;
        self.push(value)
    }

    /// Protocol 0's texts: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
    fn unicode_line(&mut self) -> Result<(), ImportError> {
        let line = self.source.line(limits::TEXT)?;
        let mut text = String::with_capacity(line.len());
        let mut rest = line;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            let digits = match (byte, after.first()) {
                (b'\\', Some(b'u')) => 4,
                (b'\\', Some(b'U')) => 8,
                _ => 0,
            };
            let escape = after
                .get(1..=digits)
                .filter(|_| digits > 0)
                .and_then(|hex| std::str::from_utf8(hex).ok());
            match escape.and_then(|hex| u32::from_str_radix(hex, 16).ok()) {
                Some(code) => {
                    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    rest = &after[digits + 1..];
                }
                None => text.push(char::from(*byte)),
            }
        }
        let value = Values::text(self.values.stacks, text.as_bytes())?;
        self.push(value)
    }
}
