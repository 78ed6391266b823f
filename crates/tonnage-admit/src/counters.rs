// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the webhook since its start, in the format of Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonnage_http::metrics::{Exposition, Kind};

use crate::answer::Answer;

/// Upper ends of the buckets in which answers are counted by their time, in seconds.
const SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0];

/// How a claim was answered.
#[derive(Clone, Copy, Debug)]
enum Result {
    Filled,
    Advised,
    Passed,
    Refused,
}

impl Result {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Filled, "filled"),
        (Self::Advised, "advised"),
        (Self::Passed, "passed"),
        (Self::Refused, "refused"),
    ];

    fn from_answer(answer: &Answer) -> Self {
        if answer.refused.is_some() {
            Self::Refused
        } else if answer.written.is_some() {
            Self::Filled
        } else if answer.warning.is_some() {
            Self::Advised
        } else {
            Self::Passed
        }
    }
}

/// Numbers that only go up.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    answered: [AtomicU64; Result::ALL.len()],
    /// Answers within the time of the bucket, and longer than that of the one before; the last is beyond all.
    took: [AtomicU64; SECONDS.len() + 1],
    took_microseconds: AtomicU64,
    malformed: AtomicU64,
    unready: AtomicU64,
    failed_watches: AtomicU64,
}

impl Counters {
    pub(crate) fn answered(&self, answer: &Answer, took: Duration) {
        let result = Result::from_answer(answer) as usize;
        add(&self.answered[result], 1);
        let bucket = SECONDS
            .iter()
            .position(|&bound| took.as_secs_f64() <= bound);
        add(&self.took[bucket.unwrap_or(SECONDS.len())], 1);
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        add(&self.took_microseconds, microseconds);
    }

    pub(crate) fn malformed(&self) {
        add(&self.malformed, 1);
    }

    pub(crate) fn unready(&self) {
        add(&self.unready, 1);
    }

    pub(crate) fn failed_watch(&self) {
        add(&self.failed_watches, 1);
    }

    pub(crate) fn tell(&self, to: &mut Exposition) {
        let mut answered = to.metric(
            "tonnage_admit_claims_total",
            Kind::Counter,
            "Claims that were answered: filled with a number, advised with a warning, passed as they were, or refused.",
        );
        for (result, name) in Result::ALL {
            answered.add(&[("result", name)], read(&self.answered[result as usize]));
        }
        let mut count = 0;
        let mut bounds = Vec::with_capacity(SECONDS.len());
        for (&bound, bucket) in SECONDS.iter().zip(&self.took) {
            count += read(bucket);
            bounds.push((bound, count));
        }
        count += read(&self.took[SECONDS.len()]);
        let sum = Duration::from_micros(read(&self.took_microseconds)).as_secs_f64();
        to.metric(
            "tonnage_admit_claim_duration_seconds",
            Kind::Histogram,
            "How long claims were decided about.",
        )
        .histogram(&[], &bounds, count, sum);
        let mut tell = |name: &str, help: &str, counter: &AtomicU64| {
            to.metric(name, Kind::Counter, help).add(&[], read(counter));
        };
        tell(
            "tonnage_admit_malformed_total",
            "Requests that were not reviews.",
            &self.malformed,
        );
        tell(
            "tonnage_admit_unready_total",
            "Reviews that came before everything was known; the failure policy decided about them.",
            &self.unready,
        );
        tell(
            "tonnage_admit_watch_failures_total",
            "Times that the API server could not be watched.",
            &self.failed_watches,
        );
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
