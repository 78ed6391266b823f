// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests at the places that a plan has for them.
//!
//! A place is granted if nothing is there: its range is free memory that the
//! request may use, or has no memory, which is then brought there. In any other
//! case the request is served as if there were no plan. So a plan decides how
//! much work there is, and never whether a block is safe.
//!
//! Where the device has not all the memory that the plan takes, a small block
//! gets no page for itself because the plan says so, and requests without a place
//! use what is free among the places.

use super::blocks::Block;
use super::obtain::Room;
use super::streams::Patience;
use super::window::{Vacancy, Window};
use super::{Allocator, Device};
use crate::{DeviceError, PolicyError, Request};

impl<D: Device> Allocator<D> {
    /// Serves a request at its place, or where there is room.
    pub(super) fn find_planned(
        &mut self,
        request: Request,
        lane: u32,
        size: u64,
        capturing: bool,
    ) -> Result<u32, PolicyError> {
        let Some(plan) = &mut self.plan else {
            return self.find(lane, size, request.bytes, capturing);
        };
        let wanted = plan.look_up(request, size);
        let mut found = None;
        for (kind, start) in wanted.places() {
            let Some(window) = self.vacate(lane, start, start + size, capturing)? else {
                continue;
            };
            if let Some(block) = self.place(&window, lane, request.bytes, capturing)? {
                found = Some((block, kind));
                break;
            }
        }
        let block = match found {
            Some((block, _)) => block,
            None => self.find(lane, size, request.bytes, capturing)?,
        };
        // A request that failed is asked again: only one that was served counts.
        if let Some(plan) = &mut self.plan {
            plan.served(wanted, request.bytes, size, found.map(|(_, kind)| kind));
        }
        Ok(block)
    }

    /// The range as a window, if nothing is in it. Other streams whose free blocks are there are asked how far they are.
    fn vacate(
        &mut self,
        lane: u32,
        start: u64,
        end: u64,
        capturing: bool,
    ) -> Result<Option<Window>, DeviceError> {
        self.streams.next_pass();
        loop {
            match self.arena.vacancy(lane, start, end) {
                Vacancy::Free(window) => return Ok(Some(window)),
                Vacancy::OfOther(index) if !capturing => {
                    let Block { lane, epoch, .. } = self.arena.blocks[index];
                    let stream = self.lanes.stream(lane);
                    let device = &mut self.device;
                    if !self.streams.reach(device, stream, epoch, Patience::Ask)? {
                        return Ok(None);
                    }
                    self.arena.share_block(index);
                }
                Vacancy::OfOther(_) | Vacancy::Taken => return Ok(None),
            }
        }
    }

    /// Makes a window a used block; `None` if there is no memory for it.
    fn place(
        &mut self,
        window: &Window,
        lane: u32,
        requested: u64,
        capturing: bool,
    ) -> Result<Option<u32>, DeviceError> {
        let &Window { start, end, .. } = window;
        let first = &self.arena.blocks[window.block];
        if window.missing == 0 && end <= first.end() {
            let block = self
                .arena
                .hand_out(window.block, lane, start, end - start, requested);
            return Ok(Some(block));
        }
        if window.missing == 0 {
            return Ok(Some(self.arena.occupy(window, &[], lane, requested)));
        }
        if !self.affords(window) {
            return Ok(None);
        }
        let mut window = *window;
        if !capturing {
            self.mapper().unstick()?;
            if self.growth(end - start) < window.missing {
                // Pages come from elsewhere: whose work is done gives them.
                self.share_done(lane, Patience::Ask)?;
                let Vacancy::Free(same) = self.arena.vacancy(lane, start, end) else {
                    return Ok(None);
                };
                window = same;
            }
        }
        self.fill(&window, lane, requested, capturing, Room::Told)
    }

    /// Whether the pages that a window lacks may be used for it. A place that opens more pages than its bytes fill
    /// relies on the rest of the plan to fill them, which it can only if there is memory for all of it.
    fn affords(&self, window: &Window) -> bool {
        window.missing * self.arena.page <= window.end - window.start || !self.is_tight()
    }

    /// Whether there is not enough memory for all places of the plan, beside what lies elsewhere.
    pub(super) fn is_tight(&self) -> bool {
        let planned = self.arena.planned_pages();
        planned > 0 && planned + self.pages.from(planned) > self.pages.held() + self.room()
    }
}
