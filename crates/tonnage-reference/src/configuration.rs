// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the configuration: what is read from `tonnage.toml`, `pyproject.toml` and `tonnage.lock`.

use std::fmt::Write as _;

use anyhow::Result;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use tonnage_analysis::check::{Config, Lock};

use crate::schema::Named;

/// The example that our own CI holds to its budget.
const EXAMPLE: &str = include_str!("../../../examples/budget/tonnage.toml");

/// Files written by people.
pub(crate) fn config() -> Named {
    Named::new("configuration", "tonnage.toml", read::<Config>())
}

/// Files written by `tonnage check --update`.
pub(crate) fn lock() -> Named {
    Named::new("lock", "tonnage.lock", read::<Lock>())
}

fn read<T: JsonSchema>() -> schemars::Schema {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    settings.into_generator().into_root_schema_for::<T>()
}

/// Both files, key by key.
pub(crate) fn page(files: &[Named]) -> Result<String> {
    let mut text = format!(
        "# Configuration\n\n{}\n\n\
         `tonnage check` reads `tonnage.toml`, else `pyproject.toml`, in the current folder; `--config` names another file.\n\
         In `pyproject.toml` everything lies below `tool.tonnage`: `[[budget]]` is `[[tool.tonnage.budget]]` there. A key\n\
         that is not known is an error. No other command is configured by a file.\n\n\
         ```toml\n{EXAMPLE}```\n",
        crate::MADE
    );
    for file in files {
        let _ = writeln!(
            text,
            "\n## {}\n\nJSON Schema: [{2}]({1}/{2})\n",
            file.of,
            crate::SCHEMAS,
            file.file(),
        );
        file.tables(&mut text)?;
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    // An optional field may be null in a schema; in TOML it cannot.
    Ok(text.replace(" or null |", " |"))
}
