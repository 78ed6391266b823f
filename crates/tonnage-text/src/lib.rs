// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes, counts and names of files in words, the same in a terminal, in messages of an allocator and on a page.
#![forbid(unsafe_code)]

use std::path::Path;

/// Bytes in binary units, two decimals from KiB on.
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // Two decimals would show 1023.995 as 1024.00.
    while value >= 1023.995 && unit + 1 < units.len() {
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
/// use tonnage_text::plural;
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

/// `rank 3`, or `ranks 0–2, 5 and 7`.
pub fn ranks_named(ranks: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    let name = |&(first, last): &(u32, u32)| match last - first {
        0 => vec![first.to_string()],
        1 => vec![first.to_string(), last.to_string()],
        _ => vec![format!("{first}–{last}")],
    };
    let names: Vec<String> = ranges.iter().flat_map(name).collect();
    match names.split_last() {
        Some((last, [])) if ranks.len() == 1 => format!("rank {last}"),
        Some((last, [])) => format!("ranks {last}"),
        Some((last, rest)) => format!("ranks {} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// A file without what only its machine knows: inside packages from the package on, else as it is.
pub fn shortened(file: &str) -> &str {
    for part in ["/site-packages/", "/dist-packages/"] {
        if let Some(at) = file.rfind(part) {
            return &file[at + part.len()..];
        }
    }
    file
}

/// A file as far as it helps: inside packages from the package on, below a folder from there on.
pub fn named_from<'a>(file: &'a str, folder: &Path) -> &'a str {
    let named = shortened(file);
    let below = Path::new(named).strip_prefix(folder).ok();
    below.and_then(Path::to_str).unwrap_or(named)
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
        // A size that rounds to 1024 of a unit is one of the next.
        assert_eq!(bytes(1_048_575), "1.00 MiB");
        assert_eq!(bytes(1_048_570), "1023.99 KiB");
        assert_eq!(bytes((1 << 30) - 1), "1.00 GiB");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
    }

    #[test]
    fn ranks_are_named_by_ranges() {
        assert_eq!(ranks_named(&[7]), "rank 7");
        assert_eq!(ranks_named(&[0, 1]), "ranks 0 and 1");
        assert_eq!(ranks_named(&[0, 7]), "ranks 0 and 7");
        assert_eq!(ranks_named(&[0, 1, 2, 3, 5, 8, 9]), "ranks 0–3, 5, 8 and 9");
        assert_eq!(ranks_named(&[0, 1, 2]), "ranks 0–2");
    }
}
