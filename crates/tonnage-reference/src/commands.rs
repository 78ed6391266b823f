// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands: their page, their man pages, their completions.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use clap::builder::StyledStr;
use clap::{Arg, Command};
use clap_complete::Shell;
use tonnage_cli::Answer;

use crate::Files;

/// Every command, one heading each.
pub(crate) fn page() -> String {
    let mut command = tonnage_cli::command();
    command.build();
    let mut text = format!("# Commands\n\n{}\n\n", crate::MADE);
    if let Some(about) = command.get_about() {
        let _ = writeln!(text, "{about}\n");
    }
    for subcommand in subcommands(&command) {
        let name = format!("tonnage {}", subcommand.get_name());
        let about = subcommand.get_about().map(plain).unwrap_or_default();
        let _ = writeln!(
            text,
            "- [`{name}`](#{}): {about}",
            crate::schema::anchor(&name)
        );
    }
    text.push_str("\n## Options of every command\n\n");
    for option in command.get_arguments().filter(|arg| is_shared(arg)) {
        argument(&mut text, option);
    }
    text.push_str("\n## Exit codes\n\n| code | means |\n|---|---|\n");
    for (answer, meaning) in [
        (Answer::Yes, "yes, or done"),
        (
            Answer::No,
            "the answer is no: it does not fit, it is over the budget",
        ),
        (
            Answer::Failed,
            "it could not be found out: bad use, or a failure",
        ),
    ] {
        let _ = writeln!(text, "| {} | {meaning} |", answer as u8);
    }
    for subcommand in subcommands(&command) {
        one(&mut text, "tonnage", subcommand);
    }
    text
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    let shown =
        |subcommand: &&Command| !subcommand.is_hide_set() && subcommand.get_name() != "help";
    command.get_subcommands().filter(shown)
}

/// A command of `parent`, and below it those that it has itself.
fn one(text: &mut String, parent: &str, command: &Command) {
    let name = format!("{parent} {}", command.get_name());
    let level = if parent.contains(' ') { "###" } else { "##" };
    let _ = writeln!(text, "\n{level} {name}\n");
    let about = command.get_about().map(plain).unwrap_or_default();
    let _ = writeln!(text, "{about}.\n");
    let long = command.get_long_about().map(plain).unwrap_or_default();
    let rest = long.strip_prefix(&about).unwrap_or(&long).trim();
    for paragraph in rest.split("\n\n").filter(|part| !part.is_empty()) {
        let paragraph = paragraph.replacen("Exit code:", "**Exit code:**", 1);
        let _ = writeln!(text, "{}\n", paragraph.trim());
    }
    let usage = plain(&command.clone().render_usage());
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let _ = writeln!(text, "```text\n{}\n```\n", usage.trim());
    let own = |arg: &&Arg| !is_shared(arg) && !arg.is_hide_set() && arg.get_id() != "help";
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(own)
        .partition(|arg| arg.is_positional());
    // Sections in the order of the help: options without a heading come first.
    let mut sections = vec![("Arguments", positional), ("Options", Vec::new())];
    for option in options {
        let title = option.get_help_heading().unwrap_or("Options");
        match sections.iter_mut().find(|(known, _)| *known == title) {
            Some((_, list)) => list.push(option),
            None => sections.push((title, vec![option])),
        }
    }
    for (title, list) in sections {
        if list.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{title}:\n");
        for arg in list {
            argument(text, arg);
        }
        text.push('\n');
    }
    if let Some(examples) = command.get_after_help().map(plain) {
        let examples = examples.strip_prefix("Examples:").unwrap_or(&examples);
        let lines = examples
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let lines: Vec<&str> = lines.collect();
        let _ = writeln!(text, "Examples:\n\n```sh\n{}\n```", lines.join("\n"));
    }
    for subcommand in subcommands(command) {
        one(text, &name, subcommand);
    }
}

/// Whether an option is documented once for all commands.
fn is_shared(arg: &Arg) -> bool {
    arg.is_global_set()
}

fn plain(styled: &StyledStr) -> String {
    styled.to_string().trim_end().to_owned()
}

/// One argument as an item of a list.
fn argument(text: &mut String, arg: &Arg) {
    let mut names = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    let mut typed = names.join(", ");
    if arg.get_action().takes_values() {
        let values = arg.get_value_names().unwrap_or_default();
        let values: Vec<&str> = values.iter().map(clap::builder::Str::as_str).collect();
        if !typed.is_empty() {
            typed.push(' ');
        }
        typed += &values.join(" ");
    }
    let help = arg.get_long_help().or(arg.get_help()).map(plain);
    let mut help = help.unwrap_or_default();
    if !help.ends_with('.') {
        help.push('.');
    }
    if arg.is_positional() && !arg.is_required_set() {
        help += " May be left out.";
    }
    if !arg.is_positional() && arg.is_required_set() {
        help += " Must be given.";
    }
    let defaults: Vec<_> = arg.get_default_values().iter().collect();
    if let [default] = defaults.as_slice()
        && arg.get_action().takes_values()
    {
        let _ = write!(help, " Default: `{}`.", default.to_string_lossy());
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(help, " Environment: `{}`.", variable.to_string_lossy());
    }
    let _ = writeln!(text, "- `{typed}`: {help}");
    if !arg.get_action().takes_values() {
        return;
    }
    for value in arg.get_possible_values() {
        if value.is_hide_set() {
            continue;
        }
        let _ = match value.get_help() {
            Some(help) => writeln!(text, "  - `{}`: {}.", value.get_name(), plain(help)),
            None => writeln!(text, "  - `{}`", value.get_name()),
        };
    }
}

/// `man/tonnage.1`, `man/tonnage-run.1` …
pub(crate) fn man_pages() -> Result<Files> {
    let mut command = tonnage_cli::command();
    command.build();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut files = Files::new();
    let mut put = |name: String, command: Command| -> Result<()> {
        let mut page = Vec::new();
        let man = clap_mangen::Man::new(command).source(format!("tonnage {version}"));
        man.render(&mut page)?;
        let page = String::from_utf8(page).context("a man page is text")?;
        files.insert(format!("man/{name}.1").into(), page);
        Ok(())
    };
    for subcommand in subcommands(&command) {
        let name = format!("tonnage-{}", subcommand.get_name());
        for nested in subcommands(subcommand) {
            let name = format!("{name}-{}", nested.get_name());
            put(name.clone(), nested.clone().display_name(name))?;
        }
        // `man tonnage-run` shows `tonnage run`, as it is typed.
        put(name.clone(), subcommand.clone().display_name(name))?;
    }
    put("tonnage".to_owned(), command)?;
    Ok(files)
}

/// `completions/bash/tonnage`, `completions/zsh/_tonnage`, `completions/fish/tonnage.fish`.
pub(crate) fn completions() -> Result<Files> {
    let mut files = Files::new();
    for (shell, name) in [
        (Shell::Bash, "bash/tonnage"),
        (Shell::Zsh, "zsh/_tonnage"),
        (Shell::Fish, "fish/tonnage.fish"),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut tonnage_cli::command(), "tonnage", &mut script);
        let script = String::from_utf8(script).context("a script is text")?;
        files.insert(format!("completions/{name}").into(), script);
    }
    Ok(files)
}
