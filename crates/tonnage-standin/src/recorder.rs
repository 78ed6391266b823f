// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of a process for `tonnage run`: its log, its blocks, its words in the ledger.
//!
//! Recording never changes the outcome of the user's run. Data that cannot be
//! written is not written, the call it belongs to goes on, and the ledger,
//! which needs no more room, counts what was lost. After the first loss the
//! process records no more calls and blocks: a recording that is whole up to a
//! moment can be used, one with holes cannot.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{Error, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tonnage_capture::blocks::{self, Block, Entry, Note, NoteKind, Uses};
use tonnage_capture::ledger::{DeviceWord, ProcessWord};
use tonnage_capture::log::{self, DriverCall, Record, Start, encode_call};
use tonnage_capture::{LOG_PREFIX, note};

use crate::ffi::{guard, input_array};
use crate::files::OwnFile;
use crate::fork::Lock;
use crate::ledger::{Ledger, folder, ledger, slot_owner, taken_slot};
use crate::{config, fork, unmodelled, uses};

/// Entries of this process that were kept.
static KEPT: AtomicU64 = AtomicU64::new(0);
/// Set at the first loss.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// The ledger and this process's slot in it; `None` outside a run.
fn place() -> Option<(&'static Ledger, usize)> {
    if fork::is_broken() {
        return None;
    }
    let ledger = ledger()?;
    Some((ledger, ledger.slot()?))
}

/// A word of this process about a device; `None` outside a run.
fn word(device: usize, word: DeviceWord) -> Option<&'static AtomicU64> {
    let (ledger, slot) = place()?;
    Some(ledger.device(slot, device, word))
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

/// Reports the bytes that torch's allocator holds on a device.
pub(crate) fn report_torch(device: usize, allocated: u64, reserved: u64) {
    let Some((ledger, slot)) = place() else {
        return;
    };
    let store = |now, peak, bytes| {
        ledger
            .device(slot, device, now)
            .store(bytes, Ordering::Relaxed);
        ledger
            .device(slot, device, peak)
            .fetch_max(bytes, Ordering::Relaxed);
    };
    store(DeviceWord::Allocated, DeviceWord::PeakAllocated, allocated);
    store(DeviceWord::Reserved, DeviceWord::PeakReserved, reserved);
    ledger
        .process(slot, ProcessWord::TorchEvents)
        .fetch_add(1, Ordering::Relaxed);
}

/// A kernel was launched.
pub(crate) fn report_launch() {
    if let Some(slot) = taken_slot()
        && let Some(ledger) = ledger()
    {
        ledger
            .process(slot, ProcessWord::Launches)
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a file of this process is, in the folder of the run. The number makes the name unique.
fn path_of(prefix: &str) -> Result<PathBuf> {
    let nowhere = || Error::from_raw_os_error(libc::ENOENT);
    let (ledger, _) = place().ok_or_else(nowhere)?;
    let number = ledger.number().ok_or_else(nowhere)?;
    let pid = std::process::id();
    let folder = folder().ok_or_else(nowhere)?;
    Ok(folder.join(format!("{prefix}{number:03}-{pid}")))
}

/// Counts an entry that was kept or lost. The first loss ends the recording of this process.
fn account(kept: Result<()>) {
    match kept {
        Ok(()) => {
            KEPT.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            STOPPED.store(true, Ordering::Relaxed);
            lose(error.raw_os_error().unwrap_or(libc::EIO));
        }
    }
}

fn lose(error: i32) {
    if let Some((ledger, _)) = place() {
        ledger.lose(KEPT.load(Ordering::Relaxed), error);
    }
}

/// Whether entries are kept still; counts one that is not.
fn goes_on() -> bool {
    let stopped = STOPPED.load(Ordering::Relaxed);
    if stopped {
        lose(0);
    }
    !stopped
}

/// The window of the blocks file that is mapped now, and where in it the next entry goes.
///
/// No descriptor is kept: the file is opened again when it must grow.
struct Blocks {
    pid: u32,
    path: PathBuf,
    window: *mut u64,
    offset: u64,
    used: usize,
}

// SAFETY: the mapping belongs to the thread that holds the lock around this struct.
unsafe impl Send for Blocks {}

static BLOCKS: Lock<Option<Blocks>> = Lock::forgotten_in_child(None, forget_files);

impl Blocks {
    fn open() -> Result<Self> {
        Ok(Self {
            pid: std::process::id(),
            path: path_of(blocks::PREFIX)?,
            window: std::ptr::null_mut(),
            offset: 0,
            used: blocks::WINDOW,
        })
    }

    /// Makes room for one more entry.
    fn make_room(&mut self) -> Result<()> {
        if self.used < blocks::WINDOW {
            return Ok(());
        }
        let offset = if self.window.is_null() {
            0
        } else {
            self.offset + blocks::WINDOW as u64
        };
        let file = OwnFile::open(
            &self.path,
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false),
        )?;
        // Without this a store into the mapping could be the one that finds the disk full.
        file.allocate(offset, blocks::WINDOW)?;
        let window = file.map(offset, blocks::WINDOW)?;
        self.unmap();
        (self.window, self.offset, self.used) = (window, offset, 0);
        Ok(())
    }

    fn push(&mut self, entry: Entry) -> Result<()> {
        self.make_room()?;
        let [first, second, third, last] = entry.to_words();
        // SAFETY: `make_room` left an entry's room in the window, which no other thread writes to.
        let at = unsafe {
            let window = self.window.cast::<[AtomicU64; 4]>();
            &*window.add(self.used / blocks::ENTRY)
        };
        at[0].store(first, Ordering::Relaxed);
        at[1].store(second, Ordering::Relaxed);
        at[2].store(third, Ordering::Relaxed);
        // A reader that sees the last word, which is never zero, sees the others.
        at[3].store(last, Ordering::Release);
        self.used += blocks::ENTRY;
        Ok(())
    }

    fn unmap(&self) {
        if !self.window.is_null() {
            // SAFETY: a window mapped by `make_room`, which nothing refers to any more.
            unsafe { libc::munmap(self.window.cast(), blocks::WINDOW) };
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// How many entries of each device the file has, without those of uses.
static ENTRIES: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// How many entries of a device the file has, without those of uses.
pub(crate) fn entries(device: u8) -> u32 {
    ENTRIES[usize::from(device)].load(Ordering::Relaxed)
}

/// Keeps an entry, and uses before it; returns its number.
fn keep(entry: Entry, uses: Option<Uses>) -> Option<u32> {
    if place().is_none() || !goes_on() {
        return None;
    }
    let mut open = BLOCKS.lock();
    let pid = slot_owner();
    let mut push = |entry| match open.as_mut().filter(|open| open.pid == pid) {
        Some(blocks) => blocks.push(entry),
        None => Blocks::open().and_then(|blocks| open.insert(blocks).push(entry)),
    };
    let kept = uses.map_or(Ok(()), |uses| push(Entry::Uses(uses)));
    let kept = kept.and_then(|()| push(entry));
    let entries = &ENTRIES[usize::from(entry.device())];
    let number = kept
        .is_ok()
        .then(|| entries.fetch_add(1, Ordering::Relaxed));
    drop(open);
    account(kept);
    number
}

/// Keeps a block that torch's allocator handed out or took back, with its uses; returns the number of the entry.
pub(crate) fn block(block: Block, uses: Option<Uses>) -> Option<u32> {
    keep(Entry::Block(block), uses)
}

/// Keeps the uses of a live block.
pub(crate) fn used(uses: Uses, address: u64) {
    let note = Note {
        kind: NoteKind::Used,
        device: uses.device,
        time: now(),
        address,
        text: 0,
    };
    keep(Entry::Note(note), Some(uses));
}

/// The texts of this process's notes, with the process they were logged by.
static TEXTS: Lock<(u32, BTreeMap<String, u32>)> =
    Lock::forgotten_in_child((0, BTreeMap::new()), forget_files);

/// The number of a text, which is logged at its first use.
fn text_number(text: &str) -> u32 {
    let mut texts = TEXTS.lock();
    let pid = std::process::id();
    if texts.0 != pid {
        *texts = (pid, BTreeMap::new());
    }
    if let Some(&number) = texts.1.get(text) {
        return number;
    }
    let number = texts.1.len() as u32;
    entry(|| append(&encode(&Record::Text(text))?));
    texts.1.insert(text.to_owned(), number);
    number
}

/// Keeps what is known of the program at this moment, among the blocks of `device`.
pub(crate) fn note(kind: NoteKind, device: usize, address: u64, text: &str) {
    if place().is_none() {
        return;
    }
    let note = Note {
        kind,
        device: device as u8,
        time: now(),
        address,
        text: text_number(text),
    };
    keep(Entry::Note(note), None);
}

/// Process id and bytes of every process that holds memory of a device.
pub(crate) fn holders(device: usize) -> Vec<(u32, u64)> {
    ledger().map_or_else(Vec::new, |ledger| ledger.holders(device))
}

/// The log of the process that opened it; a forked child opens its own.
struct Log {
    pid: u32,
    path: PathBuf,
    file: OwnFile,
    /// Bytes of whole records.
    length: u64,
}

static LOG: Lock<Option<Log>> = Lock::forgotten_in_child(None, forget_files);
static AT_EXIT: AtomicBool = AtomicBool::new(false);
/// The notes of a fork server, which are those of each of its children, too.
static INHERITED: Lock<Vec<Vec<u8>>> = Lock::new(Vec::new());
/// The arguments of a variant, whose own are those of the fork server.
static ARGUMENTS: Lock<Option<Vec<u8>>> = Lock::new(None);

impl Log {
    fn open() -> Result<Self> {
        let path = path_of(LOG_PREFIX)?;
        let file = Self::open_file(&path)?;
        let joined = ARGUMENTS.lock();
        let arguments = joined.clone();
        drop(joined);
        let arguments =
            arguments.unwrap_or_else(|| std::fs::read("/proc/self/cmdline").unwrap_or_default());
        let arguments = arguments
            .split(|&byte| byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        let (_, slot) = place().ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
        let start = Start {
            slot: slot as u32,
            pid: std::process::id(),
            arguments,
            visible: config::visible()
                .iter()
                .map(|&device| device as u8)
                .collect(),
            time: now(),
            measured: false,
        };
        let mut log = Self {
            pid: start.pid,
            path,
            file,
            length: 0,
        };
        log.append(&encode(&Record::Start(start))?)?;
        if !AT_EXIT.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler only writes what is counted so far to the log.
            unsafe { libc::atexit(write_counts) };
        }
        Ok(log)
    }

    fn open_file(path: &std::path::Path) -> Result<OwnFile> {
        OwnFile::open(path, OpenOptions::new().create(true).append(true))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.file.is_ours() {
            // The program closed the descriptor, and may use its number for its own file.
            self.file = Self::open_file(&self.path)?;
        }
        self.file.append(self.length, bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Appends to the log of this process, which has a slot.
fn append(bytes: &[u8]) -> Result<()> {
    let mut log = LOG.lock();
    let pid = slot_owner();
    match log.as_mut().filter(|log| log.pid == pid) {
        Some(log) => log.append(bytes),
        None => Log::open().and_then(|opened| log.insert(opened).append(bytes)),
    }
}

/// A record as bytes. One that is too long for a log is lost like one that finds the disk full.
fn encode(record: &Record<'_>) -> Result<Vec<u8>> {
    log::encode(record).map_err(|_| Error::from_raw_os_error(libc::EFBIG))
}

/// Logs an entry of the story, which ends at the first that cannot be kept.
fn entry(append: impl FnOnce() -> Result<()>) {
    if place().is_some() && goes_on() {
        account(append());
    }
}

/// Logs what stands for itself, as long as there is room.
fn remark(record: &Record<'_>) {
    if place().is_some()
        && let Err(error) = encode(record).and_then(|bytes| append(&bytes))
    {
        lose(error.raw_os_error().unwrap_or(libc::EIO));
    }
}

/// Logs a call that moved memory.
pub(crate) fn call(call: &DriverCall) {
    entry(|| append(&encode_call(call)));
}

/// Logs that a function that is not modelled was called.
pub(crate) fn note_unmodelled(name: &str) {
    remark(&Record::Unmodelled(name));
}

/// Counts a call of the function with this name, which could not be answered as a device would.
pub(crate) fn count_unmodelled_name(name: &str) {
    if let Some(id) = unmodelled::number_of(name) {
        count_unmodelled(id);
    }
}

/// Counts a call of the function with this number, which is not modelled, and logs the first one.
pub(crate) fn count_unmodelled(id: usize) {
    if let Some(name) = unmodelled::count(id) {
        note_unmodelled(name);
    }
}

/// Logs a note of the stand-in itself.
pub(crate) fn remark_note(note: &note::Note) {
    remark_json(note.to_json());
}

fn remark_json(json: Vec<u8>) {
    remark(&Record::Note(&json));
    if fork::is_server() {
        INHERITED.lock().push(json);
    }
}

/// Reports how often what was called that is not modelled; once, at the end.
pub(crate) extern "C" fn write_counts() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    guard((), || {
        if TOLD.swap(true, Ordering::Relaxed) {
            return;
        }
        // A forked child without its own work has nothing to report.
        let log = LOG.lock();
        let mine = log
            .as_ref()
            .is_some_and(|log| log.pid == std::process::id());
        drop(log);
        if fork::is_broken() || !mine {
            return;
        }
        uses::write_rest();
        let counts: BTreeMap<_, _> = unmodelled::counts().collect();
        if let Ok(json) = serde_json::to_vec(&counts)
            && !counts.is_empty()
        {
            remark(&Record::Counts(&json));
        }
    });
}

/// Appends a record from inside Python: [`log::TORCH`] for a piece of torch's history, else a note.
///
/// # Safety
/// `bytes` points to `length` readable bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_record(tag: u32, bytes: *const u8, length: usize) {
    guard((), || {
        // SAFETY: promised by the caller.
        let bytes = unsafe { input_array(bytes, length) };
        remark(&if tag == log::TORCH {
            Record::Torch(bytes)
        } else {
            Record::Note(bytes)
        });
    });
}

/// A forked child has its own files, and starts to count.
pub(crate) fn forget_files() {
    *LOG.lock() = None;
    *BLOCKS.lock() = None;
    *TEXTS.lock() = (0, BTreeMap::new());
    KEPT.store(0, Ordering::Relaxed);
    for entries in &ENTRIES {
        entries.store(0, Ordering::Relaxed);
    }
    STOPPED.store(false, Ordering::Relaxed);
    if !fork::is_server() {
        unmodelled::forget();
    }
}

/// This process is a variant from here on: what its fork server called is what it called itself.
pub(crate) fn join(arguments: &[u8]) {
    *ARGUMENTS.lock() = Some(arguments.to_owned());
    for (name, _) in unmodelled::counts() {
        note_unmodelled(name);
    }
    let notes = std::mem::take(&mut *INHERITED.lock());
    for note in notes {
        remark_json(note);
    }
}

/// Puts a C string into the static memory of the program, once per text.
pub(crate) fn static_text(text: String) -> &'static CStr {
    static TEXTS: Lock<BTreeMap<String, &'static CStr>> = Lock::new(BTreeMap::new());
    let mut texts = TEXTS.lock();
    if let Some(known) = texts.get(&text) {
        return known;
    }
    let owned = std::ffi::CString::new(text.clone()).unwrap_or_default();
    let leaked: &'static CStr = Box::leak(owned.into_boxed_c_str());
    texts.insert(text, leaked);
    leaked
}
