// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file in which a process keeps every block that torch's allocator handed
//! out or took back, and between them what is known of the program at that
//! moment: whose a block is, which phase and module begin and end.
//!
//! Entries of four words, appended to a file that the process has mapped: an
//! entry costs no system call and is in the file the moment it is written, so
//! a kill at any moment loses none. The file grows in windows; the words after
//! the last entry are zero. One file holds both sorts because their order is
//! what counts. The uses of a block stand before the entry that takes it back.

/// Bytes of an entry.
pub const ENTRY: usize = 32;
/// Bytes by which the file grows.
pub const WINDOW: usize = 256 << 10;
/// How the file of each process is called: this, the number of the process in the run and its process id.
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

/// The meaning of a [`Note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NoteKind {
    /// A range begins.
    Start = 0,
    /// A range ends.
    End = 1,
    /// A moment.
    Moment = 2,
    /// The owner of the block at the address.
    Owner = 3,
    /// The holder of the block at the address, as Python reported it at this moment.
    Holder = 4,
    /// The owners of several blocks: the text is the number of a list in the process's log. Written where the GPU is a
    /// real one.
    Owners = 5,
    /// An allocator that took the place of PyTorch's ran out: `address` has the rounded request, the text what the
    /// device had left.
    OutOfMemory = 6,
    /// The uses of a live block stand before this note.
    Used = 7,
}

impl NoteKind {
    /// The kind with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Start,
            1 => Self::End,
            2 => Self::Moment,
            3 => Self::Owner,
            4 => Self::Holder,
            5 => Self::Owners,
            6 => Self::OutOfMemory,
            7 => Self::Used,
            _ => return None,
        })
    }
}

/// Something known of the program at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The kind of the note.
    pub kind: NoteKind,
    /// Physical number of the device whose blocks it stands among.
    pub device: u8,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The block, for [`NoteKind::Owner`] and [`NoteKind::Holder`].
    pub address: u64,
    /// Number of the text in the process's log.
    pub text: u32,
}

/// When the device used a block. A moment is the number of an entry among those of its device, from 0 and without
/// entries of uses: the use came after this entry and before the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Physical number of the device.
    pub device: u8,
    /// The entry that handed the block out.
    pub born: u32,
    /// The first use.
    pub first: Option<u32>,
    /// The last use.
    pub last: Option<u32>,
    /// The first use after the moment at which most was allocated; only of blocks that were alive then.
    pub next: Option<u32>,
    /// Launches, copies and calls of libraries that used it.
    pub count: u32,
}

/// One entry of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A block handed out or taken back.
    Block(Block),
    /// A fact about the program.
    Note(Note),
    /// The uses of the block of the next entry of this device.
    Uses(Uses),
}

/// Set in the last word of a note; the low byte is the device in all sorts.
const NOTE: u64 = 1 << 32;
/// Set in the last word of uses.
const USES: u64 = 1 << 33;

impl Entry {
    /// The words of the entry; the last is never zero.
    pub fn to_words(self) -> [u64; 4] {
        match self {
            Self::Block(block) => {
                let device = u64::from(block.device) + 1;
                let change = block.change.cast_unsigned();
                [block.address, change, block.time, device]
            }
            Self::Note(note) => {
                let device = u64::from(note.device) + 1;
                let what = u64::from(note.text) | (note.kind as u64) << 32;
                [note.address, what, note.time, NOTE | device]
            }
            Self::Uses(uses) => {
                let device = u64::from(uses.device) + 1;
                // 0 stands for none.
                let after = |moment: Option<u32>| moment.map_or(0, |at| u64::from(at) + 1);
                let (first, last, next) = (after(uses.first), after(uses.last), after(uses.next));
                let born = u64::from(uses.born) << 32 | u64::from(uses.count);
                [born, first, last | next << 32, USES | device]
            }
        }
    }

    /// The entry in these words; `None` where nothing was written yet.
    pub fn from_words(words: [u64; 4]) -> Option<Self> {
        let device = u8::try_from((words[3] & !(NOTE | USES)).checked_sub(1)?).ok()?;
        if words[3] & USES != 0 {
            let moment = |word: u64| (word as u32).checked_sub(1);
            return Some(Self::Uses(Uses {
                device,
                born: (words[0] >> 32) as u32,
                first: moment(words[1]),
                last: moment(words[2]),
                next: moment(words[2] >> 32),
                count: words[0] as u32,
            }));
        }
        if words[3] & NOTE == 0 {
            return Some(Self::Block(Block {
                address: words[0],
                change: words[1].cast_signed(),
                time: words[2],
                device,
            }));
        }
        let kind = u8::try_from(words[1] >> 32).ok()?;
        Some(Self::Note(Note {
            kind: NoteKind::from_number(kind)?,
            device,
            time: words[2],
            address: words[0],
            text: words[1] as u32,
        }))
    }

    /// Physical number of the device it belongs to.
    pub const fn device(&self) -> u8 {
        match self {
            Self::Block(block) => block.device,
            Self::Note(note) => note.device,
            Self::Uses(uses) => uses.device,
        }
    }

    /// Nanoseconds since 1970; 0 of uses, whose time is that of the entry behind them.
    pub const fn time(&self) -> u64 {
        match self {
            Self::Block(block) => block.time,
            Self::Note(note) => note.time,
            Self::Uses(_) => 0,
        }
    }
}

/// Reads the entries of a file, up to the first that was not written.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = Entry> {
    let entries = bytes.as_chunks::<ENTRY>().0.iter();
    entries.map_while(|entry| {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(entry.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Entry::from_words(words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_end_at_the_first_that_is_missing() {
        let block = Entry::Block(Block {
            address: 1 << 44,
            change: -512,
            time: 7,
            device: 3,
        });
        let note = |kind| {
            Entry::Note(Note {
                kind,
                device: 255,
                time: 8,
                address: u64::MAX,
                text: u32::MAX,
            })
        };
        let entries = [
            block,
            note(NoteKind::Start),
            note(NoteKind::End),
            note(NoteKind::Moment),
            note(NoteKind::Owner),
            note(NoteKind::Holder),
            note(NoteKind::Owners),
            note(NoteKind::Used),
            Entry::Uses(Uses {
                device: 255,
                born: u32::MAX,
                first: Some(0),
                last: Some(u32::MAX - 1),
                next: None,
                count: 7,
            }),
            Entry::Uses(Uses::default()),
        ];
        let mut bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| entry.to_words())
            .flat_map(u64::to_le_bytes)
            .collect();
        bytes.resize(WINDOW, 0);
        assert_eq!(read(&bytes).collect::<Vec<_>>(), entries);
    }
}
