// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories with entries in both layers: what `readdir` returns for them.
//!
//! A stream of C stays a stream of C, and what is listed instead is kept beside it.

use std::ffi::{c_char, c_int, c_long};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::Layers;
use super::change::visit_entries;
use super::path::{Last, Spot, logical, walk};
use super::sys::{self, Answer, is_directory};

/// The entries that are listed instead of those of a directory.
pub(super) struct Listing {
    entries: Vec<(Vec<u8>, u64, u8)>,
    position: usize,
    buffer: libc::dirent64,
}

/// A stream and its listing. Places are used again and never freed, so no reader needs a lock.
struct Place {
    stream: AtomicPtr<libc::DIR>,
    listing: AtomicPtr<Listing>,
    next: *const Place,
}

static PLACES: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn places() -> impl Iterator<Item = &'static Place> {
    let mut next = PLACES.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or a place that is never freed.
        let place = unsafe { next.as_ref() }?;
        next = place.next;
        Some(place)
    })
}

/// The listing of a stream, which only its user has at this moment.
pub(super) fn listing(stream: *mut libc::DIR) -> Option<&'static mut Listing> {
    if COUNT.load(Ordering::Acquire) == 0 || stream.is_null() {
        return None;
    }
    let place = places().find(|place| place.stream.load(Ordering::Acquire) == stream)?;
    // SAFETY: threads take turns with a stream, as C demands.
    unsafe { place.listing.load(Ordering::Acquire).as_mut() }
}

fn attach(stream: *mut libc::DIR, listing: Listing) {
    detach(stream);
    let listing = Box::into_raw(Box::new(listing));
    COUNT.fetch_add(1, Ordering::AcqRel);
    for place in places() {
        let free = place.listing.compare_exchange(
            std::ptr::null_mut(),
            listing,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if free.is_ok() {
            place.stream.store(stream, Ordering::Release);
            return;
        }
    }
    let made = Box::into_raw(Box::new(Place {
        stream: AtomicPtr::new(stream),
        listing: AtomicPtr::new(listing),
        next: std::ptr::null(),
    }));
    let mut first = PLACES.load(Ordering::Acquire);
    loop {
        // SAFETY: made above and not visible to others yet.
        unsafe { (*made).next = first };
        match PLACES.compare_exchange(first, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Forgets the listing of a stream that is closed or read anew.
pub(super) fn detach(stream: *mut libc::DIR) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    if let Some(place) = places().find(|place| place.stream.load(Ordering::Acquire) == stream) {
        place.stream.store(std::ptr::null_mut(), Ordering::Release);
        let listing = place.listing.swap(std::ptr::null_mut(), Ordering::AcqRel);
        COUNT.fetch_sub(1, Ordering::AcqRel);
        if !listing.is_null() {
            // SAFETY: made by `attach` and taken out by this thread alone.
            drop(unsafe { Box::from_raw(listing) });
        }
    }
}

/// Whether the kernel's list of this directory is not the job's.
pub(super) fn is_mixed(layers: &Layers, spot: &Spot) -> bool {
    let path = spot.path.bytes();
    if spot.through || spot.hidden || !is_directory(spot.mode) {
        return false;
    }
    let is_there = |path: Answer<sys::Text>| {
        path.and_then(|path| sys::stat(&path))
            .is_ok_and(|about| is_directory(about.st_mode))
    };
    path.is_empty()
        || layers.may_be_touched(super::hash_of(path))
            && (spot.is_merged() || is_there(layers.deleted(path)))
}

/// Gives a stream of a directory with entries in both layers its listing.
pub(super) fn merge(layers: &Layers, stream: *mut libc::DIR, spot: &Spot) -> Answer<()> {
    if !is_mixed(layers, spot) {
        detach(stream);
        return Ok(());
    }
    let mut entries = vec![
        (b".".to_vec(), 1, libc::DT_DIR),
        (b"..".to_vec(), 1, libc::DT_DIR),
    ];
    visit_entries(layers, spot, |name, inode, kind| {
        entries.push((name.to_vec(), inode, kind));
        Ok(())
    })?;
    // SAFETY: a struct of numbers.
    let buffer = unsafe { std::mem::zeroed() };
    attach(
        stream,
        Listing {
            entries,
            position: 0,
            buffer,
        },
    );
    Ok(())
}

/// The directory that a stream or descriptor leads to, as the job sees it.
pub(super) fn spot_of(layers: &Layers, descriptor: c_int) -> Answer<Spot> {
    let path = sys::path_of(descriptor)?;
    walk(
        layers,
        libc::AT_FDCWD,
        logical(layers, path.bytes()),
        Last::Keep,
        true,
    )
}

impl Listing {
    pub(super) fn next(&mut self) -> *mut libc::dirent64 {
        let Some((name, inode, kind)) = self.entries.get(self.position) else {
            return std::ptr::null_mut();
        };
        self.position += 1;
        self.buffer.d_ino = *inode;
        self.buffer.d_off = self.position as i64;
        self.buffer.d_reclen = size_of::<libc::dirent64>() as u16;
        self.buffer.d_type = *kind;
        let length = name.len().min(self.buffer.d_name.len() - 1);
        for (to, from) in self.buffer.d_name.iter_mut().zip(&name[..length]) {
            *to = *from as c_char;
        }
        self.buffer.d_name[length] = 0;
        &raw mut self.buffer
    }

    pub(super) fn tell(&self) -> c_long {
        self.position as c_long
    }

    pub(super) fn seek(&mut self, position: c_long) {
        self.position = usize::try_from(position).unwrap_or(0);
    }
}
