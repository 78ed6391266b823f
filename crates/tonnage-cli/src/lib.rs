// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `tonnage` command, as a program and as a function.
//!
//! [`main`] parses, runs one command, prints its reply and turns its answer into an exit code; the program and the
//! Python package both start there. [`ask`] does the same and prints nothing: the Python library is made of it, so
//! that an option means the same in a terminal and in a script.
//!
//! Exit codes are part of the interface: 0 yes or done, 1 the answer is no
//! (does not fit), 2 bad use or failure.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "jobs"),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "some helpers serve only commands that start jobs"
    )
)]

mod arguments;
mod browser;
mod commands;
mod options;
mod output;
mod progress;
#[cfg(feature = "schema")]
mod schema;
mod wrapped;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Once};

use clap::FromArgMatches as _;

use crate::arguments::{Arguments, Command};

pub use crate::output::{Answer, Failure, Reply};
use crate::output::{Form, print_out};
#[cfg(feature = "schema")]
pub use crate::schema::{Described, schemas};

/// The name of tonnage in the files it writes.
pub const PRODUCER: &str = concat!("tonnage ", env!("CARGO_PKG_VERSION"));

/// The command with all that can be typed, as data: its reference, man pages and completions are made of it.
pub fn command() -> clap::Command {
    arguments::grouped()
}

/// Reads what was typed.
fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let words = arguments::without_old_values(words.into_iter().collect());
    let mut command = if words.len() > 1 {
        arguments::grouped()
    } else {
        arguments::overview()
    };
    let matches = command.try_get_matches_from_mut(words)?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Runs the command with these words, the first of which is its own name; the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> u8 {
    // The standard library knows no folder for temporary files there.
    #[cfg(target_os = "wasi")]
    let _ = tempfile::env::override_temp_dir(std::path::Path::new("/tmp"));
    keep_guarded_panics_quiet();
    let arguments = match parse(words) {
        Ok(arguments) => arguments,
        Err(told) => {
            // Help and version take the same way, and are not a failure.
            let _ = told.print();
            return u8::try_from(told.exit_code()).unwrap_or(Answer::Failed as u8);
        }
    };
    arguments.color.apply();
    let form = if arguments.command.wants_json() {
        Form::Json
    } else {
        Form::Text
    };
    match run(&arguments.command, form, &Surroundings::of_a_command()) {
        Ok(reply) => {
            for text in [reply.json, reply.text].into_iter().flatten() {
                print_out(&text);
            }
            reply.exit_code.unwrap_or(reply.answer as u8)
        }
        Err(error) => {
            output::error(&error);
            Answer::Failed as u8
        }
    }
}

/// Runs the command with these words and hands back what it would have printed, as JSON and as text.
///
/// # Errors
///
/// Returns the text that the command would have printed on stderr before exit code 2.
pub fn ask(words: impl IntoIterator<Item = OsString>) -> Result<Reply, Failure> {
    ask_in(words, &Surroundings::of_a_command())
}

/// The same as [`ask`], with a job in surroundings that the caller chooses. Signal handlers stay as they are.
///
/// The files that the words name are found from the caller's own folder, and not from that of the job.
///
/// # Errors
///
/// Returns the text that the command would have printed on stderr before exit code 2.
pub fn ask_in(
    words: impl IntoIterator<Item = OsString>,
    surroundings: &Surroundings,
) -> Result<Reply, Failure> {
    let arguments = parse(words).map_err(|error| Failure::of_usage(&error))?;
    replied(|| run(&arguments.command, Form::Both, surroundings))
}

/// Where a job of [`ask_in`] runs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Surroundings {
    /// The folder; the caller's own if there is none.
    pub folder: Option<PathBuf>,
    /// Environment variables that are set for it, besides those of the caller.
    pub environment: Vec<(OsString, OsString)>,
    /// A file or pipe for its output, instead of the caller's stdout and stderr.
    pub output: Option<PathBuf>,
    /// Ends the job when it becomes true.
    pub stop: Arc<AtomicBool>,
    /// Is sent a line on what is going on, about ten times a second.
    pub progress: Option<Sender<String>>,
    /// Whether signals to this process are for the job.
    forward_signals: bool,
}

impl Surroundings {
    /// The settings of a command at a terminal, which gets its signals for the job.
    fn of_a_command() -> Self {
        Self {
            forward_signals: true,
            ..Self::default()
        }
    }
}

/// Does the work of a command quietly, for a program that wants its reply.
fn replied(work: impl FnOnce() -> anyhow::Result<Reply>) -> Result<Reply, Failure> {
    keep_guarded_panics_quiet();
    let reply = output::quietly(work).map_err(|error| Failure::from_error(&error))?;
    Ok(Reply {
        text: reply.text.map(|text| output::without_colour(&text)),
        ..reply
    })
}

fn run(command: &Command, form: Form, surroundings: &Surroundings) -> anyhow::Result<Reply> {
    if !command.is_quiet() {
        return answer(command, form, surroundings);
    }
    let mut surroundings = surroundings.clone();
    surroundings
        .output
        .get_or_insert_with(|| "/dev/null".into());
    let reply = output::quietly(|| answer(command, form, &surroundings))?;
    let text = reply.text.map(|text| command.verdict_in(&text));
    Ok(Reply { text, ..reply })
}

fn answer(command: &Command, form: Form, surroundings: &Surroundings) -> anyhow::Result<Reply> {
    if let Some((older, newer)) = command.older_name() {
        output::print_err(&format!(
            "note: `tonnage {older}` is the older name of `tonnage {newer}`"
        ));
    }
    match command {
        #[cfg(feature = "jobs")]
        Command::Run(options) => commands::run::run_in(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Record(options) => commands::record::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Verify(options) => commands::verify::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Attach(options) => commands::attach::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Top(options) => commands::attach::list(options, form),
        #[cfg(feature = "jobs")]
        Command::Fit(options) => commands::fit::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Model(options) => commands::model::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::ServeFit(options) => commands::serve_fit::run(options, form, surroundings),
        Command::Gpus(options) => commands::gpus::run(options, form),
        #[cfg(feature = "jobs")]
        Command::Doctor(options) => commands::doctor::run(options, form, surroundings),
        Command::Info(options) => commands::info::run(options, form),
        Command::Convert(options) => commands::convert::run(options),
        Command::Import(options) => commands::import::run(&options.file, &options.target),
        Command::Export(options) => {
            let (file, target) = (&options.file, &options.target);
            commands::export::run(file, options.format, target, &options.parts)
        }
        Command::Replay(options) => commands::replay::run(options, form),
        Command::Plan(options) => commands::plan::run(options, form),
        Command::Tune(options) => commands::tune::run(options, form),
        Command::Explain(options) => commands::explain::run(options, form, surroundings),
        Command::Diff(options) => commands::diff::run(options, form),
        #[cfg(feature = "jobs")]
        Command::Check(options) => commands::check::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Forecast(options) => commands::forecast::run(options, form, surroundings),
        #[cfg(feature = "jobs")]
        Command::Fleet(options) => commands::fleet::run(options, form),
        Command::Report(options) => commands::report::run(options, form),
        #[cfg(feature = "jobs")]
        Command::Mcp(options) => commands::mcp::run(options, form),
        Command::Completions(options) => Ok(commands::completions::run(options)),
    }
}

/// A panic of arrow over a damaged recording becomes an error with a better message.
fn keep_guarded_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !tonnage_recording::panic_is_guarded() {
                tell(panic);
            }
        }));
    });
}
