// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage import`: a recording of another tool becomes one of tonnage.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use tonnage_analysis::info::info;

use crate::arguments::ImportOptions;
use crate::commands::recording::{
    Input, Output, Recording, derived, named, tell_notes, unreadable_trace, words,
};
use crate::output::{Answer, Reply, bytes, count, hinted, print_err};

pub(crate) fn run(options: &ImportOptions) -> Result<Reply> {
    let path = &options.file;
    let input = Input::new(path)?;
    let Some(format) = input.recognise()? else {
        return Err(hinted(
            format!("{} is a recording of tonnage already", named(path)),
            format!("`tonnage info {}` says what is in it", path.display()),
        ));
    };
    let target = options.output.clone();
    let target = target.unwrap_or_else(|| derived(path, ".tonnage"));
    let output = Output::create(&target, options.force)?;
    let recording = Recording::of(input)?;
    let info = info(recording.trace()?).map_err(|error| unreadable_trace(path, &error))?;
    let mut destination = output.writer()?;
    let copied = std::io::copy(&mut recording.trace()?, &mut destination);
    copied
        .and_then(|_| destination.flush())
        .with_context(|| format!("cannot write {}", target.display()))?;
    let size = output.finish()?;
    let size = size.map_or(String::new(), |size| format!(", {}", bytes(size)));
    print_err(&format!(
        "wrote {} ({} rows{size}) from a {}",
        target.display(),
        count(info.events),
        words(format)
    ));
    tell_notes("not known", &info.unknown);
    Ok(Reply::silent(Answer::Yes))
}
