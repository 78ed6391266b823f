// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program's model of its blocks, and the bytes it put into them.

use std::collections::BTreeMap;

use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{DeviceAddr, Policy, PolicyError, Request};

use crate::{Checked, TestDevice};

/// Patterns are written and compared in parts of this size.
const PART: usize = 64 << 10;

/// A small generator, so that every run makes the same calls.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A block the program holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) addr: DeviceAddr,
    pub(crate) size: u64,
    /// Says which pattern is in it.
    tag: u64,
}

/// A program that uses a policy and checks what it gets.
pub(crate) struct Program<P> {
    pub(crate) policy: P,
    live: BTreeMap<u64, Held>,
    next_tag: u64,
}

impl<D: TestDevice, P: Policy<Device = Checked<D>>> Program<P> {
    pub(crate) fn new(policy: P) -> Self {
        Self {
            policy,
            live: BTreeMap::new(),
            next_tag: 1,
        }
    }

    /// Requests a block, checks where it lies and writes a pattern into it.
    pub(crate) fn alloc(&mut self, request: Request) -> Result<Held, PolicyError> {
        let addr = self.policy.alloc(request)?;
        let size = self.policy.size_of(addr);
        let size = size.unwrap_or_else(|| panic!("the block at {addr:?} has no size"));
        assert!(size >= request.bytes, "a block is smaller than its request");
        assert!(
            addr.0.is_multiple_of(P::ALIGNMENT),
            "a block is not aligned: {addr:?}"
        );
        let below = self.live.range(..addr.0 + size).next_back();
        if let Some((_, other)) = below {
            assert!(
                other.addr.0 + other.size <= addr.0,
                "live blocks overlap: {addr:?} of {size} bytes and {other:?}"
            );
        }
        let held = Held {
            addr,
            size,
            tag: self.next_tag,
        };
        self.next_tag += 1;
        let pattern = pattern(held);
        for (at, length) in parts(held) {
            let written = self.policy.device_mut().write(at, &pattern[..length]);
            assert!(written.is_ok(), "a block cannot be written: {written:?}");
        }
        self.live.insert(addr.0, held);
        Ok(held)
    }

    /// Checks the pattern of a block and frees it; it stays if that fails.
    pub(crate) fn free(&mut self, held: Held) -> Result<(), PolicyError> {
        self.check_bytes(held);
        self.free_unread(held)
    }

    /// Frees a block that a stream writes to at some time.
    pub(crate) fn free_unread(&mut self, held: Held) -> Result<(), PolicyError> {
        self.policy.free(held.addr)?;
        self.live.remove(&held.addr.0);
        assert_eq!(
            self.policy.size_of(held.addr),
            None,
            "a freed block still has a size"
        );
        Ok(())
    }

    /// Checks that the bytes of a block are those that were written.
    pub(crate) fn check_bytes(&self, held: Held) {
        let pattern = pattern(held);
        let mut found = vec![0; pattern.len()];
        for (at, length) in parts(held) {
            let found = &mut found[..length];
            let read = self.policy.device().read(at, found);
            match read {
                Ok(true) => assert!(
                    found == &pattern[..length],
                    "the bytes of {held:?} have changed"
                ),
                Ok(false) => return,
                Err(error) => panic!("a block cannot be read: {error}"),
            }
        }
    }

    /// Checks everything that must hold between two calls.
    pub(crate) fn check(&self) {
        let device = self.policy.device();
        assert_eq!(device.problems(), &[] as &[String], "the device's contract");
        assert_eq!(
            self.policy.reserved(),
            device.held_bytes(),
            "what is reserved is not what the device gave"
        );
        self.check_allocated();
    }

    /// Checks the sum of live blocks; blocks whose free waits may count too.
    pub(crate) fn check_allocated(&self) {
        let live: u64 = self.live.values().map(|held| held.size).sum();
        let allocated = self.policy.allocated();
        assert!(allocated >= live, "{allocated} allocated, {live} are live");
        assert!(self.policy.peak_allocated() >= allocated);
        for held in self.live.values() {
            assert_eq!(self.policy.size_of(held.addr), Some(held.size));
        }
    }

    /// Checks the bytes of every block.
    pub(crate) fn check_all_bytes(&self) {
        for held in self.live.values() {
            self.check_bytes(*held);
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// A live block of the program's choice.
    pub(crate) fn pick(&self, random: &mut Random) -> Option<Held> {
        let count = self.live.len() as u64;
        let place = (count > 0).then(|| random.below(count))?;
        self.live.values().nth(place as usize).copied()
    }

    /// Frees everything and closes the policy: nothing may be left. `pools` are
    /// the private pools that were used.
    pub(crate) fn finish(mut self, pools: &[PoolId]) {
        let live: Vec<Held> = self.live.values().copied().collect();
        for held in live {
            let freed = self.free(held);
            assert_eq!(freed, Ok(()), "a block cannot be freed at the end");
        }
        for &pool in pools {
            let released = self.policy.release_pool(pool);
            assert_eq!(released, Ok(()), "a pool cannot be released at the end");
        }
        assert_eq!(self.policy.close(), Ok(()), "the policy cannot be closed");
        let device = self.policy.device();
        assert_eq!(device.problems(), &[] as &[String], "the device's contract");
        assert_eq!(device.left(), "", "not everything was given back");
        assert_eq!(
            self.policy.reserved(),
            0,
            "something is reserved at the end"
        );
        assert_eq!(
            self.policy.allocated(),
            0,
            "something is allocated at the end"
        );
    }
}

/// A part of the pattern of a block; each word names its block.
fn pattern(held: Held) -> Vec<u8> {
    let word = held.tag.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let length = held.size.next_multiple_of(8).min(PART as u64);
    word.to_le_bytes().repeat(length as usize / 8)
}

/// Where the parts of a block are, and how long they are.
fn parts(held: Held) -> impl Iterator<Item = (DeviceAddr, usize)> {
    (0..held.size).step_by(PART).map(move |offset| {
        let length = (held.size - offset).min(PART as u64);
        (held.addr.offset(offset), length as usize)
    })
}
