// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process on one device: its recording, the assumptions, and whether a replay reproduces it.

use std::io::{self, Read};

use tonnage_alloc::AddressOrder;
use tonnage_alloc::torch::{Rules, Settings, Version};
use tonnage_recording::{Meta, Reader, meta};

use super::alloc::Alloc;
use super::check::Check;
use super::device::{DeviceSpec, ReplayDevice};
use super::facts::RecordedAs;
use super::options::{Options, ReplayError};
use super::policy::{Torch, UNPLACED};
use super::report::{Assumption, Comparison};
use super::requests::{OpKind, Requests};
use super::start::{Learner, Start};

/// A device with more memory than any program requests, where the real one is not known.
const AMPLE: u64 = 1 << 40;
/// The largest device that is simulated: absurd requests must not map absurdly many pages.
pub(super) const LARGEST: u64 = 1 << 42;

/// One process on one device, ready to be replayed.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(super) requests: Requests,
    pub(super) rank: Option<u32>,
    pub(super) recorded: RecordedAs,
    pub(crate) version: Option<Version>,
    pub(super) rules: Rules,
    pub(super) order: AddressOrder,
    pub(crate) capacity: u64,
    pub(crate) capacity_known: bool,
    pub(crate) context: u64,
    pub(super) assumptions: Vec<Assumption>,
    pub(super) adopted: Option<Start>,
    pub(super) comparison: Option<Comparison>,
}

impl Track {
    /// Replays the recording once, as recorded, to see that it is understood.
    pub(super) fn prepare<R: Read>(
        open: &impl Fn() -> io::Result<R>,
        requests: Requests,
        facts: &[Meta],
        options: &Options,
        cut_off: bool,
    ) -> Result<Self, ReplayError> {
        let process = requests.process;
        let recorded = RecordedAs::read(facts, process, &requests);
        let mut assumptions = Vec::new();
        let recorded_context = if requests.context > 0 {
            requests.context
        } else {
            recorded.context.unwrap_or(0)
        };
        // The device and settings of the recording, to reproduce it.
        let was = recorded.capacity.or_else(|| {
            let available = requests.available?;
            Some(available.saturating_add(recorded_context))
        });
        let was = was.map(|bytes| bytes.min(LARGEST));
        let ample = ample(requests.peak_live);
        let spec = DeviceSpec {
            // A device that refused nothing may have cached far more than was ever alive.
            total: if recorded.unlimited {
                LARGEST
            } else {
                was.unwrap_or(ample)
            },
            context: recorded_context,
            order: AddressOrder::Ascending,
            max_pages: max_pages(&requests),
        };
        let given = options.torch_minor.map(|minor| Version(2, minor));
        let versions = given.map_or_else(|| recorded.versions(), |version| vec![version]);
        let mut track = Self {
            rank: meta::find(facts, process, meta::PROCESS_RANK).and_then(|rank| rank.parse().ok()),
            version: None,
            rules: Rules::for_version(versions[0]),
            order: recorded.orders(&requests)[0],
            capacity: 0,
            capacity_known: true,
            context: options.context.unwrap_or(recorded_context),
            assumptions: Vec::new(),
            adopted: None,
            comparison: None,
            requests,
            recorded,
        };
        let version = track.understand(open, spec, &versions)?;
        track.version = Some(version);
        let given_capacity = options.capacity.map(|bytes| bytes.min(LARGEST));
        track.capacity = given_capacity.or(was).unwrap_or_else(|| {
            track.capacity_known = false;
            assumptions.push(Assumption::Capacity { bytes: ample });
            ample
        });
        let asked = options.capacity.or(options.context).is_some();
        if asked && track.context > track.capacity {
            return Err(ReplayError::NoRoom {
                context: track.context,
                capacity: track.capacity,
            });
        }
        if track.context == 0 {
            assumptions.push(Assumption::NoContext);
        }
        track.assume(&mut assumptions, version, given.is_some(), cut_off);
        track.assumptions = assumptions;
        Ok(track)
    }

    /// Replays the recorded setting beside the recording, with each reading of
    /// what the recording leaves open, until one reproduces it.
    fn understand<R: Read>(
        &mut self,
        open: &impl Fn() -> io::Result<R>,
        spec: DeviceSpec,
        versions: &[Version],
    ) -> Result<Version, ReplayError> {
        let settings = self.recorded.settings.clone().unwrap_or_default();
        let comparable = self.requests.has_segments && self.recorded.settings.is_some();
        if let Some(mut learner) = Learner::new(&self.requests, &settings) {
            let key = (self.requests.process, self.requests.device);
            for event in Reader::new(open()?)? {
                let event = event?;
                if (event.process, event.device) == key {
                    learner.row(&event);
                }
            }
            learner.teach(&mut self.requests);
        }
        let start = Start::adopted(&self.requests, &settings);
        self.adopted = start.map(|(start, _)| start);
        let mut best: Option<(Requests, Comparison, Version, AddressOrder)> = None;
        for &version in versions {
            for order in self.recorded.orders(&self.requests) {
                if !comparable {
                    break;
                }
                let mut requests = self.requests.clone();
                let spec = DeviceSpec { order, ..spec };
                let rules = Rules::for_version(version);
                let found = self.compare(open, &mut requests, &settings, rules, spec)?;
                let better = best
                    .as_ref()
                    .is_none_or(|(_, best, ..)| found.equal > best.equal);
                let exact = found.exact();
                if better {
                    best = Some((requests, found, version, order));
                }
                if exact {
                    break;
                }
            }
            if best.as_ref().is_some_and(|(_, best, ..)| best.exact()) {
                break;
            }
        }
        if let Some((requests, comparison, version, order)) = best {
            self.requests = requests;
            self.comparison = Some(comparison);
            self.rules = Rules::for_version(version);
            self.order = order;
            return Ok(version);
        }
        if self.recorded.moves_pages() {
            self.requests.drop_all(OpKind::MaybeRelease);
        }
        for op in &mut self.requests.ops {
            if op.kind == OpKind::MaybeRelease {
                op.kind = OpKind::Release;
            }
        }
        Ok(versions[0])
    }

    fn compare<R: Read>(
        &self,
        open: &impl Fn() -> io::Result<R>,
        requests: &mut Requests,
        settings: &Settings,
        rules: Rules,
        spec: DeviceSpec,
    ) -> Result<Comparison, ReplayError> {
        let start = self.adopted.clone();
        let start = start.unwrap_or_else(|| Start::requested(requests));
        let held = start.held_segments();
        let mut addrs = vec![UNPLACED; requests.slots as usize];
        let device = ReplayDevice::with(spec, &held);
        let made = Torch::new(
            device,
            settings.clone(),
            rules,
            Vec::new(),
            &start,
            &mut addrs,
        );
        let Ok(mut policy) = made else {
            return Ok(Comparison {
                events: requests.events,
                incomparable_from: Some(0),
                ..Comparison::default()
            });
        };
        // The observations of the start are not in the recording.
        policy.policy.sink_mut().clear();
        let key = (requests.process, requests.device);
        let mut check = Check::new(requests, policy, addrs, &held);
        for (row, event) in (0..).zip(Reader::new(open()?)?) {
            let event = event?;
            if (event.process, event.device) == key {
                check.row(&event, row);
            }
        }
        Ok(check.finish())
    }

    fn assume(
        &self,
        assumptions: &mut Vec<Assumption>,
        version: Version,
        given: bool,
        cut_off: bool,
    ) {
        let requests = &self.requests;
        if !requests.initial.is_empty() || !requests.segments.is_empty() {
            let settings = self.recorded.settings.clone().unwrap_or_default();
            let ambiguous = Start::adopted(requests, &settings).map_or(0, |(_, count)| count);
            let bytes = requests.initial.iter().map(|block| block.requested);
            assumptions.push(Assumption::Start {
                blocks: requests.initial.len() as u64,
                bytes: bytes.fold(0, u64::saturating_add),
                segments: requests.segments.len() as u64,
                adopted: self.adopted.is_some(),
                ambiguous,
            });
        }
        if self.recorded.is_torch && !self.recorded.settings_known {
            assumptions.push(Assumption::Settings);
        }
        if !given && self.recorded.versions().len() > 1 {
            assumptions.push(Assumption::Torch {
                said: self.recorded.version_text.clone(),
                minor: version.1,
            });
        }
        if self.recorded.order.is_none() && requests.has_segments {
            assumptions.push(Assumption::AddressOrder {
                ascending: self.order == AddressOrder::Ascending,
            });
        }
        let calls = requests
            .ops
            .iter()
            .filter(|op| op.kind == OpKind::Release)
            .count() as u64;
        if calls > 0 {
            assumptions.push(Assumption::EmptyCache { calls });
        }
        let blocks = requests.gaps.sizes_only;
        if blocks > 0 {
            assumptions.push(Assumption::SizesOnly { blocks });
        }
        if cut_off {
            assumptions.push(Assumption::CutOff);
        }
    }

    /// The allocator that is meant; `None` if the recording has none.
    pub(crate) fn resolve(&self, alloc: &Alloc) -> Option<Alloc> {
        match alloc {
            Alloc::Recorded => self.recorded.alloc(),
            other => Some(other.clone()),
        }
    }

    pub(crate) fn ample(&self) -> u64 {
        ample(self.requests.peak_live)
    }

    pub(crate) fn needed_live(&self) -> u64 {
        self.requests.needed_live
    }

    pub(crate) fn peak_outside(&self) -> u64 {
        self.requests.peak_outside
    }

    /// How many requests there are.
    pub(crate) const fn asked(&self) -> u64 {
        self.requests.allocs
    }

    pub(super) fn spec(&self, total: u64) -> DeviceSpec {
        DeviceSpec {
            total,
            context: self.context,
            order: self.order,
            max_pages: max_pages(&self.requests),
        }
    }

    pub(crate) fn is_recorded(&self, alloc: &Alloc) -> bool {
        self.recorded.alloc().as_ref() == Some(alloc)
    }
}

/// How many pages a replay may map. A few rows can request terabytes in turn, and
/// a search replays them hundreds of times; no program that ran comes near.
fn max_pages(requests: &Requests) -> u64 {
    (1 << 20) + 64 * requests.allocs
}

/// Bytes of a device with room for everything, if so much is alive at once.
fn ample(peak_live: u64) -> u64 {
    AMPLE.max(peak_live.saturating_mul(4)).min(LARGEST)
}
