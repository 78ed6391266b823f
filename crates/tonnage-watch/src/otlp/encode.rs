// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics as OTLP has them: the message `ExportMetricsServiceRequest` in protobuf's binary form.
//!
//! Protobuf and not JSON, because it is the default of the specification, so every receiver accepts it. By hand: a
//! dozen fields of eight messages need no generated code. Names are those of Prometheus, units are separate.

use tonnage_http::metrics::{Exposition, Kind, Labels, Metric, Number, Sample, Value};

/// The sender.
const SCOPE: &str = "tonnage";
/// Values that count from a start which is not known.
const CUMULATIVE: u64 = 2;

/// A message of protobuf, field by field.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// The number of a field, and how its value is written: 0 as a number of any length, 1 in eight bytes, 2 with its length.
    fn key(&mut self, field: u64, form: u64) {
        self.number(field << 3 | form);
    }

    fn varint(mut self, field: u64, value: u64) -> Self {
        self.key(field, 0);
        self.number(value);
        self
    }

    fn fixed(mut self, field: u64, bytes: [u8; 8]) -> Self {
        self.key(field, 1);
        self.0.extend(bytes);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn messages(self, field: u64, messages: impl IntoIterator<Item = Self>) -> Self {
        let add = |all: Self, one: Self| all.message(field, &one);
        messages.into_iter().fold(self, add)
    }
}

/// The request with these metrics of a time, in nanoseconds since 1970, and of a resource with these attributes.
pub fn request(metrics: &Exposition, resource: Labels<'_>, time: u64) -> Vec<u8> {
    let scope = Message::default()
        .text(1, SCOPE)
        .text(2, env!("CARGO_PKG_VERSION"));
    let told = metrics.metrics.iter();
    let told = told.filter(|metric| !metric.samples.is_empty());
    let scoped = Message::default()
        .message(1, &scope)
        .messages(2, told.map(|one| metric(one, time)));
    let resource = Message::default().messages(1, attributes(resource.iter().copied()));
    let of_resource = Message::default().message(1, &resource).message(2, &scoped);
    Message::default().message(1, &of_resource).0
}

fn metric(metric: &Metric, time: u64) -> Message {
    let samples = metric.samples.iter();
    let points = Message::default().messages(1, samples.map(|sample| point(sample, time)));
    let (field, data) = match metric.kind {
        Kind::Gauge => (5, points),
        Kind::Counter => (7, points.varint(2, CUMULATIVE).varint(3, 1)),
        Kind::Histogram => (9, points.varint(2, CUMULATIVE)),
    };
    Message::default()
        .text(1, &metric.name)
        .text(2, &metric.help)
        .text(3, unit(&metric.name))
        .message(field, &data)
}

fn point(sample: &Sample, time: u64) -> Message {
    let labels = sample.labels.iter();
    let labels = labels.map(|(name, text)| (name.as_str(), text.as_str()));
    let message = Message::default().fixed(3, time.to_le_bytes());
    match &sample.value {
        Value::Number(number) => {
            let message = match number {
                Number::Integer(number) => message.fixed(6, number.to_le_bytes()),
                Number::Real(number) => message.fixed(4, number.to_le_bytes()),
            };
            message.messages(7, attributes(labels))
        }
        Value::Histogram {
            at_most,
            count,
            sum,
        } => {
            let mut before = 0;
            let mut counts = Vec::new();
            for number in at_most.iter().map(|(_, number)| number).chain([count]) {
                counts.extend(number.saturating_sub(before).to_le_bytes());
                before = *number;
            }
            let bounds = at_most.iter().flat_map(|(bound, _)| bound.to_le_bytes());
            let bounds: Vec<u8> = bounds.collect();
            let message = message
                .fixed(4, count.to_le_bytes())
                .bytes(6, &counts)
                .bytes(7, &bounds);
            // A sum to which negative values were added is left out, as the specification wants it.
            let is_negative = |(bound, number): &(f64, u64)| *bound <= 0.0 && *number > 0;
            let message = if at_most.iter().any(is_negative) {
                message
            } else {
                message.fixed(5, sum.to_le_bytes())
            };
            message.messages(9, attributes(labels))
        }
    }
}

/// Attributes. A label without a value is omitted, as for Prometheus.
fn attributes<'a>(
    labels: impl Iterator<Item = (&'a str, &'a str)>,
) -> impl Iterator<Item = Message> {
    labels
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| {
            let value = Message::default().text(1, text);
            Message::default().text(1, name).message(2, &value)
        })
}

/// The unit that a name ends with.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    if name.ends_with("_bytes") {
        "By"
    } else if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_ratio") {
        "1"
    } else {
        ""
    }
}

/// The points that a receiver rejected: their number and the reason.
pub(crate) fn rejected(response: &[u8]) -> Option<(u64, String)> {
    let partial = fields(response).find_map(|(field, value)| match value {
        Field::Bytes(bytes) if field == 1 => Some(bytes),
        _ => None,
    })?;
    let mut rejected = (0, String::new());
    for (field, value) in fields(partial) {
        match (field, value) {
            (1, Field::Number(number)) => rejected.0 = number,
            (2, Field::Bytes(text)) => rejected.1 = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (rejected.0 > 0).then_some(rejected)
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

/// The fields of a message, up to its end or to what makes no sense.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    std::iter::from_fn(move || {
        let key = number(&mut rest)?;
        let value = match key & 7 {
            0 => Field::Number(number(&mut rest)?),
            1 => rest.split_off(..8).map(|_| Field::Other)?,
            2 => {
                let length = usize::try_from(number(&mut rest)?).ok()?;
                Field::Bytes(rest.split_off(..length)?)
            }
            5 => rest.split_off(..4).map(|_| Field::Other)?,
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_receiver_did_not_take_is_read_and_nonsense_is_not() {
        let partial = Message::default().varint(1, 300).text(2, "too old");
        let response = Message::default().message(1, &partial).0;
        assert_eq!(rejected(&response), Some((300, "too old".to_owned())));
        // A warning: everything was taken.
        let warning = Message::default().message(1, &Message::default().text(2, "soon"));
        assert_eq!(rejected(&warning.0), None);
        assert_eq!(rejected(b""), None);
        for cut in 0..response.len() {
            rejected(&response[..cut]);
        }
        assert_eq!(rejected(&[0xff; 40]), None);
        assert_eq!(rejected(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
    }
}
