// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tonnage allocator for running programs: many threads, many streams.
//!
//! A [`Runtime`] serves requests of any thread. It holds the allocator
//! ([`tonnage_alloc::tonnage`]) behind one lock; a call of the device is made
//! with the lock held, so that what the allocator believes is what the device
//! does. That is all PyTorch's plugin uses.
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
//! use std::sync::Arc;
//! use tonnage_alloc::tonnage::Settings;
//! use tonnage_alloc::{PolicyError, SimConfig, SimDevice, StreamId};
//! use tonnage_runtime::Runtime;
//!
//! let device = SimDevice::new(SimConfig::with_total(1 << 30));
//! let runtime = Arc::new(Runtime::new(device, Settings::default()));
//! std::thread::scope(|scope| {
//!     for stream in 0..4 {
//!         let runtime = Arc::clone(&runtime);
//!         scope.spawn(move || {
//!             let mut front = runtime.front(StreamId(stream));
//!             for _ in 0..100 {
//!                 let block = front.alloc(3000)?;
//!                 front.free(block)?;
//!             }
//!             Ok::<(), PolicyError>(())
//!         });
//!     }
//! });
//! // The allocator itself was called once by each thread.
//! let statistics = runtime.statistics()?;
//! assert_eq!((statistics.served, statistics.allocated.now), (4, 0));
//! runtime.close()?;
//! # Ok::<(), PolicyError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod front;
mod lease;
mod pause;
mod search;
mod shelf;
mod spill;
mod sync;
mod tenant;

pub use front::{Block, Front, NotFreed};
pub use lease::{Lease, LeaseError, Leased, Recalls};
pub use pause::Kept;
pub use search::{CallbackId, Error, OutOfMemory, Tried};
pub use spill::Hold;
pub use tenant::Tenant;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;

use tonnage_alloc::tonnage::{
    Allocator, AllocatorPlan, BlockInfo, Events, Ring, Settings, Statistics,
};
use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{Device, DeviceAddr, Policy, PolicyError, Request, StreamId, Tag};

use pause::Saved;
use search::{Callbacks, Search};
use shelf::Shelf;
use spill::Spillable;
use sync::{Arc, Mutex, MutexGuard, Ordering, Visitor};

/// The tonnage allocator, for any number of threads.
///
/// A [`Block`] has one owner. It overlaps no other block and no address that [`alloc`](Self::alloc) gave and that was
/// not freed, whatever is called in whatever order: only the handle frees it. An address is a number that anyone can
/// copy, so a program that frees one twice may free a younger block of the same address; it never frees a [`Block`].
///
/// When the runtime is dropped, everything goes back to the device that no live block and no graph needs.
#[derive(Debug)]
pub struct Runtime<D: Device> {
    /// Its number among those of the process, which its blocks carry.
    id: u64,
    state: Mutex<State<D>>,
    /// The thread that is inside of [`with_device`](Self::with_device).
    visitor: Visitor,
    /// The blocks that each front keeps; see [`front`](Self::front).
    shelves: Mutex<Vec<Arc<Mutex<Shelf>>>>,
    /// Bytes that a front may keep.
    kept: u64,
    callbacks: Callbacks,
    /// Its share of a device that processes share, if there is one.
    lease: Mutex<Option<Arc<Lease>>>,
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
    _shelves: MutexGuard<'a, Vec<Arc<Mutex<Shelf>>>>,
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
    /// use tonnage_alloc::tonnage::{AllocatorPlan, PlannedBlock, Settings};
    /// use tonnage_alloc::{Request, SimConfig, SimDevice, StreamId};
    /// use tonnage_runtime::Runtime;
    ///
    /// let plan = AllocatorPlan::new(vec![], vec![vec![PlannedBlock::new(1 << 20, 0, 0)]])?;
    /// let device = SimDevice::new(SimConfig::with_total(64 << 20));
    /// let runtime = Runtime::with_plan(device, Settings::default(), &plan);
    /// for _ in 0..3 {
    ///     runtime.begin_step()?;
    ///     let block = runtime.alloc(Request::new(1 << 20, StreamId(0)))?;
    ///     runtime.free(block)?;
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
    /// use tonnage_alloc::tonnage::{EventKind, Ring, Settings};
    /// use tonnage_alloc::{PolicyError, Request, SimConfig, SimDevice, StreamId};
    /// use tonnage_runtime::Runtime;
    ///
    /// let device = SimDevice::new(SimConfig::with_total(64 << 20));
    /// let runtime = Runtime::keeping(device, Settings::default(), None, Ring::new(2));
    /// for _ in 0..10 {
    ///     let block = runtime.alloc(Request::new(3000, StreamId(0)))?;
    ///     runtime.free(block)?;
    /// }
    /// let last = runtime.events()?;
    /// assert_eq!(last.events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Alloc, EventKind::Free]);
    /// assert!(last.first > 18, "what was before them is counted");
    /// # Ok::<(), PolicyError>(())
    /// ```
    pub fn keeping(
        device: D,
        settings: Settings,
        plan: Option<&AllocatorPlan>,
        ring: Ring,
    ) -> Self {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let allocator = Allocator::observed(device, settings, plan, ring);
        let kept = (allocator.device().total() / shelf::SHARE).min(shelf::MOST);
        Self {
            id: CREATED.fetch_add(1, Ordering::Relaxed),
            visitor: Visitor::default(),
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
        }
    }

    /// The data behind the lock. A thread that panicked there may have left it in disorder: nothing is served then.
    fn lock(&self) -> Result<MutexGuard<'_, State<D>>, PolicyError> {
        if self.visitor.is_this_thread() {
            let reason = "the runtime was called inside of with_device, which has its lock: return from the closure first";
            return Err(PolicyError::Refused(reason.to_owned()));
        }
        let broken = "the allocator is broken: a thread panicked inside of it";
        let refused = |_| PolicyError::Refused(broken.to_owned());
        self.state.lock().map_err(refused)
    }

    /// Serves a request: the first byte of a block.
    ///
    /// If the allocator has no memory, what fronts keep is taken back; then functions of
    /// [`on_shortage`](Self::on_shortage) are called, tags that [may be spilled](Self::allow_spill) make way, and
    /// processes that share the device are queried. The request is made again after each of these.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory even so, or if the request cannot be served at all.
    #[inline]
    pub fn alloc(&self, request: Request) -> Result<DeviceAddr, Error> {
        self.serve(request, Allocator::attempt)
    }

    /// The same for a [`Block`].
    #[inline]
    fn alloc_owned(&self, request: Request) -> Result<DeviceAddr, Error> {
        self.serve(request, Allocator::attempt_owned)
    }

    #[inline]
    fn serve<F>(&self, request: Request, attempt: F) -> Result<DeviceAddr, Error>
    where
        F: Fn(&mut Allocator<D, Ring>, Request) -> Result<DeviceAddr, PolicyError>,
    {
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
        &self,
        request: Request,
        attempt: &dyn Fn(&mut State<D>) -> Result<DeviceAddr, PolicyError>,
    ) -> Result<DeviceAddr, Error> {
        let search = Search {
            runtime: self,
            request,
            resumes: false,
            attempt,
        };
        search.run()
    }

    /// Takes back what fronts keep; how many blocks there were. No lock is held while another one is taken.
    fn recall(&self) -> Result<usize, PolicyError> {
        // A block that is taken off a shelf must not be lost because the allocator cannot be reached.
        drop(self.lock()?);
        let shelves = sync::locked(&self.shelves).clone();
        let mut blocks = Vec::new();
        for shelf in shelves {
            blocks.append(&mut sync::locked(&shelf).take_all());
        }
        self.free_all(&blocks)?;
        Ok(blocks.len())
    }

    /// Takes back every one of the blocks that fronts kept, and reports the first failure.
    fn free_all(&self, blocks: &[DeviceAddr]) -> Result<(), PolicyError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let mut state = self.lock()?;
        let free = |result: Result<(), PolicyError>, &block| {
            let freed = state.allocator.free_owned(block);
            result.and(freed)
        };
        blocks.iter().fold(Ok(()), free)
    }

    /// A way in for one thread and one stream, that keeps small blocks so that most requests take no lock that
    /// another thread takes too. Its blocks count as allocated in [`statistics`](Self::statistics); when memory
    /// runs short it is taken back.
    pub fn front(self: &Arc<Self>, stream: StreamId) -> Front<D> {
        Front::new(Arc::clone(self), stream)
    }

    /// Bytes and number of the blocks that fronts keep.
    pub fn count_kept(&self) -> (u64, usize) {
        let shelves = sync::locked(&self.shelves).clone();
        let held = shelves.iter().map(|shelf| sync::locked(shelf).count_held());
        held.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1))
    }

    /// Takes a block of [`alloc`](Self::alloc) back. Its own stream may get it again at once, others when the work of
    /// that stream is done.
    ///
    /// # Errors
    /// If no live block starts there, or if it is a [`Block`], which only [`Front::free`] and
    /// [`free_block`](Self::free_block) take.
    pub fn free(&self, addr: DeviceAddr) -> Result<(), PolicyError> {
        self.lock()?.allocator.free(addr)
    }

    /// Takes back a block of a front, where no front is at hand.
    ///
    /// # Errors
    /// If the block is of another runtime, or this one is broken. The error has the block.
    pub fn free_block(&self, block: Block) -> Result<(), NotFreed> {
        let addr = block.addr();
        let of_this = block.check_runtime(self.id);
        let freed = of_this.and_then(|()| self.lock()?.allocator.free_owned(addr));
        match freed {
            Ok(()) => {
                block.refund();
                Ok(())
            }
            Err(error) => Err(NotFreed { block, error }),
        }
    }

    /// Reports that another stream uses a live block of [`alloc`](Self::alloc) too.
    ///
    /// # Errors
    /// If no live block starts there, or if it is a [`Block`], which [`Front::record_stream`] takes.
    pub fn record_stream(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), PolicyError> {
        self.lock()?.allocator.record_stream(addr, stream)
    }

    /// The program begins a step of what it repeats, for a runtime with a plan.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn begin_step(&self) -> Result<(), PolicyError> {
        self.lock()?.allocator.begin_step();
        Ok(())
    }

    /// A graph is captured from now on, or a private pool is open: until [`end_capture`](Self::end_capture) is called
    /// as often, no work is queried or waited for, and nothing is unmapped.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn begin_capture(&self) -> Result<(), PolicyError> {
        let mut state = self.lock()?;
        state.captures += 1;
        state.allocator.set_capturing(true);
        Ok(())
    }

    /// A capture has ended.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn end_capture(&self) -> Result<(), PolicyError> {
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
    pub fn release_pool(&self, pool: PoolId) -> Result<(), PolicyError> {
        self.lock()?.allocator.release_pool(pool)
    }

    /// Gives every page back that no live block needs, after waiting for the work that still uses it. Does nothing
    /// while a graph is captured.
    ///
    /// # Errors
    /// If the device fails; what was given back until then stays given back.
    pub fn empty_cache(&self) -> Result<(), PolicyError> {
        self.recall()?;
        self.lock()?.allocator.empty_cache(PoolId::DEFAULT)
    }

    /// Changes the limit of what may be reserved.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn set_limit(&self, bytes: Option<u64>) -> Result<(), PolicyError> {
        self.lock()?.allocator.set_limit(bytes);
        Ok(())
    }

    /// The present state and the counts so far. Every number is exact and of the same moment.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn statistics(&self) -> Result<Statistics, PolicyError> {
        Ok(self.lock()?.allocator.statistics())
    }

    /// The last events, of all threads. A request that a front serves from its blocks is not an event.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn events(&self) -> Result<Events, PolicyError> {
        Ok(self.lock()?.allocator.observer().read())
    }

    /// Every block and the last events, of the same moment.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn snapshot(&self) -> Result<Snapshot, PolicyError> {
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
    pub fn reset_peaks(&self) -> Result<(), PolicyError> {
        self.lock()?.allocator.reset_peaks();
        Ok(())
    }

    /// Bytes of the live block that starts at an address, slack included; `None` if there is none.
    ///
    /// # Errors
    /// If the runtime is broken.
    pub fn size_of(&self, addr: DeviceAddr) -> Result<Option<u64>, PolicyError> {
        Ok(self.lock()?.allocator.size_of(addr))
    }

    /// Does something with the device, while no thread is inside of the allocator. The closure must not take away what
    /// the allocator holds from the device. If it panics, so does this call, and the runtime goes on: the closure sees
    /// nothing of the allocator that it could leave half done.
    ///
    /// # Errors
    /// If the runtime is broken. Inside of the closure every call of this runtime on the same thread fails; other
    /// threads wait.
    pub fn with_device<T>(&self, act: impl FnOnce(&mut D) -> T) -> Result<T, PolicyError> {
        let mut state = self.lock()?;
        self.visitor.enter();
        let done = catch_unwind(AssertUnwindSafe(|| act(state.allocator.device_mut())));
        self.visitor.leave();
        // Before the panic goes on, which would mark the lock as broken.
        drop(state);
        done.map_or_else(|panic| resume_unwind(panic), Ok)
    }

    /// Takes every lock, so that no other thread is inside until the answer is dropped: for a fork, whose child would
    /// wait for a lock that a thread of the parent holds. Fronts have locks of their own that are not taken.
    pub fn lock_all(&self) -> Locked<'_, D> {
        Locked {
            _shelves: sync::locked(&self.shelves),
            _callbacks: self.callbacks.lock(),
            _lease: sync::locked(&self.lease),
            // A thread that forks inside of `with_device` has it.
            _state: (!self.visitor.is_this_thread()).then(|| sync::locked(&self.state)),
        }
    }

    /// Gives back everything that no live block needs, the addresses too.
    ///
    /// # Errors
    /// [`PolicyError::Live`] if blocks are live: how many, their bytes and their tags. Everything else was given back
    /// then, and the runtime goes on. Or if the device fails, or a graph is captured.
    pub fn close(&self) -> Result<(), PolicyError> {
        self.recall()?;
        let mut state = self.lock()?;
        state.allocator.close()?;
        match state.allocator.live() {
            live if live.blocks == 0 => Ok(()),
            live => Err(PolicyError::Live(Box::new(live))),
        }
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

impl<D: Device> Drop for Runtime<D> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Fronts are gone, since each holds the runtime. The allocator gives its memory back when it is dropped.
        if self.recall().is_err() {
            sync::locked(&self.state).allocator.abandon();
        }
    }
}
