// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is tried before a request is refused, after all that the allocator
//! itself can do: blocks that fronts keep, the program's callbacks, memory of
//! tags that may be spilled, and what other processes do not use.
//!
//! After every step the request is made again, so that no holder gives up more than is
//! needed. A step is an event and is counted, whether it helped or not. No lock
//! is held while a callback runs or another process is waited for.

use std::fmt;

use tonnage_alloc::tonnage::{SearchStep, Shortage};
use tonnage_alloc::{Device, DeviceError, Policy as _, PolicyError, Request, Tag};

use crate::sync::{self, Arc, Mutex, MutexGuard, ThreadId};
use crate::{Error, Runtime, State};

/// A request for which there was no memory in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The memory that existed.
    pub shortage: Shortage,
    /// The steps beyond what the allocator does by itself, in order.
    pub tried: Vec<Tried>,
}

/// A step that did not suffice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tried {
    /// Which one.
    pub step: SearchStep,
    /// The tag that was to make way, of a spill.
    pub tag: Option<Tag>,
    /// Bytes that became free by it, as far as it is known.
    pub gave: u64,
    /// The owner of the bytes, or why there were none.
    pub what: String,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "{}", self.shortage)?;
        for (number, tried) in self.tried.iter().enumerate() {
            let before = if number == 0 { " Tried:" } else { ";" };
            write!(text, "{before} {}", tried.what)?;
            if tried.gave > 0 {
                write!(text, " ({} bytes)", tried.gave)?;
            }
        }
        if !self.tried.is_empty() {
            text.write_str(".")?;
        }
        Ok(())
    }
}

/// A function of the program that frees something: it gets the number of requested bytes, and answers with the bytes
/// that it freed.
type Callback = Arc<dyn Fn(u64) -> u64 + Send + Sync>;

/// Which callback it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackId(u64);

/// The callbacks of a runtime.
#[derive(Default)]
pub(crate) struct Callbacks(Mutex<Registered>);

#[derive(Default)]
pub(crate) struct Registered {
    callbacks: Vec<(CallbackId, Callback)>,
    count: u64,
    /// Threads that are inside of a callback. Their requests meanwhile call none.
    inside: Vec<ThreadId>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = sync::locked(&self.0).callbacks.len();
        write!(text, "{count} callbacks")
    }
}

/// A thread is inside of a callback until this is dropped, also if the callback panics.
struct Inside<'a>(&'a Callbacks);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let this = sync::current_thread();
        let mut registered = sync::locked(&self.0.0);
        registered.inside.retain(|inside| *inside != this);
    }
}

impl Callbacks {
    /// Takes the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Registered> {
        sync::locked(&self.0)
    }

    /// The functions to call, in order; none if this thread is inside of one.
    fn enter(&self) -> Option<(Vec<Callback>, Inside<'_>)> {
        let this = sync::current_thread();
        let mut registered = sync::locked(&self.0);
        if registered.callbacks.is_empty() || registered.inside.contains(&this) {
            return None;
        }
        registered.inside.push(this);
        let callbacks = registered.callbacks.iter();
        let callbacks = callbacks
            .map(|(_, callback)| Arc::clone(callback))
            .collect();
        drop(registered);
        Some((callbacks, Inside(self)))
    }
}

/// A request that is made again and again.
pub(crate) struct Search<'a, D: Device, T> {
    pub(crate) runtime: &'a Runtime<D>,
    /// The request; for a tag that is to be resumed, its bytes.
    pub(crate) request: Request,
    /// Whether that is paused memory, which lacks pages and no place.
    pub(crate) resumes: bool,
    pub(crate) attempt: &'a dyn Fn(&mut State<D>) -> Result<T, PolicyError>,
}

impl<D: Device, T> Search<'_, D, T> {
    /// Makes the request again after a step; `None` if there is still no memory.
    fn again(&self, state: &mut State<D>, step: SearchStep) -> Result<Option<T>, PolicyError> {
        match (self.attempt)(state) {
            Ok(value) => {
                state.allocator.note_helped(step);
                Ok(Some(value))
            }
            Err(PolicyError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn note(&self, state: &mut State<D>, step: SearchStep) {
        let Request { bytes, stream, .. } = self.request;
        state.allocator.note_step(step, bytes, stream);
    }

    /// Takes every step until one helps.
    #[cold]
    pub(crate) fn run(self) -> Result<T, Error> {
        let mut tried = Vec::new();
        // Nobody gives anything up for what no device of this size serves.
        let total = self.runtime.lock()?.allocator.device().total();
        let fits = self.request.bytes <= total;
        if fits {
            for step in [Self::fronts, Self::callbacks, Self::spill, Self::leases] {
                if let Some(value) = step(&self, &mut tried)? {
                    return Ok(value);
                }
            }
        }
        let mut state = self.runtime.lock()?;
        // Memory that another thread freed since the last step is not refused.
        let (requested, free) = match (self.attempt)(&mut state) {
            Err(PolicyError::OutOfMemory { requested, free }) => (requested, free),
            served => return Ok(served?),
        };
        let mut shortage = state.allocator.refuse(self.request);
        if self.resumes {
            shortage.missing = requested.saturating_sub(free);
        }
        let short = Box::new(OutOfMemory { shortage, tried });
        Err(if fits {
            Error::OutOfMemory(short)
        } else {
            Error::TooLarge(short)
        })
    }

    fn fronts(&self, tried: &mut Vec<Tried>) -> Result<Option<T>, Error> {
        let (bytes, blocks) = self.runtime.count_kept();
        if blocks == 0 {
            return Ok(None);
        }
        let step = SearchStep::Fronts;
        self.note(&mut *self.runtime.lock()?, step);
        let blocks = self.runtime.0.recall()?;
        tried.push(Tried {
            step,
            tag: None,
            gave: bytes,
            what: format!("{blocks} blocks that fronts kept"),
        });
        Ok(self.again(&mut *self.runtime.lock()?, step)?)
    }

    fn callbacks(&self, tried: &mut Vec<Tried>) -> Result<Option<T>, Error> {
        let Some((callbacks, _inside)) = self.runtime.0.callbacks.enter() else {
            return Ok(None);
        };
        let step = SearchStep::Callbacks;
        let count = callbacks.len();
        let mut gave = 0_u64;
        for callback in callbacks {
            self.note(&mut *self.runtime.lock()?, step);
            let freed = callback(self.request.bytes);
            gave = gave.saturating_add(freed);
            if freed > 0
                && let Some(value) = self.again(&mut *self.runtime.lock()?, step)?
            {
                return Ok(Some(value));
            }
        }
        let what = match (gave, count) {
            (0, 1) => "the callback freed nothing".to_owned(),
            (0, _) => format!("{count} callbacks freed nothing"),
            (_, 1) => "the callback reports that it freed".to_owned(),
            (_, _) => format!("{count} callbacks report that they freed"),
        };
        tried.push(Tried {
            step,
            tag: None,
            gave,
            what,
        });
        Ok(None)
    }

    fn spill(&self, tried: &mut Vec<Tried>) -> Result<Option<T>, Error> {
        let step = SearchStep::Spill;
        // Least recently held first; what is held meanwhile is seen below.
        let tags: Vec<Tag> = {
            let mut state = self.runtime.lock()?;
            if state.spillable.is_empty() {
                return Ok(None);
            }
            let missing = match (self.attempt)(&mut state) {
                Ok(value) => return Ok(Some(value)),
                Err(PolicyError::OutOfMemory { requested, free }) if self.resumes => {
                    requested.saturating_sub(free)
                }
                Err(PolicyError::OutOfMemory { .. }) => {
                    state.allocator.shortage(self.request).missing
                }
                Err(error) => return Err(error.into()),
            };
            let idle = state.spillable.iter().filter(|one| one.holds == 0);
            let ranges = idle.flat_map(|one| state.allocator.pausable(one.tag));
            let most: u64 = ranges.map(|range| range.bytes).sum();
            if most > 0 && most < missing {
                let what = format!("spilling what no thread holds, {most} bytes, is not enough");
                tried.push(Tried {
                    step,
                    tag: None,
                    gave: 0,
                    what,
                });
                return Ok(None);
            }
            let tags = state.spillable.iter().map(|one| one.tag);
            tags.collect()
        };
        for tag in tags {
            let mut state = self.runtime.lock()?;
            let told = |gave, what| Tried {
                step,
                tag: Some(tag),
                gave,
                what,
            };
            let number = tag.0;
            if state.captures > 0 {
                let what = "nothing was spilled while a graph is captured".to_owned();
                tried.push(told(0, what));
                return Ok(None);
            }
            let held = state.spillable.iter().find(|one| one.tag == tag);
            if held.is_none_or(|one| one.holds > 0) {
                tried.push(told(0, format!("tag {number} is held and was not spilled")));
                continue;
            }
            let Some(spill) = state.spill else {
                return Ok(None);
            };
            if state.allocator.pausable(tag).is_empty() {
                continue;
            }
            self.note(&mut state, step);
            match spill(&mut state, tag) {
                Ok(gave) => {
                    tried.push(told(gave, format!("tag {number} was spilled to the host")));
                }
                // A device that fails is not a shortage of memory.
                Err(error @ PolicyError::Device(DeviceError::Driver { .. })) => {
                    return Err(error.into());
                }
                // Nothing has changed: the host may have no memory for it, and another tag may do.
                Err(error) => {
                    tried.push(told(0, format!("tag {number} was not spilled: {error}")));
                    continue;
                }
            }
            if let Some(value) = self.again(&mut state, step)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn leases(&self, tried: &mut Vec<Tried>) -> Result<Option<T>, Error> {
        let Some(lease) = sync::locked(&self.runtime.0.lease).clone() else {
            return Ok(None);
        };
        let step = SearchStep::Leases;
        // How much there is may have changed since the device was last queried.
        let _ = lease.free();
        let missing = {
            let mut state = self.runtime.lock()?;
            self.note(&mut state, step);
            if self.resumes {
                self.request.bytes
            } else {
                state.allocator.shortage(self.request).missing
            }
        };
        let what = match lease.ask(missing) {
            Ok(asked) => {
                if let Some(value) = self.again(&mut *self.runtime.lock()?, step)? {
                    return Ok(Some(value));
                }
                asked
            }
            Err(error) => format!("other processes could not be queried: {error}"),
        };
        tried.push(Tried {
            step,
            tag: None,
            gave: 0,
            what,
        });
        Ok(None)
    }
}

impl<D: Device> Runtime<D> {
    /// Registers a function that is called when memory runs short, before a request is refused: it gets the number of
    /// requested bytes, frees what it can do without, and answers with how many bytes that was. Functions are
    /// called in the order of their registration, on the requesting thread, with no lock held, until the request is
    /// served. A request of a function itself calls none.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use tonnage_runtime::{Error, Request, Runtime, SearchStep, Settings, SimConfig, SimDevice, StreamId};
    ///
    /// let device = SimDevice::new(SimConfig::with_total(64 << 20));
    /// let runtime = Runtime::new(device, Settings::default());
    /// let request = |bytes| Request::new(bytes, StreamId(0));
    /// let cache = Arc::new(Mutex::new(vec![runtime.alloc(request(40 << 20))?]));
    /// // A block keeps its runtime, which keeps its callbacks: one that owned blocks would keep all three alive.
    /// let cached = Arc::downgrade(&cache);
    /// runtime.on_shortage(move |_bytes| {
    ///     let freed = cached.upgrade().and_then(|cached| cached.lock().unwrap().pop());
    ///     freed.map_or(0, |block| block.size())
    /// });
    /// let _large = runtime.alloc(request(60 << 20))?;
    /// assert_eq!(runtime.statistics()?.search_steps.helped(SearchStep::Callbacks), 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn on_shortage(&self, callback: impl Fn(u64) -> u64 + Send + Sync + 'static) -> CallbackId {
        let mut registered = sync::locked(&self.0.callbacks.0);
        registered.count += 1;
        let id = CallbackId(registered.count);
        registered.callbacks.push((id, Arc::new(callback)));
        id
    }

    /// Forgets a callback; whether there was one. A thread that is inside of it goes on.
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        let mut registered = sync::locked(&self.0.callbacks.0);
        let before = registered.callbacks.len();
        registered.callbacks.retain(|(known, _)| *known != id);
        registered.callbacks.len() < before
    }
}
