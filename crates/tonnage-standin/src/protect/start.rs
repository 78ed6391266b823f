// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the job starts: they may be in the upper layer, and they are protected whatever their environment.

use std::ffi::{CStr, c_char, c_int};

use super::path::{Last, Place, walk, with_file};
use super::sys::{self, Answer, Text, call, int};
use super::{CText, Layers};

/// A list of texts that ends with null.
pub(super) type List = *const *const c_char;

/// Memory that is given back at the end, and for good when the process becomes another program.
struct Room {
    address: *mut u8,
    length: usize,
    used: usize,
}

impl Room {
    fn new(length: usize) -> Answer<Self> {
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a fresh mapping; not from the heap, whose locks may be held by a thread that forked.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
        Ok(Self {
            address: address.cast(),
            length,
            used: 0,
        })
    }

    /// Room for `length` bytes, aligned for pointers.
    fn take(&mut self, length: usize) -> Answer<*mut u8> {
        let start = self.used.next_multiple_of(align_of::<usize>());
        self.used = start
            .checked_add(length)
            .filter(|end| *end <= self.length)
            .ok_or(libc::E2BIG)?;
        // SAFETY: inside the mapping.
        Ok(unsafe { self.address.add(start) })
    }

    /// A text of these parts.
    fn text(&mut self, parts: &[&[u8]]) -> Answer<*const c_char> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let start = self.take(length + 1)?;
        let mut end = start;
        for part in parts {
            // SAFETY: there is room for all parts and a zero byte, which is there already.
            unsafe {
                end.copy_from_nonoverlapping(part.as_ptr(), part.len());
                end = end.add(part.len());
            }
        }
        Ok(start.cast())
    }

    /// A list of the first texts and then those of another list from `skip` on.
    ///
    /// # Safety
    /// `list` is null or ends with null.
    unsafe fn list(&mut self, first: &[*const c_char], list: List, skip: usize) -> Answer<List> {
        // SAFETY: promised by the caller.
        let count = unsafe { length_of(list) };
        let left = count.saturating_sub(skip);
        let made: *mut *const c_char = self
            .take((first.len() + left + 1) * size_of::<usize>())?
            .cast();
        // SAFETY: there is room for as many and for the null at the end, which is there already.
        unsafe {
            made.copy_from_nonoverlapping(first.as_ptr(), first.len());
            if left > 0 {
                made.add(first.len())
                    .copy_from_nonoverlapping(list.add(skip), left);
            }
        }
        Ok(made)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping is used by nothing else.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

/// # Safety
/// `list` is null or ends with null.
unsafe fn length_of(list: List) -> usize {
    let mut count = 0;
    // SAFETY: promised by the caller.
    while !list.is_null() && unsafe { !(*list.add(count)).is_null() } {
        count += 1;
    }
    count
}

/// The environment with the variables that keep a process protected.
///
/// # Safety
/// `list` is null or a list of texts.
unsafe fn complete(layers: &Layers, room: &mut Room, list: List) -> Answer<List> {
    let mut added = [std::ptr::null(); 5];
    let mut count = 0;
    for needed in layers.environment.iter().take(added.len()) {
        let needed = needed.to_bytes_with_nul();
        let name = needed
            .split_inclusive(|byte| *byte == b'=')
            .next()
            .unwrap_or(needed);
        let value = &needed[name.len()..needed.len() - 1];
        // SAFETY: promised by the caller.
        let present = (0..unsafe { length_of(list) }).find_map(|index| {
            // SAFETY: promised by the caller.
            let entry = unsafe { CStr::from_ptr(*list.add(index)) };
            entry.to_bytes().strip_prefix(name)
        });
        let is_list = name == b"LD_PRELOAD=";
        let has_all = |present: &[u8]| present.windows(value.len()).any(|part| part == value);
        added[count] = match present {
            Some(present) if present == value || (is_list && has_all(present)) => continue,
            // The first of two variables with one name is used.
            Some(present) if is_list => room.text(&[name, value, b":", present])?,
            _ => needed.as_ptr().cast(),
        };
        count += 1;
    }
    if count == 0 {
        return Ok(list);
    }
    // SAFETY: promised by the caller.
    unsafe { room.list(&added[..count], list, 0) }
}

/// Calls `run` with the program, the arguments and the environment that the kernel gets instead.
///
/// # Safety
/// The arguments that `execve` takes.
pub(super) unsafe fn with_program<T>(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    (arguments, environment): (List, List),
    run: impl FnOnce(usize, usize, List, List) -> Answer<T>,
) -> Answer<T> {
    // SAFETY: promised by the caller.
    let count = unsafe { length_of(arguments) + length_of(environment) };
    let mut room =
        Room::new((count + 16) * size_of::<usize>() + (16 << 10) + 4 * libc::PATH_MAX as usize)?;
    // SAFETY: promised by the caller.
    let environment = unsafe { complete(layers, &mut room, environment) }?;
    let spot = walk(layers, descriptor, path.bytes()?, Last::Follow, true)?;
    let mut head = [0u8; 256];
    let script = if spot.place == Place::Upper {
        read_head(&spot.physical(layers)?, &mut head)
    } else {
        None
    };
    let Some((interpreter, option)) = script else {
        return with_file(layers, descriptor, path, Last::Follow, |at, file| {
            run(at, file, arguments, environment)
        });
    };
    // The kernel would pass on the path of the copy.
    sys::access(&spot.physical(layers)?, libc::X_OK)?;
    let interpreter = CText(room.text(&[interpreter])?);
    let mut first = [interpreter.0; 3];
    let mut length = 1;
    if let Some(option) = option {
        first[length] = room.text(&[option])?;
        length += 1;
    }
    first[length] = if descriptor == libc::AT_FDCWD {
        path.0
    } else {
        room.text(&[spot.path.bytes()])?
    };
    // SAFETY: promised by the caller.
    let arguments = unsafe { room.list(&first[..=length], arguments, 1) }?;
    with_file(
        layers,
        libc::AT_FDCWD,
        interpreter,
        Last::Follow,
        |at, file| run(at, file, arguments, environment),
    )
}

/// The interpreter of a script, and its option.
fn read_head<'a>(path: &Text, head: &'a mut [u8; 256]) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let file = sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK, 0).ok()?;
    // SAFETY: reads into a live buffer.
    let length = unsafe {
        call(
            libc::SYS_read,
            [int(file.0), head.as_mut_ptr() as usize, head.len()],
        )
    }
    .ok()?;
    let line = head[..length]
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?
        .trim_ascii();
    let end = line
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(line.len());
    let option = line[end..].trim_ascii();
    (end > 0).then(|| (&line[..end], (!option.is_empty()).then_some(option)))
}

/// `execve`.
///
/// # Safety
/// The arguments that `execve` takes.
pub(super) unsafe fn execute(
    layers: &Layers,
    path: CText,
    arguments: List,
    environment: List,
) -> Answer<c_int> {
    // SAFETY: promised by the caller.
    unsafe {
        with_program(
            layers,
            libc::AT_FDCWD,
            path,
            (arguments, environment),
            |_, file, arguments, environment| {
                call(
                    libc::SYS_execve,
                    [file, arguments as usize, environment as usize],
                )
                .map(|_| 0)
            },
        )
    }
}

/// Calls `run` with each path under which `name` may be found, until one is.
pub(super) fn search<T>(name: &[u8], mut run: impl FnMut(&Text) -> Answer<T>) -> Answer<T> {
    if name.is_empty() {
        return Err(libc::ENOENT);
    }
    if name.contains(&b'/') {
        return run(&Text::join(&[name])?);
    }
    // SAFETY: queries a variable by a text that ends with a zero byte; its value is one, too.
    let list = unsafe { crate::ffi::input_text(libc::getenv(c"PATH".as_ptr())) };
    let mut error = libc::ENOENT;
    for folder in list
        .unwrap_or(c"/bin:/usr/bin")
        .to_bytes()
        .split(|byte| *byte == b':')
    {
        let path = Text::join(&[if folder.is_empty() { b"." } else { folder }, b"/", name])?;
        match run(&path) {
            Err(libc::EACCES) => error = libc::EACCES,
            Err(libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT) => {}
            answer => return answer,
        }
    }
    Err(error)
}

/// `execvpe`.
///
/// # Safety
/// The arguments that `execvpe` takes.
pub(super) unsafe fn execute_found(
    layers: &Layers,
    name: CText,
    arguments: List,
    environment: List,
) -> Answer<c_int> {
    search(name.bytes()?, |path| {
        // SAFETY: promised by the caller.
        match unsafe { execute(layers, CText(path.pointer()), arguments, environment) } {
            Err(libc::ENOEXEC) => {
                // SAFETY: promised by the caller.
                let mut room =
                    unsafe { Room::new((length_of(arguments) + 8) * size_of::<usize>()) }?;
                let shell = c"/bin/sh".as_ptr();
                // SAFETY: promised by the caller.
                unsafe {
                    let arguments = room.list(&[shell, path.pointer()], arguments, 1)?;
                    execute(layers, CText(shell), arguments, environment)
                }
            }
            answer => answer,
        }
    })
}
