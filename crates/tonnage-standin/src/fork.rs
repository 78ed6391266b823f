// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that are safe across a fork.
//!
//! A fork copies the memory as it is at that moment, and only the thread that
//! forks. A lock held by another thread would stay held in the child forever,
//! so the thread that forks takes all of them first. If it cannot get them
//! before a timeout (it may be inside this library, in a signal handler), it
//! goes on without, and the child records nothing and has no device.
//!
//! Every global lock of the library is a [`Lock`], and every global value that is
//! made once is a [`Lazy`]. Both register themselves here at their first use, with
//! what a child does to them; this file names no other.

use std::cell::RefCell;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a fork waits for the locks of other threads.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long it waits for one lock while it holds others.
const NESTED_TIMEOUT: Duration = Duration::from_millis(100);

/// Set in a child whose copy of our state cannot be used.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Which run this process is part of: 0 the one it was started in, 1 the one it joined as a variant.
static RUN_NUMBER: AtomicUsize = AtomicUsize::new(0);
/// Set in a fork server: what was counted before a fork belongs to each of its children.
static SERVER: AtomicBool = AtomicBool::new(false);

/// How many threads wait for all locks.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// Every registered lock. A fork holds the list, too: no lock comes to it meanwhile.
static LOCKS: Mutex<Vec<&'static dyn Hold>> = Mutex::new(Vec::new());

/// A lock that can be held across a fork.
trait Hold: Sync {
    /// Takes the lock if no thread has it.
    fn try_hold(&'static self) -> Option<Box<dyn Guard>>;
    /// Resets the data in a forked child, once the child no longer has the lock.
    fn forget_in_child(&self);
}

/// A lock that is held until this is dropped.
trait Guard {}

impl<T> Guard for MutexGuard<'static, T> {}

/// Everything that a fork holds. The locks are given back before the list.
struct Held {
    _guards: Vec<Box<dyn Guard>>,
    locks: MutexGuard<'static, Vec<&'static dyn Hold>>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// A global lock that no fork leaves held in the child.
pub(crate) struct Lock<T> {
    mutex: Mutex<T>,
    is_registered: AtomicBool,
    in_child: Option<fn()>,
}

impl<T: Send + 'static> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            is_registered: AtomicBool::new(false),
            in_child: None,
        }
    }

    /// A lock whose value is not that of a forked child, which calls `in_child` before anything else.
    pub(crate) const fn forgotten_in_child(value: T, in_child: fn()) -> Self {
        Self {
            mutex: Mutex::new(value),
            is_registered: AtomicBool::new(false),
            in_child: Some(in_child),
        }
    }

    /// Waits for the lock. A thread that panicked while it held the lock left a value that can be used.
    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.is_registered.load(Ordering::Acquire) {
            self.register();
        }
        if FORKING.load(Ordering::Relaxed) > 0 {
            // A thread that takes a lock again and again would leave no moment to a fork.
            std::thread::sleep(Duration::from_micros(100));
        }
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn register(&'static self) {
        static PREPARED: AtomicBool = AtomicBool::new(false);
        if !PREPARED.swap(true, Ordering::AcqRel) {
            // SAFETY: the handlers take and release locks, and end after a timeout at the latest.
            unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        }
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_registered.swap(true, Ordering::AcqRel) {
            locks.push(self);
        }
    }
}

impl<T: Send + 'static> Hold for Lock<T> {
    fn try_hold(&'static self) -> Option<Box<dyn Guard>> {
        try_lock(&self.mutex).map(|guard| Box::new(guard) as Box<dyn Guard>)
    }

    fn forget_in_child(&self) {
        if let Some(forget) = self.in_child {
            forget();
        }
    }
}

/// A global value that is made at its first use. A fork waits until it is made.
pub(crate) struct Lazy<T> {
    value: OnceLock<T>,
    making: Lock<()>,
}

impl<T: Send + Sync + 'static> Lazy<T> {
    pub(crate) const fn new() -> Self {
        Self {
            value: OnceLock::new(),
            making: Lock::new(()),
        }
    }

    /// The value, if it is made.
    pub(crate) fn get(&'static self) -> Option<&'static T> {
        self.value.get()
    }

    pub(crate) fn get_or_init(&'static self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.value.get() {
            return value;
        }
        let _making = self.making.lock();
        self.value.get_or_init(make)
    }
}

impl<T: Copy + Send + Sync + 'static> Lazy<T> {
    /// The same for a value that is looked up. The lookup may wait for another thread that loads a library, so no lock
    /// is held meanwhile: several threads may look, and the first answer is kept.
    pub(crate) fn get_or_find(&'static self, find: impl FnOnce() -> T) -> T {
        if let Some(value) = self.value.get() {
            return *value;
        }
        let found = find();
        *self.get_or_init(|| found)
    }

    /// The same for a value that may be there later.
    pub(crate) fn get_or_try_find(&'static self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let known = self.value.get().copied();
        known.or_else(|| find().map(|found| *self.get_or_init(|| found)))
    }
}

/// The lock, if no thread has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Which run this process is part of, as an index.
pub(crate) fn run_number() -> usize {
    RUN_NUMBER.load(Ordering::Relaxed)
}

/// Whether this process is a fork server, or a child of one that has not joined its run yet.
pub(crate) fn is_server() -> bool {
    SERVER.load(Ordering::Relaxed)
}

/// Makes this process a fork server.
pub(crate) fn become_server() {
    SERVER.store(true, Ordering::Relaxed);
}

/// Makes this child of a fork server a process of its second run.
pub(crate) fn join_second_run() {
    SERVER.store(false, Ordering::Relaxed);
    RUN_NUMBER.store(1, Ordering::Relaxed);
}

/// Whether this process was forked without the locks, so that its state cannot be used.
pub(crate) fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Whether none of our locks is held for long, neither by another thread nor by this one.
pub(crate) fn is_unlocked() -> bool {
    hold(Instant::now() + LOCK_TIMEOUT).is_some()
}

extern "C" fn before() {
    let _ = catch_unwind(|| {
        let held = hold(Instant::now() + LOCK_TIMEOUT);
        let _ = HELD.try_with(|slot| *slot.borrow_mut() = held);
    });
}

extern "C" fn in_parent() {
    let _ = catch_unwind(|| drop(take_held()));
}

extern "C" fn in_child() {
    let forgotten = catch_unwind(|| {
        let Some(held) = take_held() else {
            return false;
        };
        let locks = held.locks.clone();
        drop(held);
        for lock in locks {
            lock.forget_in_child();
        }
        true
    });
    if !forgotten.unwrap_or(false) {
        BROKEN.store(true, Ordering::Relaxed);
    }
}

fn take_held() -> Option<Held> {
    HELD.try_with(|slot| slot.borrow_mut().take())
        .ok()
        .flatten()
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

/// Takes every lock, or none if that did not work before the deadline.
///
/// Threads take locks in orders that are not known here. A lock that is not to be had for a while may belong to a
/// thread that waits for one that is held already: all are given back then, and the missing one is taken first the next
/// time.
fn hold(deadline: Instant) -> Option<Held> {
    FORKING.fetch_add(1, Ordering::Relaxed);
    let held = until(deadline, || {
        let mut locks = try_lock(&LOCKS)?;
        let mut guards = Vec::with_capacity(locks.len());
        let missing = locks.iter().position(|lock| {
            let guard = until(Instant::now() + NESTED_TIMEOUT, || lock.try_hold());
            guard.map(|guard| guards.push(guard)).is_none()
        });
        let Some(missing) = missing else {
            return Some(Held {
                _guards: guards,
                locks,
            });
        };
        drop(guards);
        locks[..=missing].rotate_right(1);
        None
    });
    FORKING.fetch_sub(1, Ordering::Relaxed);
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_locks_are_held_or_none_whatever_the_order_of_other_threads() {
        static FIRST: Lock<u32> = Lock::new(0);
        static SECOND: Lock<u32> = Lock::new(0);
        static ENDED: AtomicBool = AtomicBool::new(false);
        drop((FIRST.lock(), SECOND.lock()));
        let nested = std::thread::spawn(|| {
            while !ENDED.load(Ordering::Relaxed) {
                let mut first = FIRST.lock();
                *first += 1;
                std::thread::sleep(Duration::from_micros(50));
                *SECOND.lock() += 1;
            }
        });
        for _ in 0..200 {
            let held = hold(Instant::now() + LOCK_TIMEOUT).expect("no deadlock");
            assert!(FIRST.mutex.try_lock().is_err() && SECOND.mutex.try_lock().is_err());
            drop(held);
        }
        ENDED.store(true, Ordering::Relaxed);
        nested.join().unwrap();
        let second = SECOND.lock();
        assert!(hold(Instant::now()).is_none(), "one is held");
        assert!(FIRST.mutex.try_lock().is_ok(), "the others were given back");
        drop(second);
    }
}
