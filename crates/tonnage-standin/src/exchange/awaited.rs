// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a stream or the host has waited for a collective.
//!
//! Torch queries the events of its collectives whether they are done, right after
//! it has issued them and from its own thread, and makes no stream wait for
//! one that is. On a GPU a collective is not done that early: streams do wait,
//! and through them the host, for ranks that may never come. So a collective is
//! done for every query once a stream or the host has waited for it, or for a
//! later one of its stream. That is a matter of the program, and not of how fast
//! other ranks are.

use std::collections::BTreeMap;

use crate::ffi::Ptr;
use crate::lag::ASKED;

#[derive(Default)]
struct Stream {
    issued: u64,
    awaited: u64,
}

struct Event {
    stream: Ptr,
    /// The last collective of the stream when it was recorded.
    after: u64,
    asked: u32,
}

/// How many collectives each stream was given, and how many were waited for.
#[derive(Default)]
pub(super) struct Awaited {
    streams: BTreeMap<Ptr, Stream>,
    events: BTreeMap<Ptr, Event>,
}

impl Awaited {
    pub(super) fn issue(&mut self, stream: Ptr) {
        self.streams.entry(stream).or_default().issued += 1;
    }

    pub(super) fn record(&mut self, event: Ptr, stream: Ptr) {
        match self.streams.get(&stream) {
            Some(&Stream { issued, awaited }) if issued > awaited => {
                let (after, asked) = (issued, 0);
                let recorded = Event {
                    stream,
                    after,
                    asked,
                };
                self.events.insert(event, recorded);
            }
            _ => self.forget(event),
        }
    }

    pub(super) fn forget(&mut self, event: Ptr) {
        self.events.remove(&event);
    }

    /// A stream or the host waits for an event.
    pub(super) fn wait_for_event(&mut self, event: Ptr) {
        if let Some(event) = self.events.remove(&event)
            && let Some(stream) = self.streams.get_mut(&event.stream)
        {
            stream.awaited = stream.awaited.max(event.after);
        }
    }

    pub(super) fn wait_for_stream(&mut self, stream: Ptr) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.awaited = stream.issued;
        }
    }

    pub(super) fn wait_for_all(&mut self) {
        self.events.clear();
        for stream in self.streams.values_mut() {
            stream.awaited = stream.issued;
        }
    }

    /// Whether an event is done, as far as collectives are concerned.
    pub(super) fn is_done(&self, event: Ptr) -> bool {
        self.events.get(&event).is_none_or(|recorded| {
            let stream = self.streams.get(&recorded.stream);
            stream.is_none_or(|stream| stream.awaited >= recorded.after)
        })
    }

    /// Records that a caller gets "not done" for an event; returns whether that is so.
    pub(super) fn tell(&mut self, event: Ptr) -> bool {
        let asked = self.events.get_mut(&event).map(|recorded| {
            recorded.asked += 1;
            recorded.asked
        });
        if asked.is_some_and(|asked| asked > ASKED) {
            self.wait_for_event(event);
        }
        !self.is_done(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Ptr = Ptr(7);
    const OTHER: Ptr = Ptr(8);

    fn issued(events: &[usize]) -> Awaited {
        let mut awaited = Awaited::default();
        for &event in events {
            awaited.issue(STREAM);
            awaited.record(Ptr(event), STREAM);
        }
        awaited
    }

    #[test]
    fn a_collective_is_done_once_it_or_a_later_one_was_waited_for() {
        let mut awaited = issued(&[1, 2, 3]);
        assert!(!awaited.is_done(Ptr(1)));
        awaited.wait_for_event(Ptr(2));
        let done = [1, 2, 3].map(|event| awaited.is_done(Ptr(event)));
        assert_eq!(done, [true, true, false]);
        awaited.wait_for_stream(OTHER);
        assert!(!awaited.is_done(Ptr(3)));
        awaited.wait_for_stream(STREAM);
        assert!(awaited.is_done(Ptr(3)));
    }

    #[test]
    fn events_of_other_work_are_done() {
        let mut awaited = issued(&[1]);
        assert!(awaited.is_done(Ptr(9)), "never recorded");
        awaited.record(Ptr(1), OTHER);
        assert!(awaited.is_done(Ptr(1)), "recorded again elsewhere");
        awaited.wait_for_all();
        awaited.record(Ptr(2), STREAM);
        assert!(awaited.is_done(Ptr(2)), "nothing was issued since");
    }

    #[test]
    fn whoever_asks_and_asks_waits() {
        let mut awaited = issued(&[1]);
        let asks = (0..1000).take_while(|_| awaited.tell(Ptr(1))).count();
        assert_eq!(asks, ASKED as usize);
        assert!(awaited.is_done(Ptr(1)));
    }
}
