// SPDX-License-Identifier: MIT OR Apache-2.0
//! The iteration order of `ska::flat_hash_map`, which torch leaks into its trace.
//!
//! Streams with pending frees, streams that used a block, and private pools are
//! visited in the order of such a table (specification 5.4), so the order of
//! `free_completed` and `segment_free` events is that of its slots. This is the
//! only place where a hash decides anything, and it is part of the behaviour
//! that is simulated: Fibonacci hashing, robin-hood insertion, at most half
//! full, doubling, backward-shift deletion, never shrinking.

use super::PoolId;
use crate::StreamId;

/// 2^64 divided by the golden ratio.
const FIBONACCI: u64 = 11_400_714_819_323_198_485;
const FIRST_SLOTS: usize = 4;
const MIN_LOOKUPS: u32 = 4;

/// A key with the hash torch gives it.
pub(super) trait SkaKey: Copy + Eq {
    fn hash(self) -> u64;
}

/// A stream with its hash, which is made from torch's stream number, not from the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HashedStream {
    pub(super) stream: StreamId,
    pub(super) hash: u64,
}

impl HashedStream {
    /// `number` is `torch.cuda.Stream.stream_id`.
    pub(super) fn new(stream: StreamId, device: u8, number: u64) -> Self {
        let hash = 1 << 56 | u64::from(device) << 48 | number & ((1 << 48) - 1);
        Self { stream, hash }
    }
}

impl SkaKey for HashedStream {
    fn hash(self) -> u64 {
        self.hash
    }
}

impl SkaKey for PoolId {
    fn hash(self) -> u64 {
        if self.0 == 0 { self.1 } else { self.0 }
    }
}

#[derive(Clone, Debug)]
struct Slot<K, V> {
    /// How far from where the hash wants it.
    distance: u32,
    key: K,
    value: V,
}

/// A map that iterates as torch's does.
#[derive(Clone, Debug)]
pub(super) struct SkaMap<K, V> {
    /// Empty, or a power of two plus `lookups - 1` slots that catch the overflow.
    slots: Vec<Option<Slot<K, V>>>,
    /// The power of two.
    width: usize,
    lookups: u32,
    len: usize,
}

/// A set that iterates as torch's does.
pub(super) type SkaSet<K> = SkaMap<K, ()>;

impl<K, V> Default for SkaMap<K, V> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            width: 0,
            lookups: MIN_LOOKUPS,
            len: 0,
        }
    }
}

impl<K: SkaKey, V> SkaMap<K, V> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn home(&self, key: K) -> usize {
        let bits = self.width.trailing_zeros();
        (FIBONACCI.wrapping_mul(key.hash()) >> (64 - bits)) as usize
    }

    /// The slot of `key`, if it is there.
    pub(super) fn find(&self, key: K) -> Option<usize> {
        if self.width == 0 {
            return None;
        }
        let mut index = self.home(key);
        let mut distance = 0;
        while let Some(slot) = self.slots.get(index)?
            && slot.distance >= distance
        {
            if slot.key == key {
                return Some(index);
            }
            index += 1;
            distance += 1;
        }
        None
    }

    /// The value of `key`, made by `make` if it is not there.
    pub(super) fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> Option<&mut V> {
        if self.find(key).is_none() {
            self.insert_new(key, make());
        }
        let index = self.find(key)?;
        self.value_mut(index)
    }

    /// Inserts `key` unless it is there.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.find(key).is_none() {
            self.insert_new(key, value);
        }
    }

    fn insert_new(&mut self, key: K, value: V) {
        if self.width == 0 {
            self.grow();
        }
        let mut index = self.home(key);
        let mut distance = 0;
        while self
            .slots
            .get(index)
            .and_then(Option::as_ref)
            .is_some_and(|slot| slot.distance >= distance)
        {
            index += 1;
            distance += 1;
        }
        if distance == self.lookups || 2 * (self.len + 1) > self.width {
            self.grow();
            return self.insert_new(key, value);
        }
        let first = index;
        let mut moving = Slot {
            distance,
            key,
            value,
        };
        loop {
            let Some(place) = self.slots.get_mut(index) else {
                // Cannot happen: the overflow slots outnumber the lookups.
                return self.grow_and_insert(first, moving);
            };
            match place {
                None => {
                    *place = Some(moving);
                    self.len += 1;
                    return;
                }
                Some(there) if there.distance < moving.distance => {
                    std::mem::swap(there, &mut moving);
                }
                Some(_) => {}
            }
            moving.distance += 1;
            if moving.distance == self.lookups {
                return self.grow_and_insert(first, moving);
            }
            index += 1;
        }
    }

    /// A displaced entry found no place: it takes the newcomer's, all move to a
    /// larger table, and the newcomer comes last.
    fn grow_and_insert(&mut self, first: usize, displaced: Slot<K, V>) {
        if let Some(newcomer) = self.slots[first].replace(displaced) {
            self.grow();
            self.insert_new(newcomer.key, newcomer.value);
        }
    }

    fn grow(&mut self) {
        let width = FIRST_SLOTS.max(2 * self.width);
        self.lookups = MIN_LOOKUPS.max(width.trailing_zeros());
        self.width = width;
        self.len = 0;
        let mut slots = Vec::new();
        slots.resize_with(width - 1 + self.lookups as usize, || None);
        for slot in std::mem::replace(&mut self.slots, slots)
            .into_iter()
            .flatten()
        {
            self.insert_new(slot.key, slot.value);
        }
    }

    /// The first occupied slot from `index` on.
    pub(super) fn occupied_from(&self, index: usize) -> Option<usize> {
        let rest = self.slots.get(index..)?;
        Some(index + rest.iter().position(Option::is_some)?)
    }

    pub(super) fn key(&self, index: usize) -> Option<K> {
        Some(self.slots.get(index)?.as_ref()?.key)
    }

    pub(super) fn value(&self, index: usize) -> Option<&V> {
        Some(&self.slots.get(index)?.as_ref()?.value)
    }

    pub(super) fn value_mut(&mut self, index: usize) -> Option<&mut V> {
        Some(&mut self.slots.get_mut(index)?.as_mut()?.value)
    }

    /// Empties a slot; what follows moves up, so the slot may hold another entry now.
    pub(super) fn remove_at(&mut self, index: usize) {
        if self.slots.get_mut(index).and_then(Option::take).is_none() {
            return;
        }
        self.len -= 1;
        let mut hole = index;
        while let Some(Some(slot)) = self.slots.get_mut(hole + 1)
            && slot.distance > 0
        {
            slot.distance -= 1;
            self.slots.swap(hole, hole + 1);
            hole += 1;
        }
    }

    pub(super) fn remove(&mut self, key: K) {
        if let Some(index) = self.find(key) {
            self.remove_at(index);
        }
    }

    /// Every key, in torch's order.
    pub(super) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.slots.iter().flatten().map(|slot| slot.key)
    }

    /// Every value, in torch's order.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> + '_ {
        self.slots.iter().flatten().map(|slot| &slot.value)
    }
}
