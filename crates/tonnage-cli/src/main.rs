// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `tonnage` command. Parses, runs one command, turns its answer into an exit code.
//!
//! Exit codes are part of the interface: 0 yes or done, 1 the answer is no
//! (does not fit), 2 bad use or failure.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod output;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    // What a damaged recording makes arrow panic at becomes an error, which says it better.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !tonnage_trace::panic_is_guarded() {
            tell(panic);
        }
    }));
    let arguments = Arguments::parse();
    arguments.color.apply();
    let result = match arguments.command {
        Command::Run(options) => commands::run::run(&options),
        Command::Gpus(options) => commands::gpus::run(&options),
        Command::Info(options) => commands::info::run(&options),
        Command::Import(options) => commands::import::run(&options),
        Command::Export(options) => commands::export::run(&options),
        Command::Replay(options) => commands::replay::run(&options),
        Command::Plan(options) => commands::plan::run(&options),
        Command::Tune(options) => commands::tune::run(&options),
        Command::Explain(options) => commands::explain::run(&options),
        Command::Diff(options) => commands::diff::run(&options),
        Command::Check(options) => commands::check::run(&options),
        Command::Report(options) => commands::report::run(&options),
    };
    match result {
        Ok(answer) => ExitCode::from(answer as u8),
        Err(error) => {
            output::error(&error);
            ExitCode::from(output::Answer::Failed as u8)
        }
    }
}
