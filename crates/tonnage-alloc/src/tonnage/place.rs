// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests at the places that a plan has for them.
//!
//! A place is granted if nothing is there: its range is free memory that the
//! request may use, or has no memory, which is then brought there. In any other
//! case the request is served as if there were no plan. So a plan decides how
//! much work there is, and never whether a block is safe.
//!
//! Where the device has not all the memory that the plan takes, a small block does not get a page for itself although
//! the plan has one, and requests without a place use free memory among the places.

use super::arena::Demand;
use super::blocks::{Block, Window};
use super::obtain::Room;
use super::streams::Patience;
use super::window::Vacancy;
use super::{Allocator, Device, Observer};
use crate::{DeviceError, PolicyError, Request};

impl<D: Device, O: Observer> Allocator<D, O> {
    /// Serves a request at its place, or where there is room.
    pub(super) fn find_planned(
        &mut self,
        request: Request,
        demand: &Demand,
    ) -> Result<u32, PolicyError> {
        let Some(plan) = &mut self.plan else {
            return self.find(demand);
        };
        let wanted = plan.look_up(request, demand.size);
        let mut found = None;
        for (kind, start) in wanted.places() {
            let Some(window) = self.vacate(demand, start)? else {
                continue;
            };
            if let Some(block) = self.place(&window, demand)? {
                found = Some((block, kind));
                break;
            }
        }
        let block = match found {
            Some((block, _)) => block,
            None => self.find(demand)?,
        };
        // A failed request is repeated: only one that was served counts.
        if let Some(plan) = &mut self.plan {
            plan.served(
                wanted,
                request.bytes,
                demand.size,
                found.map(|(_, kind)| kind),
            );
        }
        Ok(block)
    }

    /// The range from `start` on as a window, if nothing is in it. The progress of other streams with free blocks there
    /// is queried.
    fn vacate(&mut self, demand: &Demand, start: u64) -> Result<Option<Window>, DeviceError> {
        self.streams.next_pass();
        loop {
            match self.arena.vacancy(demand.lane, start, start + demand.size) {
                Vacancy::Free(window) => return Ok(Some(window)),
                Vacancy::OfOther(index) if !demand.capturing => {
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
    fn place(&mut self, window: &Window, demand: &Demand) -> Result<Option<u32>, DeviceError> {
        let &Window { start, end, .. } = window;
        let first = &self.arena.blocks[window.block];
        if window.missing == 0 && end <= first.end() {
            return Ok(Some(self.arena.hand_out(window.block, start, demand)));
        }
        if window.missing == 0 {
            return Ok(Some(self.arena.occupy(window, &[], demand)));
        }
        if !self.affords(window) {
            return Ok(None);
        }
        let mut window = *window;
        if !demand.capturing {
            self.mapper().unstick()?;
            if self.growth(end - start) < window.missing {
                // Pages come from elsewhere: whose work is done gives them.
                self.share_done(demand.lane, Patience::Ask)?;
                let Vacancy::Free(same) = self.arena.vacancy(demand.lane, start, end) else {
                    return Ok(None);
                };
                window = same;
            }
        }
        self.fill(&window, demand, Room::Told)
    }

    /// Whether the pages that a window lacks may be used for it. A place that opens more pages than its bytes fill
    /// relies on the rest of the plan to fill them, which it can only if there is memory for all of it.
    fn affords(&self, window: &Window) -> bool {
        window.missing * self.arena.page <= window.end - window.start || !self.is_tight()
    }

    /// Whether there is not enough memory for all places of the plan, beside what lies elsewhere.
    pub(super) fn is_tight(&self) -> bool {
        let planned = self.arena.planned_pages();
        planned > 0 && planned + self.pages.from(planned) > self.pages.count_held() + self.room()
    }
}
