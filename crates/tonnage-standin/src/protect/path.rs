// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks a path through both layers, as the kernel walks it through one.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::copies::{has_linked_copy, lower, parent};
use super::sys::{self, Answer, HERE, Text, int, is_directory, kind};
use super::{CText, EMPTY, Layers, extend, find_known, hash_of, is_below};

/// The treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    Keep,
    /// Like `Follow`, but a file without anything above it is left to the caller, who tries it without following.
    Try,
}

/// Where something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Upper,
    Lower,
    Missing,
    /// In the lower layer if anywhere, and not looked at; only for [`Last::Try`].
    Unread,
}

/// The end of a walk.
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
pub(super) struct Spot {
    /// Absolute, without links and dots; empty for the root.
    pub(super) path: Text,
    pub(super) place: Place,
    pub(super) mode: u32,
    /// The lower layer is not visible here: it was deleted, or a directory above it.
    pub(super) hidden: bool,
    /// Not protected.
    pub(super) through: bool,
    /// The kernel comes to the same file by the caller's own arguments.
    pub(super) plain: bool,
    /// The path ended with a slash.
    pub(super) slash: bool,
}

impl Spot {
    /// Where the kernel finds it.
    pub(super) fn physical(&self, layers: &Layers) -> Answer<Text> {
        match self.place {
            Place::Upper => layers.upper(self.path.bytes()),
            _ => self.lower(),
        }
    }

    pub(super) fn lower(&self) -> Answer<Text> {
        lower(self.path.bytes())
    }

    pub(super) fn exists(&self) -> Answer<()> {
        if self.place == Place::Missing {
            Err(libc::ENOENT)
        } else {
            Ok(())
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.place != Place::Missing && is_directory(self.mode)
    }

    /// The lower layer's file or directory of this path, where it is visible.
    pub(super) fn lower_stat(&self) -> Option<libc::stat> {
        if self.hidden || self.through {
            return None;
        }
        sys::stat(&self.lower().ok()?).ok()
    }

    /// Whether entries of a directory are in both layers.
    pub(super) fn is_merged(&self) -> bool {
        self.place == Place::Upper
            && is_directory(self.mode)
            && self
                .lower_stat()
                .is_some_and(|about| is_directory(about.st_mode))
    }

    pub(super) fn parent(&self) -> &[u8] {
        parent(self.path.bytes())
    }
}

/// The job's path of one that the kernel gave.
pub(super) fn logical<'a>(layers: &Layers, physical: &'a [u8]) -> &'a [u8] {
    if !is_below(physical, &layers.upper) {
        return physical;
    }
    let path = &physical[layers.upper.len()..];
    if path.is_empty() { b"/" } else { path }
}

/// The result of one look at a path.
struct Look {
    place: Place,
    mode: u32,
    marked: bool,
}

/// Looks at one path without links in it.
fn inspect_path(
    layers: &Layers,
    path: &[u8],
    hash: u64,
    hidden: bool,
    is_read: bool,
) -> Answer<Look> {
    let mut marked = false;
    let touched = hidden || layers.may_be_touched(hash);
    if touched {
        marked = !hidden && is_marked(layers, path)?;
        match sys::stat(&layers.upper(path)?) {
            Ok(about) => {
                return Ok(Look {
                    place: Place::Upper,
                    mode: about.st_mode,
                    marked,
                });
            }
            Err(libc::ENOENT | libc::ENOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
    if hidden || marked {
        return Ok(Look {
            place: Place::Missing,
            mode: 0,
            marked,
        });
    }
    if !touched && is_read && find_known(hash).load(Ordering::Relaxed) == hash {
        return Ok(Look {
            place: Place::Lower,
            mode: libc::S_IFDIR | 0o755,
            marked,
        });
    }
    let about = match sys::stat(&lower(path)?) {
        Ok(about) => about,
        Err(libc::ENOENT | libc::ENOTDIR) => {
            return Ok(Look {
                place: Place::Missing,
                mode: 0,
                marked,
            });
        }
        Err(error) => return Err(error),
    };
    if is_directory(about.st_mode) && !touched && !layers.is_through(path) {
        find_known(hash).store(hash, Ordering::Relaxed);
    }
    if kind(about.st_mode) == libc::S_IFREG
        && about.st_nlink > 1
        && has_linked_copy(layers, path, &about)?
    {
        return Ok(Look {
            place: Place::Upper,
            mode: about.st_mode,
            marked,
        });
    }
    Ok(Look {
        place: Place::Lower,
        mode: about.st_mode,
        marked,
    })
}

pub(super) fn is_marked(layers: &Layers, path: &[u8]) -> Answer<bool> {
    match sys::stat(&layers.deleted(path)?) {
        Ok(about) => Ok(!is_directory(about.st_mode)),
        Err(libc::ENOENT | libc::ENOTDIR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The target of a link below `/proc`.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack, because nothing here allocates"
)]
enum Magic {
    /// A path of the job.
    Path(Text),
    /// A file without a path, or one that is the user's own output.
    File(u32),
}

/// Links of `/proc` lead to files and not to paths: their text is right only while the file has its name.
fn follow_magic(layers: &Layers, link: &Text, target: &Text) -> Answer<Magic> {
    let about = sys::stat_followed(link)?;
    let by_name = sys::stat(target);
    let is_same =
        by_name.is_ok_and(|named| (named.st_dev, named.st_ino) == (about.st_dev, about.st_ino));
    if target.bytes().first() != Some(&b'/') || !is_same || is_standard_output(link) {
        return Ok(Magic::File(about.st_mode));
    }
    Ok(Magic::Path(Text::join(&[logical(layers, target.bytes())])?))
}

/// Whether the link leads to a standard stream that is open for writing, such as the file behind a redirection.
fn is_standard_output(link: &Text) -> bool {
    let path = link.bytes();
    let Some((&digit @ b'0'..=b'2', rest)) = path.split_last() else {
        return false;
    };
    let flags = [sys::int(c_int::from(digit - b'0')), libc::F_GETFL as usize];
    // SAFETY: queries the flags of a descriptor.
    let flags = unsafe { sys::call(libc::SYS_fcntl, flags) };
    rest.ends_with(b"/fd/")
        && flags.is_ok_and(|flags| flags as c_int & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Walks `path` from the directory that `descriptor` leads to. `is_read`: nothing is going to be changed there.
pub(super) fn walk(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    last: Last,
    is_read: bool,
) -> Answer<Spot> {
    let mut plain = true;
    let mut rest = match path.first() {
        None => return Err(libc::ENOENT),
        Some(b'/') => Text::join(&[path])?,
        Some(_) if descriptor == libc::AT_FDCWD => {
            Text::join(&[sys::working_directory()?.bytes(), b"/", path])?
        }
        Some(_) => Text::join(&[sys::path_of(descriptor)?.bytes(), b"/", path])?,
    };
    if is_below(rest.bytes(), &layers.upper) {
        plain = false;
        rest = Text::join(&[logical(layers, rest.bytes())])?;
    }
    let mut spot = Spot {
        path: Text::new(),
        place: Place::Lower,
        mode: libc::S_IFDIR | 0o755,
        hidden: false,
        through: false,
        plain: true,
        slash: false,
    };
    let mut hash = EMPTY;
    // The length of the path from which on the lower layer is hidden, and whether the end has to be looked at again.
    let (mut hidden_from, mut is_stale) = (usize::MAX, true);
    let (mut at, mut links) = (0, 0);
    loop {
        let bytes = rest.bytes();
        at += bytes[at..].iter().take_while(|byte| **byte == b'/').count();
        let length = bytes[at..].iter().take_while(|byte| **byte != b'/').count();
        if length == 0 {
            break;
        }
        if !is_directory(spot.mode) {
            return Err(libc::ENOTDIR);
        }
        let end = at + length;
        let name = &bytes[at..end];
        let after = &bytes[end..];
        let is_last = after.iter().all(|byte| *byte == b'/');
        spot.slash = is_last && (!after.is_empty() || name == b"." || name == b"..");
        at = end;
        if name == b"." {
            continue;
        }
        let before = spot.path.bytes().len();
        if name == b".." {
            let shorter = parent(spot.path.bytes()).len();
            spot.path.truncate(shorter);
            if shorter < hidden_from {
                hidden_from = usize::MAX;
            }
            (hash, is_stale) = (hash_of(spot.path.bytes()), true);
            continue;
        }
        spot.path.push(b"/")?;
        spot.path.push(name)?;
        if length > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        let above = hash;
        hash = extend(hash, name);
        let hidden = hidden_from != usize::MAX;
        if last == Last::Try
            && is_last
            && !spot.slash
            && !hidden
            && plain
            && !layers.may_be_touched(hash)
        {
            spot.place = Place::Unread;
            return Ok(spot);
        }
        let found = inspect_path(
            layers,
            spot.path.bytes(),
            hash,
            hidden,
            is_read && (!is_last || spot.slash),
        )?;
        is_stale = false;
        if found.marked {
            hidden_from = spot.path.bytes().len();
        }
        (spot.place, spot.mode) = (found.place, found.mode);
        plain &= found.place == Place::Lower
            || (found.place == Place::Missing && !hidden && !found.marked);
        if found.place == Place::Missing {
            if !is_last {
                return Err(libc::ENOENT);
            }
            break;
        }
        let is_link = kind(found.mode) == libc::S_IFLNK;
        if is_link && (!is_last || spot.slash || last != Last::Keep) {
            links += 1;
            if links > 40 {
                return Err(libc::ELOOP);
            }
            let link = spot.physical(layers)?;
            let mut target = sys::read_link(&link)?;
            if link.bytes().starts_with(b"/proc/") && before > b"/proc".len() {
                match follow_magic(layers, &link, &target)? {
                    Magic::Path(path) => target = path,
                    Magic::File(mode) => {
                        if !is_last {
                            // Below a directory without a name is nothing that could be protected.
                            spot.path.push(after)?;
                        }
                        (spot.through, spot.mode, spot.plain) = (true, mode, plain);
                        return Ok(spot);
                    }
                }
            }
            if target.bytes().is_empty() {
                return Err(libc::ENOENT);
            }
            spot.mode = libc::S_IFDIR;
            is_stale = true;
            spot.path.truncate(before);
            hash = above;
            if target.bytes()[0] == b'/' {
                spot.path.truncate(0);
                hash = EMPTY;
            }
            if spot.path.bytes().len() < hidden_from {
                hidden_from = usize::MAX;
            }
            target.push(after)?;
            (rest, at) = (target, 0);
        }
    }
    if is_stale {
        let found = inspect_path(
            layers,
            spot.path.bytes(),
            hash,
            hidden_from != usize::MAX,
            false,
        )?;
        (spot.place, spot.mode) = (found.place, found.mode);
    }
    if spot.slash && spot.place != Place::Missing && !is_directory(spot.mode) {
        return Err(libc::ENOTDIR);
    }
    spot.hidden = hidden_from != usize::MAX;
    spot.through = layers.is_through(spot.path.bytes());
    spot.plain = plain;
    Ok(spot)
}

/// Calls `run` with where a file is, as a descriptor and the address of a path: often the caller's own.
pub(super) fn with_file<T>(
    layers: &Layers,
    descriptor: c_int,
    path: CText,
    last: Last,
    run: impl FnOnce(usize, usize) -> Answer<T>,
) -> Answer<T> {
    let spot = walk(layers, descriptor, path.bytes()?, last, true)?;
    spot.exists()?;
    if spot.plain {
        return run(int(descriptor), path.0 as usize);
    }
    let physical = spot.physical(layers)?;
    run(HERE, physical.pointer() as usize)
}
