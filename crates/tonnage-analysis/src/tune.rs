// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which setting of PyTorch's allocator serves a recording best?
//!
//! Every setting of a grid is replayed; nothing is recommended that was not.
//! tonnage's own allocator is replayed beside them. It is not a setting, so it is
//! never the best one; the answer shows what it would need.
//! First each on a device with room, which shows its appetite; then on the real
//! one where that is too small. The best few are then compared by the smallest
//! device on which they complete, because under pressure the reserved peak means
//! little: a cache fills whatever there is.
//!
//! A grid and not a cleverer search: the settings interact in jumps, a replay
//! takes milliseconds, and an answer "none of 238 helps" is worth something only
//! if the 238 were tried.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tonnage_alloc::torch::Version;

use crate::replay::{Alloc, Job, Outcome, Replayed, Smallest, Track};

/// Version of the JSON that [`Tuned`] serialises to; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// How many settings are compared by the smallest device.
const FINALISTS: usize = 8;
/// A saving below this part of the device does not justify a change of a setting.
const WORTHWHILE: f64 = 0.01;
/// Devices that differ by less than this part are equally small.
const EQUAL: f64 = 0.002;
/// The saving that several settings need beyond the simple one, as a part of the device, to be worth writing.
const LARGE_GAIN: f64 = 0.05;
/// The setting that wins unless another one's gain is large.
const SIMPLE: &str = "expandable_segments:True";

/// One setting and what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Trial {
    /// `PYTORCH_CUDA_ALLOC_CONF`; empty for the defaults.
    pub conf: String,
    /// Whether it is the recorded setting.
    pub recorded: bool,
    /// Whether every request is served on the device.
    pub completes: bool,
    /// Requests served before the first that is not, all processes together; all of them if it completes.
    pub served: u64,
    /// Most that was reserved, on the fullest device.
    pub peak_reserved: u64,
    /// The same on a device with room for everything.
    pub appetite: u64,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// How often everything cached was given back to serve a request.
    pub retries: u64,
    /// The smallest device on which it completes, of the finalists.
    pub smallest: Option<u64>,
}

impl Trial {
    /// How many settings have to be written.
    pub fn keys(&self) -> usize {
        if self.conf.is_empty() {
            0
        } else {
            self.conf.split(',').count()
        }
    }
}

/// The difference of another allocator to PyTorch's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OtherAllocator {
    /// Its name, as `tonnage replay --alloc` takes it.
    pub allocator: String,
    /// Whether the recording was made with it.
    pub recorded: bool,
    /// Whether every request is served on the device, if streams keep up.
    pub completes: bool,
    /// Most that was reserved, on the fullest device.
    pub peak_reserved: u64,
    /// Calls of the driver.
    pub driver_calls: u64,
    /// How often everything was waited for to serve a request.
    pub retries: u64,
    /// The smallest device on which it completes.
    pub smallest: Option<u64>,
}

/// The answer in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Even without an allocator between, the blocks alive at once do not fit.
    MemoryIsShort,
    /// The blocks would fit, but no setting that was tried makes them.
    NothingFits,
    /// The recorded setting runs out of memory and the best one does not.
    MakesItFit,
    /// The best setting needs a smaller device than the recorded one.
    Saves,
    /// No setting is worth the change.
    KeepIt,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Tuned {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// The answer in a word.
    pub advice: Advice,
    /// How many settings were replayed.
    pub tried: u64,
    /// Bytes of the device.
    pub capacity: u64,
    /// Whether that is given or known.
    pub capacity_known: bool,
    /// Bytes of the context.
    pub context: u64,
    /// Bytes alive at once with the context: no setting needs less.
    pub least: u64,
    /// The recorded setting, or the defaults if the recording has none.
    pub baseline: Trial,
    /// The best setting.
    pub best: Trial,
    /// The next best.
    pub runners_up: Vec<Trial>,
    /// tonnage's own allocator, which no setting turns on.
    pub own: OtherAllocator,
}

/// Rounding by size: coarse where requests are small, fine where they are large,
/// and the other way round.
const LISTS: [&str; 8] = [
    "[1:1,>:2]",
    "[1:1,>:4]",
    "[1:1,>:8]",
    "[16:1,>:4]",
    "[64:1,>:8]",
    "[256:1,512:2,1024:4,>:8]",
    "[1:8,64:4,256:2,>:1]",
    "[64:16,>:4]",
];

/// The settings that are tried, the defaults first.
///
/// Only what this release of torch understands, and garbage collection only
/// where a device is known, because its threshold is a part of one.
fn grid(minor: u16, capacity_known: bool) -> Vec<String> {
    let large: &[u64] = if minor >= 11 { &[20, 32, 64] } else { &[20] };
    let divisions: &[u64] = if minor >= 11 {
        &[0, 2, 4, 8, 16]
    } else {
        &[0, 2, 4, 8, 16, 32, 64]
    };
    let splits: &[u64] = &[0, 32, 64, 128, 256, 512, 1024];
    let mut all = Vec::new();
    for expandable in [false, true] {
        for &large in large {
            for &split in splits {
                // torch refuses a split limit below the large segment.
                if split != 0 && split < large {
                    continue;
                }
                for &divisions in divisions {
                    all.push(conf(expandable, large, split, divisions, None));
                }
            }
        }
    }
    if capacity_known && minor >= 10 {
        for threshold in ["0.6", "0.8", "0.9"] {
            for &split in splits {
                for divisions in [0, 4] {
                    all.push(conf(false, 20, split, divisions, Some(threshold)));
                }
            }
        }
    }
    if minor < 11 {
        // Without large segments to choose the grid is filled with rounding by size.
        for expandable in [false, true] {
            for &split in splits {
                for list in LISTS {
                    let rest = conf(expandable, 20, split, 0, None);
                    let comma = if rest.is_empty() { "" } else { "," };
                    all.push(format!("{rest}{comma}roundup_power2_divisions:{list}"));
                }
                for rounding in [64, 256, 1024, 4096, 16384] {
                    let rest = conf(expandable, 20, split, 0, None);
                    let comma = if rest.is_empty() { "" } else { "," };
                    if minor >= 6 && split > 0 {
                        all.push(format!("{rest}{comma}max_non_split_rounding_mb:{rounding}"));
                    }
                }
            }
        }
    }
    all
}

fn conf(expandable: bool, large: u64, split: u64, divisions: u64, collect: Option<&str>) -> String {
    let mut parts = Vec::new();
    if expandable {
        parts.push("expandable_segments:True".to_owned());
    }
    if large != 20 {
        parts.push(format!("large_segment_size_mb:{large}"));
    }
    if split != 0 {
        parts.push(format!("max_split_size_mb:{split}"));
    }
    if divisions != 0 {
        parts.push(format!("roundup_power2_divisions:{divisions}"));
    }
    if let Some(threshold) = collect {
        // Inert without a fraction below 1 (specification 7.1).
        parts.push(format!(
            "garbage_collection_threshold:{threshold},per_process_memory_fraction:0.99"
        ));
    }
    parts.join(",")
}

/// Does `work` for every item on all cores; results in order.
fn everywhere<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    progress: &(dyn Fn(usize) + Sync),
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let take_items = || {
        while let Some((index, item)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            let result = work(item);
            let mut all = results.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((index, result));
            drop(all);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    // Threads of the standard library suffice: items are few and long. A system without threads leaves all items to
    // the thread of the caller.
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            let _ = std::thread::Builder::new().spawn_scoped(scope, take_items);
        }
        take_items();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

impl Job {
    /// Searches the settings; `progress` is called with how many of how many replays are done.
    ///
    /// ```
    /// use tonnage_analysis::replay::{Job, Options};
    /// use tonnage_analysis::tune::Advice;
    /// use tonnage_recording::{Event, Kind, Trace};
    ///
    /// // A recording in which a program requests 3 MB.
    /// let mut trace = Trace::new("example 1.0");
    /// trace.events.push(Event {
    ///     address: 0x7f00_0000_0000,
    ///     size: 3_000_320,
    ///     requested: 3_000_000,
    ///     ..Event::new(Kind::Alloc)
    /// });
    /// let file = trace.write(Vec::new())?;
    ///
    /// let job = Job::load(|| Ok(file.as_slice()), &Options::default())?;
    /// let tuned = job.tune(1, &|_, _| {});
    /// assert_eq!(tuned.advice, Advice::KeepIt);
    /// // PyTorch obtains a segment of 20 MiB for it, tonnage's own allocator two pages.
    /// assert_eq!(tuned.best.appetite, 20 << 20);
    /// assert_eq!(tuned.own.peak_reserved, 4 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tune(&self, threads: usize, progress: &(dyn Fn(usize, usize) + Sync)) -> Tuned {
        let first = &self.tracks[0];
        let recorded = match first.resolve(&Alloc::Recorded) {
            Some(Alloc::Torch(conf)) => Some(conf.text().to_owned()),
            _ => None,
        };
        let baseline_conf = recorded.clone().unwrap_or_default();
        let mut confs = vec![baseline_conf.clone()];
        let known = self.tracks.iter().all(|track| track.capacity_known);
        confs.extend(grid(first.minor(), known));
        let mut unique: Vec<(String, Alloc)> = Vec::new();
        for conf in confs {
            if unique.iter().all(|(known, _)| *known != conf) {
                let alloc = setting(&conf);
                unique.push((conf, alloc));
            }
        }
        let total = unique.len() + FINALISTS + 2;
        let tell = |done| progress(done, total);
        let trials = everywhere(&unique, threads, &tell, |(conf, alloc)| {
            self.attempt(conf, alloc, recorded.as_deref())
        });
        let tried = trials.len();
        let mut ranked = trials;
        let baseline = ranked[0].clone();
        ranked.sort_by_key(|trial| {
            let unserved = std::cmp::Reverse(trial.served);
            let appetite = trial.appetite;
            (
                !trial.completes,
                unserved,
                appetite,
                trial.driver_calls,
                trial.keys(),
            )
        });
        let mut finalists: Vec<Trial> = Vec::new();
        for trial in &ranked {
            // Settings that do exactly the same are one, named by its shortest form.
            let same = |other: &&Trial| {
                (
                    other.appetite,
                    other.peak_reserved,
                    other.driver_calls,
                    other.retries,
                ) == (
                    trial.appetite,
                    trial.peak_reserved,
                    trial.driver_calls,
                    trial.retries,
                )
            };
            if finalists.len() < FINALISTS && !finalists.iter().any(|other| same(&other)) {
                finalists.push(trial.clone());
            }
        }
        let simple = ranked.iter().find(|trial| trial.conf == SIMPLE);
        for trial in [Some(&baseline), simple].into_iter().flatten() {
            if !finalists.iter().any(|other| other.conf == trial.conf) {
                finalists.push(trial.clone());
            }
        }
        let total = tried + finalists.len() + 1;
        let tell = |done| progress(tried + done, total);
        let sizes = everywhere(&finalists, threads, &tell, |trial| {
            let (_, alloc) = unique.iter().find(|(conf, _)| *conf == trial.conf)?;
            self.smallest_of(alloc)
        });
        for (trial, size) in finalists.iter_mut().zip(sizes) {
            trial.smallest = size;
        }
        let own = self.own_allocator();
        progress(total, total);
        self.conclude(tried, &baseline_conf, finalists, own, known)
    }

    /// The result of tonnage's own allocator.
    fn own_allocator(&self) -> OtherAllocator {
        let alloc = Alloc::Tonnage;
        let trial = self.attempt("", &alloc, None);
        OtherAllocator {
            allocator: alloc.to_string(),
            recorded: self.tracks[0].is_recorded(&alloc),
            completes: trial.completes,
            peak_reserved: trial.peak_reserved,
            driver_calls: trial.driver_calls,
            retries: trial.retries,
            smallest: self.smallest_of(&alloc),
        }
    }

    fn conclude(
        &self,
        tried: usize,
        baseline_conf: &str,
        mut finalists: Vec<Trial>,
        own: OtherAllocator,
        capacity_known: bool,
    ) -> Tuned {
        let smallest = |trial: &Trial| trial.smallest.unwrap_or(u64::MAX);
        let fewest = finalists
            .iter()
            .filter(|trial| trial.completes)
            .map(smallest)
            .min();
        let fewest = fewest.unwrap_or_else(|| finalists.iter().map(smallest).min().unwrap_or(0));
        let close = (fewest as f64 * (1.0 + EQUAL)) as u64;
        finalists.sort_by_key(|trial| {
            let size = smallest(trial);
            // Equally small devices: the fewest calls, then the shortest line.
            let size = if size <= close { fewest } else { size };
            (!trial.completes, size, trial.driver_calls, trial.keys())
        });
        let find = finalists
            .iter()
            .position(|trial| trial.conf == baseline_conf);
        let baseline = finalists[find.unwrap_or(0)].clone();
        let best = preferred(&finalists, self.tracks[0].capacity).clone();
        let runners_up = finalists
            .iter()
            .filter(|trial| trial.conf != baseline.conf && trial.conf != best.conf)
            .take(4)
            .cloned()
            .collect();
        let worst = |track: &&Track| track.capacity.saturating_sub(track.least());
        let track = self
            .tracks
            .iter()
            .min_by_key(worst)
            .unwrap_or(&self.tracks[0]);
        let saved = smallest(&baseline).saturating_sub(smallest(&best));
        let worthwhile = saved as f64 > smallest(&baseline) as f64 * WORTHWHILE;
        let advice = if self
            .tracks
            .iter()
            .any(|track| track.least() > track.capacity)
        {
            Advice::MemoryIsShort
        } else if !best.completes {
            Advice::NothingFits
        } else if !baseline.completes {
            Advice::MakesItFit
        } else if worthwhile && best.conf != baseline.conf {
            Advice::Saves
        } else {
            Advice::KeepIt
        };
        Tuned {
            schema_version: SCHEMA_VERSION,
            advice,
            tried: tried as u64,
            capacity: track.capacity,
            capacity_known,
            context: track.context,
            least: track.least(),
            baseline,
            best,
            runners_up,
            own,
        }
    }

    /// One setting, on every device.
    fn attempt(&self, conf: &str, alloc: &Alloc, recorded: Option<&str>) -> Trial {
        let mut trial = Trial {
            conf: conf.to_owned(),
            recorded: recorded == Some(conf),
            completes: true,
            served: 0,
            peak_reserved: 0,
            appetite: 0,
            driver_calls: 0,
            retries: 0,
            smallest: None,
        };
        for track in &self.tracks {
            let limited = conf.contains("per_process_memory_fraction");
            let ample = (!limited).then(|| track.replay(alloc, track.ample(), false));
            let needed = |result: &Replayed| {
                let held = result.peak_reserved.saturating_add(track.peak_outside());
                held.saturating_add(track.context)
            };
            // With room for all of it the real device changes nothing.
            let real = match &ample {
                Some(result) if needed(result) <= track.capacity && result.completes() => {
                    result.clone()
                }
                _ => track.replay(alloc, track.capacity, false),
            };
            let appetite = ample.as_ref().unwrap_or(&real).peak_reserved;
            trial.appetite = trial.appetite.max(appetite);
            trial.completes &= real.completes();
            trial.served += match real.outcome {
                // Requests are counted from 1.
                Outcome::OutOfMemory { request, .. } => request.saturating_sub(1),
                Outcome::OthersOutOfMemory { request, .. } => request,
                _ => track.asked(),
            };
            trial.peak_reserved = trial.peak_reserved.max(real.peak_reserved);
            trial.driver_calls += real.driver.sum();
            trial.retries += real.retries;
        }
        trial
    }

    fn smallest_of(&self, alloc: &Alloc) -> Option<u64> {
        let mut most = 0;
        for track in &self.tracks {
            let base = track.replay(alloc, track.capacity, false);
            let Smallest { bytes, .. } = track.smallest(alloc, &base)?;
            most = most.max(bytes);
        }
        Some(most)
    }
}

/// A setting of the grid, or the recorded one, which may be written in a way that is not understood.
fn setting(conf: &str) -> Alloc {
    Alloc::torch(conf).unwrap_or(Alloc::Recorded)
}

/// The setting to propose, of finalists with the best first: the simple one, unless another is the only one that
/// completes or needs a much smaller device. `explain` proposes no other.
fn preferred(finalists: &[Trial], capacity: u64) -> &Trial {
    let best = &finalists[0];
    let size = |trial: &Trial| trial.smallest.unwrap_or(u64::MAX);
    let as_good = |simple: &&Trial| {
        let gain = size(simple).saturating_sub(size(best));
        simple.conf == SIMPLE
            && simple.completes == best.completes
            && gain as f64 <= LARGE_GAIN * capacity as f64
    };
    // A setting as short may be as good in other ways.
    let simple = finalists.iter().find(as_good).filter(|_| best.keys() > 1);
    simple.unwrap_or(best)
}

impl Track {
    /// Bytes without which no setting completes.
    fn least(&self) -> u64 {
        self.context.saturating_add(self.needed_live())
    }

    fn minor(&self) -> u16 {
        self.version.unwrap_or(Version::VERIFIED).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonnage_alloc::torch::Settings;

    #[test]
    fn the_simple_setting_wins_unless_the_gain_is_large() {
        let trial = |conf: &str, completes: bool, smallest: u64| Trial {
            conf: conf.to_owned(),
            recorded: false,
            completes,
            served: 0,
            peak_reserved: 0,
            appetite: 0,
            driver_calls: 0,
            retries: 0,
            smallest: Some(smallest),
        };
        let complex = trial(
            "max_split_size_mb:32,garbage_collection_threshold:0.6",
            true,
            80,
        );
        let chosen = |simple: Trial| preferred(&[complex.clone(), simple], 100).conf.clone();
        assert_eq!(chosen(trial(SIMPLE, true, 85)), SIMPLE);
        assert_eq!(chosen(trial(SIMPLE, true, 86)), complex.conf);
        assert_eq!(chosen(trial(SIMPLE, false, 80)), complex.conf);
    }

    #[test]
    fn every_setting_of_the_grid_is_one_torch_takes() {
        for minor in [5, 8, 10, 11, 15] {
            for known in [false, true] {
                let all = grid(minor, known);
                assert!(all.len() >= 200, "{} for 2.{minor}", all.len());
                for conf in all {
                    assert!(conf.parse::<Settings>().is_ok(), "{conf}");
                }
            }
        }
    }
}
