// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frees that must wait: for other streams, or for the end of a capture (specification 5).

use std::collections::{BTreeMap, VecDeque};

use super::block::NONE;
use super::ska::{HashedStream, SkaMap};
use super::{Allocator, Error, Sink, Undefined};
use crate::{Device, DeviceAddr, DeviceError, EventId, StreamId};

/// Blocks given back and not free yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// For each stream the moments waited for, oldest first.
    queues: SkaMap<HashedStream, VecDeque<(EventId, u32)>>,
    /// Given back during a capture, in that order.
    deferred: Vec<u32>,
    /// Streams that used a block during a capture; dropped when its free is
    /// completed after it, because the capture has joined them by then (5.5).
    graph_uses: BTreeMap<u32, Vec<StreamId>>,
    /// Whether such uses were of a block given back outside of a capture.
    stale_uses: bool,
    /// Held back until the caller releases it.
    pub(super) held_back: BTreeMap<u64, u32>,
    /// torch's number of each stream, which its hash is made from.
    numbers: BTreeMap<StreamId, u64>,
    /// The ordinal of the device, part of the same hash.
    pub(super) ordinal: u8,
    /// Events that mark nothing of interest any more and can be recorded again.
    spare: Vec<EventId>,
}

impl Pending {
    /// Whether a reap could find something.
    pub(super) fn any(&self) -> bool {
        !self.queues.is_empty() || !self.deferred.is_empty()
    }

    /// Every block that waits, in no meaningful order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        let queued = self.queues.values().flatten().map(|&(_, block)| block);
        queued.chain(self.held_back.values().copied())
    }

    pub(super) fn deferred(&self) -> &[u32] {
        &self.deferred
    }
}

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Sets torch's ordinal of the device; only the order of pending frees depends on it. The default is 0.
    pub fn set_ordinal(&mut self, ordinal: u8) {
        self.pending.ordinal = ordinal;
    }

    /// Sets torch's number of a stream (`torch.cuda.Stream.stream_id`); only the order of pending frees depends on it.
    /// The default is the handle itself.
    pub fn set_stream_number(&mut self, stream: StreamId, number: u64) {
        self.pending.numbers.insert(stream, number);
    }

    fn hashed(&self, stream: StreamId) -> HashedStream {
        let number = self.pending.numbers.get(&stream).copied();
        HashedStream::new(stream, self.pending.ordinal, number.unwrap_or(stream.0))
    }

    /// Says that `stream` uses the block at `addr` (`Tensor.record_stream`).
    pub fn record_stream(&mut self, addr: DeviceAddr, stream: StreamId) -> Result<(), Error> {
        let block = self.live.get(addr.0).ok_or(Error::UnknownAddress(addr))?;
        let own = self.lanes[self.blocks[block].lane as usize].stream;
        if stream == own {
            return Ok(());
        }
        let hashed = self.hashed(stream);
        self.blocks.add_use(block, hashed);
        if self.in_capture() {
            let uses = self.pending.graph_uses.entry(block).or_default();
            uses.push(stream);
        }
        Ok(())
    }

    /// Takes a block back whose free a recording shows to be completed later, by
    /// [`complete_free`](Self::complete_free): why it waits need not be known.
    pub fn request_free(&mut self, addr: DeviceAddr) -> Result<(), Error> {
        let block = self
            .live
            .remove(addr.0)
            .ok_or(Error::UnknownAddress(addr))?;
        self.blocks.take_uses(block);
        self.request_back(block);
        self.start_waiting(block);
        self.blocks[block].events = 1;
        self.pending.held_back.insert(addr.0, block);
        Ok(())
    }

    /// Completes what [`request_free`](Self::request_free) began.
    pub fn complete_free(&mut self, addr: DeviceAddr) -> Result<(), Error> {
        let held_back = self.pending.held_back.remove(&addr.0);
        let block = held_back.ok_or(Error::UnknownAddress(addr))?;
        self.settle(block);
        Ok(())
    }

    /// Completes the frees that nothing delays any more. Every request does so first; a program that makes none can
    /// call this.
    pub fn process_events(&mut self) -> Result<(), Error> {
        if self.pending.any() {
            self.reap()?;
        }
        Ok(())
    }

    /// Takes back a block that other streams used. If the device fails, the
    /// block stays handed out and nothing has changed.
    #[cold]
    #[inline(never)]
    pub(super) fn give_back_used(&mut self, block: u32) -> Result<(), Error> {
        if self.in_capture() {
            self.request_back(block);
            self.start_waiting(block);
            self.pending.deferred.push(block);
            if self.settings.graph_capture_record_stream_reuse {
                self.flag(Undefined::CaptureReuse);
            }
            return Ok(());
        }
        let events = self.mark_uses(block)?;
        self.request_back(block);
        self.start_waiting(block);
        self.pending.stale_uses |= self.pending.graph_uses.remove(&block).is_some();
        self.wait_for(block, events);
        Ok(())
    }

    /// Marks the present moment on every stream that used the block, in torch's order.
    fn mark_uses(&mut self, block: u32) -> Result<Vec<EventId>, DeviceError> {
        let mut marked = Vec::new();
        for stream in self.blocks.streams(block) {
            let event = match self.pending.spare.pop() {
                Some(event) => Ok(event),
                None => self.device.create_event(),
            };
            let recorded = event.and_then(|event| {
                marked.push(event);
                self.device.record_event(event, stream.stream)
            });
            if let Err(error) = recorded {
                self.pending.spare.append(&mut marked);
                return Err(error);
            }
        }
        Ok(marked)
    }

    /// The block waits for `events`, one for each stream that used it.
    fn wait_for(&mut self, block: u32, events: Vec<EventId>) {
        for (stream, event) in self.blocks.take_uses(block).into_iter().zip(events) {
            self.blocks[block].events += 1;
            if let Some(queue) = self.pending.queues.entry(stream, VecDeque::new) {
                queue.push_back((event, block));
            }
        }
    }

    /// Gives the events that were kept for reuse back to the device.
    pub(super) fn destroy_spare_events(&mut self) -> Result<(), DeviceError> {
        while let Some(&event) = self.pending.spare.last() {
            self.device.destroy_event(event)?;
            self.pending.spare.pop();
        }
        Ok(())
    }

    /// One reason to wait is gone.
    fn settle(&mut self, block: u32) {
        self.blocks[block].events -= 1;
        if self.blocks[block].events == 0 {
            self.stop_waiting(block);
        }
    }

    /// A block was given back that is not free yet.
    pub(super) fn start_waiting(&mut self, block: u32) {
        let block = &self.blocks[block];
        let (small, size) = (block.is_small(), block.size);
        self.books.change_waiting(small, 1, size);
    }

    fn stop_waiting(&mut self, block: u32) {
        let (small, size) = (self.blocks[block].is_small(), self.blocks[block].size);
        self.books.change_waiting(small, -1, size);
        self.complete(block);
    }

    /// Frees deferred by a capture that is over (5.5).
    fn settle_deferred(&mut self) -> Result<(), Error> {
        let deferred = std::mem::take(&mut self.pending.deferred);
        self.settle_all_deferred(deferred)
    }

    /// Completes deferred frees, or lets them wait for events. Frees for which the device failed stay deferred.
    fn settle_all_deferred(&mut self, mut blocks: Vec<u32>) -> Result<(), Error> {
        if blocks.len() > 1 {
            self.flag(Undefined::DeferredOrder);
        }
        for place in 0..blocks.len() {
            if let Err(error) = self.settle_one_deferred(blocks[place]) {
                self.pending.deferred.extend(blocks.drain(place..));
                return Err(error);
            }
        }
        Ok(())
    }

    fn settle_one_deferred(&mut self, block: u32) -> Result<(), Error> {
        if let Some(captured) = self.pending.graph_uses.remove(&block) {
            let uses = self.blocks.take_uses(block);
            // The remaining ones go into a new table, as in torch.
            for stream in uses {
                if !captured.contains(&stream.stream) {
                    self.blocks.add_use(block, stream);
                }
            }
        }
        let events = self.mark_uses(block)?;
        self.wait_for(block, events);
        if self.blocks[block].events == 0 {
            self.stop_waiting(block);
        } else if self.pending.stale_uses {
            self.flag(Undefined::StaleCaptureUses);
        }
        Ok(())
    }

    /// The end of a scope completes the deferred frees of its pool, if blocks
    /// may be reused during a capture.
    pub(super) fn settle_deferred_of(&mut self, owner: u32) -> Result<(), Error> {
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending.deferred)
            .into_iter()
            .partition(|&block| self.owner_of(block) == owner);
        self.pending.deferred = others;
        self.settle_all_deferred(mine)
    }

    /// Completes every free whose events are done (5.2).
    #[cold]
    #[inline(never)]
    pub(super) fn reap(&mut self) -> Result<(), Error> {
        if self.in_capture() {
            return Ok(());
        }
        self.settle_deferred()?;
        let mut slot = 0;
        while let Some(at) = self.pending.queues.occupied_from(slot) {
            slot = at + 1;
            while let Some(&(event, block)) = self.front(at) {
                if !self.device.query_event(event)? {
                    break;
                }
                if let Some(queue) = self.pending.queues.value_mut(at) {
                    queue.pop_front();
                }
                self.pending.spare.push(event);
                self.settle(block);
            }
            if self.front(at).is_none() {
                self.pending.queues.remove_at(at);
                slot = at;
            }
        }
        Ok(())
    }

    fn front(&self, at: usize) -> Option<&(EventId, u32)> {
        self.pending.queues.value(at)?.front()
    }

    /// Waits for every event, or for those of one private pool's blocks (5.3).
    pub(super) fn synchronize(&mut self, owner: Option<u32>) -> Result<(), Error> {
        self.books.rest.sync_all_streams += 1;
        self.settle_deferred()?;
        let mut slot = 0;
        while let Some(at) = self.pending.queues.occupied_from(slot) {
            slot = at + 1;
            let Some(queue) = self.pending.queues.value_mut(at) else {
                continue;
            };
            let mut kept = VecDeque::new();
            let mut waiting = std::mem::take(queue);
            let mut waited = Ok(());
            while waited.is_ok()
                && let Some((event, block)) = waiting.pop_front()
            {
                if owner.is_some_and(|owner| self.owner_of(block) != owner) {
                    kept.push_back((event, block));
                    continue;
                }
                waited = self.device.wait_event(event);
                if waited.is_ok() {
                    self.pending.spare.push(event);
                    self.settle(block);
                } else {
                    kept.push_back((event, block));
                }
            }
            kept.append(&mut waiting);
            if kept.is_empty() {
                self.pending.queues.remove_at(at);
                slot = at;
            } else if let Some(queue) = self.pending.queues.value_mut(at) {
                *queue = kept;
            }
            waited?;
        }
        Ok(())
    }

    /// The private pool of a block, or `NONE`.
    fn owner_of(&self, block: u32) -> u32 {
        let lane = self.blocks[block].lane;
        debug_assert!(lane != NONE);
        self.pools[self.lanes[lane as usize].pool as usize].owner
    }
}
