// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are written inside a program of the user.
//!
//! The program may close any descriptor, fill the disk, or be under a limit on
//! the size of files. None of that may hurt it, and nothing of ours may ever
//! land in its own file:
//!
//! * a descriptor is used only while it still leads to the file it was opened for;
//! * a limit on file sizes is queried before a file grows, because passing it is a signal that kills;
//! * room is allocated before a mapping is written to, because a disk without room for a page is a
//!   signal that kills, too;
//! * a write that failed half-way is taken back.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Descriptors are moved here or above, out of the way of programs that count on low numbers.
const FIRST_DESCRIPTOR: libc::c_int = 200;

/// A file of ours, open in the user's program.
#[derive(Debug)]
pub(crate) struct OwnFile {
    descriptor: RawFd,
    identity: (u64, u64),
}

fn identity(descriptor: RawFd) -> Option<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` has room for the answer, which is read only if there is one.
    unsafe {
        (libc::fstat(descriptor, stat.as_mut_ptr()) == 0).then(|| {
            let stat = stat.assume_init();
            (stat.st_dev, stat.st_ino)
        })
    }
}

impl OwnFile {
    /// Opens a file; closed at an exec.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self> {
        let file = options.open(path)?;
        // SAFETY: duplicates a descriptor that is open.
        let moved =
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR) };
        let descriptor = if moved < 0 {
            // A low limit on descriptors: it stays where it is.
            file.into_raw_fd()
        } else {
            moved
        };
        let identity = identity(descriptor).ok_or_else(Error::last_os_error)?;
        Ok(Self {
            descriptor,
            identity,
        })
    }

    /// Whether the descriptor still leads to the file: the program may have closed it.
    pub(crate) fn is_ours(&self) -> bool {
        identity(self.descriptor) == Some(self.identity)
    }

    /// Appends `bytes` to a file of `length` bytes, all of them or none.
    pub(crate) fn append(&self, length: u64, bytes: &[u8]) -> Result<()> {
        may_grow_to(length + bytes.len() as u64)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            // SAFETY: writes bytes of a live slice.
            let written = unsafe { libc::write(self.descriptor, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(0) => return self.take_back(length, ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written.min(rest.len())..],
                Err(_) => {
                    let error = Error::last_os_error();
                    if error.kind() != ErrorKind::Interrupted {
                        return self.take_back(length, error);
                    }
                }
            }
        }
        Ok(())
    }

    fn take_back(&self, length: u64, error: Error) -> Result<()> {
        // SAFETY: cuts a file of ours.
        unsafe { libc::ftruncate(self.descriptor, length as libc::off_t) };
        Err(error)
    }

    /// Locks one byte for as long as anything refers to this opening of the file; whether it was free.
    pub(crate) fn lock_byte(&self, byte: u64) -> Result<bool> {
        let mut lock = flock(libc::F_WRLCK, byte);
        // SAFETY: `lock` is a whole description of a lock.
        if unsafe { libc::fcntl(self.descriptor, libc::F_OFD_SETLK, &raw mut lock) } == 0 {
            return Ok(true);
        }
        let error = Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        }
    }

    /// Gives a byte up again.
    pub(crate) fn unlock_byte(&self, byte: u64) {
        let mut lock = flock(libc::F_UNLCK, byte);
        // SAFETY: `lock` is a whole description of a lock.
        unsafe { libc::fcntl(self.descriptor, libc::F_OFD_SETLK, &raw mut lock) };
    }

    /// Whether another opening of the file has this byte locked; `None` if the system does not report it.
    pub(crate) fn byte_is_locked(&self, byte: u64) -> Option<bool> {
        let mut lock = flock(libc::F_WRLCK, byte);
        // SAFETY: `lock` is a whole description of a lock, and is written to.
        let answer = unsafe { libc::fcntl(self.descriptor, libc::F_OFD_GETLK, &raw mut lock) };
        (answer == 0).then_some(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
    }

    /// Maps a page of the file into this process and not into its forked children, for good.
    ///
    /// The mapping keeps this opening of the file, and with it its locks, until the process ends or
    /// becomes another program, whatever happens to the descriptor.
    pub(crate) fn pin_until_exit(&self) -> bool {
        // SAFETY: a fresh mapping that nothing ever reads, kept for good.
        unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                self.descriptor,
                0,
            );
            page != libc::MAP_FAILED && libc::madvise(page, 4096, libc::MADV_DONTFORK) == 0
        }
    }

    /// Maps `length` bytes from `offset` on, to be shared with others.
    pub(crate) fn map(&self, offset: u64, length: usize) -> Result<*mut u64> {
        // SAFETY: a fresh mapping of a part of the file that exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.descriptor,
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(address.cast())
    }

    /// Gives the file room for `length` bytes from `offset` on, so that storing there needs no more.
    pub(crate) fn allocate(&self, offset: u64, length: usize) -> Result<()> {
        may_grow_to(offset + length as u64)?;
        loop {
            // SAFETY: changes the extent of a file of ours.
            let error = unsafe {
                libc::posix_fallocate(
                    self.descriptor,
                    offset as libc::off_t,
                    length as libc::off_t,
                )
            };
            match error {
                0 => return Ok(()),
                libc::EINTR => {}
                error => return Err(Error::from_raw_os_error(error)),
            }
        }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the descriptor leads to our file, so it is ours to close.
            drop(unsafe { OwnedFd::from_raw_fd(self.descriptor) });
        }
    }
}

/// A descriptor that leads to these bytes. It is the program's, which passes it on to other processes and closes it.
pub(crate) fn passable(bytes: &[u8]) -> Result<RawFd> {
    may_grow_to(bytes.len() as u64)?;
    // SAFETY: makes a file without a name, which no other thread knows yet.
    let descriptor = unsafe { libc::memfd_create(c"tonnage".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: it was made above and is held nowhere else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    file.write_all_at(bytes, 0)?;
    Ok(file.into_raw_fd())
}

/// The first bytes behind a descriptor that a program hands in.
pub(crate) fn passed<const N: usize>(descriptor: RawFd) -> Option<[u8; N]> {
    identity(descriptor)?;
    // SAFETY: it is open, and is not closed here: it stays the program's.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

fn flock(kind: libc::c_int, byte: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

/// Whether a file may have `length` bytes. To write further would be `SIGXFSZ`.
fn may_grow_to(length: u64) -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` has room for the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && length > limit.rlim_cur {
        return Err(Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}
