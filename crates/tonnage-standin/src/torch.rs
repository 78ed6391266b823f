// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reports of torch's allocator about itself.
//!
//! Each time it hands out or takes back a block, torch's allocator calls
//! `c10::reportMemoryUsageToProfiler` in another library. Because this library
//! is loaded first, that call comes here: it names the block and how many bytes
//! are allocated and reserved now. From it come the live figures, the moment to
//! drain torch's history, and the knowledge that an address was handed out anew.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tonnage_capture::blocks::{Block, NoteKind};

use crate::ffi::{guard, input_array};
use crate::fork::{Lazy, Lock};
use crate::{holders, machine, recorder, uses, values};

/// `c10::Device`: a type and an index, passed in one register.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct TorchDevice {
    kind: i8,
    index: i8,
}

/// `c10::DeviceType::CUDA`.
const CUDA: i8 = 1;

type Report = unsafe extern "C" fn(*mut c_void, i64, usize, usize, TorchDevice);
type Callback = unsafe extern "C" fn(*mut c_void) -> i32;
type AddPendingCall = unsafe extern "C" fn(Callback, *mut c_void) -> i32;

/// The history is drained after this many events: few enough to lose little
/// when the script is killed, many enough to cost little.
const EVENTS_PER_DRAIN: u64 = 8192;
/// ... or after this time, looked at every few events.
const NANOSECONDS_PER_DRAIN: u64 = 1_000_000_000;
const EVENTS_PER_LOOK: u64 = 64;

/// The results of a function of Python: the work is done, or the function is to be called again.
const DONE: i32 = 0;
const AGAIN: i32 = 1;

static DRAIN: AtomicUsize = AtomicUsize::new(0);
static CENSUS: AtomicUsize = AtomicUsize::new(0);
/// Whether each of them is to be called.
static WANTED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
/// Whether Python knows that something is to be called, or calls it now.
static ASKED: AtomicBool = AtomicBool::new(false);
static DRAINED_AT_EVENT: AtomicU64 = AtomicU64::new(0);
static DRAINED_AT_TIME: AtomicU64 = AtomicU64::new(0);
static EVENTS: AtomicU64 = AtomicU64::new(0);
/// The device of the last block: a note without an address belongs there.
static LAST_DEVICE: AtomicUsize = AtomicUsize::new(0);

/// A function of torch's library `libc10.so`, by its mangled name.
fn torch_function(name: &CStr) -> Option<*mut c_void> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: looks a library up that is loaded already; both names are zero-terminated.
    let address = unsafe {
        let library = libc::dlopen(c"libc10.so".as_ptr(), flags);
        if library.is_null() {
            return None;
        }
        libc::dlsym(library, name.as_ptr())
    };
    (!address.is_null()).then_some(address)
}

/// The function that this one stands before, in torch's own library.
fn real() -> Option<Report> {
    static REAL: Lazy<Option<Report>> = Lazy::new();
    REAL.get_or_find(|| {
        let address = torch_function(c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")?;
        // SAFETY: the symbol has this type in every torch since 1.10.
        Some(unsafe { std::mem::transmute::<*mut c_void, Report>(address) })
    })
}

thread_local! {
    /// How often the hook's own dispatch mode is on this thread's stack of modes.
    static OWN_MODES: Cell<i64> = const { Cell::new(0) };
    /// How often that mode was hidden from an operator of torch.
    static HIDDEN: Cell<u64> = const { Cell::new(0) };
}

/// How often the hook's own mode was hidden from an operator of torch on this thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_modes_hidden() -> u64 {
    HIDDEN.get()
}

/// The hook's dispatch mode was entered on this thread (1) or left (-1).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_values_mode(change: i64) {
    OWN_MODES.set(OWN_MODES.get() + change);
}

/// Whether the hook sees the operators of this thread.
pub(crate) fn is_seen() -> bool {
    // A thread that ends may copy after its variables are gone.
    OWN_MODES.try_with(Cell::get).unwrap_or(0) > 0
}

/// Stands before `c10::impl::dispatch_mode_enabled`: passes the address that it returns to on to [`mode_enabled`].
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) extern "C" fn _ZN3c104impl21dispatch_mode_enabledEv() -> bool {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("mov rdi, [rsp]", "jmp {}", sym mode_enabled);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov x0, x30", "b {}", sym mode_enabled);
}

/// Whether a dispatch mode is on this thread's stack, as torch's operators see it: the hook's own mode does not count.
///
/// Operators that are made of others take a way of their own under a mode, for
/// the sake of tensors that only pretend to have memory: `linear` adds its bias
/// to a copy. With the real tensors here that would be other memory than
/// without the hook. Torch's Python bindings call the mode and must see it.
extern "C" fn mode_enabled(caller: usize) -> bool {
    type Functions = (
        unsafe extern "C" fn() -> bool,
        unsafe extern "C" fn() -> i64,
        (usize, usize),
    );
    static REAL: Lazy<Option<Functions>> = Lazy::new();
    guard(false, || {
        let real = REAL.get_or_find(|| {
            let enabled = torch_function(c"_ZN3c104impl21dispatch_mode_enabledEv")?;
            let count = torch_function(c"_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv")?;
            // SAFETY: the symbols have these types in every torch that has both.
            Some(unsafe {
                (
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> bool>(enabled),
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i64>(count),
                    addresses_of(c"libtorch_cpu.so"),
                )
            })
        });
        let Some((enabled, count, (start, end))) = real else {
            return false;
        };
        // SAFETY: both only read variables of this thread.
        unsafe {
            let own = OWN_MODES.get();
            let hidden = own > 0 && (start..end).contains(&caller) && count() <= own;
            HIDDEN.set(HIDDEN.get() + u64::from(hidden));
            enabled() && !hidden
        }
    })
}

/// Where a loaded library lies.
fn addresses_of(library: &CStr) -> (usize, usize) {
    struct Search<'a> {
        name: &'a [u8],
        found: (usize, usize),
    }
    unsafe extern "C" fn match_library(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> i32 {
        // SAFETY: the loader's description of a library, and the search passed below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: a zero-terminated path of the loader.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        if !path.ends_with(search.name) {
            return 0;
        }
        for at in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the loader gives as many headers as it specifies.
            let header = unsafe { &*info.dlpi_phdr.add(at) };
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                search.found = (start, start + header.p_memsz as usize);
            }
        }
        1
    }
    let mut search = Search {
        name: library.to_bytes(),
        found: (0, 0),
    };
    // SAFETY: `look` gets the search back, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(match_library), (&raw mut search).cast()) };
    search.found
}

/// Stands before `c10::reportMemoryUsageToProfiler` and passes the call on.
///
/// # Safety
/// Called by torch with its own arguments.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    block: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: TorchDevice,
) {
    guard((), || {
        if device.kind == CUDA {
            report(
                block as u64,
                size,
                allocated as u64,
                reserved as u64,
                device.index,
            );
            clear_stack();
        }
    });
    if let Some(real) = real() {
        // SAFETY: the very arguments torch passed.
        unsafe { real(block, size, allocated, reserved, device) };
    }
}

/// Clears the stack below the caller. The padding of a kernel's parameters has whatever earlier calls left there: the
/// address of a block would count as a use.
#[inline(never)]
fn clear_stack() {
    std::hint::black_box(&mut [0_u8; 16 << 10]);
}

fn report(block: u64, size: i64, allocated: u64, reserved: u64, index: i8) {
    let Ok(machine) = machine::machine() else {
        return;
    };
    let Ok(device) = machine.physical(i32::from(index)) else {
        return;
    };
    if let Ok(size) = u64::try_from(size) {
        values::unshare(block, size);
        values::forget(block, size);
    }
    owners().remove(&block);
    LAST_DEVICE.store(device, Ordering::Relaxed);
    let now = recorder::now();
    recorder::report_torch(device, allocated, reserved);
    let change = Block {
        address: block,
        change: size,
        time: now,
        device: device as u8,
    };
    uses::keep_block(change, allocated);
    let events = EVENTS.fetch_add(1, Ordering::Relaxed) + 1;
    let since = events - DRAINED_AT_EVENT.load(Ordering::Relaxed);
    let due = since >= EVENTS_PER_DRAIN
        || (since.is_multiple_of(EVENTS_PER_LOOK)
            && now.saturating_sub(DRAINED_AT_TIME.load(Ordering::Relaxed))
                >= NANOSECONDS_PER_DRAIN);
    if due {
        ask_for_drain(events, now);
    }
    if holders::changed(block, size, device, allocated, machine.capacity(device)) {
        ask_python(Ask::Census);
    }
    if WANTED.iter().any(|wanted| wanted.load(Ordering::Relaxed)) {
        ask_again();
    }
}

/// Requests a drain of the history, unless no consumer is set.
fn ask_for_drain(events: u64, now: u64) {
    if DRAIN.load(Ordering::Relaxed) != 0 {
        DRAINED_AT_EVENT.store(events, Ordering::Relaxed);
        DRAINED_AT_TIME.store(now, Ordering::Relaxed);
        ask_python(Ask::Drain);
    }
}

/// The actions that are requested from Python.
#[derive(Clone, Copy)]
enum Ask {
    Drain,
    Census,
}

impl Ask {
    const ALL: [Self; 2] = [Self::Drain, Self::Census];

    fn callback(self) -> Option<Callback> {
        let address = match self {
            Self::Drain => DRAIN.load(Ordering::Relaxed),
            Self::Census => CENSUS.load(Ordering::Relaxed),
        };
        // SAFETY: only addresses of such functions are stored there.
        (address != 0).then(|| unsafe { std::mem::transmute::<usize, Callback>(address) })
    }
}

/// Requests that Python's main thread calls a function between two of its steps,
/// when no other thread of an ordinary script is inside the allocator.
fn ask_python(ask: Ask) {
    if ask.callback().is_some() {
        WANTED[ask as usize].store(true, Ordering::Relaxed);
        ask_again();
    }
}

/// Notifies Python that something is wanted, unless it knows: where a script is profiled or traced, Python 3.11 does not
/// get beyond the first line of a pending call when another one was added since it began with them.
fn ask_again() {
    if ASKED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: looks up a function of the Python that gave us the callbacks; it
    // may be called from any thread.
    let refused = unsafe {
        let address = libc::dlsym(libc::RTLD_DEFAULT, c"Py_AddPendingCall".as_ptr());
        if address.is_null() {
            true
        } else {
            let add = std::mem::transmute::<*mut c_void, AddPendingCall>(address);
            add(call_what_is_wanted, std::ptr::null_mut()) != 0
        }
    };
    if refused {
        ASKED.store(false, Ordering::Relaxed);
    }
}

/// Called by Python's main thread. A function that answers `AGAIN` is called again as soon as Python has gone on a
/// step; other actions that are put off, or wanted meanwhile, are requested at the next event.
unsafe extern "C" fn call_what_is_wanted(_: *mut c_void) -> i32 {
    let mut again = false;
    for ask in Ask::ALL {
        let wanted = WANTED[ask as usize].swap(false, Ordering::Relaxed);
        let Some(callback) = ask.callback().filter(|_| wanted) else {
            continue;
        };
        // SAFETY: Python's own function, called with the lock that Python holds here.
        let answer = unsafe { callback(std::ptr::null_mut()) };
        WANTED[ask as usize].fetch_or(answer != DONE, Ordering::Relaxed);
        again |= answer == AGAIN;
    }
    ASKED.store(false, Ordering::Relaxed);
    if again {
        ask_again();
    }
    0
}

/// Sets the function that queries Python for the holder of each block; null for none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_set_census(callback: Option<Callback>) {
    CENSUS.store(
        callback.map_or(0, |callback| callback as usize),
        Ordering::Relaxed,
    );
}

/// Whether a device holds this many hundredths of what it held at the last census.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_census_due(percent: u64) -> bool {
    guard(false, || holders::due(percent))
}

/// A census begins.
///
/// # Safety
/// `reason` points to `length` readable bytes, or is null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_census_begin(reason: *const u8, length: usize) {
    guard((), || {
        // SAFETY: promised by the caller.
        let reason = unsafe { input_array(reason, length) };
        let device = LAST_DEVICE.load(Ordering::Relaxed);
        holders::begin(&String::from_utf8_lossy(reason), device);
    });
}

/// A census ends; `graphs` reports whether autograd's graphs were walked.
///
/// # Safety
/// `reason` points to `length` readable bytes, or is null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_census_end(reason: *const u8, length: usize, graphs: bool) {
    guard((), || {
        // SAFETY: promised by the caller.
        let reason = unsafe { input_array(reason, length) };
        let device = LAST_DEVICE.load(Ordering::Relaxed);
        holders::end(&String::from_utf8_lossy(reason), device, graphs);
    });
}

/// Names the function that drains torch's history; null for none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_set_drain(callback: Option<Callback>) {
    DRAIN.store(
        callback.map_or(0, |callback| callback as usize),
        Ordering::Relaxed,
    );
    DRAINED_AT_TIME.store(recorder::now(), Ordering::Relaxed);
}

/// How many events torch's allocator has reported in this process.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_torch_events() -> u64 {
    EVENTS.load(Ordering::Relaxed)
}

/// The owner of each block, as far as it was reported since the block was allocated.
static OWNERS: Lock<BTreeMap<u64, String>> = Lock::new(BTreeMap::new());

fn owners() -> MutexGuard<'static, BTreeMap<u64, String>> {
    OWNERS.lock()
}

/// Reports the owner of the block at `address`: kept unless it was reported before for the same block.
pub(crate) fn report_owner(address: u64, text: &str) {
    let device = machine::machine()
        .ok()
        .and_then(|machine| machine.device_of(address));
    let Some(device) = device else {
        return;
    };
    let mut owners = owners();
    if owners.get(&address).is_none_or(|known| known != text) {
        owners.insert(address, text.to_owned());
        recorder::note(NoteKind::Owner, device, address, text);
    }
}

/// Reports that a library was given this scratch memory.
pub(crate) fn own_workspace(address: u64, library: &str) {
    if address != 0 {
        report_owner(address, &format!("workspaces\t{library}"));
    }
}

/// Keeps what Python knows of the program at this moment: `kind` as in
/// [`NoteKind`], the block that it concerns or 0, and a text.
///
/// # Safety
/// `text` points to `length` readable bytes, or is null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_note(
    kind: u8,
    address: u64,
    text: *const u8,
    length: usize,
) {
    guard((), || {
        // SAFETY: promised by the caller.
        let text = unsafe { input_array(text, length) };
        let text = String::from_utf8_lossy(text);
        match NoteKind::from_number(kind) {
            Some(NoteKind::Owner) => report_owner(address, &text),
            Some(NoteKind::Holder) => holders::hold(address, &text),
            Some(NoteKind::Used) | None => {}
            Some(kind @ NoteKind::OutOfMemory) => {
                recorder::note(kind, LAST_DEVICE.load(Ordering::Relaxed), address, &text);
            }
            Some(kind) => recorder::note(kind, LAST_DEVICE.load(Ordering::Relaxed), 0, &text),
        }
    });
}
