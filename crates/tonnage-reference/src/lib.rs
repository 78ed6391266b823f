// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference of tonnage, made from its code, so that it cannot go stale.
//!
//! Commands come from the arguments that are parsed, results and configuration from the structs that are printed and
//! read, findings from the pages that `tonnage explain CODE` shows. Nothing is repeated here. The result is committed,
//! because readers have no compiler; CI compares it.
#![forbid(unsafe_code)]

mod changes;
mod commands;
mod configuration;
mod findings;
mod results;
mod schema;
pub mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Files by their path in a folder.
pub type Files = BTreeMap<PathBuf, String>;

/// The folder of the schemas, in that of the pages.
const SCHEMAS: &str = "schemas";

/// The text below the heading of every page.
const MADE: &str =
    "<!-- Made from the code by `cargo run --bin tonnage-reference`; edits are lost. -->";

/// The pages and schemas of the reference.
pub fn pages() -> Result<Files> {
    let mut files = Files::new();
    files.insert("cli.md".into(), commands::page());
    files.insert("findings.md".into(), findings::page());
    files.insert("changes.md".into(), changes::page());
    let results: Vec<_> = tonnage_cli::schemas()
        .into_iter()
        .map(schema::Named::of_result)
        .collect();
    files.insert("json.md".into(), results::page(&results)?);
    let configuration = [configuration::config(), configuration::lock()];
    files.insert(
        "configuration.md".into(),
        configuration::page(&configuration)?,
    );
    for named in results.iter().chain(&configuration) {
        let text = serde_json::to_string_pretty(&named.schema)?;
        files.insert(Path::new(SCHEMAS).join(named.file()), text + "\n");
    }
    Ok(files)
}

/// Man pages and completions: for packages, not for the repository.
pub fn extras() -> Result<Files> {
    let mut files = commands::man_pages()?;
    files.extend(commands::completions()?);
    Ok(files)
}

/// Writes files below `folder`.
pub fn write(folder: &Path, files: &Files) -> Result<()> {
    for (name, text) in files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Where `folder` differs from the files, in words: files that are missing, other, or too many.
pub fn apart(folder: &Path, files: &Files) -> Result<Vec<String>> {
    let mut apart = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(there) if there == *text => {}
            Ok(there) => {
                let same = there.lines().zip(text.lines()).take_while(|(a, b)| a == b);
                let line = same.count() + 1;
                apart.push(format!("{}:{line}: differs", path.display()));
            }
            Err(_) => apart.push(format!("{}: is missing", path.display())),
        }
    }
    for part in ["", SCHEMAS] {
        let Ok(entries) = fs::read_dir(folder.join(part)) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            let name = Path::new(part).join(entry.file_name());
            if entry.file_type()?.is_file() && !files.contains_key(&name) {
                apart.push(format!(
                    "{}: is not made from the code",
                    entry.path().display()
                ));
            }
        }
    }
    Ok(apart)
}
