// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values that a dry run keeps, and which of them are known.
//!
//! Device memory is a range of addresses without memory behind it: pages come
//! into being only where something is written. A copy of up to the limit
//! (64 KiB unless set otherwise) carries its bytes, so that what a program
//! puts on the device it can read back. Beyond that, the Python hook computes
//! small operators and writes their results here. Memory that was never written reads as
//! zero.
//!
//! Each range has a [`State`]. Known bytes are what a GPU would hold. Drawn ones
//! are only an answer: something that was computed from unknown values, or that
//! a kernel has changed since. The state of an address is forgotten when
//! torch hands the address out anew, when something large is written over it,
//! or when it is freed.
//!
//! Known hole: a kernel that no operator of torch started (CUDA C, or one of
//! Triton that the hook does not compute) and that changes a value in place
//! leaves the old one here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::FileExt as _;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::costs;
use crate::ffi::guard;
use crate::fork::{Lazy, Lock};

const PAGE: u64 = 4096;
/// Host memory from this size on is zeroed page by page, where it is in use at all.
const LARGE: usize = 1 << 20;

/// Copies up to this size carry their values between two places on devices.
const DEVICE_LIMIT: usize = 256 << 20;

static LIMIT: AtomicUsize = AtomicUsize::new(64 << 10);

/// Host memory for values: beyond this the oldest are forgotten.
const MAX_PAGES: usize = (1 << 30) / PAGE as usize;

/// Memory whose state changes more often than this is not exchanged between ranks.
const MAX_SPANS: usize = 1024;

/// The state of a range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Nothing: it reads as zero.
    Unknown,
    /// It has bytes that an answer may be made of, but they are not those of a GPU.
    Drawn,
    /// It has the bytes that a GPU would have.
    Known,
}

/// A part of a range that is not unknown, by its distance from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Whether its bytes are those of a GPU; else they are drawn.
    pub(crate) known: bool,
}

/// Results of other ranks that are yet to be written to device memory.
pub(crate) trait Arrivals: Sync {
    /// The host reads a range: waits for what is yet to arrive in it.
    fn before_read(&self, address: u64, size: u64);
    /// An operator is to be computed from a range.
    fn before_use(&self, address: u64, size: u64);
    /// A range was written to: what is yet to arrive there comes to nothing.
    fn overwritten(&self, address: u64, size: u64);
    /// A kernel has changed a range unseen.
    fn doubted(&self, address: u64, size: u64);
    /// A range is copied to another: what is yet to arrive goes there, too.
    fn copied(&self, to: u64, from: u64, size: u64);
}

/// Set once this process is a rank; before it nothing can arrive.
static ARRIVALS: Lazy<&'static dyn Arrivals> = Lazy::new();

/// Sets the functions that are called before device memory is read and after it has changed.
pub(crate) fn set_arrivals(arrivals: &'static dyn Arrivals) {
    ARRIVALS.get_or_init(|| arrivals);
}

fn arrivals() -> Option<&'static dyn Arrivals> {
    ARRIVALS.get().copied()
}

struct Range {
    end: u64,
    state: State,
    /// When it was written: the oldest are forgotten first.
    written: u64,
}

pub(crate) struct Known {
    /// Ranges of device addresses that are mapped, as start and end.
    mapped: Vec<(u64, u64)>,
    /// Numbers of the pages that something was written to.
    pages: BTreeSet<u64>,
    /// By their start; they do not overlap, and none is unknown.
    ranges: BTreeMap<u64, Range>,
    writes: u64,
    /// Ranges that other processes have too, as start and end: what they write is not seen here.
    shared: Vec<(u64, u64)>,
}

static KNOWN: Lock<Known> = Lock::new(Known {
    mapped: Vec::new(),
    pages: BTreeSet::new(),
    ranges: BTreeMap::new(),
    writes: 0,
    shared: Vec::new(),
});

/// Marks an answer that is meant for a read of one byte.
const FOR_A_BYTE: u64 = 1 << 63;

/// Reads of single numbers that are not known, by threads on which the hook sees no operator: torch branches on them in
/// backward passes and steps of optimizers.
static UNSEEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The answers to small reads of unknown memory, in their order: set
    /// while an operator of torch runs that reads a count back.
    static ANSWERS: RefCell<VecDeque<u64>> = const { RefCell::new(VecDeque::new()) };
}

fn lock_known() -> MutexGuard<'static, Known> {
    KNOWN.lock()
}

/// Sets how large a copy may be to carry its values.
pub(crate) fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Maps a device's range of addresses, without memory behind it.
///
/// Where the system refuses (a limit on address space, strict overcommit) the
/// device simply keeps no values: all reads give zeros.
pub(crate) fn map_range(base: u64, span: u64) {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping at an address where nothing is (NOREPLACE), of
    // which no reference exists.
    let mapped = unsafe {
        libc::mmap(
            base as *mut libc::c_void,
            span as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if mapped as u64 != base {
        if mapped != libc::MAP_FAILED {
            // A kernel that does not know NOREPLACE takes the address for a wish.
            // SAFETY: the mapping just made, to which no reference exists.
            unsafe { libc::munmap(mapped, span as usize) };
        }
        return;
    }
    for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP] {
        // SAFETY: advice about the mapping just made.
        unsafe { libc::madvise(mapped, span as usize, advice) };
    }
    lock_known().mapped.push((base, base + span));
}

impl Known {
    fn is_mapped(&self, address: u64, size: u64) -> bool {
        let end = address.saturating_add(size);
        self.mapped
            .iter()
            .any(|&(start, stop)| start <= address && end <= stop)
    }

    fn pages(address: u64, size: u64) -> std::ops::Range<u64> {
        address / PAGE..address.saturating_add(size).div_ceil(PAGE)
    }

    /// Whether anything was written to the pages of this range.
    fn any_page(&self, address: u64, size: u64) -> bool {
        let pages = Self::pages(address, size);
        self.pages.range(pages).next().is_some()
    }

    /// The least that is known of any byte of a range.
    fn state(&self, address: u64, size: u64) -> State {
        let end = address.saturating_add(size);
        let mut least = State::Known;
        let mut at = address;
        let first = self.ranges.range(..=address).next_back();
        let rest = self.ranges.range(address + 1..end.max(address + 1));
        for (&start, range) in first.into_iter().chain(rest) {
            if range.end <= at {
                continue;
            }
            if start > at {
                return State::Unknown;
            }
            least = least.min(range.state);
            at = range.end;
            if at >= end {
                return least;
            }
        }
        State::Unknown
    }

    /// The parts of a range that are not unknown, by their distance from its start.
    fn spans(&self, address: u64, end: u64) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let first = self.ranges.range(..=address).next_back();
        let rest = self.ranges.range(address + 1..end.max(address + 1));
        for (&start, range) in first.into_iter().chain(rest) {
            let (start, stop) = (start.max(address), range.end.min(end));
            if start >= stop {
                continue;
            }
            let span = Span {
                start: (start - address) as usize,
                end: (stop - address) as usize,
                known: range.state == State::Known,
            };
            match spans.last_mut() {
                Some(last) if last.end == span.start && last.known == span.known => {
                    last.end = span.end;
                }
                _ => spans.push(span),
            }
        }
        spans
    }

    /// Takes a range out of the map of states, cutting what reaches beyond it.
    fn cut(&mut self, address: u64, end: u64) {
        if let Some((_, range)) = self.ranges.range_mut(..address).next_back()
            && range.end > address
        {
            let (old_end, state, written) = (range.end, range.state, range.written);
            range.end = address;
            if old_end > end {
                let tail = Range {
                    end: old_end,
                    state,
                    written,
                };
                self.ranges.insert(end, tail);
            }
        }
        while let Some((&start, _)) = self.ranges.range(address..end).next() {
            let Some(range) = self.ranges.remove(&start) else {
                break;
            };
            if range.end > end {
                self.ranges.insert(end, range);
            }
        }
    }

    /// Sets what is known of a range.
    fn set(&mut self, address: u64, size: u64, state: State) {
        let end = address.saturating_add(size);
        if size == 0 {
            return;
        }
        self.cut(address, end);
        if state != State::Unknown {
            self.writes += 1;
            let written = self.writes;
            let range = Range {
                end,
                state,
                written,
            };
            self.ranges.insert(address, range);
        }
        for index in 0..self.shared.len() {
            let (start, stop) = self.shared[index];
            let (start, stop) = (start.max(address), stop.min(end));
            if start < stop {
                self.doubt(start, stop - start);
            }
        }
    }

    /// Another process has a range too, from now on.
    fn share(&mut self, address: u64, size: u64) {
        let range = (address, address.saturating_add(size));
        if size > 0 && !self.shared.contains(&range) {
            self.shared.push(range);
        }
        self.doubt(address, size);
    }

    /// A range is this process's alone again, or not its own any more.
    fn unshare(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        self.shared
            .retain(|&(start, stop)| stop <= address || end <= start);
    }

    /// Bytes were written to a range.
    fn write(&mut self, address: u64, size: u64, state: State) {
        self.pages.extend(Self::pages(address, size));
        self.set(address, size, state);
        if self.pages.len() > MAX_PAGES {
            self.forget_oldest();
        }
    }

    /// Makes room: forgets the oldest ranges until a quarter of the pages is gone.
    fn forget_oldest(&mut self) {
        let mut oldest: Vec<(u64, u64, u64)> = self
            .ranges
            .iter()
            .map(|(&start, range)| (range.written, start, range.end))
            .collect();
        oldest.sort_unstable();
        for (_, start, end) in oldest {
            if self.pages.len() <= MAX_PAGES / 4 * 3 {
                break;
            }
            self.forget(start, end - start);
        }
    }

    /// A kernel has changed a range in a way that was not computed: the bytes stay as an answer.
    fn doubt(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        let mut inside: Vec<(u64, u64)> = Vec::new();
        if let Some((_, range)) = self.ranges.range(..address).next_back() {
            inside.push((address, range.end.min(end)));
        }
        for (&start, range) in self.ranges.range(address..end) {
            inside.push((start, range.end.min(end)));
        }
        for (start, stop) in inside {
            if start < stop && self.state(start, stop - start) == State::Known {
                self.set(start, stop - start, State::Drawn);
            }
        }
    }

    fn forget(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        self.cut(address, end);
        let touched: Vec<u64> = self
            .pages
            .range(Self::pages(address, size))
            .copied()
            .collect();
        for page in touched {
            let (start, stop) = ((page * PAGE).max(address), ((page + 1) * PAGE).min(end));
            if stop - start == PAGE {
                // SAFETY: a page of our own private mapping, read and written
                // only under the lock that is held here.
                unsafe {
                    libc::madvise(
                        start as *mut libc::c_void,
                        PAGE as usize,
                        libc::MADV_DONTNEED,
                    )
                };
                self.pages.remove(&page);
            } else {
                // SAFETY: inside a page that is marked, hence mapped.
                unsafe { std::ptr::write_bytes(start as *mut u8, 0, (stop - start) as usize) };
            }
        }
    }

    /// Copies between two ranges of device memory.
    ///
    /// # Safety
    /// No reference to memory of either range is in use. Other threads, those of Python too, may write there at the
    /// same time without this lock: the copy is then a mixture, as on a GPU.
    unsafe fn copy_on_device(&mut self, to: u64, from: u64, size: u64, small: bool) {
        let state = self.state(from, size);
        let zeros = !self.any_page(from, size);
        if !self.is_mapped(to, size) || !self.is_mapped(from, size) {
            self.forget(to, size);
        } else if zeros {
            self.forget(to, size);
            self.set(to, size, state);
        } else if small {
            // Bytes of unknown memory are zero, so copying them does no harm.
            // SAFETY: both are our own mapping, and may overlap; no references, as promised by the caller.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size as usize) };
            self.write(to, size, state);
        } else {
            self.forget(to, size);
        }
    }

    /// Copies a range of device memory to the host, where it has been zeroed: only pages that have bytes are read.
    ///
    /// # Safety
    /// `to` is `size` bytes of the host that may be written, and not memory of a device.
    unsafe fn copy_pages_to_host(&self, to: u64, from: u64, size: u64) {
        let end = from + size;
        for &page in self.pages.range(Self::pages(from, size)) {
            let (start, stop) = ((page * PAGE).max(from), ((page + 1) * PAGE).min(end));
            // SAFETY: the source is a page of our own mapping, the target inside
            // the host memory that the caller gave us to write.
            unsafe {
                std::ptr::copy(
                    start as *const u8,
                    (to + (start - from)) as *mut u8,
                    (stop - start) as usize,
                );
            };
        }
    }
}

fn overwrite(address: u64, size: u64) {
    if let Some(arrivals) = arrivals() {
        arrivals.overwritten(address, size);
    }
}

/// Forgets what is known of a range of device memory.
pub(crate) fn forget(address: u64, size: u64) {
    overwrite(address, size);
    lock_known().forget(address, size);
}

/// The size of what [`forget_page`] forgets.
pub(crate) const SCRATCH: u64 = PAGE;

/// Whether the values of a page are kept.
pub(crate) fn keeps_page(address: u64) -> bool {
    lock_known().is_mapped(address, PAGE)
}

/// Forgets what the hook's handshake wrote to a page that no program has.
pub(crate) fn forget_page(address: u64) {
    if address != 0 {
        lock_known().forget(address, PAGE);
    }
}

/// Another process has this range of device memory too: nothing in it is known any more, whatever is written here.
pub(crate) fn share(address: u64, size: u64) {
    lock_known().share(address, size);
}

/// This range of device memory is made anew, or is not there any more.
pub(crate) fn unshare(address: u64, size: u64) {
    let mut known = lock_known();
    if !known.shared.is_empty() {
        known.unshare(address, size);
    }
}

/// The bytes of a range of device memory, and the parts of it that are not unknown; `None` if there are none.
pub(crate) fn read(address: u64, size: usize) -> Option<(Vec<u8>, Vec<Span>)> {
    let known = lock_known();
    if size == 0 || !known.is_mapped(address, size as u64) {
        return None;
    }
    let spans = known.spans(address, address + size as u64);
    (!spans.is_empty() && spans.len() <= MAX_SPANS).then(|| {
        let mut bytes = Vec::with_capacity(size);
        // SAFETY: inside our own mapping, which stays mapped, into memory of our own. Python writes there without the
        // lock that is held here, so the bytes are copied and no reference is made to them: what is written meanwhile
        // is a mixture, as on a GPU.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), size);
            bytes.set_len(size);
        }
        (bytes, spans)
    })
}

/// Writes bytes to device memory that are known or drawn.
pub(crate) fn write(address: u64, bytes: &[u8], is_known: bool) {
    let mut known = lock_known();
    let size = bytes.len() as u64;
    if size == 0 || !known.is_mapped(address, size) {
        return;
    }
    // SAFETY: inside our own mapping, which is read and written under the lock that is held here.
    unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    let state = if is_known { State::Known } else { State::Drawn };
    known.write(address, size, state);
}

/// A place that is copied to or from.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub(crate) address: u64,
    pub(crate) is_device: bool,
}

/// Copies `size` bytes between any two places, as far as values are kept. `seen` is whether the hook sees the operators
/// of this thread.
///
/// # Safety
/// A side that is not on a device is host memory of `size` bytes, to be written and to be read.
pub(crate) unsafe fn copy(to: Side, from: Side, size: usize, seen: bool) {
    if size == 0 || to.address == 0 || from.address == 0 {
        return;
    }
    let (to_device, from_device) = (to.is_device, from.is_device);
    let (to, from) = (to.address, from.address);
    let small = size <= LIMIT.load(Ordering::Relaxed);
    // The hook keeps more than crosses from the host: a copy on the device does not lose it.
    let kept = small || size <= DEVICE_LIMIT;
    if let Some(arrivals) = arrivals() {
        match (to_device, from_device) {
            (true, true) => arrivals.copied(to, from, size as u64),
            (true, false) => arrivals.overwritten(to, size as u64),
            (false, true) => arrivals.before_read(from, size as u64),
            (false, false) => {}
        }
    }
    let mut known = lock_known();
    costs::copied(to_device, from_device, size);
    match (to_device, from_device) {
        // SAFETY: nothing here keeps a reference to device memory.
        (true, true) => unsafe { known.copy_on_device(to, from, size as u64, kept) },
        (true, false) => {
            if small && known.is_mapped(to, size as u64) {
                // SAFETY: the target is our own mapping, the source host memory
                // the caller gave us to read.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
                known.write(to, size as u64, State::Known);
            } else {
                known.forget(to, size as u64);
            }
        }
        (false, true) => {
            if size <= 8
                && known.state(from, size as u64) == State::Unknown
                && let Some(answer) = next_answer(size)
            {
                // SAFETY: host memory of this size that the caller gave us to write.
                unsafe {
                    std::ptr::copy(answer.to_le_bytes().as_ptr(), to as *mut u8, size);
                };
                return;
            }
            if is_unseen(size, known.state(from, size as u64), seen) {
                UNSEEN.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: host memory of this size that the caller gave us to write.
            unsafe {
                zero_host(to, size);
                known.copy_pages_to_host(to, from, size as u64);
            }
        }
        (false, false) => {
            drop(known);
            // SAFETY: host to host, as the caller requested; they may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
        }
    }
}

/// Whether a read to the host is of a number that is not known, where the hook does not see who reads it.
fn is_unseen(size: usize, state: State, seen: bool) -> bool {
    size <= 8 && state != State::Known && !seen
}

/// The answer of this thread to a small read of unknown memory, if one was prepared.
///
/// A byte is a check ("are all of them finite?") that comes before the count, and it is true, unless an answer for
/// bytes comes next (`FOR_A_BYTE`).
fn next_answer(size: usize) -> Option<u64> {
    // A thread that ends may copy after its variables are gone.
    let next = ANSWERS.try_with(|answers| {
        let mut answers = answers.borrow_mut();
        let for_a_byte = answers.front().is_some_and(|next| next & FOR_A_BYTE != 0);
        if size == 1 && !for_a_byte {
            answers.front().map(|_| 1)
        } else if for_a_byte && size != 1 {
            None
        } else {
            answers.pop_front()
        }
    });
    next.ok().flatten()
}

/// Fills `count` elements of device memory with `pattern`.
///
/// # Safety
/// If it is not on a device, it is host memory of this size, to be written.
pub(crate) unsafe fn fill(to: Side, pattern: &[u8], count: usize) {
    let Side {
        address: to,
        is_device,
    } = to;
    let Some(size) = count.checked_mul(pattern.len()) else {
        return;
    };
    overwrite(to, size as u64);
    let mut known = lock_known();
    let zero = pattern.iter().all(|&byte| byte == 0);
    if is_device {
        let mapped = known.is_mapped(to, size as u64);
        if zero || !mapped || size > LIMIT.load(Ordering::Relaxed) {
            known.forget(to, size as u64);
            if zero && mapped {
                known.set(to, size as u64, State::Known);
            }
            return;
        }
        known.write(to, size as u64, State::Known);
    }
    for element in 0..count {
        let at = to as usize + element * pattern.len();
        // SAFETY: device memory is our own mapping; host memory (pinned or
        // managed) is filled at the caller's request.
        unsafe {
            std::ptr::copy_nonoverlapping(pattern.as_ptr(), at as *mut u8, pattern.len());
        }
    }
}

/// Writes zeros to host memory without bringing unused pages to life.
///
/// `.cpu()` of a tensor of 10 GiB lands in fresh pages, which read as zero
/// already; writing them would cost the 10 GiB.
///
/// # Safety
/// `address` is `size` bytes of the host that may be written.
unsafe fn zero_host(address: u64, size: usize) {
    let zero = |start: u64, length: u64| {
        // SAFETY: inside the range that the caller gave us to write.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, length as usize) };
    };
    let end = address + size as u64;
    let (first, last) = (address.next_multiple_of(PAGE), end / PAGE * PAGE);
    let fresh = if size < LARGE {
        Vec::new()
    } else {
        fresh_pages(first..last)
    };
    let mut at = address;
    for pages in fresh {
        zero(at, pages.start - at);
        at = pages.end;
    }
    zero(at, end - at);
}

/// Ranges of pages that read as zero and have no memory yet, in order: those that a private mapping without a file has
/// neither in memory nor in swap. Pages of a file are not in memory either before they are first used. Where the system
/// has no such table, no page counts as fresh.
fn fresh_pages(pages: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    const WORD: u64 = 8;
    let Ok(table) = std::fs::File::open("/proc/self/pagemap") else {
        return Vec::new();
    };
    let mut fresh: Vec<std::ops::Range<u64>> = Vec::new();
    let mut entries = vec![0_u8; 32 << 10];
    let mut at = pages.start;
    while at < pages.end {
        let count = ((pages.end - at) / PAGE).min(entries.len() as u64 / WORD);
        let part = &mut entries[..(count * WORD) as usize];
        if table.read_exact_at(part, at / PAGE * WORD).is_err() {
            return Vec::new();
        }
        for entry in part.chunks_exact(WORD as usize) {
            let entry = u64::from_le_bytes(entry.try_into().unwrap_or([0xff; 8]));
            match fresh.last_mut() {
                _ if !is_absent(entry) => {}
                Some(last) if last.end == at => last.end += PAGE,
                _ => fresh.push(at..at + PAGE),
            }
            at += PAGE;
        }
    }
    if fresh.is_empty() {
        return fresh;
    }
    let private = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let private: Vec<_> = private.lines().filter_map(private_range).collect();
    let inside = |pages: &std::ops::Range<u64>| {
        private
            .iter()
            .filter_map(|range| {
                let part = range.start.max(pages.start)..range.end.min(pages.end);
                (part.start < part.end).then_some(part)
            })
            .collect::<Vec<_>>()
    };
    fresh.iter().flat_map(inside).collect()
}

/// Whether a page is neither in memory nor in swap, by its entry in the table of the process's pages.
fn is_absent(entry: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    entry & (PRESENT | SWAPPED) == 0
}

/// The addresses of a private mapping without a file, by its line in the list of mappings: addresses, rights, offset,
/// device and inode.
fn private_range(line: &str) -> Option<std::ops::Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_private = words.next()?.ends_with('p');
    let has_file = words.nth(2)? != "0";
    let number = |text| u64::from_str_radix(text, 16).ok();
    (is_private && !has_file).then_some(number(start)?..number(end)?)
}

/// The state of a range that is mapped, see [`tonnage_values_mark`]; `None` if it is not.
pub(crate) fn state(address: u64, size: u64) -> Option<u8> {
    let known = lock_known();
    let is_mapped = known.is_mapped(address, size);
    is_mapped.then(|| known.state(address, size) as u8)
}

/// An operator is to be computed from a range of device memory.
pub(crate) fn before_use(address: u64, size: u64) {
    if let Some(arrivals) = arrivals() {
        arrivals.before_use(address, size);
    }
}

// Queries and reports of the Python hook.

/// The hook has written to a range (1 drawn, 2 known), a kernel has changed it
/// unseen (0), or it was set to zero (3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_values_mark(address: u64, size: u64, state: u8) {
    guard((), || {
        match arrivals() {
            Some(arrivals) if state == 0 => arrivals.doubted(address, size),
            Some(arrivals) => arrivals.overwritten(address, size),
            None => {}
        }
        let mut known = lock_known();
        if !known.is_mapped(address, size) {
            return;
        }
        match state {
            0 => known.doubt(address, size),
            1 => known.write(address, size, State::Drawn),
            2 => known.write(address, size, State::Known),
            _ => {
                known.forget(address, size);
                known.set(address, size, State::Known);
            }
        }
    });
}

/// A range is given to another process, which may write to it unseen.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_values_share(address: u64, size: u64) {
    guard((), || share(address, size));
}

/// The mapped range that an address is in: its start, and its size in `size`; 0 if there is none.
///
/// # Safety
/// `size` points to a writable number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_values_range(address: u64, size: *mut u64) -> u64 {
    guard(0, || {
        let known = lock_known();
        let range = known
            .mapped
            .iter()
            .find(|&&(start, end)| (start..end).contains(&address));
        let Some(&(start, end)) = range else {
            return 0;
        };
        // SAFETY: promised by the caller.
        unsafe { *size = end - start };
        start
    })
}

/// The next small reads of unknown memory by this thread get these answers. How many earlier ones were not requested.
///
/// # Safety
/// `answers` points to `count` readable numbers, or `count` is 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_values_answer(answers: *const u64, count: usize) -> usize {
    guard(0, || {
        let next: VecDeque<u64> = (0..count)
            // SAFETY: promised by the caller.
            .map(|index| unsafe { answers.add(index).read_unaligned() })
            .collect();
        ANSWERS
            .try_with(|answers| answers.replace(next).len())
            .unwrap_or(0)
    })
}

/// How many single numbers that are not known were read where the hook sees no operator.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_values_unseen() -> u64 {
    UNSEEN.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPED: usize = 4 << 20;

    fn mapping(file: Option<&std::fs::File>) -> &'static mut [u8] {
        use std::os::fd::AsRawFd as _;
        let (kind, file) = file.map_or((libc::MAP_ANONYMOUS, -1), |file| (0, file.as_raw_fd()));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of this length, which is never unmapped.
        unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                MAPPED,
                access,
                libc::MAP_PRIVATE | kind,
                file,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(memory.cast(), MAPPED)
        }
    }

    fn zeroed(memory: &mut [u8]) -> bool {
        // SAFETY: memory of our own.
        unsafe { zero_host(memory.as_mut_ptr() as u64, memory.len()) };
        memory.iter().all(|&byte| byte == 0)
    }

    #[test]
    fn a_page_in_swap_is_not_absent() {
        assert!(is_absent(0));
        assert!(is_absent(1 << 55), "soft-dirty tells nothing of its place");
        assert!(!is_absent(1 << 63 | 0x1234));
        assert!(!is_absent(1 << 62 | 0x1234));
    }

    #[test]
    fn only_private_memory_without_a_file_is_fresh() {
        let range = |line| private_range(line);
        let line = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 ";
        assert_eq!(range(line), Some(0x7f00_0000_0000..0x7f00_0040_0000));
        assert!(range("5500-5600 rw-p 00000000 00:00 0    [heap]").is_some());
        assert_eq!(range("5500-5600 rw-p 00000000 fe:00 77 /data"), None);
        assert_eq!(
            range("5500-5600 rw-s 00000000 00:01 5 /dev/zero (deleted)"),
            None
        );
    }

    #[test]
    fn all_bytes_of_the_host_are_zero_afterwards_and_fresh_pages_stay_fresh() {
        let memory = mapping(None);
        let address = memory.as_ptr() as u64;
        let pages = address..address + MAPPED as u64;
        memory[3 * PAGE as usize] = 7;
        let fresh = [
            pages.start..pages.start + 3 * PAGE,
            pages.start + 4 * PAGE..pages.end,
        ];
        assert_eq!(fresh_pages(pages.clone()), fresh);
        // SAFETY: memory of our own.
        unsafe { zero_host(address, MAPPED) };
        assert_eq!(fresh_pages(pages), fresh);
        assert_eq!(memory[3 * PAGE as usize], 0);
    }

    #[test]
    fn bytes_that_were_paged_out_are_zero_afterwards() {
        let memory = mapping(None);
        memory.fill(7);
        // SAFETY: advice about memory of our own; without swap it changes nothing.
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), MAPPED, libc::MADV_PAGEOUT) };
        assert!(zeroed(memory));
    }

    #[test]
    fn bytes_of_a_file_that_are_not_in_memory_are_zero_afterwards() {
        use std::io::Write as _;
        use std::os::fd::AsRawFd as _;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; MAPPED]).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice about a file of our own.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert!(zeroed(mapping(Some(&file))));
    }

    #[test]
    fn memory_is_read_while_another_thread_writes_it() {
        const BASE: u64 = 0x0020_0000_0000;
        map_range(BASE, 1 << 20);
        write(BASE, &[1; 4096], true);
        let writer = std::thread::spawn(|| {
            for value in 0..2000_u32 {
                // SAFETY: inside the mapping; as the hook writes, without the lock.
                unsafe { std::ptr::write_bytes(BASE as *mut u8, value as u8, 4096) };
            }
        });
        while !writer.is_finished() {
            let (bytes, spans) = read(BASE, 4096).unwrap();
            assert_eq!((bytes.len(), spans.len()), (4096, 1));
        }
        writer.join().unwrap();
        assert_eq!(read(BASE, 4096).unwrap().0, [1999_u32 as u8; 4096]);
    }

    #[test]
    fn a_number_that_torch_reads_behind_the_hook_is_counted() {
        assert!(is_unseen(8, State::Unknown, false));
        assert!(is_unseen(1, State::Drawn, false));
        assert!(!is_unseen(8, State::Known, false), "it is that of a GPU");
        assert!(!is_unseen(8, State::Unknown, true), "the hook names it");
        assert!(
            !is_unseen(4096, State::Unknown, false),
            "data, not a number to decide by"
        );
    }

    fn nothing() -> Known {
        Known {
            mapped: Vec::new(),
            pages: BTreeSet::new(),
            ranges: BTreeMap::new(),
            writes: 0,
            shared: Vec::new(),
        }
    }

    #[test]
    fn a_range_is_known_as_far_as_its_least_known_byte() {
        let mut known = nothing();
        known.set(100, 50, State::Known);
        known.set(150, 50, State::Drawn);
        assert_eq!(known.state(100, 50), State::Known);
        assert_eq!(known.state(120, 60), State::Drawn);
        assert_eq!(known.state(120, 81), State::Unknown);
        assert_eq!(known.state(99, 2), State::Unknown);
        known.doubt(90, 30);
        assert_eq!(known.state(100, 20), State::Drawn);
        assert_eq!(known.state(120, 30), State::Known);
    }

    #[test]
    fn what_another_process_has_too_is_never_known() {
        let mut known = nothing();
        known.set(100, 50, State::Known);
        known.share(110, 20);
        assert_eq!(known.state(100, 10), State::Known);
        assert_eq!(known.state(110, 20), State::Drawn);
        known.set(100, 50, State::Known);
        assert_eq!(known.state(100, 10), State::Known);
        assert_eq!(
            known.state(110, 1),
            State::Drawn,
            "the other may have written since"
        );
        assert_eq!(known.state(130, 20), State::Known);
        known.unshare(105, 10);
        known.set(100, 50, State::Known);
        assert_eq!(known.state(100, 50), State::Known);
    }

    #[test]
    fn states_are_those_of_every_byte_by_itself() {
        const SIZE: u64 = 64;
        let mut known = nothing();
        let mut bytes = [State::Unknown; SIZE as usize];
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (seed >> 33) % SIZE;
            let size = 1 + (seed >> 41) % (SIZE - start);
            let part = &mut bytes[start as usize..(start + size) as usize];
            match (seed >> 57) % 4 {
                0 => {
                    known.cut(start, start + size);
                    part.fill(State::Unknown);
                }
                1 => {
                    known.doubt(start, size);
                    for byte in part {
                        *byte = (*byte).min(State::Drawn);
                    }
                }
                2 => {
                    known.set(start, size, State::Drawn);
                    part.fill(State::Drawn);
                }
                _ => {
                    known.set(start, size, State::Known);
                    part.fill(State::Known);
                }
            }
            let expected = bytes[start as usize..].iter().min().copied();
            assert_eq!(Some(known.state(start, SIZE - start)), expected);
            let mut found = [State::Unknown; SIZE as usize];
            for span in known.spans(start, SIZE) {
                let state = if span.known {
                    State::Known
                } else {
                    State::Drawn
                };
                found[start as usize + span.start..start as usize + span.end].fill(state);
            }
            assert_eq!(found[start as usize..], bytes[start as usize..]);
            let mut end = 0;
            for (&at, range) in &known.ranges {
                assert!(end <= at && at < range.end, "ranges do not overlap");
                end = range.end;
            }
        }
    }
}
