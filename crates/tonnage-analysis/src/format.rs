// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formatting of sizes and counts, the same in a terminal, in the sentences of results and on a page.

/// Bytes in binary units, two decimals from KiB on.
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", units[unit])
}

/// A count with thousands set apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count of things by their name for one of them: `1 block`, `2 blocks`; words behind the first stay as they are.
///
/// ```
/// use tonnage_analysis::format::plural;
///
/// assert_eq!(plural(1, "call"), "1 call");
/// assert_eq!(plural(2, "retry that helped"), "2 retries that helped");
/// ```
pub fn plural(number: u64, noun: &str) -> String {
    let (first, rest) = noun.split_once(' ').unwrap_or((noun, ""));
    let many = match first {
        "retry" => "retries".to_owned(),
        "process" => "processes".to_owned(),
        other => format!("{other}s"),
    };
    let first = if number == 1 { first } else { &many };
    format!("{} {first} {rest}", count(number))
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_decimals_and_counts_have_commas() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(80 << 30), "80.00 GiB");
        assert_eq!(bytes(1 << 50), "1024.00 TiB");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
