// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far streams are behind the host.
//!
//! Kernels do nothing, so a stream would be idle at every query. A GPU is behind: the work that the host launched waits
//! in a queue, and a query of an event (by PyTorch's allocator before it reuses a block that
//! another stream used) may return that it is not done. Here a stream is behind by so many launches at most, after
//! which a host has to wait for the queue; and it has done everything that a thread or a stream waited for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ffi::Ptr;
use crate::fork::Lock;

/// A device and its stream: each device has a default stream, whose handle is null.
pub(crate) type Key = (usize, Ptr);

/// How far each stream has come, by the number of its launches.
type Progress = BTreeMap<Key, u64>;

/// A caller that queries this often while nothing else is requested of the GPU waits for it: then it has caught up.
pub(crate) const ASKED: u32 = 100;

#[derive(Default)]
struct Stream {
    given: u64,
    done: u64,
    /// The work on other streams that its next launch waits for.
    after: Progress,
}

/// The work that streams have done, and when events will be.
pub(crate) struct Lag {
    /// How many launches a stream may be behind.
    limit: u64,
    streams: BTreeMap<Key, Stream>,
    /// Where an event was last recorded, and what is done when it is.
    events: BTreeMap<Ptr, (Key, Progress)>,
    asked: u32,
}

static LAG: Lock<Lag> = Lock::new(Lag::new(0));
/// Set by [`set`], where streams are behind.
static BEHIND: AtomicBool = AtomicBool::new(false);

/// From now on streams are up to so many launches behind the host.
pub(crate) fn set(launches: u64) {
    *LAG.lock() = Lag::new(launches);
    BEHIND.store(launches > 0, Ordering::Relaxed);
}

pub(crate) fn is_behind() -> bool {
    BEHIND.load(Ordering::Relaxed)
}

pub(crate) fn with<R>(act: impl FnOnce(&mut Lag) -> R) -> R {
    act(&mut LAG.lock())
}

impl Lag {
    const fn new(limit: u64) -> Self {
        Self {
            limit,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            asked: 0,
        }
    }

    fn stream(&mut self, key: Key) -> &mut Stream {
        self.streams.entry(key).or_default()
    }

    /// Something is launched.
    pub(crate) fn launch(&mut self, key: Key) {
        self.asked = 0;
        self.stream(key).given += 1;
    }

    pub(crate) fn record(&mut self, event: Ptr, key: Key) {
        self.launch(key);
        let (_, when) = self.all_of(key);
        self.events.insert(event, (key, when));
    }

    pub(crate) fn forget(&mut self, event: Ptr) {
        self.events.remove(&event);
    }

    /// Makes later launches on a stream wait for an event.
    pub(crate) fn follow(&mut self, key: Key, event: Ptr) {
        let Some((_, when)) = self.events.get(&event) else {
            return;
        };
        let when = when.clone();
        let done: Vec<bool> = when
            .iter()
            .map(|(other, launch)| self.has_done(*other, *launch))
            .collect();
        let after = &mut self.stream(key).after;
        for ((other, launch), done) in when.into_iter().zip(done) {
            if other != key && !done {
                let known = after.entry(other).or_default();
                *known = launch.max(*known);
            }
        }
    }

    fn has_done(&self, key: Key, launch: u64) -> bool {
        self.streams.get(&key).is_none_or(|stream| {
            stream.done >= launch || stream.given.saturating_sub(launch) >= self.limit
        })
    }

    fn finish(&mut self, when: &Progress) {
        for (key, launch) in when {
            let stream = self.stream(*key);
            stream.done = stream.done.max(*launch);
        }
    }

    /// Whether the queried work is done; a caller that does nothing but query waits for it.
    fn answer(&mut self, key: Key, launch: u64, when: &Progress) -> bool {
        self.asked += 1;
        let done = self.asked > ASKED || self.has_done(key, launch);
        if done {
            self.finish(when);
        }
        done
    }

    pub(crate) fn is_done(&mut self, event: Ptr) -> bool {
        let Some((key, when)) = self.events.get(&event).cloned() else {
            return true;
        };
        self.answer(key, when[&key], &when)
    }

    pub(crate) fn is_idle(&mut self, key: Key) -> bool {
        let (given, when) = self.all_of(key);
        self.answer(key, given, &when)
    }

    /// Waiting for an event is waiting for everything before it.
    pub(crate) fn wait_for_event(&mut self, event: Ptr) {
        if let Some((_, when)) = self.events.get(&event).cloned() {
            self.finish(&when);
        }
    }

    pub(crate) fn wait_for_stream(&mut self, key: Key) {
        let (_, when) = self.all_of(key);
        self.finish(&when);
    }

    pub(crate) fn wait_for_all(&mut self) {
        for stream in self.streams.values_mut() {
            stream.done = stream.given;
        }
    }

    /// The last launch of a stream, and what is done when that is.
    fn all_of(&mut self, key: Key) -> (u64, Progress) {
        let stream = self.stream(key);
        let mut when = stream.after.clone();
        when.insert(key, stream.given);
        (stream.given, when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: Key = (0, Ptr::NULL);

    #[test]
    fn a_stream_is_behind_by_as_many_launches_as_its_queue_holds() {
        let mut lag = Lag::new(3);
        let event = Ptr(1);
        assert!(lag.is_done(event), "never recorded");
        lag.record(event, MAIN);
        for _ in 0..2 {
            lag.launch(MAIN);
            assert!(!lag.is_done(event));
        }
        lag.launch(MAIN);
        assert!(lag.is_done(event));
        assert!(!lag.is_idle(MAIN));
    }

    #[test]
    fn whoever_waits_for_a_stream_waits_for_what_it_waits_for() {
        let side = (0, Ptr(9));
        let (first, last, later) = (Ptr(1), Ptr(2), Ptr(3));
        let mut lag = Lag::new(1024);
        lag.record(first, side);
        lag.follow(MAIN, first);
        lag.record(last, MAIN);
        lag.record(later, side);
        assert!(!lag.is_done(first) && !lag.is_done(last));
        lag.wait_for_event(last);
        assert!(lag.is_done(first) && lag.is_done(last) && lag.is_idle(MAIN));
        assert!(!lag.is_done(later), "nobody waited for it");
        lag.wait_for_stream(side);
        assert!(lag.is_done(later));
    }

    #[test]
    fn a_program_that_only_asks_is_answered() {
        let mut lag = Lag::new(1024);
        lag.record(Ptr(1), MAIN);
        let asked = (0..1000).take_while(|_| !lag.is_done(Ptr(1))).count();
        assert_eq!(asked, ASKED as usize);
        lag.record(Ptr(1), MAIN);
        lag.wait_for_all();
        assert!(lag.is_done(Ptr(1)));
    }
}
