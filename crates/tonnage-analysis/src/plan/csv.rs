// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems as CSV, with everything that minimalloc's format says about a buffer.
//!
//! Columns by name, in any order: `id` (or `buffer`), `lower` (or `start`, `begin`), `upper` or `end`, `size`, and if
//! wanted `alignment`, `gaps` and `offset`. Lives are half-open with `upper`; an `end` is the last moment that still
//! counts, as in minimalloc. Gaps are `from-to` with spaces between. An offset is where a buffer was put by someone;
//! it binds only where the caller says so. Other columns are passed over.
//!
//! The importer of recordings reads the same files, but a recording has no place for alignments and gaps.

use std::io::{self, BufRead, BufReader, Read};

use thiserror::Error;
use tonnage_plan::{Buffer, Problem};
use tonnage_trace::StackTable;

use super::{Name, Problems, Wanted};

/// Bytes of a line; one with a thousand gaps has less.
const MAX_LINE: u64 = 1 << 16;

/// Why a planning problem cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The file could not be read.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// The first line does not name the columns.
    #[error("the first line does not name the columns id, lower, upper and size")]
    Header,
    /// A line is no buffer.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        reason: &'static str,
    },
}

impl CsvError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io(_) => "check the file",
            Self::Header => "a problem starts with a line such as id,lower,upper,size",
            Self::Line { .. } => {
                "correct the line; a buffer is a line such as b1,0,12,4096 under id,lower,upper,size"
            }
        }
    }
}

#[derive(Default)]
struct Columns {
    id: Option<usize>,
    lower: Option<usize>,
    upper: Option<usize>,
    size: Option<usize>,
    alignment: Option<usize>,
    gaps: Option<usize>,
    offset: Option<usize>,
    /// 1 if an end is the last moment, 0 if it is the first one after.
    inclusive: i64,
}

impl Columns {
    fn of(line: &str) -> Result<Self, CsvError> {
        let mut columns = Self::default();
        for (index, name) in line.split(',').enumerate() {
            let name = name
                .trim()
                .trim_start_matches('\u{feff}')
                .to_ascii_lowercase();
            let place = match name.as_str() {
                "id" | "buffer" | "buffer_id" => &mut columns.id,
                "lower" | "start" | "begin" => &mut columns.lower,
                "upper" => &mut columns.upper,
                "end" => {
                    columns.inclusive = 1;
                    &mut columns.upper
                }
                "size" => &mut columns.size,
                "alignment" => &mut columns.alignment,
                "gaps" => &mut columns.gaps,
                "offset" => &mut columns.offset,
                _ => continue,
            };
            *place = Some(index);
        }
        let needed = [columns.id, columns.lower, columns.upper, columns.size];
        if needed.contains(&None) {
            return Err(CsvError::Header);
        }
        Ok(columns)
    }

    /// The buffer of a line and its name.
    fn buffer<'a>(
        &self,
        line: &'a str,
        wanted: &Wanted,
    ) -> Result<(&'a str, Buffer), &'static str> {
        let fields: Vec<&str> = line
            .split(',')
            .map(|field| field.trim().trim_matches('"'))
            .collect();
        let field = |column: Option<usize>| {
            column
                .and_then(|column| fields.get(column))
                .copied()
                .unwrap_or("")
        };
        let time = |text: &str| {
            text.parse::<i64>()
                .map_err(|_| "its life is no pair of numbers")
        };
        let after = |text: &str| {
            time(text)?
                .checked_add(self.inclusive)
                .ok_or("its life is too long")
        };
        let (lower, upper) = (time(field(self.lower))?, after(field(self.upper))?);
        if lower >= upper {
            return Err("it ends before it begins");
        }
        let size = field(self.size)
            .parse()
            .map_err(|_| "its size is not a number")?;
        let mut buffer = Buffer::new(size, lower..upper).aligned(wanted.alignment.unwrap_or(1));
        let text = field(self.alignment);
        if wanted.alignment.is_none() && !text.is_empty() {
            buffer.alignment = text.parse().map_err(|_| "its alignment is not a number")?;
        }
        for gap in field(self.gaps).split_whitespace() {
            if gap.contains('@') {
                return Err("gaps with a window are not supported; leave out what follows the @");
            }
            let (from, to) = gap.split_once('-').ok_or("a gap is no pair of numbers")?;
            buffer.gaps.push(time(from)?..after(to)?);
        }
        let text = field(self.offset);
        if wanted.keep_offsets && !text.is_empty() {
            buffer.offset = Some(text.parse().map_err(|_| "its offset is not a number")?);
        }
        Ok((field(self.id), buffer))
    }
}

/// Reads a planning problem.
pub fn problem<R: Read>(source: R, wanted: &Wanted) -> Result<Problems, CsvError> {
    let mut source = BufReader::new(source);
    let mut texts = StackTable::new();
    let mut problem = wanted
        .capacity
        .map_or_else(Problem::new, Problem::with_capacity);
    let (mut names, mut line, mut number) = (Vec::new(), String::new(), 0);
    let mut columns = None;
    loop {
        line.clear();
        number += 1;
        let bad = |reason| CsvError::Line {
            line: number,
            reason,
        };
        if source.by_ref().take(MAX_LINE).read_line(&mut line)? == 0 {
            break;
        }
        if line.len() as u64 == MAX_LINE {
            return Err(bad("it is longer than 64 KiB"));
        }
        let Some(columns) = &columns else {
            columns = Some(Columns::of(&line)?);
            continue;
        };
        if line.trim().is_empty() {
            continue;
        }
        let (id, buffer) = columns.buffer(&line, wanted).map_err(bad)?;
        names.push(Name::Text(texts.intern(id)));
        problem.add(buffer);
    }
    Ok(Problems::alone(problem, names, texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, wanted: &Wanted) -> Result<Vec<Buffer>, String> {
        let problems = problem(text.as_bytes(), wanted).map_err(|error| error.to_string())?;
        let group = &problems.groups[0];
        Ok((0..group.names.len())
            .map(|number| group.problem.buffer(number))
            .collect())
    }

    #[test]
    fn an_end_counts_and_an_upper_does_not() {
        let wanted = Wanted::default();
        let half_open = read("id,lower,upper,size\na,0,5,7\n", &wanted);
        assert_eq!(half_open, Ok(vec![Buffer::new(7, 0..5)]));
        let closed = read("size,end,begin,buffer,gaps\n7,5,0,a,1-2 4-4\n", &wanted);
        let gaps = Buffer::new(7, 0..6).without(1..3).without(4..5);
        assert_eq!(closed, Ok(vec![gaps]));
    }

    #[test]
    fn alignments_are_read_and_offsets_bind_when_wanted() {
        let text = "id,lower,upper,size,alignment,offset\na,0,5,7,4,8\nb,0,5,7,,\n";
        let (a, b) = (Buffer::new(7, 0..5), Buffer::new(7, 0..5));
        let read_with = |wanted| read(text, &wanted);
        assert_eq!(
            read_with(Wanted::default()),
            Ok(vec![a.clone().aligned(4), b.clone()])
        );
        let keep = Wanted {
            keep_offsets: true,
            ..Wanted::default()
        };
        assert_eq!(
            read_with(keep),
            Ok(vec![a.clone().aligned(4).at(8), b.clone()])
        );
        let aligned = Wanted {
            alignment: Some(16),
            ..Wanted::default()
        };
        assert_eq!(read_with(aligned), Ok(vec![a.aligned(16), b.aligned(16)]));
    }

    #[test]
    fn fixed_offsets_in_each_other_s_way_are_named() {
        let text = "id,lower,upper,size,offset\na,0,9,8,4\nb,0,9,8,12\nc,2,6,6,0\n";
        let wanted = Wanted {
            keep_offsets: true,
            ..Wanted::default()
        };
        let problems = problem(text.as_bytes(), &wanted).unwrap();
        let options = tonnage_plan::Options::default();
        let refused = crate::plan::plan(&problems, &wanted, &options).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the fixed offsets of a and c overlap at 2"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("", "no buffers"),
            (
                "hello\n",
                "the first line does not name the columns id, lower, upper and size",
            ),
            (
                "id,lower,upper,size\na,0,5\n",
                "line 2: its size is not a number",
            ),
            (
                "id,lower,upper,size\n\na,5,5,1\n",
                "line 3: it ends before it begins",
            ),
            (
                "id,lower,upper,size\na,x,5,1\n",
                "line 2: its life is no pair of numbers",
            ),
            (
                "id,lower,end,size\na,0,9223372036854775807,1\n",
                "line 2: its life is too long",
            ),
            (
                "id,lower,upper,size,gaps\na,0,5,1,3\n",
                "line 2: a gap is no pair of numbers",
            ),
            (
                "id,lower,upper,size,gaps\na,0,5,1,1-2@0:5\n",
                "line 2: gaps with a window are not supported; leave out what follows the @",
            ),
        ] {
            let error = read(text, &Wanted::default()).map(|buffers| assert!(buffers.is_empty()));
            assert_eq!(
                error.err().unwrap_or_else(|| "no buffers".to_owned()),
                words
            );
        }
        let long = format!("id,lower,upper,size\n{}", "a".repeat(1 << 17));
        assert_eq!(
            read(&long, &Wanted::default()).unwrap_err(),
            "line 2: it is longer than 64 KiB"
        );
    }

    #[test]
    fn damaged_files_are_refused_or_planned_but_never_panic() {
        let whole = "id,lower,end,size,alignment,gaps,offset\na,0,9,8,4,3-6,4\nb,-3,9,4,4,,\nc,3,6,6,2,4-5 5-5,0\n";
        let mut state = 1_u64;
        let mut draw = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % bound
        };
        let wanted = Wanted {
            keep_offsets: true,
            capacity: Some(64),
            ..Wanted::default()
        };
        let options = tonnage_plan::Options {
            attempts: 2,
            threads: 1,
            ..tonnage_plan::Options::default()
        };
        let (mut read, mut planned) = (0, 0);
        for _ in 0..3000 {
            let mut bytes = whole.as_bytes().to_vec();
            for _ in 0..=draw(3) {
                let at = draw(bytes.len().max(1));
                if at >= bytes.len() {
                    break;
                }
                match draw(3) {
                    0 => bytes[at] = b"0123456789-,\n\" @ax"[draw(18)],
                    1 => {
                        bytes.remove(at);
                    }
                    _ => bytes.truncate(at + 1),
                }
            }
            let Ok(problems) = problem(bytes.as_slice(), &wanted) else {
                continue;
            };
            read += 1;
            planned += u32::from(crate::plan::plan(&problems, &wanted, &options).is_ok());
        }
        assert!(
            read > 300 && planned > 100,
            "{read} read, {planned} planned"
        );
    }
}
