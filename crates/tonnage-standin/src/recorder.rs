// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process tells `tonnage run`: its log and its slot in the ledger.
//!
//! Recording never changes the outcome of the user's run: what cannot be
//! written is not written, and the call it belongs to goes on.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tonnage_alloc::SimDevice;
use tonnage_capture::blocks::{self, Block, Entry, Note, NoteKind};
use tonnage_capture::ledger::{
    DeviceWord, MAGIC, MAGIC_WORD, PROCESSES, ProcessWord, TAKEN_WORD, WORDS, device_word,
    process_word,
};
use tonnage_capture::log::{DriverCall, Record, Start, encode, encode_call};
use tonnage_capture::{CONFIG_FILE, LEDGER_FILE, LOG_PREFIX, RUN_VARIABLE, RunConfig};

use crate::exports::NAMES;
use crate::ffi::UNMODELLED;
use crate::machine;

/// The log of the process that opened it; a forked child opens its own.
static LOG: Mutex<Option<(u32, File)>> = Mutex::new(None);
static LEDGER: OnceLock<Option<&'static [AtomicU64; WORDS]>> = OnceLock::new();
/// This process's slot, plus one; zero while it has none.
static SLOT: AtomicUsize = AtomicUsize::new(0);

fn folder() -> Option<PathBuf> {
    std::env::var_os(RUN_VARIABLE).map(PathBuf::from)
}

/// The configuration of the run this process is part of, if it is part of one.
pub(crate) fn read_config() -> Option<RunConfig> {
    let bytes = std::fs::read(folder()?.join(CONFIG_FILE)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn ledger() -> Option<&'static [AtomicU64; WORDS]> {
    *LEDGER.get_or_init(|| {
        let path = folder()?.join(LEDGER_FILE);
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        if file.metadata().ok()?.len() < (WORDS * 8) as u64 {
            return None;
        }
        // SAFETY: a shared mapping of a file that is long enough, kept for the
        // life of the process and accessed through atomics only.
        let words = unsafe {
            let address = libc::mmap(
                std::ptr::null_mut(),
                WORDS * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if address == libc::MAP_FAILED {
                return None;
            }
            &*address.cast::<[AtomicU64; WORDS]>()
        };
        (words[MAGIC_WORD].load(Ordering::Relaxed) == MAGIC).then_some(words)
    })
}

/// This process's slot, taken at its first use.
fn slot(words: &[AtomicU64; WORDS]) -> Option<usize> {
    let pid = u64::from(std::process::id());
    let owned =
        |slot: usize| words[process_word(slot, ProcessWord::Pid)].load(Ordering::Relaxed) == pid;
    if let Some(slot) = SLOT.load(Ordering::Relaxed).checked_sub(1)
        && owned(slot)
    {
        return Some(slot);
    }
    let slot = words[TAKEN_WORD].fetch_add(1, Ordering::Relaxed) as usize;
    if slot >= PROCESSES {
        return None;
    }
    words[process_word(slot, ProcessWord::Pid)].store(pid, Ordering::Relaxed);
    SLOT.store(slot + 1, Ordering::Relaxed);
    Some(slot)
}

/// A word of this process about a device; `None` outside a run.
fn word(device: usize, word: DeviceWord) -> Option<&'static AtomicU64> {
    let words = ledger()?;
    Some(&words[device_word(slot(words)?, device, word)])
}

/// What a device's books say now.
pub(crate) fn report_charge(device: usize, sim: &SimDevice) {
    let others = held_by_others(device);
    if let (Some(charged), Some(peak)) = (
        word(device, DeviceWord::Charged),
        word(device, DeviceWord::PeakCharged),
    ) {
        let held = sim.charged().saturating_sub(others);
        charged.store(held, Ordering::Relaxed);
        peak.fetch_max(held, Ordering::Relaxed);
    }
}

/// A device refused a request.
pub(crate) fn report_refusal(device: usize) {
    if let Some(refusals) = word(device, DeviceWord::Refusals) {
        refusals.fetch_add(1, Ordering::Relaxed);
    }
}

/// The context of a device was opened.
pub(crate) fn report_context(device: usize, bytes: u64) {
    if let Some(context) = word(device, DeviceWord::Context) {
        context.store(bytes, Ordering::Relaxed);
    }
}

/// What torch's allocator holds on a device.
pub(crate) fn report_torch(device: usize, allocated: u64, reserved: u64) {
    let Some(words) = ledger() else { return };
    let Some(slot) = slot(words) else { return };
    let store = |now, peak, bytes| {
        words[device_word(slot, device, now)].store(bytes, Ordering::Relaxed);
        words[device_word(slot, device, peak)].fetch_max(bytes, Ordering::Relaxed);
    };
    store(DeviceWord::Allocated, DeviceWord::PeakAllocated, allocated);
    store(DeviceWord::Reserved, DeviceWord::PeakReserved, reserved);
    words[process_word(slot, ProcessWord::TorchEvents)].fetch_add(1, Ordering::Relaxed);
}

/// The window of the blocks file that is mapped now, and where in it the next entry goes.
struct Blocks {
    pid: u32,
    file: File,
    window: *mut u64,
    offset: u64,
    used: usize,
}

// SAFETY: the mapping belongs to whoever holds the lock around this struct.
unsafe impl Send for Blocks {}

static BLOCKS: Mutex<Option<Blocks>> = Mutex::new(None);

impl Blocks {
    fn open() -> Option<Self> {
        let slot = slot(ledger()?)?;
        let pid = std::process::id();
        let path = folder()?.join(format!("{}{slot:03}-{pid}", blocks::PREFIX));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .ok()?;
        Some(Self {
            pid,
            file,
            window: std::ptr::null_mut(),
            offset: 0,
            used: blocks::WINDOW,
        })
    }

    /// Makes room for one more entry.
    fn make_room(&mut self) -> Option<()> {
        if self.used < blocks::WINDOW {
            return Some(());
        }
        if !self.window.is_null() {
            // SAFETY: the window mapped below, which nothing refers to any more.
            unsafe { libc::munmap(self.window.cast(), blocks::WINDOW) };
            self.window = std::ptr::null_mut();
            self.offset += blocks::WINDOW as u64;
        }
        self.file
            .set_len(self.offset + blocks::WINDOW as u64)
            .ok()?;
        // SAFETY: a shared mapping of a part of the file that exists now.
        let window = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                blocks::WINDOW,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.file.as_raw_fd(),
                self.offset as libc::off_t,
            )
        };
        if window == libc::MAP_FAILED {
            return None;
        }
        self.window = window.cast();
        self.used = 0;
        Some(())
    }

    fn push(&mut self, entry: Entry) -> Option<()> {
        self.make_room()?;
        // SAFETY: `make_room` left an entry's room in the window.
        unsafe {
            let at = self
                .window
                .cast::<[u64; 4]>()
                .add(self.used / blocks::ENTRY);
            at.write(entry.to_words());
        }
        self.used += blocks::ENTRY;
        Some(())
    }
}

fn keep(entry: Entry) {
    let mut open = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if open
        .as_ref()
        .is_none_or(|open| open.pid != std::process::id())
    {
        *open = Blocks::open();
    }
    if let Some(blocks) = open.as_mut()
        && blocks.push(entry).is_none()
    {
        *open = None;
    }
}

/// Keeps a block that torch's allocator handed out or took back.
pub(crate) fn block(block: Block) {
    keep(Entry::Block(block));
}

/// The texts of this process's notes, with the process they were logged by.
static TEXTS: Mutex<(u32, BTreeMap<String, u32>)> = Mutex::new((0, BTreeMap::new()));

/// The number of a text, which is logged at its first use.
fn text_number(text: &str) -> u32 {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if texts.0 != pid {
        *texts = (pid, BTreeMap::new());
    }
    if let Some(&number) = texts.1.get(text) {
        return number;
    }
    let number = texts.1.len() as u32;
    append(&encode(&Record::Text(text)));
    texts.1.insert(text.to_owned(), number);
    number
}

/// Keeps what is known of the program at this moment, among the blocks of `device`.
pub(crate) fn note(kind: NoteKind, device: usize, address: u64, text: &str) {
    if ledger().is_none() {
        return;
    }
    keep(Entry::Note(Note {
        kind,
        device: device as u8,
        time: now(),
        address,
        text: text_number(text),
    }));
}

/// A kernel was launched.
pub(crate) fn report_launch() {
    if let Some(words) = ledger()
        && let Some(slot) = SLOT.load(Ordering::Relaxed).checked_sub(1)
    {
        words[process_word(slot, ProcessWord::Launches)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Every living process of this run that holds memory of a device: its slot,
/// its process id and the bytes.
fn living(device: usize) -> impl Iterator<Item = (usize, u32, u64)> {
    let words = ledger();
    let taken = words.map_or(0, |words| {
        words[TAKEN_WORD].load(Ordering::Relaxed) as usize
    });
    (0..taken.min(PROCESSES)).filter_map(move |slot| {
        let charged = &words?[device_word(slot, device, DeviceWord::Charged)];
        let bytes = charged.load(Ordering::Relaxed);
        if bytes == 0 {
            return None;
        }
        let pid = words?[process_word(slot, ProcessWord::Pid)].load(Ordering::Relaxed) as u32;
        // SAFETY: signal 0 only asks whether the process is there.
        let alive = unsafe { libc::kill(pid.cast_signed(), 0) } == 0;
        if !alive {
            // The driver gives back what a dead process held.
            charged.store(0, Ordering::Relaxed);
        }
        alive.then_some((slot, pid, bytes))
    })
}

/// Bytes of a device that other living processes of this run hold.
pub(crate) fn held_by_others(device: usize) -> u64 {
    let mine = SLOT.load(Ordering::Relaxed).checked_sub(1);
    living(device)
        .filter(|&(slot, _, _)| Some(slot) != mine)
        .map(|(_, _, bytes)| bytes)
        .sum()
}

/// Process id and bytes of every process that holds memory of a device.
pub(crate) fn holders(device: usize) -> Vec<(u32, u64)> {
    living(device).map(|(_, pid, bytes)| (pid, bytes)).collect()
}

fn open_log() -> Option<File> {
    let words = ledger()?;
    let slot = slot(words)?;
    let pid = std::process::id();
    let path = folder()?.join(format!("{LOG_PREFIX}{slot:03}-{pid}"));
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .ok()?;
    let arguments = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = arguments
        .split(|&byte| byte == 0)
        .filter(|argument| !argument.is_empty())
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    let visible = machine::machine().map_or(Vec::new(), |machine| machine.visible.clone());
    let start = Start {
        slot: slot as u32,
        pid,
        arguments,
        visible: visible.into_iter().map(|device| device as u8).collect(),
        time: now(),
    };
    let mut file = file;
    file.write_all(&encode(&Record::Start(start))).ok()?;
    // SAFETY: the handler only writes what is counted so far to the log.
    unsafe { libc::atexit(write_counts) };
    Some(file)
}

fn append(bytes: &[u8]) {
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if log.as_ref().is_none_or(|(owner, _)| *owner != pid) {
        *log = open_log().map(|file| (pid, file));
    }
    if let Some((_, file)) = log.as_mut()
        && file.write_all(bytes).is_err()
    {
        *log = None;
    }
}

/// Logs a call that moved memory.
pub(crate) fn call(call: &DriverCall) {
    append(&encode_call(call));
}

/// Logs the first call of a function that is not modelled.
pub(crate) fn unmodelled(name: &str) {
    append(&encode(&Record::Unmodelled(name)));
}

extern "C" fn write_counts() {
    let counts: BTreeMap<&str, u64> = NAMES
        .iter()
        .zip(&UNMODELLED)
        .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect();
    if let Ok(json) = serde_json::to_vec(&counts)
        && !counts.is_empty()
    {
        append(&encode(&Record::Counts(&json)));
    }
}

/// Appends a record from inside Python: 3 for a piece of torch's history, 4 for a note.
///
/// # Safety
/// `bytes` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_record(tag: u32, bytes: *const u8, length: usize) {
    crate::ffi::guard((), || {
        // SAFETY: promised by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
        append(&encode(&if tag == 3 {
            Record::Torch(bytes)
        } else {
            Record::Note(bytes)
        }));
    });
}

/// Puts a C string into the static memory of the program, once per text.
pub(crate) fn static_text(text: String) -> &'static CStr {
    static TEXTS: Mutex<BTreeMap<String, &'static CStr>> = Mutex::new(BTreeMap::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(&text) {
        return known;
    }
    let owned = std::ffi::CString::new(text.clone()).unwrap_or_default();
    let leaked: &'static CStr = Box::leak(owned.into_boxed_c_str());
    texts.insert(text, leaked);
    leaked
}
