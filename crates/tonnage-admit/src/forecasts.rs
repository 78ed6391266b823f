// SPDX-License-Identifier: MIT OR Apache-2.0
//! The forecasts of a folder, kept in memory and read again when the folder has changed.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use tonnage_forecast::metrics;
use tonnage_forecast::{Forecast, JobKey, Store, StoreError};
use tonnage_http::metrics::Exposition;

use crate::job::Job;

/// Forecasts, found by what they were made from.
#[derive(Debug, Default)]
pub struct Forecasts {
    all: Vec<Forecast>,
    by_command: HashMap<Vec<String>, Vec<usize>>,
    by_name: HashMap<String, usize>,
    /// Why there is none of a job, by the job's name.
    failed: HashMap<String, String>,
    /// Files that are not forecasts.
    pub damaged: Vec<(PathBuf, String)>,
    /// The store as Prometheus reads it.
    pub metrics: String,
}

/// When the folders of a store were last changed: a file is written beside its place and renamed, which changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed([Option<SystemTime>; 2]);

impl Changed {
    /// The forecasts of this store, now.
    pub fn from_store(store: &Store) -> Self {
        let changed = |name: &str| {
            fs::metadata(store.folder().join(name))
                .and_then(|folder| folder.modified())
                .ok()
        };
        Self([changed("forecasts"), changed("observed")])
    }
}

impl Forecasts {
    /// Reads a store.
    pub fn read(store: &Store) -> Result<Self, StoreError> {
        let listed = store.all()?;
        let observed = store.observed()?;
        let mut exposition = Exposition::default();
        metrics::of_store(&mut exposition, &listed.found, &observed.found);
        let mut forecasts = Self::from_list(listed.found.into_iter().map(|mut forecast| {
            forecast.learn(&observed.found);
            forecast
        }));
        forecasts.metrics = exposition.to_text();
        forecasts.damaged = listed.damaged;
        forecasts.damaged.extend(observed.damaged);
        Ok(forecasts)
    }

    /// These forecasts.
    pub fn from_list(all: impl IntoIterator<Item = Forecast>) -> Self {
        let mut forecasts = Self {
            all: all.into_iter().collect(),
            ..Self::default()
        };
        for (at, forecast) in forecasts.all.iter().enumerate() {
            let command = forecast.key.command.clone();
            forecasts.by_command.entry(command).or_default().push(at);
            forecasts.by_name.insert(forecast.name.clone(), at);
        }
        forecasts
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
        let named = job.named.as_ref().and_then(|name| self.by_name.get(name));
        let same_words = |forecast: &&Forecast| forecast.key.command == job.key.command;
        if let Some(forecast) = named.and_then(|&at| self.all.get(at)).filter(same_words) {
            return vec![forecast];
        }
        let at = self.by_command.get(&job.key.command).into_iter().flatten();
        at.filter_map(|&at| self.all.get(at))
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
