// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of `tonnage check` in five formats: text, Markdown, JUnit, GitHub annotations and JSON.
//!
//! Names and messages come from files and jobs, so each format escapes what would mean something in it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use tonnage_analysis::check::{Answer as Held, Checked, Figure, SCHEMA_VERSION};
use tonnage_analysis::diff::Change;
use tonnage_text::bytes;

use crate::commands::check::CheckFormat;
use crate::commands::diff::{named, row, signed};
use crate::commands::recording::plain;
use crate::output::{BAD, GOOD};

/// How many changed lines are shown.
const LINES: usize = 5;

/// Budgets and how they were kept.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct All<'a> {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// In the order of the configuration.
    budgets: &'a [Checked],
}

pub(super) fn render(all: &[Checked], format: CheckFormat, config: &Path) -> Result<String> {
    Ok(match format {
        CheckFormat::Text => text(all),
        CheckFormat::Markdown => markdown(all),
        CheckFormat::Junit => junit(all),
        CheckFormat::Github => github(all, config),
        CheckFormat::Json => serde_json::to_string_pretty(&All {
            schema_version: SCHEMA_VERSION,
            budgets: all,
        })?,
    })
}

/// The answer in words.
fn describe_answer(held: Held) -> &'static str {
    match held {
        Held::Holds => "holds",
        Held::New => "holds; no baseline yet, save one with `tonnage check --update`",
        Held::Grew => "grew since it was accepted",
        Held::Over => "over its limit",
        Held::DoesNotFit => "does not fit",
        Held::Uncertain => "may not fit",
        Held::Failed => "failed",
    }
}

/// The reference of a figure, in words.
fn held_against(figure: &Figure) -> String {
    let mut parts = Vec::new();
    if let Some(accepted) = figure.accepted {
        let delta = figure.measured.cast_signed() - accepted.cast_signed();
        parts.push(format!(
            "{} to the accepted {}",
            signed(delta),
            bytes(accepted)
        ));
    }
    if let Some(limit) = figure.limit {
        let over = if figure.is_over() {
            "over the"
        } else {
            "within the"
        };
        parts.push(format!("{over} limit of {}", bytes(limit)));
    }
    parts.join(", ")
}

fn text(all: &[Checked]) -> String {
    let mut text = String::new();
    for checked in all {
        let style = if checked.answer.passes() { GOOD } else { BAD };
        let _ = writeln!(
            text,
            "{style}{}{style:#}  {} on {}",
            describe_answer(checked.answer),
            plain(&checked.name),
            checked.gpu
        );
        if let Some(trouble) = &checked.trouble {
            let _ = writeln!(text, "  {}", plain(trouble));
        }
        for figure in &checked.figures {
            let line = format!(
                "  {:<16} {:>11}  {}",
                figure.name,
                bytes(figure.measured),
                held_against(figure)
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if let Some((before, after)) = &checked.torch_changed {
            let _ = writeln!(
                text,
                "  torch was {} and is {}",
                plain(before),
                plain(after)
            );
        }
        if let Some(diff) = checked.diff.as_ref().filter(|diff| !diff.lines.is_empty()) {
            let _ = writeln!(text, "  what changed");
            for change in diff.lines.iter().take(LINES) {
                let _ = writeln!(text, "  {}", row(change));
            }
            if diff.lines.len() > LINES {
                let _ = writeln!(text, "    and {} more", diff.lines.len() - LINES);
            }
        }
        if checked.figures.iter().any(Figure::has_shrunk) && checked.answer == Held::Holds {
            let _ = writeln!(
                text,
                "  it needs less than before: keep that with `tonnage check --update`"
            );
        }
    }
    let held = all.iter().filter(|checked| checked.answer.passes()).count();
    let _ = match (held, all.len()) {
        (0, 1) => writeln!(text, "the budget does not hold"),
        (1, 1) => writeln!(text, "the budget holds"),
        (held, all) => writeln!(text, "{held} of {all} budgets hold"),
    };
    text
}

/// Text that is only text in Markdown.
fn escaped(text: &str) -> String {
    plain(text)
        .replace('|', "\\|")
        .replace('`', "'")
        .replace('<', "&lt;")
}

fn markdown(all: &[Checked]) -> String {
    let mut text = String::from(
        "### GPU memory\n\n| budget | figure | now | accepted | limit | |\n|---|---|--:|--:|--:|---|\n",
    );
    for checked in all {
        let name = format!("{} ({})", escaped(&checked.name), escaped(&checked.gpu));
        if let Some(trouble) = &checked.trouble {
            let _ = writeln!(
                text,
                "| {name} | | | | | ❌ {}: {} |",
                describe_answer(checked.answer),
                escaped(trouble)
            );
        }
        for figure in &checked.figures {
            let known = |bytes_: Option<u64>| bytes_.map_or_else(|| "–".to_owned(), bytes);
            let mark = if figure.is_over() {
                "❌ over"
            } else if figure.has_grown() {
                "❌ grew"
            } else if figure.has_shrunk() {
                "✅ less"
            } else {
                "✅"
            };
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {mark} |",
                figure.name,
                bytes(figure.measured),
                known(figure.accepted),
                known(figure.limit),
            );
        }
    }
    for checked in all {
        let Some(diff) = checked.diff.as_ref().filter(|diff| !diff.lines.is_empty()) else {
            continue;
        };
        let _ = writeln!(
            text,
            "\n<details><summary>what changed in {}</summary>\n\n| change | before | after | where |\n|--:|--:|--:|---|",
            escaped(&checked.name)
        );
        for change in diff.lines.iter().take(LINES * 4) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                signed(change.delta()),
                bytes(change.before),
                bytes(change.after),
                escaped(&named(change)),
            );
        }
        text.push_str("\n</details>\n");
    }
    text
}

fn xml(text: &str) -> String {
    let mut safe = String::new();
    for c in plain(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

/// The problem of a budget, in one line.
fn reason(checked: &Checked) -> String {
    if let Some(trouble) = &checked.trouble {
        return format!("{}: {trouble}", describe_answer(checked.answer));
    }
    let wrong = |figure: &&Figure| figure.is_over() || figure.has_grown();
    let figures = checked.figures.iter().filter(wrong).map(|figure| {
        let now = bytes(figure.measured);
        format!("{} {now}, {}", figure.name, held_against(figure))
    });
    let mut reason = figures.collect::<Vec<_>>().join("; ");
    if let Some(change) = grown_most(checked) {
        let _ = write!(
            reason,
            "; the largest part {} at {}",
            signed(change.delta()),
            named(change)
        );
    }
    reason
}

/// The line that needs most more than it did when the figures were accepted.
fn grown_most(checked: &Checked) -> Option<&Change> {
    let mut lines = checked.diff.as_ref()?.lines.iter();
    lines.find(|change| change.delta() > 0)
}

fn junit(all: &[Checked]) -> String {
    let count = |wanted: fn(Held) -> bool| all.iter().filter(|c| wanted(c.answer)).count();
    let errors = count(|held| held == Held::Failed);
    let failures = count(|held| !held.passes() && held != Held::Failed);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"tonnage check\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\">\n",
        all.len(),
    );
    for checked in all {
        let name = xml(&checked.name);
        let class = xml(&checked.gpu);
        if checked.answer.passes() {
            let _ = writeln!(text, "  <testcase classname=\"{class}\" name=\"{name}\"/>");
            continue;
        }
        let tag = if checked.answer == Held::Failed {
            "error"
        } else {
            "failure"
        };
        let _ = writeln!(
            text,
            "  <testcase classname=\"{class}\" name=\"{name}\">\n    <{tag} message=\"{}\"/>\n  </testcase>",
            xml(&reason(checked))
        );
    }
    text.push_str("</testsuite>\n");
    text
}

fn github(all: &[Checked], config: &Path) -> String {
    // GitHub's own escapes, for what would end a command or a property.
    let safe = |text: &str| {
        plain(text)
            .replace('%', "%25")
            .replace(',', "%2C")
            .replace(':', "%3A")
    };
    let mut text = String::new();
    for checked in all {
        let level = if checked.answer.passes() {
            "notice"
        } else {
            "error"
        };
        let message = if checked.answer.passes() {
            describe_answer(checked.answer).to_owned()
        } else {
            reason(checked)
        };
        let first = grown_most(checked).and_then(|grown| {
            let file = grown.what.split(' ').next()?;
            Some((file.to_owned(), grown.line?))
        });
        let (file, line) = first.unwrap_or_else(|| (config.display().to_string(), 1));
        let _ = writeln!(
            text,
            "::{level} file={},line={line},title={}::{}",
            safe(&file),
            safe(&format!("GPU memory: {}", checked.name)),
            plain(&message).replace('%', "%25"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use tonnage_analysis::check::{Budget, CommandLine, Limits, judge};
    use tonnage_analysis::diff::{Diff, Summary};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(name: &str) -> Budget {
        Budget::new(
            name,
            CommandLine::Line("train.py --steps 3".to_owned()),
            "a100-40gb",
        )
    }

    fn summary(peak: u64, line: u64) -> Summary {
        Summary {
            torch: "2.15.0".to_owned(),
            peak_allocated: peak,
            peak_reserved: peak + 2 * MIB,
            growth_per_step: Some(0),
            lines: [(
                "train.py forward in layers.* (activations)".to_owned(),
                vec![(line, peak)],
            )]
            .into(),
            ..Summary::default()
        }
    }

    /// One budget for each answer.
    fn every_answer() -> Vec<Checked> {
        let limits = Limits {
            peak: Some(100 * MIB),
            reserved: None,
            growth: Some(0),
        };
        let accepted = summary(64 * MIB, 30);
        let mut old = accepted.clone();
        old.torch = "2.14.0".to_owned();
        let judged = |name: &str, measured: &Summary, accepted: Option<&Summary>| {
            judge(&budget(name), limits, measured, accepted)
        };
        let mut all = vec![
            judged("holds", &accepted, Some(&accepted)),
            judged("new", &accepted, None),
            judged("less", &summary(60 * MIB, 30), Some(&accepted)),
            judged("grew", &summary(72 * MIB, 31), Some(&old)),
            judged("over | <limit>", &summary(104 * MIB, 31), Some(&accepted)),
        ];
        for (name, answer, trouble) in [
            (
                "too large",
                Held::DoesNotFit,
                "torch.OutOfMemoryError: CUDA out of memory",
            ),
            ("broken", Held::Failed, "exit 3"),
        ] {
            all.push(Checked {
                name: name.to_owned(),
                gpu: "a100-40gb".to_owned(),
                answer,
                figures: Vec::new(),
                diff: None,
                torch_changed: None,
                trouble: Some(trouble.to_owned()),
            });
        }
        all
    }

    #[test]
    fn every_answer_in_every_form() {
        let all = every_answer();
        for (name, format) in [
            ("text", CheckFormat::Text),
            ("markdown", CheckFormat::Markdown),
            ("junit", CheckFormat::Junit),
            ("github", CheckFormat::Github),
            ("json", CheckFormat::Json),
        ] {
            let said = render(&all, format, Path::new("tonnage.toml")).unwrap();
            let said = anstream::adapter::strip_str(&said).to_string();
            assert_snapshot!(format!("check_{name}"), said);
        }
        assert!(Diff::between(&Summary::default(), &Summary::default()).is_empty());
    }
}
