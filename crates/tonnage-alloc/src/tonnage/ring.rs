// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last events of the allocator.
//!
//! An event is written where the oldest one was, and is 32 bytes of plain
//! numbers: so it is cheap enough to be always on. There are no times, because reading a clock costs more
//! than the rest; the order is exact, and every event has a number.

use super::event::{Event, Observer};

/// How many can be kept; they take 512 MiB.
const MOST: usize = 1 << 24;

/// The last events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// How many there were before the first of these: its number.
    pub first: u64,
    /// The events, the oldest first.
    pub events: Vec<Event>,
}

/// How many events are kept by default; they take 2 MiB.
const DEFAULT: usize = 1 << 16;

/// A ring of events: an [`Observer`] that keeps the last ones.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Grows to the capacity, a power of two, and no further.
    events: Vec<Event>,
    capacity: usize,
    /// How many events there ever were.
    count: u64,
}

impl Ring {
    /// A ring of at least `events`, up to 16 million, of none if that is 0.
    pub fn new(events: usize) -> Self {
        let capacity = match events {
            0 => 0,
            events => events.min(MOST).next_power_of_two(),
        };
        Self {
            events: Vec::new(),
            capacity,
            count: 0,
        }
    }

    /// Its content.
    pub fn read(&self) -> Events {
        // The oldest is where the next one will be.
        let oldest = match self.events.len() {
            0 => 0,
            length => (self.count % length as u64) as usize,
        };
        let full = self.events.len() == self.capacity;
        let (newer, older) = self.events.split_at(if full { oldest } else { 0 });
        Events {
            first: self.count - self.events.len() as u64,
            events: [older, newer].concat(),
        }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new(DEFAULT)
    }
}

impl Observer for Ring {
    #[inline]
    fn observe(&mut self, event: Event) {
        let at = self.count as usize & self.capacity.wrapping_sub(1);
        self.count += 1;
        match self.events.get_mut(at) {
            Some(place) => *place = event,
            None => self.grow(event),
        }
    }
}

impl Ring {
    #[cold]
    fn grow(&mut self, event: Event) {
        if self.capacity > 0 {
            // All of it at once: copying what is there to a larger place would be a long request.
            self.events.reserve_exact(self.capacity - self.events.len());
            self.events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tonnage::EventKind;
    use crate::{DeviceAddr, StreamId};

    #[test]
    fn the_last_events_are_there_in_order() {
        for (asked, kept) in [(0, 0), (1, 1), (3, 4), (8, 8)] {
            let mut ring = Ring::new(asked);
            for number in 0..29_u64 {
                let addr = DeviceAddr(number);
                ring.observe(Event::new(EventKind::Alloc, addr, 1, StreamId(0)));
                let Events { first, events } = ring.read();
                let first_kept = (number + 1).saturating_sub(kept);
                let numbers: Vec<u64> = events.iter().map(|event| event.addr.0).collect();
                assert_eq!(numbers, (first_kept..=number).collect::<Vec<u64>>());
                assert_eq!(first, first_kept.max(number + 1 - events.len() as u64));
            }
        }
    }
}
