// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of the upper layer. Each is made by one process at a time, see [`Turn`].

use std::ffi::c_int;

use super::copies::{
    copy_directories, finish_copy, has_linked_copy, keep_times, linked_copy, lower, open_directory,
    parent,
};
use super::path::{Last, Place, Spot, is_marked, logical, walk};
use super::sys::{self, Answer, Text, call, int, is_directory, kind};
use super::{Layers, Turn, is_below};

/// Whether the process may make and remove entries of a directory, as without protection.
fn check_parent(layers: &Layers, path: &[u8]) -> Answer<()> {
    let rights = libc::W_OK | libc::X_OK;
    let above = sys::access(&layers.upper(path)?, rights);
    let below = lower(path)?;
    let is_hidden = is_hidden(layers, path)?;
    match (sys::stat(&below), sys::access(&below, rights)) {
        // The copy belongs to this process if it cannot belong to its owner.
        (Ok(about), Err(error))
            if !is_hidden && (error == libc::EROFS || about.st_uid != effective_user()) =>
        {
            Err(error)
        }
        (Ok(_), answer) if !is_hidden && above == Err(libc::ENOENT) => answer,
        _ => above,
    }
}

/// Whether a mark hides the lower layer at this path.
fn is_hidden(layers: &Layers, path: &[u8]) -> Answer<bool> {
    match sys::stat(&layers.deleted(path)?) {
        Ok(about) => Ok(!is_directory(about.st_mode)),
        // A directory above it has a mark, which is a file.
        Err(libc::ENOTDIR) => Ok(true),
        Err(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn effective_user() -> u32 {
    // SAFETY: queries a number.
    unsafe { libc::geteuid() }
}

/// Makes sure that the process owns a file, as changes of its attributes demand.
pub(super) fn check_owner(spot: &Spot) -> Answer<()> {
    let user = effective_user();
    match spot.lower_stat() {
        Some(about) if user != 0 && about.st_uid != user => Err(libc::EPERM),
        _ => Ok(()),
    }
}

/// Copies what is only in the lower layer. Nothing that the job sees changes.
pub(super) fn copy_up(layers: &Layers, spot: &mut Spot, is_cut: bool) -> Answer<()> {
    if spot.place != Place::Lower {
        return spot.exists();
    }
    if spot.through {
        return layers.refuse(spot.path.bytes());
    }
    copy_path(layers, spot.path.bytes(), is_cut)?;
    spot.place = Place::Upper;
    Ok(())
}

fn copy_path(layers: &Layers, path: &[u8], is_cut: bool) -> Answer<()> {
    let source = lower(path)?;
    let about = sys::stat(&source)?;
    if is_directory(about.st_mode) {
        return copy_directories(layers, path);
    }
    copy_directories(layers, parent(path))?;
    let made = layers.work()?;
    let result = copy_file(&source, &made, &about, is_cut).and_then(|()| {
        layers.touch(path);
        let upper = layers.upper(path)?;
        if kind(about.st_mode) == libc::S_IFREG && about.st_nlink > 1 {
            let (copy, hash) = linked_copy(layers, &about)?;
            layers.touch_hash(hash);
            sys::link(&made, &copy)?;
        }
        keep_times(layers, parent(path), || {
            sys::rename(&made, &upper, libc::RENAME_NOREPLACE)
        })?;
        move_descriptors(&source, &upper);
        Ok(())
    });
    if result.is_err() {
        let _ = sys::unlink(&made, 0);
    }
    result
}

/// Copies one file that is not a directory to a name that is free.
fn copy_file(from: &Text, to: &Text, about: &libc::stat, is_cut: bool) -> Answer<()> {
    match kind(about.st_mode) {
        libc::S_IFREG => {
            let input = sys::open(
                from,
                libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK,
                0,
            )?;
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            let output = sys::open(to, flags, 0o600)?;
            if !is_cut {
                sys::copy_content(input.0, output.0, about.st_size)?;
            }
            sys::copy_attributes(input.0, output.0);
        }
        libc::S_IFLNK => sys::make_symlink(&sys::read_link(from)?, to)?,
        _ => sys::make_node(to, about.st_mode, about.st_rdev)?,
    }
    finish_copy(to, about)
}

/// Copies everything below a directory that is in the lower layer only.
fn copy_tree_up(layers: &Layers, path: &[u8]) -> Answer<()> {
    copy_directories(layers, path)?;
    let hidden = is_hidden(layers, path)?;
    if let (false, Ok(directory)) = (hidden, open_directory(&lower(path)?)) {
        sys::entries(directory.0, |name, _, _| {
            let child = Text::join(&[path, b"/", name])?;
            let child = child.bytes();
            if is_marked(layers, child)? {
                return Ok(());
            }
            let Ok(about) = sys::stat(&lower(child)?) else {
                return Ok(());
            };
            if is_directory(about.st_mode) {
                match sys::stat(&layers.upper(child)?) {
                    Ok(above) if !is_directory(above.st_mode) => Ok(()),
                    _ => copy_tree_up(layers, child),
                }
            } else if sys::stat(&layers.upper(child)?).is_ok()
                || about.st_nlink > 1 && has_linked_copy(layers, child, &about)?
            {
                Ok(())
            } else {
                copy_path(layers, child, false)
            }
        })?;
    }
    Ok(())
}

/// Copies a directory with everything in it.
fn copy_tree(from: &Text, to: &Text) -> Answer<()> {
    let about = sys::stat(from)?;
    if !is_directory(about.st_mode) {
        return copy_file(from, to, &about, false);
    }
    sys::make_directory(to, 0o700)?;
    let directory = open_directory(from)?;
    sys::entries(directory.0, |name, _, _| {
        let part: &[&[u8]] = &[b"/", name];
        let below = |path: &Text| Text::join(&[path.bytes(), part[0], part[1]]);
        copy_tree(&below(from)?, &below(to)?)
    })?;
    if let Ok(copy) = open_directory(to) {
        sys::copy_attributes(directory.0, copy.0);
    }
    finish_copy(to, &about)
}

/// Removes a file or a directory with everything in it.
fn remove_tree(path: &Text) -> Answer<()> {
    match sys::unlink(path, 0) {
        Err(libc::EISDIR | libc::EPERM) => {}
        answer => return answer,
    }
    let directory = open_directory(path)?;
    loop {
        let mut count = 0;
        // SAFETY: goes back to the start of a directory of ours: what is removed may move what is left.
        unsafe {
            call(
                libc::SYS_lseek,
                [int(directory.0), 0, libc::SEEK_SET as usize],
            )
        }?;
        sys::entries(directory.0, |name, _, _| {
            count += 1;
            remove_tree(&Text::join(&[path.bytes(), b"/", name])?)
        })?;
        if count == 0 {
            break;
        }
    }
    sys::unlink(path, libc::AT_REMOVEDIR)
}

/// Hides the lower layer at a path.
fn mark(layers: &Layers, path: &[u8]) -> Answer<()> {
    layers.touch(path);
    let mark = layers.deleted(path)?;
    let mut end = 0;
    // The directories above it, from the first on.
    while let Some(length) = path[end + 1..].iter().position(|byte| *byte == b'/') {
        end += 1 + length;
        match sys::make_directory(&layers.deleted(&path[..end])?, 0o777) {
            Err(libc::ENOTDIR) => return Ok(()),
            Ok(()) | Err(libc::EEXIST) => {}
            Err(error) => return Err(error),
        }
    }
    let make = |path: &Text| sys::open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o666);
    match make(&mark).map(drop) {
        Err(libc::EEXIST) if is_marked(layers, path)? => Ok(()),
        // Marks below it are not needed any more.
        Err(libc::EEXIST) => {
            let spare = layers.work()?;
            make(&spare)?;
            sys::rename(&spare, &mark, libc::RENAME_EXCHANGE)?;
            remove_tree(&spare)
        }
        Err(libc::ENOTDIR) => Ok(()),
        answer => answer,
    }
}

/// Gets a directory ready for a change of its entries, which is a change of its time.
pub(super) fn open_parent(layers: &Layers, path: &[u8]) -> Answer<()> {
    check_parent(layers, parent(path))?;
    copy_directories(layers, parent(path))
}

/// Makes a new entry of the upper layer by `make`.
pub(super) fn create<T>(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    is_directory: bool,
    make: impl FnOnce(&Text) -> Answer<T>,
) -> Answer<T> {
    let turn = Turn::take(layers)?;
    let spot = walk_name(layers, descriptor, path)?;
    if spot.through {
        drop(turn);
        return make(&spot.physical(layers)?);
    }
    if spot.place != Place::Missing {
        return Err(libc::EEXIST);
    }
    if spot.slash && !is_directory {
        return Err(libc::ENOENT);
    }
    open_parent(layers, spot.path.bytes())?;
    layers.touch(spot.path.bytes());
    make(&layers.upper(spot.path.bytes())?)
}

/// Changes something that exists by `make`, which gets where it is.
pub(super) fn modify<T>(
    layers: &Layers,
    descriptor: c_int,
    path: &[u8],
    last: Last,
    check: impl FnOnce(&Spot) -> Answer<()>,
    is_cut: bool,
    make: impl FnOnce(&Text) -> Answer<T>,
) -> Answer<T> {
    let _turn = Turn::take(layers)?;
    let mut spot = walk(layers, descriptor, path, last, false)?;
    spot.exists()?;
    if !spot.through {
        check(&spot)?;
        match kind(spot.mode) {
            libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK => copy_up(layers, &mut spot, is_cut)?,
            _ if spot.place == Place::Lower => return layers.refuse(spot.path.bytes()),
            _ => {}
        }
    }
    make(&spot.physical(layers)?)
}

/// Calls `visit` with name, inode and kind of each entry of a directory, in both layers.
pub(super) fn visit_entries(
    layers: &Layers,
    spot: &Spot,
    mut visit: impl FnMut(&[u8], u64, u8) -> Answer<()>,
) -> Answer<()> {
    let path = spot.path.bytes();
    if spot.through {
        return sys::entries(open_directory(&spot.lower()?)?.0, visit);
    }
    if let Ok(above) = open_directory(&layers.upper(path)?) {
        sys::entries(above.0, &mut visit)?;
    }
    if spot.hidden {
        return Ok(());
    }
    let below = match open_directory(&lower(path)?) {
        Ok(below) => below,
        Err(libc::ENOENT | libc::ENOTDIR) => return Ok(()),
        Err(error) => return Err(error),
    };
    sys::entries(below.0, |name, inode, kind| {
        let child = Text::join(&[path, b"/", name])?;
        let child = child.bytes();
        let is_above = layers.may_be_touched(super::hash_of(child))
            && (is_marked(layers, child)? || sys::stat(&layers.upper(child)?).is_ok());
        if is_above {
            Ok(())
        } else {
            visit(name, inode, kind)
        }
    })
}

fn check_empty(layers: &Layers, spot: &Spot) -> Answer<()> {
    visit_entries(layers, spot, |_, _, _| Err(libc::ENOTEMPTY))
}

/// `unlinkat`.
pub(super) fn remove(layers: &Layers, descriptor: c_int, path: &[u8], flags: c_int) -> Answer<()> {
    let is_rmdir = flags & libc::AT_REMOVEDIR != 0;
    let names = path
        .split(|byte| *byte == b'/')
        .rfind(|name| !name.is_empty());
    match names {
        Some(b".") if is_rmdir => return Err(libc::EINVAL),
        Some(b"..") if is_rmdir => return Err(libc::ENOTEMPTY),
        _ => {}
    }
    let _turn = Turn::take(layers)?;
    let spot = walk_name(layers, descriptor, path)?;
    spot.exists()?;
    if spot.slash && !spot.is_directory() {
        return Err(libc::ENOTDIR);
    }
    let upper = spot.physical(layers)?;
    if spot.through {
        return sys::unlink(&upper, flags);
    }
    if spot.path.bytes().is_empty() {
        return Err(libc::EBUSY);
    }
    check_parent(layers, spot.parent())?;
    match (is_rmdir, spot.is_directory()) {
        (true, false) => return Err(libc::ENOTDIR),
        (false, true) => return Err(libc::EISDIR),
        (true, true) => check_empty(layers, &spot)?,
        (false, false) => {}
    }
    copy_directories(layers, spot.parent())?;
    if spot.lower_stat().is_some() {
        mark(layers, spot.path.bytes())?;
    }
    if spot.place == Place::Upper {
        sys::unlink(&upper, flags)
    } else {
        sys::change_times(&layers.upper(spot.parent())?, None)
    }
}

/// Walks to a name that is going to be made, removed or given to another file. A slash does not follow a link here.
pub(super) fn walk_name(layers: &Layers, descriptor: c_int, path: &[u8]) -> Answer<Spot> {
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    let is_plain = end == 0 || end == path.len();
    let name = if is_plain { path } else { &path[..end] };
    let mut spot = walk(layers, descriptor, name, Last::Keep, false)?;
    spot.slash |= !is_plain;
    Ok(spot)
}

/// The device on which something would be without protection.
fn device(spot: &Spot) -> Answer<u64> {
    let mut path = spot.parent();
    loop {
        match sys::stat_followed(&lower(path)?) {
            Ok(about) => return Ok(about.st_dev),
            Err(_) if !path.is_empty() => path = parent(path),
            Err(error) => return Err(error),
        }
    }
}

/// `renameat2`.
pub(super) fn rename(
    layers: &Layers,
    (from_descriptor, from): (c_int, &[u8]),
    (to_descriptor, to): (c_int, &[u8]),
    flags: u32,
) -> Answer<()> {
    let is_exchange = flags & libc::RENAME_EXCHANGE != 0;
    if flags & !(libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE) != 0
        || (is_exchange && flags & libc::RENAME_NOREPLACE != 0)
    {
        return Err(libc::EINVAL);
    }
    let ends_in_dots = |path: &[u8]| {
        let last = path
            .split(|byte| *byte == b'/')
            .rfind(|name| !name.is_empty());
        matches!(last, Some(b"." | b"..") | None) && !path.is_empty()
    };
    let _turn = Turn::take(layers)?;
    let mut old = walk_name(layers, from_descriptor, from)?;
    let mut new = walk_name(layers, to_descriptor, to)?;
    if ends_in_dots(from) || ends_in_dots(to) {
        return Err(libc::EBUSY);
    }
    if old.through && new.through {
        return sys::rename(&old.lower()?, &new.lower()?, flags);
    }
    old.exists()?;
    let new_exists = new.place != Place::Missing;
    if new_exists && flags & libc::RENAME_NOREPLACE != 0 {
        return Err(libc::EEXIST);
    }
    if is_exchange {
        new.exists()?;
    }
    let is_slash_wrong = if is_exchange {
        old.slash && !old.is_directory() || new.slash && !new.is_directory()
    } else {
        (old.slash || new.slash) && !old.is_directory()
    };
    if is_slash_wrong {
        return Err(libc::ENOTDIR);
    }
    let (a, b) = (old.path.clone(), new.path.clone());
    let (a, b) = (a.bytes(), b.bytes());
    if device(&old)? != device(&new)? {
        return Err(libc::EXDEV);
    }
    if a == b {
        return Ok(());
    }
    if old.is_directory() && is_below(b, a) {
        return Err(libc::EINVAL);
    }
    if is_below(a, b) {
        return Err(if is_exchange {
            libc::EINVAL
        } else {
            libc::ENOTEMPTY
        });
    }
    for spot in [&old, &new] {
        if !spot.through {
            check_parent(layers, spot.parent())?;
        }
    }
    if new_exists && !is_exchange {
        match (old.is_directory(), new.is_directory()) {
            (true, false) => return Err(libc::ENOTDIR),
            (false, true) => return Err(libc::EISDIR),
            (true, true) => check_empty(layers, &new)?,
            (false, false) if old.place == Place::Lower && new.place == Place::Lower => {
                let (one, two) = (sys::stat(&lower(a)?)?, sys::stat(&lower(b)?)?);
                if (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino) {
                    return Ok(()); // two names of one file stay
                }
            }
            (false, false) => {}
        }
    }
    let take = |spot: &mut Spot| -> Answer<()> {
        if spot.through {
            return Ok(());
        }
        if spot.is_directory() {
            copy_tree_up(layers, spot.path.bytes())?;
            spot.place = Place::Upper;
            Ok(())
        } else {
            copy_up(layers, spot, false)
        }
    };
    take(&mut old)?;
    if is_exchange {
        take(&mut new)?;
    }
    if !new.through {
        copy_directories(layers, new.parent())?;
        layers.touch(b);
    }
    // Names below a directory that moves are not in the index, which does not matter where a mark hides everything.
    if old.lower_stat().is_some() || (is_exchange && new.is_directory() && !old.through) {
        mark(layers, a)?;
    }
    let is_hiding = is_exchange && new.lower_stat().is_some() || old.is_directory();
    if is_hiding && !new.through {
        mark(layers, b)?;
    }
    let source = old.physical(layers)?;
    let target = if new.through {
        new.lower()?
    } else {
        layers.upper(b)?
    };
    rename_or_copy(&source, &target, flags)?;
    if old.is_directory() {
        move_descriptors(&lower(a)?, &target);
    }
    if is_exchange && new.is_directory() {
        move_descriptors(&lower(b)?, &source);
    }
    Ok(())
}

/// Renames, also from one file system to another.
fn rename_or_copy(from: &Text, to: &Text, flags: u32) -> Answer<()> {
    match sys::rename(from, to, flags) {
        Err(libc::EXDEV) if flags & libc::RENAME_EXCHANGE == 0 => replace_by_copy(from, to, flags),
        answer => answer,
    }
}

/// Completes a rename of a directory that the kernel's overlay refuses.
pub(super) fn rename_in_overlay(from: &Text, to: &Text, flags: u32) -> Answer<()> {
    let about = sys::stat(from)?;
    let beside = sys::stat_followed(&lower(parent(to.bytes()))?)?;
    if !is_directory(about.st_mode)
        || beside.st_dev != about.st_dev
        || flags & libc::RENAME_EXCHANGE != 0
    {
        return Err(libc::EXDEV);
    }
    replace_by_copy(from, to, flags)
}

/// Copies, gives the copy its name at once, and only as a rename would, and removes the original.
fn replace_by_copy(from: &Text, to: &Text, flags: u32) -> Answer<()> {
    let mut part = Text::join(&[to.bytes(), b".tonnage-"])?;
    // SAFETY: queries a number.
    part.push_number(unsafe { call(libc::SYS_gettid, []) }? as u64)?;
    let result = copy_tree(from, &part).and_then(|()| sys::rename(&part, to, flags));
    if result.is_err() {
        let _ = remove_tree(&part);
        return result;
    }
    remove_tree(from)
}

/// `linkat`.
pub(super) fn link(
    layers: &Layers,
    (from_descriptor, from): (c_int, &[u8]),
    (to_descriptor, to): (c_int, &[u8]),
    flags: c_int,
) -> Answer<()> {
    let last = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        Last::Follow
    } else {
        Last::Keep
    };
    let _turn = Turn::take(layers)?;
    let mut old = walk(layers, from_descriptor, from, last, false)?;
    old.exists()?;
    let new = walk_name(layers, to_descriptor, to)?;
    if new.place != Place::Missing {
        return Err(libc::EEXIST);
    }
    if old.is_directory() {
        return Err(libc::EPERM);
    }
    if new.slash {
        return Err(libc::ENOENT);
    }
    let is_nameless = old.through && old.path.bytes().starts_with(b"/proc/");
    if !is_nameless && device(&old)? != device(&new)? {
        return Err(libc::EXDEV);
    }
    let target = if new.through {
        new.lower()?
    } else {
        open_parent(layers, new.path.bytes())?;
        layers.touch(new.path.bytes());
        layers.upper(new.path.bytes())?
    };
    if !old.through {
        copy_up(layers, &mut old, false)?;
    }
    let source = old.physical(layers)?;
    if is_nameless {
        let flags = int(libc::AT_SYMLINK_FOLLOW);
        let places = [
            sys::HERE,
            source.pointer() as usize,
            sys::HERE,
            target.pointer() as usize,
            flags,
        ];
        // SAFETY: two texts that end with a zero byte.
        return unsafe { call(libc::SYS_linkat, places) }.map(drop);
    }
    match sys::link(&source, &target) {
        // On a GPU machine both are on one device; a copy is the best there is.
        Err(libc::EXDEV) => copy_tree(&source, &target),
        answer => answer,
    }
}

/// Makes descriptors of this process that lead to a path or below it lead to where it is now.
fn move_descriptors(old: &Text, new: &Text) {
    let Ok(list) = Text::join(&[b"/proc/self/fd"]).and_then(|path| open_directory(&path)) else {
        return;
    };
    let moved = |path: &[u8]| -> Answer<Text> {
        if is_below(path, old.bytes()) {
            Text::join(&[new.bytes(), &path[old.bytes().len()..]])
        } else {
            Err(libc::ENOENT)
        }
    };
    let _ = sys::entries(list.0, |name, _, _| {
        let number = std::str::from_utf8(name)
            .ok()
            .and_then(|name| name.parse().ok());
        let number: c_int = number.ok_or(libc::EIO)?;
        if number == list.0 {
            return Ok(());
        }
        let Ok(path) = sys::path_of(number).and_then(|path| moved(path.bytes())) else {
            return Ok(());
        };
        // SAFETY: queries flags and the position of an open descriptor, and puts another file of ours in its place.
        unsafe {
            let flags = call(libc::SYS_fcntl, [int(number), libc::F_GETFL as usize])? as c_int;
            // Files that are open for writing were opened by another program, for the user.
            if flags & libc::O_ACCMODE != libc::O_RDONLY {
                return Ok(());
            }
            let close = call(libc::SYS_fcntl, [int(number), libc::F_GETFD as usize])?;
            let wanted = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY);
            let Ok(file) = sys::open(&path, wanted | libc::O_NOFOLLOW, 0) else {
                return Ok(());
            };
            if let Ok(position) = call(libc::SYS_lseek, [int(number), 0, libc::SEEK_CUR as usize]) {
                let _ = call(
                    libc::SYS_lseek,
                    [int(file.0), position, libc::SEEK_SET as usize],
                );
            }
            let flag = if close & 1 != 0 {
                int(libc::O_CLOEXEC)
            } else {
                0
            };
            let _ = call(libc::SYS_dup3, [int(file.0), int(number), flag]);
        }
        Ok(())
    });
    if let Ok(path) = sys::working_directory().and_then(|path| moved(path.bytes())) {
        let _ = sys::change_directory(&path);
    }
}

/// The job's path of what a descriptor leads to, if a change of it could reach a file of the user.
pub(super) fn protected_path(layers: &Layers, descriptor: c_int) -> Answer<Option<Text>> {
    let about = sys::stat_descriptor(descriptor)?;
    if !matches!(
        kind(about.st_mode),
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK
    ) {
        return Ok(None);
    }
    let path = sys::path_of(descriptor)?;
    if is_below(path.bytes(), &layers.upper) {
        // A directory of both layers, or a file that the job may change.
        return Ok(None);
    }
    let job_path = logical(layers, path.bytes());
    if job_path.first() != Some(&b'/') || layers.is_through(job_path) {
        return Ok(None);
    }
    let named = sys::stat(&path);
    match named {
        Ok(named) if (named.st_dev, named.st_ino) == (about.st_dev, about.st_ino) => Ok(Some(path)),
        // Memory of the kernel has no file.
        _ if about.st_nlink == 0 => Ok(None),
        _ => layers.refuse(path.bytes()),
    }
}
