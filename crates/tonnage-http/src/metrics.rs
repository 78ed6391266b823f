// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics as data, and as the text that Prometheus reads.

use std::fmt::{self, Display, Write as _};

/// The content type of Prometheus' text.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that goes up and down.
    Gauge,
    /// A number that only goes up.
    Counter,
    /// Numbers, counted in buckets.
    Histogram,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// Labels of a sample.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// A number of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole one.
    Integer(u64),
    /// Any.
    Real(f64),
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Real(number) => number.fmt(f),
        }
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Integer(number as u64)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(Number),
    /// Numbers in buckets.
    Histogram {
        /// How many are at most as large as each bound.
        at_most: Vec<(f64, u64)>,
        /// How many there are.
        count: u64,
        /// Their sum.
        sum: f64,
    },
}

/// A value of a metric, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The labels.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: Value,
}

/// A metric with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// Its meaning, in a sentence.
    pub help: String,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// Metrics, as data and as a text in the exposition format of Prometheus, version 0.0.4.
///
/// By hand, as it is this short: the crates for it keep counters of a program, and most of this is read off files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// The metrics, each once.
    pub metrics: Vec<Metric>,
}

impl Exposition {
    /// Starts a metric.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) -> Samples<'_> {
        let metric = self.metrics.push_mut(Metric {
            name: name.to_owned(),
            kind,
            help: help.to_owned(),
            samples: Vec::new(),
        });
        Samples {
            samples: &mut metric.samples,
        }
    }

    /// The text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for metric in &self.metrics {
            let name = &metric.name;
            let _ = writeln!(text, "# HELP {name} {}", escaped(&metric.help, false));
            let _ = writeln!(text, "# TYPE {name} {}", metric.kind.word());
            for sample in &metric.samples {
                write_sample(&mut text, name, sample);
            }
        }
        text
    }
}

/// The samples of a metric.
#[derive(Debug)]
pub struct Samples<'a> {
    samples: &'a mut Vec<Sample>,
}

impl Samples<'_> {
    /// One of them.
    pub fn add(&mut self, labels: Labels<'_>, value: impl Into<Number>) {
        self.push(labels, Value::Number(value.into()));
    }

    /// A histogram: how many values are at most as large as each bound, and the values' sum.
    pub fn histogram(&mut self, labels: Labels<'_>, bounds: &[(f64, u64)], count: u64, sum: f64) {
        let at_most = bounds.to_vec();
        self.push(
            labels,
            Value::Histogram {
                at_most,
                count,
                sum,
            },
        );
    }

    fn push(&mut self, labels: Labels<'_>, value: Value) {
        let labels = labels.iter();
        let labels = labels.map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        self.samples.push(Sample {
            labels: labels.collect(),
            value,
        });
    }
}

fn write_sample(text: &mut String, name: &str, sample: &Sample) {
    let mut line = |suffix: &str, bound: Option<&str>, value: Number| {
        let _ = write!(text, "{name}{suffix}");
        let labels = sample.labels.iter();
        let labels = labels.map(|(name, text)| (name.as_str(), text.as_str()));
        let all: Vec<_> = labels.chain(bound.map(|bound| ("le", bound))).collect();
        for (at, (name, value)) in all.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(text, "{before}{name}=\"{}\"", escaped(value, true));
        }
        let after = if all.is_empty() { "" } else { "}" };
        let _ = writeln!(text, "{after} {value}");
    };
    match &sample.value {
        Value::Number(number) => line("", None, *number),
        Value::Histogram {
            at_most,
            count,
            sum,
        } => {
            for (bound, number) in at_most {
                line("_bucket", Some(&bound.to_string()), (*number).into());
            }
            line("_bucket", Some("+Inf"), (*count).into());
            line("_sum", None, (*sum).into());
            line("_count", None, (*count).into());
        }
    }
}

/// Returns the text with escapes, so that nothing ends a line or a label. Other control characters would only disturb a terminal.
fn escaped(text: &str, is_label: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '"' if is_label => escaped.push_str("\\\""),
            letter if letter.is_control() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}
