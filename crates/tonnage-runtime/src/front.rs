// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way in for one thread and one stream.

use thiserror::Error;
use tonnage_alloc::tonnage::Allocator;
use tonnage_alloc::{Device, DeviceAddr, Policy, PolicyError, Request, StreamId, round_up};

use crate::shelf::{self, Shelf};
use crate::sync::{self, Arc, Mutex};
use crate::{Error, Runtime, Tenant};

/// A block of device memory. It has to be freed: dropping it keeps the memory.
///
/// Any front of its runtime, on any thread, may free it; its address alone does not.
#[derive(Debug)]
#[must_use = "a block that is dropped and not freed is lost"]
pub struct Block {
    /// The number of its runtime.
    runtime: u64,
    addr: DeviceAddr,
    size: u64,
    stream: StreamId,
    /// Whether another stream was named for it, so that its free may have to wait.
    named: bool,
    tenant: Option<Arc<Tenant>>,
}

impl Block {
    /// Its first byte.
    pub fn addr(&self) -> DeviceAddr {
        self.addr
    }

    /// Its bytes: what was requested, rounded up to 512.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The stream it was requested for.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Its tenant is charged for it no more, because it is free.
    pub(crate) fn refund(self) {
        if let Some(tenant) = &self.tenant {
            tenant.refund(self.size);
        }
    }

    /// Whether it is of the runtime with this number.
    pub(crate) fn check_runtime(&self, id: u64) -> Result<(), PolicyError> {
        if self.runtime == id {
            return Ok(());
        }
        let reason = "the block is of another runtime; free it there";
        Err(PolicyError::Refused(reason.to_owned()))
    }
}

/// A block that was not freed, and why. It is live as before.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotFreed {
    /// The block.
    pub block: Block,
    /// Why it was not freed.
    pub error: PolicyError,
}

impl From<NotFreed> for PolicyError {
    fn from(failed: NotFreed) -> Self {
        failed.error
    }
}

/// Serves the requests of one thread for one stream; made by
/// [`Runtime::front`]. It may be moved to another thread. The blocks that it keeps are given
/// back when it is dropped.
#[derive(Debug)]
pub struct Front<D: Device> {
    runtime: Arc<Runtime<D>>,
    shelf: Arc<Mutex<Shelf>>,
    stream: StreamId,
}

impl<D: Device> Front<D> {
    pub(crate) fn new(runtime: Arc<Runtime<D>>, stream: StreamId) -> Self {
        let shelf = Arc::new(Mutex::new(Shelf::new(runtime.kept)));
        sync::locked(&runtime.shelves).push(Arc::clone(&shelf));
        Self {
            runtime,
            shelf,
            stream,
        }
    }

    /// Serves a request.
    ///
    /// # Errors
    /// If there is no memory, or the request cannot be served at all.
    #[inline]
    pub fn alloc(&mut self, bytes: u64) -> Result<Block, Error> {
        let size = round_up(bytes, Allocator::<D>::ALIGNMENT).unwrap_or(u64::MAX);
        let addr = self.obtain(bytes, size)?;
        Ok(self.block(addr, size, None))
    }

    /// Serves a request of a tenant, within its quota.
    ///
    /// # Errors
    /// If that is above the quota, and as [`alloc`](Self::alloc).
    pub fn alloc_for(&mut self, tenant: &Arc<Tenant>, bytes: u64) -> Result<Block, Error> {
        let size = round_up(bytes, Allocator::<D>::ALIGNMENT).unwrap_or(u64::MAX);
        tenant.charge(size)?;
        match self.obtain(bytes, size) {
            Ok(addr) => Ok(self.block(addr, size, Some(Arc::clone(tenant)))),
            Err(error) => {
                tenant.refund(size);
                Err(error)
            }
        }
    }

    fn block(&self, addr: DeviceAddr, size: u64, tenant: Option<Arc<Tenant>>) -> Block {
        Block {
            runtime: self.runtime.id,
            addr,
            size,
            stream: self.stream,
            named: false,
            tenant,
        }
    }

    #[inline]
    fn obtain(&mut self, bytes: u64, size: u64) -> Result<DeviceAddr, Error> {
        if shelf::keeps(size)
            && let Some(addr) = sync::locked(&self.shelf).take(size)
        {
            return Ok(addr);
        }
        self.runtime.alloc_owned(Request::new(bytes, self.stream))
    }

    /// Reports that another stream uses a block too.
    ///
    /// # Errors
    /// If the block is of another runtime.
    pub fn record_stream(
        &mut self,
        block: &mut Block,
        stream: StreamId,
    ) -> Result<(), PolicyError> {
        block.check_runtime(self.runtime.id)?;
        let mut state = self.runtime.lock()?;
        state.allocator.record_stream_owned(block.addr, stream)?;
        block.named |= stream != block.stream;
        Ok(())
    }

    /// Takes a block back. Its own stream may get it again at once.
    ///
    /// # Errors
    /// If the block is of another runtime, or this one is broken. The error has the block.
    #[inline]
    pub fn free(&mut self, block: Block) -> Result<(), NotFreed> {
        // A block of another stream is not in order here, and one that another stream uses may have to wait.
        let is_kept = !block.named && block.stream == self.stream && shelf::keeps(block.size);
        if !is_kept || block.runtime != self.runtime.id {
            return self.runtime.free_block(block);
        }
        let Block { addr, size, .. } = block;
        block.refund();
        let surplus = sync::locked(&self.shelf).add_block(addr, size);
        if self.runtime.free_all(&surplus).is_err() {
            // The block is free, and the shelf has too many for a while.
            sync::locked(&self.shelf).put_back(surplus, size);
        }
        Ok(())
    }

    /// Gives back what it keeps.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn flush(&mut self) -> Result<(), PolicyError> {
        // A block that is taken off the shelf must not be lost because the allocator cannot be reached.
        drop(self.runtime.lock()?);
        let all = sync::locked(&self.shelf).take_all();
        self.runtime.free_all(&all)
    }
}

impl<D: Device> Drop for Front<D> {
    fn drop(&mut self) {
        // A shelf that cannot be emptied now is left to the runtime.
        if self.flush().is_ok() {
            sync::locked(&self.runtime.shelves).retain(|shelf| !Arc::ptr_eq(shelf, &self.shelf));
        }
    }
}
