// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is given back for a while, with what was in it.
//!
//! The allocator takes pages away from blocks of a tag and brings pages back; it
//! never sees a byte. Their contents are copied here, to ordinary memory of the
//! host, and written back before another thread gets the lock.

use std::collections::BTreeMap;

use tonnage_alloc::tonnage::Range;
use tonnage_alloc::{Contents, Device, DeviceAddr, DeviceError, Policy, PolicyError, Tag};

use crate::{Error, Runtime, State};

/// The fate of the contents of paused memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// They are lost: after a resume the contents of the blocks are unknown.
    Nothing,
    /// They are copied to memory of the host, and back.
    OnHost,
}

/// Contents of paused memory, by tag.
#[derive(Debug, Default)]
pub(crate) struct Saved(BTreeMap<Tag, Vec<Piece>>);

#[derive(Debug)]
struct Piece {
    addr: DeviceAddr,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.addr.0 + self.bytes.len() as u64
    }

    /// The part of it that lies in a range.
    fn part(&self, range: &Range) -> Option<(DeviceAddr, &[u8])> {
        let start = self.addr.0.max(range.addr.0);
        let end = self.end().min(range.addr.0 + range.bytes);
        let length = end.checked_sub(start).filter(|&length| length > 0)?;
        let from = (start - self.addr.0) as usize;
        let part = self.bytes.get(from..from + length as usize)?;
        Some((DeviceAddr(start), part))
    }
}

impl Saved {
    /// Bytes of the host that it takes.
    fn bytes(&self) -> u64 {
        let pieces = self.0.values().flatten();
        pieces.map(|piece| piece.bytes.len() as u64).sum()
    }
}

impl<D: Contents> Runtime<D> {
    /// Gives the memory of a tag's blocks back to the device, and keeps their addresses; answers with the bytes that
    /// were given back. A page goes back if used blocks of that tag cover all of it. All work on the device is waited
    /// for first. Until [`resume`](Self::resume) no thread may touch the blocks; they may be freed.
    ///
    /// ```
    /// use tonnage_device_host::HostDevice;
    /// use tonnage_runtime::{Error, Kept, Request, Runtime, Settings, StreamId, Tag};
    ///
    /// const WEIGHTS: Tag = Tag(1);
    /// let runtime = Runtime::new(HostDevice::new(64 << 20)?, Settings::default());
    /// let mut block = runtime.alloc(Request::new(4 << 20, StreamId(0)).tagged(WEIGHTS))?;
    /// block.write(0, b"weights")?;
    ///
    /// assert_eq!(runtime.pause(WEIGHTS, Kept::OnHost)?, 4 << 20);
    /// assert_eq!(runtime.statistics()?.reserved.now, 0);
    /// assert!(block.write(0, b"no").is_err());
    ///
    /// runtime.resume(WEIGHTS)?;
    /// let mut bytes = [0; 7];
    /// block.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"weights");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// If a graph is captured, if the host has no memory for what is to be kept, or if the device fails: nothing has
    /// changed then, except where undoing failed too. Such pages are paused.
    pub fn pause(&self, tag: Tag, kept: Kept) -> Result<u64, Error> {
        Ok(pause(&mut *self.lock()?, tag, kept)?)
    }

    /// Brings memory to what is paused of a tag, at the same addresses, with what was in it if that was kept; answers
    /// with the bytes that have memory again.
    ///
    /// # Errors
    /// [`Error::Resume`] if there is not enough memory. Or if a graph is captured, or the device fails. Everything stays paused then.
    pub fn resume(&self, tag: Tag) -> Result<u64, Error> {
        Ok(resume(&mut *self.lock()?, tag)?)
    }

    /// Bytes of the host that hold what was in paused memory.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn kept_on_host(&self) -> Result<u64, Error> {
        Ok(self.lock()?.saved.bytes())
    }
}

impl<D: Device> State<D> {
    /// Refuses what a capture forbids.
    pub(crate) fn refuse_capture(&self) -> Result<(), PolicyError> {
        match self.captures {
            0 => Ok(()),
            _ => Err(PolicyError::Captured),
        }
    }
}

/// Pauses a tag, for the owner of the lock.
pub(crate) fn pause<D: Contents>(
    state: &mut State<D>,
    tag: Tag,
    kept: Kept,
) -> Result<u64, PolicyError> {
    state.refuse_capture()?;
    let State {
        allocator, saved, ..
    } = state;
    allocator.device_mut().synchronize()?;
    let mut pieces = Vec::new();
    if kept == Kept::OnHost {
        for range in allocator.pausable(tag) {
            let mut bytes = zeroed(range.bytes)?;
            allocator.device_mut().download(range.addr, &mut bytes)?;
            let addr = range.addr;
            pieces.push(Piece { addr, bytes });
        }
    }
    let paused = allocator.pause(tag);
    let saved = saved.0.entry(tag).or_default();
    saved.append(&mut pieces);
    // A block may have been freed while it was paused; and where pausing failed there is nothing to restore, unless
    // undoing failed as well.
    let ranges = allocator.paused(tag);
    saved.retain(|piece| ranges.iter().any(|range| piece.part(range).is_some()));
    paused
}

/// Resumes a tag, for the owner of the lock.
pub(crate) fn resume<D: Contents>(state: &mut State<D>, tag: Tag) -> Result<u64, PolicyError> {
    let State {
        allocator, saved, ..
    } = state;
    let ranges = allocator.resume(tag)?;
    let pieces = saved.0.get(&tag).map_or(&[][..], Vec::as_slice);
    let parts = pieces
        .iter()
        .flat_map(|piece| ranges.iter().filter_map(|range| piece.part(range)));
    for (addr, bytes) in parts {
        if let Err(error) = allocator.device_mut().upload(addr, bytes) {
            // Saved contents are still saved. The first failure is the one to report.
            let _ = allocator.pause(tag);
            return Err(error.into());
        }
    }
    saved.0.remove(&tag);
    Ok(ranges.iter().map(|range| range.bytes).sum())
}

/// Memory of the host, of which the system gives pages only where something is written.
fn zeroed(bytes: u64) -> Result<Vec<u8>, DeviceError> {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    // Asking is cheap; failing below would end the process.
    if Vec::<u8>::new().try_reserve_exact(length).is_err() {
        return Err(DeviceError::Invalid("the host has no memory to keep it in"));
    }
    Ok(vec![0; length])
}
