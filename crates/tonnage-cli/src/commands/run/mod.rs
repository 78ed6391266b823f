// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage run`: set the stage, run the script, collect, judge.
//!
//! A job that runs out of memory is run a second time on a device without a limit, because only then is it known
//! how much it needs. Both recordings stand in one file, one behind the other.
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
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tonnage_analysis::facts;
use tonnage_analysis::verdict::{Outcome, Verdict, verdict, verdict_of_whole};
use tonnage_gpus::{Catalogue, Gpu};
use tonnage_run::collect::{Collected, collect};
use tonnage_trace::{Writer, meta, second_recording};

use crate::PRODUCER;
use crate::arguments::{AddressOrder, RunOptions};
use crate::commands::explain::Cause;
use crate::commands::recording::Output;
use crate::output::{Answer, DIM, Form, Reply, hinted, tell};

use self::stage::Stage;
use self::watch::{Showing, Watched};

pub(crate) fn run(options: &RunOptions, form: Form) -> Result<Reply> {
    // Before anything runs: a recording that cannot be written is found out now.
    let path = output_file(options);
    let mut output = Output::create(&path, options.force)?;
    let Some(written) = output.path() else {
        return Err(hinted(
            format!("{} is no file", path.display()),
            "a recording is read again for the verdict: name a file with -o",
        ));
    };
    let (verdict, collected) = dry_run(options, written)?;
    let mut path = path;
    if !options.force && path.exists() {
        // The script itself made a file of this name meanwhile, and a recording is not to be lost.
        path = next_free(&path);
        output.rename(&path);
    }
    output.finish()?;
    let output = path;
    let answer = match verdict.outcome {
        Outcome::Fits | Outcome::NoDevice => Answer::Yes,
        Outcome::DoesNotFit => Answer::No,
        Outcome::Interrupted | Outcome::Failed => Answer::Failed,
    };
    let fails = verdict.outcome == Outcome::DoesNotFit;
    let judged = Judged {
        verdict,
        cause: fails.then(|| super::explain::cause(&output)).flatten(),
        recording: output.to_string_lossy().into_owned(),
    };
    let reply = Reply::new(form, answer, &judged, |judged| {
        // The script's own output may have ended without a line break.
        tell("");
        render::text(&judged.verdict, judged.cause.as_ref(), &collected, &output)
    });
    Ok(reply?)
}

/// What a dry run showed, and where it was recorded.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Judged {
    #[serde(flatten)]
    verdict: Verdict,
    /// Why it does not fit, as `tonnage explain` says it.
    cause: Option<Cause>,
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
    let stage = Stage::set(gpu, options, &python, false)?;
    let watched = watch::watch(&stage, options, Showing::All)?;
    let collected = record(&stage, gpu, options, &watched, output)
        .with_context(|| format!("cannot make the recording {}", output.display()))?;
    drop(stage);
    let mut verdict = judge(output)?;
    if verdict.outcome != Outcome::DoesNotFit || options.stop_at_oom {
        return Ok((verdict, collected));
    }
    tell(&format!(
        "{DIM}out of memory; running it once more on a GPU without a limit, to find out how much it needs \
         (--stop-at-oom leaves this out){DIM:#}"
    ));
    let stage = Stage::set(gpu, options, &python, true)?;
    let patience = watch::patience(watched.elapsed);
    let again = watch::watch(&stage, options, Showing::Figures { patience })?;
    record(&stage, gpu, options, &again, output)
        .with_context(|| format!("cannot make the recording {}", output.display()))?;
    verdict = judge(output)?;
    if let Some(need) = &mut verdict.need
        && need.known != "unknown"
    {
        need.gpus = super::gpus::that_hold(need.bytes, verdict.context.bytes);
    }
    Ok((verdict, collected))
}

fn judge(recording: &Path) -> Result<Verdict> {
    let whole = second_recording(File::open(recording)?)?;
    let open_at = |offset: u64| {
        let mut file = File::open(recording)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file)
    };
    let judged = match whole {
        Some(offset) => verdict_of_whole(|| open_at(0), || open_at(offset)),
        None => verdict(|| open_at(0)),
    };
    judged.with_context(|| format!("cannot read the recording {}", recording.display()))
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

/// `-o`, or the script's name with another ending, and a number where that is taken.
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
    let path = PathBuf::from(stem).with_extension("tonnage");
    if options.force || !path.exists() {
        return path;
    }
    next_free(&path)
}

/// The name with the first number behind it that no file has.
fn next_free(path: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = path.file_stem().unwrap_or(OsStr::new("run")).to_owned();
        name.push(format!("-{number}."));
        name.push(path.extension().unwrap_or(OsStr::new("tonnage")));
        path.with_file_name(name)
    };
    (2..=u32::MAX)
        .map(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| path.to_owned())
}

fn record(
    stage: &Stage,
    gpu: &Gpu,
    options: &RunOptions,
    watched: &Watched,
    output: &Path,
) -> Result<Collected> {
    let file = File::options().append(true).create(true).open(output)?;
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
        (facts::ENDING, watched.ending.clone()),
    ] {
        writer.meta(facts::RUN, name, &text)?;
    }
    if stage.is_unlimited() {
        writer.meta(facts::RUN, meta::PART, meta::WHOLE_JOB)?;
    }
    if let Some(why) = &watched.stopped {
        writer.meta(facts::RUN, facts::STOPPED, why)?;
    }
    if watched.interrupted {
        writer.meta(facts::RUN, facts::INTERRUPTED, "yes")?;
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
