// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program calls its blocks: names, and the one that a thread uses now.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonnage_alloc::Tag;

/// The names of tags, from that of tag 1 on.
static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    static CURRENT: Cell<Tag> = const { Cell::new(Tag::NONE) };
}

/// The names, locked.
pub(crate) fn names() -> MutexGuard<'static, Vec<String>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tag of a name, which is made if it is new; none if there are too many.
pub(crate) fn named(name: &str) -> Option<Tag> {
    let mut names = names();
    let known = names.iter().position(|known| known == name);
    let place = known.unwrap_or(names.len());
    let tag = Tag(u16::try_from(place + 1).ok()?);
    if known.is_none() {
        names.push(name.to_owned());
    }
    Some(tag)
}

/// The name of a tag.
pub(crate) fn name(tag: Tag) -> String {
    let names = names();
    let place = usize::from(tag.0).checked_sub(1);
    let name = place.and_then(|place| names.get(place));
    name.map_or_else(|| tag.0.to_string(), String::clone)
}

/// The tag of what this thread requests.
pub(crate) fn current() -> Tag {
    // A thread that ends may free and request after its variables are gone.
    CURRENT.try_with(Cell::get).unwrap_or_default()
}

/// Changes the tag of what this thread requests; answers with the one before.
pub(crate) fn set_current(tag: Tag) -> Tag {
    CURRENT
        .try_with(|current| current.replace(tag))
        .unwrap_or_default()
}
