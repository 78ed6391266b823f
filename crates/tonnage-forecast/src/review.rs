// SPDX-License-Identifier: MIT OR Apache-2.0
//! Past jobs of a cluster: how much of the GPU memory that they held was used, and how many GPUs would have been enough
//! if jobs had shared them.

mod read;
mod replay;
mod times;

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

pub use read::{History, ReadError, read};
use replay::{Demand, Replayed, replay};

use crate::ledger::{self, Ended, Observation};

/// Version of the review's JSON.
pub const SCHEMA_VERSION: u32 = 1;
/// Margins over the measured use of a job, in percent.
const MARGINS: [u64; 3] = [0, 10, 20];
/// A failed job that took this part of a GPU, in percent, probably ran out of its memory.
const FULL: u64 = 95;
/// The driver keeps less than this part of a GPU.
const RESERVE: u64 = 20;
/// Parts of a GPU by which its hours are counted.
const PARTS: usize = 10;
const HOUR: f64 = 3600.0;

/// A job that has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PastJob {
    /// The scheduler's name.
    pub job: String,
    /// The owner: an account or a namespace.
    pub team: String,
    /// The user, where that is recorded.
    pub user: String,
    /// The name under which jobs of one kind are added up.
    pub family: String,
    /// The GPU, as the catalogue names it; empty if it is not known.
    pub gpu: String,
    /// How many.
    pub gpus: u32,
    /// Bytes of one; 0 if that is not known.
    pub capacity: u64,
    /// Bytes that it held of each GPU: all of them, unless it requested less.
    pub asked: Option<u64>,
    /// The most that it used of one GPU, where that was measured.
    pub used: Option<u64>,
    /// Whether that is the average of several GPUs, of which one may have used more.
    pub is_average: bool,
    /// Seconds since 1970.
    pub start: f64,
    /// Seconds since 1970.
    pub end: f64,
    /// Whether it ended with an error.
    pub failed: bool,
    /// The forecast that it ran with, as Slurm's hooks write it into the administrator's comment.
    pub forecast: Option<String>,
}

impl PastJob {
    fn gpu_hours(&self) -> f64 {
        (self.end - self.start) / HOUR * f64::from(self.gpus)
    }

    /// The bytes that it held of each GPU.
    fn held_bytes(&self) -> u64 {
        self.asked
            .map_or(self.capacity, |asked| asked.min(self.capacity))
    }

    /// Its use, for later forecasts; none where it was not measured, is an average, or where the GPU is not known.
    pub fn observation(&self) -> Option<Observation> {
        // Some sensors add the driver's reserve, so that a full GPU exceeds its capacity; much more is a wrong figure.
        let most = self.capacity + self.capacity / RESERVE;
        let used = self
            .used
            .filter(|&used| !self.is_average && used > 0 && used <= most)?
            .min(self.capacity);
        let ended = match (self.failed, self.is_full()) {
            (true, true) => Ended::OutOfMemory,
            (true, false) => Ended::Other,
            (false, _) => Ended::Completed,
        };
        Some(Observation {
            schema_version: ledger::SCHEMA_VERSION,
            job: self.job.clone(),
            team: Some(self.team.clone()).filter(|team| !team.is_empty()),
            forecast: self.forecast.clone(),
            family: self.family.clone(),
            gpu: self.gpu.clone(),
            asked: Some(self.held_bytes()),
            used,
            ended,
        })
    }

    /// Whether it used nearly all that it held of a GPU.
    fn is_full(&self) -> bool {
        let used = self.measured().unwrap_or(0);
        used > 0 && used >= self.held_bytes() / 100 * FULL
    }

    fn measured(&self) -> Option<u64> {
        self.used
            .filter(|_| self.capacity > 0)
            .map(|used| used.min(self.capacity))
    }
}

/// GPUs over the time of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Scenario {
    /// The margin over the measured use of each job, in percent; none where jobs hold what they held.
    pub margin_percent: Option<u64>,
    /// GPUs in use at the busiest moment.
    pub most_gpus: u64,
    /// Hours in which a GPU was in use, added up.
    pub gpu_hours: f64,
    /// The most GPUs in use in each of equal parts of the review's time.
    pub gpus: Vec<u64>,
}

/// The jobs of a team, or of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Group {
    /// The name.
    pub name: String,
    /// Jobs whose use was measured.
    pub jobs: u64,
    /// Their GPU-hours.
    pub gpu_hours: f64,
    /// The part of the memory that they held and used, weighted by GPU-hours.
    pub used_part: f64,
    /// GPU-hours of memory that they held and did not use.
    pub unused_gpu_hours: f64,
}

/// The past of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Review {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// Jobs that used GPUs and ended.
    pub jobs: u64,
    /// Jobs among them whose use of GPU memory was measured.
    pub measured: u64,
    /// Rows without a GPU or without an end.
    pub skipped: u64,
    /// When the first began, in seconds since 1970.
    pub start: f64,
    /// When the last ended.
    pub end: f64,
    /// GPU-hours of all.
    pub gpu_hours: f64,
    /// GPU-hours of the measured jobs.
    pub measured_gpu_hours: f64,
    /// The part of the memory that measured jobs held and used, weighted by GPU-hours; none if no job was measured.
    pub used_part: Option<f64>,
    /// GPU-hours of measured jobs by the part of a GPU that they used: to a tenth, to two tenths, and so on.
    pub gpu_hours_by_part: Vec<f64>,
    /// GPUs as they were held, and as shared by measured use. A job that was not measured holds whole GPUs in each. A
    /// job is charged the most it used for all of its time, so all peaks may come at once.
    pub scenarios: Vec<Scenario>,
    /// Teams, those with most unused memory first.
    pub teams: Vec<Group>,
    /// Kinds of jobs, in the same order.
    pub families: Vec<Group>,
    /// Jobs that failed while a GPU was full: they probably ran out of memory.
    pub full_failures: u64,
    /// Their GPU-hours.
    pub full_failure_gpu_hours: f64,
    /// Jobs among them that came after such a failure of the same team's, user's and kind's.
    pub repeated_failures: u64,
    /// Reasons for caution, a sentence each.
    pub notes: Vec<String>,
}

/// Reviews past jobs.
pub fn review(history: &History) -> Review {
    let jobs = &history.jobs;
    let start = jobs
        .iter()
        .map(|job| job.start)
        .fold(f64::INFINITY, f64::min);
    let end = jobs.iter().map(|job| job.end).fold(0.0, f64::max);
    let start = if jobs.is_empty() { 0.0 } else { start };
    let (mut held, mut used, mut hours) = (0.0, 0.0, 0.0);
    let mut by_part = vec![0.0; PARTS];
    let mut measured = 0;
    for job in jobs {
        let Some(bytes) = job.measured() else {
            continue;
        };
        measured += 1;
        hours += job.gpu_hours();
        held += job.gpu_hours() * job.held_bytes() as f64;
        used += job.gpu_hours() * bytes.min(job.held_bytes()) as f64;
        let part = (bytes as f64 / job.capacity as f64 * PARTS as f64).ceil() as usize;
        by_part[part.clamp(1, PARTS) - 1] += job.gpu_hours();
    }
    let mut notes = history.notes.clone();
    if measured < jobs.len() {
        notes.push(format!(
            "{} of {} jobs have no measured use of a GPU of known size: the replay gives them whole GPUs",
            tonnage_text::count((jobs.len() - measured) as u64),
            tonnage_text::count(jobs.len() as u64)
        ));
    }
    if history.skipped > 0 {
        notes.push(format!(
            "left out {} without a GPU, a start or an end",
            tonnage_text::plural(history.skipped, "row")
        ));
    }
    let (failures, repeated) = full_failures(jobs);
    Review {
        schema_version: SCHEMA_VERSION,
        jobs: jobs.len() as u64,
        measured: measured as u64,
        skipped: history.skipped,
        start,
        end,
        gpu_hours: jobs.iter().map(PastJob::gpu_hours).sum(),
        measured_gpu_hours: hours,
        used_part: (held > 0.0).then(|| used / held),
        gpu_hours_by_part: by_part,
        scenarios: scenarios(jobs, start, end),
        teams: groups(jobs, |job| &job.team),
        families: groups(jobs, |job| &job.family),
        full_failures: failures.len() as u64,
        full_failure_gpu_hours: failures.iter().map(|job| job.gpu_hours()).sum(),
        repeated_failures: repeated,
        notes,
    }
}

/// GPUs as jobs held them, and as shared with each margin.
fn scenarios(jobs: &[PastJob], start: f64, end: f64) -> Vec<Scenario> {
    let margins = MARGINS.map(Some);
    let scenario = |margin: Option<u64>| {
        let demand = |job: &PastJob| {
            // A GPU of unknown size is held as a whole.
            let capacity = job.capacity.max(1);
            let bytes = match (margin, job.measured()) {
                (Some(margin), Some(used)) => {
                    let more = (u128::from(used) * u128::from(100 + margin)).div_ceil(100);
                    u64::try_from(more).unwrap_or(u64::MAX)
                }
                (Some(_), None) => capacity,
                (None, _) => job.held_bytes(),
            };
            Demand {
                start: job.start,
                end: job.end,
                gpus: job.gpus,
                bytes: bytes.clamp(1, capacity),
                capacity,
            }
        };
        // GPUs of one kind are one pool: a job does not move to another kind.
        let mut pools: BTreeMap<(&str, u64), Vec<Demand>> = BTreeMap::new();
        for job in jobs {
            let pool = pools.entry((&job.gpu, job.capacity)).or_default();
            pool.push(demand(job));
        }
        let replayed: Vec<Replayed> = pools.into_values().map(|pool| replay(&pool)).collect();
        let all = Replayed::together(&replayed);
        Scenario {
            margin_percent: margin,
            most_gpus: all.most,
            gpu_hours: all.gpu_seconds / HOUR,
            gpus: all.sampled(start, end),
        }
    };
    std::iter::once(None).chain(margins).map(scenario).collect()
}

fn groups<'a>(jobs: &'a [PastJob], name: impl Fn(&'a PastJob) -> &'a str) -> Vec<Group> {
    #[derive(Default)]
    struct Sums {
        jobs: u64,
        hours: f64,
        held: f64,
        used: f64,
        unused: f64,
    }
    let mut sums: HashMap<&str, Sums> = HashMap::new();
    for job in jobs {
        let Some(used) = job.measured() else {
            continue;
        };
        let one = sums.entry(name(job)).or_default();
        let (held, hours) = (job.held_bytes(), job.gpu_hours());
        one.jobs += 1;
        one.hours += hours;
        one.held += hours * held as f64;
        one.used += hours * used.min(held) as f64;
        one.unused += hours * held.saturating_sub(used) as f64 / job.capacity as f64;
    }
    let group = |(name, sums): (&str, Sums)| Group {
        name: name.to_owned(),
        jobs: sums.jobs,
        gpu_hours: sums.hours,
        used_part: if sums.held > 0.0 {
            sums.used / sums.held
        } else {
            0.0
        },
        unused_gpu_hours: sums.unused,
    };
    let mut groups: Vec<Group> = sums.into_iter().map(group).collect();
    groups.sort_by(|a, b| {
        let order = b.unused_gpu_hours.total_cmp(&a.unused_gpu_hours);
        order.then_with(|| a.name.cmp(&b.name))
    });
    groups
}

/// Jobs that failed while a GPU was full, and how many of them came after another of the same user and kind.
fn full_failures(jobs: &[PastJob]) -> (Vec<&PastJob>, u64) {
    let failures = jobs.iter().filter(|job| job.failed && job.is_full());
    let mut failures: Vec<&PastJob> = failures.collect();
    failures.sort_by(|a, b| a.end.total_cmp(&b.end));
    let mut ended: HashMap<(&str, &str, &str), f64> = HashMap::new();
    let mut repeated = 0;
    for job in &failures {
        let owner = (job.team.as_str(), job.user.as_str(), job.family.as_str());
        let first = ended.entry(owner).or_insert(job.end);
        repeated += u64::from(*first <= job.start);
    }
    (failures, repeated)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn job(used: u64, gpus: u32, start: f64, end: f64) -> PastJob {
        PastJob {
            family: "train.py".to_owned(),
            gpu: "h100-80gb".to_owned(),
            gpus,
            capacity: 80 * GIB,
            used: Some(used * GIB),
            start: start * HOUR,
            end: end * HOUR,
            ..PastJob::default()
        }
    }

    fn reviewed(jobs: Vec<PastJob>) -> Review {
        review(&History {
            jobs,
            ..History::default()
        })
    }

    #[test]
    fn memory_is_weighted_by_the_time_it_was_held() {
        let review = reviewed(vec![job(80, 1, 0.0, 1.0), job(20, 1, 0.0, 3.0)]);
        assert_eq!(review.used_part, Some(35.0 / 80.0));
        let mut by_part = vec![0.0; PARTS];
        (by_part[2], by_part[9]) = (3.0, 1.0);
        assert_eq!(review.gpu_hours_by_part, by_part);
        let unused = review.families.first().map(|one| one.unused_gpu_hours);
        assert_eq!(unused, Some(2.25));
    }

    #[test]
    fn jobs_that_fit_together_need_fewer_gpus() {
        // Two of 39 GiB fit on one GPU, with 10 % on top no more.
        let review = reviewed(vec![job(39, 2, 0.0, 2.0), job(39, 2, 1.0, 3.0)]);
        let most: Vec<u64> = review.scenarios.iter().map(|one| one.most_gpus).collect();
        assert_eq!(most, [4, 2, 4, 4]);
        let hours: Vec<f64> = review.scenarios.iter().map(|one| one.gpu_hours).collect();
        assert_eq!(hours, [8.0, 6.0, 8.0, 8.0]);
    }

    #[test]
    fn a_job_without_a_measurement_holds_whole_gpus() {
        let mut unknown = job(1, 1, 0.0, 2.0);
        unknown.used = None;
        let review = reviewed(vec![unknown, job(10, 1, 0.0, 2.0)]);
        assert_eq!((review.jobs, review.measured), (2, 1));
        assert!(review.scenarios.iter().all(|one| one.most_gpus == 2));
        assert!(
            review.notes[0].contains("1 of 2 jobs"),
            "{:?}",
            review.notes
        );
        assert_eq!(reviewed(Vec::new()).used_part, None);
    }

    #[test]
    fn failures_with_a_full_gpu_are_counted_and_those_that_came_again() {
        let failed = |start, end| PastJob {
            failed: true,
            ..job(79, 1, start, end)
        };
        let review = reviewed(vec![failed(0.0, 1.0), failed(2.0, 3.0), failed(2.5, 3.0)]);
        assert_eq!((review.full_failures, review.repeated_failures), (3, 2));
        let learned = |used| {
            let learned = PastJob {
                used: Some(used),
                ..failed(0.0, 1.0)
            }
            .observation();
            learned.map(|one| (one.used, one.ended))
        };
        assert_eq!(learned(81 * GIB), Some((80 * GIB, Ended::OutOfMemory)));
        assert_eq!(learned(90 * GIB), None);
    }
}
