// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows the log of a process while the process writes it.
//!
//! Only notes are read, which are small and few; PyTorch's history, which is most of a log, is stepped over. The stored
//! state does not grow with the log. The file stays open, so the last data is read even if the directory is deleted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::SystemTime;

use tonnage_capture::log::{self, Record, Start};
use tonnage_capture::note::Note;
use tonnage_capture::sample::Sample;

/// Bytes that are read at a time. A longer note is not one of the notes that are read.
const WINDOW: usize = 64 << 10;
/// Bytes in front of each record: its tag and its length.
const HEAD: usize = 8;
/// Devices of a process that are reported.
const DEVICES: usize = 64;
/// Letters of a name.
const NAME: usize = 96;

/// A name that a job chose, cut to a length that labels may have.
pub(crate) fn short(name: &str) -> String {
    name.chars().take(NAME).collect()
}

/// The last reading of a real device, and the largest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) last: Sample,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) peak_used: u64,
    pub(crate) peak_allocated: Option<u64>,
    pub(crate) peak_reserved: Option<u64>,
}

/// The state of a process by its log so far.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) start: Start,
    pub(crate) rank: Option<u32>,
    /// Whether rows of the history are missing.
    pub(crate) has_gaps: bool,
    /// Whether the process recorded its end.
    pub(crate) has_ended: bool,
    /// By the numbers that the process gives them.
    pub(crate) devices: BTreeMap<i32, Measured>,
    pub(crate) ooms: BTreeMap<i32, u64>,
    pub(crate) last_event: Option<SystemTime>,
}

/// The log of a process, read up to some place.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    at: u64,
    /// Whether a record made no sense; nothing after it is read.
    pub(crate) is_damaged: bool,
    pub(crate) told: Told,
}

impl Log {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            at: 0,
            is_damaged: false,
            told: Told::default(),
        }
    }

    /// Whether this is the file with these numbers.
    pub(crate) fn is(&self, (device, inode): (u64, u64)) -> bool {
        let metadata = self.file.metadata();
        metadata.is_ok_and(|file| (file.dev(), file.ino()) == (device, inode))
    }

    /// Reads the whole records that were appended; at most about `budget` bytes, which it counts down.
    pub(crate) fn read_on(&mut self, budget: &mut u64) {
        let Ok(metadata) = self.file.metadata() else {
            return;
        };
        if metadata.len() < self.at {
            // The file was truncated. Its content is now different.
            self.at = 0;
            self.is_damaged = false;
            self.told = Told::default();
        }
        self.told.last_event = metadata.modified().ok();
        let mut window = vec![0; WINDOW];
        while !self.is_damaged && *budget > 0 {
            let Ok(read) = read_at(&self.file, &mut window, self.at) else {
                return;
            };
            *budget = budget.saturating_sub(read.max(1) as u64);
            if !self.take(&window[..read], metadata.len()) {
                return;
            }
        }
    }

    /// Takes the records that begin in `bytes`, which are those at the place up to which it was read; whether there were
    /// any. `length` is that of the file.
    fn take(&mut self, bytes: &[u8], length: u64) -> bool {
        let mut from = 0;
        while let Some(&head) = bytes.get(from..).and_then(<[u8]>::first_chunk::<HEAD>) {
            let head = u64::from_le_bytes(head);
            let size = HEAD as u64 + (head >> 32);
            if self.at + size > length {
                // Not written yet, or cut by a kill.
                return false;
            }
            let is_sought = matches!(head as u32, log::START | log::NOTE) && size <= WINDOW as u64;
            if !is_sought && !log::is_tag(head as u32) {
                self.is_damaged = true;
                return false;
            }
            if is_sought {
                let Some(record) = bytes.get(from..from + size as usize) else {
                    // It goes on behind the window, which begins with it the next time.
                    return from > 0;
                };
                match log::read(record).next() {
                    Some(Ok(Record::Start(start))) => self.told.start = start,
                    Some(Ok(Record::Note(json))) => self.told.note(json),
                    _ => self.is_damaged = true,
                }
            }
            self.at += size;
            from = from.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
        }
        from > 0
    }
}

/// Fills the buffer from a place of a file, or up to the file's end.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Told {
    fn note(&mut self, json: &[u8]) {
        // The recording counts a note that is unknown here.
        match Note::parse(json) {
            Some(Note::Rank(rank)) => self.rank = Some(rank),
            Some(Note::Versions(versions)) => self.rank = versions.rank().or(self.rank),
            Some(Note::Overrun(_) | Note::Trouble(_)) => self.has_gaps = true,
            Some(Note::Ended(ended)) => self.has_ended |= ended,
            Some(Note::Sample(sample)) => self.sample(&sample),
            Some(Note::Oom(device))
                if self.ooms.len() < DEVICES || self.ooms.contains_key(&device) =>
            {
                *self.ooms.entry(device).or_default() += 1;
            }
            _ => {}
        }
    }

    fn sample(&mut self, sample: &Sample) {
        if self.devices.len() >= DEVICES && !self.devices.contains_key(&sample.device) {
            return;
        }
        let device = self.devices.entry(sample.device).or_default();
        if let Some(name) = &sample.name {
            device.name = short(name);
        }
        if let Some(uuid) = &sample.uuid {
            device.uuid = short(uuid);
        }
        device.peak_used = device.peak_used.max(sample.charged());
        // The script may have PyTorch count anew.
        device.peak_allocated = device.peak_allocated.max(sample.peak_allocated);
        device.peak_reserved = device.peak_reserved.max(sample.peak_reserved);
        device.last = Sample {
            name: None,
            uuid: None,
            ..sample.clone()
        };
    }
}
