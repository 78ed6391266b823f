// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: its commands, in groups. The options of a command are in the command's own file, and `options`
//! has the options that several commands share.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

#[cfg(feature = "jobs")]
use crate::commands::attach::{AttachOptions, TopOptions};
#[cfg(feature = "jobs")]
use crate::commands::check::{CheckFormat, CheckOptions};
use crate::commands::completions::CompletionsOptions;
use crate::commands::convert::ConvertOptions;
use crate::commands::diff::DiffOptions;
#[cfg(feature = "jobs")]
use crate::commands::doctor::DoctorOptions;
use crate::commands::explain::ExplainOptions;
use crate::commands::export::ExportOptions;
#[cfg(feature = "jobs")]
use crate::commands::fit::FitOptions;
#[cfg(feature = "jobs")]
use crate::commands::fleet::FleetOptions;
#[cfg(feature = "jobs")]
use crate::commands::forecast::ForecastOptions;
use crate::commands::gpus::GpusOptions;
use crate::commands::import::ImportOptions;
use crate::commands::info::InfoOptions;
#[cfg(feature = "jobs")]
use crate::commands::mcp::McpOptions;
#[cfg(feature = "jobs")]
use crate::commands::model::ModelOptions;
use crate::commands::plan::PlanOptions;
#[cfg(feature = "jobs")]
use crate::commands::record::RecordOptions;
use crate::commands::replay::ReplayOptions;
use crate::commands::report::ReportOptions;
#[cfg(feature = "jobs")]
use crate::commands::run::RunOptions;
#[cfg(feature = "jobs")]
use crate::commands::serve_fit::ServeFitOptions;
use crate::commands::tune::TuneOptions;
#[cfg(feature = "jobs")]
use crate::commands::verify::VerifyOptions;

/// The effects of a job on GPU memory, without a GPU.
#[derive(Debug, Parser)]
#[command(name = "tonnage", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    pub(crate) fn apply(self) {
        match self {
            Self::Auto => {}
            Self::Always => anstream::ColorChoice::Always.write_global(),
            Self::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(feature = "jobs")]
    Run(RunOptions),
    Explain(ExplainOptions),
    #[cfg(feature = "jobs")]
    Fit(FitOptions),
    Report(ReportOptions),
    #[cfg(feature = "jobs")]
    Model(ModelOptions),
    Diff(DiffOptions),
    #[cfg(feature = "jobs")]
    Check(CheckOptions),
    Replay(ReplayOptions),
    Plan(PlanOptions),
    #[cfg(feature = "jobs")]
    Record(RecordOptions),
    #[cfg(feature = "jobs")]
    Verify(VerifyOptions),
    #[cfg(feature = "jobs")]
    #[command(hide = true)]
    Attach(AttachOptions),
    #[cfg(feature = "jobs")]
    #[command(hide = true)]
    Top(TopOptions),
    #[cfg(feature = "jobs")]
    Forecast(ForecastOptions),
    #[cfg(feature = "jobs")]
    Fleet(FleetOptions),
    Info(InfoOptions),
    Convert(ConvertOptions),
    Gpus(GpusOptions),
    #[cfg(feature = "jobs")]
    Doctor(DoctorOptions),
    #[cfg(feature = "jobs")]
    Mcp(McpOptions),
    Completions(CompletionsOptions),
    #[command(hide = true)]
    Tune(TuneOptions),
    #[cfg(feature = "jobs")]
    #[command(hide = true)]
    ServeFit(ServeFitOptions),
    #[command(hide = true)]
    Import(ImportOptions),
    #[command(hide = true)]
    Export(ExportOptions),
}

/// Replaces `--open yes` and `--open no` of `report`: the option had a value once.
pub(crate) fn without_old_values(words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|command| command != "report") {
        return words;
    }
    let mut kept: Vec<OsString> = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let value = match word.to_str() {
            Some("--open") => words.next_if(|value| value == "yes" || value == "no"),
            Some("--open=yes") => Some("yes".into()),
            Some("--open=no") => Some("no".into()),
            _ => {
                kept.push(word);
                continue;
            }
        };
        if value.is_none_or(|value| value == "yes") {
            kept.push("--open".into());
        }
    }
    kept
}

/// The commands as the help groups them. `plan` is missing: it is for compilers, and its pages name it.
pub(crate) const GROUPS: [(&str, &[&str]); 6] = [
    ("Everyday", &["run", "explain", "fit", "report"]),
    ("Without a script", &["model"]),
    ("Compare, check, and tune", &["diff", "check", "replay"]),
    ("On a real GPU", &["record", "verify"]),
    ("Clusters", &["forecast", "fleet"]),
    (
        "Files and setup",
        &[
            "info",
            "convert",
            "gpus",
            "doctor",
            "mcp",
            "completions",
            "help",
        ],
    ),
];

/// The command line with its commands in groups, which clap has for options only.
pub(crate) fn grouped() -> clap::Command {
    let command = Arguments::command();
    let header = *command.get_styles().get_header();
    let width = longest(GROUPS.iter().flat_map(|(_, names)| *names));
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(groups, "{header}{title}:{header:#}");
        groups.push_str(&described(&command, names, width));
        groups.push('\n');
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}"
    );
    command.help_template(template)
}

/// The command line whose help is short: it is printed where no command is named.
pub(crate) fn overview() -> clap::Command {
    let command = Arguments::command();
    let styles = command.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let [(_, everyday), others @ ..] = GROUPS;
    let mut text = described(&command, everyday, longest(everyday));
    let _ = writeln!(text, "\n{header}More commands:{header:#}");
    let width = longest(others.iter().map(|(title, _)| title));
    for (title, names) in others {
        let _ = writeln!(text, "  {title:<width$}  {}", names.join(", "));
    }
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{text}\n{literal}tonnage --help{literal:#} describes all commands, \
         {literal}tonnage COMMAND --help{literal:#} describes one.\n"
    );
    command.help_template(template)
}

fn longest<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> usize {
    let lengths = names.into_iter().map(|name| name.len());
    lengths.max().unwrap_or(0)
}

/// A line for each of these commands.
fn described(command: &clap::Command, names: &[&str], width: usize) -> String {
    let literal = *command.get_styles().get_literal();
    let mut built = command.clone();
    // Adds the command `help`.
    built.build();
    let mut lines = String::new();
    for name in names {
        let subcommand = built.find_subcommand(name);
        let about = subcommand.and_then(clap::Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(lines, "  {literal}{name:<width$}{literal:#}  {about}");
    }
    lines
}

impl Command {
    /// The name of a command that has a newer spelling, and that spelling.
    pub(crate) fn older_name(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Tune(_) => Some(("tune", "replay --search")),
            #[cfg(feature = "jobs")]
            Self::ServeFit(_) => Some(("serve-fit", "fit")),
            Self::Import(_) => Some(("import", "convert")),
            Self::Export(_) => Some(("export", "convert --to")),
            _ => None,
        }
    }

    /// Whether only the verdict is wanted.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            #[cfg(feature = "jobs")]
            Self::Run(options) => options.detail.quiet.quiet,
            Self::Explain(options) => options.detail.quiet.quiet,
            #[cfg(feature = "jobs")]
            Self::Fit(options) => options.quiet.quiet,
            #[cfg(feature = "jobs")]
            Self::Check(options) => options.quiet.quiet,
            Self::Replay(options) => options.quiet.quiet,
            _ => false,
        }
    }

    /// The verdict in the text of a reply: its first line, or a line for each budget of `check`.
    pub(crate) fn verdict_in(&self, text: &str) -> String {
        #[cfg(feature = "jobs")]
        if let Self::Check(options) = self {
            if options.json || options.format != CheckFormat::Text {
                return text.to_owned();
            }
            let verdicts = text.lines().filter(|line| !line.starts_with(' '));
            return verdicts.collect::<Vec<_>>().join("\n");
        }
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Whether the reply is for a program.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            #[cfg(feature = "jobs")]
            Self::Run(options) => options.reply.json,
            #[cfg(feature = "jobs")]
            Self::Record(options) => options.json,
            #[cfg(feature = "jobs")]
            Self::Verify(options) => options.json,
            #[cfg(feature = "jobs")]
            Self::Attach(options) => options.reply.json,
            #[cfg(feature = "jobs")]
            Self::Top(options) => options.reply.json,
            #[cfg(feature = "jobs")]
            Self::Fit(options) => options.reply.json,
            #[cfg(feature = "jobs")]
            Self::Model(options) => options.reply.json,
            #[cfg(feature = "jobs")]
            Self::ServeFit(options) => options.reply.json,
            Self::Gpus(options) => options.reply.json,
            #[cfg(feature = "jobs")]
            Self::Doctor(options) => options.reply.json,
            Self::Info(options) => options.reply.json,
            Self::Replay(options) => options.reply.json,
            Self::Plan(options) => options.reply.json,
            Self::Tune(options) => options.reply.json,
            Self::Explain(options) => options.reply.json,
            Self::Diff(options) => options.reply.json,
            Self::Report(options) => options.json,
            #[cfg(feature = "jobs")]
            Self::Forecast(options) => options.what.wants_json(),
            #[cfg(feature = "jobs")]
            Self::Fleet(options) => options.what.wants_json(),
            // They write files, or have formats of their own.
            Self::Convert(_) | Self::Import(_) | Self::Export(_) | Self::Completions(_) => false,
            #[cfg(feature = "jobs")]
            Self::Check(_) | Self::Mcp(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_needs_no_value_and_takes_the_old_ones() {
        let read = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let words = without_old_values(words);
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let opened = "tonnage report --open a.tonnage";
        assert_eq!(read(opened), opened);
        assert_eq!(read("tonnage report --open yes a.tonnage"), opened);
        assert_eq!(read("tonnage report --open=yes a.tonnage"), opened);
        assert_eq!(
            read("tonnage report --open no a.tonnage"),
            "tonnage report a.tonnage"
        );
        assert_eq!(
            read("tonnage report a.tonnage --open=no"),
            "tonnage report a.tonnage"
        );
        let job = "tonnage run train.py --open yes";
        assert_eq!(read(job), job);
    }

    #[test]
    fn only_the_verdict_is_left_of_a_quiet_reply() {
        let command = |line: &str| {
            let words = ["tonnage"].into_iter().chain(line.split(' '));
            Arguments::parse_from(words).command
        };
        let text = "holds  a on l4\n  peak  1\nfailed  b on l4\n  exit 3\n1 of 2 budgets hold";
        let check = command("check -q");
        assert!(check.is_quiet());
        let lines = "holds  a on l4\nfailed  b on l4\n1 of 2 budgets hold";
        assert_eq!(check.verdict_in(text), lines);
        assert_eq!(command("check -q --format junit").verdict_in(text), text);
        for line in [
            "run -q train.py",
            "explain -q a.tonnage",
            "fit -q x.py",
            "replay -q a",
        ] {
            let quiet = command(line);
            assert!(quiet.is_quiet(), "{line}");
            assert_eq!(quiet.verdict_in(text), "holds  a on l4", "{line}");
        }
    }

    #[test]
    fn every_command_is_in_one_group_and_in_its_order() {
        let mut command = Arguments::command();
        command.build();
        let all: Vec<&str> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .filter(|name| *name != "plan")
            .collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        assert_eq!(all, grouped);
    }
}
