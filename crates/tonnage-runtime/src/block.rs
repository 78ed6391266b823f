// SPDX-License-Identifier: MIT OR Apache-2.0
//! The owner of a range of device memory.

use std::fmt;

use tonnage_alloc::tonnage::Allocator;
use tonnage_alloc::{Contents, Device, DeviceAddr, Policy as _, Request, StreamId, round_up};

use crate::front::Kept;
use crate::sync::Arc;
use crate::tenant::Charge;
use crate::{Error, Inner, shelf};

/// A block of device memory, and the only owner of its bytes. Dropping it frees them in the order of its stream: work
/// that was launched on the stream until then may still use them.
///
/// It keeps its runtime, so memory of a block is there for as long as the block is. It may be dropped on any thread.
///
/// ```
/// use tonnage_runtime::{Error, Request, Runtime, Settings, SimConfig, SimDevice, StreamId};
///
/// let runtime = Runtime::new(SimDevice::new(SimConfig::with_total(1 << 30)), Settings::default());
/// let block = runtime.alloc(Request::new(3000, StreamId(0)))?;
/// assert_eq!((block.size(), block.stream()), (3072, StreamId(0)));
/// drop(block);
/// assert_eq!(runtime.statistics()?.blocks, 0);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "a block that is dropped is free"]
pub struct Block<D: Device> {
    home: Home<D>,
    addr: DeviceAddr,
    size: u64,
    stream: StreamId,
    /// Whether another stream was named for it, so that its free may have to wait.
    named: bool,
    /// The charge of its tenant, until it is free.
    charge: Option<Charge>,
}

/// Where a block goes when it is free.
enum Home<D: Device> {
    Runtime(Arc<Inner<D>>),
    Front(Arc<Kept<D>>),
}

impl<D: Device> fmt::Debug for Block<D> {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = text.debug_struct("Block");
        fields.field("addr", &self.addr).field("size", &self.size);
        fields.field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// The bytes of a block for a request of so many. A request that is too large to count is refused later.
pub(crate) fn rounded<D: Device>(bytes: u64) -> u64 {
    round_up(bytes, Allocator::<D>::ALIGNMENT).unwrap_or(u64::MAX)
}

impl<D: Device> Block<D> {
    pub(crate) fn of_runtime(
        inner: &Arc<Inner<D>>,
        addr: DeviceAddr,
        request: Request,
        charge: Option<Charge>,
    ) -> Self {
        Self {
            home: Home::Runtime(Arc::clone(inner)),
            addr,
            size: rounded::<D>(request.bytes),
            stream: request.stream,
            named: false,
            charge,
        }
    }

    #[inline]
    pub(crate) fn of_front(
        kept: &Arc<Kept<D>>,
        addr: DeviceAddr,
        size: u64,
        charge: Option<Charge>,
    ) -> Self {
        Self {
            home: Home::Front(Arc::clone(kept)),
            addr,
            size,
            stream: kept.stream,
            named: false,
            charge,
        }
    }

    fn inner(&self) -> &Inner<D> {
        match &self.home {
            Home::Runtime(inner) => inner,
            Home::Front(kept) => &kept.inner,
        }
    }

    /// Its first byte. The address is only a number: nothing can be freed with it.
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

    /// Reports that another stream uses it too: it is not given to others before that stream is done.
    ///
    /// # Errors
    /// If the runtime is broken, or the call is made inside of [`Runtime::with_device`](crate::Runtime::with_device).
    pub fn record_stream(&mut self, stream: StreamId) -> Result<(), Error> {
        let addr = self.addr;
        let mut state = self.inner().lock()?;
        state.allocator.record_stream_owned(addr, stream)?;
        drop(state);
        self.named |= stream != self.stream;
        Ok(())
    }

    /// Gives the handle up and keeps the memory, for as long as the device is open. [`Runtime::close`] and
    /// [`Runtime::on_leak`] report it.
    ///
    /// [`Runtime::close`]: crate::Runtime::close
    /// [`Runtime::on_leak`]: crate::Runtime::on_leak
    pub fn leak(mut self) -> DeviceAddr {
        // Its tenant has used these bytes up.
        if let Some(charge) = self.charge.take() {
            std::mem::forget(charge);
        }
        self.size = 0;
        self.addr
    }
}

impl<D: Contents> Block<D> {
    /// Copies bytes of it to the host, after waiting for the work of the device.
    ///
    /// # Errors
    /// [`Error::Bounds`] if it has fewer bytes; if a graph is captured, the block is paused or the device fails.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let addr = self.range(offset, to.len())?;
        let mut state = self.inner().lock()?;
        state.refuse_capture()?;
        Ok(state.allocator.device_mut().download(addr, to)?)
    }

    /// Copies bytes of the host to it, after waiting for the work of the device.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let addr = self.range(offset, from.len())?;
        let mut state = self.inner().lock()?;
        state.refuse_capture()?;
        Ok(state.allocator.device_mut().upload(addr, from)?)
    }

    fn range(&self, offset: u64, length: usize) -> Result<DeviceAddr, Error> {
        let bytes = length as u64;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.size => Ok(self.addr.offset(offset)),
            _ => Err(Error::Bounds {
                offset,
                bytes,
                size: self.size,
            }),
        }
    }
}

impl<D: Device> Drop for Block<D> {
    #[inline]
    fn drop(&mut self) {
        match &self.home {
            // It was leaked.
            _ if self.size == 0 => {}
            // A block that another stream uses may have to wait, which is the allocator's task.
            Home::Front(kept) if !self.named && shelf::keeps(self.size) => {
                kept.keep(self.addr, self.size);
            }
            _ => self.inner().give_back(&[self.addr]),
        }
        // Then the charge is dropped, and its tenant is refunded.
    }
}
