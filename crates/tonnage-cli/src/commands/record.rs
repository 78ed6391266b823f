// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage record`: a job on the real GPU of this machine, recorded, and why it ran out of memory if it did.
//!
//! The job keeps its exit code and its stdout: messages of this command go to stderr, unless JSON is wanted.

use anyhow::Result;
use clap::Args;
use tonnage_analysis::verdict::Outcome;
use tonnage_run::{Ending, record};

use super::recording::job_folder;
use super::run::render::{self, Shown};
use super::run::{Judged, Screen, finished, job_of, output_file};
use crate::Surroundings;
use crate::commands::recording::Output;
use crate::options::{JobCommand, RecordingFile};
use crate::output::{Answer, Form, Reply, hinted, print_err};

/// Record a PyTorch script on the real GPU of this machine
///
/// Runs the command as it is: kernels run, and its output and exit code are
/// its own. PyTorch's allocator history, with stacks, owners and phases, goes
/// to a file while the job runs, so a job that is killed leaves what was
/// recorded until then. If the job runs out of memory, the explanation is
/// printed when it has ended.
///
/// Exit code: that of the command; 128 and the number of the signal that ended
/// it; 2 if there is no GPU.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage record -- python train.py
  tonnage record -o night.tonnage -- torchrun --nproc-per-node 8 train.py")]
pub(crate) struct RecordOptions {
    #[command(flatten)]
    pub(crate) file: RecordingFile,
    /// Print what was recorded as JSON on stdout, as `tonnage run` does; the output of the command goes to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

pub(crate) fn run(typed: &RecordOptions, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    // Before anything runs: a recording that cannot be written is found out now.
    let path = output_file(
        typed.file.output.as_deref(),
        typed.file.force,
        &typed.job.command,
    );
    let output = Output::create(&path, typed.file.force)?;
    let Some(written) = output.path() else {
        return Err(hinted(
            format!("{} is not a file", path.display()),
            "a recording is read again for its analysis: name a file with -o",
        ));
    };
    let job = job_of(&typed.job.command, typed.json, surroundings);
    let mut options = tonnage_run::RecordOptions::default();
    options.forward_signals = surroundings.forward_signals;
    options.live.clone_from(&typed.file.live);
    let mut screen = Screen::new(false, surroundings).on_real_gpu();
    let recorded = record(&job, &options, written, &mut screen)?;
    let path = finished(output, path, typed.file.force)?;
    let fails = recorded.verdict.outcome == Outcome::DoesNotFit;
    let judged = Judged {
        verdict: recorded.verdict,
        cause: fails.then(|| super::explain::cause(&path)).flatten(),
        recording: Some(path.to_string_lossy().into_owned()),
    };
    let reply = Reply::new(form, Answer::Yes, &judged, |judged| {
        let here = job_folder(surroundings);
        let shown = Shown {
            output: Some(&path),
            gpu: None,
            here: &here,
            verbose: false,
        };
        let cause = judged.cause.as_ref();
        let mut text = render::text(&judged.verdict, cause, &recorded.collected, &shown);
        if fails {
            let explained = super::explain::explain_recording(&path, surroundings);
            let explained = explained.ok().flatten();
            text = explained.map_or(text.clone(), |explained| format!("{text}\n\n{explained}"));
        }
        text
    })?;
    if form == Form::Text {
        // The script's own output may have ended without a line break.
        print_err("");
        print_err(reply.text.as_deref().unwrap_or_default());
    }
    Ok(Reply {
        text: reply.text.filter(|_| form != Form::Text),
        exit_code: Some(exit_code(recorded.end.ending)),
        ..reply
    })
}

/// The exit code of the job, as a shell would pass it on.
fn exit_code(ending: Ending) -> u8 {
    match ending {
        Ending::Exit(code) => u8::try_from(code).unwrap_or(1),
        Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        _ => 1,
    }
}
