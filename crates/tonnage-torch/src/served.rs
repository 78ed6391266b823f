// SPDX-License-Identifier: MIT OR Apache-2.0
//! The allocator of this process: its device, its pools, and its error when
//! a request cannot be served.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tonnage_alloc::tonnage::{
    Allocator, AllocatorPlan, BlockState, EventKind, PlanError, Ring, SearchStep, Settings,
};
use tonnage_alloc::torch::PoolId;
use tonnage_alloc::{Device, DeviceAddr, Policy, Request, StreamId, Tag, round_up};
use tonnage_device_cuda::{Capture, CudaDevice};
use tonnage_runtime::{
    Error, Hold, Kept, Lease, Leased, Locked, OutOfMemory, RawBlock, Runtime, Snapshot,
};
use tonnage_text::bytes;

use crate::tags;
use crate::torch::{self, StreamFilter};

/// Why a call of PyTorch's is not served.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// There is no memory for it.
    OutOfMemory(String),
    /// Anything else.
    Other(String),
}

impl Failure {
    fn other(error: impl std::fmt::Display) -> Self {
        Self::Other(format!("tonnage: {error}"))
    }
}

/// The allocator of a device.
pub(crate) struct Served {
    device: i32,
    total: u64,
    page: u64,
    runtime: Runtime<Leased<CudaDevice>>,
    /// Its share of the device, if processes share it.
    lease: Option<Arc<Lease>>,
    pools: Mutex<Pools>,
    /// How many pools are open, so that most requests need not look.
    open: AtomicUsize,
    /// Frees of addresses that belong to no block.
    unknown_frees: AtomicU64,
    /// Whether this allocator was reported to a dry run.
    told: AtomicBool,
    told_of_pauses: AtomicBool,
    /// The limit of reserved bytes, and the part of the device that it is, as bits.
    limit: AtomicU64,
    fraction: AtomicU64,
    /// The memory that the program uses now and must not be spilled.
    holds: Mutex<Holds>,
}

type Holds = Vec<(Tag, Hold<Leased<CudaDevice>>)>;

#[derive(Default)]
struct Pools {
    /// Pools that requests go to now, with the streams they are for.
    open: Vec<(PoolId, StreamFilter)>,
    /// How often each was opened and not released.
    users: BTreeMap<PoolId, u32>,
}

static SERVED: OnceLock<Served> = OnceLock::new();

/// Held by the thread that makes it.
static STARTING: Mutex<()> = Mutex::new(());

/// Every lock of the plugin; made by [`lock_all`].
pub(crate) struct Locks {
    _starting: MutexGuard<'static, ()>,
    _early: MutexGuard<'static, Early>,
    _plan: MutexGuard<'static, Option<AllocatorPlan>>,
    _events: MutexGuard<'static, Option<usize>>,
    _served: Option<ServedLocks>,
    _names: MutexGuard<'static, Vec<String>>,
}

struct ServedLocks {
    _pools: MutexGuard<'static, Pools>,
    _holds: MutexGuard<'static, Holds>,
    _runtime: Locked<'static, Leased<CudaDevice>>,
}

/// Takes every lock, in the order in which others take more than one.
pub(crate) fn lock_all() -> Locks {
    Locks {
        _starting: STARTING.lock().unwrap_or_else(PoisonError::into_inner),
        _early: early(),
        _plan: PLAN.lock().unwrap_or_else(PoisonError::into_inner),
        _events: EVENTS.lock().unwrap_or_else(PoisonError::into_inner),
        _served: SERVED.get().map(|served| ServedLocks {
            _pools: served.pools(),
            _holds: served.holds(),
            _runtime: served.runtime.lock_all(),
        }),
        _names: tags::names(),
    }
}

/// The plan that the allocator is to follow.
static PLAN: Mutex<Option<AllocatorPlan>> = Mutex::new(None);

/// How many events are kept, if the program has set it.
static EVENTS: Mutex<Option<usize>> = Mutex::new(None);

/// The settings of the program before the first request: functions that free memory, tags that may be spilled, and
/// those that are held.
static EARLY: Mutex<Early> = Mutex::new(Early {
    callbacks: Vec::new(),
    spillable: Vec::new(),
    held: Vec::new(),
    share: None,
});

struct Early {
    callbacks: Vec<Callback>,
    spillable: Vec<Tag>,
    held: Vec<Tag>,
    share: Option<Share>,
}

/// The name and quota of a process on a device that processes share.
#[derive(Clone)]
pub(crate) struct Share {
    /// A folder for all devices and processes.
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) quota: u64,
}

impl Share {
    /// Takes the lease of a device.
    fn lease(&self, device: &CudaDevice) -> Result<Lease, Failure> {
        let uuid = device.uuid().map_err(Failure::other)?;
        let uuid = uuid.map(|byte| format!("{byte:02x}")).concat();
        let folder = self.folder.join(format!("gpu-{uuid}"));
        Lease::guaranteed(folder, device.total(), &self.name, self.quota).map_err(Failure::other)
    }
}

/// Holds this process to a quota on a device that processes share, before the first request.
pub(crate) fn share(share: Share) -> Result<(), Failure> {
    match served_or_early() {
        Ok(_) => Err(Failure::Other(
            "the quota comes too late: memory was requested already. Set it before the first tensor is put on the GPU"
                .to_owned(),
        )),
        Err(mut early) => {
            early.share = Some(share);
            Ok(())
        }
    }
}

/// A function of the program that gets the number of needed bytes, and answers with those that it freed.
pub(crate) type Callback = extern "C" fn(u64) -> u64;

fn early() -> MutexGuard<'static, Early> {
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator, or what is kept for it until there is one.
fn served_or_early() -> Result<&'static Served, MutexGuard<'static, Early>> {
    if let Some(served) = SERVED.get() {
        return Ok(served);
    }
    let early = early();
    // It may have been made while the lock was waited for, which the maker has.
    SERVED.get().ok_or(early)
}

/// Registers a function that is called when memory runs short.
pub(crate) fn on_shortage(callback: Callback) {
    match served_or_early() {
        Ok(served) => {
            served.runtime.on_shortage(move |bytes| callback(bytes));
        }
        Err(mut early) => early.callbacks.push(callback),
    }
}

/// Reports that what has a tag may be spilled when memory runs short.
pub(crate) fn allow_spill(tag: Tag) -> Result<(), Failure> {
    match served_or_early() {
        Ok(served) => served.allow_spill(tag),
        Err(mut early) => {
            early.spillable.push(tag);
            Ok(())
        }
    }
}

/// Brings back what was spilled of a tag and keeps it there, until [`unhold`] is called as often.
pub(crate) fn hold(tag: Tag) -> Result<(), Failure> {
    match served_or_early() {
        Ok(served) => served.hold(tag),
        Err(mut early) => {
            early.held.push(tag);
            Ok(())
        }
    }
}

/// One use of a tag less.
pub(crate) fn unhold(tag: Tag) {
    match served_or_early() {
        Ok(served) => served.unhold(tag),
        Err(mut early) => {
            let found = early.held.iter().position(|held| *held == tag);
            found.map(|place| early.held.swap_remove(place));
        }
    }
}

/// Reports how many events are kept, before the first request.
pub(crate) fn keep_events(count: usize) {
    *EVENTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(count);
}

/// Takes the text of a plan, before the first request.
pub(crate) fn set_plan(text: &str) -> Result<(), Failure> {
    if SERVED.get().is_some() {
        return Err(Failure::Other(
            "the plan comes too late: memory was requested already. Set it before the first tensor is put on the GPU"
                .to_owned(),
        ));
    }
    let plan = text.parse().map_err(|error: PlanError| {
        Failure::Other(format!("line {} is not understood", error.line.max(1)))
    })?;
    *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
    Ok(())
}

/// Whether PyTorch was given all functions, or only of `malloc` and `free`.
static COMPLETE: AtomicBool = AtomicBool::new(false);

/// PyTorch was given all functions.
pub(crate) fn complete() {
    COMPLETE.store(true, Ordering::Release);
}

/// The name of PyTorch's pool in the allocator: no pool of PyTorch's is the default pool.
fn pool_of(name: (u64, u64)) -> PoolId {
    // A pool whose name starts with a number other than 0 is for graphs; nothing is unmapped or waited for on its
    // behalf.
    PoolId(name.0 | 1 << 63, name.1)
}

impl Served {
    /// The allocator, if there was a request.
    pub(crate) fn existing() -> Option<&'static Self> {
        SERVED.get()
    }

    /// The allocator of a device; made by the first request.
    pub(crate) fn find_for(device: i32) -> Result<&'static Self, Failure> {
        let served = match SERVED.get() {
            Some(served) => served,
            None => Self::start(device)?,
        };
        if served.device == device {
            return Ok(served);
        }
        Err(Failure::other(format_args!(
            "memory on GPU {device} was requested, and this process uses tonnage's allocator on GPU {}. It serves one GPU \
             in a process. Start a process for each GPU (torchrun), or run without tonnage.torch.install().",
            served.device
        )))
    }

    #[cold]
    fn start(device: i32) -> Result<&'static Self, Failure> {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(served) = SERVED.get() {
            return Ok(served);
        }
        let cuda = torch::device(device).map_err(Failure::other)?;
        let (total, page) = (cuda.total(), cuda.granularity());
        let plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let events = *EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = events.map_or_else(Ring::default, Ring::new);
        let share = early().share.clone();
        let lease = share.map(|share| share.lease(&cuda).map(Arc::new));
        let lease = lease.transpose()?;
        let cuda = match &lease {
            Some(lease) => Leased::new(cuda, Arc::clone(lease)),
            None => Leased::alone(cuda),
        };
        let runtime = Runtime::keeping(cuda, Settings::default(), plan.as_ref(), ring);
        // A thread that names something meanwhile waits, and finds the allocator that is made here.
        let mut early = early();
        let served = SERVED.get_or_init(|| Self {
            device,
            total,
            page,
            runtime,
            lease,
            pools: Mutex::default(),
            open: AtomicUsize::new(0),
            unknown_frees: AtomicU64::new(0),
            told: AtomicBool::new(false),
            told_of_pauses: AtomicBool::new(false),
            limit: AtomicU64::new(u64::MAX),
            fraction: AtomicU64::new(1_f64.to_bits()),
            holds: Mutex::default(),
        });
        for callback in early.callbacks.drain(..) {
            served.runtime.on_shortage(move |bytes| callback(bytes));
        }
        for tag in early.spillable.drain(..) {
            served.allow_spill(tag)?;
        }
        for tag in early.held.drain(..) {
            served.hold(tag)?;
        }
        Ok(served)
    }

    fn tell_of_pauses(&self) {
        if !self.told_of_pauses.swap(true, Ordering::Relaxed) {
            torch::tell_dry_run_of_a_pause();
        }
    }

    fn allow_spill(&self, tag: Tag) -> Result<(), Failure> {
        self.tell_of_pauses();
        self.runtime.allow_spill(tag).map_err(Failure::other)
    }

    fn hold(&self, tag: Tag) -> Result<(), Failure> {
        let hold = self.runtime.hold(tag).map_err(|error| match error {
            Error::OutOfMemory(short) => Failure::OutOfMemory(format!(
                "CUDA out of memory. '{}' was spilled, and bringing it back needs {}: {} more are needed. It stays on the \
                 host.",
                tags::name(tag),
                bytes(short.shortage.requested),
                bytes(short.shortage.missing),
            )),
            error => Failure::other(error),
        })?;
        self.holds().push((tag, hold));
        Ok(())
    }

    fn unhold(&self, tag: Tag) {
        let mut holds = self.holds();
        let found = holds.iter().position(|(held, _)| *held == tag);
        let dropped = found.map(|place| holds.swap_remove(place));
        drop(holds);
        drop(dropped);
    }

    /// The device that is served.
    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every request goes to the default pool.
    #[inline]
    pub(crate) fn is_without_pools(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// The pool that requests of a stream go to. Filters are functions of C++ and may throw through this frame.
    pub(crate) fn pool_for(&self, stream: u64) -> PoolId {
        if self.is_without_pools() {
            return PoolId::DEFAULT;
        }
        let pools = self.pools();
        let mut open = pools.open.iter().rev();
        let found = open.find(|(_, filter)| filter.accepts(stream));
        found.map_or(PoolId::DEFAULT, |(pool, _)| *pool)
    }

    /// The address of a block.
    pub(crate) fn malloc(&self, bytes: u64, stream: u64, pool: PoolId) -> Result<u64, Failure> {
        let request = Request::new(bytes, StreamId(stream)).tagged(tags::current());
        let request = request.in_pool(pool);
        if !COMPLETE.load(Ordering::Acquire) {
            self.refuse_capture(stream)?;
        }
        // PyTorch's own allocator reports under its lock, too: no other thread can be given the block before that.
        let report = |block: RawBlock| {
            if !self.told.load(Ordering::Relaxed) {
                self.told.store(true, Ordering::Relaxed);
                torch::tell_dry_run(block.addr.0);
            }
            self.report(block, block.size as i64);
        };
        match self.runtime.alloc_raw_with(request, report) {
            Ok(block) => Ok(block.0),
            Err(Error::OutOfMemory(short) | Error::TooLarge(short)) => {
                let now = self.runtime.statistics().map_err(Failure::other)?;
                let (live, held) = (now.allocated.now, now.reserved.now);
                let requested = short.shortage.requested;
                let free = short.shortage.device_free;
                let rounded = round_up(requested, Allocator::<CudaDevice>::ALIGNMENT);
                let rounded = rounded.unwrap_or(requested);
                torch::report_out_of_memory(rounded, free, live, held, self.device);
                Err(Failure::OutOfMemory(self.explain(&short)))
            }
            Err(error) => Err(Failure::other(error)),
        }
    }

    /// A graph uses memory again after it was freed. Where PyTorch does not report what belongs to a graph, its memory
    /// would be given to others.
    fn refuse_capture(&self, stream: u64) -> Result<(), Failure> {
        let capture = self
            .runtime
            .with_device(|device| device.inner().capture(StreamId(stream)));
        match capture {
            Ok(Ok(Capture::None)) => Ok(()),
            Ok(Ok(_)) => Err(Failure::other(
                "a CUDA graph is captured, and PyTorch was given only tonnage_malloc and tonnage_free. Use \
                 tonnage.torch.install(), which passes it the functions for graphs.",
            )),
            Ok(Err(error)) => Err(Failure::other(error)),
            Err(error) => Err(Failure::other(error)),
        }
    }

    /// Reports to PyTorch's profiler that a block was handed out, or taken back with a negative size.
    #[inline]
    fn report(&self, block: RawBlock, change: i64) {
        let RawBlock {
            addr,
            allocated,
            reserved,
            ..
        } = block;
        torch::report(addr.0, change, allocated, reserved, self.device);
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The address is one of [`malloc`](Self::malloc) that was not freed since, or of no block of ours.
    #[expect(unsafe_code, reason = "PyTorch promises the same to every allocator")]
    pub(crate) unsafe fn free(&self, address: u64) {
        let report = |block: RawBlock| self.report(block, -(block.size as i64));
        // SAFETY: promised by the caller.
        let freed = unsafe { self.runtime.free_raw_with(DeviceAddr(address), report) };
        if freed.is_err() {
            self.note_failed_free();
        }
    }

    /// Counts a free that failed. PyTorch frees in destructors, where nothing can be raised.
    pub(crate) fn note_failed_free(&self) {
        self.unknown_frees.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a stream uses a block. A block that is not ours is handled by its own allocator.
    pub(crate) fn record_stream(&self, address: u64, stream: u64) -> Result<(), Failure> {
        let named = self
            .runtime
            .record_stream_raw(DeviceAddr(address), StreamId(stream));
        match named {
            Ok(()) | Err(Error::UnknownAddress(_)) => Ok(()),
            Err(error) => Err(Failure::other(error)),
        }
    }

    /// Requests of streams that the filter accepts go to a pool from now on.
    pub(crate) fn begin_pool(&self, name: (u64, u64), filter: StreamFilter) -> Result<(), Failure> {
        let pool = pool_of(name);
        self.runtime.begin_capture().map_err(Failure::other)?;
        let mut pools = self.pools();
        *pools.users.entry(pool).or_default() += 1;
        pools.open.push((pool, filter));
        self.open.store(pools.open.len(), Ordering::Release);
        Ok(())
    }

    /// Requests go to this pool no more.
    pub(crate) fn end_pool(&self, name: (u64, u64)) -> Result<(), Failure> {
        let pool = pool_of(name);
        let mut pools = self.pools();
        let Some(last) = pools.open.iter().rposition(|(open, _)| *open == pool) else {
            return Ok(());
        };
        let closed = pools.open.remove(last);
        self.open.store(pools.open.len(), Ordering::Release);
        drop(pools);
        drop(closed);
        self.runtime.end_capture().map_err(Failure::other)
    }

    /// One user of a pool less; without users its memory is like any other.
    pub(crate) fn release_pool(&self, name: (u64, u64)) -> Result<(), Failure> {
        let pool = pool_of(name);
        let mut pools = self.pools();
        let Some(users) = pools.users.get_mut(&pool) else {
            return Ok(());
        };
        *users -= 1;
        if *users > 0 {
            return Ok(());
        }
        pools.users.remove(&pool);
        match self.runtime.release_pool(pool) {
            // A pool from which nothing was ever requested.
            Ok(()) | Err(Error::Refused(_)) => Ok(()),
            Err(error) => Err(Failure::other(error)),
        }
    }

    /// Gives the memory of a tag's blocks back; how many bytes.
    pub(crate) fn pause(&self, tag: Tag, kept: Kept) -> Result<u64, Failure> {
        self.tell_of_pauses();
        self.runtime.pause(tag, kept).map_err(Failure::other)
    }

    /// Brings memory back to a tag's blocks; how many bytes.
    pub(crate) fn resume(&self, tag: Tag) -> Result<u64, Failure> {
        match self.runtime.resume(tag) {
            Ok(bytes) => Ok(bytes),
            Err(Error::Resume { needed, free }) => Err(Failure::OutOfMemory(format!(
                "CUDA out of memory. Resuming '{}' needs {}, and {} of GPU {} can be had for it: {} more are needed. It \
                     stays paused.",
                tags::name(tag),
                bytes(needed),
                bytes(free),
                self.device,
                bytes(needed.saturating_sub(free)),
            ))),
            Err(error) => Err(Failure::other(error)),
        }
    }

    /// The program begins a step.
    pub(crate) fn begin_step(&self) -> Result<(), Failure> {
        self.runtime.begin_step().map_err(Failure::other)
    }

    pub(crate) fn empty_cache(&self) -> Result<(), Failure> {
        self.runtime.empty_cache().map_err(Failure::other)
    }

    /// Limits what is reserved to a part of the device.
    pub(crate) fn set_fraction(&self, fraction: f64) -> Result<(), Failure> {
        #[expect(clippy::cast_sign_loss, reason = "a fraction is not negative")]
        let limit = (self.total as f64 * fraction.clamp(0.0, 1.0)) as u64;
        self.runtime
            .set_limit(Some(limit))
            .map_err(Failure::other)?;
        self.limit.store(limit, Ordering::Relaxed);
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// The part of the device that may be reserved.
    pub(crate) fn fraction(&self) -> f64 {
        f64::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    pub(crate) fn reset_peaks(&self) -> Result<(), Failure> {
        self.runtime.reset_peaks().map_err(Failure::other)
    }

    /// Every block and the last events, as numbers; see `tonnage_snapshot`.
    pub(crate) fn snapshot(&self) -> Result<Vec<u64>, Failure> {
        let Snapshot { blocks, events, .. } = self.runtime.snapshot().map_err(Failure::other)?;
        let kind = |kind| EventKind::ALL.iter().position(|known| *known == kind);
        let mut numbers = vec![blocks.len() as u64, events.events.len() as u64];
        for block in &blocks {
            let state = match block.state {
                BlockState::Used => 0,
                BlockState::Pending => 1,
                _ => 2,
            };
            let stream = block.stream.unwrap_or_default().0;
            numbers.extend([block.addr.0, block.bytes, block.requested, state, stream]);
        }
        for (number, event) in (events.first..).zip(&events.events) {
            let kind = kind(event.kind).unwrap_or(EventKind::ALL.len()) as u64;
            numbers.extend([number, kind, event.addr.0, event.bytes, event.stream.0]);
        }
        Ok(numbers)
    }

    /// The values of [`NAMES`], in its order.
    pub(crate) fn statistics(&self) -> Result<[u64; NAMES.len()], Failure> {
        let now = self.runtime.statistics().map_err(Failure::other)?;
        let plan = now.plan.unwrap_or_default();
        Ok([
            now.requested.now,
            now.requested.peak,
            now.requested.recent_peak,
            now.allocated.now,
            now.allocated.peak,
            now.allocated.recent_peak,
            now.reserved.now,
            now.reserved.peak,
            now.reserved.recent_peak,
            now.paused,
            self.runtime.kept_on_host().map_err(Failure::other)?,
            now.blocks,
            now.pending,
            now.served,
            now.refused,
            now.misses,
            now.pages_created,
            now.pages_released,
            now.pages_moved,
            now.events_recorded,
            now.waits,
            now.retries,
            self.page,
            self.unknown_frees.load(Ordering::Relaxed),
            plan.hits,
            plan.unknown,
            plan.occupied,
            plan.steps,
            now.search_steps.tried(SearchStep::Callbacks),
            now.search_steps.tried(SearchStep::Spill),
            now.search_steps.helped(SearchStep::Callbacks),
            now.search_steps.helped(SearchStep::Spill),
            now.requested_ever,
            now.allocated_ever,
            now.blocks_recent_peak,
        ])
    }

    /// The message of an out-of-memory error. It begins as PyTorch's does, because programs look for that.
    fn explain(&self, short: &OutOfMemory) -> String {
        let there = &short.shortage;
        let mut text = format!(
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is free. tonnage's \
             allocator holds {} in this process, {} of it in live blocks and {} in partly used pages or for streams and \
             graphs that still use it; the largest free piece has {}.",
            bytes(there.requested),
            self.device,
            bytes(self.total),
            bytes(there.device_free),
            bytes(there.reserved),
            bytes(there.live),
            bytes(there.reserved.saturating_sub(there.live)),
            bytes(there.largest),
        );
        if there.missing > 0 {
            let _ = write!(text, " {} more are needed.", bytes(there.missing));
        }
        let limit = self.limit.load(Ordering::Relaxed);
        if limit < self.total {
            let _ = write!(
                text,
                " torch.cuda.set_per_process_memory_fraction limits it to {}.",
                bytes(limit)
            );
        }
        if let Some(lease) = &self.lease {
            let (name, used, quota) = (lease.name(), bytes(lease.used()), bytes(lease.quota()));
            let process = std::process::id();
            let _ = write!(
                text,
                " This process, '{name}' ({process}), holds {used} of its quota of {quota}."
            );
            for other in lease.others().unwrap_or_default() {
                let _ = write!(text, " {other}.");
            }
        }
        if there.capturing {
            text += " A graph is captured, so nothing was waited for and no page was moved.";
        }
        for tried in &short.tried {
            let name = tried.tag.map(tags::name).unwrap_or_default();
            let gave = bytes(tried.gave);
            let _ = match (tried.step, tried.gave) {
                (SearchStep::Callbacks, 0) => write!(text, " Callbacks freed nothing."),
                (SearchStep::Callbacks, _) => {
                    write!(text, " Callbacks report that they freed {gave}.")
                }
                (SearchStep::Spill, 0) if there.capturing => Ok(()),
                (SearchStep::Spill, 0) if tried.tag.is_none() => {
                    write!(text, " Spilling what no thread holds is not enough.")
                }
                (SearchStep::Spill, 0) => write!(text, " '{name}' is in use and was not spilled."),
                (SearchStep::Spill, _) => write!(text, " '{name}' was spilled: {gave}."),
                _ => Ok(()),
            };
        }
        let helps = |bytes: u64| bytes > 0 && bytes >= there.missing;
        for tag in there.tags.iter().filter(|tag| helps(tag.pausable)) {
            let (name, bytes) = (tags::name(tag.tag), bytes(tag.pausable));
            let _ = write!(text, " Pausing '{name}' would give {bytes}.");
        }
        if there.private > 0 {
            let _ = write!(
                text,
                " {} are free in the pools of CUDA graphs.",
                bytes(there.private)
            );
        }
        text
    }
}

/// The statistics that a plugin reports, in order.
pub(crate) const NAMES: [&str; 35] = [
    "requested_bytes.current",
    "requested_bytes.peak_ever",
    "requested_bytes.peak",
    "allocated_bytes.current",
    "allocated_bytes.peak_ever",
    "allocated_bytes.peak",
    "reserved_bytes.current",
    "reserved_bytes.peak_ever",
    "reserved_bytes.peak",
    "paused_bytes",
    "paused_bytes_kept_on_host",
    "blocks",
    "blocks_waiting_for_streams",
    "requests_served",
    "requests_refused",
    "requests_without_a_free_block",
    "pages_obtained",
    "pages_given_back",
    "pages_moved",
    "events_recorded",
    "waits",
    "retries",
    "page_bytes",
    "unknown_frees",
    "requests_at_planned_places",
    "requests_not_in_plan",
    "requests_whose_place_was_taken",
    "steps",
    "callbacks_called",
    "tags_spilled",
    "requests_served_after_a_callback",
    "requests_served_after_a_spill",
    "requested_bytes.total",
    "allocated_bytes.total",
    "blocks.peak",
];
