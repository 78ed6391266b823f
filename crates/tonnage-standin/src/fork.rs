// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to our state when the program forks.
//!
//! A fork copies the memory as it is at that moment, and only the thread that
//! forks. A lock held by another thread would stay held in the child forever,
//! so the thread that forks takes all of them first. If it cannot get them
//! before a timeout (it may be inside this library, in a signal handler), it
//! goes on without, and the child records nothing and has no device.
//!
//! A fork server is a process that has imported what a script imports and forks
//! a child for each variant of a job. Such a child joins a run of its own, with
//! devices that nobody has used: it is as if it had just been started.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

use crate::{exchange, ffi, holders, ledger, machine, recorder, torch, values};

/// How long a fork waits for the locks of other threads.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Set in a child whose copy of our state cannot be used.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Which run this process is part of: 0 the one it was started in, 1 the one it joined as a variant.
static RUN_NUMBER: AtomicUsize = AtomicUsize::new(0);
/// Set in a fork server: what was counted before a fork belongs to each of its children.
static SERVER: AtomicBool = AtomicBool::new(false);

/// Every lock that another thread may hold, in the order in which they are taken.
struct Held {
    _exchange: exchange::Held,
    _accounts: machine::Held,
    _owners: torch::Held,
    _holders: holders::Held,
    _recorder: recorder::Held,
    _claim: ledger::Held,
    _known: values::Held,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Whether this process was forked without the locks, so that its state cannot be used.
pub(crate) fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Which run this process is part of, as an index.
pub(crate) fn run_number() -> usize {
    RUN_NUMBER.load(Ordering::Relaxed)
}

/// Whether this process is a fork server, or a child of one that has not joined its run yet.
pub(crate) fn is_server() -> bool {
    SERVER.load(Ordering::Relaxed)
}

/// Makes this process a fork server: 0, or 1 if it has used a device already, which no child could take over.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_serve() -> i32 {
    ffi::guard(1, || {
        if machine::is_used() || is_broken() {
            return 1;
        }
        prepare_for_forks();
        SERVER.store(true, Ordering::Relaxed);
        0
    })
}

/// Makes this child of a fork server a process of the run that `TONNAGE_RUN` names now, as if it had been started with
/// these arguments, each with a zero byte at its end: 0, or 1 if it is too late for that.
///
/// # Safety
/// `arguments` points to `length` readable bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_join(arguments: *const u8, length: usize) -> i32 {
    ffi::guard(1, || {
        if !is_server() || machine::is_used() || is_broken() {
            return 1;
        }
        // SAFETY: promised by the caller.
        let arguments = unsafe { ffi::input_array(arguments, length) };
        SERVER.store(false, Ordering::Relaxed);
        RUN_NUMBER.store(1, Ordering::Relaxed);
        ledger::forget_slot();
        recorder::join(arguments);
        0
    })
}

/// Registers the fork handlers; called at the first use of anything that has state.
pub(crate) fn prepare_for_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers take and release locks, and end after a timeout at the latest.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    ffi::guard((), || {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let held = hold(deadline);
        let _ = HELD.try_with(|slot| *slot.borrow_mut() = held);
    });
}

extern "C" fn in_parent() {
    ffi::guard((), || drop(take_held()));
}

extern "C" fn in_child() {
    ffi::guard((), || {
        let Some(held) = take_held() else {
            BROKEN.store(true, Ordering::Relaxed);
            return;
        };
        drop(held);
        exchange::forget();
        ledger::forget_slot();
        recorder::forget_files();
        machine::note_fork();
    });
}

/// Whether none of our locks is held for long, neither by another thread nor by this one.
pub(crate) fn is_unlocked() -> bool {
    hold(Instant::now() + LOCK_TIMEOUT).is_some()
}

fn take_held() -> Option<Held> {
    let take = |slot: &RefCell<Option<Held>>| slot.borrow_mut().take();
    HELD.try_with(take).ok().flatten()
}

/// The lock, if no other thread holds it.
pub(crate) fn try_lock<T>(mutex: &'static Mutex<T>) -> Option<MutexGuard<'static, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tries until it works or the deadline has passed.
fn until<T>(deadline: Instant, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(held) = attempt() {
            return Some(held);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

fn hold(deadline: Instant) -> Option<Held> {
    until(deadline, || {
        (!ledger::is_opening() && !machine::is_opening()).then_some(())
    })?;
    Some(Held {
        _exchange: until(deadline, exchange::try_hold)?,
        _accounts: until(deadline, machine::try_hold)?,
        _owners: until(deadline, torch::try_hold)?,
        _holders: until(deadline, holders::try_hold)?,
        _recorder: until(deadline, recorder::try_hold)?,
        _claim: until(deadline, ledger::try_hold)?,
        _known: until(deadline, values::try_hold)?,
    })
}
