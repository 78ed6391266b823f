// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts and observations as files of a folder, which may lie on a shared or an object file system.
//!
//! Every file is written under a temporary name and then renamed, so readers see it whole or not at all, and writers
//! need no lock. A file that is not a forecast is skipped and counted: one that is damaged does not keep the others
//! from being found.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::forecast::{Forecast, ForecastError};
use crate::key::JobKey;
use crate::ledger::Observation;

/// Larger files are not forecasts.
const MAX_FILE: u64 = 1 << 20;
/// More files than this are not read: the folder is not one of ours.
const MAX_FILES: usize = 100_000;

/// A folder of forecasts and of what jobs took.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// Why a store cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Its files cannot be read or written.
    #[error("cannot use {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file is not a forecast.
    #[error("cannot read {path}")]
    Forecast {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ForecastError,
    },
    /// The store's forecast saw the whole job, and the new one does not.
    #[error("{0} saw the whole job, the new forecast did not: it is not kept")]
    Whole(PathBuf),
    /// There are too many files.
    #[error("{0} has more than {MAX_FILES} files")]
    TooMany(PathBuf),
}

/// The content of a folder.
#[derive(Debug)]
pub struct Listed<T> {
    /// In the order of their names.
    pub found: Vec<T>,
    /// Files that could not be read, and why.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Store {
    /// The store in this folder, which need not be there yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn forecasts(&self) -> PathBuf {
        self.folder.join("forecasts")
    }

    fn observations(&self) -> PathBuf {
        self.folder.join("observed")
    }

    /// Keeps a forecast in place of an older one of the same key; the file.
    ///
    /// One that saw a part of the job does not replace one that saw all of it.
    pub fn save_forecast(&self, forecast: &Forecast) -> Result<PathBuf, StoreError> {
        let path = self.forecasts().join(file_name(&forecast.name));
        if !forecast.is_complete() && Forecast::read(&path).is_ok_and(|old| old.is_complete()) {
            return Err(StoreError::Whole(path));
        }
        write(&self.forecasts(), &forecast.name, forecast)
    }

    /// Keeps what a job took; the file.
    pub fn observe(&self, observation: &Observation) -> Result<PathBuf, StoreError> {
        write(&self.observations(), &observation.name(), observation)
    }

    /// Every forecast.
    pub fn all(&self) -> Result<Listed<Forecast>, StoreError> {
        self.named("")
    }

    /// Every forecast whose name starts so.
    fn named(&self, start: &str) -> Result<Listed<Forecast>, StoreError> {
        read_all(&self.forecasts(), start, |path, json| {
            let forecast = Forecast::parse(json)?;
            // A forecast under another name would be found for another job.
            let named = path
                .file_stem()
                .is_some_and(|stem| stem == forecast.name.as_str());
            if !named {
                return Err(ForecastError::Invalid(
                    "its file has another name".to_owned(),
                ));
            }
            Ok(forecast)
        })
    }

    /// Everything that jobs were seen to take.
    pub fn observed(&self) -> Result<Listed<Observation>, StoreError> {
        self.observed_of("")
    }

    /// The measured memory of jobs with a forecast whose name has this prefix.
    fn observed_of(&self, start: &str) -> Result<Listed<Observation>, StoreError> {
        read_all(&self.observations(), start, |_, json| {
            Observation::parse(json)
        })
    }

    /// The forecasts of a job on any GPU, with the memory of past runs of the same job and GPU. If there are several
    /// versions of PyTorch, the fullest counts.
    pub fn find(&self, job: &JobKey) -> Result<Vec<Forecast>, StoreError> {
        let name = job.job_name();
        let mut found: Vec<Forecast> = self.named(&name)?.found;
        found.retain(|forecast| forecast.key.is_same_job(job));
        found.retain(|forecast| job.torch.is_empty() || forecast.key.torch == job.torch);
        if found.is_empty() {
            return Ok(found);
        }
        let observed = self.observed_of(&name)?.found;
        for forecast in &mut found {
            forecast.learn(&observed);
        }
        found.sort_by_key(|forecast| {
            let bound = forecast.fullest().bound.unwrap_or(u64::MAX);
            (forecast.key.gpu.clone(), std::cmp::Reverse(bound))
        });
        found.dedup_by(|later, first| later.key.gpu == first.key.gpu);
        Ok(found)
    }
}

/// Reads a forecast from a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    let failed = |source| StoreError::Io {
        path: path.to_owned(),
        source,
    };
    let mut json = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE + 1)
        .read_to_end(&mut json)
        .map_err(failed)?;
    if json.len() as u64 > MAX_FILE {
        return Err(StoreError::Forecast {
            path: path.to_owned(),
            source: ForecastError::Invalid("it is larger than any forecast".to_owned()),
        });
    }
    Ok(json)
}

impl Forecast {
    /// Reads a forecast from a file.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        Self::parse(&read(path)?).map_err(|source| StoreError::Forecast {
            path: path.to_owned(),
            source,
        })
    }
}

fn file_name(name: &str) -> String {
    format!("{name}.json")
}

fn write(folder: &Path, name: &str, value: &impl Serialize) -> Result<PathBuf, StoreError> {
    let path = folder.join(file_name(name));
    let written = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new();
        file.prefix(".tonnage-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // As any new file: the user's mask decides, not the privacy of temporary files.
            file.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut file = file.tempfile_in(folder)?;
        let mut json = serde_json::to_vec_pretty(value)?;
        json.push(b'\n');
        file.write_all(&json)?;
        file.persist(&path)?;
        Ok(())
    };
    match written() {
        Ok(()) => Ok(path),
        Err(source) => Err(StoreError::Io { path, source }),
    }
}

/// Reads the files of a folder whose names start so.
fn read_all<T>(
    folder: &Path,
    start: &str,
    parse: impl Fn(&Path, &[u8]) -> Result<T, ForecastError>,
) -> Result<Listed<T>, StoreError> {
    let failed = |source| StoreError::Io {
        path: folder.to_owned(),
        source,
    };
    let mut listed = Listed {
        found: Vec::new(),
        damaged: Vec::new(),
    };
    let entries = match fs::read_dir(folder) {
        // Nobody has written one yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listed),
        entries => entries.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if !name.starts_with(b".")
            && name.starts_with(start.as_bytes())
            && path
                .extension()
                .is_some_and(|extension| extension == "json")
            && path.is_file()
        {
            paths.push(path);
        }
        if paths.len() > MAX_FILES {
            return Err(StoreError::TooMany(folder.to_owned()));
        }
    }
    paths.sort_unstable();
    for path in paths {
        let parsed = match read(&path) {
            Ok(json) => parse(&path, &json).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match parsed {
            Ok(value) => listed.found.push(value),
            Err(reason) => listed.damaged.push((path, reason)),
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::MIB;
    use crate::forecast::tests::forecast_of;
    use crate::ledger::{self, Ended};

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_forecast_is_found_by_its_job_and_damaged_ones_are_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let forecast = forecast_of(&[30 * GIB]);
        assert!(
            store
                .find(&forecast.key)
                .expect("an empty store")
                .is_empty()
        );
        let path = store.save_forecast(&forecast).expect("written");
        // One under the name of another job, one that is cut off, one that is huge, a folder, and one being written.
        fs::copy(&path, path.with_file_name("0123456789abcdef.json")).expect("copied");
        fs::write(path.with_file_name("cut.json"), "{\"schema_version\": 1").expect("written");
        fs::write(
            path.with_file_name("huge.json"),
            vec![b' '; (MAX_FILE + 1) as usize],
        )
        .expect("written");
        fs::create_dir(path.with_file_name("folder.json")).expect("made");
        fs::write(path.with_file_name(".tonnage-x.json"), "").expect("written");
        let listed = store.all().expect("read");
        assert_eq!((listed.found.len(), listed.damaged.len()), (1, 3));
        assert_eq!(
            store.find(&forecast.key).expect("read"),
            std::slice::from_ref(&forecast)
        );
        let mut other = forecast.key.clone();
        other.command.push("--more".to_owned());
        assert!(store.find(&other).expect("read").is_empty());
    }

    #[test]
    fn a_forecast_of_a_part_does_not_replace_one_of_the_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let whole = forecast_of(&[30 * GIB]);
        let mut part = forecast_of(&[20 * GIB]);
        part.evidence[0].complete = false;
        store.save_forecast(&part).expect("written");
        store.save_forecast(&whole).expect("written");
        assert!(matches!(
            store.save_forecast(&part),
            Err(StoreError::Whole(_))
        ));
        assert_eq!(store.find(&whole.key).expect("read"), [whole]);
    }

    #[test]
    fn past_runs_raise_a_bound_and_enough_of_them_replace_what_is_not_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let forecast = forecast_of(&[30 * GIB]);
        store.save_forecast(&forecast).expect("written");
        let observe = |job: &str, used: u64, ended: Ended| {
            let observation = Observation {
                schema_version: ledger::SCHEMA_VERSION,
                job: job.to_owned(),
                team: None,
                forecast: Some(forecast.name.clone()),
                family: forecast.family.clone(),
                gpu: forecast.key.gpu.clone(),
                asked: Some(80 * GIB),
                used,
                ended,
            };
            store.observe(&observation).expect("written");
        };
        let bound = || {
            store.find(&forecast.key).expect("read")[0]
                .fullest()
                .bound
                .map(|bound| bound / MIB)
        };
        assert_eq!(bound(), Some(31 << 10));
        observe("1", 32 * GIB, Ended::OutOfMemory);
        assert_eq!(bound(), Some(32 << 10));
        observe("1", 30 * GIB + 100 * MIB, Ended::Completed);
        observe("2", 30 * GIB + 120 * MIB, Ended::Completed);
        assert_eq!(bound(), Some(31 << 10));
        // As much above the fullest as the runs differ.
        observe("../3", 30 * GIB + 110 * MIB, Ended::Completed);
        assert_eq!(bound(), Some((30 << 10) + 140));
        let sums = ledger::ledger(
            &store.all().expect("read").found,
            &store.observed().expect("read").found,
        );
        assert_eq!(sums.families[0].compared, 3);
        assert_eq!(sums.teams[0].asked, 80 * GIB);
        assert!(
            sums.families[0]
                .median_error
                .is_some_and(|error| (-0.005..0.0).contains(&error))
        );
    }
}
