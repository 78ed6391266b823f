// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comparison of forecasts and requests with the memory that jobs used.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::forecast::{Evidence, Fits, Forecast, ForecastError, MIB, Source};

/// Version of the ledger's JSON and of an observation's.
pub const SCHEMA_VERSION: u32 = 1;
/// After this number of complete runs of the same job on the same GPU, their measurements replace the estimated
/// overhead.
const ENOUGH_RUNS: usize = 3;
/// A job that ran out of memory gets this part more the next time.
const MORE_AFTER_OOM: u64 = 4;
/// No device has more.
const MAX_BYTES: u64 = 1 << 50;
const MAX_TEXT: usize = 1024;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It ran to its end.
    Completed,
    /// It ran out of GPU memory.
    OutOfMemory,
    /// It ended otherwise, and may have taken more later.
    Other,
}

/// The use of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The scheduler's name of the job.
    pub job: String,
    /// The owner.
    pub team: Option<String>,
    /// The name of the forecast it ran with, if it had one.
    pub forecast: Option<String>,
    /// The name under which jobs of one kind are added up.
    pub family: String,
    /// The catalogue's name of the GPU.
    pub gpu: String,
    /// Bytes that it had requested, of one GPU.
    pub asked: Option<u64>,
    /// The most it used, of one GPU.
    pub used: u64,
    /// How it ended.
    pub ended: Ended,
}

impl Observation {
    /// Reads one from an untrusted writer.
    pub fn parse(json: &[u8]) -> Result<Self, ForecastError> {
        let observation: Self = serde_json::from_slice(json)
            .map_err(|error| ForecastError::Invalid(error.to_string()))?;
        let texts = [&observation.job, &observation.family, &observation.gpu];
        let sound = observation.schema_version == SCHEMA_VERSION
            && observation.used <= MAX_BYTES
            && observation.asked.is_none_or(|asked| asked <= MAX_BYTES)
            && texts.iter().all(|text| text.len() <= MAX_TEXT);
        if !sound {
            return Err(ForecastError::Invalid(
                "no observation of this tonnage".to_owned(),
            ));
        }
        Ok(observation)
    }

    /// The name of its file: that of the job, as far as it can be part of one, and of the forecast.
    pub(crate) fn name(&self) -> String {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        };
        let job: String = self.job.chars().map(plain).take(100).collect();
        let forecast = self.forecast.as_deref().unwrap_or("unforecast");
        format!(
            "{}-{job}",
            forecast.chars().map(plain).take(32).collect::<String>()
        )
    }

    fn is_of(&self, forecast: &Forecast) -> bool {
        self.forecast.as_deref() == Some(forecast.name.as_str()) && self.gpu == forecast.key.gpu
    }
}

/// Observations by the name of their forecast.
#[derive(Debug, Default)]
pub struct ObservedRuns<'a> {
    by_forecast: HashMap<&'a str, Vec<&'a Observation>>,
}

impl<'a> ObservedRuns<'a> {
    /// An index of these.
    pub fn new<O: Borrow<Observation> + 'a>(observed: impl IntoIterator<Item = &'a O>) -> Self {
        let mut runs = Self::default();
        for one in observed {
            let one: &Observation = one.borrow();
            if let Some(name) = &one.forecast {
                runs.by_forecast.entry(name).or_default().push(one);
            }
        }
        runs
    }

    /// Whether there is one of this forecast.
    pub fn has(&self, forecast: &str) -> bool {
        self.by_forecast.contains_key(forecast)
    }
}

impl Forecast {
    /// Takes what past runs of the same job on the same GPU took into the bound of its fullest role.
    pub fn learn(&mut self, observed: &ObservedRuns<'_>) {
        let runs = observed.by_forecast.get(self.name.as_str());
        let runs: Vec<&Observation> = runs
            .into_iter()
            .flatten()
            // A figure that the GPU does not have is a wrong one.
            .filter(|one| one.is_of(self) && one.used <= self.gpu_memory)
            .copied()
            .collect();
        let Some(most) = runs.iter().map(|one| one.used).max() else {
            return;
        };
        let whole: Vec<_> = runs
            .iter()
            .filter(|one| one.ended == Ended::Completed)
            .collect();
        let ran_out = runs.iter().filter(|one| one.ended == Ended::OutOfMemory);
        // The memory that it had when it ran out was not enough, and how much would have been is not known.
        let after_oom = ran_out.map(|one| one.used).max();
        let after_oom = after_oom.map(|used| used.saturating_add(used / MORE_AFTER_OOM));
        let oom = after_oom.is_some();
        let gpu_memory = self.gpu_memory;
        let Some(role) = self.roles.first_mut() else {
            return;
        };
        let enough = whole.len() >= ENOUGH_RUNS && !oom && self.fits != Fits::No;
        role.bound = match role.bound {
            // Repeated measurements of the same job count everything; the next run may exceed them by as much as the
            // runs differ.
            _ if enough => {
                let spread = most - whole.iter().map(|one| one.used).min().unwrap_or(most);
                let bound = most.saturating_add(spread).max(role.peak);
                role.uncounted = bound - role.peak;
                Some(bound)
            }
            Some(bound) => {
                let after_oom = after_oom.map_or(0, |bytes| bytes.min(gpu_memory));
                Some(bound.max(most).max(after_oom))
            }
            None => None,
        };
        if oom && self.fits == Fits::Yes {
            self.fits = Fits::Perhaps;
        }
        if role.bound.is_some_and(|bound| bound > gpu_memory) && self.fits == Fits::Yes {
            self.fits = Fits::Perhaps;
        }
        if enough && role.bound.is_some_and(|bound| bound <= gpu_memory) {
            self.fits = Fits::Yes;
        }
        let plural = if runs.len() == 1 { "run" } else { "runs" };
        let most = tonnage_text::bytes(most);
        let mut what = format!("{} past {plural}, the fullest took {most}", runs.len());
        if let Some(bytes) = after_oom {
            let bytes = tonnage_text::bytes(bytes.min(gpu_memory));
            let _ = write!(
                what,
                "; at least one ran out of memory, so that a quarter more is requested, {bytes}"
            );
        }
        self.evidence.push(Evidence {
            source: Source::PastRuns,
            what,
            complete: !whole.is_empty(),
        });
    }
}

/// How good the forecasts of jobs of one kind were.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Family {
    /// Its name.
    pub family: String,
    /// The GPU.
    pub gpu: String,
    /// Jobs that ended.
    pub jobs: u64,
    /// Jobs among them that had a forecast and ran to their end: the errors are about these.
    pub compared: u64,
    /// The error in the middle: what was forecast (without what is not counted) minus what was used, over what was
    /// used.
    pub median_error: Option<f64>,
    /// The largest error by which more was used than forecast; negative.
    pub worst_under: Option<f64>,
    /// Jobs that used more than the bound.
    pub over_bound: u64,
    /// Jobs that ran out of memory.
    pub ooms: u64,
}

/// The requests and the use of the jobs of one team.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Team {
    /// Its name; none for jobs without one.
    pub team: Option<String>,
    /// Jobs with a recorded request.
    pub jobs: u64,
    /// The mean of their requests, of one GPU.
    pub asked: u64,
    /// The mean of what they used.
    pub used: u64,
    /// The sum of the unused requests.
    pub unused: u64,
    /// Jobs that ran out of memory.
    pub ooms: u64,
}

/// Forecasts and requests against use.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PastRuns {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// By kind of job and GPU.
    pub families: Vec<Family>,
    /// By team.
    pub teams: Vec<Team>,
    /// Files that could not be read.
    pub damaged: u64,
}

/// A job that ran to its end, and its forecast.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// Its measurement.
    pub observation: &'a Observation,
    /// Its forecast.
    pub forecast: &'a Forecast,
}

impl Comparison<'_> {
    /// The forecast (without overhead) minus the used memory, divided by the used memory.
    pub fn error(&self) -> f64 {
        let used = self.observation.used as f64;
        (self.forecast.fullest().peak as f64 - used) / used
    }

    /// Whether more was used than the upper bound.
    pub fn is_over_bound(&self) -> bool {
        is_over(self.observation, self.forecast)
    }
}

fn is_over(job: &Observation, forecast: &Forecast) -> bool {
    let bound = forecast.fullest().bound;
    bound.is_some_and(|bound| job.used > bound)
}

/// Every job that ran to its end and had a forecast, with it.
pub fn comparisons<'a>(
    forecasts: &'a [impl Borrow<Forecast>],
    observed: &'a [impl Borrow<Observation>],
) -> Vec<Comparison<'a>> {
    let by_name = by_name(forecasts);
    let observed = observed.iter().map(Borrow::<Observation>::borrow);
    let whole = observed.filter(|one| one.ended == Ended::Completed && one.used > 0);
    whole
        .filter_map(|observation| {
            let forecast = forecast_of(observation, &by_name)?;
            Some(Comparison {
                observation,
                forecast,
            })
        })
        .collect()
}

fn by_name(forecasts: &[impl Borrow<Forecast>]) -> HashMap<&str, &Forecast> {
    let forecasts = forecasts.iter().map(Borrow::<Forecast>::borrow);
    forecasts.map(|one| (one.name.as_str(), one)).collect()
}

fn forecast_of<'a>(
    one: &Observation,
    by_name: &HashMap<&str, &'a Forecast>,
) -> Option<&'a Forecast> {
    let forecast = by_name.get(one.forecast.as_deref()?).copied();
    forecast.filter(|forecast| one.is_of(forecast))
}

/// Adds up what jobs were seen to take.
pub fn ledger(forecasts: &[Forecast], observed: &[Observation]) -> PastRuns {
    let by_name = by_name(forecasts);
    let mut errors: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for one in comparisons(forecasts, observed) {
        let job = one.observation;
        errors
            .entry((&job.family, &job.gpu))
            .or_default()
            .push(one.error());
    }
    let mut families: BTreeMap<(&str, &str), Vec<&Observation>> = BTreeMap::new();
    let mut teams: BTreeMap<Option<&str>, Vec<&Observation>> = BTreeMap::new();
    for one in observed {
        families
            .entry((&one.family, &one.gpu))
            .or_default()
            .push(one);
        teams.entry(one.team.as_deref()).or_default().push(one);
    }
    let ooms = |jobs: &[&Observation]| {
        jobs.iter()
            .filter(|one| one.ended == Ended::OutOfMemory)
            .count() as u64
    };
    let family = |((family, gpu), jobs): ((&str, &str), Vec<&Observation>)| {
        let mut errors = errors.get(&(family, gpu)).cloned().unwrap_or_default();
        errors.sort_unstable_by(f64::total_cmp);
        let is_over = |one: &&&Observation| {
            forecast_of(one, &by_name).is_some_and(|forecast| is_over(one, forecast))
        };
        Family {
            family: family.to_owned(),
            gpu: gpu.to_owned(),
            jobs: jobs.len() as u64,
            compared: errors.len() as u64,
            median_error: errors.get(errors.len() / 2).copied(),
            worst_under: errors.first().copied().filter(|&error| error < 0.0),
            over_bound: jobs.iter().filter(is_over).count() as u64,
            ooms: ooms(&jobs),
        }
    };
    let team = |(team, jobs): (Option<&str>, Vec<&Observation>)| {
        let asked: Vec<(u64, u64)> = jobs
            .iter()
            .filter_map(|one| Some((one.asked?, one.used)))
            .collect();
        let count = asked.len().max(1) as u64;
        let sum =
            |pick: fn(&(u64, u64)) -> u64| asked.iter().map(pick).fold(0_u64, u64::saturating_add);
        Team {
            team: team.map(str::to_owned),
            jobs: asked.len() as u64,
            asked: sum(|pair| pair.0) / count / MIB * MIB,
            used: sum(|pair| pair.1) / count / MIB * MIB,
            unused: sum(|pair| pair.0.saturating_sub(pair.1)),
            ooms: ooms(&jobs),
        }
    };
    PastRuns {
        schema_version: SCHEMA_VERSION,
        families: families.into_iter().map(family).collect(),
        teams: teams.into_iter().map(team).collect(),
        damaged: 0,
    }
}
