// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of work on streams: counters, and an event where a counter has to
//! be read.
//!
//! A stream has a number, its *epoch*. A freed block is marked with it, which costs nothing. An event is recorded only
//! when the progress of the stream matters; the epoch it closes is complete when the event is done. A stream has one
//! event in flight at most, whatever the number of frees. An event that is recorded later than the free waits as long
//! or longer, never too short.

use std::collections::BTreeMap;

use super::blocks::NONE;
use crate::{Device, DeviceError, EventId, StreamId};

#[derive(Clone, Debug)]
struct Stream {
    id: StreamId,
    /// The mark of blocks that are freed now.
    open: u64,
    /// Work of epochs up to this is done.
    done: u64,
    /// The event in flight, and the epoch that it closes.
    event: Option<(EventId, u64)>,
    /// The pass in which the event was last found not to be done.
    asked: u64,
    /// Lanes of it, and blocks that wait for it. Without any it is forgotten.
    users: u32,
}

/// One stream that was named for a block.
#[derive(Clone, Copy, Debug)]
struct Use {
    stream: u32,
    /// The work that the block waits for once it is freed.
    epoch: u64,
    next: u32,
}

/// Whether to wait for work or only to query it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Ask,
    Wait,
}

/// The streams of a device, as far as blocks need them.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    table: Vec<Stream>,
    by_id: BTreeMap<StreamId, u32>,
    vacant: Vec<u32>,
    /// Events that can be recorded again.
    spare: Vec<EventId>,
    uses: Vec<Use>,
    vacant_uses: u32,
    /// An event is queried once in each pass over the blocks that wait.
    pass: u64,
    /// Counts for the statistics.
    pub(super) events_recorded: u64,
    pub(super) waits: u64,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            vacant_uses: NONE,
            ..Self::default()
        }
    }

    /// The stream of this name; one more user of it.
    pub(super) fn join(&mut self, id: StreamId) -> u32 {
        if let Some(&stream) = self.by_id.get(&id) {
            self.table[stream as usize].users += 1;
            return stream;
        }
        let new = Stream {
            id,
            open: 1,
            done: 0,
            event: None,
            asked: 0,
            users: 1,
        };
        let stream = self.vacant.pop().unwrap_or(self.table.len() as u32);
        if stream as usize == self.table.len() {
            self.table.push(new);
        } else {
            self.table[stream as usize] = new;
        }
        self.by_id.insert(id, stream);
        stream
    }

    /// One user less.
    pub(super) fn leave(&mut self, stream: u32) {
        let state = &mut self.table[stream as usize];
        state.users -= 1;
        if state.users == 0 {
            self.spare
                .extend(state.event.take().map(|(event, _)| event));
            self.by_id.remove(&state.id);
            self.vacant.push(stream);
        }
    }

    /// Later queries query the device again.
    pub(super) fn next_pass(&mut self) {
        self.pass += 1;
    }

    #[inline]
    pub(super) fn id(&self, stream: u32) -> StreamId {
        self.table[stream as usize].id
    }

    /// The mark of blocks that are freed now on a stream.
    #[inline]
    pub(super) fn open(&self, stream: u32) -> u64 {
        self.table[stream as usize].open
    }

    /// The last epoch that is known to be done.
    pub(super) fn done(&self, stream: u32) -> u64 {
        self.table[stream as usize].done
    }

    /// Finds out whether a stream has done the work of an epoch, or waits until it has.
    ///
    /// # Errors
    /// If the device fails; what was known stays known.
    pub(super) fn reach<D: Device>(
        &mut self,
        device: &mut D,
        stream: u32,
        epoch: u64,
        patience: Patience,
    ) -> Result<bool, DeviceError> {
        loop {
            let state = &mut self.table[stream as usize];
            if state.done >= epoch {
                return Ok(true);
            }
            if let Some((event, closes)) = state.event {
                if patience == Patience::Wait {
                    device.wait_event(event)?;
                    self.waits += 1;
                } else if state.asked == self.pass || !device.query_event(event)? {
                    state.asked = self.pass;
                    return Ok(false);
                }
                state.done = closes;
                state.event = None;
                self.spare.push(event);
                continue;
            }
            let event = match self.spare.pop() {
                Some(event) => event,
                None => device.create_event()?,
            };
            if let Err(error) = device.record_event(event, state.id) {
                self.spare.push(event);
                return Err(error);
            }
            self.events_recorded += 1;
            state.event = Some((event, state.open));
            state.open += 1;
        }
    }

    /// Adds a stream to those that a chain of uses names.
    pub(super) fn name(&mut self, uses: &mut u32, id: StreamId) {
        let mut at = *uses;
        while at != NONE {
            let one = self.uses[at as usize];
            if self.table[one.stream as usize].id == id {
                return;
            }
            at = one.next;
        }
        let new = Use {
            stream: self.join(id),
            epoch: 0,
            next: *uses,
        };
        *uses = self.vacant_uses;
        if *uses == NONE {
            *uses = self.uses.len() as u32;
            self.uses.push(new);
        } else {
            self.vacant_uses = self.uses[*uses as usize].next;
            self.uses[*uses as usize] = new;
        }
    }

    /// The streams that a chain of uses names.
    pub(super) fn named(&self, uses: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = uses;
        std::iter::from_fn(move || {
            let one = (at != NONE).then(|| self.uses[at as usize])?;
            at = one.next;
            Some(one.stream)
        })
    }

    /// A block with these uses is freed now: what its streams were given so far has to be done first.
    pub(super) fn close(&mut self, uses: u32) {
        let mut at = uses;
        while at != NONE {
            let stream = self.uses[at as usize].stream;
            self.uses[at as usize].epoch = self.open(stream);
            at = self.uses[at as usize].next;
        }
    }

    /// Drops the uses that are over from the front of a chain; whether all are.
    ///
    /// # Errors
    /// If the device fails; what was dropped stays dropped.
    pub(super) fn over<D: Device>(
        &mut self,
        device: &mut D,
        uses: &mut u32,
        patience: Patience,
    ) -> Result<bool, DeviceError> {
        while *uses != NONE {
            let Use {
                stream,
                epoch,
                next,
            } = self.uses[*uses as usize];
            if !self.reach(device, stream, epoch, patience)? {
                return Ok(false);
            }
            self.uses[*uses as usize].next = self.vacant_uses;
            self.vacant_uses = *uses;
            *uses = next;
            self.leave(stream);
        }
        Ok(true)
    }

    /// Returns every event to the device.
    ///
    /// # Errors
    /// If the device fails; the rest are returned by another call.
    pub(super) fn destroy_events<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        for stream in &mut self.table {
            self.spare
                .extend(stream.event.take().map(|(event, _)| event));
        }
        while let Some(&event) = self.spare.last() {
            device.destroy_event(event)?;
            self.spare.pop();
        }
        Ok(())
    }
}
