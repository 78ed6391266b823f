// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage completions`: what a shell needs to complete commands and options, made from the commands themselves.

use crate::arguments::CompletionsOptions;
use crate::output::{Answer, Reply};

pub(crate) fn run(options: &CompletionsOptions) -> Reply {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut crate::command(), "tonnage", &mut script);
    let script = String::from_utf8_lossy(&script);
    Reply {
        text: Some(script.trim_end().to_owned()),
        ..Reply::silent(Answer::Yes)
    }
}
