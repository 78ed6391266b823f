// SPDX-License-Identifier: MIT OR Apache-2.0
//! How things are said: answers, errors, sizes.

use anstyle::{AnsiColor, Style};
pub(crate) use tonnage_core::words::{bytes, count};

/// What a command answers; the number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Answer {
    Yes = 0,
    No = 1,
    Failed = 2,
}

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
pub(crate) const DIM: Style = Style::new().dimmed();

/// Writes a line to stdout; a closed pipe is no failure.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// Writes a line to stderr.
pub(crate) fn tell(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// An error that knows what to do next.
#[derive(Debug)]
pub(crate) struct Hinted {
    message: String,
    hint: String,
}

impl std::fmt::Display for Hinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error with its next step.
pub(crate) fn hinted(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Hinted {
        message: message.into(),
        hint: hint.into(),
    })
}

/// Says what went wrong, why, and what to do.
pub(crate) fn error(error: &anyhow::Error) {
    tell(&format!("{BAD}error{BAD:#}: {error}"));
    for cause in error.chain().skip(1) {
        tell(&format!("{DIM}cause{DIM:#}: {cause}"));
    }
    let hint = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Hinted>());
    if let Some(Hinted { hint, .. }) = hint {
        tell(&format!("\n{HINT}hint{HINT:#}: {hint}"));
    }
}

/// Reads a size such as `24GiB`, `512 MiB`, `40G` (binary too) or plain bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.replace('_', "");
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            return Err("say KiB, MiB, GiB or TiB: sizes are binary".to_owned());
        }
        _ => {
            return Err(format!(
                "unknown unit `{}`; say KiB, MiB, GiB or TiB",
                unit.trim()
            ));
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        let bytes = whole.checked_mul(1 << shift);
        return bytes
            .filter(|&b| b > 0)
            .ok_or_else(|| "not a size a GPU can have".to_owned());
    }
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1e6 => {
            Ok((value * (1_u64 << shift) as f64).round() as u64)
        }
        _ => Err("say a size such as 24GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_say_so() {
        assert_eq!(parse_bytes("24GiB"), Ok(24 << 30));
        assert_eq!(parse_bytes("24 g"), Ok(24 << 30));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("1_000"), Ok(1000));
        assert!(parse_bytes("24GB").unwrap_err().contains("GiB"));
        for bad in ["", "GiB", "0", "-1GiB", "1e99GiB", "99999999999TiB", "nan"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(40 << 30), "40.00 GiB");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
    }
}
