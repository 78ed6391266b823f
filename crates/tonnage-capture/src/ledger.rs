// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of the file through which the processes of a run share devices.
//!
//! A table of 64-bit words: a header, some words for each device, then one slot
//! a process. The file is made whole before the first process starts, so that
//! writing to it never needs room that is not there.
//!
//! The charge of a device to all processes is one word
//! ([`SharedWord::InUse`]). It is changed only under the device's lock
//! ([`SharedWord::Lock`]), by the process that has written the new charge into its own slot
//! first. So it can be counted again from the slots after a process was killed
//! in the middle.
//!
//! Whether the process of a slot is alive is known by a lock on the file, the
//! byte [`slot_byte`]: the kernel gives it up at exit, at exec and at a kill,
//! also of a process that was not waited for yet, and a process id that was given
//! out again means nothing to it. Slots of dead processes are taken again only
//! when no fresh one is left; processes are distinguished by their number
//! ([`ProcessWord::Number`]), which is never given out twice.
//!
//! This module only knows where each word is, so that the one side which maps
//! the file (and needs `unsafe` for it) and the one which reads it agree.

/// First word of the file: `tonnage` and a version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tonnage\x02");
/// Processes that fit at one time.
pub const PROCESSES: usize = 512;
/// Devices that fit.
pub const DEVICES: usize = 64;

const HEADER_WORDS: usize = 8;
const SHARED_WORDS: usize = 8;
const PROCESS_WORDS: usize = 8;
const DEVICE_WORDS: usize = 8;
const SLOT_WORDS: usize = PROCESS_WORDS + DEVICES * DEVICE_WORDS;
const SLOTS_AT: usize = HEADER_WORDS + DEVICES * SHARED_WORDS;

/// Length of the file in words.
pub const WORDS: usize = SLOTS_AT + PROCESSES * SLOT_WORDS;
/// Where [`MAGIC`] stands.
pub const MAGIC_WORD: usize = 0;
/// How many processes were given a number.
pub const NUMBERED_WORD: usize = 1;
/// How many slots, from the first on, were ever taken.
pub const TAKEN_WORD: usize = 2;
/// How many processes found no slot: they are neither charged nor recorded.
pub const UNPLACED_WORD: usize = 3;
/// Entries lost by processes whose slot was taken again.
pub const LOST_BEFORE_WORD: usize = 4;

/// A word about a device that all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SharedWord {
    /// The process that may change the words of this device: a count of takings in the upper half, the
    /// slot plus one in the lower, which is zero while no process holds it.
    Lock = 0,
    /// Bytes charged to all processes.
    InUse = 1,
    /// The most of it.
    PeakInUse = 2,
}

/// A word about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ProcessWord {
    /// Its number plus one; zero for a slot that was never taken.
    Number = 0,
    /// Its process id.
    Pid = 1,
    /// 1 if the byte of the slot is locked while it is alive, 2 if only its process id can show it.
    Liveness = 2,
    /// Kernels it launched.
    Launches = 3,
    /// Allocations and frees that torch's allocator reported.
    TorchEvents = 4,
    /// Entries of its log and its blocks that could not be kept.
    Lost = 5,
    /// How many were kept before the first that was lost, plus one.
    FirstLost = 6,
    /// The system's number of the error that lost the first.
    LostError = 7,
}

/// A word about what a process holds on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum DeviceWord {
    /// Bytes charged to the process: context, allocations, mappings.
    Charged = 0,
    /// The most of it.
    PeakCharged = 1,
    /// Bytes torch's allocator handed out.
    Allocated = 2,
    /// The most of it.
    PeakAllocated = 3,
    /// Bytes torch's allocator holds from the driver.
    Reserved = 4,
    /// The most of it.
    PeakReserved = 5,
    /// Bytes of the context, once it is open.
    Context = 6,
    /// How often the device refused.
    Refusals = 7,
}

/// Where `word` about `device` stands.
pub fn shared_word(device: usize, word: SharedWord) -> usize {
    HEADER_WORDS + device * SHARED_WORDS + word as usize
}

/// Where `word` of the process in `slot` stands.
pub fn process_word(slot: usize, word: ProcessWord) -> usize {
    SLOTS_AT + slot * SLOT_WORDS + word as usize
}

/// Where `word` about `device` of the process in `slot` stands.
pub fn device_word(slot: usize, device: usize, word: DeviceWord) -> usize {
    SLOTS_AT + slot * SLOT_WORDS + PROCESS_WORDS + device * DEVICE_WORDS + word as usize
}

/// The byte of the file that the process in `slot` keeps locked while it is alive.
pub fn slot_byte(slot: usize) -> u64 {
    process_word(slot, ProcessWord::Number) as u64 * 8
}

/// The bytes of a ledger that was not written to yet.
pub fn fresh() -> Vec<u8> {
    let mut bytes = vec![0; WORDS * 8];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes
}

/// A ledger that was read.
#[derive(Clone, Debug)]
pub struct Ledger(Vec<u64>);

impl Ledger {
    /// Reads the bytes of a ledger file; `None` if they are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        (words.len() >= WORDS && words[MAGIC_WORD] == MAGIC).then_some(Self(words))
    }

    /// How many slots were ever taken.
    pub fn slots(&self) -> usize {
        usize::try_from(self.0[TAKEN_WORD])
            .unwrap_or(PROCESSES)
            .min(PROCESSES)
    }

    /// How many processes found no slot.
    pub fn unplaced(&self) -> u64 {
        self.0[UNPLACED_WORD]
    }

    /// Entries lost by processes of which nothing else is kept here.
    pub fn lost_before(&self) -> u64 {
        self.0[LOST_BEFORE_WORD]
    }

    /// A word about a device that all processes share.
    pub fn shared(&self, device: usize, word: SharedWord) -> u64 {
        self.0[shared_word(device, word)]
    }

    /// A word about the process in `slot`.
    pub fn process(&self, slot: usize, word: ProcessWord) -> u64 {
        self.0[process_word(slot, word)]
    }

    /// A word about what the process in `slot` holds on `device`.
    pub fn device(&self, slot: usize, device: usize, word: DeviceWord) -> u64 {
        self.0[device_word(slot, device, word)]
    }

    /// The slot of the process with this number, unless another has taken it since.
    pub fn slot_of(&self, number: u64) -> Option<usize> {
        (0..self.slots()).find(|&slot| {
            self.process(slot, ProcessWord::Number)
                .checked_sub(1)
                .is_some_and(|found| found == number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_own_place() {
        let last = device_word(PROCESSES - 1, DEVICES - 1, DeviceWord::Refusals);
        assert_eq!(last, WORDS - 1);
        assert!(shared_word(0, SharedWord::Lock) > LOST_BEFORE_WORD);
        assert!(
            process_word(0, ProcessWord::Number) > shared_word(DEVICES - 1, SharedWord::PeakInUse)
        );
        assert!(
            process_word(1, ProcessWord::Number)
                > device_word(0, DEVICES - 1, DeviceWord::Refusals)
        );
        assert!(process_word(0, ProcessWord::LostError) < device_word(0, 0, DeviceWord::Charged));
    }

    #[test]
    fn a_file_that_is_not_a_ledger_is_refused() {
        assert!(Ledger::from_bytes(&[0; 64]).is_none());
        assert!(Ledger::from_bytes(&vec![0; WORDS * 8]).is_none());
        let ledger = Ledger::from_bytes(&fresh());
        assert_eq!(ledger.map(|ledger| ledger.slots()), Some(0));
    }
}
