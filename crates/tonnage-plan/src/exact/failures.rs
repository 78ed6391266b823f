// SPDX-License-Identifier: MIT OR Apache-2.0
//! The failure cache: partial plans that cannot be completed.
//!
//! Two ways to the same items left with the same room are the same problem. Failures are stored by the set of items,
//! and a problem with no more room anywhere than a failed one fails too. This holds for every capacity, since only the
//! room counts, so restarts and other capacities profit. Sets are distinguished by a sum of 64-bit numbers drawn for
//! each kind of item, and by their sections. Two sets with one sum in the same sections would be taken for each other:
//! no plan is wrong by that, but one may be missed, and then what is called proved (a lower bound, an optimum, that
//! nothing fits) may be wrong. With 2^20 sets kept at a time the chance of one such pair is about 2^-25, and it is
//! accepted.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::height::Height;

/// Keys are random already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// Failed partial plans by the key of their items.
pub(super) struct FailureCache<H> {
    /// Where the rooms of each are, and how many.
    entries: HashMap<u64, Vec<(u32, u32)>, BuildHasherDefault<AsIs>>,
    /// The room of each section: from its floor up to the capacity.
    rooms: Vec<H>,
    max_rooms: usize,
}

impl<H: Height> FailureCache<H> {
    pub(super) fn new(max_rooms: usize) -> Self {
        Self {
            entries: HashMap::default(),
            rooms: Vec::new(),
            max_rooms,
        }
    }

    /// Starts anew once it is full: what failed last fails again soonest.
    pub(super) fn clear_if_full(&mut self) {
        if self.rooms.len() >= self.max_rooms {
            self.entries.clear();
            self.rooms.clear();
        }
    }

    /// Whether the same items failed with at least as much room in every section.
    pub(super) fn contains(&self, key: u64, cap: H, floors: &[H]) -> bool {
        let known = self.entries.get(&key).into_iter().flatten();
        known
            .filter(|(_, len)| *len as usize == floors.len())
            .any(|&(at, len)| {
                let rooms = &self.rooms[at as usize..at as usize + len as usize];
                rooms
                    .iter()
                    .zip(floors)
                    .all(|(room, floor)| cap - *floor <= *room)
            })
    }

    /// Keeps a failure, as long as there is space.
    pub(super) fn insert(&mut self, key: u64, cap: H, floors: &[H]) {
        if self.rooms.len() < self.max_rooms {
            let entry = (self.rooms.len() as u32, floors.len() as u32);
            self.rooms.extend(floors.iter().map(|floor| cap - *floor));
            self.entries.entry(key).or_default().push(entry);
        }
    }
}
