// SPDX-License-Identifier: MIT OR Apache-2.0
//! What makes a job fit that does not: a setting of the allocator, or changes to the program made inside its process.
//!
//! Every change is tried alone, those first that save much in many programs. If none of those suffices, they are tried
//! together at once. Where no change suffices alone, they are put together, those that save most first, and what turns
//! out not to be needed is left out again. Changes that leave the mathematics as it is come before those that round
//! otherwise, and these before those that change the algorithm. Whatever is proposed was dry-run as proposed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tonnage_analysis::verdict::Cost;
use tonnage_run::changes::{self, Change, Maths};
use tonnage_run::{Options, RunError};

use crate::least_time::{LeastTime, least_time};
use crate::variants::{Trial, Variant, Variants};

/// Something that makes a job fit, or helps most.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Remedy {
    /// The changes to the program, by name.
    pub changes: Vec<String>,
    /// The setting of the allocator, for `PYTORCH_CUDA_ALLOC_CONF`.
    pub setting: Option<String>,
    /// The change, in words.
    pub title: String,
    /// The effect on the mathematics: nothing, rounding, the algorithm.
    pub maths: String,
    /// Bytes that it saves of what the job needs; none if that is not known.
    pub saves: Option<u64>,
    /// The cost beside the unchanged job, for each step; none if that was not counted.
    pub cost: Option<ExtraCost>,
    /// The least time that the job takes with it; none if that was not counted, or the GPU's peak is not published.
    pub least_time: Option<LeastTime>,
    /// The job with it.
    pub trial: Trial,
}

/// The additional work of a job with a change, for each step of an optimizer, or in all if there were no two steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExtraCost {
    /// Floating-point operations of matrix products and attention more than without it.
    pub flops: i64,
    /// The same as a part of those without it.
    pub part: f64,
    /// Bytes that it moves between host and GPU more than the job as it is.
    pub moved: i64,
    /// Kernels that it launches more.
    pub launches: i64,
    /// Whether these are of a step; else of the whole job, whose steps are others with the change, or were not counted.
    pub of_step: bool,
}

/// The cost of two runs, and whether that is the cost of a step or of the whole.
fn comparable(before: &Trial, after: &Trial) -> Option<(Cost, Cost, bool)> {
    let (before, after) = (before.costs?, after.costs?);
    Some(match (before.per_step, after.per_step) {
        // A change that makes a step of each parameter has other steps.
        (Some(one), Some(other)) if before.steps == after.steps => (one, other, true),
        _ => (before.total, after.total, false),
    })
}

/// The least time with a change, beside that without it.
fn least_time_of(before: &Trial, after: &Trial, machine: &Options) -> Option<LeastTime> {
    // One rank of a sharded model was run, which has its own GPU.
    let is_rank = after
        .changes
        .iter()
        .any(|made| changes::find(&made.name).is_ok_and(|change| change.shards));
    let gpus = if is_rank { 1 } else { machine.gpus };
    let (before, after, of_step) = comparable(before, after)?;
    let peak = &machine.gpu.peak;
    let (without, _) = least_time(&before, peak, gpus)?;
    let (seconds, limited_by) = least_time(&after, peak, gpus)?;
    Some(LeastTime {
        seconds,
        part: (without > 0.0).then(|| (seconds - without) / without),
        of_step,
        limited_by,
    })
}

/// The order of changes: changes that cannot be faster than the others last, and among the same, those that do more.
fn in_order(remedies: &mut [Remedy]) {
    let weight = |remedy: &Remedy| remedy.cost.map_or(f64::INFINITY, |cost| cost.weight());
    let part = |remedy: &Remedy| {
        let least = remedy.least_time?;
        // A step, and a whole job with other steps, have only their parts in common.
        Some(least.part.unwrap_or(least.seconds))
    };
    // A time of some, and none of others, is not an order.
    let by_time = remedies.iter().all(|remedy| part(remedy).is_some());
    remedies.sort_by(|one, other| {
        let weights = weight(one).total_cmp(&weight(other));
        match (part(one), part(other)) {
            (Some(one), Some(other)) if by_time => one.total_cmp(&other).then(weights),
            _ => weights,
        }
    });
}

impl ExtraCost {
    fn between(before: &Trial, after: &Trial) -> Option<Self> {
        let (before, after, of_step) = comparable(before, after)?;
        let moved = |cost: Cost| cost.to_device.saturating_add(cost.to_host) as i64;
        Some(Self {
            flops: after.flops() as i64 - before.flops() as i64,
            part: (after.flops() as f64 - before.flops() as f64) / before.flops().max(1) as f64,
            moved: moved(after) - moved(before),
            launches: after.launches as i64 - before.launches as i64,
            of_step,
        })
    }

    /// An estimate of the time that it takes, for an order alone: a GPU does some thousand operations while a byte
    /// crosses the bus, and a kernel is launched in the time of some million.
    fn weight(&self) -> f64 {
        self.flops as f64 + self.moved.max(0) as f64 * 4e3 + self.launches.max(0) as f64 * 1e6
    }
}

/// A change that was not made, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NotMade {
    /// Its name.
    pub change: String,
    /// Whether the program does so by itself.
    pub already: bool,
    /// Why it was not made.
    pub why: String,
}

/// The result for a job that does not fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Remedies {
    /// The changes that make it fit: changes that keep the mathematics first, then those that round otherwise, then
    /// those that change the algorithm. Among these by the least time of each if that of all is known, else by a weight
    /// of what each does more: operations, bytes moved and launches.
    pub fitting: Vec<Remedy>,
    /// The changes that come nearest, where nothing makes it fit.
    pub nearest: Option<Remedy>,
    /// Changes that were tried and could not be made.
    pub not_made: Vec<NotMade>,
    /// The changes that were run alone, by name.
    pub tried: Vec<String>,
    /// Whether the search was ended before everything was tried: another change may make it fit.
    pub interrupted: bool,
    /// The strong changes together, if the job fits with them, until the cheaper ones have been tried.
    #[serde(skip)]
    early: Option<Remedy>,
}

/// A change that was made and saves something. A strong one that saves nothing alone is one, too: it may save much
/// beside another change, which takes the old peak away.
struct Helpful {
    change: &'static Change,
    need: u64,
    trial: Trial,
}

/// A change that saves less than this part of the need is not worth its lines.
const WORTHWHILE: f64 = 0.005;
/// The number of candidates, the best of each group, of which every two are tried together.
const PAIRED: usize = 6;
const SETTING: &str = "expandable_segments:True";
const SETTING_VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Looks for what makes `variant` fit, which does not by itself, as `baseline` shows.
pub(crate) fn find(
    variants: &mut Variants<'_>,
    variant: &Variant,
    baseline: &Trial,
    allowed: Maths,
    sharded: &[Remedy],
    width: usize,
) -> Result<Remedies, RunError> {
    let mut found = Remedies::default();
    let Some(need) = baseline.need else {
        return Ok(found);
    };
    found
        .fitting
        .extend(by_setting(variants, variant, baseline)?);
    let tried: Vec<&'static Change> = changes::all()
        .iter()
        .filter(|change| change.maths <= allowed && !change.shards)
        .collect();
    let with = |names: &[&str]| Variant {
        changes: names.iter().map(|&name| name.to_owned()).collect(),
        ..variant.clone()
    };
    // The answer of a search that is ended early should be in its first runs.
    let (first, others): (Vec<_>, Vec<_>) = tried.into_iter().partition(|change| change.strong);
    let mut helpful: Vec<Helpful> = Vec::new();
    let mut tried_together = Together::default();
    for wave in [first, others] {
        let is_first = helpful.is_empty() && wave.iter().any(|change| change.strong);
        let alone: Vec<Variant> = wave.iter().map(|change| with(&[&change.name])).collect();
        let trials = variants.run(&alone, width)?;
        for (change, trial) in wave.iter().zip(trials) {
            let Some(trial) = trial else {
                continue;
            };
            found.tried.push(change.name.clone());
            if let Some(not_made) = not_made(change, &trial) {
                found.not_made.push(not_made);
            } else if let Some(less) = trial
                .need
                .filter(|less| saves(need, *less) || change.strong && *less <= need)
            {
                helpful.push(Helpful {
                    change,
                    need: less,
                    trial,
                });
            }
        }
        if is_first && !helpful.iter().any(|one| one.trial.fits) {
            let set = one_of_each_group(&helpful);
            if set.len() > 1 {
                let names: Vec<&str> = set.iter().map(|change| change.name.as_str()).collect();
                let trial =
                    tried_together.run(&set, &mut |_| variants.run(&[with(&names)], width))?;
                found.early = trial
                    .filter(|trial| trial.fits)
                    .map(|trial| remedy(&set, trial, baseline, &variants.options));
            }
        }
    }
    for remedy in sharded {
        if let Some((change, less)) = sharding_of(remedy).zip(remedy.trial.need)
            && change.maths <= allowed
            && saves(need, less)
        {
            helpful.push(Helpful {
                change,
                need: less,
                trial: remedy.trial.clone(),
            });
        }
    }
    // The largest savings first; in a group only one can be made.
    helpful.sort_by_key(|helpful| helpful.need);
    for level in [Maths::Nothing, Maths::Rounding, Maths::Algorithm] {
        let of_level = helpful.iter().filter(|one| one.change.maths == level);
        let fitting = of_level.filter(|one| one.trial.fits && saves(need, one.need));
        let mut remedies: Vec<Remedy> = fitting
            .map(|one| {
                remedy(
                    &[one.change],
                    one.trial.clone(),
                    baseline,
                    &variants.options,
                )
            })
            .collect();
        in_order(&mut remedies);
        found.fitting.extend(remedies);
        // The single changes of the next levels were run as well, and are listed behind.
        if !found.fitting.is_empty() {
            continue;
        }
        if let Some(early) = found.early.take_if(|early| early.maths == level.as_str()) {
            found.fitting.push(early);
            continue;
        }
        let candidates: Vec<&Helpful> = helpful
            .iter()
            .filter(|one| one.change.maths <= level)
            .collect();
        let (set, trial) = tried_together.find(&candidates, &mut |sets| {
            let of = |set: &Set| {
                let names: Vec<&str> = set.iter().map(|change| change.name.as_str()).collect();
                with(&names)
            };
            let wanted: Vec<Variant> = sets.iter().map(of).collect();
            variants.run(&wanted, width)
        })?;
        let Some(trial) = trial.filter(|trial| trial.need.is_some_and(|less| saves(need, less)))
        else {
            continue;
        };
        let remedy = remedy(&set, trial, baseline, &variants.options);
        if remedy.trial.fits {
            found.fitting.push(remedy);
            continue;
        }
        let nearer = |known: &Remedy| known.trial.need > remedy.trial.need;
        if found.nearest.as_ref().is_none_or(nearer) {
            found.nearest = Some(remedy);
        }
    }
    // The answer of the first runs stands beside cheaper combinations, and for them where the search was ended.
    if let Some(early) = found.early.take()
        && !found
            .fitting
            .iter()
            .any(|one| is_part(&one.changes, &early.changes))
    {
        found.fitting.push(early);
    }
    if !found.fitting.is_empty() {
        found.nearest = None;
    }
    found.interrupted = variants.is_stopped();
    Ok(found)
}

/// The need of the job on each GPU with each way of spreading its model over them.
pub(crate) fn sharded(
    variants: &mut Variants<'_>,
    variant: &Variant,
    baseline: &Trial,
    width: usize,
) -> Result<Vec<Remedy>, RunError> {
    let ways: Vec<&'static Change> = changes::all().iter().filter(|it| it.shards).collect();
    let wanted: Vec<Variant> = ways
        .iter()
        .map(|way| Variant {
            changes: vec![way.name.clone()],
            ..variant.clone()
        })
        .collect();
    let trials = variants.run(&wanted, width)?;
    let tried = ways.into_iter().zip(trials);
    Ok(tried
        .filter_map(|(way, trial)| Some(remedy(&[way], trial?, baseline, &variants.options)))
        .collect())
}

/// The change of each group with which the job needs least.
fn one_of_each_group(helpful: &[Helpful]) -> Set {
    let mut best: BTreeMap<&str, &Helpful> = BTreeMap::new();
    for one in helpful {
        let known = best.entry(&one.change.group).or_insert(one);
        if one.need < known.need {
            *known = one;
        }
    }
    best.into_values().map(|one| one.change).collect()
}

/// Whether all of `some` are among `all`.
fn is_part(some: &[String], all: &[String]) -> bool {
    !some.is_empty() && some.iter().all(|name| all.contains(name))
}

/// The change that a way of sharding is, if it was made.
fn sharding_of(remedy: &Remedy) -> Option<&'static Change> {
    let change = changes::find(remedy.changes.first()?).ok()?;
    not_made(change, &remedy.trial).is_none().then_some(change)
}

/// Whether `less` is worth while against `need`.
fn saves(need: u64, less: u64) -> bool {
    need.saturating_sub(less) as f64 > WORTHWHILE * need as f64
}

fn remedy(set: &[&'static Change], trial: Trial, baseline: &Trial, machine: &Options) -> Remedy {
    let maths = set.iter().map(|change| change.maths).max();
    let titles: Vec<&str> = set.iter().map(|change| change.title.as_str()).collect();
    Remedy {
        changes: set.iter().map(|change| change.name.clone()).collect(),
        setting: None,
        title: titles.join(" + "),
        maths: maths.unwrap_or(Maths::Nothing).as_str().to_owned(),
        saves: saved(baseline, &trial),
        cost: ExtraCost::between(baseline, &trial),
        least_time: least_time_of(baseline, &trial, machine),
        trial,
    }
}

/// Bytes that are needed less.
fn saved(before: &Trial, after: &Trial) -> Option<u64> {
    Some(before.need?.saturating_sub(after.need?))
}

/// Why a change was not made in a trial, if it was not.
fn not_made(change: &Change, trial: &Trial) -> Option<NotMade> {
    let told = trial.changes.iter().find(|told| told.name == change.name);
    let not_made = |already, why: Option<String>| NotMade {
        change: change.name.clone(),
        already,
        why: why.unwrap_or_else(|| "it found nothing to change".to_owned()),
    };
    match told {
        Some(told) if told.applied => trial.why.clone().map(|why| not_made(false, Some(why))),
        Some(told) => Some(not_made(told.already, told.why.clone())),
        None => Some(not_made(false, trial.why.clone())),
    }
}

/// Changes that are made together.
type Set = Vec<&'static Change>;

/// Runs the job with each of some sets; nothing for those that were not begun when the search was ended.
type RunWith<'a> = dyn FnMut(&[Set]) -> Result<Vec<Option<Trial>>, RunError> + 'a;

/// The combinations that were tried, and their results.
#[derive(Default)]
struct Together(BTreeMap<BTreeSet<String>, Option<Trial>>);

impl Together {
    fn names(set: &[&'static Change]) -> BTreeSet<String> {
        set.iter().map(|change| change.name.clone()).collect()
    }

    fn run(&mut self, set: &Set, run: &mut RunWith<'_>) -> Result<Option<Trial>, RunError> {
        self.run_all(std::slice::from_ref(set), run)?;
        Ok(self.0.get(&Self::names(set)).cloned().flatten())
    }

    /// Runs those that were not run before.
    fn run_all(&mut self, sets: &[Set], run: &mut RunWith<'_>) -> Result<(), RunError> {
        let new: Vec<Set> = sets
            .iter()
            .filter(|set| !self.0.contains_key(&Self::names(set)))
            .cloned()
            .collect();
        if !new.is_empty() {
            let trials = run(&new)?;
            let names = new.iter().map(|set| Self::names(set));
            self.0.extend(names.zip(trials));
        }
        Ok(())
    }

    /// Puts changes together until the job fits, then leaves out what is not needed.
    fn find(
        &mut self,
        candidates: &[&Helpful],
        run: &mut RunWith<'_>,
    ) -> Result<(Set, Option<Trial>), RunError> {
        let (set, best) = self.put_together(Vec::new(), None, candidates, run)?;
        let Some(trial) = best else {
            return Ok((set, None));
        };
        if trial.fits {
            return self.without_needless(set, trial, run);
        }
        // The best change alone may exclude a better pair: every two of the first few.
        let Some((pair, of_pair)) = self.best_pair(candidates, run)? else {
            return Ok((set, Some(trial)));
        };
        let (other, best) = self.put_together(pair, Some(of_pair), candidates, run)?;
        match best {
            Some(best) if best.fits => self.without_needless(other, best, run),
            Some(best) if best.need < trial.need => Ok((other, Some(best))),
            _ => Ok((set, Some(trial))),
        }
    }

    fn best_pair(
        &mut self,
        candidates: &[&Helpful],
        run: &mut RunWith<'_>,
    ) -> Result<Option<(Set, Trial)>, RunError> {
        // Only one change of a group can be made: the others would displace changes of another kind.
        let mut groups = BTreeSet::new();
        let first: Vec<&Helpful> = candidates
            .iter()
            .filter(|one| groups.insert(&one.change.group))
            .take(PAIRED)
            .copied()
            .collect();
        let mut pairs: Vec<Set> = Vec::new();
        for (number, one) in first.iter().enumerate() {
            let others = first[number + 1..].iter();
            pairs.extend(others.map(|other| vec![one.change, other.change]));
        }
        self.run_all(&pairs, run)?;
        let tried = pairs.into_iter().filter_map(|pair| {
            let trial = self.0.get(&Self::names(&pair)).cloned().flatten()?;
            let works = trial.why.is_none() && trial.need.is_some();
            works.then_some((pair, trial))
        });
        Ok(tried.min_by_key(|(_, trial)| trial.need))
    }

    /// Adds one candidate after the other to a set, those that help.
    fn put_together(
        &mut self,
        mut set: Set,
        mut best: Option<Trial>,
        candidates: &[&Helpful],
        run: &mut RunWith<'_>,
    ) -> Result<(Set, Option<Trial>), RunError> {
        let mut groups: BTreeSet<String> = set.iter().map(|change| change.group.clone()).collect();
        for candidate in candidates {
            if best.as_ref().is_some_and(|best| best.fits) {
                break;
            }
            if groups.contains(&candidate.change.group) {
                continue;
            }
            let mut larger = set.clone();
            larger.push(candidate.change);
            let trial = if set.is_empty() {
                Some(candidate.trial.clone())
            } else {
                self.run(&larger, run)?
            };
            let Some(trial) = trial else {
                break;
            };
            let before = best.as_ref().and_then(|best| best.need);
            let helps = match (before, trial.need) {
                (None, _) => true,
                (Some(before), Some(need)) => saves(before, need),
                (Some(_), None) => false,
            };
            if helps && trial.why.is_none() {
                groups.insert(candidate.change.group.clone());
                set = larger;
                best = Some(trial);
            }
        }
        Ok((set, best))
    }

    /// A set that fits, without what it fits without.
    fn without_needless(
        &mut self,
        mut set: Set,
        mut best: Trial,
        run: &mut RunWith<'_>,
    ) -> Result<(Set, Option<Trial>), RunError> {
        // The change that saved least alone is the first that may not be needed; the last one was.
        for index in (0..set.len().saturating_sub(1)).rev() {
            let mut smaller = set.clone();
            smaller.remove(index);
            if let Some(trial) = self.run(&smaller, run)?
                && trial.fits
            {
                set = smaller;
                best = trial;
            }
        }
        Ok((set, Some(best)))
    }
}

/// Expandable segments, where a replay shows that the job fits with them.
fn by_setting(
    variants: &mut Variants<'_>,
    variant: &Variant,
    baseline: &Trial,
) -> Result<Option<Remedy>, RunError> {
    let Some(expandable) = baseline.expandable else {
        return Ok(None);
    };
    if expandable.saturating_add(baseline.margin) > baseline.capacity {
        return Ok(None);
    }
    let mut with = variant.clone();
    let own = with.job.variable(SETTING_VARIABLE);
    let setting = match own.filter(|own| !own.is_empty()) {
        Some(own) => format!("{},{SETTING}", own.to_string_lossy()),
        None => SETTING.to_owned(),
    };
    let with_it = (SETTING_VARIABLE.into(), setting.clone().into());
    with.job.environment.push(with_it);
    let mut trials = variants.run(&[with], 1)?;
    let trial = trials.pop().flatten().filter(|trial| trial.fits);
    Ok(trial.map(|trial| Remedy {
        changes: Vec::new(),
        title: "expandable segments of PyTorch's allocator".to_owned(),
        maths: Maths::Nothing.as_str().to_owned(),
        saves: saved(baseline, &trial),
        cost: ExtraCost::between(baseline, &trial),
        least_time: least_time_of(baseline, &trial, &variants.options),
        setting: Some(setting),
        trial,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tonnage_analysis::verdict::Outcome;

    use crate::variants::Evidence;

    fn trial(need: u64) -> Trial {
        Trial {
            values: Vec::new(),
            command: String::new(),
            constants: Vec::new(),
            outcome: Outcome::DoesNotFit,
            fits: need <= 24,
            handled_ooms: 0,
            need: Some(need),
            evidence: Evidence::Replayed,
            expandable: None,
            capacity: 24,
            margin: 0,
            peak_allocated: need,
            why: None,
            stopped: None,
            changes: Vec::new(),
            costs: None,
            unknown: Vec::new(),
            recording: PathBuf::new(),
            forked: true,
            seconds: 0.0,
        }
    }

    /// An 8B model on 24 GB, as it was seen: the optimizer on the host saves most alone, and fits with nothing.
    fn need(names: &[&str]) -> u64 {
        let has = |name: &str| names.contains(&name);
        match (has("optimizer-on-host"), has("lora"), has("checkpointing")) {
            (true, _, false) => 31,
            (true, _, true) => 32,
            (false, true, false) => 37,
            (false, true, true) => 19,
            (false, false, _) => 70,
        }
    }

    #[test]
    fn what_saves_most_alone_does_not_stand_in_the_way() {
        let helpful: Vec<Helpful> = [
            "optimizer-on-host",
            "lora",
            "checkpointing",
            "fused-optimizer",
        ]
        .iter()
        .filter_map(|name| changes::find(name).ok())
        .map(|change| Helpful {
            need: need(&[&change.name]),
            trial: trial(need(&[&change.name])),
            change,
        })
        .collect();
        let candidates: Vec<&Helpful> = helpful.iter().collect();
        assert!(candidates.len() >= 3);
        let mut runs = 0;
        let mut together = Together::default();
        let mut run = |sets: &[Set]| {
            runs += sets.len();
            let of = |set: &Set| {
                let names: Vec<&str> = set.iter().map(|change| change.name.as_str()).collect();
                Some(trial(need(&names)))
            };
            Ok(sets.iter().map(of).collect())
        };
        let (set, best) = together.find(&candidates, &mut run).unwrap();
        let mut names: Vec<&str> = set.iter().map(|change| change.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["checkpointing", "lora"]);
        assert_eq!(best.and_then(|best| best.need), Some(19));
        // A combination is not tried twice.
        let (again, _) = together.find(&candidates, &mut run).unwrap();
        assert_eq!(again.len(), 2);
        assert!(runs <= 8, "{runs} runs");
    }
}
