// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way in for one thread and one stream.

use tonnage_alloc::tonnage::Allocator;
use tonnage_alloc::{Device, DeviceAddr, Request, StreamId};

use crate::block::{self, Block};
use crate::shelf::{self, Shelf};
use crate::sync::{self, Arc, Mutex, Weak};
use crate::{Error, Inner, Tenant};

/// The part of a front that its blocks share: they come back here when they are dropped.
#[derive(Debug)]
pub(crate) struct Kept<D: Device> {
    pub(crate) inner: Arc<Inner<D>>,
    pub(crate) stream: StreamId,
    shelf: Mutex<Shelf>,
}

impl<D: Device> Kept<D> {
    /// Takes a free block of the stream.
    #[inline]
    pub(crate) fn keep(&self, addr: DeviceAddr, size: u64) {
        let surplus = sync::locked(&self.shelf).add_block(addr, size);
        self.inner.give_back(&surplus);
    }

    /// Gives everything up.
    pub(crate) fn take_all(&self) -> Vec<DeviceAddr> {
        sync::locked(&self.shelf).take_all()
    }

    /// Bytes and blocks.
    pub(crate) fn count(&self) -> (u64, usize) {
        sync::locked(&self.shelf).count_held()
    }
}

impl<D: Device> Drop for Kept<D> {
    fn drop(&mut self) {
        let left = self.take_all();
        self.inner.give_back(&left);
        sync::locked(&self.inner.shelves).retain(|shelf| Weak::strong_count(shelf) > 0);
    }
}

/// Serves the requests of one thread for one stream; made by
/// [`Runtime::front`](crate::Runtime::front). It may be moved to another thread. The blocks that it keeps are given
/// back when it is dropped.
#[derive(Debug)]
pub struct Front<D: Device> {
    kept: Arc<Kept<D>>,
}

impl<D: Device> Front<D> {
    pub(crate) fn new(inner: &Arc<Inner<D>>, stream: StreamId) -> Self {
        let kept = Arc::new(Kept {
            inner: Arc::clone(inner),
            stream,
            shelf: Mutex::new(Shelf::new(inner.kept)),
        });
        sync::locked(&inner.shelves).push(Arc::downgrade(&kept));
        Self { kept }
    }

    /// Serves a request.
    ///
    /// # Errors
    /// As [`Runtime::alloc`](crate::Runtime::alloc).
    #[inline]
    pub fn alloc(&mut self, bytes: u64) -> Result<Block<D>, Error> {
        let size = block::rounded::<D>(bytes);
        let addr = self.obtain(bytes, size)?;
        Ok(Block::of_front(&self.kept, addr, size, None))
    }

    /// Serves a request of a tenant, within its quota.
    ///
    /// # Errors
    /// [`Error::Quota`] if that is above the quota, and as [`alloc`](Self::alloc).
    pub fn alloc_for(&mut self, tenant: &Arc<Tenant>, bytes: u64) -> Result<Block<D>, Error> {
        let size = block::rounded::<D>(bytes);
        let charge = tenant.charge(size)?;
        let addr = self.obtain(bytes, size)?;
        Ok(Block::of_front(&self.kept, addr, size, Some(charge)))
    }

    #[inline]
    fn obtain(&mut self, bytes: u64, size: u64) -> Result<DeviceAddr, Error> {
        if shelf::keeps(size)
            && let Some(addr) = sync::locked(&self.kept.shelf).take(size)
        {
            return Ok(addr);
        }
        let request = Request::new(bytes, self.kept.stream);
        self.kept.inner.serve(request, Allocator::attempt_owned)
    }

    /// Gives back what it keeps.
    pub fn flush(&mut self) {
        let all = self.kept.take_all();
        self.kept.inner.give_back(&all);
    }
}

impl<D: Device> Drop for Front<D> {
    fn drop(&mut self) {
        // Blocks that are dropped from now on go to the allocator.
        let all = sync::locked(&self.kept.shelf).close();
        self.kept.inner.give_back(&all);
    }
}
