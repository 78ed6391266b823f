// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts, what jobs took and what a cluster has, as Prometheus reads it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

use tonnage_http::metrics::{Exposition, Kind};

use crate::fleet::{Report, Sums};
use crate::forecast::Forecast;
use crate::ledger::{Comparison, Ended, Observation, comparisons};

/// Upper ends of the buckets in which errors of forecasts are counted.
const ERRORS: [f64; 11] = [
    -0.5, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.5,
];

/// Families, and teams, that have series of their own: those with most jobs. A launcher may write a script with another
/// name for each job.
const MAX_NAMES: usize = 200;
/// GPUs that have series of their own.
const MAX_GPUS: usize = 50;
/// The name under which all others are added up.
const OTHER: &str = "other";

/// The names with series of their own.
struct Names<'a> {
    /// Families with their team; no team for those that only forecasts name.
    families: HashSet<&'a str>,
    teams: HashSet<&'a str>,
    gpus: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn new(forecasts: &[&'a Forecast], observed: &[&'a Observation]) -> Self {
        let of_forecasts = forecasts.iter().map(|one| one.family.as_str());
        let of_jobs = observed.iter().map(|one| one.family.as_str());
        let teams = observed.iter().filter_map(|one| one.team.as_deref());
        let gpus = forecasts.iter().map(|one| one.key.gpu.as_str());
        let gpus = gpus.chain(observed.iter().map(|one| one.gpu.as_str()));
        Self {
            families: most_frequent(of_forecasts.chain(of_jobs), MAX_NAMES),
            teams: most_frequent(teams, MAX_NAMES),
            gpus: most_frequent(gpus, MAX_GPUS),
        }
    }

    fn family(&self, name: &'a str) -> &'a str {
        or_other(&self.families, name)
    }

    fn team(&self, job: &'a Observation) -> &'a str {
        let name = job.team.as_deref();
        name.map_or("", |name| or_other(&self.teams, name))
    }

    fn gpu(&self, name: &'a str) -> &'a str {
        or_other(&self.gpus, name)
    }
}

fn or_other<'a>(names: &HashSet<&'a str>, name: &'a str) -> &'a str {
    if names.contains(name) { name } else { OTHER }
}

/// The values that come most often, at most `most` of them.
fn most_frequent<T: Copy + Eq + Hash + Ord>(
    values: impl Iterator<Item = T>,
    most: usize,
) -> HashSet<T> {
    let mut counts: HashMap<T, u64> = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let mut counts: Vec<(u64, T)> = counts.into_iter().map(|(value, n)| (n, value)).collect();
    // The order of two that are as frequent is fixed: a series must not come and go.
    counts.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    counts
        .into_iter()
        .take(most)
        .map(|(_, value)| value)
        .collect()
}

/// The metrics of a store: what was forecast, what jobs took, and by how much they differ.
///
/// Forecasts are reported by family and GPU, and only the largest families by name: a series for each would be more than
/// Prometheus should hold.
pub fn of_store(
    to: &mut Exposition,
    forecasts: &[impl Borrow<Forecast>],
    observed: &[impl Borrow<Observation>],
) {
    let compared = comparisons(forecasts, observed);
    let forecasts: Vec<&Forecast> = forecasts.iter().map(Borrow::borrow).collect();
    let observed: Vec<&Observation> = observed.iter().map(Borrow::borrow).collect();
    let names = Names::new(&forecasts, &observed);
    let mut families: BTreeMap<[&str; 2], Vec<&Forecast>> = BTreeMap::new();
    for forecast in forecasts {
        let family = [names.family(&forecast.family), names.gpu(&forecast.key.gpu)];
        families.entry(family).or_default().push(forecast);
    }
    let mut tell = |name: &str, help: &str, pick: fn(&[&Forecast]) -> Option<u64>| {
        let mut samples = to.metric(name, Kind::Gauge, help);
        for ([family, gpu], forecasts) in &families {
            if let Some(value) = pick(forecasts) {
                samples.add(&[("family", family), ("gpu", gpu)], value);
            }
        }
    };
    tell("tonnage_forecasts", "Forecasts of a family.", |forecasts| {
        Some(forecasts.len() as u64)
    });
    tell(
        "tonnage_forecast_peak_bytes",
        "The most that one GPU is forecast to have in use by any of the family, without what is not counted.",
        |forecasts| forecasts.iter().map(|one| one.fullest().peak).max(),
    );
    tell(
        "tonnage_forecast_bound_bytes",
        "An upper bound of what one GPU has in use by any of the family; none where one of them has no upper bound.",
        |forecasts| {
            let bounds = forecasts.iter().map(|one| one.fullest().bound);
            bounds.collect::<Option<Vec<u64>>>()?.into_iter().max()
        },
    );
    jobs(to, &observed, &names);
    teams(to, &observed, &names);
    errors(to, &compared, &names);
}

/// Jobs by how they ended.
fn jobs(to: &mut Exposition, observed: &[&Observation], names: &Names<'_>) {
    let mut ended: BTreeMap<[&str; 4], u64> = BTreeMap::new();
    let mut ooms: BTreeMap<[&str; 3], u64> = BTreeMap::new();
    let labels = |one| {
        let one: &Observation = one;
        [
            names.family(&one.family),
            names.gpu(&one.gpu),
            names.team(one),
        ]
    };
    let own = most_frequent(observed.iter().map(|one| labels(one)), MAX_NAMES);
    for &one in observed {
        let how = match one.ended {
            Ended::Completed => "completed",
            Ended::OutOfMemory => "out_of_memory",
            Ended::Other => "other",
        };
        // Each family may have jobs of each team.
        let [family, gpu, team] = match labels(one) {
            named if own.contains(&named) => named,
            [_, gpu, _] => [OTHER, gpu, OTHER],
        };
        *ended.entry([family, gpu, team, how]).or_default() += 1;
        // Also those of which there were none: a rate needs the value before the first.
        *ooms.entry([family, gpu, team]).or_default() += u64::from(one.ended == Ended::OutOfMemory);
    }
    let mut jobs = to.metric(
        "tonnage_jobs_total",
        Kind::Counter,
        "Jobs whose use was observed, by how they ended.",
    );
    for ([family, gpu, team, how], count) in ended {
        let labels = [
            ("family", family),
            ("gpu", gpu),
            ("team", team),
            ("ended", how),
        ];
        jobs.add(&labels, count);
    }
    let mut out_of_memory = to.metric(
        "tonnage_oom_total",
        Kind::Counter,
        "Jobs that ran out of GPU memory.",
    );
    for ([family, gpu, team], count) in ooms {
        out_of_memory.add(&[("family", family), ("gpu", gpu), ("team", team)], count);
    }
}

/// The requested and used memory of the jobs of a team.
#[derive(Default)]
struct TeamSums {
    jobs: u64,
    asked: u64,
    used: u64,
}

/// The requested and used memory of teams. Sums, so that a rate over them is a mean over any time.
fn teams(to: &mut Exposition, observed: &[&Observation], names: &Names<'_>) {
    let mut teams: BTreeMap<&str, TeamSums> = BTreeMap::new();
    for &one in observed {
        if let Some(asked) = one.asked {
            let sums = teams.entry(names.team(one)).or_default();
            sums.jobs += 1;
            sums.asked = sums.asked.saturating_add(asked);
            sums.used = sums.used.saturating_add(one.used);
        }
    }
    let mut tell = |name: &str, help: &str, pick: fn(&TeamSums) -> u64| {
        let mut samples = to.metric(name, Kind::Counter, help);
        for (team, sums) in &teams {
            samples.add(&[("team", team)], pick(sums));
        }
    };
    tell(
        "tonnage_team_jobs_total",
        "Jobs of a team with a recorded request.",
        |sums| sums.jobs,
    );
    tell(
        "tonnage_team_requested_bytes_total",
        "The requests of these jobs for one GPU, added up.",
        |sums| sums.asked,
    );
    tell(
        "tonnage_team_used_bytes_total",
        "The most that these jobs used of one GPU, added up.",
        |sums| sums.used,
    );
}

/// Forecasts against use: the errors of all families together, as a histogram has a dozen series.
fn errors(to: &mut Exposition, compared: &[Comparison<'_>], names: &Names<'_>) {
    let mut by_gpu: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut over: BTreeMap<[&str; 2], u64> = BTreeMap::new();
    for one in compared {
        let job = one.observation;
        let gpu = names.gpu(&job.gpu);
        by_gpu.entry(gpu).or_default().push(one.error());
        // Also those without any: a rate needs the value before the first.
        *over.entry([names.family(&job.family), gpu]).or_default() +=
            u64::from(one.is_over_bound());
    }
    let mut histogram = to.metric(
        "tonnage_forecast_error_ratio",
        Kind::Histogram,
        "For jobs that ran to their end: the forecast peak minus the used, over the used.",
    );
    for (gpu, errors) in &by_gpu {
        let at_most = |bound: f64| errors.iter().filter(|&&error| error <= bound).count() as u64;
        let bounds = ERRORS.map(|bound| (bound, at_most(bound)));
        let sum = errors.iter().sum();
        histogram.histogram(&[("gpu", gpu)], &bounds, errors.len() as u64, sum);
    }
    let mut total = to.metric(
        "tonnage_over_bound_total",
        Kind::Counter,
        "Jobs that used more than the upper bound of their forecast.",
    );
    for ([family, gpu], count) in over {
        total.add(&[("family", family), ("gpu", gpu)], count);
    }
}

/// The metrics of a cluster's account.
pub fn of_report(to: &mut Exposition, report: &Report) {
    let mut tell = |name: &str, help: &str, pick: fn(&Sums) -> u64| {
        let mut samples = to.metric(name, Kind::Gauge, help);
        for node in &report.nodes {
            samples.add(&[("node", &node.node)], pick(&node.sums));
        }
    };
    tell("tonnage_node_gpus", "GPUs of a machine.", |sums| sums.gpus);
    tell(
        "tonnage_node_memory_bytes",
        "Memory of a machine's GPUs.",
        |sums| sums.capacity,
    );
    tell(
        "tonnage_node_requested_bytes",
        "The part of it that is requested and given.",
        |sums| sums.asked,
    );
    tell(
        "tonnage_node_stranded_bytes",
        "The part that is free in pieces too small for the smallest share that any job has or wants.",
        |sums| sums.stranded,
    );
    tell(
        "tonnage_node_headroom_bytes",
        "All else that is free.",
        |sums| sums.headroom,
    );
    let mut requested = to.metric(
        "tonnage_requested_bytes",
        Kind::Gauge,
        "The memory that a namespace requested and has, of all GPUs.",
    );
    for team in &report.teams {
        requested.add(&[("namespace", &team.team)], team.asked);
    }
    let mut waiting = to.metric(
        "tonnage_claims_waiting",
        Kind::Gauge,
        "Claims of a namespace that wait for GPUs.",
    );
    for team in &report.teams {
        waiting.add(&[("namespace", &team.team)], team.waiting);
    }
    to.metric(
        "tonnage_claims_impossible",
        Kind::Gauge,
        "Claims that request more of one GPU than any has: they never start.",
    )
    .add(&[], report.impossible.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::forecast_of;
    use crate::ledger;

    const GIB: u64 = 1 << 30;

    fn observation(forecast: &Forecast, used: u64, ended: Ended, team: &str) -> Observation {
        Observation {
            schema_version: ledger::SCHEMA_VERSION,
            job: "1".to_owned(),
            team: Some(team.to_owned()),
            forecast: Some(forecast.name.clone()),
            family: forecast.family.clone(),
            gpu: forecast.key.gpu.clone(),
            asked: Some(80 * GIB),
            used,
            ended,
        }
    }

    #[test]
    fn a_store_is_told_with_its_errors_and_hostile_names() {
        let forecast = forecast_of(&[30 * GIB]);
        let hostile = "a\"} 1\ntonnage_evil 1 \\ \u{1b}";
        let observed = [
            observation(&forecast, 31 * GIB, Ended::Completed, hostile),
            observation(&forecast, 29 * GIB, Ended::Completed, hostile),
            observation(&forecast, 80 * GIB, Ended::OutOfMemory, hostile),
        ];
        let mut exposition = Exposition::default();
        of_store(&mut exposition, &[forecast], &observed);
        let text = exposition.to_text();
        let lines = |start: &str| {
            let found = text.lines().filter(|line| line.starts_with(start));
            found
                .filter_map(|line| line.rsplit_once(' '))
                .map(|(_, value)| value.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(lines("tonnage_forecasts{"), ["1"]);
        assert_eq!(lines("tonnage_forecast_peak_bytes"), ["32212254720"]);
        assert_eq!(lines("tonnage_forecast_bound_bytes"), ["33285996544"]);
        assert_eq!(lines("tonnage_oom_total"), ["1"]);
        assert_eq!(lines("tonnage_team_jobs_total"), ["3"]);
        // 30 against 31 is −3.2 %, against 29 it is +3.4 %.
        assert_eq!(
            lines("tonnage_forecast_error_ratio_bucket"),
            ["0", "0", "0", "1", "1", "1", "1", "1", "2", "2", "2", "2"]
        );
        assert_eq!(lines("tonnage_forecast_error_ratio_count"), ["2"]);
        assert_eq!(lines("tonnage_over_bound_total"), ["0"]);
        assert_eq!(lines("tonnage_evil"), [""; 0]);
        assert!(
            text.contains(r#"team="a\"} 1\ntonnage_evil 1 \\ "#),
            "{text}"
        );
    }

    #[test]
    fn many_families_and_teams_have_few_series() {
        let first = forecast_of(&[30 * GIB]);
        let (mut forecasts, mut observed) = (Vec::new(), Vec::new());
        for number in 0..3000 {
            let mut forecast = first.clone();
            forecast.family = format!("run_{number}.sh");
            let team = format!("team-{}", number % 700);
            observed.push(observation(&forecast, 30 * GIB, Ended::Completed, &team));
            forecasts.push(forecast);
        }
        for _ in 0..10 {
            observed.push(observation(&first, 30 * GIB, Ended::Completed, "large"));
        }
        let mut exposition = Exposition::default();
        of_store(&mut exposition, &forecasts, &observed);
        let text = exposition.to_text();
        let series = |start: &str| {
            let lines = text.lines().filter(|line| line.starts_with(start));
            let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
            (values.clone().count(), values.sum::<u64>())
        };
        // Nothing is lost: a family without series is in `other`.
        for (name, sum) in [
            ("tonnage_forecasts{", 3000),
            ("tonnage_jobs_total{", 3010),
            ("tonnage_team_jobs_total{", 3010),
        ] {
            let (count, values) = series(name);
            assert!(count <= MAX_NAMES + 1, "{name} {count}");
            assert_eq!(values, sum, "{name}");
        }
        assert_eq!(series("tonnage_forecast_error_ratio_bucket{").0, 12);
        assert!(text.contains("family=\"train.py\",gpu=\"h100-80gb\",team=\"large\""));
        assert!(text.lines().count() < 2000, "{}", text.lines().count());
    }
}
