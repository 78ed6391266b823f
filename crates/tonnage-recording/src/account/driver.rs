// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process has from the driver on one device, and which of it is PyTorch's.
//!
//! PyTorch's own rows stand after the driver's rows when it obtains memory and before them when it gives memory back,
//! so between the two a piece of memory is PyTorch's although its segments do not show it. It is distinguished from
//! other libraries' memory by address: a `segment_alloc` claims the `driver_malloc` at its address, and a `segment_map`
//! the whole reservation that it lies in. A first expandable segment that is not reported yet is known by its shape:
//! PyTorch reserves room for the whole device and fills it with small pieces of one size, while other libraries
//! reserve what they fill.

use std::collections::{BTreeMap, BTreeSet};

use super::ABSURD;
use crate::Event;

/// A reservation with room for so many pieces is made to grow.
const GROWING: u64 = 64;

/// Sizes of pieces that are remembered; PyTorch has two.
const MAX_SIZES: usize = 8;

/// The owner of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Not PyTorch, as far as is known.
    Other,
    /// Physical memory that nothing is mapped to yet, made as PyTorch makes it.
    Forming,
    /// PyTorch.
    Torch,
    /// PyTorch, which has given it back; the driver's row is still to come.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    born: u64,
    owner: Owner,
}

/// A piece that turned out to be PyTorch's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) bytes: u64,
    /// The row since which it was there.
    pub(super) since: u64,
}

/// Reserved address ranges of a process; they belong to no device.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    ranges: BTreeMap<u64, Reservation>,
    latest: Option<u64>,
    /// Sizes of pieces in PyTorch's reservations.
    sizes: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    bytes: u64,
    is_torch: bool,
}

impl Reservations {
    pub(super) fn reserve(&mut self, event: &Event) {
        let reservation = Reservation {
            bytes: event.size,
            is_torch: false,
        };
        self.ranges.insert(event.address, reservation);
        self.latest = Some(event.address);
    }

    pub(super) fn unreserve(&mut self, event: &Event) {
        self.ranges.remove(&event.address);
    }

    /// The first byte of the reservation around an address, and the byte after its last.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, range) = self.ranges.range(..=address).next_back()?;
        let end = start.saturating_add(range.bytes);
        (address < end).then_some((start, end))
    }

    fn grows_by(reservation: Reservation, piece: u64) -> bool {
        let least = piece.saturating_mul(GROWING);
        piece > 0 && reservation.bytes >= least && reservation.bytes.is_multiple_of(piece)
    }

    /// Whether new physical memory of this size is made as PyTorch makes it.
    fn expects(&self, piece: u64) -> bool {
        let latest = self.latest.and_then(|start| self.ranges.get(&start));
        self.sizes.contains(&piece)
            || latest.is_some_and(|reservation| Self::grows_by(*reservation, piece))
    }

    /// Whether memory mapped at `address` is PyTorch's.
    fn maps(&mut self, address: u64, piece: u64) -> bool {
        let Some((start, _)) = self.around(address) else {
            return false;
        };
        let Some(reservation) = self.ranges.get_mut(&start) else {
            return false;
        };
        let is_aligned = piece > 0 && (address - start).is_multiple_of(piece);
        reservation.is_torch |= is_aligned && Self::grows_by(*reservation, piece);
        let is_torch = reservation.is_torch;
        if is_torch {
            self.remember(piece);
        }
        is_torch
    }

    fn remember(&mut self, piece: u64) {
        if self.sizes.len() < MAX_SIZES {
            self.sizes.insert(piece);
        }
    }

    /// Notes that PyTorch reported memory at `address`; its whole reservation, if that was not known before.
    fn claim(&mut self, address: u64) -> Option<(u64, u64)> {
        let (start, end) = self.around(address)?;
        let reservation = self.ranges.get_mut(&start)?;
        (!std::mem::replace(&mut reservation.is_torch, true)).then_some((start, end))
    }
}

/// Memory that the driver gave to one process on one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Driver {
    /// By address: cuMemAlloc.
    plain: BTreeMap<u64, Piece>,
    /// By handle: cuMemCreate.
    physical: BTreeMap<u64, Piece>,
    /// Address to handle: cuMemMap.
    mapped: BTreeMap<u64, u64>,
    /// By address: the stream-ordered pools.
    pooled: BTreeMap<u64, u64>,
    managed: BTreeMap<u64, u64>,
    managed_bytes: u64,
    /// Bytes of `plain` and `physical`.
    direct: u64,
    /// PyTorch's part of these, including the part that it has given back.
    torch: u64,
    leaving: u64,
    forming: u64,
    /// Whether PyTorch's blocks lie in the pools.
    is_torch_pooled: bool,
}

impl Driver {
    /// PyTorch's bytes, as the driver's rows have them.
    pub(super) const fn torch(&self) -> u64 {
        self.torch + self.forming
    }

    /// Bytes whose driver rows are late: PyTorch does not have them at its own rows.
    ///
    /// It gave them back, or it made and never mapped them because the next piece was refused.
    pub(super) const fn late(&self) -> u64 {
        self.leaving + self.forming
    }

    pub(super) const fn managed(&self) -> u64 {
        self.managed_bytes
    }

    /// Bytes that PyTorch has through the pools, of `charged` without the context.
    pub(super) fn torch_pools(&self, charged: u64) -> u64 {
        if self.is_torch_pooled {
            charged.saturating_sub(self.direct)
        } else {
            0
        }
    }

    fn count(&mut self, piece: Piece) {
        self.direct += piece.bytes;
        match piece.owner {
            Owner::Other => {}
            Owner::Forming => self.forming += piece.bytes,
            Owner::Torch => self.torch += piece.bytes,
            Owner::Leaving => {
                self.torch += piece.bytes;
                self.leaving += piece.bytes;
            }
        }
    }

    fn discount(&mut self, piece: Piece) {
        self.direct -= piece.bytes;
        match piece.owner {
            Owner::Other => {}
            Owner::Forming => self.forming -= piece.bytes,
            Owner::Torch => self.torch -= piece.bytes,
            Owner::Leaving => {
                self.torch -= piece.bytes;
                self.leaving -= piece.bytes;
            }
        }
    }

    /// A new piece, bounded so that no sum overflows.
    fn piece(&self, bytes: u64, born: u64, owner: Owner) -> Piece {
        Piece {
            bytes: bytes.min(ABSURD - self.direct),
            born,
            owner,
        }
    }

    pub(super) fn malloc(&mut self, event: &Event, row: u64) {
        let piece = self.piece(event.size, row, Owner::Other);
        self.count(piece);
        if let Some(lost) = self.plain.insert(event.address, piece) {
            self.discount(lost);
        }
    }

    /// Forgets memory that went back; the bytes it had, if its row is known.
    pub(super) fn free(&mut self, event: &Event) -> Option<u64> {
        let piece = self.plain.remove(&event.address)?;
        self.discount(piece);
        Some(piece.bytes)
    }

    pub(super) fn create(&mut self, event: &Event, row: u64, reservations: &Reservations) {
        let owner = if reservations.expects(event.size) {
            Owner::Forming
        } else {
            Owner::Other
        };
        let piece = self.piece(event.size, row, owner);
        self.count(piece);
        if let Some(lost) = self.physical.insert(event.handle, piece) {
            self.discount(lost);
        }
    }

    pub(super) fn release(&mut self, event: &Event) -> Option<u64> {
        let piece = self.physical.remove(&event.handle)?;
        self.discount(piece);
        Some(piece.bytes)
    }

    pub(super) fn map(&mut self, event: &Event, reservations: &mut Reservations) -> Option<Claim> {
        self.mapped.insert(event.address, event.handle);
        let piece = *self.physical.get(&event.handle)?;
        let owner = if reservations.maps(event.address, piece.bytes) {
            Owner::Torch
        } else {
            Owner::Other
        };
        self.change_owner(event.handle, owner)
    }

    pub(super) fn unmap(&mut self, event: &Event) {
        let end = event.address.saturating_add(event.size);
        while let Some((&address, _)) = self.mapped.range(event.address..end).next() {
            self.mapped.remove(&address);
        }
    }

    /// Gives physical memory another owner; what PyTorch got by that, unless it was counted as PyTorch's before.
    fn change_owner(&mut self, handle: u64, owner: Owner) -> Option<Claim> {
        let piece = *self.physical.get(&handle)?;
        let given = Piece { owner, ..piece };
        self.discount(piece);
        self.count(given);
        self.physical.insert(handle, given);
        claim(piece, owner)
    }

    /// PyTorch reports a segment: the memory at its address is PyTorch's.
    pub(super) fn segment(&mut self, event: &Event) -> Option<Claim> {
        let piece = *self.plain.get(&event.address)?;
        let owner = Owner::Torch;
        let given = Piece { owner, ..piece };
        self.discount(piece);
        self.count(given);
        self.plain.insert(event.address, given);
        claim(piece, owner)
    }

    /// PyTorch reports a mapped range: all that is mapped in its reservation is PyTorch's.
    pub(super) fn segment_mapped(
        &mut self,
        event: &Event,
        reservations: &mut Reservations,
    ) -> Vec<Claim> {
        let Some((start, end)) = reservations.claim(event.address) else {
            return Vec::new();
        };
        let handles: Vec<u64> = self.mapped.range(start..end).map(|(_, h)| *h).collect();
        let mut claims = Vec::new();
        for handle in handles {
            if let Some(piece) = self.physical.get(&handle) {
                reservations.remember(piece.bytes);
            }
            claims.extend(self.change_owner(handle, Owner::Torch));
        }
        claims
    }

    /// PyTorch reports that it gave a segment back.
    pub(super) fn segment_left(&mut self, event: &Event) {
        if let Some(&piece) = self.plain.get(&event.address)
            && piece.owner == Owner::Torch
        {
            let owner = Owner::Leaving;
            let given = Piece { owner, ..piece };
            self.discount(piece);
            self.count(given);
            self.plain.insert(event.address, given);
        }
    }

    /// PyTorch reports that it unmapped a range.
    pub(super) fn segment_unmapped(&mut self, event: &Event) {
        let end = event.address.saturating_add(event.size);
        let range = self.mapped.range(event.address..end);
        let handles: Vec<u64> = range.map(|(_, handle)| *handle).collect();
        for handle in handles {
            let owner = self.physical.get(&handle).map(|piece| piece.owner);
            if owner == Some(Owner::Torch) {
                self.change_owner(handle, Owner::Leaving);
            }
        }
    }

    pub(super) fn pool_malloc(&mut self, event: &Event) {
        self.pooled.insert(event.address, event.size.min(ABSURD));
    }

    pub(super) fn pool_free(&mut self, event: &Event) -> Option<u64> {
        self.pooled.remove(&event.address)
    }

    /// PyTorch handed out a block: if it lies in a pool, PyTorch uses the pools.
    pub(super) fn block(&mut self, address: u64) {
        if !self.is_torch_pooled && !self.pooled.is_empty() {
            self.is_torch_pooled = self.pooled.contains_key(&address);
        }
    }

    pub(super) fn managed_alloc(&mut self, event: &Event) {
        let bytes = event.size.min(ABSURD - self.managed_bytes);
        self.managed_bytes += bytes;
        if let Some(lost) = self.managed.insert(event.address, bytes) {
            self.managed_bytes -= lost;
        }
    }

    pub(super) fn managed_free(&mut self, event: &Event) {
        if let Some(bytes) = self.managed.remove(&event.address) {
            self.managed_bytes -= bytes;
        }
    }
}

fn claim(piece: Piece, owner: Owner) -> Option<Claim> {
    (piece.owner == Owner::Other && owner == Owner::Torch).then_some(Claim {
        bytes: piece.bytes,
        since: piece.born,
    })
}
