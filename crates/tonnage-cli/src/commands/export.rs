// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage export`: a recording in the format of another tool.

use std::collections::BTreeMap;

use anyhow::Result;
use tonnage_analysis::info::info;
use tonnage_export::{DEFAULT_MIN_BLOCK, ExportError, Level, PerfettoOptions, perfetto, snapshot};

use crate::arguments::{ExportFormat, ExportOptions};
use crate::commands::recording::{
    Output, Recording, derived, explained, tell_notes, unreadable_trace,
};
use crate::output::{Answer, HINT, Reply, bytes, hinted, plural, print_err};

pub(crate) fn run(options: &ExportOptions) -> Result<Reply> {
    let path = &options.file;
    let (extension, viewer) = match options.format {
        ExportFormat::Snapshot => (".pickle", "https://pytorch.org/memory_viz"),
        ExportFormat::Perfetto => (".perfetto.json", "https://ui.perfetto.dev"),
    };
    misplaced(options)?;
    let target = options.output.clone();
    let target = target.unwrap_or_else(|| derived(path, extension));
    let output = Output::create(&target, options.force)?;
    let recording = Recording::open(path)?;
    let destination = output.writer()?;
    let open = || recording.trace();
    let exported = match options.format {
        ExportFormat::Snapshot => {
            snapshot(open, destination, options.process).map(|(_, exported)| exported)
        }
        ExportFormat::Perfetto => {
            let info = info(recording.trace()?).map_err(|error| unreadable_trace(path, &error))?;
            // What was held before the first event lifts the counters.
            let start = info.devices.iter().map(|device| {
                let level = Level {
                    allocated: device.start_allocated,
                    reserved: device.start_reserved,
                };
                ((device.process, device.device), level)
            });
            let options = PerfettoOptions {
                min_block: options.min_block.unwrap_or(DEFAULT_MIN_BLOCK),
                start: start.collect::<BTreeMap<_, _>>(),
            };
            perfetto(open, destination, &options).map(|(_, exported)| exported)
        }
    };
    let exported = exported.map_err(|error: ExportError| {
        let hint = error.hint();
        explained(&error, hint).context(format!("cannot export {}", path.display()))
    })?;
    let size = output.finish()?;
    let size = size.map_or(String::new(), |size| format!(", {}", bytes(size)));
    print_err(&format!(
        "wrote {} ({}{size}); it opens in {HINT}{viewer}{HINT:#}",
        target.display(),
        plural(exported.events, "event"),
    ));
    tell_notes("not as in the recording", &exported.notes);
    Ok(Reply::silent(Answer::Yes))
}

/// An option of one format is a mistake with the other.
fn misplaced(options: &ExportOptions) -> Result<()> {
    match options.format {
        ExportFormat::Snapshot if options.min_block.is_some() => Err(hinted(
            "a snapshot holds all blocks; --min-block is for Perfetto traces",
            "leave it out, or use --format perfetto",
        )),
        ExportFormat::Perfetto if options.process.is_some() => Err(hinted(
            "a Perfetto trace holds all processes; --process is for snapshots",
            "leave it out, or use --format snapshot",
        )),
        _ => Ok(()),
    }
}
