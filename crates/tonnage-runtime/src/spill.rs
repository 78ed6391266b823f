// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tags whose memory may be taken when it runs short, and who uses them now.
//!
//! The allocator cannot see who touches a block. So a tag is spilled only if the
//! program allowed it, and only while no thread holds it: a [`Hold`] brings the
//! memory back and keeps it there.

use tonnage_alloc::{Contents, Device, PolicyError, Request, StreamId, Tag};

use crate::pause::{self, Kept};
use crate::search::Search;
use crate::sync;
use crate::{Error, Runtime, State};

/// A tag that may be spilled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spillable {
    pub(crate) tag: Tag,
    /// How many use it now.
    pub(crate) holds: u32,
}

/// Keeps the memory of a tag where it is, until it is dropped; made by [`Runtime::hold`].
#[derive(Debug)]
#[must_use = "the memory may be spilled as soon as this is dropped"]
pub struct Hold<D: Device> {
    runtime: Runtime<D>,
    tag: Tag,
}

impl<D: Device> Drop for Hold<D> {
    fn drop(&mut self) {
        match self.runtime.lock() {
            Ok(mut state) => state.unhold(self.tag),
            Err(Error::Inside) => sync::locked(&self.runtime.0.deferred).holds.push(self.tag),
            // A broken runtime spills nothing.
            Err(_) => {}
        }
    }
}

impl<D: Device> State<D> {
    /// One holder less. The tag is the last to be spilled from now on.
    pub(crate) fn unhold(&mut self, tag: Tag) {
        let Some(place) = self.spillable.iter().position(|one| one.tag == tag) else {
            return;
        };
        let mut one = self.spillable.remove(place);
        one.holds = one.holds.saturating_sub(1);
        self.spillable.push(one);
    }
}

impl<D: Contents> Runtime<D> {
    /// Reports that blocks of a tag may be spilled when memory runs short: what is in them is copied to the host, their
    /// memory is given to others, and their addresses stay. From now on blocks of this tag may be touched only while a
    /// [`Hold`] of it is there. The tag that was held longest ago is spilled first.
    ///
    /// ```
    /// use tonnage_device_host::HostDevice;
    /// use tonnage_runtime::{Error, Request, Runtime, Settings, StreamId, Tag};
    ///
    /// const OPTIMIZER: Tag = Tag(1);
    /// let runtime = Runtime::new(HostDevice::new(64 << 20)?, Settings::default());
    /// runtime.allow_spill(OPTIMIZER)?;
    /// let hold = runtime.hold(OPTIMIZER)?;
    /// let mut state = runtime.alloc(Request::new(40 << 20, StreamId(0)).tagged(OPTIMIZER))?;
    /// state.write(0, b"momentum")?;
    /// drop(hold);
    ///
    /// // There is no room for both: what is not held makes way, and comes back.
    /// let batch = runtime.alloc(Request::new(50 << 20, StreamId(0)))?;
    /// assert_eq!(runtime.kept_on_host()?, 40 << 20);
    /// drop(batch);
    /// let hold = runtime.hold(OPTIMIZER)?;
    /// let mut bytes = [0; 8];
    /// state.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"momentum");
    /// # drop(hold);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// If it is not a tag, or the runtime is broken.
    pub fn allow_spill(&self, tag: Tag) -> Result<(), Error> {
        if tag == Tag::NONE {
            let reason = "only what has a tag can be spilled";
            return Err(Error::Refused(reason.to_owned()));
        }
        let mut state = self.lock()?;
        state.spill = Some(|state, tag| pause::pause(state, tag, Kept::OnHost));
        if state.spillable.iter().all(|one| one.tag != tag) {
            state.spillable.push(Spillable { tag, holds: 0 });
        }
        Ok(())
    }

    /// Brings back what was spilled of a tag, and keeps it there until the answer is dropped. If there is not enough
    /// memory, other tags that no thread holds make way.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory even so; if the tag was never allowed to be spilled, if a
    /// graph is captured and something would have to come back, or if the device fails. Nothing is held then.
    pub fn hold(&self, tag: Tag) -> Result<Hold<D>, Error> {
        let bytes = {
            let mut state = self.lock()?;
            let found = state.spillable.iter_mut().find(|one| one.tag == tag);
            let Some(one) = found else {
                let reason = format!("tag {} may not be spilled: there is nothing to hold", tag.0);
                return Err(Error::Refused(reason));
            };
            one.holds += 1;
            let paused = state.allocator.paused(tag);
            paused.iter().map(|range| range.bytes).sum()
        };
        // From here on it is not spilled, and a failure drops it.
        let hold = Hold {
            runtime: self.clone(),
            tag,
        };
        if bytes == 0 {
            return Ok(hold);
        }
        let attempt = |state: &mut State<D>| pause::resume(state, tag);
        let resumed = attempt(&mut *self.lock()?);
        match resumed {
            Err(PolicyError::OutOfMemory { .. }) => {
                let search = Search {
                    runtime: self,
                    request: Request::new(bytes, StreamId(0)),
                    resumes: true,
                    attempt: &attempt,
                };
                search.run()?;
            }
            resumed => {
                resumed?;
            }
        }
        Ok(hold)
    }
}
