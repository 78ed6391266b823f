// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger between processes: who is there, and what each device has charged to all.
//!
//! A device is changed under its lock in the ledger, together with the accounts of
//! this process. So a request is decided on what all processes hold at that
//! moment, whatever the accounts make of it (rounding, shared pieces, pools), and
//! the figures after it are exact without a clock.
//!
//! A process that is killed may hold a lock or memory. A process that meets a lock
//! whose owner is dead takes it over and counts the device again; what a dead
//! process held is given back by the next process that looks at the device,
//! before it looks. A process is alive if it has a lock on a byte of
//! the file (see `tonnage_capture::ledger`), which is tied to a mapping that
//! neither a fork nor an exec carries along.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tonnage_capture::ledger::{
    DEVICES, DeviceWord, LOST_BEFORE_WORD, MAGIC, MAGIC_WORD, NUMBERED_WORD, PROCESSES,
    ProcessWord, SharedWord, TAKEN_WORD, UNPLACED_WORD, WORDS, device_word, process_word,
    shared_word, slot_byte,
};
use tonnage_capture::{LEDGER_FILE, RUN_VARIABLE};

use crate::files::OwnFile;
use crate::fork;
use crate::fork::{Lazy, Lock};

/// The owner in a device's lock; the rest of the word counts how often it was taken.
const OWNER: u64 = u32::MAX as u64;
const TAKING: u64 = 1 << 32;

/// In the place of a slot, for a process that looks for one.
const SEEKER: usize = PROCESSES;
/// Between two looks at what another process holds.
const WAIT: Duration = Duration::from_micros(50);

/// The file's byte reports whether the process of a slot is alive.
const BY_LOCK: u64 = 1;
/// Only the process id identifies it: the file system has no locks.
const BY_PID: u64 = 2;

/// This process's slot plus one; zero while it has none.
static SLOT: AtomicUsize = AtomicUsize::new(0);
/// The process that took it.
static SLOT_PID: AtomicU32 = AtomicU32::new(0);
/// Set once no slot was to be had.
static UNPLACED: AtomicBool = AtomicBool::new(false);
/// Held while a slot is taken, and around the descriptor for queries about others.
static CLAIM: Lock<Option<OwnFile>> = Lock::forgotten_in_child(None, forget_slot);

/// The bytes that a device has charged after a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Bytes charged to this process.
    pub(crate) own: u64,
    /// Bytes charged to all processes.
    pub(crate) in_use: u64,
}

/// The mapped file.
pub(crate) struct Ledger {
    words: &'static [AtomicU64; WORDS],
    path: PathBuf,
}

/// The folder of the run this process is part of, if it is part of one.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(RUN_VARIABLE).map(PathBuf::from)
}

/// The ledger of this process; the second is that of a variant, see [`crate::variant::tonnage_join`].
static LEDGERS: [Lazy<Option<Ledger>>; 2] = [const { Lazy::new() }; 2];

/// The ledger of the run; `None` outside a run, or where it cannot be written to.
pub(crate) fn ledger() -> Option<&'static Ledger> {
    LEDGERS[fork::run_number()]
        .get_or_init(Ledger::open)
        .as_ref()
}

/// A forked child has no slot yet.
pub(crate) fn forget_slot() {
    SLOT.store(0, Ordering::Relaxed);
    UNPLACED.store(false, Ordering::Relaxed);
}

/// This process's slot if it has one already, without a query to the system.
pub(crate) fn taken_slot() -> Option<usize> {
    SLOT.load(Ordering::Relaxed).checked_sub(1)
}

/// The process that the slot belongs to; this one, after [`Ledger::slot`] has answered.
pub(crate) fn slot_owner() -> u32 {
    SLOT_PID.load(Ordering::Relaxed)
}

impl Ledger {
    fn open() -> Option<Self> {
        let path = folder()?.join(LEDGER_FILE);
        let file = OwnFile::open(&path, OpenOptions::new().read(true).write(true)).ok()?;
        if std::fs::metadata(&path).ok()?.len() < (WORDS * 8) as u64 {
            return None;
        }
        let address = file.map(0, WORDS * 8).ok()?;
        // SAFETY: a shared mapping of a file that is long enough, kept for the
        // life of the process and accessed through atomics only.
        let words = unsafe { &*address.cast::<[AtomicU64; WORDS]>() };
        (words[MAGIC_WORD].load(Ordering::Relaxed) == MAGIC).then_some(Self { words, path })
    }

    fn shared(&self, device: usize, word: SharedWord) -> &'static AtomicU64 {
        &self.words[shared_word(device, word)]
    }

    pub(crate) fn process(&self, slot: usize, word: ProcessWord) -> &'static AtomicU64 {
        &self.words[process_word(slot, word)]
    }

    pub(crate) fn device(
        &self,
        slot: usize,
        device: usize,
        word: DeviceWord,
    ) -> &'static AtomicU64 {
        &self.words[device_word(slot, device, word)]
    }

    fn taken(&self) -> usize {
        let taken = self.words[TAKEN_WORD].load(Ordering::Acquire);
        usize::try_from(taken).unwrap_or(PROCESSES).min(PROCESSES)
    }

    /// The number of this process, which no other process of the run has.
    pub(crate) fn number(&self) -> Option<u64> {
        let slot = self.slot()?;
        self.process(slot, ProcessWord::Number)
            .load(Ordering::Relaxed)
            .checked_sub(1)
    }

    /// This process's slot, taken at its first use.
    pub(crate) fn slot(&self) -> Option<usize> {
        let pid = std::process::id();
        if let Some(slot) = taken_slot()
            && SLOT_PID.load(Ordering::Relaxed) == pid
        {
            return Some(slot);
        }
        let mut asking = CLAIM.lock();
        if SLOT_PID.load(Ordering::Relaxed) == pid {
            // Another thread was first, or there was none to be had.
            if let Some(slot) = taken_slot() {
                return Some(slot);
            }
            if UNPLACED.load(Ordering::Relaxed) {
                return None;
            }
        }
        SLOT_PID.store(pid, Ordering::Relaxed);
        let slot = self.claim(&mut asking);
        SLOT.store(slot.map_or(0, |slot| slot + 1), Ordering::Release);
        if slot.is_none() {
            UNPLACED.store(true, Ordering::Relaxed);
            self.words[UNPLACED_WORD].fetch_add(1, Ordering::Relaxed);
        }
        slot
    }

    fn open_again(&self) -> Option<OwnFile> {
        OwnFile::open(&self.path, OpenOptions::new().read(true).write(true)).ok()
    }

    /// Takes a slot: a fresh one if there is, else that of a dead process.
    fn claim(&self, asking: &mut Option<OwnFile>) -> Option<usize> {
        let file = self.open_again()?;
        let is_fresh = |slot: usize| {
            let number = self.process(slot, ProcessWord::Number);
            number.load(Ordering::Acquire) == 0
        };
        for slot in self.taken()..PROCESSES {
            match file.lock_byte(slot_byte(slot)) {
                Ok(true) if is_fresh(slot) => return self.move_in(slot, BY_LOCK, &file),
                Ok(true) => file.unlock_byte(slot_byte(slot)),
                Ok(false) => {}
                Err(_) => return self.claim_by_pid(&file),
            }
        }
        // One at a time looks for a slot of a dead process, under its own owner number.
        while !file.lock_byte(slot_byte(SEEKER)).ok()? {
            std::thread::sleep(WAIT);
        }
        for device in 0..DEVICES {
            let taken = self.take_lock(asking, SEEKER, device);
            self.reap(asking, SEEKER, device);
            self.give_lock(device, taken);
        }
        // First those of which all is on record, then those whose losses must be noted elsewhere.
        let lossy = |slot: &usize| {
            let lost = self.process(*slot, ProcessWord::Lost);
            lost.load(Ordering::Relaxed) > 0
        };
        let (lossy, whole): (Vec<usize>, Vec<usize>) = (0..PROCESSES).partition(lossy);
        let slot = whole.into_iter().chain(lossy).find(|&slot| {
            let byte = slot_byte(slot);
            let free = file.lock_byte(byte).unwrap_or(false);
            if free && !self.is_empty(slot) {
                // It died since: it is not this one's turn.
                file.unlock_byte(byte);
            }
            free && self.is_empty(slot)
        });
        file.unlock_byte(slot_byte(SEEKER));
        self.move_in(slot?, BY_LOCK, &file)
    }

    /// Takes a fresh slot where the file system knows no locks.
    fn claim_by_pid(&self, file: &OwnFile) -> Option<usize> {
        let pid = u64::from(std::process::id());
        let slot = (0..PROCESSES).find(|&slot| {
            let word = self.process(slot, ProcessWord::Pid);
            word.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        self.move_in(slot, BY_PID, file)
    }

    fn is_empty(&self, slot: usize) -> bool {
        (0..DEVICES).all(|device| {
            let charged = self.device(slot, device, DeviceWord::Charged);
            charged.load(Ordering::Acquire) == 0
        })
    }

    /// Makes `slot`, which no live process has, this process's.
    fn move_in(&self, slot: usize, liveness: u64, file: &OwnFile) -> Option<usize> {
        if liveness == BY_LOCK && !file.pin_until_exit() {
            file.unlock_byte(slot_byte(slot));
            return None;
        }
        let lost = self
            .process(slot, ProcessWord::Lost)
            .swap(0, Ordering::Relaxed);
        self.words[LOST_BEFORE_WORD].fetch_add(lost, Ordering::Relaxed);
        for device in 0..DEVICES {
            // A process that was killed in this slot may have held a lock, which is now ours.
            let lock = self.shared(device, SharedWord::Lock);
            let seen = lock.load(Ordering::Relaxed);
            let next = seen.wrapping_add(TAKING);
            if seen & OWNER == slot as u64 + 1
                && lock
                    .compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                self.count_again(device);
                self.give_lock(device, next);
            }
            for word in [
                DeviceWord::PeakCharged,
                DeviceWord::Allocated,
                DeviceWord::PeakAllocated,
                DeviceWord::Reserved,
                DeviceWord::PeakReserved,
                DeviceWord::Context,
                DeviceWord::Refusals,
            ] {
                self.device(slot, device, word).store(0, Ordering::Relaxed);
            }
        }
        for word in [
            ProcessWord::Launches,
            ProcessWord::TorchEvents,
            ProcessWord::FirstLost,
            ProcessWord::LostError,
        ] {
            self.process(slot, word).store(0, Ordering::Relaxed);
        }
        let pid = u64::from(std::process::id());
        self.process(slot, ProcessWord::Pid)
            .store(pid, Ordering::Relaxed);
        self.process(slot, ProcessWord::Liveness)
            .store(liveness, Ordering::Relaxed);
        let number = self.words[NUMBERED_WORD].fetch_add(1, Ordering::Relaxed);
        self.process(slot, ProcessWord::Number)
            .store(number + 1, Ordering::Release);
        self.words[TAKEN_WORD].fetch_max(slot as u64 + 1, Ordering::Release);
        Some(slot)
    }

    /// The slot of the process with this number, unless another has taken it since.
    fn slot_of(&self, number: u64) -> Option<usize> {
        (0..self.taken()).find(|&slot| {
            let word = self.process(slot, ProcessWord::Number);
            word.load(Ordering::Acquire) == number + 1
        })
    }

    /// Whether the process with this number is there still.
    pub(crate) fn is_there(&self, number: u64) -> bool {
        let mut asking = CLAIM.lock();
        let slot = self.slot_of(number);
        // A process cannot query its own state by its own lock.
        slot.is_some_and(|slot| taken_slot() == Some(slot) || self.alive(&mut asking, slot))
    }

    /// The process id of the process with this number.
    pub(crate) fn pid(&self, number: u64) -> Option<u32> {
        let pid = self.process(self.slot_of(number)?, ProcessWord::Pid);
        u32::try_from(pid.load(Ordering::Relaxed)).ok()
    }

    /// Whether the process of a slot is there.
    fn alive(&self, asking: &mut Option<OwnFile>, slot: usize) -> bool {
        let by_pid = slot < PROCESSES
            && self
                .process(slot, ProcessWord::Liveness)
                .load(Ordering::Relaxed)
                == BY_PID;
        if by_pid {
            let pid = self.process(slot, ProcessWord::Pid).load(Ordering::Relaxed);
            // SAFETY: signal 0 only queries whether the process is there.
            return unsafe { libc::kill((pid as u32).cast_signed(), 0) } == 0;
        }
        let ask = |file: &OwnFile| file.byte_is_locked(slot_byte(slot));
        if asking.as_ref().and_then(ask) == Some(true) {
            return true;
        }
        // Dead, or the program closed the descriptor and nothing was queried at all.
        if asking.as_ref().is_none_or(|file| !file.is_ours()) {
            *asking = self.open_again();
        }
        // A process that cannot be queried is taken for alive.
        asking.as_ref().and_then(ask).unwrap_or(true)
    }

    /// Counts the bytes that a device has charged to all, from the figures of each slot.
    fn count_again(&self, device: usize) {
        let sum = (0..PROCESSES)
            .map(|slot| {
                let charged = self.device(slot, device, DeviceWord::Charged);
                charged.load(Ordering::Relaxed)
            })
            .sum();
        self.shared(device, SharedWord::InUse)
            .store(sum, Ordering::Relaxed);
    }

    /// Takes a device's lock in the name of `slot`; returns the value of the lock at that time.
    fn take_lock(&self, asking: &mut Option<OwnFile>, slot: usize, device: usize) -> u64 {
        let lock = self.shared(device, SharedWord::Lock);
        let mut tries = 0_u32;
        loop {
            let seen = lock.load(Ordering::Relaxed);
            let owner = (seen & OWNER) as usize;
            let next = (seen & !OWNER).wrapping_add(TAKING) | (slot as u64 + 1);
            let dead = owner != 0 && tries > 200 && !self.alive(asking, owner - 1);
            // The count of takings distinguishes this owner from a later one in the same slot.
            let free = owner == 0 || dead;
            let take = |next| {
                lock.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            };
            if free && take(next) {
                if dead {
                    self.count_again(device);
                }
                return next;
            }
            tries = tries.saturating_add(1);
            match tries {
                ..=50 => std::hint::spin_loop(),
                51..=200 => std::thread::yield_now(),
                _ => std::thread::sleep(WAIT),
            }
        }
    }

    fn give_lock(&self, device: usize, taken: u64) {
        let lock = self.shared(device, SharedWord::Lock);
        lock.store(taken & !OWNER, Ordering::Release);
    }

    /// Gives back what dead processes held. The device's lock is held.
    fn reap(&self, asking: &mut Option<OwnFile>, mine: usize, device: usize) {
        for slot in (0..self.taken()).filter(|&slot| slot != mine) {
            let charged = self.device(slot, device, DeviceWord::Charged);
            let bytes = charged.load(Ordering::Relaxed);
            if bytes == 0 || self.alive(asking, slot) {
                continue;
            }
            for word in [
                DeviceWord::Charged,
                DeviceWord::Allocated,
                DeviceWord::Reserved,
            ] {
                self.device(slot, device, word).store(0, Ordering::Relaxed);
            }
            self.shared(device, SharedWord::InUse)
                .fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Locks a device for all processes of the run; `None` for a process without a slot.
    pub(crate) fn lock(&'static self, device: usize) -> Option<DeviceLock> {
        let slot = self.slot()?;
        let mut asking = CLAIM.lock();
        let taken = self.take_lock(&mut asking, slot, device);
        self.reap(&mut asking, slot, device);
        Some(DeviceLock {
            ledger: self,
            slot,
            device,
            taken,
            _asking: asking,
        })
    }

    /// Process id and bytes of every process that holds memory of a device.
    pub(crate) fn holders(&'static self, device: usize) -> Vec<(u32, u64)> {
        let Some(lock) = self.lock(device) else {
            return Vec::new();
        };
        let holders = (0..self.taken()).filter_map(|slot| {
            let charged = self.device(slot, device, DeviceWord::Charged);
            let bytes = charged.load(Ordering::Relaxed);
            let pid = self.process(slot, ProcessWord::Pid).load(Ordering::Relaxed);
            (bytes > 0).then_some((pid as u32, bytes))
        });
        let holders = holders.collect();
        drop(lock);
        holders
    }

    /// An entry of this process's recording could not be kept; `kept` were before it.
    pub(crate) fn lose(&self, kept: u64, error: i32) {
        let Some(slot) = self.slot() else { return };
        let first = |word, value| {
            let _ = self.process(slot, word).compare_exchange(
                0,
                value,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        };
        first(ProcessWord::LostError, u64::from(error.unsigned_abs()));
        first(ProcessWord::FirstLost, kept + 1);
        self.process(slot, ProcessWord::Lost)
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// A device that only this process may change, in all of the run.
pub(crate) struct DeviceLock {
    ledger: &'static Ledger,
    slot: usize,
    device: usize,
    taken: u64,
    _asking: MutexGuard<'static, Option<OwnFile>>,
}

impl DeviceLock {
    fn find_charge(&self) -> &'static AtomicU64 {
        let slot = self.slot;
        self.ledger.device(slot, self.device, DeviceWord::Charged)
    }

    /// Bytes charged to all processes.
    pub(crate) fn in_use(&self) -> u64 {
        let in_use = self.ledger.shared(self.device, SharedWord::InUse);
        in_use.load(Ordering::Relaxed)
    }

    /// Bytes charged to the other processes.
    pub(crate) fn outside(&self) -> u64 {
        self.in_use()
            .saturating_sub(self.find_charge().load(Ordering::Relaxed))
    }

    /// Sets what is charged to this process; what is then charged to all.
    pub(crate) fn set_own(&self, bytes: u64) -> u64 {
        let in_use = self.outside() + bytes;
        // The slot first: after a kill in between, the device is counted again from the slots.
        self.find_charge().store(bytes, Ordering::Relaxed);
        let shared = |word| self.ledger.shared(self.device, word);
        shared(SharedWord::InUse).store(in_use, Ordering::Relaxed);
        shared(SharedWord::PeakInUse).fetch_max(in_use, Ordering::Relaxed);
        self.ledger
            .device(self.slot, self.device, DeviceWord::PeakCharged)
            .fetch_max(bytes, Ordering::Relaxed);
        in_use
    }
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        self.ledger.give_lock(self.device, self.taken);
    }
}
