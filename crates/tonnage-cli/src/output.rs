// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is printed: answers, errors, sizes.

use std::borrow::Cow;
use std::cell::Cell;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
#[cfg(feature = "jobs")]
use tonnage_run::RunError;
pub(crate) use tonnage_text::{bytes, count, plural, ranks_named};

/// The answer of a command; the number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// Yes, or done.
    Yes = 0,
    /// The answer is negative: it does not fit, it is over the budget.
    No = 1,
    /// It could not be found out.
    Failed = 2,
}

/// In which forms a reply is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
    Both,
}

/// The output of a command.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// For a person.
    pub text: Option<String>,
    /// For a program.
    pub json: Option<String>,
    /// The exit code of a job that was run as it is, which takes the place of the answer's.
    pub exit_code: Option<u8>,
}

impl Reply {
    /// One result in the forms that are wanted.
    pub(crate) fn new<T: Serialize>(
        form: Form,
        answer: Answer,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> serde_json::Result<Self> {
        let json = match form {
            Form::Text => None,
            Form::Json | Form::Both => Some(serde_json::to_string_pretty(result)?),
        };
        let text = (form != Form::Json).then(|| text(result).trim_end().to_owned());
        Ok(Self {
            answer,
            text,
            json,
            exit_code: None,
        })
    }

    /// A reply of which only the answer matters.
    pub(crate) fn silent(answer: Answer) -> Self {
        Self {
            answer,
            text: None,
            json: None,
            exit_code: None,
        }
    }
}

/// Why a command failed, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The failure, with its causes.
    pub message: String,
    /// The next step.
    pub hint: Option<String>,
}

impl Failure {
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        Self {
            message: format!("{error:#}"),
            hint: hint(error),
        }
    }

    pub(crate) fn of_usage(error: &clap::Error) -> Self {
        let message = error.to_string();
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        let message = message.split("\n\nUsage:").next().unwrap_or(message);
        Self {
            message: message.trim().to_owned(),
            hint: None,
        }
    }
}

/// A text without what colours it.
pub(crate) fn without_colour(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
pub(crate) const DIM: Style = Style::new().dimmed();

/// Writes a line to stdout; a closed pipe is not a failure.
pub(crate) fn print_out(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stdout(), "{text}");
}

thread_local! {
    /// Whether this thread works for a program that wants the reply and nothing on its stderr.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Does some work without a word to stderr.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let before = QUIET.replace(true);
    let result = work();
    QUIET.set(before);
    result
}

/// Whether this thread is to write nothing to stderr.
pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

/// Writes a line to stderr.
pub(crate) fn print_err(text: &str) {
    use std::io::Write as _;
    if QUIET.get() {
        return;
    }
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
    print_err(&format!("{BAD}error{BAD:#}: {error}"));
    for cause in error.chain().skip(1) {
        print_err(&format!("{DIM}cause{DIM:#}: {cause}"));
    }
    if let Some(hint) = hint(error) {
        print_err(&format!("\n{HINT}hint{HINT:#}: {hint}"));
    }
}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.hint.clone());
        }
        #[cfg(feature = "jobs")]
        return match cause.downcast_ref::<RunError>()? {
            RunError::RealGpu { .. } => {
                Some("run on a machine without one, or use --allow-real-gpu".to_owned())
            }
            error => error.hint(),
        };
        #[cfg(not(feature = "jobs"))]
        None
    })
}

/// A sentence in lines of at most this many letters, not counting what colours them.
pub(crate) fn wrapped(sentence: &str, room: usize) -> Vec<String> {
    let lines = textwrap::wrap(sentence, wrapping(room));
    lines.into_iter().map(Cow::into_owned).collect()
}

/// How lines are broken: at spaces alone, so that paths and settings can be copied.
pub(crate) fn wrapping<'a>(width: usize) -> textwrap::Options<'a> {
    textwrap::Options::new(width)
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
}

/// Reads a size such as `24GiB`, `512 MiB`, `40G` (binary too), `24GB` (decimal) or plain bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.replace('_', "");
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(format!(
                "unknown unit `{}`; use KiB, MiB, GiB or TiB",
                unit.trim()
            ));
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        let bytes = whole.checked_mul(factor);
        return bytes
            .filter(|&b| b > 0)
            .ok_or_else(|| "not a possible size of a GPU's memory".to_owned());
    }
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1e6 => Ok((value * factor as f64).round() as u64),
        _ => Err("use a size such as 24GiB".to_owned()),
    }
}

/// Reads the memory of a GPU. A small number without a unit is meant to have one.
pub(crate) fn parse_capacity(text: &str) -> Result<u64, String> {
    const MIN_CAPACITY: u64 = 1 << 20;
    let bytes = parse_bytes(text)?;
    if bytes < MIN_CAPACITY && text.trim().bytes().all(|c| c.is_ascii_digit() || c == b'.') {
        let number = text.trim();
        return Err(format!(
            "{number} without a unit is {number} bytes; use {number}GiB"
        ));
    }
    Ok(bytes)
}

/// Reads the memory that must stay free, which may be none.
pub(crate) fn parse_margin(text: &str) -> Result<u64, String> {
    match text
        .trim()
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
    {
        "0" => Ok(0),
        _ => parse_bytes(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_may_be_none() {
        assert_eq!(parse_margin("0"), Ok(0));
        assert_eq!(parse_margin("0MiB"), Ok(0));
        assert_eq!(parse_margin("2GiB"), Ok(2 << 30));
        assert!(parse_margin("-1").is_err() && parse_margin("").is_err());
    }

    #[test]
    fn sizes_are_what_their_unit_says() {
        assert_eq!(parse_bytes("24GiB"), Ok(24 << 30));
        assert_eq!(parse_bytes("24 g"), Ok(24 << 30));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("1_000"), Ok(1000));
        // Decimal, as the unit implies.
        assert_eq!(parse_bytes("24GB"), Ok(24_000_000_000));
        assert_eq!(parse_bytes("1.5 kb"), Ok(1500));
        assert!(parse_bytes("24GX").unwrap_err().contains("GiB"));
        for bad in ["", "GiB", "0", "-1GiB", "1e99GiB", "99999999999TiB", "nan"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_capacity_of_a_few_bytes_is_a_forgotten_unit() {
        let refused = parse_capacity("24").unwrap_err();
        assert_eq!(refused, "24 without a unit is 24 bytes; use 24GiB");
        assert_eq!(parse_capacity("24GB"), Ok(24_000_000_000));
        assert_eq!(parse_capacity("25757220864"), Ok(25_757_220_864));
        assert_eq!(parse_capacity("24B"), Ok(24));
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
