// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every block at one moment.

use std::collections::BTreeMap;
use std::fmt;

use super::blocks::State;
use super::{Allocator, Device, Observer};
use crate::{DeviceAddr, StreamId, Tag};

/// The purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockState {
    /// The program has it.
    Used,
    /// The program gave it up, and another stream may still use it.
    Pending,
    /// Nobody has it.
    Free,
}

/// A block, or what is free between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockInfo {
    /// First byte.
    pub addr: DeviceAddr,
    /// Bytes.
    pub bytes: u64,
    /// Bytes the program requested; 0 if it is free.
    pub requested: u64,
    /// The stream that it was requested for, or that freed it; `None` if everyone may have it.
    pub stream: Option<StreamId>,
    /// Its purpose.
    pub state: BlockState,
}

/// The blocks that the program has not freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// How many there are.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of each tag, the most first. Blocks without a tag have [`Tag::NONE`].
    pub tags: Vec<(Tag, u64)>,
    /// The names of the tags that have one.
    names: BTreeMap<Tag, String>,
}

impl Live {
    /// The same, with the names that a function gives to tags.
    #[must_use]
    pub fn with_names(mut self, name: impl Fn(Tag) -> Option<String>) -> Self {
        let tags = self.tags.iter().map(|(tag, _)| *tag);
        self.names = tags.filter_map(|tag| Some((tag, name(tag)?))).collect();
        self
    }
}

impl fmt::Display for Live {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, verb) = match self.blocks {
            1 => ("block", "is"),
            _ => ("blocks", "are"),
        };
        let (blocks, bytes) = (self.blocks, tonnage_text::bytes(self.bytes));
        write!(text, "{blocks} {noun} of {bytes} {verb} still live:")?;
        for (number, (tag, bytes)) in self.tags.iter().enumerate() {
            let before = if number == 0 { " " } else { ", " };
            let bytes = tonnage_text::bytes(*bytes);
            match (self.names.get(tag), *tag) {
                (Some(name), _) => write!(text, "{before}{bytes} of '{name}'")?,
                (None, Tag::NONE) => write!(text, "{before}{bytes} without a tag")?,
                (None, Tag(tag)) => write!(text, "{before}{bytes} of tag {tag}")?,
            }
        }
        text.write_str("; free them and close again")
    }
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// The blocks that were not freed. A block whose free waits for a stream counts.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        let mut tags: BTreeMap<u16, u64> = BTreeMap::new();
        for (_, block) in self.arena.blocks.by_address() {
            if matches!(block.state, State::Used | State::Pending) {
                live.blocks += 1;
                live.bytes += block.size;
                *tags.entry(block.tag).or_default() += block.size;
            }
        }
        live.tags = tags
            .into_iter()
            .map(|(tag, bytes)| (Tag(tag), bytes))
            .collect();
        live.tags
            .sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        live
    }

    /// Every block that has memory or is paused, by address. Adjacent blocks follow each other without a gap, so they
    /// cover exactly the mapped or paused ranges.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        let Some(base) = self.base else {
            return Vec::new();
        };
        let mut blocks = Vec::new();
        for (_, block) in self.arena.blocks.by_address() {
            let state = match block.state {
                State::Used => BlockState::Used,
                State::Pending => BlockState::Pending,
                State::Free | State::Left => BlockState::Free,
                State::Gap | State::Vacant => continue,
            };
            let is_free = state == BlockState::Free;
            blocks.push(BlockInfo {
                addr: base.offset(block.offset),
                bytes: block.size,
                requested: if is_free { 0 } else { block.requested },
                stream: match block.state {
                    State::Left => None,
                    _ => self.lanes.name(block.lane, &self.streams),
                },
                state,
            });
        }
        blocks
    }
}
