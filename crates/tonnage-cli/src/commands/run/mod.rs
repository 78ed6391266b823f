// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage run`: set the stage, run the script, collect, judge.
//!
//! * `python` finds the interpreter and the torch that the command would use;
//! * `stage` makes the folder with the stand-in, the hook and the configuration;
//! * `watch` runs the command and shows live figures;
//! * `render` puts the verdict into words.

mod python;
mod render;
mod stage;
mod watch;

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tonnage_core::collect::{Collected, collect};
use tonnage_core::facts;
use tonnage_core::verdict::{Outcome, Verdict, verdict};
use tonnage_gpus::{Catalogue, Gpu};
use tonnage_trace::{Writer, meta};

use crate::PRODUCER;
use crate::arguments::{AddressOrder, RunOptions};
use crate::output::{Answer, Form, Reply, hinted, tell};

use self::stage::Stage;

pub(crate) fn run(options: &RunOptions, form: Form) -> Result<Reply> {
    let output = output_file(options);
    let (verdict, collected) = dry_run(options, &output)?;
    let answer = match verdict.outcome {
        Outcome::Fits | Outcome::NoDevice => Answer::Yes,
        Outcome::DoesNotFit => Answer::No,
        Outcome::Failed => Answer::Failed,
    };
    let judged = Judged {
        verdict,
        recording: output.to_string_lossy().into_owned(),
    };
    let reply = Reply::new(form, answer, &judged, |judged| {
        // The script's own output may have ended without a line break.
        tell("");
        render::text(&judged.verdict, &collected, &output)
    });
    Ok(reply?)
}

/// What a dry run showed, and where it was recorded.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Judged {
    #[serde(flatten)]
    verdict: Verdict,
    /// The file with the recording.
    recording: String,
}

/// Runs the command dry, with its recording in `output`.
pub(crate) fn dry_run(options: &RunOptions, output: &Path) -> Result<(Verdict, Collected)> {
    let catalogue = Catalogue::embedded();
    let gpu = super::gpus::find(&catalogue, &options.gpu)?;
    if !gpu.supported {
        return Err(hinted(
            format!(
                "{} cannot be played: {}",
                gpu.id,
                gpu.reason.as_deref().unwrap_or("unknown")
            ),
            "`tonnage gpus` lists those that can",
        ));
    }
    refuse_where_a_gpu_is(&SIGNS_OF_A_GPU, options.even_with_gpu)?;
    let python = python::find(&options.command)?;
    // Before anything runs: a recording that cannot be written is found out now.
    let file = File::create(output)
        .with_context(|| format!("cannot write the recording {}", output.display()))?;
    let stage = Stage::set(gpu, options, &python)?;
    let ending = watch::watch(&stage, options, stage.capacity())?;
    let collected = record(&stage, gpu, options, &ending, file)
        .with_context(|| format!("cannot make the recording {}", output.display()))?;
    let verdict = verdict(|| File::open(output))
        .with_context(|| format!("cannot read the recording {}", output.display()))?;
    Ok((verdict, collected))
}

/// What the NVIDIA driver puts on a machine with a device.
const SIGNS_OF_A_GPU: [&str; 3] = [
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/proc/driver/nvidia/version",
];

/// A dry run beside a real device would tell programs of a device that is not
/// the one they find by other ways.
fn refuse_where_a_gpu_is(signs: &[&str], allowed: bool) -> Result<()> {
    match signs.iter().find(|sign| Path::new(sign).exists()) {
        Some(sign) if !allowed => Err(hinted(
            format!("this machine has a real NVIDIA device ({sign})"),
            "run on a machine without one, or say --even-with-gpu",
        )),
        _ => Ok(()),
    }
}

/// `-o`, or the script's name with another ending.
fn output_file(options: &RunOptions) -> PathBuf {
    if let Some(output) = &options.output {
        return output.clone();
    }
    let script = options
        .command
        .iter()
        .map(Path::new)
        .find(|argument| argument.extension() == Some(OsStr::new("py")));
    let stem = script
        .and_then(Path::file_stem)
        .unwrap_or(OsStr::new("run"));
    PathBuf::from(stem).with_extension("tonnage")
}

fn record(
    stage: &Stage,
    gpu: &Gpu,
    options: &RunOptions,
    ending: &str,
    file: File,
) -> Result<Collected> {
    let mut writer = Writer::new(file, PRODUCER)?;
    let command: Vec<String> = options
        .command
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let given = |given: bool, known: &str| if given { "given" } else { known }.to_owned();
    let order = match options.address_order {
        AddressOrder::Descending => "descending",
        AddressOrder::Ascending => "ascending",
    };
    for (name, text) in [
        (meta::COMMAND, command.join(" ")),
        (facts::GPU_ID, gpu.id.clone()),
        (meta::GPU_NAME, gpu.name.clone()),
        (facts::GPU_COUNT, options.gpus.to_string()),
        (meta::GPU_CAPACITY, stage.capacity().to_string()),
        (
            facts::GPU_CAPACITY_KNOWN,
            given(options.capacity.is_some(), gpu.total_memory.known.as_str()),
        ),
        (meta::GPU_CONTEXT, stage.context().to_string()),
        (
            facts::GPU_CONTEXT_KNOWN,
            given(options.context.is_some(), gpu.context.known.as_str()),
        ),
        (facts::ADDRESS_ORDER, order.to_owned()),
        (facts::ENDING, ending.to_owned()),
    ] {
        writer.meta(facts::RUN, name, &text)?;
    }
    let collected = collect(stage.folder(), &mut writer)?;
    writer.finish()?;
    Ok(collected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_device_is_not_played_over_unless_told_to() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_string_lossy().into_owned();
        let missing = folder.path().join("nvidia0");
        let missing = missing.to_string_lossy().into_owned();
        assert!(refuse_where_a_gpu_is(&[&missing], false).is_ok());
        let refusal = refuse_where_a_gpu_is(&[&missing, &here], false).unwrap_err();
        assert!(refusal.to_string().contains("a real NVIDIA device"));
        assert!(refuse_where_a_gpu_is(&[&here], true).is_ok());
    }

    #[test]
    fn the_recording_is_named_after_the_script() {
        let name = |words: &[&str]| {
            let line = ["tonnage", "run", "--"].iter().chain(words);
            let arguments = <crate::arguments::Arguments as clap::Parser>::parse_from(line);
            let crate::arguments::Command::Run(options) = arguments.command else {
                unreachable!("a run was parsed");
            };
            output_file(&options)
        };
        assert_eq!(
            name(&["python", "jobs/train.py", "--x"]),
            Path::new("train.tonnage")
        );
        assert_eq!(name(&["python", "-m", "my.job"]), Path::new("run.tonnage"));
    }
}
