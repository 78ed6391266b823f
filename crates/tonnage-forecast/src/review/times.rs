// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times as accounting programs print them.

const DAY: i64 = 86_400;

/// Seconds since 1970 of `2026-11-18T10:00:00`, with a blank for the `T` and a zone behind it if there is one, or of a
/// number. A time without a zone is taken for UTC.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        // Milliseconds are as long after 1970 only in 5138.
        let number = if number > 1e11 { number / 1e3 } else { number };
        return number.is_finite().then_some(number);
    }
    let (date, rest) = text.split_once(['T', ' '])?;
    let mut parts = date.splitn(3, ['-', '/']).map(str::parse::<i64>);
    let (year, month, day) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let end = rest.find(['+', '-', 'Z', ' ']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(end);
    let mut parts = clock.split(':');
    let hours: i64 = parts.next()?.parse().ok()?;
    let minutes: i64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next().unwrap_or("0").parse().ok()?;
    let is_sound = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hours)
        && (0..60).contains(&minutes)
        && (0.0..61.0).contains(&seconds);
    if !is_sound {
        return None;
    }
    let whole = days(year, month, day) * DAY + hours * 3600 + minutes * 60 - offset(zone)?;
    Some(whole as f64 + seconds)
}

/// Seconds by which a zone is before UTC: `+08:00`, `Z`, nothing.
fn offset(zone: &str) -> Option<i64> {
    let zone = zone.trim();
    let (sign, digits) = match zone.as_bytes() {
        [] | b"Z" | b"UTC" => return Some(0),
        [b'+', ..] => (1, &zone[1..]),
        [b'-', ..] => (-1, &zone[1..]),
        _ => return None,
    };
    let digits = digits.replace(':', "");
    let number: i64 = digits.parse().ok()?;
    let (hours, minutes) = match digits.len() {
        2 => (number, 0),
        4 => (number / 100, number % 100),
        _ => return None,
    };
    Some(sign * (hours * 3600 + minutes * 60))
}

/// Days from 1970 to a date of the Gregorian calendar, whose years are counted from March here.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_programs_are_read() {
        for (text, expected) in [
            ("1970-01-01T00:00:00", 0.0),
            ("2026-11-18T10:00:00", 1_794_996_000.0),
            ("2024-02-29 23:59:59", 1_709_251_199.0),
            ("2023-07-12 15:03:52+08:00", 1_689_145_432.0),
            ("2023-07-12T07:03:52.5Z", 1_689_145_432.5),
            ("1689145432", 1_689_145_432.0),
            ("1689145432000", 1_689_145_432.0),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for none in [
            "Unknown",
            "None",
            "",
            "2026-13-01 00:00:00",
            "nan",
            "2026-01-01",
        ] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }
}
