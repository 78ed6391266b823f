// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of the file in which processes keep what they hold.
//!
//! A table of 64-bit words: a header, then one slot a process. Writers map the
//! file and store to their own slot; readers may look at any moment and see
//! each word whole. A killed process leaves its slot behind, with its process
//! id to tell that it is gone.
//!
//! This module only knows where each word is, so that the one side which maps
//! the file (and needs `unsafe` for it) and the one which reads it agree.

/// First word of the file: `tonnage` and a version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tonnage\x01");
/// Processes that fit.
pub const PROCESSES: usize = 512;
/// Devices that fit.
pub const DEVICES: usize = 16;

const HEADER_WORDS: usize = 8;
const PROCESS_WORDS: usize = 8;
const DEVICE_WORDS: usize = 8;
const SLOT_WORDS: usize = PROCESS_WORDS + DEVICES * DEVICE_WORDS;

/// Length of the file in words.
pub const WORDS: usize = HEADER_WORDS + PROCESSES * SLOT_WORDS;
/// Where [`MAGIC`] stands.
pub const MAGIC_WORD: usize = 0;
/// How many slots were ever taken.
pub const TAKEN_WORD: usize = 1;

/// A word about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ProcessWord {
    /// Its process id.
    Pid = 0,
    /// Kernels it launched.
    Launches = 1,
    /// Allocations and frees that torch's allocator reported.
    TorchEvents = 2,
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

/// Where `word` of the process in `slot` stands.
pub fn process_word(slot: usize, word: ProcessWord) -> usize {
    HEADER_WORDS + slot * SLOT_WORDS + word as usize
}

/// Where `word` about `device` of the process in `slot` stands.
pub fn device_word(slot: usize, device: usize, word: DeviceWord) -> usize {
    HEADER_WORDS + slot * SLOT_WORDS + PROCESS_WORDS + device * DEVICE_WORDS + word as usize
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

    /// How many processes took a slot.
    pub fn processes(&self) -> usize {
        usize::try_from(self.0[TAKEN_WORD])
            .unwrap_or(PROCESSES)
            .min(PROCESSES)
    }

    /// A word about the process in `slot`.
    pub fn process(&self, slot: usize, word: ProcessWord) -> u64 {
        self.0[process_word(slot, word)]
    }

    /// A word about what the process in `slot` holds on `device`.
    pub fn device(&self, slot: usize, device: usize, word: DeviceWord) -> u64 {
        self.0[device_word(slot, device, word)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_own_place() {
        let last = device_word(PROCESSES - 1, DEVICES - 1, DeviceWord::Refusals);
        assert_eq!(last, WORDS - 1);
        assert!(process_word(0, ProcessWord::Pid) > TAKEN_WORD);
        assert!(
            process_word(1, ProcessWord::Pid) > device_word(0, DEVICES - 1, DeviceWord::Refusals)
        );
    }

    #[test]
    fn a_file_that_is_not_a_ledger_is_refused() {
        assert!(Ledger::from_bytes(&[0; 64]).is_none());
        assert!(Ledger::from_bytes(&vec![0; WORDS * 8]).is_none());
    }
}
