// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the device that bring memory to pages, as one transaction.
//!
//! A transfer takes new memory, and memory of unused pages, and maps all of it where it is needed. It happens as a
//! whole or not at all: if a call fails, the earlier calls are undone. One piece of memory is as good as another,
//! because an empty page has no content, so undoing only has to bring back as many pieces. If undoing fails too, the
//! pages it failed for become a gap and their memory goes back to the device; no piece is ever lost or mapped twice.

use super::blocks::PageRange;
use super::pages::Pages;
use crate::{Access, Device, DeviceAddr, DeviceError, PhysicalId};

/// A transfer that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: DeviceError,
    /// Sources that have no memory any more: none unless undoing failed too.
    pub(super) lost: Vec<PageRange>,
}

/// The device and the addresses on it.
#[derive(Debug)]
pub(super) struct Mapper<'a, D> {
    pub(super) device: &'a mut D,
    pub(super) pages: &'a mut Pages,
    pub(super) base: DeviceAddr,
    pub(super) page: u64,
}

impl<D: Device> Mapper<'_, D> {
    fn addr(&self, page: u64) -> DeviceAddr {
        self.base.offset(page * self.page)
    }

    /// Obtains up to `count` pieces of memory; fewer if the device has no more.
    ///
    /// # Errors
    /// If the device fails for another reason; nothing was obtained then.
    pub(super) fn create(&mut self, count: u64) -> Result<Vec<PhysicalId>, DeviceError> {
        let mut created = Vec::new();
        for _ in 0..count {
            match self.device.create(self.page) {
                Ok(memory) => {
                    self.pages.created += 1;
                    created.push(memory);
                }
                Err(DeviceError::OutOfMemory { .. }) => break,
                Err(error) => {
                    // The first failure is the one to report.
                    let _ = self.release(created);
                    return Err(error);
                }
            }
        }
        Ok(created)
    }

    /// Gives memory back that is mapped nowhere. Memory that the device does not take back is kept.
    ///
    /// # Errors
    /// The first failure; all of it was tried.
    pub(super) fn release(&mut self, memory: Vec<PhysicalId>) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for one in memory {
            let released = self.device.release(one);
            match released {
                Ok(()) => self.pages.released += 1,
                Err(_) => self.pages.spare.push(one),
            }
            result = result.and(released);
        }
        result
    }

    /// Maps `memory` and that of `sources` at `targets`, by address, which are as many pages beside those at which
    /// something is stuck.
    pub(super) fn run(
        &mut self,
        targets: &[u64],
        sources: &[PageRange],
        memory: Vec<PhysicalId>,
    ) -> Result<(), Failed> {
        let mut memory = memory;
        let mut taken = 0;
        let mut unmapped = Ok(());
        for source in sources {
            unmapped = self.unmap(source, &mut memory);
            if unmapped.is_err() {
                break;
            }
            taken += 1;
        }
        let Err(error) = unmapped.and_then(|()| self.map(targets, &mut memory)) else {
            debug_assert!(memory.is_empty(), "memory that is mapped nowhere");
            let moved = sources.iter().map(|range| range.last - range.first);
            self.pages.moved += moved.sum::<u64>();
            return Ok(());
        };
        let mut lost = Vec::new();
        for source in &sources[..taken] {
            let pages: Vec<u64> = (source.first..source.last).collect();
            if self.map(&pages, &mut memory).is_err() {
                lost.push(*source);
            }
        }
        // The first failure is the one to report.
        let _ = self.release(memory);
        Err(Failed { error, lost })
    }

    /// Takes the memory of a range of pages away, or nothing.
    pub(super) fn unmap(
        &mut self,
        range: &PageRange,
        memory: &mut Vec<PhysicalId>,
    ) -> Result<(), DeviceError> {
        let size = (range.last - range.first) * self.page;
        self.device.unmap(self.addr(range.first), size)?;
        let pages = &mut *self.pages;
        memory.extend((range.first..range.last).filter_map(|page| pages.take(page)));
        Ok(())
    }

    /// Maps pieces of `memory` at pages, or nothing. A page at which something is stuck keeps that.
    fn map(&mut self, targets: &[u64], memory: &mut Vec<PhysicalId>) -> Result<(), DeviceError> {
        for (number, &page) in targets.iter().enumerate() {
            if self.pages.adopt_stuck(page) {
                continue;
            }
            let Some(&one) = memory.last() else {
                self.unmap_each(&targets[..number], memory);
                return Err(DeviceError::Invalid("fewer pieces of memory than pages"));
            };
            if let Err(error) = self.device.map(self.addr(page), self.page, one) {
                self.unmap_each(&targets[..number], memory);
                return Err(error);
            }
            memory.pop();
            self.pages.record_mapping(page, one);
        }
        for (first, last) in neighbours(targets) {
            let size = (last - first) * self.page;
            let addr = self.addr(first);
            if let Err(error) = self.device.set_access(addr, size, Access::ReadWrite) {
                self.unmap_each(targets, memory);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Undoes mappings. One that the device does not undo is noted, and undone before the next transfer.
    fn unmap_each(&mut self, targets: &[u64], memory: &mut Vec<PhysicalId>) {
        for &page in targets {
            let Some(one) = self.pages.take(page) else {
                continue;
            };
            if self.device.unmap(self.addr(page), self.page).is_ok() {
                memory.push(one);
            } else {
                self.pages.stuck.push((page, one));
            }
        }
    }

    /// Undoes mappings that could not be undone when they should have been.
    pub(super) fn unstick(&mut self) -> Result<(), DeviceError> {
        while let Some(&(page, memory)) = self.pages.stuck.last() {
            self.device.unmap(self.addr(page), self.page)?;
            self.pages.stuck.pop();
            self.pages.spare.push(memory);
        }
        Ok(())
    }
}

/// Ranges of pages that follow each other, as first and one past the last.
pub(super) fn neighbours(pages: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    pages
        .chunk_by(|before, after| before + 1 == *after)
        .filter_map(|run| Some((*run.first()?, run.last()? + 1)))
}
