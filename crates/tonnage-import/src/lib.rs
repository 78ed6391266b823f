// SPDX-License-Identifier: MIT OR Apache-2.0
//! Foreign recordings read into the model of tonnage-recording.
//!
//! [`detect`] infers the format from the first bytes, [`import`] streams a recording of any format into a trace,
//! [`pytorch::Snapshot`] gives a PyTorch snapshot as plain structs. Each importer only translates: it invents no
//! events, records missing information in `meta` facts, and leaves reconstruction to the replayer.
//!
//! Every input is hostile. No importer runs anything a file names, all memory follows from bytes that were
//! really read and has a limit, nesting is bounded, and a bad file ends in an [`ImportError`] with a next step.
#![forbid(unsafe_code)]

mod error;
mod json;
mod pickle;
pub mod planner;
pub mod pytorch;
pub mod rmm;
mod shape;
mod source;
mod value;

use std::io::{Read, Write};

use tonnage_recording::{Writer, meta};

pub use error::ImportError;

/// A format this crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A PyTorch snapshot, pickled.
    PytorchPickle,
    /// A PyTorch snapshot as JSON.
    PytorchJson,
    /// The log of RMM's `logging_resource_adaptor`.
    RmmCsv,
    /// A memory planning problem: `id,lower,upper,size`.
    PlannerCsv,
}

impl Format {
    /// A short name, as in the `source` fact of an imported recording.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PytorchPickle => "pytorch-pickle",
            Self::PytorchJson => "pytorch-json",
            Self::RmmCsv => "rmm-csv",
            Self::PlannerCsv => "planner-csv",
        }
    }
}

/// How many first bytes [`detect`] looks at.
pub const DETECT_BYTES: usize = 4096;

/// The format of a file, inferred from its first bytes ([`DETECT_BYTES`] are enough).
pub fn detect(first: &[u8]) -> Option<Format> {
    let first = &first[..first.len().min(DETECT_BYTES)];
    if rmm::is_header(first) {
        return Some(Format::RmmCsv);
    }
    if tonnage_plan::csv::is_header(first) {
        return Some(Format::PlannerCsv);
    }
    match encoding(first)? {
        Encoding::Pickle => Some(Format::PytorchPickle),
        Encoding::Json => Some(Format::PytorchJson),
    }
}

/// Streams a recording of any format into a trace and returns its format and the number of events.
pub fn import<W: Write>(
    source: impl Read,
    process: u32,
    writer: &mut Writer<W>,
) -> Result<(Format, u64), ImportError> {
    let (first, source) = peeked(source)?;
    let format = detect(&first).ok_or(ImportError::UnknownFormat)?;
    writer.meta(process, meta::SOURCE, format.name())?;
    let events = match format {
        Format::PytorchPickle | Format::PytorchJson => pytorch::import(source, process, writer)?,
        Format::RmmCsv => rmm::import(source, process, writer)?,
        Format::PlannerCsv => planner::import(source, process, writer)?,
    };
    Ok((format, events))
}

/// How a snapshot is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Pickle,
    Json,
}

/// Pickles of protocol 2 and later name it in two bytes. Older ones start with the instruction that makes the
/// outermost dictionary or list: `(d` and `(l` in protocol 0, `}` and `]` in protocol 1. JSON starts with a
/// bracket too, but then goes on with a string or a bracket.
fn encoding(first: &[u8]) -> Option<Encoding> {
    match first {
        [0x80, 0..=5, ..]
        | [b'(', b'd' | b'l', ..]
        | [b'}', ..]
        | [b']', b'q' | b'(' | b'.', ..] => Some(Encoding::Pickle),
        _ => match first.trim_ascii_start() {
            [b'{' | b'[', ..] => Some(Encoding::Json),
            _ => None,
        },
    }
}

/// Tells the encoding and gives back a reader from the start.
pub(crate) fn sniff<R: Read>(source: R) -> Result<(Option<Encoding>, impl Read), ImportError> {
    let (first, source) = peeked(source)?;
    Ok((encoding(&first), source))
}

/// The first bytes, and a reader that starts with them again.
fn peeked<R: Read>(mut source: R) -> Result<(Vec<u8>, impl Read), ImportError> {
    let mut first = Vec::new();
    let got = source
        .by_ref()
        .take(DETECT_BYTES as u64)
        .read_to_end(&mut first);
    got.map_err(|source| ImportError::Io { offset: 0, source })?;
    Ok((first.clone(), std::io::Cursor::new(first).chain(source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_from_first_bytes() {
        for (first, expect) in [
            (&b"\x80\x04\x95\0"[..], Some(Format::PytorchPickle)),
            (b"(dp0\nVsegments\n", Some(Format::PytorchPickle)),
            (b"}q\0(X", Some(Format::PytorchPickle)),
            (b"  {\"segments\": []}", Some(Format::PytorchJson)),
            (b"[]", Some(Format::PytorchJson)),
            (
                b"Thread,Time,Action,Pointer,Size,Stream\n",
                Some(Format::RmmCsv),
            ),
            (b"id,lower,upper,size\n", Some(Format::PlannerCsv)),
            (
                b"ID, start, end, size, offset\r\n",
                Some(Format::PlannerCsv),
            ),
            (
                "\u{feff}\"id\",\"lower\",\"upper\",\"size\"\n".as_bytes(),
                Some(Format::PlannerCsv),
            ),
            (b"hello", None),
            (b"", None),
            (b"\x80\x09", None),
        ] {
            assert_eq!(detect(first), expect, "{}", String::from_utf8_lossy(first));
        }
    }
}
