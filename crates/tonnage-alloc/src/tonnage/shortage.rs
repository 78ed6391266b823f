// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a request was refused: what there is, who has it, and what would have
//! helped.
//!
//! Everything is counted at the moment of the refusal, by walking over all
//! blocks; that takes time only where a program is about to stop.

use std::collections::BTreeMap;
use std::fmt;

use tonnage_text::bytes;

use super::arena::SHARED;
use super::blocks::State;
use super::window::MANY;
use super::{Allocator, Device, Event, EventKind, Observer, SearchStep};
use crate::torch::PoolId;
use crate::{DeviceAddr, PolicyError, Request, StreamId, Tag, round_up};

/// The blocks of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagUse {
    /// The tag.
    pub tag: Tag,
    /// Bytes of its live blocks, paused or not.
    pub live: u64,
    /// Bytes of memory that pausing it would give back: whole pages.
    pub pausable: u64,
}

/// The memory at the moment of a refused request. Every number is exact, and of that moment.
///
/// ```
/// use tonnage_alloc::tonnage::{Allocator, Settings};
/// use tonnage_alloc::{Policy, PolicyError, Request, SimConfig, SimDevice, StreamId};
///
/// let device = SimDevice::new(SimConfig::with_total(64 << 20));
/// let mut allocator = Allocator::new(device, Settings::default());
/// allocator.alloc(Request::new(40 << 20, StreamId(0)))?;
/// let request = Request::new(30 << 20, StreamId(0));
/// assert!(allocator.attempt(request).is_err());
/// let shortage = allocator.refuse(request);
/// assert_eq!((shortage.live, shortage.device_free, shortage.missing), (40 << 20, 24 << 20, 6 << 20));
/// # Ok::<(), PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Requested bytes.
    pub requested: u64,
    /// Bytes that have to become free in whole pages, for the request to be served.
    pub missing: u64,
    /// Bytes of memory that the device has.
    pub total: u64,
    /// Bytes that it reports as free; 0 if it does not report them.
    pub device_free: u64,
    /// The limit of reserved memory, if there is one.
    pub limit: Option<u64>,
    /// Bytes held from the device.
    pub reserved: u64,
    /// Bytes of live blocks that have memory.
    pub live: u64,
    /// Bytes of live blocks that have none, because they are paused.
    pub paused: u64,
    /// Bytes of blocks whose free waits for a stream. They are among those that are live.
    pub pending: u64,
    /// Bytes of the largest free piece that the request may use.
    pub largest: u64,
    /// Bytes of all free pieces that it may use.
    pub free: u64,
    /// Free bytes that belong to streams whose work is not known to be done.
    pub other_streams: u64,
    /// Free bytes of graphs and private pools, which are theirs alone.
    pub private: u64,
    /// Whether a stream is captured into a graph, so that nothing could be waited for or moved.
    pub capturing: bool,
    /// The memory of each tag, the largest first.
    pub tags: Vec<TagUse>,
}

impl Shortage {
    /// Bytes of the device that are in use elsewhere: of other processes, of the driver's context, of memory that was
    /// not obtained here. `None` if the device does not report its free memory.
    pub fn others(&self) -> Option<u64> {
        let known = self.device_free > 0 || self.reserved > 0;
        let known = known && self.device_free + self.reserved <= self.total;
        known.then(|| self.total - self.device_free - self.reserved)
    }

    /// Whether the limit is what stands in the way: the device has what is missing.
    pub fn is_limited(&self) -> bool {
        self.limit
            .is_some_and(|limit| limit < self.total && self.missing <= self.device_free)
    }

    /// The remedies, a sentence each.
    pub fn remedies(&self) -> Vec<String> {
        let mut remedies = Vec::new();
        if self.requested > self.total {
            remedies.push("No device of this size serves it.".to_owned());
            return remedies;
        }
        if let Some(limit) = self.limit.filter(|_| self.is_limited()) {
            remedies.push(format!(
                "The limit of {} is the reason: the device has {} free.",
                bytes(limit),
                bytes(self.device_free)
            ));
        }
        if self.capturing {
            let held = self.other_streams + self.pending;
            remedies.push(format!(
                "A graph is captured, so no page was moved and no stream was waited for, which still {} {}: request it \
                 before the capture.",
                if held > 0 { "have" } else { "had" },
                bytes(held),
            ));
        }
        let helps = |tag: &&TagUse| tag.pausable > 0 && tag.pausable >= self.missing;
        for tag in self.tags.iter().filter(helps) {
            let (number, bytes) = (tag.tag.0, bytes(tag.pausable));
            remedies.push(format!("Pausing tag {number} would give {bytes}."));
        }
        if self.private > 0 {
            remedies.push(format!(
                "{} are free in pools of graphs: releasing those that are not used any more lets others have it.",
                bytes(self.private)
            ));
        }
        remedies
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "out of memory: {} requested", bytes(self.requested))?;
        if self.missing > 0 {
            write!(text, ", {} are missing", bytes(self.missing))?;
        }
        write!(
            text,
            ". The allocator holds {} of {}, {} of it in live blocks",
            bytes(self.reserved),
            bytes(self.total),
            bytes(self.live),
        )?;
        if self.pending > 0 {
            write!(text, " ({} wait for streams)", bytes(self.pending))?;
        }
        write!(
            text,
            " and {} free, the largest piece {}",
            bytes(self.free),
            bytes(self.largest)
        )?;
        if self.device_free > 0 {
            write!(text, "; {} are free on the device", bytes(self.device_free))?;
        } else {
            text.write_str("; nothing is free on the device")?;
        }
        if let Some(others) = self.others().filter(|&others| others > 0) {
            write!(text, ", {} are not this allocator's", bytes(others))?;
        }
        if self.paused > 0 {
            write!(text, "; {} are paused", bytes(self.paused))?;
        }
        text.write_str(".")?;
        for remedy in self.remedies() {
            write!(text, " {remedy}")?;
        }
        Ok(())
    }
}

impl<D: Device, O: Observer> Allocator<D, O> {
    /// Serves a request as [`alloc`](crate::Policy::alloc) does, but a refused one is neither counted nor reported: the
    /// caller has more to try. In the end [`refuse`](Self::refuse) is called.
    ///
    /// # Errors
    /// As `alloc`.
    #[inline]
    pub fn attempt(&mut self, request: Request) -> Result<DeviceAddr, PolicyError> {
        self.serve(request, false)
    }

    /// The same for a block that a handle owns. The block is freed and its streams are named through the handle alone,
    /// by [`free_owned`](Self::free_owned) and [`record_stream_owned`](Self::record_stream_owned): with its address,
    /// [`free`](crate::Policy::free) and [`record_stream`](crate::Policy::record_stream) fail.
    ///
    /// # Errors
    /// As `alloc`.
    #[inline]
    pub fn attempt_owned(&mut self, request: Request) -> Result<DeviceAddr, PolicyError> {
        self.serve(request, true)
    }

    /// Takes back a block that a handle owned.
    ///
    /// # Errors
    /// If no block that a handle owns starts there.
    #[inline]
    pub fn free_owned(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        self.take_back(addr, true).map(drop)
    }

    /// Takes a block back as [`free`](crate::Policy::free) does; its bytes.
    ///
    /// # Errors
    /// As `free`.
    #[inline]
    pub fn free_sized(&mut self, addr: DeviceAddr) -> Result<u64, PolicyError> {
        self.take_back(addr, false)
    }

    /// Notes that another stream uses a block that a handle owns.
    ///
    /// # Errors
    /// If no block that a handle owns starts there.
    pub fn record_stream_owned(
        &mut self,
        addr: DeviceAddr,
        stream: StreamId,
    ) -> Result<(), PolicyError> {
        self.name(addr, stream, true)
    }

    /// Reports a step of the search for memory that the caller takes for a request.
    pub fn note_step(&mut self, step: SearchStep, bytes: u64, stream: StreamId) {
        self.counts.search_steps.add(step);
        let event = Event::new(EventKind::Search(step), DeviceAddr(0), bytes, stream);
        self.observer.observe(event);
    }

    /// Counts that such a step led to the requested memory.
    pub fn note_helped(&mut self, step: SearchStep) {
        self.counts.search_steps.add_helped(step);
    }

    /// Counts a refused request, reports it, and returns the available memory.
    #[cold]
    pub fn refuse(&mut self, request: Request) -> Shortage {
        let shortage = self.shortage(request);
        self.note_refused(request, shortage.device_free);
        shortage
    }

    #[cold]
    pub(super) fn note_refused(&mut self, request: Request, free: u64) {
        self.counts.refused += 1;
        let (addr, bytes) = (DeviceAddr(free), request.bytes);
        let event = Event::new(EventKind::Refused, addr, bytes, request.stream);
        self.observer.observe(event);
    }

    /// The memory available for a request, and the missing amount.
    pub fn shortage(&mut self, request: Request) -> Shortage {
        let page = self.arena.page;
        let paused = self.paused_bytes();
        let mut shortage = Shortage {
            requested: request.bytes,
            total: self.device.total(),
            device_free: self.device.free_bytes(),
            limit: self.settings.limit,
            reserved: self.counts.reserved.now,
            live: self.counts.allocated.now.saturating_sub(paused),
            paused,
            capturing: self.capturing || request.pool != PoolId::DEFAULT,
            ..Shortage::default()
        };
        let size = round_up(request.bytes, super::class::GRANULE).unwrap_or(u64::MAX);
        if self.base.is_none() {
            let limit = shortage.limit.unwrap_or(u64::MAX);
            shortage.missing = size.saturating_sub(shortage.device_free.min(limit));
            return shortage;
        }
        let lane = self.lane(request);
        let mut tags: BTreeMap<u16, u64> = BTreeMap::new();
        for (_, block) in self.arena.blocks.by_address() {
            match block.state {
                State::Free if block.lane == lane || block.lane == SHARED => {
                    shortage.free += block.size;
                    shortage.largest = shortage.largest.max(block.size);
                }
                State::Free if self.arena.lanes[block.lane as usize].private => {
                    shortage.private += block.size;
                }
                State::Free => shortage.other_streams += block.size,
                State::Pending => shortage.pending += block.size,
                State::Used if block.tag != Tag::NONE.0 => {
                    *tags.entry(block.tag).or_default() += block.size;
                }
                _ => {}
            }
        }
        for (tag, live) in tags {
            let tag = Tag(tag);
            let pausable = self.pausable(tag).iter().map(|range| range.bytes).sum();
            shortage.tags.push(TagUse {
                tag,
                live,
                pausable,
            });
        }
        shortage.tags.sort_by_key(|tag| std::cmp::Reverse(tag.live));
        let room = match shortage.device_free / page {
            0 => 0,
            _ => self.room(),
        };
        let obtainable = self.pages.spare.len() as u64 + room;
        if size > shortage.total {
            // It fits nowhere, so no place was looked for: all that is free or will be counts.
            let free = shortage.free + shortage.other_streams;
            shortage.missing =
                size.saturating_sub(free.saturating_add(obtainable.saturating_mul(page)));
            return shortage;
        }
        let window = self.arena.window(lane, size, MANY);
        let wanted = window.map_or(size.div_ceil(page), |window| window.missing);
        let movable = if shortage.capturing {
            0
        } else {
            super::obtain::count(&self.arena.empty_pages(u64::MAX, window.as_ref()))
        };
        shortage.missing = wanted.saturating_sub(movable + obtainable) * page;
        shortage
    }
}
