// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records how processes of a run end, for `tonnage run`: a launcher may drop the exit codes of its ranks.
//!
//! A process records its own exit code. A signal leaves it no time for that, so its parent does when it waits for it.
//! Signals that processes of the job send are recorded as well: a process that its own job ended has not failed.
//!
//! Shells wait for children in handlers of signals, and a child between `vfork` and `exec` may end here. So nothing
//! here takes a lock or allocates memory once the library is loaded; a line is one write of a few bytes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use tonnage_capture::endings::{ENDINGS_FILE, Fact, Line, MOST_BYTES, RANK_OF_PARENT_VARIABLE};

use crate::{fork, ledger};

/// The path of the file of the run, null before it is known; the second is that of a variant, see [`crate::variant`].
static FILES: [AtomicPtr<c_char>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
/// The process that was started as a rank; 0 if this process and its forks were not.
static RANK: AtomicI32 = AtomicI32::new(0);
/// The process whose exit code was recorded.
static RECORDED: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" {
    /// Has a function called with the exit code when the process ends by `exit` or by returning from `main`.
    fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The loader calls this before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    crate::ffi::guard((), || {
        if !open() {
            return;
        }
        // The loader must not be called later: a handler of a signal may be the first to wait.
        for real in [&WAITPID, &WAIT4, &WAITID, &KILL] {
            real.address();
        }
        // SAFETY: the function may be called at any later time.
        unsafe { on_exit(at_exit, std::ptr::null_mut()) };
        let variable = |name: &str| std::env::var(name).ok();
        let rank = variable("RANK").and_then(|rank| rank.parse::<u32>().ok());
        let own = own_id();
        // A program that replaces itself, as `env` and `exec` do, stays the rank that it is.
        let of_parent = variable(RANK_OF_PARENT_VARIABLE).and_then(|text| {
            let (rank, process) = text.split_once(' ')?;
            (process.parse() != Ok(own)).then_some(rank.parse::<u32>().ok()?)
        });
        if let Some(rank) = rank.filter(|&rank| Some(rank) != of_parent) {
            RANK.store(own, Ordering::Relaxed);
            // SAFETY: no thread of the program runs yet.
            unsafe { std::env::set_var(RANK_OF_PARENT_VARIABLE, format!("{rank} {own}")) };
            record(own, Fact::Rank(rank));
        }
    });
}

/// Finds the file of the run; whether this process is part of one.
fn open() -> bool {
    let Some(folder) = ledger::folder() else {
        return false;
    };
    let Ok(path) = CString::new(folder.join(ENDINGS_FILE).as_os_str().as_bytes()) else {
        return false;
    };
    // Kept until the process ends. No other thread runs yet, so no path is replaced while a thread reads it.
    FILES[fork::run_number()].store(path.into_raw(), Ordering::Release);
    true
}

/// This process is a variant from here on.
pub(crate) fn join() {
    open();
}

fn own_id() -> i32 {
    // SAFETY: only queries a number. The system is queried each time, because a child of `vfork` shares our memory.
    unsafe { libc::getpid() }
}

fn own_group() -> i32 {
    // SAFETY: only queries a number.
    unsafe { libc::getpgrp() }
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    record_exit(status);
}

/// Records the exit code of this process if it matters: the process was started as a rank, or has a log.
pub(crate) fn record_exit(status: i32) {
    let own = own_id();
    let is_rank = RANK.load(Ordering::Relaxed) == own;
    let has_log = ledger::taken_slot().is_some() && ledger::slot_owner() == own.cast_unsigned();
    // The system passes on the lowest eight bits.
    let status = status & 0xff;
    if status != 0 && (is_rank || has_log) && RECORDED.swap(own, Ordering::Relaxed) != own {
        let fact = Fact::Exit {
            code: status,
            group: own_group(),
        };
        record(own, fact);
    }
}

/// A text of at most a hundred bytes, without an allocation.
struct Text {
    bytes: [u8; 100],
    length: usize,
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end);
        room.ok_or(std::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Appends a line. Where that is not possible, the line is missing and the program goes on.
fn record(process: i32, fact: Fact) {
    let file = FILES[fork::run_number()].load(Ordering::Acquire);
    if file.is_null() {
        return;
    }
    // SAFETY: a text of ours that ends with a zero byte and is never freed.
    let file = unsafe { CStr::from_ptr(file) };
    let line = Line {
        process,
        time: now(),
        fact,
    };
    let mut text = Text {
        bytes: [0; 100],
        length: 0,
    };
    if writeln!(text, "{line}").is_ok() {
        append(file, &text.bytes[..text.length]);
    }
}

fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` has room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn append(file: &CStr, bytes: &[u8]) {
    // SAFETY: plain calls of the system with a zero-terminated name, a live slice, a descriptor that this function
    // opened, and room for the answers. The caller's error number is put back.
    unsafe {
        let error = *libc::__errno_location();
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        let name = file.as_ptr();
        let opened = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags, 0o600);
        if let Ok(descriptor) = c_int::try_from(opened)
            && descriptor >= 0
        {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
            let size = libc::lseek(descriptor, 0, libc::SEEK_END).cast_unsigned();
            // A file that grows beyond the limit raises a signal that kills.
            if size.saturating_add(bytes.len() as u64) <= limit.rlim_cur.min(MOST_BYTES) {
                libc::syscall(libc::SYS_write, descriptor, bytes.as_ptr(), bytes.len());
            }
            libc::syscall(libc::SYS_close, descriptor);
        }
        *libc::__errno_location() = error;
    }
}

/// A function of C that one of ours stands before.
struct Real {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(0),
        }
    }

    fn address(&self) -> *mut c_void {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            // SAFETY: queries a symbol by a zero-terminated name.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
            self.address.store(address, Ordering::Relaxed);
        }
        address as *mut c_void
    }
}

static WAITPID: Real = Real::new(c"waitpid");
static WAIT4: Real = Real::new(c"wait4");
static WAITID: Real = Real::new(c"waitid");
static KILL: Real = Real::new(c"kill");

/// Calls the real function of C, of the type of the function that stands before it.
macro_rules! real {
    ($real:ident, ($($kind:ty),*) -> $result:ty, $($argument:expr),*) => {{
        let address = $real.address();
        if address.is_null() {
            *libc::__errno_location() = libc::ENOSYS;
            return -1;
        }
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(address)($($argument),*)
    }};
}

/// A child has ended as the parent sees it now.
fn record_child(child: i32, status: c_int) {
    if child > 0 && libc::WIFSIGNALED(status) {
        record(child, Fact::Died(libc::WTERMSIG(status)));
    }
}

/// Stands before C's `waitpid`.
///
/// # Safety
/// The arguments that `waitpid` takes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn waitpid(child: i32, status: *mut c_int, options: c_int) -> i32 {
    let mut seen = 0;
    // SAFETY: promised by the caller; `seen` has room for the answer.
    unsafe {
        let ended = real!(WAITPID, (i32, *mut c_int, c_int) -> i32, child, &raw mut seen, options);
        if ended > 0 && !status.is_null() {
            *status = seen;
        }
        record_child(ended, seen);
        ended
    }
}

/// Stands before C's `wait`.
///
/// # Safety
/// The arguments that `wait` takes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn wait(status: *mut c_int) -> i32 {
    // SAFETY: promised by the caller; C's own function is this call.
    unsafe { waitpid(-1, status, 0) }
}

/// Stands before C's `wait4`.
///
/// # Safety
/// The arguments that `wait4` takes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn wait4(
    child: i32,
    status: *mut c_int,
    options: c_int,
    usage: *mut libc::rusage,
) -> i32 {
    let mut seen = 0;
    // SAFETY: promised by the caller; `seen` has room for the answer.
    unsafe {
        let ended = real!(
            WAIT4, (i32, *mut c_int, c_int, *mut libc::rusage) -> i32, child, &raw mut seen, options, usage
        );
        if ended > 0 && !status.is_null() {
            *status = seen;
        }
        record_child(ended, seen);
        ended
    }
}

/// Stands before C's `wait3`.
///
/// # Safety
/// The arguments that `wait3` takes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn wait3(
    status: *mut c_int,
    options: c_int,
    usage: *mut libc::rusage,
) -> i32 {
    // SAFETY: promised by the caller; C's own function is this call.
    unsafe { wait4(-1, status, options, usage) }
}

/// Stands before C's `waitid`.
///
/// # Safety
/// The arguments that `waitid` takes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn waitid(
    kind: libc::idtype_t,
    child: libc::id_t,
    answer: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    // SAFETY: promised by the caller; the answer is read only where it was written.
    unsafe {
        let result = real!(
            WAITID, (libc::idtype_t, libc::id_t, *mut libc::siginfo_t, c_int) -> c_int, kind, child, answer, options
        );
        if result == 0 && options & libc::WNOWAIT == 0 && !answer.is_null() {
            let code = (*answer).si_code;
            if code == libc::CLD_KILLED || code == libc::CLD_DUMPED {
                record((*answer).si_pid(), Fact::Died((*answer).si_status()));
            }
        }
        result
    }
}

/// Whether this is the program `timeout`: what it ends did not end in time, as a job that hangs.
fn is_timeout() -> bool {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: C's own variable, which is a text or null and which programs do not change while they have threads.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: a text of C that ends with a zero byte.
    !name.is_null() && unsafe { CStr::from_ptr(name) } == c"timeout"
}

/// Stands before C's `kill`.
///
/// # Safety
/// None: C's function takes numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn kill(process: i32, signal: c_int) -> c_int {
    if signal != 0 && !is_timeout() {
        // Before the call, after which a process that signals itself is gone.
        let from = own_id();
        let process = if process == 0 { -own_group() } else { process };
        record(process, Fact::Sent { signal, from });
    }
    // SAFETY: the real function takes any numbers.
    unsafe { real!(KILL, (i32, c_int) -> c_int, process, signal) }
}

/// Stands before C's `killpg`.
///
/// # Safety
/// None: C's function takes numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn killpg(group: i32, signal: c_int) -> c_int {
    if group < 0 {
        // SAFETY: the place of this thread's error number.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    // SAFETY: takes any numbers; C's own function is this call.
    unsafe { kill(-group, signal) }
}
