// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tonnage allocator for running programs: many threads, many streams.
//!
//! A [`Runtime`] serves requests of any thread. It holds the allocator
//! ([`tonnage_alloc::tonnage`]) behind one lock; a call of the device is made
//! with the lock held, so that what the allocator believes is what the device
//! does. Its clones are one runtime.
//!
//! A [`Block`] owns its memory: it knows its runtime and its stream, and frees the
//! memory in stream order when it is dropped. No call without `unsafe` gives two
//! blocks the same byte. Functions for bare addresses are for C, in `raw.rs`.
//!
//! Where many threads allocate at once, each takes a [`Front`] for its stream
//! ([`Runtime::front`]). It keeps small blocks that were freed, by size, and gives
//! whole batches of them back; only then, and when it has none, is the lock
//! needed that all share. Large blocks always go to the allocator, which joins
//! them with their neighbours: keeping them by size would let blocks of the wrong
//! sizes pile up. [`Tenant`]s share a device with a quota each.
//! Blocks with a tag can give their memory back for a while ([`Runtime::pause`]).
//! Processes that share a device have a [`Lease`] each.
//!
//! When memory runs short, a request is refused only after everything was tried
//! that could make room ([`Runtime::alloc`]); the error reports what there was.
//!
//! ```
//! use tonnage_runtime::{Error, Runtime, Settings, SimConfig, SimDevice, StreamId};
//!
//! let device = SimDevice::new(SimConfig::with_total(1 << 30));
//! let runtime = Runtime::new(device, Settings::default());
//! std::thread::scope(|scope| {
//!     for stream in 0..4 {
//!         let runtime = runtime.clone();
//!         scope.spawn(move || {
//!             let mut front = runtime.front(StreamId(stream));
//!             for _ in 0..100 {
//!                 let block = front.alloc(3000)?;
//!                 drop(block);
//!             }
//!             Ok::<(), Error>(())
//!         });
//!     }
//! });
//! // The allocator itself was called once by each thread.
//! let statistics = runtime.statistics()?;
//! assert_eq!((statistics.served, statistics.allocated.now), (4, 0));
//! runtime.close()?;
//! # Ok::<(), Error>(())
//! ```
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod block;
mod error;
mod front;
mod lease;
mod pause;
#[expect(unsafe_code, reason = "functions that only C and tests should call")]
mod raw;
mod search;
mod shelf;
mod spill;
mod sync;
mod tenant;

pub use block::Block;
pub use error::Error;
pub use front::Front;
pub use lease::{Lease, LeaseError, LeaseInfo, Leased, Overcommitted, Recalls};
pub use pause::Kept;
pub use raw::RawBlock;
pub use search::{CallbackId, OutOfMemory, Tried};
pub use spill::Hold;
pub use tenant::Tenant;

// The parts of `tonnage-alloc` that a program needs, so that one crate is enough.
pub use tonnage_alloc::tonnage::{
    AllocatorPlan, BlockInfo, BlockState, Event, EventKind, Events, Live, PlannedBlock, Ring,
    SearchStep, Settings, Shortage, Statistics,
};
pub use tonnage_alloc::torch::PoolId;
pub use tonnage_alloc::{
    Contents, Device, DeviceAddr, DeviceError, Request, SimConfig, SimDevice, StreamId, Tag,
};

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tonnage_alloc::tonnage::Allocator;
use tonnage_alloc::{Policy, PolicyError};

use front::Kept as KeptBlocks;
use pause::Saved;
use search::{Callbacks, Search};
use spill::Spillable;
use sync::{Arc, Mutex, MutexGuard, Visitor, Weak};

/// The tonnage allocator, for any number of threads. A clone is the same runtime.
///
/// A [`Block`] has one owner. It overlaps no other block and no address of C, whatever is called in whatever order.
///
/// When the last clone and the last block are dropped, everything goes back to the device that no graph needs and no
/// program forgot; see [`on_leak`](Self::on_leak).
#[derive(Debug)]
pub struct Runtime<D: Device>(Arc<Inner<D>>);

impl<D: Device> Clone for Runtime<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A [`Runtime`] that this does not keep; made by [`Runtime::downgrade`].
#[derive(Debug)]
pub struct WeakRuntime<D: Device>(Weak<Inner<D>>);

impl<D: Device> WeakRuntime<D> {
    /// The runtime, if it is still there.
    pub fn upgrade(&self) -> Option<Runtime<D>> {
        self.0.upgrade().map(Runtime)
    }
}

#[derive(Debug)]
struct Inner<D: Device> {
    state: Mutex<State<D>>,
    /// The thread that is inside of [`Runtime::with_device`].
    visitor: Visitor,
    /// The calls that this thread could not make there. It makes them before it lets go of the lock.
    deferred: Mutex<Deferred>,
    /// The shelves of fronts; see [`Runtime::front`].
    shelves: Mutex<Vec<Weak<KeptBlocks<D>>>>,
    /// Bytes that a front may keep.
    kept: u64,
    callbacks: Callbacks,
    /// Its share of a device that processes share, if there is one.
    lease: Mutex<Option<Arc<Lease>>>,
    /// The names of tags, for reports of live blocks.
    names: Mutex<BTreeMap<Tag, String>>,
    on_leak: Mutex<LeakReport>,
}

/// A function of the program that reports blocks that are live when a runtime is dropped.
#[derive(Default)]
struct LeakReport(Option<ReportLeak>);

type ReportLeak = Box<dyn Fn(&Live) + Send>;

impl fmt::Debug for LeakReport {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = if self.0.is_some() { "set" } else { "not set" };
        text.write_str(set)
    }
}

/// Blocks and holds that were dropped inside of [`Runtime::with_device`], which has the lock.
#[derive(Debug, Default)]
struct Deferred {
    blocks: Vec<DeviceAddr>,
    holds: Vec<Tag>,
}

/// The present blocks and the last events; made by [`Runtime::snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Every block that has memory or is paused, by address. Blocks that fronts keep count as used.
    pub blocks: Vec<BlockInfo>,
    /// The last events; the last of them led to these blocks.
    pub events: Events,
}

/// Copies what has a tag to the host and gives its memory back; how many bytes.
type Spill<D> = fn(&mut State<D>, Tag) -> Result<u64, PolicyError>;

/// Every lock of a runtime; made by [`Runtime::lock_all`].
#[must_use = "other threads go on as soon as this is dropped"]
pub struct Locked<'a, D: Device> {
    _shelves: MutexGuard<'a, Vec<Weak<KeptBlocks<D>>>>,
    _callbacks: MutexGuard<'a, search::Registered>,
    _lease: MutexGuard<'a, Option<Arc<Lease>>>,
    _state: Option<MutexGuard<'a, State<D>>>,
}

#[derive(Debug)]
struct State<D: Device> {
    allocator: Allocator<D, Ring>,
    /// How many captures and private pools are open.
    captures: u32,
    /// The contents of paused memory.
    saved: Saved,
    /// The memory that may be spilled, least recently held first.
    spillable: Vec<Spillable>,
    /// How that is done; only devices whose bytes can be copied have a way.
    spill: Option<Spill<D>>,
}

impl<D: Device> Runtime<D> {
    /// A runtime that holds nothing yet.
    pub fn new(device: D, settings: Settings) -> Self {
        Self::keeping(device, settings, None, Ring::default())
    }

    /// The same with a plan to follow: `tonnage plan RECORDING --for-runtime -o FILE` makes one of a dry run.
    ///
    /// ```
    /// use tonnage_runtime::{AllocatorPlan, PlannedBlock, Request, Runtime, Settings, SimConfig, SimDevice, StreamId};
    ///
    /// let plan = AllocatorPlan::new(vec![], vec![vec![PlannedBlock::new(1 << 20, 0, 0)]])?;
    /// let device = SimDevice::new(SimConfig::with_total(64 << 20));
    /// let runtime = Runtime::with_plan(device, Settings::default(), &plan);
    /// for _ in 0..3 {
    ///     runtime.begin_step()?;
    ///     drop(runtime.alloc(Request::new(1 << 20, StreamId(0)))?);
    /// }
    /// let followed = runtime.statistics()?.plan.unwrap();
    /// assert_eq!((followed.hits, followed.steps), (3, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_plan(device: D, settings: Settings, plan: &AllocatorPlan) -> Self {
        Self::keeping(device, settings, Some(plan), Ring::default())
    }

    /// The same, with a plan or without, that keeps as many events as the ring has room for.
    ///
    /// ```
    /// use tonnage_runtime::{Error, EventKind, Request, Ring, Runtime, Settings, SimConfig, SimDevice, StreamId};
    ///
    /// let device = SimDevice::new(SimConfig::with_total(64 << 20));
    /// let runtime = Runtime::keeping(device, Settings::default(), None, Ring::new(2));
    /// for _ in 0..10 {
    ///     drop(runtime.alloc(Request::new(3000, StreamId(0)))?);
    /// }
    /// let last = runtime.events()?;
    /// assert_eq!(last.events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Alloc, EventKind::Free]);
    /// assert!(last.first > 18, "what was before them is counted");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn keeping(
        device: D,
        settings: Settings,
        plan: Option<&AllocatorPlan>,
        ring: Ring,
    ) -> Self {
        let allocator = Allocator::observed(device, settings, plan, ring);
        let kept = (allocator.device().total() / shelf::SHARE).min(shelf::MOST);
        Self(Arc::new(Inner {
            visitor: Visitor::default(),
            deferred: Mutex::default(),
            kept,
            shelves: Mutex::new(Vec::new()),
            state: Mutex::new(State {
                allocator,
                captures: 0,
                saved: Saved::default(),
                spillable: Vec::new(),
                spill: None,
            }),
            callbacks: Callbacks::default(),
            lease: Mutex::new(None),
            names: Mutex::default(),
            on_leak: Mutex::default(),
        }))
    }

    fn lock(&self) -> Result<MutexGuard<'_, State<D>>, Error> {
        self.0.lock()
    }

    /// The same runtime, without keeping it: for a function that the runtime itself keeps.
    pub fn downgrade(&self) -> WeakRuntime<D> {
        WeakRuntime(Arc::downgrade(&self.0))
    }

    /// Serves a request.
    ///
    /// If the allocator has no memory, what fronts keep is taken back; then functions of
    /// [`on_shortage`](Self::on_shortage) are called, tags that [may be spilled](Self::allow_spill) make way, and
    /// processes that share the device are queried. The request is made again after each of these.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory even so, [`Error::TooLarge`] if there never can be, or if the
    /// request cannot be served at all.
    #[inline]
    pub fn alloc(&self, request: Request) -> Result<Block<D>, Error> {
        let addr = self.0.serve(request, Allocator::attempt_owned)?;
        Ok(Block::of_runtime(&self.0, addr, request, None))
    }

    /// Serves a request of a tenant, within its quota.
    ///
    /// # Errors
    /// [`Error::Quota`] if that is above the quota, and as [`alloc`](Self::alloc).
    pub fn alloc_for(&self, tenant: &Arc<Tenant>, request: Request) -> Result<Block<D>, Error> {
        let charge = tenant.charge(block::rounded::<D>(request.bytes))?;
        let addr = self.0.serve(request, Allocator::attempt_owned)?;
        Ok(Block::of_runtime(&self.0, addr, request, Some(charge)))
    }

    /// A way in for one thread and one stream, that keeps small blocks so that most requests take no lock that
    /// another thread takes too. Its blocks count as allocated in [`statistics`](Self::statistics); when memory
    /// runs short it is taken back.
    pub fn front(&self, stream: StreamId) -> Front<D> {
        Front::new(&self.0, stream)
    }

    /// Bytes and number of the blocks that fronts keep.
    pub fn count_kept(&self) -> (u64, usize) {
        let shelves = self.0.shelves();
        let held = shelves.iter().map(|shelf| shelf.count());
        held.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1))
    }

    /// The program begins a step of what it repeats, for a runtime with a plan.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn begin_step(&self) -> Result<(), Error> {
        self.lock()?.allocator.begin_step();
        Ok(())
    }

    /// A graph is captured from now on, or a private pool is open: until [`end_capture`](Self::end_capture) is called
    /// as often, no work is queried or waited for, and nothing is unmapped.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn begin_capture(&self) -> Result<(), Error> {
        let mut state = self.lock()?;
        state.captures += 1;
        state.allocator.set_capturing(true);
        Ok(())
    }

    /// A capture has ended.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn end_capture(&self) -> Result<(), Error> {
        let mut state = self.lock()?;
        state.captures = state.captures.saturating_sub(1);
        if state.captures == 0 {
            state.allocator.set_capturing(false);
        }
        Ok(())
    }

    /// Nobody uses a pool any more: its memory is like any other.
    ///
    /// # Errors
    /// If the pool was never used.
    pub fn release_pool(&self, pool: PoolId) -> Result<(), Error> {
        Ok(self.lock()?.allocator.release_pool(pool)?)
    }

    /// Gives every page back that no live block needs, after waiting for the work that still uses it. Does nothing
    /// while a graph is captured.
    ///
    /// # Errors
    /// If the device fails; what was given back until then stays given back.
    pub fn empty_cache(&self) -> Result<(), Error> {
        self.0.recall()?;
        Ok(self.lock()?.allocator.empty_cache(PoolId::DEFAULT)?)
    }

    /// Changes the limit of what may be reserved.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn set_limit(&self, bytes: Option<u64>) -> Result<(), Error> {
        self.lock()?.allocator.set_limit(bytes);
        Ok(())
    }

    /// The present state and the counts so far. Every number is exact and of the same moment.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.lock()?.allocator.statistics())
    }

    /// The last events, of all threads. A request that a front serves from its blocks is not an event.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn events(&self) -> Result<Events, Error> {
        Ok(self.lock()?.allocator.observer().read())
    }

    /// Every block and the last events, of the same moment.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let state = self.lock()?;
        Ok(Snapshot {
            blocks: state.allocator.blocks(),
            events: state.allocator.observer().read(),
        })
    }

    /// Begins the recent peaks of the statistics anew.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn reset_peaks(&self) -> Result<(), Error> {
        self.lock()?.allocator.reset_peaks();
        Ok(())
    }

    /// Looks at the device, while no thread is inside of the allocator. If the closure panics, so does this call, and
    /// the runtime goes on. Blocks that are dropped inside of it are freed at its end.
    ///
    /// # Errors
    /// If the runtime is broken. Inside of the closure every call of this runtime on the same thread fails with
    /// [`Error::Inside`]; other threads wait.
    pub fn with_device<T>(&self, act: impl FnOnce(&D) -> T) -> Result<T, Error> {
        self.0.visit(|device| act(device))
    }

    /// Takes every lock, so that no other thread is inside until the answer is dropped: for a fork, whose child would
    /// wait for a lock that a thread of the parent holds. Fronts have locks of their own that are not taken.
    pub fn lock_all(&self) -> Locked<'_, D> {
        Locked {
            _shelves: sync::locked(&self.0.shelves),
            _callbacks: self.0.callbacks.lock(),
            _lease: sync::locked(&self.0.lease),
            // A thread that forks inside of `with_device` has it.
            _state: (!self.0.visitor.is_this_thread()).then(|| sync::locked(&self.0.state)),
        }
    }

    /// Gives back everything that no live block needs, the addresses too.
    ///
    /// # Errors
    /// [`Error::Live`] if blocks are live: how many, their bytes and the names of their tags. Everything else was given
    /// back then, and the runtime goes on. Or if the device fails, or a graph is captured.
    pub fn close(&self) -> Result<(), Error> {
        self.0.recall()?;
        let live = {
            let mut state = self.lock()?;
            state.allocator.close()?;
            state.allocator.live()
        };
        match live {
            live if live.blocks == 0 => Ok(()),
            live => Err(Error::Live(Box::new(self.0.named(live)))),
        }
    }

    /// Gives a tag the name that reports of live blocks call it by.
    pub fn name_tag(&self, tag: Tag, name: impl Into<String>) {
        sync::locked(&self.0.names).insert(tag, name.into());
    }

    /// Calls a function when the runtime is dropped and blocks are live: a program called [`std::mem::forget`] for
    /// them, or C has not freed them. Their memory stays, because work of the device may use it.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use tonnage_runtime::{Error, Request, Runtime, Settings, SimConfig, SimDevice, StreamId, Tag};
    ///
    /// let (report, reports) = mpsc::channel();
    /// let runtime = Runtime::new(SimDevice::new(SimConfig::with_total(1 << 30)), Settings::default());
    /// runtime.name_tag(Tag(1), "weights");
    /// runtime.on_leak(move |live| drop(report.send(live.to_string())));
    /// let block = runtime.alloc(Request::new(1 << 20, StreamId(0)).tagged(Tag(1)))?;
    /// // The handle is lost, and its clone of the runtime with it.
    /// let addr = block.leak();
    /// drop(runtime);
    /// assert!(reports.recv().unwrap().starts_with("1 block of 1.00 MiB is still live: 1.00 MiB of 'weights'"));
    /// # let _ = addr;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn on_leak(&self, report: impl Fn(&Live) + Send + 'static) {
        *sync::locked(&self.0.on_leak) = LeakReport(Some(Box::new(report)));
    }

    /// Recounts every structure.
    ///
    /// # Errors
    /// A sentence that reports what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let state = self.lock().map_err(|error| error.to_string())?;
        state.allocator.check()
    }
}

impl<D: Device> Inner<D> {
    /// The data behind the lock. A thread that panicked there may have left it in disorder: nothing is served then.
    fn lock(&self) -> Result<MutexGuard<'_, State<D>>, Error> {
        if self.visitor.is_this_thread() {
            return Err(Error::Inside);
        }
        self.state.lock().map_err(|_| Error::Poisoned)
    }

    #[inline]
    fn serve<F>(self: &Arc<Self>, request: Request, attempt: F) -> Result<DeviceAddr, Error>
    where
        F: Fn(&mut Allocator<D, Ring>, Request) -> Result<DeviceAddr, PolicyError>,
    {
        if request.bytes == 0 {
            return Err(Error::Zero);
        }
        let served = attempt(&mut self.lock()?.allocator, request);
        match served {
            Ok(block) => Ok(block),
            Err(PolicyError::OutOfMemory { .. }) => {
                let attempt = |state: &mut State<D>| attempt(&mut state.allocator, request);
                self.search(request, &attempt)
            }
            Err(error) => Err(error.into()),
        }
    }

    #[cold]
    fn search(
        self: &Arc<Self>,
        request: Request,
        attempt: &dyn Fn(&mut State<D>) -> Result<DeviceAddr, PolicyError>,
    ) -> Result<DeviceAddr, Error> {
        let runtime = Runtime(Arc::clone(self));
        let search = Search {
            runtime: &runtime,
            request,
            resumes: false,
            attempt,
        };
        search.run()
    }

    /// The shelves of all fronts.
    fn shelves(&self) -> Vec<Arc<KeptBlocks<D>>> {
        let shelves = sync::locked(&self.shelves);
        shelves.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes back what fronts keep; how many blocks there were. No lock is held while another one is taken.
    fn recall(&self) -> Result<usize, Error> {
        // A block that is taken off a shelf must not be lost because the allocator cannot be reached.
        drop(self.lock()?);
        let shelves = self.shelves();
        let blocks: Vec<_> = shelves.iter().flat_map(|shelf| shelf.take_all()).collect();
        self.give_back(&blocks);
        Ok(blocks.len())
    }

    /// Frees blocks that handles owned. It always succeeds, at the latest when the thread leaves
    /// [`Runtime::with_device`]; a broken runtime serves nothing any more, and keeps them.
    fn give_back(&self, blocks: &[DeviceAddr]) {
        if blocks.is_empty() {
            return;
        }
        match self.lock() {
            Ok(mut state) => state.free_all(blocks),
            Err(Error::Inside) => sync::locked(&self.deferred).blocks.extend(blocks),
            Err(_) => {}
        }
    }

    /// Calls a function with the device and the lock.
    fn visit<T>(&self, act: impl FnOnce(&mut D) -> T) -> Result<T, Error> {
        let mut state = self.lock()?;
        self.visitor.enter();
        let done = catch_unwind(AssertUnwindSafe(|| act(state.allocator.device_mut())));
        self.visitor.leave();
        let deferred = std::mem::take(&mut *sync::locked(&self.deferred));
        state.free_all(&deferred.blocks);
        for tag in deferred.holds {
            state.unhold(tag);
        }
        // Before the panic goes on, which would mark the lock as broken.
        drop(state);
        done.map_or_else(|panic| resume_unwind(panic), Ok)
    }

    /// Live blocks, with the names of their tags.
    fn named(&self, live: Live) -> Live {
        let names = sync::locked(&self.names);
        live.with_names(|tag| names.get(&tag).cloned())
    }
}

impl<D: Device> State<D> {
    /// Frees blocks that handles owned.
    fn free_all(&mut self, blocks: &[DeviceAddr]) {
        for &block in blocks {
            let freed = self.allocator.free_owned(block);
            debug_assert_eq!(freed, Ok(()), "a handle owns a live block");
        }
    }
}

impl<D: Device> Drop for Inner<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Fronts and blocks are gone, since each holds this. The allocator gives its memory back when it is dropped.
        let live = match self.lock() {
            Ok(state) => state.allocator.live(),
            Err(_) => return sync::locked(&self.state).allocator.abandon(),
        };
        if live.blocks > 0
            && let Some(report) = &sync::locked(&self.on_leak).0
        {
            report(&self.named(live));
        }
    }
}
