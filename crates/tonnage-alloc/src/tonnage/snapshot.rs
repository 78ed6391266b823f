// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every block at one moment.

use super::blocks::State;
use super::{Allocator, Device, Observer};
use crate::{DeviceAddr, StreamId};

/// What a block is for.
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
    /// Bytes the program asked for; 0 if it is free.
    pub requested: u64,
    /// The stream that it was requested for, or that freed it; `None` if everyone may have it.
    pub stream: Option<StreamId>,
    /// What it is for.
    pub state: BlockState,
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// Every block that has memory or is paused, by address. Those that touch follow each other without a hole, so what
    /// they cover is what is mapped or paused.
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
