// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage completions`: what a shell needs to complete commands and options, made from the commands themselves.

use clap::Args;

use crate::output::{Answer, Reply};

/// Print a completion script for a shell
///
/// The script goes to stdout; put it where the shell looks for completions.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage completions bash > ~/.local/share/bash-completion/completions/tonnage
  tonnage completions zsh > ~/.zfunc/_tonnage
  tonnage completions fish > ~/.config/fish/completions/tonnage.fish")]
pub(crate) struct CompletionsOptions {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

pub(crate) fn run(options: &CompletionsOptions) -> Reply {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut crate::command(), "tonnage", &mut script);
    let script = String::from_utf8_lossy(&script);
    Reply {
        text: Some(script.trim_end().to_owned()),
        ..Reply::silent(Answer::Yes)
    }
}
