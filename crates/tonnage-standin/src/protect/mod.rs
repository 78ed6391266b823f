// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the user's files as they are: a copy-on-write view of the file system for the processes of a job.
//!
//! Functions of C that take a path are replaced ([`calls`]). A path is walked as the kernel would ([`path`]), in two
//! layers: the user's files, and above them a directory with everything that the job created or changed. Files that the
//! job deleted have a mark in a third tree. Changes are made in the upper layer only ([`change`]); a file that is
//! opened for writing is copied there first. Directories with entries in both layers are listed by [`list`].
//!
//! All processes of a job share the layers, so nothing about them is kept in memory, except:
//!
//! * an index, mapped by all of them: paths that are not in it have nothing above them, which saves system calls;
//! * directories of the lower layer, which do not change, to not look at each of them again. Writes ignore it.
//!
//! Writes that do not go through C's functions are refused by the kernel where it can ([`seal`]).
//!
//! Changes take turns by a lock of the kernel on one file, which ends with the process. Nothing here allocates, except
//! to list directories: these functions are called between `fork` and `exec`, too.
//!
//! **Invariant:** without the environment variable `TONNAGE_FILES` every function here only calls the one of C.

mod calls;
mod change;
mod copies;
mod list;
mod path;
mod seal;
mod start;
mod sys;

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use tonnage_capture::{
    FILES_BY_OVERLAY, FILES_BY_PRELOAD, FILES_BY_VARIABLE, FILES_DELETED, FILES_REFUSED,
    FILES_SEALED_VARIABLE, FILES_THROUGH, FILES_UPPER, FILES_VARIABLE, RUN_VARIABLE,
};

pub(crate) use calls::{connect_to_own, location};
use sys::{Answer, Descriptor, Text, call, int};

/// Words of the index.
const INDEX_WORDS: usize = 1 << 17;
/// Directories of the lower layer that a process remembers.
const KNOWN_DIRECTORIES: usize = 1 << 13;

/// Where changes go.
struct Layers {
    /// Only renames of directories are completed; the kernel does the rest.
    is_overlay: bool,
    /// `D`, as in the constants of `tonnage_capture`.
    changes: Vec<u8>,
    upper: Vec<u8>,
    deleted: Vec<u8>,
    through: Vec<Vec<u8>>,
    index: Option<&'static [AtomicU64; INDEX_WORDS]>,
    /// Variables that each process of the job needs, as `NAME=value`.
    environment: Vec<CString>,
}

/// Null before the first call, [`OFF`] without protection.
static LAYERS: AtomicPtr<Layers> = AtomicPtr::new(std::ptr::null_mut());
const OFF: *mut Layers = std::ptr::dangling_mut();

/// The layers of this process, unless it is not protected or a mount of the kernel does it.
fn layers() -> Option<&'static Layers> {
    any_layers().filter(|layers| !layers.is_overlay)
}

fn any_layers() -> Option<&'static Layers> {
    let mut known = LAYERS.load(Ordering::Acquire);
    if known.is_null() {
        known = read_layers();
    }
    // SAFETY: a value that is never freed, if it is not the constant.
    (known != OFF).then(|| unsafe { &*known })
}

/// Reads where changes go, once more: a variant of a job has its own directory.
pub(crate) fn read_again() {
    read_layers();
}

fn variable(name: &str) -> Option<Vec<u8>> {
    let name = CString::new(name).ok()?;
    // SAFETY: a text that ends with a zero byte; not `std::env`, whose lock may be held by a thread that forks.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: texts of the environment end with a zero byte.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes().to_vec())
}

fn read_layers() -> *mut Layers {
    // Calls that are made meanwhile are those of this function.
    LAYERS.store(OFF, Ordering::Release);
    let made = crate::ffi::guard(OFF, || {
        Layers::read().map_or(OFF, |layers| Box::into_raw(Box::new(layers)))
    });
    LAYERS.store(made, Ordering::Release);
    made
}

/// Runs when the library is loaded, so that no later call has to allocate.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        any_layers();
    }
    at_load
};

impl Layers {
    fn read() -> Option<Self> {
        let changes = variable(FILES_VARIABLE).filter(|path| path.first() == Some(&b'/'))?;
        let below = |name: &str| [&changes[..], b"/", name.as_bytes()].concat();
        let by = variable(FILES_BY_VARIABLE)?;
        if by == FILES_BY_OVERLAY.as_bytes() {
            return Some(Self {
                is_overlay: true,
                changes: Vec::new(),
                upper: Vec::new(),
                deleted: Vec::new(),
                through: Vec::new(),
                index: None,
                environment: Vec::new(),
            });
        }
        // The process that makes the kernel's mounts has neither.
        if by != FILES_BY_PRELOAD.as_bytes() {
            return None;
        }
        for name in [FILES_UPPER, FILES_DELETED, "work", "links"] {
            let path = Text::join(&[&below(name)]).ok()?;
            let _ = sys::make_directory(&path, 0o777);
        }
        let mut through = vec![changes.clone()];
        through.extend(variable(RUN_VARIABLE));
        let list = read_whole(&below(FILES_THROUGH)).unwrap_or_default();
        for line in list.split(|byte| *byte == b'\n') {
            let end = line
                .iter()
                .rposition(|byte| *byte != b'/')
                .map_or(0, |last| last + 1);
            if line.first() == Some(&b'/') && end > 0 {
                through.push(line[..end].to_vec());
            }
        }
        seal::seal(&changes, &through);
        let mut environment = Vec::new();
        for name in [
            "LD_PRELOAD",
            FILES_VARIABLE,
            FILES_BY_VARIABLE,
            FILES_SEALED_VARIABLE,
            RUN_VARIABLE,
        ] {
            if let Some(value) = variable(name) {
                environment.push(CString::new([name.as_bytes(), b"=", &value].concat()).ok()?);
            }
        }
        Some(Self {
            is_overlay: false,
            upper: below(FILES_UPPER),
            deleted: below(FILES_DELETED),
            index: map_index(&below("index")),
            changes,
            through,
            environment,
        })
    }

    /// Whether the path may have something in the upper layer or a mark; false is certain.
    fn may_be_touched(&self, hash: u64) -> bool {
        self.index.is_none_or(|index| {
            probes(hash).all(|(word, bit)| index[word].load(Ordering::Acquire) & bit != 0)
        })
    }

    /// Puts a path and all directories above it into the index.
    fn touch(&self, path: &[u8]) {
        let mut hash = EMPTY;
        for part in path.split_inclusive(|byte| *byte == b'/') {
            let name = part.strip_suffix(b"/").unwrap_or(part);
            if !name.is_empty() {
                hash = extend(hash, name);
                self.touch_hash(hash);
            }
        }
    }

    fn touch_hash(&self, hash: u64) {
        if let Some(index) = self.index {
            for (word, bit) in probes(hash) {
                index[word].fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    fn is_through(&self, path: &[u8]) -> bool {
        self.through.iter().any(|prefix| is_below(path, prefix))
    }

    fn upper(&self, path: &[u8]) -> Answer<Text> {
        Text::join(&[&self.upper, path])
    }

    fn deleted(&self, path: &[u8]) -> Answer<Text> {
        Text::join(&[&self.deleted, path])
    }

    /// A name in the directory of files that are not finished.
    fn work(&self) -> Answer<Text> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut path = Text::join(&[&self.changes, b"/work/"])?;
        // SAFETY: queries a number.
        path.push_number(unsafe { call(libc::SYS_gettid, []) }? as u64)?;
        path.push(b"-")?;
        path.push_number(COUNT.fetch_add(1, Ordering::Relaxed))?;
        Ok(path)
    }

    /// Refuses a change that could reach a file of the user, and writes its path down.
    fn refuse<T>(&self, path: &[u8]) -> Answer<T> {
        let list = Text::join(&[&self.changes, b"/", FILES_REFUSED.as_bytes()])?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
        if let (Ok(file), Ok(line)) = (sys::open(&list, flags, 0o666), Text::join(&[path, b"\n"])) {
            let bytes = line.bytes();
            // SAFETY: writes a live text to a file of ours.
            let _ = unsafe {
                call(
                    libc::SYS_write,
                    [int(file.0), bytes.as_ptr() as usize, bytes.len()],
                )
            };
        }
        Err(libc::EROFS)
    }
}

/// Whether `path` is `prefix` or below it.
fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn read_whole(path: &[u8]) -> Option<Vec<u8>> {
    let file = sys::open(&Text::join(&[path]).ok()?, libc::O_RDONLY, 0).ok()?;
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        // SAFETY: reads into a live buffer.
        let got = unsafe {
            call(
                libc::SYS_read,
                [int(file.0), buffer.as_mut_ptr() as usize, buffer.len()],
            )
        };
        match got.ok()? {
            0 => return Some(bytes),
            length => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

/// Maps the index. Without one every path counts as touched.
fn map_index(path: &[u8]) -> Option<&'static [AtomicU64; INDEX_WORDS]> {
    let length = INDEX_WORDS * size_of::<AtomicU64>();
    let file = sys::open(
        &Text::join(&[path]).ok()?,
        libc::O_RDWR | libc::O_CREAT,
        0o666,
    )
    .ok()?;
    // SAFETY: gives a file of ours room, so that no page of it is missing, and maps it for good.
    unsafe {
        call(libc::SYS_fallocate, [int(file.0), 0, 0, length])
            .or_else(|_| call(libc::SYS_ftruncate, [int(file.0), length]))
            .ok()?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(
            std::ptr::null_mut(),
            length,
            rights,
            libc::MAP_SHARED,
            file.0,
            0,
        );
        (page != libc::MAP_FAILED).then(|| &*page.cast())
    }
}

/// The hash of the root.
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of a path with one more name.
fn extend(hash: u64, name: &[u8]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter()
        .fold(step(hash, b'/'), |hash, byte| step(hash, *byte))
}

fn hash_of(path: &[u8]) -> u64 {
    let names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty());
    names.fold(EMPTY, extend)
}

/// Spreads all bits of a hash.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// The bits of the index that stand for a path.
fn probes(hash: u64) -> impl Iterator<Item = (usize, u64)> {
    let hash = mix(hash);
    let (start, step) = (hash as u32, (hash >> 32) as u32 | 1);
    (0..4u32).map(move |number| {
        let bit = start.wrapping_add(number.wrapping_mul(step)) as usize % (INDEX_WORDS * 64);
        (bit / 64, 1 << (bit % 64))
    })
}

/// Directories of the lower layer, by their hash.
static KNOWN: [AtomicU64; KNOWN_DIRECTORIES] = [const { AtomicU64::new(0) }; KNOWN_DIRECTORIES];

fn find_known(hash: u64) -> &'static AtomicU64 {
    &KNOWN[mix(hash) as usize % KNOWN_DIRECTORIES]
}

/// The thread that holds the lock of changes, so that a handler of a signal does not wait for itself.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// The right to change the upper layer.
struct Turn {
    file: Option<Descriptor>,
}

impl Turn {
    fn take(layers: &Layers) -> Answer<Self> {
        // SAFETY: queries a number.
        let thread = unsafe { call(libc::SYS_gettid, []) }? as i32;
        if HOLDER.load(Ordering::Relaxed) == thread {
            return Ok(Self { file: None });
        }
        let path = Text::join(&[&layers.changes, b"/lock"])?;
        let file = sys::open(&path, libc::O_RDWR | libc::O_CREAT, 0o666)?;
        loop {
            // SAFETY: locks a file of ours.
            let answer = unsafe { call(libc::SYS_flock, [int(file.0), libc::LOCK_EX as usize]) };
            match answer {
                Ok(_) => break,
                Err(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        HOLDER.store(thread, Ordering::Relaxed);
        Ok(Self { file: Some(file) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            HOLDER.store(0, Ordering::Relaxed);
            // A child that was forked meanwhile has the descriptor, too: closing it would not be enough.
            // SAFETY: unlocks a file of ours.
            let _ = unsafe { call(libc::SYS_flock, [int(file.0), libc::LOCK_UN as usize]) };
        }
    }
}

/// A text of the caller. C's functions demand that it is null or ends with a zero byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct CText(*const c_char);

impl CText {
    fn bytes<'a>(self) -> Answer<&'a [u8]> {
        // SAFETY: the contract of every function that takes one.
        unsafe { crate::ffi::input_text(self.0) }
            .map(CStr::to_bytes)
            .ok_or(libc::EFAULT)
    }
}
