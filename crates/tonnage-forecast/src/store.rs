// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts and observations as files of a folder, which may lie on a shared or an object file system.
//!
//! Every file is written under a temporary name and then renamed, so readers see it whole or not at all, and writers
//! need no lock. A file that is not a forecast is skipped and counted: one that is damaged does not keep the others
//! from being found. Files lie in folders named by three digits, so that a lookup lists one of 4,096; files beside
//! these folders, as older versions wrote them, are read as well.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::forecast::{Forecast, ForecastError};
use crate::key::JobKey;
use crate::ledger::{Observation, ObservedRuns};

/// Larger files are not forecasts.
const MAX_FILE: u64 = 1 << 20;
/// How many digits of a name are the name of its folder.
const SHARD_DIGITS: usize = 3;
/// How many characters of an observation's name are that of its forecast.
const FORECAST_DIGITS: usize = 24;

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
        let top = self.forecasts();
        let path = place_of(&top, &forecast.name);
        let old = top.join(file_name(&forecast.name));
        for path in [&path, &old] {
            if !forecast.is_complete() && Forecast::read(path).is_ok_and(|old| old.is_complete()) {
                return Err(StoreError::Whole(path.clone()));
            }
        }
        write(&path, forecast)?;
        // The place of older versions. It may be gone already.
        let _ = fs::remove_file(old);
        Ok(path)
    }

    /// Keeps what a job took; the file.
    pub fn observe(&self, observation: &Observation) -> Result<PathBuf, StoreError> {
        let name = observation.name();
        let path = place_of(&self.observations(), &name);
        write(&path, observation)?;
        let _ = fs::remove_file(self.observations().join(file_name(&name)));
        Ok(path)
    }

    /// Every forecast.
    pub fn all(&self) -> Result<Listed<Forecast>, StoreError> {
        read_all(&self.forecasts(), "", parse_forecast)
    }

    /// The forecast of this name.
    pub fn forecast(&self, name: &str) -> Result<Option<Forecast>, StoreError> {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Ok(None);
        }
        let mut found = read_all(&self.forecasts(), name, parse_forecast)?.found;
        found.retain(|forecast| forecast.name == name);
        Ok(found.pop())
    }

    /// Everything that jobs were seen to take.
    pub fn observed(&self) -> Result<Listed<Observation>, StoreError> {
        self.observed_of("")
    }

    /// The measured memory of jobs with a forecast whose name has this prefix.
    pub fn observed_of(&self, start: &str) -> Result<Listed<Observation>, StoreError> {
        read_all(&self.observations(), start, |_, json| {
            Observation::parse(json)
        })
    }

    /// The forecasts of a job on any GPU, with the memory of past runs of the same job and GPU. If there are several
    /// versions of PyTorch, the fullest counts.
    pub fn find(&self, job: &JobKey) -> Result<Vec<Forecast>, StoreError> {
        let name = job.job_name();
        let mut found = read_all(&self.forecasts(), &name, parse_forecast)?.found;
        found.retain(|forecast| forecast.key.is_same_job(job));
        found.retain(|forecast| job.torch.is_empty() || forecast.key.torch == job.torch);
        if found.is_empty() {
            return Ok(found);
        }
        let observed = self.observed_of(&name)?.found;
        let runs = ObservedRuns::new(&observed);
        for forecast in &mut found {
            forecast.learn(&runs);
        }
        found.sort_by_key(|forecast| {
            let bound = forecast.fullest().bound.unwrap_or(u64::MAX);
            (forecast.key.gpu.clone(), std::cmp::Reverse(bound))
        });
        found.dedup_by(|later, first| later.key.gpu == first.key.gpu);
        Ok(found)
    }

    /// Deletes files that are older than `age`, and moves files of older versions into their folders. A forecast stays
    /// as long as a run of its job was observed within that time. With `dry`, nothing is changed.
    pub fn prune(&self, age: Duration, now: SystemTime, dry: bool) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned::default();
        let is_old = |path: &Path| {
            let changed = fs::metadata(path).and_then(|file| file.modified());
            changed.is_ok_and(|changed| now.duration_since(changed).is_ok_and(|time| time > age))
        };
        let remove = |path: &Path| {
            if dry {
                return Ok(());
            }
            fs::remove_file(path).map_err(failed(path))
        };
        let mut used = HashSet::new();
        let (forecasts, observations) = (self.forecasts(), self.observations());
        let mut kept = Vec::new();
        for (name, path) in files_of(&observations, "")? {
            if is_old(&path) {
                remove(&path)?;
                pruned.observations += 1;
            } else {
                used.insert(name.chars().take(FORECAST_DIGITS).collect::<String>());
                kept.push((name, path));
            }
        }
        pruned.moved += move_into_folders(&observations, &kept, dry)?;
        kept.clear();
        for (name, path) in files_of(&forecasts, "")? {
            let stem = name.strip_suffix(".json").unwrap_or(&name);
            if !used.contains(stem) && is_old(&path) {
                remove(&path)?;
                pruned.forecasts += 1;
            } else {
                kept.push((name, path));
            }
        }
        pruned.moved += move_into_folders(&forecasts, &kept, dry)?;
        Ok(pruned)
    }

    /// Deletes the observations of a job, with whatever forecast; how many there were.
    pub fn forget_job(&self, job: &str) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        for path in files_of(&self.observations(), "")?.into_values() {
            let observation = read(&path).ok().map(|json| Observation::parse(&json));
            if matches!(observation, Some(Ok(one)) if one.job == job) {
                fs::remove_file(&path).map_err(failed(&path))?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }

    /// Deletes a forecast and the observations of its runs; how many files there were.
    pub fn forget_forecast(&self, name: &str) -> Result<u64, StoreError> {
        let Some(forecast) = self.forecast(name)? else {
            return Ok(0);
        };
        let mut files = files_of(&self.forecasts(), &forecast.name)?;
        files.extend(files_of(&self.observations(), &forecast.name)?);
        for path in files.values() {
            fs::remove_file(path).map_err(failed(path))?;
        }
        Ok(files.len() as u64)
    }
}

/// The files that [`Store::prune`] deleted and moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pruned {
    /// Forecasts that were deleted.
    pub forecasts: u64,
    /// Observations that were deleted.
    pub observations: u64,
    /// Files of older versions that were moved into their folders.
    pub moved: u64,
}

/// Moves files into the folders of their names; how many lie elsewhere.
fn move_into_folders(
    top: &Path,
    files: &[(String, PathBuf)],
    dry: bool,
) -> Result<u64, StoreError> {
    let mut moved = 0;
    for (name, path) in files {
        let place = place_of(top, name.strip_suffix(".json").unwrap_or(name));
        if *path == place {
            continue;
        }
        moved += 1;
        if !dry {
            let folder = place.parent().unwrap_or(top);
            fs::create_dir_all(folder).map_err(failed(folder))?;
            fs::rename(path, &place).map_err(failed(path))?;
        }
    }
    Ok(moved)
}

/// A forecast under another name would be found for another job.
fn parse_forecast(path: &Path, json: &[u8]) -> Result<Forecast, ForecastError> {
    let forecast = Forecast::parse(json)?;
    let is_named = path
        .file_stem()
        .is_some_and(|stem| stem == forecast.name.as_str());
    if !is_named {
        return Err(ForecastError::Invalid(
            "its file has another name".to_owned(),
        ));
    }
    Ok(forecast)
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

fn failed(path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io {
        path: path.clone(),
        source,
    }
}

/// Where a file of this name belongs.
fn place_of(top: &Path, name: &str) -> PathBuf {
    let start = name.get(..SHARD_DIGITS).filter(|start| is_shard(start));
    let shard = start.map_or_else(
        || {
            // A name without a digest: jobs without a forecast.
            let digest = Sha256::digest(name.as_bytes());
            format!("{:02x}{:x}", digest[0], digest[1] >> 4)
        },
        str::to_owned,
    );
    top.join(shard).join(file_name(name))
}

fn is_shard(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == SHARD_DIGITS && name.bytes().all(is_digit)
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
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
        file.persist(path)?;
        Ok(())
    };
    written().map_err(failed(path))
}

/// The files of a folder, and its folders that are named by digits.
#[derive(Debug, Default)]
struct Entries {
    files: Vec<String>,
    folders: Vec<String>,
}

/// Reads the names in a folder that start so; none if it is missing.
fn entries_of(folder: &Path, start: &str) -> Result<Entries, StoreError> {
    let mut found = Entries::default();
    let entries = match fs::read_dir(folder) {
        // No forecast was written yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(failed(folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(failed(folder))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let is_json = Path::new(&name).extension() == Some("json".as_ref())
            && !name.starts_with('.')
            && name.starts_with(start);
        if !is_json && !is_shard(&name) {
            continue;
        }
        // The entry has the kind in most file systems, so that no file has to be looked at.
        let mut kind = entry.file_type().map_err(failed(folder))?;
        if kind.is_symlink() {
            match entry.path().metadata() {
                Ok(target) => kind = target.file_type(),
                Err(_) => continue,
            }
        }
        if is_json && kind.is_file() {
            found.files.push(name);
        } else if !is_json && kind.is_dir() {
            found.folders.push(name);
        }
    }
    Ok(found)
}

/// The files below a folder whose names start so, by name. A file in its folder comes before one beside the folders.
fn files_of(top: &Path, start: &str) -> Result<BTreeMap<String, PathBuf>, StoreError> {
    let entries = entries_of(top, start)?;
    let beside = entries.files.into_iter();
    let mut files: BTreeMap<_, _> = beside
        .map(|name| {
            let path = top.join(&name);
            (name, path)
        })
        .collect();
    let shard = start.get(..SHARD_DIGITS).filter(|shard| is_shard(shard));
    let folders = entries.folders.iter();
    for folder in folders.filter(|folder| shard.is_none_or(|shard| shard == *folder)) {
        let folder = top.join(folder);
        for name in entries_of(&folder, start)?.files {
            let path = folder.join(&name);
            files.insert(name, path);
        }
    }
    Ok(files)
}

/// Reads the files below a folder whose names start so.
fn read_all<T>(
    folder: &Path,
    start: &str,
    parse: impl Fn(&Path, &[u8]) -> Result<T, ForecastError>,
) -> Result<Listed<T>, StoreError> {
    let mut listed = Listed {
        found: Vec::new(),
        damaged: Vec::new(),
    };
    for path in files_of(folder, start)?.into_values() {
        match parsed(&path, &parse) {
            Ok(value) => listed.found.push(value),
            Err(reason) => listed.damaged.push((path, reason)),
        }
    }
    Ok(listed)
}

fn parsed<T>(
    path: &Path,
    parse: impl Fn(&Path, &[u8]) -> Result<T, ForecastError>,
) -> Result<T, String> {
    let json = read(path).map_err(|error| error.to_string())?;
    parse(path, &json).map_err(|error| error.to_string())
}

/// The content of a store in memory. To read it again costs a look at each folder, and the files that are new.
#[derive(Debug, Default)]
pub struct Snapshot {
    forecasts: Files<Forecast>,
    observed: Files<Observation>,
}

/// When a file or folder was changed, and the size of a file.
type Stamp = (Option<SystemTime>, u64);

/// The files of a folder in memory.
#[derive(Debug)]
struct Files<T> {
    /// By the name of the folder, which is empty for the one above the others.
    folders: BTreeMap<String, (Stamp, BTreeMap<String, Kept<T>>)>,
}

/// A file in memory, or why it cannot be read.
#[derive(Debug)]
struct Kept<T> {
    stamp: Stamp,
    value: Result<Arc<T>, String>,
}

impl<T> Default for Files<T> {
    fn default() -> Self {
        Self {
            folders: BTreeMap::new(),
        }
    }
}

impl<T> Files<T> {
    /// Reads what has changed; whether anything has. With `whole`, folders are listed that seem unchanged.
    fn refresh(
        &mut self,
        top: &Path,
        whole: bool,
        parse: impl Fn(&Path, &[u8]) -> Result<T, ForecastError>,
    ) -> Result<bool, StoreError> {
        let names = entries_of(top, "")?.folders;
        let before = self.folders.len();
        let there: BTreeSet<&str> = names.iter().map(String::as_str).chain([""]).collect();
        self.folders.retain(|name, _| there.contains(name.as_str()));
        let mut is_changed = self.folders.len() != before;
        for name in there {
            let folder = if name.is_empty() {
                top.to_owned()
            } else {
                top.join(name)
            };
            // Before the list: what is written meanwhile is seen the next time.
            let stamp = stamp_of(&folder);
            let known = self.folders.entry(name.to_owned()).or_default();
            if known.0 == stamp && stamp.0.is_some() && !whole {
                continue;
            }
            let files = entries_of(&folder, "")?.files;
            known.0 = stamp;
            let mut old = std::mem::take(&mut known.1);
            let count = old.len();
            for file in files {
                let path = folder.join(&file);
                let stamp = stamp_of(&path);
                let kept = match old.remove(&file) {
                    Some(kept) if kept.stamp == stamp => kept,
                    _ => {
                        is_changed = true;
                        let value = parsed(&path, &parse).map(Arc::new);
                        Kept { stamp, value }
                    }
                };
                known.1.insert(file, kept);
            }
            is_changed |= !old.is_empty() || known.1.len() != count;
        }
        Ok(is_changed)
    }

    fn readable(&self) -> impl Iterator<Item = &Arc<T>> {
        let folders = self.folders.values();
        let files = folders.flat_map(|(_, files)| files.values());
        files.filter_map(|kept| kept.value.as_ref().ok())
    }

    fn damaged(&self, top: &Path) -> Vec<(PathBuf, String)> {
        let mut damaged = Vec::new();
        for (folder, (_, files)) in &self.folders {
            for (name, kept) in files {
                if let Err(reason) = &kept.value {
                    damaged.push((top.join(folder).join(name), reason.clone()));
                }
            }
        }
        damaged.sort_unstable();
        damaged
    }
}

fn stamp_of(path: &Path) -> Stamp {
    fs::metadata(path).map_or((None, 0), |file| (file.modified().ok(), file.len()))
}

impl Snapshot {
    /// Reads what has changed in a store; whether anything has. Not every file system reports the changes of a folder:
    /// with `whole`, all are listed.
    pub fn refresh(&mut self, store: &Store, whole: bool) -> Result<bool, StoreError> {
        let forecasts = self
            .forecasts
            .refresh(&store.forecasts(), whole, parse_forecast)?;
        let observed = self
            .observed
            .refresh(&store.observations(), whole, |_, json| {
                Observation::parse(json)
            })?;
        Ok(forecasts || observed)
    }

    /// The forecasts, in no order.
    pub fn forecasts(&self) -> impl Iterator<Item = &Arc<Forecast>> {
        self.forecasts.readable()
    }

    /// The use of jobs, in no order.
    pub fn observed(&self) -> impl Iterator<Item = &Arc<Observation>> {
        self.observed.readable()
    }

    /// Files that cannot be read, and why.
    pub fn damaged(&self, store: &Store) -> Vec<(PathBuf, String)> {
        let mut damaged = self.forecasts.damaged(&store.forecasts());
        damaged.extend(self.observed.damaged(&store.observations()));
        damaged
    }
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
        assert_eq!(
            path.parent().and_then(Path::file_name),
            Some(forecast.name[..3].as_ref())
        );
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
        // A quarter more than what was not enough.
        assert_eq!(bound(), Some(40 << 10));
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

    fn observation(forecast: &Forecast, job: &str, used: u64) -> Observation {
        Observation {
            schema_version: ledger::SCHEMA_VERSION,
            job: job.to_owned(),
            team: None,
            forecast: Some(forecast.name.clone()),
            family: forecast.family.clone(),
            gpu: forecast.key.gpu.clone(),
            asked: None,
            used,
            ended: Ended::Completed,
        }
    }

    #[test]
    fn files_of_older_versions_are_found_replaced_and_moved() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let forecast = forecast_of(&[30 * GIB]);
        let path = store.save_forecast(&forecast).expect("written");
        let old = folder
            .path()
            .join("forecasts")
            .join(file_name(&forecast.name));
        fs::rename(&path, &old).expect("moved");
        assert_eq!(store.find(&forecast.key).expect("read").len(), 1);
        let long = Duration::from_hours(1);
        let moves = |dry| store.prune(long, SystemTime::now(), dry).expect("pruned");
        let one = Pruned {
            moved: 1,
            ..Pruned::default()
        };
        assert_eq!((moves(true), old.exists()), (one, true));
        assert_eq!(
            (moves(false), old.exists(), path.exists()),
            (one, false, true)
        );
        assert_eq!(moves(false), Pruned::default());
        fs::copy(&path, &old).expect("copied");
        assert_eq!(store.all().expect("read").found.len(), 1);
        store.save_forecast(&forecast).expect("written");
        assert!(!old.exists());
    }

    #[test]
    fn old_files_are_pruned_unless_a_run_was_observed_since() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let (one, two) = (forecast_of(&[30 * GIB]), forecast_of(&[30 * GIB, GIB]));
        let mut two = two;
        two.key.command.push("--two".to_owned());
        two.name = two.key.name();
        let date = |path: &Path, hours: u64| {
            let time = SystemTime::now() - Duration::from_hours(hours);
            let file = File::options().write(true).open(path).expect("opened");
            file.set_modified(time).expect("dated");
        };
        for forecast in [&one, &two] {
            date(&store.save_forecast(forecast).expect("written"), 50);
        }
        date(
            &store
                .observe(&observation(&one, "1", GIB))
                .expect("written"),
            50,
        );
        store
            .observe(&observation(&one, "2", GIB))
            .expect("written");
        let pruned = store.prune(Duration::from_hours(48), SystemTime::now(), false);
        let pruned = pruned.expect("pruned");
        assert_eq!((pruned.forecasts, pruned.observations), (1, 1));
        assert_eq!(store.all().expect("read").found, std::slice::from_ref(&one));
        assert_eq!(store.forget_job("2").expect("forgotten"), 1);
        assert_eq!(store.forget_forecast(&one.name).expect("forgotten"), 1);
        assert!(store.all().expect("read").found.is_empty());
        assert_eq!(store.forget_forecast("../x").expect("none"), 0);
    }

    #[test]
    fn a_snapshot_reads_only_files_that_are_new() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path());
        let mut snapshot = Snapshot::default();
        assert!(!snapshot.refresh(&store, false).expect("read"));
        let forecast = forecast_of(&[30 * GIB]);
        let path = store.save_forecast(&forecast).expect("written");
        assert!(snapshot.refresh(&store, false).expect("read"));
        assert!(!snapshot.refresh(&store, true).expect("read"));
        let first = Arc::clone(snapshot.forecasts().next().expect("one"));
        // One more in the same folder: the first is not read again.
        fs::write(path.with_file_name("damaged.json"), "{").expect("written");
        assert!(snapshot.refresh(&store, true).expect("read"));
        assert!(Arc::ptr_eq(
            snapshot.forecasts().next().expect("one"),
            &first
        ));
        assert_eq!(snapshot.damaged(&store).len(), 1);
        fs::remove_file(&path).expect("removed");
        assert!(snapshot.refresh(&store, true).expect("read"));
        assert_eq!(snapshot.forecasts().count(), 0);
    }
}
