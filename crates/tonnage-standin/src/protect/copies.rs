// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of the upper layer, and copies of files that have several names. A walk makes them, too.

use super::sys::{self, Answer, Descriptor, Text, is_directory, kind};
use super::{Layers, Turn, hash_of};

/// The directory of a path; that of the root is the root.
pub(super) fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    &path[..end]
}

pub(super) fn lower(path: &[u8]) -> Answer<Text> {
    Text::join(&[if path.is_empty() { b"/" } else { path }])
}

/// Copies a directory and those above it, without entries.
pub(super) fn copy_directories(layers: &Layers, path: &[u8]) -> Answer<()> {
    if path.is_empty() || sys::stat(&layers.upper(path)?).is_ok() {
        return Ok(());
    }
    copy_directories(layers, parent(path))?;
    let about = sys::stat(&lower(path)?)?;
    if !is_directory(about.st_mode) {
        return Err(libc::ENOTDIR);
    }
    layers.touch(path);
    let copy = layers.upper(path)?;
    keep_times(layers, parent(path), || sys::make_directory(&copy, 0o700))?;
    if let (Ok(from), Ok(to)) = (open_directory(&lower(path)?), open_directory(&copy)) {
        sys::copy_attributes(from.0, to.0);
    }
    finish_copy(&copy, &about)
}

pub(super) fn open_directory(path: &Text) -> Answer<Descriptor> {
    sys::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Owner, mode and times of a copy.
pub(super) fn finish_copy(copy: &Text, about: &libc::stat) -> Answer<()> {
    sys::change_owner(copy, about)?;
    if kind(about.st_mode) != libc::S_IFLNK {
        sys::change_mode(copy, about.st_mode)?;
    }
    sys::change_times(copy, Some(about))
}

/// Makes an entry of an upper directory that the job sees there already: times stay, and rights do not matter.
pub(super) fn keep_times(
    layers: &Layers,
    path: &[u8],
    make: impl Fn() -> Answer<()>,
) -> Answer<()> {
    let directory = layers.upper(path)?;
    let about = sys::stat(&directory);
    let mut made = make();
    if let (Err(libc::EACCES), Ok(about)) = (made, &about) {
        sys::change_mode(&directory, about.st_mode | 0o700)?;
        made = make();
        sys::change_mode(&directory, about.st_mode)?;
    }
    if let Ok(about) = about {
        let _ = sys::change_times(&directory, Some(&about));
    }
    made
}

/// The name under which copies of a file with several names are found, and its hash.
pub(super) fn linked_copy(layers: &Layers, about: &libc::stat) -> Answer<(Text, u64)> {
    let mut path = Text::join(&[&layers.changes, b"/links/"])?;
    path.push_number(about.st_dev)?;
    path.push(b"-")?;
    path.push_number(about.st_ino)?;
    let hash = hash_of(path.bytes());
    Ok((path, hash))
}

/// Whether a lower file was copied under another of its names. It then has the copy under this name, too.
pub(super) fn has_linked_copy(layers: &Layers, path: &[u8], about: &libc::stat) -> Answer<bool> {
    let (copy, hash) = linked_copy(layers, about)?;
    if !layers.may_be_touched(hash) || layers.is_through(path) || sys::stat(&copy).is_err() {
        return Ok(false);
    }
    let _turn = Turn::take(layers)?;
    layers.touch(path);
    copy_directories(layers, parent(path))?;
    let upper = layers.upper(path)?;
    match keep_times(layers, parent(path), || sys::link(&copy, &upper)) {
        Ok(()) | Err(libc::EEXIST) => Ok(true),
        Err(error) => Err(error),
    }
}
