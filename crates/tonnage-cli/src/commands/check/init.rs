// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage check --init`: a first configuration, with what can be added to it as comments.
//!
//! It has no limits: a first check passes and prints the figures, from which limits are chosen. A figure that
//! `--update` accepts is a limit already.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tonnage_gpus::Catalogue;

use super::config::{CONFIG, PYPROJECT};
use crate::commands::check::CheckOptions;
use crate::commands::gpus;
use crate::commands::recording::Output;
use crate::output::{Answer, HINT, Reply, hinted, print_err};

const DEFAULT_COMMAND: &str = "python train.py";

pub(super) fn run(options: &CheckOptions) -> Result<Reply> {
    let path = options.config.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(CONFIG));
    if path.file_name().is_some_and(|name| name == PYPROJECT) {
        return Err(hinted(
            format!("--init does not write {PYPROJECT}, which has other contents"),
            format!("leave out --config: {CONFIG} is read before {PYPROJECT}"),
        ));
    }
    let catalogue = Catalogue::embedded();
    let here = std::env::current_dir().unwrap_or_default();
    let choice = gpus::choose(options.gpu.as_deref(), &here)?;
    let gpu = choice.find(&catalogue)?;
    let command = match options.names.as_slice() {
        [] => None,
        words => Some(words),
    };
    let text = content(command, &gpu.id)?;
    let output = Output::create(&path, options.force)?;
    let written = output.writer().and_then(|mut writer| {
        writer.write_all(text.as_bytes())?;
        Ok(writer.flush()?)
    });
    written.with_context(|| format!("cannot write {}", path.display()))?;
    output.finish()?;
    print_err(&format!("wrote {}", path.display()));
    if let Some(gpu) = choice.mention() {
        print_err(&format!("its GPU is {gpu}"));
    }
    if command.is_none() {
        print_err("edit its line `run = …`: the command to check");
    }
    let config = match &options.config {
        Some(path) => format!(" --config {}", path.display()),
        None => String::new(),
    };
    print_err(&format!(
        "{HINT}next{HINT:#}: tonnage check{config} --update"
    ));
    Ok(Reply::silent(Answer::Yes))
}

/// The file for a command on a GPU.
fn content(command: Option<&[String]>, gpu: &str) -> Result<String> {
    let run = match command {
        None => DEFAULT_COMMAND.to_owned(),
        Some(words) => shlex::try_join(words.iter().map(String::as_str))
            .context("the command cannot be written in one line")?,
    };
    let name = command.and_then(name).unwrap_or_else(|| "train".to_owned());
    let quoted = |text: String| toml::Value::String(text).to_string();
    Ok(format!(
        "\
# Budgets of GPU memory, for `tonnage check`. Each is a dry run: no GPU is needed.
# `tonnage check --update` accepts the figures as they are and keeps them in tonnage.lock; commit both files.

[[budget]]
name = {}
# The command to run. Three steps suffice; with fewer, growth is not known.
run = {}
# The GPU that it must fit on; `tonnage gpus` lists them.
gpu = {}
# gpus = 2              # how many of them
# capacity = \"24 GiB\"   # another size than the catalogue's
#
# Limits. Without one, a figure must not rise above the accepted one.
# peak_allocated = \"20 GiB\"  # the most that is allocated
# reserved = \"22 GiB\"   # the most that PyTorch reserves
# growth = \"0 B\"        # what each step leaves allocated
",
        quoted(name),
        quoted(run),
        quoted(gpu.to_owned())
    ))
}

/// A name for a command: that of its script, else of its program.
fn name(words: &[String]) -> Option<String> {
    let is_script = |word: &&String| {
        Path::new(word)
            .extension()
            .is_some_and(|extension| extension == "py")
    };
    let named = words.iter().find(is_script).or(words.first())?;
    let stem = Path::new(named).file_stem()?.to_str()?;
    Some(stem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::config::{read_config, words};
    use super::*;

    fn written(command: Option<&[&str]>) -> (String, Vec<String>) {
        let owned: Option<Vec<String>> =
            command.map(|words| words.iter().map(|&word| word.to_owned()).collect());
        let text = content(owned.as_deref(), "h100-80gb").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONFIG);
        std::fs::write(&path, text).unwrap();
        let config = read_config(&path).unwrap();
        assert_eq!(config.budgets.len(), 1);
        let budget = &config.budgets[0];
        assert_eq!(budget.gpu, "h100-80gb");
        (budget.name.clone(), words(budget).unwrap())
    }

    #[test]
    fn what_is_written_is_read_as_it_was_meant() {
        assert_eq!(
            written(None),
            ("train".to_owned(), vec!["python".into(), "train.py".into()])
        );
        let hostile = ["torchrun", "my \"job\".py", "--x='a b'", "\\n", "é"];
        let (name, words) = written(Some(&hostile));
        assert_eq!(name, "my \"job\"");
        assert_eq!(words, hostile);
    }

    #[test]
    fn every_commented_line_is_valid_when_it_is_used() {
        let text = content(None, "h100-80gb").unwrap();
        let used: String = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.contains(" = ") => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONFIG);
        std::fs::write(&path, used).unwrap();
        let budget = &read_config(&path).unwrap().budgets[0];
        let limits = super::super::config::limits(budget).unwrap();
        assert_eq!(limits.peak, Some(20 << 30));
        assert_eq!(limits.growth, Some(0));
        assert_eq!(budget.gpus, 2);
    }
}
