// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the results: what `--json` prints, command by command.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use crate::schema::{Named, anchor};

/// Every result with its fields.
pub(crate) fn page(results: &[Named]) -> Result<String> {
    let mut text = format!(
        "# JSON\n\n{}\n\nWhat commands print with `--json`. Sizes are in bytes. Each result has a JSON Schema in\n\
         [`{2}`]({2}). A later release may add fields; `schema_version` rises when one changes its meaning or goes.\n\n\
         | call | version | schema |\n|---|---|---|\n{1}",
        crate::MADE,
        rows(results),
        crate::SCHEMAS,
    );
    for result in results {
        let _ = writeln!(text, "\n## {}\n\n`{}`\n", result.name, result.of);
        result.tables(&mut text)?;
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    Ok(text)
}

fn rows(results: &[Named]) -> String {
    let mut text = String::new();
    for result in results {
        let version = &result.schema["properties"]["schema_version"]["const"];
        let version = match version {
            Value::Null => "none".to_owned(),
            version => version.to_string(),
        };
        let _ = writeln!(
            text,
            "| [`{}`](#{}) | {version} | [{2}]({3}/{2}) |",
            result.of,
            anchor(result.name),
            result.file(),
            crate::SCHEMAS,
        );
    }
    text
}
