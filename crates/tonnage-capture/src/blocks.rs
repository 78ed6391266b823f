// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file in which a process keeps every block that torch's allocator handed
//! out or took back.
//!
//! Entries of four words, appended to a file that the process has mapped: an
//! entry costs no system call and is in the file the moment it is written, so
//! a kill at any moment loses none. The file grows in windows; the words after
//! the last entry are zero.

/// Bytes of an entry.
pub const ENTRY: usize = 32;
/// Bytes by which the file grows.
pub const WINDOW: usize = 1 << 20;
/// How the file of each process is called: this, the slot and the process id.
pub const PREFIX: &str = "blocks-";

/// A block handed out or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first byte.
    pub address: u64,
    /// Its bytes: positive when handed out, negative when taken back.
    pub change: i64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Physical number of the device.
    pub device: u8,
}

impl Block {
    /// The words of the entry; the last is never zero.
    pub fn to_words(self) -> [u64; 4] {
        let device = u64::from(self.device) + 1;
        [self.address, self.change.cast_unsigned(), self.time, device]
    }

    /// The entry in these words; `None` where nothing was written yet.
    pub fn from_words(words: [u64; 4]) -> Option<Self> {
        Some(Self {
            address: words[0],
            change: words[1].cast_signed(),
            time: words[2],
            device: u8::try_from(words[3].checked_sub(1)?).ok()?,
        })
    }
}

/// Reads the entries of a file, up to the first that was not written.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = Block> {
    let entries = bytes.as_chunks::<ENTRY>().0.iter();
    entries.map_while(|entry| {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(entry.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Block::from_words(words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_end_at_the_first_that_is_missing() {
        let block = Block {
            address: 1 << 44,
            change: -512,
            time: 7,
            device: 3,
        };
        let mut bytes: Vec<u8> = block
            .to_words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        bytes.resize(WINDOW, 0);
        assert_eq!(read(&bytes).collect::<Vec<_>>(), [block]);
    }
}
