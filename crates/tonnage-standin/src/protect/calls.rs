// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of C that take a path. glibc's own functions do not call each other by name, so each is here.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::change::{self, check_owner, copy_up, create, modify, protected_path};
use super::copies::copy_directories;
use super::list::{self, listing, merge};
use super::path::{Last, Place, Spot, logical, walk, with_file};
use super::start::{List, execute, execute_found, search, with_program};
use super::sys::{self, Answer, HERE, Text, call, int, is_directory, kind};
use super::{CText, Layers, Turn, any_layers, layers};
use crate::ffi::guard;

const CWD: c_int = libc::AT_FDCWD;

/// The address of the function that this library stands before.
fn next(known: &AtomicUsize, name: &CStr) -> usize {
    match known.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: queries a symbol by a text that ends with a zero byte.
            let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
            known.store(address, Ordering::Relaxed);
            address
        }
        address => address,
    }
}

/// Turns an answer into what C's functions return; success leaves the error number as it was.
fn answer<T>(failure: T, body: impl FnOnce() -> Answer<T>) -> T {
    let before = sys::errno();
    match guard(Err(libc::EIO), body) {
        Ok(result) => {
            sys::set_errno(before);
            result
        }
        Err(error) => {
            sys::set_errno(error);
            failure
        }
    }
}

/// Defines functions of C. The body runs if files are protected; `real` is the function of this name in C.
macro_rules! replace {
    ($($name:ident)+ ($($argument:ident: $kind:ty),*) -> $result:ty = $failure:expr, |$layers:ident, $real:ident| $body:expr) => {
        replace!(layers(), $($name)+ ($($argument: $kind),*) -> $result = $failure, |$layers, $real| $body);
    };
    ($find:expr, $name:ident $($more:ident)* ($($argument:ident: $kind:ty),*) -> $result:ty = $failure:expr, |$layers:ident, $real:ident| $body:expr) => {
        #[doc = concat!("Stands before C's `", stringify!($name), "`.\n\n# Safety\nWhat C demands of its caller.")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            static REAL: AtomicUsize = AtomicUsize::new(0);
            type Real = unsafe extern "C" fn($($kind),*) -> $result;
            let name = concat!(stringify!($name), "\0");
            let address = next(&REAL, CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c""));
            if address == 0 {
                sys::set_errno(libc::ENOSYS);
                return $failure;
            }
            // SAFETY: the function of C with this name has this type.
            #[allow(unused_variables, reason = "most bodies do not need it")]
            let $real = unsafe { std::mem::transmute::<usize, Real>(address) };
            #[allow(unused_variables, reason = "some bodies do not need it")]
            let Some($layers) = $find else {
                // SAFETY: the caller's own arguments.
                return unsafe { $real($($argument),*) };
            };
            answer($failure, || $body)
        }
        replace!(@more $find, [$($more)*] ($($argument: $kind),*) -> $result = $failure, |$layers, $real| $body);
    };
    (@more $find:expr, [] $($rest:tt)*) => {};
    (@more $find:expr, [$($name:ident)+] $($rest:tt)*) => {
        replace!($find, $($name)+ $($rest)*);
    };
}

/// Calls the kernel with addresses of the caller.
fn kernel<const N: usize>(number: c_long, arguments: [usize; N]) -> Answer<c_int> {
    // SAFETY: the caller's own arguments, as it passed them to C, or texts of ours; the kernel checks addresses.
    unsafe { call(number, arguments) }.map(|result| result as c_int)
}

fn last_of(flags: c_int) -> Last {
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        Last::Keep
    } else {
        Last::Follow
    }
}

/// Where a file is opened.
struct Target {
    /// The caller's own path, without one.
    path: Option<Text>,
    /// No link was looked for at the end of the path.
    is_tried: bool,
    /// Ends after the file is open.
    _turn: Option<Turn>,
}

/// Gets a file ready to be opened with these flags.
fn find(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    flags: c_int,
    may_try: bool,
) -> Answer<Target> {
    let at = |path: Option<Text>| Target {
        path,
        is_tried: false,
        _turn: None,
    };
    let is_creating = flags & libc::O_CREAT != 0;
    let is_exclusive = is_creating && flags & libc::O_EXCL != 0;
    let is_temporary = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let is_changing = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let keeps = flags & libc::O_NOFOLLOW != 0 || is_exclusive;
    let last = if keeps { Last::Keep } else { Last::Follow };
    let is_reading = flags & libc::O_PATH != 0 || !(is_creating || is_changing || is_temporary);
    if is_reading {
        let may_try = may_try && last == Last::Follow && flags & libc::O_PATH == 0;
        let last = if may_try { Last::Try } else { last };
        let spot = walk(layers, descriptor, path, last, true)?;
        spot.exists()?;
        let is_tried = spot.place == Place::Unread;
        let path = if is_tried || spot.plain {
            None
        } else {
            Some(spot.physical(layers)?)
        };
        return Ok(Target {
            path,
            is_tried,
            _turn: None,
        });
    }
    if is_creating && flags & libc::O_DIRECTORY != 0 && !is_temporary {
        // Kernels differ in this; nothing is created at the root.
        let root = Text::join(&[b"/"])?;
        if matches!(sys::open(&root, flags, 0), Err(libc::EINVAL)) {
            return Err(libc::EINVAL);
        }
    }
    if is_creating && path.ends_with(b"/") {
        change::walk_name(layers, descriptor, path)?;
        return Err(libc::EISDIR);
    }
    let own = |spot: &Spot| {
        Ok(at(if spot.plain {
            None
        } else {
            Some(spot.physical(layers)?)
        }))
    };
    let spot = walk(layers, descriptor, path, last, false)?;
    if spot.through {
        return own(&spot);
    }
    if spot.place == Place::Upper {
        return Ok(at(Some(spot.physical(layers)?)));
    }
    if spot.place == Place::Lower {
        let regular = kind(spot.mode) == libc::S_IFREG;
        if is_exclusive {
            return Err(libc::EEXIST);
        }
        if !(regular && is_changing || spot.is_directory() && is_temporary) {
            // The kernel refuses, or the file is a pipe or a device.
            let is_harmless = !regular || !is_changing;
            return if is_harmless {
                own(&spot)
            } else {
                layers.refuse(spot.path.bytes())
            };
        }
        if regular && flags & libc::O_DIRECTORY != 0 {
            return Err(libc::ENOTDIR);
        }
        let rights = match flags & libc::O_ACCMODE {
            libc::O_RDONLY | libc::O_RDWR => libc::R_OK | libc::W_OK,
            _ => libc::W_OK,
        };
        sys::access(&spot.lower()?, rights)?;
    }
    let turn = Turn::take(layers)?;
    // Another process may have come first.
    let mut spot = walk(layers, descriptor, path, last, false)?;
    if spot.through {
        return own(&spot);
    }
    match spot.place {
        Place::Lower if spot.is_directory() => copy_directories(layers, spot.path.bytes())?,
        Place::Lower if kind(spot.mode) == libc::S_IFREG => {
            copy_up(layers, &mut spot, flags & libc::O_TRUNC != 0)?;
        }
        Place::Missing if !is_creating => return Err(libc::ENOENT),
        Place::Missing if spot.slash => return Err(libc::EISDIR),
        Place::Missing => {
            change::open_parent(layers, spot.path.bytes())?;
            layers.touch(spot.path.bytes());
        }
        Place::Upper => {}
        _ => return layers.refuse(spot.path.bytes()),
    }
    Ok(Target {
        path: Some(layers.upper(spot.path.bytes())?),
        is_tried: false,
        _turn: Some(turn),
    })
}

fn open_file(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    flags: c_int,
    mode: c_uint,
) -> Answer<c_int> {
    let open = |descriptor: c_int, path: *const c_char, flags: c_int| {
        kernel(
            libc::SYS_openat,
            [int(descriptor), path as usize, int(flags), mode as usize],
        )
    };
    let mut target = find(layers, descriptor, path.bytes()?, flags, true)?;
    if target.is_tried {
        match open(descriptor, path.0, flags | libc::O_NOFOLLOW) {
            Err(libc::ELOOP | libc::ENOTDIR) => {
                target = find(layers, descriptor, path.bytes()?, flags, false)?;
            }
            answer => return answer,
        }
    }
    match &target.path {
        Some(physical) => open(CWD, physical.pointer(), flags),
        None => open(descriptor, path.0, flags),
    }
}

// On both architectures a function with a variable argument at the end gets it where one with a fixed argument does.
replace!(open open64 __open __open64(path: CText, flags: c_int, mode: c_uint) -> c_int = -1, |layers, real| {
    open_file(layers, CWD, path, flags, mode)
});
replace!(__open_2 __open64_2(path: CText, flags: c_int) -> c_int = -1, |layers, real| {
    open_file(layers, CWD, path, flags, 0)
});
replace!(openat openat64(descriptor: c_int, path: CText, flags: c_int, mode: c_uint) -> c_int = -1, |layers, real| {
    open_file(layers, descriptor, path, flags, mode)
});
replace!(__openat_2 __openat64_2(descriptor: c_int, path: CText, flags: c_int) -> c_int = -1, |layers, real| {
    open_file(layers, descriptor, path, flags, 0)
});
replace!(creat creat64(path: CText, mode: c_uint) -> c_int = -1, |layers, real| {
    open_file(layers, CWD, path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, mode)
});

/// The flags of a stream's mode.
fn flags_of(mode: &[u8]) -> c_int {
    let has = |letter| {
        mode.iter()
            .skip(1)
            .take_while(|byte| **byte != b',')
            .any(|byte| *byte == letter)
    };
    let flags = match mode.first() {
        Some(b'w') => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        _ => libc::O_RDONLY,
    };
    let flags = if has(b'+') {
        flags & !libc::O_ACCMODE | libc::O_RDWR
    } else {
        flags
    };
    if has(b'x') && flags & libc::O_CREAT != 0 {
        flags | libc::O_EXCL
    } else {
        flags
    }
}

type Stream = *mut libc::FILE;

/// Calls `open` with the path at which a stream is opened.
fn open_stream(
    layers: &Layers,
    path: CText,
    mode: CText,
    open: impl FnOnce(CText) -> Stream,
) -> Answer<Stream> {
    let target = find(layers, CWD, path.bytes()?, flags_of(mode.bytes()?), false)?;
    let stream = open(
        target
            .path
            .as_ref()
            .map_or(path, |path| CText(path.pointer())),
    );
    if stream.is_null() {
        Err(sys::errno())
    } else {
        Ok(stream)
    }
}

replace!(any_layers_or_sources(path), fopen fopen64(path: CText, mode: CText) -> Stream = std::ptr::null_mut(), |found, real| {
    let copy = crate::sources::copy_of(path.bytes()?);
    let path = copy.as_ref().map_or(path, |copy| CText(copy.as_ptr()));
    // SAFETY: the caller's own arguments, or texts that live until the call returns.
    let open = |path: CText| unsafe { real(path, mode) };
    match found {
        Some(layers) => open_stream(layers, path, mode, open),
        None => Some(open(path)).filter(|stream| !stream.is_null()).ok_or_else(sys::errno),
    }
});
replace!(freopen freopen64(path: CText, mode: CText, stream: Stream) -> Stream = std::ptr::null_mut(), |layers, real| {
    // SAFETY: the caller's own arguments, or a text that lives until the call returns.
    let open = |path: CText| unsafe { real(path, mode, stream) };
    if path.0.is_null() { Ok(open(path)) } else { open_stream(layers, path, mode, open) }
});

/// `Some` if `fopen` is not C's alone: files are protected, or sources of the job are replaced.
#[expect(
    clippy::option_option,
    reason = "the inner one is whether files are protected"
)]
fn any_layers_or_sources(path: CText) -> Option<Option<&'static Layers>> {
    let layers = layers();
    (!path.0.is_null() && (layers.is_some() || crate::sources::are_replaced())).then_some(layers)
}

/// Where a library of the upper layer is, for the loader.
pub(crate) fn location(path: &CStr) -> Option<CString> {
    let layers = layers()?;
    if !path.to_bytes().contains(&b'/') {
        return None;
    }
    let spot = walk(layers, CWD, path.to_bytes(), Last::Follow, true).ok()?;
    (spot.place == Place::Upper).then(|| CString::new(spot.physical(layers).ok()?.bytes()).ok())?
}

// Names.

fn rename_file(
    layers: &Layers,
    from: (c_int, CText),
    to: (c_int, CText),
    flags: c_uint,
) -> Answer<c_int> {
    if !layers.is_overlay {
        return change::rename(
            layers,
            (from.0, from.1.bytes()?),
            (to.0, to.1.bytes()?),
            flags,
        )
        .map(|()| 0);
    }
    let places = [
        int(from.0),
        from.1.0 as usize,
        int(to.0),
        to.1.0 as usize,
        flags as usize,
    ];
    match kernel(libc::SYS_renameat2, places) {
        Err(libc::EXDEV) => {}
        answer => return answer,
    }
    let absolute = |(descriptor, path): (c_int, CText)| -> Answer<Text> {
        let path = path.bytes()?;
        let end = path
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(0, |last| last + 1);
        match path.first() {
            Some(b'/') => Text::join(&[&path[..end]]),
            _ if descriptor == CWD => {
                Text::join(&[sys::working_directory()?.bytes(), b"/", &path[..end]])
            }
            _ => Text::join(&[sys::path_of(descriptor)?.bytes(), b"/", &path[..end]]),
        }
    };
    change::rename_in_overlay(&absolute(from)?, &absolute(to)?, flags).map(|()| 0)
}

replace!(any_layers(), rename(from: CText, to: CText) -> c_int = -1, |layers, real| {
    rename_file(layers, (CWD, from), (CWD, to), 0)
});
replace!(any_layers(), renameat(from_descriptor: c_int, from: CText, to_descriptor: c_int, to: CText) -> c_int = -1, |layers, real| {
    rename_file(layers, (from_descriptor, from), (to_descriptor, to), 0)
});
replace!(any_layers(), renameat2(from_descriptor: c_int, from: CText, to_descriptor: c_int, to: CText, flags: c_uint) -> c_int = -1, |layers, real| {
    rename_file(layers, (from_descriptor, from), (to_descriptor, to), flags)
});

fn link_file(
    layers: &Layers,
    from: (c_int, CText),
    to: (c_int, CText),
    flags: c_int,
) -> Answer<c_int> {
    let source = from.1.bytes()?;
    if source.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        let mut link = Text::join(&[b"/proc/self/fd/"])?;
        link.push_number(u64::try_from(from.0).map_err(|_| libc::EBADF)?)?;
        let flags = flags & !libc::AT_EMPTY_PATH | libc::AT_SYMLINK_FOLLOW;
        return change::link(layers, (CWD, link.bytes()), (to.0, to.1.bytes()?), flags).map(|()| 0);
    }
    change::link(layers, (from.0, source), (to.0, to.1.bytes()?), flags).map(|()| 0)
}

replace!(link(from: CText, to: CText) -> c_int = -1, |layers, real| link_file(layers, (CWD, from), (CWD, to), 0));
replace!(linkat(from_descriptor: c_int, from: CText, to_descriptor: c_int, to: CText, flags: c_int) -> c_int = -1, |layers, real| {
    link_file(layers, (from_descriptor, from), (to_descriptor, to), flags)
});

fn create_symlink(layers: &Layers, target: CText, descriptor: c_int, path: CText) -> Answer<c_int> {
    create(layers, descriptor, path.bytes()?, false, |place| {
        kernel(
            libc::SYS_symlinkat,
            [target.0 as usize, HERE, place.pointer() as usize],
        )
    })
}

replace!(symlink(target: CText, path: CText) -> c_int = -1, |layers, real| create_symlink(layers, target, CWD, path));
replace!(symlinkat(target: CText, descriptor: c_int, path: CText) -> c_int = -1, |layers, real| {
    create_symlink(layers, target, descriptor, path)
});

replace!(unlink(path: CText) -> c_int = -1, |layers, real| change::remove(layers, CWD, path.bytes()?, 0).map(|()| 0));
replace!(unlinkat(descriptor: c_int, path: CText, flags: c_int) -> c_int = -1, |layers, real| {
    change::remove(layers, descriptor, path.bytes()?, flags).map(|()| 0)
});
replace!(rmdir(path: CText) -> c_int = -1, |layers, real| {
    change::remove(layers, CWD, path.bytes()?, libc::AT_REMOVEDIR).map(|()| 0)
});
replace!(remove(path: CText) -> c_int = -1, |layers, real| {
    match change::remove(layers, CWD, path.bytes()?, 0) {
        Err(libc::EISDIR) => change::remove(layers, CWD, path.bytes()?, libc::AT_REMOVEDIR).map(|()| 0),
        answer => answer.map(|()| 0),
    }
});

fn create_directory(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    mode: c_uint,
) -> Answer<c_int> {
    create(layers, descriptor, path.bytes()?, true, |place| {
        sys::make_directory(place, mode).map(|()| 0)
    })
}

replace!(mkdir(path: CText, mode: c_uint) -> c_int = -1, |layers, real| create_directory(layers, CWD, path, mode));
replace!(mkdirat(descriptor: c_int, path: CText, mode: c_uint) -> c_int = -1, |layers, real| {
    create_directory(layers, descriptor, path, mode)
});

fn create_node(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    mode: c_uint,
    device: u64,
) -> Answer<c_int> {
    create(layers, descriptor, path.bytes()?, false, |place| {
        sys::make_node(place, mode, device).map(|()| 0)
    })
}

replace!(mknod(path: CText, mode: c_uint, device: u64) -> c_int = -1, |layers, real| {
    create_node(layers, CWD, path, mode, device)
});
replace!(mknodat(descriptor: c_int, path: CText, mode: c_uint, device: u64) -> c_int = -1, |layers, real| {
    create_node(layers, descriptor, path, mode, device)
});
replace!(__xmknod(version: c_int, path: CText, mode: c_uint, device: *const u64) -> c_int = -1, |layers, real| {
    // SAFETY: the caller passes the address of a number.
    create_node(layers, CWD, path, mode, unsafe { crate::ffi::input(device) }.ok_or(libc::EFAULT)?)
});
replace!(__xmknodat(version: c_int, descriptor: c_int, path: CText, mode: c_uint, device: *const u64) -> c_int = -1, |layers, real| {
    // SAFETY: the caller passes the address of a number.
    create_node(layers, descriptor, path, mode, unsafe { crate::ffi::input(device) }.ok_or(libc::EFAULT)?)
});
replace!(mkfifo(path: CText, mode: c_uint) -> c_int = -1, |layers, real| {
    create_node(layers, CWD, path, mode | libc::S_IFIFO, 0)
});
replace!(mkfifoat(descriptor: c_int, path: CText, mode: c_uint) -> c_int = -1, |layers, real| {
    create_node(layers, descriptor, path, mode | libc::S_IFIFO, 0)
});

/// Fills in the six letters of a template until `make` finds the name free.
///
/// # Safety
/// `template` is null or a text that ends with a zero byte and may be written to.
unsafe fn fill_in<T>(
    template: *mut c_char,
    suffix: c_int,
    make: impl Fn(CText) -> Answer<T>,
) -> Answer<T> {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let length = CText(template).bytes()?.len();
    let start = usize::try_from(suffix)
        .ok()
        .and_then(|suffix| length.checked_sub(suffix)?.checked_sub(6));
    let start = start.ok_or(libc::EINVAL)?;
    // SAFETY: six bytes inside the text.
    let letters = unsafe { std::slice::from_raw_parts_mut(template.add(start).cast::<u8>(), 6) };
    if letters != b"XXXXXX" {
        return Err(libc::EINVAL);
    }
    for _ in 0..238_328 {
        let mut random = [0u8; 6];
        kernel(
            libc::SYS_getrandom,
            [random.as_mut_ptr() as usize, random.len(), 0],
        )?;
        for (letter, number) in letters.iter_mut().zip(random) {
            *letter = LETTERS[usize::from(number) % LETTERS.len()];
        }
        match make(CText(template)) {
            Err(libc::EEXIST) => {}
            answer => return answer,
        }
    }
    Err(libc::EEXIST)
}

fn create_temporary(
    layers: &Layers,
    template: *mut c_char,
    suffix: c_int,
    flags: c_int,
) -> Answer<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: C demands such a text.
    unsafe {
        fill_in(template, suffix, |path| {
            open_file(layers, CWD, path, flags, 0o600)
        })
    }
}

replace!(mkstemp mkstemp64(template: *mut c_char) -> c_int = -1, |layers, real| create_temporary(layers, template, 0, 0));
replace!(mkostemp mkostemp64(template: *mut c_char, flags: c_int) -> c_int = -1, |layers, real| {
    create_temporary(layers, template, 0, flags)
});
replace!(mkstemps mkstemps64(template: *mut c_char, suffix: c_int) -> c_int = -1, |layers, real| {
    create_temporary(layers, template, suffix, 0)
});
replace!(mkostemps mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int = -1, |layers, real| {
    create_temporary(layers, template, suffix, flags)
});
replace!(mkdtemp(template: *mut c_char) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    // SAFETY: C demands such a text.
    unsafe { fill_in(template, 0, |path| create_directory(layers, CWD, path, 0o700)) }.map(|_| template)
});

// Attributes.

/// Writing is what `truncate` and times of now demand.
fn check_writable(spot: &Spot) -> Answer<()> {
    if spot.place == Place::Lower {
        sys::access(&spot.lower()?, libc::W_OK)
    } else {
        Ok(())
    }
}

replace!(truncate truncate64(path: CText, length: i64) -> c_int = -1, |layers, real| {
    let check = |spot: &Spot| {
        if spot.is_directory() {
            return Err(libc::EISDIR);
        }
        check_writable(spot)
    };
    modify(layers, CWD, path.bytes()?, Last::Follow, check, length == 0, |place| {
        kernel(libc::SYS_truncate, [place.pointer() as usize, length as usize])
    })
});

fn set_mode(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    mode: c_uint,
    flags: c_int,
) -> Answer<c_int> {
    let check = |spot: &Spot| {
        // C cannot change the mode of a link.
        if kind(spot.mode) == libc::S_IFLNK {
            Err(libc::EOPNOTSUPP)
        } else {
            check_owner(spot)
        }
    };
    modify(
        layers,
        descriptor,
        path,
        last_of(flags),
        check,
        false,
        |place| {
            kernel(
                libc::SYS_fchmodat,
                [HERE, place.pointer() as usize, mode as usize],
            )
        },
    )
}

replace!(chmod(path: CText, mode: c_uint) -> c_int = -1, |layers, real| set_mode(layers, CWD, path.bytes()?, mode, 0));
replace!(lchmod(path: CText, mode: c_uint) -> c_int = -1, |layers, real| {
    set_mode(layers, CWD, path.bytes()?, mode, libc::AT_SYMLINK_NOFOLLOW)
});
replace!(fchmodat(descriptor: c_int, path: CText, mode: c_uint, flags: c_int) -> c_int = -1, |layers, real| {
    set_mode(layers, descriptor, path.bytes()?, mode, flags)
});
replace!(fchmod(descriptor: c_int, mode: c_uint) -> c_int = -1, |layers, real| {
    match protected_path(layers, descriptor)? {
        Some(path) => set_mode(layers, CWD, path.bytes(), mode, libc::AT_SYMLINK_NOFOLLOW),
        None => kernel(libc::SYS_fchmod, [int(descriptor), mode as usize]),
    }
});

fn set_owner(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    ids: (c_uint, c_uint),
    flags: c_int,
) -> Answer<c_int> {
    modify(
        layers,
        descriptor,
        path,
        last_of(flags),
        check_owner,
        false,
        |place| {
            let flags = int(libc::AT_SYMLINK_NOFOLLOW);
            kernel(
                libc::SYS_fchownat,
                [
                    HERE,
                    place.pointer() as usize,
                    ids.0 as usize,
                    ids.1 as usize,
                    flags,
                ],
            )
        },
    )
}

/// Without a path, the file that the descriptor leads to.
fn set_owner_at(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    ids: (c_uint, c_uint),
    flags: c_int,
) -> Answer<c_int> {
    if !path.bytes()?.is_empty() || flags & libc::AT_EMPTY_PATH == 0 || descriptor == CWD {
        return set_owner(layers, descriptor, path.bytes()?, ids, flags);
    }
    match protected_path(layers, descriptor)? {
        Some(path) => set_owner(layers, CWD, path.bytes(), ids, libc::AT_SYMLINK_NOFOLLOW),
        None => kernel(
            libc::SYS_fchownat,
            [
                int(descriptor),
                path.0 as usize,
                ids.0 as usize,
                ids.1 as usize,
                int(flags),
            ],
        ),
    }
}

replace!(chown(path: CText, user: c_uint, group: c_uint) -> c_int = -1, |layers, real| {
    set_owner(layers, CWD, path.bytes()?, (user, group), 0)
});
replace!(lchown(path: CText, user: c_uint, group: c_uint) -> c_int = -1, |layers, real| {
    set_owner(layers, CWD, path.bytes()?, (user, group), libc::AT_SYMLINK_NOFOLLOW)
});
replace!(fchownat(descriptor: c_int, path: CText, user: c_uint, group: c_uint, flags: c_int) -> c_int = -1, |layers, real| {
    set_owner_at(layers, descriptor, path, (user, group), flags)
});
replace!(fchown(descriptor: c_int, user: c_uint, group: c_uint) -> c_int = -1, |layers, real| {
    set_owner_at(layers, descriptor, CText(c"".as_ptr()), (user, group), libc::AT_EMPTY_PATH)
});

type Times = *const [libc::timespec; 2];

/// `utimensat`, where the address of the times may be null.
fn set_times(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    times: Times,
    flags: c_int,
) -> Answer<c_int> {
    let check = |spot: &Spot| match check_owner(spot) {
        Err(_) if times.is_null() => check_writable(spot),
        answer => answer,
    };
    modify(
        layers,
        descriptor,
        path,
        last_of(flags),
        check,
        false,
        |place| {
            let flags = int(libc::AT_SYMLINK_NOFOLLOW);
            kernel(
                libc::SYS_utimensat,
                [HERE, place.pointer() as usize, times as usize, flags],
            )
        },
    )
}

fn set_times_at(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    times: Times,
    flags: c_int,
) -> Answer<c_int> {
    let is_file = path.0.is_null()
        || (path.bytes()?.is_empty() && flags & libc::AT_EMPTY_PATH != 0 && descriptor != CWD);
    if !is_file {
        return set_times(layers, descriptor, path.bytes()?, times, flags);
    }
    match protected_path(layers, descriptor)? {
        Some(path) => set_times(layers, CWD, path.bytes(), times, libc::AT_SYMLINK_NOFOLLOW),
        None => kernel(
            libc::SYS_utimensat,
            [int(descriptor), path.0 as usize, times as usize, int(flags)],
        ),
    }
}

/// Times in microseconds as times in nanoseconds; null stays null.
///
/// # Safety
/// `times` is null or points to two times.
unsafe fn with_nanoseconds(
    times: *const [libc::timeval; 2],
    run: impl FnOnce(Times) -> Answer<c_int>,
) -> Answer<c_int> {
    if times.is_null() {
        return run(std::ptr::null());
    }
    // SAFETY: promised by the caller.
    let times = unsafe { times.read_unaligned() };
    let exact = |time: libc::timeval| libc::timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec * 1000,
    };
    run(&times.map(exact))
}

const NO_PATH: CText = CText(std::ptr::null());

replace!(utimensat(descriptor: c_int, path: CText, times: Times, flags: c_int) -> c_int = -1, |layers, real| {
    set_times_at(layers, descriptor, path, times, flags)
});
replace!(futimens(descriptor: c_int, times: Times) -> c_int = -1, |layers, real| {
    set_times_at(layers, descriptor, NO_PATH, times, 0)
});
replace!(utimes(path: CText, times: *const [libc::timeval; 2]) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own times.
    unsafe { with_nanoseconds(times, |times| set_times(layers, CWD, path.bytes()?, times, 0)) }
});
replace!(lutimes(path: CText, times: *const [libc::timeval; 2]) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own times.
    unsafe { with_nanoseconds(times, |times| set_times(layers, CWD, path.bytes()?, times, libc::AT_SYMLINK_NOFOLLOW)) }
});
replace!(futimes(descriptor: c_int, times: *const [libc::timeval; 2]) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own times.
    unsafe { with_nanoseconds(times, |times| set_times_at(layers, descriptor, NO_PATH, times, 0)) }
});
replace!(futimesat(descriptor: c_int, path: CText, times: *const [libc::timeval; 2]) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own times.
    unsafe { with_nanoseconds(times, |times| set_times_at(layers, descriptor, path, times, 0)) }
});
replace!(utime(path: CText, times: *const libc::utimbuf) -> c_int = -1, |layers, real| {
    // SAFETY: null or the caller's own times.
    let Some(times) = (unsafe { times.as_ref() }) else {
        return set_times(layers, CWD, path.bytes()?, std::ptr::null(), 0);
    };
    let second = |time| libc::timespec { tv_sec: time, tv_nsec: 0 };
    set_times(layers, CWD, path.bytes()?, &[second(times.actime), second(times.modtime)], 0)
});

type Bytes = *const c_void;

fn set_attribute(
    layers: &Layers,
    path: &[u8],
    last: Last,
    name: CText,
    value: Option<(Bytes, usize, c_int)>,
) -> Answer<c_int> {
    modify(layers, CWD, path, last, check_writable, false, |place| {
        let (path, name) = (place.pointer() as usize, name.0 as usize);
        match value {
            Some((value, size, flags)) => kernel(
                libc::SYS_lsetxattr,
                [path, name, value as usize, size, int(flags)],
            ),
            None => kernel(libc::SYS_lremovexattr, [path, name]),
        }
    })
}

replace!(setxattr(path: CText, name: CText, value: Bytes, size: usize, flags: c_int) -> c_int = -1, |layers, real| {
    set_attribute(layers, path.bytes()?, Last::Follow, name, Some((value, size, flags)))
});
replace!(lsetxattr(path: CText, name: CText, value: Bytes, size: usize, flags: c_int) -> c_int = -1, |layers, real| {
    set_attribute(layers, path.bytes()?, Last::Keep, name, Some((value, size, flags)))
});
replace!(fsetxattr(descriptor: c_int, name: CText, value: Bytes, size: usize, flags: c_int) -> c_int = -1, |layers, real| {
    match protected_path(layers, descriptor)? {
        Some(path) => set_attribute(layers, path.bytes(), Last::Keep, name, Some((value, size, flags))),
        None => kernel(libc::SYS_fsetxattr, [int(descriptor), name.0 as usize, value as usize, size, int(flags)]),
    }
});
replace!(removexattr(path: CText, name: CText) -> c_int = -1, |layers, real| {
    set_attribute(layers, path.bytes()?, Last::Follow, name, None)
});
replace!(lremovexattr(path: CText, name: CText) -> c_int = -1, |layers, real| {
    set_attribute(layers, path.bytes()?, Last::Keep, name, None)
});
replace!(fremovexattr(descriptor: c_int, name: CText) -> c_int = -1, |layers, real| {
    match protected_path(layers, descriptor)? {
        Some(path) => set_attribute(layers, path.bytes(), Last::Keep, name, None),
        None => kernel(libc::SYS_fremovexattr, [int(descriptor), name.0 as usize]),
    }
});

// Questions.

replace!(getxattr(path: CText, name: CText, value: *mut c_void, size: usize) -> isize = -1, |layers, real| {
    with_file(layers, CWD, path, Last::Follow, |_, file| {
        kernel(libc::SYS_getxattr, [file, name.0 as usize, value as usize, size]).map(|length| length as isize)
    })
});
replace!(lgetxattr(path: CText, name: CText, value: *mut c_void, size: usize) -> isize = -1, |layers, real| {
    with_file(layers, CWD, path, Last::Keep, |_, file| {
        kernel(libc::SYS_lgetxattr, [file, name.0 as usize, value as usize, size]).map(|length| length as isize)
    })
});
replace!(listxattr(path: CText, names: *mut c_char, size: usize) -> isize = -1, |layers, real| {
    with_file(layers, CWD, path, Last::Follow, |_, file| {
        kernel(libc::SYS_listxattr, [file, names as usize, size]).map(|length| length as isize)
    })
});
replace!(llistxattr(path: CText, names: *mut c_char, size: usize) -> isize = -1, |layers, real| {
    with_file(layers, CWD, path, Last::Keep, |_, file| {
        kernel(libc::SYS_llistxattr, [file, names as usize, size]).map(|length| length as isize)
    })
});

/// A directory of both layers is the one that was there.
fn keep_identity(spot: &Spot, about: &mut libc::stat) {
    if spot.place == Place::Upper
        && is_directory(about.st_mode)
        && let Some(below) = spot
            .lower_stat()
            .filter(|below| is_directory(below.st_mode))
    {
        (about.st_dev, about.st_ino) = (below.st_dev, below.st_ino);
        // Programs that count subdirectories by it must not find too few.
        about.st_nlink = about
            .st_nlink
            .saturating_add(below.st_nlink)
            .saturating_sub(2);
    }
}

fn stat_file(layers: &Layers, descriptor: c_int, path: CText, last: Last) -> Answer<libc::stat> {
    let spot = walk(layers, descriptor, path.bytes()?, last, true)?;
    spot.exists()?;
    // SAFETY: a struct of numbers.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    let (at, physical) = (&raw mut about as usize, spot.physical(layers)?);
    let (descriptor, file) = if spot.plain {
        (int(descriptor), path.0)
    } else {
        (HERE, physical.pointer())
    };
    let keeps = spot.place == Place::Unread || last == Last::Keep;
    let flags = if keeps {
        int(libc::AT_SYMLINK_NOFOLLOW)
    } else {
        0
    };
    kernel(libc::SYS_newfstatat, [descriptor, file as usize, at, flags])?;
    if spot.place == Place::Unread && kind(about.st_mode) == libc::S_IFLNK {
        return stat_file(layers, descriptor as isize as c_int, path, Last::Follow);
    }
    keep_identity(&spot, &mut about);
    Ok(about)
}

fn stat_descriptor(layers: &Layers, descriptor: c_int) -> Answer<libc::stat> {
    let mut about = sys::stat_descriptor(descriptor)?;
    if is_directory(about.st_mode) {
        let path = sys::path_of(descriptor)?;
        let path = logical(layers, path.bytes());
        if layers.may_be_touched(super::hash_of(path))
            && let Ok(spot) = list::spot_of(layers, descriptor)
            && spot.place == Place::Upper
            && let Ok(above) = sys::stat(&spot.physical(layers)?)
        {
            let below = spot.lower_stat().map(|below| (below.st_dev, below.st_ino));
            let own = (about.st_dev, about.st_ino);
            if own == (above.st_dev, above.st_ino) || Some(own) == below {
                about = above;
                keep_identity(&spot, &mut about);
            }
        }
    }
    Ok(about)
}

type Stat = *mut libc::stat;

/// # Safety
/// `out` is null or has room for a struct.
unsafe fn write_stat(out: Stat, about: Answer<libc::stat>) -> Answer<c_int> {
    let about = about?;
    if out.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: promised by the caller.
    unsafe { out.write(about) };
    Ok(0)
}

fn stat_any(layers: &Layers, descriptor: c_int, path: CText, flags: c_int) -> Answer<libc::stat> {
    if path.0.is_null() || (path.bytes()?.is_empty() && flags & libc::AT_EMPTY_PATH != 0) {
        if flags & libc::AT_EMPTY_PATH == 0 {
            return Err(libc::EFAULT);
        }
        return if descriptor == CWD {
            stat_file(layers, CWD, CText(c".".as_ptr()), Last::Follow)
        } else {
            stat_descriptor(layers, descriptor)
        };
    }
    let last = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        Last::Keep
    } else {
        Last::Try
    };
    stat_file(layers, descriptor, path, last)
}

// Structs of both sizes are the same on these architectures.
replace!(stat stat64(path: CText, out: Stat) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_any(layers, CWD, path, 0)) }
});
replace!(lstat lstat64(path: CText, out: Stat) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_any(layers, CWD, path, libc::AT_SYMLINK_NOFOLLOW)) }
});
replace!(fstat fstat64(descriptor: c_int, out: Stat) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_descriptor(layers, descriptor)) }
});
replace!(fstatat fstatat64(descriptor: c_int, path: CText, out: Stat, flags: c_int) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_any(layers, descriptor, path, flags)) }
});
replace!(__xstat __xstat64(version: c_int, path: CText, out: Stat) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_any(layers, CWD, path, 0)) }
});
replace!(__lxstat __lxstat64(version: c_int, path: CText, out: Stat) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_any(layers, CWD, path, libc::AT_SYMLINK_NOFOLLOW)) }
});
replace!(__fxstat __fxstat64(version: c_int, descriptor: c_int, out: Stat) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_descriptor(layers, descriptor)) }
});
replace!(__fxstatat __fxstatat64(version: c_int, descriptor: c_int, path: CText, out: Stat, flags: c_int) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { write_stat(out, stat_any(layers, descriptor, path, flags)) }
});
replace!(statx(descriptor: c_int, path: CText, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int = -1, |layers, real| {
    let ask = |at: usize, file: usize| kernel(libc::SYS_statx, [at, file, int(flags), mask as usize, out as usize]);
    let is_descriptor = path.0.is_null() || path.bytes()?.is_empty();
    if is_descriptor {
        ask(int(descriptor), path.0 as usize)?;
    } else {
        with_file(layers, descriptor, path, last_of(flags), ask)?;
    }
    // SAFETY: the kernel has written to it.
    let more = unsafe { &mut *out };
    if is_directory(u32::from(more.stx_mode)) && let Ok(about) = stat_any(layers, descriptor, path, flags) {
        (more.stx_dev_major, more.stx_dev_minor) = (libc::major(about.st_dev), libc::minor(about.st_dev));
        (more.stx_ino, more.stx_nlink) = (about.st_ino, about.st_nlink as u32);
        more.stx_mtime.tv_sec = about.st_mtime;
        more.stx_mtime.tv_nsec = about.st_mtime_nsec as u32;
        more.stx_mode = about.st_mode as u16;
    }
    Ok(0)
});

fn check_access(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    mode: c_int,
    flags: c_int,
) -> Answer<c_int> {
    let spot = walk(layers, descriptor, path.bytes()?, last_of(flags), true)?;
    spot.exists()?;
    let ask = |descriptor: usize, file: usize| {
        let ask = || kernel(libc::SYS_faccessat, [descriptor, file, int(mode)]);
        if flags == 0 {
            return ask();
        }
        match kernel(
            libc::SYS_faccessat2,
            [descriptor, file, int(mode), int(flags)],
        ) {
            Err(libc::ENOSYS | libc::EPERM) => ask(),
            answer => answer,
        }
    };
    if spot.plain {
        return ask(int(descriptor), path.0 as usize);
    }
    let physical = spot.physical(layers)?;
    // A copy may belong to this process, where the directory does not.
    if spot.is_merged() && check_owner(&spot).is_err() {
        ask(HERE, spot.lower()?.pointer() as usize)?;
    }
    ask(HERE, physical.pointer() as usize)
}

replace!(access(path: CText, mode: c_int) -> c_int = -1, |layers, real| check_access(layers, CWD, path, mode, 0));
replace!(euidaccess eaccess(path: CText, mode: c_int) -> c_int = -1, |layers, real| {
    check_access(layers, CWD, path, mode, libc::AT_EACCESS)
});
replace!(faccessat(descriptor: c_int, path: CText, mode: c_int, flags: c_int) -> c_int = -1, |layers, real| {
    check_access(layers, descriptor, path, mode, flags)
});

/// # Safety
/// `out` has room for `size` bytes.
unsafe fn give_link(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    out: *mut c_char,
    size: usize,
) -> Answer<isize> {
    let target = if path.bytes()?.is_empty() {
        let mut target = [0u8; libc::PATH_MAX as usize];
        let room = [
            int(descriptor),
            path.0 as usize,
            target.as_mut_ptr() as usize,
            target.len() - 1,
        ];
        let length = kernel(libc::SYS_readlinkat, room)? as usize;
        Text::join(&[&target[..length]])?
    } else {
        let spot = walk(layers, descriptor, path.bytes()?, Last::Keep, true)?;
        spot.exists()?;
        sys::read_link(&spot.physical(layers)?)?
    };
    let text = logical(layers, target.bytes());
    let length = text.len().min(size);
    // SAFETY: promised by the caller.
    unsafe {
        out.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), length);
    };
    Ok(length as isize)
}

replace!(readlink(path: CText, out: *mut c_char, size: usize) -> isize = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { give_link(layers, CWD, path, out, size) }
});
replace!(readlinkat(descriptor: c_int, path: CText, out: *mut c_char, size: usize) -> isize = -1, |layers, real| {
    // SAFETY: the caller's own room.
    unsafe { give_link(layers, descriptor, path, out, size) }
});
replace!(__readlink_chk(path: CText, out: *mut c_char, size: usize, room: usize) -> isize = -1, |layers, real| {
    // SAFETY: the caller's own room, as its compiler counted it.
    unsafe { give_link(layers, CWD, path, out, size.min(room)) }
});
replace!(__readlinkat_chk(descriptor: c_int, path: CText, out: *mut c_char, size: usize, room: usize) -> isize = -1, |layers, real| {
    // SAFETY: the caller's own room, as its compiler counted it.
    unsafe { give_link(layers, descriptor, path, out, size.min(room)) }
});

/// Gives a text to the caller, in memory of C if it passes no buffer.
///
/// # Safety
/// `out` is null or has room for `size` bytes.
unsafe fn give_text(text: &[u8], out: *mut c_char, size: usize) -> Answer<*mut c_char> {
    let mut out = out;
    if out.is_null() {
        let size = if size == 0 { text.len() + 1 } else { size };
        if size <= text.len() {
            return Err(libc::ERANGE);
        }
        // SAFETY: C's own memory, which the caller frees.
        out = unsafe { libc::malloc(size) }.cast();
        if out.is_null() {
            return Err(libc::ENOMEM);
        }
    } else if size <= text.len() {
        return Err(if size == 0 {
            libc::EINVAL
        } else {
            libc::ERANGE
        });
    }
    // SAFETY: there is room for the text and a zero byte.
    unsafe {
        out.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(out)
}

fn give_real_path(layers: &Layers, path: CText, out: *mut c_char) -> Answer<*mut c_char> {
    let path = path.bytes().map_err(|_| libc::EINVAL)?;
    let spot = walk(layers, CWD, path, Last::Follow, true)?;
    spot.exists()?;
    let text = spot.lower()?;
    // SAFETY: C demands room for the longest path, or null.
    unsafe {
        give_text(
            text.bytes(),
            out,
            if out.is_null() {
                0
            } else {
                libc::PATH_MAX as usize
            },
        )
    }
}

replace!(realpath(path: CText, out: *mut c_char) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_real_path(layers, path, out)
});
replace!(__realpath_chk(path: CText, out: *mut c_char, size: usize) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_real_path(layers, path, out)
});
replace!(canonicalize_file_name(path: CText) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_real_path(layers, path, std::ptr::null_mut())
});

fn give_working_directory(layers: &Layers, out: *mut c_char, size: usize) -> Answer<*mut c_char> {
    if size == 0 && !out.is_null() {
        return Err(libc::EINVAL);
    }
    let physical = sys::working_directory()?;
    let path = logical(layers, physical.bytes());
    if layers.may_be_touched(super::hash_of(path)) {
        walk(layers, CWD, path, Last::Keep, true)?.exists()?;
    }
    // SAFETY: the caller's own room.
    unsafe { give_text(path, out, size) }
}

replace!(getcwd(out: *mut c_char, size: usize) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_working_directory(layers, out, size)
});
replace!(__getcwd_chk(out: *mut c_char, size: usize, room: usize) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_working_directory(layers, out, size.min(room))
});
replace!(getwd(out: *mut c_char) -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_working_directory(layers, out, libc::PATH_MAX as usize)
});
replace!(get_current_dir_name() -> *mut c_char = std::ptr::null_mut(), |layers, real| {
    give_working_directory(layers, std::ptr::null_mut(), 0)
});
replace!(chdir(path: CText) -> c_int = -1, |layers, real| {
    let mut spot = walk(layers, CWD, path.bytes()?, Last::Follow, true)?;
    spot.exists()?;
    if !spot.is_directory() {
        return Err(libc::ENOTDIR);
    }
    if spot.plain {
        return kernel(libc::SYS_chdir, [path.0 as usize]);
    }
    // Programs that are not protected find the user's directory.
    if spot.is_merged() {
        spot.place = Place::Lower;
    }
    sys::change_directory(&spot.physical(layers)?).map(|()| 0)
});

/// Calls `run` with a path whose volume is that of the file, without protection.
fn with_volume<T>(layers: &Layers, path: CText, run: impl FnOnce(CText) -> Answer<T>) -> Answer<T> {
    let mut spot = walk(layers, CWD, path.bytes()?, Last::Follow, true)?;
    spot.exists()?;
    if spot.plain {
        return run(path);
    }
    loop {
        let below = spot.lower()?;
        if spot.path.bytes().is_empty() || sys::stat(&below).is_ok() {
            return run(CText(below.pointer()));
        }
        let shorter = spot.parent().len();
        spot.path.truncate(shorter);
    }
}

replace!(statfs statfs64(path: CText, out: *mut c_void) -> c_int = -1, |layers, real| {
    with_volume(layers, path, |path| kernel(libc::SYS_statfs, [path.0 as usize, out as usize]))
});
replace!(statvfs statvfs64(path: CText, out: *mut c_void) -> c_int = -1, |layers, real| {
    with_volume(layers, path, |path| {
        // SAFETY: the caller's own room, and a text that lives until the call returns.
        if unsafe { real(path, out) } == 0 { Ok(0) } else { Err(sys::errno()) }
    })
});
replace!(pathconf(path: CText, name: c_int) -> c_long = -1, |layers, real| {
    with_volume(layers, path, |path| {
        sys::set_errno(0);
        // SAFETY: a text that lives until the call returns.
        match unsafe { real(path, name) } {
            -1 if sys::errno() != 0 => Err(sys::errno()),
            limit => Ok(limit),
        }
    })
});

// Directories.

type Directory = *mut libc::DIR;

replace!(opendir(path: CText) -> Directory = std::ptr::null_mut(), |layers, real| {
    let spot = walk(layers, CWD, path.bytes()?, Last::Follow, true)?;
    spot.exists()?;
    if !spot.is_directory() {
        return Err(libc::ENOTDIR);
    }
    let physical = spot.physical(layers)?;
    // SAFETY: a text that lives until the call returns.
    let stream = unsafe { real(if spot.plain { path } else { CText(physical.pointer()) }) };
    if stream.is_null() {
        return Err(sys::errno());
    }
    merge(layers, stream, &spot)?;
    Ok(stream)
});
replace!(fdopendir(descriptor: c_int) -> Directory = std::ptr::null_mut(), |layers, real| {
    // SAFETY: the caller's own argument.
    let stream = unsafe { real(descriptor) };
    if stream.is_null() {
        return Err(sys::errno());
    }
    if let Ok(spot) = list::spot_of(layers, descriptor) {
        merge(layers, stream, &spot)?;
    }
    Ok(stream)
});
replace!(listing(stream), readdir readdir64(stream: Directory) -> *mut libc::dirent64 = std::ptr::null_mut(), |found, real| {
    Ok(found.next())
});
replace!(listing(stream), readdir_r readdir64_r(stream: Directory, entry: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int = libc::EIO, |found, real| {
    let next = found.next();
    // SAFETY: the caller's own room for an entry and an address.
    unsafe {
        if !next.is_null() {
            entry.copy_from_nonoverlapping(next, 1);
        }
        result.write(if next.is_null() { next } else { entry });
    }
    Ok(0)
});
replace!(listing(stream), telldir(stream: Directory) -> c_long = -1, |found, real| Ok(found.tell()));
replace!(listing(stream), seekdir(stream: Directory, position: c_long) -> () = Default::default(), |found, real| {
    found.seek(position);
    Ok(())
});
replace!(rewinddir(stream: Directory) -> () = Default::default(), |layers, real| {
    // SAFETY: the caller's own stream.
    let descriptor = unsafe {
        real(stream);
        libc::dirfd(stream)
    };
    // Entries that came and went since are seen from here on.
    match list::spot_of(layers, descriptor) {
        Ok(spot) if spot.is_directory() => merge(layers, stream, &spot),
        _ => Ok(()),
    }
});
replace!(closedir(stream: Directory) -> c_int = -1, |layers, real| {
    list::detach(stream);
    // SAFETY: the caller's own stream.
    if unsafe { real(stream) } == 0 { Ok(0) } else { Err(sys::errno()) }
});

type Entry = *mut libc::dirent64;
type Chooses = Option<unsafe extern "C" fn(*const libc::dirent64) -> c_int>;
type Compares = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;

/// `scandir`, with the functions of this file.
///
/// # Safety
/// The arguments that `scandir` takes.
unsafe fn scan(
    descriptor: c_int,
    path: CText,
    out: *mut *mut Entry,
    chooses: Chooses,
    compares: Compares,
) -> Answer<c_int> {
    // SAFETY: the caller's own arguments; entries and their list are C's memory, which the caller frees.
    unsafe {
        let directory = openat(
            descriptor,
            path,
            libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
            0,
        );
        if directory < 0 {
            return Err(sys::errno());
        }
        let stream = fdopendir(directory);
        if stream.is_null() {
            return Err(sys::errno());
        }
        let mut found: Vec<Entry> = Vec::new();
        loop {
            let entry = readdir(stream);
            if entry.is_null() {
                break;
            }
            if chooses.is_none_or(|chooses| chooses(entry) != 0) {
                let size = size_of::<libc::dirent64>();
                let copy: Entry = libc::calloc(1, size).cast();
                if copy.is_null() {
                    return Err(libc::ENOMEM);
                }
                copy.cast::<u8>().copy_from_nonoverlapping(
                    entry.cast(),
                    size.min(usize::from((*entry).d_reclen)),
                );
                found.push(copy);
            }
        }
        closedir(stream);
        let list: *mut Entry = libc::calloc(found.len().max(1), size_of::<Entry>()).cast();
        if list.is_null() {
            return Err(libc::ENOMEM);
        }
        list.copy_from_nonoverlapping(found.as_ptr(), found.len());
        if let Some(compares) = compares {
            libc::qsort(list.cast(), found.len(), size_of::<Entry>(), Some(compares));
        }
        out.write(list);
        Ok(found.len() as c_int)
    }
}

replace!(scandir scandir64(path: CText, out: *mut *mut Entry, chooses: Chooses, compares: Compares) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own arguments.
    unsafe { scan(CWD, path, out, chooses, compares) }
});
replace!(scandirat scandirat64(descriptor: c_int, path: CText, out: *mut *mut Entry, chooses: Chooses, compares: Compares) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own arguments.
    unsafe { scan(descriptor, path, out, chooses, compares) }
});

/// glibc's `glob_t`.
#[repr(C)]
pub(crate) struct Glob {
    _found: [usize; 3],
    _flags: c_int,
    functions: [*const c_void; 5],
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

replace!(glob glob64(pattern: CText, flags: c_int, on_error: *const c_void, out: *mut Glob) -> c_int = libc::GLOB_ABORTED, |layers, real| {
    if flags & GLOB_ALTDIRFUNC == 0 {
        let functions: [*const c_void; 5] =
            [closedir as _, readdir as _, opendir as _, lstat as _, stat as _];
        // SAFETY: the caller's own struct. glibc calls these if a flag reports it.
        unsafe { (*out).functions = functions };
    }
    // SAFETY: the caller's own arguments.
    Ok(unsafe { real(pattern, flags | GLOB_ALTDIRFUNC, on_error, out) })
});

type Visit =
    unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut [c_int; 2]) -> c_int;
type VisitShort = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;

type Visitor<'a> = dyn Fn(&CStr, &libc::stat, c_int, [c_int; 2]) -> c_int + 'a;

/// A visit of everything below a directory.
struct Tour<'a> {
    visit: &'a Visitor<'a>,
    flags: c_int,
    device: Option<u64>,
    directories: std::collections::BTreeSet<(u64, u64)>,
}

const FTW_PHYS: c_int = 1;
const FTW_MOUNT: c_int = 2;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;

impl Tour<'_> {
    fn go(&mut self, layers: &Layers, path: &CStr, level: c_int) -> Answer<c_int> {
        let base = path
            .to_bytes()
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |slash| slash + 1);
        let at = [base as c_int, level];
        let text = CText(path.as_ptr());
        let own = stat_file(layers, CWD, text, Last::Keep);
        let about = if self.flags & FTW_PHYS != 0 {
            own
        } else {
            stat_file(layers, CWD, text, Last::Follow)
        };
        let about = match (about, own) {
            (Ok(about), _) => about,
            (Err(_), Ok(own)) if kind(own.st_mode) == libc::S_IFLNK => {
                return Ok((self.visit)(path, &own, 6, at));
            }
            (Err(error), _) if level == 0 => return Err(error),
            // SAFETY: a struct of numbers.
            (Err(_), _) => return Ok((self.visit)(path, &unsafe { std::mem::zeroed() }, 3, at)),
        };
        if !is_directory(about.st_mode) {
            let link = kind(about.st_mode) == libc::S_IFLNK;
            return Ok((self.visit)(path, &about, if link { 4 } else { 0 }, at));
        }
        let device = *self.device.get_or_insert(about.st_dev);
        let is_other = self.flags & FTW_MOUNT != 0 && device != about.st_dev;
        if is_other || !self.directories.insert((about.st_dev, about.st_ino)) {
            return Ok(0);
        }
        let spot = walk(layers, CWD, path.to_bytes(), Last::Follow, true)?;
        let mut names = Vec::new();
        let listed = change::visit_entries(layers, &spot, |name, _, _| {
            names
                .push(CString::new([path.to_bytes(), b"/", name].concat()).map_err(|_| libc::EIO)?);
            Ok(())
        });
        if listed.is_err() {
            return Ok((self.visit)(path, &about, 2, at));
        }
        let is_after = self.flags & FTW_DEPTH != 0;
        let mut result = if is_after {
            0
        } else {
            (self.visit)(path, &about, 1, at)
        };
        for name in names {
            if result != 0 {
                return Ok(result);
            }
            result = self.go(layers, &name, level + 1)?;
        }
        if result == 0 && is_after {
            result = (self.visit)(path, &about, 5, at);
        }
        Ok(result)
    }
}

fn visit_all(layers: &Layers, path: CText, flags: c_int, visit: &Visitor<'_>) -> Answer<c_int> {
    let path = CString::new(path.bytes()?).map_err(|_| libc::EINVAL)?;
    let mut tour = Tour {
        visit,
        flags,
        device: None,
        directories: std::collections::BTreeSet::new(),
    };
    tour.go(layers, &path, 0)
}

replace!(ftw ftw64(path: CText, visit: VisitShort, descriptors: c_int) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own function, with live values.
    visit_all(layers, path, 0, &|path, about, kind, _| unsafe { visit(path.as_ptr(), about, kind) })
});
replace!(nftw nftw64(path: CText, visit: Visit, descriptors: c_int, flags: c_int) -> c_int = -1, |layers, real| {
    if flags & (FTW_CHDIR | FTW_ACTIONRETVAL) != 0 {
        // SAFETY: the caller's own arguments.
        return Ok(unsafe { real(path, visit, descriptors, flags) });
    }
    // SAFETY: the caller's own function, with live values.
    visit_all(layers, path, flags, &|path, about, kind, mut at| unsafe { visit(path.as_ptr(), about, kind, &raw mut at) })
});

// Programs.

replace!(execve(path: CText, arguments: List, environment: List) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own lists.
    unsafe { execute(layers, path, arguments, environment) }
});
replace!(execv(path: CText, arguments: List) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own list, and that of the process.
    unsafe { execute(layers, path, arguments, environ()) }
});
replace!(execvp(name: CText, arguments: List) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own list, and that of the process.
    unsafe { execute_found(layers, name, arguments, environ()) }
});
replace!(execvpe(name: CText, arguments: List, environment: List) -> c_int = -1, |layers, real| {
    // SAFETY: the caller's own lists.
    unsafe { execute_found(layers, name, arguments, environment) }
});
replace!(execveat(descriptor: c_int, path: CText, arguments: List, environment: List, flags: c_int) -> c_int = -1, |layers, real| {
    let run = |at: usize, file: usize, arguments: List, environment: List| {
        kernel(libc::SYS_execveat, [at, file, arguments as usize, environment as usize, int(flags)])
    };
    let lists = (arguments, environment);
    // SAFETY: the caller's own lists.
    unsafe {
        if path.bytes()?.is_empty() {
            let run = |_, _, arguments, environment| run(int(descriptor), path.0 as usize, arguments, environment);
            return with_program(layers, CWD, CText(c"/".as_ptr()), lists, run);
        }
        with_program(layers, descriptor, path, lists, run)
    }
});
replace!(fexecve(descriptor: c_int, arguments: List, environment: List) -> c_int = -1, |layers, real| {
    let run = |_, _, _, environment| {
        // SAFETY: the caller's own descriptor and arguments.
        unsafe { real(descriptor, arguments, environment) };
        Err(sys::errno())
    };
    // SAFETY: the caller's own lists.
    unsafe { with_program(layers, CWD, CText(c"/".as_ptr()), (arguments, environment), run) }
});

fn environ() -> List {
    unsafe extern "C" {
        static environ: List;
    }
    // SAFETY: the list of C, read at this moment.
    unsafe { environ }
}

// These return an error number.
replace!(posix_spawn(child: *mut libc::pid_t, path: CText, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int = sys::errno(), |layers, real| {
    // SAFETY: the caller's own arguments.
    unsafe {
        with_program(layers, CWD, path, (arguments, environment), |_, file, arguments, environment| {
            match real(child, CText(file as *const c_char), actions, attributes, arguments, environment) {
                0 => Ok(0),
                error => Err(error),
            }
        })
    }
});
replace!(posix_spawnp(child: *mut libc::pid_t, name: CText, actions: *const c_void, attributes: *const c_void, arguments: List, environment: List) -> c_int = sys::errno(), |layers, real| {
    search(name.bytes()?, |path| {
        // SAFETY: the caller's own arguments.
        unsafe {
            with_program(layers, CWD, CText(path.pointer()), (arguments, environment), |_, file, arguments, environment| {
                match real(child, CText(file as *const c_char), actions, attributes, arguments, environment) {
                    0 => Ok(0),
                    error => Err(error),
                }
            })
        }
    })
});
replace!(posix_spawn_file_actions_addopen(actions: *mut c_void, descriptor: c_int, path: CText, flags: c_int, mode: c_uint) -> c_int = sys::errno(), |layers, real| {
    let target = find(layers, CWD, path.bytes()?, flags, false)?;
    let path = target.path.as_ref().map_or(path, |path| CText(path.pointer()));
    // SAFETY: the caller's own arguments; C copies the path.
    match unsafe { real(actions, descriptor, path, flags, mode) } {
        0 => Ok(0),
        error => Err(error),
    }
});
replace!(posix_spawn_file_actions_addchdir_np(actions: *mut c_void, path: CText) -> c_int = sys::errno(), |layers, real| {
    with_file(layers, CWD, path, Last::Follow, |_, file| {
        // SAFETY: the caller's own arguments; C copies the path.
        match unsafe { real(actions, CText(file as *const c_char)) } {
            0 => Ok(0),
            error => Err(error),
        }
    })
});

// Sockets with a path.

/// The path of a socket's address.
fn socket_path(address: &[u8]) -> Option<&[u8]> {
    let family = u16::from_ne_bytes(address.get(..2)?.try_into().ok()?);
    let path = address[2..].split(|byte| *byte == 0).next()?;
    (c_int::from(family) == libc::AF_UNIX && !path.is_empty()).then_some(path)
}

/// Bytes of the path of a socket, with the zero byte at its end.
const SOCKET_PATH: usize = 108;

/// Calls `run` with the address of a socket of the upper layer. Paths of sockets are short, so its directory is opened.
fn with_socket(
    layers: &Layers,
    path: &[u8],
    run: impl FnOnce(&libc::sockaddr_un) -> Answer<c_int>,
) -> Answer<c_int> {
    let place = layers.upper(path)?;
    let mut short = Text::join(&[b"/proc/self/fd/"])?;
    let directory;
    // The kernel reports the name that a socket is bound to, and other processes connect to it: the full path is valid
    // everywhere, that of a descriptor only here.
    let named = if place.bytes().len() < SOCKET_PATH {
        place.bytes()
    } else {
        directory = sys::open(
            &layers.upper(super::copies::parent(path))?,
            libc::O_PATH | libc::O_DIRECTORY,
            0,
        )?;
        short.push_number(directory.0 as u64)?;
        short.push(&place.bytes()[super::copies::parent(place.bytes()).len()..])?;
        short.bytes()
    };
    // SAFETY: a struct of numbers.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if named.len() >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, from) in address.sun_path.iter_mut().zip(named) {
        *to = *from as c_char;
    }
    run(&address)
}

replace!(bind(socket: c_int, address: *const u8, length: c_uint) -> c_int = -1, |layers, real| {
    let own = || kernel(libc::SYS_bind, [int(socket), address as usize, length as usize]);
    // SAFETY: the caller's own address, of this length.
    let Some(path) = socket_path(unsafe { crate::ffi::input_array(address, length as usize) }) else {
        return own();
    };
    let spot = walk(layers, CWD, path, Last::Keep, false)?;
    if spot.through {
        return own();
    }
    let made = create(layers, CWD, path, false, |_| {
        with_socket(layers, spot.path.bytes(), |address| {
            kernel(libc::SYS_bind, [int(socket), &raw const *address as usize, size_of::<libc::sockaddr_un>()])
        })
    });
    made.map_err(|error| if error == libc::EEXIST { libc::EADDRINUSE } else { error })
});

/// Connects to a socket that the job made, for the replacement of C's `connect`; none if the address is another one.
///
/// # Safety
/// `address` points to `length` readable bytes.
pub(crate) unsafe fn connect_to_own(
    socket: c_int,
    address: *const u8,
    length: c_uint,
) -> Option<c_int> {
    let layers = layers()?;
    // SAFETY: promised by the caller.
    let path = socket_path(unsafe { crate::ffi::input_array(address, length as usize) })?;
    let spot = walk(layers, CWD, path, Last::Follow, true).ok()?;
    let is_own = spot.place == Place::Upper;
    is_own.then(|| {
        answer(-1, || {
            with_socket(layers, spot.path.bytes(), |address| {
                kernel(
                    libc::SYS_connect,
                    [
                        int(socket),
                        &raw const *address as usize,
                        size_of::<libc::sockaddr_un>(),
                    ],
                )
            })
        })
    })
}
