// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts, what jobs took and what a cluster has, as Prometheus reads it.

use std::collections::BTreeMap;

use tonnage_http::metrics::{Exposition, Kind};

use crate::fleet::{Report, Sums};
use crate::forecast::Forecast;
use crate::ledger::{Comparison, Ended, Observation, comparisons};

/// Upper ends of the buckets in which errors of forecasts are counted.
const ERRORS: [f64; 11] = [
    -0.5, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.5,
];

/// The metrics of a store: what was forecast, what jobs took, and by how much they differ.
///
/// Forecasts are reported by family and GPU: a series for each would be more than Prometheus should hold.
pub fn of_store(to: &mut Exposition, forecasts: &[Forecast], observed: &[Observation]) {
    let mut families: BTreeMap<[&str; 2], Vec<&Forecast>> = BTreeMap::new();
    for forecast in forecasts {
        let family = [forecast.family.as_str(), forecast.key.gpu.as_str()];
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
    jobs(to, observed);
    teams(to, observed);
    errors(to, &comparisons(forecasts, observed));
}

/// Jobs by how they ended.
fn jobs(to: &mut Exposition, observed: &[Observation]) {
    let mut ended: BTreeMap<[&str; 4], u64> = BTreeMap::new();
    let mut ooms: BTreeMap<[&str; 3], u64> = BTreeMap::new();
    for one in observed {
        let how = match one.ended {
            Ended::Completed => "completed",
            Ended::OutOfMemory => "out_of_memory",
            Ended::Other => "other",
        };
        let team = one.team.as_deref().unwrap_or("");
        *ended.entry([&one.family, &one.gpu, team, how]).or_default() += 1;
        // Also those of which there were none: a rate needs the value before the first.
        *ooms.entry([&one.family, &one.gpu, team]).or_default() +=
            u64::from(one.ended == Ended::OutOfMemory);
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
fn teams(to: &mut Exposition, observed: &[Observation]) {
    let mut teams: BTreeMap<&str, TeamSums> = BTreeMap::new();
    for one in observed {
        if let Some(asked) = one.asked {
            let sums = teams.entry(one.team.as_deref().unwrap_or("")).or_default();
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

/// Forecasts against use.
fn errors(to: &mut Exposition, compared: &[Comparison<'_>]) {
    let mut families: BTreeMap<[&str; 2], Vec<&Comparison<'_>>> = BTreeMap::new();
    for one in compared {
        let job = one.observation;
        families
            .entry([&job.family, &job.gpu])
            .or_default()
            .push(one);
    }
    let mut histogram = to.metric(
        "tonnage_forecast_error_ratio",
        Kind::Histogram,
        "For jobs that ran to their end: the forecast peak minus the used, over the used.",
    );
    for ([family, gpu], jobs) in &families {
        let at_most = |bound: f64| jobs.iter().filter(|one| one.error() <= bound).count() as u64;
        let bounds = ERRORS.map(|bound| (bound, at_most(bound)));
        let sum = jobs.iter().map(|one| one.error()).sum();
        let labels = [("family", *family), ("gpu", *gpu)];
        histogram.histogram(&labels, &bounds, jobs.len() as u64, sum);
    }
    let mut over = to.metric(
        "tonnage_over_bound_total",
        Kind::Counter,
        "Jobs that used more than the upper bound of their forecast.",
    );
    for ([family, gpu], jobs) in &families {
        let count = jobs.iter().filter(|one| one.is_over_bound()).count();
        over.add(&[("family", family), ("gpu", gpu)], count);
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
}
