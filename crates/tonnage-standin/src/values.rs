// SPDX-License-Identifier: MIT OR Apache-2.0
//! The little data a dry run keeps.
//!
//! Device memory is a range of addresses without memory behind it: pages come
//! into being only where something small is written. A copy of up to the limit
//! (64 KiB unless told otherwise) carries its bytes, so that what a program
//! puts on the device it can read back; everything else is unknown and reads as
//! zero. What is known at an address is forgotten when torch hands the address
//! out anew, when something large is written over it, or when it is freed.
//!
//! Known hole: a kernel that changes a value in place leaves the old one here,
//! because what kernels write is not known.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ffi::Ptr;
use crate::{fork, machine};

const PAGE: u64 = 4096;
/// Host memory from this size on is zeroed page by page, where it is in use at all.
const LARGE: usize = 1 << 20;

static LIMIT: AtomicUsize = AtomicUsize::new(64 << 10);

pub(crate) struct Known {
    /// Ranges of device addresses that are mapped, as start and end.
    ranges: Vec<(u64, u64)>,
    /// Numbers of the pages that something was written to.
    pages: BTreeSet<u64>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    ranges: Vec::new(),
    pages: BTreeSet::new(),
});

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of this file, for a fork.
pub(crate) type Held = MutexGuard<'static, Known>;

pub(crate) fn try_hold() -> Option<Held> {
    fork::try_lock(&KNOWN)
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
    // which nobody holds a reference.
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
            // SAFETY: the mapping just made, of which nobody knows.
            unsafe { libc::munmap(mapped, span as usize) };
        }
        return;
    }
    for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP] {
        // SAFETY: advice about the mapping just made.
        unsafe { libc::madvise(mapped, span as usize, advice) };
    }
    known().ranges.push((base, base + span));
}

impl Known {
    fn is_mapped(&self, address: u64, size: usize) -> bool {
        let end = address.saturating_add(size as u64);
        self.ranges
            .iter()
            .any(|&(start, stop)| start <= address && end <= stop)
    }

    fn pages(address: u64, size: u64) -> std::ops::Range<u64> {
        address / PAGE..address.saturating_add(size).div_ceil(PAGE)
    }

    fn mark(&mut self, address: u64, size: usize) {
        self.pages.extend(Self::pages(address, size as u64));
    }

    fn any(&self, address: u64, size: usize) -> bool {
        let pages = Self::pages(address, size as u64);
        self.pages.range(pages).next().is_some()
    }

    fn forget(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
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
}

/// Forgets what is known of a range of device memory.
pub(crate) fn forget(address: u64, size: u64) {
    known().forget(address, size);
}

fn is_device(address: u64) -> bool {
    machine::machine().is_ok_and(|machine| machine.device_of(address).is_some())
}

/// Copies `size` bytes between any two places, as far as values are kept.
///
/// # Safety
/// What is not on a device is host memory of `size` bytes, to be written and to be read.
pub(crate) unsafe fn copy(to: Ptr, from: Ptr, size: usize) {
    if size == 0 || to.is_null() || from.is_null() {
        return;
    }
    let (to, from) = (to.0 as u64, from.0 as u64);
    let small = size <= LIMIT.load(Ordering::Relaxed);
    let mut known = known();
    match (is_device(to), is_device(from)) {
        (true, from_device) => {
            let source_known = !from_device || known.any(from, size);
            if small && source_known && known.is_mapped(to, size) {
                known.mark(to, size);
                // SAFETY: the target is our own mapping; the source is either
                // that too or host memory the caller gave us to read.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
            } else {
                known.forget(to, size as u64);
            }
        }
        (false, true) => {
            if small && known.any(from, size) && known.is_mapped(from, size) {
                // SAFETY: the source is our own mapping, the target host memory
                // the caller gave us to write.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
            } else {
                drop(known);
                zero_host(to, size);
            }
        }
        (false, false) => {
            drop(known);
            // SAFETY: host to host, as the caller asked; they may overlap.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
        }
    }
}

/// Fills `count` elements of device memory with `pattern`.
///
/// # Safety
/// If it is not on a device, it is host memory of this size, to be written.
pub(crate) unsafe fn fill(to: u64, pattern: &[u8], count: usize) {
    let Some(size) = count.checked_mul(pattern.len()) else {
        return;
    };
    let mut known = known();
    let zero = pattern.iter().all(|&byte| byte == 0);
    let device = is_device(to);
    if device && (zero || size > LIMIT.load(Ordering::Relaxed) || !known.is_mapped(to, size)) {
        known.forget(to, size as u64);
        return;
    }
    if device {
        known.mark(to, size);
    }
    for element in 0..count {
        let at = to as usize + element * pattern.len();
        // SAFETY: device memory is our own mapping; host memory (pinned or
        // managed) is what the caller asked to fill.
        unsafe {
            std::ptr::copy_nonoverlapping(pattern.as_ptr(), at as *mut u8, pattern.len());
        }
    }
}

/// Writes zeros to host memory without bringing unused pages to life.
///
/// `.cpu()` of a tensor of 10 GiB lands in fresh pages, which read as zero
/// already; writing them would cost the 10 GiB.
fn zero_host(address: u64, size: usize) {
    let zero = |start: u64, length: usize| {
        // SAFETY: inside the range that the caller gave us to write.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, length) };
    };
    if size < LARGE {
        return zero(address, size);
    }
    let end = address + size as u64;
    let (first, last) = (address.next_multiple_of(PAGE), end / PAGE * PAGE);
    zero(address, (first - address) as usize);
    zero(last, (end - last) as usize);
    let mut resident = [0_u8; 4096];
    let mut at = first;
    while at < last {
        let pages = ((last - at) / PAGE).min(resident.len() as u64);
        let length = (pages * PAGE) as usize;
        // SAFETY: asks about pages inside the caller's range; `resident` has a
        // byte for each of them.
        let answer =
            unsafe { libc::mincore(at as *mut libc::c_void, length, resident.as_mut_ptr()) };
        for page in 0..pages {
            if answer != 0 || resident[page as usize] & 1 != 0 {
                zero(at + page * PAGE, PAGE as usize);
            }
        }
        at += length as u64;
    }
}
