// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that ranks write for each other in the folder of the run.
//!
//! Each rank of a communicator has a file to which it appends a record for each
//! operation, in the order of its calls. Nobody but that rank writes to it, and
//! the others read on from where they were. Up to [`INLINE`] bytes of a payload
//! are in the record. A larger one has its own file, which is removed by
//! the last rank that has read it: each adds a byte to its end, and so counts
//! those before.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read as _, Result, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Place;
use super::operators::Type;
use crate::files::OwnFile;
use crate::values::Span;

/// Payloads up to this size are part of the record.
const INLINE: usize = 512;

/// Words at the start of a record.
const WORDS: usize = 14;

/// The action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Split,
    Send,
    Receive,
}

const KINDS: [Kind; 11] = [
    Kind::AllReduce,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllGather,
    Kind::ReduceScatter,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::Split,
    Kind::Send,
    Kind::Receive,
];

impl Kind {
    /// As torch's users know it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Split => "split of the communicator",
            Self::Send => "send",
            Self::Receive => "recv",
        }
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }
}

/// The bytes that are sent, as far as they are known. A payload that is too large, too, has no spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    /// In order, and apart from each other; what is not in one is not known.
    pub(crate) spans: Vec<Span>,
}

impl Payload {
    /// Whether nothing of it is known.
    pub(crate) fn is_unknown(&self) -> bool {
        self.spans.is_empty()
    }

    /// All of it, known.
    pub(crate) fn from_known(bytes: Vec<u8>) -> Self {
        let span = Span {
            start: 0,
            end: bytes.len(),
            known: true,
        };
        Self {
            bytes,
            spans: vec![span],
        }
    }

    /// Marks its bytes as an assumption.
    pub(crate) fn doubt(&mut self) {
        for span in &mut self.spans {
            span.known = false;
        }
    }

    /// A part of it.
    pub(crate) fn part(&self, start: usize, length: usize) -> Self {
        let end = start.saturating_add(length);
        let Some(bytes) = self.bytes.get(start..end) else {
            return Self::default();
        };
        let inside = |span: &Span| Span {
            start: span.start.max(start),
            end: span.end.min(end),
            known: span.known,
        };
        let spans = self.spans.iter().map(inside);
        let spans = spans.filter(|span| span.start < span.end);
        Self {
            bytes: bytes.to_owned(),
            spans: spans
                .map(|span| Span {
                    start: span.start - start,
                    end: span.end - start,
                    ..span
                })
                .collect(),
        }
    }
}

/// The spans that all of these know, in whole elements of `size` bytes; drawn where one of them is.
pub(crate) fn common_spans(parts: &[&Payload], size: usize) -> Vec<Span> {
    let Some((first, rest)) = parts.split_first() else {
        return Vec::new();
    };
    let mut common = first.spans.clone();
    for part in rest {
        let mut both = Vec::new();
        for one in &common {
            for other in &part.spans {
                let (start, end) = (one.start.max(other.start), one.end.min(other.end));
                if start < end {
                    let known = one.known && other.known;
                    both.push(Span { start, end, known });
                }
            }
        }
        common = both;
    }
    let whole = common.into_iter().map(|span| Span {
        start: span.start.next_multiple_of(size),
        end: span.end / size * size,
        ..span
    });
    whole.filter(|span| span.start < span.end).collect()
}

/// A rank's record of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    /// How many operations came before it: of all ranks of the communicator, or of the same kind with the same peer.
    pub(crate) number: u64,
    /// Elements and their `ncclDataType_t`; colour and key of a split.
    pub(crate) count: u64,
    pub(crate) data_type: i32,
    /// The `ncclRedOp_t`, or a number for an operator of the program's.
    pub(crate) operator: i32,
    /// The root, or the peer.
    pub(crate) root: i32,
    /// Where the script called it.
    pub(crate) place: Place,
}

impl Call {
    /// Whether two ranks mean the same operation, or its two sides: a GPU would hang or compute nonsense otherwise.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let bytes = |call: &Self| {
            let size = Type::from_number(call.data_type).map_or(1, Type::size) as u64;
            call.count.saturating_mul(size)
        };
        let sides = match (self.kind, other.kind) {
            (Kind::Receive, Kind::Send) => true,
            (one, another) => one == another && self.root == other.root,
        };
        let numbers = !self.kind.reduces()
            || (self.data_type, self.operator) == (other.data_type, other.operator);
        sides && numbers && bytes(self) == bytes(other)
    }
}

/// Where the bytes of a payload are.
#[derive(Clone, Debug)]
enum Stored {
    Inline(Vec<u8>),
    File {
        number: u64,
        length: u64,
        readers: u64,
    },
}

/// A record of another rank.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) call: Call,
    stored: Stored,
    spans: Vec<Span>,
}

/// The process that is a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Its number in the run, by the ledger.
    pub(crate) number: u64,
    /// Its rank among all processes, as the launcher set it.
    pub(crate) world_rank: Option<i64>,
}

impl Owner {
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.world_rank.unwrap_or(-1).to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; 16]) -> Self {
        let word = |at: usize| bytes.as_chunks::<8>().0[at];
        let rank = i64::from_le_bytes(word(1));
        Self {
            number: u64::from_le_bytes(word(0)),
            world_rank: (rank >= 0).then_some(rank),
        }
    }
}

fn log_path(folder: &Path, communicator: u64, rank: usize) -> PathBuf {
    folder.join(format!("nccl-{communicator:016x}-{rank}"))
}

fn payload_path(folder: &Path, communicator: u64, rank: usize, number: u64) -> PathBuf {
    folder.join(format!("nccl-{communicator:016x}-{rank}-{number}"))
}

/// Appends to a file of `length` bytes, which may be a new one: all of `bytes` or nothing.
pub(super) fn append(path: &Path, length: u64, bytes: &[u8]) -> Result<()> {
    OwnFile::open(path, OpenOptions::new().create(true).append(true))?.append(length, bytes)
}

/// The file of a rank of this process.
#[derive(Debug)]
pub(crate) struct Writer {
    folder: PathBuf,
    communicator: u64,
    rank: usize,
    written: u64,
    payloads: u64,
}

impl Writer {
    /// Reports that this process is a rank of a communicator.
    pub(crate) fn open(
        folder: &Path,
        communicator: u64,
        rank: usize,
        owner: Owner,
    ) -> Result<Self> {
        let mut writer = Self {
            folder: folder.to_owned(),
            communicator,
            rank,
            written: 0,
            payloads: 0,
        };
        writer.append(&owner.to_bytes())?;
        Ok(writer)
    }

    /// Appends all of `bytes`, or nothing that a process would read.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let path = log_path(&self.folder, self.communicator, self.rank);
        // Opened each time: the program may close what it does not know.
        append(&path, self.written, bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Publishes an operation with its payload, which `readers` ranks will read.
    pub(crate) fn publish(&mut self, call: &Call, payload: &Payload, readers: usize) -> Result<()> {
        let mut stored = [0_u64; 2];
        let mut inline: &[u8] = &[];
        let mut spans = payload.spans.as_slice();
        if payload.bytes.len() <= INLINE {
            inline = &payload.bytes;
        } else if readers > 0 && !spans.is_empty() {
            self.payloads += 1;
            let path = payload_path(&self.folder, self.communicator, self.rank, self.payloads);
            if append(&path, 0, &payload.bytes).is_ok() {
                stored = [self.payloads, payload.bytes.len() as u64];
            } else {
                // No room: then it is not known to the others.
                spans = &[];
            }
        }
        let place = call.place.file.as_bytes();
        let texts = (place.len() + inline.len()).next_multiple_of(8);
        let length = (WORDS + 3 * spans.len()) * 8 + texts;
        let kind = KINDS.iter().position(|&kind| kind == call.kind);
        let words: [u64; WORDS] = [
            length as u64,
            kind.unwrap_or(0) as u64,
            call.number,
            call.count,
            u64::from(call.data_type.cast_unsigned()),
            u64::from(call.operator.cast_unsigned()),
            u64::from(call.root.cast_unsigned()),
            u64::from(call.place.line),
            place.len() as u64,
            inline.len() as u64,
            stored[0],
            stored[1],
            spans.len() as u64,
            readers as u64,
        ];
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        for span in spans {
            let words = [span.start as u64, span.end as u64, u64::from(span.known)];
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend_from_slice(place);
        bytes.extend_from_slice(inline);
        bytes.resize(length, 0);
        self.append(&bytes)
    }
}

/// The first record in `bytes`, and its length; `None` if it is not whole yet.
fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
    let (words, rest) = bytes.split_at_checked(WORDS * 8)?;
    let word = |index: usize| {
        let word = words.as_chunks::<8>().0.get(index);
        word.map_or(0, |word| u64::from_le_bytes(*word))
    };
    let length = usize::try_from(word(0)).ok()?;
    let place_length = usize::try_from(word(8)).ok()?;
    let inline_length = usize::try_from(word(9)).ok()?;
    let rest = rest.get(..length.checked_sub(WORDS * 8)?)?;
    let spans_length = usize::try_from(word(12)).ok()?.checked_mul(24)?;
    let (spans, rest) = rest.split_at_checked(spans_length)?;
    let (file, rest) = rest.split_at_checked(place_length)?;
    let inline = rest.get(..inline_length)?;
    let stored = match word(10) {
        0 => Stored::Inline(inline.to_owned()),
        number => Stored::File {
            number,
            length: word(11),
            readers: word(13),
        },
    };
    let spans = spans.as_chunks::<24>().0.iter().map(|span| {
        let word = |at: usize| u64::from_le_bytes(span.as_chunks::<8>().0[at]);
        Span {
            start: word(0) as usize,
            end: word(1) as usize,
            known: word(2) == 1,
        }
    });
    let spans = spans.collect();
    let narrow = |index| (word(index) as u32).cast_signed();
    let call = Call {
        kind: *KINDS.get(usize::try_from(word(1)).ok()?)?,
        number: word(2),
        count: word(3),
        data_type: narrow(4),
        operator: narrow(5),
        root: narrow(6),
        place: Place {
            file: String::from_utf8_lossy(file).into_owned(),
            line: word(7) as u32,
        },
    };
    let record = Record {
        call,
        stored,
        spans,
    };
    Some((record, length))
}

/// The records of another rank, as far as they were read.
#[derive(Debug)]
pub(crate) struct Reader {
    folder: PathBuf,
    communicator: u64,
    rank: usize,
    read: u64,
    owner: Option<Owner>,
    /// Operations of all ranks, by their number.
    pub(crate) together: BTreeMap<u64, Record>,
    /// The messages that it sent, by the receiver, in order.
    pub(crate) sent: BTreeMap<i32, VecDeque<Record>>,
}

impl Reader {
    pub(crate) fn new(folder: &Path, communicator: u64, rank: usize) -> Self {
        Self {
            folder: folder.to_owned(),
            communicator,
            rank,
            read: 0,
            owner: None,
            together: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    /// The process that is this rank; `None` as long as no process has claimed it.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Reads what was written since; whether there was anything.
    pub(crate) fn read_on(&mut self) -> Result<bool> {
        let path = log_path(&self.folder, self.communicator, self.rank);
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        if self.owner.is_none() {
            let Some((owner, after)) = rest.split_first_chunk::<16>() else {
                return Ok(false);
            };
            self.owner = Some(Owner::from_bytes(*owner));
            rest = after;
        }
        while let Some((record, length)) = decode(rest) {
            let call = &record.call;
            if call.kind == Kind::Send {
                self.sent.entry(call.root).or_default().push_back(record);
            } else {
                self.together.insert(call.number, record);
            }
            rest = &rest[length..];
        }
        let read = bytes.len() - rest.len();
        self.read += read as u64;
        Ok(read > 0)
    }

    /// The payload of a record, which is not read again by this rank; `wanted` if its bytes matter.
    pub(crate) fn take(&self, record: Record, wanted: bool) -> Payload {
        let bytes = match record.stored {
            Stored::Inline(bytes) => Ok(bytes),
            Stored::File {
                number,
                length,
                readers,
            } => {
                let path = payload_path(&self.folder, self.communicator, self.rank, number);
                read_once(&path, length, readers, wanted)
            }
        };
        let fits = |span: &Span, length| span.start <= span.end && span.end <= length;
        let whole = |bytes: &Vec<u8>| record.spans.iter().all(|span| fits(span, bytes.len()));
        match bytes {
            Ok(bytes) if whole(&bytes) => Payload {
                bytes,
                spans: record.spans,
            },
            _ => Payload::default(),
        }
    }
}

/// The bytes of a payload, if they are `wanted`; the last of its readers removes the file.
fn read_once(path: &Path, length: u64, readers: u64, wanted: bool) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if wanted {
        File::open(path)?.take(length).read_to_end(&mut bytes)?;
    }
    let counted = append(path, length.saturating_add(readers), &[0]);
    let length_now = std::fs::metadata(path).map_or(0, |file| file.len());
    if counted.is_err() || length_now >= length.saturating_add(readers) {
        let _ = std::fs::remove_file(path);
    }
    if wanted && bytes.len() as u64 != length {
        return Err(Error::from(ErrorKind::UnexpectedEof));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Owner = Owner {
        number: 0,
        world_rank: None,
    };

    fn call(kind: Kind, number: u64, root: i32) -> Call {
        Call {
            kind,
            number,
            count: 3,
            data_type: 7,
            operator: -1,
            root,
            place: Place {
                file: "train.py".to_owned(),
                line: 12,
            },
        }
    }

    #[test]
    fn what_one_rank_writes_others_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = Reader::new(folder.path(), 7, 1);
        assert!(!reader.read_on().unwrap(), "nobody is there yet");
        assert_eq!(reader.owner(), None);
        let owner = Owner {
            number: 5,
            world_rank: Some(3),
        };
        let mut writer = Writer::open(folder.path(), 7, 1, owner).unwrap();
        let mut small = Payload::from_known(vec![1, 2, 3]);
        small.spans[0].end = 2;
        writer
            .publish(&call(Kind::AllReduce, 0, -1), &small, 2)
            .unwrap();
        writer
            .publish(&call(Kind::Send, 0, 4), &Payload::default(), 1)
            .unwrap();
        assert!(reader.read_on().unwrap());
        assert!(!reader.read_on().unwrap(), "all was read");
        assert_eq!(reader.owner(), Some(owner));
        let record = reader.together[&0].clone();
        assert_eq!(record.call, call(Kind::AllReduce, 0, -1));
        assert_eq!(reader.take(record, true), small);
        let sent = reader.sent[&4][0].clone();
        assert!(reader.take(sent, true).is_unknown());
    }

    #[test]
    fn a_result_is_known_where_all_are() {
        let spans = |spans: &[(usize, usize, bool)]| Payload {
            bytes: vec![0; 40],
            spans: spans
                .iter()
                .map(|&(start, end, known)| Span { start, end, known })
                .collect(),
        };
        let one = spans(&[(0, 16, true), (20, 40, false)]);
        let other = spans(&[(6, 30, true)]);
        let common = common_spans(&[&one, &other], 4);
        // The element at 4 is known in parts.
        assert_eq!(common, spans(&[(8, 16, true), (20, 28, false)]).spans);
        assert_eq!(
            one.part(10, 20).spans,
            spans(&[(0, 6, true), (10, 20, false)]).spans
        );
    }

    #[test]
    fn ranks_agree_on_what_they_do() {
        let reduce = call(Kind::AllReduce, 4, -1);
        assert!(reduce.agrees(&call(Kind::AllReduce, 4, -1)));
        assert!(!reduce.agrees(&call(Kind::Broadcast, 4, -1)));
        let halves = |kind| Call {
            count: 6,
            data_type: 6,
            ..call(kind, 4, -1)
        };
        assert!(!reduce.agrees(&halves(Kind::AllReduce)), "other numbers");
        let gather = call(Kind::AllGather, 4, -1);
        assert!(gather.agrees(&halves(Kind::AllGather)), "the same bytes");
        assert!(call(Kind::Receive, 0, 1).agrees(&call(Kind::Send, 0, 0)));
        assert!(!call(Kind::Broadcast, 0, 1).agrees(&call(Kind::Broadcast, 0, 0)));
    }

    #[test]
    fn the_last_reader_removes_a_large_payload() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(folder.path(), 7, 0, NOBODY).unwrap();
        let large = Payload::from_known(vec![9; INLINE + 1]);
        writer
            .publish(&call(Kind::Broadcast, 0, 0), &large, 2)
            .unwrap();
        let path = payload_path(folder.path(), 7, 0, 1);
        let mut reader = Reader::new(folder.path(), 7, 0);
        reader.read_on().unwrap();
        let record = reader.together[&0].clone();
        assert_eq!(reader.take(record.clone(), true), large);
        assert!(path.exists(), "another rank has yet to read it");
        reader.take(record, false);
        assert!(!path.exists());
    }

    #[test]
    fn half_a_record_is_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(folder.path(), 7, 0, NOBODY).unwrap();
        writer
            .publish(&call(Kind::Reduce, 0, 0), &Payload::default(), 1)
            .unwrap();
        let bytes = std::fs::read(log_path(folder.path(), 7, 0)).unwrap();
        for length in 0..bytes.len() - 16 {
            assert!(decode(&bytes[16..16 + length]).is_none());
        }
        assert!(decode(&bytes[16..]).is_some());
        assert!(decode(&[0xff; 200]).is_none(), "no length is believed");
    }
}
