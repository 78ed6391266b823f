// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls without libc's functions of the same name, which lead back to this library.
//!
//! Nothing here allocates or locks, so all of it works between `fork` and `exec` and in handlers of signals.

use std::ffi::{c_char, c_int, c_long};

/// A result, or the number of an error.
pub(super) type Answer<T> = Result<T, c_int>;

/// Room for the longest path of the kernel.
const SIZE: usize = libc::PATH_MAX as usize;

/// A path on the stack that ends with a zero byte.
#[derive(Clone)]
pub(super) struct Text {
    bytes: [u8; SIZE],
    length: usize,
}

impl Text {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; SIZE],
            length: 0,
        }
    }

    /// The parts one after the other.
    pub(super) fn join(parts: &[&[u8]]) -> Answer<Self> {
        let mut text = Self::new();
        for part in parts {
            text.push(part)?;
        }
        Ok(text)
    }

    pub(super) fn push(&mut self, part: &[u8]) -> Answer<()> {
        let end = self.length + part.len();
        if end >= SIZE {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes[self.length..end].copy_from_slice(part);
        self.truncate(end);
        Ok(())
    }

    pub(super) fn push_number(&mut self, mut number: u64) -> Answer<()> {
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.push(&digits[first..]);
            }
        }
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.length = length;
        self.bytes[length] = 0;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn pointer(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

/// Calls the kernel.
///
/// # Safety
/// The arguments are those of the call; memory that it writes to belongs to the caller.
pub(super) unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Answer<usize> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: promised by the caller.
    let result = unsafe { libc::syscall(number, all[0], all[1], all[2], all[3], all[4], all[5]) };
    usize::try_from(result).map_err(|_| errno())
}

/// A descriptor, a flag or `AT_FDCWD` as an argument.
pub(super) fn int(number: c_int) -> usize {
    number as isize as usize
}

pub(super) const HERE: usize = libc::AT_FDCWD as isize as usize;

pub(super) fn errno() -> c_int {
    // SAFETY: the address of this thread's error number.
    unsafe { *libc::__errno_location() }
}

pub(super) fn set_errno(error: c_int) {
    // SAFETY: the address of this thread's error number.
    unsafe { *libc::__errno_location() = error };
}

/// Calls the kernel with a path of ours in the second place.
fn at<const N: usize>(number: c_long, path: &Text, rest: [usize; N]) -> Answer<usize> {
    let mut all = [0; 6];
    all[0] = HERE;
    all[1] = path.pointer() as usize;
    all[2..2 + N].copy_from_slice(&rest);
    // SAFETY: the path ends with a zero byte; the wrappers below pass numbers and addresses of live values.
    unsafe { call(number, all) }
}

/// A descriptor that is closed at the end of its scope.
pub(super) struct Descriptor(pub(super) c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: closes a descriptor that this library opened.
        let _ = unsafe { call(libc::SYS_close, [int(self.0)]) };
    }
}

pub(super) fn open(path: &Text, flags: c_int, mode: u32) -> Answer<Descriptor> {
    let flags = int(flags | libc::O_CLOEXEC);
    at(libc::SYS_openat, path, [flags, mode as usize]).map(|fd| Descriptor(fd as c_int))
}

fn empty_stat() -> libc::stat {
    // SAFETY: a struct of numbers.
    unsafe { std::mem::zeroed() }
}

/// `lstat`.
pub(super) fn stat(path: &Text) -> Answer<libc::stat> {
    let mut about = empty_stat();
    let flags = int(libc::AT_SYMLINK_NOFOLLOW);
    at(libc::SYS_newfstatat, path, [&raw mut about as usize, flags])?;
    Ok(about)
}

/// `stat`, by the kernel's own way.
pub(super) fn stat_followed(path: &Text) -> Answer<libc::stat> {
    let mut about = empty_stat();
    at(libc::SYS_newfstatat, path, [&raw mut about as usize, 0])?;
    Ok(about)
}

pub(super) fn stat_descriptor(descriptor: c_int) -> Answer<libc::stat> {
    let mut about = empty_stat();
    // SAFETY: `about` has room for the answer.
    unsafe { call(libc::SYS_fstat, [int(descriptor), &raw mut about as usize]) }?;
    Ok(about)
}

/// The text of a symbolic link.
pub(super) fn read_link(path: &Text) -> Answer<Text> {
    let mut target = Text::new();
    let room = [target.bytes.as_mut_ptr() as usize, SIZE - 1];
    let length = at(libc::SYS_readlinkat, path, room)?;
    target.truncate(length);
    Ok(target)
}

/// The directory of this process, as the kernel has it.
pub(super) fn working_directory() -> Answer<Text> {
    let mut path = Text::new();
    // SAFETY: `path` has room for as many bytes.
    let length = unsafe {
        call(
            libc::SYS_getcwd,
            [path.bytes.as_mut_ptr() as usize, SIZE - 1],
        )
    }?;
    path.truncate(length.saturating_sub(1));
    // A directory that is out of reach has no path.
    if path.bytes().first() == Some(&b'/') {
        Ok(path)
    } else {
        Err(libc::ENOENT)
    }
}

/// The path that a descriptor leads to.
pub(super) fn path_of(descriptor: c_int) -> Answer<Text> {
    let mut link = Text::join(&[b"/proc/self/fd/"])?;
    link.push_number(u64::try_from(descriptor).map_err(|_| libc::EBADF)?)?;
    read_link(&link).map_err(|error| {
        if error == libc::ENOENT {
            libc::EBADF
        } else {
            error
        }
    })
}

pub(super) fn make_directory(path: &Text, mode: u32) -> Answer<()> {
    at(libc::SYS_mkdirat, path, [mode as usize]).map(drop)
}

pub(super) fn unlink(path: &Text, flags: c_int) -> Answer<()> {
    at(libc::SYS_unlinkat, path, [int(flags)]).map(drop)
}

pub(super) fn rename(from: &Text, to: &Text, flags: u32) -> Answer<()> {
    let to = to.pointer() as usize;
    at(libc::SYS_renameat2, from, [HERE, to, flags as usize]).map(drop)
}

pub(super) fn link(from: &Text, to: &Text) -> Answer<()> {
    at(libc::SYS_linkat, from, [HERE, to.pointer() as usize, 0]).map(drop)
}

pub(super) fn make_symlink(target: &Text, path: &Text) -> Answer<()> {
    let arguments = [target.pointer() as usize, HERE, path.pointer() as usize];
    // SAFETY: two texts that end with a zero byte.
    unsafe { call(libc::SYS_symlinkat, arguments) }.map(drop)
}

pub(super) fn make_node(path: &Text, mode: u32, device: u64) -> Answer<()> {
    at(libc::SYS_mknodat, path, [mode as usize, device as usize]).map(drop)
}

/// Whether the process may do this with its effective ids.
pub(super) fn access(path: &Text, mode: c_int) -> Answer<()> {
    let arguments = [int(mode), int(libc::AT_EACCESS)];
    match at(libc::SYS_faccessat2, path, arguments) {
        Err(libc::ENOSYS | libc::EPERM) => at(libc::SYS_faccessat, path, [int(mode)]).map(drop),
        answer => answer.map(drop),
    }
}

pub(super) fn change_mode(path: &Text, mode: u32) -> Answer<()> {
    at(libc::SYS_fchmodat, path, [(mode & 0o7777) as usize]).map(drop)
}

/// Owner and group; an owner that may not be given away stays.
pub(super) fn change_owner(path: &Text, about: &libc::stat) -> Answer<()> {
    let flags = int(libc::AT_SYMLINK_NOFOLLOW);
    let ids = [about.st_uid as usize, about.st_gid as usize, flags];
    match at(libc::SYS_fchownat, path, ids) {
        Err(libc::EPERM | libc::EINVAL) => Ok(()),
        answer => answer.map(drop),
    }
}

/// Access and modification time; now, without times.
pub(super) fn change_times(path: &Text, about: Option<&libc::stat>) -> Answer<()> {
    let times = about.map(|about| {
        [
            libc::timespec {
                tv_sec: about.st_atime,
                tv_nsec: about.st_atime_nsec,
            },
            libc::timespec {
                tv_sec: about.st_mtime,
                tv_nsec: about.st_mtime_nsec,
            },
        ]
    });
    let address = times.as_ref().map_or(0, |times| times.as_ptr() as usize);
    let flags = int(libc::AT_SYMLINK_NOFOLLOW);
    at(libc::SYS_utimensat, path, [address, flags]).map(drop)
}

pub(super) fn change_directory(path: &Text) -> Answer<()> {
    // SAFETY: a text that ends with a zero byte.
    unsafe { call(libc::SYS_chdir, [path.pointer() as usize]) }.map(drop)
}

/// Copies what a file holds to an empty one, and keeps its holes.
pub(super) fn copy_content(from: c_int, to: c_int, length: i64) -> Answer<()> {
    const FICLONE: usize = 0x4004_9409;
    // SAFETY: calls with two open descriptors and numbers, and with addresses of live values.
    unsafe {
        if call(libc::SYS_ioctl, [int(to), FICLONE, int(from)]).is_ok() {
            return Ok(());
        }
        let seek = |offset: i64, whence: c_int| {
            call(libc::SYS_lseek, [int(from), offset as usize, int(whence)])
        };
        let mut position = 0i64;
        while position < length {
            let start = match seek(position, libc::SEEK_DATA) {
                Ok(start) => start as i64,
                Err(libc::ENXIO) => break,
                Err(_) => position,
            };
            let end = seek(start, libc::SEEK_HOLE).map_or(length, |end| (end as i64).min(length));
            position = start;
            while position < end {
                let (mut input, mut output) = (position, position);
                let places = [
                    int(from),
                    &raw mut input as usize,
                    int(to),
                    &raw mut output as usize,
                ];
                let [a, b, c, d] = places;
                let left = (end - position) as usize;
                let copied = match call(libc::SYS_copy_file_range, [a, b, c, d, left, 0]) {
                    Ok(0) | Err(_) => copy_piece(from, to, position, left)?,
                    Ok(copied) => copied,
                };
                if copied == 0 {
                    break;
                }
                position += copied as i64;
            }
            if position < end {
                break; // shorter than it was
            }
        }
        call(libc::SYS_ftruncate, [int(to), length as usize]).map(drop)
    }
}

fn copy_piece(from: c_int, to: c_int, position: i64, left: usize) -> Answer<usize> {
    let mut buffer = [0u8; 16 << 10];
    let address = buffer.as_mut_ptr() as usize;
    let place = position as usize;
    // SAFETY: reads into a live buffer and writes out of it, no more than it holds.
    unsafe {
        let length = left.min(buffer.len());
        let got = call(libc::SYS_pread64, [int(from), address, length, place])?;
        if got == 0 {
            return Ok(0);
        }
        call(libc::SYS_pwrite64, [int(to), address, got, place])
    }
}

/// Copies the extended attributes that the process may copy.
pub(super) fn copy_attributes(from: c_int, to: c_int) {
    let (mut names, mut value) = ([0u8; 4096], [0u8; 4096]);
    let (list, room) = (names.as_mut_ptr() as usize, names.len());
    // SAFETY: lists names into a live buffer.
    let Ok(length) = (unsafe { call(libc::SYS_flistxattr, [int(from), list, room]) }) else {
        return;
    };
    let mut start = 0;
    while let Some(size) = names[start..length].iter().position(|byte| *byte == 0) {
        let name = names[start..].as_ptr() as usize;
        let (address, room) = (value.as_mut_ptr() as usize, value.len());
        // SAFETY: a name that ends with a zero byte, and a live buffer.
        unsafe {
            if let Ok(got) = call(libc::SYS_fgetxattr, [int(from), name, address, room]) {
                let _ = call(libc::SYS_fsetxattr, [int(to), name, address, got, 0]);
            }
        }
        start += size + 1;
    }
}

/// Calls `visit` with name, inode and kind of each entry of an open directory, except itself and its parent.
pub(super) fn entries(
    directory: c_int,
    mut visit: impl FnMut(&[u8], u64, u8) -> Answer<()>,
) -> Answer<()> {
    #[repr(align(8))]
    struct Buffer([u8; 8 << 10]);
    let mut buffer = Buffer([0; 8 << 10]);
    loop {
        let (address, room) = (buffer.0.as_mut_ptr() as usize, buffer.0.len());
        // SAFETY: lists entries into a live buffer.
        let length = unsafe { call(libc::SYS_getdents64, [int(directory), address, room]) }?;
        if length == 0 {
            return Ok(());
        }
        let mut rest = &buffer.0[..length];
        // Inode and offset have 8 bytes each, the length 2, the kind one; then comes the name.
        while rest.len() > 19 {
            let inode = u64::from_ne_bytes(rest[..8].try_into().map_err(|_| libc::EIO)?);
            let size = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
            let entry = rest.get(19..size).ok_or(libc::EIO)?;
            let end = entry
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(entry.len());
            let name = &entry[..end];
            if name != b"." && name != b".." {
                visit(name, inode, rest[18])?;
            }
            rest = &rest[size..];
        }
    }
}

/// The kind of a file.
pub(super) fn kind(mode: u32) -> u32 {
    mode & libc::S_IFMT
}

pub(super) fn is_directory(mode: u32) -> bool {
    kind(mode) == libc::S_IFDIR
}
