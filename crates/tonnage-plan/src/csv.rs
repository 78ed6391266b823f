// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems as CSV: one buffer per line, columns found by name.
//!
//! The format is minimalloc's and that of the collections around it. Columns may come in any order: `id` (or
//! `buffer`, `buffer_id`), `lower` (or `start`, `begin`), `upper` or `end`, `size`, and optionally `alignment`, `gaps`
//! and `offset`; other columns are ignored. Lifetimes are half-open with `upper`; an `end` is the last moment that
//! still counts, as in minimalloc. Gaps are `from-to` pairs separated by spaces.
//!
//! A row is interpreted field by field, on request: a recording has no place for alignments and gaps, so errors in them
//! do not concern its importer. The csv crate bounds nothing by itself, and one quote that is never closed would make
//! the rest of the file one record; therefore the source hands out a limited number of bytes for each record.

use std::borrow::Cow;
use std::io::{self, Chain, Read};
use std::ops::Range;

use csv::ByteRecord;

/// The longest line in bytes; one with a thousand gaps has less.
const MAX_LINE: usize = 1 << 16;

/// Why a planning problem cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// The file could not be read.
    #[error("cannot read the file")]
    Io(#[source] io::Error),
    /// The first line does not name the columns.
    #[error("the first line does not name the columns id, lower, upper and size")]
    Header,
    /// A line is not a buffer.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The problem.
        reason: &'static str,
    },
}

impl PlannerError {
    /// The fix.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io(_) => "check that the file is still there and readable",
            Self::Header => "a problem starts with a line such as id,lower,upper,size",
            Self::Line { .. } => {
                "correct the line; a buffer is a line such as b1,0,12,4096 under id,lower,upper,size"
            }
        }
    }
}

/// Which field is which.
#[derive(Clone, Debug)]
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    size: usize,
    alignment: Option<usize>,
    gaps: Option<usize>,
    offset: Option<usize>,
    /// 1 if lifetimes end with their last moment (`end`), 0 if with the first one after (`upper`).
    inclusive: i64,
}

impl Columns {
    fn from_header(header: &ByteRecord) -> Option<Self> {
        let names: Vec<String> = header
            .iter()
            .map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase())
            .collect();
        let find = |wanted: &[&str]| {
            names
                .iter()
                .position(|name| wanted.contains(&name.as_str()))
        };
        let upper = find(&["upper"]);
        Some(Self {
            id: find(&["id", "buffer", "buffer_id"])?,
            lower: find(&["lower", "start", "begin"])?,
            upper: upper.or_else(|| find(&["end"]))?,
            size: find(&["size"])?,
            alignment: find(&["alignment"]),
            gaps: find(&["gaps"]),
            offset: find(&["offset"]),
            inclusive: i64::from(upper.is_none()),
        })
    }
}

/// A planning problem, row by row.
///
/// ```
/// use tonnage_plan::csv::{PlannerError, ProblemReader};
///
/// let csv = "id,lower,upper,size,gaps\nweights,0,9,4096,\nhidden,1,4,512,2-3\n";
/// let mut reader = ProblemReader::new(csv.as_bytes())?;
/// let mut bytes = 0;
/// while let Some(row) = reader.next_row()? {
///     bytes += row.size()?;
/// }
/// assert_eq!(bytes, 4608);
/// # Ok::<(), PlannerError>(())
/// ```
#[derive(Debug)]
pub struct ProblemReader<R> {
    records: Records<R>,
    columns: Columns,
}

impl<R: Read> ProblemReader<R> {
    /// Reads the line that names the columns.
    pub fn new(source: R) -> Result<Self, PlannerError> {
        let mut records = Records::new(source);
        // A file without any line names no columns either.
        let is_there = records.advance()?;
        let columns = is_there
            .then(|| Columns::from_header(&records.record))
            .flatten();
        Ok(Self {
            columns: columns.ok_or(PlannerError::Header)?,
            records,
        })
    }

    /// The next buffer; `None` at the end. Blank lines are passed over.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, PlannerError> {
        while self.records.advance()? {
            let mut fields = self.records.record.iter();
            if !(fields.len() == 1 && fields.all(|field| field.trim_ascii().is_empty())) {
                return Ok(Some(Row {
                    line: self.records.line(),
                    record: &self.records.record,
                    columns: &self.columns,
                }));
            }
        }
        Ok(None)
    }
}

/// One buffer. Each part is interpreted on request.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    record: &'a ByteRecord,
    columns: &'a Columns,
    line: u64,
}

impl<'a> Row<'a> {
    /// An error about this line.
    pub fn error(&self, reason: &'static str) -> PlannerError {
        PlannerError::Line {
            line: self.line,
            reason,
        }
    }

    /// The name of the buffer.
    pub fn id(&self) -> Cow<'a, str> {
        let id = self.record.get(self.columns.id).unwrap_or_default();
        String::from_utf8_lossy(id.trim_ascii())
    }

    /// When it is in use; never empty.
    pub fn lifetime(&self) -> Result<Range<i64>, PlannerError> {
        let reason = "its lifetime is not a pair of numbers";
        let lower = self.time(self.field(Some(self.columns.lower)), reason)?;
        let upper = self.end(self.field(Some(self.columns.upper)), reason)?;
        if lower >= upper {
            return Err(self.error("it ends before it begins"));
        }
        Ok(lower..upper)
    }

    /// Bytes.
    pub fn size(&self) -> Result<u64, PlannerError> {
        let size = self.field(Some(self.columns.size)).parse();
        size.map_err(|_| self.error("its size is not a number"))
    }

    /// The alignment of its offset.
    pub fn alignment(&self) -> Result<Option<u64>, PlannerError> {
        self.optional(self.columns.alignment, "its alignment is not a number")
    }

    /// Where it was placed.
    pub fn offset(&self) -> Result<Option<u64>, PlannerError> {
        self.optional(self.columns.offset, "its offset is not a number")
    }

    /// The times in which its contents do not matter.
    pub fn gaps(&self) -> Result<Vec<Range<i64>>, PlannerError> {
        let reason = "a gap is not a pair of numbers";
        let gap = |text: &str| {
            if text.contains('@') {
                return Err(self
                    .error("gaps with a window are not supported; leave out what follows the @"));
            }
            let (from, to) = text.split_once('-').ok_or_else(|| self.error(reason))?;
            Ok(self.time(from, reason)?..self.end(to, reason)?)
        };
        let gaps = self.field(self.columns.gaps);
        gaps.split_whitespace().map(gap).collect()
    }

    /// A field as text; only numbers are read here, and a field that is not text is not a number either.
    fn field(&self, column: Option<usize>) -> &'a str {
        let field = column.and_then(|column| self.record.get(column));
        let text = std::str::from_utf8(field.unwrap_or_default());
        text.unwrap_or("\u{fffd}").trim()
    }

    fn optional(
        &self,
        column: Option<usize>,
        reason: &'static str,
    ) -> Result<Option<u64>, PlannerError> {
        let text = self.field(column);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| self.error(reason))
    }

    fn time(&self, text: &str, reason: &'static str) -> Result<i64, PlannerError> {
        text.parse().map_err(|_| self.error(reason))
    }

    /// The first moment after something.
    fn end(&self, text: &str, reason: &'static str) -> Result<i64, PlannerError> {
        let end = self.time(text, reason)?;
        let after = end.checked_add(self.columns.inclusive);
        after.ok_or_else(|| self.error("a time is too large"))
    }
}

/// Whether a file starts as a planning problem.
pub fn is_header(first: &[u8]) -> bool {
    let line = first.split(|byte| *byte == b'\n').next();
    let mut records = Records::new(line.unwrap_or_default());
    records
        .advance()
        .is_ok_and(|is_there| is_there && Columns::from_header(&records.record).is_some())
}

/// The records of a file.
#[derive(Debug)]
struct Records<R> {
    // The line feed at the end makes the last line like all others, so that lines can be counted by their ends.
    reader: csv::Reader<Limited<Chain<R, &'static [u8]>>>,
    record: ByteRecord,
}

impl<R: Read> Records<R> {
    fn new(source: R) -> Self {
        let source = Limited {
            source: source.chain(&b"\n"[..]),
            left: 0,
            is_exceeded: false,
        };
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            // A carriage return before it is trimmed from the last field.
            .terminator(csv::Terminator::Any(b'\n'))
            .from_reader(source);
        Self {
            reader,
            record: ByteRecord::new(),
        }
    }

    /// Reads the next record; whether there is one.
    fn advance(&mut self) -> Result<bool, PlannerError> {
        self.reader.get_mut().left = MAX_LINE;
        let begun = self.reader.position().line();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) if self.record.as_slice().len() > MAX_LINE => Err(PlannerError::Line {
                line: self.line(),
                reason: "it is longer than 64 KiB",
            }),
            Ok(is_there) => Ok(is_there),
            Err(_) if self.reader.get_ref().is_exceeded => Err(PlannerError::Line {
                line: begun,
                reason: if self.reader.position().line() == begun {
                    "it is longer than 64 KiB"
                } else {
                    "it is longer than 64 KiB; a quote may not be closed"
                },
            }),
            Err(error) => Err(PlannerError::Io(error.into())),
        }
    }

    /// The line in which the record begins; the position of the reader is the line after it.
    fn line(&self) -> u64 {
        let record = self.record.as_slice();
        let lines = record.split(|byte| *byte == b'\n').count() as u64;
        self.reader.position().line() - lines
    }
}

/// A source that ends in an error when one record takes too much of it.
#[derive(Debug)]
struct Limited<R> {
    source: R,
    /// Bytes that may still be read for this record.
    left: usize,
    is_exceeded: bool,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.is_exceeded = true;
            return Err(io::Error::other("a record is too long"));
        }
        let end = buffer.len().min(self.left);
        let got = self.source.read(&mut buffer[..end])?;
        self.left -= got;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything about each buffer, as text.
    fn read(csv: &[u8]) -> Result<Vec<String>, PlannerError> {
        let mut reader = ProblemReader::new(csv)?;
        let mut rows = Vec::new();
        while let Some(row) = reader.next_row()? {
            rows.push(format!(
                "{} {:?} {} {:?} {:?} {:?}",
                row.id(),
                row.lifetime()?,
                row.size()?,
                row.alignment()?,
                row.gaps()?,
                row.offset()?
            ));
        }
        Ok(rows)
    }

    #[test]
    fn columns_are_found_by_name() {
        for (csv, expect) in [
            ("id,lower,upper,size\na,0,5,7\n", "a 0..5 7 None [] None"),
            // An end still counts.
            (
                "size, end, BEGIN, buffer, gaps\r\n7, 5, 0, a, 1-2 4-4\r\n",
                "a 0..6 7 None [1..3, 4..5] None",
            ),
            (
                "\u{feff}offset,alignment,id,lower,upper,size,more\n8,4,a,-3,5,7,x",
                "a -3..5 7 Some(4) [] Some(8)",
            ),
            // If a row has two ends, the exclusive one counts, and nothing is added to it.
            (
                "id,lower,end,upper,size\na,0,4,5,7\n",
                "a 0..5 7 None [] None",
            ),
            (
                "id,lower,upper,size\n\"a, \"\"b\"\"\",\"0\",5,7\n",
                "a, \"b\" 0..5 7 None [] None",
            ),
        ] {
            assert_eq!(read(csv.as_bytes()).unwrap(), [expect], "{csv}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let header = "the first line does not name the columns id, lower, upper and size";
        let long = format!("id,lower,upper,size\na,0,5,1\n{}", "a".repeat(1 << 17));
        // Closed by nothing, however many lines follow.
        let open = format!(
            "id,lower,upper,size\na,0,5,1\n\"{}",
            "a,0,5,1\n".repeat(1 << 14)
        );
        for (csv, expect) in [
            ("", header),
            ("hello\n", header),
            ("id,lower,upper\n", header),
            (
                "id,lower,upper,size\na,0,5\n",
                "line 2: its size is not a number",
            ),
            (
                "id,lower,upper,size\r\n\r\n\r\na,5,5,1\r\n",
                "line 4: it ends before it begins",
            ),
            (
                "id,lower,upper,size\n\n  \n\"a\nb\",0,5,1\na,x,5,1",
                "line 6: its lifetime is not a pair of numbers",
            ),
            (
                "id,lower,end,size\na,0,9223372036854775807,1\n",
                "line 2: a time is too large",
            ),
            (
                "id,lower,upper,size,gaps\na,0,5,1,3\n",
                "line 2: a gap is not a pair of numbers",
            ),
            (
                "id,lower,upper,size,gaps\na,0,5,1,1-2@0:5\n",
                "line 2: gaps with a window are not supported; leave out what follows the @",
            ),
            (
                "id,lower,upper,size,alignment\na,0,5,1,-1\n",
                "line 2: its alignment is not a number",
            ),
            (
                "id,lower,upper,size,offset\na,0,5,1,x\n",
                "line 2: its offset is not a number",
            ),
            (&long, "line 3: it is longer than 64 KiB"),
            (
                &open,
                "line 3: it is longer than 64 KiB; a quote may not be closed",
            ),
        ] {
            let error = read(csv.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), expect, "{}", &csv[..csv.len().min(99)]);
            assert!(!error.hint().is_empty());
        }
        let bytes = read(b"id,lower,upper,size\n\xff,0,5,\xff\n").unwrap_err();
        assert_eq!(bytes.to_string(), "line 2: its size is not a number");
    }

    #[test]
    fn a_source_that_fails_is_named_as_such() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("unplugged"))
            }
        }
        let first = &b"id,lower,upper,size\na,0,5,1\n"[..];
        let mut reader = ProblemReader::new(first.chain(Broken)).unwrap();
        assert!(reader.next_row().unwrap().is_some());
        let error = reader.next_row().unwrap_err();
        assert!(matches!(error, PlannerError::Io(_)), "{error:?}");
    }
}
