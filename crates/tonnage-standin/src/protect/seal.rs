// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the kernel refuse writes that this library does not see: those of statically linked programs, raw system calls
//! and io_uring.
//!
//! Landlock needs no privileges. A process restricts itself and all processes that it starts. Files below certain
//! directories can then be opened for writing, created, renamed and deleted, and no others. All writes of this library
//! go there. Landlock does not cover modes, owners, times and extended attributes.

use std::ffi::{CString, c_int};

use tonnage_capture::FILES_SEALED_VARIABLE;

use super::sys::{self, Answer, Text, call, int, is_directory, kind};
use super::variable;

/// Trees of the kernel and of services, as in `overlay.rs`.
const SYSTEM: [&[u8]; 4] = [b"/dev", b"/proc", b"/sys", b"/run"];
/// The process forks children with protections of their own, and a child could not undo this one.
const FORK_SERVER_VARIABLE: &str = "TONNAGE_FORK_SERVER";

const GET_VERSION: usize = 1;
/// A rule for everything below a path.
const PATH_BENEATH: usize = 1;
// Rights, from `linux/landlock.h`.
const WRITE_FILE: u64 = 1 << 1;
/// To remove directories and files, and to make files of seven kinds.
const CHANGE_ENTRIES: u64 = 0x1ff << 4;
/// To rename or link from one directory to another; without this right both always fail.
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
/// The versions that have the latter two.
const REFER_VERSION: usize = 2;
const TRUNCATE_VERSION: usize = 3;

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    directory: c_int,
}

/// Restricts this process, unless one that started it did. Without Landlock nothing happens.
pub(super) fn seal(changes: &[u8], through: &[Vec<u8>]) {
    let is_sealed = variable(FILES_SEALED_VARIABLE).is_some_and(|by| by == changes);
    if is_sealed || variable(FORK_SERVER_VARIABLE).is_some() {
        return;
    }
    let name = CString::new(FILES_SEALED_VARIABLE);
    if restrict(through).is_ok()
        && let (Ok(name), Ok(value)) = (name, CString::new(changes))
    {
        // SAFETY: two texts; the process has one thread when the library is loaded, and after a fork.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
    }
}

fn restrict(through: &[Vec<u8>]) -> Answer<()> {
    // SAFETY: queries a number.
    let version = unsafe { call(libc::SYS_landlock_create_ruleset, [0, 0, GET_VERSION]) }?;
    if version < REFER_VERSION {
        return Err(libc::ENOSYS);
    }
    let truncate = if version < TRUNCATE_VERSION {
        0
    } else {
        TRUNCATE
    };
    let rights = WRITE_FILE | CHANGE_ENTRIES | REFER | truncate;
    let attributes = [&raw const rights as usize, size_of::<u64>(), 0];
    // SAFETY: the shortest form of the struct is one number, which is alive.
    let rules = unsafe { call(libc::SYS_landlock_create_ruleset, attributes) }?;
    let rules = sys::Descriptor(rules as c_int);
    for path in through.iter().map(Vec::as_slice).chain(SYSTEM) {
        // A path that is missing cannot be written to.
        if let Ok(file) = sys::open(&Text::join(&[path])?, libc::O_PATH, 0) {
            allow(&rules, file.0, rights)?;
        }
    }
    // A program may open the file behind its output again, as `/dev/stdout`.
    for stream in 0..3 {
        let about = sys::stat_descriptor(stream);
        if about.is_ok_and(|about| kind(about.st_mode) == libc::S_IFREG) && is_writable(stream) {
            allow(&rules, stream, rights)?;
        }
    }
    let apply = [int(rules.0), 0];
    // SAFETY: restricts this process; the second call is needed without privileges, and lasts.
    unsafe {
        call(libc::SYS_landlock_restrict_self, apply).or_else(|_| {
            let no_new_privileges = [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0];
            call(libc::SYS_prctl, no_new_privileges)?;
            call(libc::SYS_landlock_restrict_self, apply)
        })
    }?;
    Ok(())
}

fn is_writable(descriptor: c_int) -> bool {
    // SAFETY: queries the flags of a descriptor.
    let flags = unsafe { call(libc::SYS_fcntl, [int(descriptor), libc::F_GETFL as usize]) };
    flags.is_ok_and(|flags| flags as c_int & libc::O_ACCMODE != libc::O_RDONLY)
}

fn allow(rules: &sys::Descriptor, file: c_int, rights: u64) -> Answer<()> {
    let about = sys::stat_descriptor(file)?;
    // The kernel takes no rights to entries for a file.
    let allowed = if is_directory(about.st_mode) {
        rights
    } else {
        rights & (WRITE_FILE | TRUNCATE)
    };
    let rule = PathBeneath {
        allowed,
        directory: file,
    };
    let arguments = [int(rules.0), PATH_BENEATH, &raw const rule as usize, 0];
    // SAFETY: the rule is alive until the call returns.
    unsafe { call(libc::SYS_landlock_add_rule, arguments) }.map(drop)
}
