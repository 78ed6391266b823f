// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which physical memory is behind which page of the address space.
//!
//! A page has one handle of the device's granularity, and a handle is mapped at
//! one page at most: what is reserved is what is mapped, and there is no second
//! account. After a call of the device failed and undoing it failed too, there can
//! be handles that are mapped nowhere (`spare`, the first to be used again) or
//! still mapped where nothing may be (`stuck`).

use std::collections::BTreeMap;

use crate::{PhysicalId, Tag};

/// Pages of an address space, and the memory behind them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    handles: Vec<Option<PhysicalId>>,
    mapped: u64,
    /// Mapped nowhere; the device did not take them back.
    pub(super) spare: Vec<PhysicalId>,
    /// Mapped at pages that count as gaps; the device did not undo it.
    pub(super) stuck: Vec<(u64, PhysicalId)>,
    /// Pages under blocks whose memory was given back for a while, and the tag of those blocks.
    pub(super) paused: BTreeMap<u64, Tag>,
    /// Counts for the statistics.
    pub(super) created: u64,
    pub(super) released: u64,
    pub(super) moved: u64,
}

impl Pages {
    /// How many pieces of physical memory there are.
    pub(super) fn count_held(&self) -> u64 {
        self.mapped + (self.spare.len() + self.stuck.len()) as u64
    }

    /// How many pages have memory from one on. It counts them, which is rare: only a shortage of memory needs the
    /// number.
    pub(super) fn from(&self, page: u64) -> u64 {
        let pages = self.handles.get(page as usize..).unwrap_or_default();
        pages.iter().flatten().count() as u64
    }

    /// How many pages the table has an entry for.
    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }

    /// The memory of a page.
    pub(super) fn get(&self, page: u64) -> Option<PhysicalId> {
        self.handles.get(page as usize).copied().flatten()
    }

    /// Notes that memory is mapped at a page that has none.
    pub(super) fn record_mapping(&mut self, page: u64, memory: PhysicalId) {
        let page = page as usize;
        if page >= self.handles.len() {
            self.handles.resize(page + 1, None);
        }
        debug_assert!(self.handles[page].is_none(), "a page is mapped twice");
        self.handles[page] = Some(memory);
        self.mapped += 1;
    }

    /// Takes what is stuck at a page for its memory; whether something is.
    pub(super) fn adopt_stuck(&mut self, page: u64) -> bool {
        let Some(place) = self.stuck.iter().position(|(stuck, _)| *stuck == page) else {
            return false;
        };
        let (_, memory) = self.stuck.swap_remove(place);
        self.record_mapping(page, memory);
        true
    }

    /// Notes that nothing is mapped at a page any more.
    pub(super) fn take(&mut self, page: u64) -> Option<PhysicalId> {
        let memory = self.handles.get_mut(page as usize)?.take();
        self.mapped -= u64::from(memory.is_some());
        memory
    }

    /// Recounts the handles.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub(super) fn check(&self) -> Result<(), String> {
        let mapped = self.handles.iter().flatten();
        let stuck = self.stuck.iter().map(|(_, memory)| memory);
        let all = mapped.chain(&self.spare).chain(stuck);
        let mut all: Vec<PhysicalId> = all.copied().collect();
        let count = all.len() as u64;
        all.sort_unstable();
        all.dedup();
        if all.len() as u64 != count {
            return Err("memory is mapped at two pages".to_owned());
        }
        if count != self.count_held() {
            return Err(format!(
                "{count} pieces of memory, {} counted",
                self.count_held()
            ));
        }
        if self.paused.keys().any(|page| self.get(*page).is_some()) {
            return Err("a paused page has memory".to_owned());
        }
        Ok(())
    }
}
