// SPDX-License-Identifier: MIT OR Apache-2.0
//! The forecast: what each GPU of a job takes at most, and how that is known.
//!
//! A share of a GPU is rarely fenced, so it has to hold all that a process really takes: PyTorch's cache counts, not
//! only its blocks. The figure is therefore the most that was in use on a device of the GPU's full size, and what a dry
//! run does not count comes on top, at the most that was seen of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tonnage_analysis::verdict::{Need, Outcome, Verdict, ended};
use tonnage_gpus::Catalogue;
use tonnage_text::{bytes, plural, ranks_named};

use crate::key::JobKey;

/// Version of the file.
pub const SCHEMA_VERSION: u32 = 1;
/// No device has more; a file that claims to is not a forecast.
const MAX_BYTES: u64 = 1 << 50;
/// GPUs of a job, and roles, at most.
const MAX_GPUS: u32 = 1 << 20;
const MAX_ROLES: usize = 4096;
/// Bytes of a name at most.
const MAX_NAME: usize = 512;
/// The unit in which engines account for memory.
pub const MIB: u64 = 1 << 20;

/// Whether a job fits on the GPU of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fits {
    /// Also with the most that was seen of what is not counted.
    Yes,
    /// Only if what is not counted is less than the most that was seen of it.
    Perhaps,
    /// Not on this GPU.
    No,
}

/// How a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// PyTorch's own allocator took so much, beside a context whose size was read off such a GPU.
    Exact,
    /// It was measured on a GPU.
    Measured,
    /// A replay of the whole job found it.
    Replayed,
    /// It rests on sizes or values that were assumed, or on a context whose size was.
    Assumed,
    /// It is a lower bound: there is no upper one.
    AtLeast,
}

impl Known {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Measured => "measured",
            Self::Replayed => "replayed",
            Self::Assumed => "assumed",
            Self::AtLeast => "at least",
        }
    }
}

/// GPUs of a job that take the same memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// The ranks, in words: `rank 0`, `ranks 0–7`, `all 512 ranks`.
    pub name: String,
    /// How many GPUs.
    pub gpus: u32,
    /// The most in use on one of them, all processes and their contexts together.
    pub peak: u64,
    /// How `peak` is known.
    pub known: Known,
    /// The most that was seen of what `peak` does not count.
    pub uncounted: u64,
    /// An upper bound of what it takes on the GPU; none where only a lower one is known.
    pub bound: Option<u64>,
    /// The smallest device on which the job would run, what is not counted included, if its share were fenced; none
    /// where that is not known.
    pub least: Option<u64>,
}

/// The kind of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The job ran on a simulated GPU.
    DryRun,
    /// The job ran on a real GPU and was recorded.
    Recording,
    /// The same job ran before, and what it took was measured.
    PastRuns,
}

/// The basis of a forecast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The kind.
    pub source: Source,
    /// The observation, in a sentence.
    pub what: String,
    /// Whether the job was seen to its end.
    pub complete: bool,
}

/// The memory of each GPU of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Forecast {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// The start of the SHA-256 of `key`.
    pub name: String,
    /// The inputs.
    pub key: JobKey,
    /// The name under which jobs of one kind are added up.
    pub family: String,
    /// Bytes of the GPU.
    pub gpu_memory: u64,
    /// Whether the job fits on it.
    pub fits: Fits,
    /// Its GPUs, those that take most first.
    pub roles: Vec<Role>,
    /// The basis.
    pub evidence: Vec<Evidence>,
    /// GPUs of the catalogue that are large enough for a job that does not fit, the smallest first.
    pub larger_gpus: Vec<String>,
    /// The unknowns, a sentence each.
    pub unknown: Vec<String>,
}

/// Why there is no forecast.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForecastError {
    /// The job did not show what it takes.
    #[error("the job does not show what it takes: {0}")]
    NoAnswer(String),
    /// The recording does not name the GPU of the job.
    #[error(
        "the recording does not contain how much memory the GPU has and what lies outside PyTorch"
    )]
    NoDevice,
    /// A file that is not a forecast, or has figures that contradict each other.
    #[error("not a forecast: {0}")]
    Invalid(String),
}

impl ForecastError {
    /// The next step.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoAnswer(_) => {
                "`tonnage run` with the same command shows more; mend the job first"
            }
            Self::NoDevice => {
                "a forecast is made from a dry run (`tonnage forecast make`) or from a recording of `tonnage record`"
            }
            Self::Invalid(_) => "make it again: `tonnage forecast make`",
        }
    }
}

impl Forecast {
    /// The forecast of this key's job from the verdict of a run.
    pub fn of_verdict(verdict: &Verdict, mut key: JobKey) -> Result<Self, ForecastError> {
        if verdict.capacity.bytes == 0 {
            return Err(ForecastError::NoDevice);
        }
        if key.torch.is_empty() {
            key.torch.clone_from(&verdict.torch);
        }
        if key.gpu.is_empty() {
            key.gpu.clone_from(&verdict.gpu);
        }
        let (fits, roles) = match verdict.outcome {
            Outcome::Fits | Outcome::Uncertain => fitting(verdict),
            Outcome::DoesNotFit => {
                let need = verdict.need.as_ref().ok_or_else(|| {
                    ForecastError::NoAnswer(
                        "it ran out of memory and was not run to its end".to_owned(),
                    )
                })?;
                (Fits::No, vec![not_fitting(verdict, need)])
            }
            Outcome::NoDevice => {
                return Err(ForecastError::NoAnswer("it uses no GPU".to_owned()));
            }
            Outcome::Interrupted => {
                return Err(ForecastError::NoAnswer("it was interrupted".to_owned()));
            }
            Outcome::Failed => {
                let reason = match verdict.exceptions.first() {
                    Some(exception) => format!("it failed with {}", exception.kind),
                    None => format!("it {}", ended(&verdict.ending)),
                };
                return Err(ForecastError::NoAnswer(reason));
            }
            Outcome::NotCovered => {
                return Err(ForecastError::NoAnswer(
                    "it uses the GPU by other means than PyTorch".to_owned(),
                ));
            }
        };
        let larger_gpus = match (fits, roles.first().and_then(|role| role.bound)) {
            (Fits::No, Some(bound)) => larger_gpus(bound, verdict.context.bytes),
            _ => Vec::new(),
        };
        let forecast = Self {
            schema_version: SCHEMA_VERSION,
            name: key.name(),
            family: key.family(),
            key,
            gpu_memory: verdict.capacity.bytes,
            fits,
            roles,
            evidence: vec![evidence(verdict)],
            larger_gpus,
            unknown: verdict.unknown.clone(),
        };
        forecast.check()?;
        Ok(forecast)
    }

    /// Reads a forecast from an untrusted writer.
    pub fn parse(json: &[u8]) -> Result<Self, ForecastError> {
        let forecast: Self = serde_json::from_slice(json)
            .map_err(|error| ForecastError::Invalid(error.to_string()))?;
        forecast.check()?;
        Ok(forecast)
    }

    pub(crate) fn check(&self) -> Result<(), ForecastError> {
        let invalid = |reason: &str| Err(ForecastError::Invalid(reason.to_owned()));
        if self.schema_version != SCHEMA_VERSION {
            let found = self.schema_version;
            return Err(ForecastError::Invalid(format!(
                "its version is {found}, this tonnage knows {SCHEMA_VERSION}"
            )));
        }
        if self.name != self.key.name() {
            return invalid("its name is not that of its key");
        }
        if self.roles.is_empty() || self.roles.len() > MAX_ROLES {
            return invalid("it has no GPUs, or too many kinds of them");
        }
        if self.gpu_memory == 0 || self.gpu_memory > MAX_BYTES {
            return invalid("no GPU has so much memory");
        }
        // They become part of manifests and of lines at a terminal.
        let names = self.roles.iter().map(|role| &role.name);
        let mut texts = names
            .chain([&self.family, &self.key.gpu])
            .chain(&self.larger_gpus);
        if texts.any(|text| text.len() > MAX_NAME || text.chars().any(char::is_control)) {
            return invalid("a name is too long, or no name");
        }
        let mut gpus = 0_u32;
        for role in &self.roles {
            gpus = gpus.saturating_add(role.gpus);
            let sound = role.peak <= MAX_BYTES
                && role.uncounted <= MAX_BYTES
                && role
                    .bound
                    .is_none_or(|bound| (role.peak..=MAX_BYTES).contains(&bound))
                && (1..=MAX_GPUS).contains(&role.gpus);
            if !sound {
                return invalid("the figures of a role contradict each other");
            }
            if self.fits == Fits::Yes && role.bound.is_none_or(|bound| bound > self.gpu_memory) {
                return invalid("it claims that the job fits, its bound contradicts that");
            }
        }
        if gpus > MAX_GPUS {
            return invalid("no job has so many GPUs");
        }
        Ok(())
    }

    /// The role that takes most.
    pub fn fullest(&self) -> &Role {
        // There is at least one: `check` saw to it.
        &self.roles[0]
    }

    /// All GPUs of the job.
    pub fn gpus(&self) -> u32 {
        self.roles
            .iter()
            .map(|role| role.gpus)
            .fold(0, u32::saturating_add)
    }

    /// Bytes to request, for each GPU of a role, in whole MiB; none where the job does not fit on the GPU.
    ///
    /// A bound above the memory of the GPU requests all of it, because no more exists.
    pub fn request(&self, role: &Role) -> Option<u64> {
        match self.fits {
            Fits::No => None,
            Fits::Yes | Fits::Perhaps => {
                let bound = role.bound.unwrap_or(self.gpu_memory).next_multiple_of(MIB);
                Some(bound.min(self.gpu_memory / MIB * MIB))
            }
        }
    }

    /// Whether the job was seen to its end by something that the forecast rests on.
    pub fn is_complete(&self) -> bool {
        self.evidence.iter().any(|evidence| evidence.complete)
    }

    /// The memory of the fullest GPU, in a sentence with its evidence.
    pub fn sentence(&self) -> String {
        let role = self.fullest();
        let gpu = &self.key.gpu;
        let whole = bytes(self.gpu_memory);
        let takes = if self.is_complete() {
            "it takes"
        } else {
            "as far as it was seen, it takes"
        };
        match (self.fits, role.bound) {
            (Fits::No, Some(bound)) => {
                let larger = match self.larger_gpus.first() {
                    Some(larger) => format!("; {larger} is large enough"),
                    None => "; no GPU that tonnage knows is large enough".to_owned(),
                };
                format!("{takes} up to {}, {gpu} has {whole}{larger}", bytes(bound))
            }
            (Fits::No, None) => {
                let least = bytes(role.peak);
                format!("it takes more than {least}, {gpu} has {whole}")
            }
            // Past runs took more than was forecast.
            (Fits::Perhaps, Some(bound)) if bound > role.peak.saturating_add(role.uncounted) => {
                let most = bytes(bound.min(self.gpu_memory));
                format!("{takes} up to {most} by its past runs, {gpu} has {whole}: it may run out")
            }
            (Fits::Perhaps, _) => {
                let (peak, uncounted) = (bytes(role.peak), bytes(role.uncounted));
                format!(
                    "{takes} {peak} and up to {uncounted} that is not counted, {gpu} has {whole}: it may run out"
                )
            }
            (Fits::Yes, _) => {
                let bound = bytes(role.bound.unwrap_or(role.peak));
                let (peak, known) = (bytes(role.peak), role.known.word());
                format!("{takes} at most {bound} of {whole} ({peak} {known})")
            }
        }
    }
}

/// GPUs of the catalogue that hold so much, of which `context` is for the context on the GPU it was found on.
fn larger_gpus(bound: u64, context: u64) -> Vec<String> {
    let catalogue = Catalogue::embedded();
    let holding = catalogue.that_hold(bound, context);
    holding.into_iter().map(|gpu| gpu.id.clone()).collect()
}

fn evidence(verdict: &Verdict) -> Evidence {
    let measured = verdict.is_measured();
    let gpu = &verdict.gpu;
    let torch = match verdict.torch.as_str() {
        "" => String::new(),
        version => format!(" with torch {version}"),
    };
    let mut what = if measured {
        format!("recorded on {}{torch}", verdict.gpu_name)
    } else {
        format!("a dry run on {gpu}{torch}")
    };
    if let Some(ran) = &verdict.ranks_run {
        let ranks = ranks_named(&ran.ranks);
        let _ = write!(
            what,
            ", {ranks} of {}; the others are taken to be no fuller",
            ran.world_size
        );
    }
    if let Some(stopped) = &verdict.stopped {
        let _ = write!(what, ", stopped {stopped}");
    }
    let seen_whole = verdict.need.as_ref().is_none_or(|need| need.complete);
    Evidence {
        source: if measured {
            Source::Recording
        } else {
            Source::DryRun
        },
        what,
        complete: seen_whole && verdict.stopped.is_none() && verdict.incomplete.is_none(),
    }
}

fn read_known(verdict: &Verdict) -> Known {
    // The context is a part of what is in use.
    let context_known = matches!(verdict.context.known.as_str(), "read" | "given");
    if verdict.is_measured() {
        Known::Measured
    } else if verdict.assumes_sizes() || !context_known {
        Known::Assumed
    } else {
        Known::Exact
    }
}

/// The roles of a job that ran to its end.
fn fitting(verdict: &Verdict) -> (Fits, Vec<Role>) {
    let margin = verdict.margin.as_ref();
    // A job that handles out-of-memory errors takes what it finds.
    let takes_all = verdict.handled_ooms() > 0;
    let certain = margin.is_some_and(|margin| margin.certain) || takes_all;
    let uncounted_of_fullest: u64 = margin.map_or(0, |margin| {
        margin.uncounted.iter().map(|part| part.high).sum()
    });
    let fullest = margin.map(|margin| margin.device);
    let processes = |device: i32| {
        let total = verdict
            .devices_total
            .iter()
            .find(|total| total.device == device);
        total.map_or(1, |total| u64::from(total.processes)).max(1)
    };
    // It covers all processes of the fullest device.
    let per_process = uncounted_of_fullest / fullest.map_or(1, processes);
    let mut by_size: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
    for total in &verdict.devices_total {
        // Ranks differ by a few blocks; engines count in MiB.
        let size = total.most_in_use.next_multiple_of(MIB);
        by_size.entry(size).or_default().push(total.device);
    }
    let role = |devices: Vec<i32>| {
        let of_it = |device: i32| {
            verdict
                .devices_total
                .iter()
                .find(move |total| total.device == device)
        };
        let totals = devices.iter().filter_map(|&device| of_it(device));
        let peak = totals.map(|total| total.most_in_use).max().unwrap_or(0);
        let most = devices
            .iter()
            .map(|&device| processes(device))
            .max()
            .unwrap_or(1);
        let uncounted = per_process.saturating_mul(most);
        let bound = peak.saturating_add(uncounted);
        Role {
            name: name(verdict, &devices),
            gpus: u32::try_from(devices.len()).unwrap_or(MAX_GPUS),
            peak,
            known: read_known(verdict),
            uncounted,
            // Where a replay shows that the job does with less, it never takes more than there is.
            bound: Some(match certain {
                _ if takes_all => verdict.capacity.bytes,
                true => bound.min(verdict.capacity.bytes),
                false => bound,
            }),
            least: margin
                .filter(|margin| devices.contains(&margin.device))
                .and_then(|margin| margin.smallest)
                .map(|smallest| {
                    smallest
                        .saturating_add(uncounted)
                        .min(verdict.capacity.bytes)
                }),
        }
    };
    let mut roles: Vec<Role> = by_size.into_values().rev().map(role).collect();
    if let Some(ran) = &verdict.ranks_run {
        // Which of the others is like which of those that were run is not known: all are taken for the fullest.
        roles.truncate(1);
        for role in &mut roles {
            role.gpus = ran.world_size;
            role.name = format!("all {}", plural(u64::from(ran.world_size), "rank"));
        }
    }
    let is_given = margin.is_some_and(|margin| margin.given);
    let is_within = |role: &Role| role.bound <= Some(verdict.capacity.bytes);
    // A margin that was given decides, as it does for the verdict.
    let fits = if certain || (!is_given && roles.iter().all(is_within)) {
        Fits::Yes
    } else {
        Fits::Perhaps
    };
    (fits, roles)
}

/// The owners of these devices, in words.
fn name(verdict: &Verdict, devices: &[i32]) -> String {
    let uses = verdict
        .devices
        .iter()
        .filter(|one| devices.contains(&one.device));
    let mut ranks: Vec<u32> = uses.filter_map(|one| one.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    match (ranks.is_empty(), devices) {
        (false, _) => ranks_named(&ranks),
        (true, [device]) => format!("GPU {device}"),
        (true, _) => plural(devices.len() as u64, "GPU"),
    }
}

/// The fullest GPU of a job that does not fit.
fn not_fitting(verdict: &Verdict, need: &Need) -> Role {
    let is_bounded = need.complete && need.known == "replayed";
    let gpus = match &verdict.ranks_run {
        Some(ran) => ran.world_size,
        None => u32::try_from(verdict.devices_total.len()).unwrap_or(MAX_GPUS),
    };
    Role {
        name: match gpus {
            0 | 1 => format!("GPU {}", need.device),
            _ => format!("each of {gpus} GPUs, by the fullest"),
        },
        gpus: gpus.max(1),
        peak: need.bytes,
        known: if is_bounded {
            Known::Replayed
        } else {
            Known::AtLeast
        },
        uncounted: need.uncounted,
        bound: is_bounded.then(|| need.bytes.saturating_add(need.uncounted)),
        least: None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tonnage_analysis::verdict::{
        DeviceTotal, DeviceUse, KnownBytes, Margin, Uncounted, verdict,
    };
    use tonnage_recording::Trace;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A verdict of a job whose devices had so much in use at most, one rank each.
    fn verdict_of(outcome: Outcome, most: &[u64]) -> Verdict {
        let trace = Trace::new("test").write(Vec::new()).expect("written");
        let mut verdict = verdict(|| Ok(trace.as_slice())).expect("read");
        let capacity = 80 * GIB;
        verdict.outcome = outcome;
        verdict.gpu = "h100-80gb".to_owned();
        verdict.torch = "2.15.0".to_owned();
        verdict.capacity = KnownBytes {
            bytes: capacity,
            known: "read".to_owned(),
        };
        verdict.context.known = "read".to_owned();
        for (device, &most_in_use) in (0..).zip(most) {
            verdict.devices_total.push(DeviceTotal {
                device,
                capacity,
                most_in_use,
                least_free: capacity.saturating_sub(most_in_use),
                exact: true,
                processes: 1,
            });
            verdict.devices.push(DeviceUse {
                rank: (most.len() > 1).then(|| u32::try_from(device).unwrap()),
                device,
                ..DeviceUse::default()
            });
        }
        let fullest = verdict
            .devices_total
            .iter()
            .max_by_key(|total| total.most_in_use)
            .copied();
        verdict.margin = fullest.map(|total| Margin {
            device: total.device,
            least_free: total.least_free,
            smallest: Some(total.most_in_use - GIB / 2),
            after_ooms: None,
            room: total.least_free + GIB / 2,
            kept: GIB,
            given: false,
            certain: total.least_free + GIB / 2 >= GIB,
            uncounted: vec![Uncounted {
                what: "kernel images".to_owned(),
                low: 0,
                high: GIB,
                known: "seen".to_owned(),
            }],
        });
        verdict
    }

    fn key() -> JobKey {
        JobKey {
            command: vec!["python".to_owned(), "train.py".to_owned()],
            ..JobKey::default()
        }
    }

    pub(crate) fn forecast_of(most: &[u64]) -> Forecast {
        Forecast::of_verdict(&verdict_of(Outcome::Fits, most), key()).expect("a forecast")
    }

    pub(crate) fn too_large() -> Forecast {
        let mut verdict = verdict_of(Outcome::DoesNotFit, &[80 * GIB]);
        verdict.need = Some(Need {
            device: 0,
            bytes: 96 * GIB,
            known: "replayed".to_owned(),
            most_in_use: 100 * GIB,
            expandable: None,
            least: 90 * GIB,
            peak_allocated: 90 * GIB,
            short: 16 * GIB,
            complete: true,
            ended: "exit 0".to_owned(),
            above: tonnage_analysis::verdict::Above::default(),
            uncounted: GIB,
            gpus: Vec::new(),
        });
        Forecast::of_verdict(&verdict, key()).expect("a forecast")
    }

    #[test]
    fn equal_ranks_are_one_role_and_what_is_not_counted_comes_on_top() {
        let forecast = forecast_of(&[30 * GIB, 40 * GIB, 30 * GIB - 512, 30 * GIB]);
        let roles: Vec<_> = forecast
            .roles
            .iter()
            .map(|role| (role.name.as_str(), role.gpus, role.peak / MIB))
            .collect();
        assert_eq!(
            roles,
            [("rank 1", 1, 40 << 10), ("ranks 0, 2 and 3", 3, 30 << 10)]
        );
        assert_eq!(forecast.fits, Fits::Yes);
        assert_eq!(forecast.request(&forecast.roles[0]), Some(41 * GIB));
        assert_eq!(forecast.request(&forecast.roles[1]), Some(31 * GIB));
        // The smallest device was found for the fullest alone.
        assert_eq!(forecast.roles[0].least, Some(40 * GIB + GIB / 2));
        assert_eq!(forecast.roles[1].least, None);
    }

    #[test]
    fn a_job_that_fills_its_gpu_asks_for_all_of_it() {
        // It does with less, as a replay showed: it fits for certain.
        let full = forecast_of(&[80 * GIB - GIB / 2]);
        assert_eq!(
            (full.fits, full.request(full.fullest())),
            (Fits::Yes, Some(80 * GIB))
        );
        // It does not: it may run out, and there is no more to be had.
        let tight = forecast_of(&[80 * GIB - GIB / 4]);
        assert_eq!(
            (tight.fits, tight.request(tight.fullest())),
            (Fits::Perhaps, Some(80 * GIB))
        );
        assert!(
            tight.sentence().ends_with("it may run out"),
            "{}",
            tight.sentence()
        );
    }

    #[test]
    fn a_job_that_does_not_fit_has_nothing_to_ask_for() {
        let forecast = too_large();
        assert_eq!(forecast.fits, Fits::No);
        assert_eq!(forecast.request(forecast.fullest()), None);
        assert_eq!(forecast.fullest().bound, Some(97 * GIB));
        assert!(
            forecast
                .larger_gpus
                .iter()
                .any(|gpu| gpu.starts_with("h200")),
            "{:?}",
            forecast.larger_gpus
        );
    }

    #[test]
    fn what_did_not_run_to_its_end_gives_none() {
        for outcome in [
            Outcome::Failed,
            Outcome::Interrupted,
            Outcome::NoDevice,
            Outcome::NotCovered,
            Outcome::DoesNotFit,
        ] {
            let made = Forecast::of_verdict(&verdict_of(outcome, &[]), key());
            assert!(
                matches!(made, Err(ForecastError::NoAnswer(_))),
                "{outcome:?}: {made:?}"
            );
        }
    }

    #[test]
    fn what_rests_on_an_assumed_context_or_was_not_seen_to_its_end_says_so() {
        let mut verdict = verdict_of(Outcome::Fits, &[30 * GIB]);
        let sentence = |verdict: &Verdict| {
            let forecast = Forecast::of_verdict(verdict, key()).expect("a forecast");
            forecast.sentence()
        };
        assert_eq!(
            sentence(&verdict),
            "it takes at most 31.00 GiB of 80.00 GiB (30.00 GiB exact)"
        );
        verdict.context.known = "assumed".to_owned();
        verdict.stopped = Some("after 3 steps".to_owned());
        assert_eq!(
            sentence(&verdict),
            "as far as it was seen, it takes at most 31.00 GiB of 80.00 GiB (30.00 GiB assumed)"
        );
    }

    #[test]
    fn a_forged_forecast_is_refused() {
        let sound = serde_json::to_value(forecast_of(&[30 * GIB])).expect("JSON");
        let parse =
            |value: &serde_json::Value| Forecast::parse(&serde_json::to_vec(value).expect("JSON"));
        assert!(parse(&sound).is_ok());
        let forgeries: [(&str, serde_json::Value); 8] = [
            ("/roles/0/bound", 1.into()),
            ("/roles/0/bound", u64::MAX.into()),
            ("/roles/0/gpus", 0.into()),
            ("/roles/0/name", "x\n  evil: true".into()),
            ("/roles", serde_json::json!([])),
            ("/key/command/1", "other.py".into()),
            ("/schema_version", 2.into()),
            ("/gpu_memory", GIB.into()),
        ];
        for (at, value) in forgeries {
            let mut forged = sound.clone();
            *forged.pointer_mut(at).expect("a field") = value;
            assert!(
                matches!(parse(&forged), Err(ForecastError::Invalid(_))),
                "{at}"
            );
        }
        assert!(Forecast::parse(b"{").is_err());
        assert!(Forecast::parse(&vec![b'['; 100_000]).is_err());
    }
}
