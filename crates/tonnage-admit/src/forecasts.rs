// SPDX-License-Identifier: MIT OR Apache-2.0
//! The forecasts of a folder, kept in memory and read again when the folder has changed.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use tonnage_forecast::ledger::{Observation, ObservedRuns};
use tonnage_forecast::metrics;
use tonnage_forecast::{Forecast, JobKey, Snapshot, Store};
use tonnage_http::metrics::Exposition;

use crate::job::Job;

/// Forecasts, found by what they were made from.
#[derive(Debug, Default)]
pub struct Forecasts {
    all: Vec<Arc<Forecast>>,
    /// By hashes of commands and names, which take less memory than these: a job is compared with what it finds.
    by_command: HashMap<u64, Vec<u32>>,
    by_name: HashMap<u64, u32>,
    hasher: RandomState,
    /// Why there is none of a job, by the job's name.
    failed: HashMap<String, String>,
    /// Files that are not forecasts.
    pub damaged: Vec<(PathBuf, String)>,
    /// The store as Prometheus reads it.
    pub metrics: String,
}

impl Forecasts {
    /// The forecasts of a store, as it was read.
    pub fn from_snapshot(snapshot: &Snapshot, store: &Store) -> Self {
        let mut all: Vec<Arc<Forecast>> = snapshot.forecasts().map(Arc::clone).collect();
        let observed: Vec<&Observation> = snapshot.observed().map(|one| &**one).collect();
        let mut exposition = Exposition::default();
        metrics::of_store(&mut exposition, &all, &observed);
        let runs = ObservedRuns::new(observed.iter().copied());
        for forecast in &mut all {
            // Most were not observed, and are shared with the snapshot.
            if runs.has(&forecast.name) {
                Arc::make_mut(forecast).learn(&runs);
            }
        }
        let mut forecasts = Self::from_list(all);
        forecasts.metrics = exposition.to_text();
        forecasts.damaged = snapshot.damaged(store);
        forecasts
    }

    /// These forecasts.
    pub fn from_list(all: impl IntoIterator<Item = impl Into<Arc<Forecast>>>) -> Self {
        let mut forecasts = Self {
            all: all.into_iter().map(Into::into).collect(),
            ..Self::default()
        };
        for (at, forecast) in (0_u32..).zip(&forecasts.all) {
            let command = forecasts.hasher.hash_one(&forecast.key.command);
            forecasts.by_command.entry(command).or_default().push(at);
            let name = forecasts.hasher.hash_one(forecast.name.as_str());
            forecasts.by_name.insert(name, at);
        }
        forecasts
    }

    fn at(&self, at: u32) -> Option<&Forecast> {
        self.all.get(at as usize).map(|forecast| &**forecast)
    }

    /// Remembers why there is no forecast of a job.
    pub fn fail(&mut self, job: &JobKey, reason: &str) {
        self.failed.insert(job.job_name(), reason.to_owned());
    }

    /// Why there is no forecast of a job, if that was tried.
    pub fn why_not(&self, job: &Job) -> Option<&str> {
        self.failed.get(&job.key.job_name()).map(String::as_str)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The forecasts of a pod's job, on whatever GPU.
    ///
    /// The image stands for the files that the words name: they lie in it. A pod may name a forecast instead, one of
    /// the same words, where its files come from elsewhere.
    pub fn find(&self, job: &Job) -> Vec<&Forecast> {
        let same_words = |forecast: &&Forecast| forecast.key.command == job.key.command;
        let named = job.named.as_ref().and_then(|name| {
            let at = self.by_name.get(&self.hasher.hash_one(name.as_str()))?;
            self.at(*at).filter(|forecast| forecast.name == *name)
        });
        if let Some(forecast) = named.filter(same_words) {
            return vec![forecast];
        }
        let command = self.hasher.hash_one(&job.key.command);
        let at = self.by_command.get(&command).into_iter().flatten();
        at.filter_map(|&at| self.at(at))
            .filter(same_words)
            .filter(|forecast| forecast.key.image.is_some() && forecast.key.image == job.key.image)
            .filter(|forecast| forecast.key.allocator == job.key.allocator)
            // One that a person has made states that it applies to all variables.
            .filter(|forecast| {
                forecast.key.environment.is_none()
                    || forecast.key.environment == job.key.environment
            })
            .collect()
    }
}
