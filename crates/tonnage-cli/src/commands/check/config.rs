// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of `tonnage check`: budgets in `tonnage.toml` or `pyproject.toml`, accepted figures in
//! `tonnage.lock`. A mistake in one of them is an error that names the correct form.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tonnage_analysis::check::{Budget, CommandLine, Config, Limits, Lock, SCHEMA_VERSION, Size};

use crate::commands::recording::{Output, plain};
use crate::output::{hinted, parse_bytes, print_err};

pub(super) const CONFIG: &str = "tonnage.toml";
pub(super) const PYPROJECT: &str = "pyproject.toml";
pub(super) const LOCK: &str = "tonnage.lock";
const LOCK_HEADER: &str = "\
# The figures of each budget when it was last accepted. Written by `tonnage check --update`:\n\
# a figure that rises here is a change to review.\n";
/// A capacity below this is a mistake, such as a forgotten unit.
const MIN_CAPACITY: u64 = 1 << 20;

/// The configuration in this folder, or here.
pub(super) fn find_config(folder: Option<&Path>) -> Result<PathBuf> {
    for name in [CONFIG, PYPROJECT] {
        let path = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
        if path.is_file() {
            return Ok(path);
        }
    }
    Err(hinted(
        match folder {
            Some(folder) => format!(
                "there is no {CONFIG} and no {PYPROJECT} in {}",
                folder.display()
            ),
            None => format!("there is no {CONFIG} and no {PYPROJECT} here"),
        },
        "`tonnage check --init` writes one",
    ))
}

pub(super) fn read_config(path: &Path) -> Result<Config> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = |error: &toml::de::Error| {
        hinted(
            format!(
                "{} is wrong: {}",
                path.display(),
                error.to_string().trim_end()
            ),
            "a budget has name, run, gpu, and any of gpus, capacity, margin, peak_allocated, reserved, growth",
        )
    };
    let is_pyproject = path.file_name().is_some_and(|name| name == PYPROJECT);
    let config = if is_pyproject {
        let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let ours = table.get("tool").and_then(|tool| tool.get("tonnage"));
        let ours = ours.cloned().unwrap_or_else(|| toml::Table::new().into());
        ours.try_into::<Config>().map_err(|error| wrong(&error))?
    } else {
        toml::from_str(&text).map_err(|error| wrong(&error))?
    };
    if config.budgets.is_empty() {
        let section = if is_pyproject {
            "[[tool.tonnage.budget]]"
        } else {
            "[[budget]]"
        };
        return Err(hinted(
            format!("{} has no budget", path.display()),
            format!("add a {section} with name, run and gpu"),
        ));
    }
    for (index, budget) in config.budgets.iter().enumerate() {
        if config.budgets[..index]
            .iter()
            .any(|other| other.name == budget.name)
        {
            return Err(hinted(
                format!("{} has two budgets called {}", path.display(), budget.name),
                "figures are kept by name; give each its own",
            ));
        }
    }
    Ok(config)
}

pub(super) fn read_lock(path: &Path) -> Result<Lock> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Lock::default()),
        // Without the accepted figures, growth would pass.
        Err(error) => {
            return Err(hinted(
                format!("cannot read {}: {error}", path.display()),
                "restore it, or delete it and accept the figures with --update",
            ));
        }
    };
    let lock: Lock = toml::from_str(&text).map_err(|error| {
        hinted(
            format!(
                "{} is wrong: {}",
                path.display(),
                error.to_string().trim_end()
            ),
            "restore it, or delete it and accept the figures with --update",
        )
    })?;
    if lock.version > SCHEMA_VERSION {
        return Err(hinted(
            format!("{} was written by a later tonnage", path.display()),
            "update tonnage",
        ));
    }
    Ok(lock)
}

pub(super) fn write_lock(path: &Path, lock: &Lock) -> Result<()> {
    let text = format!("{LOCK_HEADER}{}", toml::to_string(lock)?);
    Output::create(path, true)?.write(text.as_bytes())
}

pub(super) fn limits(budget: &Budget) -> Result<Limits> {
    let read = |key, size: &Option<Size>| read_size(budget, key, size.as_ref());
    let peak = match (&budget.peak_allocated, &budget.peak) {
        (Some(_), Some(_)) => {
            return Err(hinted(
                format!("budget {} has peak and peak_allocated", budget.name),
                "remove peak, the older name",
            ));
        }
        (None, Some(_)) => {
            print_err(&format!(
                "note: `peak` of budget {} is the older name of `peak_allocated`",
                plain(&budget.name)
            ));
            read("peak", &budget.peak)?
        }
        (limit, None) => read("peak_allocated", limit)?,
    };
    Ok(Limits {
        peak,
        reserved: read("reserved", &budget.reserved)?,
        growth: read("growth", &budget.growth)?,
    })
}

/// Bytes that must stay free on the GPU of a budget.
pub(super) fn margin(budget: &Budget) -> Result<Option<u64>> {
    read_size(budget, "margin", budget.margin.as_ref())
}

fn read_size(budget: &Budget, key: &str, size: Option<&Size>) -> Result<Option<u64>> {
    let Some(size) = size else {
        return Ok(None);
    };
    bytes_of(size).map(Some).map_err(|why| {
        hinted(
            format!("{key} of budget {}: {why}", budget.name),
            "e.g. \"36 GiB\"",
        )
    })
}

fn bytes_of(size: &Size) -> Result<u64, String> {
    match size {
        Size::Bytes(bytes) => Ok(*bytes),
        // A growth of nothing is the commonest limit of all.
        Size::Text(text) if matches!(text.trim(), "0" | "0 B" | "0B") => Ok(0),
        Size::Text(text) => parse_bytes(text),
    }
}

/// The words of a budget's command.
pub(super) fn words(budget: &Budget) -> Result<Vec<String>> {
    let words = match &budget.run {
        CommandLine::Words(words) => words.clone(),
        CommandLine::Line(line) => shlex::split(line).unwrap_or_default(),
    };
    if words.is_empty() {
        return Err(hinted(
            format!("run of budget {} is not a command", budget.name),
            "e.g. run = \"python train.py --steps 3\"",
        ));
    }
    Ok(words)
}

pub(super) fn capacity(budget: &Budget) -> Result<Option<u64>> {
    let Some(size) = &budget.capacity else {
        return Ok(None);
    };
    let bytes = bytes_of(size).and_then(|bytes| match bytes {
        MIN_CAPACITY.. => Ok(bytes),
        _ => Err("not a possible size of a GPU's memory".to_owned()),
    });
    let bytes = bytes.map_err(|why| {
        hinted(
            format!("capacity of budget {}: {why}", budget.name),
            "e.g. \"36 GiB\"",
        )
    })?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget() -> Budget {
        Budget::new(
            "a",
            CommandLine::Line("train.py --steps 3".to_owned()),
            "a100-40gb",
        )
    }

    #[test]
    fn a_line_is_split_into_words_and_quotes_hold() {
        assert_eq!(words(&budget()).unwrap(), ["train.py", "--steps", "3"]);
        let quoted = Budget {
            run: CommandLine::Line("torchrun 'my job.py'".to_owned()),
            ..budget()
        };
        assert_eq!(words(&quoted).unwrap(), ["torchrun", "my job.py"]);
    }

    #[test]
    fn figures_that_cannot_be_read_are_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        assert_eq!(read_lock(&path).unwrap(), Lock::default());
        fs::write(&path, b"version = 1\n# \xff\n").unwrap();
        assert!(read_lock(&path).is_err());
    }

    #[test]
    fn nothing_is_a_limit_too() {
        assert_eq!(bytes_of(&Size::Text("0 B".to_owned())), Ok(0));
        assert_eq!(bytes_of(&Size::Text("0.5 GiB".to_owned())), Ok(512 * MIB));
        assert_eq!(bytes_of(&Size::Bytes(7)), Ok(7));
        let decimal = bytes_of(&Size::Text("36 GB".to_owned()));
        assert_eq!(decimal, Ok(36_000_000_000));
        assert!(bytes_of(&Size::Text("36 GX".to_owned())).is_err());
    }
}
