// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of one process: records appended by the stand-in, each in one write.
//!
//! A record is a tag, a length and a payload. The action of the process when
//! it was killed is the last record or nothing of it: a record cut short is
//! left out by [`read`], which reports it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes in front of each payload.
const HEAD: usize = 8;
/// Bytes of a [`DriverCall`].
const CALL: usize = 56;

/// The query or request to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallKind {
    /// First use of a device: its context.
    Context = 0,
    /// `cudaMalloc` and its like.
    Malloc = 1,
    /// `cudaFree`.
    Free = 2,
    /// `cuMemCreate`.
    Create = 3,
    /// `cuMemRelease`.
    Release = 4,
    /// `cuMemAddressReserve`.
    Reserve = 5,
    /// `cuMemAddressFree`.
    Unreserve = 6,
    /// `cuMemMap`.
    Map = 7,
    /// `cuMemUnmap`.
    Unmap = 8,
    /// A request that was refused; `extra` is what was free.
    Refused = 9,
    /// Pinned host memory.
    HostAlloc = 10,
    /// Pinned host memory given back.
    HostFree = 11,
    /// `cudaMallocAsync`.
    PoolMalloc = 12,
    /// `cudaFreeAsync`.
    PoolFree = 13,
    /// `cudaMallocManaged`, which no device is charged for.
    ManagedAlloc = 14,
    /// Managed memory given back.
    ManagedFree = 15,
    /// A stream-ordered pool gave memory back to the device.
    PoolTrim = 16,
}

impl CallKind {
    const ALL: [Self; 17] = [
        Self::Context,
        Self::Malloc,
        Self::Free,
        Self::Create,
        Self::Release,
        Self::Reserve,
        Self::Unreserve,
        Self::Map,
        Self::Unmap,
        Self::Refused,
        Self::HostAlloc,
        Self::HostFree,
        Self::PoolMalloc,
        Self::PoolFree,
        Self::ManagedAlloc,
        Self::ManagedFree,
        Self::PoolTrim,
    ];
}

/// One call that moved memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverCall {
    /// The query or request.
    pub kind: CallKind,
    /// The device of the call.
    pub device: u8,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Address, or handle of physical memory.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Depends on the kind: the handle mapped, the bytes free, the stream, the bytes
    /// requested of managed memory.
    pub extra: u64,
    /// Bytes the device has charged to this process after the call.
    pub charged: u64,
    /// Bytes the device has charged to all processes after the call.
    pub in_use: u64,
}

/// The first record of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Its slot in the ledger.
    pub slot: u32,
    /// Its process id.
    pub pid: u32,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The devices it sees, by their number on the machine.
    pub visible: Vec<u8>,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Whether its devices are real ones: then there are no driver calls and no blocks, and times put notes and rows
    /// of torch's history in order.
    #[serde(default)]
    pub measured: bool,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'log> {
    /// A process opened its log.
    Start(Start),
    /// Memory moved.
    Call(DriverCall),
    /// A piece of torch's own history, as a pickle; empty after a drain that lost nothing.
    Torch(&'log [u8]),
    /// A fact from inside Python, as JSON: versions, settings, how the script ended.
    Note(&'log [u8]),
    /// The first call of a function that is not modelled.
    Unmodelled(&'log str),
    /// How often each such function was called in all, as JSON; written at the end.
    Counts(&'log [u8]),
    /// A text that notes among the blocks refer to by its number: the texts count from 0.
    Text(&'log str),
    /// The owners of several blocks: pairs of words, an address and the number of a text. Lists count from 0.
    Owners(&'log [u8]),
}

/// Tag of [`Record::Start`].
pub const START: u32 = 1;
const DRIVER: u32 = 2;
/// Tag of [`Record::Torch`].
pub const TORCH: u32 = 3;
/// Tag of [`Record::Note`].
pub const NOTE: u32 = 4;
const UNMODELLED: u32 = 5;
const COUNTS: u32 = 6;
/// Tag of [`Record::Text`].
pub const TEXT: u32 = 7;
/// Tag of [`Record::Owners`].
pub const OWNERS: u32 = 8;

/// Whether records have this tag.
pub fn is_tag(tag: u32) -> bool {
    (START..=OWNERS).contains(&tag)
}

/// Why a log cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// A record makes no sense.
    #[error("the record at byte {at} is broken: {why}")]
    Broken {
        /// Where it starts.
        at: usize,
        /// The problem with it.
        why: &'static str,
    },
}

/// A record has no room for so many bytes: its length is a number of 32 bits.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a record of {length} bytes is longer than a log can hold")]
pub struct TooLong {
    /// Bytes of its payload.
    pub length: usize,
}

/// Writes `record` as bytes, ready to be appended in one piece.
///
/// # Errors
///
/// If its payload has 4 GiB or more.
pub fn encode(record: &Record<'_>) -> Result<Vec<u8>, TooLong> {
    let start;
    let (tag, payload): (u32, &[u8]) = match record {
        Record::Start(record) => {
            start = serde_json::to_vec(record).unwrap_or_default();
            (START, &start)
        }
        Record::Call(call) => return Ok(encode_call(call).to_vec()),
        Record::Torch(bytes) => (TORCH, bytes),
        Record::Note(bytes) => (NOTE, bytes),
        Record::Unmodelled(name) => (UNMODELLED, name.as_bytes()),
        Record::Counts(bytes) => (COUNTS, bytes),
        Record::Text(text) => (TEXT, text.as_bytes()),
        Record::Owners(bytes) => (OWNERS, bytes),
    };
    let length = payload.len();
    let length = u32::try_from(length).map_err(|_| TooLong { length })?;
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// [`encode`] for the commonest record, without touching the heap.
pub fn encode_call(call: &DriverCall) -> [u8; HEAD + CALL] {
    let mut bytes = [0; HEAD + CALL];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&DRIVER.to_le_bytes());
    put(&(CALL as u32).to_le_bytes());
    put(&[call.kind as u8, call.device, 0, 0, 0, 0, 0, 0]);
    put(&call.time.to_le_bytes());
    put(&call.address.to_le_bytes());
    put(&call.size.to_le_bytes());
    put(&call.extra.to_le_bytes());
    put(&call.charged.to_le_bytes());
    put(&call.in_use.to_le_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(part.try_into().ok()?))
}

fn decode_call(payload: &[u8]) -> Option<DriverCall> {
    let kind = *CallKind::ALL.get(usize::from(*payload.first()?))?;
    Some(DriverCall {
        kind,
        device: *payload.get(1)?,
        time: word(payload, 8)?,
        address: word(payload, 16)?,
        size: word(payload, 24)?,
        extra: word(payload, 32)?,
        charged: word(payload, 40)?,
        in_use: word(payload, 48)?,
    })
}

/// Reads a log record by record.
///
/// A record that ends past the end of the file was cut by a kill: the iterator
/// then just ends. One that makes no sense is an error, after which it ends.
pub fn read(log: &[u8]) -> impl Iterator<Item = Result<Record<'_>, LogError>> {
    let mut at = 0;
    let mut broken = false;
    std::iter::from_fn(move || {
        if broken {
            return None;
        }
        let head = word(log, at)?;
        let (tag, length) = (head as u32, (head >> 32) as usize);
        let payload = log.get(at + HEAD..(at + HEAD).checked_add(length)?)?;
        let start = at;
        at += HEAD + length;
        let record = match tag {
            START => serde_json::from_slice(payload)
                .map(Record::Start)
                .map_err(|_| "its start is not JSON"),
            DRIVER => decode_call(payload)
                .map(Record::Call)
                .ok_or("its call is unknown"),
            TORCH => Ok(Record::Torch(payload)),
            NOTE => Ok(Record::Note(payload)),
            UNMODELLED => std::str::from_utf8(payload)
                .map(Record::Unmodelled)
                .map_err(|_| "its name is not text"),
            COUNTS => Ok(Record::Counts(payload)),
            OWNERS => Ok(Record::Owners(payload)),
            TEXT => std::str::from_utf8(payload)
                .map(Record::Text)
                .map_err(|_| "its text is not UTF-8"),
            _ => Err("its tag is unknown"),
        };
        broken = record.is_err();
        Some(record.map_err(|why| LogError::Broken { at: start, why }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record<'static>> {
        let start = Start {
            slot: 3,
            pid: 77,
            arguments: vec!["python".into(), "train.py".into()],
            visible: vec![0, 1],
            time: 5,
            measured: true,
        };
        let mut records = vec![
            Record::Start(start),
            Record::Torch(b"pickle"),
            Record::Note(b"{}"),
            Record::Unmodelled("cudaFoo"),
            Record::Counts(b"{\"cudaFoo\":2}"),
            Record::Text("module layers.0"),
            Record::Owners(&[1; 16]),
        ];
        records.extend(CallKind::ALL.map(|kind| {
            Record::Call(DriverCall {
                kind,
                device: 7,
                time: 1,
                address: u64::MAX,
                size: 2,
                extra: 3,
                charged: 4,
                in_use: 5,
            })
        }));
        records
    }

    fn encoded() -> Vec<u8> {
        let records = records();
        records
            .iter()
            .flat_map(|record| encode(record).unwrap())
            .collect()
    }

    #[test]
    fn a_record_without_room_for_its_length_is_an_error() {
        // Never touched, so no memory is behind it.
        let length = 1 << 32;
        let payload = vec![0; length];
        assert_eq!(encode(&Record::Torch(&payload)), Err(TooLong { length }));
    }

    #[test]
    fn random_bytes_do_not_panic() {
        let whole = encoded();
        let mut seed = 1_u64;
        for round in 0..50_000 {
            let mut log = whole.clone();
            for _ in 0..=round % 8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % log.len();
                log[at] = (seed >> 20) as u8;
            }
            let most = log.len() / HEAD + 1;
            assert!(read(&log).count() <= most, "the reader ends");
        }
    }

    #[test]
    fn every_record_comes_back() {
        let bytes = encoded();
        let back: Vec<_> = read(&bytes).map(Result::unwrap).collect();
        assert_eq!(back, records());
    }

    #[test]
    fn a_log_cut_anywhere_gives_its_whole_records() {
        let bytes = encoded();
        let mut last = 0;
        for cut in 0..bytes.len() {
            let whole = read(&bytes[..cut]).map(Result::unwrap).count();
            assert!(whole >= last && whole < records().len());
            last = whole;
        }
    }

    #[test]
    fn nonsense_is_an_error_and_the_end() {
        let mut bytes = encode(&Record::Note(b"x")).unwrap();
        bytes.extend_from_slice(&[0xff; 32]);
        // The length reaches past the end: taken for a record that was cut.
        assert_eq!(read(&bytes).count(), 1);
        let mut bytes = vec![99, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend(encode(&Record::Note(b"x")).unwrap());
        let read: Vec<_> = read(&bytes).collect();
        assert_eq!(read.len(), 1);
        assert!(read[0].is_err());
    }
}
